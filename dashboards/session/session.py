"""What a browser session asks, and how a link says it.

A question is a scenario over a named base. The link holds the base's name and the keys that were changed, as ``--set``
takes them; nothing else is needed to see the same page again. A link, an upload and a control go through the same
validation, and none of them can name a file of the server or code to import: only what ships with draftcast, what the
base names itself, and what this session uploaded.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import streamlit as st

from draftcast.dashboards.session.collector import set_aside
from draftcast.errors import InputError, ScenarioError
from draftcast.scenarios.compare.page_effort import QUICK_REQUESTS, page_effort, settling_requests
from draftcast.scenarios.run.choices import acceptance_of_method, with_method, with_method_as_given
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.changes import Changes, assignments, changed_keys, command_line, value_text
from draftcast.scenarios.schema.load import DEFAULT_SCENARIO, embedded_scenarios, load_scenario, to_mapping, with_values
from draftcast.scenarios.schema.references import outside_names

PAGE, SCENARIO, BASELINE, RUN, MEASURED = "page", "scenario", "baseline", "run", "measured"
PAGES = {
    "what-if": "What-if",
    "cutover": "Cutover",
    "capacity": "Capacity",
    "sweep": "Sweep",
    "compare": "Compare",
    "trust": "Trust",
}
FIRST_PAGE = "what-if"
# Settings of pages that are no part of a scenario.
TRUST_OPERATOR = "view.trust.operator"
CUTOVER_OVER, CUTOVER_METRIC, CUTOVER_ASKED = "view.cutover.over", "view.cutover.metric", "view.cutover.asked"
MAP_K_ASKED, MAP_ACCEPTANCE_ASKED = "view.cutover.map-k", "view.cutover.map-acceptance"
PUBLISHED_ASKED = "view.trust.published"
REFERENCE = "view.compare.reference"
CAPACITY_RATE, CAPACITY_HEADROOM, CAPACITY_SPARE = "view.capacity.rate", "view.capacity.headroom", "view.capacity.spare"
CAPACITY_HARDWARE, CAPACITY_TP, CAPACITY_METHODS = "view.capacity.hardware", "view.capacity.tp", "view.capacity.methods"
CAPACITY_PRICES, CAPACITY_CURVE = "view.capacity.prices", "view.capacity.curve"
SWEEP_GRID, SWEEP_METRIC, SWEEP_RUN = "view.sweep.grid", "view.sweep.metric", "view.sweep.run"
VIEWS = (
    *(TRUST_OPERATOR, PUBLISHED_ASKED, REFERENCE),
    *(CAPACITY_RATE, CAPACITY_HEADROOM, CAPACITY_SPARE, CAPACITY_HARDWARE, CAPACITY_TP, CAPACITY_METHODS),
    *(CAPACITY_PRICES, CAPACITY_CURVE, SWEEP_GRID, SWEEP_METRIC, SWEEP_RUN),
    *(CUTOVER_OVER, CUTOVER_METRIC, CUTOVER_ASKED, MAP_K_ASKED, MAP_ACCEPTANCE_ASKED),
)
UPLOADED = "upload:"
_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,80}")
NUM_REQUESTS = "workload.num_requests"
MOST_RUNS = 6


@dataclass(frozen=True)
class Question:
    """A scenario and the named one it is told apart from.

    Attributes:
        own_length: the number of requests was asked for; otherwise it follows the load, and the link does not hold it.
    """

    base: str
    scenario: Scenario
    own_length: bool = True

    @classmethod
    def of(cls, base: str, scenario: Scenario, *, own_length: bool) -> Question:
        """The question, with as many requests as its load needs where none were asked for.

        A base with fewer requests than a page begins with, and one without a number of them, keeps its own.
        """
        own_length = own_length or not _follows_load(base)
        if not own_length:
            scenario = with_values(scenario, {NUM_REQUESTS: settling_requests(scenario)})
        return cls(base, scenario, own_length)

    @classmethod
    def opening(cls, base: str) -> Question:
        """What a page asks first of a base."""
        return cls.of(base, opened(base), own_length=False)

    @property
    def link_changes(self) -> Changes:
        """What differs from how the page opens the base; a number of requests that was asked for is always told."""
        changes = dict(changed_keys(opened(self.base), self.scenario))
        if not self.own_length:
            changes.pop(NUM_REQUESTS, None)
        elif _follows_load(self.base):
            changes[NUM_REQUESTS] = self.scenario.workload.num_requests
        return changes

    def command(self, command: str, *options: str) -> str:
        """The ``draftcast`` command that asks the same; uploaded files by their own names."""
        changes = _places(changed_keys(base_scenario(self.base), self.scenario), "")
        return command_line(command, self.base, changes, *options)


@dataclass
class Session:
    """Everything a browser session keeps. One per session, never shared.

    Attributes:
        question: what all pages show.
        page: the page on the screen.
        baseline: what What-if shows differences to, if pinned.
        runs: what Compare shows besides the question.
        measured: uploaded measured runs that Compare shows, by name; each is a live run directory in the own folder.
        validation: the report of a validated sweep that was uploaded, a file in the own folder; empty where none was.
        views: settings of pages that are no part of a scenario, by their key in the link.
        warnings: what a link asked for and could not get, a line each.
        refused: why the last change of a control was not made.
        wanted_method: a method that was chosen while its acceptance is still to be given; empty where none waits.
        folder: the session's own folder; uploads are written here and nowhere else.
        written: the link this session wrote last.
        touched: a control was used since then, so a link that still says the old thing is only late.
    """

    question: Question
    page: str = FIRST_PAGE
    baseline: Question | None = None
    runs: list[Question] = field(default_factory=list)
    measured: list[str] = field(default_factory=list)
    validation: str = ""
    views: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    refused: str = ""
    wanted_method: str = ""
    folder: tempfile.TemporaryDirectory[str] = field(
        default_factory=lambda: tempfile.TemporaryDirectory(prefix="draftcast-session-")
    )
    written: str = ""
    touched: bool = False

    @property
    def path(self) -> Path:
        """The session's own folder."""
        return Path(self.folder.name)

    @property
    def room(self) -> int:
        """How many more runs Compare can take."""
        return MOST_RUNS - 1 - len(self.runs) - len(self.measured)

    def want_method(self, method: str) -> None:
        """Choose a drafting method; one whose acceptance is not known waits until it is given."""
        base, scenario = base_scenario(self.question.base), self.question.scenario
        self.wanted_method = ""
        known = acceptance_of_method(base, scenario, method)
        if known is None:
            self.wanted_method, self.refused, self.touched = method, "", True
        else:
            self.change(lambda: with_method(scenario, method) | known)

    def give_acceptance(self, text: str) -> None:
        """Change to the method that waits, with its acceptance as typed."""
        self.change(lambda: with_method_as_given(self.question.scenario, self.wanted_method, text))
        if not self.refused:
            self.wanted_method = ""

    def measured_folder(self, name: str) -> Path:
        """Where an uploaded measured run lies, if it was uploaded in this session."""
        return self.path / f"measured-{name}"

    def change(self, values: Callable[[], Mapping[str, Any]]) -> None:
        """Change keys of the question; what the validation refuses changes nothing and is told on the page."""
        self.touched, old = True, self.question
        try:
            changes = values()
            scenario = with_values(old.scenario, changes)
            check_names(scenario, old.base, self.path)
        except InputError as error:
            self.refused = short_error(error)
        else:
            self.question = Question.of(old.base, scenario, own_length=old.own_length or _has_length(changes))
            self.refused = ""

    def ask(self, question: Question) -> None:
        """Another question altogether."""
        self.question, self.refused, self.warnings, self.touched = question, "", [], True
        self.wanted_method = ""

    def go(self, page: str) -> None:
        """Show another page."""
        self.page, self.touched, self.wanted_method = page, True, ""

    def view(self, key: str, default: str, allowed: Sequence[str] | None = None) -> str:
        """A setting of a page; what a link says wrongly is told and left out."""
        value = self.views.get(key, default)
        if allowed is not None and value not in allowed:
            self.warnings.append(f"{key} = {value!r}: choose from {', '.join(allowed)}; left out")
            del self.views[key]
            return default
        return value

    def see(self, key: str, value: str, default: str) -> None:
        """Change a setting of a page; the link holds it only while it differs from the default."""
        self.touched = True
        if value == default:
            self.views.pop(key, None)
        else:
            self.views[key] = value


