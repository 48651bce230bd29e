"""What holds in every run: requests end at their length, work, tokens, blocks and time are conserved.

Scenarios are drawn by hypothesis: every kind of method and policy, scarce and ample blocks, both schedulers.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from request_checks import check_requests, littles_law
from samples import clients, closed_loop

from draftcast.sim.acceptance.chain import Chain
from draftcast.sim.acceptance.model import AcceptanceModel, Tree
from draftcast.sim.cluster.cluster import Cluster
from draftcast.sim.cluster.routers import ROUTERS
from draftcast.sim.cost.methods import Method, get_method
from draftcast.sim.engine.replica import check_fits, most_slots
from draftcast.sim.output.results import TIME_COLUMNS
from draftcast.sim.policies.adaptive_verification import AdaptiveVerification
from draftcast.sim.policies.bandit import Bandit
from draftcast.sim.policies.base import Policy
from draftcast.sim.policies.confidence import Confidence
from draftcast.sim.policies.ema_tiers import EmaTiers
from draftcast.sim.policies.goodput import Goodput
from draftcast.sim.policies.oracle import Oracle
from draftcast.sim.policies.schedule import BatchSchedule, Fixed, Off
from draftcast.sim.policies.slo_aware import SloAware
from draftcast.sim.policies.tetris import Tetris

METHODS: dict[str, Method] = {
    name: get_method(name)
    for name in ("none", "eagle", "draft_model", "p_eagle", "dflash", "ngram", "ngram_gpu", "suffix", "medusa")
}
METHODS["tree"] = dataclasses.replace(get_method("eagle_tree"), tree_width=2, max_tree_nodes=0)
POLICIES: tuple[Policy, ...] = (
    Fixed(),
    Off(),
    BatchSchedule([[1, 2, 4], [3, 9, 1]]),
    Goodput(),
    Confidence(),
    Tetris(),
    SloAware(tpot_s=2.0),
    Bandit(),
    AdaptiveVerification(),
    EmaTiers(),
    Oracle(),
)
modest = settings(
    deadline=None, derandomize=True, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def acceptance_of(method: Method, alpha: float) -> AcceptanceModel:
    if method.is_tree:
        return Tree(model="tree", alpha=alpha, widths=(2,) * 8)
    if method.proposes_by_match:
        return Chain(match_probability=0.6, alpha=alpha, persistence=0.7, mean_match_tokens=3.0)
    return Chain(alpha=alpha)


@st.composite
def scenarios(draw: Any, max_requests: int = 10) -> dict[str, Any]:
    """Arguments of ``build_case``; blocks suffice for each request alone."""
    n = draw(st.integers(1, max_requests))

    def each(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=n, max_size=n))

    method = METHODS[draw(st.sampled_from(sorted(METHODS)))]
    block_size = draw(st.sampled_from([4, 16]))
    case: dict[str, Any] = {
        "prompt": each(st.integers(1, 40)),
        "output": each(st.integers(1, 20)),
        "arrival_s": np.cumsum(each(st.sampled_from([0.0, 0.0, 0.25, 3.0, 40.0]))).tolist(),
        "method": method,
        "k": draw(st.integers(1, 5)) if method.drafts else 0,
        "policy": draw(st.sampled_from(POLICIES)),
        "accept": acceptance_of(method, draw(st.sampled_from([0.0, 0.5, 0.9, 1.0]))),
        "confidence": draw(st.sampled_from([0.0, 0.4, 1.0])),
        "seed": draw(st.integers(0, 2**32)),
        "block_size": block_size,
        "max_num_seqs": draw(st.sampled_from([1, 3, 8])),
        "max_num_batched_tokens": draw(st.sampled_from([24, 64])),
        "max_model_len": draw(st.sampled_from([48, 128])),
        # At least 1 + k: below that vLLM cuts a padded one-token admission and may trip over its own assertion.
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 11])),
        "watermark": draw(st.sampled_from([0.0, 0.1])),
        "async_scheduling": method.is_async and draw(st.booleans()),
        "cost": {
            "host_s": draw(st.sampled_from([0.0, 0.25, 3.0])),
            "host_hides": draw(st.booleans()),
            "draft_s": 0.125,
            "draft_token_s": 0.0625,
            "search_fraction": 0.1,
            "kv_s": 2.0**-10,
        },
    }
    if draw(st.booleans()):
        case |= {"scheduling_policy": "priority", "priority": each(st.integers(0, 2))}
    if draw(st.booleans()):
        roots = each(st.sampled_from([0, 100]))
        case["hash_ids"] = [
            [root + b + 1 if b < 4 else 1000 * (i + 1) + b for b in range(-(-prompt // block_size))]
            for i, (root, prompt) in enumerate(zip(roots, case["prompt"], strict=True))
        ]
        case["hash_block_tokens"] = block_size
    return case | {"spare_blocks": draw(st.sampled_from([0, 0, 3, 200]))}


def build(build_case: Any, scenario: dict[str, Any], **more: Any) -> Any:
    """The scenario with as many blocks as its largest request needs, and ``spare_blocks``."""
    arguments = {key: value for key, value in scenario.items() if key != "spare_blocks"} | more
    case = build_case(**arguments)
    longest = int(most_slots(case.replica.config, case.rows).max())
    blocks = -(-longest // scenario["block_size"]) + scenario["spare_blocks"] + 1
    case = build_case(**arguments, num_gpu_blocks=blocks)
    check_fits(case.replica.config, case.rows)
    return case


def expected_outputs(case: Any) -> np.ndarray:
    """A request ends at its output length or at the model's."""
    table, longest = case.table, case.replica.config.max_model_len
    return np.minimum(table.output_tokens, longest - table.prompt_tokens)


