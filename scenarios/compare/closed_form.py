"""What the papers' formulas say of a setting, beside the simulation; and known cliffs of an engine that speculates.

The formulas hold for one request at a time whose verification takes no longer than a decoding step. They know neither
batches, prompts nor the host.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from draftcast.calibration.yaml_text import yaml_beside
from draftcast.scenarios.run.deployment import Deployment, cached_deployment, memory_ahead
from draftcast.scenarios.run.fluid import Fluid
from draftcast.scenarios.schema import Scenario, without_speculation
from draftcast.sim.cost import step_time as st
from draftcast.sim.cost.methods import DraftPlan
from draftcast.sim.cost.step_tables import capture_sizes

_CLIFFS: dict[str, str] = yaml_beside(__file__, "sentences.yaml")["cliffs"]


@dataclass(frozen=True)
class ClosedForm:
    """Ratios of a setting at batch size 1, of the classes that the engine drafts for."""

    block_efficiency: float  # mean tokens a round, the bonus token included
    # Time of a round's drafts, a draft token, over that of a decoding step: c of Leviathan et al., arXiv 2211.17192; of
    # drafts made one round ahead what the target waits for, in the mean over rounds that keep them and that do not
    cost_ratio: float
    # Block efficiency / (c k + 1), theorem 3.8 there with the block efficiency measured instead of from one alpha
    speedup: float
    # Memory-bound speed-up: the same with the ratio of weight bytes for c, since a step's time is reading its weights
    # (Goel et al., arXiv 2403.00858); a parallel draft or heads read theirs once a round, one ahead its own meanwhile
    mbsu: float


def closed_form(scenario: Scenario) -> ClosedForm | None:
    """The figures of a scenario's own draft length, of a schedule its length at batch size 1; None where none drafts.

    Groups of replicas have a figure each: none is given.

    Raises InputError: as of `draftcast.simulate`.
    """
    spec = scenario.speculative_config
    if spec is None or scenario.cluster.groups:
        return None
    deployment = cached_deployment(scenario)
    schedule = spec.num_speculative_tokens_per_batch_size
    k = min(spec.k, schedule[0][2]) if schedule is not None else spec.k
    if k == 0:
        return None
    asked = Fluid.of(scenario, deployment).traffic.of_drafted(scenario)
    tokens, memory = asked.tokens_per_round(k), deployment.memory
    decoding_s = _decode_s(deployment, 0, asked.context_tokens, 0.0)[1]
    kept = asked.kept_share(k) if deployment.method.drafts_ahead else 0.0
    drafting = _decode_s(deployment, k, asked.context_tokens, kept)[0] / decoding_s
    passes = k if deployment.method.plan == DraftPlan.AUTOREGRESSIVE else 1
    reading = passes * memory.draft_weight_bytes / memory.weight_bytes
    if deployment.method.drafts_ahead and deployment.draft is not None:
        own = memory_ahead(deployment.settings, deployment.draft, deployment.hardware)
        ratio = own.weight_bytes / memory.weight_bytes
        reading = max((k + 1) * ratio - 1.0, 0.0) + (1.0 - kept) * k * ratio
    return ClosedForm(tokens, drafting / k, tokens / (1 + drafting), tokens / (1 + reading))


def _decode_s(deployment: Deployment, k: int, context_tokens: float, kept: float) -> tuple[float, float]:
    """Seconds of the drafts and of the target in a step of one decoding request."""
    features, times = st.empty_record(st.FEATURES), st.empty_record(st.TIMES)
    st.decode_features(deployment.cost, 1, k, context_tokens, features)
    st.expect_ahead(features, kept)
    st.step_time(deployment.cost, features, times)
    return float(times["draft_s"]), float(times["target_s"])


def break_even(scenario: Scenario) -> float:
    """Share of drafts accepted at which a decoding batch of the load gains nothing.

    A round yields 1 + share k tokens in a step that takes longer than one without speculation. Errors as above.
    """
    spec, context = scenario.speculative_config, Fluid.of(scenario).traffic.context_tokens
    assert spec is not None
    own, without = cached_deployment(scenario), cached_deployment(without_speculation(scenario)).cost
    batch = max(1, round(min(_batch(scenario), own.settings.max_num_seqs)))
    steps = st.decode_step_seconds(own.cost, batch, spec.k, context), st.decode_step_seconds(without, batch, 0, context)
    return float(steps[0] / steps[1] - 1) / spec.k


def cliffs(loads: Iterable[Scenario]) -> tuple[str, ...]:
    """Known cliffs of vLLM 0.32 that a setting meets at any of its loads, a sentence each with its source."""
    found = list[str]()
    for scenario in loads:
        if scenario.cluster.groups:  # of which each has a share of the load that its own cluster would not have
            continue
        deployment, spec = cached_deployment(scenario), scenario.speculative_config
        settings = deployment.settings
        if spec is None or settings.generation.engine != "vllm":
            continue
        rows, profile = settings.method.verify_rows(settings.num_speculative_tokens), deployment.profile
        sizes = capture_sizes(settings, rows, profile.cuda_graph_ceiling) if profile.kind == "roofline" else ()
        held = sizes[-1] // rows if sizes else settings.max_num_seqs
        bursts = 1 if scenario.is_closed_loop else 2
        if held < min(bursts * _batch(scenario), settings.max_num_seqs):
            found.append(_CLIFFS["beyond_graphs"].format(held=held, rows=rows, captured=sizes[-1]))
        full = settings.cudagraph_mode.startswith("FULL") and not settings.generation.full_graphs_of_any_k
        if settings.is_dynamic and full:
            found.append(_CLIFFS["piecewise_graphs"])
        lengths = [k for _, _, k in spec.num_speculative_tokens_per_batch_size or ()]
        if 0 in lengths and settings.method.plan == DraftPlan.AUTOREGRESSIVE:
            found.append(_CLIFFS["drafts_without_tokens"])
    return tuple(dict.fromkeys(found))


def _batch(scenario: Scenario) -> float:
    """Mean requests that decode at once on a replica; infinite above its capacity and where no rate is known."""
    arrivals, replicas = scenario.workload.arrivals, scenario.cluster.replicas
    if arrivals.process == "closed_loop":
        return arrivals.concurrency / replicas
    rate = scenario.rate_rps
    return Fluid.of(scenario).in_system(rate) / replicas if rate else math.inf
