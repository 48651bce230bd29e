"""A capacity plan as table, sentences and plots: GPUs by candidate, goodput against load with its knee."""

from collections.abc import Sequence
from typing import Any

from draftcast.scenarios.plan.search import ATTAINMENT, BEYOND_IS_UNSETTLED, STEADY_STATE, Constraint, LoadCheck
from draftcast.scenarios.plan.sizing import COMPLETED, WITHIN, CapacityPlan, SizedCandidate, delivered, replicas_text
from draftcast.scenarios.show import plots
from draftcast.scenarios.show.plots import OFF, ON, panels, styled


def sizing_figure(answer: CapacityPlan) -> Any:
    """GPUs of every feasible candidate, those of spare replicas apart; the best on top."""
    shown = [sizing for sizing in answer.sizings if sizing.feasible][::-1]
    figure = panels()
    for name, colour, replicas in (("in use", ON, "replicas"), ("spare", OFF, "spare")):
        gpus = [getattr(sizing, replicas) * sizing.candidate.scenario.engine.num_gpus for sizing in shown]
        if any(gpus):
            bars = {"orientation": "h", "name": name, "hovertemplate": f"%{{x}} GPUs<extra>{name}</extra>"}
            figure.add_bar(x=gpus, y=[sizing.candidate.label for sizing in shown], marker_color=colour, **bars)
    figure.update_layout(barmode="stack").update_xaxes(title_text="GPUs", rangemode="tozero")
    return styled(figure, height=120 + 40 * len(shown))


def goodput_figure(sizing: SizedCandidate, checks: Sequence[LoadCheck]) -> Any:
    """SLO goodput and completed requests against load; the target and the knee; open markers: overloaded, at capacity.

    A load whose run did not reach a steady state has neither. ``checks``: of `goodput_curve`.
    """
    figure = panels()
    rates, verdicts = [check.rate_rps for check in checks], [check.verdict for check in checks]
    marker = {"symbol": ["circle" if word == "steady" else "circle-open" for word in verdicts], "size": 8}
    hover = "%{y:.4g} of %{x:.4g} req/s (%{text})"
    for name, colour in ((COMPLETED, OFF), (WITHIN, ON)):
        done = [delivered(check).get(name) for check in checks]
        bars = plots.interval_bars(done, thickness=1.2, width=3)
        style = {"mode": "lines+markers", "line_width": 2.2, "marker": marker, "text": verdicts, "error_y": bars}
        plots.series(figure, name, colour, rates, plots.means(done), hover=hover, **style)
    # Their texts run along the lines, at different ends: the two are often close.
    lines = [(sizing.target_rps, "target", plots.BASELINE, "left")]
    if sizing.largest is not None:
        lines.append((sizing.largest.met, "knee", plots.LIMIT, "right"))
    for x, name, colour, anchor in lines:
        label = {"text": f"{name} {x:.4g}", "font": {"color": colour}, "xanchor": anchor}
        label |= {"textposition": "start", "yanchor": "top"} if anchor == "left" else {"textposition": "end"}
        figure.add_vline(x=x, line={"color": colour, "dash": "dot", "width": 1.5}, label=label)
    plots.label_axes(figure, "load, req/s", "req/s")
    figure.update_xaxes(rangemode="tozero")
    return styled(figure, height=340)


def plan_rows(answer: CapacityPlan) -> list[list[str]]:
    """Header and a row per candidate, the best first; costs only where there are prices."""
    head = ["hardware", "TP", "method", "GPUs", "replicas", "largest req/s", "headroom"]
    rows = [[*head, "cost/h", "cost/Mtok", "kWh/Mtok", "tightest"], *map(_cells, answer.sizings)]
    priced = any(sizing.price is not None for sizing in answer.sizings)
    return rows if priced else [[*row[: len(head)], *row[-2:]] for row in rows]


