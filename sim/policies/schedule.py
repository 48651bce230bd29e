"""Draft lengths that are known beforehand: off, fixed, by batch size."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numba import njit

from draftcast.kernels.arrays import IntArray
from draftcast.sim.policies.base import Policy, arrays, draft_alike
from draftcast.sim.state.engine import Engine, PolicyArrays


@njit(cache=True)
def decide_by_size(s: Engine, slot: int) -> None:
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

    schedule: Sequence[tuple[int, int, int]]
    rule = decide_by_size

    def lookup(self, k: int, max_num_seqs: int) -> IntArray:
        """Drafts by number of scheduled requests, shape [max_num_seqs + 1]; entry 0 is never used."""
        table = np.zeros(max_num_seqs + 1, np.int64)
        for first, _, drafts in sorted(self.schedule):
            table[first:] = min(k, drafts)
        return table

    def compile(self, k: int, max_num_seqs: int, seed: int = 0) -> PolicyArrays:
        return arrays(table=self.lookup(k, max_num_seqs))
