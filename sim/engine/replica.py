"""A replica: the arrays of one engine, and the few calls a cluster makes on it."""

import math
import re
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import pandas as pd
from numba import types
from numba.core.errors import NumbaError
from numpy.typing import NDArray

from draftcast.errors import CapacityError, ScenarioError, SimulationError
from draftcast.kernels.arrays import BoolArray, IntArray
from draftcast.sim.acceptance.compiled import AcceptanceArrays
from draftcast.sim.compiled.borrowed import PinnedBundle
from draftcast.sim.compiled.cache import engine_compilation
from draftcast.sim.compiled.itl_histogram import ITL_BINS, ITL_SEGMENTS, segment_of
from draftcast.sim.cost.engine_config import EngineConfig
from draftcast.sim.cost.step_time import FEATURES, TIMES, StepCost
from draftcast.sim.engine import step
from draftcast.sim.engine.blocks import free_list
from draftcast.sim.policies.base import Policy
from draftcast.sim.policies.batch import Batch, write_decision
from draftcast.sim.state import engine as state
from draftcast.sim.state.engine import FINISHED, RUNNING, Array, EngineState, aligned_zeros
from draftcast.sim.workload.request_table import RequestTable

engine_compilation.watch(step.advance)

# Of a recorded step, and where its batch has them.
STEP_COLUMNS = {
    "start_s": "schedule_s",
    **{name: name for name in ("duration_s", "host_s", "draft_s", "target_s")},
    "num_seqs": "size",
    "num_tokens": "tokens",
    "prefill_tokens": "prefill_tokens",
    "num_drafts": "drafts",
    "num_accepted": "accepted",
    "k": "max_next_drafts",
    **{name: name for name in ("running", "waiting", "kv_used_blocks")},
}


def request_rows(table: RequestTable) -> Array:
    """The engine's mutable request rows (``REQUEST[n]``) for a table; extra requests have a segment of their own."""
    n = len(table)
    rows = aligned_zeros(n, state.REQUEST)
    rows["prompt"] = rows["tokens"] = table.prompt_tokens
    rows["max_tokens"] = table.output_tokens
    rows["arrival_s"] = table.arrival_s
    rows["class_id"] = table.class_id
    rows["priority"] = table.priority
    rows["text"] = -1 if table.session is None else table.session
    if table.system_prompt is not None and table.system_tokens is not None:
        rows["system_text"] = n + table.system_prompt  # sessions are numbered below n
        rows["system_tokens"] = np.minimum(table.system_tokens, table.prompt_tokens)  # a prompt may have been clipped
    rows["segment"] = np.minimum(segment_of(np.arange(n), table.num_counted), ITL_SEGMENTS)
    for name in ("table", "first_scheduled_s", "first_token_s", "finish_s"):
        rows[name] = -1
    return rows


def most_slots(config: EngineConfig, table_rows: Array) -> IntArray:
    """KV slots each request may ask for at most."""
    # Its last token aside, it may be scheduled with k drafts while 1+k outputs are in flight, plus lookahead.
    slots = table_rows["prompt"].astype(np.int64) + table_rows["max_tokens"]
    slots += 2 * config.max_drafts + config.lookahead
    return np.asarray(np.minimum(slots, config.max_model_len), np.int64)


