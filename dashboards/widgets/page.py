"""What pages have in common: notes on top, the answer in a sentence, answers that take long, tables as HTML."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence
from html import escape
from typing import Any, NamedTuple, TypeVar

import streamlit as st

from draftcast.dashboards.session.answers import Kept
from draftcast.dashboards.session.plain_text import literal
from draftcast.dashboards.session.session import Session, View
from draftcast.dashboards.session.uploads import trace_notes
from draftcast.dashboards.widgets.controls import button
from draftcast.errors import InputError
from draftcast.sim.progress import Progress

T = TypeVar("T")
_LONG: Kept[Any] = Kept(96)


def banner(session: Session) -> None:
    """What a link asked for and did not get, a change that was refused, and what is cut of a trace."""
    for warning in session.warnings:
        st.warning(literal(warning), icon=":material/link_off:")
    if session.refused:
        st.error(f"Not changed: {literal(session.refused)}", icon=":material/block:")
    for note in trace_notes(session.question.scenario):
        st.warning(literal(note), icon=":material/content_cut:")


def cannot_run(session: Session, error: InputError) -> None:
    """In place of an answer: why there is none."""
    if missing := session.missing_uploads:
        upload_again(" and ".join(missing))
    else:
        st.error(f"This cannot be simulated: {literal(error)}", icon=":material/error:")


def upload_again(name: str) -> None:
    """A link named a file that was uploaded in another session."""
    st.error(f"Upload {literal(name)} again: a link does not carry files.", icon=":material/upload_file:")


def long_answer(key: Hashable, text: str, make: Callable[[Progress], T]) -> T:
    """What ``make`` gives, or gave for the same key in any session; ``text`` stands over a bar while it works.

    A change of any control ends it and begins anew.
    """

    def under_bar() -> T:
        bar = st.progress(0.0, text=text)

        def progress(share: float) -> None:
            bar.progress(min(share, 1.0), text=text)

        try:
            return make(progress)
        finally:
            bar.empty()

    result: T = _LONG.get(key, under_bar)
    return result


def asked_for(session: Session, view: View, question: str, label: str, help: str) -> bool:
    """Whether ``question`` was asked for; a button to do so where it was not.

    What takes long is asked for by a button, not by every key that is pressed. The link holds what was asked for and
    shows it again, as a hash of everything the answer depends on; another scenario waits for the button.
    """
    token = hashlib.sha256(question.encode()).hexdigest()[:12]
    if session.views.get(view) == token:
        return True
    button(label, "play_arrow", session.see, view, token, key=f"ask-{view}", help=help)
    return False


def verdict_line(text: str, *, bold: int = 0, tone: str = "", why: str = "", **data: object) -> None:
    """The page's answer in a sentence, its first ``bold`` characters standing out, and a second, quieter one.

    ``tone``, ``better`` or ``worse``, colours what is bold, or all; ``data`` is for those who read the page by program.
    """
    attributes = "".join(f" data-{name}='{escape(str(value), quote=True)}'" for name, value in data.items())
    head = f"<b class='{tone and f'dc-{tone}'}'>{escape(text[:bold])}</b>" if bold else ""
    look = "dc-verdict" if bold or not tone else f"dc-verdict dc-{tone}"
    below = f"<p class='dc-why'>{escape(why)}</p>" if why else ""
    st.html(f"<p class='{look}'{attributes}>{head}{escape(text[bold:])}</p>{below}")


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
    """A table that scrolls on a narrow page; ``facts``: text to the left. An empty head is left out."""
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
