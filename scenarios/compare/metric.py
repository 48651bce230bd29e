"""The metrics by which settings are compared, and what a GPU costs."""

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from draftcast.errors import InputError
from draftcast.scenarios.schema import Scenario


@dataclass(frozen=True)
class Metric:
    """A figure of a run and which direction of it is better."""

    name: str
    figure: str  # its name among the figures of a replication
    less_is_better: bool
    label: str  # for sentences; ``short`` for the heading of a column, with ``unit``
    short: str
    unit: str
    factor: float = 1.0  # from the figure's unit to ``unit``
    is_throughput: bool = False  # an open loop below its capacity completes what arrives, whatever the setting

    def values(self, replications: Sequence[Mapping[str, float]]) -> list[float]:
        """The figure by replication; empty where it is undefined in one of them."""
        values = [float(figures.get(self.figure, math.nan)) for figures in replications]
        return values if all(map(math.isfinite, values)) else []


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("e2e", "mean_e2el_s", True, "mean end-to-end latency", "mean E2E", "s"),
        Metric("tpot", "mean_tpot_s", True, "mean time per output token", "mean TPOT", "ms", 1e3),
        Metric("token_goodput", "output_throughput", False, "token goodput", "token goodput", "tok/s", 1.0, True),
        Metric("slo_goodput", "request_goodput", False, "SLO goodput", "SLO goodput", "req/s"),
    )
}
E2E = METRICS["e2e"]
# At equal GPUs the cost of a token is the inverse of the tokens delivered; the price decides what that is in money.
COST = Metric("cost", "output_throughput", False, "output tokens per money", "tokens per money", "tok", 1.0, True)


def check_slo(metric: str, scenario: Scenario) -> None:
    """Raises InputError: goodput under an SLO of a scenario without one."""
    if metric == "slo_goodput" and not scenario.slos:
        raise InputError("needs an SLO in the scenario (--set slo.tpot_ms=30)", file="--metric", value=metric)


def metric_named(name: str) -> Metric:
    """The metric of this name. Raises InputError: there is none."""
    if name not in METRICS:
        raise InputError(f"unknown metric; choose from {', '.join(METRICS)}", key="metric", value=name)
    return METRICS[name]


@dataclass(frozen=True)
class Price:
    """What one GPU costs an hour, in the user's currency, and the day (ISO) it was asked for."""

    per_gpu_hour: float
    date: str

    def __post_init__(self) -> None:
        if not 0.0 < self.per_gpu_hour < math.inf:
            raise InputError("must be above 0 and finite", key="price", value=self.per_gpu_hour)
        try:
            datetime.date.fromisoformat(self.date)
        except ValueError:
            raise InputError("must be a day such as 2026-11-21", key="price.date", value=self.date) from None


def mean_price(prices: Mapping[str, Price], gpus: Mapping[str, int]) -> Price:
    """What a cluster's GPUs cost on average, as of the oldest price; both by device. Raises InputError: one without."""
    for device in gpus:
        if device not in prices:
            raise InputError("has no price: give one for every device of the cluster", key="price", value=device)
    total = sum(prices[device].per_gpu_hour * count for device, count in gpus.items())
    return Price(total / sum(gpus.values()), min(prices[device].date for device in gpus))
