"""Gated DeltaNet: the work of both phases."""

from __future__ import annotations

import pytest

from draftcast.kernels.model.catalog import load_model
from draftcast.kernels.operators.gated_delta import gated_delta_work, linear_attention_work, linear_shape


def test_verification_reads_the_state_once_and_writes_it_for_every_token() -> None:
    model = load_model("Qwen3.5-35B-A3B")
    heads = linear_shape(model, 2)
    state = model.linear_state_bytes("bf16", 2)
    row = 2.0 * (2 * 8 * 128 + 2 * 16 * 128)
    for q in (1, 4):
        work = gated_delta_work({"batch": 3, "q": q, **heads}, "bf16", "fp32", chunked=False)
        assert float(work.bytes) == 3 * ((1 + q) * state + q * row)
        assert float(work.flops) == 3 * q * 16 * 6 * 128 * 128
    prompt = gated_delta_work({"batch": 1, "q": 1000, **heads}, "bf16", "fp32", chunked=True)
    assert float(prompt.bytes) == 2 * state + 1000 * row
    assert float(prompt.flops) == 1000 * 16 * (6 * 128 * 128 + 2 * 64 * 256)


def test_work_of_a_step_is_that_of_all_layers() -> None:
    model = load_model("Qwen3.5-35B-A3B")
    features = {"decode_seqs": 8.0, "decode_tokens": 32.0, "prefill_seqs": 2.0, "prefill_tokens": 600.0}
    heads = linear_shape(model, 2)
    verify = gated_delta_work({"batch": 8, "q": 4, **heads}, "bf16", "fp32", chunked=False)
    prompts = gated_delta_work({"batch": 2, "q": 300, **heads}, "bf16", "fp32", chunked=True)
    work = linear_attention_work(model, features, 2, "fp8")
    assert float(work.bytes) == pytest.approx(30 * float(verify.bytes + prompts.bytes))
    assert float(work.flops) == pytest.approx(30 * float(verify.flops + prompts.flops))
    assert float(linear_attention_work(load_model("Qwen3-8B"), features, 1, "bf16").bytes) == 0.0
