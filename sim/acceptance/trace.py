"""Recorded acceptance: what a draft started at each output position of each request would have yielded."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
from numba import njit
from pydantic import PrivateAttr, model_validator

from draftcast.errors import ScenarioError
from draftcast.frozen import NonEmpty, wrong
from draftcast.sim.acceptance.compiled import KIND_TRACE
from draftcast.sim.acceptance.model import AcceptanceModel, FloatArray, check_drafts

FIRST_POSITION = 1  # the prefill emits the first output token, so no round starts at position 0


class Trace(AcceptanceModel):
    """Replays accepted drafts (bonus excluded) by output position: min(recorded, drafts), 0 beyond the record.

    The recording is ``<record>.acc_len`` of a ``specdecode_bench`` file: without ``path`` the one the requests come
    from; with it, each request replays a row of that file. It comes with the request table, so the formulas need
    `of_recording`. They replay each request once from output position 1 to the end of its record, in rounds of k, so
    they are exact for requests that run to that end.
    """

    kind: ClassVar[int] = KIND_TRACE

    model: Literal["trace"]
    record: NonEmpty = "acc_eagle"
    path: NonEmpty | None = None
    _recording: tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]] | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _rounds_are_in_the_record(self) -> Self:
        if self.num_rounds is not None:
            message = "the rates are the record's own; give relative_error if other traffic may differ from it"
            raise wrong("num_rounds", self.num_rounds, message)
        return self

    @classmethod
    def of_recording(cls, offsets: npt.NDArray[np.int64] | None, lengths: npt.NDArray[np.uint8] | None) -> Trace:
        """With a request table's ``acceptance_offsets`` and ``acceptance_lengths``, where it has them."""
        model = cls(model="trace")
        if offsets is not None and lengths is not None:
            model._recording = offsets, lengths
        return model

    def unconditional(self, k: int) -> FloatArray:
        if self._recording is None:
            raise ScenarioError("the recorded lengths are needed first; they come with the request trace", key="trace")
        at_least, rounds = _replay(*self._recording, check_drafts(k), FIRST_POSITION)
        return np.asarray(at_least / max(rounds, 1), dtype=np.float64)

    def draft_probabilities(self) -> FloatArray:
        return np.zeros(0)  # the engine reads the recording instead


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
