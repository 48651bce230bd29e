"""Runs the load client (`draftcast.calibration.live.client`) as a process and watches over it and the server."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from draftcast.calibration.live.plan import LoadPlan
from draftcast.errors import LiveError

_POLL_S = 0.2
_STOP_S = 20.0

Progress = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class LoadResult:
    """What a load came to.

    Attributes:
        summary: the client's own (`Client.summary`); {} when it died without one.
        reason: why it did not come to its end; "" when it did.
    """

    summary: dict[str, Any]
    reason: str


def run_load(
    plan: LoadPlan, journal: Path, trouble: Callable[[], str] = lambda: "", progress: Progress = lambda _: None
) -> LoadResult:
    """Send the plan's requests, writing to ``journal``.

    Args:
        trouble: asked five times a second whether the server is in trouble; a text stops the load and is the reason.
        progress: called with sent, done, failed, tokens, time_s twice a second.

    Raises:
        LiveError: the client cannot be started.
        KeyboardInterrupt, ...: whatever is raised in here; the client is stopped first.
    """
    with TemporaryDirectory(prefix="draftcast-") as folder:
        file = Path(folder) / "plan.json"
        try:
            plan.write(file)
        except OSError as error:
            raise LiveError(f"{file}: cannot be written: {error.strerror}") from None
        command = [sys.executable, "-m", "draftcast.calibration.live.client", str(file), str(journal)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        errors: list[bytes] = []
        readers = [
            threading.Thread(target=_read_lines, args=(process.stdout, lines), daemon=True),
            threading.Thread(target=_read_all, args=(process.stderr, errors), daemon=True),
        ]
        for reader in readers:
            reader.start()
        try:
            summary, reason = _watch(lines, process, trouble, progress)
        finally:
            _stop(process)
            for reader in readers:
                reader.join(timeout=1.0)
        if not summary and not reason:
            last = b"".join(errors).decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
            reason = f"the load client ended with exit code {process.returncode}: {last[0]}"
        return LoadResult(summary, reason)


def _watch(
    lines: queue.Queue[dict[str, Any] | None],
    process: subprocess.Popen[bytes],
    trouble: Callable[[], str],
    progress: Progress,
) -> tuple[dict[str, Any], str]:
    reason = ""
    while True:
        try:
            line = lines.get(timeout=_POLL_S)
        except queue.Empty:
            line = {}
        if line is None:
            return {}, reason
        if "summary" in line:
            return line["summary"], reason or line["reason"]
        if line:
            progress(line)
        if not reason and (reason := trouble()):
            process.terminate()


def _stop(process: subprocess.Popen[bytes]) -> None:
    """The client ends when its standard input closes; the journal is whole then."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _read_lines(stream: IO[bytes] | None, lines: queue.Queue[dict[str, Any] | None]) -> None:
    for raw in stream or ():
        with contextlib.suppress(ValueError):
            lines.put(json.loads(raw))
    lines.put(None)


def _read_all(stream: IO[bytes] | None, kept: list[bytes]) -> None:
    kept.extend(stream or ())
