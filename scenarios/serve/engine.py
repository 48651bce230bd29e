"""A replica of the simulated server: the simulated engine, advanced to the clock, in a process of its own.

It is the engine that `simulate` runs, advanced from event to event as in a closed loop. Requests stand in a ring of
rows: number m takes row m, as in a simulation, so the same requests meet the same classes and accepted tokens; rows of
ended requests are used again.
"""

import gc
import json
import math
import os
import pickle
import select
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftcast.errors import InputError
from draftcast.files import picked
from draftcast.kernels.arrays import IntArray
from draftcast.scenarios.run.deployment import Deployment, cached_deployment
from draftcast.scenarios.run.simulate import build_replicas, front_end_work_s
from draftcast.scenarios.run.workload_spec import workload_spec
from draftcast.scenarios.schema import Scenario
from draftcast.sim.compiled.cache import tell_of_compiling
from draftcast.sim.engine.replica import request_rows
from draftcast.sim.state.engine import FINISHED
from draftcast.sim.workload.build_requests import build_requests
from draftcast.sim.workload.request_table import RequestTable

ROWS = 8192  # requests that a server holds at once
_READ_BYTES = 1 << 16


def ring_table(scenario: Scenario, deployment: Deployment) -> tuple[RequestTable, NDArray[np.int32]]:
    """Rows for requests of any length up to ``max_model_len``, and the scenario's output tokens of each row.

    A row keeps its class, priority and acceptance; recorded acceptance ends with the recorded output.
    """
    workload = workload_spec(scenario)
    action = "drop" if workload.max_model_len_action == "drop" else "clip"  # as many as these a scenario may not draw
    workload = workload.model_copy(update={"duration_s": None, "max_model_len_action": action})
    longest = deployment.settings.max_model_len
    drawn = build_requests(workload, scenario.statistics.seed, ROWS, longest)
    table = replace(
        drawn,
        prompt_tokens=np.ones(len(drawn), np.int32),
        output_tokens=np.full(len(drawn), longest - 1, np.int32),
        hash_ids=None,
        hash_offsets=None,
        hash_block_tokens=0,
    )
    return table, drawn.output_tokens


class LiveEngine:
    """One replica of the scenario's cluster, to which requests are sent while it runs."""

    def __init__(self, scenario: Scenario) -> None:
        one = scenario.model_copy(update={"cluster": scenario.cluster.model_copy(update={"replicas": 1})})
        deployment = cached_deployment(scenario)
        self._table, _ = ring_table(scenario, deployment)
        self.replica = build_replicas(one, [deployment], self._table, scenario.statistics.seed)[0]
        self._rows = self.replica.state.requests
        self._active = np.zeros(0, np.int64)  # rows of requests that have not ended
        self._known = np.zeros(len(self._table), np.int32)  # tokens of each row at the last event
        self._ending: list[int] = []  # rows of ended requests with outputs in flight
        self._draft_tokens = 0  # verified for ended requests

    def submit(self, row: int, prompt: int, output: int, priority: int, arrival_s: float) -> None:
        """A request, in the order of arrival."""
        class_id = self._table.class_id[row]
        fresh = request_rows(RequestTable.from_columns([prompt], [output], [arrival_s], [class_id], [priority]))
        fresh["undrafted"] = self._rows["undrafted"][row]
        self._rows[row] = fresh[0]
        self._known[row] = prompt
        self._active = np.append(self._active, row)
        self.replica.submit([row])

    def abort(self, row: int) -> None:
        """The request's client is gone."""
        if self.replica.abort(row):
            self._end(np.array([row]))

    def advance(self) -> tuple[list[tuple[int, int]], list[tuple[Any, ...]], list[int]]:
        """Run the next event.

        Returns:
            (row, new tokens) of each request that got some; of each that ended with it the row, seconds queued, in
            prefill and decoding; rows that may be used again.
        """
        self.replica.advance(math.nextafter(self.replica.next_event_s, math.inf))
        rows = self._rows
        tokens = rows["tokens"][self._active]
        changed = np.flatnonzero(tokens != self._known[self._active])
        served = self._active[changed]
        new = tokens[changed] - self._known[served]
        self._known[served] = tokens[changed]
        ended = served[rows["status"][served] == FINISHED]
        times = [rows[name][ended] for name in ("arrival_s", "first_scheduled_s", "first_token_s", "finish_s")]
        parts = [(later - earlier).tolist() for earlier, later in pairwise(times)]
        if ended.size:
            self._end(ended)
        free = [row for row in self._ending if rows["in_flight"][row] == 0]
        self._ending = [row for row in self._ending if rows["in_flight"][row] != 0]
        pieces = list(zip(served.tolist(), new.tolist(), strict=True))
        return pieces, list(zip(ended.tolist(), *parts, strict=True)), free

    def _end(self, rows: IntArray) -> None:
        self._active = self._active[~np.isin(self._active, rows)]
        self._draft_tokens += int(self._rows["draft_tokens"][rows].sum())
        self._ending += rows.tolist()

    def counts(self) -> dict[str, Any]:
        """What vLLM's scheduler counts, since the start or now."""
        replica = self.replica
        names = ("num_preemptions", "cached_tokens", "looked_up_tokens", "free_blocks")
        counts = {name: sum(int(rank.state.engine[0][name]) for rank in replica.ranks) for name in names}
        rounds = sum(rank.state.rounds_by_accepted.sum(axis=0) for rank in replica.ranks)
        # Of each draft position: rounds that accepted more drafts than stand before it.
        accepted = rounds[::-1].cumsum()[::-1][1:].tolist()
        blocks = (replica.config.num_gpu_blocks - 1) * len(replica.ranks)
        return {
            **counts,
            **picked(replica, "num_running num_waiting"),
            "kv_cache_usage": 1.0 - counts["free_blocks"] / blocks,
            "num_drafts": int(rounds.sum()),
            "num_draft_tokens": self._draft_tokens + int(self._rows["draft_tokens"][self._active].sum()),
            "num_accepted": sum(accepted),
            "accepted_per_position": accepted,
        }


