"""The grid of a sweep: axes from ``rate=1..20:8``, and each of its points as a validated scenario.

An axis is a short name (``scenarios/schema/changes``) or any dotted key that ``--set`` takes. Runs nothing.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel

from draftcast.errors import InputError, ScenarioError
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.changes import SHORT, SPECIAL, changed
from draftcast.scenarios.schema.numbers import parse_range
from draftcast.yaml_text import parse_yaml

PLACE = "--grid"
MAX_CELLS = 100_000
_WHOLE = ("concurrency", "k")


@dataclass(frozen=True)
class SweepAxis:
    name: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class GridPoint:
    """One point; ``scenario`` is None where ``error`` says in one line why the point cannot be asked."""

    values: Mapping[str, Any]
    scenario: Scenario | None
    error: str = ""


def parse_axis(text: str, scenario: Scenario) -> SweepAxis:
    """``NAME=VALUES`` as an axis.

    VALUES are YAML scalars and ranges separated by commas, or one YAML list in brackets. ``1..20:8`` is 8 evenly spaced
    numbers, ``1..64:7log`` 7 evenly in the logarithm, ``0..5`` every whole number; a key that takes whole numbers gets
    them rounded.

    Raises InputError: no such form, a range that does not rise, nothing given.
    """
    name, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not name or not values:
        raise InputError("must look like rate=1..20:8 or k=0,1,3,5", file=PLACE, value=text)
    if values.count(",") >= MAX_CELLS:
        raise InputError(f"has more than {MAX_CELLS} values", file=PLACE, key=name)
    if values.startswith("["):
        items = parse_yaml(values, f"{PLACE} {name}", ScenarioError)
        if not isinstance(items, list):
            raise InputError("must be one list", file=PLACE, key=name, value=values)
    else:
        whole = _takes_whole_numbers(scenario, name)
        items = [value for part in values.split(",") for value in _part(part.strip(), name, whole)]
    return axis_of(name, items, scenario)


def axis_of(name: str, values: Any, scenario: Scenario) -> SweepAxis:
    """Of a list or an array, each value once, or of a text as of `parse_axis`. Raises InputError: no list, or empty."""
    if isinstance(values, str):
        return parse_axis(f"{name}={values}", scenario)
    if not isinstance(values, Iterable):
        raise InputError("must be a list of values", file=PLACE, key=name, value=values)
    items = [value.tolist() if hasattr(value, "tolist") else value for value in values]
    if not items:
        raise InputError("needs at least one value", file=PLACE, key=name)
    unique = {(type(value), repr(value)): value for value in items}
    return SweepAxis(name, tuple(unique.values()))


def grid_points(scenario: Scenario, axes: Sequence[SweepAxis]) -> list[GridPoint]:
    """All combinations, the last axis fastest. Raises InputError: an axis twice, too many points, all impossible."""
    names = [axis.name for axis in axes]
    keys = [SHORT.get(name, name) for name in names]
    for key, name in zip(keys, names, strict=True):
        if keys.count(key) > 1:
            raise InputError("is given twice", file=PLACE, key=name)
    size = math.prod(len(axis.values) for axis in axes)
    if size > MAX_CELLS:
        raise InputError(f"has more than {MAX_CELLS} points", file=PLACE, value=size)
    points = []
    for values in itertools.product(*(axis.values for axis in axes)):
        chosen = dict(zip(names, values, strict=True))
        try:
            points.append(GridPoint(chosen, changed(scenario, chosen)))
        except InputError as error:
            points.append(GridPoint(chosen, None, str(error)))
    if all(point.scenario is None for point in points):
        raise InputError(f"no point of the grid can be asked; the first: {points[0].error}", file=PLACE)
    return points


def _part(text: str, name: str, whole: bool) -> list[Any]:
    points = parse_range(text, MAX_CELLS, whole=True, file=PLACE, key=name)
    if points is None:
        return [parse_yaml(text, f"{PLACE} {name}", ScenarioError)]
    return [round(point) if whole else point for point in points]


def _takes_whole_numbers(scenario: Scenario, name: str) -> bool:
    """Whether the key takes whole numbers and no others, as its place in this scenario is declared."""
    if name in SPECIAL:
        return name in _WHOLE
    *outer, last = SHORT.get(name, name).split(".")
    section: Any = scenario
    for key in outer:
        if isinstance(section, tuple) and key.isdigit() and int(key) < len(section):
            section = section[int(key)]
        else:
            section = getattr(section, key, None)
    fields = type(section).model_fields if isinstance(section, BaseModel) else {}
    return last in fields and float not in _parts_of(fields[last].annotation)


def _parts_of(declared: Any) -> list[Any]:
    inner = get_args(declared)
    return [part for argument in inner for part in _parts_of(argument)] if inner else [declared]
