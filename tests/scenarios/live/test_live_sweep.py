"""A sweep on stand-in servers: which cells, in which order, with which requests, and going on after a stop."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from answer_schemas import SHAPE
from paths import TESTS
from typer.testing import CliRunner

from draftcast.calibration.live import record
from draftcast.calibration.live.checkpoint import write_testbed
from draftcast.calibration.live.run_directory import LiveRun
from draftcast.errors import InputError, LiveError, ScenarioError
from draftcast.kernels.model.catalog import load_model
from draftcast.scenarios.cli.main import app, schema_of
from draftcast.scenarios.live import sweep as module
from draftcast.scenarios.live.run import LiveOptions, LiveProgress
from draftcast.scenarios.live.run import testbed_scenario as write_scenario
from draftcast.scenarios.live.sweep import SweepPlan, live_sweep, modes_of, read_index
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import load_scenario

FAKE = (sys.executable, str(TESTS / "fake_vllm.py"))
OPTIONS = LiveOptions(vllm=FAKE, warmup_requests=0, start_timeout_s=60.0)
NGRAM = {
    "speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_min": 2},
    "acceptance": {"model": "ngram", "match_probability": 0.3, "rates": [0.8, 0.6]},
}


@pytest.fixture(scope="module")
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("testbed")
    fields = {"num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}
    fields |= {"head_dim": 16, "intermediate_size": 64, "vocab_size": 600, "word_embed_proj_dim": 64}
    shape = replace(load_model("testbed-250M"), **fields)
    write_testbed(folder, shape, shape, (0.7, 0.5), (1, 2))
    write_scenario(folder, (0.7, 0.5), (1, 2), "bf16", "cpu")
    return folder


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "_LOG_LAG_S", 0.05)  # the stand-in writes its lines before it answers


def question(testbed: Path) -> Scenario:
    lengths = "workload.lengths={prompt_tokens: 30, output_tokens: 10}"
    return load_scenario(testbed / "scenario.yaml", overrides=[lengths])


def cells(index: dict[str, Any]) -> list[tuple[str, str, float]]:
    return [(cell["mode"], cell["load_kind"], cell["load"]) for cell in index["cells"]]


def test_together_each_load_meets_every_server_before_the_next(testbed: Path, tmp_path: Path) -> None:
    plan = SweepPlan((2,), (NGRAM,), concurrencies=(1, 2), rates_rps=(20.0,), cell_s=0.5)
    said: list[str] = []
    index = live_sweep(question(testbed), tmp_path, plan, OPTIONS, LiveProgress(say=said.append))
    assert cells(index) == [
        ("off", "concurrency", 1.0),
        ("draft_model-k2", "concurrency", 1.0),
        ("ngram-k2", "concurrency", 1.0),
        ("draft_model-k2", "concurrency", 2.0),
        ("ngram-k2", "concurrency", 2.0),
        ("off", "concurrency", 2.0),
        ("off", "rate", 20.0),
        ("draft_model-k2", "rate", 20.0),
        ("ngram-k2", "rate", 20.0),
    ]
    assert index["complete"]
    assert index == read_index(tmp_path)
    assert [cell["order"] for cell in index["cells"]] == list(range(9))
    assert {cell["mode"]: (cell["method"], cell["k"]) for cell in index["cells"]} == {
        "off": ("none", 0),
        "draft_model-k2": ("draft_model", 2),
        "ngram-k2": ("ngram", 2),
    }
    # Three servers, each started once.
    assert sum("fake_vllm" in line for line in said) == 3
    assert sorted(path.name for path in (tmp_path / "servers").iterdir()) == [
        "draft_model-k2-0.log",
        "ngram-k2-0.log",
        "off-0.log",
    ]
    runs = {
        (cell["mode"], cell["load_kind"], cell["load"]): LiveRun.read(tmp_path / cell["dir"]) for cell in index["cells"]
    }
    assert all(run.manifest["known_continuation"]["wrong_tokens"] == 0 for run in runs.values())
    # The same load: the same arrivals on every server; another load: another seed.
    due = [runs[mode, "rate", 20.0].requests["due_s"].tolist() for mode in ("off", "draft_model-k2", "ngram-k2")]
    assert due[0] == due[1] == due[2]
    assert len(due[0]) >= 3
    assert max(due[0]) <= 0.5
    assert len({cell["seed"] for cell in index["cells"]}) == 3
    assert runs["off", "concurrency", 2.0].requests["due_s"].max() <= 0.5
    assert runs["off", "concurrency", 2.0].manifest["speculative_config"] is None
    ngram = runs["ngram-k2", "rate", 20.0].manifest["speculative_config"]
    assert (ngram["method"], ngram["prompt_lookup_min"]) == ("ngram", 2)
    # A log holds its own cell only.
    steps = [(tmp_path / cell["dir"] / "server.log").read_text().count("Iteration(") for cell in index["cells"]]
    tokens = [int(LiveRun.read(tmp_path / cell["dir"]).chunks.shape[0]) for cell in index["cells"]]
    assert steps == tokens


def test_together_calibration_is_spread_over_the_sweep(testbed: Path, tmp_path: Path) -> None:
    plan = SweepPlan(
        (),
        concurrencies=(1, 2),
        rates_rps=(20.0,),
        calibration_concurrencies=(3, 4),
        calibration_lengths={"prompt_tokens": 20, "output_tokens": 12},
        cell_s=0.2,
        rounds=2,
    )
    index = live_sweep(question(testbed), tmp_path, plan, OPTIONS)
    order = [(cell["purpose"][:3], cell["load"], cell["round"]) for cell in index["cells"]]
    once = [("cal", 3.0), ("val", 1.0), ("val", 2.0), ("cal", 4.0), ("val", 20.0)]
    assert order == [(*cell, turn) for turn in (0, 1) for cell in once]


def test_in_turn_one_server_runs_every_load_and_rounds_alternate(testbed: Path, tmp_path: Path) -> None:
    plan = SweepPlan(
        (1,),
        concurrencies=(1, 2),
        rates_rps=(),
        calibration_concurrencies=(3,),
        calibration_lengths={"prompt_tokens": 20, "output_tokens": 12},
        cell_s=0.3,
        rounds=2,
        in_turn=True,
    )
    index = live_sweep(question(testbed), tmp_path, plan, OPTIONS)
    other = [cell for cell in index["cells"] if cell["purpose"] == "calibration"]
    assert [(cell["mode"], cell["load_kind"], cell["load"], cell["order"]) for cell in other] == [
        ("off", "concurrency", 3.0, 0),
        ("draft_model-k1", "concurrency", 3.0, 3),
        ("draft_model-k1", "concurrency", 3.0, 6),
        ("off", "concurrency", 3.0, 9),
    ]
    lengths = LiveRun.read(tmp_path / other[0]["dir"]).requests
    assert (set(lengths["prompt_tokens"]), set(lengths["output_tokens"])) == ({20}, {12})
    judged = [cell for cell in index["cells"] if cell["purpose"] == "validation"]
    assert set(LiveRun.read(tmp_path / judged[0]["dir"]).requests["output_tokens"]) == {10}
    order = [(cell["mode"], cell["load"], cell["round"]) for cell in judged]
    assert order == [
        ("off", 1.0, 0),
        ("off", 2.0, 0),
        ("draft_model-k1", 1.0, 0),
        ("draft_model-k1", 2.0, 0),
        ("draft_model-k1", 2.0, 1),
        ("draft_model-k1", 1.0, 1),
        ("off", 2.0, 1),
        ("off", 1.0, 1),
    ]
    assert len(list((tmp_path / "servers").iterdir())) == 4
    assert len({cell["seed"] for cell in judged}) == 4


def test_a_stopped_sweep_goes_on_and_rates_follow_the_closed_loop(
    testbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RATE_SHARES", (0.3, 0.9))
    plan = SweepPlan((2,), (), concurrencies=(2,), rates_rps=None, cell_s=0.5)

    def stop(text: str) -> None:
        if text.startswith("rate"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        live_sweep(question(testbed), tmp_path, plan, OPTIONS, LiveProgress(say=stop))
    begun = read_index(tmp_path)
    assert (begun["complete"], cells(begun)) == (
        False,
        [("off", "concurrency", 2.0), ("draft_model-k2", "concurrency", 2.0)],
    )
    answered = int((LiveRun.read(tmp_path / begun["cells"][0]["dir"]).requests["finish_s"] <= 0.5).sum())
    assert begun["rates_rps"] == [float(f"{share * answered / 0.5:.3g}") for share in (0.3, 0.9)]
    kept = (tmp_path / begun["cells"][0]["dir"] / "requests.parquet").stat().st_mtime_ns
    index = live_sweep(question(testbed), tmp_path, plan, OPTIONS)
    assert index["complete"]
    assert len(index["cells"]) == 2 + 2 * 2
    assert index["rates_rps"] == begun["rates_rps"]
    assert (tmp_path / begun["cells"][0]["dir"] / "requests.parquet").stat().st_mtime_ns == kept
    with pytest.raises(InputError, match=r"plan = .*: holds another sweep"):
        live_sweep(question(testbed), tmp_path, replace(plan, cell_s=0.6), OPTIONS)


def test_an_incomplete_cell_is_run_again(testbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = SweepPlan((), (), concurrencies=(1,), rates_rps=(), cell_s=0.3)
    monkeypatch.setenv("FAKE_VLLM", "short=2")
    index = live_sweep(question(testbed), tmp_path, plan, OPTIONS)
    assert [(cell["complete"], cell["incomplete_reason"][:2]) for cell in index["cells"]] == [(False, "1 ")]
    assert not index["complete"]
    monkeypatch.setenv("FAKE_VLLM", "")
    index = live_sweep(question(testbed), tmp_path, plan, OPTIONS)
    assert [(cell["complete"], cell["incomplete_reason"]) for cell in index["cells"]] == [(True, "")]
    assert index["complete"]


def test_a_server_that_dies_ends_the_sweep_and_keeps_it(
    testbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_VLLM", "die_after=30")
    with pytest.raises(LiveError, match="exit code 9"):
        live_sweep(question(testbed), tmp_path, SweepPlan((), (), (1, 2), (), cell_s=1.0), OPTIONS)
    assert [cell["complete"] for cell in read_index(tmp_path)["cells"]] == [False]


def test_every_length_has_its_own_draft_on_a_testbed(testbed: Path) -> None:
    modes = modes_of(question(testbed), SweepPlan(ks=(1, 2), alternatives=(NGRAM,)))
    assert list(modes) == ["off", "draft_model-k1", "draft_model-k2", "ngram-k2"]
    configs = [modes[f"draft_model-k{k}"].speculative_config for k in (1, 2)]
    drafts = [config.model for config in configs if config is not None]
    assert drafts == [str(testbed / "draft-k1"), str(testbed / "draft-k2")]


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (SweepPlan(ks=(65,)), "must be at most 64"),
        (SweepPlan(ks=(2, 2)), "two of the modes are draft_model-k2"),
        (SweepPlan(alternatives=({"acceptance": {}},), ks=()), "must be"),
    ],
)
def test_plans_that_cannot_be_run(testbed: Path, tmp_path: Path, plan: SweepPlan, message: str) -> None:
    with pytest.raises(InputError, match=message):
        live_sweep(question(testbed), tmp_path / "out", plan, OPTIONS)
    assert not (tmp_path / "out").exists()


def test_a_scenario_without_speculation_has_nothing_to_compare(testbed: Path, tmp_path: Path) -> None:
    off = load_scenario(testbed / "scenario.yaml", speculative_config="null")
    with pytest.raises(ScenarioError, match=r"engine\.speculative_config = None: a sweep compares with it"):
        live_sweep(off, tmp_path / "out", SweepPlan(), OPTIONS)


def test_a_folder_with_something_else_is_left_alone(testbed: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(InputError, match=r"index\.json: no such file"):
        live_sweep(question(testbed), tmp_path, SweepPlan(ks=(1,)), OPTIONS)


def test_the_command_writes_a_testbed(tmp_path: Path) -> None:
    shape = tmp_path / "shape.json"
    shape.write_text(json.dumps(SHAPE | {"vocab_size": 500}))
    line = ["live", "checkpoint", str(tmp_path / "new"), "--rates", "0.9,0.4", "--k", "2", "--target", str(shape)]
    done = CliRunner().invoke(app, [*line, "--draft-layers", "1", "--json"], catch_exceptions=False)
    written = json.loads(done.stdout)
    assert written["rates"] == [0.9, 0.4]
    assert all(Path(folder).is_dir() for folder in written["folders"])
    schema = jsonschema.Draft202012Validator(schema_of("live checkpoint"))
    assert schema.is_valid(written)
    assert not schema.is_valid(written | {"folders": None})


def test_the_command_runs_a_sweep(testbed: Path, tmp_path: Path) -> None:
    line = ["live", "sweep", str(testbed / "scenario.yaml"), "--out", str(tmp_path), "--k", "2", "--concurrency", "2"]
    line += ["--rates", "20", "--cell-seconds", "0.4", "--vllm", " ".join(FAKE), "--warmup-requests", "2"]
    line += ["--set", "workload.lengths={prompt_tokens: 30, output_tokens: 10}", "--candidate", json.dumps(NGRAM)]
    line += ["--set", "statistics.replications=1"]
    done = CliRunner().invoke(app, line, catch_exceptions=False)
    assert done.exit_code == 0
    assert len([text for text in done.stdout.splitlines() if "requests" in text]) == 6
    assert "Cutover: users at which the throughput gain crosses 1" in done.stdout
    again = json.loads(CliRunner().invoke(app, [*line, "--json"], catch_exceptions=False).stdout)
    schema = jsonschema.Draft202012Validator(schema_of("live sweep"))
    assert schema.is_valid(again)
    assert not schema.is_valid(again | {"cells": None})
    report = again.pop("report")
    assert again == read_index(tmp_path)
    assert (again["plan"]["in_turn"], again["plan"]["cell_s"]) == (False, 0.4)
    assert len(report["cells"]) == 6
    assert report["known_continuation"]["wrong_tokens"] == 0 < report["known_continuation"]["checked_tokens"]
    for more in (["--in-turn"], ["--set", "hardware=h100-sxm"]):
        with pytest.raises(InputError, match="holds another sweep"):
            CliRunner().invoke(app, [*line, *more], catch_exceptions=False)
    with pytest.raises(InputError, match="--calibration-lengths: go together"):
        CliRunner().invoke(app, [*line, "--calibration-concurrency", "1"], catch_exceptions=False)
    with pytest.raises(InputError, match="must be numbers separated by commas"):
        CliRunner().invoke(app, [*line, "--k", "x"], catch_exceptions=False)
