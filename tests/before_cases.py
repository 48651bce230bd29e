"""The scenarios of ``before.py``: a list that covers all that a scenario can say, then random ones.

A scenario is a name and overrides (as of ``--set``) of the embedded scenario ``default``; ``<folder>`` in them stands
for a folder with the files of `FILES`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from typing import Any

from draftcast.scenarios import schema

BASE = (
    "engine.max_model_len=4096",
    "workload.num_requests=60",
    "workload.arrivals.request_rate_rps=40",
    "workload.lengths={prompt_tokens: {distribution: lognormal, mean: 120, std: 150, min: 4, max: 900},"
    " output_tokens: {distribution: geometric, mean: 60, max: 300}}",
    "acceptance={model: per_position, rates: [0.75, 0.55, 0.4, 0.3, 0.2], confidence_discrimination: 0.5}",
    "statistics.replications=1",
    "slo={ttft_ms: 60, tpot_ms: 6, attainment: 0.9}",
)
SPEC = "engine.speculative_config"
ARRIVALS = "workload.arrivals"
FINITE = "statistics.warmup=none"
HEAD, SMALL = "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3", "Llama-3.2-1B"
DRAFTED = {
    "draft_model": f"method: draft_model, model: {SMALL}",
    "eagle": "method: eagle",
    "eagle3": f"method: eagle3, model: {HEAD}",
    "p_eagle": f"method: eagle3, model: {HEAD}, parallel_drafting: true",
    "pard": f"method: draft_model, model: {SMALL}, parallel_drafting: true",
    "medusa": "method: medusa",
    "mlp_speculator": "method: mlp_speculator",
    "dflash": "method: dflash",
    "dspark": "method: dspark",
}
# They need a target with such layers.
MTP = {name: f"method: {name}" for name in ("mtp", "deepseek_mtp")}
DEEPSEEK = ("engine.model=DeepSeek-V3", "hardware=b200", "engine.tensor_parallel_size=8", "engine.quantization=fp8")
MATCHED = {name: f"method: {name}" for name in ("ngram", "ngram_gpu", "suffix")}
CHAIN_ACCEPTANCE = {
    "constant": "{model: constant, alpha: 0.7}",
    "per_position": "{model: per_position, rates: [0.8, 0.6, 0.4, 0.3, 0.2, 0.1, 0.05]}",
    "beta": "{model: beta, mean: 0.65, concentration: 4, confidence_discrimination: 0.7}",
    "markov": "{model: markov, alpha_good: 0.9, alpha_bad: 0.3, p_gb: 0.1, p_bg: 0.2}",
}
MATCH_ACCEPTANCE = {
    "ngram": "{model: ngram, match_probability: 0.4, alpha: 0.7, confidence_discrimination: 0.3}",
    "ngram-bursts": "{model: ngram, match_probability: 0.5, rates: [0.9, 0.7, 0.6, 0.5, 0.4], persistence: 0.8}",
    "ngram-long": "{model: ngram, match_probability: 0.6, alpha: 0.8, mean_match_tokens: 4}",
}
TREE_ENGINE = "engine.version=sglang 0.5"  # vLLM 0.32 drafts none
TREES = {
    "alpha": ("", "{model: tree, alpha: 0.6}"),
    "rates": ("", "{model: tree, rates: [0.8, 0.65, 0.5, 0.4, 0.3]}"),
    "widths": (", tree_width: 6, max_tree_nodes: 30", "{model: tree, alpha: 0.5, widths: [4, 3, 2, 2, 1]}"),
    "shape": (
        ", tree_width: 4, max_tree_nodes: 16",
        "{model: tree, rates: [0.8, 0.6, 0.5, 0.4, 0.3], tree_width: 8, max_tree_nodes: 40}",
    ),
}
POLICY = {
    "off": "{name: off}",
    "fixed": "{name: fixed}",
    "goodput": "{name: goodput}",
    "goodput-probing": "{name: goodput, parameters: {weight: 0.5, probe_interval_steps: 5, initial_acceptance: 0.3}}",
    "ema_tiers": "{name: ema_tiers}",
    "ema_tiers-own": "{name: ema_tiers, parameters: {ema_alpha: 0.5, update_interval: 2, warmup_batches: 2,"
    " tiers: [{batch_size: 4, steps: [1, 3]}, {batch_size: 16, steps: [0, 2]}]}}",
    "confidence": "{name: confidence}",
    "confidence-strict": "{name: confidence, parameters: {max_rejection_probability: 0.3, min_confidence: 0.5}}",
    "tetris": "{name: tetris}",
    "tetris-tight": "{name: tetris, parameters: {capacity: 0.2}}",
    "slo_aware": "{name: slo_aware, parameters: {tpot_s: 0.02}}",
    "slo_aware-tight": "{name: slo_aware, parameters: {tpot_s: 0.004, latency_slack: 0.1}}",
    "bandit": "{name: bandit}",
    "bandit-costly": "{name: bandit, parameters: {exploration: 0.5, switch_cost_s: 0.001}}",
    "adaptive_verification": "{name: adaptive_verification}",
    "adaptive_verification-early": "{name: adaptive_verification, parameters: {early_stop: true}}",
    "oracle": "{name: oracle}",
    "own": "{name: '<folder>/half.py:Half'}",
}
SCHEDULE = f"{SPEC}.num_speculative_tokens_per_batch_size=[[1, 4, 3], [5, 16, 2], [17, 1024, 0]]"
ARRIVAL = {
    "poisson": "{process: poisson, request_rate_rps: 25}",
    "gamma-bursty": "{process: gamma, request_rate_rps: 30, burstiness: 0.2}",
    "gamma-even": "{process: gamma, request_rate_rps: 30, burstiness: 8}",
    "deterministic": "{process: deterministic, request_rate_rps: 50}",
    "at-once": "{process: deterministic, request_rate_rps: 1000000}",
    "piecewise": "{process: piecewise, segments: [{duration_s: 1, request_rate_rps: 10},"
    " {duration_s: 0.5, request_rate_rps: 80}, {duration_s: 1, request_rate_rps: 0}]}",
    "closed": "{process: closed_loop, concurrency: 8}",
    "closed-one": "{process: closed_loop, concurrency: 1}",
    "closed-thinking": "{process: closed_loop, concurrency: 12, think_time_s: 0.2}",
    "closed-constant": "{process: closed_loop, concurrency: 6, think_time_s: 0.5, think_time_distribution: constant}",
    "closed-together": "{process: closed_loop, concurrency: 20, think_time_s: 0, think_time_distribution: constant}",
}
# Counted as a list that ends: of an overloaded steady run no steps are kept.
AT_ONCE = (f"{ARRIVALS}={ARRIVAL['at-once']}", FINITE)
LENGTH = {
    "constant": "100",
    "constant-named": "{distribution: constant, value: 64}",
    "uniform": "{distribution: uniform, low: 10, high: 200}",
    "lognormal": "{distribution: lognormal, mean: 90, std: 120, max: 700}",
    "gamma": "{distribution: gamma, mean: 80, std: 60, min: 2, max: 400}",
    "exponential": "{distribution: exponential, mean: 70, max: 500}",
    "geometric": "{distribution: geometric, mean: 50, max: 400}",
    "empirical": "{distribution: empirical, values: [5, 50, 300]}",
    "empirical-weighted": "{distribution: empirical, values: [16, 128, 512], weights: [5, 2, 0.5]}",
}
ENGINE: dict[str, tuple[str, ...]] = {
    "tp2": ("tensor_parallel_size=2",),
    "tp4-draft1": ("tensor_parallel_size=4", "speculative_config.draft_tensor_parallel_size=1"),
    "fp8": ("quantization=fp8", "kv_cache_dtype=fp8"),
    "awq": ("quantization=awq",),
    "fp16": ("dtype=float16",),
    "draft-fp8": ("speculative_config.quantization=fp8", "speculative_config.kv_cache_dtype=fp8"),
    "few-seqs": ("max_num_seqs=4",),
    "few-tokens": ("max_num_seqs=32", "max_num_batched_tokens=128"),
    "scheduled-tokens": ("max_num_seqs=16", "max_num_batched_tokens=512", "max_num_scheduled_tokens=96"),
    "whole-prompts": ("enable_chunked_prefill=false", "max_num_batched_tokens=4096", "max_num_seqs=64"),
    "long-prefill": ("long_prefill_token_threshold=64",),
    "small-kv": ("num_gpu_blocks=140", "max_model_len=1300"),
    "tiny-kv": ("num_gpu_blocks=90", "max_model_len=1280", "block_size=16"),
    "small-blocks": ("block_size=4", "num_gpu_blocks=600", "max_model_len=1300"),
    "large-blocks": ("block_size=128",),
    "watermark": ("num_gpu_blocks=150", "max_model_len=1300", "watermark=0.2"),
    "less-memory": ("gpu_memory_utilization=0.4",),
    "no-prefix-caching": ("enable_prefix_caching=false",),
    "synchronous": ("async_scheduling=false",),
    "asynchronous": ("async_scheduling=true",),
    "eager": ("enforce_eager=true",),
    "keeps-last-block": ("speculative_config.disable_eagle_block_drop=true",),
    "synthetic-rates": (
        "speculative_config.rejection_sample_method=synthetic",
        "speculative_config.synthetic_acceptance_rates=[0.7, 0.5, 0.2]",
    ),
    "synthetic-length": (
        "speculative_config.rejection_sample_method=synthetic",
        "speculative_config.synthetic_acceptance_length=2.4",
    ),
    "block-rejection": ("speculative_config.rejection_sample_method=block",),
    "no-speculation": ("speculative_config=null",),
    "k1": ("speculative_config.num_speculative_tokens=1",),
    "k5": ("speculative_config.num_speculative_tokens=5",),
}
MODELS = {
    "Llama-2-7B": "a100-80g 1 bfloat16", "Llama-2-70B": "h100-sxm 4 bfloat16", "Llama-3.1-70B": "h200 2 bfloat16",
    "Llama-3.1-405B": "b200 8 bfloat16", "Llama-3.2-3B": "a10g 1 bfloat16", "Llama-3.2-1B": "rtx-4090 1 bfloat16",
    "Mixtral-8x7B": "h100-sxm 2 bfloat16", "DeepSeek-V3": "b200 8 bfloat16", "Qwama-0.5B": "l40s 1 bfloat16",
    "Qwen3-0.6B": "h100-pcie 1 float16", "Qwen3-30B-A3B": "h100-sxm 1 bfloat16", "Qwen3-32B": "mi300x 1 bfloat16",
    "Qwen3-8B": "rtx-pro-6000 1 bfloat16", "gpt-oss-20b": "h100-sxm 1 bfloat16", "opt-125m": "a100-40g 1 float16",
    "opt-2.7b": "l40s 1 float16", "opt-6.7b": "a100-40g 1 float16", "testbed-250M": "cpu 1 float32",
}  # fmt: skip
HARDWARE = ("a100-40g", "a100-80g", "b200", "h100-pcie", "h200", "l40s", "mi300x", "rtx-4090", "rtx-pro-6000")
FILES = {
    "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    + "".join(f"2023-11-16 18:15:{i * 0.7:010.7f},{60 + i * 37 % 500},{5 + i * 13 % 90}\n" for i in range(60)),
    "azure-2024.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    + "".join(f"2024-05-10 00:00:{i * 0.4:09.6f}+00:00,{40 + i * 53 % 700},{3 + i * 7 % 60}\n" for i in range(60)),
    "burstgpt.csv": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    + "".join(f"{i // 3},GPT-4,{30 + i * 41 % 600},{i * 11 % 80},{30 + i * 41 % 600 + i * 11 % 80},x\n"
              for i in range(60)),
    "mooncake.jsonl": "".join(
        json.dumps({"timestamp": i * 90, "input_length": 512 * (2 + i % 3) - i, "output_length": 8 + i * 5 % 50,
                    "hash_ids": [i % 4, 4 + i % 8, 20 + i, 99 + i][: 2 + i % 3]}) + "\n" for i in range(50)),
    "sharegpt.json": json.dumps([{"prompt_tokens": 12 + i * 31 % 300, "output_tokens": 5 + i * 3 % 70}
                                 for i in range(30)]),
    "vllm_bench.json": json.dumps(
        {"input_lens": [20 + i * 29 % 200 for i in range(30)], "output_lens": [4 + i % 40 for i in range(30)],
         "start_times": [100 + i * 0.05 for i in range(30)], "ttfts": [0.1] * 30,
         "itls": [[0.01] * (3 + i % 40) for i in range(30)], "errors": [""] * 30}),
    "log.jsonl": "".join(
        json.dumps({"id": str(i), "prompt_token_ids": list(range(9 + i)),
                    "generated_token_ids": [j * (i + 3) % 11 for j in range(40)],
                    "acc_eagle": {"acc_len": [1 + (i + j) % 4 for j in range(16)]},
                    "acc_ngram": {"acc_len": [1 + (i * j) % 3 for j in range(20)]}}) + "\n" for i in range(25)),
    "metrics.txt": "".join(
        f'vllm:spec_decode_num_{name}_total{{engine="0",model_name="m"{place}}} {count}.0\n'
        for name, place, count in (("drafts", "", 200), ("draft_tokens", "", 600), ("accepted_tokens", "", 300),
                                   *(("accepted_tokens_per_pos", f',position="{i}"', n)
                                     for i, n in enumerate((150, 100, 50))))),
    "half.py": "from draftcast.sim import Policy\n\n\nclass Half(Policy):\n    def decide(self, batch):\n"
    "        return batch.k if batch.num_seqs <= 4 else batch.k // 2\n",
}  # fmt: skip


def spec(method: str, k: int = 3, more: str = "") -> str:
    text = {**DRAFTED, **MTP, **MATCHED, "eagle_tree": "method: eagle_tree"}[method]
    return f"{SPEC}={{{text}, num_speculative_tokens: {k}{more}}}"


def trace(file: str, more: str = "") -> tuple[str, ...]:
    return (
        "workload.lengths=null", f"{ARRIVALS}={{process: trace, path: '<folder>/{file}'{more}}}",
        "workload.num_requests=null", "workload.max_model_len_action=clip",
    )  # fmt: skip


CLASSES = (
    "workload.classes=[{name: chat, share: 0.7, priority: 0, slo: {ttft_ms: 40}},"
    " {name: batch, share: 0.3, priority: 5, lengths: {prompt_tokens: 400, output_tokens: 30},"
    " acceptance: {model: constant, alpha: 0.3, confidence_discrimination: 0.2}}]"
)
PRIORITY = "engine.scheduling_policy=priority"


def coverage() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Name and overrides of every scenario of the list; ``<folder>`` stands for where the small files are."""
    for method in (*DRAFTED, *MTP):
        target = DEEPSEEK if method in MTP else ("engine.version=vllm 0.10",) if method == "mlp_speculator" else ()
        for name, model in CHAIN_ACCEPTANCE.items():
            drafts = spec(method, 2 + len(name) % 4)
            yield f"method {method}, acceptance {name}", (drafts, f"acceptance={model}", *target)
    for method in MATCHED:
        for name, model in MATCH_ACCEPTANCE.items():
            yield f"method {method}, acceptance {name}", (spec(method), f"acceptance={model}")
    yield "method suffix without k", (f"{SPEC}={{method: suffix}}", f"acceptance={MATCH_ACCEPTANCE['ngram-long']}")
    for name, (shape, model) in TREES.items():
        yield f"method eagle_tree, {name}", (TREE_ENGINE, spec("eagle_tree", 4, shape), f"acceptance={model}")
    for name, policy in POLICY.items():
        yield f"policy {name}", (spec("eagle3", 5), f"policy={policy}", "workload.num_requests=150", *AT_ONCE)
        yield f"policy {name}, crowded", (spec("draft_model", 5), f"policy={policy}", "engine.max_num_seqs=12", FINITE)
    yield "policy batch_schedule", (SCHEDULE,)
    yield "policy batch_schedule, named", (SCHEDULE, "policy={name: batch_schedule}", FINITE)
    for router in schema.ROUTERS:
        for replicas, arrivals in ((2, "poisson"), (3, "closed")):
            placed = (f"cluster={{replicas: {replicas}, router: {router}}}", f"{ARRIVALS}={ARRIVAL[arrivals]}")
            yield f"router {router}, {replicas} replicas, {arrivals}", placed
    yield (
        "router prefix_affinity, mooncake",
        (*trace("mooncake.jsonl"), "cluster={replicas: 2, router: prefix_affinity}"),
    )
    for name, arrivals in ARRIVAL.items():
        yield f"arrivals {name}", (f"{ARRIVALS}={arrivals}", "statistics.replications=2")
        yield f"arrivals {name}, finite", (f"{ARRIVALS}={arrivals}", FINITE, "workload.num_requests=40")
    yield "arrivals until", ("workload.num_requests=null", "workload.duration_s=2")
    for name, length in LENGTH.items():
        lengths = f"workload.lengths={{prompt_tokens: {length}, output_tokens: {length}}}"
        yield f"lengths {name}", (lengths, FINITE, "statistics.seed=4")
    for file in FILES:
        if file in ("half.py", "metrics.txt"):
            continue
        if file not in ("log.jsonl", "sharegpt.json"):
            yield f"trace {file}", trace(file)
            yield f"trace {file}, faster", trace(file, ", request_rate_rps: 30")
        for order in ("sequential", "sampled"):
            lengths = f"workload.lengths={{path: '<folder>/{file}', order: {order}}}"
            yield f"lengths of {file}, {order}", (lengths, "workload.max_model_len_action=clip")
    yield "trace cut", trace("azure.csv", ", start_s: 5, stop_s: 30, sample_requests: 12, sample_seed: 3,"
                             " max_prompt_tokens: 200, max_output_tokens: 20, time_scale: 0.1")  # fmt: skip
    yield "trace repeated", (*trace("mooncake.jsonl", ", format: mooncake"), "workload.num_requests=80")
    for record in ("acc_eagle", "acc_ngram"):
        lengths = "workload.lengths={path: '<folder>/log.jsonl'}"
        yield f"acceptance trace {record}", (lengths, f"acceptance={{model: trace, record: {record}}}")
    yield "acceptance trace of a file", ("acceptance={model: trace, path: '<folder>/log.jsonl'}",)
    prefixes = (*trace("mooncake.jsonl", ", request_rate_rps: 150"), FINITE)
    for name, keys in ENGINE.items():
        changes = tuple(f"engine.{key}" for key in keys)
        yield f"engine {name}", (*prefixes, "workload.num_requests=90", *changes)
        yield f"engine {name}, all at once", (*changes, *AT_ONCE)
    for model, where in MODELS.items():
        hardware, tp, dtype = where.split()
        asked = ("engine.max_model_len=2048", spec("ngram"), f"acceptance={MATCH_ACCEPTANCE['ngram']}")
        named = (f"engine.model={model}", f"hardware={hardware}", f"engine.tensor_parallel_size={tp}")
        yield f"model {model}", (*named, f"engine.dtype={dtype}", *asked, "workload.num_requests=30")
    for hardware in HARDWARE:
        yield f"hardware {hardware}", (f"hardware={hardware}", "workload.num_requests=30")
    yield "profile affine", ("profile=h100-llama-3.1-8b-affine",)
    yield "profile default", ("profile=default",)
    yield "classes", (CLASSES.replace("priority: 5", "priority: 0"),)
    yield "classes, priority", (CLASSES, PRIORITY, "engine.max_num_seqs=4")
    yield "classes, priority, closed", (CLASSES, PRIORITY, f"{ARRIVALS}={ARRIVAL['closed']}", "engine.max_num_seqs=3")
    yield "classes, priority, small-kv", (CLASSES, PRIORITY, *(f"engine.{key}" for key in ENGINE["small-kv"]), FINITE)
    for bound in ("ttft_ms: 30", "tpot_ms: 4", "e2el_ms: 200", "ttft_ms: 1, attainment: 0.5"):
        yield f"slo {bound}", (f"slo={{{bound}}}",)
    yield "slo none", ("slo=null",)
    yield "overloaded", (f"{ARRIVALS}.request_rate_rps=3000", "workload.num_requests=150", "engine.max_num_seqs=4")
    yield (
        "long and steady",
        (f"{ARRIVALS}.request_rate_rps=10", "workload.num_requests=400", "statistics.replications=3"),
    )
    yield "confidence", ("statistics={replications: 3, seed: 7, confidence: 0.8}", "workload.num_requests=40")


