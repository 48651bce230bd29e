"""Speculation off and on at several request rates, under common random numbers, and the rate at which it stops paying.

The advantage is the mean end-to-end latency without speculation over that with it, paired by replication: above 1 SD
pays. Runs the simulator; knows nothing of tables on a screen (``scenarios/report.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from draftcast.errors import InputError
from draftcast.scenarios.load import with_rate, without_speculation
from draftcast.scenarios.schema import Scenario
from draftcast.sim.crossing import Crossing, crossing
from draftcast.sim.metrics import summarise
from draftcast.sim.statistics import Estimate, paired_ratio

if TYPE_CHECKING:
    from draftcast.scenarios.simulate import RunResult

LATENCY = "mean_e2el_s"
TOKENS = "output_throughput"
Progress = Callable[[float], None]


@dataclass(frozen=True)
class Point:
    """One request rate: the run as asked and, when compared, the same requests without speculation."""

    request_rate_rps: float | None  # None: the scenario's own arrivals, which have no single rate
    on: RunResult
    off: RunResult | None
    confidence: float

    def figures(self, which: str) -> dict[str, Estimate]:
        """Every figure with its interval; ``which`` is ``on`` or ``off``."""
        return estimates(self.off if which == "off" and self.off is not None else self.on, self.confidence)

    @property
    def ratios(self) -> list[float]:
        """Latency off over on, one per replication; NaN where either is undefined."""
        return [_ratio(off, on) for off, on in self._pairs(LATENCY)]

    @property
    def advantage(self) -> Estimate | None:
        """Latency off over on with its paired interval; None when nothing is compared or undefined."""
        return self._paired(LATENCY, inverse=False)

    @property
    def token_gain(self) -> Estimate | None:
        """Token goodput on over off with its paired interval."""
        return self._paired(TOKENS, inverse=True)

    @property
    def verdict(self) -> str:
        """In a word: ``pays``, ``costs``, ``even`` or ``overloaded``; stability decides before latency does."""
        if self.off is None:
            return "overloaded" if self.on.unstable else "stable"
        if self.off.unstable and self.on.unstable:
            return "overloaded"
        if self.off.unstable:
            return "pays (off is overloaded)"
        if self.on.unstable:
            return "costs (on is overloaded)"
        advantage = self.advantage
        if advantage is None:
            return "undefined"
        low, high = (advantage.low, advantage.high) if advantage.n > 1 else (advantage.mean, advantage.mean)
        word = "pays" if low > 1 else "costs" if high < 1 else "even"
        # Without a steady state the ratio describes these runs, not the load: longer runs would drift further.
        return word if self.on.steady and self.off.steady else f"{word} (not settled)"

    def _pairs(self, name: str) -> list[tuple[float, float]]:
        if self.off is None:
            return []
        return [(off[name], on[name]) for off, on in zip(self.off.replications, self.on.replications, strict=True)]

    def _paired(self, name: str, inverse: bool) -> Estimate | None:
        pairs = [(off, on) for off, on in self._pairs(name) if math.isfinite(off) and math.isfinite(on)]
        if not pairs:
            return None
        off, on = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        if not all(on if not inverse else off):
            return None
        return paired_ratio(on, off, self.confidence) if inverse else paired_ratio(off, on, self.confidence)


@dataclass(frozen=True)
class Comparison:
    """The points in order of rate, and the cutover (None with fewer than two comparable rates)."""

    scenario: Scenario
    points: tuple[Point, ...]
    cutover: Crossing | None

    def summary(self) -> dict[str, Any]:
        """For ``--json`` and ``summary.json``."""
        rows: list[dict[str, Any]] = []
        for point in self.points:
            row: dict[str, Any] = {"request_rate_rps": point.request_rate_rps, "on": point.on.summary}
            if point.off is not None:
                row |= {"off": point.off.summary, "advantage": point.advantage, "token_gain": point.token_gain}
            rows.append(row | {"verdict": point.verdict})
        return {"points": rows, "cutover": self.cutover}


def estimates(result: RunResult, confidence: float) -> dict[str, Estimate]:
    """Interval of every figure of a run across its replications."""
    return summarise(result.replications, confidence)


def compare(
    scenario: Scenario,
    rates: Sequence[float] = (),
    *,
    compare_off: bool = True,
    progress: Progress | None = None,
    record_steps: bool = False,
    run: Callable[..., RunResult] | None = None,
) -> Comparison:
    """Simulate ``scenario`` at each rate (none given: as it is), with and, if asked, without speculation.

    Args:
        progress: called with the share of the work done, 0 to 1.
        run: the simulator, ``draftcast.simulate`` by default.

    Raises:
        InputError: nothing to compare with, or arrivals that have no single rate.
    """
    if compare_off and scenario.speculative_config is None:
        raise InputError("the scenario has no speculation to compare with", file="--compare-off")
    if run is None:
        import draftcast

        run = draftcast.simulate
    # Validate every point before the first second is simulated.
    asked: list[tuple[float | None, Scenario]] = [(rate, with_rate(scenario, rate)) for rate in rates]
    asked = asked or [(_own_rate(scenario), scenario)]
    runs_per_point = 2 if compare_off else 1
    total = len(asked) * runs_per_point
    points: list[Point] = []
    for index, (rate, variant) in enumerate(asked):
        variants = [variant, without_speculation(variant)][:runs_per_point]
        results = []
        for offset, each in enumerate(variants):
            done = index * runs_per_point + offset
            results.append(run(each, progress=_part(progress, done, total), record_steps=record_steps))
        off = results[1] if compare_off else None
        points.append(Point(rate, results[0], off, scenario.statistics.confidence))
    return Comparison(scenario, tuple(points), _cutover(points, scenario.statistics.confidence))


def _cutover(points: Sequence[Point], confidence: float) -> Crossing | None:
    """Crossing of the paired advantage through 1, over the rates at which at least one side keeps up."""
    at, comparable = [], []
    for point in points:
        ratios = point.ratios
        if point.verdict == "overloaded" or not ratios or not all(math.isfinite(ratio) for ratio in ratios):
            break
        if point.request_rate_rps is None:
            return None
        at.append(point.request_rate_rps)
        comparable.append(ratios)
    return crossing(at, np.array(comparable).T, 1.0, confidence) if len(at) > 1 else None


def _own_rate(scenario: Scenario) -> float | None:
    rate = getattr(scenario.workload.arrivals, "request_rate_rps", None)
    return float(rate) if rate is not None else None


def _part(progress: Progress | None, done: int, total: int) -> Progress | None:
    """Maps one run's 0..1 to its part of the whole."""
    if progress is None:
        return None
    return lambda share: progress((done + share) / total)


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.nan
