"""A sweep that goes on while its reader looks at other pages: a thread that drives worker processes.

It ends with the session: nothing computes for a page that nobody has open. One sweep computes at a time on a server,
the others wait for their turn; all use the machine's cores already.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from pathlib import Path

from draftcast.errors import InputError
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.sweep.grid import Axis
from draftcast.scenarios.sweep.run import SweepProgress, SweepResult, sweep

_TURN = threading.Semaphore(1)
_LOOK_EVERY_S = 0.2


class SweepJob:
    """One run of a sweep.

    Args:
        key: of the question, to tell whether a page still asks the same.
        owner: whose end ends the job; not kept alive by it.
        scenario, axes, folder: of the sweep. What the folder holds is not computed again.

    Attributes:
        progress: the last that was reported; None while it waits for its turn.
        result: once it ended, complete or not; None when ``error`` says why there is none.
    """

    def __init__(self, key: str, owner: object, scenario: Scenario, axes: Sequence[Axis], folder: Path) -> None:
        self.key = key
        self.progress: SweepProgress | None = None
        self.result: SweepResult | None = None
        self.error: InputError | None = None
        self._scenario, self._axes, self._folder = scenario, axes, folder
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"sweep-{key[:8]}", daemon=True)
        weakref.finalize(owner, self._stop.set)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether it computes, waits, or is about to end."""
        return self._thread.is_alive()

    @property
    def stopping(self) -> bool:
        """Whether it was told to end."""
        return self._stop.is_set()

    def stop(self) -> None:
        """End it soon; what is done is kept."""
        self._stop.set()

    def wait(self, timeout_s: float) -> None:
        """Until it ended, at most so long."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not _TURN.acquire(timeout=_LOOK_EVERY_S):
            if self._stop.is_set():
                break
        else:
            try:
                self._sweep()
            finally:
                _TURN.release()

    def _sweep(self) -> None:
        grid = {axis.name: axis.values for axis in self._axes}
        try:
            self.result = sweep(
                self._scenario, grid, folder=self._folder, progress=self._report, stop=self._stop.is_set
            )
        except InputError as error:
            self.error = error

    def _report(self, now: SweepProgress) -> None:
        self.progress = now
