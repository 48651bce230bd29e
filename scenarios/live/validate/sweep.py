"""A live sweep beside its forecast: every run validated, speculation's effect at every load, the cutovers.

The sweep's calibration runs make the profile where none is given, and are not judged; a sweep without them is forecast
with the scenario's own profile. Whatever runs a profile was made from are left out, and the report says which.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from draftcast.calibration.live.run_directory import LiveRun
from draftcast.calibration.live.step_profile import PROFILE_FILES, calibrate_live, run_digest, write_live_profile
from draftcast.calibration.profile.hardware import load_hardware
from draftcast.calibration.profile.load import load_profile
from draftcast.calibration.profile.roofline_fit import Errors
from draftcast.calibration.profile.spec import AffineProfile
from draftcast.errors import InputError
from draftcast.scenarios.live.sweep import OFF, read_index
from draftcast.scenarios.live.validate.comparison import Validation, repeat_spread, validate
from draftcast.scenarios.live.validate.effects import Cutover, Effect, closed_loop_figure, cutover, effect
from draftcast.scenarios.live.validate.forecast import profile_label
from draftcast.scenarios.schema.load import recorded_scenario
from draftcast.sim.progress import Progress

PROFILE = "profile"
BELOW_CAPACITY = 0.8
"""Share of a mode's capacity up to which latencies at a rate are held to their bars."""


@dataclass(frozen=True)
class Cell:
    entry: dict[str, Any]  # of the sweep's index
    validation: Validation = field(repr=False)
    # Offered tokens a second over what the mode's closed loops reached at most; NaN in closed loops
    capacity_share: float = math.nan

    @property
    def judged(self) -> bool:
        """Whether the figures are held to their bars: closed loops, and rates `BELOW_CAPACITY`."""
        return not self.capacity_share > BELOW_CAPACITY


@dataclass(frozen=True)
class ModeSteps:
    """Step time in the judged runs of a mode: errors of the profile, and how far the machine itself repeats a step."""

    errors: Errors
    repeat_spread: tuple[float, float]  # see the function


@dataclass(frozen=True)
class Accepted:
    mode: str
    drafts: int  # rounds with drafts that the servers counted
    # measured, forecast: unconditional rates by draft position, runs weighted by their rounds
    measured: tuple[float, ...]
    forecast: tuple[float, ...]


@dataclass(frozen=True)
class SweepValidation:
    folder: Path  # of the sweep
    profile: str  # its name
    calibrated_on: tuple[str, ...]  # the runs behind the profile
    cells: tuple[Cell, ...]  # every judged run
    effects: tuple[Effect, ...]
    cutovers: tuple[Cutover, ...]
    steps: dict[str, ModeSteps]  # step time over all judged runs, by mode and over ``all``
    acceptance: tuple[Accepted, ...]  # of every mode that drafts and whose servers count
    # Tokens compared with the known text and wrong ones, of every run, calibration runs as well
    continuation: dict[str, tuple[int, int]]
    notes: tuple[str, ...]  # what a reader must know, runs that are not judged among it


def validate_sweep(
    folder: Path,
    profile: str | None = None,
    *,
    measured: bool = False,
    out: Path | None = None,
    progress: Progress | None = None,
) -> SweepValidation:
    """Validate every run of a sweep in a folder of `draftcast live sweep`.

    Args:
        profile: None: made from the sweep's calibration runs; the scenario's own where it has none.
        measured: forecast with the acceptance each server counted, not the scenario's.
        out: where a profile that is made goes, into ``profile``; None: ``folder``.

    Raises:
        InputError: no sweep, calibration runs that cannot be fitted, no run to judge.
    """
    index = read_index(folder)
    named = profile or _own_profile(folder, index, out or folder)
    notes: list[str] = []
    cells: list[Cell] = []
    continuation = {}
    for number, entry in enumerate(index["cells"]):
        live = LiveRun.read(folder / entry["dir"])
        if known := live.manifest["known_continuation"]:
            continuation[entry["dir"]] = (known["checked_tokens"], known["wrong_tokens"])
        if entry["purpose"] != "validation":
            continue
        scenario = recorded_scenario(live.manifest, entry["dir"])
        used = load_profile(named or scenario.profile, load_hardware(scenario.hardware))
        if isinstance(used, AffineProfile) and run_digest(live) in used.fitted_runs:
            notes.append(f"{entry['dir']}: the profile has seen it, not judged")
        elif not (live.requests["finish_s"].notna() & (live.requests["error"] == "")).any():
            notes.append(f"{entry['dir']}: no request was answered, not judged: {live.manifest['incomplete_reason']}")
        else:
            cells.append(Cell(entry, validate(live, scenario, profile=named, measured=measured)))
            notes += [f"{entry['dir']}: {note}" for note in cells[-1].validation.notes]
        if progress is not None:
            progress((number + 1) / len(index["cells"]))
    if not cells:
        raise InputError("no run of the sweep can be judged", file=str(folder))
    used = cells[0].validation.question.deployment.profile
    effects = _effects(cells)
    closed = [each for each in effects if each.load_kind == "concurrency"]
    cutovers = [cutover([each for each in closed if each.mode == mode]) for mode in _modes(cells)]
    return SweepValidation(
        folder=folder,
        profile=used.name,
        calibrated_on=tuple(sorted(used.fitted_runs.values())) if isinstance(used, AffineProfile) else (),
        cells=_with_capacity(cells),
        effects=tuple(effects),
        cutovers=tuple(filter(None, cutovers)),
        steps=_steps(cells),
        acceptance=_acceptance(cells),
        continuation=continuation,
        notes=tuple(notes),
    )


