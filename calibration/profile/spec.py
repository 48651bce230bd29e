"""What a device's kernels take: the profile that turns an operator's work into seconds, and how far to trust it.

A `RooflineProfile` holds measured times, where there are any, one soft roofline per operator family (and, where fitted,
per dtype) for the shapes beyond them, and the host's step time where that was measured; an `AffineProfile` a whole-step
fit of one model on one device. Neither knows a model's shapes nor a scheduler. The records are what stands in the files
of ``calibration/profiles``, with the device in place of its name; `draftcast.calibration.profile.load` reads them.
"""

import itertools
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, InstanceOf

from draftcast.calibration.profile.hardware import HardwareSpec, Section
from draftcast.calibration.profile.measured import MeasuredTimes, seconds_by
from draftcast.calibration.profile.roofline import OriginLabel, Roofline, Seconds
from draftcast.errors import HardwareError
from draftcast.files import digest, picked
from draftcast.frozen import OneOf
from draftcast.kernels.arrays import FloatArray
from draftcast.kernels.operators.cost import Work

OPERATORS = (
    "linear", "attention_decode", "attention_prefill", "mla_decode", "mla_prefill", "dsa_decode", "gdn_decode",
    "gdn_prefill", "elementwise", "moe", "lm_head", "sampler", "all_reduce",
)  # fmt: skip
"""Operator families a roofline profile must describe. Those of decode cover verify too."""

FORMATS = ("fp32", "bf16", "fp16", "fp8", "fp8_block", "int4", "mxfp4", "nvfp4", "mxfp8", "int8")
Dtype = Annotated[str, OneOf("format", FORMATS)]


def _ascending(low_high: tuple[int, int]) -> tuple[int, int]:
    if not 0 <= low_high[0] <= low_high[1]:
        raise ValueError("must be [low, high] with 0 <= low <= high")
    return low_high


