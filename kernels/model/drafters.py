"""Draft heads as ``ModelSpec``s: EAGLE, EAGLE-3, P-EAGLE, MTP, DFlash, DFlash2, DSpark, Medusa, MLP speculator.

A head's layers are read from its config (`draftcast.kernels.model.heads`) or follow from its target. What a head
shares with the target (embedding, lm_head) costs time but no memory: ``shares_embedding``, ``shares_lm_head``.
Shapes are those of vLLM's modules (``llama_eagle``, ``llama_eagle3``, ``deepseek_mtp``, ``qwen3_dflash``,
``qwen3_dflash2``, ``qwen3_dspark``, ``medusa``, ``mlp_speculator``); default sizes are those of published checkpoints,
named below.
PARD and draft_model need no head: their draft is an ordinary model.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from draftcast.errors import ModelError
from draftcast.kernels.model.spec import ModelSpec

# yuhuili/EAGLE3-LLaMA3.1-Instruct-8B config.json: draft_vocab_size 32000; later EAGLE-3 heads keep it.
EAGLE3_DRAFT_VOCAB = 32000
# EAGLE-3 (arXiv 2503.01840, section 3): low, middle and high hidden states are fused.
EAGLE3_CAPTURED_LAYERS = 3
# amazon/GPT-OSS-20B-P-EAGLE and GPT-OSS-120B-P-EAGLE model cards: 4-layer heads (P-EAGLE, arXiv 2602.01469).
P_EAGLE_LAYERS = 4
# z-lab/Qwen3-8B-DFlash-b16 config.json: 5 layers over 5 target layers' hidden states.
DFLASH_LAYERS = 5
DFLASH_CAPTURED_LAYERS = 5
# z-lab/Qwen3.8-27B-DFlash2 config.json (dflash_config).
DFLASH2_SIZES = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 256, "selector_top_k": 16}
# DSpark's Markov head: rank-256 transition bias over the vocabulary (vLLM qwen3_dspark, markov_rank).
DSPARK_MARKOV_RANK = 256
# ibm-ai-platform/llama3-8b-accelerator config.json: inner_dim 3072, tied heads.
MLP_SPECULATOR_INNER = 3072
# Width of a gate of Snowflake's LSTM speculators, 4 of them in one matrix (arctic_speculator.py of Arctic Inference).
ARCTIC_INNER = 4096
# Llama-3's ratio of MLP width to hidden size, for heads on targets that have no dense MLP to copy.
_MLP_RATIO = 3.5
# Attention of a head on an MLA target: ordinary heads of this size with 8 KV heads (an assumption).
_HEAD_DIM = 128
_KV_HEADS = 8


def eagle_head(
    target: ModelSpec,
    version: str = "eagle3",
    *,
    decoder: ModelSpec | None = None,
    draft_vocab_size: int | None = None,
    captured_layers: int = EAGLE3_CAPTURED_LAYERS,
) -> ModelSpec:
    """EAGLE head: one Llama layer over the fused [token embedding, hidden state].

    ``eagle`` (arXiv 2401.15077; EAGLE-2, arXiv 2406.16858, is the same module): fc ``2h -> h`` in every pass, one
    layer without input norm, target's embedding and lm_head. 0.24 B parameters for Llama-2-7B, 0.99 B for 70B (paper,
    section 4.1). ``eagle3`` (arXiv 2503.01840): fc ``3h -> h`` once over the target's rows, q/k/v of the first layer
    read ``2h``, own lm_head over the draft vocabulary; 0.42 B for Llama-3.1-8B, of which 0.13 B are lm_head.
    ``p_eagle`` (arXiv 2602.01469): a deeper EAGLE-3 head that drafts all tokens in one pass over masked positions.

    Args:
        target: the model drafted for.
        version: "eagle", "eagle3" or "p_eagle".
        decoder: the head's layers; by default one of the target's width (of ``p_eagle`` 4).
        draft_vocab_size: EAGLE-3's own vocabulary; 32000 (or the target's, if smaller) by default.
        captured_layers: target layers whose hidden states EAGLE-3 fuses; 0: no fc.

    Raises:
        ModelError: unknown version, or a draft vocabulary for "eagle", which has none.
    """
    layers = decoder or usual_decoder(target, P_EAGLE_LAYERS if version == "p_eagle" else 1)
    hidden = layers.hidden_size
    if version == "eagle":
        if draft_vocab_size is not None:
            raise ModelError("eagle shares the target's lm_head", key="draft_vocab_size", value=draft_vocab_size)
        fused = hidden + target.hidden_size
        return replace(
            layers,
            name=f"{target.name}-eagle",
            architecture="EagleLlamaForCausalLM",
            norms_per_layer=1,
            final_norm=False,
            shares_lm_head=True,
            fc_input_size=fused,
            fc_every_pass=True,
            extra_parameters=fused * hidden,
        )
    if version in ("eagle3", "p_eagle"):
        vocab = min(EAGLE3_DRAFT_VOCAB, target.vocab_size) if draft_vocab_size is None else draft_vocab_size
        fused = captured_layers * target.hidden_size
        own_embedding = 0 if hidden == target.hidden_size else target.vocab_size * hidden
        # The learned hidden state that stands in at masked positions.
        masked = fused if version == "p_eagle" else 0
        return replace(
            layers,
            name=f"{target.name}-{version.replace('_', '-')}",
            architecture="Eagle3LlamaForCausalLM",
            vocab_size=_draft_vocab(target, vocab),
            attention_input_size=2 * hidden,
            fc_input_size=fused,
            extra_parameters=fused * hidden + hidden + own_embedding + masked,  # fc and the norm of the hidden state
        )
    raise ModelError("unknown version; known: eagle, eagle3, p_eagle", key="version", value=version)


def mtp_head(target: ModelSpec) -> ModelSpec:
    """The target's own multi-token-prediction layer (DeepSeek-V3, arXiv 2412.19437, section 2.2).

    One decoder layer like the target's last one (for DeepSeek-V3 with all its experts: 11.5 B parameters, 14 B with the
    embedding and lm_head it shares), fed by ``eh_proj`` ``2h -> h`` in every pass. More than one draft token runs the
    same layer again, as vLLM does.

    Raises:
        ModelError: the target's checkpoint has no MTP layer.
    """
    if target.num_nextn_layers == 0:
        raise ModelError("the model has no multi-token-prediction layer; use eagle3 or draft_model", key="mtp",
                         value=target.name)  # fmt: skip
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
        num_nextn_layers=0,
        shares_embedding=True,
        shares_lm_head=True,
        tie_word_embeddings=False,
        position_embeddings=0,
        fc_input_size=2 * hidden,
        fc_every_pass=True,
        extra_parameters=2 * hidden * hidden + 2 * hidden,  # eh_proj, enorm, hnorm
    )


def dflash_head(
    target: ModelSpec,
    *,
    decoder: ModelSpec | None = None,
    draft_vocab_size: int | None = None,
    captured_layers: int = DFLASH_CAPTURED_LAYERS,
) -> ModelSpec:
    """DFlash: a block-diffusion drafter; K and V of the context come from fused target hidden states.

    Qwen3-like layers, fc ``(captured_layers * h) -> h`` over the target's rows, target's embedding and, without a draft
    vocabulary of its own, lm_head. Defaults as z-lab/Qwen3-8B-DFlash-b16: about 1.05 B parameters for Qwen3-8B.
    """
    layers = decoder or replace(usual_decoder(target, DFLASH_LAYERS), qk_norm=True)
    fused = captured_layers * target.hidden_size
    return replace(
        layers,
        name=f"{target.name}-dflash",
        architecture="DFlashDraftModel",
        vocab_size=_draft_vocab(target, draft_vocab_size or target.vocab_size),
        shares_lm_head=draft_vocab_size is None,
        fc_input_size=fused,
        extra_parameters=fused * layers.hidden_size + layers.hidden_size,
    )


def dflash2_head(
    target: ModelSpec,
    *,
    decoder: ModelSpec | None = None,
    draft_vocab_size: int | None = None,
    captured_layers: int = DFLASH_CAPTURED_LAYERS,
    sizes: Mapping[str, Any] = DFLASH2_SIZES,
) -> ModelSpec:
    """DFlash2 (inco.ai/blog/dflash2; vLLM PR 52816): a DFlash backbone with convolutions and a candidate selector.

    Each attention and each MLP stands between two convolutions along the block, whose kernels one projection of its
    input makes. The selector scores the ``selector_top_k`` best tokens of a position after those of the one before, by
    two codebooks over the vocabulary, and walks along the best.

    Raises:
        ModelError: channels that do not divide the hidden size.
    """
    head = dflash_head(target, decoder=decoder, draft_vocab_size=draft_vocab_size, captured_layers=captured_layers)
    head = replace(head, name=f"{target.name}-dflash2", architecture="DFlash2DraftModel", **sizes)
    hidden, taps, rank = head.hidden_size, head.conv_kernel_size, head.selector_rank
    if hidden % head.conv_group_size:
        message = f"a divisor of the hidden size {hidden} is needed"
        raise ModelError(message, key="conv_group_size", value=head.conv_group_size)
    convolution = 2 * taps * (hidden * hidden // head.conv_group_size + hidden)
    selector = hidden * rank + 2 * rank * head.vocab_size
    more = 2 * head.num_hidden_layers * convolution + selector
    return replace(head, extra_parameters=head.extra_parameters + more)


def dspark_head(
    target: ModelSpec,
    *,
    decoder: ModelSpec | None = None,
    draft_vocab_size: int | None = None,
    captured_layers: int = DFLASH_CAPTURED_LAYERS,
    markov_rank: int = DSPARK_MARKOV_RANK,
) -> ModelSpec:
    """DSpark: a DFlash backbone, a sequential low-rank Markov head over the vocabulary and a confidence head."""
    backbone = dflash_head(target, decoder=decoder, draft_vocab_size=draft_vocab_size, captured_layers=captured_layers)
    markov = 2 * markov_rank * backbone.vocab_size
    confidence = backbone.hidden_size + markov_rank + 1
    return replace(
        backbone,
        name=f"{target.name}-dspark",
        architecture="Qwen3DSparkModel",
        markov_rank=markov_rank,
        extra_parameters=backbone.extra_parameters + markov + confidence,
    )


def medusa_heads(target: ModelSpec, num_heads: int) -> ModelSpec:
    """Medusa-1 (arXiv 2401.10774): ``num_heads`` residual blocks ``h -> h``, each with its own lm_head; no KV."""
    hidden = target.hidden_size
    return replace(
        _no_layers(target, num_heads),
        name=f"{target.name}-medusa",
        architecture="MedusaModel",
        shares_embedding=True,
        extra_parameters=num_heads * hidden * hidden,
    )


def mlp_speculator_heads(target: ModelSpec, num_heads: int, *, inner_dim: int = MLP_SPECULATOR_INNER) -> ModelSpec:
    """MLP speculator (arXiv 2404.19124) with tied stages: one embedding and one lm_head of width ``inner_dim``.

    Each stage runs ``inner -> inner`` (the first ``h -> inner``), adds the last token's embedding, and lm_head.
    """
    inner_matrices = target.hidden_size * inner_dim + inner_dim * inner_dim + 2 * inner_dim
    return replace(
        _no_layers(target, num_heads),
        name=f"{target.name}-mlp-speculator",
        architecture="MLPSpeculatorPreTrainedModel",
        hidden_size=inner_dim,
        word_embed_proj_dim=inner_dim,
        fc_input_size=target.hidden_size,
        num_draft_heads=num_heads,
        shares_lm_head=True,  # one table for all stages: counted once, in extra_parameters
        extra_parameters=inner_matrices + inner_dim * target.vocab_size,
    )


def arctic_heads(target: ModelSpec, num_heads: int) -> ModelSpec:
    """LSTM speculator of Arctic Inference: the MLP speculator with an LSTM's four gates, each ``ARCTIC_INNER`` wide.

    Not modelled: its lm_head in fp8 for up to 32 requests.
    """
    base = mlp_speculator_heads(target, num_heads, inner_dim=ARCTIC_INNER)
    matrices = (target.hidden_size + ARCTIC_INNER) * ARCTIC_INNER
    return replace(
        base,
        name=f"{target.name}-arctic-lstm",
        architecture="ArcticLSTMSpeculatorPreTrainedModel",
        draft_gates=4,
        extra_parameters=base.extra_parameters + 3 * matrices,
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
        tie_word_embeddings=False,
        gated_mlp=True,
        attention_bias=False,
        mlp_bias=False,
        position_embeddings=0,
        word_embed_proj_dim=hidden,
        shares_embedding=True,
    )


def _draft_vocab(target: ModelSpec, vocab: int) -> int:
    if vocab > target.vocab_size:
        allowed = f"at most the target's vocab_size = {target.vocab_size}"
        raise ModelError(allowed, key="draft_vocab_size", value=vocab)
    return vocab


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
