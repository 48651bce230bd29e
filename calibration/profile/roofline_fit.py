"""Fitting rooflines to a table of measured times, writing the profile they make, and how far interpolation is off.

One soft roofline per operator family and number format: ``t0, e_c, e_m, p`` by least squares on log seconds with a
soft-L1 loss, so that a few odd points do not bend it. What a table lacks keeps the assumed efficiencies of the default
profile, and says so. A fifth of the inner points of a table, drawn by a hash of their shape, takes no part in it: they
are predicted from the others, by interpolation as a profile does.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from draftcast.calibration.profile import measured
from draftcast.calibration.profile.hardware import HardwareSpec
from draftcast.calibration.profile.interpolation import evenly
from draftcast.calibration.profile.load import FIT, TABLE, assumed_profile, load_profile, read_manifest
from draftcast.calibration.profile.measured import ATTENTION, CURVES, FAMILY, Points, Seconds, TablePart
from draftcast.calibration.profile.roofline import Origin, Roofline, soft_max
from draftcast.calibration.profile.spec import RooflineProfile
from draftcast.calibration.profile.table import SHAPE_FIELDS, SHAPES, load_table
from draftcast.errors import HardwareError
from draftcast.files import picked, write_text
from draftcast.kernels.arrays import BoolArray, FloatArray

HELD_OUT_SHARE = 0.2


@dataclass(frozen=True)
class FitErrors:
    """Relative errors ``|predicted / measured - 1|`` of held-out points; NaN where there is none."""

    points: int
    median: float
    p90: float
    worst: float
    bias: float  # median of ``predicted / measured - 1``, signed
    worst_point: str = ""  # its shape, or file and line of the log that end it

    @classmethod
    def of(
        cls,
        predicted: FloatArray,
        points: pd.DataFrame,
        name: Callable[[pd.Series[Any]], str] = lambda point: f"{point['source']}:{point['line']}",
    ) -> FitErrors:
        """Of ``points`` (column ``seconds``); ``name`` says which one is the worst."""
        if not len(points):
            return cls(0, math.nan, math.nan, math.nan, math.nan)
        ratio = predicted / points["seconds"].to_numpy() - 1.0
        size = np.abs(ratio)
        median, p90 = (float(q) for q in np.quantile(size, (0.5, 0.9)))
        worst = points.iloc[int(np.argmax(size))]
        return cls(len(points), median, p90, float(size.max()), float(np.median(ratio)), name(worst))

    def __str__(self) -> str:
        """In a line: median, p90 and bias; a dash where nothing was held out."""
        if not self.points or math.isnan(self.median):
            return "-"
        return f"median {self.median:.1%}, p90 {self.p90:.1%}, bias {self.bias:+.1%}"


@dataclass(frozen=True)
class OperatorErrors:
    """Held-out errors of interpolation for one operator and number format, and the measured predictions themselves."""

    part: TablePart
    points: int  # of the table, held out or not
    interpolated: FitErrors
    predictions: pd.DataFrame  # held-out rows with columns ``predicted`` and ``error`` beside their shape


def modelled(table: pd.DataFrame) -> pd.DataFrame:
    """Points of the operators that a step is built from, ``held_out`` or not; of one shape the fastest kernel's."""
    frame = table[table["operator"].isin(list(FAMILY))]
    shape = [*TablePart._fields, *SHAPES]
    least = frame.sort_values("seconds", kind="stable").drop_duplicates(shape).sort_index().reset_index(drop=True)
    return least.assign(held_out=held_out(least))


def held_out(frame: pd.DataFrame) -> BoolArray:
    """Which points take no part in a fit: a fifth of those with a measured neighbour on either side.

    Neighbours along x of the point's curve, along the context of the point's grid line. Drawn by a hash of the shape,
    so the same table is always split the same way.
    """
    inner = np.zeros(len(frame), dtype=bool)
    hashes = pd.util.hash_pandas_object(frame[[*TablePart._fields, *SHAPES]], index=False).to_numpy()
    # Prefill's lines run along the chunk at one ratio of context to chunk.
    frame = frame.assign(prefix_ratio=frame["context"] / frame["q"].clip(lower=1))
    for operator in frame["operator"].unique():
        rows = frame[frame["operator"] == operator]
        in_grid = "batch" if operator == "gdn_decode" else "context"
        along = in_grid if operator in ATTENTION else CURVES[operator].x
        others = [name for name in SHAPES if name != along]
        if operator.endswith("prefill"):
            along, others = "q", ["batch", "prefix_ratio", *TablePart(operator, "").group]
        line = rows.groupby(["dtype", "kv_dtype", *others], sort=False)[along]
        inner[rows.index] = (rows[along] > line.transform("min")) & (rows[along] < line.transform("max"))
    return inner & (hashes % 1000 < HELD_OUT_SHARE * 1000)


