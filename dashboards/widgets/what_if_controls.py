"""The controls of What-if: server, traffic, speculation; anything else as ``key=value``."""

from __future__ import annotations

from typing import Any

import streamlit as st

from draftcast.calibration.profile.hardware import hardware_names
from draftcast.dashboards.session.plain_text import literal
from draftcast.dashboards.session.session import Session, base_scenario, link_of_question
from draftcast.dashboards.session.uploads import trace_uploader
from draftcast.dashboards.widgets.controls import choice_control, number_control, text_control
from draftcast.errors import ScenarioError
from draftcast.kernels.model.catalog import canonical_name, model_names
from draftcast.scenarios.run import choices
from draftcast.scenarios.schema import METHODS, Scenario
from draftcast.scenarios.schema.load import apply_overrides
from draftcast.sim.cost.methods import get_method

PROCESSES = {
    "poisson": "Poisson",
    "gamma": "Gamma (bursty)",
    "deterministic": "even gaps",
    "closed_loop": "fixed clients",
    "trace": "trace",
    "piecewise": "piecewise",
}
ACCEPTANCE = {
    "per_position": "rate of each position",
    "constant": "one rate",
    "beta": "differs by request",
}
DEGREES = (1, 2, 4, 8, 16)
METHOD = "control:method"


def controls(session: Session) -> None:
    """All of them, in rows that wrap where the page is narrow."""
    scenario = session.question.scenario
    with st.container(border=True, key="controls"):
        with st.container(horizontal=True, gap="small"):
            _server(session, scenario)
        with st.container(horizontal=True, gap="small"):
            _traffic(session, scenario)
        with st.container(horizontal=True, gap="small"):
            _speculation(session, scenario)
        with st.expander("Trace upload and any other key"):
            trace_uploader(session)
            text_control(
                session,
                "Any other key",
                "other",
                "",
                help="As `--set` takes it, for example engine.gpu_memory_utilization=0.85 or policy.name=goodput.",
                placeholder="engine.block_size=32",
                change=_other,
                width=420,
            )
            changes = link_of_question(session.question)
            if changes:
                st.caption("Changed: " + literal(" · ".join(f"{key}={value}" for key, value in changes.items())))


def _server(session: Session, scenario: Scenario) -> None:
    engine, base = scenario.engine, base_scenario(session.question.base)
    choice_control(
        session,
        "Model",
        "engine.model",
        engine.model,
        _named(model_names(), engine.model, base.engine.model),
        help="The target model; other Hugging Face models come with a scenario file.",
        change=lambda model: choices.with_model(session.question.scenario, model),
        width=148,
    )
    choice_control(
        session,
        "GPU",
        "hardware",
        scenario.hardware,
        _named(hardware_names(), scenario.hardware, base.hardware),
        help="The device; the badge says whether its times are measured.",
        width=135,
    )
    choice_control(
        session,
        "TP",
        "engine.tensor_parallel_size",
        engine.tensor_parallel_size,
        DEGREES,
        help="Tensor parallel size: GPUs of one replica.",
        width=80,
    )
    number_control(
        session,
        "Replicas",
        "cluster.replicas",
        scenario.cluster.replicas,
        low=1,
        high=256,
        help="Identical replicas behind the router.",
        width=115,
    )
    number_control(
        session,
        "max_num_seqs",
        "engine.max_num_seqs",
        engine.max_num_seqs,
        low=1,
        step=16,
        placeholder="default",
        help="Most requests in a batch (vLLM --max-num-seqs); empty: vLLM's default for the device.",
        width=140,
    )
    number_control(
        session,
        "Batched tokens",
        "engine.max_num_batched_tokens",
        engine.max_num_batched_tokens,
        low=1,
        step=1024,
        placeholder="default",
        help="Most tokens in a step (vLLM --max-num-batched-tokens); empty: vLLM's default for the device.",
        width=140,
    )


def _traffic(session: Session, scenario: Scenario) -> None:
    arrivals = scenario.workload.arrivals
    choice_control(
        session,
        "Arrivals",
        "workload.arrivals.process",
        arrivals.process,
        choices.ARRIVALS,
        shown=lambda process: PROCESSES.get(process, process),
        help="How requests arrive; a trace comes by upload.",
        change=lambda process: choices.with_arrivals(session.question.scenario, process, _rate(scenario)),
        width=170,
    )
    rate = getattr(arrivals, "request_rate_rps", None)
    if arrivals.process == "closed_loop":
        number_control(
            session,
            "Clients",
            "workload.arrivals.concurrency",
            arrivals.concurrency,
            low=1,
            step=8,
            help="Each client sends its next request when the last one is answered.",
            width=150,
        )
    elif arrivals.process != "piecewise":
        number_control(
            session,
            "Load, req/s",
            "workload.arrivals.request_rate_rps",
            rate,
            low=0.0,
            step=1.0,
            format="%.6g",
            placeholder="as recorded",
            help="Mean requests per second over all replicas; a trace is rescaled in time.",
            change=lambda value: {"workload.arrivals.request_rate_rps": value},
            width=150,
        )
    lengths = scenario.workload.lengths
    for key, label in (("prompt_tokens", "Prompt tokens"), ("output_tokens", "Output tokens")):
        tokens = getattr(lengths, key, None)
        part = "value" if hasattr(tokens, "value") else "mean"
        value = getattr(tokens, part, None)
        if value is None:
            continue
        number_control(
            session,
            f"{label}, mean" if part == "mean" else label,
            f"workload.lengths.{key}.{part}",
            value,
            low=1 if isinstance(value, int) else 1.0,
            step=32 if isinstance(value, int) else 32.0,
            format=None if isinstance(value, int) else "%.6g",
            help=f"{label} of a request; the shape of the distribution stays.",
            width=160,
        )


