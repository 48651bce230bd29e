"""Calibrated to runs without speculation: hidden factors are found again, and the forecast of on and off follows."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import draftcast
from draftcast.calibration.live.off_runs import OffRun
from draftcast.errors import InputError, ScenarioError
from draftcast.scenarios.cli.main import app
from draftcast.scenarios.live.calibrate_to import calibrate_to, off_scenario
from draftcast.scenarios.run.deployment import deploy
from draftcast.scenarios.run.simulate import RunResult, simulate_together
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import (
    dump_scenario,
    load_scenario,
    scenario_hash,
    to_mapping,
    with_values,
    without_speculation,
)
from draftcast.scenarios.show.run_report import vllm_bench_result

SCENARIO = load_scenario("default")
OWN = {"model": SCENARIO.engine.model, "hardware": SCENARIO.hardware}


def closed(clients: int) -> dict[str, Any]:
    return {"process": "closed_loop", "concurrency": clients}


def poisson(rate: float) -> dict[str, Any]:
    return {"process": "poisson", "request_rate_rps": rate}


def hidden(
    arrivals: Mapping[str, Any], factors: Mapping[str, Any], requests: int = 300, scenario: Scenario = SCENARIO
) -> tuple[Scenario, RunResult]:
    """A run without speculation on an engine that is slower than the forecast by ``factors``."""
    values = {
        "workload.arrivals": dict(arrivals),
        "workload.num_requests": requests,
        "statistics.replications": 1,
        "statistics.seed": 77,
        "statistics.warmup": "none",
        "correction": {"source": "hidden", **OWN, "hardware": scenario.hardware, **factors},
    }
    scenario = with_values(without_speculation(scenario), values)
    return scenario, simulate_together([scenario], record_steps=True)[0]


def measured(
    file: Path,
    arrivals: Mapping[str, Any],
    factors: Mapping[str, Any],
    requests: int = 300,
    scenario: Scenario = SCENARIO,
) -> Path:
    file.write_text(json.dumps(vllm_bench_result(*hidden(arrivals, factors, requests, scenario))))
    return file


def inside(interval: tuple[float, float] | None, value: float) -> bool:
    return interval is not None and interval[0] <= value <= interval[1]


@pytest.mark.parametrize("arrivals", [closed(16), closed(1), poisson(12.0), poisson(30.0)])
@pytest.mark.parametrize("factor", [0.8, 1.3])
def test_a_hidden_factor_is_found_within_its_interval(tmp_path: Path, arrivals: dict[str, Any], factor: float) -> None:
    file = measured(tmp_path / "off.json", arrivals, {"step_factor": factor, "front_end_s": 0.02})
    found = calibrate_to(SCENARIO, file).correction
    assert found is not None
    assert inside(found.step_factor_interval, factor)
    assert found.step_factor == pytest.approx(factor, rel=0.05)
    assert inside(found.front_end_s_interval, 0.02)
    assert (found.source, found.runs, found.step_s) == ("off.json", 1, 0.0)


@pytest.mark.parametrize(
    ("hardware", "least", "most"), [("h200", 1.015, 1.03), ("h20", 1.03, 1.045)], ids=["h200", "h20"]
)
def test_what_two_runs_differ_by_is_followed_where_forecasts_are_less_sure(
    tmp_path: Path, hardware: str, least: float, most: float
) -> None:
    """Kernels of an H200 were measured, of an H20 none; a tenth more is followed on either."""
    scenario = with_values(SCENARIO, {"hardware": hardware})
    for more, low, high in ((1.03, least, most), (1.13, 1.11, 1.14)):
        file = measured(tmp_path / "off.json", closed(8), {"step_factor": more}, 200, scenario)
        found = calibrate_to(scenario, file).correction
        assert found is not None
        assert low < found.step_factor < high


def test_several_loads_tell_a_factor_from_fixed_seconds(tmp_path: Path) -> None:
    factors = {"step_factor": 1.1, "step_s": 0.002, "front_end_s": 0.03}
    files = [measured(tmp_path / f"{c}.json", closed(c), factors, max(40, 3 * c)) for c in (1, 32, 128)]
    found = calibrate_to(SCENARIO, files).correction
    assert found is not None
    assert found.step_factor == pytest.approx(1.1, rel=0.06)
    assert found.step_s == pytest.approx(0.002, rel=0.4)
    assert inside(found.step_factor_interval, 1.1)
    assert inside(found.step_s_interval, 0.002)
    assert (found.loads, found.runs) == ("1 client, 32 clients, 128 clients", 3)
    one = calibrate_to(SCENARIO, files[0]).correction
    assert one is not None
    assert one.step_s_interval is None


def test_the_calibrated_forecast_is_the_measurement(tmp_path: Path) -> None:
    file = measured(tmp_path / "off.json", closed(16), {"step_factor": 1.25, "front_end_s": 0.02})
    calibrated = calibrate_to(SCENARIO, file)
    other = {"workload.arrivals": closed(48), "workload.num_requests": 300, "statistics.warmup": "none"}
    on, off = simulate_together([with_values(s, other) for s in (calibrated, without_speculation(calibrated))])
    truth = {"correction": {"source": "hidden", **OWN, "step_factor": 1.25, "front_end_s": 0.02}}
    wanted = simulate_together([with_values(s, {**other, **truth}) for s in (SCENARIO, without_speculation(SCENARIO))])
    for run, true in zip((on, off), wanted, strict=True):
        for name in ("mean_tpot_s", "mean_e2el_s"):
            assert run.summary["figures"][name].mean == pytest.approx(true.summary["figures"][name].mean, rel=0.02)


def test_a_front_end_is_seen_by_the_client_alone() -> None:
    (plain,) = simulate_together([with_values(SCENARIO, {"workload.num_requests": 300})])
    slower = {"correction": {"source": "x", **OWN, "step_factor": 1.0, "front_end_s": 0.1}}
    (behind,) = simulate_together([with_values(SCENARIO, {"workload.num_requests": 300, **slower})])
    added = behind.requests["first_token_s"] - behind.requests["arrival_s"]
    added -= plain.requests["first_token_s"] - plain.requests["arrival_s"]
    assert added.to_numpy() == pytest.approx(0.1)
    assert (behind.requests["arrival_s"] - plain.requests["arrival_s"]).abs().max() < 1e-9
    parts = behind.requests.filter(like="time_").sum(axis=1)
    assert parts.to_numpy() == pytest.approx((behind.requests["finish_s"] - behind.requests["arrival_s"]).to_numpy())
    # A client of a closed loop sends its next request after the answer, front end and all.
    loop = {"workload.arrivals": closed(4), "workload.num_requests": 40}
    runs = simulate_together([with_values(SCENARIO, {**loop, **more}) for more in ({}, slower)])
    fewer = [run.summary["figures"]["request_throughput"].mean for run in runs]
    assert fewer[1] < 0.95 * fewer[0]


def engine_log(file: Path, factor: float) -> Path:
    _, run = hidden(closed(32), {"step_factor": factor}, 200)
    assert run.steps is not None
    lines, began, blocks = [], datetime(2026, 11, 1), int(run.summary["engine"]["num_gpu_blocks"])
    lines.append(f"INFO 11-01 00:00:00 GPU KV cache size: {16 * blocks:,} tokens")
    for number, step in enumerate(run.steps.itertuples()):
        stamp = (began + timedelta(seconds=step.start_s + step.duration_s)).strftime("%m-%d %H:%M:%S.%f")
        decoding = step.num_tokens - step.prefill_tokens
        lines.append(
            f"INFO {stamp} Engine 000: Iteration({number}): {step.num_seqs - decoding} context requests, "
            f"{step.prefill_tokens} context tokens, {decoding} generation requests, {decoding} generation tokens, "
            f"iteration elapsed time: {1e3 * step.duration_s:.2f} ms, "
            f"GPU KV cache usage: {100 * step.kv_used_blocks / blocks:.3f}%"
        )
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.mark.parametrize("factor", [0.8, 1.3])
def test_an_engine_log_is_compared_step_by_step(tmp_path: Path, factor: float) -> None:
    found = calibrate_to(SCENARIO, engine_log(tmp_path / "server.log", factor)).correction
    assert found is not None
    assert found.step_factor == pytest.approx(factor, rel=0.02)
    assert inside(found.step_factor_interval, factor)
    assert found.front_end_s_interval is None
    assert "logged steps" in found.loads


def metrics_text(run: RunResult, model: str) -> str:
    figures, requests = run.summary["figures"], run.requests
    means = {
        "time_to_first_token_seconds": figures["mean_ttft_s"].mean,
        "request_time_per_output_token_seconds": figures["mean_tpot_s"].mean,
        "request_prompt_tokens": requests["prompt_tokens"].mean(),
        "request_generation_tokens": requests["output_tokens"].mean(),
    }
    lines = []
    for name, mean in means.items():
        label = f'{{model_name="{model}"}}'
        lines += [f"vllm:{name}_sum{label} {mean * len(requests)}", f"vllm:{name}_count{label} {len(requests)}"]
    return "\n".join(lines)


def test_counters_take_the_scenarios_load(tmp_path: Path) -> None:
    arrivals = SCENARIO.workload.arrivals.model_dump(mode="json")
    _, run = hidden(arrivals, {"step_factor": 1.2}, 1000)
    file = tmp_path / "metrics.txt"
    file.write_text(metrics_text(run, SCENARIO.engine.model))
    few = with_values(SCENARIO, {"workload.num_requests": 1000})
    found = calibrate_to(few, file).correction
    assert found is not None
    assert inside(found.step_factor_interval, 1.2)
    assert found.loads == "the scenario's load"
    with pytest.raises(
        InputError, match=r"cluster\.replicas = 2: counters hold no load, and the scenario's is that of"
    ):
        calibrate_to(with_values(few, {"cluster.replicas": 2}), file)
    longer = with_values(few, {"workload.lengths.output_tokens": 400})
    with pytest.raises(InputError, match="counters hold no load"):
        calibrate_to(longer, file)
    assert calibrate_to(few, [file, str(file)]).correction == found  # one measurement
    lines = file.read_text().splitlines()
    file.write_text("\n".join(line.replace("{", f'{{engine="{rank}",') for rank in "01" for line in lines))
    with pytest.raises(InputError, match=r"engine\.data_parallel_size = 1: counters hold no load, and these are of 2"):
        calibrate_to(few, file)


def test_refusals(tmp_path: Path) -> None:
    file = measured(tmp_path / "off.json", closed(8), {"step_factor": 1.0}, 40)
    result = json.loads(file.read_text())
    file.write_text(json.dumps(result | {"mean_tpot_ms": 4 * result["mean_tpot_ms"]}))
    with pytest.raises(InputError, match=r"took 4\.\d\d x the forecast.*quantization"):
        calibrate_to(SCENARIO, file)
    file.write_text(json.dumps(result | {"model_id": "Qwen/Qwen3-8B"}))
    with pytest.raises(InputError, match="another model"):
        calibrate_to(SCENARIO, file)
    empty = tmp_path / "empty.json"
    empty.write_text("[]")
    with pytest.raises(InputError, match="holds no run"):
        calibrate_to(SCENARIO, empty)
    with pytest.raises(InputError, match="no such file"):
        calibrate_to(SCENARIO, tmp_path / "nothing.json")
    log = engine_log(tmp_path / "server.log", 1.0)
    with pytest.raises(InputError, match="not both"):
        calibrate_to(SCENARIO, [log, measured(file, closed(8), {"step_factor": 1.0}, 40)])
    drafting = tmp_path / "spec.log"
    config = "speculative_config=SpeculativeConfig(method='eagle3', num_spec_tokens=3)"
    drafting.write_text(f"LLM engine (v0.32.0) with config: {config}\n{log.read_text()}")
    with pytest.raises(InputError, match="with speculation"):
        calibrate_to(SCENARIO, drafting)
    drafting.write_text(
        f"LLM engine (v0.32.0) with config: model='Qwen/Qwen3-8B', speculative_config=None\n{log.read_text()}"
    )
    with pytest.raises(InputError, match=r"spec\.log: model = 'Qwen/Qwen3-8B': was measured on another model"):
        calibrate_to(SCENARIO, drafting)


def test_a_range_is_of_one_rank_of_a_server() -> None:
    counted = OffRun("range.json", "", 100, {}, {}, poisson(2.0), None, None, per_engine=True)
    two = with_values(SCENARIO, {"engine.data_parallel_size": 2})
    for scenario, run, rate, requests in (
        (SCENARIO, counted, 2.0, 100),
        (two, counted, 4.0, 200),
        (two, dataclasses.replace(counted, per_engine=False), 2.0, 100),
    ):
        off = off_scenario(scenario, run)
        assert (off.rate_rps, off.workload.num_requests) == (rate, requests)


def test_a_correction_is_of_one_engine() -> None:
    correction = {"source": "off.json", **OWN, "step_factor": 1.1}
    calibrated = with_values(SCENARIO, {"correction": correction})
    others = (("hardware", "h200"), ("engine.quantization", "fp8"), ("engine.tensor_parallel_size", 2),
              ("engine.pipeline_parallel_size", 2), ("engine.data_parallel_size", 2))  # fmt: skip
    for key, value in others:
        with pytest.raises(ScenarioError, match=r"correction\.\w+.*calibrate to a run of this engine"):
            deploy(with_values(calibrated, {key: value}))
    deploy(with_values(calibrated, {"hardware": "h100", "correction.hardware": "H100-SXM"}))  # names of one device
    with pytest.raises(ScenarioError, match="calibrate again"):
        deploy(with_values(calibrated, {"correction.profile_checksum": "0" * 64}))
    for bad in ({"step_factor": 2.5}, {"step_factor": 1.0, "step_s": -1}, {"step_factor_interval": [1.2, 1.3]}):
        with pytest.raises(ScenarioError, match="correction"):
            with_values(SCENARIO, {"correction": correction | bad})


def test_the_record_goes_with_the_scenario() -> None:
    """A manifest repeats the run without the measured file; what is not calibrated reads as it did before."""
    assert "correction" not in to_mapping(SCENARIO)
    calibrated = with_values(SCENARIO, {"correction": {"source": "off.json", **OWN, "step_factor": 1.1}})
    (run,) = simulate_together([with_values(calibrated, {"workload.num_requests": 50})])
    assert run.manifest["scenario"]["correction"]["step_factor"] == 1.1
    assert run.summary["correction"]["source"] == "off.json"
    assert load_scenario(to_mapping(calibrated)) == calibrated
    assert "step_factor: 1.1" in dump_scenario(calibrated)
    assert scenario_hash(calibrated) != scenario_hash(SCENARIO)


def test_commands_say_what_they_are_calibrated_to(tmp_path: Path) -> None:
    file = measured(tmp_path / "off.json", closed(8), {"step_factor": 1.3}, 80)
    small = ["--replications", "2", "--set", "workload.num_requests=200"]
    for command in (["simulate", "--no-compare-off"], ["recommend", "--max-k", "1"]):
        shown = CliRunner().invoke(app, [command[0], "default", *command[1:], *small, "--calibrate-to", str(file)])
        assert "calibrated to off.json (8 clients): step time x 1.29" in shown.output, shown.output
        printed = CliRunner().invoke(
            app, [command[0], "default", *command[1:], *small, "--calibrate-to", str(file), "--json"]
        )
        found = json.loads(printed.stdout[printed.stdout.index("{") :])["correction"]
        assert found["step_factor"] == pytest.approx(1.3, rel=0.03)
    plain = CliRunner().invoke(app, ["simulate", "default", "--no-compare-off", *small])
    assert "calibrated" not in plain.output


def test_public_name() -> None:
    assert draftcast.calibrate_to is calibrate_to
    assert dataclasses.is_dataclass(RunResult)
