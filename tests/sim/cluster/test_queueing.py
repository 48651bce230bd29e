"""Closed forms of queueing theory, through the whole simulator: scenario, workload, cluster, engine, statistics.

One slot (``max_num_seqs`` 1) makes a replica a single server. Two constructions give it an exact service time:

- A profile of a constant step, one prompt and one output token: a request takes one step. M/D/1.
- A profile that costs by the row alone, one output token: a request takes its prompt tokens, drawn from an exponential
  distribution of mean 1,000,000 and rounded. The rounding changes E[S] and E[S^2] by less than 1e-6. M/M/1.

and one in which service is made of steps, as in decoding: a constant step and a geometric number of output tokens, each
of which takes one step. Its second moment is known, so the formula of Pollaczek and Khinchine is exact.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from request_checks import littles_law

from draftcast import RunResult, load_scenario, simulate
from draftcast.calibration.profile.engines import generation_of
from draftcast.sim.statistics.intervals import replication_interval

STEP_S = 0.01
MEAN_PROMPT_TOKENS = 1e6
Run = Callable[..., RunResult]


def pollaczek_khinchine(rate_rps: float, mean_s: float, second_moment_s2: float) -> float:
    """Mean wait of M/G/1 (Kleinrock 1975, equation 5.70)."""
    return rate_rps * second_moment_s2 / (2 * (1 - rate_rps * mean_s))


@pytest.fixture(scope="module")
def single_server(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Simulate a single server: ``single_server(rate_rps, prompt, output, step_s=, row_s=, ...)``."""
    folder: Path = tmp_path_factory.mktemp("profiles")

    def run(
        rate_rps: float,
        prompt_tokens: Any = 1,
        output_tokens: Any = 1,
        *,
        step_s: float = STEP_S,
        row_s: float = 0.0,
        num_requests: int = 2000,
        replications: int = 10,
        seed: int = 0,
        record_steps: bool = False,
    ) -> RunResult:
        longest = 50_000_000
        model = folder / "config.json"
        if not model.exists():
            facts = json.loads(Path(str(files("draftcast"))).joinpath("kernels/models/Llama-3.1-8B.json").read_text())
            model.write_text(json.dumps(facts | {"max_position_embeddings": longest}))
        profile = folder / f"step-{step_s}-row-{row_s}.yaml"
        if not profile.exists():
            facts = {
                "schema_version": 1,
                "kind": "affine",
                "name": "exact",
                "model": str(model).lower(),
                "hardware": "h100-sxm",
                "tp": 1,
                "dtype": "bf16",
                "date": "2026-11-21",
                "source": "made up: service times of a textbook queue",
                "fitted_sequences": [1, 1],
                "target": {"fixed_s": step_s, "row_s": row_s, "kv_token_s": 0.0},
                "draft": {"fixed_s": 0.0, "draft_token_s": 0.0, "kv_token_s": 0.0, "methods": {}},
                "ngram": {"fraction_of_target": 0.0, "methods": {}},
                "overhead_s": 0.0,
            }
            profile.write_text(yaml.safe_dump(facts))
        scenario = {
            "schema_version": 1,
            "engine": {
                "model": str(model),
                "max_num_seqs": 1,
                "max_num_batched_tokens": longest,
                "max_model_len": longest,
                "num_gpu_blocks": longest // 16 + 2,
                "enable_prefix_caching": False,
            },
            "hardware": "h100-sxm",
            "profile": str(profile),
            "workload": {
                "arrivals": {"process": "poisson", "request_rate_rps": rate_rps},
                "num_requests": num_requests,
                "lengths": {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens},
            },
            "statistics": {"replications": replications, "seed": seed},
        }
        return simulate(load_scenario(scenario), record_steps=record_steps)

    return run


def check_wait(result: RunResult, exact_s: float, mean_service_s: float, rate_rps: float) -> None:
    """The mean wait and E2E time lie inside their 95 % intervals, and these are narrow enough to tell."""
    figures = result.summary["figures"]
    wait, e2e = figures["mean_queue_time_s"], figures["mean_e2el_s"]
    assert wait.contains(exact_s), (wait, exact_s)
    assert wait.half_width < 0.08 * wait.mean
    assert e2e.contains(exact_s + mean_service_s), (e2e, exact_s + mean_service_s)
    assert figures["request_throughput"].contains(rate_rps)
    assert result.state != "overloaded"


@pytest.mark.parametrize("rho", [0.3, 0.7, 0.85])
def test_md1_wait(single_server: Run, rho: float) -> None:
    rate_rps = rho / STEP_S
    # Deterministic service: E[S^2] = STEP_S^2, so W = rho / (2 (1 - rho)) steps.
    exact_s = pollaczek_khinchine(rate_rps, STEP_S, STEP_S**2)
    assert exact_s == pytest.approx(rho / (2 * (1 - rho)) * STEP_S)
    check_wait(single_server(rate_rps, num_requests=6000), exact_s, STEP_S, rate_rps)


@pytest.mark.parametrize("rho", [0.5, 0.75])
def test_mm1_wait(single_server: Run, rho: float) -> None:
    rate_rps = rho / STEP_S
    prompt = {"distribution": "exponential", "mean": MEAN_PROMPT_TOKENS}
    result = single_server(rate_rps, prompt, step_s=0.0, row_s=STEP_S / MEAN_PROMPT_TOKENS, num_requests=10_000)
    # Exponential service: E[S^2] = 2 E[S]^2, so W = rho / (1 - rho) E[S].
    exact_s = rho / (1 - rho) * STEP_S
    assert exact_s == pytest.approx(pollaczek_khinchine(rate_rps, STEP_S, 2 * STEP_S**2))
    check_wait(result, exact_s, STEP_S, rate_rps)
    # The time in an M/M/1 system is itself exponential, with the mean wait plus service: p99 = mean x ln 100.
    assert result.summary["figures"]["p99_e2el_s"].contains((exact_s + STEP_S) * math.log(100))


