"""One point of a cutover: the advantage at x from paired runs, or the sign alone where a side is overloaded.

Chooses how long a run must be for its load, keeps count of the requests simulated, and asks a saturated run what the
cluster can complete where the fluid estimate says that x may be close to it.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from draftcast.calibration.acceptance.references import conditional_rate
from draftcast.scenarios.compare.capacity import capacity
from draftcast.scenarios.compare.metric import Metric
from draftcast.scenarios.compare.model_error import Prediction, Response, SloUse, response
from draftcast.scenarios.compare.verdict import Side, decide, side, side_by_capacity, slo_use_of
from draftcast.scenarios.cutover.axis import CutoverAxis
from draftcast.scenarios.run.fluid import FluidModel
from draftcast.scenarios.run.simulate import ServedScenario, State, measure, serve
from draftcast.scenarios.schema import Scenario, with_values, without_speculation
from draftcast.scenarios.schema.load import scenario_hash
from draftcast.sim.output.steady_state import shortfall
from draftcast.sim.progress import Progress
from draftcast.sim.statistics.crossing import Probe

MIN_REQUESTS = 1000
MAX_REQUESTS = 24_000  # of one replication; the bounds between which the load decides
FIRST_SHORTFALL = 0.15
"""By how much the latency at a first point may fall short of the steady state; every effort halves it."""
CLOSED_LOOP_TURNS, ENOUGH_TURNS, ENOUGH_REQUESTS = 20, 10, 2000
"""Answers per client of a closed loop at a first point, and how many are enough where the loop has so many requests."""
BATCH_REQUESTS = 16  # requests in all static batches of one replication at a first point
LEAST_BILLED = 200  # requests that a run takes as long as, however short it is
NEAR_CAPACITY = 0.6  # utilisation from which the capacity is simulated first: the fluid estimate is good to some 20 %
STEP_LEVEL_RATES = 40  # rates at which the estimate by mean steps is looked at before a change of sign is bisected
NO_REQUEST_MEETS = "no request meets the SLO on or off"

Capacities = tuple[float | None, float | None]  # requests per second with and without speculation, where simulated


@dataclass(frozen=True)
class PairedRun:
    """What a probe was made of: each side's figures (replication means), empty where nothing was run."""

    x: float
    states: tuple[State, State]  # with and without speculation
    replications: int = 0
    requests: int = 0  # of one replication
    on: dict[str, float] = field(default_factory=dict)
    off: dict[str, float] = field(default_factory=dict)
    slo_use: SloUse | None = None
    capacities: Capacities = (None, None)


@dataclass(frozen=True)
class _Half:
    """One side of the question at x, before anything but its capacity is simulated."""

    scenario: Scenario
    fluid: FluidModel
    side: Side

    def shortfall(self, rate_rps: float) -> float:
        """Of a run of one request; by the fluid estimate and, where it was simulated, the capacity's lower bound."""
        saturated = self.side.capacity_rps
        utilisation = rate_rps / (saturated.low if saturated is not None else self.fluid.capacity_rps())
        # Where the estimate says overloaded, what the system holds.
        in_system = min(self.fluid.in_system(rate_rps), float(self.fluid.slots))
        return shortfall(1, in_system, min(utilisation, 0.999))


