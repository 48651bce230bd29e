"""Controls: each shows what the session holds and writes what its reader changes.

The session is the truth; a widget is set from it on every run, so that a link, an upload and another page's control
reach it too. Type and bounds of a scenario's key come from the schema.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import streamlit as st
from pydantic import BaseModel

from draftcast.dashboards.session.session import Session, View, one_of
from draftcast.scenarios.schema import Scenario

Change = Callable[[Any], Mapping[str, Any]]
# What a browser's numbers can hold exactly.
LARGEST = 2**53 - 1
LOAD = "Mean requests per second over all replicas; a trace is rescaled in time."
LENGTH = "Tokens of a request; the shape of the distribution stays."
RATE = "Probability that the target accepts a draft token."
# Label and help of every key of a scenario and every setting of a page that has a control of its own.
TEXTS: Mapping[str, tuple[str, str]] = {
    "engine.model": ("Model", "The target model; other Hugging Face models come with a scenario file."),
    "hardware": ("GPU", "The device; the badge says whether its times are measured."),
    "engine.tensor_parallel_size": ("TP", "Tensor parallel size: GPUs of one replica."),
    "cluster.replicas": ("Replicas", "Identical replicas behind the router."),
    "engine.max_num_seqs": ("max_num_seqs", "Maximum requests in a batch; empty: vLLM's default for the device."),
    "engine.max_num_batched_tokens": ("Batched tokens", "Maximum tokens in a step; empty: vLLM's default."),
    "workload.arrivals.process": ("Arrivals", "How requests arrive; a trace comes by upload."),
    "workload.arrivals.concurrency": ("Clients", "Each sends its next request when the last one is answered."),
    "workload.arrivals.request_rate_rps": ("Load, req/s", LOAD),
    "workload.lengths.prompt_tokens.value": ("Prompt tokens", LENGTH),
    "workload.lengths.prompt_tokens.mean": ("Prompt tokens, mean", LENGTH),
    "workload.lengths.output_tokens.value": ("Output tokens", LENGTH),
    "workload.lengths.output_tokens.mean": ("Output tokens, mean", LENGTH),
    "engine.speculative_config.num_speculative_tokens": ("Draft tokens k", "Draft tokens per round; depth of a tree."),
    "engine.speculative_config.model": ("Draft model", "A smaller model of the same vocabulary."),
    "acceptance.model": ("Acceptance", "How many drafts the target accepts. `draftcast acceptance` measures it."),
    "acceptance.alpha": ("Acceptance rate", RATE),
    "acceptance.mean": ("Mean rate", RATE),
    "slo.ttft_ms": ("TTFT, ms", "Upper bound on TTFT of a request; empty: no bound."),
    "slo.tpot_ms": ("TPOT, ms", "Upper bound on TPOT of a request; empty: no bound."),
    "slo.e2el_ms": ("E2E, ms", "Upper bound on E2E latency of a request; empty: no bound."),
    "slo.attainment": ("Attainment, %", "Share of the requests that must meet every bound."),
    "statistics.seed": ("Seed", "Random seed; the same seed gives the same figures, here and on the command line."),
    "statistics.replications": ("Replications", "Independent repetitions behind the intervals; one gives no interval."),
    "statistics.confidence": ("Interval", "Confidence level of every interval shown."),
    "workload.num_requests": (
        "Requests per run",
        "Requests that each replication serves. Until you give a number it follows the load: close to the capacity a "
        "run needs more to reach its steady state.",
    ),
    View.TRUST_OPERATOR: ("Operator", "Held-out points are predicted from the others."),
    View.COMPARE_REFERENCE: ("Compared with", "The run that all others are compared with."),
    View.CAPACITY_RATE: ("Target load, req/s", "Mean requests per second that the whole cluster must hold."),
    View.CAPACITY_HEADROOM: ("Headroom, %", "Load beyond the target at which the SLO must still hold."),
    View.CAPACITY_SPARE: ("Spare replicas", "Replicas that may fail: the others alone meet the SLO. 1 is N+1."),
    View.CAPACITY_METHODS: ("Methods", "Speculation off, and the scenario's own."),
    View.CAPACITY_HARDWARE: ("GPU types", "Candidates for the cluster."),
    View.CAPACITY_TP: ("Tensor parallel", "GPUs of one replica."),
    View.CAPACITY_CURVE: ("Candidate", "Its replicas, without spare ones, serve more and more load."),
    View.SWEEP_METRIC: ("Figure", "Named as in `draftcast simulate --json`; seconds, tokens, requests per second."),
    View.CUTOVER_OVER: ("Over", "The axis along which the cutover is searched."),
    View.CUTOVER_METRIC: ("Compared by", "The metric that speculation should improve."),
}


def control(
    widget: Callable[..., Any], label: str, name: str, value: Any, write: Callable[[Any], None], /, **options: Any
) -> None:
    """A Streamlit widget that shows ``value`` and hands what its reader changes to ``write``."""
    key = f"control:{name}"
    st.session_state[key] = value
    widget(label, key=key, on_change=lambda: write(st.session_state[key]), **options)


def number_control(
    session: Session,
    key: str,
    *,
    width: int,
    step: float | None = None,
    percent: bool = False,
    change: Change | None = None,
    **options: Any,
) -> None:
    """A key that holds a number; empty means the key's default.

    Args:
        step: of the widget's buttons.
        percent: show a share in per cent.
        change: from the number to changes of the scenario; that of the key alone where there is none.
        options: further ones of ``st.number_input``.
    """
    value, schema = _value_and_schema(session.question.scenario, key)
    kind = int if schema["type"] == "integer" else float
    scale = 100 if percent else 1
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    label, text = TEXTS[key]

    def changes(shown: float | None) -> Mapping[str, Any]:
        number = round(shown / scale, 6) if percent and shown is not None else shown
        return change(number) if change is not None else {key: number}

    bounds = {
        "min_value": kind(scale * low),
        "max_value": kind(scale * high) if high <= LARGEST else None,
        "step": kind(step) if step is not None else None,
        "format": "%.6g" if kind is float else None,
    }
    control(
        st.number_input,
        label,
        key,
        None if value is None else kind(scale * value),
        lambda shown: session.change(lambda: changes(shown)),
        **bounds | {"value": None, "help": text, "width": width} | options,
    )


def choice_control(
    session: Session,
    key: str,
    options: Sequence[Any],
    *,
    width: int,
    words: Callable[[Any], str] = str,
    change: Change | None = None,
) -> None:
    """A key that holds one of several; what the scenario holds is offered even where ``options`` lacks it."""
    value, _ = _value_and_schema(session.question.scenario, key)
    label, text = TEXTS[key]
    control(
        st.selectbox,
        label,
        key,
        value,
        lambda chosen: session.change(lambda: change(chosen) if change is not None else {key: chosen}),
        options=[*options, *([] if value in options else [value])],
        help=text,
        format_func=words,
        width=width,
    )


def view_choice(
    session: Session,
    view: View,
    options: Sequence[str],
    *,
    default: str | None = None,
    words: Callable[[str], str] = str,
    width: int = 320,
) -> str:
    """One of several for a page's own setting, which is kept in the link; the first where no ``default`` is named."""
    default = options[0] if default is None else default
    chosen = session.view(view, default, one_of(options))
    label, text = TEXTS[view]
    control(
        st.selectbox,
        label,
        view,
        chosen,
        lambda name: session.see(view, name, default),
        options=options,
        format_func=words,
        help=text,
        width=width,
    )
    return chosen


def _value_and_schema(scenario: Scenario, key: str) -> tuple[Any, Mapping[str, Any]]:
    """What the scenario holds under a key, None where it has no such section, and the key's JSON schema."""
    *path, name = key.split(".")
    section: Any = scenario
    model: type[BaseModel] = Scenario
    for part in path:
        section = getattr(section, part, None)
        model = type(section) if section is not None else _first_model(model.model_fields[part].annotation)
    schema = _properties(model)[name]
    # A key that may be absent is any of its type and null.
    return getattr(section, name, None), schema | schema.get("anyOf", [{}])[0]


def _first_model(annotation: Any) -> type[BaseModel]:
    while get_args(annotation):
        annotation = get_args(annotation)[0]
    model: type[BaseModel] = annotation
    return model


@functools.cache
def _properties(model: type[BaseModel]) -> dict[str, dict[str, Any]]:
    properties: dict[str, dict[str, Any]] = model.model_json_schema()["properties"]
    return properties
