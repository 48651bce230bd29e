"""No knob is silently ignored: each one moves the seconds it should move, and only bad values are refused."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from draftcast.calibration.profile.hardware import HardwareSpec, load_hardware
from draftcast.calibration.profile.load import load_profile
from draftcast.calibration.profile.spec import OPERATORS, Host, RooflineProfile
from draftcast.errors import DraftcastError, ModelError, ScenarioError
from draftcast.kernels.model.catalog import load_model
from draftcast.kernels.model.spec import ModelSpec
from draftcast.sim.cost import step_time as st
from draftcast.sim.cost.engine_config import EngineConfig
from draftcast.sim.cost.methods import METHODS, get_method
from draftcast.sim.cost.step_cost import capture_sizes, compile_step_cost
from draftcast.sim.cost.step_time import StepCost, decode_features, decode_step_seconds, step_time

H100 = load_hardware("h100-sxm")
LLAMA = load_model("llama-3.1-8b")
DRAFT = load_model("llama-3.2-1b")


def fill(record: Any, **fields: float) -> None:
    for name, value in fields.items():
        record[name] = value


def default_profile(hardware: HardwareSpec = H100) -> RooflineProfile:
    profile = load_profile("default", hardware)
    assert isinstance(profile, RooflineProfile)
    return profile


BASE: dict = {
    "model": LLAMA,
    "method": get_method("draft_model"),
    "draft_model": DRAFT,
    "num_speculative_tokens": 3,
    "tensor_parallel_size": 2,
    "draft_tensor_parallel_size": 2,
    "weight_dtype": "bf16",
    "kv_dtype": "auto",
    "profile": default_profile(),
    "max_num_batched_tokens": 2048,
    "max_num_seqs": 256,
}


def compiled(model: ModelSpec, draft_model: ModelSpec | None, profile: Any, **flags: Any) -> StepCost:
    return compile_step_cost(EngineConfig(**flags), model, draft_model, profile)


FIRST = "vllm 0.31 v1"  # the first model runner: n-gram on the host, drafts in piecewise graphs


def seconds(*, num_seqs: int = 21, context: float = 1000.0, **changes: object) -> np.ndarray:
    """Host, draft, target and sample seconds of a pure decode step."""
    arguments = BASE | changes
    cost = compiled(**arguments)
    f, out = st.empty_record(st.FEATURES), st.empty_record(st.TIMES)
    decode_features(cost, num_seqs, arguments["num_speculative_tokens"], context, f)
    step_time(cost, f, out)
    return np.array([out[name] for name in ("host_s", "draft_s", "target_s", "sample_s")])


def refitted(family: str, **numbers: float) -> RooflineProfile:
    profile = default_profile()
    changed = dataclasses.replace(profile.operators[family], **numbers)
    return dataclasses.replace(profile, operators={**profile.operators, family: changed})


def with_host(**seconds: float) -> RooflineProfile:
    return dataclasses.replace(default_profile(), host=Host(**({"h0_s": 1.2e-3, "h1_s": 5e-6} | seconds)))


def with_launch(**numbers: float) -> RooflineProfile:
    profile = default_profile()
    return dataclasses.replace(profile, launch=dataclasses.replace(profile.launch, **numbers))


H, D, T, S = range(4)
OTHER = load_hardware("h200")


@pytest.mark.parametrize(
    ("changes", "moved"),
    [
        ({"model": load_model("qwen3-8b")}, {T, S}),
        ({"draft_model": load_model("llama-3.2-3b")}, {D, H}),
        ({"num_speculative_tokens": 4}, {D, T, S, H}),
        ({"tensor_parallel_size": 1}, {T, S}),
        ({"draft_tensor_parallel_size": 1}, {D, H}),
        ({"weight_dtype": "fp8"}, {T}),
        ({"weight_dtype": "int4"}, {T}),
        ({"draft_weight_dtype": "fp8"}, {D}),
        ({"kv_dtype": "fp8"}, {D, T}),
        ({"draft_kv_dtype": "fp8"}, {D}),
        ({"enforce_eager": True}, {D, T, H}),
        ({"max_cudagraph_capture_size": 16}, {D, T}),
        ({"cudagraph_mode": "PIECEWISE"}, {D, T, H}),
        ({"cudagraph_mode": "NONE"}, {D, T, H}),
        ({"version": "vllm 0.6"}, {D, T, S, H}),
        ({"version": "sglang 0.5.6"}, {D, T, S, H}),
        ({"temperature": 0.0}, {S}),
        ({"num_seqs": 23}, {D, T, S, H}),
        ({"context": 1500.0}, {D, T}),
        ({"profile": default_profile(OTHER)}, {D, T, S}),
        ({"profile": with_host(h0_s=2e-3)}, {H}),
        ({"profile": with_host(h1_s=2e-5)}, {H}),
        ({"profile": with_launch(cuda_graph_ceiling=0)}, {D, T}),
    ],
)
def test_knob_moves_what_it_should(changes: dict, moved: set[int]) -> None:
    before, after = seconds(), seconds(**changes)
    assert {i for i in range(4) if before[i] != after[i]} == moved


MOVED_BY_FAMILY = {
    "linear": {D, T},
    "attention_decode": {D, T},
    "elementwise": {D, T},
    "lm_head": {D, S},
    "sampler": {D, S},
    "all_reduce": {D, T, S},
}


@pytest.mark.parametrize(
    ("family", "number"),
    [
        (family, number)
        for family in MOVED_BY_FAMILY
        for number in ("t0_s", "e_c", "e_m", "p")
        if family != "all_reduce" or number in ("t0_s", "e_m")  # an all-reduce is bytes only
    ],
)
def test_every_roofline_number_counts(family: str, number: str) -> None:
    before = seconds(num_seqs=120)
    after = seconds(num_seqs=120, profile=refitted(family, **{number: 0.3 if number != "p" else 1.5}))
    assert {i for i in range(4) if before[i] != after[i]} == MOVED_BY_FAMILY[family]


def test_every_family_is_used() -> None:
    # Those of latent and sparse attention: test_latent_attention; of linear attention: test_linear_attention.
    elsewhere = {"mla_decode", "mla_prefill", "dsa_decode", "gdn_decode", "gdn_prefill"}
    assert set(OPERATORS) == {*MOVED_BY_FAMILY, "attention_prefill", "moe"} | elsewhere
    mixtral: dict = {"model": load_model("mixtral-8x7b")}
    assert seconds(**mixtral)[T] != seconds(**mixtral, profile=refitted("moe", e_m=0.5))[T]
    f, out = st.empty_record(st.FEATURES), np.zeros(2, st.TIMES)
    fill(f, tokens=512, seqs=1, prefill_seqs=1, prefill_tokens=512, prefill_kv=512, prefill_qkv=512 * 256.5)
    for row, profile in enumerate((BASE["profile"], refitted("attention_prefill", e_c=0.3))):
        step_time(compiled(**(BASE | {"profile": profile})), f, out[row])
    assert (out["target_s"][0] < out["target_s"][1]) & (out["draft_s"][0] < out["draft_s"][1])


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("none", "mtp")])
def test_every_method_costs_its_own(name: str) -> None:
    method = get_method(name)
    own: dict = {"method": method, "draft_model": DRAFT if method.needs_draft_model else None}
    drafting = seconds(**own, version=FIRST)[D]
    assert drafting > 0
    others = [get_method(other) for other in METHODS if other not in (name, "mtp", "none")]
    drafts = [DRAFT if other.needs_draft_model else None for other in others]
    of_others = [
        seconds(method=other, draft_model=draft, version=FIRST)[D] for other, draft in zip(others, drafts, strict=True)
    ]
    assert drafting not in of_others
    if method.plan.name not in ("HOST_SEARCH", "DEVICE_SEARCH"):
        assert seconds(**own, version=FIRST, num_speculative_tokens=5)[D] > drafting


def test_a_tree_s_drafts_are_a_top_k_of_the_vocabulary() -> None:
    """One pass over the same rows, whose draft is the likeliest token or the two likeliest."""
    tree, base = get_method("eagle_tree"), {"draft_model": None, "num_speculative_tokens": 1}
    chain, two = (seconds(**base, method=tree.with_tree(width, 2))[D] for width in (1, 2))
    assert chain + 50e-6 < two < chain + 200e-6


def test_mtp_of_deepseek() -> None:
    deepseek: dict = {
        "model": load_model("deepseek-v3"),
        "method": get_method("mtp"),
        "draft_model": None,
        "tensor_parallel_size": 8,
        "draft_tensor_parallel_size": 8,
    }
    out = seconds(**deepseek, num_speculative_tokens=1)
    # One of 61 layers, one lm_head more.
    assert 0.01 * out[T] < out[D] < 0.1 * out[T]


def test_ngram_gpu_searches_the_padded_length() -> None:
    gpu: dict = {"method": get_method("ngram_gpu"), "draft_model": None}
    assert seconds(**gpu, max_model_len=1000)[D] < seconds(**gpu, max_model_len=100_000)[D]
    assert seconds(**gpu, context=100.0)[D] == seconds(**gpu, context=1000.0)[D]


def test_host_search_grows_with_the_context() -> None:
    ngram: dict = {"method": get_method("ngram"), "draft_model": None, "version": FIRST}
    suffix: dict = {"method": get_method("suffix"), "draft_model": None}
    assert seconds(**ngram, context=100.0)[D] < seconds(**ngram, context=1000.0)[D]
    assert seconds(**suffix, context=100.0)[D] == seconds(**suffix, context=1000.0)[D]


def test_draft_tp_defaults_to_the_targets() -> None:
    assert seconds(draft_tensor_parallel_size=None).tolist() == seconds(draft_tensor_parallel_size=2).tolist()


def test_window_moves_the_target() -> None:
    model = load_model("gpt-oss-20b")
    wider = dataclasses.replace(model, sliding_window=512)
    none: dict = {"method": get_method("none"), "draft_model": None, "num_speculative_tokens": 0}
    assert seconds(**none, model=model)[T] < seconds(**none, model=wider)[T]


def test_asynchronous_scheduling_hides_the_host() -> None:
    small: dict = BASE | {"profile": with_host(h0_s=0.1), "version": FIRST}
    asynchronous, synchronous = (
        decode_step_seconds(compiled(**small, async_scheduling=flag), 1, 3, 10.0) for flag in (True, False)
    )
    assert asynchronous == pytest.approx(0.1, rel=1e-3)
    assert synchronous > asynchronous


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"num_speculative_tokens": 0}, ScenarioError, "num_speculative_tokens = 0: must be at least 1"),
        ({"method": get_method("none"), "draft_model": None}, ScenarioError, "num_speculative_tokens = 3: must be 0"),
        ({"tensor_parallel_size": 0}, ScenarioError, "tensor_parallel_size = 0: must be at least 1"),
        ({"draft_tensor_parallel_size": -1}, ScenarioError, "draft_tensor_parallel_size = -1"),
        ({"tensor_parallel_size": 3}, ModelError, "3"),
        ({"weight_dtype": "fp7"}, ModelError, "dtype = 'fp7'"),
        ({"draft_weight_dtype": "fp7"}, ModelError, "dtype = 'fp7'"),
        ({"kv_dtype": "int2"}, ModelError, "kv_cache_dtype = 'int2'"),
        ({"draft_model": None}, ScenarioError, "draft_model = None: required by method draft_model"),
        ({"max_cudagraph_capture_size": -1}, ScenarioError, "max_cudagraph_capture_size = -1"),
        ({"max_num_batched_tokens": 0}, ScenarioError, "max_num_batched_tokens = 0"),
        ({"max_num_seqs": 0}, ScenarioError, "max_num_seqs = 0"),
        ({"max_model_len": 0}, ScenarioError, "max_model_len = 0"),
    ],
)
def test_bad_setting_is_named(changes: dict, error: type[DraftcastError], message: str) -> None:
    with pytest.raises(error, match=message):
        compiled(**(BASE | changes))


def settings(**changes: Any) -> EngineConfig:
    return EngineConfig(**({"max_model_len": 4096} | changes))


PROFILE = default_profile()


def test_capture_sizes_are_vllms() -> None:
    assert PROFILE.cuda_graph_ceiling == 512
    assert capture_sizes(settings(max_num_seqs=8), 1, PROFILE) == (1, 2, 4, 8, 16)
    default = capture_sizes(settings(), 1, PROFILE)
    assert default == (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
    # Uniform decode batches of 1, 2, 4 and 5 requests of 4 rows join the grid up to min(5 * 4 * 2, 512).
    assert capture_sizes(settings(max_num_seqs=5), 4, PROFILE) == (1, 2, 4, 8, 16, 20, 24, 32, 40)
    assert capture_sizes(settings(max_num_seqs=5, max_num_batched_tokens=22), 4, PROFILE) == (1, 2, 4, 8, 16, 20, 22)
    assert capture_sizes(settings(enforce_eager=True), 1, PROFILE) == ()
    assert capture_sizes(settings(max_cudagraph_capture_size=0), 1, PROFILE) == ()
    assert capture_sizes(settings(max_cudagraph_capture_size=20), 1, PROFILE) == (1, 2, 4, 8, 16)
