"""Paged attention in Triton: decode, verify, tree verify and prefill are one kernel.

The rows of a program are the queries of one sequence times the heads that share a KV head (GQA), so every KV tile is
read from the paged cache once for all of them: up to 128 rows (64 at head_dim 256) by construction; more rows (prefill,
or q * group above that) are row tiles that run side by side and find the KV in the L2 cache. The softmax is online
(FlashAttention-2, arXiv 2307.08691). When sequences x KV heads do not fill the device, the KV is split too
(flash-decoding): each program leaves a normalised partial output and the logarithm of its weight, and a second kernel
adds them up. Lengths are read on the device, so a captured CUDA graph stays valid when they change.
"""

import math
from typing import NamedTuple

import triton
import triton.language as tl

from draftcast.kernels.extras import torch
from draftcast.kernels.operators.registry import Launch, Tensors
from draftcast.kernels.operators.triton.device import dot_type, fewest_splits, processors

LOG2_E = tl.constexpr(1.4426950408889634)
MIN_SPLIT_TOKENS = 128
"""A split costs its program's start and one partial output; below this many tokens that exceeds what it saves."""
MAX_SPLITS = 128
RESIDENT = 2
"""Programs that share a multiprocessor: what the shared memory of `tile_plan`'s tiles allows on 100 KiB and more."""


class AttentionTiles(NamedTuple):
    """Shape of a program."""

    rows: int  # query rows (queries x heads of a KV head), 16 or more as the tensor cores want
    keys: int  # tokens of a KV tile
    num_warps: int
    num_stages: int


