"""What an importer returns: a checked table and where every time in it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from draftcast.calibration.profile.table import LABELS, SHAPES, LatencyTable
from draftcast.errors import HardwareError


@dataclass(frozen=True)
class Imported:
    """A table read from another tool's files.

    Attributes:
        table: the times, seconds of one launch.
        device: what the source calls the device.
        source: tool and measuring method, one sentence.
        licence: of the times; empty where the source states none.
        versions: versions of the tool and of the engine it timed.
        sources: SHA-256 of every file read, by its path below the given one.
        left_out: rows that were not taken, by reason.
    """

    table: LatencyTable
    device: str
    source: str
    licence: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)


def complete(frame: pd.DataFrame) -> pd.DataFrame:
    """``frame`` with every label and shape column of a table: empty, or 0, where an operator has no such field."""
    blank = {name: "" for name in LABELS} | {name: 0 for name in SHAPES}
    missing = {name: value for name, value in blank.items() if name not in frame}
    present = {name: value for name, value in blank.items() if name in frame}
    return frame.fillna(present).assign(**missing)


def table_of(frame: pd.DataFrame, path: Path) -> LatencyTable:
    """Checked table of imported rows: no interval is known, so no point counts as settled.

    Of one point timed several times the median is kept.

    Raises:
        HardwareError: nothing is left to import, or the rows are no latency table.
    """
    if frame.empty:
        raise HardwareError("holds no row that can be imported", file=str(path))
    keys = [name for name in frame.columns if name != "seconds"]
    medians = frame.groupby(keys, sort=False)["seconds"].median().reset_index()
    return LatencyTable.from_frame(medians.assign(settled=False), file=str(path))
