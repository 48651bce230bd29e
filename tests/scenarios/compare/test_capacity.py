"""The capacity against a closed form, and that it is one number for every load and surface."""

from __future__ import annotations

import sys

import pytest
from samples import SHORT_REQUESTS

from draftcast import load_scenario
from draftcast.scenarios.compare import capacity as module
from draftcast.scenarios.compare.capacity import CapacityEstimate, capacity
from draftcast.scenarios.compare.comparison import simulate
from draftcast.scenarios.compare.metric import METRICS
from draftcast.scenarios.compare.verdict import Position, Side, Word, decide
from draftcast.scenarios.run.fluid import FluidModel
from draftcast.scenarios.schema.load import with_values, without_speculation
from draftcast.sim import Batch, Policy

SMALL = ("engine.max_num_seqs=16", "engine.speculative_config=null", f"workload.lengths={SHORT_REQUESTS}")


def test_it_is_what_a_full_batch_of_equal_requests_completes() -> None:
    fixed = {"distribution": "constant", "value": 64}
    scenario = with_values(load_scenario(overrides=list(SMALL)), {
        "workload.lengths": {"prompt_tokens": fixed, "output_tokens": fixed},
    })  # fmt: skip
    found = capacity(scenario)
    assert found is not None
    full = with_values(scenario, {
        "workload.arrivals": {"process": "closed_loop", "concurrency": 16}, "workload.num_requests": 8000,
        "statistics.replications": 1,
    })  # fmt: skip
    assert found.estimate.mean == pytest.approx(simulate(full).summary["figures"]["request_throughput"].mean, rel=0.02)


def test_clients_that_never_think_are_counted_once() -> None:
    """Of one slot 1.1 users are 2: no reason to try another number."""
    found = capacity(load_scenario(overrides=[*SMALL, "engine.max_num_seqs=1"]))
    assert found is not None
    assert set(found.requests) == {module.LEAST_REQUESTS}


def test_data_parallel_ranks_and_api_servers_count() -> None:
    one = load_scenario(overrides=list(SMALL))
    two = with_values(one, {"engine.data_parallel_size": 2, "engine.api_server_count": 2})
    alone, together = capacity(one), capacity(two)
    assert alone is not None
    assert together is not None
    assert together.estimate.mean == pytest.approx(2 * alone.estimate.mean, rel=0.03)
    fluids = [FluidModel.of(side) for side in (one, two)]
    assert fluids[1].slots == 2 * fluids[0].slots
    assert fluids[1].capacity_rps() == pytest.approx(2 * fluids[0].capacity_rps(), rel=0.02)
    # Prompts of few outputs on a fast engine: one API server is the bottleneck, four are not.
    lengths = {"prompt_tokens": {"distribution": "constant", "value": 8}, "output_tokens": 2}
    tiny = with_values(one, {"engine.model": "Qwen3-0.6B", "workload.lengths": lengths, "engine.max_num_seqs": 256})
    served = [capacity(with_values(tiny, {"engine.api_server_count": count})) for count in (1, 2)]
    rates = [each.estimate.mean for each in served if each is not None]
    assert rates[1] == pytest.approx(2 * rates[0], rel=1e-6)


def test_loads_below_settle_and_loads_above_do_not() -> None:
    scenario = load_scenario(overrides=[*SMALL, "workload.num_requests=4000", "statistics.replications=3"])
    found = capacity(scenario)
    assert found is not None
    for share, state in ((0.7, "steady"), (1.2, "overloaded")):
        rate = share * found.estimate.mean
        assert simulate(with_values(scenario, {"workload.arrivals.request_rate_rps": rate})).state == state


def test_it_depends_on_the_setting_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = load_scenario(overrides=list(SMALL))
    found = capacity(scenario)
    assert found is not None
    monkeypatch.setattr(module, "_saturated_rate", lambda *_: pytest.fail("simulated again"))
    for change in (
        {"workload.arrivals.request_rate_rps": 3.0},
        {"workload.num_requests": 77},
        {"statistics.seed": 5},
        {"statistics.replications": 2},
        {"slo": {"tpot_ms": 10.0}},
        {"acceptance": {"model": "constant", "alpha": 0.1}},  # of no account without speculation
    ):
        again = capacity(with_values(scenario, change))
        assert again is not None
        assert again.rates == found.rates
    twice = capacity(with_values(scenario, {"cluster.replicas": 2}))
    assert twice is not None
    assert twice.rates == tuple(2 * rate for rate in found.rates)


