"""Seconds of attention from sums over the batch: of one kind of layers, and of prompts and decodes in one launch.

Where a kind of layers was measured, its grid is interpolated linearly in the logs at the batch's mean request, and the
ratio of a soft roofline stretches it beyond the grid and for unequal requests (ragged prefill). Where not, the roofline
alone gives the time. A sequence's KV counts once however many queries attend to it.

What an engine launches for a batch depends on its kernel (`HardwareSpec.attention_kernel`):

* ``flash_attention_2``: a batch in which any sequence has more than one query (a prompt, a verified draft) is one
  launch of tiles of 64 queries of one head by 128 keys: a decoding sequence fills one row of 64, the heads of a group
  do not share their keys, and contexts are not split over multiprocessors. A launch of single queries packs the heads
  of a group into a tile and splits contexts, unless the tiles fill 0.8 of the device's places, two a multiprocessor.
  Sources: vllm-project/flash-attention, ``csrc/flash_attn``: ``mha_varlen_fwd`` (seqlenq_ngroups_swapped,
  set_params_splitkv, num_splits_heuristic), ``flash_fwd_launch_template.h`` (run_mha_fwd_splitkv_dispatch).
* ``flash_attention_3``: one launch too, but a group's heads share a tile of 128 rows and contexts are split by their
  length, so unequal ones balance (``hopper/heuristics.h``, ``tile_scheduler.hpp``).
* ``separate``: prompts and decodes are two launches, and contexts are split (FlashInfer, MLA, ROCm).

Tiles run at the rate that prompts reach. A launch cannot end before its longest context, whose tiles run on when the
others are done (`TAIL`, the one fitted number). Measured launches correct the formulas by a ratio.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from draftcast.calibration.profile.interpolation import AttentionGrid, never_falling
from draftcast.calibration.profile.roofline import Origin, soft_max_scalar
from draftcast.kernels.arrays import FloatArray, record_type

# Rows of StepCost.attention, one per kind of attention layer: the target's, the draft's and linear attention's.
DECODE, DECODE_WINDOW, PREFILL, PREFILL_WINDOW = range(4)
DRAFT_DECODE, DRAFT_DECODE_WINDOW, DRAFT_PREFILL, DRAFT_PREFILL_WINDOW = range(4, 8)
LINEAR_DECODE, LINEAR_PREFILL, N_KINDS = range(8, 11)

# One kind. Seconds are already those of all layers of the kind. Linear attention has no context: every sequence counts
# as one context token (its state), every row as one pair.
ATTENTION = record_type(
    ("t0_s", "f8"),
    ("qkv_s", "f8"),  # compute seconds per (query, context token) pair
    ("kv_s", "f8"),  # memory seconds per context token, read once however many queries attend to it
    ("row_s", "f8"),  # memory seconds per row (queries in, attention out)
    ("p", "f8"),
    ("origin", "i8"),
    ("window", "f8"),  # window of the draft's own layers (the target's sums come cut)
    ("layers", "i8"),  # 0: the model has no such layer
    ("grid", "i8"),  # where the kind's grid starts in StepCost.attention_grids, -1: none was measured
    ("is_prefill", "i8"),  # 1: the grid's axes are prefill's
    # Of decode's kinds, see `launch_seconds`.
    ("tile_kv_s", "f8"),  # in a launch shared with prompts, seconds per context token; 0: a launch of its own
    ("serial_kv_s", "f8"),  # seconds per context token of one tile that has a multiprocessor to itself
    ("decode_tail_kv_s", "f8"),  # seconds per token by which the longest context exceeds the mean, decodes alone
    ("shared_tail_kv_s", "f8"),  # the same in a shared launch
    ("split_seqs", "f8"),  # sequences from which contexts are not split over multiprocessors
    ("verify_measured", "i8"),  # 1: its grid has measured times of several queries a sequence
    ("launch_grid", "i8"),  # where the measured launches start in StepCost.attention_grids, -1: none
)

NEAR = 1e-9  # logs that differ by less are one node
EXTRAPOLATED = int(Origin.EXTRAPOLATED)
INTERPOLATED = int(Origin.INTERPOLATED)

TILE_ROWS = {"flash_attention_2": 64.0, "flash_attention_3": 128.0}
TILE_KEYS = 128.0
"""Keys by which a context is rounded up: half of them on average, and about as much to start and end a tile."""
PLACES, FULL = 2.0, 0.8
"""Tiles that run on a multiprocessor at once, and the share of all places from which contexts are not split."""
TAIL = 0.5
"""Share of the time that a tile takes alone for what the longest context has beyond the mean. `measured_launches` finds
0.46 to 0.69 in the launches over unequal contexts of an RTX 4090, 0.37 to 0.41 in those of RTX PRO 6000; a device whose
launches were not timed takes the middle. Provisional: two devices."""
PREFIX_OFFSET = 16.0  # added to a prompt's earlier tokens on their axis, whose logs are taken


class KvSums(NamedTuple):
    """What attends to what over a batch, from `sums_of`: several kinds of layers attend over the same."""

    qkv: float  # (query, context token) pairs
    kv: float  # context tokens, new ones included
    rows: float  # queries
    seqs: float
    log_kv: float
    log_rows: float
    log_seqs: float


class Position(NamedTuple):
    """Where a number stands on an axis, from `spot`."""

    low: int  # the nodes on either side, one node twice where it stands on that or beyond the axis
    up: int
    share: float  # of the way to the upper
    inside: bool


def flat_grid(grid: AttentionGrid, layers: int) -> FloatArray:
    """Of ``layers`` layers, as one array: lengths, logs of the axes, log seconds (never falling), measured flags."""
    return flat_axes(grid, never_falling(grid.log_s) + math.log(layers), grid.measured)


def flat_axes(grid: AttentionGrid, *nodes: NDArray[Any]) -> FloatArray:
    """Lengths of a grid's axes, their logs, and numbers at its nodes, as one array."""
    lengths = [float(len(axis)) for axis in grid.axes]
    return np.concatenate([lengths, *(np.log(axis) for axis in grid.axes), *(numbers.ravel() for numbers in nodes)])


