"""Rows as scenarios: hand-checked ones key by key, reasons by field, and what is assumed."""

from __future__ import annotations

import re
from typing import Any

import pytest
from evidence_row import BASE

from draftcast import simulate
from draftcast.kernels.model.heads import is_bundled_head
from draftcast.scenarios.evidence.point import EvidencePoint, points
from draftcast.scenarios.evidence.question import scenarios_of
from draftcast.scenarios.evidence.settings import NAMES, Reading
from draftcast.scenarios.run.deployment import cached_deployment
from draftcast.scenarios.schema.engine import Engine

ROWS = {point.id: point for point in points()}


def asked(**changes: Any) -> Reading:
    return scenarios_of(EvidencePoint.model_validate({**BASE, **changes}))


def test_a_hand_checked_row_key_by_key() -> None:
    question = scenarios_of(ROWS["khab40-qwen3-8b-h100-bf16-k2-c32"])
    off, on = question.off, question.on
    assert off is not None
    assert on is not None
    assert question.reasons == ()
    for side in (off, on):
        assert side.engine.model == "Qwen3-8B"
        assert side.hardware == "h100-sxm"
        assert side.engine.weight_dtype == "bf16"
        assert side.engine.max_model_len == 2048
        assert side.engine.max_num_seqs == 64
        assert side.engine.max_num_batched_tokens == 8192
        assert side.engine.gpu_memory_utilization == 0.95
        assert side.engine.tensor_parallel_size == 1
        assert side.statistics.warmup == "none"
        assert side.workload.num_requests == 256
        arrivals: Any = side.workload.arrivals
        assert (arrivals.process, arrivals.concurrency) == ("closed_loop", 32)
        lengths: Any = side.workload.lengths
        assert lengths.output_tokens.value == 256
        assert lengths.prompt_tokens.mean == 88.6
    assert off.speculative_config is None
    assert (on.method, on.num_speculative_tokens) == ("eagle3", 2)
    acceptance: Any = on.acceptance
    assert acceptance.rates == (0.336, 0.078)


@pytest.mark.parametrize(
    ("changes", "layout"),
    [
        ({"engine": "vllm", "tp": 1, "dp": 8, "ep": True}, "TP1 DP8 EP"),
        ({"engine": "sglang", "tp": 8, "dp": 8, "ep": 8}, "TP1 DP8 EP"),
        ({"engine": "sglang", "tp": 8, "dp": 4}, "TP2 DP4"),
        ({"engine": "sglang", "tp": 8, "flags": {"server": "x --enable-dp-attention --dp-size 4"}}, "TP2 DP4"),
        ({"tp": 2, "pp": 4}, "TP2 PP4"),
        ({"tp": 8, "flags": {"decode-context-parallel-size": 8}}, "TP8 DCP8"),
        ({"engine": "sglang", "tp": 8, "ep": 2}, "TP8 EP2"),
    ],
)
def test_what_runs_on_which_gpus_is_expressed(changes: dict[str, Any], layout: str) -> None:
    question = asked(**{"model": "deepseek-ai/DeepSeek-V3", "gpu": "H200", "num_gpus": 8, **changes})
    assert question.off is not None, question.reasons
    assert question.off.engine.layout == layout


