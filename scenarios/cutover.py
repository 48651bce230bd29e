"""Where speculation stops paying: over the load, the context length or the acceptance, per method and draft length.

Every answer rests on paired runs with and without speculation on the same requests and draft tokens, looked for where
it matters (`draftcast.sim.crossing_search`) and bounded by what a saturated cluster completes. Runs the simulator;
knows nothing of tables on a screen (``scenarios/cutover_report.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from draftcast.errors import InputError
from draftcast.scenarios.cutover_axis import RateAxis, axis_named, is_closed
from draftcast.scenarios.cutover_estimate import advantage_at
from draftcast.scenarios.cutover_limits import Limits, limits
from draftcast.scenarios.cutover_probe import FIRST_SHORTFALL, MAX_REQUESTS, THROUGHPUT_METRICS, Look, Prober
from draftcast.scenarios.load import with_values, without_speculation
from draftcast.scenarios.recommend import METRICS, Metric, speculative_values
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.workload_spec import slos
from draftcast.sim.crossing import Crossing, Probe
from draftcast.sim.crossing_search import Found, search
from draftcast.sim.statistics import Estimate

CUTOVER_METRICS: Mapping[str, Metric] = {
    **METRICS,
    # At equal GPUs the cost of a token is the inverse of the tokens delivered; the price decides what that is in money.
    "cost": Metric("cost", "output_throughput", False, "cost per output token"),
}
TARGET = 0.05
BUDGET_REQUESTS = 600_000
Verdict = Literal["crosses", "always pays", "never pays", "no difference", "more than once", "cannot tell"]
Progress = Callable[[float], None]


@dataclass(frozen=True)
class Side:
    """What limits both sides at one x looked at, and the advantage there (None: a side is overloaded)."""

    x: float
    advantage: Estimate | None
    on: Limits
    off: Limits


@dataclass(frozen=True)
class Cutover:
    """The answer for one method and draft length.

    Attributes:
        label: method and draft length.
        over, unit: the axis, and what its x counts.
        verdict: ``crosses``; ``always pays`` / ``never pays`` (wherever anything is sure, up to what the cluster can
            take); ``no difference``; ``more than once``; ``cannot tell``.
        crossing: the statistics behind it, see `draftcast.sim.crossing.Crossing`.
        probes, looks: what was looked at, by x, and the figures behind each.
        capacity_on, capacity_off: requests per second when saturated; None in closed loops and off the rate axis.
        estimate: the crossing by mean steps alone (NaN: none in the range; None: not for this policy or load).
        here: where the scenario itself stands on the axis; None where that is no single number.
        lower, upper: what limits on either side of the crossing, or at the ends of what was looked at.
        cost: for metric ``cost``: money per million output tokens with and without speculation, by x.
        requests: simulated in all.
        stopped: why the search ended.
    """

    scenario: Scenario
    label: str
    over: str
    unit: str
    metric: Metric
    verdict: Verdict
    crossing: Crossing
    probes: tuple[Probe, ...]
    looks: tuple[Look, ...]
    capacity_on: Estimate | None
    capacity_off: Estimate | None
    estimate: float | None
    here: float | None
    lower: Side | None
    upper: Side | None
    cost: tuple[tuple[float, float, float], ...]
    requests: int
    stopped: str

    def summary(self) -> dict[str, Any]:
        """For ``--json``."""
        confidence = self.crossing.confidence
        points = [
            {
                "x": probe.x,
                "advantage": probe.advantage(confidence),
                "sign": probe.sign(confidence),
                "note": probe.note,
                "replications": look.replications,
                "requests": look.requests,
                "on": look.on,
                "off": look.off,
            }
            for probe, look in zip(self.probes, self.looks, strict=True)
        ]
        return {
            "setting": self.label,
            "over": self.over,
            "unit": self.unit,
            "metric": self.metric.name,
            "verdict": self.verdict,
            "cutover": self.crossing.best if self.verdict == "crosses" else None,
            "low": self.crossing.low,
            "high": self.crossing.high,
            "pays_below": self.crossing.falls if self.verdict == "crosses" else None,
            "confidence": confidence,
            "surely_pays": self.crossing.above,
            "surely_costs": self.crossing.below,
            "step_level_estimate": self.estimate,
            "scenario_at": self.here,
            "capacity_rps": {"on": self.capacity_on, "off": self.capacity_off},
            "limits": {"lower": self.lower, "upper": self.upper},
            "cost_per_million_tokens": [dict(zip(("x", "on", "off"), row, strict=True)) for row in self.cost],
            "points": points,
            "requests_simulated": self.requests,
            "stopped": self.stopped,
        }


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
    price_per_gpu_hour: float | None = None,
    progress: Progress | None = None,
) -> tuple[Cutover, ...]:
    """The cutover of the scenario's method at each draft length, then of every alternative.

    Args:
        over: ``rate``, ``concurrency``, ``batch``, ``context`` or ``acceptance``.
        metric: ``tpot``, ``e2e``, ``token_goodput``, ``slo_goodput`` (needs an SLO) or ``cost`` (needs a price).
        lengths: draft lengths; none: the scenario's own.
        alternatives: further methods, each ``{"speculative_config": {...}, "acceptance": {...}}``.
        at: where to look first; none: over the axis' whole range.
        target: width of the interval, over its value, at which to stop.
        budget_requests: simulated at most for each setting, over both sides and all replications.
        price_per_gpu_hour: in any currency.
        progress: called with the share of the budget that is spent.

    Raises:
        InputError: an axis, metric, length or budget that is not possible; nothing to compare; an SLO or price missing.
    """
    axis = axis_named(over)
    chosen = CUTOVER_METRICS.get(metric)
    if chosen is None:
        raise InputError(f"must be one of {', '.join(CUTOVER_METRICS)}", file="--metric", value=metric)
    if not 0 < target < 1:
        raise InputError("must lie between 0 and 1", file="--target", value=target)
    if budget_requests < 1:
        raise InputError("must be at least 1", file="--budget", value=budget_requests)
    if metric == "cost" and price_per_gpu_hour is None:
        raise InputError("needs a price per GPU hour, which only you know", file="--metric", value=metric)
    if metric == "slo_goodput" and not slos(scenario):
        raise InputError("needs an SLO in the scenario (--set slo.tpot_ms=30)", file="--metric", value=metric)
    if scenario.statistics.replications < 2:
        raise InputError(
            "must be at least 2: without a spread nothing is sure",
            key="statistics.replications",
            value=scenario.statistics.replications,
        )
    looks = [axis.check(scenario, x) for x in sorted(set(at))]
    asked = settings(scenario, lengths, alternatives)
    for each in asked:  # refuse what cannot be asked before the first second is simulated
        axis.at(each, looks[0] if looks else 1.0 if axis.whole else 0.5)
    found = []
    for index, each in enumerate(asked):
        prober = Prober(each, axis, chosen, budget_requests, _part(progress, index, len(asked)))
        found.append(_one(prober, looks, target, price_per_gpu_hour))
    if progress is not None:
        progress(1.0)
    return tuple(found)


def settings(
    scenario: Scenario, lengths: Sequence[int], alternatives: Sequence[Mapping[str, Any]]
) -> tuple[Scenario, ...]:
    """The scenario at each draft length, then every alternative.

    Raises:
        InputError: no speculation, an alternative of another form, or a length that the acceptance does not cover.
    """
    found = []
    if scenario.speculative_config is not None:
        own = speculative_values(scenario)
        for length in lengths or (None,):
            values = own if length is None else {**own, "num_speculative_tokens": length}
            found.append(with_values(scenario, {"engine.speculative_config": values}))
    elif not alternatives:
        raise InputError("the scenario has no speculation to compare with", key="engine.speculative_config")
    for number, alternative in enumerate(alternatives):
        unknown = set(alternative) - {"speculative_config", "acceptance"}
        if unknown or alternative.get("speculative_config") is None:
            raise InputError(
                'must be {"speculative_config": {...}, "acceptance": {...}}', file=f"candidate {number + 1}"
            )
        values = {"engine.speculative_config": alternative["speculative_config"]}
        if "acceptance" in alternative:
            values["acceptance"] = alternative["acceptance"]
        found.append(with_values(scenario, values))
    return tuple(found)


def _one(prober: Prober, at: Sequence[float], target: float, price: float | None) -> Cutover:
    scenario, axis = prober.scenario, prober.axis
    statistics = scenario.statistics
    grid = list(at) or first_looks(prober)
    found = search(
        prober,
        grid,
        replications=statistics.replications,
        confidence=statistics.confidence,
        target=target,
        unit=axis.whole,
    )
    looks = tuple(prober.looks[probe.x] for probe in found.probes)
    capacities: tuple[Estimate | None, Estimate | None] = (None, None)
    if isinstance(axis, RateAxis) and looks:
        on, off = prober.sides(looks[0].x)
        capacities = (on.capacity if on is not None else None, off.capacity if off is not None else None)
    lower, upper = _either_side(prober, found)
    return Cutover(
        scenario,
        f"{scenario.method} k={scenario.num_speculative_tokens}",
        axis.name,
        axis.unit,
        prober.metric,
        _verdict(found.crossing),
        found.crossing,
        found.probes,
        looks,
        *capacities,
        _estimate(prober, grid),
        _here(prober),
        lower,
        upper,
        _cost(prober, found.probes, price) if price is not None else (),
        prober.spent_requests,
        found.stopped,
    )


def first_looks(prober: Prober) -> list[float]:
    """Where a search over the whole range begins.

    Over rates: up to the largest rate that the longest run still settles at, and just above the smaller capacity where
    that is surely the smaller one: what happens there is a matter of signs.
    """
    scenario, axis = prober.scenario, prober.axis
    fluids = [prober.fluid(each, 1.0) for each in (scenario, without_speculation(scenario))]
    if not isinstance(axis, RateAxis):
        # More requests draw longer outputs than the estimate's sample did.
        longest = fluids[0].deployment.settings.max_model_len - math.ceil(1.25 * fluids[0].longest_output)
        return axis.first_looks(scenario, min(fluid.slots for fluid in fluids), max(longest, 1))
    on, off = prober.sides(min(fluid.capacity_rps() for fluid in fluids))
    if on is None or off is None:
        return []
    known = [side.capacity for side in (on, off) if side.capacity is not None]
    ends = [estimate.low for estimate in known] or [fluid.capacity_rps() * 0.8 for fluid in fluids]
    smallest = min(ends)
    if prober.metric.name in THROUGHPUT_METRICS:
        most = max([estimate.high for estimate in known] or ends)
        return [0.5 * smallest, 0.98 * smallest, *np.linspace(smallest, 1.2 * most, 12).tolist()]
    in_system = max(fluid.in_system(0.95 * fluid.capacity_rps()) for fluid in fluids)
    room = math.sqrt(1.0 / max(MAX_REQUESTS * FIRST_SHORTFALL - 1.5 * in_system, 10.0))
    looks = [share * smallest for share in (0.05, 0.3, 0.6, 0.85, 1 - room)]
    if len(known) == 2:
        first, last = sorted(known, key=lambda estimate: estimate.mean)
        if first.high < last.low:
            looks.append(first.high * (1 + 1e-6))
    return looks


def _verdict(crossing: Crossing) -> Verdict:
    words: dict[str, Verdict] = {
        "crosses": "crosses",
        "always": "always pays",
        "never": "never pays",
        "even": "no difference",
        "more than once": "more than once",
    }
    return words.get(crossing.kind, "cannot tell")


def _estimate(prober: Prober, grid: Sequence[float]) -> float | None:
    """Where mean steps alone put the crossing, inside the range of ``grid``; NaN where they do not cross there."""
    scenario, axis = prober.scenario, prober.axis
    if prober.metric.name not in ("e2e", "tpot") or not grid:
        return None

    def log_advantage(x: float) -> float | None:
        with_sd = axis.at(scenario, x)
        on, off = prober.fluid(with_sd, x), prober.fluid(without_speculation(with_sd), x)
        if not on.exact_policy:
            return None
        rate = axis.rate_rps(with_sd, x) if not is_closed(with_sd) else None
        if rate is None and not is_closed(with_sd):
            return None
        clients = getattr(with_sd.workload.arrivals, "concurrency", None)
        return math.log(min(max(advantage_at(on, off, rate, clients), 1e-9), 1e9))

    points = np.linspace(grid[0], grid[-1] * 1.05, 30) if axis.name == "rate" else np.asarray(grid)
    before: tuple[float, float] | None = None
    for x in points.tolist():
        value = log_advantage(x)
        if value is None:
            return None
        if before is not None and before[1] * value < 0:
            low, high = before[0], x
            for _ in range(12):
                middle = (low + high) / 2
                inside = log_advantage(round(middle) if axis.whole else middle)
                assert inside is not None
                low, high = (middle, high) if inside * before[1] > 0 else (low, middle)
            return float((low + high) / 2)
        before = (x, value)
    return math.nan


def _here(prober: Prober) -> float | None:
    """The scenario's own x."""
    scenario, axis = prober.scenario, prober.axis
    if axis.name == "rate":
        return _own_rate(scenario)
    if axis.name == "concurrency":
        clients = getattr(scenario.workload.arrivals, "concurrency", None)
        return float(clients) if clients is not None else None
    if axis.name == "context":
        return prober.own_fluid().traffic.prompt_tokens
    if axis.name == "acceptance" and scenario.method != "eagle_tree":
        return _equal_alpha(prober.own_fluid().traffic.tokens_per_round(scenario.num_speculative_tokens), scenario)
    return None


