"""``draftcast cutover``: a closed-form crossing, every verdict, every axis, metric and option, the map and the docs."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
import shlex
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from closed_form_crossing import ALPHA, OUTPUT, PROMPT, SEARCH, K, closed_form
from closed_form_crossing import easy as closed_form_scenario
from paths import ROOT
from typer.testing import CliRunner

from draftcast.errors import InputError
from draftcast.scenarios.cli.main import app
from draftcast.scenarios.compare.capacity import CapacityEstimate
from draftcast.scenarios.compare.limits import Limit
from draftcast.scenarios.compare.metric import METRICS, Price
from draftcast.scenarios.compare.model_error import response
from draftcast.scenarios.compare.verdict import Side, side_by_capacity
from draftcast.scenarios.cutover import probe as cutover_probe
from draftcast.scenarios.cutover.axis import axis_named
from draftcast.scenarios.cutover.map import MapCell, SpeedupMap, speedup_map
from draftcast.scenarios.cutover.probe import PairedRun, Prober
from draftcast.scenarios.cutover.search import Cutover, CutoverQuestion, PredictedCutover, _longest, cutover
from draftcast.scenarios.run.simulate import serve, simulate_together
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.changes import changed, equal_acceptance
from draftcast.scenarios.schema.load import load_scenario, with_values, without_speculation
from draftcast.scenarios.show.cutover_report import (
    contour_lines,
    detail_lines,
    headline,
    map_figure,
    number,
    points_table,
)
from draftcast.scenarios.show.plots import OFF
from draftcast.sim.acceptance.model import Tree
from draftcast.sim.statistics.crossing import Crossing, Probe

DOCS = ROOT / "docs" / "cutover.md"
run = CliRunner().invoke
# The search does not depend on the errors of step times, which a prediction beside it takes into account.
EXACT = "statistics.model_error=none"


def easy(folder: Path, *changes: str) -> Scenario:
    """The closed form's scenario, of few requests."""
    return closed_form_scenario(folder, "workload.num_requests=200", "statistics.replications=4", *changes)


def cutovers(scenario: Scenario, **how: Any) -> tuple[Cutover, ...]:
    """The cutover of a question whose parts are given by name."""
    options = {name: how.pop(name) for name in ("lengths", "alternatives", "target", "progress") if name in how}
    return cutover(CutoverQuestion(scenario, **how), **options)


def mapped(scenario: Scenario, **how: Any) -> SpeedupMap:
    """The map of a question whose parts are given by name."""
    options = {name: how.pop(name) for name in ("against", "values", "progress") if name in how}
    return speedup_map(CutoverQuestion(scenario, **how), **options)


@pytest.fixture(name="found", scope="module")
def found_fixture(tmp_path_factory: pytest.TempPathFactory) -> Cutover:
    (answer,) = cutovers(easy(tmp_path_factory.mktemp("easy")), over="concurrency", at=[4, 40])
    return answer


def test_a_closed_form_crossing_lies_in_the_interval(tmp_path: Path) -> None:
    # Of one interval in twenty it may not: eight searches, and no lean. The benchmark does it with a hundred.
    crossings = []
    for seed in range(8):
        scenario = easy(tmp_path, f"statistics.seed={seed}", EXACT)
        (answer,) = cutovers(scenario, over="concurrency", at=[4, 12, 20, 28])
        assert answer.verdict == "crosses"
        crossings.append(answer.crossing)
    assert sum(each.low <= closed_form() <= each.high for each in crossings) >= 6
    assert sum(each.value for each in crossings) / 8 == pytest.approx(closed_form(), rel=0.01)


def test_the_answer_is_narrow_and_says_what_is_sure(found: Cutover) -> None:
    assert found.verdict == "crosses"
    assert found.crossing.relative_width <= 0.05 or found.crossing.high - found.crossing.low < 1
    assert found.crossing.value == pytest.approx(closed_form(), rel=0.03)
    assert found.estimate == pytest.approx(closed_form(), rel=0.1)
    assert found.surely_pays is not None
    assert found.surely_costs is not None
    assert found.surely_pays[1] < found.surely_costs[0]


