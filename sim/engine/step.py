"""The engine's loop: schedule, draft, launch, collect - in simulated time.

Synchronous scheduling takes a step's output before it schedules the next. Asynchronous scheduling schedules step
n+1 while step n runs, so host work shows only where it outlasts the device (vLLM 0.32 ``v1/engine/core.py``,
``step_with_batch_queue`` with a queue of two). ``advance`` runs every step that starts before a given time, in one
compiled call; the same functions can be called one at a time.
"""

import numpy as np
from numba import njit

from draftcast.sim.acceptance.compiled import accepted_drafts, drafts_of_head, proposed_drafts
from draftcast.sim.compiled.borrowed import call_at
from draftcast.sim.compiled.itl_histogram import ITL_BIN_OFFSET, ITL_BIN_SHIFT, ITL_BINS
from draftcast.sim.cost.step_time import EXTRAPOLATED, fill_times, window_of_decode, window_of_prompt
from draftcast.sim.engine import blocks, queue
from draftcast.sim.engine.schedule import add_clocks, advance_computed, schedule
from draftcast.sim.policies.batch import show_batch, take_decision
from draftcast.sim.policies.forecast import draft_levels
from draftcast.sim.state import engine as state
from draftcast.sim.state.engine import FINISHED, RUNNING, WAITING, EngineState


@njit(cache=True)
def draw(s: EngineState, slot: int) -> None:
    """Settle what the scheduled drafts will yield, which goes by their output positions alone; `collect` tells it."""
    pads_searches = s.config[0].pads_searches
    entries = s.entries[slot]
    for j in range(s.batch[slot].size):
        x = entries[j]
        r = s.requests[x.request]
        x.is_chunk = x.computed + x.tokens < r.tokens + r.placeholders
        x.accepted = x.proposed = 0
        if x.is_chunk:
            continue
        if x.drafts > 0 and not x.padded:  # padding holds no drafts, so nothing of it can be accepted
            x.proposed = x.drafts
            if pads_searches:
                x.proposed = proposed_drafts(s.acceptance, x.request, r.future, x.drafts)
            x.accepted = accepted_drafts(s.acceptance, x.request, r.future, draft_levels(s, x.proposed))
        r.future += x.accepted + 1


