"""Where compiled code and a Python policy meet: the batch is shown in arrays of its own, the decision taken from one.

Reading structured arrays from Python one field at a time would take longer than the step. ``policy.order`` holds
``N_SHOWN_SCALARS`` numbers and then the columns, one number per batch entry each; ``policy.scratch`` two floats and
then each entry's acceptance so far; ``policy.table`` the decision: drafts to verify by batch entry, then drafts to
make.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from draftcast.errors import ScenarioError
from draftcast.kernels.arrays import BoolArray, FloatArray, IntArray
from draftcast.sim.acceptance.confidence import has_confidence, survivals
from draftcast.sim.cost.step_time import decode_step_seconds
from draftcast.sim.state.engine import EngineState

Lengths = int | Sequence[int] | NDArray[np.integer[Any]]  # one number for all scheduled requests, or one each
NEEDS_CONFIDENCE = (
    "the policy goes by the draft's confidence: say how well that tells accepted drafts from rejected ones, 0 (not at "
    "all) to 1 (surely), as the mean confidence of accepted drafts less that of rejected ones"
)

SHOWN_SIZE, SHOWN_WAITING, SHOWN_K, N_SHOWN_SCALARS = 0, 1, 2, 3
SHOWN_NOW_S, SHOWN_KV_USAGE, N_SHOWN_FLOATS = 0, 1, 2
SHOWN_REQUEST, SHOWN_OUTPUTS, SHOWN_CONTEXT, SHOWN_DRAFTS, SHOWN_IS_PREFILL, SHOWN_FUTURE, N_SHOWN = range(7)


@njit(cache=True)
def show_batch(s: EngineState, slot: int) -> None:
    """Write what a policy may see of the batch in ``slot``."""
    e = s.engine[0]
    c = s.config[0]
    shown = s.policy.order
    entries = s.entries[slot]
    size = int(s.batch[slot].size)
    shown[SHOWN_SIZE] = size
    shown[SHOWN_WAITING] = e.num_waiting
    shown[SHOWN_K] = c.max_drafts
    s.policy.scratch[SHOWN_NOW_S] = e.host_s
    s.policy.scratch[SHOWN_KV_USAGE] = 1.0 - e.free_blocks / max(c.num_gpu_blocks - 1, 1)
    columns = shown[N_SHOWN_SCALARS : N_SHOWN_SCALARS + N_SHOWN * size].reshape(N_SHOWN, size)
    for j in range(size):
        x = entries[j]
        r = s.requests[x.request]
        columns[SHOWN_REQUEST, j] = x.request
        columns[SHOWN_OUTPUTS, j] = r.tokens - r.prompt
        columns[SHOWN_CONTEXT, j] = x.computed + x.tokens
        columns[SHOWN_DRAFTS, j] = x.drafts
        columns[SHOWN_IS_PREFILL, j] = x.is_chunk
        columns[SHOWN_FUTURE, j] = r.future
        s.policy.scratch[N_SHOWN_FLOATS + j] = r.accepted / r.draft_tokens if r.draft_tokens > 0 else np.nan


@njit(cache=True)
def take_decision(s: EngineState, slot: int) -> None:
    """Fill ``next_drafts`` and ``drafted`` from the table, cut to 0..k; as many are made as are verified, or more."""
    entries = s.entries[slot]
    k = s.config[0].max_drafts
    lengths = s.policy.table
    stride = entries.size
    for j in range(s.batch[slot].size):
        x = entries[j]
        x.next_drafts = x.drafted = 0
        if not x.is_chunk:
            x.next_drafts = min(max(lengths[j], 0), k)
            x.drafted = max(x.next_drafts, min(lengths[stride + j], k))


@dataclass(frozen=True)
class Decision:
    """How many drafts each request makes in a step and how many of them it verifies in the next.

    Where these are equal a plain number or list will do; a policy that drafts first and picks afterwards makes more.
    """

    verify: Lengths
    make: Lengths | None = None  # None: as many as are verified; never fewer than that


class Batch:
    """What a Python policy sees of the step being scheduled; arrays have one entry per scheduled request.

    ``outputs`` and ``acceptance`` are as of the last output that is in: under asynchronous scheduling the step in
    flight is not known yet. A batch may be kept: it does not change.
    """

    num_seqs: int  # requests scheduled
    waiting: int  # requests in the queue
    k: int  # num_speculative_tokens, the most a request may draft; of a tree the nodes verified
    now_s: float  # when the step is scheduled
    kv_usage: float  # share of KV blocks in use
    acceptance: FloatArray  # accepted / drafted of each request so far, NaN before its first round
    request: IntArray  # row in the request table
    outputs: IntArray  # output tokens
    context: IntArray  # tokens in the KV cache after this step
    drafts: IntArray  # draft tokens verified in this step
    is_prefill: BoolArray  # a chunk that is not the prompt's last: drafts nothing

    def __init__(self, engine: EngineState) -> None:
        policy = engine.policy
        self._engine = engine
        self.num_seqs, self.waiting, self.k = policy.order[:N_SHOWN_SCALARS].tolist()
        self.now_s, self.kv_usage = policy.scratch[:N_SHOWN_FLOATS].tolist()
        shown = policy.order[N_SHOWN_SCALARS : N_SHOWN_SCALARS + N_SHOWN * self.num_seqs]
        columns = shown.reshape(N_SHOWN, self.num_seqs).copy()
        self.request, self.outputs, self.context, self.drafts, is_prefill, self._future = columns  # `SHOWN_REQUEST`...
        self.is_prefill = is_prefill.astype(np.bool_)
        self.acceptance = policy.scratch[N_SHOWN_FLOATS : N_SHOWN_FLOATS + self.num_seqs].copy()

    @cached_property
    def survival(self) -> FloatArray:
        """The draft's forecast that its first j+1 drafts of the next round are all accepted, shape [num_seqs, k].

        Products of per-token confidences (see ``draftcast.sim.acceptance.confidence``); of a tree, by level.

        Raises ScenarioError: the scenario's acceptance has no ``confidence_discrimination``.
        """
        acceptance = self._engine.acceptance
        if not has_confidence(acceptance):
            raise ScenarioError(NEEDS_CONFIDENCE, key="acceptance.confidence_discrimination")
        out = np.empty((self.num_seqs, int(self._engine.config[0]["tree_depth"]) or self.k))
        survivals(acceptance, self.request, self._future, out)
        return out

    def step_seconds(self, k: int, num_seqs: int | None = None, mean_context: float | None = None) -> float:
        """Forecast duration of a decode step in which each of ``num_seqs`` requests verifies and makes k drafts."""
        seqs = self.num_seqs if num_seqs is None else num_seqs
        context = float(self.context.mean()) if mean_context is None else mean_context
        return float(decode_step_seconds(self._engine.cost, seqs, k, context))


def write_decision(s: EngineState, size: int, decision: Any, source: str) -> None:
    """Hand a policy's decision on ``size`` scheduled requests to the engine.

    Raises ScenarioError: neither a whole number, nor one for each request, nor a `Decision` of such; names ``source``.
    """
    table = s.policy.table
    half = table.size // 2
    verify, make = (decision.verify, decision.make) if isinstance(decision, Decision) else (decision, None)
    for drafts, into in ((verify, table[:size]), (0 if make is None else make, table[half : half + size])):
        lengths = np.asarray(drafts)
        if lengths.dtype.kind not in "iu" or lengths.shape not in ((), into.shape):
            message = f"must return a whole number, or one for each of the {size} scheduled requests"
            raise ScenarioError(message, key=source, value=drafts)
        into[:] = lengths
