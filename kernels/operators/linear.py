"""Matrix products: linear layers, lm_head among them, and routed experts.

``linear``: ``y = x @ w^T``. Inputs: ``x`` [m, k] and ``w`` [n, k] (a checkpoint's layout) in the number format; fp8
(e4m3) has one scale per tensor, ``x_scale`` and ``w_scale`` (float32 tensors without dimensions; None otherwise).
Output: ``y`` [m, n], bf16 for fp8.

``moe`` takes m tokens and their routing (the router itself is a linear layer) through gate and up (k to 2n), SwiGLU,
down (n to k) and the sum weighted by the router's shares. Bytes: the weights of an expert are read once if any token
visits it, and not at all if none does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from draftcast.kernels.arrays import FloatArray
from draftcast.kernels.extras import torch
from draftcast.kernels.model.dtypes import E4M3_MAX, FP8_SCALE, WEIGHT_BYTES, activation_bytes, fp8_runs, weight_dtype
from draftcast.kernels.operators.cost import Work, as_array, sizes_of
from draftcast.kernels.operators.registry import Draw, Launch, Operator, Outputs, Shape, Tensors, implementations

HIDDEN_SCALE = 1 / 16  # SwiGLU of standard normal numbers reaches some twenty in millions; e4m3 then holds 28.


def linear_work(
    m: ArrayLike, k: ArrayLike, n: ArrayLike, weight_bytes_per_element: float, act_bytes: float = 2.0
) -> Work:  # fmt: skip
    """``(m, k) @ (k, n)``: ``2mkn`` FLOPs; weights once, activations in and out once.

    Zero rows cost nothing: the kernel is not launched.
    """
    rows, k, n = as_array(m), as_array(k), as_array(n)
    moved = np.where(rows > 0, k * n * weight_bytes_per_element, 0.0) + rows * (k + n) * act_bytes
    return Work(2.0 * rows * k * n, moved)


def _float_output(inputs: Tensors, *size: int) -> Any:
    """An output of an operator on ``x``, in its format; bf16 for fp8."""
    x = inputs["x"]
    return x.new_empty(size, dtype=torch.bfloat16 if x.element_size() == 1 else x.dtype)


def _draw_inputs(shape: Shape, draw: Draw) -> dict[str, Any]:
    """Activations of variance 1, weights of variance 1/k: outputs of variance 1."""
    m, k, n = shape["m"], shape["k"], shape["n"]
    x, w = draw.normal(m, k), draw.normal(n, k, scale=1 / math.sqrt(k))
    x_scale = torch.tensor(FP8_SCALE, device=draw.device) if draw.dtype == "fp8" else None
    w_scale = None if x_scale is None else x_scale / math.sqrt(k)
    return {"x": x, "w": w, "x_scale": x_scale, "w_scale": w_scale}


def _reference(inputs: Tensors) -> Outputs:
    y = inputs["x"].double() @ inputs["w"].double().T
    if inputs["x_scale"] is not None:
        y = y * inputs["x_scale"].double() * inputs["w_scale"].double()
    return {"y": y}


def _supports(shape: Shape, dtype: str, kv_dtype: str, device: str) -> str:
    is_odd = dtype == "fp8" and device == "cuda" and (shape["k"] % 16 or shape["n"] % 16)
    return fp8_runs(dtype, device) or ("fp8 on a GPU needs k and n to be multiples of 16" if is_odd else "")


def _prepare_torch(inputs: Tensors, outputs: Tensors) -> Launch:
    """cuBLAS or oneDNN; a GPU multiplies fp32 in full precision (no TF32 unless torch is told so)."""
    x, w, y = inputs["x"], inputs["w"].T, outputs["y"]
    if inputs["x_scale"] is None:
        return partial(torch.mm, x, w, out=y)
    scales = {"scale_a": inputs["x_scale"], "scale_b": inputs["w_scale"]}
    return partial(torch._scaled_mm, x, w, **scales, out_dtype=y.dtype, out=y)


LINEAR = Operator(
    name="linear",
    dtypes=("fp32", "bf16", "fp8"),
    work=lambda shape, dtype, _: linear_work(
        shape["m"], shape["k"], shape["n"], WEIGHT_BYTES[weight_dtype(dtype)], activation_bytes(dtype)
    ),
    draw_inputs=_draw_inputs,
    make_outputs=lambda inputs: {"y": _float_output(inputs, len(inputs["x"]), len(inputs["w"]))},
    reference=_reference,
    implementations=implementations(_prepare_torch, "linear:prepare", _supports, _supports),
)


EXPERT_TILE_ROWS, EXPERT_TILE_ROWS_FP8 = 16, 64
"""Rows of a tile for no more rows than experts (``get_default_config`` in vLLM's and SGLang's ``fused_moe.py``)."""


def touched_experts(tokens: ArrayLike, num_experts: ArrayLike, top_k: ArrayLike) -> FloatArray:
    """Expected number of distinct experts visited: ``E * (1 - (1 - top_k/E)^T)``, routing uniform and independent."""
    experts = as_array(num_experts)
    missed_by_one = np.log1p(-np.minimum(as_array(top_k) / experts, 1.0 - 1e-15))
    return np.asarray(-experts * np.expm1(as_array(tokens) * missed_by_one), dtype=np.float64)


def fullest_rank_share(tokens: ArrayLike, num_experts: int, top_k: int, ranks: int) -> FloatArray:
    """Of the experts that ``tokens`` visit, those on the rank that has most, where ranks hold equal parts of them.

    A mean and the expected largest of ``ranks`` hypergeometric counts, as of normal ones (Blom 1958), routing uniform:
    of 8 experts of one token over 4 ranks 3.5 lie on one, not 2.
    """
    touched = np.maximum(touched_experts(tokens, num_experts, top_k), 1.0)
    largest = NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) * math.sqrt(ranks / (ranks - 1.0))
    untouched = (num_experts - touched) / (num_experts - 1.0)
    spread = np.sqrt((ranks - 1.0) / ranks**2 * untouched / touched)
    # One expert alone lies on one rank whole, which no normal count knows.
    return np.asarray(np.maximum(1.0 / ranks + largest * spread, 1.0 / touched))


def moe_padding(m: ArrayLike, num_experts: ArrayLike, top_k: ArrayLike, dtype: str) -> FloatArray:
    """Rows that the kernels of routed experts multiply, as a multiple of those given: each expert has whole tiles."""
    rows, tile = as_array(m) * as_array(top_k), EXPERT_TILE_ROWS_FP8 if dtype == "fp8" else EXPERT_TILE_ROWS
    return np.asarray(np.maximum(touched_experts(m, num_experts, top_k) * tile / rows, 1.0))


def moe_work(
    m: ArrayLike,
    k: ArrayLike,
    n: ArrayLike,
    num_experts: ArrayLike,
    top_k: ArrayLike,
    weight_bytes_per_element: float,
    act_bytes: float = 2.0,
) -> Work:
    """Grouped matrix multiplication of routed experts of shape ``k x n``.

    Each of ``m`` rows visits ``top_k`` experts: ``2 m top_k k n`` FLOPs. The weights of every touched expert are read
    once, so the bytes grow with m until all experts are touched.
    """
    rows, inner, outer = as_array(m) * as_array(top_k), as_array(k), as_array(n)
    weights = touched_experts(m, num_experts, top_k) * inner * outer * weight_bytes_per_element
    return Work(2.0 * rows * inner * outer, weights + rows * (inner + outer) * act_bytes)


def _moe_shape_work(shape: Mapping[str, Any], dtype: str, kv_dtype: str) -> Work:
    """Gate and up, then down."""
    m, k, n, experts, top_k = sizes_of(shape, "m k n num_experts top_k")
    weight, act = WEIGHT_BYTES[weight_dtype(dtype)], activation_bytes(dtype)
    return moe_work(m, k, 2 * n, experts, top_k, weight, act).add(moe_work(m, n, k, experts, top_k, weight, act))


def _moe_inputs(shape: Shape, draw: Draw) -> dict[str, Any]:
    """Random tokens, weights and a random routing (top_k distinct experts a token, uniform).

    x [m, k]; gate_up [num_experts, 2n, k], gate first; down [num_experts, k, n]; experts int32 and shares fp32
    [m, top_k], the latter summing to 1. fp8: numbers are e4m3, x times ``x_scale``, the SwiGLU output times
    ``h_scale``, an expert's weights times ``gate_up_scale`` and ``down_scale`` [num_experts]; otherwise all are 1.
    """
    m, k, n, experts, top_k = (shape[name] for name in ("m", "k", "n", "num_experts", "top_k"))
    quantised = draw.dtype == "fp8"

    def scales(fan_in: int) -> torch.Tensor:
        if not quantised:
            return torch.ones(experts, device=draw.device)
        return (0.5 + draw.uniform(experts)) * (FP8_SCALE / math.sqrt(fan_in))

    top = draw.uniform(m, experts).topk(top_k, dim=1)
    return {
        "x": draw.normal(m, k),
        "gate_up": draw.normal(experts, 2 * n, k, scale=1 / math.sqrt(k)),
        "down": draw.normal(experts, k, n, scale=1 / math.sqrt(n)),
        "experts": top.indices.to(torch.int32),
        "shares": top.values.softmax(dim=1),
        "x_scale": FP8_SCALE if quantised else 1.0,
        "h_scale": HIDDEN_SCALE if quantised else 1.0,
        "gate_up_scale": scales(k),
        "down_scale": scales(n),
    }


def _moe_reference(inputs: Tensors) -> Outputs:
    """Token by token, expert by expert, in float64; the SwiGLU output is rounded to fp8 where the operator is fp8."""
    x = inputs["x"].double() * inputs["x_scale"]
    n = inputs["down"].shape[2]
    out = torch.zeros_like(x)
    for token, (experts, shares) in enumerate(zip(inputs["experts"].tolist(), inputs["shares"].double(), strict=True)):
        for expert, share in zip(experts, shares, strict=True):
            both = inputs["gate_up"][expert].double() @ x[token] * inputs["gate_up_scale"][expert].double()
            hidden = torch.nn.functional.silu(both[:n]) * both[n:]
            if inputs["x"].dtype == torch.float8_e4m3fn:
                stored = (hidden / inputs["h_scale"]).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
                hidden = stored.double() * inputs["h_scale"]
            out[token] += share * (inputs["down"][expert].double() @ hidden) * inputs["down_scale"][expert].double()
    return {"out": out}


def _moe_torch(inputs: Tensors, outputs: Tensors) -> Launch:
    """Launch in plain torch: sort by expert, two grouped matrix multiplications, weighted sum."""
    grouped_mm, silu = torch.nn.functional.grouped_mm, torch.nn.functional.silu
    x, chosen, shares, out = inputs["x"], inputs["experts"], inputs["shares"], outputs["out"]
    gate_up, down = inputs["gate_up"].transpose(1, 2), inputs["down"].transpose(1, 2)
    (m, top_k), (experts, n, k) = chosen.shape, down.shape
    one = torch.ones(m * top_k, dtype=torch.int32, device=x.device)
    parts = torch.empty((m * top_k, k), dtype=x.dtype, device=x.device)

    def launch() -> None:
        flat = chosen.flatten().long()
        order = flat.argsort(stable=True)
        ends = one.new_zeros(experts).scatter_add_(0, flat, one).cumsum(0, dtype=torch.int32)
        both = grouped_mm(x[order // top_k], gate_up, offs=ends)
        part = grouped_mm(silu(both[:, :n]) * both[:, n:], down, offs=ends)
        parts[order] = part * shares.flatten()[order, None].to(part.dtype)
        torch.sum(parts.view(m, top_k, k), dim=1, out=out)

    return launch


def _moe_torch_supports(shape: Shape, dtype: str, kv_dtype: str, device: str) -> str:
    if dtype == "fp8":
        return "torch has no grouped fp8 matrix multiplication with a scale per expert"
    if not hasattr(torch.nn.functional, "grouped_mm"):
        return "needs torch 2.10 or later"
    if device == "cuda" and (dtype != "bf16" or torch.cuda.get_device_capability() < (9, 0)):
        return "torch's grouped matrix multiplication on a GPU is for bf16 from compute capability 9.0"
    if shape["k"] * activation_bytes(dtype) % 16 or shape["n"] * activation_bytes(dtype) % 16:
        return "torch's grouped matrix multiplication wants rows of a multiple of 16 bytes"
    return _bad_shape(shape)


def _bad_shape(shape: Shape) -> str:
    return "top_k is at most num_experts" if shape["top_k"] > shape["num_experts"] else ""


MOE = Operator(
    name="moe",
    dtypes=("fp32", "bf16", "fp8"),
    work=_moe_shape_work,
    draw_inputs=_moe_inputs,
    make_outputs=lambda inputs: {"out": _float_output(inputs, *inputs["x"].shape)},
    reference=_moe_reference,
    implementations=implementations(
        _moe_torch,
        "moe:prepare",
        torch_supports=_moe_torch_supports,
        triton_supports=lambda shape, dtype, _, device: _bad_shape(shape) or fp8_runs(dtype, device),
    ),
)
