"""What all pages share: which scenario, which SLO, how many requests and replications behind the intervals."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import streamlit as st

from draftcast.dashboards.session.link import bases
from draftcast.dashboards.session.question import NUM_REQUESTS, SCENARIO, Question
from draftcast.dashboards.session.session import Session
from draftcast.dashboards.session.uploads import SCENARIO as SCENARIO_FILE
from draftcast.dashboards.session.uploads import forget_receipts, uploader
from draftcast.dashboards.widgets.controls import button, choice_control, number_control

BOUNDS = ("ttft_ms", "tpot_ms", "e2el_ms")


def sidebar(session: Session) -> None:
    """Draw it; every control changes the session's question."""
    with st.sidebar:
        _picker(session)
        uploader(session, SCENARIO_FILE)
        st.subheader("SLO", help="A request is good when it meets every bound that is given.")
        with st.container(horizontal=True):
            for name in BOUNDS:
                number_control(session, f"slo.{name}", change=partial(_slo_with, session, name))
            number_control(session, "slo.attainment", percent=True, change=_attainment)
        st.subheader("Effort", help="More requests and replications give narrower intervals and slower pages.")
        with st.container(horizontal=True):
            for key in ("statistics.seed", "statistics.replications", NUM_REQUESTS):
                number_control(session, key)
        choice_control(session, "statistics.confidence", (0.9, 0.95, 0.99), "{:.0%}".format)


def _picker(session: Session) -> None:
    st.session_state[SCENARIO] = session.question.base
    hint = "Choosing a scenario drops all changes. The address bar holds the changes made after that."
    st.selectbox("Scenario", bases(), key=SCENARIO, help=hint, on_change=_open, args=(session,))
    changed = len(session.question.link_changes)
    if changed:
        button(f"Reset {changed} changed key{'s' if changed > 1 else ''}", "undo", _open, session, width="stretch")


def _open(session: Session) -> None:
    session.ask(Question.opening(st.session_state[SCENARIO]))
    forget_receipts()


def _slo_with(session: Session, name: str, bound: float | None) -> Mapping[str, Any]:
    """A bound set or taken away; without any bound there is no SLO."""
    slo = session.question.scenario.slo
    bounds = {key: getattr(slo, key, None) for key in BOUNDS} | {name: bound or None}
    given = {key: value for key, value in bounds.items() if value is not None}
    if not given:
        return {"slo": None}
    return {"slo": given | ({"attainment": slo.attainment} if slo is not None else {})}


def _attainment(share: float | None) -> Mapping[str, Any]:
    return {"slo.attainment": share or 0.99}
