"""Answers that take seconds: made when asked for, with a bar, and kept while the server runs.

What takes long is asked for by a button, not by every key that is pressed. The link holds what was asked for and
shows it again; another scenario is another question and waits for the button.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import streamlit as st

from draftcast.dashboards.session.kept import Kept
from draftcast.dashboards.session.session import Session
from draftcast.dashboards.widgets.page import under_bar
from draftcast.sim.progress import Progress

T = TypeVar("T")
_KEPT: Kept[Any] = Kept(64)


def long_answer(key: Hashable, text: str, make: Callable[[Progress], T]) -> T:
    """What ``make`` gives, or gave for the same key in any session; ``text`` stands over the bar while it works."""
    found: T = _KEPT.get(key, lambda: under_bar(text, make))
    return found


def asked_for(session: Session, view: str, question: str, label: str, explained: str) -> bool:
    """Whether ``question`` was asked for; a button to do so where it was not.

    Args:
        view: the link's key that holds what was asked for.
        question: everything the answer depends on, as text.
    """
    token = hashlib.sha256(question.encode()).hexdigest()[:12]
    if session.views.get(view) == token:
        return True
    st.button(
        label,
        key=f"ask-{view}",
        icon=":material/play_arrow:",
        help=explained,
        on_click=session.see,
        args=(view, token, ""),
    )
    return False
