"""A validated sweep as Markdown, as one self-contained HTML page and as JSON; missed bars are marked."""

import itertools
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from draftcast import __version__
from draftcast.files import picked, plain, read_text
from draftcast.scenarios.live.validate.comparison import CAUSES
from draftcast.scenarios.live.validate.sweep import Cell, Cutover, SweepValidation
from draftcast.scenarios.show import plots
from draftcast.scenarios.show.plots import series, write_figure
from draftcast.scenarios.show.tables import MISSED, aligned, html_table, json_bytes, markdown_table, page, paragraphs
from draftcast.scenarios.show.validation_report import bars, figure_summaries, percent, steps_hold, write_files
from draftcast.scenarios.show.validation_sweep_summary import STEP_TIME, EffectSummary, SweepSummary, Table, load_text

STEM = "sweep-validation"
CAUSES_TITLE = "What the errors are made of: medians of the absolute values over the judged runs"
RUNS = "Runs: error of the forecast; in brackets with the run's own step times, acceptance and front end"
_FIGURES = {"output_throughput": "tok/s", "mean_tpot_s": "TPOT", "mean_e2el_s": "E2E", "median_ttft_s": "TTFT p50"}
Check = tuple[str, str, bool]  # name of the bar, what is held to it, whether it holds
Verdicts = dict[str, dict[str, Any]]  # by bar: ``{"held": ..., "of": ..., "missed": [...]}``


def verdicts(found: SweepValidation) -> Verdicts:
    """Which bars hold; ``step_time`` is of the step times."""
    modes = {mode: steps.errors for mode, steps in found.steps.items() if steps.errors.points and mode != "all"}
    checks: list[Check] = [(STEP_TIME, mode, steps_hold(errors)) for mode, errors in modes.items()]
    checks += _figure_checks(found)
    for effect in found.effects:
        if effect.sign != "small":
            where = f"{effect.mode} at {load_text(effect.load_kind, effect.load)}"
            checks.append(("sign_of_the_effect", where, effect.sign == "right"))
    return _counted([*checks, *(("cutover", cutover.mode, cutover.within_bar) for cutover in found.cutovers)])


def _figure_checks(found: SweepValidation, *, own_step_times: bool = False) -> Iterator[Check]:
    """``own_step_times``: as forecast with the step times, acceptance and front end measured in each run."""
    for cell in found.cells:
        run, folder = cell.validation, cell.entry["dir"]
        for name, bar in bars(run).items() if cell.judged else ():
            if own_step_times and math.isfinite(error := run.error_with_own_step_times(name)):
                yield name, folder, abs(error) <= bar
            elif not own_step_times and name in run.figures:
                yield name, folder, abs(run.figures[name].error) <= bar


def _counted(checks: Iterable[Check]) -> Verdicts:
    bars_by_name: Verdicts = {}
    for name, where, held in checks:
        entry = bars_by_name.setdefault(name, {"held": 0, "of": 0, "missed": []})
        entry["of"] += 1
        entry["held"] += held
        entry["missed"] += [] if held else [where]
    return bars_by_name


def summary(found: SweepValidation) -> dict[str, Any]:
    first = found.cells[0].validation.question.live.manifest
    checked, wrong = (sum(counts[i] for counts in found.continuation.values()) for i in (0, 1))
    return {
        "draftcast_version": __version__,
        "folder": str(found.folder),
        "created_at": first["created_at"],
        "machine": first["machine"],
        "server_version": first["server"].get("version"),
        **picked(found, "profile calibrated_on steps acceptance"),
        "verdicts": verdicts(found),
        "verdicts_with_own_step_times": _counted(_figure_checks(found, own_step_times=True)),
        "known_continuation": {"checked_tokens": checked, "wrong_tokens": wrong},
        # JSON has no infinity: in words beside the numbers.
        "cutovers": [{**vars(c), "within_bar": c.within_bar, "shown": _in_words(c)} for c in found.cutovers],
        "effects": [picked(effect, " ".join(EffectSummary.model_fields)) for effect in found.effects],
        "cells": list(map(_cell, found.cells)),
        "notes": _notes(found),
    }


def write_sweep_report(found: SweepValidation, folder: Path, *, static: bool = False) -> tuple[Path, ...]:
    """``sweep-validation.md``, ``.html`` and ``.json`` in ``folder``; returns their paths.

    ``static``: the plot is an SVG of kaleido's, also on its own, and not a script of five megabytes. Raises InputError:
    the folder cannot be made or written, or the plot cannot be drawn.
    """
    written = write_files(folder, {f"{STEM}.json": json_bytes(summary(found)).decode()})
    figure = effects_figure(found)
    if static:
        drawn = folder / f"{STEM}.svg"
        write_figure(figure.update_layout(width=1080), drawn)
        written += (drawn,)
        plot = read_text(drawn)
    else:
        plot = figure.to_html(full_html=False, include_plotlyjs=True)
    parts = [*paragraphs(head(found)), plot]
    for name, table in _tables(found):
        parts += [f"<h2>{name}</h2>", html_table(table)]
    parts += paragraphs([f"note: {note}" for note in _notes(found)])
    html = page(f"Live sweep {found.folder.name} and its forecast", parts)
    text = markdown(found, f"{STEM}.svg" if static else None)
    return written + write_files(folder, {f"{STEM}.html": html, f"{STEM}.md": text})


