"""The roofline with a soft ridge: seconds of one operator from its FLOPs and bytes, and how far a time can be trusted.

``t = t0 + ((F / (e_c * peak))^p + (B / (e_m * bandwidth))^p)^(1/p)`` (DESIGN section 3). ``p = 1`` adds compute and
memory time (no overlap at all), ``p = inf`` takes the larger (perfect overlap, the roofline of Williams, Waterman and
Patterson, CACM 52(4), 2009). It knows nothing of shapes: wave quantisation, cache hits and clock throttling are inside
``e_c`` and ``e_m`` or nowhere.
"""

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Self

import numpy as np
from numba import njit
from numpy.typing import ArrayLike
from pydantic import AfterValidator, BeforeValidator, Field

from draftcast.calibration.profile.hardware import Section
from draftcast.kernels.arrays import FloatArray


class Origin(IntEnum):
    """Where a time comes from. The larger the value, the less it is worth.

    The values are the columns of every ``(n, 3)`` seconds table of ``sim.step_cost``, so they never change.
    """

    MEASURED = 0  # this very shape was timed on this device
    INTERPOLATED = 1  # the shape lies between timed shapes, or inside the range a fit was made on
    EXTRAPOLATED = 2  # outside every timed range: a fit or an assumed efficiency stretched to this shape

    @property
    def label(self) -> str:
        """As in profile files and in results."""
        return self.name.lower()

    @classmethod
    def parse(cls, label: str) -> Self:
        """Inverse of `label`. Raises ``ValueError`` that lists the choices."""
        for origin in cls:
            if origin.label == label:
                return origin
        raise ValueError(f"must be one of {', '.join(origin.label for origin in cls)}")


def _sharpness(p: float) -> float:
    if not p >= 1.0:  # NaN too
        raise ValueError("must be >= 1 (.inf takes the larger of compute and memory)")
    return p


Seconds = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0.0, le=1.0, allow_inf_nan=False)]
OriginLabel = Annotated[Origin, BeforeValidator(Origin.parse)]


@dataclass(frozen=True)
class Roofline(Section):
    """The four fitted or assumed numbers of one operator family on one device and dtype, and their standing."""

    t0_s: Seconds  # seconds one launch of the kernel takes with no work (>= 0)
    e_c: Fraction  # fraction of the peak FLOP/s reached when compute-bound, in (0, 1]
    e_m: Fraction  # fraction of the peak bandwidth reached when memory-bound, in (0, 1]
    p: Annotated[float, AfterValidator(_sharpness)]  # sharpness of the ridge, in [1, inf]
    origin: OriginLabel  # of every prediction
    source: str  # where the numbers come from

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
    larger, smaller = (compute_s, memory_s) if compute_s > memory_s else (memory_s, compute_s)
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
