"""What a running engine adds to its kernels: graphs, launches, draft passes, verification, search; nothing falls."""

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from draftcast.calibration.profile.engines import Constants, generation_of, graphs_hold_prompts
from draftcast.calibration.profile.hardware import hardware_names, load_hardware
from draftcast.calibration.profile.load import load_profile
from draftcast.calibration.profile.roofline import Origin
from draftcast.calibration.profile.spec import HardwareProfile, Host, RooflineProfile
from draftcast.errors import HardwareError, ScenarioError
from draftcast.kernels.model.catalog import load_model
from draftcast.kernels.work.layers import linear_layers
from draftcast.sim.cost import step_time as st
from draftcast.sim.cost.engine_config import EngineConfig
from draftcast.sim.cost.methods import Method, get_method
from draftcast.sim.cost.operator_tables import OperatorTables
from draftcast.sim.cost.step_cost import compile_step_cost
from draftcast.sim.cost.step_time import StepCost

LLAMA = "llama-3.1-8b"
GPUS = [name for name in hardware_names() if name != "cpu"]
OLD, ASYNC, NEW = "vllm 0.12", "vllm 0.20", "vllm 0.32"


@functools.cache
def profile_of(device: str) -> HardwareProfile:
    """Read once: its measured tables take longer to read than a step cost to compile."""
    return load_profile(None, load_hardware(device))


def cost_of(
    model: str = LLAMA, device: str = "h100-sxm", method: str | Method = "none", k: int = 0, **flags: Any
) -> StepCost:
    spec, hardware = load_model(model), load_hardware(device)
    draft = load_model("llama-3.2-1b") if method == "draft_model" else None
    flags |= {"is_multimodal": spec.is_multimodal, "graphs_hold_prompts": graphs_hold_prompts(spec, hardware)}
    flags |= {"is_moe": spec.is_moe, "is_hybrid": spec.is_hybrid}
    named = get_method(method) if isinstance(method, str) else method
    config = EngineConfig(method=named, num_speculative_tokens=k, **flags)
    return compile_step_cost(config, spec, draft, profile_of(device))


def decode(cost: StepCost, seqs: int, k: int = 0, prompt: int = 0, context: float = 500.0) -> np.ndarray:
    """Times of a decode step, beside one prompt of ``prompt`` tokens."""
    f, out = st.empty_record(st.FEATURES), st.empty_record(st.TIMES)
    if seqs:
        st.decode_features(cost, seqs, k, context, f)
    f["tokens"] += prompt
    f["seqs"] += prompt > 0
    f["logit_rows"] += prompt > 0
    f["prefill_seqs"] = prompt > 0
    f["prefill_tokens"] = f["prefill_kv"] = f["win_prefill_kv"] = prompt
    f["prefill_qkv"] = f["win_prefill_qkv"] = prompt * (prompt + 1) / 2
    st.step_time(cost, f, out)
    return out


def seconds(cost: StepCost, *step: Any) -> float:
    return float(st.step_seconds(cost, decode(cost, *step)))


def constants(version: str) -> Constants:
    return generation_of(version).constants


# CUDA graphs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "uniform", "mixed"),
    [
        ({}, st.FULL_GRAPH, st.PIECEWISE_GRAPHS),
        ({"cudagraph_mode": "FULL"}, st.FULL_GRAPH, st.FULL_GRAPH),
        ({"cudagraph_mode": "FULL_DECODE_ONLY"}, st.FULL_GRAPH, st.UNCAPTURED),
        ({"cudagraph_mode": "PIECEWISE"}, st.PIECEWISE_GRAPHS, st.PIECEWISE_GRAPHS),
        ({"cudagraph_mode": "NONE"}, st.UNCAPTURED, st.UNCAPTURED),
        ({"enforce_eager": True}, st.EAGER, st.EAGER),
        ({"enforce_eager": True, "cudagraph_mode": "FULL"}, st.EAGER, st.EAGER),
        ({"max_cudagraph_capture_size": 4}, st.UNCAPTURED, st.UNCAPTURED),
        # As a deployment without speculation is made: its policy `Off` is dynamic.
        ({"version": ASYNC, "is_dynamic": True}, st.FULL_GRAPH, st.PIECEWISE_GRAPHS),
        ({"version": "vllm 0.10"}, st.PIECEWISE_GRAPHS, st.PIECEWISE_GRAPHS),
        # What no graph holds runs eagerly: these engines compile nothing.
        ({"version": "vllm 0.6"}, st.FULL_GRAPH, st.EAGER),
        ({"version": "sglang 0.5.6"}, st.FULL_GRAPH, st.EAGER),
        ({"version": "sglang 0.5.10"}, st.FULL_GRAPH, st.PIECEWISE_GRAPHS),
        ({"version": "sglang 0.5.10", "cudagraph_mode": "FULL_DECODE_ONLY"}, st.FULL_GRAPH, st.EAGER),
        ({"version": "sglang 0.5.10", "device": "mi300x"}, st.FULL_GRAPH, st.EAGER),
        # What is asked for counts, whatever the default.
        (
            {"version": "sglang 0.5.10", "model": "gemma-3-12b", "cudagraph_mode": "FULL_AND_PIECEWISE"},
            st.FULL_GRAPH,
            st.PIECEWISE_GRAPHS,
        ),
        ({"version": "sglang 0.5.10", "pipeline_parallel_size": 2}, st.FULL_GRAPH, st.EAGER),
        ({"version": "sglang 0.5.10", "model": "deepseek-v3.2"}, st.FULL_GRAPH, st.EAGER),
    ],
)
def test_how_a_step_runs(flags: dict[str, Any], uniform: int, mixed: int) -> None:
    cost = cost_of(**flags)
    assert (decode(cost, 8)["graph_mode"], decode(cost, 8, 0, 16)["graph_mode"]) == (uniform, mixed)


def test_modes_cost_in_their_order() -> None:
    modes = ({}, {"cudagraph_mode": "PIECEWISE"}, {"cudagraph_mode": "NONE"}, {"enforce_eager": True})
    times = [seconds(cost_of(version=ASYNC, **flags), 8) for flags in modes]
    assert times == sorted(times)
    added = constants(ASYNC).piecewise_layer_s.value
    assert times[1] - times[0] == pytest.approx(32 * added)


