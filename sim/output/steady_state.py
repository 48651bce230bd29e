"""Does a run have a steady state, and how long does one that begins empty take to forget it?

Looks at arrivals, first schedulings and completions of one run; knows nothing of the engine. A run whose queue grows
has no steady-state percentile: the figure would be a statement about the run's length.

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

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pandas as pd

from draftcast.kernels.arrays import FloatArray
from draftcast.sim.output.results import RequestColumns, integral

StabilityWord = Literal["stable", "unstable", "not settled", "finite"]

MIN_REQUESTS = 50
# Thresholds, in standard deviations of what a queue at exactly rho = 1 shows. Chosen on simulated queues of 200 to
# 8,000 requests: M/D/1, G/G/1 with squared variations of 4, M/M/64, a batching decoder; the tests repeat M/D/1.
WHOLE_RUN_DEVIATIONS = 1.5
SECOND_HALF_DEVIATIONS = 2.0
IN_SYSTEM_DEVIATIONS = 2.5
MONOTONE_Z = 2.3  # Mann-Kendall on 20 batch means, about 1 % one-sided
# Of the warm-up.
FORGOTTEN = 0.002  # Share of its steady value that a series may miss when the warm-up ends.
MOST_SHORTFALL = 0.25  # A run whose mean latency may miss more than this share has not settled.
MOST_ELASTICITY = 0.98  # at 1 the capacity is reached and nothing is ever forgotten
SLOWEST_SERIES = 20.0  # a TTFT that is nearly all queue misses at most so many times what the number in system misses
STEPS_PER_RESIDENCE = 20
MOST_STEPS = 4000
FEWEST_WINDOWS = 4


@dataclass(frozen=True)
class Stability:
    """Verdict on a run, and the figures behind it in words.

    ``stable``: a steady state exists as far as the run can tell. ``unstable``: the queue grows. ``not settled``:
    requests in flight still grow at the end, or there are fewer than 50. ``finite``: a list of requests that ends.
    """

    verdict: StabilityWord
    reason: str


FINITE = Stability("finite", "a list of requests that ends")
ALWAYS_STABLE = Stability("stable", "a closed loop sends no more than is answered")


def slope(x: FloatArray, y: FloatArray) -> float:
    """Least-squares slope of y on x; 0 when x does not vary."""
    (power, common), _ = np.cov(x, y, bias=True)
    return float(common / power) if power > 0 else 0.0


def shortfall(num_requests: float, in_system: float, utilisation: float) -> float:
    """By how much the mean latency of a run that began empty may fall short of the steady state, as a share of it.

    ``1.5 L / n + 2 / (n (1 - rho)^2)``: the batch must fill and turn over, and a queue close to its capacity forgets
    its beginning in a time that grows as the inverse square of what is left of the capacity (heavy traffic). Infinite
    at the capacity. n: requests of the run; L: mean number in the system; rho: rate over what is completed when
    saturated. With these factors it is a bound on the bundled chat scenario with and without speculation, 1,000 to
    24,000 requests against runs of 400,000, at 90, 95 and 98.3 % of the capacity, taken at the lower end of its
    interval (`benchmarks/cutover.py --shortfall`; docs/cutover.md).
    """
    room = 1.0 - utilisation
    return 1.5 * in_system / num_requests + 2.0 / (num_requests * room**2) if room > 0 else math.inf


def mann_kendall_z(values: FloatArray) -> float:
    """Standard normal where three or more independent values have no monotone trend (Mann 1945; Kendall 1975)."""
    n = values.size
    rises = float(np.triu(np.sign(values[None, :] - values[:, None]), 1).sum())
    _, ties = np.unique(values, return_counts=True)
    variance = (n * (n - 1) * (2 * n + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18
    return (rises - math.copysign(1.0, rises)) / math.sqrt(variance) if rises and variance > 0 else 0.0


def _squared_variation(values: FloatArray) -> float:
    mean = float(values.mean())
    return float(values.var()) / mean**2 if mean > 0 else 0.0


def assess(arrival_s: FloatArray, first_scheduled_s: FloatArray, finish_s: FloatArray) -> Stability:
    """Judge whether the queue grows over the arrival window.

    Times are of each request, f8[n], in any order; NaN where it never ran or is unfinished.

    Above capacity the queue time grows by ``rho - 1`` seconds per second whatever the number of servers, so its slope
    against the arrival time is the excess load itself. At exactly ``rho = 1`` that slope is noise of about
    ``sqrt((ca2 + cs2) / n)`` (heavy-traffic limit; ca2, cs2: squared coefficients of variation of inter-arrival and
    service times), which is the yardstick. The verdict needs the slope (whole run and monotone, or the steeper test on
    the second half) and, with it, completions that fall behind arrivals in the second half. A system that serves all at
    once and slows down shows no queue but growing requests in flight; that is tested too.
    At 2,000 requests an M/D/1 queue is called unstable at rho 1.1 in 99 % of runs, at 0.95 in under 1 %, at 0.9 never
    seen. Close to rho = 1 no test on a short run can tell. O(n log n).
    """
    order = np.argsort(arrival_s, kind="stable")  # closed loops may number requests in another order
    arrival_s, first_scheduled_s, finish_s = arrival_s[order], first_scheduled_s[order], finish_s[order]
    n = arrival_s.size
    if n == 0 or arrival_s[-1] <= arrival_s[0]:
        return FINITE
    if n < MIN_REQUESTS:
        return Stability("not settled", f"fewer than {MIN_REQUESTS} requests")
    half = n // 2
    finished = np.sort(finish_s[np.isfinite(finish_s)])
    end_s = max(float(arrival_s[-1]), float(finished[-1]) if finished.size else 0.0)
    started = np.isfinite(first_scheduled_s)
    # A request that never ran has waited to the end at least; dropping it would hide the very queue looked for.
    queue_s = np.where(started, first_scheduled_s, end_s) - arrival_s
    served = started & np.isfinite(finish_s)
    service_s = (finish_s - first_scheduled_s)[served]

    completed_by = np.searchsorted(finished, arrival_s[[half, -1]], side="right")
    later = n - half
    completed = float(completed_by[1] - completed_by[0])
    behind = 1.0 - completed / later
    in_system = np.arange(half + 1, n + 1) - np.searchsorted(finished, arrival_s[half:], side="right")
    in_system_growth = slope(np.arange(later, dtype=np.float64), in_system.astype(np.float64))
    queue_growth = slope(arrival_s, queue_s)
    late_queue_growth = slope(arrival_s[half:], queue_s[half:])

    variation = _squared_variation(np.diff(arrival_s)) + (_squared_variation(service_s) if service_s.size else 0.0)
    # Deterministic arrivals and service make no noise; a few requests of growth are then still no trend.
    whole = max(math.sqrt(variation / n), 4 / n)
    part = max(math.sqrt(variation / later), 4 / later)
    batch = n // 20
    monotone = mann_kendall_z(queue_s[: batch * 20].reshape(20, batch).mean(axis=1)) > MONOTONE_Z
    falls_behind = behind > 0.5 * part
    grows = queue_growth > WHOLE_RUN_DEVIATIONS * whole and monotone
    grows_late = late_queue_growth > SECOND_HALF_DEVIATIONS * part
    crowds = in_system_growth > IN_SYSTEM_DEVIATIONS * part and behind > 1.5 * part

    late_s = float(arrival_s[-1] - arrival_s[half])
    arrival_rate, completion_rate = ((later - 1) / late_s, completed / late_s) if late_s > 0 else (math.nan, math.nan)
    queued = int(np.count_nonzero(~started | (first_scheduled_s > arrival_s[-1])))
    rates = f"{completion_rate:.3g} of {arrival_rate:.3g} requests/s completed in the second half"
    if falls_behind and (grows or grows_late or (crowds and queued > 0.25 * in_system[-1])):
        growth = max(queue_growth, late_queue_growth)
        return Stability("unstable", f"queue time grows by {growth:.2g} s per second; {rates}")
    if crowds:
        return Stability("not settled", f"requests in flight still grow at the end: overloaded or too short; {rates}")
    return Stability("stable", rates)


@dataclass(frozen=True)
class Warmup:
    """What to leave out at the front before measuring."""

    requests: int  # leading requests, at most half of them
    is_over: bool  # whether the transient ends within that half
    # By how much the E2E latency of each request falls short of the steady state, f8[n], as a share of it
    missing: FloatArray = field(repr=False)

    def shortfall(self, cut: int) -> float:
        """Share of the steady state's mean E2E latency that the requests from ``cut`` on still miss; 0 without any."""
        return float(self.missing[cut:].mean()) if cut < len(self.missing) else 0.0


