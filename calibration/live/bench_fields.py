"""Results of other benchmark tools with the keys of ``vllm bench serve``; where theirs stand: ``bench_fields.yaml``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from draftcast.errors import InputError
from draftcast.files import value_at

FIELDS: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
_WORDS = ("model_id", "spec_decoding", "arrival_pattern")
_NO_KEYS = ("mark", "scale", "random_lengths", "requests_per_client")


def as_bench(result: Any, source: str) -> Any:
    """A result of a tool of `FIELDS` with the keys of ``vllm bench serve``; any other as it is.

    Raises:
        InputError: what is needed is not there or no number; the tool's own key is named.
    """
    fields = next((fields for fields in FIELDS.values() if value_at(result, fields["mark"]) is not None), None)
    if fields is None:
        return result
    values: dict[str, Any] = {"duration": 0.0}
    for key in fields.keys() - set(_NO_KEYS):
        path = next((path for path in fields[key] if value_at(result, path) is not None), None)
        if path is not None and key in _WORDS:
            values[key] = value_at(result, path)
        elif path is not None:
            values[key] = number_at(result, source, path) * (fields["scale"] if key.endswith("_ms") else 1.0)
    if "requests_per_client" in fields:
        values.setdefault("completed", fields["requests_per_client"] * values.get("max_concurrency", 0.0))
    for key in ("mean_tpot_ms", "mean_ttft_ms", "completed", "input_len", "output_len"):
        if key not in values:
            raise InputError("not found", file=source, key=fields[key][0])
    low, high = fields.get("random_lengths", (1.0, 1.0))
    for kind in ("input", "output"):
        nominal = values[f"{kind}_len"]
        values[f"total_{kind}_tokens"] = values["completed"] * (low + high) / 2 * nominal
        if high > low:
            values[f"{kind}_len_std"] = (high - low) / math.sqrt(12.0) * nominal
    return values


def number_at(data: Mapping[str, Any], source: str, key: str, least: float = 0.0) -> float:
    """The number at a dotted key, at least ``least``. Raises InputError: there is none."""
    value = value_at(data, key)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < least or abs(value) > 1e12:
        raise InputError(f"must be a number of at least {least:g}", file=source, key=key, value=value)
    return float(value)
