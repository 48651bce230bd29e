"""Step time of a server from live runs with and without speculative decoding: one robust fit over all of them.

What a target pass costs over its rows is not a straight line: a CPU's matrix products change kernel and cache with the
number of rows, a GPU's have tiles. So it is a curve, straight between knots that the runs' own steps choose, and never
falling. The rest is linear in what `draftcast.calibration.live.composition` says of a step. A drafting model's or a
text search's own seconds are told from the target's by the runs without them.

Errors are of whole runs that took no part in the fit, where another run drafts in the same way; a run that stands alone
in how it drafts gives up stretches of its time instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from draftcast.calibration.engine_log.fit import SEARCHES
from draftcast.calibration.engine_log.profile import DRAFTERS
from draftcast.calibration.engine_log.regression import LEAST_POINTS, Errors
from draftcast.calibration.live.core_speed import COLUMNS, GROUPS, exponents, factors
from draftcast.calibration.live.run_directory import LiveRun
from draftcast.calibration.live.timed_run import TimedRun, composed_steps, timed_run
from draftcast.calibration.profile.robust_fit import FloatArray, RobustFit, identified, robust_fit
from draftcast.calibration.profile.spec import CoreResponse
from draftcast.errors import InputError

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
# Fit and the powers of the cores' speed take turns; they have settled by then.
_SPEED_ROUNDS = 4


@dataclass(frozen=True)
class HeldOut:
    """Errors of one run's points against a fit that did not see them.

    Attributes:
        run: folder and method. whole: the whole run was held out; False: every fourth stretch of it.
    """

    run: str
    whole: bool
    errors: Errors


@dataclass(frozen=True)
class StepFit:
    """What the runs say of a step's time.

    Attributes:
        coefficients: seconds per unit, names of `TARGET`, `DRAFT`, `SEARCH` and ``fixed_s``; one that could not be told
            from others is 0.
        folded: for those, which coefficient carries it; "" where nothing was there to be multiplied.
        rows: the curve over rows, (rows, seconds) from 0 at the fewest rows seen.
        sequences: smallest and largest number of requests in a step.
        runs: the runs with their points.
        held_out: errors by run; ``whole`` and ``all`` are those of whole runs and of every held-out point.
        outlier_points, outlier_seconds: share of the points the fit sets aside, and of the time they hold.
        seconds_over_fit: measured over fitted time, outliers included.
        core_speed: by group of cores, how a step's time goes with their speed; empty where a run does not know it. The
            coefficients are seconds at the speed ``spin_s``.
    """

    coefficients: dict[str, float]
    folded: dict[str, str]
    rows: tuple[tuple[float, float], ...]
    sequences: tuple[int, int]
    runs: tuple[TimedRun, ...]
    held_out: tuple[HeldOut, ...]
    all: Errors
    outlier_points: float
    outlier_seconds: float
    seconds_over_fit: float
    core_speed: dict[str, CoreResponse]

    @property
    def methods(self) -> tuple[str, ...]:
        """How the runs drafted, "" left out."""
        return tuple(dict.fromkeys(run.method for run in self.runs if run.method))

    def seconds(self, points: pd.DataFrame, method: str) -> FloatArray:
        """Fitted seconds of points (or steps, which need a column ``steps`` of ones) of a run with this method.

        At the speed the cores had, where the points say so.
        """
        names, x = _design(points, method, tuple(rows for rows, _ in self.rows))
        values = {**self.coefficients, **_increments(self.rows)}
        at_reference = x @ np.array([values.get(name, 0.0) for name in names])
        logs = {name: points[name].to_numpy(np.float64) for name in COLUMNS if name in points}
        return np.asarray(at_reference * factors(self.core_speed, logs, len(points)), dtype=np.float64)


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
        basis = _basis(steps["tokens"].to_numpy(np.float64), knots)
        searches = (steps["draft_seqs"] > 0).astype(np.float64)
        frame = pd.concat([steps, basis], axis=1).assign(searches=searches)
        timed.append(timed_run(run, frame, (*basis.columns, "searches")))
    _check(timed)
    data = _Data.of(timed, knots)
    names, folded = data.identified()
    solved, powers = data.solve(names, np.full(len(data.seconds), True))
    values = dict(zip(names, solved.coefficients.tolist(), strict=True))
    fitted = data.columns(names) @ solved.coefficients * data.slowness(powers)
    held_out, everything = _held_out(data, names, powers)
    steps = pd.concat([run.steps["seqs"] for run in timed])
    return StepFit(
        coefficients={name: values.get(name, 0.0) for name in data.names if not _is_curve(name)},
        folded={name: other for name, other in folded.items() if not _is_curve(name)},
        rows=_curve(knots, values),
        sequences=(int(steps.min()), int(steps.max())),
        runs=tuple(timed),
        held_out=held_out,
        all=everything,
        outlier_points=float(solved.outliers.mean()),
        outlier_seconds=float(data.seconds[solved.outliers].sum() / data.seconds.sum()),
        seconds_over_fit=float(data.seconds.sum() / fitted.sum()),
        core_speed={
            group: CoreResponse(float(np.exp(log)), float(power))
            for group, log, power in zip(data.groups, data.reference, powers, strict=True)
        },
    )


def _check(runs: Sequence[TimedRun]) -> None:
    """Refuse runs that one whole-step fit cannot hold together."""
    if all(run.method for run in runs):
        message = "drafting cannot be told from the target: a run of the same server without speculation is needed too"
        raise InputError(message, file=str(runs[0].run.folder))
    for kind, known in (("drafting model", DRAFTERS), ("text search", SEARCHES)):
        found = sorted({run.method for run in runs if run.method in known})
        if len(found) > 1:
            message = f"one fit holds one {kind}; fit the runs of {' and of '.join(found)} apart"
            raise InputError(message, key="method", value=found[1])
    for run in runs:
        if run.method and run.method not in (*DRAFTERS, *SEARCHES):
            message = f"a whole-step fit holds only {', '.join((*DRAFTERS, *SEARCHES))}"
            raise InputError(message, file=str(run.run.folder), key="method", value=run.method)
    for method in dict.fromkeys(run.method for run in runs):
        own = [run for run in runs if run.method == method]
        count = sum(len(run.points) for run in own)
        if count < LEAST_POINTS:
            message = f"{count} timed steps with {method or 'no speculation'} are too few; {LEAST_POINTS} are needed"
            raise InputError(message, file=str(own[0].run.folder))


@dataclass(frozen=True)
class _Data:
    """Points of all runs as arrays; ``run`` and ``stretch`` number where a point belongs."""

    names: tuple[str, ...]
    x: FloatArray
    points: pd.DataFrame
    seconds: FloatArray
    groups: tuple[str, ...]  # of cores whose speed every run knows
    reference: FloatArray  # logarithms of the probe's seconds that the coefficients are for, one a group

    @classmethod
    def of(cls, runs: Sequence[TimedRun], knots: tuple[int, ...]) -> _Data:
        parts, designs = [], []
        for number, run in enumerate(runs):
            stretch = np.arange(len(run.points)) * _STRETCHES // max(len(run.points), 1)
            parts.append(run.points.assign(number=number, label=run.label, kind=run.method, stretch=stretch))
            names, x = _design(run.points, run.method, knots)
            designs.append(pd.DataFrame(x, columns=list(names)))
        every = pd.concat(designs, ignore_index=True).fillna(0.0)
        points = pd.concat(parts, ignore_index=True)
        order = [name for name in _names(knots) if name in every]
        known = [name in points and not points[name].isna().any() for name in COLUMNS]
        groups = tuple(group for group, is_known in zip(GROUPS, known, strict=True) if is_known)
        logs = points[[name for name, is_known in zip(COLUMNS, known, strict=True) if is_known]]
        return cls(
            tuple(order),
            every[order].to_numpy(),
            points,
            points["seconds"].to_numpy(np.float64),
            groups,
            logs.median().to_numpy(np.float64),
        )

    @property
    def deviations(self) -> FloatArray:
        """Logarithms of the probe's seconds beside the reference's, shape (points, groups)."""
        columns = [COLUMNS[GROUPS.index(group)] for group in self.groups]
        return self.points[columns].to_numpy(np.float64) - self.reference

    def slowness(self, powers: FloatArray) -> FloatArray:
        """How many times longer than at the reference's speed each point takes."""
        return np.asarray(np.exp(self.deviations @ powers), dtype=np.float64)

    def columns(self, names: Sequence[str]) -> FloatArray:
        return self.x[:, [self.names.index(name) for name in names]]

    def identified(self) -> tuple[tuple[str, ...], dict[str, str]]:
        kept, folded = identified(self.x / self.seconds[:, None], self.names)
        return tuple(self.names[i] for i in kept), folded

    def solve(
        self, names: Sequence[str], where: FloatArray, start: FloatArray | None = None
    ) -> tuple[RobustFit, FloatArray]:
        """Coefficients at the reference's speed, and the powers by which times go with the probe's readings.

        ``start``: powers of nearly the same points, from which one round is enough.
        """
        x, seconds = self.columns(names)[where], self.seconds[where]
        steps = self.points["steps"].to_numpy(np.float64)[where]
        deviations = self.deviations[where]
        powers = np.zeros(deviations.shape[1]) if start is None else start
        fit = robust_fit(x, seconds / np.exp(deviations @ powers), steps)
        for _ in range((_SPEED_ROUNDS if start is None else 1) if len(powers) else 0):
            kept = ~fit.outliers
            fitted = x[kept] @ fit.coefficients
            shares = (x[kept] * fit.coefficients)[:, fit.coefficients > 0.0] / fitted[:, None]
            powers = exponents(deviations[kept], np.log(seconds[kept] / fitted), steps[kept], shares)
            fit = robust_fit(x, seconds / np.exp(deviations @ powers), steps, start=fit)
        return fit, powers


