"""Step coefficients from an iteration log: ``fixed + row * rows + kv * KV tokens + sequence * sequences``.

Rows are all scheduled rows (prompt tokens and drafts to verify included), KV tokens stand in the cache before the
step, sequences are the requests in it: the features of an affine profile. A second log, of the same server with
speculative decoding, adds what drafting costs: with a model ``fixed + pass * passes + token * drafts made + kv * KV
tokens``, with text search ``step + sequence * sequences + token * KV tokens``. Errors are of stretches of every log.
"""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from draftcast.calibration.engine_log.regression import LEAST_POINTS, MAD_TO_STD, TERMS, Regression, design
from draftcast.calibration.engine_log.steps import Clock, TimedSteps, timed_steps, with_kv_tokens
from draftcast.calibration.profile.roofline_fit import FitErrors
from draftcast.errors import InputError
from draftcast.files import picked, plain

_SPECULATIVE_SHARE = 0.02  # without speculation a resumed request may look as if it verified drafts now and then
_MOST_KV_UNKNOWN = 0.5  # points without KV tokens are dropped where fewer in every log; else they are not fitted
_MOST_STRETCHES = 40
_POINTS_PER_STRETCH = 15


@dataclass(frozen=True)
class Coefficient:
    value: float  # seconds per unit; 0 where it was not fitted
    low: float  # of its interval; NaN, as high, when no bootstrap was asked for
    high: float
    standing: str  # identified; weak: the interval reaches 0 or is wider than the value; or why it was not fitted


@dataclass(frozen=True)
class StepTimeFit:
    coefficients: dict[str, Coefficient]  # by name, of `TERMS`: the target's, then those of drafting or search, if any
    held_out: dict[str, FitErrors]  # by kind: all, decode (no prompt tokens), prompts, speculative (the second log)
    outlier_points: float  # this and the next two: see `Regression`
    outlier_seconds: float
    seconds_over_fit: float
    # Robust standard deviation, between stretches of time, of their median of measured over fitted time. Above the
    # repeat error it is the machine that changed, or a cost the features do not hold.
    drift: float


@dataclass(frozen=True)
class FitOptions:
    """How logs are fitted. Raises InputError: a value out of range."""

    method: str | None = None  # of the speculative log, where that begins after the server said so
    clock: Clock = "auto"  # see `timed_steps`
    warmup_steps: int = 10  # see `timed_steps`
    held_out: float = 0.25  # share of the stretches of time kept from the fit behind the errors; coefficients see all
    bootstrap: int = 200  # resamples of the stretches behind the intervals; 0: none
    confidence: float = 0.95  # level of the intervals
    seed: int = 0
    kv_capacity_tokens: float | None = None  # see `with_kv_tokens`
    block_size: int | None = None  # see `with_kv_tokens`

    def __post_init__(self) -> None:
        capacity, size = self.kv_capacity_tokens, self.block_size
        for key, allowed, holds in (
            ("held_out", "above 0 and at most 0.5", 0.0 < self.held_out <= 0.5),
            ("bootstrap", "at least 0", self.bootstrap >= 0),
            ("confidence", "between 0 and 1", 0.0 < self.confidence < 1.0),
            ("warmup_steps", "at least 0", self.warmup_steps >= 0),
            ("kv_capacity_tokens", "at least 1", capacity is None or 1 <= capacity < math.inf),
            ("block_size", "at least 1", size is None or size >= 1),
        ):
            if not holds:
                raise InputError(f"must be {allowed}", key=key, value=getattr(self, key))


