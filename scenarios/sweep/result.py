"""What a sweep answers: its cells with intervals, which of them are on the Pareto front, and how far a sweep is."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.sweep.cells import Cell
from draftcast.scenarios.sweep.grid import Axis
from draftcast.scenarios.sweep.pareto import pareto_front
from draftcast.sim.output.metrics import summarise
from draftcast.sim.statistics.intervals import Estimate, replication_interval

if TYPE_CHECKING:
    import pandas as pd

USER, GPU = "tokens_per_s_per_user", "tokens_per_s_per_gpu"


@dataclass(frozen=True)
class SweepProgress:
    """How far a sweep is.

    Attributes:
        done: cells that are finished, those found in the data set included.
        reused: cells found in the data set.
        failed: cells without figures.
        left_s: estimate of the time left; None before there is a pace to tell it from.
        workers: that compute now; 0 while a cluster has none.
    """

    total: int
    done: int
    reused: int
    failed: int
    elapsed_s: float
    left_s: float | None
    workers: int


@dataclass(frozen=True)
class SweepCell:
    """One point of the grid.

    Attributes:
        values: the point: axis name and value.
        key: content address; empty when the point cannot be asked.
        error: why there are no figures, in one line; empty when there are, and when the cell was not reached.
        cell: what the data set holds; None when it was not reached.
        figures: each figure with its interval across the replications, with ``tokens_per_s_per_user`` (what one user
            sees while decoding: 1 / mean TPOT) and ``tokens_per_s_per_gpu`` (token goodput over all devices); empty
            where they do not hold for the load (overloaded, at its capacity, not settled).
    """

    values: Mapping[str, Any]
    key: str
    error: str
    cell: Cell | None
    figures: Mapping[str, Estimate] = field(repr=False)

    @property
    def state(self) -> str:
        """Of the setting at its load (`draftcast.scenarios.compare.verdict.State`); else ``error`` or ``not run``."""
        if self.error:
            return "error"
        return self.cell.state if self.cell is not None else "not run"

    @property
    def verdict(self) -> str:
        """Whether speculation pays (`scenarios/compare/verdict.Word`); empty where the cell does not speculate."""
        return (self.cell.verdict or "") if self.cell is not None else ""

    @property
    def point(self) -> tuple[str, ...]:
        """The values of the axes, as texts."""
        return tuple(_text(value) for value in self.values.values())

    @property
    def label(self) -> str:
        """The point in one line."""
        return ", ".join(f"{name}={text}" for name, text in zip(self.values, self.point, strict=True))


@dataclass(frozen=True)
class SweepResult:
    """A sweep; ``cells`` in the grid's order, the last axis fastest.

    Attributes:
        folder: the data set, or None when it was not to be kept.
        computed, reused: cells simulated in this run, and found in the data set.
        complete: False when it was stopped.
    """

    scenario: Scenario
    axes: tuple[Axis, ...]
    cells: tuple[SweepCell, ...]
    folder: Path | None
    computed: int
    reused: int
    complete: bool
    elapsed_s: float

    @property
    def errors(self) -> tuple[SweepCell, ...]:
        """Cells without figures although they were reached."""
        return tuple(cell for cell in self.cells if cell.error)

    @functools.cached_property
    def pareto(self) -> tuple[SweepCell, ...]:
        """The cells that no other beats, by rising tokens/s/GPU; see `pareto_front`.

        Only of cells whose figures hold for the load. Of an open loop, which completes what arrives, tokens/s are those
        that arrive.
        """
        cells = [cell for cell in self.cells if cell.cell is not None and cell.figures]
        figures = [_compared(cell.cell) for cell in cells if cell.cell is not None]
        front = pareto_front(figures, self.scenario.statistics.confidence)
        return tuple(sorted((cells[index] for index in front), key=lambda cell: cell.figures[GPU].mean))

    def frame(self) -> pd.DataFrame:
        """One row a cell: the axes, what `SweepCell` says, ``pareto``, and mean, ``_low`` and ``_high`` of figures."""
        import pandas as pd

        front = {id(cell) for cell in self.pareto}
        rows = []
        for cell in self.cells:
            row = {name: _scalar(value) for name, value in cell.values.items()}
            row |= {"state": cell.state, "error": cell.error, "pareto": id(cell) in front, "verdict": cell.verdict}
            known = cell.cell or Cell()
            row |= {"why": known.why, "slo_met": known.slo_met, "capacity_rps": known.capacity_rps}
            advantage = {"advantage": known.advantage} if known.advantage is not None else {}
            for name, estimate in {**advantage, **cell.figures}.items():
                row |= {name: estimate.mean, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
            rows.append(row)
        return pd.DataFrame(rows)

    def summary(self) -> dict[str, Any]:
        """For ``--json``."""
        front = {id(cell) for cell in self.pareto}
        cells = [
            {
                "values": dict(cell.values),
                "key": cell.key,
                "state": cell.state,
                "error": cell.error or None,
                "pareto": id(cell) in front,
                "verdict": cell.verdict or None,
                "why": known.why,
                "advantage": known.advantage,
                "slo_met": known.slo_met,
                "capacity_rps": known.capacity_rps,
                "figures": dict(cell.figures),
            }
            for cell in self.cells
            for known in [cell.cell or Cell()]
        ]
        return {
            "axes": {axis.name: list(axis.values) for axis in self.axes},
            "cells": cells,
            "computed": self.computed,
            "reused": self.reused,
            "errors": len(self.errors),
            "complete": self.complete,
            "folder": str(self.folder) if self.folder is not None else None,
            "elapsed_s": self.elapsed_s,
        }


def cell_figures(cell: Cell) -> dict[str, Estimate]:
    """Every figure with its interval across the replications, those of `SweepCell` included; none where none hold."""
    if not cell.has_figures:
        return {}
    figures = summarise(cell.replications, cell.confidence)
    gpu = [r["output_throughput"] / cell.num_gpus for r in cell.replications]
    for name, values in ((USER, _user(cell)), (GPU, gpu)):
        finite = [value for value in values if math.isfinite(value)]
        nothing = Estimate(math.nan, math.nan, math.nan, math.nan, 0, cell.confidence)
        figures[name] = replication_interval(finite, cell.confidence) if finite else nothing
    return figures


def _user(cell: Cell) -> list[float]:
    """Tokens per second that one user sees while decoding, by replication."""
    return [1 / r["mean_tpot_s"] if r["mean_tpot_s"] else math.nan for r in cell.replications]


def _compared(cell: Cell) -> tuple[Sequence[float], Sequence[float]]:
    """Tokens per second and GPU, and per second and user, by replication."""
    emitted = [r["output_throughput"] for r in cell.replications]
    if cell.state == "steady" and cell.offered_tokens_per_s:
        emitted = list(cell.offered_tokens_per_s)
    return [value / cell.num_gpus for value in emitted], _user(cell)


def _scalar(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else _text(value)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value)
