"""The engine that keeps up with the clock is the simulation's: the same requests end at the same times."""

from __future__ import annotations

import math

import numpy as np
import pytest

from draftcast import load_scenario
from draftcast.scenarios.run.deployment import cached_deployment
from draftcast.scenarios.run.simulate import front_end_s, serve
from draftcast.scenarios.run.workload_spec import workload_spec
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.serve.engine import LiveEngine
from draftcast.scenarios.serve.fleet import FrontEndQueue
from draftcast.sim.workload.build_requests import build_requests
from draftcast.sim.workload.request_table import RequestTable

SMALL = ("statistics.replications=1", "statistics.warmup=none", "workload.num_requests=120")
BUSY = "workload.arrivals.request_rate_rps=60"
CLASSES = (
    "workload.classes=[{name: chat, share: 0.7, priority: 1}, {name: code, share: 0.3, priority: 0,"
    " acceptance: {model: constant, alpha: 0.9}}]"
)
SCENARIOS: dict[str, tuple[str, ...]] = {
    "drafts": (BUSY,),
    "off": (BUSY, "engine.speculative_config=null"),
    "preempted": (BUSY, "engine.num_gpu_blocks=700", "engine.max_model_len=4200"),
    "classes by priority": (BUSY, CLASSES, "engine.scheduling_policy=priority", "engine.max_num_seqs=8"),
    "data parallel": (BUSY, "engine.data_parallel_size=2"),
    "policy": (BUSY, "policy={name: goodput}"),
}


def small(*overrides: str) -> Scenario:
    return load_scenario("default", overrides=[*SMALL, *overrides])


def arrivals(scenario: Scenario) -> RequestTable:
    settings = cached_deployment(scenario).settings
    return build_requests(workload_spec(scenario), scenario.statistics.seed, None, settings.max_model_len)


def played(scenario: Scenario, engine: LiveEngine) -> tuple[dict[int, float], dict[int, int]]:
    """When each request ended and how many tokens it got, sent behind the front end as the clock reaches them."""
    table, front_end = arrivals(scenario), FrontEndQueue(scenario, [cached_deployment(scenario)])
    ends: dict[int, float] = {}
    tokens = dict.fromkeys(range(len(table)), 0)
    sent = 0
    at_s = [
        front_end.hand_over_s(*each)
        for each in zip(table.arrival_s.tolist(), table.prompt_tokens.tolist(), strict=True)
    ]
    while sent < len(table) or engine.replica.next_event_s < math.inf:
        while sent < len(table) and at_s[sent] <= engine.replica.next_event_s:
            row = sent
            size = int(table.prompt_tokens[row]), int(table.output_tokens[row]), int(table.priority[row])
            engine.submit(row, *size, at_s[row])
            sent += 1
        now_s = engine.replica.next_event_s
        pieces, ended, _ = engine.advance()
        for row, new in pieces:
            tokens[row] += new
        ends |= {row: now_s for row, *_ in ended}
    return ends, tokens


@pytest.mark.parametrize("overrides", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_requests_end_when_the_simulation_ends_them(overrides: tuple[str, ...]) -> None:
    scenario = small(*overrides)
    simulated = serve(scenario).replications[0].requests
    engine = LiveEngine(scenario)
    ends, tokens = played(scenario, engine)
    assert [ends[row] for row in range(120)] == pytest.approx(simulated["finish_s"].tolist(), rel=1e-12)
    assert list(tokens.values()) == simulated["output_tokens"].tolist()
    counts = engine.counts()
    assert counts["num_preemptions"] == simulated["preemptions"].sum()
    assert (counts["num_preemptions"] > 0) == ("num_gpu_blocks" in str(overrides))
    for name in ("num_drafts", "num_draft_tokens"):
        assert counts[name] == simulated[name].sum()
    assert sum(counts["accepted_per_position"]) == simulated["num_accepted_tokens"].sum()
    assert counts["num_running"] == counts["num_waiting"] == 0


def test_the_front_end_passes_requests_on_as_in_a_simulation() -> None:
    scenario = small("workload.arrivals.request_rate_rps=3000", "cluster.replicas=2")
    deployment, table = cached_deployment(scenario), arrivals(scenario)
    front_end = FrontEndQueue(scenario, [deployment])
    columns = table.arrival_s.tolist(), table.prompt_tokens.tolist()
    late_s = [front_end.hand_over_s(*each) - each[0] for each in zip(*columns, strict=True)]
    assert late_s == pytest.approx(front_end_s(scenario, [deployment], table).tolist())


@pytest.mark.parametrize("after", [0, 1, 2, 5, 40])
@pytest.mark.parametrize("spec", ["async", "sync", "data parallel"])
def test_aborted_requests_leave_nothing_behind(after: int, spec: str) -> None:
    """Unseen by the scheduler, waiting, in prefill or decoding: all blocks come back, the others end."""
    changes = {
        "async": (),
        "sync": ("engine.async_scheduling=false",),
        "data parallel": ("engine.data_parallel_size=2",),
    }
    scenario = small("engine.max_num_seqs=4", "engine.max_num_batched_tokens=256", *changes[spec])
    engine = LiveEngine(scenario)
    for row in range(16):
        engine.submit(row, 300, 20, 0, 0.001 * row)
    outputs = [engine.advance() for _ in range(after)]
    gone = {*range(0, 16, 3)} - {row for _, finished, _ in outputs for row, *_ in finished}
    for row in range(0, 16, 3):  # to abort one that has ended changes nothing
        engine.abort(row)
    for rank in engine.replica.ranks:
        rank.check_integrity()
    while engine.replica.next_event_s < math.inf:
        outputs.append(engine.advance())
    ended = [row for _, finished, _ in outputs for row, *_ in finished]
    free = [row for *_, freed in outputs for row in freed]
    for rank in engine.replica.ranks:
        rank.check_integrity()
        assert rank.state.engine[0]["free_blocks"] == rank.config.num_gpu_blocks - 1
    assert sorted(ended) == [row for row in range(16) if row not in gone]
    assert sorted(free) == list(range(16))


def test_rows_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftcast.scenarios.serve.engine.ROWS", 4)
    engine = LiveEngine(small())
    ends = []
    for number in range(30):
        engine.submit(number % 4, 50 + number, 10, 0, float(number))
        while engine.replica.next_event_s < math.inf:
            ends += engine.advance()[1]
    assert [row for row, *_ in ends] == [number % 4 for number in range(30)]
    assert np.all(np.array([times for _, *times in ends]) >= 0.0)
