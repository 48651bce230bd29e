"""A live run as a question to the simulator: the same requests, the server's own configuration, the same clients."""

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import pandas as pd

from draftcast.calibration.engine_log.profile import ProfileLabel
from draftcast.calibration.engine_log.regression import SEARCHES
from draftcast.calibration.live.run_directory import LiveRun
from draftcast.calibration.live.server import CONFIG
from draftcast.calibration.profile.hardware import load_hardware
from draftcast.errors import InputError
from draftcast.kernels.model.catalog import load_model
from draftcast.scenarios.run.deployment import Deployment, deploy
from draftcast.scenarios.run.measured_run import answered_requests
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import with_values
from draftcast.sim.workload.arrivals import ClosedLoopArrivals
from draftcast.sim.workload.request_table import RequestTable

# What a server resolved and the scheduler depends on; where it does not say, the scenario's own holds.
_OF_THE_SCENARIO = ("cache_dtype", "dtype", "quantization", "data_parallel_size")
SERVER_KEYS = ("model", *(key for keys in CONFIG.values() for key in keys if key not in _OF_THE_SCENARIO))


@dataclass(frozen=True)
class Question:
    live: LiveRun  # the recorded run
    scenario: Scenario  # the one asked about, with the server's configuration, speculation and clients in it
    deployment: Deployment  # the engine, resolved
    table: RequestTable  # the requests that were answered, in the order of sending; arrivals are the times of sending
    requests: pd.DataFrame  # the same as of a simulation, what a client cannot see is 0
    loop: ClosedLoopArrivals | None  # the clients of a closed loop, else None
    from_server: dict[str, Any]  # the keys taken from the server


def question(live: LiveRun, scenario: Scenario, profile: str | None = None) -> Question:
    """The run as the simulator is asked it; ``scenario``'s arrivals and lengths are replaced by the run's.

    Raises:
        InputError: no request was answered, a class or an acceptance the scenario does not have, what `deploy` refuses.
    """
    manifest = live.manifest
    config = manifest["server"].get("config") or {}
    from_server = {key: config[key] for key in SERVER_KEYS if config.get(key) is not None}
    values: dict[str, Any] = {f"engine.{key}": value for key, value in from_server.items()}
    values["engine.speculative_config"] = _speculation(manifest["speculative_config"], scenario)
    # One server was run, whatever else is planned.
    values["cluster.replicas"] = 1
    recorded = manifest["scenario"].get("workload", {}).get("arrivals")
    if recorded is not None and recorded.get("process") == "closed_loop":
        values |= {"workload.arrivals": recorded, "workload.duration_s": None}
        values["workload.num_requests"] = len(live.requests)
    if profile is not None:
        values["profile"] = profile
    asked = with_values(scenario, values)
    requests = answered_requests(live)
    if not len(requests):
        raise InputError("no request of the run was answered", file=str(live.folder))
    names = tuple(entry.name for entry in asked.request_classes)
    if unknown := sorted(set(requests["class"]) - set(names)):
        allowed = f"the run's requests are of a class the scenario does not have; it has {', '.join(names)}"
        raise InputError(allowed, file=str(live.folder), key="class", value=unknown[0])
    class_id = requests["class"].map(names.index).to_numpy()
    table = RequestTable.from_columns(
        requests["prompt_tokens"].to_numpy(),
        requests["output_tokens"].to_numpy(),
        np.maximum(requests["arrival_s"].to_numpy(np.float64), 0.0),
        class_id,
        np.array([entry.priority for entry in asked.request_classes])[class_id],
        class_names=names,
    )
    loop = asked.workload.arrivals
    closed = loop if isinstance(loop, ClosedLoopArrivals) and recorded == values.get("workload.arrivals") else None
    return Question(live, asked, deploy(asked), table, requests, closed, from_server)


def _speculation(config: dict[str, Any] | None, scenario: Scenario) -> dict[str, Any] | None:
    """The server's speculation in the scenario's terms: a checkpoint's folder may stand for a shape there."""
    own = scenario.engine.speculative_config
    if config is None or own is None or own.model is None or config.get("model") is None:
        return config
    alike = (config.get("method") or "draft_model") == own.resolved_method
    return {**config, "model": own.model} if alike else config


def profile_label(scenario: Scenario, name: str) -> ProfileLabel:
    """What a profile fitted to recorded runs of this scenario is of."""
    engine = scenario.engine
    model, hardware = load_model(engine.model).name, load_hardware(scenario.hardware)
    return ProfileLabel(name, model, hardware, engine.tensor_parallel_size, engine.weight_dtype)


def measured_acceptance(live: LiveRun, scenario: Scenario) -> dict[str, Any]:
    """Rates by draft position; for a text search also how often it found something to draft.

    The counters say in how many rounds there was a draft. Rounds without one are what is left of the answers' tokens
    when first tokens and accepted drafts are taken out. How matches cluster is not counted: that stays the scenario's.

    Raises:
        InputError: the run has no counts, or no draft.
    """
    counts = live.manifest["acceptance"]
    if not counts or not counts["num_drafts"]:
        message = "the server's counters show no drafts; take the scenario's acceptance"
        raise InputError(message, file=str(live.folder), key="acceptance")
    drafts = counts["num_drafts"]
    # Counters of one step may be caught half updated: rates above 1 or rising by a hair are none.
    rates = list(accumulate((min(count / drafts, 1.0) for count in counts["per_position"]), min))
    if scenario.method not in SEARCHES:
        return {"model": "per_position", "rates": rates}
    answered = live.requests[live.requests["output_tokens"] > 0]
    rounds = int(answered["output_tokens"].sum()) - len(answered) - counts["num_accepted_tokens"]
    matched = min(drafts / max(rounds, drafts), 1.0)
    persistence = getattr(scenario.acceptance_of(), "persistence", 0.0)
    return {"model": "ngram", "match_probability": matched, "rates": rates, "persistence": persistence}
