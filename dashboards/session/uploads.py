"""Files a reader gives: scenarios, traces and measured runs, checked by the same validators as on the command line.

A file is kept in the session's own folder under a plain name, parsed, and never executed. What is too large is refused
before it is written.
"""

import contextlib
import functools
import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import streamlit as st

from draftcast.calibration.acceptance.fit import ngram_model, per_position_model
from draftcast.calibration.acceptance.measure import measure_ngram, measure_suffix, read_token_log
from draftcast.calibration.acceptance.metrics import read_metrics
from draftcast.calibration.live.imported_runs import import_bench_result
from draftcast.calibration.live.run_directory import CHUNKS, JOURNAL, MANIFEST, REQUESTS
from draftcast.dashboards.session.session import ScenarioPair, Session, check_names, short
from draftcast.errors import DraftcastError, InputError
from draftcast.files import parse_json, write_bytes
from draftcast.kernels.model.catalog import load_model
from draftcast.scenarios.compare.capacity import QUICK_REQUESTS
from draftcast.scenarios.run.choices import DEFAULT_K, with_arrivals, with_measured, with_model
from draftcast.scenarios.run.measured_run import read_measured_run
from draftcast.scenarios.run.workload_spec import workload_spec
from draftcast.scenarios.schema import METHODS, Scenario
from draftcast.scenarios.schema.load import DEFAULT_SCENARIO, load_scenario, to_mapping, with_values
from draftcast.scenarios.schema.references import outside_names
from draftcast.scenarios.show.validation_sweep_report import read_summary
from draftcast.sim.compiled.random_streams import replication_seed
from draftcast.sim.workload.build_requests import build_requests
from draftcast.sim.workload.traces import read_trace

Files = Mapping[str, bytes]
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Upload:
    """A kind of file that a page takes; ``take`` keeps them and gives a line for the page, or raises DraftcastError."""

    key: str  # of its look too
    types: tuple[str, ...]
    limit_mb: int  # of all files together
    take: Callable[[Session, Files], str]
    several: bool = False  # files that belong together


class UploadResult(NamedTuple):
    """What became of an upload: a line for the page."""

    text: str
    good: bool


def forget_receipts() -> None:
    """The question is another one: what became of the uploads of the last one no longer matters."""
    for upload in (SCENARIO, TRACE, MODEL, ACCEPTANCE):
        st.session_state.pop(f"{upload.key}:receipt", None)


def receive(session: Session, upload: Upload, files: Files) -> UploadResult:
    """Take files; one that a question already names is served as that says, and changes no question."""
    question, baseline = session.question, session.baseline
    missing = session.missing_of(question, *session.runs, *([baseline] if baseline is not None else []))
    places = [session.path / plain_name(name) for name in files]
    before = {place: place.read_bytes() if place.is_file() else None for place in places}
    try:
        size = sum(map(len, files.values()))
        if size > upload.limit_mb * 2**20:
            text = f"is larger than the {upload.limit_mb} MB this page takes"
            raise InputError(text, file=next(iter(files)), value=size)
        text = upload.take(session, files)
        if awaited := [place.name for place in places if place.name in missing]:
            session.ask(question)
            text = f"{', '.join(awaited)}: taken for the scenario that names it"
        return UploadResult(text, True)
    except DraftcastError as error:
        for place, content in before.items():  # a bad file takes no good one of its name away
            if content is None:
                place.unlink(missing_ok=True)
            else:
                write_bytes(place, content)
        return UploadResult(short(error), False)


def keep(session: Session, name: str, content: bytes) -> Path:
    target = session.path / plain_name(name)
    write_bytes(target, content)
    return target


def plain_name(name: str) -> str:
    """A file name that stands for nothing but itself."""
    return _NOT_PLAIN.sub("_", Path(name).name).lstrip(".")[-80:] or "upload"


def _take_scenario(session: Session, files: Files) -> str:
    """Its changes are those to the default scenario."""
    ((name, content),) = files.items()
    scenario = load_scenario(keep(session, name, content))
    check_names(scenario, DEFAULT_SCENARIO, session.path)
    session.ask(ScenarioPair(DEFAULT_SCENARIO, scenario))
    return f"{name}: {scenario.name or 'scenario'} loaded"


