"""DSpark's prefix scheduler: verify the likeliest drafts for as long as each adds to the batch's tokens per second."""

from __future__ import annotations

from numba import njit

from draftcast.sim.borrowed import borrowed
from draftcast.sim.engine.rules.forecast import draft_levels, host_terms, undrafted_seconds, with_host
from draftcast.sim.engine.rules.selection import forecast_drafts, level_of, rank_drafts, request_of, settle
from draftcast.sim.engine.state import Engine

ADAPTIVE_EARLY_STOP = 0


@njit(cache=True)
def decide_adaptive_verification(ref: Engine, slot: int) -> None:
    """Fill ``next_drafts`` and ``drafted``."""
    s = borrowed(ref)
    k = s.config[0].k
    most = draft_levels(ref, k)
    n = forecast_drafts(ref, slot, most)
    if n == 0 or most == 0:
        return
    # Drafting is paid for already; the step's time then goes by the rows that are verified.
    order = s.policy.order
    survival = s.policy.scratch
    row_s = s.policy.row_s
    rest_s = undrafted_seconds(ref, slot, n, n * k, most) - row_s[n]
    host = host_terms(ref)
    first = rank_drafts(ref, slot, n, most)
    nodes = k / most
    early_stop = s.policy.params[ADAPTIVE_EARLY_STOP] > 0.0
    tokens = float(n)
    best_tokens, best_s = tokens, with_host(rest_s + row_s[n], host)
    taken = 0
    for levels in range(1, n * most + 1):
        candidate = order[first + levels - 1]
        tokens += survival[level_of(candidate) * first + request_of(candidate)]
        seconds = with_host(rest_s + row_s[n + int(levels * nodes)], host)
        if tokens * best_s > best_tokens * seconds:
            best_tokens, best_s, taken = tokens, seconds, levels
        elif early_stop:
            break
    entries = s.entries[slot]
    left = n * most - taken
    if left < taken:  # mostly all: less work to take the others away
        for i in range(n):
            entries[order[i]].next_drafts = most
        for at in range(first + taken, first + taken + left):
            entries[order[request_of(order[at])]].next_drafts -= 1
    else:
        for at in range(first, first + taken):
            entries[order[request_of(order[at])]].next_drafts += 1
    settle(ref, slot, n, most)
