"""A sweep as table, sentences and plots: the Pareto front of tokens/s/user and tokens/s/GPU, a figure along an axis."""

import itertools
from collections.abc import Iterator
from typing import Any

from rich.table import Table

from draftcast.errors import InputError, cut
from draftcast.scenarios.show.plots import LIMIT, interval_bars, label_axes, means, panels, series, styled
from draftcast.scenarios.show.tables import LOOKS, make_table, show, title
from draftcast.scenarios.sweep.result import GPU, USER, SweepCell, SweepProgress, SweepResult

COLUMNS = tuple(map(tuple, LOOKS["sweep"]))
MOST_ROWS = 60  # a longer table is cut to the Pareto front; the CSV holds all


def swept_title(result: SweepResult) -> str:
    """The base scenario and what varies in it, on one line."""
    return f"{title(result.scenario)}; swept: {', '.join(axis.name for axis in result.axes)}"


def sweep_table(result: SweepResult) -> Table:
    rows = [sweep_head(result), *(row for _, row in sweep_rows(result))]
    return make_table(rows, title=swept_title(result), caption=LOOKS["notes"]["advantage"])


def sweep_head(result: SweepResult) -> list[str]:
    return [*(axis.name for axis in result.axes), *(name for name, _, _ in COLUMNS), "state", "advantage", "Pareto"]


def sweep_rows(result: SweepResult) -> list[tuple[SweepCell, list[str]]]:
    """The cells of the table (all, or of a large sweep its Pareto front), each with its row; ± half an interval."""
    front = {id(cell) for cell in result.pareto}
    rows = []
    for cell in result.cells if len(result.cells) <= MOST_ROWS else result.pareto:
        figures = [show(cell.shown_figures.get(key), factor) for _, key, factor in COLUMNS]
        rows.append((cell, [*cell.point, *figures, cell.state, advantage_text(cell), "*" if id(cell) in front else ""]))
    return rows


def advantage_text(cell: SweepCell) -> str:
    """The verdict with the advantage, or with the reason why there is none; empty without speculation."""
    reason = f"{show(cell.advantage)} x" if cell.advantage is not None else cell.why
    return f"{cell.verdict}: {reason}" if reason and cell.verdict else cell.verdict


def summary_line(result: SweepResult) -> str:
    counts = f"{result.computed} cells computed, {result.reused} reused from the data set"
    cut = "" if len(result.cells) <= MOST_ROWS else f"; the table shows the Pareto front of {len(result.cells)} cells"
    folder = f"; kept in {result.folder}" if result.folder is not None else ""
    return f"{counts}, {result.elapsed_s:.1f} s{cut}{folder}"


def error_lines(result: SweepResult) -> list[str]:
    """Cells without figures: one line for each error, with all the cells that have it."""
    labels: dict[str, list[str]] = {}
    for cell in result.errors:
        labels.setdefault(cell.error, []).append(cell.label)
    return [f"{cut('; '.join(cells), 500)}: {error}" for error, cells in labels.items()]


def progress_line(now: SweepProgress) -> str:
    left = "" if now.left_s is None else f", {time_text(now.left_s)} left"
    failed = f", {now.failed} without figures" if now.failed else ""
    nobody = ", no workers yet" if now.workers == 0 and now.done < now.total else ""
    return f"{now.done} of {now.total} cells{failed}{left}{nobody}"


