"""The operators that can be run and timed, by name.

A new operator is an `Operator` in its family's file and one line in ``operators.json``. Nothing here loads torch:
families take it from `kernels/extras`, implementations are imported when they are prepared.
"""

from __future__ import annotations

import json
import os
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from draftcast.errors import HardwareError
from draftcast.kernels.extras import missing, torch
from draftcast.kernels.model.dtypes import E4M3_MAX, FP8_SCALE, torch_dtype
from draftcast.kernels.operators.cost import Work

Shape = Mapping[str, int]  # Exactly the operator's shape fields.
Tensors = Mapping[str, Any]  # Named tensors, and numbers beside them.
Outputs = dict[str, Any]  # Named tensors.
Launch = Callable[[], object]
Prepare = Callable[[Tensors, Tensors], Launch]
Supports = Callable[[Shape, str, str, str], str]
Formula = Callable[[Tensors, Any], Outputs]  # Outputs of an operator, computed in a torch format.

FACTS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("operators.json").read_text("utf-8"))
"""By operator: ``place``, its module of draftcast.kernels and name (none: only imported times), ``shape``, its columns
in a latency table, ``family`` of its roofline (none: no step is built from it), ``curve``, its interpolation, and what
cannot make it faster when it ``grows_with`` everything else equal; prefix is context less q."""


@dataclass(frozen=True)
class Implementation:
    """One way to run an operator."""

    # (shape, dtype, kv_dtype, device) to "" or the reason why it cannot run; device is "cpu" or "cuda"
    supports: Supports
    # (inputs, outputs) to a closure that runs the operator once and writes every output. Work space is allocated here,
    # so that the closure can be captured in a CUDA graph where the operator allows it.
    prepare: Prepare


@dataclass(frozen=True)
class Draw:
    """Random tensors for an operator's inputs, in its number formats on its device."""

    dtype: str
    kv_dtype: str
    device: str
    generator: torch.Generator

    def normal(self, *size: int, dtype: str = "", scale: float = 1.0) -> torch.Tensor:
        """Normal numbers of standard deviation ``scale``, or, in fp8, of ``1 / FP8_SCALE``."""
        kind = dtype or self.dtype
        values: torch.Tensor = torch.randn(size, device=self.device, generator=self.generator)
        # A number beyond e4m3's range would become NaN.
        values = values.div_(FP8_SCALE).clamp_(-E4M3_MAX, E4M3_MAX) if kind == "fp8" else values.mul_(scale)
        return values.to(torch_dtype(kind))

    def uniform(self, *size: int) -> torch.Tensor:
        """float32 numbers in [0, 1)."""
        return torch.rand(size, device=self.device, generator=self.generator)

    def integers(self, low: int, high: int, *size: int) -> torch.Tensor:
        """int64 numbers from ``low`` to ``high - 1``."""
        return torch.randint(low, high, size, device=self.device, generator=self.generator)

    def equal(self, count: int, length: int) -> torch.Tensor:
        """int32 [count]: ``length`` each."""
        return torch.full((count,), length, dtype=torch.int32, device=self.device)


@dataclass(frozen=True)
class Operator:
    """What an operator costs, runs on and should answer."""

    name: str  # as in a latency table
    # (shape, dtype, kv_dtype) to FLOPs and bytes; sizes may be arrays. kv_dtype is "" where it has no meaning.
    work: Callable[[Mapping[str, Any], str, str], Work]
    draw_inputs: Callable[[Shape, Draw], dict[str, Any]]  # named tensors and numbers
    # Tensors of the right shape with any content, from the inputs
    make_outputs: Callable[[Tensors], Outputs]
    reference: Callable[[Tensors], Outputs]  # the outputs in float64, or the exact integers
    implementations: Mapping[str, Implementation]  # by name: torch, triton or an engine's kernel
    dtypes: tuple[str, ...] = ("fp32", "bf16")  # of "fp32", "bf16", "fp8"; "int32" for what works on token ids
    # Ends what launches leave running between them, an all-reduce's processes; they must be prepared anew
    close: Callable[[], None] = lambda: None

    def make_inputs(self, shape: Shape, dtype: str, kv_dtype: str, device: str, generator: torch.Generator) -> Tensors:
        """Random inputs of a shape."""
        return self.draw_inputs(shape, Draw(dtype, kv_dtype, device, generator))


def operator_names() -> tuple[str, ...]:
    return tuple(name for name, facts in FACTS.items() if "place" in facts)


def operator(name: str) -> Operator:
    """The operator of this name. Raises HardwareError: there is none; lists those there are."""
    if name not in operator_names():
        raise HardwareError(f"unknown operator; known: {', '.join(operator_names())}", key="operator", value=name)
    return cast(Operator, pkgutil.resolve_name(f"draftcast.kernels.{FACTS[name]['place']}"))


def implementations(
    torch: Prepare, triton: str, torch_supports: Supports = lambda *_: "", triton_supports: Supports = lambda *_: ""
) -> dict[str, Implementation]:
    """The usual pair: torch on every device, Triton where it runs.

    ``triton``: "module:function" in `draftcast.kernels.operators.triton`, imported when it is prepared.
    """

    def prepare(inputs: Tensors, outputs: Tensors) -> Launch:
        return cast(Prepare, pkgutil.resolve_name(f"{__package__}.triton.{triton}"))(inputs, outputs)

    def supports(shape: Shape, dtype: str, kv_dtype: str, device: str) -> str:
        if text := missing("calibrate", "triton"):
            return text
        # Triton's interpreter runs kernels anywhere: right results, meaningless times.
        if device != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
            return "Triton needs a CUDA device"
        return triton_supports(shape, dtype, kv_dtype, device)

    return {"torch": Implementation(torch_supports, torch), "triton": Implementation(supports, prepare)}


def by_formula(formula: Callable[[Tensors], Outputs]) -> Prepare:
    """``prepare`` of an implementation that computes new tensors and copies them to the outputs."""

    def run(inputs: Tensors, outputs: Tensors) -> None:
        for name, value in formula(inputs).items():
            outputs[name].copy_(value)

    return lambda inputs, outputs: partial(run, inputs, outputs)


def formula_operator(
    name: str, work: Any, draw: Any, outputs: Any, supports: Supports, formula: Formula, exact: Formula | None = None
) -> Operator:
    """One that runs by ``formula`` in float32 in plain torch alone; its reference is ``exact``, or it, in float64."""
    reference = exact or formula
    torch_only = Implementation(supports, by_formula(lambda inputs: formula(inputs, torch.float32)))
    return Operator(name, work, draw, outputs, lambda inputs: reference(inputs, torch.float64), {"torch": torch_only})
