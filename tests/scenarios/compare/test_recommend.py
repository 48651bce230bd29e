"""The recommended setting: candidates, the schedule, the choice, the command."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from draftcast.errors import InputError
from draftcast.scenarios.cli import main as cli
from draftcast.scenarios.compare import candidate as module
from draftcast.scenarios.compare.candidate import best_schedule, candidates
from draftcast.scenarios.compare.comparison import compare, simulate
from draftcast.scenarios.compare.limits import break_even, closed_form
from draftcast.scenarios.compare.metric import METRICS
from draftcast.scenarios.compare.recommend import ComparedLoad, Recommendation, _ranked, recommend
from draftcast.scenarios.compare.serve_command import SERVERS, ServerCommand
from draftcast.scenarios.compare.verdict import Position, Side, Word, decide
from draftcast.scenarios.cutover.search import settings as cutover_settings
from draftcast.scenarios.live.sweep import SweepPlan, modes_of
from draftcast.scenarios.plan.question import PlanQuestion
from draftcast.scenarios.plan.sizing import plan
from draftcast.scenarios.run.deployment import deploy
from draftcast.scenarios.run.fluid import FluidModel, mean_step
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import load_scenario, with_values
from draftcast.scenarios.show.recommend_report import answer_line, paste_lines, remark

pytestmark = pytest.mark.usefixtures("rough_capacity")
RATE = "workload.arrivals.request_rate_rps"
# Step times are taken for exact: how candidates are ranked is looked at, not how sure a gain over off is. Few slots: a
# capacity is soon found.
SMALL = ("workload.num_requests=400", "statistics.replications=3", "statistics.model_error=none")
SMALL += ("engine.max_num_seqs=64",)


def question(*overrides: str, name: str = "default") -> Scenario:
    return load_scenario(name, overrides=[*SMALL, *overrides])


@pytest.fixture(scope="module")
def paying() -> Recommendation:
    return recommend(question(f"{RATE}=20"))


def test_an_slo_that_only_speculation_meets_recommends_it() -> None:
    slo = ("slo={tpot_ms: 5.5, attainment: 0.9}", f"{RATE}=10")
    answer = recommend(question(*slo), metric="slo_goodput", max_k=2)
    assert answer.worth_it
    assert answer.chosen.verdicts[0].off.figures is not None
    assert answer.chosen.verdicts[0].off.figures[METRICS["slo_goodput"].figure].mean == 0.0
    assert answer.chosen.gain is not None
    assert answer.chosen.gain.low > 1.0
    assert answer.reason
    assert "recommended" in remark(answer, answer.chosen)


def test_goodput_under_an_slo_needs_one() -> None:
    with pytest.raises(InputError, match="needs an SLO"):
        recommend(question(), metric="slo_goodput")


def started(answer: Recommendation, server: str = "vllm") -> str:
    """The command that starts the recommended setting."""
    command = answer.commands[server]
    assert isinstance(command, ServerCommand)
    return command.line


def test_candidates_are_off_every_length_and_a_schedule() -> None:
    # Up to the 64 requests of `question` one length is the best.
    labels = [candidate.label for candidate in candidates(question("engine.max_num_seqs=256"))]
    assert labels[:4] == ["off", "eagle3 k=1", "eagle3 k=2", "eagle3 k=3"]
    assert len(labels) == 5
    assert labels[4].startswith("eagle3 schedule {1-")
    constant = question("acceptance={model: constant, alpha: 0.7}")
    lengths = [label for label in (c.label for c in candidates(constant, max_k=5)) if " k=" in label]
    assert lengths == [f"eagle3 k={k}" for k in range(1, 6)]


def test_a_given_schedule_is_a_candidate_and_runs_at_the_length_it_needs() -> None:
    own = question("engine.speculative_config.num_speculative_tokens_per_batch_size=[[1, 4, 3], [5, 9, 0]]")
    found = {candidate.label: candidate for candidate in candidates(own)}
    spec = found["eagle3 schedule as given"].scenario.speculative_config
    assert spec is not None
    assert spec.num_speculative_tokens_per_batch_size == ((1, 4, 3), (5, 9, 0))
    fixed = found["eagle3 k=2"].scenario
    assert fixed.resolved_policy.name == "fixed"


def test_the_schedule_is_the_best_length_at_every_batch_size() -> None:
    # Without CUDA graphs: padding to their sizes makes the best length jump to and fro, which a schedule does not.
    scenario = question("engine.cudagraph_mode=NONE")
    schedule = best_schedule(scenario, 3)
    assert [first for first, _, _ in schedule] == [1, *(last + 1 for _, last, _ in schedule[:-1])]
    lengths = [k for _, _, k in schedule]
    assert lengths == sorted(lengths, reverse=True)
    deployment = deploy(scenario)
    asked = FluidModel.of(scenario, deployment).traffic
    loss = []
    for first, last, k in schedule:
        for size in {first, (first + last) // 2, last}:
            seconds = [mean_step(deployment, asked, size, other).seconds_per_token for other in range(4)]
            loss.append(seconds[k] / min(seconds) - 1)
    assert np.mean(loss) < 0.01
    assert max(loss) < 0.05


def test_the_steady_step_agrees_with_the_simulated_one() -> None:
    """Closed loop at 32 clients: the batch is known, so time per token is the step's over the tokens it yields."""
    loop = "workload.arrivals={process: closed_loop, concurrency: 32}"
    scenario = question(loop, "workload.num_requests=4000")
    for k in (1, 3):
        tuned = with_values(scenario, {"engine.speculative_config.num_speculative_tokens": k})
        deployment = deploy(tuned)
        expected = mean_step(deployment, FluidModel.of(tuned, deployment).traffic, 32, k).seconds_per_token
        rates = [r["output_throughput"] for r in simulate(tuned).replications]
        assert 32 / np.mean(rates) == pytest.approx(expected, rel=0.10)