def _own_profile(folder: Path, index: dict[str, Any], out: Path) -> str | None:
    """The profile of the sweep's calibration runs, made anew; None where there are none."""
    entries = [entry for entry in index["cells"] if entry["purpose"] == "calibration" and entry["complete"]]
    if not entries:
        return None
    runs = [LiveRun.read(folder / entry["dir"]) for entry in entries]
    found = calibrate_live(runs)
    for file in PROFILE_FILES:
        (out / PROFILE / file).unlink(missing_ok=True)
    asked = recorded_scenario(runs[0].manifest, entries[0]["dir"])
    write_live_profile(found, out / PROFILE, profile_label(asked, f"{folder.resolve().name}-calibration"))
    return str(out / PROFILE)


def _modes(cells: Sequence[Cell]) -> list[str]:
    return [mode for mode in dict.fromkeys(cell.entry["mode"] for cell in cells) if mode != OFF]


def _effects(cells: Sequence[Cell]) -> list[Effect]:
    """Of every mode at every load that was run off as well, rounds taken together."""
    names = ("mode", "load_kind", "load", "round")
    by_key: dict[tuple[Any, ...], Validation] = {tuple(c.entry[name] for name in names): c.validation for c in cells}
    pairs: dict[tuple[str, str, float], list[tuple[Validation, Validation]]] = defaultdict(list)
    for (mode, kind, load, turn), on in by_key.items():
        off = by_key.get((OFF, kind, load, turn))
        if mode != OFF and off is not None:
            pairs[mode, kind, load].append((off, on))
    return [effect(mode, kind, load, both) for (mode, kind, load), both in sorted(pairs.items())]


def _with_capacity(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    reached: dict[str, list[float]] = defaultdict(list)  # output tokens a second of each mode's closed loops
    for cell in cells:
        if cell.entry["load_kind"] == "concurrency":
            run = cell.validation
            reached[cell.entry["mode"]].append(run.figures[closed_loop_figure(run)].measured)

    def share(cell: Cell) -> float:
        if cell.entry["load_kind"] != "rate":
            return math.nan
        offered = cell.entry["load"] * float(cell.validation.question.requests["output_tokens"].mean())
        return float(offered / max(reached[cell.entry["mode"]], default=math.nan))

    return tuple(replace(cell, capacity_share=share(cell)) for cell in cells)


def _acceptance(cells: Sequence[Cell]) -> tuple[Accepted, ...]:
    accepted = []
    for mode in _modes(cells):
        runs = [cell.validation for cell in cells if cell.entry["mode"] == mode]
        counts = [run.question.live.manifest["acceptance"] for run in runs]
        counted = [(run, count) for run, count in zip(runs, counts, strict=True) if count and count["num_drafts"]]
        if not counted:
            continue
        drafts = np.array([count["num_drafts"] for _, count in counted])
        names = [f"acceptance_rate_position_{i}" for i in range(len(counted[0][1]["per_position"]))]
        known = [name for name in names if all(name in run.figures for run, _ in counted)]
        figures = [[run.figures[name] for run, _ in counted] for name in known]
        measured = tuple(float(np.average([f.measured for f in row], weights=drafts)) for row in figures)
        forecast = tuple(float(np.average([f.forecast.mean for f in row], weights=drafts)) for row in figures)
        accepted.append(Accepted(mode, int(drafts.sum()), measured, forecast))
    return tuple(accepted)


def _steps(cells: Sequence[Cell]) -> dict[str, ModeSteps]:
    runs = [(cell.entry["mode"], cell.validation.steps) for cell in cells]
    frames = [steps.timed.points.assign(mode=mode) for mode, steps in runs if steps is not None]
    if not frames:
        return {}
    every = pd.concat(frames, ignore_index=True)
    by_mode = {str(mode): points for mode, points in every.groupby("mode", sort=False)} | {"all": every}
    return {
        mode: ModeSteps(Errors.of(points["predicted_s"].to_numpy(np.float64), points), repeat_spread(points))
        for mode, points in by_mode.items()
    }
