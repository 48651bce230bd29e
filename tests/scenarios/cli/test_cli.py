"""The command line: exit codes, one-line errors, what goes to standard output, and the cutover table.

Tables and exit codes run over a stand-in for the simulator where the figures must be known;
`test_hostile_inputs.py` has bad input in a real process.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from stored_run import read_run_directory
from typer.testing import CliRunner

import draftcast
from draftcast.calibration.acceptance.metrics import read_metrics
from draftcast.errors import InputError
from draftcast.scenarios.cli import main as cli
from draftcast.scenarios.cli.options import QuestionOptions
from draftcast.scenarios.compare import comparison as comparison_module
from draftcast.scenarios.compare import verdict
from draftcast.scenarios.compare.capacity import CapacityEstimate
from draftcast.scenarios.compare.comparison import compare
from draftcast.scenarios.run.deployment import cached_deployment
from draftcast.scenarios.run.run_directory import make_manifest
from draftcast.scenarios.run.simulate import RunResult, State, front_end_work_s
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.changes import commented_scenario
from draftcast.scenarios.schema.load import load_scenario
from draftcast.scenarios.show.run_report import ENGINE, capacity_line, cutover_line
from draftcast.scenarios.show.tables import make_table, show
from draftcast.sim.statistics.intervals import Estimate, replication_interval
from draftcast.sim.workload.traces import read_trace

RATE = "workload.arrivals.request_rate_rps"
SPEC = "engine.speculative_config"
SMALL = ["--replications", "2", "--set", "workload.num_requests=60"]


@pytest.fixture
def refuse(refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """``refuse(*arguments)``: ``simulate`` in ``tmp_path`` must refuse them and write nothing. Returns the line."""
    monkeypatch.chdir(tmp_path)

    def refuse(*arguments: str) -> str:
        before = sorted(tmp_path.rglob("*"))
        line = refused("simulate", *arguments, "--out", "out/run")
        assert sorted(tmp_path.rglob("*")) == before
        return line

    return refuse


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--set", "engine.colour=red"], ["--set: engine.colour = 'red'", "unknown key", "allowed: version, model"]),
        (["--set", "workload.arrivals.request_rate_ms=4"], ["request_rate_ms = 4", "did you mean request_rate_rps?"]),
        (["--set", f"{RATE}=-1"], [f"{RATE} = -1", "must be above 0"]),
        (["--set", f"{RATE}=.nan"], ["nan", "finite"]),
        (["--set", f"{SPEC}.num_speculative_tokens=65"], ["must be at most 64", "num_speculative_tokens = 65"]),
        (["--set", "cluster.router=best"], ["'best'", "round_robin, random, least_loaded"]),
        (["--rates", "1,two"], ["--rates", "'two'", "numbers separated by commas"]),
        (["--rates", "1,-2"], ["--rates", "'-2'", "above 0"]),
        (["--speculative-config", "{"], ["--speculative-config", "not valid JSON"]),
        (["--speculative-config", "null", "--compare-off"], ["--compare-off", "no speculation to compare with"]),
        (["--seed", "-1"], ["statistics.seed = -1", "must be at least 0"]),
        (["--replications", "0"], ["statistics.replications = 0", "must be at least 1"]),
    ],
)
def test_bad_input_is_one_line_and_exit_2(refuse: Callable[..., str], arguments: list[str], parts: list[str]) -> None:
    line = refuse("default", *arguments)
    for part in parts:
        assert part in line, line


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--set", "engine.model=gpt-9"], ["--set: engine.model = 'gpt-9'", "draftcast models"]),
        (["--set", "hardware=h900"], ["h900", "h100-sxm"]),
        (["--set", "profile=none-such"], ["none-such"]),
        (["--set", "engine.model=llama-3.1-405b", "--set", f"{SPEC}.model=null"], ["memory"]),
        (["--set", "engine.max_model_len=100"], ["default: workload.lengths (request 0): prompt of", "max_model_len"]),
        (["--set", "engine.num_gpu_blocks=8"], ["--set: engine.num_gpu_blocks = 8: ", "8192 needs 513"]),
        (["--set", "policy.name=nowhere:Policy"], ["nowhere"]),
    ],
)
def test_what_does_not_exist_or_fit_is_refused(
    refuse: Callable[..., str], arguments: list[str], parts: list[str]
) -> None:
    line = refuse("default", *arguments)
    for part in parts:
        assert part in line, line


AZURE = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"", ["t.csv"]),
        (AZURE.split(b"\n")[0] + b"\n", ["t.csv"]),
        (AZURE + b"2023-11-16 18:15:50.9951690,39", ["t.csv:3"]),
        (AZURE + b"2023-11-16 18:15:50.9951690,-5,109\n", ["t.csv:3", "ContextTokens", "-5"]),
        (AZURE + b"caf\xe9 \xff,1,2\n", ["t.csv"]),
        (AZURE.decode().encode("utf-16"), ["t.csv"]),
        (AZURE + b"2023-11-16 18:15:50.9951690,900000,109\n", ["t.csv:3", "max_model_len"]),
        (None, ["t.csv"]),
    ],
    ids=["empty", "header only", "truncated", "negative", "not utf-8", "utf-16", "too long", "missing"],
)
def test_a_bad_trace_names_file_and_line(
    refuse: Callable[..., str], tmp_path: Path, content: bytes | None, parts: list[str]
) -> None:
    if content is not None:
        (tmp_path / "t.csv").write_bytes(content)
    line = refuse("default", "--trace", "t.csv")
    for part in parts:
        assert part in line, line


def test_a_place_that_is_not_a_run_is_refused_before_anything_runs(refuse: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "out/run").mkdir(parents=True)
    (tmp_path / "out/run/mine.txt").write_text("x")
    assert "a run is never written over" in refuse("default")


def test_version_and_lists(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "draftcast", "--version"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == f"draftcast {draftcast.__version__}\n"
    runner = CliRunner()
    for command, expected in (("scenarios", "default"), ("models", "Llama-3.1-8B"), ("hardware", "h100-sxm")):
        done = runner.invoke(cli.app, [command])
        assert done.exit_code == 0
        assert any(line.split()[0] == expected for line in done.output.splitlines())
        assert expected in json.loads(runner.invoke(cli.app, [command, "--json"]).stdout)


# A stand-in for the simulator: latency grows with the rate, faster with speculation, which starts at 60 % of it.
CAPACITY_OFF, CAPACITY_ON = 20.0, 10.0


def pretend(scenario: Scenario, *, progress: Any = None, record_steps: bool = False) -> RunResult:
    on = scenario.speculative_config is not None
    arrivals = scenario.workload.arrivals
    rate = getattr(arrivals, "request_rate_rps", 1.0)
    latency = 0.6 * (1 + rate / CAPACITY_ON) if on else 1 + rate / CAPACITY_OFF
    count = scenario.statistics.replications
    figures = tuple(
        {"mean_e2el_s": latency * (1 + noise), "output_throughput": 100 * rate, "mean_ttft_s": 0.1, "mean_tpot_s": 0.01}
        for noise in (0.01 * index * (2 if on else 1) for index in range(count))
    )
    if progress is not None:
        progress(1.0)
    met = None if scenario.slo is None else latency * 1e3 < (scenario.slo.e2el_ms or 0)
    state: State = "steady" if rate <= 28 else "not settled" if rate <= 30 else "overloaded"
    return RunResult(
        summary={
            "mean_e2el_s": latency,
            "figures": {name: replication_interval([each[name] for each in figures]) for name in figures[0]},
            "slo_asked": scenario.slo is not None,
            "stability": {},
            "warmup_requests": [0] * count,
            "engine": {key: 1.0 for _, key, _ in ENGINE},
        },
        requests=pd.DataFrame(
            {"request": [0], "replication": [0], "class": ["default"], "prompt_tokens": [1], "output_tokens": [1]}
            | {"arrival_s": [0.0], "time_queue_s": [0.0], "first_token_s": [0.1], "finish_s": [latency]}
        ),
        steps=pd.DataFrame({"start_s": [0.0]}) if record_steps else None,
        manifest=make_manifest(scenario, "0")
        | {"engine": {"version": "vllm 0.32", "generation": "vllm-v2-runner", "step_times": "as stated"}},
        state=state,
        slo_met=met if state != "not settled" else None,
        replications=figures,
        is_warm=False,  # so that the capacity is asked for
    )


def around(mean: float, half_width: float) -> CapacityEstimate:
    """With this interval: Student's t of two replications is 12.706 standard errors, half of what lies between them."""
    return CapacityEstimate((mean - half_width / 12.706, mean + half_width / 12.706))


