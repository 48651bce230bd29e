"""Under every page: what was run, how to run it again from a shell, and the files to take away."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import streamlit as st

from draftcast import __version__
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import dump_scenario
from draftcast.scenarios.show.exports import csv_bytes, html_report, json_bytes, parquet_bytes

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Exports:
    """What a page offers to take away; each is made only when it is asked for.

    Attributes:
        name: start of the files' names.
        rows: the table of CSV and Parquet.
        summary: the object of the JSON file.
        scenario: of the YAML file; None where the page shows no single scenario.
        title, lines, tables, figures: of the HTML file.
    """

    name: str
    rows: Callable[[], pd.DataFrame]
    summary: Callable[[], Mapping[str, Any]]
    scenario: Scenario | None
    title: str
    lines: Sequence[str]
    tables: Callable[[], Mapping[str, pd.DataFrame]]
    figures: Callable[[], Sequence[Any]]


def footer(facts: Mapping[str, str], command: str, exports: Exports | None) -> None:
    """The facts in one line, the command to copy, the downloads where there is something to take away."""
    st.divider()
    shown = "".join(f"<span>{escape(name)} <code>{escape(value)}</code></span>" for name, value in facts.items())
    st.html(f"<div class='dc-footer' role='contentinfo'>{shown}<span>draftcast <code>{__version__}</code></span></div>")
    st.caption("The same from a shell")
    st.code(command, language="bash", wrap_lines=True)
    if exports is None:
        return
    with st.container(horizontal=True, key="exports"):
        _button("CSV", "csv", "text/csv", exports.name, lambda: csv_bytes(exports.rows()))
        _button("Parquet", "parquet", "application/octet-stream", exports.name, lambda: parquet_bytes(exports.rows()))
        _button("JSON", "json", "application/json", exports.name, lambda: json_bytes(exports.summary()))
        scenario = exports.scenario
        if scenario is not None:
            _button("Scenario YAML", "yaml", "text/yaml", exports.name, lambda: dump_scenario(scenario).encode())
        _button("HTML report", "html", "text/html", exports.name, lambda: _report(exports))


def _button(label: str, suffix: str, mime: str, name: str, make: Callable[[], bytes]) -> None:
    st.download_button(
        label,
        make,
        file_name=f"{name}.{suffix}",
        mime=mime,
        key=f"export-{suffix}",
        on_click="ignore",
        icon=":material/download:",
    )


def _report(exports: Exports) -> bytes:
    return html_report(exports.title, exports.lines, exports.tables(), exports.figures()).encode()
