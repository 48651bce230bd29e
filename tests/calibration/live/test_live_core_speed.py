"""How fast the cores were beside a run: the probe's process, its readings, and what they do to a fit and a forecast."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from draftcast.calibration.live.core_speed import (
    COLUMNS,
    FILE,
    CoreSpeed,
    Probe,
    exponents,
    factors,
    kept_off,
    server_cores,
)
from draftcast.calibration.live.core_speed_probe import HEADER
from draftcast.calibration.live.run_directory import LiveRun
from draftcast.calibration.live.step_fit import fit_steps
from draftcast.calibration.live.step_profile import calibrate_live, write_live_profile
from draftcast.calibration.profile.hardware import load_hardware
from draftcast.calibration.profile.load import CoreResponse, load_profile
from draftcast.errors import InputError
from draftcast.scenarios.cli.main import app
from draftcast.scenarios.live.validate.comparison import validate
from draftcast.scenarios.schema.load import load_scenario

QUIET_S, POWER = 80e-6, 0.6
pinning = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes cannot choose their core here")


def lines(path: Path) -> list[list[float]]:
    """Whole lines of the probe's file below its header."""
    text = path.read_text() if path.exists() else ""
    return [[float(value) for value in line.split(",")] for line in text.splitlines()[1:] if line.count(",") == 2]


def until_lines(path: Path, count: int) -> None:
    deadline = time.monotonic() + 60.0
    while len(lines(path)) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pinning
def test_the_probe_reads_every_core_and_ends_with_its_context(tmp_path: Path) -> None:
    allowed, before = os.sched_getaffinity(0), time.time()
    with Probe(tmp_path / FILE, period_s=0.002) as probe:
        until_lines(tmp_path / FILE, 3 * len(allowed))
    assert probe._process.returncode == 0
    assert (tmp_path / FILE).read_text().startswith(f"{HEADER}\n")
    found = np.array(lines(tmp_path / FILE))
    assert set(found[:, 1]) == set(allowed)
    assert (np.diff(found[:, 0]) >= 0).all()
    assert before - 1.0 <= found[0, 0] <= time.time() + 1.0
    assert (found[:, 2] > 1e-6).all()
    assert os.sched_getaffinity(0) == allowed  # its own affinity only


