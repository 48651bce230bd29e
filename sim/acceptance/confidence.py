"""The draft's confidence in its own tokens: a forecast, per token, of whether the target will accept it.

How much it tells is one number, the *discrimination* D in 0..1: the mean confidence of accepted drafts less that of
rejected ones (Tjur's coefficient, The American Statistician 63(4), 2009). D = 0 knows no more than the acceptance
probability p, D = 1 knows the outcome.

A token of acceptance probability p gets one of two confidences, p + (1 - p) s or p (1 - s), with a spread s of its own
that is random with mean square D. The high one is drawn with probability p + (1 - p) s when the token will be accepted
and p (1 - s) when it will be rejected, which is Bayes' rule: the accepted tokens are the same as without any confidence
(common random numbers). Then P(high) = p, P(accepted | c) = c, and E[c | accepted] - E[c | rejected] = E[s^2] = D. s^2
is uniform on (0, 2 D), or on (2 D - 1, 1) for D above a half.

Both draws come from the acceptance draw's own 64 bits, multiplied by an odd constant: the low 38 bits of the product
(high or low) depend on low bits only, the 26 above them (the spread) on all, and acceptance on the highest.

p is what the acceptance model knows: the rate by draft index of the request and its hidden state; a recording's mean
rate by draft index.
"""

import math
from typing import Any

import numpy as np
from numba import njit

from draftcast.kernels.arrays import FloatArray, IntArray
from draftcast.sim.acceptance import compiled
from draftcast.sim.acceptance.compiled import AcceptanceArrays, proposed_drafts, row_at, state_at
from draftcast.sim.compiled.borrowed import put, reference
from draftcast.sim.compiled.random_streams import GOLDEN, MIX_1, S11, mix64, uniform

S38 = np.uint64(38)
LOW_38 = np.uint64((1 << 38) - 1)
TO_26, TO_38 = 2.0**-26, 2.0**-38
TWO_53 = 2.0**53
ALWAYS = 1 << 53  # a limit above every draw
TWO_52, TWO_52_BITS = 2.0**52, np.uint64(0x4330000000000000)


def has_confidence(arrays: AcceptanceArrays) -> bool:
    """Whether every class has a confidence."""
    return bool((arrays.params["confidence"] >= 0.0).all())


@njit(cache=True, forceinline=True)
def rounds_are_alike(arrays: AcceptanceArrays) -> bool:
    """Whether all rounds of all requests have the same chances, so that `describe_alike` serves."""
    return bool(arrays.conditional.shape[0] == 1 and arrays.kind[0] == compiled.KIND_RATES)


@njit(cache=True, forceinline=True)
def describe_drafts(
    arrays: AcceptanceArrays,
    request: int,
    position: int,
    levels: int,
    survival: FloatArray,
    draws: IntArray,
    i: int,
    stride: int,
    alike: bool,
) -> None:
    """Write down what `forecast_survival` needs of a round, as the i-th of at most ``stride``.

    ``position``: as of ``accepted_drafts``. Drafts that a text search does not find have no chance.

    Args:
        survival: rows of ``stride`` numbers: p of every level, the least square of the spread, and its range.
        draws: rows of ``stride`` numbers: below which acceptance draw a level is accepted, and the draws' counter.
        alike: `rounds_are_alike`; then `describe_alike` writes the rest, for all rounds at once.
    """
    put(draws, levels * stride + i, np.int64(arrays.keys[request] + np.uint64(position + 1) * GOLDEN))
    if alike:
        return
    c = arrays.class_id[request]
    kind = arrays.kind[c]
    discrimination = arrays.params[c].confidence
    recorded = state = 0
    if kind == compiled.KIND_TRACE:
        at = arrays.offsets[request] + position
        recorded = int(arrays.lengths[at]) if at < arrays.offsets[request + 1] else 0
    elif kind in (compiled.KIND_STATES, compiled.KIND_BESIDE_HEAD):
        state = state_at(arrays, request, c, position)
    proposed = proposed_drafts(arrays, request, position, levels)
    row = row_at(arrays, request, c, position)
    for j in range(levels):
        p = arrays.conditional[row + state, j]
        if kind == compiled.KIND_STATES:
            enter = arrays.params[c].stay if state == 1 else arrays.params[c].enter
            state = 1 if uniform(arrays.match_keys[request], position + j + 1) < enter else 0
        if j >= proposed:
            p = 0.0
        limit = math.ceil(p * TWO_53)  # draw * 2**-53 < p, the comparison of ``accepted_drafts``, in whole numbers.
        # What a recording would have accepted after its first rejection is not known: it is drawn.
        if kind == compiled.KIND_TRACE and j <= recorded:
            limit = ALWAYS if j < recorded else 0
        put(survival, j * stride + i, p)
        put(draws, j * stride + i, limit)
    put(survival, levels * stride + i, max(2.0 * discrimination - 1.0, 0.0))
    put(survival, (levels + 1) * stride + i, max(2.0 * min(discrimination, 1.0 - discrimination), 0.0))


