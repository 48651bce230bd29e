"""Recorded acceptance: what a draft started at each output position of each request would have yielded."""

from typing import ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
from numba import njit
from pydantic import PrivateAttr

from draftcast.errors import ScenarioError
from draftcast.frozen import Faults, NonEmpty, Probability, wrong
from draftcast.kernels.arrays import FloatArray, IntArray
from draftcast.sim.acceptance.compiled import KIND_TRACE
from draftcast.sim.acceptance.model import AcceptanceModel, check_drafts

FIRST_POSITION = 1  # the prefill emits the first output token, so no round starts at position 0


class Trace(AcceptanceModel):
    """Replays accepted drafts (bonus excluded) by output position: min(recorded, drafts), 0 beyond the record.

    The recording is ``<record>.acc_len`` of a ``specdecode_bench`` file: without ``path`` the one the requests come
    from; with it, each request replays a row of that file. It comes with the request table, so the formulas need
    `of_recording`. They replay each request once from output position 1 to the end of its record, in rounds of k, so
    they are exact for requests that run to that end.

    A recording does not tell a round that found no draft from one whose drafts were all rejected. For text searches
    ``match_probability`` says which share of the rounds has a draft (vLLM's drafts over rounds): rounds that accepted
    one do, and of the others as many, drawn at random, as make up that share.
    """

    kind: ClassVar[int] = KIND_TRACE

    model: Literal["trace"]
    record: NonEmpty = "acc_eagle"
    path: NonEmpty | None = None
    match_probability: Probability | None = None
    _recording: tuple[IntArray, npt.NDArray[np.uint8]] | None = PrivateAttr(None)

    def faults(self) -> Faults:
        yield from super().faults()
        if self.num_rounds is not None:
            message = "the rates are the record's own; give relative_error if other traffic may differ from it"
            yield wrong("num_rounds", self.num_rounds, message)

    def of_recording(self, offsets: IntArray | None, lengths: npt.NDArray[np.uint8] | None) -> Self:
        """With a request table's ``acceptance_offsets`` and ``acceptance_lengths``, where it has them."""
        model = self.model_copy()
        if offsets is not None and lengths is not None:
            model._recording = offsets, lengths
        return model

    def unconditional(self, k: int) -> FloatArray:
        at_least, rounds = self._replayed(k)
        return np.asarray(at_least / max(self.draft_share(k) * rounds, 1.0), dtype=np.float64)

    def draft_share(self, k: int) -> float:
        return super().draft_share(k) if self.match_probability is None or k == 0 else self.match_probability

    def missed_share(self, k: int) -> float:
        """Share of the rounds without an accepted draft that have one: 1 where every round drafts.

        Raises ScenarioError: more rounds of the recording accepted a draft than have one.
        """
        if self.match_probability is None or self.match_probability == 1.0 or k == 0:
            return 1.0
        at_least, rounds = self._replayed(k)
        accepted = at_least[0] / max(rounds, 1)
        if accepted > self.match_probability:
            message = f"must be at least {accepted:.4f}: so many rounds of the recording accepted a draft"
            raise ScenarioError(message, key="acceptance.match_probability", value=self.match_probability)
        return float((self.match_probability - accepted) / (1.0 - accepted))

    def _replayed(self, k: int) -> tuple[IntArray, int]:
        if self._recording is None:
            raise ScenarioError("the recorded lengths are needed first; they come with the request trace", key="trace")
        return _replay(*self._recording, check_drafts(k), FIRST_POSITION)

    def draft_probabilities(self) -> FloatArray:
        return np.zeros(0)  # the engine reads the recording instead


@njit(cache=True)
def _replay(offsets: IntArray, lengths: npt.NDArray[np.uint8], k: int, first: int) -> tuple[IntArray, int]:
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
