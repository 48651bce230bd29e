"""The regression behind `draftcast.calibration.engine_log.fit`: points in, coefficients, intervals and errors out.

A point is a step or a block of steps with its time; its features are sums over it. Points lie in stretches of
neighbouring time, the unit that is held out and resampled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from draftcast.calibration.profile.robust_fit import MAD_TO_STD, FloatArray, RobustFit, identified, robust_fit
from draftcast.errors import InputError

TARGET = {"fixed_s": "steps", "row_s": "rows", "kv_token_s": "kv_tokens", "sequence_s": "sequences"}
"""Target coefficients and what they multiply, the most wanted first: of two that move together the first is fitted."""
DRAFT = {
    "draft_pass_s": "passes_made",
    "draft_token_s": "drafts_made",
    "draft_kv_token_s": "draft_kv_tokens",
    "draft_fixed_s": "draft_steps",
}
"""The same for a drafting model; the columns are 0 where none runs. A log of one k cannot tell passes from fixed
seconds: passes are wanted first, the cost then grows with k as the number of passes does."""
FRACTION = "ngram_fraction"
"""Text search: seconds as a fraction of the target's."""

LEAST_POINTS = 40
_MOST_STRETCHES = 40
_POINTS_PER_STRETCH = 15


@dataclass(frozen=True)
class Coefficient:
    """A fitted value with its bootstrap interval.

    Attributes:
        value, low, high: seconds per unit; the interval is NaN when no bootstrap was asked for.
        standing: ``identified``; ``weak``: the interval reaches 0 or is wider than the value; or why it was not fitted
            and where its cost went. One that was not fitted is 0.
    """

    value: float
    low: float
    high: float
    standing: str


@dataclass(frozen=True)
class Errors:
    """Relative errors ``|fitted / measured - 1|`` of held-out points.

    Attributes:
        points: how many; the others are NaN when there is none.
        median, p90, worst: of the errors.
        bias: median of ``fitted / measured - 1``, signed.
        worst_point: file and line of the log that end the worst point.
    """

    points: int
    median: float
    p90: float
    worst: float
    bias: float
    worst_point: str

    @classmethod
    def of(cls, fitted: FloatArray, points: pd.DataFrame) -> Errors:
        if not len(points):
            return cls(0, math.nan, math.nan, math.nan, math.nan, "")
        ratio = fitted / points["seconds"].to_numpy() - 1.0
        size = np.abs(ratio)
        at = int(np.argmax(size))
        median, p90 = (float(q) for q in np.quantile(size, (0.5, 0.9)))
        end = points.iloc[at]
        where = f"{end['source']}:{end['line']}"
        return cls(len(points), median, p90, float(size[at]), float(np.median(ratio)), where)


@dataclass(frozen=True)
class Fit:
    """One set of coefficients.

    Attributes:
        coefficients: by name, of `TARGET`, then those of `DRAFT`, or `FRACTION`, where there is a speculative log.
        held_out: errors by kind of point: ``all``, ``decode`` (no prompt tokens), ``prompts``, ``speculative`` (the
            second log).
        outlier_points, outlier_seconds: share of the points that the fit sets aside, and of the time they hold.
        seconds_over_fit: measured over fitted time, outliers included: what the fit leaves out of the whole.
        drift: robust standard deviation, between stretches of time, of their median of measured over fitted time. Above
            the repeat error it is the machine that changed, or a cost the features do not hold.
    """

    coefficients: dict[str, Coefficient]
    held_out: dict[str, Errors]
    outlier_points: float
    outlier_seconds: float
    seconds_over_fit: float
    drift: float

    def value(self, name: str) -> float:
        """A coefficient; 0 where it was not fitted."""
        return self.coefficients[name].value if name in self.coefficients else 0.0


@dataclass(frozen=True)
class Resampling:
    """How errors and intervals are made: share of the stretches held out, bootstrap resamples, level, seed."""

    held_out: float
    bootstrap: int
    confidence: float
    seed: int

    def __post_init__(self) -> None:
        if not 0.0 < self.held_out <= 0.5:
            raise InputError("must be above 0 and at most 0.5", key="held_out", value=self.held_out)
        if self.bootstrap < 0:
            raise InputError("must be at least 0", key="bootstrap", value=self.bootstrap)
        if not 0.0 < self.confidence < 1.0:
            raise InputError("must be between 0 and 1", key="confidence", value=self.confidence)


