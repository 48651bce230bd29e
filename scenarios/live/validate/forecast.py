"""The forecast of a live run: its requests simulated and seen as its client saw them, and the figures of both.

The simulator knows engines. What lies between client and engine is a measured term of its own (`FrontEnd`): it moves a
request's arrival in the engine after its sending and a piece's arrival at the client after its step.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from draftcast.calibration.profile.spec import FrontEnd
from draftcast.kernels.arrays import FloatArray, IntArray
from draftcast.scenarios.live.validate.question import Question
from draftcast.scenarios.run.deployment import with_excess
from draftcast.scenarios.run.measured_run import counted_acceptance, piece_gaps
from draftcast.scenarios.run.simulate import BehindFrontEnd, replicate
from draftcast.scenarios.run.timeline import Timeline
from draftcast.scenarios.schema.load import with_values
from draftcast.sim.compiled.itl_histogram import itl_histogram
from draftcast.sim.compiled.random_streams import replication_seed
from draftcast.sim.output.metrics import compute_metrics
from draftcast.sim.workload.workload import Slo

NOTHING = FrontEnd(0.0, 0.0, 0.0, 0.0)
# Between two requests sent at the same moment; any time far shorter than a step will do.
_ENTRY_GAP_S = 1e-4


@dataclass(frozen=True)
class Assumptions:
    acceptance: Mapping[str, Any] | None = None  # a scenario's acceptance section; None: the scenario's own
    decode_excess: float = 0.0  # share by which steps without prompts last longer than the profile says
    prompt_excess: float = 0.0  # the same of steps with prompts
    front_end: FrontEnd = NOTHING  # seconds between client and engine


@dataclass(frozen=True)
class Replay:
    requests: pd.DataFrame  # as of a simulation, with the client's times
    steps: pd.DataFrame  # the engine's, with ``step_s``, what each took
    itl_counts: IntArray  # histogram of the gaps between emissions
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
        done = replicate(scenario, loop, [deployment], table, seed, None, True)
        assert done.steps is not None
        steps = done.steps.assign(step_s=done.steps[["host_s", "draft_s", "target_s"]].sum(axis=1))
        requests, counts = _at_client(done.requests, steps, front_end), done.itl_counts
        figures = run_figures(requests, counts, scenario.slos, loop is not None, done.accepted_per_position)
        replays.append(Replay(requests, steps, counts.sum(axis=0), figures))
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


# ---- figures: one definition for live and simulated ----

_STATISTICS = ("mean", "median", "p95")
_LATENCIES = ("ttft", "tpot", "itl", "e2el")
FIGURES = (
    *(f"{statistic}_{name}_s" for name in _LATENCIES for statistic in _STATISTICS),
    "output_throughput",
    "busy_throughput",
    "request_throughput",
    "request_goodput",
    "slo_attainment",
    "mean_acceptance_length",
    "acceptance_rate",
)
"""What is compared, beside the acceptance by draft position (``acceptance_rate_position_<i>``). *busy_throughput* is a
closed loop's: output tokens a second until the last request is sent, while every user has one in the system."""

# A closed loop whose users send for less than this share of the run says little about being busy.
_LEAST_BUSY = 0.2


def run_figures(
    requests: pd.DataFrame,
    itl_counts: Any,
    objectives: Mapping[str, Slo],
    closed_loop: bool,
    accepted_per_position: Any = None,
) -> dict[str, float]:
    """`FIGURES` over the whole run: nothing is cut off, whatever the load did; NaN where undefined."""
    slo = dict(objectives) or None
    metrics = compute_metrics(requests, itl_counts, slo=slo, accepted_per_position=accepted_per_position)
    found = {**metrics.transient, **metrics.summary()}
    found["busy_throughput"] = _busy_throughput(requests) if closed_loop else math.nan
    positions = [name for name in found if name.startswith("acceptance_rate_position_")]
    return {name: float(found.get(name, math.nan)) for name in (*FIGURES, *positions)}


def live_figures(question: Question) -> dict[str, float]:
    """The same of the recorded run; acceptance is the server's own count."""
    requests = question.requests
    counts = itl_histogram(*piece_gaps(question.live.chunks, requests["request_id"].to_numpy()), len(requests))
    figures = run_figures(requests, counts, question.scenario.slos, question.loop is not None)
    return figures | counted_acceptance(question.live)


def _busy_throughput(requests: pd.DataFrame) -> float:
    """Output tokens a second from the first to the last sending; an answer's tokens spread evenly after its first."""
    sent_s = requests["arrival_s"].to_numpy(np.float64)
    start_s, end_s = float(sent_s.min()), float(sent_s.max())
    if end_s - start_s < _LEAST_BUSY * (float(requests["finish_s"].max()) - start_s):
        return math.nan
    first_s = requests["first_token_s"].to_numpy(np.float64)
    answer_s = np.maximum(requests["finish_s"].to_numpy(np.float64) - first_s, 1e-9)
    rest = (requests["output_tokens"].to_numpy(np.float64) - 1.0) * np.clip((end_s - first_s) / answer_s, 0.0, 1.0)
    return float((rest + 1.0)[first_s <= end_s].sum()) / (end_s - start_s)


def live_timeline(steps: pd.DataFrame, requests: pd.DataFrame) -> Timeline:
    """Levels at the ends of logged steps, see `draftcast.calibration.live.composition.compose`.

    Whoever has been sent, has no answer yet and is in no step waits (or is on its way).
    """
    time_s = steps["time_s"].to_numpy(np.float64)
    running = steps["seqs"].to_numpy(np.float64)
    sent = np.sort(requests["arrival_s"].to_numpy(np.float64))
    ended = np.sort(requests["finish_s"].to_numpy(np.float64))
    there = np.searchsorted(sent, time_s, side="right") - np.searchsorted(ended, time_s, side="right")
    return Timeline(time_s, np.maximum(there - running, 0.0), running, steps["kv_usage"].to_numpy(np.float64))


def simulated_timeline(steps: pd.DataFrame, num_blocks: int) -> Timeline:
    """Levels at the ends of simulated steps; ``num_blocks`` are those the engine can hand out."""
    time_s = (steps["start_s"] + steps["duration_s"]).to_numpy(np.float64)
    usage = steps["kv_used_blocks"].to_numpy(np.float64) / max(num_blocks, 1)
    return Timeline(time_s, steps["waiting"].to_numpy(np.float64), steps["num_seqs"].to_numpy(np.float64), usage)