def time_text(seconds: float) -> str:
    """``1:05:09`` or ``5:09``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def sweep_figure(result: SweepResult, metric: str = "mean_e2el_s") -> Any:
    """Both panels, one line for each combination of the axes behind the first. Raises InputError: no ``metric``."""
    figure = panels("Pareto front", metric, horizontal_spacing=0.1)
    _draw_pareto(figure, result)
    _draw_metric(figure, result, metric, col=2, showlegend=False)
    return figure.update_layout(template="plotly_white", title=swept_title(result), width=1200, height=560)


def pareto_figure(result: SweepResult) -> Any:
    """The Pareto panel alone; ``customdata`` of a marker is the number of its cell in ``result.cells``."""
    figure = panels()
    _draw_pareto(figure, result)
    return styled(figure, height=440).update_layout(clickmode="event+select")


def metric_figure(result: SweepResult, metric: str) -> Any:
    """The panel of one figure along the first axis alone. Raises InputError as of `sweep_figure`."""
    figure = panels()
    _draw_metric(figure, result, metric, showlegend=True)
    figure.update_yaxes(title_text=figure_label(metric))
    return styled(figure, height=360)


def metrics_of(result: SweepResult) -> list[str]:
    """Names of the figures that some cell has, in order."""
    return sorted({name for cell in result.cells for name in cell.figures})


def figure_label(name: str) -> str:
    """``mean_e2el_s`` in words with its unit: mean E2E latency, s."""
    in_seconds = name.endswith("_s") and not name.endswith("_per_s")
    unit = "s" if in_seconds else LOOKS["units"].get(name, "")
    parts = name.removesuffix("_s").split("_") if in_seconds else name.split("_")
    words = " ".join(LOOKS["words"].get(part, part) for part in parts).replace(" per ", "/")
    return f"{words}, {unit}" if unit else words


def _draw_pareto(figure: Any, result: SweepResult) -> None:
    number = {id(cell): index for index, cell in enumerate(result.cells)}
    label_axes(figure, "tokens/s/GPU", "tokens/s/user (1 / mean TPOT)")
    ring = {"symbol": "circle-open", "size": 15, "line": {"width": 2}}
    x, y = (means([cell.figures[key] for cell in result.pareto]) for key in (GPU, USER))
    # Behind the cells, so that a click reaches them.
    series(figure, "Pareto front", LIMIT, x, y, marker=ring, hoverinfo="skip")
    for name, colour, cells in _lines(result):
        x, y = (means([cell.figures.get(key) for cell in cells]) for key in (GPU, USER))
        hover = "%{text}<br>%{x:.4g} tokens/s/GPU, %{y:.4g} tokens/s/user<extra></extra>"
        style = {"mode": "lines+markers", "marker_size": 8, "legendgroup": name, "hovertemplate": hover}
        numbers = [number[id(cell)] for cell in cells]
        series(figure, name, colour, x, y, text=[_text(cell) for cell in cells], customdata=numbers, **style)


def _draw_metric(figure: Any, result: SweepResult, metric: str, *, col: int = 1, showlegend: bool) -> None:
    if metric not in metrics_of(result):
        names = ", ".join(metrics_of(result)) or "none: no cell has figures"
        raise InputError(f"no such figure; there are {names}", file="--metric", value=metric)
    label_axes(figure, result.axes[0].name, cell=(1, col))
    for name, colour, cells in _lines(result):
        xs = (cell.values[result.axes[0].name] for cell in cells)
        x = [value if isinstance(value, int | float) else str(value) for value in xs]
        values = [cell.shown_figures.get(metric) for cell in cells]
        style = {"mode": "lines+markers", "legendgroup": name, "showlegend": showlegend, "cell": (1, col)}
        style |= {"error_y": interval_bars(values), "text": list(map(_text, cells))}
        series(figure, name, colour, x, means(values), **style)


def _text(cell: SweepCell) -> str:
    return "<br>".join(text for text in (cell.label, advantage_text(cell)) if text)


def _lines(result: SweepResult) -> Iterator[tuple[str, str, list[SweepCell]]]:
    """Name, colour and cells with figures of each line: one for the values of all axes but the first, in grid order."""
    from plotly.colors import qualitative

    first = result.axes[0].name
    cells_by_name: dict[str, list[SweepCell]] = {}
    for cell in result.cells:
        if cell.figures:
            rest = SweepCell({k: v for k, v in cell.values.items() if k != first}).label
            cells_by_name.setdefault(rest or first, []).append(cell)
    colours = itertools.cycle((*qualitative.D3, *qualitative.Set2))  # they read on light and dark
    for (name, cells), colour in zip(cells_by_name.items(), colours, strict=False):
        yield name, colour, cells
