"""Vidur's and LLMServingSim's CSV files: sizes, units, what is left out, and faults by file, line and column."""

from pathlib import Path

import pandas as pd
import pytest

from draftcast.calibration.importers import formats
from draftcast.calibration.importers.formats import FORMATS, read
from draftcast.calibration.importers.llmservingsim import read_llmservingsim
from draftcast.calibration.importers.vidur import read_vidur
from draftcast.calibration.profile.hardware import load_hardware
from draftcast.calibration.profile.load import TABLE, find_profile
from draftcast.calibration.profile.table import load_table
from draftcast.errors import DraftcastError, HardwareError
from draftcast.kernels.model.catalog import load_model

A100, A10G = load_hardware("a100"), load_hardware("a10g")
LLAMA, QWEN_MOE = load_model("Llama-3.1-8B"), load_model("Qwen3-30B-A3B")
STATISTICS = ("min", "max", "mean", "median", "std")
MLP_OPERATORS = (
    "emb",
    "input_layernorm",
    "attn_pre_proj",
    "attn_rope",
    "attn_post_proj",
    "post_attention_layernorm",
    "mlp_up_proj",
    "mlp_act",
    "mlp_down_proj",
    "add",
)
MLP_SHAPE = (
    "n_head",
    "n_kv_head",
    "n_embd",
    "n_expanded_embd",
    "vocab_size",
    "use_gated_mlp",
    "num_tokens",
    "num_tensor_parallel_workers",
)
ATTENTION_OPERATORS = ("attn_input_reshape", "attn_kv_cache_save", "attn_prefill", "attn_decode", "attn_output_reshape")
ATTENTION_SHAPE = (
    "n_embd",
    "n_q_head",
    "n_kv_head",
    "block_size",
    "num_tensor_parallel_workers",
    "max_model_len",
    "batch_size",
    "prefill_chunk_size",
    "kv_cache_size",
    "is_prefill",
    "attention_backend",
)


