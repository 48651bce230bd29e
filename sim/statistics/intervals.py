"""Confidence intervals for simulation output.

A replication is one independent run (its own seed), and paired values come from runs that share their random streams
(common random numbers). Values are finite and at least one, paired ones as many, and a confidence lies between 0 and 1:
callers see to that. scipy is imported where it is needed, so that ``import draftcast.sim`` stays fast.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from draftcast.kernels.arrays import FloatArray

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

    def contains(self, value: float) -> bool:
        """Whether ``value`` lies inside the interval; False when the interval is unknown."""
        return self.low <= value <= self.high

    def scaled(self, factor: float) -> "Estimate":
        """The same in another unit, as ``scaled(1e3)`` from seconds to milliseconds; a negative factor swaps bounds."""
        low, high = sorted((self.low * factor, self.high * factor))
        return Estimate(self.mean * factor, low, high, self.half_width * abs(factor), self.n, self.confidence)

    def within(self, low: float, high: float) -> "Estimate":
        """The same mean with other bounds, which need not be equally far."""
        return replace(self, low=low, high=high, half_width=math.inf if math.isinf(low) else (high - low) / 2)

    def columns(self, name: str) -> dict[str, float]:
        """Mean and bounds as a row of a table holds them: ``name``, ``name_low`` and ``name_high``."""
        return {name: self.mean, f"{name}_low": self.low, f"{name}_high": self.high}

    def __str__(self) -> str:
        return f"{self.mean:.4g}" if math.isnan(self.half_width) else f"{self.mean:.4g} ± {self.half_width:.2g}"


def student_t(degrees: int, confidence: float) -> float:
    """Two-sided critical value of Student's t, for example 2.776 for 4 degrees at 0.95."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.5 + confidence / 2))


def normal_quantile(confidence: float) -> float:
    """Two-sided critical value of the normal distribution, for example 1.960 at 0.95."""
    from scipy.special import ndtri

    return float(ndtri(0.5 + confidence / 2))


def _around(mean: float, values: FloatArray, confidence: float) -> Estimate:
    """A mean with the t interval that the scatter of these values gives it."""
    n, half = values.size, math.nan
    if n > 1:
        spread = float(values.std(ddof=1)) if np.ptp(values) else 0.0  # of equal values not the rounding of their mean
        half = student_t(n - 1, confidence) * spread / math.sqrt(n)
    return Estimate(mean, mean - half, mean + half, half, n, confidence)


def replication_interval(values: Values, confidence: float = 0.95) -> Estimate:
    """Student-t interval of the mean of independent replications (Law 2015, section 9.4.1)."""
    array = np.asarray(values, dtype=np.float64)
    return _around(float(array.mean()), array, confidence)


def factor_interval(logs: Values, confidence: float = 0.95) -> Estimate:
    """A factor with its interval, from its natural logarithms by replication."""
    log = replication_interval(logs, confidence)
    mean, low, high = math.exp(log.mean), math.exp(log.low), math.exp(log.high)
    return Estimate(mean, low, high, (high - low) / 2.0, log.n, confidence)


def paired_difference(first: Values, second: Values, confidence: float = 0.95) -> Estimate:
    """t interval of mean(first - second) over replications that share their random numbers (Law 2015, section 11.2)."""
    return replication_interval(np.subtract(first, second), confidence)


def paired_ratio(first: Values, second: Values, confidence: float = 0.95) -> Estimate:
    """Interval of mean(first) / mean(second), which is not 0, over paired replications.

    Not the mean of ratios, which is biased for E[first]/E[second]. The standard error comes from the linearised
    residuals ``first_i - r * second_i`` and Student's t with n - 1 degrees (Cochran 1977, section 2.11).
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    denominator = float(b.mean())
    ratio = float(a.mean()) / denominator
    return _around(ratio, (a - ratio * b) / denominator, confidence)
