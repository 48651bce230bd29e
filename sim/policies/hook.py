"""A Python policy in the engine: one call a step, between two compiled ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from draftcast.errors import ScenarioError
from draftcast.sim.engine.replica import Decide
from draftcast.sim.engine.state import Engine
from draftcast.sim.policies.base import Batch, Decision, Policy


def python_hook(policy: Policy) -> Decide | None:
    """The engine's hook of a Python policy; None for a compiled one."""
    if type(policy).decide is Policy.decide:
        return None

    source = f"{type(policy).__name__}.decide"

    def hook(s: Engine) -> None:
        batch = Batch(s)
        write_decision(s, batch.num_seqs, policy.decide(batch), source)

    return hook


def write_decision(s: Engine, size: int, decision: Any, source: str) -> None:
    """Hand a policy's decision on ``size`` scheduled requests to the engine.

    Raises:
        ScenarioError: neither a whole number, nor one for each scheduled request, nor a `Decision` of such; names
            ``source``.
    """
    table = s.policy.table
    half = table.size // 2
    verify, make = (decision.verify, decision.make) if isinstance(decision, Decision) else (decision, None)
    _write(table[:size], verify, source)
    if make is None:
        table[half : half + size] = 0
    else:
        _write(table[half : half + size], make, source)


def _write(into: Any, wanted: Any, source: str) -> None:
    drafts = np.asarray(wanted)
    if drafts.dtype.kind not in "iu" or drafts.shape not in ((), into.shape):
        raise ScenarioError(
            f"must return a whole number, or one for each of the {into.size} scheduled requests",
            key=source,
            value=wanted,
        )
    into[:] = drafts
