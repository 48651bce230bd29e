"""Paged attention, torch and Triton, against the dense float64 formula: decode, verify and prefill; KV nobody may read
is NaN. Without a GPU the Triton kernels run in Triton's interpreter."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from unequal_lengths import with_unequal

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from draftcast.errors import HardwareError
from draftcast.kernels.model.catalog import load_model
from draftcast.kernels.operators import paged
from draftcast.kernels.operators.attention import attention_work
from draftcast.kernels.operators.registry import Draw, operator
from draftcast.kernels.operators.triton import attention as paged_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PREPARE: dict[str, Callable[..., Callable[[], None]]] = {"torch": paged.prepare, "triton": paged_triton.prepare}
both = pytest.mark.parametrize("name", ["torch", "triton"])
# fp32: sums of some hundred products. bf16: weights and outputs are rounded to 8 bits (values up to 3), which the
# interpreter does by cutting off.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2.5e-2}


def make(
    batch: int = 2,
    q: int = 1,
    context: int = 40,
    heads: int = 2,
    kv_heads: int = 1,
    head_dim: int = 16,
    window: int = 0,
    tree: int = 0,
    *,
    dtype: str = "fp32",
    kv_dtype: str = "",
    lengths: Sequence[int] | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Inputs of unequal (or the given) lengths; what must not be read is NaN."""
    generator = torch.Generator(DEVICE)
    generator.manual_seed(seed)
    if lengths is not None:
        batch, context = len(lengths), max(lengths)
    shape = {
        "batch": batch, "q": q, "context": context, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim,
        "window": window, "tree": tree,
    }  # fmt: skip
    inputs = paged.draw_inputs(shape, Draw(dtype, kv_dtype or dtype, DEVICE, generator))
    if lengths is not None:
        inputs["context_lens"] = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    else:
        inputs = with_unequal(inputs, "context_lens", q, generator)
    poison(inputs)
    return inputs


