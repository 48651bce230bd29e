"""What every command shares: its changes of a scenario, a progress bar on standard error, JSON on standard output."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import typer


def asked_changes(overrides: list[str] | None, seed: int | None, replications: int | None) -> list[str]:
    """``--set``, ``--seed`` and ``--replications`` of a command line as changes of a scenario, in this order."""
    changes = list(overrides or [])
    changes += [f"statistics.seed={seed}"] if seed is not None else []
    return changes + ([f"statistics.replications={replications}"] if replications is not None else [])


@contextmanager
def progress_bar(task: str = "simulating") -> Iterator[Callable[[float], None]]:
    """A bar on standard error, gone when done; nothing at all when that is not a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        shown = bar.add_task(task, total=1.0)
        yield lambda share: bar.update(shown, completed=share)


def print_json(summary: Mapping[str, Any]) -> None:
    """One JSON object on one line; NaN and infinities become null."""
    from draftcast.scenarios.run_directory import plain

    typer.echo(json.dumps(plain(summary), allow_nan=False))
