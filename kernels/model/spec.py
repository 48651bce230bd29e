"""The shape of a transformer: parameters, weight bytes and KV bytes per token, all computed from dimensions.

It knows dense, mixture-of-experts, sliding-window and multi-head-latent-attention (MLA) decoders, hybrids with gated
DeltaNet layers (linear attention over a state of fixed size, arXiv 2412.06464) and the heads that speculative decoding
adds (built in ``draftcast.kernels.model.drafters``). It knows no time and no device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from draftcast.errors import ModelError
from draftcast.kernels.model.dtypes import KV_BYTES, WEIGHT_BYTES, activation_bytes, kv_dtype, weight_dtype

# Groups a quantised checkpoint stores in its low-bit format. Embeddings, lm_head, norms, biases, routers and the
# extra matrices of draft heads stay in 16 bits, as in the fp8, AWQ and GPTQ checkpoints served by vLLM.
_QUANTISED = ("attention", "dense_mlp", "experts", "shared_experts")
_QUANTISED_MXFP4 = ("experts",)
LINEAR_SIZES = (
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
)
"""Fields of a gated DeltaNet layer, as in Hugging Face configs."""
_STATE_DTYPES = ("", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class ModelSpec:
    """Dimensions of one decoder-only model, or of a draft head attached to one.

    Field names follow Hugging Face ``config.json``. A size of 0 means that the part is absent.

    Raises:
        ModelError: a size is negative or not an integer, or the sizes contradict each other.
    """

    name: str
    architecture: str  # Hugging Face class name; a label only, every count comes from the sizes below
    num_hidden_layers: int  # 0 for heads without decoder layers (medusa)
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int  # dense MLP; 0 when every layer is a mixture of experts
    vocab_size: int  # columns of lm_head (an EAGLE-3 head has its own, smaller, draft vocabulary)
    max_position_embeddings: int
    tie_word_embeddings: bool
    gated_mlp: bool  # SwiGLU: three matrices; otherwise two
    attention_bias: bool  # on q, k, v
    mlp_bias: bool
    position_embeddings: int  # learned absolute position rows (OPT: max positions + 2), 0 for rotary
    word_embed_proj_dim: int  # width of the embedding and of lm_head's input; hidden_size but for opt-350m
    num_experts: int = 0  # routed experts per MoE layer
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    num_shared_experts: int = 0  # each moe_intermediate_size wide
    first_k_dense_layers: int = 0  # layers with the dense MLP in a MoE model
    sliding_window: int = 0  # tokens a sliding layer looks back on
    num_sliding_layers: int = 0
    q_lora_rank: int = 0  # MLA
    kv_lora_rank: int = 0  # MLA; > 0 switches MLA on
    qk_rope_head_dim: int = 0
    qk_nope_head_dim: int = 0
    v_head_dim: int = 0
    # Gated DeltaNet layers: linear attention in place of full attention.
    num_linear_layers: int = 0
    linear_num_key_heads: int = 0
    linear_num_value_heads: int = 0
    linear_key_head_dim: int = 0
    linear_value_head_dim: int = 0
    linear_conv_kernel_dim: int = 0
    mamba_ssm_dtype: str = ""  # of the state; empty: the activations' (vLLM's default)
    num_nextn_layers: int = 0  # MTP layers in the checkpoint; not part of num_parameters
    extra_parameters: int = 0  # draft heads: fc, extra norms, blocks; not sharded by TP
    # Smaller quirks of an architecture that move the exact count.
    attention_output_bias: bool = False
    qk_norm: bool = False
    attention_output_gate: bool = False  # attention's output times a gate as wide, projected beside the queries
    shared_expert_gate: bool = False  # shared experts' output times a gate of one number a token
    layer_norm_bias: bool = False
    attention_sinks: bool = False
    expert_bias: bool = False
    router_bias: bool = False
    norms_per_layer: int = 2
    final_norm: bool = True
    # Draft heads.
    shares_embedding: bool = False  # uses the target's table: costs no memory
    shares_lm_head: bool = False  # uses the target's lm_head: costs time, no memory
    attention_input_size: int = 0  # input width of q, k, v in the FIRST layer when not hidden_size (EAGLE-3: 2h)
    fc_input_size: int = 0  # input width of the matrix fusing target hidden states (EAGLE 2h, EAGLE-3 3h)
    fc_every_pass: bool = False  # EAGLE and MTP fuse [embedding, hidden] in every pass, EAGLE-3 only once
    num_draft_heads: int = 0  # medusa, mlp_speculator: parallel heads, each with its own block and lm_head
    markov_rank: int = 0  # DSpark: rank of the sequential bias head

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int" and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise ModelError("an integer >= 0 is needed", file=self.name, key=field.name, value=value)
        for key in ("hidden_size", "vocab_size", "word_embed_proj_dim", "max_position_embeddings"):
            if getattr(self, key) == 0:
                raise ModelError("an integer > 0 is needed", file=self.name, key=key, value=0)
        if self.num_hidden_layers == 0 and self.num_draft_heads == 0:
            raise ModelError("an integer > 0 is needed", file=self.name, key="num_hidden_layers", value=0)
        if self.num_hidden_layers:
            self._check_layers()

    def _check_layers(self) -> None:
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads
        if heads == 0 or (self.head_dim == 0 and not self.kv_lora_rank):
            raise ModelError("attention needs heads and a head_dim", file=self.name, key="num_attention_heads")
        if kv_heads == 0 or heads % kv_heads:
            allowed = f"a divisor of num_attention_heads = {heads} is needed"
            raise ModelError(allowed, file=self.name, key="num_key_value_heads", value=kv_heads)
        if self.num_experts_per_tok > self.num_experts:
            raise ModelError(
                f"at most num_experts = {self.num_experts}",
                file=self.name,
                key="num_experts_per_tok",
                value=self.num_experts_per_tok,
            )
        if self.num_experts and not (self.num_experts_per_tok and self.moe_intermediate_size):
            raise ModelError(
                "experts need num_experts_per_tok and moe_intermediate_size > 0", file=self.name, key="num_experts"
            )
        if self.num_dense_layers and not self.intermediate_size:
            raise ModelError("dense layers need an MLP width > 0", file=self.name, key="intermediate_size", value=0)
        for key in ("first_k_dense_layers", "num_sliding_layers", "num_linear_layers"):
            if getattr(self, key) > self.num_hidden_layers:
                allowed = f"at most num_hidden_layers = {self.num_hidden_layers}"
                raise ModelError(allowed, file=self.name, key=key, value=getattr(self, key))
        if self.num_sliding_layers and not self.sliding_window:
            raise ModelError("sliding layers need a window > 0", file=self.name, key="sliding_window", value=0)
        if self.num_linear_layers:
            self._check_linear_layers()

    def _check_linear_layers(self) -> None:
        for key in LINEAR_SIZES:
            if getattr(self, key) == 0:
                raise ModelError("linear attention layers need a size > 0", file=self.name, key=key, value=0)
        if self.linear_num_value_heads % self.linear_num_key_heads:
            allowed = f"a multiple of linear_num_key_heads = {self.linear_num_key_heads} is needed"
            value = self.linear_num_value_heads
            raise ModelError(allowed, file=self.name, key="linear_num_value_heads", value=value)
        if self.mamba_ssm_dtype not in _STATE_DTYPES:
            allowed = f"must be one of {', '.join(filter(None, _STATE_DTYPES))}"
            raise ModelError(allowed, file=self.name, key="mamba_ssm_dtype", value=self.mamba_ssm_dtype)

    # Layers -----------------------------------------------------------------------------------------------------

    @property
    def is_moe(self) -> bool:
        return self.num_experts > 0

    @property
    def is_mla(self) -> bool:
        """Multi-head latent attention (DeepSeek-V2/V3): one shared latent per token instead of K and V heads."""
        return self.kv_lora_rank > 0

    @property
    def num_attention_layers(self) -> int:
        """Layers with a KV cache: full and sliding attention."""
        return self.num_hidden_layers - self.num_linear_layers

    @property
    def num_dense_layers(self) -> int:
        return self.first_k_dense_layers if self.is_moe else self.num_hidden_layers

    @property
    def num_moe_layers(self) -> int:
        return self.num_hidden_layers - self.num_dense_layers

    # Counts -----------------------------------------------------------------------------------------------------

    def check_tensor_parallel(self, tp: int) -> None:
        """Raise ModelError unless the attention heads split over ``tp`` ranks (vLLM's rule)."""
        if tp < 1:
            raise ModelError("an integer >= 1 is needed", file=self.name, key="tensor_parallel_size", value=tp)
        if self.num_hidden_layers == 0:
            return
        if self.num_attention_heads % tp:
            allowed = f"a divisor of num_attention_heads = {self.num_attention_heads} is needed"
            raise ModelError(allowed, file=self.name, key="tensor_parallel_size", value=tp)
        if not self.is_mla and self.num_key_value_heads % tp and tp % self.num_key_value_heads:
            allowed = f"a divisor or a multiple of num_key_value_heads = {self.num_key_value_heads} is needed"
            raise ModelError(allowed, file=self.name, key="tensor_parallel_size", value=tp)
        if self.num_linear_layers and self.linear_num_key_heads % tp:
            allowed = f"a divisor of linear_num_key_heads = {self.linear_num_key_heads} is needed"
            raise ModelError(allowed, file=self.name, key="tensor_parallel_size", value=tp)

    def kv_heads_per_rank(self, tp: int) -> int:
        """KV heads on one of ``tp`` ranks; a head is replicated when there are fewer heads than ranks."""
        return max(1, self.num_key_value_heads // tp)

    def parameter_groups(self, tp: int = 1) -> dict[str, int]:
        """Parameters by group on one of ``tp`` ranks (``tp=1``: the whole model).

        Megatron sharding as in vLLM: q/k/v/o, MLP, experts, embedding and lm_head are split; KV heads are replicated
        when ``tp`` exceeds them; norms, routers, MLA's down-projections and ``extra`` are on every rank.
        Keys: embedding, lm_head, attention (full and linear), dense_mlp, experts, shared_experts, router, norms,
        biases, extra; among the norms a linear layer's convolution, decays and norm, and shared experts' gates.
        """
        self.check_tensor_parallel(tp)
        layers, moe_layers, dense_layers = self.num_hidden_layers, self.num_moe_layers, self.num_dense_layers
        with_cache = self.num_attention_layers
        hidden, heads, kv_heads = self.hidden_size, self.num_attention_heads // tp, self.kv_heads_per_rank(tp)
        mlp, expert_mlp = math.ceil(self.intermediate_size / tp), math.ceil(self.moe_intermediate_size / tp)
        vocab = math.ceil(self.vocab_size / tp)
        matrices = 3 if self.gated_mlp else 2
        qkv = 0 if self.is_mla else (heads + 2 * kv_heads) * self.head_dim
        norm = hidden * (2 if self.layer_norm_bias else 1)

        embedding = 0 if self.shares_embedding else vocab * self.word_embed_proj_dim
        embedding += self.position_embeddings * hidden
        if self.word_embed_proj_dim != hidden:
            embedding += 2 * self.word_embed_proj_dim * hidden
        lm_head = vocab * self.word_embed_proj_dim * max(1, self.num_draft_heads)
        norms = layers * self.norms_per_layer * norm + with_cache * (2 * self.head_dim if self.qk_norm else 0)
        norms += norm if self.final_norm else 0
        norms += moe_layers * hidden if self.shared_expert_gate else 0
        if self.is_mla:
            attention = layers * self._mla_parameters(heads)
            norms += layers * (self.q_lora_rank + self.kv_lora_rank)
        else:
            gate = heads * self.head_dim if self.attention_output_gate else 0
            attention = with_cache * hidden * (qkv + gate + heads * self.head_dim)
            if self.attention_input_size:
                attention += (self.attention_input_size - hidden) * qkv
        if self.num_linear_layers:
            keys, values, value_heads = self.linear_widths(tp)
            # q, k, v, the output's gate z, a beta and a decay (b, a) for every head; out.
            attention += self.num_linear_layers * hidden * (2 * keys + 3 * values + 2 * value_heads)
            convolution = (2 * keys + values) * self.linear_conv_kernel_dim
            norms += self.num_linear_layers * (convolution + 2 * value_heads + self.linear_value_head_dim)
        biases = with_cache * (qkv if self.attention_bias else 0)
        biases += with_cache * (hidden if self.attention_output_bias else 0)
        biases += with_cache * (heads if self.attention_sinks else 0)
        biases += dense_layers * ((matrices - 1) * mlp + hidden if self.mlp_bias else 0)
        biases += moe_layers * self.num_experts * ((2 * expert_mlp + hidden) if self.expert_bias else 0)
        biases += moe_layers * (self.num_experts if self.router_bias else 0)
        return {
            "embedding": embedding,
            "lm_head": 0 if self.tie_word_embeddings or self.shares_lm_head else lm_head,
            "attention": attention,
            "dense_mlp": dense_layers * matrices * hidden * mlp,
            "experts": moe_layers * self.num_experts * matrices * hidden * expert_mlp,
            "shared_experts": moe_layers * self.num_shared_experts * matrices * hidden * expert_mlp,
            "router": moe_layers * self.num_experts * hidden,
            "norms": norms,
            "biases": biases,
            "extra": self.extra_parameters,
        }

    def _mla_parameters(self, heads: int) -> int:
        """Matrices of one MLA layer for ``heads`` local heads (DeepSeek-V2, arXiv 2405.04434, appendix B)."""
        query_dim = heads * (self.qk_nope_head_dim + self.qk_rope_head_dim)
        query_input = self.q_lora_rank or self.hidden_size
        down = self.hidden_size * (self.q_lora_rank + self.kv_lora_rank + self.qk_rope_head_dim)
        up = query_input * query_dim + self.kv_lora_rank * heads * (self.qk_nope_head_dim + self.v_head_dim)
        return down + up + heads * self.v_head_dim * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """Parameters the model holds itself (tied or shared tables once or not at all; MTP layers not counted)."""
        return sum(self.parameter_groups().values())

    @property
    def num_active_parameters(self) -> int:
        """Parameters used for one token: all but the idle experts. Both embedding tables count in full."""
        matrices = 3 if self.gated_mlp else 2
        per_expert = matrices * self.hidden_size * self.moe_intermediate_size
        if self.expert_bias:
            per_expert += 2 * self.moe_intermediate_size + self.hidden_size
        return self.num_parameters - self.num_moe_layers * (self.num_experts - self.num_experts_per_tok) * per_expert

    def weight_bytes(self, dtype: str, tp: int = 1) -> float:
        """Bytes of the weights on one of ``tp`` ranks.

        Args:
            dtype: fp32, bf16, fp16, fp8, int4 or mxfp4. For fp8 and int4 the matrices of attention, MLP and experts
                are stored in that format (int4 with its group scales), everything else in 16 bits; mxfp4 stores the
                experts only.

        Raises:
            ModelError: unknown ``dtype``, or ``tp`` does not divide the heads.
        """
        dtype = weight_dtype(dtype)
        quantised = _QUANTISED_MXFP4 if dtype == "mxfp4" else _QUANTISED
        wide = activation_bytes(dtype)
        return sum(
            count * (WEIGHT_BYTES[dtype] if group in quantised else wide)
            for group, count in self.parameter_groups(tp).items()
        )

    def kv_elements_per_layer(self, tp: int = 1) -> int:
        """Elements cached per token and layer on one rank: K and V heads, or MLA's latent and rotary key."""
        if self.is_mla:
            return self.kv_lora_rank + self.qk_rope_head_dim
        return 2 * self.kv_heads_per_rank(tp) * self.head_dim

    def kv_bytes_per_token(self, kv_cache_dtype: str, tp: int = 1) -> float:
        """KV-cache bytes of one token over all layers with a cache (sliding ones too) on one of ``tp`` ranks."""
        return self.num_attention_layers * self.kv_elements_per_layer(tp) * KV_BYTES[kv_dtype(kv_cache_dtype)]

    def linear_widths(self, tp: int = 1) -> tuple[int, int, int]:
        """A linear layer on one of ``tp`` ranks: numbers of a token's keys, of its values, and value heads."""
        value_heads = self.linear_num_value_heads // tp
        keys = self.linear_num_key_heads // tp * self.linear_key_head_dim
        return keys, value_heads * self.linear_value_head_dim, value_heads

    def linear_state_bytes(self, dtype: str, tp: int = 1) -> float:
        """Bytes of a request's recurrent state in one linear layer on one of ``tp`` ranks: a matrix a value head.

        Args:
            dtype: of the weights; where ``mamba_ssm_dtype`` is empty the state takes the activations' format.
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
        return (2 * keys + values) * (self.linear_conv_kernel_dim - 1 + k) * activation_bytes(weight_dtype(dtype))
