"""The cluster: requests arrive, a router sends them to replicas; where users wait for answers, as a SimPy process.

Between two events of the cluster a replica runs on its own, in one compiled call. Where routes are known beforehand
all requests are handed over at once; a router that looks at the replicas is asked at each arrival.

The load of a steady run goes on: the table's extra requests (`RequestTable.num_extra`) keep arriving until every
counted one has its answer, so that the last counted requests meet the same load as those before them.
"""

import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np
import simpy

from draftcast.kernels.arrays import FloatArray, IntArray
from draftcast.sim.cluster.data_parallel import DataParallel
from draftcast.sim.cluster.routers import Router
from draftcast.sim.engine.replica import Replica
from draftcast.sim.output.steady_state import ALWAYS_STABLE, FINITE, Stability, assess
from draftcast.sim.progress import Progress
from draftcast.sim.state.engine import FINISHED, STOP_FINISHED
from draftcast.sim.workload.request_table import RequestTable

PROGRESS_PARTS = 50
RAN_OUT = "the last requests took as long as sending all requests once more: the run is too short"
EXTRA_CHUNKS = 40  # extra requests are sent in so many; between two it is asked whether they are still needed


class ClosedLoop(NamedTuple):
    """Clients, each of whom thinks, sends, waits for the answer and begins again."""

    clients: int
    think_s: FloatArray  # before request i of the table is sent (before session i begins): one number for each, or more


