"""Does a cluster of so many replicas meet the objectives at so many requests per second, and up to how many.

Every run draws the same requests, lengths and draft tokens (common random numbers); a higher rate squeezes the same
arrivals. So the answer changes from met to not met once, up to chance near the limit, and bisection finds where.
"""

import functools
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from draftcast.scenarios.compare.model_error import latency_curve
from draftcast.scenarios.compare.verdict import Side, side
from draftcast.scenarios.plan.question import Objective
from draftcast.scenarios.run.fluid import FluidModel
from draftcast.scenarios.run.simulate import RunResult, State, measure, serve
from draftcast.scenarios.schema import Scenario, with_rate, with_values
from draftcast.sim.progress import Progress
from draftcast.sim.statistics.intervals import Estimate

MOST_REQUESTS = 60_000  # a run of many replicas gets as many requests for each as one alone, up to this many in all
USUAL_RUNS = 20  # simulations that sizing a candidate takes, about; only the progress bar depends on it
STEADY_STATE = "steady state"
BEYOND_IS_UNSETTLED = "beyond it the run did not reach a steady state: more requests may show a larger rate"
ATTAINMENT = "slo.attainment"
_STEPS = 60
_LARGEST_STEP = 4.0
_WIDEST = 1e6
_GRID = 500


@dataclass(frozen=True)
class Constraint:
    """What limits, and how much of it is used."""

    # An objective as it was written, `ATTAINMENT` (of several classes with ``of`` and its name), ``capacity`` (the load
    # exceeds it, or lies inside its interval), or `STEADY_STATE` (the run was too short; the numbers are NaN)
    name: str
    value: float  # in seconds, a share of requests, or requests per second, as its limit
    limit: float
    used: float  # value over limit (for a share: what is missed over what may be); above 1 it is broken


@dataclass(frozen=True)
class LoadCheck:
    """One simulated load."""

    rate_rps: float
    met: bool  # a steady state, and every objective's mean over the replications within its limit
    verdict: State  # the state of `draftcast.scenarios.compare.verdict.Side`
    completed_rps: float  # what is completed: the load, or the capacity where the load exceeds it (NaN: not known)
    constraints: tuple[Constraint, ...]  # the tightest objective first; or ``capacity`` or `STEADY_STATE` alone
    figures: dict[str, Estimate] = field(repr=False)
    # The largest share that a time uses of its limit: all may be longer by its inverse; infinite without a steady state
    time_used: float = math.inf

    @property
    def tightest(self) -> Constraint:
        """The objective that is nearest to its limit, or furthest beyond it."""
        return self.constraints[0]

    @property
    def broken(self) -> str:
        """What breaks its limit, in words."""
        limit = self.tightest
        if limit.name == STEADY_STATE:
            return "the run did not reach a steady state"
        if limit.name == "capacity":
            return f"the cluster is {self.verdict}"
        if limit.name.startswith(ATTAINMENT):
            requests = "the requests" + limit.name.removeprefix(ATTAINMENT)
            return f"{limit.value:.1%} of {requests} meet the SLO, {limit.limit:.1%} must"
        return f"{limit.name} is {1e3 * limit.value:.4g} ms"


@dataclass(frozen=True)
class LargestRate:
    """The last rate that met the objectives and the first that did not (requests/s), of all that were tried."""

    met: float
    not_met: float
    limit: Constraint | None


