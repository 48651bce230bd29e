"""Draft-length policies in the engine's log: what each rule drafts step by step, by hand; bad input in one line."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftcast.errors import ScenarioError
from draftcast.sim.acceptance.chain import Chain
from draftcast.sim.acceptance.model import Tree
from draftcast.sim.cost.methods import get_method
from draftcast.sim.policies.adaptive_verification import AdaptiveVerification
from draftcast.sim.policies.bandit import Bandit
from draftcast.sim.policies.base import Policy
from draftcast.sim.policies.batch import Batch
from draftcast.sim.policies.confidence import Confidence
from draftcast.sim.policies.ema_tiers import SGLANG_TIERS, EmaTiers, Tier
from draftcast.sim.policies.goodput import Goodput
from draftcast.sim.policies.oracle import Oracle
from draftcast.sim.policies.registry import POLICIES, load_policy
from draftcast.sim.policies.schedule import BatchSchedule, Fixed, Off
from draftcast.sim.policies.slo_aware import SloAware
from draftcast.sim.policies.tetris import Tetris

SYNC = {"async_scheduling": False}


def drafts_verified(case: Any, request: int = 0) -> list[int]:
    """Drafts of one request verified in each of its decode steps, up to its end."""
    steps = [step.rows[request] for step in case.log() if request in step.rows]
    return [drafts for _, drafts, _ in steps[1:]]


# ---- batch_schedule ----


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ([], "first range must start at batch size 1"),
        ([[2, 4, 1]], "first range must start at batch size 1"),
        ([[0, 4, 1]], r"\[0, 4, 1\]: must be inclusive ranges"),
        ([[1, 4, 1], [4, 6, 2]], r"\[4, 6, 2\]: .* do not overlap"),
        ([[1, 4, 1], [1, 6, 2]], r"\[1, 6, 2\]: .* do not overlap"),
        ([[4, 1, 1]], r"\[4, 1, 1\]"),
        ([[1, 4, -1]], "with k >= 0"),
        ([[1, 4]], "must be a list of ranges"),
        ([["one", 4, 1]], "must be a list of ranges"),
        (3, "must be a list of ranges"),
        (None, "must be a list of ranges"),
    ],
)
def test_bad_batch_schedules(schedule: Any, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        load_policy("batch_schedule", schedule=schedule)


def test_batch_schedule_counts_the_scheduled_requests(build_case: Any) -> None:
    case = build_case([4, 4], [9, 2], method="ngram", k=3, policy=BatchSchedule([[1, 1, 3], [2, 8, 1]]))
    # Step 0 schedules both and makes 1 draft each; step 1 verifies them and, still with both, makes 1 more: 1 for
    # request 0 in step 2, where it is alone; from then on 3.
    log = case.log()
    assert [step.next_drafts for step in log[:3]] == [{0: 1, 1: 1}, {0: 1, 1: 1}, {0: 3}]
    assert [step.rows[0][1] for step in log] == [0, 1, 1, 3, 3, 3, 3, 3, 3]


# ---- off ----


def test_off_keeps_slots_and_lookahead(build_case: Any) -> None:
    off = build_case([4, 4], [3, 3], method="draft_model", k=3, policy=Off(), max_num_batched_tokens=8, **SYNC)
    none = build_case([4, 4], [3, 3], max_num_batched_tokens=8, **SYNC)
    log, bare = off.log(), none.log()
    # A slot per request: 4 + 1 of 8 rows, so 2 + 1 remain. 4 + 3 and 2 + 3 tokens of lookahead are 2 blocks each.
    assert (log[0].rows, log[0].used_blocks) == ({0: (4, 0, 0), 1: (2, 0, 0)}, 4)
    assert (bare[0].rows, bare[0].used_blocks) == ({0: (4, 0, 0), 1: (4, 0, 0)}, 2)
    assert off.requests()["num_draft_tokens"].sum() == 0


# ---- goodput, with steps of 1 s + 0.125 s a row and acceptance 0.7 ----

# One request: (1 + 0.7 + ... + 0.7^k) / (1 + 0.125 (1 + k)) is 0.889, 1.36, 1.593, 1.689, 1.7066, 1.681: k = 4.
# Eight: the same over 1 + (1 + k): 0.5, 0.567, 0.548, ...: k = 1. Sixty-four: over 1 + 8 (1 + k): 0.111, 0.1: k = 0.
BEST = {1: 4, 8: 1, 64: 0}


@pytest.mark.parametrize("seqs", BEST)
def test_goodput_takes_the_best_k(build_case: Any, seqs: int) -> None:
    case = build_case(
        [1] * seqs, [2] * seqs, method="eagle", k=5, policy=Goodput(), max_num_seqs=64, max_num_batched_tokens=512
    )
    assert case.log()[0].next_drafts == ({i: BEST[seqs] for i in range(seqs)} if BEST[seqs] else {})


def test_goodput_counts_the_draft_s_own_time(build_case: Any) -> None:
    # 0.5 s a draft: 1 / 1.125, 1.7 / 1.75, 2.19 / 2.375 = 0.889, 0.971, 0.922.
    case = build_case([4], [2], method="eagle", k=5, policy=Goodput(), cost={"draft_token_s": 0.5})
    assert case.log()[0].next_drafts == {0: 1}


@pytest.mark.parametrize(("probe", "drafts"), [(3, [4, 4, 1, 1, 0, 0, 1, 0, 0]), (0, [4, 4, 1, 1, 0, 0, 0, 0, 0])])
def test_goodput_learns_and_probes(build_case: Any, probe: int, drafts: list[int]) -> None:
    case = build_case([4], [10], method="ngram", k=5, policy=Goodput(0.5, 0.7, probe), accept=[[0] * 10])
    # Every draft is rejected, so alpha halves with each round: 0.7, 0.35, 0.175, 0.0875, ... The decision of a step is
    # verified in the next. 0.35: 0.889, 1.08, 1.071: k = 1. 0.175: 0.94 for k = 1. 0.0875: 0.87, so k = 0, and after
    # three steps without drafts one probes.
    assert drafts_verified(case) == drafts


def test_goodput_recovers_when_acceptance_does(build_case: Any) -> None:
    accept = [[0] * 5 + [5] * 40]
    never = build_case([4], [40], method="ngram", k=5, policy=Goodput(0.5, 0.0, 0), accept=accept)
    assert set(drafts_verified(never)) == {0}
    probing = build_case([4], [40], method="ngram", k=5, policy=Goodput(0.5, 0.0, 4), accept=accept)
    assert drafts_verified(probing)[-1] == 5


def test_goodput_drafts_whole_levels_of_a_tree(build_case: Any) -> None:
    tree = get_method("eagle_tree").with_tree(3, 12)  # three nodes a level at k = 4
    accept = Tree(model="tree", alpha=0.7, widths=(1, 1, 1, 1))
    case = build_case([4], [2], method=tree, k=4, policy=Goodput(), accept=accept)
    assert case.log()[0].next_drafts[0] % 3 == 0


# ---- ema_tiers: SGLang's walk ----


def test_ema_tiers_walks_down_and_up(build_case: Any) -> None:
    policy = EmaTiers([Tier(1, (1, 3, 5))], ema_alpha=0.5, update_interval=1, warmup_batches=0)
    # Nothing is accepted before output position 5, everything after.
    case = build_case([4], [24], method="ngram", k=5, policy=policy, accept=[[0] * 5 + [5] * 30])
    # Starts at 5 with an average of 4. Rounds of steps 1..4 accept none: 2, 1, 0.5, 0.25. Thresholds down: 2.5 to leave
    # 5 (average 2: on to 3), 0.5 to leave 3 (average 0.5: on to 1). A decision shows two steps after its output is in.
    # Step 5 accepts its 1: average 0.625 > 0.5, up to 3. Step 6 (1 draft): 0.8125. Step 7 (3): 1.906; 8: 2.453;
    # 9: 2.727 > 2.5, up to 5, seen from step 11 on.
    # Outputs: 1 + 4 * 1 + 2 * 2 + 4 * 4 = 25 before step 11, so the request ends with step 10.
    assert drafts_verified(case) == [5, 5, 3, 3, 1, 1, 3, 3, 3, 3]
    longer = build_case([4], [30], method="ngram", k=5, policy=policy, accept=[[0] * 5 + [5] * 30])
    assert drafts_verified(longer)[10:] == [5]


def test_ema_tiers_probes_from_zero(build_case: Any) -> None:
    policy = EmaTiers([Tier(1, (0, 2))], ema_alpha=0.5, update_interval=2, warmup_batches=0)
    case = build_case([4], [11], method="ngram", k=2, policy=policy, accept=[[0] * 11])
    # Updates after outputs 2, 4, 6, ...: average 1 -> 0.5: down to 0; probe 2; 0.25: down; and so on.
    assert drafts_verified(case)[:8] == [2, 2, 0, 0, 2, 2, 0, 0]


def test_ema_tiers_start_at_k_and_leave_longer_ones_out() -> None:
    arrays = EmaTiers(SGLANG_TIERS).compile(3, 64)
    # Of 1, 3, 5, 7 remain 1 and 3; start at 3 with average 2. Of 0, 1, 3: at 3. Of 0, 1 the upper: at 1. Of 0: at 0.
    assert arrays.state.reshape(4, 3).tolist() == [[1, 2, 0], [2, 2, 0], [1, 0, 0], [0, -1, 0]]


def test_ema_tiers_go_by_batch_size(build_case: Any) -> None:
    policy = EmaTiers([Tier(1, (3,)), Tier(2, (1,))])
    case = build_case([4, 4], [4, 1], method="ngram", k=3, policy=policy)
    assert [step.next_drafts for step in case.log()[:2]] == [{0: 1, 1: 1}, {0: 3}]


# ---- oracle ----

ORACLE_CASES = [
    ("eagle", True, Chain(alpha=0.7)),
    ("eagle", False, Chain(alpha=0.7)),
    ("eagle", True, Chain(alpha=0.6, concentration=2.0)),
    ("draft_model", True, Chain(alpha=0.5)),
    ("medusa", False, Chain(alpha=0.7)),
    ("ngram", False, Chain(match_probability=0.6, alpha=0.7, persistence=0.7, mean_match_tokens=2.0)),
    ("tree", True, Tree(model="tree", alpha=0.5, widths=(3, 3, 3, 3))),
]


@pytest.mark.parametrize(("method", "is_async", "accept"), ORACLE_CASES)
def test_the_oracle_drafts_what_is_accepted(build_case: Any, method: str, is_async: bool, accept: Any) -> None:
    tree = get_method("eagle_tree").with_tree(3, 12)  # three nodes a level at k = 4

    def run(policy: Policy) -> Any:
        n = 12
        arguments: dict[str, Any] = {
            "prompt": [3 + i for i in range(n)],
            "output": [40 - i for i in range(n)],
            "arrival_s": [2.0 * i for i in range(n)],
            "method": tree if method == "tree" else method,
            "k": 4,
            "accept": accept,
            "max_num_batched_tokens": 256,
            "max_model_len": 128,
            "num_gpu_blocks": 400,
            "async_scheduling": is_async,
        }
        return build_case(**arguments, policy=policy).serve().requests()

    oracle, fixed = run(Oracle()), run(Fixed())
    width = 3 if method == "tree" else 1
    assert (oracle["num_draft_tokens"] == width * oracle["num_accepted_tokens"]).all()
    if method != "tree":
        assert (oracle["time_rejected_s"] == 0).all()
    assert oracle["num_draft_tokens"].sum() > 100
    assert oracle["finish_s"].max() < fixed["finish_s"].max()
    if method != "tree":  # where a token costs three rows, some are not worth them
        # It takes all that is accepted before a request's end, as drafting k does, with fewer rows.
        beyond_the_end = fixed["num_accepted_tokens"] - oracle["num_accepted_tokens"]
        assert beyond_the_end.between(0, 4).all()


# ---- parameters and names ----


def eager(**changes: Any) -> EmaTiers:
    """Tiers that move after every output."""
    base: dict[str, Any] = {"tiers": [Tier(1, (1, 3, 5))], "ema_alpha": 0.5, "update_interval": 1, "warmup_batches": 0}
    return EmaTiers(**base | changes)


PARAMETERS: dict[str, tuple[Policy, Policy]] = {
    "batch_schedule.schedule": (BatchSchedule([[1, 9, 3]]), BatchSchedule([[1, 2, 3], [3, 9, 1]])),
    "goodput.weight": (Goodput(weight=0.1), Goodput(weight=1.0)),
    "goodput.initial_acceptance": (Goodput(initial_acceptance=0.2), Goodput(initial_acceptance=0.9)),
    "goodput.probe_interval_steps": (Goodput(1.0, 0.1, 2), Goodput(1.0, 0.1, 0)),
    "ema_tiers.tiers": (EmaTiers([Tier(1, (1, 3))]), EmaTiers([Tier(1, (1, 5))])),
    "ema_tiers.tiers.batch_size": (
        EmaTiers([Tier(1, (5,)), Tier(2, (1,))]),
        EmaTiers([Tier(1, (5,)), Tier(4, (1,))]),
    ),
    "ema_tiers.tiers.up_hysteresis": (
        eager(),
        eager(tiers=[Tier(1, (1, 3, 5), up_hysteresis=9.0)]),
    ),
    "ema_tiers.tiers.down_hysteresis": (
        eager(),
        eager(tiers=[Tier(1, (1, 3, 5), down_hysteresis=-9.0)]),
    ),
    "ema_tiers.ema_alpha": (EmaTiers([Tier(1, (1, 3, 5))], 0.5, 1, 0), EmaTiers([Tier(1, (1, 3, 5))], 0.01, 1, 0)),
    "ema_tiers.update_interval": (
        EmaTiers([Tier(1, (1, 3, 5))], 0.5, 1, 0),
        EmaTiers([Tier(1, (1, 3, 5))], 0.5, 20, 0),
    ),
    "confidence.max_rejection_probability": (Confidence(0.3), Confidence(0.8)),
    "confidence.min_confidence": (Confidence(1.0, 0.0), Confidence(1.0, 0.6)),
    "tetris.capacity": (Tetris(0.4), Tetris(0.8)),
    "slo_aware.tpot_s": (SloAware(0.0), SloAware([0.8])),
    "slo_aware.latency_slack": (SloAware(1.0, 0.2), SloAware(1.0, 0.5)),
    "bandit.algorithm": (Bandit("bin_greedy"), Bandit("ucb")),
    "bandit.exploration": (Bandit("ucb", 0.0), Bandit("ucb", 2.0)),
    "bandit.switch_cost_s": (Bandit(switch_cost_s=0.0), Bandit(switch_cost_s=100.0)),
    "adaptive_verification.early_stop": (AdaptiveVerification(False), AdaptiveVerification(True)),
    "ema_tiers.warmup_batches": (EmaTiers([Tier(1, (1, 3, 5))], 0.5, 1, 0), EmaTiers([Tier(1, (1, 3, 5))], 0.5, 1, 20)),
}


def test_every_parameter_is_listed() -> None:
    listed = {name.rsplit(".", 1)[0] if name.count(".") == 2 else name for name in PARAMETERS}
    owned = {f"{name}.{f.name}" for name, kind in POLICIES.items() for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    assert listed == owned
    tier = {name.rsplit(".", 1)[1] for name in PARAMETERS if name.startswith("ema_tiers.tiers.")}
    assert tier | {"steps"} == {f.name for f in dataclasses.fields(Tier)}  # steps: "ema_tiers.tiers" itself


@pytest.mark.parametrize("name", PARAMETERS)
def test_every_parameter_changes_the_outcome(build_case: Any, table_cost: Any, name: str) -> None:
    # Times that go up and down with the rows are what an early stop is about.
    cost = table_cost([1.0 + rows % 2 for rows in range(65)]) if name.endswith("early_stop") else None

    def finishes(policy: Policy) -> list[float]:
        case = build_case(
            [4] * 6, [110] * 6, arrival_s=[8.0 * i for i in range(6)], method="eagle", k=5, policy=policy,
            accept=Chain(alpha=0.6), confidence=0.4, max_model_len=128, cost=cost,
        )  # fmt: skip
        return case.serve().requests()["finish_s"].tolist()  # type: ignore[no-any-return]

    one, other = PARAMETERS[name]
    assert finishes(one) == finishes(one)
    assert finishes(one) != finishes(other)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        (
            "best",
            {},
            "policy.name = 'best': unknown; known are adaptive_verification, bandit, batch",
        ),
        ("goodput", {"wait": 1}, r"unexpected keyword argument 'wait'; parameters are: weight, initial_acceptance"),
        ("off", {"k": 1}, "parameters are: none"),
        ("batch_schedule", {}, "missing 1 required positional argument: 'schedule'; parameters are: schedule"),
        ("goodput", {"weight": 0.0}, "policy.weight = 0.0: must be above 0 and at most 1"),
        ("goodput", {"weight": "heavy"}, "policy.weight = 'heavy': must be above 0 and at most 1"),
        ("goodput", {"initial_acceptance": 1.5}, r"policy.initial_acceptance = 1.5: must be in 0..1"),
        ("goodput", {"initial_acceptance": math.nan}, r"must be in 0..1"),
        ("goodput", {"probe_interval_steps": -1}, "must be a whole number of at least 0"),
        ("goodput", {"probe_interval_steps": 1.5}, "must be a whole number of at least 0"),
        ("goodput", {"probe_interval_steps": "often"}, "must be a whole number of at least 0"),
        ("ema_tiers", {"update_interval": 0}, "must be a whole number of at least 1"),
        ("ema_tiers", {"tiers": []}, "batch sizes must rise"),
        ("ema_tiers", {"tiers": [{"batch_size": 4, "steps": [1]}, {"batch_size": 2, "steps": [1]}]}, "must rise"),
        ("ema_tiers", {"tiers": [{"batch_size": 1, "steps": []}]}, "needs 1 to 12 draft lengths"),
        ("ema_tiers", {"tiers": [{"batch_size": 1, "steps": [-1]}]}, "none negative"),
        ("ema_tiers", {"tiers": [{"size": 1}]}, "unexpected keyword argument 'size'"),
        ("confidence", {"max_rejection_probability": 1.5}, r"max_rejection_probability = 1.5: must be in 0..1"),
        ("confidence", {"min_confidence": -0.1}, r"min_confidence = -0.1: must be in 0..1"),
        ("tetris", {"capacity": 2}, r"policy.capacity = 2: must be in 0..1"),
        ("slo_aware", {}, "missing 1 required positional argument: 'tpot_s'"),
        ("slo_aware", {"tpot_s": "fast"}, "policy.tpot_s = 'fast': must be seconds, at least 0"),
        ("slo_aware", {"tpot_s": [0.1, -1.0]}, "policy.tpot_s = -1.0: must be seconds, at least 0"),
        ("slo_aware", {"tpot_s": 0.1, "latency_slack": -1}, "latency_slack = -1: must be a number of at least 0"),
        ("bandit", {"algorithm": "luck"}, "policy.algorithm = 'luck': must be one of bin_greedy, ucb"),
        ("bandit", {"exploration": math.inf}, "must be a number of at least 0"),
        ("bandit", {"switch_cost_s": "dear"}, "must be a number of at least 0"),
        ("adaptive_verification", {"early_stop": 1}, "policy.early_stop = 1: must be true or false"),
        ("nowhere.to_be_found:Policy", {}, "cannot be imported: No module named 'nowhere'"),
        ("math:Policy", {}, "'Policy' is not a draftcast.sim.Policy in it"),
        ("math:pi", {}, "'pi' is not a draftcast.sim.Policy in it"),
        ("missing.py:Mine", {}, "cannot be imported: .*No such file"),
    ],
)
def test_bad_policies_are_refused_in_one_line(name: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message) as caught:
        load_policy(name, **parameters)
    assert "\n" not in str(caught.value)


# ---- policies of users ----


def test_a_policy_file_that_does_not_parse(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def broken(:\n")
    with pytest.raises(ScenarioError, match=r"cannot be imported: invalid syntax"):
        load_policy(f"{path}:ShortWhenBusy")


class Recorder(Policy):
    """Drafts k and remembers what it saw."""

    def __init__(self) -> None:
        self.seen: list[Batch] = []

    def decide(self, batch: Batch) -> int:
        self.seen.append(batch)
        return 99  # cut to k


def test_what_a_python_policy_sees(build_case: Any) -> None:
    policy = Recorder()
    case = build_case(
        [4, 10], [4, 1], arrival_s=[0.0, 0.5], method="ngram", k=2, policy=policy, accept=[[0, 1, 0, 2], [0]],
        max_num_batched_tokens=9, max_num_seqs=2, num_gpu_blocks=11,
    )  # fmt: skip
    # t = 0: 4 rows, 1.5 s. t = 1.5: 1 + 2 rows of request 0, 6 of prompt 1: 2.125 s, one of two drafts accepted.
    # t = 3.625: 3 rows of request 0, the 4 rows left of prompt 1.
    case.log()
    first, second, third = policy.seen[:3]
    assert (first.k, first.num_seqs, first.now_s, first.waiting) == (2, 1, 0.0, 0)
    assert (first.request.tolist(), first.outputs.tolist(), first.context.tolist()) == ([0], [0], [4])
    assert np.isnan(first.acceptance).all()
    assert (second.request.tolist(), second.drafts.tolist(), second.is_prefill.tolist()) == (
        [0, 1],
        [2, 0],
        [False, True],
    )
    assert (second.outputs.tolist(), second.context.tolist(), second.now_s) == ([1, 0], [7, 6], 1.5)
    assert second.kv_usage == (2 + 2) / 10
    assert (third.outputs.tolist(), third.now_s) == ([3, 0], 3.625)
    assert third.acceptance[0] == 0.5
    assert third.is_prefill.tolist() == [False, False]
    # n-gram search takes no time here: 2 requests with 1 row, and with 3 rows each.
    assert third.step_seconds(0) == 1.25
    assert third.step_seconds(2) == 1.75
    assert third.step_seconds(2, num_seqs=1) == 1.375
    assert case.requests()["num_draft_tokens"].tolist()[0] == 4


class Bad(Policy):
    """Returns whatever it is given."""

    def __init__(self, decision: Any) -> None:
        self.decision = decision

    def decide(self, batch: Batch) -> Any:
        return self.decision


@pytest.mark.parametrize("decision", [1.5, None, True, "all", [1, 2, 3], [[1]], [0.5]])
def test_a_decision_of_the_wrong_kind_is_refused(build_case: Any, decision: Any) -> None:
    case = build_case([4], [4], method="eagle", k=2, policy=Bad(decision))
    with pytest.raises(ScenarioError, match=r"Bad\.decide = .*must return a whole number, or one for each of the 1"):
        case.serve()


@pytest.mark.parametrize("decision", [1, np.int64(1), [1], (1,), np.array([1]), np.uint8(1)])
def test_decisions_of_many_kinds_are_taken(build_case: Any, decision: Any) -> None:
    case = build_case([4], [5], method="eagle", k=2, policy=Bad(decision))
    assert set(drafts_verified(case)) == {1}


def test_a_policy_without_a_rule_is_no_policy(build_case: Any) -> None:
    class Empty(Policy):
        pass

    assert Empty.rule is None
    with pytest.raises(NotImplementedError, match="Empty does not override decide"):
        Empty().decide(None)  # type: ignore[arg-type]
