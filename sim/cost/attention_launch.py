"""Attention of prompts and decodes in one launch, and of unequal contexts: what kernels timed apart do not show.

What an engine launches for a batch depends on its kernel (`HardwareSpec.attention_kernel`):

* ``flash_attention_2``: a batch in which any sequence has more than one query (a prompt, a verified draft) is one
  launch of tiles of 64 queries of one head by 128 keys. A decoding sequence then fills one row of 64, the heads of a
  group do not share their keys, and a context is not split over multiprocessors. A launch of single queries packs the
  heads of a group into a tile and splits contexts, unless the tiles fill 0.8 of the device's places, two a
  multiprocessor. Sources: vllm-project/flash-attention, ``csrc/flash_attn``: ``mha_varlen_fwd``
  (seqlenq_ngroups_swapped, set_params_splitkv, num_splits_heuristic), ``flash_fwd_launch_template.h``
  (run_mha_fwd_splitkv_dispatch: kBlockM 64, kBlockN 128).
* ``flash_attention_3``: one launch too, but a group's heads share a tile of 128 rows and contexts are split by their
  length, so unequal ones balance (``hopper/heuristics.h``, ``tile_scheduler.hpp``).
* ``separate``: prompts and decodes are two launches, and contexts are split (FlashInfer, MLA, ROCm).

Tiles run at the rate that prompts reach. A launch cannot end before its longest context, whose tiles run on when the
others are done (`TAIL`, the one fitted number). Where a profile has times of such launches they are used, as their
ratio to the formulas.
"""

import math
from typing import Any

import numpy as np
from numba import njit

from draftcast.calibration.profile.interpolation import AttentionGrid
from draftcast.calibration.profile.measured import MeasuredTimes
from draftcast.kernels.arrays import FloatArray
from draftcast.sim.cost.attention_time import Sums, flat_axes, on_plane, spot

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


def fill_launch(kind: Any, kernel: str, multiprocessors: int, heads: int, kv_heads: int, pair_s: float) -> None:
    """Fill the fields of a decode kind, a record of `ATTENTION`, that say what a launch shared with prompts takes.

    ``kernel``: of `draftcast.calibration.profile.hardware.ATTENTION_KERNELS`; ``heads``, ``kv_heads``: of the rank;
    ``pair_s``: seconds of a (query, context token) pair of all heads at the rate that prompts reach.
    """
    kind["launch_grid"] = -1
    rows = TILE_ROWS.get(kernel, 0.0)
    if rows == 0.0:
        return
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


def measured_launches(
    kind: Any,
    times: MeasuredTimes,
    prefill: AttentionGrid,
    decode: AttentionGrid,
    dtypes: tuple[str, str],
    **heads: int,
) -> FloatArray | None:
    """Grid of the measured launches as ratios to `shared_seconds`, flat; None where none were measured.

    Also takes the tails of ``kind`` from the measured launches over unequal contexts. Axes: the prompt's chunk, its
    earlier tokens + `PREFIX_OFFSET`, decoding sequences, their context.
    """
    rows = times.launches(dtypes[0], dtypes[1], **heads)
    if rows is None:
        return None
    m, k, longest, batch, context, seconds = rows.T
    of_prompt = m > 0
    prefill_s = np.zeros(len(rows))
    some = rows[of_prompt]
    prefill_s[of_prompt] = np.exp(prefill.log_seconds(some[:, 1] / some[:, 0], np.ones(len(some)), some[:, 0]))
    decode_s = np.exp(decode.log_seconds(np.ones(len(rows)), batch, context))
    tile, serial = kind["tile_kv_s"] / kind["layers"], kind["serial_kv_s"] / kind["layers"]
    modelled = np.array(
        [
            shared_seconds(tile, serial, p, d, n, n * kv) if shared else d
            for p, d, n, kv, shared in zip(prefill_s, decode_s, batch, context, of_prompt, strict=True)
        ]
    )
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
    kind: Any, grids: FloatArray, decode_s: float, decode: Sums, longest: float, prefill_s: float, prompts: Sums
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
