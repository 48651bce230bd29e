"""The cutover without simulating: one engine as a fluid that serves mean requests in mean steps.

In the mean step of a busy engine every decoding request verifies k drafts and makes k new ones; prompts arrive as fast
as outputs are finished, so a share of the steps carries prefill rows as well. In a steady state an engine decodes N
requests at once, each for ``output / tokens per step`` steps, and new ones come as fast as old ones end: so N follows
from the rate, and latency from N. Knows nothing of the spread of requests; a first guess that tells a search where to
look and a reader what the step cost alone implies.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from draftcast.kernels.arrays import FloatArray
from draftcast.scenarios.run.deployment import Deployment, cached_deployment
from draftcast.scenarios.run.workload_spec import acceptance_models, workload_spec
from draftcast.scenarios.schema import Scenario, members, with_values
from draftcast.sim.acceptance.chain import Chain
from draftcast.sim.acceptance.model import AcceptanceModel, Trace
from draftcast.sim.cluster.routers import cluster_capacity
from draftcast.sim.cost import step_time as st
from draftcast.sim.output.steady_state import FORGOTTEN
from draftcast.sim.policies.schedule import BatchSchedule, Fixed, Off
from draftcast.sim.workload.build_requests import build_requests
from draftcast.sim.workload.request_table import RequestTable


@dataclass(frozen=True)
class Traffic:
    """Means over requests that matter for a step."""

    prompt_tokens: float  # of a request
    prefill_tokens: float  # of its prompt, those that no cache holds
    output_tokens: float  # of a request
    context_tokens: float  # of a request in decode, averaged over output tokens: long outputs count as they last
    models: tuple[AcceptanceModel, ...]  # acceptance of each class
    # Requests of a session before one, and seconds thought: so many at most, of all but `FORGOTTEN` of the requests
    into_session: tuple[float, float]
    shares: tuple[float, ...]  # of the output tokens by class, in the order of ``models``; they add up to 1

    def round_shares(self, k: int) -> FloatArray:
        """Share of each class in the rounds with k drafts: the more a round yields, the fewer there are."""
        rounds = np.array(self.shares) / [model.tokens_per_round(k) for model in self.models]
        return np.asarray(rounds / rounds.sum())

    def tokens_per_round(self, k: int) -> float:
        """Mean tokens that a decoding request gains in a step with k drafts, rounds without a draft included."""
        return self._mean(k, [model.tokens_per_round(k) for model in self.models]) if k else 1.0

    def draft_share(self, k: int) -> float:
        """Share of the rounds that carry a draft."""
        return self._mean(k, [model.draft_share(k) for model in self.models])

    def unconditional(self, k: int) -> FloatArray:
        """Share of the rounds with a draft that accept at least so many, shape (k,)."""
        drafted = self.round_shares(k) * [model.draft_share(k) for model in self.models]
        rates = np.array([model.unconditional(k) for model in self.models])
        return np.asarray(drafted @ rates / (drafted.sum() or 1.0))

    def kept_share(self, k: int) -> float:
        """Share of the rounds after which k drafts made one round ahead are kept: all before them and one more hold."""
        return self._mean(k, [model.tokens_per_round(k + 1) - model.tokens_per_round(k) for model in self.models])

    def of_drafted(self, scenario: Scenario) -> Self:
        """The same with the classes alone that the engine drafts for; itself where it drafts for none."""
        drafted = np.array(self.shares) * [entry.speculation for entry in scenario.request_classes]
        return replace(self, shares=tuple(drafted / drafted.sum())) if drafted.any() else self

    def _mean(self, k: int, values: Sequence[float]) -> float:
        return float(self.round_shares(k) @ np.array(values))


def traffic(table: RequestTable, models: Sequence[AcceptanceModel], caches_prefixes: bool = False) -> Traffic:
    """Means over a table; ``models``: one for each class. A cache holds system prompts and sessions for ever."""
    prompt = table.prompt_tokens.astype(np.float64)
    output = np.maximum(table.output_tokens.astype(np.float64), 1.0)
    number, thought_s = (float(np.quantile(values, 1 - FORGOTTEN)) for values in table.into_session())
    means = [*models]
    for c, model in enumerate(models):
        if isinstance(model, Trace):
            means[c] = model.of_recording(table.acceptance_offsets, table.acceptance_lengths)
        elif isinstance(model, Chain):
            means[c] = model.of_requests(prompt[table.class_id == c], output[table.class_id == c])
    by_class = np.bincount(table.class_id, weights=output, minlength=len(models))
    # A request that a cache holds whole computes its last token.
    cached = np.minimum(table.shared_tokens(), prompt - 1) if caches_prefixes else 0
    return Traffic(
        prompt_tokens=float(prompt.mean()),
        prefill_tokens=float((prompt - cached).mean()),
        output_tokens=float(output.mean()),
        context_tokens=float((output * (prompt + output / 2.0)).sum() / output.sum()),
        models=tuple(means),
        into_session=(number, thought_s),
        shares=tuple(by_class / by_class.sum()),
    )


@dataclass(frozen=True)
class MeanStep:
    """A mean step: its seconds and what they go to."""

    seconds: float  # of the step, the host's where it does not hide behind the device
    draft_s: float  # of its parts, hidden or not, as in `draftcast.sim.cost.step_time.TIMES`
    target_s: float
    sample_s: float
    tokens: float  # output tokens of a request
    kinds: tuple[tuple[float, st.Record], ...]  # without and with prompts: share of the steps, and their FEATURES

    @property
    def seconds_per_token(self) -> float:
        """Of output, of each request."""
        return self.seconds / self.tokens


def mean_step(deployment: Deployment, traffic: Traffic, num_seqs: int, k: int, made: int = 0) -> MeanStep:
    """The mean step of ``num_seqs`` decoding requests with k drafts each (of a tree: depth k; ``made``: where more are
    made than verified), and their prompts.

    Prompts come independently of each other: some steps carry several, others none, and these may run as full graphs.
    All ranks that step together take as long as the one with most prompts. Of an engine that computes prompts by
    themselves the time from one decoding step to the next counts.
    """
    cost = deployment.cost
    f = st.empty_record(st.FEATURES)
    st.decode_features(cost, num_seqs, k, traffic.context_tokens, f)
    if made > k:
        f["draft_seqs"], f["draft_tokens"], f["draft_passes"] = num_seqs, num_seqs * made, made
        f["draft_kv"] = num_seqs * traffic.context_tokens
    drafted = traffic.draft_share(k) if k else 0.0
    if 0.0 < drafted < 1.0 and not cost.params[0]["pads_searches"]:
        bare = st.empty_record(st.FEATURES)
        st.decode_features(cost, num_seqs, 0, traffic.context_tokens, bare)
        # The deepest draft of a step and the search for matches stay whole; rows are those of the share that matched.
        for name in set(st.FEATURES.names or ()) - {"draft_passes", "propose_tokens"}:
            f[name] = bare[name] + drafted * (f[name] - bare[name])
    if k and cost.params[0]["drafts_ahead"]:
        st.expect_ahead(f, traffic.kept_share(k))
    tokens = traffic.tokens_per_round(k)
    rows = num_seqs * tokens * traffic.prefill_tokens / traffic.output_tokens
    settings = deployment.settings
    room = max(settings.max_num_batched_tokens - float(f["tokens"]), 1.0)
    prompts, ranks = rows / traffic.prefill_tokens, settings.lockstep_ranks
    most_rows = traffic.prefill_tokens * _most(prompts, ranks)
    share = min(max(-math.expm1(-ranks * prompts), most_rows / room), 1.0)  # of the steps that carry prompts
    alone = settings.generation.prompts_alone
    with_prompts = _with_prompts(st.empty_record(st.FEATURES) if alone else f, cost, traffic, most_rows / share)
    kinds = ((1.0 if alone else 1.0 - share, f), (share, with_prompts))
    seconds, parts = 0.0, np.zeros(3)
    for weight, features in kinds:
        out = st.empty_record(st.TIMES)
        st.step_time(cost, features, out)
        seconds += weight * float(st.step_seconds(cost, out))
        parts += weight * np.array([out["draft_s"], out["target_s"], out["sample_s"]])
    draft_s, target_s, sample_s = parts.tolist()
    return MeanStep(seconds, draft_s, target_s, sample_s, tokens, kinds)


def _most(prompts: float, ranks: int) -> float:
    """Prompts on the rank that has most of them, where ``prompts`` come to each on average and are spread evenly."""
    if ranks == 1:
        return prompts
    from scipy.special import pdtr

    numbers = np.arange(math.ceil(prompts + 10.0 * math.sqrt(prompts) + 10.0))
    return float((1.0 - pdtr(numbers * ranks, ranks * prompts)).sum())


def _with_prompts(decodes: st.Record, cost: st.StepCost, traffic: Traffic, rows: float) -> st.Record:
    """The features of a step that also computes ``rows`` tokens of mean prompts."""
    f = decodes.copy()
    f["tokens"] += rows
    f["seqs"] += rows / traffic.prefill_tokens
    f["prefill_seqs"] += rows / traffic.prefill_tokens
    f["prefill_tokens"] += rows
    f["prefill_kv"] += rows * (traffic.prompt_tokens / traffic.prefill_tokens)
    f["prefill_qkv"] += rows * (2.0 * traffic.prompt_tokens - traffic.prefill_tokens + 1.0) / 2.0
    window = float(cost.params[0]["window"])
    if window > 0.0:
        f["win_prefill_kv"] += rows
        cached = traffic.prompt_tokens - traffic.prefill_tokens
        _, pairs = st.window_of_prompt(cost.params[0]["window_kind"], window, cached, traffic.prefill_tokens)
        f["win_prefill_qkv"] += rows * pairs / traffic.prefill_tokens
    return f


SAMPLE_REQUESTS = 2000  # requests whose means are taken; the spread of the means is far below the estimate's own error


@dataclass(frozen=True)
class FluidModel:
    """One side of the question: the engine, mean requests, and how many engines share the load."""

    deployment: Deployment
    traffic: Traffic
    engines: int  # data-parallel ranks of all replicas
    longest_prompt: int
    longest_output: int
    drafts: Sequence[int] = field(repr=False)  # by batch size, the last for all larger batches
    exact_policy: bool  # False: the policy depends on more than the batch; the full draft length stands for it
    _steps: dict[int, MeanStep] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, scenario: Scenario, deployment: Deployment | None = None) -> "FluidModel":
        """The fluid of a scenario; ``deployment`` where it is known. Raises InputError: as of `draftcast.simulate`."""
        if scenario.cluster.groups:
            return MixedFluidModel.of_groups(scenario)
        deployment = deployment or cached_deployment(scenario)
        values: dict[str, Any] = {"workload.num_requests": SAMPLE_REQUESTS, "workload.duration_s": None}
        if scenario.workload.max_model_len_action == "error":
            values["workload.max_model_len_action"] = "clip"  # the run may be of fewer requests, none too long
        few = with_values(scenario, values)
        k, policy = scenario.num_speculative_tokens, deployment.policy
        drafts = [0 if isinstance(policy, Off) else k]
        if isinstance(policy, BatchSchedule):
            drafts = policy.lookup(k, deployment.settings.max_num_seqs).tolist()
        exact = isinstance(policy, Off | Fixed | BatchSchedule)
        table = build_requests(workload_spec(few), few.statistics.seed, None, deployment.settings.max_model_len)
        means = traffic(table, acceptance_models(few), deployment.settings.enable_prefix_caching)
        engines = scenario.cluster.replicas * deployment.settings.data_parallel_size
        longest = int(table.prompt_tokens.max()), int(table.output_tokens.max())
        return cls(deployment, means, engines, *longest, drafts, exact)

    @property
    def slots(self) -> int:
        """Requests that all engines hold at once."""
        settings, traffic = self.deployment.settings, self.traffic
        tokens = round(traffic.prompt_tokens + traffic.output_tokens)
        concurrency = self.deployment.memory.max_concurrency(tokens, settings.lookahead)
        return self.engines * max(1, math.floor(min(settings.max_num_seqs, concurrency)))

    def kv_share(self, in_system: float) -> float:
        """Share of the KV tokens that so many mean requests in decode hold, at most 1."""
        return min(in_system * self.traffic.context_tokens / (self.engines * self.deployment.memory.kv_tokens), 1.0)

    def step(self, in_system: float) -> MeanStep:
        """The mean step with so many requests in all engines together."""
        settings = self.deployment.settings
        # A pipeline's stages work on a batch each.
        num_seqs = max(1, round(in_system / (self.engines * settings.pipeline_parallel_size)))
        if num_seqs not in self._steps:
            k = self.drafts[min(num_seqs, len(self.drafts) - 1)]
            made = settings.max_drafts if settings.drafts_in_full else 0
            self._steps[num_seqs] = mean_step(self.deployment, self.traffic, num_seqs, k, made)
        return self._steps[num_seqs]

    def latency_s(self, in_system: float) -> float:
        """Seconds from first to last token of a mean request with so many requests in the system."""
        return self.traffic.output_tokens * self.step(in_system).seconds_per_token

    def rate_rps(self, in_system: float) -> float:
        """Requests per second that end with so many in the system (Little's law)."""
        return in_system / self.latency_s(in_system)

    def capacity_rps(self) -> float:
        """Largest rate at any number of requests in the system."""
        return float(self._ends_rps[-1])

    def in_system(self, rate_rps: float) -> float:
        """Mean requests in the system at a rate, those that wait for a slot included; infinite from the capacity on.

        They come and go one by one, and as many end per second as `rate_rps` says of their number: the balance of such
        a processor-sharing queue has a product form (Baskett et al. 1975, doi 10.1145/321879.321887).
        """
        ends_rps = self._ends_rps
        use = rate_rps / float(ends_rps[-1])
        if use >= 1.0:
            return math.inf
        numbers = np.arange(ends_rps.size + 1)
        logs = np.concatenate(([0.0], np.cumsum(np.log(rate_rps / ends_rps))))
        shares = np.exp(logs - logs.max())
        waiting = float(shares[-1]) * use / (1.0 - use)
        whole = float(shares @ numbers) + waiting * (ends_rps.size + 1.0 / (1.0 - use))
        return whole / (float(shares.sum()) + waiting)

    @functools.cached_property
    def _ends_rps(self) -> FloatArray:
        """Requests per second that end with 1, 2, ... of them in the system, up to `slots`; never falling."""
        most = max(self.slots, self.engines)
        counts = np.unique(np.round(np.geomspace(self.engines, most, 24))).tolist()
        rates = np.maximum.accumulate([self.rate_rps(count) for count in counts])
        return np.asarray(np.interp(np.arange(1.0, most + 1.0), [0.0, *counts], [0.0, *rates]))

    @functools.cached_property
    def log_latencies(self) -> tuple[FloatArray, FloatArray]:
        """Shares of the capacity, and the logarithm of the seconds of a request in the system there; neither falls."""
        shares = 1.0 - np.geomspace(0.999, 0.001, 64)
        rates_rps = shares * self.capacity_rps()
        latencies_s = np.maximum.accumulate([self.in_system(rate_rps) / rate_rps for rate_rps in rates_rps])
        return shares, np.log(latencies_s)

    def session_requests(self, rate_rps: float) -> float:
        """Requests after which the warm-up of sessions has ended within the first half; 0 without sessions."""
        number, thought_s = self.traffic.into_session
        if number == 0:
            return 0.0
        in_system = min(self.in_system(rate_rps), float(self.slots))
        return 2.0 * rate_rps * (thought_s + number * self.latency_s(in_system))


@dataclass(frozen=True)
class MixedFluidModel(FluidModel):
    """Groups of unlike replicas behind one router, equally many requests in each replica until it is full. Deployment
    and traffic, which are asked for what all share, are those of the first group that speculates."""

    groups: tuple[tuple[Scenario, FluidModel], ...] = ()

    @classmethod
    def of_groups(cls, scenario: Scenario) -> Self:
        groups = tuple((member, FluidModel.of(member)) for member in members(scenario))
        lead = next((fluid for member, fluid in groups if member.speculative_config is not None), groups[0][1])
        together = {"engines": sum(fluid.engines for _, fluid in groups), "_steps": {}}
        together["exact_policy"] = all(fluid.exact_policy for _, fluid in groups)
        return cls(**vars(lead) | together, groups=groups)

    @property
    def slots(self) -> int:
        return sum(fluid.slots for _, fluid in self.groups)

    def shares(self, in_system: float) -> list[float]:
        """Requests in the system of each group."""
        requests = [0.0] * len(self.groups)
        sizes = [member.cluster.replicas for member, _ in self.groups]
        left, replicas = in_system, sum(sizes)
        for index in sorted(range(len(sizes)), key=lambda index: self.groups[index][1].slots / sizes[index]):
            requests[index] = min(left * sizes[index] / replicas, float(self.groups[index][1].slots))
            left, replicas = left - requests[index], replicas - sizes[index]
        return requests

    def step(self, in_system: float) -> MeanStep:
        raise NotImplementedError("the groups have a mean step each")

    def latency_s(self, in_system: float) -> float:
        shares = zip(self.groups, self.shares(in_system), strict=True)
        return in_system / sum(fluid.rate_rps(share) for (_, fluid), share in shares if share)

    def rate_rps(self, in_system: float) -> float:
        return min(super().rate_rps(in_system), self.capacity_rps())

    def capacity_rps(self) -> float:
        sizes = [(member.cluster.replicas, fluid) for member, fluid in self.groups]
        rates = [fluid.capacity_rps() / size for size, fluid in sizes for _ in range(size)]
        return cluster_capacity(self.groups[0][0].cluster.router, rates)
