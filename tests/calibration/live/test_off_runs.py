"""The user's own runs without speculation: the formats read, and what is refused in one line."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from samples import GUIDELLM_REPORT

from draftcast.calibration.live import off_runs
from draftcast.calibration.live.off_runs import local_copy, read_off_runs
from draftcast.errors import InputError

BENCH: dict[str, Any] = {
    "model_id": "Qwen/Qwen3-8B",
    "num_prompts": 80,
    "request_rate": "inf",
    "burstiness": 1.0,
    "max_concurrency": 8,
    "duration": 40.0,
    "completed": 80,
    "failed": 0,
    "total_input_tokens": 16_000,
    "total_output_tokens": 20_000,
    "mean_tpot_ms": 7.0,
    "std_tpot_ms": 0.7,
    "mean_ttft_ms": 30.0,
    "std_ttft_ms": 9.0,
}


def distribution(mean: float, std: float = 0.0, count: int = 100) -> dict[str, Any]:
    return {"successful": {"mean": mean, "std_dev": std, "count": count}}


def guidellm(strategy: dict[str, Any], tpot_ms: float = 9.0) -> dict[str, Any]:
    metrics = {
        "request_totals": {"successful": 100, "errored": 0},
        "request_latency": distribution(1.0),
        "inter_token_latency_ms": distribution(tpot_ms, 0.5),
        "time_per_output_token_ms": distribution(2 * tpot_ms),
        "time_to_first_token_ms": distribution(40.0, 5.0),
        "prompt_token_count": distribution(512.0),
        "output_token_count": distribution(128.0, 30.0),
    }
    return {"config": {"strategy": strategy, "backend": {"model": "Qwen/Qwen3-8B"}}, "metrics": metrics}


METRICS = """
vllm:spec_decode_num_drafts_total{model_name="m",engine="0"} 0
vllm:time_to_first_token_seconds_sum{model_name="m",engine="0"} 4.0
vllm:time_to_first_token_seconds_count{model_name="m",engine="0"} 100
vllm:inter_token_latency_seconds_sum{model_name="m",engine="0"} 90
vllm:inter_token_latency_seconds_count{model_name="m",engine="0"} 10000
vllm:request_time_per_output_token_seconds_sum{model_name="m",engine="0"} 0.8
vllm:request_time_per_output_token_seconds_count{model_name="m",engine="0"} 100
vllm:request_prompt_tokens_sum{model_name="m",engine="0"} 20000
vllm:request_prompt_tokens_count{model_name="m",engine="0"} 100
vllm:request_generation_tokens_sum{model_name="m",engine="0"} 10100
vllm:request_generation_tokens_count{model_name="m",engine="0"} 100
"""


def written(folder: Path, content: object) -> Path:
    file = folder / "run"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def test_vllm_bench(tmp_path: Path) -> None:
    (run,) = read_off_runs(written(tmp_path, BENCH), "bench.json")
    assert run.figures == {"mean_tpot_s": pytest.approx(0.007), "mean_ttft_s": pytest.approx(0.03)}
    assert run.errors["mean_tpot_s"] == pytest.approx(0.1 / 80**0.5)
    assert run.arrivals == {"process": "closed_loop", "concurrency": 8}
    assert (run.requests, run.model, run.load) == (80, "Qwen/Qwen3-8B", "8 clients")
    assert (run.prompt_tokens.mean, run.output_tokens.mean, run.output_tokens.section) == (200.0, 250.0, None)


def test_vllm_bench_at_a_rate_with_its_lengths(tmp_path: Path) -> None:
    lengths = [100, 300] * 40
    at_rate = {"request_rate": 4.0, "burstiness": 0.5, "max_concurrency": None, "output_lens": lengths}
    (run,) = read_off_runs(written(tmp_path, BENCH | at_rate), "bench.json")
    assert run.arrivals == {"process": "gamma", "request_rate_rps": 4.0, "burstiness": 0.5}
    assert run.output_tokens.section == {"distribution": "empirical", "values": lengths}


def test_all_prompts_at_once_are_as_many_clients(tmp_path: Path) -> None:
    (run,) = read_off_runs(written(tmp_path, BENCH | {"max_concurrency": None}), "bench.json")
    assert run.arrivals == {"process": "closed_loop", "concurrency": 80}


def test_appended_results_are_runs_of_their_own(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps(BENCH | {"max_concurrency": c}) for c in (1, 4, 16))
    runs = read_off_runs(written(tmp_path, lines), "bench.jsonl")
    assert [run.load for run in runs] == ["1 client", "4 clients", "16 clients"]
    assert [run.source for run in runs] == ["bench.jsonl#1", "bench.jsonl#2", "bench.jsonl#3"]


def test_guidellm(tmp_path: Path) -> None:
    strategies = [
        {"type_": "synchronous"},
        {"type_": "throughput"},
        {"type_": "concurrent", "streams": 8},
        {"type_": "constant", "rate": 2.5},
        {"type_": "poisson", "rate": 3.5},
    ]
    report = {"benchmarks": [guidellm(strategy) for strategy in strategies]}
    runs = read_off_runs(written(tmp_path, report), "g.json")
    assert [run.load for run in runs] == ["1 client", "8 clients", "2.5 req/s", "3.5 req/s"]
    assert runs[2].arrivals == {"process": "deterministic", "request_rate_rps": 2.5}
    # GuideLLM's time per output token holds the first token; its inter-token latency is vLLM's TPOT.
    assert runs[0].figures == {"mean_tpot_s": pytest.approx(0.009), "mean_ttft_s": pytest.approx(0.04)}
    assert runs[0].prompt_tokens.section == 512
    assert runs[0].output_tokens.section == {"distribution": "lognormal", "mean": 128.0, "std": 30.0}
    assert runs[0].model == "Qwen/Qwen3-8B"


def test_a_report_of_guidellm_itself(tmp_path: Path) -> None:
    """Its means are those of its requests' own times."""
    benchmarks = json.loads(GUIDELLM_REPORT)["benchmarks"]
    runs = read_off_runs(written(tmp_path, GUIDELLM_REPORT), "g.json")
    assert [(run.load, run.requests, run.model) for run in runs] == [
        (f"{rate} req/s", 12, "meta-llama/Llama-3.1-8B-Instruct") for rate in (4, 8)
    ]
    for run, benchmark in zip(runs, benchmarks, strict=True):
        requests = benchmark["requests"]["successful"]
        times = [request["info"]["timings"] for request in requests]
        tpots_s = [(at["last_token_iteration"] - at["first_token_iteration"]) / 7 for at in times]
        ttfts_s = [at["first_token_iteration"] - at["request_start"] for at in times]
        assert run.figures == {
            "mean_tpot_s": pytest.approx(fmean(tpots_s)),
            "mean_ttft_s": pytest.approx(fmean(ttfts_s)),
        }
        assert (run.prompt_tokens.section, run.output_tokens.section) == (26, 8)


