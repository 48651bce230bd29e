"""A paged KV cache with random content; attention over it as the textbook formula in float64 and in plain torch.

Inputs of the attention operators (`draw_inputs`), all on one device:

- ``query`` [batch, q, heads, head_dim]: the q newest tokens of each sequence.
- ``key_cache``, ``value_cache`` [blocks, 16, kv_heads, head_dim]: vLLM's FlashAttention layout. The q new tokens' own
  keys and values are already in it. Block 0 belongs to nobody, as in vLLM. Values may be narrower than keys (latent
  attention); outputs are as wide as values.
- ``block_tables`` int32 [batch, width]: block of tokens 0-15, 16-31, ... of a sequence. Entries past its last block
  may hold anything; so may blocks wholly outside the window of all q tokens, and slots past the last token.
- ``context_lens`` int32 [batch]: tokens of a sequence, the q new ones included: at least q.
- ``tree`` int64 [batch, q] or None: bit j of entry i says that new token i sees new token j (its ancestors and itself);
  None: new token i sees new tokens 0 to i. What stands before the new tokens is seen by all of them.
- ``depths`` int32 [batch, q] or None: a tree token's distance from the first new token, in tokens; its position in the
  text is that of the first new token plus this.
- ``window``: a token sees the keys less than this many positions back (itself included); 0: all of them.
- ``scale``: of the scores, 1/sqrt(head_dim); ``k_scale``, ``v_scale``: what a cached fp8 number is multiplied by.

In plain torch (`prepare`, on the CPU and on CUDA) the blocks are gathered for torch's fused attention. The heads that
share a KV head become rows of one attention head, so the KV is never repeated and serves all queries of a sequence at
once. The gather is part of the time: the KV crosses memory three times (read, written, read again) where a paged kernel
reads it once. Sequences of equal length go through one call, so a ragged batch is a loop over its lengths. Lengths are
read while preparing: a prepared launch is for these lengths only. Long prompts are taken in pieces of `QUERY_TILE`
tokens, so that keys later than a piece are not multiplied and the mask stays small.
"""

from __future__ import annotations

import math
from typing import Any

from draftcast.errors import HardwareError
from draftcast.kernels.extras import torch
from draftcast.kernels.model.dtypes import FP8_SCALE
from draftcast.kernels.operators.registry import Draw, Launch, Outputs, Shape, Tensors

BLOCK_SIZE = 16
MAX_TREE_TOKENS = 63  # Tokens whose ancestors fit one int64 of either sign.
QUERY_TILE = 256


def draw_inputs(shape: Shape, draw: Draw) -> dict[str, Any]:
    """Random inputs of sequences of equal length; see the module's docstring. A shape without tree has 0.

    Raises HardwareError: context below q, heads no multiple of kv_heads, or a tree of too many tokens.
    """
    batch, q, context, head_dim = shape["batch"], shape["q"], shape["context"], shape["head_dim"]
    if reason := bad_shape(shape):
        raise HardwareError(reason, key="attention", value=dict(shape))
    width = math.ceil(context / BLOCK_SIZE)
    order = torch.randperm(batch * width, device=draw.device, generator=draw.generator)
    cache = (1 + batch * width, BLOCK_SIZE, shape["kv_heads"], head_dim)
    tree, depths = random_trees(batch, q, draw) if shape.get("tree") else (None, None)
    scale = FP8_SCALE if draw.kv_dtype == "fp8" else 1.0
    return {
        "query": draw.normal(batch, q, shape["heads"], head_dim),
        "key_cache": draw.normal(*cache, dtype=draw.kv_dtype),
        "value_cache": draw.normal(*cache, dtype=draw.kv_dtype),
        "block_tables": 1 + order.to(torch.int32).view(batch, width),
        "context_lens": draw.equal(batch, context),
        "tree": tree,
        "depths": depths,
        "window": shape["window"],
        "scale": 1 / math.sqrt(head_dim),
        "k_scale": scale,
        "v_scale": scale,
    }


def bad_shape(shape: Shape) -> str:
    """Why no attention has this shape, or ""."""
    if shape["context"] < shape["q"]:
        return "context counts the q new tokens too, so it is at least q"
    if shape["heads"] % shape["kv_heads"]:
        return "heads must be a multiple of kv_heads"
    if shape.get("tree") and shape["q"] > MAX_TREE_TOKENS:
        return f"a tree mask holds at most {MAX_TREE_TOKENS} new tokens"
    return ""


def make_outputs(inputs: Tensors) -> Outputs:
    return {"out": inputs["query"].new_empty((*inputs["query"].shape[:3], inputs["value_cache"].shape[3]))}


