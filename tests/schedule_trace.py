"""What the simulated scheduler schedules, call by call: the counterpart of a driver around vLLM's own class.

``python tests/schedule_trace.py < workload.json`` reads one JSON object and prints one JSON line per call
of the scheduler, so that the lines can be compared with those of vLLM's ``Scheduler`` and ``AsyncScheduler``.

Input: ``block_size``, ``num_blocks``, ``max_num_seqs``, ``max_num_batched_tokens``, ``max_model_len``, ``method``
(a name of ``draftcast.sim.cost.methods``), ``k``; optional ``version`` (as ``vllm 0.33``), ``schedule``
(``[[first, last, k], ...]``), ``policy`` (``fcfs``, ``priority``), ``watermark``, ``long_prefill_token_threshold``,
``max_num_scheduled_tokens``, ``enable_chunked_prefill``, ``async``, ``prefix_caching`` (default false),
``hash_block_tokens``,
``pipeline_parallel_size`` and ``linear_groups`` (groups of linear attention layers; without prefix caching);
``requests``: ``arrival_step``, ``prompt``, ``output``, ``accept`` (drafts accepted in round 0, 1, ..., cycled),
optional ``priority``, ``hash_ids``, ``session`` (a number: requests of one share prompts and outputs from the first
token on), ``system_prompt`` (number and tokens of the text that the prompt begins with).

Output: ``step``, ``tokens`` (scheduled tokens by request), ``drafts`` (drafts verified by request), ``running``,
``waiting``, ``free_blocks``.
"""

import itertools
import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from numba import types

from draftcast.calibration.profile.engines import DEFAULT_VERSION
from draftcast.errors import InputError
from draftcast.kernels.model.spec import WINDOWS
from draftcast.sim.acceptance.chain import Chain
from draftcast.sim.acceptance.compile import compile_acceptance
from draftcast.sim.compiled.borrowed import PinnedBundle
from draftcast.sim.cost.engine_config import EngineConfig
from draftcast.sim.cost.methods import get_method
from draftcast.sim.cost.step_time import PARAMS, cost_without_tables
from draftcast.sim.engine import queue, step
from draftcast.sim.engine.replica import Replica, request_rows
from draftcast.sim.engine.schedule import schedule
from draftcast.sim.policies.schedule import BatchSchedule, Fixed
from draftcast.sim.state.engine import FINISHED, WAITING, EngineState
from draftcast.sim.workload.request_table import RequestTable

_REQUIRED = ("block_size", "num_blocks", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "method", "k")
_REQUIRED_OF_REQUEST = ("arrival_step", "prompt", "output")
_MAY_BE_ZERO = ("k", "arrival_step")


def _check(workload: Any) -> None:
    """Raise InputError for a missing key or a value of the wrong kind."""
    if not isinstance(workload, dict):
        raise InputError("must be a JSON object", key="workload", value=workload)
    _check_keys(workload, (*_REQUIRED, "requests"), "")
    if workload.get("policy", "fcfs") not in ("fcfs", "priority"):
        raise InputError("must be fcfs or priority", key="policy", value=workload["policy"])
    if not isinstance(workload["requests"], list):
        raise InputError("must be a list of requests", key="requests", value=workload["requests"])
    drafting = workload["method"] != "none" and workload["k"] > 0
    for i, request in enumerate(workload["requests"]):
        if not isinstance(request, dict):
            raise InputError("must be a JSON object", key=f"requests[{i}]", value=request)
        _check_keys(request, _REQUIRED_OF_REQUEST, f"requests[{i}].")
        if drafting and not (isinstance(request.get("accept"), list) and request["accept"]):
            key = f"requests[{i}].accept"
            raise InputError("must be a list of at least one number", key=key, value=request.get("accept"))


def _check_keys(found: dict[str, Any], required: tuple[str, ...], where: str) -> None:
    for name in required:
        if name not in found:
            raise InputError(f"missing; required are {', '.join(required)}", key=where + name)
        value = found[name]
        least = 0 if name in _MAY_BE_ZERO else 1
        if name not in ("method", "requests") and not (type(value) is int and value >= least):
            raise InputError(f"must be a whole number of at least {least}", key=where + name, value=value)


def _table(workload: dict[str, Any]) -> RequestTable:
    requests = workload["requests"]
    numbers = {None: -1}
    for request in requests:
        numbers.setdefault(request.get("session"), len(numbers) - 1)
    system = np.array([r.get("system_prompt", (0, 0)) for r in requests], np.int64).reshape(-1, 2)
    hash_ids = [r.get("hash_ids", []) for r in requests]
    return RequestTable(
        arrival_s=np.arange(len(requests), dtype=np.float64),
        prompt_tokens=np.array([r["prompt"] for r in requests], np.int32),
        output_tokens=np.array([r["output"] for r in requests], np.int32),
        class_id=np.zeros(len(requests), np.int16),
        priority=np.array([r.get("priority", 0) for r in requests], np.int32),
        class_names=("all",),
        session=np.array([numbers[r.get("session")] for r in requests], np.int64),
        system_prompt=system[:, 0],
        system_tokens=system[:, 1].astype(np.int32),
        hash_ids=np.array(list(itertools.chain.from_iterable(hash_ids)), np.int64),
        hash_offsets=np.concatenate([[0], np.cumsum([len(h) for h in hash_ids])]).astype(np.int64),
        hash_block_tokens=workload.get("hash_block_tokens", workload["block_size"]),
    )


