"""A validated sweep as Markdown, as one self-contained HTML page and as JSON; what misses its bar is shown."""

from __future__ import annotations

import html
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from draftcast import __version__
from draftcast.errors import InputError
from draftcast.files import read_text, write_text
from draftcast.scenarios.live.validate.comparison import CAUSES
from draftcast.scenarios.live.validate.effects import Cutover
from draftcast.scenarios.live.validate.sweep import Cell, SweepValidation
from draftcast.scenarios.run.run_directory import plain
from draftcast.scenarios.show.plots import BREAK_EVEN, OFF, ON, write_figure
from draftcast.scenarios.show.validation_page import MISSED, aligned, html_table, markdown_table, page
from draftcast.scenarios.show.validation_report import STEP_BARS, bars, percent
from draftcast.scenarios.show.validation_sweep_summary import (
    SweepSummary,
    acceptance_rows,
    bar_rows,
    cutover_rows,
    effect_rows,
    load_text,
    speed_line,
    step_rows,
)

STEM = "sweep-validation"
EFFECTS = "Effect of speculation (throughput gain in closed loops, E2E latency off / on at rates)"
RUNS = "Runs: relative error of the forecast; in brackets with the run's own acceptance, step times and front end"
# Of an effect; too many to be written out.
_DRAWS = ("resamples", "replications")
_COLOURS = (ON, "#e8590c", "#5f3dc4", "#2b8a3e", "#a61e4d", OFF)


def verdicts(found: SweepValidation) -> dict[str, dict[str, Any]]:
    """What was asked and what holds: by name ``{"held": ..., "of": ..., "missed": [...]}``."""
    asked: dict[str, dict[str, Any]] = {}

    def count(name: str, where: str, held: bool) -> None:
        entry = asked.setdefault(name, {"held": 0, "of": 0, "missed": []})
        entry["of"] += 1
        entry["held"] += held
        if not held:
            entry["missed"].append(where)

    for folder, (checked, wrong) in found.continuation.items():
        count("known_continuation", folder, checked > 0 and not wrong)
    for mode, steps in found.steps.items():
        errors = steps.errors
        if errors.points and mode != "all":
            count("step_time", mode, errors.median <= STEP_BARS["median"] and errors.p90 <= STEP_BARS["p90"])
    for cell in found.cells:
        for name, bar in bars(cell.validation).items() if cell.judged else ():
            if name in cell.validation.figures:
                count(name, cell.entry["dir"], abs(cell.validation.figures[name].error) <= bar)
    for each in found.effects:
        if each.sign != "small":
            count("sign_of_the_effect", f"{each.mode} at {load_text(each.load_kind, each.load)}", each.sign == "right")
    for where in found.cutovers:
        count("cutover", where.mode, where.within_bar)
    return asked


def summary(found: SweepValidation) -> dict[str, Any]:
    """Plain data for JSON."""
    first = found.cells[0].validation.question.live.manifest
    return {
        "draftcast_version": __version__,
        "folder": str(found.folder),
        "created_at": first["created_at"],
        "machine": first["machine"],
        "server_version": first["server"].get("version"),
        "profile": found.profile,
        "calibrated_on": list(found.calibrated_on),
        "verdicts": verdicts(found),
        "steps": found.steps,
        "known_continuation": {
            "checked_tokens": sum(checked for checked, _ in found.continuation.values()),
            "wrong_tokens": sum(wrong for _, wrong in found.continuation.values()),
        },
        "acceptance": [vars(each) for each in found.acceptance],
        "cutovers": [
            # JSON has no infinity: in words beside the numbers.
            {
                **vars(each),
                "within_bar": each.within_bar,
                "shown": [
                    _users(each, value)
                    for value in (
                        *(each.measured, each.forecast, each.low, each.high),
                        *(each.forecast_low, each.forecast_high),
                    )
                ],
            }
            for each in found.cutovers
        ],
        "effects": [
            {**{name: value for name, value in vars(each).items() if name not in _DRAWS}, "sign": each.sign}
            for each in found.effects
        ],
        "cells": [_cell(cell) for cell in found.cells],
        "notes": list(found.notes),
    }


