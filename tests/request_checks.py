"""Invariants of a table of requests, and Little's law over it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from draftcast.sim.output.results import TIME_COLUMNS, RequestColumns, integral


@dataclass(frozen=True)
class LittlesLaw:
    """Both sides of L = lambda * W over one run."""

    in_system: float  # time average of requests in the system
    rate_rps: float
    mean_time_s: float

    @property
    def relative_gap(self) -> float:
        """|L - lambda W| over L."""
        return abs(self.in_system - self.rate_rps * self.mean_time_s) / self.in_system if self.in_system else 0.0


def littles_law(requests: pd.DataFrame, steps: pd.DataFrame | None = None) -> LittlesLaw:
    """Little's law over the run, from the first arrival to the last completion.

    L is the integral of the number in system over time: of ``running + waiting`` in the step records of one run when
    given (an independent count, exact but for the first step and arrivals inside a step), else of the requests' own
    arrivals and completions. Unfinished requests are left out.
    """
    c = RequestColumns.of(requests)
    arrival, finish = c.arrival_s[c.finished], c.finish_s[c.finished]
    if not arrival.size:
        return LittlesLaw(0.0, 0.0, math.nan)
    span = float(finish.max() - arrival.min())
    if steps is not None:
        area = sum(_area_under_steps(own) for _, own in steps.groupby("replica"))
    else:
        area = float(integral(arrival, finish, np.ones_like(arrival), np.asarray(finish.max())))
    return LittlesLaw(area / span, arrival.size / span, float((finish - arrival).mean()))


def _area_under_steps(steps: pd.DataFrame) -> float:
    """Request-seconds in one replica. A step's counts hold from its end to the next step's end.

    Durations are no weights: under asynchronous scheduling a step begins before the one before it ends.
    """
    number = (steps["running"] + steps["waiting"]).to_numpy(dtype=np.float64)
    ends = (steps["start_s"] + steps["duration_s"]).to_numpy(dtype=np.float64)
    return float(number[:-1] @ np.diff(ends))


def check_requests(requests: pd.DataFrame, tolerance: float = 1e-6) -> None:
    """Times in order, no more drafts accepted than made, and the seven ``time_*`` columns add up to the E2E time.

    ``tolerance`` is relative to the E2E time (plus a nanosecond).
    """
    c = RequestColumns.of(requests)
    scheduled = requests["first_scheduled_s"].to_numpy(dtype=np.float64)
    first = requests["first_token_s"].to_numpy(dtype=np.float64)  # not arrival + TTFT, which may be off by an ulp
    done = c.finished
    parts = sum(requests[name].to_numpy(dtype=np.float64) for name in TIME_COLUMNS)
    slack = tolerance * np.abs(c.e2el_s) + 1e-9
    broken = {
        "times are out of order": done & ~((c.arrival_s <= scheduled) & (scheduled <= first) & (first <= c.finish_s)),
        "more drafts accepted than made": requests["num_accepted_tokens"].to_numpy()
        > requests["num_draft_tokens"].to_numpy(),
        "the time columns do not add up to the E2E time": done & ~(np.abs(parts - c.e2el_s) <= slack),
    }
    for what, where in broken.items():
        if where.any():
            at = int(np.argmax(where))
            raise AssertionError(f"request {requests['request'].iloc[at]}: {what} ({int(where.sum())} requests)")
