"""What a validated sweep came to, read from its report: the same tables, nothing missed hidden, and what ships."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from draftcast.errors import InputError
from draftcast.scenarios.cli.main import main
from draftcast.scenarios.show.validation_sweep_report import bars_line, read_summary, shipped_summaries


def test_the_tables_are_those_of_the_report(sweep_report: Path) -> None:
    found, report = read_summary(sweep_report.read_bytes(), "report"), json.loads(sweep_report.read_text())
    lines = sweep_report.with_suffix(".md").read_text().splitlines()
    assert len(found.tables()) == 5
    for table in found.tables().values():
        assert len(table) > 1
        for row in table:
            assert f"| {' | '.join(row)} |" in lines
    forecasts = [bar for name, bar in report["verdicts"].items() if name != "step_time"]
    of, missed = sum(bar["of"] for bar in forecasts), sum(len(bar["missed"]) for bar in forecasts)
    assert found.head()[1] == f"Of {of} checks {of - missed} hold and {missed} miss their bar."
    # How good the step times are, and how good all else is with a run's own: figures by themselves.
    steps = report["verdicts"]["step_time"]
    assert f"Accuracy of the step times: {steps['held']} of {steps['of']} modes hold their bar." in found.head()
    own = report["verdicts_with_own_step_times"]
    assert set(own) == set(report["verdicts"]) & {"output_throughput", "mean_tpot_s", "mean_e2el_s", "median_ttft_s"}
    held, of = sum(bar["held"] for bar in own.values()), sum(bar["of"] for bar in own.values())
    assert f"Accuracy with the run's own step times: {held} of {of} checks hold." in found.head()
    assert found.runs == len(report["cells"])


def test_what_ships_says_which_command_made_it() -> None:
    shipped = shipped_summaries()
    assert set(shipped) == {"cpu-2-cores", "cpu-2-cores-night"}
    for found in shipped.values():
        assert found.command
        assert found.runs == 65
        assert "known_continuation" not in found.verdicts  # the testbed's text is no forecast
        assert found.known_continuation.wrong_tokens == 0 < found.known_continuation.checked_tokens
        assert all(len(table) > 1 for table in found.tables().values())


def test_the_command_writes_what_can_be_read(
    sweep_report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "summary.json"
    words = [
        "draftcast",
        "live",
        "summary",
        str(sweep_report),
        "--out",
        str(out),
        "--command",
        "benchmarks/live.sh DIR",
    ]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit, match="0"):
        main()
    assert "checks" in capsys.readouterr().out
    assert out.stat().st_size < 0.1 * sweep_report.stat().st_size
    found = read_summary(out.read_bytes(), out.name)
    assert found == read_summary(sweep_report.read_bytes(), sweep_report.name, "benchmarks/live.sh DIR")


def test_a_later_report_is_read(sweep_report: Path) -> None:
    data = json.loads(sweep_report.read_text())
    data["of_a_later_version"] = {"unknown": 1}
    assert read_summary(json.dumps(data), "later.json") == read_summary(sweep_report.read_bytes(), "report")


def test_bounds_beyond_what_was_run_are_told_in_words() -> None:
    (cutover, *_) = next(iter(shipped_summaries().values())).cutovers
    shown = ("above 16", "below 1", "below 1", "above 16", "3", "above 17")
    with_bounds = dataclasses.replace(cutover, shown=shown)
    summary = next(iter(shipped_summaries().values())).model_copy(update={"cutovers": (with_bounds,)})
    (_, row) = list(summary.tables().values())[1]
    assert row[1:5] == ["above 16", "below 1 to above 16", "below 1", "3 to above 17"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "mine.json:1: not valid JSON"),
        (b"[]", "mine.json: must be the report or the summary of a live sweep"),
        (b'{"created_at": "2026"}', "mine.json: draftcast_version: field required"),
    ],
)
def test_what_is_no_report_is_refused_in_a_line(content: bytes, said: str) -> None:
    with pytest.raises(InputError) as refused:
        read_summary(content, "mine.json")
    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)


def test_the_bars_are_named() -> None:
    assert "mean TPOT within 7%" in bars_line()
    assert "throughput within 5%" in bars_line()
