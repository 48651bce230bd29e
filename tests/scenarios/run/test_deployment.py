"""From the engine section to what a replica gets: vLLM's defaults, and combinations that it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from paths import ROOT

from draftcast import load_scenario
from draftcast.calibration.profile.hardware import load_hardware
from draftcast.errors import CapacityError, InputError, ScenarioError
from draftcast.kernels.model import drafters, spec
from draftcast.scenarios.run.deployment import Deployment, deploy, with_excess
from draftcast.scenarios.schema import Scenario
from draftcast.sim.cost.step_time import decode_step_seconds

FOUR = "acceptance.rates=[0.8, 0.6, 0.5, 0.4]"
BLOCKS = "engine.num_gpu_blocks=10000"
DRAFT = "engine.speculative_config={method: draft_model, model: llama-3.2-1b, num_speculative_tokens: 4}"


def deployed(*overrides: str) -> Deployment:
    return deploy(load_scenario("default", overrides=overrides))


def refused(*overrides: str) -> InputError:
    with pytest.raises(InputError) as caught:
        deployed(*overrides)
    assert "\n" not in str(caught.value)
    return caught.value


SGLANG, OFF = "engine.version=sglang 0.5.9", "engine.speculative_config=null"
V4 = "engine.model=DeepSeek-V4-Flash"
MTP = (
    "engine.model=GLM-4.7-Flash",
    "engine.speculative_config={method: mtp, num_speculative_tokens: 1}",
    "acceptance={model: per_position, rates: [0.8]}",
)


@pytest.mark.parametrize(
    ("overrides", "limits"),
    [
        # vLLM 0.32: 1,024 sequences and 8,192 tokens from 70 GiB of memory on, 256 and 2,048 below and on A100.
        ((), (1024, 8192)),
        (("hardware=a100-80g",), (256, 2048)),
        (("hardware=b200",), (1024, 16384)),
        (("engine.max_num_seqs=16",), (16, 8192)),
        # A default holds no more than all sequences together may ask for ...
        (("engine.max_num_seqs=2", "engine.max_model_len=1024"), (2, 2048)),
        # ... and without chunked prefill no less than the longest request.
        (("hardware=a100-80g", "engine.enable_chunked_prefill=false"), (256, 8192)),
        # A default number of sequences never exceeds the tokens that are given.
        (("engine.max_num_batched_tokens=512",), (512, 512)),
    ],
)
def test_batch_limits_default_as_in_vllm(overrides: tuple[str, ...], limits: tuple[int, int]) -> None:
    settings = deployed(*overrides).settings
    assert (settings.max_num_seqs, settings.max_num_batched_tokens) == limits


def test_graphs_that_are_not_captured_take_no_memory() -> None:
    eager, none, captured = (
        deployed(mode).memory for mode in ("engine.enforce_eager=true", "engine.cudagraph_mode=NONE", BLOCKS)
    )
    assert none == eager
    assert none.cuda_graph_bytes == 0.0 < captured.cuda_graph_bytes


def test_windows_are_given_back_whatever_the_number_of_sequences() -> None:
    """Of Gemma-3-27B ten layers see everything; those with a window come in six more groups of ten (vLLM 0.32)."""
    few, many = (
        deployed("engine.model=Gemma-3-27B", OFF, "hardware=h200", f"engine.max_num_seqs={most}") for most in (64, 1024)
    )
    for deployment in (few, many):
        assert (deployment.settings.window_groups, deployment.settings.enable_prefix_caching) == (6, False)
        assert deployment.memory.window_kv_bytes == 0.0
    # More sequences only take more memory for graphs and sampling.
    assert 0.95 < many.memory.num_gpu_blocks / few.memory.num_gpu_blocks < 1.0
    # Where prompts begin alike, blocks of their windows are kept.
    shared = deployed("engine.model=Gemma-3-27B", OFF, "hardware=h200", "workload.system_prompt={tokens: 100}")
    staged = deployed("engine.model=Gemma-3-27B", OFF, "hardware=h200", "engine.pipeline_parallel_size=2")
    for other in (shared, staged):
        assert (other.settings.window_groups, other.settings.enable_prefix_caching) == (0, True)


@pytest.mark.parametrize("version", ["vllm 0.20", "vllm 0.32"])
def test_a_step_gets_longer_by_the_seconds_of_a_correction(version: str) -> None:
    """Also where the engine's version has slower attention kernels than those that were timed."""
    cost = deployed(
        "engine.model=DeepSeek-V3.2", "engine.tensor_parallel_size=8", f"engine.version={version}", OFF, "hardware=b200"
    ).cost
    assert (cost.params[0]["decode_excess"] > 1.0) == (version == "vllm 0.20")
    for factor in (1.0, 1.5):
        plain, longer = (
            decode_step_seconds(with_excess(cost, factor - 1.0, seconds=seconds), 16, 0, 1000.0)
            for seconds in (0.0, 2e-3)
        )
        assert longer - plain == pytest.approx(2e-3, rel=1e-6)


@pytest.mark.parametrize(
    ("overrides", "limits"),
    [
        # 16,384 from 160 GiB on since vLLM 0.28; V0 knew one limit for all.
        (("hardware=b200", "engine.version=vllm 0.27"), (1024, 8192)),
        (("hardware=b200", "engine.version=vllm 0.7"), (256, 2048)),
        # SGLang: tokens by memory alone, 48 requests with speculation, both divided among ranks that step together.
        (("hardware=a100-80g", SGLANG, OFF), (2048, 8192)),
        (("hardware=l40s", SGLANG, OFF), (2048, 4096)),
        (("hardware=l40s", "engine.version=sglang 0.5.2", OFF), (2048, 8192)),
        (("hardware=rtx-4090", "engine.version=sglang 0.5.19", OFF), (2048, 2048)),
        (("hardware=rtx-4090", "engine.version=sglang 0.5.20", OFF), (2048, 4096)),
        (("hardware=a100-80g", SGLANG), (48, 8192)),
        (("hardware=h200", SGLANG, *MTP), (48, 8192)),
        (("hardware=h200", SGLANG, *MTP, "engine.data_parallel_size=4"), (12, 2048)),
        (("hardware=b200", SGLANG, OFF, V4, "engine.data_parallel_size=4"), (64, 4096)),
    ],
)
def test_batch_limits_follow_engine_and_version(overrides: tuple[str, ...], limits: tuple[int, int]) -> None:
    settings = deployed(*overrides).settings
    assert (settings.max_num_seqs, settings.max_num_batched_tokens) == limits