@njit(cache=True)
def commit(s: EngineState, slot: int) -> None:
    """Count the batch's tokens as computed and fill its feature vectors (``draftcast.sim.cost.step_time``).

    ``features`` are the step's. ``kept_features`` are those of the same step without the rows of drafts that will be
    rejected in it and without making as many drafts as those: where a request makes k drafts and all k that it
    verifies are rejected, it has one row there and makes none. Rows reserved for drafts that were never proposed
    (padding, a text search without a match) are rejected rows without a draft. They are filled only where the batch
    has rejected rows.
    """
    c = s.config[0]
    window, kind = float(c.sliding_window), c.window_kind
    on_host = c.proposes_on_host != 0
    is_tree = c.tree_depth != 0
    beside_head = on_host and not c.proposes_by_match
    batch = s.batch[slot]
    entries = s.entries[slot]
    f = s.features[0]
    f.prefill_seqs = f.prefill_tokens = f.prefill_kv = f.prefill_qkv = f.win_prefill_kv = f.win_prefill_qkv = 0.0
    # Sums in registers: adding to the vector itself would make every decoding request wait for the one before.
    decode_tokens = decode_kv = decode_qkv = decode_longest = 0
    window_decode_kv = window_decode_qkv = 0.0
    prefill_logit_rows = prefill_drafts = ahead_seqs = draft_seqs = draft_tokens = draft_kv = most = verified = 0
    rejected_rows = kept_qkv = 0
    window_kept_kv = window_kept_qkv = 0.0
    kept_draft_seqs = kept_draft_tokens = kept_draft_kv = kept_levels = 0
    for j in range(batch.size):
        advance_computed(s, slot, j)
        x = entries[j]
        rows = int(x.tokens)
        end = x.computed + rows
        rejected = 0
        if rows == 1 + x.drafts:
            rejected = x.drafts - x.accepted
            rejected_rows += rejected
            kept_qkv += (rows - rejected) * (end - rejected)
            decode_tokens += rows
            decode_kv += end
            decode_qkv += rows * end
            decode_longest = max(decode_longest, end)
            if window > 0:
                read, pairs = window_of_decode(kind, window, end, rows)
                window_decode_kv += read
                window_decode_qkv += pairs
                read, pairs = window_of_decode(kind, window, end - rejected, rows - rejected)
                window_kept_kv += read
                window_kept_qkv += pairs
        else:
            mean_context = x.computed + 0.5 * (rows + 1)  # row i of a chunk attends to all before it and itself
            f.prefill_seqs += 1.0
            f.prefill_tokens += rows
            f.prefill_kv += end
            f.prefill_qkv += rows * mean_context
            prefill_drafts += x.drafts
            if not x.is_chunk:
                prefill_logit_rows += 1 + x.drafts
            if window > 0:
                read, pairs = window_of_prompt(kind, window, x.computed, rows)
                f.win_prefill_kv += read
                f.win_prefill_qkv += pairs
        if x.drafted > 0:
            made = int(x.drafted)
            if beside_head:
                made = drafts_of_head(s.acceptance, x.request, s.requests[x.request].future, made)
            if c.drafts_ahead and x.accepted == x.drafts > 0:
                start = s.requests[x.request].future - x.accepted - 1
                ahead_seqs += accepted_drafts(s.acceptance, x.request, start, x.drafts + 1) > x.drafts
            draft_seqs += made > 0
            draft_tokens += made
            draft_kv += end
            most = max(most, made)
            verified = max(verified, x.next_drafts)
            kept = levels = max(made - x.proposed + x.accepted, 0)
            drafts_on = int(kept > 0)  # no branch: which drafts are kept cannot be guessed
            if is_tree:
                levels = drafts_on * (draft_levels(s, x.drafted) - draft_levels(s, x.proposed) + x.accepted)
            kept_draft_seqs += drafts_on
            kept_draft_tokens += kept
            kept_draft_kv += drafts_on * (end - rejected)
            kept_levels = max(kept_levels, levels)
    decode_seqs = batch.size - int(f.prefill_seqs)
    logit_rows = decode_tokens + prefill_logit_rows
    batch.prefill_tokens = int(f.prefill_tokens)
    batch.tokens = decode_tokens + batch.prefill_tokens
    batch.drafts = decode_tokens - decode_seqs + prefill_drafts  # a decoding request has one row besides its drafts
    batch.max_next_drafts = verified
    batch.rejected_rows = rejected_rows
    f.tokens = batch.tokens
    f.seqs = batch.size
    f.decode_seqs = decode_seqs
    f.decode_tokens = decode_tokens
    f.decode_kv = decode_kv
    f.decode_qkv = decode_qkv
    f.decode_longest = decode_longest
    f.win_decode_kv = window_decode_kv
    f.win_decode_qkv = window_decode_qkv
    f.logit_rows = logit_rows
    f.draft_seqs = draft_seqs
    f.ahead_seqs = ahead_seqs
    f.draft_tokens = draft_tokens
    # A tree's nodes come out of as many passes as it is deep; fewer nodes, proportionally fewer levels.
    f.draft_passes = draft_levels(s, most)
    f.draft_kv = draft_kv
    f.propose_tokens = draft_kv if on_host else 0
    if rejected_rows == 0:
        return
    s.kept_features[0] = f
    kept_f = s.kept_features[0]
    kept_f.tokens = batch.tokens - rejected_rows
    kept_f.decode_tokens = decode_tokens - rejected_rows
    kept_f.decode_kv = decode_kv - rejected_rows
    kept_f.decode_qkv = kept_qkv
    kept_f.win_decode_kv = window_kept_kv
    kept_f.win_decode_qkv = window_kept_qkv
    kept_f.logit_rows = logit_rows - rejected_rows
    kept_f.draft_seqs = kept_draft_seqs
    kept_f.draft_tokens = kept_draft_tokens
    kept_f.draft_passes = kept_levels
    kept_f.draft_kv = kept_draft_kv
    kept_f.propose_tokens = kept_draft_kv if on_host else 0


