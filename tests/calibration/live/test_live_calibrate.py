"""Calibration on live runs: a server whose step time is known is found again, and what cannot be fitted is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftcast.calibration.engine_log.profile import ProfileLabel
from draftcast.calibration.live.composition import composed_steps, timed_run
from draftcast.calibration.live.run_directory import LiveRun
from draftcast.calibration.live.step_profile import (
    LiveCalibration,
    calibrate_live,
    measure_front_end,
    output_delays,
    run_digest,
    turnarounds,
    write_live_profile,
)
from draftcast.calibration.profile.hardware import load_hardware
from draftcast.calibration.profile.load import load_profile
from draftcast.calibration.profile.spec import AffineProfile
from draftcast.errors import InputError
from draftcast.scenarios.cli.main import main

CPU = load_hardware("cpu")
NOISE = 0.02


@pytest.fixture(scope="module")
def runs(played: Any, profile: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, LiveRun]:
    """Runs of one server: two loads without drafts, with two draft lengths, with text search."""
    folder = tmp_path_factory.mktemp("made") / "runs"
    wanted: dict[str, tuple[str | None, int, dict[str, Any]]] = {
        "off-4": (None, 0, {"users": 4}),
        "off-16": (None, 0, {"users": 16, "requests": 80}),
        "off-rate": (None, 0, {"rate": 1.0}),
        "draft-3": ("draft_model", 3, {"users": 4}),
        "draft-rate": ("draft_model", 3, {"rate": 1.0}),
        "draft-1": ("draft_model", 1, {"users": 8}),
        "ngram": ("ngram", 3, {"users": 4}),
    }
    return {
        name: played.play(folder / name, played.question(profile, method, k, **load), seed=seed, noise=NOISE)
        for seed, (name, (method, k, load)) in enumerate(wanted.items())
    }


@pytest.fixture(scope="module")
def calibrated(runs: dict[str, LiveRun]) -> LiveCalibration:
    return calibrate_live(list(runs.values()))


def test_the_step_time_of_a_played_server_is_found_again(played: Any, calibrated: LiveCalibration) -> None:
    fit, true = calibrated, played.TRUE_PROFILE
    # What is exposed in every step cannot be told from the target's fixed seconds.
    assert fit.coefficients["fixed_s"] == pytest.approx(0.021, rel=0.02)
    assert fit.coefficients["draft_pass_s"] == pytest.approx(true["draft"]["pass_s"], rel=0.1)
    assert fit.coefficients["draft_token_s"] == pytest.approx(true["draft"]["draft_token_s"], rel=0.2)
    rows, seconds = np.array(true["target"]["rows"]).T
    found_rows, found_s = np.array(fit.rows).T
    at = np.array([2.0, 4.0, 8.0, 16.0, 128.0])  # where the runs have many steps
    np.testing.assert_allclose(np.interp(at, found_rows, found_s), np.interp(at, rows, seconds), rtol=0.05, atol=5e-4)
    assert (np.diff(found_s) >= 0).all()


def test_errors_are_of_runs_that_were_not_seen(calibrated: LiveCalibration) -> None:
    fit = calibrated
    assert {each.run: each.whole for each in fit.held_out} == {
        "runs/off-4 (off)": True,
        "runs/off-16 (off)": True,
        "runs/off-rate (off)": True,
        "runs/draft-3 (draft_model k=3)": True,
        "runs/draft-rate (draft_model k=3)": True,
        "runs/draft-1 (draft_model k=1)": True,
        "runs/ngram (ngram k=3)": False,
    }
    # Noise of 2 % a step: a perfect fit errs by 1.3 % at the median and 3.3 % at the ninth decile.
    assert 0.01 < fit.all.median < 0.03
    assert fit.all.p90 < 0.06
    assert abs(fit.regression.seconds_over_fit - 1.0) < 0.01


def test_front_end_is_measured_not_fitted_to_latencies(played: Any, calibrated: LiveCalibration) -> None:
    seconds, true = calibrated.front_end.seconds, played.QUICK
    # The engine's millisecond beside its own figure is told from the way in by stamps of whole milliseconds only.
    assert seconds.request_s == pytest.approx(true.request_s, abs=1e-3)
    assert seconds.output_s == pytest.approx(true.output_s, abs=2e-4)
    assert seconds.turnaround_s == pytest.approx(true.turnaround_s, abs=1e-4)
    assert calibrated.front_end.arrivals >= 5
    # Played closed loops have no seconds for each request of a step, see `played_run`.
    alone = [run for run in calibrated.runs if run.run.folder.name.endswith("rate")]
    fitted_s = [np.zeros(len(run.steps)) for run in alone]
    assert measure_front_end(alone, fitted_s).seconds.output_sequence_s == pytest.approx(1e-4, rel=0.3)


def test_delays_and_turnarounds_of_a_run(played: Any, runs: dict[str, LiveRun]) -> None:
    delays = output_delays(timed_run(runs["off-rate"], composed_steps(runs["off-rate"])))
    assert len(delays) == len(runs["off-rate"].chunks)
    assert delays["seconds"].to_numpy() == pytest.approx(0.001 + 0.0001 * delays["outputs"].to_numpy(), abs=6e-4)
    assert turnarounds(runs["off-rate"]).size == 0
    assert turnarounds(runs["off-4"]) == pytest.approx(np.full(60 - 4, played.QUICK.turnaround_s), abs=1e-6)


def test_a_profile_folder_is_written_and_read_back(
    calibrated: LiveCalibration, runs: dict[str, LiveRun], tmp_path: Path
) -> None:
    folder = tmp_path / "profile"
    write_live_profile(calibrated, folder, ProfileLabel("mine", "testbed-250M", CPU, 1, "fp32"))
    found = load_profile(folder, CPU)
    assert isinstance(found, AffineProfile)
    assert found.target.rows == tuple((rows, pytest.approx(s, rel=1e-8)) for rows, s in calibrated.rows)
    assert found.target.fixed_s == pytest.approx(calibrated.coefficients["fixed_s"], rel=1e-8)
    assert found.draft.pass_s == pytest.approx(calibrated.coefficients["draft_pass_s"], rel=1e-8)
    assert found.ngram.step_s == pytest.approx(calibrated.coefficients["ngram_step_s"], rel=1e-8, abs=1e-15)
    assert (set(found.draft.methods), set(found.ngram.methods)) == ({"draft_model"}, {"ngram"})
    assert found.fitted_runs == {run_digest(run): f"runs/{name}" for name, run in runs.items()}
    assert found.front_end is not None
    report = json.loads((folder / "calibration.json").read_text())
    assert [run["method"] for run in report["runs"]].count("draft_model") == 3
    with pytest.raises(InputError, match=r"profile\.yaml"):
        write_live_profile(calibrated, folder, ProfileLabel("mine", "testbed-250M", CPU, 1, "fp32"))


def test_a_run_is_known_wherever_its_folder_lies(runs: dict[str, LiveRun], tmp_path: Path) -> None:
    import shutil

    shutil.copytree(runs["off-4"].folder, tmp_path / "moved")
    moved = LiveRun.read(tmp_path / "moved")
    assert run_digest(moved) == run_digest(runs["off-4"])
    assert run_digest(moved) != run_digest(runs["off-16"])
    with pytest.raises(InputError, match=r"off-4: is given twice"):
        calibrate_live([runs["off-4"], runs["off-16"], moved])


def test_what_cannot_be_fitted_together_is_refused(
    played: Any, profile: Path, runs: dict[str, LiveRun], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="a run of the same server without speculation is needed"):
        calibrate_live([runs["draft-3"], runs["draft-rate"]])
    bare = played.play(tmp_path / "bare", played.question(profile, requests=4), log=False)
    with pytest.raises(InputError, match=r"has no server\.log"):
        calibrate_live([bare])
    few = played.play(tmp_path / "few", played.question(profile, requests=1, output=(20, 20)))
    with pytest.raises(InputError, match=r"few: \d+ timed steps with no speculation are too few; 40"):
        calibrate_live([few])
    eagle = played.question(profile)
    eagle["engine"]["dtype"] = "bfloat16"
    other = LiveRun(runs["off-4"].folder, {**runs["off-4"].manifest, "scenario": eagle}, *_tables(runs["off-16"]))
    with pytest.raises(InputError, match=r"dtype = 'bfloat16': the other runs have 'float32'"):
        calibrate_live([runs["off-4"], runs["off-rate"], other])


def _tables(run: LiveRun) -> tuple[Any, Any]:
    return run.requests, run.chunks


def test_the_command_prints_and_writes(
    runs: dict[str, LiveRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [str(runs[name].folder) for name in ("off-4", "off-rate")]
    out = tmp_path / "profile"
    monkeypatch.setattr("sys.argv", ["draftcast", "live", "calibrate", *folders, "--out", str(out)])
    with pytest.raises(SystemExit, match="0"):
        main()
    printed = capsys.readouterr().out
    assert "held out" in printed
    assert "off-rate (off)" in printed
    assert "front end: " in printed
    found = load_profile(out, CPU)
    assert isinstance(found, AffineProfile)
    assert (found.name, found.model, found.dtype, found.enforce_eager) == ("profile", "testbed-250m", "fp32", True)
