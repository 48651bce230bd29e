"""How quiet the host is: fixed work timed before, during and after a calibration, and around every burst on a CPU.

Nothing of a calibration runs in it, so its spread is disturbance, its drift a change of clock or of neighbours. On a
shared host a neighbour makes kernels 10-40 % slower, for tenths of a second to minutes; bursts are chosen by these
readings and never by their own times, so choosing does not bias them.
"""

import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

INTERVAL_S = 30.0  # pause between noise readings
# Readings of a quiet machine vary by about 2 % (spin) and 10 % (read) on the virtual machine this was tried on, those
# under a neighbour are off by 15 % and more.
QUIET_SPIN, QUIET_READ = 1.05, 1.2
_QUIET_QUANTILE = 0.1
_SPIN_ELEMENTS = 32768  # per thread: 128 KiB in and out stay in a core's own cache
_SPIN_REPEATS = 5
_COPY_BYTES = 64 << 20
_READING_REPEATS = 10


class SpinAndRead(NamedTuple):
    """Seconds of the spin and of the read at one moment."""

    spin_s: float
    read_s: float

    def worse(self, other: "SpinAndRead") -> "SpinAndRead":
        return SpinAndRead(*map(max, self, other))


class NoiseReading(NamedTuple):
    """Seconds of each repeat of spin, read and copy, and the load average, at ``time_s`` (Unix)."""

    time_s: float
    spin_s: tuple[float, ...]
    read_s: tuple[float, ...]
    copy_s: tuple[float, ...]
    load_average: float


class NoiseProbe:
    """Times the fixed work on all of torch's CPU threads.

    Spin is an exponential over numbers in the cores' own caches: slowed by what takes a core, its sibling or its clock
    away. Read is a sum over twice the last-level cache, copy a copy of 64 MiB: slowed by what else uses the memory.
    """

    def __init__(self, cache_bytes: int) -> None:
        import torch

        self._numbers = torch.linspace(-1.0, 1.0, _SPIN_ELEMENTS * torch.get_num_threads())
        self._exponentials = torch.zeros_like(self._numbers)
        self._memory = torch.ones(max(2 * cache_bytes, _COPY_BYTES) // 4)
        self._copy = torch.zeros(_COPY_BYTES // 4)

    def quietness(self) -> SpinAndRead:
        """Both in a few milliseconds."""
        import torch

        spins = [_seconds(lambda: torch.exp(self._numbers, out=self._exponentials)) for _ in range(_SPIN_REPEATS)]
        return SpinAndRead(statistics.median(spins), _seconds(self._memory.sum))

    def read(self) -> NoiseReading:
        """A reading for the manifest, about half a second."""
        source = self._memory[: len(self._copy)]
        rounds = [(*self.quietness(), _seconds(lambda: self._copy.copy_(source))) for _ in range(_READING_REPEATS)]
        spins, reads, copies = zip(*rounds, strict=True)
        return NoiseReading(time.time(), spins, reads, copies, os.getloadavg()[0])


class QuietLevels:
    """Spin and read of the quiet machine: the quickest tenth of all readings so far.

    ``version`` grows when they move, so that what was judged by them can be judged again.
    """

    def __init__(self) -> None:
        self.version = 0
        self._moments: list[SpinAndRead] = []
        self._levels = SpinAndRead(0.0, 0.0)

    def add(self, moments: Iterable[SpinAndRead]) -> None:
        before = len(self._moments)
        self._moments += moments
        if before // 16 == len(self._moments) // 16 and before:
            return
        levels = SpinAndRead(*np.quantile(self._moments, _QUIET_QUANTILE, axis=0).tolist())
        if any(abs(new - old) > 1e-3 * new for new, old in zip(levels, self._levels, strict=True)):
            self._levels = levels
            self.version += 1

    def is_quiet(self, moment: SpinAndRead) -> bool:
        spin_s, read_s = self._levels
        return moment.spin_s <= QUIET_SPIN * spin_s and moment.read_s <= QUIET_READ * read_s

    def excess(self, moment: SpinAndRead) -> float:
        """How many times slower the fixed work was than on the quiet machine, at least 1."""
        return max(1.0, *(now / level for now, level in zip(moment, self._levels, strict=True)))


def wait_until_quiet(probe: Callable[[], SpinAndRead], levels: QuietLevels, limit_s: float) -> SpinAndRead:
    """The first reading of a quiet machine, or the last one after ``limit_s``."""
    end = time.perf_counter() + limit_s
    while not levels.is_quiet(moment := probe()) and time.perf_counter() < end:
        time.sleep(0.002)
    return moment


def noise_summary(readings: Sequence[NoiseReading]) -> dict[str, Any]:
    """Figures for the manifest of at least one reading.

    ``p90_over_median`` is over all repeats; ``drift`` is the change of the median from the first to the last third of
    the readings, as a share of the first.
    """
    loads = [reading.load_average for reading in readings]
    return {
        "readings": len(readings),
        "span_s": round(readings[-1].time_s - readings[0].time_s, 1),
        **{kind: _spread([getattr(reading, f"{kind}_s") for reading in readings]) for kind in ("spin", "read", "copy")},
        "load_average": {"median": float(np.median(loads)), "largest": float(np.max(loads))},
    }


def _spread(repeats: Sequence[Sequence[float]]) -> dict[str, float]:
    values = np.asarray(repeats, dtype=np.float64)
    third = max(1, len(values) // 3)
    first, last, median = (float(np.median(part)) for part in (values[:third], values[-third:], values))
    return {
        "median_s": median,
        "p90_over_median": float(np.quantile(values, 0.9)) / median,
        "drift": last / first - 1.0,
    }


def host_facts() -> dict[str, Any]:
    """What the host is: processor, cores, frequency governor ("" when not readable), operating system."""
    return {
        "processor": processor_name(),
        "cores": usable_cores(),
        "governor": _text(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
        "system": f"{platform.system()} {platform.release()}",
    }


def nvidia_smi(*fields: str, units: bool = True) -> list[str]:
    """A line of comma-separated values per GPU; none when the tool is missing or fails."""
    layout = "csv,noheader" if units else "csv,noheader,nounits"
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", f"--format={layout}"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in answer.splitlines() if line.strip()]


def processor_name() -> str:
    """The processor's model as Linux names it, else as Python does."""
    named = re.search(r"^model name\s*:\s*(.+?)\s*$", _text(Path("/proc/cpuinfo")), re.MULTILINE)
    return named[1] if named else platform.processor() or platform.machine()


def usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
