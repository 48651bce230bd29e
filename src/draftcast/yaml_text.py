"""YAML in and out, for scenarios, profiles and devices alike: safe loading, no duplicate keys, YAML 1.2 scalars.

PyYAML follows YAML 1.1, where ``off`` is false and ``1e-3`` a string; a policy is called ``off``, so this loader knows
only ``true``/``false`` as booleans and reads every usual float. Nothing but plain data is ever constructed.
"""

import re
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from draftcast.errors import InputError

Record = TypeVar("Record")
_NEEDED = {"tuple_type": "must be a list", "dict_type": "must be a mapping", "dataclass_type": "must be a mapping"}
_TAG = "tag:yaml.org,2002:"
_READ_ANOTHER_WAY = ("bool", "float", "timestamp")


# PyYAML builds nodes on the C stack with libyaml and dies where Python raises; no file of ours nests ten levels.
_DEEPEST = 100
# Nodes that aliases stand for in all: nine lines of nested aliases stand for a thousand million.
_MOST_EXPANDED = 10_000
_WIDEST = 1024  # bits of an integer; no quantity of ours takes more than 64
# PyYAML's own parser says better than libyaml's what is wrong and where, but reads 30 kB in a second.
_MOST_EXPLAINED = 2**16


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2 booleans and floats, and with duplicate keys refused."""


class _FastLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same rules over libyaml's parser, which is much faster; PyYAML's own where it was built without."""


class _Dumper(yaml.SafeDumper):
    """Quotes what the loader would otherwise read as another type."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _class in (_Loader, _FastLoader, _Dumper):
    _class.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in rules if tag.removeprefix(_TAG) not in _READ_ANOTHER_WAY]
        for first, rules in _class.yaml_implicit_resolvers.items()
    }
    _class.add_implicit_resolver(f"{_TAG}bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
    _class.add_implicit_resolver(
        f"{_TAG}float",
        re.compile(
            r"^[-+]?(?:(?:\d[\d_]*)?\.\d[\d_]*(?:[eE][-+]?\d+)?|\d[\d_]*\.?(?:[eE][-+]?\d+)"
            r"|\d[\d_]*\.|\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
        ),
        list("-+0123456789."),
    )


def _mapping(loader: _Loader, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
    lines: dict[Any, int] = {}
    for key_node, _ in node.value:
        if key_node.tag == f"{_TAG}merge":
            continue
        key = loader.construct_object(key_node, deep=True)
        line = key_node.start_mark.line + 1
        if not isinstance(key, str):
            raise InputError("keys must be plain words", line=line, key=str(key))
        if key in lines:
            raise InputError(f"duplicate key, first given in line {lines[key]}", line=line, key=key)
        lines[key] = line
    return loader.construct_mapping(node, deep=True)


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    value: int = loader.construct_yaml_int(node)
    if value.bit_length() > _WIDEST:
        # Python refuses to print an int of more than 4,300 digits, whatever message it stands in.
        raise InputError(f"an integer of more than {_WIDEST} bits", line=node.start_mark.line + 1)
    return value


_PLAIN = ("null", "bool", "int", "float", "str", "seq", "map", "merge")
for _class in (_Loader, _FastLoader):
    _class.yaml_constructors = {
        tag: built for tag, built in _class.yaml_constructors.items() if tag is None or tag.removeprefix(_TAG) in _PLAIN
    }
    _class.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
    _class.add_constructor(f"{_TAG}int", _integer)


def _check_size(text: str) -> None:
    """Refuse what nests too deeply, or is too large once aliases are written out; one pass over the parser's events."""
    sizes: dict[str | None, int] = {}  # of nodes by anchor, aliases in them written out
    open_nodes: list[tuple[str | None, int]] = [(None, 0)]  # anchor and nodes before it, from the document down
    nodes = expanded = 0
    for event in yaml.parse(text, Loader=_FastLoader):
        line = event.start_mark.line + 1 if event.start_mark else None
        if isinstance(event, yaml.CollectionStartEvent):
            sizes.pop(event.anchor, None)
            open_nodes.append((event.anchor, nodes))
            nodes += 1
            if len(open_nodes) > _DEEPEST:
                raise InputError(f"not valid YAML: nests more than {_DEEPEST} levels deep", line=line)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            sizes[anchor] = nodes - before
        elif isinstance(event, yaml.ScalarEvent):
            sizes[event.anchor] = 1
            nodes += 1
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes and any(event.anchor == anchor for anchor, _ in open_nodes):
                raise InputError("not valid YAML: an alias inside of what it stands for", line=line, key=event.anchor)
            size = sizes.get(event.anchor, 1)  # unknown: the loader says so
            nodes += size
            expanded += size
            if expanded > _MOST_EXPANDED:
                raise InputError(f"not valid YAML: aliases stand for more than {_MOST_EXPANDED:,} values", line=line)


def parse_yaml(text: str, file: str, kind: type[InputError] = InputError) -> Any:
    """Plain data of one YAML document.

    Raises ``kind``: bad syntax, a duplicate key, a tag beyond plain data, more than 100 levels, aliases for more than
    10,000 values; with file and line.
    """
    try:
        _check_size(text)
        return yaml.load(text, Loader=_FastLoader)
    except (InputError, yaml.YAMLError, ValueError, LookupError, OverflowError, RecursionError) as error:
        if isinstance(error, yaml.YAMLError) and len(text) <= _MOST_EXPLAINED:
            try:
                yaml.load(text, Loader=_Loader)
            except (yaml.YAMLError, ValueError, LookupError, RecursionError) as better:
                raise _fault(better, file, kind) from None
        raise _fault(error, file, kind) from None


def yaml_beside(module: str, name: str) -> Any:
    """Plain data of a bundled file in the folder of a module, given by its ``__file__``."""
    return parse_yaml(Path(module).with_name(name).read_text("utf-8"), name)


def _fault(error: Exception, file: str, kind: type[InputError]) -> InputError:
    if isinstance(error, InputError):
        return kind(error.message, file=file, line=error.line, key=error.key)
    if isinstance(error, yaml.MarkedYAMLError):
        line = error.problem_mark.line + 1 if error.problem_mark else None
        return kind(f"not valid YAML: {error.problem}", file=file, line=line)
    if isinstance(error, LookupError):  # PyYAML's own slip over `!!bool maybe` and `!!int ''`
        return kind("not valid YAML: a value that is not of the type its tag says", file=file)
    return kind(f"not valid YAML: {str(error).partition(';')[0]}", file=file)


def write_yaml(data: Any) -> str:
    """``data`` as block YAML, keys in the order given; ``parse_yaml`` reads back the same data."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def validated(record: TypeAdapter[Record], data: object, file: str, kind: type[InputError] = InputError) -> Record:
    """``data`` of a file as a record. Raises ``kind``: the first fault, with file and key."""
    try:
        return record.validate_python(data)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
    except InputError as error:
        raise error.at(file=file) from None
    key = ".".join(str(part) for part in fault["loc"] if part != "[key]") or None
    if fault["type"] in ("missing", "missing_argument", "missing_keyword_only_argument"):
        raise kind("required, but missing", file=file, key=key)
    unknown = fault["type"] in ("extra_forbidden", "unexpected_keyword_argument")
    message = "unknown key" if unknown else _NEEDED.get(fault["type"], fault["msg"].removeprefix("Value error, "))
    raise kind(message, file=file, key=key, value="{...}" if isinstance(fault["input"], dict) else fault["input"])
