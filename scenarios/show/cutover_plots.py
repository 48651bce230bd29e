"""Pictures of cutovers: the advantage with its band against the load and the crossing; the speed-up map."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from draftcast.errors import InputError
from draftcast.scenarios.cutover.answer import Cutover
from draftcast.scenarios.show.cutover_report import headline
from draftcast.scenarios.show.plots import BREAK_EVEN
from draftcast.scenarios.show.tables import title

LOGARITHMIC = ("concurrency", "batch", "context")
COLOURS = ("#0b7285", "#e8590c", "#5f3dc4", "#2f9e44", "#a61e4d", "#1971c2", "#868e96", "#f08c00")
MOST_SENTENCES = 3


def cutover_figure(answers: Sequence[Cutover]) -> Any:
    """Advantage against x for every setting, its band, and the crossing with its interval.

    Triangles on the break-even line are places without a value: one side is overloaded, so the sign alone is known.

    Raises:
        InputError: nothing was looked at.
    """
    import plotly.graph_objects as go

    first = answers[0]
    if not any(answer.probes for answer in answers):
        raise InputError("nothing to draw: the budget did not allow one look", file="--budget")
    figure = go.Figure()
    figure.add_hline(y=1.0, line={"color": BREAK_EVEN, "dash": "dash", "width": 1.5})
    for index, answer in enumerate(answers):
        _curve(figure, answer, COLOURS[index % len(COLOURS)])
    sentences = [headline(answer) for answer in answers[:MOST_SENTENCES]]
    figure.update_xaxes(title_text=first.unit, type="log" if first.over in LOGARITHMIC else "linear")
    figure.update_yaxes(title_text=f"advantage in {first.metric.label}", rangemode="tozero")
    figure.update_layout(
        template="plotly_white",
        title={"text": f"{title(first.scenario)}<br><sup>{'<br>'.join(sentences)}</sup>"},
        margin={"t": 90 + 18 * len(sentences)},
        width=1000,
        height=620,
        legend={"orientation": "h", "x": 0.5, "xanchor": "center", "y": -0.15},
    )
    return figure


def _curve(figure: Any, answer: Cutover, colour: str) -> None:
    import plotly.graph_objects as go

    confidence = answer.crossing.confidence
    valued = [(p, e) for p in answer.probes if (e := p.advantage(confidence)) is not None and math.isfinite(e.high)]
    xs = [probe.x for probe, _ in valued]
    edge: dict[str, Any] = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    figure.add_trace(go.Scatter(x=xs, y=[e.low for _, e in valued], **edge))
    figure.add_trace(go.Scatter(x=xs, y=[e.high for _, e in valued], fill="tonexty", fillcolor=_faint(colour), **edge))
    figure.add_trace(
        go.Scatter(
            x=xs,
            y=[e.mean for _, e in valued],
            mode="lines+markers",
            line={"color": colour, "width": 2.5},
            name=answer.label,
            text=[f"{e.low:.3f} to {e.high:.3f}, {e.n} replications" for _, e in valued],
        )
    )
    bounds = [probe for probe in answer.probes if probe.sure]
    if bounds:
        symbols = ["triangle-up" if probe.sure > 0 else "triangle-down" for probe in bounds]
        figure.add_trace(
            go.Scatter(
                x=[probe.x for probe in bounds],
                y=[1.0] * len(bounds),
                mode="markers",
                marker={"symbol": symbols, "size": 11, "color": colour},
                text=[probe.note for probe in bounds],
                name=f"{answer.label}: one side overloaded",
            )
        )
    if answer.verdict == "crosses":
        crossing = answer.crossing
        figure.add_vrect(x0=crossing.low, x1=crossing.high, fillcolor=colour, opacity=0.15, line_width=0)
        label = {"text": f"cutover {crossing.best:.3g}", "font": {"color": colour}, "textposition": "end"}
        figure.add_vline(x=crossing.best, line={"color": colour, "width": 1.5}, label=label)


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[index : index + 2], 16) for index in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"
