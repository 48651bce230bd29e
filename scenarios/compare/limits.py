"""What limits a setting at a load: one function and one sentence, for every command and page; the roofline behind it.

From the step cost at the simulated number of requests in the system, prompts included as they come along: what the
target pass would need if only its bytes, or only its FLOPs, had to be done at the device's peak, what the draft takes,
and what of the host's work shows. Full KV blocks or full slots come first: then requests wait, whatever a step takes.

`operating_tracks` places the target pass under the roofline, one rank's share: its work is counted, its time is the
step cost's beside the draft. `closed_form` is what the papers' formulas say beside the simulation, of one request at a
time whose verification takes no longer than a decoding step: they know neither batches, prompts nor the host.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from draftcast.kernels.model.dtypes import activation_bytes
from draftcast.kernels.model.spec import ModelSpec
from draftcast.kernels.operators.cost import Work
from draftcast.kernels.work.layers import context_work, elementwise_work, linear_layers, lm_head
from draftcast.scenarios.run.deployment import Deployment, cached_deployment
from draftcast.scenarios.run.fluid import FluidModel, MixedFluidModel
from draftcast.scenarios.run.simulate import RunResult
from draftcast.scenarios.schema import Scenario, without_speculation
from draftcast.sim.cost import step_time as st
from draftcast.sim.cost.engine_config import EngineConfig
from draftcast.sim.cost.methods import DraftPlan
from draftcast.sim.cost.step_cost import capture_sizes
from draftcast.yaml_text import yaml_beside

KV_FULL = 0.9  # share of the KV blocks in use from which their space is what limits: a mean leaves no room for peaks
SLOTS_FULL = 0.9  # share of ``max_num_seqs`` from which the slots are what limits
REACHED = 1 / 3  # below this share of a step nothing limits but kernels that are too small to reach any peak
# Draft lengths of the roofline picture.
MOST_K = 7
_SENTENCES: dict[str, Any] = yaml_beside(__file__, "sentences.yaml")
Limit = Literal["memory bandwidth", "compute", "KV cache", "max_num_seqs", "host", "draft", "kernel latency"]


@dataclass(frozen=True)
class Limits:
    """One side at one load."""

    limit: Limit  # what is full; else the largest share below, or ``kernel latency`` where none is a third of the step
    in_system: float  # requests in the system
    step_ms: float  # the mean step
    memory_share: float  # what the target's bytes alone would take of the step at the device's peak
    compute_share: float  # what its FLOPs would
    draft_share: float  # of the step
    host_share: float  # of the step, the part that does not hide behind the device
    kv_share: float  # of the KV blocks, in use on average

    @property
    def sentence(self) -> str:
        words = _SENTENCES["limits"]
        first = words["full"].get(self.limit, f"{self.limit[0].upper()}{self.limit[1:]}:")
        return f"{first} {words['step']}".format_map(vars(self))


@dataclass(frozen=True)
class GroupLimits(Limits):
    """Of the group of replicas whose slots are the fullest; of equally full ones, the slowest."""

    group: int

    @property
    def sentence(self) -> str:
        return f"{super().sentence[:-1]} (group {self.group} of the cluster, the fullest)."


def limits_at(
    scenario: Scenario, fluid: FluidModel, figures: Mapping[str, float], rate_rps: float | None = None
) -> Limits:
    """What limits a setting at a load, by the ``figures`` of the run; empty where none hold for the load: then the
    fluid estimate says how full an open loop of ``rate_rps`` is (None: full)."""
    if figures and math.isfinite(figures["mean_e2el_s"]):
        in_system = max(figures["request_throughput"] * figures["mean_e2el_s"], 1.0)
        # Of a closed loop no more than its clients: a short run counts its ends twice.
        in_system = min(in_system, getattr(scenario.workload.arrivals, "concurrency", math.inf))
    else:
        in_system = min(fluid.in_system(rate_rps) if rate_rps is not None else math.inf, float(fluid.slots))
        figures = {}
    if isinstance(fluid, MixedFluidModel):
        shares = fluid.shares(in_system)
        filled = [
            (share / group.slots, group.latency_s(max(share, 1.0)), index)
            for index, ((_, group), share) in enumerate(zip(fluid.groups, shares, strict=True))
        ]
        index = max(filled)[-1]
        fullest = fluid.groups[index][1]
        return GroupLimits(**vars(_limits(fullest, shares[index], fullest.kv_share(shares[index]))), group=index)
    return _limits(fluid, in_system, figures["kv_cache_usage"] if figures else fluid.kv_share(in_system))


def _limits(fluid: FluidModel, in_system: float, kv_share: float) -> Limits:
    step = fluid.step(in_system)
    memory_s = compute_s = 0.0
    # Of each kind apart: steps with prompts touch more experts than others, a mean of both would touch most of them.
    for weight, features in step.kinds:
        for family, dtype, work in target_work(fluid.deployment.model, fluid.deployment.settings, features):
            flops_per_s, bytes_per_s = fluid.deployment.hardware.ceilings(family, dtype)
            compute_s += weight * float(work.flops) / flops_per_s
            memory_s += weight * float(work.bytes) / bytes_per_s
    shares: dict[Limit, float] = {
        "memory bandwidth": memory_s / step.seconds,
        "compute": compute_s / step.seconds,
        "draft": step.draft_s / step.seconds,
        "host": max(step.seconds - (step.draft_s + step.target_s + step.sample_s), 0.0) / step.seconds,
    }
    slots = fluid.engines * fluid.deployment.settings.max_num_seqs
    limit = max(shares, key=lambda name: shares[name])
    if kv_share > KV_FULL:
        limit = "KV cache"
    elif in_system > SLOTS_FULL * slots:
        limit = "max_num_seqs"
    elif shares[limit] <= REACHED:
        limit = "kernel latency"
    memory, compute, draft, host = shares.values()
    return Limits(limit, in_system, step.seconds * 1e3, memory, compute, draft, host, kv_share)


@dataclass(frozen=True)
class OperatingPoint:
    """The target pass (lm_head and sampler included) of a decode step."""

    num_seqs: int  # decoding requests of one engine
    k: int  # drafts each of them verifies
    rows: float  # rows of the pass
    flops: float  # of one rank, as the bytes
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


def operating_point(deployment: Deployment, num_seqs: int, k: int, mean_context: float) -> OperatingPoint:
    """The decode step of ``num_seqs`` requests with ``mean_context`` cached tokens that verify ``k`` drafts each."""
    f, out = _decode_step(deployment, num_seqs, k, mean_context)
    parts = [work for _, _, work in target_work(deployment.model, deployment.settings, f)]
    flops, moved = sum(float(work.flops) for work in parts), sum(float(work.bytes) for work in parts)
    seconds = float(out["target_s"] + out["sample_s"])
    return OperatingPoint(num_seqs, k, float(f["tokens"]), flops, moved, seconds, float(out["draft_s"]))


def operating_tracks(scenario: Scenario, deployment: Deployment, run: RunResult) -> dict[int, list[OperatingPoint]]:
    """Points of k = 0 to `MOST_K` by batch size: one request, the run's mean batch, and as many as fit at once."""
    figures, most = run.summary["figures"], deployment.settings.max_num_seqs
    engines = scenario.cluster.replicas * deployment.settings.data_parallel_size
    rate = figures["request_throughput"].mean / engines
    # Requests in service are their rate times their time in service (Little's law).
    in_service = rate * (figures["mean_e2el_s"].mean - figures["mean_time_queue_s"].mean)
    mean = min(max(1, round(in_service)), most) if math.isfinite(in_service) else 1
    context = float((run.requests["prompt_tokens"] + run.requests["output_tokens"] / 2).mean())
    room = int(min(most, max(run.summary["engine"]["max_concurrency"], 1.0)))
    return {
        num_seqs: [operating_point(deployment, num_seqs, k, context) for k in range(MOST_K + 1)]
        for num_seqs in sorted({1, mean, max(room, mean)})
    }


