"""The draft's confidence in its own tokens: a forecast, per token, of whether the target will accept it.

Calibrated by construction: of the drafts with confidence c a share c is accepted. How much it tells is one number, the
*discrimination* D in 0..1: the mean confidence of accepted drafts less that of rejected ones (Tjur's coefficient, The
American Statistician 63(4), 2009), which anybody can measure who logs both. D = 0 knows no more than the acceptance
probability p, D = 1 knows the outcome.

A token of acceptance probability p gets one of two confidences, p + (1 - p) s or p (1 - s), with a spread s of its own
that is random with mean square D. P(high) = p, so that the mean is p; the high one is drawn with probability
p + (1 - p) s when the token will be accepted and p (1 - s) when it will be rejected, which is Bayes' rule: the accepted
tokens are the same as without any confidence (common random numbers). Then P(accepted | c) = c, and E[c | accepted] -
E[c | rejected] = E[s^2] = D. s^2 is uniform on (0, 2 D), or on (2 D - 1, 1) for D above a half.

Both draws come from the acceptance draw's own 64 bits, multiplied by an odd constant: the low 38 bits of the product
(high or low) depend on low bits only, the 26 above them (the spread) on all, and acceptance on the highest.

p is what the acceptance model knows: its rate by draft index, the request's alpha, the hidden state's; a recording's
mean rate by draft index.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from numba import njit

from draftcast.sim.acceptance.compiled import (
    KIND_BETA,
    KIND_MARKOV,
    KIND_TRACE,
    P_ALPHA_0,
    P_ALPHA_1,
    P_CONFIDENCE,
    P_ENTER,
    P_STAY,
    AcceptanceArrays,
    proposed_drafts,
    state_at,
)
from draftcast.sim.borrowed import borrowed, reference
from draftcast.sim.random_streams import GOLDEN, MIX_1, S11, TO_UNIT, mix64, uniform

S38 = np.uint64(38)
LOW_38 = np.uint64((1 << 38) - 1)
TO_26, TO_38 = 2.0**-26, 2.0**-38


def has_confidence(arrays: AcceptanceArrays) -> bool:
    """Whether every class has a confidence."""
    return bool((arrays.params[:, P_CONFIDENCE] >= 0.0).all())


@njit(cache=True, forceinline=True)
def prefix_survival(
    arrays: AcceptanceArrays,
    request: int,
    position: int,
    levels: int,
    out: npt.NDArray[np.float64],
    start: int,
    stride: int,
) -> None:
    """Write the forecast that drafts 0..j are all accepted, j = 0..levels-1, to ``out[start + j * stride]``.

    The round is verified when ``position`` output tokens exist, as in ``accepted_drafts``. Drafts that a text search
    does not find have no chance.
    """
    a = borrowed(arrays)
    c = a.class_id[request]
    kind = a.kind[c]
    discrimination = a.params[c, P_CONFIDENCE]
    key = a.keys[request]
    recorded = 0
    state = 0
    if kind == KIND_TRACE:
        at = a.offsets[request] + position
        recorded = int(a.lengths[at]) if at < a.offsets[request + 1] else 0
    elif kind == KIND_MARKOV:
        state = state_at(arrays, request, c, position)
    least_square = max(2.0 * discrimination - 1.0, 0.0)
    square_range = 2.0 * min(discrimination, 1.0 - discrimination)
    proposed = proposed_drafts(arrays, request, position, levels)
    survival = 1.0
    for j in range(levels):
        if j >= proposed:
            survival = 0.0
        at = position + j
        if kind == KIND_BETA:
            p = a.alpha[request]
        elif kind == KIND_MARKOV:
            p = a.params[c, P_ALPHA_1] if state == 1 else a.params[c, P_ALPHA_0]
            enter = a.params[c, P_STAY] if state == 1 else a.params[c, P_ENTER]
            state = 1 if uniform(a.match_keys[request], at + 1) < enter else 0
        else:
            p = a.conditional[c, j]
        confidence = p
        if discrimination > 0.0:
            bits = mix64(key + np.uint64(at + 1) * GOLDEN)  # the number that `uniform` makes the acceptance draw of
            accepted = float(np.int64(bits >> S11)) * TO_UNIT < p
            # What a recording would have accepted after its first rejection is not known: it is drawn.
            if kind == KIND_TRACE and j <= recorded:
                accepted = j < recorded
            bits *= MIX_1
            spread = math.sqrt(least_square + square_range * (float(np.int64(bits >> S38)) * TO_26))
            low = p * (1.0 - spread)
            # Sums instead of branches, which nobody could predict: high is low + spread.
            is_high = float(np.int64(bits & LOW_38)) * TO_38 < low + spread * accepted
            confidence = low + spread * is_high
        survival *= confidence
        out[start + j * stride] = survival


@njit(cache=True)
def survivals(
    arrays: AcceptanceArrays,
    requests: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int64],
    out: npt.NDArray[np.float64],
) -> None:
    """`prefix_survival` of many requests into ``out``, shape [requests, levels]; for callers in Python."""
    ref = reference(arrays)
    flat = out.reshape(-1)
    levels = out.shape[1]
    for i in range(requests.size):
        prefix_survival(ref, requests[i], positions[i], levels, flat, i * levels, 1)
