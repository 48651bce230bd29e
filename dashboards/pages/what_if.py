"""What-if: one deployment under one load, against the same without speculation and a pinned baseline."""

import contextlib
import itertools
import time
from functools import partial
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from draftcast.calibration.profile.hardware import hardware_names
from draftcast.dashboards.session.answers import SimulateAnswer, answers, together
from draftcast.dashboards.session.session import MOST_RUNS, Session, base_scenario, literal
from draftcast.dashboards.session.uploads import TRACE, trace_notes
from draftcast.dashboards.widgets import verdict_card
from draftcast.dashboards.widgets.controls import button, choice_control, control, filled, number_control, uploader
from draftcast.dashboards.widgets.page import Report, look_away, verdict_line
from draftcast.dashboards.widgets.tiles import Pair, column_of, doubts_of, tiles
from draftcast.dashboards.widgets.verdict_card import draft_length_strip, draft_lengths, show_card, step_estimate
from draftcast.errors import InputError
from draftcast.kernels.model.catalog import canonical_name, model_names
from draftcast.scenarios.compare.comparison import Comparison, simulate
from draftcast.scenarios.compare.slo_answer import idle_scenario, measured_requests, slo_answer
from draftcast.scenarios.run import choices
from draftcast.scenarios.run.simulate import RunResult
from draftcast.scenarios.schema import METHODS, Scenario
from draftcast.scenarios.schema.load import apply_overrides, with_values
from draftcast.scenarios.schema.raw import value_at
from draftcast.scenarios.show.run_report import load_words, status_line, time_figure, timeline_figure
from draftcast.scenarios.show.tables import title
from draftcast.sim.cost.methods import get_method

ON, OFF, BASELINE = "SD on", "SD off", "baseline"
DEGREES = (1, 2, 4, 8, 16)
HEAD_START_S = 0.05
"""Of the estimate: a browser paints together what reaches it together, and the controls take longest."""


def begin(session: Session, report: Report) -> None:
    """The estimate, above the controls; what is asked is known before these are drawn."""
    scenario = session.question.scenario
    look_away(session, verdict_card.search_key(scenario))
    with contextlib.suppress(InputError), st.container(key="answer"):  # why there is none is said below the controls
        if not session.wanted_method:
            estimate = step_estimate(scenario)
            report.answer = [place.empty() for place in st.columns([5, 7] if estimate is not None else 1)]
            show_card(report.answer[0], scenario, estimate)
            time.sleep(HEAD_START_S)


def render(session: Session, report: Report) -> None:
    below_k = controls(session)
    if waits_for_acceptance(session):
        return
    pinned = [session.baseline.scenario] if session.baseline is not None else []
    scenario = session.question.scenario
    estimate = step_estimate(scenario)
    place, *beside = report.answer
    if estimate is not None:
        with beside[0].container():
            verdict_card.advantage_over_load(session, estimate)
    current, *baselines = answers(scenario, *pinned)
    if current.point.verdict is not None:
        show_card(place, scenario, estimate, current.point.verdict)
    with contextlib.suppress(InputError):
        if lengths := session.speculation() and draft_lengths(with_values(scenario, session.speculation())):
            below_k.html(draft_length_strip(lengths, scenario.num_speculative_tokens))
    show_answer(report, current)
    verdict = current.point.verdict
    sides = {OFF: current.side} if verdict is None else {ON: verdict.on, OFF: verdict.off}
    if baselines:
        sides[BASELINE] = baselines[0].side
    runs = {name: side.run for name, side in sides.items() if side.run is not None and side.has_figures}
    report.badge([run.summary["figures"] for run in runs.values()])
    _tiles(current, baselines)
    _buttons(session)
    _pictures(report, current, runs)
    finish(session, report, current)


def waits_for_acceptance(session: Session) -> bool:
    """Whether a method was chosen whose acceptance is not known; then the page says so in place of an answer."""
    if wanted := session.wanted_method:
        text = f"Give the acceptance of {wanted} above to see its forecast: that of another method does not apply."
        st.info(text, icon=":material/tune:")
    return bool(wanted)


