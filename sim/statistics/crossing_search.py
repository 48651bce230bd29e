"""Where to look next for a crossing: closer, with more replications, with longer runs; and when to stop.

Knows no simulator: it asks for probes and is told when the budget allows no more. Deterministic: the same answers lead
to the same questions.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from draftcast.sim.statistics.crossing import Crossing, Probe, locate

Stopped = Literal["narrow enough", "budget spent", "no more to learn"]
Ask = Callable[[float, int, int], Probe | None]
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
class Found:
    """The crossing, every probe by x (the last one where several were made), and why the search ended."""

    crossing: Crossing
    probes: tuple[Probe, ...]
    stopped: Stopped


class _OutOfBudget(Exception):
    pass


@dataclass
class CrossingSearch:
    """Looks at a grid, then wherever the crossing seems to be, until its interval is narrower than ``target``."""

    ask: Ask
    replications: int  # at every first look at an x; at least 2
    confidence: float = 0.95
    target: float = 0.05  # width of the interval over its value at which the search ends
    unit: float = 0.0  # smallest difference between two x that means anything (1 for whole numbers)
    probes: dict[float, Probe] = field(default_factory=dict)
    repeated: dict[float, int] = field(default_factory=dict)

    def run(self, grid: Sequence[float]) -> Found:
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
        return Found(crossing, tuple(self.probes[x] for x in sorted(self.probes)), stopped)

    @property
    def reach(self) -> float:
        return min(self.target, REACH)

    def probe(self, x: float, replications: int, effort: int = 0) -> Probe:
        found = self.ask(x, replications, effort)
        if found is None:
            raise _OutOfBudget
        self.probes[x], self.repeated[x] = found, replications
        return found

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
        """No sign anywhere: more replications wherever a value is not sure. False when they are spent."""
        known = sorted(self.probes.items())
        unsure = [x for x, p in known if p.is_open(self.confidence) and self.repeated[x] < MAX_REPLICATIONS]
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
            found = locate(design, self.confidence)
            if found.kind == "crosses" and math.isfinite(found.value):
                best, centre = found, found.value
                if found.relative_width <= self.target or found.high - found.low < self.unit:
                    return found, "narrow enough"
                half = max(self.reach * centre, (found.high - found.low) / 2, self.unit)
                wider = found.relative_width / self.target
            elif (found.above is None) != (found.below is None):
                # It lies beyond the sure probes, on the side to which the rough curve falls or rises.
                side = 1.0 if (found.above is not None) == rough.falls else -1.0
                centre, half, wider = centre + side * half, 1.5 * half, 1.0
            else:
                half, wider = 1.5 * half, 2.0
            slack = max(probe.slack_low + probe.slack_high for probe in design)
            spread = max((e.high - e.low) / e.mean for p in design if (e := p.advantage(self.confidence)) is not None)
            if wider > 1 and slack > spread and effort < MAX_EFFORT:
                effort += 1
            elif wider > 1 and replications < MAX_REPLICATIONS:
                # A tenth more than the spread so far asks for: few looks, for each may stop too early by chance.
                replications = min(math.ceil(replications * min(1.1 * wider**2, MOST_AT_ONCE)) + 1, MAX_REPLICATIONS)
            elif wider > 1:
                break
        return best, "no more to learn"
