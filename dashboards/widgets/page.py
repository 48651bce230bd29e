"""What every page is made of: a title with the fidelity badge, warnings on top, pictures, facts for the footer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import streamlit as st

from draftcast.dashboards.session.plain_text import literal
from draftcast.dashboards.session.results import Answer
from draftcast.dashboards.session.session import Session, missing_uploads, short_error
from draftcast.dashboards.session.uploads import trace_notes
from draftcast.errors import InputError
from draftcast.scenarios.run.fidelity import Fidelity
from draftcast.scenarios.schema import Scenario
from draftcast.sim.compiled.cache import COMPILING, engine_compilation

T = TypeVar("T")

# The bar of plotly's buttons cannot be reached by keyboard; the downloads below hold what it offers.
CONFIG = {"displayModeBar": False, "responsive": True}
ICONS = {
    "measured": ":material/verified:",
    "interpolated": ":material/linear_scale:",
    "extrapolated": ":material/warning:",
}


def banner(session: Session) -> None:
    """What a link asked for and did not get, a change that was refused, and what is cut of a trace."""
    for warning in session.warnings:
        st.warning(literal(warning), icon=":material/link_off:")
    if session.refused:
        st.error(f"Not changed: {literal(session.refused)}", icon=":material/block:")
    for note in trace_notes(session.question.scenario):
        st.warning(literal(short_error(Exception(note))), icon=":material/content_cut:")


def cannot_run(session: Session, error: InputError) -> None:
    """In place of an answer: why there is none."""
    missing = missing_uploads(session)
    if missing:
        st.error(
            f"Upload {literal(' and '.join(missing))} again: a link does not carry files.",
            icon=":material/upload_file:",
        )
    else:
        st.error(f"This cannot be simulated: {literal(short_error(error))}", icon=":material/error:")


def badge(session: Session, found: Fidelity | None) -> None:
    """The word and the worst share; it leads to the coverage map."""
    if found is None:
        return
    shares = ", ".join(f"{share:.0%} {word}" for word, share in found.shares.items())
    with st.container(key=f"badge-{found.word}"):
        st.button(
            str(found),
            key="badge",
            icon=ICONS[found.word],
            type="tertiary",
            on_click=session.go,
            args=("trust",),
            help=f"Where the device time of this result comes from: {shares}. Opens the coverage map of the profile.",
        )


def figure(name: str, picture: Any, caption: str, alt: str, on_click: Callable[[], None] | None = None) -> None:
    """A picture with its caption; ``name`` is what tests and screen readers find it by.

    Args:
        on_click: called when a marker was clicked; `clicked` tells which.
    """
    st.plotly_chart(
        picture,
        key=name,
        config=CONFIG,
        theme="streamlit",
        alt=alt,
        on_select=on_click or "ignore",
        selection_mode="points",
    )
    if caption:
        st.caption(caption)


def clicked(name: str) -> Any:
    """``customdata`` of the marker that was clicked in the picture ``name``; None where none was."""
    state = st.session_state.get(name)
    points = state["selection"]["points"] if state else []
    found = points[0].get("customdata") if points else None
    return found[0] if isinstance(found, list) else found


@contextmanager
def simulating() -> Iterator[Callable[[], None]]:
    """A spinner; where the engine has to be compiled first it says so, once what it gives is called."""
    note = None

    def look() -> None:
        nonlocal note
        if engine_compilation.running and note is None:
            note = st.info(f"{COMPILING[0].upper()}{COMPILING[1:]}.", icon=":material/hourglass_top:")

    with st.spinner("Simulating"):
        yield look
    if note is not None:
        note.empty()


def run_facts(found: Answer) -> Mapping[str, str]:
    """Footer of a page that shows one run."""
    run, statistics = found.run, found.scenario.statistics
    cuts = run.summary["warmup_requests"]
    cut = str(cuts[0]) if len(set(cuts)) == 1 else f"{min(cuts)} to {max(cuts)}"
    return {
        "run": found.hash[:12],
        "seed": str(statistics.seed),
        "replications": str(statistics.replications),
        "warm-up cut": f"{cut} requests",
        "profile": run.summary["profile"],
    }


def runs_facts(scenario: Scenario, asked: str) -> Mapping[str, str]:
    """Footer of a page that shows many runs; ``asked`` stands for all of them."""
    statistics = scenario.statistics
    cut = "calculated for each run" if statistics.warmup == "auto" else "none"
    return {
        "run": asked[:12],
        "seed": str(statistics.seed),
        "replications": str(statistics.replications),
        "warm-up cut": cut,
    }


def under_bar(text: str, run: Callable[[Callable[[float], None]], T]) -> T:
    """``run(progress)`` under a bar that is gone afterwards; a change of any control ends it and begins anew."""
    bar = st.progress(0.0, text=text)

    def progress(share: float) -> None:
        bar.progress(min(share, 1.0), text=text)

    try:
        return run(progress)
    finally:
        bar.empty()
