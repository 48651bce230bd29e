"""Attention over a paged KV cache: decode, verify, tree verify and prefill.

attention_decode: q new tokens of each of ``batch`` sequences over ``context`` tokens, the new ones included; q = 1 is
decode, more is verify, ``tree`` = 1 verify under an ancestor mask. attention_prefill: a chunk of q prompt tokens after
context - q earlier ones. One kernel serves both; inputs and the reference are those of `kernels/operators/paged`.

Multi-head latent attention (MLA; DeepSeek-V2, arXiv 2405.04434). mla_decode is in absorbed form: all heads share one
key of ``k`` numbers a token (latent and rotary part), and its first ``n`` are the value. mla_prefill is in plain form:
every head has its own keys of ``k`` and values of ``n`` numbers, expanded from the latents. Imported times of these two
hold the latents' norms, the rotary embedding and the cache write too (`calibration/importers/latent_attention`). Those
in plain torch here do not, so `calibrate` times no latent attention.
"""

import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from draftcast.kernels.arrays import FloatArray
from draftcast.kernels.extras import torch
from draftcast.kernels.model.dtypes import E4M3_MAX, FP8_SCALE, KV_BYTES, activation_bytes, fp8_runs, kv_dtype
from draftcast.kernels.model.spec import ModelSpec
from draftcast.kernels.operators import paged
from draftcast.kernels.operators.cost import Work, as_array, attended_work, sizes_of
from draftcast.kernels.operators.registry import Draw, Implementation, Launch, Operator, Shape, Tensors, implementations

MOST_SPLITS = 32


def attention_work(
    model: ModelSpec,
    query_tokens: ArrayLike,
    kv_tokens: ArrayLike,
    query_kv: ArrayLike,
    *,
    tp: int = 1,
    kv_cache_dtype: str = "bf16",
    act_bytes: float = 2.0,
    absorbed: bool = True,
) -> Work:
    """Attention of ONE layer over a batch of sequences, decode, verify or prefill alike.

    ``4 H d sum(q S)`` FLOPs (scores and weighted sum). A sequence's KV is read once however many of its queries are
    verified: ``2 sum(S) H_kv d bytes`` does not contain k (FlashAttention, arXiv 2205.14135; DESIGN section 3). New
    K and V are written once per query token, by the engine: the kernels here find them written. Queries are read and
    outputs written once.
    MLA in absorbed form (arXiv 2405.04434): every head attends to one shared latent of ``kv_lora_rank + rope`` and sums
    latents: ``2 H (2 kv_lora_rank + rope) sum(q S)`` FLOPs; the latent is read once per sequence for all heads. Prompts
    run in the plain form instead, over keys and values expanded per head (vLLM's ``forward_mha``): ``2 H (nope + rope +
    v) sum(q S)`` FLOPs. Expanding is the layer kv_b's; expanding a cached prefix once more for a chunk is not counted,
    nor is writing the latent.

    Of compressed attention an entry stands for several tokens, and every query reads the last tokens besides.

    Args:
        query_tokens: sum of q over the sequences, in tokens.
        kv_tokens: sum of S, the context each sequence attends to, new tokens included (cut to the window for a
            sliding layer).
        query_kv: sum of q*S (causal prefill: sum of the context each query sees).
        tp: ranks; heads are split, KV heads replicated when fewer.
        absorbed: which form of MLA; without meaning for other attention.
    """
    queries, context, pairs = as_array(query_tokens), as_array(kv_tokens), as_array(query_kv)
    if model.kv_compression:
        context = context / model.kv_compression + queries * model.local_window
        pairs = pairs / model.kv_compression + queries * model.local_window
    heads, kv_bytes = model.num_attention_heads // tp, KV_BYTES[kv_dtype(kv_cache_dtype)]
    if model.is_mla and not absorbed:
        width = model.qk_nope_head_dim + model.qk_rope_head_dim + model.v_head_dim
        return attended_work(heads, width, pairs, queries, context * heads * width * act_bytes, act_bytes)
    width = 2 * model.kv_lora_rank + model.qk_rope_head_dim if model.is_mla else model.head_dim + model.value_dim
    cached = (context + queries) * model.kv_elements_per_layer(tp) * kv_bytes
    return attended_work(heads, width, pairs, queries, cached, act_bytes)


