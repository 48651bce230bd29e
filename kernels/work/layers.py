"""What a forward pass of a model consists of on one tensor-parallel rank: matrices, element-wise work, collectives.

What each of them costs stands in the file of its family; `kernels/operators/cost` says how work is counted. Row counts
are numpy arrays (or scalars), results float64 arrays that broadcast.
"""

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from numpy.typing import ArrayLike

from draftcast.kernels.model.dtypes import WEIGHT_BYTES, activation_bytes, weight_dtype, wide_dtype
from draftcast.kernels.model.matrices import Matrix, matrices
from draftcast.kernels.model.spec import ModelSpec
from draftcast.kernels.operators.attention import attention_work
from draftcast.kernels.operators.cost import Work, as_array, moved_work
from draftcast.kernels.operators.gated_delta import linear_attention_work
from draftcast.kernels.operators.linear import linear_work, moe_work
from draftcast.kernels.operators.sparse import indexer_work


@dataclass(frozen=True, slots=True)
class LinearLayer(Matrix):
    """A `Matrix` with what it costs."""

    formats: tuple[tuple[str, tuple[str, float]], ...] = ()  # `ModelSpec.stored` of its group by checkpoint's format
    in_blocks: bool = False  # whether what is in fp8 has a scale for each block of weights

    def stored(self, dtype: str) -> tuple[str, float]:
        """Format of its weights in a checkpoint of ``dtype``, and the bytes of one (group scales included)."""
        dtype = weight_dtype(dtype)
        if not self.quantised:
            return wide_dtype(dtype), activation_bytes(dtype)
        return dict(self.formats).get(dtype, (dtype, WEIGHT_BYTES[dtype]))

    def work(self, m: ArrayLike, dtype: str) -> Work:
        """Work of one of the ``count`` matrices over ``m`` rows."""
        (_, per_element), act = self.stored(dtype), activation_bytes(dtype)
        if self.num_experts:
            return moe_work(m, self.k, self.n, self.num_experts, self.num_experts_per_tok, per_element, act)
        return linear_work(m, self.k, self.n, per_element, act)


@functools.lru_cache(maxsize=256)
def linear_layers(model: ModelSpec, tp: int = 1, expert_tp: int | None = None) -> tuple[LinearLayer, ...]:
    """All `matrices` of one forward pass on one of ``tp`` ranks, lm_head apart.

    ``expert_tp``: ranks over which the width of routed experts is split, where not ``tp``. Raises ModelError: ``tp``
    does not divide the attention heads.
    """
    model.check_tensor_parallel(tp)
    chosen = matrices(model, tp, expert_tp or tp)
    in_blocks = model.weight_block is not None
    return tuple(
        LinearLayer(**asdict(matrix), formats=_formats(model, matrix.group), in_blocks=in_blocks) for matrix in chosen
    )


def _formats(model: ModelSpec, group: str) -> tuple[tuple[str, tuple[str, float]], ...]:
    return tuple((dtype, model.stored(group, dtype)) for dtype in WEIGHT_BYTES)


def lm_head(model: ModelSpec, tp: int = 1) -> LinearLayer:
    """The matrix from hidden state to logits; split by vocabulary, in 16 bits but where a checkpoint says other."""
    formats = _formats(model, "lm_head")
    return LinearLayer("lm_head", model.word_embed_proj_dim, math.ceil(model.vocab_size / tp), 1, formats=formats)


@dataclass(frozen=True, slots=True)
class ElementwisePart:
    """One kind of memory-bound kernel of a forward pass; per row, one FLOP is counted for every element moved."""

    kernel: str  # name of the operator in `draftcast.kernels` that runs it; "" for none
    key: tuple[int, ...]  # that operator's shape besides the rows
    count: int  # how often it runs in a pass
    elements: float  # elements a row moves in one run
    launches: int  # kernels of all runs together
    in_experts: bool = False  # whether the time of routed experts holds it

    def work(self, m: ArrayLike, act_bytes: float = 2.0) -> Work:
        """Work of all runs over ``m`` rows."""
        return moved_work(as_array(m) * self.elements * self.count, act_bytes)


