"""Reads a Hugging Face ``config.json`` into a ``ModelSpec``: what a family changes of a Llama-like decoder.

What a config leaves to the model's code (which projections carry biases, which layers slide) is written here, each
time after the architecture's modelling code in Hugging Face transformers. An architecture that is not in
``ARCHITECTURES`` is refused by name: a near miss would give wrong bytes silently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from draftcast.errors import ModelError
from draftcast.kernels.model.spec import ModelSpec

# No dimension of a model comes near it, and no product of dimensions leaves a float.
_LARGEST = 2**31


class Config:
    """Typed look-ups in a parsed config; every failure names the file and the key."""

    def __init__(self, values: Mapping[str, Any], name: str) -> None:
        self.values = values
        self.name = name

    def integer(self, key: str, default: int | None = None, *, minimum: int = 1) -> int:
        """Integer from ``minimum`` to 2**31; ``default`` where the key is absent or null, an error without one."""
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise ModelError("missing; an integer is needed", file=self.name, key=key)
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= _LARGEST:
            bound = f"<= {_LARGEST}" if isinstance(value, int) and value > _LARGEST else f">= {minimum}"
            raise ModelError(f"an integer {bound} is needed", file=self.name, key=key, value=value)
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ModelError("true or false is needed", file=self.name, key=key, value=value)
        return value

    def strings(self, key: str) -> list[str]:
        """List of strings; empty when the key is absent or null."""
        value = self.values.get(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ModelError("a list of strings is needed", file=self.name, key=key, value=value)
        return value

    def refuse_unless(self, key: str, allowed: object) -> None:
        """Refuse a setting the cost model does not cover instead of ignoring it."""
        value = self.values.get(key)
        if value is not None and value != allowed:
            raise ModelError(f"only {allowed!r} is supported", file=self.name, key=key, value=value)


def decoder_values(config: Config, family: Mapping[str, Any]) -> dict[str, Any]:
    """A Llama-like decoder: rotary positions, RMSNorm, SwiGLU, grouped-query attention; ``family`` replaces values."""
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    layers = config.integer("num_hidden_layers")
    values = {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": config.integer("num_key_value_heads", heads),
        "vocab_size": config.integer("vocab_size"),
        "max_position_embeddings": config.integer("max_position_embeddings"),
        "tie_word_embeddings": config.flag("tie_word_embeddings", False),
        "gated_mlp": True,
        "attention_bias": False,
        "mlp_bias": False,
        "position_embeddings": 0,
        "word_embed_proj_dim": hidden,
        **family,
    }
    if "sliding_window" not in values:
        values["sliding_window"], values["num_sliding_layers"] = _sliding(config, layers)
    if "head_dim" not in values:
        if config.values.get("head_dim") is None and hidden % heads:
            message = f"a multiple of num_attention_heads = {heads} is needed when head_dim is absent"
            raise ModelError(message, file=config.name, key="hidden_size", value=hidden)
        values["head_dim"] = config.integer("head_dim", hidden // heads)
    if "intermediate_size" not in values:
        values["intermediate_size"] = config.integer("intermediate_size")
    return values


def _sliding(config: Config, layers: int) -> tuple[int, int]:
    """(window in tokens, number of layers that use it); (0, 0) when attention is full everywhere."""
    if config.values.get("use_sliding_window") is False:
        return 0, 0
    window = config.integer("sliding_window", 0)
    if window == 0:
        return 0, 0
    layer_types = config.strings("layer_types")
    if layer_types:
        if len(layer_types) != layers:
            raise ModelError(f"{layers} entries are needed", file=config.name, key="layer_types")
        sliding_layers = sum(kind == "sliding_attention" for kind in layer_types)
    else:
        # Qwen2/Qwen3: layers from max_window_layers on slide; Mistral has no such key and slides everywhere.
        sliding_layers = layers - min(layers, config.integer("max_window_layers", 0, minimum=0))
    return (window, sliding_layers) if sliding_layers else (0, 0)


def attention_bias(config: Config) -> dict[str, Any]:
    bias = config.flag("attention_bias", False)
    return {"attention_bias": bias, "attention_output_bias": bias}


def _experts(config: Config, num_experts: str, width: str) -> dict[str, Any]:
    """Routed experts under the family's names for their number and width; no dense layers."""
    return {
        "intermediate_size": 0,
        "num_experts": config.integer(num_experts),
        "num_experts_per_tok": config.integer("num_experts_per_tok"),
        "moe_intermediate_size": config.integer(width),
    }


def _llama(config: Config) -> dict[str, Any]:
    return {**attention_bias(config), "mlp_bias": config.flag("mlp_bias", False)}


def _qwen3(config: Config) -> dict[str, Any]:
    return {**attention_bias(config), "qk_norm": True, "head_dim": config.integer("head_dim", 128)}