@dataclass(frozen=True)
class EngineLogFit:
    regression: StepTimeFit  # the coefficients, as an affine profile takes them, and their errors
    clock: str  # ``wall`` (stamps) or ``elapsed`` (the log's figure, plus the host's seconds where they are known)
    host_fixed_s: float  # seconds of a step outside ``elapsed``, in the coefficients already; NaN: the log cannot say
    host_sequence_s: float  # the same by sequence
    elapsed_share: float  # elapsed over wall time, NaN where no wall time is known
    # Median relative difference of successive points alike in rows and sequences, over sqrt(2): about the held-out
    # median error of a perfect fit
    repeat_error: float
    steps: int  # used
    points: int  # that they were taken together to
    left_out: dict[str, int]  # steps not used, by reason
    sequences: tuple[int, int]  # smallest and largest number of requests in a step
    method: str  # of the second log; "" without one
    num_speculative_tokens: tuple[int, ...]  # every k in the second log
    speculative: bool  # the only log is of a server with speculative decoding: drafting is in the target's coefficients
    enforce_eager: bool | None  # what the server was started with; None where no log says so
    sources: tuple[str, ...]  # files
    versions: tuple[str, ...]  # of vLLM, that the files name

    @property
    def overhead_s(self) -> float:
        """Seconds of every step outside ``elapsed``, at most the fixed ones; 0 where not known."""
        fixed_s = self.regression.coefficients["fixed_s"].value
        return min(self.host_fixed_s, fixed_s) if math.isfinite(self.host_fixed_s) else 0.0

    def report(self) -> dict[str, Any]:
        """Plain data for JSON; None for what is not known."""
        return {**plain(self), "overhead_s": self.overhead_s}


def fit_engine_log(
    frame: pd.DataFrame, speculative_frame: pd.DataFrame | None = None, options: FitOptions = FitOptions()
) -> EngineLogFit:
    """Fit the step time of one server. Raises InputError: too few usable steps, logs that do not belong together.

    ``frame``: of `read_engine_log`, or several concatenated; without speculative decoding where there is a second.
    ``speculative_frame``: the same server with speculative decoding.
    """
    frames = [frame] if speculative_frame is None else [frame, speculative_frame]
    drafts_with = "" if speculative_frame is None else _method(frame, speculative_frame, options.method)
    num_drafts = [] if speculative_frame is None else sorted(speculative_frame["num_speculative_tokens"].unique())
    timed: list[TimedSteps] = []
    for logged in frames:
        with_kv = with_kv_tokens(logged, options.kv_capacity_tokens, options.block_size)
        # One clock for both logs, or the difference of the clocks would pass for drafting.
        timed.append(timed_steps(with_kv, timed[0].clock if timed else options.clock, options.warmup_steps))
    points = _points([part.points for part in timed])
    left_out = sum((Counter(part.left_out) for part in timed), Counter[str]())
    unknown = points["kv_tokens"].isna()
    if unknown.any() and unknown.groupby(points["speculative"]).mean().max() < _MOST_KV_UNKNOWN:
        left_out["KV tokens not known"] = int(points.loc[unknown, "steps"].sum())
        points = points[~unknown].reset_index(drop=True)
    per_step, logs = points["sequences"] / points["steps"], pd.concat(frames)
    by_log = points.groupby("speculative")
    columns = pd.concat(design(part, drafts_with if second else "", TERMS["log"]) for second, part in by_log)
    names = tuple(map(str, columns))
    if points["kv_tokens"].isna().any():
        of_kv = {name for part in TERMS["log"].values() for name, column in part.items() if column == "kv_tokens"}
        columns = columns.drop(columns=[name for name in names if name in of_kv])
    regression = Regression.of(points, columns.fillna(0.0))
    intervals = regression.intervals(options.bootstrap, options.confidence, options.seed)
    ratio = points["seconds"] / (regression.x @ regression.fit.coefficients)
    stretch_ratios = ratio.groupby(points["stretch"]).median()
    return EngineLogFit(
        regression=StepTimeFit(
            coefficients={name: _coefficient(regression, name, intervals.get(name)) for name in names},
            held_out=_held_out(regression, options.held_out),
            **picked(regression, "outlier_points outlier_seconds seconds_over_fit"),
            drift=MAD_TO_STD * float((stretch_ratios - stretch_ratios.median()).abs().median()),
        ),
        clock=timed[0].clock,
        host_fixed_s=timed[0].host_s[0],
        host_sequence_s=timed[0].host_s[1],
        elapsed_share=timed[0].elapsed_share,
        repeat_error=_repeat_error(points[~points["speculative"]]),
        steps=int(points["steps"].sum()),
        points=len(points),
        left_out=dict(left_out),
        sequences=(math.floor(per_step.min()), math.ceil(per_step.max())),
        method=drafts_with,
        num_speculative_tokens=tuple(map(int, num_drafts)),
        speculative=speculative_frame is None and is_speculative(frame),
        enforce_eager=_enforce_eager(logs),
        sources=tuple(map(str, logs["source"].unique())),
        versions=tuple(str(version) for version in logs["version"].unique() if version),
    )


