"""Intervals and trend tests for simulation output.

Knows numbers only, not requests or engines; a replication is one independent run (its own seed), and paired values come
from runs that share their random streams (common random numbers). scipy is imported inside the functions that need it,
so that ``import draftcast.sim`` stays fast.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from draftcast.errors import InputError

__all__ = [
    "Estimate",
    "Trend",
    "batch_means_interval",
    "lag1_autocorrelation",
    "mann_kendall",
    "paired_difference",
    "paired_ratio",
    "replication_interval",
    "replication_quantile",
    "student_t",
]

FloatArray = npt.NDArray[np.float64]
Values = Sequence[float] | FloatArray


@dataclass(frozen=True)
class Estimate:
    """A mean with a two-sided confidence interval.

    The bounds are NaN when there is nothing to estimate the spread from (n = 1): an unknown width is not a zero width.
    ``n`` counts the independent values behind the interval (replications, or batches of one long run).
    """

    mean: float
    low: float
    high: float
    half_width: float
    n: int
    confidence: float = 0.95

    @property
    def relative_half_width(self) -> float:
        """Half width over the absolute mean; NaN when unknown or when the mean is 0."""
        return self.half_width / abs(self.mean) if self.mean else math.nan

    def contains(self, value: float) -> bool:
        """Whether ``value`` lies inside the interval; False when the interval is unknown."""
        return self.low <= value <= self.high

    def scaled(self, factor: float) -> Estimate:
        """The same estimate in another unit, for example ``scaled(1e3)`` from seconds to milliseconds.

        A negative factor swaps the bounds.
        """
        low, high = sorted((self.low * factor, self.high * factor))
        return Estimate(self.mean * factor, low, high, self.half_width * abs(factor), self.n, self.confidence)

    def __str__(self) -> str:
        return f"{self.mean:.4g}" if math.isnan(self.half_width) else f"{self.mean:.4g} ± {self.half_width:.2g}"


@functools.lru_cache(maxsize=256)
def student_t(degrees: int, confidence: float) -> float:
    """Two-sided critical value of Student's t, for example 2.776 for 4 degrees at 0.95."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.5 + confidence / 2))


def _finite(values: Values, what: str) -> FloatArray:
    array = np.asarray(values, dtype=np.float64).ravel()
    if array.size == 0:
        raise InputError(f"{what} needs at least one value")
    if not np.isfinite(array).all():
        raise InputError(f"{what} needs finite values", value=float(array[~np.isfinite(array)][0]))
    return array


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise InputError("must lie strictly between 0 and 1", key="confidence", value=confidence)


def _around(mean: float, standard_error: float, n: int, confidence: float) -> Estimate:
    half = student_t(n - 1, confidence) * standard_error if n > 1 else math.nan
    return Estimate(mean, mean - half, mean + half, half, n, confidence)


