"""Suffix decoding: cases by hand, and random streams against counts of every substring in a plain dictionary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftcast.kernels.search.suffix import SuffixSettings, match_positions

Request = tuple[list[int], list[int]]
F = np.float32


def propose(
    prompt: list[int], output: list[int], k: int, options: SuffixSettings, earlier: Sequence[Request] = ()
) -> list[int]:
    """The draft after ``output``: token by token what a continuation confirms of it."""
    vocabulary = sorted({token for request in (*earlier, (prompt, output)) for part in request for token in part})
    draft: list[int] = []
    while True:
        for token in vocabulary or [0]:
            *_, (drafted, accepted) = match_positions([*earlier, (prompt, [*output, *draft, token])], k, options)
            if accepted[len(output)] > len(draft):
                break
        if drafted[len(output)] == len(draft):
            return draft
        draft.append(token)


class Trie:
    """All substrings up to a depth: counts, and the children of each in the order a suffix tree keeps its siblings."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.count: dict[tuple[int, ...], int] = {}
        self.children: dict[tuple[int, ...], list[int]] = {}

    def extend(self, text: list[int], token: int) -> None:
        text.append(token)
        # Longest suffix first, as each is one step behind the next.
        for length in range(min(self.depth, len(text)), 0, -1):
            self.grow(tuple(text[-length:-1]), token)

    def grow(self, parent: tuple[int, ...], token: int) -> None:
        siblings = self.children.setdefault(parent, [])
        count = lambda t: self.count[(*parent, t)]  # noqa: E731
        if (*parent, token) not in self.count:
            siblings.append(token)
            self.count[(*parent, token)] = 1
            return
        at, now = siblings.index(token), count(token)
        if at > 0 and count(siblings[at - 1]) <= now + 1:
            # To the front of the group that the left neighbour is in.
            group = count(siblings[at - 1])
            front = next(i for i, t in enumerate(siblings) if count(t) == group)
            siblings.insert(front, siblings.pop(at))
        self.count[(*parent, token)] = now + 1

    def speculate(self, context: list[int], k: int, options: SuffixSettings) -> tuple[list[int], np.float32]:
        best: list[int] = []
        best_score = F(0)
        context = context[-self.depth :]
        for matched in range(1, len(context)):
            node = tuple(context[-matched:])
            if node not in self.count:
                break
            most = min(k, int(float(F(matched) * F(options.max_spec_factor)) + 1e-6))
            draft: list[int] = []
            score, share = F(0), F(1)
            while len(draft) < most and self.children.get(node):
                token = self.children[node][0]
                share = F(share * F(F(self.count[(*node, token)]) / F(self.count[node])))
                if share < F(options.min_token_prob):
                    break
                draft.append(token)
                score = F(score + share)
                node = (*node, token)
            if score >= best_score:
                best, best_score = draft, score
        return best, best_score


def reference(requests: Sequence[Request], k: int, options: SuffixSettings) -> list[list[list[int]]]:
    """The draft at every position of every request, one position past the output's end included."""
    everyone, answers = Trie(options.max_tree_depth), []
    for prompt, output in requests:
        own, text, written, drafts = Trie(options.max_tree_depth), [], [], []
        for token in prompt:
            own.extend(text, token)
        for position in range(len(output) + 1):
            draft, score = own.speculate(text, k, options)
            if options.max_cached_requests:
                other, other_score = everyone.speculate(text, k, options)
                draft = other if other_score > score else draft
            drafts.append(draft)
            if position < len(output):
                own.extend(text, output[position])
                everyone.extend(written, output[position])
        answers.append(drafts)
    return answers


ALONE = SuffixSettings(max_cached_requests=0)


@pytest.mark.parametrize(
    ("text", "k", "options", "expected"),
    [
        # "1 2" stood once before: half of its places (the other is the end) go on with 3, and so do all after it.
        ([1, 2, 3, 4, 5, 1, 2], 8, ALONE, [3, 4]),
        ([1, 2, 3, 4, 5, 1, 2], 1, ALONE, [3]),
        ([1, 2, 3, 4, 5, 1, 2], 8, ALONE._replace(max_spec_factor=2.0), [3, 4, 5, 1]),
        ([1, 2, 3, 4, 5, 1, 2], 8, ALONE._replace(max_spec_factor=0.0), []),
        ([1, 2, 3, 4, 5, 1, 2], 8, ALONE._replace(min_token_prob=0.51), []),
        ([1, 2, 3, 4, 5, 1, 2], 8, ALONE._replace(max_tree_depth=3), [3]),
        ([1, 2, 3, 4, 5, 1, 2], 8, ALONE._replace(max_tree_depth=1), []),
        # 2 is followed by 4 twice and by 3 once.
        ([2, 3, 2, 4, 2, 4, 2], 1, ALONE, [4]),
        ([1, 2, 3], 4, ALONE, []),
        ([1], 4, ALONE, []),
    ],
)
def test_drafts_by_hand(text: list[int], k: int, options: SuffixSettings, expected: list[int]) -> None:
    assert propose(text[:3], text[3:], k, options) == expected
    assert reference([(text, [])], k, options)[0][0] == expected


def test_earlier_outputs_are_searched_and_earlier_prompts_are_not() -> None:
    earlier = [([7, 8, 9], [1, 2, 3])]
    assert propose([1, 2], [], 4, SuffixSettings(), earlier) == [3]
    assert propose([7, 8], [], 4, SuffixSettings(), earlier) == []
    assert propose([1, 2], [], 4, ALONE, earlier) == []


def test_cache_forgets_the_oldest_request() -> None:
    earlier = [([0], [1, 2, 3]), ([0], [4, 5, 6])]
    assert propose([1, 2], [], 4, SuffixSettings(max_cached_requests=3), earlier) == [3]
    assert propose([1, 2], [], 4, SuffixSettings(max_cached_requests=2), earlier) == []
    assert propose([4, 5], [], 4, SuffixSettings(max_cached_requests=2), earlier) == [6]


def test_an_output_does_not_run_into_the_next() -> None:
    earlier = [([0], [1, 2]), ([0], [3, 4])]
    assert propose([1, 2], [], 4, SuffixSettings(), earlier) == []


TOKENS = st.lists(st.integers(0, 3), max_size=25)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=3),
    st.sampled_from([1, 3, 24]),
    st.sampled_from([1, 2, 5, 24]),
    st.sampled_from([0.0, 0.5, 1.0, 1.3, 3.0]),
    st.sampled_from([0.0, 0.1, 0.34, 1.0]),
    st.sampled_from([0, 10_000]),
)
def test_equals_substring_counts(
    requests: list[Request], k: int, depth: int, factor: float, least: float, cached: int
) -> None:
    options = SuffixSettings(depth, factor, least, cached)
    expected = reference(requests, k, options)
    assert propose(*requests[-1], k, options, requests[:-1]) == expected[-1][-1]
    for (_, output), drafts, (drafted, accepted) in zip(
        requests, expected, match_positions(requests, k, options), strict=True
    ):
        assert drafted.tolist() == [len(draft) for draft in drafts[:-1]]
        for position, draft in enumerate(drafts[:-1]):
            rest = output[position:]
            same = next((i for i, t in enumerate(draft) if i >= len(rest) or t != rest[i]), len(draft))
            assert accepted[position] == same


def test_token_ids_may_be_any_size() -> None:
    big = [2**31 - 1, 128_000, 5]
    assert propose(big, big[:2], 4, ALONE) == [5, 2**31 - 1]
