"""Capacity plans: a cluster whose capacity is known by hand, candidates, prices, energy, and what is infeasible."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from paths import ROOT
from samples import SHORT_REQUESTS
from typer.testing import CliRunner

from draftcast.errors import InputError
from draftcast.scenarios.cli import main as cli
from draftcast.scenarios.cli.options import parse_prices
from draftcast.scenarios.compare.capacity import capacity
from draftcast.scenarios.compare.comparison import simulate
from draftcast.scenarios.compare.metric import Price
from draftcast.scenarios.compare.model_error import setting_error
from draftcast.scenarios.compare.verdict import Side
from draftcast.scenarios.plan.question import GIVEN, Objective, PlanQuestion, candidates, mean_rate, parse_objectives
from draftcast.scenarios.plan.search import (
    STEADY_STATE,
    Constraint,
    LoadCheck,
    SimulatedCluster,
    check_load,
    cluster_scenario,
)
from draftcast.scenarios.plan.sizing import (
    SHARES,
    CapacityPlan,
    SizedCandidate,
    curve_frame,
    goodput_curve,
    plan,
    with_prices,
)
from draftcast.scenarios.run.choices import OFF
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import load_scenario, with_rate, with_values
from draftcast.scenarios.show.plan_report import answer_line, basis_line, goodput_figure, plan_rows

pytestmark = pytest.mark.usefixtures("rough_capacity")
STEP_S = 0.01
SPEC = "engine.speculative_config"
SMALL = ("workload.num_requests=200", "statistics.replications=2")
SHORT = f"workload.lengths={SHORT_REQUESTS}"
DEAR = Price(1.0, "2026-11-01")
LAX = parse_objectives("e2el:p95<15ms")


def planned(scenario: Scenario, **question: Any) -> CapacityPlan:
    """The plan of a question whose parts are given by name."""
    return plan(PlanQuestion(scenario, **question))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Scenario]:
    """One request a step and a step of 10 ms: a replica serves 100 requests/s, and no queue below that."""
    profile = tmp_path_factory.mktemp("plan") / "constant.yaml"
    facts = {
        "schema_version": 1, "kind": "affine", "name": "constant", "model": "llama-3.1-8b", "hardware": "h100-sxm",
        "tp": 1, "dtype": "bf16", "date": "2026-11-21", "source": "made up", "fitted_sequences": [1, 1],
        "target": {"fixed_s": STEP_S, "row_s": 0.0, "kv_token_s": 0.0},
        "draft": {"fixed_s": 0.0, "draft_token_s": 0.0, "kv_token_s": 0.0, "methods": {}},
        "ngram": {"fraction_of_target": 0.0, "methods": {}}, "overhead_s": 0.0,
    }  # fmt: skip
    profile.write_text(yaml.safe_dump(facts))

    def build(*overrides: str) -> Scenario:
        changes = [
            f"{SPEC}=null", f"profile={profile}", "engine.max_num_seqs=1", "engine.num_gpu_blocks=1000",
            "workload.arrivals={process: deterministic, request_rate_rps: 50}",
            "workload.lengths={prompt_tokens: 8, output_tokens: 1}", *SMALL,
        ]  # fmt: skip
        return load_scenario(overrides=[*changes, *overrides])

    return build


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ttft:p95<500ms;tpot:p95<30ms", [("ttft", "p95", 0.5), ("tpot", "p95", 0.03)]),
        (" e2e : mean <= 2s , queue:median<1.5ms;", [("e2el", "mean", 2.0), ("queue_time", "median", 0.0015)]),
        ("itl:p99<1e2ms", [("itl", "p99", 0.1)]),
    ],
)
def test_objectives_are_read(text: str, expected: list[tuple[str, str, float]]) -> None:
    found = [(each.metric, each.statistic, each.limit_s) for each in parse_objectives(text)]
    assert found == [(metric, statistic, pytest.approx(limit)) for metric, statistic, limit in expected]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ttft<500ms", "'ttft<500ms': must look like ttft:p95<500ms"),
        ("ttft:p95<500", "must look like"),
        ("speed:p95<5ms", "unknown metric speed; choose from ttft, tpot"),
        ("ttft:p98<5ms", "unknown statistic p98; choose from mean"),
        ("ttft:p95<0ms", "must be a number above 0"),
        ("ttft:p95<1e999s", "must be a number above 0"),
        ("ttft:p95<.ms", "must be a number above 0"),
        ("ttft:p95<5ms;ttft:p95<6ms", "given twice"),
        (" ; ", "holds no objective"),
    ],
)
def test_bad_objectives_are_named(text: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        parse_objectives(text)
    assert str(caught.value).startswith("--slo: ")


def test_the_largest_rate_and_the_replicas_are_those_of_paper(server: Callable[..., Scenario]) -> None:
    answer = planned(server(), rate_rps=350.0, objectives=LAX)
    best = answer.best
    assert best is not None
    assert (best.replicas, best.num_gpus, best.candidate.label) == (4, 4, "h100-sxm tp 1 off")
    assert best.largest is not None
    assert 0.97 * 400.0 < best.largest.met <= 400.0 <= best.largest.not_met < 1.03 * 400.0
    assert best.largest.not_met / best.largest.met <= 1.02
    assert best.headroom == pytest.approx(best.largest.met / 350.0 - 1.0)
    assert best.check is not None
    assert best.check.tightest.value == pytest.approx(STEP_S)
    assert best.check.tightest.used == pytest.approx(STEP_S / 0.015)
    assert best.largest.limit is not None


def test_every_knob_of_a_plan_changes_it(server: Callable[..., Scenario]) -> None:
    def gpus(**knobs: Any) -> int:
        best = planned(server(), **{"rate_rps": 350.0, "objectives": LAX, **knobs}).best
        return best.num_gpus if best is not None else 0

    assert gpus() == 4
    assert gpus(rate_rps=50.0) == 1
    assert gpus(rate_rps=None) == 1  # the scenario's own 50
    assert gpus(headroom=0.2) == 5
    assert gpus(spare=2) == 6
    assert gpus(max_gpus=3) == 0
    assert gpus(objectives=parse_objectives("e2el:p95<9ms")) == 0
    loose = planned(server(), rate_rps=50.0, objectives=LAX, tolerance=0.3).best
    assert loose is not None
    assert loose.largest is not None
    assert 1.05 < loose.largest.not_met / loose.largest.met <= 1.3


def test_energy_and_cost_are_arithmetic(server: Callable[..., Scenario]) -> None:
    prices = {"h100": Price(3.0, "2026-11-01")}
    best = planned(server(), rate_rps=150.0, objectives=LAX, prices=prices, spare=1).best
    assert best is not None
    # 3 boards of 700 W, 150 tokens/s: 14 J a token. 9 an hour for 540,000 tokens.
    assert best.num_gpus == 3
    assert best.kwh_per_million_tokens == pytest.approx(14e6 / 3.6e6)
    assert best.cost_per_hour == pytest.approx(9.0)
    assert best.cost_per_million_tokens == pytest.approx(9.0 / 0.54)
    summary = best.summary()
    assert summary["price"] == prices["h100"]
    unpriced = planned(server(), rate_rps=150.0, objectives=LAX).best
    assert unpriced is not None
    assert (unpriced.cost_per_hour, unpriced.cost_per_million_tokens) == (None, None)


def test_why_nothing_will_do_is_said(server: Callable[..., Scenario]) -> None:
    tight = planned(server(), objectives=parse_objectives("ttft:p95<20ms;e2el:p50<8ms"))
    assert tight.best is None
    reason = tight.sizings[0].reason
    assert reason.startswith("e2el:p50<8ms is 10 ms with hardly any load")
    assert tight.sizings[0].check is not None
    assert tight.sizings[0].check.tightest.name == "e2el:p50<8ms"
    assert "Infeasible" in answer_line(tight)
    few = planned(server(), rate_rps=350.0, objectives=LAX, max_gpus=3)
    assert few.sizings[0].reason.startswith("needs more than 3 GPUs: one replica holds")
    # The other candidate's memory does not hold the model; ours does.
    large = load_scenario(overrides=[*SMALL, "engine.model=llama-3.1-70b", f"{SPEC}=null"])
    both = planned(large, rate_rps=1.0, objectives=parse_objectives("ttft:p95<5s"), tensor_parallel_sizes=[1, 4])
    assert [sizing.feasible for sizing in both.sizings] == [True, False]
    assert both.sizings[1].candidate.scenario.engine.tensor_parallel_size == 1
    assert "does not fit into h100-sxm" in both.sizings[1].reason
    assert both.sizings[1].reason.endswith("fits with tensor_parallel_size 2 or with quantization awq")
    assert both.sizings[1].summary()["feasible"] is False
    odd = planned(large, rate_rps=1.0, objectives=parse_objectives("ttft:p95<5s"), tensor_parallel_sizes=[5])
    assert "tensor_parallel_size = 5" in odd.sizings[0].reason
    assert answer_line(odd).startswith("Infeasible. No candidate can be started: h100-sxm tp 5 off: ")
    assert basis_line(odd) == ""  # nothing was judged
    assert basis_line(few).startswith("judged on ")
    # Of those that would do with more GPUs than allowed, the one that needs fewest is nearest.
    (far,) = few.sizings
    near = dataclasses.replace(far, gpus_beyond=far.gpus_beyond - 1, reason="near")
    idle = dataclasses.replace(tight.sizings[0], reason="cannot help")
    answer = with_prices(dataclasses.replace(few, sizings=(*odd.sizings, idle, far, near)), {})
    assert far.gpus_beyond == 4
    assert answer.sizings == (near, far, idle, *odd.sizings)


def test_replicas_that_may_be_needed_are_those_of_longer_and_shorter_steps(server: Callable[..., Scenario]) -> None:
    own = server()
    reach = math.exp(1.959964 * setting_error(own))
    lax, tight, missed = (f"e2el:p95<{1e3 * STEP_S * limit}ms" for limit in (1.5, 0.5 + reach / 2, 1.5 - reach / 2))

    def sized(slo: str, rate: float = 300.0, factor: float = 1.0) -> SizedCandidate:
        longer = {"source": "x", "model": own.engine.model, "hardware": "h100-sxm", "step_factor": factor}
        question = {"rate_rps": rate, "objectives": parse_objectives(slo), "tolerance": 0.005}
        return planned(with_values(own, {"correction": longer}), **question).sizings[0]

    # Rates at which the longer steps take a replica more, the shorter ones a replica less.
    for rate, factor, chosen, replicas in ((390.0, reach, 1, 5), (305.0, 1 / reach, 0, 3)):
        here, other = sized(lax, rate), sized(lax, rate, factor)
        assert here.largest is not None
        assert other.largest is not None
        assert here.serves[1 - chosen] == pytest.approx(1 / factor, rel=0.01)
        assert here.replicas == 4
        assert here.replicas_interval is not None
        assert here.replicas_interval[chosen] == other.replicas == replicas
    # With steps so much longer every request misses the limit, in however many replicas.
    near = sized(tight)
    assert near.serves[0] == 0.0
    assert near.replicas_interval == (3, None)
    assert sized(tight, factor=reach).replicas == 0
    answer = planned(own, rate_rps=305.0, objectives=parse_objectives(lax))
    assert [
        plan_rows(each)[1][4]
        for each in (answer, planned(own, rate_rps=305.0, objectives=parse_objectives(lax), spare=1))
    ] == ["4 (3 to 4)", "4+1 (3 to 4)"]
    assert answer_line(answer).endswith("of the replicas needed: 3 to 4.")
    alone = answer_line(planned(own, rate_rps=20.0, objectives=parse_objectives(lax)))
    assert alone.startswith("1 GPU: 1 replica of h100-sxm tp 1 off holds 20 req/s")
    assert "3 or more. At the upper end of the step times, no number of replicas meets the SLO." in answer_line(
        planned(own, rate_rps=300.0, objectives=parse_objectives(tight))
    )
    # And what no step of this length meets may yet be met.
    assert "shorter, still inside the 95% prediction interval, meet it)" in sized(missed).reason
    assert "prediction" not in sized("e2el:p95<5ms").reason
    # The scenario's own SLO, a share of the requests, is judged by the same times.
    rare = "workload.classes=[{name: chat, share: 0.999999}, {name: rare, share: 1e-6, slo: {e2el_ms: 11}}]"
    assert planned(server(rare), rate_rps=300.0).sizings[0].replicas_interval is not None
    limit_ms = 1e3 * STEP_S * (0.5 + reach / 2)
    own_slo = planned(server(f"slo={{e2el_ms: {limit_ms}, attainment: 0.9}}"), rate_rps=300.0).sizings[0]
    assert own_slo.serves[0] == 0.0
    assert own_slo.serves[1] == pytest.approx(near.serves[1], rel=0.02)


@pytest.fixture(scope="module")
def mixed() -> CapacityPlan:
    scenario = load_scenario(overrides=[*SMALL, SHORT])
    prices = {"h100-sxm": Price(9.0, "2026-11-01"), "a100-80g": Price(1.0, "2026-11-01")}
    objectives = parse_objectives("ttft:p95<1s;tpot:p95<40ms")
    return planned(
        scenario, rate_rps=900.0, objectives=objectives, hardware=["h100-sxm", "a100-80g"], prices=prices, tolerance=0.1
    )


def test_the_cheapest_comes_first_though_it_takes_more_gpus(mixed: CapacityPlan) -> None:
    assert len(mixed.sizings) == 4
    costs = [sizing.cost_per_hour for sizing in mixed.sizings]
    assert costs == sorted(costs, key=lambda cost: cost or math.inf)
    best, fewest = mixed.sizings[0], min(mixed.sizings, key=lambda sizing: sizing.num_gpus)
    assert best.candidate.hardware.name == "a100-80g"
    assert best.num_gpus > fewest.num_gpus
    assert fewest.candidate.hardware.name == "h100-sxm"
    for sizing in mixed.sizings:
        assert sizing.check is not None
        assert sizing.check.met
        assert sizing.headroom >= 0.0


def test_a_plan_s_answer_is_plain_data(mixed: CapacityPlan) -> None:
    from draftcast.files import plain

    summary = json.loads(json.dumps(plain(mixed.summary()), allow_nan=False))
    assert summary["feasible"] is True
    assert summary["best"] == mixed.sizings[0].candidate.label
    assert summary["objectives"] == ["ttft:p95<1000ms", "tpot:p95<40ms"]
    assert summary["candidates"][0]["tightest_constraint"]["limit"] in (1.0, 0.04)
    assert summary["candidates"][0]["figures"]["p95_ttft_s"]["mean"] > 0.0


def test_the_scenario_s_own_slo_is_taken(server: Callable[..., Scenario]) -> None:
    asked = server("slo={e2el_ms: 15, attainment: 0.9}")
    best = planned(asked, rate_rps=150.0).best
    assert best is not None
    assert best.num_gpus == 2
    assert best.check is not None
    assert (best.check.tightest.name, best.check.tightest.value) == ("slo.attainment", 1.0)
    missed = planned(server("slo={e2el_ms: 9}"), rate_rps=150.0)
    assert missed.sizings[0].reason.startswith("0.0% of the requests meet the SLO, 99.0% must")


def test_of_several_classes_the_one_that_misses_its_own_slo_is_named(server: Callable[..., Scenario]) -> None:
    """A step takes 10 ms: no chat meets 9 ms, all of bulk meet 4 s, of which half would do."""
    classes = (
        "{name: chat, share: 0.1, slo: {e2el_ms: 9}}, {name: bulk, share: 0.9, slo: {e2el_ms: 4000, attainment: 0.5}}"
    )
    asked = server(f"workload.classes=[{classes}]")
    missed = planned(asked, rate_rps=50.0).sizings[0]
    assert missed.reason.startswith("0.0% of the requests of chat meet the SLO, 99.0% must")
    check = SimulatedCluster(asked, ()).check(1, 50.0)
    assert not check.met
    assert [each.name for each in check.constraints] == ["slo.attainment of chat", "slo.attainment of bulk"]
    assert [each.used for each in check.constraints] == pytest.approx([100.0, 0.0])
    alone = server("workload.classes=[{name: chat, share: 0.1, slo: {e2el_ms: 9}}, {name: bulk, share: 0.9}]")
    assert [each.name for each in SimulatedCluster(alone, ()).check(1, 50.0).constraints] == ["slo.attainment of chat"]


def test_candidates_are_devices_by_sizes_by_methods() -> None:
    scenario = load_scenario(overrides=SMALL)
    ngram = {
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 4},
        "acceptance": {"model": "ngram", "match_probability": 0.3, "alpha": 0.6},
    }
    found = candidates(scenario, ["h100-sxm", "b200"], [1, 2], [OFF, GIVEN, ngram])
    assert len(found) == 12
    assert [each.label for each in found[:3]] == [
        f"h100-sxm tp 1 {name}" for name in ("off", "eagle3 k=3", "ngram k=4")
    ]
    assert {each.scenario.hardware for each in found} == {"h100-sxm", "b200"}
    assert found[2].scenario.acceptance is not None
    assert found[2].scenario.acceptance.model == "ngram"
    # The draft's degree goes with the target's; a profile of one device does not go with another.
    tuned = load_scenario(
        overrides=[*SMALL, "engine.tensor_parallel_size=2", f"{SPEC}.draft_tensor_parallel_size=2", "profile=h100-sxm"]
    )
    (one, two) = candidates(tuned, ["b200"], [1, 4], [GIVEN])
    assert [each.scenario.engine.draft_tensor_parallel_size for each in (one, two)] == [1, 4]
    assert one.scenario.profile is None
    assert candidates(tuned, ["h100"], [1], [OFF])[0].scenario.profile == "h100-sxm"


@pytest.mark.parametrize(
    ("overrides", "arguments", "message"),
    [
        ((), {"objectives": ()}, "slo: required: objectives"),
        ((), {"hardware": ["nothing"]}, "hardware = 'nothing': unknown device"),
        ((), {"hardware": ["a100-80g"], "prices": {"h100": DEAR}}, "prices = 'a100-80g': has no price"),
        (("engine.num_gpu_blocks=900",), {"tensor_parallel_sizes": [2]}, "engine.num_gpu_blocks = 900: is the memory"),
        ((), {"methods": ["fast"]}, "method 1: 'fast': must be off, given or a mapping"),
        ((), {"methods": [{"method": "ngram"}]}, "method 1: must be {"),
        ((f"{SPEC}=null",), {"methods": [GIVEN]}, "the scenario has no speculation"),
        ((), {"headroom": -0.1}, "headroom = -0.1: must be from 0"),
        ((), {"spare": -1}, "spare = -1: must be from 0"),
        ((), {"max_gpus": 0}, "max_gpus = 0: must be from 1"),
        ((), {"tolerance": 0.0}, "tolerance = 0.0: must be from"),
        ((), {"rate_rps": 0.0}, "rate = 0.0: must be above 0"),
        (("workload.arrivals={process: closed_loop, concurrency: 4}",), {}, "closed_loop arrivals have no single rate"),
        (("engine.model=nobody",), {}, "engine.model = 'nobody': unknown model"),
    ],
)  # fmt: skip
def test_what_cannot_be_planned_is_refused(overrides: tuple[str, ...], arguments: dict[str, Any], message: str) -> None:
    scenario = load_scenario(overrides=[*SMALL, *overrides])
    with pytest.raises(InputError, match=re.escape(message)):
        planned(scenario, **{"objectives": LAX, **arguments})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("h100-sxm=2.49", "must look like"),
        ("h100-sxm@2026-11-01", "must look like"),
        ("=2@2026-11-01", "must look like"),
        ("h100-sxm=dear@2026-11-01", "must look like"),
        ("h100-sxm=0@2026-11-01", "price = 0.0: must be above 0"),
        ("h100-sxm=nan@2026-11-01", "must be above 0"),
        ("h100-sxm=2@yesterday", "price.date = 'yesterday': must be a day"),
    ],
)
def test_a_price_needs_an_amount_and_a_day(text: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        parse_prices([text])
    assert str(caught.value).startswith("--price: ")
    with pytest.raises(InputError, match="given twice"):
        parse_prices(["h100=1@2026-11-01", "h100=2@2026-11-01"])


def trace(folder: Path) -> Path:
    """100 requests, one every 0.2 s."""
    path = folder / "trace.csv"
    lines = [f"2023-11-16 18:15:{0.2 * i:010.7f},{100 + i},{20 + i % 7}" for i in range(100)]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]) + "\n")
    return path


def test_a_trace_has_the_rate_it_was_recorded_at(tmp_path: Path) -> None:
    scenario = load_scenario(trace=trace(tmp_path), overrides=["statistics.replications=2"])
    assert mean_rate(scenario) == pytest.approx(5.0)
    slower = load_scenario(trace=trace(tmp_path), overrides=["workload.arrivals.time_scale=2.0"])
    assert mean_rate(slower) == pytest.approx(2.5)
    best = planned(scenario, objectives=parse_objectives("ttft:p95<1s"), methods=[OFF]).best
    assert best is not None
    assert best.target_rps == pytest.approx(5.0)
    assert best.num_gpus == 1


def run_plan(*arguments: str) -> Any:
    small = [word for change in SMALL for word in ("--set", change)]
    return CliRunner().invoke(cli.app, ["plan", "default", *small, *arguments])


def test_the_command_prints_a_table_or_json_and_says_infeasible_by_its_exit_code() -> None:
    asked = ("--rate", "10", "--slo", "ttft:p95<1s;tpot:p95<40ms", "--method", "off", "--spare", "1")
    done = run_plan(*asked)
    assert done.exit_code == 0, done.output
    assert "2 GPUs: 1 replica and 1 spare of h100-sxm tp 1 off hold 10 req/s" in " ".join(done.stdout.split())
    told = run_plan(*asked, "--json", "--price", "h100=2@2026-11-01")
    answer = json.loads(told.stdout)
    assert (answer["target_rate_rps"], answer["candidates"][0]["num_gpus"]) == (10.0, 2)
    assert answer["candidates"][0]["cost_per_hour"] == 4.0
    nothing = run_plan("--slo", "tpot:p95<1ms", "--method", "off")
    assert nothing.exit_code == 3, nothing.output
    assert "tpot:p95<1ms" in nothing.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--slo", "fast"], "--slo: 'fast'"),
        (["--slo", "ttft:p95<1s", "--tp", "1,x"], "--tp: 'x'"),
        (["--slo", "ttft:p95<1s", "--hardware", "h100,,"], "--hardware: 'h100,,'"),
        (["--slo", "ttft:p95<1s", "--rate", "-1"], "default: rate = -1.0: must be above 0"),
        (["--slo", "ttft:p95<1s", "--method", "nowhere.json"], "--method: 'nowhere.json'"),
        ([], "default: slo: required"),
    ],
)
def test_bad_options_are_named(arguments: list[str], message: str) -> None:
    done = run_plan(*arguments)
    assert isinstance(done.exception, InputError)
    assert str(done.exception).startswith(message)


def test_the_example_of_the_docs_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/capacity.md").read_text(), re.DOTALL)
    exec(compile(example, "docs/capacity.md", "exec"), {})
    assert capsys.readouterr().out.startswith("h100-sxm tp 1 ")


class Done(NamedTuple):
    """What a script left behind."""

    returncode: Any
    stdout: str
    stderr: str


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """``script(name, *arguments)``: run an example of the docs over a small simulation."""
    small = [word for change in (*SMALL, "engine.max_num_seqs=64") for word in ("--set", change)]

    def run(name: str, *arguments: str) -> Done:
        path = str(ROOT / f"docs/examples/{name}.py")
        monkeypatch.setattr("sys.argv", [path, *arguments, *small])
        capsys.readouterr()
        code: Any = 0
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as left:
            code = left.code
        return Done(code, *capsys.readouterr())

    return run


def test_script_gpus_by_rate(script: Callable[..., Done]) -> None:
    done = script("gpus_by_rate", "default", "--rates", "300,1200", "--slo", "tpot:p95<20ms", "--set", SHORT)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    assert [row[0] for row in rows] == ["300", "1200"]
    assert all(int(row[1]) >= 1 and int(row[2]) >= 1 for row in rows)
    assert int(rows[1][1]) > int(rows[0][1])
    bad = script("gpus_by_rate", "default", "--rates", "30", "--slo", "tpot")
    assert (bad.returncode, bad.stderr.count("\n")) == (2, 1)


def test_script_trace_growth(script: Callable[..., Done], tmp_path: Path) -> None:
    asked = ("--slo", "ttft:p95<1s", "--growth", "1,40", "--spare", "1")
    done = script("trace_growth", "default", str(trace(tmp_path)), *asked)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "recorded: 5 requests/s on average"
    small, large = (line.split() for line in lines[2:])
    assert (small[0], large[0]) == ("1", "40")
    assert int(large[2]) >= int(small[2]) == 2


def test_an_objective_on_what_no_request_has_breaks_nothing(server: Callable[..., Scenario]) -> None:
    """One output token has no time per output token."""
    assert math.isnan(Objective("tpot", "p95", 0.01).ratio({}))
    best = planned(server(), objectives=parse_objectives("tpot:p95<1ms;e2el:p95<15ms")).best
    assert best is not None
    assert best.check is not None
    assert [limit.name for limit in best.check.constraints] == ["e2el:p95<15ms", "tpot:p95<1ms"]


def test_other_prices_rank_anew_and_simulate_nothing(
    server: Callable[..., Scenario], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"rate_rps": 150.0, "objectives": LAX, "tensor_parallel_sizes": [1], "hardware": ["h100-sxm", "h200"]}
    scenario = server("profile=null", "engine.num_gpu_blocks=null")
    plain = planned(scenario, **asked)
    prices = {"h100-sxm": Price(9.0, "2026-11-01"), "h200": Price(1.0, "2026-11-02")}
    priced = planned(scenario, **asked, prices=prices)
    monkeypatch.setattr("draftcast.scenarios.plan.search.serve", None)
    assert repr(with_prices(plain, prices).summary()) == repr(priced.summary())
    assert repr(with_prices(priced, None).summary()) == repr(plain.summary())
    assert priced.sizings[0].candidate.hardware.name == "h200"
    frame = priced.frame()
    assert list(frame["price_per_gpu_hour"]) == [1.0, 9.0]
    assert list(frame["num_gpus"]) == [sizing.num_gpus for sizing in priced.sizings]
    with pytest.raises(InputError, match="has no price"):
        with_prices(plain, {"h200": DEAR})


def test_a_plan_gives_no_gpu_more_than_its_capacity() -> None:
    # Objectives that only a growing queue breaks; runs so short that a queue hardly has the time to grow.
    small = ("workload.num_requests=1000", "statistics.replications=2", "engine.max_num_seqs=64", SHORT)
    scenario = load_scenario(overrides=list(small))
    answer = planned(scenario, rate_rps=1500.0, objectives=parse_objectives("e2el:p95<600s"))
    assert {sizing.candidate.method for sizing in answer.sizings} == {OFF, "eagle3 k=3"}
    for sizing in answer.sizings:
        most = capacity(with_rate(sizing.candidate.scenario, 1.0))
        assert most is not None
        assert sizing.largest is not None
        assert sizing.replicas >= math.ceil(1500.0 / most.estimate.high)
        assert 1500.0 <= sizing.largest.met < sizing.replicas * most.estimate.high


def test_a_run_too_short_to_settle_is_said(server: Callable[..., Scenario]) -> None:
    run = simulate(server("workload.num_requests=50"))
    check = check_load(server(), Side(dataclasses.replace(run, state="not settled"), "below"), LAX)
    assert (check.met, check.verdict, check.tightest.name) == (False, "not settled", "steady state")
    assert math.isnan(check.tightest.used)
    best = planned(server(), objectives=LAX).best
    assert best is not None
    assert best.largest is not None
    short = dataclasses.replace(best, largest=dataclasses.replace(best.largest, limit=check.tightest))
    said = answer_line(CapacityPlan(PlanQuestion(server(), 50.0, LAX), 50.0, (short,)))
    assert said.endswith("beyond it the run did not reach a steady state: more requests may show a larger rate.")


def test_replicas_that_only_shorten_a_trace_are_not_added(tmp_path: Path) -> None:
    scenario = load_scenario(trace=trace(tmp_path), overrides=["statistics.replications=2", "engine.max_num_seqs=4"])
    asked = {"rate_rps": 400.0, "objectives": parse_objectives("ttft:p95<1s"), "methods": [OFF]}
    (sizing,) = planned(scenario, **asked, max_gpus=1000).sizings
    said = r"the trace is too short for (\d+) replicas to reach a steady state: give a longer one"
    found = re.fullmatch(said, sizing.reason)
    assert found is not None
    assert sizing.gpus_beyond == int(found[1])
    assert sizing.check is not None
    assert sizing.check.tightest.name == "steady state"
    assert "needs more than" not in planned(scenario, **asked, max_gpus=int(found[1])).sizings[0].reason


def test_replicas_that_were_passed_over_because_they_did_not_settle_are_named(
    server: Callable[..., Scenario], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = SimulatedCluster.check

    def check(cluster: SimulatedCluster, replicas: int, rate_rps: float) -> LoadCheck:
        done, limit = own(cluster, replicas, rate_rps), Constraint(STEADY_STATE, math.nan, math.nan, math.nan)
        return dataclasses.replace(done, met=False, constraints=(limit,)) if replicas == 4 else done

    assert planned(server(), rate_rps=350.0, objectives=LAX).sizings[0].notes == ()
    monkeypatch.setattr(SimulatedCluster, "check", check)
    answer = planned(server(), rate_rps=350.0, objectives=LAX)
    (best,) = answer.sizings
    said = "4 replicas may do: the run did not reach a steady state"
    assert (best.replicas, best.notes) == (5, (said,))
    assert basis_line(answer).endswith(said)
    assert basis_line(dataclasses.replace(answer, sizings=(best, best))).endswith(f"{best.candidate.label}: {said}")
    # What is assumed of a candidate that is not the best one is said too.
    untimed = with_values(best.candidate.scenario, {"hardware": "l40", "profile": None})
    other = dataclasses.replace(best, candidate=dataclasses.replace(best.candidate, scenario=untimed))
    assert "no kernel was timed on l40" in basis_line(dataclasses.replace(answer, sizings=(best, other)))


def test_goodput_follows_the_load_up_to_the_knee(server: Callable[..., Scenario]) -> None:
    scenario = server("slo={e2el_ms: 15, attainment: 0.95}", "workload.num_requests=800")
    best = planned(scenario, rate_rps=180.0).best
    assert best is not None
    seen: list[float] = []
    checks = goodput_curve(best, progress=seen.append)
    assert best.largest is not None
    assert best.replicas == 2
    assert seen[-1] == 1.0
    assert seen == sorted(seen)
    rates = [check.rate_rps for check in checks]
    assert rates == sorted({180.0, *(share * best.largest.met for share in SHARES)})
    frame = curve_frame(checks)
    within = frame[frame["rate_rps"] <= best.largest.met]
    # Two servers of 100 requests/s in turn, arrivals at even gaps: nobody waits below 200, and nobody is late.
    assert within["met"].all()
    assert within["goodput_rps"].to_numpy() == pytest.approx(within["rate_rps"].to_numpy())
    assert within["completed_rps"].to_numpy() == pytest.approx(within["rate_rps"].to_numpy())
    beyond = frame[frame["rate_rps"] > 1.2 * best.largest.met]
    assert not beyond["met"].any()
    assert (beyond["verdict"] == "overloaded").all()
    assert (beyond["completed_rps"] < 205.0).all()
    assert (beyond["goodput_rps"] < beyond["completed_rps"]).all()
    names = [trace.name for trace in goodput_figure(best, checks).data]
    assert names == ["completed", "within the SLO"]
    infeasible = planned(scenario, rate_rps=180.0, max_gpus=1).sizings[0]
    assert goodput_curve(infeasible) == ()


def test_a_cluster_gets_the_requests_of_all_its_replicas(server: Callable[..., Scenario]) -> None:
    scenario = server()
    assert cluster_scenario(scenario, 1, 90.0).workload.num_requests == 200
    asked = cluster_scenario(scenario, 3, 90.0)
    assert (asked.workload.num_requests, asked.cluster.replicas) == (600, 3)
    assert cluster_scenario(scenario, 400, 90.0).workload.num_requests == 60_000


def test_objectives_are_parsed_ones() -> None:
    with pytest.raises(InputError, match=r"objectives = .*: must be what parse_objectives gives"):
        PlanQuestion(load_scenario(), 20.0, "tpot:p95<20ms")  # type: ignore[arg-type]


def test_too_many_gpus_in_short_runs_may_be_too_few_requests() -> None:
    """One H100 serves this load in longer runs; with 400 requests none near it settles."""
    scenario = load_scenario(overrides=["workload.num_requests=400", "statistics.replications=2"])
    question = {"rate_rps": 60.0, "objectives": parse_objectives("tpot:p95<30ms"), "methods": ["off"], "max_gpus": 1}
    reason = planned(scenario, **question).sizings[0].reason
    assert reason.startswith("needs more than 1 GPU: one replica holds")
    assert reason.endswith("beyond it the run did not reach a steady state: more requests may show a larger rate")


def test_a_device_by_two_spellings_is_one_candidate() -> None:
    labels = [candidate.label for candidate in candidates(load_scenario(), ["h100-sxm", "H100-SXM"], methods=["off"])]
    assert labels == ["h100-sxm tp 1 off"]
    twice = candidates(load_scenario(), sizes=[1, 1], methods=["off", "given", "off"])
    assert [candidate.label for candidate in twice] == ["h100-sxm tp 1 off", "h100-sxm tp 1 eagle3 k=3"]
