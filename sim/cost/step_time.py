"""Seconds of one engine step from its features: the compiled half of the step cost.

`StepCost` is plain arrays, built by `sim/cost/step_cost.py`: tables by rows for linear layers, norms, collectives,
lm_head and sampler; attention (`sim/cost/attention_time.py`) goes by sums of the batch. Every table has one column per
`calibration/profile/roofline.Origin`: seconds stay split by how far they can be trusted.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from draftcast.calibration.profile.roofline import Origin
from draftcast.kernels.arrays import FloatArray, record_type
from draftcast.kernels.model.spec import WINDOWS
from draftcast.sim.compiled.borrowed import reference
from draftcast.sim.cost import attention_time as at
from draftcast.sim.cost.attention_time import KvSums, attention_seconds, launch_seconds, sums_of
from draftcast.sim.cost.methods import DraftPlan

Record = Any  # one row of a structured array: numba's fields are attributes, NumPy's are items
NO_SUMS = KvSums(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)

# What one step consists of. S is the context a request attends to, its new tokens included.
FEATURES = record_type(
    ("tokens", "f8"),  # all scheduled target rows: decode, verify and prefill
    ("seqs", "f8"),  # scheduled requests
    ("decode_seqs", "f8"),  # requests decoding or verifying
    ("decode_tokens", "f8"),  # their rows, sum(1 + k_i)
    ("decode_kv", "f8"),  # sum(S_i)
    ("decode_qkv", "f8"),  # sum((1 + k_i) * S_i)
    ("decode_longest", "f8"),  # the largest S_i
    ("prefill_seqs", "f8"),
    ("prefill_tokens", "f8"),  # sum of chunks c
    ("prefill_kv", "f8"),  # sum(context before + c)
    ("prefill_qkv", "f8"),  # sum(c * (context before + (c + 1) / 2))
    # The same four with S cut to the target's window; only read of a model with one (`window_of_decode`).
    ("win_decode_kv", "f8"),
    ("win_decode_qkv", "f8"),
    ("win_prefill_kv", "f8"),
    ("win_prefill_qkv", "f8"),
    ("logit_rows", "f8"),  # rows through lm_head and sampler
    ("draft_seqs", "f8"),  # requests for which drafts are made (searched, for text search) in this step
    ("draft_tokens", "f8"),  # drafts to make, summed
    ("draft_passes", "f8"),  # the largest number of drafts of one request (the depth of a tree)
    ("draft_kv", "f8"),  # context of the drafting requests, summed
    ("ahead_seqs", "f8"),  # of the drafting requests those whose drafts were made while others were verified
    ("all_ahead", "f8"),  # of mean steps the share in which those of all were, and ahead_seqs of the other steps
    ("propose_tokens", "f8"),  # context tokens searched on the host (0 for methods that search no text there)
    # Of data-parallel ranks that step together, see `sim/cluster/data_parallel.py`.
    ("group_tokens", "f8"),  # rows of all ranks, 0: as many on each
    ("graph_mode", "i8"),  # how all their passes run, only read where ``group_tokens`` is not 0
)

TIMES = record_type(
    ("host_s", "f8"),
    ("draft_s", "f8"),  # drafting on the device, or the host's text search
    ("target_s", "f8"),  # the target pass without lm_head
    ("sample_s", "f8"),  # lm_head and sampler
    ("prefill_s", "f8"),  # the part of target_s that would not be there without prefill rows
    ("by_origin_s", "f8", (3,)),  # draft_s + target_s + sample_s by `Origin`
    ("prefill_attention_s", "f8", (at.N_KINDS,)),  # what prefill rows took in each kind of attention layers
    ("graph_mode", "i8"),  # how the target's pass ran: EAGER to FULL_GRAPH
    ("verify_s", "f8"),  # what verification took besides kernels
    ("overhead_s", "f8"),  # what that added besides kernels: a part of target_s
    ("draft_overhead_s", "f8"),  # the same of the draft's passes, a part of draft_s
    ("launching_s", "f8"),  # the host's launches of the target's kernels, where no graph holds them
    ("waits_s", "f8"),  # the part of target_s in which the device waits for them
)

_FITS = (
    "fixed_s row_s kv_token_s sequence_s query_kv_s prefill_query_kv_s logit_row_s",
    "fixed_s pass_s row_s draft_token_s kv_token_s",
)
TARGET_FIT, DRAFT_FIT = (record_type(*((name, "f8") for name in names.split())) for names in _FITS)

# Scalars of a StepCost.
PARAMS = record_type(
    ("affine", "i8"),  # 1: whole-step affine fit, 0: roofline
    ("host_hides", "i8"),  # 1: the host's time hides behind the device's, 0: it adds to it
    ("window", "f8"),  # tokens that the target's layers with a window see, 0: none
    ("window_kind", "i8"),  # SLIDING, CHUNKED or TOP_K
    ("ranks", "f8"),  # data-parallel ranks that step together, 0: none
    ("draft_experts", "f8"),  # the draft's routed experts as a share of the target's
    ("hop_s", "f8"),  # from one pipeline stage to the next, and each row's part
    ("hop_row_s", "f8"),
    ("linear_layers", "i8"),  # the target's layers of linear attention
    ("host_fixed_s", "f8"),
    ("host_seq_s", "f8"),
    ("host_verify_s", "f8"),  # more of a step that verifies drafts, and of each request of it
    ("host_verify_seq_s", "f8"),
    ("stream_seq_s", "f8"),  # of the API servers, beside the engine: to send one request's tokens of a step
    ("cuda_graph_rows", "f8"),  # largest captured number of rows; more run without a CUDA graph
    ("prompt_graph_rows", "f8"),  # the same of a batch with a prompt, where it is larger
    ("uniform_rows", "f8"),  # rows a request of a uniform decode batch, 0: any equal number
    ("uniform_mode", "i8"),  # how uniform decode batches run, EAGER to FULL_GRAPH
    ("mixed_mode", "i8"),  # and all others
    ("uncaptured_mode", "i8"),  # and what exceeds the captured sizes
    ("target_mode_s", "f8", (4,)),  # seconds that each of these modes adds to the target's pass
    ("draft_mode", "i8"),  # how the draft's passes run inside the captured sizes
    ("draft_mode_s", "f8", (4,)),  # seconds that each mode adds to a pass of the draft
    ("target_launch_s", "f8"),  # host seconds to launch every kernel of an eager target pass
    ("prompt_launch_s", "f8"),  # to launch what is in no graph but in the target's passes with a prompt
    ("split_launch_s", "f8"),  # and to verify drafts beside it
    ("draft_launch_s", "f8"),  # to launch every kernel of one pass of the draft
    ("draft_host_s", "f8"),  # the same where no graph holds what the engine compiled
    ("draft_pass_s", "f8"),  # a draft pass besides its kernels
    ("draft_later_s", "f8"),  # the same of an autoregressive draft's passes behind the first
    ("verify_s", "f8"),  # a step that verifies drafts, besides the target's pass and the logits' kernels
    ("expands", "i8"),  # 1: each verified row is a sequence of its own
    ("plan", "i8"),  # draftcast.sim.cost.methods.DraftPlan
    ("extra_first_rows", "f8"),
    ("block_rows_beyond_k", "f8"),
    ("drafts_ahead", "f8"),  # 1: on GPUs of their own, while the target verifies those before them
    ("head_drafts", "f8"),  # of a head beside a text search, 0: all drafts are the head's
    ("tree_width", "f8"),
    ("max_tree_nodes", "f8"),  # 0: no limit
    ("tree_parents", "f8"),  # the most nodes of a level that grow children
    ("is_tree", "i8"),
    ("pads_searches", "i8"),  # 1: rows for drafts are there also where a text search finds none
    ("search_seq_s", "f8"),  # text search: seconds per request searched
    ("search_token_s", "f8"),  # seconds per context token searched on the host
    ("search_step_s", "f8"),  # seconds per step with a search
    # The affine fit's, as in `calibration/profile/spec.AffineProfile`.
    ("fit_target", TARGET_FIT),
    ("fit_draft", DRAFT_FIT),
    ("fit_search_fraction", "f8"),
    ("fit_low_seqs", "f8"),
    ("fit_high_seqs", "f8"),
    ("fit_target_origin", "i8"),
    ("fit_draft_origin", "i8"),
    ("fit_high_rows", "f8"),  # end of the fit's curve over rows, 0: it has none
    # Share by which a step takes longer than predicted, without and with prompts; used to attribute errors.
    ("decode_excess", "f8"),
    ("prompt_excess", "f8"),
)

_, AUTOREGRESSIVE, PARALLEL, HEADS, CONTEXT_BLOCK, HOST_SEARCH, DEVICE_SEARCH = map(int, DraftPlan)
SLIDING, CHUNKED, TOP_K = range(len(WINDOWS))
# How a pass runs: eagerly; compiled, but beyond the captured sizes; graphs with attention between them; one graph.
EAGER, UNCAPTURED, PIECEWISE_GRAPHS, FULL_GRAPH = range(4)
MEASURED, INTERPOLATED, EXTRAPOLATED = int(Origin.MEASURED), int(Origin.INTERPOLATED), int(Origin.EXTRAPOLATED)


class StepCost(NamedTuple):
    """A scenario's step cost as arrays. Tables have shape (rows + 1, 3): seconds by number of rows and origin."""

    params: NDArray[Any]  # PARAMS[1]
    # The target pass without attention and lm_head by scheduled rows (padded to the capture size inside); of an affine
    # fit, its curve over rows.
    target: FloatArray
    logits: FloatArray  # lm_head and sampler by logit rows
    draft_first: FloatArray  # by rows of the first pass (or of the context projection)
    draft_next: FloatArray  # by rows of every later pass (or of the block)
    draft_logits: FloatArray  # the draft's lm_head by rows
    draft_serial: FloatArray  # one head of a multi-head draft by requests
    attention: NDArray[Any]  # a row per kind of attention layer
    attention_grids: FloatArray  # the measured grids they point to
    experts: FloatArray  # the target's routed experts by the rows of all data-parallel ranks that step together
    stages: FloatArray  # [pipeline stages], each one's share of the layers


