"""SGLang's rule: candidate lengths by batch size, walked by the moving accepted length."""

from __future__ import annotations

from numba import njit

from draftcast.sim.compiled.borrowed import borrowed
from draftcast.sim.engine.state import Engine

# Four shared parameters, then one row a tier; state is three numbers a tier.
TIER_WEIGHT, TIER_INTERVAL, TIER_WARMUP, TIER_COUNT, TIER_FIRST = 0, 1, 2, 3, 4
TIER_BATCH, TIER_DOWN, TIER_UP, TIER_STEPS, TIER_STEP_0, MAX_TIER_STEPS = 0, 1, 2, 3, 4, 12
TIER_ROW = TIER_STEP_0 + MAX_TIER_STEPS
TIER_INDEX, TIER_EMA, TIER_SEEN, TIER_STATE = 0, 1, 2, 3


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
def decide_tier(ref: Engine, num_seqs: int) -> int:
    """Drafts for every request of a batch of ``num_seqs``: where its tier stands."""
    s = borrowed(ref)
    tier = tier_of(ref, num_seqs)
    index = int(s.policy.state[tier * TIER_STATE + TIER_INDEX])
    return int(s.policy.params[TIER_FIRST + tier * TIER_ROW + TIER_STEP_0 + index])


@njit(cache=True)
def observe_tier(ref: Engine, rounds: int, accepted: int, sampled: int) -> None:
    """Take an output of ``sampled`` requests into their tier's average, and walk when it is time."""
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
