"""The compiled rules of the built-in policies by number, as the engine calls them once a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numba import typeof as _typeof
from numba import types
from numba.extending import intrinsic

from draftcast.sim.policies.base import Policy
from draftcast.sim.policies.registry import POLICIES

typeof: Any = _typeof
PYTHON = -1
"""Number of a policy that decides in Python."""
_CLASSES = list({policy.rule: policy for policy in POLICIES.values()}.values())


def call_by_number(functions: Sequence[Any]) -> Callable[[int, Any, int], None]:
    """A function ``call(number, ref, slot)`` for compiled code: ``functions[number](ref, slot)``, nothing where None.

    numba has no list of functions that it can inline from.
    """

    def typed(context: Any, number: Any, ref: Any, slot: Any) -> Any:
        kinds = [None if function is None else typeof(function) for function in functions]
        signatures = [kind and context.resolve_function_type(kind, (ref, slot), {}) for kind in kinds]

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            for place, (kind, called) in enumerate(zip(kinds, signatures, strict=True)):
                if kind is not None:
                    chosen = builder.icmp_signed("==", args[0], context.get_constant(signature.args[0], place))
                    with builder.if_then(chosen):
                        context.get_function(kind, called)(builder, args[1:])
            return context.get_dummy_value()

        return types.none(number, ref, slot), codegen

    made: Any = intrinsic(typed)
    call: Callable[[int, Any, int], None] = made
    return call


decide = call_by_number([policy.rule for policy in _CLASSES])
"""Let a rule fill ``next_drafts`` and ``drafted`` of the batch in a slot; chunks of a prefill draft nothing."""
learn = call_by_number([policy.learn for policy in _CLASSES])
"""Let a rule learn from the batch in a slot, whose output has been collected."""


def number_of(policy: Policy) -> int:
    """What the engine calls the policy's rule by."""
    rules = [known.rule for known in _CLASSES]
    return rules.index(type(policy).rule) if type(policy).rule is not None else PYTHON
