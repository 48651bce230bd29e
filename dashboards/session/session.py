"""What a browser session asks, keeps and was refused.

A question is a scenario over a named base. A link holds the base's name and the keys that were changed, as ``--set``
takes them. A link, an upload and a control go through the same validation, and none of them can name a file of the
server or code to import: only what ships with draftcast, what the base names itself, and what this session uploaded.
"""

import contextlib
import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self, TypeVar
from urllib.parse import urlencode

import streamlit as st

from draftcast.calibration.acceptance.references import references
from draftcast.errors import InputError, ScenarioError
from draftcast.scenarios.compare.capacity import QUICK_REQUESTS, page_effort, settling_requests
from draftcast.scenarios.run.choices import OFF, acceptance_of_method, with_measured, with_method, with_method_as_given
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.changes import Changes, changed_keys, command_line, value_text
from draftcast.scenarios.schema.load import DEFAULT_SCENARIO, load_scenario, to_mapping, with_values
from draftcast.scenarios.schema.references import outside_names

T = TypeVar("T")
FIRST_PAGE = "what-if"
MOST_RUNS = 6
_MARKS = re.compile(r"([\\`*_{}\[\]<>()#|~$:^=&!+-])")
SCENARIO, NUM_REQUESTS, UPLOADED = "scenario", "workload.num_requests", "upload:"


@dataclass(frozen=True)
class ScenarioPair:
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


base_scenario = functools.cache(load_scenario)  # a base, by its name, as it stands in its file


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


class View(StrEnum):
    """Settings of pages that are no part of a scenario, by their key in the link."""

    START_ENGINE = "view.start.engine"
    TRUST_OPERATOR = "view.trust.operator"
    COMPARE_REFERENCE = "view.compare.reference"
    CAPACITY_RATE = "view.capacity.rate"
    CAPACITY_HEADROOM = "view.capacity.headroom"
    CAPACITY_SPARE = "view.capacity.spare"
    CAPACITY_HARDWARE = "view.capacity.hardware"
    CAPACITY_TP = "view.capacity.tp"
    CAPACITY_METHODS = "view.capacity.methods"
    CAPACITY_PRICES = "view.capacity.prices"
    CAPACITY_CURVE = "view.capacity.curve"
    SWEEP_GRID = "view.sweep.grid"
    SWEEP_METRIC = "view.sweep.metric"
    SWEEP_RUN = "view.sweep.run"
    CUTOVER_OVER = "view.cutover.over"
    CUTOVER_METRIC = "view.cutover.metric"
    CUTOVER_ASKED = "view.cutover.asked"
    MAP_K_ASKED = "view.cutover.map-k"
    MAP_ACCEPTANCE_ASKED = "view.cutover.map-acceptance"


