"""Traces as JSON.

Mooncake (github.com/kvcache-ai/Mooncake, FAST25 release, Apache-2.0): lines with ``timestamp`` (ms), ``input_length``,
``output_length`` and ``hash_ids``: one id per 512-token block of the prompt, the last one possibly partial. Equal ids
are equal blocks after equal prefixes.

ShareGPT-like: an array of objects (or one object after another) with token counts, as draftcast has no tokenizer. An
entry is a request (`PROMPT_KEYS`, `OUTPUT_KEYS`), or a conversation (`CONVERSATIONS`): a list of turns with a speaker
(``from`` or ``role``) and a count (`TURN_KEYS`). Every turn of the assistant is one request, whose prompt is everything
said before it. Arrival times (`ARRIVAL_KEYS`) are optional, in seconds; all entries have one, or none has. All requests
of a conversation get its time.

SpecDecode-Bench (arXiv 2601.11580): lines of recorded acceptance, ``prompt_token_ids`` (list, or ``prompt_tokens`` as a
number) and ``acc_eagle.acc_len`` or ``acc_ngram.acc_len`` (any ``acc_<method>`` works). A round started when ``g``
output tokens exist yields ``acc_len[g - 1]`` tokens, the bonus token included, so ``acceptance_lengths[offset + g] =
acc_len[g - 1] - 1``; position 0 (never used: the first token comes from the prefill) holds 0. The output length is
``len(acc_len)``: the methods were recorded in runs of their own, whose outputs differ from ``generated_token_ids``.

``vllm bench serve --save-result --save-detailed`` (as of vLLM 0.32): an object per run (``--append-result`` writes one
per line) with lists of one value per request: ``input_lens``, ``output_lens`` and ``start_times`` (seconds of the
client's monotonic clock). A failed request has ``output_lens`` 0; it is dropped and counted. Older releases wrote no
``start_times``: such a file gives lengths only, and so does SGLang's ``bench_serving --output-details``.

Records of other tools, an object per request: AIPerf's ``profile_export.jsonl`` (ai-dynamo/aiperf) and the
``requests.successful`` of a GuideLLM report (0.6 to 0.8; one benchmark after the other).
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from draftcast.files import value_at
from draftcast.sim.workload.request_table import RequestTable, offsets_of
from draftcast.sim.workload.traces.source import Entry, Row, TraceText, short_list, table_of_rows

BLOCK_TOKENS = 512
HASH_ALLOWED = f"must be a list of integers >= 0, at most one per {BLOCK_TOKENS} tokens of input_length"
RECORD_ALLOWED = "must be a list of integers from 1 to 256 (tokens a round yields, bonus included)"
PROMPT_KEYS = ("prompt_tokens", "prompt_len", "prompt_length", "input_tokens", "input_len", "input_length")
OUTPUT_KEYS = ("output_tokens", "output_len", "output_length", "completion_tokens", "generated_tokens")
ARRIVAL_KEYS = ("arrival_s", "arrival_time_s", "timestamp_s", "timestamp")
CONVERSATIONS = ("conversations", "messages")
SHAREGPT = (*PROMPT_KEYS, *CONVERSATIONS)
TURN_KEYS = ("tokens", "num_tokens", "token_count")
Value = TypeVar("Value")
ASSISTANT = {"gpt", "assistant", "bot", "model", "chatgpt"}


def has_fields(text: str, names: Collection[str]) -> bool:
    """Whether a text is of JSON objects that name all these fields."""
    return text.lstrip().startswith("{") and all(f'"{name}"' in text for name in names)


def has_a_field(text: str, names: Collection[str]) -> bool:
    """Whether a text is of JSON objects, or an array of them, that name one of these fields."""
    return text.lstrip().startswith(("[", "{")) and any(f'"{name}"' in text for name in names)


def read_mooncake(trace: TraceText) -> RequestTable:
    """Requests with arrivals in seconds and ``hash_ids`` (kept flat with offsets). ``hash_ids`` may be missing."""
    rows: list[Row] = []
    hashes: list[list[int]] = []
    for entry in trace.json_lines():
        arrival_s = entry.seconds("timestamp") / 1e3
        prompt, output = entry.tokens("input_length"), entry.tokens("output_length")
        hashes.append(_hash_ids(entry, prompt))
        rows.append((entry.line, prompt, output, arrival_s))
    if not any(hashes):
        return table_of_rows(trace, rows)
    ids, offsets = np.fromiter(chain.from_iterable(hashes), dtype=np.int64), offsets_of([*map(len, hashes)])
    return table_of_rows(trace, rows, hash_ids=ids, hash_offsets=offsets, hash_block_tokens=BLOCK_TOKENS)


def _hash_ids(entry: Entry, prompt_tokens: int) -> list[int]:
    value = entry.values.get("hash_ids", [])
    if not isinstance(value, list) or len(value) > -(-prompt_tokens // BLOCK_TOKENS):
        shown = f"{len(value)} ids for {prompt_tokens} tokens" if isinstance(value, list) else value
        raise entry.error(HASH_ALLOWED, "hash_ids", value=shown)
    if value and not (set(map(type, value)) == {int} and min(value) >= 0 and max(value) < 2**63):
        bad = next(x for x in value if type(x) is not int or not 0 <= x < 2**63)
        raise entry.error(HASH_ALLOWED, "hash_ids", value=bad)
    return value


def read_sharegpt(trace: TraceText) -> RequestTable:
    """Requests in the file's order; ``has_arrivals`` is False when the file gives no times."""
    rows: list[Row] = []
    timed, most_turns = 0, 1
    for number, entry in enumerate(trace.json_entries(), start=1):
        turns = next((key for key in CONVERSATIONS if key in entry.values), None)
        pairs = [(_count(entry, PROMPT_KEYS), _count(entry, OUTPUT_KEYS))] if turns is None else _turns(entry, turns)
        arrival = next((key for key in ARRIVAL_KEYS if key in entry.values), None)
        timed += arrival is not None
        if timed not in (0, number):
            raise entry.error(f"either every entry has an arrival time (one of {', '.join(ARRIVAL_KEYS)}) or none has")
        at_s = 0.0 if arrival is None else entry.seconds(arrival)
        rows += [(entry.line, prompt, output, at_s) for prompt, output in pairs]
        most_turns = max(most_turns, len(pairs))
    table = table_of_rows(trace, rows, timed=bool(timed))
    if most_turns == 1:
        return table
    how = "arrive together, as the file times none, and" if timed else "are requests of their own and"
    note = f"{trace.file}: the turns of a conversation {how} share no cached prefix"
    return replace(table, notes=(*table.notes, note))


