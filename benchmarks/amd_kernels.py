"""Rooflines of AMD's matrices and experts, fitted to kernels that AMD timed to choose the fastest for each shape.

    pip download --no-deps amd-aiter==0.1.7.post2.dev18 && unzip -d DIR amd_aiter-*.whl 'aiter/configs/*'
    python benchmarks/amd_kernels.py DIR

The package (MIT) tells devices by their compute units: 304 is MI300X, 256 MI355X, 80 MI308X, which has the memory of an
MI300X and a part of its units. ``calibration/profiles/default-amd.yaml`` takes what this prints of all devices,
``default-cdna4.yaml`` what it prints of MI355X alone, rounded; no figure of the evidence takes part. Batches of equal
matrices are one launch. MI355X's experts were timed with too few rows to tell what they reach of its compute: their
share is that of all devices.
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer

from draftcast.calibration.profile.hardware import load_hardware
from draftcast.calibration.profile.measured import TablePart, seconds_by
from draftcast.calibration.profile.roofline import Roofline
from draftcast.calibration.profile.roofline_fit import FitErrors, fit_roofline
from draftcast.kernels.operators.cost import Work
from draftcast.scenarios.show.tables import aligned

MI300X = load_hardware("mi300x")
MI308X = replace(MI300X, peak_flops={name: rate * 80 / 304 for name, rate in MI300X.peak_flops.items()})
MI355X_UNITS = 256
DEVICES = {304: MI300X, MI355X_UNITS: load_hardware("mi355x"), 80: MI308X}
MATRICES = {
    "bf16": ["bf16_tuned_batched_gemm"],
    "fp8": ["a8w8_tuned_batched_gemm", "a8w8_tuned_gemm", "a8w8_bpreshuffle_tuned_gemm"],
}
EXPERTS = {"bf16": "QuantType.No", "fp8": "QuantType.per_Token"}
NAMES = {"M": "m", "K": "k", "N": "n", "token": "m", "model_dim": "k", "inter_dim": "n"}
NAMES |= {"expert": "num_experts", "topk": "top_k"}


def fitted(
    part: TablePart, rows: pd.DataFrame, devices: str, e_c: float | None = None
) -> tuple[Roofline, tuple[str, ...]]:
    """The roofline of the devices' points together, and its row of the table: how far they lie from it."""
    compute, memory = np.zeros(len(rows)), np.zeros(len(rows))
    for units, hardware in DEVICES.items():
        of_device = (rows["cu_num"] == units).to_numpy()
        work, batch = part.work_of(rows[of_device]), rows["B"][of_device].to_numpy()
        flops, bandwidth = hardware.ceilings(*part.roofline)
        compute[of_device], memory[of_device] = batch * work.flops / flops, batch * work.bytes / bandwidth
    fit = fit_roofline(compute, memory, rows["seconds"].to_numpy(), e_c)
    predicted = seconds_by(fit, (1.0, 1.0))(Work(compute, memory))
    errors = FitErrors.of(predicted, rows, lambda _: "")
    values = (f"{value:.3g}" for value in (fit.t0_s, fit.e_c, fit.e_m, fit.p))
    return fit, (str(part), devices, str(len(rows)), *values, str(errors))


def main(folder: Annotated[Path, typer.Argument(help="where the wheel was unzipped")]) -> None:
    configs = folder / "aiter" / "configs"
    table: list[tuple[str, ...]] = []
    experts = read(configs / "tuned_fmoe.csv")
    for dtype, names in MATRICES.items():
        rows = pd.concat([read(configs / f"{name}.csv") for name in names])
        table.append(fitted(TablePart("linear", dtype), rows[rows["cu_num"] != 80], "all")[1])
        rows = experts[experts["q_type"] == EXPERTS[dtype]]
        of_all, row = fitted(TablePart("moe", dtype), rows, "all")
        _, row_of_one = fitted(TablePart("moe", dtype), rows[rows["cu_num"] == MI355X_UNITS], "mi355x", of_all.e_c)
        table += [row, row_of_one]
    print("\n".join(aligned([("part", "devices", "points", "t0_s", "e_c", "e_m", "p", "errors"), *table])))


def read(path: Path) -> pd.DataFrame:
    rows: pd.DataFrame = pd.read_csv(path).rename(columns=NAMES)
    rows = rows[np.isfinite(rows["us"]) & (rows["us"] > 0.0)]
    return rows.assign(seconds=rows["us"] * 1e-6, B=rows.get("B", 1))


if __name__ == "__main__":
    main.__doc__ = __doc__
    typer.run(main)
