"""``draftcast validate``, ``live calibrate``, ``report``, ``summary``: measurement and forecast in text and files."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from draftcast.errors import InputError
from draftcast.files import read_bytes, write_text
from draftcast.scenarios.cli.terminal import print_lines, progress_bar


def validate(
    scenario: str,
    live: Path,
    profile: str | None = None,
    measured_acceptance: bool = False,
    out: Path | None = None,
    overrides: list[str] | None = None,
    as_json: bool = False,
) -> None:
    """Forecast a recorded run on its own requests and compare: figures, step times, causes of the error."""
    from draftcast.calibration.live.imported_runs import import_bench_result, import_recorded_run, is_recorded_run
    from draftcast.calibration.live.run_directory import LiveRun
    from draftcast.scenarios.live.validate import comparison
    from draftcast.scenarios.schema.load import load_scenario
    from draftcast.scenarios.show import validation_report as report

    question = load_scenario(scenario, overrides=overrides or ())
    if not live.exists():
        raise InputError("no such run directory or file", file=str(live))
    with progress_bar("validating"), TemporaryDirectory() as folder:
        if is_recorded_run(live):  # of LLMServingSim's benchmark
            recorded = import_recorded_run(live, Path(folder) / live.resolve().name)
        elif live.is_dir():
            recorded = LiveRun.read(live)
        else:
            recorded = import_bench_result(live, Path(folder) / live.stem)
        # The path that was given, not that of a temporary copy.
        recorded = replace(recorded, folder=live)
        validation = comparison.validate(recorded, question, profile=profile, measured=measured_acceptance)
    lines = [report.text(validation)]
    if out is not None:
        lines.append(f"written: {', '.join(map(str, report.write_report(validation, out)))}")
    print_lines(as_json, report.summary(validation) if as_json else {}, lines)


def calibrate(runs: list[Path], out: Path | None = None, name: str | None = None, as_json: bool = False) -> None:
    """Fit a server's step time, with and without speculation, and its front end to live runs."""
    from draftcast.calibration.live.run_directory import LiveRun
    from draftcast.calibration.live.step_profile import calibrate_live, write_live_profile
    from draftcast.scenarios.live.validate.forecast import profile_label
    from draftcast.scenarios.schema.load import recorded_scenario
    from draftcast.scenarios.show.validation_report import calibration_lines

    recorded = [LiveRun.read(run) for run in runs]
    scenario = recorded_scenario(recorded[0].manifest, str(runs[0]))
    with progress_bar("fitting"):
        calibration = calibrate_live(recorded)
    if out is not None:
        write_live_profile(calibration, out, profile_label(scenario, name or out.resolve().name))
    written = [f"written: {out}"] if out is not None else []
    print_lines(as_json, calibration.report(), [*calibration_lines(calibration), *written])


def report(
    folder: Path,
    profile: str | None = None,
    measured_acceptance: bool = False,
    out: Path | None = None,
    static: bool = False,
    as_json: bool = False,
) -> None:
    """Validate every run of a live sweep: errors, speculation's effect at every load, cutovers, misses."""
    data, shown = report_sweep(folder, profile, measured=measured_acceptance, out=out, static=static)
    print_lines(as_json, data, [shown])


def report_sweep(
    folder: Path, profile: str | None = None, *, measured: bool = False, out: Path | None = None, static: bool = False
) -> tuple[dict[str, Any], str]:
    """Write a sweep's report; its data and text. Raises InputError as of `validate_sweep` and `write_sweep_report`."""
    from draftcast.scenarios.live.validate.sweep import validate_sweep
    from draftcast.scenarios.show import validation_sweep_report as sweep_report

    with progress_bar("validating") as progress:
        sweep = validate_sweep(folder, profile, measured=measured, out=out, progress=progress)
    written = sweep_report.write_sweep_report(sweep, out or folder, static=static)
    shown = f"{sweep_report.text(sweep)}\nwritten: {', '.join(str(path) for path in written)}"
    return sweep_report.summary(sweep), shown


def summary(report: Path, out: Path, command: str = "", as_json: bool = False) -> None:
    """Summarise the report of a sweep, without its runs: verdicts, misses, step times, cutovers, effects."""
    from draftcast.scenarios.show.validation_sweep_report import read_summary

    data = read_summary(read_bytes(report), str(report), command)
    write_text(out, data.model_dump_json(indent=1) + "\n")
    print_lines(as_json, data.model_dump(), [*data.head(), f"written: {out}"])