@pytest.mark.usefixtures("rough_capacity")
def test_its_interval_has_the_confidence_of_the_scenario() -> None:
    scenario = load_scenario(overrides=list(SMALL))
    sure, usual = (capacity(with_values(scenario, {"statistics.confidence": level})) for level in (0.99, 0.95))
    assert sure is not None
    assert usual is not None
    assert sure.rates == usual.rates
    assert (sure.estimate.confidence, usual.estimate.confidence) == (0.99, 0.95)
    assert sure.estimate.half_width > 1.3 * usual.estimate.half_width


def test_a_policy_that_looks_at_the_slo_has_a_capacity_for_each() -> None:
    policy = {"name": "slo_aware", "parameters": {"latency_slack": 0.1}}
    asked = with_values(load_scenario(overrides=[f"workload.lengths={SHORT_REQUESTS}", "engine.max_num_seqs=64"]), {
        "policy": policy, "acceptance.confidence_discrimination": 0.6,
    })  # fmt: skip
    tight, loose = (capacity(with_values(asked, {"slo": {"tpot_ms": limit}})) for limit in (3.0, 1000.0))
    assert tight is not None
    assert loose is not None
    assert max(tight.rates) < min(loose.rates)
    fixed = with_values(asked, {"policy": None})
    tight, loose = (capacity(with_values(fixed, {"slo": {"tpot_ms": limit}})) for limit in (3.0, 1000.0))
    assert tight == loose


def test_a_class_that_a_notebook_wrote_anew_has_a_capacity_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Half(Policy):
        def decide(self, batch: Batch) -> int:
            return 0

    class Whole(Policy):
        def decide(self, batch: Batch) -> int:
            return 3

    asked = with_values(
        load_scenario(overrides=[f"workload.lengths={SHORT_REQUESTS}", "engine.max_num_seqs=4"]),
        {"policy": {"name": "__main__:Mine"}},
    )
    found = []
    for written in (Half, Whole):
        monkeypatch.setattr(sys.modules["__main__"], "Mine", written, raising=False)
        found.append(capacity(asked))
    none, drafts = found
    assert none is not None
    assert drafts is not None
    assert none.estimate.high < drafts.estimate.low


def test_a_load_inside_the_interval_gets_more_replications() -> None:
    scenario = load_scenario(overrides=[*SMALL, "engine.max_num_seqs=8"])
    first = capacity(scenario)
    assert first is not None
    close = capacity(scenario, first.estimate.mean)
    assert close is not None
    assert close.rates[: len(first.rates)] == first.rates
    assert len(close.rates) > len(first.rates)
    assert close.estimate.half_width < first.estimate.half_width
    far = capacity(scenario, 2 * first.estimate.mean)
    assert far is not None
    assert far.rates == first.rates


@pytest.mark.parametrize(
    "arrivals",
    [
        {"process": "closed_loop", "concurrency": 4},
        {"process": "piecewise", "segments": [{"duration_s": 5, "request_rate_rps": 1}]},
    ],
)
def test_arrivals_without_a_single_rate_have_none(arrivals: dict[str, object]) -> None:
    scenario = with_values(without_speculation(load_scenario()), {"workload.arrivals": arrivals})
    assert scenario.rate_rps is None
    assert capacity(scenario) is None


@pytest.mark.parametrize(
    ("on", "off", "word"),
    [
        (("above", 68.0), ("at", 74.0), "costs"),
        (("at", 74.0), ("above", 68.0), "pays"),
        (("above", 73.9), ("at", 74.0), "too close to call"),  # who completes more is not known
        (("at", 74.0), ("at", 74.1), "too close to call"),
        (("at", 74.0), ("below", 80.0), "too close to call"),
    ],
)
def test_a_side_at_its_capacity_wins_over_one_that_surely_completes_less(
    on: tuple[Position, float], off: tuple[Position, float], word: Word
) -> None:
    sides = [Side(None, position, CapacityEstimate((rate - 0.1, rate, rate + 0.1))) for position, rate in (on, off)]
    verdict = decide(METRICS["e2e"], *sides, 0.95)
    assert (verdict.word, verdict.advantage) == (word, None)
    assert ("overloaded" in verdict.why) == (word != "too close to call")
