"""Commands that start the engine a scenario describes."""

from __future__ import annotations

import json
import shlex

import pytest

from draftcast.errors import ScenarioError
from draftcast.scenarios.compare.serve_command import (
    served_models,
    server_command,
    speculative_config_json,
    vllm_flags,
)
from draftcast.scenarios.schema import METHODS, Scenario, SpeculativeConfig
from draftcast.scenarios.schema.load import load_scenario, to_mapping, with_values

SPEC = "engine.speculative_config"
INSTRUCT = "meta-llama/Llama-3.1-8B-Instruct"
HEAD = "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"
UNKNOWN_TO_VLLM = ("eagle_tree", "mlp_speculator", "arctic", "draft_ahead")


def drafting(method: str, target: str = INSTRUCT, **values: object) -> Scenario:
    """The default scenario with another method, which accepts something."""
    acceptance = {"model": "tree" if method == "eagle_tree" else "constant", "alpha": 0.6}
    config = {"method": method, "num_speculative_tokens": 3, **values}
    changes = {SPEC: config, "acceptance": acceptance, "engine.model": target}
    version = {"mlp_speculator": "vllm 0.10", "arctic": "vllm 0.11", "eagle_tree": "sglang 0.5"}.get(method)
    changes |= {"engine.version": version} if version else {}
    return with_values(load_scenario("default"), changes)


def test_defaults_need_no_flags() -> None:
    scenario = with_values(load_scenario("default"), {SPEC: None, "engine.max_model_len": None})
    assert server_command(scenario, "vllm").line == f"vllm serve {INSTRUCT}"


@pytest.mark.parametrize(
    ("key", "value", "flags"),
    [
        ("tensor_parallel_size", 2, ["--tensor-parallel-size", "2"]),
        ("data_parallel_size", 2, ["--data-parallel-size", "2"]),
        ("dtype", "float16", ["--dtype", "float16"]),
        ("quantization", "fp8", ["--quantization", "fp8"]),
        ("kv_cache_dtype", "fp8", ["--kv-cache-dtype", "fp8"]),
        ("max_num_seqs", 64, ["--max-num-seqs", "64"]),
        ("max_num_batched_tokens", 4096, ["--max-num-batched-tokens", "4096"]),
        ("max_num_scheduled_tokens", 512, ["--max-num-scheduled-tokens", "512"]),
        ("block_size", 32, ["--block-size", "32"]),
        ("gpu_memory_utilization", 0.8, ["--gpu-memory-utilization", "0.8"]),
        ("num_gpu_blocks", 4096, ["--num-gpu-blocks-override", "4096"]),
        ("long_prefill_token_threshold", 512, ["--long-prefill-token-threshold", "512"]),
        ("watermark", 0.01, ["--watermark", "0.01"]),
        ("scheduling_policy", "priority", ["--scheduling-policy", "priority"]),
        ("enable_prefix_caching", False, ["--no-enable-prefix-caching"]),
        ("enable_chunked_prefill", False, ["--no-enable-chunked-prefill"]),
        ("async_scheduling", False, ["--no-async-scheduling"]),
        ("async_scheduling", True, ["--async-scheduling"]),
        ("enforce_eager", True, ["--enforce-eager"]),
        ("max_cudagraph_capture_size", 64, ["--max-cudagraph-capture-size", "64"]),
        ("api_server_count", 4, ["--api-server-count", "4"]),
        ("pipeline_parallel_size", 2, ["--pipeline-parallel-size", "2"]),
        ("enable_expert_parallel", True, ["--enable-expert-parallel"]),
        ("cudagraph_mode", "PIECEWISE", ["--compilation-config", '{"cudagraph_mode": "PIECEWISE"}']),
    ],
)
def test_every_field_has_its_flag(key: str, value: object, flags: list[str]) -> None:
    scenario = load_scenario("default")
    plain = vllm_flags(scenario.engine)
    assert vllm_flags(with_values(scenario, {f"engine.{key}": value}).engine) != plain
    changed = with_values(scenario, {f"engine.{key}": value, "engine.max_model_len": None})
    assert vllm_flags(changed.engine) == flags


