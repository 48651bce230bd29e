"""What pipeline, expert and decode-context parallelism do to memory and step times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from draftcast.calibration.profile.hardware import load_hardware
from draftcast.calibration.profile.load import load_profile
from draftcast.calibration.profile.roofline import Origin
from draftcast.kernels.model.catalog import load_model
from draftcast.kernels.operators.linear import fullest_rank_share
from draftcast.kernels.work.layers import linear_layers
from draftcast.sim.cost.engine_config import EngineConfig, stage_layers
from draftcast.sim.cost.memory import MemoryBudget, memory_budget
from draftcast.sim.cost.methods import get_method
from draftcast.sim.cost.operator_tables import OperatorTables
from draftcast.sim.cost.step_cost import compile_step_cost
from draftcast.sim.cost.step_time import (
    FEATURES,
    FULL_GRAPH,
    TIMES,
    StepCost,
    decode_features,
    decode_step_seconds,
    step_time,
)

H200 = load_hardware("h200")
PROFILE = load_profile(None, H200)
DEEPSEEK, LLAMA, QWEN = map(load_model, ("DeepSeek-V3", "Llama-3.1-70B", "Qwen3-30B-A3B"))
EIGHT = EngineConfig(is_moe=True, weight_dtype="fp8", max_model_len=4096, tensor_parallel_size=8)


def memory(config: EngineConfig, model: Any = DEEPSEEK) -> MemoryBudget:
    return memory_budget(config, model, None, H200)


def cost(config: EngineConfig, model: Any = DEEPSEEK) -> StepCost:
    return compile_step_cost(config, model, None, PROFILE)


@pytest.mark.parametrize(
    ("num_layers", "stages", "layers"),
    [
        (61, 2, (31, 30)),
        (61, 4, (15, 15, 16, 15)),
        (62, 4, (15, 16, 16, 15)),
        (63, 4, (16, 16, 16, 15)),
        (80, 1, (80,)),
    ],
)
def test_layers_are_spread_as_vllm_spreads_them(num_layers: int, stages: int, layers: tuple[int, ...]) -> None:
    assert stage_layers(num_layers, stages) == layers


def test_a_hop_between_stages_takes_the_link_s_latency_and_its_rows_time() -> None:
    config = EngineConfig(weight_dtype="fp8", max_model_len=4096)
    whole, halves = (cost(replace(config, pipeline_parallel_size=stages), LLAMA) for stages in (1, 2))
    assert (whole.params["hop_s"], whole.params["hop_row_s"]) == (0.0, 0.0)
    assert halves.params["hop_s"] == H200.link_latency_s
    assert halves.params["hop_row_s"] == 2 * LLAMA.hidden_size / H200.link_bandwidth_bytes_per_s  # in 16 bits
    assert halves.stages.tolist() == [0.5, 0.5]


def test_the_stage_with_the_fewest_blocks_counts() -> None:
    config = EngineConfig(weight_dtype="fp8", max_model_len=4096)
    whole, half = memory(replace(config), LLAMA), memory(replace(config, pipeline_parallel_size=2), LLAMA)
    ends = 2 * LLAMA.vocab_size * LLAMA.hidden_size  # the embedding or lm_head, in 16 bits
    assert half.weight_bytes == pytest.approx((whole.weight_bytes - 2 * ends) / 2 + ends)
    assert half.kv_bytes_per_token == whole.kv_bytes_per_token / 2
    # 16 layers of 61 stand in the third of four stages.
    uneven = memory(replace(EIGHT, tensor_parallel_size=2, pipeline_parallel_size=4))
    assert uneven.kv_bytes_per_token == pytest.approx(DEEPSEEK.kv_bytes_per_token("bf16", 2) * 16 / 61)


def test_a_block_of_ranks_that_share_out_a_context_holds_the_tokens_of_all() -> None:
    plain, shared = memory(EIGHT), memory(replace(EIGHT, decode_context_parallel_size=4))
    assert (shared.block_size, shared.kv_bytes_per_token) == (4 * plain.block_size, plain.kv_bytes_per_token / 4)
    assert shared.num_gpu_blocks == plain.num_gpu_blocks


def test_data_parallel_ranks_of_experts_hold_a_part_of_the_experts_and_all_the_rest() -> None:
    alone = replace(EIGHT, tensor_parallel_size=1, data_parallel_size=8)
    experts = DEEPSEEK.weight_bytes("fp8", 1, ("experts",))
    expected = DEEPSEEK.weight_bytes("fp8") - experts * 7 / 8
    assert memory(alone).weight_bytes == pytest.approx(expected)
    assert memory(replace(alone, enable_expert_parallel=True)).weight_bytes == pytest.approx(expected)
    dense = EngineConfig(max_model_len=4096, weight_dtype="fp8", data_parallel_size=8)
    assert memory(dense, LLAMA).weight_bytes == memory(replace(dense, data_parallel_size=1), LLAMA).weight_bytes


def test_contexts_shared_out_save_long_reads_and_cost_exchanges() -> None:
    plain, shared = cost(EIGHT), cost(replace(EIGHT, decode_context_parallel_size=8))
    seconds = [[decode_step_seconds(c, 64, 0, context) for c in (plain, shared)] for context in (100.0, 60_000.0)]
    assert seconds[0][0] < seconds[0][1]
    assert seconds[1][1] < 0.5 * seconds[1][0]
    drafting = replace(EIGHT, method=get_method("mtp"), num_speculative_tokens=1)
    one, spread = (cost(replace(drafting, decode_context_parallel_size=n)).draft_logits for n in (1, 8))
    assert (spread.sum(axis=1)[1:] > one.sum(axis=1)[1:]).all()
    # Rows of prompts attend to each other on their own rank; with heads of keys and values their queries go round.
    assert np.array_equal(plain.target, shared.target)
    wide = EngineConfig(max_model_len=4096, tensor_parallel_size=16)
    own, spread = (cost(replace(wide, decode_context_parallel_size=n), LLAMA).target.sum(axis=1) for n in (1, 2))
    assert (spread[1:] > own[1:]).all()


def test_experts_of_a_group_take_what_was_measured_or_else_what_their_matrices_take() -> None:
    rows = np.array([1, 64, 4096])
    measured, fitted = (
        OperatorTables(load_profile(None, load_hardware(name)), 8, "fp8") for name in ("h200", "mi300x")
    )
    assert measured.routed(DEEPSEEK, rows)[:, Origin.EXTRAPOLATED].tolist() == [0.0] * 3
    gate_up, down = (layer for layer in linear_layers(DEEPSEEK, 8) if layer.num_experts)
    both = gate_up.work(rows, "fp8").scale(gate_up.count).add(down.work(rows, "fp8").scale(down.count))
    assert fitted.routed(DEEPSEEK, rows).tolist() == fitted.fitted("moe", "fp8_block", both, rows, down.count).tolist()


def test_a_layer_of_experts_starts_once_whether_it_was_timed_or_not() -> None:
    """Of one row, whose experts' matrices are small: a format that nobody timed takes about as long as a timed one."""
    profile, one = load_profile(None, load_hardware("h100-sxm")), np.array([1])
    bf16, int8 = (OperatorTables(profile, 1, dtype).model_pass(QWEN, one).sum() for dtype in ("bf16", "int8"))
    assert 0.7 * bf16 < int8 < bf16


