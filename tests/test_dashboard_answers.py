"""Answers behind the pages: made once whoever asks, side by side, and the same as a run from the command line."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

from draftcast.dashboards import results
from draftcast.dashboards.collector import set_aside
from draftcast.dashboards.kept import Kept
from draftcast.dashboards.results import answers, side_of
from draftcast.errors import InputError
from draftcast.scenarios.load import load_scenario, without_speculation
from draftcast.scenarios.simulate import simulate

SMALL = ("workload.num_requests=200", "statistics.replications=2")


def test_who_asks_meanwhile_waits_for_the_same_answer() -> None:
    kept: Kept[object] = Kept(2)
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
    kept: Kept[int] = Kept(2)

    def fail() -> int:
        raise InputError("no")

    with pytest.raises(InputError):
        kept.get("a", fail)
    assert [kept.get(question, lambda value=value: value) for value, question in enumerate("abac")] == [0, 1, 0, 3]
    assert kept.get("b", lambda: 7) == 7


def test_answers_made_side_by_side_are_those_of_simulate() -> None:
    on = load_scenario(overrides=SMALL)
    off = without_speculation(on)
    for scenario, found in zip((on, off), answers([on, off]), strict=True):
        alone = simulate(scenario)
        np.testing.assert_equal(found.run.replications, alone.replications)
        assert found.run.requests.equals(alone.requests)
        side = side_of(scenario, found.run)
        assert side.figures["tokens_per_s_per_gpu"] == alone.summary["figures"]["output_throughput"]


def test_only_who_waits_longer_than_usual_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told, looked = [], []

    @contextmanager
    def waiting() -> Iterator[Callable[[], None]]:
        told.append("Simulating")
        yield lambda: looked.append("while it waits")

    for patience_s, seed in ((0.0, 71), (600.0, 72)):
        monkeypatch.setattr(results, "PATIENCE_S", patience_s)
        answers([load_scenario(overrides=[*SMALL, f"statistics.seed={seed}"])], waiting)
        assert told == ["Simulating"]
        assert set(looked) == {"while it waits"}


class Link:
    """Something that is part of a cycle."""

    def __init__(self) -> None:
        self.own = self


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
