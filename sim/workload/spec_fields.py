"""Checks shared by the frozen specs of arrivals, lengths and workloads, and making one by its name."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping
from typing import Any, TypeVar

from draftcast.errors import ScenarioError

T = TypeVar("T")


def number(
    key: str, value: object, *, above: float | None = None, least: float | None = None, inf: bool = False
) -> None:
    """Raise ScenarioError unless ``value`` is a number > above, or >= least; infinity only where ``inf``."""
    bound = f" > {above:g}" if above is not None else f" >= {least:g}" if least is not None else ""
    ok = isinstance(value, int | float) and not isinstance(value, bool)
    if ok and isinstance(value, int | float):
        # An integer may be larger than any float; NaN is in no range.
        finite = abs(value) <= sys.float_info.max
        ok = (
            (finite or (inf and value == math.inf))
            and (above is None or value > above)
            and (least is None or value >= least)
        )
    if not ok:
        raise ScenarioError(f"must be a number{bound}{' or inf' if inf else ''}", key=key, value=value)


def integer(key: str, value: object, least: int) -> None:
    """Raise ScenarioError unless ``value`` is an integer >= least that fits 32 bits."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**31:
        raise ScenarioError(f"must be an integer >= {least}", key=key, value=value)


def one_of(key: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise ScenarioError listing ``choices`` unless ``value`` is among them."""
    if value not in choices:
        raise ScenarioError(f"choose one of {', '.join(choices)}", key=key, value=value)


def make(what: str, registry: Mapping[str, type[T]], kind: str, fields: Mapping[str, Any]) -> T:
    """The spec registered as ``kind`` with ``fields``. Raises ScenarioError listing the choices or the fields."""
    if kind not in registry:
        raise ScenarioError(f"unknown {what}; choose one of {', '.join(registry)}", key="kind", value=kind)
    spec = registry[kind]
    parts = {f.name: f for f in dataclasses.fields(spec) if f.init}  # type: ignore[arg-type]
    for name in fields:
        if name not in parts:
            raise ScenarioError(f"unknown field of {what} {kind}; allowed: {', '.join(parts)}", key=name)
    for name, part in parts.items():
        if name not in fields and part.default is dataclasses.MISSING and part.default_factory is dataclasses.MISSING:
            raise ScenarioError(f"missing field of {what} {kind}", key=name)
    return spec(**fields)