def cost_without_tables(params: NDArray[Any], curve: FloatArray | None = None) -> StepCost:
    """A step cost of its scalars alone, and of a curve over rows if there is one: all that an affine fit needs."""
    none = np.zeros((1, 3))
    target = none if curve is None else curve
    kinds = np.zeros(at.N_KINDS, at.ATTENTION)
    return StepCost(params, target, none, none, none, none, none, kinds, none[0], none, np.ones(1))


def empty_record(dtype: np.dtype[Any]) -> Record:
    """One row of zeros, as `step_time` and `decode_features` take it."""
    return np.zeros(1, dtype)[0]


@njit(cache=True, forceinline=True)
def _book(out: Record, origin: int, seconds: float) -> None:
    # In a function of its own: dead-code elimination drops such a store where others are inlined (see `borrowed`).
    out.by_origin_s[origin] += seconds


@njit(cache=True, error_model="numpy")
def _book_difference(out: Record, seconds: float, measured: bool) -> None:
    """What a shared launch takes more than launches apart, or less: the least certain seconds go first."""
    if seconds >= 0.0:
        _book(out, INTERPOLATED if measured else EXTRAPOLATED, seconds)
        return
    for origin in (EXTRAPOLATED, INTERPOLATED, MEASURED):
        part = min(-seconds, out.by_origin_s[origin])
        _book(out, origin, -part)
        seconds += part


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
def _add_table(table: FloatArray, rows: float, times: float, out: Record) -> float:
    """`_table_seconds` x ``times``, also added to the origins in ``out``."""
    last = table.shape[0] - 1
    i = int(rows)
    scale = times
    if i > last:
        if last == 0:
            return 0.0
        scale = times * rows / last
        i = last
    seconds = 0.0
    for origin in range(3):
        part = scale * table[i, origin]
        _book(out, origin, part)
        seconds += part
    return seconds


