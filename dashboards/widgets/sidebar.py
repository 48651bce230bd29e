"""What all pages share: which scenario, which SLO, how many requests and replications behind the intervals."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import streamlit as st

from draftcast.dashboards.session.session import NUM_REQUESTS, Question, Session, bases
from draftcast.dashboards.session.uploads import scenario_uploader
from draftcast.dashboards.widgets.controls import choice_control, number_control

SLO_BOUNDS = (("ttft_ms", "TTFT, ms"), ("tpot_ms", "TPOT, ms"), ("e2el_ms", "E2E, ms"))


def sidebar(session: Session) -> None:
    """Draw it; every control changes the session's question."""
    with st.sidebar:
        _picker(session)
        scenario_uploader(session)
        st.subheader("SLO", help="A request is good when it meets every bound that is given.")
        _slo(session)
        st.subheader("Effort", help="More requests and replications give narrower intervals and slower pages.")
        _effort(session)


def _picker(session: Session) -> None:
    st.session_state["scenario"] = session.question.base
    st.selectbox(
        "Scenario",
        bases(),
        key="scenario",
        help="Choosing one drops all changes. What is changed after that stands in the address bar.",
        on_change=_pick,
        args=(session,),
    )
    changed = len(session.question.link_changes)
    if changed:
        st.button(
            f"Reset {changed} changed key{'s' if changed > 1 else ''}",
            on_click=_pick,
            args=(session,),
            width="stretch",
            icon=":material/undo:",
        )


def _pick(session: Session) -> None:
    base = st.session_state["scenario"]
    session.ask(Question.opening(base))
    st.session_state.pop("upload-trace:receipt", None)
    st.session_state.pop("upload-scenario:receipt", None)


def _slo(session: Session) -> None:
    slo = session.question.scenario.slo
    with st.container(horizontal=True):
        for key, label in SLO_BOUNDS:
            number_control(
                session,
                label,
                f"slo.{key}",
                getattr(slo, key) if slo is not None else None,
                low=0.0,
                step=5.0,
                format="%.4g",
                placeholder="none",
                help=f"Upper bound on {label.split(',')[0]} of a request; empty: no bound.",
                change=partial(_slo_values, session, key),
                width=118,
            )
        number_control(
            session,
            "Attainment, %",
            "slo.attainment",
            100 * slo.attainment if slo is not None else None,
            low=1.0,
            high=100.0,
            step=1.0,
            format="%.4g",
            placeholder="99",
            help="Share of the requests that must be good.",
            change=lambda value: {"slo.attainment": round((value or 99.0) / 100, 6)},
            width=118,
        )


def _slo_values(session: Session, key: str, value: float | None) -> Mapping[str, Any]:
    """A bound set or taken away; without any bound there is no SLO."""
    slo = session.question.scenario.slo
    bounds = {name: getattr(slo, name, None) for name, _ in SLO_BOUNDS} | {key: value or None}
    given = {name: bound for name, bound in bounds.items() if bound is not None}
    if not given:
        return {"slo": None}
    return {"slo": given | ({"attainment": slo.attainment} if slo is not None else {})}


def _effort(session: Session) -> None:
    scenario = session.question.scenario
    with st.container(horizontal=True):
        number_control(
            session,
            "Seed",
            "statistics.seed",
            scenario.statistics.seed,
            low=0,
            help="Of all random numbers; the same seed gives the same figures, here and on the command line.",
            width=118,
        )
        number_control(
            session,
            "Replications",
            "statistics.replications",
            scenario.statistics.replications,
            low=1,
            high=50,
            help="Independent repetitions behind the intervals; fewer than two give none.",
            width=118,
        )
        number_control(
            session,
            "Requests per run",
            NUM_REQUESTS,
            scenario.workload.num_requests,
            low=1,
            step=500,
            placeholder="all of the trace",
            help="How many requests each replication serves. Until you give a number it follows the load: close to the "
            "capacity a run needs more to reach its steady state.",
            width=160,
        )
    choice_control(
        session,
        "Interval",
        "statistics.confidence",
        scenario.statistics.confidence,
        (0.9, 0.95, 0.99),
        shown=lambda value: f"{value:.0%}",
        help="Confidence of every interval shown.",
        width=118,
    )
