"""SpecDec++ and DISCO: draft until the drafts so far have become unlikely."""

from __future__ import annotations

from numba import njit

from draftcast.sim.compiled.borrowed import borrowed
from draftcast.sim.engine.rules.forecast import draft_levels
from draftcast.sim.engine.rules.selection import forecast_drafts
from draftcast.sim.engine.state import Engine

CONFIDENCE_REJECTION, CONFIDENCE_LEAST = 0, 1


@njit(cache=True)
def decide_confidence(ref: Engine, slot: int) -> None:
    """Fill ``next_drafts`` and ``drafted``: up to the draft that ends the round, that one included."""
    s = borrowed(ref)
    entries = s.entries[slot]
    k = s.config[0].k
    most = draft_levels(ref, k)
    least_survival = 1.0 - s.policy.params[CONFIDENCE_REJECTION]
    least_confidence = s.policy.params[CONFIDENCE_LEAST]
    n = forecast_drafts(ref, slot, most)
    survival = s.policy.scratch
    stride = entries.size
    for i in range(n):
        levels = 0
        before = 1.0
        while levels < most:
            after = survival[levels * stride + i]
            levels += 1
            if after < least_survival or after < least_confidence * before:
                break
            before = after
        x = entries[s.policy.order[i]]
        drafts = levels if k == most else levels * k // max(most, 1)  # a tree's levels hold several
        x.next_drafts = drafts
        x.drafted = drafts
