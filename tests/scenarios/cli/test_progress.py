"""Progress on standard error: a line every ten seconds where nobody watches a bar, and nothing of it in the answer."""

from __future__ import annotations

import io
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from draftcast.scenarios.cli import main as cli
from draftcast.scenarios.cli import terminal
from draftcast.scenarios.cli.live import live_progress
from draftcast.scenarios.cli.terminal import progress_bar

LINE = re.compile(r"draftcast: (?P<task>[a-z ]+): (?:(?P<share>\d+) % )?after \d+ s")


@pytest.fixture(name="quick")
def quick_fixture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines come fifty times a second."""
    monkeypatch.setattr(terminal, "LINE_EVERY_S", 0.02)


def wait_for(said: Callable[[], str], text: str) -> None:
    deadline = time.monotonic() + 30
    while text not in said():
        assert time.monotonic() < deadline, said()
        time.sleep(0.01)


def test_lines_come_every_ten_seconds() -> None:
    assert terminal.LINE_EVERY_S == 10.0


@pytest.mark.usefixtures("quick")
def test_a_line_tells_share_time_and_state_without_being_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    said: Callable[[], str] = sys.stderr.getvalue  # type: ignore[attr-defined]
    with progress_bar("sizing") as progress:
        wait_for(said, "draftcast: sizing: after ")
        progress(0.4)
        wait_for(said, "draftcast: sizing: 40 % after ")
        progress(0.5, "3 of 6 cells")
        wait_for(said, " s, 3 of 6 cells\n")
    ended = said()
    time.sleep(0.1)
    assert said() == ended, "it stops with the work"


@pytest.mark.usefixtures("quick")
def test_elapsed_time_is_that_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([100.0, 120.4])
    monkeypatch.setattr(terminal, "time", type("Clock", (), {"monotonic": staticmethod(lambda: next(now))}))
    shown = terminal.ShownProgress("simulating", lambda share, state: None)
    shown(0.4)
    assert shown.line() == "draftcast: simulating: 40 % after 20 s"


def test_no_line_before_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar() as progress:
        progress(0.5)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_bar_that_is_gone_when_done(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    screen = sys.stderr
    with progress_bar("sizing") as progress:
        progress(0.4, "[12 of 30]")
        time.sleep(0.3)
    drawn = screen.getvalue()  # type: ignore[attr-defined]
    assert "sizing" in drawn
    assert "40%" in drawn
    assert "[12 of 30]" in drawn
    assert not LINE.search(drawn)


@pytest.mark.usefixtures("quick")
def test_a_live_run_tells_requests_and_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    said: Callable[[], str] = sys.stderr.getvalue  # type: ignore[attr-defined]
    with progress_bar("live run") as shown:
        progress = live_progress(shown)
        progress.say("vllm serve x")
        progress.waiting(3.0)
        wait_for(said, " s, server starting\n")
        progress.load(20, {"sent": 9, "done": 4, "failed": 1, "tokens": 77})
        wait_for(said, " s, 4 of 20 requests, 4 running, 77 tokens, 1 failed\n")
    assert re.search(r"^draftcast: live run: after \d+ s, server starting$", said(), re.MULTILINE)
    assert re.search(r"^draftcast: live run: 25 % after \d+ s, 4 of 20 requests", said(), re.MULTILINE)
    assert "\nvllm serve x\n" in f"\n{said()}"


SMALL = ["--set", "workload.num_requests=60", "--replications", "2"]
COMMANDS: dict[str, tuple[str, list[str]]] = {
    "simulate": ("simulating", ["simulate", "default", *SMALL, "--json"]),
    "cutover": ("simulating", ["cutover", "default", "--over", "acceptance", "--budget", "2000", *SMALL, "--json"]),
    "compare": ("simulating", ["compare", "default", "--policies", "fixed,off", *SMALL, "--json"]),
    "recommend": ("simulating", ["recommend", "default", "--max-k", "2", *SMALL, "--json"]),
    "plan": ("simulating", ["plan", "default", "--rate", "10", "--slo", "tpot:p95<100ms", *SMALL, "--json"]),
    "sweep": ("sweep", ["sweep", "default", "--grid", "k=0,1", "--workers", "1", *SMALL, "--json"]),
    "evidence": ("forecasting", ["evidence", "--source", "PR 16937", "--json"]),
}


@pytest.mark.usefixtures("quick", "rough_capacity", "sweeps_here")
@pytest.mark.parametrize("command", COMMANDS)
def test_every_long_command_shows_it_and_keeps_json_clean(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, arguments = COMMANDS[command]
    if command == "sweep":
        arguments = [*arguments, "--out", str(tmp_path / "set")]
    result = CliRunner().invoke(cli.app, arguments)
    lines = [line for line in map(LINE.match, result.stderr.splitlines()) if line]
    assert lines, result.output
    assert {line["task"] for line in lines} == {task}
    json.loads(result.stdout)
