"""The estimator of step times, of iteration logs and of live runs alike: points in, coefficients and errors out.

A point is a step or a block of steps with its time; its features are sums over it. Coefficients are seconds per unit,
at least zero. Times of a shared machine err by a share of themselves and now and then by far more, upwards only, so
residuals are taken relative to the prediction, first with a soft-L1 loss (scipy's ``2 (sqrt(1 + z) - 1)``, weights
``1 / sqrt(1 + (r/s)^2)``), then, with the scale s of that fit, with Tukey's biweight, under which a gross outlier
weighs nothing (an M-estimate from a high-breakdown start; Maronna, Martin, Yohai, Robust Statistics, ch. 5). Errors are
of points that took no part in a fit. Neighbouring steps are alike: stretches of time are held out and resampled, never
single steps.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from draftcast.kernels.arrays import BoolArray, FloatArray
from draftcast.yaml_text import yaml_beside

_BIWEIGHT = 4.685  # 95 % efficient for normal errors
MAD_TO_STD = 1.4826  # median absolute deviation to standard deviation, for normal errors
_SOFT_ROUNDS = 25
_BIWEIGHT_ROUNDS = 15
_LEAST_OF_ITS_OWN = 0.05  # share of a column's norm that is left when the kept columns are taken out of it
_EXACT = 1e-9  # residuals of a noiseless table are rounding errors; they are not a scale


@dataclass(frozen=True)
class RobustFit:
    """``prediction = offset + X @ coefficients``."""

    coefficients: FloatArray  # >= 0, shape (columns,)
    scale: float  # robust standard deviation of the relative residual of one step
    outliers: BoolArray  # rows that weigh nothing, shape (rows,)


def robust_fit(
    x: FloatArray, y: FloatArray, steps: FloatArray, *, offset: FloatArray | float = 0.0, start: RobustFit | None = None
) -> RobustFit:
    """Coefficients >= 0 for times ``y`` (> 0); ``x``: shape (rows, columns).

    ``steps``: steps a row sums over; its relative error is that much smaller (square root). ``offset``: known part of
    the prediction. ``start``: a fit of nearly the same rows: only its biweight rounds are repeated, with its scale.
    """
    root = np.sqrt(steps)

    def residuals(coefficients: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The size that they are relative to, and they."""
        predicted = offset + x @ coefficients
        size = np.maximum(predicted, 1e-3 * y)
        return size, (y - predicted) / size * root

    if start is not None:
        coefficients, scale = start.coefficients, start.scale
    else:
        coefficients, scale = _nnls(x, y - offset, root / y), 0.0
        for _ in range(_SOFT_ROUNDS):
            size, residual = residuals(coefficients)
            scale = MAD_TO_STD * float(np.median(np.abs(residual)))
            if scale <= _EXACT:
                break
            coefficients = _nnls(x, y - offset, root / size / (1.0 + (residual / scale) ** 2) ** 0.25)
    beyond = _BIWEIGHT * max(scale, _EXACT)
    for _ in range(_BIWEIGHT_ROUNDS):
        size, residual = residuals(coefficients)
        weight = np.maximum(1.0 - (residual / beyond) ** 2, 0.0)
        coefficients = _nnls(x, y - offset, root / size * weight)
    _, residual = residuals(coefficients)
    return RobustFit(coefficients, scale, np.abs(residual) >= beyond)


def _nnls(x: FloatArray, y: FloatArray, weight: FloatArray) -> FloatArray:
    """Weighted non-negative least squares. QR first: the rows are many, the columns few and of very unlike size."""
    a = x * weight[:, None]
    norm = np.linalg.norm(a, axis=0)
    norm[norm == 0.0] = 1.0
    r: FloatArray = np.asarray(np.linalg.qr(np.column_stack([a / norm, y * weight]), mode="r"))
    return np.asarray(nnls(r[:, :-1], r[:, -1])[0] / norm, dtype=np.float64)


DRAFTERS = ("draft_model", "eagle", "eagle3", "mtp")  # methods that make a pass of a drafting model per draft token
SEARCHES = ("ngram", "ngram_gpu", "suffix")  # methods that draft by text search
LEAST_POINTS = 40


