"""How wrong interpolation and rooflines are: errors on measured points that took no part in them.

A fifth of the inner points of a table, drawn by a hash of their shape, is held out and predicted from the others, by
interpolation as a profile does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from draftcast.calibration.profile.measured import (
    ATTENTION,
    CURVES,
    FAMILY,
    Seconds,
    attention_group,
    curves_of,
    grid_axes,
    grid_of,
)
from draftcast.calibration.profile.table import SHAPE_FIELDS, SHAPES, LatencyTable
from draftcast.kernels.operators.cost import FloatArray

HELD_OUT_SHARE = 0.2


@dataclass(frozen=True)
class Errors:
    """Relative errors ``|predicted / measured - 1|`` over held-out points.

    Attributes:
        points: how many points were held out; the others are NaN when there are none.
        median, p90, worst: of the errors.
        worst_point: shape of the worst one.
    """

    points: int
    median: float
    p90: float
    worst: float
    worst_point: str

    @classmethod
    def of(cls, predicted: FloatArray, rows: pd.DataFrame, fields: tuple[str, ...]) -> Errors:
        if not len(rows):
            return cls(0, math.nan, math.nan, math.nan, "")
        errors = np.abs(predicted / rows["seconds"].to_numpy() - 1.0)
        at = int(np.argmax(errors))
        shape = " ".join(f"{name}={rows[name].iloc[at]}" for name in fields if rows[name].iloc[at])
        median, p90 = np.quantile(errors, (0.5, 0.9))
        return cls(len(rows), float(median), float(p90), float(errors[at]), shape)


@dataclass(frozen=True)
class OperatorErrors:
    """Held-out errors of interpolation for one operator and number format, and the measured predictions themselves.

    Attributes:
        predictions: held-out rows with columns ``predicted`` and ``error`` beside their shape.
    """

    operator: str
    dtype: str
    kv_dtype: str
    points: int
    interpolated: Errors
    predictions: pd.DataFrame


def modelled(table: LatencyTable) -> pd.DataFrame:
    """Points of the operators that a step is built from; of the times of one shape the least.

    An engine picks the fastest kernel.
    """
    frame = table.frame[table.frame["operator"].isin(list(FAMILY))]
    shape = ["operator", "dtype", "kv_dtype", *SHAPES]
    return frame.sort_values("seconds", kind="stable").drop_duplicates(shape).sort_index().reset_index(drop=True)


def held_out(frame: pd.DataFrame) -> NDArray[np.bool_]:
    """Which points take no part in a fit: a fifth of those with a measured neighbour on either side.

    Neighbours along x of the point's curve, along the context of the point's grid line. Drawn by a hash of the shape,
    so the same table is always split the same way.
    """
    wanted = np.zeros(len(frame), dtype=bool)
    hashes = pd.util.hash_pandas_object(frame[["operator", "dtype", "kv_dtype", *SHAPES]], index=False).to_numpy()
    drawn = hashes % 1000 < HELD_OUT_SHARE * 1000
    # Prefill's lines run along the chunk at one ratio of context to chunk.
    frame = frame.assign(prefix_ratio=frame["context"] / frame["q"].clip(lower=1))
    for operator, rows in frame.groupby("operator"):
        along = "context" if operator in ATTENTION else CURVES[str(operator)].x
        others = ["dtype", "kv_dtype", *(name for name in SHAPES if name != along)]
        if operator == "attention_prefill":
            along, others = "q", ["dtype", "kv_dtype", "batch", "prefix_ratio", *attention_group(str(operator))]
        line = rows.groupby(others, sort=False)[along]
        inner = (rows[along] > line.transform("min")) & (rows[along] < line.transform("max"))
        wanted[rows.index[inner]] = True
    return wanted & drawn


def interpolation_errors(
    operator: str, dtype: str, kv_dtype: str, points: pd.DataFrame, seconds: Seconds
) -> OperatorErrors:
    """Held-out points of an operator predicted from its other points, group by group."""
    how = attention_group(operator) if operator in ATTENTION else CURVES[operator].group
    parts = []
    for _, rows in points.groupby(list(how)) if how else [((), points)]:
        group = {name: int(rows[name].iloc[0]) for name in how}
        train, held = rows[~rows["held_out"]], rows[rows["held_out"]]
        if not len(held):
            continue
        if operator in ATTENTION:
            grid = grid_of(operator, train, seconds, dtype, kv_dtype, group)
            log_s, _ = grid.log_seconds(*grid_axes(operator, held).T)
            predicted = np.exp(log_s)
        else:
            predicted = _along_curves(operator, train, held, seconds, dtype, group)
        parts.append(held.assign(predicted=predicted, error=predicted / held["seconds"] - 1.0))
    held = pd.concat(parts) if parts else points[:0].assign(predicted=0.0, error=0.0)
    errors = Errors.of(held["predicted"].to_numpy(), held, SHAPE_FIELDS[operator])
    return OperatorErrors(operator, dtype, kv_dtype, len(points), errors, held)


def _along_curves(
    operator: str, train: pd.DataFrame, held: pd.DataFrame, seconds: Seconds, dtype: str, group: Mapping[str, int]
) -> FloatArray:
    how = CURVES[operator]
    curves = curves_of(operator, train, seconds, dtype, group)
    predicted = np.empty(len(held))
    keys = held[list(how.axes)].to_numpy(np.int64).reshape(len(held), len(how.axes))
    xs = held[how.x].to_numpy(np.float64)
    for key in {tuple(int(part) for part in row) for row in keys}:
        at = np.all(keys == np.asarray(key, dtype=np.int64), axis=1)
        predicted[at], _ = curves.seconds(xs[at], key)
    return predicted
