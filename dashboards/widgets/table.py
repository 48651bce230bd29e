"""Tables as HTML: they wrap nothing, scroll where the page is narrow, and hold links."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple


class Link(NamedTuple):
    """A cell that leads somewhere; ``hint`` says where for those who cannot see the table."""

    text: str
    href: str
    hint: str


class Bad(NamedTuple):
    """A cell that stands out."""

    text: str


Cell = str | Link | Bad


def html_table(head: Sequence[str], rows: Sequence[Sequence[Cell]], *, facts: bool = False, name: str = "Table") -> str:
    """A table as HTML; a head of empty strings is left out, ``facts`` are text to the left rather than numbers."""
    heads = "".join(f"<th scope='col'>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    top = f"<thead><tr>{heads}</tr></thead>" if any(head) else ""
    look = "dc-table dc-facts" if facts else "dc-table"
    return (
        f"<div class='{look}' tabindex='0' role='region' aria-label='{escape(name, quote=True)}'><table>{top}"
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(cell: Cell) -> str:
    if isinstance(cell, Bad):
        return f"<b class='dc-worse'>{escape(cell.text)}</b>"
    if not isinstance(cell, Link):
        return escape(cell)
    href, hint = escape(cell.href, quote=True), escape(cell.hint, quote=True)
    return f"<a href='{href}' target='_blank' rel='noopener' title='{hint}'>{escape(cell.text)}</a>"
