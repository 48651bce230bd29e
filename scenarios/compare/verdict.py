"""The verdict: does speculation pay at this load? One function, which every command and every page asks.

Where a side stands towards its capacity decides first: above it the queue grows, and no figure of a run means anything.
Below it on both sides, the paired runs decide by the interval of the log ratio of the metric.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from draftcast.files import picked
from draftcast.scenarios.compare.capacity import CapacityEstimate, capacity
from draftcast.scenarios.compare.metric import E2E, Metric
from draftcast.scenarios.compare.model_error import Prediction, Response, RunAtBounds, SloUse, predicted, response
from draftcast.scenarios.run.simulate import RunResult, State
from draftcast.scenarios.schema import Scenario, without_speculation
from draftcast.sim.progress import Progress, part_of
from draftcast.sim.statistics.crossing import Probe
from draftcast.sim.statistics.intervals import Estimate

Word = Literal["pays", "costs", "too close to call", "overloaded", "not settled"]
BY_SIGN: tuple[Word, ...] = ("too close to call", "pays", "costs")  # by the logarithm's sign, -1 from the end
SIGNS: Mapping[str, int] = {"pays": 1, "costs": -1}  # and back; of every other word 0
Position = Literal["below", "at", "above"]


@dataclass(frozen=True)
class Side:
    """One setting at one load."""

    run: RunResult | None  # its simulation; None where the capacity alone was asked
    position: Position  # of the load towards the capacity's interval
    capacity: CapacityEstimate | None = None  # None where the run tells that it is far above, or without a single rate
    scenario: Scenario | None = None  # of the run

    @property
    def state(self) -> State:
        """In a word; a run that falls behind below its capacity was too short."""
        if self.position == "above":
            return "overloaded"
        if self.position == "at":
            return "at capacity"
        if self.run is None or self.run.state in ("not settled", "overloaded"):
            return "not settled"
        return self.run.state

    @property
    def capacity_rps(self) -> Estimate | None:
        """The capacity with its interval; None where it was not simulated."""
        return self.capacity.estimate if self.capacity is not None else None

    @property
    def mean_capacity_rps(self) -> float | None:
        return self.capacity.estimate.mean if self.capacity is not None else None

    @property
    def predicted_capacity_rps(self) -> Estimate | None:
        """The capacity with its prediction interval."""
        simulated = self.capacity_rps
        return predicted(simulated, self.scenario) if simulated is not None and self.scenario is not None else simulated

    @property
    def has_figures(self) -> bool:
        """Whether the run's figures hold for the load."""
        return self.state in ("steady", "finite")

    @property
    def figures(self) -> dict[str, Estimate] | None:
        """The run's figures with their intervals; None where they do not hold for the load."""
        return self.run.summary["figures"] if self.run is not None and self.has_figures else None

    @functools.cached_property
    def predicted_figures(self) -> dict[str, Estimate]:
        """Those of `RunAtBounds.predicted_figures` with their prediction intervals; none where the run has none."""
        return self.reach.predicted_figures(self.run) if self.run is not None and self.reach is not None else {}

    @functools.cached_property
    def reach(self) -> RunAtBounds | None:
        """What the errors of step times and acceptance do to the run; None where its figures do not hold."""
        if self.run is None or self.figures is None or self.scenario is None:
            return None
        return RunAtBounds.of(self.scenario, self.run, self.mean_capacity_rps)

    @property
    def slo_is_open(self) -> bool:
        """Whether the errors of step times and acceptance decide if the SLO is met."""
        if self.run is None or self.reach is None or self.scenario is None:
            return False
        return self.reach.leaves_open(self.scenario, self.run)

    @property
    def completes_what_arrives(self) -> bool:
        """Whether its throughput is the load's, whatever the setting: an open loop below its capacity."""
        return self.state == "steady" and self.run is not None and not self.run.closed_loop


