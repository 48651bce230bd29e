"""Random scheduler workloads: small enough to read, wide enough to meet every branch of the scheduler."""

from __future__ import annotations

from random import Random
from typing import Any

METHODS = ("none", "ngram", "draft_model")
HIDDEN_STATES = ("eagle", "eagle3", "mtp", "dflash", "dspark", "p_eagle")
EVERY_METHOD = (*METHODS, *HIDDEN_STATES, "pard", "ngram_gpu", "medusa", "suffix")
NEXT, NEXT_METHODS = "vllm 0.33", tuple(method for method in EVERY_METHOD if method != "medusa")


def random_workload(
    seed: int,
    *,
    prefix_caching: bool = False,
    sessions: bool = False,
    methods: tuple[str, ...] = METHODS,
    linear_groups: int = 0,
    stages: int = 1,
    window_kind: str = "",
    version: str = "",
) -> dict[str, Any]:
    """Workload number ``seed``; the same number is the same workload everywhere.

    ``linear_groups``: groups of linear attention layers, whose states take blocks of every request. ``window_kind``:
    one to three groups of "sliding" or "chunked" layers, which give back blocks behind their window. ``sessions``:
    some requests are turns of a few sessions, which begin with one of two system prompts. ``version``: of the engine,
    as ``vllm 0.33``, whose second runner searches n-grams asynchronously too.
    """
    rng = Random(seed)
    block_size = rng.choice([4, 8, 16, 32])
    method = rng.choice(methods)
    k = 0 if method == "none" else rng.randint(0, 7)
    max_model_len = rng.choice([128, 256, 512, 1024])
    max_num_seqs = rng.choice([1, 2, 3, 4, 8, 16])
    longest = rng.choice([max_model_len // 8, max_model_len // 3, max_model_len - 2])
    requests = []
    roots = [[1000 * root + j for j in range(64)] for root in range(3)]  # equal ids are equal prefixes
    for i in range(rng.randint(1, 24)):
        prompt = rng.randint(1, max(1, longest))
        request: dict[str, Any] = {
            "arrival_step": rng.choice([0, 0, rng.randint(0, 10), rng.randint(0, 80)]),
            "prompt": prompt,
            "output": rng.randint(1, rng.choice([2, 10, 60])),
            "accept": [rng.randint(0, 7) for _ in range(rng.randint(1, 6))],
        }
        if prefix_caching:
            shared = rng.randint(0, 64)
            request["hash_ids"] = (rng.choice(roots)[:shared] + [10**7 + 100 * i + j for j in range(64)])[
                : -(-prompt // block_size)
            ]
        if sessions and rng.random() < 0.8:
            number = rng.randrange(3)
            # Half of the turns go on where the last one ended; the others come early, or ask once more.
            before = next((r for r in reversed(requests) if r.get("session") == number), None)
            if before is not None and rng.random() < 0.5:
                request["prompt"] = min(before["prompt"] + before["output"] + rng.randint(1, 20), max(1, longest))
            request |= {"session": number, "system_prompt": [number % 2, 10 + 30 * (number % 2)]}
        elif sessions and rng.random() < 0.5:
            request["system_prompt"] = [0, 10]
        if "system_prompt" in request:
            request["prompt"] = max(request["prompt"], min(request["system_prompt"][1] + 1, max_model_len - 2))
        requests.append(request)
    most = max(-(-min(r["prompt"] + r["output"] + k + 1, max_model_len) // block_size) for r in requests) + 1
    most += linear_groups * (1 + k)
    windows = 1 + seed % 3 if window_kind else 0
    most *= 1 + windows
    workload: dict[str, Any] = {
        "block_size": block_size,
        # Scarce blocks preempt, ample blocks do not.
        "num_blocks": rng.choice([most, most + rng.randint(0, most), 4 * most, 40 * most]) + 1,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max(rng.choice([16, 33, 64, 100, 256, 2048]), max_num_seqs + 1, k + 2),
        "max_model_len": max_model_len,
        "method": method,
        "k": k,
        "requests": requests,
    }
    if prefix_caching or sessions:
        workload["prefix_caching"] = True
    if stages > 1:
        workload["pipeline_parallel_size"] = stages
    if linear_groups:
        workload["linear_groups"] = linear_groups
    if window_kind:
        workload |= {"window_kind": window_kind, "window_groups": windows, "window": 8 * (1 + seed % 7)}
    if rng.random() < 0.3:
        workload["policy"] = "priority"
        for request in requests:
            request["priority"] = rng.randint(0, 3)
    if k and rng.random() < 0.3:
        edges = sorted(rng.sample(range(1, 17), 3))
        workload["schedule"] = [[1, edges[0], rng.randint(0, k)], [edges[0] + 1, edges[1] + 1, rng.randint(0, k)]]
        if edges[2] > edges[1] + 1:
            workload["schedule"].append([edges[2], 16, rng.randint(0, k)])
    if rng.random() < 0.3:
        workload["long_prefill_token_threshold"] = rng.choice([k + 2, 16, 50])
    if rng.random() < 0.3:
        workload["watermark"] = rng.choice([0.01, 0.05, 0.2])
    if method in ("ngram", "medusa", "suffix"):
        workload["async"] = False
    if method in ("draft_model", *HIDDEN_STATES) and rng.random() < 0.2:
        workload["async"] = False
    if method == "none" and rng.random() < 0.3:
        workload["async"] = False
    if rng.random() < 0.2:
        workload["max_num_scheduled_tokens"] = max(workload["max_num_batched_tokens"] // 2, k + 2)
    if rng.random() < 0.1:  # room for the longest prompt and the method's slots, and no threshold
        workload["enable_chunked_prefill"] = False
        workload["max_num_batched_tokens"] = max(workload["max_num_batched_tokens"], max_model_len + 8)
        workload["max_num_scheduled_tokens"] = workload["max_num_batched_tokens"]
        workload.pop("long_prefill_token_threshold", None)
    if version:
        workload["version"] = version
        if method == "ngram":
            workload["async"] = seed % 2 == 0
    return workload
