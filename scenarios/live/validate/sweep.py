"""A live sweep beside its forecast: every run validated, speculation's effect at every load, the cutovers.

The sweep's calibration runs make the profile where none is given, and are not judged; a sweep without them is forecast
with the scenario's own profile. Whatever runs a profile was made from are left out, and the report says which.

The effect in a closed loop is the ratio of throughputs, with speculation over off; at a rate it is the ratio of mean
E2E latencies, off over with speculation: above 1 speculation pays in both. Intervals come from a bootstrap: rounds are
drawn with replacement, and within a round stretches of time (closed loop) or requests, the same for both modes (rates).
Stretches and requests of one run are not independent, so with a single round an interval is rather too narrow.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import Field
from scipy.optimize import isotonic_regression

from draftcast.calibration.live.run_directory import LiveRun
from draftcast.calibration.live.step_profile import PROFILE_FILES, calibrate_live, run_digest, write_live_profile
from draftcast.calibration.profile.hardware import load_hardware
from draftcast.calibration.profile.load import load_profile
from draftcast.calibration.profile.roofline_fit import FitErrors
from draftcast.calibration.profile.spec import AffineProfile
from draftcast.errors import InputError
from draftcast.kernels.arrays import FloatArray
from draftcast.scenarios.live.sweep import OFF, read_index
from draftcast.scenarios.live.validate.comparison import Validation, repeat_spread, validate
from draftcast.scenarios.live.validate.forecast import profile_label
from draftcast.scenarios.schema.load import recorded_scenario
from draftcast.sim.progress import Progress, parts_of

PROFILE = "profile"
BELOW_CAPACITY = 0.8  # share of a mode's capacity up to which latencies at a rate are held to their bars
RESAMPLES = 400
_STRETCHES = 12
_PERCENTILES = (2.5, 97.5)
_LARGE_EFFECT = 0.05  # a measured effect below this has no sign to be forecast
CUTOVER_BAR = 0.15  # largest relative distance of two cutovers that are not within a step of each other


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
class Effect:
    """Speculation's effect in one mode at one load; the first three as in the sweep's index."""

    mode: str
    load_kind: str
    load: float
    measured: float  # over all rounds
    low: float  # of its interval
    high: float
    forecast: float  # over all rounds and replications
    sign: str  # ``right`` or ``WRONG``; ``small`` where the measured effect is too small to have a sign


@dataclass(frozen=True)
class ResampledEffect(Effect):
    """An effect with what its interval and the cutover's come from."""

    resamples: FloatArray  # of the measured effect, shape (`RESAMPLES`,)
    replications: FloatArray  # the forecast effect by replication


@dataclass(frozen=True)
class MeasuredCutover:
    """Closed-loop users at which a mode's throughput gain falls through 1.

    Infinite: it does so beyond the largest (inf) or below the smallest (-inf) number of users that was run. JSON
    has no infinity: read from it, such a value is NaN.
    """

    mode: str
    measured: float
    low: float  # of the measured interval
    high: float
    forecast: float  # of the same loads
    forecast_low: float  # of the range over its replications
    forecast_high: float
    users: tuple[float, ...]  # the numbers of users that were run
    within_bar: bool  # see the function
    # Measured, forecast and their bounds in words: users, or beyond which end of them
    shown: Annotated[tuple[str, ...], Field(min_length=6, max_length=6)]


@dataclass(frozen=True)
class ModeSteps:
    """Step time in the judged runs of a mode: errors of the profile, and how far the machine itself repeats a step."""

    errors: FitErrors
    repeat_spread: tuple[float, float]  # see the function


