"""What all plots share (plotly): colours, layout, error bars, writing to a file."""

import math
import textwrap
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from draftcast.errors import InputError
from draftcast.files import check_output, written
from draftcast.sim.statistics.intervals import Estimate

# A colour means the same thing everywhere and reads on light and dark.
ON, OFF, BASELINE, LIMIT = "#1098ad", "#868e96", "#e8890c", "#e03131"
COLOURS = (ON, BASELINE, "#7048e8", "#2f9e44", "#d6336c", OFF, "#1c7ed6", "#5c3d2e")
BREAK_EVEN_LINE = {"color": LIMIT, "dash": "dash", "width": 1.5}
IMAGES = (".png", ".svg", ".pdf")  # drawn by kaleido
DECADES: dict[str, Any] = {"type": "log", "dtick": 1}


def panels(*titles: str, rows: int = 1, **layout: Any) -> Any:
    """An empty figure of one panel, or of titled panels in so many rows; ``layout`` as of plotly's `make_subplots`."""
    from plotly.subplots import make_subplots

    return make_subplots(rows, max(1, -(-len(titles) // rows)), subplot_titles=titles, **layout)


def series(figure: Any, name: str, colour: str, x: Any, y: Any, /, **style: Any) -> None:
    """Draw values in one colour, as points where no ``mode`` is given.

    Args:
        style: of a plotly scatter; ``type="scattergl"`` draws many points faster. Besides: ``cell``, row and column of
            the panel, and ``hover``, the template of the text at the mouse, beside which the name stands.
    """
    cell, hover = style.pop("cell", (1, 1)), style.pop("hover", "")
    template = {"hovertemplate": f"{hover}<extra>{name}</extra>"} if hover else {}
    looks = {"type": "scatter", "mode": "markers", "marker_color": colour, "line_color": colour}
    figure.add_trace({"x": x, "y": y, "name": name, **looks, **template, **style}, *cell)


def label_axes(figure: Any, x: str, y: str = "", *, cell: tuple[int, int] = (1, 1), **both: Any) -> None:
    """Titles of a panel's axes, and what else holds for both."""
    figure.update_xaxes(title_text=x, row=cell[0], col=cell[1], **both)
    figure.update_yaxes(title_text=y, row=cell[0], col=cell[1], **both)


def look(*, height: int, legend: bool = True) -> dict[str, Any]:
    """The layout of plots on a page: no frame, tight margins, the legend above."""
    return {
        "height": height,
        # Streamlit gives plotly a copy of each picture it has just drawn; without this the copy would be drawn again.
        "datarevision": 1,
        "margin": {"l": 8, "r": 8, "t": 44 if legend else 24, "b": 8},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "showlegend": legend,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hovermode": "closest",
    }


def styled(figure: Any, *, height: int, legend: bool = True) -> Any:
    figure.update_layout(**look(height=height, legend=legend))
    return figure.update_xaxes(automargin=True).update_yaxes(automargin=True, rangemode="tozero")


def on_page(figure: Any, *, height: int) -> Any:
    """A plot made for a file, as the pages show plots: their template, their size, no title of its own."""
    import plotly.io

    figure.update_layout(template=plotly.io.templates.default, title=None, width=None)
    return styled(figure, height=height)


LINE = 160  # characters of small print that fit into a file's width


def in_file(figure: Any, title: str, lines: Sequence[str], *, height: int) -> Any:
    """A plot as a file shows it, with its title, ``lines`` in small print below it and the legend at the bottom."""
    small = [part for line in lines for part in textwrap.wrap(line, LINE)]
    return figure.update_layout(
        template="plotly_white",
        title={"text": f"{title}<br><sup>{'<br>'.join(small)}</sup>"},
        margin={"t": 84 + 26 * len(small)},
        width=1000,
        height=height,
        legend={"orientation": "h", "x": 0.5, "xanchor": "center", "y": -0.12},
    )


def error_bars(spans: Sequence[tuple[float, float, float]], **style: Any) -> dict[str, Any]:
    """Error bars from (low, middle, high) of each point; none to a NaN, to the top of what is drawn for infinity."""
    top = max((end for span in spans for end in span if math.isfinite(end)), default=0.0)
    ends = [(middle, top if high == math.inf else high) for _, middle, high in spans]
    up = [max(0.0, high - middle) if math.isfinite(high) else 0.0 for middle, high in ends]
    down = [max(0.0, middle - low) if math.isfinite(low) else 0.0 for low, middle, _ in spans]
    return {"type": "data", "symmetric": False, "array": up, "arrayminus": down, **style}


def interval_bars(values: Sequence[Estimate | None], **style: Any) -> dict[str, Any]:
    """Error bars that reach to the interval's ends, which need not be equally far; none where there is no interval."""
    return error_bars([(v.low, v.mean, v.high) if v is not None else (math.nan,) * 3 for v in values], **style)


def means(values: Sequence[Estimate | None]) -> list[float | None]:
    return [value.mean if value is not None else None for value in values]


def check_picture(path: Path | None, option: str) -> None:
    """Raises InputError, naming ``option``: a file that `write_figure` could not write (folder, kind, or kaleido)."""
    if path is None:
        return
    if path.suffix not in (".html", *IMAGES):
        raise InputError(f"must end in .html, {', '.join(IMAGES)}", file=option, value=str(path))
    check_output(path)
    if path.suffix in IMAGES and find_spec("kaleido") is None:
        raise InputError(f"{path.suffix} needs kaleido (pip install kaleido); .html needs nothing", file=option)


def check_points(count: int) -> None:
    """Raises InputError: too few compared rates for `comparison_figure`; call it before a long simulation."""
    if count < 2:
        raise InputError("a plot needs speculation compared with off and at least two --rates", file="--plot")


def write_figure(figure: Any, path: Path) -> None:
    """``.html`` needs no network, pictures need kaleido. Raises InputError: not written, or no kaleido or browser."""
    try:
        with written(path) as partial:
            if path.suffix in IMAGES:
                figure.write_image(partial, format=path.suffix[1:])
            else:
                figure.write_html(partial, include_plotlyjs=True)
    except (ValueError, RuntimeError) as error:
        raise InputError(f"cannot be drawn, take .html: {str(error).strip().splitlines()[0]}", file=str(path)) from None
