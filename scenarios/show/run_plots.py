"""Plots of runs: speculation on and off over rates, latency distribution, load over time, parts of a request's time."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from draftcast.scenarios.compare.comparison import LATENCY, TOKENS, Comparison
from draftcast.scenarios.run.simulate import RunResult
from draftcast.scenarios.run.timeline import Timeline
from draftcast.scenarios.show import plots
from draftcast.scenarios.show.plots import COLOURS, LIMIT, OFF, ON, interval_bars, means, series
from draftcast.scenarios.show.run_report import cutover_line
from draftcast.scenarios.show.tables import title
from draftcast.sim.output.results import RequestColumns
from draftcast.sim.statistics.intervals import Estimate

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
GAP = 0.03  # between panels, as a share of the picture
SHOWN = 0.995
# What is drawn while a key is pressed has fixed margins: plotly finds them by drawing the plot twice.
KNOWN_X: dict[str, Any] = {"automargin": False, "ticklabeloverflow": "allow"}
KNOWN_Y: dict[str, Any] = KNOWN_X | {"rangemode": "tozero"}
MARGIN = {"l": 64, "r": 16, "b": 48}


def comparison_figure(comparison: Comparison) -> Any:
    """Advantage against request rate with its interval and the cutover; below, latency and token goodput, off and on.

    Raises:
        InputError: fewer than two rates, or nothing compared.
    """
    points = [p for p in comparison.points if p.off is not None and p.request_rate_rps is not None]
    plots.check_points(len(points))
    titles = "Advantage: mean E2E latency off / on", "Mean E2E latency, s", "Token goodput, tokens/s"
    grid = {"specs": [[{"colspan": 2}, None], [{}, {}]], "row_heights": [0.56, 0.44]}
    figure = plots.panels(*titles, rows=2, vertical_spacing=0.16, horizontal_spacing=0.09, **grid)
    lines = [("advantage", ON, [p.advantage for p in points], (1, 1))]
    for (col, key), (side, colour) in itertools.product(((1, LATENCY), (2, TOKENS)), (("on", ON), ("off", OFF))):
        lines.append((f"SD {side}", colour, [p.figures(side).get(key) for p in points], (2, col)))
    rates = [p.request_rate_rps for p in points]
    for name, colour, values, cell in lines:
        bars = interval_bars(values, thickness=1.5, width=4)
        style = {"mode": "lines+markers", "line_width": 2.5, "error_y": bars, "showlegend": cell == (2, 1)}
        series(figure, name, colour, rates, means(values), cell=cell, **style)
    figure.add_hline(y=1.0, line=plots.BREAK_EVEN_LINE, row=1, col=1)
    cut = comparison.cutover
    if cut is not None and cut.kind == "crosses":
        (x0, x1), label = cut.gap, {"text": "cutover", "font": {"color": LIMIT}}
        figure.add_vrect(x0, x1, fillcolor=LIMIT, opacity=0.15, line_width=0, label=label, row=1, col=1)
    figure.update_xaxes(title_text="request rate, req/s")
    return plots.in_file(figure, title(comparison.scenario), [cutover_line(comparison)], height=760)


def latency_figure(
    runs: Mapping[str, pd.DataFrame],
    limits_ms: Mapping[str, float | None],
    colours: Mapping[str, str] | None = None,
    latencies: Sequence[tuple[str, str, float]] = LATENCIES,
) -> Any:
    """Cumulative share of requests by TTFT, TPOT and E2E latency, one line a run.

    Args:
        runs: requests by name of the run, see `measured_requests`; at most as many as `COLOURS`.
        limits_ms: the SLO's ``ttft_ms``, ``tpot_ms``, ``e2el_ms`` where it has them.
        colours: of the runs; `colour_of` where None.
        latencies: of `LATENCIES`, a panel each, side by side; the legend stands above where there are several.
    """
    import plotly.graph_objects as go

    shares = np.linspace(0.0, 1.0, POINTS)
    colours = colours or {name: colour_of(name, list(runs)) for name in runs}
    longest = dict.fromkeys((latency for latency, _, _ in latencies), 0.0)
    traces: list[dict[str, Any]] = []
    for name, requests in runs.items():
        columns = RequestColumns.of(requests)
        for panel, (latency, _, scale) in zip(("", "2", "3"), latencies, strict=False):
            values = getattr(columns, f"{latency}_s")
            values = values[np.isfinite(values)]
            if values.size:
                longest[latency] = max(longest[latency], scale * float(np.quantile(values, SHOWN)))
            x = (np.quantile(values, shares) * scale).round(6) if values.size else []
            line = {"name": name, "legendgroup": name, "line": {"color": colours[name], "width": 2.2}}
            hover = f"%{{y:.0f}} % of requests within %{{x:.3g}}<extra>{name}</extra>"
            place = {"xaxis": f"x{panel}", "showlegend": panel == "", "hovertemplate": hover}
            traces.append({"type": "scatter", "mode": "lines", "x": x, "y": 100 * shares} | line | place)
    layout = plots.look(height=300, legend=len(latencies) > 1)
    layout["margin"] |= MARGIN
    layout["yaxis"] = KNOWN_Y | {"title": {"text": "requests, %"}}
    limits = []
    for index, (latency, heading, scale) in enumerate(latencies):
        panel = str(index + 1) if index else ""
        # The last requests of a long tail would squeeze all others against the axis.
        top = 1.05 * longest[latency] or 1
        left = index * (1 + GAP) / len(latencies)
        domain = [left, left + (1 + GAP) / len(latencies) - GAP]
        layout[f"xaxis{panel}"] = KNOWN_X | {"domain": domain, "title": {"text": heading}, "range": [0, top]}
        if (limit := limits_ms.get(f"{latency}_ms")) is not None:
            x = limit * scale / 1e3
            across = {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "xref": f"x{panel}", "yref": "y domain"}
            limits.append(across | {"line": {"color": LIMIT, "dash": "dot", "width": 1.5}})
    # One call that checks all of it: adding traces and axes one by one takes ten times as long.
    return go.Figure({"data": traces, "layout": layout | {"shapes": limits}})


def timeline_figure(shown: Timeline) -> Any:
    """Waiting and running requests, and the KV cache's use where it was recorded."""
    import plotly.graph_objects as go

    levels: list[tuple[str, Any, str, str]] = [
        ("waiting", shown.waiting, PARTS["queue"], "requests"),
        ("running", shown.running, ON, "requests"),
    ]
    if shown.kv_usage is not None:
        levels.append(("KV cache", 100 * shown.kv_usage, PARTS["prefill"], "%"))
    rows = len(levels)
    layout = plots.look(height=110 * rows + 40, legend=False)
    layout["margin"] |= MARGIN
    layout["xaxis"] = KNOWN_X | {"anchor": f"y{rows}", "title": {"text": "time, s"}}
    traces = []
    for row, (name, values, colour, unit) in enumerate(levels):
        panel = str(row + 1) if row else ""
        hover = f"%{{y:.3g}} {unit} at %{{x:.1f}} s<extra>{name}</extra>"
        line = {"name": name, "line": {"color": colour, "width": 1.6}, "fill": "tozeroy", "hovertemplate": hover}
        place = {"x": shown.time_s.round(3), "y": np.asarray(values).round(4), "yaxis": f"y{panel}"}
        traces.append({"type": "scatter", "mode": "lines"} | line | place)
        top = 1 - row * (1 + 2 * GAP) / rows
        layout[f"yaxis{panel}"] = KNOWN_Y | {
            "domain": [max(top - (1 + 2 * GAP) / rows + 2 * GAP, 0), top],
            "title": {"text": f"{name}, %" if unit == "%" else name},
        }
    return go.Figure({"data": traces, "layout": layout})


