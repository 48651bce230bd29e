"""vLLM's own decode and verify attention on Hopper GPUs, FlashAttention 3 (arXiv 2407.08608), where vLLM is installed.

Called as vLLM calls it in a CUDA graph (``vllm/v1/attention/backends/flash_attn.py`` of 0.25): the tiles of a step are
planned once for all layers, outside of the timed launch, and a sequence is split into at most 32 parts. With an fp8
cache queries are fp8 too; what quantises them is not part of the launch.
"""

from __future__ import annotations

import importlib.util

from draftcast.kernels.extras import torch
from draftcast.kernels.model.dtypes import E4M3_MAX, FP8_SCALE
from draftcast.kernels.operators import paged
from draftcast.kernels.operators.registry import Implementation, Launch, Shape, Tensors

MOST_SPLITS = 32


def supports(shape: Shape, dtype: str, kv_cache_dtype: str, device: str) -> str:
    if importlib.util.find_spec("vllm") is None:
        return "FlashAttention 3 is vLLM's: install vLLM beside draftcast"
    if device != "cuda" or torch.cuda.get_device_capability()[0] != 9:
        return "FlashAttention 3 needs a GPU of compute capability 9.x"
    if dtype != "bf16" or kv_cache_dtype not in ("bf16", "fp8"):
        return "FlashAttention 3 reads a bf16 or fp8 cache with bf16 activations"
    if shape.get("tree"):
        return "FlashAttention 3 takes no mask of a tree"
    return paged.bad_shape(shape)


def prepare(inputs: Tensors, outputs: Tensors) -> Launch:
    from vllm.vllm_flash_attn.flash_attn_interface import flash_attn_varlen_func, get_scheduler_metadata

    query, cache, values, lengths = (inputs[name] for name in ("query", "key_cache", "value_cache", "context_lens"))
    batch, q, heads, head_dim = query.shape
    page, kv_heads = cache.shape[1:3]
    flat, out = query.view(batch * q, heads, head_dim), outputs["out"].view(batch * q, heads, head_dim)
    scales = {}
    if cache.dtype == torch.float8_e4m3fn:
        flat = (flat / FP8_SCALE).clamp(-E4M3_MAX, E4M3_MAX).to(cache.dtype)
        by = {"q": FP8_SCALE, "k": inputs["k_scale"], "v": inputs["v_scale"]}
        scales = {
            f"{name}_descale": torch.tensor(scale, device=out.device).expand(batch, kv_heads)
            for name, scale in by.items()
        }
    starts = torch.arange(batch + 1, dtype=torch.int32, device=out.device) * q
    # A query sees itself and window - 1 keys before it.
    window = (inputs["window"] - 1, 0) if inputs["window"] else (-1, -1)
    longest = int(lengths.max())
    shared = {"causal": True, "window_size": window, "num_splits": MOST_SPLITS}
    plan = get_scheduler_metadata(
        batch_size=batch,
        max_seqlen_q=q,
        max_seqlen_k=longest,
        num_heads_q=heads,
        num_heads_kv=kv_heads,
        headdim=head_dim,
        cache_seqlens=lengths,
        qkv_dtype=flat.dtype,
        cu_seqlens_q=starts,
        page_size=page,
        **shared,
    )
    arguments = {**shared, **scales, "window_size": list(window)}

    def launch() -> None:
        flash_attn_varlen_func(
            q=flat,
            k=cache,
            v=values,
            out=out,
            cu_seqlens_q=starts,
            max_seqlen_q=q,
            seqused_k=lengths,
            max_seqlen_k=longest,
            softmax_scale=inputs["scale"],
            block_table=inputs["block_tables"],
            scheduler_metadata=plan,
            fa_version=3,
            **arguments,
        )

    return launch


FLASH_ATTENTION = Implementation("vllm_flash_attn_fa3", supports, prepare)
