"""From a file, an embedded name or a mapping to a validated ``Scenario``, and back.

Every way in ends in the same validation, and every failure is one ``ScenarioError`` line that names the file (or
``--set``), the key, the value and what is allowed. What models, hardware or traces a scenario names is checked by who
reads them (``scenarios/schema/references.py`` says where they are looked for).
"""

import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from draftcast.calibration.acceptance.references import reference
from draftcast.errors import ScenarioError
from draftcast.files import digest, parse_json, read_text
from draftcast.scenarios.schema.raw import MESSAGES, NAMES, assign, copied, sections, value_at
from draftcast.scenarios.schema.references import outside_names, put_checksums, resolve_paths
from draftcast.scenarios.schema.scenario import MATCHING_METHODS, ReplicaGroup, Scenario
from draftcast.scenarios.schema.speculation import SpeculativeConfig
from draftcast.sim.acceptance.model import Trace
from draftcast.yaml_text import parse_yaml, write_yaml


def validate(data: Mapping[str, Any], file: str, places: Mapping[str, str]) -> Scenario:
    """``data`` as a Scenario; ``places`` says which dotted keys came from elsewhere than ``file``."""
    try:
        scenario = Scenario.model_validate(_with_rates(data, file, places))
        members(scenario)
    except ValidationError as error:
        raise one_line(error.errors()[0], data, file, places) from None
    except ScenarioError as error:
        raise error.at(file=origin(str(error.key), file, places)) from None
    return scenario


def origin(key: str, file: str, places: Mapping[str, str]) -> str:
    """Where a dotted key was given."""
    inside = [place for section, place in places.items() if _within(key, section)]
    return inside[-1] if inside else file


def _with_rates(data: Mapping[str, Any], file: str, places: Mapping[str, str]) -> dict[str, Any]:
    """The mapping with the rates of each acceptance that names a published measurement in their place."""
    result: dict[str, Any] = copied(data)
    for holders in ("", "workload.classes.*", "cluster.groups.*"):
        for place, holder in sections(result, holders):
            section = holder.get("acceptance")
            if not isinstance(section, Mapping) or "reference" not in section or {"model", "rates"} & section.keys():
                continue
            try:
                published = reference(section["reference"])
            except ScenarioError as error:
                key = f"{place}acceptance.reference"
                raise error.at(file=origin(key, file, places), key=key) from None
            rates = list(published.unconditional(published.measured_to))
            holder["acceptance"] = {"model": "chain", **section, "rates": rates}
    return result


def one_line(error: ErrorDetails, data: Any, file: str, places: Mapping[str, str] = {}) -> ScenarioError:
    """One pydantic error as one line in draftcast's words; ``places``: dotted keys that came from elsewhere."""
    context = dict(error.get("ctx", {}))
    kind = error["type"]
    keys = _keys_in(data, error["loc"], kind == "missing")
    value = context.get("value", error["input"])
    if context.get("key"):
        keys.append(str(context["key"]))
    if kind == "union_tag_invalid":
        keys.append(str(context["discriminator"]).replace("'", ""))
        value = context["tag"]
    message = error["msg"]
    if kind in MESSAGES:
        message = MESSAGES[kind].format(**{name: str(text).replace("'", "") for name, text in context.items()})
    dotted, value = ".".join(keys), list(value) if isinstance(value, tuple) else value
    long = isinstance(value, (dict, BaseModel)) or (isinstance(value, list) and len(value) > 12)
    shown: dict[str, Any] = {} if kind == "missing" or value is None or long else {"value": value}
    return ScenarioError(message, file=origin(dotted, file, places), key=dotted or None, **shown)


def _keys_in(data: Any, location: Sequence[int | str], missing: bool) -> list[str]:
    """``location`` without the union tags that pydantic puts between real keys."""
    keys: list[str] = []
    current = data
    for position, part in enumerate(location, start=1):
        try:
            current = current[part]
        except (LookupError, TypeError):
            if not missing or position < len(location):
                continue
        keys.append(str(part))
    return keys


DEFAULT_SCENARIO = "default"
_LATER_KEYS = ("system_prompt", "sessions", "speculation")


def embedded_scenarios() -> dict[str, str]:
    """Name -> text of every scenario that ships inside the package."""
    folder = Path(__file__).parents[1] / "files"
    return {path.stem: path.read_text("utf-8") for path in sorted(folder.glob("*.yaml"))}


