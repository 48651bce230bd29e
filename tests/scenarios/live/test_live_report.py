"""A live sweep beside its forecast: effects, cutovers, verdicts, and the runs that made the profile left out."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from draftcast.errors import InputError
from draftcast.files import plain
from draftcast.scenarios.cli.main import main
from draftcast.scenarios.live.validate.sweep import (
    ResampledEffect,
    SweepValidation,
    cutover,
    validate_sweep,
    within_bar,
)
from draftcast.scenarios.show import validation_sweep_report as sweep_report
from draftcast.scenarios.show.validation_sweep_report import markdown, summary, verdicts, write_sweep_report

MODES: dict[str, tuple[str | None, int]] = {"off": (None, 0), "draft_model-k3": ("draft_model", 3)}
USERS, RATES = (1, 4, 16), (0.8,)


def steep(played: Any) -> dict[str, Any]:
    """A server whose rows cost enough that speculation does not pay with 16 users."""
    target = {**played.TRUE_PROFILE["target"], "rows": [[1, 0.0], [2, 0.010], [8, 0.014], [32, 0.06], [256, 0.75]]}
    return {**played.TRUE_PROFILE, "target": target}


@pytest.fixture(scope="module")
def sweep(played: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two modes over closed loops and a rate, after closed loops of other lengths to calibrate on."""
    folder = tmp_path_factory.mktemp("sweep")
    profile = folder / "true.yaml"
    profile.write_text(yaml.safe_dump(steep(played)))
    cells = []
    loads = [("calibration", "concurrency", users) for users in (2, 12)]
    loads += [("validation", "concurrency", users) for users in USERS] + [
        ("validation", "rate", rate) for rate in RATES
    ]
    for number, (purpose, kind, load) in enumerate(loads):
        for mode, (method, k) in MODES.items():
            changes: dict[str, Any] = {"users": load} if kind == "concurrency" else {"rate": load}
            changes |= {"requests": 30 + 5 * int(load)}
            changes |= {"prompt": (32, 400)} if purpose == "calibration" else {}
            place = f"{'calibration' if purpose == 'calibration' else kind}-{load:g}/{mode}"
            played.play(folder / place, played.question(profile, method, k, **changes), seed=number, noise=0.02)
            entry = {"dir": place, "purpose": purpose, "mode": mode, "method": method or "none", "k": k}
            entry |= {"load_kind": kind, "load": float(load), "round": 0, "order": len(cells), "seed": number}
            cells.append({**entry, "complete": True, "incomplete_reason": ""})
    index = {"schema_version": 1, "kind": "live-sweep", "complete": True, "cells": cells}
    (folder / "index.json").write_text(json.dumps(index))
    return folder


@pytest.fixture(scope="module")
def found(sweep: Path) -> SweepValidation:
    return validate_sweep(sweep)


def test_the_profile_comes_from_runs_that_are_not_judged(found: SweepValidation) -> None:
    assert found.calibrated_on == tuple(sorted(f"calibration-{users}/{mode}" for users in (2, 12) for mode in MODES))
    assert len(found.cells) == (len(USERS) + len(RATES)) * len(MODES)
    assert all(cell.entry["purpose"] == "validation" for cell in found.cells)


def test_step_times_and_effects_are_forecast(found: SweepValidation) -> None:
    assert found.steps["all"].errors.median < 0.04
    assert found.steps["off"].errors.points > 300
    # Noise of 2 % a step: the played machine repeats itself so well, and no forecast can do better.
    median, p90 = found.steps["off"].repeat_spread
    assert median == pytest.approx(0.0135, rel=0.2)
    assert p90 == pytest.approx(0.033, rel=0.2)
    closed = {each.load: each for each in found.effects if each.load_kind == "concurrency"}
    assert sorted(closed) == list(USERS)
    assert closed[1].measured > 1.2
    assert closed[16].measured < 1.0
    for each in found.effects:
        assert each.forecast == pytest.approx(each.measured, rel=0.12)
        assert each.low < each.measured < each.high
        assert each.sign in ("right", "small")


def test_the_cutover_is_measured_with_its_interval_and_forecast(found: SweepValidation) -> None:
    (where,) = found.cutovers
    assert where.low <= where.measured <= where.high
    assert 4 <= where.measured <= 16
    assert where.forecast == pytest.approx(where.measured, rel=0.3)
    assert where.within_bar
    assert where.forecast_low <= where.forecast <= where.forecast_high


