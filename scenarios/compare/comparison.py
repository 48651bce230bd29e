"""Two runs side by side; speculation off and on at several request rates, and between which it stops paying.

Runs with as many replications are compared pair by pair: under common random numbers a pair meets the same requests and
what both share cancels. Otherwise (a live run beside replications, runs of other requests) a difference has no interval
and no verdict. The verdict at each rate is `scenarios/compare/verdict`'s.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from draftcast.errors import ScenarioError
from draftcast.scenarios.compare.metric import E2E, METRICS
from draftcast.scenarios.compare.model_error import near_capacity
from draftcast.scenarios.compare.verdict import SIGNS, Side, Verdict, advantage_of, judge, paired_probe, side
from draftcast.scenarios.run.deployment import Deployment
from draftcast.scenarios.run.run_directory import write_run_directory
from draftcast.scenarios.run.simulate import HasPicture, RunResult, measure, serve, simulate_together
from draftcast.scenarios.schema import Scenario, with_rate, without_speculation
from draftcast.sim.output.results import TIME_PARTS
from draftcast.sim.progress import Progress, part_of, parts_of
from draftcast.sim.statistics.crossing import Crossing, Probe, locate
from draftcast.sim.statistics.intervals import Estimate, paired_difference, paired_ratio, replication_interval

LATENCY = E2E.figure
TOKENS = METRICS["token_goodput"].figure
Judgement = Literal["better", "worse", "cannot tell", "as offered"]
_LESS_IS_BETTER = ("ttft_s", "tpot_s", "itl_s", "e2el_s", "queue_time_s")
_OFFERED = ("request_throughput", "output_throughput", "tokens_per_s_per_gpu")
_MORE_IS_BETTER = ("throughput", "goodput", "attainment", "tokens_per_s_per_gpu", "acceptance")


@dataclass(frozen=True)
class Difference:
    """``first`` minus ``second`` in one figure."""

    figure: str
    difference: Estimate  # in the figure's unit; bounds are NaN without pairs, or with one replication
    ratio: Estimate | None  # first over second; None where the second is 0
    # Of the first; ``cannot tell`` while the interval holds 0 or is unknown, and where neither direction is better;
    # ``as offered``: two open loops below their capacity deliver what arrives
    verdict: Judgement


def difference(
    figure: str,
    first: Sequence[Mapping[str, float]],
    second: Sequence[Mapping[str, float]],
    confidence: float = 0.95,
    *,
    as_offered: bool = False,
    paired: bool = True,
    doubt: float = 0.0,
) -> Difference | None:
    """The difference in ``figure``, a mapping of figures per replication each; None where either run has none.

    ``as_offered``: both are open loops below their capacity. ``paired``: where both have as many replications, each
    meets the requests of its pair. ``doubt``: logarithm up to which the errors of step times and acceptance, which no
    run shows, may move a ratio.
    """
    a, b = _values(figure, first), _values(figure, second)
    if not a or not b:
        return None
    if paired and len(a) == len(first) == len(second) == len(b):
        change = paired_difference(a, b, confidence)
        ratio = paired_ratio(a, b, confidence) if sum(b) else None
    else:
        mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
        change = replication_interval([mean_a - mean_b], confidence)
        ratio = replication_interval([mean_a / mean_b], confidence) if mean_b else None
    less = any(name in figure for name in _LESS_IS_BETTER)
    has_direction = less or any(name in figure for name in _MORE_IS_BETTER)
    exceeds_doubt = ratio is None or not ratio.mean > 0.0 or abs(math.log(ratio.mean)) >= doubt
    verdict: Judgement = "cannot tell"
    if as_offered and figure in _OFFERED:
        verdict = "as offered"
    elif has_direction and (change.low > 0 or change.high < 0) and exceeds_doubt:
        verdict = "better" if (change.high < 0) == less else "worse"
    return Difference(figure, change, ratio, verdict)


def _values(figure: str, replications: Sequence[Mapping[str, float]]) -> list[float]:
    values = [figures[figure] for figures in replications if figure in figures]
    return [value for value in values if math.isfinite(value)] if len(values) == len(replications) else []


@dataclass(frozen=True)
class RatePoint:
    """One request rate: the setting as asked and, when compared, the verdict on it against speculation off."""

    request_rate_rps: float | None  # None: the scenario's own arrivals, which have no single rate
    side: Side
    verdict: Verdict | None

    @property
    def on(self) -> RunResult:
        """The run as asked."""
        assert self.side.run is not None
        return self.side.run

    @property
    def off(self) -> RunResult | None:
        """The same requests without speculation; None when nothing is compared."""
        return self.verdict.off.run if self.verdict is not None else None

    @property
    def runs(self) -> tuple[RunResult, ...]:
        return (self.on,) if self.off is None else (self.on, self.off)

    @property
    def sides(self) -> tuple[Side, ...]:
        return (self.side,) if self.verdict is None else (self.side, self.verdict.off)

    @property
    def word(self) -> str:
        """The verdict; where nothing is compared, the setting's state."""
        return self.side.state if self.verdict is None else self.verdict.word

    @property
    def advantage(self) -> Estimate | None:
        """Latency off over on with its paired interval; None where nothing is compared or a side has no figures."""
        return self.verdict.advantage if self.verdict is not None else None

    def figures(self, which: str) -> dict[str, Estimate]:
        """Figures of ``on`` or ``off``, with prediction intervals if any; empty if they do not hold for the load."""
        chosen = self.side if which == "on" or self.verdict is None else self.verdict.off
        return (chosen.figures or {}) | chosen.predicted_figures

    def by_cause(self) -> dict[str, Estimate]:
        """Mean seconds of a request on less off by cause, and ``all``, their sum; empty without figures of both."""
        if self.verdict is None or self.off is None or not (self.figures("on") and self.figures("off")):
            return {}
        names = {"all": LATENCY} | {part: f"mean_time_{part}_s" for part in TIME_PARTS}
        sides = self.on.replications, self.off.replications
        differences = {name: difference(figure, *sides, self.verdict.confidence) for name, figure in names.items()}
        return {name: change.difference for name, change in differences.items() if change is not None}

    def compared(self) -> dict[str, Any]:
        """Off, advantage and verdict for ``--json``; empty where nothing is compared."""
        if self.verdict is None or self.off is None:
            return {}
        tokens = paired_probe(0.0, METRICS["token_goodput"], self.on, self.off)
        return {
            "off": self.off.summary,
            "advantage": self.advantage,
            "by_cause_s": self.by_cause(),
            "token_gain": advantage_of(tokens, self.verdict.confidence) if self.advantage is not None else None,
            "verdict": self.verdict.word,
            "verdict_details": self.verdict.summary(),
        }


