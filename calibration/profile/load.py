"""A profile's folder and reading it: a YAML file or a measured folder in, `RooflineProfile` or `AffineProfile` out.

A folder holds ``table.parquet``, ``manifest.json`` (its origin) and ``profile.yaml`` (the fit), and may hold tables of
kernels that one engine alone has, ``sglang.parquet``, and ``verify.parquet``, attention over several queries a sequence
(`MeasuredTimes.verify`). The manifest holds the device and the checksums of the tables, or of the fit where there is no
table. Every fault is a one-line `HardwareError`.
"""

import dataclasses
import functools
import hashlib
import json
import os
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from draftcast.calibration.profile.hardware import HardwareSpec, Positive, load_hardware
from draftcast.calibration.profile.measured import MeasuredTimes
from draftcast.calibration.profile.spec import AffineProfile, HardwareProfile, RooflineProfile
from draftcast.errors import HardwareError
from draftcast.files import is_inside, read_bytes, read_json, read_text, write_text
from draftcast.yaml_text import parse_yaml, validated

MANIFEST, TABLE, FIT, VERIFY = "manifest.json", "table.parquet", "profile.yaml", "verify.parquet"
ENGINE_TABLE = "{}.parquet"  # of kernels that one engine alone has, beside the table that holds for all


class Ceilings(BaseModel):
    """Rates measured on the device itself; they replace the data sheet's where that describes another machine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    memory_bandwidth_bytes_per_s: Positive | None = None
    peak_flops: dict[str, Positive] = Field(default_factory=dict)

    def applied(self, hardware: HardwareSpec) -> HardwareSpec:
        """``hardware`` with the measured rates in place of the data sheet's."""
        bandwidth = self.memory_bandwidth_bytes_per_s
        if bandwidth is not None:  # ECC was on when it was measured
            hardware = dataclasses.replace(hardware, memory_bandwidth_bytes_per_s=bandwidth, ecc_share=1.0)
        return dataclasses.replace(hardware, peak_flops={**hardware.peak_flops, **self.peak_flops})


