"""A measured run beside simulated ones: figures by hand, bench results, what is damaged, and what runs differ in."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from bench_results import bench_file

from draftcast.calibration.live.imported_runs import import_bench_result
from draftcast.calibration.live.run_directory import LiveRunWriter
from draftcast.errors import InputError
from draftcast.scenarios.run.measured_run import read_measured_run
from draftcast.scenarios.schema.changes import differing
from draftcast.scenarios.schema.load import load_scenario
from draftcast.sim.workload.workload import Slo


def test_figures_of_a_bench_result(tmp_path: Path) -> None:
    import_bench_result(bench_file(tmp_path), tmp_path / "run")
    found = read_measured_run(tmp_path / "run", Slo(ttft_ms=300))
    assert found.figures["mean_ttft_s"] == pytest.approx(0.3)
    assert found.figures["p50_ttft_s"] == pytest.approx(0.3)
    assert found.figures["mean_tpot_s"] == pytest.approx(0.1)
    # Until the second answer ends, 1.4 s after the first request was sent.
    assert found.figures["output_throughput"] == pytest.approx(6 / 1.4)
    assert found.figures["request_goodput"] == pytest.approx(1 / 1.4)
    assert found.figures["mean_acceptance_length"] == pytest.approx(2.5)
    assert found.figures["acceptance_rate"] == pytest.approx(0.5)
    assert found.notes[0].startswith("incomplete: 1 of 3 requests failed")
    assert "1 of 3 requests were not answered" in found.notes[1]
    assert "preemptions" not in found.figures
    assert "share_time_queue" not in found.figures


def test_without_an_slo_there_is_no_goodput(tmp_path: Path) -> None:
    import_bench_result(bench_file(tmp_path), tmp_path / "run")
    found = read_measured_run(tmp_path / "run").figures
    assert "slo_attainment" not in found
    assert pd.isna(found["request_goodput"])


def test_a_damaged_run_is_refused_by_file_and_key(tmp_path: Path) -> None:
    import_bench_result(bench_file(tmp_path), tmp_path / "run")
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(manifest | {"acceptance": {"num_drafts": 3}}))
    with pytest.raises(InputError, match=r"manifest\.json: acceptance"):
        read_measured_run(tmp_path / "run")


def test_counts_without_a_draft_token_say_nothing_of_acceptance(tmp_path: Path) -> None:
    import_bench_result(bench_file(tmp_path), tmp_path / "run")
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    nothing = {"num_drafts": 3, "num_draft_tokens": 0, "num_accepted_tokens": 0, "per_position": []}
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(manifest | {"acceptance": nothing}))
    assert "acceptance_rate" not in read_measured_run(tmp_path / "run").figures


def test_a_run_without_answers_is_refused(tmp_path: Path) -> None:
    LiveRunWriter.create(tmp_path / "run").finish()
    with pytest.raises(InputError, match="no request was answered"):
        read_measured_run(tmp_path / "run")


def test_what_runs_differ_in() -> None:
    base = load_scenario()
    longer = load_scenario(overrides=["engine.speculative_config.num_speculative_tokens=2", "statistics.seed=3"])
    off = load_scenario(overrides=["engine.speculative_config=null"])
    assert differing([base, base]) == {}
    assert differing([base, longer]) == {
        "engine.speculative_config.num_speculative_tokens": [3, 2],
        "statistics.seed": [base.statistics.seed, 3],
    }
    whole = differing([base, longer, off])
    assert set(whole) == {"engine.speculative_config", "statistics.seed"}
    assert [value and value["num_speculative_tokens"] for value in whole["engine.speculative_config"]] == [3, 2, None]
