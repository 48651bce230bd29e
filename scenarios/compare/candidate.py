"""A setting that is compared with others: the scenario with another method, draft length, policy or device."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftcast.calibration.profile.hardware import HardwareSpec, load_hardware
from draftcast.errors import InputError
from draftcast.scenarios.run.choices import OFF
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import to_mapping, with_values

SCHEDULE = "num_speculative_tokens_per_batch_size"
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
        """Tensor-parallel ranks of one replica."""
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
    """The dotted keys of ``{"speculative_config": {...}, "acceptance": {...}}``.

    Args:
        place: for errors, where it was given.

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
    variants = [scenario] if scenario.speculative_config is not None else []
    for number, alternative in enumerate(alternatives):
        variants.append(with_values(scenario, method_values(alternative, f"candidate {number + 1}")))
    return variants


def with_length(scenario: Scenario, k: int) -> Scenario:
    """``scenario`` with k draft tokens.

    Raises:
        InputError: the method or its acceptance does not go so far.
    """
    values = {**speculative_values(scenario), "num_speculative_tokens": k}
    return with_values(scenario, {"engine.speculative_config": values})


def speculative_values(scenario: Scenario) -> dict[str, Any]:
    """The scenario's own ``speculative_config`` as the plain mapping it was given as."""
    return dict(to_mapping(scenario)["engine"]["speculative_config"])


def longest_draft(scenario: Scenario, max_k: int) -> int:
    """Longest draft that the acceptance of every class covers; ``max_k`` where it covers any."""
    names: list[str | None] = [*(entry.name for entry in scenario.workload.classes)] or [None]
    models = [model for name in names if (model := scenario.acceptance_of(name)) is not None]
    known = [positions for model in models if (positions := model.known_positions()) is not None]
    spec = scenario.speculative_config
    assert spec is not None
    return min(known) if known else max(max_k, spec.k)
