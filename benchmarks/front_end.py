"""Processor time of vLLM's API server: a request, a token of its prompt, a piece of its answer.

    .venv-live/bin/python benchmarks/front_end.py

Serves a model of two small layers with the CPU build of vLLM (`make live-env`) and a tokenizer trained here, sends text
prompts of several lengths for answers of several lengths, and fits the processor seconds of the API server's process to
the numbers of requests, prompt tokens and pieces. Only the ratios are used: hosts differ, and the sum is that of
a published run (`calibration/engines/vllm-v1-async.yaml`, ``front_end_output_s``). Prints one JSON line.
"""

import argparse
import asyncio
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import psutil

from draftcast.calibration.live.server import EngineServer, ServerFlags

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 3
LOADS = ((200, 10, 1), (200, 300, 1), (100, 10, 100), (50, 10, 300))  # requests, words, output tokens
CLIENTS = 32
PATIENCE_S = 400.0


def make_model(folder: Path) -> Any:
    """A checkpoint with random weights and a tokenizer of 32,000 pieces, trained on this repository and on vLLM."""
    import vllm
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    pieces = Tokenizer(models.BPE())
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces.decoder = decoders.ByteLevel()
    texts = [*ROOT.glob("*/**/*.py"), *list(Path(vllm.__path__[0]).rglob("*.py"))[:800]]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=32_000, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    pieces.train([str(path) for path in texts], trainer)
    PreTrainedTokenizerFast(tokenizer_object=pieces, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "max_position_embeddings": 4096}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32}
    LlamaForCausalLM(LlamaConfig(vocab_size=pieces.get_vocab_size(), **sizes, **heads)).save_pretrained(folder)
    return pieces


async def send(url: str, prompts: list[str], output_tokens: int) -> int:
    """Pieces of the streamed answers to all prompts, from ``CLIENTS`` clients."""
    clients = asyncio.Semaphore(CLIENTS)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S)) as session:

        async def one(prompt: str) -> int:
            body = {"model": "m", "prompt": prompt, "max_tokens": output_tokens, "ignore_eos": True, "stream": True}
            async with clients, session.post(f"{url}/v1/completions", json=body) as reply:
                reply.raise_for_status()
                return sum([line.startswith(b"data: {") async for line in reply.content])

        return sum(await asyncio.gather(*map(one, prompts)))


def measure(server: EngineServer, pieces: Any) -> dict[str, float]:
    """Milliseconds of the API server's processor a request, a prompt token, a piece."""
    words, draw = (ROOT / "README.md").read_text("utf-8").split(), random.Random(0)
    (process,) = psutil.Process(server.pid).children()  # below the keeper
    rows, used_s = [], []
    for count, length, output_tokens in LOADS * ROUNDS:
        prompts = [" ".join(draw.choices(words, k=length)) for _ in range(count)]
        before = sum(process.cpu_times()[:2])
        answered = asyncio.run(send(server.url, prompts, output_tokens))
        used_s.append(sum(process.cpu_times()[:2]) - before)
        rows.append((count, sum(len(pieces.encode(text).ids) for text in prompts), answered))
        print(f"{count} requests, {rows[-1][1]} prompt tokens, {answered} pieces: {used_s[-1]:.2f} s", flush=True)
    seconds, *_ = np.linalg.lstsq(np.array(rows, float), np.array(used_s), rcond=None)
    return dict(zip(("request_ms", "prompt_token_ms", "piece_ms"), (1e3 * seconds).tolist(), strict=True))


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pieces = make_model(Path(folder))
        flags = ("--served-model-name", "m", "--max-num-seqs", "64", "--no-enable-prefix-caching")
        with EngineServer.start(ServerFlags(folder, flags, cpu=True), Path(folder) / "log") as server:
            server.wait_ready(PATIENCE_S)
            milliseconds = measure(server, pieces)
    ratios = {"request_over_piece": milliseconds["request_ms"] / milliseconds["piece_ms"]}
    ratios["piece_over_prompt_token"] = milliseconds["piece_ms"] / milliseconds["prompt_token_ms"]
    print(json.dumps(milliseconds | ratios))


if __name__ == "__main__":
    main()
