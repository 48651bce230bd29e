"""What a run leaves behind: the rows of requests and the engine's figures, by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from draftcast.sim.output.results import TIME_COLUMNS, engine_figures, requests_frame


@pytest.fixture
def served(build_case: Any) -> Any:
    """Two requests one after the other, each a prompt step and a decode step of a second in a block of a hundred."""
    cost = {"step_s": 1.0, "row_s": 0.0}
    one_at_a_time = {"max_num_seqs": 1, "async_scheduling": False, "num_gpu_blocks": 101}
    return build_case([1, 1], [2, 2], arrival_s=[0.0, 0.5], cost=cost, **one_at_a_time).serve()


def test_a_request_waits_until_it_is_scheduled(served: Any) -> None:
    requests = served.requests()
    assert requests["first_scheduled_s"].tolist() == [0.0, 2.0]
    assert requests["time_queue_s"].tolist() == [0.0, 1.5]
    assert requests["time_prefill_s"].tolist() == requests["time_verify_s"].tolist() == [1.0, 1.0]
    assert requests[list(TIME_COLUMNS)].sum(axis=1).tolist() == [2.0, 3.5]


def test_the_way_from_the_client_to_the_engine_is_waiting(served: Any) -> None:
    """Arrivals are the client's, a quarter and an eighth of a second before the engine has the requests."""
    late_s = np.array([0.25, 0.125])
    requests = requests_frame(served.replicas, served.table, np.zeros(2, np.int32), slice(2), late_s)
    assert requests["arrival_s"].tolist() == [-0.25, 0.375]
    assert requests["time_queue_s"].tolist() == [0.25, 1.625]
    waited_s = (requests["finish_s"] - requests["arrival_s"]).tolist()
    assert requests[list(TIME_COLUMNS)].sum(axis=1).tolist() == waited_s == [2.25, 3.625]


def test_engine_figures_by_hand(served: Any) -> None:
    figures = engine_figures(served.replicas, served.replica.state.engine)
    # Four steps of a token; the block that is held is one of the hundred that there are without the null block.
    assert (figures["num_steps"], figures["mean_step_tokens"], figures["kv_cache_usage"]) == (4.0, 1.0, 0.01)
    assert figures["share_device_time_measured"] == 1.0  # of a fitted step time


def test_an_engine_without_a_step_has_no_figures(build_case: Any) -> None:
    replica = build_case([1], [1]).replica
    figures = engine_figures([replica], np.zeros_like(replica.state.engine))
    assert (figures["num_steps"], figures["kv_cache_usage"]) == (0.0, 0.0)
    assert math.isnan(figures["mean_step_tokens"])
