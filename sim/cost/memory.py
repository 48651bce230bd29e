"""How many KV-cache blocks a replica has: device memory less weights, activations and CUDA graphs.

It follows vLLM 0.32's ``determine_available_memory``: ``memory * gpu_memory_utilization`` less what is in use after a
profiling pass over ``max_num_batched_tokens``. vLLM measures that pass; here it is estimated from shapes, good to a few
per cent of the memory: ``num_gpu_blocks`` from a real server's log should be given where there is one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from draftcast.calibration.profile.engines import is_since, since
from draftcast.calibration.profile.hardware import HardwareSpec
from draftcast.errors import CapacityError
from draftcast.kernels.model.dtypes import KV_BYTES, activation_bytes
from draftcast.kernels.model.spec import ModelSpec
from draftcast.sim.cost.engine_config import EngineConfig, given_graph_sizes, graph_sizes, most_captured, stage_layers
from draftcast.sim.cost.methods import METHODS

GIB = 2**30
# CUDA context growth, cuBLAS workspaces and, with several ranks, NCCL buffers. vLLM start-up logs: "non_torch_memory
# takes" 0.11 to 0.26 GiB on one A100/H100; 0.6 to 0.7 GiB with two ranks (PCIe), 2.1 GiB with eight.
_NON_TORCH_BYTES = 0.15 * GIB
_NON_TORCH_PARALLEL_BYTES = 0.75 * GIB
# vLLM start-up logs, "Estimated CUDA graph memory": 51 piecewise + 35 full graphs take 0.64 to 0.78 GiB, 35 + 19 take
# 0.37 GiB, on models of 28 to 36 layers: about 8 MiB a graph, 0.25 MiB a layer.
_GRAPH_BYTES_PER_LAYER = 0.25 * 2**20
_GRAPH_CEILING = 512
# Attention kernels read KV in pages of a multiple of so many tokens (FlashAttention, FlashInfer).
_SMALLEST_PAGE_TOKENS = 16
# FlashInfer's prefill of gated DeltaNet emits states every so many tokens (vLLM 0.33, attention/backends/gdn_attn.py):
# on Hopper, and on families 100 and 120 with keys of this size (layers/mamba/gdn/qwen_gdn_linear_attn.py, CUDA 13).
_CHUNK_TOKENS, _CHUNK_KEYS = 64, 128
_VLLM_SHARE = 0.92
# Of SGLang's rules: the fewest tokens of a step, the memory above which a least is kept, the longest short context.
_LEAST_TOKENS, _LARGE_GIB, _SHORT_CONTEXT = 2048, 60.0, 8192


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Where the memory of one rank goes, in bytes, and the KV blocks that remain.

    ``num_gpu_blocks`` counts like vLLM's: its null block is among them and never holds tokens.
    """

    usable_bytes: float  # device memory x gpu_memory_utilization
    weight_bytes: float  # target
    draft_weight_bytes: float
    activation_bytes: float  # and what the sampler holds of each request
    cuda_graph_bytes: float
    non_torch_bytes: float
    kv_cache_bytes: float  # what is left for blocks; of the given blocks when num_gpu_blocks was given
    window_kv_bytes: float  # part of kv_cache_bytes pinned by the windows of sliding layers
    kv_bytes_per_token: float  # target and draft, on the fullest rank; full-attention layers when windows are pinned
    draft_kv_bytes_per_token: float
    block_size: int  # tokens of a block: the engine's, enlarged for models with linear attention layers
    fixed_blocks: int  # of a running request: its states in linear layers, its last tokens beside compressed entries
    most_requests: int | None  # that a pool of states holds at once; None: there is no such pool
    window_groups: int  # groups of layers with a window, each with blocks of its own for a request, at most window_cap
    window_cap: int
    num_gpu_blocks: int
    without_sd: "MemoryBudget | None"  # the same engine with speculative decoding off, where it is on

    @property
    def kv_tokens(self) -> int:
        """Tokens all blocks hold together (the null block left out)."""
        return (self.num_gpu_blocks - 1) // (1 + self.window_groups) * self.block_size

    def blocks_of(self, tokens: int) -> int:
        """Blocks that a running request of so many tokens holds at most."""
        blocks = math.ceil(max(tokens, 1) / self.block_size)
        return blocks + self.fixed_blocks + self.window_groups * min(blocks, self.window_cap)

    @property
    def lost_blocks(self) -> int:
        """Blocks speculative decoding takes away: draft weights, draft KV, wider graphs."""
        return 0 if self.without_sd is None else self.without_sd.num_gpu_blocks - self.num_gpu_blocks

    def max_concurrency(self, request_tokens: int, lookahead: int = 0) -> float:
        """Requests of ``request_tokens`` (prompt and output) that fit at once, as vLLM's start-up log states it.

        ``lookahead``: KV slots that a method reserves past the scheduled tokens.
        """
        by_blocks = (self.num_gpu_blocks - 1) / self.blocks_of(request_tokens + lookahead)
        return by_blocks if self.most_requests is None else min(by_blocks, self.most_requests)

    def lost_concurrency(self, request_tokens: int, lookahead: int = 0) -> float:
        """Requests of that length that fit with speculative decoding off but not with it on."""
        without = self.without_sd or self
        return without.max_concurrency(request_tokens) - self.max_concurrency(request_tokens, lookahead)


