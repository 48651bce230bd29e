"""Our n-gram searches against vLLM's own NgramProposer: ten thousand random streams, and real ones where they are.

Both are compared: the one that takes a text after the other, and the one that takes a padded batch at once (torch).
"""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from paths import shared_data

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from draftcast.kernels.search.ngram import propose_batch, search

pytestmark = pytest.mark.live

DATA = shared_data("data/acceptance")
BATCH = 500


def proposer(k: int, min_n: int, max_n: int, max_model_len: int) -> Any:
    """vLLM's proposer; it reads these few fields of its configuration, and a whole one would need a model."""
    from vllm.v1.spec_decode.ngram_proposer import NgramProposer

    speculative = SimpleNamespace(prompt_lookup_min=min_n, prompt_lookup_max=max_n, num_speculative_tokens=k)
    config = SimpleNamespace(
        speculative_config=speculative,
        model_config=SimpleNamespace(max_model_len=max_model_len),
        scheduler_config=SimpleNamespace(max_num_seqs=1024),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
    )
    return NgramProposer(config)


def check(streams: list[np.ndarray], k: int, min_n: int, max_n: int, max_model_len: int) -> int:
    """All three searches agree on every stream; the number of drafts."""
    import torch

    theirs = proposer(k, min_n, max_n, max_model_len)
    found = 0
    for start in range(0, len(streams), BATCH):
        batch = streams[start : start + BATCH]
        lengths = np.array([len(stream) for stream in batch], dtype=np.int32)
        tokens = np.zeros((len(batch), max(int(lengths.max()), 1)), dtype=np.int32)
        for row, stream in zip(tokens, batch, strict=True):
            row[: len(stream)] = stream
        # Any token sampled in the last step: the proposer passes over requests without one (partial prefills).
        expected = theirs.propose(k, [[0]] * len(batch), lengths, tokens)
        drafts, counts = propose_batch(batch, k, min_n, max_n, max_model_len)
        assert [row[:count].tolist() for row, count in zip(drafts, counts, strict=True)] == expected
        at_once = search(torch.from_numpy(tokens), torch.from_numpy(lengths), k, min_n, max_n, max_model_len)
        np.testing.assert_array_equal(at_once[0].numpy(), drafts)
        np.testing.assert_array_equal(at_once[1].numpy(), counts)
        found += sum(map(bool, expected))
    return found


@pytest.mark.parametrize("k", [1, 3, 5, 20])
@pytest.mark.parametrize(("min_n", "max_n"), [(1, 1), (1, 4), (2, 5), (3, 7), (5, 5)])
def test_random_streams(k: int, min_n: int, max_n: int) -> None:
    """20 settings x 500 streams = ten thousand; few distinct tokens and copied stretches make matches of every kind."""
    generator = np.random.default_rng((k, min_n, max_n))
    streams = []
    for _ in range(500):
        tokens = generator.integers(0, generator.choice([1, 2, 3, 10, 1000]), generator.integers(1, 300))
        if generator.random() < 0.5 and len(tokens) > 20:
            start = generator.integers(0, len(tokens) - 10)
            tokens = np.concatenate((tokens, tokens[start : start + generator.integers(1, 10)]))
        streams.append(tokens.astype(np.int32))
    assert check(streams, k, min_n, max_n, max_model_len=300) > 50


@pytest.mark.parametrize("name", ["sharegpt", "instructcoder"])
@pytest.mark.parametrize(("k", "min_n", "max_n"), [(5, 2, 5), (20, 3, 7)])
def test_real_streams(name: str, k: int, min_n: int, max_n: int) -> None:
    """Prompts and outputs of Llama-3.1-8B, cut at 2,500 places in each data set."""
    path = DATA / f"llama31_8b_{name}.jsonl"
    if not path.is_file():
        pytest.skip(f"{path} is not here: no real token streams to search")
    generator = np.random.default_rng(0)
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    streams = []
    for _ in range(2500):
        entry = entries[generator.integers(len(entries))]
        output = entry["generated_token_ids"]
        streams.append(np.array(entry["prompt_token_ids"] + output[: generator.integers(1, len(output) + 1)], np.int32))
    assert check(streams, k, min_n, max_n, max_model_len=16_384) > 500
