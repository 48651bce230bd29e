"""A validation in pictures: quantiles against quantiles, step times, levels over time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from draftcast.scenarios.live.validate.comparison import Validation
from draftcast.scenarios.live.validate.figures import chunk_gaps
from draftcast.scenarios.live.validate.timeline import Timeline, live_timeline, simulated_timeline
from draftcast.scenarios.show.plots import BREAK_EVEN, OFF, ON
from draftcast.sim.compiled.itl_histogram import histogram_quantile
from draftcast.sim.output.request_columns import RequestColumns

FloatArray = NDArray[np.float64]

_SHARES = np.linspace(0.01, 0.99, 99)
# More points than this are thinned: a page of some megabytes loads, one of some hundred does not.
_MOST_POINTS = 3000
_LATENCIES = (("ttft_s", "TTFT"), ("tpot_s", "TPOT"), ("e2el_s", "E2E"))
_LEVELS = (("running", "Requests in the step"), ("waiting", "Requests waiting"), ("kv_usage", "KV blocks in use"))


def validation_figure(validation: Validation) -> Any:
    """Q-Q plots of the latencies, step times, and levels over time, in one figure of plotly."""
    from plotly.subplots import make_subplots

    titles = [f"{name}: quantiles, s" for _, name in _LATENCIES]
    titles += ["ITL: quantiles, s", "Step time: each step, s", "Step time: share of steps below"]
    titles += [name for _, name in _LEVELS]
    figure = make_subplots(rows=3, cols=3, subplot_titles=titles, vertical_spacing=0.1, horizontal_spacing=0.08)
    _latencies(figure, validation)
    _steps(figure, validation)
    _levels(figure, validation)
    for col in (1, 2, 3):
        figure.update_xaxes(title_text="measured", row=1, col=col)
        figure.update_xaxes(title_text="time, s", row=3, col=col)
    figure.update_yaxes(title_text="forecast", row=1, col=1)
    figure.update_yaxes(title_text="forecast", row=2, col=1)
    figure.update_xaxes(title_text="measured", row=2, col=1)
    figure.update_xaxes(title_text="measured", row=2, col=2)
    figure.update_xaxes(title_text="s", row=2, col=3)
    figure.update_layout(template="plotly_white", height=1050, legend={"orientation": "h", "y": -0.05})
    return figure


def _latencies(figure: Any, validation: Validation) -> None:
    measured = RequestColumns.of(validation.live_requests)
    played = [RequestColumns.of(each.requests) for each in validation.played]
    for col, (name, _) in enumerate(_LATENCIES, start=1):
        ours = np.concatenate([getattr(each, name) for each in played])
        _quantiles(figure, _finite(getattr(measured, name)), _finite(ours), row=1, col=col)
    gaps = chunk_gaps(validation.question.live)
    if len(gaps):
        counts = np.sum([each.itl_counts for each in validation.played], axis=0)
        _diagonal(figure, np.quantile(gaps, _SHARES), histogram_quantile(counts, _SHARES), row=2, col=1)


def _quantiles(figure: Any, measured: FloatArray, forecast: FloatArray, *, row: int, col: int) -> None:
    if len(measured) and len(forecast):
        _diagonal(figure, np.quantile(measured, _SHARES), np.quantile(forecast, _SHARES), row=row, col=col)


def _diagonal(figure: Any, x: FloatArray, y: FloatArray, *, row: int, col: int) -> None:
    """Points against the line on which they would lie were the forecast right."""
    import plotly.graph_objects as go

    ends = [float(min(x.min(), y.min())), float(max(x.max(), y.max()))]
    line = {"color": BREAK_EVEN, "dash": "dash", "width": 1.5}
    figure.add_trace(go.Scatter(x=ends, y=ends, mode="lines", line=line, showlegend=False), row=row, col=col)
    points = {"color": ON, "size": 5, "opacity": 0.6}
    figure.add_trace(go.Scattergl(x=x, y=y, mode="markers", marker=points, showlegend=False), row=row, col=col)


def _steps(figure: Any, validation: Validation) -> None:
    import plotly.graph_objects as go

    ours = pd.concat([each.steps["step_s"] for each in validation.played]).to_numpy(np.float64)
    series = [("forecast", ON, _thin(np.sort(ours)))]
    if validation.steps is not None:
        points = validation.steps.timed.points
        steps = points["steps"].to_numpy(np.float64)
        measured, predicted = (points[name].to_numpy(np.float64) / steps for name in ("seconds", "predicted_s"))
        chosen = _thin(np.arange(len(points)))
        _diagonal(figure, measured[chosen], predicted[chosen], row=2, col=2)
        series.append(("measured", OFF, _thin(np.sort(measured))))
    for name, colour, values in series:
        share = np.arange(1, len(values) + 1) / len(values)
        line = {"color": colour, "width": 2}
        trace = go.Scatter(x=values, y=share, mode="lines", line=line, name=name, legendgroup=name)
        figure.add_trace(trace, row=2, col=3)


def _levels(figure: Any, validation: Validation) -> None:
    import plotly.graph_objects as go

    blocks = validation.question.deployment.settings.num_gpu_blocks - 1
    series: list[tuple[str, str, Timeline]] = [("forecast", ON, simulated_timeline(validation.played[0].steps, blocks))]
    if validation.steps is not None:
        steps = validation.steps.timed.steps
        series.append(("measured", OFF, live_timeline(steps, validation.live_requests)))
    for name, colour, timeline in series:
        chosen = _thin(np.arange(len(timeline.time_s)))
        for col, (level, _) in enumerate(_LEVELS, start=1):
            line = {"color": colour, "width": 1.5, "shape": "hv"}
            x, y = timeline.time_s[chosen], getattr(timeline, level)[chosen]
            trace = go.Scatter(x=x, y=y, mode="lines", line=line, name=name, legendgroup=name, showlegend=False)
            figure.add_trace(trace, row=3, col=col)


def _thin(values: NDArray[Any]) -> NDArray[Any]:
    """Every n-th value where there are too many to draw."""
    return values[:: max(1, -(-len(values) // _MOST_POINTS))]


def _finite(values: FloatArray) -> FloatArray:
    return values[np.isfinite(values)]
