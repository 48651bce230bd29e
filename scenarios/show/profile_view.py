"""What a profile holds, as tables: provenance, rooflines, held-out errors, coverage."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from draftcast.calibration.profile.folder import FIT, TABLE, Manifest, read_manifest
from draftcast.calibration.profile.hardware import HardwareSpec, load_hardware
from draftcast.calibration.profile.held_out import OperatorErrors, held_out, interpolation_errors, modelled
from draftcast.calibration.profile.load import (
    AffineProfile,
    HardwareProfile,
    RooflineProfile,
    find_profile,
    load_profile,
    profile_names,
)
from draftcast.calibration.profile.measured import FAMILY
from draftcast.calibration.profile.table import SHAPE_FIELDS, LatencyTable
from draftcast.calibration.yaml_text import parse_yaml
from draftcast.errors import HardwareError
from draftcast.files import read_text

NO_VERIFY = "verification (q > 1) was not measured: it is decode's time stretched by the roofline, extrapolated"


@dataclass(frozen=True)
class OpenProfile:
    """A profile with the device it is bound to and, for a measured one, its folder.

    Attributes:
        folder: None for a profile without a table.
        manifest: None for a profile that is one YAML file.
    """

    profile: HardwareProfile
    hardware: HardwareSpec
    folder: Path | None
    manifest: Manifest | None

    def table(self) -> LatencyTable:
        """The measured table. Raises HardwareError when the profile has none."""
        if self.folder is None:
            raise HardwareError("holds no measured table", key="profile", value=self.profile.name)
        return LatencyTable.read(self.folder / TABLE)


def open_profile(name_or_path: str, hardware: str | None = None) -> OpenProfile:
    """Load a profile on the device it names.

    Args:
        name_or_path: as for `load_profile`.
        hardware: device for a profile that fits any; otherwise it must be the profile's own.

    Raises:
        HardwareError: unknown or invalid profile or device, or a device is needed and none given.
    """
    path = find_profile(name_or_path)
    manifest = read_manifest(path) if path.is_dir() else None
    folder = path if manifest is not None and manifest.has_table else None
    named = manifest.hardware if manifest else str(_top(path).get("hardware", "any"))
    if hardware is None and named == "any":
        raise HardwareError("the profile fits any device: name one", key="--hardware", value=None)
    spec = load_hardware(named if hardware is None else hardware)
    return OpenProfile(load_profile(str(path) if manifest else name_or_path, spec), spec, folder, manifest)


def bundled() -> dict[str, dict[str, Any]]:
    """Of every bundled profile its device ("any"), date, kind, and how many measured points it holds (0: none)."""
    found = {}
    for name in profile_names():
        path = find_profile(name)
        raw, table = _top(path), path / TABLE
        points = pq.read_metadata(table).num_rows if table.is_file() else 0
        kind = "measured points" if points else "assumed efficiencies"
        found[name] = {
            "hardware": str(raw.get("hardware")),
            "date": str(raw.get("date")),
            "kind": "whole-step fit of one model" if raw.get("kind") == "affine" else kind,
            "points": points,
        }
    return found


def fits_any_device(name_or_path: str) -> bool:
    """Whether a profile is of no device in particular. Raises HardwareError when there is no such profile."""
    return str(_top(find_profile(name_or_path)).get("hardware", "any")) == "any"


def _top(path: Path) -> dict[str, Any]:
    """The mapping in a profile's YAML file, unchecked; empty when it holds something else."""
    file = path / FIT if path.is_dir() else path
    raw = parse_yaml(read_text(file, HardwareError), str(file), HardwareError)
    return raw if isinstance(raw, dict) else {}


def rooflines(profile: RooflineProfile) -> list[dict[str, Any]]:
    """A row for every roofline: family, dtype ("" for the family's own), its four numbers, origin and source."""
    entries = [((family, ""), entry) for family, entry in profile.operators.items()]
    entries += list(profile.dtype_operators.items())
    return [
        {
            "family": family,
            "dtype": dtype,
            "t0_us": 1e6 * entry.roofline.t0_s,
            "e_c": entry.roofline.e_c,
            "e_m": entry.roofline.e_m,
            "p": entry.roofline.p,
            "origin": entry.origin.label,
            "source": entry.source,
        }
        for (family, dtype), entry in sorted(entries, key=lambda item: item[0])
    ]


