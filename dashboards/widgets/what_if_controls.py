"""The controls of What-if: server, traffic, speculation; anything else as ``key=value``."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import streamlit as st

from draftcast.calibration.profile.hardware import hardware_names
from draftcast.dashboards.session.plain_text import literal
from draftcast.dashboards.session.question import base_scenario
from draftcast.dashboards.session.session import Session
from draftcast.dashboards.session.uploads import TRACE, uploader
from draftcast.dashboards.widgets.controls import Look, choice_control, control, number_control
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
OTHER_HELP = "As `--set` takes it, for example engine.gpu_memory_utilization=0.85 or policy.name=goodput."
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
            look = Look("Any other key", OTHER_HELP, 420, placeholder="engine.block_size=32")
            control(st.text_input, "other", "", lambda text: session.change(lambda: _assigned(text)), look)
            link = session.question.link
            if link:
                st.caption("Changed: " + literal(" · ".join(f"{key}={value}" for key, value in link.items())))


def _server(session: Session, scenario: Scenario) -> None:
    base = base_scenario(session.question.base)
    models = _as_spelled(model_names(), scenario.engine.model, base.engine.model)
    devices = _as_spelled(hardware_names(), scenario.hardware, base.hardware)
    choice_control(session, "engine.model", models, change=lambda model: choices.with_model(scenario, model))
    choice_control(session, "hardware", devices)
    choice_control(session, "engine.tensor_parallel_size", DEGREES)
    for key in ("cluster.replicas", "engine.max_num_seqs", "engine.max_num_batched_tokens"):
        number_control(session, key)


def _traffic(session: Session, scenario: Scenario) -> None:
    arrivals, lengths = scenario.workload.arrivals, scenario.workload.lengths
    rate_rps = getattr(arrivals, "request_rate_rps", None) or 1.0

    def change(process: str) -> Mapping[str, Any]:
        return choices.with_arrivals(scenario, process, rate_rps)

    choice_control(session, "workload.arrivals.process", choices.ARRIVALS, _word, change)
    if arrivals.process == "closed_loop":
        number_control(session, "workload.arrivals.concurrency")
    elif arrivals.process != "piecewise":
        number_control(session, "workload.arrivals.request_rate_rps")
    for name, part in itertools.product(("prompt_tokens", "output_tokens"), ("value", "mean")):
        if hasattr(getattr(lengths, name, None), part):
            number_control(session, f"workload.lengths.{name}.{part}")


def _speculation(session: Session, scenario: Scenario) -> None:
    spec, acceptance = scenario.speculative_config, scenario.acceptance
    wanted = session.wanted_method
    method = wanted or (scenario.method if spec is not None else choices.OFF)
    look = Look("Method", "How tokens are drafted. Acceptance is a method's own: another method asks for it.", 170)
    control(st.selectbox, "method", method, session.want_method, look, options=(choices.OFF, *METHODS))
    if wanted:
        k = scenario.num_speculative_tokens or choices.DEFAULT_K
        text = f"One rate for all positions, or {k} rates separated by commas: the {RATES}."
        text += " `draftcast acceptance` measures them."
        look = Look(f"Acceptance of {wanted}", text, 230, placeholder="not given")
        name = f"acceptance.of.{wanted}"
        typed = st.session_state.get(f"control:{name}", "")
        control(st.text_input, name, typed, session.give_acceptance, look)
        return
    if spec is not None:
        most = max(choices.longest_k(scenario) or 16, spec.k)
        number_control(session, "engine.speculative_config.num_speculative_tokens", max_value=most)
        if get_method(scenario.method).needs_draft_model:
            choice_control(session, "engine.speculative_config.model", choices.draft_models(scenario))

    def change(model: str) -> Mapping[str, Any]:
        return choices.with_acceptance_model(scenario, model)

    choice_control(session, "acceptance.model", choices.ACCEPTANCE_MODELS, _word, change)
    rates = getattr(acceptance, "rates", None)
    if rates is not None:
        look = Look("Acceptance rates", f"The {RATES}; they never rise.", 230)
        text = ", ".join(f"{rate:g}" for rate in rates)
        control(st.text_input, "acceptance.rates", text, lambda typed: session.change(lambda: _rates(typed)), look)
        return
    name = "mean" if getattr(acceptance, "model", "") == "beta" else "alpha"
    if getattr(acceptance, name, None) is not None:
        number_control(session, f"acceptance.{name}")


def _word(name: str | None) -> str:
    return WORDS.get(name, str(name))


def _as_spelled(names: list[str], *spellings: str) -> list[str]:
    """``names`` as the scenario and its base spell them, so that choosing the same changes nothing."""
    spelled = {canonical_name(spelling).lower(): spelling for spelling in reversed(spellings)}
    return [spelled.get(name.lower(), name) for name in names]


def _rates(text: str) -> dict[str, list[float]]:
    try:
        return {"acceptance.rates": [float(part) for part in text.replace(";", ",").split(",") if part.strip()]}
    except ValueError:
        raise ScenarioError("must be numbers separated by commas", key="acceptance.rates", value=text) from None


def _assigned(text: str) -> dict[str, Any]:
    """One ``key=value`` as a change; the value is read as YAML."""
    key = text.partition("=")[0].strip()
    return {key: value_at(apply_overrides({}, [text]), key)} if text.strip() else {}