def load_scenario(
    source: str | Path | Mapping[str, Any] = DEFAULT_SCENARIO,
    *,
    overrides: str | Sequence[str] = (),
    speculative_config: str | Mapping[str, Any] | None = None,
    engine: Mapping[str, Any] | None = None,
    keep: Collection[str] = (),
    trace: str | Path | None = None,
) -> Scenario:
    """Load and validate a scenario.

    Args:
        source: path of a YAML file, the name of a bundled scenario, or the mapping itself.
        overrides: ``a.b=3`` assignments as of ``--set``, or one; the value is read as YAML, list items by index.
        speculative_config: vLLM's ``--speculative-config`` JSON, verbatim; ``"null"`` turns speculation off.
        engine: the section as a server's command says it.
        keep: fields of the scenario's engine that stay where ``engine`` does not give them.
        trace: a trace file that replaces the scenario's arrivals and lengths.

    Raises:
        ScenarioError: anything wrong, in one line.
    """
    overrides = [overrides] if isinstance(overrides, str) else overrides
    data, file = _read(source)
    read = copied(data)
    if trace is not None:
        _use_trace(data, str(Path(trace).absolute()))
    if engine is not None:
        kept = {name: value for name, value in (data.get("engine") or {}).items() if name in keep}
        assign(data, "engine", {**kept, **engine}, "--serve-command")
    if speculative_config is not None:
        if isinstance(speculative_config, str):
            speculative_config = parse_json(speculative_config, "--speculative-config", ScenarioError)
        assign(data, "engine.speculative_config", speculative_config, "--speculative-config")
    data = apply_overrides(data, overrides)
    places = given_at(overrides, trace=trace, engine=engine, speculative_config=speculative_config)
    acceptance_follows(read, data, places, file)
    return validate(data, file, places)


def given_at(overrides: Iterable[str], *, trace: Any, engine: Any, speculative_config: Any) -> dict[str, str]:
    """Dotted keys that `load_scenario` does not take from the file (None: not given) -> the option that gave them."""
    options = {
        "workload.arrivals": ("--trace", trace),
        "engine": ("--serve-command", engine),
        "engine.speculative_config": ("--speculative-config", speculative_config),
    }
    places = {key: option for key, (option, value) in options.items() if value is not None}
    return places | {assignment.partition("=")[0].strip(): "--set" for assignment in overrides}


