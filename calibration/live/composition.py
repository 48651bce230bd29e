"""What each logged step of a live run held, as the features a step cost takes: log and client put together.

vLLM's iteration line counts requests and tokens of a step; the client knows every request's prompt and when each piece
of its answer came. Together they say how long the contexts were. A step's outputs reach the client after the line is
written and before the next step's line, so what the client had at a line's time is what stood when that step began.
Neither saw which of several chunked prompts got how much of a step (taken: the oldest first, as vLLM's scheduler does),
and prompt tokens from the prefix cache (taken: a finished prompt's chunk is what the line counts).

Where the log's ``elapsed`` is nearly the whole step (worker processes and synchronous scheduling), it is the clock,
with the host's seconds beside it: it is stamped next to the engine, the line's own stamp waits for a busy front end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd

from draftcast.calibration.engine_log.log import read_engine_log
from draftcast.calibration.engine_log.steps import WHOLE_ELAPSED, TimedSteps, timed_steps
from draftcast.calibration.live.run_directory import LiveRun
from draftcast.errors import InputError
from draftcast.kernels.arrays import FloatArray

FEATURES = (
    "tokens",
    "seqs",
    *(f"{kind}_{count}" for kind in ("decode", "prefill") for count in ("seqs", "tokens", "kv", "qkv")),
    "logit_rows",
    *(f"draft_{count}" for count in ("seqs", "tokens", "passes", "kv")),
)
"""Features by the names of `draftcast.sim.cost.step_time` (``F_TOKENS``, ...), with its meanings."""

_ENTRY_S = 0.1  # a request that was sent this long before a step's beginning was in the engine by then
_ROUNDING_S = 0.001  # stamps are whole milliseconds, rounded down: a piece may seem to come before its step's line


def compose(log: pd.DataFrame, run: LiveRun) -> pd.DataFrame:
    """A row per logged step within the run, in order.

    Columns: the log's, with ``time_s`` in seconds since the run's start; `FEATURES`; ``kv_tokens`` and ``busy`` as
    `timed_steps` takes them; ``arrival_wait_s``: for the first step after an idle engine from the sending of its oldest
    request to the line, else NaN. ``log``: of `read_engine_log`, with time stamps. The k of the server's
    ``speculative_config`` (by batch size, where scheduled) says what each step drafted.

    Raises InputError: no step of the log falls into the run, or its lines have no stamps.
    """
    requests = run.requests
    log = _within(log, requests, float(run.manifest["start_unix_s"]))
    time_s = log["time_s"].to_numpy()
    follows = np.r_[False, (np.diff(log["step"]) == 1) & (np.diff(log["run"]) == 0)]
    before_s = np.where(follows, np.r_[np.nan, time_s[:-1]], np.nan)
    decode_seqs = log["generation_requests"].to_numpy(np.float64)
    decode_tokens = log["generation_tokens"].to_numpy(np.float64)
    cached = _mean_cached(requests, run.chunks, time_s) * decode_seqs
    decode_kv = cached + decode_tokens
    prefill = _prefills(log, requests, time_s, before_s)
    drafting = decode_seqs + prefill["done"]
    depth = _depths(run.manifest["speculative_config"], drafting)
    busy = (decode_seqs > 0.0) | prefill["waited"]
    return log.assign(
        tokens=decode_tokens + prefill["tokens"],
        seqs=decode_seqs + prefill["seqs"],
        decode_seqs=decode_seqs,
        decode_tokens=decode_tokens,
        decode_kv=decode_kv,
        decode_qkv=decode_kv * decode_tokens / np.maximum(decode_seqs, 1.0),
        **{f"prefill_{count}": prefill[count] for count in ("seqs", "tokens", "kv", "qkv")},
        logit_rows=decode_tokens + prefill["seqs"],  # vLLM samples every request of a step, unfinished prompts too
        draft_seqs=np.where(depth > 0.0, drafting, 0.0),
        draft_tokens=depth * drafting,
        draft_passes=np.where(drafting > 0.0, depth, 0.0),
        draft_kv=np.where(depth > 0.0, decode_kv + prefill["done_kv"], 0.0),
        kv_tokens=cached + prefill["kv"] - prefill["tokens"],
        busy=busy,
        arrival_wait_s=np.where(busy, np.nan, time_s - prefill["sent_s"]),
    )


def _within(log: pd.DataFrame, requests: pd.DataFrame, start_unix_s: float) -> pd.DataFrame:
    """Steps from the first request's sending to the last one's end, ``time_s`` in seconds since the run's start."""
    source = str(log["source"].iloc[0])
    if log["time_s"].isna().all():
        raise InputError("its lines have no time stamps; start vLLM with --logging-config.formatter json", file=source)
    first_s = float(requests["sent_s"].min())
    last_s = float(np.nanmax(requests[["sent_s", "first_token_s", "finish_s"]].to_numpy()))
    best = log.head(0)
    # vLLM writes local time without a zone. A server in a container usually runs in UTC.
    for moment in (datetime.fromtimestamp(start_unix_s), datetime.fromtimestamp(start_unix_s, UTC)):
        naive = moment.replace(tzinfo=None)
        if log["time_s"].max() < datetime(2001, 1, 1, tzinfo=UTC).timestamp():
            naive = naive.replace(year=2000)  # stamps without a year, see `read_engine_log`
        time_s = log["time_s"] - naive.replace(tzinfo=UTC).timestamp()
        inside = log.assign(time_s=time_s)[(time_s > first_s) & (time_s < last_s + 1.0)]
        best = inside if len(inside) > len(best) else best
    if not len(best):
        raise InputError("no iteration line falls into the time of the run", file=source)
    return best[~best["dummy"]].reset_index(drop=True)