def elementwise_parts(model: ModelSpec, tp: int = 1) -> Iterator[ElementwisePart]:
    """Norms, rotary embedding, activations, residuals, routing and the embedding look-up of a whole forward pass.

    Fused as in vLLM: each norm with its residual add reads and writes two rows of ``h`` (4h); rotary reads and writes q
    and k; SwiGLU reads ``2f`` and writes ``f`` (a plain activation ``f`` and ``f``).
    """
    hidden, layers = model.hidden_size, model.num_hidden_layers
    yield ElementwisePart("embedding", (model.vocab_size, hidden), 1, 2.0 * hidden, 1)
    if model.per_layer_input_size:  # looked up, normalised and added to the projection; then a gate in every layer
        yield ElementwisePart("", (), layers, 10.0 * model.per_layer_input_size, layers + 3)
    if layers:
        norms, streams = layers * model.norms_per_layer, model.residual_streams
        if streams:
            # Read, written with the last output added, and mixed into the next input: one kernel (vLLM 0.32), whose
            # small matrix is not counted.
            yield ElementwisePart("", (), 2 * layers, (2.0 * streams + 2.0) * hidden, 2 * layers)
        if norms:
            yield ElementwisePart("rmsnorm", (hidden,), norms, 4.0 * hidden, norms)
        yield from _rotary_parts(model, tp)
        yield from _activation_parts(model, tp)
        yield from _gate_parts(model, tp)
    if model.final_norm:
        # Without a residual: half of what the fused norm moves.
        yield ElementwisePart("", (), 1, 2.0 * hidden, 1)
    if model.num_draft_heads:
        yield ElementwisePart("", (), 1, 3.0 * hidden, 1)
    if model.selector_rank:
        # Each convolution reads and writes a row and reads its dynamic kernel; the selector reads two codebooks' rows
        # of every candidate and writes a score for each pair.
        taps, top_k = model.conv_kernel_size / model.conv_group_size, model.selector_top_k
        yield ElementwisePart("", (), 4 * layers, (2.0 + taps) * hidden, 4 * layers)
        yield ElementwisePart("", (), 1, 2.0 * top_k * model.selector_rank + top_k * top_k, 2)


def _rotary_parts(model: ModelSpec, tp: int) -> Iterator[ElementwisePart]:
    if model.is_mla:
        return  # with the norms of the latents part of the attention's times, see `kernels/operators/attention`
    for layers, kind in model.attention_kinds():
        if not layers:
            continue
        heads, kv_heads = kind.num_attention_heads // tp, kind.kv_heads_per_rank(tp)
        if model.position_embeddings:
            # No rotary; a kernel adds the biases instead, its bytes are those of the matrices around it.
            moved = 0.0
            yield ElementwisePart("", (), layers, 0.0, layers)
        else:
            moved = float((heads + kv_heads) * kind.head_dim)
            yield ElementwisePart("rotary", (heads, kv_heads, kind.head_dim), layers, 2.0 * moved, layers)
        if model.qk_norm:
            # Over the heads of all ranks: a kernel before the sum of squares, one behind it.
            passes = 2 if model.qk_norm_all_heads and tp > 1 else 1
            yield ElementwisePart("", (), layers, (1.0 + passes) * moved, passes * layers)


