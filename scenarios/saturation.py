"""What a cluster completes per second when requests always wait: the rate from which a queue grows without end.

One run offered far more than it can serve tells it for every rate, because a rate only scales the arrivals.
"""

from __future__ import annotations

import math

from draftcast.scenarios.deployment import Deployment
from draftcast.scenarios.load import with_rate, with_values
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.simulate import Progress, RunResult, simulate
from draftcast.sim.statistics import Estimate, replication_interval

# Offered load in units of what the scenario asks; high enough for any scenario, and the estimate does not depend on it.
OVERLOAD = 1000.0
# The batch must turn over some twenty times: its mix of short and long requests settles slowly. At 6 times (6,000
# requests over 1,024 slots) the bundled chat scenario reads 2.5 % high, at 20 times 0.5 %.
TURNOVERS = 20
MIN_REPLICATIONS = 3


def saturated_rates(
    scenario: Scenario,
    slots: float,
    progress: Progress | None = None,
    deployment: Deployment | None = None,
) -> tuple[float, ...] | None:
    """Requests per second that the scenario's cluster completes when saturated, one per replication.

    Args:
        scenario: with arrivals that have a single rate.
        slots: requests that the cluster holds at once.
        deployment: as of `draftcast.simulate`.

    None when there is no single rate (piecewise, closed loop) or the run cannot be saturated.
    """
    rate = getattr(scenario.workload.arrivals, "request_rate_rps", None)
    if rate is None:
        return None
    offered = with_values(
        with_rate(scenario, OVERLOAD * rate),
        {
            "workload.num_requests": math.ceil(TURNOVERS * slots),
            "workload.duration_s": None,
            "statistics.warmup": "none",
            "statistics.replications": max(scenario.statistics.replications, MIN_REPLICATIONS),
        },
    )
    rates = simulate(offered, progress=progress, deployment=deployment).summary["stability"]["saturated_rates_rps"]
    return tuple(rates) if all(map(math.isfinite, rates)) else None


def saturated_rate(scenario: Scenario, seen: RunResult, progress: Progress | None = None) -> Estimate | None:
    """`saturated_rates` with their interval; ``seen`` is any run of the same engine, which says what it holds."""
    engine = seen.summary["engine"]
    slots = scenario.cluster.replicas * min(engine["max_num_seqs"], engine["max_concurrency"])
    rates = saturated_rates(scenario, slots, progress)
    return None if rates is None else replication_interval(rates, scenario.statistics.confidence)
