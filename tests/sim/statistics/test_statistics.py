"""Closed forms and coverage of the interval, truncation and trend helpers."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

from draftcast.sim.statistics.intervals import (
    paired_difference,
    paired_ratio,
    replication_interval,
    student_t,
)

TRIALS = 200


def covered(hits: list[bool]) -> bool:
    """Nominal 95 % over 200 trials: 92 % to 98 % is two standard errors either way."""
    return 0.92 <= sum(hits) / len(hits) <= 0.98


def test_student_t_table() -> None:
    # Any printed t table: 0.975 and 0.95 points.
    assert student_t(4, 0.95) == pytest.approx(2.776445, abs=1e-6)
    assert student_t(1, 0.95) == pytest.approx(12.706205, abs=1e-6)
    assert student_t(9, 0.90) == pytest.approx(1.833113, abs=1e-6)


def test_replication_interval_by_hand() -> None:
    # 1..5: mean 3, sample variance 2.5, standard error sqrt(0.5), t(4) = 2.776445.
    estimate = replication_interval([1, 2, 3, 4, 5])
    half = 2.7764451 * math.sqrt(0.5)
    assert (estimate.mean, estimate.n, estimate.confidence) == (3.0, 5, 0.95)
    assert estimate.half_width == pytest.approx(half)
    assert (estimate.low, estimate.high) == pytest.approx((3 - half, 3 + half))
    assert estimate.contains(3.5)
    assert not estimate.contains(9)
    assert estimate.scaled(-1000).low == pytest.approx(-1000 * (3 + half))


def test_one_replication_has_no_width() -> None:
    estimate = replication_interval([7.0])
    assert estimate.mean == 7.0
    assert all(math.isnan(v) for v in (estimate.low, estimate.high, estimate.half_width))
    assert not estimate.contains(7.0)
    assert str(estimate) == "7"


def test_replication_interval_coverage() -> None:
    rng = np.random.default_rng(7)
    # Means of 50 exponentials: mildly skewed, as the mean of a run is.
    hits = [replication_interval(rng.exponential(2.0, (5, 50)).mean(axis=1)).contains(2.0) for _ in range(TRIALS)]
    assert covered(hits)


def test_paired_ratio_coverage() -> None:
    rng = np.random.default_rng(11)
    hits = []
    for _ in range(TRIALS):
        shared = rng.normal(0, 1, 10)  # common random numbers
        first, second = 18 + shared + rng.normal(0, 0.3, 10), 12 + shared + rng.normal(0, 0.3, 10)
        hits.append(paired_ratio(first, second).contains(1.5))
    assert covered(hits)


def test_common_random_numbers_narrow_the_difference() -> None:
    rng = np.random.default_rng(1)
    shared = rng.normal(0, 5, 20)
    on, off = 10 + shared + rng.normal(0, 0.2, 20), 12 + shared + rng.normal(0, 0.2, 20)
    other = 12 + rng.normal(0, 5, 20)
    paired, independent = paired_difference(off, on), paired_difference(other, on)
    assert paired.contains(2.0)
    assert paired.half_width < independent.half_width / 10
    # Var(a - b) = Var(a) + Var(b) - 2 Cov(a, b)
    variance = np.var(off, ddof=1) + np.var(on, ddof=1) - 2 * np.cov(off, on)[0, 1]
    assert paired.half_width == pytest.approx(student_t(19, 0.95) * math.sqrt(variance / 20))


def test_paired_ratio_by_hand() -> None:
    assert paired_ratio([2, 4, 6], [1, 2, 3]).half_width == pytest.approx(0, abs=1e-12)
    # means 4 and 2: r = 2, residuals 0, -1, 1 -> sd 1, standard error 1 / sqrt(3) / 2.
    estimate = paired_ratio([2, 3, 7], [1, 2, 3])
    assert estimate.mean == 2.0
    assert estimate.half_width == pytest.approx(4.302653 / math.sqrt(3) / 2, rel=1e-6)


def test_import_leaves_scipy_out() -> None:
    code = "import sys; from draftcast.sim.statistics import crossing, intervals; assert 'scipy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