@njit(cache=True, error_model="numpy")
def graph_mode(p: Record, f: Record) -> int:
    """How the target's pass of a step runs: as one graph, in pieces, or kernel by kernel."""
    if f.group_tokens > 0.0:
        return int(f.graph_mode)
    if f.tokens > max(p.cuda_graph_rows, p.prompt_graph_rows if f.prefill_tokens > 0.0 else 0.0):
        return int(p.uncaptured_mode)
    if f.prefill_tokens > 0.0 or f.decode_seqs <= 0.0:
        return int(p.mixed_mode)
    rows = f.decode_tokens / f.decode_seqs
    uniform = rows == p.uniform_rows if p.uniform_rows > 0.0 else rows == math.floor(rows)
    return int(p.uniform_mode if uniform else p.mixed_mode)


@njit(cache=True, error_model="numpy")
def _with_overhead(seconds: float, added_s: float, floor_s: float, out: Record) -> float:
    """``seconds`` and what the engine adds; an eager pass lasts at least as long as the host launches its kernels."""
    added_s = max(added_s, floor_s - seconds)
    _book(out, EXTRAPOLATED, added_s)
    return seconds + added_s


@njit(cache=True, error_model="numpy")
def _drafted(seconds: float, rows: float, times: float, pass_s: float, p: Record, out: Record) -> float:
    """Seconds of ``times`` passes of the draft over ``rows`` rows, from those of their kernels."""
    mode = p.uncaptured_mode if rows > p.cuda_graph_rows else p.draft_mode
    floor_s = times * p.draft_launch_s if mode == EAGER else 0.0
    whole = _with_overhead(seconds, times * (pass_s + p.draft_mode_s[mode]), floor_s, out)
    out.draft_overhead_s += whole - seconds
    return whole