def write_sweep_report(found: SweepValidation, folder: Path, *, static: bool = False) -> tuple[Path, ...]:
    """``sweep-validation.md``, ``.html`` and ``.json`` in ``folder``; returns their paths.

    Args:
        static: the picture is an SVG of kaleido's, also on its own, and not a script of five megabytes.

    Raises:
        InputError: the folder cannot be made or written, or the picture cannot be drawn.
    """
    contents = {".json": json.dumps(plain(summary(found)), indent=1, allow_nan=False) + "\n"}
    figure = effects_figure(found)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be made: {error.strerror or error}", file=str(folder)) from None
    if static:
        contents[".svg"] = _svg(figure, folder / f"{STEM}.svg")
    picture = contents.get(".svg") or figure.to_html(full_html=False, include_plotlyjs=True)
    contents |= {".html": _page(found, picture), ".md": markdown(found, f"{STEM}.svg" if static else None)}
    for suffix, content in contents.items():
        write_text(folder / f"{STEM}{suffix}", content)
    return tuple(folder / f"{STEM}{suffix}" for suffix in contents)


def _svg(figure: Any, path: Path) -> str:
    """The figure as SVG text, by way of ``path``."""
    write_figure(figure.update_layout(width=1080), path)
    return read_text(path)


def markdown(found: SweepValidation, picture: str | None = None) -> str:
    """The whole report as Markdown; ``picture``: file of the effects beside it."""
    parts = [f"# Live sweep {found.folder.name} beside its forecast", "\n".join(head(found))]
    if picture is not None:
        parts.append(f"![Measured and forecast effect of speculation]({picture})")
    for title, table in _tables(found):
        parts += [f"## {title}", markdown_table(table)]
    if found.notes:
        parts += ["## Notes", "\n".join(f"- {note}" for note in found.notes)]
    return "\n\n".join(parts) + "\n"


def head(found: SweepValidation) -> list[str]:
    """What was run on what, a few lines."""
    manifest = found.cells[0].validation.question.live.manifest
    machine = manifest["machine"]
    acceptance = sorted({cell.validation.acceptance for cell in found.cells} - {""})
    slower = [cell.validation.slowness for cell in found.cells if cell.validation.slowness is not None]
    return [
        f"Measured {manifest['created_at']} on {machine.get('processor') or 'an unnamed machine'}, "
        f"{machine.get('cores', '?')} cores, vLLM {manifest['server'].get('version') or '?'}.",
        f"Profile {found.profile}, calibrated on {', '.join(found.calibrated_on) or 'no runs of this kind'}.",
        f"{len(found.cells)} runs judged; acceptance: {', '.join(acceptance) or 'none'}.",
        speed_line((min(slower), max(slower)) if slower else None),
    ]


def text(found: SweepValidation) -> str:
    """For a terminal: what was run, the bars, the cutovers, the effects."""
    bars_held, *tables = _tables(found)[:3]
    lines = [*head(found), "", *aligned([row[:2] for row in bars_held[1]])]
    lines += [
        f"{MISSED} {name}: {', '.join(entry['missed'])}" for name, entry in verdicts(found).items() if entry["missed"]
    ]
    for title, table in tables:
        lines += ["", title, *aligned(table)]
    return "\n".join(line.rstrip() for line in lines)


def _tables(found: SweepValidation) -> list[tuple[str, list[list[str]]]]:
    shown = SweepSummary.model_validate(plain(summary(found)))
    return [
        ("Bars", bar_rows(shown.verdicts)),
        ("Cutover: users at which the throughput gain crosses 1", cutover_rows(shown.cutovers)),
        (EFFECTS, effect_rows(shown.effects)),
        ("Step time of runs that took no part in the fit", step_rows(shown.steps)),
        ("Acceptance by draft position, all runs of a mode together", acceptance_rows(shown.acceptance)),
        ("What the errors are made of: medians of the absolute values over the judged runs", _cause_rows(found)),
        (RUNS, _run_rows(found)),
    ]


def _cause_rows(found: SweepValidation) -> list[list[str]]:
    """Of every figure with a bar: its error, and what each cause put right in turn changes."""
    table = [["figure", "runs", "error", *CAUSES]]
    names = dict.fromkeys(name for cell in found.cells for name in bars(cell.validation))
    for name in names:
        held = [cell.validation for cell in found.cells if cell.judged and name in bars(cell.validation)]
        shares = [[run.figures[name].error, *run.attribution[name].values()] for run in held if name in run.attribution]
        if shares:
            typical = np.median(np.abs(shares), axis=0)
            table.append([name, str(len(shares)), *(f"{value:.1%}" for value in typical)])
    return table


