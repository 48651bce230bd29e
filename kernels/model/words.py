"""The fields of a config in the words that are read here, whoever wrote it.

Checkpoints saved by transformers 5 give other names to kinds of layers and to sizes than the models were published with
(DeepSeek-V4, GLM-5, Kimi-Linear, MiniMax-M3, Gemma 4, Nemotron-H); Step, Llama 4 and Bamba number layers.
"""

import re
from collections.abc import Mapping
from typing import Any

from draftcast.kernels.model.config import Config

_STATES = {"linear_attention": "mamba"}
_KINDS = {
    "layer_types": {"indexed_attention": "deepseek_sparse_attention"},
    "layers_block_type": {"full_attention": "attention", **_STATES},
    "mlp_layer_types": {"moe": "sparse", "hash_moe": "sparse"},
}
"""Kinds of layers as transformers 5 calls them."""
_BLOCK_SPARSE = {
    "sparse_num_index_heads": "index_n_heads",
    "sparse_index_dim": "index_head_dim",
    "sparse_block_size": "index_block_size",
    "sparse_topk_blocks": "index_topk_blocks",
    "sparse_local_block": "index_local_blocks",
}
WINDOW_HEADS = {
    "num_attention_heads": "swa_num_attention_heads",
    "num_key_value_heads": "swa_num_key_value_heads",
    "head_dim": "swa_head_dim",
    "v_head_dim": "swa_v_head_dim",
}
GLOBAL_HEADS = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
"""Sizes of heads that sliding (MiMo-V2) and full layers (Gemma 4) have of their own."""


def usual_words(config: Config) -> dict[str, Any]:
    """The fields as `draftcast.kernels.model.architectures` reads them; lists of layers without MTP layers."""
    found = dict(config.values)
    layers = config.integer("num_hidden_layers", 0, minimum=0)
    for key in ("layer_types", "compress_ratios"):
        if isinstance(found.get(key), list) and len(found[key]) == layers + config.count("num_nextn_predict_layers"):
            found[key] = found[key][:layers]
    _numbered_layers(config, found, layers)
    _kinds_of_layers(config, found)
    _heads_of_layers(config, found)
    return found


def _numbered_layers(config: Config, found: dict[str, Any], layers: int) -> None:
    for key in ("moe_layers_enum", "moe_layers"):  # Step, Llama 4
        if found.pop(key, None) is not None:
            experts = _numbers(config, key)
            found["moe_layer_freq"] = [int(layer in experts) for layer in range(layers)]
    if found.pop("attn_layer_indices", None) is not None:  # Bamba
        attention = _numbers(config, "attn_layer_indices")
        found["layer_types"] = ["attention" if layer in attention else "mamba" for layer in range(layers)]


def _numbers(config: Config, key: str) -> set[int]:
    value = config.values[key]
    if isinstance(value, str) and re.fullmatch(r"\d+(,\d+)*", value):
        value = list(map(int, value.split(",")))
    if not isinstance(value, list) or not all(isinstance(layer, int) for layer in value):
        raise config.refusal(key, "layer numbers are needed, as a list or between commas")
    return set(value)


def _kinds_of_layers(config: Config, found: dict[str, Any]) -> None:
    for key, names in _KINDS.items():
        if isinstance(found.get(key), list):
            mamba = key == "layer_types" and not found.keys().isdisjoint(("mamba_num_heads", "mamba_n_heads"))
            known = {**names, **_STATES} if mamba else names
            found[key] = [known.get(kind, kind) if isinstance(kind, str) else kind for kind in found[key]]
    blocks = found.get("layers_block_type")
    if isinstance(blocks, list) and not {"mlp", "moe"} & set(map(str, blocks)):  # of whole layers
        found.setdefault("layer_types", found.pop("layers_block_type"))
    if found.get("mamba_d_head") == "auto":  # Bamba
        heads = Config(found, config.name).integer("mamba_n_heads")
        found["mamba_d_head"] = config.integer("mamba_expand", 2) * config.integer("hidden_size") // heads
    kinds = found.get("layer_types")
    rates = found.get("compress_rates")
    if isinstance(kinds, list) and isinstance(rates, Mapping):  # DeepSeek-V4
        found["compress_ratios"] = [rates.get(kind, 0) for kind in kinds]
        del found["layer_types"], found["compress_rates"]
    if isinstance(kinds, list) and "linear_num_heads" in found:  # Kimi-Linear
        found["linear_attn_config"] = {
            "num_heads": found.pop("linear_num_heads"),
            "head_dim": found.pop("linear_head_dim", None),
            "short_conv_kernel_size": found.pop("linear_conv_kernel_dim", None),
            "kda_layers": [layer for layer, kind in enumerate(kinds) if kind == "linear_attention"],
        }
    if isinstance(kinds, list) and "index_topk_blocks" in found:  # MiniMax-M3
        sparse = [int(kind == "minimax_m3_sparse") for kind in kinds]
        sizes = {old: found.pop(new, None) for old, new in _BLOCK_SPARSE.items()}
        del found["layer_types"]
        if any(sparse):
            found["sparse_attention_config"] = {**sizes, "sparse_attention_freq": sparse}


def _heads_of_layers(config: Config, found: dict[str, Any]) -> None:
    """Sizes of layers of one kind: Step's, and those that transformers 5 lists by layer."""
    other = found.pop("attention_other_setting", None)
    if other is not None:
        other = config.section("attention_other_setting").values
        own = ("num_attention_heads", "num_attention_groups", "head_dim")
        found |= {key: other[word] for key, word in zip(WINDOW_HEADS.values(), own, strict=False) if word in other}
    sliding_heads = found.pop("num_sliding_attention_heads", None)
    if sliding_heads not in (None, found.get("num_attention_heads")):
        found["swa_num_attention_heads"] = sliding_heads
    by_layer = found.pop("per_layer_config", None)
    if not by_layer:
        return
    kinds = found.get("layer_types") or []
    sizes = list(by_layer.values()) if isinstance(by_layer, Mapping) else [None]
    for kind, words in (("sliding_attention", WINDOW_HEADS), ("full_attention", GLOBAL_HEADS)):
        of_kind = {str(layer) for layer, each in enumerate(kinds) if each == kind}
        if of_kind != {str(layer).lstrip("0") or "0" for layer in by_layer}:
            continue
        if isinstance(sizes[0], Mapping) and all(size == sizes[0] for size in sizes) and set(sizes[0]) <= set(words):
            found |= {words[name]: value for name, value in sizes[0].items()}
            return
    raise config.refusal("per_layer_config", "heads of all sliding or of all full layers, all alike, are needed")
