"""Where speculation stops paying: over the load, the context length or the acceptance, per method and draft length.

Every answer rests on paired runs with and without speculation on the same requests and draft tokens, looked for where
it matters (`sim/statistics/crossing`) and bounded by what a saturated cluster completes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal

import numpy as np

from draftcast.errors import InputError
from draftcast.files import picked
from draftcast.scenarios.compare.candidate import with_length, with_methods
from draftcast.scenarios.compare.limits import Limits, limits_at
from draftcast.scenarios.compare.metric import COST, METRICS, Metric, Price, check_slo
from draftcast.scenarios.compare.model_error import Source
from draftcast.scenarios.cutover.axis import CutoverAxis, axis_named
from draftcast.scenarios.cutover.probe import FIRST_SHORTFALL, MAX_REQUESTS, PairedRun, Prober
from draftcast.scenarios.run.deployment import assumptions
from draftcast.scenarios.run.simulate import HasPicture
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import gpus_by_device
from draftcast.scenarios.schema.scenario import GIVE_A_METHOD
from draftcast.sim.progress import Progress, parts_of
from draftcast.sim.statistics.crossing import CrossingKind, CrossingResult, CrossingSearch, Probe, between, locate
from draftcast.sim.statistics.intervals import Estimate

CUTOVER_METRICS: Mapping[str, Metric] = {**METRICS, COST.name: COST}
TARGET = 0.05
BUDGET_REQUESTS = 1_000_000
PREDICTED_POINTS = 80  # points at which the probability that speculation is better is looked at
CutoverVerdict = Literal["crosses", "always pays", "never pays", "no difference", "more than once", "cannot tell"]
_WORDS: dict[CrossingKind, CutoverVerdict] = {
    "crosses": "crosses",
    "always": "always pays",
    "never": "never pays",
    "even": "no difference",
    "more than once": "more than once",
    "unclear": "cannot tell",
}


@dataclass(frozen=True)
class CutoverQuestion:
    """What to search a cutover or draw a speed-up map for.

    Raises:
        InputError: an axis, metric or budget that is not possible; an SLO, price or second replication missing.
    """

    scenario: Scenario
    over: str = "rate"  # ``rate``, ``concurrency``, ``batch``, ``context`` or ``acceptance``
    metric: str = "e2e"  # of `CUTOVER_METRICS`; ``slo_goodput`` needs an SLO, ``cost`` a price
    at: Sequence[float] = ()  # where to look first; none: over the axis' whole range
    # Simulated at most for each setting (of a map: in all), both sides and all replications; None: as many as usual
    budget_requests: int | None = None
    price: Price | None = None  # of one GPU; of unlike ones the mean (`mean_price`)

    def __post_init__(self) -> None:
        axis_named(self.over)
        if isinstance(self.at, str):
            raise InputError("must be a list of numbers", file="--at", value=self.at)
        if self.metric not in CUTOVER_METRICS:
            raise InputError(f"must be one of {', '.join(CUTOVER_METRICS)}", file="--metric", value=self.metric)
        if self.metric == COST.name and self.price is None:
            raise InputError("needs --price, which only you know", file="--metric", value=self.metric)
        check_slo(self.metric, self.scenario)
        if self.budget_requests is not None and self.budget_requests < 1:
            raise InputError("must be at least 1", file="--budget", value=self.budget_requests)
        replications = self.scenario.statistics.replications
        if replications < 2:
            message = "must be at least 2: without a spread nothing is sure"
            raise InputError(message, key="statistics.replications", value=replications)

    @property
    def axis(self) -> CutoverAxis:
        return axis_named(self.over)

    @property
    def compared(self) -> Metric:
        return CUTOVER_METRICS[self.metric]

    def first_points(self) -> list[float]:
        """``at`` in order, each once. Raises InputError: a value that the axis does not take."""
        return [self.axis.check(x) for x in sorted(set(self.at))]


@dataclass(frozen=True)
class Observation:
    """What limits both sides at one x looked at, and the advantage there (None: a side is overloaded)."""

    x: float
    advantage: Estimate | None
    on: Limits
    off: Limits


@dataclass(frozen=True)
class TokenCost:
    """Money per million output tokens at x, with and without speculation, in the currency of the price."""

    x: float
    on: float
    off: float


@dataclass(frozen=True)
class PredictedCutover:
    """The cutover with the errors of step times and acceptance counted in."""

    low: float  # of its prediction interval, within what was looked at; NaN: beyond it
    high: float
    pays: tuple[float, float] | None  # ends of the longest stretch that pays throughout, with its confidence
    costs: tuple[float, float] | None  # of the longest that costs
    dominant: Source  # what widens the interval most, at the simulated crossing
    signs: Mapping[float, int] = field(default_factory=dict)  # at simulated x: +1 where it pays, -1 where it costs


@dataclass(frozen=True)
class Cutover(CrossingResult, HasPicture):
    """The answer for one method and draft length: what the search found, and what it means."""

    picture = "cutover_report.cutover_figure"
    scenario: Scenario = field(repr=False)
    label: str  # method and draft length
    over: str  # the axis
    unit: str  # what its x counts
    metric: Metric
    paired_runs: tuple[PairedRun, ...]  # the figures behind each of ``probes``
    capacity_on: Estimate | None  # requests per second when saturated; None off the rate axis
    capacity_off: Estimate | None
    estimate: float | None  # the crossing by mean steps (NaN: none in the range; None: not for this policy or metric)
    here: float | None  # where the scenario itself stands on the axis; None where that is no single number
    lower: Observation | None  # what limits below the crossing, or at the end of what was looked at
    upper: Observation | None  # above it
    costs: tuple[TokenCost, ...]  # for metric ``cost``, by x
    requests: int  # simulated in all
    prediction: PredictedCutover | None = None  # None as of a verdict's

    @property
    def verdict(self) -> CutoverVerdict:
        """``always pays`` and ``never pays`` hold wherever it was looked; ``cannot tell``: nothing else is true."""
        if self.stopped == "budget spent" and self.crossing.kind in ("always", "never", "even"):
            return "cannot tell"  # not everything that was to be looked at was
        if self.crossing.kind in ("always", "never") and not any(map(self.sign, self.probes)):
            return "cannot tell"  # chance alone decides, the errors of step times and acceptance are larger
        return _WORDS[self.crossing.kind]

    @property
    def notes(self) -> tuple[str, ...]:
        return assumptions(self.scenario)

    @property
    def surely_pays(self) -> tuple[float, float] | None:
        """Between which x speculation is significantly better, the model's errors counted in."""
        return self.prediction.pays if self.prediction else locate(self.probes, self.crossing.confidence).above

    @property
    def surely_costs(self) -> tuple[float, float] | None:
        """Between which x speculation is significantly worse, the model's errors counted in."""
        return self.prediction.costs if self.prediction else locate(self.probes, self.crossing.confidence).below

    def sign(self, probe: Probe) -> int:
        """+1 where speculation surely pays at a simulated point, -1 where it costs, the model's errors counted in."""
        if self.prediction is None:
            return probe.sign(self.crossing.confidence)
        return self.prediction.signs.get(probe.x, 0)

    def summary(self) -> dict[str, Any]:
        confidence, crosses = self.crossing.confidence, self.verdict == "crosses"
        return {
            **picked(self, "over unit verdict surely_pays surely_costs stopped notes"),
            "prediction": picked(self.prediction, "low high pays costs dominant") if self.prediction else None,
            **picked(self.crossing, "low high confidence"),
            "setting": self.label,
            "metric": self.metric.name,
            "cutover": self.crossing.best if crosses else None,
            "pays_below": self.crossing.falls if crosses else None,
            "step_level_estimate": self.estimate,
            "scenario_at": self.here,
            "capacity_rps": {"on": self.capacity_on, "off": self.capacity_off},
            "limits": {"lower": self.lower, "upper": self.upper},
            "cost_per_million_tokens": self.costs,
            "points": [
                {
                    **picked(probe, "x note"),
                    "advantage": probe.advantage(confidence),
                    "sign": self.sign(probe),
                    **picked(run, "replications requests on off"),
                }
                for probe, run in zip(self.probes, self.paired_runs, strict=True)
            ],
            "requests_simulated": self.requests,
        }


