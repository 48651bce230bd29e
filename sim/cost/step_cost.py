"""Step cost of a scenario: models, profile and engine configuration compiled into plain arrays.

An affine profile is a few coefficients, valid for the one model and setting it was fitted on, and refuses any other. Of
a roofline profile, here is which passes a step consists of, and over how many rows; `sim/cost/operator_tables.py` gives
each its seconds. Added is what the engine generation says of graphs, launches, draft passes and verification. Left out:
load imbalance between ranks, shared-prefix (cascade) attention, and in the draft's own layers launches over prompts and
decodes and unequal contexts.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from draftcast.calibration.profile.engines import GRAPH_KERNELS, Constant, is_since, since
from draftcast.calibration.profile.interpolation import never_falling
from draftcast.calibration.profile.roofline import Origin
from draftcast.calibration.profile.spec import AffineProfile, HardwareProfile, RooflineProfile
from draftcast.errors import HardwareError, ScenarioError
from draftcast.files import picked
from draftcast.kernels.arrays import FloatArray, IntArray
from draftcast.kernels.model import heads
from draftcast.kernels.model.spec import WINDOWS, ModelSpec
from draftcast.kernels.work.layers import LinearLayer
from draftcast.sim.cost import attention_time as at
from draftcast.sim.cost import engine_config
from draftcast.sim.cost import step_time as st
from draftcast.sim.cost.engine_config import EngineConfig
from draftcast.sim.cost.methods import DraftPlan, Method
from draftcast.sim.cost.operator_tables import OperatorTables, split
from draftcast.sim.cost.step_time import Record, StepCost

# Of `EngineConfig`, what an affine fit holds for; and the scenario's keys that are called otherwise.
_SETTING = (
    "tensor_parallel_size pipeline_parallel_size lockstep_ranks enable_expert_parallel expert_parallel_size "
    "decode_context_parallel_size draft_tensor_parallel_size weight_dtype draft_weight_dtype kv_dtype draft_kv_dtype "
    "enforce_eager cudagraph_mode max_cudagraph_capture_size"
)
_KEYS = {"lockstep_ranks": "data_parallel_size", "weight_dtype": "dtype", "draft_weight_dtype": "draft_dtype",
         "kv_dtype": "kv_cache_dtype", "draft_kv_dtype": "draft_kv_cache_dtype"}  # fmt: skip

# Search on the device compares token ids (4 bytes) with the trailing n-gram and takes an argmax over a mask of 4 bytes:
# read 4, write 4, read 4 bytes a position, in about ten kernels (vLLM 0.32, one n-gram size, its default).
NGRAM_GPU_BYTES_PER_POSITION = 12.0
NGRAM_GPU_KERNELS = 10

MAX_ROWS = 2**22  # 100 MB a table
# What computes a layer's states over a prompt chunk by chunk, which no piecewise graph holds, in kernels of the usual
# host time: some 12 that Triton's autotuner looks up (fla/ops/gated_delta_rule/chunk.py in vLLM and SGLang). The
# time to the first token of one request of Qwen3-Next on 8 B200 leaves 33 a layer (SGLang 0.5.6). Provisional.
CHUNK_KERNELS = 30
# More kernels of a gated DeltaNet layer that verifies drafts beside prompts: both are picked apart (6), drafts go
# through the convolution and the delta rule by themselves (4), and both are put together (2). Counted in vLLM 0.11 to
# 0.33, _forward_core of layers/mamba/gdn/qwen_gdn_linear_attn.py.
SPLIT_KERNELS = 12
# How uniform decode batches and all others run inside the captured sizes, by vLLM's CUDA graph mode.
MODES = {
    "NONE": (st.UNCAPTURED, st.UNCAPTURED),
    "PIECEWISE": (st.PIECEWISE_GRAPHS, st.PIECEWISE_GRAPHS),
    "FULL": (st.FULL_GRAPH, st.FULL_GRAPH),
    "FULL_DECODE_ONLY": (st.FULL_GRAPH, st.UNCAPTURED),
    "FULL_AND_PIECEWISE": (st.FULL_GRAPH, st.PIECEWISE_GRAPHS),
}


def compile_step_cost(
    config: EngineConfig, model: ModelSpec, draft_model: ModelSpec | None, profile: HardwareProfile
) -> StepCost:
    """Compile a scenario's step cost on the profile's device.

    ``draft_model``: None builds the head that follows from the target, where one does.

    Raises:
        ScenarioError: a number out of range, or a method without the draft model it needs.
        HardwareError: the profile does not cover this model or setting.
        ModelError: heads that do not split over the ranks.
    """
    params = np.zeros(1, st.PARAMS)
    p = params[0]
    for name in st.PARAMS.names or ():
        if hasattr(config.method, name):
            p[name] = getattr(config.method, name)
    p["pads_searches"] = config.pads_searches
    if isinstance(profile, AffineProfile):
        _check_affine(profile, model, config)
        return _affine(params, profile, config)
    p["host_hides"] = config.async_scheduling
    constants = config.generation.constants
    if profile.host is not None:
        p["host_fixed_s"], p["host_seq_s"] = profile.host.h0_s, profile.host.h1_s
    else:
        p["host_fixed_s"], p["host_seq_s"] = constants.host_step_s.value, constants.host_request_s.value
        if not config.overlaps_speculation:
            p["host_verify_seq_s"] = _seconds(constants.host_verify_request_s)
            p["host_verify_s"] = _seconds(constants.host_verify_tree_s) if config.method.tree_width > 1 else 0.0
    # The servers send the tokens of all data-parallel ranks.
    p["stream_seq_s"] = constants.front_end_output_s.value * config.data_parallel_size / config.api_server_count
    return _roofline(params, model, draft_model, profile, config)


def _check_affine(profile: AffineProfile, model: ModelSpec, config: EngineConfig) -> None:
    """An affine fit knows one setting only: refuse any other rather than ignore a knob."""
    fitted_with = EngineConfig(
        **picked(config, "version is_moe is_multimodal graphs_hold_prompts"),
        tensor_parallel_size=profile.tp,
        weight_dtype=profile.dtype,
        enforce_eager=profile.enforce_eager,
    )
    values = {"model": model.name.lower(), **picked(config, _SETTING)}
    fitted = {"model": profile.model, **picked(fitted_with, _SETTING)}
    for name, value in values.items():
        if value != fitted[name]:
            message = f"affine profile {profile.name} was fitted with {fitted[name]!r} only; take a roofline profile"
            raise HardwareError(message, key=_KEYS.get(name, name), value=value)
    method, covered = config.method, (*profile.draft.methods, *profile.ngram.methods)
    if method.drafts and method.name not in covered:
        message = f"affine profile {profile.name} covers {', '.join(('none', *covered))}; take a roofline profile"
        raise HardwareError(message, key="method", value=method.name)


def _affine(params: Record, profile: AffineProfile, config: EngineConfig) -> StepCost:
    p = params[0]
    p["affine"] = 1
    p["host_fixed_s"] = profile.overhead_s
    p["fit_target"] = tuple(getattr(profile.target, name) for name in st.TARGET_FIT.names or ())
    p["fit_draft"] = tuple(getattr(profile.draft, name) for name in st.DRAFT_FIT.names or ())
    search, method = profile.ngram, config.method
    p["fit_search_fraction"] = search.fraction_of_target
    p["search_step_s"], p["search_seq_s"], p["search_token_s"] = search.step_s, search.sequence_s, search.token_s
    p["fit_low_seqs"], p["fit_high_seqs"] = profile.fitted_sequences
    p["fit_target_origin"] = Origin.INTERPOLATED
    origins = search.methods if method.proposes_by_match else profile.draft.methods
    p["fit_draft_origin"] = origins.get(method.name, Origin.EXTRAPOLATED)
    points = profile.target.rows
    p["fit_high_rows"] = points[-1][0] if points else 0.0
    return st.cost_without_tables(params, _curve_over_rows(points, config.max_num_batched_tokens) if points else None)


def _curve_over_rows(points: Sequence[tuple[float, float]], most_rows: int) -> FloatArray:
    """The fitted curve as a table by rows; a step without rows takes none of it."""
    x, curve_s = np.asarray(points, dtype=np.float64).T
    rows = np.arange(most_rows + 1, dtype=np.float64)
    seconds = np.interp(rows, x, curve_s)
    if len(x) > 1:
        seconds += (curve_s[-1] - curve_s[-2]) / (x[-1] - x[-2]) * np.maximum(rows - x[-1], 0.0)
    seconds[0] = 0.0
    return split(seconds, Origin.INTERPOLATED)


def capture_sizes(config: EngineConfig, verify_rows: int, profile: RooflineProfile) -> tuple[int, ...]:
    """Numbers of rows captured as CUDA graphs, ascending; empty when everything runs eagerly.

    vLLM 0.32's default: 1, 2, 4, then by 8 below 256, then by 16, up to ``min(max_num_seqs * rows * 2, ceiling)`` rows,
    besides every uniform decode batch (a captured number of requests x rows) inside it. ``verify_rows``: of one
    verifying request; ``profile`` knows the platform's largest capture size and its memory.

    Raises ScenarioError: as `given_graph_sizes`.
    """
    configured = engine_config.given_graph_sizes(config)
    if configured is not None:
        return configured
    limit = config.max_num_batched_tokens
    most = engine_config.most_captured(config, profile.hardware.memory_bytes / 2**30)
    expanded = 1 if config.generation.batch_expansion else verify_rows
    ceiling = profile.cuda_graph_ceiling if most is None else most * expanded
    largest = min(config.max_num_seqs * verify_rows * 2, ceiling)
    batch = min(config.max_num_seqs, ceiling)
    requests = {*engine_config.graph_sizes(batch), batch} if verify_rows > 1 else {config.max_num_seqs}
    sizes = {count * verify_rows for count in requests if 0 < count * verify_rows <= largest}
    sizes |= engine_config.sizes_up_to(largest, limit)
    return tuple(sorted(size for size in sizes if size <= limit))


def _padded_table(of_rows: Callable[[IntArray], FloatArray], last: int, sizes: tuple[int, ...] = ()) -> FloatArray:
    """``of_rows`` for 0..last rows, each padded up to the next capture size; shape (last + 1, 3), never falling."""
    rows = np.arange(last + 1, dtype=np.int64)
    if sizes:
        grid = np.asarray((0, *sizes), dtype=np.int64)
        inside = rows <= sizes[-1]
        rows[inside] = grid[np.searchsorted(grid, rows[inside])]
    distinct, inverse = np.unique(rows, return_inverse=True)
    table = of_rows(distinct)
    total = table.sum(axis=1)
    share = np.divide(never_falling(total), total, out=np.ones_like(total), where=total > 0.0)
    return np.ascontiguousarray((table * share[:, None])[inverse])


def head_of(method: Method, target: ModelSpec, draft_model: ModelSpec | None, k: int) -> ModelSpec | None:
    """The draft's model: the one given, else the target's usual head; None without a model.

    Raises ScenarioError (a draft model is needed and none given, or the reverse), ModelError (no MTP layer).
    """
    if method.plan in (DraftPlan.NONE, DraftPlan.HOST_SEARCH, DraftPlan.DEVICE_SEARCH):
        if draft_model is not None:
            raise ScenarioError(f"method {method.name} runs no draft model", key="draft_model", value=draft_model.name)
        return None
    if draft_model is not None:
        return draft_model
    if not heads.has_head(method.name):
        raise ScenarioError(f"required by method {method.name}", key="draft_model", value=None)
    return heads.resolve_head(method.name, target, k, None).spec


def _roofline(
    params: Record, model: ModelSpec, draft_model: ModelSpec | None, profile: RooflineProfile, config: EngineConfig
) -> StepCost:
    """`StepCost` of a roofline profile; fills what ``params`` still lacks.

    Raises ScenarioError: more rows in a step than tables are made for.
    """
    if config.max_num_batched_tokens > MAX_ROWS:
        message = f"must be at most {MAX_ROWS} with a roofline profile, whose tables have an entry a row"
        raise ScenarioError(message, key="max_num_batched_tokens", value=config.max_num_batched_tokens)
    device = OperatorTables(profile, config.tensor_parallel_size, config.weight_dtype, config)
    p, method, ranks = params[0], config.method, config.lockstep_ranks
    verify_rows = method.verify_rows(config.num_speculative_tokens)
    sizes = capture_sizes(config, verify_rows, profile)
    last_row = config.max_num_batched_tokens
    last_logit = min(config.max_num_seqs * verify_rows, last_row)
    p["window"] = model.sliding_window if model.num_sliding_layers else 0
    p["window_kind"] = WINDOWS.index(model.window_kind)
    p["cuda_graph_rows"] = sizes[-1] if sizes else 0
    _fill_generation(p, device, model)
    cost = st.cost_without_tables(params)
    # The engine cuts the target's sums to the window itself, so its blocks carry none.
    _fill_attention(cost.attention, at.DECODE, device, model, 0)
    if model.num_linear_layers:
        p["linear_layers"] = model.num_linear_layers
        cost.attention[at.LINEAR_DECODE] = device.linear_attention(model, "decode")
        cost.attention[at.LINEAR_PREFILL] = device.linear_attention(model, "prefill")
    if ranks > 1:
        p["ranks"] = ranks
        cost = cost._replace(experts=_padded_table(lambda rows: device.routed(model, rows), last_row * ranks))
    stages = engine_config.stage_layers(model.num_hidden_layers, config.pipeline_parallel_size)
    if len(stages) > 1:
        p["hop_s"] = profile.hardware.link_latency_s
        p["hop_row_s"] = model.hidden_size * device.act_bytes / profile.hardware.link_bandwidth_bytes_per_s
    cost = cost._replace(
        target=_padded_table(lambda rows: device.model_pass(model, rows), last_row, sizes),
        logits=_padded_table(
            lambda rows: device.lm_head(model, rows) + device.sampler(model, rows, verify_rows), last_logit
        ),
        stages=np.array(stages) / model.num_hidden_layers,
    )
    _fill_search(p, profile, config)
    head = head_of(method, model, draft_model, method.of_head(config.num_speculative_tokens))
    if head is not None:
        cost = _fill_draft(cost, device, model, head, sizes)
    return cost._replace(attention_grids=np.concatenate([np.zeros(0), *device.grids]))


def _fill_generation(p: Record, device: OperatorTables, model: ModelSpec) -> None:
    """What the engine generation adds to the target's pass and to verification, by how the pass runs."""
    config, launches = device.config, device.launches(model)
    engine, constants = config.generation, config.generation.constants
    uniform, mixed = MODES[config.cudagraph_mode]
    # Without speculation nothing varies, though the policy then is `Off`, which is dynamic.
    varies = config.is_dynamic and config.num_speculative_tokens > 0
    if uniform == st.FULL_GRAPH and varies and not engine.full_graphs_of_any_k:
        uniform = mixed = st.PIECEWISE_GRAPHS
    compiles = constants.uncaptured_launch_s is not None
    uncaptured = st.UNCAPTURED if compiles and not config.enforce_eager else st.EAGER
    if engine.prompts_alone and mixed == st.PIECEWISE_GRAPHS:
        most = since(engine.latent_prompt_rows, config.version) if model.is_mla else MAX_ROWS
        p["prompt_graph_rows"] = min(config.max_num_batched_tokens, most)
    p["uncaptured_mode"] = uncaptured
    p["uniform_mode"] = uncaptured if uniform == st.UNCAPTURED else uniform
    p["mixed_mode"] = uncaptured if mixed == st.UNCAPTURED else mixed
    # A draft runs as the target's uniform batches if they replay full graphs, or in pieces as its mixed batches.
    way, graphs = (uniform, st.FULL_GRAPH) if engine.draft_graphs == "FULL" else (mixed, st.PIECEWISE_GRAPHS)
    p["draft_mode"] = graphs if way >= graphs else uncaptured
    verify_rows = config.method.verify_rows(config.method.of_head(config.num_speculative_tokens))
    p["uniform_rows"] = 0 if engine.full_graphs_of_any_k else verify_rows
    graph_s = constants.full_graph_s.value * launches / GRAPH_KERNELS
    piecewise_s = graph_s + model.num_hidden_layers * constants.piecewise_layer_s.value
    p["target_mode_s"] = (*_graphless_s(config, launches), piecewise_s, graph_s)
    launch_s = constants.eager_launch_s.value
    p["target_launch_s"] = device.eager_launches(model) * launch_s
    p["prompt_launch_s"] = CHUNK_KERNELS * model.num_linear_layers * launch_s
    if engine.engine == "vllm" and model.linear_kind == "gated_delta":
        p["split_launch_s"] = SPLIT_KERNELS * model.num_linear_layers * launch_s
    p["verify_s"] = (constants.verify_sampled_s if config.temperature > 0.0 else constants.verify_greedy_s).value
    p["expands"] = engine.batch_expansion
    excess = engine.step_ratio(config.version, model, config.weight_dtype, device.profile.hardware)[1] - 1.0
    p["decode_excess"] = p["prompt_excess"] = excess


