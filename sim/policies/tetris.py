"""Draft for all, verify the likeliest of the whole batch within a capacity: TETRIS."""

from dataclasses import dataclass

from numba import njit

from draftcast.sim.policies.base import Share
from draftcast.sim.policies.forecast import draft_levels
from draftcast.sim.policies.selection import SelectingPolicy, forecast_drafts, pick_likeliest, settle
from draftcast.sim.state.engine import EngineState

TETRIS_SHARE = 0


@njit(cache=True)
def decide_tetris(s: EngineState, slot: int) -> None:
    most = draft_levels(s, s.config[0].max_drafts)
    n = forecast_drafts(s, slot, most, False)
    pick_likeliest(s, slot, n, most, int(s.policy.params[TETRIS_SHARE] * n * most))
    settle(s, slot, n, most)


@dataclass(frozen=True)
class Tetris(SelectingPolicy):
    """Every request drafts ``num_speculative_tokens``; of all these drafts a capacity is verified, the likeliest first.

    Rule: a draft's worth is the product of the confidences up to it, the chance that it is reached and accepted. The
    ``capacity`` largest of the batch are verified; worth never rises along a request, so each gets a prefix. This is
    the best choice of that many drafts in a step (TETRIS, arXiv 2502.15197, section 4). The paper's capacity is a
    number of tokens, the batch's size times the length that a fixed window would verify; here it is a share of what was
    drafted.
    """

    capacity: Share = 0.5  # of the batch's drafts, which is verified
    rule = decide_tetris
