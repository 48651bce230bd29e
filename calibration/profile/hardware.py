"""Datasheet facts of an accelerator: memory, bandwidth, dense peaks, link. Rooflines turn them into time.

One YAML file a device stands in ``hardware/``, each number beside its source; a user's own file of the same form is
loaded by path. Peaks are dense (no structured sparsity): what a matrix multiplication of an LLM can reach at best.
"""

import functools
import os
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter

from draftcast.errors import HardwareError
from draftcast.files import read_text
from draftcast.frozen import OneOf
from draftcast.kernels.model.dtypes import COMPUTE_DTYPE
from draftcast.yaml_text import parse_yaml, validated

_FOLDER = Path(__file__).parents[1] / "hardware"
USUAL_SHARE = 0.8
"""What large bf16 products reach of the data sheet's peak on H100, H200, B300 and RTX PRO 6000 (bundled profiles)."""
_NEEDLESS = re.compile(
    r"nvidia|amd|geforce|tesla|instinct|gpu|sxm\d?|oam|ac|hbm\d?e?|hopper|blackwell|server|workstation|edition|generation"
)
"""Words beside a device's name that make it no other device."""
_SIZE = re.compile(r"(\d+)gi?b?")
ATTENTION_KERNELS = ("flash_attention_2", "flash_attention_3", "separate")