@dataclasses.dataclass
class Ledger:
    """What one request's rows were for, told from the log of entries alone."""

    end: int = 0  # tokens computed, rejected ones taken back as soon as they are known
    outputs: int = 0
    rows: int = 0
    rejected: int = 0  # draft rows of steps that were not in vain
    beyond: int = 0  # tokens accepted past the end of the request
    recomputed: int = 0  # after preemptions, less what the prefix cache gave beyond that
    first_hit: int = 0
    admissions: int = 0
    in_vain: int = 0  # rows of steps collected after the end
    rounds: int = 0
    drafts: int = 0
    accepted: int = 0
    unknown: list[tuple[float, int]] = dataclasses.field(default_factory=list)  # (known from, rejected rows)

    def start(self, schedule_s: float) -> int:
        """Tokens computed as the scheduler knows it at ``schedule_s``."""
        self.end -= sum(rejected for known_s, rejected in self.unknown if known_s <= schedule_s)
        self.unknown = [x for x in self.unknown if x[0] > schedule_s]
        return self.end


@modest
@given(scenarios())
def test_tokens_and_blocks_are_conserved(build_case: Any, scenario: dict[str, Any]) -> None:
    case = build(build_case, scenario)
    replica = case.replica
    want = expected_outputs(case)
    ledgers = [Ledger() for _ in want]
    device_free_s = schedule_s = collected_s = 0.0
    scheduled = emitted = 0
    for batch, entries in case.collected():
        replica.check_integrity()
        now = float(replica.state.engine[0]["host_s"])
        # Steps follow one another on the device, are scheduled and collected in order, and no step takes no time.
        assert batch["launch_s"] >= max(device_free_s, batch["schedule_s"])
        assert batch["end_s"] > batch["launch_s"]
        assert batch["schedule_s"] >= schedule_s
        assert now >= max(batch["end_s"], collected_s)
        device_free_s, schedule_s, collected_s = float(batch["end_s"]), float(batch["schedule_s"]), now
        assert entries["tokens"].sum() == batch["tokens"] <= replica.config.max_num_batched_tokens
        assert np.unique(entries["request"]).size == batch["size"] <= replica.config.max_num_seqs
        scheduled += int(batch["tokens"])
        for x in entries:
            i = int(x["request"])
            tokens, drafts, accepted = int(x["tokens"]), int(x["drafts"]), int(x["accepted"])
            r = ledgers[i]
            assert 0 <= accepted <= drafts < tokens
            r.rows += tokens
            if r.outputs == want[i]:
                r.in_vain += tokens
                continue
            before = r.start(schedule_s)
            if r.admissions == 0 or int(x["computed"]) != before:  # (re)admitted: computed again from its prefix hit
                # On its return it may find more than it had computed: blocks of others with the same prefix.
                assert r.admissions == 0 or x["computed"] < before or replica.config.enable_prefix_caching
                r.recomputed += before - int(x["computed"]) if r.admissions else 0
                r.first_hit = r.first_hit if r.admissions else int(x["computed"])
                r.admissions += 1
            r.end = int(x["computed"]) + tokens
            if x["is_chunk"]:
                assert drafts == 0
                continue
            count = min(accepted + 1, int(want[i]) - r.outputs)
            assert r.outputs > 0 or count == 1, "the first token comes alone"
            r.outputs += count
            emitted += count
            r.beyond += accepted + 1 - count
            r.rejected += drafts - accepted
            r.unknown.append((now, drafts - accepted))
            if x["proposed"] > 0:
                r.rounds += 1
                r.drafts += int(x["proposed"])
                r.accepted += accepted
    assert replica.num_running == replica.num_waiting == 0
    frame = case.requests()
    assert frame["output_tokens"].tolist() == want.tolist() == [r.outputs for r in ledgers]
    e = replica.state.engine[0]
    assert scheduled == e["scheduled_tokens"]
    assert emitted == e["emitted_tokens"] == want.sum()
    assert e["free_blocks"] == replica.config.num_gpu_blocks - 1
    for i, r in enumerate(ledgers):
        row = frame.iloc[i]
        # The last token of a request is never computed.
        needed = int(row["prompt_tokens"]) + r.outputs - 1 - r.first_hit
        assert r.rows == needed + r.rejected + r.beyond + r.recomputed + r.in_vain
        assert row["cached_tokens"] == r.first_hit
        # A prefix hit of all that was computed looks like no preemption; so does one whose last tokens were in flight.
        assert r.admissions - 1 <= row["preemptions"]
        counted = (row["num_drafts"], row["num_draft_tokens"], row["num_accepted_tokens"])
        assert counted == (r.rounds, r.drafts, r.accepted)
    if scenario["policy"].name == "off" or scenario["k"] == 0:
        assert frame["num_draft_tokens"].sum() == 0


