"""The frame around every page: navigation, sidebar, warnings, and the link that reproduces what is shown.

Pages are told apart by ``page`` in the link, not by a path: everything a page shows stands in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import streamlit as st

from draftcast.dashboards.pages import capacity, compare, cutover, sweep, trust, what_if
from draftcast.dashboards.session.session import PAGES, Session, session, write_link
from draftcast.dashboards.widgets.page import banner
from draftcast.dashboards.widgets.sidebar import sidebar
from draftcast.dashboards.widgets.style import apply_style

ICON = Path(__file__).parents[1] / "icon.png"
NAVIGATION = "page"


@dataclass(frozen=True)
class Page:
    """A page of the navigation.

    Attributes:
        question: what it answers, in a few words under the title.
        icon: of the navigation.
        render: draws it below title and warnings.
    """

    question: str
    icon: str
    render: Callable[[Session], None]


SHOWN: Mapping[str, Page] = {
    "what-if": Page(
        "What does speculation change for one deployment under one load?", ":material/tune:", what_if.render
    ),
    "cutover": Page(
        "At which load does speculation stop paying, and which setting is best?", ":material/swap_vert:", cutover.render
    ),
    "capacity": Page(
        "How many GPUs does a load need for its SLO, and what do they cost?", ":material/dns:", capacity.render
    ),
    "sweep": Page("Which settings does no other beat, over a whole grid of them?", ":material/grid_on:", sweep.render),
    "compare": Page(
        "What differs between runs, and which differences are real?", ":material/compare_arrows:", compare.render
    ),
    "trust": Page("How far can these numbers be trusted, and why?", ":material/verified:", trust.render),
}


def run_app(files: tuple[str, ...] = ()) -> None:
    """Draw the page that the link names; ``files`` are further scenarios to choose from."""
    st.set_page_config(page_title="draftcast", page_icon=str(ICON), layout="wide")
    st.session_state["files"] = files
    apply_style()
    known = session()
    _navigation(known)
    sidebar(known)
    page = SHOWN[known.page]
    st.title(PAGES[known.page], anchor=False)
    st.caption(page.question)
    # A page may find something in the link to warn of; its place is on top all the same.
    top = st.container()
    page.render(known)
    with top:
        banner(known)
    write_link(known)


def _navigation(known: Session) -> None:
    st.session_state[NAVIGATION] = known.page
    st.segmented_control(
        "Page",
        list(SHOWN),
        key=NAVIGATION,
        format_func=lambda name: f"{SHOWN[name].icon} {PAGES[name]}",
        label_visibility="collapsed",
        required=True,
        on_change=lambda: known.go(st.session_state[NAVIGATION]),
    )