def _speculation(session: Session, scenario: Scenario) -> None:
    spec, acceptance = scenario.speculative_config, scenario.acceptance
    st.session_state[METHOD] = session.wanted_method or (scenario.method if spec is not None else choices.OFF)
    st.selectbox(
        "Method",
        (choices.OFF, *METHODS),
        key=METHOD,
        help="How tokens are drafted. Acceptance is a method's own: another method asks for it.",
        width=170,
        on_change=lambda: session.want_method(st.session_state[METHOD]),
    )
    if session.wanted_method:
        _asked_acceptance(session, scenario)
        return
    if spec is not None:
        longest = choices.longest_k(scenario)
        covered = f" The acceptance has rates for {longest}." if longest is not None else ""
        number_control(
            session,
            "Draft tokens k",
            "engine.speculative_config.num_speculative_tokens",
            spec.k,
            low=1,
            high=longest or 16,
            help=f"Draft tokens per round (num_speculative_tokens); for trees the depth.{covered}",
            width=150,
        )
        if get_method(scenario.method).needs_draft_model:
            choice_control(
                session,
                "Draft model",
                "engine.speculative_config.model",
                spec.model,
                choices.draft_models(scenario),
                help="A smaller model of the same vocabulary.",
                width=170,
            )
    kind = acceptance.model if acceptance is not None else None
    choice_control(
        session,
        "Acceptance",
        "acceptance.model",
        kind,
        choices.ACCEPTANCE_MODELS,
        shown=lambda model: ACCEPTANCE.get(model, str(model)) if model else "not given",
        help="How many drafts the target accepts. Only your traffic knows: `draftcast acceptance` measures it.",
        change=lambda model: choices.with_acceptance_model(session.question.scenario, model),
        width=190,
    )
    _acceptance_value(session, scenario)


def _asked_acceptance(session: Session, scenario: Scenario) -> None:
    """Of the method that waits for it."""
    k = scenario.num_speculative_tokens or choices.DEFAULT_K
    key = f"control:acceptance.of.{session.wanted_method}"
    st.text_input(
        f"Acceptance of {session.wanted_method}",
        key=key,
        help=f"One rate for all positions, or {k} rates separated by commas: the share of rounds in which the first 1, "
        "2, 3, ... drafts were all accepted. `draftcast acceptance` measures them.",
        placeholder="not given",
        width=230,
        on_change=lambda: session.give_acceptance(st.session_state[key]),
    )


def _acceptance_value(session: Session, scenario: Scenario) -> None:
    acceptance = scenario.acceptance
    rates = getattr(acceptance, "rates", None)
    if rates is not None:
        text_control(
            session,
            "Acceptance rates",
            "acceptance.rates",
            ", ".join(f"{rate:g}" for rate in rates),
            help="Share of rounds in which the first 1, 2, 3, ... drafts were all accepted; they never rise.",
            change=lambda text: {"acceptance.rates": _rates(text)},
            width=230,
        )
        return
    key, label = {"beta": ("mean", "Mean rate")}.get(getattr(acceptance, "model", ""), ("alpha", "Acceptance rate"))
    value = getattr(acceptance, key, None)
    if value is not None:
        number_control(
            session,
            label,
            f"acceptance.{key}",
            value,
            low=0.0,
            high=1.0,
            step=0.05,
            format="%.4g",
            help="Probability that the target accepts a draft token.",
            width=150,
        )


def _rate(scenario: Scenario) -> float:
    return getattr(scenario.workload.arrivals, "request_rate_rps", None) or 1.0


def _named(names: list[str], *spellings: str) -> list[str]:
    """``names`` as the scenario and its base spell them, so that choosing the same changes nothing."""
    own = {canonical_name(spelling).lower(): spelling for spelling in reversed(spellings)}
    return [own.get(name.lower(), name) for name in names]


def _rates(text: str) -> list[float]:
    try:
        return [float(part) for part in text.replace(";", ",").split(",") if part.strip()]
    except ValueError:
        raise ScenarioError("must be numbers separated by commas", key="acceptance.rates", value=text) from None


def _other(text: str) -> dict[str, Any]:
    """One ``key=value`` as a change; the value is read as YAML."""
    key, _, _ = text.partition("=")
    values: Any = apply_overrides({}, [text]) if text.strip() else {}
    for part in key.strip().split(".") if text.strip() else []:
        values = values[part]
    return {key.strip(): values} if text.strip() else {}
