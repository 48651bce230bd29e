"""Seconds of one engine step from a feature vector: the compiled half of the step cost.

`StepCost` is plain float64 arrays, built once per scenario by `sim/cost/step_cost/compile_step_cost`; `step_time`
indexes them and allocates nothing. It knows neither models nor devices: dense tables give linear layers, norms,
collectives, lm_head and sampler by rows; attention (`sim/cost/attention_time`) goes by sums of the batch. Every
table has one column per `calibration/profile/origin.Origin`: seconds stay split by how far they can be trusted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from draftcast.sim.compiled.borrowed import borrowed
from draftcast.sim.cost.attention_time import (
    B_DECODE,
    B_DECODE_WINDOW,
    B_DRAFT_DECODE,
    B_DRAFT_DECODE_WINDOW,
    B_DRAFT_PREFILL,
    B_DRAFT_PREFILL_WINDOW,
    B_PREFILL,
    B_PREFILL_WINDOW,
    Logs,
    attention_seconds,
    log_sizes,
)

FloatArray = NDArray[np.float64]
NO_LOGS: Logs = (0.0, 0.0, 0.0)

# Features of one step, filled by the engine. S is the context a request attends to, its new tokens included.
F_TOKENS = 0  # all scheduled target rows: decode, verify and prefill
F_SEQS = 1  # scheduled requests
F_DECODE_SEQS = 2  # requests decoding or verifying
F_DECODE_TOKENS = 3  # their rows, sum(1 + k_i)
F_DECODE_KV = 4  # sum(S_i)
F_DECODE_QKV = 5  # sum((1 + k_i) * S_i)
F_PREFILL_SEQS = 6
F_PREFILL_TOKENS = 7  # sum of chunks c
F_PREFILL_KV = 8  # sum(context before + c)
F_PREFILL_QKV = 9  # sum(c * (context before + (c + 1) / 2))
F_WIN_DECODE_KV = 10  # the same four with S cut to the target's sliding window; only read when P_WINDOW > 0
F_WIN_DECODE_QKV = 11
F_WIN_PREFILL_KV = 12
F_WIN_PREFILL_QKV = 13
F_LOGIT_ROWS = 14  # rows through lm_head and sampler
F_DRAFT_SEQS = 15  # requests for which drafts are made (searched, for text search) in this step
F_DRAFT_TOKENS = 16  # drafts to make, summed
F_DRAFT_PASSES = 17  # the largest number of drafts of one request (the depth of a tree)
F_DRAFT_KV = 18  # context of the drafting requests, summed
F_PROPOSE_TOKENS = 19  # context tokens searched on the host (0 for methods that search no text on the host)
N_FEATURES = 20

O_HOST = 0  # seconds on the host
O_DRAFT = 1  # seconds of drafting (device, or the host's text search)
O_TARGET = 2  # seconds of the target pass without lm_head
O_SAMPLE = 3  # seconds of lm_head and sampler
O_PREFILL = 4  # the part of O_TARGET that would not be there without prefill rows
O_ORIGIN_MEASURED = 5  # O_DRAFT + O_TARGET + O_SAMPLE by origin
O_ORIGIN_INTERPOLATED = 6
O_ORIGIN_EXTRAPOLATED = 7
N_TIMES = 8
# What the attention of prefill rows took, in the target and in either kind of the draft's layers: parts of the above,
# and most of what a step's time takes to compute.
O_PREFILL_ATTENTION = 8
O_DRAFT_PREFILL_ATTENTION = 9
O_DRAFT_PREFILL_WINDOW_ATTENTION = 10
N_OUT = 11

# Scalars of a StepCost.
P_AFFINE = 0  # 1: whole-step affine fit, 0: roofline
P_OVERLAP_HOST = 1  # 1: the host's time may hide behind the device, 0: it is the exposed part already
P_ASYNC = 2  # 1: asynchronous scheduling
P_WINDOW = 3  # the target's sliding window in tokens, 0: none
P_HOST_FIXED_S = 4
P_HOST_SEQ_S = 5
P_CUDA_GRAPH_ROWS = 6  # largest captured number of rows; more run eagerly
P_TARGET_LAUNCH_S = 7  # host seconds to launch every kernel of an eager target pass
P_DRAFT_LAUNCH_S = 8  # the same for one pass of the draft
P_PLAN = 9  # draftcast.sim.cost.methods.DraftPlan
P_EXTRA_FIRST_ROWS = 10
P_BLOCK_ROWS_BEYOND_K = 11
P_TREE_WIDTH = 12
P_MAX_TREE_NODES = 13  # 0: no limit
P_IS_TREE = 14
P_SEARCH_SEQ_S = 15  # text search: seconds per request searched
P_SEARCH_TOKEN_S = 16  # seconds per context token searched on the host
P_SEARCH_STEP_S = 17  # seconds per step with a search
P_FIT_TARGET_S = 18  # affine fit
P_FIT_ROW_S = 19
P_FIT_KV_S = 20
P_FIT_DRAFT_S = 21
P_FIT_DRAFT_TOKEN_S = 22
P_FIT_DRAFT_KV_S = 23
P_FIT_SEARCH_FRACTION = 24
P_FIT_LOW_SEQS = 25
P_FIT_HIGH_SEQS = 26
P_FIT_TARGET_ORIGIN = 27
P_FIT_DRAFT_ORIGIN = 28
P_FIT_SEQ_S = 29
P_FIT_DRAFT_PASS_S = 30
P_FIT_QUERY_KV_S = 31
P_FIT_PREFILL_QUERY_KV_S = 32
P_FIT_LOGIT_ROW_S = 33
P_FIT_DRAFT_ROW_S = 34
P_FIT_HIGH_ROWS = 35  # end of the fit's curve over rows, 0: it has none
P_DECODE_EXCESS = 36  # share by which a step without prompts takes longer than predicted; used to attribute errors
P_PROMPT_EXCESS = 37  # the same for a step with prompts
N_PARAMS = 38

# draftcast.sim.cost.methods.DraftPlan as constants the compiler can fold; a test holds them equal.
AUTOREGRESSIVE = 1
PARALLEL = 2
HEADS = 3
CONTEXT_BLOCK = 4
HOST_SEARCH = 5
DEVICE_SEARCH = 6
EXTRAPOLATED = 2


class StepCost(NamedTuple):
    """A scenario's step cost as arrays. Tables have shape (rows + 1, 3): seconds by number of rows and origin.

    ``target``: linear layers, norms, activations and collectives of the target pass by scheduled rows (padded to the
    capture size inside); of an affine fit, its curve over rows. ``logits``: lm_head and sampler by logit rows.
    ``draft_first``: rows of the first pass (or of the context projection). ``draft_next``: rows of every later pass (or
    of the block). ``draft_logits``: the draft's lm_head by rows. ``draft_serial``: one head of a multi-head draft by
    requests. ``attention``: a row per kind of attention layer, columns of `draftcast.sim.cost.attention_time`;
    ``attention_grids``: the measured grids they point to.
    """

    params: FloatArray
    target: FloatArray
    logits: FloatArray
    draft_first: FloatArray
    draft_next: FloatArray
    draft_logits: FloatArray
    draft_serial: FloatArray
    attention: FloatArray
    attention_grids: FloatArray


class _Step(NamedTuple):
    """What one call is about, together so that it can be borrowed (`borrowed` takes tuples of mixed types)."""

    new_prefill: bool  # False: the prefill rows are those of the call before
    f: FloatArray
    out: FloatArray


@njit(cache=True, error_model="numpy")
def _table_seconds(table: FloatArray, rows: float) -> float:
    """Seconds of a table at ``rows``; beyond its end in proportion to the last entry."""
    last = table.shape[0] - 1
    if rows <= last:
        i = int(rows)
        return float(table[i, 0] + table[i, 1] + table[i, 2])
    if last == 0:
        return 0.0
    return float((table[last, 0] + table[last, 1] + table[last, 2]) * rows / last)


@njit(cache=True, error_model="numpy")
def _add_table(table: FloatArray, rows: float, times: float, out: FloatArray) -> float:
    """`_table_seconds` x ``times``, also added to the origins in ``out``."""
    last = table.shape[0] - 1
    i = int(rows)
    scale = times
    if i > last:
        if last == 0:
            return 0.0
        scale = times * rows / last
        i = last
    measured = scale * table[i, 0]
    interpolated = scale * table[i, 1]
    extrapolated = scale * table[i, 2]
    out[O_ORIGIN_MEASURED] += measured
    out[O_ORIGIN_INTERPOLATED] += interpolated
    out[O_ORIGIN_EXTRAPOLATED] += extrapolated
    return float(measured + interpolated + extrapolated)


@njit(cache=True, error_model="numpy", forceinline=True)
def _attention(
    cost: StepCost,
    b: int,
    qkv: float,
    kv: float,
    rows: float,
    seqs: float,
    logs: Logs,
    times: float,
    out: FloatArray,
) -> float:
    """``times`` x seconds of one kind of attention layer; nothing when the model has none or no row attends."""
    return attention_seconds(
        cost.attention, cost.attention_grids, b, qkv, kv, rows, seqs, logs, out, O_ORIGIN_MEASURED, times
    )


@njit(cache=True, error_model="numpy")
def _at_least(seconds: float, rows: float, launch_s: float, times: float, p: FloatArray, out: FloatArray) -> float:
    """Seconds of ``times`` passes: an eager pass lasts at least as long as the host launches its kernels."""
    floor = times * launch_s
    if rows > p[P_CUDA_GRAPH_ROWS] and seconds < floor:
        out[O_ORIGIN_EXTRAPOLATED] += floor - seconds
        return floor
    return seconds


@njit(cache=True, error_model="numpy", inline="always")
def _target_seconds(
    cost: StepCost, f: FloatArray, decode: Logs, prefilled: Logs, new_prefill: bool, out: FloatArray
) -> None:
    p = cost.params
    rows = f[F_TOKENS]
    seconds = _add_table(cost.target, rows, 1.0, out)
    decode_rows = f[F_DECODE_TOKENS]
    seqs = f[F_DECODE_SEQS]
    seconds += _attention(cost, B_DECODE, f[F_DECODE_QKV], f[F_DECODE_KV], decode_rows, seqs, decode, 1.0, out)
    prefill = 0.0
    prefill_rows = f[F_PREFILL_TOKENS]
    if prefill_rows > 0.0 and new_prefill:
        prefill = _attention(
            cost, B_PREFILL, f[F_PREFILL_QKV], f[F_PREFILL_KV], prefill_rows, f[F_PREFILL_SEQS], prefilled, 1.0, out
        )
    if p[P_WINDOW] > 0.0:
        kv = f[F_WIN_DECODE_KV]
        logs = log_sizes(cost.attention_grids, kv, decode_rows, seqs)
        seconds += _attention(cost, B_DECODE_WINDOW, f[F_WIN_DECODE_QKV], kv, decode_rows, seqs, logs, 1.0, out)
        if prefill_rows > 0.0 and new_prefill:
            kv = f[F_WIN_PREFILL_KV]
            prefill += _attention(
                cost,
                B_PREFILL_WINDOW,
                f[F_WIN_PREFILL_QKV],
                kv,
                prefill_rows,
                f[F_PREFILL_SEQS],
                log_sizes(cost.attention_grids, kv, prefill_rows, f[F_PREFILL_SEQS]),
                1.0,
                out,
            )
    if new_prefill:
        out[O_PREFILL_ATTENTION] = prefill
    else:
        prefill = out[O_PREFILL_ATTENTION]
    without_prefill = seconds
    seconds = _at_least(seconds + prefill, rows, p[P_TARGET_LAUNCH_S], 1.0, p, out)
    out[O_TARGET] = seconds
    if prefill_rows > 0.0 and new_prefill:
        if decode_rows > 0.0:
            alone = without_prefill - _table_seconds(cost.target, rows) + _table_seconds(cost.target, decode_rows)
            if decode_rows > p[P_CUDA_GRAPH_ROWS]:
                alone = max(alone, p[P_TARGET_LAUNCH_S])
            out[O_PREFILL] = max(seconds - alone, 0.0)
        else:
            out[O_PREFILL] = seconds


@njit(cache=True, error_model="numpy", inline="always")
def _draft_over_target_rows(
    cost: StepCost,
    f: FloatArray,
    extra_rows: float,
    extra_qkv: float,
    decode: Logs,
    prefilled: Logs,
    new_prefill: bool,
    out: FloatArray,
) -> float:
    """Seconds of a draft pass over every target row and ``extra_rows`` more, without lm_head."""
    rows = f[F_TOKENS] + extra_rows
    decode_rows = f[F_DECODE_TOKENS] + extra_rows
    seconds = _add_table(cost.draft_first, rows, 1.0, out)
    qkv = f[F_DECODE_QKV] + extra_qkv
    # Requests that draft right after their prefill attend through F_DRAFT_KV alone.
    kv = f[F_DECODE_KV]
    seqs = f[F_DECODE_SEQS]
    logs = decode
    if extra_rows != 0.0:
        logs = log_sizes(cost.attention_grids, kv, decode_rows, seqs)
    seconds += _attention(cost, B_DRAFT_DECODE, qkv, kv, decode_rows, seqs, logs, 1.0, out)
    seconds += _attention(cost, B_DRAFT_DECODE_WINDOW, qkv, kv, decode_rows, seqs, logs, 1.0, out)
    prefill_rows = f[F_PREFILL_TOKENS]
    if prefill_rows > 0.0:
        if new_prefill:
            kv = f[F_PREFILL_KV]
            qkv = f[F_PREFILL_QKV]
            seqs = f[F_PREFILL_SEQS]
            out[O_DRAFT_PREFILL_ATTENTION] = _attention(
                cost, B_DRAFT_PREFILL, qkv, kv, prefill_rows, seqs, prefilled, 1.0, out
            )
            out[O_DRAFT_PREFILL_WINDOW_ATTENTION] = _attention(
                cost, B_DRAFT_PREFILL_WINDOW, qkv, kv, prefill_rows, seqs, prefilled, 1.0, out
            )
        seconds += out[O_DRAFT_PREFILL_ATTENTION]
        seconds += out[O_DRAFT_PREFILL_WINDOW_ATTENTION]
    return _at_least(seconds, rows, cost.params[P_DRAFT_LAUNCH_S], 1.0, cost.params, out)


@njit(cache=True, error_model="numpy", inline="always")
def _draft_block(cost: StepCost, rows: float, seqs: float, kv: float, times: float, out: FloatArray) -> float:
    """``times`` x seconds of a draft pass over ``rows`` rows of ``seqs`` requests with ``kv`` context tokens."""
    seconds = _add_table(cost.draft_next, rows, times, out)
    qkv = kv * rows / seqs
    logs = log_sizes(cost.attention_grids, kv, rows, seqs)
    seconds += _attention(cost, B_DRAFT_DECODE, qkv, kv, rows, seqs, logs, times, out)
    seconds += _attention(cost, B_DRAFT_DECODE_WINDOW, qkv, kv, rows, seqs, logs, times, out)
    return _at_least(seconds, rows, cost.params[P_DRAFT_LAUNCH_S], times, cost.params, out)


@njit(cache=True, error_model="numpy", inline="always")
def _draft_seconds(
    cost: StepCost, f: FloatArray, decode: Logs, prefilled: Logs, new_prefill: bool, out: FloatArray
) -> float:
    p = cost.params
    plan = int(p[P_PLAN])
    seqs = f[F_DRAFT_SEQS]
    tokens = f[F_DRAFT_TOKENS]
    passes = f[F_DRAFT_PASSES]
    kv = f[F_DRAFT_KV]
    drafting = seqs > 0.0 and passes > 0.0
    if plan == AUTOREGRESSIVE:
        extra = p[P_EXTRA_FIRST_ROWS] * seqs
        extra_qkv = p[P_EXTRA_FIRST_ROWS] * kv
        seconds = _draft_over_target_rows(cost, f, extra, extra_qkv, decode, prefilled, new_prefill, out)
        if drafting:
            seconds += _add_table(cost.draft_logits, seqs, 1.0, out)
            later = passes - 1.0
            if later > 0.0:
                rows = seqs * p[P_TREE_WIDTH]
                # Pass j attends to j tokens more; the mean over the passes is exact, the time being close to linear.
                seconds += _draft_block(cost, rows, seqs, kv + seqs * passes / 2.0, later, out)
                seconds += _add_table(cost.draft_logits, rows, later, out)
        return seconds
    if plan == PARALLEL:
        extra = max(tokens + p[P_BLOCK_ROWS_BEYOND_K] * seqs, 0.0) if drafting else 0.0
        extra_qkv = kv * extra / seqs if drafting else 0.0
        seconds = _draft_over_target_rows(cost, f, extra, extra_qkv, decode, prefilled, new_prefill, out)
        if drafting:
            seconds += _add_table(cost.draft_logits, tokens, 1.0, out)
        return seconds
    if plan == HEADS:
        if not drafting:
            return 0.0
        return _add_table(cost.draft_first, seqs, 1.0, out) + _add_table(cost.draft_serial, seqs, passes, out)
    if plan == CONTEXT_BLOCK:
        seconds = _add_table(cost.draft_first, f[F_TOKENS], 1.0, out)
        if drafting:
            rows = tokens + p[P_BLOCK_ROWS_BEYOND_K] * seqs
            seconds += _draft_block(cost, rows, seqs, kv + rows, 1.0, out)
            seconds += _add_table(cost.draft_logits, tokens, 1.0, out)
            seconds += _add_table(cost.draft_serial, seqs, passes, out)
        return seconds
    if plan in (HOST_SEARCH, DEVICE_SEARCH) and (seqs > 0.0 or f[F_PROPOSE_TOKENS] > 0.0):
        seconds = p[P_SEARCH_STEP_S] + p[P_SEARCH_SEQ_S] * seqs + p[P_SEARCH_TOKEN_S] * f[F_PROPOSE_TOKENS]
        out[O_ORIGIN_EXTRAPOLATED] += seconds
        return float(seconds)
    return 0.0


@njit(cache=True, error_model="numpy", inline="always")
def _affine(cost: StepCost, f: FloatArray, out: FloatArray) -> None:
    p = cost.params
    # The fit counts the KV tokens that stand in the cache before the step.
    prefill_kv = f[F_PREFILL_KV] - f[F_PREFILL_TOKENS]
    kv = f[F_DECODE_KV] - f[F_DECODE_TOKENS] + prefill_kv
    curve = _table_seconds(cost.target, f[F_TOKENS])
    target = p[P_FIT_TARGET_S] + p[P_FIT_ROW_S] * f[F_TOKENS] + p[P_FIT_KV_S] * kv + p[P_FIT_SEQ_S] * f[F_SEQS]
    target += curve + p[P_FIT_QUERY_KV_S] * f[F_DECODE_QKV] + p[P_FIT_PREFILL_QUERY_KV_S] * f[F_PREFILL_QKV]
    target += p[P_FIT_LOGIT_ROW_S] * f[F_LOGIT_ROWS]
    out[O_TARGET] = target
    if f[F_DECODE_TOKENS] > 0.0:
        own = p[P_FIT_ROW_S] * f[F_PREFILL_TOKENS] + p[P_FIT_KV_S] * prefill_kv
        own += curve - _table_seconds(cost.target, f[F_DECODE_TOKENS])
        own += p[P_FIT_PREFILL_QUERY_KV_S] * f[F_PREFILL_QKV]
        own += p[P_FIT_LOGIT_ROW_S] * (f[F_LOGIT_ROWS] - f[F_DECODE_TOKENS])
        out[O_PREFILL] = own + p[P_FIT_SEQ_S] * f[F_PREFILL_SEQS]
    else:
        out[O_PREFILL] = target
    draft = 0.0
    plan = int(p[P_PLAN])
    if plan == AUTOREGRESSIVE:
        draft = p[P_FIT_DRAFT_S] + p[P_FIT_DRAFT_TOKEN_S] * f[F_DRAFT_TOKENS] + p[P_FIT_DRAFT_KV_S] * kv
        draft += p[P_FIT_DRAFT_PASS_S] * f[F_DRAFT_PASSES] + p[P_FIT_DRAFT_ROW_S] * f[F_TOKENS]
    elif plan in (HOST_SEARCH, DEVICE_SEARCH) and (f[F_DRAFT_SEQS] > 0.0 or f[F_PROPOSE_TOKENS] > 0.0):
        draft = p[P_FIT_SEARCH_FRACTION] * target + p[P_SEARCH_STEP_S] + p[P_SEARCH_SEQ_S] * f[F_DRAFT_SEQS]
        draft += p[P_SEARCH_TOKEN_S] * f[F_DRAFT_KV]
    out[O_DRAFT] = draft
    target_origin = int(p[P_FIT_TARGET_ORIGIN])
    draft_origin = int(p[P_FIT_DRAFT_ORIGIN])
    if f[F_SEQS] < p[P_FIT_LOW_SEQS] or f[F_SEQS] > p[P_FIT_HIGH_SEQS]:
        target_origin = EXTRAPOLATED
        draft_origin = EXTRAPOLATED
    if f[F_TOKENS] > p[P_FIT_HIGH_ROWS] > 0.0:
        target_origin = EXTRAPOLATED
    out[O_ORIGIN_MEASURED + target_origin] += target
    out[O_ORIGIN_MEASURED + draft_origin] += draft


@njit(cache=True, error_model="numpy")
def _fill_times(cost: StepCost, f: FloatArray, new_prefill: bool, out: FloatArray) -> None:
    # Counting the references of the arrays would take most of the time.
    c = borrowed(cost)
    v = borrowed(_Step(new_prefill, f, out))
    for i in range(N_OUT if v.new_prefill else N_TIMES):
        v.out[i] = 0.0
    if v.f[F_TOKENS] <= 0.0:
        return
    v.out[O_HOST] = c.params[P_HOST_FIXED_S] + c.params[P_HOST_SEQ_S] * v.f[F_SEQS]
    if c.params[P_AFFINE] > 0.0:
        _affine(c, v.f, v.out)
    else:
        grids = c.attention_grids
        decode = prefilled = NO_LOGS
        if v.f[F_DECODE_TOKENS] > 0.0:
            decode = log_sizes(grids, v.f[F_DECODE_KV], v.f[F_DECODE_TOKENS], v.f[F_DECODE_SEQS])
        if v.f[F_PREFILL_TOKENS] > 0.0 and v.new_prefill:
            prefilled = log_sizes(grids, v.f[F_PREFILL_KV], v.f[F_PREFILL_TOKENS], v.f[F_PREFILL_SEQS])
        _target_seconds(c, v.f, decode, prefilled, v.new_prefill, v.out)
        v.out[O_SAMPLE] = _add_table(c.logits, v.f[F_LOGIT_ROWS], 1.0, v.out)
        v.out[O_DRAFT] = _draft_seconds(c, v.f, decode, prefilled, v.new_prefill, v.out)
    excess = c.params[P_PROMPT_EXCESS] if v.f[F_PREFILL_TOKENS] > 0.0 else c.params[P_DECODE_EXCESS]
    if excess != 0.0:
        for i in range(N_TIMES):
            v.out[i] *= 1.0 + excess


@njit(cache=True, error_model="numpy")
def step_time(cost: StepCost, f: FloatArray, out: FloatArray) -> None:
    """Write the seconds of one step into ``out`` (shape N_OUT) from its features ``f`` (shape N_FEATURES).

    Device seconds are ``O_DRAFT + O_TARGET + O_SAMPLE`` and equal the three origins' sum. A step without rows costs
    nothing. The host's seconds hide behind the device's only where ``P_OVERLAP_HOST`` and asynchronous scheduling say
    so; that is the caller's to apply.
    """
    _fill_times(cost, f, True, out)


@njit(cache=True, error_model="numpy")
def step_time_at_same_prefill(cost: StepCost, f: FloatArray, out: FloatArray) -> None:
    """Fill ``O_HOST``, ``O_DRAFT``, ``O_TARGET`` and ``O_SAMPLE`` as `step_time` does, in half the time.

    The call before, with the same ``out``, must have been for the same prefill rows: their attention is not computed
    again.
    """
    _fill_times(cost, f, False, out)


@njit(cache=True, error_model="numpy")
def decode_features(cost: StepCost, num_seqs: int, k: int, mean_context: float, f: FloatArray) -> None:
    """Fill ``f`` with a pure decode step: ``num_seqs`` requests verify k drafts each and k new ones are made.

    ``mean_context`` is a request's tokens in the KV cache before the step. For a tree method ``k`` is the depth.
    """
    for i in range(N_FEATURES):
        f[i] = 0.0
    p = borrowed(cost).params
    nodes = float(k)
    if p[P_IS_TREE] > 0.0:
        nodes = k * p[P_TREE_WIDTH]
        if p[P_MAX_TREE_NODES] > 0.0:
            nodes = min(nodes, p[P_MAX_TREE_NODES])
    n = float(num_seqs)
    context = mean_context + 1.0 + nodes
    f[F_TOKENS] = n * (1.0 + nodes)
    f[F_SEQS] = n
    f[F_DECODE_SEQS] = n
    f[F_DECODE_TOKENS] = f[F_TOKENS]
    f[F_DECODE_KV] = n * context
    f[F_DECODE_QKV] = f[F_TOKENS] * context
    cut = context
    if p[P_WINDOW] > 0.0:
        cut = min(context, p[P_WINDOW])
    f[F_WIN_DECODE_KV] = n * cut
    f[F_WIN_DECODE_QKV] = f[F_TOKENS] * cut
    f[F_LOGIT_ROWS] = f[F_TOKENS]
    plan = int(p[P_PLAN])
    if plan > 0 and k > 0:
        f[F_DRAFT_SEQS] = n
        f[F_DRAFT_TOKENS] = n * k
        f[F_DRAFT_PASSES] = k
        f[F_DRAFT_KV] = n * context
        if plan == HOST_SEARCH:
            f[F_PROPOSE_TOKENS] = n * context


@njit(cache=True, error_model="numpy")
def decode_step_seconds(cost: StepCost, num_seqs: int, k: int, mean_context: float) -> float:
    """Seconds of the step of `decode_features`, host included (hidden behind the device where it may be).

    For policies and closed forms; it allocates its two vectors, so it does not belong into a step loop's hot path.
    """
    f = np.empty(N_FEATURES)
    out = np.empty(N_OUT)
    decode_features(cost, num_seqs, k, mean_context, f)
    step_time(cost, f, out)
    device = out[O_DRAFT] + out[O_TARGET] + out[O_SAMPLE]
    params = borrowed(cost).params
    if params[P_OVERLAP_HOST] > 0.0 and params[P_ASYNC] > 0.0:
        return float(max(device, out[O_HOST]))
    return float(device + out[O_HOST])
