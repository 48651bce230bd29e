"""Sampler, torch and Triton: against float64, and its draws against the distribution."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from draftcast.kernels.operators.registry import operator
from draftcast.kernels.operators.sampler import drawn
from draftcast.kernels.operators.triton.sampler import PIECE

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SAMPLER = operator("sampler")
LEVEL = 1e-4
# Of a piece that is all -inf the interpreter warns when it takes -inf from -inf; the result is not used.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
both = pytest.mark.parametrize("name", ["torch", "triton"])


def made(m: int, n: int, dtype: str = "fp32", seed: int = 0) -> dict[str, Any]:
    generator = torch.Generator(DEVICE)
    generator.manual_seed(seed)
    return SAMPLER.make_inputs({"m": m, "n": n}, dtype, "", DEVICE, generator)


def run(name: str, inputs: dict[str, Any]) -> torch.Tensor:
    outputs = SAMPLER.make_outputs(inputs)
    outputs["tokens"].fill_(-7)
    SAMPLER.implementations[name].prepare(inputs, outputs)()
    return outputs["tokens"]


@both
@pytest.mark.parametrize("dtype", SAMPLER.dtypes)
@pytest.mark.parametrize("n", [1, 2, 100, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 5])
def test_against_the_reference(name: str, dtype: str, n: int) -> None:
    """Drawn and greedy rows side by side. A draw on the very border between two tokens may round to either; with these
    seeds none is."""
    inputs = made(9, n, dtype, seed=n)
    inputs["temperature"][:] = torch.tensor([1.0, 0.0, 0.5, 2.0, 0.0, 1.0, 0.1, 100.0, 1.0])
    inputs["uniforms"][-1] = 0.0
    assert torch.equal(run(name, inputs), SAMPLER.reference(inputs)["tokens"])


@both
def test_the_first_of_equal_logits_is_the_likeliest(name: str) -> None:
    """Also of equal ones in different pieces of the vocabulary."""
    inputs = made(3, PIECE + 100, "bf16")
    inputs["temperature"][:] = 0
    inputs["logits"].fill_(-1)
    for row, tokens in enumerate([(5, 7, PIECE + 3), (PIECE - 1, PIECE), (PIECE + 99,)]):
        inputs["logits"][row, list(tokens)] = 2
    assert run(name, inputs).tolist() == [5, PIECE - 1, PIECE + 99]


@both
def test_a_forbidden_token_is_never_drawn(name: str) -> None:
    """Tokens of logit -inf, whole pieces among them, whatever the uniform: 1 - 2**-24 is the largest there is."""
    inputs = made(4, 3 * PIECE)
    inputs["logits"].fill_(-torch.inf)
    inputs["logits"][:, [PIECE + 10, PIECE + 12]] = 0
    inputs["uniforms"][:] = torch.tensor([0.0, 0.49, 0.51, 1 - 2**-24])
    assert run(name, inputs).tolist() == [PIECE + 10, PIECE + 10, PIECE + 12, PIECE + 12]


@both
def test_temperature_and_uniforms_change_the_tokens(name: str) -> None:
    inputs = made(8, 300)
    before = run(name, inputs)
    cold = {**inputs, "temperature": torch.full_like(inputs["temperature"], 1e-3)}
    greedy = {**inputs, "temperature": torch.zeros_like(inputs["temperature"])}
    assert torch.equal(run(name, cold), run(name, greedy))
    assert torch.equal(run(name, greedy).long(), inputs["logits"].argmax(1))
    assert not torch.equal(run(name, greedy), before)
    assert not torch.equal(run(name, {**inputs, "uniforms": inputs["uniforms"].flip(0)}), before)


def test_no_weight_at_all_gives_the_likeliest() -> None:
    weights = torch.tensor([[0.0, 0.0, 0.0], [0.0, 1.0, 0.0]], device=DEVICE)
    uniforms, likeliest = torch.tensor([0.5, 0.0], device=DEVICE), torch.tensor([2, 0], device=DEVICE)
    assert drawn(weights, uniforms, likeliest).tolist() == [2, 1]


@pytest.mark.parametrize("name", ["torch"] + (["triton"] if DEVICE == "cuda" else []))
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_a_million_draws_follow_the_distribution(name: str, temperature: float) -> None:
    draws = 1_000_000
    logits = torch.tensor([0.0, 1.0, -2.0, 0.5, -torch.inf, 2.0, 1.0])
    generator = torch.Generator(DEVICE)
    generator.manual_seed(int(temperature * 10))
    inputs = {
        "logits": logits.to(DEVICE).expand(draws, -1).contiguous(),
        "temperature": torch.full((draws,), temperature, device=DEVICE),
        "uniforms": torch.rand(draws, device=DEVICE, generator=generator),
    }
    counts = np.bincount(run(name, inputs).cpu().numpy(), minlength=7)
    assert counts[4] == 0
    expected = np.delete(torch.softmax(logits.double() / temperature, 0).numpy() * draws, 4)
    seen = np.delete(counts, 4)
    assert stats.chisquare(seen, expected).pvalue > LEVEL
    other = np.delete(torch.softmax(logits.double() / (temperature * 1.05), 0).numpy() * draws, 4)
    assert stats.chisquare(seen, other).pvalue < LEVEL
