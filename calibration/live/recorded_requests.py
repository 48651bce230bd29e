"""A run that LLMServingSim's benchmark recorded (``requests.jsonl``, ``meta.json``) as a live run of ours.

A line of ``requests.jsonl`` is a request: input_toks, output_toks, arrival_time (wall clock, s), queued_ts,
first_token_ts, last_token_ts (the engine's monotonic clock, s). The smallest ``queued_ts - arrival_time`` is the offset
of the two clocks: the request that was on its way for the shortest time. ``meta.json`` holds the engine's arguments. It
tells nothing of the pieces of an answer, so gaps between tokens are not compared.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd

from draftcast.calibration.live.journal import CHUNKS_DTYPES
from draftcast.calibration.live.run_directory import LiveRun, LiveRunWriter
from draftcast.errors import InputError
from draftcast.files import read_json, read_text

REQUESTS, META = "requests.jsonl", "meta.json"
_COUNTS = ("input_toks", "output_toks")
_TIMES = ("arrival_time", "queued_ts", "first_token_ts", "last_token_ts")
# Arguments of vLLM that a scenario has too.
_ARGUMENTS = (
    "model",
    "tensor_parallel_size",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "gpu_memory_utilization",
    "enable_prefix_caching",
    "enforce_eager",
)


def is_recorded_run(folder: Path) -> bool:
    """Whether there are the two files of such a run."""
    return (folder / REQUESTS).is_file() and (folder / META).is_file()


def import_recorded_run(folder: Path, out: Path) -> LiveRun:
    """Write the run in ``folder`` as a live run into ``out``.

    Raises:
        InputError: a line that is no such request, no request at all, or ``meta.json`` is no mapping; file and line
            are named. ``out`` is not empty.
        LiveError: the disk refuses.
    """
    meta = read_json(folder / META)
    frame = _requests(folder / REQUESTS)
    offset_s = float((frame["queued_ts"] - frame["arrival_time"]).min())
    start_s = float(frame["arrival_time"].min()) + offset_s
    sent_s = frame["arrival_time"] + offset_s - start_s
    requests = pd.DataFrame(
        {
            "request_id": range(len(frame)),
            "class": "default",
            "due_s": sent_s,
            "sent_s": sent_s,
            "first_token_s": frame["first_token_ts"] - start_s,
            "finish_s": frame["last_token_ts"] - start_s,
            "prompt_tokens": frame["input_toks"],
            "output_tokens_wanted": frame["output_toks"],
            "output_tokens": frame["output_toks"],
            "error": "",
            "wrong_tokens": -1,
        }
    )
    server = {"command": [], "url": "", "version": str(meta.get("vllm_version", "")), "log": False}
    client = {"source": f"LLMServingSim's benchmark, {folder.name}"}
    writer = LiveRunWriter.create(out, name=folder.name, server=server | {"config": _config(meta)}, client=client)
    return writer.finish("", requests, pd.DataFrame({name: [] for name in CHUNKS_DTYPES}))


def _config(meta: dict[str, Any]) -> dict[str, Any]:
    """The engine's arguments, what it resolved them to where the file says so, and its KV blocks."""
    given, cache = meta.get("engine_kwargs"), meta.get("kv_cache")
    values = {**(given if isinstance(given, dict) else {}), **(cache if isinstance(cache, dict) else {})}
    known = {name: values[name] for name in (*_ARGUMENTS, "num_gpu_blocks", "block_size") if values.get(name)}
    return known | {name: values[name] for name in _ARGUMENTS if values.get(name) is False}


def _requests(file: Path) -> pd.DataFrame:
    rows = []
    for number, text in enumerate(read_text(file).splitlines(), start=1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        if not isinstance(line, dict):
            raise InputError("a JSON object is needed", file=str(file), line=number)
        for name in (*_COUNTS, *_TIMES):
            value = line.get(name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise InputError("a number is needed", file=str(file), line=number, key=name, value=value)
        if not all(line[name] >= 1 and line[name] == int(line[name]) for name in _COUNTS):
            raise InputError(
                "whole numbers >= 1 are needed", file=str(file), line=number, key="input_toks, output_toks"
            )
        if not line["queued_ts"] <= line["first_token_ts"] <= line["last_token_ts"]:
            message = "queued_ts, first_token_ts and last_token_ts must not fall"
            raise InputError(message, file=str(file), line=number)
        rows.append({name: line[name] for name in (*_COUNTS, *_TIMES)})
    if not rows:
        raise InputError("holds no request", file=str(file))
    return pd.DataFrame(rows)
