"""Starts, watches and stops a vLLM server of our own.

The server runs under a keeper (`draftcast.calibration.live.keeper`): when this process ends in whatever way, the
server does too. Knows nothing of scenarios: it is given flags.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from draftcast.calibration.live.http import get
from draftcast.errors import InputError, LiveError

HOST = "127.0.0.1"
_MODULE = ("-m", "vllm.entrypoints.openai.api_server")
STOP_TIMEOUT_S = 30.0
_EXCEPTION = re.compile(r"\w*(Error|Exception): ")
_POLL_S = 0.5
_TAIL_LINES = 15
# What every server of ours gets: the iteration log with stamps of milliseconds, and nothing it need not ask outside.
_LOG_FLAGS = ("--enable-logging-iteration-details", "--logging-config.formatter", "json")
_ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",  # for /server_info, the resolved configuration; the server listens on 127.0.0.1 only
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "INFO",  # a quieter level, inherited from the caller's environment, hides the iteration lines
}
# GiB of KV cache where the user's environment says nothing: vLLM's own default on CPUs takes half of the memory.
_CPU_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1"}


@dataclass(frozen=True)
class ServerFlags:
    """A vLLM server to be started.

    Attributes:
        model: folder or Hugging Face id.
        flags: of ``vllm serve`` without the model, host and port.
        vllm: how vLLM's server is called, e.g. ``("vllm", "serve")``; empty: found in this environment or on PATH.
        cpu: the server computes on the CPU.
        port: None: a free one.
    """

    model: str
    flags: tuple[str, ...] = ()
    vllm: tuple[str, ...] = ()
    cpu: bool = False
    port: int | None = None

    def command(self, port: int) -> list[str]:
        """The whole command line."""
        program = list(self.vllm or find_vllm())
        model = [self.model] if program[-1] == "serve" else ["--model", self.model]
        return [*program, *model, "--host", HOST, "--port", str(port), *self.flags, *_LOG_FLAGS]

    def environment(self) -> dict[str, str]:
        """What is set for the server beside this process's own environment."""
        offline = {"HF_HUB_OFFLINE": "1"} if Path(self.model).is_dir() else {}
        on_cpu = {key: os.environ.get(key, value) for key, value in _CPU_ENVIRONMENT.items()} if self.cpu else {}
        return {**_ENVIRONMENT, **offline, **on_cpu}


@dataclass
class Server:
    """A server that is starting or running; a context manager that stops it.

    Attributes:
        command, environment: as started.
        url: without ``/v1``.
        log: file that takes all it prints.
        cpu: it computes on this host's CPU.
    """

    command: list[str]
    environment: Mapping[str, str]
    url: str
    log: Path
    stop_timeout_s: float
    cpu: bool = False
    _keeper: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @classmethod
    def start(cls, flags: ServerFlags, log: Path, stop_timeout_s: float = STOP_TIMEOUT_S) -> Server:
        """Start it and return at once; `wait_ready` waits.

        Args:
            stop_timeout_s: seconds it has to end after it was asked to; then it is killed.

        Raises:
            InputError: the port is in use, no vLLM is found.
            LiveError: the log cannot be written.
        """
        port = flags.port if flags.port is not None else _free_port()
        if flags.port is not None:
            _check_free(flags.port)
        server = cls(flags.command(port), flags.environment(), f"http://{HOST}:{port}", log, stop_timeout_s, flags.cpu)
        try:
            file = log.open("ab")
        except OSError as error:
            raise LiveError(f"{log}: cannot be written: {error.strerror}") from None
        with file:
            server._keeper = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "draftcast.calibration.live.keeper",
                    str(server.stop_timeout_s),
                    *server.command,
                ],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **server.environment},
            )
        return server

    @property
    def shown(self) -> str:
        """Environment and command line, to be pasted into a shell."""
        return " ".join(
            [*(f"{key}={shlex.quote(value)}" for key, value in self.environment.items()), shlex.join(self.command)]
        )

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._keeper.poll() if self._keeper is not None else 0

    @property
    def pid(self) -> int | None:
        """Of the process all others of the server descend from; None when it was stopped."""
        return self._keeper.pid if self._keeper is not None else None

    def wait_ready(self, timeout_s: float, waiting: Callable[[float], None] = lambda _: None) -> None:
        """Until it answers ``/health``; ``waiting`` is called with the seconds so far.

        Raises:
            LiveError: it ended, or did not answer in time; the log's last lines are in it.
        """
        start = time.monotonic()
        while (waited_s := time.monotonic() - start) < timeout_s:
            if self.exit_code is not None:
                raise LiveError(self.epitaph("before it was ready"))
            with contextlib.suppress(LiveError):
                get(f"{self.url}/health", timeout_s=2.0)
                return
            waiting(waited_s)
            time.sleep(_POLL_S)
        self.stop()
        raise LiveError(f"the server did not answer within {timeout_s:g} s; {self.last_lines()}")

    def epitaph(self, when: str) -> str:
        """How it ended, for an error: the first exception in the log, which is the cause of the others, and its end."""
        cause = ""
        with contextlib.suppress(OSError), self.log.open(encoding="utf-8", errors="replace") as file:
            cause = next((f": {line.strip()[:300]}" for line in file if _EXCEPTION.match(line)), "")
        return f"the server ended with exit code {self.exit_code} {when}{cause}; {self.last_lines()}"

    def last_lines(self) -> str:
        """The log's last lines, one below the other."""
        try:
            with self.log.open(encoding="utf-8", errors="replace") as file:
                lines = [line.rstrip()[:500] for line in deque(file, _TAIL_LINES)]
        except OSError:
            lines = []
        return "\n  ".join([f"the last lines of {self.log}:", *lines])

    def stop(self) -> None:
        """End it and all processes it started; returns when they are gone."""
        keeper, self._keeper = self._keeper, None
        if keeper is None or keeper.stdin is None:
            return
        with contextlib.suppress(OSError):
            keeper.stdin.close()
        keeper.wait()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def find_vllm() -> tuple[str, ...]:
    """How to call vLLM's server from here.

    Raises:
        InputError: vLLM is neither installed beside draftcast nor on PATH.
    """
    if importlib.util.find_spec("vllm") is not None:
        return (sys.executable, *_MODULE)
    if (program := shutil.which("vllm")) is not None:
        return (program, "serve")
    raise InputError(
        "vLLM is not installed here; say how it is called, e.g. --vllm 'PYTHON -m vllm.entrypoints.openai.api_server', "
        "or give --url of a running server",
        key="vllm",
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _check_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else "0 to 65535 is allowed"
            raise InputError(f"cannot be used: {reason}", key="port", value=port) from None
