"""Reads a Hugging Face ``config.json`` into a ``ModelSpec``, by its fields.

A decoder of full, sliding, chunked or sparse attention (MHA, GQA, MLA), of layers with a state (gated DeltaNet, KDA,
Mamba-2) and of dense or routed feed-forward layers is described by the fields, whatever the model is called. What a
config leaves to the model's code (which projections carry biases, how many norms a layer has) stands in
``implied.yaml`` by ``model_type``, as fields, each after the modelling code in Hugging Face transformers. A field that
describes another kind of layer, or an unknown size, is refused by name: a near miss would give wrong bytes silently.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from draftcast.errors import ModelError
from draftcast.kernels.model.config import GLOBAL_HEADS, OTHER_NAMES, PLAIN, WINDOW_HEADS, ConfigReader, usual_words
from draftcast.kernels.model.dtypes import WEIGHT_BYTES
from draftcast.kernels.model.formats import MODULES, MODULES_BESIDE, kv_cache_format, stored_formats, weight_block
from draftcast.kernels.model.spec import INDEXED_RATIO, LINEAR_SIZES, ModelSpec
from draftcast.yaml_text import yaml_beside

# Where multimodal configs keep the language model's fields.
_NESTED = ("thinker_config", "text_config", "llm_config", "language_config")
_OUTER = ("tie_word_embeddings", "architectures", "quantization_config")  # what of it may stand beside

_NO_TEXT = r"For(MaskedLM|\w*Classification|QuestionAnswering|PreTraining)$"  # endings of transformers' classes

_IMPLIED: dict[str, dict[str, Any]] = yaml_beside(__file__, "implied.yaml")

_WINDOWED = ("sliding_attention", "chunked_attention")
_KINDS = ("full_attention", "attention", "deepseek_sparse_attention", *_WINDOWED, "linear_attention", "mamba")
_BLOCKS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}  # letters of Nemotron-H's pattern
_MLA = ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim")
# Of Mamba-2's: groups, heads, state size, head size and convolution, in the order of `LINEAR_SIZES`.
_MAMBA = ("n_groups", "mamba_num_heads", "ssm_state_size", "mamba_head_dim", "conv_kernel")
_MOE_STEPS = ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval")
_GATED, _UNGATED = ("silu", "swish", "swiglu", "swigluoai", "situ"), ("relu", "relu2")
_WHOLE_RATIO = 128  # of DeepSeek-V4: tokens of a compressed entry that no indexer chooses


def decoder_values(config: ConfigReader, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """``ModelSpec``'s values of a decoder by its config's fields; ``overrides`` replaces values."""
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    blocks, positions = _blocks(config), config.integer("max_position_embeddings")
    beside = config.flag("attention_beside_mamba")
    biased = config.flag("enable_bias")  # on all projections
    attention_biased = config.flag("attention_bias", biased)
    layers = len(blocks) if beside else config.integer("num_hidden_layers", len(blocks) or None)
    values = {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": config.integer("num_key_value_heads", heads),
        "vocab_size": config.integer("vocab_size"),
        "max_position_embeddings": positions,
        **{name: config.flag(key) for name, key in PLAIN["flags"].items()},
        **{name: config.count(key) for name, key in PLAIN["counts"].items()},
        "gated_mlp": _is_gated(config),
        "position_embeddings": positions + config.count("position_offset") if config.count("position_offset") else 0,
        "word_embed_proj_dim": config.integer("word_embed_proj_dim", hidden),
        "qk_norm_all_heads": config.values.get("qk_norm_type") == "per_layer",
        "attention_bias": attention_biased or config.flag("qkv_bias"),  # the latter on q, k and v alone
        "attention_output_bias": config.flag("attention_output_bias", attention_biased),
        "mlp_bias": config.flag("mlp_bias", biased),
        "norms_per_layer": config.integer("norms_per_layer", 2, minimum=0),
        "final_norm": config.flag("do_layer_norm_before", True) and not config.flag("_remove_final_layer_norm"),
        **_attention(config, hidden, heads),
        **_feed_forward(config, layers),
        **_states(config, layers),
        **_ngrams(config, layers),
    }
    if blocks:
        config.per_layer(config.first("hybrid_override_pattern", "layers_block_type"), blocks, layers)
        alone = blocks.count("mlp") + blocks.count("moe")
        only = layers - alone - blocks.count("layer")
        values |= {"num_feed_forward_only_layers": alone, "num_attention_only_layers": only}
    if "sliding_window" not in overrides:
        values |= _shared_layers(config, layers)
        values |= _indexers(config, layers) or _sliding(config, layers)
        if values.get("num_sliding_layers"):
            values |= _window_heads(config, values)
        else:
            config.refuse_unused([*WINDOW_HEADS.values(), *GLOBAL_HEADS.values()])
    return {**values, **overrides}


def _shared_layers(config: ConfigReader, layers: int) -> dict[str, int]:
    """Layers at the end that read the K and V of an earlier one, and embeddings of each layer's own (Gemma 4)."""
    shared, width = config.count("num_kv_shared_layers"), config.count("hidden_size_per_layer_input")
    if width and config.integer("vocab_size_per_layer_input") != config.integer("vocab_size"):
        raise config.refusal("vocab_size_per_layer_input", "vocab_size is needed")
    kinds = config.strings("layer_types", _KINDS)
    if shared:
        config.per_layer("layer_types", kinds, layers)
    return {
        "norms_per_layer": config.integer("norms_per_layer", 2, minimum=0) + bool(width),
        "num_kv_shared_layers": shared,
        "num_kv_shared_sliding_layers": sum(kind in _WINDOWED for kind in kinds[layers - shared :]),
        "num_double_wide_layers": shared if config.flag("use_double_wide_mlp") else 0,
        "per_layer_input_size": width,
    }