def test_a_limit_on_requests_leaves_sglang_more_memory() -> None:
    def tokens(version: str, *limit: str) -> int:
        return deployed("hardware=h200", f"engine.version={version}", OFF, *limit).memory.kv_tokens

    limit = "engine.max_num_seqs=48"
    assert tokens("sglang 0.5.21", limit) == tokens("sglang 0.5.21") == tokens("sglang 0.5.22")
    assert tokens("sglang 0.5.22", limit) > tokens("sglang 0.5.22")


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (("engine.max_num_seqs=9000",), ("engine.max_num_seqs = 9000", "max_num_batched_tokens = 8192")),
        (("engine.max_num_scheduled_tokens=9000",), ("engine.max_num_scheduled_tokens = 9000", "8192")),
        (("engine.long_prefill_token_threshold=9000",), ("engine.long_prefill_token_threshold = 9000", "8192")),
        (
            ("engine.enable_chunked_prefill=false", "engine.max_model_len=null", "engine.max_num_batched_tokens=8192"),
            ("engine.max_num_batched_tokens = 8192", "max_model_len = 131072"),
        ),
        (
            (
                "engine.async_scheduling=true",
                "engine.speculative_config={method: ngram, num_speculative_tokens: 2}",
                "acceptance.rates=[0.5, 0.3]",
            ),
            ("engine.async_scheduling", "ngram"),
        ),
        (("engine.enable_expert_parallel=true",), ("engine.enable_expert_parallel", "has no experts")),
        (("engine.expert_parallel_size=1",), ("engine.expert_parallel_size = 1", "needs enable_expert_parallel")),
        (
            ("engine.tensor_parallel_size=8", "engine.enable_expert_parallel=true", "engine.expert_parallel_size=3"),
            ("engine.expert_parallel_size = 3", "must divide the 8 ranks of a layer"),
        ),
        (
            (
                "engine.model=Qwen3-30B-A3B",
                "engine.tensor_parallel_size=8",
                "engine.enable_expert_parallel=true",
                "engine.expert_parallel_size=2",
            ),
            ("engine.expert_parallel_size = 2", "vllm 0.32 spreads experts over all ranks of a layer"),
        ),
        (("engine.pipeline_parallel_size=33",), ("engine.pipeline_parallel_size = 33", "32 layers")),
        (
            ("engine.tensor_parallel_size=8", "engine.decode_context_parallel_size=2"),
            ("engine.decode_context_parallel_size = 2", "above the 8 KV heads"),
        ),
        (
            ("engine.tensor_parallel_size=16", "engine.decode_context_parallel_size=4"),
            ("engine.decode_context_parallel_size = 4", "must not exceed tensor_parallel_size / KV heads = 2"),
        ),
        (
            ("engine.tensor_parallel_size=2", "engine.decode_context_parallel_size=4"),
            ("engine.decode_context_parallel_size = 4", "must divide tensor_parallel_size = 2"),
        ),
        (
            ("engine.version=vllm 0.20", "engine.pipeline_parallel_size=2", "engine.async_scheduling=true"),
            ("engine.async_scheduling", "pipeline parallelism"),
        ),
        (
            ("engine.speculative_config.disable_padded_drafter_batch=true", "engine.async_scheduling=true"),
            ("engine.async_scheduling", "disable_padded_drafter_batch"),
        ),
        (("engine.speculative_config.dspark_draft_topk=4",), ("dspark_draft_topk = 4", "only with method dspark")),
        (
            ("engine.speculative_config.index_share_for_mtp_iteration=true",),
            ("index_share_for_mtp_iteration = True", "only with method mtp"),
        ),
        (
            ("engine.speculative_config.disable_lookahead_block_hashes=true",),
            ("disable_lookahead_block_hashes = True", "only from vLLM 0.33 on"),
        ),
        (
            (
                "engine.speculative_config={method: medusa, num_speculative_tokens: 3}",
                "acceptance={model: constant, alpha: 0.5}",
                "engine.version=vllm 0.33",
            ),
            ("medusa", "vLLM 0.33 no longer has Medusa heads"),
        ),
        (("engine.max_model_len=131073",), ("engine.max_model_len = 131073", "the model's own maximum of 131072")),
        (("engine.long_prefill_token_threshold=3",), ("engine.long_prefill_token_threshold = 3", "at least 1 + the 3")),
        (
            (
                "engine.speculative_config={method: pard, model: llama-3.2-1b, num_speculative_tokens: 8}",
                "acceptance={model: constant, alpha: 0.5}",
                "engine.max_num_batched_tokens=8",
            ),
            ("engine.max_num_batched_tokens = 8", "8 rows"),
        ),
        (
            (
                "engine.speculative_config={method: suffix}",
                "acceptance={model: constant, alpha: 0.5, match_probability: 0.5}",
                "engine.version=vllm 0.32 v2",
            ),
            ("engine.version = 'vllm 0.32 v2'", "does not run method suffix"),
        ),
    ],
)
def test_what_vllm_refuses_is_refused(overrides: tuple[str, ...], parts: tuple[str, ...]) -> None:
    error = refused(*overrides)
    assert isinstance(error, ScenarioError)
    for part in parts:
        assert part in str(error)


def test_a_draft_of_exact_rows_is_scheduled_synchronously() -> None:
    unpadded = "engine.speculative_config.disable_padded_drafter_batch=true"
    assert deployed().settings.async_scheduling
    assert not deployed(unpadded).settings.async_scheduling
    # vLLM 0.33: only under the first runner.
    assert not deployed(unpadded, "engine.version=vllm 0.33 v1").settings.async_scheduling
    assert deployed(unpadded, "engine.version=vllm 0.33").settings.async_scheduling
    assert deployed(unpadded, "engine.version=vllm 0.33", "engine.async_scheduling=true").settings.async_scheduling


NEXT = "engine.version=vllm 0.33"