def interpolation_errors(part: TablePart, points: pd.DataFrame, seconds: Seconds) -> OperatorErrors:
    """Held-out points of a part predicted from its other points, group by group."""
    # As arrays: to take a group's points from a frame of all columns costs more than to interpolate them.
    columns = {name: points[name].to_numpy() for name in (*SHAPE_FIELDS[part.operator], "seconds")}
    is_held = points["held_out"].to_numpy()
    groups: dict[Any, Any] = points.groupby(list(part.group)).indices if part.group else {(): np.arange(len(points))}
    rows, predicted = np.arange(0), np.zeros(0)
    for _, members in sorted(groups.items()):
        at = members[is_held[members]]
        if len(at):
            others = members[~is_held[members]]
            train, test = ({name: column[of] for name, column in columns.items()} for of in (others, at))
            group = {name: int(test[name][0]) for name in part.group}
            rows = np.append(rows, at)
            predicted = np.append(predicted, _predicted(part, train, test, seconds, group))
    tested = points.iloc[rows].assign(predicted=predicted)
    tested["error"] = tested["predicted"] / tested["seconds"] - 1.0

    def shape(point: pd.Series[Any]) -> str:
        return " ".join(f"{name}={point[name]}" for name in SHAPE_FIELDS[part.operator] if point[name])

    return OperatorErrors(part, len(points), FitErrors.of(tested["predicted"].to_numpy(), tested, shape), tested)


def _predicted(part: TablePart, train: Points, test: Points, seconds: Seconds, group: Mapping[str, int]) -> FloatArray:
    if part.operator in ATTENTION:
        grid = measured.grid_of(part, train, seconds, group)
        return np.asarray(np.exp(grid.log_seconds(*measured.grid_axes(part.operator, test).T)))
    curves = measured.curves_of(part, train, seconds, group)
    keys, xs = measured.curve_keys(part.operator, test), np.asarray(test[CURVES[part.operator].x], np.float64)
    predicted = np.empty(len(xs))
    for key in set(map(tuple, keys.tolist())):
        at = np.all(keys == np.asarray(key, dtype=np.int64), axis=1)
        predicted[at], _ = curves.seconds(xs[at], key)
    return predicted


_PREFILL = ("attention_prefill", "gdn_prefill")
MOST_POINTS = 4000
"""Points of one fit; of more, an even sample is taken. Four numbers need no more and a fit stays under a second."""
_P_STARTS = (1.5, 4.0, 12.0)
Rooflines = dict[tuple[str, str], Roofline]  # by family and number format


def fit_table(table: pd.DataFrame, hardware: HardwareSpec) -> tuple[Rooflines, list[OperatorErrors]]:
    """Rooflines of every family and format of ``table``, and held-out errors of every operator that has a family."""
    fits: Rooflines = {}
    errors: list[OperatorErrors] = []
    frame = modelled(table)
    frame["family"] = frame["operator"].map(FAMILY)
    frame["fit_dtype"] = frame["kv_dtype"].where(frame["kv_dtype"] != "", frame["dtype"])
    # Prefill before decode: decode of one query a sequence never comes near the compute limit, so a table without
    # verification cannot tell its compute efficiency; prefill's is taken.
    groups = sorted(frame.groupby(["family", "fit_dtype"]), key=lambda group: group[0][0] not in _PREFILL)
    for labels, rows in groups:
        family, dtype = map(str, labels)
        prefill = fits.get((family.replace("decode", "prefill"), dtype))
        one_query = family in ("attention_decode", "gdn_decode") and rows["q"].max() == 1
        e_c = prefill.e_c if prefill and one_query else None
        ceilings = hardware.ceilings(family, dtype)
        fits[family, dtype] = _fit_rows(rows, ceilings, e_c)
        seconds = measured.seconds_by(fits[family, dtype], ceilings)
        errors += [interpolation_errors(part, points, seconds) for part, points in measured.parts_of(rows)]
    return fits, errors


def _fit_rows(rows: pd.DataFrame, ceilings: tuple[float, float], e_c: float | None) -> Roofline:
    work_s = pd.DataFrame(index=rows.index, columns=["compute", "memory"], dtype=np.float64)
    for part, points in measured.parts_of(rows):
        work = part.work_of(points)
        work_s.loc[points.index] = np.stack([work.flops / ceilings[0], work.bytes / ceilings[1]], axis=1)
    chosen = rows.index[~rows["held_out"]]
    source = f"fitted to {len(chosen)} measured points of this profile's table"
    chosen = chosen[evenly(len(chosen), MOST_POINTS)]
    compute_s, memory_s = work_s.loc[chosen].to_numpy(np.float64).T
    fitted = fit_roofline(compute_s, memory_s, rows["seconds"][chosen].to_numpy(np.float64), e_c)
    return dataclasses.replace(fitted, source=source)