def memory_budget(
    config: EngineConfig, model: ModelSpec, draft: ModelSpec | None, hardware: HardwareSpec
) -> MemoryBudget:
    """KV blocks of one replica and where its memory goes.

    The fullest of the ranks counts: KV heads are replicated when there are fewer than ranks, and a draft with its own,
    smaller degree stands whole on the first ranks. A model with both full and sliding layers pins one window per
    sequence for the sliding ones and pays per token for the full ones only (vLLM's hybrid KV cache), unless paying for
    every layer leaves more; without prefix caching its groups give back blocks behind the window. Where
    ``num_gpu_blocks`` is given, memory must still hold the weights.

    Raises:
        CapacityError: weights and activations exceed the usable memory, or one request of ``max_model_len`` does not
            fit into the blocks.
        ModelError: a degree does not divide the heads.
    """
    budgets = (_stage_budget(config, model, draft, hardware, stage) for stage in range(config.pipeline_parallel_size))
    # All stages have as many blocks as the one with the fewest (vLLM 0.32); of a given number the fullest counts.
    budget = min(budgets, key=lambda b: (b.num_gpu_blocks, -(b.weight_bytes + b.draft_weight_bytes + b.kv_cache_bytes)))
    needed = budget.blocks_of(config.max_model_len) + 1  # one block stays empty, as in vLLM
    if needed > budget.num_gpu_blocks:
        if config.num_gpu_blocks:
            message = f"a request of max_model_len = {config.max_model_len} needs {needed}"
            raise CapacityError(message, key="num_gpu_blocks", value=config.num_gpu_blocks)
        message = (
            f"a request of that length needs {config.max_model_len} tokens of KV cache and there are "
            f"{budget.kv_tokens} ({budget.num_gpu_blocks} blocks of {budget.block_size}); lower it, or raise "
            "gpu_memory_utilization or tensor_parallel_size"
        )
        raise CapacityError(message, key="max_model_len", value=config.max_model_len)
    return budget


