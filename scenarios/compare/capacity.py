"""The capacity: what a cluster completes per second when requests always wait. Above it a queue grows without end.

As many users as the cluster holds requests, and some more, send the scenario's requests one after another, in sessions
where it has them (with as many users more as think meanwhile); what is emitted after the warm-up, over the mean output
of a request, is the capacity. A rate only scales arrivals, so one answer serves every rate, and it is kept: every
command and page that asks for a setting is told the same number.
"""

import dataclasses
import json
import math
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from draftcast.errors import InputError
from draftcast.scenarios.run.deployment import cached_deployment
from draftcast.scenarios.run.fluid import FluidModel
from draftcast.scenarios.run.kept import AnswerCache
from draftcast.scenarios.run.simulate import front_end_work_s, replicate
from draftcast.scenarios.run.workload_spec import workload_spec
from draftcast.scenarios.schema import Scenario, members, to_mapping, with_values, without_speculation
from draftcast.scenarios.schema.references import put_checksums
from draftcast.sim.cluster.cluster import ClosedLoop
from draftcast.sim.cluster.routers import cluster_capacity
from draftcast.sim.compiled.random_streams import replication_seed
from draftcast.sim.output.metrics import compute_metrics
from draftcast.sim.output.steady_state import find_warmup, shortfall
from draftcast.sim.progress import Progress, parts_of
from draftcast.sim.statistics.intervals import Estimate, replication_interval
from draftcast.sim.workload.arrivals import MAX_USERS, ClosedLoopArrivals
from draftcast.sim.workload.build_requests import build_requests, load_traces, trace_specs
from draftcast.sim.workload.workload import Workload

MIXING_TURNOVERS = COUNTED_TURNOVERS = 10
"""Answers per user: until the batch mixes short and long requests, and those of one engine that are counted then. Of
several engines together as many answers are counted as of one."""
LEAST_REQUESTS = 8000
CROWD = 1.1  # users per request that the cluster holds: some must wait, also where requests are shorter than the mean
MOST_CROWDS, SAME_CROWD = 8, 0.03
"""Users of sessions that think keep no engine busy, and their number follows from the capacity: it is tried so often,
until so many, as a share, are missing or too many."""
REPLICATIONS = 5
MOST_REPLICATIONS = 20
"""Of a capacity that the load in question is too close to; from `REPLICATIONS` on they are doubled."""
SEED = 0
MOST_KEPT = 256 * MOST_REPLICATIONS
# Requests per second and replica, and requests simulated, by setting and number of the replication.
_known: AnswerCache[tuple[float, int]] = AnswerCache(MOST_KEPT)


@dataclass(frozen=True)
class CapacityEstimate:
    """Requests per second, one figure a replication."""

    rates: tuple[float, ...]
    requests: tuple[int, ...] = ()  # simulated for each replication, now or when it was first asked for
    setting: str = ""  # whose capacity it is; the same for every load
    confidence: float = 0.95

    @property
    def estimate(self) -> Estimate:
        """With the interval of its confidence."""
        return replication_interval(self.rates, self.confidence)


def capacity(
    scenario: Scenario, rate_rps: float | None = None, *, progress: Progress | None = None
) -> CapacityEstimate | None:
    """What the scenario's cluster completes per second when saturated; None where arrivals have no single rate.

    Replications are added as long as ``rate_rps``, the load in question, lies inside the interval. Identical replicas
    that share no prefixes are simulated as one; the replicas of each group as a cluster of their own, as large as the
    whole.
    """
    if scenario.rate_rps is None:
        return None
    spec = workload_spec(scenario).model_copy(update={"duration_s": None})
    cluster, groups = scenario.cluster, members(scenario)
    sizes = [group.cluster.replicas for group in groups]
    alike = [with_values(group, {"cluster.replicas": cluster.replicas}) for group in groups]
    keys = [_key_of(group, spec) for group in alike]
    setting = keys[0] if not cluster.groups else json.dumps([cluster.router, sizes, keys])
    questions = [
        (key, type(cached_deployment(group).policy) if group.resolved_policy.is_in_notebook else None)
        for group, key in zip(alike, keys, strict=True)
    ]
    count = REPLICATIONS
    while True:
        by_group, rates, requests = [], [], []
        for (group, question), part in parts_of(progress, list(zip(alike, questions, strict=True))):
            saturated: list[tuple[float, int]] = []
            for number, _ in parts_of(part, range(count)):
                simulate = partial(_saturated_rate, group, spec, number, saturated[0][0] if saturated else None)
                saturated.append(_known.get((*question, number), simulate))
            by_group.append(saturated)
        for replication in zip(*by_group, strict=True):
            replica_rates = [rate for (rate, _), size in zip(replication, sizes, strict=True) for _ in range(size)]
            rates.append(cluster_capacity(cluster.router, replica_rates))
            requests.append(sum(simulated for _, simulated in replication))
        answer = CapacityEstimate(tuple(rates), tuple(requests), setting, scenario.statistics.confidence)
        if rate_rps is None or not answer.estimate.contains(rate_rps) or count >= MOST_REPLICATIONS:
            return answer
        count *= 2


