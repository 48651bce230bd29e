"""Closed forms that simulated acceptance is held to."""

from __future__ import annotations

import numpy as np

from draftcast.sim.acceptance import AcceptanceModel, Beta

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