def finish(session: Session, report: Report, current: SimulateAnswer) -> None:
    run, point = current.run, current.point
    report.tables["Figures"] = run.frame().reset_index()
    report.footer(current.hash, session.question.command("simulate"), current)
    summary = Comparison(current.scenario, (point,), None).summary if point.verdict is not None else lambda: run.summary
    report.downloads(f"draftcast-{current.hash[:12]}", lambda: run.requests, summary)


def show_answer(report: Report, current: SimulateAnswer) -> None:
    """Verdict, what limits, SLO and state, on the page and in the report."""
    scenario, run, verdict = current.scenario, current.run, current.point.verdict
    bottleneck = f"Bottleneck - {current.limits.sentence}"
    if verdict is None:
        text = f"Speculation is off {load_words(scenario)}: there is nothing to compare."
        data = {"verdict": "off", "advice": ""}
    else:
        text = verdict.sentence(load_words(scenario))
        data = {"verdict": verdict.word, "advice": verdict.advice}
        if verdict.advantage is not None:
            data |= {"low": str(verdict.advantage.low), "high": str(verdict.advantage.high)}
    head, mark, _ = text.partition(":") if ":" in text else text.partition(". ")
    tone = {"pays": "better", "costs": "worse"}.get(data["verdict"], "")
    verdict_line(text, bold=len(head + mark), tone=tone, why=bottleneck, **data)
    report.title = title(scenario)
    report.lines += [text, bottleneck]
    slo = None
    if scenario.slos:
        unmet = run.slo_met is False and current.side.has_figures
        slo = slo_answer(scenario, current.side, simulate(idle_scenario(scenario)) if unmet else None)
    if slo is not None:
        (st.success if slo.met else st.error)(literal(slo.sentence), icon=":material/flag:")
        report.lines.append(slo.sentence)
    elif status := status_line(scenario, current.side):
        overloaded = current.side.state == "overloaded"
        (st.error if overloaded else st.warning)(literal(status), icon=":material/trending_up:")
        report.lines.append(status)
    for note in run.summary["notes"]:
        if note not in trace_notes(scenario):
            st.caption(literal(note))


def _tiles(current: SimulateAnswer, baselines: list[SimulateAnswer]) -> None:
    """Values as the command line gives them; differences over the requests that both measure."""
    scenario, verdict, confidence = current.scenario, current.point.verdict, current.scenario.statistics.confidence
    column, pairs = column_of(scenario, current.side), []
    if verdict is not None:
        off = column_of(scenario, verdict.off)
        pairs.append(Pair(column, OFF, off, confidence, doubts_of(scenario, verdict)))
    for baseline in baselines:
        one, two = together(current, baseline)
        pairs.append(Pair(column_of(scenario, one), BASELINE, column_of(baseline.scenario, two), confidence))
    st.html(tiles(column, pairs))


def _buttons(session: Session) -> None:
    with st.container(horizontal=True, key="baseline"):
        hint = "Tiles then show the difference from the current run."
        button("Pin as baseline", "keep", session.pin, session.question, help=hint)
        if session.baseline is not None:
            button("Unpin", "keep_off", session.pin, None)
        hint = f"Compare shows the current run beside up to {MOST_RUNS - 1} runs added this way."
        button("Add to Compare", "add", session.add_run, session.question, disabled=session.room <= 0, help=hint)


def _pictures(report: Report, current: SimulateAnswer, runs: dict[str, RunResult]) -> None:
    """Of latencies only where they hold for the load."""
    right = st.container()
    if runs:
        with right:
            report.latencies({name: measured_requests(run) for name, run in runs.items()})
        left, right = st.columns(2)
        with left:
            st.subheader("Where a request's time goes")
            report.figure("time", time_figure(runs))
    with right:
        st.subheader("Over time")
        report.figure("timeline", timeline_figure(current.timeline))


