"""A calibration from end to end: what it writes, a budget that is too short, failures, a kill in mid-run."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from draftcast.calibration.microbench import runner
from draftcast.calibration.microbench.device import Device
from draftcast.calibration.microbench.noise import NoiseReading, SpinAndRead
from draftcast.calibration.microbench.runner import Calibration
from draftcast.calibration.microbench.shapes import Plan, Point, Settings
from draftcast.calibration.microbench.timer import Burst, BurstLimits
from draftcast.calibration.profile.hardware import load_hardware
from draftcast.calibration.profile.load import read_manifest
from draftcast.calibration.profile.table import load_table
from draftcast.errors import HardwareError
from draftcast.kernels.operators.registry import Implementation, Launch, Operator, operator

DEVICE = Device("cpu", "a processor", 2, 2, 1 << 20, 1 << 34, clocks={"cpu_mhz": 2000.0}, versions={"torch": "2"})
SETTINGS = Settings(("tiny",), "0", (1,), ("bf16",), ("bf16",), ("linear", "rmsnorm"), 8, 0)
ROWS = (1, 8, 4, 2, 6, 3, 5, 7)
POINTS = tuple(
    [Point("linear", "bf16", "", "torch", (("m", m), ("k", 16), ("n", 8))) for m in ROWS]
    + [Point("rmsnorm", "bf16", "", "torch", (("m", m), ("n", 16))) for m in ROWS]
)
PLAN = Plan(SETTINGS, POINTS, {"does not fit in memory": 3})
OPERATORS = {name: operator(name) for name in ("linear", "rmsnorm")}


class FakeTimer:
    """Every burst takes one second of the fake clock; a launch takes ``seconds`` of it."""

    def __init__(self, clock: SimpleNamespace, seconds: Callable[[int], float] = lambda _count: 0.001) -> None:
        self.limits = BurstLimits()
        self.clock, self.seconds, self.count = clock, seconds, 0
        self.seen: list[bool] = []

    def burst(self, launches: Sequence[Launch], *, graph: bool = False, seen: bool = False) -> Burst:
        self.seen.append(seen)
        assert launches
        assert not graph
        self.count += 1
        self.clock.now += 1.0
        return Burst(self.seconds(self.count), 10, 2)


class Probe:
    """Readings of a machine that is quiet, but for the moments given."""

    def __init__(self, *moments: float) -> None:
        self.moments = iter(moments)

    def quietness(self) -> SpinAndRead:
        return SpinAndRead(next(self.moments, 1.0), 1.0)

    def read(self) -> NoiseReading:
        return NoiseReading(runner.time.time(), (1.0,) * 16, (1.0,) * 16, (1.0,) * 16, 0.5)


@pytest.fixture(name="clock")
def clock_fixture(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that only bursts move, on a machine that is always quiet."""
    clock = SimpleNamespace(now=0.0)
    fake = SimpleNamespace(perf_counter=lambda: clock.now, time=lambda: 1e9 + clock.now)
    monkeypatch.setattr(runner, "time", fake)
    monkeypatch.setattr(runner, "NoiseProbe", lambda _cache: Probe())
    monkeypatch.setattr(runner, "stream_launches", lambda _device, _cache: {"copy": (1000, [lambda: None])})
    return clock


def calibration(folder: Path, clock: SimpleNamespace, budget_s: float = 1e6, **changes: Any) -> Calibration:
    given: dict[str, Any] = {"device": DEVICE, "plan": PLAN, "operators": OPERATORS}
    given |= {"timer": FakeTimer(clock)} | changes
    arguments = [given.pop(name) for name in ("device", "plan", "operators")]
    return Calibration(folder, *arguments, budget_s=budget_s, **given)


def lines_of(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()[1:]]
    return [line for line in lines if line["kind"] == kind]


