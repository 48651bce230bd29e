"""Draft first, pick afterwards: every request's drafts with their forecast survival, the likeliest of the whole batch.

Work spaces of the policy, for at most S requests of k levels: ``scratch[level * S + i]`` is the survival of the i-th
drafting request's draft of that level, two rows more serve its forecast. ``order`` holds S batch entries, twice S * k
numbers for the forecast and then for the candidates, and the counts of the sort. A candidate is one number that sorts
by falling survival (to 1e-12), then by level, then by request.
"""

from dataclasses import fields
from typing import Any, ClassVar

import numpy as np
from numba import njit

from draftcast.sim.acceptance.confidence import describe_alike, describe_drafts, forecast_survival, rounds_are_alike
from draftcast.sim.policies.base import Policy, arrays
from draftcast.sim.state.engine import Array, EngineState, PolicyArrays

LEVEL_BITS, REQUEST_BITS, SURVIVAL_BITS = 7, 15, 40
INDEX_BITS = LEVEL_BITS + REQUEST_BITS
SURE, TO_SHARE = 1 << SURVIVAL_BITS, 2.0**-SURVIVAL_BITS
# Buckets by the survival's highest bits, and one of its own for survival 0: few to find one place in the ranking, more
# to sort it.
PICK_BITS, SORT_BITS = 6, 8
PICK_BUCKETS, SORT_BUCKETS = (1 << PICK_BITS) + 1, (1 << SORT_BITS) + 1


class SelectingPolicy(Policy):
    """Base of the policies whose rules use the functions below; what it holds are the rule's parameters, in order."""

    needs_confidence: ClassVar[bool] = True

    def compile(self, k: int, max_num_seqs: int, seed: int = 0) -> PolicyArrays:
        drafts = max_num_seqs * k
        return arrays(
            params=self.parameters(),
            state=np.zeros(max_num_seqs),
            scratch=drafts + 2 * max_num_seqs,
            order=max_num_seqs + 2 * drafts + SORT_BUCKETS + 1,
            rows=max_num_seqs + drafts,
        )

    def parameters(self) -> list[float]:
        policy: Any = self  # a dataclass
        return [float(getattr(self, field.name)) for field in fields(policy)]


@njit(cache=True, forceinline=True)
def lost_of(candidate: int) -> int:
    """What the candidate's survival lacks to 1, in units of ``TO_SHARE``."""
    return candidate >> INDEX_BITS


@njit(cache=True, forceinline=True)
def request_of(candidate: int) -> int:
    """Which of the drafting requests the candidate belongs to."""
    return candidate & ((1 << REQUEST_BITS) - 1)


@njit(cache=True)
def forecast_drafts(s: EngineState, slot: int, most: int, round_before: bool) -> int:
    """Fill ``order`` with the drafting requests and ``scratch`` with the survival of their levels; how many they are.

    With ``round_before`` the survival is that of the drafts which this step verifies, the last that is known while the
    next are being made; 1 of a request without any (vLLM 0.32).
    """
    entries = s.entries[slot]
    order = s.policy.order
    stride = entries.size
    draws = order[stride:]
    alike = rounds_are_alike(s.acceptance)
    n = 0
    for j in range(s.batch[slot].size):
        x = entries[j]
        x.next_drafts = x.drafted = 0
        if not x.is_chunk:
            order[n] = j
            future = s.requests[x.request].future
            if round_before:
                future -= x.accepted + 1
            describe_drafts(s.acceptance, x.request, future, most, s.policy.scratch, draws, n, stride, alike)
            n += 1
    if alike:
        describe_alike(s.acceptance, most, s.policy.scratch, draws, n, stride)
    forecast_survival(s.policy.scratch, draws, n, most, stride)
    if round_before:
        for i in range(n):
            x = entries[order[i]]
            verifies = x.tokens == 1 + x.drafts and not x.padded
            if not verifies or s.requests[x.request].future == x.accepted + 1:  # its prompt ends here
                for level in range(most):
                    s.policy.scratch[level * stride + i] = 1.0
    return n


@njit(cache=True, forceinline=True)
def _candidate(survival: float, level: int, request: int) -> int:
    lost = int((1.0 - survival) * SURE)
    return lost << INDEX_BITS | level << REQUEST_BITS | request


