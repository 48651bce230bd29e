"""How far off the times of a device are that nobody timed: ``python benchmarks/untimed_devices.py``.

Every timed device is forecast as if it were not, by the times of another stretched to its rates
(`RooflineProfile.stretched_to`) and by assumed efficiencies: those of ``calibration/profiles/default.yaml``, and the
medians of the devices of other kinds, whose medians over all kinds (the last table) the file takes, rounded. Errors are
of the shapes that decoding asks for: matrices of over 4 million weights at up to 256 rows, contexts from 512 tokens.
"""

import argparse
from collections.abc import Iterator
from functools import cache
from statistics import median

import numpy as np
import pandas as pd

from draftcast.calibration.profile.hardware import load_hardware
from draftcast.calibration.profile.load import find_profile, load_profile
from draftcast.calibration.profile.measured import FAMILY, TablePart, parts_of, seconds_by
from draftcast.calibration.profile.roofline import Origin, Roofline
from draftcast.calibration.profile.roofline_fit import FitErrors, modelled
from draftcast.calibration.profile.spec import RooflineProfile
from draftcast.calibration.profile.table import SHAPES, load_table
from draftcast.scenarios.show.tables import aligned

KINDS = (("b200", "b300", "gb300"), ("h100-sxm", "h200"), ("a100-80g",), ("l40s",), ("rtx-pro-6000",))
PAIRS = (("h100-sxm", "h200"), ("h200", "h100-sxm"), ("b200", "b300"), ("b300", "b200"), ("gb300", "b200"))
PAIRS += (("l40s", "rtx-pro-6000"), ("rtx-pro-6000", "l40s"))
NUMBERS = ("t0_s", "e_c", "e_m", "p")
SHAPE = [*TablePart._fields, *SHAPES]


@cache
def profile_of(device: str, name: str | None = None) -> RooflineProfile:
    profile = load_profile(name, load_hardware(device))
    assert isinstance(profile, RooflineProfile)
    return profile


@cache
def points_of(device: str) -> pd.DataFrame:
    rows = modelled(load_table(find_profile(device) / "table.parquet"))
    rows = rows[rows["operator"] != "all_reduce"]
    matrix = rows["operator"] == "linear"
    decodes = rows["operator"].str.endswith("decode") & ~rows["operator"].str.startswith("gdn")
    large = (rows["m"] <= 256) & (rows["n"] * rows["k"] > 4e6)
    return rows[(large | ~matrix) & ((rows["context"] >= 512) | ~decodes)]


def medians(family: str, dtype: str, without: str = "") -> Roofline | None:
    """Of the fits of every kind of device, its own median counting once; None: no kind has one."""
    by_kind = []
    for kind in KINDS:
        operators = [profile_of(device).operators[family] for device in kind if without not in kind]
        fits = [op.dtypes.get(dtype, op) for op in operators if dtype in ("bf16", "fp32") or dtype in op.dtypes]
        fits = [fit for fit in fits if fit.source.startswith("fitted")]
        if fits:
            by_kind.append([median(getattr(fit, name) for fit in fits) for name in NUMBERS])
    return Roofline(*map(median, zip(*by_kind, strict=True)), Origin.EXTRAPOLATED, "medians") if by_kind else None


def errors(device: str) -> Iterator[tuple[str, ...]]:
    """Rows of the table: family and format, then the errors of each way to forecast the device."""
    hardware, rows = load_hardware(device), points_of(device)
    others = [other for one, other in PAIRS if one == device]
    for other in others:
        there = points_of(other)[[*SHAPE, "seconds"]]
        rows = rows.merge(there, on=SHAPE, how="left", suffixes=("", f"_{other}"))
    by_family = rows.assign(family=rows["operator"].map(FAMILY)).groupby(["family", "dtype", "kv_dtype"])
    for (family, dtype, kv_dtype), points in by_family:
        name = str(kv_dtype or dtype)
        predicted: dict[str, list[pd.Series]] = {}
        for part, shapes in parts_of(points):
            work, tiled = part.work_of(shapes), part.tiled_work_of(shapes)
            for other in others:
                timed = profile_of(other)
                here, there = (p.seconds_of(family, name)(tiled) for p in (timed.stretched_to(hardware), timed))
                predicted.setdefault(other, []).append(shapes[f"seconds_{other}"] * (here / there))
            ways = {"default": profile_of(device, "default").operator(family, name)}
            for way, fit in (ways | {"medians": medians(family, name, device)}).items():
                if fit is not None:
                    seconds = seconds_by(fit, hardware.ceilings(family, name))(work)
                    predicted.setdefault(way, []).append(pd.Series(seconds, index=shapes.index))
        for way, parts in predicted.items():
            seconds = pd.concat(parts).dropna()
            fit_errors = FitErrors.of(seconds.to_numpy(np.float64), points.loc[seconds.index], lambda _: "")
            yield device, str(family), name, way, str(fit_errors.points), str(fit_errors)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    table = [row for kind in KINDS for device in kind for row in errors(device)]
    print("\n".join(aligned([("device", "family", "format", "by", "points", "errors"), *table])))
    fits = {(family, name): medians(family, name) for _, family, name, *_ in sorted(table)}
    rows = [(*key, *(f"{getattr(fit, name):.3g}" for name in NUMBERS)) for key, fit in sorted(fits.items()) if fit]
    print("\n".join(aligned([("family", "format", *NUMBERS), *rows])))


if __name__ == "__main__":
    main()
