"""Arrival processes: rates, variation, counts by segment, and what changes nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from samples import closed_loop
from scipy import stats

from draftcast.errors import ScenarioError
from draftcast.sim.workload import arrivals
from draftcast.sim.workload.arrivals import (
    DeterministicArrivals,
    DrawnArrivals,
    GammaArrivals,
    PiecewiseArrivals,
    PoissonArrivals,
    RateSegment,
)

N = 40_000


def poisson(rate_rps: float) -> PoissonArrivals:
    return PoissonArrivals(process="poisson", request_rate_rps=rate_rps)


def gamma(rate_rps: float, burstiness: float) -> GammaArrivals:
    return GammaArrivals(process="gamma", request_rate_rps=rate_rps, burstiness=burstiness)


def deterministic(rate_rps: float) -> DeterministicArrivals:
    return DeterministicArrivals(process="deterministic", request_rate_rps=rate_rps)


def piecewise(*segments: tuple[float, float]) -> PiecewiseArrivals:
    """Segments of (seconds, requests per second)."""
    rates = tuple(RateSegment(duration_s=duration_s, request_rate_rps=rate) for duration_s, rate in segments)
    return PiecewiseArrivals(process="piecewise", segments=rates)


DRAWN = [poisson(3.0), gamma(3.0, 0.4), deterministic(3.0), piecewise((2.0, 1.0), (3.0, 4.0))]


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_rate_and_variation(burstiness: float) -> None:
    gaps = np.diff(gamma(2.0, burstiness).draw(1, N), prepend=0.0)
    cv = 1 / math.sqrt(burstiness)
    assert gaps.mean() == pytest.approx(0.5, abs=4 * 0.5 * cv / math.sqrt(N))
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03)
    assert stats.kstest(gaps, stats.gamma(burstiness, scale=0.5 / burstiness).cdf).pvalue > 1e-4


def test_poisson_is_gamma_with_burstiness_1_and_a_large_burstiness_is_even() -> None:
    assert (poisson(2.0).draw(1, 100) == gamma(2.0, 1.0).draw(1, 100)).all()
    gaps = np.diff(poisson(2.0).draw(1, N), prepend=0.0)
    assert stats.kstest(gaps, stats.expon(scale=0.5).cdf).pvalue > 1e-4
    assert gamma(4.0, 1e6).draw(1, 3) == pytest.approx([0.25, 0.5, 0.75], rel=0.01)


def test_deterministic_gaps() -> None:
    assert deterministic(4.0).draw(9, 4).tolist() == [0.0, 0.25, 0.5, 0.75]


def test_piecewise_counts_by_segment() -> None:
    times = piecewise((100.0, 20.0), (200.0, 0.0), (100.0, 60.0)).draw(5, 100_000)
    counts = np.histogram(times, [0, 100, 300, 400])[0]
    assert abs(counts[0] - 2000) < 4 * math.sqrt(2000)
    assert counts[1] == 0
    assert abs(counts[2] - 6000) < 4 * math.sqrt(6000)
    assert stats.kstest(times[: counts[0]], stats.uniform(0, 100).cdf).pvalue > 1e-4  # Poisson: uniform given a count


def test_piecewise_repeats_and_one_segment_is_poisson() -> None:
    times = piecewise((1.0, 0.0), (2.0, 10.0)).draw(5, 20_000)
    assert len(times) == 20_000
    assert ((times % 3.0) >= 1.0 - 1e-9).all()
    assert times[-1] == pytest.approx(3000.0, rel=0.03)  # 20 a period of 3 s
    assert piecewise((1e6, 2.0)).draw(5, 100) == pytest.approx(poisson(2.0).draw(5, 100))


@pytest.mark.parametrize("spec", DRAWN)
def test_prefix_seed_and_duration(spec: DrawnArrivals) -> None:
    times = spec.draw(1, 5000)
    assert (np.diff(times) >= 0).all()
    assert times[0] >= 0
    assert (spec.draw(1, 100) == times[:100]).all()
    if not isinstance(spec, DeterministicArrivals):
        assert (spec.draw(2, 100) != times[:100]).any()
    until = spec.draw_until(1, 900.0)
    assert (until == spec.draw(1, len(until) + 1)[:-1]).all()
    assert until[-1] < 900.0 <= spec.draw(1, len(until) + 1)[-1]


def test_a_higher_rate_squeezes_the_same_pattern() -> None:
    assert poisson(4.0).draw(1, 50) == pytest.approx(poisson(2.0).draw(1, 50) / 2)
    assert (gamma(2.0, 0.5).draw(1, 50) != gamma(2.0, 0.6).draw(1, 50)).all()


def test_think_times() -> None:
    assert closed_loop(4).draw_think_s(1, 3).tolist() == [0.0, 0.0, 0.0]
    assert closed_loop(4, 0.0, "exponential").draw_think_s(1, 3).tolist() == [0.0, 0.0, 0.0]
    assert closed_loop(4, 2.0).draw_think_s(1, 2).tolist() == [2.0, 2.0]
    exponential = closed_loop(4, 2.0, "exponential")
    assert exponential.draw_think_s(1, N).mean() == pytest.approx(2.0, rel=0.03)
    assert (exponential.draw_think_s(1, 10) == exponential.draw_think_s(1, N)[:10]).all()


def test_too_many_arrivals_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "MAX_REQUESTS", 4096)
    with pytest.raises(ScenarioError, match="more than 4096 requests"):
        poisson(1e9).draw_until(1, 1.0)