def test_the_figure_without_speculation_sets_nothing() -> None:
    before, after = asked(), asked(off=70.0, ratio=None)
    assert (before.off, before.on) == (after.off, after.on)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": None}, "model: not named"),
        ({"model": "zai-org/GLM-5.3-Flash"}, "not among the bundled models"),
        ({"model": "someone/new-model"}, "model: someone/new-model: not among the bundled models"),
        ({"gpu": "unknown (80 GB class)"}, "gpu: not named"),
        ({"gpu": "Radeon-AI-PRO-R9700"}, "gpu: Radeon-AI-PRO-R9700 is not among the bundled devices"),
        ({"gpu": "H100/H200 (SM90; not printed)"}, "which one?"),
        ({"quantization": "w4afp8"}, "quantization: w4afp8 is not known"),
        ({"kv_cache_dtype": "int3"}, "kv_cache_dtype: int3 is not known"),
        ({"engine": "tensorrt-llm"}, "engine: tensorrt-llm is not simulated"),
        ({"pp": 2}, "num_gpus: 1 GPUs at tp 1, pp 2, dp 1"),
        ({"dp": 8}, "num_gpus: 1 GPUs at tp 1, pp 1, dp 8"),
        ({"engine": "lmdeploy"}, "engine: lmdeploy is not simulated"),
        ({"model": "meta-llama/Llama-3.3-70B-Instruct", "tp": None, "num_gpus": None}, "tp: not given"),
        ({"tp": 16, "num_gpus": 16}, "tp: 16 GPUs span nodes"),
        ({"num_gpus": 4}, "num_gpus: 4 GPUs at tp 1"),
        ({"load": {"kind": "rate"}}, "load.value: not given"),
        ({"dataset": "letters", "input_tokens": None}, "input_tokens: not given"),
    ],
)
def test_what_cannot_be_expressed_has_a_reason_by_field(changes: dict[str, Any], reason: str) -> None:
    question = asked(**changes)
    assert not question.is_expressed
    assert any(reason in text for text in question.reasons), question.reasons


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"spec": {"method": "eagle3"}}, "spec.k: not given"),
        ({"spec": {"method": "telepathy", "k": 2}}, "spec.method: telepathy is not simulated"),
        ({"spec": {"method": "draft_model", "k": 2, "draft_model": "a/b"}}, "spec.draft_model: a/b"),
        ({"spec": {"method": "tree", "k": 2}}, "flags.speculative_eagle_topk"),
        ({"acceptance": None}, "acceptance: not given"),
        ({"spec": {"method": "mtp", "k": 1}}, ""),
    ],
)
def test_the_side_without_speculation_stays_where_the_other_cannot_be_expressed(
    changes: dict[str, Any], reason: str
) -> None:
    question = asked(**changes)
    assert question.off is not None
    assert question.is_expressed
    if reason:
        assert question.on is None
        assert any(reason in text for text in question.reasons)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("amd/Llama-3.1-405B-Instruct-FP8-KV", "Llama-3.1-405B"),
        ("Qwen/Qwen3-8B-FP8", "Qwen/Qwen3-8B-FP8"),  # its name says that it is in blocks
        ("deepseek-ai/DeepSeek-R1-0528", "DeepSeek-V3"),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "Qwen3-Coder-30B-A3B-Instruct"),
        ("Qwen/Qwen3-235B-A22B-FP8 (block)", "Qwen/Qwen3-235B-A22B-FP8"),
        ("zai-org/GLM-4.5-Air-FP8", "GLM-4.5-Air"),
        ("moonshotai/Kimi-K2-Thinking", "Kimi-K2.5"),
        ("baidu/ERNIE-4.5-21B-A3B-PT", "ERNIE-4.5-21B-A3B"),
        ("meta-llama/Llama-3.3-70B-Instruct", "Llama-3.1-70B"),
    ],
)
def test_a_checkpoint_has_the_shapes_of_a_bundled_model(name: str, model: str) -> None:
    side = asked(model=name, tp=8, num_gpus=8).off
    assert side is not None
    assert side.engine.model == model


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"gpu": "NVIDIA H100 80GB HBM3"}, {"gpu": "H100-SXM"}),
        ({"gpu": "A100-SXM4-40GB"}, {"gpu": "a100-40g"}),
        ({"quantization": "FP8 (per tensor)"}, {"quantization": "fp8"}),
        ({"quantization": "fp8_dynamic"}, {"quantization": "fp8"}),
        ({"quantization": "int4-awq"}, {"quantization": "awq"}),
        ({"quantization": "gptq-int4"}, {"quantization": "w4a16"}),
        ({"kv_cache_dtype": "fp8_e4m3 (calibrated)"}, {"kv_cache_dtype": "fp8"}),
        ({"kv_cache_dtype": "bfloat16"}, {"kv_cache_dtype": "bf16"}),
        ({"spec": {"method": "EAGLE-3", "k": 2}}, {"spec": {"method": "eagle3", "k": 2}}),
        ({"spec": {"method": "eagle2", "k": 2}}, {"spec": {"method": "eagle", "k": 2}}),
        ({"spec": {"method": "nextn", "k": 1}}, {"spec": {"method": "mtp", "k": 1}}),
        ({"spec": {"method": "qwen3_next_mtp", "k": 1}}, {"spec": {"method": "mtp", "k": 1}}),
    ],
)
def test_a_name_in_another_spelling_says_the_same(changes: dict[str, Any], same: dict[str, Any]) -> None:
    read, expected = asked(**changes), asked(**same)
    assert (read.off, read.on) == (expected.off, expected.on)
    assert read.is_expressed
    assert read.reasons == ()


