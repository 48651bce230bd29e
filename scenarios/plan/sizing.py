"""How many GPUs a load needs for its SLO, on which hardware, at which tensor parallelism, with which method.

Every candidate's replica is searched for the largest rate at which it meets the objectives; so many replicas as the
target needs are then simulated as one cluster, and one more or one fewer until the smallest that holds is found. Prices
come from the user alone.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from draftcast.calibration.profile.hardware import load_hardware
from draftcast.errors import CapacityError, InputError, ModelError
from draftcast.files import picked
from draftcast.scenarios.compare.candidate import Candidate
from draftcast.scenarios.compare.metric import Price
from draftcast.scenarios.compare.model_error import setting_error
from draftcast.scenarios.plan.question import PlanQuestion, candidates
from draftcast.scenarios.plan.search import BEYOND_IS_UNSETTLED, STEADY_STATE, LargestRate, LoadCheck, SimulatedCluster
from draftcast.scenarios.run.deployment import assumptions, cached_deployment, check_alike
from draftcast.scenarios.run.simulate import HasPicture
from draftcast.scenarios.schema import Scenario, with_rate
from draftcast.sim.progress import Progress, parts_of
from draftcast.sim.statistics.intervals import Estimate, normal_quantile

# Loads to look at, in shares of the largest that meets the SLO: closer together where the curve bends.
SHARES = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5)
IDLE_SHARE = 0.01  # share of a replica's estimated capacity at which hardly any request meets another: latency's floor
COMPLETED, WITHIN = "completed", "within the SLO"
UNSETTLED_TRIES = 3  # runs of a trace in a row without a steady state that end it: more replicas only shorten them


@dataclass(frozen=True)
class SizedCandidate:
    """A candidate, sized for the target."""

    candidate: Candidate
    replicas: int  # fewest that meet the objectives at the target and its headroom; 0 when no number does
    spare: int  # replicas beyond those, so that as many may fail
    # ``replicas`` at the target and its headroom, or the run that shows why none do; None: the engine cannot be started
    check: LoadCheck | None
    largest: LargestRate | None  # rate up to which ``replicas`` meet the objectives
    reason: str  # why it is infeasible; empty when it is not
    target_rps: float
    output_tokens_per_s: float = math.nan  # at the target
    price: Price | None = None
    # What of its rate a replica serves within the objectives if all its times are as much longer, or shorter, as the
    # model may err by at the question's confidence; 0: none
    serves: tuple[float, float] = (1.0, 1.0)
    # About how many would do by rate where more than allowed are needed, or none settled; infinite: no number
    gpus_beyond: float = math.inf
    unsettled: str = ""  # a sentence where fewer replicas were passed over only because they did not settle

    @property
    def feasible(self) -> bool:
        return self.replicas > 0

    @property
    def replicas_interval(self) -> tuple[int, int | None] | None:
        """Fewest and most replicas that may be needed, the errors of step times and acceptance counted in; no most one
        where times as long as that break the objectives at any load. None when infeasible."""
        if not self.feasible or self.largest is None:
            return None
        needed = self.replicas * self.check.rate_rps / self.largest.met if self.check is not None else self.replicas
        longer, shorter = self.serves
        fewest = min(math.ceil(needed / shorter), self.replicas)
        return fewest, max(math.ceil(needed / longer), self.replicas) if longer else None

    @property
    def num_gpus(self) -> int:
        """Devices of all replicas, spare ones included."""
        return (self.replicas + self.spare) * self.candidate.scenario.engine.num_gpus if self.feasible else 0

    @property
    def headroom(self) -> float:
        """How much more than the target is served within the objectives, without spare replicas: 0.25 for 25 % more."""
        return self.largest.met / self.target_rps - 1.0 if self.largest is not None else math.nan

    @property
    def notes(self) -> tuple[str, ...]:
        passed_over = (self.unsettled,) if self.unsettled else ()
        return (*assumptions(self.candidate.scenario), *passed_over) if self.feasible else ()

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
        """Of output, boards alone, at their rated power: an upper bound; None where the board's is not known."""
        watts = self.candidate.hardware.board_power_w * self.num_gpus
        return watts / self.output_tokens_per_s * 1e6 / 3.6e6 if watts and self.feasible else None

    def summary(self) -> dict[str, Any]:
        largest, check = self.largest, self.check
        return {
            **picked(self.candidate, "method"),
            **picked(self.candidate.scenario.engine, "tensor_parallel_size"),
            **picked(self, "feasible reason replicas replicas_interval num_gpus headroom cost_per_hour price notes"),
            "hardware": self.candidate.hardware.name,
            "spare_replicas": self.spare,
            "largest_rate_rps": largest.met if largest is not None else None,
            "smallest_rate_not_met_rps": largest.not_met if largest is not None else None,
            "limit_beyond": largest.limit if largest is not None else None,
            "tightest_constraint": check.tightest if check is not None else None,
            "cost_per_million_output_tokens": self.cost_per_million_tokens,
            "kwh_per_million_output_tokens": self.kwh_per_million_tokens,
            "output_tokens_per_s": self.output_tokens_per_s,
            "figures": check.figures if check is not None else None,
        }


