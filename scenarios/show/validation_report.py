"""A validation as data, as a table for people and as one self-contained HTML page."""

from __future__ import annotations

import html
import json
import math
from pathlib import Path
from typing import Any

from draftcast import __version__
from draftcast.calibration.live.step_fit import errors_text
from draftcast.calibration.profile.load import AffineProfile
from draftcast.errors import InputError
from draftcast.files import write_text
from draftcast.scenarios.live.validate.comparison import CAUSES, Figure, Validation
from draftcast.scenarios.live.validate.timeline import live_timeline, simulated_timeline
from draftcast.scenarios.run.run_directory import plain
from draftcast.scenarios.show.validation_page import aligned, html_table, page
from draftcast.scenarios.show.validation_pictures import validation_figure

REPORT_JSON, REPORT_HTML = "validation.json", "validation.html"
OPEN_LOOP_BARS = {"mean_tpot_s": 0.07, "mean_e2el_s": 0.10, "median_ttft_s": 0.15}
"""Largest error draftcast asks of its own forecasts below 80 % of the capacity, by figure."""
CLOSED_LOOP_BARS = {"output_throughput": 0.05}
STEP_BARS = {"median": 0.05, "p90": 0.15}


def bars(validation: Validation) -> dict[str, float]:
    """The bar of each figure that has one in this kind of run."""
    return CLOSED_LOOP_BARS if validation.question.loop is not None else OPEN_LOOP_BARS


def summary(validation: Validation) -> dict[str, Any]:
    """Plain data for JSON: everything the page shows but the pictures."""
    question, steps = validation.question, validation.steps
    live, profile = question.live, question.deployment.profile
    wanted = bars(validation)
    simulated = simulated_timeline(validation.played[0].steps, question.deployment.settings.num_gpu_blocks - 1)
    levels: dict[str, Any] = {"forecast": simulated.means()}
    if steps is not None:
        levels["measured"] = live_timeline(steps.timed.steps, validation.live_requests).means()
    return {
        "draftcast_version": __version__,
        "run": {
            "folder": str(live.folder),
            "name": live.manifest["name"],
            "created_at": live.manifest["created_at"],
            "complete": live.complete,
            "requests": len(live.requests),
            "compared": len(question.table),
            "speculative_config": live.manifest["speculative_config"],
            "server_version": live.manifest["server"].get("version"),
            "machine": live.manifest["machine"],
            "noise": live.manifest["noise"],
        },
        "profile": {
            "name": profile.name,
            "source": profile.source,
            "checksum": profile.checksum(),
            "calibrated_on": sorted(profile.fitted_runs.values()) if isinstance(profile, AffineProfile) else [],
        },
        "acceptance": validation.acceptance,
        "slowness": validation.slowness,
        "configuration_from_server": question.from_server,
        "front_end": {
            "forecast": validation.front_end,
            "measured": validation.own_front_end.seconds if validation.own_front_end else None,
        },
        "figures": {
            name: {
                "measured": figure.measured,
                "forecast": figure.forecast.mean,
                "low": figure.forecast.low,
                "high": figure.forecast.high,
                "error": figure.error,
                "bar": wanted.get(name),
                "causes": validation.attribution.get(name),
            }
            for name, figure in validation.figures.items()
        },
        "steps": steps.summary() if steps is not None else None,
        "levels": levels,
        "notes": list(validation.notes),
    }


def rows(validation: Validation) -> list[list[str]]:
    """The error table: header, then a line per figure."""
    wanted = bars(validation)
    causes = list(CAUSES) if validation.attribution else []
    table = [["figure", "measured", "forecast", "error", "bar", *causes]]
    for name, figure in validation.figures.items():
        shares = validation.attribution.get(name, {})
        table.append(
            [
                *_values(figure),
                percent(figure.error),
                f"{wanted[name]:.0%}{'' if abs(figure.error) <= wanted[name] else ' MISSED'}" if name in wanted else "",
                *(percent(shares.get(cause, math.nan)) for cause in causes),
            ]
        )
    return table


