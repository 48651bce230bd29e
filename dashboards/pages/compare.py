"""Compare: two to six runs side by side and measured, with what they differ in and by how much."""

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import pandas as pd
import streamlit as st

from draftcast.dashboards.session.answers import SimulateAnswer, answer, answers, together
from draftcast.dashboards.session.session import MOST_RUNS, ScenarioPair, Session, View, literal, short
from draftcast.dashboards.session.uploads import MEASURED
from draftcast.dashboards.widgets import tiles
from draftcast.dashboards.widgets.controls import WORDS, button, label_of, uploader, view_choice
from draftcast.dashboards.widgets.page import Html, Report, cannot_run, html_table, upload_again
from draftcast.errors import InputError, cut
from draftcast.scenarios.compare.comparison import Difference
from draftcast.scenarios.compare.slo_answer import measured_requests
from draftcast.scenarios.run.measured_run import MeasuredRun, read_measured_run
from draftcast.scenarios.schema.changes import SHORT, changed_keys, differing, value_text
from draftcast.scenarios.schema.load import without_speculation
from draftcast.scenarios.show.plots import COLOURS
from draftcast.scenarios.show.run_report import ratio_figure
from draftcast.sim.output.metrics import summarise

FIGURES = (
    *(figure._replace(label=f"{tile.title} {figure.label}") for tile in tiles.LATENCY_TILES for figure in tile.figures),
    tiles.TileFigure("request_throughput", "throughput", "req/s"),
    tiles.TileFigure("output_throughput", "token goodput", "tok/s"),
    *tiles.THROUGHPUT_TILE.figures,
)
LETTERS = "ABCDEF"
SHORT_OF = {key: name for names in (SHORT, WORDS["keys"]) for name, key in names.items()}
KINDS = ("process", "model", "distribution", "path", "request_rate_rps", "concurrency", "alpha", "value", "mean")
"""Of a section, what a run's name says."""
MOST_SAID = 32  # characters of a change in a run's name


@dataclass(frozen=True)
class ComparedRun:
    """One run of the comparison, simulated or measured; ``requests`` are those that its latencies describe."""

    letter: str
    about: str
    column: tiles.SettingColumn
    requests: pd.DataFrame
    run: SimulateAnswer | MeasuredRun

    @property
    def name(self) -> str:
        return f"{self.letter} · {self.about}"


@dataclass(frozen=True)
class RunComparison:
    """The runs, in order, with their differences to one of them; ``pairs``: by letter, it and the reference."""

    entries: Sequence[ComparedRun]
    reference: ComparedRun
    pairs: Mapping[str, tiles.Pair]

    def change(self, entry: ComparedRun, figure: tiles.TileFigure) -> Difference | None:
        """Of a run to the reference; None for the reference itself, and where there is none."""
        return self.pairs[entry.letter].change(figure.name) if entry is not self.reference else None

    def rows(self) -> Iterator[dict[str, Any]]:
        for entry, figure in itertools.product(self.entries, FIGURES):
            value, change = entry.column.figures.get(figure.name), self.change(entry, figure)
            difference, ratio = getattr(change, "difference", None), getattr(change, "ratio", None)
            ends = {"": "mean", "_low": "low", "_high": "high"}
            yield {
                **{"run": entry.letter, "about": entry.about, "figure": figure.name},
                **{name: getattr(value, name, None) for name in ends.values()},
                "against": self.reference.letter if entry is not self.reference else None,
                **{f"difference{end}": getattr(difference, name, None) for end, name in ends.items()},
                "ratio": getattr(ratio, "mean", None),
                "verdict": getattr(change, "verdict", None),
            }

    def summary(self, changed: pd.DataFrame | None) -> dict[str, Any]:
        """For the JSON file, with the keys in which the runs differ."""
        runs = {}
        for entry in self.entries:
            changes = {figure.name: self.change(entry, figure) for figure in FIGURES}
            runs[entry.letter] = {
                "about": entry.about,
                "hash": entry.run.hash if isinstance(entry.run, SimulateAnswer) else None,
                "figures": entry.column.figures,
                "differences": changes if entry is not self.reference else None,
            }
        keys = changed.to_dict("records") if changed is not None else []
        return {"reference": self.reference.letter, "changed_keys": keys, "runs": runs}


