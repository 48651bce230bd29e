"""Gated DeltaNet and its kin: linear attention whose context is one matrix a value head, the state.

A token decays its head's state S [k, n] by exp(g), corrects what it holds under the token's key, and reads it with the
query: ``S = exp(g) S + beta k (v - k^T exp(g) S)^T``, ``o = S^T q``. gdn_decode: q new tokens of each of ``batch``
sequences, token by token; q > 1 is verification, which keeps the state after every token so that rejected ones can be
taken back (vLLM). gdn_prefill: prompts of q tokens in chunks of `CHUNK`, whose tokens attend to each other and to the
state before them. ``heads`` value heads of n numbers, ``kv_heads`` key heads of k numbers. (arXiv 2412.06464)

Kimi Delta Attention (arXiv 2510.26692) decays every key on its own: g has k numbers a head. Mamba-2 (arXiv 2405.21060)
adds without correcting, ``S = exp(g) S + beta k v^T``: k is B, q is C, v is x and beta the time step.

Imported times hold the short convolution over q, k and v before it too. The state's format stands where attention has
the cache's (``kv_dtype``).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from draftcast.kernels.model.dtypes import KV_BYTES, activation_bytes
from draftcast.kernels.model.spec import ModelSpec
from draftcast.kernels.operators.cost import Work, as_array

CHUNK = 64
"""Tokens of a chunk in the kernels that vLLM runs (flash-linear-attention, FlashInfer)."""


def gated_delta_work(
    shape: Mapping[str, Any], dtype: str, state_dtype: str, *, chunked: bool, kind: str = "gated_delta"
) -> Work:
    """Work of ``batch`` equal sequences of a layer, convolution left out; shape fields may be arrays.

    Three products of a token with its head's state (two of Mamba-2, which corrects nothing), and in chunks half of two
    products with the chunk's other tokens; KDA also reads a decay for every key.
    The state is read once a sequence and written after every token, of a prompt once. A token's q, k, v and output are
    moved once.
    """
    batch, q, heads, kv_heads, k, n = (
        as_array(shape[name]) for name in ("batch", "q", "heads", "kv_heads", "k", "n")
    )  # fmt: skip
    products = (4.0 if kind == "mamba2" else 6.0) * k * n + (2.0 * CHUNK * (k + n) if chunked else 0.0)
    state = heads * k * n * KV_BYTES[state_dtype]
    row = ((3.0 if kind == "kda" else 2.0) * kv_heads * k + 2.0 * heads * n) * activation_bytes(dtype)
    written = 1.0 if chunked else q
    return Work(batch * q * heads * products, batch * ((1.0 + written) * state + q * row))


def linear_attention_work(model: ModelSpec, f: Mapping[str, Any], tp: int, dtype: str) -> Work:
    """Work of all linear attention layers over a step's features, on one of ``tp`` ranks with weights in ``dtype``."""
    total = Work(as_array(0.0), as_array(0.0))
    if not model.num_linear_layers:
        return total
    heads, state = linear_shape(model, tp), model.linear_state_dtype(dtype)
    for phase in ("decode", "prefill"):
        seqs, rows = float(f[f"{phase}_seqs"]), float(f[f"{phase}_tokens"])
        shape = {"batch": seqs, "q": rows / max(seqs, 1.0), **heads}
        total = total.add(gated_delta_work(shape, dtype, state, chunked=phase == "prefill", kind=model.linear_kind))
    return total.scale(model.num_linear_layers)


def linear_shape(model: ModelSpec, tp: int) -> dict[str, int]:
    """Shape fields that a model's linear attention layers fix on one of ``tp`` ranks."""
    return {
        "heads": model.linear_num_value_heads // tp,
        "kv_heads": max(1, model.linear_num_key_heads // tp),
        "k": model.linear_key_head_dim,
        "n": model.linear_value_head_dim,
    }


GDN_DECODE = partial(gated_delta_work, chunked=False)
GDN_PREFILL = partial(gated_delta_work, chunked=True)
