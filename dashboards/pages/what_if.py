"""What-if: one deployment under one load, against the same without speculation and a pinned baseline."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from draftcast.dashboards.session.answers import Answer, answers, together
from draftcast.dashboards.session.plain_text import literal
from draftcast.dashboards.session.session import MOST_RUNS, Session
from draftcast.dashboards.session.uploads import trace_notes
from draftcast.dashboards.widgets.controls import button
from draftcast.dashboards.widgets.page import verdict_line
from draftcast.dashboards.widgets.report import Report
from draftcast.dashboards.widgets.tiles import Column, column_of, tiles
from draftcast.dashboards.widgets.what_if_controls import controls
from draftcast.scenarios.compare.comparison import Comparison, simulate
from draftcast.scenarios.compare.slo_answer import idle_scenario, measured_requests, slo_answer
from draftcast.scenarios.run.simulate import RunResult
from draftcast.scenarios.run.workload_spec import slos
from draftcast.scenarios.show.run_plots import time_figure, timeline_figure
from draftcast.scenarios.show.run_report import load_words, status_line
from draftcast.scenarios.show.tables import title

ON, OFF, BASELINE = "SD on", "SD off", "baseline"


def render(session: Session, report: Report) -> None:
    """Controls, the answer in a sentence, tiles, pictures, footer."""
    controls(session)
    if wanted := session.wanted_method:
        text = f"Give the acceptance of {wanted} above to see its forecast: that of another method does not apply."
        st.info(text, icon=":material/tune:")
        return
    pinned = [session.baseline.scenario] if session.baseline is not None else []
    own, *baselines = answers(session.question.scenario, *pinned)
    report.title = title(own.scenario)
    report.lines += _answer_lines(own)
    verdict = own.point.verdict
    sides = {OFF: own.own} if verdict is None else {ON: verdict.on, OFF: verdict.off}
    if baselines:
        sides[BASELINE] = baselines[0].own
    runs = {name: side.run for name, side in sides.items() if side.run is not None and side.has_figures}
    report.badge([run.summary["figures"] for run in runs.values()])
    _tiles(own, baselines)
    _buttons(session)
    _pictures(report, own, runs)
    rows = [(name, figure.mean, figure.low, figure.high) for name, figure in own.run.summary["figures"].items()]
    report.tables["Figures"] = pd.DataFrame(rows, columns=["figure", "mean", "low", "high"])
    report.footer(own.hash, session.question.command("simulate"), own)
    summary = Comparison(own.scenario, (own.point,), None).summary if verdict is not None else lambda: own.run.summary
    report.downloads(f"draftcast-{own.hash[:12]}", lambda: own.run.requests, summary)


def _answer_lines(own: Answer) -> list[str]:
    """Verdict, what limits, SLO and state, shown and returned for the report."""
    scenario, run, verdict = own.scenario, own.run, own.point.verdict
    bottleneck = f"Bottleneck - {own.limits.sentence}"
    if verdict is None:
        text = f"Speculation is off {load_words(scenario)}: there is nothing to compare."
        data = {"verdict": "off", "advice": ""}
    else:
        text = verdict.sentence(load_words(scenario))
        data = {"verdict": verdict.word, "advice": verdict.advice}
        if verdict.advantage is not None:
            data |= {"low": str(verdict.advantage.low), "high": str(verdict.advantage.high)}
    head, mark, _ = text.partition(":") if ":" in text else text.partition(". ")
    tone = {"pays": "better", "costs": "worse"}.get(data["verdict"], "")
    verdict_line(text, bold=len(head + mark), tone=tone, why=bottleneck, **data)
    lines = [text, bottleneck]
    slo = None
    if slos(scenario):
        unmet = run.slo_met is False and own.own.has_figures
        slo = slo_answer(scenario, own.own, simulate(idle_scenario(scenario)) if unmet else None)
    status = status_line(run, own.own)
    if slo is not None:
        (st.success if slo.met else st.error)(literal(slo.sentence), icon=":material/flag:")
        lines.append(slo.sentence)
    elif status:
        overloaded = own.own.state == "overloaded"
        (st.error if overloaded else st.warning)(literal(status), icon=":material/trending_up:")
        lines.append(status)
    for note in run.summary["notes"]:
        if note not in trace_notes(scenario):
            st.caption(literal(note))
    return lines


def _tiles(own: Answer, baselines: list[Answer]) -> None:
    """Values as the command line gives them; differences over the requests that both measure."""
    scenario, verdict = own.scenario, own.point.verdict
    column = column_of(scenario, own.own)
    pairs: dict[str, tuple[Column, Column]] = {}
    if verdict is not None:
        pairs[OFF] = (column, column_of(scenario, verdict.off))
    for baseline in baselines:
        one, two = together(own, baseline)
        pairs[BASELINE] = (column_of(scenario, one), column_of(baseline.scenario, two))
    st.html(tiles(column, pairs, scenario.statistics.confidence))


def _buttons(session: Session) -> None:
    with st.container(horizontal=True, key="baseline"):
        hint = "Tiles then show the difference to the current run."
        button("Pin as baseline", "keep", session.pin, session.question, help=hint)
        if session.baseline is not None:
            button("Unpin", "keep_off", session.pin, None)
        hint = f"Compare shows the current run beside up to {MOST_RUNS - 1} runs added this way."
        button("Add to Compare", "add", session.add_run, session.question, disabled=session.room <= 0, help=hint)


def _pictures(report: Report, own: Answer, runs: dict[str, RunResult]) -> None:
    """Of latencies only where they hold for the load."""
    right = st.container()
    if runs:
        with right:
            report.latencies({name: measured_requests(run) for name, run in runs.items()})
        left, right = st.columns(2)
        with left:
            st.subheader("Where a request's time goes")
            report.figure(
                "time",
                time_figure(runs),
                "Mean seconds of a request by part; the parts add up to its E2E latency. Rejected work is the time of "
                "each step less its time without the rejected rows and their drafts.",
                "Stacked bars of the mean seconds a request spends in each part, one bar for each run.",
            )
    with right:
        st.subheader("Over time")
        report.figure(
            "timeline",
            timeline_figure(own.timeline),
            "First replication: requests waiting and running, and the share of KV blocks in use.",
            "Requests waiting, requests running and KV cache use over time in the first replication.",
        )
