"""A real vLLM server on this machine's CPU: known continuation, wanted acceptance, and a death in mid-run."""

from __future__ import annotations

import math
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftcast.calibration.engine_log.log import read_engine_log
from draftcast.calibration.live.checkpoint import write_testbed
from draftcast.calibration.live.run_directory import LiveRun, LiveRunWriter
from draftcast.calibration.live.server import EngineServer, RunningServer
from draftcast.kernels.model.catalog import load_model
from draftcast.scenarios.live.run import LiveOptions, LiveProgress, live_run, record_scenario, server_flags
from draftcast.scenarios.live.run import testbed_scenario as write_scenario
from draftcast.scenarios.live.sweep import SweepPlan, live_sweep
from draftcast.scenarios.live.validate.sweep import validate_sweep
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import load_scenario
from draftcast.scenarios.show.validation_sweep_report import write_sweep_report

pytestmark = pytest.mark.live

OPTIONS = LiveOptions(vllm=(sys.executable, "-m", "vllm.entrypoints.openai.api_server"), warmup_requests=2)
RATES = (0.75, 0.5, 0.3)
NGRAM_RATES = (0.8, 0.6, 0.5)
TOLERANCE = 0.02


@pytest.fixture(scope="module")
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("testbed")
    fields = {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}
    fields |= {"head_dim": 64, "intermediate_size": 512, "vocab_size": 8000, "word_embed_proj_dim": 256}
    target = replace(load_model("testbed-250M"), **fields)
    write_testbed(folder, target, replace(target, num_hidden_layers=1), RATES, (3,))
    write_scenario(folder, RATES, (3,), "bf16", "cpu")
    return folder


def question(testbed: Path, *changes: str, spec: Any = None) -> Scenario:
    load = [
        "workload.arrivals={process: closed_loop, concurrency: 6}",
        "workload.num_requests=36",
        "workload.lengths={prompt_tokens: {distribution: uniform, low: 130, high: 400}, output_tokens: 90}",
        "engine.num_gpu_blocks=512",
    ]
    return load_scenario(testbed / "scenario.yaml", overrides=[*load, *changes], speculative_config=spec)


def check_whole(run: LiveRun) -> None:
    assert run.complete, run.manifest["incomplete_reason"]
    assert run.manifest["known_continuation"] == {"checked_tokens": 36 * 90, "wrong_tokens": 0}
    config = run.manifest["server"]["config"]
    assert (config["num_gpu_blocks"], config["block_size"], config["max_num_seqs"]) == (512, 32, 64)
    assert (config["async_scheduling"], config["enforce_eager"], config["max_model_len"]) == (False, True, 2048)
    assert run.manifest["server"]["version"].startswith("0.32")


def rates_of(run: LiveRun) -> list[float]:
    counted = run.manifest["acceptance"]
    return [count / counted["num_drafts"] for count in counted["per_position"]]


def generation_rounds(run: LiveRun) -> int:
    """Rounds of all requests after their prompts, by the log."""
    assert run.server_log is not None
    return int(read_engine_log(run.server_log)["generation_requests"].sum())


def test_draft_model_accepts_as_wanted(testbed: Path, tmp_path: Path) -> None:
    run = live_run(question(testbed), tmp_path / "run", OPTIONS)
    check_whole(run)
    assert rates_of(run) == pytest.approx(RATES, abs=TOLERANCE)


def test_ngram_matches_and_accepts_as_wanted(testbed: Path, tmp_path: Path) -> None:
    spec = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 3}
    acceptance = f"acceptance={{model: ngram, match_probability: 0.4, rates: {list(NGRAM_RATES)}}}"
    run = live_run(question(testbed, acceptance, spec=spec), tmp_path / "run", OPTIONS)
    check_whole(run)
    assert rates_of(run) == pytest.approx(NGRAM_RATES, abs=TOLERANCE)
    assert run.manifest["acceptance"]["num_drafts"] / generation_rounds(run) == pytest.approx(0.4, abs=TOLERANCE)


