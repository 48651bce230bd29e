"""What every acceptance model answers, the checks they share, and the registry of their names."""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from draftcast.errors import ScenarioError
from draftcast.sim.acceptance.compiled import KIND_RATES, MAX_K, N_PARAMS

Rates = npt.NDArray[np.float64]


class AcceptanceModel(ABC):
    """How many draft tokens of a round the target accepts. Subclasses are frozen dataclasses.

    A *round* verifies k draft tokens and always emits one token more than it accepts (the bonus or the corrected
    token). Rates are averages over the rounds that carry a draft, as in vLLM's metrics; rounds without one are not
    counted. k runs from 0 to :data:`MAX_K`; k beyond what the model knows raises ``ScenarioError``.
    """

    kind: ClassVar[int] = KIND_RATES

    @abstractmethod
    def unconditional(self, k: int) -> Rates:
        """P(the first j + 1 drafts are all accepted), j = 0..k-1: vLLM's ``synthetic_acceptance_rates``. Shape [k]."""

    def conditional(self, k: int) -> Rates:
        """P(draft j accepted | those before it were), j = 0..k-1; 0 where that never happens. Shape [k]."""
        rates = self.unconditional(k)
        before = np.concatenate(([1.0], rates))[:k]
        return np.divide(rates, before, out=np.zeros(k), where=before > 0)

    def mean_acceptance_length(self, k: int) -> float:
        """Mean tokens per round with the bonus token: vLLM's 1 + accepted / rounds."""
        return 1.0 + float(self.unconditional(k).sum())

    def pooled_acceptance_length(self, k: int) -> float:
        """Like :meth:`mean_acceptance_length`, but over all rounds of many requests that run to the same long output.

        Differs only where requests differ (beta): a request with poor acceptance needs more rounds, so it weighs more.
        """
        return self.mean_acceptance_length(k)

    def draft_share(self, k: int) -> float:
        """Share of a request's rounds that carry a draft when k are asked for: 1, or less for ngram."""
        return 1.0 if check_drafts(k) > 0 else 0.0

    def tokens_per_round(self, k: int) -> float:
        """Mean tokens per round, rounds without a draft (one token each) included."""
        return 1.0 + self.draft_share(k) * (self.mean_acceptance_length(k) - 1.0)

    def max_drafts(self) -> int:
        """Largest k the model can answer for."""
        return MAX_K

    def draft_probabilities(self) -> Rates:
        """What the engine compares a uniform number with, per draft index. Shape [max_drafts()]."""
        return self.conditional(self.max_drafts())

    def parameters(self) -> Rates:
        """The row of ``AcceptanceArrays.params``. Shape [N_PARAMS]."""
        return np.zeros(N_PARAMS)


ModelT = TypeVar("ModelT", bound=type[AcceptanceModel])
ACCEPTANCE_MODELS: dict[str, type[AcceptanceModel]] = {}


def register(name: str) -> Callable[[ModelT], ModelT]:
    """Class decorator: makes the model known as ``name``."""

    def add(model: ModelT) -> ModelT:
        ACCEPTANCE_MODELS[name] = model
        return model

    return add


def check_probability(key: str, value: object) -> float:
    """The value as float; ``ScenarioError`` unless it is a number in [0, 1]."""
    return check_number(key, value, 0.0, 1.0, "a number from 0 to 1")


def check_number(key: str, value: object, low: float, high: float, allowed: str) -> float:
    """The value as float; ``ScenarioError`` saying ``allowed`` unless it is a finite number in [low, high]."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise ScenarioError(f"must be {allowed}", key=key, value=value)
    # Compared before it is converted: an integer may be larger than any float.
    number: Any = value
    if not low <= number <= high or not abs(number) <= sys.float_info.max:
        raise ScenarioError(f"must be {allowed}", key=key, value=value)
    return float(number)


def check_drafts(k: int, known: int = MAX_K, source: str = "one round") -> int:
    """k as int; ``ScenarioError`` unless 0 <= k <= known."""
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or not 0 <= k <= known:
        raise ScenarioError(
            f"must be a whole number from 0 to {known}, the most drafts that {source} covers",
            key="num_speculative_tokens",
            value=k,
        )
    return int(k)


def check_rates(key: str, rates: object) -> tuple[float, ...]:
    """Unconditional rates: 1 to MAX_K numbers in [0, 1], non-increasing; else ``ScenarioError``."""
    if isinstance(rates, (str, bytes)) or not isinstance(rates, (Sequence, np.ndarray)):
        raise ScenarioError("must be a list of numbers from 0 to 1", key=key, value=rates)
    if not 1 <= len(rates) <= MAX_K:
        raise ScenarioError(f"must hold 1 to {MAX_K} rates, got {len(rates)}", key=key)
    checked = tuple(check_probability(f"{key}[{j}]", rate) for j, rate in enumerate(rates))
    for j in range(1, len(checked)):
        if checked[j] > checked[j - 1]:
            raise ScenarioError(
                f"unconditional rates must not increase: at most the rate before it, {checked[j - 1]!r}",
                key=f"{key}[{j}]",
                value=rates[j],
            )
    return checked


def build_acceptance(
    name: str, parameters: Mapping[str, object], *, key: str = "acceptance", file: str | None = None
) -> AcceptanceModel:
    """The model of that name with these parameters.

    Raises:
        ScenarioError: unknown name (lists the choices), unknown or missing parameter, or a bad value; keys are
            ``{key}.{parameter}``.
    """
    model = ACCEPTANCE_MODELS.get(name)
    if model is None:
        choices = ", ".join(sorted(ACCEPTANCE_MODELS))
        raise ScenarioError(f"unknown acceptance model; choose one of {choices}", file=file, key=key, value=name)
    known = {field.name: field for field in fields(model)}  # type: ignore[arg-type]  # every model is a dataclass
    for parameter, value in parameters.items():
        if parameter not in known:
            allowed = ", ".join(known) or "none"
            message = f"unknown parameter of acceptance model {name}; allowed: {allowed}"
            raise ScenarioError(message, file=file, key=f"{key}.{parameter}", value=value)
    for parameter, field in known.items():
        if parameter not in parameters and field.default is MISSING:
            message = f"acceptance model {name} needs it; acceptance has no default"
            raise ScenarioError(message, file=file, key=f"{key}.{parameter}")
    try:
        return model(**parameters)
    except ScenarioError as error:
        place = re.fullmatch(r"(\w+)(?:\[(\d+)\])?", error.key or "")
        if place is None or place[1] not in parameters:
            raise ScenarioError(error.message, file=file, key=f"{key}.{error.key}" if error.key else key) from None
        value = parameters[place[1]]
        if place[2] is not None and isinstance(value, (Sequence, np.ndarray)):
            value = value[int(place[2])]
        raise ScenarioError(error.message, file=file, key=f"{key}.{error.key}", value=value) from None
