"""Where compiled code and a Python policy meet: the batch is shown in arrays of its own, the decision taken from one.

Reading structured arrays from Python one field at a time would take longer than the step. ``policy.order`` holds
``N_SHOWN_SCALARS`` numbers and then the columns, one number per batch entry each; ``policy.scratch`` two floats and
then each entry's acceptance so far; ``policy.table`` the decision: drafts to verify by batch entry, then drafts to
make.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from draftcast.sim.compiled.borrowed import borrowed
from draftcast.sim.engine.state import Engine

SHOWN_SIZE, SHOWN_WAITING, SHOWN_K, N_SHOWN_SCALARS = 0, 1, 2, 3
SHOWN_NOW_S, SHOWN_KV_USAGE, N_SHOWN_FLOATS = 0, 1, 2
(
    SHOWN_REQUEST,
    SHOWN_OUTPUTS,
    SHOWN_CONTEXT,
    SHOWN_DRAFTS,
    SHOWN_IS_PREFILL,
    SHOWN_FUTURE,
    N_SHOWN,
) = range(7)


@njit(cache=True)
def show_batch(ref: Engine, slot: int) -> None:
    """Write what a policy may see of the batch in ``slot``."""
    s = borrowed(ref)
    e = s.engine[0]
    c = s.config[0]
    shown = s.policy.order
    entries = s.entries[slot]
    size = s.batch[slot].size
    shown[SHOWN_SIZE] = size
    shown[SHOWN_WAITING] = e.num_waiting
    shown[SHOWN_K] = c.k
    s.policy.scratch[SHOWN_NOW_S] = e.host_s
    s.policy.scratch[SHOWN_KV_USAGE] = 1.0 - e.free_blocks / max(c.num_blocks - 1, 1)
    acceptance = s.policy.scratch
    stride = size
    for j in range(size):
        x = entries[j]
        r = s.requests[x.request]
        at = N_SHOWN_SCALARS + j
        shown[at + SHOWN_REQUEST * stride] = x.request
        shown[at + SHOWN_OUTPUTS * stride] = r.tokens - r.prompt
        shown[at + SHOWN_CONTEXT * stride] = x.computed + x.tokens
        shown[at + SHOWN_DRAFTS * stride] = x.drafts
        shown[at + SHOWN_IS_PREFILL * stride] = x.is_chunk
        shown[at + SHOWN_FUTURE * stride] = r.future
        acceptance[N_SHOWN_FLOATS + j] = r.accepted / r.draft_tokens if r.draft_tokens > 0 else np.nan


@njit(cache=True)
def take_decision(ref: Engine, slot: int) -> None:
    """Fill ``next_drafts`` and ``drafted`` from the table, cut to 0..k; as many are made as are verified, or more."""
    s = borrowed(ref)
    entries = s.entries[slot]
    k = s.config[0].k
    wanted = s.policy.table
    stride = entries.size
    for j in range(s.batch[slot].size):
        x = entries[j]
        x.next_drafts = 0
        x.drafted = 0
        if not x.is_chunk:
            x.next_drafts = min(max(wanted[j], 0), k)
            x.drafted = max(x.next_drafts, min(wanted[stride + j], k))
