"""Pictures of trust: the coverage map of a scenario, and measured points against what a profile predicts for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from draftcast.scenarios.run.coverage import Coverage
from draftcast.scenarios.show.run_plots import ON, styled

MEASURED, ASKED, OUTSIDE = "#868e96", ON, "#e03131"
MOST_POINTS = 1200


def coverage_figure(covered: Coverage) -> Any:
    """Three maps, log-log: matrices (k x n), attention of decodes (batch x context), of prompts (chunk x context).

    Grey: measured shapes. Coloured: what the scenario asks; red where it lies outside of what was measured.
    """
    from plotly.subplots import make_subplots

    titles = ("Matrix products", "Attention, decode", "Attention, prefill")
    figure = make_subplots(rows=1, cols=3, subplot_titles=titles, horizontal_spacing=0.07)
    shapes = covered.matrices
    _dots(figure, shapes["k"], shapes["n"], "k %{x} x n %{y}", col=1, legend=True)
    for layer in covered.layers:
        word = "measured" if layer.measured else "between measured shapes" if layer.inside else "outside"
        figure.add_scatter(
            x=[layer.k],
            y=[layer.n],
            mode="markers+text",
            text=[layer.name],
            textposition="top center",
            marker={
                "symbol": "diamond" if layer.measured else "diamond-open",
                "size": 11,
                "color": ASKED if layer.measured or layer.inside else OUTSIDE,
                "line": {"width": 2},
            },
            name=layer.name,
            showlegend=False,
            hovertemplate=f"{layer.name}: k {layer.k} x n {layer.n}, {word}<extra></extra>",
            row=1,
            col=1,
        )
    decode, prefill = covered.attention["attention_decode"], covered.attention["attention_prefill"]
    _dots(figure, decode["batch"], decode["context"], "batch %{x}, context %{y}", col=2)
    _box(figure, covered.asked["batch"], covered.asked["context"], decode["batch"], decode["context"], col=2)
    _dots(figure, prefill["q"], prefill["context"], "chunk %{x}, context %{y}", col=3)
    _line(figure, covered.asked["chunk"], prefill["q"], col=3)
    for col, (x, y) in enumerate((("k", "n"), ("batch", "context"), ("chunk", "context")), start=1):
        figure.update_xaxes(type="log", dtick=1, title_text=x, row=1, col=col)
        figure.update_yaxes(type="log", dtick=1, title_text=y, row=1, col=col)
    styled(figure, height=380)
    figure.update_layout(margin={"t": 60}, legend={"y": 1.12})
    return figure


def fit_figure(predictions: pd.DataFrame) -> Any:
    """Held-out points: predicted against measured seconds of one launch, and the distribution of the errors."""
    from plotly.subplots import make_subplots

    some = predictions.iloc[
        np.unique(np.linspace(0, len(predictions) - 1, min(len(predictions), MOST_POINTS)).astype(int))
    ]
    titles = ("Predicted against measured, us", "Residuals: predicted / measured - 1, %")
    figure = make_subplots(rows=1, cols=2, subplot_titles=titles, horizontal_spacing=0.1)
    measured, predicted = 1e6 * some["seconds"], 1e6 * some["predicted"]
    ends = [float(measured.min()), float(measured.max())]
    figure.add_scatter(
        x=ends, y=ends, mode="lines", line={"color": MEASURED, "dash": "dash"}, name="equal", row=1, col=1
    )
    figure.add_scatter(
        x=measured,
        y=predicted,
        mode="markers",
        marker={"size": 4, "opacity": 0.55, "color": ASKED},
        name="held-out point",
        hovertemplate="measured %{x:.3g} us, predicted %{y:.3g} us<extra></extra>",
        row=1,
        col=1,
    )
    errors = 100 * predictions["error"].to_numpy()
    counts, edges = np.histogram(np.clip(errors, -50, 50), bins=50, range=(-50, 50))
    figure.add_bar(
        x=(edges[1:] + edges[:-1]) / 2,
        y=counts,
        marker={"color": ASKED},
        name="points",
        showlegend=False,
        hovertemplate="%{y} points near %{x:.0f} %<extra></extra>",
        row=1,
        col=2,
    )
    figure.update_xaxes(type="log", dtick=1, title_text="measured, us", row=1, col=1)
    figure.update_yaxes(type="log", dtick=1, title_text="predicted, us", row=1, col=1)
    figure.update_xaxes(title_text="error, % (ends: and beyond)", row=1, col=2)
    figure.update_yaxes(title_text="points", row=1, col=2)
    styled(figure, height=340, legend=False)
    figure.update_layout(margin={"t": 44})
    return figure


def _dots(figure: Any, x: Any, y: Any, shown: str, *, col: int, legend: bool = False) -> None:
    figure.add_scatter(
        x=x,
        y=y,
        mode="markers",
        marker={"size": 4, "opacity": 0.5, "color": MEASURED},
        name="measured",
        showlegend=legend,
        hovertemplate=f"measured: {shown}<extra></extra>",
        row=1,
        col=col,
    )


def _box(figure: Any, x: tuple[float, float], y: tuple[float, float], known_x: Any, known_y: Any, *, col: int) -> None:
    """The range that a run covers; red where its far corner was not reached by any measurement."""
    inside = len(known_x) > 0 and x[1] <= known_x.max() and y[1] <= known_y.max()
    (left, right), (low, high) = x, y
    figure.add_scatter(
        x=[left, right, right, left, left],
        y=[low, low, high, high, low],
        mode="lines",
        fill="toself",
        line={"color": ASKED if inside else OUTSIDE, "width": 2},
        name="this scenario",
        showlegend=col == 2,
        hovertemplate="%{x:,.0f}, %{y:,.0f}<extra>this scenario</extra>",
        row=1,
        col=col,
    )


def _line(figure: Any, chunk: tuple[float, float], known: Any, *, col: int) -> None:
    """Prompts without a cached prefix: the context is the chunk itself."""
    inside = len(known) > 0 and chunk[1] <= known.max()
    figure.add_scatter(
        x=list(chunk),
        y=list(chunk),
        mode="lines+markers",
        line={"color": ASKED if inside else OUTSIDE, "width": 5},
        name="this scenario",
        showlegend=False,
        hovertemplate="prompt of %{x:,.0f} tokens<extra>this scenario</extra>",
        row=1,
        col=col,
    )
