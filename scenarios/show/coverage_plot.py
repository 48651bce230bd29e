"""Plots of trust: which shapes of a scenario were measured, and predicted against measured times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from draftcast.scenarios.run.coverage import Coverage
from draftcast.scenarios.show.plots import LIMIT, OFF, ON, styled

MOST_POINTS = 1200


def coverage_figure(covered: Coverage) -> Any:
    """Three maps, log-log: matrices (k x n), attention of decodes (batch x context), of prompts (chunk x context).

    Grey: measured shapes. Coloured: what the scenario needs; red where it lies outside of what was measured.
    """
    from plotly.subplots import make_subplots

    titles = ("Matrix products", "Attention, decode", "Attention, prefill")
    figure = make_subplots(rows=1, cols=3, subplot_titles=titles, horizontal_spacing=0.07)
    shapes, decode = covered.matrices, covered.attention["attention_decode"]
    prefill = covered.attention["attention_prefill"]
    panels = (
        ("k", shapes["k"], "n", shapes["n"]),
        ("batch", decode["batch"], "context", decode["context"]),
        ("chunk", prefill["q"], "context", prefill["context"]),
    )
    for col, (x_name, x, y_name, y) in enumerate(panels, start=1):
        figure.add_scatter(
            x=x,
            y=y,
            mode="markers",
            marker={"size": 4, "opacity": 0.5, "color": OFF},
            name="measured",
            showlegend=col == 1,
            hovertemplate=f"measured: {x_name} %{{x}}, {y_name} %{{y}}<extra></extra>",
            row=1,
            col=col,
        )
        figure.update_xaxes(type="log", dtick=1, title_text=x_name, row=1, col=col)
        figure.update_yaxes(type="log", dtick=1, title_text=y_name, row=1, col=col)
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
                "color": ON if layer.measured or layer.inside else LIMIT,
                "line": {"width": 2},
            },
            name=layer.name,
            showlegend=False,
            hovertemplate=f"{layer.name}: k {layer.k} x n {layer.n}, {word}<extra></extra>",
            row=1,
            col=1,
        )
    (left, right), (low, high), chunks = (covered.asked[name] for name in ("batch", "context", "chunk"))
    inside = len(decode) > 0 and right <= decode["batch"].max() and high <= decode["context"].max()
    corners = [left, right, right, left, left], [low, low, high, high, low]
    _needed(figure, *corners, inside, col=2, mode="lines", fill="toself", showlegend=True)
    # Prompts without a cached prefix: the context is the chunk itself.
    inside = len(prefill) > 0 and chunks[1] <= prefill["q"].max()
    _needed(figure, list(chunks), list(chunks), inside, col=3, mode="lines+markers", showlegend=False)
    styled(figure, height=380)
    return figure.update_layout(margin={"t": 60}, legend={"y": 1.12})


def _needed(figure: Any, x: list[float], y: list[float], inside: bool, *, col: int, **style: Any) -> None:
    """The range that a run needs; red where its far end was not reached by any measurement."""
    figure.add_scatter(
        x=x,
        y=y,
        line={"color": ON if inside else LIMIT, "width": 3},
        name="this scenario",
        hovertemplate="%{x:,.0f}, %{y:,.0f}<extra>this scenario</extra>",
        row=1,
        col=col,
        **style,
    )


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
    figure.add_scatter(x=ends, y=ends, mode="lines", line={"color": OFF, "dash": "dash"}, name="equal", row=1, col=1)
    figure.add_scatter(
        x=measured,
        y=predicted,
        mode="markers",
        marker={"size": 4, "opacity": 0.55, "color": ON},
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
        marker={"color": ON},
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
    return styled(figure, height=340, legend=False).update_layout(margin={"t": 44})
