"""Memory-bound kernels of a pass: RMSNorm, rotary position embedding, SwiGLU, look-up of token embeddings.

``rmsnorm`` has the residual's addition fused: ``residual_out = x + residual``, ``y = rms_norm(residual_out) * weight``.
Inputs: ``x`` and ``residual`` [m, n], ``weight`` [n], ``eps``. Outputs: ``y`` and ``residual_out`` [m, n]. Engines
write the residual in place; here it has its own tensor, of the same bytes, so that every launch gives the same answer.

``rotary`` (arXiv 2104.09864), neox style: element i of a head turns with element i + head_dim/2. Inputs: ``q`` [m,
heads, head_dim], ``k`` [m, kv_heads, head_dim], ``table`` [positions, head_dim] (cosines, then sines) and ``positions``
int64 [m], row of the table of each token. Outputs: ``q_out`` and ``k_out``, as ``q`` and ``k``: engines turn them in
place, which is the same bytes.

``swiglu`` (arXiv 2002.05202): ``y = silu(gate) * up``. Input: ``x`` [m, 2n], the gate's n columns first, as the fused
matrix gives them. Output: ``y`` [m, n].

``embedding``: ``y[i] = table[tokens[i]]``. Inputs: ``table`` [k, n] (k the vocabulary, n the hidden size) and
``tokens`` int64 [m]. Output: ``y`` [m, n].
"""

from functools import partial
from typing import Any

from draftcast.errors import HardwareError
from draftcast.kernels.extras import torch
from draftcast.kernels.model.dtypes import activation_bytes, torch_dtype
from draftcast.kernels.operators.cost import moved_work
from draftcast.kernels.operators.registry import Draw, Launch, Operator, Outputs, Shape, Tensors, implementations

EPS = 1e-6
THETA = 500_000.0  # Base of the rotary frequencies: Llama 3's.
POSITIONS = 8192


def _norm_inputs(shape: Shape, draw: Draw) -> dict[str, Any]:
    m, n = shape["m"], shape["n"]
    return {"x": draw.normal(m, n), "residual": draw.normal(m, n), "weight": 1 + draw.normal(n) / 8, "eps": EPS}


def _norm_reference(inputs: Tensors) -> Outputs:
    total = inputs["x"].double() + inputs["residual"].double()
    scale = (total.square().mean(1, keepdim=True) + inputs["eps"]).rsqrt()
    return {"y": total * scale * inputs["weight"].double(), "residual_out": total}


def _norm_torch(inputs: Tensors, outputs: Tensors) -> Launch:
    x, residual, weight, eps = (inputs[name] for name in ("x", "residual", "weight", "eps"))
    y, total = outputs["y"], outputs["residual_out"]
    size, rms_norm = (x.shape[1],), torch.nn.functional.rms_norm

    def launch() -> None:
        torch.add(x, residual, out=total)
        torch.mul(rms_norm(total, size, None, eps), weight, out=y)

    return launch


# Two rows of n read and two written for each of m; the weight stays in the cache.
RMSNORM = Operator(
    name="rmsnorm",
    work=lambda shape, dtype, _: moved_work(4.0 * shape["m"] * shape["n"], activation_bytes(dtype)),
    draw_inputs=_norm_inputs,
    make_outputs=lambda inputs: {name: inputs["x"].new_empty(inputs["x"].shape) for name in ("y", "residual_out")},
    reference=_norm_reference,
    implementations=implementations(_norm_torch, "elementwise:prepare_rmsnorm"),
)


def _rotary_inputs(shape: Shape, draw: Draw) -> dict[str, Any]:
    """Random heads at random positions. Raises HardwareError when head_dim is odd."""
    m, head_dim = shape["m"], shape["head_dim"]
    if head_dim % 2:
        raise HardwareError("must be even", key="rotary: head_dim", value=head_dim)
    frequencies = THETA ** (-torch.arange(0, head_dim, 2, device=draw.device) / head_dim)
    angles = torch.arange(POSITIONS, device=draw.device)[:, None] * frequencies
    return {
        "q": draw.normal(m, shape["heads"], head_dim),
        "k": draw.normal(m, shape["kv_heads"], head_dim),
        "table": torch.cat((angles.cos(), angles.sin()), 1).to(torch_dtype(draw.dtype)),
        "positions": draw.integers(0, POSITIONS, m),
    }


