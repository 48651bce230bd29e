"""Queue, batch and KV cache of a run over time: exact time averages, so that no spike falls between samples unseen."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from draftcast.kernels.arrays import FloatArray
from draftcast.sim.output.results import integral

STRETCHES = 160


@dataclass(frozen=True)
class Timeline:
    """One replication."""

    time_s: FloatArray  # middle of each stretch, shape [n]
    waiting: FloatArray  # requests that arrived and were not scheduled yet, mean over the stretch
    running: FloatArray  # requests that were scheduled and have not finished (preempted ones included)
    kv_usage: FloatArray | None  # share of the KV blocks in use; None when steps were not recorded


def timeline(requests: pd.DataFrame, steps: pd.DataFrame | None, num_blocks: int, *, goes_on: bool = False) -> Timeline:
    """The timeline of one replication from its first arrival to its last event; with ``goes_on``, which says that later
    requests are not in the table, to its last arrival. ``num_blocks``: KV blocks of a replica; ``steps`` None: not
    recorded."""
    moments = requests[["arrival_s", "first_scheduled_s", "finish_s"]].to_numpy(np.float64)
    arrival, scheduled, finish = moments.T
    end = float(arrival.max() if goes_on else np.nanmax(moments))
    edges, started = np.linspace(float(arrival.min()), end, STRETCHES + 1), np.isfinite(scheduled)
    waiting = _means(arrival, scheduled, np.ones_like(arrival), edges)
    running = _means(scheduled[started], finish[started], np.ones(np.count_nonzero(started)), edges)
    kv_usage = None
    if steps is not None:
        used = [_blocks(rows, edges) for _, rows in steps.groupby(["replica", *steps.columns.intersection(["rank"])])]
        kv_usage = sum(used, np.zeros(STRETCHES)) / (num_blocks * max(len(used), 1))
    return Timeline((edges[1:] + edges[:-1]) / 2, waiting, running, kv_usage)


def _means(start: FloatArray, stop: FloatArray, amount: FloatArray, edges: FloatArray) -> FloatArray:
    """Mean in each stretch of the amounts that last from start to stop; a NaN stop never comes."""
    stop = np.where(np.isfinite(stop), stop, np.maximum(start, edges[-1]))
    return np.asarray(np.diff(integral(start, stop, amount, edges)) / np.diff(edges))


def _blocks(steps: pd.DataFrame, edges: FloatArray) -> FloatArray:
    """Blocks one replica uses: what a step holds lasts to the next one's end, or until it is idle."""
    ends = (steps["start_s"] + steps["duration_s"]).to_numpy(np.float64)
    busy = (steps["running"] + steps["waiting"]).to_numpy() > 0
    return _means(ends[:-1], ends[1:], (steps["kv_used_blocks"].to_numpy(np.float64) * busy)[:-1], edges)
