"""What a profile holds, as tables and text: where it comes from, rooflines, held-out errors, coverage."""

import dataclasses
import functools
import math
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from draftcast.calibration.profile.hardware import HardwareSpec, load_hardware
from draftcast.calibration.profile.load import (
    TABLE,
    Manifest,
    find_profile,
    load_profile,
    profile_names,
    read_manifest,
    read_top,
)
from draftcast.calibration.profile.measured import FAMILY, Part, parts_of
from draftcast.calibration.profile.roofline_fit import OperatorErrors, interpolation_errors, modelled
from draftcast.calibration.profile.spec import HardwareProfile, RooflineProfile
from draftcast.calibration.profile.table import SHAPE_FIELDS, LatencyTable
from draftcast.errors import HardwareError

NO_VERIFY = "verification (q > 1) was not measured: it is decode's time stretched by the roofline, extrapolated"
MOST_ROWS = 6000  # that one picture and its prediction take; whole curves are kept together
WIDTH = 110
# Column of a point's size, by operator; else its rows m.
SIZES = {
    "attention_decode": "context",
    "attention_prefill": "q",
    "mla_decode": "context",
    "mla_prefill": "q",
    "dsa_decode": "context",
    "gdn_decode": "batch",
    "gdn_prefill": "q",
    "all_reduce": "message_bytes",
    "rejection_sampler": "batch",
}
ROOFLINE_NOTE = (
    "t = t0 + p-norm of FLOPs / (e_c * peak) and bytes / (e_m * bandwidth); where points were measured, times are "
    "interpolated between them and the roofline serves the shapes beyond."
)
ERROR_NOTE = "Error of interpolation on measured points that took no part in it."


@dataclass(frozen=True)
class OpenProfile:
    """A profile with the device it is bound to and, for a measured one, its folder."""

    profile: HardwareProfile
    hardware: HardwareSpec
    folder: Path | None  # None for a profile without a table
    manifest: Manifest | None  # None for a profile that is one YAML file

    @functools.cached_property
    def table(self) -> LatencyTable:
        """The measured table, read once. Raises HardwareError when the profile has none."""
        if self.folder is None:
            raise HardwareError("holds no measured table", key="profile", value=self.profile.name)
        return LatencyTable.read(self.folder / TABLE)


def open_profile(name_or_path: str, hardware: str | None = None) -> OpenProfile:
    """Load a profile, as of `load_profile`, on its device; ``hardware`` names one for a profile that fits any.

    Raises:
        HardwareError: unknown or invalid profile or device, or a device is needed and none given.
    """
    path = find_profile(name_or_path)
    manifest = read_manifest(path) if path.is_dir() else None
    folder = path if manifest is not None and manifest.has_table else None
    named = manifest.hardware if manifest else str(read_top(path).get("hardware", "any"))
    if hardware is None and named == "any":
        raise HardwareError("the profile fits any device: name one", key="--hardware", value=None)
    spec = load_hardware(named if hardware is None else hardware)
    return OpenProfile(load_profile(str(path) if manifest else name_or_path, spec), spec, folder, manifest)


def bundled() -> dict[str, dict[str, Any]]:
    """Of every bundled profile its device ("any"), date, kind, and how many measured points it holds (0: none)."""
    found = {}
    for name in profile_names():
        path = find_profile(name)
        raw, table = read_top(path), path / TABLE
        points = pq.read_metadata(table).num_rows if table.is_file() else 0
        kind = "measured points" if points else "assumed efficiencies"
        kind = "whole-step fit of one model" if raw.get("kind") == "affine" else kind
        found[name] = {key: str(raw.get(key)) for key in ("hardware", "date")} | {"kind": kind, "points": points}
    return found


def fits_any_device(name_or_path: str) -> bool:
    """Whether a profile is of no device in particular. Raises HardwareError when there is no such profile."""
    return str(read_top(find_profile(name_or_path)).get("hardware", "any")) == "any"


def rooflines(profile: RooflineProfile) -> list[dict[str, Any]]:
    """A row for every roofline: family, dtype ("" for the family's own), its four numbers, origin and source."""
    return [
        {"family": family, "dtype": dtype, "t0_us": 1e6 * fit.t0_s}
        | {"e_c": fit.e_c, "e_m": fit.e_m, "p": fit.p, "origin": fit.origin.label, "source": fit.source}
        for family, operator in sorted(profile.operators.items())
        for dtype, fit in [("", operator), *sorted(operator.dtypes.items())]
    ]


def errors_of(opened: OpenProfile) -> list[dict[str, Any]]:
    """Held-out errors as the profile records them; none for a profile without a table."""
    profile = opened.profile
    return [dataclasses.asdict(errors) for errors in profile.held_out] if isinstance(profile, RooflineProfile) else []


