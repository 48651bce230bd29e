"""A profile for people: where it comes from, its rooflines, how far predictions miss, what was measured."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from typing import Any

from rich.table import Table

from draftcast.scenarios.show.tables import make_table

WIDTH = 110
_SHARES = ("interval", "median", "p90", "worst", "share")
_TITLES = {
    "t0_us": "t0, us",
    "held_out": "held out",
    "intervals_meet": "intervals meet",
    "kv_dtype": "KV",
    "worst_point": "worst at",
}
ROOFLINE_NOTE = (
    "t = t0 + p-norm of FLOPs / (e_c * peak) and bytes / (e_m * bandwidth); where points were measured, times are "
    "interpolated between them and the roofline serves the shapes beyond."
)
ERROR_NOTE = "Error of interpolation on measured points that took no part in it."


def provenance_lines(shown: Mapping[str, Any]) -> list[str]:
    """Name and value of every entry; mappings as lists, numbers of them rounded, long values folded."""
    label = max(10, *(len(name) for name in shown)) + 1
    lines = []
    for name, value in shown.items():
        text = _flat(value) if isinstance(value, Mapping) else str(value)
        body = "; ".join(f"{count:,} {reason}" for reason, count in value.items()) if name == "left_out" else text
        lines += textwrap.wrap(body, WIDTH, initial_indent=f"{name:<{label}}", subsequent_indent=" " * label) or [name]
    return lines


def _flat(value: Mapping[str, Any], prefix: str = "") -> str:
    parts = []
    for key, item in value.items():
        if isinstance(item, Mapping):
            parts.append(_flat(item, f"{prefix}{key} "))
        elif item != "":
            parts.append(f"{prefix}{key} {item:.4g}" if isinstance(item, float) else f"{prefix}{key} {item}")
    return ", ".join(parts)


def rows_table(rows: list[dict[str, Any]], title: str = "") -> Table:
    """A table of like rows: errors as percentages, other numbers with four digits, unknown ones as a dash."""
    cells = [[_cell(name, value) for name, value in row.items()] for row in rows]
    return make_table([[_TITLES.get(name, name) for name in rows[0]], *cells], title=title)


def _cell(name: str, value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if name in _SHARES:
        return f"{value:.1%}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def coverage_lines(rows: list[dict[str, Any]]) -> list[str]:
    """What was measured, operator by operator: points, how many settled, shapes and kernels."""
    lines = []
    for row in rows:
        formats = f"{row['dtype']} KV {row['kv_dtype']}" if row["kv_dtype"] else row["dtype"]
        known = "no interval known" if row["settled"] is None else f"{row['settled']:.0%} settled"
        lines.append(f"{row['operator']} {formats}: {row['points']:,} points, {known}")
        for text in filter(None, (row["covers"], f"by {row['kernels']}", row["note"])):
            lines += textwrap.wrap(text, WIDTH, initial_indent="    ", subsequent_indent="    ")
    return lines
