"""Which part of which trace: a file and the operations on it, as one frozen value."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from draftcast.errors import TraceError
from draftcast.sim.workload.request_table import RequestTable
from draftcast.sim.workload.traces.formats import AUTO, read_trace


@dataclass(frozen=True)
class TraceSpec:
    """A trace file and what to take from it. Applied in the order of the fields; the first arrival is at 0 s after."""

    path: str
    format: str = AUTO
    acceptance: str = "acc_eagle"  # record of a specdecode_bench file: acc_eagle, acc_ngram
    start_s: float = 0.0  # keep arrivals in [start_s, stop_s) of the trace
    stop_s: float | None = None
    first_requests: int | None = None  # then only so many from the start
    sample_requests: int | None = None  # then so many drawn without replacement, at their own times
    sample_seed: int = 0
    max_prompt_tokens: int | None = None  # then cut longer prompts and outputs
    max_output_tokens: int | None = None
    tile: int = 1  # then repeat the whole so many times, see RequestTable.tile


def load_trace(spec: TraceSpec) -> RequestTable:
    """Read the file and apply the operations of ``spec``. Raises TraceError."""
    table = read_trace(spec.path, spec.format, spec.acceptance)
    stop_s = math.inf if spec.stop_s is None else spec.stop_s
    if spec.start_s != 0 or spec.stop_s is not None:
        clipped = table.clip_time(spec.start_s, stop_s)
        if len(clipped) == 0:
            message = f"no request arrives in this window; the trace lasts {table.span_s:g} s"
            raise TraceError(message, file=spec.path, key="start_s, stop_s", value=(spec.start_s, stop_s))
        table = clipped.shift_to_zero()
    if spec.first_requests is not None:
        if spec.first_requests < 1:
            raise TraceError("must be >= 1", file=spec.path, key="first_requests", value=spec.first_requests)
        table = table.slice(0, spec.first_requests)
    if spec.sample_requests is not None:
        table = table.sample(spec.sample_requests, spec.sample_seed).shift_to_zero()
    before = int(table.prompt_tokens.sum()), int(table.output_tokens.sum())
    table = table.clip_lengths(spec.max_prompt_tokens, spec.max_output_tokens)
    cut = before[0] - int(table.prompt_tokens.sum()), before[1] - int(table.output_tokens.sum())
    if any(cut):
        note = f"{spec.path}: lengths cut by {cut[0]} prompt and {cut[1]} output tokens in all"
        table = replace(table, notes=(*table.notes, note))
    if spec.tile < 1:
        raise TraceError("must be an integer >= 1", file=spec.path, key="tile", value=spec.tile)
    return table if spec.tile == 1 else table.tile(len(table) * spec.tile)
