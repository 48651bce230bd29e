"""CSV columns fast: Arrow parses and converts; only when it objects does a slow pass look for the line to blame.

The slow pass accepts a superset of what the fast one does (12.0 for 12), so the fast pass never decides an error.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftcast.sim.workload.request_table import MAX_TOKENS
from draftcast.sim.workload.traces.source import TIME_ALLOWED, TOKENS_ALLOWED, TraceText, short_list

IntArray = NDArray[np.int64]


class Column(NamedTuple):
    """How the fields of a column are read."""

    type: str  # ``int64``, ``float64``, ``timestamp`` (no zone) or ``timestamp_utc`` (with a zone)
    # One field in the slow pass; ValueError for what is not allowed. Timestamps in integer nanoseconds.
    parse: Callable[[str], float]
    allowed: str  # for the error


def header(text: str) -> list[str]:
    """Column names of the first line, without spaces around them."""
    first = text.lstrip("\r\n").split("\n", 1)[0].rstrip("\r")
    return [name.strip() for name in split_row(first) or []]


def split_row(row: str) -> list[str] | None:
    """The fields of one CSV line, or None when it is none (a stray carriage return, an endless field)."""
    try:
        return next(csv.reader([row.rstrip("\r")]), [])
    except csv.Error:
        return None


def read_columns(trace: TraceText, columns: Mapping[str, Column]) -> tuple[dict[str, NDArray[Any]], IntArray]:
    """Read some columns of a CSV file with a header: name -> NumPy array, and the 1-based line of each row.

    Raises TraceError naming line and field.
    """
    found = header(trace.text)
    for name in columns:
        if name not in found:
            raise trace.error(f"missing column (found: {short_list(found)})", 1, name)
    values = _read_fast(trace, columns) if found == trace.text.split("\n", 1)[0].rstrip("\r").split(",") else None
    if values is not None:
        n = len(next(iter(values.values())))
        lines = _line_numbers(trace.text, n)
        if lines is not None:
            return values, lines
    return _read_slow(trace, found, columns)


def _read_fast(trace: TraceText, columns: Mapping[str, Column]) -> dict[str, NDArray[Any]] | None:
    """All columns by Arrow, or None when anything is not as expected."""
    import pyarrow as pa  # 0.2 s to import: only who reads a CSV pays
    from pyarrow import csv as arrow_csv

    types = {
        "int64": pa.int64(),
        "float64": pa.float64(),
        "timestamp": pa.timestamp("ns"),
        "timestamp_utc": pa.timestamp("ns", tz="UTC"),
    }
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(trace.text.encode()),
            # Threads that Arrow has started may abort a process that ends right afterwards, say with an error.
            read_options=arrow_csv.ReadOptions(use_threads=False),
            convert_options=arrow_csv.ConvertOptions(
                column_types={name: types[column.type] for name, column in columns.items()},
                include_columns=list(columns),
            ),
        )
    except (pa.ArrowInvalid, pa.ArrowKeyError):
        return None
    values: dict[str, NDArray[Any]] = {}
    for name in columns:
        column = table.column(name)
        if column.null_count or len(column) == 0:
            return None
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        # straight from the buffers: to_numpy would import pandas, which takes longer than the rest
        dtype = np.float64 if pa.types.is_floating(column.type) else np.int64
        array = np.concatenate(
            [np.frombuffer(c.buffers()[1], dtype, len(c), c.offset * 8) for c in column.chunks if len(c)]
        )
        if array.dtype.kind == "f" and not (np.isfinite(array).all() and (array >= 0).all()):
            return None
        if columns[name].type == "int64" and not (array.min() >= 0 and array.max() <= MAX_TOKENS):
            return None
        values[name] = array
    return values


def _line_numbers(text: str, n: int) -> IntArray | None:
    """Line of each of n rows below the header; blank lines hold no row. None if the count does not fit."""
    if text.count("\n") + (not text.endswith("\n")) == n + 1:
        return np.arange(2, n + 2, dtype=np.int64)
    lines = [i for i, row in enumerate(text.split("\n"), start=1) if row and not row.isspace()][1:]
    return np.array(lines, dtype=np.int64) if len(lines) == n else None


def _read_slow(
    trace: TraceText, found: list[str], columns: Mapping[str, Column]
) -> tuple[dict[str, NDArray[Any]], IntArray]:
    """Field by field in Python; raises at the first bad one."""
    where = {name: found.index(name) for name in columns}
    values: dict[str, list[float]] = {name: [] for name in columns}
    lines: list[int] = []
    seen_header = False
    for line, row in enumerate(trace.text.split("\n"), start=1):
        if not row or row.isspace():
            continue
        if not seen_header:
            seen_header = True
            continue
        fields = split_row(row)
        if fields is None:
            raise trace.error("not a CSV line", line, value=row)
        if len(fields) != len(found):
            message = f"has {len(fields)} of {len(found)} fields ({short_list(found)}); is the file truncated?"
            raise trace.error(message, line)
        for name, (_, parse, allowed) in columns.items():
            field = fields[where[name]].strip()
            try:
                values[name].append(parse(field))
            except (ValueError, OverflowError):
                raise trace.error(allowed, line, name, value=field) from None
        lines.append(line)
    return {name: np.array(column) for name, column in values.items()}, np.array(lines, dtype=np.int64)


def parse_tokens(field: str) -> int:
    """A token count; ValueError when it is not an integer in range."""
    value = float(field)
    if not (value.is_integer() and 0 <= value <= MAX_TOKENS):
        raise ValueError(field)
    return int(value)


def parse_seconds(field: str) -> float:
    """A finite number >= 0; ValueError otherwise."""
    value = float(field)
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(field)
    return value


TOKENS = Column("int64", parse_tokens, TOKENS_ALLOWED)
SECONDS = Column("float64", parse_seconds, TIME_ALLOWED)
