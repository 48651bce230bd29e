"""Groups of replicas of unlike hardware or settings behind one router."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from paths import ROOT

from draftcast import RunResult, load_scenario, simulate
from draftcast.errors import InputError, ScenarioError
from draftcast.scenarios.compare.capacity import capacity
from draftcast.scenarios.compare.limits import GroupLimits, limits_at
from draftcast.scenarios.compare.metric import Price, mean_price
from draftcast.scenarios.compare.recommend import recommend
from draftcast.scenarios.compare.serve_command import SERVERS, ServerCommand
from draftcast.scenarios.cutover.search import CutoverQuestion, cutover
from draftcast.scenarios.plan.question import PlanQuestion
from draftcast.scenarios.plan.sizing import plan
from draftcast.scenarios.run.fluid import FluidModel
from draftcast.scenarios.run.workload_spec import acceptance_models
from draftcast.scenarios.schema import Scenario, SpeculativeConfig
from draftcast.scenarios.schema.changes import assignments, changed_keys
from draftcast.scenarios.schema.load import (
    dump_scenario,
    gpus_by_device,
    members,
    scenario_hash,
    to_mapping,
    with_rate,
    with_values,
    without_speculation,
)
from draftcast.scenarios.show.recommend_report import candidates_table, paste_lines
from draftcast.scenarios.sweep.cells import run_task, task_of
from draftcast.sim.cluster.routers import cluster_capacity

SMALL = ("workload.num_requests=200", "statistics.replications=1", "statistics.warmup=none")
SHORT = "workload.lengths={prompt_tokens: 200, output_tokens: 40}"
OFF = "engine: {speculative_config: null}"
UNLIKE = f"groups: [{{}}, {{hardware: a100-80g, {OFF}}}]"
"""An H100 with speculation and an A100 without."""
OWN_LENGTH = "groups: [{engine: {speculative_config: {num_speculative_tokens: 1}}}, {}]"

SEARCH = (
    "engine: {speculative_config: {method: ngram, num_speculative_tokens: 4}}, "
    "acceptance: {model: ngram, match_probability: 0.5, alpha: 0.5}"
)


def cluster(section: str, *more: str) -> Scenario:
    return load_scenario(overrides=[*SMALL, f"cluster={{{section}}}", *more])


def by_replica(run: RunResult) -> Any:
    return run.requests.groupby("replica")


@pytest.mark.parametrize("router", ["round_robin", "least_loaded", "power_of_two"])
def test_like_groups_are_a_cluster_of_like_replicas(router: str) -> None:
    busy = "workload.arrivals.request_rate_rps=60"
    alike = simulate(cluster(f"router: {router}, replicas: 3", busy))
    groups = simulate(cluster(f"router: {router}, groups: [{{replicas: 2}}, {{}}]", busy))
    pd.testing.assert_frame_equal(groups.requests, alike.requests, check_exact=True)
    assert groups.replications == alike.replications
    assert [group["engine"] for group in groups.summary["groups"]] == [alike.summary["engine"]] * 2


def test_a_saved_run_of_groups_is_loaded_whole(tmp_path: Path) -> None:
    run = simulate(cluster(UNLIKE, SHORT))
    read = RunResult.load(run.save(tmp_path / "run"))
    assert repr(read.summary["groups"]) == repr(run.summary["groups"])


def test_each_group_is_its_own_engine() -> None:
    """Requests in turn: every second one is served as by one engine of the group that gets these alone."""
    rate = "workload.arrivals={process: deterministic, request_rate_rps: 10}"
    mixed = simulate(cluster(UNLIKE, rate, SHORT))
    for replica, alone in enumerate(members(cluster(UNLIKE, rate, SHORT))):
        half = with_rate(alone, 5.0)
        served = simulate(with_values(half, {"workload.num_requests": 100})).summary["figures"]
        own = mixed.requests[mixed.requests["replica"] == replica]
        assert len(own) == 100
        assert (own["num_drafts"].sum() > 0) == (replica == 0)
        latency = float((own["finish_s"] - own["arrival_s"]).mean())
        assert mixed.summary["groups"][replica]["figures"]["mean_e2el_s"].mean == pytest.approx(latency)
        assert latency == pytest.approx(served["mean_e2el_s"].mean, rel=0.02)  # other drafts are accepted


def test_a_group_drafts_by_a_method_of_its_own_with_its_own_acceptance() -> None:
    alpha = "acceptance: {model: constant, alpha: 0.5}"
    mixed = cluster(f"groups: [{{}}, {{{SEARCH}}}, {{{alpha}}}]", SHORT, "workload.num_requests=600")
    assert [member.method for member in members(mixed)] == ["eagle3", "ngram", "eagle3"]
    assert members(mixed)[1].speculative_config == SpeculativeConfig(method="ngram", num_speculative_tokens=4)
    run = simulate(mixed)
    assert [group["speculation"] for group in run.summary["groups"]] == ["eagle3 k=3", "ngram k=4", "eagle3 k=3"]
    for index, member in enumerate(members(mixed)):
        own = run.requests[run.requests["replica"] == index]
        tokens = acceptance_models(member)[0].unconditional(member.num_speculative_tokens).sum()
        assert own["num_accepted_tokens"].sum() / own["num_drafts"].sum() == pytest.approx(tokens, rel=0.1)
        most = own["num_draft_tokens"].sum() / own["num_drafts"].sum()
        assert 0.85 * member.num_speculative_tokens < most <= member.num_speculative_tokens
    again = load_scenario(_yaml(dump_scenario(mixed)))
    assert (again, scenario_hash(again)) == (mixed, scenario_hash(mixed))
    with pytest.raises(ScenarioError, match="a group has its own"):
        mixed.with_(acceptance=0.3)


def test_another_method_does_not_inherit_the_acceptance_of_a_group() -> None:
    own = "acceptance: {model: constant, alpha: 0.5}"
    mixed = cluster(f"groups: [{{}}, {{{own}}}]")
    medusa = {"engine.speculative_config": {"method": "medusa", "num_speculative_tokens": 3}}
    accepted: dict[str, Any] = {"acceptance": {"model": "constant", "alpha": 0.4}}
    with pytest.raises(ScenarioError, match="was given for eagle3, and the method is now medusa") as raised:
        with_values(mixed, medusa | accepted)
    assert raised.value.key == "cluster.groups.1.acceptance"
    other = with_values(mixed, medusa | accepted | {"cluster.groups.1.acceptance": accepted["acceptance"]})
    assert scenario_hash(load_scenario(to_mapping(mixed), overrides=assignments(changed_keys(mixed, other)))) == (
        scenario_hash(other)
    )
    with pytest.raises(ScenarioError, match="was given for eagle3, and the method is now medusa"):
        with_values(mixed, {f"cluster.groups.1.{key}": value for key, value in medusa.items()})


def test_a_router_that_looks_sends_more_to_the_faster_group() -> None:
    busy = "workload.arrivals.request_rate_rps=30"
    looks = by_replica(simulate(cluster(f"router: least_loaded, {UNLIKE}", busy))).size()
    turns = by_replica(simulate(cluster(UNLIKE, busy))).size()
    assert turns.tolist() == [100, 100]
    assert looks[0] > 1.3 * looks[1]


def test_the_capacity_of_unlike_replicas_by_hand() -> None:
    assert cluster_capacity("least_loaded", [1.0, 3.0]) == 4.0
    assert cluster_capacity("prefix_affinity", [1.0, 3.0]) == 4.0
    for router in ("round_robin", "random"):
        assert cluster_capacity(router, [3.0, 1.0]) == 2.0  # half of all requests fall to the slower one
    # A third of all pairs are the two slow ones, which complete 2 together.
    assert cluster_capacity("power_of_two", [1.0, 10.0, 1.0]) == 6.0
    assert cluster_capacity("power_of_two", [1.0, 2.0, 1.0]) == 4.0
    assert cluster_capacity("power_of_two", [0.1] * 3) == 3 * 0.1


@pytest.mark.parametrize("router", ["round_robin", "least_loaded"])
def test_the_capacity_is_where_a_mixed_cluster_falls_behind(router: str) -> None:
    lasting = ("statistics.warmup=auto", "statistics.replications=2", "workload.num_requests=4000", SHORT)
    small = "hardware: a100-80g, engine: {max_num_seqs: 16, speculative_config: null}"
    mixed = cluster(f"router: {router}, groups: [{{engine: {{max_num_seqs: 32}}}}, {{{small}}}]", *lasting)
    found = capacity(mixed)
    alone = [capacity(member) for member in members(mixed)]
    assert found is not None
    fast, slow = (own.estimate.mean for own in alone if own is not None)
    assert found.estimate.mean == pytest.approx(2 * slow if router == "round_robin" else fast + slow)
    assert simulate(with_rate(mixed, 0.9 * found.estimate.mean)).state == "steady"
    assert simulate(with_rate(mixed, 1.15 * found.estimate.mean)).state == "overloaded"
    fluid = FluidModel.of(mixed)
    assert fluid.capacity_rps() == pytest.approx(found.estimate.mean, rel=0.2)


def test_off_turns_speculation_off_in_every_group() -> None:
    mixed = cluster(OWN_LENGTH)
    assert [member.num_speculative_tokens for member in members(mixed)] == [1, 3]
    assert [member.speculative_config for member in members(without_speculation(mixed))] == [None, None]
    assert simulate(without_speculation(mixed)).requests["num_drafts"].sum() == 0


def test_the_fluid_of_like_groups_is_that_of_a_cluster() -> None:
    alike, groups = FluidModel.of(cluster("replicas: 2")), FluidModel.of(cluster("groups: [{}, {}]"))
    assert groups.slots == alike.slots
    assert groups.capacity_rps() == pytest.approx(alike.capacity_rps(), rel=1e-3)  # of 24 batch sizes, other ones
    for requests in (1.0, 7.0, 400.0):
        assert groups.latency_s(requests) == pytest.approx(alike.latency_s(requests))


def test_what_limits_is_said_of_the_fullest_group() -> None:
    mixed = cluster("router: least_loaded, groups: [{}, {engine: {max_num_seqs: 8}}]")
    found = limits_at(mixed, FluidModel.of(mixed), {"mean_e2el_s": 1.0, "request_throughput": 20.0})
    assert isinstance(found, GroupLimits)
    assert (found.group, found.limit, found.in_system) == (1, "max_num_seqs", 8.0)
    assert "group 1" in found.sentence


def test_a_file_of_groups_is_written_and_read_back() -> None:
    mixed, plain = cluster(f"router: random, {UNLIKE}"), cluster("replicas: 2")
    again = load_scenario(_yaml(dump_scenario(mixed)))
    assert (again, scenario_hash(again)) == (mixed, scenario_hash(mixed))
    assert mixed.cluster.replicas == 2
    for base, asked in ((plain, mixed), (mixed, plain), (mixed, without_speculation(mixed))):
        texts = assignments(changed_keys(base, asked))
        assert scenario_hash(load_scenario(_yaml(dump_scenario(base)), overrides=texts)) == scenario_hash(asked)
    assert scenario_hash(mixed) != scenario_hash(with_values(mixed, {"cluster.groups.1.hardware": "l40s"}))


def _yaml(text: str) -> dict[str, Any]:
    from draftcast.yaml_text import parse_yaml

    data = parse_yaml(text, "text")
    assert isinstance(data, dict)
    return data


@pytest.mark.parametrize(
    ("section", "key", "says"),
    [
        ("replicas: 3, groups: [{}, {}]", "cluster.replicas", "cluster.groups have 2"),
        ("groups: [{gpu: a100-80g}]", "cluster.groups.0.gpu", "did you mean hardware"),
        ("groups: [{}, {engine: {max_seqs: 3}}]", "cluster.groups.1.engine.max_seqs", "did you mean max_num_seqs"),
        ("groups: [{engine: {max_num_seqs: 0}}]", "cluster.groups.0.engine.max_num_seqs", "1"),
        ("groups: [{}, {engine: {model: Qwen3-8B}}]", "cluster.groups.1.engine.model", "one for all replicas"),
        ("groups: [{engine: {max_model_len: 512}}]", "cluster.groups.0.engine.max_model_len", "one for all replicas"),
        (
            "groups: [{}, {engine: {speculative_config: {method: medusa, num_speculative_tokens: 2}}}]",
            "cluster.groups.1.acceptance",
            "required for method medusa",
        ),
        (
            f"groups: [{{}}, {{{SEARCH.replace('match_probability: 0.5, ', '')}}}]",
            "cluster.groups.1.acceptance.match_probability",
            "required",
        ),
        (
            "groups: [{acceptance: {reference: nobody}}]",
            "cluster.groups.0.acceptance.reference",
            "must be a name",
        ),
        (
            "groups: [{acceptance: {model: trace, path: log.jsonl}}]",
            "cluster.groups.0.acceptance",
            "is of all requests",
        ),
        (f"groups: [{{{OFF}}}]", "engine.speculative_config", "no group speculates"),
        ("groups: [{hardware: rtx-9}]", "cluster.groups.0.hardware", "unknown"),
        ("groups: [{engine: {gpu_memory_utilization: 0.1}}]", "cluster.groups.0.engine.", "fits with"),
    ],
)
def test_what_no_cluster_can_be_is_refused_naming_the_key(section: str, key: str, says: str) -> None:
    with pytest.raises(InputError) as raised:
        simulate(cluster(section))
    assert str(raised.value.key).startswith(key)
    assert says in raised.value.message
    assert "\n" not in str(raised.value)


def test_a_device_of_a_group_may_be_a_file_beside_the_scenario(tmp_path: Path) -> None:
    own, data = tmp_path / "mine.yaml", to_mapping(cluster("groups: [{}, {hardware: mine.yaml}]"))
    shutil.copy(ROOT / "calibration/hardware/a100-80g.yaml", own)
    (tmp_path / "scenario.yaml").write_text(json.dumps(data))
    read = load_scenario(tmp_path / "scenario.yaml")
    before = scenario_hash(read)
    assert members(read)[1].hardware == str(own)
    own.write_text(own.read_text() + "# another\n")
    assert scenario_hash(read) != before


def test_speculation_and_memory_of_one_engine_are_not_taken_for_another() -> None:
    with pytest.raises(ScenarioError, match="null in the groups without"):
        with_values(
            without_speculation(cluster("replicas: 2")),
            {"cluster": {"groups": [{"engine": {"speculative_config": {"num_speculative_tokens": 2}}}]}},
        )
    with pytest.raises(ScenarioError, match="is of other devices"):
        cluster("groups: [{}, {hardware: a100-80g}]", "engine.num_gpu_blocks=5000")
    cluster("groups: [{}, {hardware: a100-80g, engine: {num_gpu_blocks: null}}]", "engine.num_gpu_blocks=5000")


def test_gpus_and_their_price() -> None:
    mixed = cluster("groups: [{replicas: 2, engine: {tensor_parallel_size: 2}}, {hardware: a100-80g, replicas: 1}]")
    assert gpus_by_device(mixed) == {"h100-sxm": 4, "a100-80g": 1}
    prices = {"h100-sxm": Price(3.0, "2026-11-02"), "a100-80g": Price(1.0, "2026-11-01")}
    assert mean_price(prices, gpus_by_device(mixed)) == Price(13.0 / 5, "2026-11-01")
    with pytest.raises(InputError, match="has no price"):
        mean_price({"h100-sxm": prices["h100-sxm"]}, gpus_by_device(mixed))
    (row,) = run_task(task_of(mixed)).rows
    assert row["num_gpus"] == 5


def test_a_cutover_of_a_mixed_cluster() -> None:
    mixed = cluster(f"router: least_loaded, {UNLIKE}", SHORT, "statistics.warmup=auto", "statistics.replications=2")
    (answer,) = cutover(CutoverQuestion(mixed, "concurrency", "cost", (4, 64), 60_000, Price(2.0, "2026-11-01")))
    assert answer.lower is not None
    assert isinstance(answer.lower.on, GroupLimits)
    throughput = answer.probes[0].gains
    assert answer.costs[0].on == pytest.approx(2 * 2.0 / 3600 * 1e6 / (sum(throughput) / len(throughput)))


def test_a_setting_is_recommended_for_the_groups_that_say_nothing_else() -> None:
    mixed = cluster(f"groups: [{{}}, {{hardware: a100-80g}}, {{{OFF}}}]", SHORT, "statistics.replications=2")
    answer = recommend(mixed, metric="tpot", max_k=2)
    assert {outcome.candidate.label for outcome in answer.outcomes} == {"off", "eagle3 k=1", "eagle3 k=2", "eagle3 k=3"}
    for outcome in answer.outcomes:
        lengths = [member.num_speculative_tokens for member in members(outcome.candidate.scenario)]
        assert lengths[0] == lengths[1]
        assert lengths[2] == 0
        played = simulate(outcome.candidate.scenario)
        (verdict,) = outcome.verdicts
        assert verdict.on.figures is not None
        assert verdict.on.figures["mean_tpot_s"] == played.summary["figures"]["mean_tpot_s"]
    chosen = members(answer.chosen.candidate.scenario)
    for index, member in enumerate(chosen):
        for server in SERVERS:
            command = answer.commands[f"{server} of cluster.groups.{index}"]
            assert isinstance(command, ServerCommand)
            assert ("spec" in command.text) is (member.speculative_config is not None)
    pasted = paste_lines(answer, "vllm")
    assert pasted.count("vllm serve") == 3
    assert "# vllm of cluster.groups.1:" in pasted
    with pytest.raises(ScenarioError, match="all have a speculative_config of their own"):
        recommend(cluster(f"groups: [{{{OFF}}}, {{engine: {{speculative_config: {{num_speculative_tokens: 1}}}}}}]"))


def test_a_plan_of_unlike_replicas_is_refused() -> None:
    with pytest.raises(ScenarioError, match=r"asked of one engine.* sweep") as raised:
        plan(PlanQuestion(cluster(OWN_LENGTH, "slo={tpot_ms: 50}", "statistics.replications=2")))
    assert raised.value.key == "cluster.groups"


def test_metrics_of_one_engine_are_refused(refused: Callable[..., str]) -> None:
    assert "cluster.groups" in refused("simulate", "default", "--set", f"cluster={{{UNLIKE}}}", "--prometheus=-")


def test_a_recommendation_says_that_off_is_off_in_groups_of_their_own_speculation_too() -> None:
    answer = recommend(cluster(OWN_LENGTH, SHORT, "statistics.replications=2"), max_k=1)
    assert [note for note in answer.notes if note.startswith("off is off in every group")]
    assert [column.header for column in candidates_table(answer).columns] == ["setting", "gain over off", ""]
