"""How sure a forecast is, from the evidence: the spread of the errors of step times, by stratum, and how it holds up.

Errors are logarithms of forecast over measured time. Of a stratum the spread is such that nine in ten errors lie within
1.645 of it, every source counted once: a source with a hundred points says no more about the next machine than one with
three. How well such intervals cover is judged with each source held out of the spread it is judged by.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from draftcast.scenarios.compare.model_error import Stratum, stratum_of
from draftcast.scenarios.evidence.forecast import Forecast, Side
from draftcast.scenarios.run.deployment import cached_deployment

CONFIDENCE, DEVIATIONS = 0.90, 1.6449
LEAST_SOURCES = 2
"""A stratum seen by fewer takes the largest spread of all."""
JUDGED_TIERS = ("A",)
"""Steady loads. Bursts and loads beyond 512 are far less well known, and the summary shows them apart."""
Residuals = dict[str, dict[str, list[float]]]
"""By stratum, by source."""


@dataclass(frozen=True)
class Coverage:
    """Of intervals whose spread came from other sources: shares are means over the sources."""

    covered: float
    half_width: float  # median over the points, relative
    error: float  # median absolute error over the points
    points: int
    sources: int


def residuals(forecasts: Iterable[Forecast], side: Side) -> Residuals:
    """Log errors of one figure, of the tiers that are fit to judge by."""
    found: Residuals = {}
    for forecast in forecasts:
        scenario = forecast.question.off or forecast.question.on
        error = forecast.error(side)
        if scenario is None or error is None or forecast.point.tier not in JUDGED_TIERS:
            continue
        by_source = found.setdefault(stratum_of(cached_deployment(scenario)), {})
        by_source.setdefault(forecast.point.source, []).append(math.log1p(error))
    return found


def spread(by_source: Mapping[str, list[float]]) -> float:
    """Standard deviation that puts nine in ten errors inside, every source counted once."""
    errors = np.concatenate([np.abs(found) for found in by_source.values()])
    weights = np.concatenate([np.full(len(found), 1.0 / len(found)) for found in by_source.values()])
    order = np.argsort(errors)
    share = np.cumsum(weights[order]) / weights.sum()
    return float(errors[order][np.searchsorted(share, CONFIDENCE - 1e-9)]) / DEVIATIONS


def estimated_strata(forecasts: Iterable[Forecast]) -> dict[str, Stratum]:
    """What ``model_error.yaml`` should say; a stratum that too few sources saw takes the largest spread."""
    forecasts = list(forecasts)
    off, speedup = residuals(forecasts, "off"), residuals(forecasts, "speedup")
    widest = {
        name: max((spread(known) for known in found.values() if len(known) >= LEAST_SOURCES), default=math.nan)
        for name, found in (("off", off), ("speedup", speedup))
    }
    strata = {}
    for name in sorted(off.keys() | speedup.keys()):
        spreads = {
            side: spread(found[name]) if len(found.get(name, {})) >= LEAST_SOURCES else widest[side]
            for side, found in (("off", off), ("speedup", speedup))
        }
        points, sources = (f(off.get(name, {})) for f in (_count, len))
        strata[name] = Stratum(
            step=round(spreads["off"], 3), speculation=round(spreads["speedup"], 3), points=points, sources=sources
        )
    return strata


def coverage(found: Residuals) -> Coverage:
    """How often intervals hold the measurement, each source held out of the spread it is judged by."""
    shares, widths, errors = [], [], []
    for by_source in found.values():
        for source, values in by_source.items():
            others = {name: known for name, known in by_source.items() if name != source}
            if not others:
                continue
            reach = DEVIATIONS * spread(others)
            shares.append(float(np.mean(np.abs(values) <= reach)))
            widths += [reach] * len(values)
            errors += np.abs(values).tolist()
    if not shares:
        return Coverage(math.nan, math.nan, math.nan, 0, 0)
    return Coverage(
        float(np.mean(shares)), float(np.median(widths)), float(np.median(errors)), len(errors), len(shares)
    )


def _count(by_source: Mapping[str, list[float]]) -> int:
    return sum(map(len, by_source.values()))
