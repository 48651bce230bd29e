"""AdaServe: first the drafts that bring late requests back to their TPOT, then the likeliest, within a budget."""

from __future__ import annotations

from numba import njit

from draftcast.sim.compiled.borrowed import borrowed
from draftcast.sim.engine.rules.forecast import draft_levels, host_terms, undrafted_seconds, with_host
from draftcast.sim.engine.rules.selection import forecast_drafts, pick_likeliest, settle
from draftcast.sim.engine.state import Engine

SLO_SLACK, SLO_TPOT_0 = 0, 1  # then the TPOT in seconds of every class, 0 without one


@njit(cache=True)
def decide_slo_aware(ref: Engine, slot: int) -> None:
    """Fill ``next_drafts`` and ``drafted``; ``policy.state[i]`` is what the i-th drafting request needs."""
    s = borrowed(ref)
    e = s.engine[0]
    entries = s.entries[slot]
    order = s.policy.order
    survival = s.policy.scratch
    stride = entries.size
    need = s.policy.state
    row_s = s.policy.row_s
    k = s.config[0].k
    most = draft_levels(ref, k)
    n = forecast_drafts(ref, slot, most)
    if n == 0 or most == 0:
        return

    # The budget: the most levels with which a step takes at most so much longer than without any.
    rest_s = undrafted_seconds(ref, slot, n, n * k, most) - row_s[n]
    host = host_terms(ref)
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
    pick_likeliest(ref, slot, n, most, budget)
    settle(ref, slot, n, most)
