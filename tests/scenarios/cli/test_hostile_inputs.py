"""Hostile input of every kind: an answer, or one line and exit code 2; files are opened and written in one place."""

from __future__ import annotations

import ast
import gzip
import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hostile_inputs import Target, run_one, targets
from paths import DATA, ROOT

from draftcast import files, load_scenario, simulate
from draftcast.calibration.engine_log.log import read_engine_log
from draftcast.calibration.live.run_directory import CHUNKS, REQUESTS, LiveRun, LiveRunWriter
from draftcast.calibration.live.server import EngineServer, RunningServer
from draftcast.calibration.profile.load import read_manifest
from draftcast.errors import CapacityError, InputError, LiveError, shown
from draftcast.kernels.model.catalog import load_model
from draftcast.scenarios.live.sweep import read_index
from draftcast.scenarios.sweep.cells import ResultStore
from draftcast.sim.workload.traces import read_trace

EACH = 4


@pytest.fixture(scope="module")
def kinds() -> dict[str, Target]:
    return targets()


@pytest.mark.usefixtures("rough_capacity", "sweeps_here")
@pytest.mark.parametrize("seed", range(EACH))
def test_mutated_inputs_are_read_or_refused_in_one_line(kinds: dict[str, Target], seed: int) -> None:
    for name, target in kinds.items():
        wrong = run_one(target, random.Random(f"{seed} {name}"))
        assert not wrong, f"{name}: {wrong}"


def calls_of_files(path: Path) -> list[str]:
    """Calls in a module that open, read or write a file by themselves."""
    found = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        own = isinstance(node.func, ast.Name) or ast.unparse(node.func).split(".")[0] in (
            "os",
            "gzip",
            "pq",
            "pd",
            "np",
        )
        if name in ("write_text", "write_bytes") and not own:
            found.append(f"{node.lineno} {name}")
        # What is written under a temporary name, and what is read by way of an opened file, is.
        writes = name in ("write_html", "write_image", "to_csv", "to_parquet", "write_table", "savez")
        if writes and not {"partial", "file"} & set(map(ast.unparse, node.args)):
            found.append(f"{node.lineno} {name}")
        if name in ("read_table", "read_parquet", "GzipFile") and isinstance(node.func, ast.Attribute):
            found.append(f"{node.lineno} {name}")
    return found


# A page makes bytes to download; a table's writer writes to `written`'s file, a live run's is a method that does.
OWN_WRITERS = {
    "dashboards/widgets/page.py": 2,
    "calibration/profile/table.py": 1,
    "calibration/live/record.py": 1,
    "calibration/live/run_directory.py": 1,
}


def test_files_are_written_in_one_place() -> None:
    for room in ("kernels", "calibration", "sim", "scenarios", "dashboards"):
        for path in sorted((ROOT / room).rglob("*.py")):
            place = str(path.relative_to(ROOT))
            # Written by processes of their own: the plan a load client is sent, the stamp of a cache, a temporary file.
            own = ("load.py", "server.py", "off_runs.py")
            if place in (*(f"calibration/live/{name}" for name in own), "sim/compiled/cache.py"):
                continue
            found = calls_of_files(path)
            assert len(found) <= OWN_WRITERS.get(place, 0), f"{place}: {found}"