def drawn(number: int) -> tuple[str, ...]:
    """Overrides of a random scenario: one choice of everything; not each is a valid one."""
    rng = random.Random(f"before {number}")

    def one(choices: Iterable[Any]) -> Any:
        return rng.choice(sorted(choices))

    def some(changes: tuple[str, ...], share: float) -> tuple[str, ...]:
        return changes if rng.random() < share else ()

    method = one([*DRAFTED, *MATCHED, "eagle_tree"])
    shape = ""
    if method == "eagle_tree":
        shape, model = TREES[one(TREES)]
    else:
        models = MATCH_ACCEPTANCE if method in MATCHED else CHAIN_ACCEPTANCE
        model = models[one(models)]
    if "confidence" not in model:  # some policies go by it
        model = f"{model[:-1]}, confidence_discrimination: 0.6}}"
    lengths = ", ".join(f"{side}: {LENGTH[one(LENGTH)]}" for side in ("prompt_tokens", "output_tokens"))
    engine = tuple(f"engine.{key}" for key in ENGINE[one(key for key in ENGINE if "synthetic" not in key)])
    return (
        *((TREE_ENGINE,) if method == "eagle_tree" else ()),
        spec(method, rng.randint(1, 4), shape),
        f"acceptance={model}",
        f"{ARRIVALS}={ARRIVAL[one(ARRIVAL)]}",
        f"workload.lengths={{{lengths}}}",
        f"workload.num_requests={rng.randint(30, 80)}",
        f"statistics={{replications: {rng.randint(1, 2)}, seed: {number}, warmup: {one(['auto', 'none'])}}}",
        *some((f"cluster={{replicas: {rng.randint(2, 4)}, router: {one(schema.ROUTERS)}}}",), 0.4),
        *some((f"policy={POLICY[one(POLICY)]}",), 0.6),
        *some((CLASSES, PRIORITY), 0.3),
        *some(engine, 0.7),
        *some((f"hardware={one(HARDWARE)}",), 0.2),
    )


