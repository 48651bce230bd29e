"""Packages that the plain install does not bring, and the extra of ``pyproject.toml`` that brings them."""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from draftcast.errors import InputError

__all__ = ["missing", "require", "torch"]


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
    for package in packages:
        if importlib.util.find_spec(package) is None:
            return f"needs {package}: pip install 'draftcast[{extra}]'"
    return ""


def require(extra: str, *packages: str, place: str) -> None:
    """Refuse to go on without these packages of an extra, which a command, option or module (``place``) needs.

    Raises InputError: one is not installed.
    """
    if text := missing(extra, *packages):
        raise InputError(text, file=place)
