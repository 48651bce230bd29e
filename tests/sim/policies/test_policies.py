"""Draft-length policies: their rules by hand, their parameters, and policies of the user's own."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import njit, types

import draftcast
from draftcast.errors import ScenarioError
from draftcast.scenarios.schema.scenario import POLICIES as SCENARIO_POLICIES
from draftcast.sim.acceptance.chain import Chain
from draftcast.sim.compiled.borrowed import PinnedBundle, call_at, reference
from draftcast.sim.policies import ema_tiers, goodput
from draftcast.sim.policies.base import Policy, draft_alike
from draftcast.sim.policies.ema_tiers import EmaTiers, Tier
from draftcast.sim.policies.goodput import Goodput
from draftcast.sim.policies.oracle import Oracle
from draftcast.sim.policies.registry import POLICIES, load_policy
from draftcast.sim.policies.schedule import BatchSchedule, Fixed, Off


@njit(cache=True)
def learn_from_first(engine: Any) -> None:
    call_at(engine.config[0].learn, reference(engine), 0)


def observe(engine: Any, rounds: int, accepted: int, rejections: int, sampled: int) -> None:
    batch = engine.batch[0]
    batch["rounds"], batch["accepted"], batch["rejections"], batch["sampled"] = rounds, accepted, rejections, sampled
    batch["emitted"], batch["elapsed_s"] = rounds + accepted, 1.0
    learn_from_first(engine)


def goodput_drafts(engine: Any, num_seqs: int, mean_context: float) -> int:
    held = PinnedBundle(engine)
    return int(held.bind(goodput.goodput_drafts, types.int32, types.float64)(num_seqs, mean_context))


LONG = {"max_model_len": 512, "num_gpu_blocks": 201}


def decisions(case: Any) -> list[int]:
    """Largest number of drafts decided in each step of a case."""
    return [max(step.next_drafts.values(), default=0) for step in case.log()]


# ---- batch_schedule ----


def test_batch_schedule_fills_gaps_and_tails_as_vllm_does() -> None:
    # vLLM 0.32: [(1, 16, 3), (32, 128, 2)] keeps 3 for 17..31 and 2 past 128, never more than num_speculative_tokens.
    table = BatchSchedule([[32, 128, 2], [1, 16, 3]]).lookup(3, 200)
    assert table[1:17].tolist() == [3] * 16
    assert table[17:32].tolist() == [3] * 15
    assert table[32:].tolist() == [2] * 169
    assert BatchSchedule([[1, 4, 7]]).lookup(5, 6)[1:].tolist() == [5] * 6
    assert BatchSchedule([[1, 2, 0]]).lookup(5, 3)[1:].tolist() == [0, 0, 0]


@pytest.mark.parametrize("bad", [[[2, 4, 1]], [[1, 4, 1], [4, 8, 2]], [[1, 0, 1]], [[1, 4, -1]], [[1, 4]], []])
def test_batch_schedule_refuses_what_vllm_refuses(bad: list[list[int]]) -> None:
    with pytest.raises(ScenarioError, match="num_speculative_tokens_per_batch_size"):
        BatchSchedule(bad).lookup(3, 8)


def test_batch_schedule_follows_the_batch(build_case: Any) -> None:
    policy = BatchSchedule([[1, 1, 3], [2, 8, 1]])
    case = build_case([4, 4], [12, 4], method="ngram", k=3, policy=policy, accept=Chain(alpha=0.0))
    seen = {(len(step.rows), max(step.next_drafts.values(), default=0)) for step in case.log()}
    assert seen == {(2, 1), (1, 3)}


# ---- off, fixed ----


def test_off_drafts_nothing_and_keeps_what_is_reserved(build_case: Any) -> None:
    engine = {"max_num_batched_tokens": 10, "async_scheduling": False}
    plain = build_case([8], [3], **engine)
    off = build_case([8], [3], policy=Off(), method="draft_model", k=4, accept=Chain(alpha=1.0), **engine)
    steps = off.log()
    assert all(not step.next_drafts for step in steps)
    # draft_model: one input slot and four KV slots per request stay reserved. Of 10 rows 9
    # are left for the 8-token prompt; blocks of 4 for 8 + 4 tokens: 3, where the plain engine takes 2.
    assert steps[0].rows == {0: (8, 0, 0)}
    assert steps[0].used_blocks == 3
    assert plain.log()[0].used_blocks == 2


def test_fixed_always_drafts_k(build_case: Any) -> None:
    case = build_case([4], [9], method="ngram", k=2, accept=Chain(alpha=1.0))
    # 9 tokens: one by the prefill, then three a step: 1 + 3 + 3 + 2.
    assert [step.rows[0] for step in case.log()] == [(4, 0, 0), (3, 2, 2), (3, 2, 2), (3, 2, 2)]


# ---- goodput ----


def argmax_by_hand(alpha: float, k: int, seconds: list[float]) -> int:
    rates = [sum(alpha**j for j in range(n + 1)) / seconds[n] for n in range(k + 1)]
    return int(np.argmax(rates))


@pytest.mark.parametrize(("alpha", "expected"), [(0.05, 0), (0.5, 2), (0.9, 4)])
def test_goodput_takes_the_best_tokens_per_second(build_case: Any, alpha: float, expected: int) -> None:
    # A step of n requests with k drafts takes 1 + 0.125 * n * (1 + k) s: for n = 1, k = 0..4: 1.125 .. 1.625 s.
    # alpha 0.05: 0.889, 0.840, ...: k = 0. alpha 0.5: 0.889, 1.2, 1.273, 1.25, 1.192: k = 2. alpha 0.9: k = 4.
    policy = Goodput(initial_acceptance=alpha, weight=0.1)
    case = build_case([4], [4], method="eagle", k=4, policy=policy)
    seconds = [1.0 + 0.125 * (1 + k) for k in range(5)]
    assert argmax_by_hand(alpha, 4, seconds) == expected
    assert goodput_drafts(case.replica.state, 1, 4.0) == expected


def test_goodput_learns_alpha_from_tested_drafts(build_case: Any) -> None:
    case = build_case([4], [4], method="eagle", k=4, policy=Goodput(initial_acceptance=0.5, weight=0.5))
    # Two rounds: 3 accepted in all, one of them ended by a rejection: 3 of 4 tested drafts.
    observe(case.replica.state, 2, 3, 1, 2)
    assert case.replica.state.policy.state[goodput.GOODPUT_ALPHA] == 0.5 * 0.5 + 0.5 * 0.75
    observe(case.replica.state, 0, 0, 0, 2)  # nothing tested: nothing learned
    assert case.replica.state.policy.state[goodput.GOODPUT_ALPHA] == 0.625


def test_goodput_probes_after_an_interval_without_drafts(build_case: Any) -> None:
    def tried(interval: int) -> list[int]:
        policy = Goodput(initial_acceptance=0.0, probe_interval_steps=interval)
        return decisions(build_case([4], [12], method="ngram", k=3, policy=policy, accept=Chain(alpha=0.0)))

    assert set(tried(0)) == {0}
    probes = tried(4)
    assert [step for step, drafts in enumerate(probes) if drafts] == [3, 7, 11]
    assert max(probes) == 1


# ---- ema_tiers ----


def tier_state(case: Any, tier: int = 0) -> tuple[int, float]:
    state = case.replica.state.policy.state[tier * ema_tiers.TIER_STATE : (tier + 1) * ema_tiers.TIER_STATE]
    return int(state[ema_tiers.TIER_INDEX]), float(state[ema_tiers.TIER_EMA])


def test_ema_tiers_walks_up_and_down(build_case: Any) -> None:
    policy = EmaTiers([Tier(1, (1, 3, 5), 0.0, -0.25)], ema_alpha=0.5, update_interval=1, warmup_batches=0)
    case = build_case([4], [4], method="eagle", k=3, policy=policy)
    # k = 3 leaves candidates 1 and 3; it starts at 3 with an average of 2.
    assert tier_state(case) == (1, 2.0)
    observe(case.replica.state, 1, 0, 1, 1)
    # Average 1.0, above 1 - 0.5 - 0.25 = 0.25: stays.
    assert tier_state(case) == (1, 1.0)
    for _ in range(2):
        observe(case.replica.state, 1, 0, 1, 1)
    # 0.5, then 0.25: not above 0.25, down to one draft.
    assert tier_state(case) == (0, 0.25)
    observe(case.replica.state, 1, 1, 0, 1)
    # 0.625 is above 1 - 0.5: up again.
    assert tier_state(case) == (1, 0.625)


def test_ema_tiers_probes_from_zero_and_waits_for_the_interval(build_case: Any) -> None:
    policy = EmaTiers([Tier(1, (0, 2))], ema_alpha=0.5, update_interval=2, warmup_batches=1)
    case = build_case([4], [4], method="eagle", k=2, policy=policy)
    assert tier_state(case) == (1, 1.0)
    for outputs, expected in ((1, 1), (2, 1), (3, 0), (4, 0), (5, 1)):
        # One warm-up output, then every second one decides: the third steps down (average 0.125), the fifth probes.
        observe(case.replica.state, 1, 0, 1, 1)
        assert tier_state(case)[0] == expected, outputs


def test_ema_tiers_has_a_tier_per_batch_size(build_case: Any) -> None:
    policy = EmaTiers([Tier(1, (2,)), Tier(2, (0,))])
    case = build_case([4, 4], [12, 4], method="ngram", k=2, policy=policy, accept=Chain(alpha=0.0))
    seen = {(len(step.rows), max(step.next_drafts.values(), default=0)) for step in case.log()}
    assert seen == {(2, 0), (1, 2)}


def drafts_of(build_case: Any, policy: Policy, alpha: float) -> list[int]:
    """What a policy decides for one long request whose drafts are accepted with probability ``alpha``."""
    accept = Chain(alpha=alpha)
    return decisions(build_case([4], [150], method="ngram", k=3, policy=policy, accept=accept, seed=5, **LONG))


@pytest.mark.parametrize(
    "change",
    [
        {"ema_alpha": 0.9},
        {"update_interval": 1},
        {"warmup_batches": 0},
        {"tiers": [Tier(1, (1, 2, 3))]},
        {"tiers": [Tier(1, (1, 3), 2.0, 0.0)]},
        {"tiers": [Tier(1, (1, 3), 0.0, 2.0)]},
    ],
)
def test_every_parameter_of_ema_tiers_matters(build_case: Any, change: dict[str, Any]) -> None:
    def drafts(**parameters: Any) -> list[int]:
        base = {"tiers": [Tier(1, (1, 3))], "ema_alpha": 0.2, "update_interval": 5, "warmup_batches": 10}
        policy = EmaTiers(**{**base, **parameters})
        return drafts_of(build_case, policy, 0.35)

    assert drafts(**change) != drafts()


@pytest.mark.parametrize("change", [{"weight": 1.0}, {"initial_acceptance": 0.1}])
def test_every_parameter_of_goodput_matters(build_case: Any, change: dict[str, Any]) -> None:
    def drafts(**parameters: Any) -> list[int]:
        policy = Goodput(**{"weight": 0.1, "initial_acceptance": 0.5, "probe_interval_steps": 64, **parameters})
        return drafts_of(build_case, policy, 0.3)

    assert drafts(**change) != drafts()


# ---- policies of the user's own ----


class EveryOther(Policy):
    """Drafts for requests with an even row only, and checks what it is shown."""

    def decide(self, batch: Any) -> Any:
        assert batch.num_seqs == len(batch.request) == len(batch.context)
        assert batch.step_seconds(2) > batch.step_seconds(0) > 0
        assert 0 <= batch.kv_usage <= 1
        return np.where(batch.request % 2 == 0, batch.k, 0)


def test_a_python_policy_sets_draft_lengths_per_request(build_case: Any) -> None:
    case = build_case([4, 4, 4], [10, 10, 10], method="eagle", k=2, policy=EveryOther(), accept=Chain(alpha=1.0))
    steps = case.log()
    assert {i for step in steps for i in step.next_drafts} == {0, 2}
    assert case.rows["draft_tokens"][1] == 0
    assert case.rows["draft_tokens"][0] > 0
    assert case.rows["tokens"].tolist() == [14, 14, 14]


def test_a_python_policy_is_cut_to_k(build_case: Any) -> None:
    class TooMany(Policy):
        def decide(self, batch: Any) -> int:
            return 99

    case = build_case([4], [12], method="ngram", k=2, policy=TooMany(), accept=Chain(alpha=0.0))
    assert max(decisions(case)) == 2


def test_compiled_policies_have_no_python_hook(build_case: Any) -> None:
    def is_compiled(policy: Policy) -> bool:
        return bool(build_case([4], [2], method="ngram", k=2, policy=policy).replicas[0].state.config[0]["rule"])

    assert all(map(is_compiled, (Off(), Fixed(), Goodput(), EmaTiers(), Oracle())))
    assert not is_compiled(EveryOther())


@njit
def draft_one(s: Any, slot: int) -> None:
    if s.batch[slot].size > 2:
        raise ValueError("three at once")
    draft_alike(s, slot, 1)


@njit
def draft_two(s: Any, slot: int) -> int:
    draft_alike(s, slot, 2)
    return 2


def test_a_rule_of_ones_own_is_compiled_and_its_error_is_the_callers(build_case: Any) -> None:
    class One(Policy):
        rule = draft_one

    case = build_case([4, 4], [6, 6], method="ngram", k=2, policy=One(), accept=Chain(alpha=0.0))
    assert max(decisions(case)) == 1
    with pytest.raises(ValueError, match="three at once"):
        build_case([4] * 3, [6] * 3, method="ngram", k=2, policy=One(), accept=Chain(alpha=0.0)).log()


@njit
def draft_nothing_known(s: Any, slot: int) -> None:
    s.nothing[slot] = 1


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (draft_two, "draft_two must return nothing"),
        (draft_two.py_func, "draft_two is no function of numba.njit"),
        (draft_nothing_known, ".*Unknown attribute 'nothing'"),
    ],
)
def test_a_rule_that_cannot_be_compiled_is_refused_in_a_line(build_case: Any, rule: Any, why: str) -> None:
    kind = type("Mine", (Policy,), {"rule": staticmethod(rule)})
    with pytest.raises(ScenarioError, match=rf"policy\.name = 'Mine': its rule cannot be compiled: {why}") as caught:
        build_case([4], [6], method="ngram", k=2, policy=kind())
    assert str(caught.value).isprintable()


def test_a_policy_from_a_file_runs_in_a_scenario(tmp_path: Path) -> None:
    path = tmp_path / "half policy.py"
    path.write_text(
        "from draftcast.sim import Policy\n\n\n"
        "class Half(Policy):\n    def decide(self, batch):\n        return batch.k // 2\n"
    )
    base = [
        "workload.num_requests=60",
        "statistics.replications=1",
        "engine.speculative_config.num_speculative_tokens=2",
    ]
    own = draftcast.simulate(draftcast.load_scenario("default", overrides=[*base, f"policy={{name: '{path}:Half'}}"]))
    assert (own.requests["num_draft_tokens"] == own.requests["num_drafts"]).all()  # one draft a round
    assert own.requests["num_draft_tokens"].sum() > 0


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("clairvoyant", "goodput"),
        ("no.such.module:Policy", "no.such.module"),
        ("draftcast.sim.policies:Nothing", "Nothing"),
        ("draftcast.sim.policies:load_policy", "load_policy"),
        ("missing.py:Half", "missing.py"),
    ],
)
def test_a_policy_that_cannot_be_had(name: str, named: str) -> None:
    with pytest.raises(ScenarioError, match="policy") as caught:
        load_policy(name)
    assert named in str(caught.value)


def test_unknown_and_bad_parameters_are_refused() -> None:
    with pytest.raises(ScenarioError, match="probe_interval_steps"):
        load_policy("goodput", patience=3)
    for name, parameters in (
        ("goodput", {"weight": 0.0}),
        ("goodput", {"initial_acceptance": 1.5}),
        ("goodput", {"probe_interval_steps": -1}),
        ("ema_tiers", {"ema_alpha": 2.0}),
        ("ema_tiers", {"update_interval": 0}),
        ("ema_tiers", {"tiers": [{"batch_size": 8, "steps": [1]}, {"batch_size": 1, "steps": [1]}]}),
        ("ema_tiers", {"tiers": [{"batch_size": 1, "steps": []}]}),
    ):
        with pytest.raises(ScenarioError, match="policy"):
            load_policy(name, **parameters)


def test_the_registry_holds_every_policy() -> None:
    assert tuple(policy.name for policy in POLICIES.values()) == SCENARIO_POLICIES
    assert math.isclose(load_policy("goodput", weight=0.3).weight, 0.3)  # type: ignore[attr-defined]


# ---- state ----

COUNTING = """
from draftcast.sim import Policy


