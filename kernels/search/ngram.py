"""N-gram search (prompt lookup): what vLLM's ``ngram`` method drafts from the text a request already has.

The rule (vLLM 0.32, ``v1/spec_decode/ngram_proposer.py``; prompt lookup is due to A. Saxena, 2023): take the longest
n, ``prompt_lookup_min <= n <= prompt_lookup_max``, for which the last n tokens stand somewhere earlier too (the two may
overlap); of all such places the *earliest*; draft the tokens that follow it, at most k, fewer where the text or the
model length ends. No match, no draft. The search is a Z function of the reversed text, cut at prompt_lookup_max:
O(length) time and O(prompt_lookup_max) memory per stream whatever the text.

All compiled functions stand in this one file, so that numba's cache notices every change. Not known here: the round a
draft is made in, and whether a target model would accept it other than by comparing with a given continuation.
"""

from collections.abc import Sequence

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from draftcast.kernels.arrays import IntArray

Tokens = NDArray[np.int32]
Counts = NDArray[np.int32]
UNLIMITED = 2**62  # a model length no text reaches


@njit(cache=True)
def find_continuation(tokens: Tokens, length: int, min_n: int, max_n: int, z: IntArray) -> int:
    """Index of the token after the match for the last n of ``tokens[:length]``; -1 without a match of min_n or more.

    ``z`` is scratch of max_n or more. Reversed, the last n tokens are the text's head, and z[i] is how many tokens from
    reversed position i on repeat that head, cut at max_n. ``[left, right)`` is the repeat that reaches farthest; inside
    it the head's own z values are known, so no token is compared twice for a match: O(length).
    """
    best, where, left, right = 0, -1, 0, 0
    newest = length - 1
    for i in range(1, length):
        repeat = min(z[i - left], right - i) if i < right else 0
        if i + repeat >= right:
            while repeat < max_n and i + repeat < length and tokens[newest - repeat] == tokens[newest - i - repeat]:
                repeat += 1
            left, right = i, i + repeat
        if i < max_n:
            z[i] = repeat
        # A later reversed position is an earlier place in the text: ties go to it.
        if repeat >= best:
            best, where = repeat, i
    return length - where if best >= min_n else -1


@njit(cache=True)
def draft_range(
    tokens: Tokens, length: int, k: int, min_n: int, max_n: int, max_model_len: int, z: IntArray
) -> tuple[int, int]:
    """(start, count) of the draft for ``tokens[:length]``, as a slice of the text itself; count 0 without one."""
    most = min(k, max_model_len - length)
    if most <= 0 or length < min_n:
        return 0, 0
    start = find_continuation(tokens, length, min_n, max_n, z)
    return (start, min(most, length - start)) if start >= 0 else (0, 0)


@njit(cache=True)
def _match_positions(
    tokens: Tokens, prompt_tokens: int, k: int, min_n: int, max_n: int, max_model_len: int
) -> tuple[Counts, Counts]:
    outputs = len(tokens) - prompt_tokens
    drafted = np.zeros(outputs, dtype=np.int32)
    accepted = np.zeros(outputs, dtype=np.int32)
    z = np.zeros(max_n, dtype=np.int64)
    for position in range(outputs):
        length = prompt_tokens + position
        start, count = draft_range(tokens, length, k, min_n, max_n, max_model_len, z)
        drafted[position] = count
        same = 0
        while same < count and length + same < len(tokens) and tokens[start + same] == tokens[length + same]:
            same += 1
        accepted[position] = same
    return drafted, accepted


def propose_batch(
    streams: Sequence[ArrayLike], k: int, min_n: int, max_n: int, max_model_len: int = UNLIMITED
) -> tuple[Tokens, Counts]:
    """Drafts for a batch of token streams, int32[streams, k], -1 where there is none; and their number, int32[streams].

    ``min_n`` and ``max_n`` are vLLM's ``prompt_lookup_min`` and ``prompt_lookup_max``, 1 <= min_n <= max_n; no draft
    stands beyond ``max_model_len`` tokens.
    """
    drafts = np.full((len(streams), k), -1, dtype=np.int32)
    counts = np.zeros(len(streams), dtype=np.int32)
    z = np.zeros(max_n, dtype=np.int64)
    for row, stream in enumerate(streams):
        text = np.asarray(stream, dtype=np.int32)
        start, count = draft_range(text, len(text), k, min_n, max_n, max_model_len, z)
        counts[row] = count
        drafts[row, :count] = text[start : start + count]
    return drafts, counts


def match_positions(
    prompt: ArrayLike, output: ArrayLike, k: int, min_n: int, max_n: int, max_model_len: int = UNLIMITED
) -> tuple[Counts, Counts]:
    """What a round started at each output position would draft, and how much of it the known output confirms.

    Position p sees the prompt and the first p output tokens. Under greedy decoding the target accepts exactly the
    drafts that equal the output, and what was drafted earlier never changes the text, so these two arrays hold every
    round that any schedule of drafts could run. A draft beyond the output's end counts as not accepted. Both are
    int32[output tokens], accepted <= drafted <= k.
    """
    head, tail = np.asarray(prompt, dtype=np.int32), np.asarray(output, dtype=np.int32)
    drafted, accepted = _match_positions(np.concatenate((head, tail)), len(head), k, min_n, max_n, max_model_len)
    return drafted, accepted
