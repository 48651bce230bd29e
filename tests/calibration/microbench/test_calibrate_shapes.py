"""Which points a calibration times: the grids of the issue, a coarse order, and what is left out and why."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from draftcast.calibration.microbench.device import Device
from draftcast.calibration.microbench.shapes import (
    OPERATORS,
    Grid,
    Plan,
    Point,
    Series,
    Settings,
    doublings,
    footprint_bytes,
    grid_for,
    levels,
    plan,
    row_grid,
)
from draftcast.errors import HardwareError, ModelError
from draftcast.kernels.model.catalog import load_model
from draftcast.kernels.model.spec import ModelSpec
from draftcast.kernels.operators.registry import Implementation, Operator, operator
from draftcast.kernels.work.layers import linear_layers, lm_head

EVERYTHING = 10**15


def nothing(*_: Any) -> Any:
    raise AssertionError("planning runs no kernel")


def runs_anywhere(reason: str = "") -> Implementation:
    return Implementation(lambda *_: reason, nothing)


def stub(name: str, implementations: Mapping[str, Implementation] | None = None) -> Operator:
    """The operator with its own shape fields, formats and work, and implementations that are never run."""
    real = operator(name)
    return replace(real, implementations=implementations or {"torch": runs_anywhere()})


STUBS = {name: stub(name) for name in OPERATORS}


def planned(model: str | ModelSpec = "Llama-3.1-8B", grid: Grid | None = None, **changes: Any) -> Plan:
    kernels = changes.pop("operators", STUBS)
    device = Device(changes.pop("device", "cpu"), "a test", 1, 1, 1, changes.pop("memory_bytes", EVERYTHING))
    given: dict[str, Any] = {"tps": (1,), "dtypes": ("bf16",), "kv_dtypes": ("bf16",), "seed": 0}
    settings = Settings(("a test",), "0", operators=tuple(kernels), max_rows=512, **(given | changes))
    models = [load_model(model) if isinstance(model, str) else model]
    return plan(models, settings, grid or grid_for("cpu", 512), kernels, device)


def values(found: Plan, name: str, operator: str, **fixed: int) -> set[int]:
    """Values of a shape field over an operator's points."""
    shapes = [dict(point.shape) for point in found.points if point.operator == operator]
    return {shape[name] for shape in shapes if fixed.items() <= shape.items()}


def test_rows_are_dense_then_logarithmic() -> None:
    assert row_grid(17, 512) == (*range(1, 18), 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512)
    gpu = row_grid(64, 8192)
    assert gpu[:67] == (*range(1, 65), 80, 96, 128)
    assert gpu[-1] == 8192
    assert max(high / low for low, high in itertools.pairwise(gpu[63:])) <= 4 / 3
    assert row_grid(17, 5) == (1, 2, 3, 4, 5)
    assert row_grid(17, 100)[-2:] == (96, 100)


def test_levels_halve_the_widest_gap_in_logs() -> None:
    assert levels((1, 2, 4, 8, 16)) == [(1, 0), (2, 2), (4, 1), (8, 2), (16, 0)]
    assert levels((7,)) == [(7, 0)]
    assert levels((1, 2)) == [(1, 0), (2, 0)]
    assert dict(levels(row_grid(17, 512)))[24] == 1


def test_every_linear_layer_is_timed_at_every_row_count() -> None:
    model = load_model("Llama-3.1-8B")
    for tp in (1, 8):
        found = planned(tps=[tp])
        for layer in (*linear_layers(model, tp), lm_head(model, tp)):
            assert values(found, "m", "linear", k=layer.k, n=layer.n) == set(row_grid(17, 512))


def test_the_cuda_grid_is_that_of_the_planned_runs() -> None:
    found = planned(grid=grid_for("cuda", 8192), kv_dtypes=["bf16", "fp8"], device="cuda")
    assert values(found, "m", "linear") >= {*range(1, 65), 80, 96, 128, 8192}
    assert values(found, "q", "attention_decode", tree=0) == {1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17}
    assert values(found, "batch", "attention_decode") == set(doublings(1, 256))
    assert values(found, "context", "attention_decode") == set(doublings(128, 32768))
    assert values(found, "tree", "attention_decode") == {0, 1}
    assert {point.kv_dtype for point in found.points if point.operator == "attention_decode"} == {"bf16", "fp8"}
    assert {point.graph for point in found.points if point.operator == "linear"} == {False, True}
    assert values(found, "q", "rejection_sampler") == {2, 3, 4, 5, 6, 8, 9, 12, 16, 17}


