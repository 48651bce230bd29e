"""The acceptance lookups of the compiled engine: plain arrays and two allocation-free functions.

A round that is verified when ``position`` output tokens exist puts its draft j (0-based) at output position
``position + j``. Whether a draft is accepted depends on (seed, request, that position) and, for rates per draft index,
on j: never on how many drafts were asked for, on the policy, or on who asked first. So more drafts accept at least as
many tokens, and two policies that start a round at the same place meet the same outcome (common random numbers). Every
uniform number decides once at most: a round that ends at position p is followed by one that starts at p + 1.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from draftcast.kernels.arrays import FloatArray, IntArray, record_type
from draftcast.sim.compiled.borrowed import put
from draftcast.sim.compiled.random_streams import mix64, uniform

MAX_K = 128  # Most draft tokens in one round: vLLM's ``MAX_SPEC_LEN`` (v1/sample/rejection_sampler.py).

# How a class accepts (AcceptanceArrays.kind).
KIND_RATES = 0  # probability by draft index
KIND_STATES = 1  # and by the hidden state at the draft's output position
KIND_NGRAM = 2  # KIND_RATES, but only rounds that start at a match draft at all
KIND_TRACE = 3  # recorded lengths
KIND_BESIDE_HEAD = 4  # rounds that start at a match have a search's drafts, all others those of a head

# What a class goes by in one band. The two-state chain: state 1 is good or matched.
PARAMS = record_type(
    ("stationary", "f8"),  # P(state 1) at output position 0; trace: P(a round has a draft | it accepted none)
    ("enter", "f8"),  # P(1 at p + 1 | 0 at p)
    ("stay", "f8"),  # P(1 at p + 1 | 1 at p)
    ("longer", "f8"),  # searches: P(match longer than j | at least j); 1 never ends a draft early
    ("confidence", "f8"),  # discrimination of the draft's confidence, -1 without one
    ("head", "f8"),  # KIND_BESIDE_HEAD: drafts of the head, the least that a search takes a round over with
)

AT_ONCE = 4  # drafts that are drawn together


class AcceptanceArrays(NamedTuple):
    """Acceptance of n requests in c classes. ``state`` is a cache: it changes, the answers do not."""

    kind: IntArray  # [c] KIND_*
    # [rows, MAX_K] P(draft j accepted | proposed, those before accepted); of a class one row, two (state 0, state 1),
    # or as many for each bin of its requests, or those of every band of its factors one after the other
    conditional: FloatArray
    row: npt.NDArray[np.int32]  # [n] a request's row, of state 0 where there are two
    params: npt.NDArray[Any]  # PARAMS[bands * c], of all classes in the first band, in the second, ...
    band_rows: IntArray  # [c] rows of one band
    band_starts: IntArray  # [n, s] output positions at which a request changes band; s = 0: no factors
    band_jumps: IntArray  # [c, s] by how many bands
    keys: npt.NDArray[np.uint64]  # [n] stream ACCEPT: one uniform per output position
    match_keys: npt.NDArray[np.uint64]  # [n], or [0] when no class has a chain; stream MATCH
    state: IntArray  # [n], or [0] when no class has a chain; 2 * position + state, -1 before the first
    class_id: npt.NDArray[np.int16]  # [n]
    offsets: IntArray  # [n + 1], or [0] when no class is a trace
    lengths: npt.NDArray[np.uint8]  # recorded accepted drafts by output position, request i at offsets[i]:offsets[i+1]


@njit(cache=True, forceinline=True)
def band_at(arrays: AcceptanceArrays, request: int, c: int, position: int) -> int:
    """The band of stated factors that a round or a match at this output position is in."""
    band = 0
    for step in range(arrays.band_starts.shape[1]):
        if position >= arrays.band_starts[request, step]:
            band += int(arrays.band_jumps[c, step])
    return band


@njit(cache=True, forceinline=True)
def row_at(arrays: AcceptanceArrays, request: int, c: int, position: int) -> int:
    """The row of ``conditional`` that a round at this output position goes by, of state 0 where there are two."""
    return int(arrays.row[request] + band_at(arrays, request, c, position) * arrays.band_rows[c])


@njit(cache=True, forceinline=True)
def state_at(arrays: AcceptanceArrays, request: int, c: int, position: int) -> int:
    """State (0 or 1) of the request's chain at an output position; O(positions since the last call).

    A cursor remembers where the chain stands; a call behind it (a second run over the same arrays) walks again from 0,
    so the answer never depends on the calls before.
    """
    key = arrays.match_keys[request]
    cursor = int(arrays.state[request])
    if cursor >= 0 and cursor >> 1 <= position:
        at = cursor >> 1
        state = cursor & 1
    else:
        at = 0
        first = c + arrays.kind.shape[0] * band_at(arrays, request, c, 0)
        state = 1 if uniform(key, 0) < arrays.params[first].stationary else 0
    while at < position:
        at += 1
        in_band = c + arrays.kind.shape[0] * band_at(arrays, request, c, at)
        enter = arrays.params[in_band].enter
        stay = arrays.params[in_band].stay
        state = 1 if uniform(key, at) < (stay if state == 1 else enter) else 0
    put(arrays.state, request, 2 * position + state)
    return state


@njit(cache=True, forceinline=True)
def _accepted_in_states(arrays: AcceptanceArrays, request: int, c: int, position: int, drafts: int) -> int:
    row = row_at(arrays, request, c, position)
    state = state_at(arrays, request, c, position)
    key = arrays.keys[request]
    match_key = arrays.match_keys[request]
    enter = arrays.params[c].enter
    stay = arrays.params[c].stay
    accepted = 0
    while accepted < drafts:
        if uniform(key, position + accepted) >= arrays.conditional[row + state, accepted]:
            break
        accepted += 1
        # Beyond the cursor: looked at, not stored, since the next round may start nearer.
        state = 1 if uniform(match_key, position + accepted) < (stay if state == 1 else enter) else 0
    return accepted


@njit(cache=True, forceinline=True)
def _accepted_at_rates(arrays: AcceptanceArrays, request: int, row: int, position: int, drafts: int) -> int:
    key = arrays.keys[request]
    done = 0
    accepted = 0
    while done < drafts and accepted == done:
        # Some at a time, without a branch in between: where a round ends cannot be guessed, and a wrong guess takes a
        # processor longer than draws that nobody needs, which change nothing.
        end = min(done + AT_ONCE, drafts)
        alive = 1
        for j in range(done, end):
            # Unsigned: an index that numba need not test for being negative.
            alive &= int(uniform(key, position + j) < arrays.conditional[row, np.uint64(j)])
            accepted += alive
        done = end
    return accepted


@njit(cache=True, forceinline=True)
def accepted_drafts(arrays: AcceptanceArrays, request: int, position: int, drafts: int) -> int:
    """Drafts accepted, 0..drafts, in a round verified when ``position`` output tokens exist.

    ``drafts``: draft tokens verified, 0..MAX_K; for a tree its depth.
    """
    c = arrays.class_id[request]
    kind = arrays.kind[c]
    if kind in (KIND_RATES, KIND_NGRAM, KIND_BESIDE_HEAD):
        row = row_at(arrays, request, c, position)
        if kind == KIND_BESIDE_HEAD:
            row += state_at(arrays, request, c, position)
        return _accepted_at_rates(arrays, request, row, position, drafts)
    if kind == KIND_STATES:
        return _accepted_in_states(arrays, request, c, position, drafts)
    at = arrays.offsets[request] + position
    recorded = int(arrays.lengths[at]) if at < arrays.offsets[request + 1] else 0
    return drafts if drafts < recorded else recorded


@njit(cache=True, forceinline=True)
def drafts_of_head(arrays: AcceptanceArrays, request: int, position: int, k: int) -> int:
    """Of up to k drafts of the round those that a head makes: none where a search takes the round over."""
    c = arrays.class_id[request]
    if arrays.kind[c] == KIND_BESIDE_HEAD and state_at(arrays, request, c, position) == 1:
        return 0
    return k


@njit(cache=True, forceinline=True)
def proposed_drafts(arrays: AcceptanceArrays, request: int, position: int, k: int) -> int:
    """Drafts that a round asked for k proposes when ``position`` output tokens exist: k, or fewer for ngram.

    A round without a match proposes 0; with a drawn match length it proposes min(k, length).
    """
    c = arrays.class_id[request]
    if arrays.kind[c] in (KIND_NGRAM, KIND_BESIDE_HEAD):
        head = int(arrays.params[c].head)
        if k == 0 or state_at(arrays, request, c, position) == 0:
            return min(k, head)
        longer = arrays.params[c].longer
        if longer >= 1.0:
            return k
        # Geometric match length by repeated products, not by log(): the same bits on every platform.
        draw = uniform(mix64(arrays.match_keys[request]), position)
        proposed = max(head, 1)
        tail = longer
        while proposed < k and draw < tail:
            proposed += 1
            tail *= longer
        return min(proposed, k)
    if arrays.kind[c] == KIND_TRACE and arrays.params[c].stationary < 1.0:
        at = arrays.offsets[request] + position
        accepts = at < arrays.offsets[request + 1] and arrays.lengths[at] > 0
        return k if accepts or uniform(arrays.match_keys[request], position) < arrays.params[c].stationary else 0
    return k