def vidur_file(path: Path, operators: tuple[str, ...], fields: tuple[str, ...], rows: list[tuple[dict, list]]) -> Path:
    """One of Vidur's files: rows of (median milliseconds by operator, sizes)."""
    header = [f"time_stats.{name}.{statistic}" for name in operators for statistic in STATISTICS]
    lines = [",".join([*header, *fields])]
    for medians, sizes in rows:
        times = [
            "" if name not in medians else str(medians[name] if statistic == "median" else 9.9)
            for name in operators
            for statistic in STATISTICS
        ]
        lines.append(",".join([*times, *map(str, sizes)]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def mlp_file(folder: Path, **over: object) -> Path:
    medians = {name: (at + 1) / 10 for at, name in enumerate(MLP_OPERATORS)}
    sizes = dict(zip(MLP_SHAPE, [32, 8, 4096, 14336, 128256, True, 512, 2], strict=True)) | over
    return vidur_file(folder / "mlp.csv", MLP_OPERATORS, MLP_SHAPE, [(medians, list(sizes.values()))])


def attention_file(folder: Path) -> Path:
    common = [4096, 32, 8, 16, 4, 4096]
    rows = [
        ({"attn_kv_cache_save": 0.25, "attn_prefill": 1.5}, [*common, 1, 256, 768, True, "FLASHINFER"]),
        ({"attn_kv_cache_save": 0.0, "attn_decode": 0.5}, [*common, 16, 0, 1023, False, "FLASHINFER"]),
    ]
    return vidur_file(folder / "attention.csv", ATTENTION_OPERATORS, ATTENTION_SHAPE, rows)


def points(frame: pd.DataFrame, operator: str, *fields: str) -> dict[tuple, float]:
    """Seconds by the fields of an operator's rows."""
    rows = frame[frame["operator"] == operator]
    keys = rows[list(fields)].itertuples(index=False, name=None)
    return dict(zip(keys, rows["seconds"], strict=True))


def test_vidur_mlp(tmp_path: Path) -> None:
    frame = read_vidur(mlp_file(tmp_path)).table
    # two ranks: 16 heads and 4 KV heads of 128; qkv 24 * 128, o 16 * 128 in, gate and up 2 * 7168
    assert points(frame, "linear", "dtype", "m", "k", "n") == pytest.approx(
        {
            ("bf16", 512, 4096, 3072): 0.3e-3,
            ("bf16", 512, 2048, 4096): 0.5e-3,
            ("bf16", 512, 4096, 14336): 0.7e-3,
            ("bf16", 512, 7168, 4096): 0.9e-3,
        }
    )
    assert points(frame, "rotary", "m", "heads", "kv_heads", "head_dim") == pytest.approx({(512, 16, 4, 128): 0.4e-3})
    assert points(frame, "swiglu", "m", "n") == pytest.approx({(512, 7168): 0.8e-3})
    assert points(frame, "embedding", "m", "k", "n") == pytest.approx({(512, 64128, 4096): 0.1e-3})
    assert not frame["graph"].any()
    assert not frame["settled"].any()


def test_vidur_mlp_without_gate(tmp_path: Path) -> None:
    frame = read_vidur(mlp_file(tmp_path, use_gated_mlp=False)).table
    assert (512, 4096, 7168) in points(frame, "linear", "m", "k", "n")
    assert "swiglu" not in set(frame["operator"])


def test_vidur_kv_heads_are_replicated(tmp_path: Path) -> None:
    frame = read_vidur(mlp_file(tmp_path, num_tensor_parallel_workers=16)).table
    assert points(frame, "rotary", "heads", "kv_heads") == pytest.approx({(2, 1): 0.4e-3})


def test_vidur_attention(tmp_path: Path) -> None:
    frame = read_vidur(attention_file(tmp_path)).table
    fields = ("kv_dtype", "batch", "q", "context", "heads", "kv_heads", "head_dim", "window")
    assert points(frame, "attention_prefill", *fields) == pytest.approx({("bf16", 1, 256, 1024, 8, 2, 128, 0): 1.75e-3})
    assert points(frame, "attention_decode", *fields) == pytest.approx({("bf16", 16, 1, 1024, 8, 2, 128, 0): 0.5e-3})


def test_vidur_folder_reads_both_and_remembers_them(tmp_path: Path) -> None:
    mlp_file(tmp_path)
    attention_file(tmp_path)
    imported = read_vidur(tmp_path)
    assert {"linear", "attention_decode"} <= set(imported.table["operator"])
    assert set(imported.sources) == {"mlp.csv", "attention.csv"}


def edited(path: Path, line: int, old: str, new: str) -> Path:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert old in lines[line - 1]
    lines[line - 1] = lines[line - 1].replace(old, new, 1)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def fault(read_it: object) -> str:
    with pytest.raises(HardwareError) as error:
        read_it()  # type: ignore[operator]
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "column", "says"),
    [
        (",512,2", ",0,2", "num_tokens = '0'", "a whole number >= 1"),
        (",512,2", ",half,2", "num_tokens = 'half'", "a whole number >= 1"),
        (",512,2", ",512,3", "n_head = '32'", "a multiple of 3"),
        ("True", "yes", "use_gated_mlp = 'yes'", "True or False"),
        ("0.3", "-0.3", "time_stats.attn_pre_proj.median = '-0.3'", "a time > 0"),
        ("0.3", "inf", "time_stats.attn_pre_proj.median = 'inf'", "a time > 0"),
    ],
)
def test_vidur_bad_value_is_placed(tmp_path: Path, old: str, new: str, column: str, says: str) -> None:
    path = edited(mlp_file(tmp_path), 2, old, new)
    text = fault(lambda: read_vidur(tmp_path))
    assert text.startswith(f"{path}:2: {column}: ")
    assert says in text


def test_vidur_foreign_files(tmp_path: Path) -> None:
    assert "neither mlp.csv nor attention.csv" in fault(lambda: read_vidur(tmp_path))
    path = edited(mlp_file(tmp_path), 1, "num_tokens", "tokens")
    assert f"{path}:1: num_tokens: column missing" in fault(lambda: read_vidur(path))
    path = edited(mlp_file(tmp_path), 2, "9.9,", "")
    assert f"{path}:2: 58 fields are needed, not 57" in fault(lambda: read_vidur(path))
    path.write_bytes(b"\xff\xfe\x00")
    assert f"{path}:1: b'\\xff': not UTF-8" in fault(lambda: read_vidur(path))
    other = path.rename(tmp_path / "gemm.csv")
    assert "must be called mlp.csv or attention.csv" in fault(lambda: read_vidur(other))


def bundle(tmp_path: Path, **files: str) -> Path:
    """A ``tp2`` folder with these files (name without .csv)."""
    folder = tmp_path / "tp2"
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text, encoding="utf-8")
    return folder