@dataclass
class Session:
    """Everything a browser session keeps. One per session, never shared."""

    question: ScenarioPair  # what all pages show
    page: str = FIRST_PAGE
    baseline: ScenarioPair | None = None  # what What-if shows differences to
    runs: list[ScenarioPair] = field(default_factory=list)  # what Compare shows besides the question
    measured: list[str] = field(default_factory=list)  # names of live run directories in the own folder, for Compare
    validation: str = ""  # an uploaded report of a validated sweep, a file in the own folder
    views: dict[str, str] = field(default_factory=dict)  # settings of pages, by `View`, that differ from their default
    warnings: list[str] = field(default_factory=list)  # what a link asked for and could not get
    turns: Counter[str] = field(default_factory=Counter)  # how often a control was drawn anew: see `control_key`
    drawn: set[str] = field(default_factory=set)  # controls of the page so far
    typed: str = ""  # the control that its reader changed since the page was last drawn
    before_off: Mapping[str, Any] = field(default_factory=dict)  # changes that bring back the speculation of k > 0
    refused: str = ""  # why the last change of a control was not made
    wanted_method: str = ""  # a method that was chosen while its acceptance is still to be given
    # Uploads are written here and nowhere else.
    folder: TemporaryDirectory[str] = field(default_factory=lambda: TemporaryDirectory(prefix="draftcast-session-"))
    written: str = ""  # the link this session wrote last
    touched: bool = False  # a control was used since then, so a link that still says the old thing is only late

    @property
    def path(self) -> Path:
        return Path(self.folder.name)

    @property
    def room(self) -> int:
        return MOST_RUNS - 1 - len(self.runs) - len(self.measured)

    def missing_of(self, *questions: ScenarioPair) -> list[str]:
        """Files that questions take from this session's folder and that are not there: links carry none."""
        names = [name for question in questions for name in outside_names(to_mapping(question.scenario)).values()]
        return [Path(name).name for name in names if Path(name).parent == self.path and not Path(name).exists()]

    def measured_folder(self, name: str) -> Path:
        return self.path / f"measured-{name}"

    def change(self, values: Callable[..., Mapping[str, Any]], *arguments: Any) -> None:
        """Change keys to ``values`` of ``arguments``; what the validation refuses changes nothing and is told."""
        self.touched, old = True, self.question
        try:
            changes = values(*arguments)
            scenario = with_values(old.scenario, changes)
            check_names(scenario, old.base, self.path)
        except InputError as error:
            self.refused = short(error)
        else:
            self.question = ScenarioPair.of(old.base, scenario, own_length=old.own_length or gives_length(changes))
            self.refused = ""

    def want_method(self, method: str) -> None:
        """Choose a drafting method; one whose acceptance is not known waits until it is given."""
        base, scenario = base_scenario(self.question.base), self.question.scenario
        self.wanted_method = ""
        acceptance = acceptance_of_method(base, scenario, method)
        if acceptance is None:
            self.wanted_method, self.refused, self.touched = method, "", True
        else:
            self.change(lambda: with_method(scenario, method) | acceptance)

    def speculation(self) -> Mapping[str, Any]:
        """Changes that give the question its speculation; where it has none, what it had or the base's own if any."""
        scenario, base = self.question.scenario, base_scenario(self.question.base)
        if scenario.speculative_config is None and (self.before_off or base.speculative_config is None):
            return self.before_off
        origin = base if scenario.speculative_config is None else scenario
        config = to_mapping(origin)["engine"]["speculative_config"]
        return {"engine.speculative_config": config} | (acceptance_of_method(base, scenario, origin.method) or {})

    def want_k(self, k: int) -> None:
        """Draft k tokens; 0 is off."""
        changes, scenario = self.speculation(), self.question.scenario
        if k == 0:
            self.before_off = changes
            self.change(with_method, scenario, OFF)
        else:
            back = changes if scenario.speculative_config is None else {}
            self.change(lambda: {**back, "engine.speculative_config.num_speculative_tokens": k})

    def give_acceptance(self, text: str) -> None:
        self._take_method(with_method_as_given, self.question.scenario, self.wanted_method, text)

    def take_reference(self, name: str) -> None:
        """A published measurement of acceptance with its method; any other name changes nothing."""
        if one := references().get(name):
            self._take_method(with_measured, self.question.scenario, one.method, {"reference": name})

    def _take_method(self, values: Callable[..., Mapping[str, Any]], *arguments: Any) -> None:
        self.change(values, *arguments)
        if not self.refused:
            self.wanted_method = ""

    def ask(self, question: ScenarioPair) -> None:
        self.question, self.refused, self.warnings, self.touched = question, "", [], True
        self.wanted_method, self.before_off = "", {}

    def go(self, page: str) -> None:
        self.page, self.touched, self.wanted_method = page, True, ""

    def control_key(self, name: str) -> str:
        """A widget's key: another one where its value followed another's change, and after it was not on the page.

        A browser sends all controls as it shows them, also where it only looks whether a search has ended: what it
        sends late, under the last key, must change nothing. The control that its reader changed keeps key and focus.
        """
        turn = self.turns[name]
        return f"control:{name}:{turn}" if turn else f"control:{name}"

    def end_page(self) -> None:
        """Controls that are no longer on the page get another key: a browser may still send them."""
        self.turns.update(self.turns.keys() - self.drawn)
        self.typed = ""

    def pin(self, baseline: ScenarioPair | None) -> None:
        """Show differences to ``baseline`` on What-if; None: to nothing."""
        self.baseline, self.touched = baseline, True

    def add_run(self, run: ScenarioPair) -> None:
        self.runs, self.touched = [*self.runs, run], True

    def remove_run(self, index: int) -> None:
        """Take the run off Compare that is at ``index`` of ``runs`` followed by ``measured``."""
        if index < len(self.runs):
            del self.runs[index]
        else:
            del self.measured[index - len(self.runs)]
        self.views.pop(View.COMPARE_REFERENCE, None)
        self.touched = True

    def view(self, key: View, default: str, read: Callable[[str], T]) -> T:
        """A setting of a page; what a link says wrongly (``read`` raises InputError) is told and left out."""
        try:
            return read(self.views.get(key, default))
        except InputError as error:
            if key not in self.views:
                raise
            self.warnings.append(f"{key}: {short(error)}; left out")
            del self.views[key]
            return read(default)

    def see(self, key: View, text: str, default: str = "", read: Callable[[str], Any] = str) -> None:
        """Change a setting of a page; what ``read`` refuses changes nothing and is told on the page."""
        self.touched = True
        try:
            read(text)
        except InputError as error:
            self.refused = short(error.at(key=error.key or key))
            return
        self.refused = ""
        if text == default:
            self.views.pop(key, None)
        else:
            self.views[key] = text


def one_of(allowed: Sequence[str]) -> Callable[[str], str]:
    return lambda text: _read(text, str, allowed.__contains__, f"choose from {', '.join(allowed)}")


def some_of(allowed: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """Reads names separated by commas, at least one."""
    read = one_of(allowed)
    return lambda text: tuple(dict.fromkeys(read(part.strip()) for part in text.split(",")))


def token(text: str) -> str:
    """Reads what `asked_for` writes into the link; empty: nothing was asked for."""
    is_token = re.compile("([0-9a-f]{12})?").fullmatch
    return _read(text, str, is_token, "must be the 12 hexadecimal digits that its button writes")


@dataclass(frozen=True)
class Number:
    """Reads a number from ``low`` to ``high``, both of the type that is read."""

    low: float
    high: float

    def __call__(self, text: str) -> Any:
        """Raises InputError: no such number."""
        kind = type(self.high)
        message = f"must be a {'whole ' if kind is int else ''}number from {self.low:g} to {self.high:g}"
        return _read(text, kind, lambda value: self.low <= value <= self.high, message)


def _read(text: str, kind: Callable[[str], T], allows: Callable[[T], object], message: str) -> T:
    with contextlib.suppress(ValueError):
        if allows(value := kind(text)):
            return value
    raise InputError(message, value=text)