def memory_share(config: EngineConfig, model: ModelSpec, hardware: HardwareSpec) -> float:
    """The share of a GPU's memory that the engine takes: the configuration's, else the engine's own default.

    vLLM 0.32 takes 0.92 (``CacheConfig``); SGLang leaves room for activations and CUDA graphs (`MemoryReserve`).
    Raises CapacityError where that rule leaves nothing.
    """
    engine, ranks = config.generation, config.lockstep_ranks
    if config.gpu_memory_utilization is not None or not engine.memory_reserve:
        return config.gpu_memory_utilization or _VLLM_SHARE
    reserve, gib = since(engine.memory_reserve, config.version), hardware.memory_bytes / GIB
    gpus = config.tensor_parallel_size * config.pipeline_parallel_size * ranks
    tokens = max(config.max_num_batched_tokens * (ranks if engine.limits_of_ranks else 1), _LEAST_TOKENS)
    captured = 0
    if config.cudagraph_mode != "NONE" or reserve.eager_too:
        rows = config.max_cudagraph_capture_size
        captured = most_captured(config, gib) or 0 if rows is None else rows // (1 + config.max_drafts)
    base, per_gpu = next((base, per_gpu) for below, base, per_gpu in reserve.base if gib < below)
    left = base + per_gpu * gpus + reserve.token * tokens + reserve.captured * captured
    if ranks > 1:
        left += next(per_request for below, per_request in reserve.captured_rank if captured < below) * captured * ranks
    if config.cudagraph_mode == "FULL_AND_PIECEWISE":
        left += reserve.latent_prompt_graphs if model.is_mla else reserve.prompt_graphs
    left = max(left, reserve.least if gib > _LARGE_GIB else 0.0) + (reserve.ranks if ranks > 1 else 0.0)
    if config.method.needs_draft_model:
        left += reserve.draft_model
    elif config.method.drafts and not config.method.proposes_by_match:
        left += reserve.head
    if left >= gib:
        message = f"by the rule of {config.version} no memory is left for weights: lower it"
        limit = config.max_num_batched_tokens
        raise CapacityError(f"{message} or give gpu_memory_utilization", key="max_num_batched_tokens", value=limit)
    return round(1.0 - left / gib, 3) * (engine.multimodal_share if config.is_multimodal else 1.0)


def _weight_bytes(model: ModelSpec, dtype: str, tp: int, config: EngineConfig, stage: int | None = None) -> float:
    """Of one rank: its part of the experts and its stage's layers. The first embeds, the last has lm_head (or both)."""
    whole = model.weight_bytes(dtype, tp)
    if config.lockstep_ranks > 1:
        whole -= model.weight_bytes(dtype, tp, ("experts",)) * (1.0 - 1.0 / config.lockstep_ranks)
    stages = config.pipeline_parallel_size
    if stage is None or stages == 1:
        return whole
    embedding, ngrams, lm_head = (model.weight_bytes(dtype, tp, (part,)) for part in ("embedding", "ngrams", "lm_head"))
    layers = stage_layers(model.num_hidden_layers, stages)[stage] / model.num_hidden_layers
    first, last = stage == 0, stage == stages - 1
    head = embedding if model.tie_word_embeddings else lm_head
    return (whole - embedding - ngrams - lm_head) * layers + first * (embedding + ngrams) + last * head


