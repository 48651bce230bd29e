"""Reading profiles: YAML in, `RooflineProfile` or `AffineProfile` out, every fault a one-line `HardwareError`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from draftcast.calibration.hardware import HardwareSpec
from draftcast.calibration.origin import Origin
from draftcast.calibration.profile_spec import (
    OPERATORS,
    AffineProfile,
    HardwareProfile,
    OperatorProfile,
    RooflineProfile,
)
from draftcast.calibration.roofline import Roofline
from draftcast.errors import HardwareError

__all__ = [
    "OPERATORS",
    "AffineProfile",
    "HardwareProfile",
    "OperatorProfile",
    "Origin",
    "RooflineProfile",
    "load_profile",
    "profile_names",
]

PROFILE_FOLDER = Path(__file__).parent / "profiles"
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


class _Target(_Section):
    fixed_s: Seconds
    row_s: Seconds
    kv_token_s: Seconds


class _Draft(_Section):
    fixed_s: Seconds
    draft_token_s: Seconds
    kv_token_s: Seconds
    methods: dict[str, OriginLabel]


class _Ngram(_Section):
    fraction_of_target: Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
    methods: dict[str, OriginLabel]


class _AffineFile(_Section):
    schema_version: Literal[1]
    kind: Literal["affine"]
    name: str
    model: str
    hardware: str
    tp: int = Field(ge=1)
    dtype: Dtype
    date: str
    source: str
    fitted_sequences: tuple[int, int]
    target: _Target
    draft: _Draft
    ngram: _Ngram
    overhead_s: Seconds


_FILE: TypeAdapter[_RooflineFile | _AffineFile] = TypeAdapter(
    Annotated[_RooflineFile | _AffineFile, Field(discriminator="kind")]
)


class _UniqueKeyLoader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice and leaves dates as text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} given twice", key_node.start_mark)
            if isinstance(key, str):
                seen.add(key)
        return super().construct_mapping(node, deep)


_UniqueKeyLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def profile_names() -> tuple[str, ...]:
    """Names of the bundled profiles."""
    return tuple(sorted(path.stem for path in PROFILE_FOLDER.glob("*.yaml")))


def load_profile(name_or_path: str | Path | None, hardware: HardwareSpec) -> HardwareProfile:
    """The profile called ``name_or_path`` (bundled name or YAML file), or the default roofline when None.

    Args:
        name_or_path: None, a name of `profile_names`, or a path to a file.
        hardware: the device the scenario runs on; a profile made for another device is refused.

    Raises:
        HardwareError: unknown name, unreadable file, unknown or missing key, value out of range, wrong device.
    """
    path = _find(DEFAULT_PROFILE if name_or_path is None else name_or_path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HardwareError(f"cannot be read as UTF-8 text: {error}", file=str(path)) from None
    try:
        raw = yaml.load(text, Loader=_UniqueKeyLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or error
        raise HardwareError(f"is not valid YAML: {problem}", file=str(path), line=mark and mark.line + 1) from None
    if not isinstance(raw, dict):
        raise HardwareError("must hold a mapping with schema_version, kind, name, ...", file=str(path))
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


def _find(name_or_path: str | Path) -> Path:
    bundled = PROFILE_FOLDER / f"{name_or_path}.yaml"
    if isinstance(name_or_path, str) and name_or_path in profile_names():
        return bundled
    path = Path(name_or_path)
    if path.is_file():
        return path
    raise HardwareError(
        f"must be one of {', '.join(profile_names())} or the path of a YAML file",
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
    return AffineProfile(
        name=parsed.name,
        model=parsed.model,
        hardware_name=parsed.hardware,
        tp=parsed.tp,
        dtype=parsed.dtype,
        target_fixed_s=parsed.target.fixed_s,
        target_row_s=parsed.target.row_s,
        target_kv_token_s=parsed.target.kv_token_s,
        draft_fixed_s=parsed.draft.fixed_s,
        draft_token_s=parsed.draft.draft_token_s,
        draft_kv_token_s=parsed.draft.kv_token_s,
        draft_methods={method: Origin.parse(label) for method, label in parsed.draft.methods.items()},
        ngram_fraction=parsed.ngram.fraction_of_target,
        ngram_methods={method: Origin.parse(label) for method, label in parsed.ngram.methods.items()},
        overhead_s=parsed.overhead_s,
        fitted_sequences=parsed.fitted_sequences,
        source=parsed.source,
        date=parsed.date,
    )
