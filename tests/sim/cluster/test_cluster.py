"""The cluster: routing logs by hand, closed loops, and that driving a replica in parts changes nothing."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from samples import clients, closed_loop

from draftcast.sim.acceptance.chain import Chain
from draftcast.sim.cluster.cluster import Cluster, _Clients
from draftcast.sim.cluster.routers import ROUTERS
from draftcast.sim.engine.replica import Replica
from draftcast.sim.workload.arrivals import ClosedLoopArrivals

RESULTS = ["replica", "arrival_s", "first_scheduled_s", "first_token_s", "finish_s", "output_tokens", "num_drafts"]
ONE_SECOND = {"step_s": 1.0, "row_s": 0.0}
Serve = Callable[..., tuple[pd.DataFrame, Any]]


@pytest.fixture
def serve(build_case: Any) -> Serve:
    """Requests through a cluster: the request table afterwards, and the case behind it."""

    def run(
        prompt: Sequence[int],
        output: Sequence[int],
        *,
        router: str = "round_robin",
        replicas: int = 1,
        closed_loop: ClosedLoopArrivals | None = None,
        seed: int = 0,
        progress: Callable[[float], None] | None = None,
        **fields: Any,
    ) -> tuple[pd.DataFrame, Any]:
        case = build_case(prompt, output, replicas=replicas, seed=seed, **fields)
        chosen = ROUTERS[router](case.table, replicas, seed)
        loop = clients(closed_loop, len(prompt), seed) if closed_loop is not None else None
        cluster = Cluster(case.replicas, case.table, chosen, loop, progress=progress)
        cluster.run()
        for replica in case.replicas:
            replica.check_integrity()
        requests = case.requests(cluster.assigned)
        assert np.isfinite(requests["finish_s"]).all()
        return requests, case

    return run


def drawn_requests(seed: int, n: int, rate_rps: float) -> dict[str, Any]:
    """Arguments of a case: random lengths and arrivals, a draft method, so that steps differ."""
    rng = np.random.default_rng(seed)
    return {
        "prompt": rng.integers(1, 30, n),
        "output": rng.integers(1, 20, n),
        "arrival_s": np.cumsum(rng.exponential(1 / rate_rps, n)),
        "method": "eagle",
        "k": 2,
        "accept": Chain(alpha=0.6),
        "seed": seed,
        "cost": {"step_s": 1.0, "row_s": 0.01, "kv_s": 0.001, "draft_s": 0.1, "host_s": 0.05},
    }


# ---- routing logs by hand; every step lasts one second ----


def test_round_robin_by_hand(serve: Serve) -> None:
    # Requests 0, 2, 4 queue on replica 0 (one slot), 1 and 3 on replica 1.
    requests, _ = serve(
        [1] * 5, [2] * 5, arrival_s=[0.0, 0.5, 1.0, 1.5, 2.0], replicas=2, cost=ONE_SECOND, max_num_seqs=1
    )
    assert requests["replica"].tolist() == [0, 1, 0, 1, 0]
    assert requests["first_scheduled_s"].tolist() == [0.0, 0.5, 2.0, 2.5, 4.0]
    assert requests["finish_s"].tolist() == [2.0, 2.5, 4.0, 4.5, 6.0]


def test_least_loaded_by_hand(serve: Serve) -> None:
    # 0 takes 4 s on replica 0; 1 (1 s) goes to the empty replica 1 and is gone at 1.5; 2 goes there again, at its end
    # 3 finds both with one request and takes the first.
    requests, _ = serve(
        [1] * 4,
        [4, 1, 3, 1],
        arrival_s=[0.0, 0.5, 1.5, 2.0],
        replicas=2,
        router="least_loaded",
        cost=ONE_SECOND,
        max_num_seqs=1,
    )
    assert requests["replica"].tolist() == [0, 1, 1, 0]
    assert requests["first_scheduled_s"].tolist() == [0.0, 0.5, 1.5, 4.0]
    assert requests["finish_s"].tolist() == [4.0, 1.5, 4.5, 5.0]


def test_requests_that_arrive_together_see_each_other(serve: Serve) -> None:
    requests, _ = serve(
        [1] * 6, [2] * 6, arrival_s=[1.0] * 6, replicas=3, router="least_loaded", cost=ONE_SECOND, max_num_seqs=8
    )
    assert requests["replica"].tolist() == [0, 1, 2, 0, 1, 2]
    assert requests["finish_s"].tolist() == [3.0] * 6


def test_prefix_affinity_by_hand(serve: Serve) -> None:
    # Two conversations; each keeps to the replica that has its prefix, which then hits all but the last block.
    requests, case = serve(
        [8, 8, 12, 12],
        [1] * 4,
        arrival_s=[0.0, 0.25, 4.0, 5.0],
        hash_ids=[[1, 2], [5, 6], [5, 6, 7], [1, 2, 3]],
        replicas=2,
        router="prefix_affinity",
        cost=ONE_SECOND,
    )
    assert requests["replica"].tolist() == [0, 1, 1, 0]
    assert requests["cached_tokens"].tolist() == [0, 0, 8, 8]
    assert [int(r.state.engine[0]["cached_tokens"]) for r in case.replicas] == [8, 8]


def test_closed_loop_by_hand(serve: Serve) -> None:
    # Two users, one slot, 2 s each, half a second of thought before every request.
    loop = closed_loop(2, 0.5, "constant")
    requests, _ = serve([1] * 5, [2] * 5, closed_loop=loop, cost=ONE_SECOND, max_num_seqs=1)
    assert requests["arrival_s"].tolist() == [0.5, 0.5, 3.0, 5.0, 7.0]
    assert requests["first_scheduled_s"].tolist() == [0.5, 2.5, 4.5, 6.5, 8.5]
    assert requests["finish_s"].tolist() == [2.5, 4.5, 6.5, 8.5, 10.5]


def test_closed_loop_without_thought_by_hand(serve: Serve) -> None:
    # The answer and the next request fall on one moment: the step that starts then takes it.
    loop = closed_loop(2)
    requests, _ = serve([1] * 4, [1, 2, 2, 1], closed_loop=loop, cost=ONE_SECOND, async_scheduling=False)
    assert requests["arrival_s"].tolist() == [0.0, 0.0, 1.0, 2.0]
    assert requests["first_scheduled_s"].tolist() == [0.0, 0.0, 1.0, 2.0]
    assert requests["finish_s"].tolist() == [1.0, 2.0, 3.0, 3.0]


def test_closed_loop_over_replicas_by_hand(serve: Serve) -> None:
    # Three users, two replicas of one slot. At 2 s both replicas answer before either schedules again: user 0's next
    # request (3) finds replica 0 with request 2 and replica 1 empty; user 1's (4) finds one on each.
    loop = closed_loop(3)
    requests, _ = serve(
        [1] * 6, [2] * 6, closed_loop=loop, replicas=2, router="least_loaded", cost=ONE_SECOND, max_num_seqs=1
    )
    assert requests["replica"].tolist() == [0, 1, 0, 1, 0, 1]
    assert requests["arrival_s"].tolist() == [0.0, 0.0, 0.0, 2.0, 2.0, 4.0]
    assert requests["finish_s"].tolist() == [2.0, 2.0, 4.0, 4.0, 6.0, 6.0]


def test_sessions_by_hand(build_case: Any) -> None:
    # Request 1 is the next turn of request 0's user, who has the answer at 2 s and thinks half a second. Request 2 is
    # another's. Steps begin at 0 s (request 0), 1 s (0 and 2), 2 s (2) and 3 s (1).
    case = build_case([1, 4, 1], [2, 1, 2], arrival_s=[0.0, 0.0, 0.5], cost=ONE_SECOND, async_scheduling=False)
    table = dataclasses.replace(case.table, session=np.array([0, 0, 1]), think_s=np.array([0.0, 0.5, 0.0]))
    cluster = Cluster(case.replicas, table, ROUTERS["round_robin"](table, 1, 0))
    cluster.run()
    requests = case.requests(cluster.assigned)
    assert cluster.order.tolist() == [0, 2, 1]
    assert requests["arrival_s"].tolist() == [0.0, 2.5, 0.5]
    assert requests["first_scheduled_s"].tolist() == [0.0, 3.0, 1.0]
    assert requests["finish_s"].tolist() == [2.0, 4.0, 3.0]


# ---- driven in one piece or in parts ----


@pytest.mark.parametrize("router", ["round_robin", "random", "least_loaded", "power_of_two", "prefix_affinity"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_cluster_is_its_replicas_run_apart(serve: Serve, build_case: Any, router: str, seed: int) -> None:
    """However a router stops and looks, each replica serves its requests as if they were all it ever had."""
    drawn = drawn_requests(seed, 150, rate_rps=0.8)
    together, _ = serve(**drawn, router=router, replicas=3)
    assert together["replica"].nunique() == 3
    for replica in range(3):
        mine = np.flatnonzero(together["replica"] == replica)
        alone = build_case(**drawn)
        alone.replica.submit(mine.astype(np.uint32))
        alone.replica.advance(math.inf)
        expected = alone.requests(replica).iloc[mine]
        pd.testing.assert_frame_equal(together.iloc[mine], expected, check_exact=True)


@pytest.mark.parametrize("think", [(0.0, "constant"), (0.5, "constant"), (3.0, "exponential")])
@pytest.mark.parametrize(("router", "replicas"), [("round_robin", 1), ("random", 2), ("least_loaded", 3)])
@pytest.mark.parametrize("step_s", [1.0, 0.7])
def test_a_closed_loop_is_an_open_one_with_its_arrivals(
    serve: Serve, build_case: Any, think: tuple[float, str], router: str, replicas: int, step_s: float
) -> None:
    """The arrivals that a closed loop made, given beforehand, lead to the same times; equal steps make many ties."""
    drawn = drawn_requests(3, 120, rate_rps=1.0)
    del drawn["arrival_s"]
    drawn["cost"] = {"step_s": step_s, "row_s": 0.0}
    users = 10
    closed, case = serve(**drawn, router=router, replicas=replicas, closed_loop=closed_loop(users, *think))
    for replica, loop in enumerate(case.replicas):
        sent = loop.state.arrivals[: loop.state.engine[0]["num_arrivals"]]
        assert sorted(sent) == np.flatnonzero(closed["replica"] == replica).tolist()
        alone = build_case(**drawn)
        alone.rows["arrival_s"] = closed["arrival_s"]
        alone.replica.submit(sent)
        alone.replica.advance(math.inf)
        expected = alone.requests(replica)
        pd.testing.assert_frame_equal(closed.iloc[sent][RESULTS], expected.iloc[sent][RESULTS], check_exact=True)


@pytest.mark.parametrize("num_extra", [0, 60])
@pytest.mark.parametrize("users", [1, 10, 130])
def test_answers_that_bring_a_request_at_once_need_no_look_at_each_client(
    build_case: Any, monkeypatch: pytest.MonkeyPatch, num_extra: int, users: int
) -> None:
    """A lone replica whose clients never think is run in a shorter way, to the same bits."""
    drawn = drawn_requests(5, 120, rate_rps=1.0)

    def bits() -> list[Any]:
        case = build_case(**drawn)
        table = dataclasses.replace(case.table, num_extra=num_extra)
        cluster = Cluster(case.replicas, table, ROUTERS["random"](table, 1, 0), clients(closed_loop(users), len(table)))
        cluster.run()
        state = case.replica.state
        arrays = (state.requests, state.engine, state.steps, state.itl, cluster.assigned, cluster.engines)
        return [*(array.tobytes() for array in arrays), cluster.end_s, cluster.stability, cluster.ran_out]

    short = bits()
    monkeypatch.setattr(
        Cluster,
        "_run_without_thought",
        lambda self, _: self._run_clients(_Clients(self._table, self._closed_loop)),
    )
    assert bits() == short


def test_a_closed_loop_equals_an_open_run_of_its_table(serve: Serve) -> None:
    """The same through the open loop's own path: the table sorted by the arrivals that the closed loop made."""
    drawn = drawn_requests(4, 100, rate_rps=1.0)
    del drawn["arrival_s"]
    drawn["accept"] = Chain(alpha=0.0)  # draws are keyed by row, and sorting moves rows
    loop = closed_loop(6, 2.0, "exponential")
    closed, _ = serve(**drawn, closed_loop=loop)
    order = np.argsort(closed["arrival_s"].to_numpy(), kind="stable")
    drawn["prompt"], drawn["output"] = drawn["prompt"][order], drawn["output"][order]
    opened, _ = serve(**drawn, arrival_s=closed["arrival_s"].to_numpy()[order])
    for column in RESULTS:
        assert opened[column].tolist() == closed[column].to_numpy()[order].tolist(), column


