"""From fitted step times to an affine profile: a folder that ``load_profile`` takes, with the origin of the times."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from draftcast.calibration.engine_log.fit import EngineLogFit, StepTimeFit
from draftcast.calibration.engine_log.regression import DRAFTERS, SEARCHES, Regression
from draftcast.calibration.profile.hardware import HardwareSpec
from draftcast.calibration.profile.load import FIT, MANIFEST, load_profile, write_manifest
from draftcast.errors import InputError
from draftcast.files import check_new, made, picked, write_text

REPORT = "engine_log.json"


@dataclass(frozen=True)
class ProfileLabel:
    name: str  # of the profile
    model: str  # as a profile names it
    hardware: HardwareSpec
    tp: int  # ranks
    dtype: str  # a profile's number format, e.g. ``bf16``


@dataclass(frozen=True)
class AffineFit:
    values: Mapping[str, float]  # coefficients by name; one that is missing is 0. ``fixed_s`` holds the overhead
    methods: tuple[str, ...]  # how drafts were made, by the logs or runs behind the fit
    sequences: tuple[int, int]
    enforce_eager: bool
    source: str  # where the coefficients come from, a sentence
    notes: Sequence[str]  # what a reader must know, a line each
    versions: Sequence[str]  # of vLLM
    command: str  # what repeats the fit
    report: Mapping[str, Any]  # plain data for JSON
    rows: Sequence[tuple[float, float]] = ()  # the target's curve over rows, (rows, seconds)
    overhead_s: float = 0.0  # the part of the fixed seconds that is outside the engine's own figure
    more: Mapping[str, Any] = field(default_factory=dict)  # further sections, ``front_end`` and ``fitted_runs``
    device: str = ""  # what its system calls the device; "" unknown
    noise: Mapping[str, Any] = field(default_factory=dict)  # of the host while it was measured

    def text(self, label: ProfileLabel, today: str) -> str:
        """The profile's YAML, notes as comments."""

        def values(prefix: str, *names: str) -> dict[str, float]:
            return {name: self.values.get(f"{prefix}{name}", 0.0) for name in names}

        document: dict[str, Any] = {
            "schema_version": 1,
            "kind": "affine",
            "name": label.name,
            "model": label.model.lower(),
            "hardware": label.hardware.name,
            **picked(label, "tp dtype"),
            "enforce_eager": self.enforce_eager,
            "date": today,
            "source": self.source,
            "fitted_sequences": list(self.sequences),
            "target": {
                "fixed_s": self.values["fixed_s"] - self.overhead_s,
                "rows": [list(point) for point in self.rows],
                **values("", "row_s", "kv_token_s", "sequence_s", "query_kv_s", "prefill_query_kv_s", "logit_row_s"),
            },
            "draft": {
                **values("draft_", "fixed_s", "pass_s", "row_s", "kv_token_s"),
                **values("", "draft_token_s"),
                "methods": {method: "interpolated" for method in self.methods if method not in SEARCHES},
            },
            "ngram": {
                "fraction_of_target": 0.0,
                **values("ngram_", "step_s", "sequence_s", "token_s"),
                "methods": {method: "interpolated" for method in self.methods if method in SEARCHES},
            },
            "overhead_s": self.overhead_s,
            **self.more,
        }
        comments = "".join(f"# {note}\n" for note in self.notes)
        return comments + yaml.safe_dump(_rounded(document), sort_keys=False, default_flow_style=None, width=110)


def new_profile_folder(folder: Path, report: str = REPORT) -> None:
    """Make the folder unless it is there. Raises InputError: it cannot be, or holds a file to be written."""
    for name in (FIT, MANIFEST, report):
        check_new(made(folder) / name)


def write_profile_folder(folder: Path, fit: AffineFit, label: ProfileLabel, report: str = REPORT) -> None:
    """Write fit, manifest and report into a folder of `new_profile_folder`, and read it back as `load_profile` does.

    Raises InputError: the folder cannot be written, a name or number that profiles do not take.
    """
    today = date.today().isoformat()
    write_text(folder / FIT, fit.text(label, today))
    try:
        load_profile(folder / FIT, label.hardware)
    except InputError:
        (folder / FIT).unlink()
        raise
    write_manifest(
        folder,
        name=label.name,
        hardware=label.hardware.name,
        device=fit.device or label.hardware.name,
        versions={"vllm": ", ".join(fit.versions)} if fit.versions else {},
        date=today,
        command=fit.command,
        source=fit.source,
        noise=dict(fit.noise),
    )
    write_text(folder / report, json.dumps(fit.report, indent=1, allow_nan=False) + "\n")