@pytest.mark.parametrize("kind", ["fifo", "directory", "absent", "device", "name"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = {"device": Path("/dev/zero"), "name": tmp_path / ("x" * 5000)}.get(kind, tmp_path / "input")
    if kind == "fifo":
        os.mkfifo(path)
    if kind == "directory":
        path.mkdir()
    for read in (files.read_text, files.read_json, files.read_parquet, read_trace, read_engine_log, load_scenario):
        with pytest.raises(InputError) as refused:
            read(path)
        assert "\n" not in str(refused.value)
    if kind in ("fifo", "directory", "device"):
        with pytest.raises(InputError, match="exists and is not a regular file"):
            files.write_text(path, "x")


def test_a_damaged_gzip_file_is_one_line(tmp_path: Path) -> None:
    whole = gzip.compress(b"line\n" * 10_000)
    torn = bytearray(whole)
    torn[len(torn) // 2] ^= 0xFF
    for data in (whole[:-10], bytes(torn), b"\x1f\x8bnothing"):
        (tmp_path / "a.gz").write_bytes(data)
        for read in (files.read_text, read_engine_log, read_trace):
            with pytest.raises(InputError, match=r"a\.gz: damaged gzip file"):
                read(tmp_path / "a.gz")


def test_more_than_memory_holds_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"\0" * 2**24, 1))
    pq.write_table(pa.table({"a": np.zeros(1_000_000)}), tmp_path / "t.parquet")
    scenario = load_scenario(overrides=["workload.num_requests=1000", "statistics.replications=20"])

    class Memory:
        available = 10_000_000

    monkeypatch.setattr("psutil.virtual_memory", Memory)
    with pytest.raises(CapacityError, match=r"bomb\.gz: reading it takes about 0\.0 GB"):
        files.read_bytes(path)
    with pytest.raises(CapacityError, match="a table of 1,000,000 rows"):
        files.read_parquet(tmp_path / "t.parquet")
    with pytest.raises(CapacityError, match=r"workload\.num_requests: 1,000 requests x 20 replications"):
        simulate(scenario)
    timed = load_scenario(overrides=["workload.duration_s=1000", "workload.num_requests=null"])
    with pytest.raises(CapacityError, match=r"requests x 5 replications"):
        simulate(timed)


def test_values_are_shortened_in_every_error() -> None:
    for value in ("x" * 10**6, [1] * 10**6, {"a": ["x" * 1000] * 1000}, 10**20_000, b"y" * 10**6, [[[[[[[1]]]]]]]):
        text = str(InputError("must be short", key="k" * 10_000, value=value))
        assert len(text) < 500
        assert text.endswith("must be short")
    assert shown(10**5000) == "an integer of about 5001 digits"
    assert shown("short") == "'short'"
    assert str(InputError("a\x1b[31mb\nc" + "d" * 10_000)).isprintable()
    assert len(str(InputError("d" * 10_000))) <= 2000


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target, link = tmp_path / "a.csv", tmp_path / "link.csv"
    target.write_text("old")
    link.symlink_to(target)

    def stop_halfway() -> None:
        with files.written(target) as partial:
            partial.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        stop_halfway()
    with pytest.raises(LiveError, match=r"a\.csv: cannot be written"), files.written(target, LiveError):
        raise OSError(28, "No space left on device")
    assert target.read_text() == "old"
    files.write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "link.csv"]


def test_two_sweeps_begin_together_in_one_new_folder(tmp_path: Path) -> None:
    for turn in range(20):
        folder, failed, ready = tmp_path / str(turn), [], threading.Barrier(4)

        def begin(folder: Path = folder, failed: list[Any] = failed, ready: threading.Barrier = ready) -> None:
            ready.wait()
            try:
                ResultStore(folder).append([{"key": "a", "replication": 0, "x": 1.0}])
            except InputError as error:
                failed.append(error)

        threads = [threading.Thread(target=begin) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        assert ResultStore(folder).table().num_rows == 1


def test_a_folder_of_results_without_a_manifest_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "mine.parquet").write_text("")
    with pytest.raises(InputError, match="not empty"):
        ResultStore(tmp_path)
    with pytest.raises(InputError, match="not empty"):
        ResultStore(ROOT)


def iteration(step: int) -> str:
    return (
        f"Engine 000: Iteration({step}): 0 context requests, 0 context tokens, 2 generation requests, 2 generation "
        "tokens, iteration elapsed time: 1.00 ms, GPU KV cache usage: 0.2%"
    )


@pytest.mark.parametrize(
    "pieces",
    [
        (" ".join(iteration(step) for step in range(2000)), " "),  # everything on one line
        (iteration(1), "LLM engine (v1) with config: "),
        (iteration(1), "Engine 1"),
        (iteration(1), "\x1b["),
        (iteration(1) + "\n", "non-default args: "),
    ],
)
def test_an_engine_log_is_read_in_linear_time(tmp_path: Path, pieces: tuple[str, str]) -> None:
    began_s = time.monotonic()
    (tmp_path / "log").write_text(f"{pieces[0]}{pieces[1] * (3_000_000 // len(pieces[1]))}\n{iteration(2)}\n")
    assert len(read_engine_log(tmp_path / "log")) >= 1
    assert time.monotonic() - began_s < 10


def test_numbers_of_thousands_of_digits_are_no_iteration(tmp_path: Path) -> None:
    long = iteration(3).replace("2 generation requests", "9" * 5000 + " generation requests")
    (tmp_path / "log").write_text(f"{iteration(1)}\n{long}\n{iteration(2)}\n")
    frame = read_engine_log(tmp_path / "log")
    assert frame["step"].tolist() == [1, 2]
    assert frame.attrs["damaged_lines"] == 1


