"""What a capacity plan is asked: the target rate, the objectives, and the candidates to size.

Unlike a scenario's ``slo`` (a share of the requests meets every bound), each objective (``ttft:p95<500ms``) stands for
itself: a percentile, median or mean over all requests.
"""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from draftcast.calibration.profile.hardware import load_hardware
from draftcast.errors import InputError
from draftcast.scenarios.compare.candidate import METHOD_KEYS, Candidate, method_values, speculative_values
from draftcast.scenarios.compare.metric import Price
from draftcast.scenarios.run.choices import OFF
from draftcast.scenarios.schema import Scenario, with_values
from draftcast.sim.output.metrics import LATENCIES, PERCENTILES
from draftcast.sim.statistics.intervals import Estimate
from draftcast.sim.workload.arrivals import TraceArrivals
from draftcast.sim.workload.traces import load_trace

STATISTICS = ("mean", "median", *(f"p{percentile}" for percentile in PERCENTILES))
_OTHER_NAMES = {"e2e": "e2el", "queue": "queue_time"}
_UNITS = {"ms": 1e-3, "s": 1.0}
_OBJECTIVE = re.compile(r"(?P<metric>\w+):(?P<statistic>\w+)<=?(?P<limit>[\d.eE+-]+)(?P<unit>ms|s)")


@dataclass(frozen=True)
class Objective:
    """The largest allowed value of one latency figure of a run (``metric`` of `LATENCIES`, ``statistic``)."""

    metric: str
    statistic: str
    limit_s: float

    @property
    def figure(self) -> str:
        return f"{self.statistic}_{self.metric}_s"

    @property
    def label(self) -> str:
        """As it was written: ``ttft:p95<500ms``."""
        return f"{self.metric}:{self.statistic}<{1e3 * self.limit_s:g}ms"

    def ratio(self, figures: Mapping[str, Estimate]) -> float:
        """The figure over its limit: met up to 1; NaN where the run has no such figure."""
        estimate = figures.get(self.figure)
        return estimate.mean / self.limit_s if estimate is not None else math.nan


def parse_objectives(text: str) -> tuple[Objective, ...]:
    """The objectives of ``metric:statistic<limit`` with a unit, between semicolons or commas. Raises InputError:
    another form, an unknown metric or statistic, a limit that is not above 0, one figure twice."""
    objectives, place = dict[str, Objective](), "--slo"
    for part in re.split(r"[;,]", text):
        words = "".join(part.split())
        if not words:
            continue
        matched = _OBJECTIVE.fullmatch(words)
        if matched is None:
            raise InputError("must look like ttft:p95<500ms;tpot:p95<30ms (unit ms or s)", file=place, value=part)
        metric = _OTHER_NAMES.get(matched["metric"], matched["metric"])
        for name, word, allowed in (("metric", metric, LATENCIES), ("statistic", matched["statistic"], STATISTICS)):
            if word not in allowed:
                raise InputError(f"unknown {name} {word}; choose from {', '.join(allowed)}", file=place, value=part)
        try:
            limit_s = float(matched["limit"]) * _UNITS[matched["unit"]]
        except ValueError:
            limit_s = math.nan
        if not 0 < limit_s < math.inf:
            raise InputError("the limit must be a number above 0", file=place, value=part)
        objective = Objective(metric, matched["statistic"], limit_s)
        if objective.figure in objectives:
            raise InputError(f"{metric}:{objective.statistic} is given twice", file=place, value=text)
        objectives[objective.figure] = objective
    if not objectives:
        raise InputError("holds no objective; e.g. ttft:p95<500ms;tpot:p95<30ms", file=place, value=text)
    return tuple(objectives.values())


GIVEN = "given"  # the scenario's own speculation as a method; `OFF` is none; a mapping is another, with its acceptance
Method = str | Mapping[str, Any]


