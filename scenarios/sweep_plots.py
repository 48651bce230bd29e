"""The picture of a sweep: tokens/s/user against tokens/s/GPU with the Pareto front; a figure along the first axis."""

from __future__ import annotations

import math
from typing import Any

from draftcast.errors import InputError
from draftcast.scenarios.sweep_report import swept_title
from draftcast.scenarios.sweep_result import GPU, USER, SweepCell, SweepResult

FRONT = "#212529"


def sweep_figure(result: SweepResult, metric: str) -> Any:
    """Two panels, one line for each combination of the axes behind the first.

    Args:
        metric: a figure's name, for the second panel; drawn with its interval.

    Raises:
        InputError: no cell has figures, or none has this one.
    """
    import plotly.graph_objects as go
    from plotly.colors import qualitative
    from plotly.subplots import make_subplots

    series = _series(result)
    names = {name for cells in series.values() for cell in cells for name in cell.figures}
    if metric not in names:
        known = ", ".join(sorted(names)) or "none: no cell has figures"
        raise InputError(f"no such figure; there are {known}", file="--metric", value=metric)
    figure = make_subplots(rows=1, cols=2, subplot_titles=("Pareto front", metric), horizontal_spacing=0.1)
    for index, (name, cells) in enumerate(series.items()):
        colour = qualitative.Dark24[index % len(qualitative.Dark24)]
        line: dict[str, Any] = {"mode": "lines+markers", "line": {"color": colour}, "name": name, "legendgroup": name}
        labels = [f"{cell.label} ({cell.verdict})" for cell in cells]
        figure.add_trace(go.Scatter(x=_means(cells, GPU), y=_means(cells, USER), text=labels, **line), row=1, col=1)
        halves = [cell.figures[metric].half_width if metric in cell.figures else math.nan for cell in cells]
        error = {"type": "data", "array": [half if math.isfinite(half) else 0.0 for half in halves]}
        x = [cell.values[result.axes[0].name] for cell in cells]
        x = [value if isinstance(value, int | float) else str(value) for value in x]
        figure.add_trace(
            go.Scatter(x=x, y=_means(cells, metric), error_y=error, text=labels, showlegend=False, **line), row=1, col=2
        )
    ring = {"symbol": "circle-open", "size": 13, "color": FRONT, "line": {"width": 2}}
    front = result.pareto
    figure.add_trace(
        go.Scatter(x=_means(front, GPU), y=_means(front, USER), mode="markers", marker=ring, name="Pareto front"),
        row=1,
        col=1,
    )
    figure.update_xaxes(title_text="tokens/s/GPU", row=1, col=1)
    figure.update_yaxes(title_text="tokens/s/user (1 / mean TPOT)", row=1, col=1)
    figure.update_xaxes(title_text=result.axes[0].name, row=1, col=2)
    figure.update_layout(template="plotly_white", title=swept_title(result), width=1200, height=560)
    return figure


def _series(result: SweepResult) -> dict[str, list[SweepCell]]:
    """Cells with figures by the values of all axes but the first, in the grid's order."""
    first = result.axes[0].name
    found: dict[str, list[SweepCell]] = {}
    for cell in result.cells:
        if cell.figures:
            rest = SweepCell({k: v for k, v in cell.values.items() if k != first}, "", "", None, {}).label
            found.setdefault(rest or first, []).append(cell)
    return found


def _means(cells: Any, name: str) -> list[float | None]:
    return [cell.figures[name].mean if name in cell.figures else None for cell in cells]
