"""Live runs that another client recorded: ``vllm bench serve`` and LLMServingSim's benchmark.

``vllm bench serve --save-result --save-detailed`` (``vllm/benchmarks/serve.py``, as of vLLM 0.32): lists with one value
per request; ``start_times`` in seconds of the client's clock, ``ttfts`` seconds from a request's start to its first
piece, ``itls`` the gaps between its pieces, ``errors`` a failed request's text. Tokens by piece are not counted: the
first piece is one token (all of them where it is the only one), the rest is spread over the others as evenly as whole
tokens allow. An answer of several tokens without gaps ends by ``latencies`` (seconds from its start); a file without
any gap, as draftcast's own forecasts are, tells nothing of pieces. Only what a client sees can be compared.

LLMServingSim's ``requests.jsonl`` and ``meta.json``: a line is a request with input_toks, output_toks, arrival_time
(wall clock, s), queued_ts, first_token_ts, last_token_ts (the engine's monotonic clock, s). The smallest ``queued_ts -
arrival_time`` is the offset of the two clocks: the request that was on its way for the shortest time. ``meta.json``
holds the engine's arguments. It tells nothing of the pieces of an answer, so gaps between tokens are not compared.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from draftcast.calibration.acceptance.metrics import BENCH_KEYS, BENCH_RATES, read_metrics
from draftcast.calibration.live.off_runs import closed_loop, without_rate
from draftcast.calibration.live.run_directory import LiveRun, LiveRunWriter, tables
from draftcast.calibration.live.server import KNOWN
from draftcast.errors import InputError
from draftcast.files import json_lines, read_json, read_text

_LISTS = ("input_lens", "output_lens", "start_times", "ttfts", "itls", "errors")
_BAD = (TypeError, ValueError, OverflowError)
_SERVER: dict[str, Any] = {"command": [], "url": "", "version": "", "log": False, "config": {}}


def import_bench_result(file: Path, out: Path, **manifest: Any) -> LiveRun:
    """Write the result in ``file`` as a live run into ``out``; ``manifest``: more of it, such as the scenario.

    The recorded scenario gets the file's closed loop for its arrivals; of any other load the sending times tell all.

    Raises InputError: no such result, or one without ``--save-detailed`` (the key is named); a manifest with
    speculation where the file counts no drafts; ``out`` is not empty. LiveError: the disk refuses.
    """
    result = read_json(file)
    for key in _LISTS:
        if not isinstance(result.get(key), list):
            message = "missing; write the file with vllm bench serve --save-result --save-detailed"
            raise InputError(message, file=str(file), key=key)
        count = len(result["input_lens"])  # the first of them
        if len(result[key]) != count:
            raise InputError(f"{count} values are needed, as input_lens has", file=str(file), key=key)
    latencies: list[Any] | None = result.get("latencies")
    if latencies is not None and (not isinstance(latencies, list) or len(latencies) != count):
        raise InputError(f"{count} values are needed, as input_lens has", file=str(file), key="latencies")
    requests, chunks = tables(_lines(file, result, latencies or [None] * count))
    if not any(result["itls"]) and (requests["output_tokens"] > 1).any():
        if latencies is None:
            raise InputError("no gap in it, and no latencies that tell when answers end", file=str(file), key="itls")
        chunks = chunks.head(0)  # when the pieces came is not known
    if manifest.get("speculative_config") is not None and BENCH_KEYS[0] not in result:
        message = "not found, and the scenario speculates; give --speculative-config null where the server did not"
        raise InputError(message, file=str(file), key=BENCH_KEYS[0])
    scenario = manifest.get("scenario", {})
    workload = {key: value for key, value in scenario.get("workload", {}).items() if key != "arrivals"}
    if without_rate(result) and result.get("max_concurrency") is not None:
        workload["arrivals"] = closed_loop(result, str(file))[1]
    if workload:
        manifest["scenario"] = scenario | {"workload": workload}
    values = {
        "name": str(result.get("label") or file.stem),
        "server": _SERVER | {"model": str(result.get("model_id") or "")},
        "client": {"source": f"vllm bench serve, {file.name}"},
        "acceptance": read_metrics(file).counts() if all(map(result.get, (*BENCH_KEYS, BENCH_RATES))) else None,
    }
    writer = LiveRunWriter.create(out, **(values | manifest))
    failed = sum(bool(error) for error in result["errors"])
    return writer.finish(f"{failed} of {count} requests failed" if failed else "", (requests, chunks))


def _lines(file: Path, result: dict[str, Any], latencies: Sequence[Any]) -> Iterator[list[Any]]:
    for key in ("input_lens", "output_lens"):
        for length, error in zip(result[key], result["errors"], strict=True):
            if type(length) is not int or length < (0 if error else 1):
                raise InputError("must be whole numbers of tokens, 1 or more", file=str(file), key=key, value=length)
    # A request that failed before it was sent has no start.
    pairs = zip(result["start_times"], result["errors"], strict=True)
    try:
        zero = min((float(start) for start, error in pairs if not error), default=0.0)
    except _BAD:
        raise InputError("must be numbers", file=str(file), key="start_times") from None
    rows = zip(*(result[key] for key in _LISTS), latencies, strict=True)
    for number, (prompt, output, start, ttft, itls, error, latency) in enumerate(rows):
        try:
            due_s = max(float(start) - zero, 0.0)
            yield ["r", number, "default", due_s, int(prompt), int(output)]
            yield ["s", number, due_s]
            if error:
                yield ["e", number, due_s, " ".join(str(error).split())[:300]]
                continue
            at = due_s + float(ttft)
            yield ["c", number, at, 1 if itls else int(output)]
            rest = int(output) - 1
            for piece, gap in enumerate(itls):
                at += float(gap)
                yield ["c", number, at, rest * (piece + 1) // len(itls) - rest * piece // len(itls)]
            if not itls and int(output) > 1 and latency is not None:
                if float(latency) < float(ttft):
                    raise ValueError
                at = due_s + float(latency)
            if not math.isfinite(at) or int(output) < 1:
                raise ValueError
            yield ["f", number, at, -1]
        except _BAD:
            message = "its lengths, times and gaps do not fit together"
            raise InputError(message, file=str(file), key=f"request {number}") from None


REQUESTS, META = "requests.jsonl", "meta.json"
_COUNTS = ("input_toks", "output_toks")
_TIMES = ("arrival_time", "queued_ts", "first_token_ts", "last_token_ts")


def is_recorded_run(folder: Path) -> bool:
    return (folder / REQUESTS).is_file() and (folder / META).is_file()


def import_recorded_run(folder: Path, out: Path) -> LiveRun:
    """Write the run in ``folder`` as a live run into ``out``.

    Raises InputError: a line that is no such request, no request at all, or ``meta.json`` is no mapping (file and line
    are named); ``out`` is not empty. LiveError: the disk refuses.
    """
    meta = read_json(folder / META)
    rows = _requests(folder / REQUESTS)
    offset_s = min(row["queued_ts"] - row["arrival_time"] for row in rows)
    start_s = min(row["arrival_time"] for row in rows) + offset_s
    lines: list[list[Any]] = []
    for number, row in enumerate(rows):
        sent_s, outputs = row["arrival_time"] + offset_s - start_s, row["output_toks"]
        lines.append(["r", number, "default", sent_s, row["input_toks"], outputs])
        lines.append(["s", number, sent_s])
        lines.append(["c", number, row["first_token_ts"] - start_s, outputs])
        lines.append(["f", number, row["last_token_ts"] - start_s, -1])
    requests, chunks = tables(lines)
    # The engine's arguments, what it resolved them to where the file says so, and its KV blocks.
    parts = [part for part in (meta.get("engine_kwargs"), meta.get("kv_cache")) if isinstance(part, dict)]
    arguments = ((name, part[name]) for part in parts for name in KNOWN["recorded"] if name in part)
    config = {name: value for name, value in dict(arguments).items() if value or value is False}
    server = _SERVER | {"version": str(meta.get("vllm_version", "")), "config": config}
    client = {"source": f"LLMServingSim's benchmark, {folder.name}"}
    writer = LiveRunWriter.create(out, name=folder.name, server=server, client=client)
    return writer.finish("", (requests, chunks.head(0)))  # when the pieces came is not known


def _requests(file: Path) -> list[dict[str, Any]]:
    rows = []
    for number, line in json_lines(read_text(file), str(file)):
        row: dict[str, Any] = {name: line.get(name) for name in (*_COUNTS, *_TIMES)}
        for name, value in row.items():
            if type(value) not in (int, float) or not math.isfinite(value):
                raise InputError("a number is needed", file=str(file), line=number, key=name, value=value)
        if not all(row[name] >= 1 and row[name] == int(row[name]) for name in _COUNTS):
            raise InputError("whole numbers >= 1 are needed", file=str(file), line=number, key=", ".join(_COUNTS))
        if not row["queued_ts"] <= row["first_token_ts"] <= row["last_token_ts"]:
            raise InputError("queued_ts, first_token_ts and last_token_ts must not fall", file=str(file), line=number)
        rows.append(row)
    if not rows:
        raise InputError("holds no request", file=str(file))
    return rows
