"""The matrices of a model on one tensor-parallel rank: `ModelSpec` counts them, `kernels/work` says what they cost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from draftcast.kernels.model.spec import ModelSpec

Scope = Literal["pass", "context", "position"]


@dataclass(frozen=True, slots=True)
class Matrix:
    """``count`` matrices ``k x n`` (per rank), all of one kind in a model."""

    name: str  # qkv, o, gate_up, down, experts_gate_up, ..., or of a draft head: fc, block, markov, selector, ...
    k: int  # input features on this rank
    n: int  # output features on this rank
    count: int  # how often the matrix occurs in one forward pass (layers)
    quantised: bool = True  # whether a quantised checkpoint stores it in its low-bit format
    num_experts: int = 0  # routed experts that share the rows (0: dense); ``k`` and ``n`` are one expert's
    num_experts_per_tok: int = 0  # experts each row visits
    # "pass": every forward pass; "context": only over the target's rows, once a step (EAGLE-3's and DFlash's fc, the
    # first stage of an MLP speculator); "position": once for every draft position, one row per request (DSpark's Markov
    # head)
    scope: Scope = "pass"
    group: str = "attention"  # of `ModelSpec.parameter_groups`


def matrices(model: ModelSpec, tp: int, expert_tp: int) -> Iterator[Matrix]:
    """All matrices of one forward pass on one of ``tp`` ranks, lm_head apart, routed experts split over ``expert_tp``.

    Megatron sharding: qkv and gate/up are split by columns, o and down by rows; KV heads are replicated when there are
    fewer than ranks; routers, MLA's down-projection and a head's fc are whole on every rank. Fused as vLLM fuses them
    (qkv, gate_up).
    """
    yield from _of_draft_head(model, tp)
    if model.num_hidden_layers:
        yield from _latent_attention(model, tp) if model.is_mla else _attention(model, tp)
        yield from _states(model, tp)
        yield from _feed_forward(model, tp, expert_tp)
        yield from _indexers(model, tp)
        yield from _residuals(model)
    if model.word_embed_proj_dim != model.hidden_size:
        inner, outer = model.word_embed_proj_dim, model.hidden_size
        yield Matrix("project_in", inner, outer, 1, quantised=False, group="embedding")
        yield Matrix("project_out", outer, inner, 1, quantised=False, group="embedding")


def _output(model: ModelSpec, tp: int) -> list[tuple[str, int, int]]:
    """(name, inputs, outputs) of attention's output projection.

    DeepSeek-V4's groups of heads have a matrix each to a low rank; together they count as one (vLLM 0.32).
    """
    width = model.num_attention_heads * model.value_dim
    if not model.o_groups:
        return [("o", width // tp, model.hidden_size)]
    rank = model.o_groups // tp * model.o_lora_rank
    return [("o_a", width // model.o_groups, rank), ("o", rank, model.hidden_size)]


def _latent_attention(model: ModelSpec, tp: int) -> Iterator[Matrix]:
    """MLA's, in absorbed form (DeepSeek-V2, arXiv 2405.04434, section 2.1.2 and appendix B).

    kv_b is applied head by head to queries (nope -> latent) and to attention outputs (latent -> v), so it costs
    kv_lora_rank * (nope + v) * heads; heads that attend to latents alone have none.
    """
    hidden, heads, count = model.hidden_size, model.num_attention_heads // tp, model.num_attention_layers
    query_dim = heads * (model.qk_nope_head_dim + model.qk_rope_head_dim)
    yield Matrix("qkv_a", hidden, model.q_lora_rank + model.kv_lora_rank + model.qk_rope_head_dim, count)
    yield Matrix("q_b", model.q_lora_rank or hidden, query_dim, count)
    if not model.kv_compression:
        yield Matrix("kv_b", model.kv_lora_rank, heads * (model.qk_nope_head_dim + model.v_head_dim), count)
    yield from (Matrix(name, k, n, count, group="attention_out") for name, k, n in _output(model, tp))
    for number, kind in model.attention_kinds():
        if number and kind.kv_compression:
            # A token's part of a compressed entry and its score; entries of 4 tokens overlap, each token is part of two
            # (vLLM 0.32, ``models/deepseek_v4/compressor.py``).
            size = kind.entries_of_token * 2 * kind.kv_elements_per_layer()
            yield Matrix("compress", hidden, size, number, quantised=False, group="router")
    if model.attention_output_gate:
        yield Matrix("attention_gate", hidden, heads * model.v_head_dim, count)


def _attention(model: ModelSpec, tp: int) -> Iterator[Matrix]:
    hidden = model.hidden_size
    counts: Counter[Matrix] = Counter()  # equal matrices of several kinds of layers are one entry
    for (number, kind), (cached, _) in zip(model.attention_kinds(), model.cached_kinds(), strict=True):
        if not number:
            continue
        name, heads = "" if kind is model else "window_", kind.num_attention_heads // tp
        qkv = kind.qkv_size(tp) + (heads * kind.value_dim if model.attention_output_gate else 0)
        first = model.attention_input_size if not counts else 0
        if first:
            counts[Matrix("qkv_first", first, qkv, 1)] = 1
        if cached > bool(first):
            counts[Matrix(f"{name}qkv", hidden, qkv, 1)] += cached - bool(first)
        if number > cached:
            counts[Matrix(f"{name}q", hidden, qkv - kind.kv_elements_per_layer(tp), 1)] += number - cached
        for output, k, n in _output(kind, tp):
            counts[Matrix(name + output, k, n, 1, group="attention_out")] += number
    yield from (replace(matrix, count=count) for matrix, count in counts.items())


def _states(model: ModelSpec, tp: int) -> Iterator[Matrix]:
    """Linear attention's. Gated DeltaNet: q, k, v and the output's gate z; a beta and a decay for every head. Mamba-2:
    the gate z, x, B, C and a time step for every head. KDA: q, k, v, the gate, a decay's low rank and a beta for every
    head; decays (vLLM 0.32, ``in_proj_qkvgfab`` and ``f_b_proj``)."""
    if not model.num_linear_layers:
        return
    hidden, size, rank = model.hidden_size, model.linear_key_head_dim, model.linear_gate_rank
    keys, values, value_heads = model.linear_widths(tp)
    shapes = [("qkvz", hidden, 2 * keys + 2 * values), ("ba", hidden, 2 * value_heads)]
    if model.linear_kind == "mamba2":
        shapes = [("mamba_in", hidden, 2 * values + 2 * keys + value_heads)]
    elif model.linear_kind == "kda":
        qkvg = 2 * keys + values + (rank or values) + size + value_heads
        shapes = [("qkvgfb", hidden, qkvg), ("decays", size, keys), *([("gate", rank, values)] if rank else [])]
    for name, k, n in (*shapes, ("linear_out", values, hidden)):
        yield Matrix(name, k, n, model.num_linear_layers, name != "ba", group="linear_attention")


def _feed_forward(model: ModelSpec, tp: int, expert_tp: int) -> Iterator[Matrix]:
    hidden, wide = model.hidden_size, 2 if model.gated_mlp else 1
    up, down = ("gate_up", "down") if model.gated_mlp else ("fc1", "fc2")
    for count, width in model.dense_widths(tp):
        yield Matrix(up, hidden, wide * width, count, group="dense_mlp")
        yield Matrix(down, width, hidden, count, group="dense_mlp")
    if model.per_layer_input_size:
        size, count = model.per_layer_input_size, model.num_hidden_layers
        yield Matrix("per_layer_model", hidden, count * size, 1, quantised=False, group="router")
        yield Matrix("per_layer_gate", hidden, size, count, quantised=False, group="router")
        yield Matrix("per_layer_out", size, hidden, count, quantised=False, group="router")
    if model.num_moe_layers:
        width, count = math.ceil(model.moe_intermediate_size / expert_tp), model.num_moe_layers
        experts, top_k, inputs = model.num_experts, model.num_experts_per_tok, model.expert_input_size
        yield Matrix("router", hidden, experts, count, quantised=False, group="router")
        yield Matrix("experts_" + up, inputs, wide * width, count, True, experts, top_k, group="experts")
        yield Matrix("experts_" + down, width, inputs, count, True, experts, top_k, group="experts")
        if model.moe_latent_size:
            yield Matrix("latent_in", hidden, inputs, count, quantised=False, group="router")
            yield Matrix("latent_out", inputs, hidden, count, quantised=False, group="router")
        if model.num_shared_experts:
            shared = model.num_shared_experts * math.ceil(model.moe_intermediate_size / tp)
            yield Matrix("shared_" + up, hidden, wide * shared, count, group="shared_experts")
            yield Matrix("shared_" + down, shared, hidden, count, group="shared_experts")


def _indexers(model: ModelSpec, tp: int) -> Iterator[Matrix]:
    """Every rank has DeepSeek's whole: queries from the queries' low rank; in 16 bits the key and weights of the heads.

    MiniMax's stand beside q, k and v, heads split (vLLM 0.32).
    """
    heads, size, hidden, count = model.index_n_heads, model.index_head_dim, model.hidden_size, model.num_indexed_layers
    if count and model.is_mla:
        keys = 2 * model.windowed.entries_of_token * size if model.kv_compression else size
        yield Matrix("index_q", model.q_lora_rank, heads * size, count)
        yield Matrix("index_k", hidden, keys + heads, count, quantised=False, group="router")
    elif count:
        yield Matrix("index_qk", hidden, max(1, heads // tp) * size + size, count)


def _residuals(model: ModelSpec) -> Iterator[Matrix]:
    """Matrices of the residual's streams, before each half layer and at the end, and keys and values of n-grams.

    Whole on each rank, in 16 bits (SGLang, ``models/qwen4_exp.py``).
    """
    wide, count = max(1, model.residual_streams) * model.hidden_size, 2 * model.num_hidden_layers + 1
    if model.residual_rank:
        yield Matrix("streams_in", wide, model.residual_rank + model.residual_streams, count, False, group="router")
        yield Matrix("streams_out", model.residual_rank, wide, count, False, group="router")
    if model.num_ngram_layers:
        keys_and_value = wide + model.hidden_size
        yield Matrix("ngram", model.ngram_size, keys_and_value, model.num_ngram_layers, False, group="router")


def _of_draft_head(model: ModelSpec, tp: int) -> Iterator[Matrix]:
    hidden, gates = model.hidden_size, model.draft_gates
    if model.fc_input_size:
        scope: Scope = "pass" if model.fc_every_pass else "context"
        yield Matrix("fc", model.fc_input_size, gates * hidden, 1, quantised=False, scope=scope, group="extra")
    if model.num_draft_heads:
        # One forward pass is one head: its block, then lm_head.
        yield Matrix("block", hidden, gates * hidden, 1, quantised=False, group="extra")
    if model.selector_rank:
        # The kernels of a sublayer's two convolutions, and what a position says of its candidates: whole on each rank.
        kernels = 2 * model.conv_kernel_size * hidden // model.conv_group_size
        yield Matrix("conv_kernel", hidden, kernels, 2 * model.num_hidden_layers, quantised=False, group="extra")
        yield Matrix("selector", hidden, model.selector_rank, 1, quantised=False, group="extra")
    if model.markov_rank:
        columns = math.ceil(model.vocab_size / tp)
        yield Matrix("markov", model.markov_rank, columns, 1, quantised=False, scope="position", group="extra")
