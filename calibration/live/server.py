"""Starts, watches and stops a vLLM server of our own, and asks a running server what it is.

The server runs under a keeper (`draftcast.calibration.live.keeper`): when this process ends in whatever way, the
server does too. Knows nothing of scenarios: it is given flags. ``/server_info`` tells everything of a server (vLLM in
development mode, as ours are started); else ``/metrics`` and ``/v1/models`` tell what they know, and the rest is null.
"""

import contextlib
import http.client
import importlib.util
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from draftcast.calibration.acceptance.metrics import samples
from draftcast.errors import InputError, LiveError
from draftcast.files import picked, value_at, without_secrets
from draftcast.yaml_text import yaml_beside

HOST = "127.0.0.1"
STOP_TIMEOUT_S = 30.0  # for a server to end after it was asked to; then it is killed
_EXCEPTION = re.compile(r"\w*(Error|Exception): ")
_POLL_S = 0.5
_TAIL_LINES = 15
KNOWN: dict[str, Any] = yaml_beside(__file__, "server_config.yaml")
CONFIG: dict[str, list[str]] = KNOWN["asked"]


@dataclass(frozen=True)
class ServerFlags:
    model: str  # folder or Hugging Face id
    flags: tuple[str, ...] = ()  # of ``vllm serve`` without the model, host and port
    vllm: tuple[str, ...] = ()  # how vLLM's server is called, e.g. ``("vllm", "serve")``; empty: looked for
    cpu: bool = False  # the server computes on the CPU
    port: int | None = None  # None: a free one

    def command(self, port: int) -> list[str]:
        program = list(self.vllm or find_vllm())
        model = [self.model] if program[-1] == "serve" else ["--model", self.model]
        return [*program, *model, "--host", HOST, "--port", str(port), *self.flags, *KNOWN["started"]["flags"]]

    def environment(self) -> dict[str, str]:
        """What is set for the server beside this process's own environment."""
        offline = {"HF_HUB_OFFLINE": "1"} if Path(self.model).is_dir() else {}
        # GiB of KV cache where the user's environment says nothing: vLLM's own default takes half of the memory.
        on_cpu = {"VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1")} if self.cpu else {}
        return {**KNOWN["started"]["environment"], **offline, **on_cpu}


@dataclass
class EngineServer(contextlib.AbstractContextManager["EngineServer"]):
    """A server that is starting or running; a context manager that stops it."""

    command: list[str]  # as started
    environment: Mapping[str, str]  # as started
    url: str  # without ``/v1``
    log: Path  # file that takes all it prints
    _keeper: subprocess.Popen[bytes] = field(repr=False)

    @classmethod
    def start(cls, flags: ServerFlags, log: Path) -> Self:
        """Start it and return at once; `wait_ready` waits.

        Raises InputError: the port is in use, no vLLM is found; LiveError: the log cannot be written.
        """
        port = _port(flags.port)
        command, environment = flags.command(port), flags.environment()
        try:
            file = log.open("ab")
        except OSError as error:
            raise LiveError(f"{log}: cannot be written: {error.strerror}") from None
        with file:
            keeper = subprocess.Popen(
                [sys.executable, "-m", "draftcast.calibration.live.keeper", str(STOP_TIMEOUT_S), *command],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **environment},
            )
        return cls(command, environment, f"http://{HOST}:{port}", log, keeper)

    @property
    def shown(self) -> str:
        """Environment and command line, to be pasted into a shell."""
        environment = (f"{key}={shlex.quote(value)}" for key, value in self.environment.items())
        return " ".join([*environment, shlex.join(self.command)])

    @property
    def exit_code(self) -> int | None:
        return self._keeper.poll()

    @property
    def pid(self) -> int:
        """Of the process all others of the server descend from."""
        return self._keeper.pid

    def wait_ready(self, timeout_s: float, waiting: Callable[[float], None] = lambda _: None) -> None:
        """Until it answers ``/health``; ``waiting`` is called with the seconds so far.

        Raises LiveError: it ended, or did not answer in time; the log's last lines are in it.
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
        lines: list[str] = []
        with contextlib.suppress(OSError), self.log.open(encoding="utf-8", errors="replace") as file:
            lines = [line.rstrip()[:500] for line in deque(file, _TAIL_LINES)]
        return "\n  ".join([f"the last lines of {self.log}:", *lines])

    def stop(self) -> None:
        """End it and all processes it started; returns when they are gone."""
        assert self._keeper.stdin is not None
        with contextlib.suppress(OSError):
            self._keeper.stdin.close()
        self._keeper.wait()

    def __exit__(self, *_: object) -> None:
        self.stop()


def find_vllm() -> tuple[str, ...]:
    """How to call vLLM's server. Raises InputError: it is neither installed beside draftcast nor on PATH."""
    if importlib.util.find_spec("vllm") is not None:
        return (sys.executable, "-m", "vllm.entrypoints.openai.api_server")
    if (program := shutil.which("vllm")) is not None:
        return (program, "serve")
    raise InputError(
        "vLLM is not installed here; say how it is called, e.g. --vllm 'PYTHON -m vllm.entrypoints.openai.api_server', "
        "or give --url of a running server",
        key="vllm",
    )


