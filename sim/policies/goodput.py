"""One draft length for the batch, by expected tokens per second at a moving acceptance: SmartSpec, TurboSpec."""

from dataclasses import dataclass
from typing import Annotated

from numba import njit

from draftcast.sim.cost.step_time import decode_step_seconds
from draftcast.sim.policies.base import Policy, Share, ShareAbove0, arrays, draft_alike, whole
from draftcast.sim.state.engine import EngineState, PolicyArrays

GOODPUT_WEIGHT, GOODPUT_PROBE = 0, 1
GOODPUT_ALPHA, GOODPUT_IDLE = 0, 1


@njit(cache=True)
def goodput_drafts(s: EngineState, num_seqs: int, mean_context: float) -> int:
    """The k in 0..num_speculative_tokens with the most expected tokens per second; of a tree, whole levels."""
    c = s.config[0]
    alpha = s.policy.state[GOODPUT_ALPHA]
    best = 0
    best_rate = 0.0
    expected = 0.0
    reach = 1.0
    most = c.tree_depth if c.tree_depth > 0 else c.max_drafts
    for k in range(most + 1):
        expected += reach  # 1 + alpha + ... + alpha^k
        reach *= alpha  # k drafts are accepted and the next one too: those made one round ahead are kept
        rate = expected / decode_step_seconds(s.cost, num_seqs, k, mean_context, reach)
        if rate > best_rate:
            best, best_rate = k, rate
    return best if c.tree_depth == 0 else best * c.max_drafts // c.tree_depth


@njit(cache=True)
def decide_goodput(s: EngineState, slot: int) -> None:
    size = s.batch[slot].size
    entries = s.entries[slot]
    context = 0.0
    for j in range(size):
        context += entries[j].computed + entries[j].tokens
    drafts = goodput_drafts(s, size, context / max(size, 1))
    probe = s.policy.params[GOODPUT_PROBE]
    state = s.policy.state
    if drafts > 0 or probe <= 0.0:
        state[GOODPUT_IDLE] = 0.0
    else:
        # Without a draft now and then the rule would never learn that acceptance came back.
        state[GOODPUT_IDLE] += 1.0
        if state[GOODPUT_IDLE] >= probe:
            state[GOODPUT_IDLE] = 0.0
            drafts = min(1, s.config[0].max_drafts)
    draft_alike(s, slot, int(drafts))


@njit(cache=True)
def observe_goodput(s: EngineState, slot: int) -> None:
    """Move alpha towards the share of tested drafts that were accepted."""
    batch = s.batch[slot]
    tested = batch.accepted + batch.rejections
    if tested > 0:
        # accepted / tested is the maximum-likelihood alpha of i.i.d. acceptance cut at the first rejection.
        weight = s.policy.params[GOODPUT_WEIGHT]
        state = s.policy.state
        state[GOODPUT_ALPHA] = (1.0 - weight) * state[GOODPUT_ALPHA] + weight * batch.accepted / tested


@dataclass(frozen=True)
class Goodput(Policy):
    """SmartSpec: the k with the most expected tokens per second (arXiv 2406.14066, section 4).

    Expected tokens of a round are 1 + alpha + ... + alpha^k with one moving-average alpha for the replica; the
    seconds come from the step cost at the batch's size and mean context.
    """

    weight: ShareAbove0 = 0.1  # of a new step in the moving average
    initial_acceptance: Share = 0.7  # alpha before the first round
    # After so many steps in a row without drafts, one step drafts one token so that alpha can recover; 0 never probes.
    probe_interval_steps: Annotated[int, whole(0)] = 64
    rule = decide_goodput
    learn = observe_goodput

    def compile(self, k: int, max_num_seqs: int, seed: int = 0) -> PolicyArrays:
        return arrays(params=[self.weight, self.probe_interval_steps], state=[self.initial_acceptance, 0.0])
