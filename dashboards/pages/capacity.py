"""Capacity: how many GPUs of which type a load needs for its SLO, what they cost, and where they stop keeping it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import streamlit as st

from draftcast.dashboards.session.kept import Kept
from draftcast.dashboards.session.plain_text import literal
from draftcast.dashboards.session.results import answer, question_key
from draftcast.dashboards.session.session import CAPACITY_CURVE, Question, Session, href_of
from draftcast.dashboards.widgets.capacity_controls import Asked, asked, controls
from draftcast.dashboards.widgets.footer import Exports, footer
from draftcast.dashboards.widgets.page import badge, cannot_run, figure, runs_facts, under_bar
from draftcast.dashboards.widgets.table import Cell, Link, html_table
from draftcast.dashboards.widgets.tiles import number
from draftcast.errors import InputError
from draftcast.scenarios.compare.slo_answer import idle_scenario, slo_answer
from draftcast.scenarios.plan.curve import curve_frame, goodput_curve
from draftcast.scenarios.plan.search import Check, cluster_scenario
from draftcast.scenarios.plan.sizing import Plan, Sizing, plan, with_prices
from draftcast.scenarios.run.fidelity import fidelity
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.show.plan_plots import goodput_figure, sizing_figure
from draftcast.scenarios.show.plan_report import answer_line, basis_line, plan_cells
from draftcast.scenarios.show.tables import title

# A start for those who have no SLO yet: pressed, it stands in the sidebar to be changed.
USUAL_SLO = {"ttft_ms": 500.0, "tpot_ms": 50.0, "attainment": 0.95}
_plans: Kept[Plan] = Kept(24)
_curves: Kept[tuple[Check, ...]] = Kept(48)


def render(session: Session) -> None:
    """Controls, the answer in a sentence, tiles, candidates, goodput against load, footer."""
    top = st.container(key="answer-badge")
    scenario = session.question.scenario
    try:
        question = asked(session)
    except InputError as error:
        cannot_run(session, error)
        return
    controls(session, question)
    if scenario.slo is None and all(entry.slo is None for entry in scenario.workload.classes):
        _invite(session)
        return
    try:
        found = _planned(scenario, question)
        chosen = _chosen(session, found)
        checks = _curve(scenario, question, chosen) if chosen is not None else ()
        lines = [title(scenario), answer_line(found), *_tightest(found), basis_line(found)]
    except InputError as error:
        cannot_run(session, error)
        return
    with top:
        badge(session, fidelity([each.check.figures for each in found.sizings if each.check is not None]))
    _show_answer(found, lines)
    if found.best is not None:
        _show_figures(found.best)
    st.caption(literal(lines[-1]))
    pictures = _show_candidates(session, found, question)
    if chosen is not None:
        pictures.append(_show_curve(session, found, chosen, checks))
    key = _hash(scenario, question)
    command = session.question.command("plan", *question.options)
    footer(runs_facts(scenario, key), command, _exports(found, checks, lines, pictures, key))


def _invite(session: Session) -> None:
    st.info(
        "A plan needs an SLO: give a bound on TTFT, TPOT or E2E latency in the sidebar, and the share of requests that "
        "must keep it.",
        icon=":material/flag:",
    )
    st.button(
        f"Begin with TTFT {USUAL_SLO['ttft_ms']:g} ms and TPOT {USUAL_SLO['tpot_ms']:g} ms for "
        f"{USUAL_SLO['attainment']:.0%} of requests",
        key="usual-slo",
        on_click=lambda: session.change(lambda: {"slo": USUAL_SLO}),
    )


def _key(scenario: Scenario, question: Asked) -> tuple[Any, ...]:
    """What a plan depends on; prices only rank it."""
    candidates = (question.hardware, question.degrees, question.methods)
    return (*question_key(scenario), question.rate_rps, *candidates, question.headroom, question.spare)


def _hash(scenario: Scenario, question: Asked) -> str:
    return hashlib.sha256(json.dumps(_key(scenario, question)).encode()).hexdigest()


def _planned(scenario: Scenario, question: Asked) -> Plan:
    """The plan at the reader's prices, once every GPU type has one."""

    def size() -> Plan:
        return under_bar(
            "Sizing every candidate",
            lambda progress: plan(
                scenario,
                rate_rps=question.rate_rps,
                hardware=question.hardware,
                tensor_parallel_sizes=[int(degree) for degree in question.degrees],
                methods=question.methods,
                headroom=question.headroom,
                spare=question.spare,
                progress=progress,
            ),
        )

    return with_prices(_plans.get(_key(scenario, question), size), {} if question.unpriced else question.prices)


def _chosen(session: Session, found: Plan) -> Sizing | None:
    """The candidate whose goodput is drawn: the best, or the one the reader chose."""
    feasible = {sizing.candidate.label: sizing for sizing in found.sizings if sizing.feasible}
    if not feasible:
        return None
    return feasible[session.view(CAPACITY_CURVE, next(iter(feasible)), list(feasible))]


def _curve(scenario: Scenario, question: Asked, chosen: Sizing) -> tuple[Check, ...]:
    return _curves.get(
        (*_key(scenario, question), chosen.candidate.label),
        lambda: under_bar("Goodput against load", lambda progress: goodput_curve(chosen, progress=progress)),
    )


