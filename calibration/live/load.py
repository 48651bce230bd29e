"""Runs the load client (`draftcast.calibration.live.client`) as a process and watches over it and the server."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

from draftcast.errors import LiveError
from draftcast.files import write_text

_STOP_S = 20.0

LoadProgress = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class LoadPlan:
    """Requests and how they are sent: an open loop (``due_s``) or a closed one (``concurrency``).

    Lists hold one value per request, in the order of sending.
    """

    url: str  # of the server, without /v1
    model: str  # name that the server serves
    prompts: list[list[int]]  # token ids
    output_tokens: list[int]  # wanted of each
    classes: list[str]  # name of each request's class
    due_s: list[float] | None = None  # when each request is sent, seconds since the start, not falling
    concurrency: int | None = None  # users, each with one request at a time
    think_s: list[float] | None = None  # closed loop: pause before each request after its user's last answer
    send_for_s: float | None = None  # no request is sent later than this; None: all are sent
    request_timeout_s: float = 120.0  # a request that takes longer has failed
    answers: list[list[int]] | None = None  # token ids each request must be answered with; None: not known

    def __len__(self) -> int:
        return len(self.prompts)


def run_load(
    plan: LoadPlan, journal: Path, trouble: Callable[[], str] = lambda: "", progress: LoadProgress = lambda _: None
) -> tuple[dict[str, Any], str]:
    """The client's own summary (`Client.summary`), {} when it died without one, and why it stopped early, or "".

    Sends the plan's requests, writing to ``journal``. Twice a second ``trouble`` is asked whether the server is in
    trouble (a text stops the load and is the reason), and ``progress`` gets sent, done, failed, tokens, time_s.

    Raises LiveError: the plan cannot be written; whatever is raised in here, once the client is stopped.
    """
    summary: dict[str, Any] = {}
    reason = ""
    with TemporaryDirectory(prefix="draftcast-") as folder, TemporaryFile() as errors:
        file = Path(folder) / "plan.json"
        write_text(file, json.dumps(asdict(plan)), LiveError)
        with subprocess.Popen(
            [sys.executable, "-m", "draftcast.calibration.live.client", str(file), str(journal)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        ) as process:
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    state = json.loads(line)
                    if "summary" in state:
                        summary, reason = state["summary"], reason or state["reason"]
                        break
                    progress(state)
                    if not reason and (reason := trouble()):
                        process.terminate()
            finally:
                # The client ends when its standard input closes; the journal is whole then.
                try:
                    process.communicate(timeout=_STOP_S)
                except subprocess.TimeoutExpired:
                    process.kill()
        if not summary and not reason:
            errors.seek(0)
            last = errors.read().decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
            reason = f"the load client ended with exit code {process.returncode}: {last[0]}"
        return summary, reason
