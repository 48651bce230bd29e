"""The frame around every page: navigation, sidebar, warnings, and the link that reproduces what is shown.

Pages are told apart by ``page`` in the link, not by a path: everything a page shows stands in one place.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import streamlit as st

from draftcast.dashboards.pages import capacity, compare, cutover, sweep, trust, what_if
from draftcast.dashboards.session.link import PAGE, PAGES, current_session, write_link
from draftcast.dashboards.session.session import Session
from draftcast.dashboards.widgets.page import banner, cannot_run
from draftcast.dashboards.widgets.report import Report
from draftcast.dashboards.widgets.sidebar import sidebar
from draftcast.dashboards.widgets.style import STYLE
from draftcast.errors import InputError

ICON = Path(__file__).parents[1] / "icon.png"


class Page(NamedTuple):
    """A page: what it answers, the icon of the navigation, and what draws it (InputError: there is no answer)."""

    question: str
    icon: str
    render: Callable[[Session, Report], None]


SHOWN = {
    "what-if": Page("What does speculation change for one deployment under one load?", "tune", what_if.render),
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
    st.set_page_config(page_title="draftcast", page_icon=str(ICON), layout="wide")
    st.session_state["files"] = files
    st.html(STYLE)
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
    sidebar(session)
    page = SHOWN[session.page]
    st.title(session.page.capitalize(), anchor=False)
    st.caption(page.question)
    # A page may find something in the link to warn of; its place is on top all the same.
    top = st.container()
    try:
        page.render(session, Report(session, st.container(key="answer-badge")))
    except InputError as error:
        cannot_run(session, error)
    with top:
        banner(session)
    write_link(session)
