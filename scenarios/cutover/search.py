"""Where speculation stops paying: over the load, the context length or the acceptance, per method and draft length.

Every answer rests on paired runs with and without speculation on the same requests and draft tokens, looked for where
it matters (`sim/statistics/crossing_search`) and bounded by what a saturated cluster completes. Runs the simulator;
knows nothing of tables on a screen (``scenarios/show/cutover_report.py``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from draftcast.errors import InputError
from draftcast.scenarios.compare.limits import limits_at
from draftcast.scenarios.compare.price import Price
from draftcast.scenarios.compare.recommend import speculative_values
from draftcast.scenarios.compare.verdict import METRICS, THROUGHPUT, Metric
from draftcast.scenarios.cutover.answer import Cutover, Place, TokenCost
from draftcast.scenarios.cutover.axis import RateAxis, axis_named
from draftcast.scenarios.cutover.probe import FIRST_SHORTFALL, MAX_REQUESTS, Prober
from draftcast.scenarios.cutover.step_level import scenario_at, step_level_crossing
from draftcast.scenarios.run.workload_spec import slos
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import with_values, without_speculation
from draftcast.sim.progress import Progress, part_of
from draftcast.sim.statistics.crossing_search import Found, search
from draftcast.sim.statistics.intervals import Estimate

CUTOVER_METRICS: Mapping[str, Metric] = {
    **METRICS,
    # At equal GPUs the cost of a token is the inverse of the tokens delivered; the price decides what that is in money.
    "cost": Metric("cost", "output_throughput", False, "output tokens per money"),
}
TARGET = 0.05
BUDGET_REQUESTS = 600_000


def cutover(
    scenario: Scenario,
    *,
    over: str = "rate",
    metric: str = "e2e",
    lengths: Sequence[int] = (),
    alternatives: Sequence[Mapping[str, Any]] = (),
    at: Sequence[float] = (),
    target: float = TARGET,
    budget_requests: int = BUDGET_REQUESTS,
    price: Price | None = None,
    progress: Progress | None = None,
) -> tuple[Cutover, ...]:
    """The cutover of the scenario's method, then of every alternative, each at every draft length.

    Args:
        over: ``rate``, ``concurrency``, ``batch``, ``context`` or ``acceptance``.
        metric: ``tpot``, ``e2e``, ``token_goodput``, ``slo_goodput`` (needs an SLO) or ``cost`` (needs a price).
        lengths: draft lengths; none: each method's own.
        alternatives: further methods, each ``{"speculative_config": {...}, "acceptance": {...}}``.
        at: where to look first; none: over the axis' whole range.
        target: width of the interval, over its value, at which to stop.
        budget_requests: simulated at most for each setting, over both sides and all replications.
        price: of one GPU.
        progress: called with the share of the budget that is spent.

    Raises:
        InputError: an axis, metric, length or budget that is not possible; nothing to compare; an SLO or price missing.
    """
    axis, chosen = axis_named(over), metric_named(metric, scenario, price)
    if not 0 < target < 1:
        raise InputError("must lie between 0 and 1", file="--target", value=target)
    check_repeated(scenario, budget_requests)
    looks = [axis.check(scenario, x) for x in sorted(set(at))]
    asked = settings(scenario, lengths, alternatives)
    for each in asked:  # refuse what cannot be asked before the first second is simulated
        axis.at(each, looks[0] if looks else 1.0 if axis.whole else 0.5)
    found: list[Cutover] = []
    for index, each in enumerate(asked):
        part = part_of(progress, index, len(asked))
        prober = Prober(each, axis, chosen, budget_requests, part)
        found.append(_one(prober, looks, target, price))
    if progress is not None:
        progress(1.0)
    return tuple(found)


def metric_named(name: str, scenario: Scenario, price: Price | None) -> Metric:
    """The metric of this name.

    Raises:
        InputError: there is none, or what it needs is missing.
    """
    if name not in CUTOVER_METRICS:
        raise InputError(f"must be one of {', '.join(CUTOVER_METRICS)}", file="--metric", value=name)
    if name == "cost" and price is None:
        raise InputError("needs --price, which only you know", file="--metric", value=name)
    if name == "slo_goodput" and not slos(scenario):
        raise InputError("needs an SLO in the scenario (--set slo.tpot_ms=30)", file="--metric", value=name)
    return CUTOVER_METRICS[name]


def check_repeated(scenario: Scenario, budget_requests: int) -> None:
    """Refuse what leaves no interval.

    Raises:
        InputError: fewer than two replications, or no budget.
    """
    if budget_requests < 1:
        raise InputError("must be at least 1", file="--budget", value=budget_requests)
    if scenario.statistics.replications < 2:
        raise InputError(
            "must be at least 2: without a spread nothing is sure",
            key="statistics.replications",
            value=scenario.statistics.replications,
        )


def settings(
    scenario: Scenario, lengths: Sequence[int] = (), alternatives: Sequence[Mapping[str, Any]] = ()
) -> tuple[Scenario, ...]:
    """The scenario's method, then every alternative, each at every draft length (none: its own).

    Raises:
        InputError: no speculation, an alternative of another form, or a length that the acceptance does not cover.
    """
    methods = [scenario] if scenario.speculative_config is not None else []
    for number, alternative in enumerate(alternatives):
        unknown = set(alternative) - {"speculative_config", "acceptance"}
        if unknown or alternative.get("speculative_config") is None:
            raise InputError(
                'must be {"speculative_config": {...}, "acceptance": {...}}', file=f"candidate {number + 1}"
            )
        values = {"engine.speculative_config": alternative["speculative_config"]}
        if "acceptance" in alternative:
            values["acceptance"] = alternative["acceptance"]
        methods.append(with_values(scenario, values))
    if not methods:
        raise InputError("the scenario has no speculation to compare with", key="engine.speculative_config")
    if not lengths:
        return tuple(methods)
    return tuple(with_length(each, k) for each in methods for k in sorted(set(lengths)))


def with_length(scenario: Scenario, k: int) -> Scenario:
    """``scenario`` with k draft tokens.

    Raises:
        InputError: the method or its acceptance does not go so far.
    """
    values = {**speculative_values(scenario), "num_speculative_tokens": k}
    return with_values(scenario, {"engine.speculative_config": values})


def label(scenario: Scenario) -> str:
    """Method, draft length and, where it is not fixed, the policy."""
    policy = scenario.resolved_policy.name
    named = f"{scenario.method} k={scenario.num_speculative_tokens}"
    return named if policy == "fixed" else f"{named} {policy}"


def _one(prober: Prober, at: Sequence[float], target: float, price: Price | None) -> Cutover:
    scenario, axis = prober.scenario, prober.axis
    statistics = scenario.statistics
    grid = list(at) or first_looks(prober, target)
    found = search(
        prober,
        grid,
        replications=statistics.replications,
        confidence=statistics.confidence,
        target=target,
        unit=axis.whole,
    )
    capacities: tuple[Estimate | None, Estimate | None] = (None, None)
    if isinstance(axis, RateAxis) and found.probes:
        on, off = prober.sides(found.probes[0].x)
        capacities = tuple(
            half.capacity.estimate if half is not None and half.capacity is not None else None for half in (on, off)
        )  # type: ignore[assignment]
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
        step_level_crossing(prober, grid),
        scenario_at(prober),
        *_either_side(prober, found),
        _costs(prober, found, price) if price is not None and prober.metric.name == "cost" else (),
        prober.spent_requests,
        found.stopped,
    )


def first_looks(prober: Prober, target: float = TARGET) -> list[float]:
    """Where a search over the whole range begins.

    Over rates: just above the smaller capacity, where that is surely the smaller one (what happens there is a matter of
    signs), and as close below it as ``target`` asks for; but no closer than where the longest run still settles.
    """
    scenario, axis = prober.scenario, prober.axis
    fluids = prober.own_fluids()
    if not isinstance(axis, RateAxis):
        # More requests draw longer outputs than the estimate's sample did.
        longest = fluids[0].deployment.settings.max_model_len - math.ceil(1.25 * fluids[0].longest_output)
        return axis.first_looks(scenario, min(fluid.slots for fluid in fluids), max(longest, 1))
    guess = min(fluid.capacity_rps() for fluid in fluids)
    on, off = prober.sides(guess)
    if on is None or off is None:  # no budget: the first look will say so
        return [guess]
    known = [half.capacity.estimate for half in (on, off) if half.capacity is not None]
    ends = [estimate.low for estimate in known] or [fluid.capacity_rps() * 0.8 for fluid in fluids]
    smallest = min(ends)
    if prober.metric.name in THROUGHPUT:
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


def _either_side(prober: Prober, found: Found) -> tuple[Place | None, Place | None]:
    """What limits at the nearest probes on either side of the crossing, or at the ends of what was looked at."""
    xs = [probe.x for probe in found.probes]
    if not xs:
        return None, None
    if found.crossing.kind != "crosses":
        return _place(prober, found, xs[0]), _place(prober, found, xs[-1])
    below = [x for x in xs if x <= found.crossing.low] or xs[:1]
    above = [x for x in xs if x >= found.crossing.high] or xs[-1:]
    return _place(prober, found, below[-1]), _place(prober, found, above[0])


def _place(prober: Prober, found: Found, x: float) -> Place:
    look = prober.looks[x]
    with_sd = prober.axis.at(prober.scenario, x)
    made = []
    sides = ((with_sd, look.on, look.states[0]), (without_speculation(with_sd), look.off, look.states[1]))
    for each, figures, state in sides:
        rate = prober.axis.rate_rps(each, x) if state != "overloaded" else None
        made.append(limits_at(each, prober.fluid(each, x), figures, rate))
    probe = next(probe for probe in found.probes if probe.x == x)
    return Place(x, probe.advantage(found.crossing.confidence), made[0], made[1])


def _costs(prober: Prober, found: Found, price: Price) -> tuple[TokenCost, ...]:
    """Of all GPUs, at each x with values."""
    scenario = prober.scenario
    gpus = scenario.cluster.replicas * scenario.engine.tensor_parallel_size
    per_s = price.per_gpu_hour * gpus / 3600
    tokens = prober.own_fluids()[0].traffic.output_tokens
    rows = []
    for probe in found.probes:
        if probe.has_value:
            # An open loop's values count requests, a closed one's tokens.
            factor = 1.0 if prober.looks[probe.x].on else tokens
            on, off = (per_s * 1e6 / (float(np.mean(side)) * factor) for side in (probe.gains, probe.bases))
            rows.append(TokenCost(probe.x, on, off))
    return tuple(rows)
