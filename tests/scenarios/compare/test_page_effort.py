"""How long a page's run is: as long as its load needs to settle, and no longer."""

from __future__ import annotations

import pytest

from draftcast.scenarios.compare.capacity import LENGTHS, TURNS, capacity, page_effort, settling_requests
from draftcast.scenarios.compare.comparison import simulate
from draftcast.scenarios.schema.load import load_scenario, with_values, without_speculation

RATE, REQUESTS = "workload.arrivals.request_rate_rps", "workload.num_requests"


def test_at_that_length_both_sides_are_warm() -> None:
    scenario = load_scenario()
    sides = [capacity(each) for each in (scenario, without_speculation(scenario))]
    smaller = min(each.estimate.mean for each in sides if each is not None)
    lengths = []
    for share in (0.1, 0.5, 0.85):
        asked = with_values(scenario, {RATE: share * smaller})
        asked = with_values(asked, page_effort(asked))
        lengths.append(asked.workload.num_requests)
        for each in (asked, without_speculation(asked)):
            run = simulate(each)
            assert (run.state, run.is_warm) == ("steady", True), (share, each.speculative_config)
    assert lengths[0] == LENGTHS[0]
    assert lengths == sorted(lengths)
    # Were it no longer, the busiest of them would not be warm.
    assert not simulate(without_speculation(with_values(asked, {REQUESTS: LENGTHS[0]}))).is_warm


@pytest.mark.parametrize(
    ("overrides", "length"),
    [
        ((f"{RATE}=1",), LENGTHS[0]),
        ((f"{RATE}=1000",), LENGTHS[-1]),
        ((f"{RATE}=55", "statistics.warmup=none"), LENGTHS[0]),
        (("workload.arrivals={process: closed_loop, concurrency: 190}",), 4000),
        (("workload.arrivals={process: closed_loop, concurrency: 100000}",), LENGTHS[-1]),
        ((f"{RATE}=55", "engine.gpu_memory_utilization=0.05"), LENGTHS[0]),  # it does not fit
    ],
)
def test_the_length_follows_the_load(overrides: tuple[str, ...], length: int) -> None:
    scenario = load_scenario(overrides=list(overrides))
    assert settling_requests(scenario) == length
    assert page_effort(scenario) == {REQUESTS: length, "statistics.replications": 4}
    assert length in LENGTHS
    assert TURNS * 190 <= 4000


def test_who_asks_for_fewer_gets_fewer() -> None:
    scenario = load_scenario(overrides=[f"{REQUESTS}=150", f"{RATE}=55", "statistics.replications=2"])
    assert page_effort(scenario) == {"statistics.replications": 2}