@functools.cache
def base_scenario(base: str) -> Scenario:
    """A base as it stands in its file; read once."""
    return load_scenario(base)


def _follows_load(base: str) -> bool:
    """Whether a page asks as many requests of a base as the load needs, until its reader says otherwise."""
    requests = base_scenario(base).workload.num_requests
    return requests is not None and requests >= QUICK_REQUESTS


def _has_length(changes: Mapping[str, Any]) -> bool:
    return not changes.keys().isdisjoint((NUM_REQUESTS, "workload"))


@functools.cache
def opened(base: str) -> Scenario:
    """How a page opens a base: with as many requests and replications as answer at once.

    The number of requests then follows the load, see `Question.of`.
    """
    scenario = base_scenario(base)
    return with_values(scenario, page_effort(scenario))


def bases() -> list[str]:
    """Names of the scenarios to choose from: the embedded ones, then files the dashboard was started with."""
    return [*embedded_scenarios(), *st.session_state.get("files", ())]


def session() -> Session:
    """This browser session; read from the link when it is new, or when the reader went back or forward."""
    query = {key: st.query_params.get_all(key) for key in st.query_params}
    known: Session | None = st.session_state.get("session")
    if known is None:
        known = st.session_state["session"] = Session(Question.opening(DEFAULT_SCENARIO))
        read_link(known, query)
        # Sessions that ended go now, and their folders with them.
        set_aside()
    elif not known.touched and _text(query) != known.written:
        read_link(known, query)
    return known


