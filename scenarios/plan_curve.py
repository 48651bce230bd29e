"""What a planned cluster delivers below and beyond the load it was sized for: goodput against load, and its knee."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from draftcast.scenarios.deployment import deploy
from draftcast.scenarios.plan import Sizing
from draftcast.scenarios.plan_search import Check, Cluster
from draftcast.scenarios.plan_slo import Objective

# Loads to look at, in shares of the largest that meets the SLO: closer together where the curve bends.
SHARES = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5)
FIGURES = ("request_goodput", "request_throughput")


def goodput_curve(
    sizing: Sizing, objectives: tuple[Objective, ...] = (), progress: Callable[[float], None] | None = None
) -> tuple[Check, ...]:
    """The replicas of a sizing, spare ones not counted, under `SHARES` of their largest rate and at the target.

    Args:
        objectives: the plan's own; none: the scenario's ``slo``.
        progress: called with the share of the work done, 0 to 1.

    By rising rate; empty for an infeasible sizing. With the scenario's ``slo`` the checks' figures hold
    ``request_goodput`` (requests/s that meet it).
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


def curve_frame(checks: Sequence[Check]) -> pd.DataFrame:
    """One row a load: ``rate_rps``, ``verdict``, ``met``, and the figures of `FIGURES` with ``_low`` and ``_high``."""
    rows = []
    for check in checks:
        row: dict[str, Any] = {"rate_rps": check.rate_rps, "verdict": check.verdict, "met": check.met}
        for name in FIGURES:
            estimate = check.figures.get(name)
            if estimate is not None:
                row |= {name: estimate.mean, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
        rows.append(row)
    return pd.DataFrame(rows)