def controls(session: Session) -> DeltaGenerator:
    """Draw them; the place of what is said of k."""
    scenario = session.question.scenario
    with st.container(border=True, key="controls"):
        for row in (server, traffic, speculation):
            with st.container(horizontal=True, gap="small"):
                row(session, scenario)
        below_k = st.empty()
        with st.expander("Trace upload and any other key"):
            uploader(session, TRACE)
            control(st.text_input, "other", "", partial(session.change, _assigned), filled("what-if.other"))
            if link := session.question.link:
                st.caption("Changed: " + literal(" · ".join(f"{key}={value}" for key, value in link.items())))
    return below_k


def server(session: Session, scenario: Scenario) -> None:
    base = base_scenario(session.question.base)
    models = _as_spelled(model_names(), scenario.engine.model, base.engine.model)
    devices = _as_spelled(hardware_names(), scenario.hardware, base.hardware)
    choice_control(session, "engine.model", models, change=partial(choices.with_model, scenario))
    choice_control(session, "hardware", devices)
    choice_control(session, "engine.tensor_parallel_size", DEGREES)
    for key in ("cluster.replicas", "engine.max_num_seqs", "engine.max_num_batched_tokens"):
        number_control(session, key)


def traffic(session: Session, scenario: Scenario) -> None:
    arrivals, lengths = scenario.workload.arrivals, scenario.workload.lengths
    rate_rps = getattr(arrivals, "request_rate_rps", None) or 1.0

    change = partial(choices.with_arrivals, scenario, request_rate_rps=rate_rps)
    choice_control(session, "workload.arrivals.process", choices.ARRIVALS, change=change)
    if arrivals.process == "closed_loop":
        number_control(session, "workload.arrivals.concurrency")
    elif arrivals.process != "piecewise":
        number_control(session, "workload.arrivals.request_rate_rps")
    for name, part in itertools.product(("prompt_tokens", "output_tokens"), ("value", "mean")):
        if hasattr(getattr(lengths, name, None), part):
            number_control(session, f"workload.lengths.{name}.{part}")


def speculation(session: Session, scenario: Scenario) -> None:
    spec, acceptance = scenario.speculative_config, scenario.acceptance
    wanted = session.wanted_method
    method = wanted or (scenario.method if spec is not None else choices.OFF)
    look = filled("what-if.method")
    control(st.selectbox, "method", method, session.want_method, look, options=(choices.OFF, *METHODS))
    if wanted:
        k, name = scenario.num_speculative_tokens or choices.DEFAULT_K, f"acceptance.of.{wanted}"
        look = filled("acceptance.of", method=wanted, k=k)
        typed = st.session_state.get(session.control_key(name), "")
        control(st.text_input, name, typed, session.give_acceptance, look)
        return
    if session.speculation():
        k = scenario.num_speculative_tokens
        control(st.slider, verdict_card.K, k, session.want_k, min_value=0, max_value=max(verdict_card.LONGEST, k))
    if spec is not None and get_method(scenario.method).needs_draft_model:
        choice_control(session, "engine.speculative_config.model", choices.draft_models(scenario))
    change = partial(choices.with_acceptance_model, scenario)
    choice_control(session, "acceptance.model", choices.ACCEPTANCE_MODELS, change=change)
    rates = getattr(acceptance, "rates", None)
    if rates is not None:
        key, text = "acceptance.rates", ", ".join(f"{rate:g}" for rate in rates)
        write = partial(session.change, lambda typed: {key: choices.numbers(typed, key)})
        control(st.text_input, key, text, write, filled("what-if.rates"))
    elif getattr(acceptance, "alpha", None) is not None:
        number_control(session, "acceptance.alpha")


def _as_spelled(names: list[str], *spellings: str) -> list[str]:
    """``names`` as the scenario and its base spell them, so that choosing the same changes nothing."""
    spelled = {canonical_name(spelling).lower(): spelling for spelling in reversed(spellings)}
    return [spelled.get(name.lower(), name) for name in names]


def _assigned(text: str) -> dict[str, Any]:
    """One ``key=value`` as a change; the value is read as YAML."""
    key = text.partition("=")[0].strip()
    return {key: value_at(apply_overrides({}, [text]), key)} if text.strip() else {}