def write_link(known: Session) -> None:
    """Put what the page shows into the address bar."""
    link = link_of(known)
    known.written, known.touched = _text(link), False
    current = {key: st.query_params.get_all(key) for key in st.query_params}
    if current != link:
        st.query_params.from_dict(link)


def link_of(known: Session) -> dict[str, list[str]]:
    """Query parameters that reproduce the session's pages."""
    link = {PAGE: [known.page]} if known.page != FIRST_PAGE else {}
    link |= {key: [value] for key, value in link_of_question(known.question).items()}
    if known.baseline is not None:
        link[BASELINE] = [json.dumps(link_of_question(known.baseline), ensure_ascii=False)]
    if known.runs:
        link[RUN] = [json.dumps(link_of_question(run), ensure_ascii=False) for run in known.runs]
    if known.measured:
        link[MEASURED] = list(known.measured)
    return link | {key: [value] for key, value in known.views.items()}


def read_link(known: Session, query: Mapping[str, Sequence[str]]) -> None:
    """Take over what a link asks; what it asks wrongly is left out and named in ``warnings``."""
    known.warnings, known.refused, known.wanted_method, known.baseline = [], "", "", None
    known.runs, known.measured, known.views = [], [], {}
    plain = {key: values[-1] for key, values in query.items() if values}
    known.page = _read_page(known, plain.pop(PAGE, FIRST_PAGE))
    known.views = {key: plain.pop(key) for key in VIEWS if key in plain}
    pinned = plain.pop(BASELINE, None)
    for key in (RUN, MEASURED):
        plain.pop(key, None)
    known.question = _read_question(known, plain)
    if pinned is not None:
        known.baseline = _read_stored(known, BASELINE, pinned)
    for text in query.get(RUN, ()):
        run = _read_stored(known, RUN, text) if _has_room(known, RUN) else None
        known.runs += [run] if run is not None else []
    for name in query.get(MEASURED, ()):
        if _PLAIN.fullmatch(name) is None:
            known.warnings.append(f"{MEASURED} = {name!r}: not a measured run of this dashboard; left out")
        elif _has_room(known, MEASURED):
            known.measured.append(name)


def check_names(scenario: Scenario, base: str, folder: Path) -> None:
    """Refuse names of files that neither the base names nor this session uploaded, and of any code but the base's.

    Raises:
        ScenarioError: naming the key.
    """
    own = outside_names(to_mapping(base_scenario(base)))
    for key, name in outside_names(to_mapping(scenario)).items():
        uploaded = Path(name).is_absolute() and Path(name).resolve().parent == folder.resolve()
        is_code = key == "policy.name"  # never an upload's: it would run
        if own.get(key) != name and (is_code or name not in own.values()) and (is_code or not uploaded):
            raise ScenarioError(
                "the dashboard takes what ships with draftcast and what you upload, no other file or code",
                key=key,
                value=name,
            )


def missing_uploads(known: Session) -> list[str]:
    """Files that the question takes from this session's folder and that were not uploaded here: links carry none."""
    names = outside_names(to_mapping(known.question.scenario)).values()
    return [Path(name).name for name in names if Path(name).parent == known.path and not Path(name).exists()]


