"""Recorded acceptance: what a draft started at each output position of each request would have yielded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from numba import njit

from draftcast.errors import ScenarioError
from draftcast.sim.acceptance.compiled import KIND_TRACE
from draftcast.sim.acceptance.model import AcceptanceModel, Rates, check_drafts

FIRST_POSITION = 1  # the prefill emits the first output token, so no round starts at position 0


@dataclass(frozen=True, eq=False)
class Trace(AcceptanceModel):
    """Replays accepted drafts (bonus excluded) by output position: min(recorded, drafts), 0 beyond the record.

    The recording comes with the request table (``acceptance_offsets``, ``acceptance_lengths``), so a scenario names the
    model without parameters; the formulas need the arrays. They replay each request once from output position 1 to the
    end of its record, in rounds of k, so they are exact for requests that run to that end.

    ``offsets`` [n + 1] int64: request i holds ``lengths[offsets[i]:offsets[i + 1]]``; ``lengths`` uint8.
    """

    kind: ClassVar[int] = KIND_TRACE

    offsets: npt.NDArray[np.int64] | None = None
    lengths: npt.NDArray[np.uint8] | None = None

    def __post_init__(self) -> None:
        if self.offsets is not None or self.lengths is not None:
            offsets, lengths = check_recording(self.offsets, self.lengths)
            object.__setattr__(self, "offsets", offsets)
            object.__setattr__(self, "lengths", lengths)

    @classmethod
    def from_lists(cls, recorded: Iterable[Sequence[int]]) -> Trace:
        """From one list of accepted drafts by output position per request."""
        rows = list(recorded)
        offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        return cls(offsets, np.concatenate([np.asarray(row) for row in rows if len(row)] or [np.zeros(0, np.uint8)]))

    def unconditional(self, k: int) -> Rates:
        if self.offsets is None or self.lengths is None:
            raise ScenarioError("the recorded lengths are needed first; they come with the request trace", key="trace")
        at_least, rounds = _replay(self.offsets, self.lengths, check_drafts(k), FIRST_POSITION)
        return np.asarray(at_least / max(rounds, 1), dtype=np.float64)

    def draft_probabilities(self) -> Rates:
        return np.zeros(0)  # the engine reads the recording instead


def check_recording(offsets: Any, lengths: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """The two arrays in their own types; ``ScenarioError`` unless they fit together and lengths lie in 0..255."""
    if offsets is None or lengths is None:
        missing = "acceptance_offsets" if offsets is None else "acceptance_lengths"
        raise ScenarioError("acceptance model trace needs requests with a recorded acceptance", key=missing, value=None)
    ends, counts = np.asarray(offsets), np.asarray(lengths)
    if counts.size and (counts.dtype.kind not in "iu" or counts.min() < 0 or counts.max() > 255):
        raise ScenarioError("must be whole numbers from 0 to 255", key="acceptance_lengths")
    shaped = ends.ndim == 1 and counts.ndim == 1 and len(ends) > 0 and ends.dtype.kind in "iu"
    if not shaped or ends[0] != 0 or ends[-1] != len(counts) or np.any(np.diff(ends) < 0):
        message = f"must rise from 0 to the number of recorded lengths, {counts.size}"
        raise ScenarioError(message, key="acceptance_offsets")
    return ends.astype(np.int64), counts.astype(np.uint8)


@njit(cache=True)
def _replay(
    offsets: npt.NDArray[np.int64], lengths: npt.NDArray[np.uint8], k: int, first: int
) -> tuple[npt.NDArray[np.int64], int]:
    """Rounds that accepted at least 1..k drafts, and all rounds, when every record is crossed in rounds of k."""
    at_least = np.zeros(k, dtype=np.int64)
    rounds = 0
    for request in range(len(offsets) - 1):
        at = offsets[request] + first
        while at < offsets[request + 1]:
            accepted = min(k, int(lengths[at]))
            for j in range(accepted):
                at_least[j] += 1
            rounds += 1
            at += accepted + 1
    return at_least, rounds
