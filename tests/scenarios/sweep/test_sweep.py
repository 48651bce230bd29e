"""Sweeps on this machine: every cell once, the same wherever it ran, whatever is killed on the way."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from paths import ROOT

from draftcast.errors import InputError
from draftcast.scenarios.compare.capacity import capacity
from draftcast.scenarios.compare.comparison import compare
from draftcast.scenarios.compare.verdict import judge
from draftcast.scenarios.run.deployment import deploy
from draftcast.scenarios.run.kept import AnswerCache
from draftcast.scenarios.run.simulate import simulate_together
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.changes import changed
from draftcast.scenarios.schema.load import load_scenario, with_values, without_speculation
from draftcast.scenarios.show.sweep_report import sweep_rows
from draftcast.scenarios.sweep.cells import ResultStore, address_of, code_digest, run_task, task_of
from draftcast.scenarios.sweep.result import SweepCell, pareto_front
from draftcast.scenarios.sweep.run import SweepProgress, sweep

FEW = ["workload.num_requests=120", "statistics.replications=2"]
# A capacity of short requests is found in a tenth of the time.
SMALL = [*FEW, "workload.lengths={prompt_tokens: 64, output_tokens: {distribution: geometric, mean: 16}}"]


@pytest.fixture(scope="module")
def base() -> Scenario:
    return load_scenario("default", overrides=SMALL)


@pytest.fixture(scope="module")
def chat() -> Scenario:
    """With the default's lengths: at most some 73 requests a second."""
    return load_scenario("default", overrides=FEW)


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the caller's own, which a sweep leaves alone."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        assert process.poll() is None
        process.kill()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(condition: Callable[[], Any], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


def text(rows: Any) -> str:
    """Rows to be compared to the last bit, undefined figures included."""
    return json.dumps(rows, sort_keys=True)


def test_cells_are_what_simulate_gives_though_a_worker_was_killed(
    base: Scenario,
    tmp_path: Path,
    bystander: subprocess.Popen[bytes],
    children: Callable[..., list[int]],
    request: pytest.FixtureRequest,
) -> None:
    grid = {"rate": [5.0, 20.0], "k": [0, 1, 3]}
    killed: list[int] = []
    seen: list[SweepProgress] = []

    def progress(now: SweepProgress) -> None:
        seen.append(now)
        if now.done and not killed:
            killed.append(children()[-1])
            assert b"sweep.workers" in Path(f"/proc/{killed[0]}/cmdline").read_bytes()
            os.kill(killed[0], signal.SIGKILL)

    result = sweep(base, grid, folder=tmp_path / "set", workers=2, progress=progress)
    assert killed
    assert (result.computed, result.reused, result.complete, result.errors) == (6, 0, True, ())
    assert [tuple(cell.values.values()) for cell in result.cells] == [(r, k) for r in grid["rate"] for k in grid["k"]]
    assert (seen[0].done, seen[0].left_s, seen[-1].done, seen[-1].left_s) == (0, None, 6, 0.0)
    assert [now.done for now in seen] == sorted(now.done for now in seen)
    assert any(now.left_s for now in seen)
    assert not children()
    assert {now.workers for now in seen} <= {0, 1, 2}
    assert seen[-1].workers == 2

    kept = ResultStore(tmp_path / "set").rows(cell.key for cell in result.cells)
    for cell in result.cells:
        here = run_task(task_of(changed(base, cell.values)))
        assert here.key == cell.key
        assert text(kept[cell.key]) == text(list(here.rows))
    last = result.cells[-1]
    asked = changed(base, last.values)
    plain, off = simulate_together([asked, without_speculation(asked)])
    assert text(list(last.replications)) == text([dict(r) for r in plain.replications])
    assert last.figures["mean_e2el_s"] == plain.summary["figures"]["mean_e2el_s"]
    verdict = judge(asked, plain, off)
    assert (last.state, last.verdict, last.advantage) == (verdict.on.state, verdict.word, verdict.advantage)
    (row, *_) = kept[last.key]
    assert {f"engine_{name}": float(value) for name, value in plain.summary["engine"].items()}.items() <= row.items()

    # The same again computes nothing; a larger grid only what is new.
    again = sweep(base, grid, folder=tmp_path / "set", workers=1)
    assert (again.computed, again.reused) == (0, 6)
    # Figures stand in the order in which they were read or computed.
    pd.testing.assert_frame_equal(again.frame(), result.frame(), check_like=True, check_exact=True)
    request.getfixturevalue("sweeps_here")
    more = sweep(base, {**grid, "k": [0, 1, 2, 3]}, folder=tmp_path / "set", workers=1)
    assert (more.computed, more.reused) == (2, 6)


def test_a_killed_sweep_goes_on_and_repeats_nothing(
    base: Scenario, tmp_path: Path, children: Callable[..., list[int]]
) -> None:
    grid = ["rate=4..40:5", "k=1,3"]
    folder = tmp_path / "set"
    program = f"""
from draftcast.scenarios.schema.load import load_scenario
from draftcast.scenarios.sweep.run import sweep
asked = load_scenario("default", overrides={[*SMALL, "workload.num_requests=4000"]})
sweep(asked, {grid}, folder="{folder}", workers=2)
"""
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        until(lambda: len(list((folder / "results").glob("[!.]*.parquet"))) >= 3)
        workers = children(process.pid)
        assert len(workers) == 2
    finally:
        process.kill()
        process.wait()
    until(lambda: not any(is_alive(pid) for pid in workers))  # nobody goes on in the dark
    stored = ResultStore(folder)
    finished = set(stored.table()["key"].to_pylist())
    assert 3 <= len(finished) < 10
    before = stored.rows(finished)

    asked = with_values(base, {"workload.num_requests": 4000})
    result = sweep(asked, grid, folder=folder, workers=2)
    assert (result.reused, result.computed) == (len(finished), 10 - len(finished))
    assert result.complete
    assert not result.errors
    assert stored.table().num_rows == 20
    assert text(stored.rows(finished)) == text(before)


def test_stopping_keeps_what_is_done(
    base: Scenario, tmp_path: Path, bystander: subprocess.Popen[bytes], children: Callable[..., list[int]]
) -> None:
    done: list[int] = []
    grid = {"seed": list(range(8))}
    result = sweep(
        base,
        grid,
        folder=tmp_path / "set",
        workers=1,
        progress=lambda now: done.append(now.done),
        stop=lambda: bool(done) and done[-1] >= 2,
    )
    assert not result.complete
    assert 2 <= result.computed < 8
    states = [cell.state for cell in result.cells]
    assert states.count("not run") == 8 - result.computed
    assert not result.errors
    assert not children()
    assert sweep(base, grid, folder=tmp_path / "set", workers=1, stop=lambda: True).reused == result.computed


POLICIES = """
import os

from draftcast.sim import Policy


class Fatal(Policy):
    def decide(self, batch):
        print("not part of the answer")
        os._exit(77)


class Broken(Policy):
    def decide(self, batch):
        raise ZeroDivisionError("no such thing")
"""


def test_one_cell_s_error_is_not_the_others(base: Scenario, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(POLICIES)
    grid = {
        "policy": ["fixed", f"{tmp_path}/own.py:Fatal", f"{tmp_path}/own.py:Broken"],
        # The last cannot be loaded: not a roofline's name.
        "profile": [None, "no-such-profile"],
    }
    result = sweep(base, grid, folder=tmp_path / "set", workers=1)
    good, unknown, fatal, _, broken, _ = result.cells
    assert good.state == "steady"
    assert good.figures["mean_e2el_s"].mean > 0
    assert "no-such-profile" in unknown.error
    assert fatal.error == "its worker died 3 times (exit code 77)"
    assert "ZeroDivisionError: no such thing" in broken.error
    assert [cell.state for cell in result.cells[1:]] == ["error"] * 5
    # What another try may change is not kept; the input's own errors need none.
    assert set(ResultStore(tmp_path / "set").table()["key"].to_pylist()) == {good.key}
    assert result.computed == 1
    assert len(result.errors) == 5
    with pytest.raises(InputError, match="no point of the grid can be asked"):
        sweep(base, {"profile": ["no-such-profile"]}, folder=tmp_path / "set")


@pytest.mark.usefixtures("rough_capacity", "sweeps_here")
def test_an_error_that_the_input_has_is_kept(base: Scenario, tmp_path: Path) -> None:
    # 8 GB of weights on a device with so much of its memory to use.
    grid = {"engine.gpu_memory_utilization": [0.05, 0.9]}
    result = sweep(base, grid, folder=tmp_path / "set", workers=1)
    assert "memory" in result.cells[0].error
    assert not result.cells[1].error
    assert result.frame()["state"].tolist() == ["error", result.cells[1].state]
    again = sweep(base, grid, folder=tmp_path / "set", workers=1)
    assert (again.reused, again.computed) == (2, 0)
    assert again.cells[0].error == result.cells[0].error


def test_the_address_takes_all_that_changes_a_figure(base: Scenario, tmp_path: Path) -> None:
    key = address_of(base).key
    assert address_of(with_values(base, {"name": "another name"})).key == key
    changes: dict[str, Any] = {
        "statistics.seed": 1,
        "statistics.replications": 3,
        "workload.num_requests": 121,
        "profile": "default",
        "hardware": "h200",
    }
    assert len({address_of(with_values(base, {k: v})).key for k, v in changes.items()} - {key}) == len(changes)
    # A file that a scenario names counts by its content.
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,374,44\n")
    traced = load_scenario("default", trace=trace)
    before = task_of(traced)
    trace.write_text(trace.read_text() + "2023-11-16 18:17:04.0319600,396,109\n")
    assert address_of(traced).key != before.address.key
    # A worker that sees another file, or runs other code, refuses.
    assert "another state of: files it names" in run_task(before).failure
    profile = tmp_path / "own.yaml"
    profile.write_text((ROOT / "calibration/profiles/default.yaml").read_text())
    own = with_values(base, {"profile": str(profile)})
    first = address_of(own)
    profile.write_text(profile.read_text().replace("cuda_graph_ceiling: 512", "cuda_graph_ceiling: 496"))
    os.utime(profile, ns=(0, 0))
    assert address_of(own).profile != first.profile
    assert len(code_digest()) == 64


@pytest.mark.usefixtures("rough_capacity")
def test_a_worker_resolves_an_engine_once(base: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolved: list[Scenario] = []
    base = with_values(base, {"statistics.model_error": "none"})  # else other profiles of the GPU are resolved too

    def counted(scenario: Scenario) -> Any:
        resolved.append(scenario)
        return deploy(scenario)

    monkeypatch.setattr("draftcast.scenarios.run.deployment.deploy", counted)
    monkeypatch.setattr("draftcast.scenarios.run.deployment.deployments", AnswerCache(4))
    policy = tmp_path / "own.py"
    policy.write_text(POLICIES.replace("os._exit(77)", "return 1"))
    other = with_values(base, {"policy": {"name": f"{policy}:Fatal"}})
    loads = ({"rate": 5.0}, {"rate": 10.0}, {"concurrency": 4, "replicas": 2, "seed": 3, "requests": 100})
    cells = [*(changed(base, load) for load in loads), changed(other, {"rate": 5.0}), changed(base, {"k": 1})]
    outcomes = [run_task(task_of(cell)) for cell in cells]
    assert len(resolved) == 5  # three that speculate, and without speculation one for each policy
    for cell, outcome in zip(cells, outcomes, strict=True):
        on, _ = simulate_together([cell, without_speculation(cell)])
        assert [row["mean_e2el_s"] for row in outcome.rows] == [r["mean_e2el_s"] for r in on.replications]
    # An edited file is another engine, and others push the oldest out.
    policy.write_text(policy.read_text().replace("return 1", "return 2"))
    edited = run_task(task_of(cells[3]))
    assert edited.key != outcomes[3].key
    resolved.clear()
    for k in (1, 2, 3):
        run_task(task_of(changed(base, {"k": k, "tp": 2})))
    assert len(resolved) == 4
    run_task(task_of(cells[4]))
    assert len(resolved) == 6


@pytest.mark.usefixtures("rough_capacity", "sweeps_here")
def test_points_that_ask_the_same_question_are_run_once(base: Scenario) -> None:
    result = sweep(base, {"method": ["off", "eagle3"], "k": [0, 2]}, workers=1)
    assert result.computed == 2
    assert result.folder is None
    assert result.cells[0].key == result.cells[1].key == result.cells[2].key != result.cells[3].key
    assert result.cells[0].figures == result.cells[2].figures


@pytest.mark.usefixtures("rough_capacity", "sweeps_here")
def test_every_cell_that_speculates_has_the_verdict_of_simulate(chat: Scenario) -> None:
    # Cells without speculation or not: each that speculates is compared with its own runs without.
    asked = with_values(chat, {"workload.num_requests": 2000})
    result = sweep(asked, {"rate": [10.0, 72.0, 400.0], "k": [0, 3]}, workers=2)
    cells = {tuple(cell.values.values()): cell for cell in result.cells}
    texts = {tuple(cell.values.values()): row[-2] for cell, row in sweep_rows(result)}
    assert [cells[rate, 0].verdict for rate in (10.0, 72.0, 400.0)] == ["", "", ""]
    assert texts[10.0, 0] == ""
    assert cells[10.0, 3].verdict == "pays"
    advantage = cells[10.0, 3].advantage
    assert advantage is not None
    assert 1 < advantage.low < advantage.mean < advantage.high
    assert texts[10.0, 3].startswith(f"pays: {advantage.mean:.2f} ±")
    # With speculation the cluster completes at most some 67 requests/s, without 73 to 75.
    assert (cells[72.0, 3].state, texts[400.0, 3]) == ("overloaded", "overloaded: both sides are overloaded")
    assert cells[72.0, 3].figures == {}
    saturated = capacity(changed(asked, {"rate": 72.0, "k": 3}), 72.0)
    assert saturated is not None
    assert cells[72.0, 3].capacity_rps == saturated.estimate.mean
    # Its figures have the prediction intervals of `compare`.
    own = compare(changed(asked, {"rate": 10.0, "k": 3})).points[0].side
    known = dict(cells[10.0, 3].predicted_figures)
    user, gpu = known.pop("tokens_per_s_per_user"), known.pop("tokens_per_s_per_gpu")
    bounds = ({name: (each.low, each.high) for name, each in found.items()} for found in (known, own.predicted_figures))
    assert next(bounds) == next(bounds)
    tpot, emitted = known["mean_tpot_s"], known["output_throughput"]
    assert (user.low, user.high) == pytest.approx((1 / tpot.high, 1 / tpot.low), rel=0.01)
    assert gpu == emitted
    assert tpot.half_width > 2 * cells[10.0, 3].figures["mean_tpot_s"].half_width
    frame = result.frame().set_index(["rate", "k"])
    assert frame.loc[(10.0, 3), "mean_tpot_s_low"] == tpot.low
    assert frame.loc[(10.0, 3), "advantage_low"] == advantage.low
    assert frame.loc[(400.0, 3), ["advantage", "mean_e2el_s"]].isna().all()
    # The same without the cells that do not speculate.
    alone = sweep(asked, {"rate": [10.0], "k": [3]}, workers=1)
    assert repr(dataclasses.replace(alone.cells[0], values=cells[10.0, 3].values)) == repr(cells[10.0, 3])
    assert text(list(alone.cells[0].replications)) == text(list(cells[10.0, 3].replications))


def test_a_time_that_may_be_nearly_nothing_has_no_largest_rate(base: Scenario) -> None:
    task = task_of(with_values(base, {"statistics.replications": 2}))
    rows = [row | {"predicted_mean_tpot_s_low": 0.0} for row in run_task(task).rows]
    user = SweepCell.of(task.address.key, rows).predicted_figures["tokens_per_s_per_user"]
    assert 0.0 < user.low < user.mean < user.high == math.inf


@pytest.mark.usefixtures("rough_capacity", "sweeps_here")
def test_what_another_version_kept_is_computed_anew(base: Scenario, tmp_path: Path) -> None:
    # Its rows lack the verdict; they stay in the data set under the address of that version's code.
    task = task_of(with_values(base, {"engine.speculative_config.num_speculative_tokens": 1}))
    old = dataclasses.replace(task.address, code="0" * 64)
    row = {"key": old.key, "replication": 0, "status": "done", "unstable": False, "steady": True, "mean_e2el_s": 9.0}
    store = ResultStore(tmp_path / "set")
    store.append([row])
    result = sweep(base, {"k": [1]}, folder=tmp_path / "set", workers=1)
    assert (result.computed, result.reused) == (1, 0)
    assert result.cells[0].verdict == "pays"
    assert {*store.table()["key"].to_pylist()} == {old.key, task.address.key}
    assert sweep(base, {"k": [1]}, folder=tmp_path / "set").reused == 1


@pytest.mark.usefixtures("rough_capacity", "sweeps_here")
def test_pareto_front_leaves_out_what_is_overloaded(chat: Scenario) -> None:
    # 400 requests a second are beyond this server, on one GPU and on two.
    asked = with_values(chat, {"workload.num_requests": 800, "statistics.replications": 1})
    result = sweep(asked, {"rate": [5.0, 400.0], "tp": [1, 2]}, workers=1)
    cells = {tuple(cell.values.values()): cell for cell in result.cells}
    tp1, tp2 = cells[5.0, 1], cells[5.0, 2]
    assert [cell.num_gpus for cell in (tp1, tp2)] == [1, 2]
    per_gpu = [cell.figures["tokens_per_s_per_gpu"].mean for cell in (tp1, tp2)]
    output = [cell.figures["output_throughput"].mean for cell in (tp1, tp2)]
    assert per_gpu == [output[0], output[1] / 2]
    assert tp1.figures["tokens_per_s_per_user"].mean == pytest.approx(1 / tp1.figures["mean_tpot_s"].mean)
    overloaded = cells[400.0, 1]
    assert overloaded.state == "overloaded"
    assert overloaded.figures == {}
    assert {id(cell) for cell in result.pareto} == {id(tp1), id(tp2)}
    assert result.frame()["pareto"].tolist() == [cell in result.pareto for cell in result.cells]


@pytest.mark.usefixtures("rough_capacity", "sweeps_here")
def test_the_front_does_not_reward_chance(chat: Scenario) -> None:
    # Below capacity every cell completes what arrives, whatever the end of its window makes of it: less time per token
    # alone decides, and of two settings that differ by chance both are on the front.
    asked = with_values(chat, {"workload.num_requests": 1000, "statistics.replications": 3})
    result = sweep(asked, {"rate": [40.0], "k": [0, 1, 3]}, workers=2)
    off, one, three = result.cells
    if off.figures:
        assert off not in result.pareto
    assert one.figures["tokens_per_s_per_gpu"].mean != three.figures["tokens_per_s_per_gpu"].mean
    assert result.pareto == (three,)


def test_pareto_front_by_hand() -> None:
    best = ([10.0, 11.0, 12.0], [5.0, 5.5, 5.2])
    by_chance = ([10.1, 10.9, 12.1], [5.1, 5.4, 5.3])  # each ratio to the best includes 1
    slower = ([10.0, 11.0, 12.0], [4.5, 4.9, 4.7])
    slower_with_more = ([10.1, 10.9, 12.1], [4.5, 4.9, 4.7])  # more by chance does not save it
    other_end = ([20.0, 22.0, 24.0], [1.0, 1.1, 1.2])
    undefined = ([30.0, 31.0, 32.0], [math.nan, 9.0, 9.0])
    points = [slower, best, by_chance, slower_with_more, other_end, undefined]
    assert pareto_front(points, 0.95) == [1, 2, 4]
    # One replication has no interval: every difference counts, and equal points are on the front together.
    one = [([2.0], [1.0]), ([2.0], [1.0]), ([1.9], [1.0]), ([1.0], [1.01])]
    assert pareto_front(one, 0.95) == [0, 1, 3]
    assert pareto_front([], 0.95) == []
    # More points than are compared at once.
    ladder = [([1.0 + i, 2.0 + i], [1.0, 1.0]) for i in range(600)]
    assert pareto_front(ladder, 0.5) == [599]
