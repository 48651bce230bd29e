"""Try draft lengths and keep to the one that works: Nightjar, BanditSpec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from draftcast.errors import ScenarioError
from draftcast.sim.compiled.random_streams import Stream, stream_key
from draftcast.sim.engine import decide as rules
from draftcast.sim.engine.rules.bandit import bandit_state
from draftcast.sim.engine.state import PolicyArrays
from draftcast.sim.policies.base import Policy, arrays, check_at_least_zero

ALGORITHMS = ("bin_greedy", "ucb")


@dataclass(frozen=True)
class Bandit(Policy):
    """One length for the batch, 0..num_speculative_tokens, learned from the time each took per emitted token.

    What was learned is kept apart by batch size, as in Nightjar; sizes are pooled by powers of two.

    ``bin_greedy`` (Nightjar, arXiv 2512.22420, after ADA-BINGREEDY): a length is locked for a bin of steps. Block j has
    2^(j-1) bins of 2^(j-1) steps. The b-th bin of a block tries a random length with probability 1/b; else it takes the
    one with the least mean loss, plus ``switch_cost_s`` / length when drafting resumes after a bin without.

    ``ucb`` (BanditSpec, arXiv 2505.15141, algorithm 4): every step takes the length with the highest upper confidence
    bound, the mean reward plus ``exploration`` * sqrt(2 ln t / n), t steps in all and n with this length; each is tried
    once first. The reward is tokens per second relative to the best length's mean, so that it lies in about 0..1 (the
    paper counts accepted tokens, its lengths having equal cost).

    The simulated draft keeps its KV cache up to date in steps without drafts, so resuming really costs nothing;
    ``switch_cost_s`` is what the rule is told.

    Args:
        algorithm: ``bin_greedy`` or ``ucb``.
        exploration: weight of the confidence radius of ``ucb``, at least 0.
        switch_cost_s: cost of resuming that ``bin_greedy`` reckons with, in seconds.
    """

    algorithm: str = "bin_greedy"
    exploration: float = 0.1
    switch_cost_s: float = 0.0
    name: ClassVar[str] = "bandit"

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise ScenarioError(f"must be one of {', '.join(ALGORITHMS)}", key="policy.algorithm", value=self.algorithm)
        check_at_least_zero(self, "exploration")
        check_at_least_zero(self, "switch_cost_s")

    def compile(self, k: int, max_num_seqs: int, seed: int = 0) -> PolicyArrays:
        # A tree has fewer levels than nodes; the arms it does not need stay empty.
        return arrays(
            rules.KIND_BANDIT,
            params=[float(self.algorithm == "ucb"), self.exploration, self.switch_cost_s],
            state=bandit_state(k + 1, max_num_seqs, stream_key(seed, Stream.POLICY)),
        )