def test_speculation_wins_where_it_pays(paying: Recommendation) -> None:
    assert paying.worth_it
    assert paying.chosen.gain is not None
    assert paying.chosen.gain.low > 1.5
    assert paying.outcomes[-1].candidate.label == "off"
    assert paying.speculative_config is not None
    assert paying.speculative_config["method"] == "eagle3"
    assert json.dumps(paying.speculative_config) in started(paying).replace("'", "")


def test_every_command_says_how_a_test_bench_forces_the_acceptance(paying: Recommendation) -> None:
    acceptance = paying.chosen.candidate.scenario.acceptance_of()
    assert acceptance is not None
    rates = [round(rate, 4) for rate in acceptance.unconditional(3).tolist()]
    length = acceptance.mean_acceptance_length(3)
    spec = with_values(
        paying.chosen.candidate.scenario,
        {
            "engine.speculative_config.rejection_sample_method": "synthetic",
            "engine.speculative_config.synthetic_acceptance_rates": rates,
        },
    ).speculative_config
    assert spec is not None
    assert spec.synthetic_rates == tuple(rates)
    forced = {server: paste_lines(paying, server) for server in SERVERS}
    assert f'"synthetic_acceptance_rates": {rates}' in forced["vllm"]
    assert f"SGLANG_SIMULATE_ACC_LEN={length:.6g} SGLANG_SIMULATE_ACC_METHOD=match-expected " in forced["sglang"]
    assert f"TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS={length - 1:.6g} forces" in forced["trtllm"]
    share = break_even(paying.chosen.candidate.scenario)
    assert f"acceptance_rate_threshold: {share:.2g}, with" in forced["trtllm"]


def test_off_wins_where_nothing_is_accepted() -> None:
    answer = recommend(question(f"{RATE}=20", "acceptance={model: constant, alpha: 0.02}"), max_k=2)
    assert answer.chosen.candidate.label == "off"
    assert not answer.worth_it
    assert answer.speculative_config is None
    assert "--speculative-config" not in started(answer)


def test_a_longer_draft_that_is_never_accepted_loses_to_a_shorter_one() -> None:
    answer = recommend(question(f"{RATE}=20", "acceptance={model: per_position, rates: [0.8, 0.0, 0.0]}"))
    best_fixed = [o.candidate.label for o in answer.outcomes if " k=" in o.candidate.label]
    assert best_fixed == ["eagle3 k=1", "eagle3 k=2", "eagle3 k=3"]


