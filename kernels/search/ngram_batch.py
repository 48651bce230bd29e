"""N-gram search over a batch of padded token ids, on the CPU or on CUDA; equal to `draftcast.kernels.search.ngram`.

Inputs: ``tokens`` int32 [batch, context], row b being text in its first ``lengths[b]`` tokens (int32 [batch]) and
anything after; ``k``, ``min_n``, ``max_n``, ``max_model_len`` as in `ngram.propose_batch`. Outputs: ``drafts`` int32
[batch, k], -1 where there is none, and ``counts`` int32 [batch].

Every place of a text is compared at once: after step j, ``run`` is how many of the last j+1 tokens stand before that
place, counted backwards. O(context * max_n) comparisons a text, where `ngram` needs O(context); the tokens themselves
are read from memory once, so bytes = 4 * sum(lengths).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftcast.kernels.extras import torch
from draftcast.kernels.operators.cost import Work, as_array
from draftcast.kernels.operators.registry import Draw, Operator, Shape, Tensors, by_formula, implementations
from draftcast.kernels.search import ngram

VOCABULARY = 32_000
RESULT = ("drafts", "counts")
SETTINGS = {"k": 5, "min_n": 2, "max_n": 5, "max_model_len": ngram.UNLIMITED}
"""What is timed: vLLM's documentation drafts 5 tokens by matches of 2 to 5."""


def search(
    tokens: torch.Tensor, lengths: torch.Tensor, k: int, min_n: int, max_n: int, max_model_len: int = ngram.UNLIMITED
) -> tuple[torch.Tensor, torch.Tensor]:
    """Drafts [batch, k] and counts [batch]; see the module's docstring. Nothing is read back to the host."""
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
    """The one-text-at-a-time search of `draftcast.kernels.search.ngram`."""
    tokens, device = inputs["tokens"].cpu().numpy(), inputs["tokens"].device
    texts = [row[:length] for row, length in zip(tokens, inputs["lengths"].tolist(), strict=True)]
    results = ngram.propose_batch(texts, inputs["k"], inputs["min_n"], inputs["max_n"], inputs["max_model_len"])
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