def cutover(
    question: CutoverQuestion | Scenario,
    *,
    lengths: Sequence[int] = (),
    alternatives: Sequence[Mapping[str, Any]] = (),
    target: float = TARGET,
    progress: Progress | None = None,
) -> tuple[Cutover, ...]:
    """The cutover of the scenario's method, then of every alternative, each at every draft length.

    Args:
        question: or a scenario, whose request rate is then searched.
        lengths: draft lengths; none: each method's own.
        alternatives: further methods, each ``{"speculative_config": {...}, "acceptance": {...}}``.
        target: stop when the interval's width is this share of the cutover.
        progress: called with the share of the budget that is spent.

    Raises:
        InputError: a length or target that is not possible; nothing to compare.
    """
    question = CutoverQuestion(question) if isinstance(question, Scenario) else question
    axis = question.axis
    if not 0 < target < 1:
        raise InputError("must lie between 0 and 1", file="--target", value=target)
    grid = question.first_points()
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
    """The scenario's method, then every alternative, each at every draft length (none: its own). Raises InputError: no
    speculation, an alternative of another form, or a length that the acceptance does not cover.
    """
    methods = with_methods(scenario, alternatives)
    if not methods:
        message = f"the scenario has no speculation to compare with: {GIVE_A_METHOD}"
        raise InputError(message, key="engine.speculative_config")
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
    grid, statistics = list(at) or first_points(prober, target), picked(scenario.statistics, "replications confidence")
    result = CrossingSearch(prober, **statistics, target=target, unit=float(axis.is_whole)).run(grid)
    capacities: tuple[Estimate | None, Estimate | None] = (None, None)
    if axis.name == "rate" and result.probes:
        on, off = prober.sides(result.probes[0].x)
        capacities = (on.side.capacity_rps if on else None, off.side.capacity_rps if off else None)
    return Cutover(
        result.crossing,
        result.probes,
        result.stopped,
        scenario,
        label(scenario),
        axis.name,
        axis.unit,
        prober.metric,
        tuple(prober.paired_runs[probe.x] for probe in result.probes),
        *capacities,
        prober.step_level_crossing(grid),
        prober.scenario_at(),
        *_either_side(prober, result),
        _costs(prober, result, price) if price is not None and prober.metric.name == "cost" else (),
        prober.spent_requests,
        _predicted(prober, result, capacities),
    )