@modest
@given(scenarios())
def test_the_time_components_sum_to_the_total(build_case: Any, scenario: dict[str, Any]) -> None:
    case = build(build_case, scenario).serve()
    frame = case.requests()
    check_requests(frame, tolerance=1e-9)
    total = (frame["finish_s"] - frame["arrival_s"]).to_numpy()
    parts = frame[list(TIME_COLUMNS)].to_numpy()
    assert (np.abs(parts.sum(axis=1) - total) <= 1e-9 * total + 1e-12).all()
    assert parts.min() >= -1e-9
    assert ((frame["time_kv_pressure_s"] > 0) == (frame["preemptions"] > 0)).all()
    # Every emission after the first of a request is one gap.
    assert case.replica.state.itl.sum() <= frame["output_tokens"].sum() - len(frame)
    steps = case.replica.steps()
    assert steps["num_tokens"].sum() == case.replica.state.engine[0]["scheduled_tokens"]
    # The ITL histogram and the rounds by accepted drafts count what the requests count.
    rounds = case.replica.state.rounds_by_accepted.sum(axis=0)
    assert rounds.sum() == frame["num_drafts"].sum()
    assert rounds @ np.arange(rounds.size) == frame["num_accepted_tokens"].sum()


@modest
@given(scenarios())
def test_littles_law(build_case: Any, scenario: dict[str, Any]) -> None:
    case = build(build_case, {**scenario, "async_scheduling": False}).serve()
    frame = case.requests()
    assert littles_law(frame).relative_gap < 1e-9
    # The same from the steps, an independent count: who is running, waiting or just ending is in the system. A request
    # is seen when the next step is scheduled, so each may be missed for one step at most.
    steps = case.replica.steps()
    end_s = steps["start_s"] + steps["duration_s"]
    ended = Counter(frame["finish_s"].tolist())
    inside = steps["running"] + steps["waiting"] + np.array([ended[t] for t in end_s])
    area = float(inside @ steps["duration_s"])
    total = float((frame["finish_s"] - frame["arrival_s"]).sum())
    slack = 1e-9 * total
    assert area <= total + slack
    if not np.any(np.diff(frame["arrival_s"])):
        assert area == pytest.approx(total, rel=1e-9)
    assert area >= total - len(frame) * steps["duration_s"].max() - slack


