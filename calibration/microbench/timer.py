"""Times launches: with the processor's clock on the CPU, with device events on CUDA, eager or inside a graph.

A burst warms up, then takes samples back to back. A sample is long enough for the clock and rotates over several sets
of buffers, so that what one launch leaves in the cache is gone when its buffers come round again.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from draftcast.kernels.operators.registry import Launch


@dataclass(frozen=True)
class Burst:
    """Seconds of one launch: the median over ``samples``, each the mean of ``launches`` launches."""

    seconds: float
    samples: int
    launches: int


@dataclass(frozen=True)
class BurstLimits:
    """How long a burst lasts."""

    warm_s: float = 0.005  # launches run untimed for this long, at least one
    sample_s: float = 0.0002  # least length of a sample; shorter launches are repeated within it
    burst_s: float = 0.04  # samples are taken for this long, but at least one
    long_s: float = 0.1  # on the CPU a launch of this length needs no warm-up where it sets nothing up


class Timer(Protocol):
    """Times launches on one kind of device."""

    limits: BurstLimits

    def burst(self, launches: Sequence[Launch], *, graph: bool = False, seen: bool = False) -> Burst:
        """One burst over ``launches``: the same kernel on different buffers.

        Args:
            graph: time the replay of a CUDA graph.
            seen: this process has timed this kernel at this shape before, so its first launch sets nothing up.
        """
        ...


class CpuTimer:
    """perf_counter_ns around calls that return when the work is done."""

    def __init__(self, limits: BurstLimits | None = None) -> None:
        self.limits = limits or BurstLimits()

    def burst(self, launches: Sequence[Launch], *, graph: bool = False, seen: bool = False) -> Burst:
        """As `Timer.burst`; there are no graphs on the CPU."""
        assert not graph
        collecting = gc.isenabled()
        gc.disable()
        try:
            position, first_s = self._warm_up(launches)
            count = 1
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

    def _warm_up(self, launches: Sequence[Launch]) -> tuple[int, float]:
        """(launches made, seconds of the first)."""
        start = time.perf_counter()
        launches[0]()
        first_s, done = time.perf_counter() - start, 1
        while time.perf_counter() < start + self.limits.warm_s:
            launches[done % len(launches)]()
            done += 1
        return done, first_s


class CudaTimer:
    """Events on the device's clock around launches, or around the replay of a graph that holds them."""

    def __init__(self, limits: BurstLimits | None = None) -> None:
        self.limits = limits or BurstLimits(warm_s=0.02, sample_s=0.0005, burst_s=0.02)

    def burst(self, launches: Sequence[Launch], *, graph: bool = False, seen: bool = False) -> Burst:
        """As `Timer.burst`; with ``graph`` every set is launched once (or more, evenly) within one graph."""
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
        captured = _captured(launches, count)
        return self._sampled(lambda _position: captured.replay(), count)

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


def _launch(launches: Sequence[Launch], position: int, count: int) -> None:
    for i in range(position, position + count):
        launches[i % len(launches)]()


def _captured(launches: Sequence[Launch], count: int) -> Any:
    """A CUDA graph of ``count`` launches."""
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
