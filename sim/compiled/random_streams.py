"""Counter-based random numbers: a draw depends on what it is for, never on who asked first.

A draw is addressed by (seed, stream, request, position). Two runs that differ in a policy, a router, k or the batch
limit therefore meet the same arrivals, lengths and draft tokens (common random numbers), and a compiled run and one
stepped from Python see the same values. Nothing here has a state.

The mixer is the finaliser of splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
OOPSLA 2014; constants of Stafford's variant 13). It is a bijection on 64 bits, so distinct counters of one key never
collide. It is made for simulation, not for secrets.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

from draftcast.kernels.arrays import FloatArray, IntArray

UInt64Array = NDArray[np.uint64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, the odd increment of splitmix64
_STREAM_STEP = 0xD1B54A32D192ED03  # another odd 64-bit constant, so that (seed, stream + 1) is not (seed + 1, stream)

GOLDEN = np.uint64(_GOLDEN)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)
S11, S27, S30, S31, U1 = (np.uint64(number) for number in (11, 27, 30, 31, 1))
TO_UNIT = 2.0**-53


class Stream(IntEnum):
    """What a draw is for. Numbers are part of the results: add at the end, never renumber."""

    ARRIVALS = 0
    LENGTHS = 1
    ACCEPT = 2
    MATCH = 3
    ALPHA = 4
    ROUTER = 5
    CLASS = 6
    THINK = 7
    SAMPLE = 8  # which rows of a trace are taken
    ACCEPT_ROW = 9  # which recorded acceptance row a request replays
    REPLICATION = 10
    POLICY = 11
    SYSTEM_PROMPT = 12  # which variant a request or session has
    SESSION = 13


@njit(cache=True, inline="always")
def mix64(x: np.uint64) -> np.uint64:
    """Mix 64 bits (splitmix64 finaliser). Takes and returns ``uint64``."""
    x = (x ^ (x >> S30)) * MIX_1
    x = (x ^ (x >> S27)) * MIX_2
    return x ^ (x >> S31)


@njit(cache=True, inline="always")
def uniform(key: np.uint64, position: int) -> float:
    """The draw of ``key`` at ``position`` (int, >= -1), a float64 in [0, 1) with 53 random bits."""
    return float(mix64(np.uint64(key) + (np.uint64(position) + U1) * GOLDEN) >> S11) * TO_UNIT


mix64_array = cast("Callable[[UInt64Array], UInt64Array]", getattr(mix64, "py_func", mix64))
"""`mix64` of every element, in NumPy, compiler or not. Unsigned array arithmetic wraps silently, as wanted."""


def uniform_array(keys: UInt64Array, positions: int | IntArray) -> FloatArray:
    """`uniform` broadcast over ``keys`` and ``positions``: bit for bit the same values."""
    keys, steps = np.broadcast_arrays(np.atleast_1d(keys).astype(np.uint64), np.asarray(positions).astype(np.uint64))
    return (mix64_array(keys + (steps + U1) * GOLDEN) >> S11).astype(np.float64) * TO_UNIT


def _mix_int(x: int) -> int:
    """`mix64` on a Python int."""
    return int(mix64_array(np.array([x & _MASK], np.uint64))[0])  # an array: wrapping must not warn


def stream_key(seed: int, stream: int) -> int:
    """The 64-bit key of one stream of one seed. Any Python int is a seed; it is taken modulo 2**64."""
    return _mix_int(_mix_int(int(seed) + _GOLDEN) + (int(stream) + 1) * _STREAM_STEP)


def request_keys(seed: int, stream: int, n: int) -> UInt64Array:
    """One key per request index, shape ``(n,)`` uint64. The first m keys do not depend on n >= m."""
    index = np.arange(1, n + 1, dtype=np.uint64)
    return mix64_array(np.asarray(stream_key(seed, stream), dtype=np.uint64) + index * GOLDEN)


def request_uniforms(seed: int, stream: int, n: int, position: int = 0) -> FloatArray:
    """One draw in [0, 1) per request index, shape ``(n,)``; ``position`` tells several draws of a request apart."""
    return uniform_array(request_keys(seed, stream, n), position)


def replication_seed(seed: int, replication: int) -> int:
    """The seed of replication 0, 1, ...: the first keeps ``seed``, as a single run has it."""
    if replication == 0:
        return int(seed)
    # 63 bits, which every file format can hold.
    return _mix_int(stream_key(seed, Stream.REPLICATION) + replication * _GOLDEN) >> 1
