"""Cutover: where speculation stops paying, which setting to give the engine, and why it is so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import pandas as pd
import streamlit as st

from draftcast.dashboards.session.plain_text import literal
from draftcast.dashboards.session.results import Answer, answers, question_key
from draftcast.dashboards.session.session import (
    CUTOVER_ASKED,
    CUTOVER_METRIC,
    CUTOVER_OVER,
    MAP_ACCEPTANCE_ASKED,
    MAP_K_ASKED,
    Session,
    short_error,
)
from draftcast.dashboards.widgets.footer import Exports, footer
from draftcast.dashboards.widgets.long_answers import asked_for, long_answer
from draftcast.dashboards.widgets.page import badge, cannot_run, figure, run_facts, simulating
from draftcast.dashboards.widgets.table import html_table
from draftcast.errors import InputError
from draftcast.scenarios.compare.recommend import Recommendation, recommend
from draftcast.scenarios.compare.verdict import METRICS
from draftcast.scenarios.cutover.answer import Cutover
from draftcast.scenarios.cutover.axis import AXES
from draftcast.scenarios.cutover.map import SpeedupMap, speedup_map
from draftcast.scenarios.cutover.search import cutover
from draftcast.scenarios.run.fidelity import fidelity
from draftcast.scenarios.run.operating_point import ceilings, operating_tracks
from draftcast.scenarios.run.workload_spec import slos
from draftcast.scenarios.show.cutover_map_plot import map_figure
from draftcast.scenarios.show.cutover_plots import cutover_figure
from draftcast.scenarios.show.cutover_report import contour_lines, detail_lines, headline
from draftcast.scenarios.show.recommend_report import answer_line, paste_lines, remark
from draftcast.scenarios.show.roofline_plot import roofline_figure
from draftcast.scenarios.show.run_plots import on_page
from draftcast.scenarios.show.tables import show, title

# Of one map on a page: enough for every row to know its capacity on a large device.
MAP_REQUESTS = 900_000
MAP_ACCEPTANCES = (0.1, 0.3, 0.5, 0.7, 0.9)
AXIS_WORDS = {
    "rate": "request rate",
    "concurrency": "concurrent clients",
    "batch": "static batch",
    "context": "prompt length",
    "acceptance": "acceptance",
}


def render(session: Session) -> None:
    """The crossing, the recommended setting, maps, roofline, footer."""
    top = st.container(key="answer-badge")
    scenario = session.question.scenario
    try:
        (own,) = answers([scenario], simulating)
    except InputError as error:
        cannot_run(session, error)
        return
    with top:
        badge(session, fidelity([own.run.summary["figures"]]))
    found = _Found()
    if scenario.speculative_config is None:
        st.info("Speculation is off: choose a method on What-if to see where it pays.", icon=":material/tune:")
    else:
        over, metric = _choices(session)
        _crossing(session, own, over, metric, found)
        _setting(session, own, metric, found)
        _maps(session, own, over, metric, found)
    _roofline(own, found)
    options = ["--over", found.over, "--metric", found.metric] if found.over else []
    command = session.question.command("cutover" if options else "simulate", *options)
    footer(run_facts(own), command, _exports(own, found))


class _Found:
    """What the page came to show, for the files to take away."""

    def __init__(self) -> None:
        self.over = self.metric = ""
        self.cutover: Cutover | None = None
        self.setting: Recommendation | None = None
        self.maps: list[SpeedupMap] = []
        self.pictures: list[Any] = []
        self.lines: list[str] = []


def _choices(session: Session) -> tuple[str, str]:
    metrics = [name for name in METRICS if name != "slo_goodput" or slos(session.question.scenario)]
    with st.container(horizontal=True):
        over = _choice(session, "Over", CUTOVER_OVER, list(AXES), AXIS_WORDS, "What the cutover is looked for over.")
        words = {name: METRICS[name].label for name in metrics}
        metric = _choice(session, "Compared by", CUTOVER_METRIC, metrics, words, "What speculation is to improve.")
    return over, metric


def _choice(
    session: Session, label: str, view: str, options: Sequence[str], words: Mapping[str, str], explained: str
) -> str:
    first = "rate" if view == CUTOVER_OVER else "e2e"
    chosen = session.view(view, first, options)
    st.session_state[view] = chosen
    st.selectbox(
        label,
        options,
        key=view,
        format_func=lambda name: words[name],
        help=explained,
        width=250,
        on_change=lambda: session.see(view, st.session_state[view], first),
    )
    return chosen


def _question(own: Answer, *more: str) -> str:
    return " ".join([own.hash, *more])


def _crossing(session: Session, own: Answer, over: str, metric: str, found: _Found) -> None:
    st.subheader("Advantage of speculation", anchor="advantage")
    found.over, found.metric = over, metric
    question = _question(own, "cutover", over, metric)
    if not asked_for(
        session,
        CUTOVER_ASKED,
        question,
        "Find the cutover",
        "Simulates both sides where it matters, up to 600,000 requests: some ten seconds.",
    ):
        st.caption(f"Looks for where speculation stops paying over the {AXIS_WORDS[over]}.")
        return
    try:
        (result,) = long_answer(
            (*question_key(own.scenario), "cutover", over, metric),
            "Looking for the cutover",
            lambda progress: cutover(own.scenario, over=over, metric=metric, progress=progress),
        )
        drawn = on_page(cutover_figure([result]), height=420)
    except InputError as error:
        st.warning(literal(short_error(error)), icon=":material/block:")
        return
    found.cutover = result
    said = headline(result)
    tone = {"crosses": "", "always pays": "dc-better", "never pays": "dc-worse"}.get(result.verdict, "")
    st.html(f"<p class='dc-verdict {tone}' data-verdict='{result.verdict}'>{escape(said)}</p>")
    figure(
        "advantage",
        drawn,
        "Without speculation over with it: above the dashed line it pays. Band: interval of the paired replications. "
        "Triangles: one side is overloaded, so only the sign is known. Shaded: where it crosses, with its interval.",
        "Advantage of speculation against the load with its band, and where it crosses one.",
    )
    found.pictures.append(drawn)
    details = detail_lines(result)
    found.lines += [said, *details]
    st.caption("  \n".join(map(literal, details)))


def _setting(session: Session, own: Answer, metric: str, found: _Found) -> None:
    st.subheader("Recommended setting", anchor="setting")
    try:
        result = long_answer(
            (*question_key(own.scenario), "recommend", metric),
            "Trying settings at this load",
            lambda progress: recommend(own.scenario, metric=metric, progress=progress),
        )
    except InputError as error:
        st.warning(literal(short_error(error)), icon=":material/block:")
        return
    found.setting = result
    said = answer_line(result)
    found.lines.append(said)
    st.html(
        f"<p class='dc-verdict' data-setting='{escape(result.chosen.candidate.label, quote=True)}'>{escape(said)}</p>"
    )
    rows = [
        (
            outcome.candidate.label,
            f"{show(outcome.gain)} x" if outcome.gain is not None else "–",
            remark(result, outcome),
        )
        for outcome in result.outcomes
    ]
    left, right = st.columns([2, 3])
    with left:
        st.html(html_table(("setting", "gain over off", ""), rows, facts=True, name="Settings tried"))
    with right:
        st.caption("To paste; JSON of the setting, then the whole command")
        st.code(paste_lines(result, "vllm"), language="bash", wrap_lines=True)


def _maps(session: Session, own: Answer, over: str, metric: str, found: _Found) -> None:
    st.subheader("Speed-up maps", anchor="maps")
    load = AXIS_WORDS[over]
    for column, against, view in zip(
        st.columns(2), ("k", "acceptance"), (MAP_K_ASKED, MAP_ACCEPTANCE_ASKED), strict=True
    ):
        words = "draft tokens k" if against == "k" else "acceptance"
        with column:
            if against == over:
                st.caption("Over the acceptance itself there is no map against it.")
                continue
            if not asked_for(
                session,
                view,
                _question(own, "map", against, over, metric),
                f"Map {load} against {words}",
                "Simulates both sides of every cell, up to 900,000 requests: some twenty seconds.",
            ):
                continue
            _map(own, over, metric, against, found)


def _map(own: Answer, over: str, metric: str, against: str, found: _Found) -> None:
    try:
        result = long_answer(
            (*question_key(own.scenario), "map", against, over, metric),
            "Drawing the map",
            lambda progress: speedup_map(
                own.scenario,
                against=against,
                over=over,
                metric=metric,
                values=MAP_ACCEPTANCES if against == "acceptance" else (),
                budget_requests=MAP_REQUESTS,
                progress=progress,
            ),
        )
    except InputError as error:
        st.warning(literal(short_error(error)), icon=":material/block:")
        return
    drawn = on_page(map_figure(result), height=380)
    drawn.update_yaxes(rangemode="normal", tickvals=result.ys)
    found.maps.append(result)
    found.pictures.append(drawn)
    figure(
        f"map-{against}",
        drawn,
        f"Advantage in {result.metric.label}; * its interval excludes 1; line: break-even with its interval; "
        "?: neither side settles.",
        f"Map of the advantage by load and {against}, with the break-even line.",
    )
    with st.expander("Break-even in numbers"):
        st.caption("  \n".join(map(literal, contour_lines(result))))


def _roofline(own: Answer, found: _Found) -> None:
    st.subheader("Where a decode step stands under the roofline", anchor="roofline")
    drawn = roofline_figure(
        ceilings(own.scenario, own.deployment), operating_tracks(own.scenario, own.deployment, own.run)
    )
    found.pictures.append(drawn)
    figure(
        "roofline",
        drawn,
        "The target's pass of one decode step at k = 0 to 7 draft tokens a request, for one request, the mean batch of "
        "this load and as many as fit. More drafts verify more rows over the same weights: the point moves right, "
        "almost free under the slope, at full price under the flat roof.",
        "Roofline of the device with the operating points of k from 0 to 7 for three batch sizes.",
    )


def _exports(own: Answer, found: _Found) -> Exports:
    def rows() -> pd.DataFrame:
        if found.cutover is None:
            return own.run.requests
        confidence = found.cutover.crossing.confidence
        points = []
        for probe in found.cutover.probes:
            value = probe.advantage(confidence)
            bounds = {name: getattr(value, name, None) for name in ("mean", "low", "high")}
            points.append({"x": probe.x, **bounds, "sign": probe.sign(confidence), "note": probe.note})
        return pd.DataFrame(points)

    def summary() -> dict[str, Any]:
        return {
            "cutovers": [found.cutover.summary()] if found.cutover is not None else [],
            "recommendation": found.setting.summary() if found.setting is not None else None,
            "maps": [each.summary() for each in found.maps],
        }

    return Exports(
        name=f"draftcast-cutover-{own.hash[:12]}",
        rows=rows,
        summary=summary,
        scenario=own.scenario,
        title=title(own.scenario),
        lines=found.lines,
        tables=lambda: {"Advantage": rows()} if found.cutover is not None else {},
        figures=lambda: found.pictures,
    )
