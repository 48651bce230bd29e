"""A setting that is compared with others: another method, draft length, schedule by batch size, policy or device."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from draftcast.calibration.profile.hardware import HardwareSpec, load_hardware
from draftcast.errors import InputError
from draftcast.kernels.arrays import FloatArray, IntArray
from draftcast.scenarios.run.choices import OFF
from draftcast.scenarios.run.deployment import deploy
from draftcast.scenarios.run.fluid import FluidModel, mean_step
from draftcast.scenarios.schema import Scenario, to_mapping, with_values, without_speculation

SPEC, SCHEDULE = "engine.speculative_config", "num_speculative_tokens_per_batch_size"
METHOD_KEYS = (SPEC, "acceptance")  # what a method is given as
MAX_K = 8  # draft lengths tried where the acceptance model knows any number of positions
NEGLIGIBLE = 0.005  # a gain below this is no reason for a more elaborate setting


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
    def method(self) -> str:
        """Method and draft length: ``eagle3 k=3``, with ``schedule`` where the length follows the batch; or ``off``."""
        spec = self.scenario.speculative_config
        if spec is None:
            return OFF
        schedule = " schedule" if spec.num_speculative_tokens_per_batch_size is not None else ""
        return f"{self.scenario.method} k={self.scenario.num_speculative_tokens}{schedule}"


def method_values(alternative: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The dotted keys of ``{"speculative_config": {...}, "acceptance": {...}}``. Raises InputError: another form."""
    config = alternative.get("speculative_config")
    if set(alternative) - {"speculative_config", "acceptance"} or not isinstance(config, Mapping):
        raise InputError('must be {"speculative_config": {...}, "acceptance": {...}}', file=place)
    values: dict[str, Any] = {"engine.speculative_config": dict(config)}
    return values | ({"acceptance": alternative["acceptance"]} if "acceptance" in alternative else {})


def with_methods(scenario: Scenario, alternatives: Sequence[Mapping[str, Any]]) -> list[Scenario]:
    """The scenario's own method, if any, and every alternative. Raises InputError: of another form, or not valid."""
    scenarios = [scenario] if scenario.speculative_config is not None else []
    for number, alternative in enumerate(alternatives, 1):
        place = f"candidate {number}"
        scenarios.append(with_values(scenario, method_values(alternative, place), dict.fromkeys(METHOD_KEYS, place)))
    return scenarios


def with_length(scenario: Scenario, k: int) -> Scenario:
    """``scenario`` with k draft tokens. Raises InputError: the method or its acceptance does not go so far."""
    return with_values(scenario, {"engine.speculative_config.num_speculative_tokens": k})


def speculative_values(scenario: Scenario) -> dict[str, Any]:
    """The scenario's own ``speculative_config`` as the plain mapping it was given as."""
    return dict(to_mapping(scenario)["engine"]["speculative_config"])


def longest_draft(scenario: Scenario, max_k: int) -> int:
    """Longest draft that the acceptance of every class covers; ``max_k`` where it covers any."""
    models = [scenario.acceptance_of(entry.name) for entry in scenario.request_classes]
    positions = [model.known_positions() for model in models if model is not None]
    return min(filter(None, positions), default=max(max_k, scenario.num_speculative_tokens))


def candidates(
    scenario: Scenario, alternatives: Sequence[Mapping[str, Any]] = (), max_k: int = MAX_K
) -> tuple[Candidate, ...]:
    """Off, every method at every draft length its acceptance covers, and its schedules by batch size."""
    settings = [Candidate(OFF, without_speculation(scenario, policy=None))]
    for variant in with_methods(scenario, alternatives):
        settings += _of_method(variant, max_k)
    labels = [candidate.label for candidate in settings]
    for label in labels:
        if labels.count(label) > 1:
            raise InputError(f"two candidates are {label}", file="--candidate")
    return tuple(settings)


