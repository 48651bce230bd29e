"""A live run as a question to the simulator: its requests simulated, seen as its client saw them, the figures of both.

The simulator knows engines. What lies between client and engine is a measured term of its own (`FrontEnd`): it moves a
request's arrival in the engine after its sending and a piece's arrival at the client after its step.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Self

import numpy as np
import pandas as pd

from draftcast.calibration.engine_log.profile import ProfileLabel
from draftcast.calibration.engine_log.regression import SEARCHES
from draftcast.calibration.live.run_directory import LiveRun
from draftcast.calibration.live.server import CONFIG
from draftcast.calibration.measured_model import check_model
from draftcast.calibration.profile.hardware import load_hardware
from draftcast.calibration.profile.spec import FrontEnd
from draftcast.errors import InputError
from draftcast.kernels.arrays import IntArray
from draftcast.kernels.model.catalog import load_model
from draftcast.scenarios.run.deployment import Deployment, deploy, with_excess
from draftcast.scenarios.run.measured_run import answered_requests, counted_acceptance, piece_gaps
from draftcast.scenarios.run.simulate import replicate
from draftcast.scenarios.run.timeline import Timeline
from draftcast.scenarios.schema import Scenario, with_values
from draftcast.sim.cluster.cluster import ClosedLoop
from draftcast.sim.compiled.itl_histogram import itl_histogram
from draftcast.sim.compiled.random_streams import replication_seed
from draftcast.sim.output.metrics import compute_metrics
from draftcast.sim.workload.arrivals import ClosedLoopArrivals
from draftcast.sim.workload.request_table import RequestTable
from draftcast.sim.workload.workload import Slo

# What a server resolved and the scheduler depends on; where it does not say, the scenario's own holds.
_OF_THE_SCENARIO = ("cache_dtype", "dtype", "quantization", "data_parallel_size")
SERVER_KEYS = ("model", *(key for keys in CONFIG.values() for key in keys if key not in _OF_THE_SCENARIO))


@dataclass(frozen=True)
class ReplayQuestion:
    live: LiveRun  # the recorded run
    scenario: Scenario  # the one asked about, with the server's configuration, speculation and clients in it
    deployment: Deployment  # the engine, resolved
    table: RequestTable  # the requests that were answered, in the order of sending; arrivals are the times of sending
    requests: pd.DataFrame  # the same as of a simulation, what a client cannot see is 0
    loop: ClosedLoopArrivals | None  # the clients of a closed loop, else None
    from_server: dict[str, Any]  # the keys taken from the server

    @classmethod
    def of(cls, live: LiveRun, scenario: Scenario, profile: str | None) -> Self:
        """The run as the simulator is asked it; ``scenario``'s arrivals and lengths are replaced by the run's.

        Raises InputError: another model, no request was answered, a class, an acceptance or a speculation the scenario
            lacks, what `deploy` refuses.
        """
        manifest = live.manifest
        check_model(manifest["server"].get("model") or "", scenario.engine.model, str(live.folder))
        config = manifest["server"].get("config") or {}
        from_server = {key: config[key] for key in SERVER_KEYS if config.get(key) is not None}
        values: dict[str, Any] = {f"engine.{key}": value for key, value in from_server.items()}
        speculation, own_spec = manifest["speculative_config"], scenario.engine.speculative_config
        if speculation and own_spec and own_spec.model and speculation.get("model"):
            # A checkpoint's folder may stand for a shape there.
            alike = (speculation.get("method") or "draft_model") == own_spec.resolved_method
            speculation = {**speculation, "model": own_spec.model} if alike else speculation
        drafted = (manifest["acceptance"] or {"num_drafts": 0})["num_drafts"]
        if speculation is None and drafted and own_spec is None:
            message = f"the run counted {drafted} drafts, and the scenario has no speculation: give it the server's"
            raise InputError(message, file=str(live.folder), key="engine.speculative_config")
        if speculation is not None or not drafted:  # else the server's is not known, and the scenario's own stands
            values["engine.speculative_config"] = speculation
        # One server was run, whatever else is planned.
        values["cluster.replicas"] = 1
        recorded = manifest["scenario"].get("workload", {}).get("arrivals")
        if recorded is not None and recorded.get("process") == "closed_loop":
            values |= {"workload.arrivals": recorded, "workload.duration_s": None}
            values["workload.num_requests"] = len(live.requests)
            if scenario.workload.lengths is None:  # a trace has the scenario's; the run's requests have their own
                values["workload.lengths"] = {"prompt_tokens": 1, "output_tokens": 1}
        if profile is not None:
            values["profile"] = profile
        as_run = with_values(scenario, values)
        requests = answered_requests(live)
        if not len(requests):
            raise InputError("no request of the run was answered", file=str(live.folder))
        names = tuple(entry.name for entry in as_run.request_classes)
        if unknown := sorted(set(requests["class"]) - set(names)):
            allowed = f"the run's requests are of a class the scenario does not have; it has {', '.join(names)}"
            raise InputError(allowed, file=str(live.folder), key="class", value=unknown[0])
        class_id = requests["class"].map(names.index).to_numpy()
        table = RequestTable.from_columns(
            requests["prompt_tokens"].to_numpy(),
            requests["output_tokens"].to_numpy(),
            np.maximum(requests["arrival_s"].to_numpy(np.float64), 0.0),
            class_id,
            np.array([entry.priority for entry in as_run.request_classes])[class_id],
            class_names=names,
        )
        loop = as_run.workload.arrivals
        # A scenario's own loop is not the run's.
        closed = loop if isinstance(loop, ClosedLoopArrivals) and "workload.arrivals" in values else None
        return cls(live, as_run, deploy(as_run), table, requests, closed, from_server)

    def figures(self) -> dict[str, float]:
        """`FIGURES` of the recorded run; acceptance is the server's own count."""
        requests = self.requests
        counts = itl_histogram(*piece_gaps(self.live.chunks, requests["request_id"].to_numpy()), len(requests))
        figures = run_figures(requests, counts, self.scenario.slos, self.loop is not None)
        return figures | counted_acceptance(self.live)

    def measured_acceptance(self) -> dict[str, Any]:
        """Rates by draft position; for a text search also how often it found something to draft.

        Counters tell the rounds with a draft. Rounds without one are what is left of the answers' tokens when first
        tokens and accepted drafts are taken out. How matches cluster is not counted: that stays the scenario's.

        Raises InputError: the run has no counts, or no draft.
        """
        counts = self.live.manifest["acceptance"]
        if not counts or not counts["num_drafts"]:
            message = "the server's counters show no drafts; take the scenario's acceptance"
            raise InputError(message, file=str(self.live.folder), key="acceptance")
        drafts = counts["num_drafts"]
        # Counters of one step may be caught half updated: rates above 1 or rising by a hair are none.
        rates = list(accumulate((min(count / drafts, 1.0) for count in counts["per_position"]), min))
        if self.scenario.method not in SEARCHES:
            return {"model": "per_position", "rates": rates}
        answered = self.live.requests[self.live.requests["output_tokens"] > 0]
        rounds = int(answered["output_tokens"].sum()) - len(answered) - counts["num_accepted_tokens"]
        matched = min(drafts / max(rounds, drafts), 1.0)
        persistence = getattr(self.scenario.acceptance_of(), "persistence", 0.0)
        return {"model": "ngram", "match_probability": matched, "rates": rates, "persistence": persistence}


