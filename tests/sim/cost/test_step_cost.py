"""Step cost by hand: a model small enough for paper, the published affine fit, and what a physical floor allows."""

import dataclasses
import functools
import math
from typing import Any

import numpy as np
import pytest
from numba import njit
from numba.core.runtime import _nrt_python, rtsys
from paths import benchmark_module

from draftcast.calibration.profile.hardware import HardwareSpec, load_hardware
from draftcast.calibration.profile.load import load_profile
from draftcast.calibration.profile.roofline import Origin
from draftcast.calibration.profile.spec import OPERATORS, HardwareProfile, Host, Launch, OperatorFit, RooflineProfile
from draftcast.kernels.model.catalog import load_model
from draftcast.kernels.model.spec import ModelSpec
from draftcast.kernels.operators.linear import touched_experts
from draftcast.kernels.work import layers
from draftcast.sim.cost import attention_time as at
from draftcast.sim.cost import step_time as st
from draftcast.sim.cost.engine_config import EngineConfig
from draftcast.sim.cost.methods import Method, get_method
from draftcast.sim.cost.operator_tables import OperatorTables
from draftcast.sim.cost.step_cost import compile_step_cost
from draftcast.sim.cost.step_time import (
    StepCost,
    decode_features,
    decode_step_seconds,
    step_time,
)

H100 = load_hardware("h100-sxm")
LLAMA = load_model("llama-3.1-8b")
AFFINE = "h100-llama-3.1-8b-affine"

# Two layers, four query heads over two KV heads of 16, SwiGLU of 128 over 64, 1,000 words, all on a device that moves
# 1e12 bytes and computes 1e15 FLOP a second, so that every operator is memory-bound and a byte is a picosecond.
TINY = ModelSpec(
    name="tiny",
    architecture="LlamaForCausalLM",
    num_hidden_layers=2,
    hidden_size=64,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    intermediate_size=128,
    vocab_size=1000,
    max_position_embeddings=4096,
    tie_word_embeddings=False,
    gated_mlp=True,
    attention_bias=False,
    mlp_bias=False,
    position_embeddings=0,
    word_embed_proj_dim=64,
)
BENCH = HardwareSpec(
    name="bench",
    vendor="nobody",
    memory_bytes=1e10,
    memory_bandwidth_bytes_per_s=1e12,
    peak_flops={"bf16": 1e15, "fp16": 1e15, "fp8": 2e15},
    link_bandwidth_bytes_per_s=1e11,
    link_latency_s=1e-6,
    board_power_w=0.0,
    sources=("a test",),
)


def fill(record: Any, **fields: float) -> None:
    for name, value in fields.items():
        record[name] = value


def ideal_profile(hardware: HardwareSpec = BENCH, **own: OperatorFit) -> RooflineProfile:
    """Full peaks, no start-up time, the larger of compute and memory; ``own`` replaces families."""
    ideal = OperatorFit(0.0, 1.0, 1.0, math.inf, Origin.INTERPOLATED, "a test")
    return RooflineProfile(
        schema_version=1,
        kind="roofline",
        name="ideal",
        hardware=hardware,
        operators={family: own.get(family, ideal) for family in OPERATORS},
        host=Host(1e-3, 1e-5),
        launch=Launch(512),
        source="a test",
        date="2026-11-21",
    )


def kernels_only(cost: StepCost) -> StepCost:
    """``cost`` without what the engine adds to kernels; `test_engine_generations` checks that."""
    added = (
        "target_mode_s draft_mode_s target_launch_s draft_launch_s draft_pass_s draft_later_s verify_s search_step_s"
    )
    for name in added.split():
        cost.params[0][name] = 0.0
    return cost


def compiled(model: ModelSpec, draft_model: ModelSpec | None, profile: Any, **flags: Any) -> StepCost:
    return compile_step_cost(EngineConfig(**flags), model, draft_model, profile)