@njit(cache=True)
def describe_alike(
    arrays: AcceptanceArrays, levels: int, survival: FloatArray, draws: IntArray, n: int, stride: int
) -> None:
    """What ``n`` rounds have in common, several requests at a time; arguments as of `describe_drafts`."""
    discrimination = arrays.params[0].confidence
    for j in range(levels):
        p = arrays.conditional[0, j]
        survival[j * stride : j * stride + n] = p
        draws[j * stride : j * stride + n] = math.ceil(p * TWO_53)
    survival[levels * stride : levels * stride + n] = max(2.0 * discrimination - 1.0, 0.0)
    at = (levels + 1) * stride
    survival[at : at + n] = max(2.0 * min(discrimination, 1.0 - discrimination), 0.0)


@njit(cache=True, forceinline=True)
def _as_float(bits: np.uint64) -> float:
    """A whole number below 2**52 as a float; unlike a conversion this can be done for several at a time."""
    return float(np.uint64(bits | TWO_52_BITS).view(np.float64) - TWO_52)


@njit(cache=True)
def forecast_survival(survival: FloatArray, draws: IntArray, n: int, levels: int, stride: int) -> None:
    """Turn what `describe_drafts` wrote for ``n`` rounds into the forecast that drafts 0..j of each are all accepted.

    The i-th round's stands in ``survival[j * stride + i]``. No branch, and nothing in a row depends on its neighbour:
    a processor works on many at once.
    """
    counters = draws[levels * stride : levels * stride + n]
    least_square = survival[levels * stride : levels * stride + n]
    square_range = survival[(levels + 1) * stride : (levels + 1) * stride + n]
    for j in range(levels):
        row = survival[j * stride : j * stride + n]
        before = survival[max(j - 1, 0) * stride : max(j - 1, 0) * stride + n]
        limits = draws[j * stride : j * stride + n]
        further = np.uint64(j) * GOLDEN
        for i in range(n):
            bits = mix64(np.uint64(counters[i]) + further)  # the number that `uniform` makes the acceptance draw of
            accepted = np.int64(bits >> S11) < limits[i]
            bits *= MIX_1
            spread = math.sqrt(least_square[i] + square_range[i] * (_as_float(bits >> S38) * TO_26))
            low = row[i] * (1.0 - spread)
            is_high = _as_float(bits & LOW_38) * TO_38 < low + (spread if accepted else 0.0)
            confidence = low + (spread if is_high else 0.0)
            row[i] = confidence if j == 0 else before[i] * confidence


@njit(cache=True)
def survivals(arrays: AcceptanceArrays, requests: IntArray, positions: IntArray, out: FloatArray) -> None:
    """`forecast_survival` of many rounds into ``out``, shape [requests, levels]; for callers in Python."""
    ref = reference(arrays)
    n, levels = out.shape
    survival = np.empty((levels + 2) * n)
    draws = np.empty((levels + 1) * n, np.int64)
    alike = rounds_are_alike(ref)
    for i in range(n):
        request: Any = np.uint32(requests[i])  # as the engine's requests are, for which it is compiled
        describe_drafts(ref, request, positions[i], levels, survival, draws, i, n, alike)
    if alike:
        describe_alike(ref, levels, survival, draws, n, n)
    forecast_survival(survival, draws, n, levels, n)
    out[:] = survival[: levels * n].reshape(levels, n).T
