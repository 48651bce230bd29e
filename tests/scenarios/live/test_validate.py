"""Live runs beside their forecasts: a perfect run has no error, a perturbed one is put down to what was perturbed."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from draftcast.calibration.engine_log.profile import ProfileLabel
from draftcast.calibration.live.imported_runs import import_bench_result
from draftcast.calibration.live.run_directory import LiveRun
from draftcast.calibration.live.step_profile import calibrate_live, write_live_profile
from draftcast.errors import InputError
from draftcast.scenarios.cli.main import main
from draftcast.scenarios.live.validate.comparison import CAUSES, Validation, validate
from draftcast.scenarios.schema.load import load_scenario, to_mapping, with_values
from draftcast.scenarios.show.validation_report import summary, text, write_report

ACCEPTS_MORE = {"acceptance": {"model": "per_position", "rates": [0.9, 0.8, 0.7]}}
MATCHES_LESS = {"acceptance": {"model": "ngram", "match_probability": 0.2, "alpha": 0.7}}
SLOWER = {"decode_excess": 0.3, "prompt_excess": 0.1}
LATENCIES = [f"{statistic}_{name}_s" for name in ("ttft", "tpot", "itl", "e2el") for statistic in ("mean", "median")]


@pytest.fixture(scope="module")
def compared(played: Any, profile: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """``compared(method, play={...}, load={...}, **validate)``: a played run and its validation, each made once."""
    folder = tmp_path_factory.mktemp("runs")
    known: dict[str, Validation] = {}

    def make(
        method: str | None = None,
        play: dict[str, Any] | None = None,
        load: dict[str, Any] | None = None,
        **options: Any,
    ) -> Validation:
        key = repr((method, play, load, options))
        if key not in known:
            scenario = played.question(profile, method, **(load or {}))
            run = played.play(folder / str(len(known)), scenario, seed=11, **(play or {}))
            known[key] = validate(run, load_scenario(scenario), **options)
        return known[key]

    return make


def test_without_drafts_and_without_noise_there_is_nothing_to_err(compared: Any) -> None:
    found = compared()
    for name in (*LATENCIES, "p95_ttft_s", "p95_e2el_s", "output_throughput", "slo_attainment"):
        assert found.figures[name].error == pytest.approx(0.0, abs=1e-3), name
    assert found.steps.errors["all"].p90 < 0.002
    assert found.acceptance == ""
    assert found.notes == ()


def test_a_closed_loop_keeps_its_users_busy_alike(compared: Any) -> None:
    found = compared(load={"users": 6})
    for name in ("output_throughput", "busy_throughput", "mean_e2el_s", "mean_tpot_s"):
        assert found.figures[name].error == pytest.approx(0.0, abs=0.01), name


def test_with_drafts_only_chance_is_left(compared: Any) -> None:
    found = compared("draft_model", load={"requests": 120})
    for name in ("mean_ttft_s", "mean_tpot_s", "mean_itl_s", "mean_e2el_s", "mean_acceptance_length"):
        assert found.figures[name].error == pytest.approx(0.0, abs=0.06), name
    assert found.figures["output_throughput"].error == pytest.approx(0.0, abs=0.01)
    assert found.steps.errors["all"].p90 < 0.005
    assert found.acceptance == "configured"


@pytest.mark.parametrize(
    ("method", "play", "cause", "figure"),
    [
        ("draft_model", SLOWER, "step time", "mean_tpot_s"),
        ("draft_model", SLOWER, "step time", "mean_ttft_s"),
        ("draft_model", ACCEPTS_MORE, "acceptance", "mean_tpot_s"),
        ("ngram", MATCHES_LESS, "acceptance", "mean_tpot_s"),
        (None, {"front_end": (0.1, 0.02, 0.001, 0.0)}, "client", "median_ttft_s"),
        (None, {"engine": {"max_num_batched_tokens": 96}}, "scheduling", "mean_ttft_s"),
    ],
    ids=["steps-tpot", "steps-ttft", "acceptance", "matches", "client", "scheduling"],
)
def test_a_perturbed_server_is_put_down_to_what_was_perturbed(
    played: Any, compared: Any, method: str | None, play: dict[str, Any], cause: str, figure: str
) -> None:
    if "front_end" in play:
        play = {"front_end": played.FrontEnd(*play["front_end"])}
    found = compared(method, play, {"requests": 80, "prompt": (64, 300)} if cause == "scheduling" else {"requests": 80})
    shares = found.attribution[figure]
    error = found.figures[figure].error
    assert abs(error) > 0.08
    assert max(shares, key=lambda name: abs(shares[name])) == cause
    # What was perturbed explains nearly all; what is left to the others is chance.
    assert shares[cause] == pytest.approx(-error, abs=0.4 * abs(error))
    assert sum(shares.values()) == pytest.approx(-error, abs=1e-9)


def test_scheduling_is_the_servers_own_configuration(played: Any, profile: Path, tmp_path: Path) -> None:
    """A budget that the manifest tells is no error: the forecast schedules with it."""
    scenario = played.question(profile, prompt=(64, 300))
    small = {**scenario, "engine": {**scenario["engine"], "max_num_batched_tokens": 96, "max_num_seqs": 4}}
    found = validate(played.play(tmp_path / "run", small), load_scenario(scenario), attribute=False)
    assert found.question.from_server["max_num_batched_tokens"] == 96
    assert found.question.deployment.settings.max_num_seqs == 4
    assert found.figures["mean_ttft_s"].error == pytest.approx(0.0, abs=0.01)


def test_measured_acceptance_takes_the_servers_count(compared: Any) -> None:
    configured, measured = (
        compared("draft_model", ACCEPTS_MORE, measured=each, attribute=False) for each in (False, True)
    )
    assert configured.figures["mean_acceptance_length"].error < -0.2
    assert measured.figures["mean_acceptance_length"].error == pytest.approx(0.0, abs=0.03)
    assert (configured.acceptance, measured.acceptance) == ("configured", "measured")


def test_without_a_log_only_the_client_is_compared(compared: Any) -> None:
    found = compared(play={"log": False})
    assert found.steps is None
    assert found.own_front_end is None
    assert found.figures["mean_e2el_s"].error == pytest.approx(0.0, abs=1e-3)
    assert any("no server log" in note for note in found.notes)
    assert "measured" not in summary(found)["levels"]


def test_failed_requests_are_left_out_and_said(played: Any, profile: Path, tmp_path: Path) -> None:
    scenario = played.question(profile, requests=20)
    run = played.play(tmp_path / "run", scenario)
    requests = run.requests.copy()
    requests.loc[3, ["error", "finish_s"]] = ["timed out", np.nan]
    broken = LiveRun(
        run.folder, {**run.manifest, "complete": False, "incomplete_reason": "one failed"}, requests, run.chunks
    )
    found = validate(broken, load_scenario(scenario), attribute=False)
    assert len(found.question.table) == 19
    assert found.notes[0] == "the run is incomplete: one failed"
    assert "1 of 20 requests were not answered" in found.notes[1]
    requests["error"] = "timed out"
    with pytest.raises(InputError, match="no request of the run was answered"):
        validate(LiveRun(run.folder, run.manifest, requests, run.chunks), load_scenario(scenario))


@pytest.mark.parametrize(("others", "said"), [(None, False), (0.05, False), (0.83, True)])
def test_work_of_others_beside_a_run_is_said(
    played: Any, profile: Path, tmp_path: Path, others: float | None, said: bool
) -> None:
    scenario = played.question(profile, requests=10)
    run = played.play(tmp_path / "run", scenario)
    run = LiveRun(run.folder, {**run.manifest, "noise": {"others_cores": others}}, run.requests, run.chunks)
    found = validate(run, load_scenario(scenario), attribute=False)
    assert ("other processes used 0.83 cores of the server's machine meanwhile" in found.notes) == said


def test_a_profile_cannot_check_itself(played: Any, profile: Path, tmp_path: Path) -> None:
    scenario = played.question(profile, requests=30)
    seen, other = (played.play(tmp_path / name, scenario, seed=seed) for seed, name in enumerate(("seen", "other")))
    from draftcast.calibration.profile.hardware import load_hardware

    folder = tmp_path / "profile"
    label = ProfileLabel("own", "testbed-250M", load_hardware("cpu"), 1, "fp32")
    write_live_profile(calibrate_live([seen]), folder, label)
    with pytest.raises(InputError, match=r"seen: .*fitted to this very run; calibrate on other runs"):
        validate(seen, load_scenario(scenario), profile=str(folder))
    found = validate(other, load_scenario(scenario), profile=str(folder), attribute=False)
    assert found.steps is not None
    assert found.steps.errors["all"].p90 < 0.05
    assert f"calibrated on {tmp_path.name}/seen" in text(found)


def test_objectives_and_replications_are_the_scenarios(played: Any, profile: Path, tmp_path: Path) -> None:
    scenario = played.question(profile, "draft_model", requests=30)
    run = played.play(tmp_path / "run", scenario)
    strict = {**scenario, "slo": {"tpot_ms": 20}, "statistics": {"replications": 2}}
    loose, tight = (validate(run, load_scenario(each), attribute=False) for each in (scenario, strict))
    assert tight.figures["slo_attainment"].measured < loose.figures["slo_attainment"].measured
    assert (len(loose.replays), len(tight.replays)) == (3, 2)


def test_report_page_and_json(compared: Any, tmp_path: Path) -> None:
    found = compared("draft_model", SLOWER, {"requests": 80})
    page, data = write_report(found, tmp_path / "out")
    content = page.read_text()
    assert re.search(r"<script[^>]+src=|<link[^>]+href=", content) is None, "the page needs the network"
    assert 'class="missed"' in content
    report = json.loads(data.read_text())
    assert set(report["figures"]["mean_tpot_s"]["causes"]) == set(CAUSES)
    assert report["figures"]["mean_tpot_s"]["bar"] == 0.07
    assert report["steps"]["errors"]["all"]["median"] > 0.05
    measured, forecast = report["levels"]["measured"], report["levels"]["forecast"]
    assert measured["running"] > forecast["running"] > 0.0
    assert 0.0 < measured["kv_usage"] < 1.0
    shown = text(found)
    assert "MISSED" in shown
    assert "accuracy of the step times, decode" in shown
    perfect = summary(compared())
    assert perfect["levels"]["measured"]["running"] == pytest.approx(perfect["levels"]["forecast"]["running"], rel=0.01)


def bench_result(run: LiveRun, **more: Any) -> dict[str, Any]:
    """What ``vllm bench serve --save-detailed`` would have saved of a run."""
    answered = run.requests
    return {
        "input_lens": answered["prompt_tokens"].tolist(),
        "output_lens": answered["output_tokens"].tolist(),
        "start_times": (100.0 + answered["sent_s"]).tolist(),
        "ttfts": (answered["first_token_s"] - answered["sent_s"]).tolist(),
        "itls": [own["time_s"].diff().iloc[1:].tolist() for _, own in run.chunks.groupby("request_id")],
        "errors": [""] * len(answered),
    } | more


def test_the_command_takes_run_directories_and_bench_results(
    played: Any, profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = played.question(profile, requests=25)
    run = played.play(tmp_path / "run", scenario)
    file = tmp_path / "question.yaml"
    file.write_text(yaml.safe_dump(scenario))

    def answer(live: Path, *more: str) -> dict[str, Any]:
        monkeypatch.setattr("sys.argv", ["draftcast", "validate", str(file), "--live", str(live), "--json", *more])
        with pytest.raises(SystemExit, match="0"):
            main()
        return json.loads(capsys.readouterr().out)

    from_folder = answer(tmp_path / "run", "--out", str(tmp_path / "out"))
    assert (tmp_path / "out" / "validation.html").is_file()
    (tmp_path / "bench.json").write_text(json.dumps(bench_result(run)))
    from_bench = answer(tmp_path / "bench.json")
    assert from_bench["run"]["folder"] == str(tmp_path / "bench.json")
    for name in ("mean_ttft_s", "mean_tpot_s", "mean_itl_s", "output_throughput"):
        figures = [each["figures"][name] for each in (from_folder, from_bench)]
        assert figures[0]["measured"] == pytest.approx(figures[1]["measured"], rel=1e-6), name
        assert figures[1]["error"] == pytest.approx(0.0, abs=0.01), name
    assert from_bench["steps"] is None
    monkeypatch.setattr("sys.argv", ["draftcast", "validate", str(file), "--live", str(tmp_path / "absent")])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "no such run directory or file" in capsys.readouterr().err


def test_profiles_without_a_front_end_say_so(played: Any, profile: Path, tmp_path: Path) -> None:
    plain = dataclasses.replace(played.QUICK, request_s=0.0, output_s=0.0, output_sequence_s=0.0)
    values = {name: value for name, value in played.TRUE_PROFILE.items() if name != "front_end"}
    (tmp_path / "plain.yaml").write_text(yaml.safe_dump(values))
    scenario = played.question(tmp_path / "plain.yaml", requests=20)
    found = validate(played.play(tmp_path / "run", scenario, front_end=plain), load_scenario(scenario), attribute=False)
    assert found.figures["mean_ttft_s"].error == pytest.approx(0.0, abs=1e-3)
    assert any("no front end measured" in note for note in found.notes)
    # A profile of kernels has the front end of the engine's generation.
    kernels = validate(found.question.live, load_scenario(scenario), profile="default", attribute=False)
    assert kernels.front_end.request_s > 0.0
    assert not any("no front end measured" in note for note in kernels.notes)


@pytest.mark.parametrize(
    ("load", "more", "users"),
    [
        ({}, {"request_rate": 1.2}, None),
        ({"users": 3}, {"request_rate": "inf", "max_concurrency": 3}, 3),
        ({}, {"request_rate": "inf", "max_concurrency": 3, "ramp_up_strategy": "linear"}, None),
        ({}, {"request_rate": "inf", "max_concurrency": None}, None),
    ],
    ids=["rate", "clients", "ramp-up", "burst"],
)
@pytest.mark.parametrize("recorded", [False, True], ids=["alone", "with its scenario"])
def test_the_load_of_a_bench_result_is_its_own(
    played: Any,
    profile: Path,
    tmp_path: Path,
    load: dict[str, Any],
    more: dict[str, Any],
    users: int | None,
    recorded: bool,
) -> None:
    """Whatever load the scenario has."""
    run = played.play(tmp_path / "run", played.question(profile, requests=20, **load))
    (tmp_path / "bench.json").write_text(json.dumps(bench_result(run, **more)))
    closed, trace = load_scenario(played.question(profile, users=9)), tmp_path / "trace.csv"
    manifest = {"scenario": to_mapping(closed)} if recorded else {}
    imported = import_bench_result(tmp_path / "bench.json", tmp_path / "imported", **manifest)
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n")
    from_trace = {"arrivals": {"process": "trace", "path": str(trace)}, "lengths": None, "num_requests": None}
    for asked in (closed, with_values(closed, {"workload": from_trace})):
        found = validate(imported, asked, attribute=False)
        assert (found.question.loop.concurrency if found.question.loop else None) == users
        assert found.figures["mean_tpot_s"].error == pytest.approx(0.0, abs=0.01)


def test_the_speculation_of_a_bench_result_is_the_scenarios(played: Any, profile: Path, tmp_path: Path) -> None:
    scenario = played.question(profile, "draft_model", requests=20)
    run = played.play(tmp_path / "run", scenario)
    drafts = {"spec_decode_num_drafts": 40, "spec_decode_draft_tokens": 120, "spec_decode_accepted_tokens": 60}
    drafts |= {"spec_decode_per_position_acceptance_rates": [0.75, 0.5, 0.25]}
    (tmp_path / "bench.json").write_text(json.dumps(bench_result(run, **drafts)))
    imported = import_bench_result(tmp_path / "bench.json", tmp_path / "imported")
    found = validate(imported, load_scenario(scenario), attribute=False)
    assert found.acceptance == "configured"
    assert '"method": "draft_model"' in text(found).splitlines()[0]
    with pytest.raises(
        InputError, match=r"speculative_config: the run counted 40 drafts, and the scenario has no spec"
    ):
        validate(imported, load_scenario(played.question(profile)))


def test_a_bench_result_of_another_model_is_refused(played: Any, profile: Path, tmp_path: Path) -> None:
    scenario = played.question(profile, requests=12)
    run = played.play(tmp_path / "run", scenario)
    (tmp_path / "bench.json").write_text(json.dumps(bench_result(run, model_id="Qwen/Qwen3-32B")))
    imported = import_bench_result(tmp_path / "bench.json", tmp_path / "imported")
    with pytest.raises(
        InputError, match=r"imported: model = 'Qwen/Qwen3-32B': was measured on another model than test"
    ):
        validate(imported, load_scenario(scenario))