def _rising(points: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    for (before, earlier_s), (after, later_s) in itertools.pairwise(points):
        if after <= before or later_s < earlier_s:
            raise ValueError("must be [size, seconds] with ascending sizes and seconds that never fall")
    return points


Range = Annotated[tuple[int, int], AfterValidator(_ascending)]
Size = Annotated[float, Field(ge=1.0, allow_inf_nan=False)]
SecondsBySize = Annotated[tuple[tuple[Size, Seconds], ...], AfterValidator(_rising)]  # ascending, no seconds falling
Time = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Published = Annotated[tuple[tuple[Size, Time], ...], Field(min_length=1), AfterValidator(_rising)]
"""The same of times that somebody measured: at least one, none of 0."""


@dataclass(frozen=True)
class OperatorFit(Roofline):
    """A family's roofline; ``dtypes`` holds those that replace it at a dtype."""

    dtypes: dict[Dtype, Roofline] = field(default_factory=dict)


@dataclass(frozen=True)
class Host(Section):
    """Host seconds of a step as measured on the machine: ``h0_s + h1_s * sequences``."""

    h0_s: Seconds
    h1_s: Seconds


@dataclass(frozen=True)
class Launch(Section):
    """``cuda_graph_ceiling``: most rows in a CUDA graph (vLLM's platform default), by device where it is named."""

    cuda_graph_ceiling: Annotated[int, Field(ge=0)]
    cuda_graph_ceiling_by_hardware: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class HeldOutErrors(Section):
    """Errors of one operator's interpolation on held-out points; see `calibration/profile/roofline_fit`."""

    operator: str
    dtype: str
    kv_dtype: str
    points: int
    held_out: int
    median: float | None
    p90: float | None
    worst: float | None
    worst_point: str


@dataclass(frozen=True, kw_only=True)
class RooflineProfile(Section):
    """Rooflines of one device, bound to its peaks. Raises HardwareError: an operator family unknown or missing."""

    schema_version: Literal[1]
    kind: Literal["roofline"]
    name: str
    hardware: InstanceOf[HardwareSpec]  # the device whose peaks and bandwidths the efficiencies are fractions of
    date: str  # when it was made (ISO)
    source: str  # where the profile comes from
    launch: Launch
    operators: dict[str, OperatorFit]  # roofline of each family of `OPERATORS`
    # By ranks, bytes of a message and seconds of its all-reduce as others published them: before the roofline
    all_reduce: dict[Annotated[int, Field(ge=2)], Published] = field(default_factory=dict)
    host: Host | None = None  # the host's work on this machine, in place of the engine generation's
    held_out: tuple[HeldOutErrors, ...] = ()  # how far interpolation was off when the profile was fitted
    measured: InstanceOf[MeasuredTimes] | None = None  # times, before every roofline; None: rooflines only
    of_engine: dict[str, InstanceOf[MeasuredTimes]] = field(default_factory=dict)  # of kernels that an engine alone has
    timed_on: InstanceOf[HardwareSpec] | None = None  # all of it, where not on `hardware`, see `stretched_to`

    def __post_init__(self) -> None:
        for family in (*self.operators, *OPERATORS):
            if family not in OPERATORS:
                message = f"unknown operator, must be one of {', '.join(OPERATORS)}"
                raise HardwareError(message, key=f"operators.{family}")
            if family not in self.operators:
                raise HardwareError("required, but missing", key=f"operators.{family}")

    @property
    def is_timed(self) -> bool:
        """Whether kernels were timed on this very device."""
        return self.measured is not None and self.timed_on is None

    def times(self, operator: str) -> bool:
        """Whether its table holds times of an operator."""
        return any(entry.operator == operator for entry in self.held_out)

    def times_for(self, *engines: str) -> tuple[MeasuredTimes, ...]:
        """The measured times of engines' own kernels, then of those that all share."""
        tables = (*map(self.of_engine.get, engines), self.measured)
        return tuple(times for times in tables if times is not None)

    def stretched_to(self, hardware: HardwareSpec) -> "RooflineProfile":
        """This device's kernels on another one of its kind: the same efficiencies, and times by the ratio of rooflines.

        Of H200's times from H100's table, and the other way round, matrices are 6 to 18 % off at the median, experts 5
        to 12 %, attention 3 to 24 %; from B200 to B300 1 to 18 %, latent attention aside
        (`benchmarks/untimed_devices.py`).
        """
        return replace(
            self,
            hardware=hardware,
            timed_on=self.hardware,
            source=f"the times of {self.hardware.name} at the rates of this device's data sheet: {self.source}",
            host=None,
            measured=None if self.measured is None else replace(self.measured, timed_by=self.seconds_of),
            of_engine={name: replace(times, timed_by=self.seconds_of) for name, times in self.of_engine.items()},
        )

    @property
    def cuda_graph_ceiling(self) -> int:
        """Largest number of rows captured in a CUDA graph on this device."""
        return self.launch.cuda_graph_ceiling_by_hardware.get(self.hardware.name, self.launch.cuda_graph_ceiling)

    def operator(self, family: str, dtype: str) -> Roofline:
        """Roofline of a family at a dtype. Raises HardwareError for an unknown family."""
        if family not in self.operators:
            raise HardwareError(f"must be one of {', '.join(OPERATORS)}", key="operator", value=family)
        return self.operators[family].dtypes.get(dtype, self.operators[family])

    def seconds_of(self, family: str, dtype: str) -> Callable[[Work], FloatArray]:
        """The family's roofline at a dtype on this device: from an operator's work to seconds of one launch."""
        return seconds_by(self.operator(family, dtype), self.hardware.ceilings(family, dtype))

    def checksum(self) -> str:
        """SHA-256 over every number and source, the device's included; a run's manifest holds it."""
        hardware, timed_on = asdict(self.hardware), asdict(self.timed_on) if self.timed_on else {}
        for name in ("aliases", "nearest_timed"):
            del hardware[name]
        for device in (hardware, timed_on):
            device.pop("compute_capability", None)  # tells formats of the KV cache, no times
        # Under the names that the manifests of recorded runs were made with, so that a profile keeps its checksum.
        values = {
            **picked(self, "name cuda_graph_ceiling source date"),
            "hardware": hardware,
            "operators": {family: _fit_of(operator) for family, operator in self.operators.items()},
            "dtype_operators": {
                str((family, dtype)): _fit_of(fit)
                for family, operator in self.operators.items()
                for dtype, fit in operator.dtypes.items()
            },
            **({"all_reduce": self.all_reduce} if self.all_reduce else {}),
            "host": None if self.host is None else asdict(self.host),
            "measured": None if self.measured is None else self.measured.sha256,
            **({"of_engine": {name: times.sha256 for name, times in self.of_engine.items()}} if self.of_engine else {}),
            **({"timed_on": timed_on} if timed_on else {}),
        }
        return digest({"kind": "RooflineProfile", "profile": values})


def _fit_of(fit: Roofline) -> dict[str, Any]:
    # A range of rows, which no profile ever gave, stands in the checksums that recorded runs and profiles hold.
    numbers = picked(fit, "t0_s e_c e_m p")
    return {"roofline": numbers, "origin": fit.origin.label, "fitted_rows": None, "source": fit.source}


@dataclass(frozen=True)
class FrontEnd(Section):
    """Seconds between client and engine that no engine step holds: HTTP, process hand-over, detokeniser, streaming."""

    request_s: Seconds  # from a request's sending to the engine, and from a step's end to the front end's log
    output_s: Seconds  # from there to the client
    output_sequence_s: Seconds  # and for each request of the step
    turnaround_s: Seconds  # from the last piece of an answer to the same client's next request, think time aside


@dataclass(frozen=True)
class TargetFit(Section):
    """Seconds of the target's pass; see `AffineProfile`."""

    fixed_s: Seconds
    row_s: Seconds
    kv_token_s: Seconds
    sequence_s: Seconds = 0.0
    rows: SecondsBySize = ()  # by number of rows; straight in between and, extrapolated, beyond
    query_kv_s: Seconds = 0.0
    prefill_query_kv_s: Seconds = 0.0
    logit_row_s: Seconds = 0.0


@dataclass(frozen=True, kw_only=True)
class DraftFit(Section):
    """Seconds of the draft's passes, and the origin of the fit for each method it may be used for."""

    fixed_s: Seconds
    pass_s: Seconds = 0.0
    row_s: Seconds = 0.0
    draft_token_s: Seconds
    kv_token_s: Seconds
    methods: dict[str, OriginLabel]


@dataclass(frozen=True, kw_only=True)
class SearchFit(Section):
    """Seconds of a text search, and the origin of the fit for each method it may be used for."""

    fraction_of_target: Seconds
    step_s: Seconds = 0.0
    sequence_s: Seconds = 0.0
    token_s: Seconds = 0.0
    methods: dict[str, OriginLabel]


@dataclass(frozen=True, kw_only=True)
class AffineProfile(Section):
    """A whole-step fit of one model on one device: no shapes, no dtypes, no rooflines.

    ``target = fixed_s + row_s * rows + rows(rows) + kv_token_s * KV tokens + sequence_s * sequences + query_kv_s *
    pairs + prefill_query_kv_s * prompt pairs + logit_row_s * sampled rows``. Rows are all scheduled rows (prompt tokens
    of a prefill included, none added by CUDA-graph padding), KV tokens stand in the cache before the step, over all
    sequences, sequences are the scheduled requests, pairs are those of a query and a token it attends to, apart for
    decoding requests and for prompts.
    ``draft = fixed_s + pass_s * passes + row_s * rows + draft_token_s * draft tokens + kv_token_s * KV tokens`` where
    passes are the most drafts made for one request and draft tokens are summed over the batch. A text search takes
    ``fraction_of_target * target + step_s + sequence_s * requests searched + token_s * tokens searched``.
    ``overhead_s`` is exposed in every step.
    """

    schema_version: Literal[1]
    kind: Literal["affine"]
    name: str
    model: str  # what was fitted, down to `enforce_eager`; anything else is refused
    hardware: InstanceOf[HardwareSpec]
    tp: Annotated[int, Field(ge=1)]
    dtype: Dtype
    enforce_eager: bool = False
    date: str
    source: str
    fitted_sequences: Range  # inclusive batch range of the fit; outside it a prediction is extrapolated
    target: TargetFit
    draft: DraftFit
    ngram: SearchFit
    overhead_s: Seconds
    front_end: FrontEnd | None = None  # what the server's front end and its client add, where it was measured
    fitted_runs: dict[str, str] = field(default_factory=dict)  # names by digest of live runs it saw: none can check it

    def coefficients(self) -> dict[str, Any]:
        """What the fit holds beyond its name and origin, in plain values, each under one name: ``target_row_s``, ..."""
        values = picked(self, "model tp dtype enforce_eager overhead_s fitted_sequences fitted_runs")
        values |= {f"target_{name}": value for name, value in asdict(self.target).items()}
        values |= {f"draft_{name.removeprefix('draft_')}": value for name, value in asdict(self.draft).items()}
        values |= {f"ngram_{name.removesuffix('_of_target')}": value for name, value in asdict(self.ngram).items()}
        for key in ("draft_methods", "ngram_methods"):
            values[key] = {method: origin.label for method, origin in values[key].items()}
        values["front_end"] = None if self.front_end is None else asdict(self.front_end)
        return values

    def checksum(self) -> str:
        """SHA-256 over every number and source; a run's manifest holds it."""
        named = {**picked(self, "name source date"), "hardware_name": self.hardware.name}
        return digest({"kind": "AffineProfile", "profile": {**named, **self.coefficients()}})


HardwareProfile = RooflineProfile | AffineProfile