def _ngrams(config: ConfigReader, layers: int) -> dict[str, int]:
    """Layers that add embeddings of n-grams, the last tokens together (Qwen3.8-Flash-Next), and rows of their table.

    Each of several hashes finds a row of its own part of the table, which is a part of the embedding's width.
    """
    count = len(config.layer_numbers("ple_layer_ids", layers, first=1))
    if not count:
        return {}
    width = config.integer("ple_embed_dim")
    hashes = (config.integer("ngram_size") - 1) * config.integer("heads_per_ngram")
    if not hashes or width % hashes:
        raise config.refusal("ple_embed_dim", f"a multiple of the {hashes} hashes is needed")
    return {"num_ngram_layers": count, "ngram_size": width, "ngram_rows": config.integer("ngram_vocab_size_base")}


def _formats(config: ConfigReader, model: ModelSpec) -> ModelSpec:
    """The model with the formats in which its checkpoint stores it."""
    if config.values.get("quantization_config") is None:
        return model
    section = config.section("quantization_config")
    if isinstance(section.values.get("quantization"), Mapping):  # what stands in ``hf_quant_config.json``
        section = section.section("quantization")
    attention = model.num_attention_layers
    layers = {"attention": attention, "attention_out": attention, "linear_attention": model.num_linear_layers,
              "dense_mlp": model.num_dense_layers, "experts": model.num_moe_layers, "lm_head": 1,
              "shared_experts": model.num_moe_layers if model.num_shared_experts else 0}  # fmt: skip
    beside = config.flag("enable_moe_block")
    by_group = stored_formats(section, model.num_hidden_layers, layers, MODULES_BESIDE if beside else MODULES)
    if config.values.get("expert_dtype") not in (None, "fp4", "fp8"):
        raise config.refusal("expert_dtype", "fp4 or fp8 is needed")
    if config.values.get("expert_dtype") == "fp4" and by_group.get("experts", ("",))[0] == "fp8":  # DeepSeek-V4
        by_group["experts"] = ("mxfp4", WEIGHT_BYTES["mxfp4"])
    formats = tuple((group, *stored) for group, stored in by_group.items())
    return replace(
        model,
        formats=formats,
        weight_block=weight_block(section) if any(dtype == "fp8" for _, dtype, _ in formats) else None,
        kv_cache_dtype=kv_cache_format(section) or model.kv_cache_dtype,
    )


