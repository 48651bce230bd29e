"""A stand-in for vLLM's server: the same command line, addresses, streams, metrics and log lines, no model.

It answers with the testbed's known continuation, one token (with drafts: two) every STEP_S. `FAKE_VLLM` in the
environment, comma-separated, makes it misbehave: ``crash`` at the start, ``never_ready``, ``die_after=N`` pieces,
``hang=N`` on the N-th request, ``wrong=N`` a wrong token in the N-th, ``short=N`` ends it early, ``refuse=N`` answers
it with 400, ``no_ids`` returns no token ids, ``closed`` has no /server_info, ``stubborn`` ignores SIGTERM.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from draftcast.calibration.live.continuation import Continuation

STEP_S = 0.002


def log(message: str) -> None:
    stamp = datetime.now().strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]
    line = {"asctime": stamp, "levelname": "INFO", "name": "vllm", "processName": "MainProcess", "process": os.getpid()}
    sys.stdout.write(json.dumps({**line, "message": message, "vllm_process_name": "APIServer"}) + "\n")
    sys.stdout.flush()


class Fake:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.faults = dict(fault.partition("=")[::2] for fault in os.environ.get("FAKE_VLLM", "").split(",") if fault)
        continuation = Continuation.read(Path(arguments.model))
        self.next_token = None if continuation is None else continuation.next_token.tolist()
        self.speculates = arguments.speculative_config is not None
        self.k = json.loads(arguments.speculative_config or "{}").get("num_speculative_tokens", 0)
        self.lock = threading.Lock()
        self.requests = self.pieces = self.drafts = self.accepted = 0

    def of(self, fault: str) -> int | None:
        return int(self.faults[fault]) if fault in self.faults else None

    def answer(self, token: int, wanted: int, number: int) -> list[int]:
        found: list[int] = []
        for _ in range(wanted):
            token = 7 if self.next_token is None else self.next_token[token]
            found.append(token)
        if self.of("wrong") == number:
            found[wanted // 2] = 5
        return found[: wanted // 2] if self.of("short") == number else found

    def count_piece(self, size: int) -> None:
        with self.lock:
            self.pieces += 1
            self.drafts += size > 1
            self.accepted += size - 1
            kinds = ("1", "8", "0", "0") if size == 1 else ("0", "0", "1", "1")
            log(
                f"Engine 000: Iteration({self.pieces}): {kinds[0]} context requests, {kinds[1]} context tokens, "
                f"{kinds[2]} generation requests, {kinds[3]} generation tokens, "
                "iteration elapsed time: 1.90 ms, CPU KV cache usage: 0.5%"
            )
            if self.of("die_after") == self.pieces:
                print("Fatal: the engine core died", flush=True)
                os._exit(9)

    def metrics(self) -> str:
        label = f'engine="0",model_name="{self.arguments.model}"'
        lines = [
            f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="99",enable_prefix_caching="True",{label}}} 1.0'
        ]
        if self.speculates:
            name = "vllm:spec_decode_num"
            lines += [
                f"{name}_drafts_total{{{label}}} {self.drafts}",
                f"{name}_draft_tokens_total{{{label}}} {self.drafts * self.k}",
                f"{name}_accepted_tokens_total{{{label}}} {self.accepted}",
            ]
            for position in range(self.k):
                count = self.accepted if position == 0 else 0
                lines.append(f'{name}_accepted_tokens_per_pos_total{{{label},position="{position}"}} {count}')
        return "\n".join(lines) + "\n"

    def server_info(self) -> dict[str, Any]:
        config = {
            "cache_config": {"num_gpu_blocks": 99, "block_size": self.arguments.block_size},
            "scheduler_config": {"max_num_seqs": 32, "async_scheduling": False, "policy": "fcfs"},
            "model_config": {"max_model_len": 2048, "enforce_eager": True},
        }
        return {"vllm_config": config}


class Handler(BaseHTTPRequestHandler):
    fake: Fake
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def send(self, content: Any, status: int = 200) -> None:
        body = (content if isinstance(content, str) else json.dumps(content)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        model = {"id": self.fake.arguments.model, "max_model_len": 2048}
        if path == "/health":
            self.send("")
        elif path == "/version":
            self.send({"version": "0.32.0"})
        elif path == "/v1/models":
            self.send({"data": [model]})
        elif path == "/metrics":
            self.send(self.fake.metrics())
        elif path == "/server_info" and "closed" not in self.fake.faults:
            self.send(self.fake.server_info())
        else:
            self.send("", 404)

    def do_POST(self) -> None:
        fake = self.fake
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with fake.lock:
            fake.requests += 1
            number = fake.requests
        if fake.of("refuse") == number:
            self.send({"error": {"message": "this request is\nrefused"}}, 400)
            return
        if fake.of("hang") == number:
            time.sleep(3600)
        answer = fake.answer(body["prompt"][-1], body["max_tokens"], number)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        sent = 0
        while sent < len(answer):
            time.sleep(STEP_S)
            ids = answer[sent : sent + (2 if fake.speculates and sent else 1)]
            sent += len(ids)
            choice = {"index": 0, "text": ""} | ({} if "no_ids" in fake.faults else {"token_ids": ids})
            self.event({"choices": [choice], "usage": {"completion_tokens": sent}})
            fake.count_piece(len(ids))
        self.event({"choices": [], "usage": {"completion_tokens": sent}})
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def event(self, content: Any) -> None:
        self.chunk(b"data: " + json.dumps(content).encode() + b"\n\n")

    def chunk(self, content: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: Any) -> None:
        pass  # a client that went away


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--speculative-config")
    arguments, _ = parser.parse_known_args()
    Handler.fake = fake = Fake(arguments)
    log(f"non-default args: {{'block_size': {arguments.block_size}}}")
    if "crash" in fake.faults:
        print("ValueError: no such quantization", flush=True)
        sys.exit(7)
    if "never_ready" in fake.faults:
        time.sleep(3600)
    if "stubborn" in fake.faults:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Server((arguments.host, arguments.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
