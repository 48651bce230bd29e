"""Sweep: every point of a grid around the question, in the background; the Pareto picture leads to What-if."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from html import escape
from typing import Any

import streamlit as st

from draftcast.dashboards.session.plain_text import literal
from draftcast.dashboards.session.results import question_key
from draftcast.dashboards.session.session import SWEEP_METRIC, SWEEP_RUN, Question, Session, href_of, short_error
from draftcast.dashboards.session.sweep_job import SweepJob
from draftcast.dashboards.widgets.footer import Exports, footer
from draftcast.dashboards.widgets.page import badge, cannot_run, clicked, figure, runs_facts
from draftcast.dashboards.widgets.sweep_controls import Grid, editor, grid_text, read_grid
from draftcast.dashboards.widgets.table import Cell, Link, html_table
from draftcast.errors import InputError
from draftcast.scenarios.run.fidelity import fidelity
from draftcast.scenarios.show.sweep_plots import metric_figure, metrics_of, pareto_figure
from draftcast.scenarios.show.sweep_report import (
    error_lines,
    progress_line,
    summary_line,
    sweep_head,
    sweep_rows,
    swept_title,
)
from draftcast.scenarios.sweep.run import SweepResult

JOB, GRID = "sweep-job", "sweep-grid"
METRIC = "mean_e2el_s"
PARETO = "pareto"
POLL_S = 0.5
FOLDER = "sweep"


def render(session: Session) -> None:
    """Grid editor, run and cancel, what was found, footer."""
    top = st.container(key="answer-badge")
    text = grid_text(session)
    key = _key(session, text)
    editor(session, text)
    try:
        grid = _grid(session, key, text)
    except InputError as error:
        st.error(f"No grid yet: {literal(short_error(error))}", icon=":material/grid_off:")
        _footer(session, key, [part.strip() for part in text.split(";")], None)
        return
    job = _job(session, key, grid)
    if job is None or not job.running:
        _start_button(session, key, grid, job)
    else:
        _running(session, job)
    result = job.result if job is not None and not job.running else None
    if job is not None and job.error is not None:
        cannot_run(session, job.error)
    exports = None
    if result is not None:
        with top:
            badge(session, fidelity([cell.figures for cell in result.cells]))
        exports = _show(session, result, grid, key)
    _footer(session, key, grid.texts, exports)


def _key(session: Session, text: str) -> str:
    asked = json.dumps([*question_key(session.question.scenario), text])
    return hashlib.sha256(asked.encode()).hexdigest()[:12]


def _grid(session: Session, key: str, text: str) -> Grid:
    """The grid of this question, its points made once."""
    known: tuple[str, Grid] | None = st.session_state.get(GRID)
    if known is None or known[0] != key:
        known = st.session_state[GRID] = (key, read_grid(session, text))
    return known[1]


def _job(session: Session, key: str, grid: Grid) -> SweepJob | None:
    """The job of this very question; begun here when a link asks for its figures."""
    job: SweepJob | None = st.session_state.get(JOB)
    if job is not None and job.key == key:
        if not job.stopping:
            session.views[SWEEP_RUN] = key
        return job
    if job is not None:
        job.stop()
    if session.views.get(SWEEP_RUN) == key:
        _start(session, key, grid)
        begun: SweepJob = st.session_state[JOB]
        return begun
    session.views.pop(SWEEP_RUN, None)
    return None


def _start(session: Session, key: str, grid: Grid) -> None:
    st.session_state[JOB] = SweepJob(key, session, session.question.scenario, grid.axes, session.path / FOLDER)
    session.see(SWEEP_RUN, key, "")


def _cancel(session: Session, job: SweepJob) -> None:
    job.stop()
    session.see(SWEEP_RUN, "", "")


def _start_button(session: Session, key: str, grid: Grid, job: SweepJob | None) -> None:
    cells = len(grid.points)
    partly = job is not None and job.stopping
    if job is not None and job.result is not None and job.result.complete:
        return
    replications = session.question.scenario.statistics.replications
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button(
            "Resume" if partly else f"Run {cells} cells",
            key="sweep.start",
            type="primary",
            icon=":material/play_arrow:",
            on_click=_start,
            args=(session, key, grid),
        )
        st.caption(
            f"{cells} cells of {replications} replications each. What this session computed before is not computed "
            "again."
        )


@st.fragment(run_every=POLL_S)
def _running(session: Session, job: SweepJob) -> None:
    """Progress, looked at again and again while the rest of the page stands."""
    if not job.running:
        st.rerun()
    now = job.progress
    if job.stopping:
        st.progress(now.done / now.total if now is not None else 0.0, text="Stopping")
    elif now is None:
        st.progress(0.0, text="Waiting: another session's sweep computes")
    else:
        st.progress(now.done / now.total, text=progress_line(now))
    st.button(
        "Cancel",
        key="sweep.cancel",
        icon=":material/stop:",
        disabled=job.stopping,
        on_click=_cancel,
        args=(session, job),
    )


def _show(session: Session, result: SweepResult, grid: Grid, key: str) -> Exports:
    # The folder is the session's own business.
    result = dataclasses.replace(result, folder=None)
    done = "" if result.complete else f"Stopped: {sum(cell.cell is not None for cell in result.cells)} of "
    front = f"{len(result.pareto)} of {len(result.cells)} cells are on the Pareto front: no other is at least as good "
    line = f"{done}{summary_line(result)}."
    st.html(
        f"<p class='dc-verdict' data-cells='{len(result.cells)}' data-computed='{result.computed}' "
        f"data-reused='{result.reused}'>{escape(front)}in tokens/s/user and tokens/s/GPU.</p>"
    )
    st.caption(literal(line))
    for text in error_lines(result):
        st.warning(literal(short_error(Exception(f"No figures: {text}"))), icon=":material/error:")
    pictures = _pictures(session, result, grid) if metrics_of(result) else []
    numbers = {id(cell): number for number, cell in enumerate(result.cells)}
    rows: list[Sequence[Cell]] = []
    for cell, texts in sweep_rows(result):
        asks = grid.points[numbers[id(cell)]].scenario
        link = Link("What-if", href_of(Question(session.question.base, asks)), cell.label) if asks else "–"
        rows.append([*texts, link])
    st.html(html_table([*sweep_head(result), "open"], rows, name="Cells of the sweep"))
    frame = result.frame()
    return Exports(
        name=f"draftcast-sweep-{key}",
        rows=lambda: frame,
        summary=result.summary,
        scenario=result.scenario,
        title=swept_title(result),
        lines=[line],
        tables=lambda: {"Pareto front": frame[frame["pareto"]]},
        figures=lambda: pictures,
    )


def _pictures(session: Session, result: SweepResult, grid: Grid) -> list[Any]:
    def opened() -> None:
        number = clicked(PARETO)
        scenario = grid.points[int(number)].scenario if number is not None else None
        if scenario is not None:
            session.ask(Question(session.question.base, scenario))
            session.go("what-if")

    st.subheader("What one user sees against what a GPU delivers")
    pareto = pareto_figure(result)
    figure(
        PARETO,
        pareto,
        "A click on a cell opens it in What-if; the browser's Back leads here again. Ringed: the Pareto front. Open "
        "markers: the queue grows, what they show depends on how long the run was.",
        "Tokens per second and user against tokens per second and GPU, a marker for each cell.",
        on_click=opened,
    )
    metrics = metrics_of(result)
    metric = session.view(SWEEP_METRIC, METRIC, metrics)
    st.session_state[SWEEP_METRIC] = metric
    st.subheader(f"Along {literal(result.axes[0].name)}")
    st.selectbox(
        "Figure",
        metrics,
        key=SWEEP_METRIC,
        help="Names as of `draftcast simulate --json`; seconds, tokens, requests per second.",
        width=320,
        on_change=lambda: session.see(SWEEP_METRIC, st.session_state[SWEEP_METRIC], METRIC),
    )
    along = metric_figure(result, metric)
    figure("metric", along, "With intervals.", f"{metric} along {result.axes[0].name}, a line for each other point.")
    return [pareto, along]


def _footer(session: Session, key: str, axes: Sequence[str], exports: Exports | None) -> None:
    options = [word for axis in axes for word in ("--grid", axis)]
    footer(runs_facts(session.question.scenario, key), session.question.command("sweep", *options), exports)
