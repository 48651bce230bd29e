"""A stand-in for vLLM's server: the same command line, addresses, streams, metrics and log lines, no model.

It answers with the testbed's known continuation, one token (with drafts: two) every STEP_S. `FAKE_VLLM` in the
environment, comma-separated, makes it misbehave: ``crash`` at the start, ``never_ready``, ``die_after=N`` pieces,
``hang=N`` on the N-th request, ``wrong=N`` a wrong token in the N-th, ``short=N`` ends it early, ``refuse=N`` answers
it with 400, ``no_ids`` returns no token ids, ``closed`` has no /server_info, ``stubborn`` ignores SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from datetime import datetime
from pathlib import Path

from aiohttp import web

from draftcast.calibration.live.continuation import Continuation

STEP_S = 0.002


def log(message: str) -> None:
    stamp = datetime.now().strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]
    line = {"asctime": stamp, "levelname": "INFO", "name": "vllm", "processName": "MainProcess", "process": os.getpid()}
    print(json.dumps({**line, "message": message, "vllm_process_name": "APIServer"}), flush=True)


class Fake:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.faults = dict(fault.partition("=")[::2] for fault in os.environ.get("FAKE_VLLM", "").split(",") if fault)
        self.continuation = Continuation.read(Path(arguments.model))
        self.speculates = arguments.speculative_config is not None
        self.k = json.loads(arguments.speculative_config or "{}").get("num_speculative_tokens", 0)
        self.requests = self.pieces = self.drafts = self.accepted = self.step = 0

    def of(self, fault: str) -> int | None:
        return int(self.faults[fault]) if fault in self.faults else None

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests += 1
        number = self.requests
        if self.of("refuse") == number:
            return web.json_response({"error": {"message": "this request is\nrefused"}}, status=400)
        if self.of("hang") == number:
            await asyncio.sleep(3600)
        wanted = body["max_tokens"]
        if self.continuation is not None:
            answer = self.continuation.after(body["prompt"][-1], wanted).tolist()
        else:
            answer = [7] * wanted
        if self.of("wrong") == number:
            answer[wanted // 2] = 5
        if self.of("short") == number:
            answer = answer[: wanted // 2]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        sent = 0
        while sent < len(answer):
            await asyncio.sleep(STEP_S)
            count = 2 if self.speculates and sent else 1
            if count == 2:
                self.drafts += 1
                self.accepted += 1
            ids = answer[sent : sent + count]
            sent += len(ids)
            self.step += 1
            kind = "1 context requests, 8 context tokens, 0 generation requests, 0 generation tokens"
            if sent > 1:
                kind = "0 context requests, 0 context tokens, 1 generation requests, 1 generation tokens"
            log(
                f"Engine 000: Iteration({self.step}): {kind}, iteration elapsed time: 1.90 ms, CPU KV cache usage: 0.5%"
            )
            event = {"choices": [{"index": 0, "text": "", "token_ids": ids}], "usage": {"completion_tokens": sent}}
            if "no_ids" in self.faults:
                del event["choices"][0]["token_ids"]
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            self.pieces += 1
            if self.of("die_after") == self.pieces:
                print("Fatal: the engine core died", flush=True)
                os._exit(9)
        usage = {"choices": [], "usage": {"completion_tokens": sent}}
        await response.write(b"data: " + json.dumps(usage).encode() + b"\n\ndata: [DONE]\n\n")
        return response

    async def metrics(self, _: web.Request) -> web.Response:
        label = f'engine="0",model_name="{self.arguments.model}"'
        lines = [
            f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="99",enable_prefix_caching="True",{label}}} 1.0'
        ]
        if self.speculates:
            lines += [
                f"vllm:spec_decode_num_drafts_total{{{label}}} {self.drafts}",
                f"vllm:spec_decode_num_draft_tokens_total{{{label}}} {self.drafts * self.k}",
                f"vllm:spec_decode_num_accepted_tokens_total{{{label}}} {self.accepted}",
            ]
            for position in range(self.k):
                count = self.accepted if position == 0 else 0
                lines.append(
                    f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{label},position="{position}"}} {count}'
                )
        return web.Response(text="\n".join(lines) + "\n")

    async def server_info(self, _: web.Request) -> web.Response:
        if "closed" in self.faults:
            return web.Response(status=404)
        config = {
            "cache_config": {"num_gpu_blocks": 99, "block_size": self.arguments.block_size},
            "scheduler_config": {"max_num_seqs": 32, "async_scheduling": False, "policy": "fcfs"},
            "model_config": {"max_model_len": 2048, "enforce_eager": True},
        }
        return web.json_response({"vllm_config": config})

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": self.arguments.model, "max_model_len": 2048}]})


async def health(_: web.Request) -> web.Response:
    return web.Response()


async def version(_: web.Request) -> web.Response:
    return web.json_response({"version": "0.32.0"})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--speculative-config")
    arguments, _ = parser.parse_known_args()
    fake = Fake(arguments)
    log(f"non-default args: {{'block_size': {arguments.block_size}}}")
    if "crash" in fake.faults:
        print("ValueError: no such quantization", flush=True)
        sys.exit(7)
    if "never_ready" in fake.faults:
        time.sleep(3600)
    app = web.Application()
    app.add_routes(
        [
            web.get("/health", health),
            web.get("/version", version),
            web.get("/metrics", fake.metrics),
            web.get("/server_info", fake.server_info),
            web.get("/v1/models", fake.models),
            web.post("/v1/completions", fake.completions),
        ]
    )
    if "stubborn" in fake.faults:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    web.run_app(
        app,
        host=arguments.host,
        port=arguments.port,
        print=None,
        handle_signals="stubborn" not in fake.faults,
        shutdown_timeout=0.1,
    )


if __name__ == "__main__":
    main()