def test_what_limits_is_said_on_both_sides(found: Cutover) -> None:
    assert found.lower is not None
    assert found.upper is not None
    assert found.lower.x < found.crossing.value < found.upper.x
    for place in (found.lower, found.upper):
        for side in (place.on, place.off):
            assert side.limit in get_args(Limit)
            assert side.memory_share > 0
            assert 0 <= side.kv_share <= 1
            assert side.in_system == pytest.approx(place.x, rel=0.05)  # a closed loop: all clients are in the system
    # 10 ms and 0.2 ms a row: 4 rows of each client, and prompts come as fast as 1.875 tokens a step use outputs up.
    rows = found.upper.x * (1 + K + 1.875 * PROMPT / OUTPUT)
    assert found.upper.on.step_ms == pytest.approx((10 + 0.2 * rows) * (1 + SEARCH), rel=1e-3)
    text = "\n".join(detail_lines(found))
    assert "with speculation" in text
    assert "requests simulated" in text


def test_a_summary_holds_every_look(found: Cutover) -> None:
    summary = found.summary()
    assert summary["verdict"] == "crosses"
    assert summary["low"] <= summary["cutover"] <= summary["high"]
    assert [point["x"] for point in summary["points"]] == sorted(probe.x for probe in found.probes)
    assert all(point["on"]["mean_e2el_s"] > 0 for point in summary["points"])
    assert headline(found).startswith("ngram k=3: cutover at ")


def test_the_target_and_the_budget_decide_when_to_stop(tmp_path: Path) -> None:
    scenario = easy(tmp_path, EXACT)
    loop = easy(tmp_path, "workload.arrivals={process: closed_loop, concurrency: 20}", EXACT)
    (loose,) = cutovers(loop, over="acceptance", at=[0.3, 0.8])
    (tight,) = cutovers(loop, over="acceptance", at=[0.3, 0.8], target=0.007)
    assert tight.requests > loose.requests
    assert 0.05 >= loose.crossing.relative_width > 0.007 >= tight.crossing.relative_width
    (poor,) = cutovers(scenario, over="concurrency", at=[4, 40], budget_requests=12_000)
    assert poor.stopped == "budget spent"
    assert poor.requests <= 12_000
    (none,) = cutovers(scenario, over="concurrency", budget_requests=1)
    assert (none.verdict, none.probes) == ("cannot tell", ())
    assert "budget" in headline(none)


def test_progress_rises_to_one(tmp_path: Path) -> None:
    seen: list[float] = []
    cutovers(
        easy(tmp_path), over="concurrency", at=[4, 40], lengths=[1, 2], budget_requests=60_000, progress=seen.append
    )
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


@pytest.mark.parametrize(
    ("changes", "how", "verdict", "says"),
    [
        (["acceptance.alpha=0.95"], {"at": [1, 4]}, "always pays", "always pays from 1 to 4 clients"),
        (["acceptance.alpha=0.02"], {"at": [8, 32]}, "never pays", "never pays from 8 to 32 clients"),
        (
            ["workload.arrivals={process: poisson, request_rate_rps: 4}"],
            {"over": "rate", "at": [2, 4], "metric": "token_goodput"},
            "no difference",
            "makes no difference from 2 to 4 req/s",
        ),
        (
            ["slo.e2el_ms=450"],
            {"at": [2, 64], "metric": "slo_goodput", "target": 0.5},
            "always pays",
            "nothing to compare from 33 clients (no request meets the SLO on or off)",
        ),
        ([], {"at": [4, 40], "budget_requests": 2_000}, "cannot tell", "cannot tell: "),
    ],
)
def test_verdicts(tmp_path: Path, changes: list[str], how: dict[str, Any], verdict: str, says: str) -> None:
    (answer,) = cutovers(easy(tmp_path, *changes), **{"over": "concurrency", **how})
    assert answer.verdict == verdict
    assert says in headline(answer)


def test_where_step_times_are_too_unsure_at_every_load_no_verdict_holds(tmp_path: Path) -> None:
    (always,) = cutovers(easy(tmp_path, "acceptance.alpha=0.95"), over="concurrency", at=[1, 4])
    assert always.verdict == "always pays"
    unsure = PredictedCutover(math.nan, math.nan, None, None, "model")
    answer = dataclasses.replace(always, prediction=unsure)
    assert answer.verdict == "cannot tell"
    assert "undecided at 1, 4 clients; the errors of step times and acceptance are larger" in headline(answer)
    somewhere = dataclasses.replace(always, prediction=dataclasses.replace(unsure, pays=(3.0, 4.0), signs={4: 1}))
    assert somewhere.verdict == "always pays"
    assert "it pays from 3 to 4 (the highest simulated) clients" in headline(somewhere)


