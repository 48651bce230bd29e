"""Controls: each shows what the session holds and writes what its reader changes.

The session is the truth; a widget is set from it on every run, so that a link, an upload and another page's control
reach it too. Type and bounds of a scenario's key come from the schema.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import streamlit as st
from pydantic import BaseModel

from draftcast.dashboards.session.session import Session, View, literal, one_of
from draftcast.dashboards.session.uploads import Upload, UploadResult, receive
from draftcast.scenarios.compare.slo_answer import BOUNDS
from draftcast.scenarios.schema import Scenario
from draftcast.yaml_text import yaml_beside

Change = Callable[[Any], Mapping[str, Any]]
Write = Callable[[Any], None]
Wording = Callable[[Any], str]
LARGEST = 2**53 - 1  # what a browser's numbers can hold exactly

WidgetText = Mapping[str, Any]
"""Options of a Streamlit widget: ``label``, ``help``; of some ``width`` (pixels), ``step``, ``placeholder``."""
LOOKS: dict[str, WidgetText] = yaml_beside(__file__, "looks.yaml")
"""Of every key of a scenario and every setting of a page that has a control of its own."""
WORDS: dict[str, dict[str, str]] = yaml_beside(__file__, "words.yaml")
"""What a page calls things, by what the program calls them."""


def filled(name: str, **words: object) -> WidgetText:
    """The look of this name with words of the page in its label and help."""
    return {**LOOKS[name], **{part: LOOKS[name][part].format(**words) for part in ("label", "help")}}


def label_of(key: str) -> str:
    """What a key is called: by its control, else its last parts in words."""
    if key in LOOKS:
        return str(LOOKS[key]["label"])
    return WORDS["labels"].get(key) or " ".join(key.split(".")[1:][-2:] or [key]).replace("_", " ")


def control(
    widget: Callable[..., Any], name: str, value: Any, write: Write, look: WidgetText | None = None, /, **options: Any
) -> None:
    """A Streamlit widget that shows ``value`` and hands what its reader changes to ``write``; `LOOKS` has its look."""
    session: Session = st.session_state["session"]
    followed = st.session_state.get(session.control_key(name), value) != value and session.typed != name
    session.turns[name] += followed
    session.drawn.add(name)
    key = session.control_key(name)
    st.session_state[key] = value

    def changed() -> None:
        if key == session.control_key(name):
            session.typed = name
            write(st.session_state[key])

    widget(key=key, on_change=changed, **{**(look or LOOKS[name]), **options})


def number_control(session: Session, key: str, *, percent: bool = False, change: Change | None = None) -> None:
    """A key that holds a number, a share in ``percent``, empty for its default; ``change``: to changes of keys."""
    value, schema = _value_and_schema(session.question.scenario, key)
    scale = 100 if percent else 1
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))

    def changes(shown: float | None) -> Mapping[str, Any]:
        number = round(shown / scale, 6) if percent and shown is not None else shown
        return change(number) if change is not None else {key: number}

    shown, most = None if value is None else scale * value, scale * high if high <= LARGEST else None
    write = functools.partial(session.change, changes)
    number_field(key, shown, write, whole=schema["type"] == "integer", low=scale * low, high=most)


def number_field(key: str, shown: float | None, write: Write, *, whole: bool, low: float, high: float | None) -> None:
    """A field of a number. One of whole numbers hands on a fraction too, to be refused: Streamlit's own cuts it."""

    def typed(number: float | None) -> None:
        write(int(number) if whole and number is not None and number.is_integer() else number)

    step = LOOKS[key].get("step", 1 if whole else None)
    control(
        st.number_input,
        key,
        None if shown is None else float(shown),
        typed,
        value=None,
        min_value=float(low),
        max_value=None if high is None else float(high),
        step=None if step is None else float(step),
        format="%.16g" if whole else "%.6g",
    )


def word_of(value: Any) -> str:
    return "not given" if value is None else WORDS["choices"].get(value, str(value))


def choice_control(
    session: Session, key: str, options: Sequence[Any], words: Wording = word_of, change: Change | None = None
) -> None:
    """A key that holds one of several; what the scenario holds is offered even where ``options`` lacks it."""
    value, _ = _value_and_schema(session.question.scenario, key)
    offered = list(dict.fromkeys([*options, value]))
    write = functools.partial(session.change, change or (lambda chosen: {key: chosen}))
    control(st.selectbox, key, value, write, options=offered, format_func=words)


def slo_controls(session: Session) -> None:
    """The bounds of the SLO and the share of requests that must meet them; without any bound there is no SLO."""

    def bounds_with(name: str, bound: float | None) -> Mapping[str, Any]:
        slo = session.question.scenario.slo
        bounds = {key: getattr(slo, key, None) for key in BOUNDS} | {name: bound or None}
        limits = {key: value for key, value in bounds.items() if value is not None}
        if not limits:
            return {"slo": None}
        return {"slo": limits | ({"attainment": slo.attainment} if slo is not None else {})}

    with st.container(horizontal=True):
        for name in BOUNDS:
            number_control(session, f"slo.{name}", change=functools.partial(bounds_with, name))
        number_control(session, "slo.attainment", percent=True, change=lambda share: {"slo.attainment": share or 0.99})


def uploader(session: Session, upload: Upload) -> None:
    # Streamlit's adds files to those it was given before: one for several begins anew, under another key.
    taken = st.session_state.get(f"{upload.key}:taken", 0)
    key = f"{upload.key}:{taken}" if upload.several else upload.key

    def received() -> None:
        st.session_state[f"{upload.key}:taken"] = taken + 1
        value = st.session_state[key]
        files = {file.name: file.getvalue() for file in (value if upload.several else [value]) if file is not None}
        st.session_state[f"{upload.key}:receipt"] = receive(session, upload, files) if files else None

    options: dict[str, Any] = {"accept_multiple_files": upload.several, "max_upload_size": upload.limit_mb}
    st.file_uploader(key=key, type=list(upload.types), on_change=received, **LOOKS[upload.key], **options)
    receipt: UploadResult | None = st.session_state.get(f"{upload.key}:receipt")
    if receipt is not None:
        (st.success if receipt.good else st.error)(literal(receipt.text))


def view_choice(session: Session, view: View, options: Sequence[str], default: str = "", words: Wording = str) -> str:
    """One of several for a page's own setting, which is kept in the link; the first where no ``default`` is named."""
    default = default or options[0]
    chosen = session.view(view, default, one_of(options))
    write = functools.partial(session.see, view, default=default)
    control(st.selectbox, view, chosen, write, options=options, format_func=words)
    return chosen


def button(label: str, icon: str, on_click: Callable[..., None], *args: Any, **options: Any) -> None:
    st.button(label, icon=f":material/{icon}:", on_click=on_click, args=args, **options)


def _value_and_schema(scenario: Scenario, key: str) -> tuple[Any, Mapping[str, Any]]:
    """What the scenario holds under a key, None where it has no such section, and the key's JSON schema."""
    *path, name = key.split(".")
    section: Any = scenario
    model: type[BaseModel] = Scenario
    for part in path:
        section = getattr(section, part, None)
        annotation: Any = type(section) if section is not None else model.model_fields[part].annotation
        while get_args(annotation):
            annotation = get_args(annotation)[0]
        model = annotation
    schema = _schema(model)["properties"][name]
    # A key that may be absent is any of its type and null.
    return getattr(section, name, None), schema | schema.get("anyOf", [{}])[0]


_schema = functools.cache(lambda model: model.model_json_schema())
