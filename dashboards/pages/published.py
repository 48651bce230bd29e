"""The part of Trust that sets what others published beside what draftcast forecasts of the same setting."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from draftcast.dashboards.session.session import PUBLISHED_ASKED, Session
from draftcast.dashboards.widgets.long_answers import asked_for, long_answer
from draftcast.dashboards.widgets.table import html_table
from draftcast.scenarios.evidence.cases import published_cases
from draftcast.scenarios.evidence.forecast import PublishedForecast, forecast_case
from draftcast.scenarios.show.published_report import COLUMNS, LEGEND, assumption_lines, rows, summary_line
from draftcast.sim.progress import Progress, part_of


def published_results(session: Session) -> pd.DataFrame | None:
    """Draw it once it is asked for; the table, for the page's files."""
    st.header("Published results", anchor="published")
    cases = published_cases()
    if not asked_for(
        session,
        PUBLISHED_ASKED,
        "published",
        f"Forecast {len(cases)} published cases",
        "Simulates every case with and without speculation: some ten seconds.",
    ):
        st.caption("What others measured, and what the same models of engine and device say of it; nothing is fitted.")
        return None
    forecasts = long_answer(("published",), "Forecasting what others published", _forecast)
    shown = rows(forecasts)
    st.html(html_table(COLUMNS, shown, name="Published results"))
    st.caption(f"{summary_line(forecasts)} {' '.join(LEGEND.split())}")
    with st.expander("What had to be assumed"):
        st.caption("  \n".join(assumption_lines(cases)))
    return pd.DataFrame(shown, columns=list(COLUMNS))


def _forecast(progress: Progress) -> list[PublishedForecast]:
    cases = published_cases()
    found = []
    for index, (name, case) in enumerate(cases.items()):
        found += forecast_case(name, case, part_of(progress, index, len(cases)))
    return found
