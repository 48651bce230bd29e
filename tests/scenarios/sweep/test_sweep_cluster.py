"""Sweeps on a Dask cluster: a real scheduler and worker processes over TCP on this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from draftcast.errors import InputError
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.changes import changed
from draftcast.scenarios.schema.load import load_scenario, with_values
from draftcast.scenarios.sweep.cells import ResultStore, run_task, task_of
from draftcast.scenarios.sweep.run import SweepProgress, sweep

pytest.importorskip("distributed")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Cluster:
    """A scheduler and its workers, each a process of its own."""

    def __init__(self, folder: Path, stack: ExitStack, workers: int) -> None:
        port = free_port()
        self.address = f"tcp://127.0.0.1:{port}"
        scheduler = ["dask_scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard", "--no-show"]
        worker = ["dask_worker", self.address, "--host", "127.0.0.1", "--nthreads", "1", "--no-nanny", "--no-dashboard"]
        self._start(stack, scheduler, folder)
        self.workers = [
            self._start(stack, [*worker, "--name", f"w{i}", "--local-directory", str(folder / f"w{i}")], folder)
            for i in range(workers)
        ]

    @staticmethod
    def _start(stack: ExitStack, arguments: list[str], folder: Path) -> subprocess.Popen[bytes]:
        module, *rest = arguments
        log = stack.enter_context((folder / f"{rest[-1].replace('/', '-')}.log").open("wb"))
        command = [sys.executable, "-m", f"distributed.cli.{module}", *rest]
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env={**os.environ, "DASK_LOGGING": ""})
        stack.callback(process.wait)
        stack.callback(process.kill)
        return process


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(tmp_path, stack, workers=2)


@pytest.fixture
def base() -> Scenario:
    # A capacity of short requests is found in a tenth of the time.
    short = "workload.lengths={prompt_tokens: 64, output_tokens: {distribution: geometric, mean: 16}}"
    return load_scenario("default", overrides=["workload.num_requests=120", "statistics.replications=2", short])


def test_a_cluster_that_loses_a_worker_gives_what_this_process_gives(
    base: Scenario, cluster: Cluster, tmp_path: Path
) -> None:
    import distributed

    grid = {"rate": [5.0, 10.0, 20.0, 40.0], "k": [0, 1, 3]}
    with distributed.Client(cluster.address, set_as_default=False) as client:  # type: ignore[no-untyped-call]
        client.wait_for_workers(2, timeout=120)  # type: ignore[no-untyped-call]
    killed: list[int] = []

    def progress(now: SweepProgress) -> None:
        if now.done and not killed:
            assert now.done < now.total
            cluster.workers[0].kill()
            killed.append(now.done)

    result = sweep(base, grid, folder=tmp_path / "set", cluster=cluster.address, progress=progress)
    assert killed
    assert (result.computed, result.errors) == (12, ())
    kept = ResultStore(tmp_path / "set").rows(cell.key for cell in result.cells)
    for cell in result.cells:
        here = run_task(task_of(changed(base, cell.values)))
        assert json.dumps(kept[cell.key], sort_keys=True) == json.dumps(here.rows, sort_keys=True)
    # What a cluster computed, a local sweep finds; and a cluster's worker reports its own errors.
    again = sweep(base, {**grid, "engine.watermark": [0.0]}, folder=tmp_path / "set", workers=1)
    assert (again.computed, again.reused) == (0, 12)
    (tmp_path / "own.py").write_text("from draftcast.sim import Policy\nclass P(Policy):\n    pass\n")
    broken = {"policy": [f"{tmp_path}/own.py:P", "fixed"], "engine.gpu_memory_utilization": [0.05]}
    failed = sweep(base, broken, folder=tmp_path / "set", cluster=cluster.address)
    assert len(failed.errors) == 2
    assert "memory" in failed.cells[1].error


def test_a_scheduler_that_goes_away_is_one_line_and_keeps_what_is_done(base: Scenario, tmp_path: Path) -> None:
    with ExitStack() as stack:
        cluster = Cluster(tmp_path, stack, workers=1)
        seen: list[int] = []

        def progress(now: SweepProgress) -> None:
            seen.append(now.done)
            if now.done:
                stack.close()

        asked = with_values(base, {"workload.num_requests": 4000})
        with pytest.raises(InputError, match=r"--cluster: .*the scheduler is gone"):
            sweep(asked, {"seed": list(range(30))}, folder=tmp_path / "set", cluster=cluster.address, progress=progress)
    assert len(set(ResultStore(tmp_path / "set").table()["key"].to_pylist())) == max(seen)


def test_no_scheduler_is_one_line(base: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftcast.scenarios.sweep.workers._CONNECT_S", 0.5)
    address = f"tcp://127.0.0.1:{free_port()}"
    with pytest.raises(InputError, match="no scheduler answers") as caught:
        sweep(base, {"k": [0]}, cluster=address)
    assert address in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="no scheduler answers"):
        sweep(base, {"k": [0]}, cluster="nonsense://")


def test_without_distributed_it_says_what_to_install(base: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"pip install 'draftcast\[cluster\]'"):
        sweep(base, {"k": [0]}, cluster="tcp://127.0.0.1:1")
