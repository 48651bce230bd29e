"""Pictures of single runs: latency distribution, what happens over time, where a request's time goes (plotly).

One palette for all pictures of the dashboard: a colour means the same thing everywhere and reads on light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from draftcast.scenarios.simulate import RunResult
from draftcast.scenarios.timeline import Timeline
from draftcast.sim.request_columns import RequestColumns
from draftcast.sim.statistics import Estimate

ON, OFF, BASELINE, LIMIT = "#1098ad", "#868e96", "#e8890c", "#e03131"
SERIES = ("#1098ad", "#e8890c", "#7048e8", "#2f9e44", "#d6336c", "#868e96")
PARTS = {
    "queue": "#868e96",
    "prefill": "#4c6ef5",
    "draft": "#be4bdb",
    "verify": "#12b886",
    "rejected": "#fa5252",
    "host": "#f59f00",
    "kv_pressure": "#5c3d2e",
}
LATENCIES = (("ttft", "TTFT, ms", 1e3), ("tpot", "TPOT, ms", 1e3), ("e2el", "E2E latency, s", 1.0))
POINTS = 121
SHOWN = 0.995


def styled(figure: Any, *, height: int, legend: bool = True) -> Any:
    """The look all pictures share: no frame, tight margins, the legend above."""
    figure.update_layout(
        height=height,
        margin={"l": 8, "r": 8, "t": 44 if legend else 24, "b": 8},
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        showlegend=legend,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        hovermode="closest",
    )
    figure.update_xaxes(automargin=True)
    figure.update_yaxes(automargin=True, rangemode="tozero")
    return figure


def on_page(figure: Any, *, height: int) -> Any:
    """A picture made for a file, as the pages show pictures: their template, their size, no title of its own."""
    import plotly.io

    figure.update_layout(template=plotly.io.templates.default, title=None, width=None)
    return styled(figure, height=height)


def latency_figure(
    runs: Mapping[str, pd.DataFrame],
    limits_ms: Mapping[str, float | None],
    colours: Mapping[str, str] | None = None,
) -> Any:
    """Cumulative share of requests by TTFT, TPOT and E2E latency, one line a run.

    Args:
        runs: requests by name of the run, see `measured_requests`; at most as many runs as `SERIES`; the one named
            ``SD off`` is grey.
        limits_ms: the SLO's ``ttft_ms``, ``tpot_ms``, ``e2el_ms`` where it has them.
        colours: of the runs; `colour_of` where None.
    """
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=1, cols=3, shared_yaxes=True, horizontal_spacing=0.03)
    shares = np.linspace(0.0, 1.0, POINTS)
    colours = colours or {name: colour_of(name, list(runs)) for name in runs}
    longest = dict.fromkeys((latency for latency, _, _ in LATENCIES), 0.0)
    for name, requests in runs.items():
        columns = RequestColumns.of(requests)
        for col, (latency, _, scale) in enumerate(LATENCIES, start=1):
            values = getattr(columns, f"{latency}_s")
            values = values[np.isfinite(values)]
            if values.size:
                longest[latency] = max(longest[latency], scale * float(np.quantile(values, SHOWN)))
            figure.add_scatter(
                x=(np.quantile(values, shares) * scale).round(6) if values.size else [],
                y=100 * shares,
                mode="lines",
                line={"color": colours[name], "width": 2.2},
                name=name,
                legendgroup=name,
                showlegend=col == 1,
                hovertemplate="%{y:.0f} % of requests within %{x:.3g}<extra>" + name + "</extra>",
                row=1,
                col=col,
            )
    for col, (latency, title, scale) in enumerate(LATENCIES, start=1):
        # The last requests of a long tail would squeeze all others against the axis.
        figure.update_xaxes(title_text=title, range=[0, 1.05 * longest[latency] or 1], row=1, col=col)
        limit = limits_ms.get(f"{latency}_ms")
        if limit is not None:
            figure.add_vline(x=limit * scale / 1e3, line={"color": LIMIT, "dash": "dot", "width": 1.5}, row=1, col=col)
    figure.update_yaxes(title_text="requests, %", row=1, col=1)
    return styled(figure, height=300)


def timeline_figure(shown: Timeline) -> Any:
    """Waiting and running requests, and the KV cache's use where it was recorded."""
    from plotly.subplots import make_subplots

    rows = 3 if shown.kv_usage is not None else 2
    figure = make_subplots(rows=rows, cols=1, shared_xaxes=True, vertical_spacing=0.06)
    panels: list[tuple[str, Any, str, str]] = [
        ("waiting", shown.waiting, PARTS["queue"], "requests"),
        ("running", shown.running, ON, "requests"),
    ]
    if shown.kv_usage is not None:
        panels.append(("KV cache", 100 * shown.kv_usage, PARTS["prefill"], "%"))
    for row, (name, values, colour, unit) in enumerate(panels, start=1):
        figure.add_scatter(
            x=shown.time_s.round(3),
            y=np.asarray(values).round(4),
            mode="lines",
            line={"color": colour, "width": 1.6},
            fill="tozeroy",
            name=name,
            hovertemplate="%{y:.3g} " + unit + " at %{x:.1f} s<extra>" + name + "</extra>",
            row=row,
            col=1,
        )
        figure.update_yaxes(title_text=f"{name}, %" if unit == "%" else name, row=row, col=1)
    figure.update_xaxes(title_text="time, s", row=rows, col=1)
    return styled(figure, height=110 * rows + 40, legend=False)


