"""The link of a page: everything that is needed to show the same again, and the way back from it to a session."""

import contextlib
import json
import re
from collections.abc import Mapping, Sequence

import streamlit as st

from draftcast.dashboards.session import session as questions
from draftcast.dashboards.session.answers import set_aside
from draftcast.dashboards.session.session import FIRST_PAGE, MOST_RUNS, SCENARIO, ScenarioPair, Session, View, short
from draftcast.errors import InputError
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.changes import assignments, changed_keys
from draftcast.scenarios.schema.load import DEFAULT_SCENARIO, embedded_scenarios, load_scenario

Query = Mapping[str, Sequence[str]]
PAGE, BASELINE, RUN, MEASURED = "page", "baseline", "run", "measured"
PAGES = ("start", "what-if", "cutover", "capacity", "sweep", "compare", "trust")
_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,80}")


def bases() -> list[str]:
    """Names of the scenarios to choose from: the embedded ones, then files the dashboard was started with."""
    return [*embedded_scenarios(), *st.session_state.get("files", ())]


def current_session() -> Session:
    """This browser session; read from the link when it is new, or when the reader went back or forward."""
    if "session" not in st.session_state:
        st.session_state["session"] = Session(ScenarioPair.opening(DEFAULT_SCENARIO))
    session: Session = st.session_state["session"]
    if not session.touched and _text(link_in_browser()) != session.written:
        read_link(session, link_in_browser())
    return session


def write_link(session: Session) -> None:
    link = link_of(session)
    if not session.written:  # a new session stands: sessions that ended go now, and their folders with them
        set_aside()
    session.written, session.touched = _text(link), False
    if link_in_browser() != link:
        st.query_params.from_dict(link)


def link_of(session: Session) -> dict[str, list[str]]:
    """Query parameters that reproduce the session's pages."""
    link = {PAGE: [session.page]} if session.page != FIRST_PAGE else {}
    link |= {key: [value] for key, value in session.question.link.items()}
    if session.baseline is not None:
        link[BASELINE] = [json.dumps(session.baseline.link, ensure_ascii=False)]
    if session.runs:
        link[RUN] = [json.dumps(run.link, ensure_ascii=False) for run in session.runs]
    if session.measured:
        link[MEASURED] = list(session.measured)
    return link | {str(key): [value] for key, value in session.views.items()}


def read_link(session: Session, query: Query) -> None:
    """Take over what a link asks; what it asks wrongly is left out and named in ``warnings``."""
    session.warnings, session.refused, session.wanted_method, session.baseline = [], "", "", None
    session.runs, session.measured, session.before_off = [], [], {}
    plain = {key: values[-1] for key, values in query.items() if values and key not in (RUN, MEASURED)}
    session.page = plain.pop(PAGE, FIRST_PAGE)
    if session.page not in PAGES:
        session.warnings.append(f"{PAGE} = {session.page!r}: choose from {', '.join(PAGES)}; left out")
        session.page = FIRST_PAGE
    session.views = {key: plain.pop(key) for key in View if key in plain}
    baseline = plain.pop(BASELINE, None)
    session.question = _read_question(session, plain)
    if baseline is not None:
        session.baseline = _read_stored(session, BASELINE, baseline)
    for text in query.get(RUN, ()):
        run = _read_stored(session, RUN, text) if _has_room(session, RUN) else None
        session.runs += [run] if run is not None else []
    for name in query.get(MEASURED, ()):
        if _PLAIN.fullmatch(name) is None:
            session.warnings.append(f"{MEASURED} = {name!r}: not a measured run of this dashboard; left out")
        elif _has_room(session, MEASURED):
            session.measured.append(name)


def _has_room(session: Session, key: str) -> bool:
    if session.room > 0:
        return True
    session.warnings.append(f"{key}: Compare takes at most {MOST_RUNS} runs; left out")
    return False


def _read_stored(session: Session, key: str, text: str) -> ScenarioPair | None:
    """A question inside a link, as `link_of` wrote it."""
    values = None
    with contextlib.suppress(ValueError):
        values = json.loads(text)
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        session.warnings.append(f"{key}: not a run of this dashboard; left out")
        return None
    if (base := values.get(SCENARIO, DEFAULT_SCENARIO)) not in bases():
        session.warnings.append(f"{key}: {_unknown(base)}; left out")
        return None
    return _read_question(session, values, f"{key}: ")


def _unknown(base: str) -> str:
    return f"{SCENARIO} = {base!r}: unknown scenario; choose from {', '.join(bases())}"


def _read_question(session: Session, query: Mapping[str, str], where: str = "") -> ScenarioPair:
    """The question of plain query parameters; wrong keys are left out, with warnings that begin with ``where``."""
    values = dict(query)
    base = values.pop(SCENARIO, DEFAULT_SCENARIO)
    if base not in bases():
        session.warnings.append(f"{_unknown(base)}; {DEFAULT_SCENARIO} is shown")
        base = DEFAULT_SCENARIO
    while True:
        try:
            return ScenarioPair.of(base, _scenario_of(session, base, values), own_length=questions.gives_length(values))
        except InputError as error:
            guilty = _guilty_key(session, base, values, error)
            text = short(error).removeprefix("--set: ").removeprefix("--set ")
            text = text if text.startswith(guilty) else f"{guilty}: {text}"
            session.warnings.append(f"{where}{text}; left out")
            del values[guilty]


def _scenario_of(session: Session, base: str, values: Mapping[str, str]) -> Scenario:
    # Keys of the link come after those that every page opens the base with.
    changes = assignments(changed_keys(questions.base_scenario(base), questions.opened(base)))
    sets = [f"{key}={value.replace(questions.UPLOADED, f'{session.path}/')}" for key, value in values.items()]
    scenario = load_scenario(base, overrides=[*changes, *sets])
    questions.check_names(scenario, base, session.path)
    return scenario


def _guilty_key(session: Session, base: str, values: Mapping[str, str], error: InputError) -> str:
    """The key to leave out: that the error names, else one without which the rest is valid, else the first to fail."""
    named = (error.key or error.file or "").removeprefix("--set ")
    for key in values:
        if named == key or named.startswith(f"{key}.") or key.startswith(f"{named}."):
            return key
    for key in values:
        with contextlib.suppress(InputError):
            _scenario_of(session, base, {other: value for other, value in values.items() if other != key})
            return key
    valid: dict[str, str] = {}
    for key, value in values.items():
        try:
            _scenario_of(session, base, {**valid, key: value})
        except InputError:
            return key
        valid[key] = value
    raise error


def link_in_browser() -> dict[str, list[str]]:
    return {key: st.query_params.get_all(key) for key in st.query_params}


def _text(query: Query) -> str:
    return json.dumps(sorted((key, list(values)) for key, values in query.items()))
