"""Compiled draft-length rules: how many drafts the requests of a step get, verified in the next step.

A rule fills ``next_drafts`` of the scheduled batch; the engine applies it. ``draftcast.sim.policies`` says where
each rule comes from and packs its parameters. A Python policy writes the same column between two compiled calls.
"""

from __future__ import annotations

from numba import njit

from draftcast.sim.borrowed import borrowed
from draftcast.sim.engine.rules.oracle import decide_oracle
from draftcast.sim.engine.state import Engine
from draftcast.sim.step_time import decode_step_seconds

KIND_FIXED, KIND_TABLE, KIND_GOODPUT, KIND_EMA_TIERS, KIND_ORACLE, KIND_PYTHON = 0, 1, 2, 3, 4, 5

# goodput: parameters and state
GOODPUT_WEIGHT, GOODPUT_PROBE, N_GOODPUT_PARAMS = 0, 1, 2
GOODPUT_ALPHA, GOODPUT_IDLE, N_GOODPUT_STATE = 0, 1, 2

# ema_tiers: four shared parameters, then one row a tier; state is three numbers a tier
TIER_WEIGHT, TIER_INTERVAL, TIER_WARMUP, TIER_COUNT, TIER_FIRST = 0, 1, 2, 3, 4
TIER_BATCH, TIER_DOWN, TIER_UP, TIER_STEPS, TIER_STEP_0, MAX_TIER_STEPS = 0, 1, 2, 3, 4, 12
TIER_ROW = TIER_STEP_0 + MAX_TIER_STEPS
TIER_INDEX, TIER_EMA, TIER_SEEN, TIER_STATE = 0, 1, 2, 3


@njit(cache=True)
def goodput_drafts(ref: Engine, num_seqs: int, mean_context: float) -> int:
    """The k in 0..num_speculative_tokens with the most expected tokens per second; of a tree, whole levels."""
    s = borrowed(ref)
    c = s.config[0]
    alpha = s.policy.state[GOODPUT_ALPHA]
    best = 0
    best_rate = 0.0
    expected = 0.0
    reach = 1.0
    most = c.tree_depth if c.tree_depth > 0 else c.k
    for k in range(most + 1):
        expected += reach  # 1 + alpha + ... + alpha^k
        reach *= alpha
        rate = expected / decode_step_seconds(s.cost, num_seqs, k, mean_context)
        if rate > best_rate:
            best, best_rate = k, rate
    return best if c.tree_depth == 0 else best * c.k // c.tree_depth


@njit(cache=True)
def tier_of(ref: Engine, num_seqs: int) -> int:
    """The last tier whose batch size does not exceed ``num_seqs``."""
    s = borrowed(ref)
    params = s.policy.params
    tier = 0
    for t in range(1, int(params[TIER_COUNT])):
        if params[TIER_FIRST + t * TIER_ROW + TIER_BATCH] <= num_seqs:
            tier = t
    return tier


@njit(cache=True)
def decide(ref: Engine, slot: int) -> None:
    """Fill ``next_drafts`` of the batch in ``slot``; chunks of a prefill draft nothing."""
    s = borrowed(ref)
    batch = s.batch[slot]
    entries = s.entries[slot]
    kind = s.policy.kind[0]
    k = s.config[0].k
    if kind == KIND_ORACLE:
        decide_oracle(ref, slot)
        return
    if kind == KIND_FIXED:
        drafts = int(s.policy.table[0])
    elif kind == KIND_TABLE:
        drafts = int(s.policy.table[batch.size])
    elif kind == KIND_GOODPUT:
        context = 0.0
        for j in range(batch.size):
            context += entries[j].computed + entries[j].tokens
        drafts = goodput_drafts(ref, batch.size, context / max(batch.size, 1))
        probe = s.policy.params[GOODPUT_PROBE]
        if drafts == 0 and probe > 0.0:
            # Without a draft now and then the rule would never learn that acceptance came back.
            s.policy.state[GOODPUT_IDLE] += 1.0
            if s.policy.state[GOODPUT_IDLE] >= probe:
                s.policy.state[GOODPUT_IDLE] = 0.0
                drafts = min(1, k)
        else:
            s.policy.state[GOODPUT_IDLE] = 0.0
    else:
        tier = tier_of(ref, batch.size)
        index = int(s.policy.state[tier * TIER_STATE + TIER_INDEX])
        drafts = int(s.policy.params[TIER_FIRST + tier * TIER_ROW + TIER_STEP_0 + index])
    for j in range(batch.size):
        entries[j].next_drafts = 0 if entries[j].is_chunk else drafts


@njit(cache=True)
def _observe_tier(ref: Engine, rounds: int, accepted: int, sampled: int) -> None:
    s = borrowed(ref)
    params = s.policy.params
    tier = tier_of(ref, sampled)
    row = TIER_FIRST + tier * TIER_ROW
    state = s.policy.state[tier * TIER_STATE : (tier + 1) * TIER_STATE]
    steps = params[row + TIER_STEP_0 : row + TIER_STEP_0 + int(params[row + TIER_STEPS])]
    index = int(state[TIER_INDEX])
    if steps[index] > 0.0 and rounds > 0:
        weight = params[TIER_WEIGHT]
        state[TIER_EMA] = (1.0 - weight) * state[TIER_EMA] + weight * accepted / rounds
    state[TIER_SEEN] += 1.0
    past_warmup = state[TIER_SEEN] - params[TIER_WARMUP]
    if past_warmup <= 0.0 or past_warmup % params[TIER_INTERVAL] != 0.0:
        return
    if steps[index] == 0.0:  # probe the smallest positive length after an interval without drafts
        index = min(index + 1, steps.size - 1)
        if steps[index] > 0.0 and state[TIER_EMA] < 0.0:
            state[TIER_EMA] = steps[index] - 1.0
        state[TIER_INDEX] = index
        return
    start = index
    while index > 0:
        below = steps[index - 1]
        drop = (0.5 if below == 0.0 else below - 0.5) + params[row + TIER_DOWN]
        if state[TIER_EMA] > drop:
            break
        index -= 1
    if index == start:
        while index < steps.size - 1 and state[TIER_EMA] > steps[index] - 0.5 + params[row + TIER_UP]:
            index += 1
    state[TIER_INDEX] = index


@njit(cache=True)
def observe(ref: Engine, rounds: int, accepted: int, rejections: int, sampled: int) -> None:
    """Let the rule learn from a collected step: rounds with drafts, accepted drafts, rounds that rejected."""
    s = borrowed(ref)
    kind = s.policy.kind[0]
    if kind == KIND_GOODPUT:
        tested = accepted + rejections
        if tested > 0:
            # accepted / tested is the maximum-likelihood alpha of i.i.d. acceptance cut at the first rejection.
            weight = s.policy.params[GOODPUT_WEIGHT]
            state = s.policy.state
            state[GOODPUT_ALPHA] = (1.0 - weight) * state[GOODPUT_ALPHA] + weight * accepted / tested
    elif kind == KIND_EMA_TIERS and sampled > 0:
        _observe_tier(ref, rounds, accepted, sampled)
