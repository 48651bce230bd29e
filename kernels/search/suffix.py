"""Suffix decoding: what vLLM's ``suffix`` method drafts from the request's own text and earlier requests' outputs.

The rule (Oliaro et al., SuffixDecoding, arXiv 2411.04975, as vLLM 0.32 runs it through arctic-inference 0.3): for every
match length m below the last ``max_tree_depth`` tokens, take all places where the last m tokens stand, the end itself
included, and follow the most frequent next token while the product of the shares ``count(next) / count(here)`` is at
least ``min_token_prob``, for at most ``min(k, max_spec_factor * m)`` tokens and ``max_tree_depth`` tokens in all. The
draft's score is the sum of those products. The best score wins, the longer match on a tie. This is asked of two texts,
the request's own prompt and output, and the outputs of the last ``max_cached_requests`` requests (this one's among
them); the own text wins a tie. Scores are float32, as there.

The original keeps suffix trees; here the places themselves are walked, through a chain from each place to the previous
one with the same token, which gives the same counts in less code (time: the places of the last token times the match).
Ties between next tokens follow the order in which the tree keeps siblings, replayed over the places in text order.

Simplified: requests are taken one after the other, while a server interleaves them, so that running requests see each
other's unfinished outputs; and a request dropped from the cache leaves no trace in the order of siblings.

All compiled functions stand in this one file, so that numba's cache notices every change.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import ArrayLike

from draftcast.kernels.arrays import IntArray
from draftcast.kernels.search.ngram import UNLIMITED, Counts, Tokens

END = -1  # closes an output among the earlier requests': never equal to a token


class SuffixSettings(NamedTuple):
    """vLLM's ``suffix_decoding_*`` keys, with its defaults."""

    max_tree_depth: int = 24  # tokens of a match and its draft together, >= 1
    max_spec_factor: float = 1.0  # draft tokens per token matched, >= 0
    min_token_prob: float = 0.1  # least product of shares a drafted token may have, 0..1
    max_cached_requests: int = 10000  # whose outputs are searched, this one among them; 0 searches its own text only


class _Corpus(NamedTuple):
    """A text that grows. ``previous[i]`` is the last place before i with the same token, ``last[token]`` the newest."""

    text: Tokens  # capacity
    size: IntArray  # of one number, tokens so far
    previous: IntArray  # capacity
    last: IntArray  # vocabulary


class _Limits(NamedTuple):
    k: int
    depth: int  # and the next two: of `SuffixSettings`
    factor: np.float32
    least_share: np.float32
    least_score: np.float32
    max_model_len: int


class _Scratch(NamedTuple):
    trial: Tokens  # a draft
    place: IntArray  # places of the last token, newest first
    repeat: IntArray  # tokens that agree up to and including each place
    member: IntArray  # places that still follow the draft, oldest first
    slot: IntArray  # by token: its sibling slot, -1 none
    token: Tokens  # by sibling slot, as are the next three; slot 0 stands before the first and after the last
    counts: IntArray
    before: IntArray
    after: IntArray
    first: IntArray  # by count: the first sibling with it, -1 none


@njit(cache=True)
def _append(corpus: _Corpus, token: int) -> None:
    length = corpus.size[0]
    corpus.text[length] = token
    if token >= 0:
        corpus.previous[length] = corpus.last[token]
        corpus.last[token] = length
    corpus.size[0] = length + 1


@njit(cache=True)
def _most_frequent(scratch: _Scratch, text: Tokens, members: int, step: int, length: int) -> tuple[int, int]:
    """(token, count) of the continuation ``step`` tokens after each member; count 0 when every member ends there.

    Siblings stand in order of falling count. One that grows past its neighbours moves to the front of the group it was
    in or just below; one that led its group alone stays, and so ends its new group: this decides ties.
    """
    token, count, before, after = scratch.token, scratch.counts, scratch.before, scratch.after
    slot, first = scratch.slot, scratch.first
    first[: members + 2] = -1
    token[0], count[0], before[0], after[0] = -1, UNLIMITED, 0, 0
    slots = 1
    for i in range(members):
        where = scratch.member[i] + step
        if where >= length or text[where] < 0:
            continue
        s = slot[text[where]]
        if s < 0:
            s = slots
            slots += 1
            slot[text[where]] = s
            token[s], count[s], before[s], after[s] = text[where], 1, before[0], 0
            after[before[0]] = s
            before[0] = s
            if first[1] < 0:
                first[1] = s
            continue
        c, left, right = count[s], before[s], after[s]
        if first[c] == s:
            first[c] = right if count[right] == c else -1
        count[s] = c + 1
        if count[left] <= c + 1:
            other = first[count[left]]
            after[left], before[right] = right, left
            left = before[other]
            before[s], after[s], before[other], after[left] = left, other, s, s
        if count[left] != c + 1:
            first[c + 1] = s
    for s in range(1, slots):
        slot[token[s]] = -1
    head = after[0]
    return token[head], count[head] if head > 0 else 0


