"""How many requests and replications a page simulates: few, but as many as the load needs to settle."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from draftcast.errors import InputError
from draftcast.scenarios.compare.capacity import rate_of
from draftcast.scenarios.run.deployment import cached_deployment
from draftcast.scenarios.run.fluid import Fluid
from draftcast.scenarios.schema import ClosedLoopArrivals, Scenario
from draftcast.scenarios.schema.load import without_speculation
from draftcast.sim.output.steady_state import shortfall

LENGTHS = (2000, 3000, 4000, 6000, 8000, 12_000, 16_000, 24_000)
"""A few only, so that settings compared at one load are measured over as many requests."""
QUICK_REQUESTS, QUICK_REPLICATIONS = LENGTHS[0], 4
HIGHEST_UTILISATION = 0.97
"""Closer to the capacity no run of the longest of `LENGTHS` settles."""
WARM = 0.04
"""By how much the latency of a run may fall short of the steady state, were nothing cut, for its warm-up to end within
the first half: on the bundled scenario at 10 to 85 % of the capacity."""
TURNS = 20
"""Requests each client of a closed loop sends."""


def page_effort(scenario: Scenario) -> dict[str, Any]:
    """Dotted keys for a quick run that is honest; the scenario's own where it asks for less than a quick run.

    Of a duration and of a trace as it is only the replications are fewer.
    """
    values: dict[str, Any] = {"statistics.replications": min(scenario.statistics.replications, QUICK_REPLICATIONS)}
    asked = scenario.workload.num_requests
    if asked is not None and asked >= QUICK_REQUESTS:
        values["workload.num_requests"] = settling_requests(scenario)
    return values


def settling_requests(scenario: Scenario) -> int:
    """Requests of one replication, of `LENGTHS`, after which the warm-up has ended within the first half, on and off.

    Of very many clients, and close to the capacity, even the longest may be too short: such a run says so itself.
    """
    arrivals, rate = scenario.workload.arrivals, rate_of(scenario)
    needed = 0.0
    if scenario.statistics.warmup == "none":
        return QUICK_REQUESTS
    if isinstance(arrivals, ClosedLoopArrivals):
        needed = TURNS * arrivals.concurrency
    elif rate is not None:
        with suppress(InputError):  # it cannot be run, and whoever runs it is told why
            needed = max(_needed(each, rate) for each in (scenario, without_speculation(scenario)))
    return next((length for length in LENGTHS if length >= needed), LENGTHS[-1])


def _needed(scenario: Scenario, rate_rps: float) -> float:
    fluid = Fluid.of(scenario, cached_deployment(scenario))
    capacity_rps = fluid.capacity_rps()
    utilisation = min(rate_rps / capacity_rps, HIGHEST_UTILISATION)
    return shortfall(1, fluid.in_system(utilisation * capacity_rps), utilisation) / WARM
