"""The frame around every page: navigation, sidebar, warnings, and the link that reproduces what is shown.

Pages are told apart by ``page`` in the link, not by a path; a path that is the name of a page leads to it.
"""

from functools import partial
from pathlib import Path
from typing import Any

import streamlit as st

from draftcast.dashboards.pages import capacity, compare, cutover, start, sweep, trust, what_if
from draftcast.dashboards.session import uploads
from draftcast.dashboards.session.link import PAGE, PAGES, bases, current_session, link_in_browser, write_link
from draftcast.dashboards.session.session import NUM_REQUESTS, SCENARIO, ScenarioPair, Session
from draftcast.dashboards.widgets import controls
from draftcast.dashboards.widgets.page import Report, banner, cannot_run
from draftcast.errors import InputError

FOLDER = Path(__file__).parents[1]
DRAWN_BY = {
    "start": start,
    "what-if": what_if,
    "cutover": cutover,
    "capacity": capacity,
    "sweep": sweep,
    "compare": compare,
    "trust": trust,
}
"""The module of each page, whose ``render`` raises InputError where there is no answer."""


def run_app(files: tuple[str, ...] = ()) -> None:
    """Draw the page that the link names; ``files`` are further scenarios to choose from."""
    st.set_page_config(page_title="draftcast", page_icon=str(FOLDER / "icon.png"), layout="wide")
    first = st.Page(_draw, title="draftcast", default=True)
    paths = [st.Page(partial(_lead, first, name), title="draftcast", url_path=name) for name in PAGES]
    st.session_state["files"] = files
    st.navigation([first, *paths], position="hidden").run()


def _lead(first: Any, name: str) -> None:
    """From the path of a page to its link."""
    st.switch_page(first, query_params=link_in_browser() | {PAGE: [name]})


def _draw() -> None:
    st.html(FOLDER / "style.css")
    session = current_session()
    session.drawn = set()
    controls.control(
        st.segmented_control,
        PAGE,
        session.page,
        session.go,
        options=PAGES,
        format_func=lambda name: f":material/{controls.WORDS['icons'][name]}: {name.capitalize()}",
    )
    st.title(session.page.capitalize(), anchor=False)
    st.caption(controls.WORDS["pages"][session.page])
    # A page may find something in the link to warn of; its place is on top all the same.
    top = st.container()
    report = Report(session, st.container(key="answer-badge"))
    if session.page == "what-if":
        what_if.begin(session, report)
    sidebar(session)
    try:
        DRAWN_BY[session.page].render(session, report)
    except InputError as error:
        cannot_run(session, error)
    with top:
        banner(session)
    write_link(session)
    session.end_page()


def sidebar(session: Session) -> None:
    with st.sidebar:
        controls.control(st.selectbox, SCENARIO, session.question.base, partial(_open, session), options=bases())
        if changed := len(session.question.link_changes):
            reset = f"Reset {changed} changed key{'s' if changed > 1 else ''}"
            controls.button(reset, "undo", _open, session, session.question.base, width="stretch")
        controls.uploader(session, uploads.SCENARIO)
        if session.page != "start":  # which has them among its steps
            st.subheader("SLO", help="A request is good when it meets every bound that is given.")
            controls.slo_controls(session)
        st.subheader("Effort", help="More requests and replications give narrower intervals and slower pages.")
        with st.container(horizontal=True):
            for key in ("statistics.seed", "statistics.replications", NUM_REQUESTS):
                controls.number_control(session, key)
        controls.choice_control(session, "statistics.confidence", (0.9, 0.95, 0.99), "{:.0%}".format)


def _open(session: Session, base: str) -> None:
    session.ask(ScenarioPair.opening(base))
    uploads.forget_receipts()