def stretch_contexts(flat: FloatArray, times: int) -> None:
    """Make a decode `flat_grid` that of ranks which hold one in ``times`` of the context's tokens."""
    rows, seqs, contexts = (int(length) for length in flat[:3])
    flat[3 + rows + seqs :][:contexts] += math.log(times)


@njit(cache=True, error_model="numpy", forceinline=True)
def sums_of(grids: FloatArray, qkv: float, kv: float, rows: float, seqs: float) -> KvSums:
    """`KvSums` of a batch; logs are a good part of what a step takes to compute, and zeros where no kind has a grid."""
    log_kv = log_rows = log_seqs = 0.0
    if grids.size > 0 and rows > 0.0:
        log_kv, log_rows = math.log(kv), math.log(rows)
        log_seqs = log_rows if rows == seqs else math.log(max(seqs, 1.0))
    return KvSums(float(qkv), float(kv), float(rows), float(seqs), log_kv, log_rows, log_seqs)


@njit(cache=True, error_model="numpy", forceinline=True)
def spot(grids: FloatArray, start: int, size: int, log_value: float) -> Position:
    """`Position` of ``log_value`` on the axis of ``size`` nodes that starts at ``start``."""
    # Differences of logs may miss a node by some ulps: within NEAR of it they are taken for the node.
    if log_value <= grids[start] + NEAR:
        return Position(0, 0, 0.0, log_value > grids[start] - NEAR)
    last = start + size - 1
    if log_value >= grids[last] - NEAR:
        return Position(size - 1, size - 1, 0.0, log_value < grids[last] + NEAR)
    i = start
    while grids[i + 1] <= log_value + NEAR:
        i += 1
    above = log_value - grids[i]
    if above <= NEAR:
        return Position(i - start, i - start, 0.0, True)
    return Position(i - start, i + 1 - start, above / (grids[i + 1] - grids[i]), True)


