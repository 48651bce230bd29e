"""Data-parallel ranks of one replica: an engine each, behind vLLM 0.32's own router.

Ranks of a dense model share nothing but the router. Those of a model with experts step together, as their rows meet in
the experts (``v1/engine/core.py``, ``DPEngineCoreProc``): while any of them has requests, a rank that can schedule
nothing runs a dummy batch in each step, and all begin and end a step together; every `SYNC_INTERVAL` steps they agree
whether requests are left, and pause if not. Where all can replay CUDA graphs each pads its rows to the most that any of
them has (``v1/worker/dp_utils.py``). The coordinator (``v1/engine/coordinator.py``) publishes queue lengths to the API
servers, which get requests in turn. Messages take no time here, and nothing is scaled, paused or drained.
"""

import math
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from draftcast.sim.cost import step_time as st
from draftcast.sim.engine import schedule, step
from draftcast.sim.engine.replica import Replica
from draftcast.sim.state.engine import FINISHED, STOP_FINISHED, STOP_IDLE, STOP_TIME, EngineState

SYNC_INTERVAL = 16  # ``dp_sync_interval``; the ranks also agree in the first step of a wave
PUBLISH_MS = 100
QUIET_MS = 5000  # longest time between two publications where nothing changes
SAME_STEP_MS = 50  # least wait for a message, so that all ranks' counts of one step are in before they are published
Counts = list[list[float]]  # of each rank: waiting and running requests, share of the KV blocks in use
# What a rank does next: schedule, take its oldest output (then run a dummy batch), wait for the others' batches, or for
# their word whether they have requests.
SCHEDULE, COLLECT, COLLECT_IDLE, BATCH_READY, DUMMY_READY, AGREE = range(6)


class Coordinator:
    """What the API servers know of the ranks' queues: those `published` last, in ``lockstep`` of one step of all."""

    def __init__(self, ranks: int, *, lockstep: bool) -> None:
        self.counts: Counts = [[0, 0, 0.0] for _ in range(ranks)]
        self.published: Counts = [[0, 0, 0.0] for _ in range(ranks)]
        self._lockstep = lockstep
        self._changed = False
        self._last_step = (-1, -1)
        self._of_last_step: Counts | None = None
        self._published_ms = 0
        self.next_ms = 0.0
        self._wait(0.0)

    def _wait(self, now_ms: float) -> None:
        """Until when the next message is waited for before the counts are published."""
        due = (PUBLISH_MS if self._changed else QUIET_MS) - (int(now_ms) - self._published_ms)
        least = SAME_STEP_MS if self._lockstep and self._of_last_step is None else 0
        self.next_ms = now_ms + max(least, due)

    def advance(self, now_ms: float) -> None:
        """Publish what is due by then."""
        while self.next_ms <= now_ms:
            self.publish(self.next_ms)

    def publish(self, now_ms: float) -> None:
        """Send the API servers what is known: of the last whole step, else the newest."""
        if self._of_last_step is not None:
            counts, self._of_last_step = self._of_last_step, None
        else:
            counts, self._changed = self.counts, False
        self.published = [list(of_rank) for of_rank in counts]
        self._published_ms = int(now_ms)
        self._wait(now_ms)

    def receive(self, now_ms: float, rank: int, counts: list[float], step: tuple[int, int] = (-1, -1)) -> None:
        """A rank's new counts, with the wave and step they are of."""
        self.advance(now_ms)
        if self._lockstep and step > self._last_step:
            if self._changed:
                self._of_last_step = [list(of_rank) for of_rank in self.counts]
            self._last_step = step
        self.counts[rank] = counts
        self._changed = True
        self._wait(now_ms)


