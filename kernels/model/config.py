"""Typed look-ups in a parsed Hugging Face ``config.json``, and what of it is refused."""

import re
from collections.abc import Mapping
from typing import Any

from draftcast.errors import ModelError
from draftcast.kernels.model.spec import LINEAR_SIZES

# No dimension of a model comes near it, and no product of dimensions leaves a float.
_LARGEST = 2**31

# Names of one field; the first that a config has is taken.
KV_HEADS = ("num_key_value_heads", "num_attention_groups")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
TOP_K = ("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_k", "moe_topk", "moe_top_k",
         "top_k_experts")  # fmt: skip
SHARED_COUNT = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert")
FIRST_DENSE = ("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers", "moe_layer_num_skipped")
POSITIONS = ("max_position_embeddings", "model_max_length")
SHARED_WIDTH = ("shared_expert_intermediate_size", "shared_intermediate_size", "share_expert_dim",
                 "moe_shared_expert_intermediate_size")  # fmt: skip
MTP_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", "num_mtp_modules")
STATE_DTYPE = ("mamba_ssm_dtype", "mamba_ssm_cache_dtype")
LINEAR = (*LINEAR_SIZES, "full_attention_interval", *STATE_DTYPE)
# Of Mamba-2's: groups, heads, state size, head size and convolution, in the order of `LINEAR_SIZES`.
MAMBA = (
    ("n_groups", "mamba_n_groups"),
    ("mamba_num_heads", "mamba_n_heads"),
    ("ssm_state_size", "mamba_d_state"),
    ("mamba_head_dim", "mamba_d_head"),
    ("conv_kernel", "mamba_d_conv"),
)
LATENT = ("moe_latent_size", "routed_expert_hidden_size")
INDEX = ("index_topk", "index_n_heads", "index_head_dim", "index_topk_freq", "index_topk_pattern",
         "index_skip_topk_offset", "index_share_for_mtp_iteration", "indexer_types",
         "indexer_rope_interleave")  # fmt: skip
# Heads that full (Gemma 4) or sliding layers (MiMo-V2) have of their own.
GLOBAL_HEADS = ("global_head_dim", "num_global_key_value_heads")
WINDOW_HEADS = ("swa_num_attention_heads", "swa_num_key_value_heads", "swa_head_dim", "swa_v_head_dim")
# DeepSeek-V4's: context tokens that are one entry of the cache, by layer, and the output's groups of low rank.
COMPRESSION = ("compress_ratios", "o_groups", "o_lora_rank")
OUTPUT_GATE = ("attn_output_gate", "attention_output_gate", "mla_use_output_gate")
MLA = ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim")

# Fields of kinds of layers that are not known.
_OTHER_LAYERS = {
    "this linear attention is": r"linear_.*|kda_.*",
    "this sparse attention is": r"index_.*|indexer_.*|sparse_.*|compress_.*",
    "these state space layers are": r"mamba_.*|ssm_.*",
    "layers of a short convolution are": r"conv_L_.*",
    "layers that share K and V are": r"use_cla",
    "layers of unlike sizes are": r"block_configs|(swa|global|num_global)_.*(heads|dim)",
    "an encoder is": r"is_encoder_decoder",
    "as a model, a draft head is": r"draft_vocab_size|speculators_.*|medusa_.*|eagle_config|dflash_config",
}
# A field so called tells a size or a pattern of layers.
_SIZE = re.compile(r"(^|_)(dim|size|rank|heads?|layers?|experts?|window|pattern|types|freq|interval|chunk)(_|$)")
_KNOWN = {
    *KV_HEADS, *EXPERTS, *TOP_K, *SHARED_COUNT, *SHARED_WIDTH, *MTP_LAYERS, *MLA, *LINEAR, *OUTPUT_GATE, *LATENT,
    *FIRST_DENSE, *INDEX, *COMPRESSION, *GLOBAL_HEADS, *WINDOW_HEADS,
    *(name for names in MAMBA for name in names), "linear_attn_config", "sparse_attention_config",
    "hidden_size", "num_hidden_layers", "num_attention_heads", "head_dim", "v_head_dim",
    "intermediate_size", "intermediate_size_mlp", "dense_intermediate_size", "moe_intermediate_size", "ffn_dim",
    "vocab_size", "word_embed_proj_dim", "sliding_window", "sliding_window_pattern", "_sliding_window_pattern",
    "max_window_layers", "layer_types", "attn_type_list", "mlp_layer_types", "mlp_only_layers", "moe_layer_freq",
    "moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval", "interleave_moe_layer_step",
    "attention_chunk_size", "no_rope_layers", "no_rope_layer_interval", "hybrid_override_pattern", "layers_block_type",
    "hybrid_layer_pattern", "attention_head_dim", "enable_moe_block", "num_kv_shared_layers",
    "hidden_size_per_layer_input", "hc_mult", "expert_dtype", "norms_per_layer",
    # Say nothing of the work: derived, of training, or of another engine.
    "qk_head_dim", "rotary_dim", "ep_size", "mtp_transformer_layers", "mtp_hybrid_override_pattern",
    "mtp_layers_block_type", "sliding_window_size", "chunk_size", "time_step_rank", "mamba_hidden_act",
    "mamba_proj_bias", "mamba_conv_bias", "mamba_chunk_size", "mamba_expand", "mamba_rms_norm", "mamba_d_ssm",
    "mamba_norm_before_gate", "mamba_use_mlp", "ssm_multipliers", "ssm_in_multiplier", "ssm_out_multiplier",
    "vocab_size_per_layer_input", "swa_rope_theta", "expert_intermediate_size", "num_expert_group",
    "use_rope_layers", "partial_rotary_factors", "swiglu_limits", "swiglu_limits_shared",
    "attn_res_block_size", "compress_rope_theta", "num_hash_layers", "dim_model_base", "layer_rope_theta",
    "linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max", "linear_dt_init_floor",
    "linear_allow_neg_eigval", "global_attn_every_n_layers", "mtp_layer_types", "mtp_mlp_layer_types",
    "num_expert_groups", "num_limited_groups", "order_of_interleaved_layers",
}  # fmt: skip


