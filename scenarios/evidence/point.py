"""Measured results of real engines on real GPUs: one row a point, shipped as ``points/*.jsonl``.

A row holds facts that its source states: the setting and the figures without and with speculation. A field that the
source does not give is absent (or null); one that had to be taken from elsewhere is named under ``assumed`` with the
reason.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, ValidationError, model_validator

from draftcast.errors import ScenarioError
from draftcast.files import json_lines, read_text
from draftcast.frozen import Faults, Frozen, Many, NonEmpty, Positive, Probability, wrong
from draftcast.scenarios.schema.load import one_line

Throughput = Literal["output_tok_s", "total_tok_s", "req_s", "per_request_decode_tok_s"]
MetricName = Literal[Throughput, "tpot_ms", "itl_ms", "e2e_ms", "e2e_s", "speedup"]
RATES: tuple[MetricName, ...] = (*get_args(Throughput), "speedup")
"""Metrics of which more is better; a bare speed-up is taken as one of throughput."""
Tokens = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Number = Annotated[int, Field(ge=0, le=10**9)]


def _without_null(value: Any) -> Any:
    """A null, or a section that holds nothing, says what an absent key says."""
    if not isinstance(value, Mapping):
        return value
    inside = {key: _without_null(item) for key, item in value.items()}
    return {key: item for key, item in inside.items() if item is not None and item != {}}


class Spec(Frozen):
    """How the engine speculated; ``none`` (or no method) without, ``tree`` where more than one branch is drafted."""

    method: NonEmpty | None = None
    k: Number | None = None
    draft_model: NonEmpty | None = None
    draft_tp: Number | None = None

    @property
    def is_on(self) -> bool:
        return self.method not in (None, "none")


class GivenAcceptance(Frozen):
    """What the source says of acceptance.

    ``mean_length`` includes the bonus token unless ``definition`` says otherwise; ``per_position`` is unconditional;
    ``rate`` is accepted over drafted tokens. ``match_probability``: share of rounds in which a search found a draft,
    of which the other figures then speak.
    """

    mean_length: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    per_position: Many[Probability] | None = None
    rate: Probability | None = None
    match_probability: Probability | None = None
    definition: str | None = None


class MeasuredLoad(Frozen):
    """``concurrency``: closed loop of so many clients; ``rate``: requests/s; ``batch``: so many at once, or kept
    running; ``burst``: all requests at once."""

    kind: Literal["concurrency", "rate", "batch", "burst"]
    value: Positive | None = None
    num_prompts: Annotated[int, Field(ge=1)] | None = None


class EvidencePoint(Frozen):
    """One measured point; the fields are those of the collection, see docs/evidence.md.

    ``off`` and ``on`` are in the metric's unit; ``ratio`` above 1 says that speculation was better.
    ``ratio_range`` stands where the source gives only a range. ``off_spec``: what the baseline drafted with, where it
    was another method.
    """

    id: NonEmpty
    source: NonEmpty
    url: str
    date: str
    tier: Literal["A", "B", "C"]
    engine: NonEmpty
    engine_version: str
    model: NonEmpty | None = None
    quantization: NonEmpty | None = None
    kv_cache_dtype: NonEmpty | None = None
    gpu: NonEmpty | None = None
    num_gpus: Number | None = None
    tp: Number | None = None
    dp: Number | None = None
    ep: bool | Number | None = None
    pp: Number | None = None
    flags: dict[str, Any] = Field(default_factory=dict)
    spec: Spec = Spec()
    acceptance: GivenAcceptance = GivenAcceptance()
    off_spec: Spec = Spec()
    off_acceptance: GivenAcceptance = GivenAcceptance()
    dataset: NonEmpty | None = None
    input_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    load: MeasuredLoad
    metric: MetricName
    off: Positive | None = None
    on: Positive | None = None
    ratio: Positive | None = None
    ratio_range: Annotated[tuple[Positive, Positive], Field(strict=False)] | None = None
    more: dict[str, Any] = Field(default_factory=dict)
    assumed: dict[str, NonEmpty] = Field(default_factory=dict)
    complete: str = ""
    missing: Annotated[tuple[str, ...], Field(strict=False)] = ()
    note: str = ""

    @property
    def speedup(self) -> float | None:
        """Measured factor by which speculation is better: the source's, else of its two figures; None without."""
        return self.ratio if self.ratio is not None else self.speedup_of(self.off, self.on)

    def speedup_of(self, off: float | None, on: float | None) -> float | None:
        """Factor by which ``on`` is better than ``off``, both in the metric's unit; None where one is not known."""
        if off is None or on is None:
            return None
        return on / off if self.metric in RATES else off / on

    _nothing_for_null = model_validator(mode="before")(_without_null)

    def faults(self) -> Faults:
        if self.off is None and self.on is None and self.ratio is None and self.ratio_range is None:
            yield wrong("off", None, "a point needs a figure: off, on, ratio or ratio_range")
        if self.spec.method == "none" and (self.on is not None or self.speedup is not None):
            yield wrong("spec.method", self.spec.method, "the figure with speculation needs the method that drafted")
        if self.metric == "speedup" and (self.off is not None or self.on is not None):
            yield wrong("metric", self.metric, "has no absolute figures; give ratio")
        for key in self.assumed:
            if key.split(".", maxsplit=1)[0] not in type(self).model_fields:
                yield wrong("assumed", key, "names no field of the row")


def points(*paths: Path) -> tuple[EvidencePoint, ...]:
    """Every point in these files, or every shipped one, in order. Raises ScenarioError: a bad row, or an id twice."""
    files = paths or sorted(Path(__file__).with_name("points").glob("*.jsonl"))
    return parse_points((str(path), read_text(path, ScenarioError)) for path in files)


def parse_points(texts: Iterable[tuple[str, str]]) -> tuple[EvidencePoint, ...]:
    """Points from (file name, JSON lines); errors as of `points`."""
    by_id: dict[str, EvidencePoint] = {}
    for name, text in texts:
        for number, row in json_lines(text, name, ScenarioError):
            try:
                point = EvidencePoint.model_validate(row)
            except ValidationError as error:
                raise one_line(error.errors()[0], row, f"{name}:{number}") from None
            if point.id in by_id:
                raise ScenarioError("is the id of another row", file=f"{name}:{number}", key="id", value=point.id)
            by_id[point.id] = point
    return tuple(by_id.values())
