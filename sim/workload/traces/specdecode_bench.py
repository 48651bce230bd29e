"""Recorded acceptance as JSON lines, the format of SpecDecode-Bench (arXiv 2601.11580).

Fields: ``prompt_token_ids`` (list, or ``prompt_tokens`` as a number) and ``acc_eagle.acc_len`` or
``acc_ngram.acc_len`` (any ``acc_<method>`` works): ``acc_len[j]`` is how many tokens a draft round started at output
position j would yield, the bonus token included, so ``acc_len[j] - 1`` drafts are accepted.

The source's index: a round started when ``g`` output tokens exist uses ``acc_len[g - 1]``. The table's index is the
number of output tokens that exist, so ``acceptance_lengths[offset + g] = acc_len[g - 1] - 1`` and position 0 (never
used: the first token comes from the prefill) holds 0. The request's output length is ``len(acc_len)``: the methods
were recorded in runs of their own, whose outputs differ in length from ``generated_token_ids``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftcast.sim.workload.request_table import RequestTable
from draftcast.sim.workload.traces.source import Row, TraceText, member, short_list, table_of_rows, tokens

ALLOWED = "must be a list of integers from 1 to 256 (tokens a round yields, bonus included)"


def sniff(text: str) -> bool:
    head = text.lstrip()
    return head.startswith("{") and '"acc_len"' in head


def read(trace: TraceText, acceptance: str = "acc_eagle") -> RequestTable:
    """Requests without arrival times, with the acceptance recorded under the field ``acceptance``."""
    rows: list[Row] = []
    pieces: list[NDArray[np.uint8]] = []
    for line, entry in trace.json_lines():
        prompt = _prompt_tokens(trace, line, entry)
        if acceptance not in entry:
            choices = short_list(key for key in entry if key.startswith("acc_"))
            raise trace.error(f"no such acceptance record (this line has: {choices})", line, acceptance)
        record = entry[acceptance]
        if not isinstance(record, dict):
            raise trace.error("must be an object with acc_len", line, acceptance)
        pieces.append(_accepted(trace, line, f"{acceptance}.acc_len", member(trace, line, record, "acc_len")))
        rows.append((line, prompt, len(pieces[-1]) - 1, 0.0))
    offsets = np.concatenate([[0], np.cumsum([len(piece) for piece in pieces])]).astype(np.int64)
    values = np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.uint8)
    return table_of_rows(trace, rows, timed=False, acceptance_lengths=values, acceptance_offsets=offsets)


def _prompt_tokens(trace: TraceText, line: int, entry: dict[str, Any]) -> int:
    if "prompt_tokens" in entry:
        return tokens(trace, line, "prompt_tokens", entry["prompt_tokens"])
    ids = member(trace, line, entry, "prompt_token_ids")
    if not isinstance(ids, list):
        raise trace.error("must be a list of token ids", line, "prompt_token_ids")
    return len(ids)


def _accepted(trace: TraceText, line: int, key: str, value: Any) -> NDArray[np.uint8]:
    """uint8[len + 1]: accepted drafts by number of existing output tokens."""
    if not isinstance(value, list):
        raise trace.error(ALLOWED, line, key)
    if value and not (set(map(type, value)) == {int} and min(value) >= 1 and max(value) <= 256):
        i, bad = next((i, x) for i, x in enumerate(value) if type(x) is not int or not 1 <= x <= 256)
        raise trace.error(ALLOWED, line, f"{key}[{i}]", value=bad)
    accepted = np.zeros(len(value) + 1, dtype=np.uint8)
    accepted[1:] = np.array(value, dtype=np.int64) - 1
    return accepted