@dataclass(frozen=True)
class PlanQuestion:
    """What to size, and for what.

    Raises:
        InputError: no SLO, or a number out of its range.
    """

    scenario: Scenario  # workload, acceptance, engine; its number of requests is what one replica is judged by
    rate_rps: float | None = None  # target; None: the scenario's own mean rate (of a trace: the trace's)
    objectives: Sequence[Objective] = ()  # of `parse_objectives`; none: the scenario's ``slo``
    hardware: Sequence[str] = ()  # candidates; none: the scenario's own
    tensor_parallel_sizes: Sequence[int] = ()  # as of the hardware
    # `GIVEN`, `OFF`, or ``{"speculative_config": {...}, "acceptance": {...}}``; none: off, and the given one if any
    methods: Sequence[Method] = ()
    prices: Mapping[str, Price] = field(default_factory=dict)  # by device, for all or none: then the least cost is best
    headroom: float = 0.0  # share beyond the target that must still meet the objectives, e.g. 0.2.
    spare: int = 0  # replicas that may fail: the others alone must meet the objectives (1: "N+1")
    max_gpus: int = 1024  # a candidate that needs more is infeasible
    tolerance: float = 0.02  # relative width of the bracket of the largest rate

    def __post_init__(self) -> None:
        if not self.objectives and not self.scenario.slos:
            raise InputError("required: objectives such as ttft:p95<500ms, or an slo in the scenario", key="slo")
        if not all(isinstance(objective, Objective) for objective in self.objectives):
            raise InputError("must be what parse_objectives gives", key="objectives", value=self.objectives)
        for key, low, high, allowed in (
            ("headroom", 0.0, 10.0, "must be from 0 to 10 (0.2: 20 %)"),
            ("spare", 0, 100, "must be from 0 to 100 replicas"),
            ("max_gpus", 1, 1024, "must be from 1 to 1024"),
            ("tolerance", 0.001, 0.5, "must be from 0.001 to 0.5"),
        ):
            if not low <= getattr(self, key) <= high:
                raise InputError(allowed, key=key, value=getattr(self, key))

    def target_rps(self) -> float:
        """The target rate. Raises InputError: not above 0 and finite, or arrivals without a single rate."""
        target = mean_rate(self.scenario) if self.rate_rps is None else self.rate_rps
        if not 0.0 < target < math.inf:
            raise InputError("must be above 0 and finite, in requests per second", key="rate", value=target)
        return target


def candidates(
    scenario: Scenario, hardware: Sequence[str] = (), sizes: Sequence[int] = (), methods: Sequence[Method] = ()
) -> tuple[Candidate, ...]:
    """Every device with every tensor parallelism and every method; equal candidates once. Raises InputError: an unknown
    device, a bad method, or a setting of the scenario that holds for one device only.
    """
    methods = methods or ([OFF, GIVEN] if scenario.speculative_config is not None else [OFF])
    own_device = load_hardware(scenario.hardware)
    own_size, num_gpu_blocks = scenario.engine.tensor_parallel_size, scenario.engine.num_gpu_blocks
    variants, distinct = [], list[Mapping[str, Any]]()
    for name, size in itertools.product(hardware or [scenario.hardware], sizes or [own_size]):
        device = load_hardware(name)
        if num_gpu_blocks is not None and (device.name, size) != (own_device.name, own_size):
            message = "is the memory of one device and tensor parallelism; take it away to compare others"
            raise InputError(message, key="engine.num_gpu_blocks", value=num_gpu_blocks)
        values: dict[str, Any] = {"hardware": name, "engine.tensor_parallel_size": size}
        if device.name != own_device.name and scenario.profile != "default":
            values["profile"] = None  # a profile is of one device; another takes its own
        for number, method in enumerate(methods, 1):
            place = f"method {number}"
            changes = values | _method_values(scenario, method, size, place)
            setting = changes | {"hardware": device}  # however it was spelt
            if setting not in distinct:
                distinct.append(setting)
                places = dict.fromkeys(METHOD_KEYS, place) if isinstance(method, Mapping) else {}
                candidate = Candidate("", with_values(scenario, changes, places))
                variants.append(replace(candidate, label=f"{device.name} tp {size} {candidate.method}"))
    return tuple(variants)


def mean_rate(scenario: Scenario) -> float:
    """Requests per second of the scenario's arrivals. Raises InputError: no single rate, or a trace without times."""
    arrivals = scenario.workload.arrivals
    if scenario.rate_rps is not None:
        return scenario.rate_rps
    if not isinstance(arrivals, TraceArrivals):
        message = f"{arrivals.process} arrivals have no single rate to plan for; take poisson or another open process"
        raise InputError(message, key="workload.arrivals.process")
    gap_s = load_trace(arrivals).mean_gap_s * arrivals.time_scale
    if not gap_s > 0.0:
        raise InputError("all its requests arrive at once: there is no rate to plan for", file=arrivals.path)
    return 1.0 / gap_s


def _method_values(scenario: Scenario, method: Method, size: int, place: str) -> dict[str, Any]:
    if method == OFF:
        return {"engine.speculative_config": None, "policy": None}
    if method == GIVEN:
        if scenario.speculative_config is None:
            raise InputError("the scenario has no speculation", file=place, value=GIVEN)
        values: dict[str, Any] = {"engine.speculative_config": speculative_values(scenario)}
    elif isinstance(method, str):
        raise InputError(f"must be {OFF}, {GIVEN} or a mapping", file=place, value=method)
    else:
        values = {"policy": None} | method_values(method, place)
    config = values["engine.speculative_config"]
    # vLLM allows the draft 1 or the target's degree; one that was the target's goes with it.
    if config.get("draft_tensor_parallel_size") not in (None, 1):
        config["draft_tensor_parallel_size"] = size
    return values