def random_trees(batch: int, q: int, draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    """Masks and depths of random trees: token 0 is the root, every other has any earlier token for a parent."""
    tree = torch.ones((batch, q), dtype=torch.int64, device=draw.device)
    depths = torch.zeros((batch, q), dtype=torch.int32, device=draw.device)
    for token in range(1, q):
        parent = draw.integers(0, token, batch, 1)
        tree[:, token] = tree.gather(1, parent)[:, 0] | (1 << token)
        depths[:, token] = depths.gather(1, parent)[:, 0] + 1
    return tree, depths


def visible(inputs: Tensors, sequence: int) -> torch.Tensor:
    """bool [q, context_lens[sequence]]: which cached tokens each new token sees."""
    device, q = inputs["query"].device, inputs["query"].shape[1]
    prefix = int(inputs["context_lens"][sequence]) - q
    new = torch.arange(q, device=device)
    depths, ancestors = new, new[None, :] <= new[:, None]
    if inputs["tree"] is not None:
        depths = inputs["depths"][sequence].to(torch.int64)
        ancestors = ((inputs["tree"][sequence][:, None] >> new[None, :]) & 1).bool()
    seen = torch.cat((torch.ones((q, prefix), dtype=torch.bool, device=device), ancestors), dim=1)
    if inputs["window"]:
        position = torch.cat((torch.arange(prefix, device=device), prefix + depths))
        seen = seen & ((prefix + depths)[:, None] - position[None, :] < inputs["window"])
    return seen


def reference(inputs: Tensors) -> Outputs:
    """``softmax(scale * query @ keys^T) @ values`` over the visible keys, sequence by sequence, in float64."""
    query = inputs["query"].double()
    batch, _, heads, _ = query.shape
    group = heads // inputs["key_cache"].shape[2]
    out = query.new_empty((*query.shape[:3], inputs["value_cache"].shape[3]))
    for sequence in range(batch):
        seen = visible(inputs, sequence)
        used = seen.any(0).nonzero()[:, 0]
        block = inputs["block_tables"][sequence][used // BLOCK_SIZE].long()
        keys = inputs["key_cache"][block, used % BLOCK_SIZE].double() * inputs["k_scale"]
        values = inputs["value_cache"][block, used % BLOCK_SIZE].double() * inputs["v_scale"]
        for head in range(heads):
            scores = query[sequence, :, head] @ keys[:, head // group].T * inputs["scale"]
            weights = scores.masked_fill(~seen[:, used], -torch.inf).softmax(-1)
            out[sequence, :, head] = weights @ values[:, head // group]
    return {"out": out}


def prepare(inputs: Tensors, outputs: Tensors) -> Launch:
    """Launch of torch's attention; see the module's docstring."""
    lengths = inputs["context_lens"].tolist()
    steps = [
        _equal_lengths(inputs, outputs["out"], [row for row, other in enumerate(lengths) if other == length], length)
        for length in sorted(set(lengths))
    ]

    def launch() -> None:
        for step in steps:
            step()

    return launch


def _equal_lengths(inputs: Tensors, out: torch.Tensor, sequences: list[int], length: int) -> Launch:
    """Attention of sequences that are all ``length`` tokens long."""
    query, cache = inputs["query"], inputs["key_cache"]
    value_dim = inputs["value_cache"].shape[3]
    batch, q, heads, head_dim = query.shape
    kv_heads = cache.shape[2]
    group, count = heads // kv_heads, len(sequences)
    first = max(length - q - inputs["window"] + 1, 0) // BLOCK_SIZE if inputs["window"] else 0
    begin, last = first * BLOCK_SIZE, -(-length // BLOCK_SIZE)
    # Of all sequences a slice: what it takes is not copied.
    chosen = slice(None) if count == batch else torch.tensor(sequences, device=query.device)
    blocks = inputs["block_tables"][chosen, first:last].reshape(-1)
    keys, values = (cache.new_empty((blocks.numel(), *inputs[name].shape[1:])) for name in ("key_cache", "value_cache"))
    pieces = []
    for start in range(0, q, QUERY_TILE):
        stop = min(start + QUERY_TILE, q)
        end = length - q + stop  # a tree is one piece
        pieces.append((start, stop, end - begin, _mask(inputs, sequences, start, stop, begin, end)))
    raw = torch.uint8 if cache.element_size() == 1 else cache.dtype  # float8 has no gather of its own.
    gathers = [(inputs["key_cache"].view(raw), keys.view(raw)), (inputs["value_cache"].view(raw), values.view(raw))]
    attend = torch.nn.functional.scaled_dot_product_attention

    def launch() -> None:
        for source, buffer in gathers:
            torch.index_select(source, 0, blocks, out=buffer)
        key, value = (
            buffer.to(query.dtype).view(count, -1, kv_heads, buffer.shape[3]).transpose(1, 2)
            for buffer in (keys, values)
        )
        mine = query[chosen]
        for start, stop, end, mask in pieces:
            rows = mine[:, start:stop].view(count, stop - start, kv_heads, group, head_dim).permute(0, 2, 1, 3, 4)
            attended = attend(
                rows.reshape(count, kv_heads, (stop - start) * group, head_dim),
                key[:, :, :end],
                value[:, :, :end],
                attn_mask=mask,
                scale=inputs["scale"] * inputs["k_scale"],
            )
            if inputs["v_scale"] != 1:
                attended = attended * inputs["v_scale"]
            tokens = attended.view(count, kv_heads, stop - start, group, value_dim).permute(0, 2, 1, 3, 4).flatten(2, 3)
            out[chosen, start:stop] = tokens

    return launch


def _mask(inputs: Tensors, sequences: list[int], start: int, stop: int, begin: int, end: int) -> torch.Tensor | None:
    """[sequences or 1, 1, (stop - start) * group, end - begin] to be added to the scores; None: all keys are seen."""
    alike = inputs["tree"] is None
    seen = torch.stack([visible(inputs, row)[start:stop, begin:end] for row in (sequences[:1] if alike else sequences)])
    if bool(seen.all()):
        return None
    group = inputs["query"].shape[2] // inputs["key_cache"].shape[2]
    added = torch.zeros(seen.shape, dtype=inputs["query"].dtype, device=seen.device)
    added.masked_fill_(~seen, -torch.inf)
    return added.repeat_interleave(group, dim=1)[:, None]
