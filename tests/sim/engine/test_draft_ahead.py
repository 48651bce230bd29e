"""Drafts on GPUs of their own, one round ahead of the target, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from draftcast import load_scenario, simulate
from draftcast.scenarios.run.deployment import cached_deployment
from draftcast.scenarios.run.fluid import FluidModel
from draftcast.sim.compiled.borrowed import reference
from draftcast.sim.cost.step_time import decode_step_seconds
from draftcast.sim.policies.goodput import Goodput, goodput_drafts


def step_seconds(build_case: Any, table_cost: Any, pass_s: float, accept: list[int], k: int = 2) -> list[float]:
    """How long each step after the first lasts. The target takes 1 s; the draft's passes all take ``pass_s``."""
    cost = table_cost([1.0] * 40, first_s=pass_s, pass_s=pass_s)
    cost.params[0]["drafts_ahead"] = 1
    case = build_case([4], [len(accept)], method="draft_ahead", k=k, accept=[accept], cost=cost)
    steps = case.log()
    assert steps[0].end_s == 1.0 + max(pass_s * (1 + k) - 1.0, 0.0) + k * pass_s  # nothing was drafted before
    return [step.end_s - step.launch_s for step in steps[1:]]


@pytest.mark.parametrize(
    ("recorded", "shown"),
    [
        (3, 0.0),  # both drafts and the guess at the target's own token: the next drafts are there
        (2, 0.5),  # both drafts, but the target goes on otherwise
        (1, 0.5),  # a draft is rejected: what was drafted behind it is lost
        (0, 0.5),
    ],
)
def test_drafts_are_kept_where_all_before_them_were_accepted(
    build_case: Any, table_cost: Any, recorded: int, shown: float
) -> None:
    # Three passes of 0.25 s hide behind the target; two passes made anew do not.
    lasted = step_seconds(build_case, table_cost, 0.25, [recorded] * 24)
    assert lasted[:-1] == [1.0 + shown] * (len(lasted) - 1)
    assert len(lasted) >= 6


def test_what_outlasts_the_target_shows(build_case: Any, table_cost: Any) -> None:
    # Three passes of half a second behind 1 s; then two anew.
    assert set(step_seconds(build_case, table_cost, 0.5, [3] * 24)[:-1]) == {1.5}
    assert set(step_seconds(build_case, table_cost, 0.5, [0] * 24)[:-1]) == {2.5}


def test_more_drafts_are_longer_behind_the_target(build_case: Any, table_cost: Any) -> None:
    assert set(step_seconds(build_case, table_cost, 0.25, [9] * 24, k=3)[:-1]) == {1.0}
    assert set(step_seconds(build_case, table_cost, 0.25, [9] * 24, k=5)[:-1]) == {1.5}


def test_one_rejected_request_keeps_the_whole_batch_waiting(build_case: Any, table_cost: Any) -> None:
    cost = table_cost([1.0] * 40, first_s=0.25, pass_s=0.25)
    cost.params[0]["drafts_ahead"] = 1
    case = build_case([4, 4], [24, 24], method="draft_ahead", k=2, accept=[[3] * 24, [0] * 24], cost=cost)
    both = [step for step in case.log() if len(step.rows) == 2]
    assert {step.end_s - step.launch_s for step in both[1:-1]} == {1.5}


@pytest.mark.parametrize(
    ("seqs", "kept", "seconds"),
    [(1, 0.0, 1.5), (1, 0.5, 1.25), (1, 1.0, 1.0), (2, 0.5, 1.0 + 0.75 * 0.5), (2, 1.0, 1.0)],
)
def test_a_mean_step_waits_where_any_request_drafts_anew(
    table_cost: Any, seqs: int, kept: float, seconds: float
) -> None:
    cost = table_cost([1.0] * 40, first_s=0.25, pass_s=0.25)
    cost.params[0]["drafts_ahead"] = 1
    assert decode_step_seconds(cost, seqs, 2, 100.0, kept) == seconds


@pytest.mark.parametrize(("alpha", "drafts"), [(0.95, 1), (0.8, 0)])
def test_goodput_counts_how_often_drafts_are_kept(build_case: Any, table_cost: Any, alpha: float, drafts: int) -> None:
    # 0.8 s of two passes outlast the target, and a draft made anew takes 0.9 s: 1.95 tokens in 1.89 s, 1.8 in 2.1.
    cost = table_cost([1.0] * 40, first_s=0.9, pass_s=0.9)
    cost.params[0]["drafts_ahead"] = 1
    policy = Goodput(initial_acceptance=alpha)
    case = build_case([4], [8], method="draft_ahead", k=3, accept=[[3] * 8], cost=cost, policy=policy)
    assert goodput_drafts(reference(case.replica.state), 1, 4.0) == drafts


@pytest.mark.parametrize("alpha", [0.5, 0.9])
def test_the_mean_step_is_the_simulated_one(alpha: float) -> None:
    drafts = "{method: draft_ahead, model: llama-3.2-1b, num_speculative_tokens: 3}"
    scenario = load_scenario(
        overrides=[
            f"engine.speculative_config={drafts}",
            f"acceptance={{model: constant, alpha: {alpha}}}",
            "workload.arrivals={process: closed_loop, concurrency: 1}",
            "workload.lengths={prompt_tokens: 100, output_tokens: 400}",
            "workload.num_requests=100",
            "statistics={replications: 1, warmup: none}",
        ]
    )
    asked, cost = FluidModel.of(scenario).traffic, cached_deployment(scenario).cost
    step_s = decode_step_seconds(cost, 1, 3, asked.context_tokens, asked.kept_share(3))
    tpot_s = simulate(scenario).summary["figures"]["mean_tpot_s"].mean
    assert tpot_s * asked.tokens_per_round(3) == pytest.approx(step_s, rel=0.01)
    assert decode_step_seconds(cost, 1, 3, asked.context_tokens) > (1.01 if alpha < 0.6 else 1.2) * step_s
