"""What a sweep answers: its cells with intervals, which of them are on the Pareto front, and how far a sweep is."""

import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from draftcast.errors import InputError
from draftcast.files import picked
from draftcast.kernels.arrays import BoolArray, FloatArray
from draftcast.scenarios.run.simulate import HasPicture
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.sweep.cells import ENGINE, ERROR, KEY, MESSAGE, PREDICTED, REPLICATION, SCENARIO, STATUS
from draftcast.scenarios.sweep.grid import SweepAxis
from draftcast.sim.output.metrics import summarise
from draftcast.sim.statistics.intervals import Estimate, student_t

# Rivals a point is compared with at once; most points are beaten by one of the first, the best on the whole.
BLOCK = 256
USER, GPU = "tokens_per_s_per_user", "tokens_per_s_per_gpu"
# Columns of the data set that are no figures.
_FACTS = {
    *(KEY, REPLICATION, STATUS, *SCENARIO),
    *("state", "slo_met", "capacity_rps", "num_gpus", "confidence", "notes", "offered_tokens_per_s"),
    *("verdict", "why", "advantage", "advantage_low", "advantage_high"),
}
_PREFIXES = (ENGINE, PREDICTED)


def pareto_front(points: Sequence[tuple[Sequence[float], Sequence[float]]], confidence: float) -> list[int]:
    """Indices of the points that no other beats.

    A point beats another if one of its figures is significantly better (the interval of the log ratio, paired by
    replication, excludes 1; with one replication every difference counts) and the other is not significantly worse.

    ``points``: both figures by replication; a point with a figure that is not positive and finite is left out. Points
    with fewer replications than another are compared over as many.
    """
    if not points:
        return []
    least = min(len(point[0]) for point in points)
    figures = np.array([[first[:least], second[:least]] for first, second in points])
    indices = np.flatnonzero((np.isfinite(figures) & (figures > 0)).all(axis=(1, 2)))
    logs = np.log(figures[indices])
    order = np.argsort(-logs.mean(axis=2).sum(axis=1), kind="stable")
    indices, logs = indices[order], logs[order]
    blocks = [logs[start : start + BLOCK] for start in range(0, len(logs), BLOCK)]
    beaten = [any(_beats(block, point, confidence).any() for block in blocks) for point in logs]
    return sorted(indices[~np.array(beaten, bool)].tolist())


def _beats(rivals: FloatArray, point: FloatArray, confidence: float) -> BoolArray:
    """Which of the rivals (shape [N, 2, R], logarithms) beat a point ([2, R])."""
    differences = rivals - point
    means = differences.mean(axis=2)
    count = differences.shape[2]
    half = 0.0 if count < 2 else student_t(count - 1, confidence) * differences.std(axis=2, ddof=1) / np.sqrt(count)
    better, worse = means - half > 0, means + half < 0
    return np.asarray(better.any(axis=1) & ~worse.any(axis=1))


@dataclass(frozen=True)
class SweepProgress:
    total: int
    done: int  # cells that are finished, those found in the data set included
    reused: int  # cells found in the data set
    failed: int  # cells without figures
    elapsed_s: float
    left_s: float | None  # estimate of the time left; None before there is a pace to tell it from
    workers: int  # that compute now; 0 while a cluster has none


