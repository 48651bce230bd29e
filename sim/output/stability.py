"""Does the run have a steady state? The verdict that decides whether a p99 may be shown.

Looks at arrivals, first schedulings and completions of one run; knows nothing of the engine. A run whose queue grows
has no steady-state percentile: the figure would be a statement about the run's length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Verdict = Literal["stable", "unstable", "not settled", "finite"]

MIN_REQUESTS = 50
# Thresholds, in standard deviations of what a queue at exactly rho = 1 shows. Chosen on simulated queues of 200 to
# 8,000 requests: M/D/1, G/G/1 with squared variations of 4, M/M/64, a batching decoder; the tests repeat M/D/1.
WHOLE_RUN_DEVIATIONS = 1.5
SECOND_HALF_DEVIATIONS = 2.0
IN_SYSTEM_DEVIATIONS = 2.5
MONOTONE_Z = 2.3  # Mann-Kendall on 20 batch means, about 1 % one-sided


@dataclass(frozen=True)
class Stability:
    """Verdict on a run and the figures behind it.

    ``stable``: a steady state exists as far as the run can tell. ``unstable``: the queue grows. ``not settled``: no
    queue, but requests in flight still grow at the end (overloaded or too short a run), or fewer than 50 requests.
    ``finite``: a list of requests that ends (all at once, as in an offline batch), of which none of this is asked.
    """

    verdict: Verdict
    reason: str
    queue_growth: float = math.nan  # seconds of queue time gained per second of arrivals: utilisation - 1 if overloaded
    in_system_growth: float = math.nan  # requests gained per request arriving, second half


FINITE = Stability("finite", "a list of requests that ends")
ALWAYS_STABLE = Stability("stable", "a closed loop sends no more than is answered")


def slope(x: FloatArray, y: FloatArray) -> float:
    """Least-squares slope of y on x; 0 when x does not vary."""
    centred = x - x.mean()
    power = float(centred @ centred)
    return float(centred @ (y - y.mean())) / power if power > 0 else 0.0


def shortfall(num_requests: float, in_system: float, utilisation: float) -> float:
    """By how much the mean latency of a run that began empty may fall short of the steady state, as a share of it.

    ``1.5 L / n + 2 / (n (1 - rho)^2)``: the batch must fill and turn over, and a queue close to its capacity forgets
    its beginning in a time that grows as the inverse square of what is left of the capacity (heavy traffic). The
    factors are chosen so that it is a bound on the bundled chat scenario, 1,000 to 24,000 requests against runs of
    400,000, with and without speculation, at 90, 95 and 98.3 % of the capacity, where that is taken at the lower end of
    its interval (`benchmarks/cutover.py --shortfall`; docs/cutover.md). Infinite at the capacity.

    Args:
        num_requests: n, of the run.
        in_system: L, mean number of requests in the system.
        utilisation: rho, rate over what is completed when saturated.
    """
    room = 1.0 - utilisation
    return 1.5 * in_system / num_requests + 2.0 / (num_requests * room**2) if room > 0 else math.inf


def mann_kendall_z(values: FloatArray) -> float:
    """Standard normal where there is no monotone trend (Mann 1945; Kendall 1975), variance corrected for ties.

    Assumes at least three independent values: give it batch means, not single requests. O(n^2).
    """
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

    Args:
        arrival_s: arrival times, shape [n], in any order.
        first_scheduled_s: first time each request ran; NaN when it never did.
        finish_s: completion times; NaN when unfinished.

    Above capacity the queue time grows by ``rho - 1`` seconds per second whatever the number of servers, so its slope
    against the arrival time is the excess load itself. At exactly ``rho = 1`` that slope is noise of about
    ``sqrt((ca2 + cs2) / n)`` (heavy-traffic limit; ca2, cs2: squared coefficients of variation of inter-arrival and
    service times), which is the yardstick. The verdict needs the slope (whole run and monotone, or the steeper test on
    the second half) and, with it, completions that fall behind arrivals in the second half. A system that serves all at
    once and slows down shows no queue but growing requests in flight; that is tested too.
    At 2,000 requests an M/D/1 queue is called unstable at rho 1.1 in 99 % of runs, at 0.95 in under 1 %, at 0.9 never
    seen. Close to rho = 1 no test on a short run can tell. O(n log n).
    """
    if (arrival_s[1:] < arrival_s[:-1]).any():  # closed loops may number requests in another order
        order = np.argsort(arrival_s, kind="stable")
        arrival_s, first_scheduled_s, finish_s = arrival_s[order], first_scheduled_s[order], finish_s[order]
    n = arrival_s.size
    window_s = float(arrival_s[-1] - arrival_s[0]) if n else 0.0
    if window_s <= 0:
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
    behind = 1.0 - float(completed_by[1] - completed_by[0]) / later
    in_system = np.arange(half + 1, n + 1) - np.searchsorted(finished, arrival_s[half:], side="right")
    in_system_growth = slope(np.arange(later, dtype=np.float64), in_system.astype(np.float64))
    queue_growth = slope(arrival_s, queue_s)
    late_queue_growth = slope(arrival_s[half:], queue_s[half:])

    variation = _squared_variation(np.diff(arrival_s)) + (_squared_variation(service_s) if service_s.size else 0.0)
    # Deterministic arrivals and service make no noise; a few requests of growth are then still no trend.
    whole = max(math.sqrt(variation / n), 4 / n)
    part = max(math.sqrt(variation / later), 4 / later)
    batch = n // 20
    monotone = n >= 20 and mann_kendall_z(queue_s[: batch * 20].reshape(20, batch).mean(axis=1)) > MONOTONE_Z
    falls_behind = behind > 0.5 * part
    grows = queue_growth > WHOLE_RUN_DEVIATIONS * whole and monotone
    grows_late = late_queue_growth > SECOND_HALF_DEVIATIONS * part
    crowds = in_system_growth > IN_SYSTEM_DEVIATIONS * part and behind > 1.5 * part

    late_s = float(arrival_s[-1] - arrival_s[half])
    arrival_rate = (later - 1) / late_s if late_s > 0 else math.nan
    completion_rate = float(completed_by[1] - completed_by[0]) / late_s if late_s > 0 else math.nan
    queued = int(np.count_nonzero(~started | (first_scheduled_s > arrival_s[-1])))
    rates = f"{completion_rate:.3g} of {arrival_rate:.3g} requests/s completed in the second half"
    verdict: Verdict
    if falls_behind and (grows or grows_late or (crowds and queued > 0.25 * in_system[-1])):
        growth = max(queue_growth, late_queue_growth)
        verdict, reason = "unstable", f"queue time grows by {growth:.2g} s per second; {rates}"
    elif crowds:
        verdict, reason = "not settled", f"requests in flight still grow at the end: overloaded or too short; {rates}"
    else:
        verdict, reason = "stable", rates
    return Stability(verdict, reason, queue_growth, in_system_growth)