def _stage_budget(
    config: EngineConfig, model: ModelSpec, draft: ModelSpec | None, hardware: HardwareSpec, stage: int
) -> MemoryBudget:
    engine, k, tp = config.generation, config.num_speculative_tokens, config.tensor_parallel_size
    stages, dcp = config.pipeline_parallel_size, config.decode_context_parallel_size
    if stage < stages - 1:
        draft = None  # it runs behind the last stage
    taken = memory_share(config, model, hardware)
    if hardware.vendor == "AMD" and config.max_model_len > _SHORT_CONTEXT:
        taken *= engine.amd_context_share
    usable = hardware.memory_bytes * taken
    weights = _weight_bytes(model, config.weight_dtype, tp, config, stage)
    draft_weights = draft_kv = 0.0
    if draft is not None:
        draft_tp, packed = config.draft_tensor_parallel_size, config.packs_latents
        draft_weights = _weight_bytes(draft, config.draft_weight_dtype, draft_tp, config)
        draft_kv = draft.kv_bytes_per_token(config.draft_kv_dtype, draft_tp, packed=packed) / dcp
    activations = activation_peak_bytes(config, model, draft)
    if engine.request_state_bytes and stage == stages - 1:  # where it samples
        activations += since(engine.request_state_bytes, config.version) * config.max_num_seqs * model.vocab_size
    own_layers = stage_layers(model.num_hidden_layers, stages)[stage]
    layers = own_layers + (draft.num_hidden_layers if draft is not None else 0)
    graphs = cuda_graph_bytes(layers, config.max_num_seqs, k, given_graph_sizes(config), config.cudagraph_mode)
    non_torch = _NON_TORCH_BYTES if tp * stages * config.data_parallel_size == 1 else _NON_TORCH_PARALLEL_BYTES
    rest = activations + graphs + non_torch
    beside = rest if engine.memory_beside else 0.0 if is_since(config.version, engine.graphs_counted_since) else graphs
    left = usable - weights - draft_weights - (rest - beside) - max(0.0, beside - (hardware.memory_bytes - usable))

    # Blocks of ranks that share out a context count the tokens of all of them.
    share = own_layers / model.num_hidden_layers / dcp if stages * dcp > 1 else 1.0
    kv = model.kv_bytes_per_token(config.kv_dtype, tp, packed=config.packs_latents) * share
    windows, per_token = _hybrid_windows(config, model, kv, draft_kv, left)
    block_size, fixed_blocks, window_groups = config.block_size * dcp, 0, 0
    most_requests: int | None = None
    if model.num_linear_layers and engine.state_pool_ratio is not None:
        states, most_requests = _state_pool(config, model, left, own_layers)
        left -= states
        per_token = kv + draft_kv
    elif model.num_linear_layers:
        block_size, fixed_blocks, per_token = _state_pages(config, model, draft_kv, hardware)
        per_token *= share
    elif model.kv_compression:
        local_bytes = model.local_kv_bytes(config.kv_dtype, packed=config.packs_latents)
        fixed_blocks = math.ceil(local_bytes / (per_token * block_size))
    elif model.has_window_groups and not config.enable_prefix_caching and share == 1.0:
        # Where no block is kept for another request, layers with a window give back those behind it.
        window_groups, group, per_layer = _layer_groups(config, model, draft_kv)
        windows, per_token = 0.0, group * per_layer
    blocks = int((left - windows) // (per_token * block_size))
    fits = usable > weights + draft_weights if config.num_gpu_blocks else blocks >= 2 and most_requests != 0
    if not fits:
        drafts = f", draft weights {draft_weights / GIB:.1f} GiB" if draft_weights else ""
        degrees = ("pipeline_parallel_size", "data_parallel_size", "decode_context_parallel_size")
        others = "".join(f", {name} {getattr(config, name)}" for name in degrees if getattr(config, name) > 1)
        raise CapacityError(
            f"does not fit into {hardware.name} with tensor_parallel_size {tp}{others}: "
            f"usable memory {usable / GIB:.1f} GiB "
            f"({hardware.memory_bytes / GIB:.1f} GiB x gpu_memory_utilization {taken:.3g}), "
            f"weights {weights / GIB:.1f} GiB in {config.weight_dtype}{drafts}, activations and graphs "
            f"{rest / GIB:.1f} GiB, KV cache {per_token:.0f} bytes a token",
            key="model",
            value=model.name,
        )
    if config.num_gpu_blocks:
        blocks, windows = config.num_gpu_blocks, 0.0
        left = blocks * per_token * block_size
    without = None
    if draft is not None or k > 0:
        off = replace(config, method=METHODS["none"], num_speculative_tokens=0)
        without = _stage_budget(off, model, None, hardware, stage)
    return MemoryBudget(
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
        block_size=block_size,
        fixed_blocks=fixed_blocks,
        most_requests=most_requests,
        window_groups=window_groups,
        window_cap=config.window_cap,
        num_gpu_blocks=blocks,
        without_sd=without,
    )


def _hybrid_windows(
    config: EngineConfig, model: ModelSpec, kv: float, draft_kv: float, left: float
) -> tuple[float, float]:
    """(bytes pinned by sliding windows, bytes per further token); (0, all layers) where windows do not pay."""
    plain = kv + draft_kv
    if not model.mixes_windows:
        return 0.0, plain
    full, _ = model.cached_kinds()[0]
    of_full = full * model.kv_elements_per_layer(config.tensor_parallel_size) * KV_BYTES[config.kv_dtype]
    sliding = kv * (1.0 - of_full / model.kv_bytes_per_token(config.kv_dtype, config.tensor_parallel_size))
    # A window that does not start on a block boundary touches one block more.
    window_tokens = (math.ceil(model.sliding_window / config.block_size) + 1) * config.block_size
    pinned = config.max_num_seqs * window_tokens * sliding
    per_token = plain - sliding
    if (left - pinned) / per_token <= left / plain:
        return 0.0, plain
    return pinned, per_token


def _state_pages(
    config: EngineConfig, model: ModelSpec, draft_kv: float, hardware: HardwareSpec
) -> tuple[int, int, float]:
    """(tokens of a block, blocks that a running request's states hold, bytes of a block per token).

    vLLM 0.32 enlarges attention's block until its page holds a linear layer's states. In each group of linear layers
    (`_layer_groups`) a request holds a block with its states and one more for every draft token, so that rejected
    drafts can be taken back.

    Exact for a draft whose layers have the target's KV heads (MTP) and with prefix caching off; with it vLLM holds one
    block a group more while a request passes from one block to the next, and the cached states of earlier prompts.
    """
    tp, k = config.tensor_parallel_size, config.num_speculative_tokens
    states = model.linear_state_bytes(config.weight_dtype, tp)
    states += model.convolution_state_bytes(config.weight_dtype, tp, k)
    groups, group, per_layer = _layer_groups(config, model, draft_kv)
    align = max(_SMALLEST_PAGE_TOKENS, config.block_size)
    family = int(hardware.compute_capability)
    in_chunks = family == 9 or (family in (10, 12) and model.linear_key_head_dim == _CHUNK_KEYS)
    caches = config.enable_prefix_caching and config.follows("aligns_cached_states")
    if caches and in_chunks and model.linear_kind == "gated_delta":
        align = math.lcm(align, _CHUNK_TOKENS)
    block_size = align * math.ceil(states / (align * per_layer))
    return block_size, groups * (1 + k), group * per_layer


def _state_pool(config: EngineConfig, model: ModelSpec, left: float, own_layers: int) -> tuple[float, int]:
    """(bytes of the pool of states, requests that it holds) where it is apart from the pool of KV (SGLang).

    A request holds a few states, copies for its cached prefix among them, and one more for each row it verifies
    (docs.sglang.io, Hybrid Model Memory Pools).
    """
    engine, k = config.generation, config.num_speculative_tokens
    assert engine.state_pool_ratio is not None
    tp, dtype = config.tensor_parallel_size, config.weight_dtype
    state = model.linear_state_bytes(dtype, tp) + model.convolution_state_bytes(dtype, tp)
    slots = since(engine.state_slots, config.version) if config.enable_prefix_caching else 1
    pool = max(left, 0.0) * engine.state_pool_ratio / (1.0 + engine.state_pool_ratio)
    linear_layers = model.num_linear_layers * own_layers / model.num_hidden_layers  # of the pipeline stage
    request_bytes = (slots + (1 + k if k else 0)) * state * linear_layers
    return pool, int(pool // request_bytes)


def _layer_groups(config: EngineConfig, model: ModelSpec, draft_kv: float) -> tuple[int, int, float]:
    """(groups of linear or sliding layers beside full attention's, layers of a group, bytes of a token in a layer).

    In vLLM's hybrid KV cache all groups hold equally many layers and share one pool of blocks, the draft's layers among
    those of full attention: all of a kind where the kinds are nearly as many, else as many as have full attention.
    """
    per_layer = model.kv_bytes_per_token(config.kv_dtype, config.tensor_parallel_size) / model.num_attention_layers
    other = model.num_linear_layers or model.num_sliding_layers
    full = model.num_attention_layers - (0 if model.num_linear_layers else other) + math.ceil(draft_kv / per_layer)
    group = max(full, other) if max(full, other) < 1.5 * min(full, other) else full
    return math.ceil(other / group), group, per_layer


def activation_peak_bytes(config: EngineConfig, model: ModelSpec, draft: ModelSpec | None = None) -> float:
    """Estimated peak of live activations of one step on one rank, as vLLM's profiling pass meets it.

    The larger of two peaks (vLLM 0.32, ``profile_run``): a forward pass, a draft's input of fused hidden states on top,
    and sampling for ``max_num_seqs`` rows over the whole vocabulary, beside the hidden states of all tokens
    (`EngineGeneration.sampler_bytes`).
    """
    act = activation_bytes(config.weight_dtype)
    width = _live_elements(model, config.tensor_parallel_size)
    if draft is not None:
        width = max(width, _live_elements(draft, config.draft_tensor_parallel_size)) + draft.fc_input_size
    rows = min(config.max_num_seqs, config.max_num_batched_tokens)
    if config.lockstep_ranks > 1:
        # The rows of all ranks before the experts, and their sums behind them.
        width += 2.0 * config.lockstep_ranks * model.hidden_size
    tokens, per_logit = config.max_num_batched_tokens, since(config.generation.sampler_bytes, config.version)
    return max(tokens * width * act, tokens * model.hidden_size * act + rows * model.vocab_size * per_logit)


def _live_elements(model: ModelSpec, tp: int) -> float:
    """Elements live at once per token on one rank: residual, layer input and output, and the widest layer's own.

    Attention has q, k, v and output, a dense MLP ``2f`` in and ``f`` out (ungated ``f`` and ``f``), experts vLLM's two
    workspaces, ``top_k * (max(2f, h) + f)``.
    """
    hidden, widest = float(model.hidden_size), 0.0
    gate = 2 if model.gated_mlp else 1
    if model.num_hidden_layers:
        heads = model.num_attention_heads // tp
        if model.is_mla:
            # Prefill expands the latent: q and k of nope + rope, v and output of v_head_dim.
            widest = 2.0 * heads * (model.qk_nope_head_dim + model.qk_rope_head_dim + model.v_head_dim)
        else:
            kinds = (kind for _, kind in model.attention_kinds())
            widest = max(2.0 * kind.qkv_size(tp) - kind.kv_elements_per_layer(tp) for kind in kinds)
        if model.num_linear_layers:
            keys, values, _ = model.linear_widths(tp)
            widest = max(widest, 2.0 * (keys + values) + values)  # q, k, v, z and output
    if model.num_dense_layers:
        widest = max(widest, (gate + 1.0) * model.intermediate_size / tp * (1 + bool(model.num_double_wide_layers)))
    if model.num_moe_layers:
        expert = model.moe_intermediate_size / tp
        routed = model.num_experts_per_tok * (max(gate * expert, model.expert_input_size) + expert)
        widest = max(widest, routed + model.num_shared_experts * (gate + 1.0) * expert)
    return 3.0 * hidden + widest


def cuda_graph_bytes(
    num_layers: int, max_num_seqs: int, k: int = 0, sizes: Sequence[int] | None = None, mode: str = "FULL_AND_PIECEWISE"
) -> float:
    """Memory of captured CUDA graphs: those of all sizes, and full ones of decode sizes where a mode keeps them apart.

    ``sizes``: as of `given_graph_sizes`; None for vLLM's, `graph_sizes` up to ``min(2 * max_num_seqs * (1+k), 512)``.
    With ``mode`` PIECEWISE or FULL vLLM captures those of all sizes alone, with FULL_DECODE_ONLY none but the decode
    sizes (vLLM 0.11 to 0.32, ``initialize_cudagraph_keys`` of ``v1/cudagraph_dispatcher.py``).
    """
    decode_rows = max_num_seqs * (1 + k)
    mixed = graph_sizes(min(2 * decode_rows, _GRAPH_CEILING)) if sizes is None else sizes
    count = len(mixed) if mode != "FULL_DECODE_ONLY" else 0
    if mode in ("FULL_AND_PIECEWISE", "FULL_DECODE_ONLY"):
        count += sum(size <= decode_rows for size in mixed)
    return num_layers * count * _GRAPH_BYTES_PER_LAYER
