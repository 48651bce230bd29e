"""How many draft tokens the target accepts. There is no default: only the user, or a measurement, knows it.

Rates are *unconditional*: ``rates[i]`` is the share of rounds in which the first i+1 drafts were all accepted (vLLM's
``synthetic_acceptance_rates`` and ``vllm:spec_decode_num_accepted_tokens_per_pos / num_drafts``), so they never rise.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from draftcast.frozen import (
    Count,
    Frozen,
    Nodes,
    NonEmpty,
    Probability,
    Width,
    wrong,
)
from draftcast.sim.acceptance.compiled import MAX_K


def _non_increasing(rates: tuple[float, ...]) -> tuple[float, ...]:
    for position in range(1, len(rates)):
        if rates[position] > rates[position - 1]:
            message = f"unconditional rates never rise: position {position} exceeds the {rates[position - 1]} before it"
            raise wrong(str(position), rates[position], message)
    return rates


Rates = Annotated[
    tuple[Probability, ...], Field(strict=False, min_length=1, max_length=MAX_K), AfterValidator(_non_increasing)
]


class AcceptanceBase(Frozen):
    """What every model has besides its own rates."""

    # How well the draft's own confidence tells accepted tokens from rejected ones, for policies that go by it: mean
    # confidence of accepted drafts less that of rejected ones. None: the draft's confidence is not known.
    confidence_discrimination: Probability | None = None
    # How sure the mean acceptance length is: its relative standard error, or over how many rounds it was measured.
    relative_error: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] | None = None
    num_rounds: Count | None = None

    @model_validator(mode="after")
    def _one_kind_of_error(self) -> Self:
        if self.relative_error is not None and self.num_rounds is not None:
            raise wrong("num_rounds", self.num_rounds, "give relative_error or num_rounds, not both")
        return self


class ConstantAcceptance(AcceptanceBase):
    """Every draft token is accepted with the same probability, independently."""

    model: Literal["constant"]
    alpha: Probability


class PerPositionAcceptance(AcceptanceBase):
    """Measured unconditional rate of each draft position."""

    model: Literal["per_position"]
    rates: Rates


class BetaAcceptance(AcceptanceBase):
    """Each request has its own alpha from a Beta(mean*concentration, (1-mean)*concentration): latency tails."""

    model: Literal["beta"]
    mean: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
    concentration: Annotated[float, Field(ge=1e-6, le=1e6, allow_inf_nan=False)]


class MarkovAcceptance(AcceptanceBase):
    """Good and bad stretches with their own alpha; ``p_gb`` (good to bad) and ``p_bg`` are per output token."""

    model: Literal["markov"]
    alpha_good: Probability
    alpha_bad: Probability
    p_gb: Probability
    p_bg: Probability

    @model_validator(mode="after")
    def _not_frozen_in_both_states(self) -> Self:
        if self.p_gb == 0 and self.p_bg == 0:
            raise wrong("p_gb", 0, "at least one of p_gb and p_bg must be above 0")
        return self


class NgramAcceptance(AcceptanceBase):
    """A lookup finds a match with some probability (else no draft); matched drafts follow ``rates`` or ``alpha``."""

    model: Literal["ngram"]
    match_probability: Probability
    alpha: Probability | None = None
    rates: Rates | None = None
    # 0: matches are independent; towards 1: matches come in bursts (same long-run share).
    persistence: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.0
    # Suffix decoding: the proposal is as long as the match, geometric with this mean (None: always k).
    mean_match_tokens: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None

    @model_validator(mode="after")
    def _one_kind_of_rate(self) -> Self:
        if (self.alpha is None) == (self.rates is None):
            raise wrong("alpha", self.alpha, "give exactly one of alpha and rates")
        return self


class TreeAcceptance(AcceptanceBase):
    """A draft tree: ``alpha`` of one branch, or unconditional ``rates`` per depth as measured with one tree.

    Alpha alone follows the shape of the tree that is simulated; ``widths`` says instead how many branches are tried at
    each depth. Rates hold for the tree they were measured with (``tree_width``, ``max_tree_nodes``; absent: the default
    tree) and are carried over to another.
    """

    model: Literal["tree"]
    rates: Rates | None = None
    alpha: Probability | None = None
    widths: Annotated[tuple[Count, ...], Field(strict=False, min_length=1, max_length=MAX_K)] | None = None
    tree_width: Width | None = None
    max_tree_nodes: Nodes | None = None

    @model_validator(mode="after")
    def _one_kind_of_rate(self) -> Self:
        if (self.alpha is None) == (self.rates is None):
            raise wrong("alpha", self.alpha, "give exactly one of rates and alpha (alpha with or without widths)")
        if self.widths is not None and self.alpha is None:
            raise wrong("widths", list(self.widths), "goes with alpha, one width per depth")
        for key in ("tree_width", "max_tree_nodes"):
            if self.rates is None and getattr(self, key) is not None:
                raise wrong(key, getattr(self, key), "says which tree rates were measured with; alpha needs none")
        return self


class TraceAcceptance(AcceptanceBase):
    """Recorded acceptance by output position: ``<record>.acc_len`` of a ``specdecode_bench`` file.

    Without ``path`` the file the requests come from; with it, each request replays a row of that file.
    """

    model: Literal["trace"]
    record: NonEmpty = "acc_eagle"
    path: NonEmpty | None = None

    @model_validator(mode="after")
    def _rounds_are_in_the_record(self) -> Self:
        if self.num_rounds is not None:
            message = "the rates are the record's own; give relative_error if other traffic may differ from it"
            raise wrong("num_rounds", self.num_rounds, message)
        return self


Acceptance = Annotated[
    ConstantAcceptance
    | PerPositionAcceptance
    | BetaAcceptance
    | MarkovAcceptance
    | NgramAcceptance
    | TreeAcceptance
    | TraceAcceptance,
    Field(discriminator="model"),
]


def known_positions(acceptance: Acceptance) -> int | None:
    """How many draft positions the model has rates for; None when it has them for any number."""
    rates = getattr(acceptance, "rates", None) or getattr(acceptance, "widths", None)
    return len(rates) if rates is not None else None
