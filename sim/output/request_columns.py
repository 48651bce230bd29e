"""The finished requests as arrays, the invariants they must keep, and Little's law over them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from draftcast.errors import SimulationError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# Where a request's time goes; the seven add up to its E2E time.
TIME_COLUMNS = (
    "time_queue_s",
    "time_prefill_s",
    "time_draft_s",
    "time_verify_s",
    "time_rejected_s",
    "time_host_s",
    "time_kv_pressure_s",
)


@dataclass(frozen=True)
class RequestColumns:
    """The request table as arrays, in request order."""

    arrival_s: FloatArray
    scheduled_s: FloatArray
    finish_s: FloatArray
    ttft_s: FloatArray
    e2el_s: FloatArray
    tpot_s: FloatArray  # NaN for one-token outputs and unfinished requests
    queue_s: FloatArray
    prompt: IntArray
    output: IntArray
    finished: BoolArray

    @classmethod
    def of(cls, requests: pd.DataFrame) -> RequestColumns:
        def seconds(name: str) -> FloatArray:
            return requests[name].to_numpy(dtype=np.float64)

        arrival, finish, output = (
            seconds("arrival_s"),
            seconds("finish_s"),
            requests["output_tokens"].to_numpy(np.int64),
        )
        ttft, e2el = seconds("first_token_s") - arrival, finish - arrival
        tpot = np.full(arrival.shape, math.nan)
        np.divide(e2el - ttft, output - 1, out=tpot, where=output > 1)
        scheduled, prompt = seconds("first_scheduled_s"), requests["prompt_tokens"].to_numpy(np.int64)
        queue, finished = seconds("time_queue_s"), np.isfinite(finish)
        return cls(arrival, scheduled, finish, ttft, e2el, tpot, queue, prompt, output, finished)


def integral(start: FloatArray, end: FloatArray, rate: FloatArray, at: FloatArray) -> FloatArray:
    """Integral from 0 to each time of the sum of constant rates that run from ``start`` to ``end``; O(n log n)."""
    times = np.concatenate([[0.0], start, end])
    order = np.argsort(times, kind="stable")
    level = np.cumsum(np.concatenate([[0.0], rate, -rate])[order])
    area = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(times[order]))])
    return np.asarray(np.interp(at, times[order], area), dtype=np.float64)


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
    """Check the invariants of a request table; ``tolerance`` is relative to the E2E time (plus a nanosecond).

    Raises:
        SimulationError: naming the request: times out of order, more drafts accepted than made, or the seven ``time_*``
            columns not adding up to the E2E time.
    """
    c = RequestColumns.of(requests)
    first = requests["first_token_s"].to_numpy(dtype=np.float64)  # not arrival + TTFT, which may be off by an ulp
    done = c.finished
    parts = sum(requests[name].to_numpy(dtype=np.float64) for name in TIME_COLUMNS)
    slack = tolerance * np.abs(c.e2el_s) + 1e-9
    broken = {
        "times are out of order": done
        & ~((c.arrival_s <= c.scheduled_s) & (c.scheduled_s <= first) & (first <= c.finish_s)),
        "more drafts accepted than made": requests["num_accepted_tokens"].to_numpy()
        > requests["num_draft_tokens"].to_numpy(),
        "the time columns do not add up to the E2E time": done & ~(np.abs(parts - c.e2el_s) <= slack),
    }
    for what, where in broken.items():
        if where.any():
            at = int(np.argmax(where))
            raise SimulationError(f"request {requests['request'].iloc[at]}: {what} ({int(where.sum())} requests)")
