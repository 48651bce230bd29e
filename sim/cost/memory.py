"""How many KV-cache blocks a replica has: device memory less weights, activations and CUDA graphs (as vLLM profiles).

It follows vLLM 0.32's ``determine_available_memory``: ``memory * gpu_memory_utilization`` less what is in use after a
profiling pass over ``max_num_batched_tokens``. vLLM measures that pass; here it is estimated from shapes
(``activation_peak_bytes``), so a budget is good to a few per cent of the memory, and ``num_gpu_blocks`` from a real
server's log should be given where there is one. It knows nothing of requests: the engine allocates the blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from draftcast.calibration.profile.hardware import HardwareSpec
from draftcast.errors import CapacityError
from draftcast.kernels.model.dtypes import activation_bytes
from draftcast.kernels.model.spec import ModelSpec

GIB: int = 2**30
MIB: int = 2**20
# CUDA context growth, cuBLAS workspaces and, with several ranks, NCCL buffers. vLLM start-up logs: "non_torch_memory
# takes" 0.11 to 0.26 GiB on one A100/H100; 0.6 to 0.7 GiB with two ranks (PCIe), 2.1 GiB with eight.
_NON_TORCH_BYTES = 0.15 * GIB
_NON_TORCH_PARALLEL_BYTES = 0.75 * GIB
# vLLM start-up logs, "Estimated CUDA graph memory": 51 piecewise + 35 full graphs take 0.64 to 0.78 GiB, 35 + 19 take
# 0.37 GiB, on models of 28 to 36 layers: about 8 MiB a graph, 0.25 MiB a layer.
_GRAPH_BYTES_PER_LAYER: float = 0.25 * MIB
_GRAPH_CEILING = 512


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Where the memory of one rank goes, in bytes, and the KV blocks that remain.

    ``num_gpu_blocks`` counts like vLLM's: its null block is among them and never holds tokens.
    """

    device_memory_bytes: float
    usable_bytes: float  # device memory x gpu_memory_utilization
    weight_bytes: float  # target
    draft_weight_bytes: float
    activation_bytes: float
    cuda_graph_bytes: float
    non_torch_bytes: float
    kv_cache_bytes: float  # what is left for blocks; of the given blocks when num_gpu_blocks was given
    window_kv_bytes: float  # part of kv_cache_bytes pinned by the windows of sliding layers
    kv_bytes_per_token: float  # target and draft, on the fullest rank; full-attention layers when windows are pinned
    draft_kv_bytes_per_token: float
    block_size: int  # tokens
    num_gpu_blocks: int
    num_gpu_blocks_without_sd: int  # the same engine with speculative decoding off
    is_given: bool  # num_gpu_blocks came from the user, not from memory

    @property
    def kv_tokens(self) -> int:
        """Tokens all blocks hold together (the null block left out)."""
        return (self.num_gpu_blocks - 1) * self.block_size

    @property
    def lost_blocks(self) -> int:
        """Blocks speculative decoding takes away: draft weights, draft KV, wider graphs."""
        return self.num_gpu_blocks_without_sd - self.num_gpu_blocks

    @property
    def lost_fraction(self) -> float:
        """Lost blocks as a share of those without speculative decoding."""
        return self.lost_blocks / self.num_gpu_blocks_without_sd

    def max_concurrency(self, request_tokens: int, lookahead: int = 0) -> float:
        """Requests of ``request_tokens`` (prompt and output) that fit at once, as vLLM's start-up log states it.

        Args:
            request_tokens: length of a request at its end.
            lookahead: KV slots a method reserves past the scheduled tokens.
        """
        return _concurrency(self.num_gpu_blocks, request_tokens + lookahead, self.block_size)

    def lost_concurrency(self, request_tokens: int, lookahead: int = 0) -> float:
        """Requests of that length that fit with speculative decoding off but not with it on."""
        without = _concurrency(self.num_gpu_blocks_without_sd, request_tokens, self.block_size)
        return without - self.max_concurrency(request_tokens, lookahead)


def _concurrency(num_gpu_blocks: int, tokens: int, block_size: int) -> float:
    return (num_gpu_blocks - 1) / math.ceil(max(tokens, 1) / block_size)


@dataclass(frozen=True, slots=True)
class _Engine:
    """The flags a budget depends on, bundled to run the same sum with and without the draft."""

    model: ModelSpec
    hardware: HardwareSpec
    tp: int
    dtype: str
    kv_cache_dtype: str
    draft_tp: int
    draft_dtype: str
    draft_kv_cache_dtype: str
    gpu_memory_utilization: float
    max_num_batched_tokens: int
    max_num_seqs: int
    block_size: int
    enforce_eager: bool


