"""How many requests and replications a page simulates: few, but as many as the load needs to settle."""

from __future__ import annotations

import math
from typing import Any

from draftcast.scenarios.capacity import rate_of
from draftcast.scenarios.cutover_estimate import Fluid
from draftcast.scenarios.deployment_cache import cached_deployment
from draftcast.scenarios.load import without_speculation
from draftcast.scenarios.schema import ClosedLoopArrivals, Scenario
from draftcast.sim.stability import shortfall

QUICK_REQUESTS, QUICK_REPLICATIONS = 2000, 3
MOST_REQUESTS = 24_000
HIGHEST_UTILISATION = 0.97
"""Closer to the capacity no run of `MOST_REQUESTS` settles."""
WARM = 0.04
"""By how much the latency of a run may fall short of the steady state, were nothing cut, for its warm-up to end within
the first half: on the bundled scenario at 10 to 85 % of the capacity."""
TURNS = 20
"""Requests each client of a closed loop sends."""


def page_effort(scenario: Scenario) -> dict[str, Any]:
    """Dotted keys for a quick run that is honest; the scenario's own where it asks for less.

    Of a duration and of a trace as it is only the replications are fewer.
    """
    values: dict[str, Any] = {"statistics.replications": min(scenario.statistics.replications, QUICK_REPLICATIONS)}
    asked = scenario.workload.num_requests
    if asked is not None:
        values["workload.num_requests"] = min(asked, settling_requests(scenario))
    return values


def settling_requests(scenario: Scenario) -> int:
    """Requests of one replication after which the warm-up has ended within the first half, on and off."""
    arrivals, rate = scenario.workload.arrivals, rate_of(scenario)
    if isinstance(arrivals, ClosedLoopArrivals):
        return max(QUICK_REQUESTS, TURNS * arrivals.concurrency)
    if rate is None:
        return QUICK_REQUESTS
    needed = QUICK_REQUESTS
    for each in (scenario, without_speculation(scenario)):
        fluid = Fluid.of(each, cached_deployment(each))
        utilisation = min(rate / fluid.capacity_rps(), HIGHEST_UTILISATION)
        in_system = fluid.in_system(utilisation * fluid.capacity_rps())
        needed = max(needed, math.ceil(shortfall(1, in_system, utilisation) / WARM))
    return min(needed, MOST_REQUESTS)
