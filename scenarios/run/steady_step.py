"""A mean step of a busy engine, without simulating: what decides between draft lengths at a given batch size.

Every decoding request verifies k drafts and makes k new ones; prompts arrive as fast as outputs are finished, so each
step carries its share of prefill rows as well. Knows neither queues nor the spread of anything: a first estimate, to be
checked by simulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draftcast.sim.acceptance import AcceptanceModel, Trace
from draftcast.sim.cost import step_time as st
from draftcast.sim.workload.request_table import RequestTable


@dataclass(frozen=True)
class Traffic:
    """Means over requests that matter for a step.

    Attributes:
        prompt_tokens: of a request.
        output_tokens: of a request.
        context_tokens: of a request in decode, averaged over output tokens: long outputs count as long as they last.
        models: acceptance of each class.
        shares: of the output tokens by class, in the order of ``models``; they add up to 1.
    """

    prompt_tokens: float
    output_tokens: float
    context_tokens: float
    models: tuple[AcceptanceModel, ...]
    shares: tuple[float, ...]

    def tokens_per_round(self, k: int) -> float:
        """Mean tokens that a decoding request gains in a step with k drafts, rounds without a draft included."""
        if k == 0:
            return 1.0  # also without speculation, where no class has an acceptance model
        return sum(share * model.tokens_per_round(k) for share, model in zip(self.shares, self.models, strict=True))

    def draft_share(self, k: int) -> float:
        """Share of the rounds that carry a draft."""
        return sum(share * model.draft_share(k) for share, model in zip(self.shares, self.models, strict=True))


def traffic(table: RequestTable, models: Sequence[AcceptanceModel]) -> Traffic:
    """Means of a request table; ``models`` holds one acceptance model a class."""
    prompt = table.prompt_tokens.astype(np.float64)
    output = np.maximum(table.output_tokens.astype(np.float64), 1.0)
    # A recorded acceptance comes with the requests.
    recorded = Trace(table.acceptance_offsets, table.acceptance_lengths)
    models = [recorded if isinstance(model, Trace) else model for model in models]
    by_class = np.bincount(table.class_id, weights=output, minlength=len(models))
    return Traffic(
        prompt_tokens=float(prompt.mean()),
        output_tokens=float(output.mean()),
        context_tokens=float((output * (prompt + output / 2.0)).sum() / output.sum()),
        models=tuple(models),
        shares=tuple(by_class / by_class.sum()),
    )


@dataclass(frozen=True)
class MeanStep:
    """A mean step: its seconds and what they go to.

    Attributes:
        seconds: of the step, the host's where it does not hide behind the device.
        host_s, draft_s, target_s, sample_s: of its parts, hidden or not.
        tokens: output tokens of a request.
        features: what it computes, indexed by `draftcast.sim.cost.step_time`'s ``F_`` constants.
    """

    seconds: float
    host_s: float
    draft_s: float
    target_s: float
    sample_s: float
    tokens: float
    features: st.FloatArray


def token_seconds(cost: st.StepCost, asked: Traffic, num_seqs: int, k: int) -> float:
    """Mean seconds per output token of a request while ``num_seqs`` decode with k drafts each (for a tree: depth k)."""
    step = mean_step(cost, asked, num_seqs, k)
    return step.seconds / step.tokens


def mean_step(cost: st.StepCost, asked: Traffic, num_seqs: int, k: int) -> MeanStep:
    """The mean step of ``num_seqs`` decoding requests with k drafts each, and the prompts that come along."""
    f, out = np.zeros(st.N_FEATURES), np.zeros(st.N_OUT)
    st.decode_features(cost, num_seqs, k, asked.context_tokens, f)
    drafted = asked.draft_share(k) if k else 0.0
    if 0.0 < drafted < 1.0:
        bare = np.zeros(st.N_FEATURES)
        st.decode_features(cost, num_seqs, 0, asked.context_tokens, bare)
        # The deepest draft of a step and the search for matches stay whole; rows are those of the share that matched.
        whole = [st.F_DRAFT_PASSES, st.F_PROPOSE_TOKENS]
        kept = f[whole]
        f = bare + drafted * (f - bare)
        f[whole] = kept
    tokens = asked.tokens_per_round(k)
    rows = num_seqs * tokens * asked.prompt_tokens / asked.output_tokens
    f[st.F_TOKENS] += rows
    f[st.F_SEQS] += rows / asked.prompt_tokens
    f[st.F_PREFILL_SEQS] += rows / asked.prompt_tokens
    f[st.F_PREFILL_TOKENS] += rows
    f[st.F_PREFILL_KV] += rows
    f[st.F_PREFILL_QKV] += rows * (asked.prompt_tokens + 1.0) / 2.0
    window = float(cost.params[st.P_WINDOW])
    if window > 0.0:
        seen = min(asked.prompt_tokens, window)
        f[st.F_WIN_PREFILL_KV] += rows
        f[st.F_WIN_PREFILL_QKV] += rows * (seen + 1.0) / 2.0
    st.step_time(cost, f, out)
    device = out[st.O_DRAFT] + out[st.O_TARGET] + out[st.O_SAMPLE]
    hidden = cost.params[st.P_OVERLAP_HOST] > 0.0 and cost.params[st.P_ASYNC] > 0.0
    seconds = max(device, out[st.O_HOST]) if hidden else device + out[st.O_HOST]
    host, draft, target, sample = (float(out[part]) for part in (st.O_HOST, st.O_DRAFT, st.O_TARGET, st.O_SAMPLE))
    return MeanStep(float(seconds), host, draft, target, sample, tokens, f)
