"""The affine whole-step fit of H100 and Llama-3.1-8B: published values reproduced, everything else refused."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from draftcast.calibration.profile.hardware import load_hardware
from draftcast.calibration.profile.load import load_profile
from draftcast.calibration.profile.roofline import Origin
from draftcast.calibration.profile.spec import AffineProfile, HardwareProfile
from draftcast.errors import HardwareError
from draftcast.kernels.model.catalog import load_model
from draftcast.kernels.model.spec import ModelSpec
from draftcast.sim.cost import step_time as st
from draftcast.sim.cost.engine_config import EngineConfig
from draftcast.sim.cost.methods import get_method
from draftcast.sim.cost.step_cost import compile_step_cost
from draftcast.sim.cost.step_time import StepCost, decode_features, decode_step_seconds, step_time

H100 = load_hardware("h100-sxm")
LLAMA = load_model("llama-3.1-8b")
AFFINE = "h100-llama-3.1-8b-affine"


def fill(record: Any, **fields: float) -> None:
    for name, value in fields.items():
        record[name] = value


def affine_cost(method: str = "none", k: int = 0, profile: HardwareProfile | None = None) -> StepCost:
    profile = profile or load_profile(AFFINE, H100)
    return compile_step_cost(EngineConfig(method=get_method(method), num_speculative_tokens=k), LLAMA, None, profile)


def decode(cost: StepCost, num_seqs: int, k: int, context: float) -> np.ndarray:
    f, out = st.empty_record(st.FEATURES), st.empty_record(st.TIMES)
    decode_features(cost, num_seqs, k, context, f)
    step_time(cost, f, out)
    return out


def compiled(model: ModelSpec, draft_model: ModelSpec | None, profile: Any, **flags: Any) -> StepCost:
    return compile_step_cost(EngineConfig(**flags), model, draft_model, profile)


def parts(out: np.ndarray) -> np.ndarray:
    """All seconds but those of prefill attention, which only the next call for the same prompts reads."""
    names = ["host_s", "draft_s", "target_s", "sample_s", "prefill_s"]
    return np.array([*(out[name] for name in names), *out["by_origin_s"]])


def device_seconds(out: np.ndarray) -> float:
    return float(out["draft_s"] + out["target_s"] + out["sample_s"])


def test_affine_values_are_reproduced() -> None:
    eagle = affine_cost("eagle", 3)
    # Batch 8, 1,000 tokens each in the cache, 4 rows each: 32 rows, 24 drafts.
    out = decode(eagle, 8, 3, 1000)
    assert out["target_s"] == pytest.approx(5.88590713e-03 + 32 * 2.10103129e-05 + 8000 * 3.92645679e-08, abs=1e-9)
    assert out["draft_s"] == pytest.approx(2.13526175e-03 + 24 * 8.41429603e-07 + 8000 * 2.37768493e-09, abs=1e-9)
    assert out["host_s"] == pytest.approx(1.20683946e-03, abs=1e-12)
    assert out["sample_s"] == 0.0
    assert decode_step_seconds(eagle, 8, 3, 1000) == pytest.approx(out["host_s"] + device_seconds(out), abs=1e-12)
    ngram = decode(affine_cost("ngram", 3), 8, 3, 1000)
    assert ngram["draft_s"] == pytest.approx(0.005875 * out["target_s"], abs=1e-9)
    plain = decode(affine_cost("none", 0), 8, 0, 1000)
    assert plain["target_s"] == pytest.approx(5.88590713e-03 + 8 * 2.10103129e-05 + 8000 * 3.92645679e-08, abs=1e-9)
    assert (plain["draft_s"], plain["host_s"]) == (0.0, 1.20683946e-03)


def test_affine_prefill_counts_rows_and_what_was_cached() -> None:
    f, out = st.empty_record(st.FEATURES), st.empty_record(st.TIMES)
    fill(f, tokens=101, seqs=2, decode_seqs=1, decode_tokens=1, decode_kv=51)
    fill(f, prefill_seqs=1, prefill_tokens=100, prefill_kv=300, prefill_qkv=100 * 250.5)
    step_time(affine_cost(), f, out)
    assert out["target_s"] == pytest.approx(5.88590713e-03 + 101 * 2.10103129e-05 + 250 * 3.92645679e-08, abs=1e-9)
    assert out["prefill_s"] == pytest.approx(100 * 2.10103129e-05 + 200 * 3.92645679e-08, abs=1e-9)


def with_changed(profile: HardwareProfile, **sections: dict) -> AffineProfile:
    """The profile with numbers of its sections ``target``, ``draft`` and ``ngram`` replaced."""
    assert isinstance(profile, AffineProfile)
    changed = {name: dataclasses.replace(getattr(profile, name), **numbers) for name, numbers in sections.items()}
    return dataclasses.replace(profile, **changed)


def test_seconds_of_a_sequence_and_of_a_draft_pass() -> None:
    published = load_profile(AFFINE, H100)
    profile = with_changed(published, target={"sequence_s": 1e-4}, draft={"pass_s": 5e-4})
    for method, k in (("eagle", 3), ("eagle", 5), ("none", 0)):
        before, after = (decode(affine_cost(method, k, each), 8, k, 1000) for each in (published, profile))
        assert after["target_s"] - before["target_s"] == pytest.approx(8 * 1e-4)
        assert after["draft_s"] - before["draft_s"] == pytest.approx(k * 5e-4)
    f, out = st.empty_record(st.FEATURES), st.empty_record(st.TIMES)
    fill(f, tokens=101, seqs=3, decode_seqs=1, decode_tokens=1, decode_kv=51)
    fill(f, prefill_seqs=2, prefill_tokens=100, prefill_kv=300, prefill_qkv=100 * 250.5)
    step_time(affine_cost(profile=profile), f, out)
    assert out["prefill_s"] == pytest.approx(100 * 2.10103129e-05 + 200 * 3.92645679e-08 + 2 * 1e-4, abs=1e-9)


def mixed_features() -> np.ndarray:
    """Two requests verify 3 drafts each at 100 and 200 tokens, one prompt of 50 tokens; all three draft 3 more."""
    f = st.empty_record(st.FEATURES)
    fill(f, tokens=58, seqs=3, decode_seqs=2, decode_tokens=8, decode_kv=308)
    fill(f, decode_qkv=4 * 308, prefill_seqs=1, prefill_tokens=50, prefill_kv=50)
    fill(f, prefill_qkv=50 * 25.5, logit_rows=9, draft_seqs=3, draft_tokens=9)
    fill(f, draft_passes=3, draft_kv=358)
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
        outs.append(st.empty_record(st.TIMES))
        profile = with_changed(published, target={field.removeprefix("target_"): value})
        step_time(affine_cost("eagle", 3, profile), mixed_features(), outs[-1])
    assert outs[1]["target_s"] - outs[0]["target_s"] == pytest.approx(target * per_unit)
    assert outs[1]["prefill_s"] - outs[0]["prefill_s"] == pytest.approx(prefill * per_unit, abs=1e-12)


def test_a_curve_over_rows_is_straight_between_its_points_and_extrapolated_beyond() -> None:
    published = load_profile(AFFINE, H100)
    curve = ((1.0, 0.0), (8.0, 0.007), (64.0, 0.035))
    cost, without = affine_cost(profile=with_changed(published, target={"rows": curve})), affine_cost()
    for rows, seconds in ((1, 0.0), (4, 0.003), (8, 0.007), (36, 0.021), (64, 0.035), (100, 0.053), (9000, 4.503)):
        extra = decode(cost, rows, 0, 0)["target_s"] - decode(without, rows, 0, 0)["target_s"]
        # Beyond max_num_batched_tokens, 8,192 here, a table goes on in proportion.
        assert extra == pytest.approx(seconds, rel=2e-4), rows
    assert decode(cost, 64, 0, 0)["by_origin_s"][2] == 0.0
    wide = mixed_features()
    fill(wide, tokens=65, prefill_tokens=57, prefill_kv=57)
    out = st.empty_record(st.TIMES)
    step_time(cost, wide, out)
    assert out["by_origin_s"][2] == pytest.approx(out["target_s"])
    # What the prompt's rows add to those of the decoding requests.
    step_time(cost, mixed_features(), out)
    before = st.empty_record(st.TIMES)
    step_time(without, mixed_features(), before)
    assert out["prefill_s"] - before["prefill_s"] == pytest.approx(0.007 + 50 * 0.0005 - 0.007)


def test_a_drafts_rows_and_a_searchs_own_seconds() -> None:
    published = load_profile(AFFINE, H100)
    search = {"step_s": 1e-3, "sequence_s": 1e-4, "token_s": 1e-6}
    changed = with_changed(published, draft={"row_s": 1e-5}, ngram=search)
    extra = {}
    for method in ("eagle", "ngram", "none"):
        outs = [st.empty_record(st.TIMES), st.empty_record(st.TIMES)]
        for profile, out in zip((published, changed), outs, strict=True):
            step_time(affine_cost(method, 0 if method == "none" else 3, profile), mixed_features(), out)
        extra[method] = outs[1]["draft_s"] - outs[0]["draft_s"]
    assert extra["eagle"] == pytest.approx(58 * 1e-5)
    assert extra["ngram"] == pytest.approx(1e-3 + 3 * 1e-4 + 358 * 1e-6)
    assert extra["none"] == 0.0


def test_excess_lengthens_steps_with_and_without_prompts_apart() -> None:
    cost = affine_cost("eagle", 3)
    plain = decode(cost, 8, 3, 1000)
    mixed = st.empty_record(st.TIMES)
    step_time(cost, mixed_features(), mixed)
    cost.params[0]["decode_excess"], cost.params[0]["prompt_excess"] = 0.5, -0.25
    out = st.empty_record(st.TIMES)
    step_time(cost, mixed_features(), out)
    assert parts(decode(cost, 8, 3, 1000)) == pytest.approx(1.5 * parts(plain))
    assert parts(out) == pytest.approx(0.75 * parts(mixed))


def test_a_fit_of_an_eager_server_is_for_eager_servers() -> None:
    eager = dataclasses.replace(load_profile(AFFINE, H100), enforce_eager=True)
    with pytest.raises(HardwareError, match=r"enforce_eager = False: .*fitted with True only"):
        affine_cost("eagle", 3, eager)
    cost = compile_step_cost(EngineConfig(enforce_eager=True), LLAMA, None, eager)
    # Rows as they are: 33 cost one row more than 32, no capture size is padded to.
    seconds = [decode(cost, n, 0, 1000)["target_s"] for n in (32, 33)]
    assert seconds[1] - seconds[0] == pytest.approx(2.10103129e-05 + 1000 * 3.92645679e-08)


def test_affine_origin_follows_the_batch() -> None:
    cost = affine_cost("eagle", 3)
    for batch, origin in ((1, Origin.INTERPOLATED), (64, Origin.INTERPOLATED), (65, Origin.EXTRAPOLATED)):
        out = decode(cost, batch, 3, 1000)
        assert out["by_origin_s"][origin] == pytest.approx(device_seconds(out))
    eagle3 = decode(affine_cost("eagle3", 3), 8, 3, 1000)
    assert eagle3["by_origin_s"][1] == pytest.approx(eagle3["target_s"])
    assert eagle3["by_origin_s"][2] == pytest.approx(eagle3["draft_s"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": load_model("qwen3-8b")}, "model = 'qwen3-8b'"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size = 2"),
        ({"draft_tensor_parallel_size": 2}, "draft_tensor_parallel_size = 2"),
        ({"weight_dtype": "fp8"}, "dtype = 'fp8'"),
        ({"kv_dtype": "fp8"}, "kv_cache_dtype = 'fp8'"),
        ({"enforce_eager": True}, "enforce_eager = True"),
        ({"method": get_method("medusa")}, "method = 'medusa': .*covers none, eagle, eagle3, ngram"),
    ],
)
def test_affine_refuses_what_it_does_not_know(changes: dict, message: str) -> None:
    arguments: dict = {
        "model": LLAMA,
        "method": get_method("eagle"),
        "draft_model": None,
        "num_speculative_tokens": 3,
        "profile": load_profile(AFFINE, H100),
    }
    with pytest.raises(HardwareError, match=message):
        compiled(**(arguments | changes))


def test_affine_of_a_server_without_drafts_says_so() -> None:
    profile = load_profile(AFFINE, H100)
    assert isinstance(profile, AffineProfile)
    bare = dataclasses.replace(
        profile,
        draft=dataclasses.replace(profile.draft, methods={}),
        ngram=dataclasses.replace(profile.ngram, methods={}),
    )
    with pytest.raises(HardwareError, match="covers none; take a roofline profile"):
        affine_cost("eagle", 3, bare)
