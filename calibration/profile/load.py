"""Reading profiles: a YAML file or a measured folder in, `RooflineProfile` or `AffineProfile` out.

Every fault is a one-line `HardwareError`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from draftcast.calibration.profile.folder import FIT, MANIFEST, TABLE, read_manifest
from draftcast.calibration.profile.hardware import HardwareSpec
from draftcast.calibration.profile.measured import MeasuredTimes
from draftcast.calibration.profile.origin import Origin
from draftcast.calibration.profile.roofline import Roofline
from draftcast.calibration.profile.spec import (
    OPERATORS,
    AffineProfile,
    CoreResponse,
    FrontEnd,
    HardwareProfile,
    OperatorProfile,
    RooflineProfile,
)
from draftcast.calibration.yaml_text import parse_yaml
from draftcast.errors import HardwareError
from draftcast.files import read_text

__all__ = [
    "OPERATORS",
    "AffineProfile",
    "CoreResponse",
    "FrontEnd",
    "HardwareProfile",
    "OperatorProfile",
    "Origin",
    "RooflineProfile",
    "default_sections",
    "find_profile",
    "has_profile",
    "load_profile",
    "profile_names",
]

PROFILE_FOLDER = Path(__file__).parents[1] / "profiles"
DEFAULT_PROFILE = "default"

Seconds = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0.0, le=1.0, allow_inf_nan=False)]
Dtype = Literal["fp32", "bf16", "fp16", "fp8", "int4", "mxfp4"]
OriginLabel = Literal["measured", "interpolated", "extrapolated"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Fit(_Section):
    t0_s: Seconds
    e_c: Fraction
    e_m: Fraction
    p: float = Field(ge=1.0)
    origin: OriginLabel
    source: str
    fitted_rows: tuple[int, int] | None = None

    def build(self) -> OperatorProfile:
        return OperatorProfile(
            Roofline(self.t0_s, self.e_c, self.e_m, self.p), Origin.parse(self.origin), self.fitted_rows, self.source
        )


class _Operator(_Fit):
    dtypes: dict[Dtype, _Fit] = Field(default_factory=dict)


class _Host(_Section):
    h0_s: Seconds
    h1_s: Seconds


class _Launch(_Section):
    kernel_s: Seconds
    cuda_graph_ceiling: int = Field(ge=0)
    cuda_graph_ceiling_by_hardware: dict[str, int] = Field(default_factory=dict)


class _HeldOut(_Section):
    operator: str
    dtype: str
    kv_dtype: str
    points: int
    held_out: int
    median: float | None
    p90: float | None
    worst: float | None
    worst_point: str


class _RooflineFile(_Section):
    schema_version: Literal[1]
    kind: Literal["roofline"]
    name: str
    hardware: str
    date: str
    source: str
    host: _Host
    launch: _Launch
    operators: dict[str, _Operator]
    held_out: list[_HeldOut] = Field(default_factory=list)


class _Target(_Section):
    fixed_s: Seconds
    row_s: Seconds
    kv_token_s: Seconds
    sequence_s: Seconds = 0.0
    rows: tuple[tuple[Annotated[float, Field(ge=1.0, allow_inf_nan=False)], Seconds], ...] = ()
    query_kv_s: Seconds = 0.0
    prefill_query_kv_s: Seconds = 0.0
    logit_row_s: Seconds = 0.0


class _Draft(_Section):
    fixed_s: Seconds
    pass_s: Seconds = 0.0
    row_s: Seconds = 0.0
    draft_token_s: Seconds
    kv_token_s: Seconds
    methods: dict[str, OriginLabel]


class _Ngram(_Section):
    fraction_of_target: Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
    step_s: Seconds = 0.0
    sequence_s: Seconds = 0.0
    token_s: Seconds = 0.0
    methods: dict[str, OriginLabel]


class _FrontEnd(_Section):
    request_s: Seconds
    output_s: Seconds
    output_sequence_s: Seconds
    turnaround_s: Seconds


class _CoreResponse(_Section):
    spin_s: Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
    exponent: Annotated[float, Field(ge=0.0, le=1.5)]


class _AffineFile(_Section):
    schema_version: Literal[1]
    kind: Literal["affine"]
    name: str
    model: str
    hardware: str
    tp: int = Field(ge=1)
    dtype: Dtype
    enforce_eager: bool = False
    date: str
    source: str
    fitted_sequences: tuple[int, int]
    target: _Target
    draft: _Draft
    ngram: _Ngram
    overhead_s: Seconds
    front_end: _FrontEnd | None = None
    fitted_runs: dict[str, str] = Field(default_factory=dict)
    core_speed: dict[Literal["server", "beside"], _CoreResponse] = Field(default_factory=dict)


_FILE: TypeAdapter[_RooflineFile | _AffineFile] = TypeAdapter(
    Annotated[_RooflineFile | _AffineFile, Field(discriminator="kind")]
)


def profile_names() -> tuple[str, ...]:
    """Names of the bundled profiles."""
    files = {path.stem for path in PROFILE_FOLDER.glob("*.yaml")}
    return tuple(sorted(files | {path.parent.name for path in PROFILE_FOLDER.glob(f"*/{MANIFEST}")}))


def load_profile(name_or_path: str | Path | None, hardware: HardwareSpec) -> HardwareProfile:
    """The profile called ``name_or_path``: a bundled name, a YAML file or a folder that `calibrate` wrote.

    Args:
        name_or_path: None takes the bundled profile measured on the device, or assumed efficiencies where none is.
        hardware: the device the scenario runs on; a profile made for another device is refused.

    Raises:
        HardwareError: unknown name, unreadable file, unknown or missing key, value out of range, wrong device, a table
            that is not the one its manifest describes.
    """
    path = find_profile(hardware.name if name_or_path is None and has_profile(hardware) else name_or_path)
    if not path.is_dir():
        return _load_file(path, hardware)
    manifest = read_manifest(path)
    profile = _load_file(path / FIT, hardware)
    # Rooflines of a folder extend its table; a whole-step fit has none.
    if isinstance(profile, AffineProfile) == manifest.has_table:
        kind, beside = ("affine", "beside") if manifest.has_table else ("roofline", "without")
        allowed = "roofline" if manifest.has_table else "affine"
        raise HardwareError(f"must be {allowed} {beside} a table", file=str(path / FIT), key="kind", value=kind)
    if isinstance(profile, AffineProfile):
        return profile
    return dataclasses.replace(
        profile,
        hardware=manifest.ceilings.applied(hardware),
        measured=MeasuredTimes(path / TABLE, manifest.files[TABLE]),
    )


def has_profile(hardware: HardwareSpec) -> bool:
    """Whether a profile measured on this device is bundled."""
    return (PROFILE_FOLDER / hardware.name / MANIFEST).is_file()


def _load_file(path: Path, hardware: HardwareSpec) -> HardwareProfile:
    raw = _read_yaml(path)
    try:
        parsed = _FILE.validate_python(raw)
    except ValidationError as error:
        raise _first_fault(error, path) from None
    if parsed.hardware not in ("any", hardware.name):
        raise HardwareError(
            f"the profile was made for this device, the scenario runs on {hardware.name}",
            file=str(path),
            key="hardware",
            value=parsed.hardware,
        )
    if isinstance(parsed, _AffineFile):
        return _affine(parsed, path)
    return _roofline(parsed, hardware, path)


def _read_yaml(path: Path) -> dict[str, Any]:
    raw = parse_yaml(read_text(path, HardwareError), str(path), HardwareError)
    if not isinstance(raw, dict):
        raise HardwareError("must hold a mapping with schema_version, kind, name, ...", file=str(path))
    return raw


def default_sections(hardware: HardwareSpec) -> dict[str, Any]:
    """Sections host, launch and operators of the default profile as it applies to a device, in plain values."""
    parsed = _RooflineFile.model_validate(_read_yaml(PROFILE_FOLDER / f"{DEFAULT_PROFILE}.yaml"))
    ceiling = parsed.launch.cuda_graph_ceiling_by_hardware.get(hardware.name, parsed.launch.cuda_graph_ceiling)
    return {
        "host": parsed.host.model_dump(),
        "launch": {"kernel_s": parsed.launch.kernel_s, "cuda_graph_ceiling": ceiling},
        "operators": {
            family: operator.model_dump(exclude_defaults=True) for family, operator in parsed.operators.items()
        },
    }


def find_profile(name_or_path: str | Path | None) -> Path:
    """File or folder of a profile; None is the default. Raises HardwareError that lists the bundled names."""
    name = DEFAULT_PROFILE if name_or_path is None else name_or_path
    if isinstance(name, str) and name in profile_names():
        folder = PROFILE_FOLDER / name
        return folder if folder.is_dir() else PROFILE_FOLDER / f"{name}.yaml"
    path = Path(name)
    if os.path.exists(path):
        return path
    raise HardwareError(
        f"must be one of {', '.join(profile_names())}, the path of a YAML file or of a folder that calibrate wrote",
        key="profile",
        value=str(name_or_path),
    )


def _first_fault(error: ValidationError, path: Path) -> HardwareError:
    fault = error.errors(include_url=False)[0]
    # The discriminator's own label ("roofline", "affine") leads the location and is no key of the file.
    where = [str(part) for part in fault["loc"]]
    key = ".".join(where[1:] if where and where[0] in ("roofline", "affine") else where) or "kind"
    message = "unknown key" if fault["type"] == "extra_forbidden" else fault["msg"]
    if fault["type"] == "missing":
        return HardwareError("required, but missing", file=str(path), key=key)
    value = fault["input"]
    shown = value if not isinstance(value, dict) else "{...}"
    return HardwareError(message, file=str(path), key=key, value=shown)


def _check_range(low_high: tuple[int, int] | None, path: Path, key: str) -> None:
    if low_high is not None and not 0 <= low_high[0] <= low_high[1]:
        raise HardwareError("must be [low, high] with 0 <= low <= high", file=str(path), key=key, value=list(low_high))


def _roofline(parsed: _RooflineFile, hardware: HardwareSpec, path: Path) -> RooflineProfile:
    for family, operator in parsed.operators.items():
        if family not in OPERATORS:
            raise HardwareError(
                f"unknown operator, must be one of {', '.join(OPERATORS)}", file=str(path), key=f"operators.{family}"
            )
        _check_range(operator.fitted_rows, path, f"operators.{family}.fitted_rows")
        for dtype, fit in operator.dtypes.items():
            _check_range(fit.fitted_rows, path, f"operators.{family}.dtypes.{dtype}.fitted_rows")
        if math.isnan(operator.p):
            raise HardwareError("must be >= 1", file=str(path), key=f"operators.{family}.p", value=operator.p)
    for family in OPERATORS:
        if family not in parsed.operators:
            raise HardwareError("required, but missing", file=str(path), key=f"operators.{family}")
    return RooflineProfile(
        name=parsed.name,
        hardware=hardware,
        operators={family: operator.build() for family, operator in parsed.operators.items()},
        dtype_operators={
            (family, dtype): fit.build()
            for family, operator in parsed.operators.items()
            for dtype, fit in operator.dtypes.items()
        },
        h0_s=parsed.host.h0_s,
        h1_s=parsed.host.h1_s,
        launch_s=parsed.launch.kernel_s,
        cuda_graph_ceiling=parsed.launch.cuda_graph_ceiling_by_hardware.get(
            hardware.name, parsed.launch.cuda_graph_ceiling
        ),
        source=parsed.source,
        date=parsed.date,
    )


def _affine(parsed: _AffineFile, path: Path) -> AffineProfile:
    _check_range(parsed.fitted_sequences, path, "fitted_sequences")
    for (rows, seconds), (next_rows, next_seconds) in itertools.pairwise(parsed.target.rows):
        if next_rows <= rows or next_seconds < seconds:
            message = "must be [rows, seconds] with ascending rows and seconds that never fall"
            raise HardwareError(message, file=str(path), key="target.rows", value=[next_rows, next_seconds])
    return AffineProfile(
        name=parsed.name,
        model=parsed.model,
        hardware_name=parsed.hardware,
        tp=parsed.tp,
        dtype=parsed.dtype,
        enforce_eager=parsed.enforce_eager,
        target_fixed_s=parsed.target.fixed_s,
        target_row_s=parsed.target.row_s,
        target_kv_token_s=parsed.target.kv_token_s,
        target_sequence_s=parsed.target.sequence_s,
        target_rows=parsed.target.rows,
        target_query_kv_s=parsed.target.query_kv_s,
        target_prefill_query_kv_s=parsed.target.prefill_query_kv_s,
        target_logit_row_s=parsed.target.logit_row_s,
        draft_fixed_s=parsed.draft.fixed_s,
        draft_pass_s=parsed.draft.pass_s,
        draft_row_s=parsed.draft.row_s,
        draft_token_s=parsed.draft.draft_token_s,
        draft_kv_token_s=parsed.draft.kv_token_s,
        draft_methods={method: Origin.parse(label) for method, label in parsed.draft.methods.items()},
        ngram_fraction=parsed.ngram.fraction_of_target,
        ngram_step_s=parsed.ngram.step_s,
        ngram_sequence_s=parsed.ngram.sequence_s,
        ngram_token_s=parsed.ngram.token_s,
        ngram_methods={method: Origin.parse(label) for method, label in parsed.ngram.methods.items()},
        overhead_s=parsed.overhead_s,
        fitted_sequences=parsed.fitted_sequences,
        source=parsed.source,
        date=parsed.date,
        front_end=None if parsed.front_end is None else FrontEnd(**parsed.front_end.model_dump()),
        fitted_runs=parsed.fitted_runs,
        core_speed={group: CoreResponse(**read.model_dump()) for group, read in parsed.core_speed.items()},
    )