def test_llmservingsim_dense_and_per_sequence(tmp_path: Path) -> None:
    dense = (
        "layer,tokens,time_us\nqkv_proj,8,20.5\no_proj,8,14.25\ngate_up_proj,8,90\ndown_proj,8,45\n"
        "rotary_emb,8,3\nact_fn,8,4\nembedding,8,5\nlayernorm,8,2\nqk_norm,8,6\n"
    )
    heads = "layer,sequences,time_us\nlm_head,8,350\nsampler,8,26\n"
    imported = read_llmservingsim(bundle(tmp_path, dense=dense, per_sequence=heads), LLAMA)
    frame = imported.table
    assert points(frame, "linear", "m", "k", "n") == pytest.approx(
        {
            (8, 4096, 3072): 20.5e-6,
            (8, 2048, 4096): 14.25e-6,
            (8, 4096, 14336): 90e-6,
            (8, 7168, 4096): 45e-6,
            (8, 4096, 64128): 350e-6,
        }
    )
    assert points(frame, "rotary", "m", "heads", "kv_heads", "head_dim") == pytest.approx({(8, 16, 4, 128): 3e-6})
    assert points(frame, "swiglu", "m", "n") == pytest.approx({(8, 7168): 4e-6})
    assert points(frame, "embedding", "m", "k", "n") == pytest.approx({(8, 64128, 4096): 5e-6})
    assert points(frame, "sampler", "m", "n") == pytest.approx({(8, 128256): 26e-6})
    assert points(imported.table, "rmsnorm", "m", "n") == pytest.approx({(8, 4096): 2e-6})
    assert imported.left_out == {"layer qk_norm: no counterpart": 1}


def test_llmservingsim_rows_left_out_are_counted_over_all_files(tmp_path: Path) -> None:
    dense = "layer,tokens,time_us\nqkv_proj,8,20.5\nqk_norm,8,6\nqk_norm,16,7\n"
    heads = "layer,sequences,time_us\nqk_norm,8,6\n"
    imported = read_llmservingsim(bundle(tmp_path, dense=dense, per_sequence=heads), LLAMA)
    assert imported.left_out == {"layer qk_norm: no counterpart": 3}


def test_llmservingsim_number_format_is_the_weights(tmp_path: Path) -> None:
    folder = bundle(tmp_path, dense="layer,tokens,time_us\nqkv_proj,8,12\nact_fn,8,4\n")
    frame = read_llmservingsim(folder, LLAMA, dtype="fp8").table
    assert dict(zip(frame["operator"], frame["dtype"], strict=True)) == {"linear": "fp8", "swiglu": "bf16"}


@pytest.mark.parametrize(
    ("header", "prefill"), [("kv_prefill", 1024), ("prefill_key", 1024 + 256)], ids=["history", "mean key length"]
)
def test_llmservingsim_attention(tmp_path: Path, header: str, prefill: int) -> None:
    text = (
        f"layer,prefill_chunk,{header},n_decode,kv_decode,decode_q_len,time_us\n"
        f"attention,512,{prefill},0,0,1,60\nattention,0,0,4,128,1,11\nattention,0,0,4,128,3,12.5\n"
        f"attention,512,{prefill},4,128,1,70\nindexer,0,0,4,128,1,5\n"
    )
    imported = read_llmservingsim(bundle(tmp_path, attention=text), LLAMA)
    fields = ("batch", "q", "context", "heads", "kv_heads", "head_dim")
    assert points(imported.table, "attention_prefill", *fields) == pytest.approx({(1, 512, 1536, 16, 4, 128): 60e-6})
    assert points(imported.table, "attention_decode", *fields) == pytest.approx(
        {(4, 1, 129, 16, 4, 128): 11e-6, (4, 3, 131, 16, 4, 128): 12.5e-6}
    )
    launch = ("m", "k", "n", "batch", "context", "heads")
    assert points(imported.table, "attention_launch", *launch) == pytest.approx({(512, 1536, 129, 4, 129, 16): 70e-6})
    assert imported.left_out == {"layer indexer: no counterpart": 1}


def test_llmservingsim_unequal_contexts(tmp_path: Path) -> None:
    text = "regime,n,nb,pc,kp,kvs,kv_big,kv_mean,t_mean_us,t_max_us,t_skew_us\n"
    text += "pure,4,1,0,0,512,2048,896,40,70,45\nmixed,4,1,256,512,512,2048,896,90,150,120\n"
    folder = bundle(tmp_path, skew=text)
    (folder / "meta.yaml").write_text("gpu: NVIDIA L40S\nvllm_version: 0.19.0\nmeasurement_iterations: 3\n")
    imported = read_llmservingsim(folder, LLAMA)
    assert (imported.device, imported.versions) == ("NVIDIA L40S", {"vllm": "0.19.0"})
    frame = imported.table
    assert points(frame, "attention_launch", "m", "k", "n", "batch", "context") == pytest.approx(
        {(0, 0, 2049, 4, 897): 15e-6, (256, 768, 2049, 4, 897): 40e-6}
    )


