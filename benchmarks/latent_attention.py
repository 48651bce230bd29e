"""One layer's latent attention as the bundled profiles take it, against NVIDIA's timings of vLLM's block.

    pip download --no-deps aiconfigurator-core==0.12.0 && unzip -d DIR aiconfigurator_core-*.whl
    python benchmarks/latent_attention.py --source DIR

The matrices and the attention of a layer are added up and divided by the measured time of the whole block. With bf16
matrices the attention's times are made from these very blocks (`calibration/importers/latent_attention`), so what
differs are rows that were dropped; blocks with fp8 matrices took no part. Prints a table and a JSON line.
"""

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import typer

from draftcast.calibration.importers.aiconfigurator import find_system, newest_first
from draftcast.calibration.importers.build_shipped import DEVICES
from draftcast.calibration.importers.latent_attention import MATRICES, MODULES, block_shape, module_rows
from draftcast.calibration.importers.table_file import NAMES
from draftcast.calibration.profile.hardware import load_hardware
from draftcast.calibration.profile.load import load_profile
from draftcast.calibration.profile.measured import grid_axes
from draftcast.kernels.model.catalog import load_model
from draftcast.kernels.work.layers import linear_layers
from draftcast.sim.cost.operator_tables import OperatorTables

PHASES = {"decode": "generation", "prefill": "context"}
FORMATS = {"bfloat16": "bf16", "fp8_block": "fp8"}
DEGREES = (1, 2, 4, 8, 16)


def ratios(source: Path, device: str, operator: str, name: str, gemm_type: str, tp: int) -> np.ndarray:
    """Predicted over measured seconds of every point with a bf16 cache at one tensor-parallel degree."""
    hardware, model = load_hardware(device), load_model(name)
    profile = load_profile(device, hardware)
    heads, (kind, phase) = block_shape(model, operator, tp), operator.split("_")
    file = f"{kind}_{PHASES[phase]}_module"
    grid = profile.measured.grid(operator, "bf16", "bf16", profile.seconds_of(operator, "bf16"), **heads)
    folder = find_system(source, hardware) / NAMES["files"][file]["family"] / "vllm"
    files = newest_first(folder, f"{file}_perf.parquet")
    if grid is None or not files:
        return np.empty(0)
    points = module_rows(pq.read_table(files[0]).to_pandas(), Counter(), operator, (name,), gemm_type)
    points = points[(points["kv_dtype"] == "bf16") & (points["heads"] == heads["heads"])]
    if points.empty:
        return np.empty(0)
    rows = (points["batch"] * points["q"]).to_numpy(np.int64)
    tables = OperatorTables(profile, tp, FORMATS[gemm_type])
    matrices = [layer for layer in linear_layers(model, tp) if layer.name in MATRICES]
    seconds = sum((tables.linear(layer, rows).sum(axis=1) / layer.count for layer in matrices), np.zeros(len(rows)))
    log_s = grid.log_seconds(*grid_axes(operator, points).T)
    return np.asarray((seconds + np.exp(log_s)) / points["seconds"].to_numpy())


def main(source: Annotated[Path, typer.Option(help="folder that holds aiconfigurator_core")]) -> None:
    rows = []
    blocks = [(operator, name) for operator, names in MODULES.items() for name in names]
    for device, (operator, name), gemm_type, tp in itertools.product(DEVICES, blocks, FORMATS, DEGREES):
        over_measured = ratios(source, device, operator, name, gemm_type, tp)
        if len(over_measured):
            place = {"device": device, "block": operator, "model": name, "matrices": gemm_type, "tp": tp}
            p10, median, p90 = np.quantile(over_measured, (0.1, 0.5, 0.9)).tolist()
            rows.append({**place, "points": len(over_measured), "p10": p10, "median": median, "p90": p90})
    print(pd.DataFrame(rows).to_string(index=False, float_format="{:.2f}".format))
    print(json.dumps(rows))


if __name__ == "__main__":
    main.__doc__ = __doc__
    typer.run(main)