@njit(cache=True, error_model="numpy")
def _experts(cost: StepCost, f: Record, rows: float, times: float, out: Record) -> float:
    """``times`` x seconds of the target's routed experts: ``rows`` of this rank and those of the others as in ``f``."""
    ranks = f.group_tokens / f.tokens if f.group_tokens > 0.0 else cost.params[0].ranks
    return float(_add_table(cost.experts, rows * ranks, times, out))


@njit(cache=True, error_model="numpy")
def _prefill_attention(cost: StepCost, row: int, prompts: KvSums, new_prefill: float, out: Record) -> float:
    """Seconds of prompts in layers of kind ``row``; those of the call before where they are not new."""
    if new_prefill > 0.0:
        out.prefill_attention_s[row] = attention_seconds(cost.attention[row], cost.attention_grids, prompts, 1.0, out)
    return float(out.prefill_attention_s[row])


@njit(cache=True, error_model="numpy")
def _target_attention(
    cost: StepCost, row: int, decode: KvSums, longest: float, prompts: KvSums, new_prefill: float, out: Record
) -> tuple[float, float]:
    """Seconds of the target's layers of kind ``row`` (of decodes): with the prompts, and without."""
    kind = cost.attention[row]
    grids = cost.attention_grids
    prefill_s = _prefill_attention(cost, row + at.PREFILL, prompts, new_prefill, out)
    decode_s = attention_seconds(kind, grids, decode, 1.0, out)
    alone = launch_seconds(kind, grids, decode_s, decode, longest, 0.0, NO_SUMS)
    both = launch_seconds(kind, grids, decode_s, decode, longest, prefill_s, prompts)
    _book_difference(out, both - decode_s - prefill_s, kind.launch_grid >= 0)
    return both, alone


@njit(cache=True, error_model="numpy", inline="always")
def _target_seconds(
    cost: StepCost, f: Record, decode: KvSums, prompts: KvSums, new_prefill: float, out: Record
) -> None:
    p = cost.params[0]
    grids = cost.attention_grids
    rows = f.tokens
    decode_rows = f.decode_tokens
    if p.expands and decode_rows > f.decode_seqs:
        decode = sums_of(grids, f.decode_qkv, f.decode_qkv, decode_rows, decode_rows)
    seconds = _add_table(cost.target, rows, 1.0, out)
    if p.ranks > 0.0:
        seconds += _experts(cost, f, rows, 1.0, out)
    both, alone = _target_attention(cost, at.DECODE, decode, f.decode_longest, prompts, new_prefill, out)
    without_prefill = seconds + alone
    seconds += both
    if p.window > 0.0:
        kv = f.win_decode_qkv if decode.seqs == decode_rows else f.win_decode_kv
        decode = sums_of(grids, f.win_decode_qkv, kv, decode_rows, decode.seqs)
        cut = sums_of(grids, f.win_prefill_qkv, f.win_prefill_kv, f.prefill_tokens, f.prefill_seqs)
        longest = min(f.decode_longest, p.window)
        both, alone = _target_attention(cost, at.DECODE_WINDOW, decode, longest, cut, new_prefill, out)
        without_prefill += alone
        seconds += both
    if p.linear_layers > 0:
        states = sums_of(grids, f.prefill_tokens, f.prefill_seqs, f.prefill_tokens, f.prefill_seqs)
        prefill_s = _prefill_attention(cost, at.LINEAR_PREFILL, states, new_prefill, out)
        states = sums_of(grids, decode_rows, f.decode_seqs, decode_rows, f.decode_seqs)
        decode_s = attention_seconds(cost.attention[at.LINEAR_DECODE], grids, states, 1.0, out)
        without_prefill += decode_s
        seconds = seconds + decode_s + prefill_s
    mode = out.graph_mode
    floor = p.prompt_launch_s if f.prefill_tokens > 0.0 else 0.0
    floor += p.split_launch_s if f.prefill_tokens > 0.0 and decode_rows > f.decode_seqs else 0.0
    floor += p.target_launch_s if mode == EAGER else 0.0
    out.target_s = _with_overhead(seconds, p.target_mode_s[mode], floor, out)
    out.overhead_s = out.target_s - seconds
    out.launching_s = floor
    out.waits_s = max(floor - seconds - p.target_mode_s[mode], 0.0)
    if f.prefill_tokens > 0.0 and new_prefill > 0.0:
        alone = 0.0
        if decode_rows > 0.0:
            alone = without_prefill - _table_seconds(cost.target, rows) + _table_seconds(cost.target, decode_rows)
            if p.ranks > 0.0:
                group = f.group_tokens if f.group_tokens > 0.0 else rows * p.ranks
                left = max(group - f.prefill_tokens, decode_rows)
                alone -= _table_seconds(cost.experts, group) - _table_seconds(cost.experts, left)
            # As if the decoding requests ran alone in the same way: a mixed step's graphs are its prompts' doing.
            way = p.uncaptured_mode if decode_rows > p.cuda_graph_rows else p.uniform_mode
            alone += p.target_mode_s[way]
            if way == EAGER:
                alone = max(alone, p.target_launch_s)
        out.prefill_s = max(out.target_s - alone, 0.0)