def test_it_writes_table_manifest_and_fit(tmp_path: Path, clock: SimpleNamespace) -> None:
    seen: list[runner.RunnerStatus] = []
    with calibration(tmp_path / "p", clock, progress=seen.append) as run:
        run.measure()
        result = run.write("mine", load_hardware("cpu"), command=["draftcast", "calibrate"])
    table = load_table(tmp_path / "p" / "table.parquet")
    assert len(table) == len(POINTS)
    assert set(table["seconds"]) == {0.001}
    assert table["settled"].all()
    assert set(table["repeats"]) == {3 * 10 * 2}
    assert set(table.query("operator == 'linear'")["m"]) == set(ROWS)
    manifest = read_manifest(tmp_path / "p")
    assert (manifest.name, manifest.hardware, manifest.device) == ("mine", "cpu", "a processor")
    assert manifest.clocks == {"cpu_mhz": 2000.0}
    assert manifest.command == "draftcast calibrate"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", manifest.date)
    assert manifest.left_out == {"does not fit in memory": 3}
    assert manifest.noise["bursts"] == 3 * len(POINTS)
    assert manifest.noise["readings"] >= 2
    assert manifest.noise["host"]["cores"] >= 1
    assert manifest.ceilings.memory_bandwidth_bytes_per_s == pytest.approx(1000 / 0.001)
    assert manifest.ceilings.peak_flops["bf16"] == pytest.approx(2.0 * 1024**3 / 0.001)
    assert (tmp_path / "p" / "profile.yaml").is_file()
    assert result.left_out == manifest.left_out
    assert {entry.part.operator for entry in result.errors} == {"linear", "rmsnorm"}
    assert len(seen) == 3 * len(POINTS)
    assert seen[-1].points == len(POINTS)
    assert [status.spent_s for status in seen] == sorted(status.spent_s for status in seen)


def test_a_kernel_is_warmed_up_once_in_a_process(tmp_path: Path, clock: SimpleNamespace) -> None:
    timer = FakeTimer(clock)
    with calibration(tmp_path / "p", clock, timer=timer) as run:
        run.measure()
    rates, visits = timer.seen[: -3 * len(POINTS)], timer.seen[-3 * len(POINTS) :]
    assert rates
    assert visits == [False] * len(POINTS) + [True] * (2 * len(POINTS))


def test_noise_is_read_before_during_and_after(tmp_path: Path, clock: SimpleNamespace) -> None:
    with calibration(tmp_path / "p", clock) as run:
        run.measure()
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "p" / "journal.jsonl").read_text().splitlines()[1:]]
    assert kinds[0] == kinds[-1] == "noise"
    assert kinds.count("noise") == 2 + 1, "48 seconds of bursts: one reading on the way"


def test_a_finished_run_measures_nothing_again(tmp_path: Path, clock: SimpleNamespace) -> None:
    with calibration(tmp_path / "p", clock) as run:
        run.measure()
    before = Counter(line["point"] for line in lines_of(tmp_path / "p", "burst"))
    again = FakeTimer(clock)
    with calibration(tmp_path / "p", clock, timer=again) as run:
        run.measure()
        assert len(run.table()) == len(POINTS)
    assert again.count == 0
    assert Counter(line["point"] for line in lines_of(tmp_path / "p", "burst")) == before


def test_a_short_budget_covers_every_operator_and_can_be_raised(tmp_path: Path, clock: SimpleNamespace) -> None:
    interleaved = Plan(SETTINGS, tuple(point for pair in zip(POINTS[:8], POINTS[8:], strict=True) for point in pair))
    with calibration(tmp_path / "p", clock, budget_s=30.0, plan=interleaved) as run:
        run.measure()
        assert run.spent_s <= 30.0
        short = run.table()
        result = run.write("mine", load_hardware("cpu"), ["draftcast"])
    assert {1, 8} <= set(short.query("operator == 'linear'")["m"])
    assert {1, 8} <= set(short.query("operator == 'rmsnorm'")["m"])
    assert 4 < len(short) < len(POINTS)
    assert result.left_out["no time left in the budget"] == len(POINTS) - len(short)
    assert set(Counter(line["point"] for line in lines_of(tmp_path / "p", "burst")).values()) == {3}
    with calibration(tmp_path / "p", clock, budget_s=1e6, plan=interleaved) as run:
        run.measure()
        assert len(run.table()) == len(POINTS)
    assert set(Counter(line["point"] for line in lines_of(tmp_path / "p", "burst")).values()) == {3}


def test_points_that_do_not_settle_take_the_time_that_is_left(tmp_path: Path, clock: SimpleNamespace) -> None:
    noisy = FakeTimer(clock, lambda count: 0.001 * (1.0 + 0.1 * (count % 3)))
    with calibration(tmp_path / "p", clock, budget_s=200.0, timer=noisy) as run:
        run.measure()
        table = run.table()
    assert 200.0 - runner._WRITE_S - 1.0 < run.spent_s <= 200.0, "less than one more burst would have fitted"
    assert not table["settled"].all()
    assert (table["low_s"] <= table["seconds"]).all()
    assert (table["seconds"] <= table["high_s"]).all()


