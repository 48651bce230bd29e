"""N-gram search (prompt lookup): what vLLM's ``ngram`` method drafts from the text a request already has.

The rule (vLLM 0.32, ``v1/spec_decode/ngram_proposer.py``; prompt lookup is due to A. Saxena, 2023): take the longest
n, ``prompt_lookup_min <= n <= prompt_lookup_max``, for which the last n tokens stand somewhere earlier too (the two may
overlap); of all such places the *earliest*; draft the tokens that follow it, at most k, fewer where the text or the
model length ends. No match, no draft. The search is a Z function of the reversed text, cut at prompt_lookup_max:
O(length) time and O(prompt_lookup_max) memory per stream whatever the text.

All compiled functions stand in this one file, so that numba's cache notices every change. Not known here: the round a
draft is made in, and whether a target model would accept it other than by comparing with a given continuation.

The operator searches a batch of padded token ids, on the CPU or on CUDA. Inputs: ``tokens`` int32 [batch, context], row
b being text in its first ``lengths[b]`` tokens (int32 [batch]) and anything after; ``k``, ``min_n``, ``max_n``,
``max_model_len`` as in `propose_batch`. Outputs: ``drafts`` int32 [batch, k], -1 where there is none, and ``counts``
int32 [batch].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from draftcast.kernels.arrays import IntArray
from draftcast.kernels.extras import torch
from draftcast.kernels.operators.cost import Work, as_array
from draftcast.kernels.operators.registry import Draw, Operator, Shape, Tensors, by_formula, implementations

Tokens = NDArray[np.int32]
Counts = NDArray[np.int32]
UNLIMITED = 2**62  # a model length no text reaches
VOCABULARY = 32_000
RESULT = ("drafts", "counts")
SETTINGS = {"k": 5, "min_n": 2, "max_n": 5, "max_model_len": UNLIMITED}
"""What is timed: vLLM's documentation drafts 5 tokens by matches of 2 to 5."""


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


def search(
    tokens: torch.Tensor, lengths: torch.Tensor, k: int, min_n: int, max_n: int, max_model_len: int = UNLIMITED
) -> tuple[torch.Tensor, torch.Tensor]:
    """Drafts [batch, k] and counts [batch]; see the module's docstring. Nothing is read back to the host.

    Every place of a text is compared at once: after step j, ``run`` is how many of the last j+1 tokens stand before it,
    counted backwards. O(context * max_n) comparisons a text, where `propose_batch` needs O(context).
    """
    context = tokens.shape[1]
    ends = torch.arange(context, device=tokens.device)
    last = lengths[:, None].long()
    # A place is where a draft would start: 1 to length - 1. Place e has the tokens up to e - 1 before it.
    alive = (ends >= 1) & (ends < last)
    run = torch.zeros(tokens.shape, dtype=torch.int32, device=tokens.device)
    for back in range(1, min(max_n, context) + 1):
        newest = tokens.gather(1, (last - back).clamp(min=0))
        alive[:, :back] = False
        alive[:, back:] &= tokens[:, : context - back] == newest
        run += alive
    best = run.amax(1, keepdim=True) if context else run.new_zeros((len(tokens), 1))
    matches = best >= min_n
    # Of equal runs the earliest place.
    start = torch.where((run == best) & matches, ends, context).amin(1, keepdim=True) if context else last
    room = (max_model_len - last).clamp(max=k)
    counts = torch.where(matches, torch.minimum(room, last - start).clamp(min=0), 0)
    slots = torch.arange(k, device=tokens.device)
    where = (start + slots).clamp(max=max(context - 1, 0))
    drafts = tokens.gather(1, where) if context else tokens.new_zeros((len(tokens), k))
    return torch.where(slots < counts, drafts, -1), counts[:, 0].to(torch.int32)


def draw_inputs(shape: Shape, draw: Draw) -> dict[str, Any]:
    """Random texts of equal length whose end stands once more somewhere before it; shape: batch, context."""
    batch, context = shape["batch"], shape["context"]
    tokens = draw.integers(0, VOCABULARY, batch, context).to(torch.int32)
    lengths = draw.equal(batch, context)
    copied = min(SETTINGS["max_n"], context // 2)
    to = torch.arange(copied, device=draw.device)
    tail = (lengths[:, None] - copied + to).clamp(min=0).long()
    start = (draw.uniform(batch, 1) * (lengths[:, None] - copied).clamp(min=1)).long()
    tokens.scatter_(1, tail, tokens.gather(1, (start + to).clamp(max=context - 1)))
    return {"tokens": tokens, "lengths": lengths, **SETTINGS}


def make_outputs(inputs: Tensors) -> dict[str, torch.Tensor]:
    tokens = inputs["tokens"]
    return {"drafts": tokens.new_empty((len(tokens), inputs["k"])), "counts": tokens.new_empty(len(tokens))}


def reference(inputs: Tensors) -> dict[str, torch.Tensor]:
    """The one-text-at-a-time search."""
    tokens, device = inputs["tokens"].cpu().numpy(), inputs["tokens"].device
    texts = [row[:length] for row, length in zip(tokens, inputs["lengths"].tolist(), strict=True)]
    results = propose_batch(texts, inputs["k"], inputs["min_n"], inputs["max_n"], inputs["max_model_len"])
    return dict(zip(RESULT, (torch.from_numpy(array).to(device) for array in results), strict=True))


def _work(shape: Mapping[str, Any], dtype: str, kv_dtype: str) -> Work:
    """A comparison a token (few places match at all, so few are compared further); every token is read once."""
    tokens = as_array(shape["batch"]) * as_array(shape["context"])
    return Work(tokens, 4.0 * tokens)


NGRAM = Operator(
    name="ngram",
    dtypes=("int32",),
    work=_work,
    draw_inputs=draw_inputs,
    make_outputs=make_outputs,
    reference=reference,
    implementations=implementations(by_formula(lambda x: dict(zip(RESULT, search(**x), strict=True))), "ngram:prepare"),
)
