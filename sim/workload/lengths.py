"""How long prompts and outputs are: distributions over integers >= 1, or pairs from a recorded file.

A length is the quantile of one uniform number that belongs to the request's index, so a larger mean makes every request
longer rather than drawing others. Continuous distributions are rounded and then clipped to [min, max], which moves the
mean.
"""

import math
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field

from draftcast.frozen import MOST_TOKENS, Count, Faults, Frozen, Many, NonEmpty, NonNegative, wrong
from draftcast.kernels.arrays import FloatArray, IntArray
from draftcast.sim.workload.request_table import MAX_TOKENS
from draftcast.sim.workload.traces import TraceFormat

MeanTokens = Annotated[float, Field(ge=0.1, le=MOST_TOKENS, allow_inf_nan=False)]
# Beyond these a distribution is constant, or all its mass is at its bounds.
SpreadTokens = Annotated[float, Field(ge=1e-3, le=MOST_TOKENS, allow_inf_nan=False)]


class TokenDistribution(Frozen):
    """A distribution of token counts; subclasses give `quantile`."""

    def quantile(self, u: FloatArray) -> FloatArray:
        """Tokens, before rounding and clipping, at probabilities ``u`` in [0, 1)."""
        raise NotImplementedError

    def tokens(self, u: FloatArray) -> NDArray[np.int32]:
        """Token counts int32 at probabilities ``u``."""
        return np.clip(np.rint(self.quantile(u)), 1, MAX_TOKENS).astype(np.int32)


class ConstantTokens(TokenDistribution):
    """Always the same number of tokens; a bare integer in the file means this."""

    distribution: Literal["constant"]
    value: Count

    def quantile(self, u: FloatArray) -> FloatArray:
        return np.full(u.shape, float(self.value))


class UniformTokens(TokenDistribution):
    """Whole numbers between low and high, both included."""

    distribution: Literal["uniform"]
    low: Count
    high: Count

    def faults(self) -> Faults:
        if self.high < self.low:
            yield wrong("high", self.high, f"must be at least low = {self.low}")

    def quantile(self, u: FloatArray) -> FloatArray:
        return np.floor(self.low + u * (self.high - self.low + 1))


class _Bounded(TokenDistribution):
    """Draws are rounded to whole tokens and held inside [min, max]."""

    min: Count = 1
    max: Count | None = None

    def faults(self) -> Faults:
        if self.max is not None and self.max < self.min:
            yield wrong("max", self.max, f"must be at least min = {self.min}")

    def tokens(self, u: FloatArray) -> NDArray[np.int32]:
        return np.clip(np.rint(self.quantile(u)), self.min, self.max or MAX_TOKENS).astype(np.int32)


class LognormalTokens(_Bounded):
    """Lognormal with the mean and standard deviation of the tokens themselves (not of their logarithm)."""

    distribution: Literal["lognormal"]
    mean: MeanTokens
    std: SpreadTokens

    def quantile(self, u: FloatArray) -> FloatArray:
        from scipy.special import ndtri

        variance = math.log1p((self.std / self.mean) ** 2)
        mu, sigma = math.log(self.mean) - variance / 2, math.sqrt(variance)
        if sigma == 0:  # ndtri(0) is -inf, and 0 * inf is NaN
            return np.full(u.shape, math.exp(mu))
        return np.asarray(np.exp(mu + sigma * ndtri(u)), dtype=np.float64)


class GammaTokens(_Bounded):
    """Gamma with this mean and standard deviation."""

    distribution: Literal["gamma"]
    mean: MeanTokens
    std: SpreadTokens

    def quantile(self, u: FloatArray) -> FloatArray:
        from scipy.special import gammaincinv

        shape = (self.std / self.mean) ** -2
        return np.asarray(gammaincinv(shape, u) * (self.mean / shape), dtype=np.float64)


class ExponentialTokens(_Bounded):
    """Exponential, rounded; 0 becomes 1 (min)."""

    distribution: Literal["exponential"]
    mean: MeanTokens

    def quantile(self, u: FloatArray) -> FloatArray:
        return -self.mean * np.log1p(-u)


class GeometricTokens(_Bounded):
    """Geometric on 1, 2, ...: memoryless output lengths."""

    distribution: Literal["geometric"]
    mean: Annotated[float, Field(ge=1, le=MOST_TOKENS, allow_inf_nan=False)]

    def quantile(self, u: FloatArray) -> FloatArray:
        if self.mean == 1:
            return np.ones(u.shape)
        return np.floor(np.log1p(-u) / math.log1p(-1 / self.mean)) + 1


class EmpiricalTokens(TokenDistribution):
    """Given values with given weights (equal when absent; they need not sum to 1)."""

    distribution: Literal["empirical"]
    values: Many[Count]
    weights: Many[NonNegative] | None = None

    def faults(self) -> Faults:
        if self.weights is not None and len(self.weights) != len(self.values):
            yield wrong("weights", list(self.weights), f"needs one weight for each of the {len(self.values)} values")
        if self.weights is not None and sum(self.weights) <= 0:
            yield wrong("weights", list(self.weights), "at least one weight must be above 0")

    def quantile(self, u: FloatArray) -> FloatArray:
        weights = np.ones(len(self.values)) if self.weights is None else np.array(self.weights, dtype=np.float64)
        order = np.argsort(self.values, kind="stable")  # ascending, so that a larger u is never a shorter request
        return np.array(self.values, dtype=np.float64)[order][pick_weighted(u, weights[order])]


def pick_weighted(u: FloatArray, weights: FloatArray) -> IntArray:
    """Index of the weight that each ``u`` in [0, 1) falls on, int64; indices of weight 0 never come up."""
    ends = np.cumsum(weights)
    index = np.searchsorted(ends / ends[-1], u, side="right")
    return np.asarray(np.minimum(index, np.flatnonzero(weights)[-1]), dtype=np.int64)


def trace_rows(order: str, u: FloatArray, trace_requests: int) -> IntArray:
    """Rows for requests 0, 1, ...: in order and over again, or by the uniform draws ``u``."""
    if order == "sequential":
        return np.arange(len(u), dtype=np.int64) % trace_requests
    return np.asarray(np.minimum((u * trace_requests).astype(np.int64), trace_requests - 1), dtype=np.int64)


def _integer_is_constant(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return {"distribution": "constant", "value": value}
    return value


_Distribution = Annotated[
    ConstantTokens
    | UniformTokens
    | LognormalTokens
    | GammaTokens
    | ExponentialTokens
    | GeometricTokens
    | EmpiricalTokens,
    Field(discriminator="distribution"),
]
TokenCounts = Annotated[
    _Distribution, BeforeValidator(_integer_is_constant, json_schema_input_type=_Distribution | Count)
]


class Lengths(Frozen):
    """Prompt and output tokens of a request: two independent distributions, or pairs drawn from a recorded file."""

    prompt_tokens: TokenCounts | None = None
    output_tokens: TokenCounts | None = None
    path: NonEmpty | None = None
    format: TraceFormat = "auto"
    # Rows of the file in order and over again, or drawn with replacement.
    order: Literal["sequential", "sampled"] = "sequential"

    def faults(self) -> Faults:
        for key in ("prompt_tokens", "output_tokens"):
            if self.path is not None and getattr(self, key) is not None:
                yield wrong(key, "given", "not together with path: the file has the lengths")
            if self.path is None and getattr(self, key) is None:
                yield wrong(key, None, "required (a number, a distribution, or path for lengths from a file)")
        for key, default in (("format", "auto"), ("order", "sequential")):
            if self.path is None and getattr(self, key) != default:
                yield wrong(key, getattr(self, key), "only together with path")
