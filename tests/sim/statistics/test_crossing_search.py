"""The search for a crossing over synthetic paired processes whose crossing is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from draftcast.sim.statistics.crossing import CrossingResult, CrossingSearch, Probe, ProbeFunction

TRUE = 17.3
GRID = (1.0, 8.0, 16.0, 24.0, 32.0)


def process(seed: int, advantage: Callable[[float], float], noise: float = 0.05) -> ProbeFunction:
    """Both sides share their load; what is left differs by replication, partly the same at every x."""

    def ask(x: float, replications: int, effort: int) -> Probe:
        gains, bases = [], []
        for replication in range(replications):
            own = np.random.default_rng([seed, replication])
            load, level, slope = math.exp(own.normal(0, 0.2)), own.normal(0, noise), own.normal(0, noise)
            here = np.random.default_rng([seed, replication, int(1e6 * x)]).normal(0, noise / 2)
            gains.append(load * advantage(x) * (1 + level + slope * x / 32 + here))
            bases.append(load)
        return Probe(x, tuple(gains), tuple(bases))

    return ask


def falling(x: float) -> float:
    return math.exp((TRUE - x) / 15)


def find(ask: ProbeFunction, grid: tuple[float, ...] = GRID, **how: float) -> CrossingResult:
    return CrossingSearch(ask, 5, **how).run(grid)  # type: ignore[arg-type]


def test_the_interval_covers_the_crossing_over_a_hundred_seeds() -> None:
    found = [find(process(seed, falling)) for seed in range(100)]
    assert all(each.crossing.kind == "crosses" for each in found)
    covered = sum(each.crossing.low <= TRUE <= each.crossing.high for each in found)
    assert 90 <= covered <= 99
    narrow = [each for each in found if each.stopped == "narrow enough"]
    assert len(narrow) > 90
    assert all(each.crossing.relative_width <= 0.05 for each in narrow)
    assert np.mean([each.crossing.value for each in found]) == pytest.approx(TRUE, rel=0.005)


def test_a_rising_advantage_is_found_too() -> None:
    found = find(process(3, lambda x: 1 / falling(x)))
    assert not found.crossing.falls
    assert found.crossing.low <= TRUE <= found.crossing.high


def test_a_tighter_target_asks_for_more() -> None:
    loose, tight = (find(process(1, falling, noise=0.02), target=target) for target in (0.2, 0.02))
    assert tight.crossing.relative_width <= 0.02 < loose.crossing.relative_width <= 0.2


@pytest.mark.parametrize("end", [30.0, 25.0])
def test_a_capacity_is_bracketed_without_a_value(end: float) -> None:
    # It pays until the engine is overloaded; close to that nothing settles.
    def ask(x: float, replications: int, effort: int) -> Probe:
        if x > end:
            return Probe(x, sure=-1)
        return Probe(x) if x > 0.98 * end else process(2, lambda _: 1.5)(x, replications, effort)

    found = find(ask, (1.0, 8.0, 16.0, 24.0, end + 0.1))
    crossing = found.crossing
    assert math.isnan(crossing.value)
    assert 0.9 * end < crossing.low <= end < crossing.high
    assert (found.stopped, crossing.relative_width <= 0.05) == ("narrow enough", True)


@pytest.mark.parametrize(
    ("grid", "target", "looked_at"),
    [
        # The interval from 14 to 18 is as wide as asked for: a quarter of its middle.
        ((14.0, 18.0), 0.25, [14.0, 18.0]),
        # The gap is halved until it is an eighth of the target wide: 0.125 of 14.125.
        ((12.0, 16.0, 18.0), 0.08, [12.0, 14.0, 14.125, 14.25, 14.5, 15.0, 16.0, 18.0]),
    ],
)
def test_a_bound_is_closed_in_on_no_further_than_the_target_asks(
    grid: tuple[float, ...], target: float, looked_at: list[float]
) -> None:
    """Values end at 14, from 18 on it surely costs; nothing between them settles."""

    def ask(x: float, replications: int, effort: int) -> Probe:
        if x > 14.0:
            return Probe(x, sure=-1 if x >= 18.0 else 0)
        return process(2, lambda _: 1.5)(x, replications, effort)

    found = find(ask, grid, target=target)
    assert [probe.x for probe in found.probes] == looked_at
    assert (found.crossing.low, found.crossing.high) == (14.0, 18.0)


@pytest.mark.parametrize(
    ("advantage", "kind"),
    [(lambda _: 1.3, "always"), (lambda _: 0.8, "never"), (lambda x: 1 + 0.3 * math.sin(x / 4), "more than once")],
)
def test_no_crossing_is_said(advantage: Callable[[float], float], kind: str) -> None:
    assert find(process(4, advantage)).crossing.kind == kind


@pytest.mark.parametrize("sure", [0, -1])
def test_where_nothing_can_be_said_is_closed_in_on(sure: int) -> None:
    """Both sides are overloaded beyond 22; between 20 and 22 one alone may be, which no look of the grid falls on."""

    def ask(x: float, replications: int, effort: int) -> Probe:
        if x > 20.0:
            return Probe(x, sure=sure if x <= 22.0 else 0)
        return process(2, lambda _: 1.5)(x, replications, effort)

    found = find(ask)
    known = [probe.x for probe in found.probes if not probe.says_nothing]
    dark = [probe.x for probe in found.probes if probe.says_nothing]
    assert max(known) < min(dark)
    if sure:
        assert found.crossing.kind == "crosses"
        assert found.crossing.low <= 20.0 <= found.crossing.high
        assert found.crossing.relative_width <= 0.05
    else:
        assert found.crossing.kind == "always"
        assert min(dark) - max(known) <= 0.05 * min(dark)


def test_what_differs_by_nothing_is_even() -> None:
    assert find(process(4, lambda _: 1.0, noise=1e-4)).crossing.kind == "even"


def test_doubt_asks_for_more_replications_before_it_gives_up() -> None:
    asked: list[int] = []

    def ask(x: float, replications: int, effort: int) -> Probe:
        asked.append(replications)
        return process(9, lambda _: 1.004, noise=0.05)(x, replications, effort)

    find(ask)
    assert max(asked) > 5


@pytest.mark.parametrize("looks", [0, 2, 7])
def test_a_spent_budget_ends_it(looks: int) -> None:
    made: list[float] = []

    def ask(x: float, replications: int, effort: int) -> Probe | None:
        if len(made) == looks:
            return None
        made.append(x)
        return process(1, falling)(x, replications, effort)

    found = find(ask)
    assert found.stopped == "budget spent"
    assert len(found.probes) == len(set(made))
    assert found.crossing.kind == ("crosses" if looks == 7 else "unclear" if looks == 0 else "always")


def test_whole_numbers_stay_whole() -> None:
    asked: set[float] = set()

    def ask(x: float, replications: int, effort: int) -> Probe:
        asked.add(x)
        return process(6, falling)(x, replications, effort)

    found = find(ask, unit=1.0)
    assert all(x == round(x) for x in asked)
    assert found.crossing.low <= TRUE <= found.crossing.high


def test_longer_runs_are_asked_for_where_their_end_is_what_is_not_known() -> None:
    efforts: list[int] = []

    def ask(x: float, replications: int, effort: int) -> Probe:
        efforts.append(effort)
        made = process(7, falling, noise=0.01)(x, replications, effort)
        return Probe(x, made.gains, made.bases, slack_low=0.08 / 2**effort, slack_high=0.08 / 2**effort)

    found = find(ask)
    assert max(efforts) > 0
    assert found.crossing.low <= TRUE <= found.crossing.high
