"""CSV files of other tools, with every fault named by file, line and column."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from draftcast.errors import HardwareError
from draftcast.files import read_text


@dataclass(frozen=True)
class Row:
    """One line of a file; the getters raise HardwareError naming file, line and column."""

    file: str
    line: int
    values: dict[str, str]

    def text(self, column: str) -> str:
        return self.values[column]

    def whole(self, column: str, low: int = 0) -> int:
        """A whole number of at least ``low``."""
        number = self._number(column, f"a whole number >= {low} is needed")
        if number < low or number % 1:
            raise self.fault(column, f"a whole number >= {low} is needed")
        return int(number)

    def time(self, column: str, *, may_be_zero: bool = False) -> float:
        """A time in the file's unit, positive unless it ``may_be_zero``."""
        allowed = f"a time {'>=' if may_be_zero else '>'} 0 is needed"
        number = self._number(column, allowed)
        if number < 0.0 or (number == 0.0 and not may_be_zero):
            raise self.fault(column, allowed)
        return number

    def has(self, column: str) -> bool:
        """Whether the column is there and not empty: tools leave out what a row has no time for."""
        return self.values.get(column, "") not in ("", "nan", "NaN")

    def flag(self, column: str) -> bool:
        if self.values[column] not in ("True", "False"):
            raise self.fault(column, "True or False is needed")
        return self.values[column] == "True"

    def fault(self, column: str, allowed: str) -> HardwareError:
        return HardwareError(allowed, file=self.file, line=self.line, key=column, value=self.values[column])

    def _number(self, column: str, allowed: str) -> float:
        try:
            number = float(self.values[column])
        except ValueError:
            raise self.fault(column, allowed) from None
        if not math.isfinite(number):
            raise self.fault(column, allowed)
        return number


def read_rows(path: Path, *headers: tuple[str, ...]) -> tuple[tuple[str, ...], Iterator[Row]]:
    """The first of ``headers`` whose columns the file has, and its rows. Other columns may stand beside them.

    Raises:
        HardwareError: unreadable, none of the headers, or a line with more or fewer fields than the header.
    """
    reader = _fields(csv.reader(read_text(path, HardwareError).splitlines()), str(path))
    found = next(reader, [])
    for header in headers:
        if set(header) <= set(found):
            return header, _rows(reader, found, str(path))
    missing = next(name for name in headers[0] if name not in found)
    raise HardwareError("column missing", file=str(path), line=1, key=missing)


def _fields(reader: Iterator[list[str]], file: str) -> Iterator[list[str]]:
    try:
        yield from reader
    except csv.Error as error:
        raise HardwareError(f"not CSV: {error}", file=file) from None


def _rows(reader: Iterator[list[str]], header: list[str], file: str) -> Iterator[Row]:
    for line, fields in enumerate(reader, start=2):
        if len(fields) != len(header):
            raise HardwareError(f"{len(header)} fields are needed, not {len(fields)}", file=file, line=line)
        yield Row(file, line, dict(zip(header, fields, strict=True)))
