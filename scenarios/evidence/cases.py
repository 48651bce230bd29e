"""Results that others published, as files: the setting, the speed-up, and which inputs the source does not give.

A case is one scenario and its points (``scenarios/published/*.yaml``). Every key of the scenario stands either under
``given`` (with what the source says) or under ``assumed`` (with what was taken and why): a test of the forecast that
hides an assumption is none. Does not simulate: ``published_forecast.py`` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from draftcast.calibration.yaml_text import parse_yaml
from draftcast.errors import ScenarioError
from draftcast.frozen import Frozen, Many, NonEmpty, Positive, wrong

Metric = Literal["e2e", "tpot", "throughput"]
# Facts about the run, not about the setting.
_FREE = ("schema_version", "name", "description", "statistics", "workload.num_requests")


class PublishedPoint(Frozen):
    """One published number.

    ``published`` is the factor by which speculation is better (above 1 it pays), one number or a range; null where only
    another point refers to this one. With ``over`` it is this point's factor over that of the named point.
    """

    label: NonEmpty
    published: Positive | Annotated[tuple[Positive, Positive], Field(strict=False)] | None
    metric: Metric | None = None
    over: NonEmpty | None = None
    # The absolute figures where the source gives them: tokens/s for throughput, ms for tpot, s for e2e.
    without_sd: Positive | None = None
    with_sd: Positive | None = None
    note: str = ""
    set: dict[str, Any] = Field(default_factory=dict)
    # Sets acceptance to the one probability a token that gives this mean (bonus token included).
    mean_acceptance_length: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = None
    assumed: dict[str, NonEmpty] = Field(default_factory=dict)

    @property
    def bounds(self) -> tuple[float, float]:
        """The published factor as a range."""
        assert self.published is not None
        return self.published if isinstance(self.published, tuple) else (self.published, self.published)


class PublishedCase(Frozen):
    """One source."""

    schema_version: Literal[1]
    title: NonEmpty
    source: NonEmpty
    url: str
    engine_version: NonEmpty
    metric: Metric
    scenario: dict[str, Any]
    given: dict[str, NonEmpty]
    assumed: dict[str, NonEmpty]
    points: Many[PublishedPoint]
    # What we think a miss comes from; written after the forecast was made, the inputs before it.
    explanation: str = ""

    def metric_of(self, point: PublishedPoint) -> Metric:
        """What a point's number is of."""
        return point.metric or self.metric

    def assumptions(self, point: PublishedPoint) -> dict[str, str]:
        """What the source does not give, for one point."""
        return {**self.assumed, **point.assumed}

    @model_validator(mode="after")
    def _nothing_is_hidden(self) -> Self:
        labels = [point.label for point in self.points]
        for index, point in enumerate(self.points):
            key = f"points.{index}"
            if point.over is not None and point.over not in labels:
                raise wrong(f"{key}.over", point.over, f"no such point; there are {', '.join(labels)}")
            said = {*self.given, *self.assumptions(point)}
            keys = [*_leaves(self.scenario), *point.set]
            keys += ["acceptance"] if point.mean_acceptance_length is not None else []
            for dotted in keys:
                if not any(_covers(name, dotted) for name in (*said, *_FREE)):
                    raise wrong(f"{key}.assumed", dotted, "is neither given nor assumed")
        return self


def published_cases() -> dict[str, PublishedCase]:
    """Every bundled case by the name of its file.

    Raises:
        ScenarioError: a file that is no case.
    """
    folder = files("draftcast.scenarios").joinpath("published")
    found = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".yaml")), key=lambda entry: entry.name)
    return {entry.name.removesuffix(".yaml"): parse_case(entry.read_text("utf-8"), entry.name) for entry in found}


def parse_case(text: str, file: str) -> PublishedCase:
    """A case from YAML.

    Raises:
        ScenarioError: bad YAML, or the first fault of the case.
    """
    try:
        return PublishedCase.model_validate(parse_yaml(text, file, ScenarioError))
    except ValidationError as error:
        first = error.errors()[0]
        context = first.get("ctx", {})
        key = ".".join(str(part) for part in (*first["loc"], *([context["key"]] if context.get("key") else [])))
        raise ScenarioError(first["msg"], file=file, key=key, value=context.get("value", first["input"])) from None


def _leaves(data: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def _covers(name: str, dotted: str) -> bool:
    """Whether what is said of ``name`` holds for ``dotted``: the same key, one inside it, or one around it."""
    return dotted == name or dotted.startswith(name + ".") or name.startswith(dotted + ".")
