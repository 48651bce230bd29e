"""What a cutover can be looked for over: the load as a rate, clients or a batch, the context length, the acceptance.

An axis turns a scenario into the same question at x, and says where x may lie. Runs nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from draftcast.errors import InputError
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import to_mapping, with_rate, with_values

AXIS_OPTION = "--over"


class Axis(ABC):
    """Base of all axes.

    ``unit`` is what x counts; ``whole`` the smallest difference that means anything (0: any number).
    """

    name: str
    unit: str
    whole: float = 0.0

    @abstractmethod
    def at(self, scenario: Scenario, x: float) -> Scenario:
        """``scenario`` at x, the number of requests left as it is.

        Raises:
            InputError: the scenario has nothing to vary there.
        """

    @abstractmethod
    def first_looks(self, scenario: Scenario, slots: float, longest_prompt: int) -> list[float]:
        """Where a search begins, increasing.

        Args:
            slots: requests the cluster holds at once.
            longest_prompt: longest prompt that fits beside the outputs asked for.
        """

    def rate_rps(self, scenario: Scenario, x: float) -> float | None:
        """Mean request rate at x; None in a closed loop and for arrivals without a single rate."""
        rate = getattr(scenario.workload.arrivals, "request_rate_rps", None)
        return float(rate) if rate is not None else None

    def check(self, scenario: Scenario, x: float) -> float:
        """x itself.

        Raises:
            InputError: not a whole number where the axis counts.
        """
        if self.whole and x != round(x):
            raise InputError(f"must be whole numbers of {self.unit}", file="--at", value=x)
        return x


class RateAxis(Axis):
    """Mean request rate of an open loop (a trace is rescaled in time)."""

    name = "rate"
    unit = "req/s"

    def at(self, scenario: Scenario, x: float) -> Scenario:
        process = scenario.workload.arrivals.process
        if process in ("piecewise", "closed_loop"):
            raise InputError(f"{process} arrivals have no single request rate", file=AXIS_OPTION, value="rate")
        return with_rate(scenario, x)

    def rate_rps(self, scenario: Scenario, x: float) -> float | None:
        return x

    def first_looks(self, scenario: Scenario, slots: float, longest_prompt: int) -> list[float]:
        raise NotImplementedError  # they follow from the capacity, see `draftcast.scenarios.cutover.probe`


class ConcurrencyAxis(Axis):
    """Clients of a closed loop, each waiting for its answer (and thinking, where the scenario says so)."""

    name = "concurrency"
    unit = "clients"
    whole = 1.0

    def at(self, scenario: Scenario, x: float) -> Scenario:
        arrivals: dict[str, Any] = {"process": "closed_loop"}
        if scenario.workload.arrivals.process == "closed_loop":
            arrivals = to_mapping(scenario)["workload"]["arrivals"]
        return _closed_loop(scenario, {**arrivals, "concurrency": round(x)})

    def rate_rps(self, scenario: Scenario, x: float) -> float | None:
        return None

    def first_looks(self, scenario: Scenario, slots: float, longest_prompt: int) -> list[float]:
        return _spread(1, max(2, round(slots)), 7, whole=True)


class BatchAxis(ConcurrencyAxis):
    """Static batches: so many requests sent at once to an idle cluster, measured until the last one ends."""

    name = "batch"
    unit = "requests"

    def at(self, scenario: Scenario, x: float) -> Scenario:
        arrivals = {"process": "closed_loop", "concurrency": round(x), "think_time_s": 0.0}
        at_once = _closed_loop(scenario, arrivals)
        return with_values(at_once, {"workload.num_requests": round(x), "statistics.warmup": "none"})


class ContextAxis(Axis):
    """Prompt tokens of every request, all alike, at the scenario's own load."""

    name = "context"
    unit = "prompt tokens"
    whole = 1.0

    def at(self, scenario: Scenario, x: float) -> Scenario:
        lengths = [scenario.workload.lengths, *(entry.lengths for entry in scenario.workload.classes)]
        given = [each for each in lengths if each is not None]
        if scenario.workload.arrivals.process == "trace" or any(each.path is not None for each in given):
            raise InputError(
                "prompts come from a file; give distributions to vary them", file=AXIS_OPTION, value="context"
            )
        values: dict[str, Any] = {}
        prompt = {"distribution": "constant", "value": round(x)}
        if scenario.workload.lengths is not None:
            values["workload.lengths.prompt_tokens"] = prompt
        for index, entry in enumerate(scenario.workload.classes):
            if entry.lengths is not None:
                values[f"workload.classes.{index}.lengths.prompt_tokens"] = prompt
        return with_values(scenario, values)

    def first_looks(self, scenario: Scenario, slots: float, longest_prompt: int) -> list[float]:
        return _spread(min(32, longest_prompt), longest_prompt, 6, whole=True)


