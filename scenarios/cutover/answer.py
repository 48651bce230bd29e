"""What a search for a cutover found: the crossing or the reason there is none, and everything it rests on."""

from dataclasses import dataclass, field
from typing import Any, Literal

from draftcast.files import picked
from draftcast.scenarios.compare.limits import Limits
from draftcast.scenarios.compare.metric import Metric
from draftcast.scenarios.compare.model_error import Source
from draftcast.scenarios.cutover.probe import PairedRun
from draftcast.scenarios.run.deployment import assumptions
from draftcast.scenarios.run.simulate import Plotted
from draftcast.scenarios.schema import Scenario
from draftcast.sim.statistics.crossing import Crossing, Probe, Stopped, locate
from draftcast.sim.statistics.intervals import Estimate

CutoverVerdict = Literal["crosses", "always pays", "never pays", "no difference", "more than once", "cannot tell"]

_WORDS: dict[str, CutoverVerdict] = {
    "crosses": "crosses",
    "always": "always pays",
    "never": "never pays",
    "even": "no difference",
    "more than once": "more than once",
}


@dataclass(frozen=True)
class Place:
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

    # low, high: of its prediction interval, within what was looked at; NaN: beyond it
    low: float
    high: float
    # pays, costs: first and last x at which speculation pays and costs with the interval's confidence
    pays: tuple[float, float] | None
    costs: tuple[float, float] | None
    dominant: Source  # what widens the interval most, at the simulated crossing


@dataclass(frozen=True)
class Cutover(Plotted):
    """The answer for one method and draft length."""

    scenario: Scenario = field(repr=False)
    label: str  # method and draft length
    # over, unit: the axis, and what its x counts
    over: str
    unit: str
    metric: Metric
    crossing: Crossing  # the statistics behind the verdict, see `draftcast.sim.statistics.crossing.Crossing`
    # probes, looks: what was looked at, by x, and the figures behind each
    probes: tuple[Probe, ...]
    looks: tuple[PairedRun, ...]
    # capacity_on, capacity_off: requests per second when saturated; None in closed loops and off the rate axis
    capacity_on: Estimate | None
    capacity_off: Estimate | None
    # The crossing by mean steps alone (NaN: none in the range; None: not for this policy, load or metric)
    estimate: float | None
    here: float | None  # where the scenario itself stands on the axis; None where that is no single number
    # lower, upper: what limits on either side of the crossing, or at the ends of what was looked at
    lower: Place | None
    upper: Place | None
    costs: tuple[TokenCost, ...]  # for metric ``cost``, by x
    requests: int  # simulated in all
    stopped: Stopped  # why the search ended
    # Where it pays and costs with the errors of step times and acceptance counted in; None as of a verdict's
    prediction: PredictedCutover | None = None

    @property
    def verdict(self) -> CutoverVerdict:
        """``always pays`` and ``never pays`` hold wherever it was looked; ``cannot tell``: nothing else is true."""
        if self.stopped == "budget spent" and self.crossing.kind in ("always", "never", "even"):
            return "cannot tell"  # not everything that was to be looked at was
        return _WORDS.get(self.crossing.kind, "cannot tell")

    @property
    def notes(self) -> tuple[str, ...]:
        return assumptions(self.scenario)

    @property
    def surely_pays(self) -> tuple[float, float] | None:
        """First and last x at which speculation is significantly better, the model's errors counted in."""
        if self.prediction is not None:
            return self.prediction.pays
        return locate(self.probes, self.crossing.confidence).above

    @property
    def surely_costs(self) -> tuple[float, float] | None:
        """First and last x at which speculation is significantly worse, the model's errors counted in."""
        if self.prediction is not None:
            return self.prediction.costs
        return locate(self.probes, self.crossing.confidence).below

    def summary(self) -> dict[str, Any]:
        confidence, crosses = self.crossing.confidence, self.verdict == "crosses"
        points = [
            {
                **picked(probe, "x note"),
                "advantage": probe.advantage(confidence),
                "sign": probe.sign(confidence),
                **picked(look, "replications requests on off"),
            }
            for probe, look in zip(self.probes, self.looks, strict=True)
        ]
        return {
            **picked(self, "over unit verdict prediction surely_pays surely_costs stopped notes"),
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
            "points": points,
            "requests_simulated": self.requests,
        }