def stand_in(
    monkeypatch: pytest.MonkeyPatch, run: Any = pretend, capacities: dict[bool, CapacityEstimate] | None = None
) -> None:
    """Let ``run`` stand in for the simulator, and ``capacities`` (by speculation on or off) for saturated runs.

    Its times are taken for exact: what the errors of a model do is not looked at here.
    """
    known = capacities or dict.fromkeys((True, False), around(30.0, 0.1))

    def together(scenarios: Any, *, progress: Any = None, record_steps: bool = False) -> list[RunResult]:
        return [run(scenario, progress=progress, record_steps=record_steps) for scenario in scenarios]

    def saturated(scenario: Scenario, rate_rps: float, **how: Any) -> CapacityEstimate:
        return known[scenario.speculative_config is not None]

    monkeypatch.setattr(comparison_module, "simulate_together", together)
    monkeypatch.setattr(verdict, "capacity", saturated)
    monkeypatch.setattr(verdict, "response", lambda scenario: None)


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    stand_in(monkeypatch)
    return CliRunner()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], 0),
        (["--set", "slo.e2el_ms=5000"], 0),
        (["--set", "slo.e2el_ms=1"], 3),
        (["--set", f"{RATE}=40"], 4),
        (["--set", f"{RATE}=40", "--set", "slo.e2el_ms=1"], 4),
        (["--set", f"{RATE}=29"], 5),
        (["--set", f"{RATE}=29", "--set", "slo.e2el_ms=50000"], 5),
        (["--compare-off", "--set", f"{RATE}=40"], 4),
        (["--no-compare-off", "--set", f"{RATE}=40"], 4),
        # A table of rates is an answer whatever its rows show.
        (["--rates", "4,40", "--set", "slo.e2el_ms=1"], 0),
        # Unless nothing in it has figures.
        (["--rates", "40,50"], 4),
        (["--rates", "29,40"], 5),
    ],
)
def test_exit_codes(pretended: CliRunner, arguments: list[str], code: int) -> None:
    done = pretended.invoke(cli.app, ["simulate", "default", *arguments])
    assert done.exit_code == code, done.output


