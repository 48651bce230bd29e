"""Latent attention in torch against the dense float64 formula, and its work against a model layer's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from unequal_lengths import with_unequal

from draftcast.kernels.model.catalog import load_model
from draftcast.kernels.operators.attention import attention_work, layer_shape
from draftcast.kernels.operators.registry import operator

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DEEPSEEK = load_model("DeepSeek-V3")
SMALL = {"batch": 3, "q": 3, "context": 40, "heads": 4, "k": 24, "n": 16}


def drawn(name: str, kv_dtype: str = "fp32", **sizes: int) -> dict[str, Any]:
    generator = torch.Generator(DEVICE)
    generator.manual_seed(0)
    shape = {**SMALL, **sizes}
    inputs = operator(name).make_inputs(shape, "fp32", kv_dtype, DEVICE, generator)
    return with_unequal(inputs, "context_lens", shape["q"], generator)


@pytest.mark.parametrize("name", ["mla_decode", "mla_prefill"])
@pytest.mark.parametrize(("q", "kv_dtype"), [(1, "fp32"), (3, "fp32"), (17, "fp32"), (3, "fp8")])
def test_torch_gives_the_reference(name: str, q: int, kv_dtype: str) -> None:
    inputs, found = drawn(name, kv_dtype, q=q), operator(name)
    outputs = found.make_outputs(inputs)
    found.implementations["torch"].prepare(inputs, outputs)()
    assert outputs["out"].shape == (3, q, 4, 16)
    expected = found.reference(inputs)["out"]
    torch.testing.assert_close(outputs["out"].double(), expected, rtol=0, atol=1e-5 * expected.abs().max().item())


def test_the_value_is_the_first_part_of_the_shared_key() -> None:
    """One sequence of one token attends to itself alone: every head's output is the latent."""
    inputs = drawn("mla_decode", batch=1, q=1, context=1)
    (block,) = inputs["block_tables"][0].tolist()
    out = operator("mla_decode").reference(inputs)["out"]
    assert torch.equal(out, inputs["key_cache"][block, 0, :, :16].double().expand(1, 1, 4, 16))


def test_prompts_have_keys_and_values_of_every_head() -> None:
    inputs = drawn("mla_prefill", "fp8")
    assert inputs["key_cache"].shape[2:] == (4, 24)
    assert inputs["value_cache"].shape[2:] == (4, 16)
    assert inputs["key_cache"].dtype == torch.float32, "expanded, whatever the cache holds"


@pytest.mark.parametrize(("phase", "pairs"), [("decode", 2 * 8 * 1000), ("prefill", 2 * (8 * 1000 - 28))])
def test_work_is_that_of_a_model_layer(phase: str, pairs: int) -> None:
    name, heads = layer_shape(DEEPSEEK, phase, 8)
    assert name == f"mla_{phase}"
    layer = attention_work(DEEPSEEK, 16, 2000, pairs, tp=8, kv_cache_dtype="fp8", absorbed=phase == "decode")
    assert operator(name).work({"batch": 2, "q": 8, "context": 1000, **heads}, "bf16", "fp8") == layer


def test_verification_reads_the_latents_once() -> None:
    shape = {"batch": 2, "context": 1000, "heads": 16, "k": 576, "n": 512}
    one, four = (operator("mla_decode").work({**shape, "q": q}, "bf16", "bf16") for q in (1, 4))
    assert one.bytes == 2 * (1001 * 576 + 16 * (576 + 512)) * 2
    assert four.bytes - one.bytes == 2 * 3 * (576 + 16 * (576 + 512)) * 2
    assert four.flops == 4 * one.flops == 4 * 2 * 2 * 16 * (576 + 512) * 1000


def test_supports_says_why_not() -> None:
    supports = operator("mla_decode").implementations["torch"].supports
    assert supports(SMALL, "bf16", "fp8", DEVICE) == ""
    assert "at least q" in supports({**SMALL, "q": 41}, "bf16", "bf16", DEVICE)
    assert "wider" in supports({**SMALL, "n": 32}, "bf16", "bf16", DEVICE)


