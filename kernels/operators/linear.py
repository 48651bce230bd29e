"""Linear layers, lm_head among them: ``y = x @ w^T``.

Inputs: ``x`` [m, k] and ``w`` [n, k] (a checkpoint's layout) in the number format; fp8 (e4m3) has one scale per tensor,
``x_scale`` and ``w_scale`` (float32 tensors without dimensions; None otherwise). Output: ``y`` [m, n], bf16 for fp8.
"""

import math
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from draftcast.kernels.extras import torch
from draftcast.kernels.model.dtypes import WEIGHT_BYTES, activation_bytes
from draftcast.kernels.operators.cost import Work, as_array
from draftcast.kernels.operators.registry import (
    FP8_SCALE,
    Draw,
    Launch,
    Operator,
    Outputs,
    Shape,
    Tensors,
    float_output,
    fp8_runs,
    implementations,
)


def linear_work(
    m: ArrayLike, k: ArrayLike, n: ArrayLike, weight_bytes_per_element: float, act_bytes: float = 2.0
) -> Work:  # fmt: skip
    """``(m, k) @ (k, n)``: ``2mkn`` FLOPs; weights once, activations in and out once.

    Zero rows cost nothing: the kernel is not launched.
    """
    rows, k, n = as_array(m), as_array(k), as_array(n)
    moved = np.where(rows > 0, k * n * weight_bytes_per_element, 0.0) + rows * (k + n) * act_bytes
    return Work(2.0 * rows * k * n, moved)


def _draw_inputs(shape: Shape, draw: Draw) -> dict[str, Any]:
    """Activations of variance 1, weights of variance 1/k: outputs of variance 1."""
    m, k, n = shape["m"], shape["k"], shape["n"]
    x, w = draw.normal(m, k), draw.normal(n, k, scale=1 / math.sqrt(k))
    scales: dict[str, Any] = {"x_scale": None, "w_scale": None}
    if draw.dtype == "fp8":
        scales["x_scale"] = torch.tensor(FP8_SCALE, device=draw.device)
        scales["w_scale"] = scales["x_scale"] / math.sqrt(k)
    return {"x": x, "w": w, **scales}


def _reference(inputs: Tensors) -> Outputs:
    y = inputs["x"].double() @ inputs["w"].double().T
    if inputs["x_scale"] is not None:
        y = y * inputs["x_scale"].double() * inputs["w_scale"].double()
    return {"y": y}


def _supports(shape: Shape, dtype: str, kv_dtype: str, device: str) -> str:
    reason = fp8_runs(dtype, device)
    if not reason and dtype == "fp8" and device == "cuda" and (shape["k"] % 16 or shape["n"] % 16):
        return "fp8 on a GPU needs k and n to be multiples of 16"
    return reason


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
        shape["m"], shape["k"], shape["n"], WEIGHT_BYTES[dtype], activation_bytes(dtype)
    ),
    draw_inputs=_draw_inputs,
    make_outputs=lambda inputs: {"y": float_output(inputs, len(inputs["x"]), len(inputs["w"]))},
    reference=_reference,
    implementations=implementations(
        _prepare_torch, "linear:prepare", torch_supports=_supports, triton_supports=_supports
    ),
)