def _count(entry: Entry, keys: tuple[str, ...]) -> int:
    key = next((key for key in keys if key in entry.values), None)
    if key is None:
        raise entry.error(f"needs a token count under one of {', '.join(keys)} (draftcast does not tokenize text)")
    return entry.tokens(key)


def _turns(entry: Entry, key: str) -> list[tuple[int, int]]:
    requests: list[tuple[int, int]] = []
    context_tokens = 0
    for turn in entry.objects(key, "turns"):
        count = _count(turn, TURN_KEYS)
        speaker = turn.member("from" if "from" in turn.values else "role")
        if isinstance(speaker, str) and speaker in ASSISTANT:
            requests.append((context_tokens, count))
        context_tokens += count
    return requests


def read_specdecode_bench(trace: TraceText, acceptance: str = "acc_eagle") -> RequestTable:
    """Requests without arrival times, with the acceptance recorded under the field ``acceptance``."""
    rows: list[Row] = []
    pieces: list[NDArray[np.uint8]] = []
    for entry in trace.json_lines():
        has_count = "prompt_tokens" in entry.values
        ids = [] if has_count else entry.items("prompt_token_ids", "must be a list of token ids")
        prompt = entry.tokens("prompt_tokens") if has_count else len(ids)
        if acceptance not in entry.values:
            choices = short_list(key for key in entry.values if key.startswith("acc_"))
            raise entry.error(f"no such acceptance record (this line has: {choices})", acceptance)
        pieces.append(_accepted(entry.inner(acceptance, "must be an object with acc_len")))
        rows.append((entry.line, prompt, len(pieces[-1]) - 1, 0.0))
    offsets = offsets_of([len(piece) for piece in pieces])
    values = np.concatenate([np.zeros(0, np.uint8), *pieces])
    return table_of_rows(trace, rows, timed=False, acceptance_lengths=values, acceptance_offsets=offsets)


