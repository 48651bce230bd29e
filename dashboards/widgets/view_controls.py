"""Widgets bound to a page's own settings (`Session.views`): what a link says goes through the same check as a control.

A setting is kept as the text that the command line would take, so that a link can be read and written by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import streamlit as st

from draftcast.dashboards.session.session import Session, short_error
from draftcast.errors import InputError

T = TypeVar("T")
Read = Callable[[str], T]


def read_view(session: Session, key: str, default: str, read: Read[T]) -> T:
    """The setting's value; what a link says wrongly is told and left out.

    Args:
        read: text to value; InputError for what is not allowed.
    """
    if key not in session.views:
        return read(default)
    try:
        return read(session.views[key])
    except InputError as error:
        session.warnings.append(f"{key}: {short_error(error)}; left out")
        del session.views[key]
        return read(default)


def set_view(session: Session, key: str, text: str, default: str, read: Read[Any]) -> None:
    """Change a setting; what ``read`` refuses changes nothing and is told on the page."""
    try:
        read(text)
    except InputError as error:
        session.refused, session.touched = short_error(error), True
    else:
        session.refused = ""
        session.see(key, text, default)


def view_control(
    widget: Callable[..., Any], label: str, name: str, value: Any, write: Callable[[Any], None], **options: Any
) -> None:
    """A Streamlit widget that shows ``value`` and hands what its reader changes to ``write``."""
    key = f"control:{name}"
    st.session_state[key] = value
    widget(label, key=key, on_change=lambda: write(st.session_state[key]), **options)


def number_of(low: float, high: float) -> Read[float]:
    """Reads a number from ``low`` to ``high``."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise InputError(f"must be a number from {low:g} to {high:g}", value=text)
        return value

    return read


def some_of(allowed: Sequence[str]) -> Read[tuple[str, ...]]:
    """Reads names separated by commas, at least one."""

    def read(text: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
        if not set(names) <= set(allowed):
            raise InputError(f"choose from {', '.join(allowed)}", value=text)
        return names

    return read
