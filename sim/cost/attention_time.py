"""Seconds of one kind of attention layers from sums over the batch: a measured grid, or a soft roofline.

Compiled half of `calibration/profile/interpolation`: where a grid was measured it is interpolated linearly in the
logs, at the mean request of the batch; beyond the grid, and for a batch whose sums differ from those of equal requests
(ragged prefill), the roofline's ratio stretches it. A sequence's KV counts once however many queries attend to it.
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
    ("low_rows", "f8"),
    ("high_rows", "f8"),
    ("window", "f8"),  # window of the draft's own layers (the target's sums come cut)
    ("layers", "i8"),  # 0: the model has no such layer
    ("grid", "i8"),  # where the kind's grid starts in StepCost.attention_grids, -1: none was measured
    ("is_prefill", "i8"),  # 1: the grid's axes are prefill's
    # Of decode's kinds, see `draftcast.sim.cost.attention_launch`.
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


class Sums(NamedTuple):
    """What attends to what over a batch, from `sums_of`: several kinds of layers attend over the same."""

    qkv: float  # (query, context token) pairs
    kv: float  # context tokens, new ones included
    rows: float  # queries
    seqs: float
    log_kv: float
    log_rows: float
    log_seqs: float


class Spot(NamedTuple):
    """Where a number stands on an axis, from `spot`."""

    low: int  # the nodes on either side, one node twice where it stands on that or beyond the axis
    up: int
    share: float  # of the way to the upper
    inside: bool


def flat_grid(grid: AttentionGrid, layers: int) -> FloatArray:
    """A grid as one array: three lengths, the logs of the axes, log seconds of ``layers`` layers, measured flags.

    Seconds never fall along an axis.
    """
    return flat_axes(grid, never_falling(grid.log_s) + math.log(layers), grid.measured)


def flat_axes(grid: AttentionGrid, *nodes: NDArray[Any]) -> FloatArray:
    """Lengths of a grid's axes, their logs, and numbers at its nodes, as one array."""
    lengths = [float(len(axis)) for axis in grid.axes]
    return np.concatenate([lengths, *(np.log(axis) for axis in grid.axes), *(each.ravel() for each in nodes)])


def stretch_contexts(flat: FloatArray, times: int) -> None:
    """Make a decode `flat_grid` that of ranks which hold one in ``times`` of the context's tokens."""
    rows, seqs, contexts = (int(length) for length in flat[:3])
    flat[3 + rows + seqs :][:contexts] += math.log(times)


@njit(cache=True, error_model="numpy", forceinline=True)
def sums_of(grids: FloatArray, qkv: float, kv: float, rows: float, seqs: float) -> Sums:
    """`Sums` of a batch; logs are a good part of what a step takes to compute, and zeros where no kind has a grid."""
    log_kv = log_rows = log_seqs = 0.0
    if grids.size > 0 and rows > 0.0:
        log_kv, log_rows = math.log(kv), math.log(rows)
        log_seqs = log_rows if rows == seqs else math.log(max(seqs, 1.0))
    return Sums(float(qkv), float(kv), float(rows), float(seqs), log_kv, log_rows, log_seqs)


@njit(cache=True, error_model="numpy", forceinline=True)
def spot(grids: FloatArray, start: int, size: int, log_value: float) -> Spot:
    """`Spot` of ``log_value`` on the axis of ``size`` nodes that starts at ``start``."""
    # Differences of logs may miss a node by some ulps: within NEAR of it they are taken for the node.
    if log_value <= grids[start] + NEAR:
        return Spot(0, 0, 0.0, log_value > grids[start] - NEAR)
    last = start + size - 1
    if log_value >= grids[last] - NEAR:
        return Spot(size - 1, size - 1, 0.0, log_value < grids[last] + NEAR)
    i = start
    while grids[i + 1] <= log_value + NEAR:
        i += 1
    above = log_value - grids[i]
    if above <= NEAR:
        return Spot(i - start, i - start, 0.0, True)
    return Spot(i - start, i + 1 - start, above / (grids[i + 1] - grids[i]), True)


@njit(cache=True, error_model="numpy", forceinline=True)
def _on_line(grids: FloatArray, start: int, z: Spot) -> float:
    low = grids[start + z.low]
    return float(low + z.share * (grids[start + z.up] - low))


@njit(cache=True, error_model="numpy", forceinline=True)
def on_plane(grids: FloatArray, start: int, nz: int, y: Spot, z: Spot) -> float:
    """What stands at the spots of two axes, the latter of ``nz`` nodes, interpolated linearly."""
    low = _on_line(grids, start + y.low * nz, z)
    return float(low + y.share * (_on_line(grids, start + y.up * nz, z) - low))


@njit(cache=True, error_model="numpy", forceinline=True)
def _in_grid(grids: FloatArray, start: int, ny: int, nz: int, x: Spot, y: Spot, z: Spot) -> float:
    low = on_plane(grids, start + x.low * ny * nz, nz, y, z)
    return float(low + x.share * (on_plane(grids, start + x.up * ny * nz, nz, y, z) - low))


@njit(cache=True, error_model="numpy")
def _roofline(kind: Any, qkv: float, kv: float, rows: float) -> float:
    return float(kind.t0_s + soft_max_scalar(qkv * kind.qkv_s, kv * kind.kv_s + rows * kind.row_s, kind.p))


@njit(cache=True, error_model="numpy")
def _grid_seconds(kind: Any, grids: FloatArray, batch: Sums) -> tuple[float, bool]:
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
def attention_seconds(kind: Any, grids: FloatArray, batch: Sums, times: float, out: Any) -> float:
    """``times`` x seconds of one kind of attention layers, also added to ``out.by_origin_s``.

    No time passes when the model has no such layer or no row attends. ``kind`` and ``grids`` as in `StepCost`.
    """
    if kind.layers == 0.0 or batch.rows <= 0.0:
        return 0.0
    rows, seqs = batch.rows, batch.seqs
    if kind.window > 0.0 and batch.kv > seqs * kind.window:
        # The draft's sums are not cut by the engine; capping the mean bounds the true sum from above.
        kv = seqs * kind.window
        qkv = batch.qkv * (kv / batch.kv)
        batch = Sums(qkv, kv, rows, seqs, math.log(kv), batch.log_rows, batch.log_seqs)
    if kind.grid >= 0.0:
        seconds, measured = _grid_seconds(kind, grids, batch)
        origin = INTERPOLATED if measured else EXTRAPOLATED
    else:
        seconds = _roofline(kind, batch.qkv, batch.kv, rows)
        origin = int(kind.origin)
        if rows < kind.low_rows or rows > kind.high_rows:
            origin = EXTRAPOLATED
    seconds *= times
    out.by_origin_s[origin] += seconds
    return float(seconds)
