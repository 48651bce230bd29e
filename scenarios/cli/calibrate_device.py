"""``draftcast calibrate --device``: times the kernels on this machine and writes a profile folder.

Measuring itself is ``draftcast.calibration.microbench``'s; here are only text and defaults by device.
"""

from __future__ import annotations

import math
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from draftcast.errors import InputError
from draftcast.scenarios.cli.terminal import print_json, progress_bar
from draftcast.scenarios.show.profile_report import rows_table
from draftcast.scenarios.show.tables import make_console

if TYPE_CHECKING:
    from draftcast.calibration.microbench.runner import Result, Status

_MODELS = {"cpu": ["testbed-250M"], "cuda": ["Llama-3.1-8B"]}
_KV_DTYPES = {"cpu": ["bf16"], "cuda": ["bf16", "fp8"]}
_MAX_ROWS = {"cpu": 512, "cuda": 8192}
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_INTERRUPTED = 130  # as shells report it


def calibrate_device(
    device: Literal["cpu", "cuda"],
    *,
    out: Path,
    model: list[str] | None,
    tp: list[int] | None,
    dtype: list[str] | None,
    kv_dtype: list[str] | None,
    operators: str | None,
    max_rows: int | None,
    threads: int | None,
    budget: str,
    hardware: str | None,
    name: str | None,
    seed: int,
    as_json: bool,
) -> None:
    """Time the kernels of this machine and write a profile folder; a run that was cut short is continued.

    None stands for the device's default; see the options of ``draftcast calibrate`` of the same names.

    Raises:
        InputError: a bad option, no such device, or a folder that holds something else.
    """
    began_s = time.perf_counter()
    from dataclasses import asdict

    from draftcast.calibration.microbench import shapes
    from draftcast.calibration.microbench.device import find_device, hardware_of
    from draftcast.calibration.microbench.runner import Calibration, Settings, check_folder, digest
    from draftcast.kernels.model.catalog import load_model
    from draftcast.kernels.operators.registry import operator

    budget_s = _budget_seconds(budget)
    rows = _MAX_ROWS[device] if max_rows is None else max_rows
    if rows < 1:
        raise InputError("an integer >= 1 is needed", file="--max-rows", value=rows)
    chosen = _chosen(operators, shapes.OPERATORS)
    dtypes = _known(dtype or ["bf16"], shapes.DTYPES, "--dtype")
    kv_dtypes = _known(kv_dtype or _KV_DTYPES[device], shapes.DTYPES, "--kv-dtype")
    check_folder(out)
    models = [load_model(given) for given in model or _MODELS[device]]
    tps = sorted(set(tp or [1]))
    found = find_device(device, threads)
    sheet = hardware_of(found, hardware)
    kernels = {each: operator(each) for each in {*chosen, "linear"}}
    grid = shapes.cpu_grid(rows) if device == "cpu" else shapes.cuda_grid(rows)
    plan = shapes.plan(
        models,
        tps,
        dtypes,
        kv_dtypes,
        grid,
        {each: kernels[each] for each in chosen},
        device=device,
        memory_bytes=found.memory_bytes,
        seed=seed,
    )
    settings = Settings(
        names=tuple(each.name for each in models),
        digest=digest([asdict(each) for each in models]),
        tps=tuple(tps),
        dtypes=tuple(dtypes),
        kv_dtypes=tuple(kv_dtypes),
        operators=tuple(chosen),
        max_rows=rows,
        seed=seed,
    )
    with progress_bar("calibrating") as shown:

        def progress(status: Status) -> None:
            state = f"{status.measured} of {status.points} points measured, {status.settled} settled"
            shown(min(status.spent_s / budget_s, 1.0), f"{state}, now {status.now.partition('/')[0]}")

        with Calibration(
            out, settings, found, plan, kernels, budget_s=budget_s, began_s=began_s, progress=progress
        ) as calibration:
            try:
                calibration.measure()
            except KeyboardInterrupt:
                print("\ndraftcast: stopped; the same command goes on from here", file=sys.stderr)
                raise typer.Exit(_INTERRUPTED) from None
            result = calibration.write(name or out.resolve().name, sheet, command=["draftcast", *sys.argv[1:]])
            if calibration.spent_s > budget_s:
                print(
                    f"draftcast: note: the calibration took {calibration.spent_s:.0f} s, more than its budget of "
                    f"{budget_s:g} s",
                    file=sys.stderr,
                )
    _print_result(result, as_json)


def _budget_seconds(text: str) -> float:
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if parts is None or float(parts[1]) == 0.0:
        raise InputError("a time above 0 such as 90s, 10m or 2h is needed", file="--budget", value=text)
    return float(parts[1]) * _SECONDS[parts[2]]


def _chosen(text: str | None, known: tuple[str, ...]) -> list[str]:
    if text is None:
        return list(known)
    return _known([part.strip() for part in text.split(",")], known, "--operators")


def _known(given: list[str], known: tuple[str, ...], option: str) -> list[str]:
    for value in given:
        if value not in known:
            raise InputError(f"unknown; known: {', '.join(known)}", file=option, value=value)
    return [value for value in known if value in given]


def _print_result(result: Result, as_json: bool) -> None:
    rows = _operator_rows(result)
    if as_json:
        found = {"operators": rows, "noise": result.noise, "left_out": result.left_out, "written": str(result.folder)}
        print_json(found)
        return
    make_console().print(rows_table(rows))
    typer.echo(
        "interval: 95 % interval of the median over the median, the middle one of the points; median and p90: error of "
        "interpolation on the points held out"
    )
    noise = result.noise
    typer.echo(
        f"host: {noise['quiet_bursts']:.0%} of {noise['bursts']} bursts on a quiet machine; fixed loop p90 "
        f"{noise['spin']['p90_over_median']:.2f} of its median, drift {noise['spin']['drift']:+.1%}"
    )
    for reason, count in sorted(result.left_out.items()):
        typer.echo(f"left out: {count} points, {reason}")
    typer.echo(f"written: {result.folder}")


def _operator_rows(result: Result) -> list[dict[str, Any]]:
    """A row an operator and format: points, how many settled, their intervals, errors on the held-out ones."""
    frame = result.table.frame
    errors = {(entry.operator, entry.dtype, entry.kv_dtype): entry.interpolated for entry in result.errors}
    width = (frame["high_s"] - frame["low_s"]) / frame["seconds"]
    rows = []
    for (operator, dtype, kv_dtype), points in frame.groupby(["operator", "dtype", "kv_dtype"]):
        off = errors.get((str(operator), str(dtype), str(kv_dtype)))
        rows.append(
            {
                "operator": operator,
                "dtype": dtype,
                "kv_dtype": kv_dtype,
                "points": len(points),
                "settled": int(points["settled"].sum()),
                "interval": float(width[points.index].median()),
                "held_out": off.points if off is not None else 0,
                "median": off.median if off is not None else math.nan,
                "p90": off.p90 if off is not None else math.nan,
            }
        )
    return rows
