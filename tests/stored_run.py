"""A run directory as ``draftcast simulate --out`` wrote it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd


class StoredRun(NamedTuple):
    """The same four parts that were written."""

    manifest: dict[str, Any]
    summary: dict[str, Any]
    requests: pd.DataFrame
    steps: pd.DataFrame | None


def read_run_directory(folder: Path) -> StoredRun:
    steps = folder / "steps.parquet"
    return StoredRun(
        json.loads((folder / "manifest.json").read_text()),
        json.loads((folder / "summary.json").read_text()),
        pd.read_parquet(folder / "requests.parquet"),
        pd.read_parquet(steps) if steps.exists() else None,
    )
