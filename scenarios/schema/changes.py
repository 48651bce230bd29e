"""A scenario's keys, dotted as ``--set`` takes them: all there are, those that differ, and changes by short name.

The changes are what ``load_scenario(base, overrides=assignments(...))`` makes of the base: a scenario with the same
hash. All keys are also shown as a file of the default with a comment at every key.
"""

import json
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel

from draftcast.errors import InputError, ScenarioError
from draftcast.frozen import Frozen
from draftcast.scenarios.schema import Scenario, load
from draftcast.scenarios.schema.load import missing_acceptance, to_mapping, with_rate, with_values, without_speculation
from draftcast.scenarios.schema.raw import NAMES, value_at
from draftcast.scenarios.schema.speculation import UNTIMED
from draftcast.sim.acceptance.chain import Chain
from draftcast.sim.acceptance.compiled import KIND_BESIDE_HEAD
from draftcast.sim.acceptance.model import Tree
from draftcast.yaml_text import parse_yaml

Changes = dict[str, Any]
OFF = ("off", "none", None)
_WIDTH = 100  # of the comments in a scenario file
# What tells one alternative of a section from another; of others their distribution.
_KIND = {"arrivals": "process", "acceptance": "model"}
SHORT: dict[str, str] = NAMES["short"]  # short names that are one key of a scenario; ``SPECIAL`` are more than one
SPECIAL: dict[str, list[str]] = NAMES["special"]


def changed_keys(base: Scenario, scenario: Scenario) -> Changes:
    """Dotted key -> value of ``scenario`` where it differs from ``base``.

    A section whose keys differ (another arrival process, another acceptance model) is given as a whole. The acceptance
    of another method is given also where it is the same: it is that method's own.
    """
    base_data, data = to_mapping(base), to_mapping(scenario)
    changes = dict(_differences(base_data, data, ""))
    return changes | {place: _short(value_at(data, place)) for place in missing_acceptance(base_data, data, changes)}


def _differences(base: Any, data: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        base_value, kind = base.get(key), _KIND.get(key, "distribution")
        inside = isinstance(base_value, dict) and isinstance(value, dict) and base_value.keys() <= value.keys()
        if inside and base_value.get(kind) == value.get(kind):
            yield from _differences(base_value, value, f"{prefix}{key}.")
        elif key not in base or base_value != value or type(base_value) is not type(value):
            yield f"{prefix}{key}", _short(value)


def _short(value: Any) -> Any:
    """A section without the keys that are absent anyway; policy parameters and a group's engine stay as they are."""
    if isinstance(value, dict):
        rest = {key: item for key, item in value.items() if item is not None}
        return {key: item if key in ("parameters", "engine") else _short(item) for key, item in rest.items()}
    return [_short(item) for item in value] if isinstance(value, list) else value


def differing(scenarios: Sequence[Scenario]) -> dict[str, list[Any]]:
    """Dotted keys, or whole sections, in which any scenario differs from the first -> each one's value, else None."""
    keys = dict.fromkeys(key for other in scenarios[1:] for key in changed_keys(scenarios[0], other))
    whole = [key for key in keys if not any(key.startswith(f"{other}.") for other in keys)]
    return {key: [_short(value_at(to_mapping(scenario), key)) for scenario in scenarios] for key in whole}


def value_text(value: Any) -> str:
    """``value`` as the text after ``key=``: plain where YAML reads it back as it is, else JSON."""
    if isinstance(value, str) and value == value.strip():
        try:
            if parse_yaml(value, "value") == value:
                return value
        except InputError:
            pass
    if isinstance(value, float) and value.is_integer():
        return f"{value:.0f}"
    return json.dumps(value, ensure_ascii=False)


def assignments(changes: Mapping[str, Any]) -> list[str]:
    """``key=value`` of every change, as ``--set`` and ``load_scenario(overrides=...)`` take them."""
    return [f"{key}={value_text(value)}" for key, value in changes.items()]


def command_line(command: str, base: str | Path, changes: Mapping[str, Any], *options: str) -> str:
    """``draftcast COMMAND BASE --set ... OPTIONS``, quoted for a shell."""
    sets = [word for assignment in assignments(changes) for word in ("--set", assignment)]
    return shlex.join(["draftcast", command, str(base), *sets, *options])


def changed(scenario: Scenario, values: Mapping[str, Any]) -> Scenario:
    """``scenario`` with other values of short names or dotted keys.

    Plain keys, acceptance and method are set together, because another method takes acceptance of its own; then the
    load. Off and ``k`` come last, because off drops the speculation that other keys change. Raises ScenarioError: no
    valid scenario, or a value that another one replaces.
    """
    _check_all_count(values)
    plain = {SHORT.get(name, name): value for name, value in values.items() if name not in SPECIAL}
    if "acceptance" in values:
        plain["acceptance"] = to_mapping(_acceptance(scenario, values["acceptance"]))["acceptance"]
    k = values.get("k", 1)
    is_off = values.get("method", "") in OFF or (k in (0, *OFF) and k is not False)
    if "method" in values and not is_off:
        _needs_speculation(scenario, "method", values["method"])
        plain["engine.speculative_config.method"] = values["method"]
    result = with_values(scenario, plain) if plain else scenario
    for name, change in (("rate", with_rate), ("concurrency", _concurrency), ("policy", _policy)):
        if name in values:
            result = change(result, values[name])
    if is_off:
        return without_speculation(result)
    if "k" not in values:
        return result
    _needs_speculation(result, "k", k)
    return with_values(result, {"engine.speculative_config.num_speculative_tokens": k})


def _check_all_count(values: Mapping[str, Any]) -> None:
    """Refuse a value without effect, because another of the values replaces it."""
    keys = {name: SPECIAL[name][0] if name in SPECIAL else SHORT.get(name, name) for name in values}
    for special in SPECIAL.keys() & values.keys():
        for name, key in keys.items():
            if name != special and any(f"{key}.".startswith(f"{replaced}.") for replaced in SPECIAL[special]):
                raise ScenarioError(f"has no effect together with {special}", key=name, value=values[name])


def _concurrency(scenario: Scenario, value: Any) -> Scenario:
    """A closed loop of so many clients; the scenario's own think time where it is a closed loop already."""
    if scenario.workload.arrivals.process == "closed_loop":
        return with_values(scenario, {"workload.arrivals.concurrency": value})
    if scenario.workload.lengths is None and not scenario.workload.classes:
        raise ScenarioError("needs workload.lengths: a closed loop takes no lengths from a trace", key="concurrency")
    return with_values(scenario, {"workload.arrivals": {"process": "closed_loop", "concurrency": value}})


def _policy(scenario: Scenario, value: Any) -> Scenario:
    return with_values(scenario, {"policy": {"name": value} if isinstance(value, str) else value})


def _acceptance(scenario: Scenario, value: Any) -> Scenario:
    """Raises ScenarioError: the value would have no effect."""
    for index, entry in enumerate(scenario.workload.classes):
        if entry.acceptance is not None:
            key = f"workload.classes.{index}.acceptance"
            raise ScenarioError(f"class {entry.name} has its own; name {key}", key="acceptance", value=value)
    return with_values(scenario, {"acceptance": equal_acceptance(scenario, value)})


def equal_acceptance(scenario: Scenario, value: Any) -> dict[str, Any]:
    """The scenario's acceptance, but every draft token accepted with this probability.

    What a search matches, how requests differ and what the draft knows stay as they are; rates and traces go. Raises
    ScenarioError: the value would have no effect.
    """
    spec, acceptance = scenario.speculative_config, scenario.acceptance
    if spec is not None and spec.synthetic_rates is not None:
        raise ScenarioError("has no effect with rejection_sample_method: synthetic", key="acceptance", value=value)
    for index, group in enumerate(scenario.cluster.groups):
        if group.acceptance is not None:
            key = f"cluster.groups.{index}.acceptance"
            raise ScenarioError("a group has its own: name its key, or take it away", key=key)
    fields = {"confidence_discrimination", "concentration", "widths"}
    if getattr(acceptance, "match_probability", None) is not None:
        fields |= {"match_probability", "mean_match_tokens", "persistence"}
    carried = acceptance.model_dump(mode="json", include=fields, exclude_none=True) if acceptance is not None else {}
    if isinstance(acceptance, Chain) and acceptance.kind == KIND_BESIDE_HEAD:
        return {"model": "chain", **carried, "alpha_good": value, "alpha_bad": value}
    is_tree = isinstance(acceptance, Tree) or (spec is not None and spec.tree is not None)
    name = "ngram" if "match_probability" in carried else "chain" if "concentration" in carried else "constant"
    return {"model": "tree" if is_tree else name, **carried, "alpha": value}


def _needs_speculation(scenario: Scenario, key: str, value: Any) -> None:
    if scenario.speculative_config is None:
        raise ScenarioError("there is no engine.speculative_config to change", key=key, value=value)


def _models(annotation: Any) -> list[type[Frozen]]:
    """The sections that a field may hold, also inside unions."""
    if isinstance(annotation, type) and issubclass(annotation, Frozen):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models(inner)]


