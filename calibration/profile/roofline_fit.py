"""Fitting rooflines to a table of measured times, and writing the profile they make.

One soft roofline per operator family and number format: ``t0, e_c, e_m, p`` by least squares on log seconds with a
soft-L1 loss, so that a few odd points do not bend it. The points `calibration/profile/held_out` draws take no part.
What a table lacks keeps the assumed efficiencies of the default profile, and says so.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from draftcast.calibration.profile.folder import FIT, TABLE, read_manifest
from draftcast.calibration.profile.hardware import HardwareSpec
from draftcast.calibration.profile.held_out import Errors, OperatorErrors, held_out, interpolation_errors, modelled
from draftcast.calibration.profile.load import default_sections
from draftcast.calibration.profile.measured import FAMILY, Seconds
from draftcast.calibration.profile.origin import Origin
from draftcast.calibration.profile.roofline import Roofline, soft_max
from draftcast.calibration.profile.table import SHAPE_FIELDS, SHAPES, LatencyTable
from draftcast.errors import HardwareError
from draftcast.files import write_text
from draftcast.kernels.operators import registry
from draftcast.kernels.operators.cost import FloatArray

MOST_POINTS = 4000
"""Points of one fit; of more, an even sample is taken. Four numbers need no more and a fit stays under a second."""
_P_STARTS = (1.5, 4.0, 12.0)


@dataclass(frozen=True)
class FamilyFit:
    """Roofline of a family at a number format, from ``points`` measured ones; errors on the held-out points."""

    family: str
    dtype: str
    roofline: Roofline
    points: int
    fitted: Errors


def fit_table(table: LatencyTable, hardware: HardwareSpec) -> tuple[list[FamilyFit], list[OperatorErrors]]:
    """Rooflines of every family and format of ``table``, and held-out errors of every operator that has a family.

    Raises:
        HardwareError: a format the device has no peak rate for.
    """
    fits, errors = [], []
    frame = modelled(table)
    frame["held_out"] = held_out(frame)
    frame["family"] = frame["operator"].map(FAMILY)
    # Attention computes in 16 bits whatever the cache holds, so its format is the cache's.
    frame["fit_dtype"] = np.where(frame["kv_dtype"] != "", frame["kv_dtype"], frame["dtype"])
    # Prefill before decode: decode of one query a sequence never comes near the compute limit, so a table without
    # verification cannot tell its compute efficiency; prefill's is taken.
    prefill_e_c: dict[str, float] = {}
    groups = sorted(frame.groupby(["family", "fit_dtype"]), key=lambda group: group[0][0] != "attention_prefill")
    for (family, dtype), rows in groups:
        e_c = None
        if family == "attention_decode" and rows["q"].max() == 1:
            e_c = prefill_e_c.get(str(dtype))
        fit = _fit_family(str(family), str(dtype), rows, hardware, e_c)
        fits.append(fit)
        if family == "attention_prefill":
            prefill_e_c[str(dtype)] = fit.roofline.e_c
        seconds = _bound(fit.roofline, *hardware.ceilings(fit.family, fit.dtype))
        for (operator, kind, kv_dtype), points in rows.groupby(["operator", "dtype", "kv_dtype"]):
            errors.append(interpolation_errors(str(operator), str(kind), str(kv_dtype), points, seconds))
    return fits, errors


def _bound(roofline: Roofline, peak_flops: float, bandwidth: float) -> Seconds:
    return lambda work: roofline.seconds(work.flops, work.bytes, peak_flops, bandwidth)


def _fit_family(
    family: str, dtype: str, rows: pd.DataFrame, hardware: HardwareSpec, e_c: float | None
) -> FamilyFit:  # fmt: skip
    flops, moved = np.empty(len(rows)), np.empty(len(rows))
    place = {index: at for at, index in enumerate(rows.index)}
    for (operator, kind, kv_dtype), points in rows.groupby(["operator", "dtype", "kv_dtype"]):
        shape = {name: points[name].to_numpy(np.float64) for name in SHAPE_FIELDS[str(operator)]}
        work = registry.operator(str(operator)).work(shape, str(kind), str(kv_dtype))
        at = [place[index] for index in points.index]
        flops[at], moved[at] = work.flops, work.bytes
    train = ~rows["held_out"].to_numpy()
    measured = rows["seconds"].to_numpy()
    peak, bandwidth = hardware.ceilings(family, dtype)
    chosen = np.flatnonzero(train)
    if len(chosen) > MOST_POINTS:
        chosen = chosen[np.linspace(0, len(chosen) - 1, MOST_POINTS).round().astype(int)]
    roofline = fit_roofline(flops[chosen] / peak, moved[chosen] / bandwidth, measured[chosen], e_c)
    predicted = roofline.seconds(flops, moved, peak, bandwidth)
    errors = Errors.of(predicted[~train], rows[~train], SHAPES)
    return FamilyFit(family, dtype, roofline, int(train.sum()), errors)


def fit_roofline(
    compute_s: FloatArray, memory_s: FloatArray, measured_s: FloatArray, e_c: float | None = None
) -> Roofline:
    """Roofline of points whose compute and memory seconds at the ceilings and measured seconds are given.

    Efficiencies stay in (0, 1]; a time no point can tell (the compute time of a purely memory-bound kernel) keeps the
    value it started from.

    Args:
        compute_s, memory_s, measured_s: shape (points,).
        e_c: compute efficiency known from elsewhere; None fits it.
    """
    from scipy.optimize import least_squares

    log_measured = np.log(measured_s)
    shortest = float(measured_s.min())

    def residuals(x: FloatArray) -> FloatArray:
        t0, e_c, e_m, p = math.exp(x[0]), math.exp(x[1]), math.exp(x[2]), 1.0 + math.exp(x[3])
        return np.asarray(np.log(t0 + soft_max(compute_s / e_c, memory_s / e_m, p)) - log_measured)

    low = [math.log(1e-9), math.log(1e-4), math.log(1e-3), math.log(1e-3)]
    high = [math.log(shortest), 0.0, 0.0, math.log(30.0)]
    if e_c is not None:
        low[1], high[1] = math.log(e_c) - 1e-9, math.log(e_c) + 1e-9
    best = None
    for p in _P_STARTS:
        start = np.clip([math.log(shortest / 2), math.log(0.6), math.log(0.8), math.log(p - 1.0)], low, high)
        found = least_squares(residuals, start, bounds=(low, high), loss="soft_l1", f_scale=0.1)
        if best is None or found.cost < best.cost:
            best = found
    assert best is not None
    t0, e_c, e_m = (float(value) for value in np.exp(best.x[:3]))
    return Roofline(t0, min(e_c, 1.0), min(e_m, 1.0), 1.0 + math.exp(best.x[3]))


def fit_profile(folder: Path, hardware: HardwareSpec) -> tuple[list[FamilyFit], list[OperatorErrors]]:
    """Fit the table in ``folder`` and write ``profile.yaml`` beside it: rooflines, host and launch times, errors.

    Args:
        folder: holds a table and its manifest.
        hardware: the device the manifest names; the manifest's measured ceilings replace its data sheet's.

    Raises:
        HardwareError: no valid table or manifest, or the manifest names another device.
    """
    manifest = read_manifest(folder)
    if manifest.hardware != hardware.name:
        raise HardwareError(
            f"the table was made on this device, not on {hardware.name}",
            file=str(folder),
            key="hardware",
            value=manifest.hardware,
        )
    device = manifest.ceilings.applied(hardware)
    fits, errors = fit_table(LatencyTable.read(folder / TABLE), device)
    text = yaml.safe_dump(
        {
            "schema_version": 1,
            "kind": "roofline",
            "name": manifest.name,
            "hardware": manifest.hardware,
            "date": manifest.date,
            "source": manifest.source,
            **_sections(fits, hardware),
            "held_out": [_report(entry) for entry in errors],
        },
        sort_keys=False,
        width=120,
    )
    write_text(folder / FIT, text, HardwareError)
    return fits, errors


def _sections(fits: list[FamilyFit], hardware: HardwareSpec) -> dict[str, Any]:
    """Host, launch and operators: what was fitted, over the default profile's assumptions."""
    sections = default_sections(hardware)
    for family in sorted({fit.family for fit in fits}):
        of_dtype = {fit.dtype: _fit_section(fit) for fit in fits if fit.family == family}
        main = "bf16" if "bf16" in of_dtype else min(of_dtype)
        sections["operators"][family] = {**of_dtype.pop(main), **({"dtypes": of_dtype} if of_dtype else {})}
    # A linear layer of vocabulary width. A copy: YAML writes an object that stands twice as a reference.
    if any(fit.family == "linear" for fit in fits):
        sections["operators"]["lm_head"] = copy.deepcopy(sections["operators"]["linear"])
    return sections


def _fit_section(fit: FamilyFit) -> dict[str, Any]:
    roofline = fit.roofline
    return {
        "t0_s": _rounded(roofline.t0_s),
        "e_c": _rounded(roofline.e_c),
        "e_m": _rounded(roofline.e_m),
        "p": _rounded(roofline.p),
        # Shapes inside the table are interpolated from it; the roofline serves those outside.
        "origin": Origin.EXTRAPOLATED.label,
        "source": f"fitted to {fit.points} measured points of this profile's table",
    }


def _report(errors: OperatorErrors) -> dict[str, Any]:
    interpolated = errors.interpolated
    return {
        "operator": errors.operator,
        "dtype": errors.dtype,
        "kv_dtype": errors.kv_dtype,
        "points": errors.points,
        "held_out": interpolated.points,
        "median": _rounded(interpolated.median),
        "p90": _rounded(interpolated.p90),
        "worst": _rounded(interpolated.worst),
        "worst_point": interpolated.worst_point,
    }


def _rounded(value: float) -> float | None:
    """Six significant digits: more says nothing and makes the file differ between libraries."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
