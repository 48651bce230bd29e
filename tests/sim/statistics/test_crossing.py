"""Where a paired advantage crosses 1: cases by hand, coverage of the interval, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

from draftcast.sim.statistics.crossing import Crossing, Probe, between, locate
from draftcast.sim.statistics.intervals import student_t

SPREAD = (0.999, 1.0, 1.001)


def near(x: float, advantage: float) -> Probe:
    """Three replications that agree to a per mille."""
    return Probe(x, tuple(advantage * s for s in SPREAD), (1.0, 1.0, 1.0))


def test_the_advantage_and_its_interval_by_hand() -> None:
    probe = Probe(1.0, (2.9, 3.1), (1.5, 1.5))
    # Indices log(2.9 / 1.5) and log(3.1 / 1.5): of two values the standard error is half their difference.
    half = student_t(1, 0.95) * math.log(3.1 / 2.9) / 2
    found = probe.advantage(0.95)
    assert found is not None
    assert found.mean == pytest.approx(math.sqrt(2.9 * 3.1) / 1.5)
    assert found.low == pytest.approx(found.mean / math.exp(half))
    assert found.high == pytest.approx(found.mean * math.exp(half))
    assert Probe(1.0, (2.0,), (1.0,)).advantage(0.95) is None  # one replication has no interval
    assert Probe(1.0, (2.0, math.nan), (1.0, 1.0)).advantage(0.95) is None


def test_between_two_values_the_index_is_a_line() -> None:
    found = locate([near(7.0, 0.9), near(5.0, 1.1)])
    # Indices log 1.1 and log 0.9: where the line between them meets 0.
    share = math.log(1.1) / math.log(1.1 / 0.9)
    assert found.kind == "crosses"
    assert found.value == pytest.approx(5 + 2 * share)
    assert 5 < found.low < found.value < found.high < 7
    assert (found.falls, found.above, found.below, found.gap) == (True, (5.0, 5.0), (7.0, 7.0), (5.0, 7.0))
    rising = locate([near(5.0, 0.9), near(7.0, 1.1)])
    assert (rising.falls, rising.gap) == (False, (5.0, 7.0))
    assert rising.value == pytest.approx(5 + 2 * (1 - share))


def test_between_two_probes_index_and_standard_error_are_lines() -> None:
    # Half widths of the logarithm: of two replications that differ by the factors 1.1 and 1.21 as 1 to 2.
    left = Probe(2.0, (1.1, 1.21), (1.0, 1.0))
    right = Probe(6.0, (1.21, 1.0), (1.0, 1.0), slack_high=0.4)

    def half_width(probe: Probe) -> float:
        found = probe.advantage(0.95)
        assert found is not None
        return math.log(found.high / found.low) / 2

    assert half_width(right) == pytest.approx(2 * half_width(left))
    third = between([left, right], 3.0)
    assert third.indices.mean() == pytest.approx(0.75 * left.indices.mean() + 0.25 * right.indices.mean())
    assert half_width(third) == pytest.approx(1.25 * half_width(left))  # the mean of both runs would be surer than each
    assert (third.slack_low, third.slack_high) == (0.0, pytest.approx(0.1))
    for probe in (left, right):
        assert between([left, right], probe.x).indices == pytest.approx(probe.indices)
    assert not between([left, Probe(6.0, sure=1)], 3.0).has_value


def test_no_line_is_drawn_to_a_bound() -> None:
    found = locate([near(3.0, 1.5), near(5.0, 1.4), Probe(6.0), Probe(7.0, sure=-1)])
    assert (found.kind, found.low, found.high) == ("crosses", 5.0, 7.0)
    assert math.isnan(found.value)
    assert found.best == 6.0
    assert found.relative_width == pytest.approx(2 / 6)


@pytest.mark.parametrize(
    ("probes", "kind"),
    [
        ([near(1, 1.2), near(2, 1.1)], "always"),
        ([near(1, 1.2), Probe(2.0)], "always"),  # what has no value decides nothing
        ([near(1, 1.2), near(2, 1.0004)], "always"),  # even at 2
        ([near(1, 0.8), Probe(2.0, sure=-1)], "never"),
        ([near(1, 1.0), near(2, 1.0004)], "even"),
        ([near(1, 1.2), near(2, 0.8), near(3, 1.2)], "more than once"),
        ([near(1, 1.2), Probe(2.0, (0.5, 1.5), (1.0, 1.0))], "unclear"),  # sure at 1, open at 2: not always
        ([Probe(1.0)], "unclear"),
        ([], "unclear"),
    ],
)
def test_what_is_not_one_crossing(probes: list[Probe], kind: str) -> None:
    found = locate(probes)
    assert found.kind == kind
    assert all(math.isnan(end) for end in (found.value, found.low, found.high))


def test_what_a_finite_run_cannot_know_widens_the_interval() -> None:
    exact = locate([near(5.0, 1.1), near(7.0, 0.9)])
    slack = locate([Probe(5.0, near(5, 1.1).gains, near(5, 1.1).bases, slack_low=0.05), near(7.0, 0.9)])
    assert slack.low < exact.low
    assert slack.high == pytest.approx(exact.high)
    assert Probe(5.0, near(5, 1.1).gains, near(5, 1.1).bases, slack_low=0.2).sign(0.95) == 0
    assert Probe(5.0, near(5, 0.9).gains, near(5, 0.9).bases, slack_high=0.2).sign(0.95) == 0


def test_the_confidence_asked_for_decides_the_width() -> None:
    probes = [near(5.0, 1.1), near(7.0, 0.9)]
    assert locate(probes, 0.99).low < locate(probes, 0.95).low < locate(probes, 0.5).low


def drawn(rng: np.random.Generator, xs: tuple[float, ...], replications: int) -> list[Probe]:
    """The index falls through 0 at x = 6 as a line; replications share noise over x, and both sides share theirs."""
    shared = rng.normal(0, 0.03, replications)
    probes = []
    for x in xs:
        index = (6.0 - x) / 20 + shared + rng.normal(0, 0.01, replications)
        load = np.exp(rng.normal(0, 0.1, replications))
        probes.append(Probe(x, tuple(load * (1 + index)), tuple(load * (1 - index))))
    return probes


@pytest.mark.parametrize("replications", [4, 12])
def test_the_interval_covers(replications: int) -> None:
    rng = np.random.default_rng(11)
    found = [locate(drawn(rng, (3.0, 6.5, 9.0), replications)) for _ in range(200)]
    crossed = [each for each in found if each.kind == "crosses"]
    assert len(crossed) > 175
    covered = np.mean([each.low <= 6.0 <= each.high for each in crossed])
    assert 0.91 <= covered <= 0.985  # two standard errors of 200 trials


def test_common_random_numbers_narrow_it() -> None:
    def width(common: bool) -> float:
        rng = np.random.default_rng(5)
        load = np.exp(rng.normal(0, 0.1, 20))
        other = load if common else np.exp(rng.normal(0, 0.1, 20))
        probes = [Probe(x, tuple(load * (1 + i)), tuple(other * (1 - i))) for x, i in ((3.0, 0.2), (9.0, -0.2))]
        found: Crossing = locate(probes)
        return found.high - found.low

    assert width(common=True) < width(common=False) / 5