@pinning
def test_the_probe_does_not_outlive_who_started_it(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from draftcast.calibration.live.core_speed import Probe\n"
        "with Probe(Path(sys.argv[1]), 0.002) as probe: print(probe._process.pid, flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / FILE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        until_lines(tmp_path / FILE, 2)
        process.kill()
    deadline = time.monotonic() + 60.0
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pinning
def test_a_client_is_kept_off_the_server_s_cores_where_there_are_others() -> None:
    allowed = os.sched_getaffinity(0)
    first = min(allowed)
    with kept_off([first]):
        assert os.sched_getaffinity(0) == (allowed - {first} or allowed)
    assert os.sched_getaffinity(0) == allowed
    with kept_off(allowed):
        assert os.sched_getaffinity(0) == allowed


def recorded(run: LiveRun, rows: list[tuple[float, int, float]], cores: list[int] | None = None) -> LiveRun:
    """The run as if these readings (seconds since its start, core, probe's seconds) stood beside it."""
    start_s = float(run.manifest["start_unix_s"])
    text = "".join(f"{start_s + time_s:.4f},{core},{spin_s:.9f}\n" for time_s, core, spin_s in rows)
    (run.folder / FILE).write_text(f"{HEADER}\n{text}")
    manifest = {**run.manifest, "server_cores": [0] if cores is None else cores}
    return LiveRun(run.folder, manifest, run.requests, run.chunks)


@pytest.fixture(scope="module")
def runs(played: Any, profile: Path, tmp_path_factory: pytest.TempPathFactory) -> list[LiveRun]:
    """One server, each run on a machine of another speed; the last is for the forecast."""
    folder, made = tmp_path_factory.mktemp("made"), []
    for number, (users, slowness) in enumerate([(4, 1.0), (4, 1.3), (16, 1.1), (16, 1.45), (8, 1.2), (8, 1.4)]):
        scenario = played.question(profile, None, 0, users=users, requests=30 if users < 8 else 60)
        excess = {"decode_excess": slowness - 1.0, "prompt_excess": slowness - 1.0}
        run = played.play(folder / f"run-{number}", scenario, seed=number, noise=0.02, **excess)
        last_s = float(run.requests["finish_s"].max())
        spin_s = QUIET_S * slowness ** (1.0 / POWER)
        jitter = np.random.default_rng(number).normal(1.0, 0.05, int(last_s / 0.05) + 2)
        rows = [(0.05 * i, 0, spin_s * value) for i, value in enumerate(jitter)]
        made.append(recorded(run, [*rows, *((time_s, 1, QUIET_S) for time_s, _, _ in rows)]))
    return made


def test_readings_are_averaged_around_each_moment(runs: list[LiveRun], tmp_path: Path) -> None:
    run = LiveRun(tmp_path, runs[0].manifest, runs[0].requests, runs[0].chunks)
    slow = [(0.1 * i, 0, 1e-4 if i < 50 else 2e-4) for i in range(100)]
    beside = [(0.1 * i, 1 + i % 3, 3e-4) for i in range(100)]
    interrupted = [(2.05, 0, 9e-3)]
    speed = CoreSpeed.of(recorded(run, sorted([*slow, *beside, *interrupted])))
    assert speed is not None
    logs = speed.logs(np.array([-5.0, 2.0, 5.0, 8.0, 99.0]))
    assert np.exp(logs[COLUMNS[0]]) == pytest.approx([1e-4, 1e-4, 1.55e-4, 2e-4, 2e-4], rel=0.04)
    assert np.exp(logs[COLUMNS[1]]) == pytest.approx(np.full(5, 3e-4))
    response = {"server": CoreResponse(1e-4, 0.5), "beside": CoreResponse(1.5e-4, 1.0)}
    assert factors(response, logs, 5)[[1, 3]] == pytest.approx([2.0, 2.0 * np.sqrt(2.0)])
    assert factors({}, logs, 5) == pytest.approx(np.ones(5))
    assert speed.factor(response, 1.0, 4.0) == pytest.approx(2.0)
    # All cores are the server's: there are none beside.
    alone = CoreSpeed.of(recorded(run, slow, [0]))
    assert alone is not None
    assert set(alone.logs(np.zeros(1))) == {COLUMNS[0]}


def test_without_readings_nothing_is_known_and_a_damaged_file_is_named(runs: list[LiveRun], tmp_path: Path) -> None:
    run = LiveRun(tmp_path, {**runs[0].manifest, "server_cores": [0]}, runs[0].requests, runs[0].chunks)
    assert CoreSpeed.of(run) is None
    many = [(0.1 * i, 0, 1e-4) for i in range(100)]
    assert CoreSpeed.of(recorded(run, many, [])) is None
    assert CoreSpeed.of(recorded(run, many[:5])) is None
    assert CoreSpeed.of(recorded(run, many)) is not None
    with (tmp_path / FILE).open("a") as file:
        file.write("17")  # the disk was full
    assert CoreSpeed.of(run) is not None
    with (tmp_path / FILE).open("a") as file:
        file.write(",0,quick\n")
    with pytest.raises(InputError, match=f"{FILE}: damaged"):
        CoreSpeed.of(run)


def test_powers_are_found_and_bounded() -> None:
    random = np.random.default_rng(3)
    deviations = random.normal(0.0, 0.1, (500, 2))
    weights = random.uniform(0.5, 2.0, 500)
    truth = np.array([0.7, 0.2])
    whole = np.ones((500, 1))
    assert exponents(deviations, deviations @ truth, weights, whole) == pytest.approx(truth)
    steep = deviations @ np.array([3.0, -1.0])
    assert exponents(deviations, steep, weights, whole) == pytest.approx([1.5, 0.0], abs=0.05)
    assert exponents(np.zeros((500, 1)), deviations[:, 0], weights, whole) == pytest.approx([0.0])
    # A coefficient whose part is large where the machine was slow has taken half of that for its own.
    part = np.clip(0.5 + 2.0 * deviations[:, :1], 0.0, 1.0)
    taken = deviations @ truth - 0.7 * (part[:, 0] - 0.5) / 4.0
    assert exponents(deviations, taken, weights, np.hstack([part, 1.0 - part])) == pytest.approx(truth)


def test_a_step_s_time_goes_with_the_cores_by_the_power_it_has(runs: list[LiveRun]) -> None:
    fit = fit_steps(runs[:-1])
    assert fit.core_speed["server"].exponent == pytest.approx(POWER, abs=0.05)
    assert fit.core_speed["beside"].exponent == 0.0  # theirs never varied
    # Seconds are those of the reference's speed: the true ones, as much longer as that is slower than the quiet core.
    longer = (fit.core_speed["server"].spin_s / QUIET_S) ** POWER
    assert fit.coefficients["fixed_s"] == pytest.approx(0.021 * longer, rel=0.05)
    assert fit.all.median < 0.03
    blind = [LiveRun(run.folder, {**run.manifest, "server_cores": []}, run.requests, run.chunks) for run in runs[:-1]]
    without = fit_steps(blind)
    assert without.core_speed == {}
    assert without.all.median > 0.06


def test_a_run_is_forecast_at_the_speed_its_cores_had(runs: list[LiveRun], profile: Path, tmp_path: Path) -> None:
    folder = tmp_path / "profile"
    found = calibrate_live(runs[:-1])
    names = {"name": "made", "model": "testbed-250m", "tp": 1, "dtype": "fp32"}
    write_live_profile(found, folder, hardware=load_hardware("cpu"), **names)
    read = load_profile(str(folder), load_hardware("cpu"))
    assert read.core_speed["server"].exponent == pytest.approx(POWER, abs=0.05)  # type: ignore[union-attr]
    live = runs[-1]
    asked = load_scenario({**live.manifest["scenario"], "profile": str(folder)})
    told, blind = (validate(live, asked, core_speed=told, attribute=False) for told in (True, False))
    assert told.slowness == pytest.approx(1.4 / (found.fit.core_speed["server"].spin_s / QUIET_S) ** POWER, rel=0.03)
    assert blind.slowness is None
    assert told.steps is not None
    assert blind.steps is not None
    assert told.steps.errors["all"].median < 0.04
    assert blind.steps.errors["all"].median > 0.1
    for name in ("mean_tpot_s", "output_throughput"):
        assert abs(told.figures[name].error) < 0.04
        assert abs(blind.figures[name].error) > 0.1

    # The command, and its switch; it reads the folder, so what is known must stand in it.
    (live.folder / "manifest.json").write_text(
        (live.folder / "manifest.json").read_text().replace('"server_cores": []', '"server_cores": [0]')
    )
    scenario = tmp_path / "asked.yaml"
    scenario.write_text(yaml.safe_dump(asked.model_dump(mode="json")))
    line = ["validate", str(scenario), "--live", str(live.folder)]
    assert "cores: steps 1." in CliRunner().invoke(app, line, catch_exceptions=False).output
    assert "cores: steps" not in CliRunner().invoke(app, [*line, "--ignore-core-speed"], catch_exceptions=False).output


def test_the_busiest_process_says_where_the_server_computes(tmp_path: Path) -> None:
    for pid, parent, ticks, cores in ((20, 1, 5, "0-3"), (21, 20, 900, "2,4-5"), (22, 1, 9000, "1")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (x) S {parent} {'0 ' * 9}{ticks} 0 0 0\n")
        (tmp_path / str(pid) / "status").write_text(f"Name:\tx\nCpus_allowed_list:\t{cores}\n")
    assert server_cores(20, tmp_path) == [2, 4, 5]
    assert server_cores(77, tmp_path) == []