def test_a_span_ends_where_the_sign_does() -> None:
    """DeepSeek-V2 on eight H800: surely faster at 1 and from 19 to 125 clients, and not at 3 and 7."""
    signs = {1.0: 1, 3.0: 0, 7.0: 0, 19.0: 1, 60.0: 1, 125.0: 1, 250.0: -1}
    assert _longest(signs, 1) == (19.0, 125.0)
    assert _longest(signs, -1) == (250.0, 250.0)
    assert _longest(dict.fromkeys(signs, 1), -1) is None


def test_each_simulated_point_has_the_sign_of_its_own_prediction(tmp_path: Path) -> None:
    (answer,) = cutovers(easy(tmp_path, "acceptance.alpha=0.95"), over="concurrency", at=[1, 2, 4])
    assert answer.prediction is not None
    unsure_between = dataclasses.replace(answer.prediction, pays=(1.0, 4.0), signs={1: 1, 2: 0, 4: 1})
    with_a_dip = dataclasses.replace(answer, prediction=unsure_between)
    assert [with_a_dip.sign(probe) for probe in with_a_dip.probes] == [1, 0, 1]
    assert [point["sign"] for point in with_a_dip.summary()["points"]] == [1, 0, 1]


def test_a_spent_budget_is_what_is_named(tmp_path: Path) -> None:
    (always,) = cutovers(easy(tmp_path, "acceptance.alpha=0.95"), over="concurrency", at=[1, 4])
    unsure = PredictedCutover(math.nan, math.nan, None, None, "model")
    words = headline(dataclasses.replace(always, prediction=unsure, stopped="budget spent"))
    assert "the budget is spent" in words
    assert "errors of step times" not in words


def test_it_pays_up_to_capacity(tmp_path: Path) -> None:
    scenario = easy(tmp_path, "acceptance.alpha=0.95", "engine.max_num_seqs=8", "statistics.replications=3")
    (answer,) = cutovers(scenario, budget_requests=400_000)
    assert answer.verdict == "always pays"
    assert "always pays up to capacity" in headline(answer)
    assert answer.capacity_on is not None
    assert answer.capacity_off is not None
    # Saturated, 8 requests take 41 steps of 10 ms and 48 rows each of 0.2 ms; of 160 in step, 8 more or less are seen.
    assert answer.capacity_off.mean == pytest.approx(8 / (0.410 + 8 * 0.0096), rel=8 / 160)
    assert answer.capacity_on.low > answer.capacity_off.high


def small(tmp_path: Path, **how: Any) -> Cutover:
    settings: dict[str, Any] = {"over": "concurrency", "at": [2, 64], "target": 0.5, **how}
    (answer,) = cutovers(easy(tmp_path, "statistics.replications=2", EXACT), budget_requests=1_000_000, **settings)
    return answer


@pytest.mark.parametrize(
    ("over", "at", "unit"),
    [
        ("rate", [2, 30], "req/s"),
        ("concurrency", [2, 64], "clients"),
        ("batch", [2, 64], "requests"),
        ("context", [16, 400], "prompt tokens"),
        ("acceptance", [0.1, 0.9], "acceptance per draft token"),
    ],
)
@pytest.mark.usefixtures("rough_capacity")  # along the context every x has one of its own
def test_every_axis(tmp_path: Path, over: str, at: list[float], unit: str) -> None:
    answer = small(tmp_path, over=over, at=at)
    assert (answer.over, answer.unit) == (over, unit)
    first, last = answer.probes[0], answer.probes[-1]
    assert {probe.x for probe in answer.probes} >= set(at)
    figures = [probe.advantage(0.95) for probe in (first, last)]
    signs = [probe.sign(0.95) for probe in (first, last)]
    assert signs[0] != signs[1] or figures[0] != figures[1]


def test_a_changed_acceptance_keeps_what_the_draft_knows_of_it() -> None:
    own = "acceptance={model: constant, alpha: 0.5, confidence_discrimination: 0.3}"
    found = axis_named("acceptance").at(load_scenario(overrides=[own]), 0.4).acceptance
    assert found is not None
    assert found.model_dump(exclude_none=True) == {
        "model": "constant",
        "alpha": 0.4,
        "confidence_discrimination": 0.3,
    }


def test_an_acceptance_means_the_same_to_a_cutover_and_to_a_sweep() -> None:
    own = "acceptance={model: chain, rates: [0.8, 0.6, 0.4], concentration: 3.0, num_rounds: 500}"
    scenario = load_scenario(overrides=[own])
    spread = axis_named("acceptance").at(scenario, 0.4)
    assert spread == changed(scenario, {"acceptance": 0.4})
    assert spread.acceptance is not None
    assert spread.acceptance.model_dump(exclude_none=True) == {"model": "chain", "alpha": 0.4, "concentration": 3.0}


