"""Results of other benchmark tools with the keys of ``vllm bench serve``, by a table of where theirs stand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from draftcast.errors import InputError
from draftcast.files import value_at

_INPUT = "input_config"
_LOADS = (f"{_INPUT}.loadgen", f"{_INPUT}.phases", f"{_INPUT}.perf_analyzer.stimulus", _INPUT)
# The key of ``vllm bench serve`` -> where theirs is, dotted; the first that is there counts.
# ``mark`` is what only theirs have, ``scale`` what makes milliseconds of their times. ``input_len`` and ``output_len``
# are means of a request. InferenceX sends ten random requests a client, of 80 to 100 % of isl and osl.
FIELDS: Mapping[str, Mapping[str, Any]] = {
    # ai-dynamo/aiperf profile_export_aiperf.json (schema 1.x) and GenAI-Perf profile_export_genai_perf.json; their
    # inter_token_latency is (latency - TTFT) / (output - 1), vLLM's TPOT.
    "AIPerf": {
        "mark": "inter_token_latency.avg",
        "scale": 1.0,
        "mean_tpot_ms": ("inter_token_latency.avg",),
        "std_tpot_ms": ("inter_token_latency.std",),
        "mean_ttft_ms": ("time_to_first_token.avg",),
        "std_ttft_ms": ("time_to_first_token.std",),
        "completed": ("request_count.avg",),
        "failed": ("error_request_count.avg",),
        "duration": ("benchmark_duration.avg",),
        "input_len": ("input_sequence_length.avg",),
        "input_len_std": ("input_sequence_length.std",),
        "output_len": ("output_sequence_length.avg",),
        "output_len_std": ("output_sequence_length.std",),
        "max_concurrency": tuple(f"{load}.concurrency" for load in _LOADS),
        "request_rate": tuple(f"{load}.{name}" for load in _LOADS for name in ("request_rate", "rate")),
        "burstiness": tuple(f"{load}.arrival_smoothness" for load in _LOADS),
        "model_id": (f"{_INPUT}.endpoint.model_names", f"{_INPUT}.models.items.name", f"{_INPUT}.model"),
    },
    # SemiAnalysisAI/InferenceX utils/process_result.py.
    "InferenceX": {
        "mark": "tput_per_gpu",
        "scale": 1e3,
        "mean_tpot_ms": ("mean_tpot",),
        "std_tpot_ms": ("std_tpot",),
        "mean_ttft_ms": ("mean_ttft",),
        "std_ttft_ms": ("std_ttft",),
        "completed": ("num_requests_successful",),
        "input_len": ("isl",),
        "output_len": ("osl",),
        "max_concurrency": ("conc",),
        "model_id": ("model",),
        "spec_decoding": ("spec_decoding", "mtp"),
    },
}
_INFERENCEX_LENGTHS, _INFERENCEX_REQUESTS = (0.8, 1.0), 10
_WORDS = ("model_id", "spec_decoding")
# Burstiness of arrivals at even intervals.
_EVEN = 1e4


def as_bench(result: Any, source: str) -> Any:
    """A result of a tool of `FIELDS` with the keys of ``vllm bench serve``; any other as it is.

    Raises:
        InputError: what is needed is not there or no number; the tool's own key is named.
    """
    fields = next((fields for fields in FIELDS.values() if value_at(result, fields["mark"]) is not None), None)
    if fields is None:
        return result
    values: dict[str, Any] = {"duration": 0.0}
    for key, paths in fields.items():
        if isinstance(paths, tuple):
            there = [path for path in paths if value_at(result, path) is not None]
            if there and key not in _WORDS:
                scale = fields["scale"] if key.endswith("_ms") else 1.0
                values[key] = scale * number_at(result, source, *there[0].split("."))
            elif there:
                values[key] = value_at(result, there[0])
    if fields is FIELDS["InferenceX"]:
        values.setdefault("completed", _INFERENCEX_REQUESTS * values.get("max_concurrency", 0.0))
        low, high = _INFERENCEX_LENGTHS
        for name in {"input_len", "output_len"} & values.keys():
            nominal = values[name]
            values |= {name: (low + high) / 2 * nominal, f"{name}_std": (high - low) / math.sqrt(12.0) * nominal}
    for key in ("mean_tpot_ms", "mean_ttft_ms", "completed", "input_len", "output_len"):
        if key not in values:
            raise InputError("not found", file=source, key=fields[key][0])
    for kind in ("input", "output"):
        values[f"total_{kind}_tokens"] = values["completed"] * values[f"{kind}_len"]
    if any(value_at(result, f"{load}.arrival_pattern") == "constant" for load in _LOADS):
        values["burstiness"] = _EVEN
    return values


def number_at(data: Any, source: str, *keys: str, least: float = 0.0) -> float:
    """The number at ``keys``, at least ``least``. Raises InputError: there is none."""
    data = value_at(data, ".".join(keys))
    number = isinstance(data, int | float) and not isinstance(data, bool)
    if not number or not math.isfinite(data) or data < least or abs(data) > 1e12:
        raise InputError(f"must be a number of at least {least:g}", file=source, key=".".join(keys), value=data)
    return float(data)