def memory_budget(
    model: ModelSpec,
    hardware: HardwareSpec,
    *,
    tp: int = 1,
    dtype: str = "bf16",
    kv_cache_dtype: str = "auto",
    draft: ModelSpec | None = None,
    draft_tp: int | None = None,
    draft_dtype: str = "bf16",
    draft_kv_cache_dtype: str | None = None,
    k: int = 0,
    gpu_memory_utilization: float = 0.92,
    max_num_batched_tokens: int = 8192,
    max_num_seqs: int = 256,
    block_size: int = 16,
    max_model_len: int | None = None,
    enforce_eager: bool = False,
    num_gpu_blocks: int | None = None,
) -> MemoryBudget:
    """KV blocks of one replica and where its memory goes.

    The fullest of the ``tp`` ranks counts: KV heads are replicated when there are fewer than ranks, and a draft with
    its own, smaller degree stands whole on the first ranks. A model with both full and sliding layers pins one window
    per sequence for the sliding ones and pays per token for the full ones only (vLLM's hybrid KV cache), unless paying
    for every layer leaves more.

    Args:
        model, hardware: target and device.
        tp, draft_tp: tensor-parallel degrees; the draft's is the target's by default.
        dtype, draft_dtype: weight formats.
        kv_cache_dtype, draft_kv_cache_dtype: ``auto`` is 16 bits (fp32 for fp32 weights); the draft follows the target.
        draft: draft model or head, None for methods without device weights.
        k: ``num_speculative_tokens``; widens the CUDA graphs.
        gpu_memory_utilization, max_num_batched_tokens, max_num_seqs, block_size, enforce_eager: vLLM's flags.
        max_model_len: longest request that must fit, in tokens; None: not checked.
        num_gpu_blocks: given instead of derived; memory must still hold the weights.

    Raises:
        CapacityError: weights and activations exceed the usable memory, or one request of ``max_model_len`` does not
            fit into the blocks; the message gives the sizes.
        ModelError: a degree does not divide the heads, or an unknown format.
    """
    if kv_cache_dtype == "auto":
        kv_cache_dtype = "fp32" if activation_bytes(dtype) == 4 else "bf16"
    engine = _Engine(
        model=model,
        hardware=hardware,
        tp=tp,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        draft_tp=tp if draft_tp is None else draft_tp,
        draft_dtype=draft_dtype,
        draft_kv_cache_dtype=draft_kv_cache_dtype or kv_cache_dtype,
        gpu_memory_utilization=gpu_memory_utilization,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        block_size=block_size,
        enforce_eager=enforce_eager,
    )
    budget = _budget(engine, draft, k, num_gpu_blocks)
    if max_model_len is not None and budget.kv_tokens < max_model_len:
        raise CapacityError(
            f"a request of that length needs {max_model_len} tokens of KV cache and there are {budget.kv_tokens} "
            f"({budget.num_gpu_blocks} blocks of {block_size}); lower it, or raise gpu_memory_utilization or "
            "tensor_parallel_size",
            key="max_model_len",
            value=max_model_len,
        )
    return budget


