"""A simulated server as a process of its own, and requests to it.

``python simulated_server.py URL COUNT TOKENS`` is a client of so many streams at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from draftcast.calibration.acceptance.metrics import samples

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass
class SimulatedServer:
    url: str
    process: subprocess.Popen[str]

    def open(self, path: str, body: Any = None, data: bytes | None = None) -> Any:
        content = json.dumps(body).encode() if body is not None else data
        request = urllib.request.Request(self.url + path, content, {"Content-Type": "application/json"})
        return OPENER.open(request, timeout=60)

    def get(self, path: str, body: Any = None) -> Any:
        with self.open(path, body) as response:
            return json.load(response)

    def error(self, path: str, body: Any = None, data: bytes | None = None) -> tuple[int, dict[str, Any]]:
        try:
            self.open(path, body, data)
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or '{"error": {}}')["error"]
        return 200, {}

    def events(self, path: str, body: Any) -> list[Any]:
        """The events of a stream, without the last, which says that it is done."""
        with self.open(path, body | {"stream": True}) as response:
            assert response.headers["Content-Type"].startswith("text/event-stream")
            lines = [line.removeprefix(b"data: ").strip() for line in response if line.strip()]
        assert lines.pop() == b"[DONE]"
        return [json.loads(line) for line in lines]

    def metric(self, name: str, **labels: str) -> float:
        with self.open("/metrics") as response:
            text = response.read().decode()
        found = [
            float(value)
            for _, _, value, own in samples(text, "/metrics", [f"vllm:{name}"])
            if labels.items() <= own.items()
        ]
        assert found, name
        return sum(found)

    def replicas(self) -> list[int]:
        """Process ids, in the order of their start."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return sorted(map(int, children.split()))

    def stop(self, how: int = signal.SIGTERM) -> None:
        """Send the signal and wait for the end; open streams do not keep it."""
        self.process.send_signal(how)
        self.process.wait(30)


@contextmanager
def simulated_server(*arguments: str) -> Iterator[SimulatedServer]:
    command = [sys.executable, "-m", "draftcast", "serve", *arguments, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if " at http://127.0.0.1:" not in line:
            raise AssertionError(f"no server: {process.communicate()}")
        yield SimulatedServer(line.split(" at ")[1].split()[0], process)
    finally:
        process.kill()
        process.communicate()


async def stream(url: str, count: int, tokens: int) -> list[int]:
    """Tokens of so many streams at once, by their usage."""
    body = {"prompt": [1] * 20, "max_tokens": tokens, "stream": True, "stream_options": {"include_usage": True}}

    async def one(session: aiohttp.ClientSession) -> int:
        async with session.post(f"{url}/v1/completions", json=body) as response:
            lines = [line async for line in response.content if line.startswith(b"data: {")]
        found: int = json.loads(lines[-1].removeprefix(b"data: "))["usage"]["completion_tokens"]
        return found

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        return await asyncio.gather(*(one(session) for _ in range(count)))


def wait_until(happens: Any, within_s: float = 20.0) -> None:
    end = time.monotonic() + within_s
    while not happens():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.02)


if __name__ == "__main__":
    asyncio.run(stream(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
