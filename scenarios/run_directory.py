"""A run on disk: ``manifest.json``, ``summary.json``, ``requests.parquet`` and, when recorded, ``steps.parquet``.

A directory is written beside its final place and renamed into it, so it is there whole or not at all. An existing run
is replaced; a directory that is not a run is never touched. Knows nothing of what the columns mean.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftcast import __version__
from draftcast.errors import InputError
from draftcast.scenarios.load import scenario_hash, to_mapping
from draftcast.scenarios.schema import Scenario

if TYPE_CHECKING:
    import pandas as pd

MANIFEST, SUMMARY, REQUESTS, STEPS = "manifest.json", "summary.json", "requests.parquet", "steps.parquet"
FORMAT = "draftcast-run"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class StoredRun:
    """What ``read_run_directory`` found; the same four parts that were written."""

    manifest: dict[str, Any]
    summary: dict[str, Any]
    requests: pd.DataFrame
    steps: pd.DataFrame | None


def make_manifest(scenario: Scenario, profile_checksum: str, command: Sequence[str] | None = None) -> dict[str, Any]:
    """What repeats a run: the scenario and its hash, the profile's checksum, the seed, versions, the command line."""
    import numpy as np

    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "draftcast_version": __version__,
        "scenario": to_mapping(scenario),
        "scenario_hash": scenario_hash(scenario),
        "profile_checksum": profile_checksum,
        "seed": scenario.statistics.seed,
        "python_version": platform.python_version(),
        "numpy_version": np.__version__,
        "command": list(sys.argv if command is None else command),
    }


def plain(value: Any) -> Any:
    """``value`` as JSON can hold it: numpy scalars as numbers, tuples as lists, dataclasses as objects, NaN as null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def check_target(path: str | Path) -> Path:
    """``path`` as a Path if a run may be written there; call it before a long simulation.

    Raises:
        InputError: it is a file, or a directory with something in it that is not a run.
    """
    target = Path(path)
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise InputError("exists and is not a directory", file=str(target))
    if target.is_dir() and any(target.iterdir()) and not _is_run(target):
        raise InputError("directory is not empty and not a run of draftcast; name another one", file=str(target))
    if not os.access(_existing_parent(target), os.W_OK):
        raise InputError("no permission to write here", file=str(target))
    return target


def write_run_directory(
    path: str | Path,
    *,
    manifest: Mapping[str, Any],
    summary: Mapping[str, Any],
    requests: pd.DataFrame,
    steps: pd.DataFrame | None = None,
) -> Path:
    """Write a run so that it appears whole or not at all; an older run at ``path`` is replaced.

    Raises:
        InputError: see ``check_target``; or the disk refused, and nothing is left behind.
    """
    target = check_target(path)
    aside = target.with_name(f".{target.name}.{os.getpid()}.old")
    fresh = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        fresh.mkdir(parents=True)
        _write_json(fresh / MANIFEST, {"format": FORMAT, "format_version": FORMAT_VERSION, **manifest})
        _write_json(fresh / SUMMARY, summary)
        requests.to_parquet(fresh / REQUESTS, index=False)
        if steps is not None:
            steps.to_parquet(fresh / STEPS, index=False)
        if target.exists():
            target.rename(aside)
        try:
            fresh.rename(target)
        except OSError:
            if aside.exists():
                aside.rename(target)
            raise
    except OSError as error:
        raise InputError(f"cannot write the run: {error.strerror or error}", file=str(target)) from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        if target.exists():
            shutil.rmtree(aside, ignore_errors=True)
    return target


def read_run_directory(path: str | Path) -> StoredRun:
    """A run written by ``write_run_directory``.

    Raises:
        InputError: not a run, a newer format, or a part that is missing or damaged.
    """
    import pandas as pd

    folder = Path(path)
    if not _is_run(folder):
        raise InputError(f"not a run of draftcast: no {MANIFEST} with format {FORMAT}", file=str(folder))
    manifest = _read_json(folder / MANIFEST)
    if manifest.get("format_version") != FORMAT_VERSION:
        raise InputError(
            f"written by another version; this one reads {FORMAT_VERSION}",
            file=str(folder / MANIFEST),
            key="format_version",
            value=manifest.get("format_version"),
        )
    summary = _read_json(folder / SUMMARY)
    tables: list[pd.DataFrame | None] = []
    for name in (REQUESTS, STEPS):
        if name == STEPS and not (folder / name).exists():
            tables.append(None)
            continue
        try:
            tables.append(pd.read_parquet(folder / name))
        except (OSError, ValueError) as error:
            raise InputError(f"damaged or missing: {error}", file=str(folder / name)) from None
    requests, steps = tables
    assert requests is not None
    return StoredRun(manifest, summary, requests, steps)


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(plain(data), indent=2, allow_nan=False) + "\n", "utf-8")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"damaged or missing: {error}", file=str(path)) from None
    if not isinstance(data, dict):
        raise InputError("damaged: not a JSON object", file=str(path))
    return data


def _is_run(folder: Path) -> bool:
    try:
        return bool(json.loads((folder / MANIFEST).read_text("utf-8")).get("format") == FORMAT)
    except (OSError, ValueError, AttributeError):
        return False


def _existing_parent(path: Path) -> Path:
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path
