"""The warm-up: closed forms of the transient, and the transient of simulated runs."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from draftcast import load_scenario
from draftcast.scenarios.run.simulate import ServedScenario, measure, serve
from draftcast.scenarios.schema.load import without_speculation
from draftcast.sim.output.results import TIME_COLUMNS
from draftcast.sim.output.steady_state import FORGOTTEN, Warmup, _elasticity, _missing_share, find_warmup


def run(residence_s: np.ndarray, gap_s: float = 0.01) -> pd.DataFrame:
    """Requests that arrive one by one and take so long at 1,000 tokens a second, a tenth of it to the first token."""
    arrival = gap_s * np.arange(residence_s.size)
    times = dict.fromkeys(TIME_COLUMNS, np.zeros(residence_s.size))
    columns = {
        "arrival_s": arrival,
        "first_scheduled_s": arrival,
        "first_token_s": arrival + 0.1 * residence_s,
        "finish_s": arrival + residence_s,
    }
    return pd.DataFrame({**columns, **times, "prompt_tokens": 1, "output_tokens": np.ceil(1000 * residence_s)})


def drawn(seed: int, n: int = 4000) -> np.ndarray:
    return np.random.default_rng(seed).exponential(1.0, n)


@pytest.mark.parametrize("elasticity", [0.0, 0.5, 0.8])
def test_of_exponential_times_the_missing_share_falls_exponentially(elasticity: float) -> None:
    # G(t) = exp(-t): the renewal equation's Laplace transform gives y(t) = exp(-(1 - phi) t).
    quantiles = -np.log1p(-(np.arange(200_000) + 0.5) / 200_000)
    at_s, missing = _missing_share(quantiles, elasticity)
    for t in (0.5, 1.0, 3.0):
        assert np.interp(t, at_s, missing) == pytest.approx(np.exp(-(1 - elasticity) * t), rel=0.05 * (1 + t))


def test_elasticity_of_a_line() -> None:
    x = np.linspace(5.0, 20.0, 40)
    assert _elasticity(x, 3.0 + 0.5 * x, 10.0) == pytest.approx(5.0 / 8.0)
    assert _elasticity(x, 4.0 - 0.1 * x, 10.0) == 0.0
    assert _elasticity(np.full(5, 3.0), np.arange(5.0), 3.0) == 0.0


def test_the_cut_is_where_the_number_in_system_is_forgotten() -> None:
    found = find_warmup([run(drawn(seed)) for seed in range(5)], closed_loop=False)
    # Times that do not depend on the load: exp(-t) falls to 0.2 % after 6.2 s, at 100 requests a second.
    assert found.requests == pytest.approx(-100 * np.log(FORGOTTEN), rel=0.15)
    assert found.is_over


def test_users_of_a_closed_loop_only_mix_their_ages() -> None:
    slower = drawn(1) * np.linspace(1.0, 1.2, 4000)
    closed, opened = (find_warmup([run(slower)], closed_loop=closed) for closed in (True, False))
    assert closed.requests <= opened.requests
    assert closed.missing[0] == 1.0


def test_the_time_before_the_first_request_does_not_count() -> None:
    early = run(drawn(1) * np.linspace(1.0, 1.2, 4000))
    late = early.copy()
    late[["arrival_s", "first_scheduled_s", "first_token_s", "finish_s"]] += 40.0
    found = [find_warmup([requests], closed_loop=False) for requests in (early, late)]
    assert found[0].requests == found[1].requests
    assert found[0].missing == pytest.approx(found[1].missing)


def test_a_run_shorter_than_its_warmup_is_not_warm() -> None:
    found = find_warmup([run(drawn(seed, n=400)) for seed in range(3)], closed_loop=False)
    assert (found.requests, found.is_over) == (200, False)
    assert found.shortfall(200) == pytest.approx(found.missing[200:].mean())


def test_requests_that_never_meet_need_no_warmup_and_no_memory() -> None:
    """Days between two arrivals: windows of one residence would be a hundred million."""
    found = find_warmup([run(drawn(seed, n=400), gap_s=250_000.0) for seed in range(2)], closed_loop=False)
    assert (found.requests, found.is_over) == (1, True)


def test_shortfall_is_the_mean_of_what_the_rest_misses() -> None:
    warmup = Warmup(2, True, np.array([0.5, 0.25, 0.0, 0.0]))
    assert (warmup.shortfall(0), warmup.shortfall(1), warmup.shortfall(2)) == (0.1875, 0.25 / 3, 0.0)


def served(rate_rps: float, num_requests: int, replications: int) -> ServedScenario:
    scenario = load_scenario(
        overrides=[
            f"workload.arrivals.request_rate_rps={rate_rps}",
            f"workload.num_requests={num_requests}",
            f"statistics.replications={replications}",
        ]
    )
    return serve(without_speculation(scenario))


def test_the_transient_of_the_engine_is_forgotten_as_calculated() -> None:
    done = served(50.0, 3000, 60)
    found = find_warmup([r.requests for r in done.replications[:5]], closed_loop=False)
    e2e = np.array([(r.requests["finish_s"] - r.requests["arrival_s"]).to_numpy() for r in done.replications])
    steady = e2e[:, 2200:].mean()
    for start in (200, 500, 800):
        seen = 1 - e2e[:, start : start + 200].mean() / steady
        # It errs on the long side: before the first requests end the system fills faster than they would have it.
        assert seen - 0.02 < found.missing[start : start + 200].mean() < seen + 0.1
    assert found.requests == pytest.approx(1500, abs=1)  # the half: 3,000 requests are too few here
    assert not found.is_over


def test_compared_runs_share_the_longer_cut() -> None:
    off = served(30.0, 2000, 2)
    on = serve(load_scenario(overrides=["workload.arrivals.request_rate_rps=30", "workload.num_requests=2000",
                                        "statistics.replications=2"]))  # fmt: skip
    alone = [measure([each])[0].summary["warmup_requests"][0] for each in (on, off)]
    together = [each.summary["warmup_requests"][0] for each in measure([on, off])]
    assert alone[0] < alone[1]
    assert together == [alone[1], alone[1]]
