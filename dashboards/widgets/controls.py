"""Controls: each shows what the session holds and writes what its reader changes.

The session is the truth; a widget is set from it on every run, so that a link, an upload and another page's control
reach it too. Type and bounds of a scenario's key come from the schema.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, get_args

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
REQUESTS = (
    "Requests that each replication serves. Until you give a number it follows the load: close to the capacity a run "
    "needs more to reach its steady state."
)


class Look(NamedTuple):
    """How a control looks: label, help, pixels, step of the buttons, and what stands where nothing is given."""

    label: str
    help: str
    width: int
    step: float | None = None
    placeholder: str | None = None


# Every key of a scenario and every setting of a page that has a control of its own.
LOOKS: Mapping[str, Look] = {
    "engine.model": Look("Model", "The target model; other Hugging Face models come with a scenario file.", 148),
    "hardware": Look("GPU", "The device; the badge says whether its times are measured.", 135),
    "engine.tensor_parallel_size": Look("TP", "Tensor parallel size: GPUs of one replica.", 80),
    "cluster.replicas": Look("Replicas", "Identical replicas behind the router.", 115),
    "engine.max_num_seqs": Look(
        "max_num_seqs", "Maximum requests in a batch; empty: vLLM's default for the device.", 140, 16, "default"
    ),
    "engine.max_num_batched_tokens": Look(
        "Batched tokens", "Maximum tokens in a step; empty: vLLM's default.", 140, 1024, "default"
    ),
    "workload.arrivals.process": Look("Arrivals", "How requests arrive; a trace comes by upload.", 170),
    "workload.arrivals.concurrency": Look(
        "Clients", "Each sends its next request when the last one is answered.", 150, 8
    ),
    "workload.arrivals.request_rate_rps": Look("Load, req/s", LOAD, 150, 1, "as recorded"),
    "workload.lengths.prompt_tokens.value": Look("Prompt tokens", LENGTH, 160, 32),
    "workload.lengths.prompt_tokens.mean": Look("Prompt tokens, mean", LENGTH, 160, 32),
    "workload.lengths.output_tokens.value": Look("Output tokens", LENGTH, 160, 32),
    "workload.lengths.output_tokens.mean": Look("Output tokens, mean", LENGTH, 160, 32),
    "engine.speculative_config.num_speculative_tokens": Look(
        "Draft tokens k", "Draft tokens per round; depth of a tree. 0: speculation off.", 230
    ),
    "engine.speculative_config.model": Look("Draft model", "A smaller model of the same vocabulary.", 170),
    "acceptance.model": Look(
        "Acceptance", "How many drafts the target accepts. `draftcast acceptance` measures it.", 190
    ),
    "acceptance.alpha": Look("Acceptance rate", RATE, 150, 0.05),
    "slo.ttft_ms": Look("TTFT, ms", "Upper bound on TTFT of a request; empty: no bound.", 118, 5, "none"),
    "slo.tpot_ms": Look("TPOT, ms", "Upper bound on TPOT of a request; empty: no bound.", 118, 5, "none"),
    "slo.e2el_ms": Look("E2E, ms", "Upper bound on E2E latency of a request; empty: no bound.", 118, 5, "none"),
    "slo.attainment": Look("Attainment, %", "Share of the requests that must meet every bound.", 118, 1, "99"),
    "statistics.seed": Look(
        "Seed", "Random seed; the same seed gives the same figures, here and on the command line.", 118
    ),
    "statistics.replications": Look(
        "Replications", "Independent repetitions behind the intervals; one gives no interval.", 118
    ),
    "statistics.confidence": Look("Interval", "Confidence level of every interval shown.", 118),
    "workload.num_requests": Look("Requests per run", REQUESTS, 160, 500, "all of the trace"),
    View.TRUST_OPERATOR: Look("Operator", "Held-out points are predicted from the others.", 320),
    View.COMPARE_REFERENCE: Look("Compared with", "The run that all others are compared with.", 420),
    View.CAPACITY_RATE: Look(
        "Target load, req/s", "Mean requests per second that the whole cluster must hold.", 160, 10.0
    ),
    View.CAPACITY_HEADROOM: Look("Headroom, %", "Load beyond the target at which the SLO must still hold.", 130, 10.0),
    View.CAPACITY_SPARE: Look(
        "Spare replicas", "Replicas that may fail: the others alone meet the SLO. 1 is N+1.", 130, 1
    ),
    View.CAPACITY_METHODS: Look("Methods", "Speculation off, and the scenario's own.", 230),
    View.CAPACITY_HARDWARE: Look("GPU types", "Candidates for the cluster.", 400),
    View.CAPACITY_TP: Look("Tensor parallel", "GPUs of one replica.", 260),
    View.CAPACITY_CURVE: Look("Candidate", "Its replicas, without spare ones, serve more and more load.", 320),
    View.SWEEP_METRIC: Look(
        "Figure", "Named as in `draftcast simulate --json`; seconds, tokens, requests per second.", 320
    ),
    View.CUTOVER_OVER: Look("Over", "The axis along which the cutover is searched.", 250),
    View.CUTOVER_METRIC: Look("Compared by", "The metric that speculation should improve.", 250),
}


def control(
    widget: Callable[..., Any],
    name: str,
    value: Any,
    write: Callable[[Any], None],
    look: Look | None = None,
    /,
    **options: Any,
) -> None:
    """A Streamlit widget that shows ``value`` and hands what its reader changes to ``write``; `LOOKS` has its look."""
    key = f"control:{name}"
    st.session_state[key] = value
    looks = {part: text for part, text in (look or LOOKS[name])._asdict().items() if text is not None}
    widget(key=key, on_change=lambda: write(st.session_state[key]), **looks | options)


def number_control(
    session: Session, key: str, *, percent: bool = False, change: Change | None = None, **options: Any
) -> None:
    """A key that holds a number, a share in ``percent`` if so asked; empty means the key's default.

    ``change``: from the number to changes of the scenario; that of the key alone where there is none.
    """
    value, schema = _value_and_schema(session.question.scenario, key)
    kind, scale, step = int if schema["type"] == "integer" else float, 100 if percent else 1, LOOKS[key].step
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))

    def changes(shown: float | None) -> Mapping[str, Any]:
        number = round(shown / scale, 6) if percent and shown is not None else shown
        return change(number) if change is not None else {key: number}

    bounds = {"min_value": kind(scale * low), "max_value": kind(scale * high) if high <= LARGEST else None}
    bounds["step"] = kind(step) if step is not None else None
    form = "%.6g" if kind is float else None
    shown = None if value is None else kind(scale * value)
    write = functools.partial(_change, session, changes)
    control(st.number_input, key, shown, write, format=form, **bounds | {"value": None} | options)


def choice_control(
    session: Session, key: str, options: Sequence[Any], words: Callable[[Any], str] = str, change: Change | None = None
) -> None:
    """A key that holds one of several; what the scenario holds is offered even where ``options`` lacks it."""
    value, _ = _value_and_schema(session.question.scenario, key)
    offered = list(dict.fromkeys([*options, value]))
    write = functools.partial(_change, session, change or (lambda chosen: {key: chosen}))
    control(st.selectbox, key, value, write, options=offered, format_func=words)


def _change(session: Session, changes: Change, value: Any) -> None:
    session.change(lambda: changes(value))


def view_choice(
    session: Session, view: View, options: Sequence[str], default: str | None = None, words: Callable[[str], str] = str
) -> str:
    """One of several for a page's own setting, which is kept in the link; the first where no ``default`` is named."""
    default = options[0] if default is None else default
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
    schema = _properties(model)[name]
    # A key that may be absent is any of its type and null.
    return getattr(section, name, None), schema | schema.get("anyOf", [{}])[0]


@functools.cache
def _properties(model: type[BaseModel]) -> dict[str, dict[str, Any]]:
    properties: dict[str, dict[str, Any]] = model.model_json_schema()["properties"]
    return properties
