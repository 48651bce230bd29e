"""What a page under test leaves behind is taken back."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def main_module_is_kept() -> Iterator[None]:
    """A page runs as ``__main__``; a process spawned by a later test would import that page as its main module."""
    before = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = before


@pytest.fixture(autouse=True)
def pages_take_a_rough_capacity(request: pytest.FixtureRequest) -> None:
    """Not beside a server in a process of its own: there both sides take the whole."""
    if request.path.name != "test_dashboard_browser.py":
        request.getfixturevalue("rough_capacity")


@pytest.fixture(autouse=True)
def new_sessions_collect_no_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server collects for every new session; here that would look at all that other tests loaded, each time."""
    monkeypatch.setattr("draftcast.dashboards.session.link.set_aside", lambda: None)


@pytest.fixture(autouse=True)
def pages_have_no_components(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page under test would look for Streamlit components in all installed packages; none is used."""
    monkeypatch.setattr("streamlit.components.v2.manifest_scanner.scan_component_manifests", list)
