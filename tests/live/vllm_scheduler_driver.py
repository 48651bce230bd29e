"""Drive vLLM's own V1 scheduler, without a model, over a JSON workload: what draftcast's scheduler is compared with.

Reads the workloads of ``python tests/schedule_trace.py`` and yields the same records. ``hash_ids`` become
prompt tokens, so that vLLM's own prefix cache sees equal prefixes where the workload says so. vLLM 0.32 and 0.33.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
import vllm
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 1024,
    "max_position_embeddings": 131072,
    "torch_dtype": "float32",
}
OPTIONAL = ("watermark", "long_prefill_token_threshold", "policy", "max_num_scheduled_tokens")
# draftcast's names of what vLLM calls by another name with parallel_drafting.
PARALLEL = {"p_eagle": "eagle3", "pard": "draft_model", "dflash": "dflash", "dspark": "dspark"}


@lru_cache(maxsize=1)
def _model_folder() -> str:
    folder = tempfile.mkdtemp(prefix="draftcast-live-")
    (Path(folder) / "config.json").write_text(json.dumps(MODEL))
    init_none_hash(sha256)
    return folder


def _speculative(w: dict[str, Any], model: ModelConfig, parallel: ParallelConfig) -> SpeculativeConfig | None:
    if w["method"] == "none" or w["k"] == 0:
        return None
    options: dict[str, Any] = {
        "method": w["method"],
        "num_speculative_tokens": w["k"],
        "target_model_config": model,
        "target_parallel_config": parallel,
    }
    if w["method"] == "ngram":
        options |= {"prompt_lookup_max": 3, "prompt_lookup_min": 1}
    else:
        # The scheduler reads nothing of the draft but the method, so an EAGLE head can be stood in for by any model.
        options |= {"method": "draft_model", "model": _model_folder()}
    if w.get("schedule"):
        options["num_speculative_tokens_per_batch_size"] = w["schedule"]
    return SpeculativeConfig(**options)


def _scheduler(w: dict[str, Any]) -> tuple[Scheduler, bool]:
    model = ModelConfig(
        model=_model_folder(), skip_tokenizer_init=True, dtype="float32", max_model_len=w["max_model_len"], seed=0
    )
    parallel = ParallelConfig()
    is_async = w.get("async", w["method"] not in ("ngram", "suffix", "medusa"))
    caching = w.get("prefix_caching", False)
    config = VllmConfig(
        model_config=model,
        parallel_config=parallel,
        speculative_config=_speculative(w, model, parallel),
        device_config=DeviceConfig("cpu"),
        cache_config=CacheConfig(block_size=w["block_size"], gpu_memory_utilization=0.9, enable_prefix_caching=caching),
        scheduler_config=SchedulerConfig(
            max_num_seqs=w["max_num_seqs"],
            max_num_batched_tokens=w["max_num_batched_tokens"],
            max_model_len=w["max_model_len"],
            enable_chunked_prefill=w.get("enable_chunked_prefill", True),
            is_encoder_decoder=False,
            async_scheduling=is_async,
            **{name: w[name] for name in OPTIONAL if name in w},
        ),
    )
    config.scheduler_config.async_scheduling = is_async  # validation turns it off on a CPU
    config.cache_config.num_gpu_blocks = w["num_blocks"]
    stages = parallel.pipeline_parallel_size = w.get("pipeline_parallel_size", 1)  # after validation, as below
    if config.speculative_config is not None:
        # After validation, which refuses methods that this CPU build's model runner cannot run.
        config.speculative_config.method = PARALLEL.get(w["method"], w["method"])
        config.speculative_config.parallel_drafting = w["method"] in PARALLEL
    spec = FullAttentionSpec(block_size=w["block_size"], num_kv_heads=1, head_size=1, dtype=torch.float32)
    states = MambaSpec(
        shapes=((w["block_size"],),),
        dtypes=(torch.float32,),
        block_size=w["max_model_len"],
        page_size_padded=spec.page_size_bytes,
        num_speculative_blocks=w["k"] if config.speculative_config is not None else 0,
    )
    groups = [KVCacheGroupSpec(["layer"], spec)]
    groups += [KVCacheGroupSpec([f"linear{i}"], states) for i in range(w.get("linear_groups", 0))]
    heads = {"block_size": w["block_size"], "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    windows = {
        "sliding": lambda: SlidingWindowSpec(sliding_window=w["window"], **heads),
        "chunked": lambda: ChunkedLocalAttentionSpec(attention_chunk_size=w["window"], **heads),
    }
    for i in range(w.get("window_groups", 0)):
        groups.append(KVCacheGroupSpec([f"window{i}"], windows[w["window_kind"]]()))
    layers = KVCacheConfig(num_blocks=w["num_blocks"], kv_cache_tensors=[], kv_cache_groups=groups)
    kind = AsyncScheduler if is_async else Scheduler
    manager = StructuredOutputManager(config)
    block_size = math.lcm(*(group.kv_cache_spec.block_size for group in groups))
    scheduler = kind(config, layers, manager, block_size=block_size, log_stats=True)
    # Asynchronous scheduling of a pipeline needs the second model runner, which this CPU build does not take.
    scheduler.use_v2_model_runner = is_async and stages > 1
    return scheduler, is_async


def _said(request: dict[str, Any], i: int, place: int) -> int:
    """Token of a request at a place of its prompt or output, which depends on its session alone."""
    number, tokens = request.get("system_prompt", (0, 0))
    if place < tokens:
        return 10**6 * (1 + number) + place
    return 10**8 + 10**5 * (request["session"] if "session" in request else 500 + i) + place


def _prompt(w: dict[str, Any], i: int) -> list[int]:
    """Prompt tokens that are equal between requests exactly where their hash ids, sessions or system prompts are."""
    request = w["requests"][i]
    tokens = [1000 + i] * request["prompt"]
    if "session" in request or "system_prompt" in request:
        tokens = [_said(request, i, place) for place in range(request["prompt"])]
    width = w.get("hash_block_tokens", w["block_size"])
    for j, hash_id in enumerate(request.get("hash_ids", [])):
        end = min((j + 1) * width, request["prompt"])
        if end == (j + 1) * width:
            tokens[j * width : end] = [100000 + hash_id] * width
    return tokens


def drive(w: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield one record per call of vLLM's ``schedule()``; every request ends at its output length."""
    scheduler, is_async = _scheduler(w)
    # Of vLLM 0.33 and later: what each block's hash covers behind it.
    ahead = getattr(scheduler.vllm_config, "num_hash_lookahead_tokens", 0)
    hasher = None
    if w.get("prefix_caching"):
        hasher = get_request_block_hasher(w["block_size"], sha256, *([ahead] if ahead else []))
    requests = w["requests"]
    order = deque(sorted(range(len(requests)), key=lambda i: (requests[i]["arrival_step"], i)))
    rounds = [0] * len(requests)
    outputs = [0] * len(requests)
    in_flight: deque[Any] = deque()
    unfinished, step = len(requests), 0
    while unfinished:
        while order and requests[order[0]]["arrival_step"] <= step:
            i = order.popleft()
            scheduler.add_request(
                Request(
                    request_id=str(i),
                    prompt_token_ids=_prompt(w, i),
                    pooling_params=None,
                    arrival_time=float(i),
                    priority=requests[i].get("priority", 0),
                    sampling_params=SamplingParams(max_tokens=requests[i]["output"], ignore_eos=True),
                    block_hasher=hasher,
                )
            )
        out = scheduler.schedule()
        yield {
            "step": step,
            "tokens": dict(out.num_scheduled_tokens),
            "drafts": {r: len(d) for r, d in out.scheduled_spec_decode_tokens.items() if d},
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "free_blocks": scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        }
        step += 1
        chunks = {r for r in out.num_scheduled_tokens if scheduler.requests[r].is_prefill_chunk}
        in_flight.append((out, chunks))
        if len(in_flight) < w.get("pipeline_parallel_size", 1) + is_async and out.total_num_scheduled_tokens:
            continue
        out, chunks = in_flight.popleft()
        if not out.num_scheduled_tokens:
            continue
        ids = list(out.num_scheduled_tokens)
        sampled: list[list[int]] = []
        for r in ids:
            i = int(r)
            drafts = len(out.scheduled_spec_decode_tokens.get(r, []))
            accepted = 0
            if r in chunks:
                sampled.append([])
                continue
            if drafts:
                accept = requests[i]["accept"]
                accepted = min(accept[rounds[i] % len(accept)], drafts)
                rounds[i] += 1
            if "session" in requests[i]:
                start = requests[i]["prompt"] + outputs[i]
                sampled.append([_said(requests[i], i, start + j) for j in range(accepted + 1)])
            else:  # every output token is the request's own, so generated blocks are shared with nobody
                sampled.append([200000 + 1000 * i + (outputs[i] + j) % 1000 for j in range(accepted + 1)])
            outputs[i] += accepted + 1
        before = len(scheduler.requests)
        scheduler.update_from_output(
            out,
            ModelRunnerOutput(
                req_ids=ids,
                req_id_to_index={r: j for j, r in enumerate(ids)},
                sampled_token_ids=sampled,
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
            ),
        )
        unfinished -= before - len(scheduler.requests)
        if not is_async and w["method"] != "none" and w["k"]:
            alive = [r for r, tokens in zip(ids, sampled, strict=True) if tokens and r in scheduler.requests]
            scheduler.update_draft_token_ids(
                DraftTokenIds(alive, [[7] * out.num_spec_tokens_to_schedule for _ in alive])
            )


if __name__ == "__main__":
    print("vllm", vllm.__version__.rpartition(".")[0])
    for workload in map(json.loads, sys.stdin):
        print(json.dumps(list(drive(workload))))