def test_acceptance_in_place_of_a_recording_keeps_what_was_said_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    path.write_text('{"prompt_tokens": 4, "output_tokens": 3, "acc_eagle": {"acc_len": [0, 2, 1]}}\n')
    own = {"model": "trace", "path": str(path), "confidence_discrimination": 0.3}
    replaced = equal_acceptance(load_scenario(overrides=[f"acceptance={json.dumps(own)}"]), 0.4)
    assert replaced == {"model": "constant", "confidence_discrimination": 0.3, "alpha": 0.4}
    search = "engine.speculative_config={method: ngram, num_speculative_tokens: 3}"
    own["match_probability"] = 0.5
    scenario = load_scenario(overrides=[search, f"acceptance={json.dumps(own)}"])
    assert equal_acceptance(scenario, 0.4) == {**replaced, "model": "ngram", "match_probability": 0.5}


def test_acceptance_of_a_search_beside_a_head_is_that_of_both() -> None:
    spec = "engine.speculative_config={method: arctic, num_speculative_tokens: 3, enable_suffix_decoding: true}"
    own = "acceptance={model: chain, match_probability: 0.4, alpha_good: 0.8, alpha_bad: 0.6}"
    scenario = load_scenario(overrides=["engine.version=vllm 0.11", spec, own])
    found = axis_named("acceptance").at(scenario, 0.5)
    assert found == changed(scenario, {"acceptance": 0.5})
    both: Any = found.acceptance
    assert (both.alpha_good, both.alpha_bad, both.match_probability) == (0.5, 0.5, 0.4)


def test_acceptance_of_a_search_s_tree_keeps_how_often_it_finds_one() -> None:
    spec = "engine.speculative_config={method: ngram, num_speculative_tokens: 3, tree_width: 2}"
    own = "acceptance={model: tree, rates: [0.6, 0.4], tree_width: 2, match_probability: 0.4, persistence: 0.5}"
    scenario = load_scenario(overrides=["engine.version=sglang 0.5", spec, own])
    found: Any = axis_named("acceptance").at(scenario, 0.5).acceptance
    assert found == Tree(model="tree", alpha=0.5, match_probability=0.4, persistence=0.5)


def test_more_acceptance_breaks_even_at_a_given_load(tmp_path: Path) -> None:
    loop = "workload.arrivals={process: closed_loop, concurrency: CLIENTS}"
    found = {}
    for clients in (8, 32):
        scenario = easy(tmp_path, loop.replace("CLIENTS", str(clients)), "statistics.replications=3", EXACT)
        (answer,) = cutovers(scenario, over="acceptance", target=0.1)
        assert answer.verdict == "crosses"
        assert not answer.crossing.falls  # costs below, pays above
        assert answer.here == pytest.approx(ALPHA)
        found[clients] = answer.crossing
    assert found[8].high < ALPHA < found[32].low  # the crossing over clients is between them


def test_what_no_acceptance_changes_is_simulated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Scenario] = []

    def counted(scenario: Scenario, **options: Any) -> Any:
        served.append(scenario)
        return serve(scenario, **options)

    monkeypatch.setattr(cutover_probe, "serve", counted)
    loop = easy(tmp_path, "workload.arrivals={process: closed_loop, concurrency: 20}", "statistics.replications=2")
    (answer,) = cutovers(loop, over="acceptance", at=[0.2, 0.5, 0.8], target=0.9)
    without = [each for each in served if each.speculative_config is None]
    sizes = [(each.statistics.replications, each.workload.num_requests) for each in served]
    assert len(without) == len(set(sizes)) < len(served) - len(without)
    # The same as if it had been simulated for each.
    paired = answer.paired_runs[0]
    values = {"workload.num_requests": paired.requests, "statistics.replications": paired.replications}
    both = [with_values(axis_named("acceptance").at(loop, paired.x), values)]
    on, off = simulate_together([*both, without_speculation(both[0])])
    assert paired.off["mean_e2el_s"] == pytest.approx(np.mean([r["mean_e2el_s"] for r in off.replications]), rel=1e-12)
    assert paired.on["mean_e2el_s"] == pytest.approx(np.mean([r["mean_e2el_s"] for r in on.replications]), rel=1e-12)
    spent = sum(r * max(n or 0, cutover_probe.LEAST_BILLED) for r, n in sizes)
    assert answer.requests == spent


