"""What a scenario names outside itself: traces, a model, a device, a profile, a Python policy.

Relative paths are the scenario file's own: taken from its folder. A scenario's hash takes what they name by content, so
that a moved file asks the same question and an edited one another. Names of what ships with draftcast are left alone;
whether a name means anything is checked by who reads it.
"""

import hashlib
import importlib.util
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from draftcast.calibration.profile.hardware import recognised
from draftcast.calibration.profile.load import FIT, MANIFEST, profile_names
from draftcast.files import read_bytes
from draftcast.kernels.model.catalog import is_bundled_model
from draftcast.kernels.model.heads import is_bundled_head
from draftcast.scenarios.schema.raw import NAMES, sections

# What is read of a folder: a model's config, a profile's fit, and the manifest with its table's checksum.
_IN_A_FOLDER = ("config.json", FIT, MANIFEST)


@dataclass(frozen=True)
class _Reference:
    """One name in a raw scenario."""

    kind: Literal["trace", "model", "hardware", "profile", "policy"]
    section: dict[str, Any]
    key: str
    dotted: str  # the whole key, for messages
    place: str  # the name without what follows
    suffix: str  # of a policy: its class, with the colon before it

    @property
    def names_a_file(self) -> bool:
        """False for what ships with draftcast, and for a policy that is built in or a module."""
        if self.kind == "model":
            return not (is_bundled_model(self.place) or is_bundled_head(self.place))
        if self.kind == "hardware":
            return recognised(self.place) is None
        if self.kind == "profile":
            return self.place not in profile_names()
        return self.kind == "trace" or self.place.endswith(".py")

    def put(self, place: str) -> None:
        """Replace the place; a policy keeps its class."""
        self.section[self.key] = f"{place}{self.suffix}"


def resolve_paths(data: Mapping[str, Any], folder: Path) -> None:
    """Make the relative paths of a raw scenario absolute, in place: they are taken from ``folder``.

    What is no trace may be a name as well as a path: it is a path where there is such a file, in the folder or (to
    refuse that one rather than to read it) in the current directory.
    """
    for reference in _references(data):
        path = Path(reference.place)
        if reference.names_a_file and not path.is_absolute() and not reference.place.startswith("~"):
            here = (folder / path).absolute()
            if reference.kind == "trace" or os.path.exists(here) or os.path.exists(path):
                reference.put(str(here))


def put_checksums(data: Mapping[str, Any]) -> None:
    """Replace, in place, every name of a file that is there by its content's checksum (not of what it imports)."""
    for reference in _references(data):
        if (checksum := _checksum(reference)) is not None:
            reference.put(f"sha256:{checksum}")


def without_folders(data: Mapping[str, Any]) -> dict[str, str]:
    """Cut every path, in place, to the file's name; dotted key -> sha256 (hex) of what was read there."""
    checksums = {}
    for reference in _references(data):
        if reference.names_a_file and (checksum := _checksum(reference)) is not None:
            checksums[reference.dotted] = checksum
            reference.put(Path(reference.place).name)
    return checksums


def outside_names(data: Mapping[str, Any]) -> dict[str, str]:
    """Dotted key -> name of all that a raw scenario takes from outside draftcast: files, and code to import.

    A draft's name that is no file is only a label, like the Hugging Face name in a pasted ``--speculative-config``.
    """
    names = {}
    for reference in _references(data):
        name = str(reference.section[reference.key])
        is_there = os.path.exists(os.path.expanduser(name))
        label = reference.dotted.endswith("engine.speculative_config.model") and not is_there
        imported = reference.kind == "policy" and bool(reference.place)
        if imported or (reference.names_a_file and not label):
            names[reference.dotted] = name
    return names


def _checksum(reference: _Reference) -> str | None:
    """Of what a name's file or folder holds, or a policy's module; None where there is nothing."""
    path = os.path.expanduser(reference.place) if reference.names_a_file else ""
    if reference.kind == "policy" and reference.place and not path:
        with suppress(ImportError, ValueError, AttributeError):
            module = importlib.util.find_spec(reference.place)
            path = (module and module.origin) or ""
    if not path:
        return None
    files = [os.path.join(path, name) for name in _IN_A_FOLDER] if os.path.isdir(path) else [path]
    parts = [hashlib.sha256(read_bytes(file)).digest() for file in files if os.path.isfile(file)]
    return hashlib.sha256(b"".join(parts)).hexdigest() if parts else None


def _references(data: Mapping[str, Any]) -> Iterator[_Reference]:
    for kind, path in ((kind, path) for kind, paths in NAMES["references"].items() for path in paths):
        outer, _, key = path.rpartition(".")
        for prefix, section in sections(data, outer):
            name = section.get(key)
            if isinstance(name, str) and name:
                place, colon, policy = name.rpartition(":") if kind == "policy" else (name, "", "")
                yield _Reference(kind, section, key, f"{prefix}{key}", place, f"{colon}{policy}")
