"""Models whose acceptance depends on the draft's index alone: constant, per_position, tree.

Every round meets fresh uniform numbers (see compiled.py), so rounds are independent and the formulas exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draftcast.sim.acceptance.model import AcceptanceModel, Rates, check_drafts


@dataclass(frozen=True)
class Constant(AcceptanceModel):
    """Every draft is accepted with probability ``alpha``, independently.

    Mean acceptance length (1 - alpha**(k+1)) / (1 - alpha): Leviathan et al., arXiv 2211.17192, equation 1.
    """

    alpha: float

    def unconditional(self, k: int) -> Rates:
        return np.asarray(self.alpha ** np.arange(1, check_drafts(k) + 1), dtype=np.float64)

    def draft_probabilities(self) -> Rates:
        # Not the ratio of two powers: those underflow for small alpha and lose the last bit for others.
        return np.full(self.max_drafts(), self.alpha)


@dataclass(frozen=True)
class PerPosition(AcceptanceModel):
    """Unconditional, non-increasing ``rates`` by draft index: vLLM's ``synthetic_acceptance_rates`` verbatim."""

    rates: tuple[float, ...]

    def max_drafts(self) -> int:
        return len(self.rates)

    def unconditional(self, k: int) -> Rates:
        return np.array(self.rates[: check_drafts(k, len(self.rates), "acceptance.rates")])


@dataclass(frozen=True)
class Tree(AcceptanceModel):
    """A draft tree: drafts of a round are the tree's depths, of which at most one node each is accepted.

    Either unconditional ``rates`` per depth, or ``alpha`` and ``widths``: the accepted node at depth d - 1 has
    ``widths[d]`` children, each accepted with probability ``alpha`` given that its elder siblings were not. How many
    nodes are verified (the cost) is the method's business, not this model's.
    """

    rates: tuple[float, ...] | None = None
    alpha: float | None = None
    widths: tuple[int, ...] | None = None

    def max_drafts(self) -> int:
        return len(self.rates if self.rates is not None else self.widths or ())

    def unconditional(self, k: int) -> Rates:
        k = check_drafts(k, self.max_drafts(), "the acceptance tree's depth")
        if self.rates is not None:
            return np.array(self.rates[:k])
        return np.asarray(np.cumprod(self.draft_probabilities()[:k]), dtype=np.float64)

    def draft_probabilities(self) -> Rates:
        if self.alpha is not None and self.widths is not None:
            return tree_depth_probabilities(self.alpha, self.widths)
        return self.conditional(self.max_drafts())


def tree_depth_probabilities(alpha: float, widths: Sequence[int]) -> Rates:
    """P(some node at depth d accepted | its parent was): 1 - (1 - alpha)^width. Shape [depth].

    Multi-round speculative sampling tries the siblings one after the other (SpecInfer, arXiv 2305.09781, section 4.3),
    each accepted with probability ``alpha`` given that the elder ones were rejected (the positional acceptance
    assumption of Sequoia, arXiv 2402.12374, section 3). ``widths``: children of the accepted node at each depth, >= 1.
    """
    # 1 - (1 - alpha) may lose a bit, and a tree of single children is the chain of `constant`, bit for bit.
    return np.array([alpha if width == 1 else 1.0 - float(np.prod(np.full(width, 1.0 - alpha))) for width in widths])