def _warm_up(engine: LiveEngine) -> None:
    """Compile or load all that an engine calls, so that no request waits for it."""
    for row in range(2):
        engine.submit(row, 1, 2, 0, 0.0)
    engine.advance()
    engine.abort(0)
    engine.counts()
    while engine.replica.next_event_s < math.inf:
        engine.advance()


class _Lines:
    """Messages of one JSON line each over a socket."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._rest = b""

    def read(self, timeout_s: float | None) -> Iterator[Any]:
        """Messages that come within the time. Raises EOFError: the other end is closed."""
        # select, as poll rounds up to milliseconds
        if not select.select([self._socket], [], [], timeout_s)[0]:
            return
        if not (data := self._socket.recv(_READ_BYTES)):
            raise EOFError
        *lines, self._rest = (self._rest + data).split(b"\n")
        yield from map(json.loads, lines)

    def send(self, message: Any) -> None:
        self._socket.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")


def run_replica(descriptor: int, tells: bool) -> None:
    """A replica's life, until the other end is closed: its scenario and speed on standard input, then messages.

    One that ``tells`` says on standard error when it compiles the engine.

    In: ``["clock", start]`` of `time.monotonic`; ``["submit", ...]`` and ``["abort", row]`` as `LiveEngine`'s;
    ``["counts"]``. Out: ``["ready"]`` or ``["failed", why]``; ``["output", ...]`` as of `LiveEngine.advance`;
    ``["counts", ...]``.
    """
    if tells:
        tell_of_compiling()
    scenario, speed = pickle.load(sys.stdin.buffer)
    lines = _Lines(descriptor)
    try:
        _warm_up(LiveEngine(scenario))
        engine = LiveEngine(scenario)
    except InputError as error:
        lines.send(["failed", str(error)])
        return
    gc.freeze()  # to go through all that was imported stops the engine for a fifth of a second
    lines.send(["ready"])
    # A request that an event should see was sent before: the front end works on it. That time hides the way of requests
    # and answers through sockets and event loops, which takes no longer when the clock goes slower.
    lead_s = float(front_end_work_s(cached_deployment(scenario), 1)) / max(speed, 1.0)
    start_s = time.monotonic()
    try:
        while True:
            wait_s = start_s + engine.replica.next_event_s / speed - lead_s - time.monotonic()
            for kind, *content in lines.read(max(wait_s, 0.0) if wait_s < math.inf else None):
                if kind == "submit":
                    engine.submit(*content)
                elif kind == "abort":
                    engine.abort(*content)
                elif kind == "counts":
                    lines.send(["counts", engine.counts()])
                else:
                    start_s = content[0]
            if start_s + engine.replica.next_event_s / speed - lead_s <= time.monotonic():
                output = engine.advance()
                if any(output):
                    lines.send(["output", *output])
    except (EOFError, OSError):
        os._exit(0)  # the server has ended; to take down compiled code in order takes two seconds
