"""Traces as JSON: Mooncake's, ShareGPT's, SpecDecode-Bench's and results of ``vllm bench serve``.

Mooncake (github.com/kvcache-ai/Mooncake, FAST25 release, Apache-2.0): lines with ``timestamp`` (ms), ``input_length``,
``output_length`` and ``hash_ids``: one id per 512-token block of the prompt, the last one possibly partial. Equal ids
are equal blocks after equal prefixes.

ShareGPT-like: an array of objects (or one object after another) with token counts, as draftcast has no tokenizer. An
entry is a request (prompt tokens under the first of `PROMPT_KEYS`, output tokens under the first of `OUTPUT_KEYS`), or
a conversation: ``conversations`` (or ``messages``), a list of turns with a speaker (``from`` or ``role``) and a count
under one of `TURN_KEYS`. Every turn of the assistant is one request, whose prompt is everything said before it. Arrival
times are optional, in seconds, under one of `ARRIVAL_KEYS`; all entries have one, or none has. All requests of one
conversation get its time: the file does not say when the turns came.

SpecDecode-Bench (arXiv 2601.11580): lines of recorded acceptance, ``prompt_token_ids`` (list, or ``prompt_tokens`` as a
number) and ``acc_eagle.acc_len`` or ``acc_ngram.acc_len`` (any ``acc_<method>`` works). A round started when ``g``
output tokens exist yields ``acc_len[g - 1]`` tokens, the bonus token included, so ``acceptance_lengths[offset + g] =
acc_len[g - 1] - 1``; position 0 (never used: the first token comes from the prefill) holds 0. The output length is
``len(acc_len)``: the methods were recorded in runs of their own, whose outputs differ from ``generated_token_ids``.

``vllm bench serve --save-result --save-detailed`` (as of vLLM 0.32): an object per run (``--append-result`` writes one
per line) with lists of one value per request: ``input_lens``, ``output_lens`` and ``start_times`` (seconds of the
client's monotonic clock). A failed request has ``output_lens`` 0; it is dropped and counted. Older releases wrote no
``start_times``: such a file gives lengths only, and so does SGLang's ``bench_serving --output-details``.

Records of other tools (`RECORDS`), an object per request: AIPerf's ``profile_export.jsonl`` (ai-dynamo/aiperf) and the
``requests.successful`` of a GuideLLM report (0.6; one benchmark after the other).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftcast.files import value_at
from draftcast.sim.workload.request_table import RequestTable
from draftcast.sim.workload.traces.source import Row, TraceText, member, seconds, short_list, table_of_rows, tokens

BLOCK_TOKENS = 512
HASH_ALLOWED = f"must be a list of integers >= 0, at most one per {BLOCK_TOKENS} tokens of input_length"


def sniff_mooncake(text: str) -> bool:
    head = text[:100_000].lstrip()
    return head.startswith("{") and '"input_length"' in head and '"timestamp"' in head


def read_mooncake(trace: TraceText) -> RequestTable:
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


PROMPT_KEYS = ("prompt_tokens", "prompt_len", "prompt_length", "input_tokens", "input_len", "input_length")
OUTPUT_KEYS = ("output_tokens", "output_len", "output_length", "completion_tokens", "generated_tokens")
ARRIVAL_KEYS = ("arrival_s", "arrival_time_s", "timestamp_s", "timestamp")
TURN_KEYS = ("tokens", "num_tokens", "token_count")
ASSISTANT = {"gpt", "assistant", "bot", "model", "chatgpt"}


def sniff_sharegpt(text: str) -> bool:
    head = text[:100_000].lstrip()
    if not head.startswith(("[", "{")):
        return False
    return any(f'"{key}"' in head for key in (*PROMPT_KEYS, "conversations", "messages"))


def read_sharegpt(trace: TraceText) -> RequestTable:
    """Requests in the file's order; ``has_arrivals`` is False when the file gives no times."""
    rows: list[Row] = []
    timed = 0
    for count, (line, name, entry) in enumerate(trace.json_entries(), start=1):
        pairs = _turns(trace, line, name, entry) if _is_conversation(entry) else [_counts(trace, line, name, entry)]
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


def _counts(trace: TraceText, line: int, name: str, entry: dict[str, Any]) -> tuple[int, int]:
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


RECORD_ALLOWED = "must be a list of integers from 1 to 256 (tokens a round yields, bonus included)"


def sniff_specdecode_bench(text: str) -> bool:
    head = text.lstrip()
    return head.startswith("{") and '"acc_len"' in head


