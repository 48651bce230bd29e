"""Closed forms that simulated acceptance is held to, and recordings to replay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from draftcast.sim.acceptance.model import AcceptanceModel, Beta

QUANTILES = 8192


def pooled_acceptance_length(model: AcceptanceModel, k: int) -> float:
    """Mean acceptance length over all rounds of many requests that run to the same long output.

    1 / E[1 / L(alpha)]: a request of n tokens takes n / L(alpha) rounds, L the mean length at its alpha, so a request
    with poor acceptance weighs more. Only a beta model's requests differ.
    """
    if not isinstance(model, Beta):
        return model.mean_acceptance_length(k)
    alpha = model.quantile((np.arange(QUANTILES) + 0.5) / QUANTILES)
    length = np.ones_like(alpha)
    for _ in range(k):
        length = 1.0 + alpha * length
    return 1.0 / float(np.mean(1.0 / length))


def recording(recorded: Iterable[Sequence[int]]) -> dict[str, Any]:
    """``offsets`` and ``lengths`` of one list of accepted drafts by output position per request."""
    rows = list(recorded)
    lengths = np.concatenate([np.zeros(0, np.uint8), *(np.asarray(row, np.uint8) for row in rows)])
    return {"offsets": np.cumsum([0, *map(len, rows)], dtype=np.int64), "lengths": lengths}


def name_of(model: AcceptanceModel) -> str:
    """A test's name: the class and what sets it apart."""
    common = {"model", "tree_width", "max_tree_nodes", *AcceptanceModel.model_fields}
    own = (f"{name}={value!r}" for name, value in model if name not in common)
    return f"{type(model).__name__}({', '.join(own)})"
