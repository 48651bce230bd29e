"""What a live run shows while it goes on: a bar on a terminal, else a line now and then; all on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from draftcast.scenarios.live_run import Progress

_LINE_EVERY_S = 10.0


@contextmanager
def shown_progress() -> Iterator[Progress]:
    """A `Progress` that people can read."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines().progress
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None, state="")
        yield Progress(
            say=lambda text: console.print(text, markup=False, highlight=False, soft_wrap=True),
            waiting=lambda _: bar.update(task, description="server starting", total=None, completed=0, state=""),
            load=lambda total, state: bar.update(
                task, description="requests", total=total, completed=state["done"] + state["failed"], state=_text(state)
            ),
        )


class _Lines:
    """For logs: at most one line in ten seconds."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self.progress = Progress(
            say=self._say,
            waiting=lambda seconds: self._now_and_then(f"server starting, {seconds:.0f} s"),
            load=lambda total, state: self._now_and_then(f"{state['done']} of {total} requests, {_text(state)}"),
        )

    def _now_and_then(self, text: str) -> None:
        if time.monotonic() - self._last >= _LINE_EVERY_S:
            self._say(text)

    def _say(self, text: str) -> None:
        self._last = time.monotonic()
        print(text, file=sys.stderr, flush=True)


def _text(state: dict[str, Any]) -> str:
    running = state["sent"] - state["done"] - state["failed"]
    failed = f", {state['failed']} failed" if state["failed"] else ""
    return f"{running} running, {state['tokens']} tokens{failed}"