@dataclass(frozen=True)
class SweepCell:
    """One point of the grid, and what the data set holds of it."""

    values: Mapping[str, Any]  # the point: axis name and value
    key: str = ""  # content address; empty when the point cannot be asked
    error: str = ""  # why there are no figures, in one line; empty when there are, and when the cell was not reached
    state: str = "not run"  # a `State`, ``error`` or ``not run``
    verdict: str = ""  # on speculation, by mean end-to-end latency; empty where the setting does not speculate
    why: str = ""  # what decided, in a few words; empty where ``advantage`` says it
    advantage: Estimate | None = None  # in latency; None as of ``Verdict.advantage``
    slo_met: bool | None = None
    capacity_rps: float | None = None  # when saturated; None where the run alone tells that the load is far below
    num_gpus: int = 0  # devices of the whole cluster
    replications: tuple[Mapping[str, float], ...] = field(default=(), repr=False)  # as of ``RunResult``
    offered_tokens_per_s: tuple[float, ...] = ()  # by replication; empty where arrivals have no single rate
    # Each figure with its interval across the replications, with ``tokens_per_s_per_user`` (what one user sees while
    # decoding: 1 / mean TPOT) and ``tokens_per_s_per_gpu`` (token goodput over all devices); empty where they do not
    # hold for the load (overloaded, at its capacity, not settled)
    figures: Mapping[str, Estimate] = field(default_factory=dict, repr=False)
    predicted_figures: Mapping[str, Estimate] = field(default_factory=dict, repr=False)  # of those that have any
    notes: tuple[str, ...] = ()  # what a reader must know before trusting the figures

    @classmethod
    def without_figures(cls, values: Mapping[str, Any], key: str, error: str) -> Self:
        """A point that cannot be asked, failed, or was not reached (no error)."""
        return cls(values, key, error, "error" if error else "not run")

    @classmethod
    def of(cls, key: str, rows: Sequence[Mapping[str, Any]]) -> Self:
        """A cell, of no point yet, from its rows in the data set. Raises InputError: not what `run_task` writes."""
        try:
            first = rows[0]
            if first[STATUS] == ERROR:
                return cls.without_figures({}, key, str(first[MESSAGE]))
            facts = {name: first[name] for name in ("verdict", "why", "slo_met", "capacity_rps") if name in first}
            if "advantage" in first:
                mean, low, high = first["advantage"], first["advantage_low"], first["advantage_high"]
                count = 1 if math.isnan(low) else len(rows)
                facts["advantage"] = Estimate(mean, low, high, (high - low) / 2, count, first["confidence"])
            facts["notes"] = tuple(json.loads(first["notes"]))
            facts["replications"] = tuple(
                {name: float(v) for name, v in row.items() if name not in _FACTS and not name.startswith(_PREFIXES)}
                for row in rows
            )
            offered = "offered_tokens_per_s"
            facts[offered] = tuple(row[offered] for row in rows if offered in row)
            cell = cls({}, key, "", first["state"], num_gpus=int(first["num_gpus"]), **facts)
            return cell._with_figures(first) if cell.has_figures else cell
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"damaged: the data set's rows lack or spoil {error}", key=key) from None

    @property
    def has_figures(self) -> bool:
        """Whether the figures hold for the load, as of ``Side.has_figures``."""
        return self.state in ("steady", "finite")

    @property
    def point(self) -> tuple[str, ...]:
        """The values of the axes, as texts."""
        return tuple(_text(value) for value in self.values.values())

    @property
    def label(self) -> str:
        return ", ".join(f"{name}={text}" for name, text in zip(self.values, self.point, strict=True))

    def pareto_values(self) -> tuple[Sequence[float], Sequence[float]]:
        """Tokens per second and GPU, and per second and user, by replication."""
        emitted = [figures["output_throughput"] for figures in self.replications]
        if self.state == "steady" and self.offered_tokens_per_s:
            emitted = list(self.offered_tokens_per_s)  # an open loop completes what arrives
        return [value / self.num_gpus for value in emitted], self._per_user()

    def _per_user(self) -> list[float]:
        tpots = [figures["mean_tpot_s"] for figures in self.replications]
        return [1 / tpot if tpot else math.nan for tpot in tpots]

    def _with_figures(self, row: Mapping[str, Any]) -> Self:
        """``row``: one of the data set."""
        both = zip(self.replications, self._per_user(), strict=True)
        more = [{**figures, USER: user, GPU: figures["output_throughput"] / self.num_gpus} for figures, user in both]
        figures = summarise(more, row["confidence"])
        names = [name for name in figures if f"{PREDICTED}{name}_low" in row]
        bounds = [(row[f"{PREDICTED}{name}_low"], row[f"{PREDICTED}{name}_high"]) for name in names]
        predicted = {name: figures[name].within(*ends) for name, ends in zip(names, bounds, strict=True)}
        if (emitted := predicted.get("output_throughput")) is not None:
            predicted[GPU] = emitted.scaled(1 / self.num_gpus)
        if (tpot := predicted.get("mean_tpot_s")) is not None:
            least, mean, most = 1 / tpot.high, 1 / tpot.mean, 1 / tpot.low if tpot.low else math.inf
            low, high = (figures[USER].mean * rate / mean for rate in (least, most))
            predicted[USER] = figures[USER].within(low, high)
        return replace(self, figures=figures, predicted_figures=predicted)

    @property
    def shown_figures(self) -> dict[str, Estimate]:
        """The figures, those with a prediction interval with it."""
        return {**self.figures, **self.predicted_figures}


@dataclass(frozen=True)
class SweepResult(HasPicture):
    """A sweep; ``cells`` in the grid's order, the last axis fastest."""

    picture = "sweep_report.sweep_figure"
    scenario: Scenario
    axes: tuple[SweepAxis, ...]
    cells: tuple[SweepCell, ...]
    folder: Path | None  # the data set, or None when it was not to be kept
    computed: int  # cells simulated in this run
    reused: int  # cells found in the data set
    complete: bool  # False when it was stopped
    elapsed_s: float

    @property
    def errors(self) -> tuple[SweepCell, ...]:
        return tuple(cell for cell in self.cells if cell.error)

    @property
    def notes(self) -> tuple[str, ...]:
        """Of all cells, each sentence once."""
        return tuple(dict.fromkeys(note for cell in self.cells for note in cell.notes))

    @functools.cached_property
    def pareto(self) -> tuple[SweepCell, ...]:
        """The cells whose figures hold for the load and that no other beats, by rising tokens/s/GPU."""
        cells = [cell for cell in self.cells if cell.figures]
        front = pareto_front([cell.pareto_values() for cell in cells], self.scenario.statistics.confidence)
        return tuple(sorted((cells[index] for index in front), key=lambda cell: cell.figures[GPU].mean))

    def frame(self) -> pd.DataFrame:
        """One row a cell: the axes, what `SweepCell` says, ``pareto``, and mean, ``_low`` and ``_high`` of figures."""
        front = {id(cell) for cell in self.pareto}
        rows = []
        for cell in self.cells:
            scalar = bool | int | float | str | None
            row = {name: value if isinstance(value, scalar) else _text(value) for name, value in cell.values.items()}
            row |= picked(cell, "state error") | {"pareto": id(cell) in front}
            row |= picked(cell, "verdict why slo_met capacity_rps")
            advantage = {"advantage": cell.advantage} if cell.advantage is not None else {}
            for name, estimate in {**advantage, **cell.shown_figures}.items():
                row |= estimate.columns(name)
            rows.append(row)
        return pd.DataFrame(rows)

    def summary(self) -> dict[str, Any]:
        front = {id(cell) for cell in self.pareto}
        return {
            "axes": {axis.name: list(axis.values) for axis in self.axes},
            "cells": [
                {"pareto": id(cell) in front, "error": cell.error or None, "verdict": cell.verdict or None}
                | picked(cell, "values key state why advantage slo_met capacity_rps figures predicted_figures")
                for cell in self.cells
            ],
            **picked(self, "computed reused complete folder elapsed_s notes"),
            "errors": len(self.errors),
        }


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value)
