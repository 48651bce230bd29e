"""``draftcast sweep``: what it prints and writes, its exit codes, and the example in the docs."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from paths import ROOT
from samples import SHORT_REQUESTS
from typer.testing import CliRunner

from draftcast.errors import InputError
from draftcast.scenarios.cli.main import app
from draftcast.scenarios.show.sweep_report import progress_line, time_text
from draftcast.scenarios.sweep.cells import ResultStore
from draftcast.scenarios.sweep.result import SweepProgress

DOCS = ROOT / "docs" / "sweeps.md"
SMALL = ["--set", "workload.num_requests=120", "--replications", "2", "--workers", "1"]
run = CliRunner().invoke


@pytest.mark.usefixtures("rough_capacity", "sweeps_here")
def test_the_example_of_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"<!-- run by tests -->\n```bash\n(.*?)```", DOCS.read_text("utf-8"), re.S)
    commands = [shlex.split(line) for line in block.replace("\\\n", " ").splitlines()]
    for name, *arguments in commands:
        assert name == "draftcast"
        result = run(app, arguments)
        assert result.exit_code == 0, result.output + result.stderr
    assert "Pareto" in result.stdout
    assert "0 cells computed, 6 reused from the data set" in result.stdout
    frame = pd.read_csv(tmp_path / "cells.csv")
    assert frame[["rate", "k"]].to_numpy().tolist() == [[r, k] for r in (10, 20) for k in (0, 1, 3)]
    assert (frame["mean_e2el_s"] > 0).all()
    assert frame["pareto"].any()
    assert frame["verdict"].fillna("").tolist() == ["", "pays", "pays"] * 2
    assert (frame["advantage_low"].notna() == (frame["k"] > 0)).all()
    assert "Pareto front" in (tmp_path / "pareto.html").read_text("utf-8")
    assert pd.read_parquet(tmp_path / "sweep" / "results").shape[0] == 6 * 2


@pytest.mark.usefixtures("rough_capacity", "sweeps_here")
def test_json_and_cells_without_figures(tmp_path: Path) -> None:
    arguments = ["default", "--grid", "k=3,65", "--grid", "rate=10,20", *SMALL, "--out", str(tmp_path / "set")]
    result = run(app, ["sweep", *arguments, "--seed", "4", "--json"])
    assert result.exit_code == 7
    answer = json.loads(result.stdout)
    assert [(cell["values"], cell["state"] == "error") for cell in answer["cells"]] == [
        ({"k": k, "rate": rate}, k == 65) for k in (3, 65) for rate in (10, 20)
    ]
    assert (answer["computed"], answer["reused"], answer["errors"], answer["complete"]) == (2, 0, 2, True)
    good = answer["cells"][0]
    assert good["verdict"] == "pays"
    assert good["advantage"]["low"] > 1
    assert good["figures"]["mean_e2el_s"]["low"] < good["figures"]["mean_e2el_s"]["mean"]
    assert "must be at most 64" in answer["cells"][2]["error"]
    # One line for an error, however many cells have it.
    named = [line for line in result.stderr.splitlines() if "no figures" in line]
    assert len(named) == 1
    assert "k=65, rate=10; k=65, rate=20: " in named[0]
    (row,) = {row["scenario"] for row in ResultStore(tmp_path / "set").rows([good["key"]])[good["key"]]}
    assert json.loads(row)["statistics"]["seed"] == 4


@pytest.mark.usefixtures("rough_capacity", "sweeps_here")
def test_what_the_cells_assume_is_said_once(tmp_path: Path) -> None:
    arguments = ["sweep", "default", "--grid", "k=0,9", "--grid", "rate=10,20", *SMALL, "--out", str(tmp_path / "set")]
    note = "acceptance is known for 3 drafts; beyond, the last conditional rate goes on"
    assert run(app, arguments).stdout.count(f"note: {note}") == 1
    kept = json.loads(run(app, [*arguments, "--json"]).stdout)
    assert kept["reused"] == 4
    assert kept["notes"].count(note) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--grid", "rate"], "--grid: 'rate': must look like"),
        (["--grid", "enigne=1"], "unknown key"),
        (["--grid", "k=0", "--csv", "/no/such/folder/cells.csv"], "--csv: '/no/such/folder/cells.csv': must be a file"),
        (["--grid", "k=0", "--plot", "."], "--plot: '.': must be a file"),
        (["--grid", "k=0", "--plot", "{out}.html", "--metric", "nonsense"], "--metric: 'nonsense': no such figure"),
        (["--grid", "k=0", "--out", "{out}/file"], "exists and is not a directory"),
        (["--grid", "k=0", "--plot", "{out}/p.bmp"], "must end in .html"),
        (["--grid", "k=0", "--metric", "p99_ttft_s"], "--metric: 'p99_ttft_s': is drawn by --plot"),
    ],
)
@pytest.mark.usefixtures("rough_capacity", "sweeps_here")
def test_bad_input_is_one_line(tmp_path: Path, arguments: list[str], said: str) -> None:
    (tmp_path / "file").write_text("")
    filled = [argument.format(out=tmp_path) for argument in arguments]
    out = [] if "--out" in filled else ["--out", str(tmp_path / "set")]
    result = run(app, ["sweep", "default", *SMALL, *out, *filled])
    assert isinstance(result.exception, InputError)
    assert said in str(result.exception)
    assert ("1 cells computed" in result.stdout) == ("nonsense" in arguments)  # of what was computed nothing is lost


def test_ctrl_c_keeps_what_is_done_and_exits_with_130(tmp_path: Path) -> None:
    out = tmp_path / "set"
    small = ["--set", "workload.num_requests=1500", "--replications", "2", "--workers", "2"]
    small += ["--set", f"workload.lengths={SHORT_REQUESTS}"]
    arguments = ["default", "--grid", "seed=0..49", *small, "--out", str(out)]
    # A shell starts background jobs with SIGINT ignored, and that would be inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [sys.executable, "-m", "draftcast", "sweep", *arguments], stderr=subprocess.PIPE, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while len(list(out.glob("results/[!.]*.parquet"))) < 2:
        assert time.monotonic() < deadline, "no cell was finished"
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to everyone in the foreground
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "Traceback" not in said.decode()
    assert f"finished cells are in {out}" in said.decode()
    assert 2 <= len(set(ResultStore(out).table()["key"].to_pylist())) < 50


def test_progress_says_how_much_time_is_left() -> None:
    now = SweepProgress(total=200, done=50, reused=10, failed=2, elapsed_s=30.0, left_s=3909.0, workers=2)
    assert progress_line(now) == "50 of 200 cells, 2 without figures, 1:05:09 left"
    waiting = SweepProgress(total=4, done=0, reused=0, failed=0, elapsed_s=30.0, left_s=None, workers=0)
    assert progress_line(waiting) == "0 of 4 cells, no workers yet"
    assert time_text(61.4) == "1:01"


@pytest.mark.usefixtures("rough_capacity", "sweeps_here")
def test_a_sweep_no_cell_of_which_keeps_up_says_so_by_its_exit_code(tmp_path: Path) -> None:
    several = [*SMALL, "--set", "workload.num_requests=400", "--out", str(tmp_path / "set")]
    assert run(app, ["sweep", "default", "--grid", "rate=500,600", *several]).exit_code == 4
    assert run(app, ["sweep", "default", "--grid", "rate=10,500", *several]).exit_code == 0