@settings(parent=modest, max_examples=50)
@given(scenarios(max_requests=16), st.sampled_from(sorted(ROUTERS)), st.integers(1, 3), st.integers(0, 4))
def test_clusters_serve_every_request_once(
    build_case: Any, scenario: dict[str, Any], router: str, replicas: int, users: int
) -> None:
    """Open loop, or closed loop with ``users``."""
    case = build(build_case, scenario, replicas=replicas)
    n = len(case.table)
    loop = clients(closed_loop(users, 1.0), n) if users else None
    cluster = Cluster(case.replicas, case.table, ROUTERS[router](case.table, replicas, 1), loop)
    cluster.run()
    for replica in case.replicas:
        replica.check_integrity()
    assert ((cluster.assigned >= 0) & (cluster.assigned < replicas)).all()
    served = [int(r.state.engine[0]["num_finished"]) for r in case.replicas]
    assert served == np.bincount(cluster.assigned, minlength=replicas).tolist()
    frame = case.requests(cluster.assigned)
    assert frame["output_tokens"].tolist() == expected_outputs(case).tolist()
    check_requests(frame, tolerance=1e-9)
    assert sum(int(r.state.engine[0]["emitted_tokens"]) for r in case.replicas) == frame["output_tokens"].sum()
    if users:
        # No more than so many requests are in the system at any time.
        moments = sorted([*((t, 1) for t in frame["arrival_s"]), *((t, -1) for t in frame["finish_s"])])
        assert max(np.cumsum([change for _, change in moments])) <= min(users, n)
    else:
        assert frame["arrival_s"].tolist() == case.table.arrival_s.tolist()


def test_the_order_of_times_is_exact(build_case: Any) -> None:
    """3.2375 + (11.350781249999999 - 3.2375) is more than the second: arrival + TTFT is no first-token time."""
    frame = build_case([1], [1]).serve().requests()
    frame[["arrival_s", "first_scheduled_s"]] = 3.2375
    frame[["first_token_s", "finish_s"]] = 11.350781249999999
    frame["time_prefill_s"] = frame["finish_s"] - frame["arrival_s"]
    check_requests(frame, tolerance=1e-9)


@settings(parent=modest, max_examples=40)
@given(scenarios(), st.lists(st.floats(0.0, 20.0), min_size=1, max_size=6))
def test_where_time_is_cut_changes_nothing(build_case: Any, scenario: dict[str, Any], cuts: list[float]) -> None:
    whole = build(build_case, scenario).serve()
    parts = build(build_case, scenario).send()
    for until_s in np.cumsum(cuts):
        parts.replica.advance(float(until_s))
        parts.replica.check_integrity()
        assert parts.replica.next_event_s >= until_s
        for name in ("first_token_s", "finish_s"):
            assert parts.rows[name].max() <= until_s
    parts.replica.advance(math.inf)
    assert whole.rows.tobytes() == parts.rows.tobytes()
    assert whole.replica.steps().equals(parts.replica.steps())
