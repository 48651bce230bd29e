"""Every registered operator keeps the contract of `draftcast.kernels.operators.registry`."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from draftcast.calibration.profile.table import SHAPE_FIELDS, SHAPES
from draftcast.errors import HardwareError
from draftcast.kernels.operators.registry import operator, operator_names

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZES = {
    "m": 3, "k": 64, "n": 32, "batch": 2, "q": 3, "context": 40, "heads": 4, "kv_heads": 2, "head_dim": 32, "window": 0,
    "tree": 0, "num_experts": 4, "top_k": 2, "message_bytes": 64, "ranks": 2,
}  # fmt: skip
each = pytest.mark.parametrize("name", operator_names())


def shape_of(name: str) -> dict[str, int]:
    return {field: SIZES[field] for field in SHAPE_FIELDS[name]}


def kv_dtype_of(name: str, dtype: str) -> str:
    return dtype if name.startswith(("attention", "mla", "gdn", "kda", "mamba2", "indexer", "dsa")) else ""


def made(name: str, dtype: str, seed: int = 0) -> dict[str, Any]:
    generator = torch.Generator(DEVICE)
    generator.manual_seed(seed)
    return operator(name).make_inputs(shape_of(name), dtype, kv_dtype_of(name, dtype), DEVICE, generator)


@each
def test_the_latency_table_has_the_shape_fields(name: str) -> None:
    assert operator(name).name == name
    assert set(SHAPE_FIELDS[name]) <= set(SHAPES)


@each
def test_work_is_positive_broadcasts_and_grows(name: str) -> None:
    found = operator(name)
    for dtype in found.dtypes:
        kv_dtype = kv_dtype_of(name, dtype)
        one = found.work(shape_of(name), dtype, kv_dtype)
        twice: dict[str, Any] = {key: np.array([value, 2 * value]) for key, value in shape_of(name).items()}
        both = found.work(twice, dtype, kv_dtype)
        assert both.bytes.shape == both.flops.shape == (2,)
        assert both.bytes[0] == one.bytes > 0
        assert both.flops[0] == one.flops >= 0
        assert both.bytes[1] > both.bytes[0]


@each
def test_inputs_are_random_and_repeatable(name: str) -> None:
    for dtype in operator(name).dtypes:
        first, same, other = (made(name, dtype, seed) for seed in (1, 1, 2))
        tensors = [key for key, value in first.items() if isinstance(value, torch.Tensor)]
        equal = {key: torch.equal(first[key].float(), same[key].float()) for key in tensors}
        assert all(equal.values()), equal
        assert not all(torch.equal(first[key].float(), other[key].float()) for key in tensors)


@each
def test_outputs_have_the_reference_shapes(name: str) -> None:
    for dtype in operator(name).dtypes:
        inputs = made(name, dtype)
        outputs, expected = operator(name).make_outputs(inputs), operator(name).reference(inputs)
        assert {key: value.shape for key, value in outputs.items()} == {
            key: value.shape for key, value in expected.items()
        }
        for key, value in expected.items():
            assert value.dtype == (torch.float64 if outputs[key].is_floating_point() else outputs[key].dtype)


@each
def test_an_implementation_refuses_or_runs(name: str, request: pytest.FixtureRequest) -> None:
    """What `supports` admits fills every output; the answers themselves are checked family by family."""
    found = operator(name)
    request.addfinalizer(found.close)
    ran = 0
    for dtype in found.dtypes:
        for implementation in found.implementations.values():
            if implementation.supports(shape_of(name), dtype, kv_dtype_of(name, dtype), DEVICE):
                continue
            inputs = made(name, dtype)
            outputs = found.make_outputs(inputs)
            for value in outputs.values():
                value.fill_(torch.nan if value.is_floating_point() else -7)
            implementation.prepare(inputs, outputs)()
            for value in outputs.values():
                assert not (value.isnan() if value.is_floating_point() else value == -7).any()
            ran += 1
    assert ran or name == "all_reduce"  # one GPU, or one core, is not enough for that


def test_an_unknown_operator_lists_the_known() -> None:
    with pytest.raises(HardwareError, match=r"operator = 'conv'.*known: linear, .*rotary"):
        operator("conv")


def test_triton_on_a_cpu_needs_its_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    supports = operator("linear").implementations["triton"].supports
    shape = shape_of("linear")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert supports(shape, "bf16", "", "cpu") == ""
    monkeypatch.delenv("TRITON_INTERPRET")
    assert supports(shape, "bf16", "", "cpu") == "Triton needs a CUDA device"
    assert supports(shape, "bf16", "", "cuda") == ""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "needs triton: pip install 'draftcast[calibrate]'" in supports(shape, "bf16", "", "cuda")


def test_naming_operators_loads_no_torch() -> None:
    code = (
        "import sys; from draftcast.kernels.operators.registry import operator, operator_names\n"
        "[operator(name) for name in operator_names()]\nprint(*sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "triton"} & set(done.stdout.split())
