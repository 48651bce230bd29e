"""What rules ask about the step to come: levels of a round, and how long a decode step would take."""

from __future__ import annotations

from numba import njit

from draftcast.sim.compiled.borrowed import borrowed
from draftcast.sim.cost.step_time import (
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
    P_FIT_ROW_S,
    P_OVERLAP_HOST,
    step_time,
)
from draftcast.sim.engine.state import Engine


@njit(cache=True, forceinline=True)
def draft_levels(ref: Engine, drafts: int) -> int:
    """Drafts one after the other in a round of ``drafts``: of a tree its levels, of which a path holds one each."""
    c = borrowed(ref).config[0]
    if c.tree_depth == 0:
        return drafts
    return int(min(-(-drafts * c.tree_depth // max(c.k, 1)), drafts))


@njit(cache=True)
def device_seconds(
    ref: Engine, seqs: int, verified: int, drafting: int, made: int, passes: int, context: float
) -> float:
    """Device seconds of a decode step of ``seqs`` requests that verifies drafts and makes new ones.

    Args:
        ref: the engine; its feature and time vectors serve as scratch space, which `commit` fills anew.
        seqs: requests, each with one row besides its drafts.
        verified: draft rows of all requests together.
        drafting: requests for which drafts are made.
        made: drafts made for all of them together.
        passes: the most drafts made for one request; of a tree its levels.
        context: tokens in the KV cache before the step, of all requests together; drafts count as spread evenly.
    """
    s = borrowed(ref)
    c = s.config[0]
    f = s.features
    for i in range(N_FEATURES):
        f[i] = 0.0
    rows = float(seqs + verified)
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
    if made > 0:
        f[F_DRAFT_SEQS] = drafting
        f[F_DRAFT_TOKENS] = made
        f[F_DRAFT_PASSES] = passes
        f[F_DRAFT_KV] = drafting * mean_kv
        if c.proposes_on_host:
            f[F_PROPOSE_TOKENS] = f[F_DRAFT_KV]
    step_time(s.cost, f, s.times)
    return float(s.times[O_DRAFT] + s.times[O_TARGET] + s.times[O_SAMPLE])


@njit(cache=True, forceinline=True)
def host_terms(ref: Engine) -> tuple[float, float]:
    """The host's part in the step last asked for, as `with_host` takes it: seconds to add, and the least there are."""
    s = borrowed(ref)
    host_s = float(s.times[O_HOST])
    if s.cost.params[P_OVERLAP_HOST] > 0.0 and s.config[0].is_async:
        return 0.0, host_s
    return host_s, 0.0


@njit(cache=True, forceinline=True)
def with_host(device_s: float, host: tuple[float, float]) -> float:
    """Seconds of a step whose device takes ``device_s``: host time hides behind it where it may."""
    seconds = device_s + host[0]
    return seconds if seconds > host[1] else host[1]


@njit(cache=True)
def undrafted_seconds(ref: Engine, slot: int, drafting: int, made: int, passes: int) -> float:
    """Device seconds of a decode step of the batch's drafting requests that verifies none and makes drafts.

    Fills ``policy.row_s`` too. ``passes`` as in `device_seconds`.
    """
    s = borrowed(ref)
    fill_row_seconds(ref)
    entries = s.entries[slot]
    context = 0.0
    for j in range(s.batch[slot].size):
        if not entries[j].is_chunk:
            context += entries[j].computed + entries[j].tokens
    return device_seconds(ref, drafting, 0, drafting, made, passes, context)


@njit(cache=True)
def fill_row_seconds(ref: Engine) -> None:
    """Fill ``policy.row_s`` once: linear layers to sampler by rows, CUDA-graph padding in them."""
    s = borrowed(ref)
    row_s = s.policy.row_s
    if row_s[0] == row_s[0]:
        return
    cost = s.cost
    for rows in range(row_s.size):
        if cost.params[P_AFFINE] > 0.0:
            row_s[rows] = cost.params[P_FIT_ROW_S] * rows
            continue
        i = min(rows, cost.target.shape[0] - 1)
        j = min(rows, cost.logits.shape[0] - 1)
        row_s[rows] = 0.0
        for origin in range(3):
            row_s[rows] += cost.target[i, origin] + cost.logits[j, origin]
