"""Policies on a command line: ``off,goodput(weight=0.3),half.py:Half``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from draftcast.calibration.yaml_text import parse_yaml
from draftcast.errors import InputError

PLACE = "--policies"
_OPEN, _CLOSE = "([{", ")]}"


@dataclass(frozen=True)
class AskedPolicy:
    """A policy by registered name or import path, with its parameters; ``batch_schedule`` takes ``schedule``."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """As it is written on the command line."""
        given = ", ".join(f"{key}={value}" for key, value in self.parameters.items())
        return f"{self.name}({given})" if given else self.name


def parse_policies(text: str) -> list[AskedPolicy]:
    """Names separated by commas, each followed by its parameters in brackets if any; values are read as YAML.

    Raises:
        InputError: an empty name, brackets that do not match, or a parameter without a value.
    """
    return [_policy(part) for part in _split(text)]


def _policy(text: str) -> AskedPolicy:
    name, bracket, rest = text.partition("(")
    if not name.strip() or (bracket and not rest.endswith(")")):
        raise InputError("must be NAME or NAME(KEY=VALUE, ...), separated by commas", file=PLACE, value=text)
    parameters: dict[str, Any] = {}
    for part in _split(rest[:-1]) if rest[:-1].strip() else ():
        key, equals, value = part.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise InputError("parameters must look like KEY=VALUE", file=PLACE, value=text)
        if key.strip() in parameters:
            raise InputError(f"gives {key.strip()} twice", file=PLACE, value=text)
        parameters[key.strip()] = parse_yaml(value, f"{PLACE} {name.strip()} {key.strip()}")
    return AskedPolicy(name.strip(), parameters)


def _split(text: str) -> Iterator[str]:
    """Parts between the commas that stand in no brackets."""
    start = 0
    closing: list[str] = []
    for at, character in enumerate(text):
        if character in _OPEN:
            closing.append(_CLOSE[_OPEN.index(character)])
        elif character in _CLOSE:
            if not closing or closing.pop() != character:
                raise InputError("brackets do not match", file=PLACE, value=text)
        elif character == "," and not closing:
            yield text[start:at].strip()
            start = at + 1
    if closing:
        raise InputError("brackets do not match", file=PLACE, value=text)
    yield text[start:].strip()
