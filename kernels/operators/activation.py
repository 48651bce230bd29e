"""SwiGLU (arXiv 2002.05202): ``y = silu(gate) * up``.

Inputs: ``x`` [m, 2n], the gate's n columns first, as the fused matrix gives them. Output: ``y`` [m, n].
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


def swiglu_work(m: ArrayLike, n: ArrayLike, act_bytes: float = 2.0) -> Work:
    """Rows of ``2n`` read, of ``n`` written."""
    return moved_work(3.0 * as_array(m) * as_array(n), act_bytes)


def make_inputs(
    shape: Shape, dtype: str, kv_dtype: str, device: str, generator: torch.Generator
) -> dict[str, Any]:  # fmt: skip
    import torch

    x = torch.randn((shape["m"], 2 * shape["n"]), device=device, generator=generator)
    return {"x": x.to(torch_dtype(dtype))}


def make_outputs(inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    x = inputs["x"]
    return {"y": x.new_empty((len(x), x.shape[1] // 2))}


def reference(inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    gate, up = inputs["x"].double().chunk(2, dim=1)
    return {"y": gate * gate.sigmoid() * up}


def _prepare_torch(inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Callable[[], None]:
    import torch

    y = outputs["y"]
    gate, up = inputs["x"].chunk(2, dim=1)

    def launch() -> None:
        torch.ops.aten.silu.out(gate, out=y)
        y.mul_(up)

    return launch


SWIGLU = Operator(
    name="swiglu",
    shape_fields=("m", "n"),
    dtypes=("fp32", "bf16"),
    work=lambda shape, dtype, kv_dtype: swiglu_work(shape["m"], shape["n"], activation_bytes(dtype)),
    make_inputs=make_inputs,
    make_outputs=make_outputs,
    reference=reference,
    implementations=implementations(_prepare_torch, "draftcast.kernels.operators.triton.activation:prepare"),
)
