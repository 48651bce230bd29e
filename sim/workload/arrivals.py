"""When requests arrive.

Open loop: times do not depend on how fast the system answers. Gaps are quantiles of one uniform number per request
index, so a higher rate squeezes the same pattern. Closed loop: a fixed number of users, each sending its next request
some time after the last answer; only its description is here, the cluster decides the times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from draftcast.errors import ScenarioError
from draftcast.sim.compiled.random_streams import Stream, request_uniforms
from draftcast.sim.workload.spec_fields import integer, make, number, one_of
from draftcast.sim.workload.traces import TraceSpec

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class ArrivalSpec:
    """An arrival process."""

    kind: ClassVar[str] = ""

    def draw(self, seed: int, n: int) -> FloatArray:
        """Arrival times in seconds of the first n requests, sorted; shorter when the process ends before.

        The first m times do not depend on n >= m. Raises ScenarioError where times come from elsewhere.
        """
        raise ScenarioError(f"{self.kind} arrivals are not drawn at random", key="arrivals.kind", value=self.kind)

    def draw_until(self, seed: int, duration_s: float) -> FloatArray:
        """All arrival times in [0, duration_s)."""
        number("duration_s", duration_s, above=0)
        n = 1024
        while n <= MAX_REQUESTS:
            times = self.draw(seed, n)
            if len(times) < n or times[-1] >= duration_s:
                return times[times < duration_s]
            n *= 4
        message = f"more than {MAX_REQUESTS} requests would arrive; lower the rate or give num_requests"
        raise ScenarioError(message, key="duration_s", value=duration_s)


MAX_REQUESTS = 2**26  # a request takes 740 bytes in a run: memory, not statistics, decides here


@dataclass(frozen=True)
class Poisson(ArrivalSpec):
    """Exponential gaps with mean 1/rate_rps; ``inf`` sends everything at 0 s (vLLM's default request rate)."""

    kind: ClassVar[str] = "poisson"
    rate_rps: float

    def __post_init__(self) -> None:
        number("rate_rps", self.rate_rps, above=0, inf=True)

    def draw(self, seed: int, n: int) -> FloatArray:
        return np.cumsum(unit_exponentials(seed, n)) / self.rate_rps


@dataclass(frozen=True)
class Gamma(ArrivalSpec):
    """Gamma gaps with mean 1/rate_rps and shape ``burstiness`` (vLLM's --burstiness): CV = 1/sqrt(burstiness).

    1 is Poisson, below 1 burstier, above 1 more even, ``inf`` constant. vLLM rescales the drawn times so that the
    last one falls on n/rate; here they are left as drawn, so the number of requests changes no arrival.
    """

    kind: ClassVar[str] = "gamma"
    rate_rps: float
    burstiness: float

    def __post_init__(self) -> None:
        number("rate_rps", self.rate_rps, above=0, inf=True)
        number("burstiness", self.burstiness, above=0, inf=True)

    def draw(self, seed: int, n: int) -> FloatArray:
        if math.isinf(self.burstiness):
            return np.arange(1, n + 1, dtype=np.float64) / self.rate_rps
        if self.burstiness == 1:
            return np.cumsum(unit_exponentials(seed, n)) / self.rate_rps
        from scipy.special import gammaincinv

        gaps = gammaincinv(self.burstiness, request_uniforms(seed, Stream.ARRIVALS, n)) / self.burstiness
        return np.asarray(np.cumsum(gaps) / self.rate_rps, dtype=np.float64)


@dataclass(frozen=True)
class Deterministic(ArrivalSpec):
    """One request every 1/rate_rps seconds, the first at 0 s; ``inf`` sends everything at 0 s."""

    kind: ClassVar[str] = "deterministic"
    rate_rps: float

    def __post_init__(self) -> None:
        number("rate_rps", self.rate_rps, above=0, inf=True)

    def draw(self, seed: int, n: int) -> FloatArray:
        return np.arange(n, dtype=np.float64) / self.rate_rps


@dataclass(frozen=True)
class RateSegment:
    """``rate_rps`` from the end of the segment before (or 0 s) until ``until_s``."""

    until_s: float
    rate_rps: float


@dataclass(frozen=True)
class PiecewiseRate(ArrivalSpec):
    """Nonhomogeneous Poisson with a rate that is constant by segments.

    Made by time change: a unit-rate Poisson process read through the inverse of the integrated rate. No request
    arrives after the last ``until_s`` (which may be ``inf``), unless ``repeat`` starts the segments again.
    """

    kind: ClassVar[str] = "piecewise"
    segments: tuple[RateSegment, ...]
    repeat: bool = False

    def __post_init__(self) -> None:
        if not self.segments:
            raise ScenarioError("needs at least one segment of until_s and rate_rps", key="segments")
        before_s = 0.0
        for i, segment in enumerate(self.segments):
            is_last = i == len(self.segments) - 1
            number(f"segments[{i}].rate_rps", segment.rate_rps, least=0)
            number(f"segments[{i}].until_s", segment.until_s, above=before_s, inf=is_last and not self.repeat)
            before_s = segment.until_s
        if all(segment.rate_rps == 0 for segment in self.segments):
            raise ScenarioError("at least one rate must be > 0", key="segments")

    def draw(self, seed: int, n: int) -> FloatArray:
        until_s = np.array([segment.until_s for segment in self.segments], dtype=np.float64)
        rates = np.array([segment.rate_rps for segment in self.segments], dtype=np.float64)
        busy = rates > 0  # idle segments pass no operational time; leaving them out avoids 0/0 below
        start_s = np.concatenate([[0.0], until_s[:-1]])[busy]
        expected = np.concatenate([[0.0], np.cumsum(rates[busy] * (until_s[busy] - start_s))])  # requests until then
        unit = np.cumsum(unit_exponentials(seed, n))
        cycle = np.zeros(n)
        if self.repeat:
            cycle, unit = np.divmod(unit, expected[-1])
        else:
            unit = unit[unit < expected[-1]]
            cycle = cycle[: len(unit)]
        at = np.searchsorted(expected, unit, side="right") - 1
        times = start_s[at] + (unit - expected[at]) / rates[busy][at]
        return np.asarray(times + cycle * until_s[-1] if self.repeat else times, dtype=np.float64)


@dataclass(frozen=True)
class TraceArrivals(ArrivalSpec):
    """The times of a trace: its gaps times ``time_scale`` (0.5: twice the rate), or scaled to the rate ``rate_rps``.

    ``trace`` None takes the workload's trace.
    """

    kind: ClassVar[str] = "trace"
    trace: TraceSpec | None = None
    time_scale: float = 1.0
    rate_rps: float | None = None

    def __post_init__(self) -> None:
        number("time_scale", self.time_scale, above=0)
        if self.time_scale != 1 and self.rate_rps is not None:
            raise ScenarioError("give time_scale or rate_rps, not both", key="time_scale", value=self.time_scale)
        if self.rate_rps is not None:
            number("rate_rps", self.rate_rps, above=0, inf=True)


@dataclass(frozen=True)
class ThinkTime:
    """The pause of a closed-loop user: constant, exponential or lognormal (with ``cv``), mean ``mean_s``."""

    distribution: str = "constant"
    mean_s: float = 0.0
    cv: float | None = None

    def __post_init__(self) -> None:
        one_of("think_time_s.distribution", self.distribution, ("constant", "exponential", "lognormal"))
        number("think_time_s.mean_s", self.mean_s, least=0)
        if (self.distribution == "lognormal") != (self.cv is not None):
            raise ScenarioError("lognormal needs cv, other distributions take none", key="think_time_s.cv")
        if self.cv is not None:
            number("think_time_s.cv", self.cv, least=0)

    def draw(self, seed: int, n: int) -> FloatArray:
        """Seconds before request i is sent after its user's last answer, f8[n]; one draw per request index."""
        u = request_uniforms(seed, Stream.THINK, n)
        if self.distribution == "exponential":
            return -self.mean_s * np.log1p(-u)
        if self.cv:
            from scipy.special import ndtri

            variance = math.log1p(self.cv**2)
            return np.asarray(self.mean_s * np.exp(math.sqrt(variance) * ndtri(u) - variance / 2), dtype=np.float64)
        return np.full(n, float(self.mean_s))


@dataclass(frozen=True)
class ClosedLoop(ArrivalSpec):
    """``concurrency`` users, each with one request at a time; the cluster sets the arrival times while it runs."""

    kind: ClassVar[str] = "closed_loop"
    concurrency: int
    think_time_s: ThinkTime = field(default_factory=ThinkTime)

    def __post_init__(self) -> None:
        integer("concurrency", self.concurrency, 1)


def unit_exponentials(seed: int, n: int) -> FloatArray:
    """n exponential draws with mean 1 of the ARRIVALS stream."""
    return -np.log1p(-request_uniforms(seed, Stream.ARRIVALS, n))


ARRIVALS: dict[str, type[ArrivalSpec]] = {
    c.kind: c for c in (Poisson, Gamma, Deterministic, PiecewiseRate, TraceArrivals, ClosedLoop)
}


def make_arrivals(kind: str, **fields: Any) -> ArrivalSpec:
    """The arrival process registered as ``kind``. Raises ScenarioError listing the choices."""
    return make("arrival process", ARRIVALS, kind, fields)