def first_points(prober: Prober, target: float = TARGET) -> list[float]:
    """Where a search over the whole range begins. Over rates: just above the smaller capacity, where that is surely the
    smaller (what happens there is a matter of signs), and as close below it as ``target`` asks for and the longest run
    still settles."""
    axis, fluids = prober.axis, prober.fluids()
    if axis.name != "rate":
        # More requests draw longer ones than the estimate's sample did.
        beside = fluids[0].longest_prompt if axis.name == "output" else fluids[0].longest_output
        longest = fluids[0].deployment.settings.max_model_len - math.ceil(1.25 * beside)
        return axis.first_points(min(fluid.slots for fluid in fluids), max(longest, 1))
    guess = min(fluid.capacity_rps() for fluid in fluids)
    on, off = prober.sides(guess)
    if on is None or off is None:  # no budget: the first point will say so
        return [guess]
    capacities = [rate for half in (on, off) if (rate := half.side.capacity_rps) is not None]
    ends = [estimate.low for estimate in capacities] or [fluid.capacity_rps() * 0.8 for fluid in fluids]
    smallest = min(ends)
    if prober.metric.is_throughput:
        most = max([estimate.high for estimate in capacities] or ends)
        return [0.5 * smallest, 0.98 * smallest, *np.linspace(smallest, 1.2 * most, 12).tolist()]
    in_system = max(fluid.in_system(0.95 * fluid.capacity_rps()) for fluid in fluids)
    room = math.sqrt(1.0 / max(MAX_REQUESTS * FIRST_SHORTFALL - 1.5 * in_system, 10.0))
    ends = [(1 - room) * smallest]
    ordered = sorted(capacities, key=lambda estimate: estimate.mean)
    if len(ordered) == 2 and ordered[0].high < ordered[1].low:
        beyond = ordered[0].high * (1 + 1e-6)
        ends = [min(ends[0], (1 - 0.9 * target) * beyond), beyond]
    return [share * ends[0] for share in (0.05, 0.35, 0.65, 0.85)] + ends


