"""The replicas of a simulated server, seen from its router: processes, requests on their way, answers.

A request goes to a replica by the scenario's router, which knows how many requests each has. A replica that dies takes
its own requests with it and gets no more.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from draftcast.errors import InputError
from draftcast.scenarios.run.deployment import cached_deployment
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.serve.engine import ring_table
from draftcast.scenarios.serve.front_end import FrontEnd
from draftcast.scenarios.serve.metrics import Metrics
from draftcast.sim.cluster.routers import make_router

COUNTS_TIMEOUT_S = 1.0
_LINE_BYTES = 1 << 24


class Unavailable(Exception):
    """No replica can take a request now; the message says why."""


@dataclass(eq=False)
class Answer:
    """A request and what has come of it; ``news`` is set when something has, and may be shared by several answers."""

    row: int
    replica: int
    prompt_tokens: int
    max_tokens: int
    reason: str  # OpenAI's finish_reason at its end
    news: asyncio.Event
    sent_s: float  # of `time.monotonic`
    tokens: int = 0  # generated so far
    ended: bool = False
    error: str = ""
    first_s: float = 0.0
    last_s: float = 0.0


async def pieces(answers: Sequence[Answer]) -> AsyncIterator[tuple[int, int, Answer]]:
    """(index of the answer, new tokens, answer) as they come, those of a slow reader together; each ends with a piece.

    The answers share ``news``.
    """
    taken = [0] * len(answers)
    unfinished = set(range(len(answers)))
    while unfinished:
        await answers[0].news.wait()
        answers[0].news.clear()
        for index in sorted(unfinished):
            answer = answers[index]
            ended, new = answer.ended, answer.tokens - taken[index]
            taken[index] += new
            if ended:
                unfinished.discard(index)
            if new or ended:
                yield index, new, answer


class _Link:
    """One replica: its process and the messages to and from it (`scenarios/serve/engine.py`)."""

    def __init__(self, scenario: Scenario, speed: float) -> None:
        self.socket, theirs = socket.socketpair()
        command = f"from draftcast.scenarios.serve.engine import run_replica; run_replica({theirs.fileno()})"
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
        self.reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

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


class Fleet:
    """The scenario's replicas; `start` them, then `submit` requests.

    Args:
        speed: simulated seconds per second of the wall clock.
    """

    def __init__(self, scenario: Scenario, speed: float) -> None:
        self.scenario, self.speed = scenario, speed
        self.deployment = cached_deployment(scenario)
        settings, replicas = self.deployment.settings, scenario.cluster.replicas
        table, self._outputs = ring_table(scenario, self.deployment)
        self._priorities = table.priority.tolist()
        self._router = make_router(scenario.cluster.router, table, replicas, scenario.statistics.seed)
        self._routes = self._router.assign().tolist() if self._router.is_static else None
        self._front_end = FrontEnd(scenario, self.deployment)
        self._answers: dict[int, Answer] = {}  # by row; a row is free when its replica says so
        self._number = 0  # of the next request
        self._start_s = 0.0
        cache = {"block_size": settings.block_size, "num_gpu_blocks": settings.num_gpu_blocks}
        cache |= {"enable_prefix_caching": settings.enable_prefix_caching}
        self.metrics = Metrics(
            scenario.engine.model,
            replicas,
            speculates=scenario.speculative_config is not None,
            cache_config={name: str(value) for name, value in cache.items()},
        )
        self._links: list[_Link] = []
        self._listeners: list[asyncio.Task[None]] = []

    @property
    def max_model_len(self) -> int:
        return self.deployment.settings.max_model_len

    @property
    def healthy(self) -> bool:
        return any(link.alive for link in self._links)

    async def start(self) -> None:
        """Start the replicas and the clock. Raises InputError: a replica refuses the scenario."""
        self._links = [_Link(self.scenario, self.speed) for _ in range(self.scenario.cluster.replicas)]
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

    def submit(
        self, prompt_tokens: int, max_tokens: int | None, priority: int | None, news: asyncio.Event, sent_s: float
    ) -> Answer:
        """Send a request that came at ``sent_s``, so that what was done for it since is part of the front end's work;
        without ``max_tokens`` it gets as many as the scenario's workload draws.

        Raises:
            Unavailable: all rows are taken, or all replicas are dead.
        """
        rows = len(self._outputs)
        if len(self._answers) == rows:
            raise Unavailable(f"the server holds {rows} requests at most")
        if not self.healthy:
            raise Unavailable("all replicas have died")
        while (row := self._number % rows) in self._answers:
            self._number += 1
        self._number += 1
        room = self.max_model_len - prompt_tokens
        drawn = int(self._outputs[row])
        output = min(drawn if max_tokens is None else max_tokens, room)
        answer = Answer(
            row, self._choose(row), prompt_tokens, output, "stop" if max_tokens is None else "length", news, sent_s
        )
        self._answers[row] = answer
        link = self._links[answer.replica]
        link.load += 1
        arrival_s = self._front_end.hand_over_s((sent_s - self._start_s) * self.speed, prompt_tokens)
        link.send(
            "submit", row, prompt_tokens, output, self._priorities[row] if priority is None else priority, arrival_s
        )
        return answer

    def _choose(self, row: int) -> int:
        alive = [index for index, link in enumerate(self._links) if link.alive]
        loads = [link.load for link in self._links]
        chosen = self._routes[row] if self._routes is not None else self._router.choose(row, loads)
        return chosen if chosen in alive else min(alive, key=lambda index: loads[index])

    def drop(self, answers: Sequence[Answer]) -> None:
        """The client of these answers is gone: what has not ended is aborted."""
        for answer in answers:
            if not answer.ended:
                self._links[answer.replica].send("abort", answer.row)
                self._end(answer, "abort")

    async def count(self) -> None:
        """Ask the replicas what they count; a replica that does not answer keeps what it said before."""
        asked = [link for link in self._links if link.alive]
        for link in asked:
            link.counted.clear()
            link.send("counts")
        waits = [asyncio.create_task(link.counted.wait()) for link in asked]
        if waits:
            _, late = await asyncio.wait(waits, timeout=COUNTS_TIMEOUT_S)
            for wait in late:
                wait.cancel()

    # ---- what replicas say ----

    async def _listen(self, index: int, link: _Link) -> None:
        try:
            while line := await link.reader.readline():
                kind, *content = json.loads(line)
                if kind == "counts":
                    self.metrics.counts[index] = content[0]
                    link.counted.set()
                else:
                    self._deliver(*content)
        except OSError:
            pass
        link.alive = False
        link.counted.set()
        for row, answer in list(self._answers.items()):
            if answer.replica == index:
                if not answer.ended:
                    answer.error = f"replica {index} has died"
                    self._end(answer, "error")
                del self._answers[row]

    def _deliver(
        self, new: list[tuple[int, int]], ended: list[tuple[int, float, float, float]], free: list[int]
    ) -> None:
        now_s = time.monotonic()
        metrics = self.metrics
        for row, tokens in new:
            answer = self._answers[row]
            if answer.ended:  # aborted since
                continue
            labels = self._labels(answer)
            metrics.generation_tokens.labels(*labels).inc(tokens)
            if answer.tokens:
                metrics.itl_s.labels(*labels).observe(now_s - answer.last_s)
            else:
                answer.first_s = now_s
                metrics.prompt_tokens.labels(*labels).inc(answer.prompt_tokens)
                metrics.ttft_s.labels(*labels).observe(now_s - answer.sent_s)
            answer.tokens += tokens
            answer.last_s = now_s
            answer.news.set()
        for row, *times_s in ended:
            answer = self._answers[row]
            if answer.ended:
                continue
            queue_s, prefill_s, decode_s = (time_s / self.speed for time_s in times_s)
            labels = self._labels(answer)
            metrics.e2el_s.labels(*labels).observe(now_s - answer.sent_s)
            metrics.tpot_s.labels(*labels).observe((now_s - answer.first_s) / max(answer.tokens - 1, 1))
            metrics.queue_s.labels(*labels).observe(queue_s)
            metrics.prefill_s.labels(*labels).observe(prefill_s)
            metrics.decode_s.labels(*labels).observe(decode_s)
            metrics.inference_s.labels(*labels).observe(prefill_s + decode_s)
            self._end(answer, answer.reason)
        for row in free:
            del self._answers[row]

    def _end(self, answer: Answer, reason: str) -> None:
        answer.ended = True
        answer.news.set()
        self._links[answer.replica].load -= 1
        self.metrics.success.labels(*self._labels(answer), reason).inc()

    def _labels(self, answer: Answer) -> tuple[str, str]:
        return self.scenario.engine.model, str(answer.replica)