@pytest.mark.parametrize(
    ("table", "column", "value", "said"),
    [
        (REQUESTS, "request_id", [0, 0], "request_id = 0: the same request twice"),
        (REQUESTS, "sent_s", [0.0, -1.0], "sent_s = -1.0: must be from 0 to"),
        (REQUESTS, "finish_s", [0.0, float("inf")], "finish_s = inf: must be from 0 to"),
        (CHUNKS, "request_id", [0, 9], "request_id = 9: no such request"),
        (CHUNKS, "time_s", [0.0, float("nan")], "time_s = nan: must be a time"),
        (CHUNKS, "time_s", None, "time_s: damaged: column missing"),
    ],
)
def test_a_live_run_that_cannot_have_been_is_refused(
    tmp_path: Path, table: str, column: str, value: list[Any] | None, said: str
) -> None:
    requests = {"request_id": [0, 1], "class": ["a", "a"], "error": ["", ""], "wrong_tokens": [-1, -1]}
    requests |= {name: [0.0, 0.0] for name in ("due_s", "sent_s", "first_token_s", "finish_s")}
    requests |= {name: [1, 1] for name in ("prompt_tokens", "output_tokens_wanted", "output_tokens")}
    tables = {REQUESTS: requests, CHUNKS: {"request_id": [0, 1], "time_s": [0.0, 0.0], "tokens": [1, 1]}}
    LiveRunWriter.create(tmp_path / "run")
    for name, columns in tables.items():
        pd.DataFrame(columns).to_parquet(tmp_path / "run" / name)
    assert len(LiveRun.read(tmp_path / "run").requests) == 2
    changed = pd.DataFrame(tables[table]).drop(columns=column) if value is None else pd.DataFrame(tables[table])
    (changed if value is None else changed.assign(**{column: value})).to_parquet(tmp_path / "run" / table)
    with pytest.raises(InputError, match=said):
        LiveRun.read(tmp_path / "run")


def test_manifests_name_nothing_outside_their_folder(tmp_path: Path) -> None:
    source = DATA / "live_profile"
    text = (source / "manifest.json").read_text()
    for name in ("../profile.yaml", "/etc/passwd", "a//b", ".."):
        (tmp_path / "profile.yaml").write_bytes((source / "profile.yaml").read_bytes())
        (tmp_path / "manifest.json").write_text(text.replace('"files": {', f'"files": {{"{name}": "0",'))
        with pytest.raises(InputError, match="must be a file of this folder"):
            read_manifest(tmp_path)
    cell = '{"dir": "../other", "purpose": "", "mode": "", "load_kind": "", "incomplete_reason": "", "round": 0, '
    cell += '"order": 0, "complete": true, "load": 1}'
    (tmp_path / "index.json").write_text(f'{{"schema_version": 1, "kind": "live-sweep", "cells": [{cell}]}}')
    with pytest.raises(InputError, match="must be a folder inside of this one"):
        read_index(tmp_path)


@pytest.mark.parametrize("key", [["--api-key", "sk-1"], ["--api-key=sk-1"], ["--api_key", "sk-1", "sk-12"]])
def test_manifests_hold_no_api_key(tmp_path: Path, key: list[str]) -> None:
    words = ["vllm", "serve", "m", *key, "--port", "1"]
    with subprocess.Popen(["true"]) as keeper:
        server = EngineServer(words, {}, "http://127.0.0.1:1", tmp_path / "log", keeper)
    manifest = RunningServer("http://127.0.0.1:1", "m", "0", {}, None, server).manifest()
    assert not [word for word in manifest["command"] if "sk-1" in word]
    assert manifest["command"][-2:] == ["--port", "1"]
    assert server.command == words


def test_a_command_with_bad_input_prints_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("engine: {max_num_seqs: 0x" + "f" * 5000 + "}")
    command = [sys.executable, "-m", "draftcast", "simulate", str(path), "--set", "hardware=" + "\x1b[31m" * 500]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("draftcast: error: ")
    assert "\x1b" not in done.stderr
    assert len(done.stderr) < 2100


def test_dimensions_that_leave_a_float_are_refused(tmp_path: Path) -> None:
    config = json.loads((ROOT / "kernels/models/Llama-3.1-8B.json").read_text()) | {"vocab_size": 10**400}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="an integer <= 2147483648 is needed"):
        load_model(tmp_path)


def test_a_speaker_that_is_no_name_is_not_the_assistant(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text('[{"conversations": [{"from": ["gpt"], "tokens": 3}, {"from": "gpt", "tokens": 4}]}]')
    assert read_trace(path).prompt_tokens.tolist() == [3]
