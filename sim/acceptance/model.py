"""What every acceptance model answers. Their parameters are validated where they enter (``sections.py``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

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


def check_drafts(k: int, known: int = MAX_K, source: str = "one round") -> int:
    """k as int; ``ScenarioError`` unless 0 <= k <= known."""
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or not 0 <= k <= known:
        raise ScenarioError(
            f"must be a whole number from 0 to {known}, the most drafts that {source} covers",
            key="num_speculative_tokens",
            value=k,
        )
    return int(k)