def test_geometric_decoding_wait(single_server: Run) -> None:
    rho, mean_tokens = 0.6, 40
    rate_rps = rho / (mean_tokens * STEP_S)
    result = single_server(rate_rps, 1, {"distribution": "geometric", "mean": mean_tokens}, num_requests=4000)
    # N geometric on 1, 2, ... with mean m: E[N^2] = 2 m^2 - m (M/M/1 has 2 m^2).
    exact_s = pollaczek_khinchine(rate_rps, mean_tokens * STEP_S, (2 * mean_tokens**2 - mean_tokens) * STEP_S**2)
    check_wait(result, exact_s, mean_tokens * STEP_S, rate_rps)


def test_intervals_cover_the_known_mean(single_server: Run) -> None:
    """400 independent trials of the default way to run: replications, automatic warm-up, Student's t at 95 %."""
    rho, trials = 0.5, 400
    exact_s = rho / (2 * (1 - rho)) * STEP_S
    covered = 0
    for trial in range(trials):
        result = single_server(rho / STEP_S, num_requests=1000, replications=5, seed=trial)
        covered += result.summary["figures"]["mean_queue_time_s"].contains(exact_s)
    assert 0.92 <= covered / trials <= 0.98


@pytest.mark.parametrize("rho", [0.4, 0.8])
def test_utilisation_is_rho(single_server: Run, rho: float) -> None:
    result = single_server(rho / STEP_S, num_requests=4000, record_steps=True)
    assert result.steps is not None
    busy_s = result.steps.groupby("replication")["target_s"].sum()
    span_s = result.requests.groupby("replication")["arrival_s"].max()  # a steady run's steps end with its window
    assert replication_interval((busy_s / span_s).to_numpy()).contains(rho)
    # An M/D/1 server finds work with probability rho: as many requests wait (Poisson arrivals see time averages).
    waited = (result.requests["time_queue_s"] > 1e-12).groupby(result.requests["replication"]).mean()
    assert replication_interval(waited.to_numpy()).contains(rho)


def test_littles_law_of_one_server(single_server: Run) -> None:
    rho = 0.8
    result = single_server(rho / STEP_S, num_requests=6000)
    laws = [littles_law(run) for _, run in result.requests.groupby("replication")]
    assert max(law.relative_gap for law in laws) < 1e-9
    # L = lambda W with the closed form of W: rho + rho^2 / (2 (1 - rho)).
    assert replication_interval([law.in_system for law in laws]).contains(rho + rho**2 / (2 * (1 - rho)))


@pytest.mark.parametrize("spec", [{"method": "eagle3", "num_speculative_tokens": 3}, None])
def test_littles_law_of_a_batching_engine(spec: dict[str, Any] | None) -> None:
    """L counted by the engine, step by step, is the arrival rate times the mean of what the requests report."""
    overrides = ["workload.arrivals.request_rate_rps=20", "workload.num_requests=3000", "statistics.replications=1"]
    overrides += ["cluster.replicas=2", "statistics.warmup=none"]
    scenario = load_scenario("default", overrides=overrides, speculative_config=spec or "null")
    result = simulate(scenario, record_steps=True)
    assert result.steps is not None
    # The engine counts a request from when its front end hands it over.
    constants = generation_of("vllm 0.32").constants
    late_s = constants.front_end_request_s.value + constants.front_end_token_s.value * result.requests["prompt_tokens"]
    law = littles_law(result.requests.assign(arrival_s=result.requests["arrival_s"] + late_s), result.steps)
    assert law.in_system > 5
    assert law.relative_gap < 0.02
    assert law.rate_rps == pytest.approx(20, rel=0.1)


def test_overload_is_called_unstable(single_server: Run) -> None:
    result = single_server(1.1 / STEP_S, num_requests=3000, replications=5)
    assert result.state == "overloaded"
    # The capacity of a server that takes one step a request.
    assert result.summary["stability"]["largest_stable_rate_rps"] == pytest.approx(1 / STEP_S, rel=0.02)
    assert all(math.isnan(figure.mean) for figure in result.summary["figures"].values())
    stable = single_server(0.9 / STEP_S, num_requests=3000, replications=5)
    assert stable.state != "overloaded"
    assert stable.summary["stability"]["largest_stable_rate_rps"] is None
    assert "p99_e2el_s" in stable.summary["figures"]


def test_waits_in_an_overloaded_queue_grow_by_the_excess(single_server: Run) -> None:
    """At rho > 1 the n-th wait grows by (rho - 1) seconds per second of arrivals, whatever the seed."""
    result = single_server(1.25 / STEP_S, num_requests=4000, replications=1)
    slope = np.polyfit(result.requests["arrival_s"], result.requests["time_queue_s"], 1)[0]
    # The slope is rho - 1 in the mean; arrivals scatter it by rho / sqrt(n), the fit by a tenth more.
    assert slope == pytest.approx(0.25, abs=3 * 1.1 * 1.25 * math.sqrt(1 / 4000))
