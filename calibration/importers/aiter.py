"""Times that AMD's AITER keeps of the fastest kernel of each shape: the tuned tables of its ``aiter/configs``.

Every CSV file with ``tuned`` in its name is read, in folders below too, but for shapes that are still to be tuned and
for batches of equal matrices. A row names its device by compute units (``cu_num``). Times are microseconds of kernels
alone. Those of experts hold both matrices, and what chooses experts and sorts rows by them is added
(`AROUND_EXPERTS`); where one launch (``flat``) or one pipeline (no second stage) sorts and quantises, only the choice.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from draftcast.calibration.importers import table_file
from draftcast.calibration.importers.plausible import plausible
from draftcast.calibration.importers.table_file import ImportedTable, LeftOut, TableRows
from draftcast.calibration.profile.hardware import HardwareSpec
from draftcast.calibration.profile.load import sha256
from draftcast.errors import HardwareError

MATRICES = {"mxfp8": "", "a8w8_blockscale": "fp8_block", "a8w8": "fp8", "bf16": "bf16"}  # by the file's name
EXPERTS = {
    "QuantType.No": "bf16",
    "QuantType.per_Token": "fp8",
    "QuantType.per_1x128": "fp8_block",
    "QuantType.per_1x32": "mxfp4",
}
SIZES = {"m": "token", "k": "model_dim", "n": "inter_dim", "num_experts": "expert", "top_k": "topk"}
NO_TIME = ("0", "0.0", "nan", "inf")
KERNEL_S = 5e-6
"""A small kernel of CDNA 3 and 4 in a CUDA graph: 3.8 to 5.5 us on MI300X (huggingface/blog, mi300kernels.md)."""
AROUND_EXPERTS = 3
"""Kernels of that size that choose experts, sort rows by them and quantise activations; one pipeline holds two."""


def read_aiter(path: Path, hardware: HardwareSpec) -> ImportedTable:
    """Matrices and experts of the device's compute units, of a file or of all below a folder.

    Raises HardwareError: no file of the kind, a column missing, a bad value: file, line and column are named.
    """
    found = sorted(path.rglob("*tuned_*.csv")) if path.is_dir() else [path]
    files = [file for file in found if not {"untuned", "batched"} & set(file.stem.split("_"))]
    if not files:
        raise HardwareError("holds no tuned_gemm or tuned_fmoe table of AITER", file=str(path))
    left_out = LeftOut()
    rows = pd.concat([_read(file, hardware, left_out) for file in files], ignore_index=True)
    # Of one shape in several files the fastest, as the tuner chooses.
    fastest = rows.sort_values("seconds").drop_duplicates([name for name in rows if name != "seconds"]).sort_index()
    frame = table_file.complete(fastest).assign(implementation="aiter", graph=True)
    return ImportedTable(
        table=table_file.table_of(plausible(frame, hardware, left_out), path),
        device=hardware.name,
        source="imported from the tuned kernels of AITER (github.com/ROCm/aiter), timed by AMD",
        licence="MIT",
        sources={file.name: sha256(file) for file in files},
        left_out=dict(+left_out),
    )


def _read(file: Path, hardware: HardwareSpec, left_out: LeftOut) -> pd.DataFrame:
    is_of_experts = "tuned_fmoe" in file.name
    rows = table_file.read_rows(file, "cu_num", "us", *(("q_type", "q_dtype_w") if is_of_experts else ()))
    units = [str(hardware.multiprocessors)]
    frame = table_file.known_rows(rows.frame, "cu_num", units, "compute units", left_out)
    frame = table_file.without(frame, frame["us"].isin(NO_TIME), "no time", left_out)
    read = _experts if is_of_experts else _matrices
    return read(TableRows(rows.file, frame, rows.has_lines), left_out)


def _matrices(rows: TableRows, left_out: LeftOut) -> pd.DataFrame:
    name = Path(rows.file).name
    dtype = next((dtype for part, dtype in MATRICES.items() if part in name), "")
    unread = _text(rows.frame, "outdtype").str.contains("float32") | (dtype == "")
    chosen = TableRows(
        rows.file, table_file.without(rows.frame, unread, f"matrices of {name}", left_out), rows.has_lines
    )
    shape = {column.lower(): chosen.whole(column, 1) for column in "MNK"}
    return chosen.frame[[]].assign(operator="linear", dtype=dtype, seconds=chosen.seconds("us", 1e-6), **shape)


def _experts(rows: TableRows, left_out: LeftOut) -> pd.DataFrame:
    frame = table_file.known_rows(rows.frame, "q_type", EXPERTS, "experts in", left_out)
    is_mxfp8 = (frame["q_type"].map(EXPERTS) == "mxfp4") & ~frame["q_dtype_w"].str.contains("float4")
    frame = table_file.without(frame, is_mxfp8, "experts in MXFP8", left_out)
    of_pipeline = (_text(frame, "run_1stage") == "0") & _text(frame, "us2").isin(NO_TIME)
    around = np.where((_text(frame, "flat") == "1") | of_pipeline, 1, AROUND_EXPERTS)
    chosen = TableRows(rows.file, frame, rows.has_lines)
    shape = {name: chosen.whole(column, 1) for name, column in SIZES.items()}
    seconds = chosen.seconds("us", 1e-6) + around * KERNEL_S
    return frame[[]].assign(operator="moe", dtype=frame["q_type"].map(EXPERTS), seconds=seconds, **shape)


def _text(frame: pd.DataFrame, column: str) -> "pd.Series[str]":
    """A column that not every file has; empty where it is missing."""
    return frame[column] if column in frame else pd.Series("", index=frame.index)
