"""Files a reader gives: scenarios and traces, checked by the same validators as on the command line.

A file is kept in the session's own folder under a plain name, parsed, and never executed. What is too large is refused
before it is written.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import streamlit as st

from draftcast.calibration.live.bench_result import import_bench_result
from draftcast.calibration.live.run_directory import CHUNKS, JOURNAL, MANIFEST, REQUESTS
from draftcast.dashboards.session.plain_text import literal
from draftcast.dashboards.session.session import Question, Session, check_names, short_error
from draftcast.errors import DraftcastError, InputError
from draftcast.files import parse_json, write_bytes
from draftcast.kernels.model.catalog import load_model
from draftcast.scenarios.compare.page_effort import QUICK_REQUESTS
from draftcast.scenarios.run.choices import with_arrivals
from draftcast.scenarios.run.measured_run import read_measured_run
from draftcast.scenarios.run.workload_spec import workload_spec
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import DEFAULT_SCENARIO, load_scenario, to_mapping, with_values
from draftcast.scenarios.schema.references import outside_names
from draftcast.scenarios.show.validation_sweep_summary import read_summary
from draftcast.sim.compiled.random_streams import replication_seed
from draftcast.sim.workload.request_table import RequestTable
from draftcast.sim.workload.spec import build_requests
from draftcast.sim.workload.traces import read_trace

SCENARIO_MB, VALIDATION_MB, TRACE_MB = 1, 8, 64
# Of a live run directory, what the comparison reads.
LIVE_FILES = (MANIFEST, REQUESTS, CHUNKS, JOURNAL)
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
    plain = plain_name(name)
    _check_size(plain, len(content), limit_mb)
    target = session.path / plain
    write_bytes(target, content)
    return target


def plain_name(name: str) -> str:
    """A file name that stands for nothing but itself."""
    return _NOT_PLAIN.sub("_", Path(name).name).lstrip(".")[-80:] or "upload"


def _check_size(name: str, size: int, limit_mb: int) -> None:
    if size > limit_mb * 2**20:
        raise InputError(f"is larger than the {limit_mb} MB this page takes", file=name, value=f"{size} bytes")


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
    notes = "".join(f" {note.replace(f'{session.path}/', '')}." for note in trace_notes(scenario))
    when = f"over {table.span_s:,.0f} s" if table.has_arrivals else "without times: its lengths are used"
    return Receipt(
        f"{path.name}: {len(table):,} requests {when}; mean prompt {table.prompt_tokens.mean():,.0f}, mean output "
        f"{table.output_tokens.mean():,.0f} tokens.{notes}",
        True,
    )


def trace_notes(scenario: Scenario) -> tuple[str, ...]:
    """What is left out, cut or repeated of the traces that a scenario serves; none where it serves none."""
    data = to_mapping(scenario)
    names = outside_names(data).items()
    traces = [Path(name) for key, name in names if key.endswith(("arrivals.path", "lengths.path"))]
    if not traces or not all(trace.is_file() for trace in traces):
        return ()
    return _trace_notes(json.dumps(data), tuple(trace.stat().st_mtime_ns for trace in traces))


@functools.lru_cache(maxsize=64)
def _trace_notes(question: str, _changed_ns: tuple[int, ...]) -> tuple[str, ...]:
    scenario = load_scenario(json.loads(question))
    limit = scenario.engine.max_model_len or load_model(scenario.engine.model).max_position_embeddings
    seed = replication_seed(scenario.statistics.seed, 0)
    try:
        return build_requests(workload_spec(scenario), seed, None, limit).notes
    except DraftcastError:
        return ()  # the page says why in place of its answer


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


def take_measured(session: Session, files: Mapping[str, bytes]) -> Receipt:
    """Keep an uploaded measured run for Compare: one bench result, or the files of a live run directory."""
    try:
        _check_size("the upload", sum(map(len, files.values())), TRACE_MB)
        name = _keep_measured(session, files)
    except DraftcastError as error:
        return Receipt(short_error(error), False)
    if name not in session.measured:
        session.measured = [*session.measured, name]
    session.touched = True
    run = read_measured_run(session.measured_folder(name))
    return Receipt(f"{name}: {run.facts['requests']}", True)


def _keep_measured(session: Session, files: Mapping[str, bytes]) -> str:
    """Its name; nothing is left of what cannot be read."""
    own = {Path(name).name: content for name, content in files.items()}
    if MANIFEST not in own and len(own) != 1:
        raise InputError(f"give one result of vllm bench serve, or a run's {MANIFEST}, {REQUESTS} and {CHUNKS}")
    name = _live_name(own[MANIFEST]) if MANIFEST in own else plain_name(next(iter(own)))
    if name not in session.measured and session.room <= 0:
        raise InputError("Compare is full: remove a run first", file=name)
    folder = session.measured_folder(name)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        if MANIFEST in own:
            folder.mkdir()
            for file in LIVE_FILES:
                if file in own:
                    write_bytes(folder / file, own[file])
        else:
            import_bench_result(keep(session, name, own.popitem()[1], TRACE_MB), folder)
        read_measured_run(folder)
    except DraftcastError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return name


def _live_name(manifest: bytes) -> str:
    found = parse_json(manifest, MANIFEST)
    label = "-".join(str(found.get(key, "")) for key in ("name", "created_at")) if isinstance(found, dict) else ""
    return plain_name(label.strip("-") or "live-run")


def take_validation(session: Session, name: str, content: bytes) -> Receipt:
    """Keep the report of a validated sweep for Trust."""
    try:
        found = read_summary(content, plain_name(name))
        session.validation = keep(session, f"validation-{plain_name(name)}", content, VALIDATION_MB).name
    except InputError as error:
        return Receipt(short_error(error), False)
    return Receipt(f"{name}: {found.head()[1]}", True)


def scenario_uploader(session: Session) -> None:
    """The uploader of the sidebar."""
    told = "The file that `draftcast simulate` takes, or one downloaded here. Checked, never executed."
    _uploader(session, "scenario", "Upload a scenario (YAML)", ["yaml", "yml"], SCENARIO_MB, told, take_scenario)


def trace_uploader(session: Session) -> None:
    """The uploader of What-if."""
    told = "Azure, BurstGPT, Mooncake, ShareGPT with token counts, vllm bench serve or SpecDecode-Bench."
    _uploader(session, "trace", "Upload a trace", ["csv", "json", "jsonl", "txt"], TRACE_MB, told, take_trace)


def validation_uploader(session: Session) -> None:
    """The uploader of Trust."""
    told = "sweep-validation.json of `draftcast live report` about your own server."
    _uploader(session, "validation", "Upload a validation (JSON)", ["json"], VALIDATION_MB, told, take_validation)


def measured_uploader(session: Session) -> None:
    """The uploader of Compare."""
    st.file_uploader(
        "Upload a measured run",
        type=["json", "jsonl", "parquet"],
        accept_multiple_files=True,
        key="upload-measured",
        max_upload_size=TRACE_MB,
        help="One result of `vllm bench serve --save-result --save-detailed`, or the files of a `draftcast live run` "
        "directory together: manifest.json, requests.parquet, chunks.parquet.",
        on_change=_received_measured,
        args=(session,),
    )
    _show_receipt("upload-measured")


def _uploader(
    session: Session, what: str, label: str, kinds: list[str], most_mb: int, told: str, take: Callable[..., Receipt]
) -> None:
    """Of one file, and what came of the last."""
    key = f"upload-{what}"
    st.file_uploader(
        label,
        type=kinds,
        key=key,
        max_upload_size=most_mb,
        help=told,
        on_change=_received,
        args=(session, key, take),
    )
    _show_receipt(key)


def _received_measured(session: Session) -> None:
    files = {file.name: file.getvalue() for file in st.session_state["upload-measured"]}
    st.session_state["upload-measured:receipt"] = take_measured(session, files) if files else None


def _received(session: Session, key: str, take: Callable[..., Receipt]) -> None:
    file = st.session_state[key]
    st.session_state[f"{key}:receipt"] = take(session, file.name, file.getvalue()) if file is not None else None


def _show_receipt(key: str) -> None:
    receipt: Receipt | None = st.session_state.get(f"{key}:receipt")
    if receipt is not None:
        (st.success if receipt.good else st.error)(literal(receipt.text))
