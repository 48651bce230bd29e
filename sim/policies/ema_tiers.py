"""Candidate lengths by batch size, walked by a moving accepted length: SGLang."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numba import njit

from draftcast.errors import ScenarioError
from draftcast.sim.policies.base import Policy, ShareAbove0, arrays, draft_alike, is_number, whole
from draftcast.sim.state.engine import EngineState, PolicyArrays

# Three shared parameters, then one row a tier; state is three numbers a tier; the table holds batch sizes' tiers.
TIER_WEIGHT, TIER_INTERVAL, TIER_WARMUP, TIER_FIRST = 0, 1, 2, 3
TIER_DOWN, TIER_UP, TIER_STEPS, TIER_STEP_0, MAX_TIER_STEPS = 0, 1, 2, 3, 12
TIER_ROW = TIER_STEP_0 + MAX_TIER_STEPS
TIER_INDEX, TIER_EMA, TIER_SEEN, TIER_STATE = 0, 1, 2, 3


@njit(cache=True)
def decide_tier(s: EngineState, slot: int) -> None:
    """As many drafts for every request of the batch: where its tier stands."""
    tier = s.policy.table[s.batch[slot].size]
    index = int(s.policy.state[tier * TIER_STATE + TIER_INDEX])
    draft_alike(s, slot, int(s.policy.params[TIER_FIRST + tier * TIER_ROW + TIER_STEP_0 + index]))


@njit(cache=True)
def observe_tier(s: EngineState, slot: int) -> None:
    """Take an output into the average of its requests' tier, and walk when it is time."""
    batch = s.batch[slot]
    if batch.sampled == 0:
        return
    params = s.policy.params
    tier = s.policy.table[batch.sampled]
    row = TIER_FIRST + tier * TIER_ROW
    state = s.policy.state[tier * TIER_STATE : (tier + 1) * TIER_STATE]
    steps = params[row + TIER_STEP_0 : row + TIER_STEP_0 + int(params[row + TIER_STEPS])]
    index = int(state[TIER_INDEX])
    if steps[index] > 0.0 and batch.rounds > 0:
        weight = params[TIER_WEIGHT]
        state[TIER_EMA] = (1.0 - weight) * state[TIER_EMA] + weight * batch.accepted / batch.rounds
    state[TIER_SEEN] += 1.0
    past_warmup = state[TIER_SEEN] - params[TIER_WARMUP]
    if past_warmup <= 0.0 or past_warmup % params[TIER_INTERVAL] != 0.0:
        return
    if steps[index] == 0.0:  # probe the smallest positive length after an interval without drafts
        index = min(index + 1, steps.size - 1)
        if steps[index] > 0.0 and state[TIER_EMA] < 0.0:
            state[TIER_EMA] = steps[index] - 1.0
        state[TIER_INDEX] = index
        return
    start = index
    while index > 0:
        below = steps[index - 1]
        drop = (0.5 if below == 0.0 else below - 0.5) + params[row + TIER_DOWN]
        if state[TIER_EMA] > drop:
            break
        index -= 1
    if index == start:
        while index < steps.size - 1 and state[TIER_EMA] > steps[index] - 0.5 + params[row + TIER_UP]:
            index += 1
    state[TIER_INDEX] = index


@dataclass(frozen=True)
class Tier:
    """Candidate draft lengths from a batch size on; hysteresis shifts the thresholds to a shorter or longer one."""

    batch_size: int
    steps: Sequence[int]
    up_hysteresis: float = 0.0
    down_hysteresis: float = 0.0


SGLANG_TIERS = (Tier(1, (1, 3, 5, 7), 0.0, -0.25), Tier(8, (0, 1, 3)), Tier(32, (0, 1)), Tier(64, (0,)))
"""SGLang's defaults, ``python/sglang/srt/speculative/adaptive_spec_params.py``, 2026."""


@dataclass(frozen=True)
class EmaTiers(Policy):
    """SGLang's adaptive speculation: candidate lengths by batch size, walked by a moving accepted length.

    Every tier keeps the moving average of accepted drafts per round. Every ``update_interval`` outputs, past
    ``warmup_batches``, it steps down while the average is at most half a token below the next shorter candidate
    (plus hysteresis), else up while it is above the current candidate less half a token. From a candidate 0 it
    probes the next. Candidates above num_speculative_tokens are left out.
    """

    tiers: Sequence[Tier] = SGLANG_TIERS
    ema_alpha: ShareAbove0 = 0.2
    update_interval: Annotated[int, whole(1)] = 5
    warmup_batches: Annotated[int, whole(0)] = 10
    rule = decide_tier
    learn = observe_tier

    def __post_init__(self) -> None:
        tiers = tuple(t if isinstance(t, Tier) else Tier(**t) for t in self.tiers)
        object.__setattr__(self, "tiers", tiers)
        super().__post_init__()
        sizes = [t.batch_size for t in tiers]
        if not tiers or not all(map(is_number, sizes)) or sizes != sorted(set(sizes)):
            raise ScenarioError("batch sizes must rise from tier to tier", key="policy.tiers", value=sizes)
        for t in tiers:
            if not 1 <= len(t.steps) <= MAX_TIER_STEPS or not all(is_number(step) and step >= 0 for step in t.steps):
                message = f"needs 1 to {MAX_TIER_STEPS} draft lengths, none negative"
                raise ScenarioError(message, key="policy.tiers.steps", value=list(t.steps))

    def compile(self, k: int, max_num_seqs: int, seed: int = 0) -> PolicyArrays:
        params = [self.ema_alpha, self.update_interval, self.warmup_batches]
        state: list[float] = []
        for tier in self.tiers:
            steps = sorted({s for s in tier.steps if s <= k}) or [0]
            row = [0.0] * TIER_ROW
            row[:TIER_STEP_0] = [tier.down_hysteresis, tier.up_hysteresis, len(steps)]
            row[TIER_STEP_0 : TIER_STEP_0 + len(steps)] = steps
            params += row
            start = steps.index(k) if k in steps else len(steps) // 2
            state += [start, steps[start] - 1.0, 0.0]
        # The last tier that begins at or below a batch size, the first one where none does.
        begun = np.searchsorted([tier.batch_size for tier in self.tiers], np.arange(max_num_seqs + 1), side="right")
        return arrays(table=np.maximum(begun - 1, 0), params=params, state=state)
