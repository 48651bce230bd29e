"""A replica: the arrays of one engine, and the few calls a cluster makes on it."""

import math
from typing import Self

import numpy as np
import pandas as pd
from numba import types
from numpy.typing import NDArray

from draftcast.errors import CapacityError, SimulationError
from draftcast.kernels.arrays import IntArray
from draftcast.sim.acceptance.compiled import AcceptanceArrays
from draftcast.sim.compiled.borrowed import Held
from draftcast.sim.compiled.cache import engine_compilation
from draftcast.sim.compiled.itl_histogram import ITL_BINS, ITL_SEGMENTS, segment_of
from draftcast.sim.cost.engine_config import EngineConfig
from draftcast.sim.cost.step_time import FEATURES, TIMES, StepCost
from draftcast.sim.engine import step
from draftcast.sim.engine.blocks import reset_blocks
from draftcast.sim.policies.base import Policy
from draftcast.sim.policies.batch import Batch, write_decision
from draftcast.sim.policies.registry import number_of
from draftcast.sim.state.engine import (
    BATCH,
    BLOCK,
    ENGINE,
    ENTRY,
    FINISHED,
    N_CLOCKS,
    PHASE_COLLECT,
    REQUEST,
    RUNNING,
    STEP,
    STOP_DECIDE,
    STOP_MAX_STEPS,
    STOP_STEPS_FULL,
    STOP_STUCK,
    Array,
    Engine,
    aligned_zeros,
    config_row,
    num_slots,
)
from draftcast.sim.workload.request_table import RequestTable

engine_compilation.watch(step.advance)


def request_rows(table: RequestTable) -> Array:
    """The engine's mutable request rows (``REQUEST[n]``) for a table; extra requests have a segment of their own."""
    n = len(table)
    rows = aligned_zeros(n, REQUEST)
    rows["prompt"] = table.prompt_tokens
    rows["max_tokens"] = table.output_tokens
    rows["tokens"] = table.prompt_tokens
    rows["arrival_s"] = table.arrival_s
    rows["class_id"] = table.class_id
    rows["priority"] = table.priority
    rows["text"] = -1 if table.session is None else table.session
    if table.system_prompt is not None and table.system_tokens is not None:
        rows["system_text"] = n + table.system_prompt  # sessions are numbered below n
        rows["system_tokens"] = np.minimum(table.system_tokens, table.prompt_tokens)  # a prompt may have been clipped
    rows["table"] = -1
    rows["segment"] = np.minimum(segment_of(np.arange(n), table.num_counted), ITL_SEGMENTS)
    for name in ("first_scheduled_s", "first_token_s", "finish_s"):
        rows[name] = -1.0
    return rows


def most_slots(config: EngineConfig, table_rows: Array) -> IntArray:
    """KV slots each request may ask for at most.

    Its last token aside, a request may be scheduled with k drafts while 1+k outputs are in flight, plus lookahead.
    """
    slots = table_rows["prompt"].astype(np.int64) + table_rows["max_tokens"]
    slots += 2 * config.max_drafts + config.lookahead
    return np.asarray(np.minimum(slots, config.max_model_len), np.int64)