@dataclass
class Prober:
    """Answers a `draftcast.sim.statistics.crossing.CrossingSearch` for one scenario with speculation."""

    scenario: Scenario
    axis: CutoverAxis
    metric: Metric
    budget_requests: int  # of both sides, replications and saturated runs; a run counts as at least `LEAST_BILLED`
    progress: Progress | None = None  # called with the share of the budget that is spent
    spent_requests: int = field(default=0, init=False)
    paired_runs: dict[float, PairedRun] = field(default_factory=dict, init=False)
    _fluids: dict[float | None, tuple[FluidModel, FluidModel]] = field(default_factory=dict, init=False)
    _errors: dict[float | None, Response | None] = field(default_factory=dict, init=False)
    _billed: dict[str, int] = field(default_factory=dict, init=False)  # by setting, replications of its capacity
    _off: tuple[str, ServedScenario] | None = field(default=None, init=False)  # the last run without, by its key

    def __call__(self, x: float, replications: int, effort: int) -> Probe | None:
        on, off = self.sides(x)
        if on is None or off is None:
            return None
        delivers = self.metric.is_throughput and on.scenario.rate_rps is not None
        if not delivers and (on.side.position, off.side.position) == ("below", "below"):
            return self._simulated(x, on, off, replications, effort)
        capacities = (on.side.mean_capacity_rps, off.side.mean_capacity_rps)
        self.paired_runs[x] = PairedRun(x, (on.side.state, off.side.state), capacities=capacities)
        if on.scenario.rate_rps is not None and delivers:
            return self._delivered(x, on.scenario.rate_rps, on, off)
        return decide(self.metric, on.side, off.side, self.scenario.statistics.confidence, x).probe

    def sides(self, x: float) -> tuple[_Half, _Half] | tuple[None, None]:
        """Both sides at x; None without the budget to say how close they are to their capacity."""
        halves = []
        for variant, fluid in zip(self.scenarios(x), self.fluids(x), strict=True):
            rate, placed = variant.rate_rps, Side(None, "below")
            # Along rates one capacity serves every x; elsewhere each x has its own.
            if rate is not None and (self.axis.name == "rate" or rate > NEAR_CAPACITY * fluid.capacity_rps()):
                if self.spent_requests >= self.budget_requests:
                    return None, None
                saturated = capacity(variant, rate, progress=self._part(0))
                if saturated is not None:
                    # Booked once, also where it was known: the answer must not depend on what was asked before.
                    billed = self._billed.get(saturated.setting, 0)
                    self._part(sum(saturated.requests[billed:]))
                    self._billed[saturated.setting] = max(billed, len(saturated.requests))
                    placed = side_by_capacity(rate, saturated)
            halves.append(_Half(variant, fluid, placed))
        return halves[0], halves[1]

    def scenarios(self, x: float) -> tuple[Scenario, Scenario]:
        """The question at x, with and without speculation."""
        with_sd = self.axis.at(self.scenario, x)
        return with_sd, without_speculation(with_sd)

    def errors(self, x: float) -> Response | None:
        """What the errors of step times and acceptance do at x, as of `response`."""
        with_sd, place = self.scenarios(x)[0], self._place(x)
        if place not in self._errors:
            self._errors[place] = response(with_sd, self.fluids(x))
        errors = self._errors[place]
        return errors.at(with_sd) if errors is not None else None

    def predict(self, probe: Probe, capacities: Capacities, use: SloUse | None) -> Prediction | None:
        """The advantage with the model's errors, as of `Response.predict`; None where they are not known."""
        errors, tells_nothing = self.errors(probe.x), not probe.has_value and self.axis.name != "rate"
        if tells_nothing or errors is None or not errors.reaches(self.metric, capacities):
            return None
        return errors.predict(probe, self.scenario.statistics.confidence, capacities, self.metric, use)

    def _place(self, x: float | None) -> float | None:
        """What tells engines and mixes of requests apart: all rates, clients and batches have one."""
        return None if self.axis.name in ("rate", "concurrency", "batch") else x

    def fluids(self, x: float | None = None) -> tuple[FluidModel, FluidModel]:
        """The fluid estimates at x (None: of the scenario as it is), with and without speculation."""
        place = self._place(x)
        if place not in self._fluids:
            scenarios = (self.scenario, without_speculation(self.scenario)) if x is None else self.scenarios(x)
            # No axis touches the engine: each side is resolved once.
            deployments = next(([fluid.deployment for fluid in both] for both in self._fluids.values()), (None, None))
            on, off = map(FluidModel.of, scenarios, deployments)
            self._fluids[place] = (on, off)
        return self._fluids[place]

    def _part(self, requests: int) -> Progress | None:
        """Books the requests of a run and maps its 0..1 to its part of the budget."""
        before = self.spent_requests
        self.spent_requests += requests
        if self.progress is None:
            return None
        report, budget = self.progress, self.budget_requests
        return lambda share: report(min((before + share * requests) / budget, 1.0))

    def _requests(self, on: _Half, off: _Half, effort: int) -> int:
        """Requests of one replication: so many that its latency falls short of the steady state by little."""
        rate = on.scenario.rate_rps
        if rate is None:
            clients = int(getattr(on.scenario.workload.arrivals, "concurrency", 1))
            turns = max(min(CLOSED_LOOP_TURNS, ENOUGH_REQUESTS // clients), ENOUGH_TURNS)
            return max(LEAST_BILLED, turns * clients) << effort
        short = max(half.shortfall(rate) for half in (on, off))
        ramp = max(half.fluid.session_requests(rate) for half in (on, off))
        first = max(math.ceil(short / FIRST_SHORTFALL), math.ceil(ramp), MIN_REQUESTS)
        return min(first << effort, MAX_REQUESTS)

    def _simulated(self, x: float, on: _Half, off: _Half, replications: int, effort: int) -> Probe | None:
        groups, requests = 1, self._requests(on, off, effort)
        if self.axis.name == "batch":
            requests = round(x)
            groups = max(1, math.ceil(BATCH_REQUESTS * 2**effort / requests))
        values: dict[str, Any] = {"statistics.replications": replications * groups}
        if on.scenario.rate_rps is None and not on.scenario.is_closed_loop:
            # A pattern in time is what it is: a trace or segments, as long as the scenario says.
            requests = on.scenario.workload.num_requests or MIN_REQUESTS
        else:
            values |= {"workload.num_requests": requests, "workload.duration_s": None}
        variants = [with_values(half.scenario, values) for half in (on, off)]
        # The acceptance tells no runs without speculation apart.
        off_key = scenario_hash(with_values(variants[1], {"acceptance": None}))
        without = self._off[1] if self._off is not None and self._off[0] == off_key else None
        cost = replications * groups * max(requests, LEAST_BILLED)
        if self.spent_requests + (cost if without else 2 * cost) > self.budget_requests:
            return None
        with_sd = serve(variants[0], progress=self._part(cost))
        if without is None:
            without = serve(variants[1], progress=self._part(cost))
            self._off = (off_key, without)
        runs = []
        for run in measure([with_sd, without]):
            # The static batches of one replication count as one run.
            rows = [run.replications[start : start + groups] for start in range(0, len(run.replications), groups)]
            runs.append(dataclasses.replace(run, replications=tuple(map(_means, rows))))
        # A capacity that was simulated already knows better than a run.
        sides = [
            dataclasses.replace(half.side, run=run) if half.side.capacity is not None else side(half.scenario, run)
            for half, run in zip((on, off), runs, strict=True)
        ]
        metric, states = self.metric, (sides[0].state, sides[1].state)
        means = [_means(run.replications) if at_x.has_figures else {} for run, at_x in zip(runs, sides, strict=True)]
        use = slo_use_of(metric, sides[0], sides[1], on.scenario.rate_rps)
        simulated = len(runs[0].requests) // (replications * groups) * groups
        capacities = (on.side.mean_capacity_rps, off.side.mean_capacity_rps)
        self.paired_runs[x] = PairedRun(x, states, replications, simulated, means[0], means[1], use, capacities)
        probe = decide(metric, sides[0], sides[1], self.scenario.statistics.confidence, x).probe
        if metric.name == "slo_goodput" and not any(row[metric.figure] for run in runs for row in run.replications):
            probe = dataclasses.replace(probe, note=NO_REQUEST_MEETS)
        return probe

    def _delivered(self, x: float, rate: float, on: _Half, off: _Half) -> Probe:
        """Throughput of an open loop: what arrives, up to what the cluster can complete. Needs no run of its own."""
        rates = [half.side.capacity.rates if half.side.capacity else () for half in (on, off)]
        count = min((len(caps) for caps in rates if caps), default=self.scenario.statistics.replications)
        with_sd, without = (tuple(min(rate, cap) for cap in (caps or (rate,) * count)[:count]) for caps in rates)
        verdict = decide(self.metric, on.side, off.side, self.scenario.statistics.confidence)
        why = verdict.why if verdict.word != "not settled" else ""  # nothing was run, and nothing needs to be
        return Probe(x, with_sd, without, note=why)

    def step_level_crossing(self, grid: Sequence[float]) -> float | None:
        """Where mean steps put the crossing: over rates up to the larger capacity, else within ``grid``; NaN where
        there is none; None where a mean step says nothing about metric, policy or arrivals."""
        if not grid or math.isnan(self._log_advantage(grid[0])):
            return None
        if self.axis.name == "rate":
            return step_level_rate_rps(*self.fluids())
        return _crossing(grid, lambda x: self._log_advantage(round(x) if self.axis.is_whole else x))

    def _log_advantage(self, x: float) -> float:
        """By mean steps; NaN where they say nothing about metric, policy or arrivals."""
        metric, with_sd, (on, off) = self.metric, self.scenarios(x)[0], self.fluids(x)
        closed, rate = with_sd.is_closed_loop, with_sd.rate_rps
        # At one number of clients, latencies are as the inverse of throughputs (Little's law).
        applies = metric.name in ("e2e", "tpot") or (closed and metric.is_throughput)
        if not applies or not on.exact_policy or (rate is None and not closed):
            return math.nan
        if rate is not None:
            return _log_advantage_at(rate, on, off)
        clients = with_sd.workload.arrivals.concurrency  # type: ignore[union-attr]
        return math.log(off.latency_s(clients) / on.latency_s(clients))

    def scenario_at(self) -> float | None:
        """The scenario's own x, None if it has none; an equal acceptance gives as many tokens a round as its own."""
        scenario, axis, spec = self.scenario, self.axis, self.scenario.speculative_config
        if axis.name in ("rate", "concurrency"):
            name = "request_rate_rps" if axis.name == "rate" else "concurrency"
            x = getattr(scenario.workload.arrivals, name, None)
            return float(x) if x is not None else None
        if axis.name == "context":
            return self.fluids()[0].traffic.prompt_tokens
        if axis.name == "acceptance" and not (spec and spec.tree):
            k = scenario.num_speculative_tokens
            tokens = self.fluids()[0].traffic.tokens_per_round(k)
            return conditional_rate(tokens - 1.0, [1.0] * k) if 1 <= tokens <= 1 + k else None
        return None


def step_level_rate_rps(on: FluidModel, off: FluidModel) -> float:
    """Request rate where mean steps put the crossing in latency; NaN where there is none up to the larger capacity."""
    rates = (np.linspace(0.02, 1.0, STEP_LEVEL_RATES) * max(on.capacity_rps(), off.capacity_rps())).tolist()
    return _crossing(rates, lambda rate: _log_advantage_at(rate, on, off))


def _log_advantage_at(rate_rps: float, on: FluidModel, off: FluidModel) -> float:
    """At one rate latencies are as the requests in the system; far from 0 where one side saturates."""
    in_system, without = on.in_system(rate_rps), off.in_system(rate_rps)
    advantage = without / in_system if math.isfinite(in_system) else 1.0 if math.isinf(without) else 0.0
    return math.log(min(max(advantage, 1e-9), 1e9))


def _crossing(points: Sequence[float], log_advantage: Callable[[float], float]) -> float:
    """Where its sign changes first, bisected between two points; NaN where it does not."""
    signed = [(x, value) for x in points if (value := log_advantage(x))]
    for (left, before), (right, after) in itertools.pairwise(signed):
        if before * after < 0:
            low, high = left, right
            for _ in range(12):
                middle = (low + high) / 2
                low, high = (middle, high) if log_advantage(middle) * before > 0 else (low, middle)
            return (low + high) / 2
    return math.nan


def _means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = [name for name in rows[0] if all(name in row for row in rows)]
    return {name: sum(row[name] for row in rows) / len(rows) for name in names}
