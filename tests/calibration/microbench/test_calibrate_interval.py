"""The interval of a median over bursts, and which point a calibration visits next."""

from __future__ import annotations

import math

import numpy as np
import pytest

from draftcast.calibration.microbench.noise import QuietLevels, SpinAndRead
from draftcast.calibration.microbench.schedule import MAX_VISITS, MIN_BURSTS, PointProgress, estimate, next_point
from draftcast.calibration.microbench.shapes import Point


def test_one_burst_has_no_interval() -> None:
    found = estimate([2.0])
    assert found.seconds == 2.0
    assert math.isnan(found.low_s)
    assert math.isnan(found.high_s)
    assert not found.settled


def test_three_bursts_take_students_t_by_hand() -> None:
    # logs -0.01, 0, 0.01: standard deviation 0.01; t(0.975, 2) = 4.302653; sqrt(pi/2) = 1.253314
    found = estimate([math.exp(0.01), 1.0, math.exp(-0.01)])
    half = 4.302653 * 1.253314 * 0.01 / math.sqrt(3)
    assert found.seconds == 1.0
    assert found.high_s == pytest.approx(math.exp(half), rel=1e-6)
    assert found.low_s == pytest.approx(math.exp(-half), rel=1e-6)
    assert not found.settled


@pytest.mark.parametrize(
    ("count", "low", "high"),
    # 95 % intervals of the median, David and Nagaraja: 6 -> (1, 6), 9 -> (2, 8), 12 -> (3, 10), 20 -> (6, 15)
    [(6, 1, 6), (8, 1, 8), (9, 2, 8), (12, 3, 10), (20, 6, 15)],
)
def test_from_six_bursts_on_it_is_order_statistics(count: int, low: int, high: int) -> None:
    found = estimate([float(value) for value in range(count, 0, -1)])
    assert (found.low_s, found.high_s) == (low, high)
    assert found.seconds == np.median(range(1, count + 1))


def test_settled_is_two_percent_of_the_median() -> None:
    bursts = [1.0, 1.001, 1.002, 1.003, 1.004, 1.019]
    assert estimate(bursts).settled
    assert not estimate([*bursts[:-1], 1.025]).settled
    assert not estimate([1.0, 1.0]).settled, "two bursts settle nothing"


def test_one_disturbed_burst_of_nine_does_not_widen_the_interval() -> None:
    quiet = [1.0, 1.001, 1.002, 1.003, 1.004, 1.005, 1.006, 1.007]
    assert estimate([*quiet, 5.0]).settled


def test_what_all_bursts_share_widens_the_interval() -> None:
    short, long = estimate([1e-6] * 6).widened(1e-7), estimate([1e-3] * 6).widened(1e-7)
    assert (short.low_s, short.high_s) == (pytest.approx(0.9e-6), pytest.approx(1.1e-6))
    assert (short.settled, long.settled) == (False, True)
    assert estimate([1e-8] * 6).widened(1e-7).low_s == 0.0
    assert not math.isfinite(estimate([1.0]).widened(1e-7).high_s)


@pytest.mark.parametrize("count", [3, 4, 6, 9])
def test_the_interval_covers_the_median_as_often_as_it_says(count: int) -> None:
    rng = np.random.default_rng(7)
    drawn = np.exp(rng.normal(0.0, 0.02, (1500, count)))
    found = [estimate(list(bursts)) for bursts in drawn]
    covered = np.mean([each.low_s <= 1.0 <= each.high_s for each in found])
    assert covered >= 0.94


POINTS = tuple(Point("linear", "bf16", "", "torch", (("m", m),)) for m in range(1, 7))


QUIET, DISTURBED = SpinAndRead(1.0, 1.0), SpinAndRead(1.2, 1.0)


@pytest.fixture(name="levels")
def levels_fixture() -> QuietLevels:
    levels = QuietLevels()
    levels.add([QUIET] * 16)
    return levels


def visited(levels: QuietLevels, budget_s: float, bursts: dict[int, list[float]] | None = None) -> list[int]:
    """Rows of the points in the order of their visits, one second each, until nothing is left to do."""
    state: dict[str, PointProgress] = {}
    order: list[int] = []
    while (point := next_point(POINTS, state, levels, float(len(order)), budget_s)) is not None:
        m = dict(point.shape)["m"]
        known = state.setdefault(point.key, PointProgress())
        series = (bursts or {}).get(m, [1.0])
        known.bursts.append((series[known.visits % len(series)], QUIET))
        known.took_s += 1.0
        order.append(m)
    return order


def test_three_visits_lie_a_round_apart(levels: QuietLevels) -> None:
    assert visited(levels, 1000.0) == [1, 2, 3, 4, 5, 6] * 3


