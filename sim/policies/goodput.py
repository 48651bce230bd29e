"""One draft length for the batch, by expected tokens per second: SmartSpec, TurboSpec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from draftcast.sim.engine import decide as rules
from draftcast.sim.engine.state import PolicyArrays
from draftcast.sim.policies.base import Policy, arrays, check_count, check_unit


@dataclass(frozen=True)
class Goodput(Policy):
    """SmartSpec: the k with the most expected tokens per second (arXiv 2406.14066, section 4).

    Expected tokens of a round are 1 + alpha + ... + alpha^k with one moving-average alpha for the replica; the
    seconds come from the step cost at the batch's size and mean context.

    Args:
        weight: weight of a new step in the moving average, in (0, 1].
        initial_acceptance: alpha before the first round, in [0, 1].
        probe_interval_steps: after so many steps in a row without drafts, one step drafts one token so that alpha
            can recover; 0 never probes.
    """

    weight: float = 0.1
    initial_acceptance: float = 0.7
    probe_interval_steps: int = 64
    name: ClassVar[str] = "goodput"

    def __post_init__(self) -> None:
        check_unit(self, "weight", above_zero=True)
        check_unit(self, "initial_acceptance")
        check_count(self, "probe_interval_steps", 0)

    def compile(self, k: int, max_num_seqs: int, seed: int = 0) -> PolicyArrays:
        return arrays(
            rules.KIND_GOODPUT,
            params=[self.weight, self.probe_interval_steps],
            state=[self.initial_acceptance, 0.0],
        )
