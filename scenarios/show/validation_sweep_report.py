"""A validated sweep as Markdown, as one self-contained HTML page and as JSON; missed bars are marked.

`SweepSummary` is the same without its runs, a few kilobytes that ship with draftcast. It is read from its own JSON or
a report's (``sweep-validation.json``); unknown keys are ignored: a report may come from a later version.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, BeforeValidator, ValidationError, model_validator

from draftcast import __version__
from draftcast.errors import InputError
from draftcast.files import parse_json, picked, plain, read_text
from draftcast.scenarios.live.validate.comparison import CAUSES
from draftcast.scenarios.live.validate.sweep import (
    Cell,
    Effect,
    MeasuredCutover,
    ModeAcceptance,
    ModeSteps,
    SweepValidation,
)
from draftcast.scenarios.show import plots
from draftcast.scenarios.show import validation_report as one_run
from draftcast.scenarios.show.plots import series, write_figure
from draftcast.scenarios.show.tables import MISSED, aligned, html_table, json_bytes, markdown_table, page, paragraphs

Table = list[list[str]]  # the first row is the header
STEP_TIME = "step_time"


def _with_nan(value: Any) -> Any:
    """JSON has no NaN: null in its place."""
    if isinstance(value, Mapping):
        return {key: _with_nan(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_with_nan(item) for item in value]
    return math.nan if value is None else value


class Bar(BaseModel, frozen=True):
    """How many of those held to a bar keep it, and the names of the others."""

    held: int
    of: int
    missed: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.held} of {self.of}"


class ContinuationSummary(BaseModel, frozen=True):
    checked_tokens: int
    wrong_tokens: int


class SweepSummary(BaseModel, frozen=True):
    draftcast_version: str
    created_at: str  # of the first judged run
    machine: dict[str, Any]  # what that run recorded of it
    server_version: str | None
    profile: str
    calibrated_on: tuple[str, ...]  # the runs behind the profile, which are not judged
    runs: int  # how many are judged
    command: str = ""  # that made the sweep, where it is known
    verdicts: dict[str, Bar]  # forecasts held to their bars, and ``step_time``, the accuracy of the step times
    # The figures forecast with what was measured in each run; absent in reports of an earlier version.
    verdicts_with_own_step_times: dict[str, Bar] = {}
    steps: Annotated[dict[str, ModeSteps], BeforeValidator(_with_nan)]
    known_continuation: ContinuationSummary
    acceptance: Annotated[tuple[ModeAcceptance, ...], BeforeValidator(_with_nan)]
    cutovers: Annotated[tuple[MeasuredCutover, ...], BeforeValidator(_with_nan)]
    effects: Annotated[tuple[Effect, ...], BeforeValidator(_with_nan)]
    notes: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _of_report(cls, data: Any) -> Any:
        """A whole report holds the runs themselves, a summary their number."""
        return {**data, "runs": len(data["cells"])} if isinstance(data.get("cells"), list) else data

    @property
    def held(self) -> int:
        """Checks of forecasts that keep their bar; step times are counted by themselves."""
        return sum(bar.held for name, bar in self.verdicts.items() if name != STEP_TIME)

    @property
    def of(self) -> int:
        return sum(bar.of for name, bar in self.verdicts.items() if name != STEP_TIME)

    def head(self) -> list[str]:
        processor, cores = self.machine.get("processor") or "an unnamed machine", self.machine.get("cores", "?")
        lines = [
            f"Measured {self.created_at[:10]} on {processor}, {cores} cores, vLLM {self.server_version or '?'}: "
            f"{self.runs} runs judged with a profile of {len(self.calibrated_on)} others.",
            f"Of {self.of} checks {self.held} hold and {self.of - self.held} miss their bar.",
        ]
        if modes := self.verdicts.get(STEP_TIME):
            lines.append(f"Accuracy of the step times: {modes.held} of {modes.of} modes hold their bar.")
        if bars := self.verdicts_with_own_step_times.values():
            held, of = sum(bar.held for bar in bars), sum(bar.of for bar in bars)
            lines.append(f"Accuracy with the run's own step times: {held} of {of} checks hold.")
        return lines

    def tables(self) -> dict[str, Table]:
        """Title and rows of each table: bars, cutovers, step times, effects, acceptance."""
        bars = [["bar", "held", "missed by", "held with the run's own step times"]]
        for name, bar in self.verdicts.items():
            held = f"{bar}{f' {MISSED}' if bar.missed else ''}"
            title = "accuracy of the step times" if name == STEP_TIME else name
            bars.append([title, held, ", ".join(bar.missed), str(self.verdicts_with_own_step_times.get(name, ""))])
        cutovers = [["mode", "measured users", "interval", "forecast users", "range", "within a step or 15 %"]]
        for cutover in self.cutovers:
            measured, forecast, low, high, least, most = cutover.shown
            held = "yes" if cutover.within_bar else MISSED
            cutovers.append([cutover.mode, measured, f"{low} to {high}", forecast, f"{least} to {most}", held])
        effects = [["load", "mode", "measured", "interval", "forecast", "sign"]]
        for effect in sorted(self.effects, key=lambda effect: (effect.load_kind, effect.load, effect.mode)):
            measured, low, high, forecast = map(_ratio, (effect.measured, effect.low, effect.high, effect.forecast))
            sign = MISSED if effect.sign == "WRONG" else effect.sign
            load = load_text(effect.load_kind, effect.load)
            effects.append([load, effect.mode, measured, f"{low} to {high}", forecast, sign])
        steps = [["mode", "points", "errors", "the same step again: median, p90"]]
        for mode, times in self.steps.items():
            again = ", ".join("-" if math.isnan(value) else f"{value:.1%}" for value in times.repeat_spread)
            steps.append([mode, str(times.errors.points), str(times.errors), again])
        acceptance = [["mode", "rounds with drafts", "measured", "forecast"]]
        for accepted in self.acceptance:
            rates = [", ".join(map(_ratio, rates)) for rates in (accepted.measured, accepted.forecast)]
            acceptance.append([accepted.mode, str(accepted.drafts), *rates])
        return {
            "Bars": bars,
            "Cutover: users at which the throughput gain crosses 1": cutovers,
            "Accuracy of the step times, in runs that took no part in the fit": steps,
            "Effect of speculation (throughput gain in closed loops, E2E latency off / on at rates)": effects,
            "Acceptance by draft position, all runs of a mode together": acceptance,
        }


def read_summary(text: str | bytes, file: str, command: str = "") -> SweepSummary:
    """A report or summary as JSON; ``command`` made the sweep. Raises InputError: the first fault."""
    data = parse_json(text, file)
    if not isinstance(data, dict):
        raise InputError("must be the report or the summary of a live sweep", file=file)
    try:
        return SweepSummary.model_validate({**data, "command": command} if command else data)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(first["msg"].lower(), file=file, key=".".join(map(str, first["loc"]))) from None


def shipped_summaries() -> dict[str, SweepSummary]:
    shipped = sorted((Path(__file__).parents[1] / "validation_results").glob("*.json"))
    return {path.stem: read_summary(path.read_bytes(), path.name) for path in shipped}


def bars_line() -> str:
    names = {"mean_tpot_s": "mean TPOT", "mean_e2el_s": "mean E2E", "median_ttft_s": "median TTFT"}
    rates = ", ".join(f"{names[name]} within {bar:.0%}" for name, bar in one_run.OPEN_LOOP_BARS.items())
    (median, p90), (throughput,) = one_run.STEP_BARS.values(), one_run.CLOSED_LOOP_BARS.values()
    return (
        f"Bars: step time within {median:.0%} at the median and {p90:.0%} at p90; at rates below 80% of the capacity "
        f"{rates}; in closed loops throughput within {throughput:.0%}; the sign of effects above 5%; the cutover "
        "within one step of the users that were run, or 15%."
    )


def load_text(kind: str, load: float) -> str:
    """``4 users`` or ``1.5 req/s``."""
    return f"{load:g} {'users' if kind == 'concurrency' else 'req/s'}"


def _ratio(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


STEM = "sweep-validation"
CAUSES_TITLE = "What the errors are made of: medians of the absolute values over the judged runs"
RUNS = "Runs: error of the forecast; in brackets with the run's own step times, acceptance and front end"
_FIGURES = {"output_throughput": "tok/s", "mean_tpot_s": "TPOT", "mean_e2el_s": "E2E", "median_ttft_s": "TTFT p50"}
Check = tuple[str, str, bool]  # name of the bar, what is held to it, whether it holds
Verdicts = dict[str, dict[str, Any]]  # by bar: ``{"held": ..., "of": ..., "missed": [...]}``


def verdicts(sweep: SweepValidation) -> Verdicts:
    """Which bars hold; ``step_time`` is of the step times."""
    modes = {mode: steps.errors for mode, steps in sweep.steps.items() if steps.errors.points and mode != "all"}
    checks: list[Check] = [(STEP_TIME, mode, one_run.steps_hold(errors)) for mode, errors in modes.items()]
    checks += _figure_checks(sweep)
    for effect in sweep.effects:
        if effect.sign != "small":
            where = f"{effect.mode} at {load_text(effect.load_kind, effect.load)}"
            checks.append(("sign_of_the_effect", where, effect.sign == "right"))
    return _counted([*checks, *(("cutover", cutover.mode, cutover.within_bar) for cutover in sweep.cutovers)])


def _figure_checks(sweep: SweepValidation, *, own_step_times: bool = False) -> Iterator[Check]:
    """``own_step_times``: as forecast with the step times, acceptance and front end measured in each run."""
    for cell in sweep.cells:
        run, folder = cell.validation, cell.entry["dir"]
        for name, bar in one_run.bars(run).items() if cell.judged else ():
            if own_step_times and math.isfinite(error := run.error_with_own_step_times(name)):
                yield name, folder, abs(error) <= bar
            elif not own_step_times and name in run.figures:
                yield name, folder, abs(run.figures[name].error) <= bar


def _counted(checks: Iterable[Check]) -> Verdicts:
    bars_by_name: Verdicts = {}
    for name, where, holds in checks:
        entry = bars_by_name.setdefault(name, {"held": 0, "of": 0, "missed": []})
        entry["of"] += 1
        entry["held"] += holds
        entry["missed"] += [] if holds else [where]
    return bars_by_name


def summary(sweep: SweepValidation) -> dict[str, Any]:
    first = sweep.cells[0].validation.question.live.manifest
    checked, wrong = (sum(counts[i] for counts in sweep.continuation.values()) for i in (0, 1))
    return {
        "draftcast_version": __version__,
        "folder": str(sweep.folder),
        "created_at": first["created_at"],
        "machine": first["machine"],
        "server_version": first["server"].get("version"),
        **picked(sweep, "profile calibrated_on steps acceptance"),
        "verdicts": verdicts(sweep),
        "verdicts_with_own_step_times": _counted(_figure_checks(sweep, own_step_times=True)),
        "known_continuation": {"checked_tokens": checked, "wrong_tokens": wrong},
        "cutovers": sweep.cutovers,
        "effects": [picked(effect, "mode load_kind load measured low high forecast sign") for effect in sweep.effects],
        "cells": list(map(_cell, sweep.cells)),
        "notes": _notes(sweep),
    }


def write_sweep_report(sweep: SweepValidation, folder: Path, *, static: bool = False) -> tuple[Path, ...]:
    """``sweep-validation.md``, ``.html`` and ``.json`` in ``folder``; returns their paths.

    ``static``: the plot is an SVG of kaleido's, also on its own, and not a script of five megabytes. Raises InputError:
    the folder cannot be made or written, or the plot cannot be drawn.
    """
    written = one_run.write_files(folder, {f"{STEM}.json": json_bytes(summary(sweep)).decode()})
    figure = effects_figure(sweep)
    if static:
        drawn = folder / f"{STEM}.svg"
        write_figure(figure.update_layout(width=1080), drawn)
        written += (drawn,)
        plot = read_text(drawn)
    else:
        plot = figure.to_html(full_html=False, include_plotlyjs=True)
    parts = [*paragraphs(head(sweep)), plot]
    for name, table in _tables(sweep):
        parts += [f"<h2>{name}</h2>", html_table(table)]
    parts += paragraphs([f"note: {note}" for note in _notes(sweep)])
    html = page(f"Live sweep {sweep.folder.name} and its forecast", parts)
    text = markdown(sweep, f"{STEM}.svg" if static else None)
    return written + one_run.write_files(folder, {f"{STEM}.html": html, f"{STEM}.md": text})


def markdown(sweep: SweepValidation, picture: str | None = None) -> str:
    """The whole report as Markdown; ``picture``: file of the effects beside it."""
    parts = [f"# Live sweep {sweep.folder.name} and its forecast", "\n".join(head(sweep))]
    if picture is not None:
        parts.append(f"![Measured and forecast effect of speculation]({picture})")
    for title, table in _tables(sweep):
        parts += [f"## {title}", markdown_table(table)]
    if notes := _notes(sweep):
        parts += ["## Notes", "\n".join(f"- {note}" for note in notes)]
    return "\n\n".join(parts) + "\n"


def head(sweep: SweepValidation) -> list[str]:
    manifest = sweep.cells[0].validation.question.live.manifest
    machine = manifest["machine"]
    acceptance = sorted({cell.validation.acceptance for cell in sweep.cells} - {""})
    return [
        f"Measured {manifest['created_at']} on {machine.get('processor') or 'an unnamed machine'}, "
        f"{machine.get('cores', '?')} cores, vLLM {manifest['server'].get('version') or '?'}.",
        f"Profile {sweep.profile}, calibrated on {', '.join(sweep.calibrated_on) or 'no runs of this kind'}.",
        f"{len(sweep.cells)} runs judged; acceptance: {', '.join(acceptance) or 'none'}.",
    ]


def text(sweep: SweepValidation) -> str:
    """For a terminal: what was run, the bars, the cutovers, step times, the effects."""
    (_, bar_rows), *tables = _tables(sweep)[:4]
    lines = [*head(sweep), "", *aligned([[*row[:2], row[3]] for row in bar_rows])]
    lines += [f"{MISSED} {name}: {missed}" for name, _, missed, _ in bar_rows[1:] if missed]
    for title, table in tables:
        lines += ["", title, *aligned(table)]
    return "\n".join(line.rstrip() for line in lines)


def _notes(sweep: SweepValidation) -> list[str]:
    """What a reader must know; tokens that differ from the testbed's text among it."""
    counts = ((folder, *tokens) for folder, tokens in sweep.continuation.items())
    text = "{}: {} of {} tokens differ from the known text"
    return [*sweep.notes, *(text.format(folder, wrong, checked) for folder, checked, wrong in counts if wrong)]