def side(
    scenario: Scenario, run: RunResult | None, *, progress: Progress | None = None, ask_capacity: bool = False
) -> Side:
    """Where a setting stands at its load; its capacity is simulated if asked, or if the run does not settle it."""
    rate = scenario.rate_rps
    if run is not None and not ask_capacity and (run.state == "finite" or (run.state == "steady" and run.is_warm)):
        return Side(run, "below", scenario=scenario)
    saturated = capacity(scenario, rate, progress=progress) if rate is not None else None
    if rate is None or saturated is None:
        return Side(run, "above" if run is not None and run.state == "overloaded" else "below", scenario=scenario)
    placed = dataclasses.replace(side_by_capacity(rate, saturated), run=run, scenario=scenario)
    if run is not None and not placed.has_figures:
        # The run alone did not know the capacity.
        stability = run.summary["stability"]
        stability.update(state=placed.state, unstable=placed.state == "overloaded", steady=False)
        if placed.state == "overloaded":
            stability.update(largest_stable_rate_rps=saturated.estimate.low, saturated_rates_rps=list(saturated.rates))
    return placed


def side_by_capacity(rate_rps: float, saturated: CapacityEstimate) -> Side:
    """Where a load stands towards a capacity, before any run of it."""
    low, high = saturated.estimate.low, saturated.estimate.high
    return Side(None, "above" if rate_rps > high else "below" if rate_rps < low else "at", saturated)


@dataclass(frozen=True)
class Verdict:
    """Whether speculation pays at a load."""

    word: Word  # see `Word`; ``not settled``: the run is too short to tell
    metric: Metric  # what is compared
    on: Side  # with speculation, ``off`` without
    off: Side
    probe: Probe  # the metric by replication; no values where a side is overloaded, at its capacity or not settled
    confidence: float  # of the intervals
    is_finite: bool = False  # it holds for this list of requests and no other
    # With the errors of step times and acceptance, which the word goes by; None where these are taken for exact, or
    # nothing is known of what they do to the metric
    prediction: Prediction | None = None

    @property
    def advantage(self) -> Estimate | None:
        """How many times better with speculation: paired, with the prediction interval if the times can err."""
        simulated = advantage_of(self.probe, self.confidence)
        if simulated is None or self.prediction is None or self.prediction.advantage is None:
            return simulated
        return simulated.within(self.prediction.advantage.low, self.prediction.advantage.high)

    @property
    def doubt(self) -> float:
        """Logarithm by which a ratio of the sides may be nearer to 1 than that of the runs; 0: chance alone decides."""
        reach = self.prediction.advantage if self.prediction is not None else None
        simulated = self.advantage
        if reach is None or simulated is None:
            return 0.0
        towards = (simulated.mean, reach.low) if simulated.mean > 1.0 else (reach.high, simulated.mean)
        return math.log(towards[0] / towards[1]) if towards[1] else math.inf

    @property
    def advice(self) -> Literal["on", "off", ""]:
        """What to do; "" where neither can be recommended."""
        return {"pays": "on", "costs": "off"}.get(self.word, "")  # type: ignore[return-value]

    @property
    def why(self) -> str:
        """What decided, in a few words; empty where the advantage says it."""
        if self.word == "too close to call" and self.advantage is not None and math.isnan(self.advantage.low):
            return "one replication has no interval"
        if self.word == "too close to call" and self.prediction is not None:
            return f"speculation is better with a probability of {self.prediction.probability:.0%}"
        return _why(self.word, self.on, self.off)

    def sentence(self, load: str) -> str:
        """For people; ``load`` says at which load, e.g. ``at 8 req/s``."""
        where = f"{load} for these requests" if self.is_finite else load
        if self.word == "overloaded":
            sides = (("with", self.on.capacity_rps), ("without", self.off.capacity_rps))
            limits = [f"{capacity_rps.mean:.4g} {name}" for name, capacity_rps in sides if capacity_rps is not None]
            most = f" The cluster completes at most {', '.join(limits)} speculation (req/s)." if limits else ""
            return f"Overloaded {where}, with speculation and without.{most}"
        prediction = self.prediction
        if self.word in ("pays", "costs"):
            sure = ""
            if prediction is not None:
                chances = prediction.probability if self.word == "pays" else 1.0 - prediction.probability
                sure = f" (probability {'above 99%' if chances > 0.99 else f'{chances:.0%}'})"  # never certain
            change = self.advantage
            how = f"{self.metric.label} is {_change(self, change)}" if change else f"the cluster is {self.why}"
            return f"Speculation {self.word} {where}{sure}: {how}. Recommended: {self.advice}."
        reason = self.why
        if not reason and self.advantage is not None:
            reason = f"the advantage in {self.metric.label} is {_times(self.advantage)}, and its interval includes 1"
        more = " More requests will tell." if self.word == "not settled" else ""
        if self.word == "too close to call" and prediction is not None:
            more = f" {prediction.advice}"
        return f"{self.word.capitalize()} {where}: {reason or 'there is no figure to compare'}.{more}"

    def summary(self) -> dict[str, Any]:
        return {
            **picked(self, "word advantage why"),
            "metric": self.metric.name,
            "states": {"on": self.on.state, "off": self.off.state},
            "capacity_rps": {"on": self.on.capacity_rps, "off": self.off.capacity_rps},
            "finite": self.is_finite,
            "prediction": self.prediction.summary() if self.prediction is not None else None,
            "predicted_capacity_rps": {"on": self.on.predicted_capacity_rps, "off": self.off.predicted_capacity_rps},
        }


