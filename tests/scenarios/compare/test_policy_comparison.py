"""``draftcast compare``: policies on the same requests, ranked by hand; the command line; the example file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from paths import ROOT
from typer.testing import CliRunner

from draftcast.errors import InputError
from draftcast.scenarios.cli import main as cli
from draftcast.scenarios.compare import policy_comparison as module
from draftcast.scenarios.compare.comparison import simulate
from draftcast.scenarios.compare.metric import METRICS
from draftcast.scenarios.compare.policy_comparison import (
    PolicyCandidate,
    PolicyComparison,
    RankedPolicy,
    applicable_policies,
    compare_policies,
    parse_policies,
    with_policy,
)
from draftcast.scenarios.compare.verdict import Side, State
from draftcast.scenarios.run.simulate import RunResult
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import load_scenario
from draftcast.scenarios.show.recommend_report import policies_table, ranking_lines
from draftcast.sim.output.metrics import summarise

RATE = "workload.arrivals.request_rate_rps"
SMALL = ("workload.num_requests=200", "statistics.replications=3", "statistics.warmup=none")
EXAMPLE = ROOT / "docs/examples/half_when_busy.py"


def question(*overrides: str) -> Scenario:
    return load_scenario("default", overrides=[*SMALL, *overrides])


# ---- what is asked ----


def test_policies_are_read_with_their_parameters() -> None:
    text = "off, goodput(weight=0.3, probe_interval_steps=0),my policy.py:Half(sizes=[1, 2], by={a: 1, b: 2})"
    assert parse_policies(text) == [
        PolicyCandidate("off"),
        PolicyCandidate("goodput", {"weight": 0.3, "probe_interval_steps": 0}),
        PolicyCandidate("my policy.py:Half", {"sizes": [1, 2], "by": {"a": 1, "b": 2}}),
    ]
    assert [p.label for p in parse_policies(text)][:2] == ["off", "goodput(weight=0.3, probe_interval_steps=0)"]


@pytest.mark.parametrize(
    "text",
    ["", "off,", "goodput(weight=0.3", "goodput(weight)", "goodput(weight=)", "off)", "goodput(a=1, a=2)", "a[(]"],
)
def test_what_is_no_list_of_policies(text: str) -> None:
    with pytest.raises(InputError, match="--policies"):
        parse_policies(text)


def test_a_schedule_is_put_where_vllm_has_it_and_taken_away_for_others() -> None:
    key = "engine.speculative_config.num_speculative_tokens_per_batch_size"
    own = question(f"{key}=[[1, 4, 3], [5, 9, 0]]")

    def schedule(asked: PolicyCandidate) -> Any:
        spec = with_policy(own, asked).speculative_config
        assert spec is not None
        assert spec.num_speculative_tokens == 3
        return spec.num_speculative_tokens_per_batch_size

    assert schedule(PolicyCandidate("batch_schedule")) == ((1, 4, 3), (5, 9, 0))
    assert schedule(PolicyCandidate("batch_schedule", {"schedule": [[1, 1, 2]]})) == ((1, 1, 2),)
    assert schedule(PolicyCandidate("goodput")) is None


def test_policies_that_a_scenario_says_enough_for() -> None:
    always = ["fixed", "off", "goodput", "ema_tiers", "bandit", "oracle"]
    assert [p.name for p in applicable_policies(question())] == always
    sure = question("acceptance.confidence_discrimination=0.5", "slo={tpot_ms: 20}")
    by_confidence = {"confidence", "tetris", "slo_aware", "adaptive_verification"}
    assert {p.name for p in applicable_policies(sure)} == {*always, *by_confidence}


# ---- the ranking, by hand ----


def run(values: list[float], state: State = "steady") -> Side:
    figures = tuple({"mean_e2el_s": value, "output_throughput": value} for value in values)
    ended: Any = state if state in ("steady", "finite") else "not settled"
    result = RunResult({"figures": summarise(figures)}, pd.DataFrame(), None, {}, ended, None, figures)
    return Side(result, {"overloaded": "above", "at capacity": "at"}.get(state, "below"))  # type: ignore[arg-type]


def ranked(sides: dict[str, Side], metric: str = "e2e") -> PolicyComparison:
    asked = [PolicyCandidate(name) for name in sides]
    return module._rank(question(), METRICS[metric], asked, list(sides.values()))


def test_ranks_ties_differences_and_gaps_by_hand() -> None:
    # b is always 1 s slower than a: surely worse. c is 2 s slower, as fast and 2 s faster than a: a tie; to b it is
    # 1 s slower, 1 s faster, 3 s faster: a tie. The oracle is 5 s faster than a and 6 s than b, and 7, 5, 3 s than c:
    # 5 ± 4.97 for this pair alone (t = 4.303 at 2 degrees of freedom, 2 / sqrt(3)), so that even these two tie when
    # the interval has to hold for all six pairs.
    answer = ranked(
        {"a": run([10.0, 12.0, 14.0]), "b": run([11.0, 13.0, 15.0]), "c": run([12.0, 12.0, 12.0]),
         "oracle": run([5.0, 7.0, 9.0])}
    )  # fmt: skip
    assert [(s.label, s.rank) for s in answer.standings] == [("oracle", 1), ("c", 1), ("a", 2), ("b", 3)]
    found = {s.label: s for s in answer.standings}
    assert found["a"].ties == ("c",)
    assert set(found["c"].ties) == {"a", "b", "oracle"}
    assert found["a"].difference is None
    assert found["b"].difference is not None
    assert (found["b"].difference.low, found["b"].difference.high) == (1.0, 1.0)
    pair = next(p for p in answer.pairs if (p.first, p.second) == ("c", "oracle"))
    assert pair.difference is not None
    assert pair.difference.half_width == pytest.approx(4.3027 * 2 / 3**0.5, rel=1e-4)
    assert pair.better is None
    # Mean of a over mean of the oracle: 12 / 7.
    assert found["a"].gap is not None
    assert found["a"].gap.mean == pytest.approx(5 / 7)
    assert found["oracle"].gap is None
    lines = ranking_lines(answer)
    assert lines[0] == "Best by mean end-to-end latency, without a significant difference: oracle, c."
    assert "a with c" in lines[1]


def test_more_is_better_for_goodput_and_the_gap_counts_what_is_missing() -> None:
    # Of a closed loop, a batch or a trace that ends: in a steady open loop all complete what arrives.
    answer = ranked({"a": run([8.0, 9.0], "finite"), "oracle": run([10.0, 11.0], "finite")}, "token_goodput")
    assert [s.label for s in answer.standings] == ["oracle", "a"]
    assert answer.standings[1].gap is not None
    assert answer.standings[1].gap.mean == pytest.approx(2 / 10.5)


def test_who_keeps_up_with_an_open_loop_has_the_same_token_goodput() -> None:
    # The tokens that arrive: what a window's end adds or takes is no reason for a rank.
    answer = ranked(
        {"a": run([8.0, 9.0, 8.5]), "b": run([9.0, 10.0, 9.5]), "c": run([20.0, 21.0], "overloaded"),
         "oracle": run([10.0, 11.0, 10.5])}, "token_goodput"
    )  # fmt: skip
    assert {s.label: s.rank for s in answer.standings} == {"oracle": 1, "b": 1, "a": 1, "c": 4}
    assert [pair.better for pair in answer.pairs if "c" not in (pair.first, pair.second)] == [None] * 3
    # By latency the same runs differ.
    by_latency = ranked({"a": run([8.0, 9.0, 8.5]), "oracle": run([10.0, 11.0, 10.5])})
    assert [(s.label, s.rank) for s in by_latency.standings] == [("a", 1), ("oracle", 2)]


def test_who_does_not_keep_up_comes_last_whatever_its_figures() -> None:
    answer = ranked({"a": run([1.0, 1.1], "overloaded"), "b": run([3.0, 3.3]), "oracle": run([2.0, 2.2])})
    assert [(s.label, s.side.state) for s in answer.standings][-1] == ("a", "overloaded")
    assert answer.standings[-1].rank == 3
    assert answer.standings[-1].ties == ()


def test_who_does_not_keep_up_leads_nobody_that_cannot_be_told() -> None:
    answer = ranked({"off": run([1.0, 1.1], "overloaded"), "oracle": run([2.0, 2.2], "not settled")})
    assert [standing.rank for standing in answer.standings] == [None, None]
    alone = ranked({"off": run([1.0, 1.1], "overloaded"), "oracle": run([2.0, 2.2], "overloaded")})
    assert [standing.rank for standing in alone.standings] == [1, 1]


@pytest.mark.parametrize("metric", ["e2e", "token_goodput"])
@pytest.mark.parametrize("state", ["not settled", "at capacity"])
def test_who_cannot_be_told_has_no_rank_and_no_figures(state: State, metric: str) -> None:
    answer = ranked({"a": run([1.0, 1.1], state), "b": run([3.0, 3.3]), "oracle": run([2.0, 2.2])}, metric)
    last = answer.standings[-1]
    assert (last.label, last.rank, last.value, last.difference, last.ties) == ("a", None, None, None, ())
    assert [s.rank for s in answer.standings if s is not last] == [1, 1]
    assert answer.summary()["policies"][-1]["figures"] is None
    assert set(ranking_lines(answer)[0].split(": ")[1].rstrip(".").split(", ")) == {"b", "oracle"}
    (row,) = [list(cells) for cells in zip(*(c.cells for c in policies_table(answer).columns), strict=True)][-1:]
    assert row == ["-", "a", "-", "-", "-", "-", f"{state}, baseline"]


def test_replications_that_do_not_differ_are_exact() -> None:
    answer = ranked({"a": run([2.0, 2.0, 2.0]), "oracle": run([1.5, 1.5, 1.5])})
    assert [(s.label, s.rank) for s in answer.standings] == [("oracle", 1), ("a", 2)]
    assert answer.pairs[0].difference is not None
    assert (answer.pairs[0].difference.low, answer.pairs[0].difference.high) == (0.5, 0.5)


# ---- real runs ----


def run_of(standing: RankedPolicy) -> RunResult:
    assert standing.side.run is not None
    return standing.side.run


def test_policies_meet_the_same_requests_and_the_figures_are_those_of_simulate() -> None:
    scenario = question(f"{RATE}=20")
    answer = compare_policies(scenario, ["fixed,off"])
    assert repr(compare_policies(scenario, "fixed,off").summary()) == repr(answer.summary())
    found = {s.label: s for s in answer.standings}
    assert set(found) == {"fixed", "off", "oracle"}
    assert answer.baseline == "fixed"
    for name, standing in found.items():
        alone = simulate(with_policy(scenario, PolicyCandidate(name)))
        for figure in ("mean_e2el_s", "mean_tpot_s", "output_throughput"):
            assert [r[figure] for r in run_of(standing).replications] == [r[figure] for r in alone.replications]
    arrivals = [run_of(standing).requests["arrival_s"].tolist() for standing in found.values()]
    assert arrivals[0] == arrivals[1] == arrivals[2]
    assert found["off"].difference is not None
    assert found["off"].difference.low > 0
    assert found["off"].rank > found["fixed"].rank


def test_the_example_policy_follows_the_batch() -> None:
    name = f"{EXAMPLE}:HalfWhenBusy"
    asked = [
        f"batch_schedule(schedule=[[1, 1, 1]]),{name}(busy=1)",
        f"batch_schedule(schedule=[[1, 1, 3]]),{name}(busy=1000),{name}",
    ]
    answer = compare_policies(question(f"{RATE}=30"), asked)
    found = {s.label: run_of(s).requests["finish_s"].tolist() for s in answer.standings}
    half, full = "batch_schedule(schedule=[[1, 1, 1]])", "batch_schedule(schedule=[[1, 1, 3]])"
    assert found[half] == found[f"{name}(busy=1)"]
    assert found[full] == found[f"{name}(busy=1000)"]
    assert found[name] not in (found[half], found[full])
    same = next(s for s in answer.standings if s.label == f"{name}(busy=1)")
    assert half in same.ties
    assert sum(line.strip() != "" for line in EXAMPLE.read_text().split('"""')[2].splitlines()) <= 10


