"""Figures of a run as its client saw it and levels of its engine over time: one definition for live and simulated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from draftcast.calibration.live.run_directory import LiveRun
from draftcast.scenarios.live.validate.question import Question
from draftcast.scenarios.run.measured_run import as_simulated, counted_acceptance, piece_gaps
from draftcast.scenarios.run.workload_spec import slos
from draftcast.sim.compiled.itl_histogram import itl_histogram
from draftcast.sim.output.metrics import compute_metrics
from draftcast.sim.workload.workload import Slo

FloatArray = NDArray[np.float64]

_STATISTICS = ("mean", "median", "p95")
_LATENCIES = ("ttft", "tpot", "itl", "e2el")
FIGURES = (
    *(f"{statistic}_{name}_s" for name in _LATENCIES for statistic in _STATISTICS),
    "output_throughput",
    "busy_throughput",
    "request_throughput",
    "request_goodput",
    "slo_attainment",
    "mean_acceptance_length",
    "acceptance_rate",
)
"""What is compared, beside the acceptance by draft position (``acceptance_rate_position_<i>``). *busy_throughput* is a
closed loop's: output tokens a second until the last request is sent, while every user has one in the system."""

# A closed loop whose users send for less than this share of the run says little about being busy.
_LEAST_BUSY = 0.2


def run_figures(
    requests: pd.DataFrame,
    itl_counts: Any,
    objectives: Mapping[str, Slo],
    closed_loop: bool,
    accepted_per_position: Any = None,
) -> dict[str, float]:
    """`FIGURES` over the whole run: nothing is cut off, whatever the load did; NaN where undefined."""
    metrics = compute_metrics(
        requests,
        itl_counts,
        slo=dict(objectives) or None,
        accepted_per_position=accepted_per_position,
    )
    found = {**metrics.transient, **metrics.summary()}
    found["busy_throughput"] = _busy_throughput(requests) if closed_loop else math.nan
    positions = [name for name in found if name.startswith("acceptance_rate_position_")]
    return {name: float(found.get(name, math.nan)) for name in (*FIGURES, *positions)}


def live_figures(question: Question) -> dict[str, float]:
    """The same of the recorded run; acceptance is the server's own count."""
    requests = live_requests(question)
    ids = question.live.requests["request_id"].to_numpy()[question.kept]
    gaps, owners = piece_gaps(question.live.chunks, ids)
    counts = itl_histogram(gaps, owners, len(requests))
    figures = run_figures(requests, counts, slos(question.scenario), question.loop is not None)
    return figures | counted_acceptance(question.live)


def live_requests(question: Question) -> pd.DataFrame:
    """The answered requests in the columns of a simulated run; what a client cannot see is 0."""
    return as_simulated(question.live.requests.loc[question.kept])


def _busy_throughput(requests: pd.DataFrame) -> float:
    """Output tokens a second from the first to the last sending; an answer's tokens spread evenly after its first."""
    sent_s = requests["arrival_s"].to_numpy(np.float64)
    start_s, end_s = float(sent_s.min()), float(sent_s.max())
    if end_s - start_s < _LEAST_BUSY * (float(requests["finish_s"].max()) - start_s):
        return math.nan
    first_s, finish_s = requests["first_token_s"].to_numpy(np.float64), requests["finish_s"].to_numpy(np.float64)
    answer_s = np.maximum(finish_s - first_s, 1e-9)
    rest = (requests["output_tokens"].to_numpy(np.float64) - 1.0) * np.clip((end_s - first_s) / answer_s, 0.0, 1.0)
    return float((rest + 1.0)[first_s <= end_s].sum()) / (end_s - start_s)


def chunk_gaps(live: LiveRun) -> FloatArray:
    """Seconds between the pieces of the same answer, all answers together."""
    return piece_gaps(live.chunks, live.requests["request_id"].to_numpy())[0]


@dataclass(frozen=True)
class Timeline:
    """Levels at the ends of the steps, shape (steps,): seconds, requests in the step, waiting, share of KV blocks."""

    time_s: FloatArray
    running: FloatArray
    waiting: FloatArray
    kv_usage: FloatArray

    def means(self) -> dict[str, float]:
        """Time averages over the span of the steps; NaN for fewer than two."""
        levels = {"running": self.running, "waiting": self.waiting, "kv_usage": self.kv_usage}
        if len(self.time_s) < 2:
            return dict.fromkeys(levels, float("nan"))
        gaps = np.diff(self.time_s)
        return {name: float(np.average(level[:-1], weights=gaps)) for name, level in levels.items()}


def live_timeline(steps: pd.DataFrame, requests: pd.DataFrame) -> Timeline:
    """Of logged steps (`draftcast.calibration.live.composition.compose`) and the client's requests.

    Whoever has been sent, has no answer yet and is in no step waits (or is on its way).
    """
    time_s = steps["time_s"].to_numpy(np.float64)
    running = steps["seqs"].to_numpy(np.float64)
    sent = np.sort(requests["arrival_s"].to_numpy(np.float64))
    ended = np.sort(requests["finish_s"].to_numpy(np.float64))
    there = np.searchsorted(sent, time_s, side="right") - np.searchsorted(ended, time_s, side="right")
    usage = steps["kv_usage"].to_numpy(np.float64)
    return Timeline(time_s, running, np.maximum(there - running, 0.0), usage)


def simulated_timeline(steps: pd.DataFrame, num_blocks: int) -> Timeline:
    """Of recorded steps; ``num_blocks`` are those the engine can hand out."""
    time_s = (steps["start_s"] + steps["duration_s"]).to_numpy(np.float64)
    usage = steps["kv_used_blocks"].to_numpy(np.float64) / max(num_blocks, 1)
    return Timeline(time_s, steps["num_seqs"].to_numpy(np.float64), steps["waiting"].to_numpy(np.float64), usage)