def test_flags_of_both_engines_and_of_command_lines() -> None:
    command = "vllm serve x --max-num-seqs 96 --no-enable-prefix-caching --enforce-eager --block-size=32"
    side = asked(flags={"cmd": command, "max-model-len": 4096}).off
    assert side is not None
    engine = side.engine
    assert (engine.max_num_seqs, engine.block_size, engine.max_model_len) == (96, 32, 4096)
    assert not engine.enable_prefix_caching
    assert engine.enforce_eager
    side = asked(flags={"async_scheduling": "off (the default)", "context-length": "2048"}).off
    assert side is not None
    assert (side.engine.async_scheduling, side.engine.max_model_len) == (False, 2048)
    flags = {"max-running-requests": "48", "mem_fraction_static": 0.8, "disable-radix-cache": True}
    side = asked(engine="sglang", flags=flags).off
    assert side is not None
    assert (side.engine.max_num_seqs, side.engine.gpu_memory_utilization) == (48, 0.8)
    assert not side.engine.enable_prefix_caching
    for flag, key in (
        ("deepep-mode=normal", "enforce_eager"),
        ("mamba-scheduler-strategy=extra_buffer", "async_scheduling"),
        ("disable-cuda-graph", "enforce_eager"),
    ):
        read, plain = (asked(engine="sglang", flags={"server": words}).off for words in (f"x --{flag}", "x"))
        assert read is not None
        assert plain is not None
        assert (getattr(read.engine, key), bool(getattr(plain.engine, key))) == (True, False)

    for flags, key, value in (
        ({"api-server-count": 20}, "api_server_count", 20),
        ({"disable-overlap-schedule": True}, "async_scheduling", False),
    ):
        side = asked(flags=flags).off
        assert side is not None
        assert getattr(side.engine, key) == value


def test_a_graph_mode_of_a_command_is_the_engine_s() -> None:
    piecewise = asked(flags={"cudagraph_mode": "PIECEWISE"}).off
    assert piecewise is not None
    assert piecewise.engine.cudagraph_mode == "PIECEWISE"


def test_a_tree_counts_its_root_among_its_draft_tokens() -> None:
    side = scenarios_of(ROWS["gpustack-qwen3-8b-h100-sweep-c4-tengyunw-s4-t4-d16"]).on
    assert side is not None
    assert side.speculative_config is not None
    assert side.num_speculative_tokens == 4
    tree = side.speculative_config.tree
    assert tree is not None
    assert (tree.tree_width, tree.max_tree_nodes) == (4, 15)
    acceptance: Any = side.acceptance
    # 11.87 ms between chunks at 3.75 ms a token.
    gap_ms = ROWS["gpustack-qwen3-8b-h100-sweep-c4-tengyunw-s4-t4-d16"].more["on_itl_mean_ms"]
    assert 1 + sum(acceptance.rates) == pytest.approx(gap_ms / 3.75, rel=1e-6)