def coefficients(profile: AffineProfile) -> dict[str, Any]:
    """What a whole-step fit holds beyond its name and origin, by the names of `AffineProfile`."""
    named = ("name", "hardware_name", "source", "date")
    values = {each.name: getattr(profile, each.name) for each in dataclasses.fields(profile) if each.name not in named}
    for key in ("draft_methods", "ngram_methods"):
        values[key] = {method: origin.label for method, origin in values[key].items()}
    return values


def errors_of(opened: OpenProfile) -> list[dict[str, Any]]:
    """Held-out errors as the profile records them; none for a profile without a table."""
    if opened.folder is None:
        return []
    fit = opened.folder / FIT
    raw = parse_yaml(read_text(fit, HardwareError), str(fit), HardwareError)
    return list(raw.get("held_out", []))


def errors_by_shape(opened: OpenProfile) -> list[dict[str, Any]]:
    """Held-out errors of every operator and format split by size: the operator's x in powers of four.

    Computed from the table with the profile's own rooflines, as when it was fitted.
    """
    rows = []
    for errors in held_out_predictions(opened):
        x = _size_column(errors.operator)
        sizes = errors.predictions[x].to_numpy(np.float64)
        bins = np.floor(np.log(np.maximum(sizes, 1.0)) / math.log(4.0)).astype(int)
        for low in sorted(set(bins)):
            error = np.abs(errors.predictions["error"].to_numpy()[bins == low])
            rows.append(
                {
                    "operator": errors.operator,
                    "dtype": errors.dtype,
                    "kv_dtype": errors.kv_dtype,
                    "size": f"{x} {4**low}..{4 ** (low + 1) - 1}",
                    "points": len(error),
                    "median": float(np.median(error)),
                    "p90": float(np.quantile(error, 0.9)),
                    "worst": float(error.max()),
                }
            )
    return rows


def held_out_predictions(opened: OpenProfile) -> list[OperatorErrors]:
    """Interpolation of the held-out points of every operator and format of the table."""
    assert isinstance(opened.profile, RooflineProfile)
    frame = modelled(opened.table())
    frame["held_out"] = held_out(frame)
    found = []
    for (operator, dtype, kv_dtype), rows in frame.groupby(["operator", "dtype", "kv_dtype"]):
        seconds = opened.profile.seconds_of(FAMILY[str(operator)], str(kv_dtype) or str(dtype))
        found.append(interpolation_errors(str(operator), str(dtype), str(kv_dtype), rows, seconds))
    return found


def _size_column(operator: str) -> str:
    if operator.startswith("attention"):
        return "context" if operator == "attention_decode" else "q"
    return {"all_reduce": "message_bytes", "rejection_sampler": "batch"}.get(operator, "m")


def coverage(table: LatencyTable) -> list[dict[str, Any]]:
    """What was measured: for every operator and format the number of points and the range of each shape column.

    ``settled`` is None where the source gave no intervals.
    """
    rows = []
    for (operator, dtype, kv_dtype), points in table.frame.groupby(["operator", "dtype", "kv_dtype"]):
        ranges = []
        for name in SHAPE_FIELDS[str(operator)]:
            values = points[name].unique()
            low, high = values.min(), values.max()
            ranges.append(f"{name} {low}" if low == high else f"{name} {low}..{high} ({len(values)})")
        rows.append(
            {
                "operator": operator,
                "dtype": dtype,
                "kv_dtype": kv_dtype,
                "points": len(points),
                "settled": float(points["settled"].mean()) if points["low_s"].notna().any() else None,
                "kernels": ", ".join(sorted(points["implementation"].unique())),
                "covers": ", ".join(ranges),
                "note": NO_VERIFY if operator == "attention_decode" and points["q"].max() == 1 else "",
            }
        )
    return rows
