"""Data-parallel ranks against vLLM's own coordinator, router and busy loops, over random workloads."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from draftcast.sim.cluster.data_parallel import BATCH_READY, DUMMY_READY, ApiServer, Coordinator, DataParallel

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def vllm() -> Any:
    """The drivers of vLLM's parts."""
    pytest.importorskip("vllm", reason="make live-env")
    sys.path.insert(0, str(Path(__file__).parent))  # tests are not on the import path
    import vllm_data_parallel_driver

    sys.path.pop(0)
    return vllm_data_parallel_driver


class _Logged(Coordinator):
    log: list[Any]

    def publish(self, now_ms: float) -> None:
        super().publish(now_ms)
        self.log.append((now_ms, self.published))


@pytest.mark.parametrize("lockstep", [True, False])
def test_publishes_what_vllm_publishes(vllm: Any, lockstep: bool) -> None:
    published = 0
    for number in range(100):
        rng = Random(number)
        ranks, step_ms = rng.randint(2, 8), rng.choice([2.5, 7.5, 30.5, 120.5, 700.5])
        messages, now_ms, wave, step = [], 0.0, 0, 0
        for _ in range(rng.randint(1, 300)):
            now_ms += step_ms * rng.choice([1, 1, 1, 1, rng.randint(1, 40)])
            wave, step = (wave + 1, 0) if rng.random() < 0.02 else (wave, step + 1)
            for rank in range(ranks):
                if rng.random() < 0.5:
                    now_ms += 0.015625
                    counts = [rng.randint(0, 9), rng.randint(0, 99), rng.random()]
                    messages.append({"ms": now_ms, "rank": rank, "counts": counts, "wave": wave, "step": step})
        end_ms = now_ms + 20_000
        theirs = vllm.publications(messages, ranks, lockstep=lockstep, end_ms=end_ms)
        ours = _Logged(ranks, lockstep=lockstep)
        ours.log = []
        for each in messages:
            ours.receive(each["ms"], each["rank"], each["counts"], (each["wave"], each["step"]))
        ours.advance(end_ms)
        assert ours.log == theirs, number
        published += len(theirs)
    assert published > 1000


def test_routes_where_vllm_routes(vllm: Any) -> None:
    for number in range(300):
        rng = Random(number)
        ranks = rng.randint(2, 8)
        servers = rng.choice([1, ranks])
        index = rng.randrange(servers)
        events: list[Any] = []
        ours, server, at = [], ApiServer(index, servers, ranks), {}
        for request in range(200):
            if rng.random() < 0.1:
                counts = [[rng.choice([0, rng.randint(0, 20)]), rng.randint(0, 50), rng.random()] for _ in range(ranks)]
                events.append(("known", counts))
                server.known = [list(each) for each in counts]
            if at and rng.random() < 0.4:
                done = rng.choice(list(at))
                events.append(("finish", done))
                server.in_flight[at.pop(done)].remove(done)
            events.append(("route", request))
            ours.append(server.choose())
            server.in_flight[ours[-1]].append(request)
            at[request] = ours[-1]
        assert ours == vllm.chosen(events, ranks, index, servers), number


def test_ranks_step_as_vllm_s_do(vllm: Any, build_case: Any, table_cost: Any) -> None:
    passes = waves = 0
    for number in range(40):
        rng = Random(number)
        ranks = rng.randint(2, 5)
        times = sorted(rng.choice([0, rng.randint(0, 20), rng.randint(0, 150)]) for _ in range(rng.randint(1, 25)))
        requests = [(at, rng.randrange(ranks), rng.randint(1, 30)) for at in times]
        case = build_case(
            [1] * len(requests),
            [steps for *_, steps in requests],
            arrival_s=[float(at) for at, *_ in requests],
            replicas=ranks,
            cost=table_cost([0.0] + [1.0] * 64),
            async_scheduling=False,
            max_num_seqs=32,
        )
        group = DataParallel(case.replicas, lockstep=True)
        group._dummy_s = 1.0
        for index, (_, rank, _) in enumerate(requests):
            case.replicas[rank].submit([index])
        log: list[list[Any]] = [[] for _ in range(ranks)]
        run_step = group._run_step

        def logged(group: Any = group, log: Any = log, run_step: Any = run_step) -> None:
            for rank, what in enumerate(group._next):
                name = {BATCH_READY: "batch", DUMMY_READY: "dummy"}[what]
                log[rank].append((name, group.wave, group.steps[rank]))
            run_step()

        group._run_step = logged  # type: ignore[method-assign]
        group.advance(np.inf)
        assert log == vllm.busy_loops(requests, ranks), number
        passes, waves = passes + len(log[0]), waves + group.wave
    assert passes > 1000
    assert waves > 60
