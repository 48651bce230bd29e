"""The fluid estimate: its queue against closed forms, its mean step against simulated runs of one request at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from draftcast import load_scenario
from draftcast.scenarios.run.fluid import FluidModel
from draftcast.scenarios.run.simulate import simulate_together
from draftcast.scenarios.schema import without_speculation

MTP = "engine.speculative_config={method: mtp, num_speculative_tokens: 3}"
CASES = {
    "prompts without a graph": ("engine.model=Qwen3.5-27B", "hardware=b200", MTP, "acceptance.alpha=0.8"),
    "prompts alone": ("engine.version=sglang 0.5.9",),
    "prompts in pieces of a graph": ("engine.model=DeepSeek-V3", "hardware=h200", "engine.tensor_parallel_size=8", MTP),
}


@pytest.mark.parametrize("speculates", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_the_mean_step_is_that_of_a_run(case: str, speculates: bool) -> None:
    load = ("workload.arrivals.request_rate_rps=0.1", "workload.num_requests=300", "statistics.replications=1")
    acceptance = "acceptance={model: chain, alpha: 0.7}"
    scenario = load_scenario(overrides=[*load, acceptance, *CASES[case]])
    if not speculates:
        scenario = without_speculation(scenario)
    (run,) = simulate_together([scenario])
    figures = run.summary["figures"]
    decoding_s = figures["mean_e2el_s"].mean - figures["mean_ttft_s"].mean
    fluid = FluidModel.of(scenario)
    assert fluid.latency_s(1.0) == pytest.approx(decoding_s, rel=0.05)


def test_ranks_in_lockstep_wait_for_each_other_s_prompts() -> None:
    """A prompt on one rank makes the steps of all eight longer, and some rank has one in most steps."""
    ranks = ("engine.data_parallel_size=8", "engine.enable_expert_parallel=true")
    load = ("workload.arrivals.request_rate_rps=20", "workload.num_requests=2000", "statistics.replications=1")
    overrides = [*load, *ranks, "engine.model=DeepSeek-V3", "hardware=h200", "engine.speculative_config=null"]
    scenario = load_scenario(overrides=overrides)
    (run,) = simulate_together([scenario])
    latency_s = run.summary["figures"]["mean_e2el_s"].mean
    assert FluidModel.of(scenario).in_system(20.0) / 20.0 == pytest.approx(latency_s, rel=0.1)


class Queue(FluidModel):
    """An engine of 400 slots in which as many requests end per second as ``ends_rps`` says of their number."""

    ends_rps: Callable[[float], float]
    slots = 400

    def rate_rps(self, in_system: float) -> float:
        return self.ends_rps(in_system)


@pytest.mark.parametrize(
    ("ends_rps", "mean"),
    [
        pytest.param(lambda _: 25.0, 0.8 / 0.2, id="M/M/1"),
        pytest.param(lambda number: number / 0.5, 20 * 0.5, id="M/M/inf"),
        # M/M/2: 2 use / (1 - use ** 2) of its servers' use, 0.8.
        pytest.param(lambda number: 12.5 * min(number, 2), 1.6 / (1 - 0.8**2), id="M/M/2"),
    ],
)
def test_a_queue_holds_what_its_closed_form_says(ends_rps: Callable[[float], float], mean: float) -> None:
    fluid = FluidModel.of(load_scenario())
    queue = Queue(**vars(replace(fluid, engines=1)))
    object.__setattr__(queue, "ends_rps", ends_rps)
    assert queue.in_system(20.0) == pytest.approx(mean, rel=1e-6)
    assert queue.in_system(1e9) == float("inf")
