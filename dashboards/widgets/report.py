"""A page's answer: gathered while it is drawn, for the files below the page.

Under every page stand what was run, how to run it again from a shell, and the files to take away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

import streamlit as st

from draftcast import __version__
from draftcast.dashboards.session.answers import Answer
from draftcast.dashboards.session.session import Session
from draftcast.dashboards.widgets.controls import button
from draftcast.scenarios.compare.slo_answer import BOUNDS
from draftcast.scenarios.run.fidelity import fidelity
from draftcast.scenarios.schema.load import dump_scenario
from draftcast.scenarios.show.exports import html_report, json_bytes
from draftcast.scenarios.show.run_plots import latency_figure
from draftcast.sim.statistics.intervals import Estimate

if TYPE_CHECKING:
    import pandas as pd
    from streamlit.delta_generator import DeltaGenerator

# The bar of plotly's buttons cannot be reached by keyboard; the downloads below hold what it offers.
CONFIG = {"displayModeBar": False, "responsive": True}
ICONS = {"measured": "verified", "interpolated": "linear_scale", "extrapolated": "warning"}


@dataclass
class Report:
    """What a page shows; ``title``, ``lines``, ``tables`` and ``figures`` are those of the HTML file."""

    session: Session
    top: DeltaGenerator  # place of the badge, above all else
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
            button(str(origin), ICONS[origin.word], self.session.go, "trust", key="badge", type="tertiary", help=help)

    def figure(
        self, name: str, picture: Any, caption: str, alt: str, on_click: Callable[[], None] | None = None
    ) -> None:
        """Draw a picture with its caption; ``on_click`` is called when a marker was clicked, `clicked` tells which."""
        self.figures.append(picture)
        select: dict[str, Any] = {"on_select": on_click or "ignore", "selection_mode": "points"}
        st.plotly_chart(picture, key=name, config=CONFIG, theme="streamlit", alt=alt, **select)
        if caption:
            st.caption(caption)

    def latencies(self, runs: Mapping[str, pd.DataFrame], colours: Mapping[str, str] | None = None) -> None:
        """Draw the distributions of the latencies of runs, given as requests, with the SLO's bounds."""
        slo = self.session.question.scenario.slo
        bounds = {key: getattr(slo, key) for key in BOUNDS} if slo is not None else {}
        st.subheader("Latency distribution")
        self.figure(
            "latency",
            latency_figure(runs, bounds, colours),
            "Share of requests that are at least this fast, all replications together; dotted: the SLO's bounds.",
            "Cumulative distribution of TTFT, TPOT and end-to-end latency for each run.",
        )

    def footer(self, run: str, command: str, answer: Answer | None = None) -> None:
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
        st.html(f"<div class='dc-footer' role='contentinfo'>{shown}</div>")
        st.caption("The same from a shell")
        st.code(command, language="bash", wrap_lines=True)

    def downloads(self, name: str, rows: Callable[[], pd.DataFrame], summary: Callable[[], Mapping[str, Any]]) -> None:
        """The files to take away, ``rows`` as CSV and Parquet; each is made only when it is asked for."""
        scenario = self.session.question.scenario

        def html() -> bytes:
            return html_report(self.title, self.lines, self.tables, self.figures).encode()

        files: dict[str, tuple[str, str, Callable[[], bytes]]] = {
            "CSV": ("csv", "text/csv", lambda: rows().to_csv(index=False).encode()),
            "Parquet": ("parquet", "application/octet-stream", lambda: rows().to_parquet(index=False)),
            "JSON": ("json", "application/json", lambda: json_bytes(summary())),
            "Scenario YAML": ("yaml", "text/yaml", lambda: dump_scenario(scenario).encode()),
            "HTML report": ("html", "text/html", html),
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
