"""Seconds of one kind of attention layers from sums over the batch: a measured grid, or a soft roofline.

Compiled half of `draftcast.calibration.attention_grid`: where a grid was measured it is interpolated linearly in the
logs, at the mean request of the batch; beyond the grid, and for a batch whose sums differ from those of equal requests
(ragged prefill), the roofline's ratio stretches it. A sequence's KV counts once however many queries attend to it.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from draftcast.calibration.attention_grid import AttentionGrid
from draftcast.calibration.origin import Origin
from draftcast.calibration.roofline import soft_max_scalar

FloatArray = NDArray[np.float64]

# Rows of StepCost.attention, one per kind of attention layer ...
B_DECODE = 0
B_DECODE_WINDOW = 1
B_PREFILL = 2
B_PREFILL_WINDOW = 3
B_DRAFT_DECODE = 4
B_DRAFT_DECODE_WINDOW = 5
B_DRAFT_PREFILL = 6
B_DRAFT_PREFILL_WINDOW = 7
N_BLOCKS = 8
# ... and its columns. Seconds are already those of all layers of the kind.
A_T0_S = 0
A_QKV_S = 1  # compute seconds per (query, context token) pair
A_KV_S = 2  # memory seconds per context token, read once however many queries attend to it
A_ROW_S = 3  # memory seconds per row (queries in, attention out)
A_P = 4
A_ORIGIN = 5
A_LOW_ROWS = 6
A_HIGH_ROWS = 7
A_WINDOW = 8  # window of the draft's own layers (the target's sums come cut)
A_LAYERS = 9  # 0: the model has no such layer
A_GRID = 10  # where the kind's grid starts in StepCost.attention_grids, -1: none was measured
A_PREFILL = 11  # 1: the grid's axes are prefill's
N_COLUMNS = 12

EXTRAPOLATED = int(Origin.EXTRAPOLATED)
INTERPOLATED = int(Origin.INTERPOLATED)


def flat_grid(grid: AttentionGrid, layers: int) -> FloatArray:
    """A grid as one array: three lengths, the logs of the axes, log seconds of ``layers`` layers, measured flags."""
    return np.concatenate(
        [
            np.asarray([len(axis) for axis in grid.axes], dtype=np.float64),
            *(np.log(axis) for axis in grid.axes),
            (grid.log_s + math.log(layers)).ravel(),
            grid.measured.astype(np.float64).ravel(),
        ]
    )


@njit(cache=True, error_model="numpy")
def _spot(grids: FloatArray, start: int, size: int, log_value: float) -> tuple[int, float, bool]:
    """Lower node, share towards the next, and whether ``log_value`` lies on the axis."""
    # The axes and the values take their logs apart, so a node may miss itself by an ulp.
    if log_value <= grids[start]:
        return 0, 0.0, log_value > grids[start] - 1e-9
    last = start + size - 1
    if log_value >= grids[last]:
        return size - 1, 0.0, log_value < grids[last] + 1e-9
    i = start
    while grids[i + 1] <= log_value:
        i += 1
    return i - start, (log_value - grids[i]) / (grids[i + 1] - grids[i]), True


@njit(cache=True, error_model="numpy")
def _roofline(blocks: FloatArray, b: int, qkv: float, kv: float, rows: float) -> float:
    return float(
        blocks[b, A_T0_S]
        + soft_max_scalar(qkv * blocks[b, A_QKV_S], kv * blocks[b, A_KV_S] + rows * blocks[b, A_ROW_S], blocks[b, A_P])
    )


@njit(cache=True, error_model="numpy")
def _grid_seconds(
    blocks: FloatArray, grids: FloatArray, b: int, qkv: float, kv: float, rows: float, seqs: float
) -> tuple[float, bool]:
    """Seconds from the kind's grid and whether they lie between measured nodes."""
    prefill = blocks[b, A_PREFILL] > 0.0
    seqs = max(seqs, 1.0)
    x = kv / rows if prefill else rows / seqs
    z = rows / seqs if prefill else kv / seqs
    at = int(blocks[b, A_GRID])
    nx = int(grids[at])
    ny = int(grids[at + 1])
    nz = int(grids[at + 2])
    axis_x = at + 3
    axis_y = axis_x + nx
    axis_z = axis_y + ny
    nodes = axis_z + nz
    flags = nodes + nx * ny * nz
    i, share_x, on_x = _spot(grids, axis_x, nx, math.log(x))
    j, share_y, on_y = _spot(grids, axis_y, ny, math.log(seqs))
    k, share_z, on_z = _spot(grids, axis_z, nz, math.log(z))
    inside = on_x and on_y and on_z
    measured = inside
    total = 0.0
    for di in range(2 if share_x > 0.0 else 1):
        wx = share_x if di == 1 else 1.0 - share_x
        for dj in range(2 if share_y > 0.0 else 1):
            wy = wx * (share_y if dj == 1 else 1.0 - share_y)
            for dk in range(2 if share_z > 0.0 else 1):
                w = wy * (share_z if dk == 1 else 1.0 - share_z)
                node = ((i + di) * ny + j + dj) * nz + k + dk
                total += w * grids[nodes + node]
                measured = measured and grids[flags + node] > 0.0
    seconds = math.exp(total)
    if not inside or prefill:
        # Off an axis, the nearest node is where the grid was read.
        if not on_x:
            x = math.exp(grids[axis_x + i])
        if not on_y:
            seqs = math.exp(grids[axis_y + j])
        if not on_z:
            z = math.exp(grids[axis_z + k])
        if prefill:
            equal = _roofline(blocks, b, seqs * z * (x * z - 0.5 * (z - 1.0)), seqs * x * z, seqs * z)
        else:
            equal = _roofline(blocks, b, seqs * x * z, seqs * z, seqs * x)
        seconds *= _roofline(blocks, b, qkv, kv, rows) / equal
    return seconds, measured


@njit(cache=True, error_model="numpy")
def attention_seconds(
    blocks: FloatArray,
    grids: FloatArray,
    b: int,
    qkv: float,
    kv: float,
    rows: float,
    seqs: float,
    origins: FloatArray,
    first: int,
    times: float,
) -> float:
    """``times`` x seconds of one kind of attention layers, also added to ``origins[first + origin]``.

    Args:
        blocks, grids: ``StepCost.attention`` and ``StepCost.attention_grids``.
        b: the kind, a row of ``blocks``; nothing when the model has no such layer or no row attends.
        qkv: (query, context token) pairs over the batch.
        kv: context tokens over the batch, new ones included.
        rows, seqs: queries and sequences of the batch.
    """
    if blocks[b, A_LAYERS] == 0.0 or rows <= 0.0:
        return 0.0
    window = blocks[b, A_WINDOW]
    if window > 0.0 and kv > seqs * window:
        # The draft's sums are not cut by the engine; capping the mean bounds the true sum from above.
        qkv *= seqs * window / kv
        kv = seqs * window
    if blocks[b, A_GRID] >= 0.0:
        seconds, measured = _grid_seconds(blocks, grids, b, qkv, kv, rows, seqs)
        origin = INTERPOLATED if measured else EXTRAPOLATED
    else:
        seconds = _roofline(blocks, b, qkv, kv, rows)
        origin = int(blocks[b, A_ORIGIN])
        if rows < blocks[b, A_LOW_ROWS] or rows > blocks[b, A_HIGH_ROWS]:
            origin = EXTRAPOLATED
    seconds *= times
    origins[first + origin] += seconds
    return float(seconds)
