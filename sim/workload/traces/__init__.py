"""Traces: recorded arrivals, lengths, shared prompt blocks and acceptance, from files in the field's formats."""

from __future__ import annotations

from draftcast.sim.workload.traces.formats import TRACE_READERS, TraceFormat, TraceSpec, load_trace, read_trace

__all__ = ["TRACE_READERS", "TraceFormat", "TraceSpec", "load_trace", "read_trace"]