def test_no_engine_field_is_forgotten() -> None:
    """Model and speculative_config stand elsewhere in the command, the version nowhere; the rest has a case above.

    Decode-context parallelism divides tensor parallelism, so that it cannot be set alone; groups of experts are
    SGLang's.
    """
    cases = test_every_field_has_its_flag.pytestmark[0].args[1]  # type: ignore[attr-defined]
    fields = set(type(load_scenario("default").engine).model_fields)
    alone = {"model", "speculative_config", "max_model_len", "version"}
    assert fields - {case[0] for case in cases} == alone | {"decode_context_parallel_size", "expert_parallel_size"}
    engine = {"engine.tensor_parallel_size": 2, "engine.decode_context_parallel_size": 2}
    assert "--decode-context-parallel-size" in vllm_flags(with_values(load_scenario("default"), engine).engine)


def test_the_command_carries_the_speculative_config() -> None:
    words = shlex.split(server_command(load_scenario("default"), "vllm").line)
    assert words[:3] == ["vllm", "serve", INSTRUCT]
    config = json.loads(words[words.index("--speculative-config") + 1])
    assert config == {
        "method": "eagle3",
        "model": HEAD,
        "num_speculative_tokens": 3,
    }


def test_the_command_chooses_the_model_runner_that_the_version_names() -> None:
    for version, chosen in (("vllm 0.32", ""), ("vllm 0.32 v1", "0"), ("vllm 0.32 v2", "1")):
        command = server_command(with_values(load_scenario("default"), {"engine.version": version}), "vllm")
        assert command.environment.get("VLLM_USE_V2_MODEL_RUNNER", "") == chosen


def test_parallel_drafters_have_vllms_names() -> None:
    written = speculative_config_json(drafting("pard", model="llama-3.2-1b"))
    assert written is not None
    assert (written["method"], written["parallel_drafting"]) == ("draft_model", True)
    written = speculative_config_json(drafting("p_eagle", model="some/head"))
    assert written is not None
    assert (written["method"], written["parallel_drafting"]) == ("eagle3", True)


def test_what_vllm_cannot_run_is_refused() -> None:
    with pytest.raises(ScenarioError, match="drafts no trees"):
        speculative_config_json(drafting("eagle_tree", tree_width=2))
    with pytest.raises(ScenarioError, match=r"vLLM 0\.32 cannot run it: V1 never had the MLP speculator"):
        speculative_config_json(drafting("mlp_speculator"))
    with pytest.raises(
        ScenarioError, match=r"vLLM 0\.32 cannot run it: Arctic Inference 0\.1\.1, its last release, is for vLLM 0\.11"
    ):
        speculative_config_json(drafting("arctic"))
    with pytest.raises(ScenarioError, match="none has a draft on GPUs of its own that works while the target verifies"):
        speculative_config_json(drafting("draft_ahead", model="llama-3.2-1b"))


@pytest.mark.parametrize("method", [method for method in METHODS if method not in UNKNOWN_TO_VLLM])
def test_every_method_that_loads_a_draft_names_one_or_says_what_to_fill_in(method: str) -> None:
    given = {"model": "some/draft"} if method in ("draft_model", "pard") else {}
    scenario = drafting(method, **given)
    written = speculative_config_json(scenario)
    assert written is not None
    # What is written is the same method to whoever reads it.
    assert SpeculativeConfig(**written).resolved_method == method
    served = served_models(scenario)
    if method in ("mtp", "ngram", "ngram_gpu", "suffix"):
        assert "model" not in written
        assert served.notes == ()
    elif given:
        assert written["model"] == "some/draft"
    else:
        assert written["model"].startswith("<path or Hugging Face id of a")
        assert written["model"].endswith(f" for {INSTRUCT}>")
        assert "Fill in" in served.notes[0]
    named = drafting(method, model="some/draft")
    assert (speculative_config_json(named) or {})["model"] == "some/draft"
    assert served_models(named).notes == ()


