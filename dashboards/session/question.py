"""A question: a scenario over a named base, and how a link, a command and a page say it.

A link holds the base's name and the keys that were changed, as ``--set`` takes them. A link, an upload and a control go
through the same validation, and none of them can name a file of the server or code to import: only what ships with
draftcast, what the base names itself, and what this session uploaded.
"""

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlencode

import streamlit as st

from draftcast.errors import ScenarioError
from draftcast.scenarios.compare.capacity import QUICK_REQUESTS, page_effort, settling_requests
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.changes import Changes, changed_keys, command_line, value_text
from draftcast.scenarios.schema.load import DEFAULT_SCENARIO, load_scenario, to_mapping, with_values
from draftcast.scenarios.schema.references import outside_names

_MARKS = re.compile(r"([\\`*_{}\[\]<>()#|~$:^=&!+-])")
SCENARIO, NUM_REQUESTS, UPLOADED = "scenario", "workload.num_requests", "upload:"


@dataclass(frozen=True)
class Question:
    """A scenario and the named one that it is compared with."""

    base: str
    scenario: Scenario
    own_length: bool = True  # a number of requests was given; else it follows the load and the link does not hold it

    @classmethod
    def of(cls, base: str, scenario: Scenario, *, own_length: bool) -> Self:
        """The question, with as many requests as its load needs where no number was given.

        A base with fewer requests than a page begins with, and one without a number of them, keeps its own.
        """
        own_length = own_length or not _follows_load(base)
        if not own_length:
            scenario = with_values(scenario, {NUM_REQUESTS: settling_requests(scenario)})
        return cls(base, scenario, own_length)

    @classmethod
    def opening(cls, base: str) -> Self:
        """What a page asks first of a base."""
        return cls.of(base, opened(base), own_length=False)

    @property
    def link_changes(self) -> Changes:
        """What differs from how a page opens the base; a number of requests that was given is always included."""
        changes = dict(changed_keys(opened(self.base), self.scenario))
        if not self.own_length:
            changes.pop(NUM_REQUESTS, None)
        elif _follows_load(self.base):
            changes[NUM_REQUESTS] = self.scenario.workload.num_requests
        return changes

    @property
    def link(self) -> dict[str, str]:
        """Query parameters; an uploaded file by its own name."""
        base = {SCENARIO: self.base} if self.base != DEFAULT_SCENARIO else {}
        return base | {key: short(value_text(value), UPLOADED) for key, value in self.link_changes.items()}

    @property
    def href(self) -> str:
        """A link to What-if, relative to the server."""
        return f"?{urlencode(self.link)}"

    def command(self, command: str, *options: str) -> str:
        """The ``draftcast`` command that asks the same; an uploaded file by its own name."""
        return short(command_line(command, self.base, changed_keys(base_scenario(self.base), self.scenario), *options))


@functools.cache
def base_scenario(base: str) -> Scenario:
    """A base as it stands in its file."""
    return load_scenario(base)


@functools.cache
def opened(base: str) -> Scenario:
    """How a page opens a base: with as many requests and replications as give an answer at once."""
    scenario = base_scenario(base)
    return with_values(scenario, page_effort(scenario))


def gives_length(keys: Iterable[str]) -> bool:
    """Whether a change of these keys gives a number of requests."""
    return not {NUM_REQUESTS, "workload"}.isdisjoint(keys)


def check_names(scenario: Scenario, base: str, folder: Path) -> None:
    """Raises ScenarioError: a file that neither the base names nor this session uploaded, or code but the base's."""
    base_names = outside_names(to_mapping(base_scenario(base)))
    for key, name in outside_names(to_mapping(scenario)).items():
        is_uploaded = Path(name).is_absolute() and Path(name).resolve().parent == folder.resolve()
        is_code = key == "policy.name"  # never an upload's: it would run
        if base_names.get(key) != name and (is_code or not (is_uploaded or name in base_names.values())):
            text = "the dashboard takes what ships with draftcast and what you upload, no other file or code"
            raise ScenarioError(text, key=key, value=name)


def _follows_load(base: str) -> bool:
    """Whether a page asks for as many requests of a base as the load needs, until its reader gives a number."""
    requests = base_scenario(base).workload.num_requests
    return requests is not None and requests >= QUICK_REQUESTS


def short(text: object, folder: str = "") -> str:
    """``text`` with ``folder`` in place of the path of the session's own folder, which is nobody's business."""
    session = st.session_state.get("session")
    return str(text).replace(f"{session.path}/", folder) if session is not None else str(text)


def literal(text: object) -> str:
    """``short(text)`` as Markdown with every mark escaped: no link, picture, formula, colour or heading in it."""
    return _MARKS.sub(r"\\\1", " ".join(short(text).split()))
