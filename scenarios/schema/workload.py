"""What arrives: the arrival process or trace, the token counts, the request classes."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from draftcast.scenarios.schema.acceptance import Acceptance
from draftcast.scenarios.schema.base import (
    MOST_SECONDS,
    MOST_TOKENS,
    Count,
    Duration,
    Frozen,
    Many,
    NonEmpty,
    NonNegative,
    Probability,
    Rate,
    Seconds,
    wrong,
)
from draftcast.scenarios.schema.slo import Slo
from draftcast.sim.workload.arrivals import MAX_REQUESTS

TraceFormat = Literal["auto", "azure", "burstgpt", "specdecode_bench", "vllm_bench", "mooncake", "sharegpt"]


class PoissonArrivals(Frozen):
    """Independent arrivals at a mean rate."""

    process: Literal["poisson"]
    request_rate_rps: Rate


class GammaArrivals(Frozen):
    """Gamma gaps as in ``vllm bench serve --burstiness``: 1 is Poisson, below 1 burstier, above 1 more even."""

    process: Literal["gamma"]
    request_rate_rps: Rate
    burstiness: Annotated[float, Field(ge=0.001, le=1e6, allow_inf_nan=False)]


class DeterministicArrivals(Frozen):
    """Equal gaps."""

    process: Literal["deterministic"]
    request_rate_rps: Rate


class RateSegment(Frozen):
    """A stretch of time with a constant Poisson rate; 0 means nobody comes."""

    duration_s: Annotated[float, Field(ge=1e-3, le=MOST_SECONDS, allow_inf_nan=False)]
    request_rate_rps: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class PiecewiseArrivals(Frozen):
    """Poisson arrivals whose rate changes from segment to segment; the pattern repeats until ``num_requests``."""

    process: Literal["piecewise"]
    segments: Many[RateSegment]

    @model_validator(mode="after")
    def _someone_comes(self) -> Self:
        if all(segment.request_rate_rps == 0 for segment in self.segments):
            raise wrong("segments", 0, "at least one segment needs a request_rate_rps above 0")
        total = math.fsum(segment.duration_s for segment in self.segments)
        if total > MOST_SECONDS:
            raise wrong("segments", total, f"together they must last at most {MOST_SECONDS:g} s")
        return self


class TraceArrivals(Frozen):
    """A recorded trace: arrivals, lengths and (Mooncake) prefix hashes come from the file.

    Applied in this order: keep [start_s, stop_s), sample, cut lengths, scale time. ``num_requests`` then takes the
    first so many, and repeats the trace when it holds fewer.
    """

    process: Literal["trace"]
    path: NonEmpty
    format: TraceFormat = "auto"
    start_s: Seconds = 0.0
    stop_s: Duration | None = None
    # Requests drawn without replacement, each at its own time.
    sample_requests: Count | None = None
    sample_seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    max_prompt_tokens: Count | None = None
    max_output_tokens: Count | None = None
    # Factor on every gap: 2 spreads the trace over twice the time. Or give the mean rate to scale to.
    time_scale: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)] = 1.0
    request_rate_rps: Rate | None = None

    @model_validator(mode="after")
    def _clip_is_a_window(self) -> Self:
        if self.stop_s is not None and self.stop_s <= self.start_s:
            raise wrong("stop_s", self.stop_s, f"must be above start_s = {self.start_s}")
        if self.request_rate_rps is not None and self.time_scale != 1.0:
            raise wrong("time_scale", self.time_scale, "give time_scale or request_rate_rps, not both")
        return self


class ClosedLoopArrivals(Frozen):
    """A fixed number of clients; each sends its next request when the last one is answered, after a think time."""

    process: Literal["closed_loop"]
    concurrency: Annotated[int, Field(ge=1, le=2**20)]
    think_time_s: Seconds = 0.0
    think_time_distribution: Literal["exponential", "constant"] = "exponential"


Arrivals = Annotated[
    PoissonArrivals | GammaArrivals | DeterministicArrivals | PiecewiseArrivals | TraceArrivals | ClosedLoopArrivals,
    Field(discriminator="process"),
]


MeanTokens = Annotated[float, Field(ge=0.1, le=MOST_TOKENS, allow_inf_nan=False)]
# Beyond these a distribution is constant, or all its mass is at its bounds.
SpreadTokens = Annotated[float, Field(ge=1e-3, le=MOST_TOKENS, allow_inf_nan=False)]


class _Bounded(Frozen):
    """Draws are rounded to whole tokens and held inside [min, max]."""

    min: Count = 1
    max: Count | None = None

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.max is not None and self.max < self.min:
            raise wrong("max", self.max, f"must be at least min = {self.min}")
        return self


class ConstantTokens(Frozen):
    """Always the same number of tokens; a bare integer in the file means this."""

    distribution: Literal["constant"]
    value: Count


class UniformTokens(Frozen):
    """Whole numbers between low and high, both included."""

    distribution: Literal["uniform"]
    low: Count
    high: Count

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.high < self.low:
            raise wrong("high", self.high, f"must be at least low = {self.low}")
        return self


class LognormalTokens(_Bounded):
    """Lognormal with the mean and standard deviation of the tokens themselves (not of their logarithm)."""

    distribution: Literal["lognormal"]
    mean: MeanTokens
    std: SpreadTokens


class GammaTokens(_Bounded):
    """Gamma with this mean and standard deviation."""

    distribution: Literal["gamma"]
    mean: MeanTokens
    std: SpreadTokens


class ExponentialTokens(_Bounded):
    """Exponential, rounded; 0 becomes 1 (min)."""

    distribution: Literal["exponential"]
    mean: MeanTokens


class GeometricTokens(_Bounded):
    """Geometric on 1, 2, ...: memoryless output lengths."""

    distribution: Literal["geometric"]
    mean: Annotated[float, Field(ge=1, le=MOST_TOKENS, allow_inf_nan=False)]


class EmpiricalTokens(Frozen):
    """Given values with given weights (equal when absent)."""

    distribution: Literal["empirical"]
    values: Many[Count]
    weights: Many[NonNegative] | None = None

    @model_validator(mode="after")
    def _weights_match(self) -> Self:
        if self.weights is not None and len(self.weights) != len(self.values):
            raise wrong("weights", list(self.weights), f"needs one weight for each of the {len(self.values)} values")
        if self.weights is not None and sum(self.weights) <= 0:
            raise wrong("weights", list(self.weights), "at least one weight must be above 0")
        return self


def _integer_is_constant(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return {"distribution": "constant", "value": value}
    return value


TokenCounts = Annotated[
    Annotated[
        ConstantTokens
        | UniformTokens
        | LognormalTokens
        | GammaTokens
        | ExponentialTokens
        | GeometricTokens
        | EmpiricalTokens,
        Field(discriminator="distribution"),
    ],
    BeforeValidator(_integer_is_constant),
]


class Lengths(Frozen):
    """Prompt and output tokens of a request: two independent distributions, or pairs drawn from a recorded file."""

    prompt_tokens: TokenCounts | None = None
    output_tokens: TokenCounts | None = None
    path: NonEmpty | None = None
    format: TraceFormat = "auto"
    # Rows of the file in order and over again, or drawn with replacement.
    order: Literal["sequential", "sampled"] = "sequential"

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.path is not None:
            for key in ("prompt_tokens", "output_tokens"):
                if getattr(self, key) is not None:
                    raise wrong(key, "given", "not together with path: the file has the lengths")
            return self
        for key in ("prompt_tokens", "output_tokens"):
            if getattr(self, key) is None:
                raise wrong(key, None, "required (a number, a distribution, or path for lengths from a file)")
        for key, default in (("format", "auto"), ("order", "sequential")):
            if getattr(self, key) != default:
                raise wrong(key, getattr(self, key), "only together with path")
        return self


class RequestClass(Frozen):
    """A share of the requests with its own lengths, acceptance, SLO or priority; None takes the scenario's."""

    name: NonEmpty
    share: Probability
    lengths: Lengths | None = None
    acceptance: Acceptance | None = None
    slo: Slo | None = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] = 0


