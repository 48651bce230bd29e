"""A policy of your own: the full draft length while few requests run, half of it when many do.

draftcast compare default --policies fixed,docs/examples/half_when_busy.py:HalfWhenBusy
"""

from draftcast.sim import Batch, Policy


class HalfWhenBusy(Policy):
    def __init__(self, busy: int = 32) -> None:
        self.busy = busy

    def decide(self, batch: Batch) -> int:
        return batch.k if batch.num_seqs < self.busy else batch.k // 2
