"""What a planned cluster delivers below and beyond the load it was sized for: goodput against load, and its knee."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from draftcast.scenarios.plan.search import Check, Cluster
from draftcast.scenarios.plan.sizing import Sizing
from draftcast.scenarios.plan.slo import Objective
from draftcast.scenarios.run.deployment import deploy
from draftcast.sim.statistics.intervals import Estimate

# Loads to look at, in shares of the largest that meets the SLO: closer together where the curve bends.
SHARES = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5)

COMPLETED, WITHIN = "completed", "within the SLO"


def goodput_curve(
    sizing: Sizing, objectives: tuple[Objective, ...] = (), progress: Callable[[float], None] | None = None
) -> tuple[Check, ...]:
    """The replicas of a sizing, spare ones not counted, under `SHARES` of their largest rate and at the target.

    Args:
        objectives: the plan's own; none: the scenario's ``slo``.
        progress: called with the share of the work done, 0 to 1.

    By rising rate; empty for an infeasible sizing.
    """
    if sizing.largest is None:
        return ()
    cluster = Cluster(sizing.candidate.scenario, deploy(sizing.candidate.scenario), objectives)
    rates = sorted({sizing.target_rps, *(share * sizing.largest.met for share in SHARES)})
    checks = []
    for index, rate in enumerate(rates):
        checks.append(cluster.check(sizing.replicas, rate))
        if progress is not None:
            progress((index + 1) / len(rates))
    return tuple(checks)


def delivered(check: Check) -> dict[str, Estimate]:
    """Requests/s `COMPLETED` and, of them, `WITHIN` the scenario's ``slo`` (absent without one).

    With a steady state what comes in goes out, so completed is the load and goodput the attained share of it; above the
    capacity the capacity is completed, and in the end nothing within an SLO.
    """
    rate = check.completed_rps
    found = {COMPLETED: Estimate(rate, rate, rate, 0.0, 1)} if math.isfinite(rate) else {}
    attained = check.figures.get("slo_attainment")
    if check.verdict == "overloaded":
        found[WITHIN] = Estimate(0.0, 0.0, 0.0, 0.0, 1)
    elif check.verdict == "steady" and attained is not None:
        found[WITHIN] = attained.scaled(rate)
    return found


def curve_frame(checks: Sequence[Check]) -> pd.DataFrame:
    """One row a load: ``rate_rps``, ``verdict``, ``met``, and `delivered` as ``completed_rps`` and ``goodput_rps`` with
    their ``_low`` and ``_high``."""
    rows = []
    for check in checks:
        row: dict[str, Any] = {"rate_rps": check.rate_rps, "verdict": check.verdict, "met": check.met}
        for name, estimate in delivered(check).items():
            column = "completed_rps" if name == COMPLETED else "goodput_rps"
            row |= {column: estimate.mean, f"{column}_low": estimate.low, f"{column}_high": estimate.high}
        rows.append(row)
    return pd.DataFrame(rows)