class FirstFive(Policy):
    def __init__(self):
        self.calls = 0
        self.seen = []

    def decide(self, batch):
        self.calls += 1
        self.seen.append(batch.now_s)
        return batch.k if self.calls <= 5 else 0
"""


def test_every_replica_of_every_replication_has_a_policy_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "counting.py").write_text(COUNTING)
    scenario = draftcast.load_scenario(
        "default",
        overrides=[
            "workload.num_requests=40",
            "statistics.replications=3",
            "cluster.replicas=2",
            f"policy={{name: '{tmp_path / 'counting.py'}:FirstFive'}}",
        ],
    )
    steps = draftcast.simulate(scenario, record_steps=True).steps
    assert steps is not None
    drafting = (steps["k"] > 0).groupby([steps["replication"], steps["replica"]]).sum()
    # A step of prefill chunks may spend one of the five calls without drafting.
    assert drafting.size == 6
    assert drafting.between(4, 5).all()


def test_compiled_policies_share_no_state() -> None:
    for policy in (Off(), Fixed(), BatchSchedule([[1, 8, 2]]), Goodput(), EmaTiers(), Oracle()):
        one, other = policy.compile(3, 8), policy.compile(3, 8)
        for a, b in zip(one, other, strict=True):
            assert not np.shares_memory(a, b)


def test_a_table_has_drafts_for_every_batch_size() -> None:
    tables = [policy.compile(3, 4).table.tolist() for policy in (Off(), Fixed(), BatchSchedule([[1, 2, 5], [3, 8, 1]]))]
    assert tables == [[0] * 5, [3] * 5, [0, 3, 3, 1, 1]]  # of 0 to 4 requests; no more than 3 drafts


def test_a_policy_that_cannot_be_copied_says_so() -> None:
    class Streaming(Policy):
        def __init__(self) -> None:
            self.source = (n for n in range(3))

        def decide(self, batch: Any) -> int:
            return next(self.source)

    with pytest.raises(ScenarioError, match=r"Streaming.*cannot be copied for each replica.*override fresh"):
        Streaming().fresh()
