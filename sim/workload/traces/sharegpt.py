"""ShareGPT-like JSON with token counts: an array of objects (or one object after another, as in JSON lines).

draftcast has no tokenizer, so the counts must be in the file. An entry is one of

- a request: prompt tokens under the first of `PROMPT_KEYS`, output tokens under the first of `OUTPUT_KEYS`;
- a conversation: ``conversations`` (or ``messages``), a list of turns with a speaker (``from`` or ``role``) and a
  count under one of `TURN_KEYS`. Every turn of the assistant (``gpt``, ``assistant``, ``bot``, ``model``) is one
  request, whose prompt is everything said before it.

Arrival times are optional, in seconds, under one of `ARRIVAL_KEYS`; all entries have one, or none has. All requests
of one conversation get its time: the file does not say when the turns came.
"""

from __future__ import annotations

from typing import Any

from draftcast.sim.workload.request_table import RequestTable
from draftcast.sim.workload.traces.source import Row, TraceText, member, seconds, table_of_rows, tokens

PROMPT_KEYS = ("prompt_tokens", "prompt_len", "prompt_length", "input_tokens", "input_len", "input_length")
OUTPUT_KEYS = ("output_tokens", "output_len", "output_length", "completion_tokens", "generated_tokens")
ARRIVAL_KEYS = ("arrival_s", "arrival_time_s", "timestamp_s", "timestamp")
TURN_KEYS = ("tokens", "num_tokens", "token_count")
ASSISTANT = {"gpt", "assistant", "bot", "model", "chatgpt"}


def sniff(text: str) -> bool:
    head = text[:100_000].lstrip()
    if not head.startswith(("[", "{")):
        return False
    return any(f'"{key}"' in head for key in (*PROMPT_KEYS, "conversations", "messages"))


def read(trace: TraceText) -> RequestTable:
    """Requests in the file's order; ``has_arrivals`` is False when the file gives no times."""
    rows: list[Row] = []
    timed = 0
    for count, (line, name, entry) in enumerate(trace.json_entries(), start=1):
        pairs = _turns(trace, line, name, entry) if _is_conversation(entry) else [_request(trace, line, name, entry)]
        arrival = next(((key, entry[key]) for key in ARRIVAL_KEYS if key in entry), None)
        timed += arrival is not None
        if timed not in (0, count):
            allowed = f"either every entry has an arrival time (one of {', '.join(ARRIVAL_KEYS)}) or none has"
            raise trace.error(allowed, line, name)
        at_s = 0.0 if arrival is None else seconds(trace, line, f"{name}.{arrival[0]}", arrival[1])
        rows += [(line, prompt, output, at_s) for prompt, output in pairs]
    return table_of_rows(trace, rows, timed=bool(timed))


def _is_conversation(entry: dict[str, Any]) -> bool:
    return "conversations" in entry or "messages" in entry


def _request(trace: TraceText, line: int, name: str, entry: dict[str, Any]) -> tuple[int, int]:
    values = []
    for keys in (PROMPT_KEYS, OUTPUT_KEYS):
        key = next((key for key in keys if key in entry), None)
        if key is None:
            allowed = f"needs a token count under one of {', '.join(keys)} (draftcast does not tokenize text)"
            raise trace.error(allowed, line, name)
        values.append(tokens(trace, line, f"{name}.{key}", entry[key]))
    return values[0], values[1]


def _turns(trace: TraceText, line: int, name: str, entry: dict[str, Any]) -> list[tuple[int, int]]:
    list_key = "conversations" if "conversations" in entry else "messages"
    turns = entry[list_key]
    if not isinstance(turns, list):
        raise trace.error("must be a list of turns", line, f"{name}.{list_key}")
    requests: list[tuple[int, int]] = []
    context_tokens = 0
    for i, turn in enumerate(turns):
        place = f"{name}.{list_key}[{i}]"
        if not isinstance(turn, dict):
            raise trace.error("each turn must be a JSON object", line, place)
        key = next((key for key in TURN_KEYS if key in turn), None)
        if key is None:
            allowed = f"needs a token count under one of {', '.join(TURN_KEYS)} (draftcast does not tokenize text)"
            raise trace.error(allowed, line, place)
        count = tokens(trace, line, f"{place}.{key}", turn[key])
        speaker = turn["from"] if "from" in turn else member(trace, line, turn, "role", place + ".")
        if isinstance(speaker, str) and speaker in ASSISTANT:
            requests.append((context_tokens, count))
        context_tokens += count
    return requests
