"""The frozen base of every scenario model, and the hint a mistyped key gets.

Knows nothing of any particular section: it refuses unknown keys with the closest known one, strips a wrong unit suffix
(``request_rate_ms`` -> ``request_rate_rps``) and names what is allowed. ``scenarios/schema/load.py`` turns the
pydantic errors raised here into one-line ``ScenarioError``s.
"""

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self, TypeVar

from annotated_types import GroupedMetadata
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from draftcast.yaml_text import yaml_beside

_UNIT = re.compile(r"(?<!^)_(ms|us|s|sec|seconds|rps|qps|rpm|tokens|bytes|gb|gib)\Z")
SYNONYMS: dict[str, str] = yaml_beside(__file__, "synonyms.yaml")

T = TypeVar("T")
Faults = Iterator[PydanticCustomError]
# Bounds no question needs to cross; inside them times keep a tenth of a microsecond and token counts fit 32 bits.
MOST_SECONDS = 1e9
MOST_TOKENS = 10**9
Positive = Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Probability = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, le=MOST_SECONDS, allow_inf_nan=False)]
Duration = Annotated[float, Field(gt=0, le=MOST_SECONDS, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
# Of a draft tree: nodes drafted in a level, and verified in all (Sequoia's largest trees hold 768).
Width = Annotated[int, Field(ge=1, le=1024)]
Nodes = Annotated[int, Field(ge=1, le=4096)]


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise wrong("", None, f"holds no valid text at character {error.start}") from None
    return text


Text = Annotated[str, AfterValidator(_encodable)]
NonEmpty = Annotated[str, Field(min_length=1), AfterValidator(_encodable)]
# Lists of a YAML file become tuples; `strict` holds for what is inside them.
Many = Annotated[tuple[T, ...], Field(strict=False, min_length=1)]


def nearest_key(key: str, names: Iterable[str]) -> str | None:
    """The known key that ``key`` most likely meant, or None: same stem, a synonym, or close spelling, in this order."""
    candidates = list(names)
    plain = key.replace("-", "_").lstrip("_").lower()
    if plain in candidates:
        return plain
    # Names without their unit: request_rate_ms and request_rate share the stem request_rate.
    stems = {_UNIT.sub("", name): name for name in reversed(candidates)}
    if (stem := _UNIT.sub("", plain)) in stems:
        return stems[stem]
    if SYNONYMS.get(plain) in candidates:
        return SYNONYMS[plain]
    return next(iter(difflib.get_close_matches(plain, candidates, n=1, cutoff=0.7)), None)


class Frozen(BaseModel):
    """A section of a scenario: immutable, no unknown keys, no silent conversions (``"3"`` is not 3, ``true`` not 1)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    @classmethod
    def elsewhere(cls, key: str) -> str | None:
        """Where an unknown ``key`` belongs instead; overridden by models that know other sections."""
        return None

    def faults(self) -> Faults:
        """What its valid fields say against each other, the first of which is raised; overridden where they can."""
        return iter(())

    @model_validator(mode="after")
    def _has_no_fault(self) -> Self:
        for fault in self.faults():
            raise fault
        return self

    def refusal(self, key: str, message: str) -> PydanticCustomError:
        """An error about the value of field ``key``, dotted below this model."""
        value: Any = self
        for part in key.split("."):
            value = value[int(part)] if part.isdigit() else getattr(value, part)
        return wrong(key, value, message)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        for key in data:
            if key in cls.model_fields:
                continue
            near = nearest_key(str(key), cls.model_fields) or cls.elsewhere(str(key))
            hint = f"did you mean {near}? " if near else ""
            context = {"hint": hint, "allowed": ", ".join(cls.model_fields), "key": str(key), "value": data[key]}
            raise PydanticCustomError("unknown_key", "unknown key; {hint}allowed: {allowed}", context)
        return data


def wrong(key: str, value: Any, message: str) -> PydanticCustomError:
    """An error about field ``key`` of the model whose validator raises it (dotted below that model)."""
    context = {"message": " ".join(message.split()), "key": key, "value": value}
    return PydanticCustomError("bad_value", "{message}", context)


def in_schema(names: Callable[[], Collection[str]], pattern: str = "") -> Any:
    """For the JSON Schema of a field: these names, or any other text of ``pattern`` where it is given."""

    def add(schema: dict[str, Any]) -> None:
        listed = {"enum": [*names()]}
        schema.update({"anyOf": [listed, {"pattern": pattern}]} if pattern else listed)

    return Field(json_schema_extra=add)


@dataclass(frozen=True, eq=False)
class OneOf(GroupedMetadata):
    """Of a text that must be among ``names``, or hold ``pattern``; ``more``: what else is allowed, for the message."""

    what: str
    names: Collection[str]
    more: str = ""
    pattern: str = ""

    def check(self, value: str) -> str:
        if value in self.names or (self.pattern and re.search(self.pattern, value)):
            return value
        raise wrong("", value, f"unknown {self.what}; choose from {', '.join(self.names)}{self.more}")

    def __iter__(self) -> Iterator[Any]:
        return iter((AfterValidator(self.check), in_schema(lambda: self.names, self.pattern)))
