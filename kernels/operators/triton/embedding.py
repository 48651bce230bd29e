"""Look-up of token embeddings in Triton: a program a piece of a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

if TYPE_CHECKING:
    import torch

WIDTH = 1024
"""Columns a program: with four warps one 16-byte load a thread, and enough programs for one token."""


@triton.jit
def _embedding(y, table, tokens, n, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < n
    token = tl.load(tokens + row).to(tl.int64)
    tl.store(y + row * n + column, tl.load(table + token * n + column, mask=inside), mask=inside)


def prepare(inputs: Mapping[str, Any], outputs: Mapping[str, torch.Tensor]) -> Callable[[], None]:
    """Launch over the inputs of `draftcast.kernels.operators.embedding`."""
    y = outputs["y"]
    m, n = y.shape

    def launch() -> None:
        _embedding[(m, triton.cdiv(n, WIDTH))](y, inputs["table"], inputs["tokens"], n, WIDTH=WIDTH, num_warps=4)

    return launch