@pytest.mark.parametrize(
    ("policies", "more", "parts"),
    [
        ("fixed,clairvoyant", [], ["--policies", "policy.name = 'clairvoyant'", "choose from off, fixed"]),
        ("fixed,goodput(weigth=1)", [], ["--policies", "weigth", "weight, initial_acceptance"]),
        ("fixed,goodput(weight=2)", [], ["--policies", "policy.parameters.weight = 2"]),
        ("fixed,fixed", [], ["--policies", "'fixed'", "named twice"]),
        ("fixed,tetris", [], ["default", "acceptance.confidence_discrimination"]),
        ("slo_aware(tpot_s=[0.1, 0.2])", [], ["--policies", "policy.parameters.tpot_s", "each of 1 classes"]),
        ("fixed,off", ["--replications", "1"], ["statistics.replications = 1", "at least 2"]),
        ("fixed,off", ["--metric", "joy"], ["metric = 'joy'", "e2e, tpot"]),
        ("fixed,off", ["--metric", "slo_goodput", *(f"--set={s}" for s in SMALL)], ["no SLO goodput"]),
        ("fixed,off", ["--set", "engine.speculative_config=null"], ["engine.speculative_config", "no policy decides"]),
        (
            "fixed,batch_schedule(schedule=[[2, 4, 1]])",
            [],
            ["--policies: policy.parameters.schedule = [2, 4, 1]: the first entry must start at batch size 1"],
        ),
    ],
)
def test_bad_questions_are_one_line(policies: str, more: list[str], parts: list[str]) -> None:
    done = CliRunner().invoke(cli.app, ["compare", "default", "--policies", policies, *more])
    assert isinstance(done.exception, InputError)
    for part in parts:
        assert part in str(done.exception), str(done.exception)


