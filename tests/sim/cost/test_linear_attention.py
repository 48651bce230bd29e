"""Linear attention in a step: measured layers, one state a request whatever its context, and one written per draft."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from draftcast.calibration.profile.hardware import load_hardware
from draftcast.calibration.profile.load import load_profile
from draftcast.calibration.profile.roofline import Origin
from draftcast.calibration.profile.spec import HardwareProfile
from draftcast.kernels.model.catalog import load_model
from draftcast.kernels.operators.gated_delta import gated_delta_work, linear_shape
from draftcast.sim.cost import attention_time as at
from draftcast.sim.cost import step_time as st
from draftcast.sim.cost.engine_config import EngineConfig
from draftcast.sim.cost.methods import get_method
from draftcast.sim.cost.step_cost import compile_step_cost
from draftcast.sim.cost.step_time import StepCost

QWEN = load_model("Qwen3.5-35B-A3B")
H200 = load_hardware("h200")


@functools.cache
def h200_profile(name: str) -> HardwareProfile:
    """Read once: its measured tables take longer to read than a step cost to compile."""
    return load_profile(name, H200)


def cost_of(profile: str = "h200", k: int = 0, **changes: Any) -> StepCost:
    method = {"method": get_method("ngram"), "num_speculative_tokens": k} if k else {}
    config = EngineConfig(is_moe=True, max_num_seqs=256, **method)
    return compile_step_cost(config, replace(QWEN, **changes), None, h200_profile(profile))


def layers_of(cost: StepCost, kind: int, rows: float, seqs: float) -> tuple[float, Origin]:
    """Seconds of the 30 linear layers alone, and where they come from."""
    out = st.empty_record(st.TIMES)
    sums = at.sums_of(cost.attention_grids, rows, seqs, rows, seqs)
    seconds = at.attention_seconds(cost.attention[kind], cost.attention_grids, sums, 1.0, out)
    return seconds, Origin(int(np.argmax(out["by_origin_s"])))


def step(cost: StepCost, **features: float) -> np.ndarray:
    f, out = st.empty_record(st.FEATURES), st.empty_record(st.TIMES)
    for name, value in features.items():
        f[name] = value
    st.step_time(cost, f, out)
    return out


# aiconfigurator-core 0.12.0, gdn_perf of vLLM 0.24 on H200, 32 value heads over 16 key heads: microseconds of the
# convolution and of the delta rule.
@pytest.mark.parametrize(
    ("kind", "seqs", "q", "us"),
    [(at.LINEAR_DECODE, 1, 1, 1.9 + 4.8), (at.LINEAR_DECODE, 64, 1, 4.0 + 71.6),
     (at.LINEAR_DECODE, 256, 1, 10.8 + 267.4), (at.LINEAR_PREFILL, 1, 4096, 59 + 204),
     (at.LINEAR_PREFILL, 8, 512, 59 + 73)],
)  # fmt: skip
def test_measured_layers(kind: int, seqs: float, q: float, us: float) -> None:
    seconds, origin = layers_of(cost_of(), kind, seqs * q, seqs)
    assert seconds * 1e6 / 30 == pytest.approx(us, rel=0.02)
    assert origin == Origin.INTERPOLATED


@pytest.mark.parametrize("profile", ["h200", "default"])
def test_context_costs_full_attention_alone(profile: str) -> None:
    cost, plain = cost_of(profile), cost_of(profile, num_linear_layers=0)
    f = st.empty_record(st.FEATURES)
    seconds = {}
    for context in (1000.0, 9000.0):
        st.decode_features(cost, 64, 0, context, f)
        seconds[context] = float(step(cost, **{name: f[name] for name in f.dtype.names})["target_s"])
    full = [st.decode_step_seconds(plain, 64, 0, context) for context in (1000.0, 9000.0)]
    assert 0.0 < seconds[9000.0] - seconds[1000.0] < 0.3 * (full[1] - full[0])  # 10 layers of 40


def test_a_step_holds_the_layers() -> None:
    cost = cost_of()
    cost.params[0]["prompt_launch_s"] = 0.0  # the kernels alone
    without = cost._replace(params=cost.params.copy())
    without.params[0]["linear_layers"] = 0
    decode = {"tokens": 8, "seqs": 8, "decode_seqs": 8, "decode_tokens": 8, "decode_kv": 8000, "decode_qkv": 8000}
    prompt = {"prefill_seqs": 2, "prefill_tokens": 600, "prefill_kv": 600, "prefill_qkv": 90300}
    both = {**decode, **prompt, "tokens": 608, "seqs": 10}
    decode_s, prompt_s = layers_of(cost, at.LINEAR_DECODE, 8, 8)[0], layers_of(cost, at.LINEAR_PREFILL, 600, 2)[0]
    for features, seconds in ((decode, decode_s), (both, decode_s + prompt_s)):
        whole, rest = step(cost, **features), step(without, **features)
        assert whole["target_s"] - rest["target_s"] == pytest.approx(seconds)
        assert whole["by_origin_s"].sum() - rest["by_origin_s"].sum() == pytest.approx(seconds)
    mixed, rest = step(cost, **both), step(without, **both)
    assert mixed["prefill_s"] - rest["prefill_s"] == pytest.approx(prompt_s)


def test_a_second_call_keeps_the_prompts_layers() -> None:
    """`fill_times` for the same step less some drafts does not compute prompts again."""
    cost = cost_of(k=3)
    f, out = st.empty_record(st.FEATURES), st.empty_record(st.TIMES)
    values = {"tokens": 632, "seqs": 10, "decode_seqs": 8, "decode_tokens": 32, "decode_kv": 8000, "decode_qkv": 32000,
              "prefill_seqs": 2, "prefill_tokens": 600, "prefill_kv": 600, "prefill_qkv": 90300}  # fmt: skip
    for name, value in values.items():
        f[name] = value
    st.fill_times(cost, f, 1.0, out)
    first = float(out["target_s"])
    st.fill_times(cost, f, 0.0, out)
    assert float(out["target_s"]) == pytest.approx(first)


@pytest.mark.parametrize("profile", ["h200", "default"])
def test_verification_writes_a_state_for_every_draft(profile: str) -> None:
    cost, heads = cost_of(profile, k=3), linear_shape(QWEN, 1)
    one, four = (layers_of(cost, at.LINEAR_DECODE, rows, 128)[0] for rows in (128, 4 * 128))
    work = [gated_delta_work({"batch": 128, "q": q, **heads}, "bf16", "fp32", chunked=False).bytes for q in (1, 4)]
    assert four / one == pytest.approx(float(work[1] / work[0]), rel=0.1)  # 5 states for 2


def test_state_format_and_ranks_count() -> None:
    wide = layers_of(cost_of("default"), at.LINEAR_DECODE, 128, 128)[0]
    narrow = layers_of(cost_of("default", mamba_ssm_dtype="bfloat16"), at.LINEAR_DECODE, 128, 128)[0]
    assert 1.7 < wide / narrow < 2.0
    config = EngineConfig(is_moe=True, tensor_parallel_size=4)
    split = compile_step_cost(config, QWEN, None, load_profile("default", H200))
    assert 3.0 < wide / layers_of(split, at.LINEAR_DECODE, 128, 128)[0] < 4.0
