"""Models whose acceptance depends on the draft's index alone: constant, per_position, tree.

Every round meets fresh uniform numbers (see compiled.py), so rounds are independent and the formulas exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draftcast.errors import ScenarioError
from draftcast.sim.acceptance.compiled import MAX_K
from draftcast.sim.acceptance.model import (
    AcceptanceModel,
    Rates,
    check_drafts,
    check_number,
    check_probability,
    check_rates,
    register,
)

_MAX_WIDTH = 1024  # children of one node; Sequoia's largest trees hold 768 nodes in all


@register("constant")
@dataclass(frozen=True)
class Constant(AcceptanceModel):
    """Every draft is accepted with probability ``alpha``, independently.

    Mean acceptance length (1 - alpha**(k+1)) / (1 - alpha): Leviathan et al., arXiv 2211.17192, equation 1.
    """

    alpha: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", check_probability("alpha", self.alpha))

    def unconditional(self, k: int) -> Rates:
        return np.asarray(self.alpha ** np.arange(1, check_drafts(k) + 1), dtype=np.float64)

    def draft_probabilities(self) -> Rates:
        # Not the ratio of two powers: those underflow for small alpha and lose the last bit for others.
        return np.full(self.max_drafts(), self.alpha)


@register("per_position")
@dataclass(frozen=True)
class PerPosition(AcceptanceModel):
    """Unconditional, non-increasing ``rates`` by draft index: vLLM's ``synthetic_acceptance_rates`` verbatim."""

    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "rates", check_rates("rates", self.rates))

    @classmethod
    def from_mean_length(cls, mean_length: float, k: int) -> PerPosition:
        """Rates with the given mean acceptance length, the way vLLM resolves ``synthetic_acceptance_length``.

        The schedule of least variance: as many certain drafts as fit, one fractional, then none.
        """
        k = check_drafts(k)
        allowed = f"a number from 1 to {k + 1} (num_speculative_tokens + 1)"
        mean_length = check_number("synthetic_acceptance_length", mean_length, 1.0, k + 1.0, allowed)
        return cls(tuple(np.clip(mean_length - 1.0 - np.arange(k), 0.0, 1.0).tolist()))

    def max_drafts(self) -> int:
        return len(self.rates)

    def unconditional(self, k: int) -> Rates:
        return np.array(self.rates[: check_drafts(k, len(self.rates), "acceptance.rates")])


@register("tree")
@dataclass(frozen=True)
class Tree(AcceptanceModel):
    """A draft tree: drafts of a round are the tree's depths, of which at most one node each is accepted.

    Either unconditional ``rates`` per depth, or ``alpha`` and ``widths``: the accepted node at depth d - 1 has
    ``widths[d]`` children, each accepted with probability ``alpha`` (one number, or one per sibling) given that its
    elder siblings were not. How many nodes are verified (the cost) is the method's business, not this model's.
    """

    rates: tuple[float, ...] | None = None
    alpha: float | tuple[float, ...] | None = None
    widths: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.rates is not None:
            for key, value in (("alpha", self.alpha), ("widths", self.widths)):
                if value is not None:
                    raise ScenarioError("give either rates, or alpha and widths", key=key, value=value)
            object.__setattr__(self, "rates", check_rates("rates", self.rates))
            return
        if self.alpha is None or self.widths is None:
            missing = "alpha" if self.alpha is None else "widths"
            raise ScenarioError("give either rates, or alpha and widths", key=missing, value=None)
        tree_depth_probabilities(self.alpha, self.widths)
        if len(self.widths) > MAX_K:
            raise ScenarioError(f"must hold 1 to {MAX_K} depths, got {len(self.widths)}", key="widths")
        # Lists, as a YAML file gives them, become tuples: the model stays hashable.
        alpha = tuple(map(float, self.alpha)) if isinstance(self.alpha, Sequence) else float(self.alpha)
        object.__setattr__(self, "alpha", alpha)
        object.__setattr__(self, "widths", tuple(int(width) for width in self.widths))

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


def tree_depth_probabilities(alpha: float | Sequence[float], widths: Sequence[int]) -> Rates:
    """P(some node at depth d accepted | its parent was): 1 - prod over the siblings of (1 - alpha_s). Shape [depth].

    Multi-round speculative sampling tries the siblings one after the other (SpecInfer, arXiv 2305.09781, section 4.3),
    and the chance of the s-th depends on s alone (the positional acceptance assumption of Sequoia, arXiv 2402.12374,
    section 3).

    Args:
        alpha: acceptance of a sibling given that the elder ones were rejected; one number, or one per sibling rank.
        widths: children of the accepted node at each depth, >= 1.

    Raises:
        ScenarioError: alpha outside [0, 1], no depth, a width below 1 or beyond the ranks that alpha covers.
    """
    if isinstance(widths, (str, bytes)) or not isinstance(widths, (Sequence, np.ndarray)) or len(widths) == 0:
        raise ScenarioError("must be a list of whole numbers, one per depth of the tree", key="widths", value=widths)
    if isinstance(alpha, (Sequence, np.ndarray)) and not isinstance(alpha, str):
        ranks = [check_probability(f"alpha[{s}]", rate) for s, rate in enumerate(alpha)]
        most = len(ranks)
    else:
        ranks = [check_probability("alpha", alpha)]
        most = _MAX_WIDTH
    probabilities = np.zeros(len(widths))
    for depth, width in enumerate(widths):
        if isinstance(width, bool) or not isinstance(width, (int, np.integer)) or not 1 <= width <= most:
            raise ScenarioError(f"must be a whole number from 1 to {most}", key=f"widths[{depth}]", value=width)
        siblings = ranks * int(width) if len(ranks) == 1 else ranks[: int(width)]
        # 1 - (1 - alpha) may lose a bit, and a tree of single children is the chain of `constant`, bit for bit.
        probabilities[depth] = siblings[0] if width == 1 else 1.0 - float(np.prod(1.0 - np.array(siblings)))
    return probabilities