def test_a_cpu_has_no_triton_and_runs_the_first_runner() -> None:
    """vLLM 0.32.0, config/vllm.py: use_v2_model_runner asks for Triton."""
    on_cpu = deployed("hardware=cpu", "engine.model=testbed-250M", "engine.dtype=float32", OFF).settings
    assert (on_cpu.version, on_cpu.generation.runner) == ("vllm 0.32 v1", "v1")
    assert deployed().settings.generation.runner == "v2"
    why = "engine.version = 'vllm 0.32 v2': vLLM's second model runner runs neither on CPUs nor with"
    on_cpu = ("hardware=cpu", "engine.model=testbed-250M", "engine.dtype=float32", OFF)
    for overrides in (on_cpu, (DRAFT.replace("}", ", use_heterogeneous_vocab: true}"), FOUR)):
        assert str(refused(*overrides, "engine.version=vllm 0.32 v2")).startswith(why)


def test_the_draft_model_s_own_maximum_bounds_the_length() -> None:
    """vLLM 0.33.0, config/vllm.py: _limit_max_model_len_to_draft, of the second runner."""
    short = (DRAFT.replace("}", ", max_model_len: 4096}"), FOUR)
    for version, length in ((NEXT, 4096), (f"{NEXT} v1", 131_072), ("engine.version=vllm 0.32", 131_072)):
        found = deployed(*short, version, "engine.max_model_len=131072")
        assert found.settings.max_model_len == length
        lowered = "vllm 0.33 lowers max_model_len to 4096 tokens, the draft model's own maximum"
        without = "engine.speculative_config.max_model_len has no effect on simulated time with "
        assert (lowered in found.assumed) == (length == 4096)
        assert any(note.startswith(without) for note in found.assumed) == (length != 4096)


def test_rows_of_a_block_of_drafts_bound_the_requests() -> None:
    """vLLM 0.33.0, config/vllm.py: the draft pass has k + 1 rows of max_num_batched_tokens for each request."""
    dflash = "engine.speculative_config={method: dflash, num_speculative_tokens: 15}"
    rates = f"acceptance.rates={[0.7] * 15}"
    found = deployed(dflash, rates, NEXT, "engine.model=Qwen3-8B")
    assert found.settings.max_num_seqs == 8192 // 16
    assert any("runs at most 512 requests at once: its draft pass needs 16 of" in note for note in found.assumed)
    assert deployed(dflash, rates, "engine.model=Qwen3-8B").settings.max_num_seqs == 1024
    error = refused(dflash, rates, NEXT, "engine.model=Qwen3-8B", "engine.max_num_batched_tokens=16")
    assert "must exceed the 16 rows" in str(error)


def test_a_schedule_that_the_first_runner_ignores_is_named() -> None:
    """vLLM 0.33.0, config/vllm.py: _maybe_disable_dynamic_sd_for_v1."""
    schedule = "num_speculative_tokens: 4, num_speculative_tokens_per_batch_size: [[1, 8, 4], [9, 64, 1]]"
    suffix = f"engine.speculative_config={{method: suffix, {schedule}}}"
    given = (suffix, "acceptance={model: constant, alpha: 0.5, match_probability: 0.5}")
    assert deployed(*given).policy.name == "batch_schedule"
    found = deployed(*given, NEXT)
    assert found.policy.name == "fixed"
    assert any("vLLM ignores num_speculative_tokens_per_batch_size" in note for note in found.assumed)
    # A draft model of the second runner makes all its drafts, whatever vLLM's own schedule asks for.
    draft = DRAFT.replace("num_speculative_tokens: 4", schedule)
    whole = deployed(draft, FOUR)
    assert whole.settings.drafts_in_full
    assert any("vllm 0.32 makes all 4 drafts of a draft model in each step" in note for note in whole.assumed)
    assert not deployed(draft, FOUR, "engine.version=vllm 0.32 v1").settings.drafts_in_full
    assert not deployed(DRAFT, FOUR, "policy={name: goodput}").settings.drafts_in_full


@pytest.mark.parametrize(("k", "runs"), [(1, True), (2, True), (3, False), (4, True)])
def test_mtp_layers_are_run_in_whole_rounds(tmp_path: Path, k: int, runs: bool) -> None:
    """vLLM 0.32 refuses k above the checkpoint's MTP layers that is no multiple of them."""
    bundled = Path(spec.__file__).parents[1] / "models" / "MiMo-7B.json"
    config = {**json.loads(bundled.read_text()), "num_nextn_predict_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    asked = (
        f"engine.model={tmp_path}",
        f"engine.speculative_config={{method: mtp, num_speculative_tokens: {k}}}",
        "acceptance={model: constant, alpha: 0.5}",
    )
    if runs:
        assert deployed(*asked).settings.num_speculative_tokens == k
    else:
        assert "num_speculative_tokens = 3: must be a multiple of the model's 2 MTP layers" in str(refused(*asked))


def test_a_draft_on_gpus_of_its_own_is_counted_and_fits_there() -> None:
    def own(*more: str, method: str = "draft_ahead") -> Scenario:
        drafts = f"{{method: {method}, model: llama-3.2-1b, num_speculative_tokens: 4}}"
        return load_scenario("default", overrides=[f"engine.speculative_config={drafts}", FOUR, *more])

    assert own().engine.num_gpus == 2
    assert own("engine.tensor_parallel_size=4").engine.num_gpus == 5
    two = own("engine.speculative_config.draft_tensor_parallel_size=2", "engine.data_parallel_size=2")
    assert two.engine.num_gpus == 6
    beside, apart, none = deploy(own(method="draft_model")), deploy(own()), deployed("engine.speculative_config=null")
    assert beside.memory.num_gpu_blocks < apart.memory.num_gpu_blocks <= none.memory.num_gpu_blocks
    assert apart.memory.draft_weight_bytes == 0.0
    # A draft of the target's size has as much KV memory on one GPU as the target has there, and that is what counts.
    large = ("engine.tensor_parallel_size=2", "engine.speculative_config.model=llama-3.1-8b")
    assert deploy(own(*large)).memory.num_gpu_blocks == none.memory.num_gpu_blocks
    assert deploy(own(large[0])).memory.num_gpu_blocks > none.memory.num_gpu_blocks
    huge = ("engine.model=llama-3.1-405b", "engine.tensor_parallel_size=16", "engine.max_model_len=4096")
    with pytest.raises(CapacityError):
        deploy(own(*huge, "engine.speculative_config.model=llama-3.1-70b"))