@dataclass(frozen=True)
class CapacityPlan(HasPicture):
    """Every candidate sized, the best first: least cost where prices are given, else fewest GPUs."""

    picture = "plan_report.sizing_figure"
    question: PlanQuestion
    target_rps: float
    sizings: tuple[SizedCandidate, ...]

    @property
    def best(self) -> SizedCandidate | None:
        """The first feasible candidate; None when there is none."""
        return self.sizings[0] if self.sizings[0].feasible else None

    def summary(self) -> dict[str, Any]:
        return {
            "feasible": self.best is not None,
            "target_rate_rps": self.target_rps,
            "headroom_asked": self.question.headroom,
            "spare_replicas_asked": self.question.spare,
            "objectives": [objective.label for objective in self.question.objectives] or ["slo of the scenario"],
            "best": self.sizings[0].candidate.label if self.best is not None else None,
            "candidates": [sizing.summary() for sizing in self.sizings],
        }

    def frame(self) -> pd.DataFrame:
        """One row a candidate, the best first, with the plain values of `SizedCandidate.summary`."""
        left_out = ("replicas_interval", "figures", "notes", "price", "limit_beyond", "tightest_constraint")
        rows = []
        for sizing in self.sizings:
            row = {name: value for name, value in sizing.summary().items() if name not in left_out}
            price, tightest = sizing.price, sizing.check.tightest if sizing.check is not None else None
            row["price_per_gpu_hour"], row["price_date"] = (price.per_gpu_hour, price.date) if price else (None, None)
            row["tightest"], row["tightest_used"] = (tightest.name, tightest.used) if tightest else (None, None)
            row["replicas_low"], row["replicas_high"] = sizing.replicas_interval or (None, None)
            rows.append(row)
        return pd.DataFrame(rows)


def plan(question: PlanQuestion, progress: Progress | None = None) -> CapacityPlan:
    """Size every candidate for a target rate under an SLO.

    Raises:
        InputError: arrivals without a single rate, a device without its price, or what the scenario itself does not
            allow.
    """
    check_alike(question.scenario)
    target_rps = question.target_rps()
    scenario = with_rate(question.scenario, target_rps)
    variants = candidates(scenario, question.hardware, question.tensor_parallel_sizes, question.methods)
    _prices(question.prices, variants)  # refused before anything is simulated
    sizings = [_sized(candidate, question, target_rps, part) for candidate, part in parts_of(progress, variants)]
    return with_prices(CapacityPlan(question, target_rps, tuple(sizings)), question.prices)


def with_prices(answer: CapacityPlan, prices: Mapping[str, Price]) -> CapacityPlan:
    """The plan at other prices (none: without), ranked anew. Raises InputError: a device unknown or without a price."""
    priced = _prices(prices, [sizing.candidate for sizing in answer.sizings])
    sizings = [
        replace(sizing, price=priced.get(sizing.candidate.hardware.name) if sizing.feasible else None)
        for sizing in answer.sizings
    ]
    return replace(answer, sizings=tuple(sorted(sizings, key=_rank)))


