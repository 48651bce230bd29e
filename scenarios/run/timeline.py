"""Queue, batch and KV cache of a run over time, in as many equal stretches as a picture can show.

Each value is the exact time average of its stretch, so that no spike falls between two samples unseen.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from draftcast.kernels.arrays import FloatArray

STRETCHES = 160


@dataclass(frozen=True)
class Timeline:
    """One replication."""

    time_s: FloatArray  # middle of each stretch, shape [n]
    waiting: FloatArray  # requests that arrived and were not scheduled yet, mean over the stretch
    running: FloatArray  # requests that were scheduled and have not finished (preempted ones included)
    kv_usage: FloatArray | None  # share of the KV blocks in use; None when steps were not recorded


def timeline(requests: pd.DataFrame, steps: pd.DataFrame | None, num_blocks: int) -> Timeline:
    """The timeline of one replication, from its first arrival to its last event.

    Args:
        requests, steps: as of ``Replication``; None: steps were not recorded.
        num_blocks: KV blocks that a replica has for requests.
    """
    arrival, scheduled, finish = (
        requests[name].to_numpy(np.float64) for name in ("arrival_s", "first_scheduled_s", "finish_s")
    )
    end = float(np.nanmax(np.concatenate([arrival, scheduled, finish])))
    edges = np.linspace(float(arrival.min()), end, STRETCHES + 1)
    waiting, started = _mean_between(arrival, scheduled, edges), np.isfinite(scheduled)
    running = _mean_between(scheduled[started], finish[started], edges)
    kv_usage = None
    if steps is not None:
        areas = [_step_area(own, edges) for _, own in steps.groupby("replica")]
        used = np.diff(sum(areas, np.zeros(edges.size))) / np.diff(edges)
        kv_usage = used / (num_blocks * max(len(areas), 1))
    return Timeline((edges[1:] + edges[:-1]) / 2, waiting, running, kv_usage)


def _mean_between(start: FloatArray, stop: FloatArray, edges: FloatArray) -> FloatArray:
    """Mean number of intervals [start, stop) that are open in each stretch; a NaN stop never comes."""
    stop = np.where(np.isfinite(stop), stop, np.inf)
    return np.asarray(np.diff(_started_area(start, edges) - _started_area(stop, edges)) / np.diff(edges))


def _started_area(times: FloatArray, edges: FloatArray) -> FloatArray:
    """Integral up to each edge of the number of ``times`` passed."""
    ordered = np.sort(times[np.isfinite(times)])
    count = np.searchsorted(ordered, edges)
    total = np.concatenate([[0.0], np.cumsum(ordered)])
    return np.asarray(count * edges - total[count])


def _step_area(steps: pd.DataFrame, edges: FloatArray) -> FloatArray:
    """Integral of the blocks one replica uses: what a step holds lasts to the next one's end, or until it is idle."""
    ends = (steps["start_s"] + steps["duration_s"]).to_numpy(np.float64)
    used = steps["kv_used_blocks"].to_numpy(np.float64)
    used = np.where((steps["running"] + steps["waiting"]).to_numpy() > 0, used, 0.0)
    area = np.concatenate([[0.0], np.cumsum(used[:-1] * np.diff(ends))])
    return np.asarray(np.interp(edges, ends, area))