def test_an_overloaded_run_names_the_capacity(pretended: CliRunner) -> None:
    done = pretended.invoke(cli.app, ["simulate", "default", "--set", f"{RATE}=40"])
    assert "OVERLOADED" in done.stdout
    assert "at most 30.00 ±7.97 req/s" in done.stdout
    exact = ["--set", "statistics.model_error=none"]
    chance = pretended.invoke(cli.app, ["simulate", "default", "--set", f"{RATE}=40", *exact])
    assert "at most 30.00 ±0.10 req/s" in chance.stdout


def test_a_run_that_is_not_settled_claims_no_objective(pretended: CliRunner) -> None:
    done = pretended.invoke(cli.app, ["simulate", "default", "--set", f"{RATE}=29", "--set", "slo.e2el_ms=50000"])
    assert "NOT SETTLED" in done.stdout
    assert "cannot be decided" in done.stdout
    assert "SLO met" not in done.stdout


def test_standard_output_is_json_only_when_asked(pretended: CliRunner) -> None:
    text = pretended.invoke(cli.app, ["simulate", "default", "--set", f"{SPEC}.revision=main"])
    assert "no effect on simulated time" in text.stderr
    assert "mean E2E" in text.stdout
    one = pretended.invoke(cli.app, ["simulate", "default", "--json", "--set", f"{SPEC}.revision=main"])
    found = json.loads(one.stdout)
    assert found["mean_e2el_s"] == pytest.approx(1.08)
    assert (found["verdict"], found["off"]["mean_e2el_s"]) == ("pays", pytest.approx(1.4))
    assert found["advantage"]["mean"] == pytest.approx(1.4 / 1.08, rel=0.02)
    alone = pretended.invoke(cli.app, ["simulate", "default", "--json", "--no-compare-off"])
    assert not {"off", "advantage", "verdict"} & set(json.loads(alone.stdout))
    table = pretended.invoke(cli.app, ["simulate", "default", "--json", "--rates", "2,20", "--compare-off"])
    answer = json.loads(table.stdout)
    assert [point["request_rate_rps"] for point in answer["points"]] == [2.0, 20.0]
    assert [point["verdict"] for point in answer["points"]] == ["pays", "pays"]