def test_the_answer_says_when_no_longer_draft_was_tried(paying: Recommendation) -> None:
    # The embedded acceptance has three rates, and three pay at this load.
    assert paying.chosen.candidate.label == "eagle3 k=3"
    assert (paying.largest_tried, paying.summary()["largest_tried"]) == (3, True)
    assert "k = 3 is the largest tried" in answer_line(paying)
    assert "acceptance has no rates beyond position 3" in answer_line(paying)
    sure = question("acceptance={model: constant, alpha: 0.95}", f"{RATE}=5")
    assert "--max-k 8 tries more" in answer_line(recommend(sure, max_k=4))
    best_of_more = recommend(question("acceptance={model: constant, alpha: 0.3}", f"{RATE}=5"), max_k=4)
    assert best_of_more.worth_it
    assert (best_of_more.largest_tried, best_of_more.summary()["largest_tried"]) == (None, False)
    assert "largest tried" not in answer_line(best_of_more)


def test_a_better_alternative_is_found() -> None:
    other: dict[str, Any] = {
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 4},
        "acceptance": {"model": "ngram", "match_probability": 0.95, "alpha": 0.97},
    }
    answer = recommend(
        question(f"{RATE}=10", "acceptance={model: constant, alpha: 0.2}"), alternatives=[other], max_k=4
    )
    assert answer.chosen.candidate.label == "ngram k=4"


def test_loads_are_judged_together_and_shown_apart() -> None:
    loads = [ComparedLoad(f"{rate}", {RATE: float(rate)}) for rate in (5, 20)]
    answer = recommend(question(), loads=loads)
    assert all(len(outcome.gains) == 2 for outcome in answer.outcomes)
    first = answer.outcomes[0]
    assert first.gain is not None
    both = [gain.mean for gain in first.gains if gain is not None]
    assert first.gain.mean == pytest.approx(float(np.sqrt(np.prod(both))), rel=1e-9)


def test_a_recorded_acceptance_has_a_best_length_too(tmp_path: Path) -> None:
    """Every round yields three tokens, bonus included: two drafts are accepted, a third never."""
    record = {"prompt_tokens": 100, "acc_eagle": {"acc_len": [3] * 120}}
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for _ in range(40)))
    arrivals = {"process": "poisson", "request_rate_rps": 2.0}
    lengths = {"path": str(tmp_path / "log.jsonl"), "format": "specdecode_bench"}
    workload = {"arrivals": arrivals, "lengths": lengths, "num_requests": 200}
    overrides = [f"workload={json.dumps(workload)}", "acceptance={model: trace}", "statistics.replications=2"]
    answer = recommend(load_scenario("default", overrides=overrides), max_k=4)
    assert answer.chosen.candidate.label == "eagle3 k=2"


def test_the_metric_decides(paying: Recommendation) -> None:
    by_tokens = recommend(question(f"{RATE}=20"), metric="token_goodput")
    assert by_tokens.chosen.gain is not None
    assert paying.chosen.gain is not None
    # An open loop below capacity completes what arrives: only the time after the last arrival is shorter.
    assert by_tokens.chosen.gain.mean < 1.3 < paying.chosen.gain.mean
    with pytest.raises(InputError, match="unknown metric"):
        recommend(question(), metric="vibes")


def test_a_gain_has_the_verdicts_prediction_interval(paying: Recommendation) -> None:
    sure = "statistics.model_error=auto"
    one = recommend(question(f"{RATE}=20", sure), max_k=1)
    (advantage,) = one.chosen.gains
    assert one.chosen.gain is not None
    assert advantage is not None
    assert (one.chosen.gain.low, one.chosen.gain.high) == pytest.approx((advantage.low, advantage.high))
    exact = paying.outcomes[0].gain
    assert exact is not None
    assert advantage.half_width > 5 * exact.half_width
    # over several loads the bounds do not come closer: the model's error is the same at all
    loads = tuple(ComparedLoad(f"{rate}", {RATE: rate}) for rate in (15, 25))
    several = recommend(question(sure), loads=loads, max_k=1).chosen
    known = [gain for gain in several.gains if gain is not None]
    assert several.gain is not None
    for bound in ("low", "mean", "high"):
        expected = np.sqrt(np.prod([getattr(gain, bound) for gain in known]))
        assert getattr(several.gain, bound) == pytest.approx(float(expected), rel=1e-9)


