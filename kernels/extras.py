"""What is imported when it is first used, and packages that only an extra of ``pyproject.toml`` brings."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from draftcast.errors import InputError

__all__ = ["lazily", "missing", "require", "torch"]


def lazily(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package whose names are imported from their modules when first used."""

    def value_of(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return value_of, lambda: sorted({*vars(sys.modules[package]), *modules})


class _Later:
    """torch, imported when something of it is first used."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(importlib.import_module("torch"), name)
        setattr(self, name, value)  # a launch that is timed looks it up as fast as in the package
        return value


if TYPE_CHECKING:
    import torch
else:
    torch = _Later()


def missing(extra: str, *packages: str) -> str:
    """What to install, if one of these packages of an extra is not there; "" if all are."""
    absent = next((package for package in packages if importlib.util.find_spec(package) is None), None)
    return f"needs {absent}: pip install 'draftcast[{extra}]'" if absent else ""


def require(extra: str, *packages: str, place: str) -> None:
    """Refuse to go on without these packages of an extra, which a command, option or module (``place``) needs.

    Raises InputError: one is not installed.
    """
    if text := missing(extra, *packages):
        raise InputError(text, file=place)
