"""Where tests find files: the repository, its benchmarks, recorded test data, and the data shared beside a checkout."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
DATA = TESTS / "data"
APP = ROOT / "dashboards" / "app.py"


def shared_data(name: str) -> Path:
    """A file or folder of ``../shared``, which is no part of the repository and may be missing."""
    return ROOT.parent / "shared" / name


def benchmark_module(name: str) -> ModuleType:
    """``benchmarks/NAME.py``, which is in no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
