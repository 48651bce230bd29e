"""The replicas of a simulated server, seen from its router: processes, requests on their way, answers.

A request goes to a replica by the scenario's router, which knows how many requests each has. A replica that dies takes
its own requests with it and gets no more.
"""

import asyncio
import json
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from draftcast.errors import InputError
from draftcast.scenarios.run.deployment import Deployment, deployments_of
from draftcast.scenarios.run.simulate import front_end_servers, front_end_work_s
from draftcast.scenarios.schema import Scenario, members
from draftcast.scenarios.serve.engine import ring_table
from draftcast.scenarios.serve.metrics import ServerMetrics
from draftcast.sim.cluster.routers import ROUTERS

COUNTS_TIMEOUT_S = 1.0
_LINE_BYTES = 1 << 24


class Refused(Exception):
    """A request that gets no answer but an HTTP status and a message."""


@dataclass(eq=False)
class Answer:
    """A request and what has come of it."""

    row: int
    replica: int
    prompt_tokens: int
    reason: str  # OpenAI's finish_reason at its end
    sent_s: float  # of `time.monotonic`
    tokens: int = 0  # generated so far
    ended: bool = False
    error: str = ""
    first_s: float = 0.0
    last_s: float = 0.0
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def pieces(self) -> AsyncIterator[int]:
        """New tokens as they come, those that a slow reader missed together; the answer ends with a piece."""
        taken, ended = 0, False
        while not ended:
            await self.news.wait()
            self.news.clear()
            new, ended = self.tokens - taken, self.ended
            taken += new
            yield new


