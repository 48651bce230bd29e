"""A scenario as plain data, which need not be valid: its sections and what stands at a dotted key, read and written."""

from collections.abc import Iterator, Mapping
from typing import Any

from draftcast.errors import ScenarioError
from draftcast.yaml_text import yaml_beside

NAMES, MESSAGES = (yaml_beside(__file__, name) for name in ("keys.yaml", "messages.yaml"))


def copied(data: Any) -> Any:
    """A copy of plain data: its mappings and lists anew, a fraction of the time of `copy.deepcopy`."""
    if isinstance(data, Mapping):
        return {key: copied(value) for key, value in data.items()}
    return [copied(value) for value in data] if isinstance(data, list) else data


def sections(data: Any, path: str, place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every mapping at a dotted path, in which ``*`` is each entry of a list, with its place: a prefix of its keys."""
    key, _, rest = path.partition(".")
    if not key:
        if isinstance(data, dict):
            yield place, data
    elif key == "*":
        for index, entry in enumerate(data if isinstance(data, list) else ()):
            yield from sections(entry, rest, f"{place}{index}.")
    elif isinstance(data, Mapping):
        yield from sections(data.get(key), rest, f"{place}{key}.")


def value_at(section: Any, key: str) -> Any:
    """The value under a dotted key, list items by index; None where there is none."""
    for part in key.split("."):
        if isinstance(section, list):
            section = section[int(part)] if part.isdigit() and int(part) < len(section) else None
        else:
            section = section.get(part) if isinstance(section, Mapping) else None
    return section


def assign(data: dict[str, Any], dotted: str, value: Any, place: str) -> None:
    """``data[a][b] = value``, making mappings on the way; a list is entered by index. Raises ScenarioError."""
    *outer, last = dotted.split(".")
    target: Any = data
    for key in outer:
        if isinstance(target, dict) and target.get(key) is None:
            target[key] = {}
        target = target[_subscript(target, key, dotted, place)]
    target[_subscript(target, last, dotted, place)] = value


def _subscript(target: Any, key: str, dotted: str, place: str) -> str | int:
    if isinstance(target, dict):
        return key
    if not isinstance(target, list):
        raise ScenarioError("goes below a plain value", file=place, key=dotted)
    if not key.isdigit() or int(key) >= len(target):
        raise ScenarioError(f"{key} is not an index into a list of {len(target)}", file=place, key=dotted)
    return int(key)