def fit_roofline(
    compute_s: FloatArray, memory_s: FloatArray, measured_s: FloatArray, e_c: float | None = None
) -> Roofline:
    """Roofline of points whose compute and memory seconds at the ceilings and measured seconds are given.

    Efficiencies stay in (0, 1]; a time no point can tell (the compute time of a purely memory-bound kernel) keeps the
    value it started from. Shapes inside a table are interpolated from it, so the roofline's own times are extrapolated.

    ``compute_s``, ``memory_s``, ``measured_s``: shape (points,). ``e_c``: known from elsewhere; None fits it.
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
    begin = [math.log(shortest / 2), math.log(0.6), math.log(0.8)]
    starts = (np.clip([*begin, math.log(p - 1.0)], low, high) for p in _P_STARTS)
    solutions = [least_squares(residuals, start, bounds=(low, high), loss="soft_l1", f_scale=0.1) for start in starts]
    best = min(solutions, key=lambda solution: solution.cost).x
    t0, e_c, e_m = (float(value) for value in np.exp(best[:3]))
    sharpness = 1.0 + math.exp(best[3])
    return Roofline(t0, min(e_c, 1.0), min(e_m, 1.0), sharpness, Origin.EXTRAPOLATED, "fitted")


def fit_profile(folder: Path, hardware: HardwareSpec) -> tuple[Rooflines, list[OperatorErrors]]:
    """Fit the table in ``folder`` and write the fit beside it. Raises HardwareError: no valid table of ``hardware``."""
    manifest = read_manifest(folder)
    if manifest.hardware != hardware.name:
        message = f"the table was made on this device, not on {hardware.name}"
        raise HardwareError(message, file=str(folder), key="hardware", value=manifest.hardware)
    fits, errors = fit_table(load_table(folder / TABLE), manifest.ceilings.applied(hardware))
    document = {
        "schema_version": 1,
        "kind": "roofline",
        **picked(manifest, "name hardware date source"),
        **_sections(fits, hardware),
        "held_out": [_report(entry) for entry in errors],
    }
    write_text(folder / FIT, yaml.safe_dump(document, sort_keys=False, width=120), HardwareError)
    return fits, errors


def _sections(fits: Rooflines, hardware: HardwareSpec) -> dict[str, Any]:
    """Launch and operators: what was fitted, over the default profile's assumptions."""
    default = load_profile(assumed_profile(hardware), hardware)
    assert isinstance(default, RooflineProfile)
    operators = {family: _plain(fit) for family, fit in default.operators.items()}
    for family in sorted({family for family, _ in fits}):
        by_dtype = {dtype: _plain(fit) for (of, dtype), fit in fits.items() if of == family}
        main = by_dtype.pop("bf16", None) or by_dtype.pop("fp32", None)
        if main is None:  # nothing in a wide format was timed
            assumed = {dtype: _plain(fit) for dtype, fit in default.operators[family].dtypes.items()}
            main, by_dtype = operators[family], assumed | by_dtype
        operators[family] = {**main, **({"dtypes": by_dtype} if by_dtype else {})}
    # A linear layer of vocabulary width. A copy: YAML writes an object that stands twice as a reference.
    if any(family == "linear" and dtype in ("bf16", "fp32") for family, dtype in fits):
        operators["lm_head"] = copy.deepcopy(operators["linear"])
    launch = {"cuda_graph_ceiling": default.cuda_graph_ceiling}
    collectives = {str(ranks): [list(point) for point in points] for ranks, points in default.all_reduce.items()}
    return {"launch": launch, "operators": operators, **({"all_reduce": collectives} if collectives else {})}


def _plain(fit: Roofline) -> dict[str, Any]:
    numbers = {name: _rounded(value) for name, value in picked(fit, "t0_s e_c e_m p").items()}
    return {**numbers, "origin": fit.origin.label, "source": fit.source}


def _report(errors: OperatorErrors) -> dict[str, Any]:
    interpolated = errors.interpolated
    sizes = {name: _rounded(value) for name, value in picked(interpolated, "median p90 worst").items()}
    counts = {"points": errors.points, "held_out": interpolated.points}
    return {**errors.part._asdict(), **counts, **sizes, "worst_point": interpolated.worst_point}


def _rounded(value: float) -> float | None:
    """Six significant digits: more says nothing and makes the file differ between libraries."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