def test_metrics(tmp_path: Path) -> None:
    (run,) = read_off_runs(written(tmp_path, METRICS), "metrics.txt")
    assert run.figures == {"mean_tpot_s": pytest.approx(0.008), "mean_ttft_s": pytest.approx(0.04)}
    assert (run.requests, run.arrivals, run.output_tokens.mean) == (100, None, 101.0)
    older = METRICS.replace("request_time_per_output_token", "something_else")
    assert read_off_runs(written(tmp_path, older), "m")[0].figures["mean_tpot_s"] == pytest.approx(0.009)


def stat(avg: float, std: float | None = None, unit: str = "ms") -> dict[str, Any]:
    return {"unit": unit, "avg": avg, "p50": avg} | ({"std": std} if std is not None else {})


# By hand from the documented schema: ai-dynamo/aiperf, docs/tutorials/working-with-profile-exports.md.
AIPERF: dict[str, Any] = {
    "schema_version": "1.4",
    "inter_token_latency": stat(7.0, 0.7),
    "time_to_first_token": stat(30.0, 9.0),
    "request_latency": stat(1800.0),
    "request_count": stat(80, unit="requests"),
    "error_request_count": stat(1, unit="requests"),
    "benchmark_duration": stat(40.0, unit="sec"),
    "input_sequence_length": stat(200.0, 0.0, "tokens"),
    "output_sequence_length": stat(250.0, 25.0, "tokens"),
    "input_config": {
        "endpoint": {"model_names": ["Qwen/Qwen3-8B"], "type": "chat"},
        "loadgen": {"concurrency": 8, "request_rate": None, "arrival_pattern": "poisson"},
    },
}
PHASES = {"phases": [{"name": "warmup", "concurrency": 2}, {"name": "profiling", "rate": 2.5, "concurrency": None}]}
# SemiAnalysisAI/InferenceX, utils/process_result.py: seconds, nominal lengths.
INFERENCEX: dict[str, Any] = {
    "hw": "h200",
    "conc": 8,
    "model": "Qwen/Qwen3-8B",
    "framework": "vllm",
    "spec_decoding": "none",
    "isl": 1000,
    "osl": 100,
    "tp": 1,
    "tput_per_gpu": 900.0,
    "mean_tpot": 0.007,
    "std_tpot": 0.0007,
    "mean_ttft": 0.03,
    "mean_intvty": 142.9,
}
# sgl-project/sglang, bench_serving.py --output-file.
SGLANG = {key: value for key, value in BENCH.items() if key not in ("model_id", "num_prompts", "failed", "burstiness")}
SGLANG |= {"backend": "sglang", "request_rate": float("inf"), "mean_e2e_latency_ms": 1800.0, "accept_length": None}


