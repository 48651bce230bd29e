"""Text of links, uploads and file names, as Markdown that shows it as it is."""

from __future__ import annotations

import re

_MARKS = re.compile(r"([\\`*_{}\[\]<>()#|~$:^=&!+-])")


def literal(text: str) -> str:
    """``text`` with every mark escaped: no link, picture, formula, colour or heading is made of it."""
    return _MARKS.sub(r"\\\1", " ".join(text.split()))