@njit(cache=True)
def _pass_stages(s: EngineState, slot: int) -> None:
    """Send a batch through the pipeline: each stage takes its share of the pass when it and the batch are there.

    The last also samples and drafts, and the first waits for what came of a request's step before. ``launch_s`` becomes
    when the first begins, ``device_s`` when the last ends.
    """
    e = s.engine[0]
    batch = s.batch[slot]
    p = s.cost.params[0]
    free_s = s.stage_free_s
    last = free_s.size - 1
    hop_s = p.hop_s + batch.tokens * p.hop_row_s
    now = max(batch.launch_s - max(e.host_s, e.device_s) + e.host_s, free_s[0])
    for j in range(batch.size):
        sampled_s = s.requests[s.entries[slot, j].request].sampled_s
        if sampled_s > 0.0:
            now = max(now, sampled_s + p.hop_s)  # token ids, not hidden states
    batch.launch_s = now
    for stage in range(last + 1):
        now = max(now, free_s[stage]) + s.cost.stages[stage] * s.times[0].target_s
        if stage == last:
            now += s.times[0].sample_s + batch.draft_s
        free_s[stage] = now
        now += hop_s
    e.device_s = free_s[last]
    for j in range(batch.size):
        if not s.entries[slot, j].is_chunk:
            s.requests[s.entries[slot, j].request].sampled_s = e.device_s


@njit(cache=True)
def launch(s: EngineState, slot: int) -> None:
    """Send the scheduled batch to the device: when it starts, how long it takes, what its time is made of."""
    e = s.engine[0]
    batch = s.batch[slot]
    commit(s, slot)
    _time(s, slot)
    batch.schedule_s = e.host_s
    if s.cost.params[0].host_hides or not s.config[0].async_scheduling:
        e.host_s += batch.host_s
        batch.launch_s = max(e.host_s, e.device_s)
    else:  # the profile's host time is what was left exposed: it delays the device in any case
        batch.launch_s = max(e.host_s, e.device_s) + batch.host_s
    if s.stage_free_s.size > 1:
        _pass_stages(s, slot)
    else:
        if s.cost.params[0].host_hides:
            # The host launches kernels that no graph holds while the device still runs the step before.
            hidden_s = min(batch.launch_s - e.host_s, s.times[0].waits_s)
            batch.target_s -= hidden_s
            batch.prefill_s = max(batch.prefill_s - hidden_s, 0.0)
            e.by_origin_s[EXTRAPOLATED] -= hidden_s
            e.host_s += s.times[0].launching_s
        e.device_s = batch.launch_s + (batch.draft_s + batch.target_s)
    _send(s, slot)
    _time_rejected(s, slot)


@njit(cache=True)
def _time(s: EngineState, slot: int) -> None:
    """The times of a batch whose features are filled."""
    batch = s.batch[slot]
    t = s.times[0]
    fill_times(s.cost, s.features[0], 1.0, t)
    batch.host_s = t.host_s
    batch.draft_s = t.draft_s
    batch.target_s = t.target_s + t.sample_s
    batch.prefill_s = t.prefill_s
    for origin in range(3):
        s.engine[0].by_origin_s[origin] += t.by_origin_s[origin]