def apply_overrides(data: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """A copy of a scenario's raw mapping with ``a.b=3`` assignments made in order (not yet validated)."""
    result: dict[str, Any] = copied(data)
    for assignment in overrides:
        key, equals, text = assignment.partition("=")
        if not equals or not all(part.strip() for part in key.split(".")):
            raise ScenarioError("must look like key.key=value", file="--set", value=assignment)
        assign(result, key.strip(), parse_yaml(text, f"--set {key.strip()}", ScenarioError), "--set")
    return result


def with_values(scenario: Scenario, values: Mapping[str, Any], places: Mapping[str, str] = {}) -> Scenario:
    """A validated copy of ``scenario`` with dotted keys replaced, e.g. ``{"statistics.seed": 3}``.

    ``places``: what errors say of keys that came from elsewhere, as ``candidate 1``. Raises ScenarioError: no valid
    scenario, or another method with the acceptance of the one before.
    """
    before = to_mapping(scenario)
    data = copied(before)
    for key, value in values.items():
        assign(data, key, value.tolist() if hasattr(value, "tolist") else value, "scenario")
    acceptance_follows(before, data, values, places.get("engine.speculative_config", "scenario"))
    return validate(data, "scenario", places)


def acceptance_follows(before: Mapping[str, Any], data: Mapping[str, Any], keys: Iterable[str], file: str) -> None:
    """Raises ScenarioError, naming ``file``: ``keys`` changed the method, and its acceptance is the old one's."""
    for place, (old, method) in missing_acceptance(before, data, keys).items():
        model = NAMES["acceptance"].get(method, NAMES["acceptance"]["others"])
        measured = "measure finds it in token logs", "from-metrics reads it from vLLM's counters"
        message = (
            f"was given for {old}, and the method is now {method}: give that of {method} with --set '{place}={model}', "
            f"or with a candidate as its acceptance (draftcast acceptance {measured[method not in MATCHING_METHODS]})"
        )
        raise ScenarioError(message, file=file, key=place)


def missing_acceptance(
    before: Mapping[str, Any], data: Mapping[str, Any], keys: Iterable[str]
) -> dict[str, tuple[str, str]]:
    """Dotted keys of acceptance that a change of method (not from off) leaves as it was -> the old and the new one."""
    changes = [(_speculation(before), _speculation(data), acceptance_places(data))]
    for place, group in sections(data, "cluster.groups.*"):
        if group.get("acceptance") is not None:
            name = place.rstrip(".")
            changes.append((_speculation(before, name), _speculation(data, name), [f"{place}acceptance"]))
    changed, missing = list(keys), dict[str, tuple[str, str]]()
    for old, new, places in changes:
        if old is not None and new is not None and old.resolved_method != new.resolved_method:
            left = [place for place in places if not any(_within(place, key) or _within(key, place) for key in changed)]
            missing |= dict.fromkeys(left, (old.resolved_method, new.resolved_method))
    return missing


def acceptance_places(data: Mapping[str, Any]) -> list[str]:
    """Dotted keys of the acceptance that a raw scenario's method goes by; none where it needs none."""
    spec = _speculation(data)
    if spec is None or spec.synthetic_rates is not None:
        return []
    classes = {f"{place}acceptance": entry for place, entry in sections(data, "workload.classes.*")}
    class_places = [place for place, entry in classes.items() if entry.get("acceptance") is not None]
    return class_places if class_places and len(class_places) == len(classes) else ["acceptance", *class_places]


def _within(key: str, section: str) -> bool:
    return key == section or key.startswith(f"{section}.")


def _speculation(data: Mapping[str, Any], group: str = "") -> SpeculativeConfig | None:
    """What a raw scenario, or the group of its cluster at this place, says; None also where that is not valid."""
    spec = value_at(data, "engine.speculative_config")
    if group and isinstance(spec, Mapping):
        member = value_at(data, group)
        spec = _drafts(spec, value_at(member, "engine")) if member is not None else None
    try:
        return SpeculativeConfig.model_validate(spec) if spec is not None else None
    except ValidationError:
        return None


def _drafts(shared: Any, engine: Any) -> Any:
    """A group's speculative_config: keys in place of the shared ones, or all of it where it names another method."""
    config = engine.get("speculative_config", shared) if isinstance(engine, Mapping) else shared
    if not isinstance(config, Mapping) or not isinstance(shared, Mapping):
        return config
    return config if config.get("method") not in (None, shared.get("method")) else {**shared, **config}


def with_rate(scenario: Scenario, request_rate_rps: float) -> Scenario:
    """At another mean rate (a trace is rescaled in time). Raises ScenarioError: arrivals without a single rate."""
    process = scenario.workload.arrivals.process
    if process in ("piecewise", "closed_loop"):
        raise ScenarioError("has no single request rate to change", key="workload.arrivals.process", value=process)
    scale = {"workload.arrivals.time_scale": 1.0} if process == "trace" else {}
    return with_values(scenario, {"workload.arrivals.request_rate_rps": request_rate_rps, **scale})


def without_speculation(scenario: Scenario, **values: Any) -> Scenario:
    """The same question to engines started without ``--speculative-config``, those of all groups; ``values``: too."""
    groups = enumerate(scenario.cluster.groups)
    places = [f"cluster.groups.{index}." for index, group in groups if "speculative_config" in group.engine]
    return with_values(scenario, values | {f"{place}engine.speculative_config": None for place in ("", *places)})


def members(scenario: Scenario) -> tuple[Scenario, ...]:
    """The scenario of each group alone; itself without groups. Raises ScenarioError: they cannot serve together."""
    groups = scenario.cluster.groups
    by_group = tuple(_member(scenario, group, f"cluster.groups.{index}") for index, group in enumerate(groups))
    if by_group and scenario.speculative_config is not None and not any(m.speculative_config for m in by_group):
        raise ScenarioError("must be null: no group speculates", key="engine.speculative_config")
    return by_group or (scenario,)


def _member(scenario: Scenario, group: ReplicaGroup, place: str) -> Scenario:
    def refuse(key: str, why: str) -> ScenarioError:
        return ScenarioError(why, key=f"{place}.engine.{key}", value=group.engine.get(key))

    data, engine, shared = to_mapping(scenario), dict(group.engine), scenario.speculative_config
    for key in ("model", "max_model_len"):
        if key in engine:
            raise refuse(key, f"is one for all replicas: give engine.{key}")
    if engine.get("speculative_config") is not None and shared is None:
        raise refuse("speculative_config", "give engine.speculative_config, and null in the groups without")
    data["engine"] |= engine | {"speculative_config": _drafts(data["engine"]["speculative_config"], engine)}
    drafts = _speculation(data)
    if group.acceptance is None and drafts is not None and drafts.synthetic_rates is None:
        if drafts.resolved_method != scenario.method:
            why = f"required for method {drafts.resolved_method}: the scenario's own is of {scenario.method}"
            raise ScenarioError(why, key=f"{place}.acceptance")
    elif group.acceptance is not None:
        data["acceptance"] = group.acceptance.model_dump(mode="json")
        if isinstance(group.acceptance, Trace) or any(entry.acceptance for entry in scenario.workload.classes):
            why = "is of all requests: give acceptance instead, or that of each class"
            raise ScenarioError(why, key=f"{place}.acceptance", value=group.acceptance.model)
    data["cluster"] = {"replicas": group.replicas, "router": scenario.cluster.router}
    if group.hardware is not None or group.profile is not None:
        data |= {"hardware": group.hardware or scenario.hardware, "profile": group.profile}
    try:
        member = validate(data, "scenario", {})
    except ScenarioError as error:
        raise error.at(key=key_in_group(place, error.key)) from None
    moved = (member.hardware, member.engine.num_gpus) != (scenario.hardware, scenario.engine.num_gpus)
    if moved and scenario.engine.num_gpu_blocks is not None and "num_gpu_blocks" not in engine:
        raise refuse("num_gpu_blocks", "engine.num_gpu_blocks is of other devices: give the group's (null: what fits)")
    return member


def key_in_group(place: str, key: str | None) -> str:
    """For messages: a key of the engine of a group, ``place`` as cluster.groups.0; or, of what all share, both keys."""
    if key is None:
        return place
    return f"{place}.{key}" if key.partition(".")[0] in ReplicaGroup.model_fields else f"{place}: {key}"


def gpus_by_device(scenario: Scenario) -> dict[str, int]:
    """GPUs of the whole cluster, by the name of their hardware in the scenario."""
    count = Counter[str]()
    for member in members(scenario):
        count[member.hardware] += member.cluster.replicas * member.engine.num_gpus
    return dict(count)


def to_mapping(scenario: Scenario) -> dict[str, Any]:
    """The scenario as plain data (lists, not tuples), every default written out."""
    data = scenario.model_dump(mode="json")
    if scenario.correction is None:
        del data["correction"]  # what is not calibrated asks what it asked before there was such a key
    for section in (data["workload"], *data["workload"]["classes"]):  # as of the correction
        for key in _LATER_KEYS:
            if section.get(key, True) in (None, True):
                section.pop(key, None)
    # As above; the number of replicas is the groups' own.
    del data["cluster"]["replicas" if scenario.cluster.groups else "groups"]
    spec = scenario.speculative_config
    if spec is not None:
        # Only what was given: which keys the user set is part of vLLM's dictionary (and of `without_effect`).
        data["engine"]["speculative_config"] = spec.model_dump(mode="json", exclude_unset=True)
    return data


def dump_scenario(scenario: Scenario) -> str:
    """YAML text that ``load_scenario`` reads back to an equal scenario with the same hash."""
    return write_yaml(to_mapping(scenario))


def recorded_scenario(manifest: Mapping[str, Any], file: str) -> Scenario:
    """A recorded run's scenario. Raises ScenarioError: not valid, or code of its own, as a run may come from anyone."""
    data = manifest.get("scenario")
    if not isinstance(data, Mapping):
        raise ScenarioError("must hold the scenario of the run", file=file, key="scenario", value=data)
    policy = outside_names(data).get("policy.name")
    if policy is not None:
        message = "a recorded run's own code is not imported; name a policy of draftcast's"
        raise ScenarioError(message, file=file, key="scenario.policy.name", value=policy)
    return load_scenario(data)


def scenario_hash(scenario: Scenario) -> str:
    """Sha256 (hex) of all that can change a result: not name and description, and files by content, not by place."""
    data = to_mapping(scenario)
    del data["name"], data["description"]
    spec = scenario.speculative_config
    if spec is not None:
        # With defaults here: a default written out asks the same question.
        data["engine"]["speculative_config"] = spec.model_dump(mode="json")
    put_checksums(data)
    return digest(data)


def _read(source: str | Path | Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Raw mapping and the name errors give it."""
    if isinstance(source, Mapping):
        return copied(source), "scenario"
    embedded, file = embedded_scenarios(), str(source)
    is_embedded = file in embedded and not os.path.isfile(source)
    if not is_embedded and not os.path.exists(source):
        raise ScenarioError(f"no such file; bundled scenarios are {', '.join(embedded)}", file=file)
    text = embedded[file] if is_embedded else read_text(source, ScenarioError)
    file = f"{source}.yaml (bundled)" if is_embedded else file
    data = parse_yaml(text, file, ScenarioError)
    if not isinstance(data, dict):
        message = "must be a mapping of sections (schema_version, engine, hardware, workload, ...)"
        raise ScenarioError(message, file=file)
    if not is_embedded:
        resolve_paths(data, Path(source).parent)
    return data, file


def _use_trace(data: dict[str, Any], path: str) -> None:
    """Arrivals and lengths from ``path``; how a trace is clipped and scaled stays, its format is found out anew."""
    workload = data.setdefault("workload", {})
    if not isinstance(workload, dict):
        return
    old = workload.get("arrivals")
    if not (isinstance(old, dict) and old.get("process") == "trace"):
        workload["arrivals"] = {"process": "trace"}
        workload["num_requests"] = None
        workload.pop("lengths", None)
        for _, entry in sections(data, "workload.classes.*"):
            entry.pop("lengths", None)
    workload["arrivals"]["path"] = path
    workload["arrivals"].pop("format", None)
