"""Where the cells of a sweep are computed: processes of this machine, or the workers of a Dask cluster.

Both take one task per free place and hand back outcomes in whatever order they come. A local worker that dies is
replaced and its cell tried again, a cluster does the same by itself; a cell that takes its worker along several times
is a failure of that cell.

A local worker is a plain subprocess that talks over a pipe of its own rather than one of ``concurrent.futures``: one
task at a time tells which cell killed it, it ends with its parent however that ends, Ctrl-C in the terminal does not
reach it, and the calling program's ``__main__`` (a script without a guard, a Streamlit page) is not run again.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import subprocess
import sys
import time
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, Protocol, Self

from draftcast.errors import InputError
from draftcast.kernels.extras import require
from draftcast.scenarios.sweep.cells import Outcome, Task, run_task
from draftcast.sim.compiled.cache import tell_of_compiling

TRIES = 3
_CONNECT_S = 10.0
_COUNT_EVERY_S = 1.0


class Workers(Protocol):
    """What a sweep needs; used as a context, whose end stops whatever still runs."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...

    @property
    def count(self) -> int:
        """How many compute now."""

    @property
    def free(self) -> int:
        """How many more tasks to send now."""

    def send(self, task: Task) -> None:
        """Start a task; there is a free place."""

    def collect(self, timeout_s: float) -> list[Outcome]:
        """Outcomes that are there, waiting at most so long for the first."""


class LocalWorkers:
    """Processes of this machine.

    Args:
        count: how many; they start when the first tasks are sent.
    """

    def __init__(self, count: int) -> None:
        self._workers: list[_Process | None] = [None] * count
        self._deaths: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers:
            if worker is not None:
                worker.stop()

    @property
    def count(self) -> int:
        return sum(worker is not None for worker in self._workers)

    @property
    def free(self) -> int:
        return sum(worker is None or worker.task is None for worker in self._workers)

    def send(self, task: Task) -> None:
        index = next(i for i, worker in enumerate(self._workers) if worker is None or worker.task is None)
        worker = self._workers[index] = self._workers[index] or _Process(tells=index == 0)
        worker.send(task)

    def collect(self, timeout_s: float) -> list[Outcome]:
        busy = {w.pipe: w for w in self._workers if w is not None and w.task is not None}
        outcomes = []
        for pipe in wait(list(busy), timeout_s):
            worker = busy[pipe]  # type: ignore[index]  # only pipes were waited for
            task = worker.task
            assert task is not None
            try:
                outcomes.append(worker.receive())
            except (EOFError, OSError):
                outcomes += self._after_death(worker, task)
        return outcomes

    def _after_death(self, worker: _Process, task: Task) -> list[Outcome]:
        """The cell again on a new worker, or given up."""
        worker.stop()
        self._workers[self._workers.index(worker)] = None
        key = task.address.key
        self._deaths[key] = self._deaths.get(key, 0) + 1
        if self._deaths[key] >= TRIES:
            return [Outcome(key, failure=f"its worker died {TRIES} times (exit code {worker.process.returncode})")]
        self.send(task)
        return []


class _Process:
    """One local worker and the task it has.

    Args:
        tells: it says when it compiles the engine; one does for all, since all find the same cache.
    """

    def __init__(self, tells: bool) -> None:
        self.pipe, theirs = Pipe()
        # The same modules as here, also where the caller changed sys.path.
        # With -P exactly what this process imports from: the dashboard's workers, too, not from the working directory.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
        command = f"from draftcast.scenarios.sweep.workers import serve; serve({theirs.fileno()}, {tells})"
        # A session of its own: Ctrl-C in the terminal is the parent's to handle.
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", command],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=2,  # what a user's policy prints is no part of the answer
            env=environment,
            start_new_session=True,
        )
        theirs.close()
        self.task: Task | None = None

    def send(self, task: Task) -> None:
        self.task = task
        # A worker that is dead already is noticed when its outcome is collected.
        with contextlib.suppress(OSError):
            self.pipe.send(task)

    def receive(self) -> Outcome:
        outcome: Outcome = self.pipe.recv()
        self.task = None
        return outcome

    def stop(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.wait()


def serve(descriptor: int, tells: bool) -> None:
    """A local worker's life: tasks in, outcomes out, until the other end is closed."""
    if tells:
        tell_of_compiling()
    pipe: Connection[Any, Any] = Connection(descriptor)
    with contextlib.suppress(EOFError, OSError):
        while True:
            pipe.send(run_task(pipe.recv()))


class ClusterWorkers:
    """The workers of a Dask cluster; each needs the same draftcast and, at the same paths, the files a scenario names.

    Args:
        address: of the scheduler, as of ``dask scheduler``: ``tcp://host:8786``.

    Raises:
        InputError: no ``distributed`` installed, or no scheduler answers.
    """

    def __init__(self, address: str) -> None:
        require("cluster", "distributed", place="--cluster")
        import distributed

        self._address = address
        self._running: dict[Any, str] = {}
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.count, self._counted_s = 0, -math.inf
        connect: Any = distributed.Client  # untyped
        try:
            self._client = connect(address, timeout=_CONNECT_S, set_as_default=False)
        except (OSError, ValueError) as error:
            raise InputError(f"no scheduler answers: {error}", file="--cluster", value=address) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._client.status == "running":
            with contextlib.suppress(Exception):
                self._client.cancel(list(self._running), force=True)
        self._client.close()

    @property
    def free(self) -> int:
        """Two tasks a thread, so that none waits for the next; one while there is no worker yet."""
        self._check_connection()
        if time.monotonic() - self._counted_s > _COUNT_EVERY_S:
            try:
                self.count = sum(self._client.nthreads().values())
            except (OSError, RuntimeError):
                raise self._gone() from None
            self._counted_s = time.monotonic()
        return max(1, 2 * self.count) - len(self._running)

    def send(self, task: Task) -> None:
        # Under the content address alone, a lost scheduler's memory could answer with a failure of before.
        future = self._client.submit(run_task, task, pure=False)
        self._running[future] = task.address.key
        future.add_done_callback(self._done.put)

    def collect(self, timeout_s: float) -> list[Outcome]:
        outcomes = []
        try:
            outcomes.append(self._outcome(self._done.get(timeout=max(timeout_s, 1e-3))))
            while True:
                outcomes.append(self._outcome(self._done.get_nowait()))
        except queue.Empty:
            if not outcomes:
                self._check_connection()
            return outcomes

    def _outcome(self, future: Any) -> Outcome:
        key = self._running.pop(future)
        if future.cancelled():
            self._check_connection()
        try:
            outcome: Outcome = future.result()
        except Exception as error:  # what `run_task` does not catch: a lost worker, code that the worker lacks
            return Outcome(key, failure=f"{type(error).__name__}: {' '.join(str(error).split())}")
        return outcome

    def _check_connection(self) -> None:
        if self._client.status != "running":
            raise self._gone()

    def _gone(self) -> InputError:
        return InputError("the scheduler is gone; run again to go on", file="--cluster", value=self._address)


def workers_for(count: int | None, cluster: str | None, tasks: int) -> Workers:
    """The cluster when one is named, else local processes: ``count``, by default one for each core this may use; no
    more than there are tasks.
    """
    if cluster is not None:
        return ClusterWorkers(cluster)
    return LocalWorkers(max(1, min(count or len(os.sched_getaffinity(0)), tasks)))
