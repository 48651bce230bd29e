"""The controls of What-if: server, traffic, speculation; anything else as ``key=value``."""

from __future__ import annotations

from typing import Any

import streamlit as st

from draftcast.calibration.profile.hardware import hardware_names
from draftcast.dashboards.session.plain_text import literal
from draftcast.dashboards.session.question import base_scenario
from draftcast.dashboards.session.session import Session
from draftcast.dashboards.session.uploads import TRACE, uploader
from draftcast.dashboards.widgets.controls import choice_control, control, number_control
from draftcast.errors import ScenarioError
from draftcast.kernels.model.catalog import canonical_name, model_names
from draftcast.scenarios.run import choices
from draftcast.scenarios.schema import METHODS, Scenario
from draftcast.scenarios.schema.changes import value_at
from draftcast.scenarios.schema.load import apply_overrides
from draftcast.sim.cost.methods import get_method

WORDS = {
    "poisson": "Poisson",
    "gamma": "Gamma (bursty)",
    "deterministic": "even gaps",
    "closed_loop": "fixed clients",
    "per_position": "rate of each position",
    "constant": "one rate",
    "beta": "differs by request",
    None: "not given",
}
DEGREES = (1, 2, 4, 8, 16)
RATES = "share of rounds in which the first 1, 2, 3, ... drafts were all accepted"


def controls(session: Session) -> None:
    """All of them, in rows that wrap where the page is narrow."""
    scenario = session.question.scenario
    with st.container(border=True, key="controls"):
        for row in (_server, _traffic, _speculation):
            with st.container(horizontal=True, gap="small"):
                row(session, scenario)
        with st.expander("Trace upload and any other key"):
            uploader(session, TRACE)
            control(
                st.text_input,
                "Any other key",
                "other",
                "",
                lambda text: session.change(lambda: _assigned(text)),
                help="As `--set` takes it, for example engine.gpu_memory_utilization=0.85 or policy.name=goodput.",
                placeholder="engine.block_size=32",
                width=420,
            )
            link = session.question.link
            if link:
                st.caption("Changed: " + literal(" · ".join(f"{key}={value}" for key, value in link.items())))


def _server(session: Session, scenario: Scenario) -> None:
    base = base_scenario(session.question.base)
    models = _as_spelled(model_names(), scenario.engine.model, base.engine.model)
    devices = _as_spelled(hardware_names(), scenario.hardware, base.hardware)
    choice_control(session, "engine.model", models, width=148, change=lambda model: choices.with_model(scenario, model))
    choice_control(session, "hardware", devices, width=135)
    choice_control(session, "engine.tensor_parallel_size", DEGREES, width=80)
    number_control(session, "cluster.replicas", width=115)
    number_control(session, "engine.max_num_seqs", width=140, step=16, placeholder="default")
    number_control(session, "engine.max_num_batched_tokens", width=140, step=1024, placeholder="default")


def _traffic(session: Session, scenario: Scenario) -> None:
    arrivals, lengths = scenario.workload.arrivals, scenario.workload.lengths
    rate_rps = getattr(arrivals, "request_rate_rps", None) or 1.0
    choice_control(
        session,
        "workload.arrivals.process",
        choices.ARRIVALS,
        width=170,
        words=lambda process: WORDS.get(process, process),
        change=lambda process: choices.with_arrivals(scenario, process, rate_rps),
    )
    if arrivals.process == "closed_loop":
        number_control(session, "workload.arrivals.concurrency", width=150, step=8)
    elif arrivals.process != "piecewise":
        number_control(session, "workload.arrivals.request_rate_rps", width=150, step=1, placeholder="as recorded")
    for name in ("prompt_tokens", "output_tokens"):
        for part in ("value", "mean"):
            if hasattr(getattr(lengths, name, None), part):
                number_control(session, f"workload.lengths.{name}.{part}", width=160, step=32)


def _speculation(session: Session, scenario: Scenario) -> None:
    spec, acceptance = scenario.speculative_config, scenario.acceptance
    control(
        st.selectbox,
        "Method",
        "method",
        session.wanted_method or (scenario.method if spec is not None else choices.OFF),
        session.want_method,
        options=(choices.OFF, *METHODS),
        help="How tokens are drafted. Acceptance is a method's own: another method asks for it.",
        width=170,
    )
    if session.wanted_method:
        k = scenario.num_speculative_tokens or choices.DEFAULT_K
        name = f"acceptance.of.{session.wanted_method}"
        control(
            st.text_input,
            f"Acceptance of {session.wanted_method}",
            name,
            st.session_state.get(f"control:{name}", ""),
            session.give_acceptance,
            help=f"One rate for all positions, or {k} rates separated by commas: the {RATES}. `draftcast acceptance` "
            "measures them.",
            placeholder="not given",
            width=230,
        )
        return
    if spec is not None:
        most = max(choices.longest_k(scenario) or 16, spec.k)
        number_control(session, "engine.speculative_config.num_speculative_tokens", width=150, max_value=most)
        if get_method(scenario.method).needs_draft_model:
            choice_control(session, "engine.speculative_config.model", choices.draft_models(scenario), width=170)
    choice_control(
        session,
        "acceptance.model",
        choices.ACCEPTANCE_MODELS,
        width=190,
        words=lambda model: WORDS.get(model, model),
        change=lambda model: choices.with_acceptance_model(scenario, model),
    )
    rates = getattr(acceptance, "rates", None)
    if rates is not None:
        control(
            st.text_input,
            "Acceptance rates",
            "acceptance.rates",
            ", ".join(f"{rate:g}" for rate in rates),
            lambda text: session.change(lambda: {"acceptance.rates": _rates(text)}),
            help=f"The {RATES}; they never rise.",
            width=230,
        )
        return
    name = "mean" if getattr(acceptance, "model", "") == "beta" else "alpha"
    if getattr(acceptance, name, None) is not None:
        number_control(session, f"acceptance.{name}", width=150, step=0.05)


def _as_spelled(names: list[str], *spellings: str) -> list[str]:
    """``names`` as the scenario and its base spell them, so that choosing the same changes nothing."""
    spelled = {canonical_name(spelling).lower(): spelling for spelling in reversed(spellings)}
    return [spelled.get(name.lower(), name) for name in names]


def _rates(text: str) -> list[float]:
    try:
        return [float(part) for part in text.replace(";", ",").split(",") if part.strip()]
    except ValueError:
        raise ScenarioError("must be numbers separated by commas", key="acceptance.rates", value=text) from None


def _assigned(text: str) -> dict[str, Any]:
    """One ``key=value`` as a change; the value is read as YAML."""
    key = text.partition("=")[0].strip()
    return {key: value_at(apply_overrides({}, [text]), key)} if text.strip() else {}
