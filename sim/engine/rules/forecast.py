"""What rules ask about the step to come: levels of a round, and how long a decode step would take."""

from __future__ import annotations

from numba import njit

from draftcast.sim.borrowed import borrowed
from draftcast.sim.engine.state import Engine
from draftcast.sim.step_time import (
    F_DECODE_KV,
    F_DECODE_QKV,
    F_DECODE_SEQS,
    F_DECODE_TOKENS,
    F_DRAFT_KV,
    F_DRAFT_PASSES,
    F_DRAFT_SEQS,
    F_DRAFT_TOKENS,
    F_LOGIT_ROWS,
    F_PROPOSE_TOKENS,
    F_SEQS,
    F_TOKENS,
    F_WIN_DECODE_KV,
    F_WIN_DECODE_QKV,
    N_FEATURES,
    O_DRAFT,
    O_HOST,
    O_SAMPLE,
    O_TARGET,
    P_AFFINE,
    P_OVERLAP_HOST,
    step_time,
)


@njit(cache=True, forceinline=True)
def draft_levels(ref: Engine, drafts: int) -> int:
    """Drafts one after the other in a round of ``drafts``: of a tree its levels, of which a path holds one each."""
    c = borrowed(ref).config[0]
    if c.tree_depth == 0:
        return drafts
    return int(min(-(-drafts * c.tree_depth // max(c.k, 1)), drafts))


@njit(cache=True)
def device_seconds(ref: Engine, seqs: int, drafting: int, drafts: int, passes: int, context: float) -> float:
    """Device seconds of a decode step in which ``seqs`` requests verify ``drafts`` rows and as many are made.

    Args:
        ref: the engine; its feature and time vectors serve as scratch space, which `commit` fills anew.
        seqs: requests, each with one row besides its drafts.
        drafting: those that draft.
        drafts: draft rows of all requests together.
        passes: the most drafts of one request, a tree's levels.
        context: tokens in the KV cache before the step, of all requests together; drafts count as spread evenly.
    """
    s = borrowed(ref)
    c = s.config[0]
    f = s.features
    for i in range(N_FEATURES):
        f[i] = 0.0
    rows = float(seqs + drafts)
    kv = context + rows
    mean_kv = kv / seqs
    f[F_TOKENS] = rows
    f[F_SEQS] = seqs
    f[F_DECODE_SEQS] = seqs
    f[F_DECODE_TOKENS] = rows
    f[F_DECODE_KV] = kv
    f[F_DECODE_QKV] = rows * mean_kv
    if c.window > 0:
        f[F_WIN_DECODE_KV] = seqs * min(mean_kv, float(c.window))
        f[F_WIN_DECODE_QKV] = rows * min(mean_kv, float(c.window))
    f[F_LOGIT_ROWS] = rows
    if drafts > 0:
        f[F_DRAFT_SEQS] = drafting
        f[F_DRAFT_TOKENS] = drafts
        f[F_DRAFT_PASSES] = passes
        f[F_DRAFT_KV] = drafting * mean_kv
        if c.proposes_on_host:
            f[F_PROPOSE_TOKENS] = f[F_DRAFT_KV]
    step_time(s.cost, f, s.times)
    return float(s.times[O_DRAFT] + s.times[O_TARGET] + s.times[O_SAMPLE])


@njit(cache=True, forceinline=True)
def with_host(ref: Engine, device_s: float) -> float:
    """Seconds of the step last asked for, had the device taken ``device_s``: host time hides behind it where it may."""
    s = borrowed(ref)
    host_s = s.times[O_HOST]
    if s.cost.params[P_OVERLAP_HOST] > 0.0 and s.config[0].is_async:
        return float(max(device_s, host_s))
    return float(device_s + host_s)


@njit(cache=True, forceinline=True)
def table_seconds(ref: Engine, rows: int) -> float:
    """The part of a decode step that goes by its rows alone, CUDA-graph padding in it: linear layers to sampler."""
    cost = borrowed(ref).cost
    seconds = 0.0
    if cost.params[P_AFFINE] == 0.0:
        i = min(rows, cost.target.shape[0] - 1)
        j = min(rows, cost.logits.shape[0] - 1)
        for origin in range(3):
            seconds += cost.target[i, origin] + cost.logits[j, origin]
    return seconds
