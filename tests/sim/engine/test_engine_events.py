"""Exact event logs of the engine, computed by hand.

A step takes 1 s and 0.125 s per row unless a test says otherwise, blocks hold 4 tokens, and prefix caching is off.
In the comments ``t`` is the time, ``n rows`` what a step computes; every number is exact in binary.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from samples import clients, closed_loop

from draftcast.errors import CapacityError, SimulationError
from draftcast.sim.acceptance.chain import Chain
from draftcast.sim.cluster.cluster import Cluster
from draftcast.sim.cluster.data_parallel import DataParallel
from draftcast.sim.cluster.routers import ROUTERS
from draftcast.sim.cost.methods import get_method
from draftcast.sim.engine.replica import check_fits
from draftcast.sim.output.results import TIME_COLUMNS
from draftcast.sim.policies.schedule import BatchSchedule, Off
from draftcast.sim.state.engine import STOP_FINISHED, STOP_IDLE, STOP_OUTPUT

SYNC = {"async_scheduling": False}


def rows_and_ends(log: list[Any]) -> list[tuple[float, dict[int, tuple[int, int, int]]]]:
    """When every step ended, and (tokens, drafts, accepted) by request."""
    return [(step.collect_s, step.rows) for step in log]


def used(log: list[Any]) -> list[int]:
    return [step.used_blocks for step in log]


def parts(case: Any, request: int = 0) -> dict[str, float]:
    """The time components of a request that are not 0, without prefix and suffix of their names."""
    row = case.requests().iloc[request]
    return {name[5:-2]: float(row[name]) for name in TIME_COLUMNS if row[name] != 0.0}


def times(case: Any, request: int = 0) -> tuple[float, float, float]:
    row = case.requests().iloc[request]
    return float(row["first_scheduled_s"]), float(row["first_token_s"]), float(row["finish_s"])


# ---- one request ----


def test_one_request_synchronously(build_case: Any) -> None:
    case = build_case([4], [3], **SYNC)
    # 4 rows: 1.5 s; then 1 row each: 1.125 s. 4, 5, 6 tokens need 1, 2, 2 blocks; the last step frees them.
    assert case.log() == [
        (0.0, 0.0, 1.5, 1.5, {0: (4, 0, 0)}, {}, 1),
        (1.5, 1.5, 2.625, 2.625, {0: (1, 0, 0)}, {}, 2),
        (2.625, 2.625, 3.75, 3.75, {0: (1, 0, 0)}, {}, 0),
    ]
    assert times(case) == (0.0, 1.5, 3.75)
    assert parts(case) == {"prefill": 1.5, "verify": 2.25}


def test_batches_follow_each_other_through_a_pipeline(build_case: Any, easy_cost: Any) -> None:
    cost = easy_cost(method="none", is_async=False)._replace(stages=np.array([0.5, 0.5]))
    case = build_case([4, 4], [2, 2], cost=cost, max_num_batched_tokens=4, pipeline_parallel_size=2, **SYNC)
    # Each stage takes 0.75 s of a prompt and 0.5625 s of a token. The first stage takes the second prompt when it has
    # passed on the first, so the two requests stay in batches of their own.
    assert [step[:5] for step in case.log()] == [
        (0.0, 0.0, 1.5, 1.5, {0: (4, 0, 0)}),
        (0.0, 0.75, 2.25, 2.25, {1: (4, 0, 0)}),
        (1.5, 1.5, 2.8125, 2.8125, {0: (1, 0, 0)}),  # the second stage is busy until 2.25
        (2.25, 2.25, 3.375, 3.375, {1: (1, 0, 0)}),
    ]


@pytest.mark.parametrize(("method", "k"), [("none", 0), ("eagle", 2)])
def test_a_pipeline_waits_for_the_token_that_a_step_begins_with(
    build_case: Any, easy_cost: Any, method: str, k: int
) -> None:
    """However early a step is scheduled, one request passes all stages before its next step begins."""
    ends = []
    for stages in (1, 2, 4):
        cost = easy_cost(method=method, draft_s=0.25)._replace(stages=np.full(stages, 1 / stages))
        case = build_case([4], [6], cost=cost, method=method, k=k, pipeline_parallel_size=stages)
        ends.append([(step.schedule_s <= step.collect_s, step.collect_s) for step in case.log()])
    assert ends[0] == ends[1] == ends[2]
    assert len(ends[0]) > 2


def test_hidden_states_go_forth_through_a_pipeline_and_tokens_back(build_case: Any, easy_cost: Any) -> None:
    cost = easy_cost()._replace(stages=np.array([0.5, 0.5]))
    cost.params[0]["hop_s"], cost.params[0]["hop_row_s"] = 0.25, 0.5
    ends = [step.collect_s for step in build_case([4], [4], cost=cost, pipeline_parallel_size=2).log()]
    # A decoding step of one row takes 1.125 s, 0.75 s on its way to the second stage, and its token 0.25 s back.
    assert np.diff(ends).tolist() == [2.125] * 3


def test_batches_of_a_pipeline_overlap_where_no_request_is_in_both(build_case: Any, easy_cost: Any) -> None:
    cost = easy_cost()._replace(stages=np.array([0.5, 0.5]))
    case = build_case([4, 4], [3, 3], cost=cost, max_num_batched_tokens=4, pipeline_parallel_size=2)
    # Stages take 0.75 s of a prompt and 0.5625 s of a token; the first takes a token when the second has made it.
    assert [step.collect_s for step in case.log()] == [1.5, 2.25, 2.8125, 3.375, 3.9375, 4.5]
    assert case.replica.steps()["num_tokens"].tolist() == [4, 4, 1, 1, 1, 1]


def test_one_request_asynchronously(build_case: Any) -> None:
    case = build_case([4], [3])
    # Each step is scheduled when the step before the one in flight is collected; without host time nothing is gained.
    # After step 1 ends nothing is scheduled: the step in flight surely ends the request.
    assert case.log() == [
        (0.0, 0.0, 1.5, 1.5, {0: (4, 0, 0)}, {}, 2),  # step 1 holds its second block already
        (0.0, 1.5, 2.625, 2.625, {0: (1, 0, 0)}, {}, 2),
        (1.5, 2.625, 3.75, 3.75, {0: (1, 0, 0)}, {}, 0),
    ]
    assert times(case) == (0.0, 1.5, 3.75)
    assert parts(case) == {"prefill": 1.5, "verify": 2.25}
    steps = case.replica.steps()
    assert steps["start_s"].tolist() == [0.0, 0.0, 1.5]
    assert steps["duration_s"].tolist() == [1.5, 2.625, 2.25]
    assert steps["target_s"].tolist() == [1.5, 1.125, 1.125]
    assert steps["num_tokens"].tolist() == [4, 1, 1]
    assert steps["prefill_tokens"].tolist() == [4, 0, 0]
    assert steps["kv_used_blocks"].tolist() == [2, 2, 0]


def test_one_output_token_is_one_step(build_case: Any) -> None:
    case = build_case([4], [1], method="eagle", k=3)
    assert rows_and_ends(case.log()) == [(1.5, {0: (4, 0, 0)})]
    assert times(case) == (0.0, 1.5, 1.5)


# ---- host time ----


def test_async_hides_host_time_behind_the_device(build_case: Any) -> None:
    case = build_case([4], [3], cost={"host_s": 0.25})
    # Only the first step's 0.25 s show: t = 0.25 + 1.5, + 1.125, + 1.125.
    assert [(s.schedule_s, s.launch_s, s.collect_s) for s in case.log()] == [
        (0.0, 0.25, 1.75),
        (0.25, 1.75, 2.875),
        (1.75, 2.875, 4.0),
    ]
    assert parts(case) == {"prefill": 1.75, "verify": 2.25}


def test_async_shows_host_time_beyond_the_device(build_case: Any) -> None:
    case = build_case([4], [3], cost={"host_s": 2.0})
    # The host is busy 0..2, 2..4, 4..6; a step is collected when the host is free: gaps of max(host, device).
    assert [(s.schedule_s, s.launch_s, s.end_s, s.collect_s) for s in case.log()] == [
        (0.0, 2.0, 3.5, 4.0),
        (2.0, 4.0, 5.125, 6.0),
        (4.0, 6.0, 7.125, 7.125),  # nothing more to schedule, so the device is what is waited for
    ]
    # 3.125 s after the first token: 2.25 s of target passes, the rest waits for the host.
    assert parts(case) == {"prefill": 4.0, "verify": 2.25, "host": 0.875}


def test_sync_exposes_host_time(build_case: Any) -> None:
    case = build_case([4], [3], cost={"host_s": 0.25}, **SYNC)
    # 0.25 + 1.5, then twice 0.25 + 1.125.
    assert [(s.schedule_s, s.launch_s, s.collect_s) for s in case.log()] == [
        (0.0, 0.25, 1.75),
        (1.75, 2.0, 3.125),
        (3.125, 3.375, 4.5),
    ]
    assert parts(case) == {"prefill": 1.75, "verify": 2.25, "host": 0.5}


def test_host_time_of_an_affine_fit_is_exposed_under_async_too(build_case: Any) -> None:
    case = build_case([4], [3], cost={"host_s": 0.25, "host_hides": False})
    assert [s.collect_s for s in case.log()] == [1.75, 3.125, 4.5]
    assert parts(case) == {"prefill": 1.75, "verify": 2.25, "host": 0.5}


def test_ngram_exposes_host_and_search(build_case: Any) -> None:
    case = build_case([4], [2], method="ngram", k=2, accept=[[0]], cost={"host_s": 0.25, "search_fraction": 0.5})
    # Synchronous. 4 rows: 0.25 + 1.5 + 0.75 of search = 2.5; 1+2 rows: 0.25 + 1.375 + 0.6875.
    assert rows_and_ends(case.log()) == [(2.5, {0: (4, 0, 0)}), (4.8125, {0: (3, 2, 0)})]
    # Both drafts of the only verify step are rejected: without their rows and a search it takes 1.125 s.
    assert parts(case) == {"prefill": 2.5, "host": 0.25, "verify": 1.125, "rejected": 0.25 + 0.6875}


# ---- several requests ----


def test_two_overlapping_requests(build_case: Any) -> None:
    case = build_case([4, 3], [3, 2], arrival_s=[0.0, 1.0], **SYNC)
    # Request 1 arrives inside step 0 and joins at t = 1.5: 1 + 3 rows, 1.5 s; then 2 rows, 1.25 s.
    log = case.log()
    assert rows_and_ends(log) == [
        (1.5, {0: (4, 0, 0)}),
        (3.0, {0: (1, 0, 0), 1: (3, 0, 0)}),
        (4.25, {0: (1, 0, 0), 1: (1, 0, 0)}),
    ]
    assert used(log) == [1, 2 + 1, 0]
    assert times(case, 0) == (0.0, 1.5, 4.25)
    assert times(case, 1) == (1.5, 3.0, 4.25)
    # The 3 prefill rows of request 1 delay request 0 by 0.375 s; that is prefill time, too.
    assert parts(case, 0) == {"prefill": 1.5 + 0.375, "verify": 1.125 + 1.25}
    assert parts(case, 1) == {"queue": 0.5, "prefill": 1.5, "verify": 1.25}


def test_prompts_run_alone_where_the_engine_runs_them_so(build_case: Any) -> None:
    case = build_case([4, 6], [3, 2], arrival_s=[0.0, 1.0], version="sglang 0.5.6", max_num_batched_tokens=4, **SYNC)
    # Request 1 arrives inside step 0; both of its chunks run before request 0 decodes again.
    assert [step.rows for step in case.log()] == [
        {0: (4, 0, 0)},
        {1: (4, 0, 0)},
        {1: (2, 0, 0)},
        {0: (1, 0, 0), 1: (1, 0, 0)},
        {0: (1, 0, 0)},
    ]


def test_an_idle_engine_waits_for_the_next_arrival(build_case: Any) -> None:
    case = build_case([4, 4], [1, 1], arrival_s=[1.0, 10.0], **SYNC)
    assert [(s.schedule_s, s.collect_s) for s in case.log()] == [(1.0, 2.5), (10.0, 11.5)]
    assert parts(case, 1) == {"prefill": 1.5}


def test_a_rank_is_busy_as_long_as_the_longest_rank_s_batch(build_case: Any) -> None:
    # Prompts of 1 and 8 tokens: 8 rows and the head keep both ranks busy for 2 + 0.5 s. Then the first verifies a draft
    # alone: 2 rows, 1.25 + 0.5 s.
    eagle = {"method": "eagle", "k": 1, "cost": {"draft_s": 0.5}}
    case = build_case([1, 8], [2, 1], replicas=2, **eagle, **SYNC)
    group = DataParallel(case.replicas, lockstep=True)
    for rank, request in zip(group.ranks, ([0], [1]), strict=True):
        rank.submit(request)
    group.advance(np.inf)
    assert [rank.steps()[["draft_s", "target_s"]].to_numpy().sum() for rank in group.ranks] == [4.25, 2.5]


def test_max_num_seqs_makes_requests_wait(build_case: Any) -> None:
    case = build_case([4, 4], [2, 1], max_num_seqs=1, **SYNC)
    assert rows_and_ends(case.log()) == [(1.5, {0: (4, 0, 0)}), (2.625, {0: (1, 0, 0)}), (4.125, {1: (4, 0, 0)})]
    assert parts(case, 1) == {"queue": 2.625, "prefill": 1.5}


# ---- chunked prefill ----


def test_chunked_prefill(build_case: Any) -> None:
    case = build_case([4, 10], [4, 2], arrival_s=[0.0, 0.5], max_num_batched_tokens=6, **SYNC)
    # The decoding request comes first, the prompt of 10 gets the other 5 rows twice; its first chunk yields no token.
    log = case.log()
    assert rows_and_ends(log) == [
        (1.5, {0: (4, 0, 0)}),
        (3.25, {0: (1, 0, 0), 1: (5, 0, 0)}),  # 6 rows: 1.75
        (5.0, {0: (1, 0, 0), 1: (5, 0, 0)}),
        (6.25, {0: (1, 0, 0), 1: (1, 0, 0)}),
    ]
    assert used(log) == [1, 2 + 2, 2 + 3, 0]
    assert times(case, 1) == (1.5, 5.0, 6.25)
    assert parts(case, 0) == {"prefill": 1.5 + 2 * 0.625, "verify": 1.125 + 1.125 + 1.25}
    assert parts(case, 1) == {"queue": 1.0, "prefill": 3.5, "verify": 1.25}


def test_without_chunking_a_prompt_waits_for_the_whole_budget(build_case: Any) -> None:
    whole = build_case([6, 6], [2, 1], max_num_batched_tokens=8, enable_chunked_prefill=False, **SYNC)
    assert rows_and_ends(whole.log()) == [(1.75, {0: (6, 0, 0)}), (3.625, {0: (1, 0, 0), 1: (6, 0, 0)})]
    chunked = build_case([6, 6], [2, 1], max_num_batched_tokens=8, **SYNC)
    assert rows_and_ends(chunked.log()) == [
        (2.0, {0: (6, 0, 0), 1: (2, 0, 0)}),
        (3.625, {0: (1, 0, 0), 1: (4, 0, 0)}),
    ]


def test_scheduled_tokens_may_be_limited_below_the_batch(build_case: Any) -> None:
    case = build_case([10], [1], max_num_scheduled_tokens=6, **SYNC)
    assert rows_and_ends(case.log()) == [(1.75, {0: (6, 0, 0)}), (3.25, {0: (4, 0, 0)})]


def test_long_prefill_threshold_spares_a_lone_request(build_case: Any) -> None:
    alone = build_case([10], [1], long_prefill_token_threshold=4, **SYNC)
    assert rows_and_ends(alone.log()) == [(2.25, {0: (10, 0, 0)})]
    two = build_case([10, 10], [1, 1], long_prefill_token_threshold=4, **SYNC)
    assert rows_and_ends(two.log()) == [
        (2.0, {0: (4, 0, 0), 1: (4, 0, 0)}),
        (4.0, {0: (4, 0, 0), 1: (4, 0, 0)}),
        (5.5, {0: (2, 0, 0), 1: (2, 0, 0)}),
    ]


# ---- preemption ----

# Two prompts of 4 with 6 outputs in 4 blocks. 4 + 4 rows: t = 2. Four steps of 2 rows: t = 3.25, 4.5, 5.75, 7.
# Now both hold 2 full blocks, and the ninth token of request 0 needs a third.
SCARCE: dict[str, Any] = {"num_gpu_blocks": 5}


def test_preemption_by_recompute(build_case: Any) -> None:
    case = build_case([4, 4], [6, 6], **SCARCE, **SYNC)
    log = case.log()
    both = {0: (1, 0, 0), 1: (1, 0, 0)}
    assert rows_and_ends(log) == [
        (2.0, {0: (4, 0, 0), 1: (4, 0, 0)}),
        (3.25, both),
        (4.5, both),
        (5.75, both),
        (7.0, both),
        (8.125, {0: (1, 0, 0)}),  # request 1, the last, gave way; no admission in such a step
        (10.25, {1: (9, 0, 0)}),  # its 4 + 5 known tokens are recomputed: 9 rows, 2.125 s, and yield the sixth
    ]
    assert used(log) == [2, 4, 4, 4, 4, 0, 0]
    assert case.requests()["preemptions"].tolist() == [0, 1]
    assert parts(case, 0) == {"prefill": 2.0, "verify": 4 * 1.25 + 1.125}
    # From the preemption at t = 7 to the next token at 10.25.
    assert parts(case, 1) == {"prefill": 2.0, "verify": 4 * 1.25, "kv_pressure": 3.25}


def test_preemption_of_a_request_in_flight(build_case: Any) -> None:
    case = build_case([4, 4], [6, 6], **SCARCE)
    log = case.log()
    both = {0: (1, 0, 0), 1: (1, 0, 0)}
    # The same steps. Step 5 is scheduled at t = 5.75, when step 4 is still to come: request 1 is preempted with a token
    # in flight, which it gets at 7 while it waits.
    assert rows_and_ends(log) == [
        (2.0, {0: (4, 0, 0), 1: (4, 0, 0)}),
        (3.25, both),
        (4.5, both),
        (5.75, both),
        (7.0, both),
        (8.125, {0: (1, 0, 0)}),
        (10.25, {1: (9, 0, 0)}),
    ]
    assert [s.schedule_s for s in log] == [0.0, 0.0, 2.0, 3.25, 4.5, 5.75, 8.125]
    assert used(log) == [4, 4, 4, 4, 3, 0, 0]
    # The pause begins with the preemption at 5.75, although a token arrives at 7.
    assert parts(case, 1) == {"prefill": 2.0, "verify": 3 * 1.25, "kv_pressure": 4.5}


def test_preemption_before_the_first_token(build_case: Any) -> None:
    case = build_case([8, 9], [2, 1], max_num_batched_tokens=12, num_gpu_blocks=6, max_num_seqs=2, **SYNC)
    # 5 blocks. Step 0: 8 + 4 rows, 2.5 s, 2 + 1 blocks; the prompt of 9 was let in because its 3 blocks were free.
    # Step 1: request 0 takes its third block, 5 rows remain of prompt 1 and take its second and third: none is left.
    log = case.log()
    assert rows_and_ends(log)[:2] == [
        (2.5, {0: (8, 0, 0), 1: (4, 0, 0)}),
        (2.5 + 1.125, {0: (1, 0, 0)}),
    ]
    # Request 1 restarts at 3.625 and computes all 9 rows: 2.125 s. It never had a token before.
    assert rows_and_ends(log)[2:] == [(5.75, {1: (9, 0, 0)})]
    assert times(case, 1) == (0.0, 5.75, 5.75)
    assert parts(case, 1) == {"prefill": 2.5, "kv_pressure": 3.25}


IMPORTANT_LAST: dict[str, Any] = {"arrival_s": [0.0, 0.5], "priority": [1, 0], "scheduling_policy": "priority"}


def test_the_lowest_priority_gives_way_even_to_itself(build_case: Any) -> None:
    case = build_case([4, 4], [6, 6], **IMPORTANT_LAST, **SCARCE, **SYNC)
    both = {0: (1, 0, 0), 1: (1, 0, 0)}
    # t = 1.5; 1 + 4 rows: 3.125; three times 2 rows: 6.875. Request 0 needs a ninth slot and is the least important, so
    # that this call of the scheduler yields nothing; the next lets request 1 go on alone: 8, 9.125 (its sixth token).
    # Then 9 rows of recompute: 11.25.
    assert rows_and_ends(case.log()) == [
        (1.5, {0: (4, 0, 0)}),
        (3.125, {0: (1, 0, 0), 1: (4, 0, 0)}),
        (4.375, both),
        (5.625, both),
        (6.875, both),
        (8.0, {1: (1, 0, 0)}),
        (9.125, {1: (1, 0, 0)}),
        (11.25, {0: (9, 0, 0)}),
    ]
    assert case.requests()["preemptions"].tolist() == [1, 0]
    assert parts(case, 0)["kv_pressure"] == 11.25 - 6.875


def test_the_lowest_priority_gives_way_with_a_step_in_flight(build_case: Any) -> None:
    case = build_case([4, 4], [6, 6], **IMPORTANT_LAST, **SCARCE)
    both = {0: (1, 0, 0), 1: (1, 0, 0)}
    # Step 1 is scheduled at t = 0, before request 1 arrives. Step 5 would be scheduled at 5.5: request 0 gives way with
    # its fifth token in flight, nothing is scheduled, and step 4 is awaited.
    assert [(s.schedule_s, s.collect_s, s.rows) for s in case.log()] == [
        (0.0, 1.5, {0: (4, 0, 0)}),
        (0.0, 2.625, {0: (1, 0, 0)}),
        (1.5, 4.25, {0: (1, 0, 0), 1: (4, 0, 0)}),
        (2.625, 5.5, both),
        (4.25, 6.75, both),
        (6.75, 7.875, {1: (1, 0, 0)}),
        (6.75, 9.0, {1: (1, 0, 0)}),
        (7.875, 10.125, {1: (1, 0, 0)}),
        (10.125, 12.25, {0: (9, 0, 0)}),
    ]
    assert parts(case, 0)["kv_pressure"] == 12.25 - 5.5


def test_first_come_first_served_preempts_the_last(build_case: Any) -> None:
    case = build_case([4, 4], [6, 6], arrival_s=[0.0, 0.5], priority=[1, 0], **SCARCE, **SYNC)
    # As above until 6.875; then request 1 gives way, and returns with 4 + 4 tokens.
    assert rows_and_ends(case.log())[5:] == [(8.0, {0: (1, 0, 0)}), (10.0, {1: (8, 0, 0)}), (11.125, {1: (1, 0, 0)})]


@pytest.mark.parametrize(("blocks", "first"), [(9, 24), (10, 1)])
def test_sglang_keeps_room_for_outputs_when_it_admits(build_case: Any, blocks: int, first: int) -> None:
    # Request 0 may put out 23 more tokens: 0.7 x 23 = 16.1 tokens are 4.03 blocks. Request 1 needs one block for its
    # prompt and two for its output: 7.03 of 7 or 8 that are free. Request 0 takes more than its room shrinks by.
    usable = {"num_gpu_blocks": blocks}
    case = build_case([4, 4], [24, 6], arrival_s=[0.0, 0.5], version="sglang 0.5.6", **usable, **SYNC)
    assert next(at for at, step in enumerate(case.log()) if 1 in step.rows) == first
    vllm = build_case([4, 4], [24, 6], arrival_s=[0.0, 0.5], **usable, **SYNC)
    assert 1 in vllm.log()[1].rows


@pytest.mark.parametrize(("ranks", "admits"), [(1, False), (2, True)])
def test_sglang_with_attention_in_ranks_keeps_less_room(build_case: Any, ranks: int, admits: bool) -> None:
    # Request 1 needs three of four free blocks. Of request 0's 7 tokens 0.7 are 1.23 blocks, and 0.3 x 0.7 are 0.37.
    engine = {"version": "sglang 0.5.6", "is_moe": True, "data_parallel_size": ranks, "num_gpu_blocks": 6}
    case = build_case([4, 4], [8, 6], arrival_s=[0.0, 0.5], **engine, **SYNC)
    assert (1 in case.log()[1].rows) == admits


def test_sglang_preempts_the_shortest_output_which_waits_behind_the_others(build_case: Any) -> None:
    # A window: no room is kept for outputs.
    case = build_case(
        [4, 4, 4], [6, 12, 6], arrival_s=[0.0, 0.0, 3.0], version="sglang 0.5.6", sliding_window=64, **SCARCE, **SYNC
    )
    steps = [list(step.rows) for step in case.log()]
    assert steps[:6] == [[0, 1]] * 5 + [[0]]  # request 1 gave way, as both had put out as much
    assert steps[6] == [2, 1]  # request 2 had come meanwhile, and goes first
    assert steps[7:14] == [[1]] * 6 + [[2]]  # request 2 has put out one token, request 1 six
    assert case.requests()["preemptions"].tolist() == [0, 1, 1]


def test_a_victim_already_scheduled_leaves_the_step(build_case: Any) -> None:
    case = build_case([4, 7], [4, 4], **IMPORTANT_LAST, **SCARCE, **SYNC)
    # t = 1.5; 1 + 7 rows: 3.5; 2 rows: 4.75. Then request 0 is scheduled first and fits (7 tokens, 2 blocks), but the
    # ninth token of request 1 needs a third block: request 0 is taken out of the step again.
    assert rows_and_ends(case.log()) == [
        (1.5, {0: (4, 0, 0)}),
        (3.5, {0: (1, 0, 0), 1: (7, 0, 0)}),
        (4.75, {0: (1, 0, 0), 1: (1, 0, 0)}),
        (5.875, {1: (1, 0, 0)}),
        (7.0, {1: (1, 0, 0)}),
        (8.875, {0: (7, 0, 0)}),
    ]
    assert parts(case, 0) == {"prefill": 1.5 + 0.875, "verify": 1.125 + 1.25, "kv_pressure": 8.875 - 4.75}


def test_the_watermark_keeps_blocks_free_for_those_who_run(build_case: Any) -> None:
    # 10 blocks; prompts of 4 and 5 blocks fit together, but not with int(0.2 * 11) = 2 blocks to spare.
    together = build_case([16, 20], [2, 1], num_gpu_blocks=11, **SYNC)
    assert rows_and_ends(together.log())[0] == (5.5, {0: (16, 0, 0), 1: (20, 0, 0)})
    apart = build_case([16, 20], [2, 1], num_gpu_blocks=11, watermark=0.2, **SYNC)
    assert rows_and_ends(apart.log()) == [(3.0, {0: (16, 0, 0)}), (4.125, {0: (1, 0, 0)}), (7.625, {1: (20, 0, 0)})]


def test_a_request_that_never_fits_is_an_error(build_case: Any) -> None:
    case = build_case([40], [1], num_gpu_blocks=5, **SYNC)
    with pytest.raises(SimulationError, match="nothing"):
        case.serve()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"max_model_len": 12},
            r"workload.lengths \(request 1: prompt_tokens\) = 12: must be below max_model_len = 12",
        ),
        ({"num_gpu_blocks": 4}, r"request 1: .* = 16: one request needs 4 KV blocks of 4 tokens, the engine has 3"),
        ({"max_num_batched_tokens": 14, "enable_chunked_prefill": False}, r"request 1: .* = 15: .* holds 14 tokens"),
        ({"max_num_scheduled_tokens": 14, "enable_chunked_prefill": False}, r"request 1: .* = 15: .* holds 14 tokens"),
    ],
)
def test_requests_that_never_fit_are_refused(build_case: Any, settings: dict[str, Any], message: str) -> None:
    case = build_case([4, 12], [1, 4], **settings)
    with pytest.raises(CapacityError, match=message):
        check_fits(case.replica.config, case.rows)
    check_fits(build_case([4, 12], [1, 4], num_gpu_blocks=5, max_num_batched_tokens=15).replica.config, case.rows)


# ---- drafts ----


def test_a_rejection_at_a_block_boundary_keeps_the_block(build_case: Any) -> None:
    case = build_case([6], [6], method="ngram", k=2, accept=[[0, 0, 2, 0, 0, 1]])
    # 6 rows: 1.75. Then 1 + 2 rows, 1.375 each.
    log = case.log()
    assert rows_and_ends(log) == [
        (1.75, {0: (6, 0, 0)}),
        (3.125, {0: (3, 2, 0)}),  # slots 7..9 reach into a third block; both drafts fail, 7 tokens stay computed
        (4.5, {0: (3, 2, 2)}),  # slots 8..10: the kept block is used, none is taken
        (5.875, {0: (3, 2, 1)}),  # one token was missing; the accepted draft is the last
    ]
    assert used(log) == [2, 3, 3, 0]
    assert [s.next_drafts for s in log] == [{0: 2}] * 4
    row = case.requests().iloc[0]
    assert (row["num_drafts"], row["num_draft_tokens"], row["num_accepted_tokens"]) == (3, 6, 3)
    # Rejected rows: 2, none, 1, of 0.125 s each.
    assert parts(case) == {"prefill": 1.75, "verify": 3.75, "rejected": 0.375}


def test_a_rejection_under_async_scheduling(build_case: Any) -> None:
    case = build_case([6], [6], method="eagle", k=2, accept=[[0, 0, 2, 0, 0, 1]])
    # The same steps with 2 slots of lookahead. Step 1 reserves 6 + 3 + 2 slots: 3 blocks. Step 2 is scheduled as if
    # both drafts of step 1 were accepted: 9 + 3 + 2, 4 blocks; step 3 after the rejection: 10 + 3 + 2.
    log = case.log()
    assert rows_and_ends(log) == [
        (1.75, {0: (6, 0, 0)}),
        (3.125, {0: (3, 2, 0)}),
        (4.5, {0: (3, 2, 2)}),
        (5.875, {0: (3, 2, 1)}),
    ]
    assert used(log) == [3, 4, 4, 0]
    assert [s.schedule_s for s in log] == [0.0, 0.0, 1.75, 3.125]


def test_eagle_with_no_drafts_still_runs_its_first_pass(build_case: Any) -> None:
    cost = {"draft_s": 0.25, "draft_token_s": 0.5}
    case = build_case([4], [2], method="eagle", k=2, policy=Off(), cost=cost)
    # 4 rows: 1.5 + 0.25; 1 row: 1.125 + 0.25. The lookahead of 2 stays reserved: 4 + 2 tokens are 2 blocks.
    log = case.log()
    assert rows_and_ends(log) == [(1.75, {0: (4, 0, 0)}), (3.125, {0: (1, 0, 0)})]
    assert used(log) == [2, 0]
    assert parts(case) == {"prefill": 1.75, "draft": 0.25, "verify": 1.125}

    drafting = build_case([4], [2], method="eagle", k=2, cost=cost)
    # Two drafts are made in each step: 1.5 + 0.25 + 2 * 0.5, then 3 rows: 1.375 + 1.25.
    assert rows_and_ends(drafting.log()) == [(2.75, {0: (4, 0, 0)}), (5.375, {0: (3, 2, 0)})]
    # vLLM 0.33's second runner makes none behind the step that surely ends the request.
    later = build_case([4], [2], method="eagle", k=2, cost=cost, version="vllm 0.33")
    assert rows_and_ends(later.log()) == [(2.75, {0: (4, 0, 0)}), (4.375, {0: (3, 2, 0)})]
    first_runner = build_case([4], [2], method="eagle", k=2, cost=cost, version="vllm 0.33 v1")
    assert rows_and_ends(first_runner.log()) == [(2.75, {0: (4, 0, 0)}), (5.375, {0: (3, 2, 0)})]


def test_a_draft_model_of_the_second_runner_makes_all_drafts_of_a_schedule(build_case: Any) -> None:
    cost, schedule = {"draft_s": 0.25, "draft_token_s": 0.5}, BatchSchedule([(1, 64, 1)])
    asked: dict[str, Any] = {"method": "draft_model", "k": 3, "policy": schedule, "cost": cost}
    # One draft is verified; one more row with its draft, or with three: 0.5 each.
    short = build_case([4], [4], **asked).log()
    whole = build_case([4], [4], drafts_in_full=True, **asked).log()
    assert [s.next_drafts for s in short] == [s.next_drafts for s in whole]
    ends = [[end for end, _ in rows_and_ends(log)] for log in (short, whole)]
    assert [late - early for early, late in zip(*ends, strict=True)] == [
        1.0 * step for step in range(1, len(short) + 1)
    ]


@pytest.mark.parametrize(
    ("method", "max_num_batched_tokens"),
    [
        ("ngram", 6),  # 4 rows for request 0, 2 remain
        ("draft_model", 8),  # an input slot each on top: (4 + 1) + (2 + 1)
    ],
)
def test_drafts_are_trimmed_to_the_budget(build_case: Any, method: str, max_num_batched_tokens: int) -> None:
    case = build_case(
        [2, 2],
        [3, 3],
        method=method,
        k=3,
        accept=[[0, 1], [0, 3]],
        max_num_batched_tokens=max_num_batched_tokens,
        **SYNC,
    )
    # 4 rows: 1.5. Of request 1's three drafts one is verified; it is accepted, as all three would have been.
    assert rows_and_ends(case.log()) == [
        (1.5, {0: (2, 0, 0), 1: (2, 0, 0)}),
        (3.25, {0: (4, 3, 1), 1: (2, 1, 1)}),
    ]
    frame = case.requests()
    assert frame["num_draft_tokens"].tolist() == [3, 1]
    assert frame["num_accepted_tokens"].tolist() == [1, 1]
    assert frame["output_tokens"].tolist() == [3, 3]


def test_drafts_stop_at_max_model_len(build_case: Any) -> None:
    case = build_case([4], [4], method="ngram", k=3, accept=[[3] * 4], max_model_len=7)
    # Of positions 0..6 the last can only be sampled: 7 - 4 - 1 = 2 rows are left, so one draft is verified. It is
    # accepted, and the bonus token is the seventh: the request ends at the model's length with 3 of 4 tokens.
    assert rows_and_ends(case.log()) == [(1.5, {0: (4, 0, 0)}), (2.75, {0: (2, 1, 1)})]
    assert case.requests()["output_tokens"].tolist() == [3]


def test_a_tree_accepts_at_most_its_depth(build_case: Any) -> None:
    tree = dataclasses.replace(get_method("eagle_tree"), tree_width=3, max_tree_nodes=0)
    case = build_case([4], [7], method=tree, k=2, accept=[[9] * 8])
    # Three children of the root, three of each of them: 1 + 12 rows, 2.625 s; a path through the tree holds two of
    # them, so 3 tokens a round. Step 3 is scheduled before step 2 is known to end the request; it runs in vain and
    # counts nowhere.
    assert rows_and_ends(case.log()) == [
        (1.5, {0: (4, 0, 0)}),
        (4.125, {0: (13, 12, 2)}),
        (6.75, {0: (13, 12, 2)}),
        (9.375, {0: (13, 12, 2)}),
    ]
    assert times(case) == (0.0, 1.5, 6.75)
    assert case.requests()["num_accepted_tokens"].tolist() == [4]


def test_a_search_of_sglang_verifies_rows_also_without_a_match(build_case: Any) -> None:
    def rows(version: str, method: Any, match: float) -> list[tuple[int, int, int]]:
        model = Chain(model="ngram", match_probability=match, alpha=1.0)
        log = build_case([4], [3], method=method, k=2, accept=model, version=version).log()
        return [step.rows[0] for step in log]

    tree = get_method("ngram").with_tree(2, 5)
    assert rows("vllm 0.31", tree, 0.0) == [(4, 0, 0), (1, 0, 0), (1, 0, 0)]
    assert rows("sglang 0.5", tree, 0.0) == [(4, 0, 0), (6, 5, 0), (6, 5, 0)]
    assert rows("sglang 0.5", "ngram", 0.0) == [(4, 0, 0), (3, 2, 0), (3, 2, 0)]
    assert rows("sglang 0.5", tree, 1.0) == [(4, 0, 0), (6, 5, 2)]


def test_a_tree_of_medusa_runs_each_head_once_and_verifies_every_node(build_case: Any) -> None:
    case = build_case([4], [7], method=get_method("medusa").with_tree(3, 8), k=2, accept=[[9] * 8])
    # Of 3 + 9 nodes the likeliest 8, and two accepted of each round: 1 + 9 rows / 8 seconds.
    assert rows_and_ends(case.log()) == [
        (1.5, {0: (4, 0, 0)}),
        (3.625, {0: (9, 8, 2)}),
        (5.75, {0: (9, 8, 2)}),
    ]
    assert case.requests()["num_accepted_tokens"].tolist() == [4]
    assert case.requests()["num_draft_tokens"].tolist() == [16]


# ---- blocks that are only counted ----


def test_blocks_of_windows_and_of_states_all_come_back(build_case: Any) -> None:
    # A block for states, 2 for 8 tokens and as many in the group of layers with a window of 4: 5. Of the group's the
    # first falls behind the window at 8 tokens, when the ninth takes one more of each, and the second at 11.
    blocks = {"fixed_blocks": 1, "window_groups": 1, "sliding_window": 4}
    case = build_case([8], [6], **blocks, **SYNC).serve()
    assert case.replica.steps()["kv_used_blocks"].tolist() == [5, 6, 6, 6, 5, 0]


# ---- prefix cache ----

SAME_PROMPT: dict[str, Any] = {"arrival_s": [0.0, 5.0], "hash_ids": [[1, 2, 3], [1, 2, 3]]}


@pytest.mark.parametrize(
    ("method", "version", "hit_tokens", "finish_s"),
    [
        ("none", "vllm 0.32", 8, 6.5),  # the last token is always computed, so two of three blocks hit: 4 rows, 1.5 s
        ("eagle", "vllm 0.32", 4, 7.0),  # and EAGLE's head needs the states of the last hit block again: 8 rows, 2 s
        ("eagle", "vllm 0.33", 8, 6.5),  # the hash covers the token behind the block
        ("dflash", "vllm 0.32", 4, 7.0),
        ("dflash", "vllm 0.33", 8, 6.5),
    ],
)
def test_prefix_cache_hit(build_case: Any, method: str, version: str, hit_tokens: int, finish_s: float) -> None:
    case = build_case([12, 12], [1, 1], method=method, k=int(method != "none"), version=version, **SAME_PROMPT)
    assert rows_and_ends(case.log()) == [(2.5, {0: (12, 0, 0)}), (finish_s, {1: (12 - hit_tokens, 0, 0)})]
    assert case.requests()["cached_tokens"].tolist() == [0, hit_tokens]


def test_a_hash_that_covers_the_next_token_tells_other_ones_apart(build_case: Any) -> None:
    """Two prompts share two of three blocks: the second one's hash covers a token that they do not share."""
    other: dict[str, Any] = {"arrival_s": [0.0, 5.0], "hash_ids": [[1, 2, 3], [1, 2, 4]], "method": "eagle", "k": 1}
    found = {}
    for version in ("vllm 0.32", "vllm 0.33"):
        case = build_case([12, 12], [1, 1], version=version, **other)
        case.log()
        found[version] = case.requests()["cached_tokens"].tolist()
    assert found == {"vllm 0.32": [0, 4], "vllm 0.33": [0, 4]}
    kept = build_case([12, 12], [1, 1], version="vllm 0.33", disable_eagle_block_drop=True, **other)
    kept.log()
    assert kept.requests()["cached_tokens"].tolist() == [0, 8]