METRIC_AT: dict[str, Any] = {"over": "concurrency", "at": [2, 24], "target": 0.5, "budget_requests": 200_000}


@pytest.fixture(scope="module")
def by_latency(tmp_path_factory: pytest.TempPathFactory) -> tuple[Scenario, Cutover]:
    """The scenario that every metric is asked about, and its answer by end-to-end latency."""
    scenario = easy(tmp_path_factory.mktemp("metrics"), "statistics.replications=2", "slo.e2el_ms=400", EXACT)
    (answer,) = cutovers(scenario, **METRIC_AT)
    return scenario, answer


def test_an_slo_that_all_requests_meet_makes_no_difference(tmp_path: Path) -> None:
    scenario = easy(tmp_path, "slo={tpot_ms: 1000, attainment: 0.9}")
    (answer,) = cutovers(scenario, over="rate", at=[2, 4], metric="slo_goodput")
    assert answer.crossing.kind == "even"
    assert all(probe.advantage(0.95).mean == 1.0 for probe in answer.probes if probe.has_value)
    (delivered,) = cutovers(scenario, over="rate", at=[2, 4], metric="token_goodput")
    assert not any(probe.note for probe in delivered.probes)  # below both capacities: nothing to run, nothing to excuse


@pytest.mark.parametrize("metric", ["tpot", "token_goodput", "slo_goodput", "cost"])
def test_every_metric(by_latency: tuple[Scenario, Cutover], metric: str) -> None:
    scenario, e2e = by_latency
    (answer,) = cutovers(scenario, metric=metric, price=Price(2.0, "2026-11-21"), **METRIC_AT)
    assert answer.metric.name == metric
    assert answer.probes[0].gains != e2e.probes[0].gains
    if metric == "cost":
        # 2 an hour for the tokens of that hour.
        at_two = next(cost for cost in answer.costs if cost.x == 2)
        paired = next(paired for paired in answer.paired_runs if paired.x == 2)
        assert at_two.on == pytest.approx(2e6 / (3600 * paired.on["output_throughput"]))
        assert at_two.on < at_two.off
        assert not e2e.metric.less_is_better or e2e.costs == ()


def test_a_token_costs_what_the_load_leaves_of_the_gpu_hour(tmp_path: Path) -> None:
    """Below both capacities all tokens of the load come out, and their number follows the output length."""
    arrivals = "workload.arrivals={process: poisson, request_rate_rps: 2}"
    asked = CutoverQuestion(easy(tmp_path, arrivals), "output", "cost", (20, 80), 200_000, Price(3.6, "2026-11-21"))
    (answer,) = cutover(asked)
    costs = {cost.x: (cost.on, cost.off) for cost in answer.costs}
    for tokens in (20, 80):
        assert costs[tokens] == pytest.approx((3.6 / 3600 * 1e6 / (2 * tokens),) * 2, rel=1e-9)


def test_throughputs_are_paired_as_often_as_both_capacities_were_simulated() -> None:
    prober = Prober(load_scenario("default"), axis_named("rate"), METRICS["token_goodput"], 10**6)
    rates = ((50.0, 52.0, 54.0), (51.0, 50.0, 52.0, 54.0, 49.0, 47.0))
    halves = [
        dataclasses.replace(half, side=side_by_capacity(99.0, CapacityEstimate(own)))
        for half, own in zip(prober.sides(1.0), rates, strict=True)
        if half is not None
    ]
    probe = prober._delivered(99.0, 99.0, *halves)
    assert (probe.gains, probe.bases) == (rates[0], rates[1][:3])
    below = prober._delivered(51.0, 51.0, halves[0], dataclasses.replace(halves[1], side=Side(None, "below")))
    assert (below.gains, below.bases) == ((50.0, 51.0, 51.0), (51.0,) * 3)


def test_errors_at_a_number_of_clients_are_of_what_they_think_there() -> None:
    arrivals = {"process": "closed_loop", "concurrency": 8, "think_time_s": 10.0}
    scenario = with_values(load_scenario("default"), {"workload.arrivals": arrivals})
    prober = Prober(scenario, axis_named("concurrency"), METRICS["token_goodput"], 10**6)
    for clients in (1, 256):
        found = prober.errors(clients)
        assert found == response(prober.scenarios(clients)[0], prober.fluids(clients))
    assert found is not None
    few = prober.errors(1)
    assert few is not None
    assert found.busy > 1.5 * few.busy


