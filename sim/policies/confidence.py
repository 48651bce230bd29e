"""Stop drafting when the drafts so far have become unlikely: SpecDec++, DISCO."""

from dataclasses import dataclass

from numba import njit

from draftcast.sim.policies.base import Share
from draftcast.sim.policies.forecast import draft_levels
from draftcast.sim.policies.selection import SelectingPolicy, forecast_drafts
from draftcast.sim.state.engine import EngineState


@njit(cache=True)
def decide_confidence(s: EngineState, slot: int) -> None:
    entries = s.entries[slot]
    k = s.config[0].max_drafts
    most = draft_levels(s, k)
    least_survival, least_confidence = 1.0 - s.policy.params[0], s.policy.params[1]
    n = forecast_drafts(s, slot, most, False)
    survival = s.policy.scratch
    stride = entries.size
    for i in range(n):
        levels = 0
        before = 1.0
        while levels < most:
            after = survival[levels * stride + i]
            levels += 1
            if after < least_survival or after < least_confidence * before:
                break
            before = after
        x = entries[s.policy.order[i]]
        x.next_drafts = x.drafted = levels if k == most else levels * k // max(most, 1)  # a tree's levels hold several


@dataclass(frozen=True)
class Confidence(SelectingPolicy):
    """Each request drafts on until its draft is no longer sure; the draft that ends the round is verified too.

    Rule: with c_j the confidence in draft j, a round ends with the first draft after which the chance that some draft
    of it will be rejected, 1 - c_1 ... c_j, exceeds ``max_rejection_probability`` (SpecDec++, arXiv 2405.19715, section
    4: the optimal policy of a Markov decision process is such a threshold), or whose own c_j is below
    ``min_confidence`` (DISCO, arXiv 2405.04304: a classifier of the draft's probabilities with a threshold).

    A batch pays as many draft passes as its longest round has drafts. The decision needs the draft's own output: it is
    taken on the device, while drafting.
    """

    max_rejection_probability: Share = 0.7  # 1 never stops
    min_confidence: Share = 0.0  # 0 never stops
    rule = decide_confidence