def scenario_keys(model: type[BaseModel] = Scenario, before: str = "") -> Iterator[str]:
    """Every dotted key that ``--set`` takes, those inside lists left out."""
    for key, field in model.model_fields.items():
        yield f"{before}{key}"
        if not str(field.annotation).startswith("tuple"):
            for inner in _models(field.annotation):
                yield from scenario_keys(inner, f"{before}{key}.")


def commented_scenario() -> str:
    """The default scenario as YAML: keys that it leaves out stand as comments with the value they have then."""
    name = load.DEFAULT_SCENARIO
    data = parse_yaml(load.embedded_scenarios()[name], name)
    head = (
        "# A draftcast scenario. A key behind # is left out and shown with its default; remove the # to set it.",
        f"# The other values are those of the bundled scenario {name}, whose file gives their sources.",
    )
    return "\n".join([*head, *_section(Scenario, data, "")]) + "\n"


def _section(model: type[BaseModel], data: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, field in model.model_fields.items():
        if UNTIMED in field.metadata or (key not in data and field.is_required()):
            continue
        inner = _models(field.annotation)
        if not indent:
            yield ""
        about = field.description or (inner[0].__doc__ if len(inner) == 1 else None) or ""
        first = " ".join(about.split("\n\n")[0].split()).replace("``", "")
        yield from textwrap.wrap(first, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
        value = data.get(key)
        if key not in data:
            yield f"{indent}# {key}: {_flow(field.get_default(call_default_factory=True))}"
        elif isinstance(value, dict) and len(inner) == 1:
            yield f"{indent}{key}:"
            yield from _section(inner[0], value, f"{indent}  ")
        else:
            yield f"{indent}{key}: {_flow(value)}"


def _flow(value: Any) -> str:
    plain = value.model_dump(mode="json", exclude_none=True) if isinstance(value, BaseModel) else value
    return yaml.safe_dump([plain], default_flow_style=True, sort_keys=False, width=10**6).strip()[1:-1]