def _take_trace(session: Session, files: Files) -> str:
    """Serve an uploaded trace: its arrivals and lengths, or its lengths alone where it holds no times."""
    path = keep(session, *next(iter(files.items())))
    table, scenario = read_trace(path), session.question.scenario
    # A day's trace must answer at once: its beginning is served until the sidebar asks for more. A number of requests
    # makes it a steady load, so a shorter trace gets none: it is a list that ends, as on the command line.
    ends = table.has_arrivals and len(table) <= QUICK_REQUESTS
    requests = None if ends else min(len(table), QUICK_REQUESTS)
    values: dict[str, Any] = {"workload.num_requests": requests, "workload.max_model_len_action": "clip"}
    if table.has_arrivals:
        values |= {"workload.arrivals": {"process": "trace", "path": str(path)}, "workload.lengths": None}
    else:
        if scenario.workload.arrivals.process == "trace":
            values |= with_arrivals(scenario, "poisson", 1.0)
        values["workload.lengths"] = {"path": str(path)}
    scenario = with_values(scenario, values)
    session.ask(ScenarioPair(session.question.base, scenario))
    notes = "".join(f" {note}." for note in trace_notes(scenario))
    when = f"over {table.span_s:,.0f} s" if table.has_arrivals else "without times: its lengths are used"
    return short(
        f"{path.name}: {len(table):,} requests {when}; mean prompt {table.prompt_tokens.mean():,.0f}, mean output "
        f"{table.output_tokens.mean():,.0f} tokens.{notes}"
    )


def _take_model(session: Session, files: Files) -> str:
    path = keep(session, *next(iter(files.items())))
    model = load_model(path)
    _take(session, with_model(session.question.scenario, str(path)))
    return short(f"{path.name}: {model.num_parameters / 1e9:.2f} B parameters, {model.architecture}")


def _take_acceptance(session: Session, files: Files) -> str:
    """The acceptance of the method that is chosen: a server's counters, or its search run over a log of tokens."""
    path = keep(session, *next(iter(files.items())))
    scenario = session.question.scenario
    method, k = session.wanted_method or scenario.method, scenario.num_speculative_tokens
    if method not in METHODS:
        raise InputError("choose the method that it was measured with first", file=path.name)
    if path.suffix == ".jsonl":
        if method not in ("ngram", "suffix"):
            text = "a token log gives the acceptance of ngram and suffix; of another method give a server's metrics"
            raise InputError(text, file=path.name, value=method)
        measure = measure_ngram if method == "ngram" else measure_suffix
        section = ngram_model(measure(read_token_log(path), k or DEFAULT_K))
        what = f"{section['match_probability']:.0%} of the rounds find a draft"
    else:
        counted = read_metrics(path)
        section = per_position_model(counted.rates)
        what = f"{counted.mean_acceptance_length:.2f} tokens a round with a draft"
    _take(session, with_measured(scenario, method, section))
    return short(f"{path.name}: acceptance of {method}, {what}")


def _take(session: Session, changes: Mapping[str, Any]) -> None:
    """Change the question; raises InputError where that is no valid one."""
    old = session.question
    session.ask(ScenarioPair.of(old.base, with_values(old.scenario, changes), own_length=old.own_length))


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


def _take_measured(session: Session, files: Files) -> str:
    """Keep a measured run for Compare: one bench result, or the files of a live run directory."""
    contents = {Path(name).name: content for name, content in files.items()}
    if MANIFEST not in contents and len(contents) != 1:
        raise InputError(f"give one result of vllm bench serve, or a run's {MANIFEST}, {REQUESTS} and {CHUNKS}")
    name = plain_name(next(iter(contents)))
    if MANIFEST in contents:
        data = parse_json(contents[MANIFEST], MANIFEST)
        label = "-".join(str(data.get(key, "")) for key in ("name", "created_at")) if isinstance(data, dict) else ""
        name = plain_name(label.strip("-") or "live-run")
    if name not in session.measured and session.room <= 0:
        raise InputError("Compare is full: remove a run first", file=name)
    folder = session.measured_folder(name)
    before = folder.with_name(f"before-{name}")
    with contextlib.suppress(FileNotFoundError):
        folder.rename(before)
    try:
        if MANIFEST in contents:
            folder.mkdir()
            for file in (MANIFEST, REQUESTS, CHUNKS, JOURNAL):
                if file in contents:
                    write_bytes(folder / file, contents[file])
        else:
            import_bench_result(keep(session, name, contents.popitem()[1]), folder)
        run = read_measured_run(folder)
    except DraftcastError:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            before.rename(folder)
        raise
    shutil.rmtree(before, ignore_errors=True)
    session.measured, session.touched = list(dict.fromkeys([*session.measured, name])), True
    return f"{name}: {run.facts['requests']}"


def _take_validation(session: Session, files: Files) -> str:
    ((name, content),) = files.items()
    summary = read_summary(content, plain_name(name))
    session.validation = keep(session, f"validation-{plain_name(name)}", content).name
    return f"{name}: {summary.head()[1]}"


SCENARIO = Upload("upload-scenario", ("yaml", "yml"), 1, _take_scenario)
TRACE = Upload("upload-trace", ("csv", "json", "jsonl", "txt"), 64, _take_trace)
MODEL = Upload("upload-model", ("json",), 1, _take_model)
ACCEPTANCE = Upload("upload-acceptance", ("txt", "prom", "json", "jsonl"), 8, _take_acceptance)
VALIDATION = Upload("upload-validation", ("json",), 8, _take_validation)
MEASURED = Upload("upload-measured", ("json", "jsonl", "parquet"), 64, _take_measured, several=True)
