"""YAML in and out, for scenarios, profiles and devices alike: safe loading, no duplicate keys, YAML 1.2 scalars.

PyYAML follows YAML 1.1, where ``off`` is false and ``1e-3`` a string; a policy is called ``off``, so this loader knows
only ``true``/``false`` as booleans and reads every usual float. Nothing but plain data is ever constructed.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from draftcast.errors import InputError

_BOOL = "tag:yaml.org,2002:bool"
_FLOAT = "tag:yaml.org,2002:float"
_TIMESTAMP = "tag:yaml.org,2002:timestamp"


# libyaml nests on the C stack and dies where Python raises: 5,000 levels are safe, 100,000 are not.
_DEEPEST = 1_000


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
        first: [(tag, pattern) for tag, pattern in rules if tag not in (_BOOL, _FLOAT, _TIMESTAMP)]
        for first, rules in _class.yaml_implicit_resolvers.items()
    }
    _class.add_implicit_resolver(_BOOL, re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
    _class.add_implicit_resolver(
        _FLOAT,
        re.compile(
            r"^[-+]?(?:(?:\d[\d_]*)?\.\d[\d_]*(?:[eE][-+]?\d+)?|\d[\d_]*\.?(?:[eE][-+]?\d+)"
            r"|\d[\d_]*\.|\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
        ),
        list("-+0123456789."),
    )


def _mapping(loader: _Loader, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
    seen: dict[Any, int] = {}
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        line = key_node.start_mark.line + 1
        if not isinstance(key, str):
            raise InputError("keys must be plain words", line=line, key=str(key))
        if key in seen:
            raise InputError(f"duplicate key, first given in line {seen[key]}", line=line, key=key)
        seen[key] = line
    loader.flatten_mapping(node)
    return {
        loader.construct_object(key, deep=True): loader.construct_object(value, deep=True) for key, value in node.value
    }


for _class in (_Loader, _FastLoader):
    _class.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def _nests_little(text: str) -> bool:
    """No way that ``text`` nests deeper than `_DEEPEST`: a level costs a bracket, or a column of its line."""
    columns = max(map(len, text.splitlines()), default=0)
    return text.count("[") + text.count("{") + 2 * columns <= _DEEPEST


def parse_yaml(text: str, file: str, kind: type[InputError] = InputError) -> Any:
    """Plain data of one YAML document.

    Raises:
        kind: bad syntax, a duplicate key or a tag beyond plain data, with file and line.
    """
    if _nests_little(text):
        try:
            return yaml.load(text, Loader=_FastLoader)
        except (InputError, yaml.YAMLError, ValueError, RecursionError):
            pass  # read again below: PyYAML's own parser says better what is wrong, and where
    try:
        return yaml.load(text, Loader=_Loader)
    except InputError as error:
        raise kind(error.message, file=file, line=error.line, key=error.key) from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise kind(f"not valid YAML: {error.problem}", file=file, line=line) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise kind(f"not valid YAML: {error}", file=file) from None


def write_yaml(data: Any) -> str:
    """``data`` as block YAML, keys in the order given; ``parse_yaml`` reads back the same data."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
