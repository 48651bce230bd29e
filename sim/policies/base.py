"""What a draft-length policy is: what it sees, what it returns, how a built-in one becomes arrays."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from draftcast.errors import ScenarioError
from draftcast.sim.acceptance import has_confidence, survivals
from draftcast.sim.cost.step_time import decode_step_seconds
from draftcast.sim.engine import decide as rules
from draftcast.sim.engine.rules import python as shows
from draftcast.sim.engine.state import Engine, PolicyArrays

Ints = NDArray[np.int64]
Lengths = int | Sequence[int] | NDArray[np.integer[Any]]
"""One number for all scheduled requests, or one each."""


@dataclass(frozen=True)
class Decision:
    """What a policy wants of a step: how many drafts each request verifies in the next one, and how many are made.

    Usually the same, and then a plain number or list will do. A policy that drafts first and picks afterwards
    (TETRIS, DSpark) pays for more than it verifies.
    """

    verify: Lengths
    make: Lengths | None = None  # None: as many as are verified; never fewer than that


class Batch:
    """What a Python policy sees of the step being scheduled; arrays have one entry per scheduled request.

    ``outputs`` and ``acceptance`` are as of the last output that is in: under asynchronous scheduling the step in
    flight is not known yet. A batch may be kept: it does not change.
    """

    def __init__(self, engine: Engine) -> None:
        # One copy of all that is shown; a column is only made into an array when the policy asks for it.
        policy = engine.policy
        self._engine = engine
        self.num_seqs: int
        """Requests scheduled."""
        self.waiting: int
        """Requests in the queue."""
        self.k: int
        """num_speculative_tokens, the most a request may draft; of a tree the nodes verified."""
        self.num_seqs, self.waiting, self.k = policy.order[: shows.N_SHOWN_SCALARS].tolist()
        self._columns: Ints = policy.order[: shows.N_SHOWN_SCALARS + shows.N_SHOWN * self.num_seqs].copy()
        self._floats: NDArray[np.float64] = policy.scratch[: shows.N_SHOWN_FLOATS + self.num_seqs].copy()

    @property
    def now_s(self) -> float:
        """When the step is scheduled."""
        return float(self._floats[shows.SHOWN_NOW_S])

    @property
    def kv_usage(self) -> float:
        """Share of KV blocks in use."""
        return float(self._floats[shows.SHOWN_KV_USAGE])

    @cached_property
    def request(self) -> Ints:
        """Row in the request table."""
        return self._column(shows.SHOWN_REQUEST)

    @cached_property
    def outputs(self) -> Ints:
        """Output tokens delivered."""
        return self._column(shows.SHOWN_OUTPUTS)

    @cached_property
    def context(self) -> Ints:
        """Tokens in the KV cache after this step."""
        return self._column(shows.SHOWN_CONTEXT)

    @cached_property
    def drafts(self) -> Ints:
        """Drafts verified in this step."""
        return self._column(shows.SHOWN_DRAFTS)

    @cached_property
    def is_prefill(self) -> NDArray[np.bool_]:
        """A chunk that is not the prompt's last: drafts nothing."""
        return self._column(shows.SHOWN_IS_PREFILL).astype(np.bool_)

    @cached_property
    def acceptance(self) -> NDArray[np.float64]:
        """Accepted / drafted of each request so far, NaN before its first round."""
        return self._floats[shows.N_SHOWN_FLOATS :]

    def _column(self, number: int) -> Ints:
        start = shows.N_SHOWN_SCALARS + number * self.num_seqs
        return self._columns[start : start + self.num_seqs]

    @cached_property
    def survival(self) -> NDArray[np.float64]:
        """The draft's forecast that its first j+1 drafts of the next round are all accepted, shape [num_seqs, k].

        Products of per-token confidences (see ``draftcast.sim.acceptance.confidence``); of a tree, by level.

        Raises:
            ScenarioError: the scenario's acceptance has no ``confidence_discrimination``.
        """
        acceptance = self._engine.acceptance
        if not has_confidence(acceptance):
            raise ScenarioError(NEEDS_CONFIDENCE, key="acceptance.confidence_discrimination")
        out = np.empty((self.num_seqs, int(self._engine.config[0]["tree_depth"]) or self.k))
        survivals(acceptance, self.request, self._column(shows.SHOWN_FUTURE), out)
        return out

    def step_seconds(self, k: int, num_seqs: int | None = None, mean_context: float | None = None) -> float:
        """Forecast duration of a decode step in which each of ``num_seqs`` requests verifies and makes k drafts."""
        seqs = self.num_seqs if num_seqs is None else num_seqs
        context = float(self.context.mean()) if mean_context is None else mean_context
        return float(decode_step_seconds(self._engine.cost, seqs, k, context))


