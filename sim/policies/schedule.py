"""Draft lengths that are known beforehand: off, fixed, by batch size."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numba import njit

from draftcast.errors import ScenarioError
from draftcast.kernels.arrays import IntArray
from draftcast.sim.policies.base import Policy, arrays, draft_alike
from draftcast.sim.state.engine import EngineState, PolicyArrays


@njit(cache=True)
def decide_by_size(s: EngineState, slot: int) -> None:
    """As many drafts for every request as the table says for the batch's size."""
    draft_alike(s, slot, int(s.policy.table[s.batch[slot].size]))


@dataclass(frozen=True)
class Off(Policy):
    """Never draft, with everything loaded and reserved: what SD "off" by policy (k = 0) still costs."""

    rule = decide_by_size

    def compile(self, k: int, max_num_seqs: int, seed: int = 0) -> PolicyArrays:
        return arrays(table=np.zeros(max_num_seqs + 1))


@dataclass(frozen=True)
class Fixed(Policy):
    """Always draft ``num_speculative_tokens``, as vLLM does without a schedule."""

    is_dynamic: ClassVar[bool] = False
    rule = decide_by_size

    def compile(self, k: int, max_num_seqs: int, seed: int = 0) -> PolicyArrays:
        return arrays(table=np.full(max_num_seqs + 1, k))


@dataclass(frozen=True)
class BatchSchedule(Policy):
    """Drafts by batch size: vLLM's ``num_speculative_tokens_per_batch_size``.

    ``schedule`` holds inclusive ranges ``(first, last, k)``, the first starting at 1. A gap and everything past the
    last range keep the k of the range before; no k exceeds num_speculative_tokens
    (vLLM 0.32 ``v1/spec_decode/dynamic/utils.py``).
    """

    schedule: Sequence[Sequence[int]]
    rule = decide_by_size

    def __post_init__(self) -> None:
        self.lookup(1, 1)

    def lookup(self, k: int, max_num_seqs: int) -> IntArray:
        """Drafts by number of scheduled requests, shape [max_num_seqs + 1]. Raises ScenarioError: invalid ranges."""

        def refusal(message: str, value: Any) -> ScenarioError:
            return ScenarioError(message, key="num_speculative_tokens_per_batch_size", value=value)

        try:
            ranges = sorted((int(first), int(last), int(drafts)) for first, last, drafts in self.schedule)
        except (TypeError, ValueError):
            raise refusal("must be a list of ranges [first, last, k]", self.schedule) from None
        previous = 0
        table = np.zeros(max_num_seqs + 1, np.int64)
        for entry in ranges:
            if entry[0] <= previous or entry[1] < entry[0] or entry[2] < 0:
                raise refusal("must be inclusive ranges [first, last, k] that do not overlap, with k >= 0", list(entry))
            previous = entry[1]
            table[entry[0] :] = min(k, entry[2])
        if not ranges or ranges[0][0] != 1:
            raise refusal("the first range must start at batch size 1", [list(entry) for entry in self.schedule])
        return table

    def compile(self, k: int, max_num_seqs: int, seed: int = 0) -> PolicyArrays:
        return arrays(table=self.lookup(k, max_num_seqs))
