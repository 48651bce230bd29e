"""The scheduler: which requests run in the next step and how many tokens each computes.

Follows ``v1/core/sched/scheduler.py`` of vLLM 0.32 and 0.33 (``Scheduler.schedule``, ``_preempt_request``,
``_update_after_schedule``) and ``async_scheduler.py`` decision for decision; ``tests/schedule_trace.py`` compares them
with vLLM's own class line by line. Where the engine is SGLang, admission and preemption follow SGLang's. Encoders,
LoRA, KV connectors and structured output are not modelled.
"""

from typing import Any

import numpy as np
from numba import njit

from draftcast.sim.engine import blocks, queue
from draftcast.sim.state.engine import PREEMPTED, RUNNING, Array, EngineState

# Of SGLang 0.5 (managers/schedule_policy.py PrefillAdder, schedule_batch.py retract_decode, environ.py): the share of
# the running requests' outputs that is kept free at first and at least, the decode steps between, the steps allowed for
# after a preemption, and the tokens of a request's output that count.
FIRST_SHARE, LEAST_SHARE, SHARE_STEPS, RETRACT_STEPS, MOST_OUTPUT = 0.7, 0.098, 600, 20, 4096


@njit(cache=True, forceinline=True)
def _add_entry(s: EngineState, entries: Array, size: int, i: int, n: int, drafts: int, padded: bool) -> None:
    x = entries[np.uint64(size)]  # unsigned: an index that numba need not test for being negative
    x.request = i
    x.tokens = n
    x.drafts = drafts
    x.computed = s.requests[i].computed
    x.padded = padded


@njit(cache=True)
def _remove_entry(entries: Array, size: int, i: int) -> int:
    """Take request ``i`` out of the first ``size`` entries, order kept; the tokens it held, or -1."""
    for at in range(size):
        if entries[at].request == i:
            tokens = entries[at].tokens
            for j in range(at, size - 1):
                entries[j] = entries[j + 1]
            return int(tokens)
    return -1


@njit(cache=True)
def _victim(s: EngineState) -> int:
    """Place in ``running`` of whom to preempt: the last, or the largest (priority, arrival); SGLang: fewest outputs."""
    last = int(s.engine[0].num_running - 1)
    if not (s.config[0].retracts or s.config[0].priority):
        return last
    worst = 0
    for at in range(1, last + 1):
        a = s.requests[s.running[at]]
        b = s.requests[s.running[worst]]
        if s.config[0].retracts:
            goes_first = a.tokens - a.prompt <= b.tokens - b.prompt
        else:
            later = a.arrival_s > b.arrival_s or (a.arrival_s == b.arrival_s and s.running[at] > s.running[worst])
            goes_first = a.priority > b.priority or (a.priority == b.priority and later)
        if goes_first:
            worst = at
    return worst


@njit(cache=True)
def add_clocks(s: EngineState, i: int, times: float) -> None:
    """Add ``times`` the clocks to those of request ``i``: -1 where it begins to decode, 1 where it stops."""
    for clock in range(s.clocks.size):
        s.requests[i].clock_s[clock] += times * s.clocks[clock]


@njit(cache=True)
def _preempt(s: EngineState, at: int) -> int:
    """Take ``running[at]`` off the device: blocks freed, recomputed later, first in the queue (SGLang's: last)."""
    e = s.engine[0]
    i = s.running[at]
    for j in range(at, e.num_running - 1):
        s.running[j] = s.running[j + 1]
    e.num_running -= 1
    e.num_preemptions += 1
    r = s.requests[i]
    if s.config[0].enable_prefix_caching:
        blocks.list_own_blocks(s, i)
    blocks.free_request(s, i)
    r.status = PREEMPTED
    r.computed = 0
    r.spec = 0
    r.stale = r.in_flight
    r.placeholders = 0
    r.preemptions += 1
    if not r.paused:
        r.paused = 1
        r.pause_start_s = max(e.mark_s, r.first_scheduled_s)
        if r.first_token_s >= 0.0:
            add_clocks(s, i, 1.0)
    if s.config[0].retracts:
        queue.append(s, i)
    else:
        queue.prepend(s, i)
    return int(i)


@njit(cache=True)
def _output_left(s: EngineState, i: int) -> int:
    """Tokens that request ``i`` may still put out, as far as they count."""
    r = s.requests[i]
    return int(min(r.prompt + r.max_tokens - r.tokens, MOST_OUTPUT))


