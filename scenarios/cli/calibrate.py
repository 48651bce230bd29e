"""``draftcast calibrate``: three sources of measured time; an option of another source is refused, not ignored."""

import math
import re
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from draftcast.errors import InputError
from draftcast.files import digest
from draftcast.scenarios.cli.terminal import INTERRUPTED, print_lines, progress_bar

if TYPE_CHECKING:
    from draftcast.calibration.engine_log.fit import EngineLogFit
    from draftcast.calibration.microbench.runner import RunnerResult


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    device: Literal["cpu", "cuda"] | None = None
    engine_log: list[Path] | None = None
    import_from: Literal["aiconfigurator", "vidur", "llmservingsim", "aiter"] | None = None

    def chosen(self) -> str:
        """The option that is given. Raises InputError where none or several are."""
        sources = {"--device": self.device, "--engine-log": self.engine_log, "--import": self.import_from}
        names = [name for name, value in sources.items() if value]
        if len(names) != 1:
            choices = "--device (what to time), --engine-log (a log of vLLM), --import (whose timings)"
            others = f", not {' and '.join(names)}" if names else ""
            raise InputError(f"exactly one of {choices} is needed{others}", file="calibrate")
        return names[0]


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    out: Path | None = None
    model: list[str] | None = None
    tp: list[int] | None = None
    dtype: list[str] | None = None
    hardware: str | None = None
    name: str | None = None
    as_json: bool = False

    def single(self, source: str) -> tuple[str | None, int | None, str | None]:
        """Model, tensor-parallel size and format of a source that has one of each."""
        for option, values in (("--model", self.model), ("--tp", self.tp), ("--dtype", self.dtype)):
            if values is not None and len(values) > 1:
                raise InputError(f"only one with {source}", file=option, value=_plain(values))
        return next(iter(self.model or ()), None), next(iter(self.tp or ()), None), next(iter(self.dtype or ()), None)

    def folder(self, source: str) -> Path:
        if self.out is None:
            raise InputError(f"required with {source}", file="--out")
        return self.out


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    kv_dtype: list[str] | None = None
    budget: str = "10m"
    operators: str | None = None
    max_rows: int | None = None
    threads: int | None = None


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    speculative_log: list[Path] | None = None
    method: str | None = None
    clock: Literal["auto", "wall", "elapsed"] = "auto"
    warmup_steps: int = 10
    held_out: float = 0.25
    bootstrap: int = 200
    kv_capacity_tokens: float | None = None
    block_size: int | None = None


def _names(*groups: type[Any]) -> set[str]:
    return {field.name for group in groups for field in fields(group)}


OPTIONS = {
    "--device": _names(ProfileOptions, DeviceOptions) | {"seed"},
    "--engine-log": _names(ProfileOptions, LogOptions) | {"seed"},
    "--import": _names(ProfileOptions) | {"path", "system"},
}
"""By source, the parameters that go with it."""
_MODELS = {"cpu": ["testbed-250M"], "cuda": ["Llama-3.1-8B"]}
_KV_DTYPES = {"cpu": ["bf16"], "cuda": ["bf16", "fp8"]}
_MAX_ROWS = {"cpu": 512, "cuda": 8192}
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_IN_MS = ("fixed_s", "draft_fixed_s", "draft_pass_s", "ngram_step_s")


def calibrate(
    context: typer.Context,
    *,
    source: SourceOptions,
    profile: ProfileOptions,
    seed: int = 0,
    timing: DeviceOptions,
    fit: LogOptions,
    path: Path | None = None,
    system: str | None = None,
) -> None:
    """Make a profile of step times: from this machine's kernels, a server's log, or another tool's tables."""
    chosen = source.chosen()
    fitting = OPTIONS[chosen] | _names(SourceOptions)
    for parameter, value in context.params.items():
        came_from = context.get_parameter_source(parameter)
        if parameter not in fitting and came_from is not None and came_from.name != "DEFAULT":
            option = "path" if parameter == "path" else f"--{parameter.replace('_', '-')}"
            raise InputError(f"does not go with {chosen}", file=option, value=_plain(value))
    if source.device is not None:
        calibrate_device(source.device, profile, timing, seed)
    elif source.engine_log:
        calibrate_engine_log(source.engine_log, profile, fit, seed)
    else:
        calibrate_import(source.import_from or "", profile, path, system)


