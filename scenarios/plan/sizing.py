"""How many GPUs a load needs for its SLO, on which hardware, at which tensor parallelism, with which method.

Every candidate's replica is searched for the largest rate at which it meets the objectives; so many replicas as the
target needs are then simulated as one cluster, and one more or one fewer until the smallest that holds is found. Prices
come from the user alone. Runs the simulator; knows nothing of tables on a screen (``scenarios/show/plan_report.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from draftcast.calibration.profile.hardware import HardwareSpec, load_hardware
from draftcast.errors import CapacityError, InputError, ModelError
from draftcast.scenarios.compare.price import Price
from draftcast.scenarios.plan.search import IDLE_SHARE, STEADY_STATE, Check, Cluster, LargestRate
from draftcast.scenarios.plan.slo import Objective
from draftcast.scenarios.run.deployment import deploy
from draftcast.scenarios.run.workload_spec import workload_spec
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import to_mapping, with_rate, with_values
from draftcast.sim.progress import Progress, part_of
from draftcast.sim.workload.arrivals import TraceArrivals
from draftcast.sim.workload.spec import load_traces

if TYPE_CHECKING:
    import pandas as pd

GIVEN, OFF = "given", "off"
"""Methods by word: the scenario's own speculation, and none. Any other is a mapping with its own acceptance."""
Method = str | Mapping[str, Any]
# A candidate takes about so many simulations; only the progress bar depends on it.
_RUNS = 20


@dataclass(frozen=True)
class Candidate:
    """One way to serve: device, tensor parallelism, method."""

    hardware: HardwareSpec
    tensor_parallel_size: int
    method: str
    scenario: Scenario = field(repr=False)

    @property
    def label(self) -> str:
        """``h100-sxm tp 2 eagle3 k=3``."""
        return f"{self.hardware.name} tp {self.tensor_parallel_size} {self.method}"


@dataclass(frozen=True)
class Sizing:
    """A candidate, sized for the target.

    Attributes:
        replicas: fewest that meet the objectives at the target and its headroom; 0 when no number does.
        spare: replicas beyond those, so that as many may fail.
        check: ``replicas`` at the target and its headroom; for an infeasible candidate the run that shows why; None
            when the engine cannot even be started, and ``reason`` says why.
        largest: rate up to which ``replicas`` meet the objectives.
        reason: why it is infeasible; empty when it is not.
        output_tokens_per_s: at the target.
        price: of the device; None where none was given.
    """

    candidate: Candidate
    replicas: int
    spare: int
    check: Check | None
    largest: LargestRate | None
    reason: str
    target_rps: float
    output_tokens_per_s: float = math.nan
    price: Price | None = None

    @property
    def feasible(self) -> bool:
        """Whether some number of replicas meets the objectives."""
        return self.replicas > 0

    @property
    def num_gpus(self) -> int:
        """Devices of all replicas, spare ones included."""
        return (self.replicas + self.spare) * self.candidate.tensor_parallel_size if self.feasible else 0

    @property
    def headroom(self) -> float:
        """How much more than the target is served within the objectives, without spare replicas: 0.25 for 25 % more."""
        return self.largest.met / self.target_rps - 1.0 if self.largest is not None else math.nan

    @property
    def cost_per_hour(self) -> float | None:
        """Of all devices; None without a price."""
        return self.num_gpus * self.price.per_gpu_hour if self.feasible and self.price is not None else None

    @property
    def cost_per_million_tokens(self) -> float | None:
        """Of output, at the target; None without a price."""
        cost = self.cost_per_hour
        return cost / (3600.0 * self.output_tokens_per_s) * 1e6 if cost is not None else None

    @property
    def kwh_per_million_tokens(self) -> float | None:
        """Energy of a million output tokens at the target with every board at its rated power: an upper bound.

        Hosts, switches and cooling are not in it. None where the board's power is not known.
        """
        watts = self.candidate.hardware.board_power_w * self.num_gpus
        return watts / self.output_tokens_per_s * 1e6 / 3.6e6 if watts and self.feasible else None

    def summary(self) -> dict[str, Any]:
        """The sizing as plain values, for ``--json``."""
        constraint = self.check.tightest if self.check is not None else None
        return {
            "hardware": self.candidate.hardware.name,
            "tensor_parallel_size": self.candidate.tensor_parallel_size,
            "method": self.candidate.method,
            "feasible": self.feasible,
            "reason": self.reason,
            "replicas": self.replicas,
            "spare_replicas": self.spare,
            "num_gpus": self.num_gpus,
            "largest_rate_rps": self.largest.met if self.largest is not None else None,
            "smallest_rate_not_met_rps": self.largest.not_met if self.largest is not None else None,
            "headroom": self.headroom,
            "limit_beyond": self.largest.limit if self.largest is not None else None,
            "tightest_constraint": constraint,
            "cost_per_hour": self.cost_per_hour,
            "cost_per_million_output_tokens": self.cost_per_million_tokens,
            "price": self.price,
            "kwh_per_million_output_tokens": self.kwh_per_million_tokens,
            "output_tokens_per_s": self.output_tokens_per_s,
            "figures": self.check.figures if self.check is not None else None,
        }