@pytest.mark.parametrize(
    ("result", "lengths", "model"),
    [
        (AIPERF, (200.0, 250.0, 25.0), "Qwen/Qwen3-8B"),
        (AIPERF | {"input_config": {"perf_analyzer": {"stimulus": {"concurrency": 8}}}}, (200.0, 250.0, 25.0), ""),
        (INFERENCEX, (900.0, 90.0, pytest.approx(20.0 / 12**0.5)), "Qwen/Qwen3-8B"),
        (SGLANG, (200.0, 250.0, None), ""),
    ],
    ids=["AIPerf", "GenAI-Perf", "InferenceX", "SGLang"],
)
def test_other_tools_say_the_same_run(tmp_path: Path, result: dict[str, Any], lengths: Any, model: str) -> None:
    (run,) = read_off_runs(written(tmp_path, result), "run")
    assert run.figures == {"mean_tpot_s": pytest.approx(0.007), "mean_ttft_s": pytest.approx(0.03)}
    assert run.errors["mean_tpot_s"] == pytest.approx(0.1 / 80**0.5)
    assert (run.arrivals, run.requests, run.model) == ({"process": "closed_loop", "concurrency": 8}, 80, model)
    assert run.prompt_tokens is not None
    assert run.output_tokens is not None
    assert (run.prompt_tokens.mean, run.output_tokens.mean, run.output_tokens.deviation) == lengths


def test_aiperf_at_a_rate(tmp_path: Path) -> None:
    (run,) = read_off_runs(written(tmp_path, AIPERF | {"input_config": PHASES}), "run")
    assert run.arrivals == {"process": "gamma", "request_rate_rps": 2.5, "burstiness": 1.0}
    even = {"loadgen": {"request_rate": 4, "arrival_pattern": "constant"}}
    (run,) = read_off_runs(written(tmp_path, AIPERF | {"input_config": even}), "run")
    assert run.arrivals == {"process": "deterministic", "request_rate_rps": 4.0}