def test_llmservingsim_attention_without_layer_and_query_length(tmp_path: Path) -> None:
    text = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n0,0,1,16,9.5\n"
    frame = read_llmservingsim(bundle(tmp_path, attention=text), LLAMA).table
    assert points(frame, "attention_decode", "batch", "q", "context") == pytest.approx({(1, 1, 17): 9.5e-6})


def test_llmservingsim_experts_take_the_expected_number_visited(tmp_path: Path) -> None:
    # 8 tokens of Qwen3-30B-A3B touch 128 * (1 - (15/16)^8) = 51.6 of 128 experts.
    text = "ep,tokens,activated_experts,time_us\n1,8,32,90\n1,8,48,130\n1,8,64,170\n2,8,32,60\n"
    imported = read_llmservingsim(bundle(tmp_path, moe=text), QWEN_MOE)
    assert points(imported.table, "moe", "m", "k", "n", "num_experts", "top_k") == pytest.approx(
        {(8, 2048, 384, 128, 8): 130e-6}
    )
    assert sorted(imported.left_out.values()) == [1, 2]
    assert "has no experts" in fault(lambda: read_llmservingsim(tmp_path / "tp2", LLAMA))


def test_llmservingsim_first_version(tmp_path: Path) -> None:
    text = (
        "layer_name,input,kv_cache,tp_size,latency(ns)\nq_proj,4,0,2,16000\nk_proj,4,0,2,8000\nv_proj,4,0,2,8200\n"
        "gate_proj,4,0,2,41000\ndown_proj,4,0,2,43000\nrope,4,0,2,30000\nattn,4,0,2,9000\n"
    )
    imported = read_llmservingsim(bundle(tmp_path, layers=text), LLAMA)
    # k and v are one point, timed twice
    assert points(imported.table, "linear", "m", "k", "n") == pytest.approx(
        {(4, 4096, 2048): 16e-6, (4, 4096, 512): 8.1e-6, (4, 4096, 7168): 41e-6, (4, 7168, 4096): 43e-6}
    )
    assert imported.left_out == {"layer attn: no counterpart": 1}
    path = edited(tmp_path / "tp2" / "layers.csv", 3, ",2,", ",1,")
    assert f"{path}:3: tp_size = '1'" in fault(lambda: read_llmservingsim(path.parent, LLAMA))


def test_llmservingsim_faults(tmp_path: Path) -> None:
    folder = bundle(tmp_path)
    assert "holds none of dense.csv" in fault(lambda: read_llmservingsim(folder, LLAMA))
    bundle(tmp_path, dense="layer,tokens,time_us\nqkv_proj,8,-1\n")
    assert f"{folder / 'dense.csv'}:2: time_us = '-1'" in fault(lambda: read_llmservingsim(folder, LLAMA))
    bundle(tmp_path, dense="layer,rows,time_us\nqkv_proj,8,1\n")
    assert f"{folder / 'dense.csv'}:1: tokens: column missing" in fault(lambda: read_llmservingsim(folder, LLAMA))
    bundle(tmp_path, dense="layer,tokens,time_us,time_us\nqkv_proj,8,1,2\n")
    assert f"{folder / 'dense.csv'}:1: time_us: column stands twice" in fault(lambda: read_llmservingsim(folder, LLAMA))
    bundle(tmp_path, dense="layer,tokens,time_us\nqk_norm,8,1\n")
    assert "no row that can be imported" in fault(lambda: read_llmservingsim(folder, LLAMA))
    other = folder.rename(tmp_path / "two_ranks")
    assert "must be called tp<N>" in fault(lambda: read_llmservingsim(other, LLAMA))
    bundle(tmp_path)
    (other / "dense.csv").write_text("layer,tokens,time_us\nqkv_proj,8,1\n")
    assert len(read_llmservingsim(other, LLAMA, tp=2).table) == 1


