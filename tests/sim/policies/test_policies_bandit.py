"""The bandit's two rules by hand: Nightjar's bins and BanditSpec's confidence bounds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numba import types

from draftcast.sim.acceptance.chain import Chain
from draftcast.sim.compiled.borrowed import PinnedBundle
from draftcast.sim.policies import bandit as rule
from draftcast.sim.policies.bandit import Bandit


class Game:
    """Decisions of a bandit whose lengths take a known time per token; no engine runs."""

    def __init__(self, build_case: Any, policy: Bandit, seconds: dict[int, list[float]], k: int, seed: int = 0) -> None:
        case = build_case([4], [4], method="eagle", k=k, policy=policy, max_num_seqs=8)
        self.state = case.replica.state._replace(policy=policy.compile(k, 8, seed))
        self.held = PinnedBundle(self.state)
        self.decide, self.observe = (self.held.bind(f, types.int64) for f in (rule.decide_bandit, rule.observe_bandit))
        self.seconds = seconds  # by number of requests, one entry per length

    def play(self, num_seqs: int = 1) -> int:
        e, batch = self.state.engine, self.state.batch
        batch[0]["size"], batch[0]["prefill_s"] = num_seqs, 0.0
        self.decide(0)
        (arm,) = set(self.state.entries[0]["next_drafts"][:num_seqs].tolist())
        e[0]["step"] += 1
        batch[0]["step"], batch[0]["emitted"] = e[0]["step"], 10
        batch[0]["elapsed_s"] = 10 * self.seconds[num_seqs][arm]
        self.observe(0)
        return int(arm)


# ---- ucb ----


def test_ucb_tries_each_length_once_then_takes_the_highest_bound(build_case: Any) -> None:
    # Losses 1, 0.5, 0.8 s a token: rewards 0.5, 1, 0.625.
    game = Game(build_case, Bandit("ucb", exploration=0.1), {1: [1.0, 0.5, 0.8]}, k=2)
    assert [game.play() for _ in range(3)] == [0, 1, 2]
    counts, means = np.ones(3), np.array([0.5, 1.0, 0.625])
    for t in range(3, 60):
        bound = means + 0.1 * np.sqrt(2 * math.log(t) / counts)
        arm = game.play()
        assert arm == int(np.argmax(bound))
        counts[arm] += 1
    assert counts[1] > 40


def test_ucb_explores_as_much_as_asked(build_case: Any) -> None:
    def plays(exploration: float) -> list[int]:
        game = Game(build_case, Bandit("ucb", exploration=exploration), {1: [1.0, 0.5]}, k=1)
        return [game.play() for _ in range(40)]

    assert plays(0.0)[2:] == [1] * 38
    assert plays(5.0).count(0) > 10


# ---- bin_greedy ----


def bins(plays: list[int]) -> list[list[int]]:
    """Block j has 2^(j-1) bins of 2^(j-1) plays."""
    found, at, length = [], 0, 1
    while at < len(plays):
        for _ in range(length):
            found.append(plays[at : at + length])
            at += length
        length *= 2
    return [b for b in found if b]


def test_a_length_is_locked_for_a_bin(build_case: Any) -> None:
    game = Game(build_case, Bandit(), {1: [1.0, 0.9, 0.8, 0.7]}, k=3)
    plays = [game.play() for _ in range(1 + 4 + 16 + 64)]
    assert all(len(set(b)) == 1 for b in bins(plays))
    assert [len(b) for b in bins(plays)] == [1, 2, 2, 4, 4, 4, 4, *[8] * 8]
    assert len(set(plays)) > 2


def test_the_bth_bin_explores_with_probability_one_in_b(build_case: Any) -> None:
    # Four lengths; exploring takes the best by chance once in four. Bins 1..16 of block 5.
    explored = np.zeros(16)
    games = 400
    for seed in range(games):
        game = Game(build_case, Bandit(), {1: [1.0, 0.2, 0.8, 0.9]}, k=3, seed=seed)
        plays = [game.play() for _ in range(1 + 4 + 16 + 64 + 256)]
        explored += [b[0] != 1 for b in bins(plays)[-16:]]
    expected = 0.75 / np.arange(1, 17)
    # Five standard errors; a game that has not met the best length by then adds a little.
    assert (np.abs(explored / games - expected) < 5 * np.sqrt(expected / games) + 0.01).all()


def test_batch_sizes_learn_apart(build_case: Any) -> None:
    seconds = {1: [1.0, 0.1], 8: [0.1, 1.0]}
    game = Game(build_case, Bandit("ucb", exploration=0.01), seconds, k=1)
    for _ in range(20):
        one, eight = game.play(1), game.play(8)
    assert (one, eight) == (1, 0)


def test_resuming_costs_what_the_rule_is_told(build_case: Any) -> None:
    def share_of_drafting(switch_cost_s: float) -> float:
        game = Game(build_case, Bandit(switch_cost_s=switch_cost_s), {1: [0.5, 0.45]}, k=1, seed=3)
        return float(np.mean([game.play() for _ in range(341)]))

    # Drafting is better by 0.05 s a token: worth resuming for 0.01 s, not for 1 s.
    assert share_of_drafting(0.01) > 0.6
    assert share_of_drafting(1.0) < share_of_drafting(0.01)


def test_seeds_explore_differently(build_case: Any) -> None:
    def plays(seed: int) -> list[int]:
        game = Game(build_case, Bandit(), {1: [1.0, 1.0, 1.0, 1.0]}, k=3, seed=seed)
        return [game.play() for _ in range(85)]

    assert plays(1) == plays(1)
    assert plays(1) != plays(2)


# ---- in the engine ----


@pytest.mark.parametrize("is_async", [False, True])
def test_a_step_is_booked_on_the_length_it_verified(build_case: Any, is_async: bool) -> None:
    # All drafts are accepted: a step of one request with d drafts takes 1 + (1 + d) / 8 s and yields 1 + d tokens.
    case = build_case(
        [4], [400], method="eagle", k=2, policy=Bandit("ucb", exploration=1.0),
        accept=Chain(alpha=1.0),
        async_scheduling=is_async, max_model_len=512, num_gpu_blocks=201,
    )  # fmt: skip
    case.log()
    learned = case.replica.state.policy
    assert (learned.order[:3] >= 1).all()
    assert learned.scratch[1:3] == pytest.approx([1.25 / 2, 1.375 / 3], rel=0.05)


@pytest.mark.parametrize("algorithm", ["bin_greedy", "ucb"])
@pytest.mark.parametrize(("row_s", "better"), [(0.0, "long"), (2.0, "short")])
def test_it_finds_the_length_that_pays(build_case: Any, algorithm: str, row_s: float, better: str) -> None:
    case = build_case(
        [4] * 4, [400] * 4, method="eagle", k=3, policy=Bandit(algorithm),
        accept=Chain(alpha=0.4), cost={"row_s": row_s},
        max_model_len=512, num_gpu_blocks=600,
    )  # fmt: skip
    drafts = [max(step.next_drafts.values(), default=0) for step in case.log()]
    late = np.mean(drafts[len(drafts) // 2 :])
    assert late > 1.5 if better == "long" else late < 1.0
