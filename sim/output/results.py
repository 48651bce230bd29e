"""What a run leaves behind: one row per request and per step under the names results use, and arrays of requests."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from draftcast.calibration.profile.roofline import Origin
from draftcast.kernels.arrays import BoolArray, FloatArray, IntArray
from draftcast.sim.engine.replica import Replica
from draftcast.sim.state import engine as state
from draftcast.sim.workload.request_table import RequestTable

# Where a request's time goes: they add up to its E2E time.
TIME_PARTS = ("queue", "prefill", "draft", "verify", "rejected", "host", "kv_pressure")
TIME_COLUMNS = tuple(f"time_{part}_s" for part in TIME_PARTS)


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
    def of(cls, requests: pd.DataFrame) -> Self:
        def seconds(name: str) -> FloatArray:
            return requests[name].to_numpy(dtype=np.float64)

        arrival, finish = seconds("arrival_s"), seconds("finish_s")
        prompt, output = (requests[name].to_numpy(np.int64) for name in ("prompt_tokens", "output_tokens"))
        ttft, e2el = seconds("first_token_s") - arrival, finish - arrival
        tpot = np.full(arrival.shape, math.nan)
        np.divide(e2el - ttft, output - 1, out=tpot, where=output > 1)
        queue, finished = seconds("time_queue_s"), np.isfinite(finish)
        return cls(arrival, finish, ttft, e2el, tpot, queue, prompt, output, finished)


def integral(start: FloatArray, end: FloatArray, rate: FloatArray, at: FloatArray) -> FloatArray:
    """Integral from 0 to each time of the sum of constant rates that run from ``start`` to ``end``; O(n log n)."""
    times = np.concatenate([[0.0], start, end])
    order = np.argsort(times, kind="stable")
    level = np.cumsum(np.concatenate([[0.0], rate, -rate])[order])
    area = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(times[order]))])
    return np.asarray(np.interp(at, times[order], area), dtype=np.float64)


def requests_frame(
    replicas: Sequence[Replica],
    table: RequestTable,
    assigned: NDArray[np.int32],
    counted: slice | IntArray,
    late_s: FloatArray | float = 0.0,
) -> pd.DataFrame:
    """One row per counted request, with the number of its session and its place there.

    Times in seconds since the start. ``time_*_s`` split the end-to-end time: waiting to be scheduled, prefill (the
    request's own until its first token, others' chunks that delayed it after that), drafting and verifying what was
    kept, rejected work (the time of each step less its time without the rejected rows and their drafts, see
    ``draftcast.sim.engine.step.commit``), host, and from each preemption to the next token (KV pressure). A request
    that has not finished has NaN there and in ``finish_s``.

    ``counted``: their places in the table, in the order in which they count. ``late_s``, of each row: from its client's
    sending to the engine's having it; arrivals are the client's, and this time counts as waiting.
    """
    rows = replicas[0].state.requests[counted]
    done = rows["status"] == state.FINISHED
    clock_s = rows["clock_s"].T
    parts_s = (
        rows["first_scheduled_s"] - rows["arrival_s"] + late_s,
        rows["prefill_s"] + clock_s[state.CLOCK_PREFILL],
        *clock_s[[state.CLOCK_DRAFT, state.CLOCK_VERIFY, state.CLOCK_REJECTED, state.CLOCK_HOST]],
        rows["pressure_s"],
    )
    moments = ("first_scheduled_s", "first_token_s", "finish_s")
    sessions = {}
    if table.session is not None:
        sessions = {"session": table.session[counted], "session_request": table.into_session()[0][counted]}
    return pd.DataFrame(
        {
            "request": np.arange(rows.size),
            **sessions,
            "class": pd.Categorical.from_codes(rows["class_id"].astype(np.int64), pd.Index(list(table.class_names))),
            "replica": assigned[counted],
            "priority": rows["priority"],
            "arrival_s": rows["arrival_s"] - late_s,
            **{name: np.where(rows[name] >= 0, rows[name], np.nan) for name in moments},
            "prompt_tokens": rows["prompt"],
            "output_tokens": rows["tokens"] - rows["prompt"],
            "cached_tokens": rows["hit_tokens"],
            "preemptions": rows["preemptions"],
            "num_drafts": rows["rounds"],
            "num_draft_tokens": rows["draft_tokens"],
            "num_accepted_tokens": rows["accepted"],
            **{name: np.where(done, seconds, np.nan) for name, seconds in zip(TIME_COLUMNS, parts_s, strict=True)},
        }
    )


def steps_frame(replicas: Sequence[Sequence[Replica]], end_s: float = math.inf) -> pd.DataFrame:
    """One row per engine step that begins by ``end_s``, replica by replica, rank by rank where one has several."""
    engines = {(index, rank): engine for index, ranks in enumerate(replicas) for rank, engine in enumerate(ranks)}
    steps = pd.concat({place: engine.steps() for place, engine in engines.items()}, names=["replica", "rank"])
    steps = steps[steps["start_s"] <= end_s].reset_index(level=["replica", "rank"]).reset_index(drop=True)
    return steps if any(len(ranks) > 1 for ranks in replicas) else steps.drop(columns="rank")


def accepted_per_position(replicas: Sequence[Replica]) -> IntArray:
    """Rounds of counted requests in which draft position j was accepted, shape [segments, k]."""
    widest = max(replica.state.rounds_by_accepted.shape[1] for replica in replicas)
    rounds = (replica.state.rounds_by_accepted[:-1] for replica in replicas)  # engines may differ in k
    counts = np.asarray(sum(np.pad(table, ((0, 0), (0, widest - table.shape[1]))) for table in rounds), np.int64)
    return counts[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:]


def itl_counts(replicas: Sequence[Replica]) -> IntArray:
    """The ITL histogram of counted requests, of all replicas, shape [segments, bins]."""
    return np.asarray(sum(replica.state.itl[:-1] for replica in replicas), np.int64)


def engine_figures(replicas: Sequence[Replica], engines: state.Array) -> dict[str, float]:
    """Figures that only the engines' counters hold; ``engines``: the counters (``ENGINE[replicas]``) when it ended."""
    origins = {origin.label: float(engines["by_origin_s"][:, origin].sum()) for origin in Origin}
    device = sum(origins.values())
    steps = float(engines["step"].sum())
    span = float(engines["mark_s"].max())
    blocks = sum(r.config.num_gpu_blocks - 1 for r in replicas)
    return {
        **{f"share_device_time_{name}": value / device if device else np.nan for name, value in origins.items()},
        "num_steps": steps,
        "mean_step_tokens": float(engines["scheduled_tokens"].sum()) / steps if steps else np.nan,
        "kv_cache_usage": float(engines["kv_block_seconds"].sum()) / (span * blocks) if span else 0.0,
    }