def _tightest(found: Plan) -> list[str]:
    """Which bound of the SLO no idle server keeps, where that is why nothing will do."""
    if found.best is not None:
        return []
    idle_question = idle_scenario(found.sizings[0].candidate.scenario)
    try:
        idle = answer(idle_question).own
    except InputError:  # it does not even fit the device: the plan says so
        return []
    said = slo_answer(idle_question, idle, idle.run)
    return [said.sentence] if said is not None and not said.met else []


def _show_answer(found: Plan, lines: Sequence[str]) -> None:
    best = found.best
    tone = "dc-better" if best is not None else "dc-worse"
    head, _, rest = lines[1].partition(":" if best is not None else ".")
    mark = ":" if best is not None else "."
    gpus = best.num_gpus if best is not None else 0
    st.html(
        f"<p class='dc-verdict' data-verdict='{'feasible' if best else 'infeasible'}' data-gpus='{gpus}'>"
        f"<b class='{tone}'>{escape(head)}{mark}</b>{escape(rest)}</p>"
    )
    for line in lines[2:-1]:
        st.error(literal(line), icon=":material/flag:")


def _show_figures(best: Sizing) -> None:
    assert best.largest is not None
    assert best.check is not None
    spare = f" + {best.spare} spare" if best.spare else ""
    price = best.price
    shown = {
        "GPUs": (f"{best.num_gpus}", f"{best.candidate.label}: {best.replicas} replicas{spare}"),
        "Headroom": (f"{best.headroom:+.0%}", "How much more than the target holds, without spare replicas."),
        "Largest req/s": (number(best.largest.met), "Up to here the SLO is met; the knee below."),
        "Cost an hour": (
            "–" if best.cost_per_hour is None else f"{best.cost_per_hour:,.2f}",
            "No price was given for every GPU type." if price is None else f"Your price of {price.date}.",
        ),
        "Cost per 1M tokens": (
            "–" if best.cost_per_million_tokens is None else f"{best.cost_per_million_tokens:.3g}",
            "Of output, at the target.",
        ),
        "kWh per 1M tokens": (
            "–" if best.kwh_per_million_tokens is None else f"{best.kwh_per_million_tokens:.3g}",
            "Every board at its rated power, without hosts and cooling.",
        ),
    }
    with st.container(horizontal=True, key="figures"):
        for label, (value, explained) in shown.items():
            st.metric(label, value, help=literal(explained), border=True, width=170)


def _show_candidates(session: Session, found: Plan, question: Asked) -> list[Any]:
    st.subheader("GPUs by type")
    head, rows = plan_cells(found)
    linked: list[list[Cell]] = []
    for sizing, row in zip(found.sizings, rows, strict=True):
        cells: list[Cell] = list(row)
        if sizing.feasible:
            asks = cluster_scenario(sizing.candidate.scenario, sizing.replicas, sizing.target_rps)
            href = href_of(Question(session.question.base, asks))
            cells[0] = Link(row[0], href, f"What-if of {sizing.candidate.label} at the target, in a new tab")
        linked.append(cells)
    st.html(html_table(head, linked, name="Candidates"))
    if question.prices and question.unpriced:
        st.caption(f"For costs a price is missing: {literal(', '.join(question.unpriced))}.")
    if sum(sizing.feasible for sizing in found.sizings) < 2:
        return []
    drawn = sizing_figure(found)
    figure("gpus", drawn, "", "Bars: the GPUs that each feasible candidate needs, those of spare replicas apart.")
    return [drawn]


def _show_curve(session: Session, found: Plan, chosen: Sizing, checks: Sequence[Check]) -> Any:
    st.subheader("Goodput against load")
    labels = [sizing.candidate.label for sizing in found.sizings if sizing.feasible]
    st.session_state[CAPACITY_CURVE] = chosen.candidate.label
    st.selectbox(
        "Candidate",
        labels,
        key=CAPACITY_CURVE,
        help="Whose replicas, spare ones not counted, are put under more and more load.",
        width=320,
        on_change=lambda: session.see(CAPACITY_CURVE, st.session_state[CAPACITY_CURVE], labels[0]),
    )
    drawn = goodput_figure(chosen, checks)
    replicas = f"{chosen.replicas} replica{'s' if chosen.replicas > 1 else ''}"
    figure(
        "goodput",
        drawn,
        f"{replicas} of {literal(chosen.candidate.label)}: requests per second that keep the SLO, with intervals. "
        "Knee: the largest load at which it is met. Open markers: overloaded, at capacity or not settled; above the "
        "capacity the capacity is what is completed.",
        "SLO goodput and completed requests per second against load, with the target and the knee.",
    )
    return drawn


def _exports(found: Plan, checks: Sequence[Check], lines: list[str], pictures: Sequence[Any], key: str) -> Exports:
    candidates, curve = found.frame(), curve_frame(checks)

    def summary() -> Mapping[str, Any]:
        return {**found.summary(), "goodput_curve": curve.to_dict("records")}

    return Exports(
        name=f"draftcast-plan-{key[:12]}",
        rows=lambda: candidates,
        summary=summary,
        scenario=found.scenario,
        title=lines[0],
        lines=lines[1:],
        tables=lambda: {"Candidates": candidates.dropna(axis=1, how="all"), "Goodput against load": curve},
        figures=lambda: pictures,
    )
