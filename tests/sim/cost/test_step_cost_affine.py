"""The affine whole-step fit of H100 and Llama-3.1-8B: published values reproduced, everything else refused."""

import dataclasses

import numpy as np
import pytest

from draftcast.calibration.profile.hardware import load_hardware
from draftcast.calibration.profile.load import AffineProfile, HardwareProfile, load_profile
from draftcast.errors import HardwareError
from draftcast.kernels.model.catalog import load_model
from draftcast.sim.cost.methods import get_method
from draftcast.sim.cost.step_cost import compile_step_cost
from draftcast.sim.cost.step_time import (
    F_DECODE_KV,
    F_DECODE_QKV,
    F_DECODE_SEQS,
    F_DECODE_TOKENS,
    F_DRAFT_KV,
    F_DRAFT_PASSES,
    F_DRAFT_SEQS,
    F_DRAFT_TOKENS,
    F_LOGIT_ROWS,
    F_PREFILL_KV,
    F_PREFILL_QKV,
    F_PREFILL_SEQS,
    F_PREFILL_TOKENS,
    F_SEQS,
    F_TOKENS,
    N_FEATURES,
    N_OUT,
    O_DRAFT,
    O_HOST,
    O_ORIGIN_EXTRAPOLATED,
    O_ORIGIN_INTERPOLATED,
    O_PREFILL,
    O_SAMPLE,
    O_TARGET,
    P_DECODE_EXCESS,
    P_PROMPT_EXCESS,
    StepCost,
    decode_features,
    decode_step_seconds,
    step_time,
)

H100 = load_hardware("h100-sxm")
LLAMA = load_model("llama-3.1-8b")
AFFINE = "h100-llama-3.1-8b-affine"


def affine_cost(method: str = "none", k: int = 0, profile: HardwareProfile | None = None) -> StepCost:
    profile = profile or load_profile(AFFINE, H100)
    return compile_step_cost(LLAMA, get_method(method), None, k, 1, None, "bf16", "auto", profile, H100, 8192, 256)


def decode(cost: StepCost, num_seqs: int, k: int, context: float) -> np.ndarray:
    f, out = np.empty(N_FEATURES), np.empty(N_OUT)
    decode_features(cost, num_seqs, k, context, f)
    step_time(cost, f, out)
    return out


def device_seconds(out: np.ndarray) -> float:
    return float(out[O_DRAFT] + out[O_TARGET] + out[O_SAMPLE])


def test_affine_values_are_reproduced() -> None:
    eagle = affine_cost("eagle", 3)
    # Batch 8, 1,000 tokens each in the cache, 4 rows each: 32 rows, 24 drafts.
    out = decode(eagle, 8, 3, 1000)
    assert out[O_TARGET] == pytest.approx(5.88590713e-03 + 32 * 2.10103129e-05 + 8000 * 3.92645679e-08, abs=1e-9)
    assert out[O_DRAFT] == pytest.approx(2.13526175e-03 + 24 * 8.41429603e-07 + 8000 * 2.37768493e-09, abs=1e-9)
    assert out[O_HOST] == pytest.approx(1.20683946e-03, abs=1e-12)
    assert out[O_SAMPLE] == 0.0
    assert decode_step_seconds(eagle, 8, 3, 1000) == pytest.approx(out[: O_SAMPLE + 1].sum(), abs=1e-12)
    ngram = decode(affine_cost("ngram", 3), 8, 3, 1000)
    assert ngram[O_DRAFT] == pytest.approx(0.005875 * out[O_TARGET], abs=1e-9)
    plain = decode(affine_cost("none", 0), 8, 0, 1000)
    assert plain[O_TARGET] == pytest.approx(5.88590713e-03 + 8 * 2.10103129e-05 + 8000 * 3.92645679e-08, abs=1e-9)
    assert (plain[O_DRAFT], plain[O_HOST]) == (0.0, 1.20683946e-03)


def test_affine_prefill_counts_rows_and_what_was_cached() -> None:
    f, out = np.zeros(N_FEATURES), np.empty(N_OUT)
    f[[F_TOKENS, F_SEQS, F_DECODE_SEQS, F_DECODE_TOKENS, F_DECODE_KV]] = [101, 2, 1, 1, 51]
    f[[F_PREFILL_SEQS, F_PREFILL_TOKENS, F_PREFILL_KV, F_PREFILL_QKV]] = [1, 100, 300, 100 * 250.5]
    step_time(affine_cost(), f, out)
    assert out[O_TARGET] == pytest.approx(5.88590713e-03 + 101 * 2.10103129e-05 + 250 * 3.92645679e-08, abs=1e-9)
    assert out[O_PREFILL] == pytest.approx(100 * 2.10103129e-05 + 200 * 3.92645679e-08, abs=1e-9)