@njit(cache=True, error_model="numpy")
def _draft_block(cost: StepCost, f: Record, rows: float, kv: float, times: float, out: Record) -> float:
    """``times`` x seconds of a draft pass over ``rows`` rows of the drafting requests with ``kv`` context tokens."""
    p = cost.params[0]
    seconds = _add_table(cost.draft_next, rows, times, out)
    if p.draft_experts > 0.0:
        seconds += _experts(cost, f, rows, times * p.draft_experts, out)
    batch = sums_of(cost.attention_grids, kv * rows / f.draft_seqs, kv, rows, f.draft_seqs)
    for row in (at.DRAFT_DECODE, at.DRAFT_DECODE_WINDOW):
        seconds += attention_seconds(cost.attention[row], cost.attention_grids, batch, times, out)
    return _drafted(seconds, rows, times, p.draft_later_s if p.plan == AUTOREGRESSIVE else p.draft_pass_s, p, out)


@njit(cache=True, error_model="numpy", inline="always")
def _draft_seconds(cost: StepCost, f: Record, decode: KvSums, prompts: KvSums, new_prefill: float, out: Record) -> None:
    p = cost.params[0]
    plan = p.plan
    seqs = f.draft_seqs
    tokens = f.draft_tokens
    passes = f.draft_passes
    kv = f.draft_kv
    drafting = seqs > 0.0 and passes > 0.0
    seconds = 0.0
    if plan in (AUTOREGRESSIVE, PARALLEL):
        extra = p.extra_first_rows * seqs
        extra_qkv = p.extra_first_rows * kv
        if plan == PARALLEL:
            extra = max(tokens + p.block_rows_beyond_k * seqs, 0.0) if drafting else 0.0
            extra_qkv = kv * extra / seqs if drafting else 0.0
        rows = f.tokens + extra
        seconds = _add_table(cost.draft_first, rows, 1.0, out)
        if p.draft_experts > 0.0:
            seconds += _experts(cost, f, rows, p.draft_experts, out)
        # Requests that draft right after their prefill attend through draft_kv alone.
        if extra != 0.0:
            decode_rows = f.decode_tokens + extra
            decode = sums_of(cost.attention_grids, f.decode_qkv + extra_qkv, f.decode_kv, decode_rows, f.decode_seqs)
        for row in (at.DRAFT_DECODE, at.DRAFT_DECODE_WINDOW):
            seconds += attention_seconds(cost.attention[row], cost.attention_grids, decode, 1.0, out)
        for row in (at.DRAFT_PREFILL, at.DRAFT_PREFILL_WINDOW):
            seconds += _prefill_attention(cost, row, prompts, new_prefill, out)
        seconds = _drafted(seconds, rows, 1.0, p.draft_pass_s, p, out)
        if drafting:
            seconds += _add_table(cost.draft_logits, tokens if plan == PARALLEL else seqs, 1.0, out)
        later = passes - 1.0 + p.drafts_ahead  # one more: the guess at the token that the target adds
        if plan == AUTOREGRESSIVE and drafting and later > 0.0:
            rows = seqs * p.tree_width
            # Pass j attends to j tokens more; the mean over the passes is exact, the time being close to linear.
            seconds += _draft_block(cost, f, rows, kv + seqs * passes / 2.0, later, out)
            seconds += _add_table(cost.draft_logits, rows, later, out)
    elif plan == HEADS:
        if drafting:
            if p.head_drafts > 0.0:
                passes = min(passes, p.head_drafts)
            seconds = _add_table(cost.draft_first, seqs, 1.0, out) + _add_table(cost.draft_serial, seqs, passes, out)
            seconds = _drafted(seconds, seqs, 1.0, p.draft_pass_s, p, out)
        if f.propose_tokens > 0.0:  # the search comes before the head's passes, for all requests
            search = p.search_step_s + p.search_seq_s * f.seqs
            _book(out, EXTRAPOLATED, search)
            seconds += search
    elif plan == CONTEXT_BLOCK:
        seconds = _add_table(cost.draft_first, f.tokens, 1.0, out)
        if drafting:
            rows = tokens + p.block_rows_beyond_k * seqs
            seconds += _draft_block(cost, f, rows, kv + rows, 1.0, out)
            seconds += _add_table(cost.draft_logits, tokens, 1.0, out)
            seconds += _add_table(cost.draft_serial, seqs, passes, out)
    elif plan >= HOST_SEARCH and (seqs > 0.0 or f.propose_tokens > 0.0):
        seconds = p.search_step_s + p.search_seq_s * seqs + p.search_token_s * f.propose_tokens
        _book(out, EXTRAPOLATED, seconds)
    out.draft_s = seconds


