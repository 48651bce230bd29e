"""The operators that can be run and timed, by name.

A new operator is an `Operator` in its family's file and one line in `_OPERATORS`. Nothing here loads torch: family
files import it inside functions, implementations are imported when they are prepared.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from draftcast.errors import HardwareError
from draftcast.kernels.extras import missing
from draftcast.kernels.operators.cost import Work

if TYPE_CHECKING:
    import torch

Shape = Mapping[str, int]
"""Exactly the operator's shape fields."""
Launch = Callable[[], None]
Prepare = Callable[[Mapping[str, Any], Mapping[str, Any]], Launch]
Supports = Callable[[Shape, str, str, str], str]

# Where each operator stands: module and name.
_OPERATORS = {
    "linear": "draftcast.kernels.operators.linear:LINEAR",
    "moe": "draftcast.kernels.operators.moe:MOE",
    "attention_decode": "draftcast.kernels.operators.attention:ATTENTION_DECODE",
    "attention_prefill": "draftcast.kernels.operators.attention:ATTENTION_PREFILL",
    "rmsnorm": "draftcast.kernels.operators.norm:RMSNORM",
    "rotary": "draftcast.kernels.operators.rotary:ROTARY",
    "swiglu": "draftcast.kernels.operators.activation:SWIGLU",
    "embedding": "draftcast.kernels.operators.embedding:EMBEDDING",
    "sampler": "draftcast.kernels.operators.sampler:SAMPLER",
    "rejection_sampler": "draftcast.kernels.operators.rejection:REJECTION_SAMPLER",
    "all_reduce": "draftcast.kernels.operators.all_reduce:ALL_REDUCE",
    "ngram": "draftcast.kernels.search.ngram_batch:NGRAM",
}


@dataclass(frozen=True)
class Implementation:
    """One way to run an operator.

    Attributes:
        name: "torch" or "triton".
        supports: (shape, dtype, kv_dtype, device) to "" or the reason why it cannot run; device is "cpu" or "cuda".
        prepare: (inputs, outputs) to a closure that runs the operator once and writes every output. Work space is
            allocated here, so that the closure can be captured in a CUDA graph where the operator allows it.
    """

    name: str
    supports: Supports
    prepare: Prepare


def _nothing_runs() -> None:
    """``close`` of what leaves nothing behind."""


@dataclass(frozen=True)
class Operator:
    """What an operator costs, runs on and should answer.

    Attributes:
        name: as in a latency table.
        shape_fields: names of its sizes, a subset of the latency table's shape columns.
        dtypes: of "fp32", "bf16", "fp8"; "int32" for what works on token ids.
        work: (shape, dtype, kv_dtype) to FLOPs and bytes; sizes may be arrays. kv_dtype is "" where it has no meaning.
        make_inputs: (shape, dtype, kv_dtype, device, generator) to named tensors and numbers.
        make_outputs: tensors of the right shape with any content, from the inputs.
        reference: the outputs in float64, or the exact integers.
        implementations: by name.
        close: ends what launches leave running between them, an all-reduce's processes; they must be prepared anew.
    """

    name: str
    shape_fields: tuple[str, ...]
    dtypes: tuple[str, ...]
    work: Callable[[Mapping[str, Any], str, str], Work]
    make_inputs: Callable[[Shape, str, str, str, torch.Generator], dict[str, Any]]
    make_outputs: Callable[[Mapping[str, Any]], dict[str, torch.Tensor]]
    reference: Callable[[Mapping[str, Any]], dict[str, torch.Tensor]]
    implementations: Mapping[str, Implementation]
    close: Callable[[], None] = _nothing_runs


def operator_names() -> tuple[str, ...]:
    return tuple(_OPERATORS)


def operator(name: str) -> Operator:
    """The operator of this name.

    Raises:
        HardwareError: there is none; lists those there are.
    """
    if name not in _OPERATORS:
        raise HardwareError(f"unknown operator; known: {', '.join(_OPERATORS)}", key="operator", value=name)
    return cast(Operator, _load(_OPERATORS[name]))


def implementations(torch: Prepare, triton: str, check: Supports | None = None) -> dict[str, Implementation]:
    """The usual pair: torch on every device, Triton where it runs.

    Args:
        torch: the torch implementation's ``prepare``.
        triton: "module:function" of the Triton implementation's, imported when it is prepared.
        check: what both have against a shape or number format on a device, or "".
    """

    def prepare(inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Launch:
        return cast(Prepare, _load(triton))(inputs, outputs)

    def supports(shape: Shape, dtype: str, kv_dtype: str, device: str) -> str:
        return triton_runs(device) or (check(shape, dtype, kv_dtype, device) if check else "")

    return {
        "torch": Implementation("torch", check or everything, torch),
        "triton": Implementation("triton", supports, prepare),
    }


def everything(shape: Shape, dtype: str, kv_dtype: str, device: str) -> str:
    """``supports`` of what runs on every device in every shape."""
    return ""


def triton_runs(device: str) -> str:
    """Why Triton kernels cannot run on ``device``, or "".

    With ``TRITON_INTERPRET=1`` they run anywhere, in Triton's interpreter: right results, meaningless times.
    """
    if text := missing("calibrate", "triton"):
        return text
    if device != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return "Triton needs a CUDA device"
    return ""


def _load(path: str) -> Any:
    module, name = path.split(":")
    return getattr(importlib.import_module(module), name)
