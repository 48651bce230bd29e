"""What draftcast answered before its files were moved: makes ``data/before.json``, and says what differs from it.

``python tests/before.py`` checks everything and prints the differences, ``--write`` records anew. Only the public
surface is used (the imports below are all there is to adapt), so files may move and classes merge. Of scenarios and
commands hashes are kept, equal as long as the first nine digits are; of names (commands, options, keys, figures, test
cases) the lists, of which nothing may be lost and to which anything may be added.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import io
import json
import math
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import typing
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import before_cases
import numpy as np
import pandas as pd
import typer

import draftcast
from draftcast import InputError, load_scenario, simulate
from draftcast.scenarios import schema
from draftcast.scenarios.cli import main as cli

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "tests/data/before.json"
LIVE_TESTS = "tests/live"
NUM_SCENARIOS = 300
RUNS = ROOT / "tests/data/before_runs.tar.xz"
# Of an answer: what differs from run to run, machine to machine or (the key of a cell) with the code itself.
VOLATILE = {
    "draftcast_version",
    "python_version",
    "numpy_version",
    "created_at",
    "machine",
    "command",
    "elapsed_s",
    "key",
    # Of recorded step times: an arrival at a step's very end is in time or not by the last digit.
    "error_with_own_step_times",
    "causes",
}
INTERVAL = {"mean", "low", "high"}
# Of a key of the scenario: what may be said, and what goes unsaid.
LIMITS = {"type", "const", "enum", "default", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
# Test cases that were deleted on purpose since the record was last written -> what replaces them.
DELETED_TESTS: Mapping[str, str] = {
    f"test_the_knob_changes_a_figure[{field}]": "the sections' records are called PolicySpec, ClusterSpec, ReplicaGroup"
    for field in (
        *("Policy.name", "Policy.parameters", "Cluster.groups", "Cluster.replicas"),
        *(f"Cluster.router{number}" for number in range(4)),
        *(f"Group.{name}" for name in ("acceptance", "engine0", "engine1", "hardware", "profile", "replicas")),
    )
} | {
    "test_what_cannot_be_expressed_has_a_reason_by_field[changes11-ep: whole experts on 2 of 8 ranks]": (
        "it can be expressed: a case of test_what_runs_on_which_gpus_is_expressed"
    ),
    **dict.fromkeys(
        (
            "test_a_checkpoint_has_the_shapes_of_a_bundled_model[Qwen/Qwen3-235B-A22B-FP8-Qwen3-235B-A22B]",
            "test_a_checkpoint_has_the_shapes_of_a_bundled_model[Qwen/Qwen3-8B-FP8-Qwen3-8B]",
        ),
        "the same cases: a name that says fp8 by blocks stays",
    ),
}
_CORE_SPEED = (
    "the correction for a noisy host is gone, with its option and its keys in JSON; reports say beside each error what "
    "it is with the run's own step times"
)
# Differences that are wanted, whole lines as this script prints them -> the reason. A hash in it is checked anew.
WANTED: Mapping[str, str] = {
    "surface: options: lost: simulate --vllm-result: Path, default None": "it still works, beside --vllm-json",
    **dict.fromkeys(
        (
            "surface: options: lost: live report --ignore-core-speed: bool, default False",
            "surface: options: lost: validate --ignore-core-speed: bool, default False",
            "commands: live calibrate runs/calibration-2/off runs/calibration-8/off --json: hash: was "
            "1b56d2e470fdca1a, is eb930e78867fc68e",
            "commands: live import vllm_bench.json --out imported --json: hash: was cf33d21ca020e44b, is "
            "68443c980da45ef9",
            "commands: live import vllm_bench.json --out imported --json: keys: lost: manifest.server_cores",
            "commands: live report runs --out reported --json: hash: was f62aefadcbb07719, is 564b9db0774b01f9",
            "commands: live report runs --out reported --json: keys: lost: cells[].slowness",
            "commands: live summary reported/sweep-validation.json --out summary.json --json: hash: was "
            "8f9cb522b8351712, is 9c3300f422c2ae97",
            "commands: live summary reported/sweep-validation.json --out summary.json --json: keys: lost: steps_slower",
            "commands: validate default --live runs/concurrency-6/off --set engine.speculative_config=null "
            "--json: hash: was 04e9c0d40796ec29, is 046f917593e0042b",
            "commands: validate default --live runs/concurrency-6/off --set engine.speculative_config=null "
            "--json: keys: lost: slowness",
        ),
        _CORE_SPEED,
    ),
}


# --- Hashes -----------------------------------------------------------------------------------------------------------


def number(value: float, digits: int) -> str:
    """Text of a number, the same for numbers that differ in the last bits only; below 1e-12 it is rounding."""
    return "nan" if math.isnan(value) else f"{round(value, 12) + 0.0:.{digits}g}"


def plain(value: Any, folder: str, digits: int = before_cases.EXACT) -> Any:
    """JSON of an answer, without what depends on the place, the time or the last bits."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item, folder, digits) for key, item in value.items() if str(key) not in VOLATILE}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(item, folder, digits) for item in value]
    if isinstance(value, float | np.floating):
        return number(float(value), digits)
    if value is None or isinstance(value, bool | int | np.bool_ | np.integer):
        return None if value is None else int(value)
    text = str(value).replace(folder, "<folder>").replace(str(ROOT), "<root>")
    return re.sub(r"(\.\d{3})\d+", r"\1", text)


