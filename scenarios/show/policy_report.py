"""A comparison of policies for people: the table and the sentences under it."""

from __future__ import annotations

import math

from rich.table import Table

from draftcast.scenarios.compare.policy_comparison import PolicyComparison, Standing
from draftcast.scenarios.show.tables import show, title
from draftcast.sim.statistics.intervals import Estimate

# Metric name: heading of its column, factor to the unit in it.
UNITS = {
    "e2e": ("mean E2E s", 1.0),
    "tpot": ("mean TPOT ms", 1e3),
    "token_goodput": ("token goodput tok/s", 1.0),
    "slo_goodput": ("SLO goodput req/s", 1.0),
}


def policies_table(answer: PolicyComparison) -> Table:
    """One row per policy, best first: the metric, the paired difference to the baseline, the gap to the oracle."""
    heading, factor = UNITS[answer.metric.name]
    table = Table(title=title(answer.scenario, with_policy=False), title_justify="left")
    table.add_column("rank", justify="right")
    table.add_column("policy")
    table.add_column(heading, justify="right")
    table.add_column(f"less {answer.baseline}", justify="right")
    table.add_column("gap to oracle", justify="right")
    table.add_column("tokens a round", justify="right")
    table.add_column("")
    for standing in answer.standings:
        table.add_row(
            f"{standing.rank or '-'}{'=' if standing.ties else ''}",
            standing.label,
            show(standing.value, factor),
            _interval(standing.difference, factor),
            _percent(standing.gap),
            show(standing.run.summary["figures"].get("mean_acceptance_length") if standing.side.has_figures else None),
            _remark(answer, standing),
        )
    return table


def ranking_lines(answer: PolicyComparison) -> list[str]:
    """Who is best and with whom it ties, and what the columns mean."""
    first = [each.label for each in answer.standings if each.rank == 1 and each.side.has_figures]
    level = f"{answer.scenario.statistics.confidence:.0%}"
    best = f"Best by {answer.metric.label}: {', '.join(first)}"
    if len(first) > 1:
        best = f"Best by {answer.metric.label}, without a significant difference: {', '.join(first)}"
    if not first:
        best = "No policy has figures for this load"
    ties = [f"{s.label} with {', '.join(s.ties)}" for s in answer.standings if s.ties]
    return [
        f"{best}.",
        f"Ties (marked =): {'; '.join(ties)}." if ties else "No ties.",
        f"Differences and gaps: {level} intervals of {answer.scenario.statistics.replications} replications on the "
        "same requests and draft tokens. Ranks: one more for every policy that is better by an interval that holds for "
        "all pairs together.",
    ]


def _interval(difference: Estimate | None, factor: float) -> str:
    if difference is None:
        return "-"
    scaled = difference.scaled(factor)
    text = f"{scaled.mean:+.3g}"
    return text if math.isnan(scaled.low) else f"{text} [{scaled.low:+.3g}, {scaled.high:+.3g}]"


def _percent(gap: Estimate | None) -> str:
    if gap is None:
        return "-"
    text = f"{gap.mean:+.1%}"
    return text if math.isnan(gap.low) else f"{text} [{gap.low:+.1%}, {gap.high:+.1%}]"


def _remark(answer: PolicyComparison, standing: Standing) -> str:
    words = []
    side = standing.side
    if not side.has_figures:
        most = f": completes at most {show(side.capacity.estimate)} req/s" if side.capacity is not None else ""
        words.append(f"{side.state}{most if side.position != 'below' else ''}")
    if standing.label == answer.baseline:
        words.append("baseline")
    return ", ".join(words)
