"""What every command shares: exit codes, progress on standard error, JSON on standard output."""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import typer

from draftcast.errors import InputError, LiveError
from draftcast.files import plain
from draftcast.sim.compiled.cache import tell_of_compiling

if TYPE_CHECKING:
    from draftcast.scenarios.compare.verdict import Side
    from draftcast.scenarios.sweep.result import SweepCell

BAD_INPUT, SLO_UNMET, UNSTABLE, UNDECIDED, LIVE_FAILED, CELLS_FAILED = range(2, 8)
INTERRUPTED, TERMINATED = 130, 143
"""As shells report Ctrl-C and SIGTERM."""
LINE_EVERY_S = 10.0
"""Between two lines of progress where standard error is no terminal."""


def exit_without_figures(answers: "Sequence[Side | SweepCell]") -> None:
    """End a command no figures of which hold: with `UNSTABLE` where all is overloaded, else with `UNDECIDED`."""
    if not any(answer.has_figures for answer in answers):
        raise typer.Exit(UNSTABLE if all(answer.state == "overloaded" for answer in answers) else UNDECIDED)


class ShownProgress:
    """How far a command is, on standard error: a bar on a terminal, elsewhere a line every ten seconds."""

    def __init__(self, task: str, redraw: Callable[[float | None, str], None]) -> None:
        self.task, self._redraw = task, redraw
        self._began_s = time.monotonic()
        self._share: float | None = None
        self._state = ""

    def __call__(self, share: float | None, state: str = "") -> None:
        """Show the share of the work that is done, 0 to 1 (None: unknown), and what else there is to say."""
        self._share, self._state = share, state
        self._redraw(share, state)

    def say(self, text: str) -> None:
        """Show a line that stays."""
        print(f"{text}\n", end="", file=sys.stderr, flush=True)  # at once: another thread may be saying something

    def line(self) -> str:
        """``draftcast: simulating: 40 % after 20 s``."""
        done = "" if self._share is None else f"{100 * self._share:.0f} % "
        state = f", {self._state}" if self._state else ""
        return f"draftcast: {self.task}: {done}after {time.monotonic() - self._began_s:.0f} s{state}"


@contextmanager
def progress_bar(task: str = "simulating") -> Iterator[ShownProgress]:
    """What it yields is called with the progress, which is shown until the work is done."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        shown = ShownProgress(task, lambda share, state: None)
        done = Event()

        def write_lines() -> None:
            while not done.wait(LINE_EVERY_S):
                shown.say(shown.line())

        # A thread of its own, because some work goes on for minutes without a word.
        lines = Thread(target=write_lines, daemon=True)
        lines.start()
        try:
            yield shown
        finally:
            done.set()
            lines.join()
        return
    columns = (BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("{task.fields[state]}", markup=False))
    with Progress(TextColumn("{task.description}"), *columns, console=console, transient=True) as bar:
        drawn = bar.add_task(task, total=None, state="")

        def redraw(share: float | None, state: str) -> None:
            bar.update(drawn, total=None if share is None else 1.0, completed=share or 0.0, state=state)

        yield ShownProgress(task, redraw)


def print_json(summary: Mapping[str, Any]) -> None:
    """One JSON object on one line; NaN and infinities become null."""
    typer.echo(json.dumps(plain(summary), allow_nan=False))


def print_lines(as_json: bool, summary: Mapping[str, Any], lines: Iterable[Any]) -> None:
    """An answer as one JSON object, or as lines of plain text and what rich draws."""
    if as_json:
        print_json(summary)
        return
    for line in lines:
        if isinstance(line, str):
            typer.echo(line)
        else:
            from draftcast.scenarios.show.tables import make_console

            make_console().print(line)


def run_script(main: Callable[[], None]) -> None:
    """Run a script as the ``draftcast`` command runs: bad input or a failed live run is one line on standard error."""
    tell_of_compiling()
    try:
        main()
    except (InputError, LiveError) as error:
        print(f"draftcast: error: {error}", file=sys.stderr)
        sys.exit(BAD_INPUT if isinstance(error, InputError) else LIVE_FAILED)
