"""Runs a simulated server until a signal ends it."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn

from draftcast.errors import InputError
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.serve.app import Server
from draftcast.scenarios.serve.fleet import Fleet
from draftcast.scenarios.serve.front_end import Tokens

BACKLOG = 2048
INTERRUPTED = 130


def run_server(
    scenario: Scenario, host: str, port: int, speed: float, tokenizer: Path | None, tell: Callable[[str], None]
) -> None:
    """Serve the scenario at ``host:port`` (0: a free one); ``tell`` gets the address when requests can come.

    Raises:
        InputError: the address cannot be used, the scenario or the tokenizer is refused.
    """
    # A stream is a file; the soft limit is often 1,024.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    tokens = Tokens(tokenizer)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        place = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        raise InputError(f"cannot be used: {error}", file="--port", value=f"{host}:{port}") from None
    try:
        asyncio.run(_serve(Fleet(scenario, speed), tokens, place, tell))
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)  # to take down compiled code in order takes a second


async def _serve(fleet: Fleet, tokens: Tokens, place: socket.socket, tell: Callable[[str], None]) -> None:
    config = uvicorn.Config(
        Server(fleet, tokens).app(),
        lifespan="off",
        log_level="critical",
        access_log=False,
        timeout_graceful_shutdown=0,  # streams may have minutes to go
        backlog=BACKLOG,
    )
    try:
        await fleet.start()
        host, port = place.getsockname()[:2]
        tell(f"http://{f'[{host}]' if ':' in host else host}:{port}")
        await uvicorn.Server(config).serve(sockets=[place])
    finally:
        fleet.stop()
