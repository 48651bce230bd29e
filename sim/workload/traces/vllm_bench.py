"""Results of ``vllm bench serve --save-result --save-detailed`` (facts as of vLLM 0.32).

One JSON object per run (``--append-result`` writes one per line): ``input_lens``, ``output_lens`` and
``start_times`` (seconds of the client's monotonic clock) are lists with one value per request. A failed request has
``output_lens`` 0; it is dropped and counted. Older releases wrote no ``start_times``: such a file gives lengths only.
"""

from __future__ import annotations

from typing import Any

from draftcast.sim.workload.request_table import RequestTable
from draftcast.sim.workload.traces.source import Row, TraceText, seconds, table_of_rows, tokens


def sniff(text: str) -> bool:
    return text.lstrip().startswith("{") and '"input_lens"' in text


def read(trace: TraceText) -> RequestTable:
    """Requests of all runs in the file; a second run follows the first after its last start and one mean gap."""
    rows: list[Row] = []
    timed = True
    offset_s = 0.0
    for line, name, run in trace.json_entries():
        inputs = _list(trace, line, name, run, "input_lens")
        outputs = _list(trace, line, name, run, "output_lens", len(inputs))
        timed = timed and "start_times" in run
        starts = _list(trace, line, name, run, "start_times", len(inputs)) if timed else []
        counts = [
            (
                tokens(trace, line, f"{name}.input_lens[{i}]", inputs[i]),
                tokens(trace, line, f"{name}.output_lens[{i}]", outputs[i]),
            )
            for i in range(len(inputs))
        ]
        # a failed request may have never started: start_time 0.0 stands for "none", so it must not set the origin
        checked = [seconds(trace, line, f"{name}.start_times[{i}]", s) for i, s in enumerate(starts)]
        real = [s for s, out in zip(checked, outputs[: len(checked)], strict=True) if out] or [0.0]
        first_s, span_s = min(real), max(real) - min(real)
        arrival_s = [offset_s + max(s - first_s, 0.0) for s in checked] or [0.0] * len(inputs)
        rows += [(line, *pair, at_s) for pair, at_s in zip(counts, arrival_s, strict=True)]
        offset_s += span_s + span_s / max(len(real) - 1, 1)
    return table_of_rows(trace, rows, timed=timed)


def _list(
    trace: TraceText, line: int, name: str, run: dict[str, Any], key: str, length: int | None = None
) -> list[Any]:
    place = f"{name}.{key}"
    if key not in run:
        raise trace.error("missing field; write the file with vllm bench serve --save-detailed", line, place)
    if not isinstance(run[key], list):
        raise trace.error("must be a list with one value per request", line, place)
    if length is not None and len(run[key]) != length:
        raise trace.error(f"must have {length} values as input_lens has", line, place, value=f"{len(run[key])} values")
    values: list[Any] = run[key]
    return values
