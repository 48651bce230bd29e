"""What a scenario changes in another one, as few keys: for links, commands and comparisons.

The changes are what ``load_scenario(base, overrides=assignments(...))`` makes of the base: a scenario with the same
hash. Keys are dotted as ``--set`` takes them.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from draftcast.calibration.yaml_text import parse_yaml
from draftcast.errors import InputError
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import missing_acceptance, to_mapping

Changes = dict[str, Any]


def changed_keys(base: Scenario, scenario: Scenario) -> Changes:
    """Dotted key -> value of ``scenario`` where it differs from ``base``.

    A section whose keys differ (another arrival process, another acceptance model) is given as a whole. The acceptance
    of another method is given also where it is the same: it is that method's own.
    """
    own, data = to_mapping(base), to_mapping(scenario)
    changes = dict(_differences(own, data, ""))
    return changes | {place: _short(value_at(data, place)) for place in missing_acceptance(own, data, changes)}


def _differences(base: Any, asked: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in asked.items():
        own = base.get(key)
        inside = isinstance(own, dict) and isinstance(value, dict) and own.keys() <= value.keys()
        if inside and _kind(own) == _kind(value):
            yield from _differences(own, value, f"{prefix}{key}.")
        elif key not in base or own != value or type(own) is not type(value):
            yield f"{prefix}{key}", _short(value)


def _kind(section: Any) -> tuple[Any, ...]:
    """What tells one alternative of a section from another."""
    return tuple(section.get(key) for key in ("process", "model", "distribution"))


def _short(value: Any) -> Any:
    """A section without the keys that are absent anyway; a policy's parameters are its own business."""
    if isinstance(value, dict):
        return {key: item if key == "parameters" else _short(item) for key, item in value.items() if item is not None}
    return [_short(item) for item in value] if isinstance(value, list) else value


def differing(scenarios: Sequence[Scenario]) -> dict[str, list[Any]]:
    """Dotted keys in which any scenario differs from the first -> the value of each, None where it has no such key.

    A section that one of them replaces as a whole (another arrival process, no speculation) stands as a whole for all.
    """
    first = scenarios[0]
    keys = dict.fromkeys(key for other in scenarios[1:] for key in changed_keys(first, other))
    whole = [key for key in keys if not any(key.startswith(f"{other}.") for other in keys)]
    return {key: [_short(value_at(to_mapping(each), key)) for each in scenarios] for key in whole}


def value_at(section: Any, key: str) -> Any:
    """The value under a dotted key of plain data, list items by index; None where there is none."""
    for part in key.split("."):
        if isinstance(section, list):
            section = section[int(part)] if part.isdigit() and int(part) < len(section) else None
        else:
            section = section.get(part) if isinstance(section, dict) else None
    return section


def value_text(value: Any) -> str:
    """``value`` as the text after ``key=``: plain where YAML reads it back as it is, else JSON."""
    if isinstance(value, str) and value == value.strip():
        try:
            if parse_yaml(value, "value") == value:
                return value
        except InputError:
            pass
    if isinstance(value, float) and value.is_integer():
        return f"{value:.0f}"
    return json.dumps(value, ensure_ascii=False)


def assignments(changes: Mapping[str, Any]) -> list[str]:
    """``key=value`` of every change, as ``--set`` and ``load_scenario(overrides=...)`` take them."""
    return [f"{key}={value_text(value)}" for key, value in changes.items()]


def command_line(command: str, base: str | Path, changes: Mapping[str, Any], *options: str) -> str:
    """``draftcast COMMAND BASE --set ... OPTIONS``, quoted for a shell."""
    sets = [word for assignment in assignments(changes) for word in ("--set", assignment)]
    return shlex.join(["draftcast", command, str(base), *sets, *options])