def test_experts_of_many_rows_shrink_less_than_by_the_number_of_ranks() -> None:
    ranks = [replace(EIGHT, tensor_parallel_size=1, data_parallel_size=n, enable_expert_parallel=True) for n in (4, 8)]
    four, eight = (cost(config).experts.sum(axis=1)[4096] for config in ranks)
    assert 0.5 * four < eight < four


def test_few_rows_leave_the_fullest_rank_more_than_its_part_of_the_experts() -> None:
    """Beside the launches; of 512 rows, which visit every expert, what the kernels showed with whole experts counts."""
    rows = np.array([1, 512])
    one_rank = OperatorTables(PROFILE, 1, "fp8").routed(DEEPSEEK, rows).sum(axis=1)
    eight = OperatorTables(PROFILE, 8, "fp8", replace(EIGHT, enable_expert_parallel=True))
    launches = DEEPSEEK.num_moe_layers * eight.profile.operator("moe", "fp8").t0_s
    few, many = (eight.routed(DEEPSEEK, rows).sum(axis=1) - launches) / (one_rank - launches)
    assert few == pytest.approx(float(fullest_rank_share(1, 256, 8, 8)))
    assert few > 0.3
    assert 0.125 < many < 0.17


def test_the_more_ranks_hold_whole_experts_the_more_few_rows_leave_the_fullest_one() -> None:
    rows = np.array([8])
    sizes = ({}, *({"enable_expert_parallel": True, "expert_parallel_size": size} for size in (1, 2, 4, None)))
    parts, one, two, four, eight = (
        OperatorTables(PROFILE, 8, "fp8", replace(EIGHT, **size)).routed(DEEPSEEK, rows).sum(axis=1) for size in sizes
    )
    assert parts == one
    assert two < four < eight


def test_rows_of_other_ranks_pass_through_the_experts_of_this_one() -> None:
    spread = cost(replace(EIGHT, tensor_parallel_size=1, data_parallel_size=8, enable_expert_parallel=True))
    features = np.zeros(1, FEATURES)[0]
    assert seconds_with(spread, features, 16.0) < seconds_with(spread, features, 128.0)


def seconds_with(spread: StepCost, features: Any, group_tokens: float) -> float:
    decode_features(spread, 16, 0, 1000.0, features)
    features["group_tokens"], features["graph_mode"] = group_tokens, FULL_GRAPH
    times = np.zeros(1, TIMES)[0]
    step_time(spread, features, times)
    return float(times["target_s"])


def test_each_degree_and_expert_parallelism_change_the_step() -> None:
    seconds = {
        decode_step_seconds(cost(config), 32, 0, 2000.0)
        for config in (
            EIGHT,
            replace(EIGHT, enable_expert_parallel=True),
            replace(EIGHT, decode_context_parallel_size=2),
            replace(EIGHT, tensor_parallel_size=4, data_parallel_size=2),
            replace(EIGHT, tensor_parallel_size=4, data_parallel_size=2, enable_expert_parallel=True),
            replace(EIGHT, tensor_parallel_size=4, pipeline_parallel_size=2),
        )
    }
    assert len(seconds) == 6
