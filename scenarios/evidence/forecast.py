"""Forecasts of measured points: each setting simulated once, its figure in the metric's own terms, and the error.

Errors are forecast over measured, less 1, of times (whichever way the metric is written) or of speed-ups.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from draftcast.errors import InputError
from draftcast.files import picked
from draftcast.scenarios.compare.model_error import stratum_of
from draftcast.scenarios.evidence.point import RATES, EvidencePoint
from draftcast.scenarios.evidence.question import scenarios_of
from draftcast.scenarios.evidence.settings import NAMES, Reading
from draftcast.scenarios.run.deployment import cached_deployment
from draftcast.scenarios.run.simulate import simulate_together
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import scenario_hash
from draftcast.sim.progress import Progress, parts_of

ForecastSide = Literal["off", "on", "speedup"]
SIDES: tuple[ForecastSide, ...] = get_args(ForecastSide)
_MEDIAN = re.compile(r"\bmedian (tpot|itl)\b|\bmetric is median\b|\bp50\b", re.IGNORECASE)
_DURATION = re.compile(r"run duration|whole-run (wall|duration)|run's duration", re.IGNORECASE)


@dataclass(frozen=True)
class Forecast:
    """A point beside its forecast; figures in the metric's unit, None where a side is not known or not expressible."""

    question: Reading
    off: float | None
    on: float | None
    reasons: tuple[str, ...]
    # Whose errors its interval takes (`draftcast.scenarios.compare.model_error`); empty without figures
    stratum: str = ""

    @property
    def point(self) -> EvidencePoint:
        return self.question.point

    @property
    def speedup(self) -> float | None:
        """Forecast factor by which speculation is better."""
        return self.point.speedup_of(self.off, self.on)

    def error(self, side: ForecastSide) -> float | None:
        """Of the time without or with speculation, or of the speed-up, 0 inside a measured range."""
        forecast: float | None = getattr(self, side)
        measured: float | None = getattr(self.point, side)
        if side == "speedup" and forecast is not None and self.point.ratio_range is not None:
            low, high = self.point.ratio_range
            measured = min(max(forecast, low), high)
        if forecast is None or measured is None:
            return None
        is_rate = side != "speedup" and self.point.metric in RATES
        return (measured / forecast if is_rate else forecast / measured) - 1

    def summary(self) -> dict[str, Any]:
        point = self.point
        return {
            **picked(point, "id source url date tier engine engine_version model gpu metric"),
            **picked(point.spec, "method k"),
            "load": picked(point.load, "kind value"),
            "measured": {**picked(point, "off on speedup"), "range": point.ratio_range},
            "forecast": picked(self, "off on speedup"),
            "error": {side: self.error(side) for side in SIDES},
            "assumed": self.question.assumed,
            "reasons": self.reasons,
        }


def forecast_points(points: Iterable[EvidencePoint], progress: Progress | None = None) -> Iterator[Forecast]:
    """Every point with its forecast, or the reasons why it has none, in order. Never raises for a point."""
    return forecast_questions([scenarios_of(point) for point in points], progress)


def forecast_questions(questions: Sequence[Reading], progress: Progress | None = None) -> Iterator[Forecast]:
    """`forecast_points` of scenarios that are made already."""
    figures: dict[str, dict[str, float] | str] = {}
    for question, _ in parts_of(progress, questions):
        values: dict[str, float | None] = {"off": None, "on": None}
        reasons, stratum = list(question.reasons), ""
        for side, scenario in (("off", question.off), ("on", question.on)):
            if scenario is None or not question.is_expressed:
                continue
            key = scenario_hash(scenario)
            if key not in figures:
                figures[key] = _simulate(scenario)
            outcome = figures[key]
            if isinstance(outcome, str):
                reasons.append(outcome)
            else:
                values[side] = _in_terms_of(question.point, outcome)
                stratum = stratum or stratum_of(cached_deployment(scenario))
        yield Forecast(question, values["off"], values["on"], tuple(dict.fromkeys(reasons)), stratum)


def _simulate(scenario: Scenario) -> dict[str, float] | str:
    """What a metric may ask for, in seconds or per second, or why the engine refuses the setting."""
    try:
        (result,) = simulate_together([scenario])
    except InputError as error:
        return str(error).removeprefix("scenario: ")
    names = ["output_throughput", "total_token_throughput", "request_throughput", "duration_s", "mean_e2el_s"]
    names += [f"{part}_{name}_s" for name in ("tpot", "itl") for part in ("mean", "median")]
    figures = {name: result.summary["figures"][name].mean for name in names}
    table = result.requests
    decoding_s = float((table["finish_s"] - table["first_token_s"]).sum())
    return figures | {"per_request_decode": float(table["output_tokens"].sum()) / (decoding_s or np.nan)}


def _in_terms_of(point: EvidencePoint, figures: dict[str, float]) -> float:
    """The run's figure in the unit and the statistic that the row gives."""
    metric, unit = point.metric, str(point.more.get("metric", ""))
    part = "median" if _MEDIAN.search(point.note) else "mean"
    if metric in ("tpot_ms", "itl_ms"):
        return 1e3 * figures[f"{part}_{metric.removesuffix('_ms')}_s"]
    if unit.startswith("tok/s/user"):
        return 1 / figures["mean_tpot_s"]
    is_duration = metric in ("e2e_s", "e2e_ms") and _DURATION.search(point.note)
    figure = figures["duration_s" if is_duration else NAMES["metrics"][metric]]
    if unit.startswith("tok/s/GPU"):
        figure /= point.num_gpus or point.tp or 1
    return 1e3 * figure if metric == "e2e_ms" else figure