@njit(cache=True, error_model="numpy")
def _shown_ahead(cost: StepCost, f: Record, before: tuple[float, float, float], out: Record) -> float:
    """What shows of drafts on GPUs of their own: as far as they outlast the target, then all that are made anew.

    What is drafted ahead is kept for ``ahead_seqs`` requests; all others wait for as many passes again. ``before``:
    ``by_origin_s`` without the draft.
    """
    share = max(1.0 - (out.target_s + out.sample_s) / out.draft_s, 0.0) if out.draft_s > 0.0 else 0.0
    for origin in range(3):
        out.by_origin_s[origin] = before[origin] + share * (out.by_origin_s[origin] - before[origin])
    out.draft_overhead_s *= share
    seconds = share * out.draft_s
    seqs = f.draft_seqs
    anew = seqs - f.ahead_seqs
    if anew > 0.0 and f.draft_passes > 0.0:
        f.draft_seqs = anew
        passes = f.draft_passes * (1.0 - f.all_ahead)
        seconds += _draft_block(cost, f, anew, f.draft_kv * anew / seqs + anew * f.draft_passes / 2.0, passes, out)
        seconds += _add_table(cost.draft_logits, anew, passes, out)
        f.draft_seqs = seqs
    return float(seconds)


@njit(cache=True, error_model="numpy", inline="always")
def _affine(cost: StepCost, f: Record, out: Record) -> None:
    p = cost.params[0]
    # The fit counts the KV tokens that stand in the cache before the step.
    prefill_kv = f.prefill_kv - f.prefill_tokens
    kv = f.decode_kv - f.decode_tokens + prefill_kv
    curve = _table_seconds(cost.target, f.tokens)
    fit = p.fit_target
    target = fit.fixed_s + fit.row_s * f.tokens + fit.kv_token_s * kv + fit.sequence_s * f.seqs
    target += curve + fit.query_kv_s * f.decode_qkv + fit.prefill_query_kv_s * f.prefill_qkv
    target += fit.logit_row_s * f.logit_rows
    out.target_s = target
    if f.decode_tokens > 0.0:
        prefill = fit.row_s * f.prefill_tokens + fit.kv_token_s * prefill_kv
        prefill += curve - _table_seconds(cost.target, f.decode_tokens)
        prefill += fit.prefill_query_kv_s * f.prefill_qkv
        prefill += fit.logit_row_s * (f.logit_rows - f.decode_tokens)
        out.prefill_s = prefill + fit.sequence_s * f.prefill_seqs
    else:
        out.prefill_s = target
    draft = 0.0
    if p.plan == AUTOREGRESSIVE:
        drafted = p.fit_draft
        draft = drafted.fixed_s + drafted.draft_token_s * f.draft_tokens + drafted.kv_token_s * kv
        draft += drafted.pass_s * f.draft_passes + drafted.row_s * f.tokens
    elif p.plan >= HOST_SEARCH and (f.draft_seqs > 0.0 or f.propose_tokens > 0.0):
        draft = p.fit_search_fraction * target + p.search_step_s + p.search_seq_s * f.draft_seqs
        draft += p.search_token_s * f.draft_kv
    out.draft_s = draft
    target_origin = p.fit_target_origin
    draft_origin = p.fit_draft_origin
    if f.seqs < p.fit_low_seqs or f.seqs > p.fit_high_seqs:
        target_origin = draft_origin = EXTRAPOLATED
    if f.tokens > p.fit_high_rows > 0.0:
        target_origin = EXTRAPOLATED
    _book(out, target_origin, target)
    _book(out, draft_origin, draft)


