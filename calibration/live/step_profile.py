"""From live runs to a profile folder: the whole-step fit, the front end's seconds, and which runs they come from.

The step time is one robust fit over all runs, with and without speculative decoding. What a target pass costs over its
rows is a curve, straight between knots that the runs' own steps choose, and never falling: a CPU's matrix products
change kernel and cache with the number of rows, a GPU's have tiles. The rest is linear in what
`draftcast.calibration.live.composition` says of a step. A drafting model's or a text search's own seconds are told from
the target's by the runs without them. Errors are of whole runs that took no part in the fit, where another run drafts
in the same way; a run that stands alone in how it drafts gives up stretches of its time instead.

The front end lies between client and engine: HTTP, process hand-over, detokeniser and streaming, no part of a step's
cost. Its seconds are not fitted to latencies but come from time stamps: from the log line of a step to its pieces at
the client; of a request that meets an idle engine until its first step ends, less that step's own time; in a closed
loop from the last piece of an answer to the next request.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from draftcast.calibration.engine_log import profile, regression
from draftcast.calibration.engine_log.profile import AffineFit, ProfileLabel, outlier_notes
from draftcast.calibration.engine_log.regression import DRAFTERS, LEAST_POINTS, SEARCHES, Regression
from draftcast.calibration.live.composition import TimedRun, composed_steps, run_name, timed_run
from draftcast.calibration.live.run_directory import LiveRun
from draftcast.calibration.profile.load import FIT, MANIFEST
from draftcast.calibration.profile.roofline_fit import FitErrors
from draftcast.calibration.profile.spec import FrontEnd
from draftcast.errors import InputError
from draftcast.files import picked, plain
from draftcast.kernels.arrays import BoolArray, FloatArray, IntArray

REPORT = "calibration.json"
PROFILE_FILES = (FIT, MANIFEST, REPORT)  # what `write_live_profile` writes
_LEAST_PIECES = 20
_LEAST_ARRIVALS = 3
_LONGEST_TURNAROUND_S = 0.25  # a pause longer than this between an answer and the next request is somebody's thinking

_KNOTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
_STEPS_PER_KNOT = 25  # a stretch of the curve without this many steps in it has no slope of its own
_STRETCHES = 12


@dataclass(frozen=True)
class HeldOut:
    run: str  # folder and method
    whole: bool  # the whole run was held out; False: every fourth stretch of it
    errors: FitErrors


@dataclass(frozen=True)
class FrontEndMeasurement:
    """The seconds, and how much they rest on."""

    seconds: FrontEnd  # 0 where nothing says otherwise
    pieces: int  # of answers
    arrivals: int  # requests that met an idle engine
    turnarounds: int  # pauses


@dataclass(frozen=True)
class LiveCalibration:
    coefficients: dict[str, float]  # seconds per unit, by `TERMS` and ``fixed_s``; 0 where not told from the others
    folded: dict[str, str]  # for those, which coefficient carries it; "" where nothing was there to be multiplied
    rows: tuple[tuple[float, float], ...]  # the curve over rows, (rows, seconds) from 0 at the fewest rows seen
    sequences: tuple[int, int]  # smallest and largest number of requests in a step
    runs: tuple[TimedRun, ...]  # the runs with their points
    held_out: tuple[HeldOut, ...]  # errors by run
    all: FitErrors  # of every held-out point
    regression: Regression
    front_end: FrontEndMeasurement

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(run.method for run in self.runs if run.method))

    @property
    def notes(self) -> list[str]:
        """What a reader must know before trusting the figures, one line each."""
        lines = [f"{name}: not fitted, moves with {other}" for name, other in self.folded.items() if other]
        alone = [fold.run for fold in self.held_out if not fold.whole]
        lines += [f"{run}: held out in stretches, no other run drafts so" for run in alone]
        if len({run.clock for run in self.runs}) > 1:
            lines.append("some runs are timed by their stamps and some by the engine's own figure")
        lines += outlier_notes(self.regression, 0.03)
        if not self.front_end.arrivals:
            unknown = "a request's way into the engine is not known and taken as 0"
            lines.append(f"no request met an idle engine, so {unknown}")
        return lines

    def report(self) -> dict[str, Any]:
        """Plain data for JSON; NaN is None."""
        report = {
            **picked(self, "coefficients rows sequences"),
            **picked(self.regression, "outlier_points outlier_seconds seconds_over_fit"),
            **picked(self, "front_end notes"),
            "not_fitted": self.folded,
            "runs": [
                picked(run, "method k clock elapsed_share host_s left_out")
                | {"folder": str(run.run.folder), "digest": run_digest(run.run), "points": len(run.points)}
                for run in self.runs
            ],
            "held_out": {
                "all": self.all,
                "runs": [{"run": fold.run, "whole_run": fold.whole, **vars(fold.errors)} for fold in self.held_out],
            },
        }
        return dict(plain(report))


def calibrate_live(runs: Sequence[LiveRun]) -> LiveCalibration:
    """Fit step time and front end to the runs of one server.

    Raises InputError: the same run twice, runs of servers that differ in what a profile is for, no run without
    speculative decoding, runs of two drafting models or two searches, a method that a whole-step fit cannot hold, too
    few steps, a run without a log.
    """
    _check_alike(runs)
    composed = [composed_steps(run) for run in runs]
    knots = _knots(pd.concat([steps["tokens"] for steps in composed]).to_numpy())
    stretches = {f"rows_{end}": (begin, end) for begin, end in pairwise(knots)}
    parts = regression.TERMS["live"]
    terms = {**parts, "target": {"fixed_s": "steps", **{name: name for name in stretches}, **parts["target"]}}
    timed = []
    for run, steps in zip(runs, composed, strict=True):
        tokens = steps["tokens"].to_numpy(np.float64)
        # The share of each stretch of the curve that the rows of a step have climbed.
        shares = {name: np.clip((tokens - a) / (b - a), 0.0, 1.0) for name, (a, b) in stretches.items()}
        frame = steps.assign(**shares, searches=(steps["draft_seqs"] > 0).astype(np.float64))
        timed.append(timed_run(run, frame, [*stretches, "searches"]))
    _check(timed)
    numbered = [run.points.assign(run_number=number) for number, run in enumerate(timed)]
    designs = [regression.design(run.points, run.method, terms) for run in timed]
    columns = pd.concat(designs, ignore_index=True).fillna(0.0)
    order = [name for part in terms.values() for name in part if name in columns]
    solution = Regression.of(pd.concat(numbered, ignore_index=True), columns[order])
    points, values = solution.points, solution.values
    sets = [_held_out(points["run_number"].to_numpy(), number, timed) for number in range(len(timed))]
    fitted = solution.predicted_by_others(out for out, _ in sets)
    every = np.any([out for out, _ in sets], axis=0)
    curve = np.cumsum([0.0, *(values[name] for name in stretches)])
    of_steps = [regression.design(run.steps.assign(steps=1.0), run.method, terms) for run in timed]
    sequences = pd.concat([run.steps["seqs"] for run in timed])
    fitted_s = [np.asarray(design @ pd.Series(values)[design.columns], dtype=np.float64) for design in of_steps]
    return LiveCalibration(
        coefficients={name: values[name] for name in order if name not in stretches},
        folded={name: other for name, other in solution.folded.items() if name not in stretches},
        rows=tuple(zip(map(float, knots), curve.tolist(), strict=True)),
        sequences=(int(sequences.min()), int(sequences.max())),
        runs=tuple(timed),
        held_out=tuple(
            HeldOut(run.label, whole, FitErrors.of(fitted[out], points[out]))
            for run, (out, whole) in zip(timed, sets, strict=True)
        ),
        all=FitErrors.of(fitted[every], points[every]),
        regression=solution,
        front_end=measure_front_end(timed, fitted_s),
    )


def _check(runs: Sequence[TimedRun]) -> None:
    if all(run.method for run in runs):
        message = "drafting cannot be told from the target: a run of the same server without speculation is needed too"
        raise InputError(message, file=str(runs[0].run.folder))
    for kind, methods in (("drafting model", DRAFTERS), ("text search", SEARCHES)):
        used = sorted({run.method for run in runs if run.method in methods})
        if len(used) > 1:
            message = f"one fit holds one {kind}; fit the runs of {' and of '.join(used)} apart"
            raise InputError(message, key="method", value=used[1])
    for run in runs:
        if run.method not in ("", *DRAFTERS, *SEARCHES):
            message = f"a whole-step fit holds only {', '.join((*DRAFTERS, *SEARCHES))}"
            raise InputError(message, file=str(run.run.folder), key="method", value=run.method)
    for method in dict.fromkeys(run.method for run in runs):
        of_method = [run for run in runs if run.method == method]
        count = sum(len(run.points) for run in of_method)
        if count < LEAST_POINTS:
            message = f"{count} timed steps with {method or 'no speculation'} are too few; {LEAST_POINTS} are needed"
            raise InputError(message, file=str(of_method[0].run.folder))


def _held_out(numbers: IntArray, number: int, runs: Sequence[TimedRun]) -> tuple[BoolArray, bool]:
    """Points of a run that a fit must not see to be judged by them, and whether they are the whole run."""
    points = numbers == number
    if sum(run.method == runs[number].method for run in runs) > 1:
        return points, True
    count = int(points.sum())
    points[points] = np.arange(count) * _STRETCHES // max(count, 1) % 4 == 3
    return points, False


def _knots(tokens: FloatArray) -> tuple[int, ...]:
    """Ends of the stretches over which the curve is straight: each holds enough steps to have a slope."""
    low, high = int(tokens.min()), int(tokens.max())
    knots = [low]
    for knot in (*(inner for inner in _KNOTS if low < inner < high), high):
        if np.count_nonzero((tokens > knots[-1]) & (tokens <= knot)) >= _STEPS_PER_KNOT:
            knots.append(knot)
    # What lies beyond the last full stretch belongs to it.
    return tuple(dict.fromkeys((low, *knots[1:-1], high)))


def write_live_profile(calibration: LiveCalibration, folder: Path, label: ProfileLabel) -> None:
    """Write the profile folder and read it back as `load_profile` does: fit, manifest, ``calibration.json``.

    Raises InputError: the folder holds such files already or cannot be written.
    """
    first = calibration.runs[0].run.manifest
    versions = sorted({str(run.run.manifest["server"].get("version") or "?") for run in calibration.runs})
    steps = int(sum(run.points["steps"].sum() for run in calibration.runs))
    profile.new_profile_folder(folder, REPORT)
    affine = AffineFit(
        values=calibration.coefficients,
        **picked(calibration, "rows methods sequences notes"),
        enforce_eager=bool(_enforce_eager(calibration.runs[0].run)),
        source=f"live runs of vLLM {', '.join(versions)}: {len(calibration.runs)} runs "
        f"({', '.join(calibration.methods) or 'no speculation'}), {steps} steps; held-out error {calibration.all}",
        versions=[str(version)] if (version := first["server"].get("version")) else [],
        command=" ".join(["draftcast live calibrate", *(str(run.run.folder) for run in calibration.runs)]),
        report=calibration.report(),
        device=str(first["machine"].get("processor") or ""),
        noise=first["noise"],
        more={
            "front_end": asdict(calibration.front_end.seconds),
            "fitted_runs": {run_digest(run.run): run_name(run.run) for run in calibration.runs},
        },
    )
    profile.write_profile_folder(folder, affine, label, REPORT)


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


def measure_front_end(runs: Sequence[TimedRun], fitted_s: Sequence[FloatArray]) -> FrontEndMeasurement:
    """The front end's seconds over all the runs; ``fitted_s`` are what each run's ``steps`` should have taken."""
    delays = pd.concat([output_delays(run) for run in runs], ignore_index=True)
    waits = np.concatenate([entry_waits(run, seconds) for run, seconds in zip(runs, fitted_s, strict=True)])
    pauses = np.concatenate([turnarounds(run.run) for run in runs])
    output_s = output_sequence_s = 0.0
    if len(delays) >= _LEAST_PIECES:
        x = np.column_stack([np.ones(len(delays)), delays["outputs"]])
        fit = regression.robust_fit(x, delays["seconds"].to_numpy(np.float64), np.ones(len(delays)))
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
    timed = (step >= 0) & (seconds > 0.0)
    return pd.DataFrame({"seconds": seconds[timed], "outputs": outputs[timed]})


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
