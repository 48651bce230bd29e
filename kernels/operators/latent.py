"""Multi-head latent attention (MLA; DeepSeek-V2, arXiv 2405.04434): decode and verify over the latents, and prompts.

mla_decode: q new tokens of each of ``batch`` sequences over ``context`` cached latents, the new ones included, in
absorbed form: all heads share one key of ``k`` numbers a token (latent and rotary part), and its first ``n`` are the
value. mla_prefill: q prompt tokens after context - q earlier ones in plain form: every head has its own keys of ``k``
and values of ``n`` numbers, expanded from the latents. Inputs and reference are those of `kernels/operators/paged`.

Imported times of these operators hold the latents' norms, the rotary embedding and the cache write too
(`calibration/importers/latent_attention`). They have no kernel here, so `calibrate` times no latent attention.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from draftcast.kernels.model.dtypes import KV_BYTES, activation_bytes, kv_dtype
from draftcast.kernels.operators import paged
from draftcast.kernels.operators.cost import Work, attended_work, sizes_of
from draftcast.kernels.operators.registry import Draw, Implementation, Operator, Shape


def mla_work(shape: Mapping[str, Any], dtype: str, kv_cache_dtype: str, *, absorbed: bool) -> Work:
    """`attention_work` of ``batch`` equal sequences of a latent-attention layer; shape fields may be arrays."""
    batch, q, context, heads, k, n = sizes_of(shape, "batch q context heads k n")
    act, pairs, cached = activation_bytes(dtype), q * context, (context + q) * k * KV_BYTES[kv_dtype(kv_cache_dtype)]
    if not absorbed:
        pairs, cached = pairs - 0.5 * q * (q - 1.0), context * heads * (k + n) * act
    return attended_work(heads, k + n, batch * pairs, batch * q, batch * cached, act)


def draw_inputs(shape: Shape, draw: Draw, *, absorbed: bool, ragged: bool = False) -> dict[str, Any]:
    """Random inputs, see `kernels/operators/paged`: one KV head of latents, or expanded keys and values of every head.

    Raises HardwareError: context below q.
    """
    heads = {"kv_heads": 1 if absorbed else shape["heads"], "head_dim": shape["k"], "window": 0}
    draw = draw if absorbed else replace(draw, kv_dtype=draw.dtype)
    inputs = paged.draw_inputs({**shape, **heads}, draw, ragged=ragged)
    values = inputs["key_cache" if absorbed else "value_cache"]
    return {**inputs, "value_cache": values[..., : shape["n"]]}


def _supports(shape: Shape, dtype: str, kv_cache_dtype: str, device: str) -> str:
    if shape["n"] > shape["k"]:
        return "values are no wider than keys"
    return paged.bad_shape({**shape, "kv_heads": 1})


MLA_DECODE = Operator(
    name="mla_decode",
    work=partial(mla_work, absorbed=True),
    draw_inputs=partial(draw_inputs, absorbed=True),
    make_outputs=paged.make_outputs,
    reference=paged.reference,
    implementations={"torch": Implementation("torch", _supports, paged.prepare)},
)
MLA_PREFILL = replace(
    MLA_DECODE,
    name="mla_prefill",
    work=partial(mla_work, absorbed=False),
    draw_inputs=partial(draw_inputs, absorbed=False),
)