def test_seconds_of_a_sequence_and_of_a_draft_pass() -> None:
    published = load_profile(AFFINE, H100)
    assert isinstance(published, AffineProfile)
    profile = dataclasses.replace(published, target_sequence_s=1e-4, draft_pass_s=5e-4)
    for method, k in (("eagle", 3), ("eagle", 5), ("none", 0)):
        before, after = (decode(affine_cost(method, k, each), 8, k, 1000) for each in (published, profile))
        assert after[O_TARGET] - before[O_TARGET] == pytest.approx(8 * 1e-4)
        assert after[O_DRAFT] - before[O_DRAFT] == pytest.approx(k * 5e-4)
    f, out = np.zeros(N_FEATURES), np.empty(N_OUT)
    f[[F_TOKENS, F_SEQS, F_DECODE_SEQS, F_DECODE_TOKENS, F_DECODE_KV]] = [101, 3, 1, 1, 51]
    f[[F_PREFILL_SEQS, F_PREFILL_TOKENS, F_PREFILL_KV, F_PREFILL_QKV]] = [2, 100, 300, 100 * 250.5]
    step_time(affine_cost(profile=profile), f, out)
    assert out[O_PREFILL] == pytest.approx(100 * 2.10103129e-05 + 200 * 3.92645679e-08 + 2 * 1e-4, abs=1e-9)


def mixed_features() -> np.ndarray:
    """Two requests verify 3 drafts each at 100 and 200 tokens, one prompt of 50 tokens; all three draft 3 more."""
    f = np.zeros(N_FEATURES)
    f[[F_TOKENS, F_SEQS, F_DECODE_SEQS, F_DECODE_TOKENS, F_DECODE_KV]] = [58, 3, 2, 8, 308]
    f[[F_DECODE_QKV, F_PREFILL_SEQS, F_PREFILL_TOKENS, F_PREFILL_KV]] = [4 * 308, 1, 50, 50]
    f[[F_PREFILL_QKV, F_LOGIT_ROWS, F_DRAFT_SEQS, F_DRAFT_TOKENS]] = [50 * 25.5, 9, 3, 9]
    f[[F_DRAFT_PASSES, F_DRAFT_KV]] = [3, 358]
    return f


@pytest.mark.parametrize(
    ("field", "per_unit", "target", "prefill"),
    [
        ("target_query_kv_s", 1e-6, 4 * 308, 0),
        ("target_prefill_query_kv_s", 1e-6, 50 * 25.5, 50 * 25.5),
        ("target_logit_row_s", 1e-5, 9, 1),
    ],
)
def test_a_targets_coefficient_times_what_it_is_of(field: str, per_unit: float, target: float, prefill: float) -> None:
    published = load_profile(AFFINE, H100)
    outs = []
    for value in (0.0, per_unit):
        outs.append(np.empty(N_OUT))
        step_time(affine_cost("eagle", 3, dataclasses.replace(published, **{field: value})), mixed_features(), outs[-1])
    assert outs[1][O_TARGET] - outs[0][O_TARGET] == pytest.approx(target * per_unit)
    assert outs[1][O_PREFILL] - outs[0][O_PREFILL] == pytest.approx(prefill * per_unit, abs=1e-12)


def test_a_curve_over_rows_is_straight_between_its_points_and_extrapolated_beyond() -> None:
    published = load_profile(AFFINE, H100)
    curve = ((1.0, 0.0), (8.0, 0.007), (64.0, 0.035))
    cost, without = affine_cost(profile=dataclasses.replace(published, target_rows=curve)), affine_cost()
    for rows, seconds in ((1, 0.0), (4, 0.003), (8, 0.007), (36, 0.021), (64, 0.035), (100, 0.053), (9000, 4.503)):
        extra = decode(cost, rows, 0, 0)[O_TARGET] - decode(without, rows, 0, 0)[O_TARGET]
        # Beyond max_num_batched_tokens, 8,192 here, a table goes on in proportion.
        assert extra == pytest.approx(seconds, rel=2e-4), rows
    assert decode(cost, 64, 0, 0)[O_ORIGIN_EXTRAPOLATED] == 0.0
    wide = mixed_features()
    wide[[F_TOKENS, F_PREFILL_TOKENS, F_PREFILL_KV]] = [65, 57, 57]
    out = np.empty(N_OUT)
    step_time(cost, wide, out)
    assert out[O_ORIGIN_EXTRAPOLATED] == pytest.approx(out[O_TARGET])
    # What the prompt's rows add to those of the decoding requests.
    step_time(cost, mixed_features(), out)
    before = np.empty(N_OUT)
    step_time(without, mixed_features(), before)
    assert out[O_PREFILL] - before[O_PREFILL] == pytest.approx(0.007 + 50 * 0.0005 - 0.007)