def replication_interval(values: Values, confidence: float = 0.95) -> Estimate:
    """Student-t interval of the mean of independent replications (Law 2015, section 9.4.1).

    Raises InputError when ``values`` is empty or not finite, or ``confidence`` is outside (0, 1).
    """
    _check_confidence(confidence)
    array = _finite(values, "an interval")
    n = array.size
    error = float(array.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    return _around(float(array.mean()), error, n, confidence)


def _pairs(first: Values, second: Values) -> tuple[FloatArray, FloatArray]:
    a, b = _finite(first, "a paired interval"), _finite(second, "a paired interval")
    if a.size != b.size:
        raise InputError(f"paired values need equal counts, got {a.size} and {b.size}")
    return a, b


def paired_difference(first: Values, second: Values, confidence: float = 0.95) -> Estimate:
    """t interval of mean(first - second) over replications that share their random numbers.

    Positive correlation between the two sides cancels in the differences, so the interval is narrower than one from
    independent runs (Law 2015, section 11.2).
    """
    a, b = _pairs(first, second)
    return replication_interval(a - b, confidence)


def paired_ratio(first: Values, second: Values, confidence: float = 0.95) -> Estimate:
    """Interval of mean(first) / mean(second) over paired replications.

    The ratio of means, not the mean of ratios (which is biased for E[first]/E[second]); its standard error comes from
    the linearised residuals ``first_i - r * second_i`` and Student's t with n - 1 degrees (Cochran 1977, section 2.11).
    Raises InputError when the mean of ``second`` is 0.
    """
    _check_confidence(confidence)
    a, b = _pairs(first, second)
    n = a.size
    denominator = float(b.mean())
    if denominator == 0:
        raise InputError("the mean of the denominator is 0: the ratio is undefined")
    ratio = float(a.mean()) / denominator
    error = float((a - ratio * b).std(ddof=1)) / math.sqrt(n) / abs(denominator) if n > 1 else math.nan
    return _around(ratio, error, n, confidence)


def replication_quantile(samples: Sequence[Values], q: float, confidence: float = 0.95) -> Estimate:
    """Interval of the q-quantile: one empirical quantile per replication, then Student's t across replications.

    Serial correlation inside a run does not matter this way; the quantile's own bias, of order 1 over the run length,
    stays. ``q`` in [0, 1]; linear interpolation, as numpy and vLLM's benchmark use.
    """
    if not 0 <= q <= 1:
        raise InputError("must lie between 0 and 1", key="q", value=q)
    return replication_interval([float(np.quantile(_finite(s, "a quantile"), q)) for s in samples], confidence)


def batch_means_interval(values: Values, batches: int = 20, confidence: float = 0.95) -> Estimate:
    """Interval of the mean of one long stationary run from non-overlapping batch means (Law 2015, section 9.5.3).

    The values that do not fill a batch are dropped from the front, where a warm-up remainder would stand. Batches must
    be long against the correlation time: check ``lag1_autocorrelation`` of the batch means when in doubt.
    Raises InputError when there are fewer values than batches.
    """
    array = _finite(values, "batch means")
    if batches < 2 or array.size < batches:
        raise InputError(f"must lie between 2 and the number of values ({array.size})", key="batches", value=batches)
    length = array.size // batches
    return replication_interval(
        array[array.size - length * batches :].reshape(batches, length).mean(axis=1), confidence
    )


def lag1_autocorrelation(values: Values) -> float:
    """Sample correlation of neighbouring values; NaN for fewer than 3 values or a constant series."""
    array = np.asarray(values, dtype=np.float64)
    centred = array - array.mean() if array.size else array
    power = float(centred @ centred)
    return float(centred[1:] @ centred[:-1]) / power if array.size >= 3 and power > 0 else math.nan


class Trend(NamedTuple):
    """Result of a Mann-Kendall test."""

    tau: float  # (rises - falls) / pairs, between -1 and 1
    z: float  # standard normal under no trend
    p_value: float  # two-sided


def mann_kendall(values: Values) -> Trend:
    """Test for a monotone trend (Mann 1945; Kendall 1975), with the variance corrected for ties.

    Assumes independent values: give it batch means, not single requests. O(n^2), meant for n up to about 1,000.
    Fewer than 3 values: tau and z are 0, p is 1.
    """
    array = np.asarray(values, dtype=np.float64)
    n = array.size
    if n < 3:
        return Trend(0.0, 0.0, 1.0)
    rises = float(np.triu(np.sign(array[None, :] - array[:, None]), 1).sum())
    _, ties = np.unique(array, return_counts=True)
    variance = (n * (n - 1) * (2 * n + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18
    tau = rises / (n * (n - 1) / 2)
    if variance <= 0:
        return Trend(tau, 0.0, 1.0)
    z = (rises - math.copysign(1.0, rises)) / math.sqrt(variance) if rises else 0.0
    return Trend(tau, z, math.erfc(abs(z) / math.sqrt(2)))
