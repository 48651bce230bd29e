"""Objectives of a capacity plan: ``ttft:p95<500ms;tpot:p95<30ms``, each a bound on one figure of a run.

Unlike a scenario's ``slo`` (a share of the requests meets every bound), each objective stands for itself: a percentile,
median or mean over all requests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from draftcast.errors import InputError
from draftcast.sim.output.metrics import LATENCIES, PERCENTILES
from draftcast.sim.statistics.intervals import Estimate

STATISTICS = ("mean", "median", *(f"p{percentile}" for percentile in PERCENTILES))
_OTHER_NAMES = {"e2e": "e2el", "queue": "queue_time"}
_UNITS = {"ms": 1e-3, "s": 1.0}
_OBJECTIVE = re.compile(r"(?P<metric>\w+):(?P<statistic>\w+)<=?(?P<limit>[\d.eE+-]+)(?P<unit>ms|s)")


@dataclass(frozen=True)
class Objective:
    """One bound.

    Attributes:
        metric: ttft, tpot, itl, e2el or queue_time, as in the figures of a run.
        statistic: mean, median, p50, p90, p95 or p99.
        limit_s: the figure's largest allowed value.
    """

    metric: str
    statistic: str
    limit_s: float

    @property
    def figure(self) -> str:
        """Its name among the figures of a run."""
        return f"{self.statistic}_{self.metric}_s"

    @property
    def label(self) -> str:
        """As it was written: ``ttft:p95<500ms``."""
        return f"{self.metric}:{self.statistic}<{1e3 * self.limit_s:g}ms"

    def ratio(self, figures: Mapping[str, Estimate]) -> float:
        """The figure over its limit: met up to 1; NaN where the run has no such figure."""
        found = figures.get(self.figure)
        return found.mean / self.limit_s if found is not None else float("nan")


def parse_objectives(text: str, place: str = "--slo") -> tuple[Objective, ...]:
    """The objectives of an SLO string.

    Args:
        text: ``metric:statistic<limit`` with a unit, separated by semicolons or commas.
        place: for errors, where it was given.

    Raises:
        InputError: another form, an unknown metric or statistic, a limit that is not above 0, one figure twice.
    """
    found: list[Objective] = []
    for part in re.split(r"[;,]", text):
        words = "".join(part.split())
        if not words:
            continue
        matched = _OBJECTIVE.fullmatch(words)
        if matched is None:
            raise InputError("must look like ttft:p95<500ms;tpot:p95<30ms (unit ms or s)", file=place, value=part)
        metric = _OTHER_NAMES.get(matched["metric"], matched["metric"])
        for name, given, known in (("metric", metric, LATENCIES), ("statistic", matched["statistic"], STATISTICS)):
            if given not in known:
                raise InputError(f"unknown {name} {given}; choose from {', '.join(known)}", file=place, value=part)
        try:
            limit_s = float(matched["limit"]) * _UNITS[matched["unit"]]
        except ValueError:
            limit_s = float("nan")
        if not 0 < limit_s < float("inf"):
            raise InputError("the limit must be a number above 0", file=place, value=part)
        objective = Objective(metric, matched["statistic"], limit_s)
        if objective.figure in [other.figure for other in found]:
            raise InputError(f"{metric}:{objective.statistic} is given twice", file=place, value=text)
        found.append(objective)
    if not found:
        raise InputError("holds no objective; e.g. ttft:p95<500ms;tpot:p95<30ms", file=place, value=text)
    return tuple(found)