def test_a_sweep_is_calibrated_forecast_and_compared(testbed: Path, tmp_path: Path) -> None:
    """The short version of benchmarks/live.sh; how near the forecast comes is for a machine left alone to say."""
    spec = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 3}
    accepted = {"model": "ngram", "match_probability": 0.4, "rates": list(NGRAM_RATES)}
    lengths = {"prompt_tokens": {"distribution": "uniform", "low": 150, "high": 500}, "output_tokens": 70}
    plan = SweepPlan(
        ks=(3,),
        alternatives=({"speculative_config": spec, "acceptance": accepted},),
        concurrencies=(1, 6),
        rates_rps=(2.0,),
        calibration_concurrencies=(2, 8),
        calibration_lengths=lengths,
        cell_s=4.0,
    )
    index = live_sweep(question(testbed), tmp_path, plan, OPTIONS)
    assert index["complete"]
    found = validate_sweep(tmp_path)
    modes = ("off", "draft_model-k3", "ngram-k3")
    assert {name.rpartition("calibration-")[2] for name in found.calibrated_on} == {
        f"{users}/{mode}" for users in (2, 8) for mode in modes
    }
    assert len(found.cells) == 3 * len(modes)
    assert len(found.continuation) == 5 * len(modes)
    assert all(checked > 0 and wrong == 0 for checked, wrong in found.continuation.values())
    assert {name for name, steps in found.steps.items() if steps.errors.points > 50} == {*modes, "all"}
    assert {(each.mode, each.load_kind, each.load) for each in found.effects} == {
        (mode, kind, load)
        for mode in modes[1:]
        for kind, load in (("concurrency", 1.0), ("concurrency", 6.0), ("rate", 2.0))
    }
    assert [where.mode for where in found.cutovers] == list(modes[1:])
    counted = {each.mode: each for each in found.acceptance}
    for mode, wanted in (("draft_model-k3", RATES), ("ngram-k3", NGRAM_RATES)):
        # Runs of seconds hold some hundred drafts, too few for TOLERANCE, which the tests above keep: chance decides.
        errors = [math.sqrt(rate * (1 - rate) / counted[mode].drafts) for rate in wanted]
        off = [abs(rate - own) for rate, own in zip(wanted, counted[mode].measured, strict=True)]
        assert all(each < 4 * error for each, error in zip(off, errors, strict=True)), counted[mode]
    written = write_sweep_report(found, tmp_path / "report")
    assert [path.suffix for path in written] == [".json", ".html", ".md"]


def test_without_speculation_and_then_the_engine_dies(testbed: Path, tmp_path: Path) -> None:
    asked = question(testbed, spec="null")
    with EngineServer.start(server_flags(asked, OPTIONS), tmp_path / "log") as server:
        server.wait_ready(OPTIONS.start_timeout_s)
        endpoint = RunningServer.of(server.url, server.log, server)
        run = record_scenario(asked, endpoint, LiveRunWriter.create(tmp_path / "off"), OPTIONS)
        check_whole(run)
        assert run.manifest["acceptance"] is None
        assert generation_rounds(run) == 36 * 89

        def kill(_: int, state: dict[str, Any]) -> None:
            for pid in engine_processes() if state["tokens"] else ():
                os.kill(pid, signal.SIGKILL)

        progress = LiveProgress(load=kill)
        dead = record_scenario(
            asked, endpoint, LiveRunWriter.create(tmp_path / "dead"), OPTIONS, seed=5, warm=False, progress=progress
        )
    assert not dead.complete
    assert dead.manifest["incomplete_reason"]
    assert dead.chunks["tokens"].sum() == dead.requests["output_tokens"].sum() > 0
    assert not engine_processes()


def engine_processes() -> list[int]:
    """vLLM's engine processes below this one."""
    parents, names = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            after = (folder / "stat").read_text().rpartition(")")[2].split()
            names[int(folder.name)] = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if after[0] != "Z":
            parents[int(folder.name)] = int(after[1])
    found = []
    for pid in parents:
        above = pid
        while above in parents and above != os.getpid():
            above = parents[above]
        if above == os.getpid() and names[pid].startswith(b"VLLM::EngineCore"):
            found.append(pid)
    return found
