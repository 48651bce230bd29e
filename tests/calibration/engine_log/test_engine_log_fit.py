"""Coefficients from iteration logs: known ones come back, whatever the outliers; what a log cannot say is said."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from paths import DATA

from draftcast.calibration.engine_log.fit import EngineLogFit, FitOptions, fit_engine_log
from draftcast.calibration.engine_log.log import read_engine_log
from draftcast.calibration.engine_log.steps import timed_steps, with_kv_tokens
from draftcast.calibration.profile.hardware import load_hardware
from draftcast.errors import InputError
from draftcast.scenarios.cli.calibrate import LogOptions, ProfileOptions, calibrate_engine_log

CAPACITY, BLOCK = 100_000, 16
STAMPS = {"us": 21, "ms": 18, "s": 14}  # characters of a stamp
TRUE = {"fixed_s": 8e-3, "row_s": 2e-5, "kv_token_s": 1e-7, "sequence_s": 1.5e-4}
NO_SEQUENCES = TRUE | {"sequence_s": 0.0}
DRAFT = {"draft_fixed_s": 0.0, "draft_pass_s": 1e-3, "draft_token_s": 4e-5, "draft_kv_token_s": 5e-8}


def write_log(
    path: Path,
    steps: int = 2000,
    true: dict[str, float] | None = None,
    *,
    k: int = 0,
    draft: dict[str, float] | None = None,
    fraction: float = 0.0,
    noise: float = 0.02,
    outliers: float = 0.1,
    elapsed_share: float = 0.95,
    stamp: str = "us",
    prompts: int = 600,
    most: int = 48,
    level: int = 0,
    usage: bool = True,
    ahead: bool = False,
    method: str = "draft_model",
    eager: str = ", enforce_eager=False",
    seed: int = 0,
) -> Path:
    """A server's log, its step times made of known coefficients: relative noise and gross outliers (3 to 10 times).

    Args:
        prompts: mean prompt length; 0: requests appear with a token in the cache (a log of decoding only).
        most: the number of requests rises and falls between 1 and this; ``level`` holds it.
        ahead: the usage shows the next step's blocks already, as under asynchronous scheduling.
        k: drafts verified for each request; half of them are accepted.
    """
    true = true or TRUE
    draft = draft or dict.fromkeys(DRAFT, 0.0)
    rng = np.random.default_rng(seed)
    running: list[list[int]] = []  # tokens in the cache, output tokens left
    plan = []
    for i in range(steps):
        wanted = level or 1 + int((most - 1) * (0.5 - 0.5 * np.cos(2 * np.pi * i / 700)))
        context = []
        if len(running) < wanted:
            tokens = 1 + int(rng.integers(prompts // 4, 2 * prompts)) if prompts else 0
            fresh = [tokens if prompts else int(rng.integers(50, 900)), int(rng.integers(20, 300))]
            context = [fresh]
        generation = len(running)
        kv = sum(tokens for tokens, _ in running)
        for request in running:
            kept = 1 + (int(rng.integers(0, k + 1)) if k else 0)
            request[0] += kept
            request[1] -= kept
        running = [request for request in running if request[1] > 0] + context
        plan.append((context[0][0] if context and prompts else 0, generation, kv, [tokens for tokens, _ in running]))
    speculative = f"SpeculativeConfig(method='{method}', model='d', num_spec_tokens={k})" if k else "None"
    lines = [
        f"INFO non-default args: {{'model': 'm', 'block_size': {BLOCK}}}",
        f"INFO Initializing a V1 LLM engine (v0.32.0) with config: model='m', "
        f"speculative_config={speculative}, x='m'{eager}",
        f"INFO GPU KV cache size: {CAPACITY:,} tokens, Maximum concurrency for 4,096 tokens per request: 24.41x",
    ]
    now = 1_000_000.0
    for i, (context_tokens, generation, kv, left) in enumerate(plan):
        rows, sequences = context_tokens + (1 + k) * generation, generation + (context_tokens > 0)
        made = k * plan[i + 1][1] if i + 1 < steps else 0
        seconds = true["fixed_s"] + true["row_s"] * rows + true["kv_token_s"] * kv + true["sequence_s"] * sequences
        seconds *= 1.0 + fraction
        seconds += draft["draft_fixed_s"] + draft["draft_token_s"] * made + draft["draft_kv_token_s"] * kv
        seconds += draft["draft_pass_s"] * (k if made else 0)
        seconds *= np.exp(noise * rng.standard_normal())
        if rng.random() < outliers:
            seconds *= rng.uniform(3.0, 10.0)
        now += seconds
        held = [tokens + (1 + k if ahead else 0) for tokens in left]
        if ahead and i + 1 < steps:
            held.append(plan[i + 1][0])
        used = sum(-(-tokens // BLOCK) * BLOCK for tokens in held) / CAPACITY
        if rows == 0:
            continue
        clock = datetime.fromtimestamp(now, UTC).strftime("%m-%d %H:%M:%S.%f")[: STAMPS[stamp]]
        lines.append(
            f"(APIServer pid=7) INFO {clock} [loggers.py:199] Engine 000: Iteration({i}): "
            f"{int(context_tokens > 0)} context requests, {context_tokens} context tokens, {generation} generation "
            f"requests, {(1 + k) * generation} generation tokens, iteration elapsed time: "
            f"{1e3 * elapsed_share * seconds:.2f} ms" + (f", GPU KV cache usage: {100 * used:.1f}%" if usage else "")
        )
    path.write_text("\n".join(lines) + "\n")
    return path


def frame_of(tmp_path: Path, name: str = "plain.log", **options: Any) -> pd.DataFrame:
    return read_engine_log(write_log(tmp_path / name, **options))


def fitted(*frames: pd.DataFrame, **options: Any) -> EngineLogFit:
    return fit_engine_log(*frames, options=FitOptions(**options))


def values(fit: Any) -> dict[str, float]:
    return {name: found.value for name, found in fit.coefficients.items()}


def test_known_coefficients_come_back_and_least_squares_does_not_find_them(tmp_path: Path) -> None:
    frame = frame_of(tmp_path)
    fit = fitted(frame, bootstrap=100)
    found = values(fit.regression)
    tolerance = {"fixed_s": 0.03, "row_s": 0.05, "kv_token_s": 0.10, "sequence_s": 0.10}
    for name, most in tolerance.items():
        assert found[name] == pytest.approx(TRUE[name], rel=most), name
        assert fit.regression.coefficients[name].standing == "identified"
        assert fit.regression.coefficients[name].low < found[name] < fit.regression.coefficients[name].high
    assert fit.regression.held_out["all"].median < 0.02
    assert fit.regression.outlier_points == pytest.approx(0.1, abs=0.02)
    assert fit.regression.outlier_seconds > 0.3
    assert fit.regression.seconds_over_fit > 1.4  # what the outliers cost is not hidden
    assert fit.repeat_error == pytest.approx(0.02 * 0.6745, rel=0.5)
    # The same points by ordinary least squares: the outliers raise every step by half.
    points = timed_steps(with_kv_tokens(frame)).frame.dropna(subset="kv_tokens")
    x = points[["steps", "rows", "kv_tokens", "sequences"]].to_numpy(dtype=float)
    plain = np.linalg.lstsq(x, points["seconds"].to_numpy(), rcond=None)[0]
    assert any(abs(b / TRUE[name] - 1.0) > 3 * tolerance[name] for name, b in zip(TRUE, plain, strict=True))


@pytest.mark.parametrize("stamp", ["ms", "s"])
def test_coarse_stamps_still_give_whole_steps(tmp_path: Path, stamp: str) -> None:
    """Elapsed leaves a fifth of each step out; the stamps find it again."""
    frame = frame_of(tmp_path, stamp=stamp, outliers=0.0, elapsed_share=0.81)
    fit = fitted(frame, bootstrap=0)
    assert fit.clock == ("elapsed" if stamp == "s" else "wall")
    assert fit.elapsed_share == pytest.approx(0.81, abs=0.01)
    assert fit.host_fixed_s > 0.1 * TRUE["fixed_s"]
    typical = np.array([1.0, 100.0, 12_000.0, 20.0])
    whole = float(typical @ np.array(list(TRUE.values())))
    assert float(typical @ np.array(list(values(fit.regression).values()))) == pytest.approx(whole, rel=0.02)
    assert fit.regression.coefficients["fixed_s"].value >= fit.overhead_s > 0.0


def test_elapsed_that_is_not_the_step_is_not_taken_for_it(tmp_path: Path) -> None:
    """One GPU, worker in the engine's process: elapsed is next to nothing and the blocks between seconds are used."""
    frame = frame_of(tmp_path, stamp="s", outliers=0.0, elapsed_share=0.01, steps=6000)
    fit = fitted(frame, bootstrap=0)
    assert fit.clock == "wall"
    assert fit.points < fit.steps / 20
    assert np.isnan(fit.host_fixed_s)
    assert fit.overhead_s == 0.0
    assert fit.regression.held_out["all"].median < 0.05
    forced = fitted(frame, clock="elapsed", bootstrap=0)
    assert forced.regression.coefficients["fixed_s"].value < 0.05 * TRUE["fixed_s"]