def calibrate_device(device: Literal["cpu", "cuda"], profile: ProfileOptions, timing: DeviceOptions, seed: int) -> None:
    """Write a profile folder, or go on with it. Raises InputError: a bad option, device or folder."""
    from draftcast.calibration.microbench import shapes
    from draftcast.calibration.microbench.device import find_device, hardware_of
    from draftcast.calibration.microbench.runner import Calibration, RunnerStatus, check_folder
    from draftcast.kernels.model.catalog import load_model
    from draftcast.kernels.operators.registry import operator

    began_s = time.perf_counter()
    out = profile.folder("--device")
    budget_s = _budget_seconds(timing.budget)
    rows = _MAX_ROWS[device] if timing.max_rows is None else timing.max_rows
    if rows < 1:
        raise InputError("an integer >= 1 is needed", file="--max-rows", value=rows)
    names = [part.strip() for part in timing.operators.split(",")] if timing.operators is not None else shapes.OPERATORS
    operators = _checked(names, shapes.OPERATORS, "--operators")
    dtypes = _checked(profile.dtype or ["bf16"], shapes.DTYPES, "--dtype")
    kv_dtypes = _checked(timing.kv_dtype or _KV_DTYPES[device], shapes.DTYPES, "--kv-dtype")
    check_folder(out)
    models = [load_model(name) for name in profile.model or _MODELS[device]]
    machine = find_device(device, timing.threads)
    sheet = hardware_of(machine, profile.hardware)
    kernels = {name: operator(name) for name in {*operators, "linear"}}
    grid = shapes.grid_for(device, rows)
    settings = shapes.Settings(
        names=tuple(model.name for model in models),
        digest=digest([asdict(model) for model in models])[:16],
        tps=tuple(sorted(set(profile.tp or [1]))),
        dtypes=dtypes,
        kv_dtypes=kv_dtypes,
        operators=operators,
        max_rows=rows,
        seed=seed,
    )
    plan = shapes.plan(models, settings, grid, kernels, machine)
    with progress_bar("calibrating") as shown:

        def progress(status: RunnerStatus) -> None:
            state = f"{status.measured} of {status.points} points measured, {status.settled} settled"
            shown(min(status.spent_s / budget_s, 1.0), f"{state}, now {status.now.partition('/')[0]}")

        with Calibration(
            out, machine, plan, kernels, budget_s=budget_s, began_s=began_s, progress=progress
        ) as calibration:
            try:
                calibration.measure()
            except KeyboardInterrupt:
                print("\ndraftcast: stopped; the same command continues from here", file=sys.stderr)
                raise typer.Exit(INTERRUPTED) from None
            result = calibration.write(profile.name or out.resolve().name, sheet, command=["draftcast", *sys.argv[1:]])
            if calibration.spent_s > budget_s:
                took = f"{calibration.spent_s:.0f} s, more than its budget of {budget_s:g} s"
                print(f"draftcast: note: the calibration took {took}", file=sys.stderr)
    answer = {"operators": _operator_rows(result), "noise": result.noise, "left_out": result.left_out}
    answer["written"] = str(result.folder)
    noise = result.noise
    notes = (
        "interval: 95 % interval of the median over the median, the middle one of the points; median and p90: error of "
        "interpolation on the points held out",
        f"host: {noise['quiet_bursts']:.0%} of {noise['bursts']} bursts on a quiet machine; fixed loop p90 "
        f"{noise['spin']['p90_over_median']:.2f} of its median, drift {noise['spin']['drift']:+.1%}",
    )
    print_lines(profile.as_json, answer, _profile_lines(answer, "points", notes))


def _budget_seconds(text: str) -> float:
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if parts is None or float(parts[1]) == 0.0:
        raise InputError("a time above 0 such as 90s, 10m or 2h is needed", file="--budget", value=text)
    return float(parts[1]) * _SECONDS[parts[2]]


