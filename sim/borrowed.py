"""Arrays without reference counting, for small functions inside the compiled loop.

numba counts references of every array in a NamedTuple argument with atomic operations, and drops the pair only where
its optimiser can prove it idle: with a branch or two inside, a function of 3 ns costs 60. A function that begins with
``a = borrowed(arrays)`` and touches only ``a`` afterwards pays nothing, wherever it is called from.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from numba import njit, types
from numba.extending import intrinsic, overload

RecordT = TypeVar("RecordT")


def borrowed(record: RecordT) -> RecordT:
    """The NamedTuple itself; in compiled code a view of its arrays that owns nothing.

    The caller must keep the original alive while the view is used (an argument of the running function is), and must
    not return the view or any of its arrays. Read elements only: numba's dead-code elimination takes arrays that a call
    returned for temporaries and silently drops a direct store; pass the array to a function that stores
    (:func:`put`) instead.
    """
    return record


@njit(cache=True, forceinline=True)
def put(array: npt.NDArray[np.int64], index: int, value: int) -> None:
    """``array[index] = value`` for an array of a borrowed NamedTuple."""
    array[index] = value


def _borrow_typed(typingctx: Any, record: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = args[0]
        for index, member in enumerate(record.types):
            if not isinstance(member, types.Array):
                continue
            array = context.make_array(member)(context, builder, builder.extract_value(value, index))
            # Both owners null: counting references of null is a no-op that the optimiser removes.
            array.meminfo = array.meminfo.type(None)
            array.parent = array.parent.type(None)
            value = builder.insert_value(value, array._getvalue(), index)
        return value

    return record(record), codegen


_borrow: Any = intrinsic(_borrow_typed)


@overload(borrowed, jit_options={"forceinline": True})
def _borrowed(record: Any) -> Any:
    if not isinstance(record, types.NamedTuple):
        return None

    def view(record: Any) -> Any:  # numba wants the annotations of the two signatures to agree
        return _borrow(record)

    return view
