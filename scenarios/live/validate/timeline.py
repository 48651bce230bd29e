"""Requests in the engine, requests waiting and KV blocks in use over time: from a log, or from simulated steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Timeline:
    """Levels at the ends of the steps, shape (steps,): seconds, requests in the step, waiting, share of KV blocks."""

    time_s: FloatArray
    running: FloatArray
    waiting: FloatArray
    kv_usage: FloatArray

    def means(self) -> dict[str, float]:
        """Time averages over the span of the steps; NaN for fewer than two."""
        levels = {"running": self.running, "waiting": self.waiting, "kv_usage": self.kv_usage}
        if len(self.time_s) < 2:
            return dict.fromkeys(levels, float("nan"))
        gaps = np.diff(self.time_s)
        return {name: float(np.average(level[:-1], weights=gaps)) for name, level in levels.items()}


def live_timeline(steps: pd.DataFrame, requests: pd.DataFrame) -> Timeline:
    """Of logged steps (`draftcast.calibration.live.composition.compose`) and the client's requests.

    Whoever has been sent, has no answer yet and is in no step waits (or is on its way).
    """
    time_s = steps["time_s"].to_numpy(np.float64)
    running = steps["seqs"].to_numpy(np.float64)
    sent = np.sort(requests["arrival_s"].to_numpy(np.float64))
    ended = np.sort(requests["finish_s"].to_numpy(np.float64))
    there = np.searchsorted(sent, time_s, side="right") - np.searchsorted(ended, time_s, side="right")
    usage = steps["kv_usage"].to_numpy(np.float64)
    return Timeline(time_s, running, np.maximum(there - running, 0.0), usage)


def simulated_timeline(steps: pd.DataFrame, num_blocks: int) -> Timeline:
    """Of recorded steps; ``num_blocks`` are those the engine can hand out."""
    time_s = (steps["start_s"] + steps["duration_s"]).to_numpy(np.float64)
    usage = steps["kv_used_blocks"].to_numpy(np.float64) / max(num_blocks, 1)
    return Timeline(time_s, steps["num_seqs"].to_numpy(np.float64), steps["waiting"].to_numpy(np.float64), usage)
