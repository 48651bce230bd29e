"""What-if: one deployment under one load, against the same without speculation and a pinned baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import Any

import pandas as pd
import streamlit as st

from draftcast.dashboards.session.plain_text import literal
from draftcast.dashboards.session.results import Answer, answers, together
from draftcast.dashboards.session.session import MOST_RUNS, Question, Session, short_error
from draftcast.dashboards.session.uploads import trace_notes
from draftcast.dashboards.widgets.footer import Exports, footer
from draftcast.dashboards.widgets.page import badge, cannot_run, figure, run_facts, simulating
from draftcast.dashboards.widgets.tiles import LATENCY_TILES, THROUGHPUT_TILE, Column, column_of, show_tiles, tile
from draftcast.dashboards.widgets.what_if_controls import controls
from draftcast.errors import InputError
from draftcast.scenarios.compare.comparison import Comparison, simulate
from draftcast.scenarios.compare.slo_answer import SloAnswer, idle_scenario, measured_requests, slo_answer
from draftcast.scenarios.compare.verdict import Side
from draftcast.scenarios.run.fidelity import fidelity
from draftcast.scenarios.run.simulate import RunResult
from draftcast.scenarios.show.run_plots import latency_figure, time_figure, timeline_figure
from draftcast.scenarios.show.tables import load_words, status_line, title

ON, OFF, BASELINE = "SD on", "SD off", "baseline"


def render(session: Session) -> None:
    """Controls, the answer in a sentence, tiles, pictures, footer."""
    top = st.container(key="answer-badge")
    controls(session)
    if session.wanted_method:
        wanted = session.wanted_method
        st.info(
            f"Give the acceptance of {wanted} above to see its forecast: another method's says nothing about {wanted}.",
            icon=":material/tune:",
        )
        return
    try:
        own, baseline = _answered(session)
        lines = _answer_lines(own)
    except InputError as error:
        cannot_run(session, error)
        return
    sides = _sides(own, baseline)
    runs = {name: side.run for name, side in sides.items() if side.run is not None and side.has_figures}
    with top:
        badge(session, fidelity([run.summary["figures"] for run in runs.values()]))
    _tiles(own, baseline)
    _buttons(session)
    pictures = _pictures(own, runs)
    _draw(pictures)
    footer(run_facts(own), session.question.command("simulate"), _exports(own, lines, pictures))


def _answered(session: Session) -> tuple[Answer, Answer | None]:
    """The page's run, and the pinned one."""
    asked = [session.question.scenario]
    if session.baseline is not None:
        asked.append(session.baseline.scenario)
    own, *pinned = answers(asked, simulating)
    return own, pinned[0] if pinned else None


def _sides(own: Answer, baseline: Answer | None) -> dict[str, Side]:
    """What the pictures show, by name."""
    verdict = own.point.verdict
    sides = {OFF: own.own} if verdict is None else {ON: verdict.on, OFF: verdict.off}
    return sides | ({BASELINE: baseline.own} if baseline is not None else {})


def _answer_lines(own: Answer) -> list[str]:
    """Verdict, what limits, SLO and state, shown and returned for the report."""
    scenario, run, verdict, limits = own.scenario, own.run, own.point.verdict, own.limits
    if verdict is None:
        said = f"Speculation is off {load_words(scenario)}: there is nothing to compare."
        word, advice, bounds = "off", "", ""
    else:
        said, word, advice = verdict.sentence(load_words(scenario)), verdict.word, verdict.advice
        advantage = verdict.advantage
        bounds = "" if advantage is None else f" data-low='{advantage.low!r}' data-high='{advantage.high!r}'"
    tone = {"pays": "dc-better", "costs": "dc-worse"}.get(word, "")
    head, mark, rest = said.partition(":") if ":" in said else said.partition(". ")
    st.html(
        f"<p class='dc-verdict' data-verdict='{escape(word)}' data-advice='{advice}'{bounds}>"
        f"<b class='{tone}'>{escape(head + mark)}</b>{escape(rest)}</p>"
        f"<p class='dc-why' data-bottleneck='{escape(limits.limit)}'>Bottleneck - {escape(limits.sentence)}</p>"
    )
    lines = [title(scenario), said, f"Bottleneck - {limits.sentence}"]
    slo = _slo(own)
    status = status_line(run, own.own)
    if slo is not None:
        (st.success if slo.met else st.error)(literal(slo.sentence), icon=":material/flag:")
        lines.append(slo.sentence)
    elif status:
        overloaded = own.own.state == "overloaded"
        (st.error if overloaded else st.warning)(literal(status), icon=":material/trending_up:")
        lines.append(status)
    on_top = trace_notes(scenario)
    for note in run.summary["notes"]:
        if note not in on_top:
            st.caption(literal(short_error(Exception(note))))
    return lines


