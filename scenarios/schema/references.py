"""What a scenario names outside itself: traces, a model, a device, a profile, a Python policy.

Relative paths are the scenario file's own: taken from its folder. A scenario's hash takes what they name by content, so
that a moved file asks the same question and an edited one another. Names of what ships with draftcast are left alone;
whether a name means anything is checked by who reads it.
"""

import hashlib
import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from draftcast.calibration.profile.hardware import is_bundled_device
from draftcast.calibration.profile.load import FIT, MANIFEST, profile_names
from draftcast.files import read_bytes
from draftcast.kernels.model.catalog import is_bundled_model
from draftcast.kernels.model.heads import is_bundled_head

ReferenceKind = Literal["trace", "model", "hardware", "profile", "policy"]
# Where they stand in a scenario; the last key holds the name.
_PLACES: tuple[tuple[ReferenceKind, tuple[str, ...]], ...] = (
    ("trace", ("workload", "arrivals", "path")),
    ("trace", ("workload", "lengths", "path")),
    ("trace", ("acceptance", "path")),
    ("model", ("engine", "model")),
    ("model", ("engine", "speculative_config", "model")),
    ("hardware", ("hardware",)),
    ("profile", ("profile",)),
    ("policy", ("policy", "name")),
)
_IN_A_CLASS = (("lengths", "path"), ("acceptance", "path"))
_IN_A_GROUP: tuple[tuple[ReferenceKind, tuple[str, ...]], ...]
_IN_A_GROUP = tuple(
    place for place in _PLACES if place[1][-2:] == ("speculative_config", "model") or len(place[1]) == 1
)
# What is read of a folder: a model's config, a profile's fit, and the manifest with its table's checksum.
_IN_A_FOLDER = ("config.json", FIT, MANIFEST)


@dataclass(frozen=True)
class _Reference:
    """One name in a raw scenario."""

    kind: ReferenceKind
    section: dict[str, Any]
    key: str
    dotted: str  # the whole key, for messages

    @property
    def place(self) -> str:
        """The name without the class that a policy's ends with."""
        text = str(self.section[self.key])
        return text.rpartition(":")[0] if self.kind == "policy" else text

    @property
    def names_a_file(self) -> bool:
        """False for what ships with draftcast, and for a policy that is built in or a module."""
        if self.kind == "model":
            return not (is_bundled_model(self.place) or is_bundled_head(self.place))
        if self.kind == "hardware":
            return not is_bundled_device(self.place)
        if self.kind == "profile":
            return self.place not in profile_names()
        return self.kind == "trace" or self.place.endswith(".py")

    def put(self, place: str) -> None:
        """Replace the place; a policy keeps its class."""
        text = str(self.section[self.key])
        self.section[self.key] = f"{place}:{text.rpartition(':')[2]}" if self.kind == "policy" else place


def resolve_paths(data: Mapping[str, Any], folder: Path) -> None:
    """Make the relative paths of a raw scenario absolute, in place: they are taken from ``folder``.

    What is no trace may be a name as well as a path: it is a path where there is such a file, in the folder or (to
    refuse that one rather than to read it) in the current directory.
    """
    for reference in _references(data):
        path = Path(reference.place)
        if not reference.names_a_file or path.is_absolute() or reference.place.startswith("~"):
            continue
        here = (folder / path).absolute()
        if reference.kind == "trace" or os.path.exists(here) or os.path.exists(path):
            reference.put(str(here))


def put_checksums(data: Mapping[str, Any]) -> None:
    """Replace, in place, every name of a file that is there by its content's checksum.

    Of a Python policy it is the content of its own file, not of what that imports.
    """
    for reference in _references(data):
        checksum = _checksum(reference)
        if checksum is not None:
            reference.put(f"sha256:{checksum}")


def without_folders(data: Mapping[str, Any]) -> dict[str, str]:
    """Cut every path, in place, to the file's name; dotted key -> sha256 (hex) of what was read there."""
    found = {}
    for reference in _references(data):
        checksum = _checksum(reference) if reference.names_a_file else None
        if checksum is not None:
            found[reference.dotted] = checksum
            reference.put(Path(reference.place).name)
    return found


def outside_names(data: Mapping[str, Any]) -> dict[str, str]:
    """Dotted key -> name of all that a raw scenario takes from outside draftcast: files, and code to import.

    A draft's name that is no file is only a label, like the Hugging Face name in a pasted ``--speculative-config``.
    """
    found = {}
    for reference in _references(data):
        name = str(reference.section[reference.key])
        label = reference.dotted.endswith("engine.speculative_config.model") and not os.path.exists(
            os.path.expanduser(name)
        )
        imported = reference.kind == "policy" and bool(reference.place)
        if imported or (reference.names_a_file and not label):
            found[reference.dotted] = name
    return found


def _checksum(reference: _Reference) -> str | None:
    if reference.names_a_file:
        path = Path(os.path.expanduser(reference.place))
    elif reference.kind == "policy" and reference.place:
        module = _module_file(reference.place)
        if module is None:
            return None
        path = module
    else:
        return None
    files = [path / name for name in _IN_A_FOLDER] if os.path.isdir(path) else [path]
    there = [file for file in files if os.path.isfile(file)]
    if not there:
        return None
    digest = hashlib.sha256()
    for file in there:
        digest.update(hashlib.sha256(read_bytes(file)).digest())
    return digest.hexdigest()


def _module_file(module: str) -> Path | None:
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return None
    return Path(found.origin) if found is not None and found.origin is not None else None


def listed(data: Mapping[str, Any], section: str, key: str) -> list[Any]:
    """A list in a section of a raw scenario, which need not be valid; empty where there is none."""
    inside = data.get(section)
    found = inside.get(key) if isinstance(inside, Mapping) else None
    return found if isinstance(found, list) else []


def _references(data: Mapping[str, Any]) -> Iterator[_Reference]:
    for kind, (*outer, last) in _PLACES:
        yield from _at(kind, data, outer, last, "")
    for index, entry in enumerate(listed(data, "workload", "classes")):
        for section, last in _IN_A_CLASS:
            yield from _at("trace", entry, (section,), last, f"workload.classes.{index}.")
    for index, entry in enumerate(listed(data, "cluster", "groups")):
        for kind, (*outer, last) in _IN_A_GROUP:
            yield from _at(kind, entry, outer, last, f"cluster.groups.{index}.")


def _at(kind: ReferenceKind, data: Any, keys: Sequence[str], last: str, prefix: str) -> Iterator[_Reference]:
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    if isinstance(data, dict) and isinstance(data.get(last), str) and data[last]:
        yield _Reference(kind, data, last, prefix + ".".join([*keys, last]))