@njit(cache=True)
def _search(
    corpus: _Corpus, floor: int, context: Tokens, context_length: int, limits: _Limits, scratch: _Scratch, draft: Tokens
) -> tuple[int, np.float32]:
    """(tokens, score) of the best draft for the end of ``context`` in the corpus from ``floor`` on, into ``draft``."""
    text, length, trial = corpus.text, corpus.size[0], scratch.trial
    k = min(limits.k, limits.max_model_len - context_length - 1)
    longest_context = min(limits.depth, context_length) - 1
    zero = np.float32(0.0)
    if longest_context < 1 or k < 1:
        return 0, zero
    places, longest = 0, 0
    at = corpus.last[context[context_length - 1]]
    while at >= floor:
        same = 1
        while same < longest_context and at - same >= floor and text[at - same] == context[context_length - 1 - same]:
            same += 1
        scratch.place[places], scratch.repeat[places] = at, same
        longest = max(longest, same)
        places += 1
        at = corpus.previous[at]
    best, best_score = 0, zero
    for matched in range(longest, 0, -1):
        most = min(k, int(np.float64(np.float32(matched) * limits.factor) + 1e-6))
        if np.float32(most) <= best_score:
            continue  # each token scores 1 at most, and a tie goes to the longer match
        members = 0
        for i in range(places - 1, -1, -1):
            if scratch.repeat[i] >= matched:
                scratch.member[members] = scratch.place[i]
                members += 1
        tokens, score, share = 0, zero, np.float32(1.0)
        while tokens < most and matched + tokens < limits.depth:
            step = tokens + 1
            token, count = _most_frequent(scratch, text, members, step, length)
            if count == 0:
                break
            share = np.float32(share * (np.float32(count) / np.float32(members)))
            if share < limits.least_share:
                break
            trial[tokens] = token
            tokens += 1
            score = np.float32(score + share)
            kept = 0
            for i in range(members):
                where = scratch.member[i] + step
                if where < length and text[where] == token:
                    scratch.member[kept] = scratch.member[i]
                    kept += 1
            members = kept
        if score > best_score:
            best, best_score = tokens, score
            draft[:tokens] = trial[:tokens]
    return best, best_score


@njit(cache=True)
def _match_positions(
    tokens: Tokens, prompt_tokens: int, text: _Corpus, earlier: _Corpus, floor: int, limits: _Limits, scratch: _Scratch
) -> tuple[Counts, Counts]:
    outputs = len(tokens) - prompt_tokens
    drafted = np.zeros(outputs, dtype=np.int32)
    accepted = np.zeros(outputs, dtype=np.int32)
    draft, second = np.zeros(limits.k, np.int32), np.zeros(limits.k, np.int32)
    for i in range(len(tokens)):
        text.last[tokens[i]] = -1
    text.size[0] = 0
    for i in range(prompt_tokens):
        _append(text, tokens[i])
    for position in range(outputs):
        length = prompt_tokens + position
        count, score = _search(text, 0, tokens, length, limits, scratch, draft)
        other, other_score = _search(earlier, floor, tokens, length, limits, scratch, second)
        if other_score > score:
            count, score = other, other_score
            draft[:count] = second[:count]
        if score < limits.least_score:
            count = 0
        drafted[position] = count
        same = 0
        while same < count and length + same < len(tokens) and draft[same] == tokens[length + same]:
            same += 1
        accepted[position] = same
        _append(earlier, tokens[length])
        _append(text, tokens[length])
    _append(earlier, END)
    return drafted, accepted


def match_positions(
    requests: Sequence[tuple[ArrayLike, ArrayLike]],
    k: int,
    settings: SuffixSettings,
    max_model_len: int = UNLIMITED,
    least_score: float = 0.0,
) -> Iterator[tuple[Counts, Counts]]:
    """`ngram.match_positions` of this search for each request in turn, which also sees the outputs of those before it.

    ``requests``: (prompt, output) token ids, in order of arrival. Drafts stop one token below ``max_model_len``; one
    with a score below ``least_score`` is not proposed.
    """
    parts = [[np.asarray(part, dtype=np.int64) for part in request] for request in requests]
    texts = [np.concatenate(request) for request in parts]
    # Token ids become 0, 1, 2, ... so that arrays can be indexed by them.
    vocabulary, inverse = np.unique(np.concatenate([np.zeros(0, np.int64), *texts]), return_inverse=True)
    dense = np.split(inverse.astype(np.int32), np.cumsum([len(text) for text in texts])[:-1])
    cached = settings.max_cached_requests
    own_capacity = max(map(len, texts), default=0)
    starts: list[int] = np.cumsum([0, *(len(output) + 1 for _, output in parts)]).tolist()  # of outputs, in `earlier`

    def corpus(capacity: int) -> _Corpus:
        previous, last = np.full(capacity, -1, np.int64), np.full(len(vocabulary), -1, np.int64)
        return _Corpus(np.zeros(capacity, np.int32), np.zeros(1, np.int64), previous, last)

    room = max(own_capacity, starts[-1]) + 2
    place, repeat, member, counts, before, after, first = np.zeros((7, room), np.int64)
    slot, token = np.full(len(vocabulary), -1, np.int64), np.zeros(room, np.int32)
    scratch = _Scratch(np.zeros(k, np.int32), place, repeat, member, slot, token, counts, before, after, first)
    own_text, earlier = corpus(own_capacity), corpus(starts[-1])
    factor, share, score = map(np.float32, (settings.max_spec_factor, settings.min_token_prob, least_score))
    limits = _Limits(k, settings.max_tree_depth, factor, share, score, max_model_len)
    for index, (prompt, _) in enumerate(parts):
        floor = starts[max(0, index + 1 - cached)] if cached else UNLIMITED
        yield _match_positions(dense[index], len(prompt), own_text, earlier, floor, limits, scratch)