def test_no_hit_without_prefix_caching(build_case: Any) -> None:
    case = build_case([12, 12], [1, 1], enable_prefix_caching=False, **SAME_PROMPT)
    assert rows_and_ends(case.log())[1] == (7.5, {1: (12, 0, 0)})


def test_one_trace_hash_may_span_several_blocks(build_case: Any) -> None:
    # Hash blocks of 8 tokens are two KV blocks each; the first is shared, of the second nothing is.
    case = build_case([12, 12], [1, 1], arrival_s=[0.0, 5.0], hash_ids=[[1, 2], [1, 3]], hash_block_tokens=8)
    assert rows_and_ends(case.log())[1] == (6.5, {1: (4, 0, 0)})


def test_a_one_token_admission_is_padded_with_drafts(build_case: Any) -> None:
    shared: dict[str, Any] = {"arrival_s": [0.0, 5.0], "hash_ids": [[1, 2, 3], [1, 2, 3]], "accept": [[2] * 3] * 2}
    case = build_case([13, 13], [1, 1], method="ngram", k=2, **shared)
    # 12 of 13 tokens hit. The one row left is padded to 1 + 2 rows (1.375 s); padding holds no drafts, so nothing of it
    # counts as drafted or accepted.
    assert rows_and_ends(case.log()) == [(2.625, {0: (13, 0, 0)}), (6.375, {1: (3, 2, 0)})]
    assert case.requests()["num_draft_tokens"].tolist() == [0, 0]
    dynamic = build_case([13, 13], [1, 1], method="ngram", k=2, policy=Off(), **shared)
    assert rows_and_ends(dynamic.log())[1] == (6.125, {1: (1, 0, 0)})