def time_figure(runs: Mapping[str, RunResult]) -> Any:
    """Where a mean request's time goes: stacked seconds by part, one bar a run."""
    import plotly.graph_objects as go

    figure = go.Figure()
    names = list(runs)[::-1]
    for part, colour in PARTS.items():
        seconds = [runs[name].summary["figures"][f"mean_time_{part}_s"].mean for name in names]
        figure.add_bar(
            y=names,
            x=[round(value, 6) for value in seconds],
            orientation="h",
            name=part.replace("kv_pressure", "KV pressure"),
            marker={"color": colour},
            hovertemplate="%{x:.3g} s<extra>" + part.replace("_", " ") + "</extra>",
        )
    figure.update_layout(barmode="stack", legend={"traceorder": "normal"})
    figure.update_xaxes(title_text="seconds of a mean request")
    return styled(figure, height=150 + 44 * len(names))


def colour_of(name: str, names: Sequence[str]) -> str:
    """The same run has the same colour in every picture."""
    known = {"SD off": OFF, "baseline": BASELINE}
    return known.get(name, SERIES[list(names).index(name) % len(SERIES)])


def ratio_figure(rows: Mapping[str, Sequence[tuple[str, Estimate | None]]], colours: Mapping[str, str]) -> Any:
    """How many times as large each figure is in a run as in the reference, with its paired interval.

    Args:
        rows: by run, the ratio of each figure by its label; None where it has none.
        colours: of the runs.
    """
    import plotly.graph_objects as go

    figure = go.Figure()
    for name, ratios in rows.items():
        known = [(label, ratio) for label, ratio in ratios if ratio is not None and math.isfinite(ratio.mean)]
        halves = [ratio.half_width if math.isfinite(ratio.half_width) else 0.0 for _, ratio in known]
        figure.add_scatter(
            x=[round(ratio.mean, 6) for _, ratio in known],
            y=[label for label, _ in known],
            error_x={"type": "data", "array": halves, "thickness": 1.4, "width": 5},
            mode="markers",
            marker={"color": colours[name], "size": 9},
            name=name,
            hovertemplate="%{y}: %{x:.3f} times the reference<extra>" + name + "</extra>",
        )
    figure.add_vline(x=1.0, line={"color": OFF, "dash": "dash", "width": 1.5})
    figure.update_layout(scattermode="group", scattergap=0.35)
    figure.update_xaxes(title_text="times the reference")
    figure.update_yaxes(type="category", autorange="reversed")
    labels = max((len(ratios) for ratios in rows.values()), default=0)
    shown = styled(figure, height=130 + labels * max(26, 15 * len(rows)))
    shown.update_yaxes(rangemode="normal")
    return shown
