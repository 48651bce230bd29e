"""Routed experts, torch and Triton, against the float64 sum token by token. Without a GPU Triton is interpreted."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from draftcast.calibration.profile.table import SHAPE_FIELDS
from draftcast.kernels.operators.registry import operator
from draftcast.kernels.operators.triton import moe as triton_moe

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MOE = operator("moe")
# Against the whole output's norm. fp32: rounding. bf16: 8 bits of the hidden state and of every expert's output, which
# Triton's interpreter cuts off. fp8: the hidden state's 4 bits; cutting off (a GPU rounds) loses up to an eighth.
TOLERANCE = {"fp32": 1e-6, "bf16": 1.5e-2, "fp8": 0.05 if DEVICE == "cuda" else 0.15}
SHAPES = [
    (1, 32, 16, 4, 2),
    (7, 48, 40, 8, 2),
    (33, 64, 48, 5, 3),
    (3, 64, 32, 64, 4),
    (9, 40, 24, 3, 3),
]
CASES = [(name, dtype, sizes) for name in ("torch", "triton") for dtype in MOE.dtypes for sizes in SHAPES]


def make(sizes: tuple[int, ...], dtype: str, seed: int = 0) -> dict[str, Any]:
    generator = torch.Generator(DEVICE)
    generator.manual_seed(seed)
    return MOE.make_inputs(dict(zip(SHAPE_FIELDS["moe"], sizes, strict=True)), dtype, "", DEVICE, generator)


def supported(name: str, dtype: str, sizes: tuple[int, ...]) -> str:
    shape = dict(zip(SHAPE_FIELDS["moe"], sizes, strict=True))
    return MOE.implementations[name].supports(shape, dtype, "", DEVICE)


def run(name: str, inputs: dict[str, Any], **options: Any) -> torch.Tensor:
    outputs = MOE.make_outputs(inputs)
    outputs["out"].fill_(torch.nan)
    prepare = triton_moe.prepare if options else MOE.implementations[name].prepare
    prepare(inputs, outputs, **options)()
    return outputs["out"]


def check(name: str, inputs: dict[str, Any], dtype: str, **options: Any) -> None:
    found, expected = run(name, inputs, **options).double(), MOE.reference(inputs)["out"]
    assert float((found - expected).norm() / expected.norm()) < TOLERANCE[dtype]


@pytest.mark.parametrize(("name", "dtype", "sizes"), [case for case in CASES if not supported(*case)])
def test_against_the_reference(name: str, dtype: str, sizes: tuple[int, ...]) -> None:
    check(name, make(sizes, dtype, seed=sum(sizes)), dtype)


def test_what_is_checked() -> None:
    """Triton everything; torch no fp8."""
    checked = {case for case in CASES if not supported(*case)}
    assert {case for case in CASES if case[0] == "triton"} <= checked
    assert not any(dtype == "fp8" for name, dtype, _ in checked if name == "torch")
    assert any(name == "torch" and dtype == "bf16" for name, dtype, _ in checked) or DEVICE == "cuda"


@pytest.mark.parametrize("name", ["torch", "triton"])
def test_experts_without_a_token_are_not_touched(name: str) -> None:
    """All tokens go to experts 1 and 3; the weights of the others are NaN."""
    inputs = make((5, 32, 32, 6, 2), "fp32" if DEVICE == "cpu" else "bf16")
    inputs["experts"][:] = torch.tensor([3, 1], device=DEVICE)
    for weights in (inputs["gate_up"], inputs["down"]):
        weights[[0, 2, 4, 5]] = torch.nan
    check(name, inputs, "fp32" if DEVICE == "cpu" else "bf16")


@pytest.mark.parametrize("plan", [(16, 32, 16, 4, 2), (32, 64, 64, 4, 2), (64, 32, 32, 4, 2)])
def test_every_tile(plan: tuple[int, ...]) -> None:
    """80 pairs over 4 experts fill blocks of 16 twice or once with a rest; 40 and 24 are no multiples of the tiles."""
    check("triton", make((40, 40, 24, 4, 2), "fp32"), "fp32", plan=triton_moe.MatrixTiles(*plan))


def test_a_prepared_triton_launch_reads_the_routing_anew() -> None:
    """So a captured graph stays valid from step to step."""
    inputs, other = make((9, 32, 16, 5, 2), "fp32"), make((9, 32, 16, 5, 2), "fp32", seed=1)
    outputs = MOE.make_outputs(inputs)
    launch = triton_moe.prepare(inputs, outputs)
    launch()
    for name in ("x", "experts", "shares"):
        inputs[name].copy_(other[name])
    launch()
    torch.testing.assert_close(outputs["out"].double(), MOE.reference(inputs)["out"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("key", ["x_scale", "h_scale", "gate_up_scale", "down_scale"])
def test_every_fp8_scale_reaches_the_result(key: str) -> None:
    inputs = make((4, 32, 16, 3, 2), "fp8")
    inputs[key] = inputs[key] * 1.5
    check("triton", inputs, "fp8")


def test_inputs_route_to_distinct_experts() -> None:
    inputs = make((50, 16, 16, 7, 4), "bf16")
    assert all(len(set(row)) == 4 for row in inputs["experts"].tolist())
    assert set(inputs["experts"].flatten().tolist()) == set(range(7))
    torch.testing.assert_close(inputs["shares"].sum(1), torch.ones(50, device=DEVICE))


def test_work_by_hand() -> None:
    """One token, 2 of 4 experts of 3 x 5: gate and up are 10 wide. All four experts are touched in the limit."""
    shape = {"m": 1, "k": 3, "n": 5, "num_experts": 4, "top_k": 2}
    work = MOE.work(shape, "bf16", "")
    assert work.flops == 2 * 2 * (3 * 10 + 5 * 3)
    assert work.bytes == pytest.approx(2 * (2 * (30 + 15) + 2 * (3 + 10) + 2 * (5 + 3)))
    many = MOE.work({**shape, "m": 1000}, "fp8", "")
    assert many.bytes == pytest.approx(4 * 45 + 2 * 2000 * (13 + 8))


def test_supports_says_why_not() -> None:
    shape = {"m": 1, "k": 32, "n": 32, "num_experts": 2, "top_k": 3}
    assert MOE.implementations["triton"].supports(shape, "bf16", "", DEVICE) == "top_k is at most num_experts"
    shape["top_k"] = 2
    assert "scale per expert" in MOE.implementations["torch"].supports(shape, "fp8", "", DEVICE)
    assert "16 bytes" in MOE.implementations["torch"].supports({**shape, "n": 12}, "bf16", "", DEVICE)