def time_figure(runs: Mapping[str, RunResult]) -> Any:
    """Where a mean request's time goes: stacked seconds by part, one bar a run."""
    import plotly.graph_objects as go

    names = list(runs)[::-1]
    traces = []
    for part, colour in PARTS.items():
        x = [round(runs[name].summary["figures"][f"mean_time_{part}_s"].mean, 6) for name in names]
        label = part.replace("kv_pressure", "KV pressure").replace("rejected", "rejected work")
        bar = {"type": "bar", "orientation": "h", "x": x, "y": names, "name": label, "marker": {"color": colour}}
        traces.append(bar | {"hovertemplate": "%{x:.3g} s<extra>" + part.replace("_", " ") + "</extra>"})
    layout = plots.look(height=150 + 44 * len(names))
    layout |= {"barmode": "stack", "legend": layout["legend"] | {"traceorder": "normal"}}
    layout["margin"] |= MARGIN | {"t": 64}
    layout |= {"xaxis": KNOWN_X | {"title": {"text": "seconds of a mean request"}}, "yaxis": KNOWN_Y}
    return go.Figure({"data": traces, "layout": layout})


def colour_of(name: str, names: Sequence[str]) -> str:
    """The same run has the same colour in every picture."""
    fixed = {"SD off": OFF, "baseline": plots.BASELINE}
    return fixed.get(name, COLOURS[names.index(name) % len(COLOURS)])


def ratio_figure(rows: Mapping[str, Sequence[tuple[str, Estimate | None]]], colours: Mapping[str, str]) -> Any:
    """How many times as large each figure is in a run as in the reference, with its paired interval.

    ``rows``: by run, the ratio of each figure by its label; None where it has none.
    """
    figure = plots.panels()
    for name, ratios in rows.items():
        finite = {label: ratio for label, ratio in ratios if ratio is not None and math.isfinite(ratio.mean)}
        x, bars = means(list(finite.values())), interval_bars(list(finite.values()), thickness=1.4, width=5)
        hover = "%{y}: %{x:.3f} times the reference"
        series(figure, name, colours[name], x, list(finite), error_x=bars, marker_size=9, hover=hover)
    figure.add_vline(x=1.0, line={"color": OFF, "dash": "dash", "width": 1.5})
    figure.update_layout(scattermode="group", scattergap=0.35)
    plots.label_axes(figure, "times the reference")
    labels = max(map(len, rows.values()), default=0)
    shown = plots.styled(figure, height=130 + labels * max(26, 15 * len(rows)))
    return shown.update_yaxes(type="category", autorange="reversed", rangemode="normal")