def test_a_threshold_below_a_round_is_for_engines_that_do_not_pad() -> None:
    assert deployed("engine.long_prefill_token_threshold=4").settings.long_prefill_token_threshold == 4
    for unpadded in ("policy={name: goodput}", "engine.speculative_config=null"):
        assert deployed("engine.long_prefill_token_threshold=3", unpadded).settings.long_prefill_token_threshold == 3


AFFINE = "profile=h100-llama-3.1-8b-affine"


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        # The key of the scenario, whatever a floor below calls it.
        (("engine.model=nobody",), ("engine.model = 'nobody'", "unknown model")),
        ((DRAFT.replace("llama-3.2-1b", "nobody"), FOUR), ("engine.speculative_config.model = 'nobody'",)),
        (("hardware=nothing",), ("hardware = 'nothing'", "unknown device")),
        (("profile=nothing",), ("profile = 'nothing'", "must be one of")),
        (("engine.speculative_config.method=mtp", FOUR), ("engine.model = 'Llama-3.1-8B'", "multi-token")),
        (("engine.tensor_parallel_size=5",), ("engine.tensor_parallel_size = 5",)),
        (("policy={name: goodput, parameters: {weight: 2}}",), ("policy.parameters.weight = 2", "at most 1")),
        (("policy={name: goodput, parameters: {speed: 2}}",), ("policy = 'goodput'", "weight")),
        (("policy={name: ema_tiers, parameters: {tiers: [{batch_size: x, steps: [1]}]}}",), ("policy.parameters",)),
        (
            ("policy={name: ema_tiers, parameters: {tiers: [{batch_size: 1, steps: [x]}]}}",),
            ("policy.parameters.tiers.steps = ['x']", "draft lengths"),
        ),
        # A policy is checked though nothing drafts.
        (
            ("engine.speculative_config=null", "policy={name: goodput, parameters: {weight: 2}}"),
            ("policy.parameters.weight = 2",),
        ),
        (("engine.speculative_config=null", "policy={name: 'no.such:Policy'}"), ("policy.name = 'no.such:Policy'",)),
        # A whole-step fit knows one format, of the draft too.
        ((AFFINE, "engine.quantization=fp8"), ("engine.dtype = 'fp8'", "fitted with 'bf16' only")),
        (
            (AFFINE, "engine.speculative_config.quantization=fp8"),
            ("engine.speculative_config.quantization = 'fp8'", "fitted with 'bf16' only"),
        ),
        ((AFFINE, "engine.max_num_seqs=8", "engine.enforce_eager=true"), ("engine.enforce_eager = True",)),
        # Formats that change nothing, or that the device has no units for.
        (("engine.quantization=mxfp4",), ("engine.quantization = 'mxfp4'", "stores experts alone, and Llama-3.1-8B")),
        (("engine.quantization=int8", "hardware=cpu"), ("engine.quantization = 'int8'", "no int8 matrix units")),
        (("engine.kv_cache_dtype=nvfp4", "hardware=h200"), ("engine.kv_cache_dtype = 'nvfp4'", "no fp4 matrix units")),
        # Tables have an entry a row.
        (("engine.max_num_batched_tokens=500000000", BLOCKS), ("engine.max_num_batched_tokens = 500000000", "4194304")),
        (("engine.block_size=1", "engine.model=opt-125m", "hardware=BIG"), ("engine.block_size = 1", "33554432")),
    ],
)
def test_an_error_names_the_scenario_s_key(overrides: tuple[str, ...], parts: tuple[str, ...], tmp_path: Path) -> None:
    text = load_hardware("b200")
    big = tmp_path / "big.yaml"
    big.write_text(f"""
name: big
vendor: nobody
memory_bytes: 1e16
memory_bandwidth_bytes_per_s: {text.memory_bandwidth_bytes_per_s}
peak_flops: {{bf16: 1e15}}
link_bandwidth_bytes_per_s: 1e12
link_latency_s: 1e-6
board_power_w: 0
sources: [a test]
""")
    off = ("engine.speculative_config=null", "engine.max_model_len=null") if "hardware=BIG" in overrides else ()
    error = refused(*off, *(text.replace("BIG", str(big)) for text in overrides))
    for part in parts:
        assert part in str(error), str(error)


MOE = ("engine.model=qwen3-30b-a3b", "hardware=h200", "profile=null", "engine.data_parallel_size=2")
DRAFTS = "engine.speculative_config={method: ngram, num_speculative_tokens: 3"


def test_data_parallel_ranks_draft_equally_many_tokens() -> None:
    schedule = DRAFTS + ", num_speculative_tokens_per_batch_size: [[1, 8, 3], [9, 64, 1]]}"
    rates = "acceptance={model: constant, alpha: 0.5}"
    ignored = deployed(*MOE, schedule, rates)
    assert ignored.policy.name == "fixed"
    assert any("vLLM ignores num_speculative_tokens_per_batch_size" in text for text in ignored.assumed)
    error = refused(*MOE, DRAFTS + "}", rates, "policy={name: goodput}")
    assert "policy.name = 'goodput'" in str(error)
    assert "equally many tokens" in str(error)
    assert deployed(
        *MOE[1:], DRAFTS + "}", rates, "policy={name: goodput}", "engine.model=llama-3.1-8b"
    ).policy.is_dynamic


def test_what_does_not_fit_is_refused() -> None:
    weights = refused("hardware=a10g", "engine.model=llama-3.1-70b", "engine.speculative_config=null")
    assert isinstance(weights, CapacityError)
    context = refused("hardware=a10g", "engine.max_model_len=131072")
    assert isinstance(context, CapacityError)
    assert "max_model_len" in str(context)