def test_what_to_fill_in_stands_in_sglangs_command_too() -> None:
    words = shlex.split(server_command(drafting("eagle3"), "sglang").line)
    place = words[words.index("--speculative-draft-model-path") + 1]
    assert place == f"<path or Hugging Face id of an EAGLE-3 head for {INSTRUCT}>"


@pytest.mark.parametrize(
    ("target", "draft", "served", "note"),
    [
        (INSTRUCT, HEAD, INSTRUCT, ""),
        ("llama-3.1-8b", HEAD, INSTRUCT, "belongs to the Instruct model"),
        ("meta-llama/Llama-3.1-8B", HEAD, INSTRUCT, f"this serves {INSTRUCT} instead of meta-llama/Llama-3.1-8B"),
        ("llama-3.1-8b-instruct", HEAD, INSTRUCT, ""),
        (INSTRUCT, "someone/Llama-3.1-8B-Base-eagle3", "meta-llama/Llama-3.1-8B", "belongs to the base model"),
        # A head that says neither changes nothing: most are of the Instruct model all the same.
        (INSTRUCT, "someone/Llama-3.1-8B-eagle3", INSTRUCT, ""),
        ("llama-3.1-8b", "someone/Llama-3.1-8B-eagle3", "meta-llama/Llama-3.1-8B", ""),
        ("llama-2-70b", "yuhuili/EAGLE-llama2-chat-70B", "meta-llama/Llama-2-70b-chat-hf", "instead of"),
        # Two Instruct models of one shape.
        ("llama-3.1-70b", "x/Llama-3.3-70B-Instruct.eagle3", "meta-llama/Llama-3.3-70B-Instruct", "instead of"),
        ("qwen3-8b", "x/Qwen3-8B-Instruct-eagle3", "Qwen/Qwen3-8B", "Check this pair"),
    ],
)
def test_the_target_is_the_one_that_the_head_belongs_to(target: str, draft: str, served: str, note: str) -> None:
    scenario = with_values(
        drafting("eagle3", target, model=draft), {"engine.tensor_parallel_size": 4, "engine.max_model_len": 2048}
    )
    found = served_models(scenario)
    assert (found.target, found.draft) == (served, draft)
    assert note in " ".join(found.notes)
    assert len(found.notes) == bool(note)
    assert shlex.split(server_command(scenario, "vllm").line)[2] == served
    assert f"--model-path {served} " in server_command(scenario, "sglang").line


def test_a_bundled_drafts_short_name_follows_the_target() -> None:
    for target, draft in ((INSTRUCT, "meta-llama/Llama-3.2-1B-Instruct"), ("llama-3.1-8b", "meta-llama/Llama-3.2-1B")):
        found = served_models(drafting("draft_model", target, model="llama-3.2-1b"))
        assert (found.draft, found.notes) == (draft, ())


def test_adaptive_verification_is_pasted_and_emitted() -> None:
    """vLLM's flag and the policy of that name are one: either gives the flag, and pasted back the same policy."""
    acceptance = {"model": "constant", "alpha": 0.6, "confidence_discrimination": 0.5}
    spec = {"method": "dspark", "num_speculative_tokens": 3}
    asked = with_values(load_scenario("default"), {SPEC: spec, "acceptance": acceptance})
    assert "enable_adaptive_verification" not in (speculative_config_json(asked) or {})
    flagged = with_values(asked, {f"{SPEC}.enable_adaptive_verification": True})
    chosen = with_values(asked, {"policy": {"name": "adaptive_verification"}})
    for scenario in (flagged, chosen):
        written = speculative_config_json(scenario)
        assert written is not None
        assert written["enable_adaptive_verification"] is True
        again = load_scenario(to_mapping(scenario), speculative_config=json.dumps(written))
        assert again.resolved_policy == flagged.resolved_policy == chosen.resolved_policy
    with pytest.raises(ScenarioError, match=r"would ignore .*enable_adaptive_verification"):
        with_values(flagged, {"policy": {"name": "fixed"}})
    with pytest.raises(ScenarioError, match="only with method dspark"):
        with_values(load_scenario("default"), {f"{SPEC}.enable_adaptive_verification": True})
