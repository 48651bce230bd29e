"""The dashboard's script run without a browser, for tests of its logic."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from paths import APP
from streamlit.proto.WidgetStates_pb2 import WidgetStates
from streamlit.testing.v1 import AppTest

from draftcast.dashboards.session.session import Session

SMALL = {"workload.num_requests": "150", "statistics.replications": "2"}
WAIT_S = 1800  # the first page of a fresh checkout compiles the engine


def open_page(query: Mapping[str, str | list[str]] | None = None) -> AppTest:
    """A page of a small run that was opened by a link."""
    app = AppTest.from_file(str(APP), default_timeout=WAIT_S)
    for key, value in (SMALL | dict(query or {})).items():
        app.query_params[key] = value
    return app.run()


def html_of(app: AppTest) -> str:
    """All that a page wrote as HTML."""
    return "".join(each.proto.body for each in app.get("html"))


def told(elements: Iterable[Any]) -> list[str]:
    """Texts of a page's errors, warnings or captions as a reader sees them: Markdown's escapes undone."""
    return [re.sub(r"\\(?=[\W_])", "", element.value) for element in elements]


def known(app: AppTest) -> Session:
    """The page's session; the page must stand without an exception."""
    assert not app.exception, app.exception
    found: Session = app.session_state["session"]
    return found


def control_of(app: AppTest, widgets: Iterable[Any], name: str) -> Any:
    """The page's control of this name, whatever its key has become (`control_key`)."""
    turn = known(app).turns[name]
    (found,) = [each for each in widgets if each.key == (f"control:{name}:{turn}" if turn else f"control:{name}")]
    return found


def sent_by_browser(app: AppTest) -> WidgetStates:
    """All controls as the page shows them now; a browser sends a button only when it is pressed."""
    states = app._tree.get_widget_states()
    for button in [each for each in states.widgets if each.HasField("trigger_value")]:
        states.widgets.remove(button)
    return states