def test_results_of_inferencex_stand_in_a_list(tmp_path: Path) -> None:
    runs = read_off_runs(written(tmp_path, [INFERENCEX, INFERENCEX | {"conc": 4}]), "agg.json")
    assert [run.requests for run in runs] == [80, 40]
    assert runs[1].source == "agg.json#2"


def range_of(text: str, seconds: float) -> dict[str, Any]:
    """The text's samples as Prometheus answers ``/api/v1/query_range`` (its HTTP API's documentation), from 5 on."""
    series = []
    for line in text.strip().splitlines():
        name, rest = line.split("{")
        labels, value = rest.split("} ")
        pairs = dict(pair.split("=") for pair in labels.replace('"', "").split(","))
        # The server began again on the way: 5 of it were counted before.
        values = [[0.0, "1.0"], [seconds / 2, "6.0"], [seconds, str(float(value) - 5.0)]]
        series.append({"metric": {"__name__": name, **pairs}, "values": values})
    return {"status": "success", "data": {"resultType": "matrix", "result": series}}


def test_a_range_query_is_a_deployment_s_history_with_its_rate(tmp_path: Path) -> None:
    running = "\n".join(line for line in METRICS.strip().splitlines() if "drafts" not in line)
    answer = range_of(running.replace("4.0", "10.0").replace("0.8", "5.8"), 50.0)
    for each in answer["data"]["result"]:
        if float(each["values"][2][1]) >= 6.0:  # grew without beginning again
            each["values"][2][1] = str(float(each["values"][2][1]) + 6.0)
    (run,) = read_off_runs(written(tmp_path, answer), "range.json")
    assert run.requests == 100
    assert run.arrivals == {"process": "poisson", "request_rate_rps": pytest.approx(2.0)}
    assert run.figures["mean_ttft_s"] == pytest.approx(0.10)
    assert run.figures["mean_tpot_s"] == pytest.approx(0.058)
    assert (run.per_engine, run.load) == (True, "2 req/s")
    ranks = [
        {**each, "metric": each["metric"] | {"engine": rank}} for rank in "01" for each in answer["data"]["result"]
    ]
    two = {"status": "success", "data": {"resultType": "matrix", "result": ranks}}
    (run,) = read_off_runs(written(tmp_path, two), "range.json")
    assert (run.requests, run.load) == (100, "2 req/s an engine")
    with pytest.raises(InputError, match="matrix"):
        read_off_runs(written(tmp_path, {"status": "success", "data": {"resultType": "matrix", "result": [3]}}), "r")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (BENCH | {"spec_decode_num_drafts": 40}, "speculation"),
        (METRICS.replace('tal{model_name="m",engine="0"} 0', 'tal{model_name="m",engine="0"} 7', 1), "speculation"),
        (SGLANG | {"accept_length": 2.4}, "accept_length"),
        (INFERENCEX | {"spec_decoding": "mtp"}, "speculation"),
        (INFERENCEX | {"isl": "long"}, "isl"),
        (AIPERF | {"request_count": None}, "request_count.avg"),
        (AIPERF | {"time_to_first_token": {"avg": "soon"}}, "time_to_first_token.avg"),
        (AIPERF | {"error_request_count": stat(9)}, "9 requests failed"),
        (BENCH | {"completed": 9}, "9 answered requests"),
        (BENCH | {"failed": 10}, "10 requests failed"),
        (BENCH | {"mean_tpot_ms": "fast"}, "mean_tpot_ms"),
        (BENCH | {"mean_tpot_ms": None}, "mean_tpot_ms"),
        (BENCH | {"request_rate": 50.0, "max_concurrency": 16, "duration": 9.0}, "held back"),
        (BENCH | {"max_concurrency": "many"}, "max_concurrency"),
        (BENCH | {"request_rate": 2.0, "max_concurrency": "many"}, "max_concurrency"),
        (BENCH | {"max_concurrency": 2.5}, "whole number of clients"),
        ({"benchmarks": []}, "no benchmark"),
        ({"benchmarks": [guidellm({"type_": "throughput"})]}, "no benchmark"),
        ({"benchmarks": [guidellm({"type_": "replay"})]}, "strategy"),
        ({"benchmarks": [3]}, "metrics"),
        ({"benchmarks": [guidellm({"type_": "poisson", "rate": -1})]}, "rate"),
        ({"some": "thing"}, "none of"),
        ([1, 2], "none of"),
        ("", "none of"),
        ("hello", "none of"),
        ("{", "not valid JSON"),
        (METRICS.replace("4.0", "NaN"), "time_to_first_token"),
        (METRICS.replace('"m"', '"n"', 3), "several models"),
        (BENCH | {"input_lens": [1, "a"]}, "input_lens.*whole numbers of tokens"),
        (BENCH | {"output_lens": [-5] * 80}, "output_lens.*whole numbers of tokens"),
        (BENCH | {"request_rate": 0}, "request_rate = 0: must be above 0"),
        (BENCH | {"ramp_up_strategy": "linear", "ramp_up_end_rps": 10}, "ramp_up_strategy = 'linear'"),
        (BENCH | {"completed": 0, "failed": 80}, "0 answered requests"),
        (BENCH | {"completed": 0, "total_output_tokens": 0, "mean_tpot_ms": 0.0}, "0 answered requests"),
        (BENCH | {"mean_tpot_ms": 1e30}, r"mean_tpot_ms = 1e\+30: must be a number from 0 to 1e\+12"),
    ],
)
def test_refused_in_one_line(tmp_path: Path, content: object, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        read_off_runs(written(tmp_path, content), "mine")
    assert "mine" in str(caught.value)
    assert "\n" not in str(caught.value)


@contextmanager
def server(answer: Callable[[http.server.BaseHTTPRequestHandler], None]) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None:
            pass

    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_port}/run.json"
    finally:
        httpd.shutdown()
        httpd.server_close()


