"""The pictures of a sweep: tokens/s/user against tokens/s/GPU with the Pareto front; a figure along the first axis."""

from __future__ import annotations

import math
from typing import Any

from draftcast.errors import InputError
from draftcast.scenarios.show.run_plots import LIMIT, styled
from draftcast.scenarios.show.sweep_report import advantage_text, swept_title
from draftcast.scenarios.sweep.result import GPU, USER, SweepCell, SweepResult

GPU_TITLE, USER_TITLE = "tokens/s/GPU", "tokens/s/user (1 / mean TPOT)"


def sweep_figure(result: SweepResult, metric: str) -> Any:
    """Both panels side by side, one line for each combination of the axes behind the first.

    Args:
        metric: a figure's name, for the second panel; drawn with its interval.

    Raises:
        InputError: no cell has figures, or none has this one.
    """
    from plotly.subplots import make_subplots

    along = _metric_traces(result, metric)
    figure = make_subplots(rows=1, cols=2, subplot_titles=("Pareto front", metric), horizontal_spacing=0.1)
    figure.add_traces(_pareto_traces(result), rows=1, cols=1)
    figure.add_traces(along, rows=1, cols=2)
    figure.update_xaxes(title_text=GPU_TITLE, row=1, col=1)
    figure.update_yaxes(title_text=USER_TITLE, row=1, col=1)
    figure.update_xaxes(title_text=result.axes[0].name, row=1, col=2)
    figure.update_layout(template="plotly_white", title=swept_title(result), width=1200, height=560)
    return figure


def pareto_figure(result: SweepResult) -> Any:
    """The Pareto panel alone; ``customdata`` of a marker is the number of its cell in ``result.cells``."""
    import plotly.graph_objects as go

    figure = go.Figure(_pareto_traces(result))
    figure.update_xaxes(title_text=GPU_TITLE)
    figure.update_yaxes(title_text=USER_TITLE)
    figure.update_layout(clickmode="event+select")
    return styled(figure, height=440)


def metric_figure(result: SweepResult, metric: str) -> Any:
    """The panel of one figure along the first axis alone. Raises InputError as of `sweep_figure`."""
    import plotly.graph_objects as go

    figure = go.Figure(_metric_traces(result, metric))
    figure.update_traces(showlegend=True)
    figure.update_xaxes(title_text=result.axes[0].name)
    figure.update_yaxes(title_text=metric)
    return styled(figure, height=360)


def metrics_of(result: SweepResult) -> list[str]:
    """Names of the figures that some cell has, in order."""
    return sorted({name for cell in result.cells for name in cell.figures})


def _pareto_traces(result: SweepResult) -> list[Any]:
    import plotly.graph_objects as go

    number = {id(cell): index for index, cell in enumerate(result.cells)}
    traces = []
    for (name, cells), line in zip(_series(result).items(), _lines(result), strict=True):
        traces.append(
            go.Scatter(
                x=_means(cells, GPU),
                y=_means(cells, USER),
                text=[_text(cell) for cell in cells],
                customdata=[number[id(cell)] for cell in cells],
                hovertemplate="%{text}<br>%{x:.4g} tokens/s/GPU, %{y:.4g} tokens/s/user<extra></extra>",
                marker={"size": 8},
                name=name,
                legendgroup=name,
                **line,
            )
        )
    front = result.pareto
    ring = {"symbol": "circle-open", "size": 15, "color": LIMIT, "line": {"width": 2}}
    # Behind the cells, so that a click reaches them.
    around = go.Scatter(
        x=_means(front, GPU), y=_means(front, USER), mode="markers", marker=ring, name="Pareto front", hoverinfo="skip"
    )
    return [around, *traces]


def _metric_traces(result: SweepResult, metric: str) -> list[Any]:
    import plotly.graph_objects as go

    if metric not in metrics_of(result):
        known = ", ".join(metrics_of(result)) or "none: no cell has figures"
        raise InputError(f"no such figure; there are {known}", file="--metric", value=metric)
    traces = []
    for (name, cells), line in zip(_series(result).items(), _lines(result), strict=True):
        halves = [cell.figures[metric].half_width if metric in cell.figures else math.nan for cell in cells]
        x = [cell.values[result.axes[0].name] for cell in cells]
        traces.append(
            go.Scatter(
                x=[value if isinstance(value, int | float) else str(value) for value in x],
                y=_means(cells, metric),
                error_y={"type": "data", "array": [half if math.isfinite(half) else 0.0 for half in halves]},
                text=[_text(cell) for cell in cells],
                showlegend=False,
                name=name,
                legendgroup=name,
                **line,
            )
        )
    return traces


def _text(cell: SweepCell) -> str:
    return "<br>".join(filter(None, (cell.label, advantage_text(cell))))


def _lines(result: SweepResult) -> list[dict[str, Any]]:
    """Looks of the series: colours that read on light and dark."""
    from plotly.colors import qualitative

    colours = (*qualitative.D3, *qualitative.Set2)
    return [
        {"mode": "lines+markers", "line": {"color": colours[index % len(colours)]}}
        for index in range(len(_series(result)))
    ]


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