def test_dflash2_is_a_head_of_dflash() -> None:
    side = asked(engine_version="0.28", spec={"method": "dflash2", "k": 2, "draft_model": "x/Qwen3-8B-DFlash2"}).on
    assert side is not None
    assert side.method == "dflash"
    draft = cached_deployment(side).draft
    assert draft is not None
    assert draft.selector_rank == 256


def test_a_named_head_is_served_and_a_tree_takes_an_eagle3_head() -> None:
    def head(point_id: str) -> str | None:
        side = scenarios_of(ROWS[point_id]).on
        assert side is not None
        assert side.speculative_config is not None
        return side.speculative_config.model

    full = head("dishant-qwen3-8b-h100-bf16-k1-fullvocab-c8")
    assert full == "own EAGLE-3 head, draft vocab 151936 (full)"
    assert is_bundled_head(full)
    assert head("gpustack-qwen3-8b-h100-sweep-c4-tengyunw-s4-t4-d16") == "qwen3-8b-eagle3"
    assert head("specforge-339-qwen3-30b-a3b-h100x2-b1-s3t3d4") == "zhuyksir/EAGLE3-Qwen3-30B-A3B-DenseHead"


@pytest.mark.parametrize(
    ("given", "mean"),
    [
        ({"mean_length": 1.5}, 1.5),
        ({"mean_length": 0.5 + 1, "definition": "excludes the bonus token"}, 2.5),
        ({"rate": 0.25}, 1.5),
        ({"per_position": [0.4, 0.1]}, 1.5),
    ],
)
def test_acceptance_in_each_of_its_forms(given: dict[str, Any], mean: float) -> None:
    side = asked(acceptance=given).on
    assert side is not None
    acceptance: Any = side.acceptance
    rates = acceptance.rates if acceptance.model == "per_position" else (acceptance.alpha, acceptance.alpha**2)
    assert 1 + sum(rates) == pytest.approx(mean)


def test_chunks_of_a_stream_tell_how_often_an_ngram_search_found_something() -> None:
    question = scenarios_of(ROWS["varad-a10g-qwen-ngram-c8"])
    assert question.on is not None
    acceptance: Any = question.on.acceptance
    assert 1 + acceptance.match_probability * sum(acceptance.rates) == pytest.approx(256 / 239.06)
    assert "acceptance" in question.assumed


def test_counted_drafts_tell_the_share_of_rounds_with_a_match() -> None:
    more = {
        "on_spec_decode_num_drafts_total": 40,
        "on_spec_decode_num_accepted_tokens_total": 100,
        "on_generation_tokens_total": 300,
    }
    spec = {"method": "ngram", "k": 2}
    side = asked(more=more, spec=spec, acceptance={"per_position": [0.9, 0.8]}).on
    assert side is not None
    acceptance: Any = side.acceptance
    assert acceptance.match_probability == pytest.approx(40 / 200)
    assert acceptance.rates == (0.9, 0.8)


def workload(**changes: Any) -> Any:
    side = asked(**changes).off
    assert side is not None
    return side.workload


def test_loads_as_arrivals() -> None:
    rate = workload(load={"kind": "rate", "value": 2, "num_prompts": 30})
    assert (rate.arrivals.process, rate.arrivals.request_rate_rps, rate.num_requests) == ("poisson", 2.0, 30)
    burst = workload(load={"kind": "burst", "value": 500, "num_prompts": 500})
    assert (burst.arrivals.concurrency, burst.num_requests) == (500, 500)
    static = workload(dataset="fixed lengths, static batch", load={"kind": "batch", "value": 16})
    assert (static.arrivals.concurrency, static.num_requests) == (16, 16)
    scripts = asked(source="InferenceX PR 1", load={"kind": "concurrency", "value": 64})
    assert scripts.off is not None
    assert scripts.off.workload.num_requests == 640
    assert scripts.assumed["load.num_prompts"].startswith("640, as")
    kept = workload(load={"kind": "batch", "value": 4, "num_prompts": 80})
    assert (kept.arrivals.concurrency, kept.num_requests) == (4, 80)


