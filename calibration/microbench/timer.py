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

Launch = Callable[[], None]


@dataclass(frozen=True)
class Burst:
    """Seconds of one launch: the median over ``samples``, each the mean of ``launches`` launches."""

    seconds: float
    samples: int
    launches: int


@dataclass(frozen=True)
class BurstLimits:
    """How long a burst lasts.

    Attributes:
        warm_s: launches run untimed for this long, at least one.
        sample_s: least length of a sample; shorter launches are repeated within it.
        burst_s: samples are taken for this long, but at least one.
        long_s: on the CPU a launch of this length needs no warm-up where it sets nothing up.
    """

    warm_s: float = 0.005
    sample_s: float = 0.0002
    burst_s: float = 0.04
    long_s: float = 0.1


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

        def settle(position: int, count: int) -> None:
            for i in range(count):
                launches[(position + i) % len(launches)]()
            torch.cuda.synchronize()

        settle(0, len(launches))
        start = time.perf_counter()
        settle(0, len(launches))
        launch_s = max((time.perf_counter() - start) / len(launches), 1e-7)
        count = max(1, math.ceil(self.limits.sample_s / launch_s))
        if graph:
            count = len(launches) * math.ceil(count / len(launches))
            step = self._graph_step(launches, count)
        else:
            step = self._eager_step(launches, count)
        self._warm(step, count)
        return self._sampled(step, count)

    def _eager_step(self, launches: Sequence[Launch], count: int) -> Callable[[int], None]:
        def step(position: int) -> None:
            for i in range(count):
                launches[(position + i) % len(launches)]()

        return step

    def _graph_step(self, launches: Sequence[Launch], count: int) -> Callable[[int], None]:
        import torch

        cuda: Any = torch.cuda
        # What a kernel sets up on its first launch must not be captured.
        stream = cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for launch in launches:
                launch()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for i in range(count):
                launches[i % len(launches)]()
        return lambda _position: graph.replay()

    def _warm(self, step: Callable[[int], None], count: int) -> None:
        import torch

        end = time.perf_counter() + self.limits.warm_s
        position = 0
        while position == 0 or time.perf_counter() < end:
            step(position)
            position += count
            torch.cuda.synchronize()

    def _sampled(self, step: Callable[[int], None], count: int) -> Burst:
        import torch

        new_event: Any = torch.cuda.Event
        events: list[tuple[Any, Any]] = []
        end = time.perf_counter() + self.limits.burst_s
        position = 0
        # The queue is drained only at the end of a group: the device does not wait for the host between samples.
        while not events or time.perf_counter() < end:
            for _ in range(8):
                first, last = new_event(enable_timing=True), new_event(enable_timing=True)
                first.record()
                step(position)
                last.record()
                position += count
                events.append((first, last))
            torch.cuda.synchronize()
        samples = [first.elapsed_time(last) / 1e3 / count for first, last in events]
        return Burst(statistics.median(samples), len(samples), count)