def _blocks(config: ConfigReader) -> list[str]:
    """What each block is where blocks are one half of a layer (Nemotron-H); else nothing.

    A layer that runs attention and a state side by side (Falcon-H1) counts as a block with the state and a whole layer.
    """
    if config.flag("attention_beside_mamba"):
        return ["mamba", "layer"] * config.integer("num_hidden_layers")
    pattern = config.values.get("hybrid_override_pattern")
    if isinstance(pattern, str) and set(pattern) <= set(_BLOCKS):
        return [_BLOCKS[letter] for letter in pattern]
    if pattern is not None:
        allowed = f"letters of {', '.join(f'{key} ({value})' for key, value in _BLOCKS.items())} are needed"
        raise config.refusal("hybrid_override_pattern", allowed)
    return config.strings("layers_block_type", tuple(_BLOCKS.values()))


def _is_gated(config: ConfigReader) -> bool:
    """Whether the MLP has a gate matrix; the activation tells, but for GELU."""
    key = config.first("hidden_act")
    activation = config.values.get(key)
    gated = config.flag("gated_mlp", activation is None or activation in _GATED)
    if not gated and config.values.get("gated_mlp") is None and activation not in _UNGATED:
        allowed = f"gated or not? known: {', '.join((*_GATED, *_UNGATED))}, and others of Gemma"
        raise ModelError(allowed, file=config.name, key=key, value=activation)
    return gated


