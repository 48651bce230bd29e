"""The Gymnasium environment: the checker of its authors, the engine behind it, what its rewards add up to."""

from __future__ import annotations

import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from draftcast.errors import ScenarioError
from draftcast.scenarios.compare.comparison import simulate
from draftcast.scenarios.run.rl_env import OBSERVED, DraftLengthEnv
from draftcast.scenarios.schema.load import load_scenario

SMALL = (
    "workload.num_requests=60",
    "workload.arrivals.request_rate_rps=20",
    "statistics.replications=2",
    "engine.max_num_seqs=64",
)


def environment(*overrides: str) -> DraftLengthEnv:
    return DraftLengthEnv(load_scenario("default", overrides=[*SMALL, *overrides]))


def episode(env: DraftLengthEnv, choose: Any, replication: int = 1) -> tuple[list[float], list[Any], list[Any]]:
    """Rewards, observations and infos of an episode."""
    seen, _ = env.reset(options={"replication": replication})
    rewards, seen_all, infos = [], [seen], []
    ended = False
    while not ended:
        seen, reward, ended, cut, info = env.step(choose(seen))
        assert not cut
        rewards.append(reward)
        seen_all.append(seen)
        infos.append(info)
    return rewards, seen_all, infos


@pytest.mark.filterwarnings("error")
def test_gymnasium_accepts_it() -> None:
    check_env(environment(), skip_render_check=True)


@pytest.mark.parametrize("drafts", [0, 2])
def test_one_action_all_along_is_a_schedule_with_one_length(drafts: int) -> None:
    key = "engine.speculative_config.num_speculative_tokens_per_batch_size"
    # An episode ends with its requests, as a finite run does.
    finite = "statistics.warmup=none"
    run = simulate(load_scenario("default", overrides=[*SMALL, finite, f"{key}=[[1, 1, {drafts}]]"]))
    served = run.requests[run.requests["replication"] == 1]
    env = environment()
    rewards, _, infos = episode(env, lambda _: np.int64(drafts))
    assert env._replica is not None
    assert env._replica.state.requests["finish_s"].tolist() == served["finish_s"].tolist()
    latency_s = (served["finish_s"] - served["arrival_s"]).sum()
    assert -sum(rewards) == pytest.approx(latency_s, rel=1e-9)
    assert sum(info["tokens"] for info in infos) == served["output_tokens"].sum()
    # The engine had scheduled one more step before it saw the last answer.
    assert sum(info["elapsed_s"] for info in infos) == pytest.approx(infos[-1]["now_s"])
    assert 0 <= infos[-1]["now_s"] - served["finish_s"].max() < 0.02


def test_a_reward_is_of_the_seconds_until_the_action() -> None:
    env = environment()
    env.reset(options={"replication": 1})
    lived_s = 0.0
    for _ in range(20):
        _, reward, _, _, info = env.step(np.int64(0))
        assert env._replica is not None
        rows = env._replica.state.requests
        arrived, ended = env._arrival_s < info["now_s"], rows["finish_s"] >= 0
        before, lived_s = lived_s, (np.where(ended, rows["finish_s"], info["now_s"]) - env._arrival_s)[arrived].sum()
        assert reward == pytest.approx(before - lived_s)
    assert lived_s > 0


def test_observations_describe_the_batch() -> None:
    env = environment()
    _, seen, infos = episode(env, lambda _: np.int64(3))
    assert all(env.observation_space.contains(each) for each in seen)
    first = dict(zip(OBSERVED, seen[0].tolist(), strict=True))
    # The first step holds the first request alone: nothing waits, nothing has been drafted.
    assert first["running"] == 1 / 64
    assert first["waiting"] == first["acceptance"] == first["drafts"] == 0.0
    assert 0 < first["context"] < 2048 / 8192
    columns = np.array(seen[:-1])
    accepted = sum(load_scenario("default").acceptance.unconditional(3)) / 3  # type: ignore[union-attr]
    assert columns[len(columns) // 2, OBSERVED.index("acceptance")] == pytest.approx(accepted, abs=0.1)
    assert columns[:, OBSERVED.index("drafts")].max() == 1.0
    assert all(info["elapsed_s"] >= 0 for info in infos)


def test_what_is_done_changes_what_follows() -> None:
    env = environment()
    by_action = [sum(episode(env, lambda _, k=k: np.int64(k))[0]) for k in (0, 3)]
    assert by_action[1] > by_action[0]  # speculation pays at this load: less latency


def test_seeds_draw_requests_and_replications_are_those_of_simulate() -> None:
    env = environment()

    def first(**arguments: Any) -> tuple[float, list[int]]:
        env.reset(**arguments)
        assert env._replica is not None
        return float(env._arrival_s[0]), env._replica.state.requests["prompt"].tolist()

    assert first(seed=3) == first(seed=3) != first(seed=4)
    assert first() != first()
    assert first(options={"replication": 0}) == first(seed=9, options={"replication": 0})


def test_a_step_needs_an_episode() -> None:
    env = environment()
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(np.int64(0))
    episode(env, lambda _: np.int64(1))
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(np.int64(0))


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("engine.speculative_config=null", "engine.speculative_config"),
        ("cluster.replicas=2", "cluster.replicas"),
        ("workload.arrivals={process: closed_loop, concurrency: 4}", "workload.arrivals.process"),
    ],
)
def test_scenarios_it_cannot_play(override: str, key: str) -> None:
    scenario = load_scenario("default", overrides=["workload.num_requests=60", override])
    with pytest.raises(ScenarioError, match=key):
        DraftLengthEnv(scenario)


@pytest.mark.parametrize("action", [4, -1, 1.7, "2", None, np.array([2])])
def test_an_action_outside_the_space_is_refused(action: Any) -> None:
    env = environment()
    env.reset()
    with pytest.raises(gymnasium.error.InvalidAction, match=r"action = .*: must be a whole number in 0\.\.3"):
        env.step(action)
    env.step(np.array(3))  # as stable-baselines3 gives it


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replicaton": 1}, "options.replicaton = 1: unknown; the only option is replication"),
        ({"replication": -1}, "options.replication = -1: must be a whole number of at least 0"),
        ({"replication": 1.7}, "options.replication = 1.7: must be a whole number of at least 0"),
        ({"replication": "a"}, "options.replication = 'a': must be a whole number of at least 0"),
    ],
)
def test_options_of_an_episode_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=re.escape(message)):
        environment().reset(options=options)
