"""What pages have in common: notes on top, the answer in a sentence, tables as HTML, and what stands below."""

import hashlib
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from html import escape
from typing import Any, TypeVar

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from draftcast import __version__
from draftcast.dashboards.session.answers import SimulateAnswer
from draftcast.dashboards.session.session import ScenarioPair, Session, View, literal, short, token
from draftcast.dashboards.session.uploads import trace_notes
from draftcast.dashboards.widgets.controls import WORDS, button
from draftcast.errors import InputError
from draftcast.scenarios.compare.slo_answer import BOUNDS
from draftcast.scenarios.run.coverage import fidelity
from draftcast.scenarios.run.kept import AnswerCache
from draftcast.scenarios.schema.load import dump_scenario
from draftcast.scenarios.show.run_report import LATENCIES, colour_of, latency_figure
from draftcast.scenarios.show.tables import MISSED, Rows, html_report, json_bytes
from draftcast.sim.statistics.intervals import Estimate
from draftcast.yaml_text import yaml_beside

T = TypeVar("T")
LONG: AnswerCache[Any] = AnswerCache(96)  # what `long_answer` has, by its key
# The bar of plotly's buttons cannot be reached by keyboard; the downloads below hold what it offers.
CONFIG = {"displayModeBar": False, "responsive": True}
PICTURES: dict[str, dict[str, str]] = yaml_beside(__file__, "pictures.yaml")
"""Caption (which may be missing) and description of every picture, with places for words of the page."""


def banner(session: Session) -> None:
    """What a link asked for and did not get, a change that was refused, and what is cut of a trace."""
    for warning in session.warnings:
        st.warning(literal(warning), icon=":material/link_off:")
    if session.refused:
        st.error(f"Not changed: {literal(session.refused)}", icon=":material/block:")
    for note in trace_notes(session.question.scenario):
        st.warning(literal(note), icon=":material/content_cut:")


def cannot_run(session: Session, error: InputError, question: ScenarioPair | None = None, name: str = "This") -> None:
    """In place of an answer to ``question`` (None: that of the page), by its ``name``: why there is none."""
    if missing := session.missing_of(question or session.question):
        upload_again(" and ".join(missing), session.page)
    else:
        st.error(f"{name} cannot be simulated: {literal(error)}", icon=":material/error:")


def upload_again(name: str, page: str = "start") -> None:
    """A link or a scenario named a file that this session does not have; ``page``: which asks for it."""
    where = "" if page == "start" else " on Start"
    text = f"Upload {literal(name)}{where}: neither a link nor a scenario carries files."
    st.error(text, icon=":material/upload_file:")


def long_answer(key: Hashable, text: str, make: Callable[..., T]) -> T:
    """What ``make`` gives, or gave for the same key in any session; ``text`` stands over a bar while it works.

    ``make`` takes a `Progress` named so. A change of any control ends it and begins anew.
    """

    def under_bar() -> T:
        bar = st.progress(0.0, text=text)

        def progress(share: float) -> None:
            bar.progress(min(share, 1.0), text=text)

        try:
            return make(progress=progress)
        finally:
            bar.empty()

    result: T = LONG.get(key, under_bar)
    return result


_beside = ThreadPoolExecutor(1, "beside-page")
_running: dict[Hashable, Future[Any]] = {}
_asked_at: dict[Hashable, dict[int, float]] = {}  # when each session asked last for a key that is worked on
_PATIENCE_S = 6.0


def look_away(session: Session, key: Hashable) -> None:
    """The session asks for ``key`` alone: other work that nobody asks for ends and leaves the processor to the page."""
    for other, times_s in list(_asked_at.items()):
        if other != key:
            times_s.pop(id(session), None)


def beside_page(session: Session, key: Hashable, make: Callable[..., T]) -> T | None:
    """What `long_answer` has for ``key``, else None, and ``make`` works on it in a thread for all sessions together.

    It goes on as long as somebody asks again within `_PATIENCE_S`. Raises what ``make`` raised.
    """
    answer: T | None = LONG.known(key)
    if answer is not None:
        return answer
    _asked_at.setdefault(key, {})[id(session)] = time.monotonic()
    future = _running.get(key)
    if future is None or (future.done() and isinstance(future.exception(), CancelledError)):

        def progress(_share: float) -> None:
            if time.monotonic() - max(_asked_at[key].copy().values(), default=0.0) > _PATIENCE_S:
                raise CancelledError  # no page asks for it any more

        _running[key] = _beside.submit(LONG.get, key, partial(make, progress=progress))
    elif future.done():
        del _running[key], _asked_at[key]
        future.result()
    return None


