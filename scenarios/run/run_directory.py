"""A run on disk: ``manifest.json``, ``summary.json``, ``requests.parquet`` and, when recorded, ``steps.parquet``.

A directory is written beside its final place and renamed into it, so it is there whole or not at all. A directory with
anything in it is never touched: no run replaces another. Knows nothing of what the columns mean.
"""

import json
import os
import platform
import re
import shutil
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from draftcast import __version__
from draftcast.errors import InputError
from draftcast.files import plain, without_secrets, write_text, written
from draftcast.scenarios.schema import Scenario, to_mapping
from draftcast.scenarios.schema.load import scenario_hash
from draftcast.scenarios.schema.references import without_folders

MANIFEST, SUMMARY, REQUESTS, STEPS = "manifest.json", "summary.json", "requests.parquet", "steps.parquet"
FORMAT = "draftcast-run"
FORMAT_VERSION = 1
_ABSOLUTE = r"(?:~[\w.-]*)?/"
_URL_OR_PATH = re.compile(rf"""\w+://[^\s"']*|(?:(?<=[\s"'=,\[{{(])|(?<=["']:)){_ABSOLUTE}[^"',\]}}]*""")


def make_manifest(scenario: Scenario, profile_checksum: str, command: Sequence[str] | None = None) -> dict[str, Any]:
    """What repeats a run: scenario, hashes, seed, versions and command line. It names no folder of this machine: files
    stand by their names, with the sha256 of their content in ``files``.
    """
    data = to_mapping(scenario)
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "draftcast_version": __version__,
        "scenario": data,
        "files": without_folders(data),
        "scenario_hash": scenario_hash(scenario),
        "profile_checksum": profile_checksum,
        "seed": scenario.statistics.seed,
        "python_version": platform.python_version(),
        "numpy_version": np.__version__,
        "command": [_without_folder(word) for word in without_secrets(sys.argv if command is None else command)],
    }


def _without_folder(word: str) -> str:
    """A word of a command line in which files stand by their names, also inside YAML and JSON; URLs stay."""
    keys, value = re.fullmatch(r"((?:[\w.-]+=)*)(.*)", word, re.DOTALL).groups()  # type: ignore[union-attr]
    if re.match(_ABSOLUTE, value):
        return f"{keys}{Path(value).name}"
    return keys + _URL_OR_PATH.sub(lambda match: match[0] if "://" in match[0] else Path(match[0]).name, value)


def check_run_directory(path: str | Path) -> Path:
    """``path`` if a run may be written there; ask before a long simulation. Raises InputError: a file, or not empty."""
    target = Path(path)
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise InputError("exists and is not a directory", file=str(target))
    if target.is_dir() and any(target.iterdir()):
        raise InputError("directory is not empty; a run is never written over, name another one", file=str(target))
    places = (target.absolute(), *target.absolute().parents)
    if not os.access(next(place for place in places if place.exists()), os.W_OK):
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
    """Write a run whole or not at all. Raises InputError: as of `check_run_directory`, or the disk refused."""
    target = check_run_directory(path)
    fresh = target.absolute().with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        fresh.mkdir(parents=True)
        manifest = {"format": FORMAT, "format_version": FORMAT_VERSION, **manifest}
        for name, data in ((MANIFEST, manifest), (SUMMARY, summary)):
            write_text(fresh / name, json.dumps(plain(data), indent=2, allow_nan=False) + "\n")
        for name, table in ((REQUESTS, requests), (STEPS, steps)):
            if table is not None:
                with written(fresh / name) as partial:
                    table.to_parquet(partial, index=False)
        fresh.rename(target)  # onto nothing or an empty directory: the system refuses any other
    except InputError as error:
        raise error.at(file=str(target)) from None
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", file=str(target)) from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return target
