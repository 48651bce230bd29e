"""Choices that touch several keys of a scenario at once: another method, acceptance model, arrival process, model.

Each function returns dotted keys for `draftcast.scenarios.schema.load.with_values`. Settings are carried over where
they have a meaning after the change; the acceptance of one method has none for another.
"""

from collections.abc import Mapping
from typing import Any

from draftcast.calibration.acceptance.references import conditional_rate
from draftcast.errors import ScenarioError
from draftcast.files import picked
from draftcast.kernels.model.catalog import load_model, model_names, published_ids
from draftcast.scenarios.run.workload_spec import acceptance_models
from draftcast.scenarios.schema import METHODS, Scenario, to_mapping
from draftcast.scenarios.schema.load import acceptance_places
from draftcast.scenarios.schema.raw import value_at
from draftcast.sim.cost.methods import get_method

OFF = "off"
DEFAULT_K = 3
# Where a rate is asked for and nothing is known; shown to be changed, never taken silently.
FIRST_GUESS = 0.7
# Keys of speculative_config that mean the same for every method.
_SHARED = (
    *("num_speculative_tokens", "num_speculative_tokens_per_batch_size", "draft_tensor_parallel_size"),
    *("rejection_sample_method", "synthetic_acceptance_rates", "synthetic_acceptance_length"),
)
ACCEPTANCE_MODELS = ("per_position", "constant", "chain")
ARRIVALS = ("poisson", "gamma", "deterministic", "closed_loop")


def with_method(scenario: Scenario, method: str) -> dict[str, Any]:
    """Another drafting method at the same k, or ``off``; its acceptance goes with it (`acceptance_of_method`). A draft
    model is the first of `draft_models`. Raises ScenarioError: an unknown method, or no draft model to propose."""
    if method == OFF:
        return {"engine.speculative_config": None}
    if method not in METHODS:
        raise ScenarioError(f"unknown method; choose from {OFF}, {', '.join(METHODS)}", key="method", value=method)
    old = to_mapping(scenario)["engine"]["speculative_config"] or {"num_speculative_tokens": DEFAULT_K}
    config = {key: value for key, value in old.items() if key in _SHARED} | {"method": method}
    config.setdefault("num_speculative_tokens", DEFAULT_K)
    if get_method(method).needs_draft_model:
        fitting = draft_models(scenario)
        if not fitting:
            message = f"no bundled model is smaller than {scenario.engine.model} and shares its vocabulary; name one"
            raise ScenarioError(message, key="engine.speculative_config.model")
        config["model"] = fitting[0]
    return {"engine.speculative_config": config}


def acceptance_of_method(base: Scenario, scenario: Scenario, method: str) -> dict[str, Any] | None:
    """The acceptance that goes with a method: no change, that of ``base`` (the scenario's origin, whose acceptance is
    that of its own method), or None where it must be asked for."""
    spec = scenario.speculative_config
    if method in (OFF, scenario.method) or (spec is not None and spec.synthetic_rates is not None):
        return {}
    if method != base.method:
        return None
    data = to_mapping(base)
    return {place: value_at(data, place) for place in acceptance_places(data)}


def with_method_as_given(scenario: Scenario, method: str, text: str) -> dict[str, Any]:
    """Another method with its acceptance as typed: one rate, or one a position. Raises ScenarioError: no numbers."""
    rates = numbers(text, "acceptance")
    if not rates:
        raise ScenarioError("give one rate, or one for each draft position", key="acceptance", value=text)
    spec = scenario.speculative_config if method == scenario.method else None
    is_tree = get_method(method).is_tree or (spec is not None and spec.tree is not None)
    model = "tree" if is_tree else "constant" if len(rates) == 1 else "per_position"
    acceptance = {"model": model, **({"alpha": rates[0]} if len(rates) == 1 else {"rates": rates})}
    return with_measured(scenario, method, acceptance)


def numbers(text: str, key: str) -> list[float]:
    """Numbers separated by commas or semicolons. Raises ScenarioError: something else, at ``key``."""
    try:
        return [float(part) for part in text.replace(";", ",").split(",") if part.strip()]
    except ValueError:
        raise ScenarioError("must be numbers separated by commas", key=key, value=text) from None