def _key_of(scenario: Scenario, spec: Workload) -> str:
    """Text that is equal for scenarios with the same capacity per replica: neither their rate nor their seed counts."""
    data = to_mapping(scenario)
    unused = ["description", *([] if scenario.speculative_config else ["acceptance", "policy", "speculation"])]
    if scenario.resolved_policy.name != "slo_aware":
        unused.append("slo")
    for section in (data, *data["workload"]["classes"]):
        for name in unused:
            section.pop(name, None)
    del data["name"], data["statistics"]
    if not trace_specs(spec) and not spec.shares_prefixes:
        data.pop("cluster")
    data["workload"]["arrivals"].pop("request_rate_rps")
    data["workload"].update(num_requests=None, duration_s=None)
    put_checksums(data)
    return json.dumps(data, sort_keys=True)


def _saturated_rate(scenario: Scenario, spec: Workload, replication: int, first_rps: float | None) -> tuple[float, int]:
    """Requests per second and replica of one replication, given the first's, and requests simulated for it."""
    deployment = cached_deployment(scenario)
    settings = deployment.settings
    traces = load_traces(spec)
    seed = replication_seed(SEED, replication)
    few = build_requests(spec, seed, LEAST_REQUESTS, settings.max_model_len, traces)
    mean_tokens = float((few.prompt_tokens + few.output_tokens).mean())
    max_concurrency = deployment.memory.max_concurrency(round(mean_tokens), settings.lookahead)
    replicas = scenario.cluster.replicas if few.shares_prefixes else 1
    engines = replicas * settings.data_parallel_size
    waiting = CROWD * engines * max(1.0, min(settings.max_num_seqs, max_concurrency))
    think_s = float(few.think_s.mean()) if few.think_s is not None else 0.0
    variant = with_values(scenario, {"cluster.replicas": replicas})
    guess_rps = 0.0
    if think_s:
        guess_rps = first_rps * replicas if first_rps is not None else FluidModel.of(variant, deployment).capacity_rps()
    simulated = 0
    for _ in range(MOST_CROWDS):
        users = min(math.ceil(waiting + guess_rps * think_s), MAX_USERS)
        counted = max(math.ceil(users * (MIXING_TURNOVERS + COUNTED_TURNOVERS / engines)), LEAST_REQUESTS)
        table = build_requests(spec, seed, 2 * counted, settings.max_model_len, traces)
        table = dataclasses.replace(table, num_extra=len(table) // 2)
        done = replicate(variant, ClosedLoop(users, np.zeros(len(table))), [deployment], table, seed, None, False)
        simulated += len(done.requests)
        cut = find_warmup([done.requests], closed_loop=True).requests
        tokens_per_s = compute_metrics(done.requests, warmup=cut).values["output_throughput"]
        # Of twice the requests that were counted: the mean output varies more than what is emitted.
        engine_s = float(np.mean(table.output_tokens)) * replicas / tokens_per_s
        front_end_s = float(front_end_work_s(deployment, table.prompt_tokens).mean()) / settings.api_server_count
        rate_rps = replicas / max(engine_s, front_end_s)
        if abs(math.ceil(waiting + rate_rps * think_s) - users) <= SAME_CROWD * users:
            break
        guess_rps = (guess_rps + rate_rps) / 2  # the more users think, the less is cached: the whole way overshoots
    return rate_rps / replicas, simulated


LENGTHS = (2000, 3000, 4000, 6000, 8000, 12_000, 16_000, 24_000)
"""A few only, so that settings compared at one load are measured over as many requests."""
QUICK_REQUESTS, QUICK_REPLICATIONS = LENGTHS[0], 4
HIGHEST_UTILISATION = 0.97  # closer to the capacity no run of the longest of `LENGTHS` settles
WARM = 0.034
"""By how much the latency of a run may fall short of the steady state, were nothing cut, for its warm-up to end within
the first half: on the bundled scenario at 10 to 85 % of the capacity."""
TURNS = 20  # requests each client of a closed loop sends


def page_effort(scenario: Scenario) -> dict[str, Any]:
    """Dotted keys for a quick run that is honest; the scenario's own where it asks for less. Of a duration and of a
    trace as it is only the replications are fewer."""
    values: dict[str, Any] = {"statistics.replications": min(scenario.statistics.replications, QUICK_REPLICATIONS)}
    requests = scenario.workload.num_requests
    if requests is not None and requests >= QUICK_REQUESTS:
        values["workload.num_requests"] = settling_requests(scenario)
    return values


def settling_requests(scenario: Scenario) -> int:
    """Requests of one replication, of `LENGTHS`, after which the warm-up has ended within the first half, on and off.
    Very many clients, or a load close to the capacity, may need more: such a run says so itself."""
    arrivals, rate = scenario.workload.arrivals, scenario.rate_rps
    needed = 0.0
    if scenario.statistics.warmup == "none":
        return QUICK_REQUESTS
    if isinstance(arrivals, ClosedLoopArrivals):
        needed = TURNS * arrivals.concurrency
    elif rate is not None:
        with suppress(InputError):  # it cannot be run, and whoever runs it is told why
            needed = max(_needed(side, rate) for side in (scenario, without_speculation(scenario)))
    return next((length for length in LENGTHS if length >= needed), LENGTHS[-1])


def _needed(scenario: Scenario, rate_rps: float) -> float:
    fluid = FluidModel.of(scenario)
    capacity_rps = fluid.capacity_rps()
    utilisation = min(rate_rps / capacity_rps, HIGHEST_UTILISATION)
    ramp = fluid.session_requests(rate_rps)
    return max(shortfall(1, fluid.in_system(utilisation * capacity_rps), utilisation) / WARM, ramp)