def _accepted(record: Entry) -> NDArray[np.uint8]:
    """uint8[len + 1]: accepted drafts by number of existing output tokens."""
    value = record.items("acc_len", RECORD_ALLOWED)
    if value and not (set(map(type, value)) == {int} and min(value) >= 1 and max(value) <= 256):
        i, bad = next((i, x) for i, x in enumerate(value) if type(x) is not int or not 1 <= x <= 256)
        raise record.error(RECORD_ALLOWED, f"acc_len[{i}]", value=bad)
    return (np.array([1, *value]) - 1).astype(np.uint8)


def read_aiperf(trace: TraceText) -> RequestTable:
    """Requests of the measured phase; warm-up and failed ones are left out."""

    def is_measured(entry: dict[str, Any]) -> bool:
        return not entry.get("error") and value_at(entry, "metadata.benchmark_phase") in (None, "profiling")

    entries = (entry for entry in trace.json_lines() if is_measured(entry.values))
    lengths = ("metrics.input_sequence_length.value", "metrics.output_sequence_length.value")
    return _read_records(trace, entries, lengths, ("metadata.request_start_ns",), 1e9)


def read_guidellm(trace: TraceText) -> RequestTable:
    """Successful requests of all benchmarks, at the time at which they were sent."""
    entries = (
        entry
        for report in trace.json_entries()
        for benchmark in report.objects("benchmarks", "benchmarks")
        for entry in benchmark.inner("requests", "must be a JSON object").objects("successful", "requests")
    )
    return _read_records(trace, entries, ("prompt_tokens", "output_tokens"), ("request_start_time", "start_time"), 1.0)


def _read_records(
    trace: TraceText, entries: Iterator[Entry], lengths: tuple[str, str], starts: tuple[str, ...], per_second: float
) -> RequestTable:
    """Of dotted keys: prompt and output tokens, and a start, the first that is there, in a unit of so many a second."""
    rows: list[Row] = []
    for entry in entries:
        prompt, output = (entry.tokens(key, value_at(entry.values, key)) for key in lengths)
        start = next((key for key in starts if value_at(entry.values, key) is not None), starts[0])
        rows.append((entry.line, prompt, output, entry.seconds(start, value_at(entry.values, start)) / per_second))
    return table_of_rows(trace, rows)


def read_vllm_bench(trace: TraceText) -> RequestTable:
    """Requests of all runs in the file; a second run follows the first after its last start and one mean gap."""
    rows: list[Row] = []
    timed = True
    offset_s = 0.0
    for run in trace.json_entries():
        prompts = _values(run, "input_lens", run.tokens)
        outputs = _values(run, "output_lens", run.tokens, len(prompts))
        timed = timed and "start_times" in run.values
        starts_s = _values(run, "start_times", run.seconds, len(prompts)) if timed else [0.0] * len(prompts)
        # a failed request may have never started: start_time 0.0 stands for "none", so it must not set the origin
        real = [start_s for start_s, output in zip(starts_s, outputs, strict=True) if output] or [0.0]
        first_s, span_s = min(real), max(real) - min(real)
        for start_s, prompt, output in zip(starts_s, prompts, outputs, strict=True):
            rows.append((run.line, prompt, output, offset_s + max(start_s - first_s, 0.0)))
        offset_s += span_s + span_s / max(len(real) - 1, 1)
    return table_of_rows(trace, rows, timed=timed)


def _values(run: Entry, key: str, read: Callable[[str, Any], Value], length: int | None = None) -> list[Value]:
    if key not in run.values:
        raise run.error("missing field; write the file with vllm bench serve --save-detailed", key)
    values = run.items(key, "must be a list with one value per request")
    if length not in (None, len(values)):
        raise run.error(f"must have {length} values as input_lens has", key, value=f"{len(values)} values")
    return [read(f"{key}[{i}]", value) for i, value in enumerate(values)]