def test_method_facts_reach_the_scheduler() -> None:
    four = ("acceptance.rates=[0.8, 0.6, 0.5, 0.4]",)
    draft = deployed(DRAFT, *four).settings
    assert (draft.slots, draft.lookahead, draft.num_speculative_tokens) == (1, 4, 4)
    assert draft.async_scheduling
    assert draft.pads_single_tokens
    assert not draft.drops_last_hit
    assert not deployed(DRAFT, *four, "policy={name: goodput}").settings.pads_single_tokens
    eagle = deployed().settings
    assert (eagle.slots, eagle.lookahead, eagle.drops_last_hit) == (0, 3, True)
    assert not deployed("engine.speculative_config.disable_eagle_block_drop=true").settings.drops_last_hit
    ngram = deployed("engine.speculative_config={method: ngram, num_speculative_tokens: 3}", *four).settings
    assert (ngram.lookahead, ngram.async_scheduling, ngram.method.proposes_on_host) == (0, False, True)
    off = deployed("engine.speculative_config=null").settings
    assert (off.slots, off.lookahead, off.num_speculative_tokens, off.async_scheduling) == (0, 0, 0, True)


def test_a_tree_verifies_its_nodes() -> None:
    tree = "engine.speculative_config={method: eagle_tree, num_speculative_tokens: 3, tree_width: 4, max_tree_nodes: 9}"
    settings = deployed(tree, "acceptance={model: tree, alpha: 0.5}", "engine.version=sglang 0.5").settings
    assert (settings.max_drafts, settings.tree_depth, settings.lookahead) == (9, 3, 3)


def test_memory_is_shared_between_target_draft_and_cache() -> None:
    off = deployed("engine.speculative_config=null")
    draft = deployed(DRAFT, "acceptance.rates=[0.8, 0.6, 0.5, 0.4]")
    assert draft.draft is not None
    assert draft.memory.num_gpu_blocks < off.memory.num_gpu_blocks
    assert deployed("engine.num_gpu_blocks=600").settings.num_gpu_blocks == 600
    halved = deployed("engine.kv_cache_dtype=fp8", "engine.speculative_config=null")
    assert halved.memory.num_gpu_blocks == pytest.approx(2 * off.memory.num_gpu_blocks, rel=1e-3)


QWEN = ("engine.model=Qwen3-8B", "engine.max_model_len=8192", "acceptance.rates=[0.7, 0.4, 0.2]")


def with_head(name: str, method: str = "eagle3") -> Deployment:
    return deployed(
        *QWEN, f"engine.speculative_config={{method: {method}, model: '{name}', num_speculative_tokens: 3}}"
    )


def test_the_default_scenarios_head_is_known() -> None:
    found = deployed()
    assert found.assumed == ()
    assert found.draft is not None
    assert found.draft.vocab_size == 32000


def test_the_draft_vocabulary_changes_time_and_memory() -> None:
    small, whole = with_head("qwen3-8b-eagle3"), with_head("qwen3-8b-eagle3-full-vocabulary")
    assert small.draft is not None
    assert whole.draft is not None
    extra_bytes = 2.0 * 4096 * (151936 - 32000)
    assert whole.memory.draft_weight_bytes - small.memory.draft_weight_bytes == extra_bytes
    assert whole.memory.num_gpu_blocks < small.memory.num_gpu_blocks
    rows = 8
    slower = float((whole.cost.draft_logits[rows] - small.cost.draft_logits[rows]).sum())
    # The lm_head is read once a pass: no faster than the device's memory, and not three times slower.
    assert 1.0 < slower / (extra_bytes / small.hardware.memory_bandwidth_bytes_per_s) < 3.0


@pytest.mark.parametrize(("old", "new"), [("vllm 0.27", "vllm 0.28"), ("sglang 0.5.18", "sglang 0.5.19")])
def test_a_dflash2_head_costs_more_than_dflash_where_it_runs(old: str, new: str, tmp_path: Path) -> None:
    config = json.loads(Path(drafters.__file__).with_name("heads.json").read_text("utf-8"))["heads"]
    config = config["qwen3-8b-dflash"]["config"] | {"architectures": ["DFlash2DraftModel"]}
    config["dflash_config"] |= drafters.DFLASH2_SIZES
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    version = f"engine.version={new}"
    drafts = "engine.speculative_config={method: dflash, num_speculative_tokens: 3, model: "
    first, second = (deployed(*QWEN, version, f"{drafts}{name}}}") for name in ("qwen3-8b-dflash", tmp_path))
    rows = 8 * 4
    assert second.cost.draft_next[rows].sum() > 1.02 * first.cost.draft_next[rows].sum()
    # Two codebooks of 256 numbers a token, and two projections a layer.
    more = second.memory.draft_weight_bytes - first.memory.draft_weight_bytes
    assert more == pytest.approx(2 * (2 * 256 * 151936 + 5 * 2 * 4 * 4096 * 256), rel=0.02)
    error = str(refused(*QWEN, f"engine.version={old}", f"{drafts}{tmp_path}}}"))
    assert f"{old} cannot run it: DFlash2 heads came with" in error


@pytest.mark.parametrize(
    ("device", "kernels"),
    [
        ("a10g", "those of l40s, stretched by"),
        ("gb200", "those of b200, stretched by"),
        ("mi350x", "those of mi355x, stretched by"),
    ],
)
def test_a_device_that_nobody_timed_is_said(device: str, kernels: str) -> None:
    off = ("engine.speculative_config=null", "engine.max_model_len=4096")
    assert deployed(f"hardware={device}", *off).assumed == (
        f"no kernel was timed on {device}: {kernels} the rates of its data sheet",
    )
    assert deployed("hardware=b300", *off).assumed == ()
    assert deployed("hardware=a10g", "profile=l40s", *off).assumed == deployed("hardware=a10g", *off).assumed


def test_a_device_whose_attention_nobody_timed_is_said() -> None:
    (said,) = deployed("hardware=mi300x", "engine.speculative_config=null", "engine.max_model_len=4096").assumed
    assert said.startswith("matrices and experts alone were timed on mi300x: of other kernels assumed efficiencies at")


def test_an_unknown_head_is_said_to_be_assumed() -> None:
    (said,) = with_head("somebody/a-head").assumed
    assert said.startswith("draft head somebody/a-head is not known: assumed the shape of qwen3-8b-eagle3")


