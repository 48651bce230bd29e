"""Where speculation stops paying: over the load, the context length or the acceptance, per method and draft length.

Every answer rests on paired runs with and without speculation on the same requests and draft tokens, looked for where
it matters (`sim/statistics/crossing`) and bounded by what a saturated cluster completes. Runs the simulator;
knows nothing of tables on a screen (``scenarios/show/cutover_report.py``).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftcast.errors import InputError
from draftcast.files import picked
from draftcast.scenarios.compare.candidate import with_length, with_methods
from draftcast.scenarios.compare.limits import limits_at
from draftcast.scenarios.compare.metric import COST, METRICS, Metric, Price
from draftcast.scenarios.compare.model_error import response
from draftcast.scenarios.cutover.answer import Cutover, Place, PredictedCutover, TokenCost
from draftcast.scenarios.cutover.axis import Axis, axis_named
from draftcast.scenarios.cutover.probe import FIRST_SHORTFALL, MAX_REQUESTS, Prober
from draftcast.scenarios.run.choices import alpha_of
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import gpus_by_device
from draftcast.sim.progress import Progress, parts_of
from draftcast.sim.statistics.crossing import CrossingSearch, Found, between
from draftcast.sim.statistics.intervals import Estimate

CUTOVER_METRICS: Mapping[str, Metric] = {**METRICS, COST.name: COST}
TARGET = 0.05
BUDGET_REQUESTS = 1_000_000
PREDICTED_POINTS = 80
"""Points at which the probability that speculation is better is looked at."""
STEP_LEVEL_RATES = 40
"""Rates at which the estimate by mean steps is looked at before a change of sign is bisected."""


@dataclass(frozen=True)
class CutoverQuestion:
    """What a cutover or a map of the speed-up is asked for.

    Raises:
        InputError: an axis, metric or budget that is not possible; an SLO, price or second replication missing.
    """

    scenario: Scenario
    over: str = "rate"  # ``rate``, ``concurrency``, ``batch``, ``context`` or ``acceptance``
    # ``tpot``, ``e2e``, ``token_goodput``, ``slo_goodput`` (needs an SLO) or ``cost`` (needs a price)
    metric: str = "e2e"
    at: Sequence[float] = ()  # where to look first; none: over the axis' whole range
    # Simulated at most for each setting (of a map: in all), over both sides and all replications; None: the usual
    # budget
    budget_requests: int | None = None
    price: Price | None = None  # of one GPU; of unlike ones the mean (`mean_price`)

    def __post_init__(self) -> None:
        axis_named(self.over)
        if self.metric not in CUTOVER_METRICS:
            raise InputError(f"must be one of {', '.join(CUTOVER_METRICS)}", file="--metric", value=self.metric)
        if self.metric == COST.name and self.price is None:
            raise InputError("needs --price, which only you know", file="--metric", value=self.metric)
        if self.metric == "slo_goodput" and not self.scenario.slos:
            raise InputError("needs an SLO in the scenario (--set slo.tpot_ms=30)", file="--metric", value=self.metric)
        if self.budget_requests is not None and self.budget_requests < 1:
            raise InputError("must be at least 1", file="--budget", value=self.budget_requests)
        replications = self.scenario.statistics.replications
        if replications < 2:
            message = "must be at least 2: without a spread nothing is sure"
            raise InputError(message, key="statistics.replications", value=replications)

    @property
    def axis(self) -> Axis:
        return axis_named(self.over)

    @property
    def compared(self) -> Metric:
        return CUTOVER_METRICS[self.metric]

    def first_looks(self) -> list[float]:
        """``at`` in order, each once. Raises InputError: a value that the axis does not take."""
        return [self.axis.check(x) for x in sorted(set(self.at))]


def cutover(
    question: CutoverQuestion,
    *,
    lengths: Sequence[int] = (),
    alternatives: Sequence[Mapping[str, Any]] = (),
    target: float = TARGET,
    progress: Progress | None = None,
) -> tuple[Cutover, ...]:
    """The cutover of the scenario's method, then of every alternative, each at every draft length.

    Args:
        lengths: draft lengths; none: each method's own.
        alternatives: further methods, each ``{"speculative_config": {...}, "acceptance": {...}}``.
        target: width of the interval, over its value, at which to stop.
        progress: called with the share of the budget that is spent.

    Raises:
        InputError: a length or target that is not possible; nothing to compare.
    """
    axis = question.axis
    if not 0 < target < 1:
        raise InputError("must lie between 0 and 1", file="--target", value=target)
    grid = question.first_looks()
    variants = settings(question.scenario, lengths, alternatives)
    for variant in variants:  # refuse what cannot be asked before the first second is simulated
        axis.at(variant, grid[0] if grid else 1.0 if axis.is_whole else 0.5)
    budget = question.budget_requests or BUDGET_REQUESTS
    return tuple(
        _answer(Prober(variant, axis, question.compared, budget, part), grid, target, question.price)
        for variant, part in parts_of(progress, variants)
    )


def settings(
    scenario: Scenario, lengths: Sequence[int] = (), alternatives: Sequence[Mapping[str, Any]] = ()
) -> tuple[Scenario, ...]:
    """The scenario's method, then every alternative, each at every draft length (none: its own).

    Raises InputError: no speculation, an alternative of another form, or a length that the acceptance does not cover.
    """
    methods = with_methods(scenario, alternatives)
    if not methods:
        raise InputError("the scenario has no speculation to compare with", key="engine.speculative_config")
    if not lengths:
        return tuple(methods)
    return tuple(with_length(method, k) for method in methods for k in sorted(set(lengths)))


def label(scenario: Scenario) -> str:
    """Method, draft length and, where it is not fixed, the policy."""
    policy = scenario.resolved_policy.name
    named = f"{scenario.method} k={scenario.num_speculative_tokens}"
    return named if policy == "fixed" else f"{named} {policy}"


def _answer(prober: Prober, at: Sequence[float], target: float, price: Price | None) -> Cutover:
    scenario, axis = prober.scenario, prober.axis
    grid, asked = list(at) or first_looks(prober, target), picked(scenario.statistics, "replications confidence")
    found = CrossingSearch(prober, **asked, target=target, unit=float(axis.is_whole)).run(grid)
    capacities: tuple[Estimate | None, Estimate | None] = (None, None)
    if axis.name == "rate" and found.probes:
        on, off = prober.sides(found.probes[0].x)
        capacities = (on.known.capacity_rps if on else None, off.known.capacity_rps if off else None)
    return Cutover(
        scenario,
        label(scenario),
        axis.name,
        axis.unit,
        prober.metric,
        found.crossing,
        found.probes,
        tuple(prober.looks[probe.x] for probe in found.probes),
        *capacities,
        _step_level_crossing(prober, grid),
        _scenario_at(prober),
        *_either_side(prober, found),
        _costs(prober, found, price) if price is not None and prober.metric.name == "cost" else (),
        prober.spent_requests,
        found.stopped,
        _predicted(prober, found, capacities),
    )


def first_looks(prober: Prober, target: float = TARGET) -> list[float]:
    """Where a search over the whole range begins.

    Over rates: just above the smaller capacity, where that is surely the smaller one (what happens there is a matter of
    signs), and as close below it as ``target`` asks for; but no closer than where the longest run still settles.
    """
    axis, fluids = prober.axis, prober.fluids()
    if axis.name != "rate":
        # More requests draw longer ones than the estimate's sample did.
        beside = fluids[0].longest_prompt if axis.name == "output" else fluids[0].longest_output
        longest = fluids[0].deployment.settings.max_model_len - math.ceil(1.25 * beside)
        return axis.first_looks(min(fluid.slots for fluid in fluids), max(longest, 1))
    guess = min(fluid.capacity_rps() for fluid in fluids)
    on, off = prober.sides(guess)
    if on is None or off is None:  # no budget: the first look will say so
        return [guess]
    known = [rate for half in (on, off) if (rate := half.known.capacity_rps) is not None]
    ends = [estimate.low for estimate in known] or [fluid.capacity_rps() * 0.8 for fluid in fluids]
    smallest = min(ends)
    if prober.metric.is_throughput:
        most = max([estimate.high for estimate in known] or ends)
        return [0.5 * smallest, 0.98 * smallest, *np.linspace(smallest, 1.2 * most, 12).tolist()]
    in_system = max(fluid.in_system(0.95 * fluid.capacity_rps()) for fluid in fluids)
    room = math.sqrt(1.0 / max(MAX_REQUESTS * FIRST_SHORTFALL - 1.5 * in_system, 10.0))
    ends = [(1 - room) * smallest]
    if len(known) == 2:
        first, last = sorted(known, key=lambda estimate: estimate.mean)
        if first.high < last.low:
            beyond = first.high * (1 + 1e-6)
            ends = [min(ends[0], (1 - 0.9 * target) * beyond), beyond]
    return [share * ends[0] for share in (0.05, 0.35, 0.65, 0.85)] + ends


def _predicted(
    prober: Prober, found: Found, capacities: tuple[Estimate | None, Estimate | None]
) -> PredictedCutover | None:
    """Where the probability that speculation is better is high, and where it is low."""
    axis, probes, confidence = prober.axis, found.probes, found.crossing.confidence
    if not probes:
        return None
    most = tuple(estimate.mean if estimate is not None else None for estimate in capacities)
    xs = np.geomspace(probes[0].x, probes[-1].x, PREDICTED_POINTS)
    predictions = {}
    for x in np.unique(np.round(xs) if axis.is_whole else xs).tolist():
        errors = response(prober.scenarios(x)[0], prober.fluids(x))
        if errors is None or not errors.reaches(prober.metric):
            return None
        probe = between(probes, x)
        if probe.has_value or axis.name == "rate":
            predictions[x] = errors.predict(probe, confidence, most)
    pays, costs = ([x for x, prediction in predictions.items() if prediction.sign == sign] for sign in (1, -1))
    ends = (pays[-1:], costs[:1]) if found.crossing.falls else (costs[-1:], pays[:1])
    low, high = (each[0] if each else math.nan for each in ends)
    near = min(predictions, key=lambda x: abs(x - found.crossing.best) if found.crossing.kind == "crosses" else -x)
    pays_span, costs_span = ((signs[0], signs[-1]) if signs else None for signs in (pays, costs))
    return PredictedCutover(low, high, pays_span, costs_span, predictions[near].dominant)


def _either_side(prober: Prober, found: Found) -> tuple[Place | None, Place | None]:
    """What limits at the nearest probes on either side of the crossing, or at the ends of what was looked at."""
    probes, crossing = found.probes, found.crossing
    if not probes:
        return None, None
    below = [probe for probe in probes if probe.x <= crossing.low] or probes[:1]
    above = [probe for probe in probes if probe.x >= crossing.high] or probes[-1:]
    places = []
    for probe in (below[-1], above[0]):
        x, look = probe.x, prober.looks[probe.x]
        sides = zip(prober.scenarios(x), prober.fluids(x), (look.on, look.off), look.states, strict=True)
        on, off = (
            limits_at(each, fluid, figures, each.rate_rps if state != "overloaded" else None)
            for each, fluid, figures, state in sides
        )
        places.append(Place(x, probe.advantage(crossing.confidence), on, off))
    return places[0], places[1]


def _costs(prober: Prober, found: Found, price: Price) -> tuple[TokenCost, ...]:
    """Of all GPUs, at each x with values."""
    per_s = price.per_gpu_hour * sum(gpus_by_device(prober.scenario).values()) / 3600
    tokens = prober.fluids()[0].traffic.output_tokens
    rows = []
    for probe in found.probes:
        if probe.has_value:
            # An open loop's values count requests, a closed one's tokens.
            factor = 1.0 if prober.looks[probe.x].on else tokens
            on, off = (per_s * 1e6 / (float(np.mean(side)) * factor) for side in (probe.gains, probe.bases))
            rows.append(TokenCost(probe.x, on, off))
    return tuple(rows)


def _step_level_crossing(prober: Prober, grid: Sequence[float]) -> float | None:
    """Where mean steps put the crossing: over rates up to the larger capacity, else within ``grid``.

    NaN where they do not cross there; None where a mean step says nothing about the metric, the policy or the arrivals.
    """
    axis = prober.axis
    if not grid:
        return None
    points = list(grid)
    if axis.name == "rate":
        most = max(fluid.capacity_rps() for fluid in prober.fluids())
        points = (np.linspace(0.02, 1.0, STEP_LEVEL_RATES) * most).tolist()
    before: tuple[float, float] | None = None
    for x in points:
        value = _log_advantage(prober, x)
        if value is None:
            return None
        if before is not None and before[1] * value < 0:
            low, high = before[0], x
            for _ in range(12):
                middle = (low + high) / 2
                inside = _log_advantage(prober, round(middle) if axis.is_whole else middle)
                assert inside is not None
                low, high = (middle, high) if inside * before[1] > 0 else (low, middle)
            return float((low + high) / 2)
        if value:
            before = (x, value)
    return math.nan


def _log_advantage(prober: Prober, x: float) -> float | None:
    metric, with_sd, (on, off) = prober.metric, prober.scenarios(x)[0], prober.fluids(x)
    closed, rate = with_sd.is_closed_loop, with_sd.rate_rps
    # At one number of clients, latencies are as the inverse of throughputs (Little's law).
    known = metric.name in ("e2e", "tpot") or (closed and metric.is_throughput)
    if not known or not on.exact_policy or (rate is None and not closed):
        return None
    if rate is None:
        clients = with_sd.workload.arrivals.concurrency  # type: ignore[union-attr]
        advantage = off.latency_s(clients) / on.latency_s(clients)
    else:
        in_system, without = on.in_system(rate), off.in_system(rate)
        # At one rate latencies are as the requests in the system; 0 or infinite where one side saturates.
        advantage = without / in_system if math.isfinite(in_system) else 1.0 if math.isinf(without) else 0.0
    return math.log(min(max(advantage, 1e-9), 1e9))


def _scenario_at(prober: Prober) -> float | None:
    """The scenario's own x; None where that is no single number.

    For the acceptance it is the one per draft token, equal at every position, that gives as many tokens a round.
    """
    scenario, axis, spec = prober.scenario, prober.axis, prober.scenario.speculative_config
    if axis.name in ("rate", "concurrency"):
        name = "request_rate_rps" if axis.name == "rate" else "concurrency"
        x = getattr(scenario.workload.arrivals, name, None)
        return float(x) if x is not None else None
    if axis.name == "context":
        return prober.fluids()[0].traffic.prompt_tokens
    if axis.name == "acceptance" and not (spec and spec.tree):
        k = scenario.num_speculative_tokens
        tokens = prober.fluids()[0].traffic.tokens_per_round(k)
        return alpha_of(tokens, k) if 1 <= tokens <= 1 + k else None
    return None