@njit(cache=True)
def _reserved_blocks(s: EngineState) -> Any:
    """Blocks kept free for the requests that run: the rest of their prompts and a share of their outputs."""
    share = s.engine[0].output_share
    tokens = 0.0
    for i in s.running[: s.engine[0].num_running]:
        r = s.requests[i]
        tokens += max(r.tokens - r.computed, 0) + share * _output_left(s, i)
    return tokens / s.config[0].block_size


@njit(cache=True)
def _share_outputs(s: EngineState, preempted: bool) -> None:
    """The share after a decode step: a little less, and after a preemption what the running have shown to need."""
    e = s.engine[0]
    if not preempted:
        first, least = s.config[0].conservativeness * FIRST_SHARE, s.config[0].conservativeness * LEAST_SHARE
        e.output_share = max(e.output_share - (first - least) / SHARE_STEPS, least)
        return
    done, most = RETRACT_STEPS * e.num_running, 1
    for i in s.running[: e.num_running]:
        done += s.requests[i].tokens - s.requests[i].prompt
        most += s.requests[i].max_tokens
    e.output_share = min(done / most, 1.0)


@njit(cache=True)
def schedule(s: EngineState) -> int:
    """Fill the next free batch with what runs in this step; the number of requests scheduled.

    Changes queues, blocks and ``spec`` of the scheduled; ``commit`` then advances ``computed``.
    """
    if s.config[0].prompts_alone:  # decoding requests wait while any prompt can run
        size = _schedule(s, True)
        if size > 0:
            return size
    return _schedule(s, False)


@njit(cache=True)
def _schedule(s: EngineState, only_prompts: bool) -> int:
    c = s.config[0]
    e = s.engine[0]
    requests = s.requests
    running = s.running
    slot = (e.first_batch + e.in_flight) & c.last_slot
    e.calls += 1
    entries = s.entries[slot]
    size = 0
    token_budget = c.max_num_scheduled_tokens
    input_budget = c.max_num_batched_tokens
    slots = c.slots
    lookahead = c.lookahead
    max_model_len = c.max_model_len
    caching = c.enable_prefix_caching != 0
    prefill_scheduled = False
    preempted = False
    # A lone request has nobody to starve, so a long prefill may take the whole budget.
    threshold = c.long_prefill_token_threshold if e.num_running + e.num_waiting > 1 else 0

    at = 0
    while at < e.num_running and token_budget > 0 and input_budget > slots:
        i = running[np.uint64(at)]
        r = requests[i]
        # Whether the step in flight surely ends it.
        ends = r.placeholders > 0 and r.computed + 2 - r.placeholders >= r.prompt + r.max_tokens
        if ends or r.eligible_step > e.calls or (only_prompts and not r.is_chunk):
            at += 1
            continue
        n = r.tokens + r.spec + r.placeholders - r.computed
        if 0 < threshold < n:
            n = threshold
        n = min(n, token_budget, input_budget - slots, max_model_len - r.computed - 1)
        if n <= 0:
            at += 1  # not strictly first come, first served: later requests may still run
            continue

        if c.window_groups > 0:
            blocks.drop_skipped(s, i)
        need = min(r.computed + n + lookahead, max_model_len)
        gave_way = False
        while not gave_way and not blocks.extend(s, i, need):
            victim_at = _victim(s)
            victim = _preempt(s, victim_at)
            preempted = True
            gave_way = victim == i
            if victim_at < at:
                at -= 1
                restored = _remove_entry(entries, size, victim)
                if restored >= 0:
                    size -= 1
                    token_budget += restored
                    input_budget += restored + slots
        if gave_way:
            if c.self_preempted_pass:
                continue  # those behind it have a higher priority, and its blocks are free now
            break

        drafts = 0
        if r.spec > 0:
            drafts = max(min(n + r.computed - r.tokens - r.placeholders, r.spec), 0)
            r.spec = 0
        prefill_scheduled |= r.is_chunk != 0
        _add_entry(s, entries, size, i, n, drafts, False)
        size += 1
        token_budget -= n
        input_budget -= n + slots
        at += 1
        if caching:
            blocks.cache_full_blocks(s, i, r.computed + n)

    if c.reserves_outputs and not only_prompts:
        _share_outputs(s, preempted)
    if not preempted and (only_prompts or not c.prompts_alone):
        size = _admit(s, entries, size, token_budget, input_budget, threshold, prefill_scheduled)
    s.batch[slot].size = size
    return size


