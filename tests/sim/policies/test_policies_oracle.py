"""The oracle by hand and by brute force: the drafts with the most tokens per second of the next step."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from numba import njit

from draftcast.sim.compiled.borrowed import reference
from draftcast.sim.cost import step_time as st
from draftcast.sim.policies.forecast import device_seconds
from draftcast.sim.policies.oracle import Oracle


@njit(cache=True)
def forecast(engine: Any, seqs: int, drafts: int, passes: int, context: float) -> float:
    return device_seconds(reference(engine), seqs, float(drafts), seqs, drafts, passes, context)


def first_decision(build_case: Any, accepted: list[int], k: int, cost: st.StepCost, **more: Any) -> list[int]:
    """Drafts per request after a prefill of one step, ``accepted`` being the drafts of each that would be accepted."""
    n = len(accepted)
    case = build_case(
        [1] * n, more.pop("output", [20] * n), method="eagle", k=k, policy=Oracle(),
        accept=[[a] * 30 for a in accepted], cost=cost,
    )  # fmt: skip
    drafts = case.log()[0].next_drafts
    return [drafts.get(i, 0) for i in range(n)]


def test_a_pass_for_one_request_may_not_pay(build_case: Any, table_cost: Any) -> None:
    # First draft pass 0.25 s, each later one 0.5 s, target 1 s: 2 / 1.25 = 1.6 tokens/s without drafts, 4 / 1.25 = 3.2
    # with one each, 5 / 1.75 = 2.86 with two for request 0, 6 / 2.25 = 2.67 with three.
    assert first_decision(build_case, [3, 1], 3, table_cost([1.0] * 12, 0.25, 0.5)) == [1, 1]
    # Later passes of 0.0625 s: 3.2, 5 / 1.3125 = 3.81, 6 / 1.375 = 4.36.
    assert first_decision(build_case, [3, 1], 3, table_cost([1.0] * 12, 0.25, 0.0625)) == [3, 1]


def test_rows_end_at_a_cuda_graph_size_that_pays(build_case: Any, table_cost: Any) -> None:
    # Up to five rows 1 s, up to eight 3 s: 5 / 1 beats 6 / 3, so the last of three requests gives up its draft.
    assert first_decision(build_case, [1, 1, 1], 2, table_cost([1.0] * 6 + [3.0] * 4)) == [1, 1, 0]
    # Eight rows in 1.125 s: 6 / 1.125 = 5.33 beats 5.
    assert first_decision(build_case, [1, 1, 1], 2, table_cost([1.0] * 6 + [1.125] * 4)) == [1, 1, 1]


def test_rows_reach_a_size_at_which_kernels_are_faster(build_case: Any, table_cost: Any) -> None:
    # Three or four rows take 2 s, five and more 1 s. One draft will be accepted. 2 / 1 without drafts, 3 / 2 with it,
    # 3 / 1 with two more that will not.
    assert first_decision(build_case, [1, 0], 3, table_cost([1.0] * 3 + [2.0] * 2 + [1.0] * 8)) == [1, 2]


def test_a_draft_that_is_too_dear_is_not_made(build_case: Any) -> None:
    def drafts(draft_token_s: float) -> dict[int, int]:
        case = build_case(
            [1], [20], method="eagle", k=2, policy=Oracle(), accept=[[2] * 30], cost={"draft_token_s": draft_token_s}
        )
        return dict(case.log()[0].next_drafts)

    # Step 1 + rows / 8. Half a second a draft: 1 / 1.125, 2 / 1.75, 3 / 2.375 = 0.89, 1.14, 1.26.
    assert drafts(0.5) == {0: 2}
    # A second a draft: 8/9 each time; ties go to fewer.
    assert drafts(1.0) == {}


def test_what_hides_behind_the_host_is_free(build_case: Any, table_cost: Any) -> None:
    slow_beyond_two = [1.0] * 3 + [3.0] * 9
    assert first_decision(build_case, [3], 3, table_cost(slow_beyond_two)) == [1]
    # With 2.5 s of host work each step: 2 / 2.5 = 0.8, 4 / 3 = 1.33.
    assert first_decision(build_case, [3], 3, table_cost(slow_beyond_two, host_s=2.5)) == [3]


def test_no_draft_beyond_the_end_of_a_request(build_case: Any, table_cost: Any) -> None:
    # The prefill yields one of three tokens, the next round at most two: its bonus token and one draft.
    assert first_decision(build_case, [3, 3], 3, table_cost([1.0] * 12), output=[3, 20]) == [1, 3]


@pytest.mark.parametrize("seed", range(20))
def test_no_other_drafts_yield_more_per_second(build_case: Any, table_cost: Any, seed: int) -> None:
    """All (k + 1)^3 decisions of a step whose target times go up and down with the rows."""
    rng = np.random.default_rng(seed)
    k = 3
    accepted = [int(a) for a in rng.integers(0, k + 1, 3)]
    target = [1.0, *np.round(rng.uniform(0.5, 2.0, 12), 3)]
    first_s, pass_s = float(rng.uniform(0, 0.2)), float(rng.uniform(0, 0.4))
    decision = first_decision(build_case, accepted, k, table_cost(target, first_s, pass_s))

    def rate(drafts: tuple[int, ...]) -> float:
        tokens = sum(1 + min(d, a) for d, a in zip(drafts, accepted, strict=True))
        return tokens / (target[3 + sum(drafts)] + first_s + pass_s * max(max(drafts) - 1, 0))

    best = max(rate(drafts) for drafts in itertools.product(range(k + 1), repeat=3))
    assert rate(tuple(decision)) == pytest.approx(best, rel=1e-12)


def test_the_forecast_is_that_of_uniform_decode_steps(build_case: Any, easy_cost: Any) -> None:
    cost = easy_cost(method="eagle", kv_s=0.25, draft_s=0.5, draft_token_s=2.0)
    case = build_case([1] * 4, [9] * 4, method="eagle", k=3, cost=cost)
    for k in range(4):
        seconds = forecast(case.replica.state, 4, 4 * k, k, 4 * 10.0)
        assert seconds == st.decode_step_seconds(cost, 4, k, 10.0)