def _held_out(data: _Data, names: tuple[str, ...], start: FloatArray) -> tuple[tuple[HeldOut, ...], Errors]:
    points, x = data.points, data.columns(names)
    fitted = np.full(len(points), np.nan)
    found = []
    for number in points["number"].unique():
        own = (points["number"] == number).to_numpy()
        kind = points.loc[own, "kind"].iloc[0]
        whole = bool((points.loc[~own, "kind"] == kind).any())
        out = own if whole else own & (points["stretch"] % 4 == 3).to_numpy()
        fit, powers = data.solve(names, ~out, start)
        fitted[out] = x[out] @ fit.coefficients * data.slowness(powers)[out]
        label = str(points.loc[own, "label"].iloc[0])
        found.append(HeldOut(label, whole, Errors.of(fitted[out], points[out])))
    seen = ~np.isnan(fitted)
    return tuple(found), Errors.of(fitted[seen], points[seen])


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


def _basis(tokens: FloatArray, knots: tuple[int, ...]) -> pd.DataFrame:
    """Share of each stretch of the curve that a step's rows have climbed."""
    return pd.DataFrame(
        {f"rows_{b}": np.clip((tokens - a) / (b - a), 0.0, 1.0) for a, b in pairwise(knots)},
        index=range(len(tokens)),
    )


