"""From live runs to a profile folder: the whole-step fit, the front end's seconds, and which runs they come from.

The front end is what lies between client and engine: seconds of HTTP, process hand-over, detokeniser and streaming. No
engine step holds them, so they are no part of a step's cost, and they are not fitted to latencies: they come from time
stamps. A piece of an answer reaches the client some time after the log line of its step. A request that meets an idle
engine waits for its first step to end, less that step's own time. In a closed loop the client takes a moment from the
last piece of an answer to its next request.
"""

import dataclasses
import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from draftcast.calibration.engine_log.profile import AffineFit, ProfileLabel, new_profile_folder, write_profile_folder
from draftcast.calibration.engine_log.regression import robust_fit
from draftcast.calibration.live.composition import TimedRun, run_name
from draftcast.calibration.live.run_directory import LiveRun
from draftcast.calibration.live.step_fit import StepFit, fit_steps
from draftcast.calibration.profile.load import FIT, MANIFEST
from draftcast.calibration.profile.spec import FrontEnd
from draftcast.errors import InputError
from draftcast.files import picked, plain
from draftcast.kernels.arrays import FloatArray

REPORT = "calibration.json"
PROFILE_FILES = (FIT, MANIFEST, REPORT)
"""What `write_live_profile` writes."""
_LEAST_PIECES = 20
_LEAST_ARRIVALS = 3
# A pause longer than this between an answer and the next request is somebody's thinking.
_LONGEST_TURNAROUND_S = 0.25


@dataclass(frozen=True)
class LiveCalibration:
    """A server's step time and front end, and what is to be known of them."""

    fit: StepFit
    front_end: "FrontEndMeasurement"
    notes: tuple[str, ...]

    def report(self) -> dict[str, Any]:
        """Plain data for JSON; NaN is None."""
        fit = self.fit
        held_out = [{"run": each.run, "whole_run": each.whole, **vars(each.errors)} for each in fit.held_out]
        report = {
            **picked(fit, "coefficients rows sequences"),
            **picked(fit.regression, "outlier_points outlier_seconds seconds_over_fit"),
            **picked(self, "front_end notes"),
            "not_fitted": fit.folded,
            "runs": [
                picked(run, "method k clock elapsed_share host_s left_out")
                | {"folder": str(run.run.folder), "digest": run_digest(run.run), "points": len(run.points)}
                for run in fit.runs
            ],
            "held_out": {"all": fit.all, "runs": held_out},
        }
        return dict(plain(report))


def calibrate_live(runs: Sequence[LiveRun]) -> LiveCalibration:
    """Fit step time and front end to the runs of one server.

    Raises:
        InputError: the same run twice, runs of servers that differ in what a profile is for, see `fit_steps`.
    """
    _check_alike(runs)
    fit = fit_steps(runs)
    front_end = measure_front_end(fit.runs, [fit.seconds(run) for run in fit.runs])
    return LiveCalibration(fit, front_end, tuple(_notes(fit, front_end)))


def write_live_profile(found: LiveCalibration, folder: Path, label: ProfileLabel) -> None:
    """Write the profile folder and read it back as `load_profile` does: fit, manifest, ``calibration.json``.

    Raises:
        InputError: the folder holds such files already or cannot be written.
    """
    fit, first = found.fit, found.fit.runs[0].run.manifest
    versions = sorted({str(run.run.manifest["server"].get("version") or "?") for run in fit.runs})
    steps = int(sum(run.points["steps"].sum() for run in fit.runs))
    new_profile_folder(folder, REPORT)
    affine = AffineFit(
        values=fit.coefficients,
        rows=fit.rows,
        methods=fit.methods,
        sequences=fit.sequences,
        enforce_eager=bool(_enforce_eager(fit.runs[0].run)),
        source=f"live runs of vLLM {', '.join(versions)}: {len(fit.runs)} runs "
        f"({', '.join(fit.methods) or 'no speculation'}), {steps} steps; held-out error {fit.all}",
        notes=found.notes,
        versions=[str(version)] if (version := first["server"].get("version")) else [],
        command=" ".join(["draftcast live calibrate", *(str(run.run.folder) for run in fit.runs)]),
        report=found.report(),
        device=str(first["machine"].get("processor") or ""),
        noise=first["noise"],
        more={
            "front_end": dataclasses.asdict(found.front_end.seconds),
            "fitted_runs": {run_digest(run.run): run_name(run.run) for run in fit.runs},
        },
    )
    write_profile_folder(folder, affine, label, REPORT)


