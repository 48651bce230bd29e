"""The built-in policies by name, and policies of the user's own by import path."""

import importlib.util
import inspect
from pathlib import Path
from typing import Any

from draftcast.errors import ScenarioError
from draftcast.sim.policies import BUILT_IN
from draftcast.sim.policies.base import Policy


def load_policy(name: str, **parameters: Any) -> Policy:
    """A policy by registered name, or by import path ``package.module:Class`` or ``path/to/file.py:Class``.

    Raises ScenarioError: unknown name, module, class or parameter; the message lists what is allowed.
    """
    kind = _import_policy(name) if ":" in name else POLICIES.get(name)
    if kind is None:
        message = f"unknown; known are {', '.join(sorted(POLICIES))}, or an import path module:Class"
        raise ScenarioError(message, key="policy.name", value=name)
    try:
        return kind(**parameters)
    except TypeError as error:
        allowed = ", ".join(inspect.signature(kind).parameters)
        raise ScenarioError(f"{error}; parameters are: {allowed or 'none'}", key="policy", value=name) from error


def _import_policy(path: str) -> type[Policy]:
    module_name, _, class_name = path.rpartition(":")
    try:
        if module_name.endswith(".py"):
            spec = importlib.util.spec_from_file_location(f"draftcast_policy_{Path(module_name).stem}", module_name)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(module_name)
    except Exception as error:  # whatever the module does when it is run
        plain = isinstance(error, ImportError | OSError | SyntaxError)
        reason = str(error) if plain else f"{type(error).__name__}: {error}"
        raise ScenarioError(f"cannot be imported: {reason}", key="policy.name", value=path) from error
    policy = getattr(module, class_name, None)
    if not isinstance(policy, type) or not issubclass(policy, Policy):
        raise ScenarioError(f"{class_name!r} is not a draftcast.sim.Policy in it", key="policy.name", value=path)
    return policy


POLICIES = {name: _import_policy(f"{__package__}.{place}") for name, place in BUILT_IN.items()}
for _name, _policy in POLICIES.items():
    _policy.name = _name
