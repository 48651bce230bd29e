"""The median of a point's bursts, how far it may be off, and which point is visited next.

Every visit is one burst: a stretch of samples taken back to back, whose figure is their median, so a short disturbance
does not show. Longer ones show as a difference between bursts, so the interval is one over bursts, never over samples.
A point needs three bursts on a quiet machine; they lie a whole round apart, so a slow minute of the host touches one of
them at most. A point is begun only if the time allows all its visits; points begin coarse ones first, so a budget that
is too short thins the grid and leaves no part of it out. Time that is left goes round the points that are not settled.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from draftcast.calibration.microbench.noise import QuietLevels, SpinAndRead
from draftcast.calibration.microbench.shapes import Point

CONFIDENCE = 0.95
MIN_BURSTS = 3  # fewer say nothing about the spread
SETTLED_WIDTH = 0.02  # (high - low) / median at which a point counts as settled
LAUNCH_SPREAD_S = 1e-7
"""Bursts of one process share its layout of code and memory: host code of a launch differs by this between processes.

Seen between runs of launches of 2-4 microseconds on an AMD EPYC: 2.40 and 2.33, 2.90 and 2.80, 3.60 and 3.50.
"""
MAX_VISITS = 30  # a point that has not settled by then does not
_MAX_OWED_VISITS = 9  # a machine that is hardly ever quiet gets no more visits for a point's three bursts
_MEDIAN_OVER_MEAN = math.sqrt(math.pi / 2.0)  # standard error of a median over a mean's, normal errors, many bursts


@dataclass(frozen=True)
class Median:
    """Median in seconds with its 95 % interval (NaN below two bursts) and whether that is narrow enough."""

    seconds: float
    low_s: float
    high_s: float
    settled: bool

    def widened(self, by_s: float) -> "Median":
        """With an error of ``by_s`` that all bursts share, on either side."""
        low, high = max(self.low_s - by_s, 0.0), self.high_s + by_s
        settled = self.settled and high - low <= SETTLED_WIDTH * self.seconds
        return Median(self.seconds, low, high, settled)


def estimate(bursts: Sequence[float]) -> Median:
    """Estimate from the seconds of each burst, at least one.

    From six bursts on the interval is between order statistics, free of any distribution (David and Nagaraja, Order
    Statistics, 2003, section 7.1); six are the least whose extremes enclose the median with 95 % (1 - 2/2^6). With
    fewer it is Student's t on the logs around the median, widened as a median is less certain than a mean.
    """
    values = np.sort(np.asarray(bursts, dtype=np.float64))
    count, middle = len(values), float(np.median(values))
    if count < 2:
        return Median(middle, math.nan, math.nan, False)
    depth, student = _quantiles(count)
    if depth:
        low, high = float(values[depth - 1]), float(values[-depth])
    else:
        half = student * _MEDIAN_OVER_MEAN * float(np.log(values).std(ddof=1)) / math.sqrt(count)
        low, high = middle * math.exp(-half), middle * math.exp(min(half, 100.0))
    settled = count >= MIN_BURSTS and high - low <= SETTLED_WIDTH * middle
    return Median(middle, low, high, settled)


@functools.cache
def _quantiles(count: int) -> tuple[int, float]:
    """For ``count`` bursts: the depth of the median's interval in order statistics (0: none), and Student's quantile.

    The median lies outside of the r-th smallest and largest with probability 2 P(Binomial(count, 1/2) < r).
    """
    from scipy.stats import binom, t

    tail = (1.0 - CONFIDENCE) / 2.0
    return int(binom.ppf(tail, count, 0.5)), float(t.ppf(1.0 - tail, count - 1))


@dataclass
class PointProgress:
    # Seconds of each, with the worse of the readings before and after it (None: none are taken)
    bursts: list[tuple[float, SpinAndRead | None]] = field(default_factory=list)
    launches: int = 0  # timed in all of them
    took_s: float = 0.0  # wall time of its visits
    failed: str = ""  # why it cannot be timed, "" if it can
    # What was judged last: at how many bursts and which version of the levels, quiet bursts, estimate
    _judged: tuple[tuple[int, int], list[float], Median] | None = None

    @property
    def visits(self) -> int:
        return len(self.bursts)

    def quiet_bursts(self, levels: QuietLevels) -> list[float]:
        return self._judge(levels)[1]

    def estimate(self, levels: QuietLevels) -> Median:
        """From the quiet bursts once there are enough of them.

        Before that the median is that of the least disturbed ones, nothing is settled, and the interval spans all
        bursts and what each could have been on the quiet machine, had the kernel been slowed as the fixed work was.
        """
        return self._judge(levels)[2]

    def _judge(self, levels: QuietLevels) -> tuple[tuple[int, int], list[float], Median]:
        at = len(self.bursts), levels.version
        if self._judged is None or self._judged[0] != at:
            quiet = [seconds for seconds, moment in self.bursts if moment is None or levels.is_quiet(moment)]
            self._judged = at, quiet, self._estimate(quiet, levels)
        return self._judged

    def _estimate(self, quiet: list[float], levels: QuietLevels) -> Median:
        if len(quiet) >= MIN_BURSTS:
            return estimate(quiet)
        of_all = estimate([seconds for seconds, _ in self.bursts])
        ranked = sorted(self.bursts, key=lambda burst: math.prod(burst[1] or (0.0,)))
        least = estimate([seconds for seconds, _ in ranked[:MIN_BURSTS]]).seconds
        low = min(seconds / (levels.excess(moment) if moment else 1.0) for seconds, moment in self.bursts)
        return Median(least, min(of_all.low_s, low, least), max(of_all.high_s, least), False)


def next_point(
    points: Sequence[Point], state: dict[str, PointProgress], levels: QuietLevels, spent_s: float, budget_s: float
) -> Point | None:
    """The point to visit now; None when there is nothing left to do or no time left.

    ``points`` are in the order in which they begin, ``state`` is that of every begun one by key; the last visit has to
    end by ``budget_s`` of wall time.
    """
    fresh = next((point for point in points if point.key not in state), None)
    begun = [(point, state[point.key]) for point in points if point.key in state and not state[point.key].failed]
    owed = [(point, progress) for point, progress in begun if _owed(progress, levels)]
    if fresh is not None:
        visits = sum(progress.visits for _, progress in begun)
        mean_s = sum(progress.took_s for _, progress in begun) / max(visits, 1)
        quiet = sum(len(progress.quiet_bursts(levels)) for _, progress in begun)
        # Visits that a burst on a quiet machine takes.
        tries = min(max(visits / max(quiet, 1), 1.0), _MAX_OWED_VISITS / MIN_BURSTS)
        debt_s = tries * sum(_owed(progress, levels) * progress.took_s / progress.visits for _, progress in owed)
        if spent_s + debt_s + tries * MIN_BURSTS * mean_s < budget_s:
            return fresh
    again = owed or [item for item in begun if item[1].visits < MAX_VISITS and not item[1].estimate(levels).settled]
    fitting = [item for item in again if spent_s + item[1].took_s / item[1].visits <= budget_s]
    return min(fitting, key=lambda item: item[1].visits, default=(None, None))[0]


def _owed(progress: PointProgress, levels: QuietLevels) -> int:
    """Quiet bursts that a point still needs; 0 when it has been visited often enough."""
    return 0 if progress.visits >= _MAX_OWED_VISITS else max(MIN_BURSTS - len(progress.quiet_bursts(levels)), 0)
