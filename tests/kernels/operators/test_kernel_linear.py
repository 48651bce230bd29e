"""Linear layers, torch and Triton, against float64. Without a GPU Triton runs in its interpreter."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from draftcast.kernels.operators.registry import operator
from draftcast.kernels.operators.triton import linear as triton_linear
from draftcast.kernels.operators.triton.device import MatrixTiles
from draftcast.kernels.operators.triton.linear import split_count, tile_plan

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LINEAR = operator("linear")
both = pytest.mark.parametrize("name", ["torch", "triton"])
dtypes = pytest.mark.parametrize("dtype", LINEAR.dtypes)
H200 = 132
"""Multiprocessors."""


def tolerance(dtype: str, y: torch.Tensor) -> torch.Tensor:
    """fp32: sums of some hundred products of size 1/sqrt(k). bf16 outputs have 8 bits, which Triton's interpreter cuts
    off. A GPU may add parts of a sum in bf16 (cuBLAS), and fp8 products in registers of 14 bits or so (Hopper)."""
    if dtype == "fp32":
        return 1e-6 + 1e-5 * y.abs()
    return (4e-3 if DEVICE == "cuda" else 1e-5) + 2**-7 * y.abs()


def made(m: int, k: int, n: int, dtype: str, seed: int = 0) -> dict[str, Any]:
    generator = torch.Generator(DEVICE)
    generator.manual_seed(seed)
    return LINEAR.make_inputs({"m": m, "k": k, "n": n}, dtype, "", DEVICE, generator)


def check(name: str, inputs: dict[str, Any], dtype: str, *, launches: int = 1, **options: Any) -> None:
    outputs = LINEAR.make_outputs(inputs)
    if name == "triton":
        launch = triton_linear.prepare(inputs, outputs, **options)
    else:
        launch = LINEAR.implementations[name].prepare(inputs, outputs)
    expected = LINEAR.reference(inputs)["y"]
    assert outputs["y"].dtype == (torch.float32 if dtype == "fp32" else torch.bfloat16)
    for _ in range(launches):
        outputs["y"].fill_(torch.nan)
        launch()
        assert ((outputs["y"].double() - expected).abs() <= tolerance(dtype, expected)).all()


@both
@dtypes
@pytest.mark.parametrize("m", range(1, 18))
def test_few_rows(name: str, dtype: str, m: int) -> None:
    check(name, made(m, 128, 48, dtype, seed=m), dtype)


@both
@dtypes
@pytest.mark.parametrize("m", [33, 64, 65, 129])
def test_more_rows(name: str, dtype: str, m: int) -> None:
    check(name, made(m, 96, 80, dtype, seed=m), dtype)


@both
@pytest.mark.parametrize("dtype", ["fp32", "bf16"] + (["fp8"] if DEVICE == "cpu" else []))
@pytest.mark.parametrize(("k", "n"), [(1, 1), (7, 3), (100, 70), (129, 65), (255, 257)])
def test_sizes_that_no_tile_divides(name: str, dtype: str, k: int, n: int) -> None:
    check(name, made(5, k, n, dtype), dtype)


@dtypes
@pytest.mark.parametrize("splits", [1, 3, 9])
def test_every_split(dtype: str, splits: int) -> None:
    """Eight steps of k: unequal splits, and one with nothing to do. A launch leaves its work space as it was."""
    plan = MatrixTiles(16, 32, 32, 4, 2, 1)
    check("triton", made(5, 250, 40, dtype), dtype, plan=plan, splits=splits, launches=2)


@pytest.mark.parametrize(("m", "n"), [(290, 130), (130, 290)])
def test_grouped_tiles_cover_everything(m: int, n: int) -> None:
    """Row tiles in groups of eight and a rest."""
    check("triton", made(m, 32, n, "bf16"), "bf16", plan=MatrixTiles(32, 64, 32, 4, 2, 1))


@pytest.mark.parametrize("m", [16, 17, 40, 100, 200])
@dtypes
def test_the_plan_of_every_size(dtype: str, m: int) -> None:
    size = {"fp32": 4, "bf16": 2, "fp8": 1}[dtype]
    check("triton", made(m, 130 if dtype != "fp8" else 144, 144, dtype), dtype, plan=tile_plan(m, 4096, size, H200))


def test_scales_of_fp8_count() -> None:
    inputs = made(4, 64, 32, "fp8")
    before = LINEAR.reference(inputs)["y"]
    for scale in ("x_scale", "w_scale"):
        inputs[scale] = inputs[scale] * 2
    torch.testing.assert_close(LINEAR.reference(inputs)["y"], 4 * before)
    for name in LINEAR.implementations:
        check(name, inputs, "fp8")


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize(("k", "n"), [(4096, 6144), (14336, 4096), (4096, 128256), (512, 1024)])
@pytest.mark.parametrize("m", [1, 8, 17, 64, 128, 256, 4096])
def test_tiles_fit_and_splits_fill(m: int, k: int, n: int, size: int) -> None:
    plan = tile_plan(m, n, size, H200)
    stage = (plan.rows + plan.columns) * plan.depth * size
    assert stage * plan.num_stages * plan.resident <= 227 * 1024
    splits = split_count(m, n, k, size, plan, H200)
    tiles = -(-m // plan.rows) * -(-n // plan.columns)
    steps = -(-k // plan.depth)
    assert splits * m * 4 <= max(k * size / 4, m * 4)
    if tiles >= 2 * H200 * plan.resident or steps < 8:
        assert splits <= 2
    if m == 1 and (k, n) == (14336, 4096):
        # Enough programs for the device, which the 64 tiles are not.
        assert tiles < H200 <= tiles * splits


def test_a_few_rows_more_do_not_change_the_tile() -> None:
    assert len({tile_plan(m, 4096, 2, H200) for m in range(1, 17)}) == 1
    assert tile_plan(17, 4096, 2, H200) != tile_plan(16, 4096, 2, H200)
    assert tile_plan(4096, 28672, 2, H200).columns == 256
