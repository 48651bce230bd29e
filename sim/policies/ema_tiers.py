"""Candidate lengths by batch size, walked by a moving accepted length: SGLang."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from draftcast.errors import ScenarioError
from draftcast.sim.engine import decide as rules
from draftcast.sim.engine.rules import ema_tiers as rule
from draftcast.sim.engine.state import PolicyArrays
from draftcast.sim.policies.base import Policy, arrays, check_count, check_unit


@dataclass(frozen=True)
class Tier:
    """Candidate draft lengths from a batch size on; hysteresis shifts the thresholds to a shorter or longer one."""

    batch_size: int
    steps: Sequence[int]
    up_hysteresis: float = 0.0
    down_hysteresis: float = 0.0


SGLANG_TIERS = (
    Tier(1, (1, 3, 5, 7), 0.0, -0.25),
    Tier(8, (0, 1, 3)),
    Tier(32, (0, 1)),
    Tier(64, (0,)),
)
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
    ema_alpha: float = 0.2
    update_interval: int = 5
    warmup_batches: int = 10
    name: ClassVar[str] = "ema_tiers"

    def __post_init__(self) -> None:
        tiers = tuple(t if isinstance(t, Tier) else Tier(**t) for t in self.tiers)
        object.__setattr__(self, "tiers", tiers)
        check_unit(self, "ema_alpha", above_zero=True)
        check_count(self, "update_interval", 1)
        check_count(self, "warmup_batches", 0)
        sizes = [t.batch_size for t in tiers]
        if not tiers or sizes != sorted(set(sizes)):
            raise ScenarioError("batch sizes must rise from tier to tier", key="policy.tiers", value=sizes)
        for t in tiers:
            if not t.steps or len(t.steps) > rule.MAX_TIER_STEPS or min(t.steps) < 0:
                raise ScenarioError(
                    f"needs 1 to {rule.MAX_TIER_STEPS} draft lengths, none negative",
                    key="policy.tiers.steps",
                    value=list(t.steps),
                )

    def compile(self, k: int, max_num_seqs: int, seed: int = 0) -> PolicyArrays:
        params = [self.ema_alpha, self.update_interval, self.warmup_batches, len(self.tiers)]
        state: list[float] = []
        for tier in self.tiers:
            steps = sorted({s for s in tier.steps if s <= k}) or [0]
            row = [0.0] * rule.TIER_ROW
            row[: rule.TIER_STEP_0] = [tier.batch_size, tier.down_hysteresis, tier.up_hysteresis, len(steps)]
            row[rule.TIER_STEP_0 : rule.TIER_STEP_0 + len(steps)] = steps
            params += row
            start = steps.index(k) if k in steps else len(steps) // 2
            state += [start, steps[start] - 1.0, 0.0]
        return arrays(rules.KIND_EMA_TIERS, params=params, state=state)
