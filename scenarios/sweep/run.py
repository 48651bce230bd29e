"""Sweeps: every point of a grid simulated once, wherever there are processors, and kept under its content address.

    from draftcast.scenarios.sweep.run import sweep
    result = sweep(load_scenario("default"), {"rate": [10, 20, 40], "k": [0, 1, 3]}, folder="sweep")
    result.frame()

What is in the data set already is not computed again: a sweep that was killed goes on, a grid that grows adds its new
points, and two sweeps share what they have in common. The functions take a callback for progress and one that stops.
"""

import math
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from draftcast.errors import InputError
from draftcast.scenarios.run.deployment import engine_key
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.sweep.cells import CellOutcome, CellTask, ResultStore, task_of
from draftcast.scenarios.sweep.grid import GridPoint, SweepAxis, axis_of, grid_points, parse_axis
from draftcast.scenarios.sweep.result import SweepCell, SweepProgress, SweepResult
from draftcast.scenarios.sweep.workers import ClusterWorkers, LocalWorkers

_PATIENCE_S = 0.2  # for outcomes, before looking whether to stop
_REPORT_EVERY_S = 1.0  # while no cell is finished

__all__ = ["SweepCell", "SweepProgress", "SweepResult", "sweep"]


def sweep(
    scenario: Scenario,
    grid: Mapping[str, Sequence[Any]] | Sequence[str],
    *,
    folder: str | Path | None = None,
    workers: int | None = None,
    cluster: str | None = None,
    progress: Callable[[SweepProgress], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> SweepResult:
    """Simulate every point of a grid that is not in the data set yet.

    Args:
        grid: axis name and values (names as of ``draftcast.scenarios.sweep.grid``), or ``rate=1..20:8`` as texts.
        folder: the data set; None keeps it only as long as the sweep runs.
        workers: local processes, by default one a core; cluster: address of a Dask scheduler to use instead.
        progress: called at the start, whenever cells are finished, and every second in between.
        stop: asked several times a second; True ends the sweep and keeps finished cells.

    A ``KeyboardInterrupt`` passes through after finished cells were kept.

    Raises:
        InputError: a bad grid, no point of it that is valid, a folder that cannot be used, no cluster.
    """
    if not grid:
        raise InputError("needs at least one axis, e.g. rate=1..20:8", file="--grid")
    if isinstance(grid, Mapping):
        axes = [axis_of(name, values, scenario) for name, values in grid.items()]
    else:
        axes = [parse_axis(text, scenario) for text in grid]
    with tempfile.TemporaryDirectory(prefix="draftcast-sweep-") if folder is None else nullcontext(folder) as place:
        return _Run(scenario, axes, Path(place), progress, stop).result(workers, cluster, is_kept=folder is not None)


@dataclass
class _Run:
    scenario: Scenario
    axes: Sequence[SweepAxis]
    folder: Path
    progress: Callable[[SweepProgress], None] | None
    stop: Callable[[], bool] | None

    def __post_init__(self) -> None:
        self.began_s = time.monotonic()
        self.tasks: dict[str, CellTask] = {}  # by key: several points may ask the same question (k = 0 of two methods)
        self.points = [self._asked(point) for point in grid_points(self.scenario, self.axes)]
        if not self.tasks:
            raise InputError(f"no point of the grid can be asked; the first: {self.points[0].error}", file="--grid")
        self.store = ResultStore(self.folder)
        self.points_of = Counter(point.key for point in self.points)
        self.cells = {key: SweepCell.of(key, rows) for key, rows in self.store.rows(self.tasks).items()}
        self.reused = frozenset(self.cells)
        self.failed = 0  # cells that a worker could not compute
        # Cells finished when the first were, and when that was: time left is told from the pace since then, for
        # before it workers were starting.
        self.first: tuple[int, float] | None = None
        self.reported_s = -math.inf
        self.workers = 0

    def _asked(self, point: GridPoint) -> SweepCell:
        """The cell of a point before anything is computed: to be computed by its task, or why it cannot be asked."""
        if point.scenario is None:
            return SweepCell.without_figures(point.values, "", point.error)
        try:
            task = task_of(point.scenario)
        except InputError as error:
            return SweepCell.without_figures(point.values, "", str(error))
        self.tasks[task.address.key] = task
        return SweepCell(point.values, task.address.key)

    def result(self, count: int | None, cluster: str | None, is_kept: bool) -> SweepResult:
        """Compute what is missing and answer."""
        missing = [task for key, task in self.tasks.items() if key not in self.cells]
        # Neighbours share an engine: a worker that gets them one after the other resolves it once.
        waiting = sorted(missing, key=lambda task: engine_key(task.scenario), reverse=True)
        self._report()
        complete = True
        if waiting:
            count = count or len(os.sched_getaffinity(0))
            started = LocalWorkers(min(count, len(waiting))) if cluster is None else ClusterWorkers(cluster)
            with closing(started) as workers:
                complete = self._drive(workers, waiting)
        self.store.compact()
        return SweepResult(
            self.scenario,
            tuple(self.axes),
            tuple(replace(self.cells.get(point.key, point), values=point.values) for point in self.points),
            self.store.folder if is_kept else None,
            computed=len(self.cells) - len(self.reused) - self.failed,
            reused=len(self.reused),
            complete=complete,
            elapsed_s=time.monotonic() - self.began_s,
        )

    def _drive(self, workers: LocalWorkers | ClusterWorkers, waiting: list[CellTask]) -> bool:
        """Submit and collect until all is done (True) or the caller has enough (False)."""
        running: dict[Future[CellOutcome], str] = {}
        try:
            while waiting or running:
                if self.stop is not None and self.stop():
                    return False
                places = workers.places()
                while waiting and len(running) < places:
                    task = waiting.pop()
                    running[workers.submit(task)] = task.address.key
                done, _ = wait(running, _PATIENCE_S, FIRST_COMPLETED)
                self.workers = workers.count
                if any(future.cancelled() for future in done):
                    workers.places()  # a scheduler that is gone cancels, and this says so
                self._keep([_outcome(future, running[future]) for future in done])
                for future in done:
                    del running[future]
                if time.monotonic() - self.reported_s > _REPORT_EVERY_S:
                    self._report()
        finally:
            self._keep([_outcome(f, key) for f, key in running.items() if f.done() and not f.cancelled()])
        return True

    def _keep(self, outcomes: Sequence[CellOutcome]) -> None:
        rows = [row for outcome in outcomes for row in outcome.rows]
        if rows:
            self.store.append(rows)
        for outcome in outcomes:
            self.failed += bool(outcome.failure)
            broken = SweepCell.without_figures({}, outcome.key, outcome.failure)
            self.cells[outcome.key] = broken if outcome.failure else SweepCell.of(outcome.key, outcome.rows)
        if outcomes:
            self._report()

    def _report(self) -> None:
        if self.progress is None:
            return
        refused = sum(bool(point.error) for point in self.points)
        finished, left = len(self.cells) - len(self.reused), len(self.tasks) - len(self.cells)
        now_s = self.reported_s = time.monotonic()
        if finished and self.first is None:
            self.first = (finished, now_s)
        left_s = None if left else 0.0
        if left and self.first is not None and finished > self.first[0]:
            left_s = (now_s - self.first[1]) / (finished - self.first[0]) * left
        self.progress(
            SweepProgress(
                total=len(self.points),
                done=refused + sum(self.points_of[key] for key in self.cells),
                reused=sum(self.points_of[key] for key in self.reused),
                failed=refused + sum(self.points_of[key] for key, cell in self.cells.items() if cell.error),
                elapsed_s=now_s - self.began_s,
                left_s=left_s,
                workers=self.workers,
            )
        )


def _outcome(future: Future[CellOutcome], key: str) -> CellOutcome:
    try:
        return future.result()
    except Exception as error:  # what `run_task` does not catch: a lost worker, code that the worker lacks
        return CellOutcome.failed(key, error)