def _run_rows(found: SweepValidation) -> list[list[str]]:
    names = {"output_throughput": "tok/s", "mean_tpot_s": "TPOT", "mean_e2el_s": "E2E", "median_ttft_s": "TTFT p50"}
    table = [["run", *names.values(), "acceptance length", "steps median, p90", "cores slower", "of capacity"]]
    for cell in found.cells:
        wanted = bars(cell.validation) if cell.judged else {}
        figures = cell.validation.figures
        row = [cell.entry["dir"]]
        for name in (*names, "mean_acceptance_length"):
            error = figures[name].error if name in figures else math.nan
            rest = cell.validation.attribution.get(name, {}).get("scheduling", math.nan)
            shown = f"{percent(error)} ({percent(-rest)})" if math.isfinite(rest) else percent(error)
            row.append(shown + (f" {MISSED}" if abs(error) > wanted.get(name, math.inf) else ""))
        steps = cell.validation.steps
        row.append(f"{steps.errors['all'].median:.1%}, {steps.errors['all'].p90:.1%}" if steps is not None else "")
        slowness = cell.validation.slowness
        row.append(f"{slowness:.2f} x" if slowness is not None else "")
        row.append(f"{cell.capacity_share:.0%}" if math.isfinite(cell.capacity_share) else "")
        table.append(row)
    return table


def _cell(cell: Cell) -> dict[str, Any]:
    figures = cell.validation.figures
    return {
        **cell.entry,
        "capacity_share": cell.capacity_share,
        "judged": cell.judged,
        "acceptance": cell.validation.acceptance,
        "slowness": cell.validation.slowness,
        "figures": {
            name: {
                "measured": each.measured,
                "forecast": each.forecast.mean,
                "error": each.error,
                "causes": cell.validation.attribution.get(name),
            }
            for name, each in figures.items()
        },
        "steps": cell.validation.steps.summary() if cell.validation.steps is not None else None,
    }


def _page(found: SweepValidation, picture: str) -> str:
    parts = [f"<p>{html.escape(line)}</p>" for line in head(found)]
    for title, table in _tables(found):
        parts += [f"<h2>{html.escape(title)}</h2>", html_table(table)]
    parts += [f"<p>note: {html.escape(note)}</p>" for note in found.notes]
    return page(f"Live sweep {found.folder.name} beside its forecast", "\n".join([*parts[:3], picture, *parts[3:]]))


def effects_figure(found: SweepValidation) -> Any:
    """Measured and forecast effect over users and over rates, one colour a mode."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    kinds = [kind for kind in ("concurrency", "rate") if any(each.load_kind == kind for each in found.effects)]
    titles = {"concurrency": "Throughput gain by users", "rate": "E2E latency, off / on, by request rate"}
    figure = make_subplots(rows=1, cols=max(len(kinds), 1), subplot_titles=[titles[kind] for kind in kinds])
    modes = list(dict.fromkeys(each.mode for each in found.effects))
    for col, kind in enumerate(kinds, start=1):
        for colour, mode in zip(_COLOURS * len(modes), modes, strict=False):
            own = sorted((e for e in found.effects if (e.mode, e.load_kind) == (mode, kind)), key=lambda e: e.load)
            loads = [each.load for each in own]
            spread = {
                "type": "data",
                "symmetric": False,
                "array": [max(each.high - each.measured, 0.0) for each in own],
                "arrayminus": [max(each.measured - each.low, 0.0) for each in own],
            }
            shared = {"x": loads, "legendgroup": mode, "line": {"color": colour}}
            measured = [each.measured for each in own]
            figure.add_trace(
                go.Scatter(**shared, y=measured, error_y=spread, mode="markers", name=mode, showlegend=col == 1), 1, col
            )
            forecast = [each.forecast for each in own]
            name = f"{mode}, forecast"
            trace = go.Scatter(**shared, y=forecast, mode="lines", name=name, showlegend=col == 1)
            figure.add_trace(trace, 1, col)
        figure.add_hline(y=1.0, line={"color": BREAK_EVEN, "dash": "dash", "width": 1.5}, row=1, col=col)
        figure.update_xaxes(title_text="users" if kind == "concurrency" else "requests/s", row=1, col=col)
    figure.update_layout(template="plotly_white", height=520, legend={"orientation": "h", "y": -0.2})
    if "concurrency" in kinds:
        figure.update_xaxes(type="log", row=1, col=1 + kinds.index("concurrency"))
    return figure


def _users(cutover: Cutover, value: float) -> str:
    """Users, or beyond which end of what was run."""
    if value == math.inf:
        return f"above {cutover.users[-1]:g}"
    return f"below {cutover.users[0]:g}" if value == -math.inf else f"{value:.3g}"