def _qwen3_moe(config: Config) -> dict[str, Any]:
    layers = config.integer("num_hidden_layers")
    step = config.integer("decoder_sparse_step", 1)
    dense = config.values.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
        raise ModelError("a list of layer numbers is needed", file=config.name, key="mlp_only_layers", value=dense)
    moe_layers = sum(layer not in dense and (layer + 1) % step == 0 for layer in range(layers))
    experts = _experts(config, "num_experts", "moe_intermediate_size")
    if moe_layers < layers:
        experts |= {"intermediate_size": config.integer("intermediate_size")}
    return {**attention_bias(config), **experts, "first_k_dense_layers": layers - moe_layers, "qk_norm": True}


def _mixtral(config: Config) -> dict[str, Any]:
    return _experts(config, "num_local_experts", "intermediate_size")


def _gpt_oss(config: Config) -> dict[str, Any]:
    layers = config.integer("num_hidden_layers")
    window = config.integer("sliding_window", 128)
    layer_types = config.strings("layer_types")
    # Without layer_types the model's code alternates, starting with a sliding layer.
    sliding = sum(kind == "sliding_attention" for kind in layer_types) if layer_types else (layers + 1) // 2
    always = ("attention_bias", "attention_output_bias", "attention_sinks", "expert_bias", "router_bias")
    return {
        **_experts(config, "num_local_experts", "intermediate_size"),
        **dict.fromkeys(always, True),
        "head_dim": config.integer("head_dim", 64),
        "sliding_window": window if sliding else 0,
        "num_sliding_layers": sliding,
    }


def _deepseek_v3(config: Config) -> dict[str, Any]:
    config.refuse_unless("moe_layer_freq", 1)
    config.refuse_unless("attention_bias", False)
    nope, rope = config.integer("qk_nope_head_dim"), config.integer("qk_rope_head_dim")
    return {
        **_experts(config, "n_routed_experts", "moe_intermediate_size"),
        "head_dim": nope + rope,
        "intermediate_size": config.integer("intermediate_size"),
        "num_shared_experts": config.integer("n_shared_experts", 0, minimum=0),
        "first_k_dense_layers": config.integer("first_k_dense_replace", 0, minimum=0),
        "q_lora_rank": config.integer("q_lora_rank", 0),
        "kv_lora_rank": config.integer("kv_lora_rank"),
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": nope,
        "v_head_dim": config.integer("v_head_dim"),
        "num_nextn_layers": config.integer("num_nextn_predict_layers", 0, minimum=0),
        "router_bias": True,  # e_score_correction_bias
    }


def _opt(config: Config) -> dict[str, Any]:
    bias = config.flag("enable_bias", True)
    norm_first, norm_removed = config.flag("do_layer_norm_before", True), config.flag("_remove_final_layer_norm", False)
    return {
        "num_key_value_heads": config.integer("num_attention_heads"),
        "intermediate_size": config.integer("ffn_dim"),
        "tie_word_embeddings": config.flag("tie_word_embeddings", True),
        "gated_mlp": False,
        "attention_bias": bias,
        "attention_output_bias": bias,
        "mlp_bias": bias,
        "position_embeddings": config.integer("max_position_embeddings") + 2,  # OPT offsets positions by 2 rows
        "word_embed_proj_dim": config.integer("word_embed_proj_dim", config.integer("hidden_size")),
        "layer_norm_bias": True,
        "final_norm": norm_first and not norm_removed,
    }


ARCHITECTURES: dict[str, Callable[[Config], dict[str, Any]]] = {
    "OPTForCausalLM": _opt,
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": lambda config: {},
    "Qwen2ForCausalLM": lambda config: {"attention_bias": True},  # on q, k, v only, whatever the config says
    "Qwen3ForCausalLM": _qwen3,
    "Qwen3MoeForCausalLM": _qwen3_moe,
    "MixtralForCausalLM": _mixtral,
    "GptOssForCausalLM": _gpt_oss,
    "DeepseekV3ForCausalLM": _deepseek_v3,
}


def spec_from_config(values: Mapping[str, Any], name: str) -> ModelSpec:
    """The model of a parsed Hugging Face ``config.json``; ``name`` of the model or its file stands in messages.

    Raises:
        ModelError: unknown architecture, or a missing, ill-typed or contradicting field (named).
    """
    if not isinstance(values, Mapping):
        raise ModelError("a JSON object is needed", file=name)
    config = Config(values, name)
    architectures = config.strings("architectures")
    known = ", ".join(ARCHITECTURES)
    if not architectures:
        raise ModelError(f"missing or empty; known architectures: {known}", file=name, key="architectures")
    if architectures[0] not in ARCHITECTURES:
        raise ModelError(
            f"unknown architecture; known: {known}", file=name, key="architectures", value=architectures[0]
        )
    family = ARCHITECTURES[architectures[0]](config)
    return ModelSpec(name=name, architecture=architectures[0], **decoder_values(config, family))
