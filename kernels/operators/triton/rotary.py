"""Rotary position embedding in Triton: a program takes some heads of one token, queries and keys in one launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

if TYPE_CHECKING:
    import torch

HEADS_PER_PROGRAM = 8


@triton.jit
def _turn(
    out, heads_in, cos, sin, token, first, heads, half, HEADS: tl.constexpr, HALF: tl.constexpr
):  # fmt: skip
    """Heads ``first`` ... of one token."""
    head = first + tl.arange(0, HEADS)
    column = tl.arange(0, HALF)
    inside = (head < heads)[:, None] & (column < half)[None, :]
    where = (token.to(tl.int64) * heads + head)[:, None] * (2 * half) + column[None, :]
    one = tl.load(heads_in + where, mask=inside, other=0.0).to(tl.float32)
    two = tl.load(heads_in + where + half, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + where, (one * cos - two * sin).to(out.dtype.element_ty), mask=inside)
    tl.store(out + where + half, (two * cos + one * sin).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _rotary(
    q_out, k_out, q, k, table, positions, heads, kv_heads, half, HEADS: tl.constexpr, HALF: tl.constexpr
):  # fmt: skip
    """Token ``program_id(0)``, a group of its heads: the queries' first, then the keys'. HALF: a power of two."""
    token = tl.program_id(0)
    group = tl.program_id(1)
    column = tl.arange(0, HALF)
    row = table + tl.load(positions + token).to(tl.int64) * (2 * half) + column
    cos = tl.load(row, mask=column < half, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(row + half, mask=column < half, other=0.0).to(tl.float32)[None, :]
    groups = tl.cdiv(heads, HEADS)
    if group < groups:
        _turn(q_out, q, cos, sin, token, group * HEADS, heads, half, HEADS, HALF)
    else:
        _turn(k_out, k, cos, sin, token, (group - groups) * HEADS, kv_heads, half, HEADS, HALF)


def prepare(inputs: Mapping[str, Any], outputs: Mapping[str, torch.Tensor]) -> Callable[[], None]:
    """Launch over the inputs of `draftcast.kernels.operators.rotary`."""
    q, k = inputs["q"], inputs["k"]
    m, heads, head_dim = q.shape
    kv_heads = k.shape[1]
    groups = triton.cdiv(heads, HEADS_PER_PROGRAM) + triton.cdiv(kv_heads, HEADS_PER_PROGRAM)

    def launch() -> None:
        _rotary[(m, groups)](
            outputs["q_out"], outputs["k_out"], q, k, inputs["table"], inputs["positions"],
            heads, kv_heads, head_dim // 2, HEADS=HEADS_PER_PROGRAM, HALF=triton.next_power_of_2(head_dim // 2),
            num_warps=2,
        )  # fmt: skip

    return launch
