"""Attention over a paged KV cache: decode, verify, tree verify and prefill."""

from __future__ import annotations

from numpy.typing import ArrayLike

from draftcast.kernels.dtypes import KV_BYTES, kv_dtype
from draftcast.kernels.model import ModelSpec
from draftcast.kernels.work import Work, as_array


def attention_work(
    model: ModelSpec,
    query_tokens: ArrayLike,
    kv_tokens: ArrayLike,
    query_kv: ArrayLike,
    *,
    tp: int = 1,
    kv_cache_dtype: str = "bf16",
    act_bytes: float = 2.0,
) -> Work:
    """Attention of ONE layer over a batch of sequences, decode, verify or prefill alike.

    ``4 H d sum(q S)`` FLOPs (scores and weighted sum). A sequence's KV is read once however many of its queries are
    verified: ``2 sum(S) H_kv d bytes`` does not contain k (FlashAttention, arXiv 2205.14135; DESIGN section 3). New
    K and V are written once per query token; queries are read and outputs written once.
    MLA in absorbed form (arXiv 2405.04434): every head attends to one shared latent of ``kv_lora_rank + rope`` and sums
    latents: ``2 H (2 kv_lora_rank + rope) sum(q S)`` FLOPs; the latent is read once per sequence for all heads.

    Args:
        query_tokens: sum of q over the sequences, in tokens.
        kv_tokens: sum of S, the context each sequence attends to, new tokens included (cut to the window for a
            sliding layer).
        query_kv: sum of q*S (causal prefill: sum of the context each query sees).
        tp: ranks; heads are split, KV heads replicated when fewer.
        kv_cache_dtype: format of the KV cache.
        act_bytes: bytes per activation element.
    """
    queries, context, pairs = as_array(query_tokens), as_array(kv_tokens), as_array(query_kv)
    heads, kv_bytes = model.num_attention_heads // tp, KV_BYTES[kv_dtype(kv_cache_dtype)]
    elements = model.kv_elements_per_layer(tp)
    if model.is_mla:
        flops = 2.0 * heads * (2 * model.kv_lora_rank + model.qk_rope_head_dim) * pairs
        query_io = heads * (2 * model.kv_lora_rank + model.qk_rope_head_dim)
    else:
        flops = 4.0 * heads * model.head_dim * pairs
        query_io = 2 * heads * model.head_dim
    moved = (context + queries) * elements * kv_bytes + queries * query_io * act_bytes
    return Work(flops, moved)