def tiny_cost(
    method: str | Method = "none", k: int = 0, profile: RooflineProfile | None = None, **changes: object
) -> StepCost:
    if isinstance(method, str):
        method = get_method(method)
    arguments: dict = {
        "model": TINY,
        "method": method,
        "draft_model": TINY if method.needs_draft_model else None,
        "num_speculative_tokens": k,
        "tensor_parallel_size": 1,
        "draft_tensor_parallel_size": 0,
        "weight_dtype": "bf16",
        "kv_dtype": "auto",
        "profile": profile or ideal_profile(),
        "max_num_batched_tokens": 1024,
        "max_num_seqs": 64,
        "max_cudagraph_capture_size": 0,
    }
    return kernels_only(compiled(**(arguments | changes)))


@functools.cache
def h100_profile(name: str | None) -> HardwareProfile:
    """Read once: its measured tables take longer to read than a step cost to compile."""
    return load_profile(name, H100)


def llama_cost(method: str = "none", k: int = 0, profile: str | None = "default") -> StepCost:
    config = EngineConfig(method=get_method(method), num_speculative_tokens=k)
    return compile_step_cost(config, LLAMA, None, h100_profile(profile))


def timed(cost: StepCost, **features: float) -> np.ndarray:
    f = st.empty_record(st.FEATURES)
    for name, value in features.items():
        f[name] = value
    out = st.empty_record(st.TIMES)
    step_time(cost, f, out)
    return out


def decode(cost: StepCost, num_seqs: int, k: int, context: float) -> np.ndarray:
    f, out = st.empty_record(st.FEATURES), st.empty_record(st.TIMES)
    decode_features(cost, num_seqs, k, context, f)
    step_time(cost, f, out)
    return out


def device_seconds(out: np.ndarray) -> float:
    return float(out["draft_s"] + out["target_s"] + out["sample_s"])


def test_no_rows_cost_nothing() -> None:
    assert timed(tiny_cost()) == np.zeros(1, st.TIMES)[0]


# A hand-computed step --------------------------------------------------------------------------------------------


def tiny_target_bytes(rows: int) -> float:
    """Bytes of the tiny model's matrices, norms, rotary embedding and activations over ``rows`` rows."""
    shapes = [(64, 64 + 2 * 32), (64, 64), (64, 2 * 128), (128, 64)]  # qkv, o, gate_up, down
    matrices = sum(k * n + rows * (k + n) for k, n in shapes)
    # Norms read and write row and residual twice a layer, rotary reads and writes q and k, SwiGLU reads 2 and writes 1.
    streams = rows * (2 * 4 * 64 + 2 * (64 + 32) + 3 * 128)
    once = rows * (2 * 64 + 2 * 64)  # embedding, final norm
    return 2.0 * (2 * (matrices + streams) + once)


def test_decode_step_by_hand() -> None:
    out = timed(
        tiny_cost(), tokens=3, seqs=3, decode_seqs=3, decode_tokens=3, decode_kv=300, decode_qkv=300, logit_rows=3
    )
    # Attention: K and V of 300 tokens read, of 3 written (2 x 32 elements), queries in and outputs out (2 x 64).
    attention = 2 * 2.0 * ((300 + 3) * 64 + 3 * 128)
    assert out["target_s"] == pytest.approx((tiny_target_bytes(3) + attention) * 1e-12, rel=1e-12)
    # lm_head: weights, rows in, logits out; sampler: 18 bytes a logit.
    lm_head = 2.0 * (64 * 1000 + 3 * (64 + 1000))
    assert out["sample_s"] == pytest.approx((lm_head + 18.0 * 3 * 1000) * 1e-12, rel=1e-12)
    assert out["host_s"] == pytest.approx(1e-3 + 3e-5)
    assert out["draft_s"] == out["prefill_s"] == 0.0
    assert out["by_origin_s"][1] == pytest.approx(device_seconds(out))


def test_prefill_beside_decode_by_hand() -> None:
    batch = {"decode_seqs": 1, "decode_tokens": 1, "decode_kv": 50, "decode_qkv": 50, "logit_rows": 1}
    prefill = {"prefill_seqs": 1, "prefill_tokens": 16, "prefill_kv": 48, "prefill_qkv": 16 * (32 + 8.5)}
    out = timed(tiny_cost(), tokens=17, seqs=2, **batch, **prefill)
    decode_attention = 2 * 2.0 * ((50 + 1) * 64 + 1 * 128)
    prefill_attention = 2 * 2.0 * ((48 + 16) * 64 + 16 * 128)
    total = tiny_target_bytes(17) + decode_attention + prefill_attention
    assert out["target_s"] == pytest.approx(total * 1e-12, rel=1e-12)
    extra = tiny_target_bytes(17) - tiny_target_bytes(1) + prefill_attention
    assert out["prefill_s"] == pytest.approx(extra * 1e-12, rel=1e-12)
    alone = timed(tiny_cost(), tokens=16, seqs=1, **prefill)
    assert alone["prefill_s"] == alone["target_s"] > 0