def test_only_uniform_batches_of_all_drafts_replay_full_graphs_in_the_first_runner() -> None:
    for version, fewer in ((ASYNC, st.PIECEWISE_GRAPHS), (NEW, st.FULL_GRAPH)):
        cost = cost_of(method="eagle3", k=3, version=version)
        assert decode(cost, 8, 3)["graph_mode"] == st.FULL_GRAPH
        assert decode(cost, 8, 0)["graph_mode"] == decode(cost, 8, 2)["graph_mode"] == fewer
        f, out = st.empty_record(st.FEATURES), st.empty_record(st.TIMES)
        st.decode_features(cost, 8, 3, 500.0, f)
        f["tokens"] = f["decode_tokens"] = 30
        st.step_time(cost, f, out)
        assert out["graph_mode"] == st.PIECEWISE_GRAPHS


def test_a_schedule_that_never_drafts_loses_full_graphs_in_the_first_runner() -> None:
    """vLLM issue 49548 (31B, H100 NVL, two requests): 6.6 % of a step of 14.4 ms, by graphs alone."""
    settings: dict[str, Any] = {"method": "draft_model", "k": 3, "version": "vllm 0.27 v1"}
    static, dynamic = cost_of("qwen3-32b", **settings), cost_of("qwen3-32b", is_dynamic=True, **settings)
    assert decode(static, 2, 3)["graph_mode"] == st.FULL_GRAPH
    assert decode(dynamic, 2, 3)["graph_mode"] == st.PIECEWISE_GRAPHS
    off = cost_of("qwen3-32b", version="vllm 0.27 v1", weight_dtype="fp8")
    without_drafts = decode(cost_of("qwen3-32b", is_dynamic=True, weight_dtype="fp8", **settings), 2, 0)["target_s"]
    assert 1.04 < without_drafts / decode(off, 2)["target_s"] < 1.09
    kept = cost_of("qwen3-32b", is_dynamic=True, method="draft_model", k=3, version=NEW)
    assert decode(kept, 2, 0)["graph_mode"] == st.FULL_GRAPH


@pytest.mark.parametrize("device", GPUS)
@pytest.mark.parametrize("version", [OLD, NEW])
def test_eager_is_slower_than_graphs_on_every_gpu(device: str, version: str) -> None:
    # Where the memory is slow, the weights of 8B take long for their launches: up to ten times as long on L4.
    least = {"l4": 1.0, "gb10": 1.1, "a10": 1.15, "a10g": 1.15}.get(device, 1.2)
    for model, ratio in {LLAMA: least, "qwen3-4b": 1.2}.items():
        graphs, eager = (cost_of(model, device, version=version, enforce_eager=flag) for flag in (False, True))
        for seqs in range(1, 9):
            assert ratio * decode(graphs, seqs)["target_s"] < decode(eager, seqs)["target_s"]
            # A GPU that outruns the host waits for it.
            assert decode(eager, seqs)["target_s"] >= 320 * constants(version).eager_launch_s.value


@pytest.mark.parametrize(("flags", "limit"), [({"max_cudagraph_capture_size": 16}, 16), ({"max_num_seqs": 1024}, 512)])
@pytest.mark.parametrize("version", [OLD, ASYNC, NEW])
def test_a_cliff_stands_at_the_captured_limit(flags: dict[str, Any], limit: int, version: str) -> None:
    cost = cost_of(version=version, **flags)
    before, at, beyond = (decode(cost, seqs)["target_s"] for seqs in (limit - 1, limit, limit + 1))
    assert before == pytest.approx(at, rel=0.01)
    assert beyond > 1.1 * at


def test_sglang_captures_by_requests() -> None:
    cost = cost_of(method="eagle3", k=4, version="sglang 0.5.6", max_num_seqs=512)
    assert [decode(cost, seqs, 4)["graph_mode"] for seqs in (256, 257)] == [st.FULL_GRAPH, st.EAGER]
    old, new = "sglang 0.5.6", "sglang 0.5.20"
    known = [("a10g", 1, 24, old), ("a10g", 4, 80, old), ("l40s", 1, 32, old), ("h100-sxm", 4, 512, old)]
    known += [("a10g", 1, 48, new), ("a10g", 4, 160, new), ("l40s", 1, 32, new)]  # srt/arg_groups/memory_hook.py
    for device, gpus, held, version in known:
        flags = {"version": version, "max_num_seqs": 1024, "tensor_parallel_size": gpus}
        cost = cost_of("llama-3.2-1b", device, max_num_batched_tokens=2048, **flags)
        modes = [decode(cost, seqs)["graph_mode"] for seqs in (held, held + 1)]
        assert modes == [st.FULL_GRAPH, st.EAGER], (device, gpus, version)


def test_sglang_holds_prompts_in_graphs_up_to_a_chunk() -> None:
    def modes(rows: int, **flags: Any) -> int:
        return int(decode(cost_of(max_num_batched_tokens=8192, **flags), 0, 0, rows)["graph_mode"])

    new, latent = {"version": "sglang 0.5.10"}, {"model": "deepseek-v3", "tensor_parallel_size": 8}
    assert [modes(rows, **new) for rows in (64, 8192)] == [st.PIECEWISE_GRAPHS] * 2
    assert [modes(rows, **new, **latent) for rows in (2048, 2049)] == [st.PIECEWISE_GRAPHS, st.EAGER]
    assert [modes(8192, version=f"sglang 0.5.{patch}", **latent) for patch in (22, 23)] == [
        st.EAGER,
        st.PIECEWISE_GRAPHS,
    ]
    drafting = {"method": "eagle3", "k": 3}
    assert modes(64, **new, **drafting) == st.EAGER
    assert modes(64, version="sglang 0.5.11", **drafting) == st.PIECEWISE_GRAPHS
    multimodal = [modes(64, version=f"sglang 0.5.{patch}", model="gemma-3-12b") for patch in (16, 17)]
    assert multimodal == [st.EAGER, st.PIECEWISE_GRAPHS]
    experts = {"model": "qwen3-30b-a3b", "data_parallel_size": 2}
    assert modes(64, **new, **experts) == st.EAGER


