"""Commands that start the engine a scenario describes."""

from __future__ import annotations

import json
import shlex

import pytest

from draftcast.errors import ScenarioError
from draftcast.scenarios.load import load_scenario, with_values
from draftcast.scenarios.serve_command import sglang_command, speculative_config_json, vllm_command, vllm_flags

SPEC = "engine.speculative_config"


def test_defaults_need_no_flags() -> None:
    scenario = with_values(load_scenario("default"), {SPEC: None, "engine.max_model_len": None})
    assert vllm_command(scenario) == "vllm serve meta-llama/Llama-3.1-8B"


@pytest.mark.parametrize(
    ("key", "value", "flags"),
    [
        ("tensor_parallel_size", 2, ["--tensor-parallel-size", "2"]),
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
    ],
)
def test_every_field_has_its_flag(key: str, value: object, flags: list[str]) -> None:
    scenario = load_scenario("default")
    plain = vllm_flags(scenario.engine)
    assert vllm_flags(with_values(scenario, {f"engine.{key}": value}).engine) != plain
    changed = with_values(scenario, {f"engine.{key}": value, "engine.max_model_len": None})
    assert vllm_flags(changed.engine) == flags


def test_no_engine_field_is_forgotten() -> None:
    """Model and speculative_config stand elsewhere in the command; every other field has a case above."""
    cases = test_every_field_has_its_flag.pytestmark[0].args[1]  # type: ignore[attr-defined]
    fields = set(type(load_scenario("default").engine).model_fields)
    assert fields - {case[0] for case in cases} == {"model", "speculative_config", "max_model_len"}


def test_the_command_carries_the_speculative_config() -> None:
    words = shlex.split(vllm_command(load_scenario("default")))
    assert words[:3] == ["vllm", "serve", "meta-llama/Llama-3.1-8B"]
    config = json.loads(words[words.index("--speculative-config") + 1])
    assert config == {
        "method": "eagle3",
        "model": "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3",
        "num_speculative_tokens": 3,
    }


def test_a_bundled_draft_gets_its_published_id_and_parallel_drafters_vllms_names() -> None:
    scenario = load_scenario("default")
    draft = {"method": "draft_model", "model": "llama-3.2-1b", "num_speculative_tokens": 2}
    spec = with_values(scenario, {SPEC: draft}).speculative_config
    assert spec is not None
    assert speculative_config_json(spec)["model"] == "meta-llama/Llama-3.2-1B"
    spec = with_values(scenario, {SPEC: {**draft, "method": "pard"}}).speculative_config
    assert spec is not None
    written = speculative_config_json(spec)
    assert (written["method"], written["parallel_drafting"]) == ("draft_model", True)


def test_trees_are_not_vllms() -> None:
    tree = {"method": "eagle_tree", "num_speculative_tokens": 3, "tree_width": 2}
    acceptance = {"model": "tree", "alpha": 0.6}
    spec = with_values(load_scenario("default"), {SPEC: tree, "acceptance": acceptance}).speculative_config
    assert spec is not None
    with pytest.raises(ScenarioError, match="drafts no trees"):
        speculative_config_json(spec)


@pytest.mark.parametrize(
    ("config", "part"),
    [
        (
            {"method": "eagle3", "model": "some/head", "num_speculative_tokens": 3},
            "--speculative-algorithm EAGLE3 --speculative-draft-model-path some/head --speculative-num-steps 3 "
            "--speculative-eagle-topk 1 --speculative-num-draft-tokens 4",
        ),
        (
            {"method": "draft_model", "model": "llama-3.2-1b", "num_speculative_tokens": 2},
            "--speculative-algorithm STANDALONE --speculative-draft-model-path meta-llama/Llama-3.2-1B "
            "--speculative-num-steps 2 --speculative-eagle-topk 1 --speculative-num-draft-tokens 3",
        ),
        ({"method": "ngram", "num_speculative_tokens": 3}, "NGRAM --speculative-num-draft-tokens 4"),
        (None, "--model-path meta-llama/Llama-3.1-8B --context-length 8192"),
    ],
)
def test_sglang(config: dict[str, object] | None, part: str) -> None:
    assert sglang_command(with_values(load_scenario("default"), {SPEC: config})).endswith(part)


def test_sglang_has_no_schedule_and_no_suffix_decoding() -> None:
    scenario = load_scenario("default")
    for extra in (
        {"method": "eagle3", "num_speculative_tokens": 3, "num_speculative_tokens_per_batch_size": [[1, 8, 3]]},
        {"method": "suffix"},
    ):
        changed = with_values(scenario, {SPEC: extra, "acceptance": {"model": "constant", "alpha": 0.5}})
        with pytest.raises(ScenarioError, match="SGLang"):
            sglang_command(changed)
