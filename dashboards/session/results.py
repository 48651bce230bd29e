"""Simulated answers, kept while the server runs: the same question is simulated once, whoever asks it.

A result is shared between sessions, so nobody may change it. What a session uploaded is part of the key: another
session's file is another question.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from draftcast.dashboards.session.collector import set_aside
from draftcast.dashboards.session.kept import Kept
from draftcast.scenarios.compare.capacity import rate_of
from draftcast.scenarios.compare.comparison import Point, point_of
from draftcast.scenarios.compare.limits import Limits, limits_at
from draftcast.scenarios.compare.verdict import Side
from draftcast.scenarios.run.deployment import Deployment
from draftcast.scenarios.run.deployment_cache import cached_deployment
from draftcast.scenarios.run.fluid import Fluid
from draftcast.scenarios.run.simulate import RunResult, Served, measure, serve
from draftcast.scenarios.run.timeline import Timeline, timeline
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import scenario_hash, to_mapping, without_speculation
from draftcast.scenarios.schema.references import outside_names

# A run of 2,000 requests and four replications is some megabytes, one close to the capacity some tens.
MOST_KEPT = 32
PATIENCE_S = 0.8
"""Whoever waits no longer than this needs no word of it: showing one and taking it away draws the page twice."""

_LOOK_EVERY_S = 0.5


@dataclass(frozen=True)
class Answer:
    """What ``draftcast simulate`` answers, with what the pictures need.

    Attributes:
        scenario: the question.
        point: its run, without step records, and the verdict on it where it speculates.
        timeline: of the first replication.
        deployment: what the scenario's engine came to.
        hash: ``scenario_hash``.
    """

    scenario: Scenario
    point: Point
    timeline: Timeline
    deployment: Deployment
    hash: str

    @property
    def own(self) -> Side:
        """The setting at its load."""
        return self.point.own

    @property
    def run(self) -> RunResult:
        """As `simulate` gives it, measured together with that without speculation."""
        return self.point.on

    @functools.cached_property
    def limits(self) -> Limits:
        """What limits it."""
        figures = {}
        if self.own.has_figures:
            figures = {name: estimate.mean for name, estimate in self.run.summary["figures"].items()}
        rate = rate_of(self.scenario) if self.own.state != "overloaded" else None
        return limits_at(self.scenario, Fluid.of(self.scenario, self.deployment), figures, rate)


_served: Kept[tuple[Served, Timeline]] = Kept(MOST_KEPT)
_answers: Kept[Answer] = Kept(MOST_KEPT)
_pairs: Kept[tuple[Side, Side]] = Kept(MOST_KEPT)


def answer(scenario: Scenario) -> Answer:
    """Simulate, or take what was simulated.

    Raises:
        InputError: the scenario cannot be run.
    """
    asked = question_key(scenario)
    return _answers.get(asked, lambda: _answered(scenario, asked[0]))


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


def together(first: Answer, second: Answer) -> tuple[Side, Side]:
    """Two settings measured over the same requests, to be compared; as they are where they serve different numbers."""

    def measured() -> tuple[Side, Side]:
        (a, _), (b, _) = _serve(first.scenario), _serve(second.scenario)
        if [len(r.requests) for r in a.replications] != [len(r.requests) for r in b.replications]:
            return first.own, second.own
        one, two = measure([a, b])
        return replace(first.own, run=one), replace(second.own, run=two)

    return _pairs.get((question_key(first.scenario), question_key(second.scenario)), measured)


def question_key(scenario: Scenario) -> tuple[str, tuple[str, ...]]:
    """What tells one question from another, whoever asks it."""
    return scenario_hash(scenario), tuple(sorted(outside_names(to_mapping(scenario)).values()))


def _answered(scenario: Scenario, asked: str) -> Answer:
    sides = [scenario, *([without_speculation(scenario)] if scenario.speculative_config is not None else [])]
    with ThreadPoolExecutor(len(sides)) as threads:
        served = list(threads.map(_serve, sides))
    runs = measure([each for each, _ in served])
    return Answer(scenario, point_of(scenario, runs), served[0][1], served[0][0].deployment, asked)


def _serve(scenario: Scenario) -> tuple[Served, Timeline]:
    """The requests served, for whatever they are compared with."""

    def make() -> tuple[Served, Timeline]:
        deployment = cached_deployment(scenario)
        recorded = serve(scenario, record_steps="first", deployment=deployment)
        first = recorded.replications[0]
        shown = timeline(first.requests, first.steps, deployment.settings.num_gpu_blocks - 1)
        return recorded.without_steps(), shown

    return _served.get(question_key(scenario), make)
