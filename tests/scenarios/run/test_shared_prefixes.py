"""System prompts and classes without drafts: cached tokens equal closed forms, drafts go where they may."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import yaml
from paths import ROOT
from typer.testing import CliRunner

from draftcast import load_scenario, simulate
from draftcast.errors import InputError, ScenarioError
from draftcast.scenarios.cli.main import app
from draftcast.scenarios.compare import capacity as saturated
from draftcast.scenarios.compare.serve_command import class_notes
from draftcast.scenarios.cutover.axis import AXES
from draftcast.scenarios.live.run import live_requests
from draftcast.scenarios.schema import Scenario
from draftcast.sim.workload.lengths import ConstantTokens

NO_DRAFTS = "engine.speculative_config=null"
SPARSE = (
    "workload.arrivals={process: deterministic, request_rate_rps: 0.5}",  # each answered before the next comes
    "workload.num_requests=40",
    "statistics.replications=1",
    "statistics.warmup=none",
)


def scenario(*overrides: str) -> Scenario:
    return load_scenario("default", overrides=[*SPARSE, *overrides])


@pytest.mark.parametrize(("system", "prompt", "variants"), [(100, 40, 1), (96, 10, 1), (1000, 333, 3), (9, 50, 2)])
@pytest.mark.parametrize("drafts", [False, True])
def test_all_but_the_first_request_of_a_text_hit_its_whole_blocks(
    system: int, prompt: int, variants: int, drafts: bool
) -> None:
    lengths = f"workload.lengths={{prompt_tokens: {prompt}, output_tokens: 20}}"
    text = f"workload.system_prompt={{tokens: {system}, variants: {variants}}}"
    requests = simulate(scenario(lengths, text, *([] if drafts else [NO_DRAFTS]))).requests
    assert (requests["prompt_tokens"] == system + prompt).all()
    # A draft head needs the hidden state before the last hit block, which vLLM therefore computes again.
    whole = system // 16 - drafts
    cached = requests["cached_tokens"].to_numpy()
    assert set(cached.tolist()) <= {0, max(16 * whole, 0)}
    if whole > 0:
        assert np.count_nonzero(cached == 0) == variants


@pytest.mark.parametrize(("system", "whole"), [(96, 5), (97, 6), (100, 6), (9, 0)])
def test_a_hash_of_vllm_0_33_covers_the_token_behind_its_block(system: int, whole: int) -> None:
    """The last whole block of a text is hit where one more token of the text stands behind it."""
    lengths = "workload.lengths={prompt_tokens: 40, output_tokens: 20}"
    text = f"workload.system_prompt={{tokens: {system}, variants: 1}}"
    cached = simulate(scenario(lengths, text, "engine.version=vllm 0.33")).requests["cached_tokens"].tolist()
    assert cached == [0, *[16 * whole] * (len(cached) - 1)]


def test_classes_share_the_workloads_text_and_nobody_elses() -> None:
    classes = (
        "workload.classes=[{name: a, share: 0.4}, {name: b, share: 0.3},"
        " {name: own, share: 0.3, system_prompt: {tokens: 320}}]"
    )
    requests = simulate(scenario(classes, "workload.system_prompt={tokens: 320}", NO_DRAFTS)).requests
    own = requests["class"] == "own"
    for mine in (own, ~own):
        assert np.count_nonzero(requests["cached_tokens"][mine] == 0) == 1
        assert mine.sum() > 5


def test_affinity_sends_a_text_to_the_replica_that_holds_it() -> None:
    two = ("cluster.replicas=2", "workload.system_prompt={tokens: 1600, variants: 8}", NO_DRAFTS)
    misses = {}
    for router in ("round_robin", "prefix_affinity"):
        requests = simulate(scenario(*two, f"cluster.router={router}")).requests
        misses[router] = int((requests["cached_tokens"] == 0).sum())
    assert misses["prefix_affinity"] == 8 < misses["round_robin"] <= 16


def test_a_class_without_speculation_is_never_drafted_for() -> None:
    classes = "workload.classes=[{name: chat, share: 0.5}, {name: batch, share: 0.5, speculation: false}]"
    for method in ("engine.async_scheduling=true", "engine.async_scheduling=false"):
        requests = simulate(scenario(classes, method, "workload.arrivals.request_rate_rps=20")).requests
        drafts = requests.groupby("class", observed=True)["num_draft_tokens"].sum()
        assert drafts["batch"] == 0
        assert drafts["chat"] > 0
    # It accepts nothing, so it needs no acceptance either.
    only = "workload.classes=[{name: batch, share: 1, speculation: false}]"
    assert simulate(scenario(only, "acceptance=null")).summary["figures"]["mean_acceptance_length"].mean != 1


SESSIONS = (
    "workload.lengths={prompt_tokens: 70, output_tokens: 45}",
    "workload.sessions={turns: 5, think_time_s: 2}",
    "workload.system_prompt={tokens: 200}",
    "workload.arrivals={process: poisson, request_rate_rps: 2}",
    "workload.num_requests=150",
)


@pytest.mark.parametrize("drafts", [False, True])
def test_each_turn_hits_all_whole_blocks_of_those_before(drafts: bool) -> None:
    requests = simulate(scenario(*SESSIONS, *([] if drafts else [NO_DRAFTS]))).requests
    turn = requests["session_request"].to_numpy()
    before = 200 + turn * (70 + 45)
    assert (requests["prompt_tokens"] == before + 70).all()
    # Of what was said before, the last token of the answer was never fed to the model.
    known = np.where(turn > 0, before - 1, 200)
    expected = 16 * (known // 16 - drafts)
    first = requests["arrival_s"].to_numpy().argmin()
    expected[first] = 0
    assert (requests["cached_tokens"].to_numpy() == expected).all()


def test_a_turn_is_sent_as_long_after_the_answer_as_the_user_thinks() -> None:
    overrides = (*SESSIONS, "workload.sessions.think_time_distribution=constant")
    requests = simulate(scenario(*overrides)).requests.sort_values(["session", "session_request"])
    gaps_s = requests["arrival_s"].to_numpy()[1:] - requests["finish_s"].to_numpy()[:-1]
    goes_on = requests["session"].to_numpy()[1:] == requests["session"].to_numpy()[:-1]
    assert goes_on.sum() == 120
    assert gaps_s[goes_on] == pytest.approx(2.0)


def test_off_and_on_play_the_same_sessions() -> None:
    columns = ["session", "session_request", "prompt_tokens", "output_tokens"]
    both = [
        simulate(scenario(*SESSIONS, *more)).requests.sort_values(["session", "session_request"])[columns].to_numpy()
        for more in ((), (NO_DRAFTS,))
    ]
    assert (both[0] == both[1]).all()


def test_affinity_keeps_a_session_where_its_prefix_is() -> None:
    figures = {
        router: simulate(scenario(*SESSIONS, "cluster.replicas=3", f"cluster.router={router}")).summary["figures"]
        for router in ("random", "prefix_affinity")
    }
    alone = simulate(scenario(*SESSIONS)).summary["figures"]["prefix_cache_hit_rate"].mean
    rates = {router: found["prefix_cache_hit_rate"].mean for router, found in figures.items()}
    assert rates["prefix_affinity"] == pytest.approx(alone, abs=0.02)
    assert rates["random"] < 0.9 * alone


def test_little_memory_forgets_sessions_while_their_users_think() -> None:
    slow = (NO_DRAFTS, "engine.max_model_len=1500", "workload.sessions.think_time_s=20")
    few, many = (
        simulate(scenario(*SESSIONS, *slow, f"engine.num_gpu_blocks={blocks}")).summary["figures"]
        for blocks in (120, 4000)
    )
    assert few["prefix_cache_hit_rate"].mean < 0.8 * many["prefix_cache_hit_rate"].mean


STEADY = (
    "workload.sessions={turns: {distribution: geometric, mean: 4}, think_time_s: 1}",
    "workload.system_prompt={tokens: 500}",
    "workload.lengths={prompt_tokens: 60, output_tokens: 80}",
    "workload.arrivals.request_rate_rps=20",
    "workload.num_requests=3000",
    "statistics.replications=2",
)


def test_a_steady_run_offers_the_rate_that_is_asked_for() -> None:
    result = simulate(load_scenario("default", overrides=STEADY))
    assert result.state == "steady"
    assert result.summary["figures"]["request_throughput"].mean == pytest.approx(20, rel=0.05)
    # Later turns are missing at first, so the warm-up is longer than that of single requests.
    single = simulate(load_scenario("default", overrides=[*STEADY, "workload.sessions.turns=1"]))
    assert min(result.summary["warmup_requests"]) > max(single.summary["warmup_requests"])


def test_above_its_capacity_a_run_is_overloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saturated, "REPLICATIONS", 2)
    monkeypatch.setattr(saturated, "LEAST_REQUESTS", 4000)
    few_seqs = [
        *STEADY,
        "engine.max_num_seqs=16",
        "workload.sessions={turns: 4, think_time_s: 0.1}",
        "workload.lengths.output_tokens=20",
        "statistics.replications=1",
    ]
    known = saturated.capacity(load_scenario("default", overrides=few_seqs))
    assert known is not None
    at = {}
    for share in (0.8, 2):
        rate = f"workload.arrivals={{process: deterministic, request_rate_rps: {share * known.estimate.mean}}}"
        at[share] = simulate(load_scenario("default", overrides=[*few_seqs, rate]))
    assert {share: result.state for share, result in at.items()} == {0.8: "steady", 2: "overloaded"}
    offered = at[0.8].summary["figures"]["request_throughput"].mean
    assert offered == pytest.approx(0.8 * known.estimate.mean, rel=0.02)


def test_clients_of_a_closed_loop_play_one_session_after_another() -> None:
    loop = "workload.arrivals={process: closed_loop, concurrency: 6}"
    result = simulate(load_scenario("default", overrides=[*STEADY, loop]))
    requests = result.requests[result.requests["replication"] == 0]
    assert result.state == "steady"
    times = np.concatenate([requests["arrival_s"], requests["finish_s"] - 1e-9])
    in_system = np.cumsum(np.repeat([1, -1], len(requests))[np.argsort(times, kind="stable")])
    assert in_system.max() <= 6
    assert requests["session"].max() < len(requests) / 3


def test_a_session_ends_where_the_model_does() -> None:
    result = simulate(scenario(*SESSIONS, "engine.max_model_len=600"))
    requests = result.requests
    # 200 + 4 * 115 tokens do not fit; shorter sessions begin more often.
    assert requests["session_request"].max() == 2
    assert (requests["prompt_tokens"] + requests["output_tokens"] <= 600).all()
    assert any("sessions end early, at max_model_len 600" in note for note in result.summary["notes"])


def test_classes_of_sessions_and_of_single_requests_keep_their_shares() -> None:
    classes = (
        "workload.classes=[{name: agent, share: 0.6, sessions: {turns: 2, think_time_s: 1, calls_per_turn:"
        " {distribution: uniform, low: 1, high: 5}, tool_output_tokens: 300, tool_time_s: 0.2}},"
        " {name: single, share: 0.4}]"
    )
    overrides = [*STEADY[2:], classes, "workload.num_requests=6000"]
    requests = simulate(load_scenario("default", overrides=overrides)).requests
    assert (requests["class"] == "agent").mean() == pytest.approx(0.6, abs=0.03)
    agent = requests[requests["class"] == "agent"].sort_values(["replication", "session", "session_request"])
    added = agent["prompt_tokens"].diff()[agent["session_request"] > 0] - 80
    assert set(added.astype(int)) == {60, 300}


def test_the_example_of_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs/workloads.md").read_text("utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.S)
    (lines,) = re.findall(r"<!-- run by tests -->\n```bash\n(.*?)```", text, re.S)
    data = yaml.safe_load((ROOT / "scenarios/files/default.yaml").read_text("utf-8")) | yaml.safe_load(block)
    data["workload"]["num_requests"] = 1000
    Path("agents.yaml").write_text(yaml.safe_dump(data))
    for line in lines.splitlines():
        done = CliRunner().invoke(app, [*shlex.split(line)[1:], "--json"])
        assert done.exit_code == 0, done.output
    low, high = json.loads(done.stdout)["cutovers"][0]["points"]
    # Short answers are mostly prompt, which drafts do not shorten.
    assert low["advantage"]["mean"] < high["advantage"]["mean"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["workload={arrivals: {process: trace, path: x}, system_prompt: {tokens: 9}}"], "the trace has the prompts"),
        ([*SESSIONS, "workload.num_requests=null", "workload.duration_s=9"], "not with sessions"),
        ([*SESSIONS, "workload.lengths={path: x.csv}"], "not with sessions: give distributions"),
        (["workload.sessions={turns: 2, think_time_s: 1, calls_per_turn: 3}"], "go together"),
        (["workload.sessions={turns: 2, think_time_s: 1, tool_time_s: 3}"], "has no effect without calls_per_turn"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_a_line(overrides: list[str], message: str) -> None:
    with pytest.raises(ScenarioError, match=message) as error:
        load_scenario("default", overrides=overrides)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("axis", "x"), [("context", 100), ("batch", 4)])
def test_axes_that_sessions_do_not_have_are_refused(axis: str, x: float) -> None:
    with pytest.raises(InputError, match=r"system prompt or earlier turns|never sent at once"):
        AXES[axis].at(scenario(*SESSIONS), x)
    answers = AXES["output"].at(scenario(*SESSIONS), 9).workload.lengths
    assert answers is not None
    assert answers.output_tokens == ConstantTokens(distribution="constant", value=9)


def test_whoever_pastes_a_command_is_told_which_classes_go_without_drafts() -> None:
    (note,) = class_notes(scenario("workload.classes=[{name: slow, share: 1, speculation: false}]"))
    assert "serve the class slow apart" in note
    assert not class_notes(scenario())


@pytest.mark.parametrize(
    "more", [SESSIONS[1], SESSIONS[2], "workload.classes=[{name: a, share: 1, speculation: false}]"]
)
def test_live_runs_refuse_what_they_do_not_send(more: str) -> None:
    with pytest.raises(ScenarioError, match="is only simulated"):
        live_requests(scenario(more), 0)


def test_a_session_without_end_is_refused() -> None:
    with pytest.raises(ScenarioError, match="at most 10000"):
        simulate(scenario(*SESSIONS, "workload.sessions.turns=20000"))
