"""From live runs to a profile folder: the whole-step fit, the front end's seconds, and which runs they come from."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from draftcast.calibration.engine_log.fit import SEARCHES
from draftcast.calibration.engine_log.profile import rounded
from draftcast.calibration.engine_log.regression import Errors
from draftcast.calibration.live.front_end import FrontEndMeasurement, measure_front_end
from draftcast.calibration.live.run_directory import LiveRun
from draftcast.calibration.live.step_fit import StepFit, errors_text, fit_steps
from draftcast.calibration.live.timed_run import run_name
from draftcast.calibration.profile.folder import FIT, MANIFEST, write_manifest
from draftcast.calibration.profile.hardware import HardwareSpec
from draftcast.calibration.profile.load import load_profile
from draftcast.errors import InputError
from draftcast.files import check_new, write_text

REPORT = "calibration.json"
PROFILE_FILES = (FIT, MANIFEST, REPORT)
"""What `write_live_profile` writes."""


@dataclasses.dataclass(frozen=True)
class LiveCalibration:
    """A server's step time and front end, and what is to be known of them."""

    fit: StepFit
    front_end: FrontEndMeasurement
    notes: tuple[str, ...]

    def report(self) -> dict[str, Any]:
        """Plain data for JSON; NaN is None."""
        fit = self.fit
        return {
            "coefficients": fit.coefficients,
            "not_fitted": fit.folded,
            "rows": [list(point) for point in fit.rows],
            "sequences": list(fit.sequences),
            "runs": [
                {
                    "folder": str(run.run.folder),
                    "digest": run_digest(run.run),
                    "method": run.method,
                    "k": run.k,
                    "points": len(run.points),
                    "clock": run.clock,
                    "elapsed_share": _known(run.elapsed_share),
                    "host_s": [_known(value) for value in run.host_s],
                    "left_out": run.left_out,
                }
                for run in fit.runs
            ],
            "held_out": {
                "all": _errors(fit.all),
                "runs": [{"run": each.run, "whole_run": each.whole, **_errors(each.errors)} for each in fit.held_out],
            },
            "outlier_points": fit.outlier_points,
            "outlier_seconds": fit.outlier_seconds,
            "seconds_over_fit": fit.seconds_over_fit,
            "front_end": dataclasses.asdict(self.front_end),
            "core_speed": {group: dataclasses.asdict(read) for group, read in fit.core_speed.items()},
            "notes": list(self.notes),
        }


def calibrate_live(runs: Sequence[LiveRun]) -> LiveCalibration:
    """Fit step time and front end to the runs of one server.

    Raises:
        InputError: the same run twice, runs of servers that differ in what a profile is for, see `fit_steps`.
    """
    _check_alike(runs)
    fit = fit_steps(runs)
    fitted_s = [fit.seconds(run.steps.assign(steps=1.0), run.method) for run in fit.runs]
    front_end = measure_front_end(fit.runs, fitted_s)
    return LiveCalibration(fit, front_end, tuple(_notes(fit, front_end)))


def write_live_profile(
    found: LiveCalibration, folder: Path, *, name: str, model: str, hardware: HardwareSpec, tp: int, dtype: str
) -> None:
    """Write the profile folder and read it back as `load_profile` does: fit, manifest, ``calibration.json``.

    Args:
        model, tp, dtype: what was served, as a profile names it.

    Raises:
        InputError: the folder holds such files already or cannot be written.
    """
    import json

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be made: {error.strerror}", file=str(folder)) from None
    for written in PROFILE_FILES:
        check_new(folder / written)
    today = date.today().isoformat()
    document = _document(found, name=name, model=model, hardware=hardware.name, tp=tp, dtype=dtype, date=today)
    comments = "".join(f"# {note}\n" for note in found.notes)
    text = yaml.safe_dump(rounded(document), sort_keys=False, default_flow_style=None, width=110)
    write_text(folder / FIT, comments + text)
    first = found.fit.runs[0].run.manifest
    write_manifest(
        folder,
        name=name,
        hardware=hardware.name,
        device=str(first["machine"].get("processor") or hardware.name),
        versions={"vllm": version} if (version := str(first["server"].get("version") or "")) else {},
        date=today,
        command=" ".join(["draftcast live calibrate", *(str(run.run.folder) for run in found.fit.runs)]),
        source=_source(found),
        noise=dict(first["noise"]),
    )
    write_text(folder / REPORT, json.dumps(found.report(), indent=1, allow_nan=False) + "\n")
    load_profile(folder, hardware)


