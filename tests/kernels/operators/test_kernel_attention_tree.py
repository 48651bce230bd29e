"""Tree verify: ancestor masks, torch and Triton, against the dense float64 formula, and against causal order."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from unequal_lengths import with_unequal

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from draftcast.kernels.operators import paged
from draftcast.kernels.operators.registry import Draw
from draftcast.kernels.operators.triton import attention as paged_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PREPARE: dict[str, Callable[..., Callable[[], None]]] = {"torch": paged.prepare, "triton": paged_triton.prepare}
both = pytest.mark.parametrize("name", ["torch", "triton"])
# As in test_kernel_attention.py.
TOLERANCE = {"fp32": 1e-5, "bf16": 2.5e-2}


def make(q: int, *, window: int = 0, tree: int = 1, dtype: str = "fp32", kv_dtype: str = "", seed: int = 0) -> Any:
    """Two sequences, one of 70 tokens and one of a random length, the null block NaN."""
    generator = torch.Generator(DEVICE)
    generator.manual_seed(seed)
    shape = {
        "batch": 2, "q": q, "context": 70, "heads": 4, "kv_heads": 2, "head_dim": 16, "window": window, "tree": tree,
    }  # fmt: skip
    inputs = paged.draw_inputs(shape, Draw(dtype, kv_dtype or dtype, DEVICE, generator))
    inputs = with_unequal(inputs, "context_lens", q, generator)
    for table, length in zip(inputs["block_tables"], inputs["context_lens"].tolist(), strict=True):
        table[-(-length // paged.BLOCK_SIZE) :] = 0
    for cache in (inputs["key_cache"], inputs["value_cache"]):
        cache.view(torch.uint8)[0] = 0x7F if cache.element_size() == 1 else 0xFF
    return inputs


def run(name: str, inputs: Any, **options: Any) -> torch.Tensor:
    outputs = paged.make_outputs(inputs)
    outputs["out"].fill_(torch.nan)
    PREPARE[name](inputs, outputs, **options)()
    return outputs["out"]


@both
@pytest.mark.parametrize("q", [1, 2, 5, 17, 63])
def test_random_trees(name: str, q: int) -> None:
    inputs = make(q, seed=q)
    torch.testing.assert_close(run(name, inputs).double(), paged.reference(inputs)["out"], rtol=0, atol=1e-5)
    if q > 2:
        chain = paged.reference({**inputs, "tree": None})["out"]
        assert not torch.allclose(paged.reference(inputs)["out"], chain)


@both
@pytest.mark.parametrize(("dtype", "kv_dtype"), [("bf16", "bf16"), ("bf16", "fp8"), ("fp32", "fp8")])
def test_formats(name: str, dtype: str, kv_dtype: str) -> None:
    inputs = make(7, dtype=dtype, kv_dtype=kv_dtype)
    found = run(name, inputs).double()
    torch.testing.assert_close(found, paged.reference(inputs)["out"], rtol=0, atol=TOLERANCE[dtype])


@both
@pytest.mark.parametrize("window", [1, 2, 6, 20])
def test_window_goes_by_depth_in_the_tree(name: str, window: int) -> None:
    """A leaf's position is its depth, not its slot."""
    inputs = make(9, window=window, seed=window)
    torch.testing.assert_close(run(name, inputs).double(), paged.reference(inputs)["out"], rtol=0, atol=1e-5)


def chain_tree(batch: int, q: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The mask and depths of a chain: what causal order is as a tree."""
    masks = torch.tensor([(2 << token) - 1 for token in range(q)], dtype=torch.int64, device=DEVICE)
    return masks.expand(batch, q).contiguous(), torch.arange(q, dtype=torch.int32, device=DEVICE).repeat(batch, 1)


@both
@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("q", [4, 17])
def test_a_chain_as_a_tree_is_causal(name: str, q: int, window: int) -> None:
    inputs = make(q, window=window, tree=0, seed=q)
    masks, depths = chain_tree(2, q)
    chain = {**inputs, "tree": masks, "depths": depths}
    # A causal row tile may start its window later than a tree's, which regroups the sums.
    torch.testing.assert_close(run(name, chain), run(name, inputs), rtol=0, atol=2e-6)
    assert torch.equal(paged.reference(chain)["out"], paged.reference(inputs)["out"])


@pytest.mark.parametrize("splits", [1, 3])
def test_tiles_without_masks_stop_where_the_tree_begins(splits: int) -> None:
    inputs = make(33, seed=3)
    plan = paged_triton.AttentionTiles(128, 16, 8, 2)
    found = run("triton", inputs, plan=plan, splits=splits)
    torch.testing.assert_close(found.double(), paged.reference(inputs)["out"], rtol=0, atol=1e-5)


def test_visible_by_hand() -> None:
    """Five tokens, the last four a tree: 0 is the root, 1 and 2 are its children, 3 is a child of 1."""
    inputs = {
        "query": torch.zeros((1, 4, 1, 2)),
        "context_lens": torch.tensor([5]),
        "tree": torch.tensor([[0b0001, 0b0011, 0b0101, 0b1011]]),
        "depths": torch.tensor([[0, 1, 1, 2]]),
        "window": 0,
    }
    assert paged.visible(inputs, 0).int().tolist() == [
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 1, 1, 0, 1],
    ]
    # Two positions each: itself and its parent.
    assert paged.visible({**inputs, "window": 2}, 0).int().tolist() == [
        [1, 1, 0, 0, 0],
        [0, 1, 1, 0, 0],
        [0, 1, 0, 1, 0],
        [0, 0, 1, 0, 1],
    ]


def test_random_trees_are_trees() -> None:
    generator = torch.Generator(DEVICE)
    generator.manual_seed(0)
    masks, depths = paged.random_trees(50, 20, Draw("bf16", "bf16", DEVICE, generator))
    seen = (masks[:, :, None] >> torch.arange(20, device=DEVICE)) & 1
    assert torch.equal(seen.sum(2), depths + 1)
    assert (seen[:, :, 0] == 1).all()
    assert (seen.triu(1) == 0).all()
    # A token's nearest ancestor is its parent: whatever that one sees, and itself.
    for token in range(1, 20):
        parent = masks[:, token] ^ (1 << token)
        nearest = parent.double().log2().floor().long()
        assert torch.equal(masks.gather(1, nearest[:, None])[:, 0], parent)
    assert len(set(masks[:, 19].tolist())) > 20
