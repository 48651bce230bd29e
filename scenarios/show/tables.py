"""Tables and pages of texts: for a terminal, as Markdown, HTML and JSON. The first row of a table is its header."""

import html
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from draftcast.files import plain
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import gpus_by_device
from draftcast.sim.statistics.intervals import Estimate
from draftcast.yaml_text import yaml_beside

Rows = Sequence[Sequence[str]]
MISSED = "MISSED"  # a cell with this word stands out
PLAIN_WIDTH = 150  # without a terminal there is nobody to resize the window: what the widest table needs
_NUMBER = re.compile(r"[-+]?\d|[-*?]?$|none$|(pays|costs)\*$")
LOOKS = yaml_beside(__file__, "looks.yaml")
_SHARES = ("interval", "median", "p90", "worst", "share")
_PAGE = Template(Path(__file__).with_name("page.html").read_text("utf-8"))


def make_console() -> Console:
    """Standard output, texts as they are; wide enough for the tables when it is a file or a pipe."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    return console


def make_table(rows: Rows, *, title: str = "", caption: str = "", sections: Collection[int] = ()) -> Table:
    """For a console; columns of numbers are aligned to the right, and a line follows each row in ``sections``."""
    head, *body = rows
    table = Table(title=title or None, title_justify="left", caption=caption or None)
    for name, number in zip(head, _numbers(rows), strict=True):
        table.add_column(name, justify="right" if number else "left")
    for index, row in enumerate(body):
        table.add_row(*row, end_section=index in sections)
    return table


def _numbers(rows: Rows) -> list[bool]:
    """Which columns hold numbers, with their intervals or units, and dashes only."""
    return [all(_NUMBER.match(row[column]) for row in rows[1:]) for column in range(len(rows[0]))]


def rows_table(rows: list[dict[str, Any]], title: str = "") -> Table:
    """A table of like rows: errors as percentages, other numbers with four digits, unknown ones as a dash."""
    cells = [[_cell(name, value) for name, value in row.items()] for row in rows]
    return make_table([[LOOKS["titles"].get(name, name) for name in rows[0]], *cells], title=title)


def _cell(name: str, value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if name in _SHARES:
        return f"{value:.1%}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def aligned(rows: Rows) -> list[str]:
    """Lines of plain text: the first column to the left, the others to the right."""
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    return [
        "  ".join([row[0].ljust(first), *(cell.rjust(width) for cell, width in zip(row[1:], others, strict=True))])
        for row in rows
    ]


def markdown_table(rows: Rows) -> str:
    """Columns of numbers are aligned to the right."""
    header, *body = rows
    rule = ["---:" if number else "---" for number in _numbers(rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *body))


def html_table(rows: Rows) -> str:
    """Cells that hold `MISSED` stand out on a `page`."""
    lines = []
    for number, row in enumerate(rows):
        tag, missed = "td" if number else "th", ' class="missed"'
        cells = (f"<{tag}{missed if MISSED in cell else ''}>{html.escape(cell)}</{tag}>" for cell in row)
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table>{''.join(lines)}</table>"


def paragraphs(lines: Sequence[str]) -> list[str]:
    return [f"<p>{html.escape(line)}</p>" for line in lines]


def page(title: str, parts: Sequence[str]) -> str:
    """A self-contained HTML page; ``parts`` are HTML, ``title`` is not."""
    return _PAGE.substitute(title=html.escape(title), body="\n".join(parts))


def html_report(title: str, lines: Sequence[str], tables: Mapping[str, pd.DataFrame], figures: Sequence[Any]) -> str:
    """One HTML file that needs no network: sentences, tables, and plotly pictures that still answer the mouse."""
    parts = paragraphs(lines)
    for name, table in tables.items():
        shown = table.to_html(index=False, border=0, float_format=lambda value: f"{value:.4g}")
        parts.append(f"<h2>{html.escape(name)}</h2>{shown}")
    for index, figure in enumerate(figures):
        figure.update_layout(template="plotly_white")
        parts.append(figure.to_html(full_html=False, include_plotlyjs=index == 0, config={"displaylogo": False}))
    return page(title, parts)


def json_bytes(data: Mapping[str, Any]) -> bytes:
    """JSON as ``--json`` prints it, indented; NaN and infinities become null."""
    return (json.dumps(plain(data), indent=1, allow_nan=False) + "\n").encode()


LOPSIDED = 0.4  # from which difference of an interval's arms, over their mean length, its bounds are shown


def show(value: Estimate | None, factor: float = 1.0) -> str:
    """Mean and half width of the interval, its bounds where the mean is not near its middle; a dash when undefined."""
    if value is None or math.isnan(value.mean):
        return "-"
    scaled = value.scaled(factor)
    digits = 0 if abs(scaled.mean) >= 1000 else 1 if abs(scaled.mean) >= 100 else 2
    return f"{scaled.mean:,.{digits}f} {interval(scaled, f'{{:,.{digits}f}}'.format)}".rstrip()


def interval(value: Estimate, number: Callable[[float], str]) -> str:
    """What `show` says after the mean, with bounds as ``number`` writes them; empty where there is no interval."""
    if math.isinf(value.half_width):  # of a load that may be too much for the other side
        return f"({number(value.low)} or more)"
    if abs(value.high + value.low - 2.0 * value.mean) > LOPSIDED * value.half_width:
        return f"({number(value.low)} to {number(value.high)})"
    return "" if math.isnan(value.half_width) else f"±{number(value.half_width)}"


def saturated_line(capacities: Mapping[str, Estimate | None]) -> str:
    """By side, a few words; empty where no capacity is known."""
    shown = [f"{show(capacity)} req/s {side}".rstrip() for side, capacity in capacities.items() if capacity is not None]
    return f"Saturated, the cluster completes {', '.join(shown)}." if shown else ""


def note_lines(notes: Iterable[str]) -> list[str]:
    """Each once, as a sentence; some notes end with a full stop already."""
    return [f"Note: {note}." for note in dict.fromkeys(note.removesuffix(".") for note in notes)]


def title(scenario: Scenario, *, with_policy: bool = True) -> str:
    """Model, device, speculation and policy of a scenario, on one line; what it is calibrated to on a second."""
    engine, spec = scenario.engine, scenario.speculative_config
    drafted = f"{scenario.method}, k={spec.k}" if spec is not None else "no speculation"
    size = f"{scenario.cluster.replicas} x {engine.layout}"
    if scenario.cluster.groups:
        size = f"{len(scenario.cluster.groups)} groups, {scenario.cluster.replicas} replicas"
    policy = f"; policy {scenario.resolved_policy.name}" if with_policy else ""
    calibrated = f"\n{scenario.correction.sentence}" if scenario.correction is not None else ""
    return f"{engine.model} on {' and '.join(gpus_by_device(scenario))} ({size}); {drafted}{policy}{calibrated}"
