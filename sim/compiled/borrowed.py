"""Bundles of arrays for compiled code, passed by address and without reference counting.

numba passes a NamedTuple of arrays as one argument per array field and counts references of each with atomic
operations: a helper of 3 ns costs 60, and a bundle of forty arrays takes longer to pass than the helper runs. So:

- ``ref = reference(bundle)`` once, in the function that Python calls; ``ref`` is one address;
- every function below takes ``ref`` as it would the NamedTuple: attribute access, each field loaded where it is used,
  owned by nobody; a NamedTuple inside the bundle comes as a reference again.

Who calls ``reference`` keeps the bundle alive, and no view or array of it may be returned. Fields must not be rebound
while a reference is out (elements may change): loads are marked invariant. In a function that calls another with
``inline="always"`` numba's dead-code elimination drops direct stores into borrowed arrays; use ``forceinline=True``
instead, or :func:`put`.
"""

# mypy: disable-error-code="no-untyped-call"
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import extending, njit, typeof, types
from numba.core import cgutils
from numba.core.datamodel.models import PointerModel
from numba.core.typing.templates import AttributeTemplate
from numba.extending import infer_getattr, intrinsic, lower_getattr_generic, overload, register_model

RecordT = TypeVar("RecordT")


class ReferenceType(types.Type):
    """The address of a NamedTuple of arrays whose type is ``record``."""

    def __init__(self, record: types.NamedTuple) -> None:
        self.dtype = record  # as numba's model of pointers names it
        super().__init__(name=f"Reference({record})")

    @property
    def key(self) -> Any:
        return self.dtype


register_model(ReferenceType)(PointerModel)


def reference(record: RecordT) -> RecordT:
    """In compiled code the bundle's address, be it the bundle or its address already; in Python the bundle."""
    return record


@njit(cache=True, forceinline=True)
def put(array: npt.NDArray[Any], index: int, value: Any) -> None:
    """``array[index] = value`` for an array of a borrowed bundle, safe from dead-code elimination."""
    array[index] = value


def _disowned_array(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """The array ``value`` with both owners null: counting references of null is a no-op that the optimiser removes."""
    array = context.make_array(kind)(context, builder, value)
    array.meminfo = array.meminfo.type(None)
    array.parent = array.parent.type(None)
    return array._getvalue()


def _disowned(context: Any, builder: Any, record: Any, value: Any) -> Any:
    """The NamedTuple ``value`` with every array's owner null, those of NamedTuples inside it too."""
    for index, kind in enumerate(record.types):
        part = builder.extract_value(value, index)
        if isinstance(kind, types.NamedTuple):
            value = builder.insert_value(value, _disowned(context, builder, kind, part), index)
        elif isinstance(kind, types.Array):
            value = builder.insert_value(value, _disowned_array(context, builder, kind, part), index)
    return value


def _loaded(builder: Any, address: Any, layout: Any) -> Any:
    """The value at ``address``, every scalar loaded on its own so that unused ones vanish and all may be hoisted."""
    if isinstance(layout, ir.LiteralStructType | ir.ArrayType):
        parts = layout.elements if isinstance(layout, ir.LiteralStructType) else [layout.element] * layout.count
        value = ir.Constant(layout, ir.Undefined)
        for index, part_layout in enumerate(parts):
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

    return ReferenceType(record)(record), codegen


_reference: Any = intrinsic(_reference_typed)


@extending.unbox(ReferenceType)
def _unbox_reference(kind: Any, address: Any, c: Any) -> Any:
    pointer = c.builder.bitcast(c.pyapi.long_as_voidptr(address), c.context.get_value_type(kind))
    return extending.NativeValue(pointer, is_error=c.pyapi.c_api_error())


Compiled = dict[tuple[Hashable, ...], Callable[..., Any]]
_references: dict[Hashable, tuple[ReferenceType, Compiled]] = {}
"""By layout: the type of a bundle's address, and functions compiled for it by themselves and their other types.

numba takes 6 ms to describe the engine's arrays, and longer to look the type up than a replica to be built; layouts
are few.
"""


def _layout(part: Any) -> Hashable:
    """What numba's type of a bundle, or of a part of it, depends on."""
    if isinstance(part, np.ndarray):
        flags = part.flags
        kind = part.dtype, part.dtype.isalignedstruct, part.ndim
        return *kind, flags.c_contiguous, flags.f_contiguous, flags.writeable
    if isinstance(part, tuple) and hasattr(part, "_fields"):
        return type(part), *map(_layout, part)
    return typeof(part)  # type: ignore[no-any-return]


def _words(part: Any) -> list[int]:
    """A bundle, or a part of it, as numba lays it out in memory: of an array no owners, counts, address and strides."""
    if isinstance(part, np.ndarray):
        return [0, 0, part.size, part.itemsize, part.ctypes.data, *part.shape, *part.strides]
    return [word for inner in part for word in _words(inner)]


class PinnedBundle:
    """A bundle by address, for compiled functions that Python calls often: the bundle itself takes some 30 us a call.

    Keeps the bundle alive; must itself live as long as what `bind` returned is called.
    """

    def __init__(self, record: Any) -> None:
        self._record = record
        layout = _layout(record)
        if layout not in _references:
            _references[layout] = ReferenceType(typeof(record)), {}
        self._kind, self._compiled = _references[layout]
        self._memory = np.array(_words(record), np.int64)

    def bind(self, function: Any, *kinds: types.Type) -> Callable[..., Any]:
        """The compiled ``function(ref, ...)`` with ``ref`` given; ``kinds`` are the types of its other arguments."""
        compiled = self._compiled.get((function, *kinds))
        if compiled is None:
            compiled = self._compiled[function, *kinds] = function.compile((self._kind, *kinds))
        return partial(compiled, self._memory.ctypes.data)

    def address(self, function: Any) -> int:
        """Where the compiled ``function(ref, integer)`` stands: what `call_at` takes.

        Raises TypeError: numba does not compile it, or it returns something; numba's own errors.
        """
        if not hasattr(function, "overloads"):
            raise TypeError(f"{function.__name__} is no function of numba.njit")
        self.bind(function, types.int64)
        compiled = function.overloads[self._kind, types.int64]
        if compiled.signature.return_type != types.none:
            raise TypeError(f"{function.__name__} must return nothing")
        return int(compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name))