def test_a_preempted_request_hits_its_own_blocks(build_case: Any) -> None:
    case = build_case([4, 4], [6, 6], hash_ids=[[1], [2]], **SCARCE, **SYNC)
    # As without caching until t = 7, when request 1 is preempted and request 0 takes one of its two freed blocks: the
    # second one, freed first. At 8.125 the block of its prompt is still there: 4 of 9 tokens hit, 5 rows, 1.625 s.
    assert rows_and_ends(case.log())[5:] == [(8.125, {0: (1, 0, 0)}), (9.75, {1: (5, 0, 0)})]
    assert parts(case, 1)["kv_pressure"] == 2.75
    assert case.requests()["cached_tokens"].tolist() == [0, 0]  # hits at first admission


# ---- closed loop, and the calls of a cluster ----


def test_closed_loop_of_one_user(build_case: Any) -> None:
    case = build_case([4, 4, 4], [2, 2, 2], **SYNC)
    loop = clients(closed_loop(1, 2.0), 3)
    Cluster(case.replicas, case.table, ROUTERS["least_loaded"](case.table, 1, 0), loop).run()
    # Think 2 s, then 1.5 + 1.125 s of service, again and again.
    frame = case.requests()
    assert frame["arrival_s"].tolist() == [2.0, 6.625, 11.25]
    assert frame["finish_s"].tolist() == [4.625, 9.25, 13.875]
    assert frame["time_queue_s"].tolist() == [0.0, 0.0, 0.0]