class _Link:
    """One replica: its process, which may tell that it compiles, and the messages to and from it (`engine.py`)."""

    def __init__(self, scenario: Scenario, speed: float, *, tells: bool) -> None:
        self.socket, theirs = socket.socketpair()
        command = f"from draftcast.scenarios.serve.engine import run_replica; run_replica({theirs.fileno()}, {tells})"
        # A session of its own: Ctrl-C in the terminal is the parent's to handle.
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", command],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
            start_new_session=True,
        )
        theirs.close()
        assert self.process.stdin is not None
        with self.process.stdin as pipe:
            pickle.dump((scenario, speed), pipe)
        self.alive = True
        self.load = 0  # requests that have not ended
        self.counted = asyncio.Event()

    async def connect(self) -> None:
        self.reader, self._writer = await asyncio.open_connection(sock=self.socket, limit=_LINE_BYTES)
        kind, *content = json.loads(await self.reader.readline() or '["failed", "a replica did not start"]')
        if kind == "failed":
            raise InputError(content[0])

    def send(self, *message: Any) -> None:
        if self.alive:
            self._writer.write(json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        self.socket.close()
        self.process.kill()
        self.process.wait()


class FrontEndQueue:
    """`front_end_s` for requests that come one by one."""

    def __init__(self, scenario: Scenario, deployments: Sequence[Deployment]) -> None:
        self._servers = front_end_servers(scenario, deployments)
        self._more_s = scenario.more_front_end_s
        self._free_s = [0.0] * len(self._servers)
        self._number, self._last_s = 0, 0.0

    def hand_over_s(self, sent_s: float, prompt_tokens: int) -> float:
        """When the engine has the next request, which is sent no earlier than those before it."""
        server = self._number % len(self._servers)
        self._number += 1
        work_s = float(front_end_work_s(self._servers[server], prompt_tokens))
        self._free_s[server] = max(self._free_s[server], sent_s) + work_s
        self._last_s = max(self._last_s, self._free_s[server])
        return self._last_s + self._more_s


class Fleet:
    """The scenario's replicas; `start` them, then `submit` requests. ``deployment``: of the first group."""

    def __init__(self, scenario: Scenario, speed: float) -> None:
        self.scenario, self.speed = scenario, speed  # simulated seconds per second of the wall clock
        deployments = deployments_of(scenario)
        self.deployment = deployments[0]
        self.max_model_len = self.deployment.settings.max_model_len
        groups = list(zip(members(scenario), deployments, strict=True))
        self._replicas = [member for member, _ in groups for _ in range(member.cluster.replicas)]
        table, self._outputs = ring_table(scenario, self.deployment)
        self._priorities = table.priority.tolist()
        self._router = ROUTERS[scenario.cluster.router](table, len(self._replicas), scenario.statistics.seed)
        self._routes = self._router.assign().tolist() if self._router.is_static else None
        self._front_end = FrontEndQueue(scenario, deployments)
        self._answers: dict[int, Answer] = {}  # by row; a row is free when its replica says so
        self._number = 0  # of the next request
        self._start_s = 0.0
        engines = [deployment.settings for member, deployment in groups for _ in range(member.cluster.replicas)]
        self.metrics = ServerMetrics(scenario.engine.model, engines, speculates=scenario.speculative_config is not None)
        self._links: list[_Link] = []
        self._listeners: list[asyncio.Task[None]] = []

    @property
    def healthy(self) -> bool:
        return any(link.alive for link in self._links)

    async def start(self) -> None:
        """Start the replicas and the clock. Raises InputError: a replica refuses the scenario."""
        self._links = [_Link(scenario, self.speed, tells=index == 0) for index, scenario in enumerate(self._replicas)]
        for link in self._links:
            await link.connect()
        self._start_s = time.monotonic()
        for index, link in enumerate(self._links):
            link.send("clock", self._start_s)
            self._listeners.append(asyncio.create_task(self._listen(index, link)))

    def stop(self) -> None:
        for listener in self._listeners:
            listener.cancel()
        for link in self._links:
            link.close()

    def submit(self, prompt_tokens: int, max_tokens: int | None, priority: int | None, sent_s: float) -> Answer:
        """Send a request; without ``max_tokens`` it gets as many as the scenario's workload draws.

        What was done for it since ``sent_s`` is part of the front end's work.

        Raises Refused: all rows are taken, or all replicas are dead.
        """
        rows = len(self._outputs)
        if len(self._answers) == rows:
            raise Refused(503, f"the server holds {rows} requests at most")
        if not self.healthy:
            raise Refused(503, "all replicas have died")
        while (row := self._number % rows) in self._answers:
            self._number += 1
        self._number += 1
        wanted, room = int(self._outputs[row]) if max_tokens is None else max_tokens, self.max_model_len - prompt_tokens
        output = min(wanted, room)
        reason = "stop" if max_tokens is None and wanted <= room else "length"
        alive = [index for index, link in enumerate(self._links) if link.alive]
        loads = [link.load for link in self._links]
        chosen = self._routes[row] if self._routes is not None else self._router.choose(row, loads)
        replica = chosen if chosen in alive else min(alive, key=loads.__getitem__)
        answer = self._answers[row] = Answer(row, replica, prompt_tokens, reason, sent_s)
        link = self._links[answer.replica]
        link.load += 1
        arrival_s = self._front_end.hand_over_s((sent_s - self._start_s) * self.speed, prompt_tokens)
        priority = self._priorities[row] if priority is None else priority
        link.send("submit", row, prompt_tokens, output, priority, arrival_s)
        return answer

    async def drop(self, answer: Answer) -> None:
        """The client is gone: an answer that has not ended is aborted."""
        if not answer.ended:
            self._links[answer.replica].send("abort", answer.row)
            self._end(answer, "abort")

    async def count(self) -> None:
        """Ask the replicas what they count; a replica that does not answer keeps what it said before."""
        links = [link for link in self._links if link.alive]
        for link in links:
            link.counted.clear()
            link.send("counts")
        with suppress(TimeoutError):
            async with asyncio.timeout(COUNTS_TIMEOUT_S):
                for link in links:
                    await link.counted.wait()

    async def _listen(self, index: int, link: _Link) -> None:
        try:
            with suppress(OSError):
                while (line := await link.reader.readline()).endswith(b"\n"):  # the last may be cut off
                    kind, *content = json.loads(line)
                    if kind == "counts":
                        self.metrics.counts[index] = content[0]
                        link.counted.set()
                    else:
                        self._deliver(index, *content)
            left = sum(other.alive for other in self._links) - 1
            print(f"draftcast: replica {index} has died; {left} of {len(self._links)} left", file=sys.stderr)
        finally:
            link.alive = False
            link.counted.set()
            for row, answer in list(self._answers.items()):
                if answer.replica == index:
                    if not answer.ended:
                        answer.error = f"replica {index} has died"
                        self._end(answer, "error")
                    del self._answers[row]

    def _deliver(self, replica: int, new: list[list[int]], ended: list[list[Any]], free: list[int]) -> None:
        now_s = time.monotonic()
        answers = self._answers
        pieces = [(answers[row], tokens) for row, tokens in new if not answers[row].ended]  # or aborted since
        # First pieces go first: nothing makes up for their delay, while a later piece's is shared by its whole answer.
        pieces.sort(key=lambda piece: piece[0].tokens > 0)
        for answer, tokens in pieces:
            answer.tokens += tokens
            answer.news.set()
        done = [(answers[row], times_s) for row, *times_s in ended if not answers[row].ended]
        for answer, _ in done:
            self._end(answer, answer.reason)
        for row in free:
            del answers[row]
        # Counted when the pieces are on their way.
        asyncio.get_running_loop().call_soon(self._count, replica, now_s, pieces, done)

    def _count(
        self, replica: int, now_s: float, pieces: list[tuple[Answer, int]], done: list[tuple[Answer, list[float]]]
    ) -> None:
        self.metrics.record(replica, generation_tokens=sum(tokens for _, tokens in pieces))
        for answer, _ in pieces:
            if answer.first_s:
                self.metrics.record(replica, inter_token_latency_seconds=now_s - answer.last_s)
            else:
                answer.first_s = now_s
                ttft_s = now_s - answer.sent_s
                self.metrics.record(replica, prompt_tokens=answer.prompt_tokens, time_to_first_token_seconds=ttft_s)
            answer.last_s = now_s
        for answer, times_s in done:
            queue_s, prefill_s, decode_s = (time_s / self.speed for time_s in times_s)
            self.metrics.record(
                replica,
                e2e_request_latency_seconds=now_s - answer.sent_s,
                request_time_per_output_token_seconds=(now_s - answer.first_s) / max(answer.tokens - 1, 1),
                request_queue_time_seconds=queue_s,
                request_inference_time_seconds=prefill_s + decode_s,
                request_prefill_time_seconds=prefill_s,
                request_decode_time_seconds=decode_s,
                request_prompt_tokens=answer.prompt_tokens,
                request_generation_tokens=answer.tokens,
            )

    def _end(self, answer: Answer, reason: str) -> None:
        answer.ended = True
        answer.news.set()
        self._links[answer.replica].load -= 1
        self.metrics.end(answer.replica, reason)
