"""The median of a point's bursts and how far it may be off.

A burst is a stretch of samples taken back to back; its figure is their median, so a short disturbance does not show.
Disturbances longer than a burst (a neighbour on the host, another clock) show as a difference between bursts. The
interval is therefore one over bursts, which lie far apart in time, never one over samples. What all bursts of a process
share shows in neither and is added.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
MIN_BURSTS = 3
"""Fewer say nothing about the spread."""
SETTLED_WIDTH = 0.02
"""(high - low) / median at which a point counts as settled."""
LAUNCH_SPREAD_S = 1e-7
"""Bursts of one process share its layout of code and memory: host code of a launch differs by this between processes.

Seen between runs of launches of 2-4 microseconds on an AMD EPYC: 2.40 and 2.33, 2.90 and 2.80, 3.60 and 3.50.
"""
# Standard error of a median over that of a mean, normal errors, many bursts: sqrt(pi / 2).
_MEDIAN_OVER_MEAN = math.sqrt(math.pi / 2.0)


@dataclass(frozen=True)
class Estimate:
    """Median in seconds with its 95 % interval (NaN below two bursts) and whether that is narrow enough."""

    seconds: float
    low_s: float
    high_s: float
    settled: bool

    def widened(self, by_s: float) -> Estimate:
        """With an error of ``by_s`` that all bursts share, on either side."""
        low, high = max(self.low_s - by_s, 0.0), self.high_s + by_s
        settled = self.settled and high - low <= SETTLED_WIDTH * self.seconds
        return Estimate(self.seconds, low, high, settled)


def estimate(bursts: Sequence[float]) -> Estimate:
    """Estimate from the seconds of each burst, at least one.

    From six bursts on the interval is between order statistics, free of any distribution (David and Nagaraja, Order
    Statistics, 2003, section 7.1); six are the least whose extremes enclose the median with 95 % (1 - 2/2^6). With
    fewer it is Student's t on the logs around the median, widened as a median is less certain than a mean.
    """
    values = np.sort(np.asarray(bursts, dtype=np.float64))
    middle = float(np.median(values))
    if len(values) < 2:
        return Estimate(middle, math.nan, math.nan, False)
    depth = _order_statistic(len(values))
    if depth:
        low, high = float(values[depth - 1]), float(values[-depth])
    else:
        spread = float(np.log(values).std(ddof=1)) / math.sqrt(len(values))
        half = _student_quantile(len(values) - 1) * _MEDIAN_OVER_MEAN * spread
        low, high = middle * math.exp(-half), middle * math.exp(min(half, 100.0))
    settled = len(values) >= MIN_BURSTS and high - low <= SETTLED_WIDTH * middle
    return Estimate(middle, low, high, settled)


@functools.cache
def _student_quantile(degrees: int) -> float:
    from scipy.stats import t

    return float(t.ppf(0.5 + CONFIDENCE / 2.0, degrees))


@functools.cache
def _order_statistic(count: int) -> int:
    """Largest r with P(X_(r) <= median <= X_(count+1-r)) >= 95 %; 0: there is none.

    The median lies outside with probability 2 P(Binomial(count, 1/2) < r).
    """
    below, r = 0.5**count, 0
    while 2.0 * below <= 1.0 - CONFIDENCE and r < count // 2:
        r += 1
        below += math.comb(count, r) * 0.5**count
    return r
