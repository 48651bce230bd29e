"""Draft for all, verify what raises the batch's tokens per second: DSpark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from draftcast.errors import ScenarioError
from draftcast.sim.engine import decide as rules
from draftcast.sim.engine.rules.selection import work_spaces
from draftcast.sim.engine.state import PolicyArrays
from draftcast.sim.policies.base import Policy, arrays


@dataclass(frozen=True)
class AdaptiveVerification(Policy):
    """Every request drafts ``num_speculative_tokens``; the likeliest drafts are verified while throughput rises.

    Rule: take the drafts of the batch by falling survival (the product of the confidences up to each) and count a taken
    one's survival to the expected tokens, which start at one per request. Their number over the time of a step with as
    many rows is the throughput; stop before the first draft that does not raise it (DSpark, arXiv 2607.05147, algorithm
    1, the hardware-aware prefix scheduler). Stopping there keeps the choice independent of drafts further on, hence
    lossless. Where the time jumps with the rows (CUDA-graph sizes) it may stop at once. Without ``early_stop`` the best
    point on the whole path is taken, as the paper's deployed scheduler does (there the number of drafts goes by
    confidences two steps old, which keeps it lossless; here by the current ones).

    The time of a step by rows is the step cost's own, drafting included (the paper profiles steps per second once). A
    draft without any chance is not verified.

    Args:
        early_stop: stop at the first draft that does not raise throughput (algorithm 1), instead of weighing all.
    """

    early_stop: bool = False
    name: ClassVar[str] = "adaptive_verification"
    needs_confidence: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.early_stop, bool):
            raise ScenarioError("must be true or false", key="policy.early_stop", value=self.early_stop)

    def compile(self, k: int, max_num_seqs: int, seed: int = 0) -> PolicyArrays:
        return arrays(rules.KIND_ADAPTIVE_VERIFICATION, params=[float(self.early_stop)], **work_spaces(k, max_num_seqs))