def asked_for(session: Session, view: View, question: str, label: str, help: str) -> bool:
    """Whether ``question``, which takes long, was asked for; a button to do so where it was not.

    The link holds what was asked for as a hash of everything the answer depends on.
    """
    digits = hashlib.sha256(question.encode()).hexdigest()[:12]
    if session.view(view, "", token) == digits:
        return True
    button(label, "play_arrow", session.see, view, digits, key=f"ask-{view}", help=help)
    return False


def verdict_line(text: str, *, bold: int = 0, tone: str = "", why: str = "", **data: object) -> None:
    """The page's answer in a sentence, its first ``bold`` characters standing out, and a second, quieter one.

    ``tone``, ``better`` or ``worse``, colours what is bold, or all; ``data`` is for those who read the page by program.
    """
    attributes = "".join(f" data-{name}='{escape(str(value))}'" for name, value in data.items())
    head = f"<b class='{tone and f'dc-{tone}'}'>{escape(text[:bold])}</b>" if bold else ""
    style = "dc-verdict" if bold or not tone else f"dc-verdict dc-{tone}"
    below = f"<p class='dc-why'>{escape(why)}</p>" if why else ""
    st.html(f"<p class='{style}'{attributes}>{head}{escape(text[bold:])}</p>{below}")


class Html(str):
    """A whole cell of a table, HTML already."""


def link(text: str, href: str, hint: str) -> Html:
    """A cell that leads somewhere; ``hint`` says where for those who cannot see the table."""
    target = f"href='{escape(href)}' target='_blank' rel='noopener' title='{escape(hint)}'"
    return Html(f"<td><a {target}>{escape(text)}</a></td>")


