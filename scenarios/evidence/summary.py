"""How far off the forecasts are: errors by kind of point, each source counted once; signs of the speed-ups.

How sure a forecast is follows from the same errors, by stratum: the spread of the logarithms of forecast over measured
time is such that nine in ten lie within 1.645 of it. A source with a hundred points says no more about the next machine
than one with three.
"""

import csv
import functools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from draftcast.kernels.model.catalog import load_model
from draftcast.scenarios.evidence.forecast import Forecast, ForecastSide
from draftcast.scenarios.evidence.point import EvidencePoint, points
from draftcast.scenarios.evidence.settings import NAMES, Reading, model_name

BELOW, ABOVE = 0.95, 1.05
"""Measured speed-ups outside these bounds have a sign that a forecast should meet."""

CONFIDENCE, DEVIATIONS = 0.90, 1.6449
LEAST_SOURCES = 5
"""Strata seen by fewer share one spread: so few say too little of how far the next may be off."""
JUDGED_TIERS = ("A",)
"""Steady loads. Bursts and loads beyond 512 are far less well known, and the summary shows them apart."""
Residuals = dict[str, dict[str, list[float]]]
"""By stratum, by source."""
ENGINES: dict[str, str] = NAMES["engines"]
KINDS: list[str] = NAMES["kinds"]
"""The rows of the summary: what the points of each have in common."""
SHIPPED = "forecasts.csv"


@dataclass(frozen=True)
class FigureErrors:
    """Errors of one figure; a source counts once, with the median (or mean) of its points."""

    points: int
    sources: int
    # Over the sources: mean of the mean signed error of each, median of the median signed error of each
    mean: float
    signed_median: float
    # Over the sources: of the median absolute error of each
    median: float
    p90: float


@dataclass(frozen=True)
class Signs:
    """Of points measured below `BELOW` (or above `ABOVE`), how many are forecast on the same side of 1."""

    points: int
    right: int
    sources: int

    @property
    def share(self) -> float:
        """NaN without points."""
        return self.right / self.points if self.points else float("nan")


def by_kind(forecasts: Sequence[Forecast]) -> dict[str, list[Forecast]]:
    """The forecasts of each of `KINDS`; one may stand under several."""
    kinds: dict[str, list[Forecast]] = {kind: [] for kind in KINDS}
    for forecast in forecasts:
        point = forecast.point
        words = {point.tier, "experts" if is_moe(point) else "dense", ENGINES.get(point.engine), point.load.kind}
        for kind, members in kinds.items():
            if words >= {*kind.split(", ")}:
                members.append(forecast)
    return kinds


def errors(forecasts: Iterable[Forecast], side: ForecastSide) -> FigureErrors | None:
    """Errors of the times without or with speculation, or of the speed-ups; None where there is none."""
    pairs = [(f.point.source, error) for f in forecasts if (error := f.error(side)) is not None]
    return errors_by_source(pairs) if pairs else None


def errors_by_source(pairs: Iterable[tuple[str, float]]) -> FigureErrors:
    """Of (source, error) pairs, one at least."""
    by_source = grouped(pairs)
    medians = [statistics.median(abs(error) for error in of_source) for of_source in by_source.values()]
    return FigureErrors(
        points=sum(map(len, by_source.values())),
        sources=len(by_source),
        mean=statistics.fmean(statistics.fmean(of_source) for of_source in by_source.values()),
        signed_median=statistics.median(statistics.median(of_source) for of_source in by_source.values()),
        median=statistics.median(medians),
        p90=float(np.percentile(medians, 90)),
    )


def signs(forecasts: Iterable[Forecast], *, below: bool) -> Signs:
    """How many clear losses (or, not ``below``, clear gains) are forecast as such."""
    judged = []
    for f in forecasts:
        measured, forecast = f.point.speedup, f.speedup
        if forecast is not None and measured is not None and (measured < BELOW if below else measured > ABOVE):
            judged.append((f.point.source, forecast < 1 if below else forecast > 1))
    return Signs(len(judged), sum(right for _, right in judged), len({source for source, _ in judged}))


def is_moe(point: EvidencePoint) -> bool:
    """Whether the point's model has experts; False where the model is not bundled."""
    name = model_name(point.model) if point.model is not None else None
    return name is not None and load_model(name).is_moe


@dataclass(frozen=True)
class IntervalCoverage:
    """Of intervals whose spread came from other sources: shares are means over the sources."""

    covered: float
    half_width: float  # median over the sources, relative
    error: float  # median over the sources of the median absolute error of each
    points: int
    sources: int


def residuals(forecasts: Iterable[Forecast], side: ForecastSide) -> Residuals:
    """Log errors of one figure, of the tiers that are fit to judge by."""
    strata: Residuals = defaultdict(lambda: defaultdict(list))
    for forecast in forecasts:
        if (error := forecast.error(side)) is not None and forecast.point.tier in JUDGED_TIERS:
            strata[forecast.stratum][forecast.point.source].append(math.log1p(error))
    return strata


