"""aiconfigurator's Parquet files: columns, units, choice among rows and files, and every fault named by file."""

from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from draftcast.calibration.importers import aiconfigurator, plausible
from draftcast.calibration.importers.aiconfigurator import find_system, moe_rows, newest_first, read_aiconfigurator
from draftcast.calibration.profile.hardware import load_hardware
from draftcast.errors import HardwareError, InputError
from draftcast.kernels.operators.linear import touched_experts

H100 = load_hardware("h100-sxm")
DEVICE = "NVIDIA H100 80GB HBM3"


def put(
    root: Path, family: str, name: str, rows: list[dict], version: str = "0.24.0", engine: str = "vllm", **over: object
) -> Path:
    """One file of the package below ``root``; every row gets the columns all files have."""
    file = root / "aiconfigurator_core/systems/data/h100_sxm" / family / engine / version / f"{name}_perf.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    always = {"framework": engine.upper(), "version": version, "device": DEVICE, "op_name": name, "kernel_source": "k"}
    pd.DataFrame([{**always, **row, **over} for row in rows]).to_parquet(file)
    return file


def gemm(m: int, k: int, n: int, ms: float, dtype: str = "bfloat16") -> dict:
    return {"gemm_dtype": dtype, "m": m, "k": k, "n": n, "latency": ms}