def _mean_cached(requests: pd.DataFrame, chunks: pd.DataFrame, time_s: FloatArray) -> FloatArray:
    """Mean tokens in the KV cache of the requests that decode at each time: all but the last one of each."""
    pieces = chunks.merge(requests[["request_id", "prompt_tokens", "finish_s"]], on="request_id")
    first = ~pieces.duplicated("request_id")
    ends = requests[requests["finish_s"].notna()]
    lengths = ends["prompt_tokens"] + ends["output_tokens"] - 1
    at = np.concatenate([pieces["time_s"], ends["finish_s"]])
    tokens = np.concatenate([pieces["tokens"] + np.where(first, pieces["prompt_tokens"] - 1, 0), -lengths])
    count = np.concatenate([first.astype(np.float64), -np.ones(len(ends))])
    order = np.argsort(at, kind="stable")
    upto = np.searchsorted(at[order], time_s - _ROUNDING_S, side="right")
    running = np.r_[0.0, np.cumsum(count[order])][upto]
    return np.asarray(np.r_[0.0, np.cumsum(tokens[order])][upto] / np.maximum(running, 1.0), dtype=np.float64)


def _prefills(log: pd.DataFrame, requests: pd.DataFrame, time_s: FloatArray, before_s: FloatArray) -> dict[str, Any]:
    """What the prompts of each step were: arrays by step.

    ``done``, ``done_kv``: requests whose prompt ends here, and their prompt tokens. ``waited``: the oldest was in the
    engine before the step began. ``sent_s``: when the oldest was sent (NaN without prompts).
    """
    seqs = log["context_requests"].to_numpy(np.int64)
    tokens = log["context_tokens"].to_numpy(np.int64)
    ordered = requests.sort_values("sent_s", kind="stable")
    sent_s = ordered["sent_s"].to_numpy()
    first_s = ordered["first_token_s"].to_numpy()
    prompt = ordered["prompt_tokens"].to_numpy(np.int64)
    progress = np.zeros(len(ordered), dtype=np.int64)
    # The step that made a request's first token: the last one whose line came before that token did.
    made_in = np.searchsorted(time_s - _ROUNDING_S, first_s, side="right") - 1
    made_in[np.isnan(first_s)] = len(time_s)
    by_step = ordered.groupby(made_in).indices
    result = {name: np.zeros(len(log)) for name in ("kv", "qkv", "done", "done_kv")}
    result["sent_s"] = np.full(len(log), np.nan)
    waited = np.zeros(len(log), dtype=np.bool_)
    oldest = 0
    for step in np.flatnonzero(seqs):
        done = by_step.get(int(step), np.zeros(0, dtype=np.int64))[: seqs[step]]
        while oldest < len(ordered) and made_in[oldest] < step:
            oldest += 1
        members = list(done)
        for request in range(oldest, len(ordered)):
            if len(members) == seqs[step] or not sent_s[request] < time_s[step]:
                break
            if made_in[request] > step:
                members.append(request)
        left = int(tokens[step])
        for place, request in enumerate(members):
            others = len(members) - place - 1
            wanted = prompt[request] - progress[request]
            chunk = max(min(int(wanted), left - others), 1) if others or request in done else max(left, 1)
            # Of a finished prompt the context is known even where the prefix cache held part of it.
            end = prompt[request] if request in done else min(progress[request] + chunk, prompt[request])
            progress[request] = end
            left -= chunk
            result["kv"][step] += end
            result["qkv"][step] += chunk * (end - 0.5 * (chunk - 1))
        result["done"][step] = len(done)
        result["done_kv"][step] = prompt[done].sum()
        if members:
            result["sent_s"][step] = sent_s[members].min()
            waited[step] = result["sent_s"][step] + _ENTRY_S < before_s[step]
    return {**result, "seqs": seqs.astype(np.float64), "tokens": tokens.astype(np.float64), "waited": waited}