def layer_shape(model: ModelSpec, phase: str, tp: int) -> tuple[str, dict[str, int]]:
    """Operator that a layer's attention is in a phase, "decode" or "prefill", and the shape fields that the model fixes
    on one of ``tp`` ranks (full attention)."""
    heads = model.num_attention_heads // tp
    if model.is_mla:
        latent = (model.kv_lora_rank + model.qk_rope_head_dim, model.kv_lora_rank)
        expanded = (model.qk_nope_head_dim + model.qk_rope_head_dim, model.v_head_dim)
        k, n = latent if phase == "decode" else expanded
        return f"mla_{phase}", {"heads": heads, "k": k, "n": n}
    return f"attention_{phase}", {"heads": heads, "kv_heads": model.kv_heads_per_rank(tp), "head_dim": model.head_dim}


def attention_shape_work(shape: Mapping[str, Any], dtype: str, kv_cache_dtype: str, *, causal: bool) -> Work:
    """`attention_work` of ``batch`` equal sequences from the operators' shape fields, which may be arrays.

    ``causal``: prefill: query i sees context - q + i + 1 keys. Otherwise all queries are counted as seeing the context
    (q is small beside it, and a tree's queries see fewer anyhow).
    """
    batch, q, context, window = sizes_of(shape, "batch q context window")
    heads, kv_heads, head_dim = sizes_of(shape, "heads kv_heads head_dim")
    pairs: FloatArray = q * context - (0.5 * q * (q - 1.0) if causal else 0.0)
    # Of q queries a window cuts those that would see more; the first of them sees context - q + 1 keys.
    cut = np.clip(context - window, 0.0, q)
    lost = cut * (context - window) - 0.5 * cut * (cut - 1.0) if causal else q * np.maximum(context - window, 0.0)
    pairs = np.where(window > 0, pairs - lost, pairs)
    read = np.where(window > 0, np.minimum(context, window + q - 1.0), context)
    cached = 2.0 * (read + q) * kv_heads * head_dim * KV_BYTES[kv_dtype(kv_cache_dtype)]
    return attended_work(heads, 2.0 * head_dim, batch * pairs, batch * q, batch * cached, activation_bytes(dtype))


def mla_work(shape: Mapping[str, Any], dtype: str, kv_cache_dtype: str, *, absorbed: bool) -> Work:
    """`attention_work` of ``batch`` equal sequences of a latent-attention layer; shape fields may be arrays."""
    batch, q, context, heads, k, n = sizes_of(shape, "batch q context heads k n")
    act, pairs, cached = activation_bytes(dtype), q * context, (context + q) * k * KV_BYTES[kv_dtype(kv_cache_dtype)]
    if not absorbed:
        pairs, cached = pairs - 0.5 * q * (q - 1.0), context * heads * (k + n) * act
    return attended_work(heads, k + n, batch * pairs, batch * q, batch * cached, act)


def _draw_latents(shape: Shape, draw: Draw, *, absorbed: bool) -> dict[str, Any]:
    """Random inputs, see `kernels/operators/paged`: one KV head of latents, or expanded keys and values of every head.

    Raises HardwareError: context below q.
    """
    heads = {"kv_heads": 1 if absorbed else shape["heads"], "head_dim": shape["k"], "window": 0}
    draw = draw if absorbed else replace(draw, kv_dtype=draw.dtype)
    inputs = paged.draw_inputs({**shape, **heads}, draw)
    values = inputs["key_cache" if absorbed else "value_cache"]
    return {**inputs, "value_cache": values[..., : shape["n"]]}


def _supports(shape: Shape, dtype: str, kv_cache_dtype: str, device: str) -> str:
    if kv_cache_dtype not in (dtype, "fp8"):
        return f"a {dtype} kernel reads a {dtype} or fp8 cache"
    return paged.bad_shape(shape)


def _triton_supports(shape: Shape, dtype: str, kv_cache_dtype: str, device: str) -> str:
    head_dim = shape["head_dim"]
    if head_dim < 16 or head_dim > 256 or head_dim & (head_dim - 1):
        return "head_dim must be a power of two from 16 to 256"
    return _supports(shape, dtype, kv_cache_dtype, device) or fp8_runs(kv_cache_dtype, device)


def _latent_supports(shape: Shape, dtype: str, kv_cache_dtype: str, device: str) -> str:
    if shape["n"] > shape["k"]:
        return "values are no wider than keys"
    return paged.bad_shape({**shape, "kv_heads": 1})