def test_an_eager_prompt_lasts_as_long_as_its_launches_and_a_long_one_as_its_kernels() -> None:
    """SGLang's cookbook, 8 B200, a prompt of some 300 tokens: 92 ms to the first token of Qwen3-235B, 32 of gpt-oss."""
    served = (("qwen3-235b-a22b", "bf16", 80e-3, 110e-3), ("gpt-oss-120b", "mxfp4", 15e-3, 35e-3))
    for model, dtype, low, high in served:
        shared = {"model": model, "device": "b200", "tensor_parallel_size": 8, "weight_dtype": dtype}
        cost = cost_of(version="sglang 0.5.6", **shared)
        short, twice = (float(decode(cost, 0, 0, rows)["target_s"]) for rows in (200, 400))
        assert short == pytest.approx(float(cost.params[0]["target_launch_s"]))
        assert twice < 1.05 * short
        assert low < short < high
        layers = load_model(model).num_hidden_layers
        assert short > 10 * layers * constants("sglang 0.5.6").eager_launch_s.value
        graphs = cost_of(version="sglang 0.5.10", **shared)
        assert decode(graphs, 0, 0, 200)["target_s"] < 0.7 * short
    cost = cost_of(version="sglang 0.5.6", max_num_batched_tokens=8192)
    gaps_s = float(cost.params[0]["target_mode_s"][st.EAGER])
    assert float(decode(cost, 0, 0, 8192)["overhead_s"]) == pytest.approx(gaps_s)


def test_what_is_launched_eagerly_hangs_on_the_layers() -> None:
    """Quantised inputs, experts that no fused kernel holds, latents; states over a prompt in no piecewise graph."""

    def launches(model: str, device: str = "h100-sxm", **flags: Any) -> float:
        cost = cost_of(model, device, version="sglang 0.5.6", **flags)
        return float(cost.params[0]["target_launch_s"] / constants("sglang 0.5.6").eager_launch_s.value)

    layers = 36  # four matrices in each
    assert launches("qwen3-8b", weight_dtype="fp8") - launches("qwen3-8b") == pytest.approx(4 * layers)
    assert launches("qwen3-8b", weight_dtype="int4") == pytest.approx(launches("qwen3-8b"))
    # Blackwell's experts in mxfp4 are one kernel, not yet those in bf16.
    hopper, blackwell = (launches("gpt-oss-120b", device, weight_dtype="mxfp4") for device in ("h100-sxm", "b200"))
    assert hopper - blackwell == pytest.approx(15 * 36)
    assert launches("qwen3-30b-a3b") == pytest.approx(launches("qwen3-30b-a3b", "b200"))
    assert launches("deepseek-v2-lite") / 27 > launches("qwen3-30b-a3b") / 48 + 20
    hybrid = cost_of("qwen3-next-80b-a3b", "h200", version=NEW, tensor_parallel_size=4)
    out = decode(hybrid, 8, 0, 16)
    assert out["graph_mode"] == st.PIECEWISE_GRAPHS
    assert out["target_s"] >= hybrid.params[0]["prompt_launch_s"] == pytest.approx(36 * 30 * 35e-6)
    assert decode(hybrid, 8)["target_s"] < hybrid.params[0]["prompt_launch_s"]
    assert cost_of(version=NEW).params[0]["prompt_launch_s"] == 0.0


@pytest.mark.parametrize(("version", "more"), [(NEW, 12), ("sglang 0.5.16", 0)])
def test_drafts_beside_a_prompt_are_launched_apart(version: str, more: int) -> None:
    """By vLLM in layers of gated DeltaNet; SGLang runs prompts alone."""
    shared: dict[str, Any] = {"version": version, "tensor_parallel_size": 4}
    cost = cost_of("qwen3-next-80b-a3b", "h200", "mtp", 2, **shared)
    alone, beside = (float(decode(cost, 8, k, 16)["launching_s"]) for k in (0, 2))
    assert beside - alone == pytest.approx(36 * more * 35e-6)
    assert decode(cost, 8, 2)["launching_s"] == 0.0


def test_a_padded_step_costs_what_the_padded_size_costs() -> None:
    cost = cost_of()
    tables = cost.target.sum(axis=1)
    assert tables[17] == tables[20] == tables[24] < tables[25]


def test_rejected_rows_leave_the_way_a_step_ran() -> None:
    cost = cost_of(method="eagle3", k=3, version=ASYNC)
    f, out = st.empty_record(st.FEATURES), st.empty_record(st.TIMES)
    st.decode_features(cost, 8, 3, 500.0, f)
    st.step_time(cost, f, out)
    whole = out["target_s"] + out["sample_s"]
    f["tokens"] = f["decode_tokens"] = f["logit_rows"] = 8
    st.fill_times(cost, f, 0.0, out)
    assert out["graph_mode"] == st.FULL_GRAPH
    assert out["verify_s"] == constants(ASYNC).verify_sampled_s.value
    assert out["target_s"] + out["sample_s"] < whole


# Draft passes, verification, search ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["vllm 0.9", "vllm 0.10", OLD])
def test_every_draft_pass_pays_its_overhead(version: str) -> None:
    each, piece_s = constants(version).draft_pass_s, constants(version).piecewise_layer_s.value
    own = each.methods["eagle3"] if version == "vllm 0.9" else each.value
    assert each.methods["eagle3"] > each.value
    for method, pass_s in (("eagle3", own + piece_s), ("eagle", each.value + piece_s)):
        cost = cost_of(method=method, k=4, version=version)
        assert decode(cost, 1, 4)["draft_overhead_s"] == pytest.approx(4 * pass_s)
        assert decode(cost, 1, 0)["draft_overhead_s"] == pytest.approx(pass_s)