@njit(cache=True)
def _admit(
    s: EngineState,
    entries: Array,
    size: int,
    token_budget: int,
    input_budget: int,
    threshold: int,
    prefill_scheduled: bool,
) -> int:
    """Admit waiting requests in order until one does not fit; the batch's new size."""
    c = s.config[0]
    e = s.engine[0]
    max_model_len = c.max_model_len
    num_already_running = size
    num_skipped = 0
    if e.num_running == 0:
        e.output_share = c.conservativeness * FIRST_SHARE
    reserved = _reserved_blocks(s) if c.reserves_outputs and e.num_waiting > 0 else 0.0
    while token_budget > 0 and e.num_waiting > 0 and input_budget > c.slots and e.num_running < c.max_num_seqs:
        i = s.queue[0]
        r = s.requests[i]
        if r.stale > 0:  # an output from before its preemption is still to be delivered
            s.skipped[num_skipped] = queue.pop(s)
            num_skipped += 1
            continue

        hits = evictable = 0
        if c.enable_prefix_caching:
            hits, evictable = blocks.find_hits(s, i)
        hit_tokens = hits * c.block_size
        request_budget = min(token_budget, input_budget - c.slots)
        n = r.tokens - hit_tokens
        padded = False
        if c.pads_single_tokens and n == 1 and not prefill_scheduled and (num_already_running > 0 or hits > 0):
            # Uniform 1+k rows keep the step inside the full CUDA graph.
            rows = 1 + c.max_drafts
            if hit_tokens + rows + 1 <= max_model_len:
                if rows > request_budget:
                    break
                n = rows
                padded = True
        if 0 < threshold < n:
            n = threshold
        if not c.enable_chunked_prefill and n > request_budget:
            break
        n = min(n, request_budget)

        # The whole prompt must fit, and the watermark must stay free, before the first chunk may start.
        watermark = c.watermark_blocks if e.num_running > 0 else 0
        whole = max(blocks.blocks_for(min(r.tokens, max_model_len), c.block_size) - hits, 0) + evictable
        slots_for = min(hit_tokens + n + c.lookahead, max_model_len)
        first = max(blocks.blocks_for(slots_for, c.block_size) - hits, 0) + evictable
        if c.window_groups > 0:
            whole += c.window_groups * min(whole, c.window_cap)
            first += c.window_groups * first
        if max(whole, first) + c.fixed_blocks + watermark > e.free_blocks:
            break
        if c.reserves_outputs:
            reserved += blocks.blocks_for(_output_left(s, i), c.block_size)
            if e.num_running > 0 and whole + c.fixed_blocks + reserved >= e.free_blocks:
                break
            reserved += whole - first

        queue.pop(s)
        if c.enable_prefix_caching:
            blocks.adopt_hits(s, i, hits)
            e.cached_tokens += hit_tokens
            e.looked_up_tokens += r.tokens
        blocks.extend(s, i, slots_for)
        s.running[e.num_running] = i
        e.num_running += 1
        r.computed = hit_tokens
        r.status = RUNNING
        if r.first_scheduled_s < 0.0:
            r.first_scheduled_s = e.host_s
            r.hit_tokens = hit_tokens
        _add_entry(s, entries, size, i, n, c.max_drafts if padded else 0, padded)
        size += 1
        token_budget -= n
        input_budget -= n + c.slots
        if c.enable_prefix_caching:
            blocks.cache_full_blocks(s, i, hit_tokens + n)
    for j in range(num_skipped):
        queue.push(s, s.skipped[j])
    return size


@njit(cache=True, forceinline=True)
def advance_computed(s: EngineState, slot: int, j: int) -> None:
    """Count the tokens of entry ``j`` as computed at once; a later rejection takes them back.

    Asynchronous scheduling also expects the outputs, 1 + drafts, and the next step's drafts.
    """
    x = s.entries[slot, j]
    r = s.requests[x.request]
    if r.undrafted:
        x.next_drafts = x.drafted = 0
    r.computed += x.tokens
    r.in_flight += x.tokens
    r.is_chunk = x.is_chunk
    if s.config[0].async_scheduling and not x.is_chunk:
        r.placeholders += 1 + x.drafts
        r.spec = x.next_drafts
        r.eligible_step = s.engine[0].calls + s.config[0].decode_stagger
