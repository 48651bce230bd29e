"""The data set of sweeps: whole files, each cell once, nothing lost while files are merged."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from draftcast.errors import InputError
from draftcast.scenarios.sweep.cells import ResultStore


def row(key: str, replication: int = 0, **figures: Any) -> dict[str, Any]:
    return {"key": key, "replication": replication, "status": "done", **figures}


def test_what_was_appended_is_read_back_by_key(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "new" / "set")
    store.append([row("a", 1, tpot=2.0, unstable=False), row("a", 0, tpot=1.0, unstable=False)])
    store.append([row("b", tpot=math.nan, only_b=3.0)])
    again = ResultStore(store.folder)
    found = again.rows(["a", "b", "missing"])
    assert found["a"] == [row("a", 0, tpot=1.0, unstable=False), row("a", 1, tpot=2.0, unstable=False)]
    (b,) = found["b"]
    assert math.isnan(b.pop("tpot"))  # undefined is not absent
    assert b == row("b", only_b=3.0)
    assert set(found) == {"a", "b"}
    assert again.rows(["b"]).keys() == {"b"}
    assert again.table().num_rows == 3


def test_many_files_become_one_and_the_same_cell_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ResultStore(tmp_path / "set")
    for index in range(6):
        store.append([row(f"cell-{index % 4}", x=float(index % 4))])
    before = store.rows(f"cell-{index}" for index in range(4))
    assert store.table()["key"].to_pylist() == ["cell-0", "cell-1", "cell-2", "cell-3"]
    # A kill after the merged file was written and before the old ones are gone leaves both.
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)
    store.compact()
    assert store.rows(before) == before
    monkeypatch.undo()
    store.compact()
    (merged,) = (store.folder / "results").iterdir()
    assert pq.read_table(merged).num_rows == 4
    store.compact()
    assert merged.exists()
    assert store.rows(before) == before


def test_a_file_merged_away_by_another_sweep_is_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = ResultStore(tmp_path / "set"), ResultStore(tmp_path / "set")
    for index in range(4):
        store.append([row(f"cell-{index}")])
    read, reads = pq.read_table, []

    def merged_meanwhile(path: Path) -> Any:
        if not reads:
            reads.append(path)
            other.compact()
        return read(path)

    monkeypatch.setattr(pq, "read_table", merged_meanwhile)
    assert len(store.rows(f"cell-{index}" for index in range(4))) == 4


def test_what_a_kill_left_half_written_is_not_read(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "set")
    store.append([row("a")])
    (whole,) = (store.folder / "results").iterdir()
    whole.with_name(f".{whole.name}.1.tmp").write_bytes(whole.read_bytes()[:100])
    assert store.rows(["a"]) == {"a": [row("a")]}


def test_folders_that_are_no_data_set_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="not a directory"):
        ResultStore(tmp_path / "file")
    with pytest.raises(InputError, match="not empty"):
        ResultStore(tmp_path)
    store = ResultStore(tmp_path / "set")
    manifest = store.folder / "manifest.json"
    manifest.write_text('{"format": "draftcast-sweep", "format_version": 99}')
    with pytest.raises(InputError, match="format_version = 99"):
        ResultStore(store.folder)
    manifest.write_text("{}")
    with pytest.raises(InputError, match="no data set of a sweep"):
        ResultStore(store.folder)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "set")
    (store.folder / "results" / "bad.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(InputError, match=r"bad\.parquet: damaged"):
        store.rows(["a"])