@njit(cache=True, error_model="numpy", forceinline=True)
def _on_line(grids: FloatArray, start: int, z: Position) -> float:
    low = grids[start + z.low]
    return float(low + z.share * (grids[start + z.up] - low))


@njit(cache=True, error_model="numpy", forceinline=True)
def on_plane(grids: FloatArray, start: int, nz: int, y: Position, z: Position) -> float:
    """What stands at the spots of two axes, the latter of ``nz`` nodes, interpolated linearly."""
    low = _on_line(grids, start + y.low * nz, z)
    return float(low + y.share * (_on_line(grids, start + y.up * nz, z) - low))


@njit(cache=True, error_model="numpy", forceinline=True)
def _in_grid(grids: FloatArray, start: int, ny: int, nz: int, x: Position, y: Position, z: Position) -> float:
    low = on_plane(grids, start + x.low * ny * nz, nz, y, z)
    return float(low + x.share * (on_plane(grids, start + x.up * ny * nz, nz, y, z) - low))


@njit(cache=True, error_model="numpy")
def _roofline(kind: Any, qkv: float, kv: float, rows: float) -> float:
    return float(kind.t0_s + soft_max_scalar(qkv * kind.qkv_s, kv * kind.kv_s + rows * kind.row_s, kind.p))


@njit(cache=True, error_model="numpy")
def _grid_seconds(kind: Any, grids: FloatArray, batch: KvSums) -> tuple[float, bool]:
    """Seconds from the kind's grid and whether they lie between measured nodes."""
    prefill = kind.is_prefill > 0.0
    log_per_seq = batch.log_rows - batch.log_seqs
    at = int(kind.grid)
    nx, ny, nz = int(grids[at]), int(grids[at + 1]), int(grids[at + 2])
    axis_x = at + 3
    axis_y = axis_x + nx
    axis_z = axis_y + ny
    nodes = axis_z + nz
    flags = nodes + nx * ny * nz
    on_x = spot(grids, axis_x, nx, batch.log_kv - batch.log_rows if prefill else log_per_seq)
    on_y = spot(grids, axis_y, ny, batch.log_seqs)
    on_z = spot(grids, axis_z, nz, log_per_seq if prefill else batch.log_kv - batch.log_seqs)
    seconds = math.exp(_in_grid(grids, nodes, ny, nz, on_x, on_y, on_z))
    inside = on_x.inside and on_y.inside and on_z.inside
    measured = inside and _in_grid(grids, flags, ny, nz, on_x, on_y, on_z) == 1.0  # all of the nodes around
    if not inside or prefill:
        seqs = max(batch.seqs, 1.0)
        x = batch.kv / batch.rows if prefill else batch.rows / seqs
        z = batch.rows / seqs if prefill else batch.kv / seqs
        # Off an axis, the nearest node is where the grid was read.
        if not on_x.inside:
            x = math.exp(grids[axis_x + on_x.low])
        if not on_y.inside:
            seqs = math.exp(grids[axis_y + on_y.low])
        if not on_z.inside:
            z = math.exp(grids[axis_z + on_z.low])
        if prefill:
            equal_qkv, equal_kv, equal_rows = seqs * z * (x * z - 0.5 * (z - 1.0)), seqs * x * z, seqs * z
        else:
            equal_qkv, equal_kv, equal_rows = seqs * x * z, seqs * z, seqs * x
        if equal_qkv != batch.qkv or equal_kv != batch.kv or equal_rows != batch.rows:  # a lone prompt is its own mean
            of_equal = _roofline(kind, equal_qkv, equal_kv, equal_rows)
            seconds *= _roofline(kind, batch.qkv, batch.kv, batch.rows) / of_equal
    return seconds, measured


