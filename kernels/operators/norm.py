"""RMSNorm with the residual's addition fused: ``residual_out = x + residual``, ``y = rms_norm(residual_out) * weight``.

Inputs: ``x`` and ``residual`` [m, n], ``weight`` [n], ``eps``. Outputs: ``y`` and ``residual_out`` [m, n]. Engines
write the residual in place; here it has its own tensor, of the same bytes, so that every launch gives the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from draftcast.kernels.model.dtypes import activation_bytes, torch_dtype
from draftcast.kernels.operators.cost import Work, as_array, moved_work
from draftcast.kernels.operators.registry import Operator, Shape, implementations

if TYPE_CHECKING:
    import torch

EPS = 1e-6


def rmsnorm_work(m: ArrayLike, n: ArrayLike, act_bytes: float = 2.0) -> Work:
    """Two rows of ``n`` read and two written for each of ``m``; the weight stays in the cache."""
    return moved_work(4.0 * as_array(m) * as_array(n), act_bytes)


def make_inputs(
    shape: Shape, dtype: str, kv_dtype: str, device: str, generator: torch.Generator
) -> dict[str, Any]:  # fmt: skip
    import torch

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, device=device, generator=generator).to(torch_dtype(dtype))

    m, n = shape["m"], shape["n"]
    return {"x": normal(m, n), "residual": normal(m, n), "weight": 1 + normal(n) / 8, "eps": EPS}


def make_outputs(inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name: inputs["x"].new_empty(inputs["x"].shape) for name in ("y", "residual_out")}


def reference(inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    total = inputs["x"].double() + inputs["residual"].double()
    scale = (total.square().mean(1, keepdim=True) + inputs["eps"]).rsqrt()
    return {"y": total * scale * inputs["weight"].double(), "residual_out": total}


def _prepare_torch(inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Callable[[], None]:
    import torch
    from torch.nn.functional import rms_norm

    x, residual, weight, eps = (inputs[name] for name in ("x", "residual", "weight", "eps"))
    y, total = outputs["y"], outputs["residual_out"]
    size = (x.shape[1],)

    def launch() -> None:
        torch.add(x, residual, out=total)
        torch.mul(rms_norm(total, size, None, eps), weight, out=y)

    return launch


RMSNORM = Operator(
    name="rmsnorm",
    shape_fields=("m", "n"),
    dtypes=("fp32", "bf16"),
    work=lambda shape, dtype, kv_dtype: rmsnorm_work(shape["m"], shape["n"], activation_bytes(dtype)),
    make_inputs=make_inputs,
    make_outputs=make_outputs,
    reference=reference,
    implementations=implementations(_prepare_torch, "draftcast.kernels.operators.triton.norm:prepare"),
)
