"""Where tests find files: the repository, recorded test data, and the data shared beside a checkout."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
DATA = TESTS / "data"
APP = ROOT / "dashboards" / "app.py"


def shared_data(name: str) -> Path:
    """A file or folder of ``../shared``, which is no part of the repository and may be missing."""
    return ROOT.parent / "shared" / name
