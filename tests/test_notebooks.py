"""The notebooks run from the first cell to the last, each in a fresh process, and hold no outputs."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT
from samples import SHORT_REQUESTS

NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))


def code(notebook: dict[str, Any]) -> list[str]:
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def shown(cell: str) -> str:
    """The cell, with the value of its last line printed as a notebook shows it."""
    tree = ast.parse(cell)
    if isinstance(tree.body[-1], ast.Expr):
        last = ast.unparse(tree.body.pop())
        return f"{ast.unparse(tree)}\n_value = {last}\nprint(type(_value).__name__, repr(_value)[:200])"
    return cell


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["capacity-plan", "first-answer", "own-policy"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    notebook = json.loads(path.read_text("utf-8"))
    for cell in notebook["cells"]:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None
    whole = "\n".join(map(shown, code(notebook)))
    quick, changed = re.subn(
        r"^\(?REQUESTS, REPLICATIONS\)? = .*$", "REQUESTS, REPLICATIONS = 200, 2", whole, flags=re.M
    )
    assert changed == 1
    # Of short requests: their capacities and cutovers are found in a tenth of the time.
    quick, changed = re.subn(r"^size = \[", f'size = ["workload.lengths={SHORT_REQUESTS}", ', quick, flags=re.M)
    assert changed == 1
    script = tmp_path / "notebook.py"
    script.write_text(f"import rough_capacity\n\nrough_capacity.take_rough_capacities()\n{quick}")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT / "tests")))}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Figure " in done.stdout