NEEDS_CONFIDENCE = (
    "the policy goes by the draft's confidence: say how well that tells accepted drafts from rejected ones, 0 (not at "
    "all) to 1 (surely), as the mean confidence of accepted drafts less that of rejected ones"
)


class Policy:
    """Base of all policies. Subclass it, override ``decide``, and name it by import path in a scenario."""

    name: ClassVar[str] = ""
    is_dynamic: ClassVar[bool] = True
    needs_confidence: ClassVar[bool] = False

    def compile(self, k: int, max_num_seqs: int, seed: int = 0) -> PolicyArrays:
        """The arrays of the compiled rule, with nothing learned yet.

        Args:
            k: num_speculative_tokens; of a tree the nodes verified.
            max_num_seqs: the most requests in a batch.
            seed: of the rule's own random choices.
        """
        shown = shows.N_SHOWN_SCALARS + shows.N_SHOWN * max_num_seqs
        floats = shows.N_SHOWN_FLOATS + max_num_seqs
        return arrays(rules.KIND_PYTHON, table=np.zeros(2 * max_num_seqs), scratch=floats, order=shown)

    def fresh(self) -> Policy:
        """A policy of the same parameters that has seen nothing yet; every replica of every replication gets its own.

        A deep copy of this one, which itself never decides. Override it for a policy that holds what must be shared.
        """
        try:
            return copy.deepcopy(self)
        except TypeError as error:
            raise ScenarioError(
                f"cannot be copied for each replica ({error}); let it override fresh()",
                key="policy.name",
                value=type(self).__name__,
            ) from None

    def decide(self, batch: Batch) -> Lengths | Decision:
        """Drafts to make in this step and to verify in the next: one number for all requests, or one each.

        Values are cut to 0..k.
        """
        raise NotImplementedError(f"{type(self).__name__} does not override decide()")


def arrays(
    kind: int, table: Any = (0,), params: Any = (), state: Any = (), scratch: int = 0, order: int = 0, rows: int = 0
) -> PolicyArrays:
    """Fresh arrays of a compiled rule.

    ``scratch`` and ``order`` are the lengths of its work spaces, ``rows`` the most rows it asks the time of.
    """
    return PolicyArrays(
        kind=np.array([kind], np.int64),
        params=np.array(params, np.float64),
        table=np.array(table, np.int64),
        state=np.array(state, np.float64),
        scratch=np.zeros(scratch, np.float64),
        order=np.zeros(order, np.int64),
        row_s=np.full(rows + 1, np.nan),
    )


def check_unit(policy: Policy, field: str, above_zero: bool = False) -> None:
    """``ScenarioError`` unless the parameter is a number in 0..1 (above 0 if asked)."""
    value = getattr(policy, field)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0.0 <= value <= 1.0 or (above_zero and value == 0.0):
        allowed = "must be above 0 and at most 1" if above_zero else "must be in 0..1"
        raise ScenarioError(allowed, key=f"policy.{field}", value=value)


def check_count(policy: Policy, field: str, least: int) -> None:
    """``ScenarioError`` unless the parameter is a whole number of at least ``least``."""
    value = getattr(policy, field)
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ScenarioError(f"must be a whole number of at least {least}", key=f"policy.{field}", value=value)


def check_at_least_zero(policy: Policy, field: str) -> None:
    """``ScenarioError`` unless the parameter is a finite number of at least 0."""
    value = getattr(policy, field)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0.0 <= value < float("inf"):
        raise ScenarioError("must be a number of at least 0", key=f"policy.{field}", value=value)