Format = Annotated[str, OneOf("format", ("fp32", "bf16", "fp16", "fp8", "int8", "fp4"))]
Text = Annotated[str, Field(min_length=1)]
Positive = Annotated[float, Field(strict=True, gt=0.0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(strict=True, ge=0.0, allow_inf_nan=False)]


def _with_a_wide_format(peak_flops: dict[str, float]) -> dict[str, float]:
    if not {"bf16", "fp16", "fp32"} & peak_flops.keys():
        raise ValueError("at least one of bf16, fp16, fp32 is needed")
    return peak_flops


class Section:
    """A mapping of a file: validated against the types, unknown keys refused. A record made in code is trusted."""

    __pydantic_config__ = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class HardwareSpec(Section):
    name: Text
    vendor: Text
    memory_bytes: Positive  # what the driver reports as total, less than the nameplate
    memory_bandwidth_bytes_per_s: Positive
    peak_flops: Annotated[dict[Format, Positive], AfterValidator(_with_a_wide_format)]  # dense; of supported dtypes
    link_bandwidth_bytes_per_s: Positive  # to its peers, one direction (NVLink, xGMI, PCIe, UPI)
    link_latency_s: NotNegative  # added by one collective across the link
    board_power_w: NotNegative  # 0: unknown
    sources: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    compute_capability: NotNegative = 0.0  # NVIDIA's, by which engines choose kernels; 0: another vendor's or unknown
    linked_devices: Annotated[int, Field(strict=True, ge=1)] = 8  # that the link joins: a node's, or a rack's
    multiprocessors: Annotated[int, Field(strict=True, ge=0)] = 0  # SMs or compute units; 0: unknown
    cache_bytes: NotNegative = 0.0  # last-level cache (L2); 0: unknown
    ecc_share: Annotated[float, Field(strict=True, gt=0.0, le=1.0)] = 1.0  # that ECC in the memory leaves of its rate
    # What large products reach of the bf16 peak: less where power holds the clock down, more where nothing does
    large_product_share: Positive = USUAL_SHARE
    # What vLLM attends with on the device; whether prompts and decodes share a launch.
    attention_kernel: Annotated[str, OneOf("kernel", ATTENTION_KERNELS)] = "separate"
    nearest_timed: str = ""  # of a device that nobody timed, the timed one most like it, if any: its kernels are taken
    assumed_profile: str = ""  # where none is, the bundled rooflines that hold for it; "": those of its vendor

    @property
    def is_hopper(self) -> bool:
        return self.attention_kernel == "flash_attention_3"

    def ceilings(self, family: str, dtype: str) -> tuple[float, float]:
        """Peak FLOP/s and bytes/s that bound an operator family at a number format.

        Weight-only formats are unpacked and multiplied in 16 bits (MXFP4 where no kernel rounds its inputs), and so is
        fp8 on a device without fp8 matrix units (as vLLM's Marlin kernels do); attention computes in 16 bits whatever
        the KV cache holds (``dtype`` is the cache's). Peaks are those of a board whose large products reach the usual
        share of the data sheet's. Collectives are bound by the link, every other family by the memory, less its ECC.
        """
        memory = self.memory_bandwidth_bytes_per_s * self.ecc_share
        bandwidth = self.link_bandwidth_bytes_per_s if family == "all_reduce" else memory
        if family.startswith("gdn"):
            dtype = "bf16"  # products with the state run in 16 bits, whatever it is kept in
        attends = family.startswith(("attention", "mla", "dsa")) and dtype != "fp32"
        if dtype == "mxfp4" and "fp4" in self.peak_flops and self.compute_capability < 12:
            dtype = "fp8"  # its inputs are rounded to 8 bits: on Blackwell's servers (FlashInfer) and on MI355X
        if dtype == "mxfp8" and self.vendor == "NVIDIA" and "fp4" not in self.peak_flops:
            dtype = "bf16"  # units that scale groups came with those for fp4; before them vLLM's Marlin expands it
        sustained = self.large_product_share / USUAL_SHARE
        computed = ("bf16" if attends else COMPUTE_DTYPE.get(dtype, dtype), "bf16", "fp16", "fp32")
        peak = next(self.peak_flops[name] for name in computed if name in self.peak_flops)
        return float(peak) * sustained, float(bandwidth)


@functools.cache
def _bundled() -> dict[str, HardwareSpec]:
    """By lower-case name or alias."""
    devices = map(_read, sorted(_FOLDER.glob("*.yaml")))
    return {key.lower(): spec for spec in devices for key in (spec.name, *spec.aliases)}


def hardware_names() -> list[str]:
    return sorted({spec.name for spec in _bundled().values()})


def recognised(name: str) -> HardwareSpec | None:
    """The bundled device of a name or alias, in any case, as people and drivers write it: "NVIDIA H100 80GB HBM3".

    Maker, socket and memory may be named or left out. None where no device is called so, or none has so much memory.
    """
    words = [word for word in re.split(r"[\s_-]+", name.lower()) if word and not _NEEDLESS.fullmatch(word)]
    sizes = [match[1] for word in words if (match := _SIZE.fullmatch(word))]
    bare = "-".join(word for word in words if not _SIZE.fullmatch(word))
    bundled = _bundled()
    if named := [key for key in (name.lower(), *(f"{bare}-{size}g" for size in sizes)) if key in bundled]:
        return bundled[named[0]]
    device = bundled.get(bare)
    fits = device is not None and all(0.9 < float(size) * 2**30 / device.memory_bytes < 1.1 for size in sizes)
    return device if fits else None


def load_hardware(name_or_path: str | Path) -> HardwareSpec:
    """Device of a bundled name (`recognised`), else of a YAML file. Raises HardwareError: neither, or a bad file."""
    text = str(name_or_path)
    if (device := recognised(text)) is not None:
        return device
    path = Path(os.path.expanduser(name_or_path))
    if not os.path.exists(path):
        names = ", ".join(hardware_names())
        message = f"unknown device and no such file; bundled: {names}; or give the path of a YAML file"
        raise HardwareError(message, key="hardware", value=text)
    return _read(path)


def _read(path: Path) -> HardwareSpec:
    values = parse_yaml(read_text(path, HardwareError), str(path), HardwareError)
    if not isinstance(values, dict):
        raise HardwareError("a mapping of keys is needed", file=str(path))
    names = [field.name for field in fields(HardwareSpec)]
    if unknown := [key for key in values if key not in names]:
        raise HardwareError(f"unknown key; known: {', '.join(names)}", file=str(path), key=unknown[0])
    return validated(TypeAdapter(HardwareSpec), values, str(path), HardwareError)
