"""What an operator costs: FLOPs and bytes, on one device.

Every formula of `draftcast.kernels` takes numpy arrays (or scalars) and returns ``Work`` of float64 arrays that
broadcast. A multiply-add is two FLOPs. Bytes are those that must cross the device memory once: weights, activations in
and out, KV cache; caches and re-reads belong to the fitted efficiencies of a profile. Nothing here knows a device or a
time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from draftcast.kernels.arrays import FloatArray


class Work(NamedTuple):
    """FLOPs and bytes of an operator; arrays of one shape. ``+`` concatenates tuples: use ``add``."""

    flops: FloatArray
    bytes: FloatArray

    def add(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.bytes + other.bytes)

    def scale(self, factor: float) -> Work:
        return Work(self.flops * factor, self.bytes * factor)


def as_array(value: ArrayLike) -> FloatArray:
    return np.asarray(value, dtype=np.float64)


def moved_work(elements: ArrayLike, act_bytes: float = 2.0) -> Work:
    """A memory-bound kernel that moves ``elements``: one FLOP each, which no roofline will notice."""
    moved = as_array(elements)
    return Work(moved, moved * act_bytes)
