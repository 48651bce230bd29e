"""A paged KV cache with random content, and attention over it as the dense textbook formula in float64.

Inputs of the attention operators (`draw_inputs`), all on one device:

- ``query`` [batch, q, heads, head_dim]: the q newest tokens of each sequence.
- ``key_cache``, ``value_cache`` [blocks, 16, kv_heads, head_dim]: vLLM's FlashAttention layout. The q new tokens' own
  keys and values are already in it. Block 0 belongs to nobody, as in vLLM.
- ``block_tables`` int32 [batch, width]: block of tokens 0-15, 16-31, ... of a sequence. Entries past its last block
  may hold anything; so may blocks wholly outside the window of all q tokens, and slots past the last token.
- ``context_lens`` int32 [batch]: tokens of a sequence, the q new ones included: at least q.
- ``tree`` int64 [batch, q] or None: bit j of entry i says that new token i sees new token j (its ancestors and itself);
  None: new token i sees new tokens 0 to i. What stands before the new tokens is seen by all of them.
- ``depths`` int32 [batch, q] or None: a tree token's distance from the first new token, in tokens; its position in the
  text is that of the first new token plus this.
- ``window``: a token sees the keys less than this many positions back (itself included); 0: all of them.
- ``scale``: of the scores, 1/sqrt(head_dim); ``k_scale``, ``v_scale``: what a cached fp8 number is multiplied by.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from draftcast.errors import HardwareError
from draftcast.kernels.operators.registry import FP8_SCALE, Draw, Shape, Tensors

if TYPE_CHECKING:
    import torch

BLOCK_SIZE = 16
MAX_TREE_TOKENS = 63
"""Tokens whose ancestors fit one int64 of either sign."""


def draw_inputs(shape: Shape, draw: Draw, *, ragged: bool = False) -> dict[str, Any]:
    """Random inputs; see the module's docstring.

    Args:
        shape: batch, q, context, heads, kv_heads, head_dim, window, and tree (absent: 0).
        ragged: each sequence but the first has its own random length from q to context.

    Raises:
        HardwareError: context below q, heads no multiple of kv_heads, or a tree of too many tokens.
    """
    import torch

    batch, q, context, head_dim = shape["batch"], shape["q"], shape["context"], shape["head_dim"]
    reason = bad_shape(shape)
    if reason:
        raise HardwareError(reason, key="attention", value=dict(shape))
    width = math.ceil(context / BLOCK_SIZE)
    order = torch.randperm(batch * width, device=draw.device, generator=draw.generator)
    lengths = draw.lengths(batch, q, context, ragged=ragged)
    past = torch.arange(width, device=draw.device) * BLOCK_SIZE >= lengths[:, None]
    cache = (1 + batch * width, BLOCK_SIZE, shape["kv_heads"], head_dim)
    tree, depths = random_trees(batch, q, draw) if shape.get("tree") else (None, None)
    scale = FP8_SCALE if draw.kv_dtype == "fp8" else 1.0
    return {
        "query": draw.normal(batch, q, shape["heads"], head_dim),
        "key_cache": draw.normal(*cache, dtype=draw.kv_dtype),
        "value_cache": draw.normal(*cache, dtype=draw.kv_dtype),
        "block_tables": (1 + order.to(torch.int32).view(batch, width)).masked_fill(past, 0),
        "context_lens": lengths,
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


def make_outputs(inputs: Tensors) -> dict[str, torch.Tensor]:
    """``out``: as the query."""
    return {"out": inputs["query"].new_empty(inputs["query"].shape)}


def random_trees(batch: int, q: int, draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    """Masks and depths of random trees: token 0 is the root, every other has any earlier token for a parent."""
    import torch

    tree = torch.ones((batch, q), dtype=torch.int64, device=draw.device)
    depths = torch.zeros((batch, q), dtype=torch.int32, device=draw.device)
    for token in range(1, q):
        parent = draw.integers(0, token, batch, 1)
        tree[:, token] = tree.gather(1, parent)[:, 0] | (1 << token)
        depths[:, token] = depths.gather(1, parent)[:, 0] + 1
    return tree, depths


def visible(inputs: Tensors, sequence: int) -> torch.Tensor:
    """bool [q, context_lens[sequence]]: which cached tokens each new token sees."""
    import torch

    device, q = inputs["query"].device, inputs["query"].shape[1]
    length = int(inputs["context_lens"][sequence])
    prefix = length - q
    slots = torch.arange(length, device=device)
    new = torch.arange(q, device=device)
    seen: torch.Tensor
    if inputs["tree"] is None:
        depths = new
        seen = slots[None, :] <= prefix + new[:, None]
    else:
        depths = inputs["depths"][sequence].to(torch.int64)
        ancestors = (inputs["tree"][sequence][:, None] >> new[None, :]) & 1
        seen = torch.cat((torch.ones((q, prefix), dtype=torch.bool, device=device), ancestors.bool()), dim=1)
    if inputs["window"]:
        position = torch.cat((slots[:prefix], prefix + depths))
        seen = seen & ((prefix + depths)[:, None] - position[None, :] < inputs["window"])
    return seen


def reference(inputs: Tensors) -> dict[str, torch.Tensor]:
    """``softmax(scale * query @ keys^T) @ values`` over the visible keys, sequence by sequence, in float64."""
    import torch

    query = inputs["query"].double()
    batch, _, heads, _ = query.shape
    group = heads // inputs["key_cache"].shape[2]
    out = torch.empty_like(query)
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