def test_lengths_and_methods_have_an_answer_each(tmp_path: Path) -> None:
    other = {
        "speculative_config": {"method": "suffix", "num_speculative_tokens": 2},
        "acceptance": {"model": "ngram", "match_probability": 0.5, "alpha": 0.9},
    }
    scenario = easy(tmp_path, "statistics.replications=2", "profile=null")
    answers = cutovers(
        scenario, over="concurrency", at=[2], lengths=[1, 3], alternatives=[other], budget_requests=50_000
    )
    assert [answer.label for answer in answers] == ["ngram k=1", "ngram k=3", "suffix k=1", "suffix k=3"]
    advantages = [answer.probes[0].advantage(0.95) for answer in answers]
    assert len({advantage.mean for advantage in advantages if advantage is not None}) == 4


def test_the_map_over_k(tmp_path: Path) -> None:
    scenario = easy(tmp_path, "statistics.replications=3", "statistics.model_error=none")
    seen: list[float] = []
    found = mapped(scenario, against="k", over="concurrency", at=[2, 16, 64], values=[1, 3, 6], progress=seen.append)
    assert (found.xs, found.ys) == ((2, 16, 64), (1, 3, 6))
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    signs = [[cell.sign for cell in row] for row in found.rows]
    assert [row[0] for row in signs] == [1, 1, 1]
    assert [row[-1] for row in signs] == [-1, -1, -1]
    best = [crossing.best for _, crossing in found.contour]
    assert best == sorted(best, reverse=True)  # the longer the draft, the earlier it stops paying
    assert [at for at, _ in found.contour] == [1, 3, 6]
    head, _, of_three, _ = contour_lines(found)
    assert head.startswith("Intervals cover sampling noise only")
    assert of_three.startswith("k=3: break-even ")
    poor = mapped(scenario, against="k", over="concurrency", at=[2, 16], values=[1, 3], budget_requests=2)
    assert all(cell.note == "not looked at: budget spent" for row in poor.rows for cell in row)


def test_cells_of_the_map_hold_the_errors_of_step_times(tmp_path: Path) -> None:
    scenario = easy(tmp_path, "statistics.replications=3")
    maps = [
        mapped(with_values(scenario, {"statistics.model_error": error}), against="k", over="concurrency", at=[2, 64])
        for error in ("auto", "none")
    ]
    assert maps[0].contour == maps[1].contour
    for cell, by_chance in zip(*(itertools.chain(*found.rows) for found in maps), strict=True):
        assert cell.advantage is not None
        assert by_chance.advantage is not None
        assert cell.advantage.mean == pytest.approx(by_chance.advantage.mean, rel=0.02)
        assert cell.advantage.half_width > 1.2 * by_chance.advantage.half_width


def test_a_cell_that_no_run_tells_anything_of_says_so() -> None:
    prober = Prober(load_scenario("default"), axis_named("rate"), METRICS["e2e"], 10**6)
    prober.paired_runs[20.0] = PairedRun(20.0, ("not settled", "steady"))
    for probe in (Probe(20.0, note="not settled"), Probe(20.0, (2.0,), (1.0,))):
        cell = MapCell.of(prober, 20.0, probe)
        assert (cell.advantage, cell.sign) == (None, 0)
    probe = Probe(20.0, (2.0, 2.1), (1.0, 1.0))
    cell, by_chance = MapCell.of(prober, 20.0, probe), probe.advantage(0.95)
    assert cell.advantage is not None
    assert by_chance is not None
    assert cell.advantage.mean == by_chance.mean
    assert cell.advantage.low < by_chance.low


def test_the_map_over_acceptance(tmp_path: Path) -> None:
    scenario = easy(tmp_path, "statistics.replications=3")
    found = mapped(scenario, against="acceptance", over="concurrency", at=[8, 32], values=[0.2, 0.5, 0.9])
    assert [at for at, _ in found.contour] == [8, 32]
    few, many = (crossing for _, crossing in found.contour)
    assert few.kind == many.kind == "crosses"
    assert few.high < many.low  # the fuller the engine, the more must be accepted
    summary = found.summary()
    assert len(summary["cells"]) == 6
    assert {cell["acceptance"] for cell in summary["cells"]} == {0.2, 0.5, 0.9}
    assert summary["break_even"][0]["concurrency"] == 8


SMALL = ["--set", "statistics.replications=2", "--over", "concurrency", "--at", "2,32", "--budget", "60000"]