def _predicted(
    prober: Prober, result: CrossingResult, capacities: tuple[Estimate | None, Estimate | None]
) -> PredictedCutover | None:
    """Where the probability that speculation is better is high, and where it is low."""
    axis, probes = prober.axis, result.probes
    if not probes:
        return None
    on, off = (estimate.mean if estimate is not None else None for estimate in capacities)
    xs = np.geomspace(probes[0].x, probes[-1].x, PREDICTED_POINTS)
    predictions, with_use = {}, [run for probe in probes if (run := prober.paired_runs[probe.x]).slo_use is not None]
    for x in sorted({*(np.round(xs) if axis.is_whole else xs).tolist(), *(probe.x for probe in probes)}):
        use = min(with_use, key=lambda run: abs(run.x - x)).slo_use if with_use else None
        if (prediction := prober.predict(between(probes, x), (on, off), use)) is not None:
            predictions[x] = prediction
    if not predictions:
        return None
    pays, costs = ([x for x, prediction in predictions.items() if prediction.sign == sign] for sign in (1, -1))
    ends = (pays[-1:], costs[:1]) if result.crossing.falls else (costs[-1:], pays[:1])
    low, high = (stretch[0] if stretch else math.nan for stretch in ends)
    near = min(predictions, key=lambda x: abs(x - result.crossing.best) if result.crossing.kind == "crosses" else -x)
    signs = {x: prediction.sign for x, prediction in predictions.items()}
    spans = (_longest(signs, 1), _longest(signs, -1))
    return PredictedCutover(low, high, *spans, predictions[near].dominant, {p.x: signs.get(p.x, 0) for p in probes})


def _longest(signs: Mapping[float, int], sign: int) -> tuple[float, float] | None:
    """Ends of the longest run of this sign along the x, as a ratio; None where there is none."""
    runs = [list(run) for value, run in groupby(signs, key=lambda x: signs[x]) if value == sign]
    return max(((run[0], run[-1]) for run in runs), key=lambda ends: ends[1] / ends[0], default=None)


def _either_side(prober: Prober, result: CrossingResult) -> tuple[Observation | None, Observation | None]:
    """What limits at the nearest probes on either side of the crossing, or at the ends of what was looked at."""
    probes, crossing = result.probes, result.crossing
    if not probes:
        return None, None
    below = [probe for probe in probes if probe.x <= crossing.low] or probes[:1]
    above = [probe for probe in probes if probe.x >= crossing.high] or probes[-1:]
    observations = []
    for probe in (below[-1], above[0]):
        x, run = probe.x, prober.paired_runs[probe.x]
        sides = zip(prober.scenarios(x), prober.fluids(x), (run.on, run.off), run.states, strict=True)
        on, off = (
            limits_at(variant, fluid, figures, variant.rate_rps if state != "overloaded" else None)
            for variant, fluid, figures, state in sides
        )
        observations.append(Observation(x, probe.advantage(crossing.confidence), on, off))
    return observations[0], observations[1]


def _costs(prober: Prober, result: CrossingResult, price: Price) -> tuple[TokenCost, ...]:
    """Of all GPUs, at each x with values."""
    per_s = price.per_gpu_hour * sum(gpus_by_device(prober.scenario).values()) / 3600
    rows = []
    for probe in result.probes:
        if probe.has_value:
            # An open loop's values count requests, a closed one's tokens.
            factor = 1.0 if prober.paired_runs[probe.x].on else prober.fluids(probe.x)[0].traffic.output_tokens
            on, off = (per_s * 1e6 / (float(np.mean(side)) * factor) for side in (probe.gains, probe.bases))
            rows.append(TokenCost(probe.x, on, off))
    return tuple(rows)