def test_the_table_shows_each_rate_off_and_on_and_the_cutover(pretended: CliRunner) -> None:
    done = pretended.invoke(cli.app, ["simulate", "default", "--rates", "20,2", "--compare-off"])
    lines = done.output.splitlines()
    rows = [[cell.strip() for cell in line.split("│")] for line in lines if line.startswith("│")]
    assert [row[1:3] for row in rows] == [["2", "off"], ["", "on"], ["20", "off"], ["", "on"]]
    assert "token goodput tok/s" in done.output
    assert "Cutover:" in done.output
    assert max(len(line) for line in lines) <= 150


def steep(scenario: Scenario, **how: Any) -> RunResult:
    """Off is 1 + r/20; on is that over an advantage of 1.5 - r/20: 1 at r = 10; on is overloaded above 18."""
    result = pretend(scenario, **how)
    if scenario.speculative_config is None:
        return result
    rate = scenario.workload.arrivals.request_rate_rps  # type: ignore[union-attr]
    off = pretend(load_scenario(overrides=[f"{RATE}={rate}"], speculative_config="null"))
    figures = tuple(
        {**row, "mean_e2el_s": row["mean_e2el_s"] / (1.5 - rate / 20) * (1 + 0.002 * (index - 2))}
        for index, row in enumerate(off.replications)
    )
    return dataclasses.replace(result, replications=figures)


def test_rates_bracket_the_cutover_and_name_no_value_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, steep, {True: around(18.5, 0.1), False: around(30.0, 0.1)})
    seen: list[float] = []
    answer = compare(load_scenario(), [14, 2, 19, 18, 6, 2], progress=seen.append)
    assert [point.request_rate_rps for point in answer.points] == [2, 6, 14, 18, 19]
    assert [point.word for point in answer.points] == ["pays", "pays", "costs", "costs", "costs"]
    assert answer.points[-1].verdict is not None
    assert answer.points[-1].verdict.why == "overloaded with speculation"
    assert answer.cutover is not None
    assert (answer.cutover.kind, answer.cutover.above, answer.cutover.below) == ("crosses", (2, 6), (14, 19))
    assert cutover_line(answer).startswith("Cutover: between 6 and 14 req/s")
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert cutover_line(compare(load_scenario(), [2, 4])).startswith("Cutover: none seen; speculation pays at every")
    assert cutover_line(compare(load_scenario(), [14, 15])).startswith(
        "Cutover: none seen; speculation pays at no rate"
    )
    assert compare(load_scenario(), compare_off=False).cutover is None
    alone = compare(load_scenario(speculative_config="null"), [2]).points[0]
    assert (alone.verdict, alone.off, alone.word) == (None, None, "steady")


