"""The cluster in SimPy: requests arrive, a router sends them to replicas, users wait for answers.

Between two events of the cluster a replica runs on its own, in one compiled call. Three ways to drive it: routes
known beforehand (all requests handed over at once), a router that looks at the replicas at each arrival, and a
closed loop, in which an answer leads to the user's next request.

The load of a steady run goes on: the table's extra requests (`RequestTable.num_extra`) keep arriving until every
counted one has its answer, so that the last counted requests meet the same load as those before them.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Generator, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray
from simpy.events import EventPriority

from draftcast.sim.cluster.routers import Router
from draftcast.sim.engine.replica import STOP_FINISHED, Replica
from draftcast.sim.engine.state import FINISHED
from draftcast.sim.output.stability import ALWAYS_STABLE, FINITE, Stability, assess
from draftcast.sim.progress import Progress
from draftcast.sim.workload.arrivals import ClosedLoop
from draftcast.sim.workload.request_table import RequestTable

PROGRESS_PARTS = 50
RAN_OUT = "the last requests took as long as sending all requests once more: the run is too short"
EXTRA_CHUNKS = 40
"""Extra requests are sent in so many chunks; between two of them it is asked whether they are still needed."""

# At one and the same moment of a closed loop replicas first hand out what they have finished, then users send, and only
# then does any replica schedule: the order of an open loop, in which replicas are advanced to an arrival before it.
FINISH_PRIORITY, SEND_PRIORITY, SCHEDULE_PRIORITY = EventPriority(1), EventPriority(2), EventPriority(3)


class Cluster:
    """Replicas behind a router; ``run`` serves every counted request of the table.

    Args:
        replicas: replicas over the same request rows, none of them used yet.
        table: the requests; in a closed loop its arrival times are replaced in the rows as users send.
        router: where requests go.
        closed_loop: users and their think time, None for an open loop.
        seed: keys the think times.
        progress: called with the share of the work done, 0 to 1.

    Attributes, after ``run``:
        assigned: replica of each request, i4[n]; -1 where it was never sent.
        end_s: the last counted arrival.
        engines: the engines' counters (``ENGINE[replicas]``): at ``end_s`` with extra requests, else at the end.
        stability: whether the counted requests met a load that the cluster keeps up with; ``finite`` without extra
            requests. Where the queue grew up to ``end_s`` no extra requests were sent.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        table: RequestTable,
        router: Router,
        closed_loop: ClosedLoop | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        self.replicas = list(replicas)
        self.rows = replicas[0].state.requests
        self.assigned = np.full(len(table), -1, np.int32)
        self.end_s = math.inf
        self.engines = np.zeros(0)
        self.stability = FINITE
        self.overloaded = self.ran_out = False
        self._table = table
        self._counted = table.num_counted
        self._router = router
        self._closed_loop = closed_loop
        self._seed = seed
        self._progress = progress
        self._served = 0  # counted requests that a closed loop has had answered
        self._env = simpy.Environment()

    def run(self) -> None:
        """Run until every counted request has been served."""
        if self._closed_loop is not None:
            if len(self.replicas) == 1:
                self._run_closed_loop_alone(self._closed_loop)
            else:
                self._run_closed_loop(self._closed_loop)
        elif self._router.is_static:
            self._run_static()
        else:
            self._env.process(self._route_arrivals())
            self._env.run()
        if not self._is_served():
            for replica in self.replicas:
                replica.advance(math.inf)
        if not self._table.num_extra:
            self._end_window()
        elif self.ran_out:
            self.stability = replace(self.stability, verdict="not settled", reason=RAN_OUT)
        elif not self.overloaded and self._closed_loop is None:
            self.stability = self._assess()
        self._report(1.0)

    def _end_window(self) -> None:
        """Note what the counters say, and whether the queue grows: then more load would only make it longer."""
        self.end_s = float(self.rows["arrival_s"][: self._counted].max(initial=0.0))
        self.engines = np.array([replica.state.engine[0] for replica in self.replicas])
        if self._table.num_extra:
            self.stability = ALWAYS_STABLE if self._closed_loop is not None else self._assess()
            self.overloaded = self.stability.verdict == "unstable"

    def _assess(self) -> Stability:
        """The counted requests as they stand now."""
        rows = self.rows[: self._counted]
        started, done = rows["first_scheduled_s"] >= 0, rows["status"] == FINISHED
        return assess(
            rows["arrival_s"],
            np.where(started, rows["first_scheduled_s"], np.nan),
            np.where(done, rows["finish_s"], np.nan),
        )

    def _is_served(self) -> bool:
        return bool((self.rows["status"][: self._counted] == FINISHED).all())

    def _report(self, share: float) -> None:
        if self._progress is not None:
            self._progress(share)

    # ---- routes known beforehand ----

    def _run_static(self) -> None:
        routes, n = self._router.assign(), len(self._table)
        self._submit(routes, 0, self._counted)
        if self._progress is not None:
            for replica in self.replicas:
                self._env.process(self._advance_in_parts(replica))
            self._env.run()
        if not self._table.num_extra:
            return
        for replica in self.replicas:
            replica.advance(float(self._table.arrival_s[self._counted - 1]))
        self._end_window()
        if self.overloaded:
            return
        for start in range(self._counted, n, self._chunk):
            if self._is_served():
                return
            stop = min(start + self._chunk, n)
            self._submit(routes, start, stop)
            for replica in self.replicas:
                replica.advance(float(self._table.arrival_s[stop - 1]))
        self.ran_out = not self._is_served()

    @property
    def _chunk(self) -> int:
        return -(-self._table.num_extra // EXTRA_CHUNKS)

    def _submit(self, routes: NDArray[np.int64], start: int, stop: int) -> None:
        self.assigned[start:stop] = routes[start:stop]
        for index, replica in enumerate(self.replicas):
            replica.submit((start + np.flatnonzero(routes[start:stop] == index)).astype(np.uint32))

    def _advance_in_parts(self, replica: Replica) -> Generator[simpy.Event, Any, None]:
        """Nothing can disturb this replica; it pauses only to report progress."""
        times = self._table.arrival_s[: self._counted]
        start, stop = float(times[0]), float(times[-1])
        for part in range(1, PROGRESS_PARTS + 1):
            until_s = start + (stop - start) * part / PROGRESS_PARTS
            yield self._env.timeout(max(until_s - self._env.now, 0.0))
            replica.advance(until_s)
            self._report(part / (PROGRESS_PARTS + 1))

    # ---- a router that looks ----

    def _route_arrivals(self) -> Generator[simpy.Event, Any, None]:
        for request, at in enumerate(self._table.arrival_s.tolist()):
            if request == self._counted:
                self._end_window()
            if request >= self._counted and (
                self.overloaded or ((request - self._counted) % self._chunk == 0 and self._is_served())
            ):
                return
            if at > self._env.now:
                yield self._env.timeout(at - self._env.now)
            for replica in self.replicas:
                replica.advance(at)
            self._send(request)
            if request % 1024 == 0:
                self._report(min(request / self._counted, 1.0))
        self.ran_out = self._table.num_extra > 0 and not self._is_served()

    def _send(self, request: int) -> Replica:
        chosen = self._router.choose(request, [r.num_running + r.num_waiting for r in self.replicas])
        self.assigned[request] = chosen
        self.replicas[chosen].submit([request])
        return self.replicas[chosen]

    # ---- closed loop ----

    def _run_closed_loop_alone(self, loop: ClosedLoop) -> None:
        """`_run_closed_loop` with one replica: only its own answers come in between, so nobody else need be asked."""
        n, replica, finish_s = len(self._table), self.replicas[0], self.rows["finish_s"]
        thoughts: list[float] = loop.think_time_s.draw(self._seed, n).tolist()
        self.assigned[:] = 0
        # Next to send: when, and which request; users who send at the same moment go by its number.
        sends = [(thoughts[request], request) for request in range(min(loop.concurrency, n))]
        heapify(sends)
        next_request = len(sends)
        while (sends or next_request < n) and self._served < self._counted:
            until_s = sends[0][0] if sends else math.inf
            if replica.advance(until_s, stop_on_finish=True) != STOP_FINISHED:
                self._send_due(replica, sends, until_s)
                continue
            for request in replica.just_finished.tolist():
                self._served += request < self._counted
                if next_request < n:
                    heappush(sends, (float(finish_s[request]) + thoughts[next_request], next_request))
                    next_request += 1
            self._report(self._served / self._counted)
        self.ran_out = self._table.num_extra > 0 and self._served < self._counted

    def _send_due(self, replica: Replica, sends: list[tuple[float, int]], at: float) -> None:
        """Send every request that is due at ``at``."""
        due = []
        while sends and sends[0][0] <= at:
            due.append(heappop(sends)[1])
        self.rows["arrival_s"][due] = at
        replica.submit(due)
        if self._table.num_extra and self._counted - 1 in due:
            self._end_window()

    def _run_closed_loop(self, loop: ClosedLoop) -> None:
        from scipy.ndimage import minimum_filter1d

        n = len(self._table)
        thoughts = loop.think_time_s.draw(self._seed, n)
        self._think_s: list[float] = thoughts.tolist()
        # From each request on, the shortest thought of as many as there are users.
        window = max(min(loop.concurrency, n), 1)
        least = minimum_filter1d(thoughts, window, mode="constant", cval=math.inf, origin=-(window // 2))
        self._least_thought_s: list[float] = [*least.tolist(), math.inf]
        self._routes = self._router.assign() if self._router.is_static else None
        self._next_request = 0
        self._all_served = self._env.event()
        self._sends_s: list[float] = []  # when users who have their answer will send, sorted
        self._no_answer_before_s = [0.0] * len(self.replicas)
        self._wake = [self._env.event() for _ in self.replicas]
        for _ in range(min(loop.concurrency, n)):
            self._send_after(0.0)
        for index in range(len(self.replicas)):
            self._env.process(self._serve(index))
        self._env.run(until=self._all_served)

    def _send_after(self, answered_s: float) -> None:
        """The user who got an answer at ``answered_s`` sends the next request after thinking."""
        if self._next_request < len(self._table):
            request = self._next_request
            self._next_request += 1
            at = answered_s + self._think_s[request]
            insort(self._sends_s, at)
            self._env.process(self._think_and_send(request, at))
        else:
            self.ran_out = self._table.num_extra > 0

    def _think_and_send(self, request: int, at: float) -> Generator[simpy.Event, Any, None]:
        yield self._pause_until(at, SEND_PRIORITY)
        self._sends_s.remove(at)
        self.rows["arrival_s"][request] = at
        if self._routes is not None:
            chosen = int(self._routes[request])
            self.assigned[request] = chosen
            self.replicas[chosen].submit([request])
        else:
            chosen = self.replicas.index(self._send(request))
        if self._table.num_extra and request == self._counted - 1:
            self._end_window()
        self._no_answer_before_s[chosen] = min(self._no_answer_before_s[chosen], at)
        if not self._wake[chosen].triggered:
            self._wake[chosen].succeed()

    def _undisturbed_until_s(self, index: int) -> float:
        """Up to when no user can send anything, unless this replica answers one first.

        The next to send is a user who thinks already, or one who gets another replica's answer and then thinks for at
        least the shortest of the thoughts that come next; no more of them than users can begin before.
        """
        until_s = self._sends_s[0] if self._sends_s else math.inf
        others = (at for other, at in enumerate(self._no_answer_before_s) if other != index)
        return min(until_s, min(others, default=math.inf) + self._least_thought_s[self._next_request])

    def _serve(self, index: int) -> Generator[simpy.Event, Any, None]:
        """Run one replica for as long as nothing can come in between, answering users as requests end."""
        replica = self.replicas[index]
        while self._served < self._counted:
            if self._env.peek() <= self._env.now:
                if replica.advance(self._env.now, stop_on_finish=True) == STOP_FINISHED:
                    self._answer(replica)
                yield self._pause_until(self._env.now, SCHEDULE_PRIORITY)
            # A replica must take at least the step that starts now, or two of them would wait for each other.
            until_s = max(self._undisturbed_until_s(index), math.nextafter(self._env.now, math.inf))
            if replica.advance(until_s, stop_on_finish=True) == STOP_FINISHED:
                answered_s = float(self.rows["finish_s"][replica.just_finished[0]])
                self._no_answer_before_s[index] = answered_s
                yield self._pause_until(answered_s, FINISH_PRIORITY)
                self._answer(replica)
                continue
            next_s = self._no_answer_before_s[index] = replica.next_event_s
            if not math.isinf(next_s):
                yield self._pause_until(next_s, FINISH_PRIORITY)
            elif self._served < self._counted:
                self._wake[index] = self._env.event()
                yield self._wake[index]
                yield self._pause_until(self._env.now, SCHEDULE_PRIORITY)

    def _answer(self, replica: Replica) -> None:
        """Let the users go on whose requests have just ended."""
        for request in replica.just_finished.tolist():
            self._served += request < self._counted
            self._send_after(float(self.rows["finish_s"][request]))
        if self._served == self._counted and not self._all_served.triggered:
            self._all_served.succeed()
        self._report(self._served / self._counted)

    def _pause_until(self, at: float, priority: EventPriority) -> simpy.Event:
        """An event at exactly ``at`` (now if that is past), after all those of that moment with a smaller priority."""
        event = simpy.Event(self._env)
        event._ok, event._value = True, None  # as simpy.Timeout does, which has no priority to choose
        now = self._env.now
        delay = max(at - now, 0.0)
        # SimPy adds the delay to now; rounded, the sum may miss the moment at which others act.
        while now + delay < at:
            delay = math.nextafter(delay, math.inf)
        while delay > 0.0 and now + delay > at:
            delay = math.nextafter(delay, 0.0)
        self._env.schedule(event, priority, delay)
        return event
