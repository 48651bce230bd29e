"""Routed mixture of experts in Triton: sort the (token, expert) pairs, two grouped GEMMs, weighted sum.

The pairs of an expert are padded to whole row blocks, so that one program multiplies one expert's rows by one tile of
its weights; experts without a token have no block and their weights are not read. Sorting happens on the device, in the
order of the tokens (no atomics: results are reproducible), and the host is not told: the grid is the most blocks there
can be, and programs past the last one leave at once. SwiGLU is applied where gate and up are accumulated.
"""

import triton
import triton.language as tl

from draftcast.kernels.extras import torch
from draftcast.kernels.operators.registry import Launch, Tensors
from draftcast.kernels.operators.triton.device import MatrixTiles, dot_type

CHUNK = 1024
E4M3_MAX = tl.constexpr(448.0)


def tile_plan(pairs: int, experts: int, element_bytes: int) -> MatrixTiles:
    """Tiles for ``pairs`` (token, expert) pairs spread over ``experts``.

    Few rows an expert are memory-bound: weight tiles of 16 KiB, three in flight. Many are compute-bound: 64 or 128
    rows, which Hopper's tensor cores want.
    """
    rows = min(max(16, triton.next_power_of_2(triton.cdiv(pairs, experts))), 128)
    if element_bytes == 4:
        return MatrixTiles(min(rows, 32), 32, 32, 4, 2)
    depth = 128 // element_bytes
    if rows <= 32:
        return MatrixTiles(rows, 64, 2 * depth, 4, 4)
    return MatrixTiles(rows, 128, depth, 8 if rows == 128 else 4, 3)


@triton.jit
def _count(counts, experts, pairs, CHUNK: tl.constexpr):
    """``counts`` [E]: pairs of every expert, one program each."""
    expert = tl.program_id(0)
    total = tl.zeros([CHUNK], tl.int32)
    for start in range(0, pairs, CHUNK):
        pair = start + tl.arange(0, CHUNK)
        total += (tl.load(experts + pair, mask=pair < pairs, other=-1) == expert).to(tl.int32)
    tl.store(counts + expert, tl.sum(total, 0))