def _call_at_typed(typingctx: Any, address: Any, ref: Any, argument: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kinds = signature.args[1:]
        layout = context.call_conv.get_function_type(types.none, kinds)
        function = builder.inttoptr(args[0], layout.as_pointer())
        status, _ = context.call_conv.call_function(builder, function, types.none, kinds, args[1:])
        with cgutils.if_unlikely(builder, status.is_error):
            context.call_conv.return_status_propagate(builder, status)
        return context.get_dummy_value()

    return types.none(types.int64, ref, types.int64), codegen


call_at: Any = intrinsic(_call_at_typed)
"""``call_at(address, ref, integer)`` in compiled code calls the function at an address of `PinnedBundle.address`."""


@infer_getattr
class _ReferenceAttributes(AttributeTemplate):
    """Types of a reference's attributes: those of the NamedTuple, references for the NamedTuples inside it."""

    key = ReferenceType

    def generic_resolve(self, ref: ReferenceType, name: str) -> Any:  # type: ignore[override]
        if name not in ref.dtype.fields:
            return None
        part = ref.dtype.types[ref.dtype.fields.index(name)]
        return ReferenceType(part) if isinstance(part, types.NamedTuple) else part


@lower_getattr_generic(ReferenceType)
def _reference_attribute(context: Any, builder: Any, ref: ReferenceType, value: Any, name: str) -> Any:
    index = ref.dtype.fields.index(name)
    part = ref.dtype.types[index]
    address = cgutils.gep_inbounds(builder, value, 0, index)
    if isinstance(part, types.NamedTuple):
        return address
    return _disowned_array(context, builder, part, _loaded(builder, address, context.get_value_type(part)))


# numba wants the annotations of an overload and of what it returns to agree, hence functions and not lambdas.


@overload(reference, jit_options={"forceinline": True})
def _reference_overload(record: Any) -> Any:
    def address(record: Any) -> Any:
        return _reference(record)

    def itself(record: Any) -> Any:
        return record

    if isinstance(record, ReferenceType):
        return itself
    return address if isinstance(record, types.NamedTuple) else None