def test_passes_of_a_draft_run_as_its_runner_captures_them() -> None:
    """The first runner in pieces, a gap a layer; the second in full graphs, from 0.28 on one for all but the first.

    Draft models have no graph there: the host launches each kernel while the device runs those before it.
    """
    layers, passes = load_model("llama-3.2-1b").num_hidden_layers, 4

    def overhead_s(version: str, method: str, **flags: Any) -> float:
        return float(decode(cost_of(method=method, k=passes, version=version, **flags), 1, passes)["draft_overhead_s"])

    for version in (ASYNC, "vllm 0.30"):
        of_layers = passes * layers * constants("vllm 0.30 v1").piecewise_layer_s.value
        assert overhead_s(version, "draft_model") == pytest.approx(of_layers)
    pass_s = constants(NEW).draft_pass_s.value
    assert overhead_s("vllm 0.27", "eagle3") == pytest.approx(passes * pass_s)
    assert overhead_s("vllm 0.28", "eagle3") == pytest.approx(pass_s)
    assert overhead_s(NEW, "draft_model") == pytest.approx(passes * pass_s)
    assert overhead_s(NEW, "draft_model", enforce_eager=True) > 2 * passes * pass_s
    assert overhead_s(NEW, "eagle3", cudagraph_mode="PIECEWISE") > overhead_s("vllm 0.27", "eagle3")
    pieces, without = (overhead_s(ASYNC, "eagle3", cudagraph_mode=mode) for mode in ("PIECEWISE", "FULL_DECODE_ONLY"))
    assert 0.0 < pieces < without
    hosts = {
        flag: decode(cost_of(method="draft_model", k=passes, async_scheduling=flag), 1, passes)["host_s"]
        for flag in (True, False)
    }
    launched_s = hosts[True] - constants(NEW).host_step_s.value
    assert launched_s > passes * 9 * layers * constants(NEW).uncaptured_launch_s.value
    assert hosts[False] == pytest.approx(constants(NEW).host_step_s.value, rel=0.01), "hidden behind the target's graph"
    # A small target ends before its draft is launched.
    shown = decode(cost_of("llama-3.2-1b", method="draft_model", k=passes, async_scheduling=False), 1, passes)["host_s"]
    assert hosts[False] + 0.3 * launched_s < shown < hosts[True]
    small = [
        seconds(cost_of("llama-3.2-1b", method="draft_model", k=3, version=v), 1, 3) for v in (NEW, "vllm 0.32 v1")
    ]
    assert small[0] == pytest.approx(small[1], rel=0.1), "hidden behind the whole step"


def test_eagle3_of_mid_2025_needs_most_of_a_millisecond_a_pass() -> None:
    """vLLM issue 20780: 1.0 ms a further draft token with EAGLE-3, of which kernels explain 0.3."""
    cost = cost_of(method="eagle3", k=7, version="vllm 0.9")
    passes = np.diff([decode(cost, 1, k)["draft_s"] for k in range(2, 8)])
    assert passes == pytest.approx(1.0e-3, rel=0.15)


def test_verification_is_paid_by_steps_that_verify_and_more_when_sampled() -> None:
    for temperature, name in ((0.0, "verify_greedy_s"), (0.7, "verify_sampled_s")):
        cost = cost_of(method="eagle3", k=3, temperature=temperature)
        assert decode(cost, 8, 3)["verify_s"] == getattr(constants(NEW), name).value
        assert decode(cost, 8, 0)["verify_s"] == 0.0
    assert constants(NEW).verify_sampled_s.value > constants(NEW).verify_greedy_s.value


def test_sglang_verifies_request_by_request_on_the_host_and_trees_at_more_cost() -> None:
    version = "sglang 0.5.6"
    own, tree = constants(version), get_method("eagle_tree").with_tree(4, 16)
    assert own.host_verify_request_s is not None
    assert own.host_verify_tree_s is not None
    chain, branched = (cost_of(method=method, k=3, version=version) for method in ("eagle", tree))
    plain = own.host_step_s.value + own.host_request_s.value * 8
    verified = plain + own.host_verify_request_s.value * 8
    assert decode(chain, 8, 0)["host_s"] == pytest.approx(plain)
    assert decode(chain, 8, 3)["host_s"] == pytest.approx(verified)
    assert decode(branched, 8, 3)["host_s"] == pytest.approx(verified + own.host_verify_tree_s.value)
    # A profile that knows the host of its machine knows it for all steps.
    known = replace(profile_of("h100-sxm"), host=Host(1e-3, 1e-5))
    config = EngineConfig(method=tree, num_speculative_tokens=3, version=version)
    assert decode(compile_step_cost(config, load_model(LLAMA), None, known), 8, 3)["host_s"] == pytest.approx(1.08e-3)
    # What runs beside the device verifies there: Spec V2, and vLLM.
    for hidden in ("sglang 0.5.14", NEW):
        cost = cost_of(method="eagle", k=3, version=hidden)
        assert decode(cost, 8, 3)["host_s"] == decode(cost, 8, 0)["host_s"]


def test_v0_reads_the_context_again_for_every_draft() -> None:
    """Batch expansion: a request that verifies k drafts is k + 1 sequences of the graph, the host and the KV cache."""
    k, context = 4, 2000.0
    old, new = (cost_of(method="eagle", k=k, version=version) for version in ("vllm 0.6", "vllm 0.8"))
    modes = [int(decode(old, seqs, k)["graph_mode"]) for seqs in (51, 52)]
    assert modes == [st.FULL_GRAPH, st.EAGER]
    steps = [decode(cost, 32, k, 0, context) for cost in (old, new)]
    kernels_s = [float(out["target_s"] - out["overhead_s"]) for out in steps]
    plain = [decode(cost, 32, 0, 0, context) for cost in (old, new)]
    plain_s = [float(out["target_s"] - out["overhead_s"]) for out in plain]
    assert plain_s[0] == pytest.approx(plain_s[1], rel=1e-6)
    read_again = k * 32 * context * load_model(LLAMA).kv_bytes_per_token("bf16")
    again_s = read_again / load_hardware("h100-sxm").memory_bandwidth_bytes_per_s
    assert kernels_s[0] - kernels_s[1] > 0.8 * again_s
    each_s = constants("vllm 0.6").host_request_s.value
    assert steps[0]["host_s"] - plain[0]["host_s"] == pytest.approx(k * 32 * each_s)