def test_a_simpler_setting_is_taken_where_nothing_is_gained(monkeypatch: pytest.MonkeyPatch) -> None:
    """At one request at a time every batch has size 1: the schedule does what the fixed length does."""
    monkeypatch.setattr(module, "best_schedule", lambda _scenario, longest: [(1, 8, longest), (9, 1024, 0)])
    answer = recommend(question("workload.arrivals={process: closed_loop, concurrency: 1}", "workload.num_requests=60"))
    assert answer.chosen.candidate.label == "eagle3 k=3"


def test_what_cannot_be_answered_is_refused() -> None:
    with pytest.raises(InputError, match="no speculation"):
        recommend(question("engine.speculative_config=null"))
    with pytest.raises(InputError, match="at least 2"):
        recommend(question("statistics.replications=1"))
    with pytest.raises(InputError, match="speculative_config"):
        recommend(question(), alternatives=[{"acceptance": {"model": "constant", "alpha": 0.5}}])


def test_a_candidate_brings_its_own_acceptance() -> None:
    ngram = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}
    said = "acceptance: was given for eagle3, and the method is now ngram"
    for refuse in (
        lambda: candidates(question(), [ngram]),
        lambda: cutover_settings(question(), alternatives=[ngram]),
        lambda: plan(PlanQuestion(question("slo={tpot_ms: 20}"), rate_rps=5.0, methods=[ngram])),
        lambda: modes_of(question(), SweepPlan(ks=(1,), alternatives=(ngram,))),
    ):
        with pytest.raises(InputError, match=said):
            refuse()


def test_an_error_of_a_candidate_names_the_candidate() -> None:
    accepted = {"model": "constant", "alpha": 0.5}
    good = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}, "acceptance": accepted}
    ngram = {"speculative_config": {"method": "ngram"}, "acceptance": accepted}
    said = r"engine\.speculative_config\.num_speculative_tokens: required"
    for place, refuse in (
        ("candidate 2", lambda: candidates(question(), [good, ngram])),
        ("candidate 1", lambda: cutover_settings(question(), alternatives=[ngram])),
        ("method 2", lambda: plan(PlanQuestion(question("slo={tpot_ms: 20}"), rate_rps=5.0, methods=["off", ngram]))),
    ):
        with pytest.raises(InputError, match=f"^{place}: {said}"):
            refuse()


def test_command(tmp_path: Path) -> None:
    runner = CliRunner()
    changes = [word for override in (*SMALL, f"{RATE}=20") for word in ("--set", override)]
    target = tmp_path / "speculative.json"
    done = runner.invoke(cli.app, ["recommend", "default", *changes, "--json", "--out", str(target)])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert json.loads(target.read_text()) == answer["speculative_config"]
    assert answer["gain"]["low"] > 1.5
    shown = runner.invoke(cli.app, ["recommend", "default", *changes, "--rates", "5,20"])
    assert "Recommended: eagle3" in shown.output
    assert "vllm serve meta-llama/Llama-3.1-8B-Instruct" in shown.output
    assert "5 req/s" in shown.output
    sglang = runner.invoke(cli.app, ["recommend", "default", *changes, "--concurrency", "2", "--engine", "sglang"])
    assert "\npython -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct " in sglang.output
    assert set(answer["commands"]) == {"vllm", "sglang", "trtllm"}
    assert "max_draft_len: 3" in answer["commands"]["trtllm"]["files"]["trtllm.yaml"]


def test_what_is_pasted_says_what_to_fill_in_and_what_was_corrected() -> None:
    unnamed = recommend(question("engine.speculative_config={method: eagle3, num_speculative_tokens: 1}", f"{RATE}=20"))
    assert unnamed.speculative_config is not None
    assert unnamed.speculative_config["model"].startswith("<path or Hugging Face id of an EAGLE-3 head for ")
    assert unnamed.summary()["notes"] == unnamed.notes
    for server in SERVERS:
        assumed, *rest = paste_lines(unnamed, server).splitlines()
        assert assumed.startswith("# the scenario names no draft head: assumed the shape of llama3-8B-eagle3: 1 layer")
        assert any(line.startswith("# Fill in ") for line in rest)
        assert any("<path or Hugging Face id of" in line for line in rest if not line.startswith("#"))
    base = question("engine.model=meta-llama/Llama-3.1-8B", f"{RATE}=20")
    assert "vllm serve meta-llama/Llama-3.1-8B-Instruct " in paste_lines(recommend(base), "vllm")
    assert recommend(question(f"{RATE}=20")).notes == ()
    # The head that was assumed is told of also where nothing is to be drafted.
    poor = ["engine.speculative_config.model=null", "acceptance={model: per_position, rates: [0.02, 0.0, 0.0]}"]
    without = recommend(question(f"{RATE}=5", *poor))
    assert without.chosen.candidate.label == "off"
    assert any("assumed the shape of" in note for note in without.notes)


