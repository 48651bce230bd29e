"""Whole attention blocks of the importer become attention: less their matrices, none that ran out of the cache."""

from __future__ import annotations

from collections import Counter

import pandas as pd
import pytest

from draftcast.calibration.importers.latent_attention import (
    CACHED,
    MODEL,
    NOTHING_LEFT,
    module_rows,
    without_matrices,
)
from draftcast.calibration.importers.table_file import complete
from draftcast.calibration.profile.hardware import load_hardware

H100 = load_hardware("h100-sxm")
# Matrices of 16 and of 1 head: qkv_a 7168 x 2112, q_b 1536 x 192, kv_b 512 x 256 and o 128 x 7168 a head.
MATRIX_US = {
    16: {(7168, 2112): 15.0, (1536, 3072): 8.0, (512, 4096): 5.0, (2048, 7168): 14.0},
    1: {(1536, 192): 3.0, (512, 256): 3.0, (128, 7168): 4.0},
}


def block(us: float, batch: int = 4, isl: int = 1, step: int = 1023, heads: int = 16, **more: str) -> dict:
    row = {"model": MODEL, "gemm_type": "bfloat16", "kv_cache_dtype": "bfloat16", "mla_dtype": "bfloat16"}
    sizes = {"batch_size": batch, "isl": isl, "step": step, "num_heads": heads}
    return {"kernel_source": "k", **row, **sizes, "latency": us * 1e-3, **more}


def rows_of(*blocks: dict, operator: str = "mla_decode", left_out: Counter[str] | None = None) -> pd.DataFrame:
    return complete(module_rows(pd.DataFrame(blocks), Counter() if left_out is None else left_out, operator))


def matrices() -> pd.DataFrame:
    points = [
        {"m": m, "k": k, "n": n, "seconds": us * 1e-6 * m**0.01}
        for of_heads in MATRIX_US.values()
        for (k, n), us in of_heads.items()
        for m in (1, 4, 64, 1024)
    ]
    return complete(pd.DataFrame(points).assign(operator="linear", dtype="bf16", implementation="k", graph=True))


def left(*blocks: dict, operator: str = "mla_decode") -> tuple[pd.DataFrame, Counter[str]]:
    counted: Counter[str] = Counter()
    frame = pd.concat([matrices(), rows_of(*blocks, operator=operator)], ignore_index=True)
    found = without_matrices(frame, H100, counted)
    return found[found["operator"] == operator], +counted


def test_columns_and_formats() -> None:
    left_out: Counter[str] = Counter()
    rows = rows_of(
        block(100.0),
        block(90.0, kv_cache_dtype="fp8"),
        block(80.0, gemm_type="fp8_block"),
        block(80.0, mla_dtype="fp8"),
        block(80.0, model="another/Model"),
        block(80.0, heads=12),
        left_out=left_out,
    )
    fields = ["operator", "dtype", "kv_dtype", "batch", "q", "context", "heads", "k", "n"]
    assert rows[fields].to_numpy().tolist() == [
        ["mla_decode", "bf16", "bf16", 4, 1, 1024, 16, 576, 512],
        ["mla_decode", "bf16", "fp8", 4, 1, 1024, 16, 576, 512],
    ]
    assert rows["seconds"].tolist() == pytest.approx([100e-6, 90e-6])
    assert +left_out == {
        "mla_decode with gemm_type fp8_block": 1,
        "mla_decode with mla_dtype fp8": 1,
        "mla_decode with model another/Model": 1,
        "mla_decode with heads that ranks cannot share": 1,
    }
    prompt = rows_of(block(100.0, isl=512, step=0), operator="mla_prefill")
    assert prompt[["q", "context", "k", "n"]].to_numpy().tolist() == [[512, 512, 192, 128]]


def test_sparse_blocks_are_told_apart_by_their_index_heads() -> None:
    left_out: Counter[str] = Counter()
    names = ("deepseek-ai/DeepSeek-V3.2", "zai-org/GLM-5", MODEL)
    rows = rows_of(*(block(200.0, model=name) for name in names), operator="dsa_decode", left_out=left_out)
    fields = ["heads", "kv_heads", "head_dim", "k", "n", "top_k"]
    assert rows[fields].to_numpy().tolist() == [[16, 64, 128, 576, 512, 2048], [16, 32, 128, 576, 512, 2048]]
    assert +left_out == {f"dsa_decode with model {MODEL}": 1}
    # Indexer's matrices: 1536 x 8192 and 7168 x 192, beside those of MATRIX_US.
    index = {(1536, 8192): 9.0, (7168, 192): 6.0}
    more = [{"m": m, "k": k, "n": n, "seconds": us * 1e-6} for (k, n), us in index.items() for m in (1, 4, 64)]
    points = complete(pd.DataFrame(more).assign(operator="linear", dtype="bf16", implementation="k", graph=True))
    frame = pd.concat([matrices(), points, rows[:1]], ignore_index=True)
    found = without_matrices(frame, H100, Counter())
    seconds = found.loc[found["operator"] == "dsa_decode", "seconds"].tolist()
    of_matrices = sum(MATRIX_US[16].values()) * 4**0.01 + sum(index.values())
    assert seconds == pytest.approx([(200.0 - of_matrices) * 1e-6])


@pytest.mark.parametrize(("operator", "isl", "step"), [("mla_decode", 1, 1023), ("mla_prefill", 16, 0)])
def test_what_is_left_is_the_block_less_its_matrices(operator: str, isl: int, step: int) -> None:
    rows, counted = left(block(100.0, isl=isl, step=step), operator=operator)
    of_matrices = sum(MATRIX_US[16].values()) * (4 * isl) ** 0.01
    assert rows["seconds"].tolist() == pytest.approx([(100.0 - of_matrices) * 1e-6])
    assert not counted


def test_blocks_no_slower_than_their_matrices_are_dropped_and_counted() -> None:
    rows, counted = left(block(41.0, batch=1), block(45.0, batch=4))
    assert rows["batch"].tolist() == [4]
    assert counted == {NOTHING_LEFT: 1}


def test_blocks_out_of_the_cache_are_dropped_below_the_roofline_of_the_others() -> None:
    """33 MB of weights of one head fit the 50 MB of an H100's cache, 73 MB of 16 heads do not."""
    others = [block(100.0 + 0.1 * batch, batch=batch) for batch in (1, 2, 4, 8, 16)]
    rows, counted = left(*others, block(50.0, heads=1), block(120.0, heads=1, batch=8))
    assert rows.loc[rows["heads"] == 1, "batch"].tolist() == [8]
    assert counted == {CACHED: 1}
    # With latents of 64 x 1024 tokens, 75 MB, it is no longer out of the cache.
    rows, counted = left(*others, block(90.0, heads=1, batch=64))
    assert rows.loc[rows["heads"] == 1, "batch"].tolist() == [64]
    assert not counted


def test_blocks_without_times_of_their_matrices_are_counted() -> None:
    counted: Counter[str] = Counter()
    assert without_matrices(rows_of(block(100.0)), H100, counted).empty
    assert counted == {"latent attention without times of its matrices": 1}