def test_asynchronous_usage_is_read_rightly(tmp_path: Path) -> None:
    found = [
        values(fitted(frame_of(tmp_path, outliers=0.0, ahead=ahead, prompts=1500), bootstrap=0).regression)
        for ahead in (False, True)
    ]
    for name in TRUE:
        assert found[1][name] == pytest.approx(found[0][name], rel=0.08), name


def test_rows_and_sequences_that_move_together_are_not_told_apart(tmp_path: Path) -> None:
    fit = fitted(frame_of(tmp_path, prompts=0), bootstrap=50)
    own = fit.regression.coefficients["sequence_s"]
    assert own.value == 0.0
    assert own.standing == "not fitted: moves with row_s, which carries it"
    assert fit.regression.coefficients["row_s"].value == pytest.approx(TRUE["row_s"] + TRUE["sequence_s"], rel=0.1)
    assert fit.regression.coefficients["row_s"].standing == "identified"


def test_rows_that_never_change_are_carried_by_the_fixed_seconds(tmp_path: Path) -> None:
    fit = fitted(frame_of(tmp_path, prompts=0, level=8), bootstrap=0)
    assert fit.regression.coefficients["row_s"].standing == "not fitted: moves with fixed_s, which carries it"
    assert fit.sequences[1] == 8


