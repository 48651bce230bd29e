"""Answers behind the pages: made once whoever asks, side by side, and the same as a run from the command line."""

from __future__ import annotations

import gc
import json
import math
import shlex
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
from typer.testing import CliRunner

from draftcast.dashboards.session import answers as module
from draftcast.dashboards.session.answers import answers, set_aside, together
from draftcast.dashboards.session.session import ScenarioPair, opened
from draftcast.dashboards.widgets.tiles import (
    LATENCY_TILES,
    Pair,
    SettingColumn,
    TileFigure,
    column_of,
    difference_cell,
    value_cell,
)
from draftcast.dashboards.widgets.verdict_card import HEADS, card
from draftcast.errors import InputError
from draftcast.scenarios.cli import main as cli
from draftcast.scenarios.compare.comparison import compare
from draftcast.scenarios.run.kept import AnswerCache
from draftcast.scenarios.schema.load import load_scenario, with_values, without_speculation
from draftcast.scenarios.show.tables import json_bytes
from draftcast.sim.statistics.intervals import Estimate

SMALL = ("workload.num_requests=200", "statistics.replications=2")


def test_who_asks_meanwhile_waits_for_the_same_answer() -> None:
    kept: AnswerCache[object] = AnswerCache(2)
    asked, go_on, made = threading.Event(), threading.Event(), []

    def make() -> object:
        asked.set()
        assert go_on.wait(30)
        made.append(object())
        return made[-1]

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(kept.get, "question", make)
        assert asked.wait(30)
        second = threads.submit(kept.get, "question", make)
        go_on.set()
        assert first.result(30) is second.result(30)
    assert len(made) == 1


def test_the_oldest_answers_and_failures_are_not_kept() -> None:
    kept: AnswerCache[int] = AnswerCache(2)

    def fail() -> int:
        raise InputError("no")

    with pytest.raises(InputError):
        kept.get("a", fail)
    assert [kept.get(question, lambda value=value: value) for value, question in enumerate("abac")] == [0, 1, 0, 3]
    assert kept.get("b", lambda: 7) == 7


def test_answers_made_side_by_side_are_those_of_simulate() -> None:
    on = load_scenario(overrides=SMALL)
    off = without_speculation(on)
    for scenario, found in zip((on, off), answers(on, off), strict=True):
        (point,) = compare(scenario).points
        np.testing.assert_equal(found.run.replications, point.on.replications)
        assert found.run.requests.equals(point.on.requests)
        assert found.point.word == point.word
        assert found.point.advantage == point.advantage
        column = column_of(scenario, found.side)
        assert column.figures["tokens_per_s_per_gpu"] == point.on.summary["figures"]["output_throughput"]


def test_the_page_s_verdict_is_that_of_the_command_from_idle_to_overload() -> None:
    """At twenty loads up to beyond both capacities, cutover included, for the command that the page shows."""
    lengths = {"prompt_tokens": 64, "output_tokens": {"distribution": "geometric", "mean": 16}}
    short = {"workload.lengths": lengths, "workload.num_requests": 300, "statistics.replications": 2}
    said = []
    for rate in np.linspace(20.0, 780.0, 20).tolist():
        scenario = with_values(opened("default"), {**short, "workload.arrivals.request_rate_rps": rate})
        command = shlex.split(ScenarioPair("default", scenario).command("simulate", "--json"))
        done = CliRunner().invoke(cli.app, command[1:])
        expected = json.loads(done.stdout)
        (shown,) = answers(scenario)
        verdict = shown.point.verdict
        assert verdict is not None
        assert json.loads(json_bytes(shown.point.compared())) == {key: expected[key] for key in shown.point.compared()}
        figures = json.loads(json_bytes(shown.run.summary["figures"]))
        assert figures == expected["figures"]
        assert card(scenario, None, verdict).text.startswith(
            f"Speculation: **{HEADS.get(verdict.word, verdict.word.upper())}"
        )
        said.append(verdict.word)
    assert said[0] == "pays"
    assert said[-1] == "overloaded"
    assert len(set(said)) >= 3, said


def test_settings_are_compared_over_the_same_requests() -> None:
    quiet = load_scenario(overrides=("workload.num_requests=600", "statistics.replications=2"))
    busy = with_values(quiet, {"workload.arrivals.request_rate_rps": 30.0})
    own = answers(quiet, busy)
    assert own[0].run.summary["warmup_requests"] != own[1].run.summary["warmup_requests"]
    sides = together(*own)
    cuts = [side.run.summary["warmup_requests"] for side in sides if side.run is not None]
    assert cuts[0] == cuts[1] >= own[0].run.summary["warmup_requests"]
    assert [side.state for side in sides] == [each.side.state for each in own]
    longer = answers(with_values(quiet, {"workload.num_requests": 700}))[0]
    assert together(own[0], longer) == (own[0].side, longer.side)


