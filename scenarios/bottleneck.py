"""The bottleneck of a run in one sentence with its numbers.

First where a mean request's time goes; when that is the device, which of its ceilings the mean step is closer to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from draftcast.scenarios.deployment import Deployment
from draftcast.scenarios.operating_point import Ceilings, OperatingPoint, ceilings, mean_batch, operating_point
from draftcast.scenarios.schema import Scenario
from draftcast.scenarios.simulate import RunResult
from draftcast.sim.statistics import Estimate

# Means over a run, its beginning and end included, of what is full while it matters.
FULL = 0.75
# Below a third of either ceiling a step is made of kernels too small to reach one.
REACHED = 1 / 3


@dataclass(frozen=True)
class Bottleneck:
    """What limits a run.

    Attributes:
        kind: ``memory bandwidth``, ``compute``, ``kernel latency``, ``prefill``, ``host``, ``draft``, ``KV cache`` or
            ``max_num_seqs``.
        sentence: for people, with the numbers it rests on.
    """

    kind: str
    sentence: str


def bottleneck(scenario: Scenario, deployment: Deployment, run: RunResult) -> Bottleneck:
    """Name what a mean request of ``run`` waits for most."""
    figures: Mapping[str, Estimate] = run.summary["figures"]

    def share(name: str) -> float:
        value = figures[f"share_time_{name}"].mean
        return value if math.isfinite(value) else 0.0

    point = _mean_step(scenario, deployment, run)
    decode = share("draft") + share("verify") + share("rejected")
    # Rejected work is rows and drafts at once; the mean step tells how much of either.
    drafting = decode * point.draft_seconds / (point.draft_seconds + point.seconds)
    parts = {
        "queue": share("queue"),
        "KV cache": share("kv_pressure"),
        "host": share("host"),
        "prefill": share("prefill"),
        "draft": drafting,
        "verify": decode - drafting,
    }
    largest = max(parts, key=lambda name: parts[name])
    most = f"{parts[largest]:.0%} of a request's time"
    if largest == "KV cache":
        preempted = figures["preemptions"].mean
        return Bottleneck(largest, f"KV cache: {most} is lost to preemption ({preempted:,.0f} preemptions a run).")
    if largest == "queue":
        return _waiting(scenario, deployment, run, parts, point)
    kind, why = _busy(scenario, deployment, largest, most, point)
    return Bottleneck(kind, f"{kind[0].upper()}{kind[1:]}: {why}.")


def _busy(
    scenario: Scenario, deployment: Deployment, largest: str, most: str, point: OperatingPoint
) -> tuple[str, str]:
    """What a request that is being served waits for: (kind, why)."""
    if largest == "host":
        return "host", f"{most} is scheduling and sampling on the CPU, not the GPU"
    if largest == "prefill":
        return "prefill", f"{most} goes into prompts, its own and others' chunks that delay its tokens"
    if largest == "draft":
        return "draft", f"{most} goes into making drafts, more than into verifying them"
    kind, why = _ceiling(ceilings(scenario, deployment), point)
    return kind, f"{most} is {'verifying drafts' if scenario.speculative_config is not None else 'decoding'}; {why}"


def _waiting(
    scenario: Scenario, deployment: Deployment, run: RunResult, parts: Mapping[str, float], point: OperatingPoint
) -> Bottleneck:
    """Why requests queue: no slot in the batch, no room in the cache, or a device that is busy with the others."""
    most = f"{parts['queue']:.0%} of a request's time is waiting"
    slots, room = deployment.settings.max_num_seqs, run.summary["engine"]["max_concurrency"]
    usage = run.summary["figures"]["kv_cache_usage"].mean
    if slots <= room and point.num_seqs >= FULL * slots:
        return Bottleneck(
            "max_num_seqs",
            f"max_num_seqs: {most} for one of the {slots} slots of the batch ({point.num_seqs} taken on average); "
            f"{usage:.0%} of the KV blocks are in use.",
        )
    if usage >= FULL or point.num_seqs >= FULL * room:
        return Bottleneck(
            "KV cache",
            f"KV cache: {most}; {usage:.0%} of the blocks are in use on average, room for {room:,.0f} mean requests at "
            f"once ({point.num_seqs} are served on average).",
        )
    served = {name: share for name, share in parts.items() if name != "queue"}
    largest = max(served, key=lambda name: served[name])
    kind, why = _busy(scenario, deployment, largest, f"of the rest {served[largest] / sum(served.values()):.0%}", point)
    return Bottleneck(kind, f"{kind[0].upper()}{kind[1:]}: {most} for a busy GPU; {why}.")


def _ceiling(device: Ceilings, point: OperatingPoint) -> tuple[str, str]:
    """Which ceiling the mean step is closer to, and the numbers."""
    compute, memory = point.flops_per_s / device.flops_per_s, point.bytes_per_s / device.bytes_per_s
    plural = "" if point.num_seqs == 1 else "s"
    why = (
        f"a mean step ({point.num_seqs} sequence{plural}, {point.rows:,.0f} rows) reaches {memory:.0%} of the "
        f"{device.bytes_per_s / 1e12:.2f} TB/s and {compute:.0%} of the {device.flops_per_s / 1e12:,.0f} TFLOP/s of "
        f"{device.device}"
    )
    if max(compute, memory) < REACHED:
        return "kernel latency", why
    return ("compute" if compute > memory else "memory bandwidth"), why


def _mean_step(scenario: Scenario, deployment: Deployment, run: RunResult) -> OperatingPoint:
    """A decode step of the mean batch."""
    num_seqs, context = mean_batch(scenario, deployment, run)
    return operating_point(scenario, deployment, num_seqs, scenario.num_speculative_tokens, context)
