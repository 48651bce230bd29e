"""Draft heads as ``ModelSpec``s: EAGLE, EAGLE-3, P-EAGLE, MTP, DFlash, DFlash2, DSpark, Medusa, MLP speculator.

A head's layers are read from its config (`draftcast.kernels.model.heads`) or follow from its target. What a head
shares with the target (embedding, lm_head) costs time but no memory: ``shares_embedding``, ``shares_lm_head``.
Shapes are those of vLLM's modules (``llama_eagle``, ``llama_eagle3``, ``deepseek_mtp``, ``qwen3_dflash``,
``qwen3_dflash2``, ``qwen3_dspark``, ``medusa``, ``mlp_speculator``); default sizes are those of published checkpoints,
named below.
PARD and draft_model need no head: their draft is an ordinary model.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from draftcast.errors import ModelError
from draftcast.kernels.model.spec import ModelSpec

# yuhuili/EAGLE3-LLaMA3.1-Instruct-8B config.json: draft_vocab_size 32000; later EAGLE-3 heads keep it.
EAGLE3_DRAFT_VOCAB = 32000
EAGLE3_CAPTURED_LAYERS = 3  # EAGLE-3 (arXiv 2503.01840, section 3): low, middle and high hidden states are fused.
# amazon/GPT-OSS-20B-P-EAGLE and GPT-OSS-120B-P-EAGLE model cards: 4-layer heads (P-EAGLE, arXiv 2602.01469).
P_EAGLE_LAYERS = 4
# z-lab/Qwen3-8B-DFlash-b16 config.json: 5 layers over 5 target layers' hidden states.
DFLASH_LAYERS = DFLASH_CAPTURED_LAYERS = 5
# z-lab/Qwen3.8-27B-DFlash2 config.json (dflash_config).
DFLASH2_SIZES = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 256, "selector_top_k": 16}
# DSpark's Markov head: rank-256 transition bias over the vocabulary (vLLM qwen3_dspark, markov_rank).
DSPARK_MARKOV_RANK = 256
MLP_SPECULATOR_INNER = 3072  # ibm-ai-platform/llama3-8b-accelerator config.json: inner_dim 3072, tied heads.
# Width of a gate of Snowflake's LSTM speculators, 4 of them in one matrix (arctic_speculator.py of Arctic Inference).
ARCTIC_INNER = 4096
_MLP_RATIO = 3.5  # Llama-3's ratio of MLP width to hidden size, for heads on targets that have no dense MLP to copy.
# Attention of a head on an MLA target: ordinary heads of this size with 8 KV heads (an assumption).
_HEAD_DIM = 128
_KV_HEADS = 8


@dataclass(frozen=True)
class HeadConfig:
    """What a head's ``config.json`` says. ``None`` and 0: it does not say, or has no such part."""

    name: str
    kind: str  # of `_KINDS`
    decoder: ModelSpec | None = None  # None: the usual one, or no decoder layers (medusa, mlp_speculator)
    draft_vocab_size: int | None = None  # columns of the head's own lm_head
    captured_layers: int | None = None
    target_hidden_size: int = 0
    vocab_size: int = 0
    block_size: int = 0
    markov_rank: int = DSPARK_MARKOV_RANK
    sizes: Mapping[str, Any] = field(default_factory=lambda: DFLASH2_SIZES)
    num_heads: int = 0
    inner_dim: int = MLP_SPECULATOR_INNER
    assumed: tuple[str, ...] = ()

    def build(self, target: ModelSpec, k: int) -> ModelSpec:
        """The head on its target.

        Raises ModelError: made for a target of another width or vocabulary, or for fewer than ``k`` drafts; channels
        that do not divide the hidden size; a draft vocabulary larger than the target's.
        """
        for what, made_for, has in (
            ("hidden size", self.target_hidden_size, target.hidden_size),
            ("vocabulary", self.vocab_size, target.vocab_size),
        ):
            if made_for not in (0, has):
                allowed = f"was made for a target of {what} {made_for}; {target.name}'s is {has}: name another, or null"
                raise ModelError(allowed, key="draft_model", value=self.name)
        if 0 < self.num_heads < k:
            allowed = f"must be at most {self.num_heads}, the heads of {self.name}"
            raise ModelError(allowed, key="num_speculative_tokens", value=k)
        if self.draft_vocab_size is not None and self.draft_vocab_size > target.vocab_size and self.kind != "eagle":
            allowed = f"at most the target's vocab_size = {target.vocab_size}"
            raise ModelError(allowed, key="draft_vocab_size", value=self.draft_vocab_size)
        suffix, architecture, build = _KINDS[self.kind]
        return replace(build(self, target, k), name=f"{target.name}-{suffix}", architecture=architecture)

    def fused(self, target: ModelSpec, usual_layers: int) -> int:
        """Width of the captured layers' hidden states side by side."""
        return (usual_layers if self.captured_layers is None else self.captured_layers) * target.hidden_size