@pytest.mark.parametrize(
    ("model", "draft", "parts"),
    [
        ("llama-3.1-8b", "Qwen3-0.6B", ("'Qwen3-0.6B'", "151936 tokens", "128256", "use_heterogeneous_vocab true")),
        ("llama-3.2-1b", "llama-3.2-3b", ("'llama-3.2-3b'", "3.21 B parameters", "1.24 B", "no larger than")),
        ("llama-3.1-8b", "llama3-8B-eagle3", ("'llama3-8B-eagle3'", "is a draft head: give its method")),
    ],
)
def test_a_draft_that_does_not_go_with_its_target_is_refused(model: str, draft: str, parts: tuple[str, ...]) -> None:
    config = f"engine.speculative_config={{method: draft_model, model: {draft}, num_speculative_tokens: 3}}"
    error = str(refused(f"engine.model={model}", config, FOUR))
    assert all(part in error for part in ("engine.speculative_config.model", *parts))


def test_a_checkpoint_is_served_in_its_own_formats(tmp_path: Path) -> None:
    config = json.loads((Path(spec.__file__).parents[1] / "models" / "Qwen3-8B.json").read_text(encoding="utf-8"))
    said = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "ignore": ["*self_attn*"]}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**config, "quantization_config": said}), encoding="utf-8")
    alone = "engine.speculative_config=null"
    own = deployed(f"engine.model={path}", alone)
    assert (own.settings.weight_dtype, own.settings.kv_dtype) == ("fp8", "fp8")
    mlp = 36 * 3 * 4096 * 12288
    assert own.memory.weight_bytes == 2 * own.model.num_parameters - mlp
    asked = deployed(f"engine.model={path}", alone, "engine.quantization=int4", "engine.kv_cache_dtype=bfloat16")
    assert (asked.settings.weight_dtype, asked.settings.kv_dtype) == ("int4", "bf16")
    draft = f"engine.speculative_config={{method: draft_model, model: '{path}', num_speculative_tokens: 4}}"
    served = deployed("engine.model=qwen3-32b", draft, FOUR, "engine.tensor_parallel_size=2").settings
    assert (served.weight_dtype, served.draft_weight_dtype) == ("bf16", "fp8")


@pytest.mark.parametrize(
    ("model", "asked", "dtype"),
    [
        ("deepseek-ai/DeepSeek-V3", "", "fp8"),
        ("nvidia/DeepSeek-V3.2-NVFP4", "", "bf16"),
        ("DeepSeek-V3-BF16", "", "bf16"),
        ("deepseek-ai/DeepSeek-V3", ", quantization: int4", "int4"),
        ("deepseek-ai/DeepSeek-V4-Flash", "", "mxfp4"),
    ],
)
def test_an_mtp_layer_is_in_fp8_where_its_target_is(model: str, asked: str, dtype: str) -> None:
    config = f"engine.speculative_config={{method: mtp, num_speculative_tokens: 1{asked}}}"
    acceptance = "acceptance={model: per_position, rates: [0.8]}"
    served = deployed(f"engine.model={model}", config, acceptance, "engine.tensor_parallel_size=8", "hardware=b300")
    assert served.settings.draft_weight_dtype == dtype


def test_sglangs_pool_of_states_limits_the_batch() -> None:
    hybrid = ("engine.model=Qwen3.6-27B", "hardware=b200", "engine.speculative_config=null")
    served = deployed(*hybrid, "engine.version=sglang 0.5.15")
    assert served.settings.max_num_seqs == served.memory.most_requests
    assert served.settings.max_num_seqs < deployed(*hybrid).settings.max_num_seqs
    assert deployed(*hybrid, "engine.version=sglang 0.5.15", "engine.max_num_seqs=8").settings.max_num_seqs == 8


def test_a_step_too_large_for_sglangs_memory_rule_names_no_other_gpus() -> None:
    message = refused("engine.version=sglang 0.5.6", "engine.max_num_batched_tokens=60000", OFF).message
    assert message.endswith("lower it or give gpu_memory_utilization")


def test_another_vocabulary_is_allowed_when_asked_for() -> None:
    config = "{method: draft_model, model: Qwen3-0.6B, num_speculative_tokens: 3, use_heterogeneous_vocab: true}"
    found = deployed(f"engine.speculative_config={config}", FOUR)
    assert found.draft is not None
    # vLLM 0.32.0, config/vllm.py: the second runner lacks it.
    assert found.settings.generation.runner == "v1"
    same = config.replace("Qwen3-0.6B", "llama-3.2-1b").replace(", use_heterogeneous_vocab: true", "")
    assert deployed(f"engine.speculative_config={same}", FOUR).settings.generation.runner == "v2"


def test_the_drafts_length_is_within_the_targets() -> None:
    config = "{method: draft_model, model: llama-3.2-1b, num_speculative_tokens: 3, max_model_len: 9000}"
    error = str(refused(f"engine.speculative_config={config}", FOUR))
    assert error.startswith("engine.speculative_config.max_model_len = 9000: must not exceed 8192")


@pytest.mark.parametrize("model", ["Qwen3.6-27B-FP8", "DeepSeek-V4-Flash"])
def test_a_model_that_holds_more_than_its_context_caches_no_prefixes(model: str) -> None:
    """A request's states, or its last tokens beside compressed entries, are counted blocks without a place."""
    found = deployed(
        f"engine.model={model}",
        "hardware=h200",
        "engine.tensor_parallel_size=4",
        "engine.speculative_config={method: mtp, num_speculative_tokens: 1}",
        "acceptance={model: per_position, rates: [0.8]}",
    )
    assert found.settings.fixed_blocks > 0
    assert not found.settings.enable_prefix_caching
    assert any("every prompt is computed whole" in text for text in found.assumed)
    plain = deployed("engine.speculative_config=null").settings
    assert (plain.fixed_blocks, plain.enable_prefix_caching) == (0, True)


@pytest.mark.parametrize(("device", "ranks", "said"), [("h200", 8, False), ("h200", 16, True), ("gb200", 16, False)])
def test_ranks_beyond_the_link_are_said_to_be_forecast_too_fast(device: str, ranks: int, said: bool) -> None:
    spread = ("engine.model=deepseek-v3", f"engine.data_parallel_size={ranks}", "engine.enable_expert_parallel=true")
    assumed = deployed(f"hardware={device}", *spread, "engine.speculative_config=null").assumed
    assert any(f"Exchanges between {ranks} GPUs are priced at the link of 8" in text for text in assumed) == said


LATENTS = (OFF, "engine.tensor_parallel_size=8", "engine.max_model_len=16384")