@dataclass
class SimulatedCluster:
    """Clusters of one engine under one workload, of any number of replicas; every load is simulated once."""

    scenario: Scenario  # with arrivals that have a single rate
    objectives: tuple[Objective, ...]  # none: the scenario's own ``slo``
    progress: Progress | None = None  # called after every simulation, with a share that nears 1
    _checks: dict[tuple[int, float], LoadCheck] = field(default_factory=dict, init=False)

    @functools.cached_property
    def replica(self) -> FluidModel:
        return FluidModel.of(with_values(self.scenario, {"cluster.replicas": 1}))

    def check(self, replicas: int, rate_rps: float) -> LoadCheck:
        """Simulate ``replicas`` at ``rate_rps``, or recall it."""
        key = (replicas, rate_rps)
        if key not in self._checks:
            cluster = cluster_scenario(self.scenario, replicas, rate_rps)
            self._checks[key] = check_load(cluster, side(cluster, *measure([serve(cluster)])), self.objectives)
            if self.progress is not None:
                self.progress(len(self._checks) / (len(self._checks) + USUAL_RUNS / 2))
        return self._checks[key]

    def largest_rate(self, replicas: int, start_rps: float, step: float, tolerance: float) -> LargestRate | None:
        """Where ``replicas`` stop meeting the objectives, by bisection in the logarithm of the rate from ``start_rps``
        on; None when they are not met down to a millionth of it.

        ``step``: factor of the first move up or down, squared from move to move until the rate is bracketed.
        ``tolerance``: relative width of the bracket to stop at.
        """
        low, high, rate = 0.0, math.inf, start_rps
        for _ in range(_STEPS):
            low, high = (rate, high) if self.check(replicas, rate).met else (low, rate)
            if low and math.isfinite(high):
                if high / low <= 1.0 + tolerance:
                    break
                rate = math.sqrt(low * high)
            elif start_rps / _WIDEST <= rate <= start_rps * _WIDEST:
                rate *= step if low else 1.0 / step
                step = min(step**2, _LARGEST_STEP)
            else:
                break
        if not low:
            return None
        return LargestRate(low, high, self.check(replicas, high).tightest if math.isfinite(high) else None)

    def largest_rate_if(self, slower: float) -> float:
        """Requests per second up to which one replica meets the objectives if its steps take ``slower`` times as long;
        0: none. It then serves a rate as the replica itself serves ``slower`` times that, with all times as much
        longer. By the loads that were simulated; between them times grow as the fluid estimate's latency does."""
        checks = [check for (replicas, _), check in self._checks.items() if replicas == 1]
        points = sorted((check.rate_rps, check.time_used) for check in checks if math.isfinite(check.time_used))
        rates, used = np.array(points).T
        grid = np.union1d(rates, np.geomspace(rates[0], rates[-1], _GRID))
        latency = latency_curve(self.replica, max(self.replica.capacity_rps(), 1.01 * rates[-1]))
        # Where the latency does not depend on the rate, the rate itself orders the points.
        places, loads = (latency(rps) + 1e-6 * np.log(rps) for rps in (grid, rates))
        within = np.interp(places, loads, np.maximum.accumulate(used)) <= 1.0 / slower
        return float(grid[within][-1]) / slower if within.any() else 0.0


def cluster_scenario(scenario: Scenario, replicas: int, rate_rps: float) -> Scenario:
    """What `SimulatedCluster.check` simulates: more requests for more replicas; a trace is as long as it is."""
    values: dict[str, Any] = {"cluster.replicas": replicas}
    requests = scenario.workload.num_requests
    if requests is not None and replicas > 1:
        values["workload.num_requests"] = max(requests, min(requests * replicas, MOST_REQUESTS))
    return with_values(with_rate(scenario, rate_rps), values)


def check_load(scenario: Scenario, side: Side, objectives: tuple[Objective, ...]) -> LoadCheck:
    """Whether a setting meets the objectives (none: the scenario's own ``slo``) at its load, and by how much; what a
    run may still miss of its steady latency is added before."""
    run, rate_rps = side.run, scenario.rate_rps
    assert run is not None
    assert rate_rps is not None
    completed, met, figures, time_used = rate_rps, False, run.summary["figures"], math.inf
    if not side.has_figures:
        completed = side.capacity_rps.low if side.capacity_rps is not None else math.nan
        limits = [Constraint("capacity", rate_rps, completed, rate_rps / completed)]
        if side.state == "not settled":
            limits = [Constraint(STEADY_STATE, math.nan, math.nan, math.nan)]
    elif objectives:
        ratios = {goal: goal.ratio(figures) / (1.0 - run.shortfall) for goal in objectives}
        limits = [Constraint(goal.label, goal.limit_s * ratio, goal.limit_s, ratio) for goal, ratio in ratios.items()]
        # A figure that the run does not have (no request with two output tokens) breaks no bound.
        limits.sort(key=lambda limit: 0.0 if math.isnan(limit.used) else -limit.used)
        met, time_used = not any(limit.used > 1.0 for limit in limits), float(np.nan_to_num(limits[0].used))
    else:
        # The scenario's own SLO: of the requests of a class, the share that may miss it and the share that does.
        required = {name: slo.attainment for name, slo in scenario.slos.items()}
        sent = {name: of_limits for name, of_limits in run.slo_use.items() if name in required}
        limits, met = [_attainment(run, scenario, name) for name in sent or required], run.slo_met is not False
        limits.sort(key=lambda limit: -limit.used)
        reached = (float(np.quantile(used, required[name], method="inverted_cdf")) for name, used in sent.items())
        time_used = max(reached, default=0.0)
    return LoadCheck(rate_rps, met, side.state, completed, tuple(limits), figures, time_used)


def _attainment(run: RunResult, scenario: Scenario, name: str) -> Constraint:
    """Of one class."""
    figure, least = "slo_attainment", scenario.slos[name].attainment
    attainments = [by_class[name][figure] for by_class in run.summary["by_class"] if figure in by_class.get(name, {})]
    attained = float(np.mean(attainments)) if attainments else run.summary["figures"][figure].mean
    used = (1.0 - attained) / (1.0 - least) if least < 1.0 else (math.inf if attained < 1.0 else 0.0)
    whose = f" of {name}" if len(scenario.request_classes) > 1 else ""
    return Constraint(ATTAINMENT + whose, attained, least, used)
