"""SmartSpec's rule: one draft length for the batch, by expected tokens per second at a moving acceptance."""

from __future__ import annotations

from numba import njit

from draftcast.sim.compiled.borrowed import borrowed
from draftcast.sim.cost.step_time import decode_step_seconds
from draftcast.sim.engine.state import Engine

GOODPUT_WEIGHT, GOODPUT_PROBE, N_GOODPUT_PARAMS = 0, 1, 2
GOODPUT_ALPHA, GOODPUT_IDLE, N_GOODPUT_STATE = 0, 1, 2


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
def decide_goodput(ref: Engine, slot: int) -> int:
    """Drafts for every request of the batch."""
    s = borrowed(ref)
    size = s.batch[slot].size
    entries = s.entries[slot]
    context = 0.0
    for j in range(size):
        context += entries[j].computed + entries[j].tokens
    drafts = goodput_drafts(ref, size, context / max(size, 1))
    probe = s.policy.params[GOODPUT_PROBE]
    state = s.policy.state
    if drafts > 0 or probe <= 0.0:
        state[GOODPUT_IDLE] = 0.0
        return int(drafts)
    # Without a draft now and then the rule would never learn that acceptance came back.
    state[GOODPUT_IDLE] += 1.0
    if state[GOODPUT_IDLE] >= probe:
        state[GOODPUT_IDLE] = 0.0
        drafts = min(1, s.config[0].k)
    return int(drafts)


@njit(cache=True)
def observe_goodput(ref: Engine, accepted: int, rejections: int) -> None:
    """Move alpha towards the share of tested drafts that were accepted."""
    s = borrowed(ref)
    tested = accepted + rejections
    if tested > 0:
        # accepted / tested is the maximum-likelihood alpha of i.i.d. acceptance cut at the first rejection.
        weight = s.policy.params[GOODPUT_WEIGHT]
        state = s.policy.state
        state[GOODPUT_ALPHA] = (1.0 - weight) * state[GOODPUT_ALPHA] + weight * accepted / tested
