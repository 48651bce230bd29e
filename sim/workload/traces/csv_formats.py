"""Traces as CSV: Azure's and BurstGPT's.

Azure LLM inference traces 2023 and 2024 (github.com/Azure/AzurePublicDataset, CC-BY 4.0):
``TIMESTAMP,ContextTokens,GeneratedTokens``, one request per line. 2023 writes ``2023-11-16 18:15:46.6805900`` (no
zone, seven digits), 2024 ``2024-05-10 00:00:00.009930+00:00`` (zone, up to six digits, none when they are 0).

BurstGPT (github.com/HPMLL/BurstGPT, CC-BY 4.0): ``Timestamp,Model,Request tokens,Response tokens,Total tokens,Log
Type``: seconds since the start of the log, and one request per line. Failed requests have 0 response tokens; they are
dropped and counted. Later releases add columns, which are ignored.

Arrow parses; only when it objects does a slow pass look for the line to blame, which accepts more (12.0 for 12).
"""

import csv
import re
import sys
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftcast.kernels.arrays import IntArray
from draftcast.sim.workload.request_table import MAX_TOKENS, RequestTable
from draftcast.sim.workload.traces.source import TIME_ALLOWED, TOKENS_ALLOWED, TraceText, make_table, short_list

TIMES_ALLOWED = "must be a time such as 2023-11-16 18:15:46.6805900 or 2024-05-10 00:00:00.009930+00:00"
ALLOWED = {"int64": TOKENS_ALLOWED, "float64": TIME_ALLOWED, "timestamp": TIMES_ALLOWED, "timestamp_utc": TIMES_ALLOWED}
"""What a column of a type may hold, for the error; a plain ``timestamp`` has no zone."""
LARGEST = {"int64": MAX_TOKENS, "float64": sys.float_info.max}
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Columns = tuple[dict[str, NDArray[Any]], IntArray]
"""By name, and the 1-based line of each row."""


def header(text: str) -> list[str]:
    first = text.lstrip("\r\n").split("\n", 1)[0].rstrip("\r")
    return [name.strip() for name in split_row(first) or []]


def has_columns(text: str, names: Collection[str]) -> bool:
    return set(names) <= set(header(text))


def split_row(row: str) -> list[str] | None:
    """The fields of one CSV line, or None when it is none (a stray carriage return, an endless field)."""
    try:
        return next(csv.reader([row.rstrip("\r")]), [])
    except csv.Error:
        return None


def read_columns(trace: TraceText, columns: Mapping[str, str]) -> Columns:
    """Some columns of a CSV file with a header, and their types, of `ALLOWED`. Raises TraceError."""
    names = header(trace.text)
    for name in columns:
        if name not in names:
            raise trace.error(f"missing column (found: {short_list(names)})", 1, name)
    is_plain = names == trace.text.split("\n", 1)[0].rstrip("\r").split(",")
    return (_read_fast(trace, columns) if is_plain else None) or _read_slow(trace, names, columns)


def _read_fast(trace: TraceText, columns: Mapping[str, str]) -> Columns | None:
    """All columns by Arrow, or None when anything is not as expected."""
    import pyarrow as pa  # 0.2 s to import: only who reads a CSV pays
    from pyarrow import csv as arrow_csv

    times = {"timestamp": pa.timestamp("ns"), "timestamp_utc": pa.timestamp("ns", tz="UTC")}
    types = {name: times.get(kind) or pa.type_for_alias(kind) for name, kind in columns.items()}
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(trace.text.encode()),
            # Threads that Arrow has started may abort a process that ends right afterwards, say with an error.
            read_options=arrow_csv.ReadOptions(use_threads=False),
            convert_options=arrow_csv.ConvertOptions(column_types=types, include_columns=list(columns)),
        )
    except (pa.ArrowInvalid, pa.ArrowKeyError):
        return None
    values: dict[str, NDArray[Any]] = {}
    for name, kind in columns.items():
        column = table.column(name).combine_chunks()
        if column.null_count or len(column) == 0:
            return None
        # straight from the buffer: to_numpy would import pandas, which takes longer than the rest
        dtype = np.float64 if kind == "float64" else np.int64  # timestamps too
        values[name] = np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * 8)
        most = LARGEST.get(kind)
        if most is not None and not (values[name].min() >= 0 and values[name].max() <= most):  # NaN neither
            return None
    # With blank lines in between the slow pass finds out on which line each row stands.
    return (values, np.arange(2, len(table) + 2)) if trace.text.rstrip().count("\n") == len(table) else None


def _read_slow(trace: TraceText, names: list[str], columns: Mapping[str, str]) -> Columns:
    """Field by field in Python; raises at the first bad one."""
    values: dict[str, list[float]] = {name: [] for name in columns}
    lines: list[int] = []
    rows = ((line, row) for line, row in enumerate(trace.text.split("\n"), start=1) if row and not row.isspace())
    next(rows, None)  # the header
    for line, row in rows:
        fields = split_row(row)
        if fields is None:
            raise trace.error("not a CSV line", line, value=row)
        if len(fields) != len(names):
            message = f"has {len(fields)} of {len(names)} fields ({short_list(names)}); is the file truncated?"
            raise trace.error(message, line)
        for name, kind in columns.items():
            field = fields[names.index(name)].strip()
            try:
                values[name].append(parse_field(kind, field))
            except (ValueError, OverflowError):
                raise trace.error(ALLOWED[kind], line, name, value=field) from None
        lines.append(line)
    return {name: np.array(column) for name, column in values.items()}, np.array(lines, dtype=np.int64)


def parse_field(kind: str, field: str) -> float:
    """What a column of this type holds: a number within `LARGEST`, or a time in whole nanoseconds since 1970.

    Times without a zone are UTC. Raises ValueError: it is none.
    """
    if kind in LARGEST:
        value = float(field)
        if not 0 <= value <= LARGEST[kind] or (kind == "int64" and not value.is_integer()):  # NaN neither
            raise ValueError(field)
        return value
    match = _TIMESTAMP.fullmatch(field)
    if match is None:
        raise ValueError(field)
    whole, fraction, zone = match.groups()
    delta = datetime.fromisoformat(whole + ("+00:00" if zone in (None, "Z") else zone)) - _EPOCH
    return (delta.days * 86400 + delta.seconds) * 10**9 + int((fraction or "").ljust(9, "0"))


def read_azure(trace: TraceText) -> RequestTable:
    """Requests with arrivals relative to the first, in seconds."""
    first_row = trace.text.split("\n", 2)[1] if trace.text.count("\n") else ""
    match = _TIMESTAMP.search(first_row)
    time = "timestamp_utc" if match and match.group(3) else "timestamp"
    columns, lines = read_columns(trace, {"TIMESTAMP": time, "ContextTokens": "int64", "GeneratedTokens": "int64"})
    time_ns, prompt, output = columns.values()
    arrival_s = (time_ns - time_ns.min()) / 1e9 if len(time_ns) else time_ns
    return make_table(trace, prompt, output, arrival_s, lines)


def read_burstgpt(trace: TraceText) -> RequestTable:
    """Requests with arrivals relative to the first, in seconds; both models and both log types together."""
    types = {"Timestamp": "float64", "Request tokens": "int64", "Response tokens": "int64"}
    columns, lines = read_columns(trace, types)
    time_s, prompt, output = columns.values()
    return make_table(trace, prompt, output, time_s, lines)
