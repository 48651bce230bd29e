"""Typed look-ups in a parsed Hugging Face ``config.json``, and what of it is refused."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from draftcast.errors import ModelError

# No dimension of a model comes near it, and no product of dimensions leaves a float.
_LARGEST = 2**31
_FIELDS = yaml.safe_load(Path(__file__).with_name("fields.yaml").read_text("utf-8"))
OTHER_NAMES: dict[str, list[str]] = _FIELDS["names"]
_KNOWN = {*OTHER_NAMES, *chain(*OTHER_NAMES.values()), *_FIELDS["read"], *_FIELDS["silent"]}
# A field so called tells a size or a pattern of layers.
_SIZE = re.compile(r"(^|_)(dim|size|rank|heads?|layers?|experts?|window|pattern|types|freq|interval|chunk)(_|$)")


@dataclass(frozen=True)
class Config:
    """Typed look-ups in a parsed config, by any of a field's names; every failure names the file and the key."""

    values: Mapping[str, Any]
    name: str  # of the file

    def refusal(self, key: str, allowed: str) -> ModelError:
        """The value of a key is not one of those allowed; a long one is cut."""
        value = self.values.get(key)
        text = str(value)
        return ModelError(allowed, file=self.name, key=key, value=value if len(text) < 60 else f"{text[:50]} ...")

    def first(self, *keys: str) -> str:
        """The first of ``keys`` and their other names that has a value; ``keys[0]`` where none has."""
        names = (name for key in keys for name in (key, *OTHER_NAMES.get(key, ())))
        return next((name for name in names if self.values.get(name) is not None), keys[0])

    def integer(self, key: str, default: int | None = None, *, minimum: int = 1) -> int:
        """Integer from ``minimum`` to 2**31; ``default`` where the key is absent or null, an error without one.

        A list with an entry for each layer, all alike, is that entry.
        """
        key = self.first(key)
        value = self.values.get(key)
        if isinstance(value, list) and len(value) == self.values.get("num_hidden_layers") != 0:
            value = value[0] if all(each == value[0] for each in value) else value
        if value is None:
            if default is None:
                raise ModelError("missing; an integer is needed", file=self.name, key=key)
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= _LARGEST:
            bound = f"<= {_LARGEST}" if isinstance(value, int) and value > _LARGEST else f">= {minimum}"
            raise self.refusal(key, f"an integer {bound} is needed")
        return value

    def count(self, *keys: str) -> int:
        """Integer >= 0 under the first of ``keys`` that has a value; 0 where none has."""
        return self.integer(self.first(*keys), 0, minimum=0)

    def flag(self, key: str, default: bool) -> bool:
        key = self.first(key)
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refusal(key, "true or false is needed")
        return value

    def strings(self, key: str, allowed: tuple[str, ...] = ()) -> list[str]:
        """List of strings, of ``allowed`` ones where given; empty when the key is absent or null."""
        value = self.values.get(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.refusal(key, "a list of strings is needed")
        for item in value:
            if allowed and item not in allowed:
                raise ModelError(f"not known; allowed: {', '.join(allowed)}", file=self.name, key=key, value=item)
        return value

    def section(self, key: str) -> Config:
        """The object under ``key``. Raises ModelError: it is none."""
        value = self.values.get(key)
        if not isinstance(value, Mapping):
            raise self.refusal(key, "an object is needed")
        return Config(value, f"{self.name}: {key}")

    def per_layer(self, key: str, entries: list[Any], layers: int) -> None:
        """Refuse a list that has not one entry for each of ``layers``."""
        if len(entries) != layers:
            allowed = f"{layers} entries are needed (num_hidden_layers), not {len(entries)}"
            raise ModelError(allowed, file=self.name, key=key)

    def refuse_unused(self, keys: Iterable[str]) -> None:
        """Refuse sizes of layers that no other field says the model has."""
        for key in keys:
            if self.values.get(key):
                raise self.refusal(key, "what it says of the layers is not known; only absent, null or 0 is read")


def refuse_other_layers(config: Config) -> None:
    """Refuse fields that describe what the cost model does not cover, instead of ignoring them."""
    kinds = config.values.get("attn_type_list", [])
    if not isinstance(kinds, list) or any(kind != 1 for kind in kinds):
        raise config.refusal("attn_type_list", "linear attention is not known; only a list of 1 (full) is read")
    said = [key for key, value in config.values.items() if value is not False and value not in (0, [], {}, "")]
    for kind, pattern in _FIELDS["other_layers"].items():
        for key in said:
            if key not in _KNOWN and re.fullmatch(pattern, key):
                raise config.refusal(key, f"{kind} not known; only absent, null, false or 0 is read")
    layers = config.values.get("num_hidden_layers")
    for key in said:
        value = config.values[key]
        # Shorter lists are of tokens.
        an_entry_a_layer = isinstance(value, list) and len(value) == layers and len(value) > 4
        is_size = _SIZE.search(key) and not isinstance(value, (bool, float, Mapping))
        if key not in _KNOWN and (is_size or an_entry_a_layer):
            raise config.refusal(key, "what it says of the layers is not known; only absent, null or 0 is read")
