"""Least squares for times: relative errors, coefficients of at least zero, outliers that do not pull.

Times of a shared machine err by a share of themselves and now and then by far more, upwards only. So residuals are
taken relative to the prediction, first with a soft-L1 loss (scipy's ``2 (sqrt(1 + z) - 1)``, weights
``1 / sqrt(1 + (r/s)^2)``), then, with the scale s of that fit, with Tukey's biweight, under which a gross outlier
weighs nothing (an M-estimate from a high-breakdown start; Maronna, Martin, Yohai, Robust Statistics, ch. 5).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

FloatArray = NDArray[np.float64]

# 95 % efficient for normal errors.
_BIWEIGHT = 4.685
# Median absolute deviation to standard deviation, for normal errors.
MAD_TO_STD = 1.4826
_SOFT_ROUNDS = 25
_BIWEIGHT_ROUNDS = 15
# Residuals of a noiseless table are rounding errors; they are not a scale.
LEAST_OF_ITS_OWN = 0.05  # share of a column's norm that is left when the kept columns are taken out of it
_EXACT = 1e-9


@dataclass(frozen=True)
class RobustFit:
    """``prediction = offset + X @ coefficients``."""

    coefficients: FloatArray  # >= 0, shape (columns,)
    scale: float  # robust standard deviation of the relative residual of one step
    outliers: NDArray[np.bool_]  # rows that weigh nothing, shape (rows,)


def robust_fit(
    x: FloatArray,
    y: FloatArray,
    steps: FloatArray,
    *,
    offset: FloatArray | None = None,
    start: RobustFit | None = None,
) -> RobustFit:
    """Coefficients >= 0 for times ``y`` (> 0).

    Args:
        x: shape (rows, columns).
        steps: steps a row sums over; its relative error is that much smaller (square root).
        offset: known part of the prediction.
        start: a fit of nearly the same rows: only its biweight rounds are repeated, with its scale.
    """
    known = np.zeros_like(y) if offset is None else offset
    if x.shape[1] == 0:
        return RobustFit(np.zeros(0), 0.0, np.zeros(len(y), dtype=np.bool_))
    root = np.sqrt(steps)
    coefficients = _nnls(x, y - known, root / y) if start is None else start.coefficients
    scale = 0.0 if start is None else start.scale
    if start is None:
        for _ in range(_SOFT_ROUNDS):
            size, residual = _residuals(x, y, known, root, coefficients)
            scale = MAD_TO_STD * float(np.median(np.abs(residual)))
            if scale <= _EXACT:
                break
            coefficients = _nnls(x, y - known, root / size / (1.0 + (residual / scale) ** 2) ** 0.25)
    for _ in range(_BIWEIGHT_ROUNDS):
        size, residual = _residuals(x, y, known, root, coefficients)
        weight = np.maximum(1.0 - (residual / (_BIWEIGHT * max(scale, _EXACT))) ** 2, 0.0)
        coefficients = _nnls(x, y - known, root / size * weight)
    _, residual = _residuals(x, y, known, root, coefficients)
    return RobustFit(coefficients, scale, np.abs(residual) >= _BIWEIGHT * max(scale, _EXACT))


def _residuals(
    x: FloatArray, y: FloatArray, known: FloatArray, root: FloatArray, coefficients: FloatArray
) -> tuple[FloatArray, FloatArray]:
    predicted = known + x @ coefficients
    size = np.maximum(predicted, 1e-3 * y)
    return size, (y - predicted) / size * root


def _nnls(x: FloatArray, y: FloatArray, weight: FloatArray) -> FloatArray:
    """Weighted non-negative least squares. QR first: the rows are many, the columns few and of very unlike size."""
    a = x * weight[:, None]
    norm = np.linalg.norm(a, axis=0)
    norm[norm == 0.0] = 1.0
    r: FloatArray = np.asarray(np.linalg.qr(np.column_stack([a / norm, y * weight]), mode="r"))
    return np.asarray(nnls(r[:, :-1], r[:, -1])[0] / norm, dtype=np.float64)


def identified(x: FloatArray, names: tuple[str, ...]) -> tuple[list[int], dict[str, str]]:
    """Columns that say something the columns before them do not.

    Args:
        x: rows already divided by their size, shape (rows, columns); names of the columns, the most wanted first.

    Returns:
        Indices of the kept columns; for each other column, the kept one it moves with (empty: it is zero throughout).
    """
    kept: list[int] = []
    folded: dict[str, str] = {}
    norms = np.linalg.norm(x, axis=0)
    for j, name in enumerate(names):
        if norms[j] == 0.0:
            folded[name] = ""
            continue
        rest = x[:, j] / norms[j]
        if kept:
            basis = x[:, kept] / norms[kept]
            rest = rest - basis @ np.linalg.lstsq(basis, rest, rcond=None)[0]
        if np.linalg.norm(rest) >= LEAST_OF_ITS_OWN:
            kept.append(j)
        else:
            likeness = np.abs((x[:, kept] / norms[kept]).T @ (x[:, j] / norms[j]))
            folded[name] = names[kept[int(np.argmax(likeness))]]
    return kept, folded
