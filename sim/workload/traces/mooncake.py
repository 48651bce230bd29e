"""Mooncake (github.com/kvcache-ai/Mooncake, FAST25 release, Apache-2.0).

JSON lines with ``timestamp`` (ms), ``input_length``, ``output_length`` and ``hash_ids``: one id per 512-token block
of the prompt, the last one possibly partial. Equal ids are equal blocks after equal prefixes.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np

from draftcast.sim.workload.request_table import RequestTable
from draftcast.sim.workload.traces.source import Row, TraceText, member, seconds, table_of_rows, tokens

BLOCK_TOKENS = 512
HASH_ALLOWED = f"must be a list of integers >= 0, at most one per {BLOCK_TOKENS} tokens of input_length"


def sniff(text: str) -> bool:
    head = text[:100_000].lstrip()
    return head.startswith("{") and '"input_length"' in head and '"timestamp"' in head


def read(trace: TraceText) -> RequestTable:
    """Requests with arrivals in seconds and ``hash_ids`` (kept flat with offsets). ``hash_ids`` may be missing."""
    rows: list[Row] = []
    hashes: list[list[int]] = []
    for line, entry in trace.json_lines():
        arrival_s = seconds(trace, line, "timestamp", member(trace, line, entry, "timestamp")) / 1e3
        prompt = tokens(trace, line, "input_length", member(trace, line, entry, "input_length"))
        output = tokens(trace, line, "output_length", member(trace, line, entry, "output_length"))
        hashes.append(_hash_ids(trace, line, entry.get("hash_ids", []), prompt))
        rows.append((line, prompt, output, arrival_s))
    columns: dict[str, Any] = {}
    if any(hashes):
        counts = np.fromiter(map(len, hashes), dtype=np.int64, count=len(hashes))
        columns["hash_ids"] = np.fromiter(chain.from_iterable(hashes), dtype=np.int64, count=int(counts.sum()))
        columns["hash_offsets"] = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        columns["hash_block_tokens"] = BLOCK_TOKENS
    return table_of_rows(trace, rows, **columns)


def _hash_ids(trace: TraceText, line: int, value: Any, prompt_tokens: int) -> list[int]:
    if not isinstance(value, list) or len(value) > -(-prompt_tokens // BLOCK_TOKENS):
        found = f"{len(value)} ids for {prompt_tokens} tokens" if isinstance(value, list) else value
        raise trace.error(HASH_ALLOWED, line, "hash_ids", value=found)
    if value and not (set(map(type, value)) == {int} and min(value) >= 0 and max(value) < 2**63):
        bad = next(x for x in value if type(x) is not int or not 0 <= x < 2**63)
        raise trace.error(HASH_ALLOWED, line, "hash_ids", value=bad)
    return value
