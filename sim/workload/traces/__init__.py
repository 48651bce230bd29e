"""Traces: recorded arrivals, lengths, shared prompt blocks and acceptance, from files in the field's formats.

A new format is a ``read(trace)`` in one of the modules and a line of `TRACE_READERS`, which says how to tell it.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from draftcast.errors import TraceError
from draftcast.frozen import Count, Duration, Faults, Frozen, NonEmpty, Seconds, wrong
from draftcast.sim.workload.request_table import RequestTable
from draftcast.sim.workload.traces import json_formats
from draftcast.sim.workload.traces.csv_formats import has_columns, read_azure, read_burstgpt
from draftcast.sim.workload.traces.json_formats import SHAREGPT, has_a_field, has_fields
from draftcast.sim.workload.traces.source import TraceText

TraceFormat = Literal[
    "auto", "azure", "burstgpt", "specdecode_bench", "vllm_bench", "aiperf", "guidellm", "mooncake", "sharegpt"
]
RECORD = "acc_eagle"


class Reader(NamedTuple):
    """A format: the table of a text in it, which names such a text has where, and what it is called in errors."""

    read: Callable[..., RequestTable]
    names: tuple[str, ...]
    description: str
    within: int | None = None  # the text's first characters; None: all of it
    sniff: Callable[[str, Collection[str]], bool] = has_fields


# In the order in which they are tried: the most particular first.
TRACE_READERS = {
    "azure": Reader(
        read_azure, ("TIMESTAMP", "ContextTokens"), "Azure LLM inference 2023 or 2024 CSV", None, has_columns
    ),
    "burstgpt": Reader(read_burstgpt, ("Timestamp", "Request tokens"), "BurstGPT CSV", None, has_columns),
    "specdecode_bench": Reader(json_formats.read_specdecode_bench, ("acc_len",), "recorded acceptance, JSON lines"),
    "vllm_bench": Reader(json_formats.read_vllm_bench, ("input_lens",), "vllm bench serve --save-detailed JSON"),
    "aiperf": Reader(json_formats.read_aiperf, ("request_start_ns",), "AIPerf profile_export.jsonl", 10_000),
    "guidellm": Reader(json_formats.read_guidellm, ("benchmarks", "successful"), "GuideLLM report, JSON"),
    "mooncake": Reader(json_formats.read_mooncake, ("input_length", "timestamp"), "Mooncake JSON lines", 100_000),
    "sharegpt": Reader(
        json_formats.read_sharegpt, SHAREGPT, "ShareGPT-like JSON with token counts", 100_000, has_a_field
    ),
}


class TraceSpec(Frozen):
    """A trace file and what to take from it, in the order of the fields; the first arrival is at 0 s after that."""

    path: NonEmpty
    format: TraceFormat = "auto"
    start_s: Seconds = 0.0
    stop_s: Duration | None = None
    sample_requests: Count | None = None  # Requests drawn without replacement, each at its own time.
    sample_seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    max_prompt_tokens: Count | None = None
    max_output_tokens: Count | None = None

    def faults(self) -> Faults:
        if self.stop_s is not None and self.stop_s <= self.start_s:
            yield wrong("stop_s", self.stop_s, f"must be above start_s = {self.start_s}")


def read_trace(path: str | Path, format: TraceFormat = "auto", record: str = RECORD) -> RequestTable:
    """The requests of a trace file (UTF-8), sorted by arrival, the first at 0 s.

    Args:
        format: a name of `TRACE_READERS`, or ``auto`` to tell by the content.
        record: the recorded acceptance to take from a ``specdecode_bench`` file, such as ``acc_eagle``, ``acc_ngram``.

    Raises TraceError naming the file and, where there is one, line, field, value and what is allowed.
    """
    trace = TraceText.from_file(path)
    for name, reader in TRACE_READERS.items():
        if format == name or (format == "auto" and reader.sniff(trace.text[: reader.within], reader.names)):
            return reader.read(trace, *([record] if name == "specdecode_bench" else []))
    first = trace.text.lstrip().split("\n", 1)[0].strip()
    formats = "; ".join(f"{name} ({reader.description})" for name, reader in TRACE_READERS.items())
    raise trace.error(f"not a trace format draftcast knows: {formats}", 1, value=first[:60])


def load_trace(spec: TraceSpec, record: str = RECORD) -> RequestTable:
    """Read the file as `read_trace` does and take what ``spec`` says. Raises TraceError."""
    table = read_trace(spec.path, spec.format, record)
    start_s, stop_s = window = (spec.start_s, math.inf if spec.stop_s is None else spec.stop_s)
    inside = (table.arrival_s >= start_s) & (table.arrival_s < stop_s)
    if not inside.any():
        message = f"no request arrives in this window; the trace lasts {table.span_s:g} s"
        raise TraceError(message, file=spec.path, key="start_s, stop_s", value=window)
    table = table.keep(inside)
    if spec.sample_requests is not None:
        table = table.sample(spec.sample_requests, spec.sample_seed)
    table = table.shift_to_zero()
    clipped = table.clip_lengths(spec.max_prompt_tokens, spec.max_output_tokens)
    prompt = int((table.prompt_tokens - clipped.prompt_tokens).sum())
    output = int((table.output_tokens - clipped.output_tokens).sum())
    if prompt or output:
        note = f"{spec.path}: lengths cut by {prompt} prompt and {output} output tokens in all"
        clipped = replace(clipped, notes=(*clipped.notes, note))
    return clipped
