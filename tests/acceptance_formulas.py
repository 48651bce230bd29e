"""Closed forms that simulated acceptance is held to, and recordings to replay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numba import njit

from draftcast.sim.acceptance import compiled
from draftcast.sim.acceptance.chain import Chain, respelled
from draftcast.sim.acceptance.model import AcceptanceModel
from draftcast.sim.compiled.borrowed import reference

# By a bundle's address and with the types that the engine calls them with: the machine code that it runs is what is
# tested, and none is compiled anew.


@njit
def proposed_drafts(arrays: compiled.AcceptanceArrays, request: int, position: int, k: int) -> int:
    return compiled.proposed_drafts(reference(arrays), np.uint32(request), np.int32(position), np.int32(k))


@njit
def accepted_drafts(arrays: compiled.AcceptanceArrays, request: int, position: int, drafts: int) -> int:
    return compiled.accepted_drafts(reference(arrays), np.uint32(request), np.int32(position), np.int64(drafts))


def markov(alpha_good: float, alpha_bad: float, p_gb: float, p_bg: float) -> Chain:
    """Good and bad stretches left with these probabilities per output token."""
    section = {"model": "markov", "alpha_good": alpha_good, "alpha_bad": alpha_bad, "p_gb": p_gb, "p_bg": p_bg}
    return Chain.model_validate(respelled(section))


def recording(recorded: Iterable[Sequence[int]]) -> dict[str, Any]:
    """``offsets`` and ``lengths`` of one list of accepted drafts by output position per request."""
    rows = list(recorded)
    lengths = np.concatenate([np.zeros(0, np.uint8), *(np.asarray(row, np.uint8) for row in rows)])
    return {"offsets": np.cumsum([0, *map(len, rows)], dtype=np.int64), "lengths": lengths}


def name_of(model: AcceptanceModel) -> str:
    """A test's name: the class and what sets it apart."""
    common = {"model", "tree_width", "max_tree_nodes", *AcceptanceModel.model_fields}
    own = (f"{name}={value!r}" for name, value in model if name not in common and value)
    return f"{type(model).__name__}({', '.join(own)})"
