"""Validation of a raw mapping, and pydantic's errors in draftcast's words: one line, key, value, what is allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from draftcast.errors import ScenarioError
from draftcast.scenarios.schema import Scenario

_MESSAGES = {
    "missing": "required",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "finite_number": "must be a finite number",
    "float_type": "must be a number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "too_short": "must have at least {min_length} entries",
    "literal_error": "must be {expected}",
    "tuple_type": "must be a list",
    "model_type": "must be a section of keys and values",
    "model_attributes_type": "must be a section of keys and values",
    "dict_type": "must be a section of keys and values",
    "union_tag_invalid": "unknown {discriminator}; choose from {expected_tags}",
    "union_tag_not_found": "needs the key {discriminator}",
}


def validate(data: Mapping[str, Any], file: str, places: Mapping[str, str]) -> Scenario:
    """``data`` as a Scenario; ``places`` says which dotted keys came from elsewhere than ``file``."""
    try:
        return Scenario.model_validate(data)
    except ValidationError as error:
        raise _one_line(error.errors()[0], data, file, places) from None


def _one_line(error: ErrorDetails, data: Any, file: str, places: Mapping[str, str]) -> ScenarioError:
    """One pydantic error as one line in draftcast's words."""
    context = dict(error.get("ctx", {}))
    kind = error["type"]
    keys = _keys_in(data, error["loc"], kind == "missing")
    value = context.get("value", error["input"])
    if context.get("key"):
        keys.extend(str(context["key"]).split("."))
    if kind == "union_tag_invalid":
        keys.append(str(context["discriminator"]).replace("'", ""))
        value = context["tag"]
    message = error["msg"]
    if kind in _MESSAGES:
        message = _MESSAGES[kind].format(**{name: str(text).replace("'", "") for name, text in context.items()})
    dotted = ".".join(keys)
    inside = [place for key, place in places.items() if dotted == key or dotted.startswith(key + ".")]
    where = inside[-1] if inside else file
    if isinstance(value, tuple):
        value = list(value)
    long = isinstance(value, (dict, BaseModel)) or (isinstance(value, list) and len(value) > 12)
    if kind == "missing" or value is None or long:
        return ScenarioError(message, file=where, key=dotted or None)
    return ScenarioError(message, file=where, key=dotted or None, value=value)


def _keys_in(data: Any, location: Sequence[int | str], missing: bool) -> list[str]:
    """``location`` without the union tags that pydantic puts between real keys."""
    keys: list[str] = []
    current = data
    for position, part in enumerate(location):
        inside = isinstance(current, Mapping) and part in current
        if isinstance(current, list | tuple) and isinstance(part, int):
            inside = part < len(current)
        if inside:
            current = current[part]
        elif not (missing and position == len(location) - 1):
            continue
        keys.append(str(part))
    return keys
