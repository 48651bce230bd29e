"""What an operator costs: FLOPs and bytes, on one device.

Every formula of `draftcast.kernels` takes numpy arrays (or scalars) and returns ``Work`` of float64 arrays that
broadcast. A multiply-add is two FLOPs. Bytes are those that must cross the device memory once: weights, activations in
and out, KV cache; caches and re-reads belong to the fitted efficiencies of a profile. Nothing here knows a device or a
time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

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


def sizes_of(shape: Mapping[str, Any], names: str) -> tuple[FloatArray, ...]:
    """Fields of a shape by their names, which spaces separate."""
    return tuple(as_array(shape[name]) for name in names.split())


def attended_work(
    heads: ArrayLike, width: ArrayLike, pairs: ArrayLike, queries: ArrayLike, cached_bytes: FloatArray, act_bytes: float
) -> Work:  # fmt: skip
    """Softmax attention of ``heads`` whose keys and values are together ``width`` numbers wide.

    A product and a sum of every (query, key) pair; what is cached moved once, and queries in and outputs out.
    """
    row = as_array(heads) * as_array(width)
    return Work(2.0 * row * as_array(pairs), cached_bytes + as_array(queries) * row * act_bytes)


def moved_work(elements: ArrayLike, act_bytes: float = 2.0) -> Work:
    """A memory-bound kernel that moves ``elements``: one FLOP each, which no roofline will notice."""
    moved = as_array(elements)
    return Work(moved, moved * act_bytes)
