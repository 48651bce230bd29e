"""Commands for SGLang and TensorRT-LLM: what they hold, what their documentation allows, and read back."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from paths import ROOT
from typer.testing import CliRunner

from draftcast import simulate
from draftcast.errors import InputError, ScenarioError
from draftcast.scenarios.cli import main as cli
from draftcast.scenarios.cli.terminal import UNSTABLE
from draftcast.scenarios.compare.read_command import read_command, split_flags
from draftcast.scenarios.compare.serve_command import SERVERS, ServerCommand, bench_note, server_command
from draftcast.scenarios.compare.server_table import TABLES
from draftcast.scenarios.run.deployment import cached_deployment
from draftcast.scenarios.schema import METHODS, Scenario, SpeculativeConfig
from draftcast.scenarios.schema.load import load_scenario, to_mapping, with_values
from draftcast.scenarios.schema.speculation import LACKS, RESEARCH
from draftcast.sim.cost.methods import get_method

SPEC = "engine.speculative_config"
SCHEDULE = f"{SPEC}.num_speculative_tokens_per_batch_size"
SCHEMAS = yaml.safe_load((ROOT / "tests/data/server_schemas.yaml").read_text())
OTHERS = ("sglang", "trtllm")
HEAD = "x/Llama-3.1-8B-Instruct-eagle3"
DEEPSEEK = {
    "engine.model": "DeepSeek-V3",
    "hardware": "b200",
    "engine.tensor_parallel_size": 8,
    "engine.quantization": "fp8",
}
EXPERTS = {"engine.model": "Qwen3-30B-A3B", "hardware": "h100-sxm", SPEC: None}


def drafting(method: str, **values: Any) -> Scenario:
    """The default scenario with another method at three tokens."""
    model = "llama-3.2-1b" if get_method(method).needs_draft_model else HEAD if method == "eagle_tree" else None
    config = {"method": method, "num_speculative_tokens": 3, **({"model": model} if model else {}), **values}
    is_tree = method == "eagle_tree" or "tree_width" in values
    acceptance = {"model": "tree" if is_tree else "constant", "alpha": 0.6}
    versions = {"mlp_speculator": "vllm 0.10", "arctic": "vllm 0.11", method if is_tree else "": "sglang 0.5"}
    engine = {"mtp": DEEPSEEK, **{name: {"engine.version": version} for name, version in versions.items()}}.get(
        method, {}
    )
    changes = {SPEC: config, "acceptance": acceptance, **engine}
    return with_values(load_scenario("default"), changes)


def changed(**values: Any) -> Scenario:
    return with_values(load_scenario("default"), {f"engine.{name}": value for name, value in values.items()})


SCHEDULED = drafting("eagle3", num_speculative_tokens_per_batch_size=[[1, 8, 3], [9, 64, 1], [65, 1024, 0]])
CUT_OFF = drafting("eagle3", num_speculative_tokens_per_batch_size=[[1, 32, 3], [33, 1024, 0]])
SYNTHETIC = drafting("eagle3", rejection_sample_method="synthetic", synthetic_acceptance_length=2.25)
VARIANTS = {
    **{method: drafting(method) for method in METHODS},
    "off": with_values(load_scenario("default"), {SPEC: None}),
    "small tree": drafting("eagle_tree", tree_width=4, max_tree_nodes=9),
    "n-gram tree": drafting("ngram", tree_width=4, max_tree_nodes=9),
    "narrowing tree": drafting("ngram", num_speculative_tokens=17, tree_width=10, max_tree_nodes=11, min_tree_width=1),
    "Medusa's tree": drafting("medusa", tree_width=4, max_tree_nodes=9),
    "schedule": SCHEDULED,
    "cut off": CUT_OFF,
    "adaptive": with_values(drafting("eagle3", num_speculative_tokens=7), {"policy": {"name": "ema_tiers"}}),
    "synthetic": SYNTHETIC,
    "experts": with_values(
        load_scenario("default"), {**EXPERTS, "engine.data_parallel_size": 4, "engine.enable_expert_parallel": True}
    ),
    "groups of experts": with_values(
        load_scenario("default"),
        {
            **EXPERTS,
            "engine.version": "sglang 0.5.20",
            "engine.tensor_parallel_size": 8,
            "engine.enable_expert_parallel": True,
            "engine.expert_parallel_size": 2,
        },
    ),
    "replicas in one": changed(data_parallel_size=2),
    "whole prompts": changed(
        enable_chunked_prefill=False,
        scheduling_policy="priority",
        enable_prefix_caching=False,
        max_num_batched_tokens=16384,
        max_model_len=8192,
    ),
    "formats": changed(quantization="fp8", kv_cache_dtype="fp8", max_cudagraph_capture_size=128),
    "eager": changed(enforce_eager=True),
    "memory": changed(num_gpu_blocks=6000, block_size=32, gpu_memory_utilization=0.8, max_num_seqs=64),
    "ranks": changed(tensor_parallel_size=16, pipeline_parallel_size=2, decode_context_parallel_size=2),
}
REFUSED = {
    "sglang": {"p_eagle", "pard", "medusa", "mlp_speculator", "arctic", "draft_ahead", "ngram_gpu", "suffix"}
    | {"Medusa's tree"},
    "trtllm": {"eagle", "p_eagle", "medusa", "mlp_speculator", "arctic", "draft_ahead", "suffix"}
    | {"replicas in one", "adaptive", "n-gram tree", "narrowing tree", "Medusa's tree"},
    "vllm": {"eagle_tree", "mlp_speculator", "arctic", "draft_ahead", "small tree", "Medusa's tree"}
    | {"n-gram tree", "narrowing tree", "groups of experts"},
}
# The command says all tiers, the scenario none; a tree's bound that binds stands for one that does not.
LOSSY = {"adaptive", "eagle_tree"}


def command(name: str, server: str) -> ServerCommand:
    if name in REFUSED[server]:
        pytest.skip("refused, see below")
    return server_command(VARIANTS[name], server)


def sglang_flags(made: ServerCommand) -> dict[str, Any]:
    assert made.command[:3] == ("python", "-m", "sglang.launch_server")
    plain, flags = split_flags(made.command[3:])
    assert plain == []
    return flags


def fits(value: Any, kind: Any) -> bool:
    if isinstance(kind, list):
        return value in kind
    if kind == "json":
        return all(phase in ("decode", "prefill") for phase in json.loads(value))
    if kind == "null":
        return value is None
    if kind == "ints":
        return all(isinstance(each, int) for each in value)
    types = {"int": int, "float": (int, float), "bool": bool, "str": str}[kind]
    return isinstance(value, types) and (kind == "bool" or not isinstance(value, bool))


@pytest.mark.parametrize("name", VARIANTS)
def test_sglang_takes_every_flag(name: str) -> None:
    made = command(name, "sglang")
    for flag, value in sglang_flags(made).items():
        assert fits(value, SCHEMAS["sglang"][flag]), (flag, value)
    for content in made.files.values():
        for key, tier in json.loads(content).items():
            for word, value in tier.items() if key.isdigit() else [(key, tier)]:
                assert fits(value, SCHEMAS["sglang_adaptive"][word]), (word, value)
    flags = sglang_flags(made)
    if "speculative-adaptive" in flags:
        tiers = json.loads(made.files[flags["speculative-adaptive-config"]])
        steps = [k for key, tier in tiers.items() if key.isdigit() for k in tier["candidate_steps"]]
        assert flags["speculative-num-steps"] in steps  # or the server stops


@pytest.mark.parametrize("name", VARIANTS)
def test_tensorrt_llm_takes_every_key(name: str) -> None:
    made = command(name, "trtllm")
    assert made.command[0] == "trtllm-serve"
    assert made.command[2:] == ("--extra_llm_api_options", "trtllm.yaml")
    keys = yaml.safe_load(made.files["trtllm.yaml"])
    drafts = keys.pop("speculative_config", None)
    for key, inside in keys.items():
        pairs = [(f"{key}.{word}", value) for word, value in inside.items()] if isinstance(inside, dict) else []
        for word, value in pairs or [(key, inside)]:
            assert fits(value, SCHEMAS["trtllm"][word]), (word, value)
    if drafts is None:
        return
    own = SCHEMAS["trtllm_speculation"][drafts["decoding_type"]]
    assert {word[:-1] for word in own if word.endswith("*")} <= set(drafts)
    assert set(drafts) <= {*SCHEMAS["trtllm_speculation"]["all"], *(word.rstrip("*") for word in own)}
    assert not {"max_concurrency", "draft_len_schedule"} <= set(drafts)  # the server takes one of them
    schedule = drafts.get("draft_len_schedule", {1: drafts["max_draft_len"]})
    assert schedule[min(schedule)] == drafts["max_draft_len"]
    assert all(isinstance(size, int) for size in schedule)


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("name", VARIANTS)
def test_a_command_pasted_back_is_the_same_scenario(name: str, server: str) -> None:
    scenario, made = VARIANTS[name], command(name, server)
    read = read_command(made.text)
    assert read.unread == ()
    policy = [f"policy={json.dumps(read.policy)}"] if read.policy is not None else []
    back = load_scenario(to_mapping(scenario), engine=read.engine, keep=read.silent, overrides=policy)
    again = server_command(back, server)
    assert (again.line, again.files) == (made.line, made.files)
    if name not in LOSSY:
        theirs, ours = (dataclasses.asdict(cached_deployment(each).settings) for each in (back, scenario))
        assert theirs == ours
        assert back.resolved_policy == scenario.resolved_policy
    spec, own = back.speculative_config, scenario.speculative_config
    assert (spec is None) is (own is None)
    if spec is not None and own is not None:
        keys = ("k", "num_speculative_tokens_per_batch_size", "synthetic_rates", "resolved_method")
        assert [getattr(spec, key) for key in keys] == [getattr(own, key) for key in keys]


@pytest.mark.parametrize(("server", "name"), [(server, name) for server in SERVERS for name in sorted(REFUSED[server])])
def test_what_a_server_cannot_run_is_refused_with_the_reason(server: str, name: str) -> None:
    with pytest.raises(ScenarioError, match=r"vLLM|SGLang|TensorRT-LLM") as refusal:
        server_command(VARIANTS[name], server)
    assert "\n" not in str(refusal.value)


# A value unlike the default for every field of the engine, under what it needs.
FIELDS: dict[str, dict[str, Any]] = {
    "tensor_parallel_size": {},
    "pipeline_parallel_size": {},
    "decode_context_parallel_size": {"tensor_parallel_size": 16},
    "dtype": {"dtype": "float16"},
    "quantization": {"quantization": "fbgemm_fp8"},
    "kv_cache_dtype": {"kv_cache_dtype": "fp8_e5m2"},
    "max_model_len": {"max_model_len": 4096},
    "max_num_seqs": {"max_num_seqs": 64},
    "max_num_batched_tokens": {"max_num_batched_tokens": 4096},
    "max_num_scheduled_tokens": {"max_num_scheduled_tokens": 512},
    "block_size": {"block_size": 64},
    "gpu_memory_utilization": {"gpu_memory_utilization": 0.8},
    "num_gpu_blocks": {"num_gpu_blocks": 6000},
    "enable_prefix_caching": {"enable_prefix_caching": False},
    "enable_chunked_prefill": {"enable_chunked_prefill": False},
    "long_prefill_token_threshold": {"long_prefill_token_threshold": 512},
    "watermark": {"watermark": 0.01},
    "scheduling_policy": {"scheduling_policy": "priority"},
    "async_scheduling": {"async_scheduling": False},
    "api_server_count": {"api_server_count": 4},
    "enforce_eager": {"enforce_eager": True},
    "cudagraph_mode": {"cudagraph_mode": "NONE"},
    "max_cudagraph_capture_size": {"max_cudagraph_capture_size": 64},
}
DRAFT_FIELDS: dict[str, Any] = {
    "draft_tensor_parallel_size": 1,
    "quantization": "fp8",
    "kv_cache_dtype": "fp8",
    "max_model_len": 2048,
    "enforce_eager": True,
    "disable_eagle_block_drop": True,
    "disable_lookahead_block_hashes": True,
    "prompt_lookup_max": 4,
    "prompt_lookup_min": 2,
    "suffix_decoding_max_tree_depth": 12,
    "suffix_decoding_max_cached_requests": 5,
    "suffix_decoding_max_spec_factor": 2.0,
    "suffix_decoding_min_token_prob": 0.2,
    "rejection_sample_method": "block",
    "draft_sample_method": "probabilistic",
    "use_local_argmax_reduction": True,
    "disable_padded_drafter_batch": True,
    "dspark_draft_topk": 2,
    "moe_backend": "triton",
    "attention_backend": "FLASH_ATTN",
    "revision": "v2",
    "code_revision": "v2",
    "index_share_for_mtp_iteration": True,
    "draft_load_config": {"load_format": "dummy"},
}


@pytest.mark.parametrize("server", OTHERS)
@pytest.mark.parametrize("field", FIELDS)
def test_no_field_is_dropped_without_a_note(field: str, server: str) -> None:
    values = FIELDS[field] or {field: 2}
    others = {name: value for name, value in values.items() if name != field}
    before, after = (
        server_command(changed(**each), server) for each in (others, {**others, field: values.get(field, 2)})
    )
    noted = [note for note in after.notes if note.startswith(f"engine.{field} = ")]
    assert (after.line, after.files) != (before.line, before.files) or len(noted) == 1


@pytest.mark.parametrize("server", OTHERS)
@pytest.mark.parametrize("field", DRAFT_FIELDS)
def test_no_field_of_the_speculation_is_dropped_without_a_note(field: str, server: str) -> None:
    # Not vLLM's version, which refuses another method's fields.
    before, after = (
        server_command(with_values(drafting("eagle3", **each), {"engine.version": "sglang 0.5"}), server)
        for each in ({}, {field: DRAFT_FIELDS[field]})
    )
    noted = [note for note in after.notes if note.startswith(f"{SPEC}.{field} = ")]
    assert (after.line, after.files) != (before.line, before.files) or len(noted) == 1


def test_no_field_is_missing_from_these_tests() -> None:
    apart = {"version", "model", "data_parallel_size", "enable_expert_parallel", "expert_parallel_size"}
    apart |= {"speculative_config"}
    assert set(FIELDS) | apart == set(type(load_scenario("default").engine).model_fields)
    said = {"method", "model", "num_speculative_tokens", "num_speculative_tokens_per_batch_size", "parallel_drafting"}
    said |= {
        "synthetic_acceptance_rates",
        "synthetic_acceptance_length",
        "tree_width",
        "max_tree_nodes",
        "min_tree_width",
    }
    one_method_only = {"use_heterogeneous_vocab", "enable_adaptive_verification"}
    one_method_only |= {"enable_suffix_decoding", "suffix_cache_max_depth"}
    assert set(DRAFT_FIELDS) | said | one_method_only == set(SpeculativeConfig.model_fields)
    for server, table in TABLES.items():
        unknown = set(LACKS[server]) | set(RESEARCH)
        assert set(table.methods) | unknown >= set(METHODS)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        (
            "eagle3",
            "--speculative-algorithm EAGLE3 --speculative-num-steps 3 --speculative-eagle-topk 1 "
            "--speculative-num-draft-tokens 4 --speculative-draft-model-path '<path",
        ),
        (
            "draft_model",
            "STANDALONE --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 "
            "--speculative-draft-model-path meta-llama/Llama-3.2-1B-Instruct",
        ),
        ("small tree", "EAGLE3 --speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 10"),
        ("ngram", "NGRAM --speculative-num-draft-tokens 4 --speculative-ngram-max-bfs-breadth 1"),
        (
            "n-gram tree",
            "NGRAM --speculative-num-draft-tokens 10 --speculative-ngram-min-bfs-breadth 4 "
            "--speculative-ngram-max-bfs-breadth 4 --speculative-ngram-max-trie-depth 4 "
            "--speculative-ngram-match-type BFS",
        ),
        (
            "narrowing tree",
            "NGRAM --speculative-num-draft-tokens 12 --speculative-ngram-min-bfs-breadth 1 "
            "--speculative-ngram-max-bfs-breadth 10 --speculative-ngram-max-trie-depth 18",
        ),
        ("dflash", "DFLASH --speculative-num-draft-tokens 4"),
        ("dspark", "DSPARK --speculative-dspark-block-size 3"),
        ("mtp", "--tp-size 8 --quantization fp8"),
        ("off", "--chunked-prefill-size 8192 --page-size 16 --mem-fraction-static 0.92"),
        ("whole prompts", "--chunked-prefill-size -1 --max-prefill-tokens 16384 --disable-radix-cache"),
        ("experts", "--tp-size 4 --attn-dp-size 4 --ep-size 4"),
        ("groups of experts", "--tp-size 8"),
        ("groups of experts", "--ep-size 2"),
        ("replicas in one", "--dp-size 2"),
        ("synthetic", "SGLANG_SIMULATE_ACC_LEN=2.25 SGLANG_SIMULATE_ACC_METHOD=match-expected"),
        ("formats", "--speculative-draft-model-quantization unquant"),
        ("memory", "--mem-fraction-static 0.8 --max-total-tokens 192000"),
    ],
)
def test_sglangs_command(name: str, part: str) -> None:
    words = " ".join(sorted(server_command(VARIANTS[name], "sglang").line.split(" --")))
    assert all(word in words for word in part.removeprefix("--").split(" --"))


def test_a_schedule_is_sglangs_tiers_of_one_length_each() -> None:
    made = server_command(SCHEDULED, "sglang")
    assert json.loads(made.files["adaptive.json"]) == {
        "1": {"candidate_steps": [3]},
        "9": {"candidate_steps": [1]},
        "65": {"candidate_steps": [0]},
    }
    assert "cat > adaptive.json <<'EOF'" in made.text
    with pytest.raises(ScenarioError, match="varies no draft length of method dflash"):
        server_command(with_values(drafting("dflash"), {SCHEDULE: [[1, 8, 3], [9, 64, 1]]}), "sglang")
    with pytest.raises(ScenarioError, match="no schedule that never drafts"):
        server_command(with_values(SCHEDULED, {SCHEDULE: [[1, 1024, 0]]}), "sglang")


def test_tensorrt_llms_schedule_ends_at_the_last_batch_that_drafts() -> None:
    def drafts(scenario: Scenario) -> dict[str, Any]:
        made = server_command(scenario, "trtllm").files["trtllm.yaml"]
        return dict(yaml.safe_load(made)["speculative_config"])

    assert drafts(SCHEDULED)["draft_len_schedule"] == {8: 3, 64: 1}
    assert drafts(CUT_OFF)["max_concurrency"] == 32
    open_end = with_values(SCHEDULED, {SCHEDULE: [[1, 8, 3], [9, 64, 1]]})
    assert drafts(open_end)["draft_len_schedule"] == {8: 3, 1024: 1}  # vLLM keeps the last length, so this does too
    pause = with_values(SCHEDULED, {SCHEDULE: [[1, 8, 3], [9, 64, 0], [65, 128, 1], [129, 1024, 0]]})
    assert drafts(pause)["draft_len_schedule"] == {8: 3, 64: 0, 128: 1}
    with pytest.raises(ScenarioError, match="drafts all 3 tokens in its smallest batches"):
        drafts(with_values(SCHEDULED, {SCHEDULE: [[1, 8, 2], [9, 64, 3]]}))


def test_forced_acceptance_counts_the_bonus_token_where_the_server_does() -> None:
    drawn = {"SGLANG_SIMULATE_ACC_LEN": "2.25", "SGLANG_SIMULATE_ACC_METHOD": "match-expected"}
    chain = server_command(SYNTHETIC, "sglang").environment
    assert chain == drawn | {"SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token"}
    # SGLang refuses real draft tokens of a tree.
    assert "TOKEN_MODE" not in bench_note("sglang", [0.8, 0.3], is_tree=True)
    assert "SGLANG_SIMULATE_ACC_METHOD=match-expected forces" in bench_note("sglang", [0.8, 0.3], is_tree=True)
    assert server_command(SYNTHETIC, "trtllm").environment == {"TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS": "1.25"}


def test_parallelism_that_a_method_does_not_take_is_refused() -> None:
    for method in ("dflash", "dspark"):
        with pytest.raises(ScenarioError, match="with pipeline_parallel_size above 1"):
            server_command(with_values(drafting(method), {"engine.pipeline_parallel_size": 2}), "sglang")
    experts = {key: value for key, value in EXPERTS.items() if key != SPEC} | {"engine.data_parallel_size": 2}
    with pytest.raises(ScenarioError, match="with data_parallel_size above 1"):
        server_command(with_values(drafting("ngram"), experts), "sglang")
    assert (
        "--dp-size 2" in server_command(with_values(drafting("ngram"), {"engine.data_parallel_size": 2}), "sglang").line
    )


def test_a_block_of_drafts_shares_lm_head_over_attention_ranks_alone() -> None:
    """SGLang 0.5.20 and 0.5.23: --enable-dp-lm-head asks for data-parallel attention, which dense models do not get."""
    ranks = {"engine.data_parallel_size": 2}
    dense = server_command(with_values(drafting("dflash"), ranks), "sglang").line
    assert "--dp-size 2" in dense
    assert "--enable-dp-lm-head" not in dense
    experts = {key: value for key, value in EXPERTS.items() if key != SPEC} | ranks
    assert "--enable-dp-lm-head" in server_command(with_values(drafting("dflash"), experts), "sglang").line


def test_a_command_of_ones_own_is_read() -> None:
    text = """export_is_not_needed='' # a comment
    """
    with pytest.raises(ScenarioError, match="must be a command of"):
        read_command(text)
    with pytest.raises(ScenarioError, match="bench is a client"):
        read_command("vllm bench serve --model Qwen/Qwen3-8B")
    read = read_command(
        "python3 -m sglang.launch_server --model Qwen/Qwen3-8B --tp 2 --port 30000 \\\n --speculative-algorithm=EAGLE3 "
        "--speculative-draft-model-path x/head --speculative-num-steps 5 --speculative-eagle-topk 4 "
        "--speculative-num-draft-tokens 16 --mem-fraction-static 0.75"
    )
    assert read.engine["model"] == "Qwen/Qwen3-8B"
    assert (read.engine["tensor_parallel_size"], read.engine["gpu_memory_utilization"]) == (2, 0.75)
    assert read.engine["block_size"] == 1  # SGLang's own default
    assert "max_num_seqs" not in read.engine  # a version's default, which the simulation knows
    assert read.note_under("vllm 0.32").startswith("the command is SGLang's and is forecast as vllm 0.32; give")
    assert read.note_under("sglang 0.5.6") == ""
    assert read.engine["speculative_config"] == {
        "method": "eagle_tree",
        "num_speculative_tokens": 5,
        "tree_width": 4,
        "max_tree_nodes": 15,
        "model": "x/head",
    }
    assert read.unread == ("port",)
    ngram = "sglang serve --model x --speculative-algorithm NGRAM --speculative-ngram-m"
    tree = read_command(f"{ngram}in-bfs-breadth 4 --speculative-ngram-max-bfs-breadth 4")
    assert tree.engine["speculative_config"] == {  # of 12 rows with the last token; the trie is 18 tokens deep
        "method": "ngram",
        "num_speculative_tokens": 11,
        "tree_width": 4,
        "max_tree_nodes": 11,
    }
    assert tree.unread == ()
    chain = read_command(
        f"{ngram}in-bfs-breadth 1 --speculative-ngram-max-bfs-breadth 1 --speculative-num-draft-tokens 8"
    )
    assert chain.engine["speculative_config"] == {"method": "ngram", "num_speculative_tokens": 7}
    narrowing = {"method": "ngram", "num_speculative_tokens": 17, "tree_width": 8, "max_tree_nodes": 11}
    read = read_command(f"{ngram}ax-bfs-breadth 8").engine["speculative_config"]  # the rest as SGLang takes it
    assert read == {**narrowing, "min_tree_width": 1}
    for other, message in (
        ("in-bfs-breadth 10 --speculative-ngram-match-type PROB", "that is not simulated without"),
        ("in-bfs-breadth 11", "at most tree_width = 10"),
    ):
        with pytest.raises(ScenarioError, match=message):
            read_command(f"{ngram}{other}")
    plain = read_command("trtllm-serve Qwen/Qwen3-8B --tp_size 2 --max_batch_size 64 --backend pytorch")
    assert (plain.engine["tensor_parallel_size"], plain.engine["max_num_seqs"]) == (2, 64)
    assert (plain.engine["enable_chunked_prefill"], plain.engine["block_size"]) == (False, 32)
    vllm = read_command('vllm serve x -tp 2 --no-enable-prefix-caching --speculative-config \'{"method": "ngram"}\'')
    assert vllm.engine == {
        "model": "x",
        "tensor_parallel_size": 2,
        "enable_prefix_caching": False,
        "speculative_config": {"method": "ngram"},
    }
    spread = "sglang serve --model x --tp-size 8 --ep-size"
    assert read_command(f"{spread} 8").engine["enable_expert_parallel"]
    assert "enable_expert_parallel" not in read_command(f"{spread} 1").engine
    assert "expert_parallel_size" not in read_command(f"{spread} 8").engine
    assert read_command(f"{spread} 2").engine["expert_parallel_size"] == 2
    with pytest.raises(ScenarioError, match=r"ep-size = 3: must divide the 8 ranks of a layer"):
        read_command(f"{spread} 3")
    with pytest.raises(ScenarioError, match="that is not simulated"):
        read_command("sglang serve --model x --speculative-algorithm UNO --speculative-num-draft-tokens 4")


def test_graph_sizes_in_requests_say_what_they_cannot_hold() -> None:
    """SGLang counts the requests of a graph, four rows each with three drafts."""

    def notes(rows: int) -> list[str]:
        scenario = with_values(drafting("eagle3"), {"engine.max_cudagraph_capture_size": rows})
        return [note for note in server_command(scenario, "sglang").notes if "max_cudagraph" in note]

    assert notes(256) == []
    (note,) = notes(258)
    assert "= 258 is cuda-graph-max-bs-decode 64 in" in note
    assert "64 requests of 4 rows, 256 in all" in note


def test_a_command_of_separate_engines_says_what_becomes_of_the_drafts_cache() -> None:
    apart = "sglang serve --model x --disaggregation-mode decode"
    assert read_command(apart).notes == ["disaggregation-mode of the command is not simulated"]
    (note,) = read_command(
        f"{apart} --speculative-algorithm NGRAM --speculative-num-draft-tokens 4 --speculative-ngram-max-bfs-breadth 1"
    ).notes
    assert "draft's KV cache must be handed over too" in note


TIMED = "{} of the command is not simulated: it may change times, which draftcast leaves out"
NGRAM_3 = {"method": "ngram", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("words", "read"),
    [
        (
            "--speculative-config.method ngram -sc.num_speculative_tokens 3",
            {"speculative_config": NGRAM_3},
        ),
        ('--speculative_config \'{"method":"ngram","num_speculative_tokens":3}\'', {"speculative_config": NGRAM_3}),
        (
            "--spec-method eagle3 --spec-model h --spec-tokens 3",
            {"speculative_config": {"method": "eagle3", "model": "h", "num_speculative_tokens": 3}},
        ),
        ("--speculative-config null", {"speculative_config": None}),
        ("-cc.cudagraph_mode=FULL -dcp 2", {"cudagraph_mode": "FULL", "decode_context_parallel_size": 2}),
        ("-O.cudagraph_mode NONE", {"cudagraph_mode": "NONE"}),
        ("--max_num_seqs 64 --max-model-len 8k", {"max_num_seqs": 64, "max_model_len": 8000}),
        ("--max_num_batched_tokens 16K", {"max_num_batched_tokens": 16384}),
        ("--max-model-len 25.6k --tensor-parallel 2", {"max_model_len": 25600, "tensor_parallel_size": 2}),
        ("--max-model-len auto --quantization None", {}),
        ("--no_enable_prefix_caching -q fp8", {"enable_prefix_caching": False, "quantization": "fp8"}),
        ('-O \'{"cudagraph_mode":"NONE"}\'', {"cudagraph_mode": "NONE"}),
    ],
)
def test_vllms_spellings_of_a_flag_are_read(words: str, read: dict[str, object]) -> None:
    for program in ("vllm serve x", "python3 -m vllm.entrypoints.openai.api_server --model x", "HOME2=y vllm serve x"):
        found = read_command(f"{program} {words}")
        assert found.engine == {"model": "x"} | read
        assert found.unread == ()


@pytest.mark.parametrize("words", ["-O0", "-O 0", "-O=0", "--optimization-level 0"])
def test_no_optimization_is_eager(words: str) -> None:
    found = read_command(f"vllm serve x {words}")
    assert (found.engine, found.notes) == ({"model": "x", "enforce_eager": True}, [])
    kept = read_command(f"vllm serve x {words} -cc.cudagraph_mode FULL")
    assert "enforce_eager" not in kept.engine
    assert kept.notes == [TIMED.format("--optimization-level")]


def test_an_optimization_level_that_is_not_simulated_is_noted() -> None:
    assert read_command("vllm serve x -O1").notes == [TIMED.format("--optimization-level")]
    assert read_command("vllm serve x -O3").notes == []


@pytest.mark.parametrize(
    "words",
    [
        "--cudagraph-capture-sizes 1 4 2",
        "--cudagraph-capture 1 2 4",
        "--cudagraph_capture_sizes 1 2 4 -tp 1",
        '--compilation-config \'{"cudagraph_capture_sizes": [1, 4], "max_cudagraph_capture_size": 8}\'',
    ],
)
def test_the_largest_of_the_capture_sizes_is_taken(words: str) -> None:
    found = read_command(f"vllm serve x {words}")
    assert found.engine.pop("tensor_parallel_size", 1) == 1
    assert found.engine == {"model": "x", "max_cudagraph_capture_size": 4}
    assert found.notes == [
        "of the command's cudagraph_capture_sizes the largest, 4, is taken, with vLLM's own sizes up to it"
    ]
    with pytest.raises(ScenarioError, match="cudagraph_capture_sizes = 'a': must be whole numbers"):
        read_command("vllm serve x --cudagraph-capture-sizes a")


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        ("--cpu-offload-gb 8", "--cpu-offload-gb"),
        ("--hf_overrides '{}'", "--hf_overrides"),
        ("--num-scheduler-steps 8", "--num-scheduler-steps"),
        ("--dbo-prefill-token-threshold 8", "--dbo-prefill-token-threshold"),
        ("-cc.mode 0", "--compilation-config.mode"),
        ("--compilation-config '{\"custom_ops\": []}'", "--compilation-config.custom_ops"),
    ],
)
def test_a_flag_that_may_change_times_is_noted_as_left_out(words: str, flag: str) -> None:
    assert read_command(f"vllm serve x {words}").notes == [TIMED.format(flag)]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("--tensor-paralell-size 4", "--tensor-parallel-size"),
        ("--max_num_seq_s 4", "--max-num-seqs"),
        ("--no-enable-prefix-cacheing", "--enable-prefix-caching"),
        ("--cudagraph-captures-sizes 4 8", "--cudagraph-capture-sizes"),
    ],
)
def test_a_misspelt_flag_is_refused(given: str, meant: str) -> None:
    with pytest.raises(ScenarioError, match=f"{given.split(maxsplit=1)[0]}'?: unknown flag; did you mean {meant}[?]"):
        read_command(f"vllm serve x {given}")


@pytest.mark.parametrize(
    ("command", "given", "meant"),
    [
        ("sglang serve --model x", "--max-runing-requests 64", "--max-running-requests"),
        ("sglang serve --model x --tp 2", "--enable-dp-attentoin", "--enable-dp-attention"),
        ("trtllm-serve x", "--max_batch_sze 64", "--max_batch_size"),
        ("trtllm-serve x", "--extra_llm_api_option x.yaml", "--extra_llm_api_options"),
    ],
)
def test_a_misspelt_flag_of_another_server_is_refused(command: str, given: str, meant: str) -> None:
    with pytest.raises(ScenarioError, match=f"{given.split(maxsplit=1)[0]}'?: unknown flag; did you mean {meant}[?]"):
        read_command(f"{command} {given}")


@pytest.mark.parametrize(
    ("command", "unread"),
    [
        ("sglang serve --model x", "--attn-cp-size 2 --cuda-graph-bs-decode 1 2 --moe-data-parallel-size 2"),
        ("sglang serve --model x", "--enable-mixed-chunk --max-queued-requests 4 --disable-decode-cuda-graph"),
        ("trtllm-serve x", "--moe_tensor_parallel_size 2 --moe_cluster_parallel_size 1 --cp_size 1"),
    ],
)
def test_flags_of_other_servers_that_resemble_simulated_ones_are_named_in_their_order(
    command: str, unread: str
) -> None:
    flags = [word.lstrip("-") for word in unread.split() if word.startswith("--")]
    assert read_command(f"{command} {unread}").unread == tuple(flags)


def test_a_block_of_vllm_is_a_multiple_of_16_tokens() -> None:
    assert read_command("vllm serve x --block-size 48").engine["block_size"] == 48
    with pytest.raises(ScenarioError, match="block-size = 7: must be a multiple of 16"):
        read_command("vllm serve x --block-size 7")
    assert read_command("sglang serve --model x --page-size 1").engine["block_size"] == 1


def test_a_file_of_flags_gives_way_to_the_commands_own_words() -> None:
    document = "max-num-seqs: 32\nenable-prefix-caching: false\nspeculative-config:\n  method: ngram\n"
    for server in ("vllm serve x --config a.yaml --max-num-seqs 16", "sglang serve --config a.yaml --model x"):
        text = document if server.startswith("vllm") else "max-running-requests: 32\ndisable-radix-cache: true\n"
        engine = read_command(f"cat > a.yaml <<'EOF'\n{text}EOF\n{server}").engine
        assert engine["max_num_seqs"] == (16 if server.startswith("vllm") else 32)
        assert engine["enable_prefix_caching"] is False
        assert engine.get("speculative_config") == ({"method": "ngram"} if server.startswith("vllm") else None)


def test_the_other_servers_spellings_are_read() -> None:
    sglang = read_command(
        "sglang serve --model x --speculative-algo eagle3 --speculative_num_steps 3 --speculative-eagle-topk 1"
        " --speculative-num-draft-tokens 8 --speculative-draft-model h --context-len 4096"
    )
    assert sglang.engine["max_model_len"] == 4096
    # SGLang itself takes steps + 1 draft tokens of a chain.
    assert sglang.engine["speculative_config"] == {"method": "eagle3", "num_speculative_tokens": 3, "model": "h"}
    assert "speculative_config" not in read_command("sglang serve --model x --speculative-algorithm NONE").engine
    alone = {"cudagraph_mode": "FULL_DECODE_ONLY"}
    for switch, said in (
        ("disable-cuda-graph", {"enforce_eager": True}),
        ("deepep-mode normal", {"enforce_eager": True}),
        ("disable-piecewise-cuda-graph", alone),
        ("disable-prefill-cuda-graph", alone),
        ("enable-piecewise-cuda-graph", {"cudagraph_mode": "FULL_AND_PIECEWISE"}),
    ):
        read = read_command(f"sglang serve --model x --{switch}")
        assert said.items() <= read.engine.items()
        assert not any(switch in note for note in read.notes)
    assert not read_command("sglang serve --model x --deepep-mode auto").engine.get("enforce_eager")
    both = read_command("sglang serve --model x --disable-piecewise-cuda-graph --disable-cuda-graph")
    assert both.engine["enforce_eager"]
    document = "speculative_config:\n  decoding_type: MTP\n  num_nextn_predict_layers: 3\n"
    trtllm = read_command(f"cat > a.yaml <<'EOF'\n{document}EOF\ntrtllm-serve x --config a.yaml")
    assert trtllm.engine["speculative_config"] == {"method": "mtp", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("vllm serve x --speculative-model y --num-speculative-tokens 3", "no speculation that can be simulated"),
        ("sglang serve --model x --speculative-num-steps 3", "no speculation that can be simulated"),
        (
            "sglang serve --model x --speculative-algorithm NGRAM --speculative-ngram-match-type PROB",
            "without speculative-ngram-max-bfs-breadth 1 in the command",
        ),
        (
            "sglang serve --model x --speculative-algorithm EAGLE3",
            "without speculative-num-steps and speculative-eagle-topk 1 and speculative-num-draft-tokens",
        ),
        (
            "cat > a.yaml <<'EOF'\nspeculative_config:\n  max_draft_len: 3\nEOF\ntrtllm-serve x --config a.yaml",
            "needs decoding_type",
        ),
        ("sglang serve --tp 2", "names no model"),
    ],
)
def test_speculation_that_cannot_be_read_is_refused(command: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        read_command(command)


@pytest.mark.parametrize("words", ["", " --max_num_tokens 4096"])
def test_without_chunked_prefill_requests_fit_into_a_step(words: str) -> None:
    read = read_command(f"trtllm-serve meta-llama/Llama-3.1-8B-Instruct{words}")
    step = 4096 if words else 8192
    assert read.engine["max_model_len"] == step
    assert read.notes == [f"the command gives no max_seq_len: requests are limited to the {step} tokens of a step"]
    given = read_command(f"trtllm-serve meta-llama/Llama-3.1-8B-Instruct --max_seq_len 2048{words}")
    assert (given.engine["max_model_len"], given.notes) == (2048, [])
    assert "max_model_len" not in read_command("trtllm-serve facebook/opt-125m").engine  # 2,048 positions


def test_what_no_command_says_is_noted() -> None:
    scenario = with_values(
        drafting("eagle3"), {"policy": {"name": "goodput"}, "cluster": {"replicas": 3, "router": "least_loaded"}}
    )
    for server in SERVERS:
        notes = " ".join(server_command(scenario, server).notes)
        assert "policy.name = goodput has no counterpart in" in notes
        assert "Start 3 of them behind a router (least_loaded)." in notes
        assert ("The forecast is of vllm 0.32" in notes) is (server != "vllm")
    assert shlex.split(server_command(scenario, "vllm").line)[:2] == ["vllm", "serve"]


@pytest.mark.parametrize(
    ("version", "server", "noted"),
    [
        ("vllm 0.10", "vllm", True),
        ("vllm 0.32", "vllm", False),
        ("vllm 0.32.1 v1", "vllm", False),
        ("sglang 0.5", "sglang", False),
        ("sglang 0.5.6", "sglang", True),
        ("sglang 0.5", "vllm", True),
        ("vllm 0.32", "trtllm", True),
    ],
)
def test_a_forecast_of_another_release_than_the_commands_is_noted(version: str, server: str, noted: bool) -> None:
    made = server_command(changed(version=version), server)
    assert any(note.startswith(f"The forecast is of {version}; ") for note in made.notes) is noted


@pytest.mark.parametrize("server", OTHERS)
def test_a_draft_of_another_vocabulary_is_vllms_alone(server: str) -> None:
    other = drafting("draft_model", model="qwen3-0.6b", use_heterogeneous_vocab=True)
    assert server_command(other, "vllm").line
    with pytest.raises(ScenarioError, match="maps no drafts of another vocabulary"):
        server_command(other, server)


@pytest.mark.parametrize("server", OTHERS)
def test_forced_rates_by_position_are_noted_as_their_mean(server: str) -> None:
    rates = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.7, 0.5, 0.3]}
    notes = server_command(drafting("eagle3", **rates), server).notes
    assert len([note for note in notes if "no rate by position" in note]) == 1
    for scenario in (SYNTHETIC, drafting("eagle3", **rates)):
        assert not any("rejection_sample_method" in note for note in server_command(scenario, server).notes)


def test_a_command_pasted_into_the_command_line_is_the_engine_that_runs(tmp_path: Path) -> None:
    small = ("workload.num_requests=60", "statistics.replications=1", "statistics.warmup=none")
    scenario = load_scenario("default", overrides=[*small, "engine.max_num_seqs=2"])
    (tmp_path / "start.sh").write_text(server_command(scenario, "sglang").line + " --port 1")

    def figures(*options: str) -> Any:
        changes = [word for change in small for word in ("--set", change)]
        line = ["simulate", "default", *changes, *options, "--no-compare-off", "--json"]
        found = CliRunner().invoke(cli.app, line)
        assert found.exit_code in (0, UNSTABLE)
        assert ("port of the command is not simulated" in found.stderr) is bool(options)
        return json.loads(found.stdout)["figures"]

    pasted = figures("--serve-command", str(tmp_path / "start.sh"))
    assert pasted["mean_e2el_s"]["mean"] == np.mean([r["mean_e2el_s"] for r in simulate(scenario).replications])
    assert pasted["mean_e2el_s"]["mean"] > figures()["mean_e2el_s"]["mean"]  # two requests at once, many wait
    both = ["--serve-command", "vllm serve x", "--speculative-config", "null"]
    with pytest.raises(InputError, match="not both"):
        CliRunner().invoke(cli.app, ["simulate", "default", *both], catch_exceptions=False)
