"""How far off the forecasts are: errors by kind of point, each source counted once; signs of the speed-ups."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from draftcast.kernels.model.catalog import load_model
from draftcast.scenarios.evidence.forecast import Forecast, Side
from draftcast.scenarios.evidence.point import Point, Tier
from draftcast.scenarios.evidence.settings import model_name

BELOW, ABOVE = 0.95, 1.05
"""Measured speed-ups outside these bounds have a sign that a forecast should meet."""


@dataclass(frozen=True)
class Errors:
    """Errors of one figure; a source counts once, with the median (or mean) of its points.

    Attributes:
        mean: mean over sources of the mean signed error of each.
        signed_median: median over sources of the median signed error of each.
        median, p90: over sources, of the median absolute error of each.
    """

    points: int
    sources: int
    mean: float
    signed_median: float
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


@dataclass(frozen=True)
class Kind:
    """Points that are judged together."""

    name: str
    holds: Callable[[Point], bool]


def errors(forecasts: Iterable[Forecast], side: Side) -> Errors | None:
    """Errors of the times without or with speculation, or of the speed-ups; None where there is none."""
    by_source: dict[str, list[float]] = {}
    for forecast in forecasts:
        error = forecast.error(side)
        if error is not None:
            by_source.setdefault(forecast.point.source, []).append(error)
    if not by_source:
        return None
    medians = [statistics.median(abs(error) for error in found) for found in by_source.values()]
    return Errors(
        points=sum(map(len, by_source.values())),
        sources=len(by_source),
        mean=statistics.fmean(statistics.fmean(found) for found in by_source.values()),
        signed_median=statistics.median(statistics.median(found) for found in by_source.values()),
        median=statistics.median(medians),
        p90=float(np.percentile(medians, 90)),
    )


def signs(forecasts: Iterable[Forecast], *, below: bool) -> Signs:
    """How many clear losses (or, not ``below``, clear gains) are forecast as such."""
    found = [
        (f.point.source, f.speedup < 1 if below else f.speedup > 1)
        for f in forecasts
        if f.speedup is not None
        and f.point.speedup is not None
        and (f.point.speedup < BELOW if below else f.point.speedup > ABOVE)
    ]
    return Signs(len(found), sum(right for _, right in found), len({source for source, _ in found}))


def is_moe(point: Point) -> bool:
    """Whether the point's model has experts; False where the model is not bundled."""
    name = model_name(point.model) if point.model is not None else None
    return name is not None and load_model(name).is_moe


def kinds() -> Sequence[Kind]:
    """The rows of the summary, in order."""

    def kind(name: str, tier: Tier, moe: bool | None = None, engine: str | None = None, load: str = "") -> Kind:
        return Kind(
            name,
            lambda p: (
                p.tier == tier
                and (moe is None or is_moe(p) == moe)
                and (engine is None or p.engine == engine)
                and (not load or p.load.kind == load)
            ),
        )

    return (
        kind("A, dense, vLLM", "A", False, "vllm"),
        kind("A, dense, SGLang", "A", False, "sglang"),
        kind("A, dense", "A", False),
        kind("A, experts", "A", True),
        kind("B, dense, burst", "B", False, load="burst"),
        kind("B, experts, burst", "B", True, load="burst"),
        kind("B, dense, concurrency", "B", False, load="concurrency"),
        kind("B, experts, concurrency", "B", True, load="concurrency"),
        kind("C", "C"),
    )
