"""The speed-up map: speculation's advantage at every load and draft length, or load and acceptance, and where it is 1.

Each cell is one point of `draftcast.scenarios.cutover.probe`; the break-even contour is what
`draftcast.sim.statistics.crossing.locate` says of a row or column of them. Runs the simulator; draws nothing.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from draftcast.errors import InputError
from draftcast.files import picked
from draftcast.scenarios.compare.candidate import MAX_K, longest_draft, with_length
from draftcast.scenarios.cutover.axis import axis_named
from draftcast.scenarios.cutover.probe import Prober
from draftcast.scenarios.cutover.search import CutoverQuestion, first_points, label, settings
from draftcast.scenarios.run.simulate import HasPicture
from draftcast.scenarios.schema import Scenario
from draftcast.sim.progress import Progress, part_of
from draftcast.sim.statistics.crossing import Crossing, Probe, locate
from draftcast.sim.statistics.intervals import Estimate

AGAINST = ("k", "acceptance")
ACCEPTANCES = (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
LOADS = 7
MAP_BUDGET_REQUESTS = 2_000_000
NOT_LOOKED_AT = "not looked at: budget spent"


@dataclass(frozen=True)
class MapCell:
    """One point, the errors of step times and acceptance counted in as far as something is known of them."""

    x: float
    advantage: Estimate | None  # None where a side is overloaded or nothing was run
    sign: int  # +1 where speculation surely pays, -1 where it surely costs, 0 neither
    note: str = ""  # what a sign without an advantage says, or why there is none

    @classmethod
    def of(cls, prober: Prober, x: float, probe: Probe | None) -> Self:
        """``probe``: what the prober found at x; None: its budget was spent."""
        if probe is None:
            return cls(x, None, 0, NOT_LOOKED_AT)
        confidence, run = prober.scenario.statistics.confidence, prober.paired_runs[x]
        by_chance, predicted = probe.advantage(confidence), prober.predict(probe, run.capacities, run.slo_use)
        # As of a verdict: a run that tells nothing is no surer for it, and some errors make no difference.
        if predicted is None or predicted.advantage is None or not predicted.advantage.half_width or probe.says_nothing:
            return cls(x, by_chance, probe.sign(confidence), probe.note)
        if by_chance is not None:
            by_chance = by_chance.within(predicted.advantage.low, predicted.advantage.high)
        return cls(x, by_chance, predicted.sign, probe.note)


@dataclass(frozen=True)
class SpeedupMap(HasPicture):
    """Advantage by load and draft length or acceptance."""

    picture = "cutover_report.map_figure"
    question: CutoverQuestion = field(repr=False)
    label: str  # the method, and its draft length where that does not vary
    against: str  # ``k`` or ``acceptance``; ``ys`` are its values
    xs: tuple[float, ...]  # on the question's axis
    ys: tuple[float, ...]
    rows: tuple[tuple[MapCell, ...], ...]  # one for each of ``ys``, a cell for each of ``xs``
    contour: tuple[tuple[float, Crossing], ...]  # break-even at each k or load, of chance alone
    confidence: float
    requests: int  # simulated in all

    def summary(self) -> dict[str, Any]:
        over = self.question.over
        fixed, varied = ("k", over) if self.against == "k" else (over, "acceptance")
        return {
            **picked(self.question, "over metric"),
            **picked(self, "against confidence"),
            "unit": self.question.axis.unit,
            "setting": self.label,
            "cells": [
                picked(cell, "x note advantage sign") | {self.against: y}
                for y, row in zip(self.ys, self.rows, strict=True)
                for cell in row
            ],
            "break_even": [
                {fixed: at, varied: crossing.best, **picked(crossing, "kind low high")} for at, crossing in self.contour
            ],
            "requests_simulated": self.requests,
        }


def speedup_map(
    question: CutoverQuestion, *, against: str, values: Sequence[float] = (), progress: Progress | None = None
) -> SpeedupMap:
    """The map of the scenario's method; the budget is spent in equal parts for each of ``values``.

    ``against``: ``k`` or ``acceptance`` (per draft token, the same at every position). ``values``: of that; none: every
    length the acceptance covers, or `ACCEPTANCES`. ``progress``: called with the share of the budget that is spent.

    Raises InputError: acceptance on both axes; a value that is not possible; nothing to compare.
    """
    scenario, axis = question.scenario, question.axis
    if against not in AGAINST:
        raise InputError(f"must be one of {', '.join(AGAINST)}", file="--map", value=against)
    if against == question.over:
        raise InputError("the map needs another axis than --over", file="--map", value=against)
    settings(scenario)  # refuses one without speculation
    usual = ACCEPTANCES if against == "acceptance" else range(1, longest_draft(scenario, MAX_K) + 1)
    ys = sorted(set(values)) or [float(y) for y in usual]
    variants = [_variant(scenario, against, y) for y in ys]
    budget = (question.budget_requests or MAP_BUDGET_REQUESTS) // len(ys)
    probers = [
        Prober(variant, axis, question.compared, budget, part_of(progress, index, len(ys)))
        for index, variant in enumerate(variants)
    ]
    xs = question.first_points()
    if not xs and axis.name == "rate":
        # From little load to beyond the larger capacity by the fluid estimate.
        most = max(fluid.capacity_rps() for fluid in probers[-1].fluids())
        xs = [float(f"{x:.3g}") for x in np.linspace(0.1, 1.0, LOADS) * most]
    xs = xs or first_points(probers[-1])
    for variant in variants:
        axis.at(variant, xs[0])
    replications, confidence = scenario.statistics.replications, scenario.statistics.confidence
    cells = [[(x, prober(x, replications, 0)) for x in xs] for prober in probers]
    rows = tuple(tuple(MapCell.of(prober, *point) for point in row) for prober, row in zip(probers, cells, strict=True))
    if progress is not None:
        progress(1.0)
    # The crossing over the load for each draft length, or over the acceptance for each load.
    probes = [[probe or Probe(x, note=NOT_LOOKED_AT) for x, probe in row] for row in cells]
    lines: list[tuple[float, Sequence[Probe]]] = list(zip(ys, probes, strict=True))
    if against == "acceptance":
        columns = [[dataclasses.replace(row[index], x=y) for y, row in lines] for index in range(len(xs))]
        lines = list(zip(xs, columns, strict=True))
    return SpeedupMap(
        question,
        scenario.method if against == "k" else label(scenario),
        against,
        tuple(xs),
        tuple(ys),
        rows,
        tuple((at, locate(line, confidence)) for at, line in lines),
        confidence,
        sum(prober.spent_requests for prober in probers),
    )


def _variant(scenario: Scenario, against: str, y: float) -> Scenario:
    if against == "acceptance":
        axis = axis_named("acceptance")
        return axis.at(scenario, axis.check(y))
    if y != round(y):
        raise InputError("must be whole numbers from 1", file="--k", value=y)
    return with_length(scenario, round(y))
