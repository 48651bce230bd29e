"""Sessions as they are drawn: keyed by their number alone, at the rate of requests that is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from draftcast.sim.workload.build_requests import build_requests
from draftcast.sim.workload.sessions import draw_sessions, mean_requests
from draftcast.sim.workload.workload import Workload

SPREAD = {"distribution": "lognormal", "mean": 100, "std": 80, "min": 1, "max": 2000}
AGENTS = {
    "turns": {"distribution": "geometric", "mean": 3},
    "think_time_s": 4.0,
    "calls_per_turn": {"distribution": "uniform", "low": 1, "high": 3},
    "tool_output_tokens": SPREAD,
    "tool_time_s": 0.5,
}


def workload(rate: float = 10.0, **values: Any) -> Workload:
    return Workload.model_validate(
        {
            "arrivals": {"process": "poisson", "request_rate_rps": rate},
            "num_requests": 1000,
            "lengths": {"prompt_tokens": SPREAD, "output_tokens": SPREAD},
            "sessions": AGENTS,
            **values,
        }
    )


def test_neither_rate_nor_number_changes_a_session() -> None:
    few, many = draw_sessions(workload(10), 7, 500, None), draw_sessions(workload(40), 7, 3000, None)
    for column in ("session", "prompt", "output", "think_s", "system_u"):
        assert (getattr(few, column) == getattr(many, column)[:500]).all(), column
    assert few.arrival_s == pytest.approx(4 * many.arrival_s[:500])
    assert (few.prompt != draw_sessions(workload(10), 8, 500, None).prompt).any()


def test_each_prompt_is_all_before_it_and_more() -> None:
    table = build_requests(workload(system_prompt={"tokens": 50}), 1)
    number, thought_s = table.into_session()
    later = np.flatnonzero(number > 0)
    said = table.prompt_tokens + table.output_tokens
    assert (table.prompt_tokens[later] > said[later - 1]).all()
    assert (table.shared_tokens()[later] == said[later - 1]).all()
    assert (table.shared_tokens()[number == 0] == 50).all()
    assert (np.diff(thought_s)[later - 1] > 0).all()


@pytest.mark.parametrize("limit", [None, 1200])
def test_sessions_begin_as_often_as_gives_the_rate_of_requests(limit: int | None) -> None:
    drawn = draw_sessions(workload(10), 3, 60_000, limit)
    assert len(drawn.session) / drawn.arrival_s[-1] == pytest.approx(10, rel=0.03)
    assert bool(drawn.note) == (limit is not None)
    lengths, sessions = workload().lengths, workload().sessions
    assert lengths is not None
    mean = mean_requests(sessions, lengths, limit or 2**31 - 1)
    assert 60_000 / (drawn.session[-1] + 1) == pytest.approx(mean, rel=0.03)
    if limit is None:
        assert mean == pytest.approx(3 * 2, rel=0.01)  # turns x calls


def test_think_times_have_their_means() -> None:
    drawn = draw_sessions(workload(), 3, 40_000, None)
    first = np.diff(drawn.session, prepend=-1) != 0
    assert (drawn.think_s[first] == 0).all()
    # A session of 6 requests on average has 2 pauses of its user and 3 tools.
    assert drawn.think_s[~first].mean() == pytest.approx((2 * 4.0 + 3 * 0.5) / 5, rel=0.03)


def test_sessions_behind_those_asked_for_are_not_told_as_cut() -> None:
    (note,) = build_requests(workload(num_requests=500), 3, max_model_len=1200).notes
    assert build_requests(workload(num_requests=500), 3, max_model_len=1200, goes_on=True).notes == (note,)
