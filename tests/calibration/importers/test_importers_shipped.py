"""The bundled profiles: whole, small, wide enough for every bundled model, and possible on their devices."""

import functools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from draftcast.calibration.importers.build_shipped import DEVICES, build, rounded, shipped
from draftcast.calibration.importers.plausible import below_floor, floor_seconds
from draftcast.calibration.profile.hardware import load_hardware
from draftcast.calibration.profile.load import PROFILE_FOLDER, TABLE, load_profile, read_manifest
from draftcast.calibration.profile.spec import RooflineProfile
from draftcast.calibration.profile.table import checked_table, load_table
from draftcast.errors import ModelError
from draftcast.kernels.model.catalog import load_model, model_names
from draftcast.kernels.model.spec import ModelSpec
from draftcast.kernels.operators.attention import layer_shape
from draftcast.kernels.operators.gated_delta import linear_shape
from draftcast.kernels.operators.sparse import sparse_decode_shape
from draftcast.kernels.work.layers import linear_layers, lm_head

RANKS = (1, 2, 4, 8)
FORMATS = {name: ("bf16",) if name == "a100-80g" else ("bf16", "fp8") for name in DEVICES}
TIMED_SPARSE = ("b200", "b300", "gb300", "h100-sxm", "h200")
WIDEST = 65536  # the source's widest matrix; wider ones are lm_heads of one or two ranks and Llama-3.1-405B on one
NARROWEST = 32  # narrower ones are routers


@pytest.fixture(scope="module")
def frames() -> dict[str, pd.DataFrame]:
    """Rows of every bundled table."""
    return {name: pd.read_parquet(PROFILE_FOLDER / name / TABLE) for name in DEVICES}


@functools.cache
def sharded() -> list[tuple[ModelSpec, int]]:
    """Bundled models at the tensor-parallel degrees they allow."""
    pairs = []
    for model in map(load_model, model_names()):
        for tp in RANKS:
            try:
                model.check_tensor_parallel(tp)
            except ModelError:
                continue
            pairs.append((model, tp))
    return pairs


@functools.cache
def matrices() -> dict[tuple[int, int], str]:
    """Inputs and outputs of every matrix of a bundled model, routed experts apart, and one that has these."""
    return {
        (layer.k, layer.n): f"{model.name} tp {tp} {layer.name}"
        for model, tp in sharded()
        for layer in (*linear_layers(model, tp), lm_head(model, tp))
        if not layer.num_experts and layer.n >= NARROWEST and max(layer.k, layer.n) <= WIDEST
    }


@pytest.mark.parametrize("name", DEVICES)
def test_folder_is_whole_and_says_where_it_comes_from(name: str) -> None:
    manifest = read_manifest(PROFILE_FOLDER / name)
    assert manifest.name == manifest.hardware == name
    assert manifest.licence == "Apache-2.0"
    assert "build_shipped" in manifest.command
    assert manifest.versions["aiconfigurator-core"] == "0.12.0"
    kinds = {Path(file).name.removesuffix("_perf.parquet") for file in manifest.sources}
    latent = set() if name == "a100-80g" else {"mla_generation_module", "mla_context_module", "gdn"}
    sparse = {"dsa_generation_module"} if name in TIMED_SPARSE else set()
    latent |= {"gdn", "mla_bmm"} if name == "a100-80g" else {"generation_mla", "mla_bmm"}
    assert kinds == {"gemm", "generation_attention", "context_attention", "moe", "custom_allreduce"} | latent | sparse
    assert all(len(digest) == 64 for digest in manifest.sources.values())
    assert all(count > 0 for count in manifest.left_out.values())
    profile = load_profile(name, load_hardware(name))
    assert isinstance(profile, RooflineProfile)
    assert profile.measured is not None
    assert name in (PROFILE_FOLDER / "NOTICE").read_text(encoding="utf-8")


def test_sizes() -> None:
    sizes = {name: sum(file.stat().st_size for file in (PROFILE_FOLDER / name).iterdir()) / 1e6 for name in DEVICES}
    assert max(sizes.values()) < 1.0
    assert sum(sizes.values()) < 6.5