def test_only_rates_below_the_capacity_are_held_to_latencies(found: SweepValidation) -> None:
    rates = [cell for cell in found.cells if cell.entry["load_kind"] == "rate"]
    assert all(0.1 < cell.capacity_share < 0.8 for cell in rates)
    assert all(cell.judged for cell in found.cells)
    asked = verdicts(found)
    assert asked["mean_tpot_s"]["of"] == len(rates)
    assert asked["output_throughput"]["of"] == len(USERS) * len(MODES)
    assert asked["step_time"] == {"held": 2, "of": 2, "missed": []}
    assert asked["cutover"] == {"held": 1, "of": 1, "missed": []}


def test_a_run_that_the_profile_has_seen_is_left_out(sweep: Path, found: SweepValidation, tmp_path: Path) -> None:
    text = (sweep / "profile" / "profile.yaml").read_text()
    from draftcast.calibration.live.step_profile import run_digest

    digest = run_digest(found.cells[0].validation.question.live)
    own = yaml.safe_load(text)
    own["fitted_runs"][digest] = "one of the sweep"
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(own))
    again = validate_sweep(sweep, str(tmp_path / "own.yaml"))
    assert len(again.cells) == len(found.cells) - 1
    assert f"{found.cells[0].entry['dir']}: the profile has seen it, not judged" in again.notes


def test_a_profile_that_is_wrong_misses_its_bars_and_shows_it(
    played: Any, sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = steep(played)
    slow["target"]["fixed_s"] = 0.04
    (tmp_path / "slow.yaml").write_text(yaml.safe_dump(slow))
    out = tmp_path / "out"
    command = ["draftcast", "live", "report", str(sweep), "--profile", str(tmp_path / "slow.yaml"), "--out", str(out)]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit, match="0"):
        main()
    assert "MISSED" in capsys.readouterr().out
    report = json.loads((out / "sweep-validation.json").read_text())
    assert report["verdicts"]["step_time"]["held"] == 0
    assert report["verdicts"]["output_throughput"]["missed"]
    # The profile is wrong, the simulator is not: with each run's own step times its throughputs hold.
    assert report["verdicts_with_own_step_times"]["output_throughput"]["missed"] == []
    assert len(report["cells"]) == (len(USERS) + len(RATES)) * len(MODES)
    content = (out / "sweep-validation.md").read_text()
    assert "| concurrency-1/off |" in content
    assert "MISSED" in content
    assert "src=" not in (out / "sweep-validation.html").read_text().split("<script")[0]


def test_a_static_page_holds_its_picture_and_no_script(
    found: SweepValidation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_report, "write_figure", lambda figure, path: path.write_text("<svg>drawn</svg>"))
    written = write_sweep_report(found, tmp_path, static=True)
    assert {path.name for path in written} == {f"sweep-validation.{kind}" for kind in ("md", "html", "json", "svg")}
    content = (tmp_path / "sweep-validation.html").read_text()
    assert "<svg>drawn</svg>" in content
    assert "<script" not in content
    assert "(sweep-validation.svg)" in (tmp_path / "sweep-validation.md").read_text()


def test_summary_is_plain(found: SweepValidation) -> None:
    report = plain(summary(found))
    assert report["cutovers"][0]["mode"] == "draft_model-k3"
    assert not {"resamples", "replications"} & set(report["effects"][0])
    assert report["cells"][0]["figures"]["output_throughput"]["measured"] > 0.0


def test_cutovers_beyond_what_was_run_are_told_in_words(found: SweepValidation) -> None:
    # The gain crosses 1 at u users where it falls from 1 + log16(u) at 1 user to log16(u) at 16 users.
    at_3, at_12 = math.log(3, 16), math.log(12, 16)
    first = ResampledEffect(
        *("on", "concurrency", 1.0, 1.5, 0.9, 1.5, 1.0 + at_3, "right"),
        np.array([0.9, 1.5]),
        np.array([0.9, 1.0 + at_12]),
    )
    second = ResampledEffect(
        *("on", "concurrency", 16.0, 1.2, 0.8, 1.2, at_3, "WRONG"), np.array([0.8, 1.2]), np.array([0.8, at_12])
    )
    always = cutover([first, second])
    assert always is not None
    assert (always.measured, always.low, always.high) == (math.inf, -math.inf, math.inf)
    report = plain(summary(dataclasses.replace(found, cutovers=(always,))))
    assert report["cutovers"][0]["shown"] == ["above 16", "3", "below 1", "above 16", "below 1", "12"]
    assert "| on | above 16 | below 1 to above 16 | 3 | below 1 to 12 | MISSED |" in markdown(
        dataclasses.replace(found, cutovers=(always,))
    )


