"""The capacity: what a cluster completes per second when requests always wait. Above it a queue grows without end.

As many users as the cluster holds requests, and some more, send the scenario's requests one after another; what is
emitted after the warm-up, over the mean output of a request, is the capacity. A rate only scales arrivals, so one
answer serves every rate, and it is kept: every command and page that asks for a setting is told the same number.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import OrderedDict
from dataclasses import dataclass, field
from threading import Lock

import numpy as np

from draftcast.scenarios.run.deployment import Deployment
from draftcast.scenarios.run.deployment_cache import cached_deployment
from draftcast.scenarios.run.simulate import replicate
from draftcast.scenarios.run.workload_spec import workload_spec
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import to_mapping
from draftcast.scenarios.schema.references import put_checksums
from draftcast.sim.compiled.random_streams import replication_seed
from draftcast.sim.output.metrics import compute_metrics
from draftcast.sim.output.warmup import find_warmup
from draftcast.sim.progress import Progress
from draftcast.sim.statistics.intervals import Estimate, replication_interval
from draftcast.sim.workload.arrivals import ClosedLoop
from draftcast.sim.workload.spec import WorkloadSpec, build_requests, load_traces, trace_specs

TURNOVERS = 20
"""Answers per user; the batch takes up to ten to mix its short and long requests."""
LEAST_REQUESTS = 8000
CROWD = 1.1
"""Users per request that the cluster holds: some must wait, also where requests are shorter than the mean."""
REPLICATIONS = 5
MOST_REPLICATIONS = 20
"""Of a capacity that the load in question is too close to; from `REPLICATIONS` on they are doubled."""
CONFIDENCE = 0.95
SEED = 0
MOST_KEPT = 256


@dataclass(frozen=True)
class _Setting:
    """What is known of a setting, in requests per second and replica; who adds to it holds the lock."""

    rates: list[float] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)


_kept: OrderedDict[str, _Setting] = OrderedDict()
_lock = Lock()


@dataclass(frozen=True)
class Capacity:
    """Requests per second, one figure a replication.

    Attributes:
        requests: simulated for each replication, now or when it was first asked for.
        setting: whose capacity it is; the same for every load.
    """

    rates: tuple[float, ...]
    requests: tuple[int, ...] = ()
    setting: str = ""

    @property
    def estimate(self) -> Estimate:
        """With its 95 % interval."""
        return replication_interval(self.rates, CONFIDENCE)


def rate_of(scenario: Scenario) -> float | None:
    """Mean request rate of the arrivals; None of closed loops, segments and traces as they are, which have none."""
    rate = getattr(scenario.workload.arrivals, "request_rate_rps", None)
    return float(rate) if rate is not None and math.isfinite(rate) else None


def capacity(
    scenario: Scenario,
    rate_rps: float | None = None,
    *,
    progress: Progress | None = None,
    deployment: Deployment | None = None,
) -> Capacity | None:
    """What the scenario's cluster completes per second when saturated.

    Args:
        rate_rps: the load in question: as long as it lies inside the interval, replications are added.
        progress: called with the share of the work done, 0 to 1.
        deployment: as of `draftcast.simulate`.

    None where arrivals have no single rate. Identical replicas that share no prefixes are simulated as one.
    """
    if rate_of(scenario) is None:
        return None
    data = to_mapping(scenario)
    unused = ["name", "description", "slo", *([] if scenario.speculative_config else ["acceptance", "policy"])]
    for entry in (data, *data["workload"]["classes"]):
        for name in unused:
            if name != "name" or entry is data:
                entry.pop(name, None)
    data.pop("statistics")  # it belongs to the setting, whatever the seed of the runs beside it
    spec = dataclasses.replace(workload_spec(scenario), duration_s=None)
    if not trace_specs(spec):  # without a file there are no prefixes that replicas could share
        data.pop("cluster")
    data["workload"]["arrivals"].pop("request_rate_rps")
    data["workload"].update(num_requests=None, duration_s=None)
    put_checksums(data)
    key = json.dumps(data, sort_keys=True)
    with _lock:
        setting = _kept.setdefault(key, _Setting())
        _kept.move_to_end(key)
        while len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)
    count = REPLICATIONS
    while True:
        with setting.lock:
            while len(setting.rates) < count:
                found, requests = _saturated_rate(scenario, spec, len(setting.rates), deployment)
                setting.rates.append(found)
                setting.requests.append(requests)
                if progress is not None:
                    progress(len(setting.rates) / count)
        rates = tuple(scenario.cluster.replicas * rate for rate in setting.rates[:count])
        answer = Capacity(rates, tuple(setting.requests[:count]), key)
        estimate = answer.estimate
        close = rate_rps is not None and estimate.low <= rate_rps <= estimate.high
        if not close or count >= MOST_REPLICATIONS:
            return answer
        count *= 2


def _saturated_rate(
    scenario: Scenario, spec: WorkloadSpec, replication: int, deployment: Deployment | None
) -> tuple[float, int]:
    """Requests per second and replica of one replication, and requests simulated for it."""
    deployment = deployment or cached_deployment(scenario)
    settings = deployment.settings
    traces = load_traces(spec)
    seed = replication_seed(SEED, replication)
    few = build_requests(spec, seed, LEAST_REQUESTS, settings.max_model_len, traces)
    mean_tokens = float((few.prompt_tokens + few.output_tokens).mean())
    held = deployment.memory.max_concurrency(round(mean_tokens), settings.lookahead)
    replicas = scenario.cluster.replicas if few.hash_ids is not None else 1
    users = math.ceil(CROWD * replicas * max(1.0, min(settings.max_num_seqs, held)))
    counted = max(TURNOVERS * users, LEAST_REQUESTS)
    table = build_requests(spec, seed, 2 * counted, settings.max_model_len, traces)
    table = dataclasses.replace(table, num_extra=len(table) // 2)
    one = scenario.model_copy(update={"cluster": scenario.cluster.model_copy(update={"replicas": replicas})})
    done = replicate(one, ClosedLoop(users), deployment, table, seed, None, False)
    cut = find_warmup([done.requests], closed_loop=True).requests
    tokens_per_s = compute_metrics(done.requests, warmup=cut).values["output_throughput"]
    # Of twice the requests that were counted: the mean output varies more than what is emitted.
    return tokens_per_s / float(np.mean(table.output_tokens)) / replicas, len(done.requests)
