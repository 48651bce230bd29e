"""What an engine replica knows: its settings, its requests, its queues, its KV blocks, its clocks.

Everything is a NumPy array (structured where a row is a thing), bundled in one named tuple, so that the same
functions run compiled over a million steps or are called one by one from Python.

Field names are vLLM's (``vllm/v1/request.py``, ``vllm/v1/core/sched/scheduler.py``, 0.32): ``computed`` is
``num_computed_tokens``, ``placeholders`` is ``num_output_placeholders``, ``stale`` is ``num_stale_output_tokens``.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftcast.kernels.arrays import record_type
from draftcast.kernels.model.spec import WINDOWS
from draftcast.sim.acceptance.compiled import AcceptanceArrays
from draftcast.sim.cost.engine_config import EngineConfig
from draftcast.sim.cost.step_time import StepCost

# Life of a request; the order is the order in which a request passes through them.
NOT_ARRIVED, WAITING, RUNNING, PREEMPTED, FINISHED = 0, 1, 2, 3, 4

# What the replica does next: ask the scheduler, let the policy decide, or take the oldest output.
PHASE_SCHEDULE, PHASE_DECIDE, PHASE_COLLECT = 0, 1, 2

# Why advance() returned.
STOP_TIME, STOP_IDLE, STOP_DECIDE, STOP_FINISHED, STOP_STEPS_FULL, STOP_STUCK, STOP_OUTPUT = range(7)

# Cumulative seconds of finished steps by cause; a request's share is the difference of two readings.
CLOCK_PREFILL, CLOCK_DRAFT, CLOCK_VERIFY, CLOCK_REJECTED, CLOCK_HOST, N_CLOCKS = 0, 1, 2, 3, 4, 5

# One row a request. The first 64 bytes are what a step touches.
REQUEST = record_type(
    ("last_emission_s", "f8"),
    ("prompt", "i4"),  # prompt tokens
    ("max_tokens", "i4"),  # output tokens at which the request ends
    ("tokens", "i4"),  # prompt + output tokens known to the scheduler
    ("computed", "i4"),  # tokens whose KV is (optimistically) computed
    ("placeholders", "i4"),  # output tokens in flight under asynchronous scheduling
    ("in_flight", "i4"),  # scheduled tokens whose output is not in
    ("stale", "i4"),  # in-flight tokens scheduled before a preemption
    ("spec", "i4"),  # draft tokens waiting to be verified
    ("future", "i4"),  # output tokens once everything in flight has been verified
    ("num_blocks", "i4"),  # KV blocks held
    ("eligible_step", "i4"),  # the first call of the scheduler that may schedule it again
    ("skipped_blocks", "i4"),  # leading blocks that it gave back in each group of layers with a window
    ("num_cached", "i4"),  # leading blocks that carry a hash
    ("table", "i4"),  # row of the block table, -1 without one
    ("status", "i1"),
    ("is_chunk", "i1"),  # last scheduled as a non-final prefill chunk
    ("paused", "i1"),  # preempted and not emitting again yet
    ("class_id", "i1"),
    ("segment", "i1"),  # which of the ITL histogram's segments the request belongs to
    ("undrafted", "i1"),  # never drafted for, whatever the policy says
    ("rounds", "i4"),  # verify rounds with at least one draft
    ("draft_tokens", "i4"),  # drafts verified
    ("accepted", "i4"),  # drafts accepted (vLLM counts those past the end of the request too)
    ("priority", "i4"),
    ("preemptions", "i4"),
    ("hit_tokens", "i4"),  # prompt tokens served from the prefix cache at first admission
    ("system_tokens", "i4"),  # leading tokens that are the text `system_text`
    ("system_text", "i8"),
    ("text", "i8"),  # its tokens after those: requests of one text share prompts and answers, -1: its own
    ("queue_key", "i8"),  # place among waiting requests, smaller is earlier
    ("arrival_s", "f8"),
    ("first_scheduled_s", "f8"),
    ("first_token_s", "f8"),
    ("finish_s", "f8"),
    ("pause_start_s", "f8"),
    ("pressure_s", "f8"),  # time between preemption and the next emission
    ("prefill_s", "f8"),  # first scheduled to first token, pauses left out
    ("sampled_s", "f8"),  # in a pipeline: when the last stage has the token that the next step begins with
    ("clock_s", "f8", (N_CLOCKS,)),
)

# One row a KV block, plus a last row that is head and tail of the free list. A row is what one cache line holds.
BLOCK = record_type(
    ("next", "u4"),  # in the free list
    ("prev", "u4"),
    ("refs", "i4"),  # requests that hold the block
    ("twin", "i4"),  # next block with the same key, -1 at the end, -2 (UNLISTED) outside the hash table
    ("key", "i8"),  # hash key, 0 without one
)

# One row a request of a scheduled batch.
ENTRY = record_type(
    ("request", "u4"),  # unsigned: an index that numba need not test for being negative
    ("tokens", "i4"),  # scheduled tokens, drafts included
    ("drafts", "i4"),  # draft rows verified in this step
    ("proposed", "i4"),  # of them, drafts that a text search really proposed
    ("computed", "i4"),  # tokens computed before this step
    ("accepted", "i4"),
    ("next_drafts", "i4"),  # of the drafts made in this step, those verified in the next
    ("drafted", "i2"),  # drafts made in this step
    ("padded", "i1"),  # drafts are padding of a one-token admission
    ("is_chunk", "i1"),
)

# One row a batch in flight.
BATCH = record_type(
    ("size", "i4"),
    ("step", "i8"),
    ("tokens", "i4"),
    ("drafts", "i4"),
    ("prefill_tokens", "i4"),
    ("max_next_drafts", "i4"),
    ("rejected_rows", "i4"),  # verified rows of drafts that are rejected
    ("schedule_s", "f8"),
    ("launch_s", "f8"),
    ("end_s", "f8"),
    ("host_s", "f8"),
    ("draft_s", "f8"),
    ("target_s", "f8"),  # target pass and sampler
    ("prefill_s", "f8"),  # part of target_s due to prefill rows
    ("rejected_draft_s", "f8"),  # parts of draft_s and target_s that the step would not have taken without them
    ("rejected_target_s", "f8"),
    # What came of it, filled when its output is collected.
    ("rounds", "i4"),  # verify rounds with at least one draft
    ("accepted", "i4"),
    ("rejections", "i4"),  # rounds that rejected a draft
    ("sampled", "i4"),  # requests that got a token
    ("emitted", "i4"),  # tokens they got
    ("elapsed_s", "f8"),  # since the output before
    # Of the engine behind it, only filled where steps are recorded.
    ("running", "i4"),
    ("waiting", "i4"),
    ("kv_used_blocks", "i4"),
    ("duration_s", "f8"),  # from its scheduling to its output
)

# Settings of a replica, one row: fields and properties of `EngineConfig`, its method and its generation, and what
# `config_row` adds.
CONFIG = record_type(
    ("block_size", "i4"),
    ("num_gpu_blocks", "i4"),
    ("fixed_blocks", "i4"),  # of a running request, besides its context's
    ("max_num_seqs", "i4"),
    ("max_num_batched_tokens", "i4"),
    ("max_num_scheduled_tokens", "i4"),
    ("max_model_len", "i4"),
    ("long_prefill_token_threshold", "i4"),
    ("slots", "i4"),
    ("lookahead", "i4"),
    ("max_drafts", "i4"),
    ("pads_single_tokens", "i1"),
    ("async_scheduling", "i1"),
    ("enable_prefix_caching", "i1"),
    ("enable_chunked_prefill", "i1"),
    ("prompts_alone", "i1"),  # prompts run in steps of their own, before all decoding
    ("retracts", "i1"),
    ("reserves_outputs", "i1"),  # room is kept for outputs when requests are admitted
    ("conservativeness", "f8"),  # how much of it: SGLang's `schedule_conservativeness`
    ("drops_last_hit", "i1"),
    ("hash_lookahead", "i4"),  # tokens behind a block that its hash covers
    ("caches_outputs", "i1"),  # blocks are cached with the output that fills them, not in the next step alone
    ("self_preempted_pass", "i1"),
    ("skips_unused_drafts", "i1"),
    ("drafts_in_full", "i1"),
    ("sliding_window", "i4"),
    ("window_kind", "i4"),
    ("window_groups", "i4"),
    ("window_cap", "i4"),
    ("proposes_on_host", "i1"),  # host text search: cost grows with the context searched
    ("proposes_by_match", "i1"),  # text search: fewer than k drafts, or none, may be proposed
    ("pads_searches", "i1"),  # its rows are scheduled before it is known to have found a match
    ("drafts_ahead", "i1"),  # on GPUs of their own, behind the drafts that the target verifies
    ("tree_depth", "i4"),
    ("priority", "i1"),  # scheduling_policy
    ("watermark_blocks", "i4"),
    ("depth", "i4"),  # batches in flight before the oldest is awaited
    ("last_slot", "i4"),  # batches are kept in a ring of one more than this, a power of two
    ("decode_stagger", "i4"),  # calls of the scheduler between two decode steps of a request
    ("num_keys_per_hash", "i4"),  # KV blocks in one trace hash block, 0: prompts share nothing
    # Addresses of the policy's compiled rule (0: it decides in Python) and of what learns from outputs (0: nothing).
    ("rule", "i8"),
    ("learn", "i8"),
)

# Counters and queue heads of a replica, one row.
ENGINE = record_type(
    ("host_s", "f8"),  # when the scheduler's thread is free
    ("device_s", "f8"),  # when the device is free
    ("mark_s", "f8"),  # clocks have been advanced to here
    ("step", "i8"),
    ("calls", "i8"),  # of the scheduler
    ("phase", "i4"),
    ("in_flight", "i4"),
    ("first_batch", "i4"),
    ("empty_batches", "i4"),  # of those in flight
    ("num_running", "i4"),
    ("num_waiting", "i4"),
    ("next_arrival", "i4"),
    ("num_arrivals", "i4"),
    ("free_blocks", "i4"),
    ("num_free_tables", "i4"),
    ("queue_front", "i8"),
    ("queue_back", "i8"),
    ("output_share", "f8"),  # of what running requests may still put out, kept free where outputs are reserved
    ("num_finished", "i8"),
    ("cached_tokens", "i8"),
    ("looked_up_tokens", "i8"),
    ("recorded", "i8"),
    ("scheduled_tokens", "i8"),
    ("emitted_tokens", "i8"),
    ("num_preemptions", "i8"),
    ("kv_block_seconds", "f8"),
    ("by_origin_s", "f8", (3,)),  # seconds of the device by `Origin`
)

Array = NDArray[Any]
CACHE_LINE_BYTES = 64


def aligned_zeros(n: int, dtype: np.dtype[Any]) -> Array:
    """``n`` zero rows that start with a cache line; NumPy's own start 16 bytes into one, and touch one line more."""
    memory = np.zeros(n * dtype.itemsize + CACHE_LINE_BYTES, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE_BYTES
    return memory[start : start + n * dtype.itemsize].view(dtype)


class PolicyArrays(NamedTuple):
    """A policy's parameters, its batch-size table and its moving state."""

    params: Array  # f8[...]
    table: Array  # i8[max_num_seqs + 1], drafts by batch size
    state: Array  # f8[...], moving averages, updated as outputs come in
    scratch: Array  # f8[...], work space of one decision
    order: Array  # i8[...], work space of one decision
    row_s: Array  # f8[rows + 1], seconds of a decode step that go by its rows; NaN before the first decision


class EngineState(NamedTuple):
    """All arrays of one replica. Requests are rows of one table that replicas share."""

    config: Array  # CONFIG[1]
    engine: Array  # ENGINE[1]
    requests: Array  # REQUEST[n]
    running: Array  # u4[max_num_seqs]
    queue: Array  # u4[n], waiting requests, a binary heap
    arrivals: Array  # u4[n], requests sent to this replica, by arrival time
    batch: Array  # BATCH[slots]
    entries: Array  # ENTRY[slots, max_num_seqs]
    stage_free_s: Array  # f8[pipeline stages], when each is free
    skipped: Array  # u4[max_num_seqs + 8], requests passed over in this step
    block_table: Array  # u4[max_num_seqs, blocks a sequence may need]
    free_table: Array  # i4[max_num_seqs]
    blocks: Array  # BLOCK[num_blocks + 1]
    cache_key: Array  # i8[2^b], open-addressing table: key to first block
    cache_block: Array  # i4[2^b]
    hash_ids: Array  # i8[...]
    hash_offsets: Array  # i8[n + 1]
    policy: PolicyArrays
    cost: StepCost
    acceptance: AcceptanceArrays
    features: Array  # FEATURES[1]
    kept_features: Array  # FEATURES[1], those of the step without rejected rows and their drafts
    times: Array  # TIMES[1]
    clocks: Array  # f8[N_CLOCKS]
    itl: Array  # i8[segments + 1, bins], the last of extra requests
    rounds_by_accepted: Array  # i8[segments + 1, k + 1], rounds that accepted so many drafts
    steps: Array  # BATCH[capacity], collected; capacity 0: steps are not recorded
    finished: Array  # u4[max_num_seqs], requests that ended in the last collected step


def config_row(config: EngineConfig, hash_block_tokens: int) -> Array:
    """``CONFIG[1]``; ``hash_block_tokens``: of the trace, 0 where prompts share nothing."""
    chooses = WINDOWS[config.window_kind] == "top_k"
    follows = {
        "priority": config.scheduling_policy == "priority",
        "self_preempted_pass": config.scheduling_policy == "priority" and config.follows("self_preempted_pass"),
        "caches_outputs": config.async_scheduling or (config.max_drafts > 0 and config.follows("caches_outputs")),
        # With windows SGLang looks at the pool of full attention (``PrefillAdder.rem_total_tokens``), not at theirs.
        "reserves_outputs": config.generation.retracts and (not config.sliding_window or chooses),
        # With attention in ranks: server_args.py of 0.4.8 to 0.5.17, arg_groups/parallel_hook.py of 0.5.23.
        "conservativeness": 0.3 if config.lockstep_ranks > 1 else 1.0,
        # Of asynchronous scheduling the pipeline's stages.
        "decode_stagger": config.pipeline_parallel_size if config.async_scheduling else 1,
        "watermark_blocks": int(config.watermark * config.num_gpu_blocks),
        "last_slot": max(2, 1 << (config.depth - 1).bit_length()) - 1,
        "num_keys_per_hash": hash_block_tokens // config.block_size,
        "rule": 0,
        "learn": 0,
    }
    row = np.zeros(1, CONFIG)
    holders = (config, config.method, config.generation)
    for name in CONFIG.names or ():
        matching = (holder for holder in holders if hasattr(holder, name))
        row[name] = follows[name] if name in follows else getattr(next(matching), name)
    return row
