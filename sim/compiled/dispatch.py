"""One compiled call for many functions, chosen by number: numba has no list of functions that it can inline from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numba import typeof as _typeof
from numba import types
from numba.extending import intrinsic

typeof: Any = _typeof


def call_by_number(functions: Sequence[Any]) -> Callable[[int, Any, int], None]:
    """A function ``call(number, ref, slot)`` for compiled code: ``functions[number](ref, slot)``.

    Nothing is called where the entry is None or the number has none.
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
