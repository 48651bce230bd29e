"""What the commands of ``draftcast live`` share: options, stopping in order, progress, a run in one line."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftcast.errors import InputError

if TYPE_CHECKING:
    from draftcast.calibration.live.run_directory import LiveRun
    from draftcast.scenarios.cli.terminal import ShownProgress
    from draftcast.scenarios.live.run import Progress

INTERRUPTED, TERMINATED = 130, 143

ScenarioArgument = Annotated[str, typer.Argument(help="A YAML file, or an embedded scenario (draftcast scenarios).")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. engine.block_size=32.")
]
SpeculativeJson = Annotated[
    str | None, typer.Option(metavar="JSON", help="vLLM's --speculative-config, verbatim; null turns it off.")
]
Vllm = Annotated[
    str | None, typer.Option(metavar="COMMAND", help="How vLLM's server is called; found here or on PATH when absent.")
]
ServerArguments = Annotated[
    list[str] | None, typer.Option("--server-arg", metavar="FLAG", help="One more word of our server's command line.")
]
StartTimeout = Annotated[float, typer.Option(help="Seconds a server may take to start.")]
RequestTimeout = Annotated[float, typer.Option(help="Seconds a request may take.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
WarmupRequests = Annotated[int, typer.Option(help="Requests sent before, unrecorded.")]


def summary(recorded: LiveRun) -> dict[str, Any]:
    """Counts of a run: requests, finished, output_tokens, span_s (start to the last answer), acceptance_rates."""
    requests, counted = recorded.requests, recorded.manifest["acceptance"]
    finished = requests["finish_s"].notna()
    return {
        "complete": recorded.complete,
        "requests": len(requests),
        "finished": int(finished.sum()),
        "output_tokens": int(requests["output_tokens"].sum()),
        "span_s": float(requests["finish_s"].max()) if finished.any() else 0.0,
        "acceptance_rates": [n / counted["num_drafts"] for n in counted["per_position"]] if counted else None,
    }


def summary_line(recorded: LiveRun) -> str:
    """One line for people."""
    found, client, known = summary(recorded), recorded.manifest["client"], recorded.manifest["known_continuation"]
    parts = [f"{found['finished']} of {found['requests']} requests"]
    parts.append(f"{found['output_tokens']} tokens in {found['span_s']:.1f} s")
    if client.get("lateness_p99_s") is not None:
        parts.append(f"client late by {client['lateness_p99_s'] * 1e3:.1f} ms (p99)")
    if known is not None:
        parts.append(f"{known['checked_tokens'] - known['wrong_tokens']} of {known['checked_tokens']} tokens as known")
    if found["acceptance_rates"] is not None:
        parts.append(f"acceptance by position {', '.join(f'{rate:.3f}' for rate in found['acceptance_rates'])}")
    return f"{recorded.folder}: {'; '.join(parts)}"


def split_command(text: str | None) -> tuple[str, ...]:
    """The words of a command line; () for None.

    Raises:
        InputError: unbalanced quotes, or no word.
    """
    try:
        words = tuple(shlex.split(text)) if text is not None else ()
    except ValueError as error:
        raise InputError(f"cannot be split into words: {error}", file="--vllm", value=text) from None
    if text is not None and not words:
        raise InputError("must be a command", file="--vllm", value=text)
    return words


def numbers(option: str, text: str, kind: type[Any]) -> list[Any]:
    """Numbers separated by commas.

    Raises:
        InputError: something else between two commas.
    """
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise InputError("must be numbers separated by commas", file=option, value=text) from None


@contextmanager
def stoppable(out: Path) -> Iterator[None]:
    """Ctrl-C and SIGTERM end a live run in order: the server is stopped, the run is kept, the exit code is set."""

    def end(*_: object) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except KeyboardInterrupt as stopped:
        told = isinstance(stopped, _Terminated)
        print(f"draftcast: error: {'told to end' if told else 'interrupted'}; see {out}", file=sys.stderr)
        raise typer.Exit(TERMINATED if told else INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def live_progress(shown: ShownProgress) -> Progress:
    """A live run's progress, shown as every command's is."""
    from draftcast.scenarios.live.run import Progress

    def load(total: int, state: dict[str, Any]) -> None:
        ended = state["done"] + state["failed"]
        failed = f", {state['failed']} failed" if state["failed"] else ""
        shown(
            ended / total,
            f"{state['done']} of {total} requests, {state['sent'] - ended} running, {state['tokens']} tokens{failed}",
        )

    return Progress(say=shown.say, waiting=lambda _: shown(None, "server starting"), load=load)


class _Terminated(KeyboardInterrupt):
    """SIGTERM came."""