def short_error(error: Exception) -> str:
    """An error in one line, without the path of the session's folder."""
    text = str(error)
    known: Session | None = st.session_state.get("session")
    return text.replace(f"{known.path}/", "") if known is not None else text


def link_of_question(question: Question) -> dict[str, str]:
    """Query parameters of one question."""
    link = {SCENARIO: question.base} if question.base != DEFAULT_SCENARIO else {}
    return link | {key: value_text(value) for key, value in _places(question.link_changes, UPLOADED).items()}


def href_of(question: Question) -> str:
    """A link to What-if that asks ``question``, relative to the server."""
    return f"?{urlencode(link_of_question(question))}"


def _places(changes: Mapping[str, Any], prefix: str) -> Changes:
    """Uploaded files by name instead of by their place in the session's folder."""
    known: Session | None = st.session_state.get("session")
    if known is None:
        return dict(changes)
    start = f"{known.path}/"

    def placed(value: Any) -> Any:
        if isinstance(value, str) and value.startswith(start):
            return prefix + value.removeprefix(start)
        if isinstance(value, dict):
            return {key: placed(item) for key, item in value.items()}
        return [placed(item) for item in value] if isinstance(value, list) else value

    return {key: placed(value) for key, value in changes.items()}


def _has_room(known: Session, key: str) -> bool:
    if known.room > 0:
        return True
    known.warnings.append(f"{key}: Compare takes at most {MOST_RUNS} runs; left out")
    return False


def _read_page(known: Session, name: str) -> str:
    if name in PAGES:
        return name
    known.warnings.append(f"{PAGE} = {name!r}: choose from {', '.join(PAGES)}; left out")
    return FIRST_PAGE


def _read_stored(known: Session, key: str, text: str) -> Question | None:
    """A question inside a link, as `link_of_question` wrote it."""
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        known.warnings.append(f"{key}: not a run of this dashboard; left out")
        return None
    return _read_question(known, values)


def _read_question(known: Session, query: Mapping[str, str]) -> Question:
    """The question of plain query parameters; keys that make no valid scenario are left out, each with a warning."""
    values = dict(query)
    base = values.pop(SCENARIO, DEFAULT_SCENARIO)
    if base not in bases():
        known.warnings.append(f"{SCENARIO} = {base!r}: unknown scenario; choose from {', '.join(bases())}")
        base = DEFAULT_SCENARIO
    while True:
        try:
            return Question.of(base, _scenario_of(known, base, values), own_length=_has_length(values))
        except InputError as error:
            guilty = _guilty(known, base, values, error)
            known.warnings.append(f"{guilty}: {short_error(error)}; left out")
            del values[guilty]


def _scenario_of(known: Session, base: str, values: Mapping[str, str]) -> Scenario:
    # Keys of the link come after those that every page opens the base with.
    changes = assignments(changed_keys(base_scenario(base), opened(base)))
    sets = [f"{key}={value.replace(UPLOADED, f'{known.path}/')}" for key, value in values.items()]
    scenario = load_scenario(base, overrides=[*changes, *sets])
    check_names(scenario, base, known.path)
    return scenario


def _guilty(known: Session, base: str, values: Mapping[str, str], error: InputError) -> str:
    """The key of the link to leave out: the one the error names, else one without which the rest is valid.

    Where there is none such, the first that fails beside those before it.
    """
    named = (error.key or error.file or "").removeprefix("--set ")
    for key in values:
        if named == key or named.startswith(f"{key}.") or key.startswith(f"{named}."):
            return key
    for key in values:
        with contextlib.suppress(InputError):
            _scenario_of(known, base, {other: value for other, value in values.items() if other != key})
            return key
    kept: dict[str, str] = {}
    for key, value in values.items():
        try:
            _scenario_of(known, base, {**kept, key: value})
        except InputError:
            return key
        kept[key] = value
    raise error


def _text(query: Mapping[str, Sequence[str]]) -> str:
    return json.dumps(sorted((key, list(values)) for key, values in query.items()))


__all__ = [
    "MOST_RUNS",
    "NUM_REQUESTS",
    "Question",
    "Session",
    "bases",
    "check_names",
    "href_of",
    "link_of",
    "link_of_question",
    "missing_uploads",
    "opened",
    "read_link",
    "session",
    "short_error",
    "write_link",
]