def _slo(own: Answer) -> SloAnswer | None:
    scenario = own.scenario
    if scenario.slo is None and all(entry.slo is None for entry in scenario.workload.classes):
        return None
    unmet = own.run.slo_met is False and own.own.has_figures
    return slo_answer(scenario, own.own, simulate(idle_scenario(scenario)) if unmet else None)


def _tiles(own: Answer, baseline: Answer | None) -> None:
    """Values as the command line gives them; differences over the requests that both measure."""
    scenario, verdict = own.scenario, own.point.verdict
    column = column_of(scenario, own.own)
    pairs: dict[str, tuple[Column, Column]] = {}
    if verdict is not None:
        pairs[OFF] = (column, column_of(scenario, verdict.off))
    if baseline is not None:
        one, two = together(own, baseline)
        pairs[BASELINE] = (column_of(scenario, one), column_of(baseline.scenario, two))
    confidence = scenario.statistics.confidence
    show_tiles(
        [
            tile(name, explained, figures, column, pairs, confidence)
            for name, explained, figures in (*LATENCY_TILES, THROUGHPUT_TILE)
        ]
    )


def _buttons(session: Session) -> None:
    with st.container(horizontal=True, key="baseline"):
        st.button(
            "Pin as baseline",
            icon=":material/keep:",
            help="Tiles then show the difference to what is on the page now, whatever you change.",
            on_click=_pin,
            args=(session, session.question),
        )
        if session.baseline is not None:
            st.button("Unpin", icon=":material/keep_off:", on_click=_pin, args=(session, None))
        st.button(
            "Add to Compare",
            icon=":material/add:",
            disabled=session.room <= 0,
            help=f"Compare shows the page beside up to {MOST_RUNS - 1} runs kept this way.",
            on_click=_keep,
            args=(session,),
        )


def _pin(session: Session, baseline: Question | None) -> None:
    session.baseline, session.touched = baseline, True


def _keep(session: Session) -> None:
    session.runs, session.touched = [*session.runs, session.question], True


def _pictures(own: Answer, runs: Mapping[str, RunResult]) -> dict[str, Callable[[], Any]]:
    slo = own.scenario.slo
    limits = {key: getattr(slo, key) for key in ("ttft_ms", "tpot_ms", "e2el_ms")} if slo is not None else {}
    pictures: dict[str, Callable[[], Any]] = {}
    if runs:
        measured = {name: measured_requests(run) for name, run in runs.items()}
        pictures = {"latency": lambda: latency_figure(measured, limits), "time": lambda: time_figure(runs)}
    return pictures | {"timeline": lambda: timeline_figure(own.timeline)}


def _draw(pictures: Mapping[str, Callable[[], Any]]) -> None:
    """Of latencies only where they hold for the load."""
    right = st.container()
    if "latency" in pictures:
        with right:
            st.subheader("Latency distribution")
            figure(
                "latency",
                pictures["latency"](),
                "Share of requests that are at least this fast, all replications together; dotted: the SLO's bounds.",
                "Cumulative distribution of TTFT, TPOT and end-to-end latency for each run.",
            )
        left, right = st.columns(2)
        with left:
            st.subheader("Where a request's time goes")
            figure(
                "time",
                pictures["time"](),
                "Mean seconds of a request by part; the parts add up to its E2E latency. Rejected work is the time of "
                "each step less its time without the rejected rows and their drafts.",
                "Stacked bars of the mean seconds a request spends in each part, one bar for each run.",
            )
    with right:
        st.subheader("Over time")
        figure(
            "timeline",
            pictures["timeline"](),
            "First replication: requests waiting and running, and the share of KV blocks in use.",
            "Requests waiting, requests running and KV cache use over time in the first replication.",
        )


def _exports(own: Answer, lines: list[str], pictures: Mapping[str, Callable[[], Any]]) -> Exports:
    run, point = own.run, own.point
    summary = Comparison(own.scenario, (point,), None).summary() if point.off is not None else run.summary

    def figures_table() -> pd.DataFrame:
        rows = [(name, each.mean, each.low, each.high) for name, each in run.summary["figures"].items()]
        return pd.DataFrame(rows, columns=["figure", "mean", "low", "high"])

    return Exports(
        name=f"draftcast-{own.hash[:12]}",
        rows=lambda: run.requests,
        summary=lambda: summary,
        scenario=own.scenario,
        title=title(own.scenario),
        lines=lines[1:],
        tables=lambda: {"Figures": figures_table()},
        figures=lambda: [make() for make in pictures.values()],
    )