def render(session: Session, report: Report) -> None:
    (current,) = answers(session.question.scenario)
    entries = _entries(session, current)
    report.badge([entry.run.run.summary["figures"] for entry in entries if isinstance(entry.run, SimulateAnswer)])
    by_letter = {entry.letter: entry for entry in entries}
    names = {letter: f"{letter} · not available" for letter in LETTERS[: MOST_RUNS - session.room]}
    names |= {entry.letter: entry.name for entry in entries}
    _runs(session, names, by_letter)
    reference = entries[0]
    if len(entries) > 1:
        letter = view_choice(session, View.COMPARE_REFERENCE, list(names), words=names.__getitem__)
        reference = by_letter.get(letter, reference)
        if letter not in by_letter:
            st.info(f"Until {letter} is available, the others are compared with {reference.letter}.")
    confidence = current.scenario.statistics.confidence
    pairs = {entry.letter: _pair(entry, reference, confidence) for entry in entries if entry is not reference}
    comparison = RunComparison(entries, reference, pairs)
    report.title, report.lines = "Runs compared", [entry.name for entry in entries]
    if pairs:
        _tables(report, comparison)
        _pictures(report, comparison)
    else:
        st.info("Add a run to compare with: keep one from What-if, take one below, or upload a measured one.")
    commands = [question.command("simulate") for question in (session.question, *session.runs)]
    report.footer(current.hash, "\n".join(commands), current)
    name, rows = f"draftcast-compare-{current.hash[:12]}", lambda: pd.DataFrame(comparison.rows())
    report.downloads(name, rows, lambda: comparison.summary(report.tables.get("Changed keys")))


def _entries(session: Session, current: SimulateAnswer) -> list[ComparedRun]:
    """The question's run first, then what was kept, then what was measured; what cannot be had is told and left out."""
    entries = [_simulated_entry(LETTERS[0], "current setting", current)]
    for letter, question in zip(LETTERS[1:], session.runs, strict=False):
        try:
            entries.append(_simulated_entry(letter, about(session.question, question), answer(question.scenario)))
        except InputError as error:
            cannot_run(session, error, question, letter)
    slo = current.scenario.slo
    for letter, name in zip(LETTERS[1 + len(session.runs) :], session.measured, strict=False):
        folder = session.measured_folder(name)
        if not folder.is_dir():
            upload_again(name)
            continue
        run = read_measured_run(folder, slo)
        column = tiles.SettingColumn(summarise([run.figures], current.scenario.statistics.confidence), [run.figures])
        entries.append(ComparedRun(letter, f"measured: {name}", column, run.requests, run))
    return entries


def _simulated_entry(letter: str, about: str, run: SimulateAnswer) -> ComparedRun:
    # No request's latency describes a load that the setting does not hold.
    requests = measured_requests(run.run) if run.side.has_figures else run.run.requests[:0]
    return ComparedRun(letter, about, tiles.column_of(run.scenario, run.side), requests, run)


def about(question: ScenarioPair, run: ScenarioPair) -> str:
    """A run in few words: its scenario where that is another, then in what it differs."""
    is_other = run.base != question.base
    changes = run.link_changes if is_other else changed_keys(question.scenario, run.scenario)
    words = [run.base] if is_other else [changes["name"]] if changes.get("name") else []
    if run.scenario.speculative_config != question.scenario.speculative_config:
        spec = run.scenario.speculative_config
        words.append(f"{run.scenario.method} k={spec.k}" if spec is not None else "SD off")
    words += [word for key, value in changes.items() if (word := _change(key, value))]
    shown = [cut(word, MOST_SAID) for word in words[:2]] or ["as A"]
    return ", ".join(shown) + (f" and {len(words) - 2} more" if len(words) > 2 else "")


def _change(key: str, value: Any) -> str:
    """``key=value`` by the key's short name, of a section its kind; nothing where the name says it otherwise."""
    is_gone = value is None and key.startswith("workload.lengths")
    if key in ("name", "description") or key.startswith("engine.speculative_config") or is_gone:
        return ""
    name = SHORT_OF.get(key) or key.removeprefix("engine.").removeprefix("workload.")
    if isinstance(value, dict):
        value = " ".join(str(value[part]) for part in KINDS if part in value)
        return f"{name}={short(value)}" if value else name
    return f"{name}={short(value_text(value))}"


def _pair(entry: ComparedRun, reference: ComparedRun, confidence: float) -> tiles.Pair:
    """A run and the reference; simulated ones over the requests that both measure."""
    column, other = entry.column, reference.column
    if isinstance(entry.run, SimulateAnswer) and isinstance(reference.run, SimulateAnswer):
        one, two = together(entry.run, reference.run)
        column, other = tiles.column_of(entry.run.scenario, one), tiles.column_of(reference.run.scenario, two)
    return tiles.Pair(column, reference.letter, other, confidence)


