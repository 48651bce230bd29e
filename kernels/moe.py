"""Routed experts: grouped matrix multiplications."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from draftcast.kernels.work import FloatArray, Work, as_array


def touched_experts(tokens: ArrayLike, num_experts: ArrayLike, top_k: ArrayLike) -> FloatArray:
    """Expected number of distinct experts visited: ``E * (1 - (1 - top_k/E)^T)``, routing uniform and independent."""
    experts = as_array(num_experts)
    missed_by_one = np.log1p(-np.minimum(as_array(top_k) / experts, 1.0 - 1e-15))
    return np.asarray(-experts * np.expm1(as_array(tokens) * missed_by_one), dtype=np.float64)


def moe_work(
    m: ArrayLike,
    k: ArrayLike,
    n: ArrayLike,
    num_experts: ArrayLike,
    top_k: ArrayLike,
    weight_bytes_per_element: float,
    act_bytes: float = 2.0,
) -> Work:
    """Grouped matrix multiplication of routed experts of shape ``k x n``.

    Each of ``m`` rows visits ``top_k`` experts: ``2 m top_k k n`` FLOPs. The weights of every touched expert are read
    once, so the bytes grow with m until all experts are touched.
    """
    rows, inner, outer = as_array(m) * as_array(top_k), as_array(k), as_array(n)
    weights = touched_experts(m, num_experts, top_k) * inner * outer * weight_bytes_per_element
    return Work(2.0 * rows * inner * outer, weights + rows * (inner + outer) * act_bytes)
