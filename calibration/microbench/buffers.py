"""Several sets of buffers for one kernel, together larger than the last-level cache, in memory that stays.

The first set comes from the operator; the others are copies, which take the same time to work on. The count is bounded,
so a kernel on a few kilobytes still finds them in an outer cache, as it does behind the kernel before it in an engine.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from contextlib import contextmanager

from draftcast.calibration.microbench.shapes import Point
from draftcast.kernels.operators.registry import Launch, Operator, Tensors

MAX_SETS = 512
MIN_SETS = 2
CACHE_MULTIPLE = 2.0
"""Sets together are this many times the cache: it is not replaced in strict order of use."""
# malloc.h: parameters of mallopt and their defaults.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_DEFAULT_TRIM_THRESHOLD, _DEFAULT_MMAP_MAX = 128 * 1024, 65536


def launches(operator: Operator, point: Point, device: str, seed: int, cache_bytes: int) -> list[Launch]:
    """Ready launches of ``point``, one a set of buffers, every page of them touched."""
    import torch

    generator = torch.Generator(device=device)
    generator.manual_seed(seed)
    first = operator.make_inputs(dict(point.shape), point.dtype, point.kv_dtype, device, generator)
    prepare = operator.implementations[point.implementation].prepare
    count = sets_needed(_bytes(first) + _bytes(operator.make_outputs(first)), cache_bytes)
    ready = []
    for index in range(count):
        inputs = first if index == 0 else {name: _copy(value) for name, value in first.items()}
        outputs = operator.make_outputs(inputs)
        for output in outputs.values():
            output.zero_()
        ready.append(prepare(inputs, outputs))
    return ready


def sets_needed(set_bytes: int, cache_bytes: int) -> int:
    """How many sets of ``set_bytes`` exceed the cache, within the bounds."""
    return min(max(math.ceil(CACHE_MULTIPLE * cache_bytes / max(set_bytes, 1)), MIN_SETS), MAX_SETS)


def _copy(value: object) -> object:
    import torch

    return value.clone() if isinstance(value, torch.Tensor) else value


def _bytes(tensors: Tensors) -> int:
    import torch

    return sum(value.nbytes for value in tensors.values() if isinstance(value, torch.Tensor))


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Within it, blocks of any size come from the heap and stay there when freed; after it, the heap is trimmed.

    As an engine's allocator does. glibc returns large blocks to the system, so a kernel that allocates its work space
    faults every page of it in every launch, or in none, depending on what the process did before: twice the time or
    not, by chance. Only glibc is known; elsewhere nothing is changed.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        yield
        return
    libc.mallopt(_MMAP_MAX, 0)
    libc.mallopt(_TRIM_THRESHOLD, -1)  # never
    try:
        yield
    finally:
        libc.mallopt(_MMAP_MAX, _DEFAULT_MMAP_MAX)
        libc.mallopt(_TRIM_THRESHOLD, _DEFAULT_TRIM_THRESHOLD)
        libc.malloc_trim(ctypes.c_size_t(0))