@njit(cache=True)
def _send(s: EngineState, slot: int) -> None:
    """Count a batch that keeps the device busy until ``device_s`` as in flight."""
    e = s.engine[0]
    batch = s.batch[slot]
    batch.end_s = e.device_s
    batch.step = e.step
    e.scheduled_tokens += batch.tokens
    e.step += 1
    e.in_flight += 1


@njit(cache=True)
def _time_rejected(s: EngineState, slot: int) -> None:
    """Of the drafts that are rejected: the batch's time less what its other rows alone would take."""
    batch = s.batch[slot]
    batch.rejected_draft_s = batch.rejected_target_s = 0.0
    if batch.rejected_rows == 0:
        return
    t = s.times[0]
    fill_times(s.cost, s.kept_features[0], 0.0, t)
    # Measured tables may be faster at more rows, but no cause takes less than no time or more than its whole.
    draft_s = batch.draft_s - t.draft_s
    target_s = batch.target_s - t.target_s - t.sample_s
    batch.rejected_draft_s = min(max(draft_s, 0.0), batch.draft_s)
    batch.rejected_target_s = min(max(target_s, 0.0), batch.target_s - batch.prefill_s)


@njit(cache=True)
def decide_drafts(s: EngineState, slot: int) -> None:
    """Let the compiled policy fill ``next_drafts`` of the batch, and the engine what it drafts all the same, or not."""
    c = s.config[0]
    call_at(c.rule, s, slot)
    size = s.batch[slot].size
    if c.drafts_in_full:
        for x in s.entries[slot, :size]:
            if not x.is_chunk:
                x.drafted = c.max_drafts
    elif c.skips_unused_drafts:
        for x in s.entries[slot, :size]:
            r = s.requests[x.request]
            # Whether it ends with this step though all its drafts be rejected (vLLM 0.33, ``Scheduler._drafts_unused``)
            ends = r.tokens + 1 + (r.placeholders > 0) >= r.prompt + r.max_tokens
            if not (x.is_chunk or ends):
                return
        for x in s.entries[slot, :size]:
            x.drafted = 0


@njit(cache=True)
def time_batch(s: EngineState, rows: float, others: float, group: float, mode: int) -> tuple[float, ...]:
    """Seconds of a batch whose features are filled, as `launch` has them, beside the batches of other ranks.

    Of host, draft, target and prompts; ``waits_s`` and ``launching_s`` of `draftcast.sim.cost.step_time.TIMES`.

    ``rows``: padded to those of the rank that has most; ``others``: the most rows of the other ranks where this one
    pads to them, else 0; ``group``: rows of all ranks through the experts; ``mode``: how all ranks' passes run.
    """
    e = s.engine[0]
    slot = (e.first_batch + e.in_flight) & s.config[0].last_slot
    f = s.features[0]
    f.tokens = rows
    f.group_tokens = group
    f.graph_mode = mode
    _time(s, slot)
    b = s.batch[slot]
    times = (b.host_s, b.draft_s, b.target_s, b.prefill_s, s.times[0].waits_s, s.times[0].launching_s)
    kept = s.kept_features[0]
    kept.tokens = max(kept.tokens, others)
    kept.group_tokens = max(group - b.rejected_rows, kept.tokens)
    kept.graph_mode = mode
    _time_rejected(s, slot)
    f.group_tokens = 0.0
    return times


@njit(cache=True)
def send_batch(
    s: EngineState, start_s: float, draft_s: float, target_s: float, prefill_s: float, launching_s: float
) -> None:
    """Run the timed batch together with the other ranks', as long as the longest of them, which takes these times."""
    e = s.engine[0]
    slot = (e.first_batch + e.in_flight) & s.config[0].last_slot
    batch = s.batch[slot]
    batch.schedule_s = e.host_s
    e.host_s += batch.host_s + launching_s
    batch.launch_s = start_s
    batch.draft_s = draft_s
    batch.target_s = target_s
    batch.prefill_s = prefill_s
    batch.rejected_draft_s = min(batch.rejected_draft_s, draft_s)
    batch.rejected_target_s = min(batch.rejected_target_s, target_s - prefill_s)
    e.device_s = start_s + draft_s + target_s
    _send(s, slot)