def profile_label(scenario: Scenario, name: str) -> ProfileLabel:
    """What a profile fitted to recorded runs of this scenario is of."""
    engine = scenario.engine
    model, hardware = load_model(engine.model).name, load_hardware(scenario.hardware)
    return ProfileLabel(name, model, hardware, engine.tensor_parallel_size, engine.weight_dtype)


NOTHING = FrontEnd(0.0, 0.0, 0.0, 0.0)
_ENTRY_GAP_S = 1e-4  # between two requests sent at the same moment; any time far shorter than a step will do


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


def _clients(loop: ClosedLoopArrivals, seed: int, n: int, front_end: FrontEnd) -> ClosedLoop:
    """Clients of a closed loop, with what passes between engine and client on either side of their think time.

    They begin together, but the front end takes their first requests one after the other: an engine that was idle
    begins its first step with the first alone.
    """
    added_s = front_end.request_s + front_end.output_s + front_end.turnaround_s
    entry_s = np.where(np.arange(n) < loop.concurrency, _ENTRY_GAP_S * np.arange(n), 0.0)
    return ClosedLoop(loop.concurrency, loop.draw_think_s(seed, n) + added_s + entry_s)


def forecast(question: ReplayQuestion, assumptions: Assumptions) -> list[Replay]:
    """Play the run's requests, as often as the scenario asks for replications."""
    scenario, front_end = question.scenario, assumptions.front_end
    if assumptions.acceptance is not None and scenario.speculative_config is not None:
        # One acceptance was measured over all classes.
        classes = [{**entry.model_dump(mode="json"), "acceptance": None} for entry in scenario.workload.classes]
        scenario = with_values(scenario, {"acceptance": dict(assumptions.acceptance), "workload.classes": classes})
    cost = with_excess(question.deployment.cost, assumptions.decode_excess, assumptions.prompt_excess)
    deployment = dataclasses.replace(question.deployment, cost=cost)
    table, loop = question.table, question.loop
    arrival_s = table.arrival_s + front_end.request_s if loop is None else np.zeros(len(table))
    table = dataclasses.replace(table, arrival_s=arrival_s, has_arrivals=loop is None)
    replays = []
    for number in range(scenario.statistics.replications):
        seed = replication_seed(scenario.statistics.seed, number)
        clients = _clients(loop, seed, len(table), front_end) if loop is not None else None
        done = replicate(scenario, clients, [deployment], table, seed, None, True)
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
    times = {"arrival_s": requests["arrival_s"].to_numpy(np.float64) - front_end.request_s}
    for name in ("first_token_s", "finish_s"):
        at = requests[name].to_numpy(np.float64)
        # The step that ended then; its end is this very number, but for rounding.
        step = np.clip(np.searchsorted(ends, at - 1e-9), 0, len(ends) - 1)
        times[name] = at + front_end.output_s + front_end.output_sequence_s * outputs[step]
    return requests.assign(**times)


