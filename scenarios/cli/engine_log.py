"""``draftcast calibrate --engine-log``: step coefficients from vLLM's iteration log.

Reading and fitting are ``draftcast.calibration``'s; here are only text and files.
"""

from __future__ import annotations

import math
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from draftcast.errors import InputError
from draftcast.scenarios.cli.terminal import progress_bar

if TYPE_CHECKING:
    import pandas as pd

    from draftcast.calibration.engine_log.fit import EngineLogFit
    from draftcast.calibration.engine_log.regression import Fit
    from draftcast.calibration.engine_log.steps import Clock

REPORT = "engine_log.json"
_UNITS = {"fixed_s": "ms", "draft_fixed_s": "ms", "draft_pass_s": "ms", "ngram_fraction": ""}
_SCALES = {"ms": 1e3, "us": 1e6, "": 1.0}


def calibrate_engine_log(
    engine_log: list[Path],
    *,
    speculative_log: list[Path] | None = None,
    method: str | None = None,
    model: str | None = None,
    hardware: str | None = None,
    tp: int = 1,
    dtype: str = "bf16",
    out: Path | None = None,
    name: str | None = None,
    clock: Clock = "auto",
    warmup_steps: int = 10,
    held_out: float = 0.25,
    bootstrap: int = 200,
    seed: int = 0,
    kv_capacity_tokens: float | None = None,
    block_size: int | None = None,
    as_json: bool = False,
) -> None:
    """Fit step coefficients, print them, and with ``out`` write a profile folder and ``engine_log.json`` there.

    Args:
        engine_log: logs of one server without speculative decoding.
        speculative_log: logs of the same server with it; ``method`` where they begin after the server named it.
        model, hardware: what the profile is for; needed with ``out``.
        tp, dtype, name: of the profile; the name is the folder's where it is not given.
        clock, warmup_steps, held_out, bootstrap, seed, kv_capacity_tokens, block_size: see `fit_engine_log`.
        as_json: print the report as one JSON object instead of text.

    Raises:
        InputError: a log that cannot be read or fitted, a folder that holds such files already, a missing option.
    """
    import json

    from draftcast.calibration.engine_log.fit import fit_engine_log
    from draftcast.calibration.engine_log.profile import notes, source_line, write_profile
    from draftcast.calibration.profile.folder import FIT, MANIFEST, write_manifest
    from draftcast.calibration.profile.hardware import load_hardware
    from draftcast.files import check_new, write_text

    if out is not None:
        for option, given in (("--model", model), ("--hardware", hardware)):
            if given is None:
                raise InputError("required with --out", file=option)
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot be made: {error.strerror}", file=str(out)) from None
        for written in (FIT, MANIFEST, REPORT):
            check_new(out / written)
    device = load_hardware(hardware) if hardware is not None else None
    with progress_bar("fitting"):
        fit = fit_engine_log(
            _read(engine_log),
            _read(speculative_log) if speculative_log else None,
            method=method,
            clock=clock,
            warmup_steps=warmup_steps,
            held_out=held_out,
            bootstrap=bootstrap,
            seed=seed,
            kv_capacity_tokens=kv_capacity_tokens,
            block_size=block_size,
        )
    report = {**fit.report(), "notes": notes(fit)}
    if out is not None and model is not None and device is not None:
        write_profile(
            fit,
            out / FIT,
            name=name or out.resolve().name,
            model=model,
            hardware=device,
            tp=tp,
            dtype=dtype,
            date=date.today().isoformat(),
        )
        write_manifest(
            out,
            name=name or out.resolve().name,
            hardware=device.name,
            device=device.name,
            versions={"vllm": ", ".join(fit.versions)} if fit.versions else {},
            date=date.today().isoformat(),
            command=" ".join(["draftcast calibrate", *(f"--engine-log {path}" for path in engine_log)]),
            source=source_line(fit),
        )
        write_text(out / REPORT, json.dumps(report, indent=1, allow_nan=False) + "\n")
    if as_json:
        typer.echo(json.dumps(report, allow_nan=False))
        return
    _print(fit, notes(fit))
    if out is not None:
        typer.echo(f"written: {out / FIT}, {out / MANIFEST}, {out / REPORT}")


def _read(paths: list[Path]) -> pd.DataFrame:
    import pandas as pd

    from draftcast.calibration.engine_log.log import read_engine_log

    return pd.concat([read_engine_log(path) for path in paths], ignore_index=True)


def _print(fit: EngineLogFit, notes: list[str]) -> None:
    whole = f", elapsed holds {fit.elapsed_share:.0%} of it" if math.isfinite(fit.elapsed_share) else ""
    typer.echo(f"{fit.steps} steps in {fit.points} points, {fit.clock} clock{whole}")
    for reason, count in fit.left_out.items():
        typer.echo(f"left out: {count} steps, {reason}")
    if math.isfinite(fit.host_fixed_s):
        typer.echo(
            f"outside elapsed: {fit.host_fixed_s * 1e3:.3f} ms a step + {fit.host_sequence_s * 1e6:.1f} us a sequence"
        )
    typer.echo("")
    _print_fit(fit.regression)
    if math.isfinite(fit.repeat_error):
        typer.echo(f"\nlike steps in a row differ by {fit.repeat_error:.1%} (median): no fit's error can be much lower")
    for note in notes:
        typer.echo(f"note: {note}")


def _print_fit(fit: Fit) -> None:
    for name, found in fit.coefficients.items():
        unit = _UNITS.get(name, "us")
        scale = _SCALES[unit]
        interval = f"[{found.low * scale:.4g}, {found.high * scale:.4g}]" if math.isfinite(found.low) else ""
        typer.echo(f"  {name:<18}{found.value * scale:>10.4g} {unit:<3}{interval:<24}{found.standing}")
    for kind, errors in fit.held_out.items():
        if errors.points:
            typer.echo(
                f"  held out, {kind:<12}{errors.points:>6} points  median {errors.median:.1%}  p90 {errors.p90:.1%}  "
                f"worst {errors.worst:.0%} ({Path(errors.worst_point).name})  bias {errors.bias:+.1%}"
            )
    typer.echo(
        f"  outliers {fit.outlier_points:.1%} of the points, {fit.outlier_seconds:.1%} of the time; drift between "
        f"stretches of time {fit.drift:.1%}"
    )
