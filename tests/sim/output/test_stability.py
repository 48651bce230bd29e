"""The stability verdict on queues simulated here by Lindley's recursion, apart from the engine."""

from __future__ import annotations

import math
import re

import numpy as np
import numpy.typing as npt
import pytest

from draftcast.sim.output.steady_state import assess, mann_kendall_z, slope

FloatArray = npt.NDArray[np.float64]


def m_d_1(rho: float, seed: int, n: int = 2000) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Arrival, start and finish times of an M/D/1 queue with unit service, started empty."""
    arrival = np.cumsum(np.random.default_rng(seed).exponential(1 / rho, n))
    before = np.arange(n, dtype=np.float64)
    start = np.maximum.accumulate(arrival - before) + before
    return arrival, start, start + 1.0


def share(rho: float, verdict: str, trials: int = 200) -> float:
    return sum(assess(*m_d_1(rho, seed)).verdict == verdict for seed in range(trials)) / trials


def test_m_d_1_verdicts_at_2000_requests() -> None:
    assert share(0.9, "stable") == 1.0
    assert share(0.95, "stable") >= 0.98
    assert share(1.1, "unstable") >= 0.98
    assert share(1.3, "unstable") == 1.0


def test_overload_figures() -> None:
    stability = assess(*m_d_1(1.25, seed=0, n=20_000))
    assert stability.verdict == "unstable"
    # Utilisation less 1: a fifth of what arrives at 1.25 times the capacity is not completed.
    growth, completed, arrived = map(float, re.findall(r"[\d.]+(?= s per| of | req)", stability.reason))
    assert growth == pytest.approx(0.25, abs=0.03)
    assert completed / arrived == pytest.approx(1 / 1.25, abs=0.03)


def test_deterministic_arrivals() -> None:
    index = np.arange(200.0)
    assert assess(index, index, index + 0.9).verdict == "stable"
    assert assess(index * 0.9, index, index + 1.0).verdict == "unstable"


def test_unfinished_requests_count_as_waiting() -> None:
    arrival, start, finish = m_d_1(1.3, seed=1)
    late = finish > arrival[-1]
    cut_short = assess(arrival, np.where(late, math.nan, start), np.where(late, math.nan, finish))
    assert late.any()
    assert cut_short.verdict == "unstable"


def test_crowding_without_a_queue_is_not_settled() -> None:
    # Every request starts at once and takes longer than the whole window: only requests in flight grow.
    arrival = np.arange(400.0)
    assert assess(arrival, arrival, arrival + 1000 + arrival).verdict == "not settled"


def test_filling_up_is_no_instability() -> None:
    # 100 requests in flight from a tenth of the run on: the fill is over in the second half.
    arrival = np.cumsum(np.random.default_rng(0).exponential(1.0, 1000))
    assert assess(arrival, arrival, arrival + 100.0).verdict == "stable"


@pytest.mark.parametrize(("arrival", "verdict"), [(np.arange(49.0), "not settled"), (np.zeros(100), "finite")])
def test_too_few_requests_and_a_batch(arrival: FloatArray, verdict: str) -> None:
    assert assess(arrival, arrival, arrival + 1).verdict == verdict


def test_order_does_not_matter() -> None:
    times = m_d_1(1.1, seed=2)
    order = np.random.default_rng(0).permutation(2000)
    assert assess(*(t[order] for t in times)) == assess(*times)


def test_slope() -> None:
    assert slope(np.array([0.0, 1.0, 2.0]), np.array([1.0, 3.0, 5.0])) == 2.0
    assert slope(np.zeros(3), np.arange(3.0)) == 0.0


def test_mann_kendall() -> None:
    # Monotone, n = 10: S = 45, variance 10 * 9 * 25 / 18 = 125, z = 44 / sqrt(125).
    assert mann_kendall_z(np.arange(10.0)) == pytest.approx(44 / math.sqrt(125))
    assert mann_kendall_z(-np.arange(10.0)) == pytest.approx(-44 / math.sqrt(125))
    assert mann_kendall_z(np.full(10, 3.0)) == 0.0
    # Ties: 1 1 2 -> S = 2, variance (3 * 2 * 11 - 2 * 1 * 9) / 18.
    assert mann_kendall_z(np.array([1.0, 1.0, 2.0])) == pytest.approx(1 / math.sqrt(48 / 18))


def test_mann_kendall_level() -> None:
    rng = np.random.default_rng(9)
    rejected = sum(abs(mann_kendall_z(rng.normal(0, 1, 20))) > 1.96 for _ in range(400))
    assert 0.02 <= rejected / 400 <= 0.08
