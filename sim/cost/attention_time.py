"""Seconds of one kind of attention layers from sums over the batch: a measured grid, or a soft roofline.

Compiled half of `calibration/profile/interpolation`: where a grid was measured it is interpolated linearly in the
logs, at the mean request of the batch; beyond the grid, and for a batch whose sums differ from those of equal requests
(ragged prefill), the roofline's ratio stretches it. A sequence's KV counts once however many queries attend to it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from draftcast.calibration.profile.interpolation import AttentionGrid, never_falling
from draftcast.calibration.profile.roofline import Origin, soft_max_scalar
from draftcast.kernels.arrays import FloatArray

Logs = tuple[float, float, float]
"""What `log_sizes` gives: logs of context tokens, rows and sequences."""

# Rows of StepCost.attention, one per kind of attention layer.
(
    DECODE,
    DECODE_WINDOW,
    PREFILL,
    PREFILL_WINDOW,
    DRAFT_DECODE,
    DRAFT_DECODE_WINDOW,
    DRAFT_PREFILL,
    DRAFT_PREFILL_WINDOW,
    LINEAR_DECODE,
    LINEAR_PREFILL,
    N_KINDS,
) = range(11)

# One kind. Seconds are already those of all layers of the kind. Linear attention has no context: every sequence counts
# as one context token (its state), every row as one pair.
ATTENTION = np.dtype(
    [
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
    ],
    align=True,
)

NEAR = 1e-9
"""Logs that differ by less are one node."""
EXTRAPOLATED = int(Origin.EXTRAPOLATED)
INTERPOLATED = int(Origin.INTERPOLATED)


def flat_grid(grid: AttentionGrid, layers: int) -> FloatArray:
    """A grid as one array: three lengths, the logs of the axes, log seconds of ``layers`` layers, measured flags.

    Seconds never fall along an axis.
    """
    return np.concatenate(
        [
            np.asarray([len(axis) for axis in grid.axes], dtype=np.float64),
            *(np.log(axis) for axis in grid.axes),
            (never_falling(grid.log_s) + math.log(layers)).ravel(),
            grid.measured.astype(np.float64).ravel(),
        ]
    )


def stretch_contexts(flat: FloatArray, times: int) -> None:
    """Make a decode `flat_grid` that of ranks which hold one in ``times`` of the context's tokens."""
    rows, seqs, contexts = (int(length) for length in flat[:3])
    flat[3 + rows + seqs :][:contexts] += math.log(times)


@njit(cache=True, error_model="numpy", forceinline=True)
def log_sizes(grids: FloatArray, kv: float, rows: float, seqs: float) -> Logs:
    """Logs of a batch's sums, as `attention_seconds` takes them; zeros where no kind has a grid to look them up in.

    Several kinds of layers attend over the same batch, and logs are a good part of what a step takes to compute.
    """
    if grids.size == 0:
        return 0.0, 0.0, 0.0
    log_rows = math.log(rows)
    return math.log(kv), log_rows, log_rows if rows == seqs else math.log(max(seqs, 1.0))


@njit(cache=True, error_model="numpy", forceinline=True)
def spot(grids: FloatArray, start: int, size: int, log_value: float) -> tuple[int, int, float, bool]:
    """Lower and upper node, share towards the upper, and whether ``log_value`` lies on the axis."""
    # Differences of logs may miss a node by some ulps: within NEAR of it they are taken for the node.
    if log_value <= grids[start] + NEAR:
        return 0, 0, 0.0, log_value > grids[start] - NEAR
    last = start + size - 1
    if log_value >= grids[last] - NEAR:
        return size - 1, size - 1, 0.0, log_value < grids[last] + NEAR
    i = start
    while grids[i + 1] <= log_value + NEAR:
        i += 1
    above = log_value - grids[i]
    if above <= NEAR:
        return i - start, i - start, 0.0, True
    return i - start, i + 1 - start, above / (grids[i + 1] - grids[i]), True


@njit(cache=True, error_model="numpy", forceinline=True)
def _between(low: float, up: float, share: float) -> float:
    return low + share * (up - low)


@njit(cache=True, error_model="numpy")
def _roofline(kind: Any, qkv: float, kv: float, rows: float) -> float:
    return float(kind.t0_s + soft_max_scalar(qkv * kind.qkv_s, kv * kind.kv_s + rows * kind.row_s, kind.p))


