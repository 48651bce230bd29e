"""What-if: one deployment under one load, against the same without speculation and a pinned baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

import pandas as pd
import streamlit as st

from draftcast.dashboards.footer import Exports, footer
from draftcast.dashboards.page import badge, cannot_run, figure, run_facts, simulating
from draftcast.dashboards.plain_text import literal
from draftcast.dashboards.results import Answer, answers, side_of, together
from draftcast.dashboards.session import MOST_RUNS, Question, Session, short_error
from draftcast.dashboards.tiles import LATENCY_TILES, THROUGHPUT_TILE, show_tiles, tile
from draftcast.dashboards.uploads import trace_notes
from draftcast.dashboards.what_if_controls import controls
from draftcast.errors import InputError
from draftcast.scenarios.bottleneck import bottleneck
from draftcast.scenarios.comparison import Comparison, Point
from draftcast.scenarios.fidelity import fidelity
from draftcast.scenarios.load import without_speculation
from draftcast.scenarios.report import status_line, title
from draftcast.scenarios.run_plots import latency_figure, time_figure, timeline_figure
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.simulate import RunResult, simulate
from draftcast.scenarios.slo_answer import SloAnswer, idle_scenario, measured_requests, slo_answer
from draftcast.scenarios.verdict import verdict

ON, OFF, BASELINE = "SD on", "SD off", "baseline"


def render(session: Session) -> None:
    """Controls, the answer in a sentence, tiles, pictures, footer."""
    top = st.container(key="answer-badge")
    controls(session)
    scenario = session.question.scenario
    if session.wanted_method:
        wanted = session.wanted_method
        st.info(
            f"Give the acceptance of {wanted} above to see its forecast: another method's says nothing about {wanted}.",
            icon=":material/tune:",
        )
        return
    try:
        own, others = _answered(session)
    except InputError as error:
        cannot_run(session, error)
        return
    runs = {ON if OFF in others else OFF: own.run} | {name: pair.other.run for name, pair in others.items()}
    with top:
        badge(session, fidelity([run.summary["figures"] for run in runs.values()]))
    on, without = others[OFF].runs if OFF in others else (own.run, None)
    point = Point(_rate(scenario), on, without, scenario.statistics.confidence)
    lines = _answer_lines(own, point)
    _tiles(own, others)
    _buttons(session)
    pictures = _pictures(own, runs)
    _draw(pictures)
    footer(run_facts(own), session.question.command("simulate"), _exports(own, point, lines, pictures))


@dataclass(frozen=True)
class Other:
    """What the page's run is compared with, alone and measured together with it."""

    other: Answer
    runs: tuple[RunResult, RunResult]


def _answered(session: Session) -> tuple[Answer, dict[str, Other]]:
    """The page's run, and by name what it is compared with."""
    scenario = session.question.scenario
    asked = {}
    if scenario.speculative_config is not None:
        asked[OFF] = without_speculation(scenario)
    if session.baseline is not None:
        asked[BASELINE] = session.baseline.scenario
    own, *alone = answers([scenario, *asked.values()], simulating)
    found = {}
    for (name, other), answered in zip(asked.items(), alone, strict=True):
        found[name] = Other(answered, together(scenario, other) or (own.run, answered.run))
    return own, found


def _rate(scenario: Scenario) -> float | None:
    return getattr(scenario.workload.arrivals, "request_rate_rps", None)


def load_words(scenario: Scenario) -> str:
    """The load, as a sentence ends with it."""
    arrivals = scenario.workload.arrivals
    if arrivals.process == "closed_loop":
        return f"with {arrivals.concurrency} clients"
    rate = _rate(scenario)
    return f"at {rate:g} req/s" if rate is not None else "under this load"


def _answer_lines(own: Answer, point: Point) -> list[str]:
    """Verdict, stability, SLO and bottleneck, shown and returned for the report."""
    scenario, run = own.scenario, own.run
    found = verdict(point, load_words(scenario))
    limit = bottleneck(scenario, own.deployment, run)
    advantage = point.advantage
    bounds = "" if advantage is None else f" data-low='{advantage.low!r}' data-high='{advantage.high!r}'"
    tone = {"on": "dc-better", "off": "dc-worse"}.get(found.advice, "")
    head, _, rest = found.sentence.partition(":")
    st.html(
        f"<p class='dc-verdict' data-verdict='{escape(found.word)}' data-advice='{found.advice}'{bounds}>"
        f"<b class='{tone}'>{escape(head)}:</b>{escape(rest)}</p>"
        f"<p class='dc-why' data-bottleneck='{escape(limit.kind)}'>Bottleneck - {escape(limit.sentence)}</p>"
    )
    lines = [title(scenario), found.sentence, f"Bottleneck - {limit.sentence}"]
    slo = _slo(scenario, run)
    if slo is not None:
        (st.success if slo.met else st.error)(literal(slo.sentence), icon=":material/flag:")
        lines.append(slo.sentence)
    elif run.unstable or not run.steady:
        status = status_line(run)
        (st.error if run.unstable else st.warning)(literal(status), icon=":material/trending_up:")
        lines.append(status)
    on_top = trace_notes(scenario)
    for note in run.summary["notes"]:
        if note not in on_top:
            st.caption(literal(short_error(Exception(note))))
    return lines


def _slo(scenario: Scenario, run: RunResult) -> SloAnswer | None:
    if scenario.slo is None and all(entry.slo is None for entry in scenario.workload.classes):
        return None
    idle = simulate(idle_scenario(scenario)) if run.slo_met is False and not run.unstable else None
    return slo_answer(scenario, run, idle)


def _tiles(own: Answer, others: Mapping[str, Other]) -> None:
    """Values of the run alone, as the command line gives them; differences over the requests that both measure."""
    alone = side_of(own.scenario, own.run)
    pairs = {
        name: (side_of(own.scenario, pair.runs[0]), side_of(pair.other.scenario, pair.runs[1]))
        for name, pair in others.items()
    }
    confidence = own.scenario.statistics.confidence
    show_tiles(
        [
            tile(name, explained, figures, alone, pairs, confidence)
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
    return {
        "latency": lambda: latency_figure({name: measured_requests(run) for name, run in runs.items()}, limits),
        "time": lambda: time_figure(runs),
        "timeline": lambda: timeline_figure(own.timeline),
    }


def _draw(pictures: Mapping[str, Callable[[], Any]]) -> None:
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
            "Mean seconds of a request by part; the parts add up to its E2E latency. Rejected work is the time of each "
            "step less its time without the rejected rows and their drafts.",
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


def _exports(own: Answer, point: Point, lines: list[str], pictures: Mapping[str, Callable[[], Any]]) -> Exports:
    run = own.run
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
