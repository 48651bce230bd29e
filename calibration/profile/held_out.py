"""How wrong interpolation is: errors on measured points that took no part in it.

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
    Part,
    Seconds,
    curve_keys,
    curves_of,
    grid_axes,
    grid_of,
)
from draftcast.calibration.profile.table import SHAPE_FIELDS, SHAPES, LatencyTable
from draftcast.kernels.operators.cost import FloatArray

HELD_OUT_SHARE = 0.2


@dataclass(frozen=True)
class Errors:
    """Relative errors ``|predicted / measured - 1|`` over held-out points."""

    points: int  # how many points were held out; the others are NaN when there are none
    # median, p90, worst: of the errors
    median: float
    p90: float
    worst: float
    worst_point: str  # shape of the worst one

    @classmethod
    def of(cls, rows: pd.DataFrame, fields: tuple[str, ...]) -> Errors:
        """From rows with columns ``seconds`` and ``predicted``."""
        if not len(rows):
            return cls(0, math.nan, math.nan, math.nan, "")
        errors = (rows["predicted"] / rows["seconds"] - 1.0).abs().to_numpy()
        at = int(np.argmax(errors))
        shape = " ".join(f"{name}={rows[name].iloc[at]}" for name in fields if rows[name].iloc[at])
        median, p90 = np.quantile(errors, (0.5, 0.9))
        return cls(len(rows), float(median), float(p90), float(errors[at]), shape)


@dataclass(frozen=True)
class OperatorErrors:
    """Held-out errors of interpolation for one operator and number format, and the measured predictions themselves."""

    part: Part
    points: int  # of the table, held out or not
    interpolated: Errors
    predictions: pd.DataFrame  # held-out rows with columns ``predicted`` and ``error`` beside their shape


def modelled(table: LatencyTable) -> pd.DataFrame:
    """Points of the operators that a step is built from, ``held_out`` or not; of the times of one shape the least.

    An engine picks the fastest kernel.
    """
    frame = table.frame[table.frame["operator"].isin(list(FAMILY))]
    shape = [*Part._fields, *SHAPES]
    least = frame.sort_values("seconds", kind="stable").drop_duplicates(shape).sort_index().reset_index(drop=True)
    return least.assign(held_out=held_out(least))


def held_out(frame: pd.DataFrame) -> NDArray[np.bool_]:
    """Which points take no part in a fit: a fifth of those with a measured neighbour on either side.

    Neighbours along x of the point's curve, along the context of the point's grid line. Drawn by a hash of the shape,
    so the same table is always split the same way.
    """
    inner = np.zeros(len(frame), dtype=bool)
    hashes = pd.util.hash_pandas_object(frame[[*Part._fields, *SHAPES]], index=False).to_numpy()
    # Prefill's lines run along the chunk at one ratio of context to chunk.
    frame = frame.assign(prefix_ratio=frame["context"] / frame["q"].clip(lower=1))
    for operator in frame["operator"].unique():
        rows = frame[frame["operator"] == operator]
        along = "context" if operator in ATTENTION else CURVES[operator].x
        others = [name for name in SHAPES if name != along]
        if operator == "gdn_decode":
            along, others = "batch", [name for name in SHAPES if name != "batch"]
        elif operator.endswith("prefill"):
            along, others = "q", ["batch", "prefix_ratio", *Part(operator, "").group]
        line = rows.groupby(["dtype", "kv_dtype", *others], sort=False)[along]
        inner[rows.index] = (rows[along] > line.transform("min")) & (rows[along] < line.transform("max"))
    return inner & (hashes % 1000 < HELD_OUT_SHARE * 1000)


def interpolation_errors(part: Part, points: pd.DataFrame, seconds: Seconds) -> OperatorErrors:
    """Held-out points of a part predicted from its other points, group by group."""
    pieces = [points[:0].assign(predicted=0.0)]
    for _, rows in points.groupby(list(part.group)) if part.group else [((), points)]:
        train, held = rows[~rows["held_out"]], rows[rows["held_out"]]
        if len(held):
            group = {name: int(rows[name].iloc[0]) for name in part.group}
            pieces.append(held.assign(predicted=_predicted(part, train, held, seconds, group)))
    held = pd.concat(pieces[1:] or pieces)
    held["error"] = held["predicted"] / held["seconds"] - 1.0
    return OperatorErrors(part, len(points), Errors.of(held, SHAPE_FIELDS[part.operator]), held)


def _predicted(
    part: Part, train: pd.DataFrame, held: pd.DataFrame, seconds: Seconds, group: Mapping[str, int]
) -> FloatArray:
    if part.operator in ATTENTION:
        log_s, _ = grid_of(part, train, seconds, group).log_seconds(*grid_axes(part.operator, held).T)
        return np.asarray(np.exp(log_s))
    curves = curves_of(part, train, seconds, group)
    predicted = np.empty(len(held))
    keys, xs = curve_keys(part.operator, held), held[CURVES[part.operator].x].to_numpy(np.float64)
    for key in set(map(tuple, keys.tolist())):
        at = np.all(keys == np.asarray(key, dtype=np.int64), axis=1)
        predicted[at], _ = curves.seconds(xs[at], key)
    return predicted
