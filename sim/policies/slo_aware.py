"""Drafts by deadline first, then by likelihood: AdaServe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from draftcast.errors import ScenarioError
from draftcast.sim.engine import decide as rules
from draftcast.sim.engine.rules.selection import work_spaces
from draftcast.sim.engine.state import PolicyArrays
from draftcast.sim.policies.base import Policy, arrays, check_at_least_zero

MOST_CLASSES = 128  # their ids are signed bytes


@dataclass(frozen=True)
class SloAware(Policy):
    """Every request drafts ``num_speculative_tokens``; verified are those it needs for its TPOT, then the likeliest.

    Rule (AdaServe, arXiv 2501.12162, section 4): a request that was t seconds past its first token at the end of the
    next round must have t / TPOT tokens by then; what it lacks, less the token every round yields, is what its drafts
    must bring. In order of what they lack, requests get the shortest prefix whose forecast (the sum of its survivals)
    brings that. What is left of the budget goes to the likeliest drafts of the batch, as in ``tetris``.

    The budget is what the hardware verifies almost for nothing: the most drafts for which a decode step takes at most
    ``latency_slack`` longer than with none verified (the paper sets it from a profile of the device; AdaSpec, arXiv
    2503.05096, likewise bounds the length by a forecast of the step's latency). Requests without a TPOT only take part
    in the second half.

    Args:
        tpot_s: SLO, seconds per output token after the first: one for all classes, or one each in the order of their
            ids; 0 for none. A scenario's own SLO is taken when it is absent.
        latency_slack: share by which verification may lengthen a step, at least 0.
    """

    tpot_s: float | Sequence[float]
    latency_slack: float = 0.25
    name: ClassVar[str] = "slo_aware"
    needs_confidence: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_at_least_zero(self, "latency_slack")
        for value in np.atleast_1d(np.asarray(self.tpot_s, object)):
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0.0 <= value < float("inf"):
                raise ScenarioError("must be seconds, at least 0", key="policy.tpot_s", value=value)

    def compile(self, k: int, max_num_seqs: int, seed: int = 0) -> PolicyArrays:
        by_class = np.zeros(MOST_CLASSES)
        by_class[: np.size(self.tpot_s) if np.ndim(self.tpot_s) else None] = self.tpot_s
        return arrays(
            rules.KIND_SLO_AWARE,
            params=[self.latency_slack, *by_class],
            state=np.zeros(max_num_seqs),
            **work_spaces(k, max_num_seqs),
        )