# ---- closed loop: users and causes ----


@pytest.mark.parametrize("router", ["round_robin", "least_loaded", "power_of_two"])
@pytest.mark.parametrize(("users", "replicas"), [(1, 1), (5, 2), (12, 4)])
def test_users_wait_for_their_answers(serve: Serve, router: str, users: int, replicas: int) -> None:
    n, seed = 200, 7
    drawn = drawn_requests(seed, n, rate_rps=1.0)
    del drawn["arrival_s"]
    think = (2.0, "exponential")
    requests, _ = serve(**drawn, router=router, replicas=replicas, closed_loop=closed_loop(users, *think))
    arrival, finish = requests["arrival_s"].to_numpy(), requests["finish_s"].to_numpy()
    assert (requests["first_scheduled_s"] >= arrival).all()
    assert (finish > arrival).all()
    # The first request of each user comes after a thought; request users + j is sent upon the j-th answer, by time.
    thought = closed_loop(users, *think).draw_think_s(seed, n)
    np.testing.assert_array_equal(arrival[:users], thought[:users])
    np.testing.assert_allclose(arrival[users:], np.sort(finish)[: n - users] + thought[users:], rtol=1e-14)
    # Never more than `users` at once; an answer at the very moment of a request comes first.
    change = np.repeat([1, -1], n)
    order = np.lexsort((change, np.concatenate([arrival, finish])))
    assert np.cumsum(change[order]).max() <= users