def _sized(
    candidate: Candidate, question: PlanQuestion, target_rps: float, progress: Progress | None
) -> SizedCandidate:
    tolerance, max_gpus = question.tolerance, question.max_gpus
    infeasible = SizedCandidate(candidate, 0, question.spare, None, None, "", target_rps)
    try:
        cached_deployment(candidate.scenario)
    except (CapacityError, ModelError) as refusal:
        # Too little memory, or heads that do not split over so many ranks: this candidate's own; the rest is not.
        if isinstance(refusal, ModelError) and not str(refusal.key).endswith("tensor_parallel_size"):
            raise
        return replace(infeasible, reason=str(refusal))
    cluster = SimulatedCluster(candidate.scenario, tuple(question.objectives), progress)
    # By what factor all times may be longer or shorter.
    confidence = candidate.scenario.statistics.confidence
    reach = math.exp(normal_quantile(confidence) * setting_error(candidate.scenario))
    estimate = cluster.replica.rate_rps(cluster.replica.slots)  # with a full batch
    idle = cluster.check(1, IDLE_SHARE * estimate)
    if not idle.met:
        reason = f"{idle.broken} with hardly any load: more replicas cannot help"
        if idle.time_used <= reach:
            inside = f"still inside the {confidence:.0%} prediction interval"
            reason += f" (times {1 - 1 / reach:.0%} shorter, {inside}, meet it)"
        return replace(infeasible, reason=reason, check=idle)
    alone = cluster.largest_rate(1, 0.8 * estimate, 1.2, tolerance)
    if alone is None:
        return replace(infeasible, reason=f"{idle.broken} at any load", check=idle)
    needed = target_rps * (1.0 + question.headroom)
    most = max_gpus // candidate.scenario.engine.num_gpus - question.spare
    first = max(1, math.ceil(needed / alone.met))
    replicas, unsettled = _fewest(cluster, needed, range(first, most + 1))
    if replicas is None:
        gpus = math.ceil(needed / alone.met) * candidate.scenario.engine.num_gpus
        if unsettled:
            length = "num_requests" if candidate.scenario.workload.num_requests is not None else "duration_s"
            run, remedy = "run", f"raise workload.{length}"
            if _is_trace(candidate.scenario):
                run, remedy = "trace", "give a longer one"
            reason = f"the {run} is too short for {replicas_text(unsettled[0])} to reach a steady state: {remedy}"
            check = cluster.check(unsettled[0], needed)
        else:
            gpus_text = "1 GPU" if max_gpus == 1 else f"{max_gpus} GPUs"
            reason = f"needs more than {gpus_text}: one replica holds {alone.met:.3g} of {needed:.3g} requests/s"
            if alone.limit is not None and alone.limit.name == STEADY_STATE:
                reason += f", {BEYOND_IS_UNSETTLED}"
            check = cluster.check(1, alone.not_met) if math.isfinite(alone.not_met) else idle
        return replace(infeasible, reason=reason, check=check, gpus_beyond=gpus)
    while 1 < replicas <= first and cluster.check(replicas - 1, needed).met:
        replicas -= 1
    largest: LargestRate | None = alone
    if replicas > 1:
        # Together they hold about what they hold alone: a bracket a few per cent wide is soon found.
        start = max(needed, replicas * alone.met)
        largest = cluster.largest_rate(replicas, start, 1.0 + 2 * tolerance, tolerance)
    if largest is not None and largest.met < needed:
        # Chance near the limit: this load was simulated and met.
        largest = replace(largest, met=needed, not_met=max(needed, largest.not_met))
    return replace(
        infeasible,
        replicas=replicas,
        check=cluster.check(replicas, needed),
        largest=largest,
        output_tokens_per_s=cluster.replica.traffic.output_tokens * target_rps,
        serves=(cluster.largest_rate_if(reach) / alone.met, max(1.0, cluster.largest_rate_if(1.0 / reach) / alone.met)),
        unsettled=f"{replicas_text(unsettled[0])} may do: the run did not reach a steady state" if unsettled else "",
    )


