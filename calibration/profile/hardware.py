"""Datasheet facts of an accelerator: memory, bandwidth, dense peaks, link. Rooflines turn them into time.

One YAML file a device stands in ``hardware/``, each number beside its source; a user's own file of the same form is
loaded by path. Peaks are dense (no structured sparsity): what a matrix multiplication of an LLM can reach at best.
"""

from __future__ import annotations

import functools
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftcast.calibration.yaml_text import parse_yaml
from draftcast.errors import HardwareError
from draftcast.files import read_text
from draftcast.kernels.model.dtypes import COMPUTE_DTYPE

_FOLDER = Path(__file__).parents[1] / "hardware"
DTYPES = ("fp32", "bf16", "fp16", "fp8", "int4")
_POSITIVE = ("memory_bytes", "memory_bandwidth_bytes_per_s", "link_bandwidth_bytes_per_s")
_NOT_NEGATIVE = ("link_latency_s", "board_power_w")
_KEYS = ("name", "vendor", "aliases", "peak_flops", "sources", *_POSITIVE, *_NOT_NEGATIVE)


@dataclass(frozen=True)
class HardwareSpec:
    """One device.

    Raises:
        HardwareError: a number that is missing, not finite or out of range; the key is named.
    """

    name: str
    vendor: str
    memory_bytes: float  # what the driver reports as total, less than the nameplate
    memory_bandwidth_bytes_per_s: float
    peak_flops: dict[str, float]  # dense, by dtype; a dtype the device does not support is absent
    link_bandwidth_bytes_per_s: float  # to its peers, one direction (NVLink, xGMI, PCIe, UPI)
    link_latency_s: float  # added by one collective across the link
    board_power_w: float  # 0: unknown
    sources: tuple[str, ...]

    def __post_init__(self) -> None:
        for key in (*_POSITIVE, *_NOT_NEGATIVE):
            _check_number(self.name, key, getattr(self, key), allow_zero=key in _NOT_NEGATIVE)
        if not {"bf16", "fp16", "fp32"} & self.peak_flops.keys():
            raise HardwareError("at least one of bf16, fp16, fp32 is needed", file=self.name, key="peak_flops")
        for dtype, flops in self.peak_flops.items():
            if dtype not in DTYPES:
                allowed = f"unknown dtype; known: {', '.join(DTYPES)}"
                raise HardwareError(allowed, file=self.name, key=f"peak_flops.{dtype}", value=flops)
            _check_number(self.name, f"peak_flops.{dtype}", flops, allow_zero=False)

    def ceilings(self, family: str, dtype: str) -> tuple[float, float]:
        """Peak FLOP/s and bytes/s that bound an operator family at a number format.

        Weight-only formats are unpacked and multiplied in 16 bits, and so is fp8 on a device without fp8 matrix units
        (as vLLM's Marlin kernels do); attention computes in 16 bits whatever the KV cache holds (``dtype`` is the
        cache's). Collectives are bound by the link, every other family by the memory.

        Raises:
            HardwareError: the device has no peak for any of these.
        """
        bandwidth = self.link_bandwidth_bytes_per_s if family == "all_reduce" else self.memory_bandwidth_bytes_per_s
        attends = family.startswith("attention") and dtype != "fp32"
        for candidate in ("bf16" if attends else COMPUTE_DTYPE.get(dtype, dtype), "bf16", "fp16", "fp32"):
            if candidate in self.peak_flops:
                return float(self.peak_flops[candidate]), float(bandwidth)
        raise HardwareError(f"{self.name} has no peak FLOP/s for it", key="dtype", value=dtype)


def _check_number(file: str, key: str, value: object, *, allow_zero: bool) -> None:
    allowed = "a finite number >= 0 is needed" if allow_zero else "a finite number > 0 is needed"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise HardwareError(allowed, file=file, key=key, value=value)
    if not 0 <= value <= sys.float_info.max or (value == 0 and not allow_zero):
        raise HardwareError(allowed, file=file, key=key, value=value)


@functools.cache
def _bundled() -> dict[str, HardwareSpec]:
    """Lower-case name or alias -> device."""
    found: dict[str, HardwareSpec] = {}
    for path in sorted(_FOLDER.glob("*.yaml")):
        spec, aliases = _read(path)
        for key in (spec.name, *aliases):
            if key.lower() in found:
                raise HardwareError("claimed by two bundled devices", file=str(path), key="aliases", value=key)
            found[key.lower()] = spec
    return found


def hardware_names() -> list[str]:
    """Names of the bundled devices."""
    return sorted({spec.name for spec in _bundled().values()})


def is_bundled_device(name: str) -> bool:
    """Whether ``name`` is a bundled device's name or alias, in any case."""
    return name.lower() in _bundled()


def load_hardware(name_or_path: str | Path) -> HardwareSpec:
    """Device by bundled name or alias (any case), else by the path of a YAML file.

    Raises:
        HardwareError: nothing of that name (lists the bundled ones), or a bad file.
    """
    text = str(name_or_path)
    spec = _bundled().get(text.lower())
    if spec is not None:
        return spec
    path = Path(os.path.expanduser(name_or_path))
    if not os.path.exists(path):
        raise HardwareError(
            f"unknown device and no such file; bundled: {', '.join(hardware_names())}; or give the path of a YAML file",
            key="hardware",
            value=text,
        )
    return _read(path)[0]


def _read(path: Path) -> tuple[HardwareSpec, list[str]]:
    """(device, aliases) of one file."""
    file = str(path)
    values = parse_yaml(read_text(path, HardwareError), file, HardwareError)
    if not isinstance(values, dict):
        raise HardwareError("a mapping of keys is needed", file=file)
    for key in values:
        if key not in _KEYS:
            raise HardwareError(f"unknown key; known: {', '.join(_KEYS)}", file=file, key=str(key))
    for key in _KEYS:
        if key not in values and key != "aliases":
            raise HardwareError("missing", file=file, key=key)
    for key in ("name", "vendor"):
        if not isinstance(values[key], str) or not values[key]:
            raise HardwareError("a text is needed", file=file, key=key, value=values[key])
    for key in (*_POSITIVE, *_NOT_NEGATIVE):
        _check_number(file, key, values[key], allow_zero=key in _NOT_NEGATIVE)
    peaks = values["peak_flops"]
    if not isinstance(peaks, dict):
        raise HardwareError("a mapping from dtype to FLOP/s is needed", file=file, key="peak_flops", value=peaks)
    aliases = _texts(file, "aliases", values.get("aliases", []))
    return _build(values, peaks, _texts(file, "sources", values["sources"])), aliases


def _texts(file: str, key: str, value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise HardwareError("a list of texts is needed", file=file, key=key, value=value)
    return value


def _build(values: dict[str, Any], peaks: dict[str, float], sources: list[str]) -> HardwareSpec:
    numbers = {key: float(values[key]) for key in (*_POSITIVE, *_NOT_NEGATIVE)}
    return HardwareSpec(
        name=values["name"], vendor=values["vendor"], peak_flops=peaks, sources=tuple(sources), **numbers
    )