def test_decode_and_prefill_are_whole_grids() -> None:
    found = planned()
    grid = grid_for("cpu", 512)
    shapes = {(dict(p.shape)["q"], dict(p.shape)["batch"], dict(p.shape)["context"]) for p in found.points
              if p.operator == "attention_decode" and dict(p.shape)["tree"] == 0}  # fmt: skip
    assert shapes == {
        (q, batch, context)
        for q in grid.queries
        for batch in grid.batches
        for context in grid.contexts
        if batch * context <= grid.max_tokens
    }
    assert {1, 2, 17} <= set(grid.queries)
    prefill = [dict(point.shape) for point in found.points if point.operator == "attention_prefill"]
    assert {(shape["q"], shape["context"] // shape["q"]) for shape in prefill} == {
        (q, ratio) for q in grid.chunks for ratio in grid.ratios
    }


def test_shapes_are_those_of_one_rank() -> None:
    found = planned("Llama-3.1-70B", tps=[8])
    assert values(found, "heads", "attention_decode") == {8}
    assert values(found, "kv_heads", "rotary") == {1}
    assert values(found, "n", "swiglu") == {28672 // 8}
    assert values(found, "n", "sampler") == {128256}, "logits are gathered"
    assert values(found, "k", "embedding") == {128256 // 8}


def test_all_reduce_needs_ranks() -> None:
    assert not values(planned(), "ranks", "all_reduce")
    found = planned(tps=[1, 2])
    assert values(found, "ranks", "all_reduce") == {2}
    assert values(found, "message_bytes", "all_reduce") == {rows * 4096 * 2 for rows in doublings(1, 512)}


def test_experts_are_one_operator_and_no_linear_layer() -> None:
    model = load_model("Mixtral-8x7B")
    found = planned("Mixtral-8x7B", tps=[2])
    (shape,) = {tuple(dict(p.shape)[name] for name in ("k", "n", "num_experts", "top_k")) for p in found.points
                if p.operator == "moe"}  # fmt: skip
    assert shape == (4096, 14336 // 2, 8, 2)
    assert not values(found, "n", "swiglu")
    assert model.num_experts in values(found, "n", "linear"), "the router"


def test_sliding_layers_have_their_window() -> None:
    assert values(planned("gpt-oss-20b"), "window", "attention_decode") == {0, 128}


def test_layers_that_all_slide_are_timed_without_a_window_too() -> None:
    """A forecast interpolates between times without a window, those of layers that have one too."""
    gpt = load_model("gpt-oss-20b")
    sliding = replace(gpt, num_sliding_layers=gpt.num_hidden_layers)
    found = planned(sliding)
    for name in ("attention_decode", "attention_prefill"):
        assert values(found, "window", name) == {0, 128}


def test_latent_attention_is_left_out_with_its_reason() -> None:
    found = planned("DeepSeek-V3")
    assert not values(found, "q", "attention_decode")
    reason = "multi-head latent attention has no kernel here that norms, rotates and writes the latents too"
    assert found.left_out[reason] == 1


def test_formats() -> None:
    found = planned(dtypes=["fp8", "bf16"])
    by_dtype = {dtype: [p for p in found.points if p.dtype == dtype] for dtype in ("fp8", "bf16", "fp32")}
    assert {point.operator for point in by_dtype["fp8"]} == {"linear"}, "activations stay in 16 bits"
    assert 128256 not in {dict(point.shape)["n"] for point in by_dtype["fp8"]}, "lm_head is never quantised"
    assert 128256 in {dict(point.shape)["n"] for point in by_dtype["bf16"] if point.operator == "linear"}
    wide = planned(dtypes=["fp32"])
    assert {point.dtype for point in wide.points if point.operator != "ngram"} == {"fp32"}
    assert {point.kv_dtype for point in wide.points if point.operator == "attention_decode"} == {"fp32"}


def test_shared_shapes_are_timed_once() -> None:
    one = planned()
    device = Device("cpu", "a test", 1, 1, 1, EVERYTHING)
    settings = replace(one.settings, tps=(1, 1))
    same = plan([load_model("Llama-3.1-8B")] * 2, settings, grid_for("cpu", 512), STUBS, device)
    assert same.points == one.points
    assert len({point.key for point in one.points}) == len(one.points)


def test_a_prefix_covers_every_operator_and_both_ends() -> None:
    found = planned(tps=[2])
    first = Plan(found.settings, found.points[: len(found.points) // 5])
    assert {point.operator for point in first.points} == {point.operator for point in found.points}
    for layer in linear_layers(load_model("Llama-3.1-8B"), 2):
        assert {1, 512} <= values(first, "m", "linear", k=layer.k, n=layer.n)
    for name in ("q", "batch", "context"):
        whole = values(found, name, "attention_decode", tree=0)
        assert {min(whole), max(whole)} <= values(first, name, "attention_decode", tree=0)
        assert len(values(first, name, "attention_decode", tree=0)) >= 3


def test_what_does_not_fit_is_left_out_and_counted() -> None:
    found = planned(memory_bytes=2e9)
    limit = 0.15 * 2e9
    kept = planned()
    too_large = [p for p in kept.points if footprint_bytes(p.operator, dict(p.shape), p.dtype, p.kv_dtype) > limit]
    assert too_large
    assert found.left_out["does not fit in memory"] == len(too_large)
    assert set(found.points) == set(kept.points) - set(too_large)


@pytest.mark.parametrize(
    ("name", "shape", "bytes_"),
    [
        ("ngram", {"batch": 3, "context": 64}, 4 * 3 * 64),
        ("linear", {"m": 2, "k": 8, "n": 4}, 2 * (8 * 4 + 2 * (8 + 4))),
        ("embedding", {"m": 2, "k": 100, "n": 4}, 2 * (100 + 2) * 4),
        (
            "attention_decode",
            {"batch": 2, "q": 3, "context": 64, "heads": 4, "kv_heads": 2, "head_dim": 8},
            2 * (2 * 2 * 64 * 2 * 8 + 2 * 2 * 3 * 4 * 8),
        ),
        (
            "moe",
            {"m": 1, "k": 8, "n": 4, "num_experts": 16, "top_k": 2},
            2 * (3 * 16 * 8 * 4 + 2 * 8 + 3 * 2 * 4),
        ),
    ],
)
def test_footprints_by_hand(name: str, shape: dict[str, int], bytes_: int) -> None:
    kv_dtype = "bf16" if name.startswith("attention") else ""
    dtype = "int32" if name == "ngram" else "bf16"
    assert footprint_bytes(name, shape, dtype, kv_dtype) == bytes_


def test_an_implementation_says_why_it_cannot_run() -> None:
    both = {"torch": runs_anywhere(), "triton": runs_anywhere("needs another GPU")}
    found = planned(operators={"rmsnorm": stub("rmsnorm", both)}, device="cuda")
    assert {point.implementation for point in found.points} == {"torch"}
    assert found.left_out == {"rmsnorm triton: needs another GPU": len(found.points)}


def test_triton_is_never_timed_in_its_interpreter() -> None:
    both = {"torch": runs_anywhere(), "triton": runs_anywhere()}
    on_cpu = planned(operators={"rmsnorm": stub("rmsnorm", both)})
    assert {point.implementation for point in on_cpu.points} == {"torch"}
    assert not on_cpu.left_out
    on_gpu = planned(operators={"rmsnorm": stub("rmsnorm", both)}, device="cuda")
    assert {point.implementation for point in on_gpu.points} == {"torch", "triton"}


def test_the_text_search_is_timed_once_whatever_the_formats() -> None:
    found = planned(dtypes=["bf16", "fp32"], tps=[1, 2])
    searches = [point for point in found.points if point.operator == "ngram"]
    assert {(dict(p.shape)["batch"], dict(p.shape)["context"]) for p in searches} == {
        (batch, context) for batch in (1, 8, 64) for context in (128, 512, 2048) if batch * context <= 65536
    }
    assert {(point.dtype, point.kv_dtype) for point in searches} == {("int32", "")}
    assert len(searches) == 8


def test_only_the_operators_asked_for() -> None:
    found = planned(operators={"linear": STUBS["linear"], "rotary": STUBS["rotary"]})
    assert {point.operator for point in found.points} == {"linear", "rotary"}
    with pytest.raises(HardwareError, match="nothing to time"):
        planned(operators={"moe": STUBS["moe"]})


def test_degrees_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ModelError, match="tensor_parallel_size"):
        planned(tps=[3])


def test_order_does_not_depend_on_the_run_and_ties_on_the_seed() -> None:
    assert planned().points == planned().points
    other = planned(seed=1)
    assert set(other.points) == set(planned().points)


def test_series_over_context_in_units_of_the_chunk() -> None:
    series = Series("attention_prefill", "bf16", "bf16", {"heads": 4}, {"q": (16, 32), "ratio": (1, 4)}, 0)
    shapes = [dict(shape) for _, shape in series.shapes(("q", "context", "heads"))]
    assert [(shape["q"], shape["context"]) for shape in shapes] == [(16, 16), (16, 64), (32, 32), (32, 128)]


def test_keys_tell_points_apart() -> None:
    point = Point("linear", "bf16", "", "torch", (("m", 1), ("k", 2)))
    others = [replace(point, dtype="fp8"), replace(point, graph=True), replace(point, shape=(("m", 1), ("k", 3)))]
    assert len({each.key for each in (point, *others)}) == 4
    assert point.key == "linear/bf16//torch/0 m=1 k=2"