def _graphless_s(config: EngineConfig, launches: float) -> tuple[float, float]:
    """What the launches of a pass without a CUDA graph add to it: eagerly, and compiled beyond the captured sizes."""
    constants = config.generation.constants
    return launches * constants.eager_gap_s.value, launches * _seconds(constants.uncaptured_launch_s)


def _seconds(constant: Constant | None) -> float:
    return 0.0 if constant is None else constant.value


def _fill_attention(attention: Record, first: int, device: OperatorTables, model: ModelSpec, window: int) -> None:
    """Fill four rows of ``attention`` from ``first`` on."""
    (full, _), (sliding, windowed) = model.attention_kinds()
    for row, phase in ((first, "decode"), (first + at.PREFILL, "prefill")):
        if phase == "decode" and model.has_latent_indexer and device.dcp == 1:
            attention[row] = device.sparse_decode(model)
            sliding_alone = sliding - model.num_indexed_layers
        else:
            attention[row] = device.attention(model, phase, full, 0)
            sliding_alone = sliding
            if model.num_indexed_layers:
                device.add_indexer(attention[row], model, phase)
        attention[row + 1] = device.attention(windowed, phase, sliding_alone, window, sparse=model.is_sparse)
    for row, shape in ((first, model), (first + 1, windowed)):
        launches = device.shared_launch(attention[row], attention[row + at.PREFILL], shape)
        # Launches were measured over whole contexts: they say nothing of layers with a window.
        if launches is not None and row == first:
            attention[row]["launch_grid"] = device.place(launches)


