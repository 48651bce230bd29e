"""The device to be timed: its name, caches and memory, and what the manifest says about it."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from draftcast.calibration.microbench.noise import nvidia_smi, processor_name, usable_cores
from draftcast.calibration.profile.hardware import HardwareSpec, load_hardware
from draftcast.errors import HardwareError
from draftcast.kernels.extras import require

KINDS = ("cpu", "cuda")
# Where neither /sys nor the driver tells: larger than the last-level cache of most.
_ASSUMED_CACHE_BYTES = 64 << 20
_LIBRARIES = ("draftcast", "torch", "triton", "numpy")


@dataclass(frozen=True)
class Device:
    """One device."""

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
        same = ("cores", "threads", "driver", "versions")
        return {"device": self.name, **{name: getattr(self, name) for name in same}}


def find_device(kind: str, threads: int | None) -> Device:
    """The device of a kind; sets the number of torch's CPU threads (all usable cores when None).

    Raises:
        InputError: torch is not installed.
        HardwareError: unknown kind, no such device, a bad number of threads, a GPU whose Triton kernels would run in
            the interpreter.
    """
    require("calibrate", "torch", place=f"--device {kind}")
    import torch

    if kind not in KINDS:
        raise HardwareError(f"unknown kind of device; known: {', '.join(KINDS)}", key="device", value=kind)
    cores = usable_cores()
    if threads is not None and not 1 <= threads <= cores:
        raise HardwareError(f"1 to {cores} (the usable cores) is needed", key="threads", value=threads)
    torch.set_num_threads(threads or cores)
    shared: dict[str, Any] = {"kind": kind, "cores": cores, "threads": threads or cores, "versions": _versions(torch)}
    if kind == "cpu":
        return Device(
            name=processor_name(),
            cache_bytes=_cpu_cache_bytes(),
            memory_bytes=_cpu_memory_bytes(),
            clocks=_cpu_clocks(),
            **shared,
        )
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise HardwareError("interpreted kernels have no time worth keeping; unset it", key="TRITON_INTERPRET", value=1)
    if not torch.cuda.is_available():
        raise HardwareError("torch finds no CUDA device here", key="device", value=kind)
    properties: Any = torch.cuda.get_device_properties(0)
    facts = _nvidia_smi()
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

    Raises:
        HardwareError: unknown name or file, or a GPU that is not bundled and not named.
    """
    if named is not None:
        return load_hardware(named)
    if device.kind == "cpu":
        return load_hardware("cpu")
    # "NVIDIA H100 80GB HBM3": h100-80gb-hbm3, h100-80gb, h100; the longest that is known.
    words = re.sub("^(nvidia )?(geforce )?", "", device.name.lower()).split()
    for length in range(len(words), 0, -1):
        with contextlib.suppress(HardwareError):
            return load_hardware("-".join(words[:length]))
    raise HardwareError(
        "is not a bundled device; give --hardware NAME or the path of a YAML file", key="device", value=device.name
    )


def _versions(torch: Any) -> dict[str, str]:
    found = {"cuda": str(torch.version.cuda)} if torch.version.cuda else {}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _cpu_cache_bytes(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Size of the highest cache level that /sys names."""
    sizes: dict[int, int] = {}
    for index in folder.glob("index*"):
        try:
            level = int((index / "level").read_text())
            found = re.fullmatch(r"(\d+)([KMG]?)", (index / "size").read_text().strip())
        except (OSError, ValueError):
            continue
        if found is not None:
            factor = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[found[2]]
            sizes[level] = max(sizes.get(level, 0), int(found[1]) * factor)
    return sizes[max(sizes)] if sizes else _ASSUMED_CACHE_BYTES


def _cpu_memory_bytes() -> int:
    """Physical memory, or the control group's limit when that is lower."""
    total = int(psutil.virtual_memory().total)
    try:
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):
        return total


def _cpu_clocks() -> dict[str, float]:
    rates = [core.current for core in psutil.cpu_freq(percpu=True)]
    return {"cpu_mhz": max(rates)} if rates else {}


def _nvidia_smi() -> dict[str, str]:
    """Driver and clocks of the first GPU; empty when the tool is missing or answers otherwise."""
    names = ("driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "power.limit")
    values = [value.strip() for line in nvidia_smi(*names, units=False)[:1] for value in line.split(",")]
    return dict(zip(names, values, strict=True)) if len(values) == len(names) else {}
