"""The forecast of a live run: its requests simulated, seen as its client saw them.

The simulator knows engines. What lies between client and engine is a measured term of its own (`FrontEnd`): it moves a
request's arrival in the engine after its sending and a piece's arrival at the client after its step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from draftcast.calibration.profile.spec import FrontEnd
from draftcast.scenarios.live.validate.figures import run_figures
from draftcast.scenarios.live.validate.question import Question
from draftcast.scenarios.run.deployment import with_excess
from draftcast.scenarios.run.simulate import BehindFrontEnd, replicate
from draftcast.scenarios.run.workload_spec import slos
from draftcast.scenarios.schema.load import with_values
from draftcast.sim.compiled.random_streams import replication_seed

FloatArray = NDArray[np.float64]

NOTHING = FrontEnd(0.0, 0.0, 0.0, 0.0)
# Between two requests that are sent at the same moment, on their way into the engine. Far shorter than a step; only
# that it is not nothing matters.
_ENTRY_GAP_S = 1e-4


@dataclass(frozen=True)
class Assumptions:
    """What a forecast takes from elsewhere than scenario and server."""

    acceptance: Mapping[str, Any] | None = None  # a scenario's acceptance section; None: the scenario's own
    # decode_excess, prompt_excess: share by which steps without and with prompts last longer than the profile says
    decode_excess: float = 0.0
    prompt_excess: float = 0.0
    front_end: FrontEnd = NOTHING  # seconds between client and engine


@dataclass(frozen=True)
class Replay:
    """One replication as the client saw it."""

    requests: pd.DataFrame  # as of a simulation, with the client's times
    steps: pd.DataFrame  # the engine's, with ``step_s``, what each took
    itl_counts: NDArray[np.int64]  # histogram of the gaps between emissions
    figures: dict[str, float]  # by name, see `run_figures`


class _Turnaround(BehindFrontEnd):
    """Clients of a closed loop, with what passes between engine and client on either side of their think time.

    They begin together, but the front end takes their first requests one after the other: an engine that was idle
    begins its first step with the first alone.
    """

    def draw_think_s(self, seed: int, n: int) -> FloatArray:
        entry_s = np.where(np.arange(n) < self.concurrency, _ENTRY_GAP_S * np.arange(n), 0.0)
        return super().draw_think_s(seed, n) + entry_s


def forecast(question: Question, assumptions: Assumptions) -> list[Replay]:
    """Play the run's requests, as often as the scenario asks for replications."""
    scenario, front_end = question.scenario, assumptions.front_end
    if assumptions.acceptance is not None and scenario.speculative_config is not None:
        # One acceptance was measured over all classes.
        classes = [{**entry.model_dump(mode="json"), "acceptance": None} for entry in scenario.workload.classes]
        values = {"acceptance": dict(assumptions.acceptance), "workload.classes": classes}
        scenario = with_values(scenario, values)
    cost = with_excess(question.deployment.cost, assumptions.decode_excess, assumptions.prompt_excess)
    deployment = dataclasses.replace(question.deployment, cost=cost)
    table, loop = question.table, question.loop
    if loop is None:
        table = dataclasses.replace(table, arrival_s=table.arrival_s + front_end.request_s)
    else:
        added_s = front_end.request_s + front_end.output_s + front_end.turnaround_s
        loop = _Turnaround(**loop.model_dump(), added_s=added_s)
        table = dataclasses.replace(table, arrival_s=np.zeros(len(table)), has_arrivals=False)
    replays = []
    for number in range(scenario.statistics.replications):
        seed = replication_seed(scenario.statistics.seed, number)
        done = replicate(scenario, loop, deployment, table, seed, None, True)
        assert done.steps is not None
        steps = done.steps.assign(step_s=done.steps[["host_s", "draft_s", "target_s"]].sum(axis=1))
        requests = _at_client(done.requests, steps, front_end)
        positions = done.accepted_per_position
        figures = run_figures(requests, done.itl_counts, slos(scenario), loop is not None, positions)
        replays.append(Replay(requests, steps, done.itl_counts.sum(axis=0), figures))
    return replays


def _at_client(requests: pd.DataFrame, steps: pd.DataFrame, front_end: FrontEnd) -> pd.DataFrame:
    """Times of sending and of the pieces' arrival at the client."""
    ends = (steps["start_s"] + steps["duration_s"]).to_numpy(np.float64)
    outputs = steps["num_seqs"].to_numpy(np.float64)
    seen = {"arrival_s": requests["arrival_s"].to_numpy(np.float64) - front_end.request_s}
    for name in ("first_token_s", "finish_s"):
        at = requests[name].to_numpy(np.float64)
        # The step that ended then; its end is this very number, but for rounding.
        step = np.clip(np.searchsorted(ends, at - 1e-9), 0, len(ends) - 1)
        seen[name] = at + front_end.output_s + front_end.output_sequence_s * outputs[step]
    return requests.assign(**seen)