@pytest.mark.parametrize("origin", Origin)
def test_prefill_beside_decode_takes_what_the_decode_alone_would_not(origin: Origin) -> None:
    fit = OperatorFit(0.0, 1.0, 1.0, math.inf, origin, "a test")
    cost = tiny_cost(profile=ideal_profile(linear=fit, elementwise=fit))
    rows = {"tokens": 17, "seqs": 2, "decode_seqs": 1, "decode_tokens": 1, "prefill_seqs": 1, "prefill_tokens": 16}
    out = timed(cost, **rows, decode_kv=50, decode_qkv=50, prefill_kv=48, prefill_qkv=16 * (32 + 8.5))
    attention = 2 * 2.0 * ((48 + 16) * 64 + 16 * 128)
    extra = tiny_target_bytes(17) - tiny_target_bytes(1) + attention
    assert out["prefill_s"] == pytest.approx(extra * 1e-12, rel=1e-12)


def test_compute_bound_attention_by_hand() -> None:
    slow = HardwareSpec(**(vars(BENCH) | {"peak_flops": {"bf16": 1e9}}))
    cost = tiny_cost(profile=ideal_profile(slow))
    batch = {"tokens": 4, "seqs": 1, "decode_seqs": 1, "decode_tokens": 4, "decode_kv": 100}
    without = timed(cost, **batch, decode_qkv=0)
    twice = timed(cost, **batch, decode_qkv=800)
    once = timed(cost, **batch, decode_qkv=400)
    # 4 H d FLOPs per (query, context) pair and layer.
    assert once["target_s"] - without["target_s"] == pytest.approx(400 * 4 * 64 * 2 / 1e9, rel=1e-2)
    assert twice["target_s"] - once["target_s"] == pytest.approx(400 * 4 * 64 * 2 / 1e9, rel=1e-9)


def test_draft_model_of_the_targets_own_size_by_hand() -> None:
    """One pass over N + B rows, then k - 1 over B, lm_head and argmax of B rows each time."""
    cost = tiny_cost("draft_model", 3)
    batch = {"tokens": 8, "seqs": 2, "decode_seqs": 2, "decode_tokens": 8, "decode_kv": 200, "decode_qkv": 800}
    drafts = {"draft_seqs": 2, "draft_tokens": 6, "draft_passes": 3, "draft_kv": 200}
    out = timed(cost, **batch, **drafts, logit_rows=8)

    def attention(kv: float, rows: int) -> float:
        return 2 * 2.0 * ((kv + rows) * 64 + rows * 128)

    logits = 2.0 * (64 * 1000 + 2 * (64 + 1000)) + 2.0 * 2 * 1000
    first = tiny_target_bytes(10) + attention(200, 10) + logits
    # Passes 2 and 3 see 200 + 2 and 200 + 4 tokens: their mean, twice.
    later = 2 * (tiny_target_bytes(2) + attention(203, 2) + logits)
    assert out["draft_s"] == pytest.approx((first + later) * 1e-12, rel=1e-12)


def test_medusa_by_hand() -> None:
    out = timed(tiny_cost("medusa", 2), tokens=6, seqs=2, decode_seqs=2, decode_tokens=6, draft_seqs=2,
                draft_tokens=4, draft_passes=2)  # fmt: skip
    block = 2.0 * (64 * 64 + 2 * (64 + 64)) + 2.0 * 2 * (2 * 64 + 3 * 64)
    logits = 2.0 * (64 * 1000 + 2 * (64 + 1000)) + 2.0 * 2 * 1000
    assert out["draft_s"] == pytest.approx(2 * (block + logits) * 1e-12, rel=1e-12)