def target_work(model: ModelSpec, config: EngineConfig, f: st.Record) -> Iterator[tuple[str, str, Work]]:
    """One rank's work of the target pass over the rows of ``f`` by operator family and format; no collectives."""
    tp, dtype, kv_dtype = config.tensor_parallel_size, config.weight_dtype, config.kv_dtype
    act_bytes, rows = activation_bytes(dtype), f["tokens"]
    # Every rank holds a part of each expert, or whole experts, and the rows of all data-parallel ranks meet them.
    dp, groups = config.data_parallel_size, config.expert_groups
    for layer in linear_layers(model, tp, tp * dp // groups):
        work = layer.work(rows * dp if layer.num_experts else rows, dtype).scale(layer.count)
        yield "linear", layer.stored(dtype)[0], work.scale(1 / groups) if layer.num_experts else work
    head = lm_head(model, tp)
    yield "lm_head", head.stored(dtype)[0], head.work(f["logit_rows"], dtype)
    yield "elementwise", dtype, elementwise_work(model, rows, tp=tp, act_bytes=act_bytes)
    yield "attention_decode", kv_dtype, context_work(model, f, tp, dtype, kv_dtype)


@dataclass(frozen=True)
class ClosedForm:
    """Ratios of a setting at batch size 1, of the classes that the engine drafts for."""

    block_efficiency: float  # mean tokens a round, the bonus token included
    # Time of a round's drafts, a draft token, over that of a decoding step: c of Leviathan et al., arXiv 2211.17192; of
    # drafts made one round ahead what the target waits for, in the mean over rounds that keep them and that do not
    cost_ratio: float
    speedup: float  # block efficiency, measured instead of from one alpha, / (c k + 1): theorem 3.8 there
    # Memory-bound speed-up: the same with the ratio of weight bytes for c, since a step's time is reading its weights
    # (Goel et al., arXiv 2403.00858); a parallel draft or heads read theirs once a round, one ahead its own meanwhile
    mbsu: float


def closed_form(scenario: Scenario) -> ClosedForm | None:
    """Of a scenario's own draft length, of a schedule its length at batch size 1; None where none drafts, and of
    groups, which have a figure each. Raises InputError: as of `draftcast.simulate`."""
    spec = scenario.speculative_config
    if spec is None or scenario.cluster.groups:
        return None
    deployment = cached_deployment(scenario)
    schedule = spec.num_speculative_tokens_per_batch_size
    k = min(spec.k, schedule[0][2]) if schedule is not None else spec.k
    if k == 0:
        return None
    traffic = FluidModel.of(scenario, deployment).traffic.of_drafted(scenario)
    tokens, settings, draft = traffic.tokens_per_round(k), deployment.settings, deployment.draft
    kept_share = traffic.kept_share(k) if settings.method.drafts_ahead else 0.0
    without, drafted = (_decode_step(deployment, 1, drafts, traffic.context_tokens, kept_share)[1] for drafts in (0, k))
    drafting = float(drafted["draft_s"] / without["target_s"])
    reading = 0.0
    if draft is not None:
        ratio = _bytes_read(draft, settings.draft_weight_dtype, settings.draft_tensor_parallel_size)
        ratio /= _bytes_read(deployment.model, settings.weight_dtype, settings.tensor_parallel_size)
        reading = ratio * (k if settings.method.plan == DraftPlan.AUTOREGRESSIVE else 1)
        if settings.method.drafts_ahead:
            reading = max((k + 1) * ratio - 1.0, 0.0) + (1.0 - kept_share) * k * ratio
    return ClosedForm(tokens, drafting / k, tokens / (1 + drafting), tokens / (1 + reading))


def _bytes_read(model: ModelSpec, dtype: str, tp: int) -> float:
    """Bytes of weights that a pass reads on a rank: hardly any of embeddings, and also an lm_head that it shares."""
    table = model.vocab_size * model.word_embed_proj_dim * max(1, model.num_draft_heads)
    if model.shares_lm_head and model.num_draft_heads:
        table = 0  # its heads have one table, which is among its other parameters
    layer_bytes = model.weight_bytes(dtype, tp) - model.weight_bytes(dtype, tp, ("embedding", "ngrams", "lm_head"))
    return layer_bytes + table / tp * model.stored("lm_head", dtype)[1]


def _decode_step(
    deployment: Deployment, num_seqs: int, k: int, mean_context: float, kept_share: float = 0.0
) -> tuple[st.Record, st.Record]:
    """Features and times of a step of so many decoding requests; ``kept_share``: as of `expect_ahead`."""
    features, times = st.empty_record(st.FEATURES), st.empty_record(st.TIMES)
    st.decode_features(deployment.cost, num_seqs, k, mean_context, features)
    if kept_share:
        st.expect_ahead(features, kept_share)
    st.step_time(deployment.cost, features, times)
    return features, times


def break_even(scenario: Scenario) -> float:
    """Share of drafts accepted at which a decoding batch of the load gains nothing; errors as above. A round yields 1 +
    share k tokens in a step that takes longer than one without speculation."""
    k, context = scenario.num_speculative_tokens, FluidModel.of(scenario).traffic.context_tokens
    on, off = cached_deployment(scenario), cached_deployment(without_speculation(scenario))
    batch = max(1, round(min(_batch(scenario), on.settings.max_num_seqs)))
    steps = st.decode_step_seconds(on.cost, batch, k, context), st.decode_step_seconds(off.cost, batch, 0, context)
    return float(steps[0] / steps[1] - 1) / k


def cliffs(loads: Iterable[Scenario]) -> tuple[str, ...]:
    """Known cliffs of vLLM 0.32 that a setting meets at any of its loads, a sentence each with its source."""
    sentences, known_cliffs = list[str](), _SENTENCES["cliffs"]
    for scenario in loads:
        if scenario.cluster.groups:  # of which each has a share of the load that its own cluster would not have
            continue
        deployment, spec = cached_deployment(scenario), scenario.speculative_config
        settings = deployment.settings
        if spec is None or settings.generation.engine != "vllm":
            continue
        rows, profile = settings.method.verify_rows(settings.num_speculative_tokens), deployment.profile
        sizes = capture_sizes(settings, rows, profile) if profile.kind == "roofline" else ()
        graph_seqs = sizes[-1] // rows if sizes else settings.max_num_seqs
        bursts = 1 if scenario.is_closed_loop else 2
        if graph_seqs < min(bursts * _batch(scenario), settings.max_num_seqs):
            sentences.append(known_cliffs["beyond_graphs"].format(held=graph_seqs, rows=rows, captured=sizes[-1]))
        full = settings.cudagraph_mode.startswith("FULL") and not settings.generation.full_graphs_of_any_k
        if settings.is_dynamic and full:
            sentences.append(known_cliffs["piecewise_graphs"])
        lengths = [k for _, _, k in spec.num_speculative_tokens_per_batch_size or ()]
        if 0 in lengths and settings.method.plan == DraftPlan.AUTOREGRESSIVE:
            sentences.append(known_cliffs["drafts_without_tokens"])
    return tuple(dict.fromkeys(sentences))


def _batch(scenario: Scenario) -> float:
    """Mean requests that decode at once on a replica; infinite above its capacity and where no rate is known."""
    arrivals, replicas = scenario.workload.arrivals, scenario.cluster.replicas
    if arrivals.process == "closed_loop":
        return arrivals.concurrency / replicas
    rate = scenario.rate_rps
    return FluidModel.of(scenario).in_system(rate) / replicas if rate else math.inf