@njit(cache=True, error_model="numpy")
def fill_times(cost: StepCost, f: Record, new_prefill: float, out: Record) -> None:
    """`step_time`; where ``new_prefill`` is 0, of the same step less some drafts, in half the time, no ``prefill_s``.

    The call before, with the same ``out``, must then have been for the whole step, whose attention of prefill rows,
    graphs and verification are kept. The flag is a float because numba compiles a function anew for every literal
    number.
    """
    p = cost.params[0]
    _clear_times(out)
    if f.tokens <= 0.0:
        return
    if new_prefill > 0.0:
        out.graph_mode = graph_mode(p, f)
        out.verify_s = p.verify_s if f.decode_tokens > f.decode_seqs else 0.0
    out.host_s = p.host_fixed_s + p.host_seq_s * (f.seqs + p.expands * (f.decode_tokens - f.decode_seqs))
    if out.verify_s > 0.0:
        out.host_s += p.host_verify_s + p.host_verify_seq_s * f.decode_seqs
    if p.affine:
        _affine(cost, f, out)
    else:
        decode = sums_of(cost.attention_grids, f.decode_qkv, f.decode_kv, f.decode_tokens, f.decode_seqs)
        prompts = sums_of(cost.attention_grids, f.prefill_qkv, f.prefill_kv, f.prefill_tokens, f.prefill_seqs)
        _target_seconds(cost, f, decode, prompts, new_prefill, out)
        launched_s = p.draft_host_s * max(f.draft_passes, 1.0)  # while the device runs the target
        out.host_s += launched_s if p.host_hides else max(launched_s - out.target_s, 0.0)
        out.sample_s = _with_overhead(_add_table(cost.logits, f.logit_rows, 1.0, out), out.verify_s, 0.0, out)
        before = (out.by_origin_s[0], out.by_origin_s[1], out.by_origin_s[2])
        _draft_seconds(cost, f, decode, prompts, new_prefill, out)
        if p.drafts_ahead > 0.0:
            out.draft_s = _shown_ahead(cost, f, before, out)
    excess = p.prompt_excess if f.prefill_tokens > 0.0 else p.decode_excess
    if excess != 0.0:
        _stretch_times(out, 1.0 + excess)
    stream_s = p.stream_seq_s * f.decode_seqs
    if stream_s > step_seconds(cost, out):
        # In the long run a step lasts as long as its outputs take to be sent, which counts as the host's time.
        out.host_s = stream_s if p.host_hides else stream_s - out.draft_s - out.target_s - out.sample_s


@njit(cache=True, error_model="numpy", forceinline=True)
def _clear_times(out: Record) -> None:
    """All but the attention of prefill rows, which a call for the same rows still needs."""
    out.host_s = out.draft_s = out.target_s = out.sample_s = out.prefill_s = out.overhead_s = out.draft_overhead_s = 0.0
    out.launching_s = out.waits_s = 0.0
    for origin in range(3):
        out.by_origin_s[origin] = 0.0


@njit(cache=True, error_model="numpy", forceinline=True)
def _stretch_times(out: Record, factor: float) -> None:
    out.host_s *= factor
    out.draft_s *= factor
    out.target_s *= factor
    out.sample_s *= factor
    out.prefill_s *= factor
    out.launching_s *= factor
    out.waits_s *= factor
    for origin in range(3):
        out.by_origin_s[origin] *= factor


@njit(cache=True, error_model="numpy")
def step_time(cost: StepCost, f: Record, out: Record) -> None:
    """Write the seconds of one step into ``out`` (a record of `TIMES`) from its features ``f`` (one of `FEATURES`).

    Device seconds are ``draft_s + target_s + sample_s``, the three origins' sum; `step_seconds` adds the host's.
    """
    fill_times(reference(cost), f, 1.0, out)


@njit(cache=True, error_model="numpy")
def step_seconds(cost: StepCost, out: Record) -> float:
    """Seconds of a step among many alike: the host's hide behind the device's where ``host_hides`` says so."""
    device_s = out.draft_s + out.target_s + out.sample_s
    if cost.params[0].host_hides:
        return float(max(device_s, out.host_s + out.launching_s))
    return float(device_s + out.host_s)


@njit(cache=True, error_model="numpy")
def window_of_decode(kind: int, window: float, context: float, rows: float) -> tuple[float, float]:
    """(tokens read, (query, token) pairs) of ``rows`` last tokens of a ``context`` in a layer with a window.

    Rows of a chunk count as in the last one's, and of an indexer's choice each reads its own.
    """
    seen = (context - 1) % window + 1 if kind == CHUNKED else min(context, window)
    return rows * seen if kind == TOP_K else seen, rows * seen