class AcceptanceAxis(Axis):
    """Probability that a draft token is accepted, the same at every position, at the scenario's own load.

    Text search keeps its share of rounds with a match, a tree its shape.
    """

    name = "acceptance"
    unit = "acceptance per draft token"

    def at(self, scenario: Scenario, x: float) -> Scenario:
        spec = scenario.speculative_config
        if spec is None:
            return scenario
        if spec.synthetic_rates is not None:
            raise InputError(
                "rejection_sample_method: synthetic prescribes the acceptance", file=AXIS_OPTION, value="acceptance"
            )
        own = scenario.acceptance
        known = own.confidence_discrimination if own is not None else None
        shape = "tree" if scenario.method == "eagle_tree" else "constant"
        model: dict[str, Any] = {"model": shape, "alpha": x, "confidence_discrimination": known}
        if own is not None and own.model == "ngram":
            model = {**own.model_dump(exclude_none=True), "alpha": x, "rates": None}
        values: dict[str, Any] = {"acceptance": model}
        for index, entry in enumerate(scenario.workload.classes):
            if entry.acceptance is not None:
                values[f"workload.classes.{index}.acceptance"] = None
        return with_values(scenario, values)

    def first_looks(self, scenario: Scenario, slots: float, longest_prompt: int) -> list[float]:
        return [0.05, 0.2, 0.4, 0.6, 0.8, 0.98]

    def check(self, scenario: Scenario, x: float) -> float:
        if x > 1:
            raise InputError("must be probabilities, at most 1", file="--at", value=x)
        return x


AXES: Mapping[str, Axis] = {
    axis.name: axis for axis in (RateAxis(), ConcurrencyAxis(), BatchAxis(), ContextAxis(), AcceptanceAxis())
}


def axis_named(name: str) -> Axis:
    """The axis of this name.

    Raises:
        InputError: there is none.
    """
    if name not in AXES:
        raise InputError(f"must be one of {', '.join(AXES)}", file=AXIS_OPTION, value=name)
    return AXES[name]


def is_closed(scenario: Scenario) -> bool:
    """Whether the arrivals wait for answers."""
    return scenario.workload.arrivals.process == "closed_loop"


def _closed_loop(scenario: Scenario, arrivals: Mapping[str, Any]) -> Scenario:
    """``scenario`` with other arrivals; requests of a trace keep their lengths from its file."""
    values: dict[str, Any] = {"workload.arrivals": arrivals, "workload.duration_s": None}
    was = scenario.workload.arrivals
    if was.process == "trace":
        values["workload.lengths"] = {"path": was.path, "format": was.format}
    if scenario.workload.num_requests is None:
        values["workload.num_requests"] = 1
    return with_values(scenario, values)


def _spread(low: float, high: float, count: int, *, whole: bool) -> list[float]:
    """Evenly in the logarithm, both ends included."""
    points: Sequence[float] = np.geomspace(low, high, count).tolist()
    return sorted({float(round(point)) if whole else float(f"{point:.4g}") for point in points})