@njit(cache=True, error_model="numpy")
def attention_seconds(kind: Any, grids: FloatArray, batch: KvSums, times: float, out: Any) -> float:
    """``times`` x seconds of one kind of attention layers, also added to ``out.by_origin_s``; 0 where no row attends.

    ``kind`` and ``grids`` as in `StepCost`.
    """
    if kind.layers == 0.0 or batch.rows <= 0.0:
        return 0.0
    if kind.window > 0.0 and batch.kv > batch.seqs * kind.window:
        # The draft's sums are not cut by the engine; capping the mean bounds the true sum from above.
        kv = batch.seqs * kind.window
        qkv = batch.qkv * (kv / batch.kv)
        batch = KvSums(qkv, kv, batch.rows, batch.seqs, math.log(kv), batch.log_rows, batch.log_seqs)
    if kind.grid >= 0.0:
        seconds, measured = _grid_seconds(kind, grids, batch)
        origin = INTERPOLATED if measured else EXTRAPOLATED
    else:
        seconds = _roofline(kind, batch.qkv, batch.kv, batch.rows)
        origin = int(kind.origin)
    seconds *= times
    out.by_origin_s[origin] += seconds
    return float(seconds)


def fill_launch(kind: Any, kernel: str, multiprocessors: int, heads: int, kv_heads: int, pair_s: float) -> None:
    """Fill the fields of a decode kind, a record of `ATTENTION`, that say what a launch shared with prompts takes.

    ``kernel``: of `draftcast.calibration.profile.hardware.ATTENTION_KERNELS`; ``heads``, ``kv_heads``: of the rank;
    ``pair_s``: seconds of a (query, context token) pair of all heads at the rate that prompts reach.
    """
    kind["launch_grid"] = -1
    if kernel not in TILE_ROWS:
        return
    rows = TILE_ROWS[kernel]
    kind["split_seqs"] = math.inf
    if kernel == "flash_attention_3":
        kind["tile_kv_s"] = pair_s * rows / (heads / kv_heads)
        return
    kind["tile_kv_s"] = pair_s * rows
    kind["serial_kv_s"] = kind["tile_kv_s"] * multiprocessors / heads
    kind["decode_tail_kv_s"] = kind["shared_tail_kv_s"] = TAIL * kind["serial_kv_s"]
    kind["split_seqs"] = FULL * PLACES * multiprocessors / kv_heads


@njit(cache=True, error_model="numpy")
def shared_seconds(
    tile_kv_s: float, serial_kv_s: float, prefill_s: float, decode_s: float, seqs: float, kv: float
) -> float:
    """Seconds of one launch over prompts and ``seqs`` decodes of equal contexts, ``kv`` tokens together."""
    rounded = kv + TILE_KEYS * seqs
    together = prefill_s + max(tile_kv_s * rounded, decode_s)
    return max(together, serial_kv_s * rounded / seqs)


