"""A setting that is compared with others: the scenario with another method, draft length, policy or device."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftcast.calibration.profile.hardware import HardwareSpec, load_hardware
from draftcast.errors import InputError
from draftcast.scenarios.run.choices import OFF
from draftcast.scenarios.schema import Scenario, to_mapping, with_values

SPEC, SCHEDULE = "engine.speculative_config", "num_speculative_tokens_per_batch_size"
MAX_K = 8
"""Draft lengths tried where the acceptance model knows any number of positions."""


@dataclass(frozen=True)
class Candidate:
    """One setting: ``scenario`` is the question with it, ``effort`` ranks how elaborate it is (off is 0)."""

    label: str
    scenario: Scenario = field(repr=False)
    effort: int = 0

    @functools.cached_property
    def hardware(self) -> HardwareSpec:
        return load_hardware(self.scenario.hardware)

    @property
    def tensor_parallel_size(self) -> int:
        return self.scenario.engine.tensor_parallel_size

    @property
    def method(self) -> str:
        """Method and draft length: ``eagle3 k=3``, with ``schedule`` where the length follows the batch; or ``off``."""
        spec = self.scenario.speculative_config
        if spec is None:
            return OFF
        schedule = " schedule" if spec.num_speculative_tokens_per_batch_size is not None else ""
        return f"{self.scenario.method} k={self.scenario.num_speculative_tokens}{schedule}"


def method_values(alternative: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The dotted keys of ``{"speculative_config": {...}, "acceptance": {...}}``, given at ``place``.

    Raises:
        InputError: another form.
    """
    config = alternative.get("speculative_config")
    if set(alternative) - {"speculative_config", "acceptance"} or not isinstance(config, Mapping):
        raise InputError('must be {"speculative_config": {...}, "acceptance": {...}}', file=place)
    values: dict[str, Any] = {"engine.speculative_config": dict(config)}
    return values | ({"acceptance": alternative["acceptance"]} if "acceptance" in alternative else {})


def with_methods(scenario: Scenario, alternatives: Sequence[Mapping[str, Any]]) -> list[Scenario]:
    """The scenario's own method, where it has one, then every alternative.

    Raises:
        InputError: an alternative of another form, or one that makes no valid scenario.
    """
    own = [scenario] if scenario.speculative_config is not None else []
    numbered = enumerate(alternatives, 1)
    return own + [with_values(scenario, method_values(each, f"candidate {number}")) for number, each in numbered]


def with_length(scenario: Scenario, k: int) -> Scenario:
    """``scenario`` with k draft tokens. Raises InputError: the method or its acceptance does not go so far."""
    return with_values(scenario, {"engine.speculative_config.num_speculative_tokens": k})


def speculative_values(scenario: Scenario) -> dict[str, Any]:
    """The scenario's own ``speculative_config`` as the plain mapping it was given as."""
    return dict(to_mapping(scenario)["engine"]["speculative_config"])


def longest_draft(scenario: Scenario, max_k: int) -> int:
    """Longest draft that the acceptance of every class covers; ``max_k`` where it covers any."""
    models = [scenario.acceptance_of(entry.name) for entry in scenario.request_classes]
    known = [model.known_positions() for model in models if model is not None]
    return min(filter(None, known), default=max(max_k, scenario.num_speculative_tokens))
