"""vLLM's iteration log as a table: one row per engine step, from the lines of ``--enable-logging-iteration-details``.

Two forms are read. Since the line moved to the front end (vLLM pull request 46647; 0.27.1 and 0.32 have it):
``Engine 000: Iteration(7): 1 context requests, 409 context tokens, 0 generation requests, 0 generation tokens,
iteration elapsed time: 12.41 ms, GPU KV cache usage: 0.2%`` with `` (dummy)`` after ``ms`` for an idle data-parallel
rank and encoder figures at the end where there are any. Before (pull request 31193), ``EngineCore`` wrote it without
engine number and KV usage.

The line does not say the number of KV tokens (`draftcast.calibration.engine_log.steps` derives it), how many drafts
were accepted, and how long the whole step took. ``elapsed`` is the wait for the step's result after its dispatch
(``EngineCore.step``): nearly the whole step with worker processes and synchronous scheduling, but maybe next to nothing
with asynchronous scheduling or the worker inside the engine's process (one GPU). The time stamps say how long a step
took; ``--logging-config.formatter json`` stamps milliseconds, the default whole seconds.
"""

import math
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd

from draftcast.errors import InputError
from draftcast.files import open_input
from draftcast.yaml_text import yaml_beside

COLUMNS: dict[str, str] = yaml_beside(__file__, "columns.yaml")

# A longer line is read in pieces and the text before an iteration counts this far back, so time grows with size alone.
_LONGEST_LINE, _LONGEST_HEAD = 2**16, 1_000
_MOST_DAMAGED = 0.01  # with more unreadable iteration lines it is no log of vLLM; a few are torn or interleaved

_ITERATION = re.compile(
    r"Iteration\((?P<step>\d{1,15})\): (?P<context_requests>\d{1,9}) context requests, "
    r"(?P<context_tokens>\d{1,9}) context tokens, "
    r"(?P<generation_requests>\d{1,9}) generation requests, (?P<generation_tokens>\d{1,9}) generation tokens, "
    r"iteration elapsed time: (?P<elapsed_ms>\d{1,12}(?:\.\d{1,9})?) ms(?P<dummy> \(dummy\))?"
    r"(?:, \w{1,20} KV cache usage: (?P<kv_usage>\d{1,9}(?:\.\d{1,9})?)%"
    r"(?:, encoder inputs: (?P<encoder_inputs>\d{1,9}))?)?"
)
_COUNTS = [name for name in _ITERATION.groupindex if COLUMNS.get(name) == "int64"]
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_STAMP = re.compile(r"(?<!\d)(?:(\d{4})-)?(\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?")
_EPOCH = re.compile(r"(?<![\d.])(\d{10})\.(\d{3,9})(?![\d.])")
_ENGINE = re.compile(r"Engine (\d{1,9}): $")
_RANK = re.compile(r"EngineCore_DP(\d{1,9})")
_PROCESS = re.compile(r'\bpid=(\d+)|"process": (\d+)')
_CAPACITY = re.compile(r"KV cache size: ([\d,]{1,20}) tokens")
_BLOCK_SIZE = re.compile(r"'block_size': (\d{1,9})")
_START = re.compile(r"LLM engine \(v([^)]{1,99})\) with config: ")
_MODEL = re.compile(r"model='([^']*)'")
_SPECULATIVE = re.compile(r"speculative_config=(None|SpeculativeConfig\(([^)]{0,2000})\))")
_METHOD = re.compile(r"method='([^']*)'")
_DRAFTS = re.compile(r"num_spec_tokens=(\d{1,9})")
_EAGER = re.compile(r"\benforce_eager=(True|False)\b")


@dataclass
class _Facts:
    """What the log said at the server's start and holds for the steps after it."""

    kv_capacity_tokens: float = math.nan
    block_size: float = math.nan
    method: str = "?"
    num_speculative_tokens: int = 0
    enforce_eager: bool | None = None
    model: str = ""
    version: str = ""

    def read(self, text: str) -> None:
        if (start := _START.search(text)) and (config := _SPECULATIVE.search(text, start.end())):
            inner = config[2] or ""
            method, drafts = _METHOD.search(inner), _DRAFTS.search(inner)
            model = _MODEL.search(text, start.end())
            self.version, self.model = start[1], model[1] if model else ""
            self.method = "" if config[1] == "None" else method[1] if method else "?"
            self.num_speculative_tokens = int(drafts[1]) if drafts else 0
            eager = _EAGER.search(text)
            self.enforce_eager = eager[1] == "True" if eager else None
        elif capacity := _CAPACITY.search(text):
            self.kv_capacity_tokens = float(capacity[1].replace(",", ""))
        elif "non-default args: " in text:  # the first line of a server: nothing of an earlier one holds
            block = _BLOCK_SIZE.search(text)
            self.__dict__.update(vars(_Facts(block_size=float(block[1]) if block else math.nan)))