def markdown(found: SweepValidation, picture: str | None = None) -> str:
    """The whole report as Markdown; ``picture``: file of the effects beside it."""
    parts = [f"# Live sweep {found.folder.name} and its forecast", "\n".join(head(found))]
    if picture is not None:
        parts.append(f"![Measured and forecast effect of speculation]({picture})")
    for title, table in _tables(found):
        parts += [f"## {title}", markdown_table(table)]
    if notes := _notes(found):
        parts += ["## Notes", "\n".join(f"- {note}" for note in notes)]
    return "\n\n".join(parts) + "\n"


def head(found: SweepValidation) -> list[str]:
    manifest = found.cells[0].validation.question.live.manifest
    machine = manifest["machine"]
    acceptance = sorted({cell.validation.acceptance for cell in found.cells} - {""})
    return [
        f"Measured {manifest['created_at']} on {machine.get('processor') or 'an unnamed machine'}, "
        f"{machine.get('cores', '?')} cores, vLLM {manifest['server'].get('version') or '?'}.",
        f"Profile {found.profile}, calibrated on {', '.join(found.calibrated_on) or 'no runs of this kind'}.",
        f"{len(found.cells)} runs judged; acceptance: {', '.join(acceptance) or 'none'}.",
    ]


def text(found: SweepValidation) -> str:
    """For a terminal: what was run, the bars, the cutovers, step times, the effects."""
    (_, bar_rows), *tables = _tables(found)[:4]
    lines = [*head(found), "", *aligned([[*row[:2], row[3]] for row in bar_rows])]
    lines += [f"{MISSED} {name}: {missed}" for name, _, missed, _ in bar_rows[1:] if missed]
    for title, table in tables:
        lines += ["", title, *aligned(table)]
    return "\n".join(line.rstrip() for line in lines)


def _notes(found: SweepValidation) -> list[str]:
    """What a reader must know; tokens that differ from the testbed's text among it."""
    counts = ((folder, *tokens) for folder, tokens in found.continuation.items())
    text = "{}: {} of {} tokens differ from the known text"
    return [*found.notes, *(text.format(folder, wrong, checked) for folder, checked, wrong in counts if wrong)]


def _tables(found: SweepValidation) -> list[tuple[str, Table]]:
    tables = SweepSummary.model_validate(plain(summary(found))).tables()
    return [*tables.items(), (CAUSES_TITLE, _cause_rows(found)), (RUNS, _run_rows(found))]


def _cause_rows(found: SweepValidation) -> list[list[str]]:
    """Of every figure with a bar: its error, and what each cause put right in turn changes."""
    table = [["figure", "runs", "error", *CAUSES]]
    names = dict.fromkeys(name for cell in found.cells for name in bars(cell.validation))
    for name in names:
        held = [cell.validation for cell in found.cells if cell.judged and name in bars(cell.validation)]
        shares = [[run.figures[name].error, *run.attribution[name].values()] for run in held if name in run.attribution]
        if shares:
            table.append([name, str(len(shares)), *(f"{value:.1%}" for value in np.median(np.abs(shares), axis=0))])
    return table


def _run_rows(found: SweepValidation) -> list[list[str]]:
    head = ["acceptance length", "accuracy of the step times: median, p90", "of capacity"]
    table = [["run", *_FIGURES.values(), *head]]
    for cell in found.cells:
        run, wanted, row = cell.validation, bars(cell.validation) if cell.judged else {}, [cell.entry["dir"]]
        for name in (*_FIGURES, "mean_acceptance_length"):
            error = run.figures[name].error if name in run.figures else math.nan
            own = percent(run.error_with_own_step_times(name))
            missed = f" {MISSED}" if abs(error) > wanted.get(name, math.inf) else ""
            row.append(percent(error) + (f" ({own})" if own else "") + missed)
        errors = run.steps.errors["all"] if run.steps is not None else None
        row.append(f"{errors.median:.1%}, {errors.p90:.1%}" if errors is not None else "")
        table.append([*row, f"{cell.capacity_share:.0%}" if math.isfinite(cell.capacity_share) else ""])
    return table


def _cell(cell: Cell) -> dict[str, Any]:
    run = cell.validation
    steps = run.steps.summary() if run.steps is not None else None
    facts = picked(cell, "capacity_share judged") | picked(run, "acceptance")
    return {**cell.entry, **facts, "figures": figure_summaries(run), "steps": steps}


def effects_figure(found: SweepValidation) -> Any:
    """Measured and forecast effect over users and over rates, one colour per mode."""
    titles = {"concurrency": "Throughput gain by users", "rate": "E2E latency, off / on, by request rate"}
    axes = {"concurrency": ("users", "log"), "rate": ("requests/s", "linear")}
    kinds = [kind for kind in titles if any(effect.load_kind == kind for effect in found.effects)]
    figure = plots.panels(*(titles[kind] for kind in kinds))
    modes = dict.fromkeys(effect.mode for effect in found.effects)
    colours = dict(zip(modes, itertools.cycle(plots.COLOURS), strict=False))
    for col, kind in enumerate(kinds, start=1):
        for mode, colour in colours.items():
            effects = [effect for effect in found.effects if (effect.mode, effect.load_kind) == (mode, kind)]
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


def _in_words(cutover: Cutover) -> list[str]:
    """Measured, forecast and their bounds in users, or beyond which end of what was run."""
    words = []
    for name in ("measured", "forecast", "low", "high", "forecast_low", "forecast_high"):
        value = getattr(cutover, name)
        beyond = f"above {cutover.users[-1]:g}" if value > 0 else f"below {cutover.users[0]:g}"
        words.append(f"{value:.3g}" if math.isfinite(value) else beyond)
    return words