def test_a_drafts_rows_and_a_searchs_own_seconds() -> None:
    published = load_profile(AFFINE, H100)
    changed = dataclasses.replace(
        published, draft_row_s=1e-5, ngram_step_s=1e-3, ngram_sequence_s=1e-4, ngram_token_s=1e-6
    )
    extra = {}
    for method in ("eagle", "ngram", "none"):
        outs = [np.empty(N_OUT), np.empty(N_OUT)]
        for profile, out in zip((published, changed), outs, strict=True):
            step_time(affine_cost(method, 0 if method == "none" else 3, profile), mixed_features(), out)
        extra[method] = outs[1][O_DRAFT] - outs[0][O_DRAFT]
    assert extra["eagle"] == pytest.approx(58 * 1e-5)
    assert extra["ngram"] == pytest.approx(1e-3 + 3 * 1e-4 + 358 * 1e-6)
    assert extra["none"] == 0.0


def test_excess_lengthens_steps_with_and_without_prompts_apart() -> None:
    cost = affine_cost("eagle", 3)
    plain = decode(cost, 8, 3, 1000)
    mixed = np.empty(N_OUT)
    step_time(cost, mixed_features(), mixed)
    cost.params[[P_DECODE_EXCESS, P_PROMPT_EXCESS]] = [0.5, -0.25]
    out = np.empty(N_OUT)
    step_time(cost, mixed_features(), out)
    assert decode(cost, 8, 3, 1000) == pytest.approx(1.5 * plain)
    assert out == pytest.approx(0.75 * mixed)


def test_a_fit_of_an_eager_server_is_for_eager_servers() -> None:
    eager = dataclasses.replace(load_profile(AFFINE, H100), enforce_eager=True)
    with pytest.raises(HardwareError, match=r"enforce_eager = False: .*fitted with True only"):
        affine_cost("eagle", 3, eager)
    arguments = (LLAMA, get_method("none"), None, 0, 1, None, "bf16", "auto", eager, H100, 8192, 256)
    cost = compile_step_cost(*arguments, enforce_eager=True)
    # Rows as they are: 33 cost one row more than 32, no capture size is padded to.
    seconds = [decode(cost, n, 0, 1000)[O_TARGET] for n in (32, 33)]
    assert seconds[1] - seconds[0] == pytest.approx(2.10103129e-05 + 1000 * 3.92645679e-08)


def test_affine_origin_follows_the_batch() -> None:
    cost = affine_cost("eagle", 3)
    for batch, origin in ((1, O_ORIGIN_INTERPOLATED), (64, O_ORIGIN_INTERPOLATED), (65, O_ORIGIN_EXTRAPOLATED)):
        out = decode(cost, batch, 3, 1000)
        assert out[origin] == pytest.approx(device_seconds(out))
    eagle3 = decode(affine_cost("eagle3", 3), 8, 3, 1000)
    assert eagle3[O_ORIGIN_INTERPOLATED] == pytest.approx(eagle3[O_TARGET])
    assert eagle3[O_ORIGIN_EXTRAPOLATED] == pytest.approx(eagle3[O_DRAFT])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": load_model("qwen3-8b")}, "model = 'qwen3-8b'"),
        ({"tp": 2}, "tensor_parallel_size = 2"),
        ({"draft_tp": 2}, "draft_tensor_parallel_size = 2"),
        ({"dtype": "fp8"}, "dtype = 'fp8'"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype = 'fp8'"),
        ({"enforce_eager": True}, "enforce_eager = True"),
        ({"method": get_method("medusa")}, "method = 'medusa': .*covers none, eagle, eagle3, ngram"),
    ],
)
def test_affine_refuses_what_it_does_not_know(changes: dict, message: str) -> None:
    arguments: dict = {
        "model": LLAMA, "method": get_method("eagle"), "draft_model": None, "k": 3, "tp": 1, "draft_tp": 1,
        "dtype": "bf16", "kv_cache_dtype": "auto", "profile": load_profile(AFFINE, H100), "hardware": H100,
        "max_num_batched_tokens": 8192, "max_num_seqs": 256,
    }  # fmt: skip
    with pytest.raises(HardwareError, match=message):
        compile_step_cost(**(arguments | changes))
