"""What a sweep answers: its cells with intervals, which of them are on the Pareto front, and how far a sweep is."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.sweep_cells import Cell
from draftcast.scenarios.sweep_grid import Axis
from draftcast.scenarios.sweep_pareto import pareto_front
from draftcast.sim.metrics import summarise
from draftcast.sim.statistics import Estimate, replication_interval

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
            sees while decoding: 1 / mean TPOT) and ``tokens_per_s_per_gpu`` (token goodput over all devices).
    """

    values: Mapping[str, Any]
    key: str
    error: str
    cell: Cell | None
    figures: Mapping[str, Estimate] = field(repr=False)

    @property
    def verdict(self) -> str:
        """In a word: ``stable``, ``unstable``, ``not settled``, ``error`` or ``not run``."""
        if self.error:
            return "error"
        if self.cell is None:
            return "not run"
        return "unstable" if self.cell.unstable else "stable" if self.cell.steady else "not settled"

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

    @property
    def pareto(self) -> tuple[SweepCell, ...]:
        """The cells that no other beats in tokens/s/user and tokens/s/GPU at once, by rising tokens/s/GPU.

        Only of cells whose queue does not grow: what an overloaded run shows depends on how long it was.
        """
        found = [cell for cell in self.cells if cell.cell is not None and not cell.error and not cell.cell.unstable]
        return tuple(pareto_front(found, lambda cell: (cell.figures[GPU].mean, cell.figures[USER].mean)))

    def frame(self) -> pd.DataFrame:
        """One row a cell: the axes, ``verdict``, ``error``, ``pareto``, and mean, ``_low`` and ``_high`` of figures."""
        import pandas as pd

        front = {id(cell) for cell in self.pareto}
        rows = []
        for cell in self.cells:
            row = {name: _scalar(value) for name, value in cell.values.items()}
            row |= {"verdict": cell.verdict, "error": cell.error, "pareto": id(cell) in front}
            row["slo_met"] = cell.cell.slo_met if cell.cell is not None else None
            for name, estimate in cell.figures.items():
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
                "verdict": cell.verdict,
                "error": cell.error or None,
                "pareto": id(cell) in front,
                "slo_met": cell.cell.slo_met if cell.cell is not None else None,
                "figures": dict(cell.figures),
            }
            for cell in self.cells
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
    """Every figure with its interval across the replications, those of `SweepCell` included; none for an error."""
    if cell.error:
        return {}
    figures = summarise(cell.replications, cell.confidence)
    user = [1 / r["mean_tpot_s"] if r["mean_tpot_s"] else math.nan for r in cell.replications]
    gpu = [r["output_throughput"] / cell.num_gpus for r in cell.replications]
    for name, values in ((USER, user), (GPU, gpu)):
        finite = [value for value in values if math.isfinite(value)]
        nothing = Estimate(math.nan, math.nan, math.nan, math.nan, 0, cell.confidence)
        figures[name] = replication_interval(finite, cell.confidence) if finite else nothing
    return figures


def _scalar(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else _text(value)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value)
