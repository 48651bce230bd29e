"""Gated DeltaNet: chunks against the recurrence in float64, the recurrence by hand, and the work of both phases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from draftcast.kernels.model.catalog import load_model
from draftcast.kernels.operators.gated_delta import (
    CHUNK,
    chunked,
    gated_delta_work,
    linear_attention_work,
    linear_shape,
)
from draftcast.kernels.operators.registry import operator

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = {"batch": 2, "q": 3, "heads": 4, "kv_heads": 2, "k": 16, "n": 24}


def drawn(name: str, state: str = "fp32", **sizes: int) -> dict[str, Any]:
    generator = torch.Generator(DEVICE)
    generator.manual_seed(0)
    return operator(name).make_inputs({**SMALL, **sizes}, "fp32", state, DEVICE, generator)


@pytest.mark.parametrize(
    ("name", "q"),
    [*(("gdn_prefill", q) for q in (1, CHUNK - 1, CHUNK, CHUNK + 1)),
     *((f"{kind}_prefill", 2 * CHUNK + 5) for kind in ("gdn", "kda", "mamba2"))],
)  # fmt: skip
def test_chunks_are_the_recurrence(name: str, q: int) -> None:
    inputs = drawn(name, q=q)
    expected, found = operator(name).reference(inputs), chunked(inputs, torch.float64)
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["gdn_decode", "gdn_prefill", "kda_prefill", "mamba2_decode"])
@pytest.mark.parametrize("state", ["fp32", "bf16"])
def test_torch_gives_the_reference(name: str, state: str) -> None:
    inputs, found = drawn(name, state, q=70), operator(name)
    outputs = found.make_outputs(inputs)
    found.implementations["torch"].prepare(inputs, outputs)()
    for key, value in found.reference(inputs).items():
        rounding = 2.0**-8 if outputs[key].dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(outputs[key].double(), value, rtol=rounding, atol=rounding)


def test_one_token_by_hand() -> None:
    """A state of one number a head: it decays, moves towards the value by beta, and is the output."""
    inputs = drawn("gdn_decode", batch=1, q=1, heads=1, kv_heads=1, k=1, n=1)
    inputs |= {name: torch.ones_like(inputs[name]) for name in ("query", "key")}
    decay, beta, before, value = (float(inputs[name]) for name in ("g", "beta", "state", "value"))
    after = np.exp(decay) * before + beta * (value - np.exp(decay) * before)
    out = operator("gdn_decode").reference(inputs)
    assert float(out["out"]) == float(out["last_state"]) == pytest.approx(after, rel=1e-12)


def test_kin_by_hand() -> None:
    """Mamba-2 corrects nothing; KDA's decays of equal keys are gated DeltaNet's."""
    inputs = drawn("mamba2_decode", batch=1, q=1, heads=1, kv_heads=1, k=1, n=1)
    inputs |= {name: torch.ones_like(inputs[name]) for name in ("query", "key")}
    after = np.exp(float(inputs["g"])) * float(inputs["state"]) + float(inputs["beta"]) * float(inputs["value"])
    assert float(operator("mamba2_decode").reference(inputs)["out"]) == pytest.approx(after, rel=1e-12)
    inputs = drawn("gdn_decode")
    wide = {**inputs, "g": inputs["g"][..., None].expand(*inputs["g"].shape, SMALL["k"])}
    plain, keyed = (operator(f"{kind}_decode").reference(x)["out"] for kind, x in (("gdn", inputs), ("kda", wide)))
    torch.testing.assert_close(plain, keyed, rtol=0, atol=1e-14)


def test_value_heads_share_key_heads() -> None:
    inputs = drawn("gdn_decode", heads=4, kv_heads=2)
    wide = {**inputs, **{name: inputs[name].repeat_interleave(2, dim=2) for name in ("query", "key")}}
    assert torch.equal(operator("gdn_decode").reference(inputs)["out"], operator("gdn_decode").reference(wide)["out"])
    assert operator("gdn_decode").implementations["torch"].supports({**SMALL, "kv_heads": 3}, "fp32", "fp32", DEVICE)


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
