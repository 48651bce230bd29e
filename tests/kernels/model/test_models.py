"""Model shapes against published totals, hand-written counts and bad configs."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from active_parameters import active_parameters

from draftcast.errors import ModelError
from draftcast.kernels.model import drafters
from draftcast.kernels.model.architectures import spec_from_config
from draftcast.kernels.model.catalog import canonical_name, is_bundled_model, load_model, model_names
from draftcast.kernels.model.config import ConfigReader
from draftcast.kernels.model.spec import QUANTISED, ModelSpec
from draftcast.kernels.operators.attention import attention_work
from draftcast.kernels.work import layers

# Parameter counts as listed by Hugging Face for the safetensors of the public checkpoints; KV bytes per token in bf16
# are 2 x layers x KV heads x head size x 2 bytes, DeepSeek-V3's is 61 x (512 + 64) x 2 (arXiv 2412.19437, section 2.1).
PUBLISHED = {
    "opt-125m": (125_239_296, 2 * 12 * 12 * 64 * 2),
    "opt-2.7b": (2_651_596_800, 2 * 32 * 32 * 80 * 2),
    "opt-6.7b": (6_658_473_984, 2 * 32 * 32 * 128 * 2),
    "Llama-2-7B": (6_738_415_616, 524_288),
    "Llama-2-70B": (68_976_648_192, 327_680),
    "Llama-3.1-8B": (8_030_261_248, 131_072),
    "Llama-3.1-70B": (70_553_706_496, 327_680),
    "Llama-3.1-405B": (405_853_388_800, 516_096),
    "Llama-3.2-1B": (1_235_814_400, 32_768),
    "Llama-3.2-3B": (3_212_749_824, 114_688),
    # Qwen2-0.5B's 494,032,768 (listed) less 151936 - 128256 rows of its tied embedding.
    "Qwama-0.5B": (494_032_768 - 23_680 * 896, 2 * 24 * 2 * 64 * 2),
    "Qwen3-0.6B": (596_049_920, 114_688),
    "Qwen3-8B": (8_190_735_360, 147_456),
    "Qwen3-32B": (32_762_123_264, 262_144),
    "Qwen3-30B-A3B": (30_532_122_624, 98_304),
    "Mixtral-8x7B": (46_702_792_704, 131_072),
    "gpt-oss-20b": (20_914_757_184, 49_152),
    "DeepSeek-V3": (671_026_419_200, 70_272),
    # No checkpoint: 2 x 32000 x 1024 + 12 x (1024 x 2048 + 1024^2 + 3 x 1024 x 4096 + 2 x 1024) + 1024
    "testbed-250M": (254_305_280, 2 * 12 * 8 * 64 * 2),
}
# Billions of parameters on the model card, of the language model without MTP modules; 2 % is their rounding.
CARDS = {
    "CodeLlama-13B": 13.0,
    "Command-R-08-2024": 32.3,
    "Command-R-v01": 35.0,
    "Command-R7B": 8.03,
    "DBRX": 132,
    "DeepSeek-Coder-1.3B": 1.35,
    "DeepSeek-Coder-6.7B": 6.74,
    "DeepSeek-Coder-33B": 33.3,
    "DeepSeek-LLM-7B": 6.91,
    "DeepSeek-V2": 236,
    "Devstral-Small-2-24B": 23.6,
    "ERNIE-4.5-0.3B": 0.36,
    "GLM-4-9B-Chat": 9.4,
    "Gemma-4-E2B": 4.63,  # of 5 with its encoders
    "Gemma-4-E4B": 7.46,  # of 8 with its encoders
    "Granite-4.0-H-Micro": 3.19,
    "Granite-4.0-H-Small": 32.2,
    "Granite-4.0-H-Tiny": 6.94,
    "Granite-4.0-Micro": 3.40,
    "InternLM2.5-7B": 7.738,
    "InternLM3-8B": 8.80,
    "Ministral-8B-2410": 8.02,
    "Mistral-7B-v0.2": 7.24,
    "Mistral-Large-3-675B": 673,  # of 675 with its encoder
    "Nemotron-3.5-Lightning": 31.6,
    "Nemotron-H-8B": 8.1,
    "Nemotron-H-47B": 46.8,
    "OLMo-3-32B": 32.2,
    "Phi-3.5-MoE": 41.9,
    "Qwen1.5-110B": 111,
    "Qwen2.5-Math-1.5B": 1.54,
    "Qwen2.5-Math-7B": 7.62,
    "Qwen2.5-Math-72B": 72.7,
    "Qwen3-32B-FP8-Static-PerTensor": 32.76,
    "Qwen3-VL-2B": 1.72,
    "Qwen3.5-0.8B": 0.75,
    "Qwen3.5-4B": 4.2,
    "SmolLM2-1.7B": 1.71,
    "TinyLlama-1.1B": 1.1,
    "Trinity-Large": 398,
    "Trinity-Mini": 26,
    "Yi-34B": 34.4,
    "Yi-6B": 6.06,
    "DeepSeek-V2-Lite": 15.7,
    "Devstral-2-123B": 123,
    "ERNIE-4.5-21B-A3B": 21.83,
    "ERNIE-4.5-300B-A47B": 300,
    "DeepSeek-V4-Flash": 284,
    "DeepSeek-V4-Pro": 1600,
    "Kimi-Linear-48B-A3B": 49,
    "Step-3.5-Flash": 196,
    "DeepSeek-V3.2": 671.9,  # DeepSeek-V3's 671 and 61 indexers
    "GLM-4.5": 355,
    "GLM-5": 744,
    "GLM-5.2": 744,
    "Gemma-4-26B-A4B": 25.2,
    "Gemma-4-31B": 30.7,
    "Kimi-K3": 2800,
    "Llama-4-Scout": 109,
    "Llama-4-Maverick": 400,
    "MiMo-V2-Flash": 309,
    "MiniMax-M3": 428,
    "Nemotron-3-Nano": 31.6,
    "Nemotron-3-Super": 120.6,
    "Nemotron-3-Ultra": 550,
    "Nemotron-H-56B": 56,
    "GLM-4.5-Air": 106,
    "GLM-4.6": 355,
    "GLM-4.7-Flash": 30,
    "Gemma-2-2B": 2.614,
    "Gemma-2-9B": 9.242,
    "Gemma-2-27B": 27.227,
    # Gemma 3 report (arXiv 2503.19786), table 1: embedding and the rest
    "Gemma-3-1B": 0.302 + 0.698,
    "Gemma-3-4B": 0.675 + 3.209,
    "Gemma-3-12B": 1.012 + 10.759,
    "Gemma-3-27B": 1.416 + 25.600,
    "Falcon-H1-7B": 7.59,
    "Falcon-H1-34B": 33.6,
    "Granite-3.3-8B": 8.17,
    "Kimi-K2": 1026,
    "Kimi-K2.5": 1026,
    "Llama-2-13B": 13.016,
    "MiMo-7B": 7.62,
    "MiniMax-M2.5": 230,
    "MiniMax-M2.7": 230,
    "Ministral-3-3B": 3.4,
    "Ministral-3-8B": 8.4,
    "Ministral-3-14B": 13.5,
    "Mistral-7B-v0.1": 7.242,
    "Mistral-7B-v0.3": 7.248,
    "Mistral-Small-24B": 23.6,
    "Mixtral-8x22B": 141,
    "Phi-4": 14.7,
    "QwQ-32B": 32.5,
    "Qwen2.5-0.5B": 0.49,
    "Qwen2.5-1.5B": 1.54,
    "Qwen2.5-3B": 3.09,
    "Qwen2.5-7B": 7.61,
    "Qwen2.5-14B": 14.7,
    "Qwen2.5-32B": 32.5,
    "Qwen2.5-72B": 72.7,
    "Qwen3-1.7B": 1.72,
    "Qwen3-4B": 4.0,
    "Qwen3-4B-Instruct-2507": 4.0,
    "Qwen3-14B": 14.8,
    "Qwen3-30B-A3B-Instruct-2507": 30.5,
    "Qwen3-235B-A22B": 235,
    "Qwen3-235B-A22B-Instruct-2507": 235,
    "Qwen3-Coder-30B-A3B-Instruct": 30.5,
    "Qwen3-Coder-480B-A35B-Instruct": 480,
    "Qwen3-Coder-Next": 80,
    "Qwen3-Next-80B-A3B": 80,
    "Qwen3.5-27B": 27,
    "Qwen3.5-35B-A3B": 35,
    "Qwen3.5-122B-A10B": 122,
    "Qwen3.5-397B-A17B": 397,
    "Qwen3.6-27B": 27,
    "Qwen3.6-35B-A3B": 35,
    "Qwen3.8-Flash-Next": 176,  # 125 and a table of n-grams of 51
    "gpt-oss-120b": 116.8,
    "CodeLlama-7B": 6.74,
    "CodeLlama-34B": 33.7,
    "DeepSeek-R1-0528-Qwen3-8B": 8.19,
    "DeepSeek-R1-Distill-Qwen-7B": 7.62,
    "DeepSeek-R1-Distill-Qwen-14B": 14.8,
    "DeepSeek-R1-Distill-Qwen-32B": 32.8,
    "EXAONE-4.0-32B": 32.0,
    "Falcon3-7B": 7.46,
    "Falcon3-10B": 10.3,
    "GLM-4-9B-0414": 9.4,
    "Hy3": 295,
    "Llama-3-8B": 8.03,
    "Llama-3-70B": 70.6,
    "Mistral-Large-2411": 123,
    "Mistral-Nemo-12B": 12.2,
    "Mistral-Small-3.2-24B": 23.6,
    "Mistral-Small-4-119B": 119,
    "Moonlight-16B-A3B": 16,
    "Nemotron-Nano-9B-v2": 8.89,
    "Nemotron-Nano-12B-v2": 12.31,
    "OLMo-2-7B": 7.3,
    "OLMo-2-13B": 13.7,
    "Phi-3-mini-4k": 3.82,
    "Phi-3.5-mini": 3.82,
    "Phi-4-mini": 3.84,
    "Qwen2.5-VL-7B": 7.61,  # of the language model, as of the next three
    "Qwen2.5-VL-72B": 72.7,
    "Qwen3-VL-8B": 8.2,
    "Qwen3-VL-32B": 32.8,
    "Qwen3.5-9B": 9,
    "Qwen3.8-2.4T-A95B": 2400,
    "SmolLM3-3B": 3.08,
    "Seed-OSS-36B": 36,
    "Solar-Open-100B": 102.6,
    "Vicuna-7B": 6.7,  # LLaMA, arXiv 2302.13971, table 2
    "Vicuna-13B": 13.0,
    "Vicuna-33B": 32.5,
    "opt-13b": 12.85,
    "opt-66b": 65.7,
    "AFM-4.5B": 4.62,
    "Apertus-70B": 70.6,
    "Apertus-8B": 8.053,
    "Aya-23-35B": 34.98,
    "Aya-Expanse-32B": 32.3,
    "Aya-Expanse-8B": 8.028,
    "Baichuan2-7B": 7.506,
    "ChatGLM2-6B": 6.244,
    "ChatGLM3-6B": 6.244,
    "CodeLlama-70B": 68.98,
    "Codestral-22B": 22.25,
    "Command-A": 111.1,
    "Command-R-Plus": 103.8,
    "DeepSeek-LLM-67B": 67.4,
    "DeepSeek-MoE-16B": 16.38,
    "DeepSeek-R1-Distill-Qwen-1.5B": 1.777,
    "dots.llm1": 142.8,
    "EXAONE-3.0-7.8B": 7.818,
    "EXAONE-3.5-2.4B": 2.405,
    "EXAONE-3.5-32B": 32,
    "EXAONE-3.5-7.8B": 7.818,
    "EXAONE-4.0-1.2B": 1.279,
    "Falcon-40B": 41.3,
    "Falcon-7B": 6.922,
    "Falcon-H1-0.5B": 0.5214,
    "Falcon-H1-1.5B": 1.555,
    "Falcon3-1B": 1.669,
    "Falcon3-3B": 3.228,
    "Gemma-3-270M": 0.2681,
    "GLM-4-32B-0414": 32.57,
    "GLM-4.1V-9B": 9.4,
    "GLM-4.5-Air-REAP-82B-A12B": 81.93,
    "GLM-4.5V": 106.8,
    "GLM-4.6V": 106.8,
    "GLM-4.6V-Flash": 9.4,
    "GLM-Z1-Rumination-32B-0414": 33.14,
    "GPT-J-6B": 6.051,
    "GPT-NeoX-20B": 20.55,
    "Granite-3.0-2B": 2.534,
    "Granite-3.0-8B": 8.171,
    "Granite-3.1-1B-A400M": 1.33,
    "Granite-3.1-2B": 2.534,
    "Granite-3.1-3B-A800M": 3.3,
    "Granite-3.1-8B": 8.171,
    "Granite-3.3-2B": 2.534,
    "Hunyuan-0.5B": 0.54,
    "Hunyuan-1.8B": 1.8,
    "Hunyuan-4B": 4.22,
    "Hunyuan-7B": 7.5,
    "Hunyuan-A13B": 80.4,
    "INTELLECT-3": 106.9,
    "Intern-S1": 235,
    "Intern-S1-mini": 8.2,
    "InternLM2-20B": 19.86,
    "InternVL3-14B": 14.8,
    "InternVL3-38B": 32.8,
    "InternVL3-78B": 72.7,
    "InternVL3-8B": 7.6,
    "K-EXAONE-236B-A23B": 236,
    "Kimi-Dev-72B": 72.7,
    "Kimi-VL-A3B": 15.96,
    "Ling-1T": 999.7,
    "Ling-flash-2.0": 102.9,
    "Ling-lite-1.5": 16.8,
    "Ling-mini-2.0": 16.26,
    "Llama-160M": 0.1624,
    "LLaMA-2-7B-32K": 6.738,
    "Llama-3.1-Minitron-4B": 4.513,
    "Llama-68M": 0.068,
    "Magistral-Small": 23.57,
    "MiMo-V2.5": 309,
    "MiMo-VL-7B": 7.62,
    "MiniCPM-V-4_5": 8.2,
    "MiniCPM3-4B": 4.07,
    "MiniCPM4-8B": 8.19,
    "MiniCPM4.1-8B": 8.19,
    "Minitron-8B": 8.27,
    "Mistral-NeMo-Minitron-8B": 8.41,
    "Nemotron-Mini-4B": 4.19,
    "OLMo-2-1B": 1.485,
    "OLMo-2-32B": 32.23,
    "OLMo-3-7B": 7.298,
    "OLMo-7B": 6.888,
    "OLMoE-1B-7B": 6.919,
    "OpenLLaMA-3B": 3.426,
    "opt-1.3b": 1.316,
    "opt-30b": 29.97,
    "Phi-1.5": 1.418,
    "Phi-2": 2.78,
    "Phi-3-medium-128k": 13.96,
    "Phi-3-medium-4k": 13.96,
    "Phi-mini-MoE": 7.6,
    "Phi-tiny-MoE": 3.8,
    "Pythia-1.4B": 1.415,
    "Pythia-12B": 11.85,
    "Pythia-160M": 0.1623,
    "Pythia-1B": 1.012,
    "Pythia-2.8B": 2.775,
    "Pythia-410M": 0.4053,
    "Pythia-6.9B": 6.857,
    "Pythia-70M": 0.0704,
    "Qwen1.5-14B": 14.17,
    "Qwen1.5-32B": 32.51,
    "Qwen1.5-72B": 72.29,
    "Qwen1.5-7B": 7.72,
    "Qwen1.5-MoE-A2.7B": 14.32,
    "Qwen2-57B-A14B": 57.4,
    "Qwen2.5-VL-32B": 32.8,
    "Qwen2.5-VL-3B": 3.09,
    "Qwen3-Coder-REAP-246B-A35B": 246,
    "Qwen3-Coder-REAP-25B-A3B": 24.9,
    "Qwen3-Coder-REAP-363B-A35B": 363,
    "Qwen3-Omni-30B-A3B": 30.5,
    "Qwen3.5-2B": 1.882,
    "Seed-Coder-8B": 8.25,
    "SmolLM-1.7B": 1.711,
    "SmolLM-135M": 0.1345,
    "SmolLM-360M": 0.3618,
    "SmolLM2-135M": 0.1345,
    "SmolLM2-360M": 0.3618,
    "SOLAR-10.7B": 10.73,
    "Stable-Code-3B": 2.795,
    "StableLM-2-1.6B": 1.645,
    "StableLM-2-12B": 12.14,
    "StableLM-3B-4E1T": 2.795,
    "StarCoder2-15B": 15.96,
    "StarCoder2-3B": 3.03,
    "StarCoder2-7B": 7.174,
    "Vicuna-13B-16k": 13.02,
    "Vicuna-7B-16k": 6.738,
    "Voxtral-Mini-3B": 4.013,
    "XVERSE-13B": 13.7,
    "XVERSE-65B": 66,
    "XVERSE-7B": 7.3,
    "Yi-9B": 8.829,
}


def config_of(name: str) -> dict[str, Any]:
    """The bundled facts of a model, as a fresh dictionary."""
    folder = Path(layers.__file__).parents[1] / "models"
    config: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return config


def test_the_catalogue_is_the_published_list() -> None:
    assert model_names() == sorted([*PUBLISHED, *CARDS])


@pytest.mark.parametrize("name", CARDS)
def test_parameters_match_the_model_card(name: str) -> None:
    model = load_model(name)
    assert model.num_parameters / 1e9 == pytest.approx(CARDS[name], rel=0.02)
    assert config_of(name)["source"].startswith("https://huggingface.co/")


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_and_kv_match_the_published_totals(name: str) -> None:
    model = load_model(name)
    parameters, kv_bytes = PUBLISHED[name]
    assert model.num_parameters == parameters
    assert model.weight_bytes("bf16") == model.weight_bytes("fp16") == 2 * parameters
    assert model.weight_bytes("fp32") == 4 * parameters
    assert model.kv_bytes_per_token("bf16") == kv_bytes
    assert model.kv_bytes_per_token("fp8") == kv_bytes / 2


def test_llama_count_by_hand() -> None:
    attention = 4096 * 4096 * 2 + 2 * 4096 * 1024
    mlp = 3 * 4096 * 14336
    assert load_model("Llama-3.1-8B").num_parameters == 2 * 128256 * 4096 + 32 * (attention + mlp + 2 * 4096) + 4096


def test_streams_and_ngrams_by_hand() -> None:
    """Qwen3.8-Flash-Next: low-rank matrices mix four streams before each half layer and once at the end; layer 2 adds
    embeddings of n-grams, of which 16 hashes have 20 million rows of 160 each. Its MTP layer has no such table."""
    model, wide = load_model("Qwen3.8-Flash-Next"), 4 * 2560
    found = {layer.name: layer for layer in layers.linear_layers(model, tp=2)}
    assert (found["streams_in"].k, found["streams_in"].n, found["streams_in"].count) == (wide, 320 + 4, 2 * 48 + 1)
    assert (found["streams_out"].k, found["streams_out"].n, found["streams_out"].count) == (320, wide, 2 * 48 + 1)
    assert (found["ngram"].k, found["ngram"].n, found["ngram"].count) == (2560, wide + 2560, 1)
    assert model.parameter_groups(2)["ngrams"] == 16 * 20_000_000 * 160 / 2
    sizes = {dtype: model.weight_bytes(dtype, 1, ("ngrams",)) / 51.2e9 for dtype in ("bf16", "fp8", "nvfp4")}
    assert sizes == {"bf16": 2.0, "fp8": 1.0, "nvfp4": 1.0}
    head = drafters.mtp_head(model)
    assert head.num_parameters < 4e9
    assert "ngram" not in {layer.name for layer in layers.linear_layers(head)}
    config = config_of("Qwen3.8-Flash-Next")
    assert load_model("Qwen3.8-Flash-Next") == spec_from_config(config, "Qwen3.8-Flash-Next")
    with pytest.raises(ModelError, match=r"ple_embed_dim = 2561: a multiple of the 16 hashes is needed"):
        spec_from_config({**config, "ple_embed_dim": 2561}, "other")
    with pytest.raises(ModelError, match=r"residual_rank = 320: residual_streams > 0 is needed with it"):
        replace(model, residual_streams=0)
    one = {layer.name: layer for layer in layers.linear_layers(replace(model, residual_streams=0, residual_rank=0))}
    assert (one["ngram"].k, one["ngram"].n) == (2560, 2560 + 2560)


@pytest.mark.parametrize("kind", ["full_attention", "qwen_sparse_attention"])
def test_sparse_layers_beside_linear_ones(kind: str) -> None:
    config = config_of("Qwen3.8-Flash-Next")
    kinds = [each.replace("full_attention", kind) for each in config["layer_types"]]
    model = spec_from_config({**config, "layer_types": kinds}, "own")
    assert (model.num_linear_layers, model.num_sliding_layers, model.num_indexed_layers) == (36, 12, 12)
    assert (model.sliding_window, model.window_kind, model.index_n_heads, model.index_head_dim) == (
        2048,
        "top_k",
        4,
        128,
    )


def test_opt_count_by_hand() -> None:
    layer = 4 * (768 * 768 + 768) + (768 * 3072 + 3072) + (3072 * 768 + 768) + 2 * 2 * 768
    assert load_model("opt-125m").num_parameters == 50272 * 768 + 2050 * 768 + 12 * layer + 2 * 768


def test_deepseek_count_by_hand() -> None:
    h, heads = 7168, 128
    attention = h * 1536 + 1536 * heads * 192 + h * 576 + 512 * heads * 256 + heads * 128 * h
    expert = 3 * h * 2048
    layers = 61 * (attention + 1536 + 512 + 2 * h) + 3 * 3 * h * 18432 + 58 * (257 * expert + 256 * h + 256)
    assert load_model("DeepSeek-V3").num_parameters == layers + 2 * 129280 * h + h


@pytest.mark.parametrize(
    ("name", "billions", "tolerance"),
    [
        ("Mixtral-8x7B", 12.9, 0.05),
        ("Qwen3-30B-A3B", 3.3, 0.06),
        ("DeepSeek-V3", 37.6, 0.1),
        ("Qwen3-235B-A22B", 22, 0.3),
        ("Kimi-K2", 32, 1),
        ("GLM-4.5", 32, 2),
        ("ERNIE-4.5-300B-A47B", 47, 1),
        ("Qwen3.8-2.4T-A95B", 95, 1),
        ("Hy3", 21, 1),
    ],
)
def test_active_parameters_match_the_model_cards(name: str, billions: float, tolerance: float) -> None:
    assert active_parameters(load_model(name)) / 1e9 == pytest.approx(billions, abs=tolerance)


def test_gpt_oss_active_parameters_without_the_embedding() -> None:
    # the model card's 3.61B leaves the input embedding out
    model = load_model("gpt-oss-20b")
    assert active_parameters(model) - model.vocab_size * model.hidden_size == 3_608_307_264


def test_dense_models_are_all_active() -> None:
    model = load_model("Llama-3.1-8B")
    assert active_parameters(model) == model.num_parameters


@pytest.mark.parametrize(
    ("name", "dtype", "gigabytes", "tolerance"),
    [
        # sizes of the published checkpoints: AWQ-INT4 and FP8 of Llama-3.1-8B, openai/gpt-oss-20b
        ("Llama-3.1-8B", "int4", 5.73, 0.02),
        ("Llama-3.1-8B", "fp8", 9.08, 0.02),
        ("gpt-oss-20b", "mxfp4", 13.761, 0.003),
        # By hand: 8.03 B parameters, 2 x 525 M of them in the tables; 0.5625, 1.03125 and 1 byte each of the rest.
        ("Llama-3.1-8B", "nvfp4", 6.98 * 0.5625 + 2.10, 0.01),
        ("Llama-3.1-8B", "mxfp8", 6.98 * 1.03125 + 2.10, 0.01),
        ("Llama-3.1-8B", "int8", 9.08, 0.02),
        # 653.9 B in experts, shared experts and dense layers of 671; attention stays in 16 bits.
        ("DeepSeek-V3", "nvfp4", 657.65 * 0.5625 + (671.03 - 657.65) * 2, 0.05),
    ],
)
def test_quantised_weight_bytes(name: str, dtype: str, gigabytes: float, tolerance: float) -> None:
    assert load_model(name).weight_bytes(dtype) / 1e9 == pytest.approx(gigabytes, abs=tolerance)


@pytest.mark.parametrize(
    ("name", "model", "dtype"),
    [
        # in the format of their own config.json
        ("deepseek-ai/DeepSeek-R1", "DeepSeek-V3", "fp8"),
        ("openai/gpt-oss-120b", "gpt-oss-120b", "mxfp4"),
        ("MiniMaxAI/MiniMax-M2.5", "MiniMax-M2.5", "fp8"),
        ("Qwen/Qwen3-8B", "Qwen3-8B", ""),
        # in the one that the repository's name ends in, whoever's it is
        ("Qwen/Qwen3-8B-FP8", "Qwen3-8B", "fp8"),
        ("Qwen3-32B-AWQ", "Qwen3-32B", "int4"),
        ("Qwen/Qwen3-30B-A3B-GPTQ-Int4", "Qwen3-30B-A3B", "int4"),
        ("RedHatAI/Llama-3.1-8B-Instruct-quantized.w8a8", "Llama-3.1-8B", "int8"),
        ("RedHatAI/Llama-3.1-8B-Instruct-FP8-dynamic", "Llama-3.1-8B", "fp8"),
        ("nvidia/DeepSeek-V3.2-NVFP4", "DeepSeek-V3.2", "nvfp4"),
        ("anyone/gpt-oss-20b-BF16", "gpt-oss-20b", ""),
        ("nvidia/DeepSeek-R1-0528-NVFP4-v2", "DeepSeek-V3", "nvfp4"),
        ("amd/DeepSeek-R1-MXFP4-Preview", "DeepSeek-V3", "mxfp4"),
        ("cyankiwi/Qwen3-Next-80B-A3B-Instruct-AWQ-4bit", "Qwen3-Next-80B-A3B", "int4"),
    ],
)
def test_a_checkpoint_is_in_the_format_that_its_config_or_its_name_says(name: str, model: str, dtype: str) -> None:
    spec = load_model(name)
    assert (spec.name, spec.quantization, canonical_name(name)) == (model, dtype, model)
    # the same as the scenario's own word for the format
    wide = load_model(f"{model}-BF16")
    assert spec.weight_bytes(dtype or "bf16") == pytest.approx(wide.weight_bytes(dtype or "bf16"), rel=0.002)
    if dtype:
        assert spec.weight_bytes(dtype) < 0.7 * wide.weight_bytes("bf16")


def test_a_name_that_only_ends_in_a_format_is_not_a_model() -> None:
    assert not is_bundled_model("anyone/unheard-of-FP8")
    assert not is_bundled_model("Qwen3-8B-FP7")
    assert not is_bundled_model("-FP8")


@pytest.mark.parametrize("name", ["/models/Qwen3-8B-FP8", "./Qwen3-8B-FP8", "~/Qwen3-8B-FP8", "a/b/Qwen3-8B-FP8"])
def test_a_path_is_no_repository(name: str) -> None:
    assert not is_bundled_model(name)
    with pytest.raises(ModelError, match="no such file"):
        load_model(name)


@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", "QuantTrio/Qwen3-30B-A3B-GPTQ_Int8"])
def test_gptq_in_8_bits_is_refused_by_name_as_by_its_config(name: str) -> None:
    assert not is_bundled_model(name)
    with pytest.raises(ModelError, match=r"^model = .*: only 4 bits are known$"):
        load_model(name)


def test_a_folder_without_a_config_is_told_from_an_unknown_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"a folder without a config\.json"):
        load_model(tmp_path)


def test_a_folder_named_like_a_repository_says_itself_what_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "mine" / "Qwen3-8B-FP8"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config_of("Qwen3-0.6B")), encoding="utf-8")
    assert load_model("mine/Qwen3-8B-FP8").num_parameters == load_model("Qwen3-0.6B").num_parameters


def test_quantisation_leaves_embedding_head_and_norms_in_16_bits() -> None:
    model = load_model("Llama-3.1-8B")
    wide = 2 * 128256 * 4096 + 65 * 4096
    assert model.weight_bytes("fp8") == model.num_parameters + wide


def test_tensor_parallel_shards_add_up() -> None:
    model = load_model("Llama-3.1-8B")
    replicated = model.parameter_groups()["norms"]
    assert 4 * sum(model.parameter_groups(4).values()) == model.num_parameters + 3 * replicated
    assert model.kv_bytes_per_token("bf16", 4) == 131_072 / 4


def test_kv_heads_are_replicated_beyond_their_number() -> None:
    model = load_model("Llama-3.1-70B")
    assert model.kv_heads_per_rank(8) == model.kv_heads_per_rank(16) == 1
    assert model.kv_bytes_per_token("bf16", 16) == model.kv_bytes_per_token("bf16", 8)
    assert load_model("DeepSeek-V3").kv_bytes_per_token("bf16", 8) == 70_272  # the latent stands on every rank


@pytest.mark.parametrize("tp", [0, 3, 64])
def test_tensor_parallel_must_divide_the_heads(tp: int) -> None:
    with pytest.raises(ModelError, match="tensor_parallel_size"):
        load_model("Llama-3.1-8B").weight_bytes("bf16", tp)


@pytest.mark.parametrize("name", [*PUBLISHED, *CARDS])
def test_matrices_of_the_operators_are_the_parameters(name: str) -> None:
    model = load_model(name)
    tp = 1 if model.num_attention_heads % 2 else 2
    groups = model.parameter_groups(tp)
    matrices = sum(
        layer.k * layer.n * layer.count * max(1, layer.num_experts) for layer in layers.linear_layers(model, tp)
    )
    assert matrices == sum(groups[group] for group in (*QUANTISED, "router"))


# Names, files, errors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B"),
        ("META-LLAMA/llama-3.1-8b-instruct", "Llama-3.1-8B"),
        ("facebook/opt-125m", "opt-125m"),
        ("Qwen/Qwen3-30B-A3B", "Qwen3-30B-A3B"),
        ("deepseek-ai/DeepSeek-V3", "DeepSeek-V3"),
        ("openai/gpt-oss-20b", "gpt-oss-20b"),
        ("DeepSeek-R1-0528", "DeepSeek-V3"),
        ("Qwen3-235B-A22B-Thinking-2507", "Qwen3-235B-A22B-Instruct-2507"),
        ("zai-org/GLM-4.7", "GLM-4.6"),
        ("Kimi-K2-Thinking", "Kimi-K2.5"),
        ("gemma-3-27b-it", "Gemma-3-27B"),
        ("Qwen/Qwen3-VL-30B-A3B-Instruct", "Qwen3-30B-A3B-Instruct-2507"),
        ("lmsys/vicuna-7b-v1.5", "Llama-2-7B"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "Llama-3-8B"),
        ("unsloth/Llama-3.2-1B-Instruct", "Llama-3.2-1B"),
    ],
)
def test_aliases(alias: str, name: str) -> None:
    assert load_model(alias) == load_model(name)
    assert canonical_name(alias) == name


def test_no_two_bundled_models_have_a_name_in_common() -> None:
    owners: dict[str, str] = {}
    for file in (Path(drafters.__file__).parents[1] / "models").glob("*.json"):
        for name in (file.stem, *json.loads(file.read_text())["aliases"]):
            for key in (name.lower(), name.lower().rpartition("/")[2]):
                assert owners.setdefault(key, file.stem) == file.stem


def test_a_path_to_a_config_or_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config_of("Qwen3-0.6B")), encoding="utf-8")
    for path in (file, tmp_path, str(tmp_path)):
        assert load_model(path).num_parameters == 596_049_920


def test_an_unknown_model_names_the_nearest() -> None:
    with pytest.raises(ModelError, match=r"Qwen3-9B'.*mean Qwen3\.5-9B or .*Qwen3-8B.*draftcast models.*config\.json"):
        load_model("Qwen/Qwen3-9B")
    with pytest.raises(ModelError, match=r"unheard-of'.*file; draftcast models"):
        load_model("unheard-of")


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe\x00", b"[]", b"3"])
def test_broken_files_are_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(ModelError, match=r"config\.json"):
        load_model(file)


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("linear_use_gate", True, "linear attention is not known"),
        ("kda_num_heads", 32, "linear attention is not known"),
        ("linear_attn_config", {"full_attn_layers": list(range(99))}, "num_heads: missing"),
        ("attn_type_list", [1, 0] * 16, "linear attention is not known"),
        ("index_rank", 2048, "this sparse attention is not known"),
        ("sparse_attention_config", {"sparse_attention_freq": [1]}, "32 entries are needed"),
        ("compress_size", 4, "this sparse attention is not known"),
        ("attention_other_setting", [96], "an object is needed"),
        ("moe_layers_enum", "3 to 9", "layer numbers are needed, as a list or between commas"),
        ("moe_layers", [[3]], "layer numbers are needed"),
        ("per_layer_config", {"3": {"head_dim": 256}}, "heads of all sliding or of all full layers"),
        ("conv_L_cache", 3, "layers of a short convolution are not known"),
        ("mamba_num_heads", 64, "what it says of the layers is not known"),
        ("mamba_dt_rank", 64, "these state space layers are not known"),
        ("hybrid_override_pattern", "M-MA", "letters of M (mamba)"),
        ("block_configs", [{}], "layers of unlike sizes are not known"),
        ("swa_num_attention_heads", 96, "what it says of the layers is not known"),
        ("use_cla", True, "layers that share K and V are not known"),
        ("is_encoder_decoder", True, "an encoder is not known"),
        ("draft_vocab_size", 32000, "a draft head is not known"),
        ("o_lora_rank", 1024, "what it says of the layers is not known"),
        ("laurel_rank", 64, "what it says of the layers is not known"),
        ("extras", [0, 1] * 16, "what it says of the layers is not known"),
        ("layer_types", ["conv"] * 32, "allowed: full_attention, attention,"),
        ("layer_types", ["full_attention"] * 31, "32 entries are needed"),
        ("hidden_act", "gelu", "gated or not?"),
        ("sliding_window_pattern", "LLLG", "an integer >= 0 is needed"),
        ("text_config", 5, "a JSON object is needed"),
        ("architectures", ["BertForMaskedLM"], "does not generate text"),
        ("per_layer_config", 5, "= 5: heads of all sliding or of all full layers"),
        ("per_layer_config", True, "= True: heads of all sliding or of all full layers"),
        ("gated_mlp", "x", "= 'x': true or false is needed"),
    ],
)
def test_other_kinds_of_layers_are_refused_by_field(key: str, value: object, kind: str) -> None:
    with pytest.raises(ModelError) as error:
        spec_from_config({**config_of("Llama-3.1-8B"), key: value}, "conf.json")
    text = str(error.value)
    assert text.startswith(f"conf.json: {key}")
    assert kind in text
    assert "\n" not in text
    assert len(text) < 200


@pytest.mark.parametrize("value", [None, False, 0, [], ""])
def test_a_field_that_says_nothing_is_no_other_layer(value: object) -> None:
    base = config_of("Llama-3.1-8B")
    model = spec_from_config(
        {**base, "compress_ratios": value, "swa_head_dim": value, "eos_token_id": [1, 2]}, "Llama-3.1-8B"
    )
    assert model == load_model("Llama-3.1-8B")


def test_the_text_model_of_a_nested_config() -> None:
    flat = config_of("Qwen3-8B")
    outer = {"architectures": flat.pop("architectures"), "tie_word_embeddings": flat.pop("tie_word_embeddings")}
    nested = {**outer, "model_type": "qwen3_vl", "vision_config": {"hidden_size": 1152}, "text_config": flat}
    assert spec_from_config(nested, "Qwen3-8B") == load_model("Qwen3-8B")
    with pytest.raises(ModelError, match=r"^conf: text_config: hidden_size: missing"):
        spec_from_config({"text_config": {"num_attention_heads": 8}}, "conf")


def test_a_model_is_read_whatever_it_is_called() -> None:
    named = {"architectures": ["SomethingNewForCausalLM"], "model_type": "something_new"}
    model = spec_from_config({**config_of("Llama-3.1-8B"), **named}, "Llama-3.1-8B")
    assert replace(model, architecture="LlamaForCausalLM") == load_model("Llama-3.1-8B")
    minimal = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 100,
               "max_position_embeddings": 128, "intermediate_size": 256}  # fmt: skip
    assert spec_from_config(minimal, "x").num_parameters == 2 * 6400 + 2 * (4 * 64 * 64 + 3 * 64 * 256 + 128) + 64


@pytest.mark.parametrize(
    ("fields", "dense"),
    [
        ({}, 0),
        ({"first_k_dense_replace": 3}, 3),
        ({"moe_layer_freq": 2}, 24),  # layers 0, 2, 4, ... are routed
        ({"moe_layer_freq": [0] * 5 + [1] * 43}, 5),
        ({"first_k_dense_replace": 3, "moe_layer_freq": 2}, 26),
        ({"decoder_sparse_step": 2}, 24),
        ({"decoder_sparse_step": 4, "mlp_only_layers": [3, 4]}, 37),
        ({"interleave_moe_layer_step": 2}, 24),
        ({"mlp_layer_types": ["dense"] + ["sparse"] * 47}, 1),
        ({"moe_layer_start_index": 1, "moe_layer_end_index": 46}, 2),
        ({"moe_layer_start_index": 1, "moe_layer_end_index": -1}, 1),
    ],
)
def test_which_layers_are_routed(fields: dict[str, Any], dense: int) -> None:
    model = spec_from_config({**config_of("Qwen3-30B-A3B"), **fields}, "x")
    assert (model.num_dense_layers, model.num_moe_layers) == (dense, 48 - dense)
    assert model.intermediate_size == (6144 if dense else 0)


@pytest.mark.parametrize(
    ("fields", "shared"),
    [
        ({"n_shared_experts": 2}, 2),
        ({"shared_expert_intermediate_size": 768}, 1),
        ({"shared_expert_intermediate_size": 0}, 0),
        ({"n_shared_experts": 1, "moe_shared_expert_intermediate_size": 1536}, 2),
    ],
)
def test_shared_experts_by_number_or_width(fields: dict[str, Any], shared: int) -> None:
    assert spec_from_config({**config_of("Qwen3-30B-A3B"), **fields}, "x").num_shared_experts == shared


def test_activations_say_whether_the_mlp_is_gated() -> None:
    base = config_of("Llama-3.1-8B")
    assert not spec_from_config({**base, "hidden_act": "relu2"}, "x").gated_mlp
    assert spec_from_config({**base, "hidden_act": "silu"}, "x").gated_mlp


def test_sliding_layers_by_pattern_type_or_window() -> None:
    gemma = load_model("Gemma-3-27B")  # every sixth of 62 layers is full
    assert (gemma.sliding_window, gemma.num_sliding_layers, gemma.norms_per_layer) == (1024, 52, 4)
    config = config_of("Gemma-3-27B")
    types = ["full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(62)]
    assert spec_from_config({**config, "layer_types": types}, "Gemma-3-27B") == gemma
    wide = spec_from_config({**config, "sliding_window": 131072}, "x")  # no longer than the context
    assert (wide.sliding_window, wide.num_sliding_layers) == (0, 0)
    llama = {**config_of("Llama-3.1-8B"), "layer_types": ["sliding_attention"] * 32}
    with pytest.raises(ModelError, match="sliding_window: missing"):
        spec_from_config(llama, "x")


@pytest.mark.parametrize(
    ("model", "key", "value"),
    [
        ("Llama-3.1-8B", "hidden_size", None),
        ("Llama-3.1-8B", "hidden_size", "4096"),
        ("Llama-3.1-8B", "hidden_size", True),
        ("Llama-3.1-8B", "num_hidden_layers", 0),
        ("Llama-3.1-8B", "vocab_size", -1),
        ("Llama-3.1-8B", "num_key_value_heads", 5),
        ("Llama-3.1-8B", "tie_word_embeddings", 1),
        ("Llama-3.1-8B", "intermediate_size", 1.5),
        ("opt-125m", "ffn_dim", None),
        ("opt-125m", "hidden_size", 770),
        ("Qwen3-30B-A3B", "num_experts_per_tok", 129),
        ("Qwen3-30B-A3B", "mlp_only_layers", "none"),
        ("DeepSeek-V3", "kv_lora_rank", None),
        ("DeepSeek-V3", "moe_layer_freq", 0),
        ("DeepSeek-V3", "moe_layer_freq", [1, 0]),
        ("DeepSeek-V3", "qk_rope_head_dim", None),
        ("DeepSeek-V3", "first_k_dense_replace", 62),
        ("Qwen3-30B-A3B", "num_experts_per_tok", None),
        ("Qwen3-30B-A3B", "shared_expert_intermediate_size", 1000),
        ("Qwen3-30B-A3B", "mlp_layer_types", ["dense"]),
        ("ERNIE-4.5-21B-A3B", "moe_num_experts", [64, 64]),
        ("gpt-oss-20b", "layer_types", ["full_attention", 3]),
        ("Qwen3-30B-A3B", "mlp_only_layers", [48]),
        ("Qwen3-30B-A3B", "mlp_only_layers", [-1]),
        ("Qwen3-30B-A3B", "mlp_only_layers", [True]),
        ("Qwen3-30B-A3B", "mlp_only_layers", [3, 3]),
        ("Qwen3-30B-A3B", "moe_layer_freq", ["a"] * 48),
        ("Qwen3-30B-A3B", "moe_layer_freq", [True] * 48),
        ("MiMo-V2-Flash", "hybrid_layer_pattern", "01" * 24),
        ("MiMo-V2-Flash", "hybrid_layer_pattern", 5),
        ("MiMo-V2-Flash", "hybrid_layer_pattern", [2] * 48),
        ("DeepSeek-V3.2", "index_topk_pattern", 5),
        ("DeepSeek-V3.2", "index_topk_pattern", "FX" * 30 + "F"),
        ("DeepSeek-V3.2", "index_topk_pattern", "FS"),
    ],
)
def test_bad_fields_are_named(model: str, key: str, value: object) -> None:
    with pytest.raises(ModelError, match=r"^conf: ") as error:
        spec_from_config({**config_of(model), key: value}, "conf")
    assert {"ffn_dim": "intermediate_size"}.get(key, key) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("layers", [5, [3] * 20, [94], [0], [True]])
def test_numbers_of_kda_layers_are_checked(layers: object) -> None:
    config = config_of("Kimi-K3")
    config["linear_attn_config"] = {**config["linear_attn_config"], "kda_layers": layers}
    with pytest.raises(ModelError, match=r"^conf: linear_attn_config: kda_layers = .*from 1 to 93, each once"):
        spec_from_config(config, "conf")


def test_a_model_without_attention_is_refused() -> None:
    for change in ({"layer_types": ["linear_attention"] * 64}, {"full_attention_interval": 65}):
        config = {**config_of("Qwen3.5-27B"), "layer_types": None, **change}
        with pytest.raises(ModelError, match=r"^conf: num_linear_layers = 64: a model without attention"):
            spec_from_config(config, "conf")


def test_what_is_no_list_has_no_entry_for_each_layer() -> None:
    with pytest.raises(ModelError, match=r"^conf: a_list = 5: a list of 4 entries is needed \(num_hidden_layers\)"):
        ConfigReader({"a_list": 5}, "conf").per_layer("a_list", 5, 4)


def test_head_dim_is_derived_when_absent() -> None:
    config = config_of("Llama-3.1-8B")
    del config["head_dim"]
    assert spec_from_config(config, "Llama-3.1-8B") == load_model("Llama-3.1-8B")
    with pytest.raises(ModelError, match="hidden_size"):
        spec_from_config({**config, "hidden_size": 4100}, "x")


def test_mistral_and_qwen2_quirks() -> None:
    llama = {key: value for key, value in config_of("Llama-3.1-8B").items() if key != "attention_bias"}
    base = {**llama, "model_type": "mistral", "sliding_window": 4096}
    mistral = spec_from_config(base, "mistral")
    assert (mistral.sliding_window, mistral.num_sliding_layers) == (4096, 32)
    qwen = {**llama, "model_type": "qwen2", "use_sliding_window": False}
    qwen2 = spec_from_config({**qwen, "sliding_window": 4096}, "qwen2")
    assert qwen2.num_sliding_layers == 0
    assert qwen2.num_parameters == 8_030_261_248 + 32 * (4096 + 2 * 1024)  # biases on q, k, v alone
    partly = {**qwen, "use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 20}
    assert spec_from_config(partly, "qwen2").num_sliding_layers == 12


def test_gpt_oss_alternates() -> None:
    model = load_model("gpt-oss-20b")
    assert (model.sliding_window, model.num_sliding_layers) == (128, 12)
    config = config_of("gpt-oss-20b")
    del config["layer_types"]
    assert spec_from_config(config, "gpt-oss-20b") == model


def test_opt_350m_projects_and_has_no_final_norm() -> None:
    config = {
        **config_of("opt-125m"),
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "ffn_dim": 4096,
        "word_embed_proj_dim": 512,
        "do_layer_norm_before": False,
    }
    assert spec_from_config(config, "opt-350m").num_parameters == 331_196_416


def _fingerprint(model: ModelSpec) -> object:
    matrices = (layers.linear_layers(model, 2), layers.lm_head(model, 2))
    attention = attention_work(model, 4.0, 100.0, 400.0, tp=2)
    elementwise = (*map(float, layers.elementwise_work(model, 3.0, tp=2)), layers.elementwise_kernels(model))
    kv_bytes = (model.kv_bytes_per_token("bf16"), model.local_kv_bytes("bf16"))
    states = (model.linear_state_bytes("bf16"), model.convolution_state_bytes("bf16"))

    return (model.parameter_groups(), kv_bytes, states, matrices, *map(float, attention), *elementwise)


# Read elsewhere: positions by the engine, windows by step cost and memory, MTP layers by mtp_head, blocks by checks.
_ELSEWHERE = {"name", "architecture", "max_position_embeddings", "sliding_window", "num_sliding_layers",
              "num_nextn_layers", "num_expert_groups", "first_k_dense_layers", "window_kind", "kv_cache_dtype",
              "weight_block"}  # fmt: skip


@pytest.mark.parametrize("field", [field.name for field in fields(ModelSpec) if field.name not in _ELSEWHERE])
def test_every_field_changes_the_output(field: str) -> None:
    base = load_model("Llama-3.1-8B")
    if field in ("index_n_heads", "index_head_dim", "num_indexed_layers"):
        sizes = {"index_n_heads": 64, "index_head_dim": 128, "num_indexed_layers": 30}
        base = replace(load_model("DeepSeek-V3"), **sizes)
    elif field in ("kv_compression", "indexed_kv_compression", "local_window", "o_groups", "o_lora_rank"):
        base = load_model("DeepSeek-V4-Flash")
    elif field in ("num_kv_shared_layers", "num_kv_shared_sliding_layers", "num_double_wide_layers"):
        base = replace(spec_from_config(GEMMA_4_E, "g"), num_hidden_layers=16, num_sliding_layers=8)
    elif field.startswith("window_"):
        own = {"window_num_attention_heads": 32, "window_num_key_value_heads": 4, "window_head_dim": 64}
        base = replace(load_model("Gemma-3-12B"), **own)
    elif field in ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"):
        base = load_model("DeepSeek-V3")
    elif field == "linear_gate_rank":
        base = load_model("Kimi-K3")
    elif "linear" in field or field == "mamba_ssm_dtype":
        base = replace(load_model("Qwen3.5-35B-A3B"), num_linear_layers=15)
    elif "expert" in field or field in ("moe_intermediate_size", "moe_latent_size", "router_bias"):
        base = replace(load_model("Mixtral-8x7B"), num_shared_experts=1)
    elif "ngram" in field or field == "residual_rank":
        base = load_model("Qwen3.8-Flash-Next")
    elif field.startswith(("conv_", "selector_")):
        base = drafters.HeadConfig("a head", "dflash2").build(load_model("Qwen3-8B"), 1)
    elif field == "fc_every_pass":
        base = replace(base, fc_input_size=8192)
    elif field in ("num_draft_heads", "draft_gates"):
        base = drafters.HeadConfig("a head", "medusa").build(base, 2)
    value = getattr(base, field)
    changed = not value if isinstance(value, bool) else "bfloat16" if isinstance(value, str) else value * 2 or 16
    changed = "mamba2" if field == "linear_kind" else changed
    changed = (("dense_mlp", "fp8", 1.0),) if field == "formats" else changed
    assert _fingerprint(replace(base, **{field: changed})) != _fingerprint(base)


def test_dense_layers_of_a_moe_model_change_the_output() -> None:
    model = load_model("DeepSeek-V3")
    assert replace(model, first_k_dense_layers=4).num_parameters < model.num_parameters


@pytest.mark.parametrize(
    ("field", "value"),
    [("hidden_size", 0), ("num_experts", -1), ("vocab_size", 1.5), ("num_sliding_layers", 99), ("num_hidden_layers", 0),
     ("head_dim", 0), ("num_sliding_layers", 3), ("num_experts", 8), ("intermediate_size", 0)],
)  # fmt: skip
def test_a_contradictory_spec_is_refused(field: str, value: Any) -> None:
    with pytest.raises(ModelError):
        replace(load_model("Llama-3.1-8B"), **{field: value})


# Draft heads ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("target", "billions"), [("Llama-2-7B", 0.24), ("Llama-2-70B", 0.99)])
def test_eagle_head_matches_the_paper(target: str, billions: float) -> None:
    head = drafters.HeadConfig("a head", "eagle").build(load_model(target), 1)
    assert head.num_parameters / 1e9 == pytest.approx(billions, abs=0.005)
    assert head.kv_bytes_per_token("bf16") == load_model(target).kv_bytes_per_token("bf16") / (
        load_model(target).num_hidden_layers
    )


def test_eagle3_head_by_hand() -> None:
    h, qkv = 4096, 4096 + 2 * 1024
    head = drafters.HeadConfig("a head", "eagle3").build(load_model("Llama-3.1-8B"), 1)
    assert head.num_parameters == 3 * h * h + 2 * h * qkv + h * h + 3 * h * 14336 + 32000 * h + 4 * h
    assert (head.num_hidden_layers, head.vocab_size, head.shares_embedding) == (1, 32000, True)
    assert layers.lm_head(head).n == 32000
    fc = {layer.name: layer for layer in layers.linear_layers(head)}["fc"]
    assert (fc.k, fc.n, fc.scope) == (3 * h, h, "context")
    target = load_model("Llama-3.1-8B")
    narrow = replace(drafters.usual_decoder(target), intermediate_size=8192)
    wider = drafters.HeadConfig("a head", "eagle3", draft_vocab_size=64000, decoder=narrow).build(target, 1)
    assert wider.num_parameters - head.num_parameters == 32000 * h - 3 * h * 6144


def test_eagle_head_refusals() -> None:
    target = load_model("Llama-3.1-8B")
    with pytest.raises(ModelError, match="128256"):
        drafters.HeadConfig("a head", "eagle3", draft_vocab_size=200_000).build(target, 1)


def test_mtp_head_is_one_layer_of_the_target() -> None:
    head = drafters.mtp_head(load_model("DeepSeek-V3"))
    # README_WEIGHTS.md of DeepSeek-V3: 11.5B unique parameters
    assert head.num_parameters / 1e9 == pytest.approx(11.5, abs=0.15)
    assert head.kv_bytes_per_token("bf16") == 576 * 2
    with pytest.raises(ModelError, match=r"Llama-3\.1-8B"):
        drafters.mtp_head(load_model("Llama-3.1-8B"))


def test_p_eagle_is_deeper_and_dflash_shares_the_head() -> None:
    target = load_model("Qwen3-8B")
    p_eagle, dflash, dspark = (
        drafters.HeadConfig("a head", kind).build(target, 1) for kind in ("p_eagle", "dflash", "dspark")
    )
    assert p_eagle.num_hidden_layers == 4
    assert p_eagle.num_parameters > drafters.HeadConfig("a head", "eagle3").build(target, 1).num_parameters
    assert dflash.num_parameters / 1e9 == pytest.approx(1.05, abs=0.01)  # z-lab/Qwen3-8B-DFlash-b16
    assert dflash.shares_lm_head
    assert layers.lm_head(dflash).n == 151936
    assert dspark.num_parameters - dflash.num_parameters == 2 * 256 * 151936 + 4096 + 257


def test_heads_without_layers_have_no_kv() -> None:
    target = load_model("Llama-3.1-8B")
    medusa = drafters.HeadConfig("a head", "medusa").build(target, 5)
    assert medusa.num_parameters == 5 * (4096 * 4096 + 128256 * 4096)
    speculator = drafters.HeadConfig("a head", "mlp_speculator").build(target, 4)
    # ibm-ai-platform/llama3-8b-accelerator: 0.8B parameters
    assert speculator.num_parameters == 2 * 128256 * 3072 + 4096 * 3072 + 3072 * 3072 + 2 * 3072
    lstm = drafters.HeadConfig("a head", "arctic").build(target, 3)
    # One embedding, one lm_head, and the four gates of a first and of every later stage.
    assert lstm.num_parameters == 2 * 128256 * 4096 + 4 * 2 * 4096 * 4096 + 2 * 4096
    wide = {layer.name: (layer.k, layer.n) for layer in layers.linear_layers(lstm)}
    assert (wide["fc"], wide["block"]) == ((4096, 16384), (4096, 16384))
    for head in (medusa, speculator, lstm):
        assert head.kv_bytes_per_token("bf16") == 0
    with pytest.raises(ModelError, match="num_speculative_tokens"):
        drafters.HeadConfig("a head", "medusa").build(target, 0)


def test_heads_on_targets_without_a_dense_mlp() -> None:
    assert drafters.HeadConfig("a head", "eagle3").build(load_model("Mixtral-8x7B"), 1).intermediate_size == 14336
    deepseek = drafters.HeadConfig("a head", "eagle3").build(load_model("DeepSeek-V3"), 1)
    assert not deepseek.is_mla
    assert (deepseek.num_attention_heads, deepseek.num_key_value_heads) == (56, 8)


@pytest.mark.parametrize("name", ["bf15", "", "int3"])
def test_unknown_formats_are_refused(name: str) -> None:
    with pytest.raises(ModelError, match="int4"):
        load_model("opt-125m").weight_bytes(name)
    with pytest.raises(ModelError, match="fp8"):
        load_model("opt-125m").kv_bytes_per_token(name)


def test_gated_deltanet_layers_by_hand() -> None:
    model = load_model("Qwen3.5-27B")
    hidden, keys, values = 5120, 16 * 128, 48 * 128
    linear = hidden * (2 * keys + 2 * values + 2 * 48) + values * hidden  # in: q, k, v, z, b and a; out
    linear += 4 * (2 * keys + values) + 2 * 48 + 128  # convolution, A_log and dt_bias, norm
    full = hidden * 256 * (2 * 24 + 2 * 4) + 24 * 256 * hidden + 2 * 256  # q with its gate, k, v; o; two norms
    every = 3 * hidden * 17408 + 2 * hidden
    assert model.num_parameters == 48 * linear + 16 * full + 64 * every + 2 * 248320 * hidden + hidden
    assert (model.num_linear_layers, model.num_attention_layers) == (48, 16)
    assert model.kv_bytes_per_token("bf16") == 16 * 2 * 4 * 256 * 2
    assert model.linear_state_bytes("bf16") == 48 * 128 * 128 * 4
    assert model.linear_state_bytes("fp8", tp=4) == 12 * 128 * 128 * 4
    assert model.convolution_state_bytes("bf16", k=5) == (2 * keys + values) * (3 + 5) * 2
    moe = load_model("Qwen3.5-35B-A3B")
    one_gate_a_layer = replace(moe, shared_expert_gate=False).num_parameters + 40 * 2048
    assert moe.num_parameters == one_gate_a_layer
    # Qwen3-Next's config names no format of the state: it takes the activations'.
    assert load_model("Qwen3-Next-80B-A3B").linear_state_bytes("bf16") == 32 * 128 * 128 * 2


def test_which_layers_are_linear() -> None:
    config = config_of("Qwen3.5-27B")
    kinds = ["full_attention" if layer % 4 == 3 else "linear_attention" for layer in range(64)]
    assert spec_from_config({**config, "layer_types": kinds}, "Qwen3.5-27B") == load_model("Qwen3.5-27B")
    nested = {"text_config": {**config, "full_attention_interval": 8}}
    assert spec_from_config(nested, "x").num_linear_layers == 56
    plain = spec_from_config({**config, "layer_types": ["full_attention"] * 64}, "x")
    assert (plain.num_linear_layers, plain.linear_num_key_heads) == (0, 0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("linear_num_value_heads", None),
        ("linear_num_value_heads", 24),
        ("linear_conv_kernel_dim", 0),
        ("mamba_ssm_dtype", "int8"),
    ],
)
def test_bad_fields_of_linear_layers_are_named(key: str, value: object) -> None:
    with pytest.raises(ModelError, match=key):
        spec_from_config({**config_of("Qwen3.5-27B"), key: value}, "conf")


def test_linear_layers_split_over_key_heads() -> None:
    model = replace(load_model("Qwen3.5-35B-A3B"), linear_num_key_heads=2)
    with pytest.raises(ModelError, match="linear_num_key_heads"):
        model.check_tensor_parallel(4)


def test_an_mtp_layer_of_a_hybrid_has_full_attention() -> None:
    head = drafters.mtp_head(load_model("Qwen3.6-27B"))
    assert (head.num_linear_layers, head.num_attention_layers) == (0, 1)
    assert head.kv_bytes_per_token("bf16") == 2 * 4 * 256 * 2


def test_layers_of_a_state_space_hybrid_by_hand() -> None:
    """Nemotron-3-Super: 88 blocks, each one half of a layer; experts of a latent width."""
    model = load_model("Nemotron-3-Super")
    assert (model.num_linear_layers, model.num_attention_layers, model.num_moe_layers, model.num_dense_layers) == (
        40, 8, 40, 0)  # fmt: skip
    groups = model.parameter_groups()
    inner, groups_width, heads = 128 * 64, 8 * 128, 128
    mamba = 4096 * (2 * inner + 2 * groups_width + heads) + inner * 4096
    attention = 4096 * (32 + 2 * 2) * 128 + 32 * 128 * 4096
    assert groups["linear_attention"] == 40 * mamba
    assert groups["attention"] + groups["attention_out"] == 8 * attention
    assert groups["experts"] == 40 * 512 * 2 * 1024 * 2688
    assert groups["router"] == 40 * (4096 * 512 + 2 * 4096 * 1024)
    assert groups["shared_experts"] == 40 * 2 * 4096 * 5376
    assert model.linear_state_bytes("bf16", 2) == 64 * 64 * 128 * 4
    assert model.convolution_state_bytes("bf16", 2, 3) == (inner + 2 * groups_width) // 2 * 6 * 2
    assert layers.all_reduces(model)[0] == (2 * 4096, 88 + 1)
    mtp = drafters.mtp_head(model)
    assert (mtp.num_attention_layers, mtp.num_moe_layers, mtp.num_linear_layers) == (1, 1, 0)


def test_attention_beside_a_state_by_hand() -> None:
    """Falcon-H1: every layer runs attention and Mamba-2 on the same input, then an MLP."""
    model = load_model("Falcon-H1-34B")
    assert (model.num_attention_layers, model.num_linear_layers, model.num_dense_layers) == (72, 72, 72)
    groups = model.parameter_groups()
    inner, of_groups, heads = 4096, 2 * 256, 32
    assert groups["linear_attention"] == 72 * 5120 * (2 * inner + 2 * of_groups + heads + inner)
    assert groups["attention"] + groups["attention_out"] == 72 * 5120 * 128 * (20 + 2 * 4 + 20)
    assert groups["dense_mlp"] == 72 * 3 * 5120 * 21504
    of_state = (inner + 2 * of_groups) * 4 + inner + 3 * heads
    assert groups["norms"] == 5120 * (2 * 72 + 1) + 72 * of_state
    assert model.kv_bytes_per_token("bf16") == 72 * 2 * 4 * 128 * 2
    assert layers.all_reduces(model)[0] == (2 * 5120, 3 * 72 + 1)
    config = {**config_of("Falcon-H1-34B"), "ssm_multipliers": [1.0] * 5, "mamba_rms_norm": True, "mamba_d_ssm": 5120}
    with pytest.raises(ModelError, match="mamba_d_ssm = 5120"):
        spec_from_config(config, "config.json")


GEMMA_4_E = {
    "model_type": "gemma4_text", "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "head_dim": 16,
    "num_key_value_heads": 1, "global_head_dim": 32, "intermediate_size": 128, "vocab_size": 1000, "sliding_window": 32,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2, "max_position_embeddings": 4096,
    "num_kv_shared_layers": 3, "use_double_wide_mlp": True, "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 1000, "hidden_activation": "gelu_pytorch_tanh"}  # fmt: skip


def test_layers_that_share_k_and_v_by_hand() -> None:
    """As Gemma-4 E2B: the last three of six layers, two of them sliding, read the K and V of earlier ones."""
    model = spec_from_config(GEMMA_4_E, "config.json")
    assert model.kv_bytes_per_token("bf16") == 2 * 2 * (2 * 16 + 32)
    groups = model.parameter_groups()
    assert groups["attention"] == 64 * (2 * (4 + 2) * 16 + (4 + 2) * 32 + 2 * 4 * 16 + 4 * 32)
    assert groups["attention_out"] == 64 * (4 * 4 * 16 + 2 * 4 * 32)
    assert groups["dense_mlp"] == 3 * 64 * 128 * (3 + 2 * 3)
    assert groups["embedding"] + groups["lm_head"] == 1000 * (64 + 6 * 8)
    assert groups["router"] == 64 * 6 * 8 * 3
    assert groups["norms"] == 64 * (6 * 5 + 1) + 16 * (4 + 2) + 32 * (2 + 1) + 8
    matrices = {(layer.name, layer.n): layer.count for layer in layers.linear_layers(model)}
    assert (matrices["qkv", 192], matrices["window_qkv", 96], matrices["q", 128], matrices["window_q", 64]) == (
        1, 2, 1, 2)  # fmt: skip
    assert (matrices["gate_up", 256], matrices["gate_up", 512], matrices["per_layer_gate", 8]) == (3, 3, 6)
    total = sum(layer.k * layer.n * layer.count for layer in layers.linear_layers(model))
    assert total == sum(groups[group] for group in (*QUANTISED, "router"))
    alone = spec_from_config({**GEMMA_4_E, "num_kv_shared_layers": 0, "use_double_wide_mlp": False}, "config.json")
    assert alone.kv_bytes_per_token("bf16") == 2 * model.kv_bytes_per_token("bf16")
    for change, key in (({"num_kv_shared_layers": 6}, "num_kv_shared_layers"), ({"layer_types": None}, "layer_types"),
                        ({"vocab_size_per_layer_input": 10}, "vocab_size_per_layer_input"),
                        ({"laurel_rank": 64}, "laurel_rank")):  # fmt: skip
        with pytest.raises(ModelError, match=key):
            spec_from_config({**GEMMA_4_E, **change}, "config.json")


def test_indexers_and_windows_by_hand() -> None:
    sparse, shared = load_model("DeepSeek-V3.2"), load_model("GLM-5.2")
    assert (sparse.num_indexed_layers, shared.num_indexed_layers) == (61, 21)  # of 78, 18 of four and the first three
    index = 1536 * 64 * 128 + 7168 * (128 + 64) + 2 * 128
    assert sparse.num_parameters - load_model("DeepSeek-V3").num_parameters == 61 * index
    assert sparse.kv_bytes_per_token("bf16") == 61 * (576 * 2 + 132)
    llama = load_model("Llama-4-Scout")
    assert (llama.window_kind, llama.sliding_window, llama.num_sliding_layers) == ("chunked", 8192, 36)
    gemma = load_model("Gemma-4-31B")
    assert gemma.kv_bytes_per_token("bf16") == 2 * 2 * (50 * 16 * 256 + 10 * 4 * 512)
    mimo = load_model("MiMo-V2-Flash")
    assert mimo.kv_bytes_per_token("bf16") == 2 * (192 + 128) * (9 * 4 + 39 * 8)
    block = {**config_of("MiniMax-M3"), "sparse_attention_config": {"sparse_attention_freq": [1] * 59}}
    with pytest.raises(ModelError, match=r"sparse_attention_freq.*60 entries"):
        spec_from_config(block, "m3")


def test_compressed_attention_by_hand() -> None:
    model = load_model("DeepSeek-V4-Flash")
    (whole, kind), (indexed, chosen) = model.attention_kinds()
    assert (whole, indexed, kind.kv_compression, chosen.kv_compression) == (22, 21, 128, 4)
    assert model.kv_bytes_per_token("fp8") == 22 * 512 / 128 + 21 * (512 + 132) / 4
    # the last 128 tokens of every layer; fp32 sums of 128 tokens, or of 8 tokens for two entries of 4, keys' too
    sums = 22 * 128 * 2 * 512 + 21 * 8 * 2 * 2 * (512 + 128)
    assert model.local_kv_bytes("fp8") == 43 * 128 * 512 + 4 * sums
    matrices = {(layer.name, layer.count): layer for layer in layers.linear_layers(model, 4)}
    assert (matrices["o_a", 43].k, matrices["o_a", 43].n) == (64 * 512 // 8, 8 * 1024 // 4)
    assert (matrices["o", 43].k, matrices["o", 43].n) == (8 * 1024 // 4, 4096)
    assert {(n.n, count) for (name, count), n in matrices.items() if name == "compress"} == {(1024, 22), (2048, 21)}
    # three queries of one request over 1,024 entries of 4 tokens, and each over the last 128 tokens
    work = attention_work(chosen, 3.0, 4096.0, 3 * 4096.0, kv_cache_dtype="fp8")
    pairs = 3 * (1024 + 128)
    assert work.flops == 2 * 64 * (448 + 512) * pairs
    assert work.bytes == (1024 + 3 * 128 + 3) * 512 + 3 * 64 * (448 + 512) * 2
    head = drafters.mtp_head(model)
    assert (head.window_kind, head.sliding_window, head.num_indexed_layers) == ("sliding", 128, 0)
    assert (model.kv_cache_dtype, model.quantization) == ("fp8", "mxfp4")
    with pytest.raises(ModelError, match="a divisor of o_groups = 8"):
        model.check_tensor_parallel(16)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("compress_ratios", [3] * 43, "a list of 0, 4 and 128 is needed"),
        ("compress_ratios", [4] * 42, "43 entries are needed"),
        ("compress_ratios", 4, "a list of 0, 4 and 128 is needed"),
        ("o_groups", None, "missing"),
        ("sliding_window", 0, "an integer >= 1"),
        ("index_n_heads", None, "missing"),
        ("index_topk", None, "missing"),
        ("qk_rope_head_dim", 512, "less than head_dim = 512"),
        ("expert_dtype", "fp3", "fp4 or fp8 is needed"),
    ],
)
def test_broken_compressed_attention_is_refused_by_field(key: str, value: object, message: str) -> None:
    with pytest.raises(ModelError, match=rf"^v4: {key}.*{message}"):
        spec_from_config({**config_of("DeepSeek-V4-Flash"), key: value}, "v4")


def test_step_names_sliding_heads_and_layers_with_experts_in_words_of_its_own() -> None:
    config = config_of("Step-3.5-Flash")
    model = load_model("Step-3.5-Flash")
    assert (model.num_key_value_heads, model.windowed.num_attention_heads, model.num_sliding_layers) == (8, 96, 33)
    assert (model.num_dense_layers, model.num_moe_layers, model.num_experts_per_tok) == (3, 42, 8)
    assert spec_from_config({**config, "layer_types": config["layer_types"] + ["full_attention"] * 3}, "s") == replace(
        model, name="s"
    )


def test_kimi_linear_layers_by_hand() -> None:
    model = load_model("Kimi-K3")
    keys = 96 * 128
    kda = 7168 * (4 * keys + 128 + 96) + 128 * keys + keys * 7168
    states = (layer for layer in layers.linear_layers(model) if layer.group == "linear_attention")
    assert sum(layer.k * layer.n for layer in states) == kda
    low = replace(model, linear_gate_rank=128)
    assert model.num_parameters - low.num_parameters == 69 * (7168 * (keys - 128) - 128 * keys)
    assert model.linear_state_dtype("bf16") == "fp32"


def test_modules_that_an_int4_checkpoint_ignores_stay_wide() -> None:
    config = {**config_of("Kimi-K2.5"), "num_nextn_predict_layers": 0}
    model, whole = load_model("Kimi-K2.5"), spec_from_config({**config, "quantization_config": None}, "k")
    assert (model.quantization, whole.quantization) == ("int4", "")
    assert model.formats == (("experts", "int4", 0.5 + 2 / 32),)
    assert model.weight_bytes("int4") / 1e9 == pytest.approx(594, abs=1)  # of the published checkpoint
    assert model.weight_bytes("fp8") == whole.weight_bytes("fp8")
    wide = {layer.name for layer in layers.linear_layers(model, 8) if layer.stored("int4")[1] == 2.0}
    assert {"o", "qkv_a", "gate_up", "shared_down", "router"} <= wide
    assert not wide & {"experts_gate_up", "experts_down"}


def _stored(name: str, section: dict[str, Any]) -> dict[str, tuple[str, float]]:
    model = spec_from_config({**config_of(name), "quantization_config": section}, "config.json")
    return {group: (dtype, size) for group, dtype, size in model.formats}


def _groups(*groups: dict[str, Any], **rest: Any) -> dict[str, Any]:
    named = {f"group_{number}": group for number, group in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "config_groups": named, **rest}


FP8 = {"num_bits": 8, "type": "float", "strategy": "channel"}
FP4 = {"num_bits": 4, "type": "float", "group_size": 16}
DENSE = ("attention", "attention_out", "dense_mlp")
BLOCKS = 1 + 4 / 128**2
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
INT4 = ("int4", 0.5 + 2 / 128)


@pytest.mark.parametrize(
    ("name", "section", "stored"),
    [
        # fp8 with a scale a block; a name in a list is a module's, not a part of another's (``gate``, ``gate_proj``).
        ("Qwen3-8B", {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["gate"]},
         dict.fromkeys(DENSE, ("fp8", BLOCKS))),
        ("Qwen3-8B", {"quant_method": "fp8"}, dict.fromkeys(DENSE, ("fp8", 1.0))),
        ("Qwen3-8B", {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0.self_attn.q_proj"]},
         dict.fromkeys(DENSE, ("fp8", 1.0))),  # one of 36 layers
        ("Qwen3-8B", {"quant_method": "awq", "bits": 4, "group_size": 128, "modules_to_not_convert": ["self_attn"]},
         {"dense_mlp": ("int4", 0.5 + 2.5 / 128)}),
        ("Qwen3-8B", {"quant_method": "gptq", "bits": 4, "group_size": 64}, dict.fromkeys(DENSE, ("int4", 0.53125))),
        # compressed-tensors: two groups by targets, and a list that is left out
        ("Qwen3-8B", _groups({"targets": ["Linear"], "weights": FP8, "input_activations": FP8}, ignore=["lm_head"]),
         dict.fromkeys(DENSE, ("fp8", 1.0))),
        ("Qwen3-8B", _groups({"targets": ["re:.*self_attn.*"], "weights": FP8, "input_activations": FP8},
                             {"targets": ["re:.*mlp.*"], "weights": FP4, "input_activations": FP4}),
         {"attention": ("fp8", 1.0), "attention_out": ("fp8", 1.0), "dense_mlp": ("nvfp4", 0.5625)}),
        ("Qwen3-8B", _groups({"targets": ["Linear"], "weights": FP4}, ignore=["re:.*self_attn.o_proj"]),
         {"attention": ("nvfp4a16", 0.5625), "dense_mlp": ("nvfp4a16", 0.5625)}),
        ("Qwen3-8B", _groups({"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int"},
                              "input_activations": {"num_bits": 8, "type": "int"}}),
         dict.fromkeys(DENSE, ("int8", 1.0))),
        # ModelOpt: wildcards, and a format for each module
        ("DeepSeek-V3", {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": [
            "lm_head", "*self_attn.q_b_proj", "model.layers.61*", "model.layers.0*"]},
         dict.fromkeys(("attention_out", "dense_mlp", "shared_experts", "experts"), ("nvfp4", 0.5625))),
        ("Qwen3-8B", {"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"lm_head": {
            "quant_algo": "W4A16_NVFP4"}, **{f"model.layers.{n}.mlp.down_proj": {"quant_algo": "FP8"}
                                             for n in range(36)}}}},
         {"dense_mlp": ("fp8", 1.0), "lm_head": ("nvfp4a16", 0.5625)}),
        ("Gemma-4-26B-A4B", {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": [
            "model.language_model.layers.*.mlp*", "model.language_model.layers.*.self_attn*"]},
         {"experts": ("nvfp4", 0.5625)}),
        # Quark: fp8 everywhere but MXFP4 experts
        ("Mixtral-8x7B", {"quant_method": "quark", "global_quant_config": {
            "weight": {"dtype": "fp8_e4m3"}, "input_tensors": {"dtype": "fp8_e4m3"}},
            "layer_quant_config": {"*experts*": {"weight": {"dtype": "fp4", "group_size": 32}}}, "exclude": ["gate"]},
         {"attention": ("fp8", 1.0), "attention_out": ("fp8", 1.0), "experts": ("mxfp4", 0.53125)}),
        # GPTQ's rules by module: left out (``-:``), unchanged, in other groups; its lm_head, and a list of modules
        ("Qwen3.5-35B-A3B", {**GPTQ, "dynamic": {"lm_head": {}, "-:.*attn.*": {}, "-:.*shared_expert.*": {}}},
         {"experts": INT4}),
        ("Qwen3-8B", {**GPTQ, "dynamic": {"+:.*mlp.*": {"group_size": 32}, r".*layers\.1\..*": {"group_size": 64}}},
         {"attention": INT4, "attention_out": INT4, "dense_mlp": ("int4", 0.5625)}),
        ("Qwen3-8B", {**GPTQ, "dynamic": {".*": {"group_size": 32}}}, dict.fromkeys(DENSE, ("int4", 0.5625))),
        ("Qwen3-8B", {**GPTQ, "lm_head": True}, dict.fromkeys((*DENSE, "lm_head"), INT4)),
        ("Qwen3-8B", {**GPTQ, "modules_in_block_to_quantize": [["self_attn.q_proj"], ["self_attn.o_proj"]]},
         {"attention": INT4, "attention_out": INT4}),
        ("Qwen3-8B", {**GPTQ, "lm_head": True, "modules_in_block_to_quantize": ["mlp.down_proj", "lm_head"]},
         {"dense_mlp": INT4, "lm_head": INT4}),
        ("Qwen3-8B", {"quant_method": "fp8", "ignored_layers": [
            "lm_head", *(f"model.layers.{n}.self_attn.{m}_proj" for n in range(36) for m in "qkvo")]},
         {"dense_mlp": ("fp8", 1.0)}),
        ("MiniMax-M2.5", {"quant_method": "mxfp8", "weight_block_size": [1, 32], "ignored_layers": [
            "lm_head", *(f"model.layers.{n}.block_sparse_moe.gate" for n in range(62))]},
         dict.fromkeys(("attention", "attention_out", "experts"), ("mxfp8", 1.03125))),
        # Quark: a part without a format is in 16 bits; of two rules for one module the first counts
        ("Qwen3-8B", {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "int8"},
                                                                       "input_tensors": {"dtype": "int8"}},
                      "layer_quant_config": {"*o_proj": {"weight": {"dtype": "int4"}}, "*attn*": {"weight": None}}},
         {"attention_out": ("int4", 0.5), "dense_mlp": ("int8", 1.0)}),
        # Expressions that cannot stand in one: flags within, a name of a group twice
        ("Qwen3-8B", _groups({"targets": ["re:(?i).*MLP.*", "re:.*(?P<part>[qkv])_proj", "re:.*(?P<part>o)_proj"],
                              "weights": FP8, "input_activations": FP8}),
         dict.fromkeys(("attention", "attention_out", "dense_mlp"), ("fp8", 1.0))),
    ],
)  # fmt: skip
def test_each_kind_of_matrix_has_the_format_that_the_checkpoint_gives_it(
    name: str, section: dict[str, Any], stored: dict[str, tuple[str, float]]
) -> None:
    assert _stored(name, section) == stored


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "quant_method"),
        ({"quant_method": "gptq", "bits": 8}, "bits"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quant_algo"),
        ({"quant_method": "compressed-tensors", "ignore": "lm_head"}, "ignore|config_groups"),
        (_groups({"targets": ["Linear"], "weights": FP4, "input_activations": FP8}), "num_bits"),
        ({"quant_method": "fp8", "weight_block_size": 128}, "weight_block_size"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "INT8"}, "kv_cache_quant_algo"),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "uint3"}}}, "dtype"),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": ["int8"]}}}, "dtype"),
        ({"quant_method": "quark", "layer_quant_config": [1]}, "layer_quant_config"),
        (_groups({"targets": ["Linear"], "weights": {**FP8, "type": ["float"]}}), "num_bits"),
        (_groups({"targets": ["Linear"], "weights": FP8, "input_activations": {"num_bits": [8]}}), "num_bits"),
        ({"quant_method": "fp8", "kv_cache_scheme": [1]}, "kv_cache_scheme"),
        ({"quant_method": "fp8", "ignore": ["re:("]}, "ignore"),
        (_groups({"targets": ["re:("], "weights": FP8, "input_activations": FP8}), "targets"),
        ("fp8", "quantization_config"),
        ({**GPTQ, "dynamic": {"+:.*mlp.*": {"bits": 8}}}, "bits"),
        ({**GPTQ, "dynamic": {r".*\.1\..*": {"bits": 8}}}, "bits"),
        ({**GPTQ, "dynamic": {".*": 8}}, r"\.\*"),
        ({**GPTQ, "dynamic": ["-:.*"]}, "dynamic"),
        ({**GPTQ, "dynamic": {"-:(": {}}}, "dynamic"),
        ({**GPTQ, "lm_head": 1}, "lm_head"),
        ({**GPTQ, "modules_in_block_to_quantize": 5}, "modules_in_block_to_quantize"),
        ({**GPTQ, "group_size": 0}, "group_size"),
        ({"quant_method": "fp8", "ignored_layers": 5}, "ignored_layers"),
        ({"quant_method": "fp8", "weight_block_size": [True, True]}, "weight_block_size"),
    ],
)
def test_an_unknown_format_is_refused_by_its_field(section: Any, message: str) -> None:
    with pytest.raises(ModelError, match=rf"config.json.*({message}) = |config.json.*({message}):"):
        spec_from_config({**config_of("Qwen3-8B"), "quantization_config": section}, "config.json")


def test_a_mixed_checkpoint_weighs_what_its_modules_do(tmp_path: Path) -> None:
    """By hand: Qwen3-8B's MLP in fp8 and its lm_head in NVFP4, the rest in 16 bits; the file is ModelOpt's own."""
    config = config_of("Qwen3-8B")
    (tmp_path / "config.json").write_text(json.dumps(config))
    said = {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": "FP8", "quantized_layers": {
        "model.layers.*.mlp.*": {"quant_algo": "FP8"}, "lm_head": {"quant_algo": "NVFP4"}}}  # fmt: skip
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": said}))
    model = load_model(tmp_path)
    assert (model.quantization, model.kv_cache_dtype) == ("fp8", "fp8")
    mlp, head = 36 * 3 * 4096 * 12288, 151936 * 4096
    expected = 2 * model.num_parameters - mlp - head * (2 - 0.5625)
    assert model.weight_bytes("fp8") == pytest.approx(expected)
    moved = sum(float(layer.work(1, "fp8").bytes) * layer.count for layer in layers.linear_layers(model))
    wide = sum(float(layer.work(1, "bf16").bytes) * layer.count for layer in layers.linear_layers(model))
    assert wide - moved == mlp
    assert layers.lm_head(model).stored("fp8") == ("nvfp4", 0.5625)
    assert layers.lm_head(model).stored("bf16") == ("bf16", 2.0)


def test_packed_latents_hold_their_scales_and_a_wide_rotary_key() -> None:
    """By hand: 512 + 4 fp32 scales + 64 in 16 bits; 448 + 7 scales and a byte + 64 in 16 bits (vLLM's fp8_ds_mla)."""
    sparse, compressed = load_model("DeepSeek-V3.2"), load_model("DeepSeek-V4-Flash")
    assert sparse.kv_bytes_per_token("fp8", packed=True) == 61 * (656 + 132)
    assert sparse.kv_bytes_per_token("bf16", packed=True) == sparse.kv_bytes_per_token("bf16")
    assert compressed.kv_bytes_per_token("fp8", packed=True) == 22 * 584 / 128 + 21 * (584 + 132) / 4
    more = compressed.local_kv_bytes("fp8", packed=True) - compressed.local_kv_bytes("fp8")
    assert more == 43 * 128 * (584 - 512)
    plain = load_model("Llama-3.1-8B")
    assert plain.kv_bytes_per_token("fp8", packed=True) == plain.kv_bytes_per_token("fp8")