def scenarios() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Without end: the list, then random ones."""
    yield from coverage()
    yield from ((f"drawn {number}", drawn(number)) for number in range(10**6))


# Command lines -> digits that their figures are held to. Fits go through a machine's own linear algebra; ``runs`` is a
# live sweep of a small played server (``data/before_runs.tar.xz``). Those that start vLLM are only asked for help.
EXACT, FITTED = 9, 5
QUICK = "--replications 2 --set workload.num_requests=80 --set workload.arrivals.request_rate_rps=30"
LIGHT = "--set workload.num_requests=1000 --replications 3"
# A capacity of short requests is found in a tenth of the time.
SHORT = "--set 'workload.lengths={prompt_tokens: 64, output_tokens: {distribution: geometric, mean: 16}}'"
OBJECTIVES = "ttft:p95<500ms;tpot:p95<30ms"
LOG = "<root>/tests/data/engine_log_off.log.gz"
COMMANDS = {
    "acceptance from-metrics metrics.txt --json": EXACT,
    "acceptance fit log.jsonl --num-speculative-tokens 2 --json": FITTED,
    "acceptance list gpt-oss --json": EXACT,
    "acceptance measure --method ngram --tokens log.jsonl --num-speculative-tokens 2 --bootstrap 9 --json": EXACT,
    "acceptance measure --method suffix --tokens log.jsonl --bootstrap 50 --json": EXACT,
    f"calibrate --engine-log {LOG} --model testbed-250M --hardware cpu --dtype fp32 --bootstrap 5 --json": FITTED,
    f"compare default --policies fixed,goodput,bandit {LIGHT} {SHORT} --json": EXACT,
    f"cutover default {LIGHT} {SHORT} --json": EXACT,
    f"cutover default --over acceptance {QUICK} {SHORT} --json": EXACT,
    "dashboard --help": EXACT,
    "evidence --source 'PR 16937' --json": EXACT,
    "published --source 'PR 16937' --json": EXACT,
    "hardware --json": EXACT,
    "init own.yaml --json": EXACT,
    "live calibrate runs/calibration-2/off runs/calibration-8/off --json": FITTED,
    "live checkpoint --help": EXACT,
    "live import vllm_bench.json --out imported --json": EXACT,
    "live report runs --out reported --json": FITTED,
    "live run --help": EXACT,
    "live summary reported/sweep-validation.json --out summary.json --json": FITTED,
    "live sweep --help": EXACT,
    "models --json": EXACT,
    f"plan default --rate 900 --slo {OBJECTIVES} --hardware h100-sxm,a100-80g {QUICK} {SHORT} --json": EXACT,
    "profile compare h100-sxm h200 --num-speculative-tokens 3 --json": EXACT,
    "profile list --json": EXACT,
    "profile plot h100-sxm --out roofline.html --json": EXACT,
    "profile show h100-sxm --json": EXACT,
    "profile show l40s --by-shape --json": EXACT,
    f"recommend default --max-k 2 --rates 20,40 {LIGHT} {SHORT} --json": EXACT,
    f"recommend default --max-k 1 --rates 200,400 {LIGHT} {SHORT} --json": EXACT,  # none is better than off
    "scenarios --json": EXACT,
    "schema": EXACT,
    "schema --help": EXACT,
    "serve --help": EXACT,
    f"simulate default {QUICK} --json": EXACT,
    f"simulate default {QUICK} --rates 20,60 --json": EXACT,
    f"simulate default {QUICK} --set slo.ttft_ms=1 --set statistics.warmup=none --json --out run --steps": EXACT,
    f"simulate default {QUICK} --set workload.arrivals.request_rate_rps=5000 --set engine.max_num_seqs=4 --json": EXACT,
    f"simulate default {QUICK} --speculative-config null --trace azure.csv --json": EXACT,
    f"sweep default --grid rate=10,20 --grid k=0,3 {QUICK} {SHORT} --workers 1 --out sweep --json": EXACT,
    "validate default --live runs/concurrency-6/off --set engine.speculative_config=null --json": FITTED,
}
BAD = (
    "simulate default --set engine.colour=red",
    "simulate nowhere.yaml",
    "simulate default --set workload.arrivals.request_rate_rps=-1",
    "simulate default --set engine.model=gpt-9",
    "simulate default --trace nowhere.csv",
    "simulate default --rates 1,two",
    "simulate default --unknown",
    "simulate",
    "frobnicate",
    "plan default --rate 10 --slo nonsense",
    "profile show nothing",
    "acceptance from-metrics nowhere.txt",
    "validate default --live nowhere",
    "",
    "--version",
)
