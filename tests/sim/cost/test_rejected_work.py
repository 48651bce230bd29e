"""Rejected work: the step's time with the rejected rows and their drafts less the time without them.

In the comments a step takes 1 s and 0.125 s per row unless a test says otherwise; every number is exact in binary.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from draftcast.scenarios.compare.comparison import simulate
from draftcast.scenarios.schema.load import load_scenario
from draftcast.sim.acceptance.chain import Chain
from draftcast.sim.acceptance.model import Tree
from draftcast.sim.cost.methods import get_method
from draftcast.sim.output.results import TIME_COLUMNS
from draftcast.sim.policies.schedule import BatchSchedule


def parts(case: Any, request: int = 0) -> dict[str, float]:
    """The time components of a request that are not 0, without prefix and suffix of their names."""
    row = case.requests().iloc[request]
    return {name[5:-2]: float(row[name]) for name in TIME_COLUMNS if row[name] != 0.0}


# ---- by hand ----


def test_all_rejected_is_the_step_with_one_row_and_no_drafts(build_case: Any) -> None:
    cost = {"draft_s": 0.25, "draft_token_s": 0.5}
    case = build_case([4], [2], method="eagle", k=3, accept=[[0, 0]], cost=cost).serve()
    # 4 rows: 1.5 + 0.25 + 3 * 0.5. Then 4 rows again; without the three drafts 1 row, 1.125 s, and only the 0.25 s.
    assert parts(case) == {"prefill": 3.25, "verify": 1.125, "draft": 0.25, "rejected": 3 * 0.125 + 3 * 0.5}


def test_kept_rows_and_their_drafts_are_not_rejected_work(build_case: Any) -> None:
    cost = {"draft_s": 0.25, "draft_token_s": 0.5}
    case = build_case([4], [4], method="eagle", k=3, accept=[[0, 2, 2, 2]], cost=cost).serve()
    # Two of three drafts are accepted, so one row and one draft are rejected work.
    assert parts(case) == {"prefill": 3.25, "verify": 1.375, "draft": 0.25 + 2 * 0.5, "rejected": 0.125 + 0.5}


def test_queries_of_rejected_rows_and_their_samples_count(build_case: Any, easy_cost: Any) -> None:
    cost = easy_cost(method="eagle")
    cost.params[0]["fit_target"]["query_kv_s"] = 1 / 64
    cost.params[0]["fit_target"]["logit_row_s"] = 1 / 16
    case = build_case([4, 4], [2, 3], method="eagle", k=2, accept=[[0, 0], [0, 1, 1]], cost=cost).serve()
    # 8 rows with 2 samples: 2.125 s. Then 3 rows each that attend to 7 tokens; without the drafts rejected 1 row to 5
    # tokens and 2 to 6.
    verify = 1 + 3 * 0.125 + 17 / 64 + 3 / 16
    step = 1 + 6 * 0.125 + 42 / 64 + 6 / 16
    assert parts(case) == {"prefill": 2.125, "verify": verify, "rejected": step - verify}


def test_a_draft_pass_is_rejected_work_when_no_request_keeps_a_draft_of_it(build_case: Any, table_cost: Any) -> None:
    cost = table_cost([0.0] + [1.0] * 16, first_s=0.25, pass_s=0.5)
    alone = build_case([1], [3], method="eagle", k=3, accept=[[0, 1, 1]], cost=cost).serve()
    # Each step makes three drafts in 0.25 + 2 * 0.5 s; the target takes 1 s for any rows. One draft is kept.
    assert parts(alone) == {"prefill": 2.25, "verify": 1.0, "draft": 0.25, "rejected": 2 * 0.5}
    pair = build_case([1, 1], [3, 5], method="eagle", k=3, accept=[[0, 1, 1], [0, 3, 3, 3]], cost=cost).serve()
    # The second request keeps all three, which takes every pass.
    assert parts(pair) == {"prefill": 2.25, "verify": 1.0, "draft": 1.25}


def test_a_tree_keeps_the_levels_of_its_accepted_path(build_case: Any, table_cost: Any) -> None:
    tree = dataclasses.replace(get_method("eagle_tree"), tree_width=3, max_tree_nodes=0)
    cost = table_cost([0.0] + [1.0] * 32, first_s=0.25, pass_s=0.5)
    case = build_case([1], [4], method=tree, k=3, accept=[[0, 2, 2, 2]], cost=cost).serve()
    # Nine nodes on three levels, two accepted: of two later passes one.
    assert parts(case) == {"prefill": 2.25, "verify": 1.0, "draft": 0.75, "rejected": 0.5}


def test_a_row_reserved_without_a_match_rejects_no_draft(build_case: Any) -> None:
    never = Chain(match_probability=0.0, alpha=0.7)
    case = build_case([4], [2], method="ngram_gpu", k=2, accept=never, cost={"search_fraction": 0.5}).serve()
    # 4 rows and the search: 2.25 s. Nothing matches, two of the next 3 rows are in vain; the search was not.
    assert parts(case) == {"prefill": 2.25, "verify": 1.125, "draft": 0.5 * 1.125, "rejected": 0.25 + 0.5 * 0.25}


def test_padding_rejects_no_draft(build_case: Any) -> None:
    shared: dict[str, Any] = {"arrival_s": [0.0, 8.0], "hash_ids": [[1, 2, 3], [1, 2, 3]], "accept": [[0] * 3] * 2}
    case = build_case([13, 13], [1, 2], method="ngram", k=2, cost={"search_fraction": 0.5}, **shared).serve()
    # At t = 8 request 1 starts with one row and two of padding; the search finds two drafts, rejected in the next step.
    clocks = dict(zip(("prefill", "draft", "verify", "rejected"), case.replica.state.clocks, strict=False))
    first, second = 2.625 * 1.5, 1.375 * 1.5
    assert clocks["prefill"] + clocks["draft"] + clocks["verify"] + clocks["rejected"] == first + 2 * second
    # Of the first two rows alone, and the share of the search that went by them; of the second the whole search.
    assert clocks["rejected"] == 1.5 * 0.25 + (0.25 + 1.375 / 2)


def test_fewer_drafts_made_than_rejected(build_case: Any) -> None:
    schedule = BatchSchedule([[1, 1, 2], [2, 8, 0]])
    cost = {"draft_s": 0.25, "draft_token_s": 0.5}
    case = build_case(
        [4, 4], [3, 1], arrival_s=[0.0, 1.0], method="eagle", k=2, policy=schedule, accept=[[0] * 3] * 2, cost=cost,
        async_scheduling=False,
    ).serve()  # fmt: skip
    # t = 2.75: two drafts made. Then 3 + 4 rows, which make none: two rows of 0.125 s are rejected work, no draft is.
    # Then 1 row, which makes two drafts for a request that ends.
    assert parts(case)["rejected"] == 0.25
    assert parts(case) == {"prefill": 2.75 + 0.5, "verify": 1.125 + 1.125, "rejected": 0.25, "draft": 0.25 + 1.25}


# ---- bounds ----


def test_rejected_rows_are_almost_free_where_memory_bounds_the_step(build_case: Any, table_cost: Any) -> None:
    cost = table_cost([0.0] + [1.0 + rows / 1024 for rows in range(1, 65)])
    case = build_case([1] * 8, [9] * 8, method="eagle", k=7, accept=[[0] * 9] * 8, cost=cost).serve()
    # Seven of eight rows are rejected in every one of eight steps of 64 rows.
    assert parts(case)["rejected"] == 8 * 56 / 1024
    assert parts(case)["verify"] == 8 * (1 + 8 / 1024)


def test_rejected_rows_take_their_proportion_where_compute_bounds_the_step(build_case: Any, table_cost: Any) -> None:
    cost = table_cost([rows / 64 for rows in range(65)])
    case = build_case([1] * 8, [9] * 8, method="eagle", k=7, accept=[[0] * 9] * 8, cost=cost).serve()
    assert parts(case)["rejected"] == 7 / 8 * 8
    assert parts(case)["verify"] == 1 / 8 * 8


def test_rows_that_save_time_make_no_cause_negative(build_case: Any, table_cost: Any) -> None:
    cost = table_cost([0.0, 2.0, 3.0, 1.0, 1.0])  # measured times need not rise with the rows
    case = build_case([1], [2], method="eagle", k=2, accept=[[0, 0]], cost=cost).serve()
    assert parts(case) == {"prefill": 2.0, "verify": 1.0}


@pytest.mark.parametrize(("clients", "low", "high"), [(1, 0.0, 0.15), (512, 0.75, 1.25)])
def test_on_a_gpu_it_goes_from_little_to_the_proportion(clients: int, low: float, high: float) -> None:
    overrides = [
        f"workload.arrivals={{process: closed_loop, concurrency: {clients}}}",
        f"workload.num_requests={max(20, 2 * clients)}",
        "workload.lengths={prompt_tokens: 64, output_tokens: 64}",
        "acceptance={model: constant, alpha: 0.5}",
        "engine.speculative_config={method: ngram, num_speculative_tokens: 7}",
        "statistics.replications=1",
    ]
    result = simulate(load_scenario("default", overrides=overrides))
    rows = result.requests
    rejected = (rows["num_draft_tokens"] - rows["num_accepted_tokens"]).sum()
    share = rejected / (rows["num_draft_tokens"] + rows["num_drafts"]).sum()  # of the rows verified
    time = rows["time_rejected_s"].sum() / (rows["time_rejected_s"] + rows["time_verify_s"]).sum()
    assert low < time / share < high


# ---- the causes are the whole time ----

METHODS = [
    ("eagle", True, Chain(alpha=0.6)),
    ("eagle", False, Chain(alpha=0.6)),
    ("draft_model", True, Chain(alpha=0.6)),
    ("medusa", False, Chain(alpha=0.6)),
    ("ngram", False, Chain(match_probability=0.6, alpha=0.7, persistence=0.7, mean_match_tokens=2.0)),
    ("ngram_gpu", True, Chain(match_probability=0.6, alpha=0.7, persistence=0.7, mean_match_tokens=2.0)),
    ("tree", True, Tree(model="tree", alpha=0.5, widths=(3, 3, 3, 3))),
]


@pytest.mark.parametrize(("method", "is_async", "accept"), METHODS)
@pytest.mark.parametrize("blocks", [400, 40])
def test_the_causes_add_up_and_none_is_negative(
    build_case: Any, method: str, is_async: bool, accept: Any, blocks: int
) -> None:
    tree = dataclasses.replace(get_method("eagle_tree"), tree_width=3, max_tree_nodes=0)
    rng = np.random.default_rng(0)
    n = 24
    case = build_case(
        rng.integers(1, 30, n).tolist(),
        rng.integers(1, 40, n).tolist(),
        arrival_s=np.sort(rng.uniform(0, 40, n)).tolist(),
        method=tree if method == "tree" else method,
        k=4,
        accept=accept,
        cost={"host_s": 0.125, "draft_s": 0.25, "draft_token_s": 0.0625, "search_fraction": 0.25, "kv_s": 2**-8},
        max_num_batched_tokens=128,
        max_model_len=128,
        num_gpu_blocks=blocks,
        async_scheduling=is_async,
    ).serve()
    frame = case.requests()
    causes = frame[list(TIME_COLUMNS)]
    assert (causes.to_numpy() >= 0.0).all()
    np.testing.assert_allclose(causes.sum(axis=1), frame["finish_s"] - frame["arrival_s"], rtol=0, atol=1e-9)
    assert (frame["time_rejected_s"] > 0).any()
    assert (frame["preemptions"] > 0).any() == (blocks == 40)