def _fill_draft(
    cost: StepCost, target: OperatorTables, model: ModelSpec, head: ModelSpec, sizes: tuple[int, ...]
) -> StepCost:
    config, method = target.config, target.config.method
    tp, k, seqs = config.draft_tensor_parallel_size, config.num_speculative_tokens, config.max_num_seqs
    # Its grids are appended to the target's: both share the list.
    device = replace(target, tp=tp, dtype=config.draft_weight_dtype, kv_dtype=config.draft_kv_dtype)
    if config.lockstep_ranks > 1 and head.is_moe:
        # A head's experts are those of the target's layers, only fewer: their share of the time at a usual size.
        usual = np.array([seqs])
        cost.params[0]["draft_experts"] = device.routed(head, usual).sum() / target.routed(model, usual).sum()
    last_row = config.max_num_batched_tokens
    per_request = max(k + method.block_rows_beyond_k, k, method.tree_width)
    last_next = min(seqs * per_request, max(last_row, seqs))
    p, launches, constants = cost.params[0], device.launches(head), config.generation.constants
    p["draft_launch_s"] = device.eager_launches(head) * constants.eager_launch_s.value
    pieces_s = head.num_hidden_layers * constants.piecewise_layer_s.value
    p["draft_mode_s"] = (*_graphless_s(config, launches), pieces_s, 0.0)
    p["draft_pass_s"] = p["draft_later_s"] = constants.draft_pass_s.of(method.name, config.version)
    if p["draft_mode"] == st.FULL_GRAPH:
        if method.name in config.generation.graphless_drafts:
            p["draft_host_s"] = _graphless_s(config, launches)[1]
        elif is_since(config.version, config.generation.draft_loop_since):
            p["draft_later_s"] = 0.0
    _fill_attention(cost.attention, at.DRAFT_DECODE, device, head, head.sliding_window)
    choice = device.top_k if method.is_tree and method.tree_width > 1 else device.argmax
    logits = _padded_table(lambda rows: device.lm_head(head, rows) + choice(head, rows), last_next)
    if method.plan == DraftPlan.HEADS:
        first = _padded_table(lambda rows: device.matrices(head, rows, "context"), seqs)
        serial = _padded_table(lambda rows: device.model_pass(head, rows), seqs)
        return cost._replace(draft_first=first, draft_serial=serial + logits[: seqs + 1])
    if method.plan == DraftPlan.CONTEXT_BLOCK:
        projection = LinearLayer("context_kv", head.hidden_size, head.kv_elements_per_layer(tp), head.num_hidden_layers)
        first = _padded_table(
            lambda rows: device.matrices(head, rows, "context") + device.linear(projection, rows), last_row, sizes
        )
    else:
        first = _padded_table(lambda rows: device.model_pass(head, rows, "context"), last_row, sizes)
    if head.markov_rank:
        # One step of the sequential head per draft position: its matrix, then a choice over the vocabulary.
        serial = _padded_table(lambda rows: device.matrices(head, rows, "position") + device.argmax(head, rows), seqs)
        cost = cost._replace(draft_serial=serial)
    following = _padded_table(lambda rows: device.model_pass(head, rows), last_next, sizes)
    return cost._replace(draft_first=first, draft_next=following, draft_logits=logits)


def _fill_search(p: Record, profile: RooflineProfile, config: EngineConfig) -> None:
    method, constants = config.method, config.generation.constants
    # vLLM's second runner searches on the device for n-gram too (v1/worker/gpu/spec_decode/ngram).
    if method.plan == DraftPlan.DEVICE_SEARCH or (method.name == "ngram" and config.generation.runner == "v2"):
        entry = profile.operator("elementwise", config.weight_dtype)
        moved = config.max_model_len * NGRAM_GPU_BYTES_PER_POSITION
        p["search_step_s"] = NGRAM_GPU_KERNELS * entry.t0_s + constants.ngram_gpu_step_s.value
        _, bandwidth = profile.hardware.ceilings("elementwise", config.weight_dtype)
        p["search_seq_s"] = moved / (entry.e_m * bandwidth)
    elif method.name == "suffix" or method.head_drafts:
        p["search_step_s"], p["search_seq_s"] = constants.ngram_step_s.value, constants.suffix_request_s.value
    elif method.plan == DraftPlan.HOST_SEARCH:
        p["search_step_s"], p["search_seq_s"] = constants.ngram_step_s.value, constants.ngram_request_s.value
        p["search_token_s"] = constants.ngram_token_s.value