def find_warmup(runs: Sequence[pd.DataFrame], *, closed_loop: bool) -> Warmup:
    """The warm-up of the replications of one steady scenario (tables in request order), one for all of them.

    In a closed loop users keep the number in system; only its mixture of ages has to settle. Sessions that all begin
    after the start miss their later requests at first: at time t those that are sent later than t into a session, as a
    share of the later half's. In the number in system that share counts more, as above; latency is taken to miss as
    much, since it goes by what a session has said.
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
    later = np.zeros(n)
    if "session" in runs[0]:
        # Seconds from the beginning of its session until each request of the later half is sent.
        since_s = ((run["arrival_s"] - run.groupby("session")["arrival_s"].transform("min")).to_numpy() for run in runs)
        into_s = np.concatenate([seconds[half] for seconds, half in zip(since_s, late, strict=True)])
        later = 1 - np.searchsorted(np.sort(into_s), arrivals - arrivals[0], side="right") / into_s.size
        number = np.minimum(number + later / (1 - of_time), 1.0)
    over = np.flatnonzero(max(1.0, of_ttft) * number <= FORGOTTEN)
    cut = int(over[0]) if over.size else n
    latency = np.maximum(number * (of_time if not closed_loop else 1.0), later)
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
        filled = (tokens > 0) & (came > 0)
        numbers.append(number[filled])
        token_s.append(number[filled] / tokens[filled])
        ttft_s.append(waited[filled] / came[filled])
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
    longer = np.append(np.cumsum(ordered[::-1])[::-1], 0.0)  # E[(S - t)+] / E[S] from the sums of the longer ones.
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