@pytest.mark.parametrize(
    ("rates", "kind", "parts"),
    [
        ([4, 29], "always", ["up to 4 req/s", "Undecided: 29"]),  # not settled on both sides
        ([4, 200], "always", ["up to 4 req/s", "From 200 req/s on both sides are overloaded"]),
        ([29, 200], "unclear", ["cannot tell"]),
    ],
)
def test_what_has_no_steady_state_pays_nothing(
    monkeypatch: pytest.MonkeyPatch, rates: list[float], kind: str, parts: list[str]
) -> None:
    stand_in(monkeypatch)
    answer = compare(load_scenario(), rates)
    assert answer.cutover is not None
    assert answer.cutover.kind == kind
    for part in parts:
        assert part in cutover_line(answer)


def test_an_advantage_without_an_upper_bound_says_its_lower() -> None:
    assert show(Estimate(1.977, 0.939, math.inf, math.inf, 5)) == "1.98 (0.94 or more)"
    assert show(Estimate(1.977, 0.939, 3.0, 1.03, 5)) == "1.98 ±1.03"


def test_what_the_errors_of_step_times_leave_open_counts_as_undecided() -> None:
    """At 44 req/s chance alone says that speculation pays; the word does not, and so no sentence does."""
    exact, answer = (
        compare(load_scenario(overrides=["workload.num_requests=1500", f"statistics.model_error={errors}"]), [5, 44])
        for errors in ("none", "auto")
    )
    assert cutover_line(exact).startswith(
        "Cutover: none seen; speculation pays at every simulated rate, up to 44 req/s"
    )
    assert [point.word for point in answer.points] == ["pays", "too close to call"]
    assert answer.cutover is not None
    assert (answer.cutover.kind, answer.cutover.above) == ("unclear", (5, 5))
    line = cutover_line(answer)
    assert line.startswith("Cutover: none seen; speculation pays at every rate that is decided, up to 5 req/s")
    assert "Undecided: 44 req/s. The largest uncertainty is the step time of the engine." in line


def test_close_to_the_capacity_a_short_run_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # Every run of the stand-in looks stable, and SD pays at any rate below 20; the capacities know better.
    capacities = {True: around(10.0, 0.2), False: around(16.0, 0.2)}

    def run(scenario: Scenario, **how: Any) -> RunResult:
        near = getattr(scenario.workload.arrivals, "request_rate_rps", 0.0) == 9
        return dataclasses.replace(pretend(scenario, **how), shortfall=0.24 if near else 0.0)

    stand_in(monkeypatch, run, capacities)
    answer = compare(load_scenario(), [4, 9, 10, 11, 15.9, 17])
    words = [point.word for point in answer.points]
    assert words == ["pays", "too close to call", "too close to call", "costs", "costs", "overloaded"]
    # At 9 the advantage is 1.27, but with speculation the latency may still grow by 0.24 / (1 - 0.24) = 32 %.
    assert answer.points[1].advantage is not None
    assert answer.points[1].advantage.low > 1.2
    # Inside a capacity's interval there is no ratio.
    assert [point.advantage is None for point in answer.points] == [False, False, True, True, True, True]
    assert cutover_line(answer).startswith("Cutover: between 4 and 11 req/s")
    assert re.search(r"10.00 ±2.\d+ req/s with speculation, 16.00 ±3.\d+ req/s without", capacity_line(answer))
    known = answer.summary()["capacity_rps"]
    assert [known[name].half_width for name in ("on", "off")] == pytest.approx([0.2, 0.2], rel=1e-3)
    assert answer.summary()["capacity_rps"]["on"].mean == 10.0


