"""Linear layers, lm_head among them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from draftcast.kernels.work import Work, as_array


def linear_work(
    m: ArrayLike, k: float, n: float, weight_bytes_per_element: float, act_bytes: float = 2.0
) -> Work:  # fmt: skip
    """``(m, k) @ (k, n)``: ``2mkn`` FLOPs; weights once, activations in and out once.

    Zero rows cost nothing: the kernel is not launched.
    """
    rows = as_array(m)
    moved = np.where(rows > 0, k * n * weight_bytes_per_element, 0.0) + rows * (k + n) * act_bytes
    return Work(2.0 * rows * k * n, moved)