def _rotary_reference(inputs: Tensors) -> Outputs:
    cos, sin = inputs["table"][inputs["positions"]].double()[:, None].chunk(2, dim=2)
    outputs = {}
    for name in ("q", "k"):
        first, second = inputs[name].double().chunk(2, dim=2)
        outputs[f"{name}_out"] = torch.cat((first * cos - second * sin, second * cos + first * sin), 2)
    return outputs


def _rotary_torch(inputs: Tensors, outputs: Tensors) -> Launch:
    table, positions = inputs["table"], inputs["positions"]
    turn = table.new_empty((len(positions), table.shape[1]))
    cos, sin = turn[:, None].chunk(2, dim=2)
    halves = [(*inputs[name].chunk(2, dim=2), *outputs[f"{name}_out"].chunk(2, dim=2)) for name in ("q", "k")]

    def launch() -> None:
        torch.index_select(table, 0, positions, out=turn)
        for first, second, first_out, second_out in halves:
            torch.mul(first, cos, out=first_out).addcmul_(second, sin, value=-1)
            torch.mul(second, cos, out=second_out).addcmul_(first, sin)

    return launch


# Heads of queries and keys read and written for each of m tokens; the table's row is shared by all heads of a token.
ROTARY = Operator(
    name="rotary",
    work=lambda shape, dtype, _: moved_work(
        2.0 * shape["m"] * ((shape["heads"] + shape["kv_heads"]) * shape["head_dim"]), activation_bytes(dtype)
    ),
    draw_inputs=_rotary_inputs,
    make_outputs=lambda inputs: {f"{name}_out": inputs[name].new_empty(inputs[name].shape) for name in ("q", "k")},
    reference=_rotary_reference,
    implementations=implementations(_rotary_torch, "elementwise:prepare_rotary"),
)


def _swiglu_reference(inputs: Tensors) -> Outputs:
    gate, up = inputs["x"].double().chunk(2, dim=1)
    return {"y": gate * gate.sigmoid() * up}


def _swiglu_torch(inputs: Tensors, outputs: Tensors) -> Launch:
    y = outputs["y"]
    gate, up = inputs["x"].chunk(2, dim=1)

    def launch() -> None:
        torch.ops.aten.silu.out(gate, out=y)
        y.mul_(up)

    return launch


# Rows of 2n read, of n written.
SWIGLU = Operator(
    name="swiglu",
    work=lambda shape, dtype, _: moved_work(3.0 * shape["m"] * shape["n"], activation_bytes(dtype)),
    draw_inputs=lambda shape, draw: {"x": draw.normal(shape["m"], 2 * shape["n"])},
    make_outputs=lambda inputs: {"y": inputs["x"].new_empty((len(inputs["x"]), inputs["x"].shape[1] // 2))},
    reference=_swiglu_reference,
    implementations=implementations(_swiglu_torch, "elementwise:prepare_swiglu"),
)


# A row of n read and written for each of m tokens.
EMBEDDING = Operator(
    name="embedding",
    work=lambda shape, dtype, _: moved_work(2.0 * shape["m"] * shape["n"], activation_bytes(dtype)),
    draw_inputs=lambda shape, draw: {
        "table": draw.normal(shape["k"], shape["n"]),
        "tokens": draw.integers(0, shape["k"], shape["m"]),
    },
    make_outputs=lambda inputs: {"y": inputs["table"].new_empty((len(inputs["tokens"]), inputs["table"].shape[1]))},
    reference=lambda inputs: {"y": inputs["table"].double()[inputs["tokens"]]},
    implementations=implementations(
        lambda inputs, outputs: partial(torch.index_select, inputs["table"], 0, inputs["tokens"], out=outputs["y"]),
        "elementwise:prepare_embedding",
    ),
)
