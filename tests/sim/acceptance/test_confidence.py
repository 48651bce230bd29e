"""What a draft forecasts of its own tokens, at the two ends of how much its confidence tells."""

from __future__ import annotations

import numpy as np
from acceptance_formulas import accepted_drafts

from draftcast.kernels.arrays import FloatArray
from draftcast.sim.acceptance.chain import Chain
from draftcast.sim.acceptance.compile import compile_acceptance
from draftcast.sim.acceptance.compiled import AcceptanceArrays
from draftcast.sim.acceptance.confidence import survivals

REQUESTS, POSITION, DRAFTS = 20, 7, 4


def forecast(discrimination: float) -> tuple[AcceptanceArrays, FloatArray]:
    """Of rounds of 20 requests at one output position: the draws, and the forecast that the first drafts all hold."""
    classes = np.zeros(REQUESTS, np.int16)
    arrays = compile_acceptance([Chain(alpha=0.5)], classes, 1, DRAFTS, confidence=[discrimination])
    out = np.empty((REQUESTS, DRAFTS))
    survivals(arrays, np.arange(REQUESTS), np.full(REQUESTS, POSITION), out)
    return arrays, out


def test_a_confidence_that_tells_nothing_is_the_rate() -> None:
    _, out = forecast(0.0)
    assert out.tolist() == [[0.5, 0.25, 0.125, 0.0625]] * REQUESTS


def test_a_confidence_that_tells_all_is_the_outcome() -> None:
    arrays, out = forecast(1.0)
    accepted = [accepted_drafts(arrays, request, POSITION, DRAFTS) for request in range(REQUESTS)]
    assert {0, 1, 2} <= set(accepted)
    assert out.tolist() == [[float(draft < most) for draft in range(DRAFTS)] for most in accepted]