@pytest.mark.parametrize(
    ("model", "device", "version", "asked", "dtype", "layer_bytes"),
    [
        # 78 layers of 576 numbers (656 bytes packed: 512, 4 fp32 scales and a rotary key of 64 in 16 bits).
        ("GLM-5-FP8", "b300", "vllm 0.32", "auto", "fp8", 576),
        ("GLM-5-FP8", "b300", "vllm 0.31", "auto", "bf16", 1152),
        ("GLM-5-FP8", "b300", "vllm 0.32", "bfloat16", "bf16", 1152),
        ("GLM-5-FP8", "h200", "vllm 0.32", "auto", "bf16", 1152),
        ("GLM-5-FP8", "mi355x", "vllm 0.32", "auto", "bf16", 1152),
        ("DeepSeek-V3.2", "b300", "vllm 0.32", "auto", "bf16", 1152),
        ("DeepSeek-V3.2", "b300", "vllm 0.32", "fp8", "fp8", 576),
        ("DeepSeek-V3.2", "h200", "vllm 0.32", "fp8", "fp8", 656),
        ("DeepSeek-V3.2", "b200", "vllm 0.17", "fp8", "fp8", 656),
        ("DeepSeek-V3.2", "h200", "vllm 0.11", "auto", "fp8", 656),
        ("DeepSeek-V3.2", "h200", "vllm 0.11.1", "auto", "bf16", 1152),
        ("DeepSeek-V3.2", "mi355x", "vllm 0.32", "fp8", "fp8", 576),
        ("nvidia/DeepSeek-V3.2-NVFP4", "rtx-pro-6000", "vllm 0.32", "auto", "fp8", 656),
        ("DeepSeek-V3.2", "b200", "sglang 0.5.6", "auto", "fp8", 656),
        ("DeepSeek-V3.2", "b200", "sglang 0.5.10", "auto", "fp8", 576),
        ("DeepSeek-V3.2", "h200", "sglang 0.5.10", "auto", "bf16", 1152),
        ("DeepSeek-V3.2", "h200", "sglang 0.5.10", "fp8", "fp8", 656),
        ("DeepSeek-V3.2", "mi355x", "sglang 0.5.14", "auto", "bf16", 1152),
        ("nvidia/DeepSeek-V3.2-NVFP4", "rtx-pro-6000", "vllm 0.32", "fp8", "fp8", 656),
        ("nvidia/DeepSeek-V3.2-NVFP4", "rtx-pro-6000", "sglang 0.5.10", "bfloat16", "bf16", 1152),
    ],
)
def test_sparse_latents_take_the_bytes_of_their_engines_format(
    model: str, device: str, version: str, asked: str, dtype: str, layer_bytes: int
) -> None:
    found = deployed(f"engine.model={model}", f"hardware={device}", f"engine.version={version}",
                     f"engine.kv_cache_dtype={asked}", *LATENTS)  # fmt: skip
    assert found.settings.kv_dtype == dtype
    per_token = found.model.num_hidden_layers * (layer_bytes + 132)  # beside an index key in fp8 with its scale
    assert found.memory.kv_bytes_per_token == per_token
    assert found.settings.num_gpu_blocks == found.memory.kv_cache_bytes // (16 * per_token)
    assert any("auto is fp8" in text for text in found.assumed) == (dtype == "fp8" and asked == "auto")
    assert any("take 656 bytes" in text for text in found.assumed) == (layer_bytes == 656)


def test_latents_in_16_bits_are_refused_where_vllm_has_none() -> None:
    wide = ("engine.model=nvidia/DeepSeek-V3.2-NVFP4", "hardware=rtx-pro-6000", "engine.kv_cache_dtype=bfloat16")
    error = str(refused(*wide, "engine.version=vllm 0.24", *LATENTS))
    assert error.startswith(
        "engine.kv_cache_dtype = 'bfloat16': must be auto or fp8: vllm 0.24 has no other latents of"
    )


def test_an_mtp_layer_keeps_its_latents_as_its_target_does() -> None:
    drafts = "engine.speculative_config={method: mtp, num_speculative_tokens: 1}"
    setting = ("engine.model=GLM-5-FP8", "hardware=b300", "acceptance={model: per_position, rates: [0.8]}")
    found = deployed(*setting, *LATENTS, drafts)
    assert (found.settings.draft_kv_dtype, found.memory.draft_kv_bytes_per_token) == ("fp8", 576 + 132)
    wide = "engine.speculative_config.kv_cache_dtype=bfloat16"
    assert deployed(*setting, *LATENTS, drafts, wide).memory.draft_kv_bytes_per_token == 2 * 576 + 132


@pytest.mark.parametrize("version", ["vllm 0.32", "sglang 0.5.14"])
def test_deepseek_v4s_entries_are_packed_everywhere(version: str) -> None:
    """By hand: 448 numbers in 8 bits, 7 scales and a byte of padding, and a rotary key of 64 in 16 bits: 584 bytes."""
    four = ("engine.tensor_parallel_size=4", f"engine.version={version}", "engine.max_model_len=16384", OFF)
    for device in ("h200", "b200", "mi355x"):
        found = deployed("engine.model=DeepSeek-V4-Flash", f"hardware={device}", *four)
        assert found.memory.kv_bytes_per_token == 22 * 584 / 128 + 21 * (584 + 132) / 4
        assert any("take 584 bytes" in text for text in found.assumed)


MINIMAX = ("engine.model=MiniMax-M2.5", "hardware=h200", "engine.max_model_len=16384", OFF)