@dataclass(frozen=True)
class Plan:
    """Every candidate sized, the best first: least cost where prices are given, else fewest GPUs.

    ``headroom`` and ``spare`` as asked; ``objectives`` are empty when the scenario's own ``slo`` was taken.
    """

    scenario: Scenario
    target_rps: float
    headroom: float
    spare: int
    objectives: tuple[Objective, ...]
    sizings: tuple[Sizing, ...]

    @property
    def best(self) -> Sizing | None:
        """The first feasible candidate; None when there is none."""
        return self.sizings[0] if self.sizings[0].feasible else None

    def summary(self) -> dict[str, Any]:
        """The plan as plain values, for ``--json``."""
        return {
            "feasible": self.best is not None,
            "target_rate_rps": self.target_rps,
            "headroom_asked": self.headroom,
            "spare_replicas_asked": self.spare,
            "objectives": [objective.label for objective in self.objectives] or ["slo of the scenario"],
            "best": self.sizings[0].candidate.label if self.best is not None else None,
            "candidates": [sizing.summary() for sizing in self.sizings],
        }

    def frame(self) -> pd.DataFrame:
        """One row a candidate, the best first, with the plain values of `Sizing.summary`."""
        import pandas as pd

        left_out = ("figures", "price", "limit_beyond", "tightest_constraint")
        rows = []
        for sizing in self.sizings:
            row = {name: value for name, value in sizing.summary().items() if name not in left_out}
            row |= {
                "price_per_gpu_hour": sizing.price.per_gpu_hour if sizing.price is not None else None,
                "price_date": sizing.price.date if sizing.price is not None else None,
                "tightest": sizing.check.tightest.name if sizing.check is not None else None,
                "tightest_used": sizing.check.tightest.used if sizing.check is not None else None,
            }
            rows.append(row)
        return pd.DataFrame(rows)