def test_setup_waits_and_the_end_count_against_the_budget(
    tmp_path: Path, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten seconds before the journal opens, a noisy machine, noise readings of three seconds and two for the fit."""

    def read(self: Probe) -> NoiseReading:
        clock.now += 3.0
        return NoiseReading(1e9 + clock.now, (1.0,) * 16, (1.0,) * 16, (1.0,) * 16, 0.5)

    def wait(_probe: object, _levels: object, limit_s: float) -> SpinAndRead:
        waits.append(limit_s)
        clock.now += max(limit_s, 0.0)
        return SpinAndRead(9.0, 9.0)

    waits: list[float] = []
    monkeypatch.setattr(Probe, "read", read)
    monkeypatch.setattr(runner.noise, "wait_until_quiet", wait)
    clock.now = 10.0
    noisy = FakeTimer(clock, lambda count: 0.001 * (1.0 + 0.1 * (count % 3)))
    with calibration(tmp_path / "p", clock, budget_s=100.0, began_s=0.0, timer=noisy) as run:
        run.measure()
        assert run.spent_s == clock.now
        assert 100.0 - runner._WRITE_S - 3.0 < clock.now <= 100.0 - runner._WRITE_S
    lines = [json.loads(line) for line in (tmp_path / "p" / "journal.jsonl").read_text().splitlines()[1:]]
    assert sum(line["took_s"] for line in lines) == pytest.approx(clock.now), "a later run goes on from there"
    assert max(waits) == runner._WAIT_S


def test_a_wait_for_quiet_ends_with_the_budget(
    tmp_path: Path, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(_probe: object, _levels: object, limit_s: float) -> SpinAndRead:
        waits.append(limit_s)
        clock.now += max(limit_s, 0.0)
        return SpinAndRead(9.0, 9.0)

    waits: list[float] = []
    monkeypatch.setattr(runner.noise, "wait_until_quiet", wait)
    monkeypatch.setattr(runner, "_WAIT_S", 1000.0)
    with calibration(tmp_path / "p", clock, budget_s=50.0) as run:
        run.measure()
    assert waits[0] == 50.0 - runner._WRITE_S
    assert 48.0 <= clock.now <= 48.0 + len(waits), "no wait after the first; a burst of a second for each rate"


@pytest.mark.parametrize("breaks", [False, True])
def test_no_process_of_an_operator_stays(
    tmp_path: Path, clock: SimpleNamespace, children: Callable[[], list[int]], breaks: bool
) -> None:
    point = Point("all_reduce", "fp32", "", "torch", (("message_bytes", 64), ("ranks", 2)))
    seen: list[int] = []

    def second(_count: int) -> float:
        seen.append(len(children()))
        if breaks and seen[-1]:
            raise KeyboardInterrupt
        return 0.001

    operators = {name: operator(name) for name in ("linear", "all_reduce")}
    changes = {"plan": Plan(SETTINGS, (point,), {}), "operators": operators, "timer": FakeTimer(clock, second)}
    stopped = pytest.raises(KeyboardInterrupt) if breaks else nullcontext()
    with calibration(tmp_path / "p", clock, **changes) as run, stopped:
        run.measure()
    assert seen[-1] == 1, "the other rank"
    assert not children()


def test_a_machine_that_is_never_quiet_is_recorded(
    tmp_path: Path, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner.noise, "wait_until_quiet", lambda _probe, _levels, _limit: SpinAndRead(9.0, 9.0))
    with calibration(tmp_path / "p", clock, budget_s=100.0) as run:
        run.measure()
        assert run.noise()["quiet_bursts"] == 0.0
        assert not run.table()["settled"].any()


def test_a_disturbed_burst_is_tried_again(
    tmp_path: Path, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Before and after every burst; the first try of each visit is disturbed by its end.
    monkeypatch.setattr(runner, "NoiseProbe", lambda _cache: Probe(*[1.0, 2.0, 1.0, 1.0] * 100))
    monkeypatch.setattr(runner, "_TRY_S", 10.0)
    timer = FakeTimer(clock, lambda count: 0.001 * (1 + count % 2))
    with calibration(tmp_path / "p", clock, timer=timer, plan=Plan(SETTINGS, POINTS[:2])) as run:
        run.measure()
        assert run.noise()["quiet_bursts"] == 1.0
        assert set(run.table()["seconds"]) == {0.001}, "the second try of each visit"
        assert timer.count > 2 * 3 * 2


def broken(error: Exception, only_rows: int | None = None) -> Operator:
    """The norm, but preparing it fails."""
    real = operator("rmsnorm")
    implementation = real.implementations["torch"]

    def prepare(inputs: Any, outputs: Any) -> Launch:
        if only_rows is None or next(iter(outputs.values())).shape[0] == only_rows:
            raise error
        return implementation.prepare(inputs, outputs)

    return replace(real, implementations={"torch": Implementation(implementation.supports, prepare)})


def test_a_kernel_that_fails_is_left_out_with_its_reason(tmp_path: Path, clock: SimpleNamespace) -> None:
    operators = {**OPERATORS, "rmsnorm": broken(RuntimeError("no such configuration\nand more"), only_rows=4)}
    with calibration(tmp_path / "p", clock, operators=operators) as run:
        run.measure()
        result = run.write("mine", load_hardware("cpu"), ["draftcast"])
    assert result.left_out["rmsnorm torch: RuntimeError: no such configuration"] == 1
    assert len(result.table) == len(POINTS) - 1
    with calibration(tmp_path / "p", clock, timer=FakeTimer(clock)) as run:
        run.measure()
        assert len(run.table()) == len(POINTS) - 1, "not tried again"


def test_a_run_in_which_everything_fails_says_why(tmp_path: Path, clock: SimpleNamespace) -> None:
    operators = {**OPERATORS, "rmsnorm": broken(RuntimeError("no such configuration"))}
    with calibration(tmp_path / "p", clock, operators=operators, plan=Plan(SETTINGS, POINTS[8:])) as run:
        run.measure()
        assert len(lines_of(tmp_path / "p", "failed")) == 8
        with pytest.raises(HardwareError, match="nothing was measured: rmsnorm torch: RuntimeError: no such conf"):
            run.write("mine", load_hardware("cpu"), ["draftcast"])


def test_a_broken_device_ends_the_run_and_blames_no_point(
    tmp_path: Path, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "is_alive", lambda _kind: False)
    operators = {**OPERATORS, "rmsnorm": broken(RuntimeError("illegal memory access"))}
    with (
        calibration(tmp_path / "p", clock, operators=operators) as run,
        pytest.raises(HardwareError, match=r"rmsnorm/.*the device failed: .*illegal memory access"),
    ):
        run.measure()
    assert not lines_of(tmp_path / "p", "failed")


def test_a_refused_folder_is_left_alone(tmp_path: Path, clock: SimpleNamespace) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(HardwareError, match="holds no calibration"):
        calibration(tmp_path, clock)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(HardwareError, match="not a directory"):
        calibration(tmp_path / "notes.txt", clock)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"plan": replace(PLAN, settings=replace(SETTINGS, seed=1))}, "seed"),
        ({"plan": replace(PLAN, settings=replace(SETTINGS, dtypes=("fp32",)))}, "dtypes"),
        ({"plan": replace(PLAN, settings=replace(SETTINGS, digest="1"))}, "digest"),
        ({"device": replace(DEVICE, name="another processor")}, "device"),
        ({"device": replace(DEVICE, threads=1)}, "threads"),
        ({"device": replace(DEVICE, driver="999")}, "driver"),
        ({"device": replace(DEVICE, versions={"torch": "3"})}, "versions"),
    ],
)
def test_a_journal_of_other_settings_or_device_is_refused(
    tmp_path: Path, clock: SimpleNamespace, changes: dict[str, Any], key: str
) -> None:
    calibration(tmp_path / "p", clock).__exit__()
    with pytest.raises(HardwareError, match=f"journal.jsonl: {key} = "):
        calibration(tmp_path / "p", clock, **changes)


def test_a_line_of_no_known_kind_is_refused(tmp_path: Path, clock: SimpleNamespace) -> None:
    with calibration(tmp_path / "p", clock) as run:
        run.journal.append({"kind": "burst", "took_s": 1.0})
    with pytest.raises(HardwareError, match="not a line of a calibration's journal"):
        calibration(tmp_path / "p", clock)


def test_nothing_measured_is_said_so(tmp_path: Path, clock: SimpleNamespace) -> None:
    with calibration(tmp_path / "p", clock, budget_s=0.5) as run:
        run.measure()
        with pytest.raises(HardwareError, match="larger --budget"):
            run.write("mine", load_hardware("cpu"), ["draftcast"])