def _checked(names: Sequence[str], choices: tuple[str, ...], option: str) -> tuple[str, ...]:
    if unknown := [value for value in names if value not in choices]:
        raise InputError(f"unknown; known: {', '.join(choices)}", file=option, value=unknown[0])
    return tuple(value for value in choices if value in names)


def _operator_rows(result: "RunnerResult") -> list[dict[str, Any]]:
    """A row an operator and format: points, how many settled, their intervals, errors on the held-out ones."""
    from draftcast.calibration.profile.measured import parts_of

    frame = result.table
    errors = {entry.part: entry.interpolated for entry in result.errors}
    width = (frame["high_s"] - frame["low_s"]) / frame["seconds"]
    rows = []
    for part, points in parts_of(frame):
        off = errors.get(part)
        row = {**part._asdict(), "points": len(points), "settled": int(points["settled"].sum())}
        row |= {"interval": float(width[points.index].median()), "held_out": off.points if off is not None else 0}
        rows.append(row | {name: getattr(off, name, math.nan) for name in ("median", "p90")})
    return rows


def calibrate_engine_log(engine_log: list[Path], profile: ProfileOptions, options: LogOptions, seed: int = 0) -> None:
    """Fit step coefficients to one server's logs. Raises InputError: a bad log, a folder in use, a missing option."""
    import pandas as pd

    from draftcast.calibration.engine_log import profile as written
    from draftcast.calibration.engine_log.fit import FitOptions, fit_engine_log
    from draftcast.calibration.engine_log.log import read_engine_log
    from draftcast.calibration.measured_model import check_model_of_logs
    from draftcast.calibration.profile.hardware import load_hardware
    from draftcast.calibration.profile.load import FIT, MANIFEST
    from draftcast.kernels.model.catalog import load_model

    out, hardware, (model, tp, dtype) = profile.out, profile.hardware, profile.single("--engine-log")
    if out is not None:
        for option, value in (("--model", model), ("--hardware", hardware)):
            if value is None:
                raise InputError("required with --out", file=option)
        written.new_profile_folder(out)
    device = load_hardware(hardware) if hardware is not None else None
    spec = load_model(model) if model is not None else None
    with progress_bar("fitting"):
        fitting = {name: value for name, value in vars(options).items() if name != "speculative_log"}

        def joined(paths: list[Path]) -> pd.DataFrame:
            frame = pd.concat(map(read_engine_log, paths), ignore_index=True)
            check_model_of_logs(frame, model or "")
            return frame

        speculative = joined(options.speculative_log) if options.speculative_log else None
        fit = fit_engine_log(joined(engine_log), speculative, FitOptions(**fitting, seed=seed))
    notes = written.notes(fit)
    lines = [*_fit_lines(fit), *(f"note: {note}" for note in notes)]
    if out is not None and spec is not None and device is not None:
        logs = [("--engine-log", path.name) for path in engine_log]
        logs += [("--speculative-log", path.name) for path in options.speculative_log or ()]
        changed = {name: value for name, value in fitting.items() if value != getattr(LogOptions, name)}
        fitted = [(f"--{name.replace('_', '-')}", value) for name, value in changed.items()]
        label_options = ("--model", model), ("--hardware", hardware), ("--tp", tp), ("--dtype", dtype)
        command = _command(*logs, *fitted, *label_options, ("--seed", seed or None), ("--out", out.name))
        label = written.ProfileLabel(profile.name or out.resolve().name, spec.name, device, tp or 1, dtype or "bf16")
        written.write_profile_folder(out, written.affine_fit(fit, command), label)
        lines.append(f"written: {out / FIT}, {out / MANIFEST}, {out / written.REPORT}")
    print_lines(profile.as_json, {**fit.report(), "notes": notes}, lines)