def test_the_command_prints_draws_and_exits(tmp_path: Path) -> None:
    picture = tmp_path / "cutover.html"
    done = run(app, ["cutover", "default", *SMALL, "--target", "0.5", "--plot", str(picture)])
    assert done.exit_code in (0, 5), done.output
    assert "eagle3 k=3: " in done.stdout
    assert "advantage" in done.stdout
    assert "advantage in mean end-to-end latency" in picture.read_text("utf-8")
    several = run(app, ["cutover", "default", *SMALL, "--k", "1,2", "--json"])
    answers = json.loads(several.stdout)["cutovers"]
    assert [answer["setting"] for answer in answers] == ["eagle3 k=1", "eagle3 k=2"]
    assert answers[0]["points"][0]["advantage"]["mean"] > 1
    nothing = run(app, ["cutover", "default", "--budget", "1"])
    assert nothing.exit_code == 5
    assert "cannot tell" in nothing.stdout


def test_the_command_draws_a_map(tmp_path: Path) -> None:
    picture = tmp_path / "map.html"
    arguments = ["cutover", "default", "--over", "batch", "--at", "4,64", "--set", "statistics.replications=2"]
    done = run(app, [*arguments, "--map", "k", "--k", "1,3", "--plot", str(picture)])
    assert done.exit_code == 0, done.output
    assert "k=3: " in done.stdout
    assert "break-even" in picture.read_text("utf-8")
    other = run(app, [*arguments, "--map", "acceptance", "--k", "2", "--acceptance", "0.2,0.9", "--json"])
    answer = json.loads(other.stdout)
    assert answer["setting"] == "eagle3 k=2"
    assert [cell["acceptance"] for cell in answer["cells"]] == [0.2, 0.2, 0.9, 0.9]
    assert answer["cells"][0]["advantage"]["mean"] < answer["cells"][2]["advantage"]["mean"]


def test_seed_and_replications_change_the_draws() -> None:
    arguments = ["cutover", "default", "--over", "batch", "--at", "8", "--budget", "20000", "--json"]
    means = set()
    for more in (["--replications", "2"], ["--replications", "3"], ["--replications", "2", "--seed", "9"]):
        (answer,) = json.loads(run(app, [*arguments, *more]).stdout)["cutovers"]
        means.add(answer["points"][0]["advantage"]["mean"])
    assert len(means) == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--over", "moon"], "--over: 'moon': must be one of rate, concurrency, batch, context, acceptance"),
        (["--metric", "joy"], "--metric: 'joy': must be one of e2e, tpot"),
        (["--metric", "cost"], "--metric: 'cost': needs --price"),
        (["--metric", "slo_goodput"], "needs an SLO"),
        (["--price", "h200=2@2026-11-01"], "--price: 'h200': the scenario runs on h100-sxm"),
        (["--target", "0"], "--target: 0.0: must lie between 0 and 1"),
        (["--budget", "0"], "--budget: 0: must be at least 1"),
        (["--replications", "1"], "statistics.replications = 1: must be at least 2"),
        (["--speculative-config", "null"], "no speculation to compare with"),
        (["--k", "65"], "must be at most 64"),
        (["--k", "1.5"], "--k: '1.5': must be whole numbers"),
        (["--over", "concurrency", "--at", "1.5"], "--at: 1.5: must be whole numbers of clients"),
        (["--over", "acceptance", "--at", "1.5"], "--at: 1.5: must be probabilities"),
        (["--map", "moon"], "--map: 'moon': must be one of k, acceptance"),
        (["--map", "acceptance", "--over", "acceptance"], "needs another axis"),
        (["--map", "acceptance", "--k", "1,2"], "of one draft length"),
        (["--map", "k", "--acceptance", "0.5"], "--acceptance"),
        (["--acceptance", "0.5"], "is for --map acceptance"),
        (["--map", "k", "--candidate", "{}"], "of the scenario's own method"),
        (["--plot", "p.bmp"], "must end in .html"),
        (["--set", "workload.arrivals={process: closed_loop, concurrency: 4}"], "no single request rate"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(arguments: list[str], said: str) -> None:
    with pytest.raises(InputError) as error:
        run(app, ["cutover", "default", *arguments], catch_exceptions=False)
    assert said in str(error.value)


def test_the_examples_of_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"<!-- run by tests -->\n```bash\n(.*?)```", DOCS.read_text("utf-8"), re.S)
    for line in block.replace("\\\n", " ").splitlines():
        name, *arguments = shlex.split(line, comments=True)
        assert name == "draftcast"
        done = run(app, arguments)
        assert done.exit_code == 0, done.output + done.stderr
    assert (tmp_path / "map.html").stat().st_size > 1000


