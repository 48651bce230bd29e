"""``draftcast serve`` as a process: OpenAI's shapes, metrics, limits, clients and replicas that vanish, the end."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT, TESTS
from simulated_server import SimulatedServer, simulated_server, stream, wait_until

from draftcast.calibration.acceptance.metrics import samples
from draftcast.calibration.live.server import RunningServer
from draftcast.scenarios.serve.app import MAX_BODY_BYTES

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
PROMPT = list(range(1, 101))


@pytest.fixture(scope="module")
def server() -> Iterator[SimulatedServer]:
    with simulated_server("default", "--speed", "0.5") as running:  # slow: busy cores join few pieces of a stream
        yield running


# ---- shapes ----


def test_a_completion(server: SimulatedServer) -> None:
    answer = server.get(
        "/v1/completions", {"model": MODEL, "prompt": PROMPT, "max_tokens": 7, "return_token_ids": True}
    )
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["model"] == MODEL
    [choice] = answer["choices"]
    assert choice["text"] == " token" * 7
    assert len(choice["token_ids"]) == 7
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "length", None)
    assert answer["usage"] == {"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107}


def test_a_stream_of_a_completion(server: SimulatedServer) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *pieces, last = server.events(
        "/v1/completions", {"prompt": PROMPT, "max_tokens": 40, "stream_options": options, "return_token_ids": True}
    )
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 100, "completion_tokens": 40, "total_tokens": 140}
    assert 2 <= len(pieces) <= 40  # a busy machine joins pieces
    sizes = [len(piece["choices"][0]["token_ids"]) for piece in pieces]
    assert sum(sizes) == 40
    assert [piece["usage"]["completion_tokens"] for piece in pieces] == [sum(sizes[: i + 1]) for i in range(len(sizes))]
    assert [piece["choices"][0]["finish_reason"] for piece in pieces] == [None] * (len(pieces) - 1) + ["length"]
    assert len({piece["id"] for piece in pieces}) == 1


def test_a_stream_says_its_usage_only_when_asked(server: SimulatedServer) -> None:
    events = server.events("/v1/completions", {"prompt": PROMPT, "max_tokens": 3})
    assert all(len(event["choices"]) == 1 and "usage" not in event for event in events)


def test_chat(server: SimulatedServer) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    ]
    answer = server.get("/v1/chat/completions", {"messages": messages, "max_completion_tokens": 3})
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": " token" * 3}
    # "system\nBe brief." is 16 bytes, "user\nHi" 7: 4 + 2 tokens, and 4 for each message.
    assert answer["usage"]["prompt_tokens"] == 14
    events = server.events("/v1/chat/completions", {"messages": messages, "max_tokens": 20})
    deltas = [event["choices"][0]["delta"] for event in events]
    assert [delta.get("role") for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert "".join(delta["content"] for delta in deltas) == " token" * 20
    assert {event["object"] for event in events} == {"chat.completion.chunk"}


def test_tokenizer_speed_outputs_of_the_scenario_and_a_dead_replica(server: SimulatedServer, tmp_path: Path) -> None:
    words = {"<unk>": 0, "one": 1, "two": 2, "token": 3}
    model = {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"}
    parts = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    tokenizer = {"version": "1.0", "added_tokens": [], **parts, "pre_tokenizer": {"type": "WhitespaceSplit"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer | {"model": model}))
    lengths = "workload.lengths={prompt_tokens: 10, output_tokens: 33}"
    with simulated_server("default", "--speed", "20", "--tokenizer", str(tmp_path), "--set", lengths) as fast:
        answer = fast.get("/v1/completions", {"prompt": "one two three", "max_tokens": 2, "return_token_ids": True})
        assert answer["usage"]["prompt_tokens"] == 3
        assert answer["choices"][0]["token_ids"] == [3, 3]
        answer = fast.get("/v1/chat/completions", {"messages": [{"role": "user", "content": "one"}]})
        assert answer["usage"] == {"prompt_tokens": 6, "completion_tokens": 33, "total_tokens": 39}
        assert answer["choices"][0]["finish_reason"] == "stop"
        cut = fast.get("/v1/completions", {"prompt": list(range(1, 8181)), "max_tokens": None})
        assert (cut["usage"]["completion_tokens"], cut["choices"][0]["finish_reason"]) == (12, "length")
        assert seconds(fast) < seconds(server) / 4  # 40 times as fast, but for the connection's own time
        os.kill(fast.replicas()[0], signal.SIGKILL)
        wait_until(lambda: fast.error("/health")[0] == 503)
        assert fast.error("/v1/completions", {"prompt": PROMPT})[0] == 503
        fast.stop(signal.SIGINT)


def seconds(server: SimulatedServer) -> float:
    began = time.monotonic()
    server.get("/v1/completions", {"prompt": PROMPT, "max_tokens": 150})
    return time.monotonic() - began


# ---- about the server ----


def test_facts_are_read_as_those_of_vllm(server: SimulatedServer) -> None:
    facts = RunningServer.of(server.url)
    assert (facts.model, facts.version) == (MODEL, "0.32")
    assert (facts.config["max_model_len"], facts.config["block_size"], facts.config["async_scheduling"]) == (
        8192,
        16,
        True,
    )
    assert facts.config["speculative_config"]["num_speculative_tokens"] == 3
    assert server.open("/health").status == 200


def test_metrics_count_what_was_served(server: SimulatedServer) -> None:
    counters = ("prompt_tokens_total", "generation_tokens_total", "spec_decode_num_drafts_total")
    counters += ("spec_decode_num_accepted_tokens_total", "spec_decode_num_accepted_tokens_per_pos_total")
    counters += ("request_prompt_tokens_sum", "request_generation_tokens_sum")
    counters += ("time_to_first_token_seconds_count", "e2e_request_latency_seconds_count", "request_success_total")
    before = {name: server.metric(name) for name in counters}
    events = server.events("/v1/completions", {"prompt": PROMPT, "max_tokens": 60})
    grown = {name: server.metric(name) - before[name] for name in counters}
    assert grown["prompt_tokens_total"] == grown["request_prompt_tokens_sum"] == 100
    assert grown["generation_tokens_total"] == grown["request_generation_tokens_sum"] == 60
    assert grown["request_success_total"] == grown["time_to_first_token_seconds_count"] == 1
    accepted = grown["spec_decode_num_accepted_tokens_total"]
    assert accepted == grown["spec_decode_num_accepted_tokens_per_pos_total"]
    assert 0 < accepted <= 3 * grown["spec_decode_num_drafts_total"]
    # Each round adds a token of its own; drafts accepted beyond the end of the request are counted, as in vLLM.
    assert 59 <= accepted + grown["spec_decode_num_drafts_total"] <= 59 + 3
    assert len(events) <= 1 + grown["spec_decode_num_drafts_total"]
    assert server.metric("num_requests_running") == server.metric("kv_cache_usage_perc") == 0


def test_each_replica_of_a_group_is_an_engine_of_its_own() -> None:
    search = (
        "{engine: {max_num_seqs: 4, speculative_config: {method: ngram, num_speculative_tokens: 5}}, "
        "acceptance: {model: ngram, match_probability: 1, alpha: 1}}"
    )
    cluster = f"cluster={{groups: [{{}}, {search}, {{hardware: a100-80g, engine: {{speculative_config: null}}}}]}}"
    with simulated_server("default", "--set", cluster, "--speed", "5") as server:
        for _ in range(3):  # round robin
            server.get("/v1/completions", {"prompt": PROMPT, "max_tokens": 61})
        drafted = [server.metric("spec_decode_num_draft_tokens_total", engine=engine) for engine in "012"]
        rounds = [server.metric("spec_decode_num_drafts_total", engine=engine) for engine in "012"]
        assert [server.metric("generation_tokens_total", engine=engine) for engine in "012"] == [61, 61, 61]
        assert drafted[0] == 3 * rounds[0] > 0
        assert (drafted[1], rounds[1]) == (50, 10)  # the prompt's token, then six a round
        assert drafted[2] == rounds[2] == 0
        with server.open("/metrics") as response:
            text = response.read().decode()
        blocks = {
            own["engine"]: own["num_gpu_blocks"]
            for _, _, _, own in samples(text, "/metrics", ["vllm:cache_config_info"])
        }
        assert len(set(blocks.values())) == 3


# ---- what is refused ----

BAD: list[tuple[dict[str, Any], int, str]] = [
    ({"prompt": PROMPT, "model": "gpt-5"}, 404, "does not exist"),
    ({"prompt": []}, 400, "empty"),
    ({"prompt": ""}, 400, "empty"),
    ({"max_tokens": 5}, 400, "prompt"),
    ({"prompt": PROMPT, "max_tokens": 0}, 400, "max_tokens"),
    ({"prompt": PROMPT, "max_tokens": 8093}, 400, "8193 tokens"),
    ({"prompt": PROMPT, "n": 2}, 400, "n"),
    ({"prompt": ["a", "b"]}, 400, "prompt"),
    ({"prompt": PROMPT, "max_tokens": "many"}, 400, "max_tokens"),
    ({"prompt": PROMPT, "priority": 2**31}, 400, "priority"),
]


@pytest.mark.parametrize(("body", "status", "message"), BAD)
def test_bad_requests(server: SimulatedServer, body: dict[str, Any], status: int, message: str) -> None:
    code, error = server.error("/v1/completions", body)
    assert (code, error["code"]) == (status, status)
    assert message in error["message"]


@pytest.mark.parametrize("data", [b"{", b"[1]", b"[" * 100_000, b"\xff"])
def test_bad_bodies(server: SimulatedServer, data: bytes) -> None:
    status, error = server.error("/v1/chat/completions", data=data)
    assert status == 400
    assert error["message"].startswith("body: ")


def test_a_body_over_the_limit_is_refused_before_it_is_read(server: SimulatedServer) -> None:
    with connection(server) as sent:
        sent.sendall(head(MAX_BODY_BYTES + 1) + b"{")
        assert sent.recv(4096).startswith(b"HTTP/1.1 413")
    with connection(server) as sent:  # in chunks, its size unsaid
        sent.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
        part = b"100000\r\n" + b" " * 2**20 + b"\r\n"
        try:
            for _ in range(34):
                sent.sendall(part)
        except OSError:
            pass  # refused while it is being sent
        else:
            assert sent.recv(4096).startswith(b"HTTP/1.1 413")
    assert server.open("/health").status == 200


def connection(server: SimulatedServer) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def head(length: int) -> bytes:
    return f"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n".encode()


# ---- clients and replicas that vanish ----


@pytest.mark.parametrize("stream", [True, False])
def test_the_request_of_a_client_that_vanishes_is_aborted(server: SimulatedServer, stream: bool) -> None:
    before = [server.metric(name) for name in ("request_success_total", "generation_tokens_total")]
    body = json.dumps({"prompt": PROMPT, "max_tokens": 8000, "stream": stream}).encode()
    with connection(server) as sent:
        sent.sendall(head(len(body)) + body)
        wait_until(lambda: server.metric("num_requests_running") == 1)
    wait_until(lambda: server.metric("num_requests_running") == 0)
    assert server.metric("kv_cache_usage_perc") == 0
    assert server.metric("request_success_total") == before[0] + 1
    assert server.metric("request_success_total", finished_reason="abort") >= 1
    assert server.metric("generation_tokens_total") < before[1] + 8000


def test_a_thousand_streams_are_held_and_those_of_a_killed_client_take_no_other_along() -> None:
    # Slow: the first answer must not end before the last request has come.
    with simulated_server("default", "--speed", "0.1", "--set", "engine.max_num_seqs=1024") as server:
        command = [sys.executable, str(TESTS / "simulated_server.py"), server.url, "500", "4000"]
        client = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        wait_until(lambda: server.metric("num_requests_running") == 500)
        counts: list[list[int]] = []
        others = threading.Thread(target=lambda: counts.append(asyncio.run(stream(server.url, 500, 60))), daemon=True)
        others.start()
        wait_until(lambda: server.metric("num_requests_running") == 1000)
        client.kill()
        client.communicate()
        others.join(120)
        assert counts == [[60] * 500]
        wait_until(lambda: server.metric("num_requests_running") == 0)
        assert server.metric("request_success_total", finished_reason="abort") == 500
        assert server.metric("request_success_total", finished_reason="length") == 500


class Stream(threading.Thread):
    """A streamed request in a thread: tokens so far, and what was wrong at its end."""

    def __init__(self, server: SimulatedServer, tokens: int) -> None:
        super().__init__(daemon=True)
        self.tokens, self.error = 0, ""
        self._open = lambda: server.open(
            "/v1/completions", {"prompt": PROMPT, "max_tokens": tokens, "stream": True, "return_token_ids": True}
        )
        self.start()

    def run(self) -> None:
        with self._open() as response:
            for line in response:
                if line.startswith(b"data: {"):
                    event = json.loads(line.removeprefix(b"data: "))
                    self.error = event.get("error", {}).get("message", "")
                    self.tokens += 0 if self.error else len(event["choices"][0]["token_ids"])


def test_the_documented_server_loses_a_replica_and_ends_at_a_signal() -> None:
    line = re.search(r"^draftcast serve (.*cluster.replicas=2)$", (ROOT / "docs/serve.md").read_text(), re.MULTILINE)
    assert line is not None
    with simulated_server(*line[1].split()) as server:
        streams = [Stream(server, 600) for _ in range(8)]
        wait_until(lambda: all(stream.tokens for stream in streams))
        assert [server.metric("num_requests_running", engine=engine) for engine in "01"] == [4, 4]
        os.kill(server.replicas()[0], signal.SIGKILL)
        for stream in streams:
            stream.join(60)
        assert sorted(stream.error for stream in streams) == [""] * 4 + ["replica 0 has died"] * 4
        assert all(stream.tokens == 600 for stream in streams if not stream.error)
        assert server.open("/health").status == 200
        streams = [Stream(server, 4000) for _ in range(4)]
        wait_until(lambda: all(stream.tokens for stream in streams))
        replica = server.replicas()[-1]
        server.stop()
        wait_until(lambda: not Path(f"/proc/{replica}").exists())
        assert server.process.stderr is not None
        assert server.process.stderr.read() == "draftcast: replica 0 has died; 1 of 2 left\n"


# ---- addresses, the end ----


def test_it_listens_on_this_machine_only(server: SimulatedServer) -> None:
    port = server.url.rpartition(":")[2]
    listening = Path(f"/proc/{server.process.pid}/net/tcp").read_text()
    assert re.findall(rf" (\w{{8}}):{int(port):04X} 00000000:0000 0A", listening) == ["0100007F"]


GPU_SHARE = "engine.gpu_memory_utilization=0.25"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["default", "--tokenizer", "/nowhere"], "no tokenizer"),
        (["default", "--set", "engine.max_model_len=131072", "--set", GPU_SHARE], "engine.max_model_len"),
        (["nothing.yaml"], "nothing.yaml"),
        (["default", "--port", "0", "--trace", "/nowhere.csv"], "/nowhere.csv"),
        (["default", "--serve-command", "vllm serve"], "--serve-command"),
        (["default", "--calibrate-to", "/nowhere.json"], "/nowhere.json"),
        (["default", "--port", "{taken}"], "cannot be used"),
    ],
)
def test_what_cannot_be_served_is_said_in_a_line(
    server: SimulatedServer, refused: Callable[..., str], arguments: list[str], message: str
) -> None:
    taken = server.url.rpartition(":")[2]
    assert message in refused("serve", *(each.format(taken=taken) for each in arguments))
