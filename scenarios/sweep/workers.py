"""Where the cells of a sweep are computed: processes of this machine, or the workers of a Dask cluster.

Both hand out futures of `concurrent.futures`. A local worker that dies is replaced and its cell tried again, a cluster
does the same by itself; a cell that takes its worker along several times is a failure of that cell.

A local worker is a plain subprocess behind one thread of a pool, not one of ``ProcessPoolExecutor``: that breaks as a
whole when a worker dies and does not tell which cell killed it, its workers outlive a parent that was killed, and they
run the calling program's ``__main__`` again (a script without a guard, a Streamlit page).
"""

import contextlib
import os
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection, Pipe
from typing import Any

from draftcast.errors import InputError
from draftcast.kernels.extras import require
from draftcast.scenarios.sweep.cells import CellOutcome, CellTask, run_task
from draftcast.sim.compiled.cache import tell_of_compiling

TRIES = 3
_CONNECT_S = 10.0


class LocalWorkers:
    """So many processes of this machine; they start when the first tasks are submitted."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._threads = ThreadPoolExecutor(count)
        self._own = threading.local()
        self._running: list[_Process] = []
        self._lock = threading.Lock()
        self._closed = False

    def places(self) -> int:
        """How many tasks to have under way at once."""
        return self.count

    def submit(self, task: CellTask) -> Future[CellOutcome]:
        return self._threads.submit(self._compute, task)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for process in self._running:
                process.popen.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._running:
            process.stop()

    def _compute(self, task: CellTask) -> CellOutcome:
        """The outcome, from the process of this thread; a new process after a death."""
        code = 0
        for _ in range(TRIES):
            process = self._own.process = getattr(self._own, "process", None) or self._start()
            try:
                return process.ask(task)
            except (EOFError, OSError):
                with self._lock:
                    if self._closed:
                        raise
                    self._running.remove(process)
                self._own.process = None
                code = process.stop()
        return CellOutcome(task.address.key, failure=f"its worker died {TRIES} times (exit code {code})")

    def _start(self) -> "_Process":
        with self._lock:
            if self._closed:
                raise EOFError
            self._running.append(_Process(tells=not self._running))
            return self._running[-1]


class _Process:
    """One local worker; one of them ``tells`` when it compiles the engine, since all find the same cache."""

    def __init__(self, tells: bool) -> None:
        self._pipe, theirs = Pipe()
        # With -P exactly what this process imports from, also where the caller changed sys.path: the dashboard's
        # workers, too, not from the working directory.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
        command = f"from draftcast.scenarios.sweep.workers import serve; serve({theirs.fileno()}, {tells})"
        # A session of its own: Ctrl-C in the terminal is the parent's to handle.
        self.popen = subprocess.Popen(
            [sys.executable, "-P", "-c", command],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=2,  # what a user's policy prints is no part of the answer
            env=environment,
            start_new_session=True,
        )
        theirs.close()

    def ask(self, task: CellTask) -> CellOutcome:
        """Compute a task. Raises EOFError or OSError if the worker dies."""
        self._pipe.send(task)
        outcome: CellOutcome = self._pipe.recv()
        return outcome

    def stop(self) -> int:
        """End it; its exit code."""
        self._pipe.close()
        self.popen.kill()
        return self.popen.wait()


def serve(descriptor: int, tells: bool) -> None:
    """A local worker's life: tasks in, outcomes out, until the other end is closed."""
    if tells:
        tell_of_compiling()
    pipe: Connection[Any, Any] = Connection(descriptor)
    with contextlib.suppress(EOFError, OSError):
        while True:
            pipe.send(run_task(pipe.recv()))


class ClusterWorkers:
    """The workers of a Dask cluster, ``address`` its scheduler's; each needs the same draftcast and, at the same paths,
    the files a scenario names. Raises InputError: no ``distributed``, or no scheduler answers."""

    def __init__(self, address: str) -> None:
        require("cluster", "distributed", place="--cluster")
        import distributed

        self._address = address
        self.count = 0
        connect: Any = distributed.Client  # untyped
        try:
            self._client = connect(address, timeout=_CONNECT_S, set_as_default=False)
        except (OSError, ValueError) as error:
            raise InputError(f"no scheduler answers: {error}", file="--cluster", value=address) from None
        # Under the content address alone, a lost scheduler's memory could answer with a failure of before.
        self._executor = self._client.get_executor(pure=False)

    def places(self) -> int:
        """Two tasks a thread, so that none waits; one without a worker. Raises InputError: the scheduler is gone."""
        gone = InputError("the scheduler is gone; run again to go on", file="--cluster", value=self._address)
        if self._client.status != "running":
            raise gone
        try:
            self.count = sum(self._client.nthreads().values())
        except (OSError, RuntimeError):
            raise gone from None
        return max(1, 2 * self.count)

    def submit(self, task: CellTask) -> Future[CellOutcome]:
        future: Future[CellOutcome] = self._executor.submit(run_task, task)
        return future

    def close(self) -> None:
        if self._client.status == "running":
            with contextlib.suppress(Exception):
                self._executor.shutdown(wait=False)
        self._client.close()