def plan(
    scenario: Scenario,
    *,
    rate_rps: float | None = None,
    objectives: Sequence[Objective] = (),
    hardware: Sequence[str] = (),
    tensor_parallel_sizes: Sequence[int] = (),
    methods: Sequence[Method] = (),
    prices: Mapping[str, Price] | None = None,
    headroom: float = 0.0,
    spare: int = 0,
    max_gpus: int = 1024,
    tolerance: float = 0.02,
    progress: Progress | None = None,
) -> Plan:
    """Size every candidate for a target rate under an SLO.

    Args:
        scenario: workload, acceptance, engine; its number of requests is what one replica is judged by.
        rate_rps: target; None: the scenario's own mean rate (of a trace: the trace's).
        objectives: of `parse_objectives`; none: the scenario's ``slo``.
        hardware, tensor_parallel_sizes: candidates; none: the scenario's own.
        methods: `GIVEN`, `OFF`, or ``{"speculative_config": {...}, "acceptance": {...}}``; none: off, and the given one
            where there is one.
        prices: by device; with them the least cost comes first, and every candidate's device needs one.
        headroom: share beyond the target that must still meet the objectives, e.g. 0.2.
        spare: replicas that may fail: the others alone must meet the objectives (1: "N+1").
        max_gpus: a candidate that needs more is infeasible.
        tolerance: relative width of the bracket of the largest rate.
        progress: called with the share of the work done, 0 to 1.

    Raises:
        InputError: no SLO, arrivals without a single rate, a device without its price, an argument out of range, or
            what the scenario itself does not allow.
    """
    _check_arguments(scenario, objectives, headroom, spare, max_gpus, tolerance)
    target = mean_rate(scenario) if rate_rps is None else rate_rps
    if not 0.0 < target < math.inf:
        raise InputError("must be above 0 and finite, in requests per second", key="rate", value=target)
    question = with_rate(scenario, target)
    found = candidates(question, hardware, tensor_parallel_sizes, methods)
    _prices(prices, found)  # refused before anything is simulated
    sizings = []
    for index, candidate in enumerate(found):
        sizer = _Sizer(candidate, target, tuple(objectives), headroom, spare, max_gpus, tolerance)
        sizer.progress = part_of(progress, index, len(found))
        sizings.append(sizer.sizing())
    if progress is not None:
        progress(1.0)
    return with_prices(Plan(scenario, target, headroom, spare, tuple(objectives), tuple(sizings)), prices)


def with_prices(answer: Plan, prices: Mapping[str, Price] | None) -> Plan:
    """The same plan at other prices (none: without), ranked anew; nothing is simulated.

    Raises:
        InputError: an unknown device, or a candidate's device without a price beside others that have one.
    """
    priced = _prices(prices, [sizing.candidate for sizing in answer.sizings])
    sizings = [
        replace(each, price=priced.get(each.candidate.hardware.name) if each.feasible else None)
        for each in answer.sizings
    ]
    return replace(answer, sizings=tuple(sorted(sizings, key=_rank)))


def candidates(
    scenario: Scenario, hardware: Sequence[str] = (), sizes: Sequence[int] = (), methods: Sequence[Method] = ()
) -> tuple[Candidate, ...]:
    """Every device with every tensor parallelism and every method.

    Raises:
        InputError: an unknown device, a bad method, or a setting of the scenario that holds for one device only.
    """
    asked = list(methods) or ([OFF, GIVEN] if scenario.speculative_config is not None else [OFF])
    devices = [load_hardware(name) for name in hardware or (scenario.hardware,)]
    own = load_hardware(scenario.hardware)
    found = []
    for device, name in zip(devices, hardware or (scenario.hardware,), strict=True):
        for size in sizes or (scenario.engine.tensor_parallel_size,):
            elsewhere = device.name != own.name or size != scenario.engine.tensor_parallel_size
            if elsewhere and scenario.engine.num_gpu_blocks is not None:
                raise InputError(
                    "is the memory of one device and tensor parallelism; take it away to compare others",
                    key="engine.num_gpu_blocks",
                    value=scenario.engine.num_gpu_blocks,
                )
            values: dict[str, Any] = {"hardware": name, "engine.tensor_parallel_size": size}
            if device.name != own.name and scenario.profile != "default":
                values["profile"] = None  # a profile is of one device; another takes its own
            for number, method in enumerate(asked):
                changed = with_values(scenario, values | _method_values(scenario, method, size, f"method {number + 1}"))
                found.append(Candidate(device, size, _method_label(changed), changed))
    return tuple(found)


