"""The load client: a process of its own that sends a plan's requests and writes down every piece of every answer.

``python -m draftcast.calibration.live.client PLAN JOURNAL`` reads a `LoadPlan`, writes the lines of a run's journal
(`draftcast.calibration.live.run_directory`), prints a JSON line of progress twice a second and, last, the summary of
itself. It measures how late it was: from a request's due time to the moment its last byte was handed to the system, and
how long the loop kept a timer waiting. It ends when the pipe on standard input closes, so it never outlives who started
it. Exit codes: 0 the plan was carried out, whatever became of single requests; 3 the server is gone; 4 the journal
cannot be written; 143 told to stop. The journal is whole in each case.
"""

import asyncio
import contextlib
import json
import math
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp

from draftcast.calibration.journal import Journal
from draftcast.calibration.live.load import LoadPlan
from draftcast.errors import LiveError

DONE, SERVER_GONE, DISK_REFUSED, STOPPED = 0, 3, 4, 143
PROGRESS_S = 0.5
_TIMER_S = 0.02  # pause of the timer whose lateness is the loop's
_HEALTH_TIMEOUT_S = 5.0


class ServerGone(Exception):
    """The server refuses connections and does not answer ``/health``."""


class _Failed(Exception):
    """A request failed; the message says how."""


class Client:
    """One run of a plan; ``journal`` is open and flushed at every progress line."""

    def __init__(self, plan: LoadPlan, journal: Journal) -> None:
        self._plan = plan
        self._journal = journal
        self._counts = dict.fromkeys(("sent", "done", "failed", "tokens"), 0)
        self._lateness_s: list[float] = []
        self._timer_lateness_s: list[float] = []
        self._start = self._start_unix_s = 0.0
        # Encoded ahead of time: nothing of this stands between a request's due time and its sending.
        options = {"include_usage": True, "continuous_usage_stats": True}
        shared = {"model": plan.model, "temperature": 0, "ignore_eos": True, "stream": True}
        shared |= {"stream_options": options, "return_token_ids": True}
        self._bodies = [
            json.dumps({**shared, "prompt": prompt, "max_tokens": outputs}).encode()
            for prompt, outputs in zip(plan.prompts, plan.output_tokens, strict=True)
        ]

    async def run(self) -> None:
        """Carry out the plan. Raises a group of LiveError (the journal cannot be written) or `ServerGone`."""
        trace = aiohttp.TraceConfig()
        trace.on_request_chunk_sent.append(self._on_sent)
        timeout = aiohttp.ClientTimeout(total=self._plan.request_timeout_s)
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=timeout, trace_configs=[trace], read_bufsize=2**18
        ) as self._session:
            self._start, self._start_unix_s = time.perf_counter(), time.time()
            async with asyncio.TaskGroup() as group:
                watchers = [group.create_task(work) for work in (self._report(), self._watch_timer())]
                await self._load()
                for watcher in watchers:
                    watcher.cancel()

    def summary(self) -> dict[str, Any]:
        """What the client says of itself: its start on the wall clock, its counts and its lateness."""
        lateness: dict[str, float | None] = {}
        for name, values in (("lateness", self._lateness_s), ("timer_lateness", self._timer_lateness_s)):
            ordered = sorted(values)
            for label, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
                lateness[f"{name}_{label}_s"] = ordered[math.ceil(share * len(ordered)) - 1] if ordered else None
        return {
            "start_unix_s": self._start_unix_s,
            **{name: self._counts[name] for name in ("sent", "done", "failed")},
            "cpu_s": time.process_time(),
            "wall_s": self._now() if self._start else 0.0,
            **lateness,
        }

    def _now(self) -> float:
        return time.perf_counter() - self._start

    async def _load(self) -> None:
        """The open loop or the closed one."""
        requests = iter(range(len(self._plan)))
        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._plan.concurrency or 0, len(self._plan))):
                group.create_task(self._user(requests))
            for request_id, due_s in enumerate(self._plan.due_s or ()):
                if not await self._is_time(due_s):
                    break
                group.create_task(self._request(request_id, due_s))

    async def _user(self, requests: Iterator[int]) -> None:
        answered_s = 0.0
        for request_id in requests:
            due_s = answered_s + (self._plan.think_s[request_id] if self._plan.think_s is not None else 0.0)
            if not await self._is_time(due_s):
                return
            await self._request(request_id, due_s)
            answered_s = self._now()

    async def _is_time(self, due_s: float) -> bool:
        """Wait until then; False at once where nothing is sent so late."""
        if self._plan.send_for_s is not None and due_s > self._plan.send_for_s:
            return False
        # A sleep may end a little early by the clock: wait for what is left.
        while (wait_s := due_s - self._now()) > 0:
            await asyncio.sleep(wait_s)
        return True

    async def _request(self, request_id: int, due_s: float) -> None:
        plan, journal, wanted = self._plan, self._journal, self._plan.output_tokens[request_id]
        journal.append(["r", request_id, plan.classes[request_id], due_s, len(plan.prompts[request_id]), wanted])
        last_s = 0.0  # when the last token came
        answer = _Answer(plan.answers[request_id] if plan.answers is not None else None)
        try:
            async with self._session.post(
                f"{plan.url}/v1/completions",
                data=self._bodies[request_id],
                headers={"Content-Type": "application/json"},
                trace_request_ctx=(request_id, due_s),
            ) as response:
                if response.status != 200:
                    raise _Failed(f"HTTP {response.status}: {_message(await response.text())}")
                async for piece in response.content.iter_any():
                    now_s = self._now()
                    for tokens in answer.take(piece):
                        last_s = now_s
                        journal.append(["c", request_id, now_s, tokens])
                        self._counts["tokens"] += tokens
            if answer.tokens != wanted:
                raise _Failed(f"the answer ended after {answer.tokens} of {wanted} tokens")
            journal.append(["f", request_id, last_s, answer.wrong_tokens])
            self._counts["done"] += 1
        except asyncio.CancelledError:
            self._fail(request_id, "stopped")
            raise
        except TimeoutError:
            came = f"{answer.tokens} of {wanted} tokens"
            self._fail(request_id, f"timed out after {plan.request_timeout_s:g} s with {came}")
        except _Failed as error:
            self._fail(request_id, str(error))
        except aiohttp.ClientError as error:
            self._fail(request_id, f"{type(error).__name__}: {error}")
            if not await self._healthy():
                raise ServerGone from None

    def _fail(self, request_id: int, message: str) -> None:
        self._journal.append(["e", request_id, self._now(), " ".join(message.split())[:300]])
        self._counts["failed"] += 1

    async def _healthy(self) -> bool:
        timeout = aiohttp.ClientTimeout(total=_HEALTH_TIMEOUT_S)
        try:
            async with self._session.get(f"{self._plan.url}/health", timeout=timeout) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def _on_sent(self, _: Any, context: Any, __: Any) -> None:
        """The request's body, or its first part, goes to the system."""
        if context.trace_request_ctx is None:
            return
        (request_id, due_s), context.trace_request_ctx = context.trace_request_ctx, None
        now_s = self._now()
        self._journal.append(["s", request_id, now_s])
        self._counts["sent"] += 1
        self._lateness_s.append(now_s - due_s)

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            self._journal.flush()
            print(json.dumps({**self._counts, "time_s": self._now()}), flush=True)

    async def _watch_timer(self) -> None:
        while True:
            began_s = time.perf_counter()
            await asyncio.sleep(_TIMER_S)
            self._timer_lateness_s.append(time.perf_counter() - began_s - _TIMER_S)


