"""Bundles of arrays for compiled code, passed by address and without reference counting.

numba passes a NamedTuple of arrays as one argument per array field and counts references of each with atomic
operations: a helper of 3 ns costs 60, and a bundle of forty arrays takes longer to pass than the helper runs. So:

- ``ref = reference(bundle)`` once, in the function that Python calls; ``ref`` is one address;
- every function below takes ``ref`` and begins with ``s = borrowed(ref)``: the NamedTuple again, each field loaded
  where it is used, owned by nobody. ``borrowed`` takes a NamedTuple as well;
- ``part = member(ref, "acceptance")`` is the reference of a NamedTuple inside the bundle.

Who calls ``reference`` keeps the bundle alive, and no view or array of it may be returned. Fields must not be rebound
while a reference is out (elements may change): loads are marked invariant. In a function that calls another with
``inline="always"`` numba's dead-code elimination drops direct stores into borrowed arrays; use ``forceinline=True``
instead, or :func:`put`.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils as _cgutils
from numba.core.datamodel.models import PointerModel
from numba.extending import intrinsic, overload, register_model

RecordT = TypeVar("RecordT")
cgutils: Any = _cgutils  # numba has no types there


class Reference(types.Type):
    """The address of a NamedTuple of arrays whose type is ``record``."""

    def __init__(self, record: types.NamedTuple) -> None:
        self.record = record
        super().__init__(name=f"Reference({record})")

    @property
    def key(self) -> Any:
        return self.record


@register_model(Reference)
class _ReferenceModel(PointerModel):
    def __init__(self, dmm: Any, fe_type: Reference) -> None:
        record = dmm.lookup(fe_type.record).get_data_type()
        self._pointee_model = dmm.lookup(fe_type.record)
        self._pointee_be_type = record
        super(PointerModel, self).__init__(dmm, fe_type, record.as_pointer())  # type: ignore[no-untyped-call]


def reference(record: RecordT) -> RecordT:
    """In compiled code the bundle's address; in Python the bundle."""
    return record


def borrowed(record: RecordT) -> RecordT:
    """In compiled code a view of the bundle's arrays that owns nothing; in Python the bundle."""
    return record


def member(record: Any, name: str) -> Any:
    """In compiled code the address of the NamedTuple called ``name`` in the bundle; in Python that NamedTuple."""
    return getattr(record, name)


@njit(cache=True, forceinline=True)
def put(array: npt.NDArray[np.int64], index: int, value: int) -> None:
    """``array[index] = value`` for an array of a borrowed bundle, safe from dead-code elimination."""
    array[index] = value


def _disowned(context: Any, builder: Any, record: Any, value: Any) -> Any:
    """The NamedTuple ``value`` with every array's owner null, those of NamedTuples inside it too."""
    for index, part_type in enumerate(record.types):
        part = builder.extract_value(value, index)
        if isinstance(part_type, types.NamedTuple):
            value = builder.insert_value(value, _disowned(context, builder, part_type, part), index)
        elif isinstance(part_type, types.Array):
            array = context.make_array(part_type)(context, builder, part)
            # Both owners null: counting references of null is a no-op that the optimiser removes.
            array.meminfo = array.meminfo.type(None)
            array.parent = array.parent.type(None)
            value = builder.insert_value(value, array._getvalue(), index)
    return value


def _loaded(builder: Any, address: Any, layout: Any) -> Any:
    """The value at ``address``, every scalar loaded on its own so that unused ones vanish and all may be hoisted."""
    if isinstance(layout, ir.LiteralStructType | ir.ArrayType):
        count = len(layout.elements) if isinstance(layout, ir.LiteralStructType) else layout.count
        value = ir.Constant(layout, ir.Undefined)
        for index in range(count):
            part_layout = layout.elements[index] if isinstance(layout, ir.LiteralStructType) else layout.element
            part = cgutils.gep_inbounds(builder, address, 0, index)
            value = builder.insert_value(value, _loaded(builder, part, part_layout), index)
        return value
    scalar = builder.load(address)
    scalar.set_metadata("invariant.load", builder.module.add_metadata([]))
    return scalar


def _reference_typed(typingctx: Any, record: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = cgutils.alloca_once(builder, context.get_value_type(record))
        builder.store(_disowned(context, builder, record, args[0]), address)
        # Loads through the reference are marked invariant, so they must not be seen to come from this very store:
        # an empty piece of assembler hands the address on.
        kind = address.type
        return builder.asm(ir.FunctionType(kind, [kind]), "", "=r,0,~{memory}", [address], side_effect=True)

    return Reference(record)(record), codegen


def _borrow_value_typed(typingctx: Any, record: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _disowned(context, builder, record, args[0])

    return record(record), codegen


def _borrow_reference_typed(typingctx: Any, ref: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = _loaded(builder, args[0], context.get_value_type(ref.record))
        return _disowned(context, builder, ref.record, value)

    return ref.record(ref), codegen


_reference: Any = intrinsic(_reference_typed)
_borrow_value: Any = intrinsic(_borrow_value_typed)
_borrow_reference: Any = intrinsic(_borrow_reference_typed)


def _member_address(name: str) -> Any:
    """The intrinsic that takes a reference to the reference of its member ``name``."""

    @intrinsic
    def address(typingctx: Any, ref: Any) -> Any:
        index = ref.record.fields.index(name)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return cgutils.gep_inbounds(builder, args[0], 0, index)

        return Reference(ref.record.types[index])(ref), codegen

    return address


# numba wants the annotations of an overload and of what it returns to agree, hence functions and not lambdas.


@overload(reference, jit_options={"forceinline": True})
def _reference_overload(record: Any) -> Any:
    def address(record: Any) -> Any:
        return _reference(record)

    return address if isinstance(record, types.NamedTuple) else None


@overload(borrowed, jit_options={"forceinline": True})
def _borrowed_overload(record: Any) -> Any:
    def of_value(record: Any) -> Any:
        return _borrow_value(record)

    def of_reference(record: Any) -> Any:
        return _borrow_reference(record)

    if isinstance(record, Reference):
        return of_reference
    return of_value if isinstance(record, types.NamedTuple) else None


@overload(member, jit_options={"forceinline": True}, prefer_literal=True)
def _member_overload(record: Any, name: Any) -> Any:
    if not isinstance(record, Reference) or not isinstance(name, types.StringLiteral):
        return None
    take = _member_address(name.literal_value)

    def address(record: Any, name: Any) -> Any:
        return take(record)

    return address