def run_digest(run: LiveRun) -> str:
    """What tells a run from every other, wherever its folder lies: SHA-256 of its requests and their times."""
    rows = pd.util.hash_pandas_object(run.requests.sort_values("request_id"), index=False).to_numpy()
    return hashlib.sha256(str(run.manifest["start_unix_s"]).encode() + rows.tobytes()).hexdigest()


def _check_alike(runs: Sequence[LiveRun]) -> None:
    """Refuse a run given twice and runs of different servers."""
    digests = [run_digest(run) for run in runs]
    for run, digest in zip(runs, digests, strict=True):
        if digests.count(digest) > 1:
            raise InputError("is given twice", file=str(run.folder))
    kinds = [(_engine(run, "model"), _engine(run, "dtype"), _config(run, "enforce_eager")) for run in runs]
    usual = Counter(kinds).most_common(1)[0][0]
    for run, kind in zip(runs, kinds, strict=True):
        for key, value, expected in zip(("model", "dtype", "enforce_eager"), kind, usual, strict=True):
            if value != expected:
                raise InputError(f"the other runs have {expected!r}", file=str(run.folder), key=key, value=value)


def _engine(run: LiveRun, key: str) -> Any:
    return run.manifest["scenario"].get("engine", {}).get(key)


def _config(run: LiveRun, key: str) -> Any:
    return (run.manifest["server"].get("config") or {}).get(key)


def _document(found: LiveCalibration, *, name: str, model: str, hardware: str, tp: int, dtype: str, date: str) -> Any:
    fit = found.fit
    value = fit.coefficients.get
    drafting = {method: "interpolated" for method in fit.methods if method not in SEARCHES}
    searching = {method: "interpolated" for method in fit.methods if method in SEARCHES}
    return {
        "schema_version": 1,
        "kind": "affine",
        "name": name,
        "model": model.lower(),
        "hardware": hardware,
        "tp": tp,
        "dtype": dtype,
        "enforce_eager": bool(_config(fit.runs[0].run, "enforce_eager")),
        "date": date,
        "source": _source(found),
        "fitted_sequences": list(fit.sequences),
        "target": {
            "fixed_s": value("fixed_s", 0.0),
            "row_s": 0.0,
            "rows": [list(point) for point in fit.rows],
            **{name: value(name, 0.0) for name in ("kv_token_s", "sequence_s", "query_kv_s")},
            **{name: value(name, 0.0) for name in ("prefill_query_kv_s", "logit_row_s")},
        },
        "draft": {
            **{
                name: value(f"draft_{name}" if name != "draft_token_s" else name, 0.0)
                for name in ("fixed_s", "pass_s", "row_s", "draft_token_s", "kv_token_s")
            },
            "methods": drafting,
        },
        "ngram": {
            "fraction_of_target": 0.0,
            **{name: value(f"ngram_{name}", 0.0) for name in ("step_s", "sequence_s", "token_s")},
            "methods": searching,
        },
        "overhead_s": 0.0,
        "front_end": dataclasses.asdict(found.front_end.seconds),
        "core_speed": {group: dataclasses.asdict(read) for group, read in fit.core_speed.items()},
        "fitted_runs": {run_digest(run.run): run_name(run.run) for run in fit.runs},
    }


def _source(found: LiveCalibration) -> str:
    fit = found.fit
    versions = sorted({str(run.run.manifest["server"].get("version") or "?") for run in fit.runs})
    methods = ", ".join(fit.methods) or "no speculation"
    return (
        f"live runs of vLLM {', '.join(versions)}: {len(fit.runs)} runs ({methods}), "
        f"{int(sum(run.points['steps'].sum() for run in fit.runs))} steps; held-out error {errors_text(fit.all)}"
    )


def _notes(fit: StepFit, front_end: FrontEndMeasurement) -> list[str]:
    """What a reader must know before trusting the figures, one line each."""
    lines = [f"{name}: not fitted, moves with {other}" for name, other in fit.folded.items() if other]
    lines += [f"{each.run}: held out in stretches, no other run drafts so" for each in fit.held_out if not each.whole]
    clocks = {run.clock for run in fit.runs}
    if len(clocks) > 1:
        lines.append("some runs are timed by their stamps and some by the engine's own figure")
    if abs(fit.seconds_over_fit - 1.0) > 0.03:
        lines.append(
            f"measured time is {fit.seconds_over_fit:.2f} times the fitted time: {fit.outlier_points:.1%} of the "
            f"points are outliers and hold {fit.outlier_seconds:.1%} of the time"
        )
    if not front_end.arrivals:
        lines.append("no request met an idle engine, so a request's way into the engine is not known and taken as 0")
    return lines


def _errors(errors: Errors) -> dict[str, Any]:
    return {key: _known(value) for key, value in dataclasses.asdict(errors).items()}


def _known(value: Any) -> Any:
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value
