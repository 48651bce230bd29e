"""Latent attention: its work against a model layer's."""

from __future__ import annotations

import pytest

from draftcast.kernels.model.catalog import load_model
from draftcast.kernels.operators.attention import attention_work, layer_shape
from draftcast.kernels.operators.registry import work_of

DEEPSEEK = load_model("DeepSeek-V3")


@pytest.mark.parametrize(("phase", "pairs"), [("decode", 2 * 8 * 1000), ("prefill", 2 * (8 * 1000 - 28))])
def test_work_is_that_of_a_model_layer(phase: str, pairs: int) -> None:
    name, heads = layer_shape(DEEPSEEK, phase, 8)
    assert name == f"mla_{phase}"
    layer = attention_work(DEEPSEEK, 16, 2000, pairs, tp=8, kv_cache_dtype="fp8", absorbed=phase == "decode")
    assert work_of(name)({"batch": 2, "q": 8, "context": 1000, **heads}, "bf16", "fp8") == layer


def test_verification_reads_the_latents_once() -> None:
    shape = {"batch": 2, "context": 1000, "heads": 16, "k": 576, "n": 512}
    one, four = (work_of("mla_decode")({**shape, "q": q}, "bf16", "bf16") for q in (1, 4))
    assert one.bytes == 2 * (1001 * 576 + 16 * (576 + 512)) * 2
    assert four.bytes - one.bytes == 2 * 3 * (576 + 16 * (576 + 512)) * 2
    assert four.flops == 4 * one.flops == 4 * 2 * 2 * 16 * (576 + 512) * 1000