def spread(by_source: Mapping[str, list[float]]) -> float:
    """Standard deviation that puts nine in ten errors inside; every source counts once.

    Straight between errors, each in the middle of its weight: the quantile that is right for few sources too (Hyndman
    and Fan, The American Statistician 50(4), 1996, definition 8). Split conformal prediction ends at the worst of ten.
    """
    errors = np.concatenate([np.abs(of_source) for of_source in by_source.values()])
    weights = np.concatenate([np.full(len(of_source), 1.0 / len(of_source)) for of_source in by_source.values()])
    order = np.argsort(errors)
    middle = np.cumsum(weights[order]) - weights[order] / 2.0
    place = CONFIDENCE * (len(by_source) + 1 / 3) - 1 / 6
    return float(np.interp(place, middle, errors[order])) / DEVIATIONS


def estimated_strata(forecasts: Sequence[Forecast]) -> dict[str, dict[str, float]]:
    """What ``model_error.yaml`` should say."""
    off, speedup = residuals(forecasts, "off"), residuals(forecasts, "speedup")
    return {
        name: {
            "step": round(spread(sharing(off, name)), 3),
            "speculation": round(spread(sharing(speedup, name)), 3),
            "points": sum(map(len, off.get(name, {}).values())),
            "sources": len(off.get(name, {})),
        }
        for name in sorted(off.keys() | speedup.keys())
    }


def sharing(strata: Residuals, stratum: str) -> dict[str, list[float]]:
    """The errors that a stratum's spread comes from, by source: its own; of few sources those of its kind of models.

    Where these too are fewer than two sources, all there are.
    """
    of_stratum = strata.get(stratum, {})
    if len(of_stratum) >= LEAST_SOURCES:
        return of_stratum
    kind = stratum.rpartition(", ")[0]
    together = _merged(errors for name, errors in strata.items() if name.rpartition(", ")[0] == kind)
    return together if len(together) > 1 else _merged(strata.values())


def _merged(parts: Iterable[Mapping[str, list[float]]]) -> dict[str, list[float]]:
    return grouped((source, value) for part in parts for source, values in part.items() for value in values)


def grouped(pairs: Iterable[tuple[str, float]]) -> dict[str, list[float]]:
    """Of (name, value) pairs the values of each name."""
    by_name = defaultdict(list)
    for name, value in pairs:
        by_name[name].append(value)
    return by_name


def coverage(strata: Residuals, judged: Iterable[str] | None = None, stratum: str | None = None) -> IntervalCoverage:
    """How often intervals hold the measurement, each source held out of the spread it is judged by.

    ``judged``, ``stratum``: only these sources, only of this stratum; all stay in the spreads.
    """
    by_source = []
    for name, sources in strata.items():
        for source, values in sources.items() if stratum in (None, name) else ():
            others = {other: logs for other, logs in sharing(strata, name).items() if other != source}
            if others and (judged is None or source in judged):
                reach, sizes = DEVIATIONS * spread(others), np.abs(values)
                by_source.append((float(np.mean(sizes <= reach)), reach, float(np.median(sizes)), len(values)))
    if not by_source:
        return IntervalCoverage(math.nan, math.nan, math.nan, 0, 0)
    shares, reaches, errors, points = zip(*by_source, strict=True)
    widths = float(np.median(reaches)), float(np.median(errors))
    return IntervalCoverage(float(np.mean(shares)), *widths, sum(points), len(by_source))


@functools.cache
def shipped_forecasts() -> list[Forecast]:
    """Forecasts of the shipped points of steady loads, as `benchmarks/evidence.py` wrote them: nothing is simulated."""
    by_id = {point.id: point for point in points()}
    forecasts = []
    for row in csv.DictReader(Path(__file__).with_name(SHIPPED).read_text("utf-8").splitlines()):
        off, on = (float(row[side]) if row[side] else None for side in ("off", "on"))
        forecasts.append(Forecast(Reading(by_id[row["id"]]), off, on, (), row["stratum"]))
    return forecasts


@dataclass(frozen=True)
class Score:
    """How one figure of one kind of forecast has done: a stratum, and of it one engine or (empty) all."""

    stratum: str
    engine: str
    errors: FigureErrors
    coverage: IntervalCoverage


def scorecard(forecasts: Sequence[Forecast], side: ForecastSide) -> list[Score]:
    """Of every stratum, then of every engine in it."""
    strata, scores = residuals(forecasts, side), []
    for stratum in sorted(strata):
        members = [f for f in forecasts if f.stratum == stratum and f.error(side) is not None]
        for engine in ("", *sorted({f.point.engine for f in members})):
            chosen = [f for f in members if engine in ("", f.point.engine)]
            score = errors(chosen, side)
            assert score is not None
            scores.append(Score(stratum, engine, score, coverage(strata, {f.point.source for f in chosen}, stratum)))
    return scores