def test_kernel_starts_add_up() -> None:
    """Matrices 8, attention 2, norms 4 + 1, rotary 2, activation 2, embedding 1, lm_head and sampler 1 each."""
    started = OperatorFit(1.0, 1.0, 1.0, math.inf, Origin.MEASURED, "a test")
    cost = tiny_cost(profile=ideal_profile(**dict.fromkeys(OPERATORS, started)))
    out = decode(cost, 1, 0, 10)
    assert out["sample_s"] == pytest.approx(2.0, rel=1e-6)
    elementwise = out["target_s"] - 8 - 2
    assert elementwise == pytest.approx(round(elementwise), rel=1e-6)
    assert 8 <= elementwise <= 12


def test_what_the_cache_holds_moves_at_twice_the_memory_s_rate() -> None:
    """Kernels move 2,000 bytes of logits a row: to 500 rows the cache holds them, of 1,000 rows it keeps nothing."""
    rows = np.array([1, 250, 500, 750, 1000, 4000])
    full = OperatorTables(ideal_profile(), 1, "bf16")
    kept = OperatorTables(ideal_profile(dataclasses.replace(BENCH, cache_bytes=1e6)), 1, "bf16")
    seconds = kept.argmax(TINY, rows).sum(axis=1)
    np.testing.assert_allclose(seconds, rows * 2e-9 * [0.5, 0.5, 0.5, 0.75, 1.0, 1.0])
    np.testing.assert_allclose(full.argmax(TINY, rows).sum(axis=1), rows * 2e-9)
    many = np.arange(1, 6000)
    for table in (kept.argmax(TINY, many), kept.sampler(TINY, many, 1), kept._elementwise(TINY, many)):
        assert (np.diff(table.sum(axis=1)) > 0).all()
    # Norms and activations of a pass: half at first, all of it in the end.
    ratio = kept._elementwise(TINY, many).sum(axis=1) / full._elementwise(TINY, many).sum(axis=1)
    assert ratio[0] == pytest.approx(0.5)
    assert ratio[-1] == pytest.approx(1.0, rel=0.1)
    assert (np.diff(ratio) >= -1e-12).all()


def test_collectives_by_hand() -> None:
    two = tiny_cost(tensor_parallel_size=2)
    free = HardwareSpec(**(vars(BENCH) | {"link_latency_s": 0.0, "link_bandwidth_bytes_per_s": 1e30}))
    without_link = tiny_cost(tensor_parallel_size=2, profile=ideal_profile(free))
    both = [timed(cost, tokens=4, logit_rows=4) for cost in (two, without_link)]
    # Five all-reduces of 4 rows of 64: 2 (tp-1)/tp x 512 bytes over 1e11 bytes/s and a microsecond each.
    assert both[0]["target_s"] - both[1]["target_s"] == pytest.approx(5 * (512 / 1e11 + 1e-6), rel=1e-9)
    assert both[0]["sample_s"] - both[1]["sample_s"] == pytest.approx(4 * 1000 * 2 / 2 / 1e11 + 1e-6, rel=1e-9)


def test_published_all_reduces_come_before_the_roofline() -> None:
    # Messages of 1, 4 and 16 rows of 64 numbers in 2 bytes; five collectives, a row's part of the logits aside.
    profile = dataclasses.replace(ideal_profile(), all_reduce={2: ((128.0, 1e-3), (512.0, 2e-3))})

    def collectives_s(ranks: int, rows: int) -> float:
        shown = [
            timed(tiny_cost(tensor_parallel_size=ranks, profile=each), tokens=rows, logit_rows=1)["target_s"]
            for each in (profile, ideal_profile())
        ]
        fitted = 5 * (rows * 128 * 2 * (ranks - 1) / ranks / 1e11 + 1e-6)
        return shown[0] - shown[1] + fitted

    assert collectives_s(2, 1) == pytest.approx(5 * 1e-3)
    assert collectives_s(2, 4) == pytest.approx(5 * 2e-3)
    assert 5 * 1e-3 < collectives_s(2, 2) < 5 * 2e-3
    # Beyond the last point by the ratio of rooflines; ranks without points by the roofline alone.
    rooflines = [size / 1e11 + 1e-6 for size in (512, 2048)]
    assert collectives_s(2, 16) == pytest.approx(5 * 2e-3 * rooflines[1] / rooflines[0])
    assert collectives_s(4, 4) == pytest.approx(5 * (512 * 1.5 / 1e11 + 1e-6))


