"""Tables for a terminal and for a self-contained HTML page. Knows nothing of what stands in them."""

from __future__ import annotations

import html
from collections.abc import Sequence

MISSED = "MISSED"
"""A cell with this word stands out."""

_STYLE = (
    "body{font:15px/1.45 system-ui,sans-serif;margin:2em auto;max-width:1120px;padding:0 1em}"
    "table{border-collapse:collapse;margin:1em 0}p{margin:.3em 0}"
    "td,th{padding:2px 10px;text-align:right;border-bottom:1px solid #ddd}"
    "td:first-child,th:first-child{text-align:left}.missed{color:#c92a2a;font-weight:600}"
)


def page(title: str, body: str) -> str:
    """A self-contained HTML page; ``body`` is HTML, ``title`` is not."""
    shown = html.escape(title)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{shown}</title><style>{_STYLE}</style>'
        f"</head><body><h1>{shown}</h1>\n{body}\n</body></html>\n"
    )


def html_table(table: Sequence[Sequence[str]]) -> str:
    """The first row is the header."""
    lines = []
    for number, row in enumerate(table):
        tag = "td" if number else "th"
        cells = []
        for cell in row:
            style = ' class="missed"' if MISSED in cell else ""
            cells.append(f"<{tag}{style}>{html.escape(cell)}</{tag}>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table>{''.join(lines)}</table>"


def markdown_table(table: Sequence[Sequence[str]]) -> str:
    """The first row is the header; all columns but the first to the right."""
    header, *rows = table
    rule = ["---", *("---:" for _ in header[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows))


def aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table for a terminal: the first column to the left, the others to the right."""
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = []
    for row in table:
        padded = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *padded[1:]]))
    return lines
