"""Step cost of a scenario: model, method, profile and engine settings compiled into plain arrays.

`compile_step_cost` runs once per scenario; the engine then calls `step_time`, which is re-exported here with the
feature and output indices. A roofline profile gives tables over rows (`sim/cost/step_tables`); an affine profile
is a handful of coefficients, valid for the one model and setting it was fitted on, and refuses any other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftcast.calibration.profile.hardware import HardwareSpec
from draftcast.calibration.profile.load import AffineProfile, HardwareProfile
from draftcast.calibration.profile.origin import Origin
from draftcast.errors import HardwareError, ScenarioError
from draftcast.kernels.model.dtypes import activation_bytes, kv_dtype, weight_dtype
from draftcast.kernels.model.spec import ModelSpec
from draftcast.sim.cost import attention_time as at
from draftcast.sim.cost import step_time as st
from draftcast.sim.cost.methods import DraftPlan, Method
from draftcast.sim.cost.step_tables import EngineSettings, fill_roofline
from draftcast.sim.cost.step_time import *  # noqa: F403  the feature, output and scalar indices belong to this contract
from draftcast.sim.cost.step_time import StepCost


def compile_step_cost(
    model: ModelSpec,
    method: Method,
    draft_model: ModelSpec | None,
    k: int,
    tp: int,
    draft_tp: int | None,
    dtype: str,
    kv_cache_dtype: str,
    profile: HardwareProfile,
    hardware: HardwareSpec,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    enforce_eager: bool = False,
    *,
    draft_dtype: str | None = None,
    draft_kv_cache_dtype: str | None = None,
    async_scheduling: bool | None = None,
    max_model_len: int | None = None,
    max_cudagraph_capture_size: int | None = None,
    cudagraph_capture_sizes: Sequence[int] | None = None,
) -> StepCost:
    """Compile a scenario's step cost.

    Args:
        model: the target.
        method: a method of `draftcast.sim.cost.methods.METHODS` (a tree method with its width and nodes).
        draft_model: the draft's model or head; None builds the head that follows from the target, where one does.
        k: configured ``num_speculative_tokens`` (depth of a tree); 0 with method ``none``.
        tp, draft_tp: tensor-parallel degrees; a ``draft_tp`` of None is the target's.
        dtype, draft_dtype: weight formats; a ``draft_dtype`` of None is bf16 for heads and draft models alike when the
            target is quantised, else the target's.
        kv_cache_dtype: KV-cache format of the target; ``auto`` is the activations' format.
        draft_kv_cache_dtype: the draft's; None: the target's.
        profile, hardware: what turns work into seconds, and the device it must be bound to.
        max_num_batched_tokens, max_num_seqs: engine limits; they size the tables.
        enforce_eager: no CUDA graphs.
        async_scheduling: None takes the method's default.
        max_model_len: padded length of the device's text search (ngram_gpu); None: the model's maximum.
        max_cudagraph_capture_size: None: vLLM's ``min(max_num_seqs * (1 + k) * 2, ceiling of the profile)``.
        cudagraph_capture_sizes: None: vLLM's grid.

    Raises:
        ScenarioError: a number out of range, or a method without the draft model it needs.
        HardwareError: the profile does not cover this device, model or setting.
        ModelError: an unknown number format, or heads that do not split over the ranks.
    """
    settings = EngineSettings(
        k=_at_least(k, 1 if method.drafts else 0, "num_speculative_tokens"),
        tp=_at_least(tp, 1, "tensor_parallel_size"),
        draft_tp=_at_least(tp if draft_tp is None else draft_tp, 1, "draft_tensor_parallel_size"),
        dtype=weight_dtype(dtype),
        draft_dtype=_draft_dtype(dtype, draft_dtype),
        kv_cache_dtype=_kv_dtype(kv_cache_dtype, dtype),
        draft_kv_cache_dtype=_kv_dtype(kv_cache_dtype if draft_kv_cache_dtype is None else draft_kv_cache_dtype, dtype),
        max_num_batched_tokens=_at_least(max_num_batched_tokens, 1, "max_num_batched_tokens"),
        max_num_seqs=_at_least(max_num_seqs, 1, "max_num_seqs"),
        enforce_eager=enforce_eager,
        max_model_len=_at_least(
            model.max_position_embeddings if max_model_len is None else max_model_len, 1, "max_model_len"
        ),
        max_cudagraph_capture_size=max_cudagraph_capture_size,
        cudagraph_capture_sizes=None if cudagraph_capture_sizes is None else tuple(cudagraph_capture_sizes),
    )
    if not method.drafts and k:
        raise ScenarioError("must be 0 without a method", key="num_speculative_tokens", value=k)
    params = np.zeros(st.N_PARAMS)
    params[st.P_ASYNC] = float(method.is_async if async_scheduling is None else async_scheduling)
    params[st.P_PLAN] = float(method.plan)
    params[st.P_EXTRA_FIRST_ROWS] = method.extra_first_rows
    params[st.P_BLOCK_ROWS_BEYOND_K] = method.block_rows_beyond_k
    params[st.P_TREE_WIDTH] = method.tree_width
    params[st.P_MAX_TREE_NODES] = method.max_tree_nodes
    params[st.P_IS_TREE] = float(method.is_tree)
    if isinstance(profile, AffineProfile):
        _check_affine(profile, model, method, hardware, settings)
        return _affine(params, profile, method, settings.max_num_batched_tokens)
    if profile.hardware.name != hardware.name:
        raise HardwareError(
            f"the profile is bound to {profile.hardware.name}, the scenario runs on {hardware.name}",
            key="profile",
            value=profile.name,
        )
    params[st.P_OVERLAP_HOST] = 1.0
    params[st.P_HOST_FIXED_S] = profile.h0_s
    params[st.P_HOST_SEQ_S] = profile.h1_s
    return fill_roofline(params, model, method, draft_model, profile, settings)


def _at_least(value: int, low: int, key: str) -> int:
    if value < low:
        raise ScenarioError(f"must be at least {low}", key=key, value=value)
    return value


def _draft_dtype(dtype: str, draft_dtype: str | None) -> str:
    if draft_dtype is not None:
        return weight_dtype(draft_dtype)
    # Published heads and small drafts are 16-bit checkpoints even where the target is quantised.
    short = weight_dtype(dtype)
    return short if short in ("fp32", "bf16", "fp16") else "bf16"


def _kv_dtype(kv_cache_dtype: str, dtype: str) -> str:
    if kv_cache_dtype != "auto":
        return kv_dtype(kv_cache_dtype)
    return "fp32" if activation_bytes(dtype) == 4.0 else "bf16"


def _check_affine(
    profile: AffineProfile, model: ModelSpec, method: Method, hardware: HardwareSpec, settings: EngineSettings
) -> None:
    """An affine fit knows one setting only: refuse any other rather than ignore a knob."""
    fitted: tuple[tuple[str, object, object], ...] = (
        ("hardware", hardware.name, profile.hardware_name),
        ("model", model.name.lower(), profile.model),
        ("tensor_parallel_size", settings.tp, profile.tp),
        ("draft_tensor_parallel_size", settings.draft_tp, profile.tp),
        ("dtype", settings.dtype, profile.dtype),
        ("draft_dtype", settings.draft_dtype, _draft_dtype(profile.dtype, None)),
        ("kv_cache_dtype", settings.kv_cache_dtype, _kv_dtype("auto", profile.dtype)),
        ("draft_kv_cache_dtype", settings.draft_kv_cache_dtype, _kv_dtype("auto", profile.dtype)),
        ("enforce_eager", settings.enforce_eager, profile.enforce_eager),
        ("max_cudagraph_capture_size", settings.max_cudagraph_capture_size, None),
        ("cudagraph_capture_sizes", settings.cudagraph_capture_sizes, None),
    )
    for key, value, allowed in fitted:
        if value != allowed:
            raise HardwareError(
                f"affine profile {profile.name} was fitted with {allowed!r} only; take a roofline profile",
                key=key,
                value=value,
            )
    covered = (*profile.draft_methods, *profile.ngram_methods)
    if method.drafts and method.name not in covered:
        raise HardwareError(
            f"affine profile {profile.name} covers none, {', '.join(covered)}; take a roofline profile",
            key="method",
            value=method.name,
        )


def _affine(params: st.FloatArray, profile: AffineProfile, method: Method, most_rows: int) -> StepCost:
    params[st.P_AFFINE] = 1.0
    params[st.P_HOST_FIXED_S] = profile.overhead_s
    params[st.P_FIT_TARGET_S] = profile.target_fixed_s
    params[st.P_FIT_ROW_S] = profile.target_row_s
    params[st.P_FIT_KV_S] = profile.target_kv_token_s
    params[st.P_FIT_SEQ_S] = profile.target_sequence_s
    params[st.P_FIT_QUERY_KV_S] = profile.target_query_kv_s
    params[st.P_FIT_PREFILL_QUERY_KV_S] = profile.target_prefill_query_kv_s
    params[st.P_FIT_LOGIT_ROW_S] = profile.target_logit_row_s
    params[st.P_FIT_HIGH_ROWS] = profile.target_rows[-1][0] if profile.target_rows else 0.0
    params[st.P_FIT_DRAFT_S] = profile.draft_fixed_s
    params[st.P_FIT_DRAFT_PASS_S] = profile.draft_pass_s
    params[st.P_FIT_DRAFT_ROW_S] = profile.draft_row_s
    params[st.P_FIT_DRAFT_TOKEN_S] = profile.draft_token_s
    params[st.P_FIT_DRAFT_KV_S] = profile.draft_kv_token_s
    params[st.P_FIT_SEARCH_FRACTION] = profile.ngram_fraction
    params[st.P_SEARCH_STEP_S] = profile.ngram_step_s
    params[st.P_SEARCH_SEQ_S] = profile.ngram_sequence_s
    params[st.P_SEARCH_TOKEN_S] = profile.ngram_token_s
    params[st.P_FIT_LOW_SEQS], params[st.P_FIT_HIGH_SEQS] = profile.fitted_sequences
    params[st.P_FIT_TARGET_ORIGIN] = Origin.INTERPOLATED
    searches = method.plan in (DraftPlan.HOST_SEARCH, DraftPlan.DEVICE_SEARCH)
    origins = profile.ngram_methods if searches else profile.draft_methods
    params[st.P_FIT_DRAFT_ORIGIN] = origins.get(method.name, Origin.EXTRAPOLATED)
    empty = np.zeros((1, 3))
    curve = _curve_over_rows(profile.target_rows, most_rows) if profile.target_rows else empty
    return StepCost(params, curve, empty, empty, empty, empty, empty, np.zeros((at.N_BLOCKS, at.N_COLUMNS)), empty[0])


def _curve_over_rows(points: Sequence[tuple[float, float]], most_rows: int) -> st.FloatArray:
    """The fitted curve as a table by rows; a step without rows takes none of it."""
    x, seconds = np.asarray(points, dtype=np.float64).T
    rows = np.arange(most_rows + 1, dtype=np.float64)
    table = np.zeros((most_rows + 1, 3))
    table[:, int(Origin.INTERPOLATED)] = np.interp(rows, x, seconds)
    if len(x) > 1:
        slope = (seconds[-1] - seconds[-2]) / (x[-1] - x[-2])
        table[:, int(Origin.INTERPOLATED)] += slope * np.maximum(rows - x[-1], 0.0)
    table[0] = 0.0
    return table
