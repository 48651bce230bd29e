"""What a cutover can be looked for over: an axis turns a scenario into the same question at x. Runs nothing."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftcast.errors import InputError
from draftcast.scenarios.run.choices import replaced_arrivals
from draftcast.scenarios.schema import Scenario, to_mapping, with_rate, with_values
from draftcast.scenarios.schema.changes import equal_acceptance

AXIS_OPTION = "--over"
ALPHAS = [0.05, 0.2, 0.4, 0.6, 0.8, 0.98]


@dataclass(frozen=True)
class CutoverAxis:
    name: str
    unit: str  # what x counts
    # The scenario at x, the number of requests left as it is; raises InputError where it has nothing to vary
    at: Callable[[Scenario, float], Scenario]
    # Where a search begins, increasing; from the requests that the cluster holds at once and the longest prompt that
    # fits beside the outputs asked for (over outputs: the longest output beside the prompts)
    first_points: Callable[[float, int], list[float]]
    is_whole: bool = False  # whether x counts
    largest: float = math.inf  # of any x

    def check(self, x: float) -> float:
        """x itself. Raises InputError: not a whole number where the axis counts, or above the largest."""
        if self.is_whole and x != round(x):
            raise InputError(f"must be whole numbers of {self.unit}", file="--at", value=x)
        if x > self.largest:
            raise InputError(f"must be probabilities, at most {self.largest:g}", file="--at", value=x)
        return x


def _at_rate(scenario: Scenario, x: float) -> Scenario:
    process = scenario.workload.arrivals.process
    if process in ("piecewise", "closed_loop"):
        instead = "; search over concurrency" if process == "closed_loop" else ""
        raise InputError(f"{process} arrivals have no single request rate{instead}", file=AXIS_OPTION, value="rate")
    return with_rate(scenario, x)


def _at_concurrency(scenario: Scenario, x: float) -> Scenario:
    """Clients of a closed loop, each waiting for its answer (and thinking, where the scenario says so)."""
    arrivals = to_mapping(scenario)["workload"]["arrivals"] if scenario.is_closed_loop else {"process": "closed_loop"}
    return _closed_loop(scenario, {**arrivals, "concurrency": round(x)})


def _at_batch(scenario: Scenario, x: float) -> Scenario:
    """Static batches: so many requests sent at once to an idle cluster, measured until the last one ends."""
    if scenario.workload.has_sessions:
        raise InputError("requests of a session are never sent at once", file=AXIS_OPTION, value="batch")
    at_once = _closed_loop(scenario, {"process": "closed_loop", "concurrency": round(x), "think_time_s": 0.0})
    return with_values(at_once, {"workload.num_requests": round(x), "statistics.warmup": "none"})


def _at_length(axis: str, key: str) -> Callable[[Scenario, float], Scenario]:
    def at(scenario: Scenario, x: float) -> Scenario:
        """Prompts (or outputs) all of x tokens, at the scenario's own load."""
        workload = scenario.workload
        places = {"workload": workload.lengths}
        places |= {f"workload.classes.{index}": entry.lengths for index, entry in enumerate(workload.classes)}
        varied = {place: lengths for place, lengths in places.items() if lengths is not None}
        if workload.arrivals.process == "trace" or any(lengths.path is not None for lengths in varied.values()):
            message = f"{key.partition('_')[0]}s come from a file; give distributions to vary them"
            raise InputError(message, file=AXIS_OPTION, value=axis)
        if axis == "context" and workload.shares_prefixes:
            message = "prompts begin with a system prompt or earlier turns; sweep workload.lengths instead"
            raise InputError(message, file=AXIS_OPTION, value=axis)
        tokens = {"distribution": "constant", "value": round(x)}
        return with_values(scenario, {f"{place}.lengths.{key}": tokens for place in varied})

    return at


def _at_acceptance(scenario: Scenario, x: float) -> Scenario:
    """x the same at every position and in every class, at the scenario's own load."""
    if scenario.speculative_config is None:
        return scenario
    classes = [index for index, entry in enumerate(scenario.workload.classes) if entry.acceptance is not None]
    replaced = {f"workload.classes.{index}.acceptance": None for index in classes}
    return with_values(scenario, {"acceptance": equal_acceptance(scenario, x)} | replaced)


def _closed_loop(scenario: Scenario, arrivals: Mapping[str, Any]) -> Scenario:
    values = replaced_arrivals(scenario, arrivals) | {"workload.duration_s": None}
    if scenario.workload.num_requests is None:
        values["workload.num_requests"] = 1
    return with_values(scenario, values)


def _whole_looks(low: float, high: float, count: int) -> list[float]:
    """Whole numbers evenly in the logarithm, both ends included."""
    return sorted({float(round(x)) for x in np.geomspace(low, high, count)})


def _loads(slots: float, longest: int) -> list[float]:
    return _whole_looks(1, max(2, round(slots)), 7)


def _lengths(least: int, most: float = math.inf) -> Callable[[float, int], list[float]]:
    return lambda slots, longest: _whole_looks(min(least, longest), min(longest, most), 6)


AXES: Mapping[str, CutoverAxis] = {
    axis.name: axis
    for axis in (
        # Over rates the first points follow from the capacity, see `draftcast.scenarios.cutover.search.first_points`.
        CutoverAxis("rate", "req/s", _at_rate, lambda slots, longest: []),
        CutoverAxis("concurrency", "clients", _at_concurrency, _loads, is_whole=True),
        CutoverAxis("batch", "requests", _at_batch, _loads, is_whole=True),
        CutoverAxis("context", "prompt tokens", _at_length("context", "prompt_tokens"), _lengths(32), is_whole=True),
        CutoverAxis(
            "acceptance", "acceptance per draft token", _at_acceptance, lambda slots, longest: ALPHAS, largest=1.0
        ),
        CutoverAxis("output", "output tokens", _at_length("output", "output_tokens"), _lengths(8, 2048), is_whole=True),
    )
}


def axis_named(name: str) -> CutoverAxis:
    """The axis of this name. Raises InputError: there is none."""
    if name not in AXES:
        raise InputError(f"must be one of {', '.join(AXES)}", file=AXIS_OPTION, value=name)
    return AXES[name]