def _flash_supports(shape: Shape, dtype: str, kv_cache_dtype: str, device: str) -> str:
    if importlib.util.find_spec("vllm") is None:
        return "FlashAttention 3 is vLLM's: install vLLM beside draftcast"
    if device != "cuda" or torch.cuda.get_device_capability()[0] != 9:
        return "FlashAttention 3 needs a GPU of compute capability 9.x"
    if dtype != "bf16" or kv_cache_dtype not in ("bf16", "fp8"):
        return "FlashAttention 3 reads a bf16 or fp8 cache with bf16 activations"
    return "FlashAttention 3 takes no mask of a tree" if shape.get("tree") else paged.bad_shape(shape)


def _flash_prepare(inputs: Tensors, outputs: Tensors) -> Launch:
    """Launch as vLLM launches it in a CUDA graph (``vllm/v1/attention/backends/flash_attn.py`` of 0.25).

    The tiles of a step are planned once for all layers, outside of the timed launch, and a sequence is split into at
    most 32 parts. With an fp8 cache queries are fp8 too; what quantises them is not part of the launch.
    """
    from vllm.vllm_flash_attn.flash_attn_interface import flash_attn_varlen_func, get_scheduler_metadata

    query, cache, values, lengths = (inputs[name] for name in ("query", "key_cache", "value_cache", "context_lens"))
    batch, q, heads, head_dim = query.shape
    page, kv_heads = cache.shape[1:3]
    flat, out = query.view(batch * q, heads, head_dim), outputs["out"].view(batch * q, heads, head_dim)
    scales = {}
    if cache.dtype == torch.float8_e4m3fn:
        flat = (flat / FP8_SCALE).clamp(-E4M3_MAX, E4M3_MAX).to(cache.dtype)
        by = {"q_descale": FP8_SCALE, "k_descale": inputs["k_scale"], "v_descale": inputs["v_scale"]}
        scales = {name: torch.tensor(scale, device=out.device).expand(batch, kv_heads) for name, scale in by.items()}
    starts = torch.arange(batch + 1, dtype=torch.int32, device=out.device) * q
    # A query sees itself and window - 1 keys before it.
    window = (inputs["window"] - 1, 0) if inputs["window"] else (-1, -1)
    longest = int(lengths.max())
    shared = {"causal": True, "window_size": window, "num_splits": MOST_SPLITS}
    plan = get_scheduler_metadata(
        batch_size=batch, max_seqlen_q=q, max_seqlen_k=longest, num_heads_q=heads, num_heads_kv=kv_heads,
        headdim=head_dim, cache_seqlens=lengths, qkv_dtype=flat.dtype, cu_seqlens_q=starts, page_size=page, **shared,
    )  # fmt: skip
    return partial(
        flash_attn_varlen_func,
        q=flat, k=cache, v=values, out=out, cu_seqlens_q=starts, max_seqlen_q=q, seqused_k=lengths,
        max_seqlen_k=longest, softmax_scale=inputs["scale"], block_table=inputs["block_tables"],
        scheduler_metadata=plan, fa_version=3, **{**shared, **scales, "window_size": list(window)},
    )  # fmt: skip


ATTENTION_PREFILL = Operator(
    name="attention_prefill",
    work=partial(attention_shape_work, causal=True),
    draw_inputs=paged.draw_inputs,
    make_outputs=paged.make_outputs,
    reference=paged.reference,
    implementations=implementations(paged.prepare, "attention:prepare", _supports, _triton_supports),
)
# vLLM's own decode and verify attention on Hopper GPUs, FlashAttention 3 (arXiv 2407.08608), where vLLM is installed.
FLASH_ATTENTION = Implementation(_flash_supports, _flash_prepare)
ATTENTION_DECODE = replace(
    ATTENTION_PREFILL,
    name="attention_decode",
    work=partial(attention_shape_work, causal=False),
    implementations={**ATTENTION_PREFILL.implementations, "vllm_flash_attn_fa3": FLASH_ATTENTION},
)
MLA_DECODE = Operator(
    name="mla_decode",
    work=partial(mla_work, absorbed=True),
    draw_inputs=partial(_draw_latents, absorbed=True),
    make_outputs=paged.make_outputs,
    reference=paged.reference,
    implementations={"torch": Implementation(_latent_supports, paged.prepare)},
)
MLA_PREFILL = replace(
    MLA_DECODE,
    name="mla_prefill",
    work=partial(mla_work, absorbed=False),
    draw_inputs=partial(_draw_latents, absorbed=False),
)
