"""``draftcast calibrate --device``: times the kernels on this machine and writes a profile folder.

Measuring itself is ``draftcast.calibration.microbench``'s; here are only text and defaults by device.
"""

import math
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

import typer

from draftcast.calibration.microbench import shapes
from draftcast.calibration.microbench.device import find_device, hardware_of
from draftcast.calibration.microbench.runner import Calibration, Result, Status, check_folder
from draftcast.calibration.profile.measured import parts_of
from draftcast.errors import InputError
from draftcast.files import digest
from draftcast.kernels.model.catalog import load_model
from draftcast.kernels.operators.registry import operator
from draftcast.scenarios.cli.calibrate import DeviceOptions, ProfileOptions, print_profile
from draftcast.scenarios.cli.terminal import INTERRUPTED, progress_bar

_MODELS = {"cpu": ["testbed-250M"], "cuda": ["Llama-3.1-8B"]}
_KV_DTYPES = {"cpu": ["bf16"], "cuda": ["bf16", "fp8"]}
_MAX_ROWS = {"cpu": 512, "cuda": 8192}
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def calibrate_device(device: Literal["cpu", "cuda"], profile: ProfileOptions, timing: DeviceOptions, seed: int) -> None:
    """Time the kernels of this machine and write a profile folder; an interrupted calibration is continued.

    Raises InputError: a bad option, no such device, or a folder that holds something else.
    """
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

        def progress(status: Status) -> None:
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
    print_profile(profile.as_json, {**answer, "written": str(result.folder)}, "points", _notes(result.noise))


def _budget_seconds(text: str) -> float:
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if parts is None or float(parts[1]) == 0.0:
        raise InputError("a time above 0 such as 90s, 10m or 2h is needed", file="--budget", value=text)
    return float(parts[1]) * _SECONDS[parts[2]]


def _checked(given: Sequence[str], choices: tuple[str, ...], option: str) -> tuple[str, ...]:
    if unknown := [value for value in given if value not in choices]:
        raise InputError(f"unknown; known: {', '.join(choices)}", file=option, value=unknown[0])
    return tuple(value for value in choices if value in given)


def _notes(noise: Mapping[str, Any]) -> Iterator[str]:
    yield (
        "interval: 95 % interval of the median over the median, the middle one of the points; median and p90: error of "
        "interpolation on the points held out"
    )
    yield (
        f"host: {noise['quiet_bursts']:.0%} of {noise['bursts']} bursts on a quiet machine; fixed loop p90 "
        f"{noise['spin']['p90_over_median']:.2f} of its median, drift {noise['spin']['drift']:+.1%}"
    )


def _operator_rows(result: Result) -> list[dict[str, Any]]:
    """A row an operator and format: points, how many settled, their intervals, errors on the held-out ones."""
    frame = result.table.frame
    errors = {entry.part: entry.interpolated for entry in result.errors}
    width = (frame["high_s"] - frame["low_s"]) / frame["seconds"]
    rows = []
    for part, points in parts_of(frame):
        off = errors.get(part)
        row = {**part._asdict(), "points": len(points), "settled": int(points["settled"].sum())}
        row |= {"interval": float(width[points.index].median()), "held_out": off.points if off is not None else 0}
        rows.append(row | {name: getattr(off, name, math.nan) for name in ("median", "p90")})
    return rows