def _points(timed: list[pd.DataFrame]) -> pd.DataFrame:
    """Points of one log, or of one without and one with speculative decoding; ``stretch`` numbers stretches of time."""
    parts, first = [], 0
    for speculative, points in zip((False, True), timed, strict=False):
        if len(points) < LEAST_POINTS:
            source = str(points["source"].iloc[0]) if len(points) else None
            message = f"{len(points)} usable points are too few; at least {LEAST_POINTS} are needed"
            raise InputError(message, file=source)
        count = min(_MOST_STRETCHES, len(points) // _POINTS_PER_STRETCH + 2)
        stretch = first + np.arange(len(points)) * count // len(points)
        parts.append(points.assign(speculative=speculative, stretch=stretch))
        first += count
    return pd.concat(parts, ignore_index=True)


def _held_out(regression: Regression, share: float) -> dict[str, FitErrors]:
    """Errors of stretches that every log gives, evenly spread over its time."""
    points = regression.points
    order = points["stretch"] - points.groupby("speculative")["stretch"].transform("min")
    out = (np.floor((order + 1) * share) > np.floor(order * share)).to_numpy()
    fitted = regression.predicted_by_others([out])
    prompts, speculative = points["context_tokens"].to_numpy() > 0, points["speculative"].to_numpy()
    kinds = {"all": out, "decode": out & ~prompts, "prompts": out & prompts, "speculative": out & speculative}
    return {kind: FitErrors.of(fitted[chosen], points[chosen]) for kind, chosen in kinds.items()}


def _coefficient(regression: Regression, name: str, interval: tuple[float, float] | None) -> Coefficient:
    if name not in regression.names:
        reasons = {None: "the log does not give KV tokens", "": "nothing to multiply"}
        other = regression.folded.get(name)
        reason = reasons.get(other, f"moves with {other}, which carries it")
        return Coefficient(0.0, math.nan, math.nan, f"not fitted: {reason}")
    value, (low, high) = regression.values[name], interval or (math.nan, math.nan)
    identified = value > 0.0 if interval is None else low > 0.0 and high - low <= value
    return Coefficient(value, low, high, "identified" if identified else "weak")


def is_speculative(frame: pd.DataFrame) -> bool:
    """Whether the steps verify drafts: more generation tokens than requests."""
    generation = frame[frame["generation_requests"] > 0]
    more = generation["generation_tokens"] > generation["generation_requests"]
    return bool(more.mean() > _SPECULATIVE_SHARE)


def _method(frame: pd.DataFrame, speculative_frame: pd.DataFrame, method: str | None) -> str:
    """The second log's method, the pair checked."""
    plain, drafting = str(frame["source"].iloc[0]), str(speculative_frame["source"].iloc[0])
    if is_speculative(frame):
        raise InputError("its steps verify drafts; the first log must be without speculative decoding", file=plain)
    if not is_speculative(speculative_frame):
        raise InputError("its steps verify no drafts; the second log must be with speculative decoding", file=drafting)
    logged = sorted(set(speculative_frame["method"]) - {"", "?"})
    if len(logged) > 1 or (logged and method not in (None, logged[0])):
        raise InputError(f"the log is of {', '.join(logged)}", file=drafting, key="method", value=method)
    if not logged and method is None:
        raise InputError("required: the log begins after the server named it", file=drafting, key="method")
    return logged[0] if logged else str(method)


def _enforce_eager(logs: pd.DataFrame) -> bool | None:
    """What every log that names it says."""
    rows = logs[["source", "enforce_eager"]].dropna(subset="enforce_eager")
    if rows.empty:
        return None
    named = bool(rows["enforce_eager"].iloc[0])
    for source in rows.loc[rows["enforce_eager"] != named, "source"]:
        message = f"the logs differ: the others are of a server with {named}"
        raise InputError(message, file=str(source), key="enforce_eager", value=not named)
    return named


def _repeat_error(points: pd.DataFrame) -> float:
    features = points[["run", "steps", "rows", "sequences"]].to_numpy(dtype=np.float64)
    alike = (np.diff(features, axis=0) == 0.0).all(axis=1)
    seconds = points["seconds"].to_numpy()
    change = np.abs(np.diff(seconds)) / np.minimum(seconds[1:], seconds[:-1])
    return float(np.median(change[alike]) / math.sqrt(2.0)) if alike.any() else math.nan
