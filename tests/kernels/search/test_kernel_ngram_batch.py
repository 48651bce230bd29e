"""The batched n-gram search, torch and Triton, against the one-text search, which equals vLLM's (test_ngram.py)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from unequal_lengths import with_unequal

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from draftcast.kernels.search import ngram
from draftcast.kernels.search.ngram import NGRAM, search

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
both = pytest.mark.parametrize("name", ["torch", "triton"])


def padded(texts: Sequence[Sequence[int]], seed: int = 0) -> dict[str, Any]:
    """Texts in rows of equal width; what follows a text continues it plausibly and must not be found."""
    generator = np.random.default_rng(seed)
    width = max(*map(len, texts), 1) + int(generator.integers(0, 5))
    rows = generator.integers(0, 3, (len(texts), width)).astype(np.int32)
    for row, text in zip(rows, texts, strict=True):
        row[: len(text)] = text
    lengths = torch.tensor([len(text) for text in texts], dtype=torch.int32, device=DEVICE)
    return {"tokens": torch.from_numpy(rows).to(DEVICE), "lengths": lengths}


def check(name: str, inputs: dict[str, Any]) -> int:
    """Drafts and counts equal the reference's; the number of texts with a draft."""
    outputs, expected = NGRAM.make_outputs(inputs), NGRAM.reference(inputs)
    for value in outputs.values():
        value.fill_(-7)
    NGRAM.implementations[name].prepare(inputs, outputs)()
    assert torch.equal(outputs["counts"], expected["counts"])
    assert torch.equal(outputs["drafts"], expected["drafts"])
    return int((expected["counts"] > 0).sum())


STREAMS = st.lists(st.lists(st.integers(0, 3), max_size=40), min_size=1, max_size=5)


@settings(max_examples=100, deadline=None)
@given(STREAMS, st.integers(1, 8), st.integers(1, 6), st.integers(0, 5), st.integers(1, 50))
def test_torch_equals_the_one_text_search(
    texts: list[list[int]], k: int, min_n: int, more: int, max_model_len: int
) -> None:
    check("torch", {**padded(texts), "k": k, "min_n": min_n, "max_n": min_n + more, "max_model_len": max_model_len})


@pytest.mark.parametrize(("k", "min_n", "max_n"), [(1, 1, 1), (3, 1, 4), (5, 2, 5), (20, 3, 7), (8, 5, 5)])
@pytest.mark.parametrize("max_model_len", [40, ngram.UNLIMITED])
def test_triton_equals_the_one_text_search(k: int, min_n: int, max_n: int, max_model_len: int) -> None:
    generator = np.random.default_rng((k, min_n, max_n))
    texts = [
        generator.integers(0, generator.choice([1, 2, 3]), generator.integers(0, 60)).tolist() for _ in range(12)
    ]  # fmt: skip
    inputs = {**padded(texts), "k": k, "min_n": min_n, "max_n": max_n, "max_model_len": max_model_len}
    assert check("triton", inputs) > 3


@both
def test_texts_longer_than_a_chunk(name: str) -> None:
    """The best place may stand in any chunk of 1,024; of equal ones in two chunks the earlier wins."""
    generator = np.random.default_rng(0)
    rows = generator.integers(0, 30_000, (3, 2500))
    rows[0, [100, 1500]] = rows[0, 2499] = 30_001
    rows[1, 1022:1025] = rows[1, 2497:2500] = [30_001, 30_002, 30_003]
    rows[2, 5] = rows[2, 2499] = 30_001
    inputs = {
        "tokens": torch.from_numpy(rows.astype(np.int32)).to(DEVICE),
        "lengths": torch.tensor([2500, 2500, 2499], dtype=torch.int32, device=DEVICE),
        "k": 4, "min_n": 1, "max_n": 5, "max_model_len": ngram.UNLIMITED,
    }  # fmt: skip
    assert check(name, inputs) == 2
    expected = [rows[0, 101:105].tolist(), rows[1, 1025:1029].tolist(), [-1] * 4]
    assert NGRAM.reference(inputs)["drafts"].tolist() == expected


@both
def test_made_inputs_hold_a_match(name: str) -> None:
    generator = torch.Generator(DEVICE)
    generator.manual_seed(0)
    inputs = NGRAM.make_inputs({"batch": 6, "context": 300}, "int32", "", DEVICE, generator)
    assert check(name, inputs) == 6
    short = NGRAM.make_inputs({"batch": 40, "context": 30}, "int32", "", DEVICE, generator)
    unequal = with_unequal(short | {"tokens": short["tokens"] % 3}, "lengths", 1, generator)
    assert len(set(unequal["lengths"].tolist())) > 10
    assert check(name, unequal) > 10


def test_no_texts_and_empty_texts() -> None:
    empty = torch.zeros((2, 0), dtype=torch.int32, device=DEVICE)
    drafts, counts = search(empty, empty.new_zeros(2), 3, 1, 2)
    assert drafts.tolist() == [[-1] * 3] * 2
    assert counts.tolist() == [0, 0]
    drafts, counts = search(empty.new_zeros((0, 5)), empty.new_zeros(0), 3, 1, 2)
    assert (drafts.shape, counts.shape) == ((0, 3), (0,))


def test_work_is_the_tokens() -> None:
    work = NGRAM.work({"batch": 3, "context": 100}, "int32", "")
    assert (work.flops, work.bytes) == (300, 1200)