class _Answer:
    """A streamed answer: server-sent events, pieces of which come cut anywhere; ``tokens`` so far."""

    def __init__(self, expected: list[int] | None) -> None:
        self.tokens = 0
        self._expected = expected
        self._ids: list[int] | None = []
        self._rest = b""

    @property
    def wrong_tokens(self) -> int:
        """Tokens that differ from the expected ones, missing ones included; -1: not known."""
        if self._expected is None or self._ids is None:
            return -1
        same = sum(a == b for a, b in zip(self._ids, self._expected, strict=False))
        return max(len(self._ids), len(self._expected)) - same

    def take(self, piece: bytes) -> Iterator[int]:
        """Tokens of each event that ``piece`` completes, events without tokens left out."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
                before = self.tokens
                self._event(data)
                if self.tokens > before:
                    yield self.tokens - before

    def _event(self, data: bytes) -> None:
        try:
            event = json.loads(data)
        except ValueError:
            raise _Failed(f"the server sent what is not JSON: {data[:80]!r}") from None
        if "error" in event:
            raise _Failed(f"the server says: {_message(data)}")
        choices = event.get("choices") or []
        ids = choices[0].get("token_ids") if choices else []
        if ids is not None:
            self.tokens += len(ids)
            if self._ids is not None:
                self._ids += ids
            return
        # A server that returns no token ids counts them in the usage of every event.
        self._ids = None
        usage = event.get("usage")
        self.tokens = usage["completion_tokens"] if usage else self.tokens + 1


def _message(answer: str | bytes) -> str:
    """What a server says is wrong: the message of its JSON, or all of its text."""
    try:
        event = json.loads(answer)
    except ValueError:
        return str(answer)
    error = event.get("error", event) if isinstance(event, dict) else event
    return str(error.get("message", error) if isinstance(error, dict) else error)


async def _main(plan: LoadPlan, journal: Journal) -> int:
    client = Client(plan, journal)
    loop = asyncio.get_running_loop()
    work = asyncio.current_task()
    assert work is not None
    loop.add_signal_handler(signal.SIGTERM, work.cancel)
    # Whoever started this holds the other end; when it is gone, so is the need for a load.
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    parent = asyncio.create_task(reader.read())
    parent.add_done_callback(lambda task: None if task.cancelled() else work.cancel())
    code, reason = DONE, ""
    try:
        await client.run()
    except* asyncio.CancelledError:
        code, reason = STOPPED, "stopped"
    except* ServerGone:
        code, reason = SERVER_GONE, "the server is gone: it refuses connections"
    except* LiveError as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):  # of the requests' tasks, inside the run's
            error = error.exceptions[0]
        code, reason = DISK_REFUSED, str(error)
    parent.cancel()
    with contextlib.suppress(LiveError):
        journal.close()
    with contextlib.suppress(OSError):
        print(json.dumps({"summary": client.summary(), "reason": reason}), flush=True)
    return code


if __name__ == "__main__":
    plan_file, journal_file = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who started this
    load_plan = LoadPlan(**json.loads(Path(plan_file).read_text("utf-8")))
    sys.exit(asyncio.run(_main(load_plan, Journal(Path(journal_file)))))
