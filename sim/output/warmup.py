"""How long a run that begins empty takes to forget it: how many leading requests its figures leave out.

A cut that is read off a run's own ups and downs (MSER and its like) keeps the stretch that varies least, and near the
capacity the transient is too slow to be seen in the noise at all. The transient is therefore calculated. Requests that
all took the same time as in the steady state would leave the share ``E[(S - t)+] / E[S]`` of the steady number in
system missing at time t (M/G/infinity that starts empty, S the time in system). But with fewer requests in the system
each is served faster, leaves earlier, and the number falls short by more: the missing share y obeys the renewal
equation ``y(t) = G(t) + phi * integral of g(x) y(t - x) dx``, where G is that share, ``g = -dG/dt``, and phi the
elasticity of the time a token takes in the number in system, which the run's own stretches of more and fewer requests
show. TPOT, E2E and TTFT miss y times their own elasticity; the slowest of the four decides. The number in system of the
bundled chat scenario without speculation at 55 requests/s, averaged over 300 runs, misses 13, 7 and 3 % after 500, 750
and 1,000 requests; this gives 21, 10 and 5 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd

from draftcast.sim.output.request_columns import RequestColumns, integral

FloatArray = npt.NDArray[np.float64]

FORGOTTEN = 0.002
"""Share of its steady value that a series may miss when the warm-up ends."""
MOST_SHORTFALL = 0.25
"""A run whose mean latency may miss more than this share has not settled."""
MOST_ELASTICITY = 0.98  # at 1 the capacity is reached and nothing is ever forgotten
SLOWEST_SERIES = 20.0  # a TTFT that is nearly all queue misses at most so many times what the number in system misses
STEPS_PER_RESIDENCE = 20
MOST_STEPS = 4000
FEWEST_WINDOWS = 4


@dataclass(frozen=True)
class Warmup:
    """What to leave out at the front before measuring."""

    requests: int  # leading requests, at most half of them
    is_over: bool  # whether the transient ends within that half
    # By how much the E2E latency of each request falls short of the steady state, f8[n], as a share of it
    missing: FloatArray = field(repr=False)

    def shortfall(self, cut: int) -> float:
        """Share of the steady state's mean E2E latency that the requests from ``cut`` on still miss."""
        return float(self.missing[cut:].mean())


def find_warmup(runs: Sequence[pd.DataFrame], *, closed_loop: bool) -> Warmup:
    """The warm-up of the replications of one steady scenario, one for all of them.

    Args:
        runs: request tables in request order.
        closed_loop: users keep the number in system; only its mixture of ages has to settle.
    """
    columns = [RequestColumns.of(requests) for requests in runs]
    n = min(c.arrival_s.size for c in columns)
    late = [slice(c.arrival_s.size // 2, None) for c in columns]
    residence_s = np.concatenate([c.e2el_s[half][c.finished[half]] for c, half in zip(columns, late, strict=True)])
    if not residence_s.size:
        return Warmup(n // 2, False, np.ones(n))
    of_time, of_ttft = (0.0, 1.0) if closed_loop else _elasticities(columns, float(residence_s.mean()))
    at_s, missing = _missing_share(residence_s, of_time)
    # A request that arrives later than the calculation reaches misses as much as the last that was calculated.
    arrivals = np.mean([np.sort(c.arrival_s)[:n] for c in columns], axis=0)
    number = np.interp(arrivals - arrivals[0], at_s, missing)
    over = np.flatnonzero(max(1.0, of_ttft) * number <= FORGOTTEN)
    cut = int(over[0]) if over.size else n
    latency = number * (of_time if not closed_loop else 1.0)
    return Warmup(min(cut, n // 2), cut <= n // 2, latency)


def _elasticities(columns: Sequence[RequestColumns], residence_s: float) -> tuple[float, float]:
    """Of the time a token takes, and of TTFT, in the number in system, at its mean over the later half of the runs.

    From windows of one mean residence: by Little's law a token takes the number in system over tokens per second.
    """
    numbers, token_s, ttft_s, steady = [], [], [], []
    for c in columns:
        start, end = float(c.arrival_s.min()), float(c.arrival_s.max())
        # Where hardly any request meets another, a window of one residence would mostly be empty.
        count = min((end - start) / residence_s, c.arrival_s.size) if residence_s > 0 else 0
        edges = np.linspace(start, end, max(int(count), FEWEST_WINDOWS) + 1)
        done = c.finished
        arrival, finish = c.arrival_s[done], c.finish_s[done]
        rate = c.output[done] / np.maximum(finish - arrival, 1e-9)
        number = np.diff(integral(arrival, finish, np.ones_like(rate), edges)) / np.diff(edges)
        tokens = np.diff(integral(arrival, finish, rate, edges)) / np.diff(edges)
        window = np.clip(np.searchsorted(edges, arrival, side="right") - 1, 0, number.size - 1)
        came = np.bincount(window, minlength=number.size)
        waited = np.bincount(window, weights=c.ttft_s[done], minlength=number.size)
        known = (tokens > 0) & (came > 0)
        numbers.append(number[known])
        token_s.append(number[known] / tokens[known])
        ttft_s.append(waited[known] / came[known])
        steady.append(number[number.size // 2 :].mean())
    x, mean = np.concatenate(numbers), float(np.mean(steady))
    of_time = _elasticity(x, np.concatenate(token_s), mean)
    of_ttft = _elasticity(x, np.concatenate(ttft_s), mean)
    return min(of_time, MOST_ELASTICITY), min(of_ttft, SLOWEST_SERIES)


def _elasticity(x: FloatArray, y: FloatArray, at: float) -> float:
    """Of the line of y on x at ``at``, not below 0; windows count by x, since few requests are noise."""
    if x.size < 2 or not x.sum() > 0:
        return 0.0
    weights = x / x.sum()
    centre, level = float(weights @ x), float(weights @ y)
    spread = float(weights @ (x - centre) ** 2)
    slope = float(weights @ ((x - centre) * (y - level))) / spread if spread > 1e-9 * centre**2 else 0.0
    value = level + slope * (at - centre)
    return max(slope * at / value, 0.0) if value > 0 else math.inf


def _missing_share(residence_s: FloatArray, elasticity: float) -> tuple[FloatArray, FloatArray]:
    """Times in seconds and the share of the steady number in system that is missing then, from 1 at 0 s."""
    ordered = np.sort(residence_s)
    mean = float(ordered.mean())
    step_s = mean / STEPS_PER_RESIDENCE
    at_s = np.arange(MOST_STEPS, dtype=np.float64) * step_s
    # E[(S - t)+] / E[S] from the sums of the longer ones.
    longer = np.append(np.cumsum(ordered[::-1])[::-1], 0.0)
    first = np.searchsorted(ordered, at_s)
    unaltered = (longer[first] - at_s * (ordered.size - first)) / ordered.sum()
    density = -np.diff(np.append(unaltered, 0.0))
    missing = np.zeros(MOST_STEPS)
    missing[0] = 1.0
    for i in range(1, MOST_STEPS):
        missing[i] = unaltered[i] + elasticity * float(density[:i] @ missing[i - 1 :: -1])
        if missing[i] < FORGOTTEN / SLOWEST_SERIES:
            return at_s[: i + 1], missing[: i + 1]
    return at_s, missing