@njit(cache=True, error_model="numpy")
def window_of_prompt(kind: int, window: float, before: float, rows: float) -> tuple[float, float]:
    """The same of a prompt's ``rows`` tokens after ``before`` others."""
    if kind == CHUNKED:
        start, end = before % window, (before + rows) % window
        whole = (before + rows) // window - before // window
        pairs = whole * 0.5 * window * (window + 1) + 0.5 * (end * (end + 1) - start * (start + 1))
        return start + rows, pairs
    growing = min(max(window - before, 0.0), rows)  # rows whose window reaches back to the first token
    pairs = growing * before + 0.5 * growing * (growing + 1) + (rows - growing) * window
    # Neighbouring queries of an indexer choose much the same tokens: caches serve all but the first.
    return before + rows if kind == TOP_K else min(before + rows, window + rows), pairs


@njit(cache=True, error_model="numpy")
def fill_decode(
    f: Record, window_kind: int, window: float, seqs: float, rows: float, kv: float, mean_kv: float
) -> None:
    """Fill ``f`` with a pure decode step that makes no drafts: ``kv`` context tokens, ``mean_kv`` a request."""
    read = pairs = mean_kv
    if window > 0.0:
        read, pairs = window_of_decode(window_kind, window, mean_kv, rows / seqs)
    f.tokens = f.decode_tokens = f.logit_rows = rows
    f.seqs = f.decode_seqs = seqs
    f.decode_kv = kv
    f.decode_qkv = rows * mean_kv
    f.decode_longest = mean_kv
    f.win_decode_kv = seqs * read
    f.win_decode_qkv = seqs * pairs
    f.prefill_seqs = f.prefill_tokens = f.prefill_kv = f.prefill_qkv = f.win_prefill_kv = f.win_prefill_qkv = 0.0
    f.draft_seqs = f.draft_tokens = f.draft_passes = f.draft_kv = f.propose_tokens = f.group_tokens = 0.0
    f.ahead_seqs = f.all_ahead = 0.0


@njit(cache=True, error_model="numpy")
def decode_features(cost: StepCost, num_seqs: int, k: int, mean_context: float, f: Record) -> None:
    """Fill ``f`` with a pure decode step: ``num_seqs`` requests verify k drafts each and k new ones are made.

    ``mean_context`` is a request's tokens in the KV cache before the step. For a tree method ``k`` is the depth.
    """
    p = cost.params[0]
    nodes = float(k)
    if p.is_tree:
        nodes = 0.0
        level = 1.0
        for _ in range(k):
            level = min(level, p.tree_parents) * p.tree_width
            nodes += level
        if p.max_tree_nodes > 0.0:
            nodes = min(nodes, p.max_tree_nodes)
    n = float(num_seqs)
    context = mean_context + 1.0 + nodes
    fill_decode(f, p.window_kind, p.window, n, n * (1.0 + nodes), n * context, context)
    if p.plan > 0 and k > 0:
        f.draft_seqs = n
        f.draft_tokens = n * k
        f.draft_passes = k
        f.draft_kv = n * context
        if p.plan == HOST_SEARCH or p.head_drafts > 0.0:
            f.propose_tokens = n * context


@njit(cache=True, error_model="numpy")
def expect_ahead(f: Record, kept: float) -> None:
    """Of requests with drafts made one round ahead (`_shown_ahead`) each keeps them with probability ``kept``."""
    f.all_ahead = kept**f.draft_seqs
    f.ahead_seqs = f.draft_seqs
    if f.all_ahead < 1.0:
        f.ahead_seqs -= f.draft_seqs * (1.0 - kept) / (1.0 - f.all_ahead)


@njit(cache=True, error_model="numpy")
def decode_step_seconds(cost: StepCost, num_seqs: int, k: int, mean_context: float, kept: float = 0.0) -> float:
    """Seconds of the step of `decode_features`, host included; ``kept``: as of `expect_ahead`.

    It allocates its two records, so it does not belong into a step loop's hot path.
    """
    c = reference(cost)
    features, times = np.empty(1, FEATURES), np.empty(1, TIMES)
    decode_features(c, num_seqs, k, mean_context, features[0])
    expect_ahead(features[0], kept)
    fill_times(c, features[0], 1.0, times[0])
    seconds = step_seconds(c, times[0])
    # A record does not keep its array alive in compiled code: both are read after the last use of theirs.
    return seconds if features.size == times.size else math.nan
