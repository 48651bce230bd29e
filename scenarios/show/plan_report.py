"""A capacity plan for people: the table of candidates, the answer in one sentence, and what it rests on."""

from __future__ import annotations

from rich.table import Table

from draftcast.scenarios.plan.search import STEADY_STATE, Constraint
from draftcast.scenarios.plan.sizing import Plan, Sizing

TEXTS = ("hardware", "TP", "method")


def plan_table(answer: Plan) -> Table:
    """One row a candidate, the best first."""
    head, rows = plan_cells(answer)
    table = Table()
    for name in head:
        table.add_column(name, justify="left" if name in (*TEXTS, head[-1]) else "right")
    for row in rows:
        table.add_row(*row)
    return table


def plan_cells(answer: Plan) -> tuple[list[str], list[list[str]]]:
    """Names of the columns and the texts of a row for each candidate; costs only where there are prices."""
    priced = any(sizing.price is not None for sizing in answer.sizings)
    costs = ["cost/h", "cost/Mtok"] if priced else []
    head = [*TEXTS, "GPUs", "replicas", "largest req/s", "headroom", *costs, "kWh/Mtok", "tightest"]
    return head, [_cells(sizing, priced) for sizing in answer.sizings]


def answer_line(answer: Plan) -> str:
    """What to buy, or why nothing will do."""
    best = answer.best
    if best is None:
        nearest = answer.sizings[0]
        return f"Infeasible. Nearest is {nearest.candidate.label}: {nearest.reason}."
    spare = f" and {best.spare} spare" if best.spare else ""
    text = (
        f"{best.num_gpus} GPUs: {best.replicas} replicas{spare} of {best.candidate.label} hold "
        f"{answer.target_rps:.4g} req/s"
    )
    if best.cost_per_hour is not None and best.price is not None:
        text += f" for {best.cost_per_hour:,.2f} an hour (your price of {best.price.date})"
    assert best.largest is not None
    return f"{text}; up to {best.largest.met:.4g} req/s meet the SLO ({best.headroom:+.0%}), {_beyond(best)}."


def basis_line(answer: Plan) -> str:
    """Assumptions a reader must know."""
    asked = answer.scenario.statistics
    requests = answer.scenario.workload.num_requests
    judged = f"{requests} requests a replica" if requests is not None else "the whole trace"
    return (
        f"judged on {asked.replications} replications of {judged}, the same for every candidate; kWh/Mtok: every board "
        "at its rated power, without hosts and cooling"
    )


def _cells(sizing: Sizing, priced: bool) -> list[str]:
    candidate = sizing.candidate
    cells = [candidate.hardware.name, str(candidate.tensor_parallel_size), candidate.method]
    if not sizing.feasible or sizing.largest is None or sizing.check is None:
        return [*cells, "-", "-", "-", "-", *(["-", "-"] if priced else []), "-", sizing.reason]
    replicas = f"{sizing.replicas}+{sizing.spare}" if sizing.spare else str(sizing.replicas)
    cells += [str(sizing.num_gpus), replicas, f"{sizing.largest.met:.4g}", f"{sizing.headroom:+.0%}"]
    if priced:
        cells += [_number(sizing.cost_per_hour, ",.2f"), _number(sizing.cost_per_million_tokens, ".3g")]
    limit = sizing.check.tightest
    return [*cells, _number(sizing.kwh_per_million_tokens, ".3g"), f"{_constraint(limit)}, {limit.used:.0%} used"]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _constraint(limit: Constraint) -> str:
    if limit.name in ("capacity", STEADY_STATE):
        return limit.name
    if limit.name == "slo.attainment":
        return f"{limit.name} {limit.value:.1%} of {limit.limit:.1%}"
    return f"{limit.name} at {1e3 * limit.value:.4g} ms"


def _beyond(sizing: Sizing) -> str:
    assert sizing.largest is not None
    limit = sizing.largest.limit
    if limit is None:
        return "as far as was tried"
    if limit.name == STEADY_STATE:
        return "beyond it the run did not reach a steady state: more requests may show a larger rate"
    return "then it is at its capacity" if limit.name == "capacity" else f"then {_constraint(limit)}"