# CUDA graphs -------------------------------------------------------------------------------------------------------


def test_rows_are_padded_inside_the_ceiling() -> None:
    cost = tiny_cost(max_cudagraph_capture_size=8)
    seconds = [timed(cost, tokens=rows)["target_s"] for rows in range(11)]
    assert seconds[5] == seconds[6] == seconds[7] == seconds[8]
    assert seconds[8] == pytest.approx(tiny_target_bytes(8) * 1e-12)
    assert seconds[9] == pytest.approx(tiny_target_bytes(9) * 1e-12)
    assert seconds[4] < seconds[5]


# Physics -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "floor_ms"), [(1, 4.52), (8, 4.80), (64, 7.04), (256, 14.73)])
def test_llama_decode_on_h100_is_near_its_floor(batch: int, floor_ms: float) -> None:
    milliseconds = 1e3 * device_seconds(decode(llama_cost(), batch, 0, 1024))
    assert floor_ms < milliseconds < 1.8 * floor_ms


def test_default_roofline_agrees_with_the_published_fit() -> None:
    assumed, fitted = llama_cost(), llama_cost(profile=AFFINE)
    for batch in (1, 8, 64):
        ratio = device_seconds(decode(assumed, batch, 0, 1024)) / device_seconds(decode(fitted, batch, 0, 1024))
        assert 0.8 < ratio < 1.2


def test_verify_reads_kv_once() -> None:
    """A memory-bound attention takes as long for five queries a sequence as for one."""
    cost = tiny_cost("ngram", 4)
    batch = {"tokens": 50, "seqs": 10, "decode_seqs": 10, "decode_tokens": 50, "decode_kv": 10_000}
    assert timed(cost, **batch, decode_qkv=10_000)["target_s"] == timed(cost, **batch, decode_qkv=50_000)["target_s"]
    assert timed(cost, **(batch | {"decode_kv": 50_000}))["target_s"] > 2 * timed(cost, **batch)["target_s"]


def test_verify_of_four_drafts_at_batch_256() -> None:
    assert device_seconds(decode(llama_cost("ngram", 4), 256, 4, 1024)) < 55e-3


def test_moe_bytes_grow_with_the_tokens() -> None:
    fast = HardwareSpec(**(vars(H100) | {"peak_flops": {"bf16": 1e20, "fp16": 1e20}}))
    model = load_model("mixtral-8x7b")
    cost = tiny_cost(model=model, profile=ideal_profile(fast))
    seconds = [timed(cost, tokens=rows)["target_s"] for rows in (1, 2, 4, 64)]
    expert = 3 * 2.0 * model.hidden_size * model.moe_intermediate_size / fast.memory_bandwidth_bytes_per_s
    touched = touched_experts([1, 2, 4, 64], 8, 2)
    for i in range(3):
        grown = 32 * expert * (touched[i + 1] - touched[i])
        assert seconds[i + 1] - seconds[i] == pytest.approx(grown, rel=0.05)


def test_sliding_window_reads_the_cut_context() -> None:
    model = load_model("gpt-oss-20b")
    cost = tiny_cost(model=model)
    assert cost.params[0]["window"] == 128
    short, long = (decode(cost, 8, 0, context)["target_s"] for context in (1000, 2000))
    per_token = 2.0 * 2 * model.num_key_value_heads * model.head_dim * 1e-12
    full_layers = model.num_hidden_layers - model.num_sliding_layers
    assert long - short == pytest.approx(8 * 1000 * per_token * full_layers, rel=1e-6)


def test_mla_reads_the_latent() -> None:
    model = load_model("deepseek-v3")
    cost = tiny_cost(model=model)
    short, long = (decode(cost, 8, 0, context)["target_s"] for context in (1000, 2000))
    compute = 8 * 1000 * 61 * 2.0 * 128 * (2 * 512 + 64) / 1e15
    memory = 8 * 1000 * 61 * 2.0 * (512 + 64) * 1e-12
    assert long - short == pytest.approx(max(compute, memory), rel=0.05)