@njit(cache=True)
def _advance_clocks(s: EngineState, slot: int, now: float) -> None:
    """Book the time since the last collected output on causes; what the device did not need is host time."""
    e = s.engine[0]
    batch = s.batch[slot]
    elapsed = batch.elapsed_s = now - e.mark_s
    e.mark_s = now
    busy = batch.draft_s + batch.target_s
    scale = 1.0 if busy <= elapsed else elapsed / busy
    s.clocks[state.CLOCK_PREFILL] += scale * batch.prefill_s
    s.clocks[state.CLOCK_DRAFT] += scale * (batch.draft_s - batch.rejected_draft_s)
    s.clocks[state.CLOCK_VERIFY] += scale * (batch.target_s - batch.prefill_s - batch.rejected_target_s)
    s.clocks[state.CLOCK_REJECTED] += scale * (batch.rejected_draft_s + batch.rejected_target_s)
    s.clocks[state.CLOCK_HOST] += elapsed - scale * busy
    e.kv_block_seconds += elapsed * (s.config[0].num_gpu_blocks - 1 - e.free_blocks)


@njit(cache=True)
def _start_clocks(s: EngineState, i: int, now: float) -> None:
    """Request ``i`` has its first token, or emits again after a preemption: it decodes from now on unless paused."""
    r = s.requests[i]
    if r.paused and r.status == RUNNING:
        r.paused = 0
        r.pressure_s += now - r.pause_start_s
    if r.first_token_s < 0.0:
        r.first_token_s = now
        # A first token that was in flight at the preemption arrives while the request is paused.
        paused_s = r.pressure_s + (now - r.pause_start_s if r.paused else 0.0)
        r.prefill_s = now - r.first_scheduled_s - paused_s
    if not r.paused:
        add_clocks(s, i, -1.0)


@njit(cache=True)
def _count_gaps(s: EngineState, segment: int, gap_s: float, count: int) -> None:
    """Add ``count`` equal gaps between emissions to the histogram."""
    bits = int(np.float64(gap_s).view(np.int64))
    bin_ = (bits >> ITL_BIN_SHIFT) - ITL_BIN_OFFSET
    s.itl[segment, min(max(bin_, 0), ITL_BINS - 1)] += count


@njit(cache=True)
def _finish(s: EngineState, i: int, now: float) -> None:
    """Request ``i`` has all its tokens: blocks free, times closed. A running one is removed by the caller."""
    e = s.engine[0]
    r = s.requests[i]
    if r.paused:
        r.pressure_s += now - r.pause_start_s
    else:
        add_clocks(s, i, 1.0)
    if r.status != RUNNING:
        queue.remove(s, i)
    blocks.free_request(s, i)
    r.status = FINISHED
    r.finish_s = now
    e.num_finished += 1


@njit(cache=True)
def _drop_ended(s: EngineState) -> None:
    """Take what has ended out of ``running``, order kept."""
    e = s.engine[0]
    remaining = 0
    for at in range(e.num_running):
        i = s.running[at]
        if s.requests[i].status == RUNNING:
            s.running[remaining] = i
            remaining += 1
    e.num_running = remaining


@njit(cache=True)
def abort(s: EngineState, i: int) -> None:
    """End request ``i``, which waits or runs; its outputs in flight are dropped (vLLM: ``finish_requests``)."""
    was_running = s.requests[i].status == RUNNING
    _finish(s, i, s.engine[0].host_s)
    if was_running:
        _drop_ended(s)


@njit(cache=True)
def keep_empty(s: EngineState, slot: int) -> None:
    """Hold the place of a batch that nothing could be scheduled for: vLLM queues it among those in flight."""
    e = s.engine[0]
    if s.config[0].depth > 2:  # else it is taken at once
        s.batch[slot].size = 0
        s.batch[slot].end_s = 0.0
        e.in_flight += 1
        e.empty_batches += 1


