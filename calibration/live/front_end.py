"""What lies between client and engine: seconds of HTTP, process hand-over, detokeniser and streaming, measured.

No engine step holds them, so they are no part of a step's cost, and they are not fitted to latencies: they come from
time stamps. A piece of an answer reaches the client some time after the log line of its step. A request that meets an
idle engine waits for its first step to end, less that step's own time. In a closed loop the client takes a moment from
the last piece of an answer to its next request.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from draftcast.calibration.live.run_directory import LiveRun
from draftcast.calibration.live.timed_run import TimedRun
from draftcast.calibration.profile.load import FrontEnd
from draftcast.calibration.profile.robust_fit import FloatArray, robust_fit

_LEAST_PIECES = 20
_LEAST_ARRIVALS = 3
# A pause longer than this between an answer and the next request is somebody's thinking.
_LONGEST_TURNAROUND_S = 0.25


@dataclass(frozen=True)
class FrontEndMeasurement:
    """The seconds, and how much they rest on.

    Attributes:
        seconds: 0 where nothing says otherwise.
        pieces, arrivals, turnarounds: pieces of answers, requests that met an idle engine and pauses they come from.
    """

    seconds: FrontEnd
    pieces: int
    arrivals: int
    turnarounds: int


def measure_front_end(runs: Sequence[TimedRun], fitted_s: Sequence[FloatArray]) -> FrontEndMeasurement:
    """The front end's seconds over all the runs; ``fitted_s`` are what each run's ``steps`` should have taken."""
    delays = pd.concat([output_delays(run) for run in runs], ignore_index=True)
    waits = np.concatenate([entry_waits(run, seconds) for run, seconds in zip(runs, fitted_s, strict=True)])
    pauses = np.concatenate([turnarounds(run.run) for run in runs])
    output_s = output_sequence_s = 0.0
    if len(delays) >= _LEAST_PIECES:
        x = np.column_stack([np.ones(len(delays)), delays["outputs"]])
        fit = robust_fit(x, delays["seconds"].to_numpy(np.float64), np.ones(len(delays)))
        output_s, output_sequence_s = (float(value) for value in fit.coefficients)
    return FrontEndMeasurement(
        FrontEnd(
            request_s=max(float(np.median(waits)), 0.0) if len(waits) >= _LEAST_ARRIVALS else 0.0,
            output_s=output_s,
            output_sequence_s=output_sequence_s,
            turnaround_s=float(np.median(pauses)) if len(pauses) else 0.0,
        ),
        len(delays),
        len(waits),
        len(pauses),
    )


def output_delays(run: TimedRun) -> pd.DataFrame:
    """``seconds`` from the log line of a piece's step to the piece, and the step's ``outputs``; one row a piece."""
    time_s = run.steps["time_s"].to_numpy(np.float64)
    at = run.run.chunks["time_s"].to_numpy(np.float64)
    step = np.searchsorted(time_s, at, side="right") - 1
    # The stamp is rounded down: on average the line was written half its resolution later.
    seconds = at - time_s[np.maximum(step, 0)] - 0.5 * float(run.steps["resolution_s"].iloc[0])
    outputs = run.steps["seqs"].to_numpy(np.float64)[np.maximum(step, 0)]
    known = (step >= 0) & (seconds > 0.0)
    return pd.DataFrame({"seconds": seconds[known], "outputs": outputs[known]})


def entry_waits(run: TimedRun, fitted_s: FloatArray) -> FloatArray:
    """Seconds from sending to the first step's log line, less that step, of requests that met an idle engine.

    The step's own time is the log's where it says so, otherwise ``fitted_s`` (one value for each of ``run.steps``).
    """
    steps = run.steps
    alone = (steps["arrival_wait_s"].notna() & (steps["prefill_seqs"] == 1)).to_numpy()
    own_s = fitted_s
    fixed_s, sequence_s = run.host_s
    if run.clock == "elapsed" and math.isfinite(fixed_s):
        own_s = (steps["elapsed_s"] + fixed_s + sequence_s * steps["seqs"]).to_numpy(np.float64)
    return steps["arrival_wait_s"].to_numpy(np.float64)[alone] - own_s[alone]


def turnarounds(run: LiveRun) -> FloatArray:
    """Seconds from an answer's last piece to the next request, in a closed loop; empty in an open one."""
    arrivals = run.manifest["scenario"].get("workload", {}).get("arrivals", {})
    if arrivals.get("process") != "closed_loop" or arrivals.get("think_time_s"):
        return np.zeros(0)
    sent_s = np.sort(run.requests["sent_s"].dropna().to_numpy(np.float64))[int(arrivals["concurrency"]) :]
    ends_s = np.sort(run.requests["finish_s"].dropna().to_numpy(np.float64))
    before = np.searchsorted(ends_s, sent_s, side="right") - 1
    pause_s = sent_s[before >= 0] - ends_s[before[before >= 0]]
    quick = np.asarray(pause_s[pause_s < _LONGEST_TURNAROUND_S], dtype=np.float64)
    # Where most requests do not follow an answer at once, the few that seem to do so by chance.
    return quick if 2 * len(quick) > len(sent_s) else np.zeros(0)
