"""The crossing that mean steps alone imply, and where the scenario itself stands on an axis. Simulates nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from draftcast.scenarios.compare.verdict import THROUGHPUT
from draftcast.scenarios.cutover.axis import is_closed
from draftcast.scenarios.cutover.probe import Prober
from draftcast.scenarios.run.fluid import advantage_at
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import without_speculation

RATES = 40
"""Rates at which the estimate is looked at before a change of sign is bisected."""


def step_level_crossing(prober: Prober, grid: Sequence[float]) -> float | None:
    """Where mean steps put the crossing: over rates up to the larger capacity, else within ``grid``.

    NaN where they do not cross there; None where a mean step says nothing about the metric, the policy or the arrivals.
    """
    axis = prober.axis
    if not grid:
        return None
    points = list(grid)
    if axis.name == "rate":
        fluids = prober.own_fluids()
        points = (np.linspace(0.02, 1.0, RATES) * max(fluid.capacity_rps() for fluid in fluids)).tolist()
    before: tuple[float, float] | None = None
    for x in points:
        value = _log_advantage(prober, x)
        if value is None:
            return None
        if before is not None and before[1] * value < 0:
            low, high = before[0], x
            for _ in range(12):
                middle = (low + high) / 2
                inside = _log_advantage(prober, round(middle) if axis.whole else middle)
                assert inside is not None
                low, high = (middle, high) if inside * before[1] > 0 else (low, middle)
            return float((low + high) / 2)
        if value:
            before = (x, value)
    return math.nan


def _log_advantage(prober: Prober, x: float) -> float | None:
    axis, metric = prober.axis, prober.metric.name
    with_sd = axis.at(prober.scenario, x)
    on, off = prober.fluid(with_sd, x), prober.fluid(without_speculation(with_sd), x)
    closed = is_closed(with_sd)
    rate = None if closed else axis.rate_rps(with_sd, x)
    # At one number of clients, latencies are as the inverse of throughputs (Little's law).
    known = metric in ("e2e", "tpot") or (closed and metric in THROUGHPUT)
    if not known or not on.exact_policy or (rate is None and not closed):
        return None
    clients = getattr(with_sd.workload.arrivals, "concurrency", None)
    return math.log(min(max(advantage_at(on, off, rate, clients), 1e-9), 1e9))


def scenario_at(prober: Prober) -> float | None:
    """The scenario's own x; None where that is no single number.

    For the acceptance it is the one per draft token, equal at every position, that gives as many tokens a round.
    """
    scenario, axis = prober.scenario, prober.axis
    if axis.name in ("rate", "concurrency"):
        name = "request_rate_rps" if axis.name == "rate" else "concurrency"
        own = getattr(scenario.workload.arrivals, name, None)
        return float(own) if own is not None else None
    if axis.name == "context":
        return prober.own_fluids()[0].traffic.prompt_tokens
    if axis.name == "acceptance" and scenario.method != "eagle_tree":
        return _equal_alpha(prober.own_fluids()[0].traffic.tokens_per_round(scenario.num_speculative_tokens), scenario)
    return None


def _equal_alpha(tokens_per_round: float, scenario: Scenario) -> float | None:
    k = scenario.num_speculative_tokens
    if not 1 <= tokens_per_round <= 1 + k:
        return None
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**i for i in range(k + 1)) < tokens_per_round else (low, middle)
    return high
