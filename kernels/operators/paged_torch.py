"""Paged attention in plain torch: gather the blocks, then torch's fused attention. Runs on the CPU and on CUDA.

The heads that share a KV head become rows of one attention head, so the KV is never repeated and serves all queries of
a sequence at once. The gather is part of the time: the KV crosses memory three times (read, written, read again) where
a paged kernel reads it once. Sequences of equal length go through one call, so a ragged batch is a loop over its
lengths. Lengths are read while preparing: a prepared launch is for these lengths only. Long prompts are taken in pieces
of `QUERY_TILE` tokens, so that keys later than a piece are not multiplied and the mask stays small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftcast.kernels.operators.paged import BLOCK_SIZE, visible
from draftcast.kernels.operators.registry import Launch, Tensors

if TYPE_CHECKING:
    import torch

QUERY_TILE = 256


def prepare(inputs: Tensors, outputs: Tensors) -> Launch:
    """Launch over `draftcast.kernels.operators.paged.draw_inputs`, writing ``out``."""
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
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    query, cache = inputs["query"], inputs["key_cache"]
    batch, q, heads, head_dim = query.shape
    kv_heads = cache.shape[2]
    group, count = heads // kv_heads, len(sequences)
    first = max(length - q - inputs["window"] + 1, 0) // BLOCK_SIZE if inputs["window"] else 0
    begin, last = first * BLOCK_SIZE, -(-length // BLOCK_SIZE)
    chosen = torch.tensor(sequences, device=query.device)
    blocks = inputs["block_tables"][chosen, first:last].reshape(-1)
    keys, values = (cache.new_empty((blocks.numel(), *cache.shape[1:])) for _ in range(2))
    pieces = []
    for start in range(0, q, QUERY_TILE):
        stop = min(start + QUERY_TILE, q)
        end = length - q + stop  # a tree is one piece
        pieces.append((start, stop, end - begin, _mask(inputs, sequences, start, stop, begin, end)))
    # float8 has no gather of its own.
    raw = torch.uint8 if cache.element_size() == 1 else cache.dtype
    gathers = [
        (inputs[f"{name}_cache"].view(raw), buffer.view(raw)) for name, buffer in (("key", keys), ("value", values))
    ]
    everything = count == batch

    def launch() -> None:
        for source, buffer in gathers:
            torch.index_select(source, 0, blocks, out=buffer)
        key, value = (
            buffer.to(query.dtype).view(count, -1, kv_heads, head_dim).transpose(1, 2) for buffer in (keys, values)
        )
        mine = query if everything else query[chosen]
        for start, stop, end, mask in pieces:
            rows = mine[:, start:stop].view(count, stop - start, kv_heads, group, head_dim).permute(0, 2, 1, 3, 4)
            attended = scaled_dot_product_attention(
                rows.reshape(count, kv_heads, (stop - start) * group, head_dim),
                key[:, :, :end],
                value[:, :, :end],
                attn_mask=mask,
                scale=inputs["scale"] * inputs["k_scale"],
            )
            if inputs["v_scale"] != 1:
                attended = attended * inputs["v_scale"]
            tokens = attended.view(count, kv_heads, stop - start, group, head_dim).permute(0, 2, 1, 3, 4).flatten(2, 3)
            if everything:
                out[:, start:stop] = tokens
            else:
                out[chosen, start:stop] = tokens

    return launch


def _mask(inputs: Tensors, sequences: list[int], start: int, stop: int, begin: int, end: int) -> torch.Tensor | None:
    """What is added to the scores of query tokens start ... stop and keys begin ... end; None: all are seen.

    Shape (sequences or 1, 1, (stop - start) * group, end - begin).
    """
    import torch

    alike = inputs["tree"] is None
    seen = torch.stack([visible(inputs, row)[start:stop, begin:end] for row in (sequences[:1] if alike else sequences)])
    if bool(seen.all()):
        return None
    group = inputs["query"].shape[2] // inputs["key_cache"].shape[2]
    added = torch.zeros(seen.shape, dtype=inputs["query"].dtype, device=seen.device)
    added.masked_fill_(~seen, -torch.inf)
    return added.repeat_interleave(group, dim=1)[:, None]
