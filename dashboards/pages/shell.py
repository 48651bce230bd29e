"""The frame around every page: navigation, sidebar, warnings, and the link that reproduces what is shown.

Pages are told apart by ``page`` in the link, not by a path: everything a page shows stands in one place.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import streamlit as st

from draftcast.dashboards.pages import capacity, compare, cutover, start, sweep, trust, what_if
from draftcast.dashboards.session.link import PAGE, PAGES, bases, current_session, write_link
from draftcast.dashboards.session.question import NUM_REQUESTS, SCENARIO, Question
from draftcast.dashboards.session.session import Session
from draftcast.dashboards.session.uploads import SCENARIO as SCENARIO_FILE
from draftcast.dashboards.session.uploads import forget_receipts
from draftcast.dashboards.widgets.controls import button, choice_control, number_control, slo_controls, uploader
from draftcast.dashboards.widgets.page import Report, banner, cannot_run
from draftcast.errors import InputError

FOLDER = Path(__file__).parents[1]


class Page(NamedTuple):
    """A page: what it answers, the icon of the navigation, and what draws it (InputError: there is no answer).

    ``begin`` draws what a visitor should see before the sidebar and all controls.
    """

    question: str
    icon: str
    render: Callable[[Session, Report], None]
    begin: Callable[[Session, Report], None] = lambda session, report: None


SHOWN = {
    "start": Page("From your model, GPU, traffic and acceptance to an answer, in four steps.", "flag", start.render),
    "what-if": Page(
        "What does speculation change for one deployment under one load?", "tune", what_if.render, what_if.begin
    ),
    "cutover": Page(
        "At which load does speculation stop paying, and which setting is best?", "swap_vert", cutover.render
    ),
    "capacity": Page("How many GPUs does a load need for its SLO, and what do they cost?", "dns", capacity.render),
    "sweep": Page("Which settings of a grid are Pareto-optimal?", "grid_on", sweep.render),
    "compare": Page("What differs between runs, and which differences are real?", "compare_arrows", compare.render),
    "trust": Page("How far can these numbers be trusted, and why?", "verified", trust.render),
}


def run_app(files: tuple[str, ...] = ()) -> None:
    """Draw the page that the link names; ``files`` are further scenarios to choose from."""
    st.set_page_config(page_title="draftcast", page_icon=str(FOLDER / "icon.png"), layout="wide")
    st.session_state["files"] = files
    st.html(FOLDER / "style.css")
    session = current_session()
    st.session_state[PAGE] = session.page
    st.segmented_control(
        "Page",
        PAGES,
        key=PAGE,
        format_func=lambda name: f":material/{SHOWN[name].icon}: {name.capitalize()}",
        label_visibility="collapsed",
        required=True,
        on_change=lambda: session.go(st.session_state[PAGE]),
    )
    page = SHOWN[session.page]
    st.title(session.page.capitalize(), anchor=False)
    st.caption(page.question)
    # A page may find something in the link to warn of; its place is on top all the same.
    top = st.container()
    report = Report(session, st.container(key="answer-badge"))
    page.begin(session, report)
    sidebar(session)
    try:
        page.render(session, report)
    except InputError as error:
        cannot_run(session, error)
    with top:
        banner(session)
    write_link(session)


def sidebar(session: Session) -> None:
    with st.sidebar:
        st.session_state[SCENARIO] = session.question.base
        hint = "Choosing a scenario drops all changes. The address bar holds the changes made after that."
        st.selectbox("Scenario", bases(), key=SCENARIO, help=hint, on_change=_open, args=(session,))
        if changed := len(session.question.link_changes):
            button(f"Reset {changed} changed key{'s' if changed > 1 else ''}", "undo", _open, session, width="stretch")
        uploader(session, SCENARIO_FILE)
        if session.page != "start":  # which has them among its steps
            st.subheader("SLO", help="A request is good when it meets every bound that is given.")
            slo_controls(session)
        st.subheader("Effort", help="More requests and replications give narrower intervals and slower pages.")
        with st.container(horizontal=True):
            for key in ("statistics.seed", "statistics.replications", NUM_REQUESTS):
                number_control(session, key)
        choice_control(session, "statistics.confidence", (0.9, 0.95, 0.99), "{:.0%}".format)


def _open(session: Session) -> None:
    session.ask(Question.opening(st.session_state[SCENARIO]))
    forget_receipts()
