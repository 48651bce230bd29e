"""What limits a replica at some load, with and without speculation, as shares of the mean step and of the KV cache.

From the step cost at the simulated number of requests in the system: what the target pass would need if only its bytes,
or only its FLOPs, had to be done at the device's peak, what the draft takes, and what of the host's work shows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from draftcast.kernels import layers
from draftcast.kernels.attention import attention_work
from draftcast.kernels.dtypes import activation_bytes
from draftcast.scenarios.cutover_estimate import Fluid
from draftcast.scenarios.schema import Engine
from draftcast.scenarios.steady_step import MeanStep
from draftcast.sim import step_time as st

KV_FULL = 0.9
"""Share of the KV blocks in use from which space for them is what limits: a mean leaves no room for peaks."""


@dataclass(frozen=True)
class Limits:
    """One side at one load.

    Attributes:
        limit: ``memory``, ``compute``, ``KV space``, ``host`` or ``draft``: the largest of the shares below, KV space
            before all where the blocks are full.
        in_system: requests in the system.
        step_ms: the mean step.
        memory_share, compute_share: what the target's bytes or FLOPs alone would take of the step at the device's peak.
        draft_share: of the step.
        host_share: of the step, the part that does not hide behind the device.
        kv_share: of the KV blocks, in use on average.
    """

    limit: str
    in_system: float
    step_ms: float
    memory_share: float
    compute_share: float
    draft_share: float
    host_share: float
    kv_share: float


def limits(fluid: Fluid, engine: Engine, in_system: float, kv_share: float) -> Limits:
    """What limits the engine with so many requests in the system."""
    step = fluid.step(in_system)
    memory_s, compute_s = _peaks(fluid, engine, step)
    device_s = step.draft_s + step.target_s + step.sample_s
    shares = {
        "memory": memory_s / step.seconds,
        "compute": compute_s / step.seconds,
        "draft": step.draft_s / step.seconds,
        "host": max(step.seconds - device_s, 0.0) / step.seconds,
    }
    limit = "KV space" if kv_share > KV_FULL else max(shares, key=lambda name: shares[name])
    return Limits(
        limit,
        in_system,
        step.seconds * 1e3,
        shares["memory"],
        shares["compute"],
        shares["draft"],
        shares["host"],
        kv_share,
    )


def _peaks(fluid: Fluid, engine: Engine, step: MeanStep) -> tuple[float, float]:
    """Seconds of the target pass with its lm_head at peak bandwidth alone, and at peak FLOP/s alone."""
    model, hardware, tp = fluid.deployment.model, fluid.deployment.hardware, engine.tensor_parallel_size
    dtype, kv_dtype, f = engine.weight_dtype, engine.kv_dtype, step.features
    act_bytes = activation_bytes(dtype)
    rows, logit_rows = np.array([f[st.F_TOKENS]]), np.array([f[st.F_LOGIT_ROWS]])
    memory = compute = 0.0
    work = [(layer.work(rows, dtype).scale(layer.count), "linear") for layer in layers.linear_layers(model, tp)]
    work.append((layers.lm_head(model, tp).work(logit_rows, dtype), "lm_head"))
    work.append((layers.elementwise_work(model, rows, tp=tp, act_bytes=act_bytes), "elementwise"))
    for each, family in work:
        flops, bandwidth = hardware.ceilings(family, dtype)
        compute += float(each.flops.sum()) / flops
        memory += float(each.bytes.sum()) / bandwidth
    flops, bandwidth = hardware.ceilings("attention_decode", kv_dtype)
    full = model.num_hidden_layers - model.num_sliding_layers
    for count, decode_kv, decode_qkv, prefill_kv, prefill_qkv in (
        (full, st.F_DECODE_KV, st.F_DECODE_QKV, st.F_PREFILL_KV, st.F_PREFILL_QKV),
        (
            model.num_sliding_layers,
            st.F_WIN_DECODE_KV,
            st.F_WIN_DECODE_QKV,
            st.F_WIN_PREFILL_KV,
            st.F_WIN_PREFILL_QKV,
        ),
    ):
        each = attention_work(
            model,
            f[st.F_TOKENS],
            f[decode_kv] + f[prefill_kv],
            f[decode_qkv] + f[prefill_qkv],
            tp=tp,
            kv_cache_dtype=kv_dtype,
            act_bytes=act_bytes,
        ).scale(count)
        compute += float(each.flops) / flops
        memory += float(each.bytes) / bandwidth
    return memory, compute