def _fit_lines(fit: "EngineLogFit") -> Iterator[str]:
    share = f", of which elapsed covers {fit.elapsed_share:.0%}" if math.isfinite(fit.elapsed_share) else ""
    yield f"{fit.steps} steps in {fit.points} points, {fit.clock} clock{share}"
    yield from (f"left out: {count} steps, {reason}" for reason, count in fit.left_out.items())
    if math.isfinite(fit.host_fixed_s):
        sequence = f"{fit.host_sequence_s * 1e6:.1f} us per sequence"
        yield f"outside elapsed: {fit.host_fixed_s * 1e3:.3f} ms per step + {sequence}"
    yield ""
    regression = fit.regression
    for name, coefficient in regression.coefficients.items():
        unit, scale = ("ms", 1e3) if name in _IN_MS else ("us", 1e6)
        value, low, high = (scale * x for x in (coefficient.value, coefficient.low, coefficient.high))
        interval = f"[{low:.4g}, {high:.4g}]" if math.isfinite(low) else ""
        yield f"  {name:<18}{value:>10.4g} {unit:<3}{interval:<24}{coefficient.standing}"
    for kind, errors in regression.held_out.items():
        if errors.points:
            yield (
                f"  held out, {kind:<12}{errors.points:>6} points  median {errors.median:.1%}  p90 {errors.p90:.1%}  "
                f"worst {errors.worst:.0%} ({Path(errors.worst_point).name})  bias {errors.bias:+.1%}"
            )
    outliers = f"outliers {regression.outlier_points:.1%} of the points, {regression.outlier_seconds:.1%} of the time"
    yield f"  {outliers}; drift between stretches of time {regression.drift:.1%}"
    if math.isfinite(fit.repeat_error):
        yield f"\nequal consecutive steps differ by {fit.repeat_error:.1%} (median): no fit's error can be much lower"


def calibrate_import(source: str, profile: ProfileOptions, path: Path | None, system: str | None) -> None:
    """Read another tool's timings. Raises InputError: a bad or missing option, an unreadable file, a folder in use."""
    from draftcast.calibration.importers.formats import read, write_profile
    from draftcast.calibration.profile.hardware import load_hardware
    from draftcast.calibration.profile.load import FIT, MANIFEST, TABLE
    from draftcast.calibration.profile.measured import parts_of
    from draftcast.kernels.model.catalog import load_model
    from draftcast.kernels.model.dtypes import weight_dtype

    out, (model, tp, dtype) = profile.folder("--import"), profile.single("--import")
    dtype = None if dtype is None else weight_dtype(dtype)
    if profile.hardware is None:
        raise InputError("required with --import", file="--hardware")
    for taken in (TABLE, MANIFEST, FIT):
        if (out / taken).exists():
            raise InputError("exists already: give a new folder", file=str(out / taken))
    device = load_hardware(profile.hardware)
    spec = None if model is None else load_model(model)
    with progress_bar("importing"):
        timings = read(source, path, device, model=spec, tp=tp, dtype=dtype, system=system)
    options = {"--hardware": profile.hardware, "--model": model, "--tp": tp, "--dtype": dtype, "--system": system}
    line = _command(("--import", source), ("", path and path.name), *options.items(), ("--out", out.name))
    name = profile.name or out.resolve().name
    write_profile(out, timings, device, name=name, date=date.today().isoformat(), command=line)
    rows = [{**part._asdict(), "points": len(points)} for part, points in parts_of(timings.table)]
    answer = {"operators": rows, "left_out": dict(timings.left_out), "written": str(out)}
    print_lines(profile.as_json, answer, _profile_lines(answer, "rows"))


def _command(*options: tuple[str, object]) -> str:
    """The line that was typed; without the folders above its files, because a manifest is for others to read."""
    words = (word for option, value in options if value is not None for word in (option, str(value)) if word)
    return shlex.join(["draftcast", "calibrate", *words])


def _profile_lines(answer: dict[str, Any], unit: str, notes: Iterable[str] = ()) -> Iterator[Any]:
    """A profile that was written: its operators, what was left out (so many of ``unit``) and where it lies."""
    from draftcast.scenarios.show.tables import rows_table

    yield rows_table(answer["operators"])
    yield from notes
    yield from (f"left out: {count} {unit}, {reason}" for reason, count in sorted(answer["left_out"].items()))
    yield f"written: {answer['written']}"


def _plain(value: object) -> object:
    """An option's value as the user wrote it."""
    if isinstance(value, list):
        return " ".join(str(item) for item in value)
    return str(value) if isinstance(value, Path) else value
