"""Step cost of a scenario: models, profile and engine configuration compiled into plain arrays.

`compile_step_cost` runs once per scenario; the engine then calls `sim/cost/step_time.py`. A roofline profile gives
tables over rows (`sim/cost/step_tables.py`); an affine profile is a handful of coefficients, valid for the one model
and setting it was fitted on, and refuses any other.
"""

from collections.abc import Sequence

import numpy as np

from draftcast.calibration.profile.hardware import HardwareSpec
from draftcast.calibration.profile.roofline import Origin
from draftcast.calibration.profile.spec import AffineProfile, HardwareProfile
from draftcast.errors import HardwareError
from draftcast.files import picked
from draftcast.kernels.arrays import FloatArray
from draftcast.kernels.model.spec import ModelSpec
from draftcast.sim.cost.engine_config import EngineConfig
from draftcast.sim.cost.step_tables import fill_roofline
from draftcast.sim.cost.step_time import PARAMS, Record, StepCost, cost_without_tables

# Of `EngineConfig`, what an affine fit holds for; and the scenario's keys that are called otherwise.
_SETTING = (
    "tensor_parallel_size pipeline_parallel_size lockstep_ranks enable_expert_parallel decode_context_parallel_size "
    "draft_tensor_parallel_size weight_dtype draft_weight_dtype kv_dtype draft_kv_dtype enforce_eager cudagraph_mode "
    "max_cudagraph_capture_size cudagraph_capture_sizes"
)
_KEYS = {"lockstep_ranks": "data_parallel_size", "weight_dtype": "dtype", "draft_weight_dtype": "draft_dtype",
         "kv_dtype": "kv_cache_dtype", "draft_kv_dtype": "draft_kv_cache_dtype"}  # fmt: skip


def compile_step_cost(
    config: EngineConfig,
    model: ModelSpec,
    draft_model: ModelSpec | None,
    profile: HardwareProfile,
    hardware: HardwareSpec,
) -> StepCost:
    """Compile a scenario's step cost; ``profile`` must be bound to the device ``hardware``.

    ``draft_model``: None builds the head that follows from the target, where one does.

    Raises:
        ScenarioError: a number out of range, or a method without the draft model it needs.
        HardwareError: the profile does not cover this device, model or setting.
        ModelError: heads that do not split over the ranks.
    """
    params = np.zeros(1, PARAMS)
    p = params[0]
    for name in PARAMS.names or ():
        if hasattr(config.method, name):
            p[name] = getattr(config.method, name)
    p["pads_searches"] = config.pads_searches
    if isinstance(profile, AffineProfile):
        _check_affine(profile, model, hardware, config)
        return _affine(params, profile, config)
    if profile.hardware.name != hardware.name:
        message = f"the profile is bound to {profile.hardware.name}, the scenario runs on {hardware.name}"
        raise HardwareError(message, key="profile", value=profile.name)
    p["host_hides"] = config.async_scheduling
    constants = config.generation.constants
    p["host_fixed_s"] = constants.host_step_s.value if profile.host is None else profile.host.h0_s
    p["host_seq_s"] = constants.host_request_s.value if profile.host is None else profile.host.h1_s
    # The servers send the tokens of all data-parallel ranks.
    p["stream_seq_s"] = constants.front_end_output_s.value * config.data_parallel_size / config.api_server_count
    return fill_roofline(params, model, draft_model, profile, config)


def _check_affine(profile: AffineProfile, model: ModelSpec, hardware: HardwareSpec, config: EngineConfig) -> None:
    """An affine fit knows one setting only: refuse any other rather than ignore a knob."""
    fitted_with = EngineConfig(
        **picked(config, "version is_moe is_multimodal graphs_hold_prompts"),
        tensor_parallel_size=profile.tp,
        weight_dtype=profile.dtype,
        enforce_eager=profile.enforce_eager,
    )
    values = {"hardware": hardware.name, "model": model.name.lower(), **picked(config, _SETTING)}
    fitted = {"hardware": profile.hardware.name, "model": profile.model, **picked(fitted_with, _SETTING)}
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
    for fit, seconds in ((p["fit_target"], profile.target), (p["fit_draft"], profile.draft)):
        for name in fit.dtype.names:
            fit[name] = getattr(seconds, name)
    p["fit_high_rows"] = profile.target.rows[-1][0] if profile.target.rows else 0.0
    p["fit_search_fraction"] = profile.ngram.fraction_of_target
    p["search_step_s"] = profile.ngram.step_s
    p["search_seq_s"] = profile.ngram.sequence_s
    p["search_token_s"] = profile.ngram.token_s
    p["fit_low_seqs"], p["fit_high_seqs"] = profile.fitted_sequences
    p["fit_target_origin"] = Origin.INTERPOLATED
    method = config.method
    origins = profile.ngram.methods if method.proposes_by_match else profile.draft.methods
    p["fit_draft_origin"] = origins.get(method.name, Origin.EXTRAPOLATED)
    points = profile.target.rows
    return cost_without_tables(params, _curve_over_rows(points, config.max_num_batched_tokens) if points else None)


def _curve_over_rows(points: Sequence[tuple[float, float]], most_rows: int) -> FloatArray:
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
