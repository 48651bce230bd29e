"""Azure LLM inference traces 2023 and 2024 (github.com/Azure/AzurePublicDataset, CC-BY 4.0).

``TIMESTAMP,ContextTokens,GeneratedTokens``, one request per line. 2023 writes ``2023-11-16 18:15:46.6805900`` (no
zone, seven digits), 2024 ``2024-05-10 00:00:00.009930+00:00`` (zone, up to six digits, none when they are 0).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

import numpy as np

from draftcast.sim.workload.request_table import RequestTable
from draftcast.sim.workload.traces.csv_columns import TOKENS, Column, header, read_columns
from draftcast.sim.workload.traces.source import TraceText, make_table

ALLOWED = "must be a time such as 2023-11-16 18:15:46.6805900 or 2024-05-10 00:00:00.009930+00:00"
_TIME = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def sniff(text: str) -> bool:
    return "TIMESTAMP" in (names := header(text)) and "ContextTokens" in names


def read(trace: TraceText) -> RequestTable:
    """Requests with arrivals relative to the first, in seconds."""
    first_row = trace.text.split("\n", 2)[1] if trace.text.count("\n") else ""
    match = _TIME.search(first_row)
    time_type = "timestamp_utc" if match and match.group(3) else "timestamp"
    time = Column(time_type, parse_time_ns, ALLOWED)
    columns, lines = read_columns(trace, {"TIMESTAMP": time, "ContextTokens": TOKENS, "GeneratedTokens": TOKENS})
    time_ns = columns["TIMESTAMP"].astype(np.int64)
    arrival_s = (time_ns - time_ns.min()) / 1e9 if len(time_ns) else time_ns.astype(np.float64)
    return make_table(trace, columns["ContextTokens"], columns["GeneratedTokens"], arrival_s, lines)


def parse_time_ns(field: str) -> int:
    """Nanoseconds since 1970 (UTC where no zone is given); ValueError for anything that is not a time."""
    match = _TIME.fullmatch(field)
    if match is None:
        raise ValueError(field)
    whole, fraction, zone = match.groups()
    at = datetime.fromisoformat(whole + ("+00:00" if zone in (None, "Z") else zone))
    delta = at - _EPOCH
    return (delta.days * 86400 + delta.seconds) * 10**9 + int((fraction or "").ljust(9, "0"))
