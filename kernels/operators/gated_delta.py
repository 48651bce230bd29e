"""Gated DeltaNet and its kin: linear attention whose context is one matrix a value head, the state.

A token decays its head's state S [k, n] by exp(g), corrects what it holds under the token's key, and reads it with the
query: ``S = exp(g) S + beta k (v - k^T exp(g) S)^T``, ``o = S^T q``. gdn_decode: q new tokens of each of ``batch``
sequences, token by token; q > 1 is verification, which keeps the state after every token so that rejected ones can be
taken back (vLLM). gdn_prefill: prompts of q tokens in chunks of `CHUNK`, whose tokens attend to each other and to the
state before them. ``heads`` value heads of n numbers, ``kv_heads`` key heads of k numbers. (arXiv 2412.06464)

Kimi Delta Attention (arXiv 2510.26692) decays every key on its own: g has k numbers a head. Mamba-2 (arXiv 2405.21060)
adds without correcting, ``S = exp(g) S + beta k v^T``: k is B, q is C, v is x and beta the time step.

Imported times hold the short convolution over q, k and v before it too; the kernels here do not. The state's format
stands where attention has the cache's (``kv_dtype``).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from draftcast.kernels.extras import torch
from draftcast.kernels.model.dtypes import KV_BYTES, activation_bytes, torch_dtype
from draftcast.kernels.model.spec import ModelSpec
from draftcast.kernels.operators.cost import Work, as_array, sizes_of
from draftcast.kernels.operators.registry import Draw, Operator, Outputs, Shape, Tensors, formula_operator

CHUNK = 64  # Tokens of a chunk in the kernels that vLLM runs (flash-linear-attention, FlashInfer).


def gated_delta_work(
    shape: Mapping[str, Any], dtype: str, state_dtype: str, *, chunked: bool, kind: str = "gated_delta"
) -> Work:
    """Work of ``batch`` equal sequences of a layer, convolution left out; shape fields may be arrays.

    Three products of a token with its head's state (two of Mamba-2, which corrects nothing), and in chunks half of two
    products with the chunk's other tokens; KDA also reads a decay for every key.
    The state is read once a sequence and written after every token, of a prompt once. A token's q, k, v and output are
    moved once.
    """
    batch, q, heads, kv_heads, k, n = sizes_of(shape, "batch q heads kv_heads k n")
    products = (4.0 if kind == "mamba2" else 6.0) * k * n + (2.0 * CHUNK * (k + n) if chunked else 0.0)
    state = heads * k * n * KV_BYTES[state_dtype]
    row = ((3.0 if kind == "kda" else 2.0) * kv_heads * k + 2.0 * heads * n) * activation_bytes(dtype)
    written = 1.0 if chunked else q
    return Work(batch * q * heads * products, batch * ((1.0 + written) * state + q * row))


def linear_attention_work(model: ModelSpec, f: Mapping[str, Any], tp: int, dtype: str) -> Work:
    """Work of all linear attention layers over a step's features, on one of ``tp`` ranks with weights in ``dtype``."""
    total = Work(as_array(0.0), as_array(0.0))
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


def draw_inputs(shape: Shape, draw: Draw, *, kind: str = "gated_delta") -> dict[str, Any]:
    """q, k of length 1 and v [batch, q, heads, size], decays g < 0 and beta in [0, 1) [batch, q, heads], the state.

    KDA's g is [batch, q, heads, k]. Mamba-2's has no correction, which ``corrects`` says.
    """
    batch, q, heads, kv_heads, k, n = (shape[name] for name in ("batch", "q", "heads", "kv_heads", "k", "n"))
    keys = [torch.nn.functional.normalize(draw.normal(batch, q, kv_heads, k).float(), dim=-1) for _ in range(2)]
    decays = (batch, q, heads, k) if kind == "kda" else (batch, q, heads)
    return {
        "query": keys[0].to(torch_dtype(draw.dtype)),
        "key": keys[1].to(torch_dtype(draw.dtype)),
        "value": draw.normal(batch, q, heads, n),
        "g": torch.log(0.5 + 0.5 * draw.uniform(*decays)),
        "beta": draw.uniform(batch, q, heads),
        "state": draw.normal(batch, heads, k, n, dtype=draw.kv_dtype),
        "corrects": kind != "mamba2",
    }


def make_outputs(inputs: Tensors) -> Outputs:
    """Outputs of every token, and the state after the last."""
    return {"out": torch.empty_like(inputs["value"]), "last_state": torch.empty_like(inputs["state"])}