def test_replications_that_do_not_differ_leave_nothing_to_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    def same(scenario: Scenario, **how: Any) -> RunResult:
        result = pretend(scenario, **how)
        return dataclasses.replace(result, replications=result.replications[:1] * 5)

    stand_in(monkeypatch, same)
    advantage = compare(load_scenario(), [2]).points[0].advantage
    assert advantage is not None
    assert advantage.low == advantage.mean == advantage.high
    assert show(advantage).endswith(" ±0.00")


def test_what_is_true_without_speculation_alone_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def noted(scenario: Scenario, **how: Any) -> RunResult:
        result = pretend(scenario, **how)
        notes = ["both"] if scenario.speculative_config is not None else ["both", "nothing is drawn at random"]
        return dataclasses.replace(result, summary=result.summary | {"notes": notes})

    stand_in(monkeypatch, noted)
    lines = CliRunner().invoke(cli.app, ["simulate", "default", "--rates", "2,4"]).stdout.splitlines()
    said = [line for line in lines if line.startswith("note: ")]
    assert said == ["note: both", "note: without speculation: nothing is drawn at random"]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--rates", "2", "--compare-off", "--plot", "p.html"], "at least two --rates"),
        (["--rates", "2,4", "--no-compare-off", "--plot", "p.html"], "at least two --rates"),
        (["--rates", "2,4", "--compare-off", "--plot", "p.bmp"], "must end in .html"),
        (["--rates", "2,4", "--compare-off", "--plot", "none/p.html"], "its folder does not exist"),
    ],
)
def test_a_plot_that_cannot_be_drawn_is_refused_before_anything_runs(
    refuse: Callable[..., str], arguments: list[str], part: str
) -> None:
    assert part in refuse("default", *arguments)


def test_runs_are_written_and_read_back(pretended: CliRunner, tmp_path: Path) -> None:
    target = tmp_path / "one"
    assert pretended.invoke(cli.app, ["simulate", "default", "--out", str(target), "--steps"]).exit_code == 0
    one = read_run_directory(target)
    assert one.steps is not None
    assert one.manifest["scenario"]["engine"]["model"] == "meta-llama/Llama-3.1-8B-Instruct"
    target = tmp_path / "table"
    done = pretended.invoke(cli.app, ["simulate", "default", "--rates", "2,4", "--compare-off", "--out", str(target)])
    assert done.exit_code == 0, done.output
    table = read_run_directory(target)
    found = {(row.request_rate_rps, row.speculation) for row in table.requests.itertuples()}
    assert found == {(2.0, "on"), (2.0, "off"), (4.0, "on"), (4.0, "off")}
    assert table.manifest["points"] == 2
    assert len(table.summary["points"]) == 2