def test_what_a_sources_own_pages_say_of_its_rows() -> None:
    """One batch again and again, whose prompts are in the prefix cache, under full CUDA graphs."""
    row: dict[str, Any] = {"dataset": "fixed lengths, static batch", "input_tokens": 2048, "engine_version": "0.10.0"}
    of_source = row | {"source": "ROCm/vllm dev-docker README", "load": {"kind": "batch", "value": 16}}
    cached, other = asked(**of_source), asked(**row | {"load": {"kind": "batch", "value": 16}})
    assert cached.off is not None
    assert other.off is not None
    assert (cached.off.engine.cudagraph_mode, other.off.engine.cudagraph_mode) == ("FULL", None)
    assert "cache" in cached.assumed["input_tokens"]
    assert "FULL" in cached.assumed["flags.cudagraph_mode"]
    requests = simulate(cached.off).requests.groupby("replication").nth(-1)
    assert set(requests["prompt_tokens"]) == {2048}
    assert set(requests["cached_tokens"]) == {2032}  # whole blocks, and not the token whose logits are asked for
    assert set(simulate(other.off).requests["cached_tokens"]) == {0}
    misread = asked(id="recipes-dsv32-h20-tp8", gpu="H20", num_gpus=8, tp=8)
    assert misread.off is not None
    assert (misread.off.hardware, "pages" in misread.assumed["gpu"]) == ("h20-141g", True)
    burst = asked(**of_source | {"load": {"kind": "burst", "value": 16}}).off
    assert burst is not None
    assert burst.workload.system_prompt is None


def test_what_pages_say_is_of_shipped_rows_and_of_keys_that_count() -> None:
    known = {"row", "engine", "range_ratio", "prompts_a_client", "cached_share"}
    for pattern, facts in NAMES["sources"].items():
        rows = [row for row in ROWS.values() if re.search(pattern, f"{row.source} {row.id}")]
        assert rows, pattern
        assert set(facts) <= known
        EvidencePoint.model_validate({**BASE, **facts.get("row", {})})
        assert set(facts.get("engine", {})) <= set(Engine.model_fields)
        kinds = {row.load.kind for row in rows}
        assert set(facts.get("cached_share", {})) <= kinds


def test_clients_that_send_at_a_rate_with_a_limit_are_a_rate_under_the_engine_s_limit() -> None:
    limited = {"load": {"kind": "concurrency", "value": 64, "num_prompts": 128}, "flags": {"request_rate": 10}}
    off = asked(**limited).off
    assert off is not None
    assert (off.workload.arrivals.process, off.rate_rps, off.engine.max_num_seqs) == ("poisson", 10.0, 64)
    for unlimited in ("inf", "as fast as it goes"):
        at_once = asked(**limited | {"flags": {"request_rate": unlimited}}).off
        assert at_once is not None
        assert at_once.workload.arrivals.process == "closed_loop"


def test_a_row_that_cannot_have_run_with_sglang_s_default_share_takes_another_and_says_so() -> None:
    sglang = {"engine": "SGLang", "engine_version": "0.5.6"}
    plain, tight = (asked(**sglang, flags={"chunked-prefill-size": tokens}) for tokens in (8192, 65536))
    assert plain.off is not None
    assert tight.off is not None
    assert (plain.off.engine.gpu_memory_utilization, tight.off.engine.gpu_memory_utilization) == (None, 0.92)
    assert "gpu_memory_utilization" not in plain.assumed
    assert "does not start" in tight.assumed["gpu_memory_utilization"]


