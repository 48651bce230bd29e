"""The roofline with a soft ridge: seconds of one operator from its FLOPs and bytes.

``t = t0 + ((F / (e_c * peak))^p + (B / (e_m * bandwidth))^p)^(1/p)`` (DESIGN section 3). ``p = 1`` adds compute and
memory time (no overlap at all), ``p = inf`` takes the larger (perfect overlap, the roofline of Williams, Waterman and
Patterson, CACM 52(4), 2009). It knows nothing of shapes: wave quantisation, cache hits and clock throttling are inside
``e_c`` and ``e_m`` or nowhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from draftcast.errors import HardwareError

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Roofline:
    """The four fitted numbers of one operator family on one device and dtype.

    Attributes:
        t0_s: seconds one launch of the kernel takes with no work (>= 0).
        e_c: fraction of the peak FLOP/s reached when compute-bound, in (0, 1].
        e_m: fraction of the peak bandwidth reached when memory-bound, in (0, 1].
        p: sharpness of the ridge, in [1, inf].

    Raises:
        HardwareError: a number outside its range; the key is the field's name.
    """

    t0_s: float
    e_c: float
    e_m: float
    p: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.t0_s) and self.t0_s >= 0.0):
            raise HardwareError("must be a finite number of seconds >= 0", key="t0_s", value=self.t0_s)
        for key, value in (("e_c", self.e_c), ("e_m", self.e_m)):
            if not 0.0 < value <= 1.0:
                raise HardwareError("must be a fraction in (0, 1]", key=key, value=value)
        if not self.p >= 1.0:
            raise HardwareError("must be >= 1 (.inf takes the larger of compute and memory)", key="p", value=self.p)

    def seconds(
        self, flops: ArrayLike, bytes_moved: ArrayLike, peak_flops: float, bandwidth_bytes_per_s: float
    ) -> FloatArray:
        """Seconds of one launch; ``flops`` and ``bytes_moved`` broadcast against each other."""
        compute_s = np.asarray(flops, dtype=np.float64) / (self.e_c * peak_flops)
        memory_s = np.asarray(bytes_moved, dtype=np.float64) / (self.e_m * bandwidth_bytes_per_s)
        return self.t0_s + soft_max(compute_s, memory_s, self.p)


def soft_max(compute_s: FloatArray, memory_s: FloatArray, p: float) -> FloatArray:
    """p-norm of two arrays of non-negative seconds; the larger one is factored out so that no power overflows."""
    larger = np.maximum(compute_s, memory_s)
    if math.isinf(p):
        return larger
    ratio = np.minimum(compute_s, memory_s) / np.where(larger > 0.0, larger, 1.0)
    return np.asarray(larger * (1.0 + ratio**p) ** (1.0 / p), dtype=np.float64)


@njit(cache=True)
def soft_max_scalar(compute_s: float, memory_s: float, p: float) -> float:
    """Compiled twin of `soft_max` for one pair; equal to it to rounding. ``p`` of 1, 2, 4 and inf avoid ``pow``."""
    if compute_s > memory_s:
        larger = compute_s
        smaller = memory_s
    else:
        larger = memory_s
        smaller = compute_s
    if smaller <= 0.0 or p == np.inf:
        return larger
    ratio = smaller / larger
    if p == 1.0:
        return larger + smaller
    if p == 2.0:
        return larger * math.sqrt(1.0 + ratio * ratio)
    if p == 4.0:
        square = ratio * ratio
        return larger * math.sqrt(math.sqrt(1.0 + square * square))
    if p >= 8.0 and ratio < 0.01:
        # ratio**p is below rounding, and a power takes longer than the rest of a step's time.
        return larger
    return float(larger * (1.0 + ratio**p) ** (1.0 / p))
