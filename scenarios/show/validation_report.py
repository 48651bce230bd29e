"""A validation as data, as a table and as one self-contained HTML page with plots."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from draftcast import __version__
from draftcast.calibration.live.step_profile import LiveCalibration
from draftcast.calibration.profile.roofline_fit import FitErrors
from draftcast.calibration.profile.spec import AffineProfile, HardwareProfile
from draftcast.files import made, picked, write_text
from draftcast.kernels.arrays import FloatArray
from draftcast.scenarios.live.validate.comparison import CAUSES, Figure, Validation
from draftcast.scenarios.live.validate.forecast import live_timeline, simulated_timeline
from draftcast.scenarios.run.measured_run import piece_gaps
from draftcast.scenarios.run.timeline import Timeline
from draftcast.scenarios.show.plots import BREAK_EVEN_LINE, LIMIT, OFF, ON, label_axes, panels, series
from draftcast.scenarios.show.tables import MISSED, aligned, html_table, json_bytes, page, paragraphs
from draftcast.sim.compiled.itl_histogram import histogram_quantile
from draftcast.sim.output.results import RequestColumns

_SHARES = np.linspace(0.01, 0.99, 99)
# More points than this are thinned: a page of some megabytes loads, one of some hundred does not.
_MOST_POINTS = 3000
_LATENCIES = (("ttft_s", "TTFT"), ("tpot_s", "TPOT"), ("e2el_s", "E2E"))
_LEVELS = (("running", "Requests in the step"), ("waiting", "Requests waiting"), ("kv_usage", "KV blocks in use"))
_MANIFEST_KEYS = ("name", "created_at", "speculative_config", "machine", "noise")
_COLOURS = {"forecast": ON, "measured": OFF}
# Maximum error that draftcast's own forecasts may have below 80 % of the capacity, by figure.
OPEN_LOOP_BARS = {"mean_tpot_s": 0.07, "mean_e2el_s": 0.10, "median_ttft_s": 0.15}
CLOSED_LOOP_BARS = {"output_throughput": 0.05}
STEP_BARS = {"median": 0.05, "p90": 0.15}


def validation_figure(validation: Validation) -> Any:
    """Q-Q plots of the latencies, step times, and levels over time, in one figure of plotly."""
    titles = [f"{name}: quantiles, s" for _, name in _LATENCIES]
    titles += ["ITL: quantiles, s", "Step time: each step, s", "Step time: share of steps below"]
    titles += [name for _, name in _LEVELS]
    figure = panels(*titles, rows=3, vertical_spacing=0.1, horizontal_spacing=0.08)
    requests = RequestColumns.of(validation.question.requests)
    replays = [RequestColumns.of(replication.requests) for replication in validation.replays]
    for col, (name, _) in enumerate(_LATENCIES, start=1):
        both = getattr(requests, name), np.concatenate([getattr(columns, name) for columns in replays])
        measured, forecast = (values[np.isfinite(values)] for values in both)
        if len(measured) and len(forecast):
            _diagonal(figure, np.quantile(measured, _SHARES), np.quantile(forecast, _SHARES), (1, col))
    live = validation.question.live
    gaps, _ = piece_gaps(live.chunks, live.requests["request_id"].to_numpy())
    if len(gaps):
        counts = np.sum([replication.itl_counts for replication in validation.replays], axis=0)
        _diagonal(figure, np.quantile(gaps, _SHARES), histogram_quantile(counts, _SHARES), (2, 1))
    _steps(figure, validation)
    for side, levels in _timelines(validation).items():
        for col, (level, _) in enumerate(_LEVELS, start=1):
            x, y, line = _thin(levels.time_s), _thin(getattr(levels, level)), {"width": 1.5, "shape": "hv"}
            style = {"mode": "lines", "line": line, "legendgroup": side, "showlegend": False}
            series(figure, side, _COLOURS[side], x, y, cell=(3, col), **style)
            label_axes(figure, "time, s", cell=(3, col))
    return figure.update_layout(template="plotly_white", height=1050, legend={"orientation": "h", "y": -0.05})


def _diagonal(figure: Any, x: FloatArray, y: FloatArray, cell: tuple[int, int]) -> None:
    """Points and the line on which they would lie were the forecast right."""
    ends = [float(min(x.min(), y.min())), float(max(x.max(), y.max()))]
    style = {"cell": cell, "showlegend": False}
    series(figure, "equal", LIMIT, ends, ends, mode="lines", line=BREAK_EVEN_LINE, **style)
    series(figure, "points", ON, x, y, type="scattergl", marker={"size": 5, "opacity": 0.6}, **style)
    label_axes(figure, "measured", "forecast" if cell[1] == 1 else "", cell=cell)


def _steps(figure: Any, validation: Validation) -> None:
    times = {"forecast": pd.concat([run.steps["step_s"] for run in validation.replays]).to_numpy(np.float64)}
    if validation.steps is not None:
        points = validation.steps.timed.points
        times["measured"] = (points["seconds"] / points["steps"]).to_numpy(np.float64)
        predicted = (points["predicted_s"] / points["steps"]).to_numpy(np.float64)
        _diagonal(figure, _thin(times["measured"]), _thin(predicted), (2, 2))
    for side, values in times.items():
        ordered = _thin(np.sort(values))
        share = np.arange(1, len(ordered) + 1) / len(ordered)
        style = {"mode": "lines", "line_width": 2, "legendgroup": side}
        series(figure, side, _COLOURS[side], ordered, share, cell=(2, 3), **style)
    label_axes(figure, "s", cell=(2, 3))


def _timelines(validation: Validation) -> dict[str, Timeline]:
    """Levels over time by side: forecast and, with a log of steps, measured."""
    blocks = validation.question.deployment.settings.num_gpu_blocks - 1
    timelines = {"forecast": simulated_timeline(validation.replays[0].steps, blocks)}
    if validation.steps is not None:
        timelines["measured"] = live_timeline(validation.steps.timed.steps, validation.question.requests)
    return timelines


def _means(levels: Timeline) -> dict[str, float]:
    """Time averages over the span of the steps; NaN for fewer than two."""
    gaps = np.diff(levels.time_s)
    if not len(gaps):
        return dict.fromkeys(dict(_LEVELS), math.nan)
    return {name: float(np.average(getattr(levels, name)[:-1], weights=gaps)) for name, _ in _LEVELS}


def _thin(values: NDArray[Any]) -> NDArray[Any]:
    return values[:: max(1, -(-len(values) // _MOST_POINTS))]


def bars(validation: Validation) -> dict[str, float]:
    return CLOSED_LOOP_BARS if validation.question.loop is not None else OPEN_LOOP_BARS


def steps_hold(errors: FitErrors) -> bool:
    return errors.median <= STEP_BARS["median"] and errors.p90 <= STEP_BARS["p90"]


def summary(validation: Validation) -> dict[str, Any]:
    """Plain data for JSON: everything the page shows but the plots."""
    question, front_end = validation.question, validation.own_front_end
    live, profile, limits = question.live, question.deployment.profile, bars(validation)
    run = {"folder": str(live.folder), "complete": live.complete, "requests": len(live.requests)}
    run |= {"compared": len(question.table), "server_version": live.manifest["server"].get("version")}
    fit = {"checksum": profile.checksum(), "calibrated_on": _fitted_runs(profile)}
    figures = figure_summaries(validation)
    for name, figure in validation.figures.items():
        figures[name] |= {"low": figure.forecast.low, "high": figure.forecast.high, "bar": limits.get(name)}
    return {
        "draftcast_version": __version__,
        "run": run | {key: live.manifest[key] for key in _MANIFEST_KEYS},
        "profile": picked(profile, "name source") | fit,
        "acceptance": validation.acceptance,
        "configuration_from_server": question.from_server,
        "front_end": {"forecast": validation.front_end, "measured": front_end.seconds if front_end else None},
        "figures": figures,
        "steps": validation.steps.summary() if validation.steps is not None else None,
        "levels": {side: _means(levels) for side, levels in _timelines(validation).items()},
        "notes": list(validation.notes),
    }


def figure_summaries(validation: Validation) -> dict[str, dict[str, Any]]:
    """The figures as plain data: measured, forecast, error and its causes."""
    return {
        name: {"measured": figure.measured, "forecast": figure.forecast.mean, "error": figure.error}
        | {"error_with_own_step_times": validation.error_with_own_step_times(name)}
        | {"causes": validation.attribution.get(name)}
        for name, figure in validation.figures.items()
    }


def rows(validation: Validation) -> list[list[str]]:
    limits = bars(validation)
    causes = list(CAUSES) if validation.attribution else []
    table = [["figure", "measured", "forecast", "error", "bar", "with the run's own step times", *causes]]
    for name, figure in validation.figures.items():
        shares = validation.attribution.get(name, {})
        missed = f" {MISSED}" if name in limits and abs(figure.error) > limits[name] else ""
        bar = f"{limits[name]:.0%}{missed}" if name in limits else ""
        errors = (percent(shares.get(cause, math.nan)) for cause in causes)
        own_times = percent(validation.error_with_own_step_times(name))
        table.append([*_values(figure), percent(figure.error), bar, own_times, *errors])
    return table


def text(validation: Validation) -> str:
    lines = [*head(validation), "", *aligned(rows(validation))]
    if validation.steps is not None:
        lines.append("")
        lines += [f"accuracy of the step times, {kind}: {errors!s}" for kind, errors in validation.steps.errors.items()]
    if validation.attribution:
        lines.append("causes: measured less forecast, as a share of the measured value, as each is put right in turn")
    return "\n".join([*lines, *(f"note: {note}" for note in validation.notes)])


def head(validation: Validation) -> list[str]:
    question = validation.question
    profile, spec = question.deployment.profile, question.live.manifest["speculative_config"]
    config = question.scenario.engine.speculative_config
    if spec is None and config is not None:  # drafts were counted, and what the server ran is not known
        spec = config.model_dump(mode="json", exclude_defaults=True)
    runs = _fitted_runs(profile)
    ends = picked(validation.front_end, "request_s output_s output_sequence_s turnaround_s").values()
    shown = ", ".join(f"{end_s * 1e3:.2f}" for end_s in ends)
    return [
        f"run {question.live.folder}: {len(question.table)} requests, {json.dumps(spec) if spec else 'no speculation'}",
        f"profile {profile.name}: {'calibrated on ' + ', '.join(runs) if runs else profile.source}",
        *([f"acceptance: {validation.acceptance}"] if validation.acceptance else []),
        f"front end (into the engine, out of it, out for each request of a step, turnaround): {shown} ms",
    ]


def write_report(validation: Validation, folder: Path) -> tuple[Path, ...]:
    """``validation.html`` and ``validation.json`` in ``folder``; returns their paths. Raises as of `write_files`."""
    data = json_bytes(summary(validation)).decode()
    return write_files(folder, {"validation.html": _page(validation), "validation.json": data})


def write_files(folder: Path, contents: Mapping[str, str]) -> tuple[Path, ...]:
    """Write the texts by file name; returns their paths. Raises InputError: the folder cannot be made or written."""
    made(folder)
    for name, content in contents.items():
        write_text(folder / name, content)
    return tuple(folder / name for name in contents)


def _page(validation: Validation) -> str:
    parts = [*paragraphs(head(validation)), html_table(rows(validation))]
    if validation.steps is not None:
        table = [["accuracy of the step times", "points", "median error", "p90", "bias", "bars"]]
        for kind, errors in validation.steps.errors.items():
            if errors.points:
                limits = ", ".join(f"{bar:.0%}" for bar in STEP_BARS.values())
                shown = limits if steps_hold(errors) else f"{limits} {MISSED}"
                values = map(percent, (errors.median, errors.p90, errors.bias))
                table.append([kind, str(errors.points), *values, shown if kind == "all" else ""])
        parts.append(html_table(table))
    parts += paragraphs([f"note: {note}" for note in validation.notes])
    parts.append(validation_figure(validation).to_html(full_html=False, include_plotlyjs=True))
    return page(f"Validation of {validation.question.live.folder.name}", parts)


def percent(value: float) -> str:
    """Signed, one digit; empty where undefined."""
    return f"{value:+.1%}" if math.isfinite(value) else ""


def _fitted_runs(profile: HardwareProfile) -> list[str]:
    return sorted(profile.fitted_runs.values()) if isinstance(profile, AffineProfile) else []


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
    forecast = f"{figure.forecast.mean * scale:.4g}{spread}"
    return [f"{figure.name.removesuffix('_s')}{unit}", f"{figure.measured * scale:.4g}", forecast]


def calibration_lines(calibration: LiveCalibration) -> list[str]:
    """What was fitted to live runs, for a terminal."""
    table = [["coefficient", "seconds", ""]]
    for name, value in calibration.coefficients.items():
        other = calibration.folded.get(name)
        note = "" if other is None else f"moves with {other}" if other else "nothing to multiply"
        table.append([name, f"{value:.4g}", note])
    curve = ", ".join(f"{rows:.0f}: {seconds * 1e3:.4g}" for rows, seconds in calibration.rows)
    folds = [*((fold.run, fold.errors) for fold in calibration.held_out), ("all", calibration.all)]
    held_out = [["held out", "points", "errors"], *([run, str(errors.points), str(errors)] for run, errors in folds)]
    seconds: Any = calibration.front_end.seconds
    tables = (*aligned(table), "", f"rows: ms beyond the fixed seconds: {curve}", "", *aligned(held_out), "")
    return [
        *(line.rstrip() for line in tables),
        f"front end: {seconds.request_s * 1e3:.2f} ms into the engine ({calibration.front_end.arrivals} requests), "
        f"{seconds.output_s * 1e3:.2f} ms + {seconds.output_sequence_s * 1e6:.0f} us a request out of it "
        f"({calibration.front_end.pieces} pieces), {seconds.turnaround_s * 1e3:.2f} ms from answer to next request",
        *(f"note: {note}" for note in calibration.notes),
    ]
