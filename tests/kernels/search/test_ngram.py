"""N-gram search: cases by hand, and every stream against a search that tries all places and lengths."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftcast.kernels.search.ngram import match_positions, propose_batch


def brute_force(tokens: Sequence[int], k: int, min_n: int, max_n: int, max_model_len: int = 10**9) -> list[int]:
    """The rule as written: longest n first, then the earliest place that is not the end itself."""
    most = min(k, max_model_len - len(tokens))
    for n in range(min(max_n, len(tokens) - 1), min_n - 1, -1):
        for start in range(len(tokens) - n):
            if list(tokens[start : start + n]) == list(tokens[len(tokens) - n :]):
                return list(tokens[start + n : start + n + most]) if most > 0 else []
    return []


def draft(tokens: Sequence[int], k: int, min_n: int, max_n: int, max_model_len: int = 10**9) -> list[int]:
    drafts, counts = propose_batch([tokens], k, min_n, max_n, max_model_len)
    assert (drafts[0, counts[0] :] == -1).all()
    return drafts[0, : counts[0]].tolist()


@pytest.mark.parametrize(
    ("tokens", "k", "min_n", "max_n", "expected"),
    [
        ([1, 2, 3, 4, 1, 2, 3], 2, 2, 2, [4, 1]),
        ([1, 2, 3, 4, 1, 2, 3], 9, 2, 2, [4, 1, 2, 3]),
        # The trigram wins over the earlier bigram.
        ([2, 3, 9, 1, 2, 3, 4, 1, 2, 3], 1, 2, 3, [4]),
        # Of equal length, the earliest.
        ([2, 3, 8, 2, 3, 9, 2, 3], 1, 2, 3, [8]),
        # Longer than max_n does not count: both places match two tokens, the earliest wins.
        ([5, 2, 3, 8, 1, 2, 3, 9, 1, 2, 3], 1, 1, 2, [8]),
        # The match may overlap the end.
        ([7, 7, 7, 7], 5, 3, 3, [7]),
        ([7, 7, 7, 7], 5, 2, 2, [7, 7]),
        ([1, 2, 3], 5, 1, 3, []),
        ([1, 2, 1], 5, 2, 3, []),
        ([1], 5, 1, 3, []),
        ([], 5, 1, 3, []),
    ],
)
def test_drafts_by_hand(tokens: list[int], k: int, min_n: int, max_n: int, expected: list[int]) -> None:
    assert draft(tokens, k, min_n, max_n) == expected
    assert brute_force(tokens, k, min_n, max_n) == expected


@pytest.mark.parametrize(("max_model_len", "expected"), [(9, [4, 1]), (8, [4]), (7, []), (3, [])])
def test_no_draft_beyond_the_model_length(max_model_len: int, expected: list[int]) -> None:
    assert draft([1, 2, 3, 4, 1, 2, 3], 5, 2, 2, max_model_len) == expected


STREAMS = st.lists(st.lists(st.integers(0, 3), max_size=40), min_size=1, max_size=5)


@settings(max_examples=300, deadline=None)
@given(STREAMS, st.integers(1, 8), st.integers(1, 6), st.integers(0, 5), st.integers(1, 50))
def test_equals_brute_force(streams: list[list[int]], k: int, min_n: int, more: int, max_model_len: int) -> None:
    drafts, counts = propose_batch(streams, k, min_n, min_n + more, max_model_len)
    for stream, row, count in zip(streams, drafts, counts, strict=True):
        assert row[:count].tolist() == brute_force(stream, k, min_n, min_n + more, max_model_len)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=12), st.lists(st.integers(0, 2), max_size=25), st.integers(1, 4))
def test_every_position_sees_only_what_stands_before_it(prompt: list[int], output: list[int], k: int) -> None:
    drafted, accepted = match_positions(prompt, output, k, 1, 3)
    assert len(drafted) == len(accepted) == len(output)
    for position in range(len(output)):
        proposed = brute_force(prompt + output[:position], k, 1, 3)
        rest = output[position:]
        same = next((i for i, token in enumerate(proposed) if i >= len(rest) or token != rest[i]), len(proposed))
        assert (drafted[position], accepted[position]) == (len(proposed), same)


def test_time_is_linear_in_the_text_whatever_it_holds() -> None:
    """A text of one token is a naive search's worst case: 4e9 comparisons here, milliseconds when linear."""
    tokens = np.zeros(200_000, dtype=np.int32)
    propose_batch([tokens[:100]], 3, 1, 10)  # compiled before the clock starts
    start = time.perf_counter()
    drafts, counts = propose_batch([tokens], 3, 1, 20_000)
    assert time.perf_counter() - start < 1.0
    assert counts[0] == 3
    assert (drafts[0] == 0).all()


def test_empty_batch() -> None:
    drafts, counts = propose_batch([], 4, 1, 2)
    assert drafts.shape == (0, 4)
    assert counts.shape == (0,)