FIGURES = (
    *(f"{statistic}_{name}_s" for name in ("ttft", "tpot", "itl", "e2el") for statistic in ("mean", "median", "p95")),
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
    requests: pd.DataFrame, itl_counts: Any, slos: Mapping[str, Slo], closed_loop: bool, accepted: Any = None
) -> dict[str, float]:
    """`FIGURES` over the whole run, NaN where undefined; ``accepted``: by draft position, None: not known."""
    run = compute_metrics(requests, itl_counts, slo=dict(slos) or None, accepted_per_position=accepted)
    figures = {**run.values, "busy_throughput": _busy_throughput(requests) if closed_loop else math.nan}
    positions = [name for name in figures if name.startswith("acceptance_rate_position_")]
    return {name: float(figures.get(name, math.nan)) for name in (*FIGURES, *positions)}


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
    """Levels at the ends of logged steps; a request that was sent, has no answer yet and is in no step waits."""
    time_s = steps["time_s"].to_numpy(np.float64)
    running = steps["seqs"].to_numpy(np.float64)
    sent = np.sort(requests["arrival_s"].to_numpy(np.float64))
    ended = np.sort(requests["finish_s"].to_numpy(np.float64))
    in_system = np.searchsorted(sent, time_s, side="right") - np.searchsorted(ended, time_s, side="right")
    return Timeline(time_s, np.maximum(in_system - running, 0.0), running, steps["kv_usage"].to_numpy(np.float64))


def simulated_timeline(steps: pd.DataFrame, num_blocks: int) -> Timeline:
    """Levels at the ends of simulated steps; ``num_blocks`` are those the engine can hand out."""
    time_s = (steps["start_s"] + steps["duration_s"]).to_numpy(np.float64)
    usage = steps["kv_used_blocks"].to_numpy(np.float64) / max(num_blocks, 1)
    return Timeline(time_s, steps["waiting"].to_numpy(np.float64), steps["num_seqs"].to_numpy(np.float64), usage)
