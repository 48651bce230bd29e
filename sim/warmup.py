"""How many leading requests belong to the transient: MSER-5 on one run, or on the average over replications.

A cut that each replication picks from its own noise is biased: MSER keeps the stretch that varies least, and in a queue
that is the stretch with the shortest waits. For M/D/1 at rho = 0.5 and 1,000 requests the mean wait then comes out 3 %
low and a nominal 95 % interval covers 85 %. The average over replications shows the transient they share and little of
the noise (White 1997 on replicated data; Welch 1983): the bias falls below 1 % and the interval covers 94 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from draftcast.errors import InputError
from draftcast.sim.itl_histogram import ITL_SEGMENTS, segment_start
from draftcast.sim.request_columns import RequestColumns
from draftcast.sim.stability import Stability, assess
from draftcast.sim.statistics import mser5

__all__ = ["SharedWarmup", "Warmup", "find_warmup", "longest_warmup", "shared_warmup"]

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Warmup:
    """What was cut from the front before measuring."""

    requests: int  # leading requests left out of every figure; a multiple of a twentieth of the run
    start_s: float  # throughput counts what happens from here on: the arrival of the first measured request
    reliable: bool  # False when 'auto' found no end of the transient in the first half


def find_warmup(c: RequestColumns, warmup: Literal["none", "auto"] | int, stability: Stability) -> Warmup:
    """The cut of one run, rounded up to a twentieth of its requests.

    Raises:
        InputError: a number outside what the run allows.
    """
    n, wanted, reliable = c.arrival_s.size, 0, True
    last = segment_start(ITL_SEGMENTS - 1, n)
    if warmup == "auto":
        # Without a steady state (a growing queue, an offline batch) there is nothing to warm up to.
        wanted, reliable = _transient([c]) if stability.verdict == "stable" else (0, True)
        wanted = min(wanted, last)
    elif warmup != "none":
        wanted = warmup
    if not isinstance(wanted, int) or not 0 <= wanted <= last:
        raise InputError(f"must be 'none', 'auto' or a number from 0 to {last}", key="warmup", value=warmup)
    # The first segment that starts at or after the wanted request.
    requests = segment_start((wanted - 1) * ITL_SEGMENTS // n + 1, n)
    return Warmup(requests, float(c.arrival_s[requests:].min()), reliable)


@dataclass(frozen=True)
class SharedWarmup:
    """What to pass as ``warmup`` for each of several replications, and whether the end of the transient was found."""

    cuts: tuple[Literal["none"] | int, ...]
    reliable: bool


def shared_warmup(runs: Sequence[pd.DataFrame]) -> SharedWarmup:
    """One cut for the stable ones of several replications, none for the others.

    Args:
        runs: request tables in request order; replications of one scenario, lengths may differ.
    """
    columns = [RequestColumns.of(requests) for requests in runs]
    stable = [assess(c.arrival_s, c.scheduled_s, c.finish_s).verdict == "stable" for c in columns]
    wanted, reliable = _transient([c for c, is_stable in zip(columns, stable, strict=True) if is_stable])
    cuts: list[Literal["none"] | int] = [
        min(wanted, segment_start(ITL_SEGMENTS - 1, c.arrival_s.size)) if is_stable else "none"
        for c, is_stable in zip(columns, stable, strict=True)
    ]
    return SharedWarmup(tuple(cuts), reliable)


def longest_warmup(warmups: Sequence[SharedWarmup]) -> SharedWarmup:
    """For paired runs: in each replication the largest of their cuts."""
    cuts: list[Literal["none"] | int] = []
    for pair in zip(*(warmup.cuts for warmup in warmups), strict=True):
        numbers = [cut for cut in pair if not isinstance(cut, str)]
        cuts.append(max(numbers) if numbers else "none")
    return SharedWarmup(tuple(cuts), all(warmup.reliable for warmup in warmups))


def _transient(runs: Sequence[RequestColumns]) -> tuple[int, bool]:
    """Leading requests of the transient and whether its end was found.

    TPOT shows the batch filling up, TTFT the queue; the later of the two ends counts.
    """
    wanted, reliable = 0, True
    n = min((c.arrival_s.size for c in runs), default=0)
    for series in ([c.tpot_s[:n] for c in runs], [c.ttft_s[:n] for c in runs]) if n else ():
        stacked = np.array(series)
        known = np.isfinite(stacked)
        index = np.flatnonzero(known.any(axis=0))
        mean = np.where(known, stacked, 0.0).sum(axis=0)[index] / known.sum(axis=0)[index]
        found = mser5(mean)
        if found.cut:
            wanted = max(wanted, int(index[found.cut]))
            reliable = reliable and found.reliable
    return wanted, reliable