def _names(knots: tuple[int, ...]) -> tuple[str, ...]:
    """All coefficients, the most wanted first: of two that move together the first is fitted."""
    return ("fixed_s", *(f"rows_{b}" for _, b in pairwise(knots)), *TARGET, *DRAFT, *SEARCH)


def _is_curve(name: str) -> bool:
    return name.startswith("rows_")


def _design(points: pd.DataFrame, method: str, knots: Sequence[float]) -> tuple[tuple[str, ...], FloatArray]:
    """Names and columns of the coefficients that a run with this method has."""
    columns = {"fixed_s": "steps", **{f"rows_{b:.0f}": f"rows_{b:.0f}" for _, b in pairwise(knots)}, **TARGET}
    columns |= DRAFT if method in DRAFTERS else SEARCH if method in SEARCHES else {}
    return tuple(columns), points[list(columns.values())].to_numpy(np.float64)


def _curve(knots: tuple[int, ...], values: dict[str, float]) -> tuple[tuple[float, float], ...]:
    points = [(float(knots[0]), 0.0)]
    for knot in knots[1:]:
        points.append((float(knot), points[-1][1] + values.get(f"rows_{knot}", 0.0)))
    return tuple(points)


def _increments(rows: tuple[tuple[float, float], ...]) -> dict[str, float]:
    return {f"rows_{b:.0f}": after - before for (_, before), (b, after) in pairwise(rows)}


def errors_text(errors: Errors) -> str:
    """In a line: median, p90 and bias; a dash where nothing was held out."""
    if not errors.points or math.isnan(errors.median):
        return "-"
    return f"median {errors.median:.1%}, p90 {errors.p90:.1%}, bias {errors.bias:+.1%}"