def test_a_class_that_decides_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("from draftcast.sim import Policy\nclass Idle(Policy):\n    pass\n")
    name = f"{tmp_path}/own.py:Idle"
    with pytest.raises(InputError) as caught:
        compare_policies(question(), ["fixed", name])
    said = "decides nothing: the class must override decide of draftcast.sim.Policy"
    assert str(caught.value) == f"--policies: policy.name = {name!r}: {said}"


def test_table_and_json() -> None:
    arguments = ["compare", "default", "--policies", "off,goodput(weight=0.3)", "--metric", "tpot"]
    arguments += [f"--set={override}" for override in (*SMALL, f"{RATE}=20")]
    shown = CliRunner().invoke(cli.app, arguments)
    assert shown.exit_code == 0, shown.output
    assert "goodput(weight=0.3)" in shown.output
    assert "Best by mean time per output token" in shown.output
    done = json.loads(CliRunner().invoke(cli.app, [*arguments, "--json"]).stdout)
    assert done["metric"] == "tpot"
    assert done["baseline"] == "off"
    rows = {row["policy"]: row for row in done["policies"]}
    assert rows["goodput(weight=0.3)"]["parameters"] == {"weight": 0.3}
    assert rows["goodput(weight=0.3)"]["difference"]["high"] < 0
    assert rows["goodput(weight=0.3)"]["gap_to_oracle"]["n"] == 3
    assert rows["off"]["rank"] == 3
    assert len(done["pairs"]) == 3


