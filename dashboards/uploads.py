"""Files a reader gives: scenarios and traces, checked by the same validators as on the command line.

A file is kept in the session's own folder under a plain name, parsed, and never executed. What is too large is refused
before it is written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import streamlit as st

from draftcast.dashboards.session import QUICK_REQUESTS, Question, Session, check_names, short_error
from draftcast.errors import DraftcastError, InputError
from draftcast.scenarios.choices import with_arrivals
from draftcast.scenarios.load import DEFAULT_SCENARIO, load_scenario, with_values
from draftcast.scenarios.schema import Scenario
from draftcast.sim.request_table import RequestTable
from draftcast.sim.traces import read_trace

SCENARIO_MB, TRACE_MB = 1, 64
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Receipt:
    """What became of an upload: a line for the page."""

    text: str
    good: bool


def keep(session: Session, name: str, content: bytes, limit_mb: int) -> Path:
    """Write an upload into the session's folder.

    Raises:
        InputError: too large.
    """
    plain = _NOT_PLAIN.sub("_", Path(name).name).lstrip(".") or "upload"
    if len(content) > limit_mb * 2**20:
        raise InputError(f"is larger than the {limit_mb} MB this page takes", file=plain, value=f"{len(content)} bytes")
    target = session.path / plain
    target.write_bytes(content)
    return target


def take_scenario(session: Session, name: str, content: bytes) -> Receipt:
    """Make an uploaded YAML file the question; it is told apart from the default scenario."""
    try:
        scenario = load_scenario(keep(session, name, content, SCENARIO_MB))
        check_names(scenario, DEFAULT_SCENARIO, session.path)
    except InputError as error:
        return Receipt(short_error(error), False)
    session.ask(Question(DEFAULT_SCENARIO, scenario))
    return Receipt(f"{name}: {scenario.name or 'scenario'} loaded", True)


def take_trace(session: Session, name: str, content: bytes) -> Receipt:
    """Serve an uploaded trace: its arrivals and lengths, or its lengths alone where it holds no times."""
    try:
        path = keep(session, name, content, TRACE_MB)
        table = read_trace(path)
        scenario = with_values(session.question.scenario, _of_trace(session.question.scenario, path, table))
    except DraftcastError as error:
        return Receipt(short_error(error), False)
    session.ask(Question(session.question.base, scenario))
    notes = "".join(f" {note.replace(f'{session.path}/', '')}." for note in table.notes)
    when = f"over {table.span_s:,.0f} s" if table.has_arrivals else "without times: its lengths are used"
    return Receipt(
        f"{path.name}: {len(table):,} requests {when}; mean prompt {table.prompt_tokens.mean():,.0f}, mean output "
        f"{table.output_tokens.mean():,.0f} tokens.{notes}",
        True,
    )


def _of_trace(scenario: Scenario, path: Path, table: RequestTable) -> dict[str, Any]:
    # A day's trace must answer at once: its beginning is served until the sidebar asks for more.
    values: dict[str, Any] = {
        "workload.num_requests": min(len(table), QUICK_REQUESTS),
        "workload.max_model_len_action": "clip",
    }
    if not table.has_arrivals:
        if scenario.workload.arrivals.process == "trace":
            values |= with_arrivals(scenario, "poisson", 1.0)
        return values | {"workload.lengths": {"path": str(path)}}
    return values | {"workload.arrivals": {"process": "trace", "path": str(path)}, "workload.lengths": None}


def scenario_uploader(session: Session) -> None:
    """The uploader of the sidebar."""
    st.file_uploader(
        "Upload a scenario (YAML)",
        type=["yaml", "yml"],
        key="upload-scenario",
        max_upload_size=SCENARIO_MB,
        help="The file that `draftcast simulate` takes, or one downloaded here. Checked, never executed.",
        on_change=_received,
        args=(session, "upload-scenario", take_scenario),
    )
    _show_receipt("upload-scenario")


def trace_uploader(session: Session) -> None:
    """The uploader of What-if."""
    st.file_uploader(
        "Upload a trace",
        type=["csv", "json", "jsonl", "txt"],
        key="upload-trace",
        max_upload_size=TRACE_MB,
        help="Azure, BurstGPT, Mooncake, ShareGPT with token counts, vllm bench serve or SpecDecode-Bench.",
        on_change=_received,
        args=(session, "upload-trace", take_trace),
    )
    _show_receipt("upload-trace")


def _received(session: Session, key: str, take: Any) -> None:
    file = st.session_state[key]
    st.session_state[f"{key}:receipt"] = take(session, file.name, file.getvalue()) if file is not None else None


def _show_receipt(key: str) -> None:
    receipt: Receipt | None = st.session_state.get(f"{key}:receipt")
    if receipt is not None:
        (st.success if receipt.good else st.error)(receipt.text)