def test_closed_loop_keeps_so_many_requests_in_the_system(build_case: Any) -> None:
    case = build_case([4] * 4, [2] * 4, **SYNC)
    loop = clients(closed_loop(2), 4)
    Cluster(case.replicas, case.table, ROUTERS["round_robin"](case.table, 1, 0), loop).run()
    # Pairs run together: 8 rows, 2 s; 2 rows, 1.25 s.
    assert case.requests()["arrival_s"].tolist() == [0.0, 0.0, 3.25, 3.25]
    assert case.requests()["finish_s"].tolist() == [3.25, 3.25, 6.5, 6.5]


def test_time_stops_where_it_is_told_to(build_case: Any) -> None:
    case = build_case([4, 4], [4, 1], arrival_s=[0.0, 2.0], **SYNC).send()
    replica = case.replica
    replica.advance(1.0)  # step 0 has started and ends at 1.5
    assert replica.num_running == 1
    assert replica.next_event_s == 1.5
    replica.advance(1.5)  # its output is taken, no step is started
    assert case.rows["first_token_s"][0] == 1.5
    assert replica.state.engine[0]["step"] == 1
    replica.advance(2.0)
    assert replica.num_waiting == 1  # sent, not seen yet
    assert replica.advance(100.0, stop_on_finish=True) == STOP_FINISHED
    assert replica.just_finished.tolist() == [1]  # 1.5 + 1.125 = 2.625; 1 + 4 rows: 4.25
    assert replica.advance(100.0) == STOP_IDLE
    assert case.requests()["finish_s"].tolist() == [5.375, 4.25]


def test_the_step_record_grows(build_case: Any) -> None:
    # Every step ends a request, and the record is 1,024 rows long at first.
    n = 1030
    case = build_case([4] * n, [1] * n, max_num_seqs=1, **SYNC).send()
    assert {case.replica.advance(np.inf, stop_on_output=True) for _ in range(1024)} == {STOP_OUTPUT}
    assert len(case.replica.steps()) == 1024
    while case.replica.advance(np.inf, stop_on_finish=True) == STOP_FINISHED:
        pass
    steps = case.replica.steps()
    assert len(steps) == n
    assert steps["start_s"].to_numpy().tolist() == (1.5 * np.arange(n)).tolist()