@pytest.mark.parametrize("name", DEVICES)
def test_kernels_that_sglang_alone_has(name: str) -> None:
    profile = load_profile(name, load_hardware(name))
    assert isinstance(profile, RooflineProfile)
    own, shared = profile.times_for("sglang")
    assert profile.times_for("vllm") == (shared,)
    frame = load_table(own.table)
    sparse = {"dsa_decode"} if name in TIMED_SPARSE else set()
    newer = set() if name == "a100-80g" else {"mla_decode", "gdn_prefill"}
    assert set(frame["operator"]) == {"moe", "gdn_decode", "all_reduce"} | newer | sparse
    assert not below_floor(frame, load_hardware(name)).any()
    assert (rounded(frame["seconds"].to_numpy()[::50]) == frame["seconds"].to_numpy()[::50]).all()
    (fused, _) = profile.times_for("trtllm")
    assert set(load_table(fused.table)["operator"]) == {"all_reduce"}


def test_a_table_is_a_valid_one_in_order(frames: dict[str, pd.DataFrame]) -> None:
    frame = frames["a100-80g"]  # the smallest; all were written by the same code
    pd.testing.assert_frame_equal(checked_table(frame), frame, check_dtype=False)


@pytest.mark.parametrize("name", DEVICES)
def test_times_are_rounded(frames: dict[str, pd.DataFrame], name: str) -> None:
    sample = frames[name]["seconds"].to_numpy()[:: len(frames[name]) // 500]
    assert (rounded(sample) == sample).all()


@pytest.mark.parametrize("name", DEVICES)
def test_every_matrix_of_every_bundled_model_lies_between_measured_ones(
    frames: dict[str, pd.DataFrame], name: str
) -> None:
    linear = frames[name][frames[name]["operator"] == "linear"]
    for dtype in FORMATS[name]:
        rows = linear[linear["dtype"] == dtype]
        last = rows.groupby(["k", "n"])["m"].max()
        grid = [np.unique(rows[axis]) for axis in ("k", "n")]
        for sizes, example in matrices().items():
            sides = [
                {values[values <= size].max(), values[values >= size].min()}
                for values, size in zip(grid, sizes, strict=True)
            ]
            for k in sides[0]:
                for n in sides[1]:
                    assert last.get((k, n), 0) >= 4096, f"{example} {dtype}: {k} x {n}"


def test_matrices_beyond_the_tables_are_only_these() -> None:
    beyond = {
        (model.name, tp, layer.name)
        for model, tp in sharded()
        for layer in (*linear_layers(model, tp), lm_head(model, tp))
        if not layer.num_experts and not (layer.n >= NARROWEST and max(layer.k, layer.n) <= WIDEST)
    }
    assert {(name, tp) for name, tp, layer in beyond if layer == "gate_up"} == {
        ("Llama-3.1-405B", 1),
        ("Gemma-2-27B", 1),
        ("Kimi-K3", 1),
        ("Qwen1.5-110B", 1),
        ("Command-A", 1),
        ("Command-R-Plus", 1),
    }
    assert {name for name, _, layer in beyond if layer == "router"} == {
        "Mixtral-8x7B",
        "Mixtral-8x22B",
        "Llama-4-Scout",
        "Phi-3.5-MoE",
        "Phi-mini-MoE",
        "Phi-tiny-MoE",
        "DBRX",
    }
    assert max(tp for _, tp, layer in beyond if layer == "lm_head") == 4  # Gemma's vocabulary of 262144


@pytest.mark.parametrize("name", DEVICES)
def test_small_row_counts_are_there(frames: dict[str, pd.DataFrame], name: str) -> None:
    rows = frames[name][(frames[name]["operator"] == "linear") & (frames[name]["k"] == 8192)]
    counts = set(rows[(rows["dtype"] == "bf16") & (rows["n"] == 65536)]["m"])
    # One of L40S' rows was disturbed and dropped.
    dense = {*range(1, 18)} - ({10} if name == "l40s" else set())
    assert counts >= ({1, 2, 4, 8, 16, 32, 64} if name == "a100-80g" else dense | {32, 64})


# Heads and KV heads on a rank of bundled models that the source did not time, by head size: these take the ratio to the
# roofline of the nearest heads, and count as extrapolated.
NO_PAIRS = {
    64: "3/1 3/3 5/1 6/2 6/6 7/1 9/3 10/2 14/2 15/5 20/4 71/1 128/8",
    80: "4/1 4/4 8/2 8/8 16/4 16/16 32/8 32/32",
    96: "4/4 8/8 16/16 32/32 64/64",
    100: "4/4 8/8 16/16 32/32",
    128: "5/5 6/2 7/1 7/7 9/1 9/9 10/1 10/10 13/13 14/2 14/14 18/2 18/18 20/2 20/5 20/20 26/26 28/4 28/28 32/16 36/4 "
    "36/36 40/10 52/52 56/8 56/56 72/72 80/8 128/8",
    160: "4/1 8/2 16/4 32/8",
    256: "2/2 4/2 4/4 6/2 8/4 8/8 12/1 12/4 16/8 16/16 24/2 64/4",
    512: "1/1 2/1 4/1 8/1 8/2 16/2 32/4",
}
NO_HEADS = {(*map(int, pair.split("/")), size) for size, pairs in NO_PAIRS.items() for pair in pairs.split()}
NO_BLACKWELL_HEADS = {(64 // tp, max(4 // tp, 1), 192) for tp in (1, 2, 4, 8)}  # MiMo-V2-Flash's
# More than 8 KV heads.
NO_DECODE_HEADS = {(64, 64, 128), (40, 40, 128), (32, 32, 128), (16, 16, 128), (32, 32, 64), (16, 16, 64), (12, 12, 64)}


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("operator", ["attention_decode", "attention_prefill"])
def test_heads_of_the_bundled_models(frames: dict[str, pd.DataFrame], name: str, operator: str) -> None:
    rows = frames[name][frames[name]["operator"] == operator]
    wanted = {
        (model.num_attention_heads // tp, model.kv_heads_per_rank(tp), model.head_dim)
        for model, tp in sharded()
        if not model.is_mla
    }
    missing = NO_HEADS | (NO_DECODE_HEADS if operator == "attention_decode" else set())
    if name == "a100-80g":  # heads of 128 alone
        missing |= {heads for heads in wanted if heads[2] != 128}
        missing |= {(3, 1, 128), (5, 1, 128), (6, 1, 128), (10, 2, 128), (20, 4, 128), (96, 8, 128)}
    for kv_dtype in FORMATS[name]:
        of_format = rows[(rows["kv_dtype"] == kv_dtype) & (rows["window"] == 0)]
        measured = set(of_format[["heads", "kv_heads", "head_dim"]].itertuples(index=False, name=None))
        of_blackwell = NO_BLACKWELL_HEADS if name in ("b200", "b300", "gb300") and kv_dtype == "bf16" else set()
        assert wanted - measured == missing | of_blackwell


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("operator", ["mla_decode", "mla_prefill"])
def test_latent_attention_of_the_bundled_models(frames: dict[str, pd.DataFrame], name: str, operator: str) -> None:
    rows = frames[name][(frames[name]["operator"] == operator) & (frames[name]["kv_dtype"] == "bf16")]
    measured = set(rows[["heads", "k", "n"]].itertuples(index=False, name=None))
    widths = (576, 512) if operator == "mla_decode" else (192, 128)
    heads = () if name == "a100-80g" else (1, 2, 4, 8, 16, 32, 64, 128)
    assert measured == {(count, *widths) for count in heads}
    wanted = {layer_shape(model, operator[4:], tp)[1]["heads"] for model, tp in sharded() if model.is_mla}
    # The source did not time the 20 heads of GLM-4.7-Flash, the 40 of MiniCPM3, the 96 of Kimi-K3, and their shares.
    assert wanted == {2, 4, 8, 16, 32, 64, 128} | {40, 20, 10, 5} | {96, 48, 24, 12}


@pytest.mark.parametrize("name", TIMED_SPARSE)
def test_sparse_attention_of_the_bundled_models(frames: dict[str, pd.DataFrame], name: str) -> None:
    rows = frames[name][frames[name]["operator"] == "dsa_decode"]
    wanted = {tuple(sparse_decode_shape(model, tp).items()) for model, tp in sharded() if model.has_latent_indexer}
    fields = [field for field, _ in next(iter(wanted))]
    for kv_dtype in ("bf16", "fp8"):
        shapes = rows.loc[rows["kv_dtype"] == kv_dtype, fields].itertuples(index=False, name=None)
        assert wanted <= {tuple(zip(fields, shape, strict=True)) for shape in shapes}


@pytest.mark.parametrize("name", [name for name in DEVICES if name != "a100-80g"])
@pytest.mark.parametrize("operator", ["gdn_decode", "gdn_prefill"])
def test_linear_attention_of_the_bundled_models(frames: dict[str, pd.DataFrame], name: str, operator: str) -> None:
    rows = frames[name][frames[name]["operator"] == operator]
    measured = set(rows[["heads", "kv_heads", "k", "n", "kv_dtype"]].itertuples(index=False, name=None))
    for model, tp in sharded():
        # The source did not time Qwen3.8-2.4T's eight value heads a key head.
        if model.linear_kind == "gated_delta" and model.num_linear_layers and model.name != "Qwen3.8-2.4T-A95B":
            assert (*linear_shape(model, tp).values(), "fp32") in measured, (model.name, tp)


@pytest.mark.parametrize("name", [name for name in DEVICES if name != "a100-80g"])
def test_windows_of_the_bundled_models(frames: dict[str, pd.DataFrame], name: str) -> None:
    windowed = frames[name][frames[name]["window"] > 0]
    shapes = set(windowed[["window", "heads", "kv_heads", "head_dim"]].itertuples(index=False, name=None))
    assert shapes == {(128, 64 // tp, 8 // tp, 64) for tp in RANKS}  # gpt-oss


@pytest.mark.parametrize("name", DEVICES)
def test_experts_of_the_bundled_models(frames: dict[str, pd.DataFrame], name: str) -> None:
    rows = frames[name][frames[name]["operator"] == "moe"]
    shapes = rows.groupby(["dtype", "k", "n", "num_experts", "top_k"])["m"].agg(["min", "max"])
    wanted = [("bf16", 4096, 14336 // tp, 8, 2) for tp in RANKS]
    wanted += [("bf16", 2048, 768 // tp, 128, 8) for tp in (1, 2)]
    if name != "a100-80g":
        wanted += [("mxfp4", 2880, 2880 // tp, 32, 4) for tp in RANKS if not (name == "l40s" and tp == 8)]
    if name in ("b200", "h100-sxm", "h200", "l40s"):
        wanted += [("fp8", 7168, 2048 // tp, 256, 8) for tp in RANKS]
    for shape in wanted:
        assert shape in shapes.index, shape
        # L40S keeps a small layer's experts in its cache: those times are dropped.
        assert shapes.loc[shape, "min"] <= (16 if name in ("l40s", "rtx-pro-6000") else 2), shape
        assert shapes.loc[shape, "max"] >= 8192, shape


@pytest.mark.parametrize("name", DEVICES)
def test_all_reduce_of_2_4_and_8_ranks(frames: dict[str, pd.DataFrame], name: str) -> None:
    rows = frames[name][frames[name]["operator"] == "all_reduce"]
    assert set(rows["ranks"]) - {16} == {2, 4, 8}
    for _, of_ranks in rows[rows["graph"]].groupby("ranks"):
        assert of_ranks["message_bytes"].min() <= 512
        assert of_ranks["message_bytes"].max() == 2**30


@pytest.mark.parametrize("name", DEVICES)
def test_no_time_is_below_its_floor(frames: dict[str, pd.DataFrame], name: str) -> None:
    hardware = load_hardware(name)
    # Rounding to four digits may move a time by half a thousandth.
    assert not below_floor(frames[name].assign(seconds=frames[name]["seconds"] * 1.0005), hardware).any()


# Shapes at which launches no longer count, and how far above the floor their median and their worst may stand: less
# than twice where a kernel streams weights or KV, so that a factor of two in a unit would show; attention reaches half
# of the peak rate in prefill, untuned experts a third of it or less.
LARGE = {
    ("linear", "bf16"): ("k >= 4096 and n >= 8192 and m in (1, 8, 64, 4096)", 1.5, 2.0),
    ("linear", "fp8"): ("k >= 8192 and n >= 8192 and m in (8, 4096)", 1.8, 3.0),
    ("attention_decode", "bf16"): (
        "head_dim == 128 and kv_heads == 8 and batch >= 8 and batch * context >= 131072 and context >= 1024", 1.5, 2.0
    ),
    ("attention_prefill", "bf16"): ("head_dim == 128 and heads >= 16 and batch * q >= 32768 and q >= 2048", 2.2, 4.0),
    ("moe", "bf16"): ("num_experts == 8 and m >= 4096", 3.0, 4.5),
}  # fmt: skip


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize(("operator", "dtype"), LARGE)
def test_large_shapes_stand_near_the_floor(
    frames: dict[str, pd.DataFrame], name: str, operator: str, dtype: str
) -> None:
    large, median, worst = LARGE[operator, dtype]
    rows = frames[name].query("operator == @operator and dtype == @dtype and kv_dtype in ('', 'bf16') and window == 0")
    # Triton's experts stand beside FlashInfer's on Blackwell, for versions that run them.
    fastest = rows["implementation"].str.contains("flashinfer") | (operator != "moe") | (name != "b200")
    rows = rows[fastest].query(large).reset_index(drop=True)
    if dtype not in FORMATS[name]:
        assert rows.empty
        return
    assert len(rows) >= 8
    ratio = rows["seconds"] / floor_seconds(rows, load_hardware(name))
    assert 1.0 <= ratio.median() < median
    assert ratio.max() < worst


def test_known_points_of_the_h100(frames: dict[str, pd.DataFrame]) -> None:
    """Figures of the source itself, milliseconds: a changed unit or column would show."""
    frame = frames["h100-sxm"]
    linear = frame.query("operator == 'linear' and k == 4096 and n == 6144 and m == 8").set_index("dtype")["seconds"]
    assert linear.to_dict() == pytest.approx({"bf16": 20.4e-6, "fp8": 14.6e-6}, rel=0.01)
    decode = frame.query(
        "operator == 'attention_decode' and kv_dtype == 'bf16' and heads == 32 and kv_heads == 8 and head_dim == 128"
        " and window == 0 and batch == 64 and context == 1024"
    )
    assert decode["seconds"].tolist() == pytest.approx([119.4e-6], rel=0.01)
    experts = frame.query("operator == 'moe' and dtype == 'bf16' and k == 4096 and n == 7168 and m == 4096")
    assert experts["seconds"].tolist() == pytest.approx([2163e-6], rel=0.01)


def test_rounding() -> None:
    seconds = np.array([1.23456e-5, 9.99961e-6, 0.1, 2.0004e-3])
    assert rounded(seconds).tolist() == [1.235e-5, 1e-5, 0.1, 2e-3]


def decode_row(**shape: int) -> dict:
    row = {"operator": "attention_decode", "dtype": "bf16", "kv_dtype": "bf16", "batch": 4, "q": 1, "context": 1024}
    row |= {"heads": 32, "kv_heads": 4, "head_dim": 64, "window": 0, "seconds": 1.23456e-5}
    return row | shape


def test_shipped_leaves_out_wide_heads_and_foreign_windows() -> None:
    rows = [
        decode_row(),
        decode_row(window=128),
        decode_row(window=1024),
        decode_row(window=128, heads=24),
        decode_row(head_dim=256),
        decode_row(head_dim=512),
    ]
    kept = shipped(checked_table(pd.DataFrame(rows)))
    assert sorted(zip(kept["window"], kept["head_dim"], strict=True)) == [(0, 64), (0, 256), (128, 64)]
    assert set(kept["seconds"]) == {1.235e-5}


def test_build_gives_the_same_bytes_twice(tmp_path: Path) -> None:
    folder = tmp_path / "aiconfigurator_core/systems/data/l40s/gemm/vllm/0.24.0"
    folder.mkdir(parents=True)
    sizes = [(m, k, n) for m in (1, 4, 16, 64, 256, 1024) for k in (4096, 8192) for n in (4096, 8192, 16384)]
    raw = pd.DataFrame(sizes, columns=["m", "k", "n"]).assign(
        framework="VLLM", version="0.24.0", device="NVIDIA L40S", kernel_source="k", gemm_dtype="bfloat16"
    )
    # A device that reaches 0.8 of bandwidth and 0.6 of its peak.
    work, moved = 2.0 * raw["m"] * raw["k"] * raw["n"], 2.0 * raw["k"] * raw["n"]
    raw["latency"] = 1e3 * (3e-6 + np.maximum(work / (0.6 * 362e12), moved / (0.8 * 864e9)))
    raw.to_parquet(folder / "gemm_perf.parquet")
    written = []
    for out in (tmp_path / "one", tmp_path / "two"):
        build(tmp_path, out, ("l40s",))
        written.append({file.name: file.read_bytes() for file in sorted((out / "l40s").iterdir())})
    assert written[0] == written[1]
    assert set(written[0]) == {"manifest.json", "profile.yaml", "table.parquet"}
    profile = load_profile(tmp_path / "one" / "l40s", load_hardware("l40s"))
    assert isinstance(profile, RooflineProfile)
    assert profile.operators["linear"].e_m == pytest.approx(0.8, abs=0.08)