def check_fits(config: EngineConfig, rows: Array) -> None:
    """Raise CapacityError if the engine could never finish a request, naming the first.

    Its prompt leaves no room for an output token, it alone exceeds the KV blocks, or, without chunked prefill, its
    tokens could not be recomputed in one step.
    """

    def refuse(unfit: BoolArray, message: str, what: str, tokens: Array) -> None:
        if unfit.any():
            i = int(unfit.argmax())
            raise CapacityError(message, key=f"workload.lengths (request {i}: {what})", value=int(tokens[i]))

    message = f"must be below max_model_len = {config.max_model_len} so that a token can be generated"
    refuse(rows["prompt"] >= config.max_model_len, message, "prompt_tokens", rows["prompt"])
    longest = most_slots(config, rows)
    need = -(-longest // config.block_size)
    assert not (config.enable_prefix_caching and config.fixed_blocks)  # only counted: no table has room for them
    need += config.fixed_blocks + config.window_groups * np.minimum(need, config.window_cap)
    # One block is vLLM's null block; a lone request is admitted without the watermark.
    blocks = config.num_gpu_blocks - 1
    first = next(iter(need[need > blocks]), 0)
    message = f"one request needs {first} KV blocks of {config.block_size} tokens, the engine has {blocks}"
    refuse(need > blocks, message, "prompt_tokens + output_tokens", longest)
    if config.enable_chunked_prefill:
        return
    budget = min(config.max_num_batched_tokens - config.slots, config.max_num_scheduled_tokens)
    # After a preemption everything but the next token is prefilled again.
    tokens = np.minimum(rows["prompt"] + rows["max_tokens"] - 1, config.max_model_len - 1)
    message = f"without chunked prefill a step must hold them all, and it holds {budget} tokens"
    refuse(tokens > budget, message, "prompt_tokens + output_tokens - 1", tokens)


class Replica:
    """One engine replica over rows of a request table that replicas share.

    Args:
        rows: ``REQUEST[n]`` from :func:`request_rows`; rows given to this replica are changed by it.
        policy: one that decides in Python is called as it is, see `Policy.fresh`.
        seed: of the policy's own random choices.
        record_steps: keep one row a step.

    Raises CapacityError: blocks that do not divide the trace's; ScenarioError: a policy's rule that cannot be compiled.
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
        seqs, caching = config.max_num_seqs, config.enable_prefix_caching
        has_hashes = caching and table.hash_ids is not None
        if has_hashes and table.hash_block_tokens % config.block_size:
            message = f"must divide the trace's hash block of {table.hash_block_tokens} tokens"
            raise CapacityError(message, key="block_size", value=config.block_size)
        width = -(-int(np.max(most_slots(config, rows), initial=1)) // config.block_size) if caching else 1
        pool = config.num_gpu_blocks if caching else 0
        cache_size = 1 << max(4, int(2 * pool - 1).bit_length()) if caching else 1
        row = state.config_row(config, table.hash_block_tokens if has_hashes else 0)
        slots = int(row["last_slot"][0]) + 1
        self.config = config
        self._policy = policy
        arrays = EngineState(
            config=row,
            engine=np.zeros(1, state.ENGINE),
            requests=rows,
            running=np.zeros(seqs, np.uint32),
            queue=np.zeros(n, np.uint32),
            arrivals=np.zeros(n, np.uint32),
            batch=np.zeros(slots, state.BATCH),
            entries=aligned_zeros(slots * seqs, state.ENTRY).reshape(slots, seqs),
            stage_free_s=np.zeros(cost.stages.size),
            skipped=np.zeros(seqs + 8, np.uint32),
            block_table=np.zeros((seqs, width), np.uint32),
            free_table=np.arange(seqs, dtype=np.int32)[::-1].copy(),
            blocks=free_list(pool),
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
            clocks=np.zeros(state.N_CLOCKS),
            itl=np.zeros((ITL_SEGMENTS + 1, ITL_BINS), np.int64),
            rounds_by_accepted=np.zeros((ITL_SEGMENTS + 1, config.max_drafts + 1), np.int64),
            steps=np.zeros(1024 if record_steps else 0, state.BATCH),
            finished=np.zeros(seqs + 1, np.uint32),
        )
        arrays.engine["free_blocks"], arrays.engine["num_free_tables"] = config.num_gpu_blocks - 1, seqs
        self._hold(arrays)
        for name, function in (("rule", type(policy).rule), ("learn", type(policy).learn)):
            try:
                arrays.config[name] = self._held.address(function) if function is not None else 0
            except (TypeError, NumbaError) as error:
                reason = " ".join(re.sub(r"\x1b\[\d*m", "", str(error)).split())  # numba's comes in colours
                message = f"its {name} cannot be compiled: {reason[:200]}"
                raise ScenarioError(message, key="policy.name", value=type(policy).__name__) from error

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
            self.call(step.abort, int(request))
            return True
        return False

    def advance(self, until_s: float, *, stop_on_finish: bool = False, stop_on_output: bool = False) -> int:
        """Run until ``until_s`` (see `step.advance`); why it stopped. Raises SimulationError: nothing can run."""
        while True:
            stop = self.run(until_s, stop_on_finish, stop_on_output)
            if stop == state.STOP_DECIDE:
                batch = Batch(self.state)
                decision = self._policy.decide(batch)
                write_decision(self.state, batch.num_seqs, decision, f"{type(self._policy).__name__}.decide")
            elif stop == state.STOP_STUCK:
                raise SimulationError("the engine can run nothing although requests wait")
            elif stop != state.STOP_STEPS_FULL:
                return stop

    def run(self, until_s: float, stop_on_finish: bool = False, stop_on_output: bool = False) -> int:
        """As :meth:`advance`, but it also stops where a Python policy must decide, and where nothing can run."""
        self.grow_steps()
        return int(self._advance(until_s, stop_on_finish, stop_on_output))

    def call(self, part: Any, *arguments: float) -> Any:
        """A function of the engine's own loop, compiled with it, on this replica's arrays."""
        if part not in self._bound:
            kinds = (types.int64 if isinstance(argument, int) else types.float64 for argument in arguments)
            self._bound[part] = self._held.bind(part, *kinds)
        return self._bound[part](*arguments)

    def grow_steps(self) -> None:
        """Make room for more step records where there is none left."""
        steps = self.state.steps
        if steps.size and int(self.state.engine[0]["recorded"]) == steps.size:
            self._hold(self.state._replace(steps=np.concatenate([steps, np.zeros_like(steps)])))

    @property
    def ranks(self) -> list[Self]:
        """Itself: a replica of one rank."""
        return [self]

    def _hold(self, arrays: EngineState) -> None:
        """Make ``arrays`` the engine's, in compiled code too."""
        self.state, self._held = arrays, PinnedBundle(arrays)
        self._bound: dict[Any, Callable[..., Any]] = {}
        self._advance = self._held.bind(step.advance, types.float64, types.boolean, types.boolean)

    @property
    def next_event_s(self) -> float:
        """When this replica schedules or takes an output next; infinite when it has nothing to do."""
        e = self.state.engine[0]
        host_s = float(e["host_s"])
        if e["phase"] == state.PHASE_COLLECT:
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
        recorded = self.state.steps[: int(self.state.engine[0]["recorded"])]
        return pd.DataFrame({name: recorded[field] for name, field in STEP_COLUMNS.items()})

    def check_integrity(self) -> None:
        """Assert that blocks, queues and counters agree; for tests, at any point between calls."""
        s = self.state
        e = s.engine[0]
        c = s.config[0]
        rows = s.requests
        sent = s.arrivals[: e["num_arrivals"]]
        running = s.running[: e["num_running"]]
        waiting = s.queue[: e["num_waiting"]]
        assert np.unique(running).size == running.size, "a request runs twice"
        assert not np.intersect1d(running, waiting).size, "a request runs and waits"
        assert (rows["status"][running] == RUNNING).all()
        seen = sent[: e["next_arrival"]]
        finished = seen[rows["status"][seen] == FINISHED]
        assert finished.size == e["num_finished"]
        assert running.size + waiting.size + finished.size == seen.size, "a request is lost"
        blocks = rows["num_blocks"][sent]
        assert (blocks[~np.isin(sent, running)] == 0).all(), "a request that does not run holds blocks"
        assert (rows["stale"][running] == 0).all()
        if not c["enable_prefix_caching"]:
            assert blocks.sum() + e["free_blocks"] == c["num_gpu_blocks"] - 1, "blocks leaked"
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
