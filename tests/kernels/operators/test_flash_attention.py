"""vLLM's FlashAttention 3: what it refuses, and that it is handed what its arguments mean.

On an H100 with vLLM 0.25.1 the kernel itself was compared with float64 (docs/gpu-runs.md); here its place is taken by
the formula over the arguments that it gets.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from unequal_lengths import with_unequal

from draftcast.kernels.operators.attention import FLASH_ATTENTION, MOST_SPLITS
from draftcast.kernels.operators.registry import operator

SHAPE = {"batch": 3, "q": 4, "context": 70, "heads": 8, "kv_heads": 2, "head_dim": 16, "window": 0, "tree": 0}


def attend(
    *,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    cu_seqlens_q: Any,
    seqused_k: Any,
    block_table: Any,
    softmax_scale: float,
    **rest: Any,
) -> None:
    """Causal attention over a paged cache, aligned to the end of each sequence, as flash_attn_varlen_func says."""
    assert rest["fa_version"] == 3
    assert rest["causal"]
    assert rest["num_splits"] == MOST_SPLITS
    assert rest["scheduler_metadata"] == "plan"
    assert rest["max_seqlen_k"] == int(seqused_k.max())
    scale = {name: rest.get(f"{name}_descale") for name in "qkv"}
    for i, length in enumerate(seqused_k.tolist()):
        rows = slice(int(cu_seqlens_q[i]), int(cu_seqlens_q[i + 1]))
        assert rows.stop - rows.start == rest["max_seqlen_q"]
        blocks = block_table[i][: math.ceil(length / k.shape[1])].long()
        query = q[rows].double() * (1.0 if scale["q"] is None else scale["q"][i, 0].double())
        keys, values = (
            cache[blocks].flatten(0, 1)[:length].double() * (1.0 if scale[name] is None else scale[name][i, 0].double())
            for name, cache in (("k", k), ("v", v))
        )
        group = q.shape[1] // k.shape[2]
        keys, values = (each.repeat_interleave(group, dim=1) for each in (keys, values))
        scores = torch.einsum("qhd,shd->hqs", query, keys) * softmax_scale
        position = torch.arange(length - (rows.stop - rows.start), length)[:, None]
        back = position - torch.arange(length)[None, :]
        seen = back >= 0
        if rest["window_size"] != [-1, -1]:
            left, right = rest["window_size"]
            seen &= (back <= left) & (back >= -right)
        weights = scores.masked_fill(~seen, -math.inf).softmax(dim=2)
        out[rows] = torch.einsum("hqs,shd->qhd", weights, values).to(out.dtype)


@pytest.fixture
def fake_vllm(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A vLLM whose kernel is the formula; what the plan was made of."""
    planned: dict[str, Any] = {}

    def plan(**arguments: Any) -> str:
        planned.update(arguments)
        return "plan"

    interface: Any = ModuleType("vllm.vllm_flash_attn.flash_attn_interface")
    interface.flash_attn_varlen_func, interface.get_scheduler_metadata = attend, plan
    for name in ("vllm", "vllm.vllm_flash_attn"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    return planned


@pytest.mark.parametrize(("kv_dtype", "window"), [("bf16", 0), ("bf16", 30), ("fp8", 0)])
def test_arguments_mean_what_the_operator_means(fake_vllm: dict[str, Any], kv_dtype: str, window: int) -> None:
    found = operator("attention_decode")
    generator = torch.Generator().manual_seed(3)
    inputs = found.make_inputs(SHAPE | {"window": window}, "bf16", kv_dtype, "cpu", generator)
    inputs = with_unequal(inputs, "context_lens", SHAPE["q"], generator)
    outputs = found.make_outputs(inputs)
    outputs["out"].fill_(torch.nan)
    FLASH_ATTENTION.prepare(inputs, outputs)()
    expected = found.reference(inputs)["out"]
    off = (outputs["out"].double() - expected).norm() / expected.norm()
    assert off < (0.05 if kv_dtype == "fp8" else 0.005)  # queries are rounded to the cache's 8 bits, outputs to bf16's
    assert fake_vllm["batch_size"] == SHAPE["batch"]
    assert fake_vllm["max_seqlen_q"] == SHAPE["q"]
    assert (fake_vllm["num_heads_q"], fake_vllm["num_heads_kv"], fake_vllm["headdim"]) == (8, 2, 16)
    assert fake_vllm["qkv_dtype"] == (torch.float8_e4m3fn if kv_dtype == "fp8" else torch.bfloat16)


def test_what_it_does_not_run_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(device: str = "cuda", dtype: str = "bf16", kv_dtype: str = "bf16", **shape: int) -> str:
        return FLASH_ATTENTION.supports(SHAPE | shape, dtype, kv_dtype, device)

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "install vLLM" in refused()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert refused() == refused(kv_dtype="fp8") == ""
    assert "compute capability 9" in refused(device="cpu")
    assert "bf16 activations" in refused(dtype="fp32", kv_dtype="fp32")
    assert "tree" in refused(tree=1)
    assert "multiple of kv_heads" in refused(kv_heads=3)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (10, 0))
    assert "compute capability 9" in refused()