def read_engine_log(path: str | Path) -> pd.DataFrame:
    """Every iteration line of a log (plain or gzip), columns `COLUMNS`, ordered by run and step.

    Colours, prefixes, other lines, several engines and restarts in one file, a torn last line and JSON lines are all
    taken; ``attrs["damaged_lines"]`` counts the lines that were skipped. Logs of several servers go together with
    ``pandas.concat``.

    Raises InputError: unreadable, no iteration line, more than one in a hundred damaged, a line that contradicts
    itself; file and line are named.
    """
    file = str(path)
    facts = _Facts()
    rows: list[dict[str, Any]] = []
    damaged: list[int] = []
    with open_input(path) as opened:
        for number, line in enumerate(iter(lambda: opened.readline(_LONGEST_LINE), b""), start=1):
            text = _ANSI.sub("", line.decode("utf-8", "replace"))
            if "Iteration(" not in text:
                facts.read(text)
                continue
            matches = list(_ITERATION.finditer(text))
            # A line cut inside its KV usage would pass for one of the older form.
            whole = sum("KV cache usage" in text[match.end() : match.end() + 25] for match in matches) == 0
            if len(matches) < text.count("Iteration(") or not whole:
                damaged.append(number)
                continue
            rows += [_row(text, match, file, number) | vars(facts) for match in matches]
    if not rows:
        if damaged:
            raise InputError("not a whole iteration line of vLLM", file=file, line=damaged[0])
        message = "no iteration line of vLLM in it; start the server with --enable-logging-iteration-details"
        raise InputError(message, file=file)
    if len(damaged) > max(1.0, _MOST_DAMAGED * len(rows)):
        message = f"not an iteration line of vLLM; {len(damaged)} such lines beside {len(rows)} good ones"
        raise InputError(message, file=file, line=damaged[0])
    frame = pd.DataFrame(rows)
    # One life of each engine: an index seen again is a restart, a late one (several front ends) is not.
    process = [frame["engine"], frame["process"]]
    life = frame.groupby([*process, "step"]).cumcount().groupby(process).cummax()
    frame = frame.assign(run=frame.groupby([*process, life], sort=False).ngroup())[list(COLUMNS)].astype(COLUMNS)
    frame = frame.sort_values(["run", "step"], kind="stable", ignore_index=True)
    frame.attrs["damaged_lines"] = len(damaged)
    return frame


def _row(text: str, match: re.Match[str], file: str, number: int) -> dict[str, Any]:
    head = text[max(0, match.start() - _LONGEST_HEAD) : match.start()]
    time_s, resolution_s = _time(head)
    engine, rank = _ENGINE.search(head), _RANK.search(head)
    process = _PROCESS.search(head)
    row: dict[str, Any] = {
        "source": file,
        "line": number,
        "engine": int(engine[1]) if engine else int(rank[1]) if rank else 0,
        # Several front ends (ApiServer_0, ApiServer_1, ...) write of the same engine; other processes are servers.
        "process": "" if process is None or "ApiServer_" in text else process[1] or process[2],
        "time_s": time_s,
        "resolution_s": resolution_s,
        "elapsed_s": float(match["elapsed_ms"]) / 1000.0,
        "dummy": match["dummy"] is not None,
        "kv_usage": float(match["kv_usage"] or math.nan) / 100.0,
        **{name: int(match[name] or 0) for name in _COUNTS},
    }
    for kind in ("context", "generation"):
        requests, tokens = row[f"{kind}_requests"], row[f"{kind}_tokens"]
        if tokens < requests or (requests == 0) != (tokens == 0):
            raise InputError(f"{requests} {kind} requests cannot have {tokens} tokens", file=file, line=number)
    if row["kv_usage"] > 1.0:
        raise InputError("must be at most 100 %", file=file, line=number, key="KV cache usage", value=match["kv_usage"])
    return row


def _time(head: str) -> tuple[float, float]:
    """Seconds and resolution of the finest stamp before the message: a container's may stand before vLLM's own."""
    best = (math.nan, math.nan)
    for stamp in _EPOCH.finditer(head):
        best = (float(f"{stamp[1]}.{stamp[2]}"), 10.0 ** -len(stamp[2]))
    for stamp in _STAMP.finditer(head):
        resolution = 10.0 ** -len(stamp[4] or "")
        if not best[1] <= resolution:
            best = (_seconds(*stamp.group(1, 2, 3)) + float(f"0.{stamp[4] or 0}"), resolution)
    return best


def _seconds(year: str | None, day: str, time: str) -> float:
    """Seconds since 1970. vLLM's stamp has no year; 2000 stands for it, so a run over New Year breaks there."""
    try:
        return datetime.fromisoformat(f"{year or 2000}-{day}T{time}Z").timestamp()
    except ValueError:
        return math.nan