def _wide(inputs: Tensors, dtype: torch.dtype) -> list[torch.Tensor]:
    """query, key, value, g, beta in ``dtype`` as [batch, heads, q, ...], key heads repeated for their value heads."""
    groups = inputs["value"].shape[2] // inputs["key"].shape[2]
    query, key = (inputs[name].to(dtype).repeat_interleave(groups, dim=2).transpose(1, 2) for name in ("query", "key"))
    return [query, key, *(inputs[name].to(dtype).transpose(1, 2) for name in ("value", "g", "beta"))]


def recurrent(inputs: Tensors, dtype: torch.dtype) -> Outputs:
    """Token by token, as the formula stands."""
    query, key, value, g, beta = _wide(inputs, dtype)
    state = inputs["state"].to(dtype)
    decay = g.exp() if g.ndim == 4 else g.exp()[..., None]
    out = torch.empty_like(value)
    for t in range(value.shape[2]):
        state = state * decay[:, :, t, :, None]
        error = value[:, :, t]
        if inputs["corrects"]:
            error = error - torch.einsum("bhk,bhkn->bhn", key[:, :, t], state)
        state = state + torch.einsum("bhk,bhn->bhkn", key[:, :, t], beta[:, :, t, None] * error)
        out[:, :, t] = torch.einsum("bhk,bhkn->bhn", query[:, :, t], state)
    return {"out": out.transpose(1, 2), "last_state": state}


def chunked(inputs: Tensors, dtype: torch.dtype) -> Outputs:
    """In chunks (arXiv 2412.06464, section 3.3): a triangular solve gives all corrections of a chunk at once.

    Keys and queries take up the decays between tokens, of KDA key by key (arXiv 2510.26692, section 3.1); their
    differences are taken in the exponent, for a chunk's decays together would overflow.
    """
    query, key, value, g, beta = _wide(inputs, dtype)
    state, tokens = inputs["state"].to(dtype), value.shape[2]
    g = g if g.ndim == 4 else g[..., None]
    out = torch.empty_like(value)
    for start in range(0, tokens, CHUNK):
        part = slice(start, min(start + CHUNK, tokens))
        q, k, v, b = query[:, :, part], key[:, :, part], value[:, :, part], beta[:, :, part, None]
        decay = g[:, :, part].cumsum(-2)
        # exp(decay_i - decay_j) for j <= i, a number a head or a key.
        apart = decay[..., :, None, :] - decay[..., None, :, :]
        lower = torch.ones(apart.shape[-3:-1], dtype=torch.bool, device=k.device).tril()[..., None]
        between = apart.masked_fill(~lower, -torch.inf).exp()
        pairs, seen = (torch.einsum("bhik,bhjk,bhijk->bhij", x, k, between.expand(*between.shape[:-1], k.shape[-1]))
                       for x in (k, q))  # fmt: skip
        before = decay.exp()
        fresh = b * v
        if inputs["corrects"]:
            system = (b * pairs).tril(-1) + torch.eye(k.shape[2], dtype=dtype, device=k.device)
            fresh = torch.linalg.solve_triangular(system, fresh - b * ((before * k) @ state), upper=False)
        out[:, :, part] = (before * q) @ state + seen @ fresh
        rest = (decay[..., -1:, :] - decay).exp()
        state = decay[..., -1, :, None].exp() * state + (rest * k).transpose(-1, -2) @ fresh
    return {"out": out.transpose(1, 2), "last_state": state}


def _supports(shape: Shape, dtype: str, state_dtype: str, device: str) -> str:
    return "key heads must divide value heads" if shape["heads"] % shape["kv_heads"] else ""


def _operator(name: str, kind: str, *, in_chunks: bool) -> Operator:
    work, draw = partial(gated_delta_work, chunked=in_chunks, kind=kind), partial(draw_inputs, kind=kind)
    return formula_operator(name, work, draw, make_outputs, _supports, chunked if in_chunks else recurrent, recurrent)


GDN_DECODE = _operator("gdn_decode", "gated_delta", in_chunks=False)
GDN_PREFILL = _operator("gdn_prefill", "gated_delta", in_chunks=True)
KDA_DECODE = _operator("kda_decode", "kda", in_chunks=False)
KDA_PREFILL = _operator("kda_prefill", "kda", in_chunks=True)
MAMBA2_DECODE = _operator("mamba2_decode", "mamba2", in_chunks=False)
MAMBA2_PREFILL = _operator("mamba2_prefill", "mamba2", in_chunks=True)
