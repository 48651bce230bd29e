"""A measured run beside simulated ones: what its client saw, as figures under the names a simulation gives them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from draftcast.calibration.live.run_directory import LiveRun
from draftcast.errors import InputError
from draftcast.sim.compiled.itl_histogram import itl_histogram
from draftcast.sim.output.metrics import compute_metrics
from draftcast.sim.output.results import TIME_COLUMNS
from draftcast.sim.workload.workload import Slo

_LATENCIES = ("_ttft_s", "_tpot_s", "_itl_s", "_e2el_s")
_THROUGHPUT = ("request_throughput", "request_goodput", "output_throughput", "total_token_throughput")
# What no client can see; the metrics want the columns all the same and what they make of them is left out.
_UNSEEN = ("cached_tokens", "preemptions", "num_drafts", "num_draft_tokens", "num_accepted_tokens", *TIME_COLUMNS)


@dataclass(frozen=True)
class MeasuredRun:
    """A live run's figures, over the whole run: nothing is cut off."""

    figures: Mapping[str, float]  # latencies in seconds, throughput per second, the server's count of acceptance
    requests: pd.DataFrame  # answered requests, with the columns of a simulated run that a client knows
    facts: Mapping[str, str]  # what was recorded about server and load, for people
    notes: tuple[str, ...]  # what a reader must know


def read_measured_run(folder: Path, slo: Slo | None = None) -> MeasuredRun:
    """The figures of a live run directory (a ``vllm bench serve`` result comes as one through ``import_bench_result``)
    with goodput under ``slo``. Raises InputError: no live run, a damaged one, or one without an answered request."""
    live = LiveRun.read(folder)
    requests = answered_requests(live)
    if requests.empty:
        raise InputError("no request was answered", file=str(folder))
    counts = itl_histogram(*piece_gaps(live.chunks, requests["request_id"].to_numpy()), len(requests))
    values = compute_metrics(requests, counts, slo=slo).values
    seen = {name: value for name, value in values.items() if name.endswith(_LATENCIES) or name in _THROUGHPUT}
    if slo is not None:
        seen["slo_attainment"] = values["slo_attainment"]
    lost = len(live.requests) - len(requests)
    notes = [f"incomplete: {live.manifest['incomplete_reason']}"] if not live.complete else []
    notes += [f"{lost} of {len(live.requests)} requests were not answered and are left out"] if lost else []
    return MeasuredRun(seen | counted_acceptance(live), requests, _facts(live, requests), tuple(notes))


def answered_requests(live: LiveRun) -> pd.DataFrame:
    """Those that were answered, by their sending, in a simulated run's columns; what a client cannot see is 0."""
    rows = live.requests
    rows = rows[(rows["error"] == "") & rows["finish_s"].notna() & (rows["output_tokens"] > 0)]
    rows = rows.sort_values("sent_s", kind="stable")
    seen = ["request_id", "class", "first_token_s", "finish_s", "prompt_tokens", "output_tokens"]
    sent_s = rows["sent_s"].to_numpy()
    # When the engine began is not the client's to know.
    times = {"request": np.arange(len(rows)), "arrival_s": sent_s, "first_scheduled_s": sent_s}
    return rows[seen].reset_index(drop=True).assign(**times, **dict.fromkeys(_UNSEEN, 0.0))


def piece_gaps(chunks: pd.DataFrame, ids: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Seconds between the pieces of the same answer, and the position in ``ids`` of the request each belongs to."""
    position = pd.Series(np.arange(len(ids)), index=ids)
    pieces = chunks[chunks["request_id"].isin(ids)].sort_values(["request_id", "time_s"], kind="stable")
    gap_s = pieces.groupby("request_id")["time_s"].diff()
    later = gap_s.notna()
    return gap_s[later].to_numpy(np.float64), position[pieces.loc[later, "request_id"]].to_numpy(np.int64)


def counted_acceptance(live: LiveRun) -> dict[str, float]:
    """The server's own count: mean acceptance length, rate, and rates by position; empty where nothing was drafted."""
    counted = live.manifest["acceptance"]
    if not counted or not counted["num_drafts"] or not counted["num_draft_tokens"]:
        return {}
    drafts, accepted = counted["num_drafts"], counted["num_accepted_tokens"]
    return {
        "mean_acceptance_length": 1.0 + accepted / drafts,
        "acceptance_rate": accepted / counted["num_draft_tokens"],
        **{f"acceptance_rate_position_{place}": count / drafts for place, count in enumerate(counted["per_position"])},
    }


def _facts(live: LiveRun, requests: pd.DataFrame) -> dict[str, str]:
    manifest = live.manifest
    client, server = manifest["client"], manifest["server"]
    span_s = float(requests["arrival_s"].iloc[-1] - requests["arrival_s"].iloc[0])
    rate = f"{(len(requests) - 1) / span_s:.3g} req/s sent" if span_s > 0 else "sent at once"
    unknown = "on, setting not recorded" if counted_acceptance(live) else "not recorded or off"
    return {
        "source": str(client.get("source") or "draftcast live run"),
        "requests": f"{len(requests):,}, {rate}",
        "speculation": str(manifest["speculative_config"] or unknown),
        "server": f"vLLM {server['version']}" if server.get("version") else "not recorded",
        "recorded": str(manifest["created_at"]),
    }