def sending(body: bytes, status: int = 200, **headers: str) -> Callable[[http.server.BaseHTTPRequestHandler], None]:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def test_an_address_is_read_as_a_file() -> None:
    with server(sending(json.dumps(BENCH).encode())) as url, local_copy(url) as file:
        assert read_off_runs(file, url)[0].source == url
    assert not file.exists()


def refused(url: str) -> str:
    with pytest.raises(InputError) as caught, local_copy(url):
        pass
    assert str(caught.value).startswith(url)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_address_has_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(off_runs, "URL_SECONDS", 0.5)
    monkeypatch.setattr(off_runs, "URL_BYTES", 1000)

    def drip(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        for _ in range(30):  # each piece comes in time, the whole does not
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.1)

    with server(sending(b" " * 1000)) as url, local_copy(url) as file:
        assert file.stat().st_size == 1000
    with server(sending(b" " * 1001)) as url:
        assert "more than" in refused(url)
    began = time.monotonic()
    with server(drip) as url:
        assert "no answer within 0.5 s" in refused(url)
        assert time.monotonic() - began < 1.5
    with server(sending(b"", 404)) as url:
        assert "404" in refused(url)
    refused("http://127.0.0.1:9/run.json")


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data://text", "gopher://x"])
def test_only_http_and_https(url: str) -> None:
    assert "http or https" in refused(url)


def test_a_redirect_is_not_followed() -> None:
    asked = []

    def other(handler: http.server.BaseHTTPRequestHandler) -> None:
        asked.append(handler.path)
        sending(b"{}")(handler)

    with server(other) as target, server(sending(b"", 302, Location=target)) as url:
        assert f"redirects to {target}" in refused(url)
    assert not asked


def test_an_address_that_holds_no_run_is_named() -> None:
    with (
        server(sending(b"\xff\xfe")) as url,
        pytest.raises(InputError, match="UTF-8") as caught,
        local_copy(url) as file,
    ):
        off_runs.is_engine_log(file)
    assert url in str(caught.value)
    assert "/tmp" not in str(caught.value)
