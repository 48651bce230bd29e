"""Bandits over the draft length of a batch, one for every power of two of its size: Nightjar and BanditSpec.

The loss of a step is its time per emitted token, less what its prefill rows took. State: a header, then for every
context what is locked, then for every context and arm how often it was seen and its mean loss.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from draftcast.sim.compiled.borrowed import borrowed
from draftcast.sim.compiled.random_streams import uniform
from draftcast.sim.engine.rules.forecast import draft_levels
from draftcast.sim.engine.state import Engine

BANDIT_UCB, BANDIT_EXPLORATION, BANDIT_SWITCH_S, N_BANDIT_PARAMS = 0, 1, 2, 3
# A step's decision is judged by the next step's output, at most three steps later.
BANDIT_RECENT, BANDIT_KEY, BANDIT_DRAWS, BANDIT_LAST, BANDIT_CONTEXTS = 0, 4, 5, 6, 7
LOCK_LEFT, LOCK_ARM, LOCK_BLOCK, LOCK_BIN, LOCK_SIZE = 0, 1, 2, 3, 4
ARM_SEEN, ARM_LOSS, ARM_SIZE = 0, 1, 2


def bandit_state(arms: int, max_num_seqs: int, key: int) -> list[float]:
    """State with nothing learned; ``key`` is a random 64-bit key, of which a float holds the first 53 bits exactly."""
    contexts = max_num_seqs.bit_length()
    header = [0.0] * BANDIT_CONTEXTS
    header[BANDIT_KEY] = float(key >> 11)
    return header + [0.0, 0.0, 1.0, 0.0] * contexts + [0.0] * (contexts * arms * ARM_SIZE)


@njit(cache=True)
def context_of(num_seqs: int) -> int:
    """0 for one request, 1 for 2-3, 2 for 4-7, ..."""
    context = 0
    while num_seqs > 1:
        num_seqs >>= 1
        context += 1
    return context


@njit(cache=True)
def _arms_at(ref: Engine, context: int, arms: int) -> int:
    s = borrowed(ref)
    per_context = LOCK_SIZE + arms * ARM_SIZE
    contexts = (s.policy.state.size - BANDIT_CONTEXTS) // per_context
    return int(BANDIT_CONTEXTS + contexts * LOCK_SIZE + context * arms * ARM_SIZE)


@njit(cache=True)
def _draw(ref: Engine) -> float:
    state = borrowed(ref).policy.state
    state[BANDIT_DRAWS] += 1.0
    return uniform(np.uint64(state[BANDIT_KEY]), int(state[BANDIT_DRAWS]))


@njit(cache=True)
def _best_ucb(ref: Engine, at: int, arms: int) -> int:
    """BanditSpec: the arm with the highest upper confidence bound; arms never seen come first, in order."""
    s = borrowed(ref)
    state = s.policy.state
    seen = 0.0
    least = math.inf
    for arm in range(arms):
        x = at + arm * ARM_SIZE
        if state[x + ARM_SEEN] == 0.0:
            return arm
        seen += state[x + ARM_SEEN]
        least = min(least, state[x + ARM_LOSS])
    best = 0
    best_bound = -1.0
    for arm in range(arms):
        x = at + arm * ARM_SIZE
        radius = math.sqrt(2.0 * math.log(seen) / state[x + ARM_SEEN])
        bound = least / state[x + ARM_LOSS] + s.policy.params[BANDIT_EXPLORATION] * radius
        if bound > best_bound:
            best, best_bound = arm, bound
    return best


@njit(cache=True)
def _best_bin(ref: Engine, at: int, context: int, arms: int) -> int:
    """Nightjar: an arm is locked for a bin of steps; the b-th bin of a block explores with probability 1/b."""
    s = borrowed(ref)
    state = s.policy.state
    lock = BANDIT_CONTEXTS + context * LOCK_SIZE
    if state[lock + LOCK_LEFT] > 0.0:
        state[lock + LOCK_LEFT] -= 1.0
        return int(state[lock + LOCK_ARM])
    length = 2.0 ** (state[lock + LOCK_BLOCK] - 1.0)
    state[lock + LOCK_BIN] += 1.0
    if state[lock + LOCK_BIN] > length:
        state[lock + LOCK_BLOCK] += 1.0
        state[lock + LOCK_BIN] = 1.0
        length *= 2.0
    if _draw(ref) * state[lock + LOCK_BIN] < 1.0:
        arm = int(_draw(ref) * arms)
    else:
        arm = 0
        least = math.inf
        for other in range(arms):
            x = at + other * ARM_SIZE
            if state[x + ARM_SEEN] == 0.0:
                continue
            loss = state[x + ARM_LOSS]
            if state[BANDIT_LAST] == 0.0 and other > 0:
                loss += s.policy.params[BANDIT_SWITCH_S] / other
            if loss < least:
                arm, least = other, loss
    state[lock + LOCK_ARM] = arm
    state[lock + LOCK_LEFT] = length - 1.0
    return arm


@njit(cache=True)
def decide_bandit(ref: Engine, num_seqs: int) -> int:
    """Drafts for every request of a batch of ``num_seqs``."""
    s = borrowed(ref)
    state = s.policy.state
    k = s.config[0].k
    arms = draft_levels(ref, k) + 1
    context = context_of(num_seqs)
    at = _arms_at(ref, context, arms)
    is_ucb = s.policy.params[BANDIT_UCB] > 0.0
    arm = _best_ucb(ref, at, arms) if is_ucb else _best_bin(ref, at, context, arms)
    state[BANDIT_RECENT + (s.engine[0].step & 3)] = arm
    state[BANDIT_LAST] = arm
    return int(arm * k // max(arms - 1, 1))


@njit(cache=True)
def observe_bandit(ref: Engine, slot: int, emitted: int, elapsed_s: float) -> None:
    """Book the time per token of a collected step on the arm that made the drafts it verified."""
    s = borrowed(ref)
    batch = s.batch[slot]
    decode_s = elapsed_s - batch.prefill_s
    if decode_s <= 0.0 or batch.step == 0:
        return
    state = s.policy.state
    arms = draft_levels(ref, s.config[0].k) + 1
    arm = int(state[BANDIT_RECENT + ((batch.step - 1) & 3)])
    x = _arms_at(ref, context_of(batch.size), arms) + arm * ARM_SIZE
    state[x + ARM_SEEN] += 1.0
    state[x + ARM_LOSS] += (decode_s / emitted - state[x + ARM_LOSS]) / state[x + ARM_SEEN]
