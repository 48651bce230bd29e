"""Small inputs in the formats of others, for tests: traces, a client's journal, a server's metrics."""

from __future__ import annotations

import json
import lzma
from typing import Any

from paths import DATA

from draftcast.sim.cluster.cluster import ClosedLoop
from draftcast.sim.workload.arrivals import ClosedLoopArrivals

# As a scenario's ``workload.lengths``: a capacity of short requests is found in a tenth of the time.
SHORT_REQUESTS = "{prompt_tokens: 64, output_tokens: {distribution: geometric, mean: 16}}"
AZURE_2023 = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:01+00:00,2399,6
2024-05-10 00:00:01.5+00:00,76,15
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
118.5,GPT-4,417,0,417,API log
120,GPT-4,1360,276,1636,API log
"""
MOONCAKE = """{"timestamp": 0, "input_length": 1100, "output_length": 500, "hash_ids": [0, 1, 2]}
{"timestamp": 1500, "input_length": 700, "output_length": 490, "hash_ids": [0, 3]}
{"timestamp": 3000, "input_length": 512, "output_length": 9, "hash_ids": [0]}
"""
SHAREGPT = """[
  {"prompt_tokens": 12, "output_tokens": 30},
  {"conversations": [
     {"from": "human", "tokens": 10}, {"from": "gpt", "tokens": 20},
     {"from": "human", "tokens": 5}, {"from": "gpt", "tokens": 7}]},
  {"messages": [{"role": "user", "content": "hi", "num_tokens": 3}, {"role": "assistant", "num_tokens": 4}]}
]
"""
VLLM_BENCH = json.dumps(
    {
        "date": "20260101-000000",
        "duration": 3.0,
        "completed": 3,
        "input_lens": [10, 20, 30, 40],
        "output_lens": [5, 6, 0, 8],
        "ttfts": [0.1, 0.1, 0.0, 0.1],
        "itls": [[0.01], [0.01], [], [0.01]],
        "start_times": [1000.5, 1001.0, 0.0, 1002.5],
        "errors": ["", "", "refused", ""],
    }
)
ACCEPTANCE = """{"id": "a", "prompt_token_ids": [5, 6, 7], "generated_token_ids": [1, 2], \
"acc_eagle": {"acc_len": [1, 4, 2]}, "acc_ngram": {"acc_len": [1, 21]}}
{"id": "b", "prompt_token_ids": [5], "generated_token_ids": [1], \
"acc_eagle": {"acc_len": [2]}, "acc_ngram": {"acc_len": [3]}}
"""


def _aiperf(start_ns: int, tokens: tuple[int, int], phase: str = "profiling", error: object = None) -> str:
    """By hand from the documented ``profile_export.jsonl`` of ai-dynamo/aiperf (working-with-profile-exports.md)."""
    metrics = dict(zip(("input_sequence_length", "output_sequence_length"), tokens, strict=True))
    values = {name: {"value": count, "unit": "tokens"} for name, count in metrics.items()}
    return json.dumps(
        {"metadata": {"request_start_ns": start_ns, "benchmark_phase": phase}, "metrics": values, "error": error}
    )


AIPERF = "\n".join(
    [
        _aiperf(1_000_000_000, (9, 9), "warmup"),
        _aiperf(2_000_000_000, (100, 10)),
        _aiperf(3_000_000_000, (9, 9), error={"code": 500}),
        _aiperf(2_500_000_000, (300, 30)),
    ]
)
# By hand from GuideLLM 0.6's schema (GenerativeBenchmark.requests, GenerativeRequestStats).
GUIDELLM = json.dumps(
    {
        "benchmarks": [
            {"requests": {"successful": [{"prompt_tokens": 100, "output_tokens": 10, "request_start_time": 12.0}]}},
            {
                "requests": {
                    "successful": [{"prompt_tokens": 300, "output_tokens": 30, "start_time": 12.5}],
                    "errored": [],
                }
            },
        ]
    }
)
# As GuideLLM 0.8.1 wrote it (tests/data/README.md).
GUIDELLM_REPORT = lzma.decompress((DATA / "guidellm.json.xz").read_bytes()).decode()
SAMPLES = {
    "azure": AZURE_2023,
    "burstgpt": BURSTGPT,
    "mooncake": MOONCAKE,
    "sharegpt": SHAREGPT,
    "vllm_bench": VLLM_BENCH,
    "aiperf": AIPERF,
    "guidellm": GUIDELLM,
    "specdecode_bench": ACCEPTANCE,
}

# A load client's journal: planned requests, then what was seen of them.
LINES: list[list[Any]] = [
    ["r", 0, "chat", 0.0, 7, 4],
    ["r", 1, "chat", 0.5, 9, 2],
    ["r", 2, "chat", 1.0, 3, 3],
    ["s", 0, 0.001],
    ["c", 0, 0.2, 1],
    ["s", 1, 0.5],
    ["c", 0, 0.3, 3],
    ["f", 0, 0.31, 0],
    ["c", 1, 0.6, 1],
    ["e", 1, 0.7, "connection closed"],
]

MODEL = 'model_name="meta-llama/Llama-3.1-8B, \\"chat\\""'


def prometheus(drafts: float, drafted: float, per_position: list[float], engine: int = 0, model: str = MODEL) -> str:
    """The lines that vLLM 0.32 writes (prometheus_client: HELP, TYPE, value, and a time of creation)."""
    labels = f'engine="{engine}",{model}'
    created = f"vllm:spec_decode_num_drafts_created{{{labels}}} 1.7636e+09\n"
    positions = "".join(
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="{i}"}} {float(count)}\n'
        for i, count in enumerate(per_position)
    )
    return (
        f"vllm:num_requests_running{{{labels}}} 3.0\n"
        "# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.\n"
        "# TYPE vllm:spec_decode_num_drafts_total counter\n"
        f"vllm:spec_decode_num_drafts_total{{{labels}}} {float(drafts)}\n{created}"
        f"vllm:spec_decode_num_draft_tokens_total{{{labels}}} {float(drafted)}\n"
        f"vllm:spec_decode_num_accepted_tokens_total{{{labels}}} {float(sum(per_position))}\n{positions}"
    )


def closed_loop(users: int, think_s: float = 0.0, distribution: str = "constant") -> ClosedLoopArrivals:
    """Clients that pause between an answer and their next request."""
    fields: dict[str, Any] = {"think_time_s": think_s, "think_time_distribution": distribution}
    return ClosedLoopArrivals(process="closed_loop", concurrency=users, **fields)


def clients(loop: ClosedLoopArrivals, n: int, seed: int = 0) -> ClosedLoop:
    """The clients of ``loop`` as a cluster takes them, who send n requests."""
    return ClosedLoop(loop.concurrency, loop.draw_think_s(seed, n))