def test_a_short_budget_begins_only_what_it_can_finish(levels: QuietLevels) -> None:
    order = visited(levels, 10.0)
    assert order == [1, 2, 3] * 3
    assert len(order) <= 10


def test_time_left_goes_to_the_points_that_are_not_settled(levels: QuietLevels) -> None:
    noisy = {2: [1.0, 1.1, 1.2], 5: [1.0, 1.1, 1.2]}
    order = visited(levels, 24.0, noisy)
    assert order[:18] == [1, 2, 3, 4, 5, 6] * 3
    assert order[18:] == [2, 5, 2, 5, 2, 5]


def test_a_point_that_never_settles_is_left_in_the_end(levels: QuietLevels) -> None:
    order = visited(levels, 1e9, {4: [1.0, 1.5, 2.0]})
    assert order.count(4) == MAX_VISITS
    assert order.count(3) == MIN_BURSTS


def test_disturbed_visits_are_made_up_for_before_time_goes_to_anything_else(levels: QuietLevels) -> None:
    state = {point.key: PointProgress(bursts=[(1.0, QUIET)] * 3, took_s=3.0) for point in POINTS}
    state[POINTS[3].key] = PointProgress(bursts=[(1.0, DISTURBED)] * 5, took_s=5.0)
    state[POINTS[0].key] = PointProgress(bursts=[(1.0, QUIET), (1.1, QUIET), (1.2, QUIET)], took_s=3.0)
    assert next_point(POINTS, state, levels, 20.0, 1000.0) == POINTS[3]
    state[POINTS[3].key].bursts += [(1.0, DISTURBED)] * 4
    assert next_point(POINTS, state, levels, 20.0, 1000.0) == POINTS[0], "nine visits are enough"


def test_a_disturbed_machine_begins_fewer_points(levels: QuietLevels) -> None:
    def begun(moment: SpinAndRead) -> bool:
        state = {point.key: PointProgress(bursts=[(1.0, QUIET), (1.0, moment)], took_s=2.0) for point in POINTS[:3]}
        return next_point(POINTS, state, levels, 6.0, 14.0) == POINTS[3]

    assert begun(QUIET)
    assert not begun(DISTURBED)


def test_a_failed_point_is_not_visited_again(levels: QuietLevels) -> None:
    state = {POINTS[0].key: PointProgress(took_s=1.0, failed="out of memory")}
    assert next_point(POINTS[:1], state, levels, 1.0, 100.0) is None
    assert next_point(POINTS[:2], state, levels, 1.0, 100.0) == POINTS[1]


def test_disturbed_bursts_never_settle_and_give_way_to_quiet_ones(levels: QuietLevels) -> None:
    known = PointProgress(bursts=[(2.0, DISTURBED)] * 8)
    found = known.estimate(levels)
    assert (found.seconds, found.high_s, found.settled) == (2.0, 2.0, False)
    assert found.low_s == pytest.approx(2.0 / 1.2), "the fixed work was slowed by 1.2, so perhaps this was as well"
    known.bursts += [(1.0, QUIET)] * 2
    found = known.estimate(levels)
    assert found.seconds == 1.0, "the median of the three least disturbed"
    assert (found.low_s, found.high_s, found.settled) == (1.0, 2.0, False)
    known.bursts.append((1.0, QUIET))
    assert known.estimate(levels).settled
    assert known.quiet_bursts(levels) == [1.0] * 3


def test_bursts_are_judged_again_when_the_machine_turns_out_quieter(levels: QuietLevels) -> None:
    known = PointProgress(bursts=[(1.0, QUIET)] * 3)
    assert known.estimate(levels).settled
    levels.add([SpinAndRead(0.8, 1.0)] * 16)
    assert not known.estimate(levels).settled


@pytest.mark.parametrize(
    ("moment", "quiet"),
    [(SpinAndRead(1.04, 1.19), True), (SpinAndRead(1.06, 1.0), False), (SpinAndRead(1.0, 1.21), False)],
)
def test_quiet_is_near_the_quickest_readings(levels: QuietLevels, moment: SpinAndRead, quiet: bool) -> None:
    assert levels.is_quiet(moment) is quiet


def test_a_few_odd_readings_do_not_move_the_level(levels: QuietLevels) -> None:
    levels.add([SpinAndRead(0.5, 0.5), *[DISTURBED] * 16])
    assert levels.is_quiet(QUIET)


def test_nothing_is_begun_when_the_budget_is_spent(levels: QuietLevels) -> None:
    assert next_point(POINTS, {}, levels, 5.0, 5.0) is None
    assert next_point(POINTS, {}, levels, 4.9, 5.0) == POINTS[0]
