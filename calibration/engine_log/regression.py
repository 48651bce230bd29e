"""The estimator of step times, of iteration logs and of live runs alike: points in, coefficients and errors out.

A point is a step or a block of steps with its time; its features are sums over it. Coefficients are seconds per unit,
at least zero, fitted robustly to relative errors (`draftcast.calibration.profile.robust_fit`). Errors are of points
that took no part in a fit. Neighbouring steps are alike: stretches of time are held out and resampled, never single
steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from draftcast.calibration.profile.robust_fit import FloatArray, RobustFit, identified, robust_fit

DRAFTERS = ("draft_model", "eagle", "eagle3", "mtp")
"""Methods whose drafting an affine profile can hold: one pass of a drafting model per draft token."""
SEARCHES = ("ngram", "ngram_gpu", "suffix")
"""Methods that draft by text search."""
LEAST_POINTS = 40

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class Errors:
    """Relative errors ``|fitted / measured - 1|`` of held-out points."""

    points: int  # how many; the others are NaN when there is none
    # median, p90, worst: of the errors
    median: float
    p90: float
    worst: float
    bias: float  # median of ``fitted / measured - 1``, signed
    worst_point: str = ""  # file and line of the log that end the worst point

    @classmethod
    def of(cls, fitted: FloatArray, points: pd.DataFrame) -> Errors:
        if not len(points):
            return cls(0, math.nan, math.nan, math.nan, math.nan, "")
        ratio = fitted / points["seconds"].to_numpy() - 1.0
        size = np.abs(ratio)
        worst = int(np.argmax(size))
        median, p90 = (float(q) for q in np.quantile(size, (0.5, 0.9)))
        end = points.iloc[worst]
        where = f"{end['source']}:{end['line']}"
        return cls(len(points), median, p90, float(size[worst]), float(np.median(ratio)), where)

    def __str__(self) -> str:
        """In a line: median, p90 and bias; a dash where nothing was held out."""
        if not self.points or math.isnan(self.median):
            return "-"
        return f"median {self.median:.1%}, p90 {self.p90:.1%}, bias {self.bias:+.1%}"


@dataclass(frozen=True)
class Regression:
    """Points, the columns that their coefficients multiply, and the fit to all of them."""

    points: pd.DataFrame  # ``seconds``, ``steps``, ``source``, ``line`` and whatever the caller needs beside them
    names: tuple[str, ...]  # the coefficients that are fitted
    x: FloatArray  # their columns, shape (points, names)
    folded: dict[str, str]  # by name of one that is not fitted, the fitted one it moves with; "" where it multiplies 0
    fit: RobustFit

    @classmethod
    def of(cls, points: pd.DataFrame, columns: pd.DataFrame) -> Regression:
        """Fit ``columns``, the most wanted first: of two that move together only the first is fitted."""
        x = columns.to_numpy(np.float64)
        kept, folded = identified(x / points["seconds"].to_numpy()[:, None], tuple(map(str, columns)))
        x = x[:, kept]
        names = tuple(columns.columns[kept])
        return cls(points, names, x, folded, _solve(points, x))

    @property
    def values(self) -> dict[str, float]:
        """Coefficients by name; those that are not fitted are 0."""
        return dict(zip(self.names, self.fit.coefficients.tolist(), strict=True)) | dict.fromkeys(self.folded, 0.0)

    @property
    def ratio(self) -> FloatArray:
        """Measured over fitted seconds of each point."""
        return np.asarray(self.points["seconds"].to_numpy() / (self.x @ self.fit.coefficients))

    @property
    def outlier_points(self) -> float:
        """Share of the points that the fit sets aside."""
        return float(self.fit.outliers.mean())

    @property
    def outlier_seconds(self) -> float:
        """Share of the time that those points hold."""
        seconds = self.points["seconds"].to_numpy()
        return float(seconds[self.fit.outliers].sum() / seconds.sum())

    @property
    def seconds_over_fit(self) -> float:
        """Measured over fitted time, outliers included: what the fit leaves out of the whole."""
        return float(self.points["seconds"].sum() / (self.x @ self.fit.coefficients).sum())

    def predicted_by_others(self, held_out: Iterable[BoolArray]) -> FloatArray:
        """Seconds of the points of each set by a fit to all points outside of it; NaN for points of no set."""
        predicted = np.full(len(self.points), np.nan)
        for out in held_out:
            predicted[out] = self.x[out] @ _solve(self.points[~out], self.x[~out]).coefficients
        return predicted

    def intervals(self, strata: str, count: int, confidence: float, seed: int) -> dict[str, tuple[float, float]]:
        """Percentile intervals by name from ``count`` bootstrap resamples; none for 0.

        Args:
            strata: column of the points; the stretches (column ``stretch``) of each are drawn with replacement.
        """
        if count == 0:
            return {}
        rng = np.random.default_rng(seed)
        members = [np.flatnonzero(self.points["stretch"] == s) for s in range(int(self.points["stretch"].max()) + 1)]
        groups = [group["stretch"].unique() for _, group in self.points.groupby(strata)]
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


def design(
    points: pd.DataFrame, method: str, target: Mapping[str, str], draft: Mapping[str, str], search: Mapping[str, str]
) -> pd.DataFrame:
    """Columns of the coefficients that points of a server with this method have, by the coefficients' names.

    Args:
        method: how the server drafts; "" without speculative decoding.
        target, draft, search: by coefficient, the column of the points that it multiplies.
    """
    terms = {**target, **(search if method in SEARCHES else draft if method else {})}
    return points[list(terms.values())].set_axis(list(terms), axis="columns").astype(np.float64)