def test_a_side_without_figures_differs_in_nothing() -> None:
    on = load_scenario(overrides=(*SMALL, "workload.arrivals.request_rate_rps=400"))
    (found,) = answers(on)
    assert (found.side.state, found.point.word) == ("overloaded", "overloaded")
    column = column_of(on, found.side)
    usual = SettingColumn(
        {}, [{"p50_e2el_s": 1.0, "output_throughput": 100.0}, {"p50_e2el_s": 1.1, "output_throughput": 99.0}]
    )
    assert column.trouble == "overloaded"
    for pair in (Pair(column, "SD off", usual, 0.95), Pair(usual, "SD off", column, 0.95)):
        assert pair.change("p50_e2el_s") is None
        assert "overloaded</small>" in difference_cell(LATENCY_TILES[2].figures[0], pair)


def test_below_capacity_more_tokens_are_neither_better_nor_worse() -> None:
    more = [{"output_throughput": value, "p50_e2el_s": value} for value in (110.0, 111.0, 112.0)]
    less = [{"output_throughput": value - 10.0, "p50_e2el_s": value - 10.0} for value in (110.0, 111.0, 112.0)]
    arriving = SettingColumn({}, more, delivers_arrivals=True), SettingColumn({}, less, delivers_arrivals=True)
    open_loops = Pair(arriving[0], "SD off", arriving[1], 0.95)
    closed = Pair(SettingColumn({}, more), "SD off", SettingColumn({}, less), 0.95)
    for pair, figure, verdict in (
        (open_loops, "output_throughput", "as offered"),
        (closed, "output_throughput", "better"),
        (open_loops, "p50_e2el_s", "worse"),
    ):
        change = pair.change(figure)
        assert change is not None
        assert change.verdict == verdict
    cell = difference_cell(TileFigure("output_throughput", "token goodput", "tok/s"), open_loops)
    assert "dc-better" not in cell
    assert "deliver what arrives" in cell


def test_only_who_waits_longer_than_usual_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told, looked = [], []

    @contextmanager
    def waiting() -> Iterator[Callable[[], None]]:
        told.append("Simulating")
        yield lambda: looked.append("while it waits")

    monkeypatch.setattr(module, "simulating", waiting)
    for patience_s, seed in ((0.0, 71), (600.0, 72)):
        monkeypatch.setattr(module, "PATIENCE_S", patience_s)
        answers(load_scenario(overrides=[*SMALL, f"statistics.seed={seed}"]))
        assert told == ["Simulating"]
        assert set(looked) == {"while it waits"}


class Link:
    """Something that is part of a cycle."""

    def __init__(self) -> None:
        self.side = self


def test_what_was_set_aside_is_spared_by_collections_and_goes_with_the_next_call() -> None:
    link = Link()
    alive = weakref.ref(link)
    set_aside()
    assert gc.get_freeze_count() > 100_000
    del link
    gc.collect()
    assert alive() is not None
    set_aside()
    assert alive() is None


@pytest.mark.parametrize(
    ("mean", "low", "high", "text"),
    [
        (1.5, 1.4, 1.6, "±0.10"),
        (52.35, 0.0, 53.72, "(0.0 to 53.7)"),
        (2.22, 0.88, math.inf, "(0.88 or more)"),
    ],
)
def test_a_tile_shows_an_interval_as_the_tables_do(mean: float, low: float, high: float, text: str) -> None:
    column = SettingColumn({"p50_ttft_s": Estimate(mean, low, high, (high - low) / 2, 3)}, [])
    assert f"<small>{text}</small>" in value_cell(TileFigure("p50_ttft_s", "p50", "s"), column)


def test_the_timeline_of_a_load_that_goes_on_ends_with_the_last_counted_arrival() -> None:
    steady, finite = answers(
        load_scenario(overrides=[*SMALL, "workload.arrivals.request_rate_rps=60"]),
        load_scenario(overrides=[*SMALL, "statistics.warmup=none"]),
    )
    requests = steady.run.requests[steady.run.requests["replication"] == 0]
    assert steady.timeline.time_s[-1] < requests["arrival_s"].max() < requests["finish_s"].max() - 0.5
    # Requests run to the end, and hold blocks there.
    assert steady.timeline.kv_usage is not None
    assert steady.timeline.running[-1] > 1.0
    assert steady.timeline.kv_usage[-1] > 0.5 * steady.timeline.kv_usage.max()
    # A list of requests is shown until the last one is answered.
    assert finite.timeline.time_s[-1] > finite.run.requests["arrival_s"][:200].max()
