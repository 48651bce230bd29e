"""Stop drafting when the drafts so far have become unlikely: SpecDec++, DISCO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from draftcast.sim.engine import decide as rules
from draftcast.sim.engine.rules.selection import work_spaces
from draftcast.sim.engine.state import PolicyArrays
from draftcast.sim.policies.base import Policy, arrays, check_unit


@dataclass(frozen=True)
class Confidence(Policy):
    """Each request drafts on until its draft is no longer sure; the draft that ends the round is verified too.

    Rule: with c_j the confidence in draft j, a round ends with the first draft after which the chance that some draft
    of it will be rejected, 1 - c_1 ... c_j, exceeds ``max_rejection_probability`` (SpecDec++, arXiv 2405.19715, section
    4: the optimal policy of a Markov decision process is such a threshold), or whose own c_j is below
    ``min_confidence`` (DISCO, arXiv 2405.04304: a classifier of the draft's probabilities with a threshold).

    A batch pays as many draft passes as its longest round has drafts. The decision needs the draft's own output: it is
    taken on the device, while drafting.

    Args:
        max_rejection_probability: in 0..1; 1 never stops.
        min_confidence: in 0..1; 0 never stops.
    """

    max_rejection_probability: float = 0.7
    min_confidence: float = 0.0
    name: ClassVar[str] = "confidence"
    needs_confidence: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_unit(self, "max_rejection_probability")
        check_unit(self, "min_confidence")

    def compile(self, k: int, max_num_seqs: int, seed: int = 0) -> PolicyArrays:
        return arrays(
            rules.KIND_CONFIDENCE,
            params=[self.max_rejection_probability, self.min_confidence],
            **work_spaces(k, max_num_seqs),
        )