@njit(cache=True, error_model="numpy")
def _grid_seconds(
    kind: Any,
    grids: FloatArray,
    qkv: float,
    kv: float,
    rows: float,
    seqs: float,
    logs: Logs,
) -> tuple[float, bool]:
    """Seconds from the kind's grid and whether they lie between measured nodes."""
    prefill = kind.is_prefill > 0.0
    log_kv, log_rows, log_seqs = logs
    at = int(kind.grid)
    nx = int(grids[at])
    ny = int(grids[at + 1])
    nz = int(grids[at + 2])
    axis_x = at + 3
    axis_y = axis_x + nx
    axis_z = axis_y + ny
    nodes = axis_z + nz
    flags = nodes + nx * ny * nz
    i, i_up, share_x, on_x = spot(grids, axis_x, nx, log_kv - log_rows if prefill else log_rows - log_seqs)
    j, j_up, share_y, on_y = spot(grids, axis_y, ny, log_seqs)
    k, k_up, share_z, on_z = spot(grids, axis_z, nz, log_rows - log_seqs if prefill else log_kv - log_seqs)
    low_low, low_up = (i * ny + j) * nz, (i * ny + j_up) * nz
    up_low, up_up = (i_up * ny + j) * nz, (i_up * ny + j_up) * nz
    low = _between(
        _between(grids[nodes + low_low + k], grids[nodes + low_low + k_up], share_z),
        _between(grids[nodes + low_up + k], grids[nodes + low_up + k_up], share_z),
        share_y,
    )
    up = _between(
        _between(grids[nodes + up_low + k], grids[nodes + up_low + k_up], share_z),
        _between(grids[nodes + up_up + k], grids[nodes + up_up + k_up], share_z),
        share_y,
    )
    total = _between(low, up, share_x)
    inside = on_x and on_y and on_z
    known = grids[flags + low_low + k] * grids[flags + low_low + k_up]
    known *= grids[flags + low_up + k] * grids[flags + low_up + k_up]
    known *= grids[flags + up_low + k] * grids[flags + up_low + k_up]
    known *= grids[flags + up_up + k] * grids[flags + up_up + k_up]
    measured = inside and known > 0.0
    seconds = math.exp(total)
    if not inside or prefill:
        seqs = max(seqs, 1.0)
        x = kv / rows if prefill else rows / seqs
        z = rows / seqs if prefill else kv / seqs
        # Off an axis, the nearest node is where the grid was read.
        if not on_x:
            x = math.exp(grids[axis_x + i])
        if not on_y:
            seqs = math.exp(grids[axis_y + j])
        if not on_z:
            z = math.exp(grids[axis_z + k])
        if prefill:
            equal_qkv, equal_kv, equal_rows = seqs * z * (x * z - 0.5 * (z - 1.0)), seqs * x * z, seqs * z
        else:
            equal_qkv, equal_kv, equal_rows = seqs * x * z, seqs * z, seqs * x
        if equal_qkv != qkv or equal_kv != kv or equal_rows != rows:  # a lone prompt is its own mean
            seconds *= _roofline(kind, qkv, kv, rows) / _roofline(kind, equal_qkv, equal_kv, equal_rows)
    return seconds, measured


@njit(cache=True, error_model="numpy")
def attention_seconds(
    kind: Any,
    grids: FloatArray,
    qkv: float,
    kv: float,
    rows: float,
    seqs: float,
    logs: Logs,
    times: float,
    out: Any,
) -> float:
    """``times`` x seconds of one kind of attention layers, also added to ``out.by_origin_s``.

    Args:
        kind: a row of ``StepCost.attention``; no time passes when the model has no such layer or no row attends.
        grids: ``StepCost.attention_grids``.
        qkv: (query, context token) pairs over the batch.
        kv: context tokens over the batch, new ones included.
        rows, seqs: queries and sequences of the batch.
        logs: `log_sizes` of the batch.
    """
    if kind.layers == 0.0 or rows <= 0.0:
        return 0.0
    window = kind.window
    if window > 0.0 and kv > seqs * window:
        # The draft's sums are not cut by the engine; capping the mean bounds the true sum from above.
        qkv *= seqs * window / kv
        kv = seqs * window
        logs = (math.log(kv), logs[1], logs[2])
    if kind.grid >= 0.0:
        seconds, measured = _grid_seconds(kind, grids, qkv, kv, rows, seqs, logs)
        origin = INTERPOLATED if measured else EXTRAPOLATED
    else:
        seconds = _roofline(kind, qkv, kv, rows)
        origin = int(kind.origin)
        if rows < kind.low_rows or rows > kind.high_rows:
            origin = EXTRAPOLATED
    seconds *= times
    out.by_origin_s[origin] += seconds
    return float(seconds)
