"""Attention of prompts and decodes in one launch, and of unequal contexts: closed forms, measured launches, knobs."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest

from draftcast.calibration.profile.hardware import HardwareSpec, load_hardware
from draftcast.calibration.profile.load import TABLE, load_profile, write_manifest
from draftcast.calibration.profile.roofline_fit import fit_profile
from draftcast.calibration.profile.table import checked_table, save_table
from draftcast.kernels.model.catalog import load_model
from draftcast.sim.cost import attention_time as al
from draftcast.sim.cost import attention_time as at
from draftcast.sim.cost import step_time as st
from draftcast.sim.cost.engine_config import EngineConfig
from draftcast.sim.cost.step_cost import compile_step_cost

LLAMA = load_model("Llama-3.1-8B")
A100, H100, B200 = (load_hardware(name) for name in ("a100-80g", "h100-sxm", "b200"))
PAIR_S = 1e-12
HEADS = {"heads": 32, "kv_heads": 8, "head_dim": 128}


def kind(hardware: HardwareSpec) -> np.void:
    record = np.zeros(1, at.ATTENTION)[0]
    record["layers"] = 1
    al.fill_launch(record, hardware.attention_kernel, hardware.multiprocessors, 32, 8, PAIR_S)
    return record


def launch(
    record: np.void, *, rows: float, longest: float = 1000.0, chunk: float = 0.0, prefill_s: float = 0.0
) -> float:
    """Ten sequences of 1,000 tokens whose decodes alone take 10 us."""
    return float(launch_seconds(record, np.zeros(1), 1e-5, prefill_s, rows, 10.0, 1e4, longest, chunk, chunk * chunk))


def launch_seconds(
    record: np.void,
    grids: np.ndarray,
    decode_s: float,
    prefill_s: float,
    rows: float,
    seqs: float,
    kv: float,
    longest: float,
    chunk: float,
    pairs: float,
) -> float:
    decode = at.sums_of(grids, 0.0, kv, rows, seqs)
    return al.launch_seconds(
        record, grids, decode_s, decode, longest, prefill_s, at.sums_of(grids, pairs, 1.0, chunk, 1.0)
    )


def test_a_launch_stands_between_the_measured_ones_around_it() -> None:
    # Nodes that are a plane of the logs: whatever is interpolated between them lies on it.
    axes = [np.log(axis) for axis in ([16.0, 256.0], [16.0, 64.0, 1040.0], [1.0, 64.0], [128.0, 1024.0, 8192.0])]
    nodes = sum(weight * each for weight, each in zip((1, 2, 3, 5), np.meshgrid(*axes, indexing="ij"), strict=True))
    grids = np.concatenate([np.ones(4), [len(axis) for axis in axes], *axes, np.ravel(nodes)])
    chunk, prefix, seqs, context = 100.0, 200.0, 10.0, 3000.0
    expected = math.log(chunk) + 2 * math.log(prefix + al.PREFIX_OFFSET) + 3 * math.log(seqs) + 5 * math.log(context)
    assert al._log_ratio(grids, 4, chunk, prefix, seqs, context) == pytest.approx(expected)


def test_decodes_beside_a_prompt_fill_a_row_of_each_tile() -> None:
    # 64 rows x (10,000 tokens + 128 for each sequence) at 1 ps a pair, more than one tile alone on an SM takes.
    shared = 5e-6 + 64 * PAIR_S * (1e4 + 1280)
    assert launch(kind(A100), rows=10, chunk=16, prefill_s=5e-6) == pytest.approx(5e-6 + max(shared - 5e-6, 1e-5))
    slow = kind(A100)
    slow["tile_kv_s"] *= 100
    assert launch(slow, rows=10, chunk=16, prefill_s=5e-6) == pytest.approx(5e-6 + 6400 * PAIR_S * 11280)


def test_one_context_cannot_be_shorter_than_its_own_tile() -> None:
    lone = kind(A100)
    # One sequence of 10,000 tokens: a tile of every head, each on one of 108 multiprocessors.
    serial_s = 64 * PAIR_S * 108 / 32 * (1e4 + 128)
    seconds = launch_seconds(lone, np.zeros(1), 1e-7, 1e-7, 1.0, 1.0, 1e4, 1e4, 16.0, 136.0)
    assert seconds == pytest.approx(serial_s)


def test_verification_is_launched_like_a_prompt_unless_it_was_measured() -> None:
    slow = kind(A100)
    slow["tile_kv_s"] *= 100
    assert launch(slow, rows=10) == pytest.approx(1e-5)
    assert launch(slow, rows=20) == pytest.approx(6400 * PAIR_S * 11280)
    slow["verify_measured"] = 1
    assert launch(slow, rows=20) == pytest.approx(1e-5)


def test_the_kernel_of_the_device_decides() -> None:
    packed, single = kind(H100), kind(A100)
    # Four heads of a group share a tile of 128 rows.
    assert packed["tile_kv_s"] == pytest.approx(32 * PAIR_S)
    assert packed["shared_tail_kv_s"] == 0.0
    assert single["split_seqs"] == pytest.approx(0.8 * 2 * 108 / 8)
    apart = kind(B200)
    assert launch(apart, rows=10, chunk=16, prefill_s=5e-6, longest=9000.0) == pytest.approx(1.5e-5)


@pytest.mark.parametrize(
    ("device", "flags", "launched_together"),
    [
        ("a100-80g", {}, True),
        ("a100-80g", {"kv_dtype": "fp8"}, False),
        ("a100-80g", {"version": "sglang 0.5.6"}, False),
        ("h100-sxm", {"kv_dtype": "fp8"}, True),
    ],
)
def test_flashinfer_attends_where_flash_attention_2_cannot_or_is_not_taken(
    device: str, flags: dict[str, str], launched_together: bool
) -> None:
    hardware = load_hardware(device)
    config = EngineConfig(max_num_seqs=8, max_num_batched_tokens=2048, **flags)
    cost = compile_step_cost(config, LLAMA, None, load_profile(None, hardware))
    assert (cost.attention[at.DECODE]["tile_kv_s"] > 0.0) == launched_together


def test_unequal_contexts_take_longer_once_they_are_not_split() -> None:
    record = kind(A100)
    tail_s = al.TAIL * 64 * PAIR_S * 108 / 32
    assert launch(record, rows=10, longest=4000.0) == pytest.approx(1e-5)  # ten sequences are split
    many = launch_seconds(record, np.zeros(1), 1e-5, 0.0, 30.0, 30.0, 3e4, 4000.0, 0.0, 0.0)
    assert many == pytest.approx(1e-5 + tail_s * 3000.0)
    equal = launch(record, rows=10, chunk=16, prefill_s=5e-6)
    assert launch(record, rows=10, longest=4000.0, chunk=16, prefill_s=5e-6) == pytest.approx(equal + tail_s * 3000.0)


@pytest.mark.parametrize("device", ["a100-80g", "rtx-4090", "h100-sxm", "b200"])
def test_no_step_is_faster_with_a_prompt_or_more_of_it(device: str) -> None:
    hardware = load_hardware(device)
    config = EngineConfig(max_num_seqs=128, max_num_batched_tokens=2048)
    cost = compile_step_cost(config, LLAMA, None, load_profile(None, hardware))
    before = 0.0
    for chunk in (0, 16, 64, 256, 512, 1024, 1536):
        seconds = step(cost, chunk)
        assert seconds >= before * (1.0 - 1e-9), chunk
        before = seconds


def step(cost: st.StepCost, chunk: int, seqs: int = 64, mean: float = 800.0) -> float:
    """Target seconds of decodes beside a first chunk; parts by origin are checked on the way."""
    f, out = np.zeros(1, st.FEATURES), np.zeros(1, st.TIMES)
    st.fill_decode(f[0], st.SLIDING, 0.0, seqs, seqs, seqs * mean, mean)
    f["tokens"] += chunk
    f["prefill_tokens"] = f["prefill_kv"] = chunk
    f["prefill_seqs"] = chunk > 0
    f["prefill_qkv"] = chunk * (chunk + 1) / 2
    st.step_time(cost, f[0], out[0])
    times = out[0]
    assert times["by_origin_s"].min() >= 0.0
    assert times["by_origin_s"].sum() == pytest.approx(times["target_s"] + times["sample_s"] + times["draft_s"])
    assert times["prefill_s"] <= times["target_s"]
    return float(times["target_s"])


def test_measured_launches_replace_the_formulas(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A table whose shared launches take twice what the formulas say, and whose tails are 20 ns a token."""
    folder = tmp_path_factory.mktemp("launches")
    rows = [
        (1, batch, context, 1e-5 + 1e-9 * batch * context) for batch in (1, 16, 64) for context in (129, 1025, 4097)
    ]
    decode = pd.DataFrame(rows, columns=["q", "batch", "context", "seconds"]).assign(operator="attention_decode")
    rows = [(c, 1, c * r, 1e-5 + 1e-10 * c * c * r) for c in (16, 128, 1024) for r in (1, 2, 8)]
    prefill = pd.DataFrame(rows, columns=["q", "batch", "context", "seconds"]).assign(operator="attention_prefill")
    shapes = [(c, c * r, b, s) for c in (16, 128, 1024) for r in (1, 8) for b in (1, 16, 64) for s in (129, 1025, 4097)]
    launches = pd.DataFrame(shapes, columns=["m", "k", "batch", "context"]).assign(
        operator="attention_launch", seconds=1.0
    )
    launches["n"] = launches["context"]

    def compiled(extra: pd.DataFrame | None, name: str) -> st.StepCost:
        frame = pd.concat([decode, prefill, *([] if extra is None else [extra])], ignore_index=True).fillna(0)
        labels = {"dtype": "bf16", "kv_dtype": "bf16", "implementation": "a test", **HEADS}
        place = folder / name
        place.mkdir()
        save_table(checked_table(frame.assign(**labels)), place / TABLE)
        about = {"date": "2026-11-21", "command": "a test", "source": "a test"}
        write_manifest(place, name=name, hardware=A100.name, device="a test", **about)
        fit_profile(place, A100)
        config = EngineConfig(max_num_seqs=64, max_num_batched_tokens=2048)
        return compile_step_cost(config, LLAMA, None, load_profile(str(place), A100))

    plain = compiled(None, "plain")
    formula = plain.attention[at.DECODE]
    one_layer = {name: float(formula[name]) / LLAMA.num_hidden_layers for name in ("tile_kv_s", "serial_kv_s")}

    def twice(row: pd.Series) -> float:
        prefill_s = 1e-5 + 1e-10 * row.m * row.k
        decode_s = 1e-5 + 1e-9 * row.batch * row.context
        kv = row.batch * row.context
        return 2.0 * al.shared_seconds(**one_layer, prefill_s=prefill_s, decode_s=decode_s, seqs=row.batch, kv=kv)

    launches["seconds"] = launches.apply(twice, axis=1)
    unequal = launches[(launches["m"] == 128) & (launches["context"] == 1025)].assign(n=3025)
    unequal["seconds"] += 2000 * 20e-9
    measured = compiled(pd.concat([launches, unequal]), "launches")
    found = measured.attention[at.DECODE]
    assert found["launch_grid"] >= 0 > formula["launch_grid"]
    assert found["shared_tail_kv_s"] / LLAMA.num_hidden_layers == pytest.approx(20e-9, rel=0.05)
    parts = (found, measured.attention_grids, 1e-4, 2e-4, 16.0, 16.0, 16 * 1025.0, 1025.0, 128.0, 128 * 129 / 2)
    expected = 2.0 * al.shared_seconds(found["tile_kv_s"], found["serial_kv_s"], 2e-4, 1e-4, 16.0, 16 * 1025.0)
    assert launch_seconds(*parts) == pytest.approx(expected, rel=1e-6)
    assert step(measured, 128, 16, 1024.0) > step(plain, 128, 16, 1024.0)


def test_hardware_without_a_known_kernel_launches_apart() -> None:
    unknown = dataclasses.replace(A100, attention_kernel="separate", multiprocessors=0)
    record = kind(unknown)
    assert record["tile_kv_s"] == record["split_seqs"] == 0.0
    assert math.isclose(launch(record, rows=20, chunk=64, prefill_s=1e-6), 1.1e-5)
