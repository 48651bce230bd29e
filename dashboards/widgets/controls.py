"""Widgets bound to keys of the question: each shows what the scenario says and writes what its reader changes.

The scenario is the truth; a widget is set from it on every run, so that a link, an upload and another page's control
reach it too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st

from draftcast.dashboards.session.session import Session

Change = Callable[[Any], Mapping[str, Any]]


def number_control(
    session: Session,
    label: str,
    key: str,
    value: float | None,
    *,
    low: float,
    help: str,
    high: float | None = None,
    step: float | None = None,
    change: Change | None = None,
    format: str | None = None,
    placeholder: str | None = None,
    width: int = 140,
) -> None:
    """A number of the kind that ``low`` is (int or float); empty means the key's default.

    A value that a file or a link gives may lie beyond what the control offers: it is shown all the same.
    """
    kind = type(low)
    value = None if value is None else kind(value)
    if value is not None:
        low = min(low, value)
        high = max(high, value) if high is not None else None
    name = f"control:{key}"
    st.session_state[name] = value
    st.number_input(
        label,
        min_value=kind(low),
        max_value=None if high is None else kind(high),
        value=None,
        step=None if step is None else kind(step),
        format=format,
        key=name,
        help=help,
        placeholder=placeholder,
        width=width,
        on_change=_apply,
        args=(session, name, key, change),
    )


def choice_control(
    session: Session,
    label: str,
    key: str,
    value: Any,
    options: Sequence[Any],
    *,
    help: str,
    change: Change | None = None,
    shown: Callable[[Any], str] = str,
    width: int = 190,
) -> None:
    """One of several; what the scenario holds is offered even where the list has no such entry."""
    name = f"control:{key}"
    st.session_state[name] = value
    st.selectbox(
        label,
        [*options, *([] if value in options else [value])],
        key=name,
        help=help,
        format_func=shown,
        width=width,
        on_change=_apply,
        args=(session, name, key, change),
    )


def text_control(
    session: Session,
    label: str,
    key: str,
    value: str,
    *,
    help: str,
    change: Change,
    placeholder: str | None = None,
    width: int = 190,
) -> None:
    """Free text, read by ``change``."""
    name = f"control:{key}"
    st.session_state[name] = value
    st.text_input(
        label,
        key=name,
        help=help,
        placeholder=placeholder,
        width=width,
        on_change=_apply,
        args=(session, name, key, change),
    )


def _apply(session: Session, name: str, key: str, change: Change | None) -> None:
    value = st.session_state[name]
    session.change(lambda: change(value) if change is not None else {key: value})