def test_without_calibration_runs_the_scenarios_own_profile_forecasts(
    sweep: Path, found: SweepValidation, tmp_path: Path
) -> None:
    index = json.loads((sweep / "index.json").read_text())
    index["cells"] = [cell for cell in index["cells"] if cell["dir"] == "concurrency-1/off"]
    (tmp_path / "concurrency-1").symlink_to(sweep / "concurrency-1")
    (tmp_path / "index.json").write_text(json.dumps(index))
    own = validate_sweep(tmp_path)
    assert (own.profile, own.calibrated_on, own.cutovers) == ("made-up", (), ())
    assert (
        own.cells[0].validation.figures["mean_e2el_s"].error != found.cells[0].validation.figures["mean_e2el_s"].error
    )
    assert not (tmp_path / "profile").exists()
    with pytest.raises(InputError, match="no such file"):
        validate_sweep(tmp_path / "absent")


def test_a_report_elsewhere_leaves_the_sweep_alone_and_is_made_anew(sweep: Path, tmp_path: Path) -> None:
    before = sorted(str(path) for path in sweep.rglob("*"))
    index = json.loads((sweep / "index.json").read_text())
    for _ in range(2):
        again = validate_sweep(sweep, out=tmp_path)
    assert again.calibrated_on
    assert (tmp_path / "profile" / "calibration.json").is_file()
    assert sorted(str(path) for path in sweep.rglob("*")) == before
    assert len(again.cells) + len(again.calibrated_on) == len(index["cells"])


def test_acceptance_and_the_known_text_are_in_the_report(sweep: Path, found: SweepValidation, tmp_path: Path) -> None:
    (accepted,) = found.acceptance
    assert accepted.mode == "draft_model-k3"
    assert accepted.measured == pytest.approx((0.7, 0.5, 0.35), abs=0.04)
    assert accepted.forecast == pytest.approx(accepted.measured, abs=0.04)
    # The testbed's own text is checked and shown, wherever the run belongs, but is no forecast.
    checked = dataclasses.replace(found, continuation={"calibration-2/off": (100, 0), "concurrency-1/off": (50, 1)})
    assert verdicts(checked) == verdicts(found)
    assert summary(checked)["known_continuation"] == {"checked_tokens": 150, "wrong_tokens": 1}
    assert "concurrency-1/off: 1 of 50 tokens differ from the known text" in markdown(checked)


def gains(mode: str, values: dict[float, float], forecast: dict[float, float]) -> list[ResampledEffect]:
    spread = np.linspace(-0.05, 0.05, 101)
    return [
        ResampledEffect(
            mode,
            "concurrency",
            load,
            value,
            value - 0.05,
            value + 0.05,
            forecast[load],
            "right",
            value + spread,
            forecast[load] + np.array([-0.02, 0.0, 0.02]),
        )
        for load, value in values.items()
    ]


def test_cutovers_by_hand() -> None:
    # Half way between 4 and 16 on the logarithm: at 8 users.
    measured = {1.0: 1.5, 4.0: 1.2, 16.0: 0.8}
    found = cutover(gains("on", measured, {1.0: 1.5, 4.0: 1.1, 16.0: 0.7}))
    assert found is not None
    assert found.measured == pytest.approx(8.0)
    assert found.forecast == pytest.approx(4.0 * 4.0**0.25)
    assert found.low == pytest.approx(4.0 * 4.0 ** (0.1525 / 0.4), rel=0.02)
    assert found.high == pytest.approx(4.0 * 4.0 ** (0.2475 / 0.4), rel=0.02)
    assert found.forecast_low == pytest.approx(4.0 * 4.0**0.2)
    assert found.forecast_high == pytest.approx(4.0 * 4.0**0.3)
    assert found.within_bar  # 5.7 against 8: a third of a step apart
    always = cutover(gains("on", dict.fromkeys(measured, 1.5), dict.fromkeys(measured, 0.5)))
    assert always is not None
    assert (always.measured, always.forecast) == (math.inf, -math.inf)
    assert not always.within_bar
    assert cutover(gains("on", {4.0: 1.2}, {4.0: 1.2})) is None


def test_one_dip_does_not_end_a_gain() -> None:
    values = {1.0: 1.2, 2.0: 0.98, 4.0: 1.1, 8.0: 0.7}
    found = cutover(gains("on", values, values))
    assert found is not None
    assert 4.0 < found.measured < 8.0


@pytest.mark.parametrize(
    ("measured", "forecast", "held"),
    [
        (8.0, 9.0, True),
        (8.0, 16.0, True),
        (8.0, 17.0, False),
        (math.inf, math.inf, True),
        # How far beyond the last number of users is not known.
        (math.inf, 32.0, True),
        (math.inf, 31.0, False),
        (1.0, -math.inf, True),
        (-math.inf, 2.0, False),
        (-math.inf, math.inf, False),
    ],
)
def test_within_a_step_or_fifteen_per_cent(measured: float, forecast: float, held: bool) -> None:
    assert within_bar(measured, forecast, np.array([1.0, 4.0, 8.0, 16.0, 32.0])) is held
