"""Policies that go by the draft's confidence, by hand: SpecDec++, DISCO, TETRIS, DSpark, AdaServe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import types

from draftcast.sim.acceptance.chain import Chain
from draftcast.sim.acceptance.confidence import survivals
from draftcast.sim.compiled.borrowed import PinnedBundle
from draftcast.sim.policies.adaptive_verification import AdaptiveVerification
from draftcast.sim.policies.base import Policy
from draftcast.sim.policies.confidence import Confidence
from draftcast.sim.policies.selection import (
    INDEX_BITS,
    REQUEST_BITS,
    lost_of,
    pick_likeliest,
    rank_drafts,
    request_of,
)
from draftcast.sim.policies.slo_aware import SloAware
from draftcast.sim.policies.tetris import Tetris

SYNC = {"async_scheduling": False}


def case_of(build_case: Any, policy: Policy, alphas: list[float], k: int = 3, **more: Any) -> Any:
    """One EAGLE request per alpha, the acceptance probability of its drafts and, without discrimination, what it knows.

    A step takes 1 s and an eighth per row.
    """
    n = len(alphas)
    case = build_case(
        [4] * n,
        [30] * n,
        method="eagle",
        k=k,
        policy=policy,
        accept=Chain(alpha=0.5, concentration=1.0),
        confidence=0.0,
        **more,
    )
    acceptance = case.replica.state.acceptance  # a row for each request
    acceptance.row[:] = np.arange(n)
    acceptance.conditional[:n] = np.array(alphas)[:, None]
    return case


def first_drafts(case: Any, step: int = 0) -> list[int]:
    drafts = case.log()[step].next_drafts
    return [drafts.get(i, 0) for i in range(len(case.table))]


# ---- confidence ----


@pytest.mark.parametrize(
    ("policy", "drafts"),
    [
        # Chance of a rejection after each draft, alpha 0.875: 0.125, 0.234, 0.330, 0.414, 0.487; alpha 0.5: 0.5, 0.75.
        (Confidence(0.4), [4, 1]),
        (Confidence(0.45), [5, 1]),
        (Confidence(0.5), [5, 2]),
        (Confidence(0.0), [1, 1]),
        (Confidence(1.0), [5, 5]),
        # One token's own confidence: 0.875 or 0.5, the same for all.
        (Confidence(1.0, 0.5), [5, 5]),
        (Confidence(1.0, 0.75), [5, 1]),
        (Confidence(1.0, 0.9), [1, 1]),
    ],
)
def test_a_round_ends_with_the_draft_that_makes_it_unlikely(build_case: Any, policy: Policy, drafts: list[int]) -> None:
    assert first_drafts(case_of(build_case, policy, [0.875, 0.5], k=5)) == drafts


def test_confidence_pays_for_what_it_drafts(build_case: Any) -> None:
    # 4 and 1 drafts of 0.25 s: the prefill step of 8 rows takes 2 s and 1.25 s of drafting.
    case = case_of(build_case, Confidence(0.4), [0.875, 0.5], k=5, cost={"draft_token_s": 0.25})
    assert case.log()[0].end_s == 3.25


# ---- tetris ----


@pytest.mark.parametrize(
    ("capacity", "drafts"),
    # Survivals 0.9, 0.81, 0.729 and 0.5, 0.25, 0.125: in this order, whole numbers of six.
    [(0.0, [0, 0]), (0.4, [2, 0]), (0.5, [3, 0]), (0.67, [3, 1]), (0.99, [3, 2]), (1.0, [3, 3])],
)
def test_tetris_verifies_the_likeliest(build_case: Any, capacity: float, drafts: list[int]) -> None:
    assert first_drafts(case_of(build_case, Tetris(capacity), [0.9, 0.5])) == drafts


def test_equal_drafts_go_level_by_level(build_case: Any) -> None:
    assert first_drafts(case_of(build_case, Tetris(0.5), [1.0, 1.0])) == [2, 1]


def test_tetris_pays_for_all_it_drafts(build_case: Any) -> None:
    # Two requests draft three tokens each whatever is verified: 2 s of prefill and 6 * 0.25 s.
    for capacity in (0.0, 0.5, 1.0):
        case = case_of(build_case, Tetris(capacity), [0.9, 0.5], cost={"draft_token_s": 0.25})
        assert case.log()[0].end_s == 3.5


# ---- adaptive_verification ----


@pytest.mark.parametrize(
    ("row_s", "drafts"),
    [
        # Tokens 2, 2.9, 3.71, 4.439, 4.939, 5.189, 5.314 over 1 s and 2, 3, ... 8 rows.
        # An eighth a row: 1.6, 2.11, 2.47, 2.73, 2.82, 2.77.
        (0.125, [3, 1]),
        # Half a second: 1, 1.16, 1.237, 1.268, 1.235.
        (0.5, [3, 0]),
        # Four seconds: 0.222, 0.2231, 0.2182.
        (4.0, [1, 0]),
        # Rows for nothing: all.
        (0.0, [3, 3]),
    ],
)
@pytest.mark.parametrize("early_stop", [True, False])
def test_drafts_are_verified_while_throughput_rises(
    build_case: Any, row_s: float, drafts: list[int], early_stop: bool
) -> None:
    case = case_of(build_case, AdaptiveVerification(early_stop), [0.9, 0.5], cost={"row_s": row_s})
    assert first_drafts(case, step=0 if early_stop else 1) == drafts


def test_drafting_is_paid_for_already(build_case: Any) -> None:
    # Half a second a row, and 6 drafts of 0.5 s whatever is verified: 2 / 5, 2.9 / 5.5, 3.71 / 6, 4.439 / 6.5,
    # 4.939 / 7, 5.189 / 7.5 = 0.4, 0.527, 0.618, 0.683, 0.7056, 0.692.
    case = case_of(build_case, AdaptiveVerification(), [0.9, 0.5], cost={"row_s": 0.5, "draft_token_s": 0.5})
    assert first_drafts(case, step=1) == [3, 1]


def test_a_request_without_drafts_yet_counts_as_sure(build_case: Any) -> None:
    # 2 / 9, 3 / 13, ... 8 / 33: what cannot be accepted is verified once, and is known from then on.
    case = case_of(build_case, AdaptiveVerification(), [0.0, 0.0], cost={"row_s": 4.0})
    steps = case.log()
    assert [sum(step.next_drafts.values()) for step in steps[:3]] == [6, 0, 0]


def test_as_many_are_verified_as_were_sure_the_round_before(build_case: Any) -> None:
    """The confidences, which here know the outcome, say how many; those of the new drafts say which."""
    k, n = 4, 3
    case = build_case(
        [4] * n, [60] * n, method="eagle", k=k, policy=AdaptiveVerification(), accept=Chain(alpha=0.6),
        confidence=1.0, cost={"row_s": 0.01},
    )  # fmt: skip
    acceptance = case.replica.state.acceptance
    positions = np.zeros(n, np.int64)
    before = np.full((n, k), 1.0)
    moved = 0
    for step in case.log()[:12]:
        positions += [step.rows[i][2] + 1 for i in range(n)]
        now = np.empty((n, k))
        survivals(acceptance, np.arange(n), positions, now)
        wanted = int(before.sum())
        verified = [step.next_drafts.get(i, 0) for i in range(n)]
        assert sum(verified) == wanted
        sure = now.sum(axis=1)
        # Sure drafts come first, level by level.
        assert (np.array(verified) <= sure).all() if wanted <= sure.sum() else (np.array(verified) >= sure).all()
        moved += wanted != int(sure.sum())
        before = now
    assert moved > 3


def test_sizes_of_one_graph_cost_alike_and_later_ones_lie_on_lines(build_case: Any, table_cost: Any) -> None:
    # Graphs of 4 and 8 rows; beyond them 12, 16 and 32 are timed.
    cost = table_cost(
        [1.0] + [1.0] * 4 + [2.0] * 4 + [1.0, 9.0, 9.0, 3.0, 9.0, 9.0, 9.0, 5.0] + [9.0] * 15 + [7.0] * 40
    )
    cost.params[0]["cuda_graph_rows"] = 8
    case = build_case([4], [9], method="eagle", k=5, policy=AdaptiveVerification(), max_num_seqs=5,
                      accept=Chain(alpha=0.5), confidence=0.0, cost=cost)  # fmt: skip
    case.log()
    row_s = case.replica.state.policy.row_s
    assert row_s[1:17].tolist() == [1.0] * 4 + [2.0] * 4 + [3.0] * 4 + [3.5, 4.0, 4.5, 5.0]
    assert row_s[24] == pytest.approx(6.0)


def test_a_draft_is_weighed_as_a_request_of_8192_tokens(build_case: Any) -> None:
    # At 8,192 tokens a row takes 0.4 s beside 1 s a step, whatever the requests' own few tokens do: 2, 2.9, 3.71,
    # 4.439, 4.539 over 1.8, 2.2, 2.6, 3, 3.4.
    for kv_s, drafts in ((0.0, [3, 3]), (0.4 / 8192, [3, 0])):
        cost = {"row_s": 0.0, "kv_s": kv_s}
        case = case_of(build_case, AdaptiveVerification(), [0.9, 0.1], cost=cost, max_model_len=16384, max_num_seqs=64)
        assert first_drafts(case, step=1) == drafts
        early = case_of(build_case, AdaptiveVerification(True), [0.9, 0.1], cost=cost, max_model_len=16384)
        assert first_drafts(early) == [3, 3]


def test_an_early_stop_sees_no_second_rise(build_case: Any, table_cost: Any) -> None:
    # Three rows take 2 s, more take 1 s again: 2 / 1, 2.9 / 2, 3.71 / 1, ... 5.314 / 1.
    cost = table_cost([1.0] * 3 + [2.0] + [1.0] * 12)
    assert first_drafts(case_of(build_case, AdaptiveVerification(True), [0.9, 0.5], cost=cost)) == [0, 0]
    assert first_drafts(case_of(build_case, AdaptiveVerification(False), [0.9, 0.5], cost=cost), step=1) == [3, 3]


def test_the_best_point_of_the_whole_path_is_taken(build_case: Any, table_cost: Any) -> None:
    rng, n, k = np.random.default_rng(11), 6, 4
    taken = set()
    for _ in range(40):
        alphas = np.where(rng.random(n) < 0.2, 0.0, rng.uniform(0.05, 1.0, n))
        # Like CUDA-graph sizes: some drafts more take no more time, and a jump may be one down.
        stairs = np.cumsum(rng.choice([-0.1, 0.0, 0.1, 0.4], n * (1 + k) + 1) * (rng.random(n * (1 + k) + 1) < 0.4))
        row_s = 2.0 + stairs - stairs.min()
        case = case_of(build_case, AdaptiveVerification(), alphas.tolist(), k=k, cost=table_cost(row_s.tolist()))
        worth = sorted(((-(a ** (j + 1)), j, i) for i, a in enumerate(alphas) for j in range(k) if a))
        tokens = n - np.cumsum([0.0] + [lost for lost, _, _ in worth])
        best = int(np.argmax(tokens / np.maximum.accumulate(row_s)[n : n + len(tokens)]))
        taken.add(best / (n * k))
        expected = np.bincount([i for _, _, i in worth[:best]], minlength=n)
        assert first_drafts(case, step=1) == expected.tolist()
    assert min(taken) < 0.3
    assert max(taken) > 0.7


# ---- slo_aware ----


@pytest.mark.parametrize(
    ("tpot_s", "drafts"),
    [
        # Both requests have their first token at 2 s; the second step runs from 2 s to 3.25 s and the third, which
        # verifies, to 4.5 s by forecast. A request of 0.5 s a token must have 1 + 2.5 / 0.5 = 6 tokens then and has 2:
        # it needs 4 from the next round. The budget is 1.2 * 1.25 = 1.5 s: four rows, two drafts.
        ([0.0, 0.5], [0, 2]),
        # 1 s a token: 1 + 2.5 - 2 = 1.5, one draft of 0.5 will do; the other goes to the likelier request.
        ([0.0, 1.0], [1, 1]),
        # 1.25 s a token: one token is enough, the round's own.
        ([0.0, 1.25], [2, 0]),
        ([0.0, 0.0], [2, 0]),
    ],
)
def test_late_requests_come_first(build_case: Any, tpot_s: list[float], drafts: list[int]) -> None:
    case = case_of(build_case, SloAware(tpot_s, latency_slack=0.2), [0.9, 0.5], **SYNC)
    case.rows["class_id"] = [0, 1]
    steps = case.log()
    found = steps[1].next_drafts
    assert [found.get(i, 0) for i in range(2)] == drafts


@pytest.mark.parametrize(("tpot_s", "drafts"), [([0.75, 0.5], [0, 2]), ([0.5, 0.75], [2, 0]), (0.5, [2, 0])])
def test_the_latest_comes_first(build_case: Any, tpot_s: Any, drafts: list[int]) -> None:
    # As above: 4 tokens are needed at 0.5 s a token, 2.33 at 0.75. Hardly a draft is accepted: one gets all there is.
    case = case_of(build_case, SloAware(tpot_s, latency_slack=0.2), [0.02, 0.01], **SYNC)
    case.rows["class_id"] = [0, 1]
    found = case.log()[1].next_drafts
    assert [found.get(i, 0) for i in range(2)] == drafts


@pytest.mark.parametrize(("slack", "total"), [(0.0, 0), (0.1, 1), (0.3, 3), (1.0, 6)])
def test_the_budget_is_what_the_slack_allows(build_case: Any, slack: float, total: int) -> None:
    # A tenth of 1.25 s is an eighth: one row.
    case = case_of(build_case, SloAware(0.0, latency_slack=slack), [0.9, 0.5])
    assert sum(first_drafts(case)) == total


def test_chunks_of_a_prefill_draft_nothing(build_case: Any) -> None:
    for policy in (Confidence(1.0), Tetris(1.0), AdaptiveVerification(), SloAware(0.0, 9.0)):
        case = build_case(
            [40], [4], method="eagle", k=2, policy=policy,
            accept=Chain(alpha=0.5, concentration=1.0), confidence=0.0, max_num_batched_tokens=16,
        )  # fmt: skip
        case.replica.state.acceptance.conditional[:] = 1.0
        assert [bool(step.next_drafts) for step in case.log()][:3] == [False, False, True]


def test_a_batch_of_many_is_ranked_exactly(build_case: Any) -> None:
    n, k = 8, 5
    alphas = np.random.default_rng(4).uniform(0.05, 1.0, n)
    for capacity in np.linspace(0.0, 1.0, 9):
        case = case_of(build_case, Tetris(float(capacity)), alphas.tolist(), k=k)
        worth = sorted(((-(a ** (j + 1)), j, i) for i, a in enumerate(alphas) for j in range(k)))
        best = [i for _, _, i in worth[: int(capacity * n * k)]]
        assert first_drafts(case) == np.bincount(best, minlength=n).tolist()


# ---- the selection itself, against a plain sort ----


def drafts_at_random(case: Any, rng: np.random.Generator) -> tuple[int, int, list[tuple[int, int, int]]]:
    """Write the forecast of a batch; requests, levels and (lost survival, level, request) of all drafts in order."""
    s = case.replica.state
    seqs, k = s.entries.shape[1], int(s.config[0]["max_drafts"])
    n, most = int(rng.integers(1, seqs + 1)), int(rng.integers(1, k + 1))
    # Few values make many ties, with each other and with certainty and impossibility.
    some = rng.choice([0.0, 0.25, 0.5, 0.9, 1.0], (most, n))
    survival = np.cumprod(some if rng.random() < 0.5 else rng.random((most, n)), axis=0)
    s.policy.scratch[: seqs * most].reshape(most, seqs)[:, :n] = survival
    s.policy.order[:n] = rng.permutation(seqs)[:n]
    drafts = [(int((1.0 - survival[j, i]) * (1 << 40)), j, i) for j in range(most) for i in range(n)]
    return n, most, sorted(drafts)


def test_the_likeliest_are_those_a_sort_puts_first(build_case: Any) -> None:
    rng = np.random.default_rng(7)
    case = build_case([4], [9], method="eagle", k=5, policy=Tetris(), max_num_seqs=24)
    s = case.replica.state
    engine = PinnedBundle(s)
    pick = engine.bind(pick_likeliest, *[types.int64] * 4)
    for _ in range(200):
        n, most, drafts = drafts_at_random(case, rng)
        members = s.policy.order[:n].copy()
        held = rng.integers(0, most + 1, n) * rng.integers(0, 2)  # some levels granted already, or none
        s.entries[0]["next_drafts"][members] = held
        count = int(rng.integers(-1, n * most + 2))
        pick(0, n, most, count)
        best = [i for _, j, i in drafts if j >= held[i]][: max(count, 0)]
        assert s.entries[0]["next_drafts"][members].tolist() == (held + np.bincount(best, minlength=n)).tolist()


def test_the_ranking_is_the_sorted_list(build_case: Any) -> None:
    rng = np.random.default_rng(8)
    case = build_case([4], [9], method="eagle", k=5, policy=AdaptiveVerification(), max_num_seqs=24)
    s = case.replica.state
    engine = PinnedBundle(s)
    rank = engine.bind(rank_drafts, *[types.int64] * 3)
    for _ in range(100):
        n, most, drafts = drafts_at_random(case, rng)
        first = rank(0, n, most)
        found = s.policy.order[first : first + n * most].tolist()
        assert found == [lost << INDEX_BITS | j << REQUEST_BITS | i for lost, j, i in drafts]
        assert [(lost_of(c), request_of(c)) for c in found] == [(lost, i) for lost, _, i in drafts]
