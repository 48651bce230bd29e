"""Tables of other tools, CSV or Parquet, as checked columns, and the latency table made of them.

A fault in a file is named by file, line and column.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from draftcast.calibration.profile.table import LABELS, SHAPES, checked_table
from draftcast.errors import HardwareError
from draftcast.files import read_frame, read_text
from draftcast.kernels.arrays import BoolArray
from draftcast.yaml_text import yaml_beside

LeftOut = Counter[str]  # rows that were not taken, by reason


@dataclass(frozen=True)
class TableRows:
    """Rows of a file; the getters check what they return and raise HardwareError."""

    file: str
    frame: pd.DataFrame  # as read; of a CSV file texts, indexed by line
    has_lines: bool  # whether the index says the line

    def where(self, chosen: pd.Series[bool] | BoolArray) -> TableRows:
        return TableRows(self.file, self.frame[chosen], self.has_lines)

    def __getitem__(self, column: str) -> pd.Series[Any]:
        if column not in self.frame:
            raise HardwareError("column missing", file=self.file, line=1 if self.has_lines else None, key=column)
        return self.frame[column]

    def has(self, column: str) -> pd.Series[bool]:
        """Where the column is there and not empty: tools leave out what a row has no time for."""
        if column not in self.frame:
            return pd.Series(False, index=self.frame.index)
        return ~self.frame[column].isin(["", "nan", "NaN"])

    def whole(self, column: str, low: int = 0) -> pd.Series[int]:
        numbers = self._numbers(column)
        self.check(column, (numbers >= low) & (numbers % 1 == 0), f"a whole number >= {low} is needed")
        return numbers.astype(np.int64)

    def seconds(self, column: str, unit_s: float, *, may_be_zero: bool = False) -> pd.Series[float]:
        """Times, positive unless they ``may_be_zero``; the file's unit is ``unit_s``."""
        numbers = self._numbers(column)
        allowed = f"a time {'>=' if may_be_zero else '>'} 0 is needed"
        self.check(column, np.isfinite(numbers) & ((numbers > 0.0) | ((numbers == 0.0) & may_be_zero)), allowed)
        return numbers * unit_s

    def flag(self, column: str) -> pd.Series[bool]:
        self.check(column, self[column].isin(["True", "False"]), "True or False is needed")
        return self.frame[column] == "True"

    def divided(self, column: str, values: pd.Series[int], parts: pd.Series[int]) -> pd.Series[int]:
        """``values``, which follow from ``column``, in so many equal parts."""
        uneven = values % parts != 0
        if uneven.any():
            self.check(column, ~uneven, f"a multiple of {parts[uneven].iloc[0]} is needed")
        return values // parts

    def check(self, column: str, good: pd.Series[bool] | BoolArray, allowed: str) -> None:
        """Refuse the first row that is not good; ``allowed`` says what is needed."""
        bad = self.frame[~good]
        if len(bad):
            line = int(bad.index[0]) if self.has_lines else None
            raise HardwareError(allowed, file=self.file, line=line, key=column, value=bad[column].tolist()[0])

    def _numbers(self, column: str) -> pd.Series[float]:
        values = self[column]
        if not self.has_lines and not pd.api.types.is_numeric_dtype(values):
            self.check(column, pd.Series(False, index=self.frame.index), "numbers are needed")
        return pd.to_numeric(values, errors="coerce").astype(np.float64)


def read_rows(path: Path, *needed: str) -> TableRows:
    """The rows of a CSV file, or of a Parquet file by its suffix.

    Raises HardwareError: unreadable, a ``needed`` column missing, or a line with more or fewer fields than the header.
    """
    is_csv = path.suffix != ".parquet"
    rows = TableRows(str(path), _read_csv(path) if is_csv else read_frame(path, kind=HardwareError), is_csv)
    for column in needed:
        rows[column]
    return rows


def _read_csv(path: Path) -> pd.DataFrame:
    try:
        header, *lines = csv.reader(read_text(path, HardwareError).splitlines() or [""])
    except csv.Error as error:
        raise HardwareError(f"not CSV: {error}", file=str(path)) from None
    if twice := [column for column in header if header.count(column) > 1]:
        raise HardwareError("column stands twice", file=str(path), line=1, key=twice[0])
    for number, fields in enumerate(lines, start=2):
        if len(fields) != len(header):
            raise HardwareError(f"{len(header)} fields are needed, not {len(fields)}", file=str(path), line=number)
    return pd.DataFrame(lines, columns=header, index=range(2, len(lines) + 2))


@dataclass(frozen=True)
class ImportedTable:
    table: pd.DataFrame  # the times, seconds of one launch
    device: str  # what the source calls it
    source: str  # tool and measuring method, one sentence
    engines: dict[str, pd.DataFrame] = field(default_factory=dict)  # kernels that other engines have of their own
    licence: str = ""  # of the times; empty where the source states none
    versions: dict[str, str] = field(default_factory=dict)  # of the tool and of the engine it timed
    sources: dict[str, str] = field(default_factory=dict)  # SHA-256 of every file read, by its path below the given one
    left_out: dict[str, int] = field(default_factory=dict)  # rows that were not taken, by reason


PROMPTS = ("batch_size", "isl", "num_heads")
NAMES: dict[str, dict[str, Any]] = yaml_beside(__file__, "aiconfigurator.yaml")  # systems, columns and files


def known_rows(rows: pd.DataFrame, column: str, values: Iterable[str], what: str, left_out: LeftOut) -> pd.DataFrame:
    """Rows whose ``column`` holds one of ``values``; the others are counted as ``what`` and their value."""
    has = rows[column].isin(list(values))
    left_out.update(f"{what} {value}" for value in rows.loc[~has, column])
    return rows[has]


def without(rows: pd.DataFrame, bad: pd.Series[bool], reason: str, left_out: LeftOut) -> pd.DataFrame:
    """The other rows; the bad ones are counted as ``reason``."""
    left_out[reason] += int(bad.sum())
    return rows[~bad]


def launches(rows: pd.DataFrame, operator: Any, dtype: Any, sizes: Sequence[str], **more: Any) -> pd.DataFrame:
    """Rows of a latency table from those of a file with kernels and milliseconds as aiconfigurator-core calls them.

    ``sizes``: columns of the file that are columns of the table as they are; ``more``: columns of the table.
    """
    named = {"operator": operator, "dtype": dtype, "implementation": rows["kernel_source"], "graph": True}
    shape = {NAMES["columns"].get(name, name): rows[name] for name in sizes}
    return pd.DataFrame({**named, **shape, **more, "seconds": rows["latency"] * 1e-3})


def complete(frame: pd.DataFrame) -> pd.DataFrame:
    """``frame`` with every label and shape column of a table: empty, or 0, where an operator has no such field."""
    blank = dict.fromkeys(LABELS, "") | dict.fromkeys(SHAPES, 0)
    return frame.assign(**{name: value for name, value in blank.items() if name not in frame}).fillna(blank)


def table_of(frame: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Checked table of imported rows, of one point the median; no interval is known, so no point counts as settled.

    Raises HardwareError: nothing is left to import, or the rows are no latency table.
    """
    if frame.empty:
        raise HardwareError("holds no row that can be imported", file=str(path))
    keys = [name for name in frame.columns if name != "seconds"]
    medians = frame.groupby(keys, sort=False)["seconds"].median().reset_index()
    return checked_table(medians.assign(settled=False), file=str(path))