def test_where_no_setting_keeps_up_the_exit_code_says_so() -> None:
    small = ["--set", "engine.max_num_seqs=4", "--set", "workload.num_requests=200", "--replications", "2"]
    done = CliRunner().invoke(cli.app, ["recommend", "default", *small, "--max-k", "1", "--rates", "50"])
    assert done.exit_code == 4, done.output
    assert "no setting keeps up with the load" in " ".join(done.output.split())


def test_where_no_run_is_settled_nothing_is_recommended() -> None:
    small = ["engine.max_num_seqs=4", "workload.num_requests=200", "acceptance={model: per_position, rates: [0.1]}"]
    k = "engine.speculative_config.num_speculative_tokens=1"
    changes = [word for override in (*small, k) for word in ("--set", override)]
    done = CliRunner().invoke(cli.app, ["recommend", "default", *changes, "--replications", "2", "--rates", "2.8"])
    assert done.exit_code == 5, done.output
    assert "Undecided: the run with and without speculation did not reach a steady state." in " ".join(
        done.output.split()
    )
    assert "recommended" not in done.output
    done = CliRunner().invoke(
        cli.app, ["recommend", "default", *changes, "--replications", "2", "--rates", "2.8", "--json"]
    )
    assert json.loads(done.stdout)["is_undecided"] is True


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--engine", "tgi"], "vllm, sglang, trtllm"),
        (["--rates", "1", "--concurrency", "2"], "not both"),
        (["--concurrency", "1.5"], "whole numbers"),
        (["--candidate", "nothing.yaml"], "neither JSON nor a readable file"),
        (["--candidate", "{method: ngram}"], "speculative_config"),
        (["--out", "no/such/folder/x.json"], "a folder that exists"),
        (["--metric", "vibes"], "unknown metric"),
    ],
)
def test_bad_options_are_one_line(arguments: list[str], part: str) -> None:
    done = CliRunner().invoke(cli.app, ["recommend", "default", *arguments])
    assert isinstance(done.exception, InputError)
    assert part in str(done.exception)


@pytest.mark.parametrize(
    ("on", "off", "word", "said"),
    [
        ("above", "below", "costs", "overloaded"),
        ("at", "below", "too close to call", "at capacity"),
        ("below", "above", "pays", "overloaded without speculation"),
    ],
)
def test_why_a_setting_has_no_gain_is_said(
    paying: Recommendation, on: Position, off: Position, word: Word, said: str
) -> None:
    run = paying.outcomes[-1].verdicts[0].on.run
    verdict = decide(METRICS["e2e"], Side(run, on), Side(run, off), 0.95)
    assert verdict.word == word
    other = dataclasses.replace(paying.outcomes[-1], verdicts=(verdict,), gain=None, logs=())
    assert remark(paying, other) == said
    answer = dataclasses.replace(paying, outcomes=(*paying.outcomes[:-1], other))
    figures = answer.summary()["candidates"][-1]["figures"]
    assert (figures == {"as given": None}) == (on != "below")


def test_a_setting_without_figures_at_one_of_the_loads_ranks_behind(paying: Recommendation) -> None:
    off = next(outcome for outcome in paying.outcomes if outcome.candidate.label == "off")
    best, other, *_ = (outcome for outcome in paying.outcomes if outcome is not off)
    unsettled = decide(METRICS["e2e"], Side(None, "below"), best.verdicts[0].off, 0.95)
    settings = [outcome.candidate for outcome in (off, best, other)]
    ranked = _ranked(settings, [off.verdicts * 2, (*best.verdicts, unsettled), other.verdicts * 2])
    assert ranked[0].candidate == other.candidate
    assert ranked[0].gain is not None
    assert ranked[-1].candidate == best.candidate
    assert ranked[-1].gain is None


