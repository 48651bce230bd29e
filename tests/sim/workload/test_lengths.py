"""Length distributions: moments, bounds, and one draw per request index."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from draftcast.errors import ScenarioError
from draftcast.sim.compiled.random_streams import Stream, request_uniforms
from draftcast.sim.workload.lengths import (
    LENGTHS,
    Discrete,
    Empirical,
    Exponential,
    Fixed,
    Gamma,
    Geometric,
    LengthSpec,
    LogNormal,
    Uniform,
    make_lengths,
)

U = request_uniforms(1, Stream.LENGTHS, 100_000)

SPECS = [
    (Fixed(17), 17.0, 0.0),
    (Uniform(10, 19), 14.5, math.sqrt((10**2 - 1) / 12)),
    (LogNormal(mean_tokens=300.0, cv=0.8), 300.0, 240.0),
    (
        LogNormal(median_tokens=100.0, sigma=0.5),
        100 * math.exp(0.125),
        100 * math.exp(0.125) * math.sqrt(math.expm1(0.25)),
    ),
    (LogNormal(median_tokens=100.0, sigma=0.0), 100.0, 0.0),
    (Gamma(200.0, 0.5), 200.0, 100.0),
    (Exponential(200.0), 200.0, 200.0),
    (Geometric(20.0), 20.0, math.sqrt(20 * 19)),
    (Geometric(1.0), 1.0, 0.0),
    (Discrete((30, 10, 20)), 20.0, math.sqrt(200 / 3)),
    (Discrete((10, 50, 20), (3.0, 0.0, 1.0)), 12.5, math.sqrt(18.75)),
]


@pytest.mark.parametrize(("spec", "mean", "std"), SPECS)
def test_moments(spec: LengthSpec, mean: float, std: float) -> None:
    tokens = spec.tokens(U)
    assert tokens.dtype == np.int32
    assert tokens.min() >= 1
    assert tokens.mean() == pytest.approx(mean, abs=5 * std / math.sqrt(len(U)) + 0.02)
    assert tokens.std() == pytest.approx(std, rel=0.03, abs=0.01)
    assert (np.diff(spec.tokens(np.linspace(0, 1, 100, endpoint=False))) >= 0).all()  # a quantile function


@pytest.mark.parametrize(("spec", "mean", "std"), SPECS)
def test_bounds(spec: LengthSpec, mean: float, std: float) -> None:
    fields = {key: value for key, value in vars(spec).items() if value is not None}
    bounded = make_lengths(spec.kind, **{**fields, "min_tokens": 12, "max_tokens": 15})
    tokens = bounded.tokens(U)
    assert tokens.min() >= 12
    assert tokens.max() <= 15
    assert (tokens == np.clip(spec.tokens(U), 12, 15)).all()


def test_exact_distributions() -> None:
    counts = np.bincount(Uniform(3, 7).tokens(U))[3:]
    assert len(counts) == 5
    assert stats.chisquare(counts).pvalue > 1e-4
    tokens = Geometric(4.0).tokens(U)
    observed = np.bincount(tokens)[1:11]
    expected = stats.geom(0.25).pmf(np.arange(1, 11)) * len(U)
    assert stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-4
    assert set(Discrete((10, 50, 20), (3.0, 0.0, 1.0)).tokens(U)) == {10, 20}
    assert LogNormal(mean_tokens=1e30, cv=1.0).tokens(U[:3]).tolist() == [2**31 - 1] * 3


def test_range_ratio_as_in_vllm() -> None:
    assert Uniform.from_range_ratio(1000, 0.25) == Uniform(750, 1250)
    assert Uniform.from_range_ratio(10, 0.0) == Uniform(10, 10)
    assert Uniform.from_range_ratio(3, 0.5) == Uniform(1, 5)
    for ratio in (-0.1, 1.0, float("nan")):
        with pytest.raises(ScenarioError, match="range_ratio"):
            Uniform.from_range_ratio(10, ratio)


def test_a_larger_mean_makes_every_request_longer() -> None:
    assert (Exponential(300.0).tokens(U) >= Exponential(200.0).tokens(U)).all()
    assert (LogNormal(mean_tokens=300.0, cv=1.0).tokens(U) >= LogNormal(mean_tokens=200.0, cv=1.0).tokens(U)).all()


def test_empirical_rows() -> None:
    assert Empirical().rows(1, 7, 3).tolist() == [0, 1, 2, 0, 1, 2, 0]
    rows = Empirical(order="sampled").rows(1, 60_000, 6)
    assert stats.chisquare(np.bincount(rows, minlength=6)).pvalue > 1e-4
    assert (Empirical(order="sampled").rows(1, 50, 6) == rows[:50]).all()
    assert (Empirical(order="sampled").rows(2, 50, 6) != rows[:50]).any()
    with pytest.raises(ScenarioError, match="choose one of sequential, sampled"):
        Empirical(order="random")


BAD = [
    ("fixed", {"tokens_each": 0}, "tokens_each = 0: must be an integer >= 1"),
    ("fixed", {"tokens_each": 2.5}, "tokens_each = 2.5"),
    ("fixed", {"tokens_each": 5, "min_tokens": 0}, "min_tokens = 0"),
    ("fixed", {"tokens_each": 5, "min_tokens": 4, "max_tokens": 3}, "max_tokens = 3: must be an integer >= 4"),
    ("uniform", {"low_tokens": 5, "high_tokens": 4}, "high_tokens = 4: must be an integer >= 5"),
    ("lognormal", {"mean_tokens": 5.0}, r"give mean_tokens and cv, or median_tokens and sigma \(given: mean_tokens\)"),
    ("lognormal", {"mean_tokens": 5.0, "cv": 1.0, "sigma": 1.0}, "given: mean_tokens, cv, sigma"),
    ("lognormal", {"mean_tokens": -5.0, "cv": 1.0}, "mean_tokens = -5.0"),
    ("lognormal", {"mean_tokens": 5.0, "cv": float("nan")}, "cv = nan"),
    ("exponential", {"mean_tokens": 0.0}, "mean_tokens = 0.0: must be a number > 0"),
    ("exponential", {"mean_tokens": float("inf")}, "mean_tokens = inf"),
    ("gamma", {"mean_tokens": 5.0, "cv": 0.0}, "cv = 0.0"),
    ("geometric", {"mean_tokens": 0.5}, "mean_tokens = 0.5: must be a number >= 1"),
    ("discrete", {"values": ()}, "at least one token count"),
    ("discrete", {"values": (1, 0)}, r"values\[1\] = 0"),
    ("discrete", {"values": (1, 2), "weights": (1.0,)}, "one weight for each of the 2 values"),
    ("discrete", {"values": (1, 2), "weights": (1.0, -1.0)}, r"weights\[1\] = -1.0"),
    ("discrete", {"values": (1, 2), "weights": (0.0, 0.0)}, "at least one weight"),
    ("pareto", {}, "unknown length distribution; choose one of fixed, uniform, lognormal"),
    ("fixed", {"tokens": 3}, "tokens: unknown field of length distribution fixed; allowed:"),
]


@pytest.mark.parametrize(("kind", "fields", "message"), BAD)
def test_bad_input(kind: str, fields: dict[str, object], message: str) -> None:
    with pytest.raises(ScenarioError, match=message) as info:
        make_lengths(kind, **fields)
    assert "\n" not in str(info.value)


def test_registry() -> None:
    assert all(spec.kind == kind for kind, spec in LENGTHS.items())
