"""BurstGPT (github.com/HPMLL/BurstGPT, CC-BY 4.0).

``Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type``: seconds since the start of the log, and one
request per line. Failed requests have 0 response tokens; they are dropped and counted. Later releases add columns,
which are ignored.
"""

from __future__ import annotations

from draftcast.sim.workload.request_table import RequestTable
from draftcast.sim.workload.traces.csv_columns import SECONDS, TOKENS, header, read_columns
from draftcast.sim.workload.traces.source import TraceText, make_table


def sniff(text: str) -> bool:
    return {"Timestamp", "Request tokens"} <= set(header(text))


def read(trace: TraceText) -> RequestTable:
    """Requests with arrivals relative to the first, in seconds; both models and both log types together."""
    names = {"Timestamp": SECONDS, "Request tokens": TOKENS, "Response tokens": TOKENS}
    columns, lines = read_columns(trace, names)
    return make_table(
        trace, columns["Request tokens"], columns["Response tokens"], columns["Timestamp"].astype("f8"), lines
    )
