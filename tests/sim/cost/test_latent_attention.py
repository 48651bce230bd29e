"""Latent attention in a step: the parts of a block add up to the measured block, and verification reads KV once."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest

from draftcast.calibration.profile.hardware import load_hardware
from draftcast.calibration.profile.load import load_profile
from draftcast.calibration.profile.roofline import Origin
from draftcast.calibration.profile.spec import RooflineProfile
from draftcast.kernels.model.catalog import load_model
from draftcast.kernels.operators.attention import layer_shape
from draftcast.kernels.work.layers import linear_layers
from draftcast.sim.cost import attention_time as at
from draftcast.sim.cost import step_time as st
from draftcast.sim.cost.engine_config import EngineConfig
from draftcast.sim.cost.operator_tables import OperatorTables
from draftcast.sim.cost.step_cost import compile_step_cost

DEEPSEEK = load_model("DeepSeek-V3")


@functools.cache  # its measured tables take longer to read than a step cost to compile
def profile_of(name: str, device: str = "h200") -> RooflineProfile:
    profile = load_profile(name, load_hardware(device))
    assert isinstance(profile, RooflineProfile)
    return profile


def attention_us(tables: OperatorTables, phase: str, batch: int, q: int, context: int, kv: str) -> tuple[float, Origin]:
    """Microseconds of one layer as a step takes them, and where they come from."""
    kind = dataclasses.replace(tables, kv_dtype=kv).attention(DEEPSEEK, phase, 1, 0)
    grids = np.concatenate([np.zeros(0), *tables.grids])
    pairs = batch * (q * context - (0.5 * q * (q - 1) if phase == "prefill" else 0.0))
    out = st.empty_record(st.TIMES)
    sums = at.sums_of(grids, pairs, float(batch * context), float(batch * q), float(batch))
    seconds = at.attention_seconds(kind, grids, sums, 1.0, out)
    return 1e6 * seconds, Origin(int(np.argmax(out["by_origin_s"])))


def block_us(tables: OperatorTables, phase: str, batch: int, q: int, context: int, kv: str) -> float:
    layers = [layer for layer in linear_layers(DEEPSEEK, tables.tp) if layer.name in ("qkv_a", "q_b", "kv_b", "o")]
    matrices = sum(tables.linear(layer, np.array([batch * q])).sum() / layer.count for layer in layers)
    return 1e6 * matrices + attention_us(tables, phase, batch, q, context, kv)[0]


# Device, heads on the rank, phase, batch, queries, context and microseconds of the block as aiconfigurator-core 0.12.0
# has it (mla_generation_module, mla_context_module; vLLM 0.24), with a bf16 and with an fp8 cache.
BF16 = [
    ("h200", 16, "decode", 4, 1, 1025, 98.3, 117.1),
    ("h200", 16, "decode", 64, 1, 8193, 256.0, 238.8),
    ("h100-sxm", 128, "decode", 1, 1, 1025, 215.4, 212.4),
    ("b200", 128, "decode", 16, 1, 1025, 121.6, 115.6),
    ("h200", 16, "prefill", 1, 4096, 4096, 723.4, 724.4),
    ("b200", 16, "prefill", 1, 4096, 4096, 279.2, 279.3),
]
# The same with fp8 matrices: these took no part in the table.
FP8 = [
    ("h200", 16, "decode", 4, 1, 1025, 99.3, 117.3),
    ("h200", 16, "decode", 64, 1, 8193, 254.9, 223.6),
    ("h100-sxm", 16, "decode", 16, 1, 1025, 118.2, 140.0),
    ("h100-sxm", 16, "prefill", 1, 4096, 4096, 731.3, 731.4),
]


@pytest.mark.parametrize(
    ("dtype", "within", "point"), [("bf16", 0.04, p) for p in BF16] + [("fp8", 0.1, p) for p in FP8]
)
def test_the_parts_of_a_block_add_up_to_the_measured_block(dtype: str, within: float, point: tuple) -> None:
    device, heads, phase, batch, q, context, *measured = point
    tables = OperatorTables(profile_of(device, device), 128 // heads, dtype)
    for kv, us in zip(("bf16", "fp8"), measured, strict=True):
        assert block_us(tables, phase, batch, q, context, kv) == pytest.approx(us, rel=within)


def test_decode_is_measured_and_verification_stretched_by_its_own_work() -> None:
    profile = profile_of("h200")
    tables = OperatorTables(profile, 8, "fp8")
    one, origin = attention_us(tables, "decode", 64, 1, 8193, "bf16")
    assert origin == Origin.INTERPOLATED
    four, origin = attention_us(tables, "decode", 64, 4, 8193, "bf16")
    assert origin == Origin.EXTRAPOLATED
    # 64 x 8193 latents of 1,152 bytes take 126 us from an H200's memory: four queries do not read them four times.
    assert one < four < one + 126.0
    seconds = profile.seconds_of("mla_decode", "bf16")
    name, heads = layer_shape(DEEPSEEK, "decode", 8)
    assert profile.measured is not None
    grid = profile.measured.grid(name, "bf16", "bf16", seconds, **heads)
    assert grid is not None
    assert grid.axes[0].tolist()[:4] == [1.0, 2.0, 3.0, 4.0]


def test_what_nobody_timed_takes_the_assumed_roofline() -> None:
    for name, device in (("default", "h200"), ("a100-80g", "a100-80g")):
        tables = OperatorTables(profile_of(name, device), 8, "bf16")
        us, origin = attention_us(tables, "decode", 1, 1, 64, "bf16")
        assert origin == Origin.EXTRAPOLATED
        assert us == pytest.approx(21.0, abs=0.5)  # its start, besides 64 latents


@pytest.mark.parametrize("phase", ["decode", "prefill"])
@pytest.mark.parametrize(("number", "value"), [("t0_s", 1e-3), ("e_c", 0.01), ("e_m", 0.001), ("p", 1.0)])
def test_every_roofline_number_counts(phase: str, number: str, value: float) -> None:
    profile = profile_of("default")
    family = f"mla_{phase}"
    changed = dataclasses.replace(profile.operators[family], **{number: value})
    other = dataclasses.replace(profile, operators={**profile.operators, family: changed})
    before, after = (
        attention_us(OperatorTables(p, 8, "bf16"), phase, 8, 1 if phase == "decode" else 512, 2048, "bf16")[0]
        for p in (profile, other)
    )
    assert after > 1.01 * before


@pytest.mark.parametrize(("number", "value"), [("t0_s", 1e-3), ("e_c", 0.01), ("e_m", 0.001), ("p", 1.0)])
def test_every_roofline_number_of_sparse_decode_counts(number: str, value: float) -> None:
    profile, sparse = profile_of("default"), load_model("DeepSeek-V3.2")
    changed = dataclasses.replace(profile.operators["dsa_decode"], **{number: value})
    other = dataclasses.replace(profile, operators={**profile.operators, "dsa_decode": changed})
    sums = at.sums_of(np.zeros(0), 64 * 65536.0, 64 * 65536.0, 64.0, 64.0)
    before, after = (
        at.attention_seconds(
            OperatorTables(p, 8, "bf16").sparse_decode(sparse),
            np.zeros(0),
            sums,
            1.0,
            st.empty_record(st.TIMES),
        )
        for p in (profile, other)
    )
    assert after > 1.01 * before


def test_layers_without_an_indexer_of_their_own_are_not_taken_for_measured() -> None:
    """GLM-5.2: 21 of 78 layers have an indexer, the others read what it chose."""
    config = EngineConfig(is_moe=True, tensor_parallel_size=8, weight_dtype="fp8", max_num_batched_tokens=256)
    cost = compile_step_cost(config, load_model("GLM-5.2"), None, profile_of("h200"))
    kinds = cost.attention
    assert (kinds["layers"][at.DECODE], kinds["layers"][at.DECODE_WINDOW]) == (21, 57)
    assert kinds["grid"][at.DECODE] >= 0 > kinds["grid"][at.DECODE_WINDOW]
    # Ranks that share out the context: nothing of it was timed.
    shared = dataclasses.replace(config, decode_context_parallel_size=2)
    kinds = compile_step_cost(shared, load_model("GLM-5.2"), None, profile_of("h200")).attention
    assert (kinds["layers"][at.DECODE_WINDOW], kinds["grid"][at.DECODE]) == (78, -1)


def test_an_indexer_multiplies_in_fp8() -> None:
    profile, model = profile_of("h200"), load_model("DeepSeek-V3.2")
    kind = np.zeros(1, at.ATTENTION)[0]
    OperatorTables(profile, 8, "fp8").add_indexer(kind, model, "prefill")
    # 61 layers of 64 heads of 128, at the share of the peak that the model's attention reaches in bf16.
    reached = profile.operator("mla_prefill", "bf16").e_c * profile.hardware.ceilings("linear", "fp8")[0]
    assert kind["qkv_s"] == pytest.approx(61 * 2 * 64 * 128 / reached)


def test_norms_and_rotary_of_the_latents_are_counted_once() -> None:
    """The element-wise kernels of a layer are two norms of the hidden state and those of its feed-forward part."""
    profile = profile_of("h200")
    dear = dataclasses.replace(profile.operators["elementwise"], t0_s=1.0)
    profile = dataclasses.replace(profile, operators={**profile.operators, "elementwise": dear})
    tables = OperatorTables(profile, 8, "fp8")
    kernels = tables._elementwise(DEEPSEEK, np.array([1])).sum()
    # 61 layers: two norms each, SwiGLU of 3 dense ones, choice of experts of 58; embedding, final norm.
    assert round(kernels) == 61 * 2 + 3 + 58 + 2


def test_mixed_steps_take_no_shared_launch() -> None:
    config = EngineConfig(tensor_parallel_size=8, weight_dtype="fp8", max_num_batched_tokens=256, max_num_seqs=64)
    cost = compile_step_cost(config, DEEPSEEK, None, profile_of("h200"))
    assert cost.attention[at.DECODE]["grid"] >= 0
    assert cost.attention[at.PREFILL]["grid"] >= 0
    assert cost.attention[at.DECODE]["tile_kv_s"] == 0.0
