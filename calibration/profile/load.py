"""Reading profiles: a YAML file or a measured folder in, `RooflineProfile` or `AffineProfile` out.

Every fault is a one-line `HardwareError`.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from draftcast.calibration.profile.folder import FIT, MANIFEST, TABLE, read_manifest
from draftcast.calibration.profile.hardware import HardwareSpec
from draftcast.calibration.profile.measured import MeasuredTimes
from draftcast.calibration.profile.spec import AffineProfile, HardwareProfile, RooflineProfile
from draftcast.calibration.yaml_text import parse_yaml, validated
from draftcast.errors import HardwareError
from draftcast.files import read_text

PROFILE_FOLDER = Path(__file__).parents[1] / "profiles"
DEFAULT_PROFILE = "default"
_ASSUMED = {"AMD": "default-amd"}
"""Assumed efficiencies of a vendor whose kernels reach other shares than those of `DEFAULT_PROFILE`."""
_KINDS: dict[str, TypeAdapter[Any]] = {"roofline": TypeAdapter(RooflineProfile), "affine": TypeAdapter(AffineProfile)}


def profile_names() -> tuple[str, ...]:
    """Names of the bundled profiles."""
    files = {path.stem for path in PROFILE_FOLDER.glob("*.yaml")}
    return tuple(sorted(files | {path.parent.name for path in PROFILE_FOLDER.glob(f"*/{MANIFEST}")}))


def load_profile(name_or_path: str | Path | None, hardware: HardwareSpec) -> HardwareProfile:
    """The profile called ``name_or_path``: a bundled name, a YAML file or a folder that `calibrate` wrote.

    Args:
        name_or_path: None takes the bundled profile measured on the device, or assumed efficiencies where none is.
        hardware: the device the scenario runs on; a profile made for another device is refused.

    Raises:
        HardwareError: unknown name, unreadable file, unknown or missing key, value out of range, wrong device, a table
            that is not the one its manifest describes.
    """
    path = find_profile(usual_profile(hardware) if name_or_path is None else name_or_path)
    if not path.is_dir():
        return _load_file(path, hardware)
    manifest = read_manifest(path)
    profile = _load_file(path / FIT, hardware)
    # Rooflines of a folder extend its table; a whole-step fit has none.
    if isinstance(profile, AffineProfile) == manifest.has_table:
        beside, allowed = ("beside", "roofline") if manifest.has_table else ("without", "affine")
        raise HardwareError(f"must be {allowed} {beside} a table", file=str(path / FIT), key="kind", value=profile.kind)
    if isinstance(profile, AffineProfile):
        return profile
    return dataclasses.replace(
        profile,
        hardware=manifest.ceilings.applied(hardware),
        measured=MeasuredTimes(path / TABLE, manifest.files[TABLE]),
    )


def has_profile(hardware: HardwareSpec) -> bool:
    """Whether a profile measured on this device is bundled."""
    return (PROFILE_FOLDER / hardware.name / MANIFEST).is_file()


@functools.cache
def profiles_of(device: str) -> tuple[str, ...]:
    """Names of the bundled profiles made for a device."""
    return tuple(name for name in profile_names() if read_top(find_profile(name)).get("hardware") == device)


def assumed_profile(hardware: HardwareSpec) -> str:
    """Name of the profile of assumed efficiencies for a device."""
    return _ASSUMED.get(hardware.vendor, DEFAULT_PROFILE)


def usual_profile(hardware: HardwareSpec) -> str:
    """Name of the profile that a scenario takes which names none."""
    return hardware.name if has_profile(hardware) else assumed_profile(hardware)


def _load_file(path: Path, hardware: HardwareSpec) -> HardwareProfile:
    file, raw = str(path), read_top(path)
    kind, device = raw.get("kind"), raw.get("hardware")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise HardwareError(f"must be one of {', '.join(_KINDS)}", file=file, key="kind", value=kind)
    if device is not None and device != hardware.name and not (device == "any" and kind == "roofline"):
        message = f"the profile was made for this device, the scenario runs on {hardware.name}"
        raise HardwareError(message, file=file, key="hardware", value=device)
    if "measured" in raw:  # a field of the record that no file sets
        raise HardwareError("unknown key", file=file, key="measured", value=raw["measured"])
    # In profiles of an earlier version; ignored.
    if kind == "affine":
        raw.pop("core_speed", None)
    elif isinstance(raw.get("launch"), dict):
        raw["launch"].pop("kernel_s", None)
    bound = raw if device is None else {**raw, "hardware": hardware}
    profile: HardwareProfile = validated(_KINDS[kind], bound, file, HardwareError)
    return profile


def read_top(path: Path) -> dict[str, Any]:
    """The mapping in a profile's YAML file or folder, not validated yet.

    Raises:
        HardwareError: unreadable, not YAML, or no mapping.
    """
    file = path / FIT if path.is_dir() else path
    raw = parse_yaml(read_text(file, HardwareError), str(file), HardwareError)
    if not isinstance(raw, dict):
        raise HardwareError("must hold a mapping with schema_version, kind, name, ...", file=str(file))
    return raw


def find_profile(name_or_path: str | Path | None) -> Path:
    """File or folder of a profile; None is the default. Raises HardwareError that lists the bundled names."""
    name = DEFAULT_PROFILE if name_or_path is None else name_or_path
    if isinstance(name, str) and name in profile_names():
        folder = PROFILE_FOLDER / name
        return folder if folder.is_dir() else PROFILE_FOLDER / f"{name}.yaml"
    path = Path(name)
    if os.path.exists(path):
        return path
    raise HardwareError(
        f"must be one of {', '.join(profile_names())}, the path of a YAML file or of a folder that calibrate wrote",
        key="profile",
        value=str(name_or_path),
    )
