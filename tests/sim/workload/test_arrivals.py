"""Arrival processes: rates, variation, counts by segment, and what changes nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from draftcast.errors import ScenarioError
from draftcast.sim.workload import arrivals
from draftcast.sim.workload.arrivals import (
    ARRIVALS,
    ArrivalSpec,
    ClosedLoop,
    Deterministic,
    Gamma,
    PiecewiseRate,
    Poisson,
    RateSegment,
    ThinkTime,
    TraceArrivals,
    make_arrivals,
)

N = 40_000
INF = float("inf")
DRAWN = [
    Poisson(3.0),
    Gamma(3.0, 0.4),
    Deterministic(3.0),
    PiecewiseRate((RateSegment(2.0, 1.0), RateSegment(5.0, 4.0)), repeat=True),
]


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_rate_and_variation(burstiness: float) -> None:
    gaps = np.diff(Gamma(2.0, burstiness).draw(1, N), prepend=0.0)
    cv = 1 / math.sqrt(burstiness)
    assert gaps.mean() == pytest.approx(0.5, abs=4 * 0.5 * cv / math.sqrt(N))
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03)
    assert stats.kstest(gaps, stats.gamma(burstiness, scale=0.5 / burstiness).cdf).pvalue > 1e-4


def test_poisson_is_gamma_with_burstiness_1_and_infinite_burstiness_is_even() -> None:
    assert (Poisson(2.0).draw(1, 100) == Gamma(2.0, 1.0).draw(1, 100)).all()
    gaps = np.diff(Poisson(2.0).draw(1, N), prepend=0.0)
    assert stats.kstest(gaps, stats.expon(scale=0.5).cdf).pvalue > 1e-4
    assert Gamma(4.0, INF).draw(1, 3).tolist() == [0.25, 0.5, 0.75]


def test_deterministic_gaps() -> None:
    assert Deterministic(4.0).draw(9, 4).tolist() == [0.0, 0.25, 0.5, 0.75]


@pytest.mark.parametrize("spec", [Poisson(INF), Deterministic(INF), Gamma(INF, 0.5)])
def test_infinite_rate_sends_everything_at_once(spec: ArrivalSpec) -> None:
    assert spec.draw(1, 3).tolist() == [0.0, 0.0, 0.0]


def test_piecewise_counts_by_segment() -> None:
    spec = PiecewiseRate((RateSegment(100.0, 20.0), RateSegment(300.0, 0.0), RateSegment(400.0, 60.0)))
    times = spec.draw(5, 100_000)
    counts = np.histogram(times, [0, 100, 300, 400, 1e9])[0]
    assert abs(counts[0] - 2000) < 4 * math.sqrt(2000)
    assert counts[1] == 0
    assert abs(counts[2] - 6000) < 4 * math.sqrt(6000)
    assert counts[3] == 0  # the pattern ends, however many were asked for
    assert stats.kstest(times[: counts[0]], stats.uniform(0, 100).cdf).pvalue > 1e-4  # Poisson: uniform given a count


def test_piecewise_repeats_and_one_segment_is_poisson() -> None:
    spec = PiecewiseRate((RateSegment(1.0, 0.0), RateSegment(3.0, 10.0)), repeat=True)
    times = spec.draw(5, 20_000)
    assert len(times) == 20_000
    assert ((times % 3.0) >= 1.0 - 1e-9).all()
    assert times[-1] == pytest.approx(3000.0, rel=0.03)  # 20 a period of 3 s
    endless = PiecewiseRate((RateSegment(INF, 2.0),))
    assert endless.draw(5, 100) == pytest.approx(Poisson(2.0).draw(5, 100))


@pytest.mark.parametrize("spec", DRAWN)
def test_prefix_seed_and_duration(spec: ArrivalSpec) -> None:
    times = spec.draw(1, 5000)
    assert (np.diff(times) >= 0).all()
    assert times[0] >= 0
    assert (spec.draw(1, 100) == times[:100]).all()
    if not isinstance(spec, Deterministic):
        assert (spec.draw(2, 100) != times[:100]).any()
    until = spec.draw_until(1, 900.0)
    assert (until == spec.draw(1, len(until) + 1)[:-1]).all()
    assert until[-1] < 900.0 <= spec.draw(1, len(until) + 1)[-1]


def test_a_higher_rate_squeezes_the_same_pattern() -> None:
    assert Poisson(4.0).draw(1, 50) == pytest.approx(Poisson(2.0).draw(1, 50) / 2)
    assert (Gamma(2.0, 0.5).draw(1, 50) != Gamma(2.0, 0.6).draw(1, 50)).all()


def test_think_times() -> None:
    assert ThinkTime().draw(1, 3).tolist() == [0.0, 0.0, 0.0]
    assert ThinkTime("constant", 2.0).draw(1, 2).tolist() == [2.0, 2.0]
    exponential = ThinkTime("exponential", 2.0).draw(1, N)
    assert exponential.mean() == pytest.approx(2.0, rel=0.03)
    lognormal = ThinkTime("lognormal", 2.0, 0.5).draw(1, N)
    assert lognormal.mean() == pytest.approx(2.0, rel=0.02)
    assert lognormal.std() / lognormal.mean() == pytest.approx(0.5, rel=0.05)
    assert (ThinkTime("exponential", 2.0).draw(1, 10) == exponential[:10]).all()
    assert ClosedLoop(4).think_time_s == ThinkTime()


BAD = [
    ("poisson", {"rate_rps": -1.0}, "rate_rps = -1.0: must be a number > 0 or inf"),
    ("poisson", {"rate_rps": float("nan")}, "rate_rps = nan"),
    ("poisson", {"rate_rps": "8"}, "rate_rps = '8'"),
    ("poisson", {"rate_rps": True}, "rate_rps = True"),
    ("poisson", {}, "rate_rps: missing field of arrival process poisson"),
    ("poisson", {"rate": 1.0}, "rate: unknown field of arrival process poisson; allowed: rate_rps"),
    ("deterministic", {"rate_rps": 0}, "rate_rps = 0"),
    ("gamma", {"rate_rps": 1.0, "burstiness": 0.0}, "burstiness = 0.0: must be a number > 0"),
    ("piecewise", {"segments": ()}, "at least one segment"),
    ("piecewise", {"segments": (RateSegment(1.0, -2.0),)}, r"segments\[0\].rate_rps = -2.0"),
    ("piecewise", {"segments": (RateSegment(2.0, 1.0), RateSegment(2.0, 1.0))}, r"segments\[1\].until_s = 2.0: .* > 2"),
    ("piecewise", {"segments": (RateSegment(1.0, 0.0),)}, "at least one rate"),
    ("piecewise", {"segments": (RateSegment(INF, 1.0),), "repeat": True}, r"segments\[0\].until_s = inf"),
    ("trace", {"time_scale": 2.0, "rate_rps": 3.0}, "not both"),
    ("trace", {"time_scale": 0.0}, "time_scale = 0.0"),
    ("closed_loop", {"concurrency": 0}, "concurrency = 0: must be an integer >= 1"),
    ("weibull", {}, "kind = 'weibull': unknown arrival process; choose one of poisson, gamma, deterministic"),
]


@pytest.mark.parametrize(("kind", "fields", "message"), BAD)
def test_bad_input(kind: str, fields: dict[str, object], message: str) -> None:
    with pytest.raises(ScenarioError, match=message) as info:
        make_arrivals(kind, **fields)
    assert "\n" not in str(info.value)


def test_bad_think_time() -> None:
    for fields, message in (
        (("cauchy", 1.0), "choose one of constant, exponential, lognormal"),
        (("constant", -1.0), "mean_s = -1.0"),
        (("constant", 1.0, 0.5), "cv"),
        (("lognormal", 1.0), "needs cv"),
    ):
        with pytest.raises(ScenarioError, match=message):
            ThinkTime(*fields)  # type: ignore[arg-type]


def test_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(spec.kind == kind for kind, spec in ARRIVALS.items())
    assert make_arrivals("gamma", rate_rps=2.0, burstiness=0.5) == Gamma(2.0, 0.5)
    with pytest.raises(ScenarioError, match="not drawn"):
        TraceArrivals().draw(1, 5)
    monkeypatch.setattr(arrivals, "MAX_REQUESTS", 4096)
    with pytest.raises(ScenarioError, match="more than 4096 requests"):
        Poisson(1e9).draw_until(1, 1.0)