def errors_by_shape(opened: OpenProfile) -> list[dict[str, Any]]:
    """Held-out errors of every operator and format split by size: the operator's x in powers of four.

    Computed from the table with the profile's own rooflines, as when it was fitted.
    """
    rows = []
    for errors in held_out_predictions(opened):
        x = SIZES.get(errors.part.operator, "m")
        powers = np.floor(np.log(errors.predictions[x].clip(lower=1)) / math.log(4.0)).astype(int)
        for low, error in errors.predictions["error"].abs().groupby(powers):
            figures = {"median": error.median(), "p90": error.quantile(0.9), "worst": error.max()}
            size = f"{x} {4**low}..{4 ** (low + 1) - 1}"
            rows.append({**errors.part._asdict(), "size": size, "points": len(error), **figures})
    return rows


def held_out_predictions(opened: OpenProfile) -> Iterator[OperatorErrors]:
    """Interpolation of the held-out points of every operator and format of the table."""
    for part, rows in parts_of(modelled(opened.table)):
        yield _predictions(opened, part, rows)


def fit_points(opened: OpenProfile, part: Part) -> OperatorErrors:
    """Predictions of the held-out points of one operator; of a large one every so manyth curve.

    Raises:
        HardwareError: the profile has no measured table, or nothing of this part.
    """
    frame = opened.table.frame
    points = frame[(frame[list(Part._fields)] == list(part)).all(axis=1)]
    if points.empty:
        raise HardwareError(f"has no measured points of {part}", key="profile", value=opened.profile.name)
    rows = modelled(LatencyTable(points.reset_index(drop=True)))
    if len(rows) > MOST_ROWS:
        curve = ["k", "n", "num_experts", "top_k", "heads", "kv_heads", "head_dim", "window"]
        every = -(-len(rows) // MOST_ROWS)
        rows = rows[rows.groupby(curve, sort=True).ngroup() % every == 0].reset_index(drop=True)
    return _predictions(opened, part, rows)


def _predictions(opened: OpenProfile, part: Part, rows: pd.DataFrame) -> OperatorErrors:
    assert isinstance(opened.profile, RooflineProfile)  # as every profile with a table
    return interpolation_errors(part, rows, opened.profile.seconds_of(*part.roofline))


def modelled_parts(table: LatencyTable) -> list[Part]:
    return [part for part, _ in parts_of(table.frame) if part.operator in FAMILY]


def coverage(table: LatencyTable) -> list[dict[str, Any]]:
    """What was measured: for every operator and format the number of points and the range of each shape column.

    ``settled`` is None where the source gave no intervals.
    """
    rows = []
    for part, points in parts_of(table.frame):
        ranges = []
        for name in SHAPE_FIELDS[part.operator]:
            low, high, count = points[name].min(), points[name].max(), points[name].nunique()
            ranges.append(f"{name} {low}" if low == high else f"{name} {low}..{high} ({count})")
        settled = float(points["settled"].mean()) if points["low_s"].notna().any() else None
        kernels = ", ".join(sorted(points["implementation"].unique()))
        note = NO_VERIFY if part.operator.endswith("decode") and points["q"].max() == 1 else ""
        measured = {"points": len(points), "settled": settled, "kernels": kernels}
        rows.append({**part._asdict(), **measured, "covers": ", ".join(ranges), "note": note})
    return rows


def provenance_lines(shown: Mapping[str, Any]) -> list[str]:
    """Name and value of every entry; mappings as lists, numbers of them rounded, long values folded."""
    label = max(10, *map(len, shown)) + 1
    lines = []
    for name, value in shown.items():
        body = _flat(value) if isinstance(value, Mapping) else str(value)
        if name == "left_out":
            body = "; ".join(f"{count:,} {reason}" for reason, count in value.items())
        lines += textwrap.wrap(body, WIDTH, initial_indent=f"{name:<{label}}", subsequent_indent=" " * label) or [name]
    return lines


def _flat(value: Mapping[str, Any], prefix: str = "") -> str:
    parts = []
    for key, item in value.items():
        if isinstance(item, Mapping):
            parts.append(_flat(item, f"{prefix}{key} "))
        elif item != "":
            parts.append(f"{prefix}{key} {item:.4g}" if isinstance(item, float) else f"{prefix}{key} {item}")
    return ", ".join(parts)


def coverage_lines(rows: list[dict[str, Any]]) -> list[str]:
    """What was measured, operator by operator: points, how many settled, shapes and kernels."""
    lines = []
    for row in rows:
        formats = f"{row['dtype']} KV {row['kv_dtype']}" if row["kv_dtype"] else row["dtype"]
        known = "no interval known" if row["settled"] is None else f"{row['settled']:.0%} settled"
        lines.append(f"{row['operator']} {formats}: {row['points']:,} points, {known}")
        for text in filter(None, (row["covers"], f"by {row['kernels']}", row["note"])):
            lines += textwrap.wrap(text, WIDTH, initial_indent="    ", subsequent_indent="    ")
    return lines
