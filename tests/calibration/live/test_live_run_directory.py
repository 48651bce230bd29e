"""The directory of a live run: what is written is read back, and a run that stops anywhere stays readable."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from paths import DATA
from samples import LINES

from draftcast.calibration.journal import Journal
from draftcast.calibration.live.run_directory import (
    CHUNKS_DTYPES,
    JOURNAL,
    MANIFEST,
    MANIFEST_KEYS,
    METRICS_AFTER,
    REQUESTS_DTYPES,
    LiveRun,
    LiveRunWriter,
    is_live_run,
    read_journal,
    read_manifest,
    tables,
)
from draftcast.calibration.profile.hardware import load_hardware
from draftcast.calibration.profile.load import load_profile
from draftcast.calibration.profile.spec import AffineProfile
from draftcast.errors import InputError, LiveError


def journal(folder: Path) -> None:
    file = Journal(folder / JOURNAL)
    for line in LINES:
        file.append(line)
    file.close()


def test_tables_hold_every_line() -> None:
    requests, chunks = tables(LINES)
    assert dict(requests.dtypes.astype(str)) | dict(chunks.dtypes.astype(str)) == REQUESTS_DTYPES | CHUNKS_DTYPES
    rows = (
        requests.drop(columns=["class", "prompt_tokens", "output_tokens_wanted"])
        .astype(object)
        .fillna("never")
        .values.tolist()
    )
    never = "never"
    expected = [
        [0, 0.0, 0.001, 0.2, 0.31, 4, "", 0],
        [1, 0.5, 0.5, 0.6, never, 1, "connection closed", -1],
        [2, 1.0, never, never, never, 0, "", -1],
    ]
    assert rows == expected
    assert chunks.values.tolist() == [[0, 0.2, 1], [0, 0.3, 3], [1, 0.6, 1]]


def test_a_finished_run_is_read_back(tmp_path: Path) -> None:
    writer = LiveRunWriter.create(tmp_path / "run", name="n", seed=3, server={"command": ["vllm"], "log": False})
    assert not LiveRun.read(_with_journal(tmp_path / "run")).complete
    writer.write_text(METRICS_AFTER, "a 1\n")
    run = writer.finish()
    again = LiveRun.read(tmp_path / "run")
    assert again.complete
    assert again.manifest == run.manifest
    assert set(again.manifest) == set(MANIFEST_KEYS)
    assert (again.manifest["name"], again.manifest["seed"], again.manifest["incomplete_reason"]) == ("n", 3, "")
    requests, chunks = tables(LINES)
    pd.testing.assert_frame_equal(again.requests, requests)
    pd.testing.assert_frame_equal(again.chunks, chunks)
    assert (tmp_path / "run" / METRICS_AFTER).read_text() == "a 1\n"
    assert again.server_log is None
    assert not (tmp_path / "run" / JOURNAL).exists()


def test_an_earlier_version_s_readings_of_core_speed_are_ignored(tmp_path: Path) -> None:
    writer = LiveRunWriter.create(tmp_path)
    journal(tmp_path)
    run = writer.finish()
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    (tmp_path / MANIFEST).write_text(json.dumps({**manifest, "server_cores": [0, 1]}))
    (tmp_path / "core_speed.csv").write_text("time_s,core,spin_s\n1.0,0,0.00005\n")
    again = LiveRun.read(tmp_path)
    assert again.complete
    pd.testing.assert_frame_equal(again.requests, run.requests)
    # This profile was fitted with the correction and holds its coefficients.
    assert "core_speed:" in (DATA / "live_profile/profile.yaml").read_text()
    profile = load_profile(DATA / "live_profile", load_hardware("cpu"))
    assert isinstance(profile, AffineProfile)
    assert not hasattr(profile, "core_speed")


def _with_journal(folder: Path) -> Path:
    journal(folder)
    return folder


def test_a_killed_run_is_readable_and_incomplete(tmp_path: Path) -> None:
    LiveRunWriter.create(tmp_path)
    journal(tmp_path)
    with (tmp_path / JOURNAL).open("a") as file:
        file.write('["c", 2, 0.')  # torn by the kill
    run = LiveRun.read(tmp_path)
    assert not run.complete
    assert run.manifest["incomplete_reason"] == "the run did not end"
    assert run.requests["output_tokens"].tolist() == [4, 1, 0]
    assert is_live_run(tmp_path)
    assert not is_live_run(tmp_path / "none")


def test_a_reason_marks_the_run_incomplete(tmp_path: Path) -> None:
    writer = LiveRunWriter.create(tmp_path)
    run = writer.finish("the server died")
    assert (run.complete, run.manifest["incomplete_reason"], len(run.requests)) == (False, "the server died", 0)


@pytest.mark.parametrize(
    ("error", "reason"), [(LiveError("no server\nits log"), "no server"), (KeyboardInterrupt(), "interrupted")]
)
def test_what_ends_a_run_before_its_load_is_noted(tmp_path: Path, error: BaseException, reason: str) -> None:
    writer = LiveRunWriter.create(tmp_path)
    with pytest.raises(type(error)), writer.noting():
        raise error
    run = LiveRun.read(tmp_path)
    assert (run.complete, run.manifest["incomplete_reason"], len(run.requests)) == (False, reason, 0)


def test_a_full_disk_leaves_the_older_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = LiveRunWriter.create(tmp_path, name="before")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(LiveError, match=r"manifest\.json: cannot be written: No space left on device"):
        writer.update(name="after")
    assert read_manifest(tmp_path)["name"] == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == [JOURNAL, MANIFEST]


def test_a_journal_on_a_full_disk_says_so() -> None:
    file = Journal(Path("/dev/full"))
    file.append(["s", 0, 0.1])
    with pytest.raises(LiveError, match=r"^/dev/full: cannot be written: No space left on device$"):
        file.flush()


@pytest.mark.parametrize(
    "line", ["nonsense", "[]", '["s", 1]', '{"a": 1}', '["x", 1, 2]', "[[]]", '["s", 0, NaN]', '["s", 0, "1"]']
)
def test_a_strange_line_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / JOURNAL).write_text(f'["r", 0, "a", 0.0, 1, 1]\n{line}\n')
    with pytest.raises(InputError, match=r"journal\.jsonl:2: (is not a line|not valid JSON)"):
        read_journal(tmp_path / JOURNAL)


def test_a_run_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="is not empty"):
        LiveRunWriter.create(tmp_path)
    with pytest.raises(InputError, match="cannot be made"):
        LiveRunWriter.create(tmp_path / "file")


def test_an_unknown_manifest_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="speed"):
        LiveRunWriter.create(tmp_path, speed=1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("", "not valid JSON"),
        ("[]", "must be a JSON object"),
        (json.dumps({"kind": "simulated"}), "not the manifest of a live run"),
        (json.dumps({"kind": "live", "schema_version": 2}), "schema_version = 2: written by another version"),
        (json.dumps({"kind": "live", "schema_version": 1}), "neither requests"),
    ],
)
def test_what_is_no_run_is_refused(tmp_path: Path, data: str, message: str) -> None:
    (tmp_path / MANIFEST).write_text(data)
    with pytest.raises(InputError, match=message):
        LiveRun.read(tmp_path)


def test_a_missing_or_damaged_table_is_named(tmp_path: Path) -> None:
    LiveRunWriter.create(tmp_path).finish()
    (tmp_path / "requests.parquet").write_bytes(b"torn")
    with pytest.raises(InputError, match=r"requests\.parquet: damaged"):
        LiveRun.read(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        LiveRun.read(tmp_path / "none")
