"""Timers on a clock that only launches move, buffer sets, and the gate that waits for a quiet machine."""

from __future__ import annotations

import platform
import resource
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from draftcast.calibration.microbench import device, noise, timer
from draftcast.calibration.microbench.shapes import Point
from draftcast.calibration.microbench.timer import BurstLimits, CpuTimer, CudaTimer
from draftcast.errors import HardwareError
from draftcast.kernels.operators.registry import Launch, operator

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Clock:
    """A clock that stands still but for the launches it makes, of ``seconds`` each."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.order: list[int] = []

    def launches(self, *seconds: float) -> list[Launch]:
        return [lambda number=number, took=took: self._run(number, took) for number, took in enumerate(seconds)]  # type: ignore[misc]

    def _run(self, number: int, took: float) -> None:
        self.order.append(number)
        self.now_ns += round(took * 1e9)


@pytest.fixture(name="clock")
def clock_fixture(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    fake = SimpleNamespace(perf_counter_ns=lambda: clock.now_ns, perf_counter=lambda: clock.now_ns / 1e9)
    monkeypatch.setattr(timer, "time", fake)
    return clock


def test_short_launches_are_repeated_within_a_sample(clock: Clock) -> None:
    burst = CpuTimer(BurstLimits(warm_s=0.001, sample_s=0.0002, burst_s=0.01)).burst(clock.launches(*[10e-6] * 3))
    assert burst.seconds == pytest.approx(10e-6)
    assert burst.launches == 20
    assert burst.samples >= 40


def test_buffer_sets_take_turns(clock: Clock) -> None:
    CpuTimer(BurstLimits(warm_s=0.001, sample_s=0.0002, burst_s=0.01)).burst(clock.launches(*[30e-6] * 5))
    assert clock.order == [number % 5 for number in range(len(clock.order))]
    assert len(clock.order) > 300


def test_a_long_launch_that_sets_nothing_up_is_run_once(clock: Clock) -> None:
    burst = CpuTimer().burst(clock.launches(2.0, 3.0), seen=True)
    assert clock.order == [0]
    assert (burst.seconds, burst.samples, burst.launches) == (2.0, 1, 1)
    CpuTimer().burst(clock.launches(2.0, 3.0))
    assert clock.order == [0, 0, 1]


def test_a_launch_longer_than_a_burst_is_run_twice(clock: Clock) -> None:
    burst = CpuTimer().burst(clock.launches(0.05, 0.06))
    assert clock.order == [0, 1]
    assert (burst.seconds, burst.samples) == (pytest.approx(0.06), 1)


def test_a_short_disturbance_does_not_show(clock: Clock) -> None:
    quick, slow = clock.launches(0.001, 0.5)
    sets = [quick] * 40 + [slow]
    burst = CpuTimer(BurstLimits(warm_s=0.0, burst_s=2.0)).burst(sets)
    assert burst.seconds == pytest.approx(0.001)


def test_warm_up_is_not_timed(clock: Clock) -> None:
    first = iter([0.05])

    def launch() -> None:
        clock.now_ns += round(next(first, 0.001) * 1e9)

    assert CpuTimer().burst([launch]).seconds == pytest.approx(0.001)


@pytest.mark.parametrize(("set_bytes", "sets"), [(1 << 30, 2), (1 << 20, 64), (3 << 20, 22), (100, 512), (0, 512)])
def test_sets_together_exceed_the_cache(set_bytes: int, sets: int) -> None:
    assert timer.sets_needed(set_bytes, 32 << 20) == sets


LINEAR = Point("linear", "bf16", "", "torch", (("m", 3), ("k", 64), ("n", 32)))


def test_sets_are_copies_with_touched_outputs_of_their_own() -> None:
    seen: list[tuple[dict[str, Any], dict[str, Any]]] = []
    real = operator("linear")
    torch_one = real.implementations["torch"]

    def prepare(inputs: Any, outputs: Any) -> Launch:
        seen.append((dict(inputs), {name: value.clone() for name, value in outputs.items()}))
        return torch_one.prepare(inputs, outputs)

    spied = replace(real, implementations={"torch": replace(torch_one, prepare=prepare)})
    found = timer.launches(spied, LINEAR, "cpu", seed=1, cache_bytes=20_000)
    assert len(found) == len(seen) >= 3
    for inputs, outputs in seen[1:]:
        for name, value in inputs.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(value, seen[0][0][name])
                assert value.data_ptr() != seen[0][0][name].data_ptr()
        assert all(not value.any() for value in outputs.values())
    for launch in found:
        launch()


def test_inputs_follow_the_seed() -> None:
    def first_input(seed: int) -> Any:
        taken: list[Any] = []
        real = operator("linear")

        def prepare(inputs: Any, _outputs: Any) -> Launch:
            taken.append(next(value for value in inputs.values() if isinstance(value, torch.Tensor)).float())
            return lambda: None

        implementation = replace(real.implementations["torch"], prepare=prepare)
        timer.launches(replace(real, implementations={"torch": implementation}), LINEAR, "cpu", seed, 0)
        return taken[0]

    assert torch.equal(first_input(1), first_input(1))
    assert not torch.equal(first_input(1), first_input(2))


@pytest.fixture(name="quiet_levels")
def quiet_levels_fixture(monkeypatch: pytest.MonkeyPatch) -> noise.QuietLevels:
    now = iter(np.arange(0.0, 100.0, 0.1))
    monkeypatch.setattr(noise, "time", SimpleNamespace(perf_counter=lambda: float(next(now)), sleep=lambda _s: None))
    levels = noise.QuietLevels()
    levels.add([noise.SpinAndRead(1.0, 1.0)] * 16)
    return levels


def test_it_waits_for_a_quiet_machine(quiet_levels: noise.QuietLevels) -> None:
    readings = [noise.SpinAndRead(1.3, 1.0), noise.SpinAndRead(1.0, 1.5), noise.SpinAndRead(1.01, 1.1)]
    series = iter(readings)
    assert noise.wait_until_quiet(lambda: next(series), quiet_levels, 1.0) == readings[-1]
    assert next(series, None) is None


def test_it_gives_up_waiting(quiet_levels: noise.QuietLevels) -> None:
    readings = [noise.SpinAndRead(2.0, float(number)) for number in range(50)]
    series = iter(readings)
    assert noise.wait_until_quiet(lambda: next(series), quiet_levels, 1.0).read_s == pytest.approx(9.0, abs=1.0)


def test_the_worse_of_two_readings() -> None:
    assert noise.SpinAndRead(1.0, 4.0).worse(noise.SpinAndRead(2.0, 3.0)) == (2.0, 4.0)


def test_noise_summary_by_hand() -> None:
    readings = [
        noise.NoiseReading(100.0 + 30 * i, (1.0, 1.0, 1.0), (3.0, 3.0, 6.0), (level, level, level), load)
        for i, (level, load) in enumerate([(2.0, 0.0), (2.0, 1.0), (2.2, 5.0)])
    ]
    found = noise.noise_summary(readings)
    assert (found["readings"], found["span_s"]) == (3, 60.0)
    assert found["spin"] == {"median_s": 1.0, "p90_over_median": 1.0, "drift": 0.0}
    assert found["read"]["median_s"] == 3.0
    assert found["read"]["p90_over_median"] == 2.0
    assert found["copy"]["median_s"] == 2.0
    assert found["copy"]["drift"] == pytest.approx(0.1)
    assert found["copy"]["p90_over_median"] == pytest.approx(1.1)
    assert found["load_average"] == {"median": 1.0, "largest": 5.0}


def test_a_real_reading_has_positive_times() -> None:
    reading = noise.NoiseProbe(1 << 20).read()
    assert min(*reading.spin_s, *reading.read_s, *reading.copy_s) > 0.0
    assert {"processor", "cores", "governor"} <= noise.host_facts().keys()


def test_ceilings_are_the_best_of_products_and_table() -> None:
    import pandas as pd

    from draftcast.calibration.profile.table import checked_table

    rows = [
        {"operator": "linear", "dtype": "bf16", "m": 10, "k": 10, "n": 10, "seconds": 1e-6},
        {"operator": "linear", "dtype": "fp32", "m": 10, "k": 10, "n": 10, "seconds": 1.0},
        # Comparing token ids is no arithmetic: it sets no peak, though it is the fastest here.
        {"operator": "ngram", "dtype": "int32", "batch": 8, "context": 512, "seconds": 1e-9},
    ]
    table = checked_table(pd.DataFrame(rows).fillna(0))
    rates = {"copy": 5e9, "read": 7e9, "gemm bf16 torch": 1e9, "gemm fp32 torch": 3e9, "gemm fp32 triton": 4e9}
    assert device.ceilings(rates, table, 1 << 20) == {
        "peak_flops": {"bf16": pytest.approx(2e9), "fp32": 4e9},
        "memory_bandwidth_bytes_per_s": 7e9,
    }
    # 600 bytes of bf16 in a microsecond, and no cache that could hold them.
    assert device.ceilings(rates | {"read": 1e8, "copy": 1e8}, table, 100)[
        "memory_bandwidth_bytes_per_s"
    ] == pytest.approx(600e6)


def test_streams_exceed_the_cache_and_run() -> None:
    found = device.stream_launches("cpu", 1 << 20)
    assert found["copy"][0] == 2 * found["read"][0] == 2 * (256 << 20)
    for _, (launch,) in found.values():
        launch()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="knows glibc's allocator only")
def test_freed_memory_is_kept_and_then_returned() -> None:
    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    with timer.freed_memory_kept():
        pass  # what earlier tests freed is returned, and does not serve the next block
    before = resident_bytes()
    with timer.freed_memory_kept():
        torch.ones(1 << 25)  # 128 MiB, freed at once
        assert resident_bytes() - before > 100 << 20
    assert resident_bytes() - before < 50 << 20
    torch.ones(1 << 25)
    assert resident_bytes() - before < 50 << 20, "as it was"


def test_this_processor_is_found() -> None:
    before = torch.get_num_threads()
    found = device.find_device("cpu", 1)
    assert torch.get_num_threads() == found.threads == 1
    assert found.cache_bytes >= 1 << 18
    assert found.memory_bytes >= 1 << 28
    assert found.versions["torch"]
    assert found.identity() != device.find_device("cpu", None).identity() or found.cores == 1
    torch.set_num_threads(before)


def test_a_device_that_computes_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device.is_alive("cpu")

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch, "ones", broken)
    assert not device.is_alive("cpu")


@pytest.mark.parametrize("threads", [0, -1, 10_000])
def test_threads_beyond_the_cores_are_refused(threads: int) -> None:
    with pytest.raises(HardwareError, match="threads = "):
        device.find_device("cpu", threads)


def test_a_gpu_is_taken_for_the_device_that_its_driver_names_or_the_one_that_is_given() -> None:
    gpu = device.Device("cuda", "NVIDIA H100 80GB HBM3", 1, 1, 1, 1)
    assert device.hardware_of(gpu, None).name == "h100-sxm"
    assert device.hardware_of(gpu, "l40s").name == "l40s"


def test_an_unknown_gpu_needs_a_data_sheet() -> None:
    with pytest.raises(HardwareError, match="--hardware"):
        device.hardware_of(device.Device("cuda", "Voodoo 2", 1, 1, 1, 1), None)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_no_cuda_device_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(HardwareError, match="no CUDA device"):
        device.find_device("cuda", None)


@needs_cuda
@pytest.mark.parametrize("graph", [False, True])
def test_cuda_bursts_rotate_and_time_the_device(graph: bool) -> None:
    point = Point("linear", "bf16", "", "torch", (("m", 512), ("k", 4096), ("n", 4096)), graph)
    ready = timer.launches(operator("linear"), point, "cuda", 0, 50 << 20)
    burst = CudaTimer().burst(ready, graph=graph)
    flops = 2.0 * 512 * 4096 * 4096
    assert 1e9 < flops / burst.seconds < 1e16
    assert burst.samples >= 8
