"""Which point is visited next, from what the journal holds and the time that is left.

Every visit is one burst. A point needs three bursts on a quiet machine; they lie a whole round apart, so a slow minute
of the host touches one of them at most. A point is begun only if the time allows all its visits; points begin coarse
ones first, so a budget that is too short thins the grid and leaves no part of it out. Time that is left goes round the
points that are not settled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from draftcast.calibration.microbench.interval import MIN_BURSTS, Estimate, estimate
from draftcast.calibration.microbench.noise import Levels, Quietness
from draftcast.calibration.microbench.points import Point

MAX_VISITS = 30
"""A point that has not settled by then does not."""
_MAX_OWED_VISITS = 9
"""A machine that is hardly ever quiet gets no more visits for a point's three bursts."""


@dataclass
class Progress:
    """What is known of one point so far.

    Attributes:
        bursts: seconds of each, with the worse of the readings before and after it (None: none are taken).
        launches: timed in all of them.
        took_s: wall time of its visits.
        failed: why it cannot be timed, "" if it can.
    """

    bursts: list[tuple[float, Quietness | None]] = field(default_factory=list)
    launches: int = 0
    took_s: float = 0.0
    failed: str = ""
    _cached: tuple[tuple[int, int], list[float], Estimate] | None = field(default=None, repr=False, compare=False)

    @property
    def visits(self) -> int:
        return len(self.bursts)

    def quiet_bursts(self, levels: Levels) -> list[float]:
        """Seconds of the bursts during which the machine was quiet."""
        return self._judged(levels)[0]

    def estimate(self, levels: Levels) -> Estimate:
        """From the quiet bursts once there are enough of them.

        Before that the median is that of the least disturbed ones, nothing is settled, and the interval spans all
        bursts and what each could have been on the quiet machine, had the kernel been slowed as the fixed work was.
        """
        return self._judged(levels)[1]

    def _judged(self, levels: Levels) -> tuple[list[float], Estimate]:
        by = len(self.bursts), levels.version
        if self._cached is None or self._cached[0] != by:
            quiet = [seconds for seconds, moment in self.bursts if moment is None or levels.is_quiet(moment)]
            self._cached = by, quiet, self._estimate(quiet, levels)
        return self._cached[1:]

    def _estimate(self, quiet: list[float], levels: Levels) -> Estimate:
        if len(quiet) >= MIN_BURSTS:
            return estimate(quiet)
        found = estimate([seconds for seconds, _ in self.bursts])
        ranked = sorted(self.bursts, key=lambda burst: math.prod(burst[1] or (0.0,)))
        least = estimate([seconds for seconds, _ in ranked[:MIN_BURSTS]]).seconds
        low = min(seconds / (levels.excess(moment) if moment else 1.0) for seconds, moment in self.bursts)
        return Estimate(least, min(found.low_s, low, least), max(found.high_s, least), False)


def next_point(
    points: Sequence[Point], state: dict[str, Progress], levels: Levels, spent_s: float, budget_s: float
) -> Point | None:
    """The point to visit now; None when there is nothing left to do or no time left.

    Args:
        points: in the order in which they begin.
        state: of every point that was begun, by key.
        levels: of the quiet machine.
        spent_s: wall time so far.
        budget_s: wall time in which the last visit has to end.
    """
    if spent_s >= budget_s:
        return None

    def fits(known: Progress) -> bool:
        return spent_s + known.took_s / known.visits <= budget_s

    begun: list[tuple[Point, Progress]] = []
    fresh = None
    for point in points:
        known = state.get(point.key)
        if known is None:
            fresh = point
            break
        if not known.failed:
            begun.append((point, known))
    owed = [(point, known) for point, known in begun if _owed(known, levels)]
    if fresh is not None:
        visits = sum(known.visits for _, known in begun)
        mean_s = sum(known.took_s for _, known in begun) / max(visits, 1)
        quiet = sum(len(known.quiet_bursts(levels)) for _, known in begun)
        # Visits that a burst on a quiet machine takes.
        tries = min(max(visits / max(quiet, 1), 1.0), _MAX_OWED_VISITS / MIN_BURSTS)
        debt_s = tries * sum(_owed(known, levels) * known.took_s / known.visits for _, known in owed)
        if spent_s + debt_s + tries * MIN_BURSTS * mean_s < budget_s:
            return fresh
    again = owed or [
        (point, known) for point, known in begun if known.visits < MAX_VISITS and not known.estimate(levels).settled
    ]
    return min((item for item in again if fits(item[1])), key=lambda item: item[1].visits, default=(None, None))[0]


def _owed(known: Progress, levels: Levels) -> int:
    """Quiet bursts that a point still needs; 0 when it has been visited often enough."""
    return 0 if known.visits >= _MAX_OWED_VISITS else max(MIN_BURSTS - len(known.quiet_bursts(levels)), 0)