def _budget(engine: _Engine, draft: ModelSpec | None, k: int, given_blocks: int | None) -> MemoryBudget:
    speculates = draft is not None or k > 0
    usable = engine.hardware.memory_bytes * engine.gpu_memory_utilization
    weights = engine.model.weight_bytes(engine.dtype, engine.tp)
    draft_weights = 0.0 if draft is None else draft.weight_bytes(engine.draft_dtype, engine.draft_tp)
    activations = activation_peak_bytes(
        engine.model,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_num_seqs=engine.max_num_seqs,
        tp=engine.tp,
        dtype=engine.dtype,
        draft=draft,
        draft_tp=engine.draft_tp,
    )
    layers = engine.model.num_hidden_layers + (draft.num_hidden_layers if draft is not None else 0)
    graphs = 0.0 if engine.enforce_eager else cuda_graph_bytes(layers, engine.max_num_seqs, k)
    non_torch = _NON_TORCH_BYTES if engine.tp == 1 else _NON_TORCH_PARALLEL_BYTES
    left = usable - weights - draft_weights - activations - graphs - non_torch

    kv = engine.model.kv_bytes_per_token(engine.kv_cache_dtype, engine.tp)
    draft_kv = 0.0 if draft is None else draft.kv_bytes_per_token(engine.draft_kv_cache_dtype, engine.draft_tp)
    windows, per_token = _hybrid_windows(engine, kv, draft_kv, left)
    blocks = int((left - windows) // (per_token * engine.block_size))
    fits = usable > weights + draft_weights if given_blocks is not None else blocks >= 2
    if not fits:
        raise _too_big(engine, usable, weights, draft_weights, activations + graphs + non_torch, per_token)
    if given_blocks is not None:
        blocks, left, windows = given_blocks, given_blocks * per_token * engine.block_size, 0.0
    without = blocks
    if given_blocks is None and speculates:
        without = _budget(engine, None, 0, None).num_gpu_blocks
    return MemoryBudget(
        device_memory_bytes=engine.hardware.memory_bytes,
        usable_bytes=usable,
        weight_bytes=weights,
        draft_weight_bytes=draft_weights,
        activation_bytes=activations,
        cuda_graph_bytes=graphs,
        non_torch_bytes=non_torch,
        kv_cache_bytes=left,
        window_kv_bytes=windows,
        kv_bytes_per_token=per_token,
        draft_kv_bytes_per_token=draft_kv,
        block_size=engine.block_size,
        num_gpu_blocks=blocks,
        num_gpu_blocks_without_sd=without,
        is_given=given_blocks is not None,
    )


def _hybrid_windows(engine: _Engine, kv: float, draft_kv: float, left: float) -> tuple[float, float]:
    """(bytes pinned by sliding windows, bytes per further token); (0, all layers) where windows do not pay."""
    model = engine.model
    plain = kv + draft_kv
    if not 0 < model.num_sliding_layers < model.num_hidden_layers:
        return 0.0, plain
    sliding = kv * model.num_sliding_layers / model.num_hidden_layers
    # A window that does not start on a block boundary touches one block more.
    window_tokens = (math.ceil(model.sliding_window / engine.block_size) + 1) * engine.block_size
    pinned = engine.max_num_seqs * window_tokens * sliding
    per_token = plain - sliding
    if (left - pinned) / per_token <= left / plain:
        return 0.0, plain
    return pinned, per_token


def activation_peak_bytes(
    model: ModelSpec,
    *,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    tp: int = 1,
    dtype: str = "bf16",
    draft: ModelSpec | None = None,
    draft_tp: int = 1,
) -> float:
    """Estimated peak of live activations of one step on one rank.

    Per token: residual, layer input and layer output (``3h``), and the widest of attention (q, k, v and output), dense
    MLP (``2f`` in, ``f`` out; ungated ``f`` and ``f``) and experts (vLLM's two workspaces,
    ``top_k * (max(2f, h) + f)``), widths per rank; a draft's input of fused hidden states comes on top. Per sampled row
    logits in the model's format and two fp32 copies. A Llama-3-8B with 8192 tokens and 256 sequences comes to 1.15 GiB;
    vLLM measured 1.20 to 1.26 GiB (github.com/vllm-project/vllm/pull/10511).
    """
    act = activation_bytes(dtype)
    width = _live_elements(model, tp)
    if draft is not None:
        width = max(width, _live_elements(draft, draft_tp)) + draft.fc_input_size
    rows = min(max_num_seqs, max_num_batched_tokens)
    return max_num_batched_tokens * width * act + rows * model.vocab_size * (act + 8.0)


def _live_elements(model: ModelSpec, tp: int) -> float:
    """Elements live at once per token in the widest layer."""
    hidden, widest = float(model.hidden_size), 0.0
    gate = 2 if model.gated_mlp else 1
    if model.num_hidden_layers:
        heads = model.num_attention_heads // tp
        if model.is_mla:
            # Prefill expands the latent: q and k of nope + rope, v and output of v_head_dim.
            widest = 2.0 * heads * (model.qk_nope_head_dim + model.qk_rope_head_dim + model.v_head_dim)
        else:
            widest = 2.0 * (heads + model.kv_heads_per_rank(tp)) * model.head_dim
    if model.num_dense_layers:
        widest = max(widest, (gate + 1.0) * model.intermediate_size / tp)
    if model.num_moe_layers:
        expert = model.moe_intermediate_size / tp
        routed = model.num_experts_per_tok * (max(gate * expert, hidden) + expert)
        widest = max(widest, routed + model.num_shared_experts * (gate + 1.0) * expert)
    return 3.0 * hidden + widest


def cuda_graph_bytes(num_layers: int, max_num_seqs: int, k: int = 0) -> float:
    """Memory of captured CUDA graphs: piecewise graphs of all sizes and full graphs of the decode sizes.

    vLLM's sizes: 1, 2, 4, multiples of 8 below 256, multiples of 16 up to ``min(2 * max_num_seqs * (1+k), 512)``.
    """
    decode_rows = max_num_seqs * (1 + k)
    largest = min(2 * decode_rows, _GRAPH_CEILING)
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)]
    piecewise = [size for size in sizes if size <= largest]
    full = [size for size in piecewise if size <= decode_rows]
    return num_layers * (len(piecewise) + len(full)) * _GRAPH_BYTES_PER_LAYER


def _too_big(
    engine: _Engine, usable: float, weights: float, draft_weights: float, rest: float, per_token: float
) -> CapacityError:
    draft = f", draft weights {draft_weights / GIB:.1f} GiB" if draft_weights else ""
    return CapacityError(
        f"does not fit into {engine.hardware.name} with tensor_parallel_size {engine.tp}: "
        f"usable memory {usable / GIB:.1f} GiB ({engine.hardware.memory_bytes / GIB:.1f} GiB x "
        f"gpu_memory_utilization {engine.gpu_memory_utilization:g}), weights {weights / GIB:.1f} GiB in {engine.dtype}"
        f"{draft}, activations and graphs {rest / GIB:.1f} GiB, KV cache {per_token:.0f} bytes a token",
        key="model",
        value=engine.model.name,
    )