def poison(inputs: dict[str, Any]) -> None:
    """NaN in every slot but those from the first visible block to the last token; tables lead nowhere else."""
    caches = [inputs["key_cache"], inputs["value_cache"]]
    kept = torch.zeros(caches[0].shape[:2], dtype=torch.bool, device=DEVICE)
    for sequence, length in enumerate(inputs["context_lens"].tolist()):
        seen = paged.visible(inputs, sequence).any(0)
        first = int(seen.nonzero()[0]) // paged.BLOCK_SIZE
        slots = torch.arange(first * paged.BLOCK_SIZE, length, device=DEVICE)
        table = inputs["block_tables"][sequence]
        kept[table[slots // paged.BLOCK_SIZE].long(), slots % paged.BLOCK_SIZE] = True
        table[:first] = 0
        table[-(-length // paged.BLOCK_SIZE) :] = 0
    for cache in caches:
        if cache.dtype == torch.float8_e4m3fn:
            cache.view(torch.uint8)[~kept] = 0x7F  # e4m3's NaN
        else:
            cache[~kept] = torch.nan
    assert not kept[0].any()


def run(name: str, inputs: Mapping[str, Any], **options: Any) -> torch.Tensor:
    outputs = paged.make_outputs(inputs)
    outputs["out"].fill_(torch.nan)
    PREPARE[name](inputs, outputs, **options)()
    return outputs["out"]


def check(name: str, inputs: Mapping[str, Any], **options: Any) -> None:
    found, expected = run(name, inputs, **options), paged.reference(inputs)["out"]
    assert expected.isfinite().all()
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=TOLERANCE[found.dtype])


@both
@pytest.mark.parametrize("q", range(1, 18))
def test_verify_of_every_length_and_group(name: str, q: int) -> None:
    """q = 1 ... 17 over GQA ratios 1 ... 8, each ratio several times."""
    for group in [1 + q % 8, 1 + (q + 3) % 8] if name == "torch" else [1 + q % 8]:
        check(name, make(q=q, context=60, heads=2 * group, kv_heads=2, seed=q))


@both
@pytest.mark.parametrize("q", [1, 3])
def test_block_boundaries(name: str, q: int) -> None:
    check(name, make(q=q, lengths=[q, 15, 16, 17, 31, 32, 33, 47, 48, 49]))


@pytest.mark.parametrize(("splits", "rows"), [(1, 16), (1, 32), (2, 16), (3, 32), (7, 32)])
def test_every_split_and_tile(splits: int, rows: int) -> None:
    """Short sequences leave splits empty; 24 rows are one tile and a half of 16."""
    plan = paged_triton.AttentionTiles(rows, 16, 4, 2)
    check("triton", make(q=3, heads=8, lengths=[3, 17, 100]), splits=splits, plan=plan)


@both
@pytest.mark.parametrize("window", [1, 5, 16, 17, 40])
def test_window(name: str, window: int) -> None:
    inputs = make(q=4, window=window, lengths=[4, 20, 33, 64, 100])
    check(name, inputs)
    whole = paged.reference({**make(q=4, lengths=[4, 20, 33, 64, 100])})["out"]
    assert not torch.allclose(paged.reference(inputs)["out"], whole)


PREFILL = [(37, 37, 0), (70, 150, 0), (70, 150, 20)]


@pytest.mark.parametrize(
    ("name", "q", "context", "window"),
    [(name, *sizes) for name in PREPARE for sizes in PREFILL] + [("torch", 300, 300, 0), ("torch", 300, 310, 9)],
)
def test_prefill_with_and_without_a_prefix(name: str, q: int, context: int, window: int) -> None:
    """In Triton 70 tokens of two heads are two row tiles of 128, which go the unmasked way too; in torch 300 tokens are
    two pieces."""
    check(name, make(q=q, context=context, window=window, dtype="bf16", seed=q))


def test_unmasked_tiles_of_a_long_prefix() -> None:
    plan = paged_triton.AttentionTiles(128, 16, 8, 2)
    check("triton", make(q=33, heads=4, lengths=[33, 97]), splits=2, plan=plan)


@both
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("q", [1, 5])
def test_fp8_cache(name: str, dtype: str, q: int) -> None:
    inputs = make(q=q, heads=4, kv_heads=2, dtype=dtype, kv_dtype="fp8")
    assert inputs["key_cache"].element_size() == 1
    check(name, inputs)
    # Each scale reaches the result.
    check(name, {**inputs, "k_scale": inputs["k_scale"] * 1.5, "v_scale": inputs["v_scale"] * 0.75})


@both
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_head_sizes(name: str, head_dim: int) -> None:
    check(name, make(q=2, context=20, head_dim=head_dim, dtype="bf16"))


def test_more_splits_than_one_chunk_of_the_sum() -> None:
    """24 splits of one tile each, in chunks of 16; the short sequence fills two of them."""
    plan = paged_triton.AttentionTiles(16, 16, 4, 2)
    check("triton", make(heads=8, lengths=[384, 20]), splits=24, plan=plan)


def test_a_prepared_triton_launch_reads_lengths_and_tables_anew() -> None:
    """So a captured graph stays valid from step to step."""
    inputs = make(q=2, lengths=[20, 50])
    other = make(q=2, lengths=[50, 18], seed=1)
    outputs = paged.make_outputs(inputs)
    launch = paged_triton.prepare(inputs, outputs, splits=2)
    launch()
    for key in ("query", "key_cache", "value_cache", "block_tables", "context_lens"):
        inputs[key].copy_(other[key])
    launch()
    torch.testing.assert_close(outputs["out"].double(), paged.reference(other)["out"], rtol=0, atol=1e-5)


def test_reference_by_hand() -> None:
    """One head of two numbers, keys that pick their value: scores 0 and ln 3 weigh 1:3; the third token is not seen."""
    cache = torch.zeros((2, paged.BLOCK_SIZE, 1, 2), device=DEVICE)
    values = cache.clone()
    cache[1, 1, 0, 0] = torch.tensor(3.0).log()
    values[1, :3, 0, 0] = torch.tensor([4.0, 8.0, 1000.0])
    inputs = {
        "query": torch.tensor([[[[1.0, 0.0]], [[0.0, 0.0]]]], device=DEVICE),
        "key_cache": cache,
        "value_cache": values,
        "block_tables": torch.ones((1, 1), dtype=torch.int32, device=DEVICE),
        "context_lens": torch.tensor([3], dtype=torch.int32, device=DEVICE),
        "tree": None,
        "depths": None,
        "window": 0,
        "scale": 1.0,
        "k_scale": 1.0,
        "v_scale": 0.5,
    }
    out = paged.reference(inputs)["out"][0, :, 0, 0].tolist()
    assert out == pytest.approx([0.5 * (4 + 3 * 8) / 4, 0.5 * 1012 / 3])
    assert paged.reference({**inputs, "window": 2})["out"][0, 1, 0, 0].item() == pytest.approx(0.5 * 1008 / 2)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"q": 5, "context": 4}, "at least q"),
        ({"heads": 3, "kv_heads": 2}, "multiple"),
        ({"q": 64, "context": 64, "tree": 1}, "63"),
    ],
)
def test_shapes_that_are_no_attention(changed: dict[str, int], reason: str) -> None:
    with pytest.raises(HardwareError, match=reason):
        make(**changed)  # type: ignore[arg-type]


