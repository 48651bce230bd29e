"""Several sets of buffers for one kernel, together larger than the last-level cache.

The first set comes from the operator; the others are copies, which take the same time to work on. The count is bounded,
so a kernel on a few kilobytes still finds them in an outer cache, as it does behind the kernel before it in an engine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from draftcast.calibration.microbench.points import Point
from draftcast.calibration.microbench.timer import Launch
from draftcast.kernels.operators.registry import Operator

MAX_SETS = 512
MIN_SETS = 2
CACHE_MULTIPLE = 2.0
"""Sets together are this many times the cache: it is not replaced in strict order of use."""


def launches(operator: Operator, point: Point, device: str, seed: int, cache_bytes: int) -> list[Launch]:
    """Ready launches of ``point``, one a set of buffers, every page of them touched."""
    import torch

    generator = torch.Generator(device=device)
    generator.manual_seed(seed)
    first = operator.make_inputs(dict(point.shape), point.dtype, point.kv_dtype, device, generator)
    prepare = operator.implementations[point.implementation].prepare
    found: list[Launch] = []
    count = 0
    while not found or len(found) < count:
        inputs = first if not found else {name: _copy(value) for name, value in first.items()}
        outputs = operator.make_outputs(inputs)
        for output in outputs.values():
            output.zero_()
        found.append(prepare(inputs, outputs))
        count = count or sets_needed(_bytes(inputs) + _bytes(outputs), cache_bytes)
    return found


def sets_needed(set_bytes: int, cache_bytes: int) -> int:
    """How many sets of ``set_bytes`` exceed the cache, within the bounds."""
    return min(max(math.ceil(CACHE_MULTIPLE * cache_bytes / max(set_bytes, 1)), MIN_SETS), MAX_SETS)


def _copy(value: Any) -> Any:
    import torch

    return value.clone() if isinstance(value, torch.Tensor) else value


def _bytes(tensors: Mapping[str, Any]) -> int:
    import torch

    held = (value for value in tensors.values() if isinstance(value, torch.Tensor))
    return sum(value.numel() * value.element_size() for value in held)
