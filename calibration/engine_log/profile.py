"""From an iteration log's fit to an affine profile: the YAML file that ``load_profile`` takes, with its origin."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import yaml

from draftcast.calibration.engine_log.fit import SEARCHES, EngineLogFit
from draftcast.calibration.profile.hardware import HardwareSpec
from draftcast.calibration.profile.load import load_profile
from draftcast.errors import InputError
from draftcast.files import check_new, write_text

DRAFTERS = ("draft_model", "eagle", "eagle3", "mtp")
"""Methods whose drafting an affine profile can hold: one pass of a drafting model per draft token."""


def write_profile(
    fit: EngineLogFit,
    path: Path,
    *,
    name: str,
    model: str,
    hardware: HardwareSpec,
    tp: int,
    dtype: str,
    date: str,
) -> None:
    """Write the fit as an affine profile and read it back as `load_profile` does.

    ``overhead_s`` holds the seconds outside ``elapsed``, ``target`` the others; their sum is what was measured.

    Args:
        path: must not exist. date: ISO, of the measurement. dtype: a number format of profiles, e.g. ``bf16``.

    Raises:
        InputError: the log is of a server with speculative decoding only, its method cannot be held, the file exists or
            cannot be written, a name or number that profiles do not take.
    """
    check_new(path)
    write_text(path, profile_text(fit, name=name, model=model, hardware=hardware.name, tp=tp, dtype=dtype, date=date))
    try:
        load_profile(path, hardware)
    except InputError:
        path.unlink()
        raise


def profile_text(fit: EngineLogFit, *, name: str, model: str, hardware: str, tp: int, dtype: str, date: str) -> str:
    """The profile's YAML, notes as comments. Raises InputError as `write_profile` does for what it cannot hold."""
    if fit.speculative:
        message = (
            "its steps verify drafts, so drafting cannot be told from the target; give the log of the same server "
            "without speculative decoding, and this one as the second"
        )
        raise InputError(message, file=fit.sources[0])
    if fit.method and fit.method not in (*DRAFTERS, *SEARCHES):
        message = f"an affine profile holds only {', '.join((*DRAFTERS, *SEARCHES))}"
        raise InputError(message, file=fit.sources[-1], key="method", value=fit.method)
    value = fit.regression.value
    searches = fit.method in SEARCHES
    origin = {fit.method: "interpolated"} if fit.method else {}
    document: dict[str, Any] = {
        "schema_version": 1,
        "kind": "affine",
        "name": name,
        "model": model.lower(),
        "hardware": hardware,
        "tp": tp,
        "dtype": dtype,
        "enforce_eager": bool(fit.enforce_eager),
        "date": date,
        "source": source_line(fit),
        "fitted_sequences": list(fit.sequences),
        "target": {
            "fixed_s": value("fixed_s") - fit.overhead_s,
            "row_s": value("row_s"),
            "kv_token_s": value("kv_token_s"),
            "sequence_s": value("sequence_s"),
        },
        "draft": {
            "fixed_s": value("draft_fixed_s"),
            "pass_s": value("draft_pass_s"),
            "draft_token_s": value("draft_token_s"),
            "kv_token_s": value("draft_kv_token_s"),
            "methods": {} if searches else origin,
        },
        "ngram": {"fraction_of_target": value("ngram_fraction"), "methods": origin if searches else {}},
        "overhead_s": fit.overhead_s,
    }
    comments = "".join(f"# {note}\n" for note in notes(fit))
    return comments + yaml.safe_dump(rounded(document), sort_keys=False, default_flow_style=None, width=110)


def source_line(fit: EngineLogFit) -> str:
    """Where the coefficients come from and how well they predict steps they have not seen."""
    vllm = ", ".join(fit.versions) or "of unknown version"
    method = f"; {fit.method}, k {_depths(fit)}" if fit.method else ""
    errors = fit.regression.held_out["all"]
    files = ", ".join(Path(source).name for source in fit.sources)
    return (
        f"iteration log of vLLM {vllm} ({files}{method}), {fit.clock} clock, {fit.steps} steps; held-out error "
        f"median {errors.median:.1%}, p90 {errors.p90:.1%}"
    )


def notes(fit: EngineLogFit) -> list[str]:
    """What a reader must know before trusting the coefficients, one line each."""
    lines = []
    for name, found in fit.regression.coefficients.items():
        if found.standing != "identified":
            interval = f" [{found.low:.3g}, {found.high:.3g}]" if math.isfinite(found.low) else ""
            lines.append(f"{name}: {found.standing}{interval}")
    if fit.enforce_eager is None:
        lines.append("the log does not say enforce_eager: vLLM's default, false, is taken")
    if fit.clock == "elapsed" and not fit.elapsed_share > 0.0:
        lines.append("no usable stamps: elapsed is the wait for the result, and host time outside it is not included")
    elif fit.clock == "elapsed" and fit.overhead_s == 0.0:
        lines.append(f"elapsed holds {fit.elapsed_share:.0%} of the wall time only: these are not whole steps")
    if fit.method and fit.method not in SEARCHES and len(fit.num_speculative_tokens) == 1:
        lines.append(f"draft: fitted at k {_depths(fit)} only; at another its seconds are taken in proportion to k")
    over = fit.regression.seconds_over_fit
    if abs(over - 1.0) > 0.05:
        lines.append(
            f"measured time is {over:.2f} times the fitted time: {fit.regression.outlier_points:.1%} of the points "
            f"are outliers and hold {fit.regression.outlier_seconds:.1%} of the time"
        )
    return lines


def _depths(fit: EngineLogFit) -> str:
    return ", ".join(str(k) for k in fit.num_speculative_tokens)


def rounded(value: Any) -> Any:
    """Numbers to nine digits: more is not measured, and every digit would be in the diff of a recalibration."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return float(f"{value:.9g}") if isinstance(value, float) else value