class ApiServer:
    """One of ``servers`` clients of the engines: chooses the rank of a request (``DPLBAsyncMPClient``)."""

    def __init__(self, index: int, servers: int, ranks: int) -> None:
        self.in_flight: list[list[int]] = [[] for _ in range(ranks)]  # its requests without their last output, by rank
        self.known: Counts = [[0, 0, 0.0] for _ in range(ranks)]
        self.told: Counts = []  # what the coordinator published last
        self._servers = servers
        self._first = ranks * index // servers

    def choose(self) -> int:
        """The rank with the lowest score: the requests it holds, and more for those that wait for its full KV cache."""
        ranks = len(self.known)
        scores = [
            max(float(self._servers * len(sent)), waiting + running) + waiting * 6.0 * max(0.0, usage - 0.5)
            for sent, (waiting, running, usage) in zip(self.in_flight, self.known, strict=True)
        ]
        chosen = min(range(ranks), key=lambda rank: (scores[rank], (rank - self._first) % ranks))
        self.known[chosen][0] += self._servers
        self._first = (self._first + 1) % ranks
        return chosen


class DataParallel:
    """A replica of several ranks, engines over the same unused request rows; in ``lockstep`` they step together."""

    def __init__(self, ranks: Sequence[Replica], *, lockstep: bool) -> None:
        self.ranks = list(ranks)
        self.config = ranks[0].config
        self._lockstep = lockstep
        self._rows = ranks[0].state.requests
        self._engines = [rank.state.engine[0] for rank in ranks]
        self._pending: deque[int] = deque()
        self._finished: list[int] = []
        n = len(ranks)
        self._coordinator = Coordinator(n, lockstep=lockstep)
        servers = self.config.api_server_count
        self._servers = [ApiServer(index, servers, n) for index in range(servers)]
        self._next = [SCHEDULE] * n
        self._found_s = self._started_s = 0.0
        self._runs, self.wave = False, 0
        self.steps = [0] * n  # of this wave
        self._dummy_s = 0.0  # of a step in which no rank has a request: a pass of as many rows as one verifies
        if lockstep:
            features, times = st.empty_record(st.FEATURES), st.empty_record(st.TIMES)
            st.decode_features(self.state.cost, 1, self.config.num_speculative_tokens, 1.0, features)
            st.step_time(self.state.cost, features, times)
            self._dummy_s = float(times["target_s"] + times["draft_s"])

    @property
    def state(self) -> EngineState:
        """The first rank's arrays; the request rows are all ranks'."""
        return self.ranks[0].state

    def submit(self, requests: NDArray[np.uint32] | list[int]) -> None:
        """Send requests, by arrival time; each is routed when it arrives."""
        self._pending.extend(int(request) for request in requests)

    def abort(self, request: int) -> bool:
        if request in self._pending:
            self._pending.remove(request)
            self._rows["status"][request] = FINISHED
            return True
        return any(rank.abort(request) for rank in self.ranks)

    @property
    def num_running(self) -> int:
        return sum(rank.num_running for rank in self.ranks)

    @property
    def num_waiting(self) -> int:
        return sum(rank.num_waiting for rank in self.ranks) + len(self._pending)

    @property
    def just_finished(self) -> NDArray[np.uint32]:
        return np.array(self._finished, np.uint32)

    @property
    def _next_arrival_s(self) -> float:
        return float(self._rows["arrival_s"][self._pending[0]]) if self._pending else math.inf

    @property
    def next_event_s(self) -> float:
        if not self._lockstep or not self._runs:
            return min(self._next_arrival_s, *(rank.next_event_s for rank in self.ranks))
        return min(self._next_arrival_s, *map(self._time, range(len(self.ranks))))

    def advance(self, until_s: float, *, stop_on_finish: bool = False) -> int:
        self._finished = []
        while True:
            arrival_s = self._next_arrival_s
            bound_s = min(until_s, arrival_s)
            if not self._lockstep and self._pending:
                bound_s = min(bound_s, self._coordinator.next_ms / 1e3)
            stop = (self._step_together if self._lockstep else self._run_apart)(bound_s, stop_on_finish)
            if self._finished:
                return STOP_FINISHED
            if bound_s >= until_s:
                return stop
            if bound_s < arrival_s:
                # The counts that ranks of their own have at a publication are told before it.
                due_ms = self._coordinator.next_ms
                for rank in range(len(self.ranks)):
                    self._tell(rank, bound_s - 1e-9)
                self._coordinator.advance(due_ms)
            else:
                self._route(arrival_s)

    def _route(self, now_s: float) -> None:
        """Send the requests that arrive now to the ranks that their API servers choose."""
        self._coordinator.advance(now_s * 1e3)
        status = self._rows["status"]
        for server in self._servers:
            if server.told is not self._coordinator.published:
                server.told = self._coordinator.published
                server.known = [list(of_rank) for of_rank in server.told]
            by_rank = [np.array(sent, np.int64) for sent in server.in_flight]
            server.in_flight = [sent[status[sent] != FINISHED].tolist() for sent in by_rank]
        while self._next_arrival_s == now_s:
            request = self._pending.popleft()
            server = self._servers[request % len(self._servers)]
            chosen = server.choose()
            server.in_flight[chosen].append(request)
            self.ranks[chosen].submit([request])

    def _tell(self, rank: int, now_s: float) -> None:
        """Send the coordinator a rank's counts where they changed."""
        e = self._engines[rank]
        counts = [float(e["num_waiting"]), float(e["num_running"])]
        if counts != self._coordinator.counts[rank][:2]:
            usage = 1.0 - float(e["free_blocks"]) / (self.config.num_gpu_blocks - 1)
            self._coordinator.receive(now_s * 1e3, rank, [*counts, usage], (self.wave, self.steps[rank]))

    # ---- ranks that share nothing ----

    def _run_apart(self, until_s: float, stop_on_finish: bool) -> int:
        while stop_on_finish:
            # The one that does something next, as far as no other does anything.
            events = sorted((rank.next_event_s, index) for index, rank in enumerate(self.ranks))
            if events[0][0] >= until_s:
                break
            limit_s = min(until_s, max(events[1][0], math.nextafter(events[0][0], math.inf)))
            rank = self.ranks[events[0][1]]
            if rank.advance(limit_s, stop_on_finish=True) == STOP_FINISHED:
                self._finished = rank.just_finished.tolist()
                return STOP_FINISHED
        for rank in self.ranks:
            stop = rank.advance(until_s, stop_on_finish=stop_on_finish)
            if stop == STOP_FINISHED:
                self._finished = rank.just_finished.tolist()
                return stop
        return STOP_TIME if math.isfinite(until_s) else STOP_IDLE

    # ---- ranks that step together ----

    def _time(self, rank: int) -> float:
        """When a rank does what it does next; infinite where it waits for others."""
        if self._next[rank] in (BATCH_READY, DUMMY_READY, AGREE):
            return math.inf
        e = self._engines[rank]
        host_s = float(e["host_s"])
        if self._next[rank] == SCHEDULE:
            return host_s
        return max(host_s, float(self.ranks[rank].state.batch[e["first_batch"]]["end_s"]))

    def _due(self, rank: int) -> tuple[float, bool, int]:
        """Ranks by what is done first: at one moment outputs are taken before anything is scheduled."""
        return self._time(rank), self._next[rank] == SCHEDULE, rank

    def _step_together(self, until_s: float, stop_on_finish: bool) -> int:
        due: list[tuple[float, bool, int]] = []  # of each rank; empty where what all do next changed
        while True:
            if not self._runs:
                start_s = min(rank.next_event_s for rank in self.ranks)
                if start_s >= until_s:
                    return STOP_TIME if self._pending or math.isfinite(start_s) else STOP_IDLE
                self._runs = True
                due = []
                for e in self._engines:
                    e["mark_s"] = e["host_s"] = max(float(e["host_s"]), start_s)
            if all(what in (BATCH_READY, DUMMY_READY) for what in self._next):
                self._run_step()
                due = []
            elif all(what == AGREE for what in self._next):
                self._agree()
                due = []
                continue
            due = due or [self._due(rank) for rank in range(len(self.ranks))]
            now_s, schedules, rank = min(due)
            if now_s == math.inf:
                continue
            if self._finished and (schedules or now_s > self._found_s):
                return STOP_FINISHED
            if now_s > until_s or (schedules and now_s >= until_s):
                return STOP_TIME
            if schedules:
                self._schedule(rank)
            else:
                self._collect(rank, stop_on_finish)
            due[rank] = self._due(rank)

    def _schedule(self, rank: int) -> None:
        replica, e = self.ranks[rank], self._engines[rank]
        state = replica.state
        replica.call(step.arrive)
        self._tell(rank, float(e["host_s"]))
        slot = int((e["first_batch"] + e["in_flight"]) & state.config[0]["last_slot"])
        if replica.call(schedule.schedule):
            for part in (step.draw, step.decide_drafts, step.commit):
                replica.call(part, slot)
            state.features[0]["graph_mode"] = st.graph_mode(state.cost.params[0], state.features[0])
            self._next[rank] = BATCH_READY
        else:
            self._next[rank] = COLLECT_IDLE if e["in_flight"] else DUMMY_READY

    def _run_step(self) -> None:
        """Launch what all ranks have ready: a rank waits in every layer for the one that takes longest."""
        real = [index for index, what in enumerate(self._next) if what == BATCH_READY]
        features = [self.ranks[index].state.features[0] for index in real]
        ready_s, device_s = (max(float(e[name]) for e in self._engines) for name in ("host_s", "device_s"))
        rows = [1.0 + self.config.max_drafts] * (len(self.ranks) - len(real)) + [float(f["tokens"]) for f in features]
        mode = min((int(f["graph_mode"]) for f in features), default=st.PIECEWISE_GRAPHS)
        padded = mode >= st.PIECEWISE_GRAPHS
        took: list[tuple[float, ...]] = []
        group = max(rows) * len(rows) if padded else sum(rows)
        for index, f in zip(real, features, strict=True):
            tokens = float(f["tokens"])
            others = sorted(rows)[-2] if tokens == max(rows) else max(rows)
            shared = (max(rows), others) if padded else (tokens, 0.0)
            host_s, *times = self.ranks[index].call(step.time_batch, *shared, group, mode)
            ready_s = max(ready_s, float(self._engines[index]["host_s"]) + host_s)
            took.append(tuple(times))
        nothing = (0.0, self._dummy_s, 0.0, 0.0, 0.0)
        draft_s, target_s, prefill_s, waits_s, launching_s = max(took or [nothing], key=lambda t: t[0] + t[1])
        start_s = max(ready_s, device_s)
        if self.ranks[0].state.cost.params[0]["host_hides"]:  # as `step.launch` has it for one rank
            hidden_s = min(start_s - ready_s, waits_s)
            target_s, prefill_s = target_s - hidden_s, max(prefill_s - hidden_s, 0.0)
        else:
            launching_s = 0.0
        for index, (rank, e) in enumerate(zip(self.ranks, self._engines, strict=True)):
            if self._next[index] == BATCH_READY:
                rank.call(step.send_batch, start_s, draft_s, target_s, prefill_s, launching_s)
                if e["in_flight"] == self.config.depth:
                    self._next[index] = COLLECT
                    continue
            else:
                # The host of a dummy batch waits for no output, but for the device to reach it; asynchronously, to
                # reach the step before (``synchronize_input_prep``).
                e["device_s"] = start_s + (draft_s + target_s)
                e["host_s"] = max(ready_s, self._started_s if self.config.async_scheduling else start_s)
                if e["in_flight"] == 0:
                    e["mark_s"] = e["host_s"]
            self._end_step(index)
        self._started_s = start_s

    def _collect(self, rank: int, stop_on_finish: bool) -> None:
        replica = self.ranks[rank]
        ended = replica.call(step.collect)
        if ended and stop_on_finish:
            self._finished += replica.state.finished[:ended].tolist()
            self._found_s = float(self._engines[rank]["host_s"])
        replica.grow_steps()
        if self._next[rank] == COLLECT_IDLE:
            self._next[rank] = DUMMY_READY
        else:
            self._end_step(rank)

    def _end_step(self, rank: int) -> None:
        self._tell(rank, float(self._engines[rank]["host_s"]))
        self.steps[rank] += 1
        agrees = self.steps[rank] == 1 or self.steps[rank] % SYNC_INTERVAL == 0
        self._next[rank] = AGREE if agrees else SCHEDULE

    def _agree(self) -> None:
        """All-reduce whether any rank has unfinished requests; a wave ends where none has."""
        now_s = max(float(e["host_s"]) for e in self._engines)
        for e in self._engines:
            e["host_s"] = now_s
        self._runs = any(e["num_running"] or e["num_waiting"] for e in self._engines)
        self._next = [SCHEDULE] * len(self.ranks)
        if not self._runs:
            self.wave += 1
            self.steps = [0] * len(self.ranks)
