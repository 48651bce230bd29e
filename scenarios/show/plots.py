"""Pictures of answers, as plotly figures: self-contained HTML for people, PNG for the docs (``docs/figures.py``)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftcast.errors import InputError
from draftcast.files import check_output, written
from draftcast.scenarios.compare.comparison import LATENCY, TOKENS, Comparison
from draftcast.scenarios.show.tables import cutover_line, title

if TYPE_CHECKING:
    from draftcast.sim.statistics.intervals import Estimate

ON, OFF, BREAK_EVEN = "#0b7285", "#868e96", "#c92a2a"
IMAGES = (".png", ".svg", ".pdf")  # drawn by kaleido


def comparison_figure(comparison: Comparison) -> Any:
    """Advantage against request rate with its band and the cutover; below, latency and token goodput, off and on.

    Raises:
        InputError: fewer than two rates, or nothing compared.
    """
    from plotly.subplots import make_subplots

    points = [p for p in comparison.points if p.off is not None and p.request_rate_rps is not None]
    _check_points(len(points))
    figure = make_subplots(
        rows=2,
        cols=2,
        specs=[[{"colspan": 2}, None], [{}, {}]],
        row_heights=[0.56, 0.44],
        vertical_spacing=0.16,
        horizontal_spacing=0.09,
        subplot_titles=("Advantage: mean E2E latency off / on", "Mean E2E latency, s", "Token goodput, tokens/s"),
    )
    rates = [p.request_rate_rps for p in points]
    advantages = [p.advantage for p in points]
    _band(figure, rates, advantages, ON, "advantage", row=1, col=1)
    figure.add_hline(y=1.0, line={"color": BREAK_EVEN, "dash": "dash", "width": 1.5}, row=1, col=1)
    cut = comparison.cutover
    if cut is not None and cut.kind == "crosses":
        label = {"text": "cutover", "font": {"color": BREAK_EVEN}}
        ends = dict(zip(("x0", "x1"), cut.gap, strict=True))
        figure.add_vrect(**ends, fillcolor=BREAK_EVEN, opacity=0.15, line_width=0, label=label, row=1, col=1)
    for col, key in ((1, LATENCY), (2, TOKENS)):
        for which, colour in (("on", ON), ("off", OFF)):
            shown = [p.figures(which).get(key) for p in points]
            _band(figure, rates, shown, colour, f"SD {which}", row=2, col=col, legend=col == 1)
    figure.update_xaxes(title_text="request rate, req/s")
    figure.update_layout(
        template="plotly_white",
        title={"text": f"{title(comparison.scenario)}<br><sup>{cutover_line(comparison)}</sup>"},
        width=1000,
        height=760,
        legend={"orientation": "h", "x": 0.5, "xanchor": "center", "y": -0.12},
    )
    return figure


def check_plot(path: Path, *, num_rates: int, compared: bool) -> None:
    """Refuse a plot that cannot be drawn or written; call it before a long simulation.

    Raises:
        InputError: fewer than two rates, nothing compared, no such folder, or a kind of file that is not known.
    """
    _check_points(num_rates if compared else 0)
    check_picture(path, "--plot")


def check_picture(path: Path, option: str) -> None:
    """Refuse a file that `write_figure` could not write; ``option`` is what gave it.

    Raises:
        InputError: no such folder, or a kind of file that is not known or needs what is not installed.
    """
    if path.suffix not in (".html", *IMAGES):
        raise InputError(f"must end in .html, {', '.join(IMAGES)}", file=option, value=str(path))
    check_output(path)
    if path.suffix in IMAGES:
        from importlib.util import find_spec

        if find_spec("kaleido") is None:
            raise InputError(f"{path.suffix} needs kaleido (pip install kaleido); .html needs nothing", file=option)


def _check_points(count: int) -> None:
    if count < 2:
        raise InputError("a plot needs speculation compared with off and at least two --rates", file="--plot")


def write_figure(figure: Any, path: Path) -> None:
    """Write a figure: ``.html`` as one file that needs no network; ``.png``, ``.svg`` and ``.pdf`` through kaleido.

    Raises:
        InputError: the file cannot be written, or kaleido or the browser it needs is missing.
    """
    try:
        with written(path) as partial:
            if path.suffix in IMAGES:
                figure.write_image(partial, format=path.suffix[1:])
            else:
                figure.write_html(partial, include_plotlyjs=True)
    except (ValueError, RuntimeError) as error:
        first = str(error).strip().splitlines()[0]
        raise InputError(f"cannot be drawn, take .html: {first}", file=str(path)) from None


def _band(
    figure: Any,
    x: list[float | None],
    values: list[Estimate | None],
    colour: str,
    name: str,
    *,
    row: int,
    col: int,
    legend: bool = False,
) -> None:
    """A line of means with error bars that reach to the interval's ends; nothing where there are no figures."""
    import plotly.graph_objects as go

    halves = [v.half_width if v is not None and math.isfinite(v.half_width) else 0.0 for v in values]
    figure.add_trace(
        go.Scatter(
            x=x,
            y=[value.mean if value is not None else None for value in values],
            error_y={"type": "data", "array": halves, "thickness": 1.5, "width": 4},
            mode="lines+markers",
            line={"color": colour, "width": 2.5},
            name=name,
            showlegend=legend,
        ),
        row=row,
        col=col,
    )