SHAPE = {"batch": 3, "q": 5, "context": 40, "heads": 32, "kv_heads": 8, "head_dim": 128, "window": 0, "tree": 0}


def test_verify_reads_the_cache_once() -> None:
    """Whatever q is: bytes grow only by the new tokens' own, FLOPs q-fold."""
    work = operator("attention_decode").work
    decode, verify = (work({**SHAPE, "q": q}, "bf16", "bf16") for q in (1, 5))
    assert verify.flops == 5 * decode.flops == 5 * 3 * 4 * 32 * 128 * 40
    per_token = 2 * 8 * 128 * 2
    assert decode.bytes == 3 * ((40 + 1) * per_token + 2 * 32 * 128 * 2)
    assert verify.bytes - decode.bytes == 3 * 4 * (per_token + 2 * 32 * 128 * 2)
    fp8 = work(SHAPE, "bf16", "fp8")
    assert verify.bytes - fp8.bytes == 3 * (40 + 5) * per_token / 2


def test_work_of_the_operator_is_that_of_a_model_layer() -> None:
    model = load_model("Llama-3.1-8B")
    layer = attention_work(model, 3 * 5, 3 * 40, 3 * 5 * 40, kv_cache_dtype="fp8")
    assert operator("attention_decode").work(SHAPE, "bf16", "fp8") == layer


@pytest.mark.parametrize("window", [0, 1, 3, 7, 8, 20, 50])
@pytest.mark.parametrize(("q", "context"), [(1, 10), (5, 9), (8, 8), (6, 40)])
def test_work_counts_what_each_query_sees(q: int, context: int, window: int) -> None:
    shape = {**SHAPE, "batch": 1, "q": q, "context": context, "window": window}
    seen = torch.tensor([min(context - q + i + 1, window or context) for i in range(q)])
    prefill = operator("attention_prefill").work(shape, "bf16", "bf16")
    assert prefill.flops == 4 * 32 * 128 * int(seen.sum())
    keys = min(context, window + q - 1) if window else context
    assert prefill.bytes == 2 * 8 * 128 * 2 * (keys + q) + 2 * q * 32 * 128 * 2
    decode = operator("attention_decode").work(shape, "bf16", "bf16")
    assert decode.flops == 4 * 32 * 128 * q * min(context, window or context)
    assert decode.bytes == prefill.bytes


@pytest.mark.parametrize("name", ["attention_decode", "attention_prefill"])
def test_supports_says_why_not(name: str) -> None:
    found = operator(name).implementations
    for implementation in (found["torch"], found["triton"]):
        assert implementation.supports(SHAPE, "bf16", "fp8", DEVICE) == ""
        assert "fp8 cache" in implementation.supports(SHAPE, "bf16", "fp32", DEVICE)
        assert "at least q" in implementation.supports({**SHAPE, "q": 41}, "bf16", "bf16", DEVICE)
    odd = {**SHAPE, "head_dim": 80}
    assert "power of two" in found["triton"].supports(odd, "bf16", "bf16", DEVICE)
    assert found["torch"].supports(odd, "bf16", "bf16", DEVICE) == ""


def test_torch_takes_any_head_size() -> None:
    check("torch", make(q=3, head_dim=80, window=9))


def test_splits_fill_the_device_and_no_more() -> None:
    """132 processors of two programs each: 264 at a time."""
    assert paged_triton.split_count(programs=264, tokens=32768, processors=132) == 1
    assert paged_triton.split_count(programs=2048, tokens=32768, processors=132) == 1
    assert paged_triton.split_count(programs=8, tokens=32768, processors=132) in range(28, 34)
    assert paged_triton.split_count(programs=8, tokens=100, processors=132) == 1
    assert paged_triton.split_count(programs=8, tokens=1024, processors=132) == 8
    # 300 programs are two rounds, the second nearly empty: splitting evens them out.
    assert paged_triton.split_count(programs=300, tokens=32768, processors=132) > 1


@pytest.mark.parametrize("head_dim", [16, 64, 128, 256])
@pytest.mark.parametrize("kv_bytes", [1, 2, 4])
def test_tiles_fit_tensor_cores_and_shared_memory(head_dim: int, kv_bytes: int) -> None:
    for rows in (1, 4, 17, 64, 128, 136, 16384):
        plan = paged_triton.tile_plan(rows, head_dim, kv_bytes)
        assert plan.rows >= 16
        assert plan.keys >= 16
        assert rows > 64 or kv_bytes == 4 or plan.rows >= rows  # one read of the KV
        held = plan.num_stages * 2 * plan.keys * head_dim * kv_bytes + plan.rows * head_dim * max(kv_bytes, 2)
        assert held <= 227 * 1024