def with_measured(scenario: Scenario, method: str, acceptance: dict[str, Any]) -> dict[str, Any]:
    """A drafting method, the scenario's own as it is, with an ``acceptance:`` section that was measured with it."""
    values, changed = {} if method == scenario.method else with_method(scenario, method), to_mapping(scenario)
    if values:
        changed["engine"]["speculative_config"] = values["engine.speculative_config"]
    return values | dict.fromkeys(acceptance_places(changed), acceptance)


def with_model(scenario: Scenario, model: str) -> dict[str, Any]:
    """Another target. The name of a published head belongs to the old target and is dropped."""
    values: dict[str, Any] = {"engine.model": model}
    spec = scenario.speculative_config
    if spec is not None and spec.model is not None and not get_method(scenario.method).needs_draft_model:
        config = to_mapping(scenario)["engine"]["speculative_config"]
        values["engine.speculative_config"] = {key: value for key, value in config.items() if key != "model"}
    return values


def draft_models(scenario: Scenario) -> list[str]:
    """Bundled models that could draft for the target: as large a vocabulary, fewer parameters; those of its publishers
    first, as equal sizes alone do not make vocabularies equal, then the smallest."""
    target = load_model(scenario.engine.model)
    publishers = _publishers(target.name)
    models = [model for model in map(load_model, model_names()) if model.vocab_size == target.vocab_size]
    models.sort(key=lambda model: (publishers.isdisjoint(_publishers(model.name)), model.num_parameters))
    return [model.name for model in models if model.num_parameters < target.num_parameters]


def _publishers(model: str) -> set[str]:
    return {repository.partition("/")[0] for repository in published_ids(model)}


def with_acceptance_model(scenario: Scenario, model: str) -> dict[str, Any]:
    """Another acceptance model with the same mean acceptance length at the scenario's k, as far as that goes. Raises
    ScenarioError: a model that needs more than one number to begin with."""
    k, acceptance, alpha = max(scenario.num_speculative_tokens, 1), scenario.acceptance, FIRST_GUESS
    if scenario.speculative_config is not None and acceptance is not None and acceptance.model != "trace":
        # The constant rate with the same mean acceptance length, which falls to what the rates cover.
        tokens = acceptance_models(scenario)[0].tokens_per_round(min(k, acceptance.known_positions() or k))
        alpha = round(conditional_rate(tokens - 1.0, [1.0] * k), 4)
    if model == "constant":
        return {"acceptance": {"model": "constant", "alpha": alpha}}
    if model in ("per_position", "chain"):
        rates = [round(alpha ** (position + 1), 4) for position in range(max(k, DEFAULT_K))]
        return {"acceptance": {"model": model, "rates": rates} | ({"concentration": 10.0} if model == "chain" else {})}
    message = f"choose from {', '.join(ACCEPTANCE_MODELS)}; others come with a scenario file"
    raise ScenarioError(message, key="acceptance", value=model)


def with_arrivals(scenario: Scenario, process: str, request_rate_rps: float) -> dict[str, Any]:
    """Another arrival process; the lengths stay those that were."""
    rate: Mapping[str, Any] = {"request_rate_rps": request_rate_rps}
    settings = {"closed_loop": {"concurrency": 16}, "gamma": {**rate, "burstiness": 0.5}}
    values = replaced_arrivals(scenario, {"process": process, **settings.get(process, rate)})
    if scenario.workload.arrivals.process == "trace":
        values["workload.num_requests"] = scenario.workload.num_requests or 2000
    return values


def replaced_arrivals(scenario: Scenario, arrivals: Mapping[str, Any]) -> dict[str, Any]:
    """Other arrivals; requests of a trace keep their lengths from its file."""
    was = scenario.workload.arrivals
    lengths = {"workload.lengths": picked(was, "path format")} if was.process == "trace" else {}
    return {"workload.arrivals": arrivals, **lengths}
