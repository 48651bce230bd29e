"""What limits a setting at a load: one function and one sentence, for every command and page.

From the step cost at the simulated number of requests in the system, prompts included as they come along: what the
target pass would need if only its bytes, or only its FLOPs, had to be done at the device's peak, what the draft takes,
and what of the host's work shows. Full KV blocks or full slots come first: then requests wait, whatever a step takes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from draftcast.kernels.model.dtypes import activation_bytes
from draftcast.kernels.work import layers
from draftcast.scenarios.run.fluid import Fluid, MeanStep
from draftcast.scenarios.schema import Engine, Scenario

KV_FULL = 0.9
"""Share of the KV blocks in use from which space for them is what limits: a mean leaves no room for peaks."""
SLOTS_FULL = 0.9
"""Share of ``max_num_seqs`` from which the slots are what limits."""
REACHED = 1 / 3
"""Below this share of a step nothing limits but kernels that are too small to reach any peak."""
Limit = Literal["memory bandwidth", "compute", "KV cache", "max_num_seqs", "host", "draft", "kernel latency"]


@dataclass(frozen=True)
class Limits:
    """One side at one load."""

    # ``KV cache`` or ``max_num_seqs`` where these are full; else the largest of the shares below, or ``kernel latency``
    # where none is a third of the step
    limit: Limit
    in_system: float  # requests in the system
    step_ms: float  # the mean step
    # memory_share, compute_share: what the target's bytes or FLOPs alone would take of the step at the device's peak
    memory_share: float
    compute_share: float
    draft_share: float  # of the step
    host_share: float  # of the step, the part that does not hide behind the device
    kv_share: float  # of the KV blocks, in use on average

    @property
    def sentence(self) -> str:
        """For people, with the numbers it rests on."""
        step = (
            f"the mean step ({self.in_system:,.3g} requests in the system, prompts included) takes "
            f"{self.step_ms:.3g} ms: "
            f"its bytes at peak bandwidth {self.memory_share:.0%} of it, its FLOPs at peak {self.compute_share:.0%}, "
            f"the draft {self.draft_share:.0%}, host work that shows {self.host_share:.0%}"
        )
        if self.limit == "KV cache":
            return f"KV cache: {self.kv_share:.0%} of the blocks are in use on average; {step}."
        if self.limit == "max_num_seqs":
            return f"max_num_seqs: the slots of the batch are taken, requests wait for one; {step}."
        return f"{self.limit[0].upper()}{self.limit[1:]}: {step}."


def limits_at(scenario: Scenario, fluid: Fluid, figures: Mapping[str, float], rate_rps: float | None = None) -> Limits:
    """What limits a setting at a load.

    Args:
        figures: of the run; empty where there is none, or none that holds for the load (overloaded).
        rate_rps: the load of an open loop that was not run: the fluid estimate then says how full it is. None: full.
    """
    if figures and math.isfinite(figures["mean_e2el_s"]):
        in_system = max(figures["request_throughput"] * figures["mean_e2el_s"], 1.0)
        # Of a closed loop no more than its clients: a short run counts its ends twice.
        in_system = min(in_system, getattr(scenario.workload.arrivals, "concurrency", math.inf))
        return limits(fluid, scenario.engine, in_system, figures["kv_cache_usage"])
    held = fluid.in_system(rate_rps) if rate_rps is not None else math.inf
    in_system = min(held, float(fluid.slots))
    return limits(fluid, scenario.engine, in_system, fluid.kv_share(in_system))


def limits(fluid: Fluid, engine: Engine, in_system: float, kv_share: float) -> Limits:
    """What limits the engine with so many requests in the system."""
    step = fluid.step(in_system)
    memory_s, compute_s = _peaks(fluid, engine, step)
    device_s = step.draft_s + step.target_s + step.sample_s
    shares: dict[Limit, float] = {
        "memory bandwidth": memory_s / step.seconds,
        "compute": compute_s / step.seconds,
        "draft": step.draft_s / step.seconds,
        "host": max(step.seconds - device_s, 0.0) / step.seconds,
    }
    slots = fluid.replicas * fluid.deployment.settings.max_num_seqs
    limit: Limit
    if kv_share > KV_FULL:
        limit = "KV cache"
    elif in_system > SLOTS_FULL * slots:
        limit = "max_num_seqs"
    else:
        limit = max(shares, key=lambda name: shares[name])
        limit = limit if shares[limit] > REACHED else "kernel latency"
    return Limits(
        limit,
        in_system,
        step.seconds * 1e3,
        shares["memory bandwidth"],
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
    rows, logit_rows = np.array([f["tokens"]]), np.array([f["logit_rows"]])
    memory = compute = 0.0
    work = [(layer.work(rows, dtype).scale(layer.count), "linear") for layer in layers.linear_layers(model, tp)]
    work.append((layers.lm_head(model, tp).work(logit_rows, dtype), "lm_head"))
    work.append((layers.elementwise_work(model, rows, tp=tp, act_bytes=act_bytes), "elementwise"))
    for each, family in work:
        flops, bandwidth = hardware.ceilings(family, dtype)
        compute += float(each.flops.sum()) / flops
        memory += float(each.bytes.sum()) / bandwidth
    flops, bandwidth = hardware.ceilings("attention_decode", kv_dtype)
    each = layers.context_work(model, f, tp, dtype, kv_dtype)
    return memory + float(each.bytes) / bandwidth, compute + float(each.flops) / flops