def run_digest(run: LiveRun) -> str:
    """What tells a run from every other, wherever its folder lies: SHA-256 of its requests and their times."""
    rows = pd.util.hash_pandas_object(run.requests.sort_values("request_id"), index=False).to_numpy()
    return hashlib.sha256(str(run.manifest["start_unix_s"]).encode() + rows.tobytes()).hexdigest()


def _check_alike(runs: Sequence[LiveRun]) -> None:
    digests = [run_digest(run) for run in runs]
    for run, digest in zip(runs, digests, strict=True):
        if digests.count(digest) > 1:
            raise InputError("is given twice", file=str(run.folder))
    engines = [run.manifest["scenario"].get("engine", {}) for run in runs]
    kinds = [(e.get("model"), e.get("dtype"), _enforce_eager(run)) for e, run in zip(engines, runs, strict=True)]
    usual = Counter(kinds).most_common(1)[0][0]
    for run, kind in zip(runs, kinds, strict=True):
        for key, value, expected in zip(("model", "dtype", "enforce_eager"), kind, usual, strict=True):
            if value != expected:
                raise InputError(f"the other runs have {expected!r}", file=str(run.folder), key=key, value=value)


def _enforce_eager(run: LiveRun) -> Any:
    return (run.manifest["server"].get("config") or {}).get("enforce_eager")


def _notes(fit: StepFit, front_end: "FrontEndMeasurement") -> list[str]:
    """What a reader must know before trusting the figures, one line each."""
    lines = [f"{name}: not fitted, moves with {other}" for name, other in fit.folded.items() if other]
    lines += [f"{each.run}: held out in stretches, no other run drafts so" for each in fit.held_out if not each.whole]
    if len({run.clock for run in fit.runs}) > 1:
        lines.append("some runs are timed by their stamps and some by the engine's own figure")
    found = fit.regression
    if abs(found.seconds_over_fit - 1.0) > 0.03:
        lines.append(
            f"measured time is {found.seconds_over_fit:.2f} times the fitted time: {found.outlier_points:.1%} of the "
            f"points are outliers and hold {found.outlier_seconds:.1%} of the time"
        )
    if not front_end.arrivals:
        lines.append("no request met an idle engine, so a request's way into the engine is not known and taken as 0")
    return lines


@dataclass(frozen=True)
class FrontEndMeasurement:
    """The seconds, and how much they rest on."""

    seconds: FrontEnd  # 0 where nothing says otherwise
    pieces: int  # of answers
    arrivals: int  # requests that met an idle engine
    turnarounds: int  # pauses


def measure_front_end(runs: Sequence[TimedRun], fitted_s: Sequence[FloatArray]) -> FrontEndMeasurement:
    """The front end's seconds over all the runs; ``fitted_s`` are what each run's ``steps`` should have taken."""
    delays = pd.concat([output_delays(run) for run in runs], ignore_index=True)
    waits = np.concatenate([entry_waits(run, seconds) for run, seconds in zip(runs, fitted_s, strict=True)])
    pauses = np.concatenate([turnarounds(run.run) for run in runs])
    output_s = output_sequence_s = 0.0
    if len(delays) >= _LEAST_PIECES:
        x = np.column_stack([np.ones(len(delays)), delays["outputs"]])
        fit = robust_fit(x, delays["seconds"].to_numpy(np.float64), np.ones(len(delays)))
        output_s, output_sequence_s = fit.coefficients.tolist()
    request_s = max(float(np.median(waits)), 0.0) if len(waits) >= _LEAST_ARRIVALS else 0.0
    turnaround_s = float(np.median(pauses)) if len(pauses) else 0.0
    seconds = FrontEnd(request_s, output_s, output_sequence_s, turnaround_s)
    return FrontEndMeasurement(seconds, len(delays), len(waits), len(pauses))


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
    fixed_s, sequence_s = run.host_s
    if run.clock == "elapsed" and math.isfinite(fixed_s):
        fitted_s = (steps["elapsed_s"] + fixed_s + sequence_s * steps["seqs"]).to_numpy(np.float64)
    return steps["arrival_wait_s"].to_numpy(np.float64)[alone] - fitted_s[alone]


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
