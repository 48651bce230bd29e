"""Step time of a server from live runs with and without speculative decoding: one robust fit over all of them.

What a target pass costs over its rows is not a straight line: a CPU's matrix products change kernel and cache with the
number of rows, a GPU's have tiles. So it is a curve, straight between knots that the runs' own steps choose, and never
falling. The rest is linear in what `draftcast.calibration.live.composition` says of a step. A drafting model's or a
text search's own seconds are told from the target's by the runs without them.

Errors are of whole runs that took no part in the fit, where another run drafts in the same way; a run that stands alone
in how it drafts gives up stretches of its time instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from draftcast.calibration.engine_log.regression import DRAFTERS, LEAST_POINTS, SEARCHES, Regression, design
from draftcast.calibration.live.composition import TimedRun, composed_steps, timed_run
from draftcast.calibration.live.run_directory import LiveRun
from draftcast.calibration.profile.roofline_fit import Errors
from draftcast.errors import InputError
from draftcast.kernels.arrays import BoolArray, FloatArray, IntArray

TARGET = {
    "kv_token_s": "kv_tokens",
    "prefill_query_kv_s": "prefill_qkv",
    "sequence_s": "seqs",
    "logit_row_s": "logit_rows",
    "query_kv_s": "decode_qkv",
}
"""Coefficients of the target beside its fixed seconds and its curve over rows, and what they multiply."""
DRAFT = {
    "draft_pass_s": "draft_passes",
    "draft_row_s": "tokens",
    "draft_token_s": "draft_tokens",
    "draft_kv_token_s": "kv_tokens",
    "draft_fixed_s": "steps",
}
"""The same of a drafting model, in the runs that have one."""
SEARCH = {"ngram_step_s": "searches", "ngram_sequence_s": "draft_seqs", "ngram_token_s": "draft_kv"}
"""The same of a text search."""

_KNOTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
# A stretch of the curve without this many steps in it has no slope of its own.
_STEPS_PER_KNOT = 25
_STRETCHES = 12


@dataclass(frozen=True)
class HeldOut:
    run: str  # folder and method
    whole: bool  # the whole run was held out; False: every fourth stretch of it
    errors: Errors


@dataclass(frozen=True)
class StepFit:
    # Seconds per unit, names of `TARGET`, `DRAFT`, `SEARCH` and ``fixed_s``; 0 where not told from the others
    coefficients: dict[str, float]
    folded: dict[str, str]  # for those, which coefficient carries it; "" where nothing was there to be multiplied
    rows: tuple[tuple[float, float], ...]  # the curve over rows, (rows, seconds) from 0 at the fewest rows seen
    sequences: tuple[int, int]  # smallest and largest number of requests in a step
    runs: tuple[TimedRun, ...]  # the runs with their points
    # Errors by run; ``whole`` and ``all`` are those of whole runs and of every held-out point
    held_out: tuple[HeldOut, ...]
    all: Errors
    regression: Regression

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(run.method for run in self.runs if run.method))

    def seconds(self, run: TimedRun) -> FloatArray:
        columns = _columns(run.steps.assign(steps=1.0), run.method)
        return np.asarray(columns.to_numpy() @ pd.Series(self.regression.values)[columns.columns].to_numpy())


def fit_steps(runs: Sequence[LiveRun]) -> StepFit:
    """Fit the step time of one server to its runs.

    Raises:
        InputError: no run without speculative decoding, runs of two drafting models or two searches, a method that a
            whole-step fit cannot hold, too few steps, a run without a log.
    """
    composed = [composed_steps(run) for run in runs]
    knots = _knots(pd.concat([steps["tokens"] for steps in composed]).to_numpy())
    timed = []
    for run, steps in zip(runs, composed, strict=True):
        frame = _with_curve(steps, knots)
        timed.append(timed_run(run, frame, [str(name) for name in frame if name not in steps]))
    _check(timed)
    numbered = [run.points.assign(run_number=number) for number, run in enumerate(timed)]
    columns = pd.concat([_columns(run.points, run.method) for run in timed], ignore_index=True).fillna(0.0)
    order = [name for name in ("fixed_s", *_curve_names(knots), *TARGET, *DRAFT, *SEARCH) if name in columns]
    regression = Regression.of(pd.concat(numbered, ignore_index=True), columns[order])
    sets = [_held_out(regression.points["run_number"].to_numpy(), number, timed) for number in range(len(timed))]
    fitted = regression.predicted_by_others(out for out, _ in sets)
    points, every = regression.points, np.any([out for out, _ in sets], axis=0)
    values = regression.values
    curve = np.cumsum([0.0, *(values[name] for name in _curve_names(knots))])
    sequences = pd.concat([run.steps["seqs"] for run in timed])
    return StepFit(
        coefficients={name: values[name] for name in order if not name.startswith("rows_")},
        folded={name: other for name, other in regression.folded.items() if not name.startswith("rows_")},
        rows=tuple(zip(map(float, knots), curve.tolist(), strict=True)),
        sequences=(int(sequences.min()), int(sequences.max())),
        runs=tuple(timed),
        held_out=tuple(
            HeldOut(run.label, whole, Errors.of(fitted[out], points[out]))
            for run, (out, whole) in zip(timed, sets, strict=True)
        ),
        all=Errors.of(fitted[every], points[every]),
        regression=regression,
    )


def _check(runs: Sequence[TimedRun]) -> None:
    if all(run.method for run in runs):
        message = "drafting cannot be told from the target: a run of the same server without speculation is needed too"
        raise InputError(message, file=str(runs[0].run.folder))
    for kind, known in (("drafting model", DRAFTERS), ("text search", SEARCHES)):
        found = sorted({run.method for run in runs if run.method in known})
        if len(found) > 1:
            message = f"one fit holds one {kind}; fit the runs of {' and of '.join(found)} apart"
            raise InputError(message, key="method", value=found[1])
    for run in runs:
        if run.method not in ("", *DRAFTERS, *SEARCHES):
            message = f"a whole-step fit holds only {', '.join((*DRAFTERS, *SEARCHES))}"
            raise InputError(message, file=str(run.run.folder), key="method", value=run.method)
    for method in dict.fromkeys(run.method for run in runs):
        own = [run for run in runs if run.method == method]
        count = sum(len(run.points) for run in own)
        if count < LEAST_POINTS:
            message = f"{count} timed steps with {method or 'no speculation'} are too few; {LEAST_POINTS} are needed"
            raise InputError(message, file=str(own[0].run.folder))


def _held_out(numbers: IntArray, number: int, runs: Sequence[TimedRun]) -> tuple[BoolArray, bool]:
    """Points of a run that a fit must not see to be judged by them, and whether they are the whole run."""
    own = numbers == number
    if sum(run.method == runs[number].method for run in runs) > 1:
        return own, True
    count = int(own.sum())
    own[own] = np.arange(count) * _STRETCHES // max(count, 1) % 4 == 3
    return own, False


def _knots(tokens: FloatArray) -> tuple[int, ...]:
    """Ends of the stretches over which the curve is straight: each holds enough steps to have a slope."""
    low, high = int(tokens.min()), int(tokens.max())
    knots = [low]
    for knot in (*(each for each in _KNOTS if low < each < high), high):
        if np.count_nonzero((tokens > knots[-1]) & (tokens <= knot)) >= _STEPS_PER_KNOT:
            knots.append(knot)
    if len(knots) == 1:
        return (low, high) if high > low else (low,)
    return (*knots[:-1], high)  # what lies beyond the last full stretch belongs to it


def _curve_names(knots: Sequence[int]) -> list[str]:
    return [f"rows_{knot}" for knot in knots[1:]]


def _with_curve(steps: pd.DataFrame, knots: Sequence[int]) -> pd.DataFrame:
    """The steps with the share of each stretch of the curve that their rows have climbed, and ``searches``."""
    tokens = steps["tokens"].to_numpy(np.float64)
    shares = {f"rows_{b}": np.clip((tokens - a) / (b - a), 0.0, 1.0) for a, b in pairwise(knots)}
    return steps.assign(**shares, searches=(steps["draft_seqs"] > 0).astype(np.float64))


def _columns(points: pd.DataFrame, method: str) -> pd.DataFrame:
    """What the coefficients multiply that a run with this method has."""
    curve = {name: name for name in map(str, points) if name.startswith("rows_")}
    return design(points, method, {"fixed_s": "steps", **curve, **TARGET}, DRAFT, SEARCH)
