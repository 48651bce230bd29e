"""The frame around every page: navigation, sidebar, warnings, and the link that reproduces what is shown."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from draftcast.dashboards import trust, what_if
from draftcast.dashboards.page import Page, banner
from draftcast.dashboards.session import Session, session, write_link
from draftcast.dashboards.sidebar import sidebar
from draftcast.dashboards.style import apply_style

ICON = Path(__file__).with_name("icon.png")
PAGES = (
    Page(
        "",
        "What-if",
        "What does speculation change for one deployment under one load?",
        ":material/tune:",
        what_if.render,
    ),
    Page("trust", "Trust", "How far can these numbers be trusted, and why?", ":material/verified:", trust.render),
)


def run_app(files: tuple[str, ...] = ()) -> None:
    """Draw the page that the address names; ``files`` are further scenarios to choose from."""
    st.set_page_config(page_title="draftcast", page_icon=str(ICON), layout="wide")
    st.session_state["files"] = files
    apply_style()
    known = session()
    pages = {page.name: _entry(page, known) for page in PAGES}
    st.session_state["pages"] = pages
    chosen = st.navigation(list(pages.values()))
    sidebar(known)
    chosen.run()
    write_link(known)


def _entry(page: Page, known: Session) -> st.Page:
    def draw() -> None:
        st.title(page.title, anchor=False)
        st.caption(page.question)
        banner(known)
        page.render(known)

    return st.Page(draw, title=page.title, icon=page.icon, url_path=page.name or None, default=not page.name)