def _tables(sweep: SweepValidation) -> list[tuple[str, Table]]:
    tables = SweepSummary.model_validate(plain(summary(sweep))).tables()
    return [*tables.items(), (CAUSES_TITLE, _cause_rows(sweep)), (RUNS, _run_rows(sweep))]


def _cause_rows(sweep: SweepValidation) -> list[list[str]]:
    """Of every figure with a bar: its error, and what each cause put right in turn changes."""
    table = [["figure", "runs", "error", *CAUSES]]
    for name in dict.fromkeys(name for cell in sweep.cells for name in one_run.bars(cell.validation)):
        runs = [cell.validation for cell in sweep.cells if cell.judged and name in one_run.bars(cell.validation)]
        shares = [[run.figures[name].error, *run.attribution[name].values()] for run in runs if name in run.attribution]
        if shares:
            table.append([name, str(len(shares)), *(f"{value:.1%}" for value in np.median(np.abs(shares), axis=0))])
    return table


def _run_rows(sweep: SweepValidation) -> list[list[str]]:
    head = ["acceptance length", "accuracy of the step times: median, p90", "of capacity"]
    table = [["run", *_FIGURES.values(), *head]]
    for cell in sweep.cells:
        run, wanted, row = cell.validation, one_run.bars(cell.validation) if cell.judged else {}, [cell.entry["dir"]]
        for name in (*_FIGURES, "mean_acceptance_length"):
            error = run.figures[name].error if name in run.figures else math.nan
            own_times = one_run.percent(run.error_with_own_step_times(name))
            missed = f" {MISSED}" if abs(error) > wanted.get(name, math.inf) else ""
            row.append(one_run.percent(error) + (f" ({own_times})" if own_times else "") + missed)
        errors = run.steps.errors["all"] if run.steps is not None else None
        row.append(f"{errors.median:.1%}, {errors.p90:.1%}" if errors is not None else "")
        table.append([*row, f"{cell.capacity_share:.0%}" if math.isfinite(cell.capacity_share) else ""])
    return table


