"""Simulated answers, kept while the server runs: the same question is simulated once, whoever asks it.

A result is shared between sessions, so nobody may change it. What a session uploaded is part of the key: another
session's file is another question.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import streamlit as st

from draftcast.dashboards.tiles import PER_GPU, Side
from draftcast.scenarios.deployment import Deployment
from draftcast.scenarios.load import scenario_hash, to_mapping
from draftcast.scenarios.references import outside_names
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.simulate import RunResult, Served, measure, serve
from draftcast.scenarios.timeline import Timeline, timeline
from draftcast.sim.metrics import summarise

# A run of 2,000 requests and three replications is some megabytes.
MOST_KEPT = 48


@dataclass(frozen=True)
class Answer:
    """A run with what its pictures need.

    Attributes:
        scenario: the question.
        run: as `simulate` gives it, without step records.
        timeline: of the first replication.
        deployment: what the scenario's engine came to.
        hash: ``scenario_hash``.
    """

    scenario: Scenario
    run: RunResult
    timeline: Timeline
    deployment: Deployment
    hash: str


def answer(scenario: Scenario) -> Answer:
    """Simulate, or take what was simulated.

    Raises:
        InputError: the scenario cannot be run.
    """
    return _answer(*question_key(scenario), scenario)[0]


def together(first: Scenario, second: Scenario) -> tuple[RunResult, RunResult] | None:
    """Two runs measured over the same requests, to be compared; None where they serve different numbers of them."""
    a, b = (_answer(*question_key(scenario), scenario)[1] for scenario in (first, second))
    if [len(r.requests) for r in a.replications] != [len(r.requests) for r in b.replications]:
        return None
    return _together(*question_key(first), *question_key(second), a, b)


def question_key(scenario: Scenario) -> tuple[str, tuple[str, ...]]:
    """What tells one question from another, whoever asks it."""
    return scenario_hash(scenario), tuple(sorted(outside_names(to_mapping(scenario)).values()))


@st.cache_resource(max_entries=MOST_KEPT, show_spinner=False)
def _answer(asked: str, files: tuple[str, ...], _scenario: Scenario) -> tuple[Answer, Served]:
    served = serve(_scenario, record_steps=True)
    run = measure([served])[0]
    shown = timeline(run)
    # Step records are the bulk of a run; what the pictures need of them is in the timeline.
    bare = [dataclasses.replace(each, steps=None) for each in served.replications]
    found = Answer(_scenario, dataclasses.replace(run, steps=None), shown, served.deployment, asked)
    return found, dataclasses.replace(served, replications=bare)


@st.cache_resource(max_entries=MOST_KEPT, show_spinner=False)
def _together(
    first: str, first_files: tuple[str, ...], second: str, second_files: tuple[str, ...], _a: Served, _b: Served
) -> tuple[RunResult, RunResult]:
    one, other = measure([_a, _b])
    return one, other


def side_of(scenario: Scenario, run: RunResult) -> Side:
    """A run's figures for tiles, with tokens per second and device."""
    gpus = scenario.cluster.replicas * scenario.engine.tensor_parallel_size
    replications = [{**each, PER_GPU: each["output_throughput"] / gpus} for each in run.replications]
    return Side(summarise(replications, scenario.statistics.confidence), replications)