def attention(batch: int, isl: int, step: int, ms: float, kv: str = "bfloat16", **more: object) -> dict:
    heads = {"num_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    row = {"batch_size": batch, "isl": isl, "step": step, "kv_cache_dtype": kv, "latency": ms, "window_size": 0}
    return {**heads, **row, **more}


def moe(tokens: int, ms: float, distribution: str = "balanced", **more: object) -> dict:
    row = {"num_tokens": tokens, "hidden_size": 2048, "inter_size": 768, "topk": 8, "num_experts": 128}
    row |= {"moe_tp_size": 2, "moe_ep_size": 1, "distribution": distribution, "moe_dtype": "bfloat16", "latency": ms}
    return {**row, **more}


def all_reduce(elements: int, ranks: int, ms: float, mode: str = "graph") -> dict:
    return {
        "allreduce_dtype": "bfloat16",
        "message_size": elements,
        "num_gpus": ranks,
        "latency": ms,
        "kernel_source": f"vLLM_custom_{mode}",
    }


def shape(frame: pd.DataFrame, *fields: str) -> list[tuple]:
    return [tuple(row) for row in frame[list(fields)].itertuples(index=False)]


def test_linear_layers(tmp_path: Path) -> None:
    put(tmp_path, "gemm", "gemm", [gemm(8, 4096, 6144, 0.02), gemm(8, 4096, 6144, 0.0125, "fp8")])
    frame = read_aiconfigurator(tmp_path, H100).table.query("operator == 'linear'")
    assert shape(frame, "dtype", "m", "k", "n", "graph", "settled", "repeats") == [
        ("bf16", 8, 4096, 6144, True, False, 0),
        ("fp8", 8, 4096, 6144, True, False, 0),
    ]
    assert frame["seconds"].tolist() == pytest.approx([20e-6, 12.5e-6])
    assert frame["low_s"].isna().all()


def test_formats_without_counterpart_are_counted(tmp_path: Path) -> None:
    rows = [gemm(8, 4096, 6144, 0.02), gemm(8, 4096, 6144, 0.02, "fp8_block"), gemm(9, 4096, 6144, 0.02, "int8")]
    put(tmp_path, "gemm", "gemm", rows)
    imported = read_aiconfigurator(tmp_path, H100)
    assert len(imported.table) == 1
    assert imported.left_out == {"linear layers in fp8_block": 1, "linear layers in int8": 1}


def test_attention_decode_context_counts_the_new_token(tmp_path: Path) -> None:
    rows = [attention(4, 1, 1023, 0.03), attention(4, 1, 1023, 0.025, "fp8"), attention(4, 1, 63, 0.012)]
    rows.append(attention(4, 1, 4095, 0.02, window_size=128))
    put(tmp_path, "attention", "generation_attention", rows)
    frame = read_aiconfigurator(tmp_path, H100).table.query("operator == 'attention_decode'")
    fields = ("dtype", "kv_dtype", "batch", "q", "context", "heads", "kv_heads", "head_dim", "window", "tree")
    assert shape(frame, *fields) == [
        ("bf16", "bf16", 4, 1, 64, 32, 8, 128, 0, 0),
        ("bf16", "bf16", 4, 1, 1024, 32, 8, 128, 0, 0),
        ("bf16", "bf16", 4, 1, 4096, 32, 8, 128, 128, 0),
        ("bf16", "fp8", 4, 1, 1024, 32, 8, 128, 0, 0),
    ]
    assert frame["seconds"].tolist() == pytest.approx([12e-6, 30e-6, 20e-6, 25e-6])


def test_attention_prefill_context_is_prefix_and_chunk(tmp_path: Path) -> None:
    rows = [attention(2, 512, 0, 0.05), attention(2, 512, 1536, 0.09)]
    put(tmp_path, "attention", "context_attention", rows)
    frame = read_aiconfigurator(tmp_path, H100).table.query("operator == 'attention_prefill'")
    assert shape(frame, "batch", "q", "context") == [(2, 512, 512), (2, 512, 2048)]


def test_files_without_windows(tmp_path: Path) -> None:
    row = attention(4, 1, 1023, 0.03)
    del row["window_size"]
    put(tmp_path, "attention", "generation_attention", [row])
    assert read_aiconfigurator(tmp_path, H100).table["window"].tolist() == [0]


def test_experts_on_one_rank(tmp_path: Path) -> None:
    rows = [moe(64, 0.3), moe(64, 0.2, moe_dtype="w4a16_mxfp4"), moe(64, 0.25, moe_dtype="fp8_block")]
    put(tmp_path, "moe", "moe", rows)
    frame = read_aiconfigurator(tmp_path, H100).table.query("operator == 'moe'")
    fields = ("dtype", "m", "k", "n", "num_experts", "top_k", "graph")
    assert shape(frame, *fields) == [
        ("bf16", 64, 2048, 384, 128, 8, True),
        ("fp8", 64, 2048, 384, 128, 8, True),
        ("mxfp4", 64, 2048, 384, 128, 8, True),
    ]


def test_experts_take_the_routing_nearest_to_independent_choice() -> None:
    # 128 experts, 8 a token: 24 tokens make 1.5 pairs an expert, the last point of the crowded routing.
    raw = pd.DataFrame(
        [
            {"kernel_source": "k", **moe(tokens, ms, routing)}
            for tokens in (16, 24, 32)
            for routing, ms in (("balanced", 4.0), ("power_law_1.2", 2.0), ("power_law_1.01", 3.0))
        ]
    )
    taken = moe_rows(raw, Counter()).set_index("m")["seconds"]
    assert taken.to_dict() == pytest.approx({16: 3e-3, 24: 3e-3, 32: 4e-3})
    # Balanced visits all 128 from 16 tokens on, where independent choice visits 82.
    assert touched_experts(16, 128, 8) == pytest.approx(82.4, abs=0.1)


def test_experts_without_the_wanted_routing_take_the_next() -> None:
    only = pd.DataFrame([{"kernel_source": "k", **moe(512, ms, name)} for name, ms in (("power_law_1.01", 3.0),)])
    assert moe_rows(only, Counter())["seconds"].tolist() == pytest.approx([3e-3])
    other = pd.DataFrame([{"kernel_source": "k", **moe(512, 3.0, "zipf")}])
    assert moe_rows(other, Counter()).empty


def test_experts_without_counterpart_are_counted() -> None:
    raw = pd.DataFrame(
        [
            {"kernel_source": "k", **moe(64, 0.3)},
            {"kernel_source": "k", **moe(64, 0.3, topk=22, num_experts=512)},
            {"kernel_source": "k", **moe(64, 0.3, inter_size=1856)},
            {"kernel_source": "marlin_situ_as_silu", **moe(64, 0.3)},
            {"kernel_source": "k", **moe(64, 0.3, moe_tp_size=1, moe_ep_size=4)},
            {"kernel_source": "k", **moe(64, 0.3, inter_size=705)},
        ]
    )
    left_out: Counter[str] = Counter()
    assert len(moe_rows(raw, left_out)) == 1
    assert list(left_out.values()) == [3, 1, 1]


def test_all_reduce_counts_bytes(tmp_path: Path) -> None:
    rows = [all_reduce(4096, 8, 0.006), all_reduce(4096, 8, 0.012, "eager")]
    put(tmp_path, "comm", "custom_allreduce", rows)
    frame = read_aiconfigurator(tmp_path, H100).table.query("operator == 'all_reduce'")
    assert shape(frame, "implementation", "message_bytes", "ranks", "graph") == [
        ("vLLM_custom_eager", 8192, 8, False),
        ("vLLM_custom_graph", 8192, 8, True),
    ]


def test_all_reduces_of_slower_links_count(tmp_path: Path) -> None:
    """Only of the version just before, and only where its links were slower."""
    for version, factor in (("0.14.0", 9.0), ("0.19.0", 1.0), ("0.24.0", 0.4)):
        rows = [all_reduce(4096, 2, 0.020 * factor), all_reduce(1 << 20, 2, 0.1 * max(factor, 0.9))]
        put(tmp_path, "comm", "custom_allreduce", rows, version=version)
    imported = read_aiconfigurator(tmp_path, H100)
    taken = imported.table.set_index("message_bytes")["seconds"].to_dict()
    assert taken == pytest.approx({8192: 20e-6, 2 << 20: 90e-6})
    assert imported.versions["vllm custom_allreduce"] == "0.19.0, 0.24.0"
    assert len(imported.sources) == 2


def test_newest_version_is_taken_and_recorded(tmp_path: Path) -> None:
    put(tmp_path, "gemm", "gemm", [gemm(8, 4096, 6144, 0.03)], version="0.9.0")
    file = put(tmp_path, "gemm", "gemm", [gemm(8, 4096, 6144, 0.02)], version="0.24.0")
    put(tmp_path, "gemm", "gemm", [gemm(8, 4096, 6144, 0.04)], version="0.1.dev19")
    for candidate in ("0.24.0rc3", "0.24.0rc20"):
        put(tmp_path, "gemm", "gemm", [gemm(8, 4096, 6144, 0.05)], version=candidate)
    versions = [found.parent.name for found in newest_first(file.parents[1], file.name)]
    assert versions == ["0.24.0", "0.24.0rc20", "0.24.0rc3", "0.9.0"]
    assert newest_first(file.parents[1], file.name)[0] == file
    imported = read_aiconfigurator(tmp_path, H100)
    assert imported.table["seconds"].tolist() == pytest.approx([20e-6])
    assert imported.device == DEVICE
    assert imported.versions == {"aiconfigurator-core": "unknown", "vllm gemm": "0.24.0"}
    (name, digest), *_ = imported.sources.items()
    assert name == "h100_sxm/gemm/vllm/0.24.0/gemm_perf.parquet"
    assert len(digest) == 64


def test_package_version_is_read_beside_it(tmp_path: Path) -> None:
    put(tmp_path, "gemm", "gemm", [gemm(8, 4096, 6144, 0.02)])
    info = tmp_path / "aiconfigurator_core-7.8.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: aiconfigurator-core\nVersion: 7.8.9\n")
    assert read_aiconfigurator(tmp_path, H100).versions["aiconfigurator-core"] == "7.8.9"