def _runs(session: Session, names: Mapping[str, str], by_letter: Mapping[str, ComparedRun]) -> None:
    """``names``: of all runs, also of those that cannot be had."""
    question = session.question
    offers = {"Add the same run": question}
    if question.scenario.speculative_config is not None:
        offers["Add it with speculation off"] = ScenarioPair(question.base, without_speculation(question.scenario))
    with st.container(border=True, key="runs"):
        for index, (letter, name) in enumerate(names.items()):
            with st.container(horizontal=True, vertical_alignment="center"):
                st.html(_run_line(letter, name, by_letter.get(letter)))
                if index > 0:
                    button(f"Remove {letter}", "close", session.remove_run, index - 1, key=f"remove-{letter}")
        with st.container(horizontal=True):
            for label, run in offers.items():
                button(label, "add", session.add_run, run, disabled=session.room <= 0, help=WORDS["help"]["added"])
        with st.expander("Measured runs"):
            uploader(session, MEASURED)


def _run_line(letter: str, name: str, entry: ComparedRun | None) -> str:
    facts: Mapping[str, str] = {}
    if entry is not None:
        facts = {"run": entry.run.hash[:12]} if isinstance(entry.run, SimulateAnswer) else entry.run.facts
    words, colour = " · ".join(f"{fact} {text}" for fact, text in facts.items()), COLOURS[LETTERS.index(letter)]
    return (
        f"<span class='dc-run'><b style='color:{colour}'>●</b> <b>{escape(name)}</b> "
        f"<small>{escape(words)}</small></span>"
    )


def _tables(report: Report, comparison: RunComparison) -> None:
    scenarios = {
        entry.letter: entry.run.scenario for entry in comparison.entries if isinstance(entry.run, SimulateAnswer)
    }
    changed = [
        [key, *("–" if value is None else short(value_text(value)) for value in values)]
        for key, values in differing(list(scenarios.values())).items()
    ]
    if len(scenarios) > 1:
        rows = [[label_of(key), *values] for key, *values in changed]
        table = html_table(["setting", *scenarios], rows, look="facts", name="Changed keys")
        st.subheader("What differs")
        st.html(table if changed else "<p class='dc-why'>No key: the simulated runs ask the same.</p>")
    st.subheader("By how much")
    st.html(_differences_table(comparison))
    measured = {entry.letter: entry.run for entry in comparison.entries if isinstance(entry.run, MeasuredRun)}
    st.caption(" ".join(_pairing(comparison, measured)))
    for letter, run in measured.items():
        for note in run.notes:
            st.caption(f"{letter}: {literal(note)}")
    keys = pd.DataFrame(changed, columns=["key", *scenarios])
    report.tables |= {"Changed keys": keys, "Figures and differences": pd.DataFrame(comparison.rows())}


def _pairing(comparison: RunComparison, measured: Collection[str]) -> Iterator[str]:
    """Which runs, by their letters, meet the requests of the reference, and what that means for their differences."""
    reference = comparison.reference.letter
    simulated = [letter for letter in comparison.pairs if not {letter, reference} & {*measured}]
    paired = [letter for letter in simulated if comparison.pairs[letter].is_paired]
    others = [letter for letter in simulated if letter not in paired]
    for kind, letters in (("paired", paired), ("others", others), ("measured", measured)):
        if letters:
            yield WORDS["pairing"][kind].format(reference=reference, runs=", ".join(letters))


def _differences_table(comparison: RunComparison) -> str:
    reference = comparison.reference
    head: list[str] = [Html("<th></th>")]
    for entry in comparison.entries:
        head.append(Html(f"<th scope='col' title='{escape(entry.name)}'>{escape(entry.letter)}</th>"))
        head += [f"{entry.letter} vs {reference.letter}"] if entry is not reference else []
    rows = []
    for figure in FIGURES:
        cells = [f"<th scope='row'>{escape(figure.label)}</th>"]
        for entry in comparison.entries:
            missing = "not recorded" if isinstance(entry.run, MeasuredRun) else ""
            cells.append(tiles.value_cell(figure, entry.column, missing))
            if entry is not reference:
                cells.append(tiles.difference_cell(figure, comparison.pairs[entry.letter], words=True))
        rows.append(list(map(Html, cells)))
    return html_table(head, rows, look="compare", name="Differences")


def _pictures(report: Report, comparison: RunComparison) -> None:
    colours = {entry.name: COLOURS[LETTERS.index(entry.letter)] for entry in comparison.entries}
    others = [entry for entry in comparison.entries if entry is not comparison.reference]
    ratios = {
        entry.name: [(figure.label, getattr(comparison.change(entry, figure), "ratio", None)) for figure in FIGURES]
        for entry in others
    }
    report.figure("ratios", ratio_figure(ratios, colours), reference=literal(comparison.reference.name))
    report.latencies({entry.name: entry.requests for entry in comparison.entries}, colours)