def mean_rate(scenario: Scenario) -> float:
    """Requests per second of the scenario's own arrivals.

    Raises:
        InputError: closed-loop or piecewise arrivals, or a trace without times.
    """
    arrivals = scenario.workload.arrivals
    rate = getattr(arrivals, "request_rate_rps", None)
    if rate is not None:
        return float(rate)
    spec = workload_spec(scenario)
    if not isinstance(spec.arrivals, TraceArrivals) or spec.trace is None:
        raise InputError(
            f"{arrivals.process} arrivals have no single rate; give a target rate", key="workload.arrivals.process"
        )
    gap_s = load_traces(spec)[spec.trace].mean_gap_s * spec.arrivals.time_scale
    if not gap_s > 0.0:
        raise InputError("all its requests arrive at once: there is no rate to plan for", file=spec.trace.path)
    return 1.0 / gap_s


@dataclass
class _Sizer:
    """The search for one candidate."""

    candidate: Candidate
    target: float
    objectives: tuple[Objective, ...]
    headroom: float
    spare: int
    max_gpus: int
    tolerance: float
    progress: Progress | None = None

    def sizing(self) -> Sizing:
        try:
            deployment = deploy(self.candidate.scenario)
        except (CapacityError, ModelError) as error:
            # Too little memory, or heads that do not split over so many ranks: this candidate's own; the rest is not.
            if isinstance(error, ModelError) and not str(error.key).endswith("tensor_parallel_size"):
                raise
            return self._infeasible(str(error), None)
        cluster = Cluster(self.candidate.scenario, deployment, self.objectives, self._ran())
        estimate = cluster.estimated_rate()
        idle = cluster.check(1, IDLE_SHARE * estimate)
        if not idle.met:
            return self._infeasible(f"{_broken(idle)} with hardly any load: more replicas cannot help", idle)
        alone = cluster.largest_rate(1, 0.8 * estimate, 1.2, self.tolerance)
        if alone is None:
            return self._infeasible(f"{_broken(idle)} at any load", idle)
        needed = self.target * (1.0 + self.headroom)
        most = self.max_gpus // self.candidate.tensor_parallel_size - self.spare
        replicas = self._fewest(cluster, max(1, math.ceil(needed / alone.met)), most, needed)
        if replicas is None:
            reason = (
                f"needs more than {self.max_gpus} GPUs: one replica holds {alone.met:.3g} of {needed:.3g} requests/s"
            )
            return self._infeasible(reason, cluster.check(1, alone.not_met) if math.isfinite(alone.not_met) else idle)
        largest: LargestRate | None = alone
        if replicas > 1:
            # Together they hold about what they hold alone: a bracket a few per cent wide is soon found.
            start = max(needed, replicas * alone.met)
            largest = cluster.largest_rate(replicas, start, 1.0 + 2 * self.tolerance, self.tolerance)
        if largest is not None and largest.met < needed:
            # Chance near the limit: this load was simulated and met.
            largest = replace(largest, met=needed, not_met=max(needed, largest.not_met))
        check = cluster.check(replicas, needed)
        tokens = cluster.traffic.output_tokens * self.target
        return Sizing(self.candidate, replicas, self.spare, check, largest, "", self.target, tokens)

    def _fewest(self, cluster: Cluster, first: int, most: int, rate_rps: float) -> int | None:
        """Fewest replicas that meet the objectives, from a first guess on; None: more than ``most``."""
        replicas = first
        if replicas <= most and cluster.check(replicas, rate_rps).met:
            while replicas > 1 and cluster.check(replicas - 1, rate_rps).met:
                replicas -= 1
            return replicas
        while replicas < most:
            replicas += 1
            if cluster.check(replicas, rate_rps).met:
                return replicas
        return None

    def _infeasible(self, reason: str, check: Check | None) -> Sizing:
        return Sizing(self.candidate, 0, self.spare, check, None, reason, self.target)

    def _ran(self) -> Callable[[], None]:
        count = 0

        def ran() -> None:
            nonlocal count
            count += 1
            if self.progress is not None:
                self.progress(count / (count + _RUNS / 2))

        return ran