def html_table(head: Sequence[str], rows: Rows, *, look: str = "", name: str, marked: Sequence[int] = ()) -> str:
    """A scrolling table; ``marked``: rows that stand out, as cells that hold `MISSED` do. An empty head is left out.

    ``look``: ``facts`` (text to the left), ``cells`` (long text wraps), ``remarks`` (of the last column), ``compare``.
    """
    heads = "".join(cell if isinstance(cell, Html) else f"<th scope='col'>{escape(cell)}</th>" for cell in head)
    body = ""
    for index, row in enumerate(rows):
        mark = " aria-current='true'" if index in marked else ""
        body += f"<tr{mark}>{''.join(map(_cell, row))}</tr>"
    top = f"<thead><tr>{heads}</tr></thead>" if any(head) else ""
    looks = f"dc-table dc-{look}" if look else "dc-table"
    return (
        f"<div class='{looks}' tabindex='0' role='region' aria-label='{escape(name)}'><table>{top}"
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(cell: str) -> str:
    if isinstance(cell, Html):
        return cell
    return f"<td><b class='dc-worse'>{escape(cell)}</b></td>" if MISSED in cell else f"<td>{escape(cell)}</td>"


@dataclass
class Report:
    """What a page shows; ``title``, ``lines``, ``tables`` and ``figures``, gathered meanwhile, make the HTML file."""

    session: Session
    top: DeltaGenerator  # place of the badge, above all else
    answer: Sequence[DeltaGenerator] = ()  # places of the verdict card and of the picture beside it
    title: str = ""
    lines: list[str] = field(default_factory=list)
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    figures: list[Any] = field(default_factory=list)

    def badge(self, runs: Sequence[Mapping[str, Estimate]]) -> None:
        """Where the device time of runs comes from, by their figures: the worst share; it leads to the coverage map."""
        origin = fidelity(runs)
        if origin is None:
            return
        shares = ", ".join(f"{share:.0%} {word}" for word, share in origin.shares.items())
        with self.top, st.container(key=f"badge-{origin.word}"):
            help = f"Where the device time of this result comes from: {shares}. Opens the profile's coverage map."
            icon = WORDS["icons"][origin.word]
            button(str(origin), icon, self.session.go, "trust", key="badge", type="tertiary", help=help)

    def figure(self, name: str, picture: Any, on_click: Callable[[], None] | None = None, **words: object) -> None:
        """Draw one of `PICTURES` with ``words`` in its texts; ``on_click``: a marker was clicked (`clicked`)."""
        self.figures.append(picture)
        texts = {part: text.format(**words) for part, text in PICTURES[name].items()}
        select: dict[str, Any] = {"on_select": on_click or "ignore", "selection_mode": "points"}
        st.plotly_chart(picture, key=name, config=CONFIG, theme="streamlit", alt=texts["alt"], **select)
        if "caption" in texts:
            st.caption(texts["caption"])

    def latencies(self, runs: Mapping[str, pd.DataFrame], colours: Mapping[str, str] | None = None) -> None:
        """Draw the distributions of the latencies of runs, given as requests, with the SLO's bounds."""
        slo = self.session.question.scenario.slo
        bounds = {key: getattr(slo, key) for key in BOUNDS} if slo is not None else {}
        colours = colours or {name: colour_of(name, list(runs)) for name in runs}
        st.subheader("Latency distribution")
        names = "".join(f"<span><b style='color:{colours[name]}'>●</b> {escape(name)}</span>" for name in runs)
        st.html(f"<div class='dc-legend'>{names}</div>")
        # A picture each: on a narrow page they stand below each other.
        with st.container(key="latency"):
            for column, latency in zip(st.columns(len(LATENCIES)), LATENCIES, strict=True):
                with column:
                    self.figure(f"latency-{latency[0]}", latency_figure(runs, bounds, colours, [latency]))
        dotted = "; dotted: the SLO" if any(bounds.values()) else ""
        st.caption(f"Share of requests that are at least this fast, all replications together{dotted}.")

    def footer(self, run: str, command: str, answer: SimulateAnswer | None = None) -> None:
        """The facts in one line, with the hash ``run`` of all that the page depends on, and the command to copy."""
        statistics = self.session.question.scenario.statistics
        facts = {"run": run[:12], "seed": statistics.seed, "replications": statistics.replications}
        if answer is None:
            facts["warm-up cut"] = "calculated for each run" if statistics.warmup == "auto" else "none"
        else:
            cuts = sorted(set(answer.run.summary["warmup_requests"]))
            facts["warm-up cut"] = f"{' to '.join(str(cut) for cut in dict.fromkeys((cuts[0], cuts[-1])))} requests"
            facts["profile"] = answer.run.summary["profile"]
        facts["draftcast"] = __version__
        st.divider()
        shown = "".join(f"<span>{escape(name)} <code>{escape(str(fact))}</code></span>" for name, fact in facts.items())
        st.html(f"<div class='dc-footer'>{shown}</div>")
        st.caption("The same from a shell")
        st.code(command, language="bash", wrap_lines=True)

    def downloads(self, name: str, rows: Callable[[], pd.DataFrame], summary: Callable[[], Mapping[str, Any]]) -> None:
        """The files to take away, ``rows`` as CSV and Parquet; each is made only when it is asked for.

        An uploaded file is named by its own name: where it lies beside the scenario, that is opened as it is.
        """
        scenario, report = self.session.question.scenario, (self.title, self.lines, self.tables, self.figures)
        files: dict[str, tuple[str, str, Callable[[], bytes]]] = {
            "CSV": ("csv", "text/csv", lambda: rows().to_csv(index=False).encode()),
            "Parquet": ("parquet", "application/octet-stream", lambda: rows().to_parquet(index=False)),
            "JSON": ("json", "application/json", lambda: short(json_bytes(summary()).decode()).encode()),
            "Scenario YAML": ("yaml", "text/yaml", lambda: short(dump_scenario(scenario)).encode()),
            "HTML report": ("html", "text/html", lambda: short(html_report(*report)).encode()),
        }
        with st.container(horizontal=True, key="exports"):
            for label, (suffix, mime, make) in files.items():
                file: dict[str, Any] = {"file_name": f"{name}.{suffix}", "mime": mime, "key": f"export-{suffix}"}
                st.download_button(label, make, **file, on_click="ignore", icon=":material/download:")


def clicked(name: str) -> Any:
    """``customdata`` of the marker that was clicked in the picture ``name``; None where none was."""
    state = st.session_state.get(name)
    points = state["selection"]["points"] if state else []
    data = points[0].get("customdata") if points else None
    return data[0] if isinstance(data, list) else data