def check_fits(config: EngineConfig, rows: Array) -> None:
    """Refuse requests that the engine could never finish, naming the first.

    Raises:
        CapacityError: a prompt leaves no room for an output token, a request alone exceeds the KV blocks, or, without
            chunked prefill, its tokens could not be recomputed in one step.
    """
    too_long = np.flatnonzero(rows["prompt"] >= config.max_model_len)
    if too_long.size:
        i = int(too_long[0])
        raise CapacityError(
            f"must be below max_model_len = {config.max_model_len} so that a token can be generated",
            key=f"workload.lengths (request {i}: prompt_tokens)",
            value=int(rows["prompt"][i]),
        )
    longest = most_slots(config, rows)
    need = -(-longest // config.block_size)
    assert not (config.enable_prefix_caching and config.fixed_blocks)  # only counted: no table has room for them
    need += config.fixed_blocks + config.window_groups * np.minimum(need, config.window_cap)
    # One block is vLLM's null block; a lone request is admitted without the watermark.
    short = np.flatnonzero(need > config.num_gpu_blocks - 1)
    if short.size:
        i = int(short[0])
        raise CapacityError(
            f"one request needs {int(need[i])} KV blocks of {config.block_size} tokens, "
            f"the engine has {config.num_gpu_blocks - 1}",
            key=f"workload.lengths (request {i}: prompt_tokens + output_tokens)",
            value=int(longest[i]),
        )
    if config.enable_chunked_prefill:
        return
    budget = min(config.max_num_batched_tokens - config.slots, config.max_num_scheduled_tokens)
    # After a preemption everything but the next token is prefilled again.
    tokens = np.minimum(rows["prompt"] + rows["max_tokens"] - 1, config.max_model_len - 1)
    long = np.flatnonzero(tokens > budget)
    if long.size:
        i = int(long[0])
        raise CapacityError(
            f"without chunked prefill a step must hold them all, and it holds {budget} tokens",
            key=f"workload.lengths (request {i}: prompt_tokens + output_tokens - 1)",
            value=int(tokens[i]),
        )


class Replica:
    """One engine replica over rows of a request table that replicas share.

    Args:
        config: the scheduler's config.
        rows: ``REQUEST[n]`` from :func:`request_rows`; rows given to this replica are changed by it.
        table: the request table behind ``rows``.
        policy: the draft-length policy; one that decides in Python is called as it is, see `Policy.fresh`.
        cost: step cost.
        acceptance: acceptance of all requests.
        seed: of the policy's own random choices.
        record_steps: keep one row a step.
    """

    def __init__(
        self,
        config: EngineConfig,
        rows: Array,
        table: RequestTable,
        policy: Policy,
        cost: StepCost,
        acceptance: AcceptanceArrays,
        *,
        seed: int = 0,
        record_steps: bool = False,
    ) -> None:
        n = rows.size
        seqs, slots = config.max_num_seqs, num_slots(config)
        caching = config.enable_prefix_caching
        has_hashes = caching and table.hash_ids is not None
        if has_hashes and table.hash_block_tokens % config.block_size:
            raise CapacityError(
                f"must divide the trace's hash block of {table.hash_block_tokens} tokens",
                key="block_size",
                value=config.block_size,
            )
        width = -(-int(np.max(most_slots(config, rows), initial=1)) // config.block_size) if caching else 1
        pool = config.num_gpu_blocks if caching else 0
        cache_size = 1 << max(4, int(2 * pool - 1).bit_length()) if caching else 1
        self.config = config
        self._policy = policy
        state = Engine(
            config=config_row(config, table.hash_block_tokens if has_hashes else 0, number_of(policy)),
            engine=np.zeros(1, ENGINE),
            requests=rows,
            running=np.zeros(seqs, np.uint32),
            queue=np.zeros(n, np.uint32),
            arrivals=np.zeros(n, np.uint32),
            batch=np.zeros(slots, BATCH),
            entries=aligned_zeros(slots * seqs, ENTRY).reshape(slots, seqs),
            stage_free_s=np.zeros(cost.stages.size),
            skipped=np.zeros(seqs + 8, np.uint32),
            block_table=np.zeros((seqs, width), np.uint32),
            free_table=np.zeros(seqs, np.int32),
            blocks=np.zeros(pool + 1, BLOCK),
            cache_key=np.zeros(cache_size, np.int64),
            cache_block=np.zeros(cache_size, np.int32),
            hash_ids=np.asarray(table.hash_ids, np.int64) if has_hashes else np.zeros(0, np.int64),
            hash_offsets=np.asarray(table.hash_offsets, np.int64) if has_hashes else np.zeros(0, np.int64),
            policy=policy.compile(config.max_drafts, seqs, seed),
            cost=cost,
            acceptance=acceptance,
            features=np.zeros(1, FEATURES),
            kept_features=np.zeros(1, FEATURES),
            times=np.zeros(1, TIMES),
            clocks=np.zeros(N_CLOCKS),
            itl=np.zeros((ITL_SEGMENTS + 1, ITL_BINS), np.int64),
            rounds_by_accepted=np.zeros((ITL_SEGMENTS + 1, config.max_drafts + 1), np.int64),
            steps=np.zeros(1024 if record_steps else 0, STEP),
            finished=np.zeros(seqs + 1, np.uint32),
        )
        self._hold(state)
        self._held.bind(reset_blocks)()

    def submit(self, requests: NDArray[np.uint32] | list[int]) -> None:
        """Send requests (row numbers, by arrival time, none earlier than those sent before)."""
        e = self.state.engine[0]
        start = int(e["num_arrivals"])
        if start + len(requests) > self.state.arrivals.size:  # rows are used again: what was seen makes room
            unseen = self.state.arrivals[e["next_arrival"] : start].copy()
            e["next_arrival"], start = 0, unseen.size
            self.state.arrivals[:start] = unseen
        if start + len(requests) > self.state.arrivals.size:
            raise SimulationError("a replica was sent more requests than the table has: some twice")
        self.state.arrivals[start : start + len(requests)] = requests
        e["num_arrivals"] = start + len(requests)

    def abort(self, request: int) -> bool:
        """End a request whose client is gone, as vLLM does; whether this replica had it, unfinished."""
        s = self.state
        e = s.engine[0]
        unseen = s.arrivals[e["next_arrival"] : e["num_arrivals"]]
        if request in unseen:
            rest = unseen[unseen != request]
            unseen[: rest.size] = rest
            e["num_arrivals"] -= 1
            s.requests["status"][request] = FINISHED
            return True
        if request in s.running[: e["num_running"]] or request in s.queue[: e["num_waiting"]]:
            self._held.bind(step.abort, types.int64)(request)
            return True
        return False

    def advance(self, until_s: float, *, stop_on_finish: bool = False, max_steps: int = -1) -> int:
        """Run until ``until_s`` (see :func:`draftcast.sim.engine.step.advance`); the reason it stopped.

        Raises:
            SimulationError: a request can never run; :func:`check_fits` should have refused it.
        """
        before = self._num_collected if max_steps >= 0 else 0
        while True:
            left = max_steps - (self._num_collected - before) if max_steps >= 0 else -1
            if left == 0:
                return STOP_MAX_STEPS
            stop = self.run(until_s, stop_on_finish, left)
            if stop == STOP_DECIDE:
                batch = Batch(self.state)
                decision = self._policy.decide(batch)
                write_decision(self.state, batch.num_seqs, decision, f"{type(self._policy).__name__}.decide")
            elif stop == STOP_STUCK:
                raise SimulationError("the engine can run nothing although requests wait")
            elif stop != STOP_STEPS_FULL:
                return stop

    def run(self, until_s: float, stop_on_finish: bool = False, max_steps: int = -1) -> int:
        """One compiled call of :func:`draftcast.sim.engine.step.advance`; the reason it stopped.

        As :meth:`advance`, for callers that decide themselves: it stops where a Python policy must, and where nothing
        can run.
        """
        self.grow_steps()
        return int(self._advance(until_s, stop_on_finish, max_steps))

    def grow_steps(self) -> None:
        """Make room for more step records where there is none left."""
        steps = self.state.steps
        if steps.size and int(self.state.engine[0]["recorded"]) == steps.size:
            grown = np.zeros(2 * steps.size, STEP)
            grown[: steps.size] = steps
            self._hold(self.state._replace(steps=grown))

    @property
    def ranks(self) -> list[Self]:
        """Itself: a replica of one rank."""
        return [self]

    def _hold(self, state: Engine) -> None:
        """Make ``state`` the engine's arrays, in compiled code too."""
        self.state = state
        self._held = Held(state)
        self._advance = self._held.bind(step.advance, types.float64, types.boolean, types.int64)

    @property
    def _num_collected(self) -> int:
        """Outputs taken."""
        e = self.state.engine[0]
        return int(e["step"]) - int(e["in_flight"]) + int(e["empty_batches"])

    @property
    def next_event_s(self) -> float:
        """When this replica schedules or takes an output next; infinite when it has nothing to do."""
        e = self.state.engine[0]
        host_s = float(e["host_s"])
        if e["phase"] == PHASE_COLLECT:
            return max(host_s, float(self.state.batch[e["first_batch"]]["end_s"]))
        if e["num_running"] or e["num_waiting"] or e["in_flight"]:
            return host_s
        if e["next_arrival"] < e["num_arrivals"]:
            return max(host_s, float(self.state.requests["arrival_s"][self.state.arrivals[e["next_arrival"]]]))
        return math.inf

    @property
    def num_running(self) -> int:
        return int(self.state.engine[0]["num_running"])

    @property
    def num_waiting(self) -> int:
        """Requests queued, and those sent but not yet seen by the scheduler."""
        e = self.state.engine[0]
        return int(e["num_waiting"]) + int(e["num_arrivals"]) - int(e["next_arrival"])

    @property
    def just_finished(self) -> NDArray[np.uint32]:
        """Requests that ended in the step after which ``advance(stop_on_finish=True)`` returned STOP_FINISHED."""
        finished: NDArray[np.uint32] = self.state.finished
        return finished[: finished[-1]]

    def steps(self) -> pd.DataFrame:
        """The recorded steps."""
        return pd.DataFrame(self.state.steps[: int(self.state.engine[0]["recorded"])])

    def check_integrity(self) -> None:
        """Assert that blocks, queues and counters agree; for tests, at any point between calls."""
        s = self.state
        e = s.engine[0]
        c = s.config[0]
        rows = s.requests
        mine = s.arrivals[: e["num_arrivals"]]
        running = s.running[: e["num_running"]]
        waiting = s.queue[: e["num_waiting"]]
        assert np.unique(running).size == running.size, "a request runs twice"
        assert not np.intersect1d(running, waiting).size, "a request runs and waits"
        assert (rows["status"][running] == RUNNING).all()
        seen = mine[: e["next_arrival"]]
        finished = seen[rows["status"][seen] == FINISHED]
        assert finished.size == e["num_finished"]
        assert running.size + waiting.size + finished.size == seen.size, "a request is lost"
        held = rows["num_blocks"][mine]
        assert (held[~np.isin(mine, running)] == 0).all(), "a request that does not run holds blocks"
        assert (rows["stale"][running] == 0).all()
        if not c["enable_prefix_caching"]:
            assert held.sum() + e["free_blocks"] == c["num_gpu_blocks"] - 1, "blocks leaked"
            return
        refs = np.zeros(c["num_gpu_blocks"] + 1, np.int64)
        for i in running:
            np.add.at(refs, s.block_table[rows["table"][i], : rows["num_blocks"][i]], 1)
        assert (refs == s.blocks["refs"]).all(), "reference counts disagree with the block tables"
        free = 0
        block = int(s.blocks["next"][c["num_gpu_blocks"]])
        while block != c["num_gpu_blocks"]:
            assert refs[block] == 0, "a block is free and in use"
            assert block != 0, "the null block is free"
            assert s.blocks["prev"][s.blocks["next"][block]] == block
            free += 1
            block = int(s.blocks["next"][block])
        assert free == e["free_blocks"] == c["num_gpu_blocks"] - 1 - np.count_nonzero(refs), "blocks leaked"
