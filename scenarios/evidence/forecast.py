"""Our forecast of what others published: the same setting simulated with and without speculation.

Nothing is fitted to a published speed-up: inputs that a source does not give are those of the case's file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftcast.scenarios.compare.candidate import alpha_of
from draftcast.scenarios.compare.metric import METRICS, Metric
from draftcast.scenarios.evidence.cases import PublishedCase, PublishedPoint
from draftcast.scenarios.run.simulate import simulate_together
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import load_scenario, with_values, without_speculation
from draftcast.sim.progress import Progress, part_of
from draftcast.sim.statistics.intervals import Estimate, paired_ratio, replication_interval


@dataclass(frozen=True)
class PublishedForecast:
    """One published number beside ours.

    Attributes:
        forecast: factor by which speculation is better, with its interval over replications.
        without_sd, with_sd: our own figures, in ``unit``.
    """

    case: str
    title: str
    point: PublishedPoint
    metric: str
    unit: str
    forecast: Estimate
    without_sd: float
    with_sd: float
    mean_acceptance_length: float
    assumed: dict[str, str]

    @property
    def error(self) -> float:
        """Forecast over published, less 1; 0 inside a published range."""
        return self._error(self.forecast.mean)

    @property
    def error_low(self) -> float:
        """The same for the lower end of the interval."""
        return self._error(self.forecast.low)

    @property
    def error_high(self) -> float:
        """The same for the upper end of the interval."""
        return self._error(self.forecast.high)

    def _error(self, value: float) -> float:
        low, high = self.point.bounds
        if math.isnan(value):
            return math.nan
        return value / high - 1 if value > high else value / low - 1 if value < low else 0.0

    def summary(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "case": self.case,
            "title": self.title,
            "point": self.point.label,
            "metric": self.metric,
            "published": self.point.published,
            "note": self.point.note,
            "over": self.point.over,
            "forecast": self.forecast,
            "error": self.error,
            "error_low": self.error_low,
            "error_high": self.error_high,
            "unit": self.unit,
            "published_without_sd": self.point.without_sd,
            "published_with_sd": self.point.with_sd,
            "forecast_without_sd": self.without_sd,
            "forecast_with_sd": self.with_sd,
            "mean_acceptance_length": self.mean_acceptance_length,
            "assumed": self.assumed,
        }


@dataclass(frozen=True)
class _Run:
    """A point's two runs: the metric by replication, in its unit."""

    metric: Metric
    on: list[float]
    off: list[float]
    mean_acceptance_length: float

    @property
    def better_and_worse(self) -> tuple[list[float], list[float]]:
        """Numerators and denominators of the factor by which speculation is better."""
        return (self.off, self.on) if self.metric.less_is_better else (self.on, self.off)


def forecast_case(name: str, case: PublishedCase, progress: Progress | None = None) -> list[PublishedForecast]:
    """Forecast every published number of a case.

    Raises:
        InputError: the case's scenario cannot be simulated.
    """
    runs: dict[str, _Run] = {}
    forecasts = []
    for index, point in enumerate(case.points):
        metric = METRICS[{"throughput": "token_goodput"}.get(case.metric_of(point), case.metric_of(point))]
        runs[point.label] = _run(point_scenario(case, point), metric, part_of(progress, index, len(case.points)))
        if point.published is not None:
            forecasts.append(_forecast(name, case, point, runs))
    return forecasts


def point_scenario(case: PublishedCase, point: PublishedPoint) -> Scenario:
    """The scenario of one point: a finite run, as what it stands beside was measured, without a steady state.

    Raises:
        InputError: it is not valid.
    """
    values = {**point.set, "statistics.warmup": "none"}
    raw = {"schema_version": 1, "name": case.title, **case.scenario}
    if point.mean_acceptance_length is not None:
        raw["acceptance"] = values["acceptance"] = {"model": "constant", "alpha": 0.5}
        k = with_values(load_scenario(raw), values).num_speculative_tokens
        values["acceptance"] = {"model": "constant", "alpha": alpha_of(point.mean_acceptance_length, k)}
    return with_values(load_scenario(raw), values)


def _run(scenario: Scenario, metric: Metric, progress: Progress | None) -> _Run:
    runs = simulate_together([scenario, without_speculation(scenario)], progress=progress)
    on, off = ([figures[metric.figure] * metric.factor for figures in run.replications] for run in runs)
    length = float(np.mean([figures["mean_acceptance_length"] for figures in runs[0].replications]))
    return _Run(metric, on, off, length)


def _forecast(name: str, case: PublishedCase, point: PublishedPoint, runs: dict[str, _Run]) -> PublishedForecast:
    run = runs[point.label]
    if point.over is None:
        forecast = paired_ratio(*run.better_and_worse)
    else:
        factors, factors_of_other = (np.divide(*each.better_and_worse) for each in (run, runs[point.over]))
        forecast = replication_interval(factors / factors_of_other)
    return PublishedForecast(
        case=name,
        title=case.title,
        point=point,
        metric=case.metric_of(point),
        unit=run.metric.unit,
        forecast=forecast,
        without_sd=float(np.mean(run.off)),
        with_sd=float(np.mean(run.on)),
        mean_acceptance_length=run.mean_acceptance_length,
        assumed=case.assumptions(point),
    )
