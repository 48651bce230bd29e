"""The device to be timed: its name, caches, memory and measured limits, and what the manifest says about it."""

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import pandas as pd
import psutil

from draftcast.calibration.microbench.noise import nvidia_smi, processor_name, usable_cores
from draftcast.calibration.profile.hardware import HardwareSpec, load_hardware, recognised
from draftcast.calibration.profile.measured import parts_of
from draftcast.errors import HardwareError
from draftcast.files import picked
from draftcast.kernels.extras import require
from draftcast.kernels.model.dtypes import WEIGHT_BYTES
from draftcast.kernels.operators.registry import Launch

_ASSUMED_CACHE_BYTES = 64 << 20  # where neither /sys nor the driver tells: larger than the last-level cache of most


@dataclass(frozen=True)
class Device:
    kind: str  # cpu or cuda
    name: str  # as the operating system or the driver calls it
    cores: int  # of the host, usable by this process
    threads: int  # that torch uses on the CPU
    cache_bytes: int  # last-level cache
    memory_bytes: int  # of the device, in all
    driver: str = ""  # version, "" for a CPU
    clocks: dict[str, float] = field(default_factory=dict)  # MHz by name, as reported when asked for
    versions: dict[str, str] = field(default_factory=dict)  # of the libraries that decide what runs

    def identity(self) -> dict[str, Any]:
        """What must be the same for two runs' times to belong together."""
        return {"device": self.name, **picked(self, "cores threads driver versions")}


def find_device(kind: str, threads: int | None) -> Device:
    """The device of a kind, cpu or cuda; sets the number of torch's CPU threads (all usable cores when None).

    Raises InputError: torch is not installed; HardwareError: no such device, a bad number of threads, a GPU whose
    Triton kernels would run in the interpreter.
    """
    require("calibrate", "torch", place=f"--device {kind}")
    import torch

    cores = usable_cores()
    if threads is not None and not 1 <= threads <= cores:
        raise HardwareError(f"1 to {cores} (the usable cores) is needed", key="threads", value=threads)
    torch.set_num_threads(threads or cores)
    shared: dict[str, Any] = {"kind": kind, "cores": cores, "threads": threads or cores, "versions": _versions(torch)}
    if kind == "cpu":
        rates = [core.current for core in psutil.cpu_freq(percpu=True)]
        shared |= {"cache_bytes": _cpu_cache_bytes(), "memory_bytes": _cpu_memory_bytes()}
        return Device(name=processor_name(), clocks={"cpu_mhz": max(rates)} if rates else {}, **shared)
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise HardwareError("interpreted kernels have no time worth keeping; unset it", key="TRITON_INTERPRET", value=1)
    if not torch.cuda.is_available():
        raise HardwareError("torch finds no CUDA device here", key="device", value=kind)
    properties: Any = torch.cuda.get_device_properties(0)
    names = ("driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "power.limit")
    values = [value.strip() for line in nvidia_smi(*names, units=False)[:1] for value in line.split(",")]
    facts = dict(zip(names, values, strict=True)) if len(values) == len(names) else {}
    return Device(
        name=properties.name,
        cache_bytes=int(getattr(properties, "L2_cache_size", 0)) or _ASSUMED_CACHE_BYTES,
        memory_bytes=int(properties.total_memory),
        driver=str(facts.pop("driver_version", "")),
        clocks={name: float(value) for name, value in facts.items() if value.replace(".", "", 1).isdigit()},
        **shared,
    )


def is_alive(kind: str) -> bool:
    """Whether the device still computes: after some errors a GPU fails everything this process asks of it."""
    import torch

    try:
        return int((torch.ones(2, device=kind) + 1).sum()) == 4
    except RuntimeError:
        return False


def hardware_of(device: Device, named: str | None) -> HardwareSpec:
    """Data sheet of the device: the given one, else the bundled one it is recognised as.

    Raises HardwareError: unknown name or file, or a GPU that is not bundled and not named.
    """
    if named is not None or device.kind == "cpu":
        return load_hardware("cpu" if named is None else named)
    if (hardware := recognised(device.name)) is None:
        message = "is not a bundled device; give --hardware NAME or the path of a YAML file"
        raise HardwareError(message, key="device", value=device.name)
    return hardware


def _versions(torch: Any) -> dict[str, str]:
    versions = {"cuda": str(torch.version.cuda)} if torch.version.cuda else {}
    for name in ("draftcast", "torch", "triton", "numpy"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def _cpu_cache_bytes() -> int:
    """Size of the highest cache level that /sys names, of several the largest."""
    sizes = [(0, _ASSUMED_CACHE_BYTES)]  # by level
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        with contextlib.suppress(OSError, ValueError):
            level = int((index / "level").read_text())
            if size := re.fullmatch(r"(\d+)([KMG]?)", (index / "size").read_text().strip()):
                sizes.append((level, int(size[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[size[2]]))
    return max(sizes)[1]


def _cpu_memory_bytes() -> int:
    """Physical memory, or the control group's limit when that is lower."""
    total = int(psutil.virtual_memory().total)
    try:
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):
        return total


_LEAST_COPY_BYTES = 256 << 20


def stream_launches(device: str, cache_bytes: int) -> dict[str, tuple[int, list[Launch]]]:
    """Name -> (bytes moved by a launch, launches) of a copy and of a sum over memory well beyond the cache."""
    import torch

    size = max(4 * cache_bytes, _LEAST_COPY_BYTES)
    source = torch.ones(size // 4, device=device)
    target = torch.zeros_like(source)
    total = torch.zeros((), device=device)
    return {
        "copy": (2 * size, [lambda: target.copy_(source)]),
        "read": (size, [lambda: torch.sum(source, dim=0, out=total)]),
    }


def ceilings(rates: Mapping[str, float], table: pd.DataFrame, cache_bytes: int) -> dict[str, Any]:
    """The manifest's ``ceilings``.

    ``rates``: measured bytes a second of ``copy`` and ``read``, FLOP/s of ``gemm <dtype> <implementation>``. ``table``:
    the measured points; those that move more than twice ``cache_bytes`` count for the memory as well.
    """
    peaks: dict[str, float] = {}
    for name, rate in rates.items():
        if name.startswith("gemm "):
            dtype = name.split()[1]
            peaks[dtype] = max(peaks.get(dtype, 0.0), rate)
    bandwidth = max((rate for name, rate in rates.items() if name in ("copy", "read")), default=0.0)
    # A search over token ids computes nothing that a peak rate speaks of.
    for part, rows in parts_of(table[table["dtype"].isin(list(WEIGHT_BYTES))]):
        work, seconds = part.work_of(rows), rows["seconds"].to_numpy(float)
        peaks[part.dtype] = max(peaks.get(part.dtype, 0.0), float((work.flops / seconds).max()))
        if part.operator != "all_reduce":  # bound by the link
            beyond_cache = work.bytes > 2.0 * cache_bytes
            bandwidth = max(bandwidth, float((work.bytes / seconds).max(initial=0.0, where=beyond_cache)))
    measured: dict[str, Any] = {"peak_flops": {dtype: rate for dtype, rate in peaks.items() if rate > 0.0}}
    return measured | ({"memory_bandwidth_bytes_per_s": bandwidth} if bandwidth else {})
