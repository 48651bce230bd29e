"""What the Triton kernels ask of the device they are launched on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import triton.language as tl

from draftcast.kernels.extras import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


class MatrixTiles(NamedTuple):
    """Shape of a program of a matrix product."""

    rows: int  # of the output; of experts (token, expert) pairs
    columns: int  # of the output; of experts gate and up together
    depth: int  # of what is summed over, a step
    num_warps: int
    num_stages: int
    resident: int = 1  # programs that share a multiprocessor, as far as 227 KiB of shared memory allow (Hopper)


def processors(tensor: torch.Tensor) -> int:
    """Multiprocessors of the tensor's device; 8 for the interpreter."""
    return int(torch.cuda.get_device_properties(tensor.device).multi_processor_count) if tensor.is_cuda else 8


def dot_type(element_bytes: int) -> Any:
    """The format in which a matrix product takes its operands."""
    # The interpreter keeps bf16 as raw 16-bit integers and would multiply those; its fp32 products are exact.
    return tl.float32 if INTERPRETED else {4: tl.float32, 2: tl.bfloat16, 1: tl.float8e4nv}[element_bytes]


def fewest_splits(times: Sequence[float]) -> int:
    """The fewest splits within a tenth of the least time; ``times`` of 1, 2, ... splits."""
    return next(splits for splits, time in enumerate(times, 1) if time <= 1.1 * min(times))
