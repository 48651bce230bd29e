"""Live runs against a stand-in server: what is recorded, and what becomes of every fault."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from paths import TESTS
from typer.testing import CliRunner

from draftcast.calibration.engine_log.log import read_engine_log
from draftcast.calibration.journal import Journal
from draftcast.calibration.live import record
from draftcast.calibration.live.checkpoint import write_testbed
from draftcast.calibration.live.client import Client
from draftcast.calibration.live.imported_runs import import_bench_result
from draftcast.calibration.live.load import LoadPlan
from draftcast.calibration.live.run_directory import METRICS_BEFORE, LiveRun
from draftcast.calibration.live.server import EngineServer, ServerFlags, get
from draftcast.errors import InputError, LiveError, ScenarioError
from draftcast.kernels.model.catalog import load_model
from draftcast.scenarios.cli.live import stoppable
from draftcast.scenarios.cli.main import app
from draftcast.scenarios.live import run as module
from draftcast.scenarios.live.run import LiveOptions, live_requests, live_run, server_flags, speculative_config
from draftcast.scenarios.live.run import testbed_scenario as write_scenario
from draftcast.scenarios.run.measured_run import read_measured_run
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.schema.load import load_scenario

FAKE = (sys.executable, str(TESTS / "fake_vllm.py"))
OWN = "acceptance={model: constant, alpha: 0.5}"
OPTIONS = LiveOptions(vllm=FAKE, warmup_requests=0, start_timeout_s=60.0)


@pytest.fixture(scope="module")
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("testbed")
    fields = {"num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}
    fields |= {"head_dim": 16, "intermediate_size": 64, "vocab_size": 600, "word_embed_proj_dim": 64}
    shape = replace(load_model("testbed-250M"), **fields)
    write_testbed(folder, shape, shape, (0.7, 0.5), (1, 2))
    write_scenario(folder, (0.7, 0.5), (1, 2), "bf16", "cpu")
    return folder


def question(testbed: Path, *changes: str, off: bool = False) -> Scenario:
    small = [
        "workload.num_requests=12",
        "workload.arrivals.request_rate_rps=40",
        "workload.lengths={prompt_tokens: {distribution: uniform, low: 5, high: 20}, output_tokens: 15}",
    ]
    spec = "null" if off else None
    return load_scenario(testbed / "scenario.yaml", overrides=[*small, *changes], speculative_config=spec)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "_LOG_LAG_S", 0.05)  # the stand-in writes its lines before it answers


@pytest.fixture(scope="module")
def server(testbed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    """One server for all tests that only send requests to it."""
    log = tmp_path_factory.mktemp("log") / "server.log"
    flags = ServerFlags(str(testbed / "target"), ("--speculative-config", '{"num_speculative_tokens": 2}'), FAKE)
    with EngineServer.start(flags, log) as running:
        running.wait_ready(60.0)
        yield running


@pytest.fixture(autouse=True)
def nothing_left(children: Callable[[], list[int]]) -> Iterator[None]:
    """Whatever a test starts, a run stops: keeper, server and client."""
    yield
    assert not children()


def against(server: EngineServer, **changes: Any) -> LiveOptions:
    return replace(OPTIONS, url=server.url, server_log=server.log, **changes)


def refuses_connections(url: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(url.rpartition(":")[2]))) != 0


# ---- what is recorded ----


def test_our_own_server_is_started_recorded_and_stopped(testbed: Path, tmp_path: Path) -> None:
    said: list[str] = []
    asked = question(testbed)
    run = live_run(asked, tmp_path / "run", replace(OPTIONS, warmup_requests=4), module.LiveProgress(say=said.append))
    manifest = run.manifest
    assert (run.complete, manifest["incomplete_reason"], manifest["seed"]) == (True, "", 0)
    table = live_requests(asked, 0)
    requests = run.requests
    assert requests["request_id"].tolist() == list(range(12))
    assert requests["due_s"].tolist() == table.arrival_s.tolist()
    assert requests["prompt_tokens"].tolist() == table.prompt_tokens.tolist()
    assert requests["output_tokens"].tolist() == requests["output_tokens_wanted"].tolist() == [15] * 12
    assert (requests["error"] == "").all()
    assert (requests["due_s"] <= requests["sent_s"]).all()
    assert (requests["sent_s"] < requests["first_token_s"]).all()
    assert (requests["first_token_s"] <= requests["finish_s"]).all()
    # Every chunk is there: the first of one token, then two by two.
    pieces = run.chunks.groupby("request_id")["tokens"].apply(list).tolist()
    assert pieces == [[1, *[2] * 7]] * 12
    assert run.chunks.groupby("request_id")["time_s"].max().tolist() == requests["finish_s"].tolist()
    assert manifest["known_continuation"] == {"checked_tokens": 180, "wrong_tokens": 0}
    assert manifest["acceptance"] == {
        "num_drafts": 84,
        "num_draft_tokens": 168,
        "num_accepted_tokens": 84,
        "per_position": [84, 0],
    }
    assert manifest["server"]["command"][:4] == [*FAKE, "--model", str(testbed / "target")]
    assert said[0].endswith(" ".join(manifest["server"]["command"][-3:]))
    config = manifest["server"]["config"]
    assert (config["num_gpu_blocks"], config["async_scheduling"], config["max_num_seqs"]) == (99, False, 32)
    assert manifest["scenario"]["workload"]["num_requests"] == 12
    assert manifest["client"]["sent"] == 12
    assert 0 <= manifest["client"]["lateness_p50_s"] <= manifest["client"]["lateness_max_s"]
    assert abs(manifest["start_unix_s"] - time.time()) < 600
    assert manifest["machine"]["cores"] >= 1
    # The log: what the server said at its start, and this run's steps without the warm-up's.
    log = read_engine_log(run.folder / "server.log")
    assert (len(log), log["step"].min(), log["block_size"].iloc[0]) == (12 * 8, 4 * 8 + 1, 32)
    assert refuses_connections(manifest["server"]["url"])


def test_a_closed_loop_keeps_its_users_busy_and_no_more(testbed: Path, server: EngineServer, tmp_path: Path) -> None:
    asked = question(testbed, "workload.arrivals={process: closed_loop, concurrency: 3}")
    requests = live_run(asked, tmp_path / "run", against(server)).requests
    assert len(requests) == 12
    assert requests["due_s"].tolist()[:3] == [0.0, 0.0, 0.0]
    starts, ends = requests["sent_s"].to_numpy(), requests["finish_s"].to_numpy()
    running = [int(((starts <= at) & (ends > at)).sum()) for at in starts]
    assert max(running) == 3
    # Request n, from 0, waits for n - 2 answers.
    answered = [int((ends <= due).sum()) for due in requests["due_s"]]
    assert all(answers >= number - 2 for number, answers in enumerate(answered))


def test_think_time_passes_before_every_request(testbed: Path, server: EngineServer, tmp_path: Path) -> None:
    arrivals = "workload.arrivals={process: closed_loop, concurrency: 2, think_time_s: 0.2, "
    asked = question(testbed, arrivals + "think_time_distribution: constant}", "workload.num_requests=4")
    requests = live_run(asked, tmp_path / "run", against(server)).requests
    assert requests["due_s"].tolist()[:2] == [0.2, 0.2]
    assert requests["due_s"].min() == 0.2
    assert (requests["due_s"].iloc[2:] >= 0.4).all()


def test_sending_ends_when_told(testbed: Path, server: EngineServer, tmp_path: Path) -> None:
    asked = question(testbed)
    due_s = live_requests(asked, 0).arrival_s
    limit = float(due_s[5] + due_s[6]) / 2
    run = live_run(asked, tmp_path / "open", against(server, send_for_s=limit))
    assert (run.complete, len(run.requests)) == (True, 6)
    closed = question(testbed, "workload.arrivals={process: closed_loop, concurrency: 1}", "workload.num_requests=200")
    run = live_run(closed, tmp_path / "closed", against(server, send_for_s=0.3))
    assert run.complete
    assert 0 < len(run.requests) < 100
    assert run.requests["due_s"].max() <= 0.3


def test_the_seed_draws_other_requests(testbed: Path, server: EngineServer, tmp_path: Path) -> None:
    lengths = [
        live_run(question(testbed, f"statistics.seed={seed}"), tmp_path / name, against(server)).requests[
            "prompt_tokens"
        ]
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    assert lengths[0].tolist() == lengths[1].tolist() != lengths[2].tolist()


def test_a_server_that_tells_less_is_recorded_all_the_same(
    testbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_VLLM", "no_ids,closed")
    run = live_run(question(testbed, off=True), tmp_path / "run", OPTIONS)
    assert run.manifest["noise"]["others_cores"] >= 0.0
    assert run.complete
    assert run.requests["output_tokens"].tolist() == [15] * 12
    assert run.requests["wrong_tokens"].tolist() == [-1] * 12
    assert (run.manifest["known_continuation"], run.manifest["acceptance"]) == (None, None)
    config = run.manifest["server"]["config"]
    assert (config["num_gpu_blocks"], config["block_size"], config["enable_prefix_caching"]) == (99, 16, True)
    assert (config["max_model_len"], config["async_scheduling"]) == (2048, None)


def test_without_a_log_only_the_client_s_side_is_there(testbed: Path, server: EngineServer, tmp_path: Path) -> None:
    run = live_run(question(testbed), tmp_path / "run", replace(against(server), server_log=None))
    assert (run.complete, run.server_log, run.manifest["server"]["log"]) == (True, None, False)
    assert (run.folder / METRICS_BEFORE).is_file()


def test_a_slow_client_says_so(server: EngineServer, tmp_path: Path) -> None:
    plan = LoadPlan(server.url, server.command[3], [[9]] * 3, [2] * 3, ["default"] * 3, due_s=[0.0, 0.3, 0.9])

    async def both() -> Client:
        client = Client(plan, Journal(tmp_path / "journal"))

        async def block() -> None:
            await asyncio.sleep(0.2)
            time.sleep(0.4)  # that is the point: the loop stands still, over the second due time

        await asyncio.gather(client.run(), block())
        return client

    summary = asyncio.run(both()).summary()
    assert summary["lateness_max_s"] > 0.2
    assert summary["timer_lateness_max_s"] > 0.3


# ---- faults of requests ----


def test_failed_requests_mark_the_run_and_leave_the_others(
    testbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_VLLM", "short=2,refuse=5,hang=4")
    run = live_run(question(testbed), tmp_path / "run", replace(OPTIONS, request_timeout_s=4.0))
    assert not run.complete
    assert run.manifest["incomplete_reason"].startswith("3 of 12 requests failed; the first: ")
    failed = run.requests[run.requests["error"] != ""]
    assert sorted(failed["error"]) == [
        "HTTP 400: this request is refused",
        "the answer ended after 7 of 15 tokens",
        "timed out after 4 s with 0 of 15 tokens",
    ]
    assert failed["finish_s"].isna().all()
    assert int(run.requests["finish_s"].notna().sum()) == 9
    assert run.manifest["known_continuation"] == {"checked_tokens": 9 * 15, "wrong_tokens": 0}
    assert refuses_connections(run.manifest["server"]["url"])


def test_a_wrong_token_fails_the_run(testbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_VLLM", "wrong=3")
    run = live_run(question(testbed), tmp_path / "run", OPTIONS)
    assert not run.complete
    assert run.manifest["incomplete_reason"] == "1 of 180 tokens differ from the known continuation"
    assert sorted(run.requests["wrong_tokens"]) == [0] * 11 + [1]


# ---- faults of servers ----


def test_a_server_that_dies_ends_the_run_and_what_came_is_kept(
    testbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_VLLM", "die_after=40")
    run = live_run(question(testbed), tmp_path / "run", OPTIONS)
    reason = run.manifest["incomplete_reason"]
    assert not run.complete
    assert reason.startswith(("the server ended with exit code 9 during the run", "the server is gone"))
    assert run.chunks["tokens"].sum() == run.requests["output_tokens"].sum() > 40
    assert "Fatal: the engine core died" in (run.folder / "server.log").read_text()
    assert len(run.requests) < 12 or (run.requests["error"] != "").any()


def test_a_server_that_cannot_start_shows_its_last_lines(
    testbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_VLLM", "crash")
    expected = r"^the server ended with exit code 7 before it was ready: ValueError: no such .*; the last lines of .*\n"
    with pytest.raises(LiveError, match=expected):
        live_run(question(testbed), tmp_path / "run", OPTIONS)
    reason = LiveRun.read(tmp_path / "run").manifest["incomplete_reason"]
    assert reason.startswith("the server ended with exit code 7 before it was ready: ValueError: no such quantization")


def test_a_server_that_is_never_ready_is_stopped(
    testbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_VLLM", "never_ready")
    with pytest.raises(LiveError, match="the server did not answer within 4 s; the last lines of"):
        live_run(question(testbed), tmp_path / "run", replace(OPTIONS, start_timeout_s=4.0))


def test_a_command_that_is_none_is_an_error(testbed: Path, tmp_path: Path) -> None:
    with pytest.raises(LiveError, match=r"exit code 127 before it was ready(.|\n)*/no/such/vllm: No such file"):
        live_run(question(testbed), tmp_path / "run", replace(OPTIONS, vllm=("/no/such/vllm",)))


def test_a_stubborn_server_is_killed(testbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_VLLM", "stubborn")
    monkeypatch.setattr("draftcast.calibration.live.server.STOP_TIMEOUT_S", 0.5)
    with EngineServer.start(ServerFlags(str(testbed / "target"), (), FAKE), tmp_path / "log") as server:
        server.wait_ready(60.0)
        assert server.exit_code is None
    assert refuses_connections(server.url)


def test_a_port_in_use_is_named(testbed: Path, server: EngineServer, tmp_path: Path) -> None:
    port = int(server.url.rpartition(":")[2])
    with pytest.raises(InputError, match=f"port = {port}: cannot be used: Address already in use"):
        live_run(question(testbed), tmp_path / "run", replace(OPTIONS, port=port))
    with pytest.raises(InputError, match="port = 70000: cannot be used"):
        live_run(question(testbed), tmp_path / "other", replace(OPTIONS, port=70000))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:9", "http://127.0.0.1:9/v1/models: no answer: Connection refused"),
        ("nonsense", "nonsense/v1/models: no answer: unknown url type"),
    ],
)
def test_a_wrong_url_is_named(testbed: Path, tmp_path: Path, url: str, message: str) -> None:
    with pytest.raises(LiveError, match=message):
        live_run(question(testbed), tmp_path / "run", replace(OPTIONS, url=url))


def test_something_else_than_vllm_is_named(testbed: Path, server: EngineServer, tmp_path: Path) -> None:
    with pytest.raises(LiveError, match="/metrics/v1/models: HTTP 404"):
        live_run(question(testbed), tmp_path / "run", replace(OPTIONS, url=f"{server.url}/metrics"))
    assert get(f"{server.url}/health") == ""


# ---- faults of this side ----


def test_an_interrupted_run_is_kept_and_its_server_stopped(testbed: Path, tmp_path: Path) -> None:
    asked = question(testbed, "workload.num_requests=400")

    def interrupt(_: int, state: dict[str, Any]) -> None:
        if state["tokens"] and state["sent"] > state["done"] + state["failed"]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        live_run(asked, tmp_path / "run", OPTIONS, module.LiveProgress(load=interrupt))
    run = LiveRun.read(tmp_path / "run")
    assert (run.complete, run.manifest["incomplete_reason"]) == (False, "interrupted")
    assert run.chunks["tokens"].sum() == run.requests["output_tokens"].sum() > 0
    assert "stopped" in set(run.requests["error"])
    assert (run.folder / METRICS_BEFORE).is_file()
    assert refuses_connections(run.manifest["server"]["url"])


@pytest.mark.parametrize(("which", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_the_command_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], which: signal.Signals, code: int
) -> None:
    # A shell starts background jobs with SIGINT ignored, and that is inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    before = signal.getsignal(signal.SIGTERM)
    cleaned = []

    def work() -> None:
        try:
            os.kill(os.getpid(), which)
            time.sleep(1.0)
        finally:
            cleaned.append(True)

    with pytest.raises(typer.Exit) as stopped, stoppable(tmp_path / "run"):
        work()
    assert (stopped.value.exit_code, cleaned) == (code, [True])
    assert capsys.readouterr().err.endswith(f"; see {tmp_path / 'run'}\n")
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_killed_command_leaves_no_server_and_a_readable_run(testbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    code = (
        "import sys; from pathlib import Path; from draftcast.scenarios.live import run as m\n"
        "from draftcast.scenarios.schema import load\n"
        f"asked = load.load_scenario({str(testbed / 'scenario.yaml')!r}, overrides=['workload.num_requests=200'])\n"
        f"m.live_run(asked, Path({str(out)!r}), m.LiveOptions(vllm={FAKE!r}, warmup_requests=0))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        end = time.monotonic() + 90
        while not (out / "journal.jsonl").is_file() or '["c", ' not in (out / "journal.jsonl").read_text():
            assert process.poll() is None
            assert time.monotonic() < end, "nothing was recorded"
            time.sleep(0.1)
        process.kill()
    url = json.loads((out / "manifest.json").read_text())["server"]["url"]
    end = time.monotonic() + 30
    while not refuses_connections(url) and time.monotonic() < end:  # the keeper does it on its own
        time.sleep(0.1)
    assert refuses_connections(url)
    run = LiveRun.read(out)
    assert (run.complete, run.manifest["incomplete_reason"]) == (False, "the run did not end")
    assert run.chunks["tokens"].sum() == run.requests["output_tokens"].sum() > 0


def test_a_full_disk_is_an_error_and_what_fitted_is_kept(testbed: Path, server: EngineServer, tmp_path: Path) -> None:
    asked = question(testbed, "workload.num_requests=400")
    # A limit on the size of a file stands for the disk: writing past it is refused in the same way.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        run = live_run(asked, tmp_path / "run", replace(against(server), server_log=None))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not run.complete
    assert run.manifest["incomplete_reason"].endswith("journal.jsonl: cannot be written: File too large")
    assert run.requests["output_tokens"].sum() > 0


def test_the_command_prints_what_was_recorded(testbed: Path, server: EngineServer, tmp_path: Path) -> None:
    changes = ["workload.num_requests=5", "workload.arrivals.request_rate_rps=40", "statistics.seed=7"]
    sets = [word for change in changes for word in ("--set", change)]
    line = ["live", "run", str(testbed / "scenario.yaml"), "--out", str(tmp_path / "run"), "--url", server.url, *sets]
    done = CliRunner().invoke(app, line, catch_exceptions=False)
    assert done.exit_code == 0
    assert "5 of 5 requests" in done.stdout
    assert "as known; acceptance by position 1.000, 0.000" in done.stdout
    # What a server that somebody else started uses is not told from the rest.
    assert LiveRun.read(tmp_path / "run").manifest["noise"] == {"others_cores": None}
    line[4] = str(tmp_path / "json")
    data = json.loads(CliRunner().invoke(app, [*line, "--json"], catch_exceptions=False).stdout)
    assert (data["finished"], data["acceptance_rates"], data["manifest"]["complete"]) == (5, [1.0, 0.0], True)
    with pytest.raises(InputError, match="is not empty"):
        CliRunner().invoke(app, line, catch_exceptions=False)
    with pytest.raises(InputError, match="--server-log: '/no/log': must be a file"):
        CliRunner().invoke(app, [*line, "--server-log", "/no/log"], catch_exceptions=False)


def test_an_incomplete_run_is_the_command_s_failure(
    testbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_VLLM", "short=2")
    out = str(tmp_path / "run")
    line = ["live", "run", str(testbed / "scenario.yaml"), "--out", out, "--vllm", " ".join(FAKE)]
    changes = ["--set", "workload.num_requests=3", "--set", "workload.arrivals.request_rate_rps=40"]
    with pytest.raises(LiveError, match=f"^{out}: incomplete: 1 of 3 requests failed"):
        CliRunner().invoke(app, [*line, *changes, "--warmup-requests", "0"], catch_exceptions=False)


# ---- the command that starts a server ----


def test_a_server_is_started_as_the_scenario_says(testbed: Path) -> None:
    words = server_flags(question(testbed, "engine.max_num_seqs=7"), OPTIONS).command(8000)
    assert words[: len(FAKE) + 6] == [
        *FAKE,
        "--model",
        str(testbed / "target"),
        "--host",
        "127.0.0.1",
        "--port",
        "8000",
    ]
    assert words[words.index("--max-num-seqs") + 1] == "7"
    assert words[words.index("--block-size") + 1] == "32"
    assert words[-3:] == ["--enable-logging-iteration-details", "--logging-config.formatter", "json"]


def test_a_gpu_s_command_has_nothing_of_a_cpu_s(testbed: Path) -> None:
    on_cpu, on_gpu = (server_flags(question(testbed, f"hardware={name}"), OPTIONS) for name in ("cpu", "h100-sxm"))
    assert on_cpu.command(1) == on_gpu.command(1)
    assert on_cpu.environment().keys() - on_gpu.environment().keys() == {"VLLM_CPU_KVCACHE_SPACE"}


def test_speculation_and_more_words_are_passed_on(testbed: Path) -> None:
    options = replace(OPTIONS, server_arguments=("--seed", "5"))
    words = server_flags(question(testbed), options).command(8000)
    config = json.loads(words[words.index("--speculative-config") + 1])
    assert config["num_speculative_tokens"] == 2
    assert words[words.index("--seed") + 1] == "5"
    assert "--speculative-config" not in server_flags(question(testbed, off=True), OPTIONS).command(8000)
    bundled = question(testbed, "engine.model=llama-3.1-8b", off=True)
    assert "meta-llama/Llama-3.1-8B" in " ".join(server_flags(bundled, OPTIONS).command(8000))
    instruct = {"method": "eagle3", "model": "org/Llama-3.1-8B-Instruct-head", "num_speculative_tokens": 2}
    bundled = question(testbed, "engine.model=llama-3.1-8b", f"engine.speculative_config={json.dumps(instruct)}", OWN)
    assert "meta-llama/Llama-3.1-8B-Instruct" in server_flags(bundled, OPTIONS).command(8000)
    serving = ServerFlags("org/model", (), ("vllm", "serve")).command(1)
    assert serving[:3] == ["vllm", "serve", "org/model"]


def test_a_head_that_is_not_named_is_needed_by_a_server_that_we_start(testbed: Path) -> None:
    unnamed = question(testbed, "engine.speculative_config={method: eagle3, num_speculative_tokens: 2}", OWN)
    with pytest.raises(ScenarioError, match=r"speculative_config\.model = None: a server does not start without"):
        server_flags(unnamed, OPTIONS)
    server_flags(unnamed, replace(OPTIONS, url="http://localhost:1"))  # theirs has one
    assert speculative_config(unnamed) == {"method": "eagle3", "num_speculative_tokens": 2}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("cluster.replicas=2", "cluster.replicas = 2: a live run has one server"),
        ("policy={name: goodput}", "policy.name = 'goodput': vLLM has no policies; fixed and batch_schedule"),
        ("policy={name: off}", "policy.name = 'off'"),
        ("policy={name: fixed, parameters: {k: 1}}", "policy.name = 'fixed'"),
        ("engine.model=testbed-250M", "engine.model = 'testbed-250M': is a shape without weights"),
        ("engine.speculative_config.model=testbed-250M", "speculative_config.model = 'testbed-250M': is a shape"),
    ],
)
def test_what_a_server_cannot_do_is_refused(testbed: Path, tmp_path: Path, change: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        live_run(question(testbed, change), tmp_path / "run", OPTIONS)
    assert not (tmp_path / "run").exists()


def test_ngram_prompts_need_to_know_how_often_they_match(testbed: Path, tmp_path: Path) -> None:
    spec = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_min": 2}
    rates = ["acceptance={model: per_position, rates: [0.5, 0.3]}"]
    asked = load_scenario(testbed / "scenario.yaml", overrides=rates, speculative_config=spec)
    with pytest.raises(ScenarioError, match=r"acceptance\.match_probability = None: needed for n-gram prompts"):
        live_run(asked, tmp_path / "run", OPTIONS)


# ---- somebody else's client ----


def bench_result(**changes: Any) -> dict[str, Any]:
    result: dict[str, Any] = {
        "label": "mine",
        "input_lens": [5, 6, 7],
        "output_lens": [4, 0, 1],
        "start_times": [100.5, 0.0, 100.0],
        "ttfts": [0.2, 0.0, 0.3],
        "itls": [[0.1, 0.1], [], []],
        "errors": ["", "connection\nreset", ""],
        "spec_decode_num_drafts": 2,
        "spec_decode_draft_tokens": 6,
        "spec_decode_accepted_tokens": 3,
        "spec_decode_per_position_acceptance_rates": [1.0, 0.5, 0.0],
    }
    return {**result, **changes}


def test_a_bench_result_becomes_a_run(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text(json.dumps(bench_result()))
    run = import_bench_result(file, tmp_path / "run", scenario={"name": "s"})
    assert run.requests["due_s"].tolist() == [0.5, 0.0, 0.0]
    assert run.requests["first_token_s"].tolist()[::2] == pytest.approx([0.7, 0.3])
    assert run.requests["finish_s"].tolist()[::2] == pytest.approx([0.9, 0.3])
    assert run.requests["error"].tolist() == ["", "connection reset", ""]
    assert run.chunks.groupby("request_id")["tokens"].apply(list).tolist() == [[1, 1, 2], [1]]
    assert run.manifest["acceptance"]["per_position"] == [2, 1, 0]
    assert run.manifest["scenario"] == {"name": "s"}
    assert (run.complete, run.manifest["incomplete_reason"]) == (False, "1 of 3 requests failed")


def test_a_bench_result_without_gaps_ends_by_its_latencies(tmp_path: Path) -> None:
    """As a forecast is, of which single gaps are not kept."""
    (tmp_path / "result.json").write_text(json.dumps(bench_result(itls=[[], [], []], latencies=[0.8, 0.0, 0.3])))
    run = import_bench_result(tmp_path / "result.json", tmp_path / "run")
    assert run.requests["finish_s"].tolist()[::2] == pytest.approx([1.3, 0.3])
    assert run.requests["output_tokens"].tolist() == [4, 0, 1]
    assert run.chunks.empty
    figures = read_measured_run(tmp_path / "run").figures
    assert figures["mean_tpot_s"] == pytest.approx(0.2)
    assert figures["mean_e2el_s"] == pytest.approx(0.55)
    assert not figures.get("mean_itl_s", 0.0) > 0.0


def test_the_command_takes_a_bench_result(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text(json.dumps(bench_result()))
    line = ["live", "import", str(file), "--out", str(tmp_path / "run"), "--scenario", "default", "--json"]
    data = json.loads(CliRunner().invoke(app, line, catch_exceptions=False).stdout)
    assert (data["requests"], data["finished"], data["output_tokens"]) == (3, 2, 5)
    assert data["manifest"]["scenario"]["hardware"] == "h100-sxm"
    assert data["manifest"]["speculative_config"]["method"] == "eagle3"
    line = ["live", "import", str(file), "--out", str(tmp_path / "other"), "--set", "hardware=cpu"]
    with pytest.raises(InputError, match="go with --scenario"):
        CliRunner().invoke(app, line, catch_exceptions=False)
    file.write_text(json.dumps({key: value for key, value in bench_result().items() if "spec_decode" not in key}))
    line = ["live", "import", str(file), "--out", str(tmp_path / "other"), "--scenario", "default"]
    with pytest.raises(InputError, match="num_drafts: not found, and the scenario speculates; give --speculative-con"):
        CliRunner().invoke(app, line, catch_exceptions=False)
    assert not (tmp_path / "other").exists()
    CliRunner().invoke(app, [*line, "--speculative-config", "null"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1]", "must be a JSON object"),
        ("{}", "input_lens: missing; write the file with"),
        ("nonsense", "not valid JSON"),
        (json.dumps({**bench_result(), "itls": [[]]}), "itls: 3 values are needed"),
        (
            json.dumps({**bench_result(), "ttfts": [0.1, 0.0, None]}),
            "request 2: its lengths, times and gaps do not fit",
        ),
        (json.dumps(bench_result(itls=[[], [], []])), "itls: no gap in it, and no latencies"),
        (json.dumps(bench_result(latencies=[1.0])), "latencies: 3 values are needed"),
        (
            json.dumps(bench_result(itls=[[], [], []], latencies=[0.1, 0.0, 0.3])),
            "request 0: its lengths, times and gaps",
        ),
        (json.dumps(bench_result(output_lens=[2.7, 0, 1])), "output_lens = 2.7: must be whole numbers of tokens"),
        (json.dumps(bench_result(input_lens=[5, 6, 0])), "input_lens = 0: must be whole numbers of tokens"),
        (json.dumps(bench_result(max_concurrency=1.5)), "max_concurrency = 1.5: must be a whole number of clients"),
    ],
)
def test_what_is_no_bench_result_is_named(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "result.json"
    file.write_text(content)
    with pytest.raises(InputError, match=message):
        import_bench_result(file, tmp_path / "run")