def test_a_text_search_pays_for_its_step() -> None:
    cost = cost_of(method="ngram", k=3, version="vllm 0.31")
    search = constants("vllm 0.31 v1")
    expected = search.ngram_step_s.value + 8 * (search.ngram_request_s.value + 504 * search.ngram_token_s.value)
    assert decode(cost, 8, 3)["draft_s"] == pytest.approx(expected)
    on_device = [decode(cost_of(method=method, k=3), 8, 3)["draft_s"] for method in ("ngram", "ngram_gpu")]
    assert on_device[0] == on_device[1] < expected, "the second runner searches on the device"


def test_a_step_lasts_as_long_as_its_outputs_take_to_be_sent() -> None:
    """256 pieces outlast the kernels of a small model, unless more servers send."""
    each_s = constants(NEW).front_end_output_s.value
    for flags in ({}, {"async_scheduling": False}):
        one, four = (cost_of("llama-3.2-1b", api_server_count=count, **flags) for count in (1, 4))
        assert seconds(one, 256) == pytest.approx(256 * each_s)
        assert seconds(four, 256) < 0.6 * 256 * each_s
        assert seconds(one, 8) == seconds(four, 8) > 8 * each_s
    shared = cost_of("llama-3.2-1b", api_server_count=4, data_parallel_size=4)
    assert seconds(shared, 256) == pytest.approx(256 * each_s), "four servers for four ranks"
    with pytest.raises(ScenarioError, match="api_server_count"):
        EngineConfig(api_server_count=0)


def test_scheduling_follows_the_generation() -> None:
    on = {"method": get_method("eagle3"), "num_speculative_tokens": 3}
    versions = (OLD, NEW, "sglang 0.5.10", "sglang 0.5.11")
    by_version = {v: (EngineConfig(version=v), EngineConfig(version=v, **on)) for v in versions}
    flags = {version: tuple(config.async_scheduling for config in pair) for version, pair in by_version.items()}
    assert list(flags.values()) == [(False, False), (True, True), (True, False), (True, True)]
    tree = on | {"method": get_method("eagle_tree")}
    trees = [EngineConfig(version=f"sglang 0.5.{patch}", **tree).async_scheduling for patch in (12, 13)]
    assert trees == [False, True], "of trees Spec V2 came later"
    assert EngineConfig(version=OLD, async_scheduling=True).async_scheduling
    small = {v: seconds(cost_of("llama-3.2-1b", version=v), 1) for v in (OLD, NEW)}
    assert small[OLD] > small[NEW] + 0.8 * constants(OLD).host_step_s.value


@pytest.mark.parametrize(("method", "first"), [("draft_model", 28), ("pard", 28), ("ngram_gpu", 18), ("eagle3", 14)])
def test_a_method_is_scheduled_asynchronously_from_its_version_on(method: str, first: int) -> None:
    """vLLM 0.14.1 to 0.32.0, config/vllm.py: VllmConfig.__post_init__."""
    on = {"method": get_method(method), "num_speculative_tokens": 3}
    assert EngineConfig(version=f"vllm 0.{first}", **on).async_scheduling
    assert not EngineConfig(version=f"vllm 0.{first - 1}", **on).async_scheduling
    assert EngineConfig(version="vllm 0.20", async_scheduling=True, **on).async_scheduling


def test_the_second_runner_searches_n_grams_asynchronously_from_0_33_on() -> None:
    """vLLM 0.33.0, config/vllm.py: only the first runner's methods are limited."""
    on = {"method": get_method("ngram"), "num_speculative_tokens": 3}
    versions = ("vllm 0.32", "vllm 0.33 v1", "vllm 0.33")
    assert [EngineConfig(version=version, **on).async_scheduling for version in versions] == [False, False, True]
    # Without a match it verifies the last token k times in either version, the first runner's host search nothing.
    versions = ("vllm 0.32 v1", "vllm 0.32", "vllm 0.33 v1", "vllm 0.33")
    assert [EngineConfig(version=version, **on).pads_searches for version in versions] == [False, True, False, True]


def test_a_block_of_drafts_stands_apart_from_0_33_on() -> None:
    """vLLM 0.33.0, config/speculative.py: max_num_new_slots_for_drafting, needs_eagle_block_drop."""
    for method, before in (("dflash", 4), ("dspark", 3)):
        on = {"method": get_method(method), "num_speculative_tokens": 4}
        old, new = (EngineConfig(version=f"vllm 0.{minor}", **on) for minor in (32, 33))
        assert (old.slots, old.drops_last_hit) == (before, True)
        assert (new.slots, new.drops_last_hit, new.hash_lookahead) == (0, False, 0)
        assert old.lookahead == new.lookahead


def test_hashes_cover_what_a_head_reads_from_0_33_on() -> None:
    """vLLM 0.33.0, config/vllm.py: num_hash_lookahead_tokens; MTP of several modules reads as far as it drafts."""
    flags: dict[str, Any] = {"version": "vllm 0.33", "num_speculative_tokens": 3}
    eagle, mtp = ({**flags, "method": get_method(name)} for name in ("eagle3", "mtp"))
    assert EngineConfig(**eagle).hash_lookahead == 1
    assert EngineConfig(**mtp, num_nextn_layers=1).hash_lookahead == 1
    assert EngineConfig(**mtp, num_nextn_layers=3).hash_lookahead == 3
    dropped = EngineConfig(**eagle, disable_lookahead_block_hashes=True)
    assert (dropped.hash_lookahead, dropped.drops_last_hit) == (0, True)
    kept = EngineConfig(**eagle, disable_eagle_block_drop=True)
    assert (kept.hash_lookahead, kept.drops_last_hit) == (0, False)