def _eagle(head: HeadConfig, target: ModelSpec, k: int) -> ModelSpec:
    """One Llama layer over the fused [token embedding, hidden state] (arXiv 2401.15077; EAGLE-2, arXiv 2406.16858).

    fc ``2h -> h`` in every pass, one layer without input norm, target's embedding and lm_head. 0.24 B parameters for
    Llama-2-7B, 0.99 B for 70B (paper, section 4.1).
    """
    layers = head.decoder or usual_decoder(target)
    fused = layers.hidden_size + target.hidden_size
    return replace(
        layers,
        norms_per_layer=1,
        final_norm=False,
        shares_lm_head=True,
        fc_input_size=fused,
        fc_every_pass=True,
        extra_parameters=fused * layers.hidden_size,
    )


def _eagle3(head: HeadConfig, target: ModelSpec, k: int) -> ModelSpec:
    """EAGLE-3 (arXiv 2503.01840): fc ``3h -> h`` once over the target's rows, own lm_head over the draft vocabulary.

    q, k and v of the first layer read ``2h``; 0.42 B for Llama-3.1-8B, of which 0.13 B are lm_head. P-EAGLE (arXiv
    2602.01469): a deeper head that drafts all tokens in one pass over masked positions.
    """
    parallel = head.kind == "p_eagle"
    layers = head.decoder or usual_decoder(target, P_EAGLE_LAYERS if parallel else 1)
    hidden, fused = layers.hidden_size, head.fused(target, EAGLE3_CAPTURED_LAYERS)
    own_embedding = 0 if hidden == target.hidden_size else target.vocab_size * hidden
    usual_vocab = min(EAGLE3_DRAFT_VOCAB, target.vocab_size)
    return replace(
        layers,
        vocab_size=usual_vocab if head.draft_vocab_size is None else head.draft_vocab_size,
        attention_input_size=2 * hidden,
        fc_input_size=fused,
        # fc and the norm of the hidden state; of masked positions the learned hidden state that stands in.
        extra_parameters=fused * hidden + hidden + own_embedding + (fused if parallel else 0),
    )


def _dflash(head: HeadConfig, target: ModelSpec, k: int) -> ModelSpec:
    """DFlash: a block-diffusion drafter; K and V of the context come from fused target hidden states.

    Qwen3-like layers, fc ``(captured layers * h) -> h`` over the target's rows, target's embedding and, without a draft
    vocabulary of its own, lm_head. Defaults as z-lab/Qwen3-8B-DFlash-b16: about 1.05 B parameters for Qwen3-8B.
    """
    layers = head.decoder or replace(usual_decoder(target, DFLASH_LAYERS), qk_norm=True)
    fused = head.fused(target, DFLASH_CAPTURED_LAYERS)
    return replace(
        layers,
        vocab_size=head.draft_vocab_size or target.vocab_size,
        shares_lm_head=head.draft_vocab_size is None,
        fc_input_size=fused,
        extra_parameters=fused * layers.hidden_size + layers.hidden_size,
    )


