"""Gated DeltaNet (arXiv 2412.06464): linear attention whose context is one matrix a value head, the state.

A token decays its head's state S [k, n] by exp(g), corrects what it holds under the token's key, and reads it with the
query: ``S = exp(g) S + beta k (v - k^T exp(g) S)^T``, ``o = S^T q``. gdn_decode: q new tokens of each of ``batch``
sequences, token by token; q > 1 is verification, which keeps the state after every token so that rejected ones can be
taken back (vLLM). gdn_prefill: prompts of q tokens in chunks of `CHUNK`, whose tokens attend to each other and to the
state before them. ``heads`` value heads of n numbers, ``kv_heads`` key heads of k numbers.

Imported times hold the short convolution over q, k and v before it too; the kernels here do not. The state's format
stands where attention has the cache's (``kv_dtype``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from draftcast.kernels.model.dtypes import KV_BYTES, activation_bytes, torch_dtype
from draftcast.kernels.model.spec import ModelSpec
from draftcast.kernels.operators.cost import Work, as_array
from draftcast.kernels.operators.registry import (
    Draw,
    Implementation,
    Launch,
    Operator,
    Outputs,
    Shape,
    Tensors,
)

if TYPE_CHECKING:
    import torch

CHUNK = 64
"""Tokens of a chunk in the kernels that vLLM runs (flash-linear-attention, FlashInfer)."""


def gated_delta_work(shape: Mapping[str, Any], dtype: str, state_dtype: str, *, chunked: bool) -> Work:
    """Work of ``batch`` equal sequences of a layer, convolution left out; shape fields may be arrays.

    Three products of a token with its head's state, and in chunks half of two products with the chunk's other tokens.
    The state is read once a sequence and written after every token, of a prompt once. A token's q, k, v and output are
    moved once.
    """
    batch, q, heads, kv_heads, k, n = (
        as_array(shape[name]) for name in ("batch", "q", "heads", "kv_heads", "k", "n")
    )  # fmt: skip
    products = 6.0 * k * n + (2.0 * CHUNK * (k + n) if chunked else 0.0)
    state = heads * k * n * KV_BYTES[state_dtype]
    row = (2.0 * kv_heads * k + 2.0 * heads * n) * activation_bytes(dtype)
    written = 1.0 if chunked else q
    return Work(batch * q * heads * products, batch * ((1.0 + written) * state + q * row))


def linear_attention_work(model: ModelSpec, f: Mapping[str, Any], tp: int, dtype: str) -> Work:
    """Work of all linear attention layers over a step's features, on one of ``tp`` ranks with weights in ``dtype``."""
    total = Work(as_array(0.0), as_array(0.0))
    if not model.num_linear_layers:
        return total
    heads, state, wide = linear_shape(model, tp), model.linear_state_dtype(dtype), _activations(dtype)
    for phase in ("decode", "prefill"):
        seqs, rows = float(f[f"{phase}_seqs"]), float(f[f"{phase}_tokens"])
        shape = {"batch": seqs, "q": rows / max(seqs, 1.0), **heads}
        total = total.add(gated_delta_work(shape, wide, state, chunked=phase == "prefill"))
    return total.scale(model.num_linear_layers)


def _activations(dtype: str) -> str:
    return "fp32" if activation_bytes(dtype) == 4.0 else "bf16"


def linear_shape(model: ModelSpec, tp: int) -> dict[str, int]:
    """Shape fields that a model's linear attention layers fix on one of ``tp`` ranks."""
    return {
        "heads": model.linear_num_value_heads // tp,
        "kv_heads": model.linear_num_key_heads // tp,
        "k": model.linear_key_head_dim,
        "n": model.linear_value_head_dim,
    }


def draw_inputs(shape: Shape, draw: Draw) -> dict[str, Any]:
    """q, k of length 1 and v [batch, q, heads, size], decays g < 0 and beta in [0, 1) [batch, q, heads], the state."""
    import torch

    batch, q, heads, kv_heads, k, n = (shape[name] for name in ("batch", "q", "heads", "kv_heads", "k", "n"))
    keys = [torch.nn.functional.normalize(draw.normal(batch, q, kv_heads, k).float(), dim=-1) for _ in range(2)]
    return {
        "query": keys[0].to(torch_dtype(draw.dtype)),
        "key": keys[1].to(torch_dtype(draw.dtype)),
        "value": draw.normal(batch, q, heads, n),
        "g": torch.log(0.5 + 0.5 * draw.uniform(batch, q, heads)),
        "beta": draw.uniform(batch, q, heads),
        "state": draw.normal(batch, heads, k, n, dtype=draw.kv_dtype),
    }