def as_points(timed: list[pd.DataFrame]) -> pd.DataFrame:
    """Points of one log, or of one without and one with speculative decoding: columns of the regression, stretches.

    Raises:
        InputError: fewer than 40 points in a log.
    """
    parts = []
    first = 0
    for speculative, points in zip((False, True), timed, strict=False):
        if len(points) < LEAST_POINTS:
            source = str(points["source"].iloc[0]) if len(points) else None
            message = f"{len(points)} usable points are too few; at least {LEAST_POINTS} are needed"
            raise InputError(message, file=source)
        count = min(_MOST_STRETCHES, len(points) // _POINTS_PER_STRETCH + 2)
        parts.append(
            points.assign(
                speculative=speculative,
                draft_steps=points["steps"] * speculative,
                drafts_made=points["draft_tokens"] * speculative,
                passes_made=points["draft_passes"] * speculative,
                draft_kv_tokens=points["kv_tokens"] * speculative,
                stretch=first + np.arange(len(points)) * count // len(points),
            )
        )
        first += count
    return pd.concat(parts, ignore_index=True)


def regress(points: pd.DataFrame, names: tuple[str, ...], resampling: Resampling, host_fixed_s: float) -> Fit:
    """Fit ``names`` (of `TARGET` and `DRAFT`, and `FRACTION`) to ``points["seconds"]``.

    Args:
        host_fixed_s: host seconds of a step, which a text search's fraction does not apply to; NaN: not known.
    """
    linear = tuple(name for name in names if name != FRACTION)
    seconds = points["seconds"].to_numpy()
    folded: dict[str, str] = {}
    if points["kv_tokens"].isna().any():
        # `fit_engine_log` has dropped the points without KV tokens unless most of them are.
        folded = {name: "" for name in linear if "kv_token" in name}
        linear = tuple(name for name in linear if name not in folded)
    kept, moving = identified(_columns(points, linear) / seconds[:, None], linear)
    model = _Model(tuple(linear[i] for i in kept), FRACTION in names, host_fixed_s)
    solved = model.fit(points)
    draws = _bootstrap(points, model, solved, resampling)
    coefficients = {name: _coefficient(solved.values[name], draws.get(name)) for name in model.names}
    for name in (name for name in names if name not in coefficients):
        reason = "not fitted: the log does not give KV tokens" if name in folded else _moves(moving[name])
        coefficients[name] = Coefficient(0.0, math.nan, math.nan, reason)
    fitted = model.predict(points, solved.values)
    return Fit(
        {name: coefficients[name] for name in names},
        _held_out(points, model, resampling),
        float(solved.outliers.mean()),
        float(seconds[solved.outliers].sum() / seconds.sum()),
        float(seconds.sum() / fitted.sum()),
        _spread(pd.Series(seconds / fitted).groupby(points["stretch"].to_numpy()).median()),
    )


@dataclass(frozen=True)
class _Solved:
    values: dict[str, float]
    outliers: NDArray[np.bool_]
    fits: tuple[RobustFit, ...]


@dataclass(frozen=True)
class _Model:
    linear: tuple[str, ...]
    searches: bool
    host_fixed_s: float

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.linear, FRACTION) if self.searches else self.linear

    def fit(self, points: pd.DataFrame, start: _Solved | None = None) -> _Solved:
        """With a text search the target is fitted on the log without it, the fraction on the other."""
        starts: tuple[RobustFit | None, ...] = start.fits if start else (None, None)
        drafting = points["speculative"].to_numpy() & self.searches
        plain, rest = points[~drafting], points[drafting]
        first = self._solve(plain, _columns(plain, self.linear), None, starts[0])
        values = dict(zip(self.linear, first.coefficients.tolist(), strict=True))
        outliers = np.zeros(len(points), dtype=np.bool_)
        outliers[~drafting] = first.outliers
        if not self.searches:
            return _Solved(values, outliers, (first,))
        target = self._target(rest, values)
        second = self._solve(rest, self._searched(rest, values)[:, None], target, starts[1])
        outliers[drafting] = second.outliers
        return _Solved({**values, FRACTION: float(second.coefficients[0])}, outliers, (first, second))

    def predict(self, points: pd.DataFrame, values: dict[str, float]) -> FloatArray:
        """Seconds of each point."""
        seconds = self._target(points, values)
        if self.searches:
            seconds += values[FRACTION] * self._searched(points, values) * points["speculative"].to_numpy()
        return seconds

    def _target(self, points: pd.DataFrame, values: dict[str, float]) -> FloatArray:
        return np.asarray(_columns(points, self.linear) @ np.array([values[name] for name in self.linear]))

    def _searched(self, points: pd.DataFrame, values: dict[str, float]) -> FloatArray:
        """The seconds that the fraction is of: the target's without the host's."""
        host_s = min(self.host_fixed_s, values.get("fixed_s", 0.0)) if math.isfinite(self.host_fixed_s) else 0.0
        return self._target(points, values) - host_s * points["steps"].to_numpy()

    @staticmethod
    def _solve(points: pd.DataFrame, x: FloatArray, offset: FloatArray | None, start: RobustFit | None) -> RobustFit:
        steps = points["steps"].to_numpy(dtype=np.float64)
        return robust_fit(x, points["seconds"].to_numpy(), steps, offset=offset, start=start)