def test_without_thought_all_users_are_always_served(serve: Serve) -> None:
    users, n = 6, 150
    drawn = drawn_requests(1, n, rate_rps=1.0)
    del drawn["arrival_s"]
    requests, _ = serve(**drawn, replicas=2, router="least_loaded", closed_loop=closed_loop(users))
    arrival, finish = requests["arrival_s"].to_numpy(), requests["finish_s"].to_numpy()
    last_sent_s = arrival.max()
    for t in np.linspace(0.0, last_sent_s, 400, endpoint=False):
        assert ((arrival <= t) & (finish > t)).sum() == users


def test_more_users_than_requests(serve: Serve) -> None:
    requests, _ = serve([1] * 3, [1] * 3, closed_loop=closed_loop(8), cost=ONE_SECOND)
    assert requests["arrival_s"].tolist() == [0.0] * 3
    assert requests["finish_s"].tolist() == [1.0] * 3


def test_a_replica_runs_on_while_nobody_can_send(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two users who think longer than an answer takes: some calls a request, not one a step."""
    calls = 0
    advance = Replica.advance

    def counted(*arguments: Any, **named: Any) -> int:
        nonlocal calls
        calls += 1
        return advance(*arguments, **named)

    monkeypatch.setattr(Replica, "advance", counted)
    n, loop = 30, closed_loop(2, 60.0, "constant")
    _, case = serve([1] * n, [40] * n, closed_loop=loop, replicas=2, router="least_loaded", cost=ONE_SECOND)
    assert sum(int(replica.state.engine[0]["step"]) for replica in case.replicas) > 30 * n
    assert calls < 8 * n


# ---- what routers are for ----


def test_looking_at_loads_shortens_the_wait(serve: Serve) -> None:
    drawn = drawn_requests(0, 2000, rate_rps=0.85)
    drawn |= {
        "method": "none",
        "k": 0,
        "accept": Chain(alpha=0.0),
        "cost": {"step_s": 0.4, "row_s": 0.0},
    }
    waits = {}
    for router in ("random", "round_robin", "power_of_two", "least_loaded"):
        requests, _ = serve(**drawn, router=router, replicas=4, max_num_seqs=1)
        waits[router] = float(requests["time_queue_s"].mean())
    # The order of queueing theory: two choices are most of the way from random to the best.
    assert waits["least_loaded"] < waits["power_of_two"] < 0.5 * waits["random"]
    assert waits["least_loaded"] < waits["round_robin"] < waits["random"]


def test_random_splitting_makes_independent_queues(serve: Serve) -> None:
    """A Poisson stream split at random is Poisson on every replica: each is an M/D/1 queue of a quarter of the load."""
    n, rho, replicas = 40_000, 0.6, 4
    arrival_s = np.cumsum(np.random.default_rng(5).exponential(1 / (rho * replicas), n))
    requests, _ = serve(
        [1] * n,
        [1] * n,
        arrival_s=arrival_s,
        accept=Chain(alpha=0.0),
        replicas=replicas,
        router="random",
        cost=ONE_SECOND,
        max_num_seqs=1,
    )
    assert requests["time_queue_s"].mean() == pytest.approx(rho / (2 * (1 - rho)), rel=0.06)


# ---- progress ----


@pytest.mark.parametrize(
    ("router", "loop"),
    [("round_robin", None), ("least_loaded", None), ("round_robin", closed_loop(4)), ("power_of_two", closed_loop(4))],
)
def test_progress_never_falls_and_ends_at_one(serve: Serve, router: str, loop: ClosedLoopArrivals | None) -> None:
    drawn = drawn_requests(2, 3000 if router == "least_loaded" else 200, rate_rps=1.0)
    if loop is not None:
        del drawn["arrival_s"]
    seen: list[float] = []
    serve(**drawn, router=router, replicas=2, closed_loop=loop, progress=seen.append)
    assert len(seen) > 3
    assert seen == sorted(seen)
    assert seen[0] >= 0.0
    assert seen[-1] == 1.0