def _activation_parts(model: ModelSpec, tp: int) -> Iterator[ElementwisePart]:
    kernel, moved = ("swiglu", 3.0) if model.gated_mlp else ("", 2.0)
    for count, width in model.dense_widths(tp):
        yield ElementwisePart(kernel, (width,), count, moved * width, count)
    if model.num_moe_layers:
        width, count = math.ceil(model.moe_intermediate_size / tp), model.num_moe_layers
        top_k = model.num_experts_per_tok
        # Choice of the experts from the router's logits; then permute, activation and the weighted sum.
        yield ElementwisePart("", (), count, 2.0 * model.num_experts, count)
        experts = moved * width * top_k + model.expert_input_size * (top_k + 1)
        yield ElementwisePart("", (), count, experts, 3 * count, in_experts=True)
        if model.num_shared_experts:
            shared = model.num_shared_experts * width
            yield ElementwisePart(kernel, (shared,), count, moved * shared, 0)


def _gate_parts(model: ModelSpec, tp: int) -> Iterator[ElementwisePart]:
    """Gates on outputs: of attention, of shared experts (a dot product and a product), of linear layers with a norm."""
    if model.attention_output_gate:
        width, count = model.num_attention_heads // tp * model.value_dim, model.num_attention_layers
        yield ElementwisePart("", (), count, 3.0 * width, count)
    if model.shared_expert_gate:
        yield ElementwisePart("", (), model.num_moe_layers, 3.0 * model.hidden_size, 2 * model.num_moe_layers)
    if model.num_linear_layers:
        _, values, _ = model.linear_widths(tp)
        yield ElementwisePart("", (), model.num_linear_layers, 3.0 * values, model.num_linear_layers)


def elementwise_work(model: ModelSpec, m: ArrayLike, *, tp: int = 1, act_bytes: float = 2.0) -> Work:
    """Work of all `elementwise_parts` over ``m`` rows."""
    per_row = sum(part.count * part.elements for part in elementwise_parts(model, tp))
    return moved_work(as_array(m) * per_row, act_bytes)


def elementwise_kernels(model: ModelSpec, tp: int = 1) -> int:
    """Launches of ``elementwise_work`` in one forward pass."""
    return sum(part.launches for part in elementwise_parts(model, tp))


def all_reduces(model: ModelSpec, act_bytes: float = 2.0) -> tuple[tuple[float, int], ...]:
    """All-reduces of one forward pass, as (bytes of a row, how many).

    Hidden states: after attention and after the MLP of every layer, one after the embedding. Where queries and keys
    have one norm over the heads of all ranks, the sum of squares of either in float32 (vLLM's MiniMaxText01RMSNormTP;
    Olmo's models gather queries and keys instead, which takes a small batch about as long).
    """
    halves = model.num_feed_forward_only_layers + model.num_attention_only_layers
    of_norms = model.num_attention_layers if model.qk_norm_all_heads else 0
    return (model.hidden_size * act_bytes, 2 * model.num_hidden_layers - halves + 1), (2 * 4.0, of_norms)


def context_work(model: ModelSpec, f: Mapping[str, Any], tp: int, dtype: str, kv_cache_dtype: str) -> Work:
    """All layers' attention, indexers and states over a step's features (``sim/cost/step_time``) on one rank.

    Prompts count in absorbed form too; ``dtype`` is that of the weights.
    """
    act, rows = activation_bytes(dtype), f["tokens"]
    (full, _), (sliding, windowed) = model.attention_kinds()
    kv, pairs = f["decode_kv"] + f["prefill_kv"], f["decode_qkv"] + f["prefill_qkv"]
    seen, seen_pairs = f["win_decode_kv"] + f["win_prefill_kv"], f["win_decode_qkv"] + f["win_prefill_qkv"]
    work = linear_attention_work(model, f, tp, dtype)
    if model.is_sparse:
        work = work.add(indexer_work(model, rows, kv, pairs, tp).scale(model.num_indexed_layers))
        seen = f["win_decode_qkv"] + f["win_prefill_kv"]
    for count, kind, tokens, of_tokens in ((full, model, kv, pairs), (sliding, windowed, seen, seen_pairs)):
        one = attention_work(kind, rows, tokens, of_tokens, tp=tp, kv_cache_dtype=kv_cache_dtype, act_bytes=act)
        work = work.add(one.scale(count))
    return work
