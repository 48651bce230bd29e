"""Simulated answers, kept while the server runs: the same question is simulated once, whoever asks it.

A result is shared between sessions, so nobody may change it. What a session uploaded is part of the key: another
session's file is another question.
"""

import functools
import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace

import streamlit as st

from draftcast.scenarios.compare.comparison import RatePoint, point_of
from draftcast.scenarios.compare.limits import Limits, limits_at
from draftcast.scenarios.compare.verdict import Side
from draftcast.scenarios.run.deployment import Deployment, cached_deployment
from draftcast.scenarios.run.fluid import FluidModel
from draftcast.scenarios.run.kept import AnswerCache
from draftcast.scenarios.run.simulate import RunResult, ServedScenario, measure, serve
from draftcast.scenarios.run.timeline import Timeline, timeline
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import scenario_hash, to_mapping, without_speculation
from draftcast.scenarios.schema.references import outside_names
from draftcast.sim.compiled.cache import COMPILING, engine_compilation

# A run of 2,000 requests and four replications takes some megabytes, one close to the capacity some tens.
MOST_KEPT = 32
PATIENCE_S = 0.8  # a shorter wait is not announced: showing a word and taking it away draws the page twice
_LOOK_EVERY_S = 0.5


@dataclass(frozen=True)
class SimulateAnswer:
    """What ``draftcast simulate`` answers, with what the pictures need."""

    scenario: Scenario
    point: RatePoint  # its run, without step records, and the verdict on it where it speculates
    timeline: Timeline  # of the first replication
    deployment: Deployment
    hash: str

    @property
    def side(self) -> Side:
        return self.point.side

    @property
    def run(self) -> RunResult:
        """As `simulate` gives it, measured together with that without speculation."""
        return self.point.on

    @functools.cached_property
    def limits(self) -> Limits:
        estimates = self.run.summary["figures"] if self.side.has_figures else {}
        figures = {name: estimate.mean for name, estimate in estimates.items()}
        rate = self.scenario.rate_rps if self.side.state != "overloaded" else None
        return limits_at(self.scenario, FluidModel.of(self.scenario), figures, rate)


# Streamlit's own cache replays what was drawn while an answer was made; these are made under a progress bar that must
# be gone afterwards, or in a thread that draws nothing.
_served: AnswerCache[tuple[ServedScenario, Timeline]] = AnswerCache(MOST_KEPT)
_answers: AnswerCache[SimulateAnswer] = AnswerCache(MOST_KEPT)
_pairs: AnswerCache[tuple[Side, Side]] = AnswerCache(MOST_KEPT)


def answer(scenario: Scenario) -> SimulateAnswer:
    """Simulate, or take what was simulated. Raises InputError: the scenario cannot be run."""
    return _answers.get(question_key(scenario), lambda: _simulated(scenario))


def answers(*scenarios: Scenario) -> list[SimulateAnswer]:
    """`answer` of several scenarios, simulated side by side: the engine runs without Python's lock."""
    with ThreadPoolExecutor(len(scenarios)) as threads:
        futures = [threads.submit(answer, scenario) for scenario in scenarios]
        if wait(futures, PATIENCE_S).not_done:
            with simulating() as tell:
                tell()
                while wait(futures, _LOOK_EVERY_S).not_done:
                    tell()
        results = [future.result() for future in futures]
    _set_engine_aside()
    return results


@contextmanager
def simulating() -> Iterator[Callable[[], None]]:
    """A spinner; where the engine has to be compiled first it says so, once what it gives is called."""
    note = None

    def tell() -> None:
        nonlocal note
        if engine_compilation.running and note is None:
            note = st.info(f"{COMPILING[0].upper()}{COMPILING[1:]}.", icon=":material/hourglass_top:")

    with st.spinner("Simulating"):
        yield tell
    if note is not None:
        note.empty()


def together(first: SimulateAnswer, second: SimulateAnswer) -> tuple[Side, Side]:
    """Two settings measured over the same requests, to be compared; as they are where they serve different numbers."""

    def measured() -> tuple[Side, Side]:
        (a, _), (b, _) = _serve(first.scenario), _serve(second.scenario)
        if [len(r.requests) for r in a.replications] != [len(r.requests) for r in b.replications]:
            return first.side, second.side
        one, two = measure([a, b])
        return replace(first.side, run=one), replace(second.side, run=two)

    return _pairs.get((question_key(first.scenario), question_key(second.scenario)), measured)


def question_key(scenario: Scenario) -> tuple[str, tuple[str, ...]]:
    """What tells one question from another, whoever asks it."""
    return scenario_hash(scenario), tuple(sorted(outside_names(to_mapping(scenario)).values()))


def set_aside() -> None:
    """Collect garbage, then leave what remains (libraries, compiled code) out of collections until the next call.

    Streamlit collects after every run of the script: looking at 250,000 objects took 0.14 s of Python's lock each time,
    while the page was still being drawn.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


_set_engine_aside = functools.cache(set_aside)  # once: the first answer has loaded the compiled engine


def _simulated(scenario: Scenario) -> SimulateAnswer:
    sides = [scenario, *([without_speculation(scenario)] if scenario.speculative_config is not None else [])]
    with ThreadPoolExecutor(len(sides)) as threads:
        served = list(threads.map(_serve, sides))
    runs = measure([run for run, _ in served])
    deployment, key = served[0][0].deployments[0], question_key(scenario)
    return SimulateAnswer(scenario, point_of(scenario, runs), served[0][1], deployment, key[0])


def _serve(scenario: Scenario) -> tuple[ServedScenario, Timeline]:
    """The requests served, for whatever they are compared with."""

    def make() -> tuple[ServedScenario, Timeline]:
        deployment = cached_deployment(scenario)
        recorded = serve(scenario, record_steps="first", deployment=deployment)
        first = recorded.replications[0]
        blocks, goes_on = deployment.settings.num_gpu_blocks - 1, first.stability.verdict != "finite"
        return recorded.without_steps(), timeline(first.requests, first.steps, blocks, goes_on=goes_on)

    return _served.get(question_key(scenario), make)