class Config:
    """Typed look-ups in a parsed config; every failure names the file and the key."""

    def __init__(self, values: Mapping[str, Any], name: str) -> None:
        self.values = values
        self.name = name

    def refusal(self, key: str, allowed: str) -> ModelError:
        """The value of a key is not one of those allowed; a long one is cut."""
        value = self.values[key]
        text = str(value)
        return ModelError(allowed, file=self.name, key=key, value=value if len(text) < 60 else f"{text[:50]} ...")

    def first(self, keys: tuple[str, ...]) -> str:
        """The first of ``keys`` that has a value; ``keys[0]`` where none has."""
        return next((key for key in keys if self.values.get(key) is not None), keys[0])

    def integer(self, key: str, default: int | None = None, *, minimum: int = 1) -> int:
        """Integer from ``minimum`` to 2**31; ``default`` where the key is absent or null, an error without one.

        A list with an entry for each layer, all alike, is that entry.
        """
        value = self.values.get(key)
        if isinstance(value, list) and len(value) == self.values.get("num_hidden_layers") != 0:
            value = value[0] if all(each == value[0] for each in value) else value
        if value is None:
            if default is None:
                raise ModelError("missing; an integer is needed", file=self.name, key=key)
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= _LARGEST:
            bound = f"<= {_LARGEST}" if isinstance(value, int) and value > _LARGEST else f">= {minimum}"
            raise self.refusal(key, f"an integer {bound} is needed")
        return value

    def count(self, *keys: str) -> int:
        """Integer >= 0 under the first of ``keys`` that has a value; 0 where none has."""
        return self.integer(self.first(keys), 0, minimum=0)

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refusal(key, "true or false is needed")
        return value

    def strings(self, key: str, allowed: tuple[str, ...] = ()) -> list[str]:
        """List of strings, of ``allowed`` ones where given; empty when the key is absent or null."""
        value = self.values.get(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.refusal(key, "a list of strings is needed")
        for item in value:
            if allowed and item not in allowed:
                raise ModelError(f"not known; allowed: {', '.join(allowed)}", file=self.name, key=key, value=item)
        return value

    def per_layer(self, key: str, entries: list[Any], layers: int) -> None:
        """Refuse a list that has not one entry for each of ``layers``."""
        if len(entries) != layers:
            allowed = f"{layers} entries are needed (num_hidden_layers), not {len(entries)}"
            raise ModelError(allowed, file=self.name, key=key)


def refuse_other_layers(config: Config) -> None:
    """Refuse fields that describe what the cost model does not cover, instead of ignoring them."""
    kinds = config.values.get("attn_type_list", [])
    if not isinstance(kinds, list) or any(kind != 1 for kind in kinds):
        raise config.refusal("attn_type_list", "linear attention is not known; only a list of 1 (full) is read")
    said = [key for key, value in config.values.items() if value is not False and value not in (0, [], {}, "")]
    for kind, pattern in _OTHER_LAYERS.items():
        for key in said:
            if key not in _KNOWN and re.fullmatch(pattern, key):
                raise config.refusal(key, f"{kind} not known; only absent, null, false or 0 is read")
    layers = config.values.get("num_hidden_layers")
    for key in said:
        value = config.values[key]
        # Shorter lists are of tokens.
        an_entry_a_layer = isinstance(value, list) and len(value) == layers and len(value) > 4
        is_size = _SIZE.search(key) and not isinstance(value, (bool, float, Mapping))
        if key not in _KNOWN and (is_size or an_entry_a_layer):
            raise config.refusal(key, "what it says of the layers is not known; only absent, null or 0 is read")
