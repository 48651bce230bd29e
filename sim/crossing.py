"""Where a paired advantage crosses its level: the cutover, with an interval or an honest refusal."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from draftcast.errors import InputError
from draftcast.sim.statistics import replication_interval

__all__ = ["Crossing", "crossing"]

FloatArray = npt.NDArray[np.float64]
Kind = Literal["crosses", "always", "never", "unclear"]


@dataclass(frozen=True)
class Crossing:
    """Where a falling advantage crosses its level.

    ``kind`` is ``crosses``; ``always`` (significantly above the level at every x looked at); ``never`` (significantly
    below at every x); or ``unclear`` (the intervals straddle the level, or it is crossed more than once).
    ``value`` is NaN unless the mean curve crosses. ``low`` and ``high`` bound the crossing with the given confidence;
    ``-inf`` / ``inf`` say that the bound lies below / above the range looked at, NaN that there is but one replication.
    """

    kind: Kind
    value: float
    low: float
    high: float
    confidence: float
    reason: str

    def __str__(self) -> str:
        if self.kind != "crosses":
            return self.kind
        if math.isnan(self.low):
            return f"{self.value:.3g}"
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


def falling(values: FloatArray) -> FloatArray:
    """Least-squares non-increasing fit (pool adjacent violators, Barlow et al. 1972)."""
    means: list[float] = []
    sizes: list[int] = []
    for value in values:
        means.append(float(value))
        sizes.append(1)
        while len(means) > 1 and means[-1] > means[-2]:
            size = sizes[-1] + sizes[-2]
            means[-2:] = [(means[-1] * sizes[-1] + means[-2] * sizes[-2]) / size]
            sizes[-2:] = [size]
    return np.repeat(means, sizes)


def _cross(x: FloatArray, y: FloatArray, level: float) -> float:
    """First x where the monotone cubic through a non-increasing y reaches ``level``; -inf / inf outside the range."""
    from scipy.interpolate import PchipInterpolator

    if y[0] < level:
        return -math.inf
    if y[-1] > level:
        return math.inf
    right = int(np.argmax(y <= level))
    if right == 0:
        return float(x[0])
    curve = PchipInterpolator(x, y)
    low, high = float(x[right - 1]), float(x[right])
    for _ in range(60):  # bisection: the curve is monotone in between (Fritsch and Carlson 1980)
        middle = (low + high) / 2
        low, high = (middle, high) if curve(middle) > level else (low, middle)
    return high


def crossing(
    x: npt.ArrayLike, ratios_by_replication: npt.ArrayLike, level: float = 1.0, confidence: float = 0.95
) -> Crossing:
    """Cutover: the x at which a paired ratio, above ``level`` at small x, falls through it.

    Args:
        x: points looked at, shape [X], increasing (rates, batch sizes, context lengths), X >= 2.
        ratios_by_replication: paired ratios (with SD over without, under common random numbers), shape [R, X].
        level: the level crossed; 1 for a ratio.
        confidence: of the interval.

    The value is where the monotone fit of the mean curve crosses. The interval inverts the pointwise Student-t test: it
    holds every x at which ``mean ratio = level`` is not rejected, that is, the crossings of the lower and upper bands.

    Raises:
        InputError: shapes that do not match, x that does not increase, values that are not finite.
    """
    points = np.asarray(x, dtype=np.float64)
    ratios = np.atleast_2d(np.asarray(ratios_by_replication, dtype=np.float64))
    if points.ndim != 1 or points.size < 2 or ratios.ndim != 2 or ratios.shape[1] != points.size:
        raise InputError(f"needs x of shape [X >= 2] and ratios of shape [R, X], got {points.shape} and {ratios.shape}")
    if not (np.isfinite(points).all() and np.isfinite(ratios).all() and (np.diff(points) > 0).all()):
        raise InputError("needs increasing finite x and finite ratios")
    means = ratios.mean(axis=0)
    bands = [replication_interval(ratios[:, i], confidence) for i in range(points.size)]
    single = ratios.shape[0] == 1
    lower = means if single else np.array([b.low for b in bands])
    upper = means if single else np.array([b.high for b in bands])

    def result(kind: Kind, value: float, low: float, high: float, reason: str) -> Crossing:
        bounds = (math.nan, math.nan) if single else (low, high)
        return Crossing(kind, value, *bounds, confidence, reason)

    span = f"{points[0]:.4g} to {points[-1]:.4g}"
    if (lower > level).all():
        return result("always", math.nan, math.inf, math.inf, f"above {level:g} everywhere from {span}")
    if (upper < level).all():
        return result("never", math.nan, -math.inf, -math.inf, f"below {level:g} everywhere from {span}")
    value = _cross(points, falling(means), level)
    # The cubic does not keep the order of two curves to the last digit; the bounds must.
    low, high = min(_cross(points, falling(lower), level), value), max(_cross(points, falling(upper), level), value)
    inside = value if math.isfinite(value) else math.nan
    surely_above, surely_below = np.flatnonzero(lower > level), np.flatnonzero(upper < level)
    if surely_above.size and surely_below.size and surely_above[-1] > surely_below[0]:
        return result("unclear", math.nan, math.nan, math.nan, f"crosses {level:g} more than once from {span}")
    if surely_above.size and surely_below.size and math.isfinite(value):
        return result("crosses", inside, low, high, f"falls through {level:g}")
    side = "below" if surely_above.size else "above" if surely_below.size else "above or below"
    return result("unclear", inside, low, high, f"not significantly {side} {level:g} anywhere from {span}")