@triton.jit
def _sort(
    order, expert_of_block, blocks, counts, experts, pairs,
    EXPERTS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """``order``: pairs of expert 0 in order, padded with ``pairs`` to whole blocks of ROWS, then those of expert 1, ...

    ``expert_of_block`` and ``blocks`` [1], their number, are written too. WIDTH: EXPERTS as a power of two.
    """
    expert = tl.program_id(0)
    index = tl.arange(0, WIDTH)
    needed = tl.cdiv(tl.load(counts + index, mask=index < EXPERTS, other=0), ROWS)
    first = tl.sum(tl.where(index < expert, needed, 0), 0)
    mine = tl.sum(tl.where(index == expert, needed, 0), 0)
    if expert == EXPERTS - 1:
        tl.store(blocks, first + mine)
    for block in range(first, first + mine):
        tl.store(expert_of_block + block, expert)
    written = first * ROWS
    for start in range(0, pairs, CHUNK):
        pair = start + tl.arange(0, CHUNK)
        match = tl.load(experts + pair, mask=pair < pairs, other=-1) == expert
        rank = tl.cumsum(match.to(tl.int32), 0)
        tl.store(order + written + rank - 1, pair, mask=match)
        written += tl.sum(match.to(tl.int32), 0)
    pad = written + tl.arange(0, ROWS)
    tl.store(order + pad, tl.full([ROWS], 0, tl.int32) + pairs, mask=pad < (first + mine) * ROWS)


@triton.jit
def _gate_up(
    hidden, x, weights, x_scale, h_scale, weight_scales, order, expert_of_block, blocks, pairs,
    K: tl.constexpr, N: tl.constexpr, TOP_K: tl.constexpr, MOST: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    DEPTH: tl.constexpr, QUANTISED: tl.constexpr, PRECISION: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """``hidden`` [pairs, N] = silu(x @ gate^T) * (x @ up^T); an expert's weights are gate [N, K], then up [N, K]."""
    block = tl.program_id(0) % MOST
    if block >= tl.load(blocks):
        return
    expert = tl.load(expert_of_block + block).to(tl.int64)
    pair = tl.load(order + block * ROWS + tl.arange(0, ROWS))
    token = (pair // TOP_K).to(tl.int64)
    column = tl.program_id(0) // MOST * COLS + tl.arange(0, COLS)
    inner = tl.arange(0, DEPTH)
    mine = (pair < pairs)[:, None]
    wanted = (column < N)[:, None]
    rows = x + token[:, None] * K + inner[None, :]
    gates = weights + (expert * 2 * N + column)[:, None] * K + inner[None, :]
    gate = tl.zeros([ROWS, COLS], tl.float32)
    up = tl.zeros([ROWS, COLS], tl.float32)
    for start in range(0, K, DEPTH):
        left = (start + inner < K)[None, :]
        a = tl.load(rows + start, mask=mine & left, other=0.0).to(DOT)
        g = tl.load(gates + start, mask=wanted & left, other=0.0).to(DOT)
        u = tl.load(gates + start + N * K, mask=wanted & left, other=0.0).to(DOT)
        gate = tl.dot(a, tl.trans(g), gate, input_precision=PRECISION)
        up = tl.dot(a, tl.trans(u), up, input_precision=PRECISION)
    if QUANTISED:
        scale = x_scale * tl.load(weight_scales + expert)
        gate = gate * scale
        up = up * scale
    result = gate / (1.0 + tl.exp(-gate)) * up
    if QUANTISED:
        result = tl.minimum(tl.maximum(result / h_scale, -E4M3_MAX), E4M3_MAX)
    where = hidden + pair.to(tl.int64)[:, None] * N + column[None, :]
    tl.store(where, result.to(hidden.dtype.element_ty), mask=mine & (column < N)[None, :])


@triton.jit
def _down(
    parts, hidden, weights, shares, h_scale, weight_scales, order, expert_of_block, blocks, pairs,
    K: tl.constexpr, N: tl.constexpr, MOST: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
    QUANTISED: tl.constexpr, PRECISION: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """``parts`` [pairs, K] = share of the pair's expert * hidden [pairs, N] @ down^T."""
    block = tl.program_id(0) % MOST
    if block >= tl.load(blocks):
        return
    expert = tl.load(expert_of_block + block).to(tl.int64)
    pair = tl.load(order + block * ROWS + tl.arange(0, ROWS))
    column = tl.program_id(0) // MOST * COLS + tl.arange(0, COLS)
    inner = tl.arange(0, DEPTH)
    mine = pair < pairs
    wanted = (column < K)[:, None]
    rows = hidden + pair.to(tl.int64)[:, None] * N + inner[None, :]
    tiles = weights + (expert * K + column)[:, None] * N + inner[None, :]
    acc = tl.zeros([ROWS, COLS], tl.float32)
    for start in range(0, N, DEPTH):
        left = (start + inner < N)[None, :]
        a = tl.load(rows + start, mask=mine[:, None] & left, other=0.0).to(DOT)
        w = tl.load(tiles + start, mask=wanted & left, other=0.0).to(DOT)
        acc = tl.dot(a, tl.trans(w), acc, input_precision=PRECISION)
    share = tl.load(shares + pair, mask=mine, other=0.0)
    if QUANTISED:
        share = share * h_scale * tl.load(weight_scales + expert)
    where = parts + pair.to(tl.int64)[:, None] * K + column[None, :]
    tl.store(where, (acc * share[:, None]).to(parts.dtype.element_ty), mask=mine[:, None] & (column < K)[None, :])


@triton.jit
def _sum(out, parts, K: tl.constexpr, TOP_K: tl.constexpr, COLS: tl.constexpr):
    """``out`` [m, K]: sum over a token's TOP_K parts."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLS + tl.arange(0, COLS)
    total = tl.zeros([COLS], tl.float32)
    for part in tl.static_range(TOP_K):
        total += tl.load(parts + (token * TOP_K + part) * K + column, mask=column < K, other=0.0).to(tl.float32)
    tl.store(out + token * K + column, total.to(out.dtype.element_ty), mask=column < K)


def prepare(inputs: Tensors, outputs: Tensors, plan: MatrixTiles | None = None) -> Launch:
    """Launch over the inputs of `draftcast.kernels.operators.linear`; ``plan`` may be given."""
    x, chosen, shares, out = inputs["x"], inputs["experts"], inputs["shares"], outputs["out"]
    gate_up, down = inputs["gate_up"], inputs["down"]
    experts, k, n = down.shape
    m, top_k = chosen.shape
    pairs = m * top_k
    plan = plan or tile_plan(pairs, min(experts, pairs), x.element_size())
    most = min(pairs, pairs // plan.rows + experts)  # Every expert that is visited may leave one block partly empty.
    counts, order, expert_of_block, blocks = (
        torch.empty(size, dtype=torch.int32, device=x.device) for size in (experts, most * plan.rows, most, 1)
    )
    hidden = torch.empty((pairs, n), dtype=x.dtype, device=x.device)
    parts = torch.empty((pairs, k), dtype=out.dtype, device=x.device)
    common = {
        "K": k, "N": n, "MOST": most, "ROWS": plan.rows, "DEPTH": plan.depth, "DOT": dot_type(x.element_size()),
        "QUANTISED": x.dtype == torch.float8_e4m3fn, "PRECISION": "ieee" if x.dtype == torch.float32 else "tf32",
        "num_warps": plan.num_warps, "num_stages": plan.num_stages,
    }  # fmt: skip
    half = plan.columns // 2
    width = min(triton.next_power_of_2(k), 1024)

    def launch() -> None:
        _count[(experts,)](counts, chosen, pairs, CHUNK)
        _sort[(experts,)](
            order, expert_of_block, blocks, counts, chosen, pairs,
            experts, triton.next_power_of_2(experts), plan.rows, CHUNK,
        )  # fmt: skip
        _gate_up[(most * triton.cdiv(n, half),)](
            hidden, x, gate_up, inputs["x_scale"], inputs["h_scale"], inputs["gate_up_scale"],
            order, expert_of_block, blocks, pairs, TOP_K=top_k, COLS=half, **common,
        )  # fmt: skip
        _down[(most * triton.cdiv(k, plan.columns),)](
            parts, hidden, down, shares, inputs["h_scale"], inputs["down_scale"],
            order, expert_of_block, blocks, pairs, COLS=plan.columns, **common,
        )  # fmt: skip
        _sum[(m, triton.cdiv(k, width))](out, parts, k, top_k, width)

    return launch
