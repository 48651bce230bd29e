"""Trust: what the times rest on - calibration points and fit, coverage of the scenario, age of the profile."""

from __future__ import annotations

import streamlit as st

from draftcast.dashboards.session import Session


def render(session: Session) -> None:
    st.header("Coverage map")

    st.html("<div class=dc-footer>x</div>")
