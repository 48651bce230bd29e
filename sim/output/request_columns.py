"""The finished requests as arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

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
        prompt = requests["prompt_tokens"].to_numpy(np.int64)
        queue, finished = seconds("time_queue_s"), np.isfinite(finish)
        return cls(arrival, finish, ttft, e2el, tpot, queue, prompt, output, finished)


def integral(start: FloatArray, end: FloatArray, rate: FloatArray, at: FloatArray) -> FloatArray:
    """Integral from 0 to each time of the sum of constant rates that run from ``start`` to ``end``; O(n log n)."""
    times = np.concatenate([[0.0], start, end])
    order = np.argsort(times, kind="stable")
    level = np.cumsum(np.concatenate([[0.0], rate, -rate])[order])
    area = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(times[order]))])
    return np.asarray(np.interp(at, times[order], area), dtype=np.float64)