@njit(cache=True, forceinline=True)
def _sort_nearly_sorted(numbers: Array, size: int) -> None:
    # Most that are not in order stand beside their place: a first round without a branch, which cannot be guessed.
    largest = numbers[0]
    for at in range(1, size):
        number = numbers[at]
        numbers[at - 1] = min(largest, number)
        largest = max(largest, number)
        numbers[at] = largest
    for at in range(1, size):
        number = numbers[at]
        to = at
        while to > 0 and numbers[to - 1] > number:
            numbers[to] = numbers[to - 1]
            to -= 1
        numbers[to] = number


@njit(cache=True)
def pick_likeliest(s: EngineState, slot: int, n: int, most: int, count: int) -> None:
    """Add the ``count`` likeliest candidates to ``next_drafts``, of those that it does not hold yet.

    A request's survival never rises from level to level, so the picked ones are always its next levels.
    """
    entries = s.entries[slot]
    stride = entries.size
    order = s.policy.order
    free = 0
    for i in range(n):
        free += most - entries[order[i]].next_drafts
    if count >= free:
        for i in range(n):
            entries[order[i]].next_drafts = most
        return
    if count <= 0:
        return
    half = stride * s.config[0].max_drafts
    candidates = order[stride : stride + half]
    undecided = order[stride + half : stride + 2 * half]
    counts = order[stride + 2 * half :]
    to_bucket = INDEX_BITS + SURVIVAL_BITS - PICK_BITS
    counts[:PICK_BUCKETS] = 0
    total = 0
    for level in range(most):
        for i in range(n):
            candidates[total] = _candidate(s.policy.scratch[level * stride + i], level, i)
            total += level >= entries[order[i]].next_drafts
    for at in range(total):
        counts[candidates[at] >> to_bucket] += 1
    # Buckets before the last one are taken whole, and of that one so many.
    last = 0
    while count > counts[last]:
        count -= counts[last]
        last += 1
    size = 0
    for at in range(total):
        candidate = candidates[at]
        bucket = candidate >> to_bucket
        entries[order[request_of(candidate)]].next_drafts += bucket < last
        undecided[size] = candidate
        size += bucket == last
    _sort_nearly_sorted(undecided, size)
    for at in range(count):
        entries[order[request_of(undecided[at])]].next_drafts += 1


@njit(cache=True)
def rank_drafts(s: EngineState, slot: int, n: int, most: int) -> int:
    """Sort the n * most candidates, the likeliest first; where the ranking starts in ``order``.

    A request's survival never rises from level to level, so the first of the ranking are always whole prefixes.
    """
    stride = s.entries[slot].size
    order = s.policy.order
    half = stride * s.config[0].max_drafts
    ranked = order[stride : stride + half]
    unsorted = order[stride + half : stride + 2 * half]
    counts = order[stride + 2 * half :]
    to_bucket = INDEX_BITS + SURVIVAL_BITS - SORT_BITS
    counts[: SORT_BUCKETS + 1] = 0
    total = 0
    for level in range(most):
        for i in range(n):
            candidate = _candidate(s.policy.scratch[level * stride + i], level, i)
            unsorted[total] = candidate
            counts[(candidate >> to_bucket) + 1] += 1
            total += 1
    before = 0
    for b in range(SORT_BUCKETS):
        before += counts[b]
        counts[b] = before
    for at in range(total):
        candidate = unsorted[at]
        bucket = candidate >> to_bucket
        ranked[counts[bucket]] = candidate
        counts[bucket] += 1
    # Buckets are in order, what is inside one is not yet.
    _sort_nearly_sorted(ranked, total)
    return int(stride)


@njit(cache=True)
def settle(s: EngineState, slot: int, n: int, most: int) -> None:
    """The levels in ``next_drafts`` become drafts; every drafting request has made all it may."""
    entries = s.entries[slot]
    k = s.config[0].max_drafts
    for i in range(n):
        x = entries[s.policy.order[i]]
        if k != most:  # a tree's levels hold several drafts
            x.next_drafts = x.next_drafts * k // max(most, 1)
        x.drafted = k