@njit(cache=True)
def collect(s: EngineState) -> int:
    """Take the oldest output: rejections rolled back, tokens delivered, ended requests freed; how many ended.

    vLLM: ``Scheduler.update_from_output`` and, without asynchronous scheduling, ``update_draft_token_ids``.
    """
    c = s.config[0]
    e = s.engine[0]
    is_async = c.async_scheduling != 0
    caching = c.enable_prefix_caching != 0 and c.caches_outputs != 0
    slot = e.first_batch
    batch = s.batch[slot]
    entries = s.entries[slot]
    e.first_batch = (e.first_batch + 1) & c.last_slot
    e.in_flight -= 1
    if batch.size == 0:
        e.empty_batches -= 1
        return 0
    now = max(e.host_s, batch.end_s)
    e.host_s = now

    _advance_clocks(s, slot, now)
    ended = ended_running = rounds = total_accepted = rejections = sampled = emitted = 0
    # Most requests of a step waited equally long: their gaps go to the histogram together.
    gap_s = 0.0
    gap_segment = gaps = 0
    for j in range(batch.size):
        x = entries[j]
        i = x.request
        r = s.requests[i]
        r.in_flight -= x.tokens
        is_stale = r.stale > 0
        if is_stale:
            r.stale -= x.tokens
        if r.status == FINISHED or x.is_chunk:
            continue
        sampled += 1
        accepted = x.accepted
        if x.drafts > 0:
            rejected = x.drafts - accepted
            if not is_stale:
                if r.computed > 0:
                    r.computed -= rejected
                if r.placeholders > 0:
                    r.placeholders -= rejected
            if x.proposed > 0:
                r.rounds += 1
                r.draft_tokens += x.proposed
                r.accepted += accepted
                rounds += 1
                total_accepted += accepted
                rejections += accepted < draft_levels(s, x.proposed)
                s.rounds_by_accepted[np.uint64(r.segment), np.uint64(accepted)] += 1  # unsigned: no test for below 0
        count = min(accepted + 1, r.prompt + r.max_tokens - r.tokens, c.max_model_len - r.tokens)
        r.tokens += count
        emitted += count
        if r.first_token_s < 0.0:
            _start_clocks(s, i, now)
        else:
            if r.paused and r.status == RUNNING:
                _start_clocks(s, i, now)
            gap = now - r.last_emission_s
            if gap != gap_s or r.segment != gap_segment:
                _count_gaps(s, gap_segment, gap_s, gaps)
                gap_s = gap
                gap_segment = int(r.segment)
                gaps = 0
            gaps += 1
        r.last_emission_s = now
        if is_async and not is_stale:
            r.placeholders -= count
        if caching and r.status == RUNNING:
            cut_off = accepted + 1 - count  # by the output's limit
            blocks.cache_full_blocks(s, i, r.computed - r.in_flight - cut_off)
        if r.tokens >= min(r.prompt + r.max_tokens, c.max_model_len):
            ended_running += r.status == RUNNING
            _finish(s, i, now)
            s.finished[ended] = i
            ended += 1
        elif not is_async:
            r.spec = 0
            if x.next_drafts > 0:
                r.spec = x.next_drafts
                if not c.pads_searches:
                    r.spec = proposed_drafts(s.acceptance, i, r.tokens - r.prompt, x.next_drafts)
    _count_gaps(s, gap_segment, gap_s, gaps)
    e.emitted_tokens += emitted
    if ended_running:
        _drop_ended(s)
    batch.rounds = rounds
    batch.accepted = total_accepted
    batch.rejections = rejections
    batch.sampled = sampled
    batch.emitted = emitted
    if c.learn != 0:
        call_at(c.learn, s, int(slot))
    if s.steps.size:
        batch.duration_s = now - batch.schedule_s
        batch.running = e.num_running
        batch.waiting = e.num_waiting
        batch.kv_used_blocks = c.num_gpu_blocks - 1 - e.free_blocks
        s.steps[e.recorded] = batch
        e.recorded += 1
    return ended