def make_outputs(inputs: Tensors) -> Outputs:
    """Outputs of every token, and the state after the last."""
    import torch

    return {"out": torch.empty_like(inputs["value"]), "last_state": torch.empty_like(inputs["state"])}


def _wide(inputs: Tensors, dtype: torch.dtype) -> list[torch.Tensor]:
    """query, key, value, g, beta in ``dtype`` as [batch, heads, q, ...], key heads repeated for their value heads."""
    groups = inputs["value"].shape[2] // inputs["key"].shape[2]
    query, key = (inputs[name].to(dtype).repeat_interleave(groups, dim=2).transpose(1, 2) for name in ("query", "key"))
    return [query, key, *(inputs[name].to(dtype).transpose(1, 2) for name in ("value", "g", "beta"))]


def recurrent(inputs: Tensors, dtype: torch.dtype) -> Outputs:
    """Token by token, as the formula stands."""
    import torch

    query, key, value, g, beta = _wide(inputs, dtype)
    state = inputs["state"].to(dtype)
    out = torch.empty_like(value)
    for t in range(value.shape[2]):
        state = state * g[:, :, t, None, None].exp()
        error = value[:, :, t] - torch.einsum("bhk,bhkn->bhn", key[:, :, t], state)
        state = state + torch.einsum("bhk,bhn->bhkn", key[:, :, t], beta[:, :, t, None] * error)
        out[:, :, t] = torch.einsum("bhk,bhkn->bhn", query[:, :, t], state)
    return {"out": out.transpose(1, 2), "last_state": state}


def chunked(inputs: Tensors, dtype: torch.dtype) -> Outputs:
    """In chunks (arXiv 2412.06464, section 3.3): a triangular solve gives all corrections of a chunk at once."""
    import torch

    query, key, value, g, beta = _wide(inputs, dtype)
    state, tokens = inputs["state"].to(dtype), value.shape[2]
    out = torch.empty_like(value)
    for start in range(0, tokens, CHUNK):
        part = slice(start, min(start + CHUNK, tokens))
        q, k, v, b = query[:, :, part], key[:, :, part], value[:, :, part], beta[:, :, part, None]
        decay = g[:, :, part].cumsum(-1)
        # exp(decay_i - decay_j) for j <= i; others would overflow.
        between = (decay[..., :, None] - decay[..., None, :]).tril().exp().tril()
        system = (b * (k @ k.transpose(-1, -2)) * between).tril(-1) + torch.eye(
            k.shape[2], dtype=dtype, device=k.device
        )
        before = decay[..., None].exp()
        corrections = torch.linalg.solve_triangular(system, b * (v - before * (k @ state)), upper=False)
        out[:, :, part] = before * (q @ state) + (q @ k.transpose(-1, -2) * between) @ corrections
        rest = (decay[..., -1:] - decay).exp()[..., None]
        state = decay[..., -1, None, None].exp() * state + (rest * k).transpose(-1, -2) @ corrections
    return {"out": out.transpose(1, 2), "last_state": state}


def reference(inputs: Tensors) -> Outputs:
    """Token by token in float64."""
    import torch

    return recurrent(inputs, torch.float64)


def _prepare(inputs: Tensors, outputs: Tensors, *, in_chunks: bool) -> Launch:
    import torch

    def launch() -> None:
        found = (chunked if in_chunks else recurrent)(inputs, torch.float32)
        for name, value in found.items():
            outputs[name].copy_(value)

    return launch


def _supports(shape: Shape, dtype: str, state_dtype: str, device: str) -> str:
    return "key heads must divide value heads" if shape["heads"] % shape["kv_heads"] else ""


GDN_DECODE = Operator(
    name="gdn_decode",
    shape_fields=("batch", "q", "heads", "kv_heads", "k", "n"),
    work=partial(gated_delta_work, chunked=False),
    draw_inputs=draw_inputs,
    make_outputs=make_outputs,
    reference=reference,
    implementations={"torch": Implementation("torch", _supports, partial(_prepare, in_chunks=False))},
)
GDN_PREFILL = replace(
    GDN_DECODE,
    name="gdn_prefill",
    work=partial(gated_delta_work, chunked=True),
    implementations={"torch": Implementation("torch", _supports, partial(_prepare, in_chunks=True))},
)