def test_where_off_is_overloaded_the_fastest_setting_is_recommended() -> None:
    sizes = ("engine.max_num_seqs=32", "workload.num_requests=800", "statistics.replications=2")
    answer = recommend(load_scenario(overrides=[*sizes, "workload.arrivals.request_rate_rps=25"]))
    assert [outcome.candidate.label for outcome in answer.outcomes] == ["eagle3 k=3", "eagle3 k=2", "eagle3 k=1", "off"]
    assert [outcome.verdicts[0].word for outcome in answer.outcomes[:3]] == ["pays"] * 3
    assert (answer.chosen.candidate.label, answer.worth_it) == ("eagle3 k=3", True)
    assert answer.reason == "keeps up at 1 of 1 loads where off is overloaded"


def test_every_pair_is_measured_like_the_pair_alone() -> None:
    """Whatever warm-up a slower candidate had before it, a pair leaves out its own."""
    sizes = ("workload.num_requests=1000", "statistics.replications=2", f"{RATE}=20", "engine.max_num_seqs=64")
    slow = load_scenario(overrides=[*sizes, "acceptance={model: constant, alpha: 0.05}"])
    quick = {
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 1},
        "acceptance": {"model": "constant", "alpha": 0.9},
    }
    answer = recommend(slow, alternatives=[quick], max_k=1)
    cuts = {}
    for outcome in answer.outcomes:
        if outcome.candidate.scenario.speculative_config is not None:
            alone = compare(outcome.candidate.scenario).points[0].verdict
            assert alone is not None
            assert alone.off.run is not None
            assert outcome.verdicts[0].advantage == alone.advantage
            cuts[outcome.candidate.scenario.method] = alone.off.run.summary["warmup_requests"][0]
    assert cuts["eagle3"] > cuts["ngram"]


def test_a_setting_that_vllm_does_not_have_is_recommended_without_its_command() -> None:
    tree = {"method": "eagle_tree", "num_speculative_tokens": 3, "tree_width": 3, "max_tree_nodes": 8}
    overrides = [
        "engine.version=sglang 0.5",
        f"engine.speculative_config={json.dumps(tree)}",
        "acceptance={model: tree, alpha: 0.8}",
        "workload.num_requests=300",
        "statistics.replications=2",
        "statistics.model_error=none",
    ]
    answer = recommend(load_scenario(overrides=overrides), max_k=1)
    assert answer.worth_it
    assert answer.chosen.candidate.scenario.method == "eagle_tree"
    assert answer.speculative_config is None
    refusal = (
        "engine.speculative_config.method = 'eagle_tree': vLLM 0.32 cannot run it: it drafts no trees (sglang 0.5 does)"
    )
    assert paste_lines(answer, "vllm").splitlines()[-1] == f"# {refusal}"
    assert answer.summary()["commands"]["vllm"] == {"refused": refusal}
    assert "--speculative-eagle-topk 3" in started(answer, "sglang")


def test_closed_forms_stand_beside_the_simulated_gains(paying: Recommendation) -> None:
    acceptance = question().acceptance_of()
    assert acceptance is not None
    rows = {row["setting"]: row["closed_form"] for row in paying.summary()["candidates"]}
    assert rows["off"] is None
    for k in (1, 2, 3):
        assert rows[f"eagle3 k={k}"] == closed_form(candidates(question())[k].scenario)
    assert rows["eagle3 k=3"].block_efficiency == pytest.approx(acceptance.mean_acceptance_length(3))


def test_loads_are_records() -> None:
    with pytest.raises(InputError, match=r"loads = 'k, policy': a load cannot set what is to be recommended"):
        recommend(load_scenario(), loads=[ComparedLoad("off", {"policy": "off", "rate": 5.0, "k": 0})])
    with pytest.raises(InputError, match=r"loads = .*: must be ComparedLoad"):
        recommend(load_scenario(), loads=[10.0])  # type: ignore[list-item]


def test_a_policy_of_the_scenario_is_named_as_no_candidate(paying: Recommendation) -> None:
    answer = recommend(question(f"{RATE}=20", "policy={name: goodput}"))
    assert answer.chosen.gain == paying.chosen.gain
    assert [note for note in answer.notes if "the scenario's policy goodput is no candidate" in note]
    assert not [note for note in paying.notes if "policy" in note]