def affine_fit(fit: EngineLogFit, command: str) -> AffineFit:
    """The fit of iteration logs as an affine profile takes it.

    ``overhead_s`` holds the seconds outside ``elapsed``, ``target`` the others; their sum is what was measured.

    Raises InputError: the log is of a server with speculative decoding only, or its method cannot be held.
    """
    if fit.speculative:
        needed = "the log of the same server without speculative decoding, and this one as the second"
        message = f"its steps verify drafts, so drafting cannot be told from the target; give {needed}"
        raise InputError(message, file=fit.sources[0])
    if fit.method and fit.method not in (*DRAFTERS, *SEARCHES):
        message = f"an affine profile holds only {', '.join((*DRAFTERS, *SEARCHES))}"
        raise InputError(message, file=fit.sources[-1], key="method", value=fit.method)
    vllm = ", ".join(fit.versions) or "of unknown version"
    method = f"; {fit.method}, k {_depths(fit)}" if fit.method else ""
    errors = fit.regression.held_out["all"]
    files = ", ".join(Path(source).name for source in fit.sources)
    return AffineFit(
        values={name: coefficient.value for name, coefficient in fit.regression.coefficients.items()},
        methods=(fit.method,) if fit.method else (),
        sequences=fit.sequences,
        enforce_eager=bool(fit.enforce_eager),
        source=f"iteration log of vLLM {vllm} ({files}{method}), {fit.clock} clock, {fit.steps} steps; "
        f"held-out error median {errors.median:.1%}, p90 {errors.p90:.1%}",
        notes=notes(fit),
        versions=fit.versions,
        command=command,
        report={**fit.report(), "notes": notes(fit)},
        overhead_s=fit.overhead_s,
    )


def notes(fit: EngineLogFit) -> list[str]:
    """What a reader must know before trusting the coefficients, one line each."""
    lines = []
    for name, coefficient in fit.regression.coefficients.items():
        if coefficient.standing != "identified":
            interval = f" [{coefficient.low:.3g}, {coefficient.high:.3g}]" if math.isfinite(coefficient.low) else ""
            lines.append(f"{name}: {coefficient.standing}{interval}")
    if fit.enforce_eager is None:
        lines.append("the log does not say enforce_eager: vLLM's default, false, is taken")
    if fit.clock == "elapsed" and not fit.elapsed_share > 0.0:
        lines.append("no usable stamps: elapsed is the wait for the result, and host time outside it is not included")
    elif fit.clock == "elapsed" and fit.overhead_s == 0.0:
        lines.append(f"elapsed holds {fit.elapsed_share:.0%} of the wall time only: these are not whole steps")
    if fit.method and fit.method not in SEARCHES and len(fit.num_speculative_tokens) == 1:
        lines.append(f"draft: fitted at k {_depths(fit)} only; at another its seconds are taken in proportion to k")
    return lines + outlier_notes(fit.regression, 0.05)


def outlier_notes(fit: StepTimeFit | Regression, least: float) -> list[str]:
    """What a fit sets aside, where that changes the time by more than the share ``least``."""
    if abs(fit.seconds_over_fit - 1.0) <= least:
        return []
    text = f"measured time is {fit.seconds_over_fit:.2f} times the fitted time: {fit.outlier_points:.1%} of the points"
    return [f"{text} are outliers and hold {fit.outlier_seconds:.1%} of the time"]


def _depths(fit: EngineLogFit) -> str:
    return ", ".join(str(k) for k in fit.num_speculative_tokens)


def _rounded(value: Any) -> Any:
    """Numbers to nine digits: more is not measured, and every digit would be in the diff of a recalibration."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return float(f"{value:.9g}") if isinstance(value, float) else value