@dataclass(frozen=True)
class ModeAcceptance:
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
    cutovers: tuple[MeasuredCutover, ...]
    steps: dict[str, ModeSteps]  # step time over all judged runs, by mode and over ``all``
    acceptance: tuple[ModeAcceptance, ...]  # of every mode that drafts and whose servers count
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

    Raises InputError: no sweep, calibration runs that cannot be fitted, no run to judge.
    """
    index = read_index(folder)
    named = profile or _own_profile(folder, index, out or folder)
    notes: list[str] = []
    cells: list[Cell] = []
    continuation = {}
    for entry, _ in parts_of(progress, index["cells"]):
        live = LiveRun.read(folder / entry["dir"])
        if counts := live.manifest["known_continuation"]:
            continuation[entry["dir"]] = (counts["checked_tokens"], counts["wrong_tokens"])
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
    if not cells:
        raise InputError("no run of the sweep can be judged", file=str(folder))
    used = cells[0].validation.question.deployment.profile
    effects = _effects(cells)
    closed = [effect for effect in effects if effect.load_kind == "concurrency"]
    cutovers = [cutover([effect for effect in closed if effect.mode == mode]) for mode in _modes(cells)]
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
    calibration = calibrate_live(runs)
    for file in PROFILE_FILES:
        (out / PROFILE / file).unlink(missing_ok=True)
    scenario = recorded_scenario(runs[0].manifest, entries[0]["dir"])
    write_live_profile(calibration, out / PROFILE, profile_label(scenario, f"{folder.resolve().name}-calibration"))
    return str(out / PROFILE)


def _modes(cells: Sequence[Cell]) -> list[str]:
    return [mode for mode in dict.fromkeys(cell.entry["mode"] for cell in cells) if mode != OFF]


def _effects(cells: Sequence[Cell]) -> list[ResampledEffect]:
    """Of every mode at every load that was run off as well, rounds taken together."""
    runs = pd.DataFrame([{**cell.entry, "run": cell.validation} for cell in cells])
    is_off = runs["mode"] == OFF
    pairs = runs[~is_off].merge(runs[is_off], on=["load_kind", "load", "round"], suffixes=("", "_off"))
    effects = []
    key: Any
    for key, both in pairs.groupby(["mode", "load_kind", "load"]):
        (mode, kind, load), rng = key, np.random.default_rng(0)
        gains = [_gain(kind, off, on, rng) for off, on in zip(both["run_off"], both["run"], strict=True)]
        measured, resampled, forecast = zip(*gains, strict=True)
        drawn = rng.integers(0, len(both), (RESAMPLES, len(both)))
        resamples = np.stack(resampled)[drawn, np.arange(RESAMPLES)[:, None]].mean(axis=1)
        replications = np.mean(forecast, axis=0)
        low, high = np.percentile(resamples, _PERCENTILES).tolist()
        mean, forecast_mean = float(np.mean(measured)), float(replications.mean())
        sign = "right" if (mean > 1.0) == (forecast_mean > 1.0) else "WRONG"
        figures = mean, low, high, forecast_mean, sign if abs(mean - 1.0) > _LARGE_EFFECT else "small"
        effects.append(ResampledEffect(mode, kind, load, *figures, resamples, replications))
    return effects


def _gain(kind: str, off: Validation, on: Validation, rng: np.random.Generator) -> tuple[float, FloatArray, FloatArray]:
    """The effect in a round: measured, resamples of it, and forecast by replication under the same random numbers."""
    if kind == "concurrency":
        name, above, below = _closed_loop_figure(off, on), on, off
        # By stretches of each run's time.
        counts = [_tokens_by_stretch(run, name == "busy_throughput") for run in (off, on)]
        means = [rng.choice(tokens, (RESAMPLES, len(tokens))).mean(axis=1) / tokens.mean() for tokens in counts]
        resampled = means[1] / np.maximum(means[0], 1e-9)
    else:
        name, above, below = "mean_e2el_s", off, on
        requests = [run.question.requests.set_index("request_id") for run in (off, on)]
        e2e_s = pd.concat([frame["finish_s"] - frame["arrival_s"] for frame in requests], axis=1).dropna().to_numpy()
        if len(e2e_s):  # the same requests in both runs
            means = (e2e_s[rng.integers(0, len(e2e_s), (RESAMPLES, len(e2e_s)))].mean(axis=1) / e2e_s.mean(axis=0)).T
            resampled = means[0] / means[1]
        else:
            resampled = np.full(RESAMPLES, math.nan)
    ratio = above.figures[name].measured / below.figures[name].measured
    replays = zip(above.replays, below.replays, strict=True)
    return ratio, ratio * resampled, np.array([over.figures[name] / under.figures[name] for over, under in replays])


def _closed_loop_figure(*runs: Validation) -> str:
    """Throughput while all users are busy, where every run was long enough to have one."""
    busy = all("busy_throughput" in run.figures for run in runs)
    return "busy_throughput" if busy else "output_throughput"


def _tokens_by_stretch(run: Validation, until_last_sending: bool) -> FloatArray:
    requests, chunks = run.question.requests, run.question.live.chunks
    end_s = requests["arrival_s" if until_last_sending else "finish_s"].max()
    edges = np.linspace(requests["arrival_s"].min(), end_s, _STRETCHES + 1)
    counts, _ = np.histogram(chunks["time_s"], edges, weights=chunks["tokens"])
    return counts.astype(np.float64)


def cutover(effects: Sequence[ResampledEffect]) -> MeasuredCutover | None:
    """Where one mode's closed-loop gain crosses 1, measured and forecast; None with fewer than two loads."""
    ordered = sorted(effects, key=lambda effect: effect.load)
    users = np.array([effect.load for effect in ordered])
    if len(users) < 2:
        return None

    def crossings(name: str) -> list[float]:
        return [_crossing(users, gains) for gains in np.column_stack([getattr(effect, name) for effect in ordered])]

    (measured,), (forecast,), by_replication = (crossings(name) for name in ("measured", "forecast", "replications"))
    low, high = np.percentile(crossings("resamples"), _PERCENTILES, method="nearest").tolist()
    least, most = min(by_replication), max(by_replication)
    beyond = {math.inf: f"above {users[-1]:g}", -math.inf: f"below {users[0]:g}"}
    return MeasuredCutover(
        mode=ordered[0].mode,
        measured=measured,
        low=low,
        high=high,
        forecast=forecast,
        forecast_low=least,
        forecast_high=most,
        users=tuple(users.tolist()),
        within_bar=within_bar(measured, forecast, users),
        shown=tuple(beyond.get(value, f"{value:.3g}") for value in (measured, forecast, low, high, least, most)),
    )