def test_sglang_s_cache_of_states_switches_the_overlap_scheduler_off() -> None:
    """SGLang 0.5.5 to 0.5.14, server_args.py: MambaRadixCache, until its extra_buffer."""
    versions = [f"sglang 0.5.{patch}" for patch in (5, 6, 13, 14)]
    hybrid = [EngineConfig(version=version, is_hybrid=True) for version in versions]
    assert [config.async_scheduling for config in hybrid] == [True, False, False, True]
    assert EngineConfig(version=versions[1], is_hybrid=True, enable_prefix_caching=False).async_scheduling
    assert EngineConfig(version=versions[1]).async_scheduling
    assert EngineConfig(is_hybrid=True).async_scheduling, "vLLM's knows no such limit"


def test_overheads_are_a_part_of_the_step() -> None:
    out = decode(cost_of(method="eagle3", k=3, version=OLD), 8, 3, 100)
    assert out["by_origin_s"].sum() == pytest.approx(out["draft_s"] + out["target_s"] + out["sample_s"])
    assert 0.0 < out["overhead_s"] < out["target_s"]
    assert 0.0 < out["draft_overhead_s"] < out["draft_s"]
    assert out["prefill_s"] > 32 * constants(OLD).piecewise_layer_s.value  # the prompt cost the batch its full graph


def test_a_whole_step_fit_knows_no_graph_mode() -> None:
    hardware = load_hardware("h100-sxm")
    profile = load_profile("h100-llama-3.1-8b-affine", hardware)
    with pytest.raises(HardwareError, match="cudagraph_mode = 'PIECEWISE'"):
        compile_step_cost(EngineConfig(cudagraph_mode="PIECEWISE"), load_model(LLAMA), None, profile)


# Monotony ------------------------------------------------------------------------------------------------------------


def rises(values: list[float]) -> bool:
    return bool((np.diff(values) >= -1e-12 * np.asarray(values[1:])).all())


@pytest.mark.parametrize("device", hardware_names())
@pytest.mark.parametrize(
    ("model", "dtype", "k"),
    [(LLAMA, "bf16", 3), ("qwen3-32b", "fp8", 0), ("qwen3-30b-a3b", "bf16", 3), ("gpt-oss-20b", "mxfp4", 0)],
)
def test_no_step_gets_cheaper_with_more_rows(device: str, model: str, dtype: str, k: int) -> None:
    cost = cost_of(model, device, "eagle3" if k else "none", k, weight_dtype=dtype)
    for context in (100.0, 8000.0):
        assert rises([seconds(cost, seqs, k, 0, context) for seqs in range(1, 257)])
    assert rises([seconds(cost, 8, k, 0, context) for context in np.arange(10.0, 20_000.0, 250.0)])
    for seqs in (0, 64):
        assert rises([seconds(cost, seqs, k, prompt) for prompt in (1, 7, *range(16, 600, 13), *range(600, 4000, 97))])
    assert all(
        rises(list(table.sum(axis=1))) for table in (cost.target, cost.logits, cost.draft_first, cost.draft_next)
    )


def test_a_full_graph_costs_by_its_kernels() -> None:
    """A pass of twice the layers waits between twice the kernels (`EngineGeneration.constants.full_graph_s`)."""
    constant = generation_of("sglang 0.5.14").constants.full_graph_s.value
    added = {
        name: float(cost_of(name, "h100-sxm", version="sglang 0.5.14").params["target_mode_s"][0][st.FULL_GRAPH])
        for name in ("qwen3-8b", "qwen3-32b")
    }
    assert added["qwen3-8b"] == pytest.approx(constant, rel=0.15)
    assert added["qwen3-32b"] / added["qwen3-8b"] == pytest.approx(64 / 36, rel=0.01)


def test_fp8_is_quantised_by_the_kernels_before_a_matrix_where_the_version_compiles_so() -> None:
    """vLLM 0.12 fuses what 0.11 launches before qkv, gate_up and down; not in eager steps nor with wide weights."""

    def saved(device: str = "h100-sxm", dtype: str = "fp8", **flags: Any) -> float:
        before, after = (cost_of(device=device, weight_dtype=dtype, version=v, **flags) for v in ("vllm 0.11", OLD))
        return float(before.target[8].sum() - after.target[8].sum())

    profile = load_profile(None, load_hardware("h100-sxm"))
    assert isinstance(profile, RooflineProfile)
    starts = profile.operator("linear", "fp8").t0_s - profile.operator("linear", "bf16").t0_s
    assert saved() == pytest.approx(32 * 3 * starts)
    assert saved(enforce_eager=True) == saved(dtype="bf16") == saved(device="a100-80g") == 0.0


@pytest.mark.parametrize("device", ["h200", "b200"])
def test_sglang_decodes_by_its_own_latent_and_sparse_kernels(device: str) -> None:
    versions = ("vllm 0.24", "sglang 0.5.14")
    for model, tp, share in (("deepseek-v3.2", 8, 0.75), ("llama-3.1-8b", 1, 1.0)):
        costs = [cost_of(model, device, tensor_parallel_size=tp, version=version) for version in versions]
        passes = [decode(cost, 8, context=4000.0) for cost in costs]
        vllm, sglang = (float(out["target_s"] - out["overhead_s"]) for out in passes)
        assert sglang == vllm if share == 1.0 else sglang < share * vllm


def test_prompts_through_tritons_fp8_experts_take_longer_on_blackwell() -> None:
    flags = {"model": "qwen3-30b-a3b", "device": "b200", "weight_dtype": "fp8"}
    triton, fastest = (cost_of(**flags, version=version) for version in ("vllm 0.13", "vllm 0.14"))
    assert seconds(triton, 0, 0, 8192) > 1.2 * seconds(fastest, 0, 0, 8192)
    triton, fastest = (cost_of(**flags, version=version) for version in ("sglang 0.5.4", "sglang 0.5.5"))
    assert seconds(triton, 0, 0, 8192) > 1.01 * seconds(fastest, 0, 0, 8192)
    assert seconds(triton, 64) > 1.05 * seconds(fastest, 64)
    bf16 = [cost_of("qwen3-30b-a3b", "b200", version=f"sglang 0.5.{patch}") for patch in (3, 7, 8)]
    assert seconds(bf16[0], 0, 0, 8192) == seconds(bf16[1], 0, 0, 8192) > 1.05 * seconds(bf16[2], 0, 0, 8192)


