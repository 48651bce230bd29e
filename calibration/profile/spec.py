"""What a device's kernels take: the profile that turns an operator's work into seconds, and how far to trust it.

Two kinds. A `RooflineProfile` holds measured times, where there are any, one soft roofline per operator family (and,
where fitted, per dtype) for the shapes beyond them, and the host's step time. An `AffineProfile` holds a whole-step fit
``a + b*rows + c*KV tokens + d*sequences`` of one model on one device. Neither knows a model's shapes nor a scheduler:
`draftcast.sim.cost.step_cost` puts work and profile together. Profiles are data: YAML files and folders in
``calibration/profiles``, read by `draftcast.calibration.profile.load`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftcast.calibration.profile.hardware import HardwareSpec
from draftcast.calibration.profile.measured import MeasuredTimes
from draftcast.calibration.profile.origin import Origin
from draftcast.calibration.profile.roofline import FloatArray, Roofline
from draftcast.errors import HardwareError
from draftcast.kernels.operators.cost import Work

OPERATORS = (
    "linear",
    "attention_decode",
    "attention_prefill",
    "elementwise",
    "moe",
    "lm_head",
    "sampler",
    "all_reduce",
)
"""Operator families a roofline profile must describe. ``attention_decode`` covers verify too."""


@dataclass(frozen=True, slots=True)
class OperatorProfile:
    """One family's roofline with its standing.

    Attributes:
        roofline: the fitted or assumed numbers.
        origin: origin of a prediction inside ``fitted_rows`` (everywhere when that is None).
        fitted_rows: inclusive range of token rows the fit was made on; outside it every prediction is extrapolated.
        source: where the numbers come from.
    """

    roofline: Roofline
    origin: Origin
    fitted_rows: tuple[int, int] | None
    source: str

    def origins(self, rows: ArrayLike) -> NDArray[np.int64]:
        """`Origin` value of a prediction for each number of token rows."""
        count = np.asarray(rows)
        inside = np.full(count.shape, int(self.origin), dtype=np.int64)
        if self.fitted_rows is None:
            return inside
        low, high = self.fitted_rows
        return np.where((count >= low) & (count <= high), inside, int(Origin.EXTRAPOLATED))


@dataclass(frozen=True, slots=True)
class RooflineProfile:
    """Rooflines of one device, bound to its peaks.

    Attributes:
        name: the profile's name.
        hardware: the device whose peaks and bandwidths the efficiencies are fractions of.
        operators: roofline of each family of `OPERATORS`.
        dtype_operators: ``(family, dtype)`` entries that replace the family's own for that dtype.
        h0_s, h1_s: host seconds of a step, ``h0_s + h1_s * sequences``.
        launch_s: host seconds to launch one kernel without a CUDA graph.
        cuda_graph_ceiling: largest number of rows captured in a CUDA graph (vLLM's platform default).
        source: where the profile comes from.
        date: when it was made (ISO).
        measured: the table of measured times, which comes before every roofline; None: rooflines only.
    """

    name: str
    hardware: HardwareSpec
    operators: Mapping[str, OperatorProfile]
    dtype_operators: Mapping[tuple[str, str], OperatorProfile]
    h0_s: float
    h1_s: float
    launch_s: float
    cuda_graph_ceiling: int
    source: str
    date: str
    measured: MeasuredTimes | None = None

    def operator(self, family: str, dtype: str) -> OperatorProfile:
        """Roofline of a family at a dtype. Raises HardwareError for an unknown family."""
        found = self.dtype_operators.get((family, dtype)) or self.operators.get(family)
        if found is None:
            raise HardwareError(f"must be one of {', '.join(OPERATORS)}", key="operator", value=family)
        return found

    def seconds_of(self, family: str, dtype: str) -> Callable[[Work], FloatArray]:
        """The family's roofline at a dtype on this device: from an operator's work to seconds of one launch."""
        roofline = self.operator(family, dtype).roofline
        peak_flops, bandwidth = self.hardware.ceilings(family, dtype)
        return lambda work: roofline.seconds(work.flops, work.bytes, peak_flops, bandwidth)

    def checksum(self) -> str:
        """SHA-256 over every number and source, the device's included; the manifest holds it."""
        return _checksum(self)


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """Seconds between client and engine that no engine step holds: HTTP, process hand-over, detokeniser, streaming.

    Attributes:
        request_s: from a request's sending to its arrival in the engine, and from a step's end to the front end's log.
        output_s, output_sequence_s: from there to the client, fixed and for each request of the step.
        turnaround_s: from the last piece of an answer to the same client's next request, think time aside.
    """

    request_s: float
    output_s: float
    output_sequence_s: float
    turnaround_s: float


@dataclass(frozen=True, slots=True)
class CoreResponse:
    """How a step's time goes with the speed of a group of this host's cores.

    Attributes:
        spin_s: what the probe read on them at the profile's step times (`draftcast.calibration.live.core_speed`).
        exponent: a step takes ``(reading / spin_s) ** exponent`` times as long.
    """

    spin_s: float
    exponent: float


@dataclass(frozen=True, slots=True)
class AffineProfile:
    """A whole-step fit of one model on one device: no shapes, no dtypes, no rooflines.

    ``target = target_fixed_s + target_row_s * rows + target_rows(rows) + target_kv_token_s * KV tokens +
    target_sequence_s * sequences + target_query_kv_s * pairs + target_prefill_query_kv_s * prompt pairs +
    target_logit_row_s * sampled rows``. Rows are all scheduled rows (prompt tokens of a prefill included, none added by
    CUDA-graph padding), KV tokens stand in the cache before the step, over all sequences, sequences are the scheduled
    requests, pairs are those of a query and a token it attends to, apart for decoding requests and for prompts.
    ``draft = draft_fixed_s + draft_pass_s * passes + draft_row_s * rows + draft_token_s * draft tokens +
    draft_kv_token_s * KV tokens`` where passes are the most drafts made for one request and draft tokens are summed
    over the batch. A text search takes ``ngram_fraction * target + ngram_step_s + ngram_sequence_s * requests searched
    + ngram_token_s * tokens searched``. ``overhead_s`` is exposed in every step.

    Attributes:
        model, hardware_name, tp, dtype, enforce_eager: what was fitted; anything else is refused.
        target_rows: seconds at ascending numbers of rows, none falling; straight in between and, extrapolated, beyond.
        draft_methods, ngram_methods: origin of the draft's or the search's fit for each method it may be used for.
        ngram_fraction: an n-gram draft's seconds as a fraction of the target's.
        fitted_sequences: inclusive batch range of the fit; outside it a prediction is extrapolated.
        front_end: what the server's front end and its client add, where it was measured.
        fitted_runs: digest -> name of every live run the fit has seen; none of them can check it.
        core_speed: by group of cores, where the runs know how fast theirs were; a simulation is at the profile's own.
    """

    name: str
    model: str
    hardware_name: str
    tp: int
    dtype: str
    enforce_eager: bool
    target_fixed_s: float
    target_row_s: float
    target_kv_token_s: float
    target_sequence_s: float
    target_rows: tuple[tuple[float, float], ...]
    target_query_kv_s: float
    target_prefill_query_kv_s: float
    target_logit_row_s: float
    draft_fixed_s: float
    draft_pass_s: float
    draft_row_s: float
    draft_token_s: float
    draft_kv_token_s: float
    draft_methods: Mapping[str, Origin]
    ngram_fraction: float
    ngram_step_s: float
    ngram_sequence_s: float
    ngram_token_s: float
    ngram_methods: Mapping[str, Origin]
    overhead_s: float
    fitted_sequences: tuple[int, int]
    source: str
    date: str
    front_end: FrontEnd | None = None
    fitted_runs: Mapping[str, str] = field(default_factory=dict)
    core_speed: Mapping[str, CoreResponse] = field(default_factory=dict)

    def checksum(self) -> str:
        """SHA-256 over every number and source; the manifest holds it."""
        return _checksum(self)


HardwareProfile = RooflineProfile | AffineProfile


def _plain(value: object) -> object:
    """``value`` as JSON can write it, with mappings in a fixed order."""
    if isinstance(value, MeasuredTimes):
        return value.sha256
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in sorted(value.items(), key=lambda pair: str(pair[0]))}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Origin):
        return value.label
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _checksum(profile: RooflineProfile | AffineProfile) -> str:
    text = json.dumps({"kind": type(profile).__name__, "profile": _plain(profile)}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