def test_a_run_is_written_as_vllm_s_benchmark_writes_its_own(refuse: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    done = CliRunner().invoke(cli.app, ["simulate", "default", *SMALL, "--json", "--vllm-json", str(path)])
    assert done.exit_code == 0, done.output
    result = json.loads(path.read_text())
    assert result["max_concurrency"] is None
    assert result["spec_decode_num_drafts"] > 0
    assert result["spec_decode_per_position_acceptance_rates"] == sorted(
        result["spec_decode_per_position_acceptance_rates"], reverse=True
    )
    table = read_trace(path)  # the reader of vLLM's own files
    assert len(table) == result["num_prompts"]
    assert table.output_tokens.tolist() == result["output_lens"]
    assert "is of one run" in refuse("default", "--rates", "1,2", "--vllm-json", str(path))
    assert "takes one of" in refuse("default", "--json", "--vllm-json", "-")
    shown = CliRunner().invoke(cli.app, ["simulate", "default", *SMALL, "--vllm-result", "-"])
    assert json.loads(shown.stdout)["mean_tpot_ms"] == result["mean_tpot_ms"]


def test_a_run_as_prometheus_text_holds_what_the_run_holds(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    bench, metrics = tmp_path / "bench.json", tmp_path / "metrics.txt"
    exports = ["--vllm-json", str(bench), "--prometheus", str(metrics)]
    finite = ["--set", "statistics.warmup=none"]
    done = CliRunner().invoke(cli.app, ["simulate", "default", *SMALL, *finite, *exports])
    assert done.exit_code == 0, done.output
    result = json.loads(bench.read_text())
    acceptance = read_metrics(metrics)
    assert acceptance.num_drafts == result["spec_decode_num_drafts"]
    assert acceptance.rates == pytest.approx(result["spec_decode_per_position_acceptance_rates"], abs=1e-3)
    values = dict(line.rsplit(" ", 1) for line in metrics.read_text().splitlines() if not line.startswith("#"))
    labels = '{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"}'
    for name, key in (("time_to_first_token", "ttft"), ("request_time_per_output_token", "tpot")):
        total, count = (float(values[f"vllm:{name}_seconds_{part}{labels}"]) for part in ("sum", "count"))
        assert (count, 1e3 * total / count) == (result["completed"], pytest.approx(result[f"mean_{key}_ms"]))
    assert float(values[f"vllm:generation_tokens_total{labels}"]) == result["total_output_tokens"]
    # To the first token: the front end's work, the engine's queue, the prompt.
    spent = ("time_to_first_token", "request_queue_time", "request_prefill_time")
    ttft_s, queued_s, prefill_s = (float(values[f"vllm:{name}_seconds_sum{labels}"]) for name in spent)
    work_s = front_end_work_s(cached_deployment(load_scenario()), result["input_lens"]).sum()
    assert ttft_s - queued_s - prefill_s == pytest.approx(work_s, rel=1e-3)
    assert queued_s >= 0


def test_an_overloaded_run_is_written_as_vllm_s_benchmark_writes_its_own(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    overload = [*SMALL, "--set", "workload.arrivals.request_rate_rps=500", "--set", "workload.num_requests=400"]
    done = CliRunner().invoke(cli.app, ["simulate", "default", *overload, "--vllm-json", str(path)])
    assert done.exit_code == 4, done.output
    result = json.loads(path.read_text())
    assert (result["num_prompts"], result["mean_ttft_ms"], result["completed"]) == (400, None, None)


def test_a_result_file_that_cannot_be_written_is_refused_before_the_run(
    refuse: Callable[..., str], tmp_path: Path
) -> None:
    line = refuse("default", "--vllm-json", str(tmp_path / "missing" / "result.json"))
    assert "its folder does not exist" in line
    assert "not a regular file" in refuse("default", "--vllm-json", str(tmp_path))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["simulate", "default", "--replications", "abc"], "invalid value for '--replications': "),
        (["simulate"], "missing argument 'scenario' (see draftcast simulate --help)"),
        (["nothing"], "no such command 'nothing' (see draftcast --help)"),
    ],
)
def test_a_command_line_that_cannot_be_read_is_one_line(
    words: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["draftcast", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, line = capsys.readouterr()
    assert (ended.value.code, out, line.count("\n")) == (2, "", 1)
    assert line.startswith(f"draftcast: error: {says}")


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (["simulate"], "--vllm-json"),
        (["simulate"], "--prometheus"),
        (["sweep", "--grid", "k=0,1"], "--csv"),
        (["recommend"], "--out"),
    ],
)
def test_no_output_replaces_the_scenario(tmp_path: Path, command: list[str], option: str) -> None:
    scenario = tmp_path / "my.yaml"
    scenario.write_text(commented_scenario())
    done = CliRunner().invoke(cli.app, [command[0], str(scenario), *command[1:], option, str(scenario)])
    assert "is what the question is read from" in str(done.exception)
    assert scenario.read_text() == commented_scenario()


def test_figures_are_shown_with_their_half_width() -> None:
    assert show(Estimate(0.0123, 0.0119, 0.0127, 0.0004, 5), 1e3) == "12.30 ±0.40"
    assert show(Estimate(1234.5, 1200, 1270, 35.2, 5)) == "1,234 ±35"
    assert show(Estimate(2.0, float("nan"), float("nan"), float("nan"), 1)) == "2.00"
    assert show(None) == "-"


