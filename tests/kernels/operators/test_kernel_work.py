"""FLOPs and bytes of the operators on cases worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from active_parameters import active_parameters
from hypothesis import given
from hypothesis import strategies as st

from draftcast.kernels.model.catalog import load_model
from draftcast.kernels.model.drafters import HeadConfig
from draftcast.kernels.operators.all_reduce import all_reduce_work
from draftcast.kernels.operators.attention import attention_work
from draftcast.kernels.operators.cost import Work
from draftcast.kernels.operators.elementwise import EMBEDDING, RMSNORM, ROTARY, SWIGLU
from draftcast.kernels.operators.linear import fullest_rank_share, linear_work, moe_padding, moe_work, touched_experts
from draftcast.kernels.operators.sampler import sampler_work
from draftcast.kernels.work.layers import (
    LinearLayer,
    all_reduces,
    elementwise_kernels,
    elementwise_work,
    linear_layers,
    lm_head,
)

LLAMA = load_model("Llama-3.1-8B")
DEEPSEEK = load_model("DeepSeek-V3")


def test_linear_by_hand() -> None:
    work = linear_work([0, 1, 3], 4, 5, weight_bytes_per_element=2.0, act_bytes=2.0)
    np.testing.assert_array_equal(work.flops, [0, 40, 120])
    np.testing.assert_array_equal(work.bytes, [0, 40 + 18, 40 + 54])
    assert linear_work(3, 4, 5, 1.0, 2.0).bytes == 20 + 54
    assert linear_work(3, 4, 5, 2.0, 4.0).bytes == 40 + 108


def test_work_adds_and_scales() -> None:
    one = Work(np.array([1.0]), np.array([2.0]))
    two = one.add(one).scale(3.0)
    assert (two.flops, two.bytes) == (6.0, 12.0)


def test_llama_layers_by_hand() -> None:
    layers = {layer.name: (layer.k, layer.n, layer.count) for layer in linear_layers(LLAMA, 4)}
    assert layers == {
        "qkv": (4096, (8 + 2 * 2) * 128, 32),
        "o": (1024, 4096, 32),
        "gate_up": (4096, 2 * 3584, 32),
        "down": (3584, 4096, 32),
    }
    head = lm_head(LLAMA, 4)
    assert (head.k, head.n, head.stored("fp8")) == (4096, 32064, ("bf16", 2.0))


def test_kv_heads_are_replicated_in_qkv() -> None:
    qkv = {tp: linear_layers(load_model("Llama-3.1-70B"), tp)[0].n for tp in (8, 16)}
    assert qkv == {8: (8 + 2) * 128, 16: (4 + 2) * 128}


def test_opt_has_two_ungated_matrices() -> None:
    layers = {layer.name: (layer.k, layer.n) for layer in linear_layers(load_model("opt-125m"))}
    assert layers == {"qkv": (768, 2304), "o": (768, 768), "fc1": (768, 3072), "fc2": (3072, 768)}


def test_moe_layers_and_the_router() -> None:
    layers = {layer.name: layer for layer in linear_layers(DEEPSEEK, 8)}
    assert layers["router"].n == 256
    assert not layers["router"].quantised
    assert (layers["experts_gate_up"].n, layers["experts_gate_up"].num_experts_per_tok) == (2 * 256, 8)
    assert (layers["shared_down"].k, layers["gate_up"].count, layers["router"].count) == (256, 3, 58)
    assert (layers["qkv_a"].n, layers["q_b"].n, layers["kv_b"].n) == (2112, 16 * 192, 16 * 256)


def test_one_pass_costs_two_flops_per_active_parameter() -> None:
    for name in ("Llama-3.1-8B", "Qwen3-30B-A3B", "DeepSeek-V3"):
        model = load_model(name)
        flops = sum(float(layer.work(1, "bf16").flops) * layer.count for layer in linear_layers(model))
        flops += float(lm_head(model).work(1, "bf16").flops)
        groups = model.parameter_groups()
        outside = groups["embedding"] + groups["norms"] + groups["biases"]
        assert flops == pytest.approx(2 * (active_parameters(model) - outside), rel=1e-9)


@pytest.mark.parametrize(
    ("tokens", "experts", "top_k", "ranks"), [(1, 256, 8, 4), (4, 256, 8, 8), (16, 128, 8, 2), (64, 256, 8, 8)]
)
def test_the_fullest_rank_has_more_than_its_share_of_the_experts(
    tokens: int, experts: int, top_k: int, ranks: int
) -> None:
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(400):
        visited = np.zeros(experts, bool)
        for _ in range(tokens):
            visited[rng.choice(experts, top_k, replace=False)] = True
        shares.append(visited.reshape(ranks, -1).sum(axis=1).max() / visited.sum())
    assert fullest_rank_share(tokens, experts, top_k, ranks) == pytest.approx(np.mean(shares), rel=0.06)


def test_a_rank_has_its_share_of_experts_that_all_are_visited_and_never_more_than_all() -> None:
    assert fullest_rank_share(10_000, 256, 8, 8) == pytest.approx(1 / 8)
    assert fullest_rank_share([0, 1, 2], 64, 1, 64).tolist() == sorted(fullest_rank_share([0, 1, 2], 64, 1, 64))[::-1]
    assert {float(fullest_rank_share(1, 1024, 1, ranks)) for ranks in range(2, 1025)} == {1.0}


def test_experts_fill_whole_tiles() -> None:
    # 1 row visits 2 of 8 experts, each for itself: 64 rows instead of 1 in fp8. 512 rows of 8 are 128 an expert.
    assert moe_padding(1, 8, 2, "fp8") == pytest.approx(64)
    assert moe_padding(1, 8, 2, "bf16") == pytest.approx(16)
    assert moe_padding(512, 8, 2, "fp8") == 1.0


def test_touched_experts() -> None:
    assert touched_experts(0, 8, 2) == 0
    assert touched_experts(1, 8, 2) == pytest.approx(2)
    assert touched_experts(2, 8, 2) == pytest.approx(8 * (1 - 0.75**2))
    assert touched_experts(10_000, 128, 8) == pytest.approx(128)
    assert touched_experts(1, 4, 4) == pytest.approx(4)


def test_moe_by_hand() -> None:
    work = moe_work([0, 1, 2], 4, 5, num_experts=8, top_k=2, weight_bytes_per_element=2.0, act_bytes=2.0)
    np.testing.assert_allclose(work.flops, [0, 80, 160])
    np.testing.assert_allclose(work.bytes, [0, 2 * 40 + 2 * 18, 8 * (1 - 0.75**2) * 40 + 4 * 18])


@given(st.integers(1, 4000), st.integers(1, 64), st.integers(1, 8))
def test_moe_bytes_grow_to_all_experts(tokens: int, experts: int, top_k: int) -> None:
    top_k = min(top_k, experts)
    some = touched_experts([tokens, tokens + 1], experts, top_k)
    assert top_k * (1 - 1e-9) <= some[0] <= some[1] <= experts * (1 + 1e-9)


def test_attention_by_hand() -> None:
    # two sequences of 100 and 50 tokens, 3 and 1 queries
    work = attention_work(LLAMA, query_tokens=4, kv_tokens=150, query_kv=3 * 100 + 50)
    assert work.flops == 4 * 32 * 128 * 350
    assert work.bytes == (150 + 4) * 2 * 8 * 128 * 2 + 4 * 2 * 32 * 128 * 2


@given(st.integers(1, 100_000), st.integers(0, 16))
def test_verification_reads_the_kv_once(context: int, k: int) -> None:
    plain = attention_work(LLAMA, 1, context, context)
    verify = attention_work(LLAMA, 1 + k, context, (1 + k) * context)
    assert verify.flops == (1 + k) * plain.flops
    # beyond queries, outputs and the new keys and values nothing more is moved
    assert verify.bytes - plain.bytes == k * (2 * 32 * 128 * 2 + 2 * 8 * 128 * 2)


def test_attention_options() -> None:
    base = attention_work(LLAMA, 4, 1000, 4000)
    fp8 = attention_work(LLAMA, 4, 1000, 4000, kv_cache_dtype="fp8")
    assert base.bytes - fp8.bytes == 1004 * 2 * 8 * 128
    assert fp8.flops == base.flops
    assert attention_work(LLAMA, 4, 1000, 4000, tp=8).flops == base.flops / 8
    assert attention_work(LLAMA, 4, 1000, 4000, tp=8).bytes == base.bytes / 8
    assert attention_work(LLAMA, 4, 1000, 4000, act_bytes=4.0).bytes - base.bytes == 4 * 2 * 32 * 128 * 2
    # 16 ranks share 8 KV heads: half the query heads of 8 ranks, the same KV
    model = load_model("Llama-3.1-70B")
    eight, sixteen = (attention_work(model, 0, 1000, 4000, tp=tp) for tp in (8, 16))
    assert (sixteen.flops, sixteen.bytes) == (eight.flops / 2, eight.bytes)


def test_mla_reads_one_latent_for_all_heads() -> None:
    work = attention_work(DEEPSEEK, 1, 1000, 1000)
    assert work.flops == 2 * 128 * (512 + 64 + 512) * 1000
    assert work.bytes == 1001 * 576 * 2 + 128 * (512 + 64 + 512) * 2
    split = attention_work(DEEPSEEK, 1, 1000, 1000, tp=8)
    assert split.flops == work.flops / 8
    assert split.bytes > work.bytes / 8


def test_mla_prompts_attend_per_head_over_expanded_keys_and_values() -> None:
    # 1,000 new tokens, each seeing those before it: 192-wide keys, 128-wide values, 128 heads.
    work = attention_work(DEEPSEEK, 1000, 1000, 500_500, absorbed=False)
    assert work.flops == 2 * 128 * (128 + 64 + 128) * 500_500
    assert work.bytes == 2 * 1000 * 128 * (128 + 64 + 128) * 2
    assert attention_work(DEEPSEEK, 1000, 1000, 500_500, tp=8, absorbed=False).flops == work.flops / 8
    assert attention_work(LLAMA, 4, 1000, 4000, absorbed=False) == attention_work(LLAMA, 4, 1000, 4000)


def test_operators_broadcast() -> None:
    rows = np.arange(5)
    assert linear_work(rows, 4, 5, 2.0).flops.shape == (5,)
    assert attention_work(LLAMA, rows, 10 * rows, 10 * rows).bytes.shape == (5,)
    assert elementwise_work(LLAMA, rows).flops.dtype == np.float64


def test_elementwise_by_hand() -> None:
    layer = 2 * 4 * 4096 + 2 * (32 + 8) * 128 + 3 * 14336
    assert elementwise_work(LLAMA, 1).flops == 4 * 4096 + 32 * layer
    assert elementwise_work(LLAMA, 10).bytes == 10 * 2 * (4 * 4096 + 32 * layer)
    assert elementwise_work(LLAMA, 10, act_bytes=4.0).bytes == 2 * elementwise_work(LLAMA, 10).bytes
    assert elementwise_work(LLAMA, 10, tp=2).bytes < elementwise_work(LLAMA, 10).bytes
    assert elementwise_kernels(LLAMA) == 32 * 4 + 2


def test_the_kernels_of_a_layer_add_up_to_its_elementwise_work() -> None:
    norm = RMSNORM.work({"m": 7, "n": 4096}, "bf16", "")
    rotary = ROTARY.work({"m": 7, "heads": 32, "kv_heads": 8, "head_dim": 128}, "bf16", "")
    layer = norm.scale(2.0).add(rotary).add(SWIGLU.work({"m": 7, "n": 14336}, "bf16", ""))
    two, one = (elementwise_work(replace(LLAMA, num_hidden_layers=layers), 7) for layers in (2, 1))
    assert layer.bytes == two.bytes - one.bytes
    assert layer.flops == two.flops - one.flops
    assert EMBEDDING.work({"m": 7, "n": 4096}, "fp32", "").bytes == 7 * 4096 * 2 * 4


def test_collectives() -> None:
    (width, count), (_, of_norms) = all_reduces(LLAMA)
    assert (width, count, of_norms) == (4096 * 2, 65, 0)
    assert all_reduce_work(10 * width, 1).bytes == 0
    assert all_reduce_work(10 * width, 4).bytes == 10 * 4096 * 2 * 1.5
    np.testing.assert_array_equal(all_reduce_work([8.0, 8.0], [1, 2]).bytes, [0, 8])
    assert all_reduce_work(8.0, 4).flops == 0
    half_of_the_logits = 10 * LLAMA.vocab_size * 2 / 2  # what a gather of them counts as
    assert all_reduce_work(half_of_the_logits, 4).bytes == 10 * 128256 * 2 * 0.75
    assert all_reduce_work(half_of_the_logits, 1).bytes == 0


def test_one_norm_over_the_heads_of_all_ranks_is_summed_between_them() -> None:
    alone = replace(LLAMA, qk_norm=True)
    together = replace(alone, qk_norm_all_heads=True)
    assert all_reduces(together) == (all_reduces(alone)[0], (8, 32))
    assert elementwise_kernels(together, 4) == elementwise_kernels(alone, 4) + 32
    assert elementwise_kernels(together) == elementwise_kernels(alone)
    read_again = 32 * (32 + 8) // 4 * 128 * 2
    assert elementwise_work(together, 1, tp=4).bytes == elementwise_work(alone, 1, tp=4).bytes + read_again
    # A weight for each head, in place of one for all.
    weights = [model.parameter_groups()["norms"] for model in (together, alone)]
    assert weights[0] - weights[1] == 32 * 128 * (32 + 8 - 2)
    assert load_model("MiniMax-M2.5").qk_norm_all_heads
    assert not load_model("Qwen3-8B").qk_norm_all_heads


def test_sampler_counts_logits() -> None:
    assert sampler_work(2, 128256).bytes == 2 * 128256 * 18
    assert sampler_work(2, 128256, act_bytes=4.0).bytes == 2 * 128256 * 20
    assert sampler_work(2, 128256).flops == 2 * 128256 * 5


def test_bytes_of_a_weight() -> None:
    deepseek = {layer.name: layer for layer in linear_layers(load_model("DeepSeek-V3-BF16"))}
    dense, expert = deepseek["o"], deepseek["experts_down"]
    fixed = LinearLayer("router", 8, 8, 1, quantised=False)
    assert [dense.stored(d)[1] for d in ("fp32", "bf16", "fp8", "mxfp4")] == [4, 2, 1, 2]
    assert dense.stored("int4")[1] == pytest.approx(0.5195, abs=1e-4)
    assert expert.stored("mxfp4")[1] == pytest.approx(0.53125)
    assert (dense.stored("nvfp4")[1], expert.stored("nvfp4")[1]) == (2, 0.5625)
    assert [fixed.stored(d)[1] for d in ("fp32", "bf16", "fp8", "int4")] == [4, 2, 2, 2]


def test_scopes_of_draft_heads() -> None:
    scopes = {
        version: {layer.name: layer.scope for layer in linear_layers(HeadConfig("", version).build(LLAMA, 1))}["fc"]
        for version in ("eagle", "eagle3")
    }
    assert scopes == {"eagle": "pass", "eagle3": "context"}
    markov = [
        layer
        for layer in linear_layers(HeadConfig("", "dspark").build(load_model("Qwen3-8B"), 1), 2)
        if layer.scope == "position"
    ]
    assert [(layer.k, layer.n) for layer in markov] == [(256, 151936 // 2)]
    head = HeadConfig("", "p_eagle").build(LLAMA, 1)
    p_eagle = {layer.name: (layer.k, layer.count) for layer in linear_layers(head)}
    assert p_eagle["qkv_first"] == (8192, 1)
    assert p_eagle["qkv"] == (4096, 3)
