"""Where a decode step stands under the roofline: work, time and intensity of the target pass at a batch and a k.

One rank's share under tensor parallelism. The work is counted (`draftcast.kernels`), the time is the step cost's: what
it takes beside the draft, so that the picture shows how verifying k drafts moves the pass towards compute.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from draftcast.calibration.profile.measured import FAMILY
from draftcast.kernels.model.dtypes import activation_bytes
from draftcast.kernels.operators.cost import Work
from draftcast.kernels.work.layers import context_work, elementwise_work, linear_layers, lm_head
from draftcast.scenarios.run.deployment import Deployment
from draftcast.scenarios.run.simulate import RunResult
from draftcast.scenarios.schema import Scenario
from draftcast.sim.cost import step_time as st

# Draft lengths of the roofline picture.
MOST_K = 7


@dataclass(frozen=True)
class OperatingPoint:
    """The target pass (lm_head and sampler included) of a decode step."""

    num_seqs: int  # decoding requests of one replica
    k: int  # drafts each of them verifies
    rows: float  # rows of the pass
    # flops, bytes: work of one rank
    flops: float
    bytes: float
    seconds: float  # device time of the pass
    draft_seconds: float  # device time of making the next drafts

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.flops / self.bytes

    @property
    def flops_per_s(self) -> float:
        """Achieved on one rank."""
        return self.flops / self.seconds

    @property
    def bytes_per_s(self) -> float:
        """Achieved on one rank."""
        return self.bytes / self.seconds


@dataclass(frozen=True)
class Ceilings:
    """What the device can do at the scenario's number format."""

    device: str
    flops_per_s: float
    bytes_per_s: float

    @property
    def ridge(self) -> float:
        """FLOP per byte from which compute is the ceiling."""
        return self.flops_per_s / self.bytes_per_s


def ceilings(scenario: Scenario, deployment: Deployment) -> Ceilings:
    """Peak and bandwidth of the device, as its profile knows them where that measured them."""
    device = getattr(deployment.profile, "hardware", deployment.hardware)
    peak, bandwidth = device.ceilings(FAMILY["linear"], scenario.engine.weight_dtype)
    return Ceilings(device.name, peak, bandwidth)


def operating_point(
    scenario: Scenario, deployment: Deployment, num_seqs: int, k: int, mean_context: float
) -> OperatingPoint:
    """The decode step of ``num_seqs`` requests with ``mean_context`` cached tokens that verify ``k`` drafts each."""
    f, out = st.empty_record(st.FEATURES), st.empty_record(st.TIMES)
    st.decode_features(deployment.cost, num_seqs, k, mean_context, f)
    st.step_time(deployment.cost, f, out)
    work = _target_work(scenario, deployment, f)
    seconds = float(out["target_s"] + out["sample_s"])
    rows = float(f["tokens"])
    return OperatingPoint(num_seqs, k, rows, float(work.flops), float(work.bytes), seconds, float(out["draft_s"]))


def mean_batch(scenario: Scenario, deployment: Deployment, run: RunResult) -> tuple[int, float]:
    """Requests of the mean decode step of one replica, and their mean context in tokens.

    By Little's law: requests in service are their rate times their time in service.
    """
    figures = run.summary["figures"]
    rate = figures["request_throughput"].mean / scenario.cluster.replicas
    in_service = figures["mean_e2el_s"].mean - figures["mean_time_queue_s"].mean
    busy = rate * in_service if math.isfinite(rate * in_service) else 1.0
    requests = run.requests
    context = float((requests["prompt_tokens"] + requests["output_tokens"] / 2).mean())
    return min(max(1, round(busy)), deployment.settings.max_num_seqs), context


def operating_tracks(scenario: Scenario, deployment: Deployment, run: RunResult) -> dict[int, list[OperatingPoint]]:
    """Points of k = 0 to `MOST_K` by batch size: one request, the run's mean batch, and as many as fit at once."""
    mean, context = mean_batch(scenario, deployment, run)
    room = int(min(deployment.settings.max_num_seqs, max(run.summary["engine"]["max_concurrency"], 1.0)))
    return {
        num_seqs: [operating_point(scenario, deployment, num_seqs, k, context) for k in range(MOST_K + 1)]
        for num_seqs in sorted({1, mean, max(room, mean)})
    }


def _target_work(scenario: Scenario, deployment: Deployment, f: st.Record) -> Work:
    """One rank's work over the rows of ``f``; collectives compute nothing and move no memory to speak of."""
    engine, model = scenario.engine, deployment.model
    tp, dtype = engine.tensor_parallel_size, engine.weight_dtype
    act, rows = activation_bytes(dtype), f["tokens"]
    work = lm_head(model, tp).work(f["logit_rows"], dtype)
    for layer in linear_layers(model, tp):
        work = work.add(layer.work(rows, dtype).scale(layer.count))
    work = work.add(elementwise_work(model, rows, tp=tp, act_bytes=act))
    return work.add(context_work(model, f, tp, dtype, engine.kv_dtype))