def test_the_real_simulator_answers_the_default_question(tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = CliRunner().invoke(cli.app, ["simulate", "default", *SMALL, "--json", "--out", str(out), "--steps"])
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    assert summary == read_run_directory(out).summary
    length = summary["figures"]["mean_acceptance_length"]["mean"]
    acceptance = load_scenario("default").acceptance_of()
    assert acceptance is not None
    assert length == pytest.approx(acceptance.mean_acceptance_length(3), rel=0.1)
    table = CliRunner().invoke(cli.app, ["simulate", "default", *SMALL, "--rates", "1,2", "--compare-off"])
    assert table.exit_code == 0, table.output
    assert "pays" in table.output


@pytest.mark.parametrize(
    "arguments",
    [["simulate"], ["compare", "--policies", "off,fixed"], ["cutover", "--at", "8", "--budget", "500"]],
    ids=lambda arguments: arguments[0],
)
def test_an_assumed_draft_head_is_said_in_text_and_json(arguments: list[str]) -> None:
    """A head that nobody knows is taken to have a shape, and every answer says which."""
    said = "draft head somebody/a-head is not known: assumed the shape of llama3-8B-eagle3: 1 layer"
    short = ["--set", "workload.lengths={prompt_tokens: 64, output_tokens: 16}"]
    asked = [*arguments, "default", *SMALL, *short, "--set", f"{SPEC}.model=somebody/a-head"]
    for output in ([], ["--json"]):
        shown = CliRunner().invoke(cli.app, asked + output)
        assert said in " ".join(shown.output.split()), shown.output
    known = CliRunner().invoke(cli.app, [*asked[:-2], "--json"])
    assert '"notes": ' in known.output
    assert "assumed the shape" not in known.output


@pytest.mark.parametrize("option", ["seed", "replications"])
def test_a_bad_number_of_an_option_names_the_option(option: str) -> None:
    done = CliRunner().invoke(cli.app, ["simulate", "default", f"--{option}", "-1"])
    assert isinstance(done.exception, InputError)
    assert str(done.exception).startswith(f"--{option}: statistics.{option} = -1: must be at least ")


@pytest.mark.parametrize("command", ["simulate", "compare", "cutover", "recommend"])
def test_an_error_found_later_names_where_its_key_was_given(command: str, tmp_path: Path) -> None:
    asked = [command, "default", "--set", f"engine.model={tmp_path}"]
    done = CliRunner().invoke(cli.app, asked)
    assert str(done.exception).startswith(f"--set: engine.model = '{tmp_path}': a folder without a config.json")
    drafts = '{"method": "eagle3", "num_speculative_tokens": 3}'
    start = f"vllm serve {tmp_path} --speculative-config '{drafts}'"
    done = CliRunner().invoke(cli.app, [command, "default", "--serve-command", start])
    assert str(done.exception).startswith(f"--serve-command: engine.model = '{tmp_path}': ")


@pytest.mark.usefixtures("rough_capacity")
def test_policies_none_of_which_keeps_up_end_with_4() -> None:
    overload = [*SMALL, "--set", f"{RATE}=500", "--set", "workload.num_requests=400", "--policies", "fixed,off"]
    done = CliRunner().invoke(cli.app, ["compare", "default", *overload])
    assert done.exit_code == 4, done.output
    assert "No policy has figures" in done.stdout


def test_text_in_square_brackets_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """A path may hold it; rich takes it for a colour, and ``:fire:`` for a picture."""
    name = "/models/a[b]c:fire:"
    parts = (f"{name} on h100-sxm", make_table([["model"], [name]], title=name))
    QuestionOptions(scenario="default").print_answer(load_scenario(), dict, parts)
    assert capsys.readouterr().out.count(name) == 3
