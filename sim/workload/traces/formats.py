"""The registry of trace formats, and reading a file in one of them.

A new format is a module with ``sniff(text) -> bool`` and ``read(trace) -> RequestTable`` and one line here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from draftcast.errors import TraceError
from draftcast.sim.workload.request_table import RequestTable
from draftcast.sim.workload.traces import azure, burstgpt, mooncake, sharegpt, specdecode_bench, vllm_bench
from draftcast.sim.workload.traces.source import TraceText

AUTO = "auto"


@dataclass(frozen=True)
class TraceFormat:
    """One format: how to recognise it and how to read it."""

    name: str
    description: str
    sniff: Callable[[str], bool]
    read: Callable[[TraceText], RequestTable]


# In the order in which they are tried: the most particular first.
TRACE_FORMATS: dict[str, TraceFormat] = {
    f.name: f
    for f in (
        TraceFormat("azure", "Azure LLM inference 2023 or 2024 CSV", azure.sniff, azure.read),
        TraceFormat("burstgpt", "BurstGPT CSV", burstgpt.sniff, burstgpt.read),
        TraceFormat(
            "specdecode_bench", "recorded acceptance, JSON lines", specdecode_bench.sniff, specdecode_bench.read
        ),
        TraceFormat("vllm_bench", "vllm bench serve --save-detailed JSON", vllm_bench.sniff, vllm_bench.read),
        TraceFormat("mooncake", "Mooncake JSON lines", mooncake.sniff, mooncake.read),
        TraceFormat("sharegpt", "ShareGPT-like JSON with token counts", sharegpt.sniff, sharegpt.read),
    )
}


def read_trace(path: str | Path, format: str = AUTO, acceptance: str = "acc_eagle") -> RequestTable:
    """Read a trace file.

    Args:
        path: the file, UTF-8.
        format: a name of `TRACE_FORMATS`, or ``auto`` to tell by the content.
        acceptance: the record to take from a ``specdecode_bench`` file, such as ``acc_eagle`` or ``acc_ngram``.
    Returns:
        The requests sorted by arrival, the first at 0 s.
    Raises TraceError naming the file and, where there is one, line, field, value and what is allowed.
    """
    if format != AUTO and format not in TRACE_FORMATS:
        allowed = f"unknown trace format; choose {AUTO}, {', '.join(TRACE_FORMATS)}"
        raise TraceError(allowed, file=str(path), key="format", value=format)
    trace = TraceText.from_file(path)
    chosen = TRACE_FORMATS[format] if format != AUTO else _sniff(trace)
    if chosen.name == "specdecode_bench":
        return specdecode_bench.read(trace, acceptance)
    return chosen.read(trace)


def _sniff(trace: TraceText) -> TraceFormat:
    for candidate in TRACE_FORMATS.values():
        if candidate.sniff(trace.text):
            return candidate
    first = trace.text.lstrip().split("\n", 1)[0].strip()
    known = "; ".join(f"{f.name} ({f.description})" for f in TRACE_FORMATS.values())
    raise trace.error(f"not a trace format draftcast knows: {known}", 1, value=first[:60])