def measured_launches(kind: Any, rows: FloatArray, prefill: AttentionGrid, decode: AttentionGrid) -> FloatArray | None:
    """Grid of the measured launches as ratios to `shared_seconds`, flat; None where all were over unequal contexts.

    Axes: the prompt's chunk, its earlier tokens + `PREFIX_OFFSET`, decoding sequences, their context. The tails of
    ``kind`` are taken from launches over unequal contexts. ``rows``: of `MeasuredTimes.launches`.
    """
    m, k, longest, batch, context, seconds = rows.T
    of_prompt = m > 0
    prefill_s = np.zeros(len(rows))
    chunk, tokens = m[of_prompt], k[of_prompt]
    prefill_s[of_prompt] = np.exp(prefill.log_seconds(tokens / chunk, np.ones(len(chunk)), chunk))
    decode_s = np.exp(decode.log_seconds(np.ones(len(rows)), batch, context))
    tile, serial = kind["tile_kv_s"] / kind["layers"], kind["serial_kv_s"] / kind["layers"]
    shared_s = np.vectorize(shared_seconds)(tile, serial, prefill_s, decode_s, batch, batch * context)
    modelled = np.where(of_prompt, shared_s, decode_s)
    points = np.stack([m, k - m + PREFIX_OFFSET, batch, context], axis=1)
    equal = of_prompt & (longest == context)
    flat = None
    if equal.any():
        grid = AttentionGrid.from_points(points[equal], seconds[equal] / modelled[equal], lambda m, *_: np.ones_like(m))
        flat = flat_axes(grid, grid.log_s)
        modelled[of_prompt] *= np.exp(grid.log_seconds(*points[of_prompt].T))
    unequal = longest > context
    beyond_s = (seconds - modelled)[unequal] / (longest - context)[unequal] * kind["layers"]
    unsplit = (batch >= kind["split_seqs"])[unequal]
    for name, chosen in (("shared_tail_kv_s", of_prompt[unequal]), ("decode_tail_kv_s", ~of_prompt[unequal] & unsplit)):
        if chosen.any():
            kind[name] = max(float(np.median(beyond_s[chosen])), 0.0)
    return flat


@njit(cache=True, error_model="numpy")
def _log_ratio(grids: FloatArray, start: int, m: float, prefix: float, seqs: float, context: float) -> float:
    """Interpolated linearly between the 16 nodes around the point, clamped to the grid."""
    nh, ni, nj, nk = int(grids[start]), int(grids[start + 1]), int(grids[start + 2]), int(grids[start + 3])
    axis = start + 4
    h = spot(grids, axis, nh, math.log(m))
    i = spot(grids, axis + nh, ni, math.log(prefix + PREFIX_OFFSET))
    j = spot(grids, axis + nh + ni, nj, math.log(seqs))
    k = spot(grids, axis + nh + ni + nj, nk, math.log(context))
    nodes = axis + nh + ni + nj + nk
    total = 0.0
    for a, weight_a in ((h.low, 1.0 - h.share), (h.up, h.share)):
        for b, weight_b in ((i.low, 1.0 - i.share), (i.up, i.share)):
            total += weight_a * weight_b * on_plane(grids, nodes + (a * ni + b) * nj * nk, nk, j, k)
    return total


@njit(cache=True, error_model="numpy")
def launch_seconds(
    kind: Any, grids: FloatArray, decode_s: float, decode: KvSums, longest: float, prefill_s: float, prompts: KvSums
) -> float:
    """Seconds of the attention of one kind of layers in a step, from those of its decodes and prompts launched apart.

    ``longest``: context tokens of the longest decoding sequence.
    """
    apart = decode_s + prefill_s
    if decode.seqs <= 0.0 or kind.layers == 0.0:
        return apart
    mean = decode.kv / decode.seqs
    beyond = max(longest - mean, 0.0)
    chunk = prompts.rows
    if chunk <= 0.0 and decode.rows <= decode.seqs:
        return apart + (kind.decode_tail_kv_s * beyond if decode.seqs >= kind.split_seqs else 0.0)
    if kind.tile_kv_s == 0.0 or (chunk <= 0.0 and kind.verify_measured):
        return apart
    shared = shared_seconds(kind.tile_kv_s, kind.serial_kv_s, prefill_s, decode_s, decode.seqs, decode.kv)
    if kind.launch_grid >= 0 and chunk > 0.0:
        prefix = max(prompts.qkv / chunk - 0.5 * (chunk + 1.0), 0.0)
        shared *= math.exp(_log_ratio(grids, int(kind.launch_grid), chunk, prefix, decode.seqs, mean))
    # More rows never make a step faster, whatever a table says.
    return float(max(shared + kind.shared_tail_kv_s * beyond, decode_s, prefill_s))