def _cell(cell: Cell) -> dict[str, Any]:
    run = cell.validation
    steps = run.steps.summary() if run.steps is not None else None
    facts = picked(cell, "capacity_share judged") | picked(run, "acceptance")
    return {**cell.entry, **facts, "figures": one_run.figure_summaries(run), "steps": steps}


def effects_figure(sweep: SweepValidation) -> Any:
    """Measured and forecast effect over users and over rates, one colour per mode."""
    titles = {"concurrency": "Throughput gain by users", "rate": "E2E latency, off / on, by request rate"}
    axes = {"concurrency": ("users", "log"), "rate": ("requests/s", "linear")}
    kinds = [kind for kind in titles if any(effect.load_kind == kind for effect in sweep.effects)]
    figure = plots.panels(*(titles[kind] for kind in kinds))
    modes = dict.fromkeys(effect.mode for effect in sweep.effects)
    colours = dict(zip(modes, itertools.cycle(plots.COLOURS), strict=False))
    for col, kind in enumerate(kinds, start=1):
        for mode, colour in colours.items():
            effects = [effect for effect in sweep.effects if (effect.mode, effect.load_kind) == (mode, kind)]
            effects.sort(key=lambda effect: effect.load)
            bars = plots.error_bars([(effect.low, effect.measured, effect.high) for effect in effects])
            loads, style = [e.load for e in effects], {"legendgroup": mode, "showlegend": col == 1, "cell": (1, col)}
            series(figure, mode, colour, loads, [effect.measured for effect in effects], error_y=bars, **style)
            series(figure, f"{mode}, forecast", colour, loads, [e.forecast for e in effects], mode="lines", **style)
        figure.add_hline(y=1.0, line=plots.BREAK_EVEN_LINE, row=1, col=col)
        title, scale = axes[kind]
        plots.label_axes(figure, title, cell=(1, col))
        figure.update_xaxes(type=scale, row=1, col=col)
    return figure.update_layout(template="plotly_white", height=520, legend={"orientation": "h", "y": -0.2})
