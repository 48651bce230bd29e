"""What a draft-length policy is, and how a built-in one becomes arrays."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from numba import njit

from draftcast.errors import ScenarioError
from draftcast.sim.policies.batch import N_SHOWN, N_SHOWN_FLOATS, N_SHOWN_SCALARS, Batch, Decision, Lengths
from draftcast.sim.state.engine import EngineState, PolicyArrays

Rule = Callable[[EngineState, int], None]  # a compiled function of the engine and of the slot of a batch


@dataclass(frozen=True)
class Allowed:
    """In the annotation of a policy's parameter: which values it may have."""

    message: str
    holds: Callable[[Any], bool]


def is_number(value: object) -> bool:
    return isinstance(value, int | float | np.integer) and not isinstance(value, bool)


def whole(least: int) -> Allowed:
    message = f"must be a whole number of at least {least}"
    return Allowed(message, lambda value: is_number(value) and not isinstance(value, float) and value >= least)


Share = Annotated[float, Allowed("must be in 0..1", lambda value: is_number(value) and 0 <= value <= 1)]
ShareAbove0 = Annotated[
    float, Allowed("must be above 0 and at most 1", lambda value: is_number(value) and 0 < value <= 1)
]
AT_LEAST_0 = Allowed("must be a number of at least 0", lambda value: is_number(value) and 0 <= value < float("inf"))
AtLeast0 = Annotated[float, AT_LEAST_0]


class Policy:
    """Base of all policies. Subclass it, override ``decide``, and name it by import path in a scenario."""

    name: ClassVar[str] = ""
    """Of a built-in one, from `BUILT_IN`."""
    is_dynamic: ClassVar[bool] = True
    needs_confidence: ClassVar[bool] = False
    rule: ClassVar[Rule | None] = None
    """Compiled: fills ``next_drafts`` (verified in the next step) and ``drafted`` (made in this one) of the batch."""
    learn: ClassVar[Rule | None] = None
    """Compiled: learns from a collected batch."""

    def __post_init__(self) -> None:
        """Of a dataclass: refuse parameters that are not `Allowed`. Raises ScenarioError."""
        parameters: Any = self
        for field in fields(parameters):
            for allowed in getattr(field.type, "__metadata__", ()):
                value = getattr(self, field.name)
                if isinstance(allowed, Allowed) and not allowed.holds(value):
                    raise ScenarioError(allowed.message, key=f"policy.{field.name}", value=value)

    def compile(self, k: int, max_num_seqs: int, seed: int = 0) -> PolicyArrays:
        """The arrays of the compiled rule, with nothing learned yet; ``seed``: of its own random choices.

        ``k``: num_speculative_tokens; of a tree the nodes verified.
        """
        shown = N_SHOWN_SCALARS + N_SHOWN * max_num_seqs
        return arrays(table=np.zeros(2 * max_num_seqs), scratch=N_SHOWN_FLOATS + max_num_seqs, order=shown)

    def fresh(self) -> Self:
        """A deep copy: every replica of every replication gets its own. Override it where copies share something."""
        try:
            return copy.deepcopy(self)
        except TypeError as error:
            message = f"cannot be copied for each replica ({error}); let it override fresh()"
            raise ScenarioError(message, key="policy.name", value=type(self).__name__) from None

    def decide(self, batch: Batch) -> Lengths | Decision:
        """Drafts to make in this step and verify in the next, cut to 0..k: one number for all requests, or one each."""
        raise NotImplementedError(f"{type(self).__name__} does not override decide()")


def arrays(
    *, table: Any = (0,), params: Any = (), state: Any = (), scratch: int = 0, order: int = 0, rows: int = 0
) -> PolicyArrays:
    """Fresh arrays; ``scratch``, ``order``: lengths of work spaces; ``rows``: the most whose time the rule asks."""
    return PolicyArrays(
        params=np.array(params, np.float64),
        table=np.array(table, np.int64),
        state=np.array(state, np.float64),
        scratch=np.zeros(scratch, np.float64),
        order=np.zeros(order, np.int64),
        row_s=np.full(rows + 1, np.nan),
    )


@njit(cache=True)
def draft_alike(s: EngineState, slot: int, drafts: int) -> None:
    """Let every request of the batch that decodes make and verify as many drafts."""
    entries = s.entries[slot]
    for j in range(s.batch[slot].size):
        x = entries[j]
        x.next_drafts = x.drafted = 0 if x.is_chunk else drafts