def build_replica(workload: dict[str, Any]) -> Replica:
    """A replica set up as the workload says, with no request sent yet.

    Raises:
        InputError: a required key is missing, naming it, or a value is of the wrong type.
    """
    _check(workload)
    table = _table(workload)
    drafting = workload["method"] != "none" and workload["k"] > 0
    method = get_method(workload["method"] if drafting else "none")
    k = workload["k"] if drafting else 0
    ranges = workload.get("schedule") if drafting else None
    is_async = workload.get("async", get_method(workload["method"]).is_async)
    config = EngineConfig(
        version=workload.get("version", DEFAULT_VERSION),
        block_size=workload["block_size"],
        num_gpu_blocks=workload["num_blocks"],
        fixed_blocks=workload.get("linear_groups", 0) * (1 + k),
        window_groups=workload.get("window_groups", 0),
        sliding_window=workload.get("window", 0),
        window_kind=WINDOWS.index(workload.get("window_kind", "sliding")),
        max_num_seqs=workload["max_num_seqs"],
        max_num_batched_tokens=workload["max_num_batched_tokens"],
        max_model_len=workload["max_model_len"],
        max_num_scheduled_tokens=workload.get("max_num_scheduled_tokens") or 0,
        enable_chunked_prefill=workload.get("enable_chunked_prefill", True),
        long_prefill_token_threshold=workload.get("long_prefill_token_threshold", 0),
        watermark=workload.get("watermark", 0.0),
        method=method,
        num_speculative_tokens=k,
        is_dynamic=bool(ranges),
        async_scheduling=is_async,
        pipeline_parallel_size=workload.get("pipeline_parallel_size", 1),
        scheduling_policy=workload.get("policy", "fcfs"),
        enable_prefix_caching=workload.get("prefix_caching", False),
    )
    policy = BatchSchedule(ranges) if ranges else Fixed()
    acceptance = compile_acceptance([Chain(alpha=1.0)], table.class_id, seed=0, k=max(k, 1))
    return Replica(config, request_rows(table), table, policy, cost_without_tables(np.zeros(1, PARAMS)), acceptance)


def _settle(s: EngineState, slot: int, requests: list[dict[str, Any]], rounds: list[int]) -> None:
    """Mark chunks and take the accepted drafts from the workload's lists."""
    for x in s.entries[slot][: s.batch[slot]["size"]]:
        i = int(x["request"])
        r = s.requests[i]
        x["is_chunk"] = x["computed"] + x["tokens"] < r["tokens"] + r["placeholders"]
        x["accepted"] = 0
        x["proposed"] = x["drafts"]
        if x["drafts"] > 0 and not x["is_chunk"]:
            accept = requests[i]["accept"]
            x["accepted"] = min(accept[rounds[i] % len(accept)], int(x["drafts"]))
            rounds[i] += 1


def trace(workload: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield one record per scheduler call; request ``i`` arrives before call number ``arrival_step``.

    Raises:
        InputError: see :func:`build_replica`; or requests that wait and can never run (vLLM would ask for ever).
    """
    replica = build_replica(workload)
    requests = workload["requests"]
    s = replica.state
    e = s.engine[0]
    held, whole = PinnedBundle(s), types.int64
    append, schedule_batch = held.bind(queue.append, whole), held.bind(schedule)
    decide_drafts, commit = held.bind(step.decide_drafts, whole), held.bind(step.commit, whole)
    keep_empty, collect = held.bind(step.keep_empty, whole), held.bind(step.collect)
    depth = int(s.config[0]["depth"])
    order = sorted(range(len(requests)), key=lambda i: (requests[i]["arrival_step"], i))
    replica.submit(np.array(order, np.uint32))
    rounds = [0] * len(requests)
    sent = 0
    number = 0
    while e["num_finished"] < len(requests):
        while sent < len(order) and requests[order[sent]]["arrival_step"] <= number:
            s.requests[order[sent]]["status"] = WAITING
            append(order[sent])
            sent += 1
            e["next_arrival"] = sent
        slot = (int(e["first_batch"]) + int(e["in_flight"])) & int(s.config[0]["last_slot"])
        num_preemptions = int(e["num_preemptions"])
        size = schedule_batch()
        entries = s.entries[slot][:size]
        yield {
            "step": number,
            "tokens": {str(x["request"]): int(x["tokens"]) for x in entries},
            "drafts": {str(x["request"]): int(x["drafts"]) for x in entries if x["drafts"] > 0},
            "running": int(e["num_running"]),
            "waiting": int(e["num_waiting"]),
            "free_blocks": int(e["free_blocks"]),
        }
        number += 1
        if size:
            _settle(s, slot, requests, rounds)
            decide_drafts(slot)
            commit(slot)
            e["in_flight"] += 1
            if e["in_flight"] < depth:
                continue
        if e["in_flight"]:
            if not size:
                keep_empty(slot)
            collect()
        elif not size and sent == len(order) and e["num_preemptions"] == num_preemptions:
            waiting = s.queue[: e["num_waiting"]].tolist() + s.running[: e["num_running"]].tolist()
            raise InputError("can never be scheduled: too few blocks or too long", key=f"requests[{min(waiting)}]")
    assert (s.requests["status"] == FINISHED).all()


def main() -> int:
    """Read a workload from standard input, print its trace; 2 when the input is bad."""
    try:
        for record in trace(json.load(sys.stdin)):
            print(json.dumps(record))
    except (InputError, ValueError) as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
