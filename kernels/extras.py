"""Packages that the plain install does not bring, and the extra of ``pyproject.toml`` that brings them."""

from __future__ import annotations

import importlib.util

from draftcast.errors import InputError


def missing(extra: str, *packages: str) -> str:
    """What to install, if one of these packages of an extra is not there; "" if all are."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            return f"needs {package}: pip install 'draftcast[{extra}]'"
    return ""


def require(extra: str, *packages: str, place: str) -> None:
    """Refuse to go on without these packages of an extra.

    Args:
        place: the command, option or module that needs them.

    Raises:
        InputError: one is not installed.
    """
    if text := missing(extra, *packages):
        raise InputError(text, file=place)
