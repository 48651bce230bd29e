"""Our forecast of what others published: the same setting simulated with and without speculation.

Nothing is fitted to a published speed-up: inputs that a source does not give are those of the case's file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftcast.scenarios.evidence.cases import PublishedCase, PublishedPoint
from draftcast.scenarios.run.simulate import RunResult, simulate_together
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import load_scenario, with_values, without_speculation
from draftcast.sim.acceptance import Constant
from draftcast.sim.progress import Progress, part_of
from draftcast.sim.statistics.intervals import Estimate, paired_ratio, replication_interval


@dataclass(frozen=True)
class _Metric:
    figure: str
    less_is_better: bool
    factor: float
    unit: str


METRICS = {
    "e2e": _Metric("mean_e2el_s", True, 1.0, "s"),
    "tpot": _Metric("mean_tpot_s", True, 1e3, "ms"),
    "throughput": _Metric("output_throughput", False, 1.0, "tok/s"),
}


@dataclass(frozen=True)
class PublishedForecast:
    """One published number beside ours.

    Attributes:
        forecast: factor by which speculation is better, with its interval over replications.
        error: forecast over published, less 1; 0 inside a published range.
        error_low, error_high: the same for the ends of the interval.
        without_sd, with_sd: our own figures, in ``unit``.
    """

    case: str
    title: str
    point: PublishedPoint
    metric: str
    unit: str
    forecast: Estimate
    error: float
    error_low: float
    error_high: float
    without_sd: float
    with_sd: float
    mean_acceptance_length: float
    assumed: dict[str, str]

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
    """A point's two runs as values by replication."""

    on: list[float]
    off: list[float]
    mean_acceptance_length: float


def forecast_case(name: str, case: PublishedCase, progress: Progress | None = None) -> list[PublishedForecast]:
    """Forecast every published number of a case.

    Raises:
        InputError: the case's scenario cannot be simulated.
    """
    runs: dict[str, _Run] = {}
    found = []
    for index, point in enumerate(case.points):
        metric = METRICS[point.metric or case.metric]
        part = part_of(progress, index, len(case.points))
        runs[point.label] = _run(point_scenario(case, point), metric, part)
        if point.published is not None:
            found.append(_forecast(name, case, point, runs))
    return found


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


def alpha_of(mean_acceptance_length: float, k: int) -> float:
    """The probability a token at which k drafts yield so many tokens a round (``1 + a + ... + a^k``)."""
    from scipy.optimize import brentq

    def gap(alpha: float) -> float:
        return Constant(alpha=alpha).mean_acceptance_length(k) - mean_acceptance_length

    return float(brentq(gap, 0.0, 1.0))


def _run(scenario: Scenario, metric: _Metric, progress: Progress | None) -> _Run:
    on, off = simulate_together([scenario, without_speculation(scenario)], progress=progress)
    length = float(np.mean([r["mean_acceptance_length"] for r in on.replications]))
    return _Run(_values(on, metric), _values(off, metric), length)


def _values(result: RunResult, metric: _Metric) -> list[float]:
    return [replication[metric.figure] * metric.factor for replication in result.replications]


def _forecast(name: str, case: PublishedCase, point: PublishedPoint, runs: dict[str, _Run]) -> PublishedForecast:
    metric, own = METRICS[point.metric or case.metric], runs[point.label]
    if point.over is None:
        better, worse = (own.off, own.on) if metric.less_is_better else (own.on, own.off)
        forecast = paired_ratio(better, worse)
    else:
        ratios = np.divide(_factors(own, metric), _factors(runs[point.over], metric))
        forecast = replication_interval(ratios)
    low, high = point.bounds
    return PublishedForecast(
        case=name,
        title=case.title,
        point=point,
        metric=point.metric or case.metric,
        unit=metric.unit,
        forecast=forecast,
        error=_error(forecast.mean, low, high),
        error_low=_error(forecast.low, low, high),
        error_high=_error(forecast.high, low, high),
        without_sd=float(np.mean(own.off)),
        with_sd=float(np.mean(own.on)),
        mean_acceptance_length=own.mean_acceptance_length,
        assumed=case.assumptions(point),
    )


def _factors(run: _Run, metric: _Metric) -> Sequence[float]:
    pairs = zip(run.off, run.on, strict=True)
    return [off / on if metric.less_is_better else on / off for off, on in pairs]


def _error(value: float, low: float, high: float) -> float:
    """Relative distance from the published range, positive above it."""
    if math.isnan(value):
        return math.nan
    return value / high - 1 if value > high else value / low - 1 if value < low else 0.0
