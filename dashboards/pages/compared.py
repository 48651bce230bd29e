"""The runs that Compare shows: what each is, its figures, and how it differs from the reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import streamlit as st

from draftcast.dashboards.session.plain_text import literal
from draftcast.dashboards.session.results import Answer, answer, together
from draftcast.dashboards.session.session import Question, Session, short_error
from draftcast.dashboards.widgets.tiles import LATENCY_TILES, THROUGHPUT_TILE, Column, Figure, column_of
from draftcast.errors import InputError
from draftcast.scenarios.compare.difference import Difference
from draftcast.scenarios.compare.slo_answer import measured_requests
from draftcast.scenarios.run.measured_run import MeasuredRun, read_measured_run
from draftcast.scenarios.schema.changes import changed_keys, differing, value_text
from draftcast.sim.output.metrics import summarise
from draftcast.sim.output.slo import Slo

# By letter of the run: it and the reference, measured together.
Pairs = Mapping[str, tuple[Column, Column]]
FIGURES = (
    *(
        Figure(each.name, f"{title} {each.label}", each.unit, each.factor)
        for title, _, figures in LATENCY_TILES
        for each in figures
    ),
    Figure("request_throughput", "throughput", "req/s"),
    Figure("output_throughput", "token goodput", "tok/s"),
    *THROUGHPUT_TILE[2],
)
LETTERS = "ABCDEF"
OWN = "What-if's run"


@dataclass(frozen=True)
class Entry:
    """One run of the comparison.

    Attributes:
        letter: what the page calls it.
        about: what it is, in a few words.
        column: its figures, with intervals where it has replications.
        requests: those that its latencies describe.
        found: the simulated answer; None for a measured run.
        measured: the measured run; None for a simulated one.
    """

    letter: str
    about: str
    column: Column
    requests: pd.DataFrame
    found: Answer | None = None
    measured: MeasuredRun | None = None

    @property
    def name(self) -> str:
        """Letter and words."""
        return f"{self.letter} · {self.about}"

    @property
    def run_hash(self) -> str:
        """As the footer shows it; empty for a measured run."""
        return self.found.hash[:12] if self.found is not None else ""


def entries_of(session: Session, own: Answer) -> list[Entry]:
    """The question's run first, then what was kept, then what was measured; what cannot be had is told and left out."""
    entries = [Entry(LETTERS[0], OWN, column_of(own.scenario, own.own), _requests(own), own)]
    for letter, run in zip(LETTERS[1:], session.runs, strict=False):
        try:
            found = answer(run.scenario)
        except InputError as error:
            st.error(f"{letter} cannot be simulated: {literal(short_error(error))}", icon=":material/error:")
            continue
        about = _about(session.question, run)
        entries.append(Entry(letter, about, column_of(run.scenario, found.own), _requests(found), found))
    slo = own.scenario.slo
    bounds = Slo(ttft_ms=slo.ttft_ms, tpot_ms=slo.tpot_ms, e2el_ms=slo.e2el_ms) if slo is not None else None
    for letter, name in zip(LETTERS[1 + len(session.runs) :], session.measured, strict=False):
        folder = session.measured_folder(name)
        if not folder.is_dir():
            st.error(f"Upload {literal(name)} again: a link does not carry files.", icon=":material/upload_file:")
            continue
        run_seen = read_measured_run(folder, bounds)
        column = Column(summarise([run_seen.figures], own.scenario.statistics.confidence), [run_seen.figures])
        entries.append(Entry(letter, f"measured: {name}", column, run_seen.requests, measured=run_seen))
    return entries


def _requests(found: Answer) -> pd.DataFrame:
    """Those that its latencies describe; none where they do not hold for the load."""
    return measured_requests(found.run) if found.own.has_figures else found.run.requests[:0]


def _about(question: Question, run: Question) -> str:
    changes = changed_keys(question.scenario, run.scenario)
    if not changes:
        return "the same run"
    words = ", ".join(f"{key.rpartition('.')[2]}={value_text(value)}" for key, value in changes.items())
    words = words.replace("speculative_config=null", "SD off")
    return words if len(words) <= 48 else f"{words[:47]}…"


def pair_of(entry: Entry, reference: Entry) -> tuple[Column, Column]:
    """A run and the reference; simulated ones over the requests that both measure."""
    if entry.found is None or reference.found is None:
        return entry.column, reference.column
    own, other = together(entry.found, reference.found)
    return column_of(entry.found.scenario, own), column_of(reference.found.scenario, other)


def changed_table(entries: Sequence[Entry]) -> pd.DataFrame:
    """Only the keys in which simulated runs differ, a column a run."""
    asked = [entry for entry in entries if entry.found is not None]
    found = differing([entry.found.scenario for entry in asked if entry.found is not None])
    texts = {key: ["–" if value is None else _short_text(value) for value in values] for key, values in found.items()}
    rows = [[key, *values] for key, values in texts.items()]
    return pd.DataFrame(rows, columns=["key", *(entry.letter for entry in asked)])


def _short_text(value: Any) -> str:
    return short_error(Exception(value_text(value)))


def difference_rows(
    entries: Sequence[Entry], reference: Entry, pairs: Pairs, confidence: float
) -> Iterator[dict[str, Any]]:
    """A row for every run and figure."""
    for entry in entries:
        for each in FIGURES:
            value = entry.column.figures.get(each.name)
            row: dict[str, Any] = {"run": entry.letter, "about": entry.about, "figure": each.name}
            row |= {name: getattr(value, name, None) for name in ("mean", "low", "high")}
            change = change_of(pairs, entry, each.name, confidence)
            row |= {
                "against": reference.letter if entry is not reference else None,
                "difference": change.difference.mean if change is not None else None,
                "difference_low": change.difference.low if change is not None else None,
                "difference_high": change.difference.high if change is not None else None,
                "ratio": change.ratio.mean if change is not None and change.ratio is not None else None,
                "verdict": change.verdict if change is not None else None,
            }
            yield row


def change_of(pairs: Pairs, entry: Entry, figure: str, confidence: float) -> Difference | None:
    """Of a run to the reference; None for the reference itself, and where there is none."""
    if entry.letter not in pairs:
        return None
    own, other = pairs[entry.letter]
    return own.change(figure, other, confidence)