def tile_plan(rows: int, head_dim: int, kv_bytes: int) -> AttentionTiles:
    """Tiles for ``rows`` query rows of a sequence and KV head, of a cache of ``kv_bytes`` a number.

    Few rows are memory-bound: what counts is bytes in flight, a K and a V tile of 8,192 numbers each, two (bf16) or
    three (fp8) of them while one is worked on, two programs or more to a multiprocessor of 227 KiB shared memory. Many
    rows are compute-bound: 128 over eight warps is two warp groups of 64, the tensor cores' unit. Registers and shared
    memory were checked by compiling for sm_90 (no spills in bf16 and fp8); fp32 has no tensor cores and fewer rows.
    """
    most = 32 if kv_bytes == 4 else 128 if head_dim <= 128 else 64
    tiles = math.ceil(rows / most)
    block = max(16, triton.next_power_of_2(math.ceil(rows / tiles)))
    keys = min(8192 // head_dim, 64 if block == 128 else 128) // (2 if kv_bytes == 4 else 1)
    warps = 8 if block == 128 or head_dim == 256 else 4
    return AttentionTiles(block, max(keys, 16), warps, {1: 4, 2: 3, 4: 2}[kv_bytes])


def split_count(programs: int, tokens: int, processors: int) -> int:
    """Splits of the KV: the fewest within a tenth of the least time.

    Time goes as rounds of resident programs times the share of the KV each reads; one split more adds a hundredth for
    the second kernel.
    """
    slots = processors * RESIDENT
    most = min(max(tokens // MIN_SPLIT_TOKENS, 1), MAX_SPLITS)
    time = [
        math.ceil(programs * splits / slots) / splits + 0.01 * splits * programs / slots
        for splits in range(1, most + 1)
    ]
    return fewest_splits(time)


@triton.jit
def _tile(
    acc, norm, top, query, key_cache, value_cache, table, low, high, prefix, position, ancestors, depths, window,
    qk_scale, cache_stride, head_offset,
    HEAD_DIM: tl.constexpr, PAGE: tl.constexpr, KEYS: tl.constexpr, TREE: tl.constexpr, WINDOW: tl.constexpr,
    MASKED: tl.constexpr, QUERIES: tl.constexpr, PRECISION: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Online softmax of ``query`` [rows, d] over the keys low ... high in tiles."""
    column = tl.arange(0, HEAD_DIM)
    # The blocks of a tile are looked up one tile ahead, so that its loads wait for nothing.
    ahead = low + tl.arange(0, KEYS)
    block = tl.load(table + ahead // PAGE, mask=ahead < high, other=0)
    for start in range(low, high, KEYS):
        slot = start + tl.arange(0, KEYS)
        inside = slot < high
        row = (block.to(tl.int64) * PAGE + slot % PAGE) * cache_stride + head_offset
        ahead = slot + KEYS
        block = tl.load(table + ahead // PAGE, mask=ahead < high, other=0)
        where = row[:, None] + column[None, :]
        if MASKED:
            # Slots past the end may hold NaN, and 0 * NaN is NaN: they are never loaded.
            key = tl.load(key_cache + where, mask=inside[:, None], other=0.0)
            value = tl.load(value_cache + where, mask=inside[:, None], other=0.0)
        else:
            key = tl.load(key_cache + where)
            value = tl.load(value_cache + where)
        scores = tl.dot(query.to(DOT), tl.trans(key.to(query.dtype).to(DOT)), input_precision=PRECISION) * qk_scale
        if MASKED:
            seen = inside[None, :]
            new = slot - prefix
            if TREE:
                bit = tl.minimum(tl.maximum(new, 0), QUERIES - 1).to(tl.int64)
                seen = seen & ((new < 0)[None, :] | (((ancestors[:, None] >> bit[None, :]) & 1) == 1))
            else:
                seen = seen & (slot[None, :] <= position[:, None])
            if WINDOW:
                at = slot
                if TREE:
                    depth = tl.load(depths + new, mask=(new >= 0) & inside, other=0)
                    at = tl.where(new >= 0, prefix + depth, slot)
                seen = seen & (position[:, None] - at[None, :] < window)
            scores = tl.where(seen, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        # A row that has seen nothing yet: -inf minus -inf is NaN.
        base = tl.where(new_top == float("-inf"), 0.0, new_top) if MASKED else new_top
        weight = tl.exp2(scores - base[:, None])
        fade = tl.exp2(top - base)
        norm = norm * fade + tl.sum(weight, 1)
        acc = acc * fade[:, None]
        share = weight.to(query.dtype).to(DOT)
        acc = tl.dot(share, value.to(query.dtype).to(DOT), acc, input_precision=PRECISION)
        top = new_top
    return acc, norm, top


@triton.jit
def _attend(
    out, weights, query, key_cache, value_cache, block_tables, context_lens, tree, depths,
    queries, width, window, qk_scale, v_scale,
    HEAD_DIM: tl.constexpr, GROUP: tl.constexpr, KV_HEADS: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr,
    KEYS: tl.constexpr, SPLITS: tl.constexpr, TREE: tl.constexpr, WINDOW: tl.constexpr, QUERIES: tl.constexpr,
    UNMASKED: tl.constexpr, PRECISION: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """One program: a row tile of a sequence and KV head, over one split of the KV.

    SPLITS == 1: ``out`` [batch, queries, heads, d] is written. Otherwise ``out`` [batch, queries, heads, SPLITS, d]
    gets the normalised output over the split and ``weights`` [batch, queries, heads, SPLITS] the log2 of its softmax
    sum. UNMASKED: tiles that all rows see go through a loop without masks, which pays where arithmetic counts; between
    the loops the loads in flight run dry.
    """
    tiles = tl.num_programs(0) // KV_HEADS
    # Longest tiles (causal) first; those of one KV head next to each other, for the L2 cache.
    tile = tiles - 1 - tl.program_id(0) % tiles
    kv_head = tl.program_id(0) // tiles
    split = tl.program_id(1)
    sequence = tl.program_id(2)
    length = tl.load(context_lens + sequence)
    prefix = length - queries

    row = tile * ROWS + tl.arange(0, ROWS)
    token = row // GROUP
    head = kv_head * GROUP + row % GROUP
    valid = token < queries
    first = tile * ROWS // GROUP
    last = tl.minimum((tile * ROWS + ROWS - 1) // GROUP, queries - 1)
    position = prefix + token
    ancestors = position.to(tl.int64)
    if TREE:
        ancestors = tl.load(tree + sequence * queries + token, mask=valid, other=0)
        position = prefix + tl.load(depths + sequence * queries + token, mask=valid, other=0)
        first = 0
        last = queries - 1
    # Keys that any row of the tile sees, and those that all rows see.
    begin = 0
    if WINDOW:
        begin = tl.maximum(prefix + first - window + 1, 0) // PAGE * PAGE
    end = prefix + last + 1
    common = prefix if TREE else prefix + first + 1

    step = tl.cdiv(tl.cdiv(end - begin, KEYS), SPLITS) * KEYS
    low = begin + split * step
    high = tl.minimum(low + step, end)
    index = (sequence * queries + token) * (KV_HEADS * GROUP) + head
    if low >= high:
        tl.store(weights + index * SPLITS + split, tl.full([ROWS], float("-inf"), tl.float32), mask=valid)
        return

    column = tl.arange(0, HEAD_DIM)
    address = index.to(tl.int64)[:, None] * HEAD_DIM
    rows_in = tl.load(query + address + column[None, :], mask=valid[:, None], other=0.0)
    table = block_tables + sequence.to(tl.int64) * width
    acc = tl.zeros([ROWS, HEAD_DIM], tl.float32)
    norm = tl.zeros([ROWS], tl.float32)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    middle = low
    tree_depths = depths + sequence * queries
    if UNMASKED:
        middle = low + tl.maximum(tl.minimum(common, high) - low, 0) // KEYS * KEYS
        acc, norm, top = _tile(
            acc, norm, top, rows_in, key_cache, value_cache, table, low, middle, prefix, position, ancestors,
            tree_depths, window, qk_scale, KV_HEADS * HEAD_DIM, kv_head * HEAD_DIM,
            HEAD_DIM, PAGE, KEYS, TREE, WINDOW, False, QUERIES, PRECISION, DOT,
        )  # fmt: skip
    acc, norm, top = _tile(
        acc, norm, top, rows_in, key_cache, value_cache, table, middle, high, prefix, position, ancestors,
        tree_depths, window, qk_scale, KV_HEADS * HEAD_DIM, kv_head * HEAD_DIM,
        HEAD_DIM, PAGE, KEYS, TREE, WINDOW, True, QUERIES, PRECISION, DOT,
    )  # fmt: skip
    result = acc * (v_scale / tl.where(norm == 0.0, 1.0, norm))[:, None]
    if SPLITS == 1:
        tl.store(out + address + column[None, :], result.to(out.dtype.element_ty), mask=valid[:, None])
    else:
        address = (index.to(tl.int64) * SPLITS + split)[:, None] * HEAD_DIM
        tl.store(out + address + column[None, :], result, mask=valid[:, None])
        tl.store(weights + index * SPLITS + split, top + tl.log2(tl.where(norm == 0.0, 1.0, norm)), mask=valid)


@triton.jit
def _combine(out, parts, weights, SPLITS: tl.constexpr, CHUNK: tl.constexpr, HEAD_DIM: tl.constexpr):
    """One output row from its SPLITS partial rows, weighted by two to the power of ``weights``."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, HEAD_DIM)
    acc = tl.zeros([HEAD_DIM], tl.float32)
    norm = 0.0
    top = float("-inf")
    for start in range(0, SPLITS, CHUNK):
        split = start + tl.arange(0, CHUNK)
        log_weight = tl.load(weights + row * SPLITS + split, mask=split < SPLITS, other=float("-inf"))
        new_top = tl.maximum(top, tl.max(log_weight, 0))
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        share = tl.exp2(log_weight - base)
        fade = tl.exp2(top - base)
        wrote = (log_weight > float("-inf"))[:, None]  # An empty split wrote no partial row.
        part = tl.load(parts + (row * SPLITS + split)[:, None] * HEAD_DIM + column[None, :], mask=wrote, other=0.0)
        acc = acc * fade + tl.sum(part * share[:, None], 0)
        norm = norm * fade + tl.sum(share, 0)
        top = new_top
    tl.store(out + row * HEAD_DIM + column, (acc / norm).to(out.dtype.element_ty))


def prepare(inputs: Tensors, outputs: Tensors, splits: int | None = None, plan: AttentionTiles | None = None) -> Launch:
    """Launch over `draftcast.kernels.operators.paged.draw_inputs`; ``splits`` of the KV and ``plan`` may be given."""
    query, cache, tables, tree = inputs["query"], inputs["key_cache"], inputs["block_tables"], inputs["tree"]
    batch, q, heads, head_dim = query.shape
    page, kv_heads = cache.shape[1:3]
    plan = plan or tile_plan(q * heads // kv_heads, head_dim, cache.element_size())
    tiles = math.ceil(q * heads // kv_heads / plan.rows)
    window, tokens = inputs["window"], tables.shape[1] * page
    seen = min(tokens, window + q) if window else tokens
    splits = splits or split_count(batch * kv_heads * tiles, seen, processors(query))
    out = outputs["out"]
    parts, weights = out, out  # not touched when nothing is split
    if splits > 1:
        parts = torch.empty((*out.shape[:3], splits, head_dim), dtype=torch.float32, device=out.device)
        weights = torch.empty((*out.shape[:3], splits), dtype=torch.float32, device=out.device)
    none = inputs["context_lens"]  # stands for pointers that are not read
    arguments = (
        parts, weights, query, cache, inputs["value_cache"], tables, inputs["context_lens"],
        none if tree is None else tree, none if tree is None else inputs["depths"],
        q, tables.shape[1], window, inputs["scale"] * inputs["k_scale"] * LOG2_E.value, inputs["v_scale"],
    )  # fmt: skip

    def launch() -> None:
        _attend[(tiles * kv_heads, splits, batch)](
            *arguments, HEAD_DIM=head_dim, GROUP=heads // kv_heads, KV_HEADS=kv_heads, PAGE=page,
            ROWS=plan.rows, KEYS=plan.keys, SPLITS=splits, TREE=tree is not None, WINDOW=window > 0,
            QUERIES=q if tree is not None else 1, UNMASKED=plan.rows >= 128 and not window,
            PRECISION="ieee" if query.dtype == torch.float32 else "tf32", DOT=dot_type(query.element_size()),
            num_warps=plan.num_warps, num_stages=plan.num_stages,
        )  # fmt: skip
        if splits > 1:
            warps = 2 if head_dim <= 128 else 4
            _combine[(batch * q * heads,)](out, parts, weights, splits, 16, head_dim, num_warps=warps)

    return launch
