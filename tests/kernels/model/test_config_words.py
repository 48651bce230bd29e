"""Configs in other words than the models were published with, and counts of parameters by transformers itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from draftcast.kernels.model.architectures import spec_from_config
from draftcast.kernels.model.catalog import load_model
from tests.paths import ROOT

Config = dict[str, Any]
COUNTED: dict[str, Config] = json.loads((ROOT / "tests" / "data" / "model_configs.json").read_text("utf-8"))


def config_of(name: str) -> Config:
    config: Config = json.loads((ROOT / "kernels" / "models" / f"{name}.json").read_text("utf-8"))
    return {key: value for key, value in config.items() if key not in ("aliases", "source")}


@pytest.mark.parametrize("name", COUNTED)
def test_parameters_are_those_of_transformers_own_model(name: str) -> None:
    """Counted by transformers 5.19 on a meta device; biases, norms and gates of one number a row may be missing."""
    counted = COUNTED[name]["parameters"]
    assert spec_from_config(COUNTED[name]["config"], name).num_parameters == pytest.approx(counted, rel=2.5e-4)


def deepseek_v4(config: Config) -> None:
    kinds = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
    config["layer_types"] = [kinds[ratio] for ratio in config.pop("compress_ratios")[: config["num_hidden_layers"]]]
    config["compress_rates"] = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
    config["mlp_layer_types"] = ["hash_moe"] * 3 + ["moe"] * (config["num_hidden_layers"] - 3)


def deepseek_v32(config: Config) -> None:
    config["layer_types"] = ["indexed_attention"] * 61


def kimi_linear(config: Config) -> None:
    linear = config.pop("linear_attn_config")
    config["linear_num_heads"], config["linear_head_dim"] = linear["num_heads"], linear["head_dim"]
    config["linear_conv_kernel_dim"] = linear["short_conv_kernel_size"]
    full = linear["full_attn_layers"]
    config["layer_types"] = ["full_attention" if layer + 1 in full else "linear_attention" for layer in range(27)]
    config["model_max_length"] = config.pop("max_position_embeddings")


def minimax_m3(config: Config) -> None:
    sparse = config.pop("sparse_attention_config")
    config["layer_types"] = [("full_attention", "minimax_m3_sparse")[bit] for bit in sparse["sparse_attention_freq"]]
    config |= {"index_n_heads": 4, "index_head_dim": 128, "index_block_size": 128, "index_topk_blocks": 16}
    config["index_local_blocks"] = 1


def nemotron_h(config: Config) -> None:
    kinds = {"M": "linear_attention", "E": "moe", "*": "full_attention"}
    config["layers_block_type"] = [kinds[letter] for letter in config.pop("hybrid_override_pattern")]
    del config["num_hidden_layers"]


def gemma_4(config: Config) -> None:
    own = {"head_dim": config.pop("global_head_dim"), "num_key_value_heads": config.pop("num_global_key_value_heads")}
    config["per_layer_config"] = {f"{layer:02}": own for layer in range(5, 60, 6)}


def step(config: Config) -> None:
    del config["attention_other_setting"]
    config["num_sliding_attention_heads"] = 96
    sliding = [layer for layer, kind in enumerate(config["layer_types"]) if kind == "sliding_attention"]
    config["per_layer_config"] = {str(layer): {"num_attention_heads": 96} for layer in sliding}


def llama_4(config: Config) -> None:
    config["moe_layers"] = list(range(1, 48, 2))
    config.pop("interleave_moe_layer_step", None)


@pytest.mark.parametrize(
    ("name", "rename"),
    [
        ("DeepSeek-V4-Flash", deepseek_v4),
        ("DeepSeek-V3.2", deepseek_v32),
        ("Kimi-Linear-48B-A3B", kimi_linear),
        ("MiniMax-M3", minimax_m3),
        ("Nemotron-3-Nano", nemotron_h),
        ("Gemma-4-31B", gemma_4),
        ("Step-3.5-Flash", step),
        ("Llama-4-Maverick", llama_4),
    ],
)
def test_other_words_for_the_same_model(name: str, rename: Callable[[Config], None]) -> None:
    config = config_of(name)
    rename(config)
    assert spec_from_config(config, name) == load_model(name)


def test_whether_tables_are_tied_is_said_outside() -> None:
    config = config_of("Qwen3-8B")
    model = spec_from_config(
        {"tie_word_embeddings": False, "text_config": {**config, "tie_word_embeddings": True}}, "x"
    )
    assert not model.tie_word_embeddings


def test_the_text_model_of_a_thinker() -> None:
    config = config_of("Qwen3-30B-A3B")
    model = spec_from_config({"thinker_config": {"text_config": config}, "talker_config": {}}, "Qwen3-30B-A3B")
    assert replace(model, architecture="") == replace(load_model("Qwen3-30B-A3B"), architecture="")


def test_bamba_numbers_its_attention_layers_and_leaves_a_head_size_out() -> None:
    base = COUNTED["Bamba-9B"]["config"]
    named = spec_from_config({**base, "mamba_d_head": "auto"}, "x")
    assert (named.num_attention_layers, named.num_linear_layers, named.linear_value_head_dim) == (3, 29, 64)
    kinds = ["attention" if layer in (9, 18, 27) else "mamba" for layer in range(32)]
    assert spec_from_config({**base, "attn_layer_indices": None, "layers_block_type": kinds}, "x") == named


def test_a_size_for_each_layer_all_alike_is_that_size() -> None:
    config = config_of("Qwen3-8B")
    assert spec_from_config({**config, "intermediate_size": [12288] * 36}, "Qwen3-8B") == load_model("Qwen3-8B")


def test_fields_that_no_code_reads_change_nothing() -> None:
    config = config_of("Qwen3-8B")
    assert spec_from_config({**config, "layer_switch": 4}, "Qwen3-8B") == load_model("Qwen3-8B")