def _depths(speculative_config: Mapping[str, Any] | None, drafting: FloatArray) -> FloatArray:
    """Drafts made for each of ``drafting`` requests."""
    if not speculative_config:
        return np.zeros(len(drafting))
    depth = np.full(len(drafting), float(speculative_config.get("num_speculative_tokens") or 0))
    for first, last, scheduled in speculative_config.get("num_speculative_tokens_per_batch_size") or ():
        depth[(drafting >= first) & (drafting <= last)] = scheduled
    return depth


@dataclass(frozen=True)
class TimedRun(TimedSteps):
    run: LiveRun
    method: str  # how the server drafted; "" without speculative decoding
    k: int
    steps: pd.DataFrame  # every logged step of the run, columns of `compose`

    @property
    def label(self) -> str:
        how = f"{self.method} k={self.k}" if self.method else "off"
        return f"{run_name(self.run)} ({how})"


def run_name(run: LiveRun) -> str:
    """The run's folder with the one it lies in: a sweep's runs of one mode have the same last name."""
    return "/".join(run.folder.resolve().parts[-2:])


def composed_steps(run: LiveRun) -> pd.DataFrame:
    """Every logged step with what it held. Raises InputError: no log, or one that does not belong to the run."""
    if run.server_log is None:
        raise InputError("has no server.log, so its steps are not known", file=str(run.folder))
    return compose(read_engine_log(run.server_log), run)


def timed_run(run: LiveRun, steps: pd.DataFrame, more: Sequence[str] = ()) -> TimedRun:
    """The run's steps, of `composed_steps`, with their time; ``more``: further columns, to be summed.

    Raises InputError: no step can be timed.
    """
    # No warm-up is left out: the client did that, and the first steps are often the only ones with many prompts.
    names = (*FEATURES, *more)
    timed = timed_steps(steps, "auto", 0, names)
    if timed.clock == "wall" and timed.elapsed_share >= WHOLE_ELAPSED:
        timed = timed_steps(steps, "elapsed", 0, names)
    spec = run.manifest["speculative_config"] or {}
    method = str(spec.get("method") or ("draft_model" if spec.get("model") else ""))
    return TimedRun(**vars(timed), run=run, method=method, k=int(spec.get("num_speculative_tokens") or 0), steps=steps)