LATENT, SPARSE = ("DeepSeek-V3", True), ("DeepSeek-V3.2", True)
LINEAR, PLAIN = ("Qwen3-Next-80B-A3B-Instruct", False), ("Qwen3-30B-A3B", False)


@pytest.mark.parametrize(
    ("older", "newer", "models"),
    [
        ("vllm 0.7", None, (LATENT, LINEAR, PLAIN)),
        ("vllm 0.13", None, (LATENT, LINEAR, PLAIN)),
        ("vllm 0.23", "vllm 0.24", (SPARSE, (LATENT[0], False), PLAIN)),
        ("sglang 0.5.10", "sglang 0.5.11", (LATENT, PLAIN)),
    ],
)
def test_latent_and_sparse_attention_was_slower_in_older_engines(
    older: str, newer: str | None, models: tuple[tuple[str, bool], ...]
) -> None:
    for model, other in models:
        spec = load_model(model)
        blackwell, hopper = load_hardware("b200"), load_hardware("h200")
        ratio = generation_of(older, is_plain=False).step_ratio(older, spec, "fp8", blackwell)[1]
        assert (ratio > 1.2) == other
        # vLLM V1 before asynchronous scheduling, in three sources, and V0, which is taken for alike.
        on_hopper = generation_of(older, is_plain=False).step_ratio(older, spec, "fp8", hopper)[1]
        assert on_hopper == (1.29 if other and older in ("vllm 0.7", "vllm 0.13") else 1.0)
        on_amd = generation_of(older, is_plain=False).step_ratio(older, spec, "fp8", load_hardware("mi300x"))[1]
        assert on_amd == (ratio if older.startswith("sglang") else 1.0)
        compressed = load_model("DeepSeek-V4-Flash")
        assert generation_of(older, is_plain=False).step_ratio(older, compressed, "fp8", blackwell)[1] == 1.0
        if newer is None:
            continue
        assert generation_of(newer, is_plain=False).step_ratio(newer, spec, "fp8", blackwell)[1] == 1.0
        alike = {"weight_dtype": "fp8", "cudagraph_mode": "FULL_DECODE_ONLY"}
        old, new = (cost_of(model, "b200", version=v, **alike) for v in (older, newer))
        for step in ((8,), (64,), (8, 0, 2000)):
            times = (float(decode(cost, *step)["target_s"]) for cost in (old, new))
            assert next(times) / next(times) == pytest.approx(ratio, rel=1e-9)


@pytest.mark.parametrize("version", ["vllm 0.13", "sglang 0.5.10"])
def test_each_kind_of_latent_attention_has_a_ratio_of_its_own(version: str) -> None:
    generation = generation_of(version, is_plain=False)
    dense, sparse = (load_model(name) for name, _ in (LATENT, SPARSE))
    kinds = {str(kind): ratio for kind, ratio in next(iter(generation.latent_ratio.values())).items()}
    for device, suffix in (("b200", ""), ("h200", ", Hopper")):
        hardware = load_hardware(device)
        for model, kind in ((dense, "dense"), (sparse, "sparse")):
            ratio = kinds.get(f"{kind}{suffix}", 1.0)
            assert generation.step_ratio(version, model, "fp8", hardware)[1] == ratio
    assert kinds["dense"] != kinds["sparse"]


def test_fp8_by_blocks_is_slower_under_sglang_on_the_gpus_where_it_was_seen() -> None:
    def ratio(name: str, device: str, version: str = "sglang 0.5.13", dtype: str = "fp8") -> tuple[str, float]:
        generation = generation_of(version, is_plain=False)
        return generation.step_ratio(version, load_model(name), dtype, load_hardware(device))

    for name in ("MiniMax-M2.5", "zai-org/GLM-5.1-FP8", "Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8"):
        kind, factor = ratio(name, "mi300x")
        assert (kind, ratio(name, "mi325x")[1]) == ("fp8 by blocks", factor)
        assert factor > 1.2
        for other in (("mi355x",), ("h200",), ("mi300x", "vllm 0.32"), ("mi300x", "sglang 0.5.13", "int4")):
            assert ratio(name, *other) == ("", 1.0)
    assert ratio("zai-org/GLM-4.5-Air-FP8", "mi300x") == ("", 1.0)  # a scale for each channel
    # On MI355X until AITER tuned the shapes of such models.
    since = [ratio("MiniMax-M2.5", "mi355x", version) for version in ("sglang 0.5.9", "sglang 0.5.10")]
    assert since == [ratio("MiniMax-M2.5", "mi300x"), ("", 1.0)]
    # Of latents and blocks together the larger one.
    assert ratio("DeepSeek-V3", "mi300x", "sglang 0.5.10")[0] == "dense"
    assert ratio("DeepSeek-V3", "mi300x")[0] == "fp8 by blocks"


def test_sglang_has_all_reduces_of_its_own_from_a_version_on() -> None:
    """16 rows of 6,144: 8.2 us by its second kernel and 26 and more by the first one, which is vLLM's."""
    model, profile = load_model("MiniMax-M3"), load_profile(None, load_hardware("b200"))
    versions = ("sglang 0.5.10", "sglang 0.5.12", "vllm 0.32")
    engines = [EngineConfig(is_moe=True, version=version, tensor_parallel_size=8) for version in versions]
    tables = [OperatorTables(profile, 8, "fp8", engine) for engine in engines]
    shared, own, of_vllm = (float(table.all_reduces(model, np.array([16])).sum()) for table in tables)
    assert own < 0.5 * shared
    assert of_vllm == shared