def hashed(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def hash_of_table(table: pd.DataFrame | None) -> str:
    """Of every column, in the order of their names."""
    if table is None:
        return "none"
    digest = hashlib.sha256(str(len(table)).encode())
    for name in sorted(map(str, table.columns)):
        column = table[name]
        if column.dtype.kind == "f":
            values, where = np.unique(column.to_numpy(float), return_inverse=True)
            texts = np.array([number(float(value), before_cases.EXACT) for value in values], dtype=object)[where]
        else:
            texts = column.astype(str).to_numpy(dtype=object)
        digest.update(f"\n{name}\n{' '.join(texts)}".encode())
    return digest.hexdigest()[:16]


# --- Scenarios --------------------------------------------------------------------------------------------------------


def write_files(folder: Path) -> None:
    """What scenarios and commands read."""
    for name, text in before_cases.FILES.items():
        (folder / name).write_text(text)
    with tarfile.open(RUNS) as archive:
        archive.extractall(folder / "runs", filter="data")


def run_scenario(overrides: tuple[str, ...], folder: str) -> dict[str, str]:
    """Hashes of a scenario's requests, steps and figures; of the refusal of one that is none."""
    changes = [change.replace("<folder>", folder) for change in (*before_cases.BASE, *overrides)]
    try:
        result = simulate(load_scenario(overrides=changes), record_steps=True)
    except InputError as error:
        return {"refused": str(error).replace(folder, "<folder>")}
    # Prediction intervals follow from these figures and from the evidence, which grows.
    measured = {name: value for name, value in result.summary.items() if name != "predicted_figures"}
    found = {"summary": measured, "state": result.state, "slo_met": result.slo_met}
    return {
        "requests": hash_of_table(result.requests),
        "steps": hash_of_table(result.steps),
        "figures": hashed(plain(found, folder)),
    }


def run_scenarios(recorded: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Every recorded scenario; without a record the first valid ones."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        write_files(Path(name))
        for scenario, overrides in before_cases.scenarios():
            if len(found) == (NUM_SCENARIOS if recorded is None else len(recorded)):
                break
            if recorded is None or scenario in recorded:
                answer = run_scenario(overrides, name)
                if "refused" not in answer or recorded is not None:
                    found[scenario] = answer
                elif not scenario.startswith("drawn"):
                    print(f"not valid: {scenario}: {answer['refused']}", file=sys.stderr)
    return found


# --- Commands ---------------------------------------------------------------------------------------------------------


def leaves(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Name and command of everything that can be called."""
    for name, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            yield from leaves(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


def run_command(line: str, folder: Path) -> tuple[int, str]:
    """Exit code and standard output of the ``draftcast`` command, run in this process in ``folder``."""
    said, errors, before, argv = io.StringIO(), io.StringIO(), Path.cwd(), sys.argv
    os.chdir(folder)
    sys.argv = ["draftcast", *shlex.split(line.replace("<root>", str(ROOT)))]
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors):
            cli.main()
        code: Any = 0
    except SystemExit as ended:
        code = ended.code
    finally:
        os.chdir(before)
        sys.argv = argv
    return int(code or 0), said.getvalue() or errors.getvalue()


def paths_of(value: Any, path: str = "") -> Iterator[str]:
    """Dotted keys of a JSON document, indices as []; a figure with its interval is one."""
    if isinstance(value, dict) and value.keys() >= INTERVAL:
        yield f"{path}: {' '.join(sorted(value))}"
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from paths_of(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value:
        for item in value:
            yield from paths_of(item, f"{path}[]")
    else:
        yield path


ANSWERS: dict[str, Any] = {}
"""What `run_commands` got, as it was printed."""


def run_commands() -> dict[str, Any]:
    """Every command line of `COMMANDS`: exit code, hash of its JSON, and the keys that no earlier line of it had."""
    found: dict[str, Any] = {}
    known: dict[str, set[str]] = {}
    with tempfile.TemporaryDirectory() as name:
        write_files(Path(name))
        for line, digits in before_cases.COMMANDS.items():
            code, text = run_command(line, Path(name))
            found[line] = {"exit": code}
            if "--json" in line:
                ANSWERS[line] = json.loads(text)
                answer = plain(ANSWERS[line], name, digits)
                seen = known.setdefault(line.split()[0], set())
                found[line] |= {"hash": hashed(answer), "keys": sorted(set(paths_of(answer)) - seen)}
                seen.update(paths_of(answer))
    return found


# --- Names ------------------------------------------------------------------------------------------------------------


def options() -> Iterator[str]:
    """Every option and argument of every command, with what is said of it."""
    for name, command in leaves(typer.main.get_command(cli.app)):
        yield name
        for parameter in command.params:
            words = "/".join([*parameter.opts, *parameter.secondary_opts])
            needed = "required" if parameter.required else f"default {parameter.default}"
            many = ", repeatable" if getattr(parameter, "multiple", False) or parameter.nargs != 1 else ""
            asked = getattr(parameter, "type_descriptor", None)  # typer's own, from 0.29 on
            kind = getattr(asked, "annotation", None)
            said = kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)
            yield f"{name} {words}: {said}, {needed}{many}"


def keys_of(model: dict[str, Any], defs: dict[str, Any], path: str) -> Iterator[str]:
    """Dotted keys of a JSON schema with their limits, choices and defaults; a choice's own keys after its name."""
    model = {**defs[model["$ref"].rpartition("/")[2]], **model} if "$ref" in model else model
    said = {key: model[key] for key in sorted(LIMITS & model.keys())}
    yield f"{path}: {json.dumps(said, sort_keys=True)}"
    required = model.get("required", ())
    for key, item in model.get("properties", {}).items():
        yield from keys_of(item, defs, f"{path}.{key}{'!' if key in required else ''}".lstrip("."))
    by_name = {ref: name for name, ref in model.get("discriminator", {}).get("mapping", {}).items()}
    for choice in (*model.get("anyOf", ()), *model.get("oneOf", ()), *model.get("prefixItems", ())):
        name = by_name.get(choice.get("$ref"), "")
        yield from keys_of(choice, defs, f"{path}({name})" if name else path)
    if isinstance(model.get("items"), dict):
        yield from keys_of(model["items"], defs, f"{path}[]")


def surface() -> dict[str, Any]:
    """All names that a user can say or be told."""
    asked = schema.Scenario.model_json_schema()
    with tempfile.TemporaryDirectory() as name:
        codes = {line: run_command(line, Path(name))[0] for line in before_cases.BAD}
    result = simulate(load_scenario(overrides=before_cases.BASE), record_steps=True)
    assert result.steps is not None
    return {
        "options": sorted(options()),
        "keys": sorted(set(keys_of(asked, asked["$defs"], ""))),
        "methods": sorted(schema.METHODS),
        "policies": sorted(schema.POLICIES),
        "routers": sorted(schema.ROUTERS),
        "figures": sorted(set(paths_of(plain(result.summary, "<folder>")))),
        "columns of requests": sorted(result.requests.columns),
        "columns of steps": sorted(result.steps.columns),
        "public names": sorted(draftcast.__all__),
        "exit codes": codes,
    }


def collected_tests(others: Sequence[str] | None = None) -> dict[str, list[str]]:
    """Parameters of every test case by the name of its function, live ones too; not in which file it is.

    ``others``: the ids of all that are not live, where they are known: collecting them again takes a while.
    """
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "vllm.py").touch()  # some live tests are collected only where vLLM is
        paths = os.pathsep.join([str(ROOT / "src"), name])
        words = [
            "-m",
            "pytest",
            "--collect-only",
            "-o",
            "addopts=",
            "--import-mode=importlib",
            "--assert=plain",
            "-q",
            "tests" if others is None else LIVE_TESTS,
        ]
        there = {**os.environ, "PYTHONPATH": paths}
        done = subprocess.run(
            [sys.executable, *words], cwd=ROOT, env=there, capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise RuntimeError(f"pytest --collect-only: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    found: dict[str, list[str]] = {}
    for line in [*done.stdout.splitlines(), *(others or [])]:
        if ".py::" in line:
            name, _, case = line.split(".py::", 1)[1].partition("[")
            cases = found.setdefault(name, [])
            if not case.endswith(".py]"):
                cases.append(case.removesuffix("]"))
            elif not cases:
                cases.append("")  # a test of every source file, and those move
    return {name: sorted(cases) if cases != [""] else [] for name, cases in found.items()}


# --- Together ---------------------------------------------------------------------------------------------------------


def lost(what: str, before: Any, now: Any) -> Iterator[str]:
    """One line for each difference: of lists what is lost, of mappings each entry, of all else another value."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key, value in before.items():
            if key in now:
                yield from lost(f"{what}: {key}", value, now[key])
            else:
                yield f"{what}: lost: {key}"
    elif isinstance(before, list) and isinstance(now, list):
        for item, times in (Counter(before) - Counter(now)).items():
            yield f"{what}: lost: {item}" + (f" ({times} times)" if times > 1 else "")
    elif before != now:
        yield f"{what}: was {before}, is {now}"


def lost_tests(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Test cases that are gone without a word in `DELETED_TESTS`, which names a case or its whole function."""

    def full(own: Mapping[str, Any]) -> Counter[tuple[str, str]]:
        return Counter((name, f"{name}[{case}]" if case else name) for name in own for case in own[name] or [""])

    gone = full(before) - full(now)
    return [f"tests: lost: {case}" for name, case in gone.elements() if not {name, case} & DELETED_TESTS.keys()]


def recorded(section: str) -> Any:
    return json.loads(RECORD.read_text())[section]


def differences(section: str, tests: Sequence[str] | None = None) -> list[str]:
    """What differs now from a section of the record: ``scenarios``, ``commands``, ``surface`` or ``tests``.

    ``tests``: the ids of all tests that are not live, where they are known.
    """
    before = recorded(section)
    if section == "tests":
        return lost_tests(before, collected_tests(tests))
    what, now = ("scenario", run_scenarios(before)) if section == "scenarios" else (section, SECTIONS[section]())
    return [line for line in lost(what, before, now) if line not in WANTED]


SECTIONS = {"scenarios": run_scenarios, "commands": run_commands, "surface": surface, "tests": collected_tests}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(SECTIONS)}; all when none is named")
    parser.add_argument("--write", action="store_true", help="record anew")
    asked = parser.parse_args()
    sections = asked.sections or list(SECTIONS)
    if asked.write:
        kept = json.loads(RECORD.read_text()) if RECORD.exists() else {}
        for section in sections:
            kept[section] = SECTIONS[section]()
            RECORD.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
        return 0
    found = [line for section in sections for line in differences(section)]
    print("\n".join([*found, f"{len(found)} differences"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
