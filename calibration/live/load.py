"""Runs the load client (`draftcast.calibration.live.client`) as a process and watches over it and the server."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Any

from draftcast.errors import InputError, LiveError

_POLL_S = 0.2
_STOP_S = 20.0

Progress = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class LoadPlan:
    """Requests and how they are sent. Lists hold one value per request, in the order of sending.

    Attributes:
        url: of the server, without ``/v1``.
        model: name that the server serves.
        prompts: token ids.
        output_tokens: wanted of each.
        classes: name of each request's class.
        due_s: open loop: when each request is sent, seconds since the start, not falling. None: closed loop.
        concurrency: closed loop: users, each with one request at a time.
        think_s: closed loop: pause before each request after its user's last answer.
        send_for_s: no request is sent later than this; None: all are sent.
        request_timeout_s: a request that takes longer has failed.
        answers: the token ids each request must be answered with; None: not known.
    """

    url: str
    model: str
    prompts: list[list[int]]
    output_tokens: list[int]
    classes: list[str]
    due_s: list[float] | None = None
    concurrency: int | None = None
    think_s: list[float] | None = None
    send_for_s: float | None = None
    request_timeout_s: float = 120.0
    answers: list[list[int]] | None = None

    def __post_init__(self) -> None:
        if (self.due_s is None) == (self.concurrency is None):
            raise InputError("give due_s (open loop) or concurrency (closed loop)", key="due_s", value=self.due_s)
        for name in ("output_tokens", "classes", "due_s", "think_s", "answers"):
            column = getattr(self, name)
            if column is not None and len(column) != len(self.prompts):
                raise InputError(f"one for each of the {len(self.prompts)} prompts is needed", key=name)

    def __len__(self) -> int:
        return len(self.prompts)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> LoadPlan:
        data: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return cls(**data)


def run_load(
    plan: LoadPlan, journal: Path, trouble: Callable[[], str] = lambda: "", progress: Progress = lambda _: None
) -> tuple[dict[str, Any], str]:
    """Send the plan's requests, writing to ``journal``.

    Args:
        trouble: asked five times a second whether the server is in trouble; a text stops the load and is the reason.
        progress: called with sent, done, failed, tokens, time_s twice a second.

    Returns:
        The client's own summary (`Client.summary`), {} when it died without one; and why it did not come to its end,
        "" when it did.

    Raises:
        LiveError: the client cannot be started.
        KeyboardInterrupt, ...: whatever is raised in here; the client is stopped first.
    """
    with TemporaryDirectory(prefix="draftcast-") as folder, TemporaryFile() as errors:
        file = Path(folder) / "plan.json"
        try:
            plan.write(file)
        except OSError as error:
            raise LiveError(f"{file}: cannot be written: {error.strerror}") from None
        command = [sys.executable, "-m", "draftcast.calibration.live.client", str(file), str(journal)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
        lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        reader = threading.Thread(target=_read_lines, args=(process.stdout, lines), daemon=True)
        reader.start()
        try:
            summary, reason = _watch(lines, process, trouble, progress)
        finally:
            _stop(process)
            reader.join(timeout=1.0)
        if not summary and not reason:
            errors.seek(0)
            last = errors.read().decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
            reason = f"the load client ended with exit code {process.returncode}: {last[0]}"
        return summary, reason


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
    assert process.stdin is not None
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