def _own_rate(scenario: Scenario) -> float | None:
    rate = getattr(scenario.workload.arrivals, "request_rate_rps", None)
    return float(rate) if rate is not None else None


def _equal_alpha(tokens_per_round: float, scenario: Scenario) -> float | None:
    """The acceptance per draft token that gives as many tokens a round, independent draws assumed."""
    k = scenario.num_speculative_tokens
    if not 1 <= tokens_per_round <= 1 + k:
        return None
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**i for i in range(k + 1)) < tokens_per_round else (low, middle)
    return high


def _either_side(prober: Prober, found: Found) -> tuple[Side | None, Side | None]:
    """What limits at the nearest probes with figures on either side of the crossing, or at the ends."""
    xs = [probe.x for probe in found.probes if prober.looks[probe.x].on]
    if not xs:
        return None, None
    if found.crossing.kind == "crosses":
        below = [x for x in xs if x <= found.crossing.low] or xs[:1]
        above = [x for x in xs if x >= found.crossing.high] or xs[-1:]
        return _side(prober, found, below[-1]), _side(prober, found, above[0])
    return _side(prober, found, xs[0]), _side(prober, found, xs[-1])


def _side(prober: Prober, found: Found, x: float) -> Side:
    look = prober.looks[x]
    with_sd = prober.axis.at(prober.scenario, x)
    made = []
    for each, figures in ((with_sd, look.on), (without_speculation(with_sd), look.off)):
        in_system = max(figures["request_throughput"] * figures["mean_e2el_s"], 1.0)
        made.append(limits(prober.fluid(each, x), each.engine, in_system, figures["kv_cache_usage"]))
    probe = next(probe for probe in found.probes if probe.x == x)
    return Side(x, probe.advantage(found.crossing.confidence), made[0], made[1])


def _cost(prober: Prober, probes: Sequence[Probe], price: float) -> tuple[tuple[float, float, float], ...]:
    """Money per million output tokens of all GPUs at each x with values."""
    scenario = prober.scenario
    gpus = scenario.cluster.replicas * scenario.engine.tensor_parallel_size
    per_s = price * gpus / 3600
    tokens = prober.own_fluid().traffic.output_tokens
    rows = []
    for probe in probes:
        if probe.has_value:
            # An open loop's values count requests, a closed one's tokens.
            factor = 1.0 if prober.looks[probe.x].on else tokens
            on, off = (per_s * 1e6 / (float(np.mean(side)) * factor) for side in (probe.gains, probe.bases))
            rows.append((probe.x, on, off))
    return tuple(rows)


def _part(progress: Progress | None, index: int, count: int) -> Progress | None:
    return None if progress is None else lambda share: progress((index + share) / count)