def test_a_class_in_place_of_a_name_is_refused() -> None:
    with pytest.raises(InputError, match="must be a name, of a class of your own module:Class"):
        compare_policies(question(), [Side])  # type: ignore[list-item]


def test_ranks_that_must_draft_alike_are_compared_without_the_oracle() -> None:
    """It is said before the first second is simulated, and what the ranks can run is compared."""
    engine = {"model": "qwen3-30b-a3b", "speculative_config.model": "null", "data_parallel_size": 2}
    ranks = question("engine.enable_expert_parallel=true", *(f"engine.{key}={value}" for key, value in engine.items()))
    assert [policy.name for policy in applicable_policies(ranks)] == ["fixed", "off"]
    with pytest.raises(InputError, match=r"--policies: 'fixed': needs a second policy, as the oracle cannot run here"):
        compare_policies(ranks, "fixed")
    with pytest.raises(InputError, match=r"policy\.name = 'goodput': data-parallel ranks of a model with experts must"):
        compare_policies(ranks, "fixed,goodput")
    answer = compare_policies(ranks)
    assert {standing.label for standing in answer.standings} == {"fixed", "off"}
    assert {standing.gap for standing in answer.standings} == {None}
    assert answer.notes[-1].startswith("no oracle to compare with: data-parallel ranks of a model with experts must")
    assert "off: makes no drafts but keeps the memory that speculation reserves." in ranking_lines(answer)
