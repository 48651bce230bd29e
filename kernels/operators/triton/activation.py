"""SwiGLU in Triton: a program a piece of a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

if TYPE_CHECKING:
    import torch

WIDTH = 1024
"""Columns a program: with four warps one 16-byte load of gate and of up a thread, and enough programs for one row."""


@triton.jit
def _swiglu(y, x, n, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < n
    gate = tl.load(x + row * (2 * n) + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * (2 * n) + n + column, mask=inside, other=0.0).to(tl.float32)
    result = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(y + row * n + column, result.to(y.dtype.element_ty), mask=inside)


def prepare(inputs: Mapping[str, Any], outputs: Mapping[str, torch.Tensor]) -> Callable[[], None]:
    """Launch over the inputs of `draftcast.kernels.operators.activation`."""
    y = outputs["y"]
    m, n = y.shape

    def launch() -> None:
        _swiglu[(m, triton.cdiv(n, WIDTH))](y, inputs["x"], n, WIDTH=WIDTH, num_warps=4)

    return launch