def _dflash2(head: HeadConfig, target: ModelSpec, k: int) -> ModelSpec:
    """DFlash2 (inco.ai/blog/dflash2; vLLM PR 52816): a DFlash backbone with convolutions and a candidate selector.

    Each attention and each MLP stands between two convolutions along the block, whose kernels one projection of its
    input makes. The selector scores the ``selector_top_k`` best tokens of a position after those of the one before, by
    two codebooks over the vocabulary, and walks along the best.
    """
    spec = replace(_dflash(head, target, k), **head.sizes)
    hidden, taps, rank = spec.hidden_size, spec.conv_kernel_size, spec.selector_rank
    if hidden % spec.conv_group_size:
        message = f"a divisor of the hidden size {hidden} is needed"
        raise ModelError(message, key="conv_group_size", value=spec.conv_group_size)
    convolution = 2 * taps * (hidden * hidden // spec.conv_group_size + hidden)
    more = 2 * spec.num_hidden_layers * convolution + hidden * rank + 2 * rank * spec.vocab_size
    return replace(spec, extra_parameters=spec.extra_parameters + more)


def _dspark(head: HeadConfig, target: ModelSpec, k: int) -> ModelSpec:
    """DSpark: a DFlash backbone, a sequential low-rank Markov head over the vocabulary and a confidence head."""
    backbone, rank = _dflash(head, target, k), head.markov_rank
    more = 2 * rank * backbone.vocab_size + backbone.hidden_size + rank + 1
    return replace(backbone, markov_rank=rank, extra_parameters=backbone.extra_parameters + more)


def _medusa(head: HeadConfig, target: ModelSpec, k: int) -> ModelSpec:
    """Medusa-1 (arXiv 2401.10774): residual blocks ``h -> h``, each with its own lm_head; no KV."""
    heads = head.num_heads or k
    return replace(_no_layers(target, heads), shares_embedding=True, extra_parameters=heads * target.hidden_size**2)


def _mlp_speculator(head: HeadConfig, target: ModelSpec, k: int) -> ModelSpec:
    """MLP speculator (arXiv 2404.19124) with tied stages: one embedding and one lm_head of width ``inner_dim``.

    Each stage runs ``inner -> inner`` (the first ``h -> inner``), adds the last token's embedding, and lm_head. LSTM
    speculator of Arctic Inference: the same with an LSTM's four gates. Not modelled: its lm_head in fp8 for up to 32
    requests.
    """
    inner, gates = (ARCTIC_INNER, 4) if head.kind == "arctic" else (head.inner_dim, 1)
    return replace(
        _no_layers(target, head.num_heads or k),
        hidden_size=inner,
        word_embed_proj_dim=inner,
        fc_input_size=target.hidden_size,
        shares_lm_head=True,  # one table for all stages: counted once, in extra_parameters
        draft_gates=gates,
        extra_parameters=inner * (gates * (target.hidden_size + inner) + 2 + target.vocab_size),
    )


_KINDS: dict[str, tuple[str, str, Callable[[HeadConfig, ModelSpec, int], ModelSpec]]] = {
    "eagle": ("eagle", "EagleLlamaForCausalLM", _eagle),
    "eagle3": ("eagle3", "Eagle3LlamaForCausalLM", _eagle3),
    "p_eagle": ("p-eagle", "Eagle3LlamaForCausalLM", _eagle3),
    "dflash": ("dflash", "DFlashDraftModel", _dflash),
    "dflash2": ("dflash2", "DFlash2DraftModel", _dflash2),
    "dspark": ("dspark", "Qwen3DSparkModel", _dspark),
    "medusa": ("medusa", "MedusaModel", _medusa),
    "mlp_speculator": ("mlp-speculator", "MLPSpeculatorPreTrainedModel", _mlp_speculator),
    "arctic": ("arctic-lstm", "ArcticLSTMSpeculatorPreTrainedModel", _mlp_speculator),
}
"""Of each kind the end of its name, vLLM's class and what builds it on a target for k drafts."""


def mtp_head(target: ModelSpec) -> ModelSpec:
    """The target's own multi-token-prediction layer (DeepSeek-V3, arXiv 2412.19437, section 2.2).

    One decoder layer like the target's last one (for DeepSeek-V3 with all its experts: 11.5 B parameters, 14 B with the
    embedding and lm_head it shares), fed by ``eh_proj`` ``2h -> h`` in every pass. More than one draft token runs the
    same layer again, as vLLM does.

    Raises ModelError: the target's checkpoint has no MTP layer.
    """
    if target.num_nextn_layers == 0:
        message = "the model has no multi-token-prediction layer; use eagle3 or draft_model"
        raise ModelError(message, key="mtp", value=target.name)
    hidden = target.hidden_size
    if target.kv_compression:  # DeepSeek-V4's sees only the last tokens (vLLM 0.32)
        target = replace(target, sliding_window=target.local_window, window_kind="sliding", num_indexed_layers=0,
                         indexed_kv_compression=0)  # fmt: skip
    return replace(
        target,
        name=f"{target.name}-mtp",
        num_hidden_layers=2 if target.num_attention_only_layers else 1,  # blocks that are halves of a layer
        num_feed_forward_only_layers=min(1, target.num_feed_forward_only_layers),
        num_attention_only_layers=min(1, target.num_attention_only_layers),
        first_k_dense_layers=0,
        num_sliding_layers=min(1, target.num_sliding_layers),
        num_linear_layers=0,
        num_indexed_layers=min(1, target.num_indexed_layers),
        num_ngram_layers=0,
        ngram_rows=0,
        num_nextn_layers=0,
        shares_embedding=True,
        shares_lm_head=True,
        tie_word_embeddings=False,
        position_embeddings=0,
        fc_input_size=2 * hidden,
        fc_every_pass=True,
        extra_parameters=2 * hidden * hidden + 2 * hidden,  # eh_proj, enorm, hnorm
    )


def usual_decoder(target: ModelSpec, layers: int = 1) -> ModelSpec:
    """``layers`` Llama layers of the target's width; embedding shared, no biases, full attention, dense MLP."""
    hidden = target.hidden_size
    heads, kv_heads, head_dim = target.num_attention_heads, target.num_key_value_heads, target.head_dim
    if target.is_mla:
        heads, kv_heads, head_dim = hidden // _HEAD_DIM, _KV_HEADS, _HEAD_DIM
    return ModelSpec(
        name=target.name,
        architecture="LlamaForCausalLM",
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=target.intermediate_size or int(_MLP_RATIO * hidden),
        vocab_size=target.vocab_size,
        max_position_embeddings=target.max_position_embeddings,
        word_embed_proj_dim=hidden,
        shares_embedding=True,
    )


def _no_layers(target: ModelSpec, num_heads: int) -> ModelSpec:
    if num_heads < 1:
        raise ModelError("an integer >= 1 is needed", key="num_speculative_tokens", value=num_heads)
    return replace(
        usual_decoder(target),
        num_hidden_layers=0,
        intermediate_size=0,
        final_norm=False,
        shares_embedding=False,
        num_draft_heads=num_heads,
    )