def _fewest(cluster: SimulatedCluster, needed: float, counts: Sequence[int]) -> tuple[int | None, list[int]]:
    """The first of ``counts`` that meets the objectives at ``needed`` requests/s, and those right before it (or, where
    there is none, before the end) whose runs did not reach a steady state."""
    unsettled: list[int] = []
    is_trace = _is_trace(cluster.scenario)
    for count in counts:
        check = cluster.check(count, needed)
        if check.met:
            return count, unsettled
        unsettled = [*unsettled, count] if check.tightest.name == STEADY_STATE else []
        if is_trace and len(unsettled) == UNSETTLED_TRIES:
            break
    return None, unsettled


def _is_trace(scenario: Scenario) -> bool:
    """Whether the run is as long as a recorded list, however many replicas serve it."""
    return scenario.workload.arrivals.process == "trace" and scenario.workload.num_requests is None


def replicas_text(count: int) -> str:
    return f"{count} replica" if count == 1 else f"{count} replicas"


def _prices(prices: Mapping[str, Price], variants: Sequence[Candidate]) -> dict[str, Price]:
    if not prices:
        return {}
    by_device = {load_hardware(name).name: price for name, price in prices.items()}
    for name in (candidate.hardware.name for candidate in variants):
        if name not in by_device:
            raise InputError("has no price; give one for every device, or none", key="prices", value=name)
    return by_device


def _rank(sizing: SizedCandidate) -> tuple[float, ...]:
    """Feasible ones by cost, GPUs, and headroom; then those that need more GPUs than are allowed, by how many; then the
    others by how far the tightest constraint is missed; last those that cannot start."""
    if sizing.feasible:
        return (0.0, sizing.cost_per_hour or 0.0, sizing.num_gpus, -sizing.headroom)
    used = sizing.check.tightest.used if sizing.check is not None else math.inf
    return (1.0, sizing.gpus_beyond, math.inf if math.isnan(used) else used, 0.0)


def goodput_curve(sizing: SizedCandidate, *, progress: Progress | None = None) -> tuple[LoadCheck, ...]:
    """A sizing without its spares, held to ``slo``, at `SHARES` of its largest rate and the target, by rising rate."""
    if sizing.largest is None:
        return ()
    cluster = SimulatedCluster(sizing.candidate.scenario, ())
    rates = sorted({sizing.target_rps, *(share * sizing.largest.met for share in SHARES)})
    return tuple(cluster.check(sizing.replicas, rate) for rate, _ in parts_of(progress, rates))


def delivered(check: LoadCheck) -> dict[str, Estimate]:
    """Requests/s `COMPLETED` and, of them, `WITHIN` the scenario's ``slo`` (absent without one): in a steady state the
    load and its attained share; above the capacity that is completed, and in the end nothing within an SLO."""
    rate = check.completed_rps
    rates = {COMPLETED: Estimate(rate, rate, rate, 0.0, 1)} if math.isfinite(rate) else {}
    attained = check.figures.get("slo_attainment")
    if check.verdict == "overloaded":
        rates[WITHIN] = Estimate(0.0, 0.0, 0.0, 0.0, 1)
    elif check.verdict == "steady" and attained is not None:
        rates[WITHIN] = attained.scaled(rate)
    return rates


def curve_frame(checks: Sequence[LoadCheck]) -> pd.DataFrame:
    """One row a load: ``rate_rps``, ``verdict``, ``met``, and `delivered` as ``completed_rps`` and ``goodput_rps`` with
    their ``_low`` and ``_high``."""
    rows = []
    for check in checks:
        row: dict[str, Any] = {"rate_rps": check.rate_rps, "verdict": check.verdict, "met": check.met}
        for name, estimate in delivered(check).items():
            row |= estimate.columns("completed_rps" if name == COMPLETED else "goodput_rps")
        rows.append(row)
    return pd.DataFrame(rows)
