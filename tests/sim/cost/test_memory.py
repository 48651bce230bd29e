"""The KV budget: sums by hand, published start-up logs, and what speculative decoding takes away."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from draftcast.calibration.profile.hardware import HardwareSpec, load_hardware
from draftcast.errors import CapacityError, ModelError
from draftcast.kernels.model import drafters
from draftcast.kernels.model.catalog import load_model
from draftcast.kernels.model.spec import WINDOWS, ModelSpec
from draftcast.sim.cost.engine_config import EngineConfig
from draftcast.sim.cost.memory import (
    GIB,
    MemoryBudget,
    activation_peak_bytes,
    cuda_graph_bytes,
    memory_budget,
    memory_share,
)
from draftcast.sim.cost.methods import get_method

LLAMA = load_model("Llama-3.1-8B")
H100 = load_hardware("h100")
PROFILED = {"max_num_batched_tokens": 8192, "max_num_seqs": 256}


def budget_of(model: ModelSpec, device: HardwareSpec, draft: ModelSpec | None = None, **flags: Any) -> MemoryBudget:
    """A budget of an engine with EAGLE where ``k`` is given, and for requests of a token unless a length is."""
    k = flags.pop("k", 0)
    speculation = {"method": get_method("eagle"), "num_speculative_tokens": k} if k else {}
    config = EngineConfig(**({"max_model_len": 1} | speculation | flags))
    return memory_budget(config, model, draft, device)


def test_the_sum_is_the_usable_memory() -> None:
    head = drafters.HeadConfig("a head", "eagle3").build(LLAMA, 1)
    budget = budget_of(LLAMA, H100, draft=head, k=3, gpu_memory_utilization=0.9)
    used = budget.weight_bytes + budget.draft_weight_bytes + budget.activation_bytes
    used += budget.cuda_graph_bytes + budget.non_torch_bytes
    assert budget.usable_bytes == 0.9 * H100.memory_bytes
    assert used + budget.kv_cache_bytes == pytest.approx(budget.usable_bytes)
    assert budget.weight_bytes == 2 * 8_030_261_248
    assert budget.draft_weight_bytes == 2 * head.num_parameters
    assert budget.kv_bytes_per_token == 131_072 + 4096
    assert budget.draft_kv_bytes_per_token == 4096
    assert budget.num_gpu_blocks == int(budget.kv_cache_bytes // (16 * (131_072 + 4096)))
    assert budget.kv_tokens == (budget.num_gpu_blocks - 1) * 16


def test_published_start_up_logs() -> None:
    # vLLM 0.7, Llama-3-8B on an H100 with 0.9: "model weights take 14.99GiB; non_torch_memory takes 0.11GiB; PyTorch
    # activation peak memory takes 1.20GiB; the rest of the memory reserved for KV Cache is 54.93GiB" of 79.15 GiB.
    device = replace(H100, memory_bytes=79.15 * GIB)
    budget = budget_of(LLAMA, device, version="vllm 0.7", gpu_memory_utilization=0.9, **PROFILED)
    assert budget.activation_bytes / GIB == pytest.approx(1.20, rel=0.1)
    assert budget.kv_cache_bytes / GIB == pytest.approx(54.93, rel=0.01)


@pytest.mark.parametrize(
    ("device", "flags", "blocks", "within"),
    [
        ("h100", {"version": "vllm 0.8", **PROFILED}, 28_190, 0.01),  # at its defaults of the time
        # An RTX 4090 as recorded by LLMServingSim.
        (
            "rtx-4090",
            {"version": "vllm 0.19", "max_num_batched_tokens": 2048, "max_num_seqs": 256, "max_model_len": 32768},
            2_588,
            0.02,
        ),
        # "Available KV cache memory: 51.63 GiB, GPU KV cache size: 410,128 tokens", EAGLE, H100, June 2025.
        ("h100", {"version": "vllm 0.9", "max_num_batched_tokens": 8192, "max_num_seqs": 1024, "k": 3}, 25_633, 0.02),
    ],
)
def test_blocks_of_start_up_logs(device: str, flags: dict[str, Any], blocks: int, within: float) -> None:
    head = drafters.HeadConfig("a head", "eagle3").build(LLAMA, 1) if "k" in flags else None
    budget = budget_of(LLAMA, load_hardware(device), draft=head, gpu_memory_utilization=0.9, **flags)
    assert budget.num_gpu_blocks == pytest.approx(blocks, rel=within)


def test_graphs_are_counted_before_the_cache_from_021_on() -> None:
    before, after = (budget_of(LLAMA, H100, version=f"vllm {version}") for version in ("0.20", "0.21"))
    assert before.cuda_graph_bytes == after.cuda_graph_bytes > 0
    for budget, counted in ((before, 0.0), (after, after.cuda_graph_bytes)):
        taken = budget.weight_bytes + budget.activation_bytes + budget.non_torch_bytes + counted
        assert budget.kv_cache_bytes == pytest.approx(budget.usable_bytes - taken)
    full = budget_of(LLAMA, H100, version="vllm 0.20", gpu_memory_utilization=1.0)  # no room beside
    assert full.kv_cache_bytes == pytest.approx(
        full.usable_bytes - full.weight_bytes - full.activation_bytes - full.non_torch_bytes - full.cuda_graph_bytes
    )


def test_a_nearly_full_device_is_off_by_little_of_its_memory() -> None:
    """Qwen3-32B's 61.0 GiB on an H100 at 0.90: a cache of 40,960 tokens takes 10.0 of the 10.2 GiB that are left.

    A small remainder of large numbers: what is estimated is off by under 5 % of the device's memory, not of the cache.
    """
    model = load_model("Qwen3-32B")
    budget = budget_of(model, H100, gpu_memory_utilization=0.9, max_num_batched_tokens=2048, max_num_seqs=256)
    started = 40_960 * model.kv_bytes_per_token("bf16")
    assert started < budget.usable_bytes - budget.weight_bytes < 1.05 * started
    assert abs(budget.kv_cache_bytes - started) < 0.05 * H100.memory_bytes


def test_attention_wider_than_the_mlp_counts_for_activations() -> None:
    config = EngineConfig(max_num_batched_tokens=8192, max_num_seqs=1)
    # 3 x 4096, q and output of 4096 each, k and v of 1024 each, in 16 bits.
    narrow = replace(LLAMA, intermediate_size=64)
    assert activation_peak_bytes(config, narrow) == 8192 * 2 * (3 * 4096 + 2 * 4096 + 2 * 1024)


def test_activations_by_hand() -> None:
    def peak(draft: ModelSpec | None = None, **flags: Any) -> float:
        sizes = {"max_num_batched_tokens": 2048, "max_num_seqs": 64}
        return activation_peak_bytes(EngineConfig(**(sizes | flags)), LLAMA, draft)

    forward = 2048 * (3 * 4096 + 3 * 14336) * 2
    assert peak() == forward
    assert peak(tensor_parallel_size=4) == 2048 * (3 * 4096 + 3 * 14336 / 4) * 2
    # EAGLE-3 keeps three hidden states of the target
    assert peak(drafters.HeadConfig("a head", "eagle3").build(LLAMA, 1)) - forward == 2048 * 3 * 4096 * 2
    # Sampling comes after the forward pass, beside the hidden states; it decides where requests are many.
    hidden, logits = 2048 * 4096 * 2, 1024 * 128_256
    for version, per_logit in (("0.27", 6), ("0.32", 2), ("0.33", 14)):  # of the second runner
        assert peak(max_num_seqs=1024, version=f"vllm {version} v2") == hidden + logits * per_logit
    assert peak(max_num_seqs=1024, version="vllm 0.24") == hidden + logits * 14
    assert peak(max_num_seqs=1024, version="vllm 0.20") == hidden + logits * 34


def test_graphs_by_hand() -> None:
    # 51 sizes up to 512 and 35 up to 256 (as vLLM logs "PIECEWISE=51 (largest=512), FULL=35 (largest=256)")
    assert cuda_graph_bytes(32, 256) == 32 * (51 + 35) * 2**18
    assert cuda_graph_bytes(32, 128) == 32 * (35 + 19) * 2**18
    assert cuda_graph_bytes(32, 8, k=1) == 32 * (3 + 4 + 3 + 2) * 2**18
    assert cuda_graph_bytes(32, 1) == 32 * (2 + 1) * 2**18


@pytest.mark.parametrize(
    ("mode", "graphs"),
    [("FULL_AND_PIECEWISE", 51 + 35), ("PIECEWISE", 51), ("FULL", 51), ("FULL_DECODE_ONLY", 35), ("NONE", 0)],
)
def test_a_mode_holds_the_graphs_that_it_captures(mode: str, graphs: int) -> None:
    assert budget_of(LLAMA, H100, cudagraph_mode=mode).cuda_graph_bytes == 32 * graphs * 2**18


def test_speculation_takes_blocks() -> None:
    off = budget_of(LLAMA, H100)
    assert (off.lost_blocks, off.lost_concurrency(1000)) == (0, 0.0)
    on = budget_of(LLAMA, H100, draft=drafters.HeadConfig("a head", "eagle3").build(LLAMA, 1), k=3)
    assert on.without_sd == off
    assert on.lost_blocks == off.num_gpu_blocks - on.num_gpu_blocks > 0
    assert on.lost_concurrency(1000, 3) == off.max_concurrency(1000) - on.max_concurrency(1003)
    # a draft that makes no KV and holds no weights takes only wider graphs
    ngram = budget_of(LLAMA, H100, k=3, max_num_seqs=32)
    assert 0 < ngram.lost_blocks < on.lost_blocks
    assert budget_of(LLAMA, H100, k=3, max_num_seqs=32, enforce_eager=True).lost_blocks == 0


def test_concurrency_by_hand() -> None:
    budget = budget_of(LLAMA, H100, num_gpu_blocks=101)
    assert budget.kv_tokens == 1600
    assert budget.max_concurrency(160) == 10
    assert budget.max_concurrency(161) == 100 / 11
    assert budget.max_concurrency(158, lookahead=3) == 100 / 11
    assert budget.lost_blocks == 0


def test_sliding_windows_leave_more_for_full_layers() -> None:
    model = load_model("gpt-oss-20b")
    budget = budget_of(model, H100, weight_dtype="mxfp4", max_num_seqs=256)
    per_layer = 2 * 8 * 64 * 2
    assert budget.kv_bytes_per_token == 12 * per_layer
    assert budget.window_kv_bytes == 256 * (128 + 16) * 12 * per_layer
    # so many sequences that their windows would cost more than every layer's tokens
    crowded = budget_of(model, H100, weight_dtype="mxfp4", max_num_seqs=8192, enforce_eager=True)
    assert crowded.window_kv_bytes == 0
    assert crowded.kv_bytes_per_token == 24 * per_layer


@pytest.mark.parametrize(
    ("change", "more"),
    [
        ({"tensor_parallel_size": 2, "draft_tensor_parallel_size": 2}, True),
        ({"tensor_parallel_size": 2, "draft_tensor_parallel_size": 1}, True),
        ({"weight_dtype": "fp8"}, True),
        ({"weight_dtype": "int4"}, True),
        ({"kv_dtype": "fp8"}, True),
        ({"draft_weight_dtype": "int4"}, True),
        ({"draft_kv_dtype": "fp8"}, True),
        ({"draft": None}, True),
        ({"k": 7}, False),
        ({"gpu_memory_utilization": 0.8}, False),
        ({"max_num_batched_tokens": 16384}, False),
        ({"max_num_seqs": 1024}, False),
        ({"block_size": 8}, True),
        ({"enforce_eager": True}, True),
        ({"num_gpu_blocks": 100}, False),
    ],
)
def test_every_knob_changes_the_blocks(change: dict[str, Any], more: bool) -> None:
    def blocks(**flags: Any) -> MemoryBudget:
        return budget_of(LLAMA, H100, **{"draft": load_model("Llama-3.2-1B"), "k": 1, "max_num_seqs": 64, **flags})

    changed = blocks(**change).num_gpu_blocks
    assert changed > blocks().num_gpu_blocks if more else changed < blocks().num_gpu_blocks


def test_the_draft_on_its_own_degree() -> None:
    draft = load_model("Llama-3.2-1B")
    alone = budget_of(
        load_model("Llama-3.1-70B"), H100, tensor_parallel_size=4, draft=draft, draft_tensor_parallel_size=1, k=3
    )
    split = budget_of(load_model("Llama-3.1-70B"), H100, tensor_parallel_size=4, draft=draft, k=3)
    assert alone.draft_weight_bytes == 2 * draft.num_parameters
    assert alone.draft_kv_bytes_per_token == 4 * split.draft_kv_bytes_per_token
    assert alone.num_gpu_blocks < split.num_gpu_blocks


def test_fp32_weights_keep_an_fp32_cache() -> None:
    opt = load_model("opt-125m")
    assert budget_of(opt, load_hardware("cpu"), weight_dtype="fp32").kv_bytes_per_token == 2 * opt.kv_bytes_per_token(
        "bf16"
    )


def test_a_model_that_does_not_fit_says_the_sizes() -> None:
    with pytest.raises(CapacityError) as error:
        budget_of(load_model("Llama-3.1-70B"), H100)
    text = str(error.value)
    for word in ("Llama-3.1-70B", "h100-sxm", "131.4 GiB", "72.8 GiB", "tensor_parallel_size 1", "327680"):
        assert word in text
    with pytest.raises(CapacityError, match="draft weights"):
        budget_of(LLAMA, load_hardware("a10g"), draft=load_model("Qwen3-8B"), num_gpu_blocks=100)


def test_a_request_that_cannot_fit() -> None:
    assert budget_of(LLAMA, H100, max_model_len=131_072).kv_tokens > 131_072
    with pytest.raises(CapacityError, match=r"max_model_len = 131072.*there are \d+ .*raise gpu_memory_utilization"):
        budget_of(LLAMA, H100, max_model_len=131_072, gpu_memory_utilization=0.3)
    # 131,072 tokens are 8,192 blocks of 16, beside the null block.
    with pytest.raises(CapacityError, match=r"^num_gpu_blocks = 8192: .*max_model_len = 131072 needs 8193$"):
        budget_of(LLAMA, H100, max_model_len=131_072, num_gpu_blocks=8192)
    assert budget_of(LLAMA, H100, max_model_len=131_072, num_gpu_blocks=8193).kv_tokens == 131_072


def test_degrees_must_divide() -> None:
    with pytest.raises(ModelError, match="tensor_parallel_size"):
        budget_of(LLAMA, H100, tensor_parallel_size=3)


def test_blocks_of_linear_attention_layers() -> None:
    # Pages hold a state: (32 x 128 x 128 + 8192 x 3) x 2 bytes over 2048 bytes of KV a token and layer are 536 tokens,
    # in whole pages of 16 (vLLM logs "Setting attention block size to 544 tokens" for Qwen3-Next-80B-A3B).
    h200 = replace(load_hardware("h200"), memory_bytes=400 * GIB)
    off = budget_of(load_model("Qwen3-Next-80B-A3B"), h200)
    assert (off.block_size, off.fixed_blocks) == (544, 3)  # 12 layers of full attention, 3 x 12 linear ones
    assert off.kv_bytes_per_token == 12 * 2048
    assert off.num_gpu_blocks == int(off.kv_cache_bytes // (544 * 12 * 2048))
    assert off.max_concurrency(5000) == (off.num_gpu_blocks - 1) / (10 + 3)
    # From 0.33 on in whole chunks of 64, where states of cached prefixes are left behind by FlashInfer's kernel.
    later = {"version": "vllm 0.33"}
    assert budget_of(load_model("Qwen3-Next-80B-A3B"), h200, **later).block_size == 576
    assert budget_of(load_model("Qwen3-Next-80B-A3B"), h200, **later, enable_prefix_caching=False).block_size == 544
    mi300x = replace(load_hardware("mi300x"), memory_bytes=400 * GIB)
    assert budget_of(load_model("Qwen3-Next-80B-A3B"), mi300x, **later).block_size == 544


def test_the_second_runner_counts_tokens_of_every_request() -> None:
    # A count of 32 bits and a mask of 1 bit for each request and token of the vocabulary.
    first, second = (budget_of(LLAMA, H100, version=f"vllm 0.32 {runner}", max_num_seqs=256) for runner in ("v1", "v2"))
    assert second.activation_bytes - first.activation_bytes == 256 * 128_256 * 4.125


def test_states_of_drafts_enlarge_and_fix_blocks() -> None:
    # github.com/syv-ai/qwen38-27b-rtx3090 issue 102: 480 tokens at 15 drafts, these sizes, the state in 16 bits;
    # "Padding mamba page size by 1.27%".
    model = replace(load_model("Qwen3.6-27B"), mamba_ssm_dtype="bfloat16")
    head = drafters.mtp_head(model)
    on = budget_of(model, load_hardware("h200"), draft=head, k=15)
    assert (on.block_size, on.fixed_blocks) == (480, 3 * 16)
    states = model.linear_state_bytes("bf16") + model.convolution_state_bytes("bf16", k=15)
    assert 480 * 4096 / states == pytest.approx(1.0127, abs=5e-5)
    # 16 + 1 layers of full attention a block; 48 linear ones take three groups of 17.
    assert on.kv_bytes_per_token == 17 * 4096
    assert on.without_sd is not None
    assert (on.without_sd.block_size, on.without_sd.fixed_blocks) == (400, 3)
    assert on.lost_concurrency(1000) > on.without_sd.max_concurrency(1000) / 2
    wide = budget_of(model, load_hardware("h200"), draft=head, k=15, block_size=256)
    assert wide.block_size == 512


def test_linear_layers_in_nearly_equal_numbers_share_a_block() -> None:
    model = replace(load_model("Qwen3.6-27B"), num_linear_layers=30)  # 34 of full attention
    budget = budget_of(model, load_hardware("h200"))
    assert (budget.fixed_blocks, budget.kv_bytes_per_token) == (1, 34 * 4096)


def test_sglang_keeps_states_in_a_pool_of_their_own() -> None:
    model, b200 = load_model("Qwen3.6-27B"), load_hardware("b200")
    state = 48 * (model.linear_state_bytes("bf16") + model.convolution_state_bytes("bf16"))
    plain = budget_of(model, b200, version="vllm 0.32")
    assert plain.most_requests is None
    sglang: dict[str, Any] = {"gpu_memory_utilization": 0.8, "version": "sglang 0.5.15"}
    off = budget_of(model, b200, **sglang)
    # 0.9 of what KV gets, five states a request (docs.sglang.io, Hybrid Model Memory Pools)
    assert off.most_requests is not None
    assert off.most_requests == int(0.9 * off.kv_cache_bytes // (5 * state))
    assert (off.block_size, off.fixed_blocks) == (16, 0)
    assert off.max_concurrency(100) == off.most_requests < off.num_gpu_blocks / 7
    older = budget_of(model, b200, **sglang | {"version": "sglang 0.5.13"})
    assert older.most_requests == int(0.9 * off.kv_cache_bytes // (3 * state))
    bare = budget_of(model, b200, **sglang, enable_prefix_caching=False)
    assert bare.most_requests == int(0.9 * off.kv_cache_bytes // state)
    # a state more for each row that a request verifies
    drafting = budget_of(model, b200, draft=drafters.mtp_head(model), k=3, **sglang)
    assert drafting.most_requests == int(0.9 * drafting.kv_cache_bytes // (9 * state))
    assert budget_of(LLAMA, b200, **sglang).most_requests is None
    tight = (off.usable_bytes - 1.9 * off.kv_cache_bytes + 5 * state) / b200.memory_bytes
    with pytest.raises(CapacityError, match="does not fit"):
        budget_of(model, b200, **sglang | {"gpu_memory_utilization": tight})


def test_sglang_gives_its_share_of_memory_to_weights_and_kv_cache_alone() -> None:
    h100 = load_hardware("h100-sxm")
    vllm, sglang = (
        budget_of(LLAMA, h100, version=name, gpu_memory_utilization=0.8) for name in ("vllm 0.32", "sglang 0.5")
    )
    rest = vllm.activation_bytes + vllm.cuda_graph_bytes + vllm.non_torch_bytes
    assert sglang.kv_cache_bytes - vllm.kv_cache_bytes == pytest.approx(rest)
    assert rest < 0.2 * h100.memory_bytes
    # what does not fit beside that share is taken from it
    whole = budget_of(LLAMA, h100, version="sglang 0.5", gpu_memory_utilization=1.0)
    rest = whole.activation_bytes + whole.cuda_graph_bytes + whole.non_torch_bytes
    assert whole.kv_cache_bytes == pytest.approx(h100.memory_bytes - whole.weight_bytes - rest)


# GiB that SGLang's own rule keeps free (server_args.py of the version), worked out by hand.
H100_TOKENS = 0.5 + 8192 * 1.5 / 1024
RANKS: dict[str, Any] = {"data_parallel_size": 8, "is_moe": True, "max_num_batched_tokens": 1024}
EAGLE: dict[str, Any] = {"method": get_method("eagle"), "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("version", "device", "model", "flags", "kept_gib"),
    [
        ("0.5.2", "h100-sxm", LLAMA, {}, 9.5 + 1 / 2),
        ("0.5.2", "h100-sxm", LLAMA, EAGLE, 9.5 + 1 / 2 + 2),
        ("0.5.2", "rtx-4090", LLAMA, {"tensor_parallel_size": 4}, 2.8 + 4 / 10),
        ("0.5.6", "h100-sxm", LLAMA, {}, H100_TOKENS + 0.5 + 1 / 8),
        ("0.5.6", "h100-sxm", LLAMA, {"tensor_parallel_size": 4}, H100_TOKENS + 1.0 + 4 / 8),
        ("0.5.6", "h100-sxm", LLAMA, EAGLE, H100_TOKENS + 0.5 + 1 / 8 + 2),
        ("0.5.6", "h100-sxm", LLAMA, {"max_num_batched_tokens": 2048}, 10.0),
        ("0.5.6", "h100-sxm", LLAMA, {"enforce_eager": True}, H100_TOKENS + 0.5 + 1 / 8),
        ("0.5.12", "h100-sxm", LLAMA, EAGLE, H100_TOKENS + 0.5 + 1 / 8 + 58 * 8 / 1024 + 4),
        ("0.5.14", "h100-sxm", LLAMA, EAGLE, H100_TOKENS + 0.5 + 1 / 8 + 58 * 8 / 1024),
        ("0.5.15", "h100-sxm", LLAMA, {"enforce_eager": True}, H100_TOKENS + 1 / 8),
        ("0.5.6", "h100-sxm", LLAMA, {"max_cudagraph_capture_size": 64}, H100_TOKENS + 1 / 8 + 1 / 8),
        ("0.5.6", "h100-sxm", LLAMA, EAGLE | {"max_cudagraph_capture_size": 256}, H100_TOKENS + 1 / 8 + 1 / 8 + 2),
        ("0.5.22", "h100-sxm", LLAMA, {"request_limit": 64}, H100_TOKENS + 1 / 8 + 1 / 8 + 58 * 8 / 1024),
        ("0.5.22", "h100-sxm", LLAMA, {"request_limit": 1024}, H100_TOKENS + 0.5 + 1 / 8 + 58 * 8 / 1024),
        # Eight ranks of 16 requests: chunks of all, 128 captured by each (512 of 4.5 MiB by default), 8 GPUs.
        ("0.5.22", "h200-sxm", LLAMA, RANKS | {"request_limit": 16}, 0.5 + 12 + 128 * 26 / 1024 + 1),
        ("0.5.22", "h200-sxm", LLAMA, RANKS, 0.5 + 12 + 512 * 38 / 1024 + 1),
    ],
)
def test_sglang_s_own_share_of_memory(
    version: str, device: str, model: ModelSpec, flags: dict[str, Any], kept_gib: float
) -> None:
    hardware = load_hardware(device)
    config = EngineConfig(version=f"sglang {version}", **flags)
    gib = hardware.memory_bytes / 2**30
    assert memory_share(config, model, hardware) == pytest.approx(1.0 - kept_gib / gib, abs=0.001)
    assert memory_share(replace(config, gpu_memory_utilization=0.7), model, hardware) == 0.7
    assert memory_share(replace(config, version="vllm 0.32"), model, hardware) == 0.92


def test_a_step_of_so_many_tokens_that_sglang_s_rule_leaves_nothing_is_refused() -> None:
    flags = {"version": "sglang 0.5.6", "max_num_batched_tokens": 60_000}
    with pytest.raises(CapacityError, match="no memory is left for weights: lower it or give") as refused:
        budget_of(LLAMA, H100, **flags)
    assert (refused.value.key, refused.value.value) == ("max_num_batched_tokens", 60_000)
    assert budget_of(LLAMA, H100, gpu_memory_utilization=0.8, **flags).num_gpu_blocks > 0


def test_ranks_that_step_together_multimodal_models_and_amd_s_kernels_leave_less_memory() -> None:
    deepseek, h200, mi300x = load_model("DeepSeek-V3"), load_hardware("h200"), load_hardware("mi300x")
    ranks: dict[str, Any] = {"data_parallel_size": 8, "is_moe": True, "enable_expert_parallel": True}
    # 8,192 tokens of all ranks together; for each captured request of each rank 3 MiB, above 300 half as much more.
    config = EngineConfig(version="sglang 0.5.6", max_num_batched_tokens=1024, **ranks)
    gib = h200.memory_bytes / 2**30
    for given, captured, each in ((None, 512, 4.5), (301, 301, 4.5), (300, 300, 3.0)):
        kept = H100_TOKENS + captured * 2 / 1024 + 8 / 8 + captured * 8 * each / 1024
        share = memory_share(replace(config, max_cudagraph_capture_size=given), deepseek, h200)
        assert share == pytest.approx(1.0 - kept / gib, abs=0.001)
    plain = EngineConfig(version="sglang 0.5.6")
    assert memory_share(replace(plain, is_multimodal=True), LLAMA, h200) == 0.91 * memory_share(plain, LLAMA, h200)
    for length, share in ((8192, 1.0), (8193, 0.85)):
        usable = budget_of(LLAMA, mi300x, version="sglang 0.5.6", gpu_memory_utilization=0.8, max_model_len=length)
        assert usable.usable_bytes == pytest.approx(0.8 * share * mi300x.memory_bytes)


def test_the_last_tokens_of_compressed_attention_are_blocks_of_a_request() -> None:
    model = load_model("DeepSeek-V4-Flash")
    budget = budget_of(model, load_hardware("h200"), tensor_parallel_size=4, weight_dtype="mxfp4", kv_dtype="fp8")
    assert budget.kv_bytes_per_token == 3469
    assert budget.fixed_blocks == -(-16_072_704 // (16 * 3469))
    assert budget.blocks_of(160) == 10 + budget.fixed_blocks


def test_the_states_of_one_request_must_fit() -> None:
    model = load_model("Qwen3.6-27B")
    with pytest.raises(CapacityError, match="max_model_len"):
        budget_of(model, load_hardware("h200"), num_gpu_blocks=4)
    assert budget_of(model, load_hardware("h200"), num_gpu_blocks=5).fixed_blocks == 3


def test_groups_of_chunked_layers_share_the_blocks() -> None:
    """Llama-4-Scout: 12 full layers and three groups of 12 chunked ones, each block the pages of 12 layers."""
    scout, h200 = load_model("Llama-4-Scout"), load_hardware("h200")
    flags = {"is_moe": True, "tensor_parallel_size": 8, "max_model_len": 131072, "sliding_window": 8192,
             "window_kind": WINDOWS.index("chunked"), "max_num_batched_tokens": 8192}  # fmt: skip
    cached = memory_budget(EngineConfig(**flags), scout, None, h200)
    plain = memory_budget(EngineConfig(**flags, enable_prefix_caching=False), scout, None, h200)
    assert (cached.window_groups, plain.window_groups) == (0, 3)
    assert plain.kv_bytes_per_token == 12 * 2 * 128 * 2  # one KV head a rank
    # A chunk and two batches in flight, in blocks of 16.
    assert plain.blocks_of(131072) == 8192 + 3 * (8192 + 2 * 8192) // 16
    assert plain.max_concurrency(131072) == pytest.approx((plain.num_gpu_blocks - 1) / plain.blocks_of(131072))


def test_graphs_of_given_sizes_are_counted() -> None:
    def graphs(**given: Any) -> float:
        return budget_of(LLAMA, H100, max_num_seqs=32, **given).cuda_graph_bytes / (LLAMA.num_hidden_layers * 2**18)

    assert graphs() == 11 + 7  # up to 64 rows, and the decode sizes up to 32
    assert graphs(max_cudagraph_capture_size=64) == 11 + 7
    assert graphs(max_cudagraph_capture_size=16) == 5 + 5
    assert graphs(max_cudagraph_capture_size=0) == 0
    fewer = budget_of(LLAMA, H100, version="vllm 0.32", max_cudagraph_capture_size=16)
    assert fewer.num_gpu_blocks > budget_of(LLAMA, H100, version="vllm 0.32").num_gpu_blocks