def test_mla_prompts_are_not_absorbed() -> None:
    cost = tiny_cost(model=load_model("deepseek-v3"))
    chunk = {"tokens": 512, "seqs": 1, "prefill_seqs": 1, "prefill_tokens": 512}
    short, long = (
        timed(cost, **chunk, prefill_kv=context, prefill_qkv=512.0 * context)["target_s"]
        for context in (20_000, 40_000)
    )
    compute = 512 * 20_000 * 61 * 2.0 * 128 * (128 + 64 + 128) / 1e15
    memory = 20_000 * 61 * 2.0 * 128 * (128 + 64 + 128) * 1e-12
    assert long - short == pytest.approx(max(compute, memory), rel=0.05)


def test_eagle_with_k_0_still_runs_its_first_pass() -> None:
    batch = {"tokens": 4, "seqs": 4, "decode_seqs": 4, "decode_tokens": 4, "decode_kv": 40, "decode_qkv": 40}
    drafts = {"draft_seqs": 4, "draft_tokens": 4, "draft_passes": 1, "draft_kv": 40}
    for method in ("eagle", "eagle3", "draft_model", "p_eagle", "pard", "dflash", "dspark", "eagle_tree"):
        idle = timed(tiny_cost(method, 3), **batch)["draft_s"]
        assert 0 < idle < timed(tiny_cost(method, 3), **batch, **drafts)["draft_s"]
    for method in ("ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator", "arctic"):
        assert timed(tiny_cost(method, 3), **batch)["draft_s"] == 0.0
        assert timed(tiny_cost(method, 3), **batch, **drafts)["draft_s"] > 0.0


def test_prefill_rows_go_through_the_draft() -> None:
    prefill = {"tokens": 512, "seqs": 1, "prefill_seqs": 1, "prefill_tokens": 512, "prefill_kv": 512,
               "prefill_qkv": 512 * 256.5}  # fmt: skip
    for method in ("eagle", "draft_model", "p_eagle", "dflash"):
        few = timed(tiny_cost(method, 3), tokens=1, seqs=1, decode_seqs=1, decode_tokens=1)["draft_s"]
        assert timed(tiny_cost(method, 3), **prefill)["draft_s"] > few


# Origins, allocation, helpers ---------------------------------------------------------------------------------------


def test_seconds_are_split_by_origin() -> None:
    def of(origin: Origin) -> OperatorFit:
        return OperatorFit(0.0, 1.0, 1.0, math.inf, origin, "a test")

    profile = ideal_profile(linear=of(Origin.MEASURED), attention_decode=of(Origin.EXTRAPOLATED))
    out = decode(tiny_cost("eagle", 2, profile), 2, 2, 100)
    assert out["by_origin_s"].sum() == pytest.approx(device_seconds(out), rel=1e-12)
    assert (out["by_origin_s"] > 0.0).all()


def test_default_profile_is_all_extrapolated() -> None:
    out = decode(llama_cost("eagle3", 3, "default"), 16, 3, 500)
    assert out["by_origin_s"][2] == pytest.approx(device_seconds(out))
    # Without a name the H100 takes the profile measured on it.
    measured = decode(llama_cost("eagle3", 3, None), 16, 3, 500)
    assert measured["by_origin_s"][0] > 0.0


