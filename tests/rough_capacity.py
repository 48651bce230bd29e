"""Capacities of a tenth of the effort, for tests of what is done with them, not of their values."""

from __future__ import annotations

from typing import Any

from draftcast.scenarios.compare import capacity
from draftcast.scenarios.run.kept import AnswerCache

KEPT: AnswerCache[Any] = AnswerCache(capacity.MOST_KEPT)
# Those that are kept come first: nobody may find a rough one among the others.
EFFORT = {"_known": KEPT, "LEAST_REQUESTS": 1000, "MIXING_TURNOVERS": 2, "COUNTED_TURNOVERS": 2, "REPLICATIONS": 3}


def take_rough_capacities() -> None:
    """In the whole of this process."""
    vars(capacity).update(EFFORT)
