"""Where a paired advantage crosses 1: the cutover, with an interval or an honest refusal; and where to look next.

Knows values of an advantage at some points, each from replications that share their random numbers, and bounds: points
at which one side is overloaded, so that the sign is known and no value exists. Between two values it draws a line for
every replication; across a bound it draws none. The search looks closer, with more replications or with longer runs.
It knows no simulator: it asks for probes and is told when the budget allows no more. Deterministic: the same answers
lead to the same questions.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from draftcast.kernels.arrays import FloatArray
from draftcast.sim.statistics.intervals import Estimate, factor_interval, student_t

CrossingKind = Literal["crosses", "always", "never", "even", "more than once", "unclear"]
SAMPLES = 65  # points at which a segment's band is looked at before a crossing of the band is bisected
EVEN = 0.005  # Advantages whose intervals stay within this share of 1 make no difference.
Stopped = Literal["narrow enough", "budget spent", "no more to learn"]
ProbeFunction = Callable[[float, int, int], "Probe | None"]
"""One probe at x from the first so many replications of longer runs (doublings: the effort); None: no budget."""
MAX_ROUNDS = 40
MAX_LOOKS = 6
# Fewer replications than this understate the spread often enough to stop too early: 5 cover 91 %, 10 cover 93 %.
MIN_PINNED = 10
MAX_REPLICATIONS = 64
MAX_EFFORT = 4
MOST_AT_ONCE = 8.0
REACH = 0.05
"""Share of the crossing to either side of it over which a curve is taken for a line, however loose the target."""


@dataclass(frozen=True)
class Probe:
    """What is known of the advantage ``mean(gains) / mean(bases)`` at one x."""

    x: float
    # One positive figure per replication, paired; empty where there is no steady state.
    gains: tuple[float, ...] = ()
    bases: tuple[float, ...] = ()
    sure: int = 0  # +1: surely above 1 without a value (the base is overloaded), -1: surely below
    # The true advantage may be smaller by the factor ``1 + slack_low``, larger by ``1 + slack_high``, whatever the
    # replications say: what a finite run cannot know.
    slack_low: float = 0.0
    slack_high: float = 0.0
    note: str = ""

    @property
    def has_value(self) -> bool:
        """Whether an advantage with an interval exists here."""
        total = sum(self.gains) + sum(self.bases)
        return len(self.gains) > 1 and math.isfinite(total) and total > 0

    @property
    def says_nothing(self) -> bool:
        """Whether neither a value nor a sign is known here."""
        return not self.has_value and not self.sure

    @property
    def indices(self) -> FloatArray:
        """Per replication the logarithm of gain over base, shape [R]; its sign is that of the advantage less 1.

        Where one of them is 0 (no request meets an SLO) a hundredth of their mean is added to all, which bounds it.
        """
        gains, bases = np.array(self.gains), np.array(self.bases)
        if not (gains.all() and bases.all()):
            little = 0.01 * (gains.mean() + bases.mean()) / 2
            gains, bases = gains + little, bases + little
        return np.asarray(np.log(gains / bases))

    def advantage(self, confidence: float) -> Estimate | None:
        """The advantage with the interval of its replications, slack left out; None without a value."""
        return factor_interval(self.indices, confidence) if self.has_value else None

    def sign(self, confidence: float) -> int:
        """+1 surely above 1, -1 surely below, 0 neither."""
        if self.sure or not self.has_value:
            return self.sure
        lower, upper = _bounds(self, self, self.x, confidence)
        return 1 if lower > 0 else -1 if upper < 0 else 0

    def is_even(self, confidence: float) -> bool:
        """Whether the advantage is 1 up to a share that makes no difference."""
        estimate = self.advantage(confidence)
        if estimate is None or self.sure:
            return False
        return estimate.low / (1 + self.slack_low) > 1 - EVEN and estimate.high * (1 + self.slack_high) < 1 + EVEN

    def is_open(self, confidence: float) -> bool:
        """Whether there is a value and it might still turn out to be above 1 or below."""
        return self.has_value and not self.sign(confidence) and not self.is_even(confidence)


@dataclass(frozen=True)
class Crossing:
    """Where the advantage crosses 1."""

    # ``always`` and ``never``: surely above or below 1 at every point with a value, leaving out those at which it is 1
    # up to half a per cent; ``even``: that at every point.
    kind: CrossingKind
    value: float  # NaN where no two values lie on either side of it (then a bound is what is known)
    low: float  # with ``high`` it bounds the crossing with the given confidence
    high: float
    confidence: float
    falls: bool = True  # through 1: it pays below, costs above
    above: tuple[float, float] | None = None  # first and last x at which the advantage is surely above 1
    below: tuple[float, float] | None = None

    @property
    def best(self) -> float:
        """The value, else the middle of the interval."""
        return self.value if math.isfinite(self.value) else (self.low + self.high) / 2

    @property
    def gap(self) -> tuple[float, float]:
        """Of kind ``crosses``: the last x of the sign before it and the first of the sign after it."""
        assert self.above is not None
        assert self.below is not None
        return (self.above[1], self.below[0]) if self.falls else (self.below[1], self.above[0])

    @property
    def relative_width(self) -> float:
        """Width of the interval over the best value; NaN without a crossing."""
        return (self.high - self.low) / self.best


def locate(probes: Sequence[Probe], confidence: float = 0.95) -> Crossing:
    """What the probes say, in any order, with different x.

    The interval inverts the pointwise Student-t test: it holds every x at which "the advantage is 1" is not rejected.
    Between two probes with values every replication's index is interpolated linearly, so that common random numbers
    narrow the band in between as they do at the probes; where either has none, nothing between them is rejected.
    """
    points = sorted(probes, key=lambda probe: probe.x)
    signed = [(probe, sign) for probe in points if (sign := probe.sign(confidence))]
    above = [probe.x for probe, sign in signed if sign > 0]
    below = [probe.x for probe, sign in signed if sign < 0]
    spans = [(min(xs), max(xs)) if xs else None for xs in (above, below)]

    def without_crossing(kind: CrossingKind) -> Crossing:
        return Crossing(kind, math.nan, math.nan, math.nan, confidence, True, *spans)

    changes = [pair for pair in itertools.pairwise(signed) if pair[0][1] != pair[1][1]]
    if len(changes) > 1:
        return without_crossing("more than once")
    if not changes:
        if points and all(p.is_even(confidence) for p in points):
            return without_crossing("even")
        is_open = any(p.is_open(confidence) for p in points)
        return without_crossing("unclear" if is_open or not signed else "always" if above else "never")
    (left, _), (right, _) = changes[0]
    falls = changes[0][0][1] > 0
    inside = [probe for probe in points if left.x <= probe.x <= right.x]
    return Crossing("crosses", *_confidence_set(inside, confidence, 1.0 if falls else -1.0), confidence, falls, *spans)


def _confidence_set(inside: Sequence[Probe], confidence: float, sense: float) -> tuple[float, float, float]:
    """Value, low and high of the crossing between the first and the last probe, both of a sure sign."""
    value, segments = math.nan, list(itertools.pairwise(inside))
    forward = (_unsure_from(p, q, confidence, sense) for p, q in segments)
    backward = (_unsure_from(q, p, confidence, -sense) for p, q in reversed(segments))
    low = next((x for x in forward if x is not None), inside[-1].x)
    high = next((x for x in backward if x is not None), inside[0].x)
    for p, q in segments:
        if p.has_value and q.has_value:
            before, after = sense * float(p.indices.mean()), sense * float(q.indices.mean())
            if before > 0 >= after:
                value = p.x + (q.x - p.x) * before / (before - after)
                break
    # Where a neighbour has fewer replications the band's mean is theirs; the interval holds the value all the same.
    return (value, min(low, value), max(high, value)) if math.isfinite(value) else (value, low, high)


def _unsure_from(p: Probe, q: Probe, confidence: float, sense: float) -> float | None:
    """First x from p to q, or p, at which it is not surely above 1 (sense 1) or below (sense -1); None: nowhere."""
    if not (p.has_value and q.has_value):
        return p.x

    def margin(x: ArrayLike) -> FloatArray:
        lower, upper = _bounds(p, q, x, confidence)
        return lower if sense > 0 else -upper

    xs = np.linspace(p.x, q.x, SAMPLES)
    unsure = np.flatnonzero(margin(xs) <= 0)
    if not unsure.size:
        return None
    if unsure[0] == 0:
        return p.x
    from scipy.optimize import brentq

    near, far = xs[unsure[0] - 1], xs[unsure[0]]
    return float(brentq(lambda x: float(margin(x)), near, far, xtol=1e-12 * abs(q.x - p.x), rtol=1e-15))


def between(probes: Sequence[Probe], x: float) -> Probe:
    """The probe at x on the line between its neighbours of those in order; without values where either has none."""
    right = next((probe for probe in probes if probe.x >= x), probes[-1])
    left = next((probe for probe in reversed(probes) if probe.x <= x), probes[0])
    if not (left.has_value and right.has_value):
        return Probe(x)
    ends = (left, right)
    # The standard error is interpolated too: the average of both runs would claim less error than a run at x has.
    errors = [float(probe.indices.std(ddof=1)) / math.sqrt(len(probe.gains)) for probe in ends]
    wider = ends[int(np.argmax(errors))].indices

    def line(values: Sequence[float]) -> float:
        return float(np.interp(x, [probe.x for probe in ends], values))

    scale = line(errors) / (max(errors) or 1.0)
    indices = line([probe.indices.mean() for probe in ends]) + scale * (wider - wider.mean())
    gains = tuple(np.exp(indices).tolist())
    slack_low, slack_high = line([probe.slack_low for probe in ends]), line([probe.slack_high for probe in ends])
    return Probe(x, gains, (1.0,) * len(gains), slack_low=slack_low, slack_high=slack_high)


def _bounds(p: Probe, q: Probe, x: ArrayLike, confidence: float) -> tuple[FloatArray, FloatArray]:
    """Lower and upper bound of the index at x, slack included, along the line between two probes (one twice: at it)."""
    count = min(len(p.gains), len(q.gains))
    share = (np.asarray(x, dtype=np.float64) - p.x) / ((q.x - p.x) or 1.0)
    slack_low = (1 - share) * p.slack_low + share * q.slack_low
    slack_high = (1 - share) * p.slack_high + share * q.slack_high
    # Of every replication, last.
    indices = np.multiply.outer(1 - share, p.indices[:count]) + np.multiply.outer(share, q.indices[:count])
    mean = indices.mean(axis=-1)
    half = student_t(count - 1, confidence) * indices.std(axis=-1, ddof=1) / math.sqrt(count)
    return mean - half - np.log1p(slack_low), mean + half + np.log1p(slack_high)


@dataclass(frozen=True)
class CrossingResult:
    """The crossing, every probe by x (the last one where several were made), and why the search ended."""

    crossing: Crossing
    probes: tuple[Probe, ...]
    stopped: Stopped


class _OutOfBudget(Exception):
    pass


@dataclass
class CrossingSearch:
    """Looks at a grid, then wherever the crossing seems to be, until its interval is narrower than ``target``."""

    ask: ProbeFunction
    replications: int  # at every first point; at least 2
    confidence: float = 0.95
    target: float = 0.05  # width of the interval over its value at which the search ends
    unit: float = 0.0  # smallest difference between two x that means anything (1 for whole numbers)
    probes: dict[float, Probe] = field(default_factory=dict)
    repeated: dict[float, int] = field(default_factory=dict)

    def run(self, grid: Sequence[float]) -> CrossingResult:
        """The crossing; ``grid``: the first x, increasing."""
        stopped: Stopped = "no more to learn"
        try:
            crossing = self.bracket(grid)
            if crossing.kind == "crosses" and math.isfinite(crossing.value):
                crossing, stopped = self.pin(crossing)
            elif crossing.kind == "crosses" and crossing.relative_width <= self.target:
                stopped = "narrow enough"
        except _OutOfBudget:
            crossing, stopped = self.crossing(), "budget spent"
        return CrossingResult(crossing, tuple(self.probes[x] for x in sorted(self.probes)), stopped)

    @property
    def reach(self) -> float:
        return min(self.target, REACH)

    def probe(self, x: float, replications: int, effort: int = 0) -> Probe:
        probe = self.ask(x, replications, effort)
        if probe is None:
            raise _OutOfBudget
        self.probes[x], self.repeated[x] = probe, replications
        return probe

    def crossing(self) -> Crossing:
        return locate(list(self.probes.values()), self.confidence)

    def bracket(self, grid: Sequence[float]) -> Crossing:
        """Probes until the crossing stands in a gap small enough to draw straight lines over, or nothing helps."""
        for x in grid:
            self.probe(x, self.replications)
        for _ in range(MAX_ROUNDS):
            crossing = self.crossing()
            if crossing.kind in ("crosses", "always", "never"):
                place = self._inside_gap(crossing) if crossing.kind == "crosses" else self._at_the_edge()
                if place is None:
                    return crossing
                self.probe(place, self.replications)
            elif crossing.kind != "unclear" or not self._repeat():
                return crossing
        return self.crossing()

    def _at_the_edge(self) -> float | None:
        """Between what is known and what says nothing, where one side alone may be overloaded; None: close enough."""
        for p, q in itertools.pairwise(sorted(self.probes)):
            is_edge = self.probes[p].says_nothing != self.probes[q].says_nothing
            if is_edge and q - p > max(self.target * q, self.unit):
                return self.whole((p + q) / 2)
        return None

    def _inside_gap(self, crossing: Crossing) -> float | None:
        """Where to look inside the gap that holds the crossing; None when it is small enough."""
        ends = crossing.gap
        xs = [x for x in sorted(self.probes) if ends[0] <= x <= ends[1]]
        if math.isfinite(crossing.value):
            low, high = next(pair for pair in itertools.pairwise(xs) if pair[0] <= crossing.value <= pair[1])
            if high - low <= max(4 * self.reach * crossing.value, 2 * self.unit):
                return None
            # Not at the value itself: just beyond it, so that it ends up in the small part of the gap.
            step = max(self.reach * crossing.value, self.unit)
            x = crossing.value + step if crossing.value - low < high - crossing.value else crossing.value - step
            margin = max(self.unit, (high - low) / 20)
            return self.whole(min(max(x, low + margin), high - margin))
        if crossing.relative_width <= self.target:
            return None
        # A bound stands on one side: come closer to it from the side that has values, before what did not settle.
        gaps = [pair for pair in itertools.pairwise(xs) if not all(self.probes[x].has_value for x in pair)]
        low, high = gaps[0] if self.probes[xs[0]].has_value else gaps[-1]
        if high - low <= max(self.target / 8 * high, self.unit):
            return None
        return self.whole((low + high) / 2)

    def _repeat(self) -> bool:
        """More replications wherever a value is not sure; False when they are spent."""
        probes = sorted(self.probes.items())
        unsure = [x for x, p in probes if p.is_open(self.confidence) and self.repeated[x] < MAX_REPLICATIONS]
        for x in unsure:
            self.probe(x, min(4 * self.repeated[x], MAX_REPLICATIONS))
        return bool(unsure)

    def whole(self, x: float) -> float:
        return round(x / self.unit) * self.unit if self.unit else x

    def pin(self, rough: Crossing) -> tuple[Crossing, Stopped]:
        """The crossing from three probes around it with the same replications.

        Only they decide: a probe that was made to find the place, with fewer replications or because another had been
        on the wrong side by chance, would cut the interval where it should not.
        """
        best, centre, half = rough, rough.value, max(self.reach * rough.value, (rough.high - rough.low) / 2, self.unit)
        replications, effort = max(self.replications, MIN_PINNED), 0
        for _ in range(MAX_LOOKS):
            xs = sorted({self.whole(x) for x in (centre - half, centre, centre + half) if x > 0})
            try:
                design = [self.probe(x, replications, effort) for x in xs]
            except _OutOfBudget:
                return best, "budget spent"
            crossing = locate(design, self.confidence)
            if crossing.kind == "crosses" and math.isfinite(crossing.value):
                best, centre = crossing, crossing.value
                if crossing.relative_width <= self.target or crossing.high - crossing.low < self.unit:
                    return crossing, "narrow enough"
                half = max(self.reach * centre, (crossing.high - crossing.low) / 2, self.unit)
                wider = crossing.relative_width / self.target
            elif (crossing.above is None) != (crossing.below is None):
                # It lies beyond the sure probes, on the side to which the rough curve falls or rises.
                side = 1.0 if (crossing.above is not None) == rough.falls else -1.0
                centre, half, wider = centre + side * half, 1.5 * half, 1.0
            else:
                half, wider = 1.5 * half, 2.0
            slack = max(probe.slack_low + probe.slack_high for probe in design)
            spread = max((e.high - e.low) / e.mean for p in design if (e := p.advantage(self.confidence)) is not None)
            if wider > 1 and slack > spread and effort < MAX_EFFORT:
                effort += 1
            elif wider > 1 and replications < MAX_REPLICATIONS:
                # A tenth more than the spread so far asks for: few probes, for each may stop too early by chance.
                replications = min(math.ceil(replications * min(1.1 * wider**2, MOST_AT_ONCE)) + 1, MAX_REPLICATIONS)
            elif wider > 1:
                break
        return best, "no more to learn"
