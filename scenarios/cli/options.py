"""Groups of options that several commands share, and `Commands`, which take them; ``options.yaml`` has their texts."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from glob import escape, glob
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
import yaml

from draftcast.errors import InputError
from draftcast.files import read_text
from draftcast.scenarios.cli.terminal import print_lines

if TYPE_CHECKING:
    from draftcast.scenarios.compare.metric import Price
    from draftcast.scenarios.schema import Scenario

# libyaml's parser: this file is read whatever the command is.
OPTIONS: dict[str, dict[str, Any]] = yaml.load(
    Path(__file__).with_name("options.yaml").read_text("utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader)
)
EXAMPLES: dict[str, str] = OPTIONS.pop("examples")


def complete_scenario(incomplete: str) -> list[str]:
    from draftcast.scenarios.schema.load import embedded_scenarios

    files = [path for pattern in ("*.yaml", "*.yml", "*/") for path in glob(f"{escape(incomplete)}{pattern}")]
    return [name for name in (*embedded_scenarios(), *files) if name.startswith(incomplete)]


def complete_device(incomplete: str) -> list[str]:
    """Devices that begin like the last one of a list."""
    from draftcast.calibration.profile.hardware import hardware_names

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in hardware_names() if name.startswith(last)]


def complete_model(incomplete: str) -> list[str]:
    from draftcast.kernels.model.catalog import model_names

    return [name for name in model_names() if name.startswith(incomplete)]


def complete_key(incomplete: str) -> list[str]:
    """Keys of a scenario up to the equals sign; behind it models, devices and nothing else."""
    from draftcast.scenarios.schema.changes import scenario_keys

    key, equals, value = incomplete.partition("=")
    if equals:
        names = {"engine.model": complete_model, "hardware": complete_device}
        return [f"{key}={name}" for name in names[key](value)] if key in names else []
    return [f"{name}=" for name in dict.fromkeys(scenario_keys()) if name.startswith(incomplete)]


@dataclass(frozen=True, kw_only=True)
class ScenarioOptions:
    scenario: str
    overrides: list[str] | None = None
    speculative_config: str | None = None
    serve_command: str | None = None
    trace: Path | None = None
    seed: int | None = None

    def load(self, replications: int | None = None, calibrate_to: Sequence[str] | None = None) -> Scenario:
        from draftcast.scenarios.schema.load import load_scenario

        statistics = {"seed": self.seed, "replications": replications}
        changes = [f"statistics.{key}={value}" for key, value in statistics.items() if value is not None]
        read, server = None, dict[str, Any]()
        if self.serve_command is not None:
            from draftcast.scenarios.compare.read_command import read_command

            if self.speculative_config is not None:
                raise InputError("give --speculative-config or --serve-command, not both", file="--serve-command")
            command = self.serve_command
            read = read_command(read_text(command) if os.path.isfile(command) else command)
            for note in read.notes:
                print(f"draftcast: note: {note}", file=sys.stderr)
            server = {"engine": read.engine, "keep": read.silent}
            if read.policy is not None:
                changes.insert(0, f"policy={json.dumps(read.policy)}")
        try:
            scenario = load_scenario(
                self.scenario,
                overrides=[*(self.overrides or []), *changes],
                speculative_config=self.speculative_config,
                trace=self.trace,
                **server,
            )
        except InputError as error:
            option = (error.key or "").removeprefix("statistics.")
            if statistics.get(option) is None:
                raise
            raise error.at(file=f"--{option}") from None
        if read is not None and (note := read.note_under(scenario.engine.version)):
            print(f"draftcast: note: {note}", file=sys.stderr)
        if not calibrate_to:
            return scenario
        from draftcast.scenarios.live import calibrate_to as live

        return live.calibrate_to(scenario, calibrate_to)

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Errors that name no file name where their key was given: what a scenario holds does not know that."""
        from draftcast.scenarios.schema.load import given_at, origin

        try:
            yield
        except InputError as error:
            if error.file is not None:
                raise
            sources = {"trace": self.trace, "engine": self.serve_command, "speculative_config": self.speculative_config}
            places = given_at(self.overrides or (), **sources)
            raise error.at(file=origin(error.key or "", self.scenario, places)) from None


@dataclass(frozen=True, kw_only=True)
class QuestionOptions(ScenarioOptions):
    replications: int | None = None
    calibrate_to: list[str] | None = None
    as_json: bool = False

    def load(self, replications: int | None = None, calibrate_to: Sequence[str] | None = None) -> Scenario:
        return super().load(replications or self.replications, calibrate_to or self.calibrate_to)

    def print_answer(self, scenario: Scenario, summary: Callable[[], Mapping[str, Any]], parts: Iterable[Any]) -> None:
        """The answer as one JSON object, with what it is calibrated to, or as its tables and sentences."""
        data = summary() if self.as_json else {}
        if scenario.correction is not None:
            data = {**data, "correction": scenario.correction.model_dump(mode="json")}
        print_lines(self.as_json, data, filter(None, parts))


