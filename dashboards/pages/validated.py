"""The part of Trust that sets live sweeps of a real server beside their forecasts; what misses its bar is shown."""

from __future__ import annotations

from html import escape

import pandas as pd
import streamlit as st

from draftcast.dashboards.session.plain_text import literal
from draftcast.dashboards.session.session import Session
from draftcast.dashboards.session.uploads import validation_uploader
from draftcast.dashboards.widgets.table import Bad, Cell, html_table
from draftcast.files import read_bytes
from draftcast.scenarios.show.validation_page import MISSED
from draftcast.scenarios.show.validation_sweep_summary import (
    SweepSummary,
    Table,
    acceptance_rows,
    bar_rows,
    bars_line,
    cutover_rows,
    effect_rows,
    read_summary,
    shipped_summaries,
    step_rows,
)


def validation_results(session: Session) -> dict[str, pd.DataFrame]:
    """Draw every sweep that ships with draftcast, and the one uploaded; their tables, for the page's files."""
    st.header("Validation against live runs", anchor="validation")
    sweeps = shipped_summaries()
    own = session.path / session.validation if session.validation else None
    if own is not None and own.is_file():
        sweeps[session.validation] = read_summary(read_bytes(own), own.name)
    tables: dict[str, pd.DataFrame] = {}
    for name, found in sweeps.items():
        tables |= {f"Validation {name}: {title}": frame for title, frame in _draw(name, found).items()}
    validation_uploader(session)
    return tables


def _draw(name: str, found: SweepSummary) -> dict[str, pd.DataFrame]:
    first, verdict, *rest = found.head()
    st.subheader(literal(name), anchor=False)
    st.html(
        f"<p class='dc-verdict' data-held='{found.held}' data-of='{found.of}'>{escape(verdict)}</p>"
        f"<p class='dc-why'>{escape(' '.join([first, *rest]))}</p>"
    )
    told = found.known_continuation
    lines = [f"{told.checked_tokens:,} tokens held against the known text, {told.wrong_tokens} wrong.", bars_line()]
    lines += [f"Made by {found.command}."] if found.command else []
    st.caption("  \n".join(map(literal, lines)))
    tables = {
        "Bars": bar_rows(found.verdicts),
        "Cutover: users at which the throughput gain crosses 1": cutover_rows(found.cutovers),
        "Step time of runs that took no part in the fit": step_rows(found.steps),
    }
    folded = {
        "Effect of speculation at every load": effect_rows(found.effects),
        "Acceptance by draft position": acceptance_rows(found.acceptance),
    }
    for title, rows in tables.items():
        st.caption(title)
        st.html(_shown(f"{title}: {name}", rows, facts=title == "Bars"))
    for title, rows in folded.items():
        with st.expander(title):
            st.html(_shown(f"{title}: {name}", rows))
    for note in found.notes:
        st.caption(literal(note))
    return {title: pd.DataFrame(rows[1:], columns=rows[0]) for title, rows in (tables | folded).items()}


def _shown(name: str, table: Table, *, facts: bool = False) -> str:
    """As HTML; what misses its bar stands out."""
    head, *rows = table
    cells: list[list[Cell]] = [[Bad(cell) if MISSED in cell else cell for cell in row] for row in rows]
    return html_table(head, cells, facts=facts, name=name)