def within_bar(measured: float, forecast: float, users: FloatArray) -> bool:
    """Whether the two are within one step of the numbers of users that were run, or within `CUTOVER_BAR`."""
    if math.isfinite(measured) and abs(forecast / measured - 1.0) <= CUTOVER_BAR:
        return True
    # On the scale on which neighbouring numbers of users are 1 apart; what lies beyond an end is a step from it.
    places = np.interp((measured, forecast), users, np.arange(len(users)), left=-1.0, right=len(users))
    return bool(abs(places[0] - places[1]) <= 1.0)


def _crossing(users: FloatArray, gains: FloatArray) -> float:
    """Users at which the gains, made to fall, reach 1: straight in between over the logarithm of the users."""
    fitted = isotonic_regression(gains, increasing=False).x
    if fitted[0] < 1.0:
        return -math.inf
    if fitted[-1] > 1.0:
        return math.inf
    return float(np.exp(np.interp(-1.0, -fitted, np.log(users))))


def _with_capacity(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    reached: dict[str, float] = {}  # output tokens a second that each mode's closed loops had at most
    for cell in cells:
        mode, run = cell.entry["mode"], cell.validation
        if cell.entry["load_kind"] == "concurrency":
            reached[mode] = max(reached.get(mode, 0.0), run.figures[_closed_loop_figure(run)].measured)
    shared = []
    for cell in cells:
        tokens = cell.validation.question.requests["output_tokens"]
        offered = cell.entry["load"] * float(tokens.mean()) if cell.entry["load_kind"] == "rate" else math.nan
        shared.append(replace(cell, capacity_share=offered / reached.get(cell.entry["mode"], math.nan)))
    return tuple(shared)


def _acceptance(cells: Sequence[Cell]) -> tuple[ModeAcceptance, ...]:
    accepted = []
    for mode in _modes(cells):
        runs = [cell.validation for cell in cells if cell.entry["mode"] == mode]
        counts = [run.question.live.manifest["acceptance"] for run in runs]
        counted = [(run, count) for run, count in zip(runs, counts, strict=True) if count and count["num_drafts"]]
        if not counted:
            continue
        drafts = np.array([count["num_drafts"] for _, count in counted])
        names = [f"acceptance_rate_position_{i}" for i in range(len(counted[0][1]["per_position"]))]
        shared = [name for name in names if all(name in run.figures for run, _ in counted)]
        figures = [[run.figures[name] for run, _ in counted] for name in shared]
        measured = tuple(float(np.average([f.measured for f in row], weights=drafts)) for row in figures)
        forecast = tuple(float(np.average([f.forecast.mean for f in row], weights=drafts)) for row in figures)
        accepted.append(ModeAcceptance(mode, int(drafts.sum()), measured, forecast))
    return tuple(accepted)


def _steps(cells: Sequence[Cell]) -> dict[str, ModeSteps]:
    runs = [(cell.entry["mode"], cell.validation.steps) for cell in cells]
    frames = [steps.timed.points.assign(mode=mode) for mode, steps in runs if steps is not None]
    if not frames:
        return {}
    every = pd.concat(frames, ignore_index=True)
    by_mode = {str(mode): points for mode, points in every.groupby("mode", sort=False)} | {"all": every}
    return {
        mode: ModeSteps(FitErrors.of(points["predicted_s"].to_numpy(np.float64), points), repeat_spread(points))
        for mode, points in by_mode.items()
    }