def _columns(points: pd.DataFrame, names: tuple[str, ...]) -> FloatArray:
    columns = TARGET | DRAFT
    return points[[columns[name] for name in names]].to_numpy(dtype=np.float64)


def _bootstrap(
    points: pd.DataFrame, model: _Model, solved: _Solved, resampling: Resampling
) -> dict[str, tuple[float, float]]:
    """Percentile intervals by name; stretches of each log are drawn with replacement."""
    if resampling.bootstrap == 0:
        return {}
    rng = np.random.default_rng(resampling.seed)
    members = [np.flatnonzero(points["stretch"] == s) for s in range(int(points["stretch"].max()) + 1)]
    logs = [points.loc[points["speculative"] == kind, "stretch"].unique() for kind in (False, True)]
    draws = []
    for _ in range(resampling.bootstrap):
        drawn = np.concatenate([rng.choice(log, len(log)) for log in logs if len(log)])
        values = model.fit(points.iloc[np.concatenate([members[s] for s in drawn])], solved).values
        draws.append([values[name] for name in model.names])
    tail = (1.0 - resampling.confidence) / 2.0
    low, high = np.quantile(np.array(draws), (tail, 1.0 - tail), axis=0)
    return {name: (float(low[i]), float(high[i])) for i, name in enumerate(model.names)}


def _held_out(points: pd.DataFrame, model: _Model, resampling: Resampling) -> dict[str, Errors]:
    # Every log gives its share, evenly spread over its time.
    order = points["stretch"] - points.groupby("speculative")["stretch"].transform("min")
    out = np.floor((order + 1) * resampling.held_out) > np.floor(order * resampling.held_out)
    rest = points[out]
    fitted = model.predict(rest, model.fit(points[~out]).values)
    prompts, speculative = rest["context_tokens"].to_numpy() > 0, rest["speculative"].to_numpy()
    kinds = {"all": np.full(len(rest), True), "decode": ~prompts, "prompts": prompts, "speculative": speculative}
    return {kind: Errors.of(fitted[chosen], rest[chosen]) for kind, chosen in kinds.items()}


def _spread(values: pd.Series[float]) -> float:
    return MAD_TO_STD * float((values - values.median()).abs().median())


def _coefficient(value: float, interval: tuple[float, float] | None) -> Coefficient:
    if interval is None:
        return Coefficient(value, math.nan, math.nan, "identified" if value > 0.0 else "weak")
    low, high = interval
    return Coefficient(value, low, high, "identified" if low > 0.0 and high - low <= value else "weak")


def _moves(other: str) -> str:
    return f"not fitted: moves with {other}, which carries it" if other else "not fitted: nothing to multiply"
