"""The cache of compiled code is dropped when anything changes that it was compiled from, and only then."""

from __future__ import annotations

import ast
import os
import shutil
from pathlib import Path

from paths import ROOT

from draftcast.sim.compiled.cache import COMPILED, drop_stale_code, source_stamp

PACKAGE = ROOT / "src/draftcast"


def is_watched(source: Path) -> bool:
    return any(source == PACKAGE / place or PACKAGE / place in source.parents for place in COMPILED)


def is_compiled(function: ast.FunctionDef) -> bool:
    return any("njit" in ast.unparse(decorator) for decorator in function.decorator_list)


def test_what_compiled_functions_use_is_watched() -> None:
    compiled_functions = 0
    for room in ("kernels", "calibration", "sim", "scenarios", "dashboards"):
        for source in sorted((PACKAGE / room).rglob("*.py")):
            tree = ast.parse(source.read_text("utf-8"))
            functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and is_compiled(node)]
            if not functions:
                continue
            compiled_functions += len(functions)
            assert is_watched(source), source
            used = {node.id for function in functions for node in ast.walk(function) if isinstance(node, ast.Name)}
            for node in tree.body:
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("draftcast."):
                    for name in {alias.asname or alias.name for alias in node.names} & used:
                        parts = (node.module or "").split(".")[1:]
                        module = PACKAGE.joinpath(*parts)
                        assert is_watched(module) or is_watched(module.with_suffix(".py")), f"{source}: {name}"
    assert compiled_functions > 100


def test_code_is_dropped_when_a_watched_source_changes(tmp_path: Path) -> None:
    for place in COMPILED:
        path = tmp_path / place
        if path.suffix:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PACKAGE / place, path)
        else:
            shutil.copytree(PACKAGE / place, path, ignore=shutil.ignore_patterns("__pycache__"))
    cached = [tmp_path / "sim/engine/__pycache__/step.nbc", tmp_path / "calibration/profile/__pycache__/roofline.nbi"]
    for path in cached:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    assert drop_stale_code(tmp_path)
    assert not any(path.exists() for path in cached)
    for path in cached:
        path.touch()
    other = tmp_path / "calibration/live/server.py"
    other.parent.mkdir()
    other.touch()
    assert not drop_stale_code(tmp_path)
    assert all(path.exists() for path in cached)

    stamp = source_stamp(tmp_path)
    status = (tmp_path / "sim/engine/step.py").stat()
    os.utime(tmp_path / "sim/engine/step.py", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert source_stamp(tmp_path) != stamp
    assert drop_stale_code(tmp_path)
    assert not any(path.exists() for path in cached)
