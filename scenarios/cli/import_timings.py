"""``draftcast calibrate --import``: another tool's timings as a profile folder.

Reading is ``draftcast.calibration.importers``'s; here are only options and text.
"""

from __future__ import annotations

import shlex
from datetime import date
from pathlib import Path

import typer

from draftcast.errors import InputError
from draftcast.scenarios.cli.terminal import print_json, progress_bar
from draftcast.scenarios.show.profile_report import rows_table
from draftcast.scenarios.show.tables import make_console


def calibrate_import(
    source: str,
    path: Path | None,
    *,
    out: Path,
    hardware: str | None,
    model: str | None = None,
    tp: int | None = None,
    dtype: str | None = None,
    system: str | None = None,
    name: str | None = None,
    as_json: bool = False,
) -> None:
    """Read ``path`` as ``source`` and write a profile folder ``out``; print what was taken and what was not.

    Args:
        source: one of `draftcast.calibration.importers.formats.FORMATS`.
        path: file or folder; None takes the installed aiconfigurator-core.
        out: new profile folder.
        hardware: the device that was timed, by name or file.
        model, tp, dtype, system: see `draftcast.calibration.importers.formats.read`.
        name: the profile's name; absent: the folder's.
        as_json: print one JSON object instead of text.

    Raises:
        InputError: an option missing or superfluous, a file that cannot be read, a folder that holds files already.
    """
    from draftcast.calibration.importers.formats import read, write_profile
    from draftcast.calibration.profile.folder import FIT, MANIFEST, TABLE
    from draftcast.calibration.profile.hardware import load_hardware
    from draftcast.kernels.model.catalog import load_model

    if hardware is None:
        raise InputError("required with --import", file="--hardware")
    for taken in (TABLE, MANIFEST, FIT):
        if (out / taken).exists():
            raise InputError("exists already: give a new folder", file=str(out / taken))
    device = load_hardware(hardware)
    with progress_bar("importing"):
        imported = read(
            source,
            path,
            device,
            model=None if model is None else load_model(model),
            tp=tp,
            dtype=dtype,
            system=system,
        )
    given = [("--hardware", hardware), ("--model", model), ("--tp", tp), ("--dtype", dtype), ("--system", system)]
    options = [text for option, value in given if value is not None for text in (option, str(value))]
    # The path without the machine's folders above it: a manifest is for others to read.
    command = ["draftcast", "calibrate", "--import", source, *([path.name] if path else []), *options]
    write_profile(
        out,
        imported,
        device,
        name=name or out.resolve().name,
        date=date.today().isoformat(),
        command=shlex.join([*command, "--out", out.name]),
    )
    frame = imported.table.frame
    rows = [
        {"operator": operator, "dtype": kind, "kv_dtype": kv_dtype, "points": len(points)}
        for (operator, kind, kv_dtype), points in frame.groupby(["operator", "dtype", "kv_dtype"])
    ]
    if as_json:
        print_json({"operators": rows, "left_out": dict(imported.left_out), "written": str(out)})
        return
    make_console().print(rows_table(rows))
    for reason, count in sorted(imported.left_out.items()):
        typer.echo(f"left out: {count} rows, {reason}")
    typer.echo(f"written: {out}")
