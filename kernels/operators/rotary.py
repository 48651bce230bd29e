"""Rotary position embedding (arXiv 2104.09864), neox style: element i of a head turns with element i + head_dim/2.

Inputs: ``q`` [m, heads, head_dim], ``k`` [m, kv_heads, head_dim], ``table`` [positions, head_dim] (cosines, then sines)
and ``positions`` int64 [m], row of the table of each token. Outputs: ``q_out`` and ``k_out``, as ``q`` and ``k``:
engines turn them in place, which is the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from draftcast.errors import HardwareError
from draftcast.kernels.model.dtypes import activation_bytes, torch_dtype
from draftcast.kernels.operators.cost import Work, as_array, moved_work
from draftcast.kernels.operators.registry import Operator, Shape, implementations

if TYPE_CHECKING:
    import torch

THETA = 500_000.0
"""Base of the frequencies: Llama 3's."""
POSITIONS = 8192


def rotary_work(
    m: ArrayLike, heads: ArrayLike, kv_heads: ArrayLike, head_dim: ArrayLike, act_bytes: float = 2.0
) -> Work:  # fmt: skip
    """Queries and keys of ``m`` tokens read and written; the table's row is shared by all heads of a token."""
    row = (as_array(heads) + as_array(kv_heads)) * as_array(head_dim)
    return moved_work(2.0 * as_array(m) * row, act_bytes)


def make_inputs(
    shape: Shape, dtype: str, kv_dtype: str, device: str, generator: torch.Generator
) -> dict[str, Any]:  # fmt: skip
    """Random heads at random positions.

    Raises:
        HardwareError: head_dim is odd.
    """
    import torch

    m, head_dim = shape["m"], shape["head_dim"]
    if head_dim % 2:
        raise HardwareError("must be even", key="rotary: head_dim", value=head_dim)
    frequencies = THETA ** (-torch.arange(0, head_dim, 2, device=device) / head_dim)
    angles = torch.arange(POSITIONS, device=device)[:, None] * frequencies
    inputs: dict[str, Any] = {
        name: torch.randn((m, shape[heads], head_dim), device=device, generator=generator).to(torch_dtype(dtype))
        for name, heads in (("q", "heads"), ("k", "kv_heads"))
    }
    inputs["table"] = torch.cat((angles.cos(), angles.sin()), 1).to(torch_dtype(dtype))
    inputs["positions"] = torch.randint(POSITIONS, (m,), device=device, generator=generator)
    return inputs


def make_outputs(inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {f"{name}_out": inputs[name].new_empty(inputs[name].shape) for name in ("q", "k")}


def reference(inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    import torch

    cos, sin = inputs["table"][inputs["positions"]].double()[:, None].chunk(2, dim=2)

    def turned(heads: torch.Tensor) -> torch.Tensor:
        first, second = heads.double().chunk(2, dim=2)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), 2)

    return {f"{name}_out": turned(inputs[name]) for name in ("q", "k")}


def _prepare_torch(inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Callable[[], None]:
    import torch

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


ROTARY = Operator(
    name="rotary",
    shape_fields=("m", "heads", "kv_heads", "head_dim"),
    dtypes=("fp32", "bf16"),
    work=lambda shape, dtype, kv_dtype: rotary_work(
        shape["m"], shape["heads"], shape["kv_heads"], shape["head_dim"], activation_bytes(dtype)
    ),
    make_inputs=make_inputs,
    make_outputs=make_outputs,
    reference=reference,
    implementations=implementations(_prepare_torch, "draftcast.kernels.operators.triton.rotary:prepare"),
)