def test_flashinfer_runs_all_reduces_of_few_rows_with_the_norms_behind_them() -> None:
    model, profile = load_model("DeepSeek-V3"), load_profile(None, load_hardware("b200"))
    configs = [EngineConfig(version=version, tensor_parallel_size=8) for version in ("sglang 0.5.4", "sglang 0.5.5")]
    apart, fused = (OperatorTables(profile, 8, "fp8", config) for config in configs)
    # 123 all-reduces of 16 rows, each 7.6 us by TensorRT-LLM's kernel.
    assert fused.all_reduces(model, np.array([16])).sum() == pytest.approx(123 * 7.6e-6, rel=0.03)
    assert fused.all_reduces(model, np.array([4096])).sum() == apart.all_reduces(model, np.array([4096])).sum()
    norms = 61 * model.norms_per_layer
    assert apart.launches(model) - fused.launches(model) == norms
    saved = apart._elementwise(model, np.array([1])).sum() - fused._elementwise(model, np.array([1])).sum()
    assert saved == pytest.approx(norms * profile.operator("elementwise", "bf16").t0_s)
    spread = OperatorTables(profile, 8, "fp8", replace(configs[1], is_moe=True, data_parallel_size=2))
    assert spread.all_reduces(model, np.array([16])).sum() > fused.all_reduces(model, np.array([16])).sum()
    one = OperatorTables(profile, 1, "fp8", replace(configs[1], tensor_parallel_size=1))
    assert one.launches(model) == apart.launches(model) - 123


@pytest.mark.parametrize(
    ("name", "device", "unfused", "fused"),
    [
        ("DeepSeek-V3", "h200", "0.5.6", "0.5.7"),
        ("gpt-oss-120b", "b200", "0.5.4", "0.5.5"),
        ("Qwen3-235B-A22B", "b200", "0.5.6", "0.5.7"),
        ("DeepSeek-V3.2", "h200", "0.5.11", "0.5.12"),
        ("DeepSeek-V3", "h20", "0.5.13", "0.5.14"),
    ],
)
def test_models_whose_all_reduces_are_fused(name: str, device: str, unfused: str, fused: str) -> None:
    model, hardware = load_model(name), load_hardware(device)
    for version, holds in ((unfused, False), (fused, True)):
        generation = generation_of(f"sglang {version}", is_plain=False)
        assert generation.fuses_all_reduces(f"sglang {version}", model, hardware) == holds
    for other in ("a100-80g", "rtx-pro-6000", "mi300x"):
        assert not generation.fuses_all_reduces("sglang 0.5.20", model, load_hardware(other))
    assert not generation_of("vllm 0.32").fuses_all_reduces("vllm 0.32", model, hardware)


def test_shared_experts_of_small_steps_add_only_what_they_read() -> None:
    model, rows = load_model("DeepSeek-V3"), np.array([1, 256, 257, 4096])
    profile = load_profile(None, load_hardware("h200"))
    configs = (EngineConfig(is_moe=True, version=version) for version in ("vllm 0.11", "vllm 0.12"))
    before, since = (OperatorTables(profile, 8, "fp8", config) for config in configs)
    shared = [layer for layer in linear_layers(model, 8) if layer.group == "shared_experts"]
    apart, beside = (sum(t.linear(layer, rows) for layer in shared).sum(axis=1) for t in (before, since))
    assert (beside[:2] < 0.2 * apart[:2]).all()
    assert beside[2:].tolist() == apart[2:].tolist()
    read_s = sum(layer.work(rows[:1], "fp8").bytes * layer.count for layer in shared) / 4.8e12
    assert beside[0] == pytest.approx(read_s[0], rel=1e-6)


def test_a_kernel_of_this_very_shape_goes_before_the_engine_s_own_of_other_shapes() -> None:
    """SGLang's Triton experts of Qwen3-235B's shape on 8 ranks were timed under vLLM alone."""
    profile, qwen = load_profile(None, load_hardware("b200")), load_model("Qwen3-235B-A22B")
    tables = OperatorTables(profile, 8, "bf16", EngineConfig(is_moe=True, version="sglang 0.5.6"))
    table = tables.routed(qwen, np.array([64]))
    assert table[0].argmax() == Origin.MEASURED
    assert table.sum() / qwen.num_moe_layers == pytest.approx(172.7e-6, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "version", "device", "is_compiled"),
    [
        ("GLM-4.5-Air", "sglang 0.5.7", "b200", True),  # 128 experts in one group
        ("GLM-4.5-Air", "sglang 0.5.12", "h200", True),  # its shared expert among them
        ("GLM-4.5-Air", "sglang 0.5.13", "h200", False),
        ("GLM-4.6", "sglang 0.5.13", "b200", True),  # 160 are no power of two
        ("GLM-5", "sglang 0.5.7", "b200", True),
        ("GLM-5", "sglang 0.5.8", "b200", False),
        ("DeepSeek-V3", "sglang 0.5.6", "b200", False),  # 256 in eight groups
        ("Kimi-K2", "sglang 0.5.6", "b200", False),  # 384 have a kernel of their own
        ("Qwen3-30B-A3B", "sglang 0.5.6", "b200", False),  # chosen by softmax
        ("MiniMax-M2.5", "sglang 0.5.6", "b200", False),  # without groups
        ("GLM-4.5-Air", "sglang 0.5.7", "mi300x", False),
        ("GLM-4.5-Air", "vllm 0.12", "b200", False),
    ],
)
def test_experts_without_a_kernel_that_chooses_them_take_longer(
    name: str, version: str, device: str, is_compiled: bool
) -> None:
    model, generation = load_model(name), generation_of(version, is_plain=False)
    assert (generation.expert_choice_s(version, model, load_hardware(device).vendor) > 0.0) == is_compiled


def test_choosing_experts_is_part_of_every_layer_that_has_them() -> None:
    model, rows = load_model("GLM-4.5-Air"), np.array([0, 1, 64])
    profile = load_profile(None, load_hardware("h200"))
    older, newer = (
        OperatorTables(profile, 4, "bf16", EngineConfig(version=version, is_moe=True, tensor_parallel_size=4))
        for version in ("sglang 0.5.12", "sglang 0.5.13")
    )
    more_s = (older.model_pass(model, rows) - newer.model_pass(model, rows)).sum(axis=1)
    assert more_s == pytest.approx([0.0, 45 * 45e-6, 45 * 45e-6])