@dataclass(frozen=True)
class Comparison(HasPicture):
    """The points in order of rate, and the signs of the cutover between them (None: nothing compared, or no rates);
    `draftcast.scenarios.cutover.search` looks closer."""

    picture = "run_report.comparison_figure"
    scenario: Scenario
    points: tuple[RatePoint, ...]
    cutover: Crossing | None

    def summary(self) -> dict[str, Any]:
        """For ``--json`` and ``summary.json``."""
        rows = [
            {"request_rate_rps": point.request_rate_rps, "on": point.on.summary, "verdict": point.word}
            | point.compared()
            for point in self.points
        ]
        capacities = {
            key: {name: getattr(saturated, key, None) for name, saturated in self.saturated.items()}
            for key in ("capacity_rps", "predicted_capacity_rps")
        }
        cutover = None
        if self.cutover is not None:
            spans = {"surely_pays_rps": self.cutover.above, "surely_costs_rps": self.cutover.below}
            cutover = {"kind": self.cutover.kind, **spans, "confidence": self.cutover.confidence}
        return {"points": rows, **capacities, "cutover": cutover}

    def save(self, path: str | Path) -> Path:
        """Write a run directory of all runs, whose tables say by rate and speculation which one a row is of."""
        labelled = [
            (result, {"request_rate_rps": point.request_rate_rps, "speculation": speculation})
            for point in self.points
            for speculation, result in zip(("on", "off"), point.runs, strict=False)
        ]
        requests = pd.concat([run.requests.assign(**labels) for run, labels in labelled], ignore_index=True)
        recorded = [run.steps.assign(**labels) for run, labels in labelled if run.steps is not None]
        steps = pd.concat(recorded, ignore_index=True) if recorded else None
        manifest = {**self.points[0].on.manifest, "points": len(self.points)}
        return write_run_directory(path, manifest=manifest, summary=self.summary(), requests=requests, steps=steps)

    @property
    def saturated(self) -> dict[str, Side | None]:
        """The side of the highest rate whose capacity is known, with and without speculation."""
        on = [point.side for point in self.points]
        off = [point.verdict.off for point in self.points if point.verdict is not None]
        return {
            name: next((at_rate for at_rate in reversed(sides) if at_rate.capacity is not None), None)
            for name, sides in (("on", on), ("off", off))
        }


