"""Memory-bound kernels of a pass in Triton, over the inputs of `draftcast.kernels.operators.elementwise`.

RMSNorm with the residual's addition takes a program a row, which stays in registers. Rotary takes some heads of one
token a program, queries and keys in one launch. SwiGLU and the look-up of embeddings take a program a piece of a row.
"""

from functools import partial

import triton
import triton.language as tl

from draftcast.kernels.operators.registry import Launch, Tensors

HEADS_PER_PROGRAM = 8
WIDTH = 1024
"""Columns of a piece: with four warps one 16-byte load of each input a thread, and enough programs for one row."""


@triton.jit
def _rmsnorm(y, total_out, x, residual, weight, n, eps, WIDTH: tl.constexpr):
    """Row ``program_id(0)``; WIDTH: n as a power of two."""
    column = tl.arange(0, WIDTH)
    inside = column < n
    where = tl.program_id(0).to(tl.int64) * n + column
    total = tl.load(x + where, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(residual + where, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(total * total, 0) / n + eps)
    result = total * scale * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(total_out + where, total.to(total_out.dtype.element_ty), mask=inside)
    tl.store(y + where, result.to(y.dtype.element_ty), mask=inside)


def prepare_rmsnorm(inputs: Tensors, outputs: Tensors) -> Launch:
    x = inputs["x"]
    m, n = x.shape
    width = triton.next_power_of_2(n)
    warps = min(max(width // (16 * 32), 1), 16)  # 16 elements a thread: two 16-byte loads of each input in flight.
    pointers = (outputs["y"], outputs["residual_out"], x, inputs["residual"], inputs["weight"])
    return partial(_rmsnorm[(m,)], *pointers, n, inputs["eps"], WIDTH=width, num_warps=warps)


@triton.jit
def _turn(out, heads_in, cos, sin, token, first, heads, half, HEADS: tl.constexpr, HALF: tl.constexpr):
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
def _rotary(q_out, k_out, q, k, table, positions, heads, kv_heads, half, HEADS: tl.constexpr, HALF: tl.constexpr):
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


def prepare_rotary(inputs: Tensors, outputs: Tensors) -> Launch:
    q, k = inputs["q"], inputs["k"]
    m, heads, head_dim = q.shape
    kv_heads = k.shape[1]
    groups = triton.cdiv(heads, HEADS_PER_PROGRAM) + triton.cdiv(kv_heads, HEADS_PER_PROGRAM)
    pointers = (outputs["q_out"], outputs["k_out"], q, k, inputs["table"], inputs["positions"])
    sizes = {"HEADS": HEADS_PER_PROGRAM, "HALF": triton.next_power_of_2(head_dim // 2)}
    return partial(_rotary[(m, groups)], *pointers, heads, kv_heads, head_dim // 2, **sizes, num_warps=2)


@triton.jit
def _swiglu(y, x, n, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < n
    gate = tl.load(x + row * (2 * n) + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * (2 * n) + n + column, mask=inside, other=0.0).to(tl.float32)
    result = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(y + row * n + column, result.to(y.dtype.element_ty), mask=inside)


def prepare_swiglu(inputs: Tensors, outputs: Tensors) -> Launch:
    y = outputs["y"]
    m, n = y.shape
    return partial(_swiglu[(m, triton.cdiv(n, WIDTH))], y, inputs["x"], n, WIDTH=WIDTH, num_warps=4)


@triton.jit
def _embedding(y, table, tokens, n, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < n
    token = tl.load(tokens + row).to(tl.int64)
    tl.store(y + row * n + column, tl.load(table + token * n + column, mask=inside), mask=inside)


def prepare_embedding(inputs: Tensors, outputs: Tensors) -> Launch:
    y = outputs["y"]
    m, n = y.shape
    pointers = (y, inputs["table"], inputs["tokens"])
    return partial(_embedding[(m, triton.cdiv(n, WIDTH))], *pointers, n, WIDTH=WIDTH, num_warps=4)