@dataclass(frozen=True)
class Regression:
    """Points, the columns that their coefficients multiply, and the fit to all of them."""

    points: pd.DataFrame  # ``seconds``, ``steps``, ``source``, ``line`` and whatever the caller needs beside them
    names: tuple[str, ...]  # the coefficients that are fitted
    x: FloatArray  # their columns, shape (points, names)
    folded: dict[str, str]  # by name of one that is not fitted, the fitted one it moves with; "" where it multiplies 0
    fit: RobustFit
    outlier_points: float  # share of the points that the fit sets aside
    outlier_seconds: float  # share of the time
    seconds_over_fit: float  # measured over fitted time, outliers included: what the fit leaves out of the whole

    @classmethod
    def of(cls, points: pd.DataFrame, columns: pd.DataFrame) -> Self:
        """Fit ``columns``, the most wanted first, which say something that the columns before them do not."""
        fitted: list[str] = []
        folded: dict[str, str] = {}
        relative = columns.div(points["seconds"].to_numpy(), axis=0)
        norms = np.linalg.norm(relative, axis=0)
        unit = relative.div(np.where(norms > 0.0, norms, 1.0), axis=1)
        for name, norm in zip(map(str, columns), norms, strict=True):
            column, basis = unit[name].to_numpy(), unit[fitted].to_numpy()
            rest = column - basis @ np.linalg.lstsq(basis, column, rcond=None)[0] if fitted else column
            if norm == 0.0:
                folded[name] = ""
            elif np.linalg.norm(rest) >= _LEAST_OF_ITS_OWN:
                fitted.append(name)
            else:
                folded[name] = fitted[int(np.argmax(np.abs(basis.T @ column)))]
        x = columns[fitted].to_numpy(np.float64)
        fit, seconds = _solve(points, x), points["seconds"].to_numpy()
        aside = float(fit.outliers.mean()), float(seconds[fit.outliers].sum() / seconds.sum())
        return cls(points, tuple(fitted), x, folded, fit, *aside, float(seconds.sum() / (x @ fit.coefficients).sum()))

    @property
    def values(self) -> dict[str, float]:
        """Coefficients by name; those that are not fitted are 0."""
        return dict(zip(self.names, self.fit.coefficients.tolist(), strict=True)) | dict.fromkeys(self.folded, 0.0)

    def predicted_by_others(self, held_out: Iterable[BoolArray]) -> FloatArray:
        """Seconds of the points of each set by a fit to all points outside of it; NaN for points of no set."""
        predicted = np.full(len(self.points), np.nan)
        for out in held_out:
            predicted[out] = self.x[out] @ _solve(self.points[~out], self.x[~out]).coefficients
        return predicted

    def intervals(self, count: int, confidence: float, seed: int) -> dict[str, tuple[float, float]]:
        """Percentile intervals by name from ``count`` bootstrap resamples of the stretches of each log; none for 0."""
        if count == 0:
            return {}
        rng = np.random.default_rng(seed)
        members = [np.flatnonzero(self.points["stretch"] == s) for s in range(int(self.points["stretch"].max()) + 1)]
        groups = [group["stretch"].unique() for _, group in self.points.groupby("speculative")]
        draws = []
        for _ in range(count):
            drawn = np.concatenate([rng.choice(stretches, len(stretches)) for stretches in groups])
            rows = np.concatenate([members[stretch] for stretch in drawn])
            draws.append(_solve(self.points.iloc[rows], self.x[rows], self.fit).coefficients)
        tail = (1.0 - confidence) / 2.0
        low, high = np.quantile(np.array(draws), (tail, 1.0 - tail), axis=0)
        return {name: (float(low[i]), float(high[i])) for i, name in enumerate(self.names)}


def _solve(points: pd.DataFrame, x: FloatArray, start: RobustFit | None = None) -> RobustFit:
    return robust_fit(x, points["seconds"].to_numpy(), points["steps"].to_numpy(np.float64), start=start)


TERMS: dict[str, dict[str, dict[str, str]]] = yaml_beside(__file__, "terms.yaml")
"""By fit (``log`` or ``live``) and part of a step, the coefficients and the columns that they multiply."""


def design(points: pd.DataFrame, method: str, terms: Mapping[str, Mapping[str, str]]) -> pd.DataFrame:
    """Columns of the coefficients that points of a server with this method have, by the coefficients' names.

    ``method``: how the server drafts; "" without speculative decoding. ``terms``: as in one fit of `TERMS`.
    """
    drafting = terms["search" if method in SEARCHES else "draft"] if method else {}
    columns = {**terms["target"], **drafting}
    return points[list(columns.values())].set_axis(list(columns), axis="columns").astype(np.float64)
