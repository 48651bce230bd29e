"""Compare: two to six runs side by side, simulated and measured, with what they differ in and by how much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import pandas as pd
import streamlit as st

from draftcast.dashboards.pages.compared import (
    FIGURES,
    LETTERS,
    Entry,
    Pairs,
    change_of,
    changed_table,
    difference_rows,
    entries_of,
    pair_of,
)
from draftcast.dashboards.session.plain_text import literal
from draftcast.dashboards.session.results import Answer, answers
from draftcast.dashboards.session.session import REFERENCE, Question, Session
from draftcast.dashboards.session.uploads import measured_uploader
from draftcast.dashboards.widgets.footer import Exports, footer
from draftcast.dashboards.widgets.page import badge, cannot_run, figure, run_facts, simulating
from draftcast.dashboards.widgets.table import html_table
from draftcast.dashboards.widgets.tiles import Figure, difference_cell, value_cell
from draftcast.errors import InputError
from draftcast.scenarios.run.fidelity import fidelity
from draftcast.scenarios.schema.load import without_speculation
from draftcast.scenarios.show.run_plots import SERIES, latency_figure, ratio_figure


def render(session: Session) -> None:
    """The runs, what they differ in, tables and pictures of the differences, footer."""
    top = st.container(key="answer-badge")
    try:
        (own,) = answers([session.question.scenario], simulating)
    except InputError as error:
        cannot_run(session, error)
        return
    entries = entries_of(session, own)
    simulated = [entry for entry in entries if entry.found is not None]
    with top:
        badge(session, fidelity([entry.found.run.summary["figures"] for entry in simulated if entry.found]))
    _runs(session, entries)
    confidence = own.scenario.statistics.confidence
    tables: dict[str, pd.DataFrame] = {}
    pictures: list[Any] = []
    reference = _reference(session, entries)
    pairs = {entry.letter: pair_of(entry, reference) for entry in entries if entry is not reference}
    if pairs:
        tables = _tables(entries, reference, pairs, confidence)
        pictures = _pictures(entries, reference, pairs, own)
    else:
        st.info("Add a run to compare with: keep one from What-if, take one below, or upload a measured one.")
    commands = [session.question.command("simulate"), *(run.command("simulate") for run in session.runs)]
    footer(run_facts(own), "\n".join(commands), _exports(own, entries, reference, pairs, tables, pictures))


def _runs(session: Session, entries: Sequence[Entry]) -> None:
    """Which runs there are, and how to add and remove some."""
    with st.container(border=True, key="runs"):
        shown = {entry.letter: entry for entry in entries}
        for letter in LETTERS[: 1 + len(session.runs) + len(session.measured)]:
            with st.container(horizontal=True, vertical_alignment="center"):
                st.html(_run_line(letter, shown.get(letter)))
                if letter != LETTERS[0]:
                    st.button(
                        f"Remove {letter}",
                        key=f"remove-{letter}",
                        icon=":material/close:",
                        on_click=_remove,
                        args=(session, letter),
                    )
        with st.container(horizontal=True):
            own = session.question
            offers = {"Add the same run": own}
            if own.scenario.speculative_config is not None:
                offers["Add it with speculation off"] = Question(own.base, without_speculation(own.scenario))
            for label, run in offers.items():
                st.button(
                    label,
                    icon=":material/add:",
                    disabled=session.room <= 0,
                    help="It stays as it is while What-if's run changes.",
                    on_click=_add,
                    args=(session, run),
                )
        with st.expander("Measured runs"):
            measured_uploader(session)


def _run_line(letter: str, entry: Entry | None) -> str:
    facts: Mapping[str, str] = {}
    if entry is not None:
        facts = entry.measured.facts if entry.measured is not None else {"run": entry.run_hash}
    words = " · ".join(f"{name} {text}" for name, text in facts.items())
    name = entry.name if entry is not None else f"{letter} · not available"
    return (
        f"<span class='dc-run'><b style='color:{SERIES[LETTERS.index(letter)]}'>●</b> <b>{escape(name)}</b> "
        f"<small>{escape(words)}</small></span>"
    )


def _add(session: Session, run: Question) -> None:
    session.runs, session.touched = [*session.runs, run], True


def _remove(session: Session, letter: str) -> None:
    index = LETTERS.index(letter) - 1
    runs, measured = list(session.runs), list(session.measured)
    if index < len(runs):
        del runs[index]
    else:
        del measured[index - len(runs)]
    session.runs, session.measured, session.touched = runs, measured, True
    session.views.pop(REFERENCE, None)


def _reference(session: Session, entries: Sequence[Entry]) -> Entry:
    letters = [entry.letter for entry in entries]
    chosen = session.view(REFERENCE, letters[0], letters)
    if len(entries) > 1:
        names = {entry.letter: entry.name for entry in entries}
        st.session_state[REFERENCE] = chosen
        st.selectbox(
            "Compared with",
            letters,
            key=REFERENCE,
            format_func=lambda letter: names[letter],
            help="The run that the differences of all others are taken to.",
            width=420,
            on_change=lambda: session.see(REFERENCE, st.session_state[REFERENCE], letters[0]),
        )
    return entries[letters.index(chosen)]


def _tables(
    entries: Sequence[Entry],
    reference: Entry,
    pairs: Pairs,
    confidence: float,
) -> dict[str, pd.DataFrame]:
    st.subheader("What differs")
    keys = changed_table(entries)
    if keys.empty:
        st.html("<p class='dc-why'>No key: the simulated runs ask the same.</p>")
    else:
        st.html(html_table(list(keys.columns), keys.to_numpy().tolist(), facts=True, name="Changed keys"))
    st.subheader("By how much")
    head = ["<th></th>"]
    for entry in entries:
        head.append(f"<th scope='col' title='{escape(entry.name, quote=True)}'>{escape(entry.letter)}</th>")
        head += [f"<th scope='col'>{entry.letter} vs {reference.letter}</th>"] if entry is not reference else []
    body = []
    for each in FIGURES:
        cells = [f"<th scope='row'>{escape(each.label)}</th>"]
        for entry in entries:
            cells.append(_value(entry, each))
            if entry is not reference:
                cells.append(difference_cell(each, reference.letter, pairs[entry.letter], confidence, words=True))
        body.append(f"<tr>{''.join(cells)}</tr>")
    st.html(
        "<div class='dc-table dc-compare' tabindex='0' role='region' aria-label='Differences'><table><thead><tr>"
        f"{''.join(head)}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )
    paired = "Paired by replication: the same arrivals, lengths and draft tokens on both sides."
    if any(entry.measured is not None for entry in entries):
        paired += " A measured run is one run: its differences have no interval and no verdict."
    st.caption(paired)
    for entry in entries:
        for note in entry.measured.notes if entry.measured is not None else ():
            st.caption(f"{entry.letter}: {literal(note)}")
    return {
        "Changed keys": keys,
        "Figures and differences": pd.DataFrame(difference_rows(entries, reference, pairs, confidence)),
    }


def _value(entry: Entry, each: Figure) -> str:
    if entry.measured is not None and each.name not in entry.column.figures:
        return f"<td class='dc-none' data-figure='{each.name}' data-value=''>– <small>not recorded</small></td>"
    return value_cell(each, entry.column)


def _pictures(
    entries: Sequence[Entry],
    reference: Entry,
    pairs: Pairs,
    own: Answer,
) -> list[Any]:
    colours = {entry.name: SERIES[LETTERS.index(entry.letter)] for entry in entries}
    confidence = own.scenario.statistics.confidence
    rows = {
        entry.name: [
            (each.label, change.ratio if (change := change_of(pairs, entry, each.name, confidence)) else None)
            for each in FIGURES
        ]
        for entry in entries
        if entry is not reference
    }
    ratios = ratio_figure(rows, colours)
    figure(
        "ratios",
        ratios,
        f"Every figure over that of {reference.name}, with its interval: left of 1 a latency is better, right of 1 a "
        "throughput. An interval that holds 1 cannot be told from chance.",
        "Ratio of each figure to the reference with its interval, one colour for each run.",
    )
    st.subheader("Latency distribution")
    slo = own.scenario.slo
    limits = {key: getattr(slo, key) for key in ("ttft_ms", "tpot_ms", "e2el_ms")} if slo is not None else {}
    latency = latency_figure({entry.name: entry.requests for entry in entries}, limits, colours)
    figure(
        "latency",
        latency,
        "Share of requests that are at least this fast; dotted: the SLO's bounds.",
        "Cumulative distribution of TTFT, TPOT and end-to-end latency for each run.",
    )
    return [ratios, latency]


def _exports(
    own: Answer,
    entries: Sequence[Entry],
    reference: Entry,
    pairs: Pairs,
    tables: Mapping[str, pd.DataFrame],
    pictures: Sequence[Any],
) -> Exports:
    confidence = own.scenario.statistics.confidence

    def summary() -> dict[str, Any]:
        return {
            "reference": reference.letter,
            "changed_keys": tables["Changed keys"].to_dict("records") if tables else [],
            "runs": {
                entry.letter: {
                    "about": entry.about,
                    "hash": entry.found.hash if entry.found is not None else None,
                    "figures": entry.column.figures,
                    "differences": {each.name: change_of(pairs, entry, each.name, confidence) for each in FIGURES}
                    if entry.letter in pairs
                    else None,
                }
                for entry in entries
            },
        }

    return Exports(
        name=f"draftcast-compare-{own.hash[:12]}",
        rows=lambda: pd.DataFrame(difference_rows(entries, reference, pairs, confidence)),
        summary=summary,
        scenario=own.scenario,
        title="Runs compared",
        lines=[entry.name for entry in entries],
        tables=lambda: tables,
        figures=lambda: pictures,
    )
