"""The shape of a transformer: parameters, weight bytes and KV bytes per token, all computed from dimensions.

It knows dense and mixture-of-experts decoders of full, sliding, chunked, multi-head latent (MLA), sparse and compressed
latent attention, hybrids with layers over a state of fixed size (`LINEAR_KINDS`) and the heads that speculative
decoding adds (built in ``draftcast.kernels.model.drafters``). It knows no time and no device.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields, replace

from draftcast.errors import ModelError
from draftcast.kernels.model.dtypes import KV_BYTES, WEIGHT_BYTES, activation_bytes, kv_dtype, weight_dtype, wide_dtype
from draftcast.kernels.model.matrices import matrices

# Groups a quantised checkpoint stores in its low-bit format. Embeddings, lm_head, norms, biases, routers and the
# extra matrices of draft heads stay in 16 bits, as in the fp8, AWQ and GPTQ checkpoints served by vLLM.
QUANTISED = ("attention", "attention_out", "linear_attention", "dense_mlp", "experts", "shared_experts")
_QUANTISED_NVFP4 = ("dense_mlp", "experts", "shared_experts")  # of models with experts: nvidia's of DeepSeek, GLM, Kimi
LINEAR_SIZES = ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
                "linear_conv_kernel_dim")  # fmt: skip
"""Sizes of a layer with a state, named as a gated DeltaNet's in Hugging Face configs."""
LINEAR_KINDS = ("gated_delta", "kda", "mamba2")
"""Gated DeltaNet (arXiv 2412.06464), Kimi Delta Attention (arXiv 2510.26692), Mamba-2 (arXiv 2405.21060), whose groups
are the key heads, its state size their width, its heads the value heads."""
WINDOWS = ("sliding", "chunked", "top_k")
"""Kinds of windows: the last tokens, those of the token's own chunk, or an indexer's choice, every token its own."""
INDEXED_RATIO = 4  # Tokens of a compressed entry that an indexer chooses (DeepSeek-V4).
_STATE_DTYPES = ("", "float32", "bfloat16", "float16")


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Dimensions of one decoder-only model, or of a draft head attached to one.

    Field names follow Hugging Face ``config.json``. A size of 0 means that the part is absent.

    Raises ModelError: a size is negative or not an integer, or the sizes contradict each other.
    """

    name: str
    architecture: str  # Hugging Face class name; no count comes from it, but engines choose by it
    num_hidden_layers: int  # 0 for heads without decoder layers (medusa)
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int  # dense MLP; 0 when every layer is a mixture of experts
    vocab_size: int  # columns of lm_head (an EAGLE-3 head has its own, smaller, draft vocabulary)
    max_position_embeddings: int
    tie_word_embeddings: bool = False
    gated_mlp: bool = True  # SwiGLU: three matrices; otherwise two
    attention_bias: bool = False  # on q, k, v
    mlp_bias: bool = False
    position_embeddings: int = 0  # learned absolute position rows (OPT: max positions + 2), 0 for rotary
    word_embed_proj_dim: int  # width of the embedding and of lm_head's input; hidden_size but for opt-350m
    num_experts: int = 0  # routed experts per MoE layer
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    num_shared_experts: int = 0  # each moe_intermediate_size wide
    first_k_dense_layers: int = 0  # layers with the dense MLP in a MoE model
    moe_latent_size: int = 0  # width of routed experts' inputs and outputs where it is not hidden_size (latent MoE)
    # Blocks that are one half of a layer: an MLP or experts alone, and attention or a state alone.
    num_feed_forward_only_layers: int = 0
    num_attention_only_layers: int = 0
    # Layers whose tokens see a window: the last tokens, their own chunk's (Llama 4) or an indexer's choice (`WINDOWS`).
    sliding_window: int = 0
    num_sliding_layers: int = 0
    window_kind: str = "sliding"
    # Heads of these layers; 0: as in full ones.
    window_num_attention_heads: int = 0
    window_num_key_value_heads: int = 0
    window_head_dim: int = 0
    # Layers at the end that have no K and V of their own and read those of an earlier layer (Gemma 4), and how many of
    # them see a window; their MLP may be twice as wide.
    num_kv_shared_layers: int = 0
    num_kv_shared_sliding_layers: int = 0
    num_double_wide_layers: int = 0
    per_layer_input_size: int = 0  # width of an embedding of its own that each layer adds (Gemma 4)
    q_lora_rank: int = 0  # MLA
    kv_lora_rank: int = 0  # MLA; > 0 switches MLA on
    qk_rope_head_dim: int = 0
    qk_nope_head_dim: int = 0
    v_head_dim: int = 0  # without MLA 0: as wide as keys
    # Indexer of sparse attention (DeepSeek-V3.2, MiniMax-M3): scores the context for the layers behind it.
    index_n_heads: int = 0
    index_head_dim: int = 0
    num_indexed_layers: int = 0  # layers with one; other sparse layers take the tokens that the last one chose
    # Compressed latent attention (DeepSeek-V4): context tokens that are one entry of the cache, in layers without and
    # with an indexer; the last tokens, seen as they are besides; and the output's matrix in groups of low rank.
    kv_compression: int = 0
    indexed_kv_compression: int = 0
    local_window: int = 0
    o_groups: int = 0
    o_lora_rank: int = 0
    # Hyper-connections (arXiv 2409.19606): copies of the residual, mixed at each half layer, by matrices of this rank
    # where one is given (Qwen3.8-Flash-Next)
    residual_streams: int = 0
    residual_rank: int = 0
    # Layers with embeddings of n-grams; their width, and rows of a table of this width in all
    num_ngram_layers: int = 0
    ngram_size: int = 0
    ngram_rows: int = 0
    # Linear attention or state space layers: a state of fixed size in place of a context.
    linear_kind: str = "gated_delta"
    num_linear_layers: int = 0
    linear_num_key_heads: int = 0
    linear_num_value_heads: int = 0
    linear_key_head_dim: int = 0
    linear_value_head_dim: int = 0
    linear_conv_kernel_dim: int = 0
    linear_gate_rank: int = 0  # KDA: rank of the output's gate, 0: full
    mamba_ssm_dtype: str = ""  # of the state; empty: the activations' (vLLM's default)
    num_nextn_layers: int = 0  # MTP layers in the checkpoint; not part of num_parameters
    extra_parameters: int = 0  # draft heads: fc, extra norms, blocks; not sharded by TP
    # Smaller quirks of an architecture that move the exact count.
    attention_output_bias: bool = False
    qk_norm: bool = False
    qk_norm_all_heads: bool = False  # one norm over all heads: ranks sum up its squares before they scale
    attention_output_gate: bool = False  # attention's output times a gate as wide, projected beside the queries
    shared_expert_gate: bool = False  # shared experts' output times a gate of one number a token
    layer_norm_bias: bool = False
    attention_sinks: bool = False
    expert_bias: bool = False
    router_bias: bool = False
    num_expert_groups: int = 0  # of which a token chooses some before it chooses experts of theirs; 0: it is not said
    # What its own checkpoint stores in fewer than 16 bits: (group of `parameter_groups`, format, bytes a weight), and
    # the format that it asks of the KV cache, where it names one.
    formats: tuple[tuple[str, str, float], ...] = ()
    weight_block: tuple[int, int] | None = None  # outputs and inputs of a block with one scale, of those in fp8
    kv_cache_dtype: str = ""
    norms_per_layer: int = 2
    final_norm: bool = True
    # Draft heads.
    shares_embedding: bool = False  # uses the target's table: costs no memory
    shares_lm_head: bool = False  # uses the target's lm_head: costs time, no memory
    attention_input_size: int = 0  # input width of q, k, v in the FIRST layer when not hidden_size (EAGLE-3: 2h)
    fc_input_size: int = 0  # input width of the matrix fusing target hidden states (EAGLE 2h, EAGLE-3 3h)
    fc_every_pass: bool = False  # EAGLE and MTP fuse [embedding, hidden] in every pass, EAGLE-3 only once
    num_draft_heads: int = 0  # medusa, mlp_speculator: parallel heads, each with its own block and lm_head
    draft_gates: int = 1  # matrices that such a head's block holds side by side: 4 of an LSTM
    markov_rank: int = 0  # DSpark: rank of the sequential bias head
    # DFlash2: taps of the convolutions around attention and MLP, channels that share a dynamic kernel; width of the
    # selector's codebooks and candidates a position.
    conv_kernel_size: int = 0
    conv_group_size: int = 0
    selector_rank: int = 0
    selector_top_k: int = 0

    def __post_init__(self) -> None:
        for key, is_wrong, allowed in self._checks():
            if is_wrong:
                raise ModelError(allowed, file=self.name, key=key, value=getattr(self, key))

    def _checks(self) -> Iterator[tuple[str, object, str]]:
        """Field, whether it is wrong, and what is needed, in the order in which they count."""
        for key, value in ((field.name, getattr(self, field.name)) for field in fields(self) if field.type == "int"):
            is_size = isinstance(value, int) and not isinstance(value, bool) and value >= 0
            yield key, not is_size, "an integer >= 0 is needed"
        for key in ("hidden_size", "vocab_size", "word_embed_proj_dim", "max_position_embeddings"):
            yield key, getattr(self, key) == 0, "an integer > 0 is needed"
        layers, heads, kv_heads = self.num_hidden_layers, self.num_attention_heads, self.num_key_value_heads
        yield "num_hidden_layers", layers == 0 and self.num_draft_heads == 0, "an integer > 0 is needed"
        if layers == 0:
            return
        has_keys = heads and (self.head_dim or self.kv_lora_rank)
        yield "num_attention_heads", not has_keys, "attention needs heads and a head_dim"
        divides = kv_heads and heads % kv_heads == 0
        yield "num_key_value_heads", not divides, f"a divisor of num_attention_heads = {heads} is needed"
        top_k, experts, dense = self.num_experts_per_tok, self.num_experts, self.num_dense_layers
        yield "num_experts_per_tok", top_k > experts, f"at most num_experts = {experts}"
        lacks = experts and not (top_k and self.moe_intermediate_size)
        yield "num_experts", lacks, "experts need num_experts_per_tok and moe_intermediate_size > 0"
        yield "intermediate_size", dense and not self.intermediate_size, "dense layers need an MLP width > 0"
        doubled = self.num_double_wide_layers
        yield "num_double_wide_layers", doubled > dense, f"at most the {dense} layers with a dense MLP"
        for key in ("first_k_dense_layers", "num_sliding_layers", "num_linear_layers", "num_indexed_layers",
                    "num_feed_forward_only_layers", "num_attention_only_layers"):  # fmt: skip
            yield key, getattr(self, key) > layers, f"at most num_hidden_layers = {layers}"
        with_cache, sliding, linear = self.num_attention_layers, self.num_sliding_layers, self.num_linear_layers
        # The memory of states without a KV cache is not covered.
        yield "num_linear_layers", with_cache < 1, "a model without attention layers is not known"
        kinds = zip(self.attention_kinds(), self.cached_kinds(), strict=True)
        lacks = self.num_kv_shared_layers and any(count and cached < 1 for (count, _), (cached, _) in kinds)
        yield "num_kv_shared_layers", lacks, "each kind of attention needs a layer with K and V of its own"
        yield "num_sliding_layers", with_cache < sliding, f"at most the {with_cache} layers with attention"
        yield "window_kind", self.window_kind not in WINDOWS, f"must be one of {', '.join(WINDOWS)}"
        lacks = self.is_sparse and not (self.index_n_heads and self.index_head_dim and self.num_indexed_layers)
        needed = "sparse attention needs an indexer: index_head_dim and num_indexed_layers > 0 too"
        yield "index_n_heads", lacks, needed
        compresses = bool(self.o_groups and self.o_lora_rank and self.local_window)
        needed = "with it o_groups, o_lora_rank and local_window > 0, without it 0"
        yield "kv_compression", bool(self.kv_compression) != compresses, needed
        lacks = self.residual_rank and not self.residual_streams
        yield "residual_rank", lacks, "residual_streams > 0 is needed with it"
        yield "q_lora_rank", self.is_sparse and self.is_mla and not self.q_lora_rank, "sparse latent attention needs it"
        yield "sliding_window", sliding and not self.sliding_window, "sliding layers need a window > 0"
        if linear:
            for key in LINEAR_SIZES:
                yield key, getattr(self, key) == 0, "linear attention layers need a size > 0"
            yield "linear_kind", self.linear_kind not in LINEAR_KINDS, f"must be one of {', '.join(LINEAR_KINDS)}"
            key_heads = self.linear_num_key_heads
            splits = self.linear_num_value_heads % key_heads == 0
            yield "linear_num_value_heads", not splits, f"a multiple of linear_num_key_heads = {key_heads} is needed"
            is_known = self.mamba_ssm_dtype in _STATE_DTYPES
            yield "mamba_ssm_dtype", not is_known, f"must be one of {', '.join(filter(None, _STATE_DTYPES))}"

    @property
    def is_multimodal(self) -> bool:
        """Whether it takes images too, by its class in transformers."""
        return self.architecture.endswith("ForConditionalGeneration")

    @property
    def is_moe(self) -> bool:
        return self.num_experts > 0

    @property
    def mixes_windows(self) -> bool:
        """Whether some layers see a window and others everything."""
        return 0 < self.num_sliding_layers < self.num_hidden_layers and not self.is_sparse

    @property
    def has_window_groups(self) -> bool:
        """Whether its layers, all with the same heads, come in vLLM's groups with blocks of their own."""
        return self.mixes_windows and self.windowed is self

    @property
    def is_hybrid(self) -> bool:
        """Whether some of its layers keep a state instead of keys and values: linear attention, state spaces."""
        return self.num_linear_layers > 0

    @property
    def is_mla(self) -> bool:
        """Multi-head latent attention (DeepSeek-V2/V3): one shared latent per token instead of K and V heads."""
        return self.kv_lora_rank > 0

    @property
    def num_attention_layers(self) -> int:
        """Layers with a KV cache: full, sliding and chunked attention."""
        return self.num_hidden_layers - self.num_linear_layers - self.num_feed_forward_only_layers

    @property
    def num_dense_layers(self) -> int:
        return self.first_k_dense_layers if self.is_moe else self.num_hidden_layers - self.num_attention_only_layers

    @property
    def num_moe_layers(self) -> int:
        return self.num_hidden_layers - self.num_attention_only_layers - self.num_dense_layers

    @property
    def expert_input_size(self) -> int:
        """Width of a routed expert's input and output."""
        return self.moe_latent_size or self.hidden_size

    @property
    def value_dim(self) -> int:
        """Width of a value head, of MLA's after expansion."""
        return self.v_head_dim or self.head_dim

    @functools.cached_property
    def windowed(self) -> ModelSpec:
        """The model as its sliding layers see it, which may have heads or a compression of their own."""
        if self.indexed_kv_compression:
            return replace(self, kv_compression=self.indexed_kv_compression, indexed_kv_compression=0)
        if not self.window_head_dim:
            return self
        return replace(
            self,
            num_attention_heads=self.window_num_attention_heads,
            num_key_value_heads=self.window_num_key_value_heads,
            head_dim=self.window_head_dim,
            window_head_dim=0,
        )

    @property
    def is_sparse(self) -> bool:
        """Whether layers read only the tokens that an indexer chooses."""
        return self.num_sliding_layers > 0 and self.window_kind == "top_k"

    @property
    def has_latent_indexer(self) -> bool:
        """Whether layers choose among latents of every token (DeepSeek-V3.2), not of several tokens (V4)."""
        return self.is_sparse and self.is_mla and not self.indexed_kv_compression

    @property
    def has_plain_attention(self) -> bool:
        """Whether every layer attends to keys and values by heads: not to latents, an indexer's choice or a state."""
        return not (self.is_mla or self.is_sparse or self.num_linear_layers)

    def attention_kinds(self) -> tuple[tuple[int, ModelSpec], ...]:
        """(layers, the model with these layers' heads) of full attention and of attention to a window."""
        sliding = self.num_sliding_layers
        return ((self.num_attention_layers - sliding, self), (sliding, self.windowed))

    def cached_kinds(self) -> tuple[tuple[int, ModelSpec], ...]:
        """`attention_kinds` of the layers with K and V of their own."""
        (full, model), (sliding, windowed) = self.attention_kinds()
        of_sliding = self.num_kv_shared_sliding_layers
        return ((full - self.num_kv_shared_layers + of_sliding, model), (sliding - of_sliding, windowed))

    def check_tensor_parallel(self, tp: int) -> None:
        """Raise ModelError unless the attention heads split over ``tp`` ranks (vLLM's rule)."""
        kv_heads = self.num_key_value_heads
        shared = self.linear_kind == "mamba2" and self.linear_num_key_heads == 1  # vLLM copies a lone group
        heads = self.linear_num_value_heads if shared else self.linear_num_key_heads
        if tp < 1:
            needed = "an integer >= 1"
        elif self.num_hidden_layers == 0:
            return
        elif self.num_attention_heads % tp:
            needed = f"a divisor of num_attention_heads = {self.num_attention_heads}"
        elif self.o_groups % tp:
            needed = f"a divisor of o_groups = {self.o_groups}"
        elif not self.is_mla and kv_heads % tp and tp % kv_heads:
            needed = f"a divisor or a multiple of num_key_value_heads = {kv_heads}"
        elif self.num_linear_layers and heads % tp:
            needed = f"a divisor of linear_num_{'value' if shared else 'key'}_heads = {heads}"
        elif self.windowed is not self and self.num_sliding_layers:
            return self.windowed.check_tensor_parallel(tp)
        else:
            return
        raise ModelError(f"{needed} is needed", file=self.name, key="tensor_parallel_size", value=tp)

    def kv_heads_per_rank(self, tp: int) -> int:
        """KV heads on one of ``tp`` ranks; a head is replicated when there are fewer heads than ranks."""
        return max(1, self.num_key_value_heads // tp)

    def parameter_groups(self, tp: int = 1) -> dict[str, int]:
        """Parameters by group on one of ``tp`` ranks (``tp=1``: the whole model).

        Megatron sharding as in vLLM: q/k/v/o, MLP, experts, embedding and lm_head are split; KV heads are replicated
        when ``tp`` exceeds them; norms, routers, MLA's down-projections and ``extra`` are on every rank.
        Keys: embedding, ngrams (their table), lm_head, attention, attention_out (its output's matrix),
        linear_attention, dense_mlp, experts, shared_experts, router, norms, biases, extra; among the norms a linear
        layer's convolution, decays and norm, and shared experts' gates.
        """
        self.check_tensor_parallel(tp)
        layers, moe_layers, with_cache = self.num_hidden_layers, self.num_moe_layers, self.num_attention_layers
        hidden, vocab = self.hidden_size, math.ceil(self.vocab_size / tp)
        mlp, expert_mlp = math.ceil(self.intermediate_size / tp), math.ceil(self.moe_intermediate_size / tp)
        norm = hidden * (1 + self.layer_norm_bias)

        groups = dict.fromkeys(("embedding", "ngrams", "lm_head", *QUANTISED, "router", "norms", "biases", "extra"), 0)
        for matrix in matrices(self, tp, tp):
            groups[matrix.group] += matrix.k * matrix.n * matrix.count * max(1, matrix.num_experts)
        table = vocab * self.word_embed_proj_dim
        groups["embedding"] += self.position_embeddings * hidden + vocab * layers * self.per_layer_input_size
        groups["embedding"] += 0 if self.shares_embedding else table
        groups["ngrams"] = math.ceil(self.ngram_rows / tp) * self.ngram_size
        if not (self.tie_word_embeddings or self.shares_lm_head):
            groups["lm_head"] = table * max(1, self.num_draft_heads)
        groups["extra"] = self.extra_parameters
        norms = (layers * self.norms_per_layer + self.final_norm) * norm + self.per_layer_input_size
        norms += moe_layers * hidden if self.shared_expert_gate else 0
        # What mixes the residual's streams before and behind half a layer, or their norms beside `residual_rank`.
        of_streams = 1 if self.residual_rank else self.residual_streams * (self.residual_streams + 2)
        norms += 2 * layers * hidden * self.residual_streams * of_streams
        biases = 0
        for (count, kind), (cached, _) in zip(self.attention_kinds(), self.cached_kinds(), strict=True):
            if self.qk_norm_all_heads:
                norms += count * kind.num_attention_heads // tp * kind.head_dim
                norms += cached * kind.kv_heads_per_rank(tp) * kind.head_dim
            elif self.qk_norm:
                norms += (count + cached) * kind.head_dim
            norms += count * (self.q_lora_rank + self.kv_lora_rank)
            if self.attention_bias and not self.is_mla:
                biases += cached * kind.qkv_size(tp) + (count - cached) * kind.num_attention_heads // tp * kind.head_dim
        norms += self.num_indexed_layers * 2 * self.index_head_dim
        if self.num_linear_layers:
            keys, values, value_heads = self.linear_widths(tp)
            convolution = (2 * keys + values) * self.linear_conv_kernel_dim
            # Decays and biases of the heads (in KDA of every key), and the output's norm.
            decays = {"gated_delta": 2 * value_heads, "kda": value_heads + keys, "mamba2": 3 * value_heads}
            gate_norm = values if self.linear_kind == "mamba2" else self.linear_value_head_dim
            norms += self.num_linear_layers * (convolution + decays[self.linear_kind] + gate_norm)
        biases += with_cache * self.attention_output_bias * hidden
        biases += with_cache * self.attention_sinks * (self.num_attention_heads // tp)
        biases += self.num_dense_layers * self.mlp_bias * ((1 + self.gated_mlp) * mlp + hidden)
        biases += moe_layers * self.num_experts * (self.expert_bias * (2 * expert_mlp + hidden) + self.router_bias)
        return groups | {"norms": norms, "biases": biases}

    @property
    def entries_of_token(self) -> int:
        """Compressed entries that a token is part of."""
        return 2 if self.kv_compression == INDEXED_RATIO else 1

    @property
    def num_parameters(self) -> int:
        """Parameters the model holds itself (tied or shared tables once or not at all; MTP layers not counted)."""
        return sum(self.parameter_groups().values())

    def weight_bytes(self, dtype: str, tp: int = 1, groups: Collection[str] | None = None) -> float:
        """Bytes of the weights on one of ``tp`` ranks, of all `parameter_groups` or only of ``groups``.

        ``dtype``: a format of `WEIGHT_BYTES`, in which `stored` says what of the model is. Raises ModelError: it is
        unknown, or ``tp`` does not divide the heads.
        """
        return sum(
            count * self.stored(group, dtype)[1]
            for group, count in self.parameter_groups(tp).items()
            if groups is None or group in groups
        )

    @functools.cached_property
    def quantization(self) -> str:
        """The format of most of its own checkpoint's weights; empty: 16 bits."""
        counts: dict[str, int] = {}
        for group, dtype, _ in self.formats:
            counts[dtype] = counts.get(dtype, 0) + self.parameter_groups()[group]
        return max(counts, key=counts.__getitem__, default="")

    def in_format(self, dtype: str) -> ModelSpec:
        """Of a checkpoint in another format of `WEIGHT_BYTES`; empty: in 16 bits."""
        wide = replace(self, formats=(), weight_block=None)
        if not dtype:
            return wide
        groups = ((group, *wide.stored(group, dtype)) for group in self.parameter_groups())
        return replace(self, formats=tuple(entry for entry in groups if entry[1] == dtype))

    def stored(self, group: str, dtype: str) -> tuple[str, float]:
        """Format and bytes of a weight, scales included, of a group of `parameter_groups` in a checkpoint in ``dtype``.

        Its own checkpoint where that is in ``dtype``; else as the checkpoints that vLLM's users serve.
        """
        dtype = weight_dtype(dtype)
        wide = (wide_dtype(dtype), activation_bytes(dtype))
        if group == "ngrams" and dtype != wide[0]:
            return "fp8", 1.0  # of narrower checkpoints too (SGLang, models/qwen4_exp.py)
        if dtype == self.quantization:
            return next(((own_dtype, size) for named, own_dtype, size in self.formats if named == group), wide)
        experts_only = {"mxfp4": ("experts",), "nvfp4": _QUANTISED_NVFP4 if self.is_moe else QUANTISED}
        return (dtype, WEIGHT_BYTES[dtype]) if group in experts_only.get(dtype, QUANTISED) else wide

    def kv_elements_per_layer(self, tp: int = 1) -> int:
        """Elements cached per token and layer on one rank: K and V heads, or MLA's latent and rotary key."""
        if self.is_mla:
            return self.kv_lora_rank + self.qk_rope_head_dim
        return self.kv_heads_per_rank(tp) * (self.head_dim + self.value_dim)

    def qkv_size(self, tp: int = 1) -> int:
        """Width of queries, keys and values of one layer on one rank, an output gate apart; 0 of MLA."""
        return 0 if self.is_mla else self.num_attention_heads // tp * self.head_dim + self.kv_elements_per_layer(tp)

    @property
    def index_key_bytes(self) -> float:
        """Bytes of an entry's index key: beside latents fp8 with a 4-byte scale each 128 numbers, else bf16 (vLLM)."""
        return self.index_head_dim * (1.0 + 4.0 / 128.0 if self.is_mla else 2.0)

    def kv_bytes_per_layer(self, kv_cache_dtype: str, tp: int = 1, *, packed: bool = False) -> float:
        """KV-cache bytes of one token, or compressed entry, in one layer on one of ``tp`` ranks.

        ``packed``: fp8 latents stand beside their scales and a rotary key in 16 bits: 656 bytes of DeepSeek-V3.2's,
        with an fp32 scale for 128 numbers, and 584 of V4's, with one of 8 bits for 64 and a byte of padding
        (vLLM 0.32, ``flashmla_sparse.py``).
        """
        dtype = kv_dtype(kv_cache_dtype)
        if packed and self.is_mla and dtype == "fp8":
            scales = self.kv_lora_rank // 64 + 1 if self.kv_compression else self.kv_lora_rank // 128 * 4
            return float(self.kv_lora_rank + 2 * self.qk_rope_head_dim + scales)
        return self.kv_elements_per_layer(tp) * KV_BYTES[dtype]

    def kv_bytes_per_token(self, kv_cache_dtype: str, tp: int = 1, *, packed: bool = False) -> float:
        """`kv_bytes_per_layer` of one token over all layers with a cache, sliding ones and index keys too."""
        cached = sum(
            count * kind.kv_bytes_per_layer(kv_cache_dtype, tp, packed=packed) / (kind.kv_compression or 1)
            for count, kind in self.cached_kinds()
        )
        return cached + self.num_indexed_layers * self.index_key_bytes / (self.indexed_kv_compression or 1)

    def local_kv_bytes(self, kv_cache_dtype: str, *, packed: bool = False) -> float:
        """Bytes that a running request holds whatever its length: its last tokens and entries that are not full yet.

        These are fp32 sums over the tokens of an entry (vLLM 0.32, ``CompressorStateCache``), also of index keys.
        """
        if not self.kv_compression:
            return 0.0
        sums = self.num_hidden_layers * self.local_window * self.kv_bytes_per_layer(kv_cache_dtype, packed=packed)
        for count, kind in self.cached_kinds():
            width = kind.kv_elements_per_layer() + (self.index_head_dim if kind is not self else 0)
            sums += 4.0 * count * 2 * kind.entries_of_token**2 * kind.kv_compression * width
        return sums

    def dense_widths(self, tp: int) -> list[tuple[int, int]]:
        """(layers, width on one of ``tp`` ranks) of dense MLPs, of those twice as wide apart."""
        width, doubled = math.ceil(self.intermediate_size / tp), self.num_double_wide_layers
        widths = ((self.num_dense_layers - doubled, width), (doubled, 2 * width))
        return [(layers, width) for layers, width in widths if layers]

    def linear_widths(self, tp: int = 1) -> tuple[int, int, int]:
        """A linear layer on one of ``tp`` ranks: numbers of a token's keys, of its values, and value heads."""
        value_heads = self.linear_num_value_heads // tp
        keys = max(1, self.linear_num_key_heads // tp) * self.linear_key_head_dim
        return keys, value_heads * self.linear_value_head_dim, value_heads

    def linear_state_bytes(self, dtype: str, tp: int = 1) -> float:
        """Bytes of a request's recurrent state in one linear layer on one of ``tp`` ranks: a matrix a value head.

        ``dtype``: of the weights; where ``mamba_ssm_dtype`` is empty the state takes the activations' format.
        """
        numbers = self.linear_num_value_heads // tp * self.linear_key_head_dim * self.linear_value_head_dim
        return numbers * KV_BYTES[self.linear_state_dtype(dtype)]

    def linear_state_dtype(self, dtype: str) -> str:
        """Format of the recurrent state of a model with weights in ``dtype``."""
        if self.mamba_ssm_dtype:
            return kv_dtype(self.mamba_ssm_dtype)
        return "fp32" if activation_bytes(dtype) == 4.0 else "bf16"

    def convolution_state_bytes(self, dtype: str, tp: int = 1, k: int = 0) -> float:
        """Bytes of the inputs that a linear layer's convolution keeps of a request, ``k`` drafts' among them."""
        keys, values, _ = self.linear_widths(tp)
        return (2 * keys + values) * (self.linear_conv_kernel_dim - 1 + k) * activation_bytes(dtype)