def answer_line(answer: CapacityPlan) -> str:
    """What to buy, or why nothing will do."""
    best = answer.best
    if best is None:
        nearest = answer.sizings[0]
        text = "Nearest is" if nearest.check is not None else "No candidate can be started:"
        return f"Infeasible. {text} {nearest.candidate.label}: {nearest.reason}."
    spare = f" and {best.spare} spare" if best.spare else ""
    gpus, replicas = "GPU" if best.num_gpus == 1 else "GPUs", replicas_text(best.replicas)
    hold = "holds" if best.replicas + best.spare == 1 else "hold"
    text = f"{best.num_gpus} {gpus}: {replicas}{spare} of {best.candidate.label} {hold} {answer.target_rps:.4g} req/s"
    if best.cost_per_hour is not None and best.price is not None:
        text += f" for {best.cost_per_hour:,.2f} an hour (your price of {best.price.date})"
    assert best.largest is not None
    text += f"; up to {best.largest.met:.4g} req/s meet the SLO ({best.headroom:+.0%}), {_beyond(best)}."
    needed = _needed(best)
    level = f"{answer.question.scenario.statistics.confidence:.0%} prediction interval"
    text += f" {level} of the replicas needed: {needed}." if needed else ""
    endless = best.replicas_interval is not None and best.replicas_interval[1] is None
    return f"{text} At the upper end of the step times, no number of replicas meets the SLO." if endless else text


def _needed(sizing: SizedCandidate) -> str:
    """The interval of the replicas in words; empty where it is one number."""
    fewest, most = sizing.replicas_interval or (sizing.replicas, sizing.replicas)
    if most is None:
        return f"{fewest} or more"
    return f"{fewest} to {most}" if fewest < most else ""


def basis_line(answer: CapacityPlan) -> str:
    """What the candidates were judged on; empty where none can be started."""
    if all(sizing.check is None for sizing in answer.sizings):
        return ""
    scenario = answer.question.scenario
    requests = scenario.workload.num_requests
    judged = f"{requests} requests a replica" if requests is not None else "the whole trace"
    best = answer.best
    notes = (note for sizing in answer.sizings for note in sizing.notes if sizing is best or note != sizing.unsettled)
    return (
        f"judged on {scenario.statistics.replications} replications of {judged}, the same for every candidate; "
        "the interval of the replicas includes the error of step times, other figures do not; "
        "kWh/Mtok: every board at its rated power, without hosts and cooling"
        + "".join(f"; {note}" for note in dict.fromkeys(notes))
        + "".join(f"; {other.candidate.label}: {other.unsettled}" for other in answer.sizings[1:] if other.unsettled)
    )


def _cells(sizing: SizedCandidate) -> list[str]:
    candidate = sizing.candidate
    cells = [candidate.hardware.name, str(candidate.scenario.engine.tensor_parallel_size), candidate.method]
    if not sizing.feasible or sizing.largest is None or sizing.check is None:
        return [*cells, *["-"] * 7, sizing.reason]
    replicas = f"{sizing.replicas}+{sizing.spare}" if sizing.spare else str(sizing.replicas)
    replicas += f" ({needed})" if (needed := _needed(sizing)) else ""
    cells += [str(sizing.num_gpus), replicas, f"{sizing.largest.met:.4g}", f"{sizing.headroom:+.0%}"]
    hourly, tokens, energy = sizing.cost_per_hour, sizing.cost_per_million_tokens, sizing.kwh_per_million_tokens
    cells += ["-" if hourly is None else f"{hourly:,.2f}", "-" if tokens is None else f"{tokens:.3g}"]
    limit = sizing.check.tightest
    return [*cells, "-" if energy is None else f"{energy:.3g}", f"{_constraint(limit)}, {limit.used:.0%} used"]


def _constraint(limit: Constraint) -> str:
    if limit.name in ("capacity", STEADY_STATE):
        return limit.name
    if limit.name.startswith(ATTAINMENT):
        return f"SLO attainment{limit.name.removeprefix(ATTAINMENT)} {limit.value:.1%}, asked {limit.limit:.1%}"
    return f"{limit.name} at {1e3 * limit.value:.4g} ms"


def _beyond(sizing: SizedCandidate) -> str:
    assert sizing.largest is not None
    limit = sizing.largest.limit
    if limit is None:
        return "the largest rate tried"
    if limit.name == STEADY_STATE:
        return BEYOND_IS_UNSETTLED
    return "then it is at its capacity" if limit.name == "capacity" else f"then {_constraint(limit)}"
