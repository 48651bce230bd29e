"""RMSNorm, rotary embedding, SwiGLU and embedding, torch and Triton, against float64."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from draftcast.errors import HardwareError
from draftcast.kernels.operators.registry import operator

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
both = pytest.mark.parametrize("name", ["torch", "triton"])
dtypes = pytest.mark.parametrize("dtype", ["fp32", "bf16"])
# fp32: a few roundings, and sums of up to some thousand squares. bf16 has 8 bits; torch rounds up to three times on the
# way to a result, and products that cancel keep the error of the larger.
TOLERANCE = {"fp32": (1e-6, 2e-6), "bf16": (2e-2, 2**-6)}
SHAPES = [
    ("rmsnorm", {"m": 1, "n": 4096}),
    ("rmsnorm", {"m": 5, "n": 1}),
    ("rmsnorm", {"m": 17, "n": 100}),
    ("rotary", {"m": 1, "heads": 32, "kv_heads": 8, "head_dim": 128}),
    ("rotary", {"m": 6, "heads": 9, "kv_heads": 3, "head_dim": 80}),
    ("rotary", {"m": 17, "heads": 1, "kv_heads": 1, "head_dim": 2}),
    ("swiglu", {"m": 3, "n": 1024}),
    ("swiglu", {"m": 17, "n": 1030}),
    ("swiglu", {"m": 1, "n": 1}),
    ("embedding", {"m": 4, "n": 1024, "k": 1}),
    ("embedding", {"m": 17, "n": 1030, "k": 50}),
]


def made(operator_name: str, shape: dict[str, int], dtype: str, seed: int = 0) -> dict[str, Any]:
    generator = torch.Generator(DEVICE)
    generator.manual_seed(seed)
    return operator(operator_name).make_inputs(shape, dtype, "", DEVICE, generator)


def run(operator_name: str, name: str, inputs: dict[str, Any], launches: int = 1) -> dict[str, torch.Tensor]:
    found = operator(operator_name)
    outputs = found.make_outputs(inputs)
    for output in outputs.values():
        output.fill_(torch.nan)
    launch = found.implementations[name].prepare(inputs, outputs)
    for _ in range(launches):
        launch()
    return outputs


@both
@dtypes
@pytest.mark.parametrize(("operator_name", "shape"), SHAPES)
def test_against_the_reference(operator_name: str, shape: dict[str, int], dtype: str, name: str) -> None:
    inputs = made(operator_name, shape, dtype)
    before = {key: value.clone() for key, value in inputs.items() if isinstance(value, torch.Tensor)}
    atol, rtol = (0.0, 0.0) if operator_name == "embedding" else TOLERANCE[dtype]
    outputs = run(operator_name, name, inputs, launches=2)
    for key, expected in operator(operator_name).reference(inputs).items():
        assert outputs[key].dtype == {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
        torch.testing.assert_close(outputs[key].double(), expected, rtol=rtol, atol=atol)
    for key, value in before.items():
        assert torch.equal(inputs[key], value), key


@both
def test_a_norm_has_the_size_of_its_weight(name: str) -> None:
    """Scaled inputs, same norm; eps matters when they are tiny."""
    inputs = made("rmsnorm", {"m": 2, "n": 64}, "fp32")
    large = run("rmsnorm", name, {**inputs, "x": inputs["x"] * 1e3, "residual": inputs["residual"] * 1e3})["y"]
    torch.testing.assert_close(large, run("rmsnorm", name, {**inputs, "eps": 0.0})["y"], rtol=1e-5, atol=1e-6)
    tiny = {**inputs, "x": inputs["x"] * 1e-6, "residual": inputs["residual"] * 1e-6}
    assert run("rmsnorm", name, tiny)["y"].abs().max() < 0.02
    assert run("rmsnorm", name, {**tiny, "eps": 0.0})["y"].abs().max() > 1


@both
def test_a_turn_by_hand(name: str) -> None:
    """Element 0 turns with element 2, by one radian a position; element 1 with element 3, by 1/sqrt(500000)."""
    inputs = made("rotary", {"m": 2, "heads": 1, "kv_heads": 1, "head_dim": 4}, "fp32")
    inputs["positions"][:] = torch.tensor([0, 1])
    inputs["q"][:] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    inputs["k"][:] = torch.tensor([0.0, 0.0, 0.0, 1.0])
    outputs = run("rotary", name, inputs)
    small = torch.tensor(500_000.0**-0.5)
    one = torch.tensor(1.0)
    expected = {
        "q_out": [[1.0, 0.0, 0.0, 0.0], [one.cos(), 0.0, one.sin(), 0.0]],
        "k_out": [[0.0, 0.0, 0.0, 1.0], [0.0, -small.sin(), 0.0, small.cos()]],
    }
    for key, rows in expected.items():
        torch.testing.assert_close(outputs[key][:, 0].cpu(), torch.tensor(rows), rtol=0, atol=1e-6)


def test_scores_depend_on_the_distance_only() -> None:
    inputs = made("rotary", {"m": 4, "heads": 1, "kv_heads": 1, "head_dim": 64}, "fp32")
    inputs["positions"][:] = torch.tensor([3, 10, 1003, 1010])
    inputs["q"][:], inputs["k"][:] = inputs["q"][:1].clone(), inputs["k"][:1].clone()
    outputs = operator("rotary").reference(inputs)
    q, k = outputs["q_out"][:, 0], outputs["k_out"][:, 0]
    assert float(q[1] @ k[0]) == pytest.approx(float(q[3] @ k[2]), abs=1e-3)
    assert float(q[1] @ k[0]) != pytest.approx(float(q[0] @ k[0]), abs=1e-3)


@both
def test_large_gates_saturate(name: str) -> None:
    inputs = made("swiglu", {"m": 1, "n": 4}, "fp32")
    inputs["x"][0] = torch.tensor([80.0, -80.0, 0.0, -40.0, 2.0, 2.0, 2.0, 2.0])
    torch.testing.assert_close(run("swiglu", name, inputs)["y"][0].cpu(), torch.tensor([160.0, 0.0, 0.0, 0.0]))


def test_heads_of_odd_size_are_refused() -> None:
    with pytest.raises(HardwareError, match="head_dim = 3: must be even"):
        made("rotary", {"m": 1, "heads": 1, "kv_heads": 1, "head_dim": 3}, "fp32")


@pytest.mark.skipif(DEVICE == "cpu", reason="CUDA graphs need a GPU")
@both
def test_a_captured_launch_gives_the_same(name: str) -> None:
    samplers = [("sampler", {"m": 3, "n": 9000}), ("rejection_sampler", {"batch": 3, "q": 4, "n": 9000})]
    for operator_name, shape in [("linear", {"m": 3, "k": 4096, "n": 64}), *samplers, *SHAPES]:
        inputs = made(operator_name, shape, "bf16")
        found = operator(operator_name)
        outputs, expected = found.make_outputs(inputs), found.make_outputs(inputs)
        found.implementations[name].prepare(inputs, expected)()
        launch = found.implementations[name].prepare(inputs, outputs)
        with torch.cuda.stream(torch.cuda.Stream()):
            launch()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launch()
        for output in outputs.values():
            output.fill_(-7)
        for _ in range(2):
            graph.replay()
        for key, output in outputs.items():
            torch.testing.assert_close(output, expected[key], rtol=0, atol=0)