def test_a_log_without_usage_gives_no_kv_coefficient(tmp_path: Path) -> None:
    fit = fitted(frame_of(tmp_path, usage=False), bootstrap=0)
    kv = fit.regression.coefficients["kv_token_s"]
    assert (kv.value, kv.standing) == (0.0, "not fitted: the log does not give KV tokens")
    assert fit.regression.coefficients["row_s"].value > 0.0
    # A capacity given by hand cannot help it, but a column can.
    frame = frame_of(tmp_path, usage=False)
    known = with_kv_tokens(frame_of(tmp_path))["kv_tokens"]
    assert fitted(frame.assign(kv_tokens=known), bootstrap=0).regression.coefficients["kv_token_s"].value > 0.0


def test_drafting_is_the_difference_of_two_logs(tmp_path: Path) -> None:
    plain = frame_of(tmp_path)
    drafting = frame_of(tmp_path, "draft.log", k=3, draft=DRAFT, seed=1)
    fit = fitted(plain, drafting, bootstrap=50)
    assert (fit.method, fit.num_speculative_tokens) == ("draft_model", (3,))
    found = values(fit.regression)
    for name, most in {"fixed_s": 0.03, "row_s": 0.05, "kv_token_s": 0.1, "draft_pass_s": 0.1}.items():
        assert found[name] == pytest.approx((TRUE | DRAFT)[name], rel=most), name
    # Drafts and sequences are nearly the same thing here; their sum is what is known.
    assert found["draft_token_s"] == pytest.approx(DRAFT["draft_token_s"], rel=0.5)
    assert fit.regression.held_out["speculative"].median < 0.03
    alone = fitted(drafting, bootstrap=0)
    assert alone.speculative
    assert alone.regression.coefficients["fixed_s"].value == pytest.approx(
        TRUE["fixed_s"] + 3 * DRAFT["draft_pass_s"], rel=0.05
    )


def test_passes_and_fixed_seconds_are_told_apart_by_logs_of_several_depths(tmp_path: Path) -> None:
    draft = {"draft_fixed_s": 4e-3, "draft_pass_s": 1.5e-3, "draft_token_s": 0.0, "draft_kv_token_s": 0.0}
    plain = frame_of(tmp_path, outliers=0.0)
    logs = [frame_of(tmp_path, f"k{k}.log", k=k, draft=draft, seed=k, outliers=0.0) for k in (1, 5)]
    fit = fitted(plain, pd.concat(logs, ignore_index=True), bootstrap=0)
    assert fit.num_speculative_tokens == (1, 5)
    for name in ("draft_fixed_s", "draft_pass_s"):
        assert fit.regression.coefficients[name].value == pytest.approx(draft[name], rel=0.1), name
    one = fitted(plain, logs[1], bootstrap=0).regression
    assert one.coefficients["draft_fixed_s"].standing == "not fitted: moves with draft_pass_s, which carries it"
    assert one.coefficients["draft_pass_s"].value == pytest.approx(1.5e-3 + 4e-3 / 5, rel=0.1)