def _port(port: int | None) -> int:
    """A port that can be used: the wanted one, or any that is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port or 0))
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else "0 to 65535 is allowed"
            raise InputError(f"cannot be used: {reason}", key="port", value=port) from None
        return int(probe.getsockname()[1])


# Servers here are named by the user; a proxy in the environment is for elsewhere.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def fetched(
    url: str, timeout_s: float, opener: urllib.request.OpenerDirector = _OPENER, most: int | None = None
) -> bytes:
    """The answer's first ``most`` bytes. Raises LiveError: no answer, or one that is not 200; the address is named."""
    try:
        with opener.open(url, timeout=timeout_s) as response:
            return bytes(response.read(most))
    except urllib.error.HTTPError as error:
        raise LiveError(f"HTTP {error.code}", file=url) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise LiveError(f"no answer: {getattr(reason, 'strerror', None) or reason}", file=url) from None


def get(url: str, timeout_s: float = 10.0) -> str:
    """The answer's text. Raises LiveError: as `fetched`."""
    return fetched(url, timeout_s).decode("utf-8", errors="replace")


def get_json(url: str, timeout_s: float = 10.0) -> Any:
    """The answer's JSON. Raises LiveError: as `get`, or the answer is not JSON."""
    try:
        return json.loads(get(url, timeout_s))
    except ValueError:
        raise LiveError(f"{url}: the answer is not JSON; is it a vLLM server?") from None


@dataclass(frozen=True)
class RunningServer:
    """A server that answers, and what it says of itself."""

    url: str  # without ``/v1``
    model: str  # the name it serves
    version: str  # "" where it does not say
    config: dict[str, Any]  # see `CONFIG`, None: not known
    log: Path | None = None  # its log, growing; None: not here
    server: EngineServer | None = None  # where we started it

    @classmethod
    def of(cls, url: str, log: Path | None = None, server: EngineServer | None = None) -> Self:
        """Ask the server at ``url``. Raises LiveError: nobody answers there, or not as vLLM does."""
        try:
            first = get_json(f"{url}/v1/models")["data"][0]
            model = str(first["id"])
        except (TypeError, KeyError, IndexError):
            raise LiveError(f"{url}/v1/models: no model in the answer; is it a vLLM server?") from None
        config: dict[str, Any] = dict.fromkeys(name for names in CONFIG.values() for name in names)
        config["max_model_len"] = first.get("max_model_len")
        version = ""
        with contextlib.suppress(LiveError):
            version = str(get_json(f"{url}/version")["version"])
        with contextlib.suppress(LiveError, InputError):
            config |= _from_metrics(get(f"{url}/metrics"))
        with contextlib.suppress(LiveError):
            # The first answer also collects facts of the system, which takes its time.
            config |= _from_server_info(get_json(f"{url}/server_info?config_format=json", timeout_s=120.0))
        return cls(url, model, version, config, log, server)

    def trouble(self) -> str:
        """Why the server cannot go on; "" while it can, as far as can be told."""
        return "" if self.server is None or self.server.exit_code is None else self.server.epitaph("during the run")

    def manifest(self) -> dict[str, Any]:
        return {
            "command": without_secrets(self.server.command) if self.server is not None else [],
            "environment": dict(self.server.environment) if self.server is not None else {},
            "url": self.url,
            "log": self.log is not None,
            **picked(self, "model version config"),
        }


def _from_metrics(text: str) -> dict[str, Any]:
    labels = next((labels for *_, labels in samples(text, "/metrics", ["vllm:cache_config_info"])), {})
    sizes = ("num_gpu_blocks", "block_size")
    config: dict[str, Any] = {name: int(labels[name]) for name in sizes if labels.get(name, "").isdigit()}
    if labels.get("enable_prefix_caching") in ("True", "False"):
        config["enable_prefix_caching"] = labels["enable_prefix_caching"] == "True"
    return config


def _from_server_info(info: Any) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for section, names in CONFIG.items():
        settings = value_at(info, f"vllm_config.{section}")
        if isinstance(settings, Mapping):
            keys = {name: "policy" if name == "scheduling_policy" else name for name in names}
            config |= {name: settings[key] for name, key in keys.items() if key in settings}
    speculative = value_at(info, "vllm_config.speculative_config")
    if isinstance(speculative, Mapping):
        config["speculative_config"] = {key: speculative.get(key) for key in KNOWN["speculative"]}
    return config