def option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """``command`` as Typer calls it: a parameter that is a dataclass becomes one argument or option per field."""
    groups: dict[str, Any] = {}

    def parameters(owner: Callable[..., Any]) -> Iterator[inspect.Parameter]:
        hints = get_type_hints(owner, include_extras=True)
        for name, parameter in inspect.signature(owner).parameters.items():
            hint = hints[name]
            if is_dataclass(hint):
                groups[name] = hint
                yield from parameters(groups[name])
            else:
                annotation = _described(hint, name, owner)
                yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=annotation)

    @wraps(command)
    def flat(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    flat.__signature__ = inspect.Signature([*parameters(command)])  # type: ignore[attr-defined]
    return flat


class Commands(typer.Typer):
    """Commands that may take groups of options, see `option_groups`."""

    def command(self, *arguments: Any, **settings: Any) -> Callable[[Any], Any]:
        register = super().command(*arguments, **settings)
        return lambda command: register(option_groups(command))


# Completes the value of an option for a shell; by their names in ``options.yaml``.
_COMPLETIONS = {"scenario": complete_scenario, "device": complete_device, "model": complete_model, "key": complete_key}


def _described(hint: Any, name: str, owner: Any) -> Any:
    """A type with what `OPTIONS` says of the option of this name: of the command, else of the group, else of all."""
    for part in (*getattr(owner, "__mro__", (owner,)), None):
        place = f"{part.__module__.rpartition('.')[2]}.{part.__name__}" if part is not None else "shared"
        if (settings := OPTIONS.get(place, {}).get(name)) is not None:
            settings = {"help": settings} if isinstance(settings, str) else {**settings}
            if "completion" in settings:
                settings["autocompletion"] = _COMPLETIONS[settings.pop("completion")]
            names, kind = settings.pop("names", ()), typer.Argument if settings.pop("argument", False) else typer.Option
            return Annotated[hint, kind(*names, **settings)]
    return hint


def values_of(text: str | None, option: str) -> list[float]:
    """Increasing positive numbers as of `parse_values`; none where the option is not given."""
    from draftcast.scenarios.schema.numbers import parse_values

    return parse_values(text, option) if text is not None else []


def whole_values_of(text: str | None, option: str) -> list[int]:
    """`values_of`, whole. Raises InputError: a number that is not whole, or below 1."""
    values = values_of(text, option)
    if any(value != int(value) or value < 1 for value in values):
        raise InputError("must be whole numbers from 1", file=option, value=text)
    return [int(value) for value in values]


def check_target(option: str, path: Path | None, question: QuestionOptions) -> None:
    """Refuse a file to be written that is a folder, has none, or is one that the question was read from."""
    if path is None:
        return
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise InputError("must be a file in a folder that exists", file=option, value=str(path))
    read = (question.scenario, question.trace, question.serve_command, *(question.calibrate_to or ()))
    if path.exists() and any(path.samefile(file) for file in read if file is not None and os.path.exists(file)):
        raise InputError("is what the question is read from", file=option, value=str(path))


def method_of(text: str, option: str = "--candidate") -> dict[str, Any]:
    """The mapping that an option gives as JSON or as a YAML file. Raises InputError: neither of the two."""
    from draftcast.yaml_text import parse_yaml

    place = option
    if not text.lstrip().startswith("{"):
        place = text
        try:
            text = Path(text).read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            raise InputError("is neither JSON nor a readable file", file=option, value=place) from None
    method = parse_yaml(text, place)
    if not isinstance(method, dict):
        raise InputError("must be a mapping with speculative_config and acceptance", file=place)
    return method


def parse_prices(texts: list[str]) -> dict[str, Price]:
    """By device, from ``h100-sxm=2.49@2026-11-01``. Raises InputError: another form, a bad price or date, or twice."""
    from draftcast.scenarios.compare.metric import Price

    prices: dict[str, Price] = {}
    for text in texts:
        name, equals, rest = text.partition("=")
        amount, at, date = rest.partition("@")
        try:
            value = float(amount)
        except ValueError:
            value = -1.0
        if not (equals and at and name.strip()) or value < 0.0:
            raise InputError("must look like h100-sxm=2.49@2026-11-01", file="--price", value=text)
        try:
            price = Price(value, date.strip())
        except InputError as error:
            raise error.at(file="--price") from None
        if name.strip() in prices:
            raise InputError("is given twice", file="--price", value=name.strip())
        prices[name.strip()] = price
    return prices
