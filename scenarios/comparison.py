"""Speculation off and on at several request rates, under common random numbers, and between which it stops paying.

The advantage is the mean end-to-end latency without speculation over that with it, paired by replication: above 1 SD
pays. A rate counts only where both sides have a steady state, or where one side alone is overloaded. Runs the
simulator; knows nothing of tables on a screen (``scenarios/report.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from draftcast.errors import InputError
from draftcast.scenarios.load import with_rate, without_speculation
from draftcast.scenarios.schema import Scenario
from draftcast.sim.crossing import Crossing, Probe, locate
from draftcast.sim.metrics import summarise
from draftcast.sim.stability import shortfall
from draftcast.sim.statistics import Estimate, paired_ratio

if TYPE_CHECKING:
    from draftcast.scenarios.simulate import RunResult

LATENCY = "mean_e2el_s"
TOKENS = "output_throughput"
SETTLED_SHORTFALL = 0.5
"""A run that may fall short of the steady state by more than this share says nothing about it."""
Progress = Callable[[float], None]
State = Literal["steady", "not settled", "overloaded"]


@dataclass(frozen=True)
class Side:
    """One side of a point: its run, and what the cluster completes when saturated (None: not known)."""

    run: RunResult
    capacity: Estimate | None = None

    def state(self, rate: float | None) -> State:
        """Whether the figures describe the load or only the run. The capacity knows better than a short run."""
        if self.run.unstable or (rate is not None and self.capacity is not None and rate > self.capacity.high):
            return "overloaded"
        settled = self.run.steady and self.shortfall(rate) < SETTLED_SHORTFALL
        return "steady" if settled else "not settled"

    def keeps_up(self, rate: float | None) -> bool:
        """Whether a steady state surely exists, also where this run is too short to show its figures."""
        if rate is None or self.capacity is None:
            return self.state(rate) == "steady"
        return not self.run.unstable and rate < self.capacity.low

    def shortfall(self, rate: float | None) -> float:
        """By how much its latency may fall short of the steady state; 0 where the capacity is not known."""
        if rate is None or self.capacity is None:
            return 0.0
        num_requests = len(self.run.requests) / len(self.run.replications)
        latency_s = sum(row[LATENCY] for row in self.run.replications) / len(self.run.replications)
        return shortfall(num_requests, rate * latency_s, rate / self.capacity.low)


@dataclass(frozen=True)
class Point:
    """One request rate: the run as asked and, when compared, the same requests without speculation."""

    request_rate_rps: float | None  # None: the scenario's own arrivals, which have no single rate
    on: RunResult
    off: RunResult | None
    confidence: float
    capacity_on: Estimate | None = None
    capacity_off: Estimate | None = None

    def figures(self, which: str) -> dict[str, Estimate]:
        """Every figure with its interval; ``which`` is ``on`` or ``off``."""
        return estimates(self.off if which == "off" and self.off is not None else self.on, self.confidence)

    @property
    def advantage(self) -> Estimate | None:
        """Latency off over on with its paired interval; None when nothing is compared or undefined."""
        return self._paired(LATENCY, inverse=False)

    @property
    def token_gain(self) -> Estimate | None:
        """Token goodput on over off with its paired interval."""
        return self._paired(TOKENS, inverse=True)

    @property
    def sides(self) -> tuple[Side, ...]:
        """On and, when compared, off."""
        on = Side(self.on, self.capacity_on)
        return (on,) if self.off is None else (on, Side(self.off, self.capacity_off))

    @property
    def runs(self) -> tuple[RunResult, ...]:
        """The runs of ``sides``."""
        return tuple(side.run for side in self.sides)

    @property
    def states(self) -> tuple[State, ...]:
        """The states of ``sides``."""
        return tuple(side.state(self.request_rate_rps) for side in self.sides)

    @property
    def probe(self) -> Probe:
        """What this rate says about the cutover; the sign alone where a side is overloaded or one replication is all.

        Stability decides before latency: without a steady state the ratio describes these runs, not the load, and
        longer runs would drift further.
        """
        rate, states = self.request_rate_rps, self.states
        x = 0.0 if rate is None else rate
        on, off = self.sides
        if states[1] == "overloaded" and on.keeps_up(rate):
            return Probe(x, sure=1, note="off is overloaded")
        if states[0] == "overloaded" and off.keeps_up(rate):
            return Probe(x, sure=-1, note="on is overloaded")
        advantage = self.advantage
        if states != ("steady", "steady") or advantage is None:
            return Probe(x)
        if advantage.n == 1:
            return Probe(x, sure=int(np.sign(advantage.mean - 1)))
        gains, bases = zip(*self._pairs(LATENCY), strict=True)
        # Either latency may still grow by its shortfall.
        return Probe(x, gains, bases, slack_low=on.shortfall(rate), slack_high=off.shortfall(rate))

    @property
    def verdict(self) -> str:
        """In a word: ``pays``, ``costs``, ``even``, ``overloaded`` or ``not settled``."""
        states = self.states
        if self.off is None:
            return {"steady": "stable"}.get(states[0], states[0])
        if states == ("overloaded", "overloaded"):
            return "overloaded"
        probe = self.probe
        sign = probe.sign(self.confidence)
        if sign:
            word = "pays" if sign > 0 else "costs"
            return f"{word} ({probe.note})" if probe.note else word
        if states != ("steady", "steady"):
            return "not settled"
        return "undefined" if self.advantage is None else "even"

    def _pairs(self, name: str) -> list[tuple[float, float]]:
        """The figure without and with speculation, by replication; replications that do not differ are one."""
        assert self.off is not None
        rows = zip(self.off.replications, self.on.replications, strict=True)
        pairs = [(off[name], on[name]) for off, on in rows]
        pairs = [(off, on) for off, on in pairs if math.isfinite(off) and math.isfinite(on)]
        return pairs[:1] if len(set(pairs)) == 1 else pairs

    def _paired(self, name: str, inverse: bool) -> Estimate | None:
        pairs = self._pairs(name) if self.off is not None else []
        if not pairs:
            return None
        off, on = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        if not all(on if not inverse else off):
            return None
        return paired_ratio(on, off, self.confidence) if inverse else paired_ratio(off, on, self.confidence)


@dataclass(frozen=True)
class Comparison:
    """The points in order of rate, and what they say about the cutover (None: nothing compared, or no rates).

    Of the crossing only the signs are to be shown: between rates this far apart no line can be drawn;
    `draftcast.scenarios.cutover` looks between them.
    """

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
        last = self.points[-1]
        capacity = {"on": last.capacity_on, "off": last.capacity_off}
        cut = self.cutover
        seen = None
        if cut is not None:
            spans = {"surely_pays_rps": cut.above, "surely_costs_rps": cut.below}
            seen = {"kind": cut.kind, **spans, "confidence": cut.confidence}
        return {"points": rows, "capacity_rps": capacity, "cutover": seen}


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
) -> Comparison:
    """Simulate ``scenario`` at each rate (none given: as it is), with and, if asked, without speculation.

    Of rates, both sides' capacity is simulated too: a run that is too short for a rate close to it looks stable.

    Args:
        rates: in any order; a rate given twice is simulated once.
        progress: called with the share of the work done, 0 to 1.

    Raises:
        InputError: nothing to compare with, or arrivals that have no single rate.
    """
    from draftcast.scenarios import saturation
    from draftcast.scenarios import simulate as simulator

    if compare_off and scenario.speculative_config is None:
        raise InputError("the scenario has no speculation to compare with", file="--compare-off")
    # Validate every point before the first second is simulated.
    asked: list[tuple[float | None, Scenario]] = [(rate, with_rate(scenario, rate)) for rate in sorted(set(rates))]
    asked = asked or [(_own_rate(scenario), scenario)]
    look = compare_off or bool(rates)
    total = len(asked) + (1 if look else 0)
    runs: list[list[RunResult]] = []
    for index, (_, variant) in enumerate(asked):
        variants = [variant, without_speculation(variant)] if compare_off else [variant]
        part = _part(progress, index, total)
        runs.append(simulator.simulate_together(variants, progress=part, record_steps=record_steps))
    capacities: list[Estimate | None] = [None, None]
    if look:
        variants = [asked[-1][1], without_speculation(asked[-1][1])] if compare_off else [asked[-1][1]]
        for index, (variant, seen) in enumerate(zip(variants, runs[-1], strict=True)):
            part = _part(_part(progress, len(asked), total), index, len(variants))
            capacities[index] = saturation.saturated_rate(variant, seen, part)
    if progress is not None:
        progress(1.0)
    confidence = scenario.statistics.confidence
    points = tuple(
        Point(rate, found[0], found[1] if compare_off else None, confidence, *capacities)
        for (rate, _), found in zip(asked, runs, strict=True)
    )
    cut = locate([point.probe for point in points], confidence) if compare_off and rates else None
    return Comparison(scenario, points, cut)


def _own_rate(scenario: Scenario) -> float | None:
    rate = getattr(scenario.workload.arrivals, "request_rate_rps", None)
    return float(rate) if rate is not None else None


def _part(progress: Progress | None, done: int, total: int) -> Progress | None:
    """Maps one run's 0..1 to its part of the whole."""
    if progress is None:
        return None
    return lambda share: progress((done + share) / total)
