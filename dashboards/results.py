"""Simulated answers, kept while the server runs: the same question is simulated once, whoever asks it.

A result is shared between sessions, so nobody may change it. What a session uploaded is part of the key: another
session's file is another question.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from draftcast.dashboards.collector import set_aside
from draftcast.dashboards.kept import Kept
from draftcast.dashboards.tiles import PER_GPU, Side
from draftcast.scenarios.deployment import Deployment
from draftcast.scenarios.deployment_cache import cached_deployment
from draftcast.scenarios.load import scenario_hash, to_mapping
from draftcast.scenarios.references import outside_names
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.simulate import RunResult, Served, measure, serve
from draftcast.scenarios.timeline import Timeline, timeline
from draftcast.sim.metrics import summarise

# A run of 2,000 requests and three replications is some megabytes.
MOST_KEPT = 48
PATIENCE_S = 0.8
"""Whoever waits no longer than this needs no word of it: showing one and taking it away draws the page twice."""

_LOOK_EVERY_S = 0.5


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


_answers: Kept[tuple[Answer, Served]] = Kept(MOST_KEPT)
_pairs: Kept[tuple[RunResult, RunResult]] = Kept(MOST_KEPT)


def answer(scenario: Scenario) -> Answer:
    """Simulate, or take what was simulated.

    Raises:
        InputError: the scenario cannot be run.
    """
    return _answer(scenario)[0]


def answers(
    scenarios: Sequence[Scenario],
    waiting: Callable[[], AbstractContextManager[Callable[[], None]]] = lambda: nullcontext(lambda: None),
) -> list[Answer]:
    """`answer` of each; they are simulated side by side, since the engine runs without Python's lock.

    ``waiting()`` is entered when that takes longer than ``PATIENCE_S``; what it gives is called every so often.

    Raises:
        InputError: of the first that cannot be run.
    """
    with ThreadPoolExecutor(len(scenarios)) as threads:
        asked = [threads.submit(answer, scenario) for scenario in scenarios]
        if wait(asked, PATIENCE_S).not_done:
            with waiting() as look:
                look()
                while wait(asked, _LOOK_EVERY_S).not_done:
                    look()
        found = [each.result() for each in asked]
    _set_engine_aside()
    return found


@functools.cache
def _set_engine_aside() -> None:
    """The first answer has loaded the compiled engine."""
    set_aside()


def together(first: Scenario, second: Scenario) -> tuple[RunResult, RunResult] | None:
    """Two runs measured over the same requests, to be compared; None where they serve different numbers of them."""
    (a, served), (b, other) = _answer(first), _answer(second)
    if [len(r.requests) for r in served.replications] != [len(r.requests) for r in other.replications]:
        return None

    def measured() -> tuple[RunResult, RunResult]:
        one, two = measure([served, other], [a.run, b.run])
        return one, two

    return _pairs.get((question_key(first), question_key(second)), measured)


def question_key(scenario: Scenario) -> tuple[str, tuple[str, ...]]:
    """What tells one question from another, whoever asks it."""
    return scenario_hash(scenario), tuple(sorted(outside_names(to_mapping(scenario)).values()))


def _answer(scenario: Scenario) -> tuple[Answer, Served]:
    asked = question_key(scenario)
    return _answers.get(asked, lambda: _simulated(scenario, asked[0]))


def _simulated(scenario: Scenario, asked: str) -> tuple[Answer, Served]:
    deployment = cached_deployment(scenario)
    recorded = serve(scenario, record_steps="first", deployment=deployment)
    first = recorded.replications[0]
    shown = timeline(first.requests, first.steps, deployment.settings.num_gpu_blocks - 1)
    served = recorded.without_steps()
    return Answer(scenario, measure([served])[0], shown, deployment, asked), served


def side_of(scenario: Scenario, run: RunResult) -> Side:
    """A run's figures for tiles, with tokens per second and device."""
    gpus = scenario.cluster.replicas * scenario.engine.tensor_parallel_size
    per_gpu = [{PER_GPU: each["output_throughput"] / gpus} for each in run.replications]
    figures = run.summary["figures"] | summarise(per_gpu, scenario.statistics.confidence)
    return Side(figures, [{**each, **own} for each, own in zip(run.replications, per_gpu, strict=True)])
