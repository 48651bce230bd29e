"""What a scenario can say, from the schema itself: its keys, and a file of the default with a comment at every key."""

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, get_args

import yaml
from pydantic import BaseModel

from draftcast.frozen import Frozen
from draftcast.scenarios.schema.load import DEFAULT_SCENARIO, embedded_scenarios
from draftcast.scenarios.schema.scenario import Scenario
from draftcast.scenarios.schema.speculation import UNTIMED
from draftcast.yaml_text import parse_yaml

_WIDTH = 100


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
    data = parse_yaml(embedded_scenarios()[DEFAULT_SCENARIO], DEFAULT_SCENARIO)
    head = (
        "# A draftcast scenario. A key behind # is left out and shown with its default; remove the # to set it.",
        f"# The other values are those of the bundled scenario {DEFAULT_SCENARIO}, whose file gives their sources.",
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