def test_lengths_of_generated_prompts() -> None:
    assert workload().lengths.prompt_tokens.value == 100
    drawn = workload(engine="sglang").lengths.prompt_tokens
    assert (drawn.low, drawn.high) == (1, 100)
    totals = {"total_input_tokens": 80 * 61, "total_output_tokens": 80 * 42}
    counted = workload(engine="sglang", more=totals).lengths
    assert (counted.prompt_tokens.high, counted.output_tokens.high) == (122, 84)
    whole = workload(engine="sglang", dataset="random (range ratio 1.0)").lengths
    assert whole.prompt_tokens.value == 100
    most = workload(dataset="random (range ratio 0.8)").lengths.prompt_tokens
    assert (most.low, most.high) == (80, 100)
    of_source = workload(dataset="random", source="InferenceX issue 1").lengths.prompt_tokens
    assert of_source == most


def test_a_runs_time_and_rate_tell_its_outputs() -> None:
    changes: dict[str, Any] = {"dataset": "GSM8K 5-shot", "input_tokens": None, "output_tokens": None}
    changes |= {"metric": "output_tok_s", "load": {"kind": "concurrency", "value": 64, "num_prompts": 200}}
    timed = workload(**changes, off=3000.0, on=None, more={"latency_s": 12.0}).lengths.output_tokens
    assert (timed.mean, timed.std) == (180.0, 72.0)  # the spread is that of the data set
    either = workload(**changes, off=3000.0, on=4000.0, more={"off_latency_s": 12.0, "on_latency_s": 9.0})
    assert either.lengths.output_tokens == timed
    assert workload(**changes, off=3000.0, on=None).lengths.output_tokens.mean == 120.0
    assert workload(**changes, off=3000.0, on=None, more={"latency_s": "?"}).lengths.output_tokens.mean == 120.0
    question = asked(**changes, off=3000.0, on=None, more={"latency_s": 12.0})
    assert question.assumed["output_tokens"] == "latency times throughput over the number of requests"


def test_a_named_data_set_has_typical_lengths_which_are_said_to_be_assumed() -> None:
    question = asked(dataset="ShareGPT", input_tokens=None, output_tokens=None)
    assert question.off is not None
    lengths: Any = question.off.workload.lengths
    assert (lengths.prompt_tokens.mean, lengths.output_tokens.mean) == (229.7, 203.1)
    assert "typical" in question.assumed["input_tokens"]


def test_a_point_is_forecast_under_the_engine_it_ran_on() -> None:
    def version(**changes: Any) -> str:
        side = asked(**changes).off
        assert side is not None
        return side.engine.version

    assert version(engine_version="0.11.0") == "vllm 0.11"
    assert version(engine_version="main 2025-07", date="2025-07") == "vllm 0.10"
    assert version(engine_version="commit dea6351", date="20260213") == "vllm 0.16"
    assert version(engine_version="main 2026-04, MRV2", date="2026-04") == "vllm 0.25 v2"
    assert version(engine_version="0.27.1, V1 runner") == "vllm 0.27 v1"
    assert version(engine_version="V0 (mid 2024)", date="2024-10") == "vllm 0.7"
    assert version(engine="sglang", engine_version="0.5.6.post2") == "sglang 0.5.6"
    assert version(engine="sglang", engine_version="main", date="2025-09-30") == "sglang 0.5.2"
    asynchronous = asked(engine_version="0.11.0", flags={"async-scheduling": True}).off
    assert asynchronous is not None
    assert asynchronous.engine.async_scheduling is True


def test_a_point_without_a_temperature_is_greedy_which_is_said_to_be_assumed() -> None:
    for given, used in ((None, 0.0), (0.6, 0.6)):
        question = asked(temperature=given)
        assert question.off is not None
        assert question.off.workload.temperature == used
        assert ("temperature" in question.assumed) == (given is None)


def test_every_shipped_row_is_expressed_or_has_a_reason() -> None:
    for point in ROWS.values():
        question = scenarios_of(point)
        assert question.is_expressed or question.reasons, point.id
