"""When requests arrive: the arrival processes of a scenario, and the times they draw.

Open loop: gaps are quantiles of one uniform number per request index, so a higher rate squeezes the same pattern.
Closed loop: a fixed number of users, whose requests the cluster times.
"""

import math
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from draftcast.errors import ScenarioError
from draftcast.frozen import MOST_SECONDS, Faults, Frozen, Many, Rate, Seconds, wrong
from draftcast.kernels.arrays import FloatArray
from draftcast.sim.compiled.random_streams import Stream, request_uniforms
from draftcast.sim.workload.traces import TraceSpec

MAX_REQUESTS = 2**26  # a request takes 740 bytes in a run: memory, not statistics, decides here
MAX_USERS = 2**20


class DrawnArrivals(Frozen):
    """An open loop whose times are drawn at random."""

    def draw(self, seed: int, n: int) -> FloatArray:
        """Arrival times in seconds of the first n requests, sorted; the first m times do not depend on n >= m."""
        raise NotImplementedError

    def draw_until(self, seed: int, duration_s: float) -> FloatArray:
        """All arrival times in [0, duration_s). Raises ScenarioError for more than `MAX_REQUESTS`."""
        n = 1024
        while n <= MAX_REQUESTS:
            times = self.draw(seed, n)
            if times[-1] >= duration_s:
                return times[times < duration_s]
            n *= 4
        message = f"more than {MAX_REQUESTS} requests would arrive; lower the rate or give num_requests"
        raise ScenarioError(message, key="workload.duration_s", value=duration_s)


class PoissonArrivals(DrawnArrivals):
    """Independent arrivals at a mean rate."""

    process: Literal["poisson"]
    request_rate_rps: Rate

    def draw(self, seed: int, n: int) -> FloatArray:
        return _unit_poisson(seed, n) / self.request_rate_rps


class GammaArrivals(DrawnArrivals):
    """Gamma gaps as in ``vllm bench serve --burstiness``: 1 is Poisson, below 1 burstier, above 1 more even.

    The gaps' coefficient of variation is 1/sqrt(burstiness). vLLM rescales the drawn times so that the last one falls
    on n/rate; here they are left as drawn, so the number of requests changes no arrival.
    """

    process: Literal["gamma"]
    request_rate_rps: Rate
    burstiness: Annotated[float, Field(ge=0.001, le=1e6, allow_inf_nan=False)]

    def draw(self, seed: int, n: int) -> FloatArray:
        if self.burstiness == 1:
            return _unit_poisson(seed, n) / self.request_rate_rps
        from scipy.special import gammaincinv

        gaps = gammaincinv(self.burstiness, request_uniforms(seed, Stream.ARRIVALS, n)) / self.burstiness
        return np.asarray(np.cumsum(gaps) / self.request_rate_rps, dtype=np.float64)


class DeterministicArrivals(DrawnArrivals):
    """Equal gaps; the first request arrives at 0 s."""

    process: Literal["deterministic"]
    request_rate_rps: Rate

    def draw(self, seed: int, n: int) -> FloatArray:
        return np.arange(n, dtype=np.float64) / self.request_rate_rps


class RateSegment(Frozen):
    """A stretch of time with a constant Poisson rate; 0 means nobody comes."""

    duration_s: Annotated[float, Field(ge=1e-3, le=MOST_SECONDS, allow_inf_nan=False)]
    request_rate_rps: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class PiecewiseArrivals(DrawnArrivals):
    """Poisson arrivals whose rate changes from segment to segment; the pattern repeats until ``num_requests``.

    Made by time change: a unit-rate Poisson process read through the inverse of the integrated rate.
    """

    process: Literal["piecewise"]
    segments: Many[RateSegment]

    def faults(self) -> Faults:
        if all(segment.request_rate_rps == 0 for segment in self.segments):
            yield wrong("segments", 0, "at least one segment needs a request_rate_rps above 0")
        total = math.fsum(segment.duration_s for segment in self.segments)
        if total > MOST_SECONDS:
            yield wrong("segments", total, f"together they must last at most {MOST_SECONDS:g} s")

    def draw(self, seed: int, n: int) -> FloatArray:
        until_s = np.cumsum([segment.duration_s for segment in self.segments])
        rates = np.array([segment.request_rate_rps for segment in self.segments], dtype=np.float64)
        busy = rates > 0  # idle segments pass no operational time; leaving them out avoids 0/0 below
        start_s = np.concatenate([[0.0], until_s[:-1]])[busy]
        expected = np.concatenate([[0.0], np.cumsum(rates[busy] * (until_s[busy] - start_s))])  # requests until then
        cycle, unit = np.divmod(_unit_poisson(seed, n), expected[-1])
        segment = np.searchsorted(expected, unit, side="right") - 1
        times = start_s[segment] + (unit - expected[segment]) / rates[busy][segment]
        return np.asarray(times + cycle * until_s[-1], dtype=np.float64)


class TraceArrivals(TraceSpec):
    """A recorded trace: arrivals, lengths and (Mooncake) prefix hashes come from the file.

    Applied in this order: keep [start_s, stop_s), sample, cut lengths, scale time. ``num_requests`` then takes the
    first so many, and repeats the trace when it holds fewer.
    """

    process: Literal["trace"]
    # Factor on every gap: 2 spreads the trace over twice the time. Or give the mean rate to scale to.
    time_scale: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)] = 1.0
    request_rate_rps: Rate | None = None

    def faults(self) -> Faults:
        yield from super().faults()
        if self.request_rate_rps is not None and self.time_scale != 1.0:
            yield wrong("time_scale", self.time_scale, "give time_scale or request_rate_rps, not both")


class ClosedLoopArrivals(Frozen):
    """A fixed number of clients; each sends its next request when the last one is answered, after a think time."""

    process: Literal["closed_loop"]
    concurrency: Annotated[int, Field(ge=1, le=MAX_USERS)]
    think_time_s: Seconds = 0.0
    think_time_distribution: Literal["exponential", "constant"] = "exponential"

    def draw_think_s(self, seed: int, n: int) -> FloatArray:
        """Seconds before request i is sent after its user's last answer, f8[n]; one draw per request index."""
        if self.think_time_distribution == "exponential":
            return -self.think_time_s * np.log1p(-request_uniforms(seed, Stream.THINK, n))
        return np.full(n, float(self.think_time_s))


Arrivals = Annotated[
    PoissonArrivals | GammaArrivals | DeterministicArrivals | PiecewiseArrivals | TraceArrivals | ClosedLoopArrivals,
    Field(discriminator="process"),
]


def _unit_poisson(seed: int, n: int) -> FloatArray:
    """The first n arrivals of a Poisson process of rate 1, of the ARRIVALS stream."""
    return np.cumsum(-np.log1p(-request_uniforms(seed, Stream.ARRIVALS, n)))
