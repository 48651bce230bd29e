"""Text of links, uploads, file names and errors, as a page may show it."""

from __future__ import annotations

import re

import streamlit as st

_MARKS = re.compile(r"([\\`*_{}\[\]<>()#|~$:^=&!+-])")


def short(text: object, folder: str = "") -> str:
    """``text`` with ``folder`` in place of the path of the session's own folder, which is nobody's business."""
    session = st.session_state.get("session")
    return str(text).replace(f"{session.path}/", folder) if session is not None else str(text)


def literal(text: object) -> str:
    """``short(text)`` as Markdown with every mark escaped: no link, picture, formula, colour or heading in it."""
    return _MARKS.sub(r"\\\1", " ".join(short(text).split()))
