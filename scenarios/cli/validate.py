"""``draftcast validate``, ``live calibrate`` and ``live report``: live runs beside their forecasts, and the profile.

Fitting is ``calibration/live``'s, comparing ``scenarios/live/validate``'s; here are only text and files.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftcast.errors import InputError
from draftcast.files import read_bytes, write_text
from draftcast.scenarios.cli.live_options import AsJson, Overrides, ScenarioArgument
from draftcast.scenarios.cli.terminal import print_json, progress_bar

if TYPE_CHECKING:
    from draftcast.calibration.live.run_directory import LiveRun
    from draftcast.calibration.live.step_profile import LiveCalibration


IgnoreCoreSpeed = Annotated[
    bool,
    typer.Option(
        "--ignore-core-speed",
        help="Forecast at the speed the cores had in the calibration, not at that of the run (servers on a CPU).",
    ),
]


def validate(
    scenario: ScenarioArgument,
    live: Annotated[
        Path, typer.Option(metavar="DIR", help="A live run; or a result of vllm bench serve --save-detailed.")
    ],
    profile: Annotated[
        str | None, typer.Option(help="A profile's name, file or folder, instead of the scenario's.")
    ] = None,
    measured_acceptance: Annotated[
        bool, typer.Option("--measured-acceptance", help="Forecast with the acceptance the server counted in this run.")
    ] = False,
    ignore_core_speed: IgnoreCoreSpeed = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write validation.html and validation.json here.")
    ] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Forecast a recorded run on its own requests and compare: figures, step times, and what the error is made of."""
    from draftcast.scenarios.live.validate import comparison
    from draftcast.scenarios.schema.load import load_scenario
    from draftcast.scenarios.show import validation_report as report

    question = load_scenario(scenario, overrides=overrides or ())
    with progress_bar("validating"):
        found = comparison.validate(
            _live_run(live), question, profile=profile, measured=measured_acceptance, core_speed=not ignore_core_speed
        )
    written = report.write_report(found, out) if out is not None else ()
    if as_json:
        print_json(report.summary(found))
        return
    typer.echo(report.text(found))
    if written:
        typer.echo(f"written: {', '.join(str(path) for path in written)}")