def test_what_the_server_was_started_with_is_read(tmp_path: Path) -> None:
    plain = frame_of(tmp_path, steps=400)
    eager = frame_of(tmp_path, "eager.log", steps=400, k=2, draft=DRAFT, eager=", enforce_eager=True")
    unsaid = frame_of(tmp_path, "unsaid.log", steps=400, eager="")
    assert fitted(plain, bootstrap=0).enforce_eager is False
    assert fitted(unsaid, eager, bootstrap=0).enforce_eager is True
    assert fitted(unsaid, bootstrap=0).enforce_eager is None
    with pytest.raises(InputError, match=r"eager.log: enforce_eager = True: the logs differ.* with False"):
        fitted(plain, eager, bootstrap=0)


def test_text_search_costs_seconds_of_its_own(tmp_path: Path) -> None:
    plain = frame_of(tmp_path, true=NO_SEQUENCES, elapsed_share=1.0)
    searching = frame_of(
        tmp_path, "ngram.log", true=NO_SEQUENCES, k=3, fraction=0.2, method="ngram", seed=1, elapsed_share=1.0
    )
    fit = fitted(plain, searching, bootstrap=50)
    # The log's searches take a fifth of the target's time: of the step itself, and of four rows for each sequence.
    found = fit.regression.coefficients["ngram_step_s"]
    assert found.value == pytest.approx(0.2 * TRUE["fixed_s"], rel=0.1)
    assert found.low < found.value < found.high
    typical_s = (
        fit.regression.coefficients["ngram_step_s"].value + 24 * fit.regression.coefficients["ngram_sequence_s"].value
    )
    typical_s += 12_000 * fit.regression.coefficients["ngram_token_s"].value
    whole_s = TRUE["fixed_s"] + 24 * 4 * TRUE["row_s"] + 12_000 * TRUE["kv_token_s"]
    assert typical_s == pytest.approx(0.2 * whole_s, rel=0.1)
    assert "draft_fixed_s" not in fit.regression.coefficients


def test_held_out_points_are_stretches_of_time_spread_over_the_log(tmp_path: Path) -> None:
    """A server that slows down for good half-way is predicted badly: neighbours of held-out steps do not tell."""
    frame = frame_of(tmp_path, outliers=0.0)
    steady = fitted(frame, bootstrap=0).regression.held_out["all"]
    assert steady.points == pytest.approx(500, abs=60)
    assert fitted(frame, bootstrap=0, held_out=0.5).regression.held_out["all"].points > 1.8 * steady.points
    later = frame.assign(time_s=frame["time_s"] * np.where(frame["step"] > 1000, 2.0, 1.0))
    assert fitted(later, bootstrap=0).regression.held_out["all"].median > 5 * steady.median


def test_every_knob_changes_the_fit(tmp_path: Path) -> None:
    frame = frame_of(tmp_path, steps=800, elapsed_share=0.9)
    base = fitted(frame, bootstrap=20).report()
    assert fitted(frame, bootstrap=20).report() == base
    knobs: list[dict[str, Any]] = [
        {"clock": "elapsed"},
        {"warmup_steps": 200},
        {"held_out": 0.4},
        {"bootstrap": 21},
        {"confidence": 0.5},
        {"seed": 1},
        {"kv_capacity_tokens": 50_000},
        {"block_size": 512},
    ]
    for knob in knobs:
        assert fitted(frame, **{"bootstrap": 20, **knob}).report() != base, knob


