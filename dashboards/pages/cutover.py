"""Cutover: where speculation stops paying, which setting to give the engine, and why it is so."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from draftcast.dashboards.session.answers import SimulateAnswer, answers, question_key
from draftcast.dashboards.session.session import Session, View, literal
from draftcast.dashboards.widgets.controls import WORDS, view_choice
from draftcast.dashboards.widgets.page import Report, asked_for, html_table, long_answer, verdict_line
from draftcast.errors import InputError
from draftcast.scenarios.compare.limits import operating_tracks
from draftcast.scenarios.compare.metric import METRICS
from draftcast.scenarios.compare.recommend import recommend
from draftcast.scenarios.cutover.axis import AXES
from draftcast.scenarios.cutover.map import speedup_map
from draftcast.scenarios.cutover.search import Cutover, CutoverQuestion, cutover
from draftcast.scenarios.show.cutover_report import contour_lines, cutover_figure, detail_lines, headline, map_figure
from draftcast.scenarios.show.device_plots import roofline_figure
from draftcast.scenarios.show.plots import on_page
from draftcast.scenarios.show.recommend_report import answer_line, paste_lines, remark
from draftcast.scenarios.show.tables import show, title

MAP_REQUESTS = 900_000  # of one map on a page: enough for every row to know its capacity on a large device
MAP_ACCEPTANCES = (0.1, 0.3, 0.5, 0.7, 0.9)
AXIS_WORDS = WORDS["axes"]


def render(session: Session, report: Report) -> None:
    (current,) = answers(session.question.scenario)
    report.badge([current.run.summary["figures"]])
    report.title = title(current.scenario)
    page = _Page(session, report, current)
    commands = [session.question.command("simulate")]
    if current.scenario.speculative_config is None:
        st.info("Speculation is off: choose a method on What-if to see where it pays.", icon=":material/tune:")
    else:
        page.choices()
        for part in (page.crossing, page.setting, page.maps):
            with _refusal_shown():
                part()
        commands = [page.command(), *page.more_commands]
    st.subheader("Where a decode step stands under the roofline", anchor="roofline")
    tracks = operating_tracks(current.scenario, current.deployment, current.run)
    device, dtype = current.deployment.profile.hardware, current.scenario.engine.weight_dtype
    report.figure("roofline", roofline_figure(device, dtype, tracks))
    report.footer(current.hash, "\n".join(commands), current)
    report.downloads(f"draftcast-cutover-{current.hash[:12]}", page.rows, lambda: page.summary)


class _Page:
    """The parts of the page that are about one way of comparing: along ``over``, judged by ``metric``."""

    def __init__(self, session: Session, report: Report, current: SimulateAnswer) -> None:
        self.session, self.report, self.current = session, report, current
        self.key = question_key(current.scenario)
        self.over = self.metric = ""
        self.cutover: Cutover | None = None
        self.more_commands: list[str] = []
        self.summary: dict[str, Any] = {"cutovers": [], "recommendation": None, "maps": []}

    def command(self, *options: str) -> str:
        return self.session.question.command("cutover", "--over", self.over, "--metric", self.metric, *options)

    def choices(self) -> None:
        labels = {name: metric.label for name, metric in METRICS.items()}
        metrics = [name for name in METRICS if name != "slo_goodput" or self.current.scenario.slos]
        with st.container(horizontal=True):
            self.over = view_choice(self.session, View.CUTOVER_OVER, list(AXES), words=AXIS_WORDS.__getitem__)
            self.metric = view_choice(self.session, View.CUTOVER_METRIC, metrics, words=labels.__getitem__)

    def crossing(self) -> None:
        st.subheader("Advantage of speculation", anchor="advantage")
        words = ("cutover", self.over, self.metric)
        asked = " ".join([self.current.hash, *words])
        if not asked_for(self.session, View.CUTOVER_ASKED, asked, "Find the cutover", WORDS["help"]["cutover"]):
            st.caption(f"Searches for the {AXIS_WORDS[self.over]} at which speculation stops paying.")
            return
        question = CutoverQuestion(self.current.scenario, self.over, self.metric)
        (result,) = long_answer((*self.key, *words), "Searching for the cutover", partial(cutover, question))
        text, details = headline(result), detail_lines(result)
        tone = {"always pays": "better", "never pays": "worse"}.get(result.verdict, "")
        verdict_line(text, tone=tone, verdict=result.verdict)
        self.report.figure("advantage", on_page(cutover_figure([result]), height=420))
        st.caption("  \n".join(map(literal, details)))
        self.cutover = result
        self.summary["cutovers"] = [result.summary()]
        self.report.lines += [text, *details]
        self.report.tables["Advantage"] = self.rows()

    def rows(self) -> pd.DataFrame:
        """The points of the search; without one the requests of the run."""
        if self.cutover is None:
            return self.current.run.requests
        points = []
        for probe in self.cutover.probes:
            value = probe.advantage(self.cutover.crossing.confidence)
            bounds = {name: getattr(value, name, None) for name in ("mean", "low", "high")}
            points.append({"x": probe.x, **bounds, "sign": self.cutover.sign(probe), "note": probe.note})
        return pd.DataFrame(points)

    def setting(self) -> None:
        st.subheader("Recommended setting", anchor="setting")
        key, make = (*self.key, "recommend", self.metric), partial(recommend, self.current.scenario, metric=self.metric)
        result = long_answer(key, "Trying settings at this load", make)
        text = answer_line(result)
        verdict_line(text, setting=result.chosen.candidate.label)
        rows = []
        for outcome in result.outcomes:
            gain = f"{show(outcome.gain)} x" if outcome.gain is not None else "–"
            rows.append((outcome.candidate.label, gain, remark(result, outcome)))
        left, right = st.columns([2, 3])
        left.html(html_table(("setting", "gain over off", ""), rows, look="facts", name="Settings tried"))
        right.caption("To copy: the setting as JSON, then the whole command")
        right.code(paste_lines(result, "vllm"), language="bash", wrap_lines=True)
        self.report.lines.append(text)
        self.summary["recommendation"] = result.summary()
        self.more_commands.append(self.session.question.command("recommend", "--metric", self.metric))

    def maps(self) -> None:
        st.subheader("Speed-up maps", anchor="maps")
        left, right = st.columns(2)
        with left, _refusal_shown():
            self.map("k", "draft tokens k", View.MAP_K_ASKED)
        with right, _refusal_shown():
            if self.over == "acceptance":
                st.caption("There is no map against acceptance: it is the axis already.")
            else:
                self.map("acceptance", "acceptance", View.MAP_ACCEPTANCE_ASKED)

    def map(self, against: str, label: str, view: View) -> None:
        words = ("map", against, self.over, self.metric)
        asked, text = " ".join([self.current.hash, *words]), f"Map {AXIS_WORDS[self.over]} against {label}"
        if not asked_for(self.session, view, asked, text, WORDS["help"]["map"]):
            return
        question = CutoverQuestion(self.current.scenario, self.over, self.metric, budget_requests=MAP_REQUESTS)
        values = MAP_ACCEPTANCES if against == "acceptance" else ()
        make = partial(speedup_map, question, against=against, values=values)
        result = long_answer((*self.key, *words), "Drawing the map", make)
        picture = on_page(map_figure(result), height=380)
        picture.update_yaxes(rangemode="normal", tickvals=result.ys)
        self.report.figure(f"map-{against}", picture, metric=question.compared.label, against=against)
        with st.expander("Break-even in numbers"):
            st.caption("  \n".join(map(literal, contour_lines(result))))
        self.summary["maps"].append(result.summary())
        acceptances = ("--acceptance", ",".join(map(str, values))) if values else ()
        self.more_commands.append(self.command("--map", against, *acceptances, "--budget", str(MAP_REQUESTS)))


@contextmanager
def _refusal_shown() -> Iterator[None]:
    """In place of a part of the page without an answer: why there is none."""
    try:
        yield
    except InputError as error:
        st.warning(literal(error), icon=":material/block:")