def calibrate(
    runs: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Live runs of one server, with their logs.")],
    out: Annotated[Path | None, typer.Option(metavar="PROFILE", help="Profile folder to write.")] = None,
    name: Annotated[str | None, typer.Option(help="Of the profile; the folder's when absent.")] = None,
    as_json: AsJson = False,
) -> None:
    """Fit a server's step time, with and without speculation, and its front end to live runs."""
    from draftcast.calibration.live.run_directory import LiveRun
    from draftcast.calibration.live.step_profile import calibrate_live, write_live_profile
    from draftcast.calibration.profile.hardware import load_hardware
    from draftcast.kernels.model.catalog import load_model
    from draftcast.scenarios.schema.load import recorded_scenario

    recorded = [LiveRun.read(run) for run in runs]
    asked = recorded_scenario(recorded[0].manifest, str(runs[0]))
    with progress_bar("fitting"):
        found = calibrate_live(recorded)
    if out is not None:
        write_live_profile(
            found,
            out,
            name=name or out.resolve().name,
            model=load_model(asked.engine.model).name,
            hardware=load_hardware(asked.hardware),
            tp=asked.engine.tensor_parallel_size,
            dtype=asked.engine.weight_dtype,
        )
    if as_json:
        print_json(found.report())
        return
    _print_calibration(found)
    if out is not None:
        typer.echo(f"written: {out}")


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Of a live sweep.")],
    profile: Annotated[
        str | None,
        typer.Option(
            help="A profile's name, file or folder; when absent, made from the sweep's calibration runs, if it has any."
        ),
    ] = None,
    measured_acceptance: Annotated[
        bool, typer.Option("--measured-acceptance", help="Forecast with the acceptance each server counted.")
    ] = False,
    ignore_core_speed: IgnoreCoreSpeed = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write sweep-validation.md, .html, .json and the profile here, not into DIR."),
    ] = None,
    static: Annotated[
        bool, typer.Option("--static", help="Draw an SVG (needs kaleido), for a page of kilobytes without a script.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Validate every run of a live sweep: errors, speculation's effect at every load, the cutovers, what misses."""
    found, shown = report_sweep(
        folder, profile, measured=measured_acceptance, core_speed=not ignore_core_speed, out=out, static=static
    )
    if as_json:
        print_json(found)
    else:
        typer.echo(shown)


def report_sweep(
    folder: Path,
    profile: str | None = None,
    *,
    measured: bool = False,
    core_speed: bool = True,
    out: Path | None = None,
    static: bool = False,
) -> tuple[dict[str, Any], str]:
    """Validate a sweep and write its report; returns it as plain data and as text.

    Raises:
        InputError: see `draftcast.scenarios.live.validate.sweep.validate_sweep`; or the report cannot be written.
    """
    from draftcast.scenarios.live.validate.sweep import validate_sweep
    from draftcast.scenarios.show import validation_sweep_report as sweep_report

    with progress_bar("validating") as progress:
        found = validate_sweep(folder, profile, measured=measured, core_speed=core_speed, out=out, progress=progress)
    written = sweep_report.write_sweep_report(found, out or folder, static=static)
    shown = f"{sweep_report.text(found)}\nwritten: {', '.join(str(path) for path in written)}"
    return sweep_report.summary(found), shown


def summary(
    report: Annotated[Path, typer.Argument(metavar="FILE", help="sweep-validation.json of a report.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Summary to write; the dashboard's Trust page reads it.")],
    command: Annotated[str, typer.Option(help="That made the sweep, for whoever reads the summary.")] = "",
    as_json: AsJson = False,
) -> None:
    """Write what a validated sweep came to, without its runs: verdicts, who misses, step times, cutovers, effects."""
    from draftcast.scenarios.show.validation_sweep_summary import read_summary

    found = read_summary(read_bytes(report), str(report), command)
    write_text(out, found.to_json())
    if as_json:
        print_json(found.model_dump())
        return
    for line in found.head():
        typer.echo(line)
    typer.echo(f"written: {out}")


def _live_run(path: Path) -> LiveRun:
    """A run directory, or a bench result read as one."""
    from tempfile import TemporaryDirectory

    from draftcast.calibration.live.bench_result import import_bench_result
    from draftcast.calibration.live.run_directory import LiveRun

    if path.is_dir():
        return LiveRun.read(path)
    if not path.is_file():
        raise InputError("no such run directory or file", file=str(path))
    with TemporaryDirectory() as folder:
        return import_bench_result(path, Path(folder) / path.stem)


def _print_calibration(found: LiveCalibration) -> None:
    from draftcast.calibration.live.step_fit import errors_text
    from draftcast.scenarios.show.validation_page import aligned

    fit = found.fit
    table = [["coefficient", "seconds", ""]]
    for name, value in fit.coefficients.items():
        other = fit.folded.get(name)
        note = "" if other is None else f"moves with {other}" if other else "nothing to multiply"
        table.append([name, f"{value:.4g}", note])
    curve = ", ".join(f"{rows:.0f}: {seconds * 1e3:.4g}" for rows, seconds in fit.rows)
    held_out: list[list[str]] = [["held out", "points", "errors"]]
    held_out += [[each.run, str(each.errors.points), errors_text(each.errors)] for each in fit.held_out]
    held_out.append(["all", str(fit.all.points), errors_text(fit.all)])
    seconds: Any = found.front_end.seconds
    for line in (*aligned(table), "", f"rows: ms beyond the fixed seconds: {curve}", "", *aligned(held_out), ""):
        typer.echo(line.rstrip())
    typer.echo(
        f"front end: {seconds.request_s * 1e3:.2f} ms into the engine ({found.front_end.arrivals} requests), "
        f"{seconds.output_s * 1e3:.2f} ms + {seconds.output_sequence_s * 1e6:.0f} us a request out of it "
        f"({found.front_end.pieces} pieces), {seconds.turnaround_s * 1e3:.2f} ms from answer to next request"
    )
    for group, read in fit.core_speed.items():
        typer.echo(f"cores ({group}): steps go with the probe's {read.spin_s * 1e6:.1f} us to the {read.exponent:.2f}")
    for note in found.notes:
        typer.echo(f"note: {note}")
