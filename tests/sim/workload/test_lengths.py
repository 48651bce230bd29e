"""Length distributions: moments, bounds, and one draw per request index."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from draftcast.sim.compiled.random_streams import Stream, request_uniforms
from draftcast.sim.workload.lengths import Lengths, TokenDistribution, trace_rows

U = request_uniforms(1, Stream.LENGTHS, 100_000)


def tokens(distribution: str, **fields: object) -> TokenDistribution:
    counts = {"distribution": distribution, **fields}
    lengths = Lengths.model_validate({"prompt_tokens": counts, "output_tokens": 1})
    assert lengths.prompt_tokens is not None
    return lengths.prompt_tokens


SPECS = [
    (tokens("constant", value=17), 17.0, 0.0),
    (tokens("uniform", low=10, high=19), 14.5, math.sqrt((10**2 - 1) / 12)),
    (tokens("lognormal", mean=300.0, std=240.0), 300.0, 240.0),
    (tokens("lognormal", mean=100.0, std=0.001), 100.0, 0.0),
    (tokens("gamma", mean=200.0, std=100.0), 200.0, 100.0),
    (tokens("exponential", mean=200.0), 200.0, 200.0),
    (tokens("geometric", mean=20.0), 20.0, math.sqrt(20 * 19)),
    (tokens("geometric", mean=1.0), 1.0, 0.0),
    (tokens("empirical", values=[30, 10, 20]), 20.0, math.sqrt(200 / 3)),
    (tokens("empirical", values=[10, 50, 20], weights=[3.0, 0.0, 1.0]), 12.5, math.sqrt(18.75)),
]


@pytest.mark.parametrize(("spec", "mean", "std"), SPECS)
def test_moments(spec: TokenDistribution, mean: float, std: float) -> None:
    counts = spec.tokens(U)
    assert counts.dtype == np.int32
    assert counts.min() >= 1
    assert counts.mean() == pytest.approx(mean, abs=5 * std / math.sqrt(len(U)) + 0.02)
    assert counts.std() == pytest.approx(std, rel=0.03, abs=0.01)
    assert (np.diff(spec.tokens(np.linspace(0, 1, 100, endpoint=False))) >= 0).all()  # a quantile function


@pytest.mark.parametrize("spec", [spec for spec, _, _ in SPECS if "max" in type(spec).model_fields])
def test_draws_are_held_inside_their_bounds(spec: TokenDistribution) -> None:
    bounded = spec.model_copy(update={"min": 12, "max": 15})
    assert (bounded.tokens(U) == np.clip(spec.tokens(U), 12, 15)).all()


def test_exact_distributions() -> None:
    counts = np.bincount(tokens("uniform", low=3, high=7).tokens(U))[3:]
    assert len(counts) == 5
    assert stats.chisquare(counts).pvalue > 1e-4
    observed = np.bincount(tokens("geometric", mean=4.0).tokens(U))[1:11]
    expected = stats.geom(0.25).pmf(np.arange(1, 11)) * len(U)
    assert stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-4
    weighted = tokens("empirical", values=[10, 50, 20], weights=[3.0, 0.0, 1.0])
    assert set(weighted.tokens(U)) == {10, 20}
    assert tokens("lognormal", mean=1e9, std=1e9).tokens(np.array([1 - 1e-9])).tolist() == [2**31 - 1]


def test_a_larger_mean_makes_every_request_longer() -> None:
    assert (tokens("exponential", mean=300.0).tokens(U) >= tokens("exponential", mean=200.0).tokens(U)).all()
    long, short = (tokens("lognormal", mean=mean, std=mean) for mean in (300.0, 200.0))
    assert (long.tokens(U) >= short.tokens(U)).all()


def test_empirical_rows() -> None:
    assert trace_rows("sequential", U[:7], 3).tolist() == [0, 1, 2, 0, 1, 2, 0]
    rows = trace_rows("sampled", U[:60_000], 6)
    assert stats.chisquare(np.bincount(rows, minlength=6)).pvalue > 1e-4
    assert (trace_rows("sampled", U[:50], 6) == rows[:50]).all()