class ProfileManifest(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    name: str  # the profile's
    hardware: str  # name of the device in ``calibration/hardware`` (or a path)
    device: str  # what the driver or the operating system calls it
    driver: str = ""  # as reported, like clocks and versions; empty where a source does not say
    clocks: dict[str, float] = Field(default_factory=dict)
    versions: dict[str, str] = Field(default_factory=dict)
    date: str  # when the times were taken or imported (ISO)
    command: str  # what repeats it
    source: str
    licence: str = ""
    noise: dict[str, Any] = Field(default_factory=dict)  # of the host, see `draftcast.calibration.microbench.noise`
    ceilings: Ceilings = Ceilings()  # measured rates, if any
    left_out: dict[str, int] = Field(default_factory=dict)  # points that were wanted and not measured, by reason
    sources: dict[str, str] = Field(default_factory=dict)  # checksum of every file an import read
    files: dict[str, str] = Field(default_factory=dict)  # SHA-256 of every data file of the folder

    @property
    def has_table(self) -> bool:
        """Whether the folder holds a table; otherwise a whole-step fit alone."""
        return TABLE in self.files


_MANIFEST = TypeAdapter(ProfileManifest)


def sha256(path: Path) -> str:
    """SHA-256 of a file, hexadecimal. Raises HardwareError when it cannot be read."""
    return hashlib.sha256(read_bytes(path, HardwareError)).hexdigest()


def write_manifest(folder: Path, **fields: Any) -> ProfileManifest:
    """Write the manifest of the table, or else of the fit alone, that stands in ``folder``. Fields: `ProfileManifest`.

    Raises HardwareError: a field missing, unknown or of the wrong kind; neither table nor fit in the folder.
    """
    data = TABLE if (folder / TABLE).exists() or not (folder / FIT).exists() else FIT
    path = folder / MANIFEST
    tables = {file.name for file in folder.glob(ENGINE_TABLE.format("*"))} if data == TABLE else set()
    checksums = {name: sha256(folder / name) for name in sorted({data} | tables)}
    manifest = validated(_MANIFEST, {**fields, "files": checksums}, str(path), HardwareError)
    write_text(path, json.dumps(manifest.model_dump(), indent=1, sort_keys=True) + "\n", HardwareError)
    return manifest


def read_manifest(folder: Path) -> ProfileManifest:
    """The manifest of a profile folder, checked against its files. Raises HardwareError: not valid, a file changed."""
    path = folder / MANIFEST
    manifest = validated(_MANIFEST, read_json(path, HardwareError), str(path), HardwareError)
    if TABLE not in manifest.files and FIT not in manifest.files:
        raise HardwareError("required, but missing", file=str(path), key=f"files.{TABLE}")
    for name, expected in manifest.files.items():
        if not is_inside(name):
            raise HardwareError("must be a file of this folder", file=str(path), key="files", value=name)
        actual = sha256(folder / name)
        if actual != expected:
            message = f"is not the file its manifest describes: SHA-256 {actual[:12]}..., expected {expected[:12]}..."
            raise HardwareError(message, file=str(folder / name))
    return manifest


PROFILE_FOLDER = Path(__file__).parents[1] / "profiles"
_KINDS: dict[str, TypeAdapter[Any]] = {"roofline": TypeAdapter(RooflineProfile), "affine": TypeAdapter(AffineProfile)}


def profile_names() -> tuple[str, ...]:
    files = {path.stem for path in PROFILE_FOLDER.glob("*.yaml")}
    return tuple(sorted(files | {path.parent.name for path in PROFILE_FOLDER.glob(f"*/{MANIFEST}")}))


def load_profile(name_or_path: str | Path | None, hardware: HardwareSpec) -> HardwareProfile:
    """The profile called ``name_or_path``: a bundled name, a YAML file or a folder that `calibrate` wrote.

    None takes the bundled profile measured on the device, or that of the timed device most like it, with the peaks of
    this one (`RooflineProfile.stretched_to`), or assumed efficiencies where none is like it.

    Raises HardwareError: unknown name, unreadable file, unknown or missing key, value out of range, a profile made for
    another device, a table that is not the one its manifest describes.
    """
    path = find_profile(usual_profile(hardware) if name_or_path is None else name_or_path)
    if not path.is_dir():
        return _load_file(path, hardware)
    manifest = read_manifest(path)
    if manifest.has_table and manifest.hardware == hardware.nearest_timed:
        timed = load_profile(path, load_hardware(manifest.hardware))
        assert isinstance(timed, RooflineProfile)
        return timed.stretched_to(hardware)
    profile = _load_file(path / FIT, hardware)
    # Rooflines of a folder extend its table; a whole-step fit has none.
    if isinstance(profile, AffineProfile) == manifest.has_table:
        beside, allowed = ("beside", "roofline") if manifest.has_table else ("without", "affine")
        raise HardwareError(f"must be {allowed} {beside} a table", file=str(path / FIT), key="kind", value=profile.kind)
    if isinstance(profile, AffineProfile):
        return profile
    verify = path / VERIFY if VERIFY in manifest.files else None
    tables = [name for name in manifest.files if name not in (FIT, VERIFY)]
    times = {Path(name).stem: MeasuredTimes(path / name, manifest.files[name], verify=verify) for name in tables}
    device, measured = manifest.ceilings.applied(hardware), times.pop(Path(TABLE).stem)
    return dataclasses.replace(profile, hardware=device, measured=measured, of_engine=times)


def has_profile(hardware: HardwareSpec) -> bool:
    return (PROFILE_FOLDER / hardware.name / MANIFEST).is_file()


@functools.cache
def profiles_of(device: str) -> tuple[str, ...]:
    return tuple(name for name in profile_names() if read_top(find_profile(name)).get("hardware") == device)


def assumed_profile(hardware: HardwareSpec) -> str:
    """Name of the assumed efficiencies; AMD's kernels reach other shares."""
    name = hardware.assumed_profile or ("default-amd" if hardware.vendor == "AMD" else "default")
    allowed = sorted(path.stem for path in PROFILE_FOLDER.glob("default*.yaml"))
    if name not in allowed:
        message = f"must be assumed efficiencies: {', '.join(allowed)}; set in the file of device {hardware.name}"
        raise HardwareError(message, key="assumed_profile", value=name)
    return name


def usual_profile(hardware: HardwareSpec) -> str:
    """Name of the profile that a scenario takes which names none."""
    if has_profile(hardware):
        return hardware.name
    nearest = hardware.nearest_timed
    if nearest and not (PROFILE_FOLDER / nearest / MANIFEST).is_file():
        names = ", ".join(name for name in profile_names() if (PROFILE_FOLDER / name / TABLE).is_file())
        message = f"must be a timed device: {names}; set in the file of device {hardware.name}"
        raise HardwareError(message, key="nearest_timed", value=nearest)
    return nearest or assumed_profile(hardware)


def _load_file(path: Path, hardware: HardwareSpec) -> HardwareProfile:
    file, raw = str(path), read_top(path)
    kind, device = raw.get("kind"), raw.get("hardware")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise HardwareError(f"must be one of {', '.join(_KINDS)}", file=file, key="kind", value=kind)
    if device is not None and device != hardware.name and not (device == "any" and kind == "roofline"):
        message = f"the profile was made for this device, the scenario runs on {hardware.name}"
        raise HardwareError(message, file=file, key="hardware", value=device)
    for key in {"measured", "of_engine", "timed_on"} & raw.keys():  # fields of the record that no file sets
        raise HardwareError("unknown key", file=file, key=key, value=raw[key])
    # In profiles of an earlier version; ignored.
    if kind == "affine":
        raw.pop("core_speed", None)
    elif isinstance(raw.get("launch"), dict):
        raw["launch"].pop("kernel_s", None)
    if device is not None:
        raw["hardware"] = hardware
    profile: HardwareProfile = validated(_KINDS[kind], raw, file, HardwareError)
    return profile


def read_top(path: Path) -> dict[str, Any]:
    """The mapping in a profile's YAML file or folder, not validated yet. Raises HardwareError: there is none."""
    file = path / FIT if path.is_dir() else path
    raw = parse_yaml(read_text(file, HardwareError), str(file), HardwareError)
    if not isinstance(raw, dict):
        raise HardwareError("must hold a mapping with schema_version, kind, name, ...", file=str(file))
    return raw


def find_profile(name_or_path: str | Path) -> Path:
    """File or folder of a profile. Raises HardwareError that lists the bundled names."""
    if name_or_path in profile_names():
        folder = PROFILE_FOLDER / name_or_path
        return folder if folder.is_dir() else PROFILE_FOLDER / f"{name_or_path}.yaml"
    if os.path.exists(name_or_path):
        return Path(name_or_path)
    names = ", ".join(profile_names())
    message = f"must be one of {names}, the path of a YAML file or of a folder that calibrate wrote"
    raise HardwareError(message, key="profile", value=str(name_or_path))
