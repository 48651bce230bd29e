"""The journal of a calibration: what survives a kill, and what is refused."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from draftcast.calibration.journal import Journal
from draftcast.errors import HardwareError

HEADER: dict[str, Any] = {"device": "a processor", "threads": 2, "dtypes": ("bf16", "fp32")}


@pytest.fixture(name="path")
def path_fixture(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def test_records_come_back_in_order(path: Path) -> None:
    with closing(Journal(path, HEADER)) as journal:
        journal.append({"point": "a", "seconds": 1.5}, sync=True)
        journal.append({"point": "b", "seconds": 0.1}, sync=True)
        assert len(path.read_bytes().splitlines()) == 3, "a line is on disk as soon as it is written"
    with closing(Journal(path, HEADER)) as journal:
        assert journal.records == [{"point": "a", "seconds": 1.5}, {"point": "b", "seconds": 0.1}]


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_torn_last_line_is_dropped(path: Path, cut: int) -> None:
    with closing(Journal(path, HEADER)) as journal:
        journal.append({"point": "a", "seconds": 1.5}, sync=True)
        journal.append({"point": "b", "seconds": 0.1}, sync=True)
    content = path.read_bytes()
    path.write_bytes(content[:-cut])
    with closing(Journal(path, HEADER)) as journal:
        assert journal.records == [{"point": "a", "seconds": 1.5}]
        journal.append({"point": "b", "seconds": 0.1}, sync=True)
    assert path.read_bytes() == content


@pytest.mark.parametrize("length", [0, 3, 40])
def test_a_torn_first_line_starts_again(path: Path, length: int) -> None:
    Journal(path, HEADER).close()
    whole = path.read_bytes()
    path.write_bytes(whole[:length])
    with closing(Journal(path, HEADER)) as journal:
        assert journal.records == []
    assert path.read_bytes() == whole


@pytest.mark.parametrize("value", [{"threads": 1}, {"device": "another processor"}, {"dtypes": ("bf16",)}, {"new": 1}])
def test_other_settings_are_refused_by_name(path: Path, value: dict[str, Any]) -> None:
    Journal(path, HEADER).close()
    before = path.read_bytes()
    with pytest.raises(HardwareError, match=f"{path}: {next(iter(value))} = .*this run has") as caught:
        Journal(path, {**HEADER, **value})
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before


def test_a_setting_that_is_gone_is_refused(path: Path) -> None:
    Journal(path, HEADER).close()
    with pytest.raises(HardwareError, match="threads = 2"):
        Journal(path, {name: value for name, value in HEADER.items() if name != "threads"})


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"not a journal at all", 1),
        (b"not a journal\n", 1),
        (b"[1, 2]\n", 1),
        (b'{"format": "something else"}\n', 1),
        (b"\x00\xff\x00\n{}\n", 1),
    ],
)
def test_another_file_is_refused_and_left_as_it_is(path: Path, content: bytes, line: int) -> None:
    path.write_bytes(content)
    with pytest.raises(HardwareError, match=f"{path}:{line}: .*journal"):
        Journal(path, HEADER)
    assert path.read_bytes() == content


def test_a_broken_line_within_is_refused_with_its_number(path: Path) -> None:
    with closing(Journal(path, HEADER)) as journal:
        for point in "abc":
            journal.append({"point": point}, sync=True)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2][:5] + b"\n"
    path.write_bytes(b"".join(lines))
    with pytest.raises(HardwareError, match=f"{path}:3: "):
        Journal(path, HEADER)


def test_two_runs_cannot_write_one_journal(path: Path) -> None:
    with closing(Journal(path, HEADER)), pytest.raises(HardwareError, match="another calibration is writing here"):
        Journal(path, HEADER)
    Journal(path, HEADER).close()


def test_a_version_to_come_is_refused(path: Path) -> None:
    Journal(path, HEADER).close()
    header = json.loads(path.read_bytes())
    path.write_text(json.dumps({**header, "version": 99}) + "\n")
    with pytest.raises(HardwareError, match="version = 99"):
        Journal(path, HEADER)


def test_a_folder_in_its_place_is_refused(path: Path) -> None:
    path.mkdir()
    with pytest.raises(HardwareError, match="cannot be opened"):
        Journal(path, HEADER)
