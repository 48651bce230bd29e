"""Run directories: written whole or not at all, read back as written, never over something else."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from stored_run import read_run_directory

from draftcast import RunResult, __version__, load_scenario, simulate
from draftcast.errors import InputError, ScenarioError
from draftcast.files import plain
from draftcast.scenarios.run.run_directory import (
    check_run_directory,
    make_manifest,
    write_run_directory,
)
from draftcast.scenarios.schema.load import recorded_scenario, scenario_hash, to_mapping

REQUESTS = pd.DataFrame({"request": [0, 1], "finish_s": [1.5, math.nan], "class": ["a", "b"]})
STEPS = pd.DataFrame({"start_s": [0.0], "k": [3]})
MANIFEST = {"seed": 0}


def write(path: Path, **changes: object) -> Path:
    parts: dict[str, object] = {"manifest": MANIFEST, "summary": {"a": 1}, "requests": REQUESTS, "steps": None}
    return write_run_directory(path, **(parts | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("steps", [None, STEPS])
def test_what_is_written_is_read_back(tmp_path: Path, steps: pd.DataFrame | None) -> None:
    target = write(tmp_path / "deep" / "run", summary={"p99": np.float64(2.5), "none": math.nan}, steps=steps)
    names = {entry.name for entry in target.iterdir()}
    assert names == {"manifest.json", "summary.json", "requests.parquet"} | (
        {"steps.parquet"} if steps is not None else set()
    )
    run = read_run_directory(target)
    assert run.summary == {"p99": 2.5, "none": None}
    assert run.manifest == {"format": "draftcast-run", "format_version": 1, "seed": 0}
    pd.testing.assert_frame_equal(run.requests, REQUESTS, check_dtype=False)
    assert (run.steps is None) == (steps is None)
    assert [entry.name for entry in target.parent.iterdir()] == ["run"]  # nothing left beside it


def test_the_manifest_repeats_the_run(tmp_path: Path) -> None:
    scenario = load_scenario(overrides=["statistics.seed=7"])
    manifest = json.loads(json.dumps(make_manifest(scenario, "abc", ["draftcast", "simulate"])))
    assert load_scenario(manifest["scenario"]) == scenario
    assert manifest["scenario_hash"] == scenario_hash(scenario)
    assert manifest["profile_checksum"] == "abc"
    assert manifest["seed"] == 7
    assert manifest["draftcast_version"] == __version__
    assert manifest["numpy_version"] == np.__version__
    assert manifest["command"] == ["draftcast", "simulate"]
    write(tmp_path / "r", manifest=manifest)
    assert read_run_directory(tmp_path / "r").manifest == manifest


def test_a_manifest_names_no_folder_of_this_machine(tmp_path: Path) -> None:
    trace = tmp_path / "secret" / "trace.jsonl"
    trace.parent.mkdir()
    trace.write_text('{"timestamp": 0, "input_length": 10, "output_length": 5}\n' * 3)
    arrivals = {"process": "trace", "path": str(trace), "format": "mooncake"}
    scenario = load_scenario(overrides=[f"workload={json.dumps({'arrivals': arrivals})}"])
    command = ["/usr/bin/draftcast", "simulate", str(trace), f"--out={tmp_path}"]
    manifest = make_manifest(scenario, "abc", command)
    assert str(tmp_path) not in json.dumps(manifest)
    assert manifest["scenario"]["workload"]["arrivals"]["path"] == "trace.jsonl"
    assert set(manifest["files"]) == {"workload.arrivals.path"}
    assert manifest["command"] == ["draftcast", "simulate", "trace.jsonl", f"--out={tmp_path.name}"]


@pytest.mark.parametrize(
    ("word", "kept"),
    [
        ('workload.arrivals={"process": "trace", "path": "/home/me/a b.csv", "start_s": 1}',
         'workload.arrivals={"process": "trace", "path": "a b.csv", "start_s": 1}'),
        ("--set=workload.lengths={path: ~/traces/t.json, order: sampled}",
         "--set=workload.lengths={path: t.json, order: sampled}"),
        ('{"model":"~me/models/draft","method":"draft_model"}', '{"model":"draft","method":"draft_model"}'),
        ("policy.name=/home/me/a=b/own.py:Policy", "policy.name=own.py:Policy"),
        ("engine.model=~/models/llama", "engine.model=llama"),
        ("http://localhost:8000/v1", "http://localhost:8000/v1"),
        ('server={"url": "https://host/a?b=/c/d"}', 'server={"url": "https://host/a?b=/c/d"}'),
        ("1..20:8", "1..20:8"),
        ("relative/trace.csv", "relative/trace.csv"),
    ],
)  # fmt: skip
def test_paths_inside_a_value_stand_by_their_names(word: str, kept: str) -> None:
    assert make_manifest(load_scenario(), "abc", ["draftcast", word])["command"] == ["draftcast", kept]


def test_a_recorded_run_s_own_code_is_not_imported(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    data = to_mapping(load_scenario()) | {"policy": {"name": f"{own}:Policy"}}
    with pytest.raises(ScenarioError, match="is not imported"):
        recorded_scenario({"scenario": data}, "run")
    with pytest.raises(ScenarioError, match="must hold the scenario"):
        recorded_scenario({"scenario": 3}, "run")
    assert not (tmp_path / "ran").exists()
    assert recorded_scenario({"scenario": to_mapping(load_scenario())}, "run") == load_scenario()


def test_a_run_is_never_written_over(tmp_path: Path) -> None:
    target = tmp_path / "run"
    write(target, steps=STEPS)
    for action in (check_run_directory, write):
        with pytest.raises(InputError, match="a run is never written over"):
            action(target)
    assert read_run_directory(target).steps is not None
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]


def test_what_is_not_a_run_is_never_touched(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    assert check_run_directory(home) == home  # empty: nothing to lose
    (home / "thesis.tex").write_text("x")
    (home / "manifest.json").write_text('{"format": "something else"}')
    for action in (check_run_directory, write):
        with pytest.raises(InputError, match="directory is not empty"):
            action(home)
    assert (home / "thesis.tex").read_text() == "x"
    file = tmp_path / "file"
    file.write_text("x")
    link = tmp_path / "link"
    link.symlink_to(home)
    for place in (file, link):
        with pytest.raises(InputError, match="not a directory"):
            write(place)


def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "run"

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_parquet", full)
    with pytest.raises(InputError, match="run: cannot be written: No space left on device"):
        write(target)
    assert not list(tmp_path.iterdir())


def test_plain_is_json() -> None:
    @dataclass
    class Interval:
        low: float
        high: np.float32

    value = {
        1: Interval(-math.inf, np.float32(2)),
        "a": np.array([[1, 2]]),
        "b": (np.bool_(True), None, Path("x")),
        "c": pd.Timestamp(0),
    }
    text = json.dumps(plain(value), allow_nan=False)
    assert json.loads(text) == {
        "1": {"low": None, "high": 2.0},
        "a": [[1, 2]],
        "b": [True, None, "x"],
        "c": "1970-01-01 00:00:00",
    }


def test_a_run_of_another_version_is_not_read(tmp_path: Path) -> None:
    small = ["workload.num_requests=20", "statistics.replications=1"]
    simulate(load_scenario(overrides=small)).save(tmp_path / "run")
    manifest = tmp_path / "run" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format_version": 99}))
    with pytest.raises(InputError, match="is no run of this version"):
        RunResult.load(tmp_path / "run")