def read_specdecode_bench(trace: TraceText, acceptance: str = "acc_eagle") -> RequestTable:
    """Requests without arrival times, with the acceptance recorded under the field ``acceptance``."""
    rows: list[Row] = []
    pieces: list[NDArray[np.uint8]] = []
    for line, entry in trace.json_lines():
        prompt = _prompt_of_ids(trace, line, entry)
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


def _prompt_of_ids(trace: TraceText, line: int, entry: dict[str, Any]) -> int:
    if "prompt_tokens" in entry:
        return tokens(trace, line, "prompt_tokens", entry["prompt_tokens"])
    ids = member(trace, line, entry, "prompt_token_ids")
    if not isinstance(ids, list):
        raise trace.error("must be a list of token ids", line, "prompt_token_ids")
    return len(ids)


def _accepted(trace: TraceText, line: int, key: str, value: Any) -> NDArray[np.uint8]:
    """uint8[len + 1]: accepted drafts by number of existing output tokens."""
    if not isinstance(value, list):
        raise trace.error(RECORD_ALLOWED, line, key)
    if value and not (set(map(type, value)) == {int} and min(value) >= 1 and max(value) <= 256):
        i, bad = next((i, x) for i, x in enumerate(value) if type(x) is not int or not 1 <= x <= 256)
        raise trace.error(RECORD_ALLOWED, line, f"{key}[{i}]", value=bad)
    accepted = np.zeros(len(value) + 1, dtype=np.uint8)
    accepted[1:] = np.array(value, dtype=np.int64) - 1
    return accepted


class Record(NamedTuple):
    """Where a tool's record of a request holds tokens and start, dotted keys; the first start that is there counts."""

    prompt: str
    output: str
    starts: tuple[str, ...]
    per_second: float  # of the unit of its times


RECORDS = {
    "aiperf": Record(
        "metrics.input_sequence_length.value",
        "metrics.output_sequence_length.value",
        ("metadata.request_start_ns",),
        1e9,
    ),
    "guidellm": Record("prompt_tokens", "output_tokens", ("request_start_time", "start_time"), 1.0),
}


def sniff_aiperf(text: str) -> bool:
    head = text[:10_000].lstrip()
    return head.startswith("{") and '"request_start_ns"' in head


def sniff_guidellm(text: str) -> bool:
    return text.lstrip().startswith("{") and '"benchmarks"' in text[:100_000] and '"successful"' in text


def read_aiperf(trace: TraceText) -> RequestTable:
    """Requests of the measured phase; warm-up and failed ones are left out."""
    entries = (
        (line, "", entry)
        for line, entry in trace.json_lines()
        if not entry.get("error") and (entry.get("metadata") or {}).get("benchmark_phase", "profiling") == "profiling"
    )
    return _read_records(trace, RECORDS["aiperf"], entries)


def read_guidellm(trace: TraceText) -> RequestTable:
    """Successful requests of all benchmarks, at the time at which they were sent."""

    def entries() -> Iterator[tuple[int, str, dict[str, Any]]]:
        for line, _, report in trace.json_entries():
            for number, benchmark in enumerate(member(trace, line, report, "benchmarks")):
                place = f"benchmarks[{number}].requests"
                found = member(trace, line, member(trace, line, benchmark, "requests"), "successful", f"{place}.")
                if not isinstance(found, list):
                    raise trace.error("must be a list of requests", line, f"{place}.successful")
                yield from ((line, f"{place}.successful[{i}].", entry) for i, entry in enumerate(found))

    return _read_records(trace, RECORDS["guidellm"], entries())


def _read_records(trace: TraceText, fields: Record, entries: Iterator[tuple[int, str, dict[str, Any]]]) -> RequestTable:
    rows: list[Row] = []
    for line, place, entry in entries:
        starts = [key for key in fields.starts if value_at(entry, key) is not None]
        prompt, output = (
            tokens(trace, line, place + key, value_at(entry, key)) for key in (fields.prompt, fields.output)
        )
        start = starts[0] if starts else fields.starts[0]
        at_s = seconds(trace, line, place + start, value_at(entry, start)) / fields.per_second
        rows.append((line, prompt, output, at_s))
    return table_of_rows(trace, rows)


def sniff_vllm_bench(text: str) -> bool:
    return text.lstrip().startswith("{") and '"input_lens"' in text


def read_vllm_bench(trace: TraceText) -> RequestTable:
    """Requests of all runs in the file; a second run follows the first after its last start and one mean gap."""
    rows: list[Row] = []
    timed = True
    offset_s = 0.0
    for line, name, run in trace.json_entries():
        inputs = _values(trace, line, name, run, "input_lens")
        outputs = _values(trace, line, name, run, "output_lens", len(inputs))
        timed = timed and "start_times" in run
        starts = _values(trace, line, name, run, "start_times", len(inputs)) if timed else []
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


def _values(
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
