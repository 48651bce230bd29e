"""Try draft lengths and keep to the one that works: Nightjar, BanditSpec.

One bandit for every power of two of the batch's size. State: a header, then for every context what is locked. Of every
context and arm ``policy.order`` holds how often it was seen and ``policy.scratch`` its mean loss, see `observe_bandit`.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numba import njit

from draftcast.sim.compiled.random_streams import Stream, stream_key, uniform
from draftcast.sim.policies.base import Allowed, AtLeast0, Policy, arrays, draft_alike
from draftcast.sim.policies.forecast import draft_levels
from draftcast.sim.state.engine import Array, EngineState, PolicyArrays

BANDIT_UCB, BANDIT_EXPLORATION, BANDIT_SWITCH_S = 0, 1, 2
# A step's decision is judged by the next step's output, at most three steps later.
BANDIT_RECENT, BANDIT_KEY, BANDIT_DRAWS, BANDIT_LAST, BANDIT_CONTEXTS = 0, 4, 5, 6, 7
LOCK_LEFT, LOCK_ARM, LOCK_BLOCK, LOCK_BIN, LOCK_SIZE = 0, 1, 2, 3, 4


@njit(cache=True)
def context_of(num_seqs: int) -> int:
    """0 for one request, 1 for 2-3, 2 for 4-7, ..."""
    context = 0
    while num_seqs > 1:
        num_seqs >>= 1
        context += 1
    return context


@njit(cache=True)
def _draw(s: EngineState) -> float:
    state = s.policy.state
    state[BANDIT_DRAWS] += 1.0
    return uniform(np.uint64(state[BANDIT_KEY]), int(state[BANDIT_DRAWS]))


@njit(cache=True)
def _best_ucb(s: EngineState, seen: Array, loss: Array) -> int:
    """BanditSpec: the arm with the highest upper confidence bound; arms never seen come first, in order."""
    steps = 0
    least = math.inf
    for arm in range(seen.size):
        if seen[arm] == 0:
            return arm
        steps += seen[arm]
        least = min(least, loss[arm])
    best = 0
    best_bound = -1.0
    for arm in range(seen.size):
        radius = math.sqrt(2.0 * math.log(steps) / seen[arm])
        bound = least / loss[arm] + s.policy.params[BANDIT_EXPLORATION] * radius
        if bound > best_bound:
            best, best_bound = arm, bound
    return best


@njit(cache=True)
def _best_bin(s: EngineState, context: int, seen: Array, loss: Array) -> int:
    """Nightjar: an arm is locked for a bin of steps; the b-th bin of a block explores with probability 1/b."""
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
    if _draw(s) * state[lock + LOCK_BIN] < 1.0:
        arm = int(_draw(s) * seen.size)
    else:
        arm = 0
        least = math.inf
        for other in range(seen.size):
            if seen[other] == 0:
                continue
            other_s = loss[other]
            if state[BANDIT_LAST] == 0.0 and other > 0:
                other_s += s.policy.params[BANDIT_SWITCH_S] / other
            if other_s < least:
                arm, least = other, other_s
    state[lock + LOCK_ARM] = arm
    state[lock + LOCK_LEFT] = length - 1.0
    return arm


@njit(cache=True)
def decide_bandit(s: EngineState, slot: int) -> None:
    state = s.policy.state
    k = s.config[0].max_drafts
    arms = draft_levels(s, k) + 1
    context = context_of(s.batch[slot].size)
    seen = s.policy.order[context * arms : (context + 1) * arms]
    loss = s.policy.scratch[context * arms : (context + 1) * arms]
    is_ucb = s.policy.params[BANDIT_UCB] > 0.0
    arm = _best_ucb(s, seen, loss) if is_ucb else _best_bin(s, context, seen, loss)
    state[BANDIT_RECENT + (s.engine[0].step & 3)] = arm
    state[BANDIT_LAST] = arm
    draft_alike(s, slot, int(arm * k // max(arms - 1, 1)))


@njit(cache=True)
def observe_bandit(s: EngineState, slot: int) -> None:
    """Book a step's time per token, less what its prefill rows took, on the arm that made the drafts it verified."""
    batch = s.batch[slot]
    decode_s = batch.elapsed_s - batch.prefill_s
    if batch.emitted == 0 or decode_s <= 0.0 or batch.step == 0:
        return
    seen, loss = s.policy.order, s.policy.scratch
    arms = draft_levels(s, s.config[0].max_drafts) + 1
    at = context_of(batch.size) * arms + int(s.policy.state[BANDIT_RECENT + ((batch.step - 1) & 3)])
    seen[at] += 1
    loss[at] += (decode_s / batch.emitted - loss[at]) / seen[at]


@dataclass(frozen=True)
class Bandit(Policy):
    """One length for the batch, 0..num_speculative_tokens, learned from the time each took per emitted token.

    What was learned is kept apart by batch size, as in Nightjar; sizes are pooled by powers of two.

    ``bin_greedy`` (Nightjar, arXiv 2512.22420, after ADA-BINGREEDY): a length is locked for a bin of steps. Block j has
    2^(j-1) bins of 2^(j-1) steps. The b-th bin of a block tries a random length with probability 1/b; else it takes the
    one with the least mean loss, plus ``switch_cost_s`` / length when drafting resumes after a bin without.

    ``ucb`` (BanditSpec, arXiv 2505.15141, algorithm 4): every step takes the length with the highest upper confidence
    bound, the mean reward plus ``exploration`` * sqrt(2 ln t / n), t steps in all and n with this length; each is tried
    once first. The reward is tokens per second relative to the best length's mean, so that it lies in about 0..1 (the
    paper counts accepted tokens, its lengths having equal cost).

    The simulated draft keeps its KV cache up to date in steps without drafts, so resuming really costs nothing;
    ``switch_cost_s`` is what the rule is told.
    """

    algorithm: Annotated[str, Allowed("must be one of bin_greedy, ucb", ("bin_greedy", "ucb").__contains__)] = (
        "bin_greedy"
    )
    exploration: AtLeast0 = 0.1  # weight of the confidence radius of ``ucb``
    switch_cost_s: AtLeast0 = 0.0  # cost of resuming that ``bin_greedy`` reckons with
    rule = decide_bandit
    learn = observe_bandit

    def compile(self, k: int, max_num_seqs: int, seed: int = 0) -> PolicyArrays:
        contexts = max_num_seqs.bit_length()
        header = [0.0] * BANDIT_CONTEXTS
        header[BANDIT_KEY] = float(stream_key(seed, Stream.POLICY) >> 11)  # a float holds the first 53 bits exactly
        cells = contexts * (k + 1)  # a tree has fewer levels than nodes; what it does not need stays empty
        return arrays(
            params=[float(self.algorithm == "ucb"), self.exploration, self.switch_cost_s],
            state=header + [0.0, 0.0, 1.0, 0.0] * contexts,
            scratch=cells,
            order=cells,
        )