def test_one_point_timed_twice_is_its_median_and_kernels_stay_apart(tmp_path: Path) -> None:
    times = [("a", 0.02), ("a", 0.03), ("a", 0.022), ("b", 0.05)]
    rows = [{**gemm(8, 4096, 6144, ms), "kernel_source": kernel} for kernel, ms in times]
    put(tmp_path, "gemm", "gemm", rows)
    frame = read_aiconfigurator(tmp_path, H100).table
    assert shape(frame, "implementation") == [("a",), ("b",)]
    assert frame["seconds"].tolist() == pytest.approx([22e-6, 50e-6])


@pytest.mark.parametrize("below", ["", "aiconfigurator_core", "aiconfigurator_core/systems", "h100_sxm"])
def test_the_path_may_be_any_of_the_package_folders(tmp_path: Path, below: str) -> None:
    folder = put(tmp_path, "gemm", "gemm", [gemm(8, 4096, 6144, 0.02)]).parents[3]
    given = folder if below == "h100_sxm" else tmp_path / below
    assert find_system(given, H100) == folder
    assert find_system(folder.parent, H100) == folder


# Weights of 4096 x 6144 in bf16 on an H100: 2*4096*6144 bytes over 3.35e12 = 15.024 us, in fp8 half of it. At 8192 rows
# 2*8192*4096*6144 FLOPs over 989.4e12 = 416.7 us.
def test_linear_times_below_the_floor_are_dropped_and_counted(tmp_path: Path) -> None:
    rows = [gemm(16, 4096, 6144, 0.01502), gemm(17, 4096, 6144, 0.01503), gemm(8192, 4096, 6144, 0.4166)]
    rows += [gemm(8193, 4096, 6144, 0.417), gemm(16, 4096, 6144, 0.0076, "fp8"), gemm(1, 4096, 6144, 0.0075, "fp8")]
    put(tmp_path, "gemm", "gemm", rows)
    imported = read_aiconfigurator(tmp_path, H100)
    assert shape(imported.table, "dtype", "m") == [("bf16", 17), ("bf16", 8193), ("fp8", 16)]
    assert imported.left_out == {plausible.BELOW_FLOOR: 3}