@pytest.mark.parametrize(
    ("meta", "options", "says"),
    [
        ("model: Qwen/Qwen3-8B", {}, "model = 'Qwen/Qwen3-8B': was measured on another model than Llama-3.1-8B"),
        ("tp_degrees: [1, 4]", {}, "tp_degrees = '[1, 4]': does not hold 2 ranks: give one of its degrees by --tp"),
        ("tp_degrees: [2]", {"tp": 4}, "tp_degrees = '[2]': does not hold 4 ranks"),
        ("variant: fp8", {}, "variant = 'fp8': was timed, not bf16: give it by --dtype"),
        ("gpu: NVIDIA L40S", {}, "gpu = 'NVIDIA L40S': was timed, not a10g: give --hardware l40s"),
    ],
)
def test_llmservingsim_of_something_else(tmp_path: Path, meta: str, options: dict, says: str) -> None:
    folder = bundle(tmp_path, dense="layer,tokens,time_us\nqkv_proj,8,1\n")
    (folder / "meta.yaml").write_text(f"{meta}\n")
    with pytest.raises(DraftcastError) as caught:
        read("llmservingsim", folder, A10G, model=LLAMA, **options)
    assert f"{folder / 'meta.yaml'}: {says}" in str(caught.value)


def test_llmservingsim_of_what_is_asked_for(tmp_path: Path) -> None:
    folder = bundle(tmp_path, dense="layer,tokens,time_us\nqkv_proj,8,1\n").rename(tmp_path / "perf")
    meta = "gpu: NVIDIA A10G\nmodel: meta-llama/Llama-3.1-8B\nvariant: bf16\ntp_degrees: [2]\n"
    (folder / "meta.yaml").write_text(meta)
    table = read("llmservingsim", folder, A10G, model=LLAMA).table
    assert points(table, "linear", "m", "k", "n") == pytest.approx({(8, 4096, 3072): 1e-6})
    (folder / "meta.yaml").write_text("gpu: some GPU\nmodel: my/finetune\nvariant: mine\ntp_degrees: [1, 2]\n")
    assert len(read("llmservingsim", folder, A10G, model=LLAMA, tp=2).table) == 1
    assert "or the tensor-parallel degree be given by --tp" in fault(lambda: read_llmservingsim(folder, LLAMA))


def test_what_cannot_be_fitted_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise KeyError

    monkeypatch.setattr(formats, "fit_profile", fails)
    mlp_file(tmp_path)
    with pytest.raises(KeyError):
        formats.write_profile(tmp_path / "out", read("vidur", tmp_path, A10G), A10G, name="x", date="", command="")
    assert not list((tmp_path / "out").iterdir())


def test_import_table_of_each_format(tmp_path: Path) -> None:
    mlp_file(tmp_path)
    assert len(read("vidur", tmp_path, A10G).table) == 7
    folder = bundle(tmp_path, dense="layer,tokens,time_us\nqkv_proj,8,1\n")
    assert len(read("llmservingsim", folder, A10G, model=LLAMA).table) == 1
    assert set(FORMATS) == {"aiconfigurator", "aiter", "vidur", "llmservingsim"}


def test_all_reduces_come_from_the_bundled_profile(tmp_path: Path) -> None:
    """Tools that time one rank have none; a device without a bundled profile gets none."""
    mlp_file(tmp_path)
    folder = bundle(tmp_path, dense="layer,tokens,time_us\nqkv_proj,8,1\n")
    bundled = load_table(find_profile("a100-80g") / TABLE).query("operator == 'all_reduce'")
    for imported in (read("vidur", tmp_path, A100), read("llmservingsim", folder, A100, model=LLAMA)):
        assert len(imported.table.query("operator == 'all_reduce'")) == len(bundled) > 0
        assert imported.source.endswith("all-reduces of the bundled profile a100-80g")


@pytest.mark.parametrize(
    ("source", "options", "says"),
    [
        ("frontier", {}, "must be one of aiconfigurator, vidur, llmservingsim"),
        ("vidur", {"tp": 2}, "tp: vidur does not take it"),
        ("vidur", {"model": LLAMA}, "model: vidur does not take it"),
        ("aiconfigurator", {"dtype": "fp8"}, "dtype: aiconfigurator does not take it"),
        ("llmservingsim", {"system": "h100_sxm"}, "system: llmservingsim does not take it"),
        ("llmservingsim", {}, "the model is needed"),
    ],
)
def test_options_of_a_format(tmp_path: Path, source: str, options: dict, says: str) -> None:
    assert says in fault(lambda: read(source, tmp_path, A100, **options))


def test_a_path_is_needed(tmp_path: Path) -> None:
    assert "the path of vidur's files is needed" in fault(lambda: read("vidur", None, A100))
