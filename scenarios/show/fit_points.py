"""Held-out points of a profile near one model: measured seconds beside what the profile predicts without them."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from draftcast.calibration.profile.held_out import OperatorErrors, held_out, interpolation_errors, modelled
from draftcast.calibration.profile.measured import FAMILY
from draftcast.calibration.profile.spec import RooflineProfile
from draftcast.calibration.profile.table import LatencyTable
from draftcast.errors import HardwareError
from draftcast.scenarios.show.profile_view import OpenProfile

# Rows that one picture and its prediction take at most; whole curves are kept together.
MOST_ROWS = 6000


@dataclass(frozen=True)
class Part:
    """One operator of a table in one number format."""

    operator: str
    dtype: str
    kv_dtype: str

    def __str__(self) -> str:
        formats = f"{self.dtype}, KV {self.kv_dtype}" if self.kv_dtype else self.dtype
        return f"{self.operator} ({formats})"


def parts_of(table: LatencyTable) -> list[Part]:
    """Every operator and format of the table."""
    labels = table.frame[["operator", "dtype", "kv_dtype"]].drop_duplicates()
    found = [Part(*map(str, row)) for row in labels.to_numpy().tolist()]
    return sorted((part for part in found if part.operator in FAMILY), key=str)


def fit_points(opened: OpenProfile, part: Part) -> OperatorErrors:
    """Predictions of the held-out points of one operator; of a large one every so manyth curve.

    Raises:
        HardwareError: the profile has no measured table, or nothing of this part.
    """
    profile, frame = opened.profile, opened.table().frame
    wanted = (
        (frame["operator"] == part.operator) & (frame["dtype"] == part.dtype) & (frame["kv_dtype"] == part.kv_dtype)
    )
    if not isinstance(profile, RooflineProfile) or not wanted.any():
        raise HardwareError(f"has no measured points of {part}", key="profile", value=profile.name)
    rows = modelled(LatencyTable(frame[wanted].reset_index(drop=True)))
    rows = _thinned(rows, part.operator)
    rows["held_out"] = held_out(rows)
    seconds = profile.seconds_of(FAMILY[part.operator], part.kv_dtype or part.dtype)
    return interpolation_errors(part.operator, part.dtype, part.kv_dtype, rows, seconds)


def _thinned(rows: pd.DataFrame, operator: str) -> pd.DataFrame:
    if len(rows) <= MOST_ROWS:
        return rows
    curve = ["k", "n", "num_experts", "top_k", "heads", "kv_heads", "head_dim", "window"]
    number = rows.groupby(curve, sort=True).ngroup()
    every = -(-len(rows) // MOST_ROWS)
    return rows[number % every == 0].reset_index(drop=True)
