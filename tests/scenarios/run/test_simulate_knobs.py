"""No knob of a scenario file is ignored: each one, under the condition it is for, changes a figure of the result."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
from pydantic import BaseModel

from draftcast import RunResult, load_scenario, simulate
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.correction import Correction
from draftcast.scenarios.schema.speculation import UNTIMED, SpeculativeConfig
from draftcast.sim.acceptance.model import AcceptanceModel

SMALL = ("workload.num_requests=200", "statistics.replications=1", "workload.arrivals.request_rate_rps=20")
FINITE = (
    "statistics.warmup=none"  # conditions that make a knob matter are often overloads, which have no steady figures
)
# Latency or throughput, which a user would see; a knob about something else names its figure.
SEEN = ("mean_ttft_s", "mean_e2el_s", "output_throughput")

SPEC = "engine.speculative_config"
BUSY = "workload.arrivals.request_rate_rps=120"
SCARCE = ("engine.num_gpu_blocks=600", BUSY)  # 9,600 tokens: requests queue for memory and are preempted
SHORT = "workload.lengths={prompt_tokens: 200, output_tokens: 40}"
PROMPTS = "workload.lengths.prompt_tokens"
NGRAM = f"{SPEC}={{method: ngram, num_speculative_tokens: 4}}"
NGRAM_ACCEPTANCE = "acceptance={model: ngram, match_probability: 0.5, alpha: 0.6}"
RATES = "acceptance.rates=[0.661, 0.377, 0.216]"  # the scenario's own, given along with another method
DRAFT = (f"{SPEC}={{method: draft_model, model: llama-3.2-1b, num_speculative_tokens: 3}}", RATES)
QWEN = ("engine.model=Qwen3-8B", f"{SPEC}.model=qwen3-8b-eagle3")
TREES = ("engine.version=sglang 0.5", f"{SPEC}={{method: eagle_tree, num_speculative_tokens: 3}}")
TREE = (*TREES, "acceptance={model: tree, rates: [0.8, 0.6, 0.4]}")
MATCHED_TREE = (TREES[0], f"{SPEC}={{method: ngram, num_speculative_tokens: 3, tree_width: 3}}")
TREE_RATES = "acceptance={model: tree, rates: [0.8, 0.5, 0.3], tree_width: 8, match_probability: 0.4}"
TREE_MATCHES = "model: tree, alpha: 0.5, match_probability: 0.4"
SYNTHETIC = f"{SPEC}={{method: eagle3, num_speculative_tokens: 3, rejection_sample_method: synthetic, "
ARCTIC = (
    f"{SPEC}={{method: arctic, num_speculative_tokens: 3}}",
    "acceptance={model: constant, alpha: 0.6}",
    "engine.version=vllm 0.11",
)
BESIDE_HEAD = "acceptance={model: chain, match_probability: 0.4, alpha_good: 0.9, alpha_bad: 0.6}"
STRETCHES = "model: chain, alpha_good: 0.9, alpha_bad: 0.2, good_share: 0.5, persistence: 0.8"
AZURE = "workload={arrivals: {process: trace, path: AZURE}}"
MOONCAKE = ("workload={arrivals: {process: trace, path: MOONCAKE}}", "engine.max_model_len=null")
LOOP = "workload.arrivals={process: closed_loop, concurrency: 8, think_time_s: 0.5}"
CLASSES = (
    "workload.classes=[{name: a, share: 0.5, lengths: {prompt_tokens: 100, output_tokens: 50}},"
    " {name: b, share: 0.5, lengths: {prompt_tokens: 300, output_tokens: 150}}]"
)
SESSIONS = "workload.sessions={turns: 5, think_time_s: 1}"
AGENTS = (SESSIONS, "workload.sessions.calls_per_turn=2", "workload.sessions.tool_output_tokens=200")
EXPERTS = (f"{SPEC}=null", "engine.model=Qwen3-30B-A3B", "engine.tensor_parallel_size=8")
GROUPS = "cluster={groups: [{}, {engine: {max_num_seqs: 4, speculative_config: null}}]}"
SLO = "slo={ttft_ms: 30, tpot_ms: 4.5, e2el_ms: 600, attainment: 0.5}"


SEGMENTS = (
    "workload.arrivals={process: piecewise,"
    " segments: [{duration_s: 2, request_rate_rps: 20}, {duration_s: 2, request_rate_rps: 60}]}"
)


class Knob(NamedTuple):
    """``change`` changes ``figure`` (None: one of SEEN) against the small default scenario under ``condition``."""

    field: str  # model and field of the schema
    change: str | tuple[str, ...]
    condition: str | tuple[str, ...] = ()
    figure: str | None = None


def lengths(distribution: str) -> str:
    return f"{PROMPTS}={{{distribution}}}"


def arrivals(process: str) -> str:
    return f"workload.arrivals={{{process}}}"


def acceptance(model: str) -> str:
    return f"acceptance={{{model}}}"


def as_tuple(overrides: str | tuple[str, ...]) -> tuple[str, ...]:
    return (overrides,) if isinstance(overrides, str) else overrides


KNOBS = [
    Knob("Engine.model", "engine.model=llama-3.2-3b", f"{SPEC}.model=null"),
    Knob("Engine.tensor_parallel_size", "engine.tensor_parallel_size=2"),
    Knob("Engine.pipeline_parallel_size", "engine.pipeline_parallel_size=2"),
    Knob("Engine.data_parallel_size", "engine.data_parallel_size=2"),
    Knob("Engine.enable_expert_parallel", "engine.enable_expert_parallel=true", EXPERTS),
    Knob(
        "Engine.expert_parallel_size",
        "engine.expert_parallel_size=2",
        (*EXPERTS, "engine.version=sglang 0.5.20", "engine.enable_expert_parallel=true"),
    ),
    Knob("Engine.decode_context_parallel_size", "engine.decode_context_parallel_size=2", EXPERTS),
    Knob("Engine.dtype", "engine.dtype=float32"),
    Knob("Engine.quantization", "engine.quantization=fp8"),
    Knob("Engine.kv_cache_dtype", "engine.kv_cache_dtype=fp8"),
    Knob("Engine.max_model_len", "engine.max_model_len=300", "workload.max_model_len_action=clip"),
    Knob("Engine.max_num_seqs", "engine.max_num_seqs=4"),
    Knob("Engine.max_num_batched_tokens", "engine.max_num_batched_tokens=128", "engine.max_num_seqs=64"),
    Knob("Engine.max_num_scheduled_tokens", "engine.max_num_scheduled_tokens=64"),
    Knob("Engine.block_size", "engine.block_size=32", SCARCE),
    Knob("Engine.gpu_memory_utilization", "engine.gpu_memory_utilization=0.85", (BUSY, "hardware=a10g")),
    Knob("Engine.num_gpu_blocks", "engine.num_gpu_blocks=600", BUSY),
    # Without shared prompts only a preempted request hits: its own blocks.
    Knob("Engine.enable_prefix_caching", "engine.enable_prefix_caching=false", SCARCE),
    Knob("Engine.enable_prefix_caching", "engine.enable_prefix_caching=false", MOONCAKE),
    Knob(
        "Engine.enable_chunked_prefill",
        "engine.enable_chunked_prefill=false",
        (
            "engine.max_model_len=4096",
            "engine.max_num_batched_tokens=4096",
            BUSY,
            lengths("distribution: constant, value: 1500"),
        ),
    ),
    Knob("Engine.long_prefill_token_threshold", "engine.long_prefill_token_threshold=32"),
    Knob("Engine.watermark", "engine.watermark=0.2", SCARCE),
    Knob(
        "Engine.scheduling_policy",
        ("engine.scheduling_policy=priority", "workload.classes.1.priority=5"),
        (CLASSES, "engine.max_num_seqs=4"),
    ),
    Knob("Engine.async_scheduling", "engine.async_scheduling=false"),
    Knob(
        "Engine.api_server_count", "engine.api_server_count=2", (arrivals("process: poisson, request_rate_rps: 3000"),)
    ),
    Knob("Engine.enforce_eager", "engine.enforce_eager=true"),
    Knob("Engine.version", "engine.version=vllm 0.12"),
    Knob("Engine.cudagraph_mode", "engine.cudagraph_mode=PIECEWISE"),
    Knob("Engine.max_cudagraph_capture_size", "engine.max_cudagraph_capture_size=8"),
    Knob("Engine.speculative_config", f"{SPEC}=null"),
    # speculation
    Knob("SpeculativeConfig.method", (f"{SPEC}.method=eagle", RATES), f"{SPEC}.model=null"),
    Knob("SpeculativeConfig.model", f"{SPEC}.model=llama-3.2-3b", DRAFT),
    Knob("SpeculativeConfig.model", f"{SPEC}.model=qwen3-8b-eagle3-full-vocabulary", QWEN),
    Knob("SpeculativeConfig.num_speculative_tokens", f"{SPEC}.num_speculative_tokens=1"),
    Knob(
        "SpeculativeConfig.num_speculative_tokens_per_batch_size",
        f"{SPEC}.num_speculative_tokens_per_batch_size=[[1, 4, 3], [5, 1024, 0]]",
    ),
    Knob(
        "SpeculativeConfig.draft_tensor_parallel_size",
        f"{SPEC}.draft_tensor_parallel_size=1",
        (*DRAFT, "engine.tensor_parallel_size=2"),
    ),
    Knob(
        "SpeculativeConfig.enable_adaptive_verification",
        f"{SPEC}.enable_adaptive_verification=true",
        (
            f"{SPEC}={{method: dspark, num_speculative_tokens: 7}}",
            acceptance("model: constant, alpha: 0.4, confidence_discrimination: 0.9"),
            "workload.arrivals.request_rate_rps=40",
        ),
    ),
    Knob(
        "SpeculativeConfig.disable_padded_drafter_batch",
        f"{SPEC}.disable_padded_drafter_batch=true",  # schedules synchronously: the host's time shows
    ),
    Knob("SpeculativeConfig.quantization", f"{SPEC}.quantization=fp8", DRAFT),
    Knob("SpeculativeConfig.kv_cache_dtype", f"{SPEC}.kv_cache_dtype=fp8", DRAFT),
    Knob("SpeculativeConfig.parallel_drafting", (f"{SPEC}.parallel_drafting=true", RATES)),
    Knob("SpeculativeConfig.disable_eagle_block_drop", f"{SPEC}.disable_eagle_block_drop=true", MOONCAKE),
    Knob(
        "SpeculativeConfig.disable_lookahead_block_hashes",
        f"{SPEC}.disable_lookahead_block_hashes=true",
        ("workload.system_prompt={tokens: 168}", "engine.version=vllm 0.33"),  # half of its last block is the prompt's
    ),
    Knob(
        "SpeculativeConfig.suffix_decoding_max_tree_depth",
        f"{SPEC}.suffix_decoding_max_tree_depth=2",
        (f"{SPEC}={{method: suffix}}", NGRAM_ACCEPTANCE),
    ),
    Knob("SpeculativeConfig.enable_suffix_decoding", (f"{SPEC}.enable_suffix_decoding=true", BESIDE_HEAD), ARCTIC),
    Knob(
        "SpeculativeConfig.suffix_cache_max_depth",
        f"{SPEC}.suffix_cache_max_depth=4",
        (*ARCTIC, f"{SPEC}.enable_suffix_decoding=true", BESIDE_HEAD),
    ),
    Knob(
        "SpeculativeConfig.rejection_sample_method",
        f"{SYNTHETIC}synthetic_acceptance_length: 1.5}}",
        f"{SPEC}={{method: eagle3, num_speculative_tokens: 3}}",
    ),
    Knob(
        "SpeculativeConfig.synthetic_acceptance_rates",
        f"{SYNTHETIC}synthetic_acceptance_rates: [0.9, 0.5, 0.1]}}",
        f"{SYNTHETIC}synthetic_acceptance_rates: [0.9, 0.8, 0.7]}}",
    ),
    Knob(
        "SpeculativeConfig.synthetic_acceptance_length",
        f"{SYNTHETIC}synthetic_acceptance_length: 3.5}}",
        f"{SYNTHETIC}synthetic_acceptance_length: 2.5}}",
    ),
    *(
        Knob(f"SpeculativeConfig.{change.partition('=')[0]}", f"{SPEC}.{change}", (*TREES, tree), figure)
        for change in ("tree_width=4", "max_tree_nodes=12")
        for tree in ("acceptance={model: tree, alpha: 0.5}", f"{TREE[-1][:-1]}, tree_width: 10}}")
        for figure in (None, "mean_acceptance_length")
    ),
    Knob("SpeculativeConfig.min_tree_width", f"{SPEC}.min_tree_width=1", (*MATCHED_TREE, TREE_RATES)),
    # where it runs
    Knob("Scenario.hardware", "hardware=a100-80g"),
    Knob("Scenario.profile", "profile=h100-llama-3.1-8b-affine"),
    Knob("Scenario.policy", "policy={name: goodput}", BUSY),
    Knob("PolicySpec.name", "policy.name=ema_tiers", (BUSY, "policy={name: goodput}")),
    Knob("PolicySpec.parameters", "policy.parameters={weight: 0.9}", (BUSY, "policy={name: goodput}")),
    Knob("Scenario.cluster", "cluster={replicas: 2}"),
    Knob("ClusterSpec.replicas", "cluster.replicas=3", "cluster.replicas=2"),
    Knob("ClusterSpec.router", "cluster.router=least_loaded", "cluster.replicas=2"),
    Knob("ClusterSpec.router", "cluster.router=random", "cluster.replicas=2"),
    Knob("ClusterSpec.router", "cluster.router=power_of_two", ("cluster.replicas=3", "cluster.router=least_loaded")),
    Knob(
        "ClusterSpec.router",
        "cluster.router=prefix_affinity",
        (*MOONCAKE, "cluster.replicas=2", "cluster.router=least_loaded"),
        "prefix_cache_hit_rate",
    ),
    Knob("ClusterSpec.groups", GROUPS, "cluster.replicas=2"),
    Knob("ReplicaGroup.replicas", "cluster.groups.1.replicas=2", GROUPS),
    Knob("ReplicaGroup.hardware", "cluster.groups.0.hardware=a100-80g", GROUPS),
    Knob("ReplicaGroup.profile", "cluster.groups.0.profile=h100-llama-3.1-8b-affine", GROUPS),
    Knob("ReplicaGroup.engine", "cluster.groups.0.engine={tensor_parallel_size: 2}", GROUPS),
    Knob("ReplicaGroup.engine", f"cluster.groups.0.{SPEC}={{num_speculative_tokens: 1}}", GROUPS),
    Knob("ReplicaGroup.acceptance", "cluster.groups.0.acceptance={model: constant, alpha: 0.1}", GROUPS),
    # workload
    Knob("Scenario.workload", SHORT),
    Knob("Workload.arrivals", arrivals("process: deterministic, request_rate_rps: 20")),
    Knob("Workload.num_requests", "workload.num_requests=150"),
    Knob("Workload.duration_s", "workload.duration_s=5"),
    Knob("Workload.lengths", SHORT),
    Knob("Workload.classes", CLASSES),
    Knob(
        "Workload.max_model_len_action",
        "workload.max_model_len_action=drop",
        ("engine.max_model_len=300", "workload.max_model_len_action=clip"),
    ),
    Knob("PoissonArrivals.request_rate_rps", "workload.arrivals.request_rate_rps=30"),
    Knob(
        "DeterministicArrivals.request_rate_rps",
        "workload.arrivals.request_rate_rps=30",
        arrivals("process: deterministic, request_rate_rps: 20"),
    ),
    Knob(
        "GammaArrivals.request_rate_rps",
        "workload.arrivals.request_rate_rps=30",
        arrivals("process: gamma, request_rate_rps: 20, burstiness: 0.5"),
    ),
    Knob(
        "GammaArrivals.burstiness",
        "workload.arrivals.burstiness=4",
        arrivals("process: gamma, request_rate_rps: 20, burstiness: 0.5"),
    ),
    Knob(
        "PiecewiseArrivals.segments",
        arrivals("process: piecewise, segments: [{duration_s: 2, request_rate_rps: 20}]"),
        SEGMENTS,
    ),
    Knob(
        "RateSegment.duration_s",
        "workload.arrivals.segments.0.duration_s=4",
        SEGMENTS,
    ),
    Knob(
        "RateSegment.request_rate_rps",
        "workload.arrivals.segments.0.request_rate_rps=40",
        SEGMENTS,
    ),
    Knob("TraceArrivals.path", "workload.arrivals.path=OTHER", AZURE),
    Knob("TraceArrivals.start_s", "workload.arrivals.start_s=3", AZURE),
    Knob("TraceArrivals.stop_s", "workload.arrivals.stop_s=3", AZURE),
    Knob("TraceArrivals.sample_requests", "workload.arrivals.sample_requests=100", AZURE),
    Knob(
        "TraceArrivals.sample_seed", "workload.arrivals.sample_seed=1", (AZURE, "workload.arrivals.sample_requests=100")
    ),
    Knob("TraceArrivals.max_prompt_tokens", "workload.arrivals.max_prompt_tokens=50", AZURE),
    Knob("TraceArrivals.max_output_tokens", "workload.arrivals.max_output_tokens=20", AZURE),
    Knob("TraceArrivals.time_scale", "workload.arrivals.time_scale=0.5", AZURE),
    Knob("TraceArrivals.request_rate_rps", "workload.arrivals.request_rate_rps=40", AZURE),
    Knob("ClosedLoopArrivals.concurrency", "workload.arrivals.concurrency=16", LOOP),
    Knob("ClosedLoopArrivals.think_time_s", "workload.arrivals.think_time_s=0.1", LOOP),
    Knob("ClosedLoopArrivals.think_time_distribution", "workload.arrivals.think_time_distribution=constant", LOOP),
    Knob("Lengths.prompt_tokens", "workload.lengths.prompt_tokens=100", SHORT),
    Knob("Lengths.output_tokens", "workload.lengths.output_tokens=20", SHORT),
    Knob("Lengths.path", "workload.lengths={path: AZURE}", SHORT),
    Knob("Lengths.order", "workload.lengths.order=sampled", "workload.lengths={path: AZURE}"),
    Knob("ConstantTokens.value", f"{PROMPTS}.value=300", lengths("distribution: constant, value: 200")),
    Knob("UniformTokens.low", f"{PROMPTS}.low=150", lengths("distribution: uniform, low: 10, high: 400")),
    Knob("UniformTokens.high", f"{PROMPTS}.high=900", lengths("distribution: uniform, low: 10, high: 400")),
    *(
        Knob(f"{model}.{field}", f"{PROMPTS}.{field}={value}", lengths(f"distribution: {distribution}, {shape}"))
        for model, distribution, shape, fields in (
            ("LognormalTokens", "lognormal", "mean: 200, std: 200", ("mean", "std", "min", "max")),
            ("GammaTokens", "gamma", "mean: 200, std: 200", ("mean", "std", "min", "max")),
            ("ExponentialTokens", "exponential", "mean: 200", ("mean", "min", "max")),
            ("GeometricTokens", "geometric", "mean: 200", ("mean", "min", "max")),
        )
        for field, value in (("mean", 300), ("std", 400), ("min", 150), ("max", 210))
        if field in fields
    ),
    Knob(
        "EmpiricalTokens.values", f"{PROMPTS}.values=[50, 700]", lengths("distribution: empirical, values: [50, 500]")
    ),
    Knob("EmpiricalTokens.weights", f"{PROMPTS}.weights=[1, 9]", lengths("distribution: empirical, values: [50, 500]")),
    Knob("RequestClass.share", ("workload.classes.0.share=0.9", "workload.classes.1.share=0.1"), CLASSES),
    Knob("RequestClass.lengths", "workload.classes.0.lengths=null", CLASSES),
    Knob("RequestClass.acceptance", "workload.classes.0.acceptance={model: constant, alpha: 0.1}", CLASSES),
    Knob("RequestClass.speculation", "workload.classes.0.speculation=false", CLASSES),
    Knob("RequestClass.system_prompt", "workload.classes.0.system_prompt={tokens: 200}", CLASSES),
    Knob("Workload.system_prompt", "workload.system_prompt={tokens: 200}"),
    Knob("SystemPrompt.tokens", "workload.system_prompt.tokens=300", "workload.system_prompt={tokens: 200}"),
    Knob("SystemPrompt.variants", "workload.system_prompt.variants=100", "workload.system_prompt={tokens: 200}"),
    Knob("RequestClass.sessions", "workload.classes.0.sessions={turns: 3, think_time_s: 1}", CLASSES),
    Knob("Workload.sessions", "workload.sessions={turns: 3, think_time_s: 1}"),
    Knob("Sessions.turns", "workload.sessions.turns=2", SESSIONS),
    Knob("Sessions.think_time_s", "workload.sessions.think_time_s=4", SESSIONS),
    Knob("Sessions.think_time_distribution", "workload.sessions.think_time_distribution=constant", SESSIONS),
    Knob("Sessions.calls_per_turn", "workload.sessions.calls_per_turn=4", AGENTS),
    Knob("Sessions.tool_output_tokens", "workload.sessions.tool_output_tokens=900", AGENTS),
    Knob("Sessions.tool_time_s", "workload.sessions.tool_time_s=2", AGENTS),
    Knob("RequestClass.slo", "workload.classes.0.slo={ttft_ms: 12}", (CLASSES, SLO), "slo_attainment"),
    Knob(
        "RequestClass.priority",
        "workload.classes.1.priority=5",
        (CLASSES, "engine.scheduling_policy=priority", "engine.max_num_seqs=4"),
    ),
    # acceptance
    Knob("Scenario.acceptance", acceptance("model: constant, alpha: 0.2")),
    Knob("ChainAcceptance.alpha", "acceptance.alpha=0.9", acceptance("model: constant, alpha: 0.2")),
    Knob("ChainAcceptance.rates", "acceptance.rates=[0.9, 0.8, 0.7]"),
    Knob("ChainAcceptance.reference", "acceptance={reference: llama-3.1-8b-instruct/eagle3/mt-bench/specforge}"),
    *(
        Knob(f"ChainAcceptance.{field}", f"acceptance.{field}={value}", acceptance(STRETCHES))
        for field, value in (("alpha_good", 0.7), ("alpha_bad", 0.4), ("good_share", 0.8), ("persistence", 0.1))
    ),
    Knob("ChainAcceptance.concentration", "acceptance.concentration=1", acceptance("model: chain, alpha: 0.5")),
    Knob(
        "ChainAcceptance.contrast",
        "acceptance.contrast=6",
        acceptance("model: chain, rates: [0.6, 0.4, 0.3], contrast: 1, persistence: 0.99"),
        "p99_e2el_s",
    ),
    Knob("ChainAcceptance.match_probability", "acceptance.match_probability=0.9", (NGRAM, NGRAM_ACCEPTANCE)),
    Knob("ChainAcceptance.mean_match_tokens", "acceptance.mean_match_tokens=1.5", (NGRAM, NGRAM_ACCEPTANCE)),
    Knob("ChainAcceptance.factors", "acceptance.factors={temperature: 0.3}"),
    *(
        Knob(f"Factors.{field}", f"acceptance.factors.{field}={value}")
        for field, value in (("temperature", 0.3), ("context", "[[100, 0.3]]"), ("output_position", "[[20, 0.3]]"))
    ),
    Knob("TreeAcceptance.rates", "acceptance.rates=[0.5, 0.3, 0.1]", TREE),
    Knob("TreeAcceptance.tree_width", "acceptance.tree_width=2", TREE, "mean_acceptance_length"),
    Knob("TreeAcceptance.max_tree_nodes", "acceptance.max_tree_nodes=6", TREE, "mean_acceptance_length"),
    Knob("TreeAcceptance.min_tree_width", "acceptance.min_tree_width=1", (*MATCHED_TREE, TREE_RATES)),
    Knob(
        "TreeAcceptance.alpha",
        "acceptance.alpha=0.7",
        (*TREES, acceptance("model: tree, alpha: 0.3, widths: [3, 2, 1]")),
    ),
    Knob(
        "TreeAcceptance.widths",
        "acceptance.widths=[6, 4, 2]",
        (*TREES, acceptance("model: tree, alpha: 0.3, widths: [3, 2, 1]")),
    ),
    *(
        Knob(f"TreeAcceptance.{field}", f"acceptance.{field}={value}", (*MATCHED_TREE, acceptance(TREE_MATCHES)))
        for field, value in (("match_probability", 0.9), ("persistence", 0.9))
    ),
    Knob(
        "TraceAcceptance.record",
        "acceptance.record=acc_ngram",
        ("workload.lengths={path: RECORDED}", acceptance("model: trace")),
        "mean_acceptance_length",
    ),
    Knob(
        "TraceAcceptance.match_probability",
        "acceptance.match_probability=0.5",
        (NGRAM, acceptance("model: trace, record: acc_ngram, path: RECORDED, match_probability: 1")),
        "mean_acceptance_length",
    ),
    Knob("TraceAcceptance.path", "acceptance.path=RECORDED_OTHER", acceptance("model: trace, path: RECORDED")),
    *(
        Knob(
            f"{model}Acceptance.confidence_discrimination",
            "acceptance.confidence_discrimination=0.9",
            (*as_tuple(condition), "acceptance.confidence_discrimination=0.1", "policy.name=confidence"),
        )
        for model, condition in (
            ("Chain", acceptance("model: constant, alpha: 0.6")),
            ("Tree", TREE),
            ("Trace", acceptance("model: trace, path: RECORDED")),
        )
    ),
    # objectives and statistics
    Knob("Workload.temperature", "workload.temperature=0"),
    Knob("Scenario.slo", SLO, (), "slo_attainment"),
    *(
        Knob(f"Slo.{bound}", f"slo.{bound}={value}", SLO, "slo_attainment")
        for bound, value in (("ttft_ms", 12), ("tpot_ms", 2.5), ("e2el_ms", 100))
    ),
    *(
        Knob(f"ClassSlo.{bound}", f"workload.classes.0.slo={{{bound}: {value}}}", (CLASSES, SLO), "slo_attainment")
        for bound, value in (("ttft_ms", 12), ("tpot_ms", 2.5), ("e2el_ms", 100))
    ),
    Knob("Scenario.statistics", "statistics={replications: 2}"),
    Knob("Statistics.replications", "statistics.replications=2"),
    Knob("Statistics.seed", "statistics.seed=1"),
    Knob("Statistics.warmup", "statistics.warmup=auto", "workload.num_requests=400"),
]

# What no figure depends on, and why.
EXEMPT = {
    "Scenario.schema_version": "the file's format",
    "Scenario.name": "a label",
    "Scenario.description": "a label",
    "Scenario.engine": "every field of it is tested",
    "RequestClass.name": "a label of by_class, tested below",
    "TraceArrivals.format": "says how to read the file; a wrong one is an error",
    "Lengths.format": "says how to read the file; a wrong one is an error",
    "Slo.attainment": "moves the verdict slo_met, tested below",
    "ClassSlo.attainment": "moves the verdict slo_met, tested in tests/scenarios/run/test_simulate.py",
    "Statistics.confidence": "moves the width of intervals, tested below",
    "Statistics.model_error": "moves verdicts, tested in tests/scenarios/compare/test_model_error.py",
    "Scenario.correction": "tested in tests/scenarios/live/test_calibrate_to.py",
    **dict.fromkeys((f"Correction.{key}" for key in Correction.model_fields if key != "model"), "tested there too"),
    **dict.fromkeys(
        (
            f"{kind.__name__}Acceptance.{key}"
            for kind in AcceptanceModel.__subclasses__()
            for key in ("relative_error", "num_rounds")
        ),
        "widen the prediction interval, tested in tests/scenarios/compare/test_model_error.py",
    ),
    "SpeculativeConfig.max_model_len": "bounds requests in some versions, tested in test_deployment.py",
    **{
        f"SpeculativeConfig.{key}": "named to the user as without effect"
        for key, field in SpeculativeConfig.model_fields.items()
        if UNTIMED in field.metadata
    },
}
# The field that picks a member of a union; its choice is tested by the field that holds the union.
DISCRIMINATORS = ("process", "distribution", "model")


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The made-up files that the overrides above name, by that name."""
    folder = tmp_path_factory.mktemp("traces")

    def write(name: str, lines: Iterator[str]) -> str:
        path = Path(folder / name)
        path.write_text("\n".join(lines) + "\n")
        return str(path)

    def azure(offset: int) -> Iterator[str]:
        yield "TIMESTAMP,ContextTokens,GeneratedTokens"
        for i in range(200):
            seconds = 0.05 * i + 0.002 * (i % 7)
            yield f"2023-11-16 18:15:{seconds:010.7f},{20 + 37 * (i + offset) % 400},{5 + 11 * (i + offset) % 60}"

    def mooncake() -> Iterator[str]:
        # 20 conversations of 6 turns, each turn's prompt being the last one and 600 tokens more.
        for i in range(120):
            user, turn = i % 20, i // 20
            tokens = 600 * (turn + 1)
            ids = [user * 100 + block for block in range(-(-tokens // 512))]
            # Only a whole block's content is its own; the last, partial one changes with the next turn.
            ids[-1] = ids[-1] if tokens % 512 == 0 else 10_000 + i
            line = {"timestamp": 60 * i, "input_length": tokens, "output_length": 20 + i % 30, "hash_ids": ids}
            yield json.dumps(line)

    def recorded(shift: int) -> Iterator[str]:
        for i in range(50):
            eagle = [1 + (i + j + shift) % 4 for j in range(60)]
            ngram = [1 + (j % 5 == 0) for j in range(60)]
            yield json.dumps(
                {"prompt_tokens": 100 + i, "acc_eagle": {"acc_len": eagle}, "acc_ngram": {"acc_len": ngram}}
            )

    return {
        "AZURE": write("azure.csv", azure(0)),
        "OTHER": write("other.csv", azure(17)),
        "MOONCAKE": write("mooncake.jsonl", mooncake()),
        "RECORDED_OTHER": write("recorded_other.jsonl", recorded(1)),
        "RECORDED": write("recorded.jsonl", recorded(0)),
    }


@functools.cache
def result_of(overrides: tuple[str, ...]) -> RunResult:
    return simulate(load_scenario("default", overrides=overrides))


def run(overrides: tuple[str, ...], files: dict[str, str]) -> RunResult:
    named = [*SMALL, FINITE, *overrides]
    for name in sorted(files, key=len, reverse=True):
        named = [text.replace(f" {name}", f" {files[name]}").replace(f"={name}", f"={files[name]}") for text in named]
    # A condition that replaces the workload or the arrivals brings its own rate and number.
    if any(text.startswith("workload={") for text in named):
        named = [text for text in named if not text.startswith(SMALL[0]) and text != SMALL[2]]
    elif any(text.startswith("workload.arrivals={") for text in named):
        named.remove(SMALL[2])
    return result_of(tuple(named))


def differs(a: float, b: float) -> bool:
    return a != b and not (math.isnan(a) and math.isnan(b))


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: knob.field)
def test_the_knob_changes_a_figure(knob: Knob, files: dict[str, str]) -> None:
    before = run(as_tuple(knob.condition), files).summary["figures"]
    after = run((*as_tuple(knob.condition), *as_tuple(knob.change)), files).summary["figures"]
    names = SEEN if knob.figure is None else (knob.figure,)
    assert any(differs(before[name].mean, after[name].mean) for name in names), names


def schema_models(model: type[BaseModel]) -> set[type[BaseModel]]:
    """``model`` and every model its fields may hold."""
    found = {model}

    def walk(annotation: Any) -> None:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            if annotation not in found:
                found.update(schema_models(annotation))
            return
        for part in get_args(annotation):
            walk(part)

    for field in model.model_fields.values():
        walk(field.annotation)
    return found


def test_every_field_of_the_schema_is_tested_or_exempt() -> None:
    fields = set()
    for model in schema_models(Scenario):
        own = [
            name
            for name in model.model_fields
            if name not in DISCRIMINATORS or model.__name__ in ("Engine", "SpeculativeConfig")
        ]
        label = f"{model.__name__}Acceptance" if issubclass(model, AcceptanceModel) else model.__name__
        fields |= {f"{label}.{name}" for name in own}
    tested = {knob.field for knob in KNOBS}
    assert not tested & EXEMPT.keys()
    assert tested | EXEMPT.keys() == fields


def test_class_names_label_their_figures(files: dict[str, str]) -> None:
    by_class = run((CLASSES,), files).summary["by_class"][0]
    renamed = run((CLASSES, "workload.classes.0.name=chat"), files).summary["by_class"][0]
    assert (set(by_class), set(renamed)) == ({"a", "b"}, {"chat", "b"})
    assert by_class["a"] == renamed["chat"] or str(by_class["a"]) == str(renamed["chat"])


def test_attainment_moves_the_verdict(files: dict[str, str]) -> None:
    attained = run((SLO,), files).summary["figures"]["slo_attainment"].mean
    assert 0 < attained < 1
    assert run((SLO, f"slo.attainment={0.9 * attained}"), files).slo_met is True
    assert run((SLO, f"slo.attainment={min(1.1 * attained, 1.0)}"), files).slo_met is False


def test_confidence_moves_the_width(files: dict[str, str]) -> None:
    three = ("statistics.replications=3",)
    usual = run(three, files).summary["figures"]["mean_ttft_s"]
    narrow = run((*three, "statistics.confidence=0.8"), files).summary["figures"]["mean_ttft_s"]
    assert narrow.mean == usual.mean
    assert narrow.half_width < usual.half_width
