"""Draft first, pick afterwards: every request's drafts with their forecast survival, ranked over the whole batch.

Work spaces of the policy, for at most S requests of k levels: ``scratch[level * S + i]`` is the survival of the i-th
drafting request's draft of that level. ``order`` holds S batch entries, the ranked candidates, the candidates as they
came, and the counts of the sort. A candidate is one number that sorts by falling survival (to 1e-12), then by level,
then by request.
"""

from __future__ import annotations

from numba import njit

from draftcast.sim.acceptance import prefix_survival
from draftcast.sim.borrowed import borrowed
from draftcast.sim.engine.state import Engine

LEVEL_BITS, REQUEST_BITS, SURVIVAL_BITS, BUCKET_BITS = 7, 15, 40, 8
INDEX_BITS = LEVEL_BITS + REQUEST_BITS
BUCKETS = (1 << BUCKET_BITS) + 1  # survival 0 has one of its own


def work_spaces(k: int, max_num_seqs: int) -> dict[str, int]:
    """Lengths of the work spaces that the functions below need, as arguments of ``policies.base.arrays``."""
    drafts = max_num_seqs * k
    return {"scratch": drafts, "order": max_num_seqs + 2 * drafts + BUCKETS + 1, "rows": max_num_seqs + drafts}


@njit(cache=True, forceinline=True)
def level_of(candidate: int) -> int:
    """The candidate's level, from 0."""
    return (candidate >> REQUEST_BITS) & ((1 << LEVEL_BITS) - 1)


@njit(cache=True, forceinline=True)
def request_of(candidate: int) -> int:
    """Which of the drafting requests the candidate belongs to."""
    return candidate & ((1 << REQUEST_BITS) - 1)


@njit(cache=True)
def forecast_drafts(ref: Engine, slot: int, most: int) -> int:
    """Drafting requests of the batch, and the survival of their ``most`` levels; how many they are."""
    s = borrowed(ref)
    entries = s.entries[slot]
    order = s.policy.order
    stride = entries.size
    n = 0
    for j in range(s.batch[slot].size):
        x = entries[j]
        x.next_drafts = 0
        x.drafted = 0
        if not x.is_chunk:
            order[n] = j
            prefix_survival(s.acceptance, x.request, s.requests[x.request].future, most, s.policy.scratch, n, stride)
            n += 1
    return n


@njit(cache=True)
def rank_drafts(ref: Engine, slot: int, n: int, most: int) -> int:
    """Sort the n * most candidates; where the ranking starts in ``order``.

    A request's survival never rises from level to level, so the first candidates of the ranking are always whole
    prefixes.
    """
    s = borrowed(ref)
    order = s.policy.order
    survival = s.policy.scratch
    first = s.entries[slot].size
    counts = order.size - BUCKETS - 1
    unsorted = first + (counts - first) // 2
    to_bucket = INDEX_BITS + SURVIVAL_BITS - BUCKET_BITS
    for b in range(BUCKETS + 1):
        order[counts + b] = 0
    total = 0
    for level in range(most):
        for i in range(n):
            lost = int((1.0 - survival[level * first + i]) * (1 << SURVIVAL_BITS))
            candidate = lost << INDEX_BITS | level << REQUEST_BITS | i
            order[unsorted + total] = candidate
            order[counts + 1 + (candidate >> to_bucket)] += 1
            total += 1
    for b in range(BUCKETS):
        order[counts + b + 1] += order[counts + b]
    for c in range(total):
        candidate = order[unsorted + c]
        b = counts + (candidate >> to_bucket)
        order[first + order[b]] = candidate
        order[b] += 1
    # Buckets are in order, what is inside one is not yet.
    for at in range(first + 1, first + total):
        candidate = order[at]
        to = at
        while to > first and order[to - 1] > candidate:
            order[to] = order[to - 1]
            to -= 1
        order[to] = candidate
    return int(first)


@njit(cache=True)
def grant(ref: Engine, slot: int, n: int, most: int, first: int, last: int) -> None:
    """Have candidates ``first..last - 1`` of ``order`` verified; every drafting request has made all it may."""
    s = borrowed(ref)
    entries = s.entries[slot]
    order = s.policy.order
    k = s.config[0].k
    for at in range(first, last):
        entries[order[request_of(order[at])]].next_drafts += 1
    for i in range(n):
        x = entries[order[i]]
        if k != most:  # a tree's levels hold several drafts
            x.next_drafts = x.next_drafts * k // max(most, 1)
        x.drafted = k