def _broken(check: Check) -> str:
    limit = check.tightest
    if limit.name == STEADY_STATE:
        return "the run did not reach a steady state"
    if limit.name == "capacity":
        return f"the cluster is {check.verdict}"
    if limit.name == "slo.attainment":
        return f"{limit.value:.1%} of the requests meet the SLO, {limit.limit:.1%} must"
    return f"{limit.name} is {1e3 * limit.value:.4g} ms"


def _check_arguments(
    scenario: Scenario, objectives: Sequence[Objective], headroom: float, spare: int, max_gpus: int, tolerance: float
) -> None:
    slos = (scenario.slo, *(entry.slo for entry in scenario.workload.classes))
    if not objectives and not any(slos):
        raise InputError("required: objectives such as ttft:p95<500ms, or an slo in the scenario", key="slo")
    for key, value, ok, allowed in (
        ("headroom", headroom, 0.0 <= headroom <= 10.0, "must be from 0 to 10 (0.2: 20 %)"),
        ("spare", spare, 0 <= spare <= 100, "must be from 0 to 100 replicas"),
        ("max_gpus", max_gpus, 1 <= max_gpus <= 1024, "must be from 1 to 1024"),
        ("tolerance", tolerance, 0.001 <= tolerance <= 0.5, "must be from 0.001 to 0.5"),
    ):
        if not ok:
            raise InputError(allowed, key=key, value=value)


def _method_values(scenario: Scenario, method: Method, size: int, place: str) -> dict[str, Any]:
    if method == OFF:
        return {"engine.speculative_config": None, "policy": None}
    if method == GIVEN:
        if scenario.speculative_config is None:
            raise InputError("the scenario has no speculation", file=place, value=GIVEN)
        config = dict(to_mapping(scenario)["engine"]["speculative_config"])
        values: dict[str, Any] = {}
    elif isinstance(method, str):
        raise InputError(f"must be {OFF}, {GIVEN} or a mapping", file=place, value=method)
    else:
        unknown = set(method) - {"speculative_config", "acceptance"}
        if unknown or not isinstance(method.get("speculative_config"), Mapping):
            raise InputError('must be {"speculative_config": {...}, "acceptance": {...}}', file=place)
        config = dict(method["speculative_config"])
        values = {"policy": None} | ({"acceptance": method["acceptance"]} if "acceptance" in method else {})
    # vLLM allows the draft 1 or the target's degree; one that was the target's goes with it.
    if config.get("draft_tensor_parallel_size") not in (None, 1):
        config["draft_tensor_parallel_size"] = size
    return values | {"engine.speculative_config": config}


def _method_label(scenario: Scenario) -> str:
    if scenario.speculative_config is None:
        return OFF
    schedule = " schedule" if scenario.speculative_config.num_speculative_tokens_per_batch_size is not None else ""
    return f"{scenario.method} k={scenario.num_speculative_tokens}{schedule}"


def _prices(prices: Mapping[str, Price] | None, found: Sequence[Candidate]) -> dict[str, Price]:
    if not prices:
        return {}
    known = {load_hardware(name).name: price for name, price in prices.items()}
    for candidate in found:
        if candidate.hardware.name not in known:
            raise InputError(
                "has no price; give one for every device, or none", key="prices", value=candidate.hardware.name
            )
    return known


def _rank(sizing: Sizing) -> tuple[float, ...]:
    """Feasible ones by cost, GPUs, and headroom; infeasible ones by how far the tightest constraint is missed."""
    if sizing.feasible:
        return (0.0, sizing.cost_per_hour or 0.0, sizing.num_gpus, -sizing.headroom)
    used = sizing.check.tightest.used if sizing.check is not None else math.inf
    return (1.0, math.inf if math.isnan(used) else used, 0.0, 0.0)
