"""The house: imports run one way, heavy packages stay out, public names are what the lists say."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from paths import ROOT

# From the ground up; a room imports only itself and what is below it.
ROOMS = ("kernels", "calibration", "sim", "scenarios", "dashboards")
FILES = [(room, path) for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
# What has no business in a process that only simulates or prints help.
HEAVY = ("torch", "streamlit", "vllm", "dask", "distributed", "aiconfigurator", "gymnasium")


@functools.cache  # several tests ask for each file
def imports(path: Path) -> list[tuple[str, int, bool]]:
    """(module, line, whether inside a function or only for the type checker) of every import."""
    return list(_imports(ast.parse(path.read_text("utf-8"))))


def _imports(tree: ast.AST) -> Iterator[tuple[str, int, bool]]:
    stack = [(tree, False)]
    while stack:
        node, inside = stack.pop()
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno, inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            yield node.module or "", node.lineno, inside
            # `from draftcast import sim` names a room as well.
            yield from ((f"{node.module}.{alias.name}", node.lineno, inside) for alias in node.names)
        later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        later |= isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        stack.extend((child, inside or later) for child in ast.iter_child_nodes(node))


@pytest.mark.parametrize(("room", "path"), FILES, ids=lambda value: str(value).removeprefix(f"{ROOT}/"))
def test_imports_run_one_way(room: str, path: Path) -> None:
    above = ROOMS[ROOMS.index(room) + 1 :]
    for module, line, inside in imports(path):
        parts = module.split(".")
        assert parts[0] not in ROOMS, f"{path}:{line}: import {module} as draftcast.{module}"
        if parts[0] == "draftcast" and len(parts) > 1:
            assert parts[1] not in above, f"{path}:{line}: {room} imports {parts[1]}"
        if parts[0] == "torch":
            assert room in ("kernels", "calibration"), f"{path}:{line}: only kernels and calibration run torch"
            assert inside, f"{path}:{line}: torch belongs inside the function that needs it"


# Inside each room, from the ground up; what stands beside each other does not import each other.
FLOORS = {
    "kernels": ("model", "operators", "search work"),
    "calibration": ("profile", "acceptance engine_log microbench importers", "live"),
    "sim": ("compiled statistics", "acceptance cost", "workload", "state", "policies", "engine", "output", "cluster"),
    "scenarios": ("schema", "run", "compare", "cutover plan sweep evidence live serve", "show", "cli"),
    "dashboards": ("session", "widgets", "pages"),
}


@pytest.mark.parametrize("room", ROOMS)
def test_packages_of_a_room_import_only_from_below(room: str) -> None:
    floor = {name: number for number, names in enumerate(FLOORS[room]) for name in names.split()}
    there = {path.parent.name for path in (ROOT / room).glob("*/__init__.py")}
    assert there == set(floor), "FLOORS names every package"
    wrong = []
    for path in sorted(path for name in there for path in (ROOT / room / name).rglob("*.py")):
        own = path.relative_to(ROOT / room).parts[0]
        for module, line, _ in imports(path):
            parts = module.split(".")
            if parts[:2] == ["draftcast", room] and len(parts) > 2:
                other = parts[2]
                if other in floor and other != own and floor[other] >= floor[own]:
                    wrong.append(f"{path}:{line}: {own} imports {other}")
    assert not wrong, "\n".join(wrong)


def packages(lines: list[str]) -> set[str]:
    """Names of requirements, as they are imported."""
    names = {re.split(r"[<>=; ]", line)[0].lower().replace("-", "_") for line in lines}
    return {{"pyyaml": "yaml"}.get(name, name) for name in names}


def test_every_package_that_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    plain = packages(project["dependencies"])
    optional = plain.union(*(packages(extras[name]) for name in extras if name != "test"))
    # Two parts of a declared package that come with it, of the very version that it asks for. vLLM brings its own
    # versions of all else: its kernel is timed where it is installed.
    known = {"draftcast", "llvmlite", "pydantic_core", "vllm", *sys.stdlib_module_names}
    used = {module.split(".")[0] for _, path in FILES for module, _, _ in imports(path)}
    assert used - known <= optional
    at_once = {
        module.split(".")[0]
        for room, path in FILES
        if room != "dashboards"
        for module, _, inside in imports(path)
        if not inside
    }
    assert at_once - known <= plain | {
        "aiohttp",
        "gymnasium",
        "triton",
        "anyio",
        "starlette",
        "uvicorn",
        "uvloop",
        "prometheus_client",
    }
    assert any(re.fullmatch(r"numba>=[\d.]+,<0\.\d+", line) for line in project["dependencies"]), "a minor version"


def loaded_after(code: str) -> set[str]:
    """Top-level modules in ``sys.modules`` of a fresh process after ``code``."""
    script = f"import sys\n{code}\nprint('\\n' + ' '.join(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.splitlines()[-1].split())


HELP = """
sys.argv = ["draftcast", "--help"]
from draftcast.scenarios.cli.main import main
try:
    main()
except SystemExit as done:
    assert not done.code, done.code
"""


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import draftcast.sim", HEAVY),
        ("import draftcast.scenarios.run.simulate", HEAVY),
        (HELP, (*HEAVY, "numba", "pandas", "scipy", "simpy", "pyarrow", "numpy")),
        ("import draftcast", (*HEAVY, "numba", "pandas", "pydantic", "yaml", "numpy")),
    ],
    ids=["sim", "simulate", "help", "draftcast"],
)
def test_heavy_packages_stay_out(code: str, absent: tuple[str, ...]) -> None:
    assert not loaded_after(code) & set(absent)


def test_public_names_are_those_of_the_list() -> None:
    package = importlib.import_module("draftcast")
    assert package.__all__ == [
        "CutoverQuestion",
        "DraftcastError",
        "InputError",
        "PlanQuestion",
        "Policy",
        "RunResult",
        "Scenario",
        "__version__",
        "calibrate_to",
        "compare",
        "compare_policies",
        "compare_scenarios",
        "cutover",
        "forecast_points",
        "load_scenario",
        "plan",
        "recommend",
        "simulate",
        "sweep",
    ]


@pytest.mark.parametrize("name", ["draftcast", "draftcast.sim", "draftcast.scenarios.schema"])
def test_exported_names_exist_once(name: str) -> None:
    module = importlib.import_module(name)
    names = module.__all__
    assert len(set(names)) == len(names)
    assert set(names) <= set(dir(module))
    for each in names:
        assert getattr(module, each) is not None
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        _ = module.nothing_of_this_name
