"""Times launches: several sets of buffers, larger together than the last-level cache, in bursts of samples.

On the CPU by the processor's clock, on CUDA by device events, eager or inside a graph. A burst warms up, then takes
samples back to back, each long enough for the clock and rotating over the sets, so that what one launch leaves in the
cache is gone when its buffers come round again. The number of sets is bounded.
"""

import ctypes
import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from draftcast.calibration.microbench.shapes import Point
from draftcast.kernels.operators.registry import Launch, Operator

MAX_SETS = 512
MIN_SETS = 2
CACHE_MULTIPLE = 2.0  # sets together are this many times the cache: it is not replaced in strict order of use
# malloc.h: parameters of mallopt and their defaults.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_DEFAULT_TRIM_THRESHOLD, _DEFAULT_MMAP_MAX = 128 * 1024, 65536


def launches(operator: Operator, point: Point, device: str, seed: int, cache_bytes: int) -> list[Launch]:
    """Ready launches of ``point``, one a set of buffers, every page of them touched."""
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    first = operator.make_inputs(dict(point.shape), point.dtype, point.kv_dtype, device, generator)
    prepare = operator.implementations[point.implementation].prepare
    tensors = {name: value for name, value in first.items() if isinstance(value, torch.Tensor)}
    set_bytes = sum(value.nbytes for value in (*tensors.values(), *operator.make_outputs(first).values()))
    ready = []
    for index in range(sets_needed(set_bytes, cache_bytes)):
        inputs = {**first, **({name: value.clone() for name, value in tensors.items()} if index else {})}
        outputs = operator.make_outputs(inputs)
        for output in outputs.values():
            output.zero_()
        ready.append(prepare(inputs, outputs))
    return ready


def sets_needed(set_bytes: int, cache_bytes: int) -> int:
    """How many sets of ``set_bytes`` exceed the cache, within the bounds."""
    return min(max(math.ceil(CACHE_MULTIPLE * cache_bytes / max(set_bytes, 1)), MIN_SETS), MAX_SETS)


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Within it, blocks of any size come from the heap and stay there when freed, as with an engine's allocator.

    glibc returns large blocks to the system, so a kernel that allocates its work space faults every page of it in every
    launch, or in none, depending on what the process did before. Only glibc is known; elsewhere nothing is changed.
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


@dataclass(frozen=True)
class Burst:
    """Seconds of one launch: the median over ``samples``, each the mean of ``launches`` launches."""

    seconds: float
    samples: int
    launches: int


@dataclass(frozen=True)
class BurstLimits:
    warm_s: float = 0.005  # launches run untimed for this long, at least one
    sample_s: float = 0.0002  # least length of a sample; shorter launches are repeated within it
    burst_s: float = 0.04  # samples are taken for this long, but at least one
    long_s: float = 0.1  # on the CPU a launch of this length needs no warm-up where it sets nothing up


@dataclass(frozen=True)
class CpuTimer:
    """perf_counter_ns around calls that return when the work is done."""

    limits: BurstLimits = BurstLimits()

    def burst(self, launches: Sequence[Launch], *, graph: bool = False, seen: bool = False) -> Burst:
        """One burst over ``launches``: the same kernel on different buffers.

        ``graph``: false: there are no graphs on the CPU. ``seen``: this process has timed this kernel at this shape
        before, so its first launch sets nothing up.
        """
        assert not graph
        collecting = gc.isenabled()
        gc.disable()
        try:
            began, count = time.perf_counter(), 1
            launches[0]()
            first_s, position = time.perf_counter() - began, 1
            while time.perf_counter() < began + self.limits.warm_s:
                launches[position % len(launches)]()
                position += 1
            if seen and first_s >= self.limits.long_s:
                return Burst(first_s, 1, 1)
            samples: list[float] = []
            end = time.perf_counter_ns() + int(self.limits.burst_s * 1e9)
            while not samples or time.perf_counter_ns() < end:
                chosen = [launches[(position + i) % len(launches)] for i in range(count)]
                position += count
                start = time.perf_counter_ns()
                for launch in chosen:
                    launch()
                took_s = (time.perf_counter_ns() - start) / 1e9
                if took_s < 0.5 * self.limits.sample_s:  # too short for the clock: not a sample
                    count = math.ceil(count * min(self.limits.sample_s / max(took_s, 1e-9), 100.0))
                    continue
                samples.append(took_s / count)
            return Burst(statistics.median(samples), len(samples), count)
        finally:
            if collecting:
                gc.enable()


@dataclass(frozen=True)
class CudaTimer:
    """Events on the device's clock around launches, or around the replay of a graph that holds them."""

    limits: BurstLimits = BurstLimits(warm_s=0.02, sample_s=0.0005, burst_s=0.02)

    def burst(self, launches: Sequence[Launch], *, graph: bool = False, seen: bool = False) -> Burst:
        """As `CpuTimer.burst`; with ``graph`` every set is launched once (or more, evenly) within one graph."""
        import torch

        sets = len(launches)
        _launch(launches, 0, sets)
        torch.cuda.synchronize()
        start = time.perf_counter()
        _launch(launches, 0, sets)
        torch.cuda.synchronize()
        launch_s = max((time.perf_counter() - start) / sets, 1e-7)
        count = max(1, math.ceil(self.limits.sample_s / launch_s))
        if not graph:
            return self._sampled(lambda position: _launch(launches, position, count), count)
        count = sets * math.ceil(count / sets)
        replay = _captured(launches, count).replay
        return self._sampled(lambda _position: replay(), count)

    def _sampled(self, sample: Callable[[int], None], count: int) -> Burst:
        """Warm up, then time samples of ``count`` launches each; ``sample`` is told how many went before."""
        import torch

        new_event: Any = torch.cuda.Event
        events: list[tuple[Any, Any]] = []
        position = 0
        end = time.perf_counter() + self.limits.warm_s
        while position == 0 or time.perf_counter() < end:
            sample(position)
            position += count
            torch.cuda.synchronize()
        end = time.perf_counter() + self.limits.burst_s
        # The queue is drained only at the end of a group: the device does not wait for the host between samples.
        while not events or time.perf_counter() < end:
            for _ in range(8):
                first, last = new_event(enable_timing=True), new_event(enable_timing=True)
                first.record()
                sample(position)
                last.record()
                position += count
                events.append((first, last))
            torch.cuda.synchronize()
        samples = [first.elapsed_time(last) / 1e3 / count for first, last in events]
        return Burst(statistics.median(samples), len(samples), count)


Timer = CpuTimer | CudaTimer


def _launch(launches: Sequence[Launch], position: int, count: int) -> None:
    for i in range(position, position + count):
        launches[i % len(launches)]()


def _captured(launches: Sequence[Launch], count: int) -> Any:
    import torch

    # What a kernel sets up on its first launch must not be captured.
    cuda: Any = torch.cuda
    stream = cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        _launch(launches, 0, len(launches))
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _launch(launches, 0, count)
    return graph
