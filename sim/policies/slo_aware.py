"""Drafts by deadline first, then by likelihood: AdaServe."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit

from draftcast.errors import ScenarioError
from draftcast.sim.policies.base import AT_LEAST_0, AtLeast0
from draftcast.sim.policies.forecast import draft_levels, host_terms, undrafted_seconds, with_host
from draftcast.sim.policies.selection import SelectingPolicy, forecast_drafts, pick_likeliest, settle
from draftcast.sim.state.engine import EngineState

SLO_SLACK, SLO_TPOT_0 = 0, 1  # then the TPOT in seconds of every class, 0 without one
MOST_CLASSES = 128  # their ids are signed bytes


@njit(cache=True)
def decide_slo_aware(s: EngineState, slot: int) -> None:
    e = s.engine[0]
    entries = s.entries[slot]
    order = s.policy.order
    survival = s.policy.scratch
    stride = entries.size
    need = s.policy.state  # of the i-th drafting request
    row_s = s.policy.row_s
    k = s.config[0].max_drafts
    most = draft_levels(s, k)
    n = forecast_drafts(s, slot, most, False)
    if n == 0 or most == 0:
        return

    # The budget: the most levels with which a step takes at most so much longer than without any.
    rest_s = undrafted_seconds(s, slot, n, n * k, most) - row_s[n]
    host = host_terms(s)
    plain_s = with_host(rest_s + row_s[n], host)
    allowed_s = (1.0 + s.policy.params[SLO_SLACK]) * plain_s
    budget = n * most
    while budget > 0 and with_host(rest_s + row_s[n + int(budget * (k / most))], host) > allowed_s:
        budget -= 1

    # Tokens each must get in its next round, which ends after this step and the one that verifies.
    end_s = max(e.host_s, e.device_s) + 2.0 * plain_s
    for i in range(n):
        r = s.requests[entries[order[i]].request]
        tpot_s = s.policy.params[SLO_TPOT_0 + r.class_id]
        need[i] = 0.0
        if tpot_s > 0.0 and r.first_token_s >= 0.0:
            need[i] = 1.0 + (end_s - r.first_token_s) / tpot_s - r.future

    # The latest first, as few drafts as its forecast needs.
    while budget > 0:
        worst = 0
        for i in range(1, n):
            if need[i] > need[worst]:
                worst = i
        if need[worst] <= 1.0:
            break
        x = entries[order[worst]]
        expected = 1.0
        while x.next_drafts < most and budget > 0 and expected < need[worst]:
            expected += survival[x.next_drafts * stride + worst]
            x.next_drafts += 1
            budget -= 1
        need[worst] = 0.0
    pick_likeliest(s, slot, n, most, budget)
    settle(s, slot, n, most)


@dataclass(frozen=True)
class SloAware(SelectingPolicy):
    """Every request drafts ``num_speculative_tokens``; verified are those it needs for its TPOT, then the likeliest.

    Rule (AdaServe, arXiv 2501.12162, section 4): a request that was t seconds past its first token at the end of the
    next round must have t / TPOT tokens by then; what it lacks, less the token every round yields, is what its drafts
    must bring. In order of what they lack, requests get the shortest prefix whose forecast (the sum of its survivals)
    brings that. What is left of the budget goes to the likeliest drafts of the batch, as in ``tetris``.

    The budget is what the hardware verifies almost for nothing: the most drafts for which a decode step takes at most
    ``latency_slack`` longer than with none verified (the paper sets it from a profile of the device; AdaSpec, arXiv
    2503.05096, likewise bounds the length by a forecast of the step's latency). Requests without a TPOT only take part
    in the second half.
    """

    # SLO, seconds per output token after the first: one for all classes, or one each in the order of their ids; 0 for
    # none. A scenario's own SLO is taken when it is absent.
    tpot_s: float | Sequence[float]
    latency_slack: AtLeast0 = 0.25  # share by which verification may lengthen a step
    rule = decide_slo_aware

    def __post_init__(self) -> None:
        super().__post_init__()
        for value in np.atleast_1d(np.asarray(self.tpot_s, object)):
            if not AT_LEAST_0.holds(value):
                raise ScenarioError("must be seconds, at least 0", key="policy.tpot_s", value=value)

    def parameters(self) -> list[float]:
        by_class = np.zeros(MOST_CLASSES)
        by_class[: np.size(self.tpot_s) if np.ndim(self.tpot_s) else None] = self.tpot_s
        return [self.latency_slack, *by_class]