def _attention(config: ConfigReader, hidden: int, heads: int) -> dict[str, Any]:
    """Head sizes of MHA, GQA or MLA."""
    if config.values.get("compress_ratios"):
        # Keys and values are one latent, which queries of its width attend to; the cache is in fp8 (vLLM 0.32).
        size, rope = config.integer("head_dim"), config.integer("qk_rope_head_dim")
        if rope >= size:
            raise config.refusal("qk_rope_head_dim", f"less than head_dim = {size} is needed")
        sizes = {"head_dim": size, "kv_lora_rank": size - rope, "qk_nope_head_dim": size - rope, "v_head_dim": size}
        groups = {key: config.integer(key) for key in ("q_lora_rank", "o_groups", "o_lora_rank")}
        return {**sizes, **groups, "qk_rope_head_dim": rope, "kv_cache_dtype": "fp8"}
    config.refuse_unused(("compress_ratios", "o_groups", "o_lora_rank"))
    if any(config.values.get(key) is not None for key in _MLA):
        sizes = {key: config.integer(key) for key in ("qk_nope_head_dim", "qk_rope_head_dim")}
        ranks = {"q_lora_rank": config.integer("q_lora_rank", 0), "kv_lora_rank": config.integer("kv_lora_rank")}
        return {"head_dim": sum(sizes.values()), **ranks, **sizes, "v_head_dim": config.integer("v_head_dim")}
    if config.values.get("head_dim") is None and hidden % heads:
        message = f"a multiple of num_attention_heads = {heads} is needed when head_dim is absent"
        raise ModelError(message, file=config.name, key="hidden_size", value=hidden)
    head_dim = config.integer(config.first("head_dim", "attention_head_dim"), hidden // heads)
    values = config.integer("v_head_dim", head_dim)
    return {"head_dim": head_dim, "v_head_dim": values if values != head_dim else 0}


def _sliding(config: ConfigReader, layers: int) -> dict[str, Any]:
    """Window in tokens and number of layers that use it; nothing where attention is full everywhere."""
    if config.values.get("use_sliding_window") is False:
        return {}
    # MiMo-V2 gives both, and slides.
    chunk = config.count("attention_chunk_size") if not config.count("sliding_window") else 0
    kinds = config.strings("layer_types", _KINDS)
    listed, patterns = config.values.get("hybrid_layer_pattern"), ("sliding_window_pattern", "_sliding_window_pattern")
    if kinds:
        config.per_layer("layer_types", kinds, layers)
        sliding_layers = sum(kind in _WINDOWED for kind in kinds)
    elif listed:
        sliding_layers = sum(config.bits("hybrid_layer_pattern", layers))
    elif chunk:
        sliding_layers = layers - layers // config.integer("no_rope_layer_interval")  # full without rotary embedding
    elif config.count(*patterns):
        sliding_layers = layers - layers // config.count(*patterns)  # every so many layers one is full
    else:
        # Qwen2/Qwen3: layers from max_window_layers on slide; Mistral has no such key and slides everywhere.
        sliding_layers = layers - min(layers, config.integer("max_window_layers", 0, minimum=0))
    chunked = "chunked_attention" in kinds or (not kinds and chunk > 0)
    key = "attention_chunk_size" if chunked else "sliding_window"
    window = config.integer(key, None if kinds and sliding_layers else 0)
    if window >= config.integer("max_position_embeddings") or not window or not sliding_layers:
        return {}
    kind = "chunked" if chunked else "sliding"
    return {"sliding_window": window, "num_sliding_layers": sliding_layers, "window_kind": kind}


def _window_heads(config: ConfigReader, values: Mapping[str, Any]) -> dict[str, int]:
    """Heads where those of full and of sliding layers differ."""
    sizes = ("num_attention_heads", "num_key_value_heads", "head_dim")
    windowed = {f"window_{name}": config.integer(WINDOW_HEADS[name], values[name]) for name in sizes}
    if config.integer("swa_v_head_dim", values.get("v_head_dim", 0), minimum=0) != values.get("v_head_dim", 0):
        raise config.refusal("swa_v_head_dim", "only v_head_dim is supported")
    full = {name: config.integer(key, values[name]) for name, key in GLOBAL_HEADS.items()}
    same = all(windowed[f"window_{name}"] == value for name, value in full.items())
    same &= windowed["window_num_attention_heads"] == values["num_attention_heads"]
    return {} if same else {**windowed, **full}


def _states(config: ConfigReader, layers: int) -> dict[str, Any]:
    """Kind, sizes and number of layers with a state; nothing where every layer has full or sliding attention."""
    if config.values.get("linear_attn_config"):
        kda = config.section("linear_attn_config")
        heads, size = kda.integer("num_heads"), kda.integer("head_dim")
        sizes: tuple[int, ...] = (heads, heads, size, size, kda.integer("short_conv_kernel_size"))
        rank = 0 if kda.flag("use_full_rank_gate") else size
        kind, count = "kda", len(kda.layer_numbers("kda_layers", layers, first=1))
    elif "mamba" in (kinds := config.strings("layer_types", _KINDS) or _blocks(config)):
        kind, count, rank, sizes = "mamba2", kinds.count("mamba"), 0, tuple(map(config.integer, _MAMBA))
        inner = sizes[1] * sizes[3]
        if config.integer("mamba_d_ssm", inner) != inner:
            raise config.refusal("mamba_d_ssm", f"heads times their size, {inner}, is needed")
    else:
        interval = config.count("full_attention_interval")
        every = layers - layers // interval if interval else 0  # every interval-th layer is full
        kind, count, rank = "gated_delta", kinds.count("linear_attention") if kinds else every, 0
        if not kinds:  # else it lists every layer, none with such a state (Granite 4.0 Micro)
            names = (name for key in _MAMBA for name in (key, *OTHER_NAMES[key]))
            config.refuse_unused(name for name in names if name.startswith("mamba_"))
        if not count:
            return {}
        sizes = tuple(map(config.integer, LINEAR_SIZES))
    dtype = config.values.get(config.first("mamba_ssm_dtype"), "")
    values = {"linear_kind": kind, "num_linear_layers": count, "linear_gate_rank": rank, "mamba_ssm_dtype": dtype}
    return {**values, **dict(zip(LINEAR_SIZES, sizes, strict=True))}


def _indexers(config: ConfigReader, layers: int) -> dict[str, Any]:
    """Layers of sparse attention, those of them with an indexer, and its sizes (vLLM 0.32, ``models/deepseek_v32``)."""
    if config.values.get("sparse_attention_config"):  # whole blocks of tokens by their best token's score (MiniMax-M3)
        sparse = config.section("sparse_attention_config")
        count = sum(sparse.bits("sparse_attention_freq", layers))
        heads, size = sparse.integer("sparse_num_index_heads"), sparse.integer("sparse_index_dim")
        window = sparse.integer("sparse_topk_blocks") * sparse.integer("sparse_block_size")
        return _top_k(heads, size, window, count, count)
    if config.values.get("compress_ratios"):
        return _compressed(config, layers)
    if not config.count("index_topk"):
        return {}
    heads, size = config.integer("index_n_heads"), config.integer("index_head_dim")
    key = config.first("index_topk_pattern", "indexer_types")
    pattern = config.values.get(key) or []
    letters = [str(kind)[:1].upper() for kind in pattern] if isinstance(pattern, str | list) else [""]
    if not set(letters) <= {"F", "S"}:
        raise config.refusal(key, "F (full) or S (shared) is needed for each layer")
    if letters:
        config.per_layer(key, letters, layers)
        indexed = letters.count("F")
    else:
        every, offset = config.integer("index_topk_freq", 1), config.integer("index_skip_topk_offset", 2)
        layers -= config.strings("layer_types", _KINDS).count("linear_attention")
        indexed = sum(max(layer - offset + 1, 0) % every == 0 for layer in range(layers))
    return _top_k(heads, size, config.integer("index_topk"), layers, indexed)


def _top_k(heads: int, size: int, window: int, layers: int, indexed: int) -> dict[str, Any]:
    values = {"index_n_heads": heads, "index_head_dim": size, "num_indexed_layers": indexed}
    return {**values, "sliding_window": window, "num_sliding_layers": layers, "window_kind": "top_k"}


def _compressed(config: ConfigReader, layers: int) -> dict[str, Any]:
    """DeepSeek-V4's layers: an indexer chooses among entries of 4 tokens; entries of 128 are all read.

    The few layers that see the last tokens alone count as the latter, whose entries are few.
    """
    key = "compress_ratios"
    ratios = config.values[key]
    if not isinstance(ratios, list) or any(ratio not in (0, 1, INDEXED_RATIO, _WHOLE_RATIO) for ratio in ratios):
        raise config.refusal(key, f"a list of 0, {INDEXED_RATIO} and {_WHOLE_RATIO} is needed")
    config.per_layer(key, ratios, layers)
    local, window = config.integer("sliding_window"), config.integer("index_topk") * INDEXED_RATIO
    heads, size = config.integer("index_n_heads"), config.integer("index_head_dim")
    indexed = ratios.count(INDEXED_RATIO)
    ratio = {"kv_compression": _WHOLE_RATIO, "indexed_kv_compression": INDEXED_RATIO, "local_window": local}
    return {**ratio, **_top_k(heads, size, window, indexed, indexed)}


def _feed_forward(config: ConfigReader, layers: int) -> dict[str, Any]:
    """Widths of dense and routed feed-forward layers, and how many layers are dense."""
    width = config.first("intermediate_size")
    num_experts, blocks = config.count("num_experts"), _blocks(config)
    if num_experts < 2 or (blocks and "moe" not in blocks):  # Granite's hybrids have but their shared expert
        return {"intermediate_size": config.integer(config.first("shared_intermediate_size", width))}
    expert_width = config.integer(config.first("moe_intermediate_size", width))
    shared = config.count("n_shared_experts")
    shared_key = config.first("shared_expert_intermediate_size")
    shared_width = config.count(shared_key)
    if config.flag("enable_moe_block"):  # a dense MLP beside the experts of every layer (Gemma 4)
        shared_key, shared_width = width, config.integer(width)
    if shared_width % expert_width:
        raise config.refusal(shared_key, f"a multiple of the experts' width {expert_width} is needed")
    dense_layers = blocks.count("mlp") if blocks else layers - _moe_layers(config, layers)
    dense_width = config.first("intermediate_size_mlp", "dense_intermediate_size", width)
    return {
        "intermediate_size": config.integer(dense_width) if dense_layers else 0,
        "num_experts": num_experts,
        "num_experts_per_tok": config.integer("num_experts_per_tok"),
        "moe_intermediate_size": expert_width,
        "moe_latent_size": config.count("moe_latent_size"),
        "num_shared_experts": shared_width // expert_width or shared,
        "shared_expert_gate": bool(shared_width) and config.flag("shared_expert_gate"),
        "first_k_dense_layers": dense_layers,
        "expert_bias": config.flag("expert_bias"),
        "router_bias": config.values.get("topk_method") == "noaux_tc"  # e_score_correction_bias
        or config.flag("use_routing_bias"),
        "num_expert_groups": config.count("n_group"),
    }


def _moe_layers(config: ConfigReader, layers: int) -> int:
    """Layers with routed experts: those that every rule of the config allows."""
    kinds = config.strings("mlp_layer_types", ("dense", "sparse"))
    if kinds:
        config.per_layer("mlp_layer_types", kinds, layers)
    dense = config.layer_numbers("mlp_only_layers", layers)
    frequency = config.values.get("moe_layer_freq")
    listed = config.bits("moe_layer_freq", layers) if isinstance(frequency, list) and frequency else []
    every = 1 if listed else config.integer("moe_layer_freq", 1)
    steps = [config.integer(key, 1) for key in _MOE_STEPS]
    first = config.count("first_k_dense_replace")
    if first > layers:
        raise config.refusal(config.first("first_k_dense_replace"), f"at most num_hidden_layers = {layers}")
    end = config.integer("moe_layer_end_index", -1, minimum=-1)
    last = layers - 1 if end == -1 else end
    return sum(
        first <= layer <= last
        and layer not in dense
        and layer % every == 0
        and all((layer + 1) % step == 0 for step in steps)
        and (not kinds or kinds[layer] == "sparse")
        and (not listed or listed[layer] == 1)
        for layer in range(layers)
    )


def spec_from_config(values: Mapping[str, Any], name: str) -> ModelSpec:
    """The model of a parsed Hugging Face ``config.json``; ``name`` of the model or its file stands in messages.

    Raises ModelError: another kind of layer, or a missing, ill-typed or contradicting field (named).
    """
    where = name
    for key in _NESTED:
        if values.get(key) is not None:
            if not isinstance(values[key], Mapping):
                raise ModelError("a JSON object is needed", file=name, key=key, value=values[key])
            outer = {field: values[field] for field in _OUTER if field in values}
            # Whether tables are tied is said outside (vLLM 0.32, as transformers 5).
            tied = {field: outer[field] for field in _OUTER[:1] if field in outer}
            values, where = {**outer, **values[key], **tied}, f"{where}: {key}"
    fields = {key: value for key, value in values.items() if value is not None}
    fields = {**_IMPLIED.get(str(fields.get("model_type")), {}), **usual_words(ConfigReader(fields, where))}
    config = ConfigReader(fields, where)
    config.refuse_other_layers()
    labels = [*config.strings("architectures"), str(config.values.get("model_type", ""))]
    if re.search(_NO_TEXT, labels[0]):
        raise ModelError("does not generate text", file=where, key="architectures", value=labels[:1])
    return _formats(config, ModelSpec(name=name, architecture=labels[0], **decoder_values(config, {})))