def _of_method(scenario: Scenario, max_k: int) -> list[Candidate]:
    spec = scenario.speculative_config
    assert spec is not None
    longest = longest_draft(scenario, max_k)
    base, method = speculative_values(scenario), scenario.method
    own_schedule = base.pop(SCHEDULE, None)

    def variant(k: int, schedule: Sequence[Sequence[int]] | None = None) -> Scenario:
        config = base | {"num_speculative_tokens": k}
        if schedule is not None:
            config[SCHEDULE] = [list(entry) for entry in schedule]
        return with_values(scenario, {"engine.speculative_config": config, "policy": None})

    settings = [Candidate(f"{method} k={k}", variant(k), 1) for k in range(1, longest + 1)]
    # vLLM has neither trees nor schedules for them, and no schedule with data parallelism.
    if spec.tree is not None or scenario.engine.data_parallel_size > 1:
        return settings
    if own_schedule is not None:
        settings.append(Candidate(f"{method} schedule as given", variant(longest, own_schedule), 2))
    if scenario.cluster.groups:  # whose mean steps differ
        return settings
    schedule = best_schedule(variant(longest), longest)
    lengths = {k for _, _, k in schedule}
    if len(lengths) > 1 and max(lengths) > 0:
        text = ", ".join(f"{first}-{last}: {k}" for first, last, k in schedule)
        settings.append(Candidate(f"{method} schedule {{{text}}}", variant(max(lengths), schedule), 2))
    return settings


def best_schedule(scenario: Scenario, longest: int) -> list[tuple[int, int, int]]:
    """``num_speculative_tokens_per_batch_size``: the draft length (0 too) with the least time per token at each batch
    size. By the mean step in an engine loaded for ``longest``; ranges are inclusive and lengths fall from range to
    range."""
    deployment = deploy(scenario)
    traffic = FluidModel.of(scenario, deployment).traffic
    settings = deployment.settings
    most, sizes = settings.max_num_seqs, [1]
    while sizes[-1] < most:  # every one to 16, then steps of a sixteenth
        sizes.append(min(sizes[-1] + max(1, sizes[-1] // 16), most))
    drafts_made = longest if settings.makes_all_drafts else 0
    steps = [[mean_step(deployment, traffic, size, k, drafts_made) for k in range(longest + 1)] for size in sizes]
    seconds = np.array([[step.seconds_per_token for step in of_size] for of_size in steps])
    chosen = _falling_path(np.log(seconds / seconds.min(axis=1, keepdims=True)), np.array(sizes))
    firsts = {k: sizes[chosen.index(k)] for k in dict.fromkeys(chosen)}
    lasts = [first - 1 for first in list(firsts.values())[1:]] + sizes[-1:]
    return [(first, last, k) for (k, first), last in zip(firsts.items(), lasts, strict=True)]


def _falling_path(loss: FloatArray, sizes: IntArray) -> list[int]:
    """Draft length by batch size that never rises, with the least loss in all; every doubling of it counts the same.

    ``loss``: log of the time per token over the best length's, shape [sizes, lengths]. A change of length must gain
    `NEGLIGIBLE` over one doubling of the batch: padding to CUDA-graph sizes makes the best length jump to and fro by
    less than that. O(sizes x lengths^2).
    """
    weights = np.diff(np.log2(sizes), append=np.log2(sizes[-1] + 1.0))
    # Of each length either the same as before, or a longer one at the price of a change.
    change = np.tril(np.full((loss.shape[1],) * 2, np.inf), -1) + np.triu(np.full((loss.shape[1],) * 2, NEGLIGIBLE), 1)
    total = weights[0] * loss[0]
    came_from = []
    for weight, row in zip(weights[1:], loss[1:], strict=True):
        came_from.append((total + change).argmin(axis=1))
        total = (total + change).min(axis=1) + weight * row
    path = [int(np.argmin(total))]
    for steps in reversed(came_from):
        path.append(int(steps[path[-1]]))
    return path[::-1]