@pytest.mark.parametrize("method", ["none", "eagle3", "draft_model", "p_eagle", "dflash", "medusa", "ngram"])
@pytest.mark.parametrize(("name", "draft"), [("llama-3.1-8b", "llama-3.2-1b"), ("gpt-oss-20b", "gpt-oss-20b")])
@pytest.mark.parametrize("chunk", [0.0, 700.0])
def test_a_step_with_the_prefill_of_the_last_one(method: str, name: str, draft: str, chunk: float) -> None:
    k = 0 if method == "none" else 3
    heads = load_model(draft) if method == "draft_model" else None
    model = load_model(name)
    config = EngineConfig(method=get_method(method), num_speculative_tokens=k)
    cost = kernels_only(compile_step_cost(config, model, heads, h100_profile(None)))
    f, once, again = st.empty_record(st.FEATURES), st.empty_record(st.TIMES), st.empty_record(st.TIMES)
    for num_seqs, drafts in ((40, k), (40, 0), (150, k), (3, min(k, 1))):
        decode_features(cost, num_seqs, drafts, 500.0, f)
        f["tokens"] += chunk
        f["seqs"] += 2.0 * (chunk > 0.0)
        f["prefill_seqs"] = 2.0 * (chunk > 0.0)
        f["prefill_tokens"] = chunk
        f["prefill_kv"] = f["win_prefill_kv"] = 1.5 * chunk
        f["prefill_qkv"] = f["win_prefill_qkv"] = 0.4 * chunk * chunk
        step_time(cost, f, once)
        if num_seqs == 40 and drafts == k:
            for field in once.dtype.names:
                again[field] = once[field]
        st.fill_times(cost, f, 0.0, again)
        for place in ("host_s", "draft_s", "target_s", "sample_s"):
            assert again[place] == once[place]


@njit
def _many_steps(cost: StepCost, f: np.ndarray, out: np.ndarray, steps: int) -> None:
    for _ in range(steps):
        step_time(cost, f, out)


def test_step_time_allocates_nothing() -> None:
    cost = llama_cost("eagle3", 3)
    f, out = st.empty_record(st.FEATURES), st.empty_record(st.TIMES)
    decode_features(cost, 16, 3, 500, f)
    _many_steps(cost, f, out, 1)
    _nrt_python.memsys_enable_stats()

    def allocations(steps: int) -> int:
        before = rtsys.get_allocation_stats().alloc
        _many_steps(cost, f, out, steps)
        return int(rtsys.get_allocation_stats().alloc - before)

    # Handing the arrays over from Python takes some; a thousand steps take no more than one.
    assert allocations(1000) == allocations(1) > 0


def test_host_hides_only_under_asynchronous_scheduling() -> None:
    hidden = tiny_cost("eagle", 3)
    exposed = tiny_cost("eagle", 3, async_scheduling=False)
    out = decode(hidden, 4, 3, 100)
    assert out["host_s"] > device_seconds(out)
    assert decode_step_seconds(hidden, 4, 3, 100) == pytest.approx(out["host_s"])
    assert decode_step_seconds(exposed, 4, 3, 100) == pytest.approx(out["host_s"] + device_seconds(out))


def test_a_tree_verifies_all_its_nodes() -> None:
    cost = tiny_cost(get_method("eagle_tree").with_tree(3, 10), 4)
    f = st.empty_record(st.FEATURES)
    decode_features(cost, 2, 4, 100.0, f)
    assert (f["tokens"], f["draft_passes"], f["decode_kv"]) == (2 * 11, 4, 2 * 111)
    for name in ("medusa", "ngram"):
        decode_features(tiny_cost(get_method(name).with_tree(2), 3), 2, 3, 100.0, f)
        assert (f["tokens"], f["draft_passes"]) == (2 * (1 + 2 + 4 + 8), 3)


def test_rows_beyond_the_tables_scale() -> None:
    cost = tiny_cost()
    inside, beyond = timed(cost, tokens=1024)["target_s"], timed(cost, tokens=2048)["target_s"]
    assert beyond == pytest.approx(2 * inside)


@pytest.mark.parametrize(
    ("kind", "context", "rows", "expected"),
    [(st.SLIDING, 5, 1, (5, 5)), (st.SLIDING, 20, 3, (8, 24)), (st.CHUNKED, 16, 1, (8, 8)), (st.CHUNKED, 17, 2, (1, 2)),
     (st.TOP_K, 20, 3, (24, 24)), (st.TOP_K, 5, 1, (5, 5))],
)  # fmt: skip
def test_what_a_decode_sees_of_a_window_of_eight(kind: int, context: int, rows: int, expected: tuple[int, int]) -> None:
    assert st.window_of_decode(kind, 8.0, context, rows) == expected


def test_what_a_prompt_sees_of_its_chunks() -> None:
    """Tokens 5 to 18 of chunks of 8, one by one."""
    pairs = sum(token % 8 + 1 for token in range(5, 19))
    assert st.window_of_prompt(st.CHUNKED, 8.0, 5, 14) == (5 + 14, pairs)
    assert st.window_of_prompt(st.TOP_K, 8.0, 100, 10) == (110, 80)


