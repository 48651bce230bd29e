"""Acceptance that differs between requests: one alpha per request, drawn from a Beta distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from draftcast.sim.acceptance.compiled import KIND_BETA
from draftcast.sim.acceptance.model import AcceptanceModel, Rates, check_drafts


@dataclass(frozen=True)
class Beta(AcceptanceModel):
    """alpha ~ Beta(mean * concentration, (1 - mean) * concentration) per request, then independent drafts.

    Variance mean * (1 - mean) / (concentration + 1): small concentration, long tails.
    """

    kind: ClassVar[int] = KIND_BETA

    mean: float
    concentration: float

    def unconditional(self, k: int) -> Rates:
        """E[alpha**(j+1)], the raw moments of the Beta: the mean over requests, each counted once."""
        return np.asarray(np.cumprod(self.conditional(k)), dtype=np.float64)

    def conditional(self, k: int) -> Rates:
        index = np.arange(check_drafts(k))
        return np.asarray((self.mean * self.concentration + index) / (self.concentration + index))

    def quantile(self, probability: Rates) -> Rates:
        """alpha at each cumulative probability in [0, 1); same shape."""
        if self.mean in (0.0, 1.0):
            return np.full_like(probability, self.mean)
        from scipy.special import betaincinv

        first, second = self.mean * self.concentration, (1.0 - self.mean) * self.concentration
        return np.asarray(betaincinv(first, second, probability), dtype=np.float64)