def test_numbers_are_shown_to_what_they_mean() -> None:
    assert [number(x) for x in (0.4123, 8.254, 66.12, 70.0, 1234.4)] == ["0.412", "8.25", "66.1", "70", "1,234"]
    assert math.isclose(closed_form(), 18.9, abs_tol=1.0)


def test_a_point_s_sign_counts_in_the_errors_of_step_times(found: Cutover) -> None:
    assert found.prediction is not None
    exact = dataclasses.replace(found, prediction=None)
    signs = [(exact.sign(probe), found.sign(probe), probe.x) for probe in found.probes]
    assert {by_chance for by_chance, _, _ in signs} >= {1, -1}
    for by_chance, sign, x in signs:
        assert sign in (0, by_chance)
        assert (sign == 0) == (found.prediction.low < x < found.prediction.high) or by_chance == 0
    assert any(sign != by_chance for by_chance, sign, _ in signs)
    words = list(list(points_table(found).columns)[-1].cells)
    assert words == [{1: "pays", -1: "costs", 0: "undecided"}[sign] for _, sign, _ in signs]


def test_more_than_one_crossing_says_where_it_is_significant(found: Cutover) -> None:
    def near(x: float, advantage: float) -> Probe:
        return Probe(x, (advantage, 1.001 * advantage), (1.0, 1.0))

    probes = (near(4, 1.2), near(8, 0.8), near(12, 1.2))
    crossing = Crossing("more than once", math.nan, math.nan, math.nan, 0.95)
    words = headline(dataclasses.replace(found, crossing=crossing, probes=probes, prediction=None))
    assert words == ("ngram k=3: crosses more than once: faster at 4, 12 and slower at 8 clients (95% interval).")
    equal = Probe(4, (1.0, 1.0001), (1.0, 1.0))
    even = dataclasses.replace(found, probes=(equal,), paired_runs=found.paired_runs[:1])
    assert [list(column.cells) for column in points_table(even).columns][-1] == ["no difference"]


def test_what_was_asked_before_does_not_change_the_answer() -> None:
    """Capacities are kept for all commands and pages; a search pays for them also where they were known."""
    scenario = load_scenario(overrides=["workload.num_requests=500", "statistics.replications=3"])
    prober = [Prober(scenario, axis_named("rate"), METRICS["e2e"], 10**6) for _ in range(2)]
    for each in prober:
        each.sides(10.0)
        each.sides(20.0)
    assert prober[0].spent_requests == prober[1].spent_requests > 0


def test_a_scenario_alone_asks_over_its_rate_and_text_is_no_list_of_places() -> None:
    with pytest.raises(InputError, match="--target: 2: must lie"):  # the first that is looked at behind the question
        cutover(load_scenario(), target=2)
    with pytest.raises(InputError, match=r"--at: .*must be a list of numbers"):
        CutoverQuestion(load_scenario(), at="5,10")  # type: ignore[arg-type]


def test_lines_of_a_map_do_not_speak_of_cells_that_it_cannot_tell(tmp_path: Path) -> None:
    found = mapped(easy(tmp_path), against="k", over="concurrency", at=[2, 16], values=[1, 3], budget_requests=2)
    always = Crossing("always", math.nan, math.nan, math.nan, 0.95)
    pays = [dataclasses.replace(cell, sign=1) for cell in found.rows[0]]
    half = dataclasses.replace(
        found, rows=((pays[0], found.rows[0][1]), tuple(pays)), contour=((1, always), (3, always))
    )
    assert contour_lines(half)[1:] == ["k=1: pays wherever the map can tell.", "k=3: pays everywhere on the map."]
    turned = dataclasses.replace(half, against="acceptance", contour=((2, always), (16, always)))
    assert [line.partition("pays ")[2] for line in contour_lines(turned)[1:]] == [
        "everywhere on the map.",
        "wherever the map can tell.",
    ]


def test_marks_of_cells_without_a_colour_have_one_that_reads_on_light_and_dark(tmp_path: Path) -> None:
    found = mapped(easy(tmp_path), against="k", over="concurrency", at=[2, 16], values=[1, 3], budget_requests=2)
    drawn = map_figure(found)
    heat, marks = drawn.data[:2]
    pairs = [zip(*row, strict=True) for row in zip(heat.z, heat.text, strict=True)]
    assert all(z is not None or not text for row in pairs for z, text in row)
    assert "?" in marks.text
    assert len(marks.text) == sum(z is None for row in heat.z for z in row)
    assert marks.textfont.color == OFF