def judge(
    scenario: Scenario, on: RunResult, off: RunResult, metric: Metric = E2E, *, progress: Progress | None = None
) -> Verdict:
    """The verdict on a scenario with speculation; ``on``, ``off``: its run and that of `without_speculation`, measured
    together (`simulate_together`).
    """
    errors = response(scenario)
    asks = [errors is not None and errors.near_capacity(speculates) for speculates in (True, False)]
    with_sd = side(scenario, on, progress=part_of(progress, 0, 2), ask_capacity=asks[0])
    without = side(without_speculation(scenario), off, progress=part_of(progress, 1, 2), ask_capacity=asks[1])
    return decide(metric, with_sd, without, scenario.statistics.confidence, errors=errors)


def decide(
    metric: Metric, on: Side, off: Side, confidence: float, x: float = 0.0, errors: Response | None = None
) -> Verdict:
    """The verdict of two sides, its probe at ``x``. ``errors``: of step times and acceptance; None: chance decides."""
    verdict = _by_chance(metric, on, off, confidence, x)
    one_run = bool(verdict.probe.gains) and not verdict.probe.has_value
    capacities = on.mean_capacity_rps, off.mean_capacity_rps
    is_open = verdict.word not in ("not settled", "overloaded") and not one_run
    if not is_open or errors is None or not errors.reaches(metric, capacities):
        return verdict
    use = slo_use_of(metric, on, off, errors.rate_rps)
    prediction = errors.predict(verdict.probe, confidence, capacities, metric, use)
    if prediction.advantage is None or not prediction.advantage.half_width:  # no error makes a difference
        return verdict
    return dataclasses.replace(verdict, word=BY_SIGN[prediction.sign], prediction=prediction)


def slo_use_of(metric: Metric, on: Side, off: Side, rate_rps: float | None) -> SloUse | None:
    """What SLO goodput needs of both sides at that load; None for other metrics, and where neither side knows."""
    with_sd, without = (half.run.slo_use if half.run and half.has_figures else {} for half in (on, off))
    return SloUse.of(with_sd, without, rate_rps) if metric.name == "slo_goodput" else None


