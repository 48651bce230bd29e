"""How long prompts and outputs are: distributions over integers >= 1.

A length is the quantile of one uniform number that belongs to the request's index, so the same index has the same
length whatever else changes, and a larger mean makes every request longer rather than drawing others. Continuous
distributions are rounded to the nearest integer and then clipped to [min_tokens, max_tokens]; clipping moves the mean.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from draftcast.errors import ScenarioError
from draftcast.sim.compiled.random_streams import Stream, request_uniforms
from draftcast.sim.workload.request_table import MAX_TOKENS
from draftcast.sim.workload.spec_fields import integer, make, number, one_of
from draftcast.sim.workload.traces import TraceSpec

FloatArray = NDArray[np.float64]
TokenArray = NDArray[np.int32]
IntArray = NDArray[np.int64]

PROMPT_DRAW, OUTPUT_DRAW, ROW_DRAW = 0, 1, 2  # positions within the LENGTHS stream of a request


@dataclass(frozen=True)
class LengthSpec:
    """A distribution of token counts. Subclasses give `quantile`; results are integers in [min_tokens, max_tokens]."""

    kind: ClassVar[str] = ""
    _: KW_ONLY
    min_tokens: int = 1
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        integer("min_tokens", self.min_tokens, 1)
        if self.max_tokens is not None:
            integer("max_tokens", self.max_tokens, self.min_tokens)

    def quantile(self, u: FloatArray) -> FloatArray:
        """Tokens, before rounding and clipping, at probabilities ``u`` in [0, 1)."""
        raise NotImplementedError

    def tokens(self, u: FloatArray) -> TokenArray:
        """Token counts int32 at probabilities ``u``."""
        return self.clip(np.rint(self.quantile(u)))

    def clip(self, tokens: NDArray[Any]) -> TokenArray:
        """``tokens`` cut to [min_tokens, max_tokens], int32."""
        clipped: TokenArray = np.clip(tokens, self.min_tokens, self.max_tokens or MAX_TOKENS).astype(np.int32)
        return clipped


@dataclass(frozen=True)
class Fixed(LengthSpec):
    """Always ``tokens_each``."""

    kind: ClassVar[str] = "fixed"
    tokens_each: int

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("tokens_each", self.tokens_each, 1)

    def quantile(self, u: FloatArray) -> FloatArray:
        return np.full(u.shape, float(self.tokens_each))


@dataclass(frozen=True)
class Uniform(LengthSpec):
    """Every integer from low_tokens to high_tokens, both included, equally likely."""

    kind: ClassVar[str] = "uniform"
    low_tokens: int
    high_tokens: int

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("low_tokens", self.low_tokens, 1)
        integer("high_tokens", self.high_tokens, self.low_tokens)

    @classmethod
    def from_range_ratio(cls, tokens: int, range_ratio: float) -> Uniform:
        """As ``vllm bench serve --random-input-len tokens --random-range-ratio r``: tokens*(1-r) .. tokens*(1+r)."""
        integer("tokens", tokens, 1)
        number("range_ratio", range_ratio, least=0)
        if range_ratio >= 1:
            raise ScenarioError("must be in [0, 1)", key="range_ratio", value=range_ratio)
        return cls(max(1, math.floor(tokens * (1 - range_ratio))), math.ceil(tokens * (1 + range_ratio)))

    def quantile(self, u: FloatArray) -> FloatArray:
        return np.floor(self.low_tokens + u * (self.high_tokens - self.low_tokens + 1))


@dataclass(frozen=True)
class LogNormal(LengthSpec):
    """Log-normal, by mean_tokens and cv (standard deviation / mean), or by median_tokens and sigma (of the log)."""

    kind: ClassVar[str] = "lognormal"
    mean_tokens: float | None = None
    cv: float | None = None
    median_tokens: float | None = None
    sigma: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [key for key in ("mean_tokens", "cv", "median_tokens", "sigma") if getattr(self, key) is not None]
        if given not in (["mean_tokens", "cv"], ["median_tokens", "sigma"]):
            message = f"give mean_tokens and cv, or median_tokens and sigma (given: {', '.join(given) or 'none'})"
            raise ScenarioError(message, key="lognormal")
        for key in given:
            if key.endswith("tokens"):
                number(key, getattr(self, key), above=0)
            else:
                number(key, getattr(self, key), least=0)

    @property
    def log_parameters(self) -> tuple[float, float]:
        """(mu, sigma) of the logarithm."""
        if self.mean_tokens is not None and self.cv is not None:
            variance = math.log1p(self.cv**2)
            return math.log(self.mean_tokens) - variance / 2, math.sqrt(variance)
        assert self.median_tokens is not None
        assert self.sigma is not None
        return math.log(self.median_tokens), self.sigma

    def quantile(self, u: FloatArray) -> FloatArray:
        from scipy.special import ndtri

        mu, sigma = self.log_parameters
        if sigma == 0:  # ndtri(0) is -inf, and 0 * inf is NaN
            return np.full(u.shape, math.exp(mu))
        return np.asarray(np.exp(mu + sigma * ndtri(u)), dtype=np.float64)


@dataclass(frozen=True)
class Exponential(LengthSpec):
    """Exponential with mean ``mean_tokens``, rounded; counts of 0 become 1."""

    kind: ClassVar[str] = "exponential"
    mean_tokens: float

    def __post_init__(self) -> None:
        super().__post_init__()
        number("mean_tokens", self.mean_tokens, above=0)

    def quantile(self, u: FloatArray) -> FloatArray:
        return -self.mean_tokens * np.log1p(-u)


@dataclass(frozen=True)
class Gamma(LengthSpec):
    """Gamma by mean_tokens and cv (standard deviation / mean), rounded; cv 1 is `Exponential`."""

    kind: ClassVar[str] = "gamma"
    mean_tokens: float
    cv: float

    def __post_init__(self) -> None:
        super().__post_init__()
        number("mean_tokens", self.mean_tokens, above=0)
        number("cv", self.cv, above=0)

    def quantile(self, u: FloatArray) -> FloatArray:
        from scipy.special import gammaincinv

        shape = self.cv**-2
        return np.asarray(gammaincinv(shape, u) * (self.mean_tokens / shape), dtype=np.float64)


@dataclass(frozen=True)
class Geometric(LengthSpec):
    """Geometric on 1, 2, ... with mean ``mean_tokens`` >= 1: every token is the last with the same probability."""

    kind: ClassVar[str] = "geometric"
    mean_tokens: float

    def __post_init__(self) -> None:
        super().__post_init__()
        number("mean_tokens", self.mean_tokens, least=1)

    def quantile(self, u: FloatArray) -> FloatArray:
        if self.mean_tokens == 1:
            return np.ones(u.shape)
        return np.floor(np.log1p(-u) / math.log1p(-1 / self.mean_tokens)) + 1


@dataclass(frozen=True)
class Discrete(LengthSpec):
    """The token counts ``values`` with these ``weights`` (equal when absent; they need not sum to 1)."""

    kind: ClassVar[str] = "discrete"
    values: tuple[int, ...]
    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.values:
            raise ScenarioError("needs at least one token count", key="values", value=self.values)
        for i, value in enumerate(self.values):
            integer(f"values[{i}]", value, 1)
        if self.weights is None:
            return
        if len(self.weights) != len(self.values):
            raise ScenarioError(f"needs one weight for each of the {len(self.values)} values", key="weights")
        for i, weight in enumerate(self.weights):
            number(f"weights[{i}]", weight, least=0)
        if sum(self.weights) <= 0:
            raise ScenarioError("at least one weight must be > 0", key="weights")

    def quantile(self, u: FloatArray) -> FloatArray:
        weights = np.ones(len(self.values)) if self.weights is None else np.array(self.weights, dtype=np.float64)
        order = np.argsort(self.values, kind="stable")  # ascending, so that a larger u is never a shorter request
        return np.array(self.values, dtype=np.float64)[order][pick_weighted(u, weights[order])]


def pick_weighted(u: FloatArray, weights: FloatArray) -> IntArray:
    """Index of the weight that each ``u`` in [0, 1) falls on, int64; indices of weight 0 never come up."""
    ends = np.cumsum(weights)
    index = np.searchsorted(ends / ends[-1], u, side="right")
    return np.asarray(np.minimum(index, np.flatnonzero(weights)[-1]), dtype=np.int64)


@dataclass(frozen=True)
class Empirical(LengthSpec):
    """Lengths of a trace's rows. Prompt and output of one trace come from one row, with its prefix blocks.

    ``order`` "sequential": request i takes row i modulo the trace's length; "sampled": a row drawn with replacement.
    ``trace`` None takes the workload's trace.
    """

    kind: ClassVar[str] = "empirical"
    trace: TraceSpec | None = None
    order: str = "sequential"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("order", self.order, ("sequential", "sampled"))

    def rows(self, seed: int, n: int, trace_requests: int) -> IntArray:
        """Row of the trace for each of n request indices, int64[n]."""
        return trace_rows(self.order, request_uniforms(seed, Stream.LENGTHS, n, ROW_DRAW), trace_requests)


def trace_rows(order: str, u: FloatArray, trace_requests: int) -> IntArray:
    """Rows for requests 0, 1, ...: in order and over again, or by the uniform draws ``u``."""
    if order == "sequential":
        return np.arange(len(u), dtype=np.int64) % trace_requests
    return np.asarray(np.minimum((u * trace_requests).astype(np.int64), trace_requests - 1), dtype=np.int64)


LENGTHS: dict[str, type[LengthSpec]] = {
    c.kind: c for c in (Fixed, Uniform, LogNormal, Gamma, Exponential, Geometric, Discrete, Empirical)
}


def make_lengths(kind: str, **fields: Any) -> LengthSpec:
    """The length distribution registered as ``kind``. Raises ScenarioError listing the choices."""
    return make("length distribution", LENGTHS, kind, fields)
