"""Tuned tables of AITER: which rows are taken, what is added to experts, and the profiles made of the bundled ones."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from draftcast.calibration.importers.aiter import AROUND_EXPERTS, KERNEL_S, read_aiter
from draftcast.calibration.importers.formats import read
from draftcast.calibration.profile.hardware import load_hardware
from draftcast.calibration.profile.load import TABLE, find_profile, load_profile
from draftcast.calibration.profile.table import load_table
from draftcast.errors import HardwareError
from draftcast.kernels.model.catalog import load_model
from draftcast.kernels.work.layers import linear_layers
from draftcast.sim.cost.operator_tables import OperatorTables
from tests.paths import ROOT

MI300X, MI355X = load_hardware("mi300x"), load_hardware("mi355x")
TUNED = ROOT / "benchmarks" / "aiter"
GEMM = "cu_num,M,N,K,us\n"
EXPERTS = "cu_num,token,model_dim,inter_dim,expert,topk,q_dtype_w,q_type,run_1stage,flat,us2,us\n"
FOUR_ROWS = "256,4,4096,512,512,10"


def written(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text, encoding="utf-8")
    return folder


def test_a_row_is_of_the_device_with_its_compute_units(tmp_path: Path) -> None:
    rows = "304,16,4096,7168,20\n256,16,4096,7168,15\n256,32,4096,7168,0\n256,64,4096,7168,nan\n"
    tables = written(tmp_path, a8w8_blockscale_tuned_gemm_x=GEMM + rows, a8w8_blockscale_untuned_gemm=GEMM + rows)
    imported = read_aiter(tables, MI355X)
    (row,) = imported.table.to_dict("records")
    assert (row["operator"], row["dtype"], row["m"], row["n"], row["k"]) == ("linear", "fp8_block", 16, 4096, 7168)
    assert (row["seconds"], row["graph"]) == (pytest.approx(15e-6), True)
    assert imported.left_out == {"compute units 304": 1, "no time": 2}
    assert read("aiter", tables, MI300X).table["seconds"].tolist() == [pytest.approx(20e-6)]
    assert list(imported.sources) == ["a8w8_blockscale_tuned_gemm_x.csv"]


def test_of_one_shape_the_fastest_is_taken(tmp_path: Path) -> None:
    tables = written(
        tmp_path,
        glm5_bf16_tuned_gemm=GEMM + "256,16,4096,4096,12\n",
        bf16_tuned_gemm_b=GEMM + "256,16,4096,4096,9\n256,16,4096,4096,11\n",
        bf16_tuned_gemm_wide="cu_num,M,N,K,outdtype,us\n256,16,4096,4096,torch.float32,7\n",
        bf16_tuned_batched_gemm="cu_num,B,M,N,K,us\n256,16,1,1280,8192,110\n",
        a4w4_blockscale_tuned_gemm=GEMM + "256,16,4096,4096,5\n",
        a8w8_bpreshuffle_mxfp8_tuned_gemm=GEMM + "256,16,4096,4096,4\n",
    )
    imported = read_aiter(tables, MI355X)
    assert imported.table[["dtype", "seconds"]].values.tolist() == [["bf16", pytest.approx(9e-6)]]
    unread = ("a4w4_blockscale_tuned_gemm", "a8w8_bpreshuffle_mxfp8_tuned_gemm", "bf16_tuned_gemm_wide")
    assert imported.left_out == {f"matrices of {name}.csv": 1 for name in unread}


@pytest.mark.parametrize(
    ("how", "around"),
    [
        ("0,0,12,", AROUND_EXPERTS),
        (",,,", AROUND_EXPERTS),
        ("1,0,0.0,", AROUND_EXPERTS),
        ("1,1,0.0,", 1),
        ("0,0,0.0,", 1),
    ],
)
def test_what_routes_rows_to_experts_is_added(tmp_path: Path, how: str, around: int) -> None:
    tables = written(tmp_path, tuned_fmoe=f"{EXPERTS}{FOUR_ROWS},torch.float4_e2m1fn_x2,QuantType.per_1x32,{how}26\n")
    (row,) = read_aiter(tables, MI355X).table.to_dict("records")
    assert (row["operator"], row["dtype"], row["num_experts"], row["top_k"]) == ("moe", "mxfp4", 512, 10)
    assert (row["k"], row["n"]) == (4096, 512)
    assert row["seconds"] == pytest.approx(26e-6 + around * KERNEL_S)


def test_experts_in_formats_that_are_not_read_are_counted(tmp_path: Path) -> None:
    kinds = ("torch.float8_e4m3fn,QuantType.per_1x32", "torch.int8,QuantType.per_Tensor", "torch.bfloat16,QuantType.No")
    tables = written(tmp_path, tuned_fmoe=EXPERTS + "".join(f"{FOUR_ROWS},{kind},,,9,90\n" for kind in kinds))
    imported = read_aiter(tables, MI355X)
    assert imported.table["dtype"].tolist() == ["bf16"]
    assert imported.left_out == {"experts in MXFP8": 1, "experts in QuantType.per_Tensor": 1}


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "holds no tuned_gemm or tuned_fmoe table of AITER"),
        ({"bf16_tuned_gemm": "M,N,K,us\n"}, r"bf16_tuned_gemm\.csv:1: cu_num: column missing"),
        ({"bf16_tuned_gemm": GEMM + "256,0,64,64,3\n"}, r"bf16_tuned_gemm\.csv:2: M = '0': a whole number >= 1"),
        ({"bf16_tuned_gemm": GEMM + "256,1,64,64,x\n"}, r"bf16_tuned_gemm\.csv:2: us = 'x': a time > 0"),
        ({"bf16_tuned_gemm": GEMM + "304,1,64,64,3\n"}, "holds no row that can be imported"),
        ({"tuned_fmoe": "cu_num,us\n256,3\n"}, r"tuned_fmoe\.csv:1: q_type: column missing"),
    ],
)
def test_faults_are_named(tmp_path: Path, files: dict[str, str], says: str) -> None:
    with pytest.raises(HardwareError, match=says):
        read_aiter(written(tmp_path, **files), MI355X)


@pytest.mark.parametrize("hardware", [MI300X, MI355X], ids=lambda hardware: hardware.name)
def test_the_bundled_profiles_are_made_of_the_bundled_tables(hardware) -> None:
    bundled = load_table(find_profile(hardware.name) / TABLE)
    pd.testing.assert_frame_equal(read_aiter(TUNED, hardware).table, bundled, check_dtype=False)


def test_fp8_by_blocks_takes_the_kernels_timed_for_it() -> None:
    """DeepSeek-V3's checkpoint is by blocks: its 18 us of 7,168 inputs are AITER's, whatever the width."""
    rows = np.array([16])
    tables = OperatorTables(load_profile("mi300x", MI300X), 8, "fp8")
    for model, timed in ((load_model("DeepSeek-V3"), True), (load_model("Llama-3.1-70B"), False)):
        layers = [layer for layer in linear_layers(model, 8) if not layer.num_experts and layer.quantised]
        assert {layer.in_blocks for layer in layers} == {timed}
    shared = next(layer for layer in linear_layers(load_model("DeepSeek-V3"), 8) if (layer.k, layer.n) == (7168, 512))
    assert tables.linear(shared, rows).sum() / shared.count == pytest.approx(18.4e-6, rel=0.01)
    by_tensor = next(layer for layer in linear_layers(load_model("Llama-3.1-70B"), 8) if layer.quantised)
    assert tables.linear(by_tensor, rows)[0, 2] > 0.0  # extrapolated