@pytest.mark.parametrize(
    ("asked", "starts"),
    [
        # An expert's 1,536 columns over 8 GPUs are 192 each, a block and a half of 128.
        (("engine.version=vllm 0.28", "engine.tensor_parallel_size=8"), False),
        (("engine.version=vllm 0.28", "engine.tensor_parallel_size=8", "engine.enable_expert_parallel=true"), True),
        (("engine.version=vllm 0.28", "engine.tensor_parallel_size=4"), True),
        (("engine.version=vllm 0.28", "engine.tensor_parallel_size=4", "engine.data_parallel_size=2"), False),
        (("engine.version=vllm 0.28", "engine.tensor_parallel_size=8", "engine.quantization=int4"), True),
        (("engine.version=vllm 0.29", "engine.tensor_parallel_size=8"), True),
        (("engine.version=sglang 0.5.14", "engine.tensor_parallel_size=8"), False),
        (("engine.version=sglang 0.5.14", "engine.tensor_parallel_size=8", "hardware=mi300x"), True),
        # 18,432 inputs of a dense layer's down are 576 of each of 32 GPUs, four blocks and a half.
        (("engine.model=DeepSeek-V3", "engine.tensor_parallel_size=32"), False),
        (("engine.model=DeepSeek-V3", "engine.tensor_parallel_size=16"), True),
        # Qwen's and StepFun's own -FP8 and every -FP8-block are in blocks, others' and vLLM's own fp8 are not.
        (("engine.model=Qwen/Qwen3-235B-A22B-FP8", "engine.version=vllm 0.28", "engine.tensor_parallel_size=8"), False),
        (("engine.model=Qwen3-235B-A22B-FP8", "engine.version=vllm 0.28", "engine.tensor_parallel_size=4"), True),
        (("engine.model=Qwen3-235B-A22B-FP8", "engine.tensor_parallel_size=8"), True),
        (("engine.model=Qwen3-30B-A3B-FP8", "engine.version=sglang 0.5.14", "engine.tensor_parallel_size=4"), False),
        (
            (
                "engine.model=Qwen3-30B-A3B",
                "engine.quantization=fp8",
                "engine.version=vllm 0.28",
                "engine.tensor_parallel_size=4",
            ),
            True,
        ),
        (
            (
                "engine.model=RedHatAI/Qwen3-30B-A3B-FP8-dynamic",
                "engine.version=vllm 0.28",
                "engine.tensor_parallel_size=4",
            ),
            True,
        ),
        (
            (
                "engine.model=RedHatAI/Qwen3-30B-A3B-FP8-block",
                "engine.version=vllm 0.28",
                "engine.tensor_parallel_size=4",
            ),
            False,
        ),
        (("engine.model=zai-org/GLM-4.5-Air-FP8", "engine.version=vllm 0.28", "engine.tensor_parallel_size=4"), True),
        # Shared experts of 512 columns, which are whole only where data-parallel ranks share the experts out.
        (
            (
                "engine.model=Qwen3-Next-80B-A3B-Instruct-FP8",
                "engine.tensor_parallel_size=8",
                "engine.enable_expert_parallel=true",
            ),
            False,
        ),
        (
            (
                "engine.model=Qwen3-Next-80B-A3B-Instruct-FP8",
                "engine.tensor_parallel_size=8",
                "engine.data_parallel_size=2",
                "engine.enable_expert_parallel=true",
            ),
            True,
        ),
        (("engine.model=Step-3.5-Flash-FP8", "engine.tensor_parallel_size=4"), False),
        # Four of eight GPUs share an expert: 384 columns each.
        (
            (
                "engine.version=sglang 0.5.14",
                "engine.tensor_parallel_size=8",
                "engine.enable_expert_parallel=true",
                "engine.expert_parallel_size=2",
            ),
            True,
        ),
    ],
)
def test_ranks_that_cut_fp8_blocks_are_refused_where_the_engine_does(asked: tuple[str, ...], starts: bool) -> None:
    if starts:
        assert deployed(*MINIMAX, *asked).memory.num_gpu_blocks > 0
        return
    error = str(refused(*MINIMAX, *asked))
    assert error.startswith("engine.tensor_parallel_size = ")
    assert "no whole fp8 blocks of 128 x 128" in error
    assert "works" in error


def test_the_refusal_of_cut_blocks_says_what_works() -> None:
    error = str(refused(*MINIMAX, "engine.version=vllm 0.28", "engine.tensor_parallel_size=8"))
    assert error.endswith(
        "leaves 192 of an expert's 1536 columns to a rank: no whole fp8 blocks of 128 x 128 of the checkpoint, and "
        "vllm 0.28 does not start; 1, 2, 4 or enable_expert_parallel works"
    )


def test_the_refusal_of_cut_blocks_in_groups_offers_larger_ones() -> None:
    """1,536 columns of sixteen GPUs in groups of two: eight share an expert, 192 columns each."""
    groups = ("engine.enable_expert_parallel=true", "engine.expert_parallel_size=2")
    error = str(refused(*MINIMAX, "engine.version=sglang 0.5.14", "engine.tensor_parallel_size=16", *groups))
    assert error.endswith("sglang 0.5.14 does not start; a larger expert_parallel_size works")


def test_expert_parallelism_is_not_offered_where_shared_experts_are_cut() -> None:
    eight = (
        "engine.model=Qwen3-Next-80B-A3B-Instruct-FP8",
        "engine.version=vllm 0.28",
        "engine.tensor_parallel_size=8",
    )
    error = str(refused(*MINIMAX, *eight))
    assert "leaves 64 inputs of matrix shared_down to a rank" in error
    assert error.endswith("a smaller one works")


def test_cut_experts_run_by_tritons_kernels() -> None:
    eight = (*MINIMAX, "engine.tensor_parallel_size=8")
    assert "fp8" in deployed(*eight).settings.triton_experts
    assert "fp8" not in deployed(*eight, "engine.enable_expert_parallel=true").settings.triton_experts


def test_a_checkpoint_without_blocks_is_cut_anywhere(tmp_path: Path) -> None:
    config = json.loads((ROOT / "kernels/models/MiniMax-M2.5.json").read_text())
    del config["quantization_config"]["weight_block_size"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    eight = (f"engine.model={tmp_path}", "engine.version=vllm 0.28", "engine.tensor_parallel_size=8")
    assert deployed(*MINIMAX, *eight).settings.weight_dtype == "fp8"


def test_blocks_of_compressed_tensors_are_read(tmp_path: Path) -> None:
    config = json.loads((ROOT / "kernels/models/MiniMax-M2.5.json").read_text())
    fp8 = {"num_bits": 8, "type": "float"}
    weights = {**fp8, "strategy": "block", "block_structure": [128, 128]}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": fp8}
    config["quantization_config"] = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    eight = (f"engine.model={tmp_path}", "engine.version=vllm 0.28", "engine.tensor_parallel_size=8")
    assert "leaves 192 of an expert's 1536 columns" in str(refused(*MINIMAX, *eight))