def test_an_indexer_chooses_the_best_tokens_it_may_see() -> None:
    shape = {"batch": 2, "q": 3, "context": 40, "heads": 4, "k": 16, "top_k": 5}
    index = operator("indexer")
    inputs = index.make_inputs(shape, "fp32", "fp32", "cpu", torch.Generator().manual_seed(0))
    outputs = index.make_outputs(inputs)
    index.implementations["torch"].prepare(inputs, outputs)()
    for row in range(3):
        score = torch.zeros(37 + row + 1, dtype=torch.float64)  # what the query sees
        for head in range(4):
            products = inputs["key"][1, : len(score)].double() @ inputs["query"][1, row, head].double()
            score += inputs["weight"][1, row, head].double() * products.relu()
        assert outputs["token"][1, row].tolist() == score.argsort(descending=True)[:5].tolist()
        torch.testing.assert_close(outputs["score"][1, row].double(), score.topk(5).values, rtol=1e-5, atol=1e-5)


def test_sparse_attention_over_all_tokens_is_latent_attention() -> None:
    shape = {"batch": 1, "q": 1, "context": 20, "heads": 4, "k": 16, "n": 8, "top_k": 20}
    sparse = operator("mla_sparse")
    inputs = sparse.make_inputs(shape, "fp32", "fp32", "cpu", torch.Generator().manual_seed(0))
    outputs = sparse.make_outputs(inputs)
    sparse.implementations["torch"].prepare(inputs, outputs)()
    query, latent = inputs["query"][0, 0].double(), inputs["latent"][0].double()
    expected = (query @ latent.T / 4.0).softmax(-1) @ latent[:, :8]
    torch.testing.assert_close(outputs["out"][0, 0].double(), expected, rtol=1e-5, atol=1e-5)
    work = sparse.work({**shape, "context": 4000}, "bf16", "bf16")
    assert float(work.flops) == 2 * 4 * 24 * 20  # whatever the context


def test_sparse_decode_attends_to_what_its_indexer_chooses() -> None:
    shape = {"batch": 1, "q": 2, "context": 20, "heads": 4, "kv_heads": 3, "head_dim": 16, "k": 16, "n": 8, "top_k": 5}
    both = operator("dsa_decode")
    inputs = both.make_inputs(shape, "fp32", "fp32", "cpu", torch.Generator().manual_seed(0))
    outputs = both.make_outputs(inputs)
    both.implementations["torch"].prepare(inputs, outputs)()
    chosen = operator("indexer").reference({**inputs, "query": inputs["index_query"]})["token"]
    expected = operator("mla_sparse").reference({**inputs, "token": chosen})["out"]
    torch.testing.assert_close(outputs["out"].double(), expected, rtol=1e-5, atol=1e-5)
    others = operator("mla_sparse").reference({**inputs, "token": (chosen + 1) % 20})["out"]
    assert not torch.allclose(expected, others)


def test_sparse_decode_reads_as_many_latents_however_short_the_context_is() -> None:
    shape = {"batch": 4, "q": 1, "context": 100, "heads": 16, "kv_heads": 64, "head_dim": 128, "k": 576, "n": 512}
    work = operator("dsa_decode").work
    short, long = (work({**shape, "top_k": 2048, "context": tokens}, "bf16", "bf16") for tokens in (100, 200))
    # A token more costs a key of 128 bytes, its score written and read and a product an index head at the fp8 rate.
    assert float(long.bytes - short.bytes) == 4 * 100 * (128 + 8)
    assert float(long.flops - short.flops) == 4 * 100 * 64 * 128
    fewer = work({**shape, "top_k": 1024}, "bf16", "bf16")
    assert float(short.bytes - fewer.bytes) == 4 * 1024 * 576 * 2