@pytest.mark.parametrize(("before", "rows"), [(0, 5), (0, 8), (0, 30), (3, 2), (5, 14), (8, 6), (20, 1)])
def test_what_a_prompt_sees_of_a_window_of_eight(before: int, rows: int) -> None:
    """Token by token, each sees itself and up to seven before it."""
    pairs = sum(min(token, 8) for token in range(before + 1, before + rows + 1))
    for kind in (st.SLIDING, st.TOP_K):
        assert st.window_of_prompt(kind, 8.0, before, rows)[1] == pairs


@pytest.mark.parametrize(("model", "tp"), [("DeepSeek-V3.2", 8), ("Llama-4-Scout", 8), ("Nemotron-3-Nano", 1)])
def test_a_long_context_costs_what_it_touches(model: str, tp: int) -> None:
    """Four times the context costs full attention more, and sparse, chunked and state layers next to nothing."""
    hardware, spec = load_hardware("h200"), load_model(model)
    config = EngineConfig(is_moe=True, tensor_parallel_size=tp, weight_dtype="fp8", max_num_batched_tokens=512)
    cost = compile_step_cost(config, spec, None, load_profile("h200", hardware))
    f = st.empty_record(st.FEATURES)
    more = []
    for context in (16383.0, 65535.0):
        st.decode_features(cost, 64, 0, context, f)
        work = layers.context_work(spec, f, tp, "fp8", "bf16")
        more.append((st.decode_step_seconds(cost, 64, 0, context), float(work.bytes)))
    (short_s, short_bytes), (long_s, long_bytes) = more
    least = (long_bytes - short_bytes) / hardware.ceilings("attention_decode", "bf16")[1]
    assert least <= long_s - short_s < 4 * least


@pytest.mark.parametrize(("device_name", "measured"), [("h200", {16: 273, 256: 558}), ("b200", {16: 215, 256: 482})])
def test_a_decode_step_of_measured_sparse_layers(device_name: str, measured: dict[int, int]) -> None:
    """DeepSeek-V3.2 at TP 8: microseconds of one attention block by requests of 16,384 tokens, as aiconfigurator-core
    0.12.0 has them (dsa_generation_module, vLLM 0.24, fp8 blocks, bf16 cache). Imported are bf16 blocks."""
    hardware, spec = load_hardware(device_name), load_model("DeepSeek-V3.2")
    config = EngineConfig(is_moe=True, tensor_parallel_size=8, weight_dtype="fp8", max_num_batched_tokens=512)
    profile = load_profile(device_name, hardware)
    cost = compile_step_cost(config, spec, None, profile)
    device = OperatorTables(profile, 8, "fp8")
    names = ("qkv_a", "q_b", "kv_b", "o", "index_q", "index_k")
    for batch, measured_us in measured.items():
        matrices = sum(float(device.linear(layer, np.array([batch])).sum()) for layer in layers.linear_layers(spec, 8)
                       if layer.name in names)  # fmt: skip
        sums = at.sums_of(cost.attention_grids, batch * 16384.0, batch * 16384.0, batch, batch)
        out = st.empty_record(st.TIMES)
        seconds = at.attention_seconds(cost.attention[at.DECODE], cost.attention_grids, sums, 1.0, out)
        assert (matrices + seconds) / 61 * 1e6 == pytest.approx(measured_us, rel=0.1)
        assert cost.attention[at.DECODE_WINDOW]["layers"] == 0


@pytest.mark.parametrize("name", ["Qwen3-8B", "Llama-4-Scout", "Gemma-4-31B", "Nemotron-3-Nano", "MiMo-V2-Flash"])
def test_decode_steps_lie_between_their_bounds(name: str) -> None:
    """A sample of `benchmarks/model_bounds.py`, which runs every bundled model."""
    bounds = benchmark_module("model_bounds")
    found = list(bounds.steps(name, "h200"))
    assert len(found) >= 2 * len(bounds.BATCHES)
    assert [step for step in found if not step["floor_s"] <= step["seconds"] <= step["most_s"]] == []