def text(validation: Validation) -> str:
    """For a terminal."""
    lines = [*head(validation), "", *aligned(rows(validation))]
    if validation.steps is not None:
        lines.append("")
        lines += [f"step time, {kind}: {errors_text(errors)}" for kind, errors in validation.steps.errors.items()]
    if validation.attribution:
        lines.append("causes: measured less forecast, as a share of the measured value, as each is put right in turn")
    return "\n".join([*lines, *(f"note: {note}" for note in validation.notes)])


def head(validation: Validation) -> list[str]:
    """What was compared with what, a few lines."""
    question = validation.question
    profile, spec = question.deployment.profile, question.live.manifest["speculative_config"]
    how = json.dumps(spec) if spec else "no speculation"
    runs = sorted(profile.fitted_runs.values()) if isinstance(profile, AffineProfile) else []
    lines = [
        f"run {question.live.folder}: {len(question.table)} requests, {how}",
        f"profile {profile.name}: {'calibrated on ' + ', '.join(runs) if runs else profile.source}",
    ]
    if validation.acceptance:
        lines.append(f"acceptance: {validation.acceptance}")
    if validation.slowness is not None:
        lines.append(
            f"cores: steps {validation.slowness:.2f} times as long as in the calibration, by the probe beside it"
        )
    f = validation.front_end
    ends = (f.request_s, f.output_s, f.output_sequence_s, f.turnaround_s)
    shown = ", ".join(f"{seconds * 1e3:.2f}" for seconds in ends)
    lines.append(f"front end (into the engine, out of it, out for each request of a step, turnaround): {shown} ms")
    return lines


def write_report(validation: Validation, folder: Path) -> tuple[Path, Path]:
    """``validation.html`` and ``validation.json`` in ``folder``; returns their paths.

    Raises:
        InputError: the folder cannot be made or written.
    """
    data, page = folder / REPORT_JSON, folder / REPORT_HTML
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be made: {error.strerror or error}", file=str(folder)) from None
    write_text(data, json.dumps(plain(summary(validation)), indent=1, allow_nan=False) + "\n")
    write_text(page, _page(validation))
    return page, data


def _page(validation: Validation) -> str:
    steps = validation.steps
    parts = [*(f"<p>{html.escape(line)}</p>" for line in head(validation)), html_table(rows(validation))]
    if steps is not None:
        table = [["steps", "points", "median error", "p90", "bias", "bars"]]
        for kind, errors in steps.errors.items():
            if errors.points:
                missed = errors.median > STEP_BARS["median"] or errors.p90 > STEP_BARS["p90"]
                shown = f"{STEP_BARS['median']:.0%}, {STEP_BARS['p90']:.0%}{' MISSED' if missed else ''}"
                values = [percent(errors.median), percent(errors.p90), percent(errors.bias)]
                table.append([kind, str(errors.points), *values, shown if kind == "all" else ""])
        parts.append(html_table(table))
    parts += [f"<p>note: {html.escape(note)}</p>" for note in validation.notes]
    picture = validation_figure(validation).to_html(full_html=False, include_plotlyjs=True)
    return page(f"Validation of {validation.question.live.folder.name}", "\n".join([*parts, picture]))


def percent(value: float) -> str:
    """Signed, one digit; empty where undefined."""
    return f"{value:+.1%}" if math.isfinite(value) else ""


def _values(figure: Figure) -> list[str]:
    """Name with unit, measured, and forecast with half its interval."""
    unit, scale = "", 1.0
    if figure.name.endswith("_s"):
        unit, scale = " (ms)", 1e3
    elif figure.name in ("output_throughput", "busy_throughput"):
        unit = " (tok/s)"
    elif figure.name.startswith("request_"):
        unit = " (req/s)"
    half = figure.forecast.half_width
    spread = f" ± {half * scale:.3g}" if math.isfinite(half) and half > 0.0 else ""
    return [
        f"{figure.name.removesuffix('_s')}{unit}",
        f"{figure.measured * scale:.4g}",
        f"{figure.forecast.mean * scale:.4g}{spread}",
    ]
