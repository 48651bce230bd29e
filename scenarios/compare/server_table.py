"""The tables of ``servers.yaml``: a scenario's engine in the words of SGLang and TensorRT-LLM, in both directions.

Knows names and values, not whether a server accepts them together.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, TypeAdapter

from draftcast.frozen import Frozen
from draftcast.yaml_text import yaml_beside

Words = dict[str, Any]  # a server's names and values: flags without their dashes, or keys of a YAML file with dots
Units = Mapping[str, float]
COMMANDS: dict[str, Any] = yaml_beside(__file__, "commands.yaml")
_TERM = re.compile(r"(k|width|nodes|lookup|narrowest)(\+1)?")


class ServerField(Frozen):
    """The server's word for one field of the scenario; see ``servers.yaml``."""

    name: str
    values: dict[str, Any] | None = None
    resolved: bool = False
    default: int | None = None
    times: Literal["block_size", "per_rows"] | None = None
    note: str = ""

    def write(self, value: Any, units: Units) -> Any:
        """The server's value, None where it does so by default. Raises LookupError where it has no counterpart."""
        if self.values is not None:
            return self.values[value if isinstance(value, str) else json.dumps(value)]
        return max(1, int(value * units[self.times])) if self.times else value

    def read(self, value: Any, units: Units) -> Any:
        """The scenario's value. Raises LookupError where the server's has no counterpart."""
        if self.values is not None:
            keys = [name for name, word in self.values.items() if word == value]
            return {"true": True, "false": False}.get(keys[0], keys[0])  # an IndexError is a LookupError
        return round(value / units[self.times]) if self.times else value


class ServerTable(Frozen):
    """One server's table; see ``servers.yaml``."""

    version: str
    source: str
    engine: dict[str, ServerField]
    speculation: dict[str, ServerField]
    methods: dict[str, Words]
    method_notes: dict[str, str] = Field(default_factory=dict)
    ngram_defaults: Words = Field(default_factory=dict)
    missing: dict[str, str] = Field(default_factory=dict)
    scheduled: list[str]
    alone: dict[str, list[str]] = Field(default_factory=dict)
    also: dict[str, str] = Field(default_factory=dict)
    switches: dict[str, Words] = Field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        """Every word that is read."""
        rows = {row.name for row in (*self.engine.values(), *self.speculation.values())}
        words = {word for words in self.methods.values() for word in words}
        switches = {switch.partition("=")[0] for switch in self.switches}
        return rows | words | {*switches, *self.also, *self.also.values()}

    def method_words(self, method: str, terms: Mapping[str, int]) -> Words:
        """What starts a method; ``terms``: k, width, nodes, lookup and narrowest."""
        words = dict(self.methods[method])
        for name, value in words.items():
            if term := _TERM.fullmatch(str(value)):
                words[name] = terms[term[1]] + bool(term[2])
        return words

    def method_of(self, words: Words) -> tuple[str, dict[str, int]] | None:
        """The method that words start, and its terms; None: none of the table."""
        # A tree's words hold those of a chain: the longest first.
        for method, template in sorted(self.methods.items(), key=lambda item: -len(item[1])):
            terms = dict[str, int]()
            for name, value in template.items():
                term = _TERM.fullmatch(str(value))
                if term is not None and isinstance(words.get(name), int):
                    number = words[name] - bool(term[2])
                    if terms.setdefault(term[1], number) != number:
                        break
                elif words.get(name) != value:
                    break
            else:
                if terms.get("width") != 1:  # one branch is a chain
                    return method, terms
        return None

    def needed(self, words: Words) -> list[str]:
        """What the simplest method that shares its first word with ``words`` needs and they do not say."""
        alike = (words_of for words_of in self.methods.values() if next(iter(words_of.items())) in words.items())
        template = min(alike, key=len, default=Words())
        fixed = {name: value for name, value in template.items() if not _TERM.fullmatch(str(value))}
        differ = [name for name, value in fixed.items() if words.get(name) != value]
        needed = [name for name in template if name not in words] or differ
        return [f"{name} {json.dumps(fixed[name])}" if name in fixed else name for name in needed]


TABLES = TypeAdapter(dict[str, ServerTable]).validate_python(yaml_beside(__file__, "servers.yaml"))
"""Every server's by its name: sglang, trtllm."""