def _by_chance(metric: Metric, on: Side, off: Side, confidence: float, x: float) -> Verdict:
    positions, on_rps, off_rps = (on.position, off.position), on.capacity_rps, off.capacity_rps
    # A side that surely completes more than the other wins also at a load inside its own interval.
    apart = on_rps is not None and off_rps is not None and (on_rps.high < off_rps.low or off_rps.high < on_rps.low)
    word: Word | None = None
    if "above" in positions and ("at" not in positions or apart):
        word = "overloaded" if on.position == off.position else "pays" if off.position == "above" else "costs"
    elif "at" in positions:
        word = "too close to call"
    elif not (on.has_figures and off.has_figures):
        word = "not settled"
    if word is not None:
        return Verdict(word, metric, on, off, Probe(x, sure=SIGNS.get(word, 0), note=_why(word, on, off)), confidence)
    assert on.run is not None
    assert off.run is not None
    probe = paired_probe(x, metric, on.run, off.run)
    equal = metric.is_throughput and on.completes_what_arrives
    sign = 0 if equal or probe.is_even(confidence) else probe.sign(confidence)
    if advantage_of(probe, confidence) is None:
        probe = Probe(x, sure=probe.sure)
    return Verdict(BY_SIGN[sign], metric, on, off, probe, confidence, on.state == "finite")


def _why(word: Word, on: Side, off: Side) -> str:
    def which(state: State) -> str:
        sides = (("with", on), ("without", off))
        return " and ".join(name for name, of_side in sides if of_side.state == state) + " speculation"

    states = (on.state, off.state)
    if word == "overloaded":
        return "both sides are overloaded"
    if "overloaded" in states and word in ("pays", "costs"):
        return f"overloaded {which('overloaded')}"
    if "at capacity" in states:
        return f"the load lies inside the capacity's interval {which('at capacity')}"
    return f"the run {which('not settled')} did not reach a steady state" if word == "not settled" else ""


def paired_probe(x: float, metric: Metric, on: RunResult, off: RunResult) -> Probe:
    """The metric of both runs by replication; what either may still miss of the steady state is the slack."""
    figure = metric.figure
    if metric.name == "slo_goodput" and on.state == "steady" and not on.closed_loop:
        figure = "slo_attainment"  # at one rate good requests come out of as many: their share has less noise
    pairs = [(a[figure], b[figure]) for a, b in zip(on.replications, off.replications, strict=True)]
    pairs = [pair for pair in pairs if all(map(math.isfinite, pair))]
    if not pairs:
        return Probe(x)
    gains, bases = zip(*pairs, strict=True)
    if metric.less_is_better:
        gains, bases = bases, gains
    missed = (on.shortfall, off.shortfall) if metric.less_is_better else (0.0, 0.0)
    # By what share of itself a figure grows that misses so much of its steady value.
    low, high = (share / (1.0 - share) if share < 1.0 else math.inf for share in missed)
    return Probe(x, gains, bases, slack_low=low, slack_high=high)


def advantage_of(probe: Probe, confidence: float) -> Estimate | None:
    """How many times better with speculation than without; bounds are NaN where one replication is all there is."""
    if probe.has_value:
        return probe.advantage(confidence)
    if not probe.gains or not probe.bases[0]:
        return None
    return Estimate(probe.gains[0] / probe.bases[0], math.nan, math.nan, math.nan, 1, confidence)


def _change(verdict: Verdict, advantage: Estimate) -> str:
    better = verdict.word == "pays"
    if not better:
        low, high = 1 / advantage.high, 1 / advantage.low if advantage.low else math.inf
        advantage = dataclasses.replace(advantage, mean=1 / advantage.mean, low=low, high=high)
    return f"{_times(advantage)} times {'lower' if better == verdict.metric.less_is_better else 'higher'}"


def _times(ratio: Estimate) -> str:
    if not math.isfinite(ratio.low):
        return f"{ratio.mean:.2f}"
    high = f"{ratio.high:.2f}" if math.isfinite(ratio.high) else "overloaded"
    return f"{ratio.mean:.2f} ({ratio.confidence:.0%} interval {ratio.low:.2f} to {high})"
