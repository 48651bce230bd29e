"""A measured profile as a folder: ``table.parquet``, ``manifest.json`` (its origin), ``profile.yaml`` (the fit).

The manifest holds the checksum of the table, so a truncated, edited or swapped table is refused by name. It also holds
the device, so that a table made elsewhere is not taken for this one. A whole-step fit has no table: its folder holds
``profile.yaml`` and the manifest with that file's checksum.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from draftcast.calibration.profile.hardware import HardwareSpec, Positive
from draftcast.calibration.yaml_text import validated
from draftcast.errors import HardwareError
from draftcast.files import is_inside, read_bytes, read_json, write_text

MANIFEST, TABLE, FIT = "manifest.json", "table.parquet", "profile.yaml"


class Ceilings(BaseModel):
    """Rates measured on the device itself; they replace the data sheet's where that describes another machine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    memory_bandwidth_bytes_per_s: Positive | None = None
    peak_flops: dict[str, Positive] = Field(default_factory=dict)

    def applied(self, hardware: HardwareSpec) -> HardwareSpec:
        """``hardware`` with the measured rates in place of the data sheet's."""
        bandwidth = self.memory_bandwidth_bytes_per_s
        if bandwidth is not None:  # ECC was on when it was measured
            hardware = dataclasses.replace(hardware, memory_bandwidth_bytes_per_s=bandwidth, inline_ecc=False)
        return dataclasses.replace(hardware, peak_flops={**hardware.peak_flops, **self.peak_flops})


class Manifest(BaseModel):
    """Where a table comes from.

    Attributes:
        name: the profile's name.
        hardware: name of the device in ``calibration/hardware`` (or a path).
        device: what the driver or the operating system calls it.
        driver, clocks, versions: as reported; empty where a source does not say.
        date: when the times were taken or imported (ISO).
        command: what repeats it.
        source, licence: origin of the figures.
        noise: the host's noise during the run, as `draftcast.calibration.microbench.noise` records it.
        ceilings: measured rates, if any.
        left_out: points that were wanted and not measured, with the reason.
        sources: checksum of every file an import read.
        files: SHA-256 of every data file of the folder.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    name: str
    hardware: str
    device: str
    driver: str = ""
    clocks: dict[str, float] = Field(default_factory=dict)
    versions: dict[str, str] = Field(default_factory=dict)
    date: str
    command: str
    source: str
    licence: str = ""
    noise: dict[str, Any] = Field(default_factory=dict)
    ceilings: Ceilings = Ceilings()
    left_out: dict[str, int] = Field(default_factory=dict)
    sources: dict[str, str] = Field(default_factory=dict)
    files: dict[str, str] = Field(default_factory=dict)

    @property
    def has_table(self) -> bool:
        """Whether the folder holds a table; otherwise a whole-step fit alone."""
        return TABLE in self.files


MANIFEST_RECORD = TypeAdapter(Manifest)


def sha256(path: Path) -> str:
    """SHA-256 of a file, hexadecimal. Raises HardwareError when it cannot be read."""
    return hashlib.sha256(read_bytes(path, HardwareError)).hexdigest()


def write_manifest(folder: Path, **fields: Any) -> Manifest:
    """Write the manifest of the table, or else of the fit alone, that stands in ``folder``. Fields: see `Manifest`.

    ``files`` is computed: of a folder with a table it names the table only: the fit is made from it.

    Raises:
        HardwareError: a field missing, unknown or of the wrong kind; neither table nor fit in the folder.
    """
    data = TABLE if (folder / TABLE).exists() or not (folder / FIT).exists() else FIT
    path = folder / MANIFEST
    manifest = validated(MANIFEST_RECORD, {**fields, "files": {data: sha256(folder / data)}}, str(path), HardwareError)
    write_text(path, json.dumps(manifest.model_dump(), indent=1, sort_keys=True) + "\n", HardwareError)
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a profile folder, its data files checked against their checksums.

    Raises:
        HardwareError: no or no valid manifest; a data file missing or changed.
    """
    path = folder / MANIFEST
    manifest = validated(MANIFEST_RECORD, read_json(path, HardwareError), str(path), HardwareError)
    if TABLE not in manifest.files and FIT not in manifest.files:
        raise HardwareError("required, but missing", file=str(path), key=f"files.{TABLE}")
    for name, wanted in manifest.files.items():
        if not is_inside(name):
            raise HardwareError("must be a file of this folder", file=str(path), key="files", value=name)
        found = sha256(folder / name)
        if found != wanted:
            raise HardwareError(
                f"is not the file its manifest describes: SHA-256 {found[:12]}..., expected {wanted[:12]}...",
                file=str(folder / name),
            )
    return manifest