class Cluster:
    """Replicas behind a router; ``run`` serves every counted request of the table.

    Args:
        replicas: over the same request rows, none of them used yet.
        table: the requests; in a closed loop its arrival times are replaced in the rows as users send.
        closed_loop: its clients; None for an open loop.
        progress: called with the share of the work done, 0 to 1.

    Attributes hold what came of it once ``run`` has ended.
    """

    def __init__(
        self,
        replicas: Sequence[Replica | DataParallel],
        table: RequestTable,
        router: Router,
        closed_loop: ClosedLoop | None = None,
        *,
        progress: Progress | None = None,
    ) -> None:
        self.replicas = list(replicas)
        self.rows = replicas[0].state.requests
        self.assigned = np.full(len(table), -1, np.int32)  # replica of each request; -1 where it was never sent
        self.order = np.arange(len(table))  # in which requests count: the table's, or of sending where clients wait
        self.end_s = math.inf  # the last counted arrival
        # The engines' counters, ``ENGINE[ranks]``: at ``end_s`` with extra requests, else at the end.
        self.engines = np.zeros(0)
        # Whether the counted requests met a load that the cluster keeps up with; ``finite`` without extra requests,
        # none of which are sent where the queue grew up to ``end_s``.
        self.stability = FINITE
        self.overloaded = self.ran_out = False
        self._table = table
        self._counted = table.num_counted
        self._router = router
        self._routes = router.assign() if router.is_static else None
        self._closed_loop = closed_loop
        self._report = progress or (lambda share: None)
        self._served = 0  # counted requests that clients have had answered
        self._rank = self.order.copy()  # of each request in `order`; where clients wait, once it has been sent
        self._reordered = False
        self._segments = self.rows["segment"].copy()  # by rank

    def run(self) -> None:
        if self._closed_loop is not None or self._table.session is not None:
            clients = _Clients(self._table, self._closed_loop)
            if len(self.replicas) == 1 and clients.never_think:
                self._run_without_thought(len(clients.first_sends))
            else:
                self._run_clients(clients)
        else:
            self._run_open()
        if not self._is_served():
            self._advance(math.inf)
        if not self._table.num_extra:
            self._end_window()
        elif self.ran_out and not self.overloaded:
            self.stability = replace(self.stability, verdict="not settled", reason=RAN_OUT)
        elif not self.overloaded and self._closed_loop is None:
            self.stability = self._assess()
        self._report(1.0)

    def _end_window(self) -> None:
        """Note what the counters say, and whether the queue grows: then more load would only make it longer."""
        self.end_s = float(self.rows[self.counted]["arrival_s"].max(initial=0.0))
        self.engines = np.array([rank.state.engine[0] for replica in self.replicas for rank in replica.ranks])
        if self._table.num_extra:
            self.stability = ALWAYS_STABLE if self._closed_loop is not None else self._assess()
            self.overloaded = self.stability.verdict == "unstable"

    def _assess(self) -> Stability:
        rows = self.rows[self.counted]
        moments = ("first_scheduled_s", "finish_s")  # negative before
        return assess(rows["arrival_s"], *(np.where(rows[name] >= 0, rows[name], np.nan) for name in moments))

    @property
    def counted(self) -> slice | IntArray:
        """Where the counted requests stand in the table, by `order`; a slice copies nothing."""
        return self.order[: self._counted] if self._reordered else slice(self._counted)

    def _is_served(self) -> bool:
        return bool((self.rows[self.counted]["status"] == FINISHED).all())

    def _advance(self, until_s: float) -> None:
        for replica in self.replicas:
            replica.advance(until_s)

    # ---- an open loop ----

    def _run_open(self) -> None:
        """The counted requests, then the extra ones, chunk by chunk, as long as they are needed."""
        self._run_arrivals(0, self._counted)
        if not self._table.num_extra:
            return
        self._end_window()
        chunk = -(-self._table.num_extra // EXTRA_CHUNKS)
        for start in range(self._counted, len(self._table), chunk):
            if self.overloaded or self._is_served():
                return
            self._run_arrivals(start, min(start + chunk, len(self._table)))
        self.ran_out = not self._is_served()

    def _run_arrivals(self, start: int, stop: int) -> None:
        """Send these requests and run until the last arrives."""
        arrival_s = self._table.arrival_s[start:stop]
        if self._routes is None:  # a router that looks
            for request, now_s in enumerate(arrival_s.tolist(), start):
                self._advance(now_s)
                self._send(request)
                if request % 1024 == 0:
                    self._report(min(request / self._counted, 1.0))
            return
        routes = self.assigned[start:stop] = self._routes[start:stop]
        for index, replica in enumerate(self.replicas):
            replica.submit((start + np.flatnonzero(routes == index)).astype(np.uint32))
        # Nothing can disturb the replicas; they pause only to report progress.
        for part in range(1, PROGRESS_PARTS + 1) if start == 0 else ():
            self._advance(float(arrival_s[0] + (arrival_s[-1] - arrival_s[0]) * part / PROGRESS_PARTS))
            self._report(part / (PROGRESS_PARTS + 1))
        self._advance(float(arrival_s[-1]))

    def _send(self, request: int, chosen: int | None = None) -> int:
        """Hand the request to its replica, or to the one that the router chooses now; the replica's index."""
        if chosen is None:
            chosen = self._router.choose(request, [r.num_running + r.num_waiting for r in self.replicas])
        self.assigned[request] = chosen
        self.replicas[chosen].submit([request])
        return chosen

    # ---- clients that wait for answers: a closed loop, sessions ----

    def _run_clients(self, clients: "_Clients") -> None:
        env = simpy.Environment()
        env.process(self._serve_clients(clients, env))
        env.run()

    def _serve_clients(self, clients: "_Clients", env: simpy.Environment) -> Generator[simpy.Event, Any, None]:
        """Clients send, wait for the answer, think and send again.

        At one and the same moment replicas first hand out what they have finished, then clients send, and only then
        does any replica schedule: the order of an open loop, in which replicas are advanced to an arrival before it.
        """
        self._reordered = True
        # Next to send: when, and which request; clients who send at the same moment go by its number.
        sends, sent = clients.first_sends, 0
        runs = [_ClientRun(replica) for replica in self.replicas]
        arrival_s, finish_s = self.rows["arrival_s"], self.rows["finish_s"]
        # When all have been sent `run` lets a lone replica run on to its end; several stop with the last answer.
        while sends or clients.may_send or len(runs) > 1:
            send_s = sends[0][0] if sends else math.inf
            now_s = min([send_s, *[run.event_s for run in runs]])
            if now_s > env.now:  # replicas take `now_s` itself, free of the clock's rounding
                yield env.timeout(now_s - env.now)
            for run in runs:
                for request in run.answers_at(now_s):
                    self._served += int(self._rank[request]) < self._counted
                    following = clients.after(request, float(finish_s[request]))
                    if following is not None:
                        heappush(sends, following)
            self._report(self._served / self._counted)
            if self._served == self._counted or self.overloaded:
                break
            if sends and sends[0][0] == now_s:
                while sends and sends[0][0] == now_s:
                    _, request = heappop(sends)
                    arrival_s[request] = now_s
                    clients.starts_left -= clients.is_start[request]
                    self.order[sent], self._rank[request] = request, sent
                    self.rows["segment"][request] = self._segments[sent]
                    chosen = self._send(request, None if self._routes is None else int(self._routes[sent]))
                    sent += 1
                    runs[chosen].event_s = min(runs[chosen].event_s, now_s)
                    if self._table.num_extra and sent == self._counted:
                        self._end_window()
                continue
            run = min(runs, key=lambda run: run.event_s)
            if run.event_s > now_s:
                continue
            # The next to send is a client who thinks already, or one who gets another replica's answer and then thinks
            # for at least the shortest of the thoughts that come next.
            others_s = min((other.event_s for other in runs if other is not run), default=math.inf)
            until_s = min(sends[0][0] if sends else math.inf, others_s + clients.least_thought_s)
            # It must take at least the step that starts now, or two replicas would wait for each other.
            run.advance(max(until_s, math.nextafter(now_s, math.inf)))
        self.ran_out = self._table.num_extra > 0 and clients.starts_left == 0

    def _run_without_thought(self, sending: int) -> None:
        """`_run_clients` of one replica whose answers bring the table's next requests at once: a third faster."""
        (replica,), n = self.replicas, len(self._table)
        now_s, sent = 0.0, 0
        while sent < n and self._served < self._counted:
            last = sent + min(sending, n - sent)
            self.rows["arrival_s"][sent:last] = now_s
            self.assigned[sent:last] = 0
            if self._table.num_extra and sent < self._counted <= last:
                replica.submit(np.arange(sent, self._counted, dtype=np.uint32))
                self._end_window()
                sent = self._counted
            replica.submit(np.arange(sent, last, dtype=np.uint32))
            sent = last
            if sent < n:
                replica.advance(math.inf, stop_on_finish=True)
                answers = replica.just_finished
                self._served += int(np.count_nonzero(answers < self._counted))
                self._report(self._served / self._counted)
                now_s, sending = float(self.rows["finish_s"][answers[0]]), answers.size
        self.ran_out = self._table.num_extra > 0 and sent == n


class _Clients:
    """Who sends what after which answer: the next turn of a session, or (closed loop) what nobody has begun yet."""

    def __init__(self, table: RequestTable, loop: ClosedLoop | None) -> None:
        # A request without a session is one of its own.
        session = np.arange(len(table)) if table.session is None else table.session
        is_start = np.diff(session, prepend=-1) != 0
        starts = np.flatnonzero(is_start)
        self.is_start: list[bool] = [*is_start.tolist(), True]
        self._starts: list[int] = starts.tolist()
        first_s: list[float] = table.arrival_s[starts].tolist()
        self._turn_thoughts_s: list[float] = [] if table.think_s is None else table.think_s.tolist()
        self._least_turn_s = math.inf if table.think_s is None else table.think_s[~is_start].min(initial=math.inf)
        self._thoughts_s: list[float] = []  # of a closed loop, by session
        self._least_s = [math.inf] * (len(starts) + 1)
        self._next = len(starts)  # the session to begin when a client has done with one
        self.starts_left = len(starts)  # sessions of which nothing has been sent
        self.never_think = False  # whether every answer brings a request that nobody has sent, at once
        if loop is not None:
            from scipy.ndimage import minimum_filter1d

            think_s = loop.think_s[: len(starts)]
            self.never_think = table.session is None and not think_s.any()
            self._next = min(loop.clients, len(starts))
            self._thoughts_s = think_s.tolist()
            first_s = self._thoughts_s[: self._next]
            window = max(self._next, 1)  # From each session on, the shortest thought of as many as there are clients.
            shortest_s = minimum_filter1d(think_s, window, mode="constant", cval=math.inf, origin=-(window // 2))
            self._least_s = [*shortest_s.tolist(), math.inf]
        # When, and which request, before there is any answer: a heap.
        self.first_sends = sorted(zip(first_s, self._starts, strict=False))

    def after(self, request: int, answer_s: float) -> tuple[float, int] | None:
        """When and what the client sends who gets the answer to ``request``; None: nothing."""
        if not self.is_start[request + 1]:
            return answer_s + self._turn_thoughts_s[request + 1], request + 1
        if self._next == len(self._starts):
            return None
        self._next += 1
        return answer_s + self._thoughts_s[self._next - 1], self._starts[self._next - 1]

    @property
    def may_send(self) -> bool:
        """Whether an answer may lead to another request."""
        return self._next < len(self._starts) or self._least_turn_s < math.inf

    @property
    def least_thought_s(self) -> float:
        """The shortest thought of those that come next."""
        return min(self._least_s[self._next], self._least_turn_s)


class _ClientRun:
    """How far one replica has been run whose clients wait for answers, and which answers were found on the way."""

    def __init__(self, replica: Replica | DataParallel) -> None:
        self.reached_s = -math.inf  # it has been run up to here
        self.event_s = math.inf  # it does nothing and hands out no answer before; infinite when it has nothing to do
        self._replica = replica
        self._answers: list[int] = []

    def advance(self, until_s: float) -> None:
        """Run until ``until_s`` or until requests end."""
        replica = self._replica
        if replica.advance(until_s, stop_on_finish=True) == STOP_FINISHED:
            self._answers = replica.just_finished.tolist()
            self.event_s = self.reached_s = float(replica.state.requests["finish_s"][self._answers[0]])
        else:
            self.event_s, self.reached_s = replica.next_event_s, until_s

    def answers_at(self, now_s: float) -> Iterator[int]:
        """Requests whose answers are handed out now; the replica schedules nothing yet."""
        while self.event_s == now_s and (self._answers or self.reached_s < now_s):
            if not self._answers:
                self.advance(now_s)
            answers, self._answers = self._answers, []
            if answers:
                yield from answers
                self.event_s = self._replica.next_event_s
