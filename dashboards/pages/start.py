"""Start: four steps from nothing to an answer - model and GPU, traffic, acceptance, SLO - with the command to paste."""

import streamlit as st

from draftcast.calibration.acceptance.references import references
from draftcast.dashboards.pages import what_if
from draftcast.dashboards.session.answers import answers
from draftcast.dashboards.session.session import Session, View, literal, short
from draftcast.dashboards.session.uploads import ACCEPTANCE, MODEL, TRACE
from draftcast.dashboards.widgets.controls import WORDS, control, filled, slo_controls, uploader, view_choice
from draftcast.dashboards.widgets.page import Report
from draftcast.dashboards.widgets.verdict_card import show_card, step_estimate
from draftcast.errors import ScenarioError
from draftcast.kernels.model.catalog import canonical_name
from draftcast.scenarios.compare.serve_command import SERVERS, server_command
from draftcast.scenarios.schema import METHODS, Scenario

ENGINES = WORDS["engines"]
OWN = "as given"


def render(session: Session, report: Report) -> None:
    scenario = session.question.scenario
    for heading, row, upload in (
        ("1 Model and GPU", what_if.server, MODEL),
        ("2 Traffic: three numbers, or a trace", what_if.traffic, TRACE),
        ("3 Method and its acceptance", _acceptance, ACCEPTANCE),
    ):
        with st.container(border=True):
            st.subheader(heading, anchor=False)
            left, right = st.columns([3, 1])
            with left, st.container(horizontal=True, gap="small"):
                row(session, scenario)
            with right:
                uploader(session, upload)
    with st.container(border=True):
        st.subheader("4 SLO, if there is one", anchor=False)
        slo_controls(session)
    st.header("5 The answer", anchor="answer")
    if what_if.waits_for_acceptance(session):
        return
    with st.container():
        place, estimate = st.empty(), step_estimate(scenario)
        show_card(place, scenario, estimate)
    (current,) = answers(scenario)
    if current.point.verdict is not None:
        show_card(place, scenario, estimate, current.point.verdict)
    what_if.show_answer(report, current)
    server = view_choice(session, View.START_ENGINE, SERVERS, words=lambda name: ENGINES[name])
    try:
        st.code(short(server_command(scenario, server).text), language="bash", wrap_lines=True)
    except ScenarioError as error:
        st.warning(f"{ENGINES[server]} cannot run this: {literal(error)}", icon=":material/block:")
    st.caption("Below: the scenario as a file, for the command line or to open here again. What-if continues with it.")
    what_if.finish(session, report, current)


def _acceptance(session: Session, scenario: Scenario) -> None:
    what_if.speculation(session, scenario)
    model = canonical_name(scenario.engine.model).lower()
    names = [name for name, one in references().items() if model in one.model.lower() and one.method in METHODS]
    chosen = getattr(scenario.acceptance, "reference", None)
    options = list(dict.fromkeys([OWN, *names, *([chosen] if chosen else [])]))
    look = filled("start.reference")
    control(st.selectbox, "reference", chosen or OWN, session.take_reference, look, options=options)
