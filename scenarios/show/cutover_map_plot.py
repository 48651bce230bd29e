"""The picture of a speed-up map: a cell per load and draft length or acceptance, sure ones marked, and the contour."""

from __future__ import annotations

import math
from typing import Any

from draftcast.scenarios.cutover.map import BreakEven, SpeedupMap
from draftcast.scenarios.show.cutover_plots import LOGARITHMIC
from draftcast.scenarios.show.cutover_report import cell_text
from draftcast.scenarios.show.tables import title
from draftcast.sim.statistics.crossing import Probe

RANGE = 1.5
"""Doublings at which the colours end."""
CONTOUR = "#212529"


def map_figure(found: SpeedupMap) -> Any:
    """Colour and number: the advantage; *: its interval excludes 1; line: break-even with its interval."""
    import plotly.graph_objects as go

    figure = go.Figure()
    figure.add_trace(
        go.Heatmap(
            x=found.xs,
            y=found.ys,
            z=[[_doublings(probe, found.confidence) for probe in row] for row in found.rows],
            text=[[cell_text(probe, found.confidence) for probe in row] for row in found.rows],
            customdata=[[_hover(probe, found.confidence) for probe in row] for row in found.rows],
            texttemplate="%{text}",
            hovertemplate=f"%{{x}} {found.unit}, {found.against} %{{y}}: %{{customdata}}<extra></extra>",
            colorscale="RdBu",
            zmin=-RANGE,
            zmax=RANGE,
            xgap=1,
            ygap=1,
            colorbar={
                "title": {"text": "advantage"},
                "tickvals": [-1, -0.5, 0, 0.5, 1],
                "ticktext": ["1/2", "0.71", "1", "1.41", "2"],
            },
        )
    )
    points = [point for point in found.contour if point.crossing.kind == "crosses"]
    if points:
        figure.add_trace(_contour(found, points))
    logarithmic = found.over in LOGARITHMIC
    figure.update_xaxes(title_text=found.unit, type="log" if logarithmic else "linear")
    figure.update_yaxes(title_text="draft tokens k" if found.against == "k" else "acceptance per draft token")
    figure.update_layout(
        template="plotly_white",
        title={
            "text": f"{title(found.scenario)}<br><sup>{found.label}: advantage in {found.metric.label}; "
            f"* its {found.confidence:.0%} interval excludes 1; line: break-even</sup>"
        },
        width=1000,
        height=560,
    )
    return figure


def _contour(found: SpeedupMap, points: list[BreakEven]) -> Any:
    import plotly.graph_objects as go

    best = [point.crossing.best for point in points]
    error = {
        "type": "data",
        "symmetric": False,
        "array": [point.crossing.high - point.crossing.best for point in points],
        "arrayminus": [point.crossing.best - point.crossing.low for point in points],
        "color": CONTOUR,
    }
    at = [point.at for point in points]
    along_x = found.against == "k"
    return go.Scatter(
        x=best if along_x else at,
        y=at if along_x else best,
        **{"error_x" if along_x else "error_y": error},
        mode="lines+markers",
        line={"color": CONTOUR, "width": 2},
        name="break-even",
    )


def _doublings(probe: Probe, confidence: float) -> float | None:
    advantage = probe.advantage(confidence)
    if advantage is None:
        sign = probe.sign(confidence)
        return RANGE * sign if sign else None
    return math.log2(advantage.mean) if 0 < advantage.mean < math.inf else None


def _hover(probe: Probe, confidence: float) -> str:
    advantage = probe.advantage(confidence)
    if advantage is None:
        return probe.note
    return f"{advantage.mean:.3f} ({advantage.low:.3f} to {advantage.high:.3f})"