def test_arguments_and_logs_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    frame = frame_of(tmp_path, steps=400)
    drafting = frame_of(tmp_path, "draft.log", steps=400, k=2, draft=DRAFT)
    unnamed = drafting.assign(method="?")
    refused: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((frame,), {"held_out": 0.0}, "held_out = 0.0: must be above 0 and at most 0.5"),
        ((frame,), {"bootstrap": -1}, "bootstrap = -1: must be at least 0"),
        ((frame,), {"confidence": 1.0}, "confidence = 1.0: must be between 0 and 1"),
        ((frame,), {"warmup_steps": -5}, "warmup_steps = -5: must be at least 0"),
        ((frame,), {"kv_capacity_tokens": 0.0}, "kv_capacity_tokens = 0.0: must be at least 1"),
        ((frame,), {"kv_capacity_tokens": -5.0}, "kv_capacity_tokens = -5.0: must be at least 1"),
        ((frame,), {"block_size": 0}, "block_size = 0: must be at least 1"),
        ((frame.head(30),), {}, "plain.log: 20 usable points are too few; at least 40"),
        ((frame, frame), {}, "plain.log: its steps verify no drafts"),
        ((drafting, drafting), {}, "draft.log: its steps verify drafts"),
        ((frame, drafting), {"method": "eagle"}, "draft.log: method = 'eagle': the log is of draft_model"),
        ((frame, unnamed), {}, "draft.log: method: required"),
    ]
    for frames, options, message in refused:
        with pytest.raises(InputError) as raised:
            fitted(*frames, **options)
        assert message in str(raised.value)
    assert fitted(frame, unnamed, method="eagle", bootstrap=0).method == "eagle"


def test_real_log_is_fitted_and_its_error_reported() -> None:
    """Two shared cores: the bounds are this log's own, not a promise. Repeated steps alone differ by the first."""
    plain = read_engine_log(DATA / "engine_log_off.log.gz")
    fit = fitted(plain, read_engine_log(DATA / "engine_log_draft.log.gz"), bootstrap=50)
    report = json.loads(json.dumps(fit.report(), allow_nan=False))
    errors = report["regression"]["held_out"]
    assert report["clock"] == "wall"
    assert 0.9 < fit.elapsed_share <= 1.0  # worker processes, no asynchronous scheduling
    assert fit.sequences == (1, 32)
    assert errors["all"]["median"] < 0.15
    assert errors["speculative"]["median"] < 0.15
    assert errors["all"]["median"] <= errors["all"]["p90"] <= errors["all"]["worst"]
    for name in ("fixed_s", "row_s", "draft_pass_s"):
        assert fit.regression.coefficients[name].standing == "identified", name


def calibrate(tmp_path: Path, **options: Any) -> None:
    given: dict[str, Any] = {"model": "Llama-3.1-8B", "hardware": "h100-sxm", "dtype": "bf16", "bootstrap": 20}
    given |= options
    lists = {name: [given.pop(name)] for name in ("model", "tp", "dtype") if given.get(name) is not None}
    profile = {name: given.pop(name) for name in ("model", "hardware", "name", "out") if name in given}
    calibrate_engine_log([tmp_path / "plain.log"], ProfileOptions(**profile | lists), LogOptions(**given))


def test_profile_that_load_profile_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from draftcast.calibration.profile.load import load_profile
    from draftcast.calibration.profile.spec import AffineProfile

    eager = ", enforce_eager=True"
    frame_of(tmp_path, eager=eager)
    frame_of(tmp_path, "draft.log", k=3, draft=DRAFT, seed=1, eager=eager)
    calibrate(tmp_path, speculative_log=[tmp_path / "draft.log"], out=tmp_path / "made", tp=2)
    shown = capsys.readouterr().out
    report = json.loads((tmp_path / "made/engine_log.json").read_text())
    profile = load_profile(tmp_path / "made/profile.yaml", load_hardware("h100-sxm"))
    assert isinstance(profile, AffineProfile)
    coefficients = {name: found["value"] for name, found in report["regression"]["coefficients"].items()}
    assert profile.target.fixed_s + profile.overhead_s == pytest.approx(coefficients["fixed_s"])
    assert profile.overhead_s == pytest.approx(report["overhead_s"])
    assert profile.overhead_s > 0.0
    assert profile.target.row_s == pytest.approx(coefficients["row_s"])
    assert profile.target.sequence_s == pytest.approx(coefficients["sequence_s"])
    assert profile.target.sequence_s == pytest.approx(TRUE["sequence_s"], rel=0.2)
    assert profile.draft.fixed_s == pytest.approx(coefficients["draft_fixed_s"])
    assert profile.draft.pass_s == pytest.approx(coefficients["draft_pass_s"])
    assert profile.draft.pass_s > 0.0
    assert profile.enforce_eager is True
    command = "draftcast calibrate --engine-log plain.log --speculative-log draft.log --bootstrap 20"
    command += " --model Llama-3.1-8B --hardware h100-sxm --tp 2 --dtype bf16 --out made"
    assert json.loads((tmp_path / "made/manifest.json").read_text())["command"] == command
    # The folder as a whole is a profile too.
    assert load_profile(tmp_path / "made", load_hardware("h100-sxm")) == profile
    assert (profile.name, profile.model, profile.tp, profile.dtype) == ("made", "llama-3.1-8b", 2, "bf16")
    assert list(profile.draft.methods) == ["draft_model"]
    assert profile.ngram.methods == {}
    assert profile.fitted_sequences == tuple(report["sequences"])
    assert "vLLM 0.32.0 (plain.log, draft.log; draft_model, k 3), wall clock" in profile.source
    assert "held out, speculative" in shown
    assert "written:" in shown
    for note in report["notes"]:
        assert note in shown
        assert note in (tmp_path / "made/profile.yaml").read_text()


