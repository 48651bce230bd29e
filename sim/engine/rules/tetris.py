"""TETRIS: of all drafts of the batch, verify those most likely to be accepted, within a capacity."""

from __future__ import annotations

from numba import njit

from draftcast.sim.compiled.borrowed import borrowed
from draftcast.sim.engine.rules.forecast import draft_levels
from draftcast.sim.engine.rules.selection import forecast_drafts, pick_likeliest, settle
from draftcast.sim.engine.state import Engine

TETRIS_SHARE = 0


@njit(cache=True)
def decide_tetris(ref: Engine, slot: int) -> None:
    """Fill ``next_drafts`` and ``drafted``."""
    s = borrowed(ref)
    most = draft_levels(ref, s.config[0].k)
    n = forecast_drafts(ref, slot, most)
    pick_likeliest(ref, slot, n, most, int(s.policy.params[TETRIS_SHARE] * n * most))
    settle(ref, slot, n, most)