# KV of 64 x 1023 earlier tokens, 8 heads of 128: 2*2*64*1023*8*128 bytes over 3.35e12 = 80.05 us; a window of 128 cuts
# it to 10.02 us. The same prompts at once read nothing from memory.
def test_attention_times_below_the_floor_are_dropped_and_counted(tmp_path: Path) -> None:
    rows = [attention(64, 1, 1023, 0.0800), attention(64, 1, 1023, 0.0405, "fp8")]
    rows += [attention(64, 1, 1023, 0.0101, window_size=128), attention(64, 1, 2047, 0.0100, window_size=128)]
    put(tmp_path, "attention", "generation_attention", rows)
    put(tmp_path, "attention", "context_attention", [attention(64, 16, 0, 0.0080)])
    imported = read_aiconfigurator(tmp_path, H100)
    fields = ("operator", "kv_dtype", "context", "window")
    assert shape(imported.table, *fields) == [
        ("attention_decode", "bf16", 1024, 128),
        ("attention_decode", "fp8", 1024, 0),
        ("attention_prefill", "bf16", 16, 0),
    ]
    assert imported.left_out == {plausible.BELOW_FLOOR: 2}


@pytest.mark.parametrize(("ms", "kept"), [(0.0065, 0), (0.0066, 1)])
def test_all_reduce_may_undercut_the_ring_a_little(tmp_path: Path, ms: float, kept: int) -> None:
    # 2 MiB over 8 ranks of an H100: 2*7/8*2**21 bytes over 450e9 = 8.16 us, of which 0.8 is 6.52.
    put(tmp_path, "comm", "custom_allreduce", [all_reduce(2**20, 8, ms), all_reduce(2**24, 8, 0.2)])
    assert len(read_aiconfigurator(tmp_path, H100).table) == 1 + kept


def test_times_far_above_a_larger_shapes_are_dropped(tmp_path: Path) -> None:
    # 40 us at m = 4 is more than 1.5 times the 25 us at m = 8; 30 us at m = 2 is not. Another matrix does not count.
    rows = [gemm(2, 4096, 6144, 0.03), gemm(4, 4096, 6144, 0.04), gemm(8, 4096, 6144, 0.025)]
    rows += [gemm(16, 4096, 6144, 0.06), gemm(32, 4096, 1024, 0.01)]
    put(tmp_path, "gemm", "gemm", rows)
    imported = read_aiconfigurator(tmp_path, H100)
    assert sorted(imported.table["m"]) == [2, 8, 16, 32]
    assert imported.left_out == {plausible.ABOVE_LARGER: 1}


def test_attention_grows_with_batch_and_with_context(tmp_path: Path) -> None:
    rows = [attention(4, 1, 1023, 0.09), attention(8, 1, 1023, 0.04), attention(2, 1, 4095, 0.04)]
    rows.append(attention(2, 1, 1023, 0.07))  # above the longer context's
    put(tmp_path, "attention", "generation_attention", rows)
    imported = read_aiconfigurator(tmp_path, H100)
    assert shape(imported.table, "batch", "context") == [(2, 4096), (8, 1024)]
    assert imported.left_out == {plausible.ABOVE_LARGER: 2}


def test_fp8_experts_far_slower_than_bf16_are_dropped(tmp_path: Path) -> None:
    rows = [moe(64, 0.3), moe(64, 0.5, moe_dtype="fp8"), moe(512, 0.6), moe(512, 0.8, moe_dtype="fp8")]
    put(tmp_path, "moe", "moe", rows)
    imported = read_aiconfigurator(tmp_path, H100)
    assert shape(imported.table, "dtype", "m") == [("bf16", 64), ("bf16", 512), ("fp8", 512)]
    assert imported.left_out == {plausible.ABOVE_WIDER: 1}


