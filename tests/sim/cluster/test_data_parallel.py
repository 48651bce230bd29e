"""Data-parallel ranks: event logs by hand, and the router's choice. `tests/live` compares them with vLLM's own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from draftcast.sim.cluster.cluster import Cluster
from draftcast.sim.cluster.data_parallel import ApiServer, Coordinator, DataParallel
from draftcast.sim.cluster.routers import ROUTERS
from draftcast.sim.cost.step_time import PIECEWISE_GRAPHS
from draftcast.sim.state.engine import STOP_FINISHED


def group_of(case: Any, sent: list[list[int]]) -> DataParallel:
    """Ranks that step together, each with the requests it was sent; a dummy batch takes as long as a batch of a row."""
    group = DataParallel(case.replicas, lockstep=True)
    group._dummy_s = 1.125
    for rank, requests in zip(group.ranks, sent, strict=True):
        rank.submit(requests)
    return group


def ends(group: DataParallel) -> list[list[float]]:
    """When the outputs of each rank's batches were taken."""
    return [(rank.steps()["start_s"] + rank.steps()["duration_s"]).tolist() for rank in group.ranks]


def test_a_step_lasts_as_long_as_the_longest_rank_s(build_case: Any) -> None:
    # 8 rows take 2 s, 1 row 1.125 s; the first rank decodes while the second computes its prompt.
    case = build_case([1, 8], [4, 2], arrival_s=[0.0, 1.0], replicas=2, async_scheduling=False)
    group = group_of(case, [[0], [1]])
    group.advance(math.inf)
    assert ends(group) == [[1.125, 3.125, 4.25, 5.375], [3.125, 4.25]]
    parts = case.requests().iloc[0]
    assert parts["time_verify_s"] + parts["time_prefill_s"] == 5.375  # the wait for the other's prompt is in it


@pytest.mark.parametrize(("graph_rows", "step_s"), [(16, 2.0), (0, 1.25)])
def test_experts_see_the_rows_of_all_ranks(build_case: Any, table_cost: Any, graph_rows: int, step_s: float) -> None:
    # An eighth of a second a row: in a graph both ranks pad to the 8 rows of the second, without one they are 2 + 8.
    experts = np.zeros((17, 3))
    experts[:, 0] = np.arange(17) / 8
    cost = table_cost([0.0] * 17)._replace(experts=experts)
    cost.params["ranks"] = 2
    cost.params["cuda_graph_rows"], cost.params["mixed_mode"] = graph_rows, PIECEWISE_GRAPHS
    group = group_of(build_case([2, 8], [1, 1], replicas=2, cost=cost, async_scheduling=False), [[0], [1]])
    group.advance(math.inf)
    assert ends(group) == [[step_s], [step_s]]


def test_idle_ranks_step_on_until_all_agree_that_nothing_is_left(build_case: Any) -> None:
    # Two steps, then dummies up to the sixteenth of the wave.
    case = build_case([1, 1, 1], [2, 1, 1], arrival_s=[0.0, 3.0, 50.0], replicas=2, async_scheduling=False)
    group = group_of(case, [[0, 2], [1]])
    group.advance(math.inf)
    # 3.0 lies in the third step, behind which the next dummy waits already: the request is in the fifth.
    assert ends(group) == [[1.125, 2.25, 51.125], [5.625]]
    assert group.wave == 2
    assert group.next_event_s == math.inf


def test_a_rank_that_waits_for_its_output_runs_dummies_beside_the_others(build_case: Any) -> None:
    # Asynchronously: the first rank's second batch is its last, the other goes on.
    case = build_case([1, 1], [2, 5], replicas=2)
    group = group_of(case, [[0], [1]])
    group.advance(math.inf)
    assert ends(group) == [[1.125, 2.25], [1.125, 2.25, 3.375, 4.5, 5.625]]


def test_answers_of_one_moment_are_handed_out_together(build_case: Any) -> None:
    case = build_case([1, 1, 1], [2, 2, 3], replicas=3, async_scheduling=False)
    group = group_of(case, [[0], [1], [2]])
    assert group.advance(math.inf, stop_on_finish=True) == STOP_FINISHED
    assert sorted(group.just_finished.tolist()) == [0, 1]
    assert group.advance(math.inf, stop_on_finish=True) == STOP_FINISHED
    assert group.just_finished.tolist() == [2]


@pytest.mark.parametrize("lockstep", [True, False])
def test_a_cluster_serves_all_requests_over_ranks(build_case: Any, lockstep: bool) -> None:
    n = 40
    case = build_case([4] * n, [6] * n, arrival_s=np.arange(n) / 4, replicas=4)
    pairs = [DataParallel(case.replicas[start : start + 2], lockstep=lockstep) for start in (0, 2)]
    for group in pairs:
        group._dummy_s = 1.0
    cluster = Cluster(pairs, case.table, ROUTERS["least_loaded"](case.table, 2, 0))
    cluster.run()
    assert (case.rows["tokens"] == 10).all()
    assert cluster.engines.size == 4
    assert (cluster.engines["num_finished"] > 5).all()
    for replica in case.replicas:
        replica.check_integrity()


def test_a_router_prefers_short_queues_and_empty_caches() -> None:
    server = ApiServer(0, 1, 3)
    assert [server.choose() for _ in range(3)] == [0, 1, 2]  # nothing known: in turn
    server.known = [[0, 9, 0.0], [0, 5, 0.0], [4, 4, 1.0]]
    assert server.choose() == 1  # 9, 5 and 8 + 4 x 6 x 0.5
    assert server.known[1] == [1, 5, 0.0]
    server.in_flight[1] = [*range(12)]
    assert server.choose() == 0


def test_counts_are_published_every_tenth_of_a_second() -> None:
    alone = Coordinator(1, lockstep=False)
    alone.receive(1000.0, 0, [1, 0, 0.0])
    alone.receive(1050.0, 0, [2, 0, 0.0])
    assert alone.published == [[1, 0, 0.0]]  # long after the last publication: at once
    alone.advance(1099.0)
    assert alone.published == [[1, 0, 0.0]]
    alone.advance(1101.0)
    assert alone.published == [[2, 0, 0.0]]


def test_ranks_of_their_own_tell_their_counts_before_a_publication(build_case: Any) -> None:
    """The first publication, after 5 s of quiet, knows of the request that came before."""
    case = build_case([1, 1], [30, 1], arrival_s=np.array([0.0, 5.05]), replicas=2)
    group = DataParallel(case.replicas, lockstep=False)
    group.submit([0, 1])
    group.advance(5.06)
    assert [running for _, running, _ in group._coordinator.published] == [1, 0]
