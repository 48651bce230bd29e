"""Builds the bundled profiles from an unpacked aiconfigurator-core: the same source gives the same bytes.

``python -m draftcast.calibration.importers.build_shipped --source DIR --out calibration/profiles``

Every row the importer takes is kept but for attention that few models have: heads wider than 256, and windows other
than those of `WITH_WINDOWS` on the heads that have them. Times are rounded to four digits (the source's own repetitions
differ by more), which makes the files small.
"""

import argparse
import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd

from draftcast.calibration.importers.aiconfigurator import PACKAGE, read_aiconfigurator
from draftcast.calibration.importers.formats import write_profile
from draftcast.calibration.profile.hardware import load_hardware
from draftcast.calibration.profile.load import VERIFY
from draftcast.calibration.profile.table import checked_table
from draftcast.errors import DraftcastError
from draftcast.kernels.arrays import FloatArray
from draftcast.kernels.model.catalog import load_model

# Not GB200: the machine that was timed ran large matrices at half the rate of a B200, so it was throttled.
DEVICES = ("a100-80g", "b200", "b300", "gb300", "h100-sxm", "h200", "l40s", "rtx-pro-6000")
DATE = "2026-11-21"  # of the import; a rebuild from the same source keeps it
COMMAND = "python -m draftcast.calibration.importers.build_shipped --source DIR --out calibration/profiles"
WIDEST_HEAD = 256
DIGITS = 4
WITH_WINDOWS = ("gpt-oss-20b", "gpt-oss-120b")
"""Models whose windows are bundled. Those of Gemma-3 were timed too, but they would bend the fits of full attention."""
NOT_BUNDLED = "attention of heads or windows that few models have: not bundled"
VERIFIED = "; verification timed by draftcast on an H100 (docs/gpu-runs.md)"
"""Added to the source of a profile whose folder holds such a table; H200's kernels are H100's, so it holds the same."""


def shipped(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of an imported table that are bundled, their seconds rounded to `DIGITS` digits."""
    frame = table[table["head_dim"] <= WIDEST_HEAD]
    windows = pd.MultiIndex.from_frame(frame[["window", "heads", "kv_heads", "head_dim"]])
    frame = frame[(frame["window"] == 0).to_numpy() | windows.isin(sorted(_windowed()))]
    return checked_table(frame.assign(seconds=rounded(frame["seconds"].to_numpy())))


def _windowed() -> set[tuple[int, int, int, int]]:
    """(window, heads, KV heads, head size) on a rank of each of these models."""
    return {
        (model.sliding_window, model.num_attention_heads // tp, model.kv_heads_per_rank(tp), model.head_dim)
        for model in map(load_model, WITH_WINDOWS)
        for tp in (1, 2, 4, 8)
        if model.num_attention_heads % tp == 0
    }


def rounded(seconds: FloatArray) -> FloatArray:
    """Positive numbers rounded to `DIGITS` significant digits, as the nearest float64 of that decimal."""
    return np.array([float(f"{value:.{DIGITS - 1}e}") for value in seconds])


def build(source: Path, out: Path, devices: tuple[str, ...] = DEVICES) -> None:
    """Write one profile folder a device below ``out``. Raises HardwareError: see `read_aiconfigurator`."""
    for name in devices:
        hardware = load_hardware(name)
        imported = read_aiconfigurator(source, hardware)
        table = shipped(imported.table)
        few = len(imported.table) - len(table)
        left_out = {**imported.left_out, **({NOT_BUNDLED: few} if few else {})}
        engines = {name: shipped(of_engine) for name, of_engine in imported.engines.items()}
        source_text = imported.source + (VERIFIED if (out / name / VERIFY).is_file() else "")
        bundled = dataclasses.replace(imported, table=table, engines=engines, left_out=left_out, source=source_text)
        write_profile(out / name, bundled, hardware, name=name, date=DATE, command=COMMAND)
        size = sum(file.stat().st_size for file in (out / name).iterdir())
        print(f"{name:<14}{len(table):>8} rows{size / 1e6:>8.2f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True, help=f"folder that holds {PACKAGE}, e.g. site-packages")
    parser.add_argument("--out", type=Path, required=True, help="where the profile folders go")
    parser.add_argument("--device", action="append", choices=DEVICES, help="only this one; repeatable")
    arguments = parser.parse_args()
    try:
        build(arguments.source, arguments.out, tuple(arguments.device or DEVICES))
    except DraftcastError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
