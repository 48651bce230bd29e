"""Seconds of processes from a made-up /proc, and of this very process from the real one."""

import os
import time
from pathlib import Path

import pytest

from draftcast.calibration.live.cpu_use import busy_seconds, tree_seconds

TICKS = os.sysconf("SC_CLK_TCK")


def process(proc: Path, pid: int, parent: int, user: int, system: int, name: str = "x") -> None:
    (proc / str(pid)).mkdir()
    fields = ["S", parent, *[0] * 9, user, system, 0, 0]
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) {' '.join(map(str, fields))}\n")


def test_a_tree_is_all_that_descends_from_its_root(tmp_path: Path) -> None:
    process(tmp_path, 1, 0, 1000, 1000)
    process(tmp_path, 20, 1, 3 * TICKS, TICKS, name="a) 1 2 (b")
    process(tmp_path, 30, 20, 2 * TICKS, 0)
    process(tmp_path, 31, 30, 0, TICKS)
    process(tmp_path, 40, 1, 50 * TICKS, 0)
    (tmp_path / "41").mkdir()  # ended in between
    assert tree_seconds(20, tmp_path) == pytest.approx(7.0)
    assert tree_seconds(40, tmp_path) == pytest.approx(50.0)
    assert tree_seconds(99, tmp_path) == 0.0


def test_busy_seconds_leave_out_idle_waiting_and_steal(tmp_path: Path) -> None:
    values = [TICKS, 2 * TICKS, 3 * TICKS, 1000, 1000, 4 * TICKS, 5 * TICKS, 1000, 0, 0]
    (tmp_path / "stat").write_text(f"cpu  {' '.join(map(str, values))}\ncpu0 0\n")
    assert busy_seconds(tmp_path) == pytest.approx(15.0)
    assert busy_seconds(tmp_path / "absent") is None


def test_work_of_this_process_is_seen() -> None:
    before, of_all = tree_seconds(os.getpid()), busy_seconds()
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
    assert tree_seconds(os.getpid()) - before >= 0.15
    if of_all is not None:
        assert (busy_seconds() or 0.0) - of_all >= 0.15