def fault(path: Path | None, **more: object) -> str:
    with pytest.raises(HardwareError) as error:
        read_aiconfigurator(path, H100, **more)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_file_that_is_not_parquet_is_named(tmp_path: Path) -> None:
    file = put(tmp_path, "gemm", "gemm", [gemm(8, 4096, 6144, 0.02)])
    file.write_text("m,n,k\n1,2,3\n")
    assert str(file) in fault(tmp_path)
    file.write_bytes(b"PAR1" + b"\0" * 40)
    assert str(file) in fault(tmp_path)


@pytest.mark.parametrize("column", ["latency", "m", "gemm_dtype", "kernel_source", "device", "framework"])
def test_a_missing_column_is_named(tmp_path: Path, column: str) -> None:
    file = put(tmp_path, "gemm", "gemm", [gemm(8, 4096, 6144, 0.02)])
    pd.read_parquet(file).drop(columns=column).to_parquet(file)
    text = fault(tmp_path)
    assert f"{file}: {column}: " in text
    assert "column missing" in text


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("latency", 0.0, "a time > 0 is needed"),
        ("latency", -0.1, "a time > 0 is needed"),
        ("latency", np.nan, "a time > 0 is needed"),
        ("latency", np.inf, "a time > 0 is needed"),
        ("latency", "0.1", "numbers are needed"),
        ("m", 0, "a whole number >= 1"),
        ("n", 1.5, "a whole number >= 1"),
        ("k", np.nan, "a whole number >= 1"),
        ("framework", "TRTLLM", "times of vllm are needed"),
    ],
)
def test_a_bad_value_is_named(tmp_path: Path, column: str, value: object, says: str) -> None:
    file = put(tmp_path, "gemm", "gemm", [gemm(8, 4096, 6144, 0.02)], **{column: value})
    text = fault(tmp_path)
    assert text.startswith(f"{file}: {column} = ")
    assert says in text


def test_an_empty_file_and_one_with_nothing_to_take(tmp_path: Path) -> None:
    file = put(tmp_path, "gemm", "gemm", [gemm(8, 4096, 6144, 0.02, "int8")])
    assert "no row that can be imported" in fault(tmp_path)
    pd.read_parquet(file).iloc[:0].to_parquet(file)
    assert f"{file}: holds no row" in fault(tmp_path)


def test_files_of_two_devices_are_refused(tmp_path: Path) -> None:
    put(tmp_path, "gemm", "gemm", [gemm(8, 4096, 6144, 0.02)])
    put(tmp_path, "comm", "custom_allreduce", [all_reduce(4096, 8, 0.006)], device="NVIDIA H100 PCIe")
    assert "NVIDIA H100 80GB HBM3, NVIDIA H100 PCIe" in fault(tmp_path)


def test_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "holds no times of the system h100_sxm" in fault(tmp_path)
    put(tmp_path, "gemm", "gemm", [gemm(8, 4096, 6144, 0.02)])
    assert "holds no times of the system gb200" in fault(tmp_path, system="gb200")
    monkeypatch.setattr(aiconfigurator, "PACKAGE", "no_such_package")
    with pytest.raises(InputError, match=r"needs no_such_package: pip install 'draftcast\[profiles\]'"):
        read_aiconfigurator(None, H100)
    with pytest.raises(HardwareError, match=r"mi300x.*name the system"):
        read_aiconfigurator(tmp_path, load_hardware("mi300x"))