class Workload(Frozen):
    """Arrivals, lengths and classes of one run."""

    arrivals: Arrivals
    # How many requests: a number, or all that arrive before duration_s, or both limits. A trace alone: once through.
    num_requests: Annotated[int, Field(ge=1, le=MAX_REQUESTS)] | None = None
    duration_s: Duration | None = None
    lengths: Lengths | None = None
    classes: Annotated[tuple[RequestClass, ...], Field(strict=False)] = ()
    # What becomes of a request whose prompt and output exceed max_model_len.
    max_model_len_action: Literal["error", "clip", "drop"] = "error"

    @model_validator(mode="after")
    def _complete(self) -> Self:
        from_trace = isinstance(self.arrivals, TraceArrivals)
        if from_trace and self.lengths is not None:
            raise wrong("lengths", "given", "not together with a trace: the trace has the lengths")
        closed = isinstance(self.arrivals, ClosedLoopArrivals)
        if closed and self.duration_s is not None:
            raise wrong("duration_s", self.duration_s, "not with closed_loop arrivals; give num_requests")
        if not from_trace and self.num_requests is None and (closed or self.duration_s is None):
            raise wrong("num_requests", None, f"required with {self.arrivals.process} arrivals")
        for index, entry in enumerate(self.classes):
            if from_trace and entry.lengths is not None:
                raise wrong(f"classes.{index}.lengths", "given", "not together with a trace: the trace has the lengths")
        lengths_everywhere = self.classes and all(entry.lengths is not None for entry in self.classes)
        if not from_trace and self.lengths is None and not lengths_everywhere:
            raise wrong("lengths", None, "required: prompt_tokens and output_tokens (or lengths in every class)")
        if self.classes:
            self._classes_share_all()
        return self

    def _classes_share_all(self) -> None:
        names = [entry.name for entry in self.classes]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise wrong(f"classes.{index}.name", name, "class names must differ")
        total = math.fsum(entry.share for entry in self.classes)
        if abs(total - 1) > 1e-6:
            raise wrong("classes", total, "the classes' shares must sum to 1")