def test_profile_of_text_search_and_of_none(tmp_path: Path) -> None:
    frame_of(tmp_path)
    frame_of(tmp_path, "ngram.log", k=3, fraction=0.2, method="ngram", seed=1)
    calibrate(tmp_path, speculative_log=[tmp_path / "ngram.log"], out=tmp_path / "searched", name="mine")
    searched = yaml.safe_load((tmp_path / "searched/profile.yaml").read_text())
    assert searched["name"] == "mine"
    assert searched["ngram"]["methods"] == {"ngram": "interpolated"}
    assert searched["ngram"]["step_s"] > 0.1 * TRUE["fixed_s"]
    calibrate(tmp_path, out=tmp_path / "plain")
    plain = yaml.safe_load((tmp_path / "plain/profile.yaml").read_text())
    assert (plain["draft"]["methods"], plain["ngram"]["methods"]) == ({}, {})


def test_command_prints_one_json_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame_of(tmp_path)
    calibrate_engine_log([tmp_path / "plain.log"], ProfileOptions(as_json=True), LogOptions(bootstrap=0))
    report = json.loads(capsys.readouterr().out)
    assert report["regression"]["coefficients"]["row_s"]["low"] is None
    assert report["sources"] == [str(tmp_path / "plain.log")]
    assert any("times the fitted time" in note for note in report["notes"])


def test_command_refuses_what_it_cannot_write(tmp_path: Path) -> None:
    frame_of(tmp_path, steps=300)
    frame_of(tmp_path, "draft.log", steps=300, k=3, draft=DRAFT)
    frame_of(tmp_path, "medusa.log", steps=300, k=3, draft=DRAFT, method="medusa")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/profile.yaml").write_text("mine")
    out = {"out": tmp_path / "made"}
    refused: list[tuple[dict[str, Any], str]] = [
        ({**out, "model": None}, "--model: required with --out"),
        ({**out, "hardware": None}, "--hardware: required with --out"),
        ({"out": tmp_path / "full"}, "already exists"),
        ({"out": tmp_path / "plain.log"}, "cannot be made"),
        ({**out, "speculative_log": [tmp_path / "medusa.log"]}, "method = 'medusa': an affine profile holds only"),
        ({**out, "dtype": "bfloat16"}, "dtype"),
        ({"model": "no-such"}, "model = 'no-such': unknown model"),
        ({"model": "Qwen3-8B"}, "plain.log: model = 'meta-llama/Llama-3.1-8B': was measured on another model than Qw"),
    ]
    log = (tmp_path / "plain.log").read_text()
    (tmp_path / "plain.log").write_text(log.replace("model='m'", "model='meta-llama/Llama-3.1-8B'"))
    for options, message in refused:
        with pytest.raises(InputError) as raised:
            calibrate(tmp_path, **options)
        assert message in str(raised.value)
        assert not (tmp_path / "made/profile.yaml").exists()
    profile = ProfileOptions(model=["Llama-3.1-8B"], hardware="h100-sxm", out=tmp_path / "made")
    with pytest.raises(InputError, match="give the log of the same server without speculative decoding"):
        calibrate_engine_log([tmp_path / "draft.log"], profile, LogOptions())
    assert (tmp_path / "full/profile.yaml").read_text() == "mine"