def test_the_installed_package_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "gemm", "gemm", [gemm(8, 4096, 6144, 0.02)])
    (tmp_path / "aiconfigurator_core").rename(tmp_path / "stand_in_package")
    (tmp_path / "stand_in_package" / "__init__.py").write_text("raise RuntimeError('is not imported, only found')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(aiconfigurator, "PACKAGE", "stand_in_package")
    assert len(read_aiconfigurator(None, H100).table) == 1


def test_triton_experts_of_the_version_before_stay_where_the_newest_has_none(tmp_path: Path) -> None:
    block = {"moe_dtype": "fp8_block"}
    put(tmp_path, "moe", "moe", [moe(1024, 0.5, **block), moe(1024, 0.6)], kernel_source="flashinfer")
    put(tmp_path, "moe", "moe", [moe(1024, 0.8, **block), moe(1024, 3.0)], "0.22.0", kernel_source="triton")
    frame = read_aiconfigurator(tmp_path, H100).table.query("operator == 'moe'")
    found = {(row.dtype, row.implementation, row.seconds) for row in frame.itertuples()}
    fp8 = {("fp8", "flashinfer", 0.5e-3), ("fp8", "triton", 0.8e-3)}
    assert found == fp8 | {("bf16", "flashinfer", 0.6e-3), ("bf16", "triton", 3.0e-3)}
    put(tmp_path, "moe", "moe", [moe(1024, 0.5, **block)], kernel_source="triton")
    assert len(read_aiconfigurator(tmp_path, H100).table.query("operator == 'moe'")) == 1


def test_experts_in_int4_are_taken(tmp_path: Path) -> None:
    put(tmp_path, "moe", "moe", [moe(1024, 0.5, moe_dtype="int4_wo")])
    assert list(read_aiconfigurator(tmp_path, H100).table.query("operator == 'moe'")["dtype"]) == ["int4"]


def test_nvfp4_matrices_and_experts_are_taken(tmp_path: Path) -> None:
    put(tmp_path, "gemm", "gemm", [gemm(8, 4096, 6144, 0.02), gemm(8, 4096, 6144, 0.01, "nvfp4")])
    put(tmp_path, "moe", "moe", [moe(1024, 0.5, moe_dtype="nvfp4")])
    table = read_aiconfigurator(tmp_path, H100).table
    assert list(table.query("operator == 'linear'")["dtype"]) == ["bf16", "nvfp4"]
    assert list(table.query("operator == 'moe'")["dtype"]) == ["nvfp4"]


def test_another_engine_has_a_table_of_its_own(tmp_path: Path) -> None:
    put(tmp_path, "moe", "moe", [moe(64, 0.3)])
    put(tmp_path, "moe", "moe", [moe(64, 0.2), moe(64, 0.9, moe_dtype="w4a16_mxfp4")], "0.5.14", engine="sglang")
    imported = read_aiconfigurator(tmp_path, H100)
    assert imported.table.query("operator == 'moe'")["seconds"].tolist() == [0.3e-3]
    own = imported.engines["sglang"].query("operator == 'moe'")
    assert (own["dtype"].tolist(), own["seconds"].tolist()) == (["bf16"], [0.2e-3])
    assert imported.left_out == {"sglang: experts in w4a16_mxfp4": 1}
    assert imported.versions["sglang moe"] == "0.5.14"
    put(tmp_path, "moe", "moe", [moe(64, 0.2)], "0.5.14", engine="sglang", device="NVIDIA H100 PCIe")
    assert "times of several devices" in fault(tmp_path)


def test_sglangs_latent_decode_is_attention_products_and_three_kernels(tmp_path: Path) -> None:
    put(tmp_path, "moe", "moe", [moe(64, 0.3)])
    latent = {"num_heads": 16, "isl": 1, "step": 8191, "mla_dtype": "bfloat16", "gemm_type": "", "model": ""}
    rows = [{**latent, "batch_size": size, "kv_cache_dtype": "bfloat16", "latency": 0.3} for size in (8, 12)]
    rows.append({**latent, "batch_size": 8, "kv_cache_dtype": "fp8", "latency": 0.4})
    put(tmp_path, "mla", "generation_mla", rows, "0.5.14", engine="sglang")
    products = [
        {"op_name": name, "bmm_dtype": "bfloat16", "num_tokens": tokens, "num_heads": 16, "latency": ms}
        for name in ("mla_gen_pre", "mla_gen_post")
        for tokens, ms in ((8, 0.004), (16, 0.006))
    ]
    file = put(tmp_path, "mla_bmm", "mla_bmm", products, "0.5.14", engine="sglang")
    pd.DataFrame(pd.read_parquet(file).assign(op_name=[row["op_name"] for row in products])).to_parquet(file)
    imported = read_aiconfigurator(tmp_path, H100)
    own = imported.engines["sglang"].query("operator == 'mla_decode'")
    assert shape(own, "kv_dtype", "batch", "context", "heads", "k", "n") == [
        ("bf16", 8, 8192, 16, 576, 512),
        ("bf16", 12, 8192, 16, 576, 512),
    ]
    small = aiconfigurator.LATENT_KERNELS_S
    assert own["seconds"].tolist() == pytest.approx([308e-6 + small, 310e-6 + small])
    assert imported.left_out == {"sglang: latent attention slower over a narrow cache than over a wide one": 1}