@njit(cache=True)
def arrive(s: EngineState) -> None:
    """Queue the requests whose time has come."""
    e = s.engine[0]
    while e.next_arrival < e.num_arrivals:
        i = s.arrivals[e.next_arrival]
        if s.requests[i].arrival_s > e.host_s:
            break
        s.requests[i].status = WAITING
        queue.append(s, i)
        e.next_arrival += 1


@njit(cache=True, nogil=True)
def advance(s: EngineState, until_s: float, stop_on_finish: bool, stop_on_output: bool) -> int:
    """Run every step that is scheduled before ``until_s`` and take every output that is in by then.

    Returns why it stopped (``STOP_*``): the time is reached, nothing is left to do, a Python policy must decide,
    requests finished (only with ``stop_on_finish``), the step record is full, an output was taken (only with
    ``stop_on_output``), or nothing can run (a request that can never fit). Other threads of Python run meanwhile.
    """
    c = s.config[0]
    e = s.engine[0]
    while True:
        if e.phase == state.PHASE_SCHEDULE:
            if e.num_running == 0 and e.num_waiting == 0 and e.in_flight == e.empty_batches:
                # Empty batches that are left are taken at once, or the clock would stand still.
                e.in_flight = e.empty_batches = 0
                if e.next_arrival == e.num_arrivals:
                    return state.STOP_IDLE
                arrival_s = s.requests[s.arrivals[e.next_arrival]].arrival_s
                if arrival_s > e.host_s:
                    if arrival_s >= until_s:
                        return state.STOP_TIME
                    e.host_s = e.mark_s = arrival_s
            if e.host_s >= until_s:
                return state.STOP_TIME
            arrive(s)
            slot = (e.first_batch + e.in_flight) & c.last_slot
            num_preemptions = e.num_preemptions
            size = schedule(s)
            if size > 0:
                draw(s, slot)
                e.phase = state.PHASE_DECIDE
                if c.rule == 0:  # it decides in Python
                    show_batch(s, slot)
                    return state.STOP_DECIDE
                decide_drafts(s, slot)
            elif e.in_flight > 0:
                keep_empty(s, slot)
                e.phase = state.PHASE_COLLECT
            elif e.num_preemptions > num_preemptions:
                continue  # the step's only candidate gave way to itself; those behind it, and the queue, come next
            elif e.next_arrival < e.num_arrivals:
                arrival_s = s.requests[s.arrivals[e.next_arrival]].arrival_s
                if arrival_s >= until_s:
                    return state.STOP_TIME
                e.host_s = max(e.host_s, arrival_s)
            else:
                return state.STOP_STUCK
        if e.phase == state.PHASE_DECIDE:
            slot = (e.first_batch + e.in_flight) & c.last_slot
            if c.rule == 0:  # it decides in Python
                take_decision(s, slot)
            launch(s, slot)
            e.phase = state.PHASE_COLLECT if e.in_flight == c.depth else state.PHASE_SCHEDULE
        if e.phase == state.PHASE_COLLECT:
            if max(e.host_s, s.batch[e.first_batch].end_s) > until_s:
                return state.STOP_TIME
            has_output = s.batch[e.first_batch].size > 0
            ended = collect(s)
            e.phase = state.PHASE_SCHEDULE
            if ended and stop_on_finish:
                s.finished[s.finished.size - 1] = ended
                return state.STOP_FINISHED
            if stop_on_output and has_output:
                return state.STOP_OUTPUT
            if s.steps.size and e.recorded == s.steps.size:
                return state.STOP_STEPS_FULL
