"""Routed experts: grouped matrix multiplications."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from draftcast.kernels.work import FloatArray, Work, as_array


def touched_experts(tokens: ArrayLike, num_experts: int, top_k: int) -> FloatArray:
    """Expected number of distinct experts visited: ``E * (1 - (1 - top_k/E)^T)``, routing uniform and independent."""
    missed_by_one = math.log1p(-min(top_k / num_experts, 1.0 - 1e-15))
    return np.asarray(-num_experts * np.expm1(as_array(tokens) * missed_by_one), dtype=np.float64)


def moe_work(
    m: ArrayLike,
    k: float,
    n: float,
    num_experts: int,
    top_k: int,
    weight_bytes_per_element: float,
    act_bytes: float = 2.0,
) -> Work:
    """Grouped matrix multiplication of routed experts of shape ``k x n``.

    Each of ``m`` rows visits ``top_k`` experts: ``2 m top_k k n`` FLOPs. The weights of every touched expert are read
    once, so the bytes grow with m until all experts are touched.
    """
    rows = as_array(m) * top_k
    weights = touched_experts(m, num_experts, top_k) * k * n * weight_bytes_per_element
    return Work(2.0 * rows * k * n, weights + rows * (k + n) * act_bytes)