def simulate(
    scenario: Scenario,
    *,
    progress: Progress | None = None,
    record_steps: bool = False,
    deployment: Deployment | None = None,
) -> RunResult:
    """Simulate a scenario.

    Its own warm-up is left out; `compare` and the command line leave out the longer one of both sides. Close to the
    capacity the prediction intervals use an estimate of it; `compare` simulates it.

    Args:
        scenario: from :func:`draftcast.load_scenario`.
        record_steps: keep one row per engine step.
        deployment: result of `deploy` for a scenario with the same engine, hardware, profile and policy; resolving
            one takes longer than simulating a thousand requests.

    Raises:
        InputError: the scenario, a trace, a model, a device or the memory does not allow the run.
    """
    result = measure([serve(scenario, progress=progress, record_steps=record_steps, deployment=deployment)])[0]
    if result.state == "overloaded":
        side(scenario, result)  # what it completes at most is all that can be said
    result.summary["predicted_figures"] = Side(result, "below", scenario=scenario).predicted_figures
    return result


def compare(
    scenario: Scenario,
    rates: Sequence[float] = (),
    *,
    compare_off: bool = True,
    progress: Progress | None = None,
    record_steps: bool = False,
) -> Comparison:
    """Simulate ``scenario`` at each rate (none given: as it is), with and, if asked, without speculation.

    Args:
        rates: in any order; a rate given twice is simulated once.
        compare_off: compare with speculation off; a scenario without speculation is simulated alone.

    Raises:
        InputError: arrivals that have no single rate.
    """
    compare_off = compare_off and scenario.speculative_config is not None
    # Validate every point before the first second is simulated.
    ordered = sorted(set(rates))
    variants = [with_rate(scenario, rate) for rate in ordered] or [scenario]
    points = []
    for variant, part in parts_of(progress, variants):
        sides = [variant, without_speculation(variant)] if compare_off else [variant]
        runs = simulate_together(sides, progress=part_of(part, 0, 2), record_steps=record_steps)
        points.append(point_of(variant, runs, progress=part_of(part, 1, 2)))
    # The words' signs alone: they count in the errors of step times and acceptance, which the runs do not show.
    words = [point.word for point in points]
    probes = [Probe(rate, sure=SIGNS.get(word, 0)) for rate, word in zip(ordered, words, strict=False)]
    crossing = locate(probes, scenario.statistics.confidence) if probes and compare_off else None
    if crossing is not None and crossing.kind in ("always", "never") and "too close to call" in words:
        crossing = replace(crossing, kind="unclear")
    return Comparison(scenario, tuple(points), crossing)


def compare_scenarios(first: Scenario, second: Scenario) -> dict[str, Difference]:
    """Every figure of ``first`` minus that of ``second``, on the same requests where the workloads are the same.

    None of its figures where a side is overloaded. Between a scenario with speculation and the same without, a latency
    is better or worse only where the errors of step times and acceptance do not undo it, as in the verdict of
    `compare`; between others sampling noise alone decides.

    Raises:
        InputError: as of `simulate`, or another number of replications or requests.
    """
    for key in ("workload.num_requests", "statistics.replications"):
        section, name = key.split(".")
        count, other_count = (getattr(getattr(scenario, section), name) for scenario in (first, second))
        if count != other_count:
            raise ScenarioError(f"is {count} in one scenario; both need the same", key=key, value=other_count)
    a, b = simulate_together([first, second])
    sides, doubt = (a.replications, b.replications, first.statistics.confidence), 0.0
    for on, off, runs in ((first, second, (a, b)), (second, first, (b, a))):
        if on.speculative_config is not None and without_speculation(on) == off:
            doubt = judge(on, *runs).doubt
    latencies = {name for name in a.summary["figures"] if any(part in name for part in _LESS_IS_BETTER)}
    changes = (difference(name, *sides, doubt=doubt if name in latencies else 0.0) for name in a.summary["figures"])
    return {change.figure: change for change in changes if change and math.isfinite(change.difference.mean)}


def point_of(scenario: Scenario, runs: Sequence[RunResult], *, progress: Progress | None = None) -> RatePoint:
    """The point of a scenario's run and, where there are two, of the same without speculation measured together."""
    if len(runs) > 1:
        verdict = judge(scenario, runs[0], runs[1], progress=progress)
        point = RatePoint(scenario.rate_rps, verdict.on, verdict)
    else:
        alone = side(scenario, runs[0], progress=progress, ask_capacity=near_capacity(scenario))
        point = RatePoint(scenario.rate_rps, alone, None)
    for run, run_side in zip(point.runs, point.sides, strict=True):
        run.summary["predicted_figures"] = run_side.predicted_figures
    return point
